"""Every number that figures, reports, ``info`` and exports tell of a model is one of its public attributes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import pytest

import bigpca as bp
from bigpca.cli.stores import components_table, facts
from bigpca.cli.stores import describe as record_of
from bigpca.data.provenance import are_scores
from bigpca.plots.data import shares_or_none, whole_of
from bigpca.plots.style import percents
from bigpca.report import describe
from bigpca.report.describing import lights_of
from tests.cli.running import run
from tests.estimators.test_every_estimator import CASES, CLASSES, NEW, NUMBERS, READING, X, fitted, known

pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
FLAT = np.random.default_rng(0).standard_normal((900, 150))


def with_error(model: Any, error: float) -> Any:
    model._found = replace(model._found, solve_error_=error)
    return model


FEW = {"kernel": "rbf", "gamma": 1.0, "n_landmarks": 12}
OTHERS = {
    "RotatedPCA of an approximation": lambda: bp.RotatedPCA(estimator=bp.PCA(2, solver="krylov")).fit(X),
    "ScoredPCA of a rotation": lambda: bp.ScoredPCA(
        n_features_to_select=4, estimator=bp.RotatedPCA(2)
    ).fit(X, CLASSES),
    "ApproximatePCA tutorial": lambda: bp.ApproximatePCA(
        2, bp.sketches.Gaussian(3), approximation="tutorial"
    ).fit(X),
    "NystromKernelPCA landmarks": lambda: bp.NystromKernelPCA(2, components_from="landmarks", **FEW).fit(X),
    "FactorAnalysis stopped": lambda: bp.FactorAnalysis(2, max_iter=2).fit(X),
    "PCA stopped": lambda: bp.PCA(2, solver="krylov", tol=1e-14, max_passes=2).fit(FLAT),
    "KernelSupervisedPCA of all": lambda: bp.KernelSupervisedPCA(2, gamma=1.0).fit(X, CLASSES),
    "SupervisedPCA of many labels": lambda: bp.SupervisedPCA(
        2, label_kernel="rbf", label_gamma=1e5
    ).fit(FLAT[:, :3], FLAT[:, 0]),
    "Ridge of a penalty for each": lambda: bp.Ridge([0.1, 10.0], alpha_per_target=True).fit(X, X[:, :2]),
    "CCA of rounded sums": lambda: with_error(bp.CCA(2).fit(X, NUMBERS), 1e-4),
}  # fmt: skip
# What is said of the error of a fit, where it is not the iteration, the bounds or the rounding that all fits share.
ERRORS = {
    "NystromKernelPCA landmarks": "by 12 landmarks for 240 rows, without bounds",
    "KernelSupervisedPCA": "by 25 landmarks for 240 rows, without bounds",
    "KernelRoweisDiscriminantAnalysis": "by 25 landmarks for 240 rows, without bounds",
    "SupervisedPCA of many labels": "by label features that miss",
    "SupervisedRandomProjection": "by 20 random features of the labels",
    "CCA of rounded sums": "with an error of about 0.0001",
}
every = pytest.mark.parametrize("name", [*CASES, *OTHERS])
# Names in the record of ``info`` that are not those of attributes.
CERTIFIED = {"reads": "n_passes_", "confidence": "bounds_confidence_"}
TEXTS = {"estimator", "rotated", "parameters", "certificate", "kernel", "solver", "n_features_selected"}


@cache
def model_of(name: str) -> Any:
    return known(name) if name in CASES else OTHERS[name]()


def new_rows(model: Any) -> Any:
    return NEW if model.n_features_in_ == X.shape[1] else FLAT[:37, : model.n_features_in_]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def of_components(model: Any) -> Any:
    return model.estimator_ if isinstance(model, bp.ScoredPCA) else model


def shares(model: Any) -> Any:
    held = of_components(model)
    names = ("explained_variance_ratio_", "squared_covariance_fraction_", "explained_inertia_ratio_")
    return next((getattr(held, name) for name in names if hasattr(held, name)), None)


def values(model: Any) -> Any:
    """The numbers of the components: those of ``summary``, or R^2 of the penalty that was taken."""
    if isinstance(model, bp.Ridge):
        return model.cv_scores_[model.cv_scores_.mean(axis=1).argmax()]
    names = ("eigenvalues_", "explained_variance_", "correlations_", "singular_values_", "r2_")
    return getattr(held := of_components(model), next(one for one in names if hasattr(held, one)))


def components(model: Any) -> Any:
    """Weights of all features, 0 for those that are not selected; None for functions of the rows."""
    held = of_components(model)
    axes = getattr(held, "components_", getattr(held, "x_weights_", np.zeros((0, 0))).T)
    if isinstance(model, bp.ScoredPCA) and axes.size:
        whole = np.zeros((len(axes), model.n_features_in_))
        whole[:, model.selected_] = axes
        return whole
    return axes if axes.size else None


@every
def test_figures_show_the_attributes_of_the_model(name: str) -> None:
    model = model_of(name)
    if isinstance(model, bp.SketchTransformer):
        return
    ratio, found = shares(model), values(model)
    if ratio is not None:
        bars, line = (ax := bp.plots.scree(model)).patches, ax.lines[0]
        np.testing.assert_allclose([bar.get_height() for bar in bars], 100 * ratio)
        np.testing.assert_allclose(line.get_ydata(), 100 * np.cumsum(ratio))
    else:
        line = bp.plots.scree(model).lines[0]
        np.testing.assert_allclose(line.get_ydata(), found if found.min() < -1e-9 else found[found > 0])
    limits = getattr(of_components(model), "eigenvalue_bounds_", None)
    if limits is None:
        with pytest.raises(ValueError, match="eigenvalue_bounds_"):
            bp.plots.bounds(model)
    else:
        (bars,) = bp.plots.bounds(model).collections
        np.testing.assert_allclose([bar[1, 1] for bar in bars.get_segments()], limits[:, 1])
    axes = components(model)
    scores = model.transform(new_rows(model))
    ax = bp.plots.scores(model, rows=new_rows(model))
    np.testing.assert_allclose(ax.collections[0].get_offsets(), scores[:, :2])
    if axes is not None:
        (image,) = (heat := bp.plots.components(model)).images
        shown = [int(label.get_text().split()[-1]) for label in heat.get_yticklabels()]
        np.testing.assert_allclose(image.get_array(), axes[:, shown].T)
    names = model.get_feature_names_out()[:2]
    shares_shown = [""] * 2 if ratio is None else [f" ({one})" for one in percents(ratio[:2].tolist())]
    assert [ax.get_xlabel(), ax.get_ylabel()] == [one + share for one, share in zip(names, shares_shown, strict=True)]


@every
@pytest.mark.usefixtures("undrawn")
def test_reports_show_the_attributes_of_the_model(name: str) -> None:
    model = model_of(name)
    if isinstance(model, bp.SketchTransformer):
        return
    held, ratio, scores = of_components(model), shares(model), model.transform(new_rows(model))
    found = describe(model, scores=scores)
    table = {header: list(column) for header, column in zip(
        found.components.header, zip(*found.components.rows, strict=True), strict=True
    )}  # fmt: skip
    assert table.pop("component") == model.get_feature_names_out().tolist()
    summary = model.summary()
    for column in summary.columns.drop(["share", "cumulative", "lower", "upper"], errors="ignore"):
        np.testing.assert_array_equal(table.pop(column.replace("_", " ")), summary[column])
    if ratio is not None:
        np.testing.assert_allclose(table.pop("% so far"), 100 * np.cumsum(ratio))
        (whole,) = {one for one in table if one.startswith("% of ")}
        np.testing.assert_allclose(table.pop(whole), 100 * ratio)
    if hasattr(held, "eigenvalue_bounds_"):
        limits = np.array([table.pop("lower bound"), table.pop("upper bound")]).T
        np.testing.assert_allclose(limits, held.eigenvalue_bounds_)
    assert not table
    axes = components(model)
    for component, _, feature, weight in () if found.features is None else found.features.rows:
        i, j = model.get_feature_names_out().tolist().index(component), int(str(feature).split()[-1])
        assert weight == axes[i, j]
    for i, one in enumerate(found.extremes):
        assert [row.score for row in one.lowest] == [scores[row.row, i] for row in one.lowest]
        assert one.highest[0].score == scores[:, i].max()
    lights = {light.name: light for light in found.lights}
    n, omitted = held.n_samples_, held.n_omitted_
    assert lights["rows omitted"].text.startswith(f"{omitted:,} of {n + omitted:,}")
    converged = getattr(held, "converged_", None)
    assert lights["converged"].verdict == ("fail" if converged is False else "pass")
    bounded, said = hasattr(held, "bounds_confidence_"), ERRORS.get(name, "")
    assert ("with certified bounds" in found.summary) == bounded
    assert ("not converged" in found.summary) == (converged is False)
    assert ("converged to a tolerance of" in found.summary) == (converged is True and not bounded)
    assert ("exact to rounding" in found.summary) == (not bounded and converged is None and not said)
    assert said in found.summary
    assert ("none needed" in lights["bounds"].text) == ("exact to rounding" in found.summary)
    assert ("exact to rounding" in lights["converged"].text) == ("exact to rounding" in found.summary)
    labelled = "labels" in type(model)._traits.accepts
    assert ("labels" in found.summary) == labelled
    call = model.provenance_.call
    assert (".fit(X, y" in call, ".fit(X, Y" in call) == (labelled, hasattr(held, "n_targets_")), call
    certified = 100 * np.asarray(getattr(held, "captured_variance_bounds_", (0, np.inf)))
    said_shares = re.findall(r"(?:([\d.]+) % to )?([\d.]+) % of the (?!trace)", found.summary)
    assert bool(said_shares) == (ratio is not None)
    for low, share in said_shares:
        if low:  # the model's own shares are outside of their bounds
            assert [float(low), float(share)] == pytest.approx(certified, rel=5e-3)
            assert not certified[0] <= 100 * ratio.sum() <= certified[1]
        else:
            assert float(share) == pytest.approx(100 * ratio.sum(), rel=5e-3)
            assert certified[0] * (1 - 1e-9) <= 100 * ratio.sum() <= certified[1] * (1 + 1e-9)
    assert ("of the selected features" in found.summary) == (isinstance(model, bp.ScoredPCA))


@every
def test_info_shows_the_attributes_of_the_model(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.save(tmp_path / "m.zarr")
    record, held = record_of(bp.load(tmp_path / "m.zarr")), of_components(model)
    assert record["estimator"] == type(model).__name__
    assert record.get("solver", getattr(held, "solver_", None)) == getattr(held, "solver_", None)
    assert record.pop("n_features_in") == model.n_features_in_
    for key, value in {**record, **(record.get("certificate") or {})}.items():
        if key in TEXTS or value is None:
            continue
        if key == "captured":
            expected = shares_or_none(model).sum()
        elif key == "captured_of":  # as reports say
            assert value == whole_of(model)
            continue
        elif key == "r2":
            expected = values(model)
        elif key == "landmarks":
            expected = len(held.landmark_indices_)
        elif key == "converged":
            expected = held.converged_
        else:
            expected = getattr(held, CERTIFIED.get(key, f"{key}_"))
        np.testing.assert_allclose(value, expected, rtol=1e-12, err_msg=key)
    lights = {light.name: light.text for light in lights_of(model, None)}
    told = facts(model, record)
    assert [told[one] for one in ("converged", "bounds")] == [lights[one] for one in ("converged", "bounds")]
    table, summary = components_table(model), model.summary()
    assert (table == "") == isinstance(model, bp.SketchTransformer)
    if table:
        head, _, *lines = table.splitlines()
        assert head.split() == summary.columns.tolist()
        assert [line.split()[0] for line in lines] == model.get_feature_names_out().tolist()
        found = [[float(one) for one in line.split()[1:]] for line in lines]
        np.testing.assert_allclose(found, summary, rtol=1e-5)


@every
def test_exports_are_the_function_of_the_model(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    if not hasattr(model, "linear_map"):
        return
    new = new_rows(model)
    expected, rows = model.transform(new), new.astype(np.float32)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(model.to_sklearn().transform(new), expected, atol=1e-9 * largest)
    if not model._preprocessors():
        A, b = model.linear_map()
        np.testing.assert_allclose(new @ A.T + b, expected, atol=1e-9 * largest)
        pytest.importorskip("faiss")
        np.testing.assert_allclose(model.to_faiss().apply(rows), expected, atol=2e-4 * largest)
        model.save(tmp_path / "m.zarr")
        assert run("export", tmp_path / "m.zarr", "--out", tmp_path / "m.npz").exit_code == 0
        with np.load(tmp_path / "m.npz") as stored:
            np.testing.assert_array_equal(stored["A"], A)
            np.testing.assert_array_equal(stored["b"], b)
    np.testing.assert_allclose(of_onnx(model, rows, tmp_path), expected, atol=2e-4 * largest)


@every
def test_torch_layers_are_the_function_of_the_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    model = model_of(name)
    if hasattr(model, "linear_map") and not model._preprocessors():
        new = new_rows(model)
        expected = model.transform(new)
        with torch.no_grad():
            found = model.to_torch()(torch.from_numpy(new.astype(np.float32))).numpy()
        np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@every
def test_datasets_hold_the_attributes_of_the_model(name: str) -> None:
    model = model_of(name)
    if not hasattr(model, "to_xarray"):
        return
    found = model.to_xarray()
    for side, dataset in zip(("x_", "y_"), found, strict=True) if isinstance(found, tuple) else [("", found)]:
        assert len(dataset.data_vars) > 1
        for key, variable in dataset.data_vars.items():
            attributes = (getattr(model, f"{one}{key}_", None) for one in (side, ""))
            expected = np.asarray(next(one for one in attributes if one is not None))
            np.testing.assert_array_equal(variable, expected.T if side and expected.ndim == 2 else expected, key)


def of_onnx(model: Any, rows: Any, folder: Path) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    model.to_onnx(folder / "m.onnx", overwrite=True)
    return runtime.InferenceSession(folder / "m.onnx").run(None, {"rows": rows.astype(np.float32)})[0]


LINEAR = [name for name in CASES if hasattr(CASES[name].make(), "linear_map") and name != "PCA dot"]


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("code", [None, -9999.0])
def test_exports_know_missing_values_or_reject_them(name: str, code: float | None, tmp_path: Path) -> None:
    """A row with a missing value or an infinite one has scores of NaN."""
    case, holed, new = CASES[name], X.copy(), NEW.copy()
    for rows in (holed, new):
        rows[::7, 3] = np.nan if code is None else code
    model = case.make().set_params(nan_policy="omit")
    if isinstance(model, bp.ScoredPCA):
        model.set_params(n_features_to_select=6, estimator=bp.PCA(2, nan_policy="omit"))
    model.fit(*(one for one in (bp.open(holed, missing_value=code), case.y) if one is not None))
    model.save(tmp_path / "m.zarr")
    expected = model.transform(new)
    assert np.isnan(expected[::7]).all()
    for one in (model, bp.load(tmp_path / "m.zarr")):
        np.testing.assert_allclose(of_onnx(one, new, tmp_path), expected, atol=2e-4 * np.nanmax(np.abs(expected)))
        with pytest.raises(ValueError, match="NaN"):
            one.to_sklearn().transform(new)
        known = np.isfinite(expected).all(axis=1)
        np.testing.assert_allclose(one.to_sklearn().transform(new[known]), expected[known], rtol=1e-6, atol=1e-9)
        if code is not None and not model._preprocessors():
            for export in (one.linear_map, one.to_faiss):
                with pytest.raises(ValueError, match="missing_value = -9999 stands for missing values"):
                    export()
        elif not model._preprocessors():
            A, b = one.linear_map()
            np.testing.assert_allclose(new @ A.T + b, expected, rtol=1e-6, atol=1e-9)
    new[0, 0] = np.inf
    assert np.isnan(of_onnx(model, new, tmp_path)[0]).all()


@pytest.mark.parametrize("name", READING)
def test_scores_are_recognised_by_the_model_that_made_them_and_by_no_other(name: str, tmp_path: Path) -> None:
    model, y = known(name), CASES[name].y
    scores = model.transform(da.from_array(NEW, (10, -1)))
    model.save(tmp_path / "model")
    for same in (bp.load(tmp_path / "model"), fitted(name)):
        assert are_scores(same, scores, scores)
    other = CASES[name].make().fit(X[:160], *(() if y is None else (y[:160],)))
    with pytest.raises(ValueError, match="made by another model"):
        are_scores(other, scores, scores)
