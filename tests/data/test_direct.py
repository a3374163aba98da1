"""Which Dask arrays are read directly from their source, what dtypes pass, and how names are made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

import bigpca.data.sources as sources
from bigpca.data.checks import natural_key, regular_chunks
from bigpca.data.dask_arrays import array_of, graph_of
from bigpca.engine.layout import coalesce

X = np.random.default_rng(1).normal(size=(40, 6)).astype("f4")


@pytest.fixture
def z(tmp_path: Path) -> Any:
    array = zarr.create_array(tmp_path / "x.zarr", shape=X.shape, chunks=(8, 3), dtype="f4")
    array[...] = X
    return array


DIRECT: dict[str, Callable[[Any], da.Array]] = {
    "open": lambda z: sources.open(z),
    "open path": lambda z: sources.open(str(z.store.root)),
    "open numpy": lambda z: sources.open(X),
    "from_zarr": lambda z: da.from_zarr(z),
    "from_zarr path": lambda z: da.from_zarr(str(z.store.root), chunks=(16, 6)),
    "from_array zarr": lambda z: da.from_array(z, chunks=(20, 6)),
    "from_array numpy": lambda z: da.from_array(X, chunks=(7, 6)),
    "from_array numpy columns": lambda z: da.from_array(X, chunks=(7, 4)),
    "one block": lambda z: da.from_array(X),
    "same dtype": lambda z: da.from_zarr(z).astype("f4"),
    "whole slice": lambda z: sources.open(z)[:],
    "same chunks": lambda z: da.from_zarr(z).rechunk((8, 3)),
}
GENERAL: dict[str, Callable[[Any], da.Array]] = {
    "sliced": lambda z: sources.open(z)[:10],
    "columns": lambda z: sources.open(X)[:, :3],
    "rechunked": lambda z: da.from_zarr(z).rechunk((40, 6)),
    "numpy sliced": lambda z: da.from_array(X, chunks=(7, 6))[7:],
    "scaled": lambda z: sources.open(z) * 2,
    "cast": lambda z: sources.open(z).astype("f8"),
    "transposed": lambda z: da.from_array(X).T,
    "concatenated": lambda z: da.concatenate([sources.open(z), sources.open(z)]),
    "inlined": lambda z: da.from_zarr(z, inline_array=True),
    "optimised": lambda z: dask.optimize(da.from_zarr(z))[0],
    "persisted": lambda z: da.from_zarr(z).persist(scheduler="sync"),
    "generated": lambda z: da.zeros((40, 6), chunks=(7, 6)),
    "random": lambda z: da.random.default_rng(0).normal(size=(40, 6), chunks=(7, 6)),
    "unknown lengths": lambda z: sources.open(X)[sources.open(X)[:, 0] > 0],
    "feature maps": lambda z: da.from_array(X.reshape(40, 2, 3)),
}


@pytest.mark.parametrize("make", DIRECT.values(), ids=DIRECT)
def test_fresh_arrays_are_direct_and_their_source_has_their_rows(make: Any, z: Any) -> None:
    source = sources.source_of(make(z))
    assert source is not None
    assert np.array_equal(source.read(0, 40), X)


@pytest.mark.parametrize("make", GENERAL.values(), ids=GENERAL)
def test_everything_else_is_general(make: Any, z: Any) -> None:
    assert sources.source_of(make(z)) is None


def test_blocks_that_are_not_in_their_places_are_not_taken_for_the_array() -> None:
    fresh = da.from_array(X, chunks=(20, 6))
    layer = dict(graph_of(fresh).layers[fresh.name])
    first, second = (fresh.name, 0, 0), (fresh.name, 1, 0)
    blocks = MaterializedLayer({first: layer[second], second: layer[first]})
    swapped = array_of(HighLevelGraph({fresh.name: blocks}, {fresh.name: set()}), fresh.name, fresh.chunks, fresh._meta)
    assert sources.source_of(swapped) is None


def test_an_opened_array_computes_under_every_scheduler_and_slices_reach_the_source(z: Any) -> None:
    opened = sources.open(z)
    assert opened.name.startswith("bigpca-open-")
    assert f"original-{opened.name}" in graph_of(opened).layers
    for scheduler in ("sync", "threads"):
        assert np.array_equal(opened[5:30:2, 4].compute(scheduler=scheduler), X[5:30:2, 4])
        assert np.array_equal((opened - opened.mean(0)).compute(scheduler=scheduler), X - X.mean(0, keepdims=True))


def test_names_repeat_for_the_same_data_and_change_with_it(z: Any) -> None:
    assert sources.open(z).name == sources.open(z).name
    assert sources.open(X).name == sources.open(X.copy()).name
    assert sources.open(X).name != sources.open(X + 1).name
    assert dask.base.tokenize(sources.row_source(X)) == dask.base.tokenize(sources.row_source(X.copy()))
    assert dask.base.tokenize(sources.row_source(z).reader) == dask.base.tokenize(  # type: ignore[attr-defined]
        sources.row_source(z).reader  # type: ignore[attr-defined]
    )


def test_stamps_of_values_in_memory_change_with_the_values() -> None:
    x = X.copy()
    source = sources.row_source(x)
    before, described = source.stamps(0, 20), source.describe()
    x[30, 0] += 1
    assert source.stamps(0, 20) == before
    assert source.describe() != described
    x[3, 0] += 1
    assert source.stamps(0, 20) != before


def test_dask_arrays_come_back_as_they_are_or_flattened() -> None:
    x = da.from_array(X, chunks=(7, 6))
    assert sources.open(x) is x
    maps = da.from_array(X.reshape(40, 2, 3), chunks=(7, 1, 2))
    flat = sources.open(maps)
    assert flat.chunks == ((7, 7, 7, 7, 7, 5), (6,))
    assert np.array_equal(flat.compute(scheduler="sync"), X)
    unknown = sources.open(maps[da.from_array(X[:, 0] > 0, chunks=7)])
    assert np.isnan(unknown.shape[0])
    assert np.array_equal(unknown.compute(scheduler="sync"), X[X[:, 0] > 0])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "?", ">f4", ">i2"])
def test_real_numbers_pass_and_come_in_native_byte_order(dtype: str) -> None:
    assert sources.check_dtype(dtype).isnative
    source = sources.row_source(X.astype(dtype))
    assert source.dtype == np.dtype(dtype).newbyteorder("=")
    assert np.array_equal(source.read(0, 40), X.astype(dtype))


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        ("c8", "real and imaginary parts as columns"),
        ("O", "store them"),
        ("S3", "Encode the strings"),
        ("U3", "Encode the strings"),
        ("M8[s]", "seconds or days"),
        ("m8[s]", "seconds or days"),
        ([("a", "f4")], "Choose one field"),
        (np.longdouble, "Convert to float64"),
    ],
    ids=str,
)
def test_other_dtypes_are_rejected_before_any_read_with_what_to_do(dtype: Any, remedy: str) -> None:
    for given in (np.zeros((3, 2), dtype), da.zeros((3, 2), chunks=(3, 2), dtype=dtype)):
        with pytest.raises(TypeError, match=f"cannot be used: PCA needs real numbers .*{remedy}.* Nothing was read"):
            sources.open(given)


def test_rows_outside_the_source_are_an_index_error() -> None:
    with pytest.raises(IndexError, match=r"rows 30:41 of the array in memory were requested, but it has 40"):
        sources.row_source(X).read(30, 41)


def test_chunk_arithmetic_keeps_all_rows() -> None:
    assert regular_chunks(0, 5) == (0,)
    assert regular_chunks(7, 0) == (1,) * 7
    assert coalesce((), 1, 1) == (0,)
    assert coalesce((50, 1, 1, 50), row_bytes=2, limit=10) == (50, 2, 50)
    assert sorted(["a10", "a9", "b", "9", "10"], key=natural_key) == ["9", "10", "a9", "a10", "b"]
