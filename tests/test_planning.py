"""Plans are pure arithmetic: the numbers, both sides of the limit, and the error that states them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import bigpca as bp
from bigpca.planning import SAFE_SHARE, Plan, Resources, peak_bytes

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
    peak_bytes=285 * MIB,
    output_bytes=MIB,
    resources=RESOURCES,
)


def test_the_peak_is_three_reads_a_copied_slab_the_product_and_four_states() -> None:
    assert peak_bytes(8 * MIB, 0, 0, 0) == 24 * MIB
    assert peak_bytes(MIB, 0, 0, 0) == 4 * MIB  # a small read stays in the heap when it is freed
    assert peak_bytes(MIB, 0, 0, 0, more=False) == 3 * MIB
    assert peak_bytes(0, 1, 0, 0) == 1
    assert peak_bytes(0, 0, 1, 0) == 1
    assert peak_bytes(0, 0, 0, 1) == 4
    assert peak_bytes(8000 * MIB, 200, 30, 4) == 24000 * MIB + 246


def test_the_room_is_three_quarters_of_the_limit_less_what_the_idle_process_holds() -> None:
    assert SAFE_SHARE == 0.75
    assert RESOURCES.room_bytes == 600 * MIB


def test_a_process_holds_the_peak_of_each_thread_and_three_states() -> None:
    assert PLAN.process_bytes == (2 * 285 + 3 * 10) * MIB


def test_a_plan_fits_up_to_the_last_byte_of_the_room_and_no_further() -> None:
    assert PLAN.fits
    PLAN.check()
    over = replace(PLAN, resources=replace(RESOURCES, baseline_bytes=150 * MIB + 1))
    assert not over.fits
    with pytest.raises(bp.errors.MemoryBudgetError):
        over.check()


def test_the_error_states_need_room_and_ways_out() -> None:
    over = replace(PLAN, peak_bytes=300 * MIB)
    with pytest.raises(bp.errors.MemoryBudgetError) as rejected:
        over.check()
    assert str(rejected.value) == (
        "covariance needs 630.0 MiB per process (2 threads x 300.0 MiB + 3 states of 10.0 MiB), "
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
    assert "DOES NOT FIT" in str(replace(PLAN, peak_bytes=300 * MIB))
    assert "1 read of X" in table
    assert "2.5 reads of X" in str(replace(PLAN, passes=2.5))
