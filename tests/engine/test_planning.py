"""Plans are pure arithmetic: the numbers, both sides of the limit, and the error that states them."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

import bigpca as bp
from bigpca.engine.checkpoint import Resumed
from bigpca.engine.jobs import Pass
from bigpca.engine.layout import split_evenly
from bigpca.engine.local import LocalPass, run_locally
from bigpca.engine.planning import SAFE_SHARE, Layout, PassCost, Plan, Resources, peak_bytes
from bigpca.engine.run import Run

MIB = 1 << 20
RESOURCES = Resources(threads=2, limit_bytes=1000 * MIB, baseline_bytes=150 * MIB, where="memory_limit")
PLAN = Plan(
    solver="covariance",
    reason="one read",
    passes=1,
    bytes_read=10 * MIB,
    flops=2e9,
    tasks=3,
    state_bytes=10 * MIB,
    block_rows=1000,
    peak_bytes=300 * MIB,
    output_bytes=MIB,
    resources=RESOURCES,
)


def test_the_peak_of_a_thread_is_three_reads_a_copied_slab_and_the_product() -> None:
    assert peak_bytes(8 * MIB, 0, 0) == 24 * MIB
    assert peak_bytes(MIB, 0, 0) == 4 * MIB  # a small read stays in the heap when it is freed
    assert peak_bytes(MIB, 0, 0, more=False) == 3 * MIB
    assert peak_bytes(8000 * MIB, 200, 30) == 24000 * MIB + 230


def laid_out(groups: int, segments: int) -> Layout:
    cut = tuple((i, i + 1) for i in range(groups))
    return Layout(groups, 1, 8, 1, cut, tuple(map(range, range(groups), range(1, groups + 1))),
                  split_evenly([1] * groups, segments))  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "segments", "threads", "here", "there"),
    [(1, 1, 2, 2, 2), (2, 2, 2, 3, 3), (3, 3, 2, 4, 4), (14, 14, 2, 6, 13), (16, 16, 8, 17, 17), (20, 5, 2, 10, 13),
     (20, 5, 16, 30, 30), (64, 16, 8, 26, 37), (4096, 64, 16, 70, 69)],
)  # fmt: skip
def test_a_pass_says_how_many_states_a_process_holds(
    groups: int, segments: int, threads: int, here: int, there: int
) -> None:
    held = laid_out(groups, segments).held_states
    assert (held(threads, local=True), held(threads, local=False)) == (here, there)


def test_the_room_is_three_quarters_of_the_limit_less_what_the_idle_process_holds() -> None:
    assert SAFE_SHARE == 0.75
    assert RESOURCES.room_bytes == 600 * MIB


def test_a_process_holds_the_peak_of_each_thread_and_what_is_in_flight() -> None:
    assert PLAN.process_bytes == 600 * MIB
    assert replace(PLAN, flight_bytes=7).process_bytes == 600 * MIB + 7


def test_a_plan_fits_up_to_the_last_byte_of_the_room_and_no_further() -> None:
    assert PLAN.fits
    PLAN.check()
    over = replace(PLAN, resources=replace(RESOURCES, baseline_bytes=150 * MIB + 1))
    assert not over.fits
    with pytest.raises(bp.errors.MemoryBudgetError):
        over.check()


def test_the_error_states_need_room_and_ways_out() -> None:
    over = replace(PLAN, peak_bytes=315 * MIB)
    with pytest.raises(bp.errors.MemoryBudgetError) as rejected:
        over.check()
    assert str(rejected.value) == (
        "covariance needs 630.0 MiB per process (2 threads x 315.0 MiB; a state is 10.0 MiB), "
        "but 600.0 MiB are left of "
        "memory_limit = 1000.0 MiB (75% of it, less 150.0 MiB that the idle process holds). "
        "Give each process more memory or "
        "fewer threads, store the input in smaller chunks (bp.ingest(source, out, chunk_rows=...)), "
        "or reduce the number of columns."
    )


def test_a_limit_below_the_idle_process_leaves_no_room_and_never_a_negative_one() -> None:
    small = replace(PLAN, resources=replace(RESOURCES, limit_bytes=100 * MIB))
    assert "but 0 B are left" in small.shortage()


def test_the_table_says_whether_it_fits_and_every_note() -> None:
    table = str(replace(PLAN, notes=("first", "second")))
    lines = dict(line.split("  ", 1) for line in table.splitlines()[:-2])
    assert lines["limit"].strip().endswith("fits")
    assert table.splitlines()[-2:] == ["note         first", "note         second"]
    assert "DOES NOT FIT" in str(replace(PLAN, peak_bytes=315 * MIB))
    assert "all rows once" in table
    assert "all rows 2.5 times" in str(replace(PLAN, passes=2.5))


@pytest.mark.parametrize(("groups", "segments", "begun"), [(16, 16, 6), (64, 16, 8), (64, 4, 32)])
def test_groups_wait_where_two_a_thread_are_ahead_of_the_sum(groups: int, segments: int, begun: int) -> None:
    cost = PassCost(name="x", layout=laid_out(groups, segments))
    unread: Any = None
    job = Pass(cost=cost, templates={}, cut=lambda _: (unread, {}), stamp=None, finish=str, unit_bytes=8, whole=groups)
    local, coming = LocalPass(job, Run(), Resumed(), 3), dict[int, Any]()
    assert sum(iter(partial(local._begin, coming), False)) == begun
    assert [*coming] == [*range(begun)]


def test_a_pass_over_no_rows_has_no_task() -> None:
    cost, unread = PassCost(name="x", layout=Layout(0, 1, 8, 1, (), (), ())), cast("Any", None)
    job = Pass(cost=cost, templates={}, cut=unread, stamp=None, finish=str, unit_bytes=8, whole=0)
    with pytest.raises(ValueError, match="there is nothing to read"):
        run_locally(job, Run(), Resumed())
