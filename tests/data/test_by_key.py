"""Weights and labels by key: those of each row, wherever they are in a table, from all that has keys."""

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
import zarr
from sklearn.model_selection import cross_val_score

import bigpca as bp
from bigpca.plots.data import kinds_of
from bigpca.report.describing import companions
from tests.cli.running import run

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


def kept(folder: Path, rows: Any) -> Path:
    """Rows whose keys are kept by the output of a model and by a copy."""
    opened = bp.open(rows)
    model = bp.PCA(2).fit(opened)
    assert bp.data.stored_keys(model.transform(opened, out=folder / "out.parquet")).tolist() == NAMES.tolist()
    bp.ingest(rows, folder / "kept.zarr")
    return folder / "kept.zarr"


CONTAINERS |= {
    "copy of a frame": lambda folder: kept(folder, frame(folder)),
    "copy of a Dask frame": lambda folder: kept(folder, CONTAINERS["dask frame"](folder)),
    "copy of chosen rows": lambda folder: kept(folder, bp.open(frame(folder))[ORDER][np.argsort(ORDER)]),
    "copy of AnnData": lambda folder: kept(folder, cells(folder)),
    "copy of a DataArray": lambda folder: kept(folder, CONTAINERS["DataArray"](folder)),
}


def csv(folder: Path) -> tuple[Any, ...]:
    TABLE.to_csv(folder / "w.csv", index=False)
    return f"{folder}/w.csv::w", f"{folder}/w.csv::name"


def parquet(folder: Path) -> tuple[Any, ...]:
    TABLE.to_parquet(folder / "w.parquet", index=False)
    return (f"{folder}/w.parquet::w",)


def group(folder: Path) -> tuple[Any, ...]:
    made = zarr.open_group(folder / "w.zarr")
    made.create_array("w", data=SERIES.to_numpy())
    made.create_array("name", shape=(12,), dtype=str)[:] = SERIES.index.to_numpy().astype(str)
    return (f"{folder}/w.zarr::w",)


def keyed_store(folder: Path) -> tuple[Any, ...]:
    bp.ingest(SERIES.to_numpy()[:, None], folder / "w.zarr", keys=SERIES.index.to_numpy())
    return (folder / "w.zarr",)


VALUES: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "series": lambda folder: (SERIES,),
    "one column": lambda folder: (SERIES.to_frame(),),
    "dask series": lambda folder: (dd.from_pandas(SERIES, npartitions=2, sort=False),),
    "csv": csv,
    "csv, whose keys are found": lambda folder: csv(folder)[:1],
    "Parquet, whose keys are found": parquet,
    "group, whose keys are found": group,
    "store with keys": keyed_store,
    "array": lambda folder: (SERIES.to_numpy(), SERIES.index),
    "dask": lambda folder: (da.from_array(SERIES.to_numpy(), chunks=5), SERIES.index.tolist()),
}


@pytest.mark.parametrize(
    ("rows", "values"), [*((rows, "series") for rows in CONTAINERS), *(("path", v) for v in VALUES)]
)
def test_values_are_in_the_order_of_the_rows(rows: str, values: str, tmp_path: Path) -> None:
    given, *keys = VALUES[values](tmp_path)
    found = bp.data.by_key(given, CONTAINERS[rows](tmp_path), *keys)
    np.testing.assert_array_equal(found, WEIGHTS)
    assert found.dtype == np.float64


def test_a_fit_with_weights_and_labels_by_key_is_that_of_those_in_order(tmp_path: Path) -> None:
    rows = bp.open(stored(tmp_path))
    found = bp.FisherDiscriminantAnalysis(1).fit(
        rows, bp.data.by_key(TABLE.set_index("name")["class"], rows), sample_weight=bp.data.by_key(SERIES, rows)
    )
    expected = bp.FisherDiscriminantAnalysis(1).fit(ROWS, list("abc") * 4, sample_weight=WEIGHTS)
    np.testing.assert_allclose(found.components_, expected.components_, rtol=1e-12)


