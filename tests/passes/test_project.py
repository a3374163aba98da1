"""Mapping rows, lazily or to a new Zarr array: equal values, whole chunks, resumed after a kill, never half visible."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client
from numpy.typing import NDArray

import bigpca as bp
from bigpca.engine.events import Event
from bigpca.engine.run import Run
from bigpca.passes.project import output_chunk_rows, project_in_memory, project_lazily, project_to
from bigpca.passes.reading.row_maps import RowMap
from bigpca.passes.rows import Rows
from bigpca.storage.outputs import STORE, Form, NpyForm
from tests.passes.kit import interrupt_after, logged, normal, reads_in, rows_read, write_store

N, D, K = 1000, 12, 3
A = normal(N, D)
TABLE = NpyForm(("a", "b", "c"))
W = np.random.default_rng(3).normal(size=(D, K)).astype("f4")


@dataclass(frozen=True)
class Multiply(RowMap):
    """A linear map, float32 for narrow input."""

    weight: float = 1.0

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        dtype = self.output_dtype(rows.dtype)
        mapped: NDArray[Any] = rows.astype(dtype) @ (W * self.weight).astype(dtype)
        return mapped

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        return (d + K) * (rows * itemsize + 8 * K), 0

    def describe(self) -> dict[str, Any]:
        return {"map": "multiply", "weight": self.weight}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "x.zarr", A, (50, D))
    return tmp_path / "x.zarr"


def written(X: da.Array, out: Path, f: Multiply = Multiply(), **options: Any) -> da.Array:
    progress = options.pop("progress", lambda event: None)
    return project_to(Rows.of(X), f, K, out, name="scores", run=Run(progress=progress), chunk_rows=100, **options)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i4"])
def test_a_lazy_result_has_the_input_s_row_chunks_and_the_map_s_dtype_and_reads_nothing(
    dtype: str, tmp_path: Path
) -> None:
    write_store(tmp_path / "y.zarr", A.astype(dtype), (50, D))
    X = logged(tmp_path / "y.zarr", tmp_path / "log", chunk_rows=150)
    lazy = project_lazily(X, Multiply(), K)
    assert lazy.shape == (N, K)
    assert lazy.chunks[0] == X.chunks[0]
    assert lazy.dtype == Multiply().output_dtype(np.dtype(dtype))
    assert not reads_in(tmp_path / "log")
    computed = lazy.compute()
    assert computed.dtype == lazy.dtype
    np.testing.assert_allclose(computed, A.astype(dtype).astype("f8") @ W, rtol=1e-4, atol=1e-3)


def test_a_lazy_result_of_column_chunks_is_whole_rows(store: Path) -> None:
    lazy = project_lazily(da.from_zarr(str(store)).rechunk((100, 5)), Multiply(), K)
    np.testing.assert_allclose(lazy.compute(), A @ W, rtol=1e-4, atol=1e-4)


def test_an_array_in_memory_is_mapped_piece_by_piece_to_the_same_values() -> None:
    X = normal(20_000, D)
    np.testing.assert_allclose(project_in_memory(Rows.of(bp.open(X)), Multiply(), K), X @ W, rtol=1e-4, atol=1e-4)
    assert project_in_memory(Rows.of(bp.open(X[:0])), Multiply(), K).shape == (0, K)


@pytest.mark.parametrize(
    "make", [lambda X: X, lambda X: X.rechunk((77, 5)), lambda X: X[X[:, 0] > -99], lambda X: X.persist()]
)
def test_what_is_written_equals_the_map_of_the_rows_in_whole_chunks(make: Any, store: Path, tmp_path: Path) -> None:
    found = written(make(da.from_zarr(str(store))), tmp_path / "out.zarr")
    np.testing.assert_allclose(found.compute(), A @ W, rtol=1e-4, atol=1e-4)
    z = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert (z.chunks, z.dtype, np.isnan(z.fill_value)) == ((100, K), np.dtype("f4"), True)
    assert not (tmp_path / "out.zarr.partial").exists()
    assert not (tmp_path / "out.zarr.lock").exists()


@pytest.mark.cluster
def test_what_a_cluster_writes_has_the_same_bytes(store: Path, tmp_path: Path, client: Client) -> None:
    events: list[Event] = []
    written(bp.open(store), tmp_path / "a.zarr", progress=events.append)
    assert rows_read(events) == N
    with dask.config.set(scheduler="sync"):
        written(bp.open(store), tmp_path / "b.zarr")
        written(bp.open(store), tmp_path / "b.npy", form=TABLE)
    written(bp.open(store), tmp_path / "a.npy", form=TABLE)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    for i in range(10):
        assert (tmp_path / "a.zarr" / "c" / str(i) / "0").read_bytes() == (
            tmp_path / "b.zarr" / "c" / str(i) / "0"
        ).read_bytes()


@pytest.mark.parametrize("form", [STORE, TABLE])
def test_an_interrupted_output_is_invisible_and_resumes_with_what_is_missing(
    form: Form, store: Path, tmp_path: Path
) -> None:
    out, X = tmp_path / ("out.npy" if form.kind == "table" else "out.zarr"), logged(store, tmp_path / "log")
    with dask.config.set(scheduler="sync"):
        with pytest.raises(KeyboardInterrupt):
            written(X, out, progress=interrupt_after(4), form=form)
        assert not out.exists()
        assert len(reads_in(tmp_path / "log")) == 4
        events: list[Any] = []
        found = written(X, out, progress=events.append, form=form)
    assert len(reads_in(tmp_path / "log")) == 10
    assert (events[0].groups_resumed, events[0].groups_total, events[0].rows_total) == (4, 10, len(A))
    assert sorted(os.listdir(tmp_path)) == sorted(["log", out.name, "x.zarr"])
    np.testing.assert_allclose(found.compute(), A @ W, rtol=1e-4, atol=1e-4)


def test_another_map_or_a_changed_input_does_not_continue_an_unfinished_output(store: Path, tmp_path: Path) -> None:
    out, X = tmp_path / "out.zarr", logged(store, tmp_path / "log")
    with dask.config.set(scheduler="sync"):
        for f, touch in ((Multiply(), False), (Multiply(2.0), False), (Multiply(2.0), True)):
            if touch:
                os.utime(store / "c" / "0" / "0", ns=(0, 0))
                X = logged(store, tmp_path / "log")
            with pytest.raises(KeyboardInterrupt):
                written(X, out, f, progress=interrupt_after(4))
        assert len(reads_in(tmp_path / "log")) == 12
        np.testing.assert_allclose(written(X, out, Multiply(2.0)).compute(), 2 * A @ W, rtol=1e-4, atol=1e-4)
    assert len(reads_in(tmp_path / "log")) == 18


def test_an_existing_output_is_rejected_before_any_read_and_replaced_where_that_was_asked_for(
    store: Path, tmp_path: Path
) -> None:
    out, X = tmp_path / "out.zarr", logged(store, tmp_path / "log")
    written(X, out)
    before = reads_in(tmp_path / "log")
    with pytest.raises(bp.errors.OutputExistsError):
        written(X, out)
    assert reads_in(tmp_path / "log") == before
    found = written(X, out, Multiply(3.0), overwrite=True)
    np.testing.assert_allclose(found.compute(), 3 * A @ W, rtol=1e-4, atol=1e-4)


def test_output_chunks_are_whole_input_chunks_of_about_16_mib(tmp_path: Path) -> None:
    rows = Rows.of(bp.open(write_store(tmp_path / "x.zarr", normal(10_000, 2), (10, 2))))
    assert output_chunk_rows(rows, 400) % 10 == 0
    assert output_chunk_rows(rows, 1 << 20) % 10 == 0
    huge = Rows.of(bp.open(write_store(tmp_path / "y.zarr", normal(10_000, 2), (10_000, 2))))
    assert output_chunk_rows(huge, 1 << 20) == 16


def test_an_output_whose_blocks_do_not_fit_the_memory_limit_is_rejected_before_any_read(tmp_path: Path) -> None:
    X = da.ones((200_000, 500), chunks=(100_000, 500), dtype=np.dtype("f4"))  # 190 MiB a chunk
    rows = Rows.opened(X.map_blocks(_must_not_run, dtype=np.dtype("f4"))).begun(memory_limit="600 MiB")
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"scores needs .* per process"):
        project_to(rows, Multiply(), K, tmp_path / "out.zarr", name="scores", run=Run())
    assert not list(tmp_path.iterdir())


def _must_not_run(block: np.ndarray) -> np.ndarray:
    raise AssertionError("a block was read")


# Ingest: one Zarr array of the same values whatever the source, with every chunk written; a full disk loses nothing


@pytest.mark.parametrize("dtype", ["f4", "u1", "i8"])
def test_chunks_of_zeros_are_written_so_that_a_lost_one_is_seen(dtype: str, tmp_path: Path) -> None:
    X = np.zeros((100, 4), dtype)
    bp.ingest(X, tmp_path / "z.zarr", chunk_rows=10)
    assert len(list((tmp_path / "z.zarr" / "c").glob("*/0"))) == 10
    os.remove(tmp_path / "z.zarr" / "c" / "3" / "0")
    with pytest.raises(bp.errors.MissingChunksError, match="c/3/0"):
        bp.open(tmp_path / "z.zarr").compute(scheduler="sync")


def test_ingested_dtype_can_be_chosen(tmp_path: Path) -> None:
    X = normal(30, 4)
    assert bp.ingest(X, tmp_path / "a.zarr", dtype="f2").dtype == np.float16
    assert np.isnan(zarr.open_array(tmp_path / "a.zarr", mode="r").fill_value)  # so that a lost chunk is seen
    with pytest.raises(TypeError, match="dtype complex64 cannot be used"):
        bp.ingest(X, tmp_path / "b.zarr", dtype="c8")


@pytest.mark.parametrize(
    ("least", "native", "rows"),
    [(1, 1000, 40), (1, 10, 40), (1, 7, 42), (1, 47, 46), (100, 1000, 100), (100, 30, 90), (5000, 1000, 2000)],
)
def test_a_store_has_64_chunks_of_4_mib_or_more_which_are_whole_chunks_or_parts_of_them(
    least: int, native: int, rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bigpca.data.stores.MIN_GROUP_BYTES", least * 16)
    monkeypatch.setattr("bigpca.data.stores.SLAB_BYTES", 2000 * 16)
    X = normal(3000, 4)
    write_store(tmp_path / "x.zarr", X, (native, 4))
    found = bp.ingest(tmp_path / "x.zarr", tmp_path / "a.zarr")
    np.testing.assert_array_equal(found.compute(), X)
    assert zarr.open_array(tmp_path / "a.zarr", mode="r").chunks == (rows, 4)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_nothing_to_ingest_is_rejected(shape: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the source has shape .*: at least one row and one column were expected"):
        bp.ingest(np.zeros(shape), tmp_path / "a.zarr")


def test_nan_in_the_source_is_copied_as_it_is(tmp_path: Path) -> None:
    X = normal(30, 4)
    X[3, 2] = np.nan
    np.testing.assert_array_equal(bp.ingest(X, tmp_path / "a.zarr").compute(), X)
