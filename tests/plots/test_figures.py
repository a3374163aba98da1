"""What figures show, read from their Axes: points at their scores, names in words, nothing over anything else."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any

import dask.array as da
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.sparse import csr_array

mpl.use("Agg")
import matplotlib.pyplot as plt

import bigpca as bp
from bigpca.plots.data import drawn_rows, drawn_scores
from bigpca.plots.spectra import reaching, relative_width
from bigpca.plots.style import ABSENT, COLOURS, short
from tests.estimators.stores import unreadable

NAMES = np.array(["_hidden", "$x^", "<script>alert(1)</script>", *(f"kind {i}" for i in range(27))], dtype=object)


def rows(n: int = 400, d: int = 12) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d)) * np.linspace(4, 1, d)


X = rows()
CLASSES = NAMES[np.random.default_rng(1).integers(0, 30, len(X))]
MAPS = X[:, :4].reshape(16, 5, 5, 4)
DAYS = np.array([f"2026-11-{1 + i // 20:02d}" for i in range(len(X))])
DRIFT = bp.quality.drift(bp.PCA(2).fit(X + 2.0 * (DAYS == "2026-11-07")[:, None], groups=DAYS))
THREE = np.array(["a", "b", "c"])[np.arange(len(X)) % 3]


FIELD = xr.DataArray(
    np.where(np.arange(12) % 5 == 1, np.nan, X).reshape(-1, 3, 4), dims=("time", "lat", "lon"),
    coords={"lat": [10.0, 20, 30], "lon": [9.0, 6, 3, 0]},
)  # fmt: skip


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    labels = np.arange(len(X)) % 3
    rbf = {"kernel": "rbf", "gamma": 0.01}
    found = {
        "pca": bp.PCA(4),
        "one": bp.PCA(1),
        "krylov": bp.PCA(3, solver="krylov", tol=0.3, max_passes=2),
        "kernel": bp.NystromKernelPCA(5, n_landmarks=40, **rbf),
        "roweis": bp.RoweisDiscriminantAnalysis(2, r1=0.5, r2=0.5),
        "kernel roweis": bp.KernelRoweisDiscriminantAnalysis(2, r1=0.5, r2=0.5, **rbf),
        "selected": bp.ScoredPCA(2, n_features_to_select=5),
        "sketch": bp.SketchTransformer(bp.sketches.SparseSign(8)),
    }
    return {name: model.fit(X, labels) for name, model in found.items()} | {"grid": bp.PCA(3).fit(FIELD)}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


FIGURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "scree": lambda m: bp.plots.scree(m["pca"]),
    "scree of an array": lambda m: bp.plots.scree(0.9 ** np.arange(200) / 10),
    "scree of one": lambda m: bp.plots.scree(m["one"]),
    "bounds": lambda m: bp.plots.bounds(m["krylov"]),
    "bounds of a kernel": lambda m: bp.plots.bounds(m["kernel"]),
    "eigenvalues": lambda m: bp.plots.scree(m["kernel roweis"]),
    "drift": lambda m: bp.plots.drift(DRIFT),
    "drift of few": lambda m: bp.plots.drift(replace(DRIFT, groups=DRIFT.groups[:3], z=[[9, -2, 0]] * 3), ax=_narrow()),
    "scores": lambda m: bp.plots.scores(m["pca"], X, components=(2, "pca0")),
    "scores of many classes": lambda m: bp.plots.scores(m["pca"], X, labels=CLASSES),
    "scores of thousands": lambda m: bp.plots.scores(1000 * X, labels=CLASSES, ax=_narrow()),
    "scores of values": lambda m: bp.plots.scores(m["pca"], X, labels=X[:, 0]),
    "scores of one": lambda m: bp.plots.scores(m["one"], X, labels=THREE),
    "scores of a series": lambda m: bp.plots.scores(m["pca"], X, labels=pd.Series(THREE, name="$kind_")),
    "maps of components": lambda m: bp.plots.components(m["grid"]),
    "components": lambda m: bp.plots.components(m["pca"], (4, 3)),
    "component": lambda m: bp.plots.components(m["one"], (2, 2, 3)),
    "weights": lambda m: bp.plots.components(m["selected"], feature_names=NAMES[:12]),
    "weights of two sides": lambda m: bp.plots.components(bp.PLSSVD(2).fit(X, X[:, :3])),
    "correlations": lambda m: bp.plots.scree(bp.CCA(3).fit(X[:, :5], X[:, 3:])),
}


def test_a_chart_of_drift_has_the_groups_in_their_order_and_names_those_beyond_the_limit() -> None:
    ax = bp.plots.drift(DRIFT)
    *lines, limit = ax.lines
    np.testing.assert_array_equal([line.get_ydata() for line in lines], DRIFT.z.T)
    assert set(limit.get_ydata()) == {3}
    assert ax.get_title(loc="left").startswith("3 of 20 groups beyond the limit: 2026-11-07, ")
    assert (DRIFT.z > 3).any(axis=1).sum() == 3
    assert ax.xaxis.get_major_formatter()(6, 0) == "2026-11-07"
    z = np.where(DRIFT.z > 3, np.inf, DRIFT.z)
    drawn = np.array([line.get_ydata() for line in bp.plots.drift(replace(DRIFT, z=z)).lines[:3]]).T
    assert (drawn[np.isinf(z)] > drawn[np.isfinite(z)].max()).all()


def _narrow() -> Any:
    return Figure(figsize=(5.6, 3.9), layout="constrained").subplots()


def texts(figure: Any) -> list[Text]:
    """Visible texts; tick labels outside the axes' limits are not drawn."""
    figure.draw_without_rendering()
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    outer = figure.bbox.padded(1)
    ticks = {
        id(label)
        for axes in figure.axes
        for axis, low, high in ((axes.xaxis, *sorted(axes.get_xlim())), (axes.yaxis, *sorted(axes.get_ylim())))
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        for label in (tick.label1, tick.label2)
        if not low <= tick.get_loc() <= high or not axes.axison
    }
    return [text for text in shown if id(text) not in ticks and outer.overlaps(text.get_window_extent())]


