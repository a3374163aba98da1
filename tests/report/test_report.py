"""What a report says, and that nothing in it can act: read from its records and its HTML."""

import base64
import csv
import io
import re
import struct
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from PIL import Image

import bigpca as bp
from bigpca.estimators.shared.results import Waiting
from bigpca.plots.data import fitted, weights
from bigpca.report import describe, describing, write_report
from bigpca.report.describing import (
    citations_of,
    companions,
    done_of,
    lights_of,
    made_of,
    method_name,
    read_scores,
    thumbnail,
)
from bigpca.report.page import Table, Verdict, csv_of, render

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "$x^",
    "_hidden",
    "=1+1",
    "a\u202eb\x1b[2J",
]


def matrix(n: int = 300, d: int = 12) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d)) * np.linspace(4, 1, d)


X = matrix()
CLASSES = np.arange(len(X)) % 3


@pytest.fixture(scope="module")
def pca() -> bp.PCA:
    return bp.PCA(4).fit(X)


class Seen(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def files(self) -> dict[str, list[list[str]]]:
        """Return the tables that can be downloaded."""
        links = [attributes for tag, attributes in self.tags if tag == "a" and "download" in attributes]
        contents = {link["download"]: base64.b64decode(str(link["href"]).partition(",")[2]).decode() for link in links}
        return {str(name): list(csv.reader(io.StringIO(content))) for name, content in contents.items()}


MODELS: dict[str, tuple[Any, set[str]]] = {
    "exact": (bp.PCA(4), {"scree", "scores", "components"}),
    "one component": (bp.PCA(1), {"scree", "scores", "components"}),
    "certified": (bp.PCA(3, solver="krylov", tol=0.3), {"scree", "bounds", "scores", "components"}),
    "kernel": (bp.NystromKernelPCA(5, kernel="rbf", gamma=0.01, n_landmarks=40), {"scree", "bounds", "scores"}),
    "labels": (bp.RoweisDiscriminantAnalysis(2, r1=0.5, r2=0.5), {"scree", "scores", "components"}),
    "kernel and labels": (bp.KernelRoweisDiscriminantAnalysis(2, r1=0.5, r2=0.5), {"scree", "scores"}),
    "selected": (bp.ScoredPCA(2, n_features_to_select=5), {"scree", "scores", "components"}),
}


@pytest.mark.parametrize(("model", "figures"), MODELS.values(), ids=MODELS)
def test_a_report_is_one_file_that_loads_nothing_and_in_which_no_text_acts(model: Any, figures: set[str]) -> None:
    model = model.fit(X, CLASSES)
    names = np.array(HOSTILE, dtype=object)[np.arange(len(X)) % len(HOSTILE)]
    features = HOSTILE * 2 if "components" in figures else None
    report = describe(model, scores=model.transform(X), labels=names, keys=names, feature_names=features)
    assert {figure.name for figure in report.figures} == figures
    page = render(report)
    assert len(page.encode()) < 3e6
    seen = Seen(page)
    assert not {tag for tag, _ in seen.tags} & {"script", "iframe", "object", "link", "base", "form"}
    for _tag, attributes in seen.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/", "data:text/csv;"))
    assert "<script>alert(1)</script>" in seen.text
    assert "\u202e" not in page
    assert "\x1b" not in page
    ids = [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("undrawn")
def test_a_report_of_a_model_with_groups_has_their_chart_or_says_how_to_add_it() -> None:
    model = bp.PCA(2).fit(X, groups=np.arange(len(X)) % 5)
    report = describe(model, drift=bp.quality.drift(model))
    assert [one.name for one in report.figures] == ["scree", "drift", "components"]
    assert not any("drift" in note for note in report.notes)
    assert any("give drift=bigpca.quality.drift(model)" in note for note in describe(model).notes)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("model", "computed"),
    [(bp.PCA(3), "exact to rounding"), (bp.PCA(3, solver="krylov"), "approximate, with certified bounds")],
)
def test_standard_errors_are_told_apart_from_the_errors_of_the_computation(model: Any, computed: str) -> None:
    rows = X[:100]
    errors = bp.quality.standard_errors(model.fit(rows), rows)
    report = describe(model, standard_errors=errors)
    said, *others = report.notes
    assert f"about the data, not about the computation, which is {computed}." in said
    assert tuple(others[: len(errors.notes)]) == errors.notes
    assert errors.notes[0].startswith("2 of 3 eigenvalues and 3 of 3 axes")
    assert "12 columns and 100 rows" in errors.notes[1]
    columns = dict(zip(report.components.header, zip(*report.components.rows, strict=True), strict=True))
    for name, found in (
        ("standard error", errors.explained_variance_),
        ("angle of the axis, rad", errors.component_angle_),
    ):
        assert columns[name] == tuple("not determined" if np.isnan(one) else one for one in found)
    assert "<th class='number'>standard error</th>" in render(report)
    with pytest.raises(
        ValueError, match=r"describe 3 components of 100 rows .*, but the model has 2 of .* Compute them for this model"
    ):
        describe(bp.PCA(2).fit(rows), standard_errors=errors)


def test_the_same_model_has_the_same_report(pca: bp.PCA) -> None:
    scores = pca.transform(X)
    labelled = xr.DataArray(scores, dims=("sample", "component"))
    first, second = (render(describe(pca, scores=found, labels=CLASSES)) for found in (scores, labelled))
    assert first == second


@pytest.mark.usefixtures("undrawn")
def test_tables_are_the_models_numbers_and_run_nothing_in_a_spreadsheet(pca: bp.PCA) -> None:
    model = bp.PCA(3, solver="krylov", tol=0.3).fit(X)
    files = Seen(render(describe(model, feature_names=HOSTILE * 2))).files()
    assert set(files) == {"components.csv", "main_features.csv"}
    header, *lines = files["components.csv"]
    assert header == ["component", "variance", "% of the variance", "% so far", "lower bound", "upper bound"]
    assert [line[0] for line in lines] == ["pca0", "pca1", "pca2"]
    found = np.array([line[1:] for line in lines], dtype=float)
    shares = 100 * model.explained_variance_ratio_
    expected = [model.explained_variance_, shares, np.cumsum(shares), *model.eigenvalue_bounds_.T]
    np.testing.assert_allclose(found, np.column_stack(expected), rtol=1e-15)
    _, *lines = files["main_features.csv"]
    assert float(lines[0][3]) == model.components_[0, np.abs(model.components_[0]).argmax()]
    inert = csv_of(
        Table("t", ("a", "b"), (("=cmd()", -1.5), ("-x", None), ("plain", 2), (" =x", 1), ("\u2003@x", "＝x")))
    )
    assert inert.splitlines() == ["a,b", "'=cmd(),-1.5", "'-x,", "plain,2", "' =x,1", "'\u2003@x,'＝x"]
    assert csv_of(Table("t", ("\n=a",), ())).startswith(("'", "\"'"))


# Checks


def _scaled(column: float, n: int = 300) -> np.ndarray:
    rows = matrix(n)
    rows[:, 0] *= column
    return rows


def _with(rows: np.ndarray, place: Any, value: float) -> np.ndarray:
    rows = rows.copy()
    rows[place] = value
    return rows


FINE, ROUGH = {"solver": "krylov", "tol": 1e-6}, {"solver": "krylov", "tol": 1e-9, "max_passes": 2}
NOISE = np.random.default_rng(0).standard_normal((900, 9))
OMIT = bp.PCA(4, nan_policy="omit")
GAPS = [_with(X, np.s_[:n, 0], np.nan) for n in (3, 60)]
PAIRS = bp.PCA(4, nan_policy="pairwise")
LIKELY = bp.PCA(2, nan_policy="em", max_passes=None)
SPARSE = np.where(np.random.default_rng(0).random((60, 12)) < 0.5, np.nan, X[:60])
LEADING = np.random.default_rng(0).standard_normal((300, 1))  # a direction beside one column of 43 % of the variance
BESIDE = np.hstack([LEADING + 0.2 * NOISE[:300, :1] + np.zeros(29), 5.17 * NOISE[300:600, :1]])
UNCENTRED = bp.PCA(1, center=np.full(12, -99.0), scale=np.geomspace(1, 1e-3, 12))
CHECKS: dict[str, tuple[Any, np.ndarray, str, Verdict | None, str]] = {
    "exact": (bp.PCA(4), X, "converged", Verdict.PASS, "exact to rounding"),
    "exact bounds": (bp.PCA(4), X, "bounds", Verdict.PASS, "none needed"),
    "converged": (bp.PCA(2, **FINE), X, "converged", Verdict.PASS, "tolerance 1e-06 met"),
    "stopped": (bp.PCA(2, **ROUGH), matrix(4000, 200), "converged", Verdict.FAIL, "no, stopped after"),
    "narrow": (bp.PCA(2, **FINE), X, "bounds", Verdict.PASS, "2 of 2 components certified"),
    "wide": (bp.ApproximatePCA(6, bp.sketches.Gaussian(7)), matrix(900, 90), "bounds", Verdict.FAIL, "a wider sketch"),
    "steep": (bp.PCA(4), X, "spectrum", Verdict.PASS, "times the mean"),
    "flat": (bp.PCA(4), NOISE, "spectrum", Verdict.WARNING, "flat: "),
    "undecided": (bp.ApproximatePCA(2, bp.sketches.Gaussian(4)), NOISE, "spectrum", Verdict.NONE, "not known: .* to "),
    "no covariance": (
        bp.KernelPCA(2, kernel="rbf"),
        X[:60],
        "spectrum",
        Verdict.NONE,
        "no eigenvalues of a covariance",
    ),
    "factors": (bp.FactorAnalysis(2), X, "spectrum", Verdict.NONE, "no eigenvalues of a covariance"),
    "no bounds": (bp.FactorAnalysis(2), X, "bounds", Verdict.NONE, "none known: converged to a tolerance of 1e-07"),
    "of pairs": (PAIRS, GAPS[1], "bounds", Verdict.NONE, "none known: estimated from pairs of columns$"),
    "indefinite": (
        PAIRS,
        SPARSE,
        "bounds",
        Verdict.NONE,
        "estimated from pairs of columns, with eigenvalues down to -",
    ),
    "likeliest": (LIKELY, SPARSE, "converged", Verdict.PASS, "yes, tolerance 0.001 met"),
    "unsettled": (bp.PCA(2, nan_policy="em", max_passes=2), SPARSE, "converged", Verdict.FAIL, "no, stopped"),
    "outside": (
        bp.ApproximatePCA(2, bp.sketches.Gaussian(3), approximation="tutorial"),
        matrix(900, 90),
        "bounds",
        Verdict.FAIL,
        "2 of 2 eigenvalues are outside of their bounds",
    ),
    "shrunk": (bp.PCA(2), NOISE[:30].T[:20], "new rows", Verdict.WARNING, r"are 0\.\d\d to 0\.\d\d of"),
    "not shrunk": (
        bp.PCA(2),
        np.tile(X[:10, :2], (1, 9)) + 0.01 * NOISE[:10, :1],
        "new rows",
        Verdict.PASS,
        "of those of rows",
    ),
    "balanced": (bp.PCA(4), X, "columns", Verdict.PASS, "none dominates: feature 0 has"),
    "dominated": (bp.PCA(4), _scaled(1000), "columns", Verdict.WARNING, "feature 0 has 100 % of the variance"),
    "scaled": (bp.PCA(4, scale=True), _scaled(1000), "columns", Verdict.PASS, "none dominates"),
    "beside": (bp.PCA(1), BESIDE, "columns", Verdict.PASS, "none dominates: feature 29 has 42.7"),
    "sketched": (bp.ApproximatePCA(1), BESIDE, "columns", Verdict.PASS, "none dominates: feature 29 has 42.7"),
    "omitted": (bp.PCA(1), BESIDE[:, 26:], "columns", Verdict.WARNING, "feature 3 has 8"),
    "uncentred": (UNCENTRED, X, "columns", Verdict.WARNING, "feature 11 has 7"),
    "chosen": (bp.ScoredPCA(1, n_features_to_select=4), _scaled(9), "columns", Verdict.WARNING, "feature 0 has 9"),
    "forgotten": (bp.PCA(1), BESIDE, "columns", None, ""),
    "iterated": (bp.PCA(1, **FINE), BESIDE, "columns", None, ""),
    "kernel": (bp.KernelPCA(2, kernel="rbf"), X[:60], "columns", None, ""),
    "complete": (bp.PCA(4), X, "rows omitted", Verdict.PASS, "0 of 300"),
    "few gaps": (OMIT, GAPS[0], "rows omitted", Verdict.WARNING, r"3 of 300 \(1 %\)"),
    "many gaps": (OMIT, GAPS[1], "rows omitted", Verdict.FAIL, r"60 of 300 \(20 %\)"),
}


def test_the_edge_of_noise_counts_weights_as_repeated_rows() -> None:
    weights = np.arange(len(NOISE)) % 3
    models = bp.PCA(4).fit(NOISE, sample_weight=weights), bp.PCA(4).fit(np.repeat(NOISE, weights, axis=0))
    weighted, repeated = (next(one for one in lights_of(m, None) if one.name == "spectrum") for m in models)
    assert weighted == repeated


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize(("model", "rows", "name", "verdict", "text"), CHECKS.values(), ids=CHECKS)
def test_a_check_passes_or_not_with_the_number_that_decides(
    model: Any, rows: np.ndarray, name: str, verdict: Verdict | None, text: str
) -> None:
    with bp.config(keep_state_bytes=0 if verdict is None else None):
        model.fit(rows, rows[:, 0])
    own = weights(model) if hasattr(fitted(model), "components_") else None
    found = {light.name: light for light in lights_of(model, own)}
    of_columns = ["columns"] if "columns" in found else []  # the others are always there
    of_new = ["new rows"] if "new rows" in found else []
    assert list(found) == ["converged", "bounds", "spectrum", *of_columns, "rows omitted", *of_new]
    if verdict is None:  # the model does not keep the number
        assert name not in found
        return
    assert found[name].verdict is verdict, found[name]
    assert re.search(text, found[name].text)


# Extremes and what is known of rows


@pytest.mark.parametrize("chunks", [(1000, 3), (7, 3), (999, 1)])
def test_extremes_are_those_of_all_rows_whatever_the_chunks(chunks: tuple[int, int]) -> None:
    scores = np.random.default_rng(0).integers(-40, 40, (1000, 3)).astype(float)
    scores[[5, 700]] = np.nan
    read = read_scores(None, da.from_array(scores, chunks))
    known = np.flatnonzero(np.isfinite(scores).all(axis=1))
    for column in range(3):
        for sign, rows, values in (
            (1, read.ends.lowest, read.ends.lowest_scores),
            (-1, read.ends.highest, read.ends.highest_scores),
        ):
            expected = known[np.argsort(sign * scores[known, column], kind="stable")[:5]]
            np.testing.assert_array_equal(rows[column], expected)
            np.testing.assert_array_equal(values[column], scores[expected, column])
    assert (read.without, read.drawn.omitted, read.drawn.n) == (2, 2, 1000)
    np.testing.assert_array_equal(read.drawn.rows, known)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures 0.png to 2.png of rising greys, one that is no picture, and one outside."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        Image.new("L", (300, 150), 60 * number).save(tmp_path / "in" / f"{number}.png")
    Image.new("L", (4, 4)).save(tmp_path / "outside.png")
    (tmp_path / "in" / "broken.png").write_bytes(b"\x89PNG no")
    return tmp_path / "in"


FILES = ["0.png", "1.png", "2.png"]
TABLES: dict[str, tuple[str, str, tuple[list[str | None] | None, ...]]] = {
    "classes": ("class\na\n\nb\n", "", (["a", None, "b"], None, None)),
    "keys": ("class,id\na,x\nb,y\n,z\n", "", (["a", "b", None], ["x", "y", "z"], None)),
    "pictures": ("path,class\n0.png,a\n1.png,b\n2.png,b\n", "", (["a", "b", "b"], FILES, FILES)),
    "named": ("a,b,file\n1,x,0.png\n2,y,1.png\n3,z,2.png\n", "::b", (["x", "y", "z"], FILES, FILES)),
    "all": ("id,class,image\nk,a,0.png\nl,b,1.png\nm,b,2.png\n", "", (["a", "b", "b"], ["k", "l", "m"], FILES)),
}


@pytest.mark.parametrize(("content", "column", "expected"), TABLES.values(), ids=TABLES)
def test_columns_of_a_table_are_classes_keys_and_pictures(
    content: str, column: str, expected: tuple[Any, ...], folder: Path
) -> None:
    (folder / "labels.csv").write_text(content)
    table = f"{folder / 'labels.csv'}{column}"
    if content.startswith("class\n"):
        assert "by position" in companions(table, n=3).source
    else:
        with pytest.raises(ValueError, match="the rows of X have none to join them by"):
            companions(table, n=3)
    found = companions(table, keys=False, n=3)
    shown = tuple(None if one is None else one.tolist() for one in (found.labels, found.keys, found.pictures))
    assert shown == expected
    assert "by position" in found.source
    if found.pictures is not None:
        data = base64.b64decode(found.picture(2).partition(",")[2])
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == (72, 36)
            assert abs(image.getpixel((9, 9))[0] - 120) < 3
    assert found.name(0) == ("row 0" if expected[1] is None else expected[1][0])


@pytest.mark.usefixtures("undrawn")
def test_a_stored_array_of_labels_has_the_keys_beside_it_and_arrays_are_said_to_be_in_order(tmp_path: Path) -> None:
    bp.ingest(np.array([[3.5], [1.5], [2.5]]), tmp_path / "y.zarr", keys=["z", "x", "y"])
    found = companions(tmp_path / "y.zarr", keys=["x", "y", "z"], n=3)
    assert found.labels.tolist() == [1.5, 2.5, 3.5]
    report = describe(bp.PCA(1).fit(X), scores=X[:, :1], labels=CLASSES)
    assert any("in the order of the rows" in figure.caption for figure in report.figures)


@pytest.mark.usefixtures("undrawn")
def test_pictures_outside_the_folder_or_broken_are_not_shown(folder: Path) -> None:
    (folder / "link.png").symlink_to(folder.parent / "outside.png")
    for path in ("../outside.png", str(folder.parent / "outside.png"), "link.png"):
        with pytest.raises(ValueError, match="is not inside"):
            thumbnail(folder, path)
    header = struct.pack(">II5B", 2**30, 2**30, 8, 2, 0, 0, 0)  # a PNG that states 2^60 pixels
    crc = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (folder / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR" + header + crc + b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    )
    (folder / "labels.csv").write_text("path,class\n../outside.png,a\nbroken.png,b\nmissing.png,b\n")
    found = companions(str(folder / "labels.csv"), keys=False, n=3)
    assert [found.picture(row) for row in range(3)] == ["", "", ""]
    report = describe(bp.PCA(2).fit(X[:3]), scores=X[:3, :2], labels=str(folder / "labels.csv"), keys=False)
    assert companions(pictures=[str(folder / "bomb.png")], n=1).picture(0) == ""
    with pytest.raises(Image.DecompressionBombError):
        thumbnail(folder, "bomb.png")
    assert "No image files were found" in report.notes[0]


# Writing


@pytest.mark.usefixtures("undrawn")
def test_what_was_recorded_is_shown_beside_the_plan_and_paths_can_be_left_out() -> None:
    recorded = bp.PCA(2).fit(X)
    recorded._provenance = replace(
        recorded.provenance_,
        source="s3://bucket/rows.zarr",
        call="bigpca fit rows.zarr",
        reads=2.0,
        planned_max_reads=3.0,
        peak_bytes=2**30,
        planned_bytes=2**31,
        added_rows=1000,
    )
    made = dict(made_of(recorded, provenance=True))
    assert made == recorded.provenance_.lines()
    assert made["from"] == "s3://bucket/rows.zarr"
    assert (made["rows read"], made["rows added"]) == (
        f"{len(X):,}, 2 times (planned: 1, at most 3)",
        "1,000 of them, by partial_fit",
    )
    assert made["peak memory"] == "1.0 GiB above idle (planned: 2.0 GiB)"
    private = render(describe(recorded, provenance=False, path="/home/me/model.zarr"))
    assert not [text for text in ("s3://", "bigpca fit", "/home/me") if text in private]
    assert "1.0 GiB above idle" in private
    old = bp.PCA(2).fit(X)
    old._provenance = None
    assert made_of(old, provenance=True) == ()
    assert not [text for text in ("not recorded", "How it was made") if text in render(describe(old))]
    assert describe(recorded).title == f"{method_name(recorded)} of rows.zarr"
    assert describe(recorded, provenance=False).title == method_name(recorded)


GAPS = np.where(X > 2, -9.0, X)
DONE: dict[str, tuple[Callable[[], Any], dict[str, str]]] = {
    "nothing": (lambda: bp.PCA(2).fit(X), {"n_components": "2"}),
    "maps": (
        lambda: bp.PCA(
            2, preprocess=[bp.preprocessing.NormalizeTotal(), bp.preprocessing.L2()], scale=np.full(12, 2.0)
        ).fit(np.abs(X)),
        {"rows mapped by": "(NormalizeTotal(target=", "scale": "numbers of shape (12,)", "n_components": "2"},
    ),
    "imputation": (
        lambda: bp.PCA(2, nan_policy="mean").fit(np.where(X > 2, np.nan, X)),
        {"missing entries": "the means of their columns", "n_components": "2", "nan_policy": "mean"},
    ),
    "a code": (
        lambda: bp.PCA(2, nan_policy="omit").fit(bp.open(GAPS, missing_value=-9)),
        {"missing value": "-9", "n_components": "2", "nan_policy": "omit"},
    ),
    "covariates": (
        lambda: bp.PCA("mle").fit(X, covariates=X[:, :1]),
        {"covariates removed": "1", "n_components": "mle"},
    ),
    "a rotation": (
        lambda: bp.RotatedPCA(2, rotation="promax", estimator=bp.PCA(5, whiten=True)).fit(X),
        {"estimator__n_components": "5", "n_components": "2", "rotation": "promax", "estimator__whiten": "True"},
    ),
    "penalties": (lambda: bp.Ridge([0.5, 8.0]).fit(X, X[:, :2]), {"alpha": "[0.5, 8.0]"}),
    "a metric": (lambda: bp.GeneralizedPCA(2, metric=np.eye(12)).fit(X), {"metric": "(12, 12)", "n_components": "2"}),
}


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize(("make", "told"), DONE.values(), ids=DONE)
def test_what_is_said_of_a_fit_is_of_the_fit_whatever_is_set_since(
    make: Callable[[], Any], told: dict[str, str], tmp_path: Path
) -> None:
    model = make()
    done = done_of(model)
    assert dict(done).keys() == told.keys()
    for name, text in told.items():
        assert text in dict(done)[name]
    changed = {"whiten": True, "rotation": "varimax", "n_components": 1}
    model.set_params(**{one: value for one, value in changed.items() if one in model.get_params()})
    model.save(tmp_path / "m.zarr")
    assert done_of(model) == done_of(bp.load(tmp_path / "m.zarr")) == done


@pytest.mark.usefixtures("undrawn")
def test_an_updated_model_tells_the_call_that_updated_it() -> None:
    model = bp.PCA(2).fit(X)
    model.partial_fit(da.from_array(X[:50], (25, -1)))
    lines = model.provenance_.lines()
    assert (lines["made by"], lines["updated by"]) == (
        "PCA(n_components=2).fit(X)",
        "PCA(n_components=2).partial_fit(X)",
    )
    assert dict(describe(model).made)["updated by"] == lines["updated by"]


def test_a_report_cites_the_method_and_the_algorithm_of_the_solver() -> None:
    model = bp.PCA(2, solver="krylov", tol=0.01).fit(X)
    assert [text[:8] for text in citations_of(model)] == ["Hotellin", "Musco, C"]
    assert [text[:8] for text in citations_of(bp.PCA(2).fit(X))] == ["Hotellin", "Chan, T."]


@pytest.mark.usefixtures("undrawn")
def test_a_report_is_written_where_nothing_is_lost(
    pca: bp.PCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pca.report(scores=pca.transform(X)) == tmp_path / "report.html"
    before = Path("report.html").read_bytes()
    with pytest.raises(bp.errors.OutputExistsError, match="overwrite=True"):
        pca.report()
    with pytest.raises(bp.errors.OutputExistsError, match="is a folder"):
        write_report(pca, tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="12 columns; 4"):
        pca.report(scores=X, overwrite=True)
    assert Path("report.html").read_bytes() == before
    pca.report(overwrite=True)
    assert b"No scores were given" in Path("report.html").read_bytes()


ERRORS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "too few labels": ({"scores": X[:, :4], "labels": [1, 2]}, ValueError, "2 labels for 300 rows"),
    "two columns": ({"scores": X[:, :4], "labels": np.ones((300, 2))}, ValueError, "300 labels in 2 columns for 300"),
    "no file": ({"scores": X[:, :4], "labels": "lost.csv"}, FileNotFoundError, "lost.csv holds no labels"),
    "too few keys": ({"scores": X[:, :4], "keys": ["a"]}, ValueError, "1 keys for 300 rows"),
    "no scores": ({"labels": CLASSES}, ValueError, "without the scores"),
    "shape": ({"image_shape": (5, 5)}, ValueError, "image_shape"),
    "no drift": ({"drift": True}, TypeError, r"drift is a bool\. Pass what bigpca\.quality\.drift"),
    "no errors": ({"standard_errors": bp.PCA(1)}, TypeError, r"standard_errors is a PCA\. Pass what"),
}


@pytest.mark.parametrize(("given", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_what_does_not_fit_is_rejected(
    given: dict[str, Any], error: type[Exception], message: str, pca: bp.PCA
) -> None:
    with pytest.raises(error, match=message):
        describe(pca, **given)


@pytest.mark.parametrize("coords", [{}, {"lat": [10.0, 20, 30]}])
def test_components_of_a_field_are_maps_unless_the_features_are_named(coords: Any) -> None:
    model = bp.PCA(2).fit(xr.DataArray(X.reshape(-1, 3, 4), dims=("time", "lat", "lon"), coords=coords))
    for options, maps in (({}, True), ({"feature_names": list("abcdefghijkl")}, False), ({"image_shape": (3, 4)}, 0)):
        report = describe(model, **options)
        figure = report.figures[-1]
        assert ("Components as maps" in figure.caption, "upwards" in figure.svg) == (maps, maps)
        assert "Features have no names" not in " ".join(report.notes)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("model", "columns", "summary"),
    [
        (bp.CCA(2), ("component", "correlation"), "and 3 columns of Y: 2 components, exact"),
        (bp.PLSSVD(2), ("component", "covariance", "% of the squared covariance", "% so far"), "of the squared"),
        (bp.Ridge([1.0, 9.0]), ("component", "alpha", "cv score"), "and 3 columns of Y: 3 targets, exact"),
    ],
)
def test_models_of_two_sides_report_what_they_found(model: Any, columns: tuple[str, ...], summary: str) -> None:
    model.fit(X[:, :5], X[:, 4:7])
    report = describe(model, scores=model.transform(X[:, :5]))
    assert report.components.header == columns
    assert summary in report.summary
    assert [one.name for one in report.figures] == ["scree", "scores"]
    assert len(report.citations) == 2


@pytest.mark.usefixtures("undrawn")
def test_shares_of_a_discriminant_are_of_the_variance_between_the_classes() -> None:
    model, of = bp.FisherDiscriminantAnalysis().fit(X, CLASSES), "of the variance between the classes"
    report = describe(model)
    assert f"2 components with 100 % {of}" in report.summary
    assert "solver" not in report.summary  # this class has only one solver
    assert f"% {of}" in report.components.header
    assert "Of the variance between the classes, " in report.figures[0].caption


def test_a_sketch_has_no_components_to_report_on() -> None:
    with pytest.raises(ValueError, match=r"has no eigenvalues.*Fit a PCA"):
        describe(bp.SketchTransformer(bp.sketches.SparseSign(8)).fit(X))


def test_notebooks_show_a_model_without_its_pending_solve() -> None:
    waiting = bp.PCA(2).partial_fit(X)
    for shown in (waiting._repr_html_(), waiting._repr_mimebundle_()["text/html"]):
        assert "PCA" in shown
    assert isinstance(waiting._found, Waiting)


def test_every_method_cites_what_is_listed() -> None:
    known = tomllib.loads(Path(describing.__file__).with_name("methods.toml").read_text("utf-8"))
    cited = {key for method in known["methods"].values() for key in method["cites"]}
    assert cited | set(describing.BY_SOLVER.values()) == known["citations"].keys()
