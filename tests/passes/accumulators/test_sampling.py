"""A sample is a function of the seed and the number of rows: spread over the file, and the same for all chunks."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

import bigpca as bp
from bigpca.data.tables import TableRows
from bigpca.data.zarr_arrays import ZarrRows
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.fold import RUNS, SAMPLE_BYTES, SAMPLE_ROWS, runs_layout, sample_runs, sample_size
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
    assert min(starts) < 100 < 500 < max(starts)  # the whole stratum of 625 rows is used


def sample(X: da.Array, wanted: int, **policies: str) -> tuple[NDArray[Any], int]:
    rows = Rows.of(X, **policies)
    layout = runs_layout(rows, sample_runs(rows.n_rows, wanted, 3))
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
    rows = Rows.of(bp.open(np.zeros((40_000, 8192), "u1")))
    base = rows.layout(0)
    layout = runs_layout(rows, ((0, 10), (5000, 5000 + 2 * base.slab_rows + 1)))
    assert layout.n_rows == 2 * base.slab_rows + 11
    ends = [5000 + i * base.slab_rows for i in range(3)]
    assert layout.reads == ((0, 10), *pairwise(ends), (ends[-1], ends[-1] + 1))
    assert layout.read_rows == base.slab_rows


COMPUTED: list[float] = []  # rows of blocks: nodes of graphs are pickled


def computed(block: NDArray[Any]) -> NDArray[Any]:
    COMPUTED.append(len(block))
    return block


def blocks_of(X: NDArray[Any], folder: Path, counts: list[float], patch: pytest.MonkeyPatch) -> da.Array:
    return da.from_array(X, chunks=(300, -1)).map_blocks(computed, dtype=X.dtype, meta=X[:0])


def row_groups(X: NDArray[Any], folder: Path, counts: list[float], patch: pytest.MonkeyPatch) -> da.Array:
    read = TableRows._read_group

    def recorded(source: TableRows, group: Any, columns: tuple[int, int]) -> Any:
        counts.append(group.rows)
        return read(source, group, columns)

    patch.setattr(TableRows, "_read_group", recorded)
    pq = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({f"c{i}": column for i, column in enumerate(X.T)})
    pq.write_table(table, folder / "x.parquet", row_group_size=300)
    return bp.open(folder / "x.parquet")


def maps_in_chunks(X: NDArray[Any], folder: Path, counts: list[float], patch: pytest.MonkeyPatch) -> da.Array:
    record(counts, patch, lambda source: source.array_shape[1] if source.array_shape[1:] else 0)
    zarr.create_array(folder / "x.zarr", data=X.reshape(100, 10, 5), chunks=(30, 10, 5))
    return bp.open(folder / "x.zarr", pattern="n s c -> (n s) c")


def csr_values(X: NDArray[Any], folder: Path, counts: list[float], patch: pytest.MonkeyPatch) -> da.Array:
    record(counts, patch, lambda source: 0.2 if source.member == "data" else 0)
    group = zarr.open_group(folder / "x.zarr", mode="w")
    rows = csr_array(X)
    for name in ("data", "indices", "indptr"):
        group.create_array(name, data=getattr(rows, name), chunks=(700,))
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(X.shape)})
    return bp.open(folder / "x.zarr")


def record(counts: list[float], patch: pytest.MonkeyPatch, rows_of: Callable[[ZarrRows], float]) -> None:
    """Count the chunks of Zarr arrays as they are read, each as so many rows for an entry along its first axis."""
    read = ZarrRows.read_block

    def recorded(source: ZarrRows, start: int, stop: int, columns: tuple[int, int]) -> Any:
        n, together = source.array_shape[0], source.decoded_rows
        counts.append((min(n, -(-stop // together) * together) - start // together * together) * rows_of(source))
        return read(source, start, stop, columns)

    patch.setattr(ZarrRows, "read_block", recorded)


@pytest.mark.parametrize("make", [blocks_of, row_groups, maps_in_chunks, csr_values])
@pytest.mark.parametrize("wanted", [16, 90])
def test_a_sample_counts_what_is_decoded_for_it(
    make: Callable[..., da.Array], wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[float] = []
    rows = Rows.of(make(normal(1000, 5), tmp_path, counts, monkeypatch))
    layout = runs_layout(rows, sample_runs(1000, wanted, 3))
    counts.clear()
    COMPUTED.clear()
    folded(rows, RowSample(5, wanted, 40), layout=layout, shift=np.zeros(5))
    assert sum(layout.decoded) == pytest.approx(sum(counts or COMPUTED), abs=16)  # of CSR, a row is a mean one


def test_a_sample_does_not_hold_the_chunks_that_it_is_read_from(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=normal(1000, 5), chunks=(1000, 5))
    rows = Rows.of(bp.open(tmp_path / "x.zarr"))
    found = folded(rows, RowSample(5, 90, 40), layout=runs_layout(rows, sample_runs(1000, 90, 3)), shift=np.zeros(5))
    assert max(len(piece) if piece.base is None else len(piece.base) for piece in found.state.rows()) <= 6
