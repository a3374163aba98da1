"""Reads, slabs, groups and segments depend on shape, dtype and chunks alone, and every row is in exactly one read;
products of slabs of few rows are summed as those of one.
"""

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import host
from bigpca.arrays import working_dtype
from bigpca.csr import CsrForm
from bigpca.engine.layout import (
    MAX_SEGMENTS,
    MIN_GROUP_BYTES,
    MOST_GROUPS,
    SLAB_BYTES,
    SLAB_ROWS,
    Cut,
    Layout,
    plan_layout,
)
from bigpca.errors import NonFiniteError
from bigpca.forms import DENSE
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.rows import OPEN_SLAB_BYTES, OPEN_SLAB_ROWS
from tests.passes.kit import full, normal, prepare_block, scatter_of

F4, GIB = np.dtype("f4"), 1 << 30
chunk_sizes = st.lists(st.one_of(st.integers(0, 5), st.integers(1000, 30000)), max_size=60)


def assert_partition(layout: Layout, n_rows: int) -> None:
    """Every row in one read, every read in one group, every group in one segment, in order."""
    edges = [0, *(stop for _, stop in layout.reads)]
    assert [start for start, _ in layout.reads] == edges[:-1]
    assert edges[-1] == n_rows
    assert all(stop > start for start, stop in layout.reads)
    for runs, count in ((layout.groups, len(layout.reads)), (layout.segments, len(layout.groups))):
        assert [i for run in runs for i in run] == list(range(count))
        assert all(len(run) for run in runs)


@settings(max_examples=60, deadline=None)
@given(chunks=chunk_sizes, d=st.integers(1, 5000), state=st.sampled_from([0, 10**6, 10**9]))
def test_every_row_is_in_exactly_one_read_group_and_segment_whatever_the_chunks(
    chunks: list[int], d: int, state: int
) -> None:
    layout = plan_layout(chunks, d, F4, state)
    assert_partition(layout, sum(chunks))
    assert len(layout.groups) <= MOST_GROUPS
    assert len(layout.segments) <= MAX_SEGMENTS


@settings(max_examples=60, deadline=None)
@given(chunks=chunk_sizes, d=st.integers(1, 5000))
def test_no_chunk_is_cut_by_a_read(chunks: list[int], d: int) -> None:
    edges = {0, *np.cumsum(chunks).tolist()}
    assert all(stop in edges for _, stop in plan_layout(chunks, d, F4, 0).reads)


def test_the_layout_is_a_function_of_chunks_dtype_and_state_size_and_of_nothing_else() -> None:
    names = set(inspect.signature(plan_layout).parameters)
    known = {"row_chunks", "n_columns", "dtype", "state_bytes", "stored_row_bytes", "row_bytes", "work"}
    # The kind of rows: whether their number is known, and where they are multiplied, which identifies a checkpoint too.
    assert names == known | {"cut"}


@pytest.mark.parametrize("dtype", ["u1", "i1", "?", "f2", "i2"])
def test_narrow_dtypes_are_cut_as_their_float32_copies(dtype: str) -> None:
    chunks = [4096] * 300
    assert plan_layout(chunks, 512, np.dtype(dtype), 8 * 512**2) == plan_layout(chunks, 512, F4, 8 * 512**2)


def test_a_chunk_larger_than_a_slab_is_one_read_of_many_slabs() -> None:
    n = 40 * SLAB_BYTES // (4 * 1000)
    layout = plan_layout([n], 1000, F4, 0)
    assert layout.reads == ((0, n),)
    assert layout.slab_rows == SLAB_ROWS < SLAB_BYTES // layout.row_bytes
    assert len(layout.groups) == 1


@pytest.mark.parametrize(
    ("slabs", "groups", "reads"),
    [(8, 8, 1), (15, 15, 1), (16, 8, 2), (17, 8, 3), (24, 12, 2), (31, 15, 3), (32, 16, 2), (64, 16, 4), (128, 32, 4)],
)
@pytest.mark.parametrize("last", [8192, 8000, 5000])
def test_groups_of_large_reads_hold_two_so_that_one_is_read_while_the_other_is_multiplied(
    slabs: int, groups: int, reads: int, last: int
) -> None:
    layout = plan_layout([8192] * (slabs - 1) + [last], 2048, F4, 8 * 2048 * 1024)  # chunks of 64 MiB
    assert_partition(layout, 8192 * (slabs - 1) + last)
    assert len(layout.groups) == groups
    held = sorted(map(len, layout.groups))
    assert held[-1] == reads
    assert slabs < 16 or held[0] >= 2


@pytest.mark.parametrize(("d", "rows"), [(256, 8192), (1024, 4096), (4096, 4096), (8192, 2048)])
def test_rows_of_unknown_number_have_small_slabs_and_a_segment_for_each_group(d: int, rows: int) -> None:
    most = min(SLAB_BYTES, max(OPEN_SLAB_BYTES, OPEN_SLAB_ROWS * 4 * d))
    layout = plan_layout([4096] * 500, d, F4, 0, cut=Cut(most, ends=True))
    assert_partition(layout, 4096 * 500)
    assert layout.slab_rows == rows
    assert layout.segments == tuple(range(i, i + 1) for i in range(len(layout.groups)))