def test_matplotlib_is_looked_for_before_a_read(models: dict[str, Any], monkeypatch: Any) -> None:
    model = models["pca"]
    monkeypatch.setattr("bigpca.plots.style.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="figures need matplotlib, which is not installed"):
        bp.plots.scores(model, unreadable(50, model.n_features_in_))


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_every_figure_has_a_title_and_no_text_covers_another_or_leaves_the_figure(
    draw: Callable[[dict[str, Any]], Any], models: dict[str, Any]
) -> None:
    ax = draw(models)
    assert ax.get_title(loc="left") or ax.figure.get_suptitle()
    shown = texts(ax.figure)
    boxes = [text.get_window_extent().padded(-1) for text in shown]
    covering = [
        (shown[i].get_text(), shown[j].get_text())
        for i in range(len(boxes))
        for j in range(i)
        if boxes[i].overlaps(boxes[j])
    ]
    assert covering == []
    whole = ax.figure.bbox
    assert [
        t.get_text() for t, b in zip(shown, boxes, strict=True) if b.x0 < 0 or b.x1 > whole.x1 or b.y1 > whole.y1
    ] == []


def test_figures_go_into_axes_that_are_given_and_make_none_of_their_own(models: dict[str, Any]) -> None:
    ax = Figure().subplots()
    assert bp.plots.scree(models["pca"], ax=ax) is ax
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("model", "given", "pair", "columns", "named"),
    [
        ("pca", "rows", (0, 1), (0, 1), True),
        ("pca", "scores", ("pca3", 1), (3, 1), True),
        ("pca", "lazy", (0, 2), (0, 2), True),
        ("pca", "no model", (1, 0), (1, 0), False),
        ("kernel roweis", "rows", (0, "kroweis1"), (0, 1), False),
    ],
)
def test_rows_are_drawn_at_their_scores_and_axes_name_components_with_their_shares(
    models: dict[str, Any], model: str, given: str, pair: Any, columns: tuple[int, int], named: bool
) -> None:
    fitted = models[model]
    scores = fitted.transform(X)
    arguments = {
        "rows": (fitted, X),
        "scores": (fitted, scores),
        "no model": (scores,),
        "lazy": (fitted, da.from_array(X, (70, 12))),
    }
    ax = bp.plots.scores(*arguments[given], components=pair)
    (points,) = ax.collections
    np.testing.assert_allclose(points.get_offsets(), scores[:, columns], rtol=1e-10, atol=1e-12)
    for label, column in zip((ax.get_xlabel(), ax.get_ylabel()), columns, strict=True):
        share = f" ({100 * fitted.explained_variance_ratio_[column]:.1f} %)" if named else ""
        name = "component " if given == "no model" else {"pca": "pca"}.get(model, "kroweis")
        assert label == f"{name}{column}{share}"


