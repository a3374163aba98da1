"""Scores as a table in one file: what ``transform`` returns, named and keyed, complete or absent."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import bigpca as bp
from bigpca.data.keys import stored_keys
from bigpca.data.provenance import provenance_of
from bigpca.storage.outputs import NpyForm
from tests.builders import data_with_spectrum, power_law
from tests.estimators.stores import unreadable

N, K = 500, 3
X = data_with_spectrum(N, power_law(8), mean=2.0)[0].astype("f4")
KEYS = [f"image {i}.jpg" for i in range(N)]
MODEL = bp.PCA(K).fit(X)


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """X in 10 chunks on disk."""
    return bp.ingest(X, tmp_path / "rows.zarr", chunk_rows=50)


@pytest.mark.parametrize(("name", "keys"), [("scores.npy", None), ("scores.parquet", None), ("scores.parquet", KEYS)])
def test_a_table_holds_the_scores_with_their_names_and_keys(name: str, keys: Any, rows: Any, tmp_path: Path) -> None:
    path, expected = tmp_path / name, MODEL.transform(X)
    found = MODEL.transform(rows, out=path, keys=keys)
    assert np.array_equal(found.compute(), expected)
    assert np.array_equal(found[123:].compute(), expected[123:])
    if name.endswith(".parquet"):
        table = pd.read_parquet(path)
        assert list(table) == [*(["key"] if keys else []), *MODEL.get_feature_names_out()]
        assert pq.read_metadata(path).num_row_groups == 10, "one chunk in memory at a time"
        scores, named = table[list(MODEL.get_feature_names_out())].to_numpy(), table.get("key")
    else:
        scores, named = np.load(path), None
    assert scores.dtype == expected.dtype
    assert np.array_equal(scores, expected)
    assert (named is None) == (keys is None)
    assert keys is None or list(named) == keys
    assert sorted(os.listdir(tmp_path)) == ["rows.zarr", name]
    joined = stored_keys(found)
    assert (None if joined is None else joined.tolist()) == keys
    opened = bp.open(path)
    assert np.array_equal(opened.compute(), expected)
    assert np.array_equal(opened[123:131, 1:].compute(), expected[123:131, 1:])
    made = provenance_of(path)
    assert (None if made is None else made.rows) == (N if name.endswith(".parquet") else None)


@pytest.mark.parametrize("name", ["scores.npy", "scores.parquet"])
def test_a_table_is_replaced_only_when_asked_and_never_the_input(name: str, rows: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    mine = {".npy": b"\x93NUMPY mine", ".parquet": b"PAR1 mine"}[path.suffix]
    path.write_bytes(mine)
    with pytest.raises(bp.errors.OutputExistsError, match="exists already"):
        MODEL.transform(unreadable(N, 8), out=path)
    assert path.read_bytes() == mine
    assert np.array_equal(MODEL.transform(rows, out=path, overwrite=True).compute(), MODEL.transform(X))
    shards = tmp_path / "shards"
    shards.mkdir()
    np.save(shards / "0.npy", X)
    for out in ("0.npy", "../rows.zarr"):
        source = rows if out.endswith("zarr") else shards
        with pytest.raises(bp.errors.OutputExistsError, match="the input that is read"):
            MODEL.transform(source, out=shards / out, overwrite=True)
    assert np.array_equal(np.load(shards / "0.npy"), X)


def test_a_store_never_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "scores.zarr").write_bytes(b"mine")
    with pytest.raises(bp.errors.OutputExistsError, match="replaces only rows or scores"):
        MODEL.transform(unreadable(N, 8), out=tmp_path / "scores.zarr", overwrite=True)


def test_a_table_that_could_not_be_written_leaves_nothing_and_its_chunks_are_kept(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        arguments[1].write_bytes(b"half")
        raise OSError(5, "the disk failed")

    with monkeypatch.context() as patched:
        patched.setattr(NpyForm, "write", fail)
        with pytest.raises(OSError, match="cannot be written"):
            MODEL.transform(rows, out=tmp_path / "scores.npy")
    assert sorted(os.listdir(tmp_path)) == ["rows.zarr", "scores.npy.partial"]
    events: list[Any] = []
    MODEL.transform(rows, out=tmp_path / "scores.npy", progress=events.append)
    assert events == [], "no row is read again"
    assert np.array_equal(np.load(tmp_path / "scores.npy"), MODEL.transform(X))


def test_what_is_no_transform_has_numbered_columns(rows: Any, tmp_path: Path) -> None:
    scores = MODEL.transform(X)
    MODEL.inverse_transform(scores, out=tmp_path / "back.parquet")
    back = pd.read_parquet(tmp_path / "back.parquet")
    assert list(back) == [f"column_{i}" for i in range(8)]
    assert np.array_equal(back.to_numpy(), MODEL.inverse_transform(scores))
