"""Sparse rows of every store are those of SciPy, read by their part of it; one that contradicts itself is named."""

import json
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from bigpca.data import sparse
from bigpca.data.source import Source
from bigpca.data.sources import open as open_dask
from bigpca.data.sources import row_source
from bigpca.data.zarr_arrays import ZarrReader
from bigpca.errors import CorruptedChunkError, MemoryBudgetError, MissingChunksError
from bigpca.passes.reading.readers import DirectReader
from bigpca.passes.rows import Rows
from tests.data.sparse_savers import (
    PARTS,
    SPARSE_SAVERS,
    counts,
    disordered,
    to_h5ad,
    to_zarr,
    to_zarr_in_memory,
    to_zarr_plain,
    to_zarr_v2,
)

N, D = counts().shape


def opened(given: Any, **options: Any) -> Source:
    path, member = given if isinstance(given, tuple) else (given, None)
    return row_source(path, member=member, **options)


def assert_rows(found: Any, expected: Any) -> None:
    assert isinstance(found, sp.csr_array)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.has_canonical_format
    assert found.indices.dtype == found.indptr.dtype == np.int32
    np.testing.assert_array_equal(found.toarray(), expected.toarray())


@pytest.mark.parametrize(
    ("save", "dtype"),
    [*((save, "f4") for save in SPARSE_SAVERS), *((to_zarr, dtype) for dtype in ("f8", "u1", "i8", "?"))],
)
def test_every_store_gives_the_rows_of_scipy(
    save: Any, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "WINDOW_ROWS", 7)
    X = counts(dtype)
    given = save(tmp_path, disordered(X))
    source = opened(given)
    assert (source.shape, source.dtype, source.stored_values) == ((N, D), X.dtype, 2 * X.nnz)
    assert sum(source.row_chunks()) == N
    if save is not to_zarr_in_memory:
        assert len(pickle.dumps(source)) < 2048
        source = pickle.loads(pickle.dumps(source))
    for start, stop in [(0, N), (0, 2), (3, 23), (N - 1, N), (7, 7), (13, 15), (0, 0)]:
        assert_rows(source.read(start, stop), X[start:stop])
    assert_rows(source.read(3, 40, (2, 9)), X[3:40, 2:9])
    rows = source.read(0, N)
    rows.data[...] = 0  # the caller owns it: the next reads must not see this
    assert_rows(source.read(0, N), X)
    assert json.loads(json.dumps(source.describe())) == opened(given).describe()
    assert all(size > 0 for _, size, _ in source.stamps(3, 9))


def test_half_floats_become_single_ones_and_sums_that_a_dtype_cannot_hold_are_rejected(tmp_path: Path) -> None:
    X = counts("f4")
    half = sp.csr_matrix(X)
    half.data = half.data.astype("f2")
    assert_rows(opened(to_zarr(tmp_path, half)).read(0, N), X)
    twice = sp.csr_matrix((np.array([200, 100, 1], "u1"), [3, 3, 5], [0, 1, 1, 3]), (3, D))
    twice.indptr = np.array([0, 0, 2, 3], "i4")
    with pytest.raises(ValueError, match="X: row 1 has several values in column 3, and uint8 cannot hold their sum"):
        opened(to_zarr(tmp_path, twice)).read(0, 3)


@pytest.mark.parametrize(
    "matrix",
    [sp.csr_matrix((9, 4)), sp.csr_matrix((0, 4)), sp.csr_matrix((9, 0)), sp.csr_matrix(np.ones((9, 4)))],
    ids=["no values", "no rows", "no columns", "no zeros"],
)
@pytest.mark.parametrize("save", [to_zarr, to_h5ad])
def test_empty_and_full_matrices(save: Any, matrix: Any, tmp_path: Path) -> None:
    source = opened(save(tmp_path, matrix))
    assert_rows(source.read(0, matrix.shape[0]), matrix)
    assert source.row_chunks() == (matrix.shape[0],)


def test_rows_are_cut_by_the_bytes_of_the_densest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "NATIVE_BYTES", 8 * 40)
    dense, empty = sp.csr_matrix(np.ones((40, 10), "f4")), sp.csr_matrix((300, 10), dtype="f4")
    for X in (sp.vstack([dense, empty], "csr"), sp.vstack([empty, dense], "csr")):
        assert opened(to_zarr(tmp_path, X, chunks=(10,))).row_chunks() == (4,) * 85
        assert opened(to_zarr(tmp_path, X, chunks=(25,))).row_chunks() == (10,) * 34  # four chunks of data
        assert opened(to_zarr(tmp_path, X, chunks=(200,))).row_chunks() == (20,) * 17  # one, which is decoded whole
    with monkeypatch.context() as patch:
        patch.setattr(sparse, "WINDOW_ROWS", 100)
        assert opened(to_zarr(tmp_path, empty, chunks=(10,))).row_chunks() == (100,) * 3


