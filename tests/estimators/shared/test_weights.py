"""Weights of rows: integers equal repeated rows, 0 equals absence, and fits that cannot use weights reject them."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

import bigpca as bp
from bigpca.errors import NonFiniteError

RNG = np.random.default_rng(0)
N, D = 90, 8
CLASSES = RNG.integers(0, 3, N)
X = RNG.normal(size=(N, D)) * np.linspace(3, 1, D) + 5 + CLASSES[:, None] * RNG.normal(size=D)
WEIGHTS = RNG.integers(0, 4, N)
ABSENT = WEIGHTS == 0
HOLED = np.where(ABSENT[:, None], np.nan, X)  # rows of weight 0 may hold anything
NAMES = np.where(ABSENT, "absent", CLASSES.astype(str))
NUMBERS = np.where(ABSENT, np.nan, X @ RNG.normal(size=D) + RNG.normal(size=N))
LANDMARKS = X[~ABSENT][:10]
WIDE = RNG.normal(size=(30, 60)) + np.linspace(0, 9, 60)
WIDE_HOLED = np.where(ABSENT[:30, None], np.nan, WIDE)

FITS: dict[str, tuple[Callable[[], Any], Any]] = {
    "covariance": (lambda: bp.PCA(4, solver="covariance"), None),
    "covariance, scaled, about zero": (lambda: bp.PCA(4, solver="covariance", scale=True, center=False), None),
    "dot": (lambda: bp.PCA(4, solver="dot"), None),
    "dot, scaled, about zero": (lambda: bp.PCA(4, solver="dot", scale=True, center=False), None),
    "dot, preprocessed": (lambda: bp.PCA(4, solver="dot", preprocess=bp.preprocessing.L2()), None),
    "krylov": (lambda: bp.PCA(2, solver="krylov", scale=True, tol=1e-9), None),
    "krylov about zero": (lambda: bp.PCA(2, solver="krylov", center=False, tol=1e-9), None),
    "share": (lambda: bp.PCA(0.8), None),
    "mle": (lambda: bp.PCA("mle"), None),
    "rotated": (lambda: bp.RotatedPCA(3), None),
    "nystrom": (lambda: bp.ApproximatePCA(3), None),
    "tutorial": (lambda: bp.ApproximatePCA(3, approximation="tutorial", scale=True), None),
    "ritz": (lambda: bp.ApproximatePCA(3, approximation="ritz", center=False), None),
    "landmarks": (lambda: bp.NystromKernelPCA(3, kernel="rbf", sampling=LANDMARKS), None),
    "supervised": (lambda: bp.SupervisedPCA(), NAMES),
    "supervised by numbers": (lambda: bp.SupervisedPCA(missing_labels="raise"), NUMBERS),
    "supervised by a kernel of numbers": (lambda: bp.SupervisedPCA(2, label_kernel="rbf"), NUMBERS),
    "supervised by random features": (lambda: bp.SupervisedRandomProjection(2, n_features=20), NUMBERS),
    "fisher": (lambda: bp.FisherDiscriminantAnalysis(), NAMES),
    "roweis": (lambda: bp.RoweisDiscriminantAnalysis(2, r1=0.3, r2=0.7, normalize=True), NAMES),
    "kernel supervised": (lambda: bp.KernelSupervisedPCA(kernel="rbf", sampling=LANDMARKS), NAMES),
    "contrasts": (lambda: bp.ContrastivePCA(2, alpha=0.5, background="1"), NAMES),
    "metric": (lambda: bp.GeneralizedPCA(3, metric=np.diag(np.arange(1.0, D + 1))), None),
    "canonical": (lambda: bp.CCA(1), NUMBERS),
    "covariances of sides": (lambda: bp.PLSSVD(1), NUMBERS),
    "partial least squares": (lambda: bp.PLSRegression(2), NUMBERS),
    "ridge": (lambda: bp.Ridge(0.5), NUMBERS),
}  # fmt: skip
every_fit = pytest.mark.parametrize("name", FITS)
pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
OF_WEIGHTS = {"sum_weights_", "n_effective_", "n_samples_"}
OF_ITERATIONS = {"residuals_", "subspace_error_bounds_", "n_passes_"}  # rounding, once they converged


OF_A_SPECTRUM = {"shrinkage_factors_"}  # other solvers know more or fewer of the eigenvalues


def assert_alike(model: Any, truth: Any, *, rtol: float = 1e-8) -> None:
    """Compare every fitted array and number, except those that count distinct rows."""
    left_out = OF_WEIGHTS | OF_ITERATIONS | (OF_A_SPECTRUM if model.solver_ != truth.solver_ else set())
    truth.n_components_  # noqa: B018  (solves what waits)
    model.n_components_  # noqa: B018
    compared = 0
    for name in dir(truth):
        expected = getattr(truth, name) if name[-1] == "_" != name[0] else None
        if expected is not None and name not in left_out and np.asarray(expected).dtype.kind == "f":
            found = getattr(model, name)
            scale = max(float(np.abs(expected).max(initial=0)), 1e-300)
            scale = 1.0 if name == "missed_label_trace_" else scale  # a share that is 0 but for rounding
            np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * scale, err_msg=name)
            compared += 1
    assert compared >= 4
    assert model.n_components_ == truth.n_components_


def repeated(y: Any, weights: Any = WEIGHTS) -> tuple[Any, ...]:
    return (np.repeat(HOLED, weights, axis=0), *(() if y is None else (np.repeat(y, weights),)))


@every_fit
def test_integer_weights_equal_repeated_rows_and_0_equals_absence(name: str) -> None:
    make, y = FITS[name]
    lazy = da.from_array(HOLED, chunks=(31, D)) + 0
    model = make().fit(lazy, y, sample_weight=WEIGHTS)
    assert_alike(model, make().fit(*repeated(y)))
    assert model.n_samples_ == np.count_nonzero(WEIGHTS)
    assert model.sum_weights_ == WEIGHTS.sum()
    assert model.n_effective_ == pytest.approx(WEIGHTS.sum() ** 2 / (WEIGHTS**2).sum())
    plain = make().fit(*repeated(y))
    assert plain.sum_weights_ == plain.n_effective_ == plain.n_samples_
    if hasattr(plain, "mahalanobis"):
        np.testing.assert_allclose(model.mahalanobis(X), plain.mahalanobis(X), rtol=1e-5)
    if hasattr(plain, "t2_limit") and plain.center:
        assert model.t2_limit(limit="theory") == pytest.approx(plain.t2_limit(limit="theory"), rel=1e-12)


@pytest.mark.parametrize("solver", ["dot", "krylov"])
@pytest.mark.parametrize("scale", [False, True])
def test_stores_chunked_in_columns_are_weighted_alike(tmp_path: Path, solver: str, scale: bool) -> None:
    store = zarr.open_array(tmp_path / "x.zarr", mode="w", shape=WIDE.shape, chunks=(30, 25), dtype="f8")
    store[:] = WIDE_HOLED
    np.save(tmp_path / "w.npy", WEIGHTS[:30])
    model = bp.PCA(3, solver=solver, scale=scale, tol=1e-9)
    model.fit(tmp_path / "x.zarr", sample_weight=tmp_path / "w.npy")
    truth = bp.PCA(3, solver="covariance", scale=scale).fit(np.repeat(WIDE, WEIGHTS[:30], axis=0))
    assert_alike(model, truth)


@pytest.mark.parametrize(
    "name",
    ["covariance", "nystrom", "landmarks", "supervised", "fisher", "kernel supervised", "contrasts", "metric",
     "canonical", "covariances of sides", "partial least squares", "ridge"],
)  # fmt: skip
def test_added_rows_have_weights_and_a_saved_model_keeps_their_sums(tmp_path: Path, name: str) -> None:
    make, y = FITS[name]
    grown = make()
    for part in (slice(0, 50), slice(50, N)):
        own = () if y is None else (y[part],)
        grown.partial_fit(HOLED[part], *own, sample_weight=WEIGHTS[part])
    truth = make().fit(*repeated(y))
    assert_alike(grown, truth)
    grown.save(tmp_path / "model.zarr")
    loaded = bp.load(tmp_path / "model.zarr")
    assert_alike(loaded, truth)
    assert (loaded.sum_weights_, loaded.n_samples_) == (WEIGHTS.sum(), np.count_nonzero(WEIGHTS))
    there = () if y is None else (y[~ABSENT],)
    loaded.partial_fit(X[~ABSENT], *there)  # without weights: once each
    assert_alike(loaded, make().fit(*repeated(y, WEIGHTS + ~ABSENT)))


@pytest.mark.parametrize("name", ["covariance", "dot", "krylov", "nystrom"])
def test_the_size_of_weights_does_not_decide_which_columns_are_constant(name: str) -> None:
    solver = {"solver": name} if name != "nystrom" else {}
    make = (bp.PCA if solver else bp.ApproximatePCA)(2, scale=True, **solver)
    huge = make.fit(X, sample_weight=WEIGHTS * 1e30)
    scale = np.sqrt(np.cov(X.T, fweights=WEIGHTS, bias=True).diagonal())
    np.testing.assert_allclose(huge.scale_, scale, rtol=1e-10)
    assert bp.PCA("mle").fit(X, sample_weight=WEIGHTS * 1e30).n_components_ == D - 1  # so many rows tell all apart
    with pytest.raises(ValueError, match="exceeds 1e"):
        bp.PCA(2).partial_fit(X, sample_weight=np.full(N, 1e150))


def test_merged_models_add_their_weights() -> None:
    parts = [bp.PCA(3).fit(X[own], sample_weight=WEIGHTS[own]) for own in (slice(0, 40), slice(40, N))]
    assert_alike(bp.merge(*parts), bp.PCA(3).fit(*repeated(None)))


def test_reliability_weights_give_their_unbiased_covariance_in_any_unit() -> None:
    weights = RNG.random(N)
    covariance = np.cov(X.T, aweights=weights)
    for unit in (1.0, 1e-200, 1e200):
        model = bp.PCA(solver="covariance").fit(X, sample_weight=bp.data.reliability(weights * unit))
        np.testing.assert_allclose(model.get_covariance(), covariance, rtol=1e-10, atol=1e-12)
        assert model.sum_weights_ == pytest.approx(model.n_effective_)
        assert model.n_effective_ == pytest.approx(weights.sum() ** 2 / (weights @ weights))


SHARES = ~ABSENT / np.count_nonzero(~ABSENT)


@pytest.mark.parametrize("name", [name for name in FITS if name != "contrasts"])  # where each kind has a sum of its own
def test_weights_that_are_shares_are_rejected_or_named_by_a_warning(name: str) -> None:
    make, y = FITS[name]
    c = 3 if name.startswith(("fisher", "roweis")) else 1  # subtracted from their sum
    least = rf"at least {c + 1} is required: .* minus {c}\. .* pass sample_weight=bp\.data\.reliability"
    with pytest.raises(ValueError, match=least):
        make().fit(da.from_array(X).map_blocks(_never, dtype="f8"), y, sample_weight=(c + 0.9) * SHARES)
    for weights, warned in ((c + 1) * SHARES, True), (40 * SHARES, False), (bp.data.reliability(SHARES), False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make().fit(X, y, sample_weight=weights)
        assert sum("if these are not counts" in str(one.message) for one in caught) == warned
    if not any(word in name for word in ("dot", "kernel of numbers", "random features")):  # which omit no rows
        first = int(np.flatnonzero(~ABSENT)[0])
        rows = np.where(np.arange(N)[:, None] == first, np.nan, X)
        heavy = np.where(np.arange(N) == first, 9, (c + 0.9) * SHARES)
        with pytest.raises(ValueError, match=f"at least {c + 1} is required"):  # at the solve: the rest is omitted
            make().set_params(nan_policy="omit").fit(rows, y, sample_weight=heavy)


@pytest.mark.parametrize("make", [bp.PCA, bp.ApproximatePCA])
def test_a_first_batch_may_weigh_less_than_a_solve_requires(make: Any) -> None:
    grown = make(3).partial_fit(X[:40], sample_weight=SHARES[:40])
    with pytest.raises(ValueError, match="a sum of at least 2 is required"):
        grown.explained_variance_  # noqa: B018
    weights = np.concatenate([SHARES[:40], WEIGHTS[40:]])
    whole = make(3).fit(X, sample_weight=weights)
    assert_alike(grown.partial_fit(X[40:], sample_weight=WEIGHTS[40:]), whole)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "negative": (-WEIGHTS, ValueError, "missing, negative or not finite"),
    "nan": (WEIGHTS * np.nan, ValueError, "90 of 90 weights are missing"),
    "none": ([None] + [1.0] * (N - 1), ValueError, "1 of 90 weights are missing, .*: row 0"),
    "too few": (WEIGHTS[:5], ValueError, "there are 5 weights, but X has 90 rows. Give one weight per row.$"),
    "one too few": (WEIGHTS[:-1], ValueError, "89 weights, but X has 90 rows. Give one weight per row.$"),
    "one number": (2.0, ValueError, "sample_weight = 2.0 is one number. Give one weight for each row"),
    "two columns": (np.ones((N, 2)), ValueError, "90 weights in 2 columns for 90 rows"),
    "text": (["1"] * (N - 1) + ["a"], TypeError, "not numbers, such as 'a' of row 89. Give one number per row"),
    "all zero": (np.zeros(N), ValueError, "all weights are zero, so no row is used"),
    "sum 1": (np.full(N, 1 / N), ValueError, r"add up to 1, but weights count rows, .*bp\.data\.reliability"),
    "squares that are 0": (np.full(N, 1e-200), ValueError, r"a sum of at least 2 is required.*bp\.data\.reliability"),
    "sum above 1 by rounding": (
        np.full(N, (1 + 1e-14) / N),
        ValueError,
        r"add up to 1, .* a sum of at least 2 is required",
    ),
    "one row has all": (np.where(np.arange(N) == 3, 1, 0.001), ValueError, "worth 1.19 of equal .* Give more rows of"),
    "sum of squares": (
        np.full(N, 1e149),
        ValueError,
        r"add up to 9e\+150, which exceeds 1e\+150, .*bp\.data\.reliability",
    ),
    "beyond float64": (np.full(N, 1e308), ValueError, "add up to inf, which exceeds 1e"),
    "one row": (np.where(np.arange(N) == 3, 9, 0), ValueError, "1 sample"),
}


@pytest.mark.parametrize("case", BAD)
def test_weights_that_are_none_are_rejected_before_the_read(case: str) -> None:
    weights, error, message = BAD[case]
    rows = da.from_array(X).map_blocks(_never, dtype="f8")
    for call in (bp.PCA(1).fit, bp.PCA(1).plan):
        with pytest.raises(error, match=message):
            call(rows, sample_weight=weights)
    if "zero" in case:
        with pytest.raises(ValueError, match="all weights are zero"):
            bp.data.reliability(weights)
        with pytest.raises(ValueError, match="there are no weights"):
            bp.data.reliability(weights[:0])


def _never(block: Any) -> Any:
    raise AssertionError("rows were read")


MATRIX = "a kernel matrix of all rows is centred with every row counted once"


@pytest.mark.parametrize(
    ("model", "which", "because"),
    [
        (bp.KernelPCA(2), "KernelPCA", MATRIX),
        (bp.ApproximateKernelPCA(2, kernel="rbf"), "ApproximateKernelPCA", MATRIX),
        (bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=9), "sampling='rpcholesky'", "draws landmarks"),
        (bp.NystromKernelPCA(2, kernel="rbf", sampling=LANDMARKS, components_from="landmarks"),
         'components_from="landmarks"', "its centring counts each row once"),
        (bp.KernelSupervisedPCA(kernel="rbf", solver="pairs"), "KernelSupervisedPCA", MATRIX),
        (bp.ScoredPCA(1), "ScoredPCA", "its feature scores and folds count each row once"),
        (bp.SketchTransformer(bp.sketches.FeatureHash(3)), "SketchTransformer", "depends on the columns alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_fits_that_cannot_use_weights_say_so_and_why_before_the_read(model: Any, which: str, because: str) -> None:
    rows = da.from_array(X).map_blocks(_never, dtype="f8")
    with pytest.raises(TypeError, match=f"the rows have weights .*, which {which} cannot use: .*{because}"):
        model.fit(rows, CLASSES, sample_weight=WEIGHTS)


def test_a_bad_value_is_named_by_its_absolute_row_among_weighted_rows() -> None:
    rows = X.copy()
    row = int(np.flatnonzero(~ABSENT)[20])
    rows[row, 3] = np.inf
    with pytest.raises(NonFiniteError, match=rf"the first is in row {row}, column 3"):
        bp.PCA(2).fit(da.from_array(rows, chunks=(31, D)), sample_weight=WEIGHTS)
    omitted = bp.PCA(2, nan_policy="omit").fit(rows, sample_weight=WEIGHTS)
    assert (omitted.n_omitted_, omitted.n_samples_) == (1, np.count_nonzero(WEIGHTS) - 1)


def test_a_checkpoint_belongs_to_its_weights_and_the_plan_describes_them(tmp_path: Path) -> None:
    lazy = da.from_array(X, chunks=(31, D))
    bp.PCA(2).fit(lazy, sample_weight=WEIGHTS, checkpoint=tmp_path / "cp")
    with pytest.raises(bp.errors.CheckpointError):
        bp.PCA(2).fit(lazy, sample_weight=WEIGHTS + 1, checkpoint=tmp_path / "cp")
    model = bp.PCA(2).fit(lazy, sample_weight=WEIGHTS, checkpoint=tmp_path / "cp")
    assert model.provenance_.call.endswith(".fit(X, sample_weight=w)")
    note = f"weights: {np.count_nonzero(WEIGHTS)} rows, sum {WEIGHTS.sum()}, effective number"
    assert any(line.startswith(note) for line in bp.PCA(2).plan(lazy, sample_weight=WEIGHTS).notes)


@pytest.mark.parametrize(
    ("rule", "counts"),
    [
        (bp.rules.MarchenkoPastur(), True),
        (bp.rules.ParallelAnalysis(), True),
        (bp.rules.GavishDonoho(), True),
        (bp.rules.Elbow(), False),
        (bp.rules.RelativeThreshold(0.1), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rules_of_noise_count_weights_and_rules_of_shape_count_rows(rule: Any, counts: bool) -> None:
    assert rule.by_weight is counts
    weights = WEIGHTS.astype(float)
    k = bp.PCA(rule).fit(X, sample_weight=weights).n_components_
    assert k == bp.PCA(rule).fit(*repeated(None)).n_components_
