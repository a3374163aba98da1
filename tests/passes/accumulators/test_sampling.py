"""A sample is a function of the seed and the number of rows: spread over the file, and the same for all chunks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import bigpca as bp
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.fold import RUNS, SAMPLE_BYTES, SAMPLE_ROWS, sample_layout, sample_runs, sample_size
from bigpca.passes.rows import Rows
from tests.passes.kit import folded, normal


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 10**7), row_bytes=st.integers(1, 10**6), least=st.integers(1, 3000))
def test_a_sample_is_a_tenth_at_most_or_none(n: int, row_bytes: int, least: int) -> None:
    size = sample_size(n, row_bytes, least)
    assert size == 0 or least <= size <= min(n // 10, SAMPLE_ROWS)
    assert size * row_bytes <= max(SAMPLE_BYTES, 4 * least * row_bytes)
    if least <= min(n // 10, SAMPLE_ROWS):
        assert size > 0


@settings(max_examples=100, deadline=None)
@given(n=st.integers(10, 10**6), share=st.floats(0, 1), seed=st.integers(0, 2**70))
def test_runs_lie_in_strata_of_their_own_and_make_up_the_sample(n: int, share: float, seed: int) -> None:
    wanted = 1 + int(share * (min(n // 10, SAMPLE_ROWS) - 1))
    runs = sample_runs(n, wanted, seed)
    assert len(runs) == min(RUNS, wanted)
    assert sum(stop - start for start, stop in runs) == wanted
    for i, (start, stop) in enumerate(runs):
        assert i * n <= start * len(runs)
        assert start < stop
        assert stop * len(runs) < (i + 1) * n + len(runs)
    assert all(a[1] <= b[0] for a, b in pairwise(runs))
    assert runs == sample_runs(n, wanted, seed)


def test_seeds_move_the_runs() -> None:
    starts = {sample_runs(10_000, 160, seed)[0][0] for seed in range(50)}
    assert len(starts) > 40
    assert min(starts) < 100  # the whole stratum of 625 rows is used
    assert max(starts) > 500


def sample(X: da.Array, wanted: int, **policies: str) -> tuple[NDArray[Any], int]:
    rows = Rows.of(X, **policies)
    layout = sample_layout(rows.layout(0), sample_runs(rows.n_rows, wanted, 3))
    template = RowSample(rows.n_columns, wanted, 4 * rows.n_columns)
    found = folded(rows, template, layout=layout, shift=np.zeros(rows.n_columns), dtype=np.dtype("f4"))
    return np.concatenate(found.state.rows()), found.omitted


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_neither_chunks_nor_threads_choose_the_rows(scheduler: str) -> None:
    X = normal(1000, 5)
    chosen = np.concatenate([np.arange(a, b) for a, b in sample_runs(1000, 90, 3)])
    lazy = da.from_array(X, chunks=((100, 0, 7, 893), (2, 3)))
    with dask.config.set(scheduler=scheduler):
        for given_as in (bp.open(X), lazy, lazy.rechunk((1, 5)), (lazy * 2).rechunk((300, 5)) / 2):
            assert np.array_equal(sample(given_as, 90)[0], X[chosen])


def test_rows_with_missing_values_leave_the_sample() -> None:
    X = normal(1000, 5)
    chosen = np.concatenate([np.arange(a, b) for a, b in sample_runs(1000, 90, 3)])
    X[chosen[::2], 1] = np.nan
    rows, omitted = sample(bp.open(X), 90, nan_policy="omit")
    assert np.array_equal(rows, X[chosen[1::2]])
    assert omitted == 45
    with pytest.raises(bp.errors.NonFiniteError, match="NaN or infinite value"):
        sample(bp.open(X), 90)


def test_a_layout_of_runs_cuts_long_ones_into_slabs() -> None:
    base = Rows.of(bp.open(np.zeros((40_000, 8192), "u1"))).layout(0)
    layout = sample_layout(base, ((0, 10), (5000, 5000 + 2 * base.slab_rows + 1)))
    assert layout.n_rows == 2 * base.slab_rows + 11
    assert [layout.rows_of(g) for g in range(2)] == [(0, 10), (5000, 5000 + 2 * base.slab_rows + 1)]
    assert [len(group) for group in layout.groups] == [1, 3]
    assert layout.read_rows == base.slab_rows