@pytest.mark.parametrize(
    ("gib", "state", "groups"),
    [(64, 0, 128), (1024, 0, 2048), (4096, 0, 4096), (4100, 0, 4100), (16384, 0, 16384), (65536, 0, 16384),
     (8192, GIB, 1024), (65536, GIB, 8192)],
)  # fmt: skip
def test_groups_grow_to_a_gib_or_eight_states_before_there_are_more_of_them(gib: int, state: int, groups: int) -> None:
    layout = plan_layout([65536] * (4 * gib), 1024, F4, state)  # of 256 MiB: two in the smallest group
    assert len(layout.groups) == groups
    assert len(layout.segments) == 64
    assert min(map(len, layout.segments)) >= min(64, groups // 64)


def test_small_reads_keep_sixteen_groups() -> None:
    assert len(plan_layout([4096] * 16, 2048, F4, 0).groups) == 16  # of 32 MiB
    assert len(plan_layout([2000] * 260, 512, F4, 0).groups) == 16


def test_a_hundred_thousand_tiny_chunks_are_joined_to_few_reads_and_groups() -> None:
    layout = plan_layout([8] * 100_000, 64, F4, 8 * 64 * 65)
    assert_partition(layout, 800_000)
    assert len(layout.reads) <= 200
    assert 16 <= len(layout.groups) <= 200


def test_small_data_is_not_cut_below_four_mebibytes_a_group() -> None:
    rows = 3 * MIN_GROUP_BYTES // (4 * 64)
    assert len(plan_layout([100] * (rows // 100), 64, F4, 0).groups) <= 3
    assert len(plan_layout([10], 4, F4, 0).groups) == 1


def test_no_rows_give_no_reads() -> None:
    for chunks in ([], [0], [0, 0]):
        layout = plan_layout(chunks, 5, F4, 0)
        assert (layout.n_rows, layout.reads, layout.groups, layout.segments) == (0, (), (), ())
        assert layout.read_rows == 0


@pytest.mark.parametrize(
    ("stored", "working"),
    [("f2", "f4"), ("u1", "f4"), ("u2", "f4"), ("?", "f4"), ("i4", "f8"), ("u8", "f8"), ("f4", "f4"), ("f8", "f8")],
)
def test_blocks_are_multiplied_in_a_dtype_that_holds_every_stored_value(stored: str, working: str) -> None:
    assert working_dtype(np.dtype(stored)) == np.dtype(working)


def block_of(values: np.ndarray, nan_policy: str = "raise", owned: bool = True):  # type: ignore[no-untyped-def]
    return prepare_block(values, 100, DENSE.mean(values), owned=owned, nan_policy=nan_policy, where="rows 100:200 of x")


def test_the_shift_is_exactly_representable_so_that_a_block_loses_no_digit() -> None:
    values = (np.random.default_rng(0).normal(size=(300, 4)) + 1e4).astype("f4")
    block = block_of(values.copy())
    np.testing.assert_array_equal(block.values.astype("f8") + block.shift, values.astype("f8"))
    np.testing.assert_allclose(block.sums, block.values.sum(axis=0, dtype="f8"), atol=1e-3)


def test_the_shift_is_the_mean_of_complete_rows_or_of_what_is_known() -> None:
    values = np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, 1e9], [5.0, np.inf]])
    for rows, shift in ((values, [2.0, 3.0]), (values[2:], [5.0, 1e9])):
        np.testing.assert_array_equal(DENSE.mean(rows), shift)
    np.testing.assert_array_equal(CsrForm().mean(csr_array(values)), [3.0, (6.0 + 1e9) / 3])


def test_a_block_that_is_not_owned_is_not_overwritten() -> None:
    values = np.random.default_rng(0).normal(size=(30, 4)).astype("f4")
    before = values.copy()
    block_of(values, owned=False)
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_value_is_reported_with_count_rows_column_and_block(bad: float) -> None:
    values = np.ones((100, 6), "f4")
    values[[7, 40, 41, 42, 43, 99], 3] = bad
    with pytest.raises(NonFiniteError) as caught:
        block_of(values)
    text = str(caught.value)
    assert text.startswith(
        "6 NaN or infinite values in 6 rows of rows 100:200 of x: rows 107, 140, 141, 142, 143, ...;"
    )
    assert "the first is in row 107, column 3. Finite values were expected; masked entries are treated as NaN." in text
    assert 'Pass nan_policy="omit" to leave those rows out (' in text
    assert text.endswith("or repair the data.")


@pytest.mark.parametrize("cached", [1, 4 * 6 * 7, 1 << 20], ids=["a row", "7 rows", "all rows"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_block_is_the_same_however_few_rows_the_cache_holds(
    cached: int, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigpca.forms.CACHED_BYTES", cached)
    values = np.random.default_rng(0).normal(size=(300, 6)).astype("f4")
    values[170, 2], values[171, 3] = -50.0, np.nan if missing else 60.0
    shift = np.full(6, 0.5, "f4")
    kept = values[np.isfinite(values).all(axis=1)] - shift
    block = prepare_block(values, 0, shift, owned=False, nan_policy="omit", where="rows", find_largest=True)
    np.testing.assert_array_equal(block.values, kept)
    np.testing.assert_allclose(block.sums, kept.sum(axis=0, dtype="f8"), atol=1e-4)
    assert block.largest == np.abs(kept).max() == (50.5 if missing else 59.5)
    assert prepare_block(values, 0, shift, owned=False, nan_policy="omit", where="rows").largest is None


def test_omitted_rows_leave_the_numbers_of_the_others() -> None:
    values = np.arange(20, dtype="f4").reshape(10, 2)
    values[[0, 4]] = np.nan
    block = block_of(values, "omit")
    assert block.rows.tolist() == [101, 102, 103, 105, 106, 107, 108, 109]
    assert np.isfinite(block.values).all()
    np.testing.assert_allclose(block.sums, block.values.sum(axis=0))


def test_finite_values_whose_sum_overflows_are_not_called_infinite() -> None:
    values = np.full((256, 2), 3e38, "f4")
    values[::2] = 1e38
    mean = values.mean(axis=0, dtype="f8")
    block = block_of(values)
    np.testing.assert_allclose(block.sums / 256 + block.shift, mean, rtol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 127, 128, 129, 1000])
def test_column_sums_add_all_rows_in_nearly_full_precision(rows: int) -> None:
    values = np.random.default_rng(rows).normal(size=(rows, 3)).astype("f4")
    np.testing.assert_allclose(
        DENSE.column_sums(values), values.sum(axis=0, dtype="f8"), atol=1e-5 * max(rows, 1) ** 0.5
    )


D = 6
SIZES = {
    "usual": np.ones(D),
    "large": np.full(D, 1e25),  # squares overflow float32
    "nearly large": np.full(D, 1.5e18),  # squares of one slab do not, of several they do
    "small": np.full(D, 1e-25),  # squares vanish
    "one small": np.array([1, 1, 1e-25, 1, 1, 1]),
    "one zero": np.array([1, 1, 0, 1, 1, 1]),
}


def moments_of(slabs: list[NDArray[Any]]) -> Moments:
    state, row = Moments(D).fresh(0, sum(map(len, slabs))), 0
    for slab in slabs:
        zero = np.zeros(D, slab.dtype)
        state.update(prepare_block(slab, row, zero, owned=False, nan_policy="raise", where="rows"))
        row += len(slab)
    state.close()
    return state


@pytest.mark.parametrize("order", list(itertools.permutations(SIZES, 3)), ids=", ".join)
def test_slabs_of_any_size_after_each_other_keep_every_square(order: tuple[str, ...]) -> None:
    with np.errstate(over="ignore"):
        slabs = [(normal(40, D, mean=0, seed=i) * SIZES[size]).astype("f4") for i, size in enumerate(order)]
        found = moments_of(slabs)
    A = np.concatenate(slabs)
    truth = scatter_of(A)
    scale = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
    error = np.abs(full(found.scatter) - truth) / np.where(scale > 0, scale, 1)
    assert found.count == len(A)
    assert error.max() < 100 * np.finfo("f4").eps


def test_a_large_first_slab_does_not_hide_a_column_that_is_small_in_all_later_ones() -> None:
    slabs = [normal(40, D, mean=0, seed=i) * np.float32(1e-16) for i in range(3)]
    slabs[0][:, 1:] = 1.0
    found, truth = moments_of(slabs), scatter_of(np.concatenate(slabs))
    np.testing.assert_allclose(found.scatter[0, 0], truth[0, 0], rtol=1e-5)


def test_products_are_added_in_float64_once_in_as_many_rows_as_one_slab_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[NDArray[Any]] = []
    add_packed = host.add_packed

    def count(total: NDArray[Any], term: NDArray[Any]) -> None:
        added.append(term)
        add_packed(total, term)

    monkeypatch.setattr(host, "add_packed", count)
    moments_of([normal(SLAB_ROWS // 8, D, seed=i) for i in range(20)])
    assert len(added) == 3


def test_many_slabs_are_as_exact_as_one() -> None:
    A = normal(SLAB_ROWS, D, mean=0)
    truth = scatter_of(A)
    one, many = (np.abs(full(moments_of(np.split(A, parts)).scatter) - truth).max() for parts in (1, 64))
    bound = np.sqrt(SLAB_ROWS) * np.finfo("f4").eps * np.diag(truth).max()
    assert max(one, many) < bound