@pytest.mark.parametrize("lazy", [False, True])
def test_pixels_of_maps_are_drawn_at_their_scores(lazy: bool) -> None:
    maps = MAPS.transpose(0, 3, 1, 2)
    model = bp.PCA(2).fit(bp.open(maps, pattern="n c h w -> (n h w) c"))
    (points,) = bp.plots.scores(model, da.from_array(maps, chunks=5) if lazy else maps).collections
    np.testing.assert_allclose(points.get_offsets(), model.transform(MAPS.reshape(-1, 4)), rtol=0, atol=1e-12)


def test_classes_have_one_colour_each_in_points_and_legend_and_names_are_taken_literally(
    models: dict[str, Any],
) -> None:
    labels = np.array(["_a", "$b^", "<c>"], dtype=object)[np.arange(len(X)) % 3]
    labels[:7] = None
    scores = models["pca"].transform(X)
    ax = bp.plots.scores(models["pca"], X, labels=labels)
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["$b^", "<c>", "_a", "no label"]
    drawn = {points.get_label(): points for points in ax.collections}
    for code, name in enumerate(["$b^", "<c>", "_a"]):
        np.testing.assert_allclose(drawn[name].get_offsets(), scores[labels == name][:, :2])
        colour = to_hex(legend.legend_handles[code].get_color())
        assert colour == COLOURS[code] == to_hex(drawn[name].get_facecolor()[0])
    np.testing.assert_allclose(drawn["no label"].get_offsets(), scores[:7, :2])


def test_of_more_than_ten_classes_the_nine_largest_are_named_and_the_rest_are_others() -> None:
    labels = np.repeat(np.arange(12), np.arange(12, 0, -1))
    ax = bp.plots.scores(rows(len(labels), 2), labels=labels)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*map(str, range(9)), "others (3 classes)"]
    assert sum(len(points.get_offsets()) for points in ax.collections) == len(labels)
    ten = bp.plots.scores(rows(20, 2), labels=np.arange(20) % 10)
    assert [text.get_text() for text in ten.get_legend().get_texts()] == [*map(str, range(10))]


def test_rows_without_scores_are_left_out_and_counted() -> None:
    scores = rows(50, 2)
    scores[[3, 9]] = np.nan
    ax = bp.plots.scores(scores, labels=np.arange(50) % 2)
    assert ax.get_title(loc="left") == "Scores of 50 rows, 2 without scores"
    assert sum(len(points.get_offsets()) for points in ax.collections) == 48


def test_drawn_rows_are_one_of_each_stratum_and_depend_on_the_seed_alone() -> None:
    chosen = drawn_rows(1_000_003)
    assert len(chosen) == 20_000
    edges = np.arange(20_001) * 1_000_003 // 20_000
    assert ((edges[:-1] <= chosen) & (chosen < edges[1:])).all()
    assert not np.array_equal(chosen, drawn_rows(1_000_003, seed=1))
    np.testing.assert_array_equal(drawn_rows(20_000), np.arange(20_000))
    many = np.arange(60_000.0).reshape(-1, 2)
    taken = [drawn_scores(given) for given in (many, da.from_array(many, (999, 2)), da.from_array(many, (30_000, 1)))]
    for one in taken:
        np.testing.assert_array_equal(one.rows, drawn_rows(30_000))
        np.testing.assert_array_equal(one.scores, many[one.rows])
    assert taken[0].title() == "20,000 of 30,000 rows"


def test_a_read_for_a_figure_is_announced_with_its_bytes(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bp.plots.scores(models["pca"], da.from_array(X, (70, 12)))
    assert caplog.text == ""
    monkeypatch.setattr("bigpca.plots.data.SILENT_BYTES", 1000)
    bp.plots.scores(models["pca"], da.from_array(X, (70, 12)))
    assert "the scores of 400 drawn rows take one read of X, 37.5 KiB" in caplog.text


def test_bounds_reach_from_the_lower_to_the_upper_and_the_title_has_the_widest(models: dict[str, Any]) -> None:
    for name, values in (("krylov", models["krylov"].explained_variance_), ("kernel", models["kernel"].eigenvalues_)):
        ax = bp.plots.bounds(models[name])
        low, high = models[name].eigenvalue_bounds_.T
        (bars,) = (one for one in ax.collections if len(one.get_segments()) == len(values))
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        np.testing.assert_allclose(ends[:, 1], np.maximum(high, values))
        np.testing.assert_allclose(ends[:, 0], np.minimum(np.maximum(low, ax.get_ylim()[0]), values))
        assert f"widest bounds {100 * relative_width(values, low, high):.3g} %" in ax.get_title(loc="left")


def test_the_scree_marks_the_first_component_that_reaches_each_level() -> None:
    ratio = 0.7 ** np.arange(30)
    ratio /= ratio.sum() / 0.97
    ax = bp.plots.scree(ratio, levels=(0.5, 0.95, 0.99))
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], 100 * ratio)
    held = np.cumsum(ratio)
    k = reaching(ratio, 0.95)
    assert k is not None
    assert held[k - 1] >= 0.95 > held[k - 2]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [
        "each component",
        "so far",
        f"50 %: {reaching(ratio, 0.5)} components",
        f"95 %: {k} components",
        "99 %: not reached",
    ]
    np.testing.assert_allclose(ax.lines[2].get_xydata(), [[k - 1, 100 * held[k - 1]]])


