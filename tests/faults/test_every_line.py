"""One in fifty of the lines that ``every_line`` attacks, each once; the script attacks them all, in every work.

All lines are attacked where an interrupt once lost rows or waited for ever.
"""

import inspect
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bigpca.data.batches import BatchStream
from bigpca.engine.local import run_in_order
from tests.faults.every_line import WORKS, Attack, attack_all, attack_each, small
from tests.interrupts import lines_of

PLACES: dict[str, tuple[Any, ...]] = {
    "batches": (run_in_order,),
    "reading": (BatchStream,),
    "reading_once": (BatchStream,),
}


@pytest.mark.cluster
def test_an_error_at_a_line_leaves_nothing_that_a_rerun_would_not_mend(tmp_path: Path) -> None:
    assert attack_all(list(WORKS), 50, tmp_path, once=True) == []


@pytest.mark.parametrize("name", PLACES)
def test_an_interrupt_at_any_line_of_batches_loses_no_row_and_waits_for_nothing(name: str, tmp_path: Path) -> None:
    work: Callable[[Path], object] = WORKS[name]
    codes = {code for place in PLACES[name] for code in codes_of(place)}
    runs = count()
    with small(tmp_path):
        expected = work(tmp_path / "expected")
        lines = lines_of(lambda: work(tmp_path / str(next(runs))), lambda frame: frame.f_code in codes)
        assert len(lines) > 20
        assert attack_each(work, [Attack("interrupt", line) for line in lines], tmp_path, expected) == []


def codes_of(place: Any) -> list[Any]:
    members = vars(place).values() if inspect.isclass(place) else [place]
    return [inspect.unwrap(one).__code__ for one in members if inspect.isfunction(one)]