def test_samples_of_several_rows_give_each_their_value(tmp_path: Path) -> None:
    rows = bp.open(stored(tmp_path), pattern="n (t d) -> (n t) d", t=2)
    np.testing.assert_array_equal(bp.data.by_key(SERIES, rows), np.repeat(WEIGHTS, 2))


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_are_keys_in_any_unit(unit: str) -> None:
    rows = xr.DataArray(ROWS, dims=("time", "x"), coords={"time": DATES.astype(f"M8[{unit}]")})
    weights = pd.Series(WEIGHTS[ORDER], index=pd.DatetimeIndex(DATES[ORDER]))
    np.testing.assert_array_equal(bp.data.by_key(weights, rows), WEIGHTS)


def test_rows_that_are_absent_get_what_is_asked_for_and_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, short = stored(tmp_path), SERIES.rename(index={"r3.jpg": "r3.jpeg"})
    with pytest.raises(ValueError, match=r"1 of 12 rows have no value: 'r3.jpg'\. .* absent=0 for weights"):
        bp.data.by_key(short, rows)
    assert not caplog.messages
    found = bp.data.by_key(short, rows, absent=0)
    np.testing.assert_array_equal(found, np.where(NAMES == "r3.jpg", 0, WEIGHTS))
    assert caplog.messages == [
        "values: 11, joined by the key; 1 rows have none, such as 'r3.jpg'; 1 belong to no row: 'r3.jpeg'."
    ]
    assert bp.data.by_key(["a", "b"], rows, NAMES[:2], absent=None).tolist() == ["a", "b"] + [None] * 10
    assert np.isnan(bp.data.by_key([2.5], rows, NAMES[:1], absent=np.nan)[1:]).all()
    caplog.clear()
    with caplog.at_level(logging.INFO, "bigpca"):
        bp.data.by_key(pd.concat([SERIES, pd.Series({"else": 1.0})]), rows)
    assert caplog.messages == ["values: 12, joined by the key; 1 belong to no row: 'else'."]


