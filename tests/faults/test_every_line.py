"""One in fifty of the attacks of ``every_line`` on the writer; the script runs them all, on every work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.every_line import attack_all

SHARES = {"writer": 50}


@pytest.mark.parametrize("work", SHARES)
def test_an_error_at_a_line_leaves_nothing_that_a_rerun_would_not_mend(work: str, tmp_path: Path) -> None:
    assert attack_all([work], SHARES[work], tmp_path) == []
