"""Blocks in float32 however small the data, and reads that are counted."""

from __future__ import annotations

import pytest

from bigpca.passes.reading import blocks
from tests.operators.counting import Reads


@pytest.fixture
def float32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply float32 data in float32, as large passes do."""
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads().watch(monkeypatch)
