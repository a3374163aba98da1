"""Whatever is fitted to rows with covariates is fitted to the residuals of a least squares of X on 1 and Z."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.model_selection import cross_val_score

import bigpca as bp
from bigpca.errors import ApproximationWarning
from tests.estimators.test_every_estimator import CASES, CODES, NUMBERS, D, N, X

Array = NDArray[Any]
RNG = np.random.default_rng(5)
WEIGHTS, STRATA = np.arange(N) % 3, RNG.integers(0, 3, N)
CLOCK = 2000 + 20 * np.arange(N) / N
Z = np.column_stack([RNG.standard_normal(N) * 10 + 50, STRATA == 0, RNG.integers(0, 2, N)])
MIXED = X + (Z - Z.mean(axis=0)) @ (RNG.standard_normal((3, D)) * [[0.2], [3], [2]])
NOT_VECTORS = ("PCA of values", "CorrespondenceAnalysis")  # the first is preprocessed, the second takes amounts
NAMES = [name for name in CASES if name not in NOT_VECTORS]
PAIRS = [name for name in NAMES if hasattr(CASES[name].make(), "_side_like")]
FOUND = [name for name in NAMES if name not in PAIRS and name not in ("PCA covariance", "SketchTransformer")]
pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


def residuals(rows: Array, given: Array, weights: Any = None) -> Array:
    """By the singular values of the centred covariates, in NumPy."""
    w = np.ones(len(rows)) if weights is None else np.asarray(weights, float)
    rows, given = (np.asarray(a, float) - w @ np.asarray(a, float) / w.sum() for a in (rows, given))
    unit = given / np.maximum(np.abs(given).max(axis=0), 1e-300)
    root = np.sqrt(w)[:, None]
    return np.asarray(rows - unit @ np.linalg.lstsq(root * unit, root * rows, rcond=1e-12)[0])


def scores_of(model: Any, *rows: Any, **beside: Any) -> Array:
    return np.asarray(model.transform(*rows, **beside), float)


def alike(found: Array, truth: Array, tolerance: float) -> None:
    signs = np.sign((found * truth).sum(axis=0))
    np.testing.assert_allclose(found * signs, truth, atol=tolerance * np.abs(truth).max())


def labels_of(name: str, left: Callable[[Array], Array] | None = None) -> tuple[Any, ...]:
    y = CASES[name].y
    return () if y is None else (left(y) if left is not None and name in PAIRS else y,)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_model_of_the_residuals_on_both_sides(name: str, tmp_path: Path) -> None:
    make, left = CASES[name].make, residuals(MIXED, Z)
    truth = make().fit(left, *labels_of(name, lambda y: residuals(y, Z)))
    model = make().fit(bp.open(MIXED, covariates=Z), *labels_of(name))
    # The likelihood of factors is known to the root of rounding where it is largest.
    tolerance = 1e-5 if "Factor" in name else 1e-9
    # Predictions add what Z alone predicts.
    expected = scores_of(truth, left) + (NUMBERS - residuals(NUMBERS, Z) if name == "Ridge" else 0.0)
    alike(scores_of(model, MIXED, covariates=Z), expected, tolerance)
    lazy = da.from_array(MIXED, chunks=(70, D))
    alike(scores_of(model, lazy[9:80], covariates=Z[9:80]), expected[9:80], tolerance)
    model.save(tmp_path / "m")
    kept = bp.load(tmp_path / "m")
    assert scores_of(kept, MIXED, covariates=Z).tobytes() == scores_of(model, MIXED, covariates=Z).tobytes()
    assert kept.preprocess_ == model.preprocess_
    with pytest.raises(ValueError, match=r"the rows have 0 covariates, but .* was fitted with 3"):
        model.transform(MIXED)
    if name in FOUND:
        planned = make().plan(MIXED, *labels_of(name), covariates=Z)
        assert "one more read finds the effect of 3 covariates" in " ".join(planned.notes)
        assert planned.passes >= make().plan(da.from_array(left), *labels_of(name)).passes + 1


KINDS: dict[str, tuple[Array, Array, dict[str, Any], float]] = {
    "weights": (MIXED, Z, {"sample_weight": WEIGHTS}, 1e-9),
    "one-hot": (MIXED, np.eye(3)[STRATA], {}, 1e-9),
    "collinear": (MIXED, np.column_stack([Z, Z @ [1.0, -2, 3], np.ones(N)]), {}, 1e-9),
    "float32": (MIXED, Z.astype("f4"), {}, 1e-9),
    "a clock in float32": (MIXED + (CLOCK[:, None] - 2010), CLOCK[:, None].astype("f4"), {}, 1e-9),
    "a trend of 1e6": (MIXED + 1e6 * (Z[:, :1] - 50) * np.arange(1, D + 1), Z, {}, 1e-6),
    "short floats far from zero": (
        (MIXED + 1e4 * (Z[:, :1] - 50) * np.arange(1, D + 1) + 1e4).astype("f4"),
        Z.astype("f4"),
        {},
        1e-9,
    ),
    "sparse": (np.where(np.median(MIXED) < MIXED, MIXED, 0.0), Z, {}, 1e-9),
    "a column that Z determines": (np.column_stack([MIXED[:, 1:], Z @ [1.0, 2, -1] * 1e5]), Z, {}, 1e-9),
}
OF_KINDS: dict[str, Callable[[], Any]] = {
    "PCA of sums": lambda: bp.PCA(2, solver="covariance"),
    "ApproximatePCA": lambda: bp.ApproximatePCA(2, bp.sketches.Gaussian(D)),
    "GeneralizedPCA": lambda: bp.GeneralizedPCA(2, metric=np.diag(np.arange(1, D + 1.0))),
    "SupervisedPCA": lambda: bp.SupervisedPCA(2),
    "FisherDiscriminantAnalysis": lambda: bp.FisherDiscriminantAnalysis(2, regularization="pinv"),
    "NystromKernelPCA": lambda: bp.NystromKernelPCA(2, gamma=0.1, kernel="rbf", sampling=np.arange(0, N, 9)),
    "PCA": lambda: bp.PCA(2, solver="krylov", tol=1e-12),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OF_KINDS)
def test_of_every_kind_of_rows_and_covariates(name: str, kind: str) -> None:
    rows, beside, options, tolerance = KINDS[kind]
    options = {} if "weights" in kind and name == "NystromKernelPCA" else options
    left, y = residuals(rows, beside, options.get("sample_weight")), CODES % 3
    left[:, np.abs(left).max(axis=0) < 1e-11 * np.abs(rows).max(axis=0)] = 0.0
    truth = OF_KINDS[name]().fit(left, y, **options)
    model = OF_KINDS[name]().fit(csr_array(rows) if kind == "sparse" else rows, y, covariates=beside, **options)
    alike(scores_of(model, rows, covariates=beside), scores_of(truth, left), tolerance)
    for attribute in ("total_variance_", "explained_variance_"):
        if hasattr(truth, attribute):
            np.testing.assert_allclose(getattr(model, attribute), getattr(truth, attribute), rtol=1e-8)


@pytest.mark.parametrize("name", OF_KINDS)
def test_incomplete_rows_of_either_are_left_out(name: str) -> None:
    holed, other = MIXED.copy(), Z.copy()
    holed[3, 1] = other[7, 1] = np.nan
    kept = np.setdiff1d(np.arange(N), [3, 7])
    make = OF_KINDS[name]
    sampling = {"sampling": np.arange(9, N, 9)} if "Nystrom" in name else {}
    model = make().set_params(nan_policy="omit", **sampling).fit(holed, CODES, covariates=other)
    left = residuals(MIXED[kept], Z[kept])
    sampling = {"sampling": np.searchsorted(kept, np.arange(9, N, 9))} if sampling else {}
    truth = make().set_params(**sampling).fit(left, CODES[kept])
    found = scores_of(model, holed, covariates=other)
    assert np.isnan(found[[3, 7]]).all()
    alike(found[kept], scores_of(truth, left), 1e-9)
    with pytest.raises(bp.errors.NonFiniteError, match=r"beside the array in memory \(3 columns\): row 7"):
        make().fit(MIXED, CODES, covariates=other)


@pytest.mark.parametrize("name", ["ApproximatePCA", "GeneralizedPCA", "FisherDiscriminantAnalysis", "NystromKernelPCA"])
def test_rows_that_are_added_lose_the_effect_that_the_first_fit_found(name: str) -> None:
    make, half = OF_KINDS[name], N // 2
    first, second = slice(half), slice(half, None)
    if name == "NystromKernelPCA":
        make = lambda: bp.NystromKernelPCA(2, gamma=0.1, kernel="rbf", sampling=np.arange(0, half, 9))  # noqa: E731
    model = make().partial_fit(MIXED[first], CODES[first], covariates=Z[first])
    (effect,) = model.preprocess_
    mean = MIXED[first].mean(axis=0)
    left = MIXED - mean - (Z - Z[first].mean(axis=0)) @ effect.coef.T
    np.testing.assert_allclose(left[first], residuals(MIXED[first], Z[first]), atol=1e-10)
    truth = make().partial_fit(left[first], CODES[first]).partial_fit(left[second], CODES[second])
    model.partial_fit(MIXED[second], CODES[second], covariates=Z[second])
    assert model.preprocess_ == (effect,)
    alike(scores_of(model, MIXED, covariates=Z), scores_of(truth, left), 1e-9)
    other = make().fit(MIXED[second] + Z[second, :1], CODES[second], covariates=Z[second])
    if name != "NystromKernelPCA":
        with pytest.raises(ValueError, match=r"models cannot be merged.*What one fit found of covariates"):
            bp.merge(model, other)
        assert bp.merge(model, model).n_samples_ == 2 * N


def test_centre_and_scale_that_are_given_are_those_of_what_is_left() -> None:
    left = residuals(MIXED, Z) + MIXED.mean(axis=0)
    for given in ({"center": np.full(D, 7.5)}, {"scale": np.arange(1, D + 1.0)}):
        model = bp.PCA(2, **given).fit(MIXED, covariates=Z)
        truth = bp.PCA(2, **given).fit(left)
        np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-10)
        alike(scores_of(model, MIXED, covariates=Z), scores_of(truth, left), 1e-9)


def test_methods_of_classes_and_cross_validation_take_the_covariates_of_their_rows() -> None:
    rows, left = bp.open(MIXED, covariates=Z), residuals(MIXED, Z)
    model = bp.FisherDiscriminantAnalysis(2).fit(rows, CODES)
    truth = bp.FisherDiscriminantAnalysis(2).fit(left, CODES)
    np.testing.assert_array_equal(model.predict(rows), truth.predict(left))
    np.testing.assert_allclose(model.predict_proba(rows), truth.predict_proba(left), atol=1e-9)
    assert model.score(rows, CODES) == truth.score(left, CODES)
    np.testing.assert_allclose(model.mean_, MIXED.mean(axis=0), rtol=1e-12)  # of rows at the mean of the covariates
    found = cross_val_score(bp.FisherDiscriminantAnalysis(2), rows, CODES, cv=2)
    assert ((found >= 0) & (found <= 1)).all()
    density = bp.PCA(2).fit(rows)
    assert density.score(rows) == pytest.approx(bp.PCA(2).fit(left).score(left), rel=1e-9)
    rotated = bp.RotatedPCA.of(density)
    alike(scores_of(rotated, rows), scores_of(bp.RotatedPCA.of(bp.PCA(2).fit(left)), left), 1e-9)


def test_so_many_rows_count_less_as_covariates_are_independent() -> None:
    beside = np.column_stack([RNG.standard_normal((40, 20)), np.ones(40)])
    noise = RNG.standard_normal((40, 3)) + beside @ RNG.standard_normal((21, 3))
    limits = []
    for solver in ("covariance", "krylov"):
        model = bp.PCA(3, solver=solver).fit(noise, covariates=beside)
        limits.append(model.t2_limit(0.95, limit="theory"))
    assert limits[0] == pytest.approx(limits[1], rel=1e-12)
    plain = bp.PCA(3).fit(RNG.standard_normal((20, 3))).t2_limit(0.95, limit="theory")
    assert limits[0] == pytest.approx(plain * 39 / 19, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bp.CorrespondenceAnalysis(1).fit(np.abs(X), covariates=Z), TypeError, "takes amounts of at least 0"),
        (lambda: bp.KernelPCA(1, kernel="precomputed").fit(X @ X.T, covariates=Z), ValueError, "rows that are vectors"),
        (lambda: bp.ApproximatePCA(1, nan_policy="mean").fit(X, covariates=Z), ValueError, "'mean' cannot be used"),
        (lambda: bp.KernelPCA(1).fit(X, covariates=np.eye(N)), ValueError, "239 covariates determine all columns"),
        (lambda: bp.ApproximatePCA(1).fit(bp.from_batches([X]), covariates=Z), TypeError, "are read side by side"),
        (lambda: bp.NystromKernelPCA(1, sampling=X[:9]).plan(bp.open(X, covariates=Z)), ValueError, "9 rows, but not"),
    ],
)  # fmt: skip
def test_what_has_no_residuals_says_so(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_map_of_rows_with_covariates_is_that_of_what_these_leave() -> None:
    rows, left, y = bp.open(MIXED, covariates=Z), residuals(MIXED, Z), CODES % 3
    found, truth = (bp.roweis_map(one, y, [0.0, 0.5]) for one in (rows, left))
    np.testing.assert_allclose(found.models[1][1].eigenvalues_, truth.models[1][1].eigenvalues_, rtol=1e-9)
    np.testing.assert_array_equal(found.errors(rows, y), truth.errors(left, y))


def test_dependent_covariates_are_reported_once() -> None:
    with pytest.warns(ApproximationWarning, match="of 2 covariates, 1 are linearly independent") as found:
        bp.NystromKernelPCA(2, n_landmarks=20, random_state=0).fit(MIXED, covariates=Z[:, [0, 0]])
    assert len([one for one in found if "covariates" in str(one.message)]) == 1


def test_a_large_mean_costs_what_covariates_leave_its_rounding_and_no_more() -> None:
    rng, mean = np.random.default_rng(0), 1e14
    z, noise = rng.standard_normal((400, 2)), rng.standard_normal((400, 4))
    rows = mean + noise + z @ rng.standard_normal((2, 4))  # exact to 2^-6
    known = np.column_stack([np.ones(400), z])
    left = rows - mean - known @ np.linalg.lstsq(known, rows - mean, rcond=None)[0]
    given = bp.open(rows, covariates=z)
    for solver in ("covariance", "krylov"):
        with warnings.catch_warnings(action="ignore"):  # of digits that the rows do not have
            scores = np.asarray(bp.PCA(4, solver=solver, tol=1e-6).fit(given).transform(given))
        np.testing.assert_allclose(np.linalg.norm(scores, axis=1), np.linalg.norm(left, axis=1), rtol=0, atol=2.0**-5)