def test_negative_eigenvalues_are_drawn_on_a_linear_scale() -> None:
    contrast = bp.ContrastivePCA(alpha=3).fit(X, np.arange(len(X)) % 2)
    assert (contrast.eigenvalues_ < 0).any()
    ax = bp.plots.scree(contrast)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), contrast.eigenvalues_)
    assert (ax.get_yscale(), ax.get_ylabel()) == ("linear", "eigenvalue")


def test_maps_of_components_have_north_up_east_right_and_grey_land(models: dict[str, Any]) -> None:
    ax, model = bp.plots.components(models["grid"]), models["grid"]
    field = np.full((3, 12), np.nan)
    field[:, np.arange(12) % 5 != 1] = model.components_
    field = field.reshape(3, 3, 4)[:, ::-1, ::-1]  # latitudes were ascending, longitudes descending
    for image, values in zip(ax.images, field, strict=True):
        shades = np.asarray(image.get_array())
        np.testing.assert_allclose(shades[np.isnan(values)], [to_rgba(ABSENT)] * np.isnan(values).sum())
        large = np.abs(values) > 0.1 * np.nanmax(np.abs(values))
        np.testing.assert_array_equal((shades[..., 0] > shades[..., 2])[large], values[large] < 0)  # orange, violet
    assert "lat 10 to 30 upwards, lon 0 to 9 to the right" in ax.get_title(loc="left").replace("\n", " ")


@pytest.mark.parametrize("labels", [THREE, X[:, 0]], ids=["classes", "values"])
def test_the_name_of_the_labels_is_on_the_legend_or_colour_bar(labels: Any, tmp_path: FilePath) -> None:
    table = tmp_path / "labels.csv"
    pd.DataFrame({"sort": labels}).assign(other=1).to_csv(table, index=False)
    for given in (pd.Series(labels, name="sort"), f"{table}::sort"):
        ax = bp.plots.scores(X, labels=given)
        legend = ax.get_legend()
        shown = ax.figure.axes[1].get_ylabel() if legend is None else legend.get_title().get_text()
        assert shown == "sort"


def test_weights_of_components_are_drawn_beside_the_names_of_their_features(models: dict[str, Any]) -> None:
    ax = bp.plots.components(models["selected"], feature_names=NAMES[:12])
    selected, components = models["selected"].selected_, models["selected"].estimator_.components_
    names = [label.get_text() for label in ax.get_yticklabels()]
    drawn = ax.images[0].get_array()
    by_name = {short(NAMES[feature]): components[:, place] for place, feature in enumerate(selected)}
    assert len(names) >= 4
    for name, weights in zip(names, drawn, strict=True):
        np.testing.assert_allclose(weights, by_name[name])