FAULTS: dict[str, tuple[Callable[[Path], tuple[Any, ...]], str]] = {
    "doubled": (lambda p: (pd.concat([SERIES, SERIES[:2]]), stored(p)), "2 keys have more than one value: 'r"),
    "no key": (lambda p: ([1.0, 2.0], stored(p), [1, None]), r"1 of 2 keys are missing \(row 1\)"),
    "lengths": (lambda p: ([1.0, 2.0], stored(p), ["a"]), "there are 1 keys for 2 values"),
    "none matches": (lambda p: ([1.0], stored(p), ["x"], 0), "12 of 12 rows have no value: .* have keys such as 'x'"),
    "rows without keys": (lambda p: (SERIES, ROWS), r"the rows of X \(ndarray\) have no keys\. Store them"),
    "values without keys": (lambda p: (WEIGHTS, stored(p)), "the values have no keys, such as 'r0.jpg', 'r1.jpg'"),
    "table": (lambda p: (f"{p}/t.csv::w", TABLE.drop(columns="name").to_csv(p / "t.csv", index=False), stored(p))[::2],
              "Pass keys=\".*t.csv::COLUMN\""),
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
        bp.data.by_key(values, rows, *rest[:1], **({"absent": rest[1]} if len(rest) > 1 else {}))


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


CLASSES = np.array([0, 1, 2, 1, 2, 0, 1, 1, 2, 2, 0, 1])
CHOSEN = np.array([7, 0, 3, 10, 2, 9])
MASK, FROM_6 = np.arange(12) % 3 > 0, np.roll(np.arange(12), 6)
LOST, NONE = (
    "the rows of X have lost theirs: X was computed from (.*rows.zarr|rows that were persisted)",
    "the rows of X have none to join them by",
)
SHORT = "there are (11|1?[0-9]) (label|weight)s"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keyed")
    rows = bp.ingest(ROWS, path / "rows.zarr", keys=NAMES, chunk_rows=5)
    bp.PCA(3).fit(rows).transform(rows, out=path / "scores.parquet")
    np.save(path / "rows.npy", ROWS)
    return path


def halves(first: da.Array, second: da.Array) -> da.Array:
    return da.concatenate([first[6:, :3], second[:6, :3]])


# Rows of a store with keys, at which places they are there, and which column of the table of labels is about them.
FORMS: dict[str, tuple[Callable[[Path], Any], Any, int]] = {
    "opened store": (lambda p: str(p / "rows.zarr"), slice(None), 0),
    "row slice": (lambda p: bp.open(p / "rows.zarr")[1:11:2], slice(1, 11, 2), 0),
    "column slice": (lambda p: bp.open(p / "rows.zarr")[:, 1:][2:], slice(2, None), 0),
    "columns": (lambda p: bp.open(p / "rows.zarr", columns=[3, 0])[::-1], slice(None, None, -1), 0),
    "lazy scores": (lambda p: bp.PCA(3).fit(ROWS).transform(bp.open(p / "rows.zarr")[3:])[1:], slice(4, None), 0),
    "written scores": (lambda p: str(p / "scores.parquet"), slice(None), 0),
    "rows chosen one by one": (lambda p: bp.open(p / "rows.zarr")[CHOSEN], CHOSEN, 0),
    "mask, chunks, dtype": (lambda p: bp.open(p / "rows.zarr").rechunk((5, 2))[MASK].astype("f4"), MASK, 0),
    "slices joined": (lambda p: halves(bp.open(p / "rows.zarr"), bp.open(p / "rows.zarr")), FROM_6, 0),
    "slices of two stores": (lambda p: halves(bp.open(p / "rows.zarr"), bp.open(p / "scores.parquet")), FROM_6, 0),
    "arithmetic": (lambda p: np.sqrt(bp.open(p / "rows.zarr") * 2 + 9), slice(None), 1),
    "persisted": (lambda p: bp.open(p / "rows.zarr").persist()[2:], slice(2, None), 1),
    "persisted scores": (lambda p: bp.PCA(3).fit(ROWS).transform(bp.open(p / "rows.zarr")).persist(), slice(None), 1),
    "NumPy": (lambda p: str(p / "rows.npy"), slice(None), 2),
}
# Labels, and what becomes of them beside rows with keys, rows that lost theirs, and rows of which none are known.
GIVEN: dict[str, tuple[Callable[[pd.Series, Path], Any], tuple[str, str, str]]] = {
    "equal keys": (lambda y, p: y, ("as given", LOST, "as given")),
    "keys in another order": (lambda y, p: y[::-1], ("by key", LOST, "as given")),
    "dask": (lambda y, p: dd.from_pandas(y[::-1], npartitions=2, sort=False), ("by key", LOST, "as given")),
    "one is missing": (lambda y, p: y[1:], ("1 of .* rows have no (label|weight)", LOST, SHORT)),
    "repeated keys": (lambda y, p: y[[*y.index[1:], y.index[1]]], ("1 key has more than one", LOST, "as given")),
    "other keys": (lambda y, p: y.add_prefix("a"), ("rows have no .* If they are in the order", LOST, "as given")),
    "NumPy": (lambda y, p: y.to_numpy()[::-1], ("as given",) * 3),
    "unnamed integers": (lambda y, p: y.reset_index(drop=True)[::-1], ("as given",) * 3),
    "table": (lambda y, p: saved(p / "y.csv", y), ("by key", LOST, NONE)),
    "table without keys": (lambda y, p: saved(p / "y.csv", y, index=False), ("as given",) * 3),
    "said to be in order": (lambda y, p: bp.data.by_key(saved(p / "y.csv", y), None, keys=False), ("as given",) * 3),
}  # fmt: skip


def saved(path: Path, y: pd.Series, **options: Any) -> str:
    y[::-1].to_csv(path, **options)
    return f"{path}::y"


# Every form of rows with labels joined, rejected and taken as given; every form of labels with one of each outcome.
FULL, SOME = ("opened store", "arithmetic", "NumPy"), ("keys in another order", "one is missing", "NumPy")
MET = [(form, given) for form in FORMS for given in GIVEN if form in FULL or given in SOME]


@pytest.mark.parametrize(("form", "given"), [*MET, ("written scores", "table")])
def test_labels_meet_rows_by_the_same_rules_at_every_door(form: str, given: str, folder: Path, tmp_path: Path) -> None:
    (open_rows, places, known), (make, outcomes) = FORMS[form], GIVEN[given]
    y = pd.Series(CLASSES, NAMES, name="y").rename_axis("name").iloc[places]
    X, labels, outcome, n = open_rows(folder), make(y, tmp_path), outcomes[known], len(y)
    doors: dict[str, Callable[[Any], Any]] = {
        "fit": lambda y: bp.SupervisedPCA(1).fit(X, y).components_,
        "weights": lambda y: bp.PCA(1).fit(X, sample_weight=y).mean_,
        "plot": lambda y: kinds_of(y, n, np.arange(n), X).codes,
        "report": lambda y: companions(y, scores=X, n=n).labels.astype(int),
    }
    if isinstance(X, str) and isinstance(labels, str):
        doors["command line"] = lambda y: fitted_by_command(X, y, tmp_path) if isinstance(y, str) else doors["fit"](y)
    if outcome not in ("as given", "by key"):
        shown = {"plot", "report"} if given == "one is missing" and not known else set()  # without a label
        for door in doors.keys() - shown:
            with pytest.raises(ValueError, match=outcome):
                doors[door](labels)
        if shown:
            codes = doors["plot"](y.to_numpy())
            np.testing.assert_array_equal(doors["plot"](labels), [-1, *codes[1:]])
            assert companions(labels, scores=X, n=n).labels.tolist() == [None, *y[1:]]
        return
    order = y if outcome == "by key" else y[::-1] if isinstance(labels, str) else labels
    for door, meet in doors.items():
        np.testing.assert_array_equal(meet(labels), meet(np.asarray(order)), err_msg=door)


def fitted_by_command(X: str, labels: str, folder: Path) -> Any:
    result = run("fit", X, "--method", "supervised", "-k", 1, "--labels", labels, "--model", folder / "m.zarr")
    if result.exit_code:
        raise ValueError(" ".join(result.stderr.split()))
    return bp.load(folder / "m.zarr").components_


def test_rows_in_memory_have_the_keys_of_their_index(folder: Path) -> None:
    y = pd.Series(CLASSES, NAMES)
    rows = pd.DataFrame(ROWS, NAMES)
    repeated = np.where(np.arange(12) < 2, "r", NAMES)
    levels = pd.MultiIndex.from_product([["a", "b"], range(6)])
    for X, labels, expected in (
        (rows, y[::-1], CLASSES),
        (rows.set_axis(levels), y.set_axis(levels)[::-1], CLASSES),
        (dd.from_pandas(rows, npartitions=3, sort=False), y[::-1], CLASSES),
        (rows.set_axis(repeated), y.set_axis(repeated), CLASSES),
        (rows.reset_index(drop=True), y[::-1], CLASSES[::-1]),
        (rows.sample(frac=1, random_state=0).reset_index(drop=True), y.reset_index(drop=True), CLASSES),
    ):
        found = bp.SupervisedPCA(1).fit(X, labels)
        np.testing.assert_allclose(found.components_, bp.SupervisedPCA(1).fit(np.asarray(X), expected).components_)
    for X, labels, match in (
        (rows.set_axis(repeated), y.set_axis(repeated)[::-1], "2 of 12 rows share their key with another row: 'r'"),
        (rows.reset_index(drop=True), y.reset_index(drop=True)[::-1], "the same index in a different order: 0, 1, 2"),
    ):
        with pytest.raises(ValueError, match=match):
            bp.SupervisedPCA(1).fit(X, labels)
    with pytest.raises(ValueError, match="computed from a table or DataArray, whose rows have keys"):
        bp.SupervisedPCA(1).fit(bp.open(dd.from_pandas(rows, npartitions=3, sort=False)) * 2, y)
    cross = cross_val_score(bp.FisherDiscriminantAnalysis(1), bp.open(folder / "rows.zarr"), CLASSES % 2, cv=2)
    assert np.isfinite(cross).all()
