"""Weights and labels by key: those of each row, wherever they are in a table, from all that has keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bigpca as bp

NAMES = np.array([f"r{i}.jpg" for i in range(12)])
ROWS = np.random.default_rng(0).standard_normal((12, 4))
WEIGHTS = np.arange(12.0) % 5
ORDER = np.random.default_rng(1).permutation(12)
TABLE = pd.DataFrame({"name": NAMES, "w": WEIGHTS, "class": list("abc") * 4}).iloc[ORDER]
SERIES = TABLE.set_index("name")["w"]
DATES = np.datetime64("2020-01-01") + np.arange(12)


def stored(folder: Path) -> Path:
    bp.ingest(ROWS, folder / "rows.zarr", keys=NAMES)
    return folder / "rows.zarr"


def cells(folder: Path) -> Any:
    return pytest.importorskip("anndata").AnnData(ROWS, obs=pd.DataFrame(index=NAMES))


def frame(folder: Path) -> Any:
    return pd.DataFrame(ROWS, index=NAMES)


CONTAINERS: dict[str, Callable[[Path], Any]] = {
    "path": stored,
    "opened": lambda folder: bp.open(stored(folder)),
    "columns of an opened store": lambda folder: bp.open(stored(folder), columns=[0, 2]),
    "scores": lambda folder: (bp.PCA(2).fit(ROWS).transform(ROWS, out=folder / "s.parquet", keys=NAMES),
                              folder / "s.parquet")[1],
    "pandas": frame,
    "dask frame": lambda folder: dd.from_pandas(frame(folder), npartitions=3, sort=False),
    "AnnData": cells,
    "DataArray": lambda folder: xr.DataArray(ROWS, dims=("row", "x"), coords={"row": NAMES}),
    "opened DataArray": lambda folder: bp.open(
        xr.DataArray(ROWS, dims=("row", "x"), coords={"row": NAMES}).T, sample_dims="row"
    ),
}  # fmt: skip


def csv(folder: Path) -> tuple[Any, ...]:
    TABLE.to_csv(folder / "w.csv", index=False)
    return f"{folder}/w.csv::w", f"{folder}/w.csv::name"


def keyed_store(folder: Path) -> tuple[Any, ...]:
    bp.ingest(SERIES.to_numpy()[:, None], folder / "w.zarr", keys=SERIES.index.to_numpy())
    return (folder / "w.zarr",)


VALUES: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "series": lambda folder: (SERIES,),
    "one column": lambda folder: (SERIES.to_frame(),),
    "dask series": lambda folder: (dd.from_pandas(SERIES, npartitions=2, sort=False),),
    "csv": csv,
    "store with keys": keyed_store,
    "array": lambda folder: (SERIES.to_numpy(), SERIES.index),
    "dask": lambda folder: (da.from_array(SERIES.to_numpy(), chunks=5), SERIES.index.tolist()),
}


@pytest.mark.parametrize(
    ("rows", "values"), [*((rows, "series") for rows in CONTAINERS), *(("path", v) for v in VALUES)]
)
def test_values_are_in_the_order_of_the_rows(rows: str, values: str, tmp_path: Path) -> None:
    given, *keys = VALUES[values](tmp_path)
    found = bp.by_key(given, CONTAINERS[rows](tmp_path), *keys)
    np.testing.assert_array_equal(found, WEIGHTS)
    assert found.dtype == np.float64


def test_a_fit_with_weights_and_labels_by_key_is_that_of_those_in_order(tmp_path: Path) -> None:
    rows = bp.open(stored(tmp_path))
    found = bp.FisherDiscriminantAnalysis(1).fit(
        rows, bp.by_key(TABLE.set_index("name")["class"], rows), sample_weight=bp.by_key(SERIES, rows)
    )
    expected = bp.FisherDiscriminantAnalysis(1).fit(ROWS, list("abc") * 4, sample_weight=WEIGHTS)
    np.testing.assert_allclose(found.components_, expected.components_, rtol=1e-12)


def test_samples_of_several_rows_give_each_their_value(tmp_path: Path) -> None:
    rows = bp.open(stored(tmp_path), pattern="n (t d) -> (n t) d", t=2)
    np.testing.assert_array_equal(bp.by_key(SERIES, rows), np.repeat(WEIGHTS, 2))


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_are_keys_in_any_unit(unit: str) -> None:
    rows = xr.DataArray(ROWS, dims=("time", "x"), coords={"time": DATES.astype(f"M8[{unit}]")})
    weights = pd.Series(WEIGHTS[ORDER], index=pd.DatetimeIndex(DATES[ORDER]))
    np.testing.assert_array_equal(bp.by_key(weights, rows), WEIGHTS)


def test_rows_that_are_absent_get_what_is_asked_for_and_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, short = stored(tmp_path), SERIES.rename(index={"r3.jpg": "r3.jpeg"})
    with pytest.raises(ValueError, match=r"1 of 12 rows have no value: 'r3.jpg'\. .* absent=0 for weights"):
        bp.by_key(short, rows)
    assert not caplog.messages
    found = bp.by_key(short, rows, absent=0)
    np.testing.assert_array_equal(found, np.where(NAMES == "r3.jpg", 0, WEIGHTS))
    assert caplog.messages == [
        "1 of 12 values belong to no row of X: 'r3.jpeg'. 1 of 12 rows have no value: 'r3.jpg'. Check the spelling of "
        "the keys."
    ]
    assert bp.by_key(["a", "b"], rows, NAMES[:2], absent=None).tolist() == ["a", "b"] + [None] * 10
    assert np.isnan(bp.by_key([2.5], rows, NAMES[:1], absent=np.nan)[1:]).all()
    caplog.clear()
    with caplog.at_level(logging.INFO, "bigpca"):
        bp.by_key(pd.concat([SERIES, pd.Series({"else": 1.0})]), rows)
    assert caplog.messages == ["1 of 13 values belong to no row of X: 'else'."]


FAULTS: dict[str, tuple[Callable[[Path], tuple[Any, ...]], str]] = {
    "doubled": (lambda p: (pd.concat([SERIES, SERIES[:2]]), stored(p)), "2 keys have more than one value: 'r"),
    "no key": (lambda p: ([1.0, 2.0], stored(p), [1, None]), r"1 of 2 values have no key \(row 1\)"),
    "lengths": (lambda p: ([1.0, 2.0], stored(p), ["a"]), "the number of keys, 1, is not that of the values, 2"),
    "none matches": (lambda p: ([1.0], stored(p), ["x"], 0), "12 of 12 rows have no value: .* are like 'x'"),
    "rows without keys": (lambda p: (SERIES, ROWS), r"the rows of X \(ndarray\) have no keys\. Store them"),
    "values without keys": (lambda p: (WEIGHTS, stored(p)), "the values have no keys, such as 'r0.jpg', 'r1.jpg'"),
    "table": (lambda p: (csv(p)[0], stored(p)), "Pass keys=\".*w.csv::name\""),
    "doubled rows": (lambda p: (SERIES, frame(p).rename({"r1.jpg": "r0.jpg"})), "rows share their key .*: 'r0.jpg'"),
    "several dimensions": (
        lambda p: (SERIES, bp.open(xr.DataArray(ROWS.reshape(3, 4, 4)), sample_dims=("dim_0", "dim_1"))),
        "the rows of X .* have no keys",
    ),
    "no file": (lambda p: (p / "nowhere.csv", stored(p), NAMES), "nowhere.csv holds no values"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_joined_is_named(fault: str, tmp_path: Path) -> None:
    make, match = FAULTS[fault]
    values, rows, *rest = make(tmp_path)
    with pytest.raises((ValueError, OSError), match=match):
        bp.by_key(values, rows, *rest[:1], **({"absent": rest[1]} if len(rest) > 1 else {}))


WORDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "path": (lambda p: p / "w.npy", "w.npy holds no weights"),
    "format": (lambda p: _text(p / "w.txt"), "unknown format for weights"),
    "column": (lambda p: csv(p)[0].partition("::")[0], "Name the one that holds the weights"),
    "mixed": (lambda p: [1.0, "a"] * 6, r"weights hold .* such as \[str\(weight\) for weight in sample_weight\]"),
    "set": (lambda p: {1.0, 2.0}, "sample_weight is set, .*One weight for each row was expected"),
    "dates": (lambda p: DATES, "weights have dtype datetime64"),
    "shape": (lambda p: np.ones((2, 2, 2)), r"weights \(ndarray\) have shape \(2, 2, 2\)"),
    "chunk": (lambda p: da.from_array(np.ones(12), chunks=6).map_blocks(np.complex128, dtype="f4"),
              "a chunk of the weights has dtype complex128"),
}  # fmt: skip


def _text(path: Path) -> Path:
    path.write_text("1")
    return path


@pytest.mark.parametrize("fault", WORDS)
def test_what_reads_weights_does_not_speak_of_labels(fault: str, tmp_path: Path) -> None:
    make, match = WORDS[fault]
    with pytest.raises((ValueError, TypeError, OSError), match=match) as caught:
        bp.PCA(1).fit(ROWS, sample_weight=make(tmp_path))
    assert "label" not in str(caught.value)


def test_a_series_in_another_order_than_the_keys_is_said_to_be_taken_by_position(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = stored(tmp_path)
    for weights, expected in ((SERIES, 1), (SERIES.loc[NAMES], 1), (SERIES.reset_index(drop=True), 1),
                              (keyed_store(tmp_path)[0], 2)):  # fmt: skip
        with caplog.at_level(logging.WARNING, "bigpca"):
            bp.PCA(1).fit(rows, sample_weight=weights)
        assert sum("the weights of" in message and "by position" in message for message in caplog.messages) == expected