ERRORS: dict[str, tuple[Callable[[dict[str, Any]], Any], type[Exception], str]] = {
    "sketch": (lambda m: bp.plots.scree(m["sketch"]), ValueError, "has no eigenvalues.*Fit a PCA"),
    "sketch's scores": (lambda m: bp.plots.scores(m["sketch"], X), ValueError, "has no components.*Fit a PCA"),
    "kernel's components": (
        lambda m: bp.plots.components(m["kernel"], (4, 3)),
        ValueError,
        "has no components_.*Draw the scores",
    ),
    "coefficients": (
        lambda m: bp.plots.components(bp.Ridge().fit(X, X[:, 0])),
        ValueError,
        r"a Ridge has no components_: it has coefficients of targets\. Pass these: model\.coef_",
    ),
    "shape": (lambda m: bp.plots.components(m["pca"], (5, 3)), ValueError, "image_shape"),
    "exact": (lambda m: bp.plots.bounds(m["pca"]), ValueError, "a PCA has no eigenvalue_bounds_.*scree"),
    "pair": (
        lambda m: bp.plots.scores(m["pca"], X, components=(0, "pca4")),
        ValueError,
        r"but there are 4. Give numbers from 0 to 3, or names such as 'pca0', each once",
    ),
    **{
        f"components = {given}": (
            lambda m, given=given: bp.plots.scores(m["pca"], X, components=given),
            ValueError,
            rf"components = {re.escape(repr(given))}, but (2 of the 4 are drawn, such as|there are 4. Give numbers)",
        )
        for given in (1, (1,), (1, 2, 3), (2, 2), (1.5, 2), ("pca1", 1))
    },
    "drift of a model": (
        lambda m: bp.plots.drift(m["pca"]),
        TypeError,
        r"result is a PCA\. Pass what .*drift\(model\)",
    ),
    "labels": (lambda m: bp.plots.scores(m["pca"], X, labels=[1, 2]), ValueError, "2 labels for 400 rows"),
    "no rows": (lambda m: bp.plots.scores(m["pca"]), TypeError, "no rows were given with the PCA"),
    "names": (
        lambda m: bp.plots.components(m["pca"], feature_names=["a"]),
        ValueError,
        "1 feature names.* 12 features",
    ),
    "a path": (lambda m: bp.plots.scree("model.zarr"), TypeError, r"a str is not a fitted model.*bigpca.load\(path\)"),
    "matrix": (lambda m: bp.plots.scree(np.eye(2)), ValueError, r"shape \(2, 2\)"),
    "negative": (lambda m: bp.plots.scores(np.arange(3.0)), ValueError, r"scores have shape \(3,\)"),
}


@pytest.mark.parametrize(("draw", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_drawn_is_rejected_with_what_to_do(
    draw: Callable[[dict[str, Any]], Any], error: type[Exception], message: str, models: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        draw(models)


# Machado, Oliveira & Fernandes (2009), at full severity: no, red, green and blue blindness.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.mark.parametrize("matrix", BLINDNESS.values(), ids=BLINDNESS)
def test_colours_of_classes_differ_for_readers_with_any_colour_blindness(matrix: Any) -> None:
    codes = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in COLOURS]) / 255
    light = np.where(codes <= 0.04045, codes / 12.92, ((codes + 0.055) / 1.055) ** 2.4)
    seen = (light @ np.asarray(matrix).T).clip(0, 1)
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    )
    xyz = np.cbrt((seen @ to_xyz.T) / [0.95047, 1.0, 1.08883] + 1e-12)
    lab = np.stack([116 * xyz[:, 1], 500 * (xyz[:, 0] - xyz[:, 1]), 200 * (xyz[:, 1] - xyz[:, 2])], axis=1)
    distances = np.linalg.norm(lab[:, None] - lab, axis=2)[np.triu_indices(len(lab), 1)]
    assert distances.min() > 32  # 2.3 is just noticeable; palettes before had 4.2 and 17
    assert lab[:7, 0].min() > 45 > lab[7:, 0].max()  # figures of at most seven classes need no dark ones


def test_marks_of_classes_that_are_faint_on_dark_paper_have_a_light_edge_in_reports() -> None:
    style = files("bigpca.report").joinpath("page.css").read_text("utf-8")

    def luminance(colour: str) -> float:
        codes = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        return float(
            np.where(codes <= 0.04045, codes / 12.92, ((codes + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        )

    card = luminance(style.split("--card: ")[2][:7])  # of the dark scheme
    faint = {colour for colour in COLOURS if luminance(colour) + 0.05 < 3 * (card + 0.05)}
    assert faint == {colour for colour in COLOURS if f"fill: {colour}" in style}


def test_lazy_scores_that_are_sparse_are_drawn_and_those_that_lack_rows_are_rejected() -> None:
    model = bp.PCA(2).fit(np.random.default_rng(0).standard_normal((60, 5)))
    S = np.asarray(model.transform(np.random.default_rng(1).standard_normal((60, 5))))
    drawn, expected = (bp.plots.scores(model, scores=one).collections[0].get_offsets() for one in (csr_array(S), S))
    np.testing.assert_array_equal(drawn, expected)
    short = da.from_array(S, chunks=(20, 2)).map_blocks(lambda block: block[:-1], chunks=((20, 20, 20), (2,)))
    with pytest.raises(ValueError, match=r"has shape \(57, 2\), but the Dask array declares \(60, 2\)"):
        bp.plots.scores(model, scores=short)
