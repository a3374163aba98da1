"""Fixtures of the engine's tests that the fault tests share."""

import gc
from collections.abc import Iterator

import pytest

from tests.engine.conftest import small_disk

__all__ = ["small_disk"]


@pytest.fixture(scope="module", autouse=True)
def _finalise_broken_connections() -> Iterator[None]:
    """Have asyncio report what became of broken connections now.

    CPython 3.11 fails with a SystemError where such a report, which formats a traceback, comes
    while a module is parsed.
    """
    yield
    gc.collect()