@pytest.mark.parametrize("save", [to_zarr_v2, lambda folder, X: X], ids=["store", "memory"])
def test_memory_is_planned_for_the_densest_rows(save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sparse, sparse):
        monkeypatch.setattr(module, "NATIVE_BYTES", 8 * 40)
    monkeypatch.setattr("bigpca.data.dask_arrays.DASK_CHUNK_BYTES", 8 * 160)
    dense, empty = sp.csr_matrix(np.ones((40, 10), "f4")), sp.csr_matrix((3000, 10), dtype="f4")
    X = sp.vstack([empty, dense, empty], "csr")
    rows = Rows.of(open_dask(save(tmp_path, X)))
    layout = rows.layout(0)
    stored = [8 * int(X.indptr[b] - X.indptr[a]) for a, b in layout.reads]
    assert max(stored) > 0
    assert all(held <= (b - a) * layout.row_bytes for held, (a, b) in zip(stored, layout.reads, strict=True))
    chunks = np.cumsum([0, *rows.X.chunks[0]])
    assert max(np.diff(X.indptr[chunks])) <= 160
    assert rows.n_rows * rows.origin.row_bytes == pytest.approx(8 * X.nnz + 4 * X.shape[0])  # what is read is not


@pytest.mark.parametrize(("save", "chunks"), [(to_zarr, 2**13), (to_h5ad, 2000)])
def test_a_read_holds_its_part_of_the_vectors_twice_at_most(save: Any, chunks: int, tmp_path: Path) -> None:
    X = sp.random(4000, 200, 0.2, "csr", "f4", random_state=np.random.default_rng(0))
    source = opened(save(tmp_path, X, chunks=(chunks,)))
    source.read(0, 1)
    tracemalloc.start()
    source.read(1000, 3000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 8 * (X.indptr[3000] - X.indptr[1000]) + 2**18  # and what Zarr holds in any case


def test_reads_that_fail_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, names, read = counts(), list[str](), ZarrReader.read
    source = opened(to_zarr(tmp_path, X))

    def unsteady(reader: ZarrReader, bounds: Any) -> Any:
        names.append(reader.path_in_group)
        if names.count(reader.path_in_group) == 1 and reader.path_in_group != "X/indices":
            raise OSError(5, "Input/output error", reader.label)
        return read(reader, bounds)

    monkeypatch.setattr(ZarrReader, "read", unsteady)
    assert_rows(DirectReader(source).read(0, N), X)
    assert names == ["X/indptr", "X/indptr", "X/data", "X/data", "X/indices"]


def test_places_beyond_32_bits_are_read_from_a_file_that_is_a_hole(tmp_path: Path) -> None:
    start, path = 2**31 + 5, tmp_path / "cells.h5ad"
    indptr = np.array([0, start, start + 2, start + 5])
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"], group["indptr"] = "csr_matrix", [3, 8], indptr
        for name, values in {"data": np.arange(1, 6, dtype="u1"), "indices": np.array([1, 7, 0, 3, 4], "i4")}.items():
            whole = group.create_dataset(name, (start + 5,), values.dtype, chunks=(2**20,))
            whole[start:] = values
    source = opened(path)
    assert source.stored_values == start + 5
    np.testing.assert_array_equal(source.read(1, 3).toarray()[:, [0, 1, 3, 4, 7]], [[0, 1, 0, 0, 2], [3, 0, 4, 5, 0]])
    with pytest.raises(MissingChunksError, match=r"2,048 of the 2,049 chunks needed here"):
        source.read(0, 1)


Edit = Callable[[dict[str, Any]], object]
# What is wrong with the three vectors, or with what is said of them; row 40 has values.
BAD: dict[str, tuple[Edit, str]] = {
    "starts late": (lambda x: x["indptr"].__setitem__(slice(0, 2), 3), "indptr.*from 3|indptr starts at 3"),
    "falls": (lambda x: x["indptr"].__setitem__(40, 2), r"indptr falls from \d+ to 2 at row 39"),
    "wraps around": (lambda x: x["indptr"].__setitem__(40, -(2**31)), r"indptr falls from \d+ to -2,?147,?483,?648"),
    "beyond the values": (lambda x: x["indptr"].__setitem__(slice(40, None), 10**6), "indptr ends at 1,000,000, but"),
    "one place beyond": (lambda x: x["indptr"].__setitem__(40, 10**6), r"indptr falls from 1,?000,?000"),
    "short indptr": (lambda x: x.update(indptr=x["indptr"][:-1]), "indptr must have 62 numbers, but it has 61"),
    "column too large": (lambda x: x["indices"].__setitem__(-1, D), r"row 59 has a value in column 13, but"),
    "negative column": (lambda x: x["indices"].__setitem__(0, -1), r"row \d+ has a value in column -1"),
    "fewer values": (lambda x: x.update(data=x["data"][:-1]), r"\d+ values in data, but \d+ columns in indices"),
    "places are floats": (lambda x: x.update(indices=x["indices"].astype("f4")), "indices has dtype float32; integers"),
    "complex values": (lambda x: x.update(data=x["data"].astype("c8")), "dtype complex64 cannot be used"),
    "text": (lambda x: x.update(data=x["data"].astype("S3")), r"dtype (\|S3|bytes24|.*S3.*) (cannot|is not)|bytes"),
    "matrix of values": (lambda x: x.update(data=x["data"][:, None]), r"data has shape \(\d+, 1\); one dimension"),
    "no shape": (lambda x: x["stated"].pop("shape"), "but its shape is .*; two sizes were expected"),
    "three sizes": (lambda x: x["stated"].update(shape=[N, D, 1]), r"its shape is \(61, 13, 1\)"),
    "negative size": (lambda x: x["stated"].update(shape=[-1, D]), r"its shape is \(-1, 13\)"),
    "transposed": (lambda x: x["stated"].update(shape=[D, N]), "indptr must have 14 numbers, but it has 62"),
    "columns": (lambda x: x["stated"].update({"encoding-type": "csc_matrix"}),
        r"in compressed columns \(csc\), where no row .* Write it again by row: .*adata.X.tocsr\(\)"),
    "unmarked": (lambda x: x.update(stated={"shape": [D, N]}), "nothing says whether it is compressed by row"),
    "another format": (lambda x: x["stated"].update({"encoding-type": "bsr_matrix"}), "in the format bsr; compressed"),
    "packed": (lambda x: x.update(attributes={"scale_factor": 0.1}), "X/data has scale_factor = 0.1"),
}  # fmt: skip


def read_all(given: Any) -> None:
    source = opened(given)
    source.row_chunks()
    source.read(0, N)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("end", ["zarr", "h5ad"])
def test_a_matrix_that_contradicts_itself_is_named(name: str, end: str, tmp_path: Path) -> None:
    edit, message = BAD[name]
    X, path = counts(), tmp_path / f"cells.{end}"
    parts: dict[str, Any] = {part: getattr(X, part).copy() for part in PARTS}
    parts |= {"stated": {"encoding-type": "csr_matrix", "shape": [N, D]}, "attributes": {}}
    edit(parts)
    root: Any = zarr.open_group(path, mode="w", zarr_format=2) if end == "zarr" else h5py.File(path, "w")
    group = root.create_group("X")
    group.attrs.update(parts["stated"])
    for part in PARTS:
        created = group.create_array if end == "zarr" else group.create_dataset
        created(part, data=parts[part]).attrs.update(parts["attributes"] if part == "data" else {})
    if end == "h5ad":
        root.close()
    with pytest.raises((ValueError, TypeError), match=message) as found:
        read_all((path, "X"))
    assert str(path) in str(found.value)
    assert "X" in str(found.value)


def test_lost_and_damaged_chunks_are_named_and_others_are_still_read(tmp_path: Path) -> None:
    X = counts()
    path = to_zarr(tmp_path, X, chunks=(50,))
    last = (X.nnz - 1) // 50
    lost, damaged = (path / "X" / part / f"c/{last}" for part in ("data", "indices"))
    shutil.move(lost, tmp_path / "kept")
    source = opened(path)
    assert_rows(source.read(0, 40), X[:40])
    with pytest.raises(MissingChunksError, match=rf"X/data: 1 of the \d+ chunks needed here .* c/{last}"):
        source.read(30, N)
    filled = opened(path, missing_chunks="fill").read(0, N)
    assert filled.nnz == X.nnz
    np.testing.assert_array_equal(filled.data[50 * last :], 0)
    shutil.move(tmp_path / "kept", lost)
    damaged.write_bytes(damaged.read_bytes()[:-5])
    with pytest.raises(CorruptedChunkError, match=rf"X/indices: chunk c/{last} cannot be decoded"):
        source.read(30, N)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("save", [to_zarr_plain, to_zarr_v2, to_h5ad])
def test_stamps_change_with_each_of_the_three_vectors(save: Any, part: str, tmp_path: Path) -> None:
    X = counts()
    path = save(tmp_path, X)
    source = opened(path)
    before = source.stamps(0, N)
    assert source.stamps(0, N) == before == opened(path).stamps(0, N)
    changed = [
        file for file in path.rglob("*") if (file.is_file() and file.parts[-2] == part) or file.parts[-3:-2] == (part,)
    ]
    for file in changed or [path]:
        os.utime(file, (0, 0))  # a file that is written again may have the time of the clock's last tick
    assert source.stamps(0, N) != before


def test_a_stamp_names_what_holds_the_rows_only(tmp_path: Path) -> None:
    source = opened(to_zarr_v2(tmp_path, counts()))
    names = {key for key, _, _ in source.stamps(N - 3, N)}
    assert {key.split("/")[0] for key in names} == set(PARTS)
    assert "data/0" not in names
    assert len(names) < len(source.stamps(0, N))


def test_a_copy_by_row_that_does_not_fit_is_rejected_with_the_way_to_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = sp.csc_array(counts())
    assert_rows(opened(columns).read(0, N), counts())
    monkeypatch.setattr(sparse, "memory_now", lambda: (0, 1))
    with pytest.raises(MemoryBudgetError, match=r"this csc_array of shape \(61, 13\) .*AnnData\(X\.tocsr\(\)\)"):
        opened(columns)
