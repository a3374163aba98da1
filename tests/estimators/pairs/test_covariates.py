"""A model given covariates is that of the residuals of scikit-learn's regression, in one read of all sides."""

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn import linear_model
from sklearn.decomposition import PCA as SklearnPCA
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score

import bigpca as bp
from bigpca.errors import ApproximationWarning

Array = NDArray[Any]
RNG = np.random.default_rng(0)
N, P, K = 150, 7, 3
Z = np.column_stack([RNG.standard_normal(N) * 1e3 + 5e4, RNG.integers(0, 2, N)])
X = RNG.standard_normal((N, P)) * 0.8 ** np.arange(P) + Z @ (RNG.standard_normal((2, P)) * [[0.01], [20]]) - 3.0
W = np.arange(N) % 3


def residuals(rows: Array, given: Array, weights: Any = None, fitted: Any = None) -> Array:
    model = linear_model.LinearRegression().fit(*((rows, given)[::-1] if fitted is None else fitted), weights)
    return rows - model.predict(given)


def same_scores(own: Any, other: Any, tolerance: float = 1e-8) -> None:
    own, other = np.asarray(own), np.asarray(other)
    np.testing.assert_allclose(own * np.sign((own * other).sum(axis=0)), other, atol=tolerance)


def test_stores_parts_files_and_merged_models_give_one_answer(tmp_path: Path) -> None:
    whole = bp.PCA(K).fit(X, covariates=Z)
    bp.ingest(X, tmp_path / "x.zarr", chunk_rows=17)
    stored, beside = str(tmp_path / "x.zarr"), da.from_array(Z, chunks=(40, 2))
    planned = bp.PCA(K).plan(stored, covariates=beside)
    assert (planned.passes, planned.fits) == (1, True)
    assert "one read of X and 2 covariates and a 9 x 9 matrix" in planned.reason
    first, again = (bp.PCA(K).fit(stored, covariates=beside, checkpoint=tmp_path / "c") for _ in range(2))
    assert first.components_.tobytes() == again.components_.tobytes()
    grown = bp.PCA(K).partial_fit(X[:70], covariates=Z[:70]).partial_fit(X[70:], covariates=Z[70:])
    both = bp.merge(bp.PCA(K).fit(X[:70], covariates=Z[:70]), bp.PCA(K).fit(X[70:], covariates=Z[70:]))
    truth = whole.transform(X, covariates=Z)
    for model in (first, grown, both):
        np.testing.assert_allclose(model.explained_variance_, whole.explained_variance_, rtol=1e-9)
        same_scores(model.transform(X, covariates=Z), truth)
    whole.save(tmp_path / "m.zarr")
    loaded = bp.load(tmp_path / "m.zarr")
    assert np.asarray(loaded.transform(X, covariates=Z)).tobytes() == np.asarray(truth).tobytes()
    assert loaded.partial_fit(X[:9], covariates=Z[:9]).n_samples_ == N + 9
    written = whole.transform(stored, covariates=beside, out=tmp_path / "s.zarr")
    same_scores(written, truth, 1e-9)
    assert repr(whole.fit(X).transform(X).shape) == f"({N}, {K})"  # a later fit has none


def test_a_column_that_covariates_determine_has_no_variance_left() -> None:
    rows = np.column_stack([X, Z @ [2.0, -1.0] + 4])
    for dtype in ("f4", "f8"):
        model = bp.PCA(scale=True).fit(rows.astype(dtype), covariates=Z.astype(dtype))
        assert abs(model.components_[:P, P]).max() == 0
        np.testing.assert_allclose(model.explained_variance_[P:], 0, atol=1e-12)


def test_dependent_covariates_are_reported_by_rank_and_change_nothing() -> None:
    twice = np.column_stack([Z, Z @ [3.0, -1.0], np.ones(N)])
    with pytest.warns(ApproximationWarning, match="of 4 covariates, 2 are linearly independent"):
        model = bp.PCA(K).fit(X, covariates=twice)
    same_scores(model.transform(X, covariates=twice), bp.PCA(K).fit(X, covariates=Z).transform(X, covariates=Z), 1e-6)


def test_preprocessed_sparse_rows_in_parts_and_covariates_in_any_units() -> None:
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    model = bp.PCA(K, preprocess=bp.preprocessing.L2()).partial_fit(csr_array(X[:70]), covariates=Z[:70])
    model.partial_fit(X[70:], covariates=Z[70:])
    left = residuals(unit, Z)
    same_scores(model.transform(csr_array(X), covariates=Z), bp.PCA(K).fit(left).transform(left))
    moved = bp.PCA(K).fit(X * 2.0**60, covariates=Z * [2.0**-60, 2.0**40])
    expected = bp.PCA(K).fit(X, covariates=Z).explained_variance_
    np.testing.assert_allclose(moved.explained_variance_ / 2.0**120, expected, rtol=1e-9)


TWO = RNG.standard_normal((N, 2))
X2 = X + TWO @ RNG.standard_normal((2, P))
Y2 = RNG.standard_normal((N, 4)) + TWO @ RNG.standard_normal((2, 4)) + Z @ (RNG.standard_normal((2, 4)) * [[0.1], [9]])
PAIRS: dict[str, Any] = {
    "CCA": lambda: bp.CCA(2),
    "regularized CCA": lambda: bp.CCA(2, regularization=0.3, scale=False),
    "PLSSVD": lambda: bp.PLSSVD(2),
    "PLSRegression": lambda: bp.PLSRegression(3),
    "Ridge": lambda: bp.Ridge(3.0),
}


@pytest.mark.parametrize("weights", [None, W])
@pytest.mark.parametrize("name", PAIRS)
def test_two_sides_are_those_of_the_residuals(name: str, weights: Any, tmp_path: Path) -> None:
    x, y = residuals(X2, Z, weights), residuals(Y2, Z, weights)
    truth, model = PAIRS[name]().fit(x, y, sample_weight=weights), PAIRS[name]()
    beside = da.from_array(Z, chunks=(40, 2))
    planned = model.plan(X2, Y2, covariates=beside)
    assert (planned.passes, planned.fits, "7 + 4 + 2 columns" in planned.reason) == (1, True, True)
    model.fit(X2, Y2, covariates=beside, sample_weight=weights)
    halves = [(X2[i], Y2[i], Z[i], None if weights is None else weights[i]) for i in (slice(70), slice(70, None))]
    parts = [PAIRS[name]().fit(a, b, covariates=z, sample_weight=w) for a, b, z, w in halves]
    model.save(tmp_path / "m.zarr")
    grown = bp.load(tmp_path / "m.zarr").fit(*halves[0][:2], covariates=halves[0][2], sample_weight=halves[0][3])
    grown.partial_fit(*halves[1][:2], covariates=halves[1][2], sample_weight=halves[1][3])
    for one in (model, bp.load(tmp_path / "m.zarr"), bp.merge(*parts), grown):
        np.testing.assert_allclose(one.x_covariate_coef_, linear_model.LinearRegression().fit(Z, X2, weights).coef_)
        assert one.y_covariate_coef_.shape == (4, 2)
        assert one.covariate_mean_ == pytest.approx(np.average(Z, axis=0, weights=weights))
        if hasattr(one, "transform_y"):
            same_scores(one.transform(X2, covariates=Z), truth.transform(x), 1e-7)
            same_scores(one.transform(X2, Y2, covariates=Z)[1], truth.transform_y(y), 1e-7)
            same_scores(one.transform_y(Y2, covariates=Z), truth.transform_y(y), 1e-7)
            back, other = (m.inverse_transform(*m.transform(a, b, **given)) for m, a, b, given in (
                (one, X2, Y2, {"covariates": Z}), (truth, x, y, {})
            ))  # fmt: skip
            np.testing.assert_allclose(back[0] - one.x_mean_, other[0] - truth.x_mean_, atol=1e-7)
            np.testing.assert_allclose(back[1] - one.y_mean_, other[1] - truth.y_mean_, atol=1e-7)
        if hasattr(one, "predict"):
            expected = truth.predict(x) + Y2 - y
            np.testing.assert_allclose(one.predict(X2, covariates=Z), expected, atol=1e-7)
            assert one.score(X2, Y2, covariates=Z) == pytest.approx(r2_score(Y2, expected), abs=1e-9)
    assert not hasattr(truth, "covariate_mean_")


def test_left_out_groups_are_predicted_by_covariates_and_penalties_of_the_others() -> None:
    groups, alphas = np.arange(N) % 5, [0.1, 10.0, 1000.0]
    model = bp.Ridge(alphas).fit(X2, Y2, covariates=Z, groups=groups)
    errors = np.zeros((3, 4))
    for own in range(5):
        train, test = groups != own, groups == own
        x, y = (
            (residuals(A[train], Z[train]), residuals(A[test], Z[test], fitted=(Z[train], A[train]))) for A in (X2, Y2)
        )
        for i, alpha in enumerate(alphas):
            ridge = linear_model.Ridge(alpha).fit(x[0], y[0])
            errors[i] += ((y[1] - ridge.predict(x[1])) ** 2).sum(axis=0)
    total = (residuals(Y2, Z) ** 2).sum(axis=0)
    np.testing.assert_allclose(model.cv_scores_, 1 - errors / total, atol=1e-8)


@pytest.mark.filterwarnings("ignore:(the (covariance|columns)|1 components|values are stored)")
def test_what_covariates_leave_of_two_sides_says_how_well_it_is_known() -> None:
    twice = np.column_stack([Z, Z @ [3.0, -1.0], np.ones(N)])
    with pytest.warns(ApproximationWarning, match="of 4 covariates, 2 are linearly independent"):
        model = bp.CCA(2).fit(X2, Y2, covariates=twice)
    np.testing.assert_allclose(model.correlations_, bp.CCA(2).fit(X2, Y2, covariates=Z).correlations_, rtol=1e-6)
    far, near = ([A + size * BATCH[:, None] for A in (X2, Y2)] for size in (1e8, 1.0))
    for make in PAIRS.values():
        model, truth = (make().fit(*sides, covariates=BATCH[:, None].astype("f8")) for sides in (far, near))
        assert model.provenance_.reads == 2
        if hasattr(model, "coef_"):
            np.testing.assert_allclose(model.coef_, truth.coef_, atol=1e-6)
        if hasattr(model, "transform_y"):
            same_scores(model.transform(far[0], covariates=BATCH), truth.transform(near[0], covariates=BATCH), 1e-5)
        with pytest.warns(ApproximationWarning, match="the covariates explain so nearly everything"):
            make().fit(*(A.astype("f4") for A in far), covariates=BATCH[:, None].astype("f4"))
    determined = np.column_stack([Y2, Z @ [2.0, -1.0] + 4])  # a column of which nothing is left is constant
    model = bp.PLSSVD(2).fit(X2, determined, covariates=Z)
    assert abs(model.y_weights_[4]).max() == 0
    preprocessed = bp.CCA(2, preprocess=bp.preprocessing.L2(), preprocess_y=bp.preprocessing.L2()).fit(
        X2, Y2, covariates=Z
    )
    x, y = (residuals(A / np.linalg.norm(A, axis=1, keepdims=True), Z) for A in (X2, Y2))
    truth = bp.CCA(2).fit(x, y)
    same_scores(preprocessed.transform(X2, covariates=Z), truth.transform(x), 1e-6)
    same_scores(preprocessed.transform_y(Y2, covariates=Z), truth.transform_y(y), 1e-6)


@pytest.mark.filterwarnings("ignore:(the covariates explain so nearly|the covariance of|1 components)")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("trend", [1e3, 1e5])
def test_covariates_of_short_floats_are_the_numbers_that_are_stored(name: str, trend: float) -> None:
    """A clock in float32: its rounding is 1 % and 100 times the variance that is left, and changes nothing."""
    clock = (2000 + 20 * np.random.default_rng(0).random((N, 1))).astype("f4")
    effect = trend * (clock.astype("f8") - 2010)
    sides = [A + effect * np.linspace(-1, 2, A.shape[1]) for A in (X2, Y2)]
    found, truth = (PAIRS[name]().fit(*sides, covariates=given) for given in (clock, clock.astype("f8")))
    for attribute in ("coef_", "correlations_", "singular_values_", "cv_scores_", "solve_error_"):
        if hasattr(truth, attribute):
            np.testing.assert_allclose(getattr(found, attribute), getattr(truth, attribute), rtol=1e-6)
    assert found.solve_error_ < 1e-3


@pytest.mark.filterwarnings(
    "ignore:(the covariates explain so nearly|the covariance of|1 components|values are stored to)"
)
@pytest.mark.parametrize("name", PAIRS)
def test_rows_in_short_floats_are_the_numbers_that_are_stored_however_little_covariates_leave(name: str) -> None:
    """What is left is the rounding of float32, and not set to 0 unless columns are divided by it."""
    clock = np.random.default_rng(0).random((N, 1))
    sides = [(A + 3e8 * clock * np.linspace(-1, 2, A.shape[1])).astype("f4") for A in (X2, Y2)]
    makes = {"scale": False} if "scale" in PAIRS[name]().get_params() else {}
    models = [
        PAIRS[name]().set_params(**makes).fit(*(A.astype(t) for A in sides), covariates=clock) for t in ("f4", "f8")
    ]
    found, truth = models
    for attribute in ("coef_", "correlations_", "singular_values_", "cv_scores_"):
        if hasattr(truth, attribute):
            np.testing.assert_allclose(getattr(found, attribute), getattr(truth, attribute), rtol=1e-6)


KEYS = np.array([f"a{i:03d}" for i in range(N)])
DRAWN = RNG.permutation(N)[:90]
OPENED: dict[str, Any] = {  # rows with covariates, and the numbers of the rows that they are
    "all": lambda rows: (rows, slice(None)),
    "a slice": lambda rows: (rows[20:120:3], slice(20, 120, 3)),
    "a list": lambda rows: (rows[DRAWN], DRAWN),
    "a mask of a list": lambda rows: (rows[DRAWN][DRAWN > 50], DRAWN[DRAWN > 50]),
    "other chunks": lambda rows: (rows.rechunk((11, 3))[:100], slice(100)),
    "joined parts": lambda rows: (da.concatenate([rows[70:], rows[:70]]), np.roll(np.arange(N), -70)),
    "two that were opened": lambda rows: (
        da.concatenate([bp.open(X[40:], covariates=Z[40:]), rows[:40]]), np.roll(np.arange(N), -40)
    ),
    "a range of columns": lambda rows: (rows[::2, :P], slice(None, None, 2)),
}  # fmt: skip


GROUPS, CODES, WEIGHTS = np.arange(N) // 9 % 4, np.arange(N) * 7 % 5 % 3, np.arange(N) % 3 + 1.0


def opened_in(kept: str, folder: Path, **beside: Any) -> Any:
    """Open the rows as they are kept, with what belongs to them, by key where they have keys."""
    source: Any = X
    if "store" in kept:
        bp.ingest(X, folder / "x.zarr", chunk_rows=17, keys=KEYS if kept == "keyed store" else None)
        source = str(folder / "x.zarr")
    if kept == "keyed store":
        beside = {name: pd.DataFrame(one, KEYS)[::-1] for name, one in beside.items()}
    source = da.from_array(X, chunks=(40, 4)) + 0 if kept == "Dask" else source
    views = {"pattern": "n c h -> (n h) c"} if kept == "pattern" else {}
    source = X.reshape(N // 2, 2, P).transpose(0, 2, 1) if kept == "pattern" else source
    return bp.open(source, **beside, **views)


TAKEN = [
    *((one, "keyed store") for one in OPENED),
    *(("a list", one) for one in ("memory", "store", "Dask", "pattern")),
]


@pytest.mark.parametrize(("taken", "kept"), TAKEN)
def test_rows_bring_the_covariates_that_they_were_opened_with(taken: str, kept: str, tmp_path: Path) -> None:
    rows, numbers = OPENED[taken](opened_in(kept, tmp_path, covariates=Z))
    model, truth = bp.PCA(K).fit(rows), bp.PCA(K).fit(X[numbers], covariates=Z[numbers])
    np.testing.assert_allclose(model.components_, truth.components_, atol=1e-10)
    np.testing.assert_allclose(model.transform(rows), truth.transform(X[numbers], covariates=Z[numbers]), atol=1e-9)
    grown = bp.PCA(K).fit(X[:9], covariates=Z[:9]).partial_fit(rows)
    assert (grown.n_samples_, grown.covariate_coef_.shape) == (9 + len(X[numbers]), (P, 2))


@pytest.mark.parametrize(("taken", "kept"), [pair for pair in TAKEN if pair[0] != "two that were opened"])
def test_rows_bring_the_weights_labels_and_groups_that_they_were_opened_with(
    taken: str, kept: str, tmp_path: Path
) -> None:
    rows, numbers = OPENED[taken](opened_in(kept, tmp_path, sample_weight=WEIGHTS, labels=CODES, groups=GROUPS))
    own, y, w, of = X[numbers], CODES[numbers], WEIGHTS[numbers], GROUPS[numbers]
    model, truth = bp.PCA(K).fit(rows), bp.PCA(K).fit(own, sample_weight=w, groups=of)
    for found, expected in ((model, truth), (model.without_group(0), truth.without_group(0))):
        np.testing.assert_allclose(found.components_, expected.components_, atol=1e-10)
        np.testing.assert_allclose(found.transform(rows), expected.transform(own), atol=1e-9)
    assert model.score(rows) == pytest.approx(np.average(truth.score_samples(own), weights=w))
    rows = OPENED[taken](bp.open(X, sample_weight=WEIGHTS, labels=CODES))[0]
    fisher, truth = bp.FisherDiscriminantAnalysis(2), bp.FisherDiscriminantAnalysis(2).fit(own, y, sample_weight=w)
    np.testing.assert_allclose(fisher.fit(rows).transform(rows), truth.transform(own), atol=1e-9)
    assert fisher.score(rows) == pytest.approx(truth.score(own, y, w))
    grown = fisher.partial_fit(rows)
    assert (grown.n_samples_, grown.sum_weights_) == (2 * len(own), 2 * w.sum())


@pytest.mark.parametrize("measure", [bp.quality.cka, bp.quality.procrustes])
def test_measures_of_two_sides_take_the_groups_that_rows_were_opened_with(measure: Any) -> None:
    found, expected = measure(bp.open(X, groups=GROUPS), X[:, :3] ** 2), measure(X, X[:, :3] ** 2, groups=GROUPS)
    assert (found.value, found.standard_error) == (expected.value, expected.standard_error)


def test_scores_of_opened_rows_are_opened_with_covariates_of_their_own() -> None:
    scores = bp.PCA(3).fit(X).transform(bp.open(X, labels=CODES))
    found, expected = (bp.PCA(K).fit(bp.open(one, covariates=Z)) for one in (scores, np.asarray(scores)))
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-12)


def test_opened_rows_of_a_store_are_resumed_and_write_their_keys(tmp_path: Path) -> None:
    bp.ingest(X, tmp_path / "x.zarr", chunk_rows=17, keys=KEYS)
    bp.ingest(Z[::-1], tmp_path / "z.zarr", keys=KEYS[::-1])
    found = []
    for _ in range(2):
        rows = bp.open(str(tmp_path / "x.zarr"), covariates=str(tmp_path / "z.zarr"))
        found.append(bp.PCA(K).fit(rows, checkpoint=tmp_path / "c").components_)
        part = bp.PCA(K).fit(bp.open(str(tmp_path / "x.zarr"), covariates=Z)[:99], checkpoint=tmp_path / "part")
        assert part.provenance_ is not None
        assert part.provenance_.call == "PCA(n_components=3).fit(X, covariates=Z)"
    assert found[0].tobytes() == found[1].tobytes()
    np.testing.assert_allclose(found[0], bp.PCA(K).fit(X, covariates=Z).components_, atol=1e-10)
    chosen = bp.PCA(2).fit(bp.open(rows, columns=[4, 0, 2])[::2]).components_
    np.testing.assert_allclose(chosen, bp.PCA(2).fit(X[::2, [4, 0, 2]], covariates=Z[::2]).components_, atol=1e-10)
    FITTED.transform(rows[::2], out=tmp_path / "s.zarr")
    assert bp.data.stored_keys(tmp_path / "s.zarr").tolist() == KEYS[::2].tolist()  # type: ignore[union-attr]


def test_methods_of_rows_are_those_of_what_covariates_leave() -> None:
    left = residuals(X, Z) + X.mean(axis=0)
    rows, model, truth = bp.open(X, covariates=Z), bp.PCA(K).fit(X, covariates=Z), bp.PCA(K).fit(left)
    for call in (
        lambda m, x: m.statistics(x),
        lambda m, x: m.score_samples(x),
        lambda m, x: m.score(x),
        lambda m, x: m.top_outliers(x, n=4).values,
        lambda m, x: m.spe_limit(0.9, x),
        lambda m, x: m.remove_components(x, [0]),
        lambda m, x: m.contributions(x),
        lambda m, x: bp.quality.reconstruction_error(m, x).relative,
        lambda m, x: bp.quality.standard_errors(m, x).explained_variance_,
        lambda m, x: bp.quality.extremes(m, x, n=1).highest_scores,
    ):  # fmt: skip
        np.testing.assert_allclose(call(model, rows), call(truth, left), rtol=1e-7, atol=1e-9)
    joined = csr_array(np.where(np.median(X) < X, X, 0))
    sparse = bp.PCA(K).fit(joined, covariates=Z)
    expected = sparse.spe(bp.open(joined.toarray(), covariates=Z))
    np.testing.assert_allclose(sparse.spe(bp.open(joined, covariates=Z)), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["CCA", "PLSRegression", "Ridge"])
def test_cross_validation_takes_the_covariates_of_its_rows(name: str) -> None:
    found = cross_val_score(PAIRS[name](), bp.open(X2, covariates=Z), Y2, cv=3)
    parts = [np.arange(50 * i, 50 * i + 50) for i in range(3)]
    for score, own in zip(found, parts, strict=True):
        others = np.setdiff1d(np.arange(N), own)
        model = PAIRS[name]().fit(X2[others], Y2[others], covariates=Z[others])
        assert score == pytest.approx(model.score(X2[own], Y2[own], covariates=Z[own]), rel=1e-9)


FITTED = bp.PCA(K).fit(X, covariates=Z)
ROWS, ONE = bp.open(X, covariates=Z), bp.open(X, covariates=Z[:, 0])
WEIGHED = bp.open(X, sample_weight=WEIGHTS)
PARTIAL = bp.CCA(2).fit(X2, Y2, covariates=Z)
HOLED = np.where(np.arange(2 * N).reshape(N, 2) == 9, np.nan, Z)


SPARSE = da.from_array(X, chunks=(40, P)).map_blocks(csr_array, meta=csr_array((0, 0)))
FISHER, LABELLED = bp.FisherDiscriminantAnalysis(2), bp.open(X, labels=CODES)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bp.PCA(K).fit(X, covariates=Z[1:]), ValueError, "X has 150 rows, and Z 149"),
        (lambda: bp.PCA(K).fit(X, covariates=HOLED), bp.errors.NonFiniteError, r"\(2 columns\): row 4; .* column 8"),
        (lambda: bp.PCA(K, nan_policy="mean").fit(X, covariates=Z), ValueError, "nan_policy = 'mean' cannot be"),
        (lambda: bp.PCA(8).fit(X, covariates=Z), ValueError, "n_components = 8 is out of range: 150 samples"),
        (lambda: bp.PCA(K).fit(X, covariates=np.eye(N)), ValueError, "149 covariates determine all columns"),
        (lambda: bp.CCA(1).fit(X2, Z, covariates=Z), ValueError, "the covariates determine Y, or it is constant"),
        (lambda: bp.CCA(1).fit(X2, Y2, covariates=HOLED), bp.errors.NonFiniteError, r"memory \(2 columns\): row 4"),
        (lambda: bp.Ridge(fit_intercept=False).fit(X2, Y2, covariates=Z), ValueError, "fit_intercept = False"),
        (lambda: PARTIAL.transform(X2), ValueError, "rows have 0 covariates, but"),
        (lambda: PARTIAL.transform_y(Y2), ValueError, "rows have 0 covariates, but"),
        (lambda: PARTIAL.transform_y(Y2, covariates=Z[1:]), ValueError, "150 rows, and Z 149"),
        (lambda: PARTIAL.predict(X2), ValueError, "rows have 0 covariates, but"),
        (lambda: PARTIAL.predict(X2, covariates=Z[:, :1]), ValueError, "have 1 covariates, but CCA was fitted with 2"),
        (lambda: PARTIAL.score(X2, Y2), ValueError, "rows have 0 covariates, but"),
        (lambda: bp.CCA(2).fit(X2, Y2).predict(X2, covariates=Z), ValueError, "rows have 2 covariates, but"),
        (lambda: PARTIAL.transform(ONE[:, :P], Y2), ValueError, "have 1 covariates, but CCA was fitted with 2"),
        (lambda: bp.CCA(2).fit(X2, Y2, covariates=Z).partial_fit(X2, Y2), ValueError, "rows have 0 covariates, but"),
        (lambda: bp.merge(PARTIAL, bp.CCA(2).fit(X2, Y2)), ValueError, "with 2 and 0 covariates"),
        (lambda: FITTED.transform(X), ValueError, "rows have 0 covariates, but"),
        (lambda: FITTED.score_samples(X), ValueError, "rows have 0 covariates, but"),
        (lambda: FITTED.spe(X), ValueError, "rows have 0 covariates, but"),
        (lambda: bp.quality.standard_errors(FITTED, X), ValueError, "rows have 0 covariates, but"),
        (lambda: FITTED.transform(X, covariates=Z[:, :1]), ValueError, "have 1 covariates, but PCA was fitted with 2"),
        (lambda: FITTED.transform(X, covariates=Z[1:]), ValueError, "X has 150 rows, and Z 149"),
        (lambda: bp.PCA(K).fit(X).transform(X, covariates=Z), ValueError, "rows have 2 covariates, but"),
        (lambda: bp.PCA(K).fit(X, covariates=Z).partial_fit(X), ValueError, "rows have 0 covariates, but"),
        (lambda: bp.merge(FITTED, bp.PCA(K).fit(X)), ValueError, "with 2 and 0 covariates"),
        (lambda: bp.PCA(K).fit(ROWS * 2), ValueError, "X was computed or persisted from rows that were opened"),
        (lambda: bp.PCA(K).fit(ROWS.persist()), ValueError, "persisted from rows that were opened with covariates"),
        (lambda: bp.PCA(K).fit(ROWS[5:].persist()), ValueError, "persisted from rows that were opened with"),
        (lambda: bp.PCA(K).fit(dask.optimize(ROWS[[1, 2, 9, 30]])[0]), ValueError, "persisted from rows that were"),
        (lambda: bp.PCA(K).fit(ROWS.rechunk((30, -1)).astype("f4").persist()[1:]), ValueError, "or persisted from"),
        (lambda: bp.PCA(K).fit(da.concatenate([ROWS[30:], ROWS[:10]]).persist()), ValueError, "or persisted from"),
        (lambda: bp.PCA(K).fit(dask.optimize(ROWS)[0]), ValueError, "from rows that were opened with covariates"),
        (lambda: FITTED.spe(da.log1p(ROWS)), ValueError, "X was computed or persisted from rows that were opened"),
        (lambda: bp.PCA(K).fit(da.concatenate([ROWS, bp.open(X)])), ValueError, "or joined with rows that have none"),
        (lambda: bp.PCA(K).fit(bp.data.lagged(ROWS, [0, 1])), ValueError, "was computed or persisted from rows"),
        (lambda: bp.PCA(K).fit(bp.open(X, covariates=Z[1:])[:9]), ValueError, "X has 150 rows, and Z 149"),
        (lambda: bp.PCA(K).fit(da.concatenate([ROWS, ONE])), ValueError, r"with different covariates: \[2, 1\]"),
        (lambda: bp.PCA(K).fit(ROWS, covariates=Z), ValueError, "opened with covariates, and others were given"),
        (lambda: bp.open(ROWS, covariates=Z), ValueError, "the rows were opened with covariates already"),
        (lambda: bp.open(ROWS[::2], covariates=Z[::2]), ValueError, "the rows were opened with covariates already"),
        (lambda: bp.open(LABELLED[::2], groups=GROUPS[::2]), ValueError, r"once, open\(X, labels=..., groups="),
        (lambda: bp.open(LABELLED, columns=[0, 1], groups=GROUPS), ValueError, "opened with labels already"),
        (lambda: bp.PCA(K).fit(bp.open(ROWS + 0, groups=GROUPS) + 1), ValueError, r"\(X, covariates=..., groups=..."),
        (lambda: bp.quality.local_pca(LABELLED, 2), TypeError, "which this call does not use"),
        (lambda: bp.quality.plan_local_pca(LABELLED, 2), TypeError, "which this call does not use"),
        (lambda: bp.compare_layers({"a": LABELLED, "b": Y2}), TypeError, "which this call does not use"),
        (lambda: bp.PCA(K).fit(X).spe_limit(X=bp.open(X, sample_weight=WEIGHTS)), TypeError, "counts each once"),
        (lambda: bp.PCA(K).fit(bp.from_batches([LABELLED[:75], LABELLED[75:]])), TypeError, "this call does not use"),
        (lambda: bp.PCA(K).fit(bp.open(csr_array(X), groups=GROUPS)[:99].persist()[1:]), ValueError, "or persisted"),
        (lambda: bp.PCA(K).fit(bp.open(SPARSE, groups=GROUPS)[:99].persist()[1:]), ValueError, "or persisted"),
        (lambda: FISHER.fit(LABELLED, CODES), ValueError, "the rows were opened with labels, and others were given"),
        (lambda: FISHER.fit(LABELLED + 1), ValueError, "X was computed or persisted from rows that were opened"),
        (lambda: FISHER.fit(bp.open(X, labels=CODES[1:])), ValueError, "149"),
        (lambda: FISHER.fit(da.concatenate([LABELLED, ROWS])), ValueError, "or joined with rows that have none"),
        (lambda: bp.PCA(K).fit(bp.open(X, sample_weight=-WEIGHTS)), ValueError, "150 of 150 weights are missing, neg"),
        (lambda: bp.KernelPCA(K).fit(bp.open(X, groups=GROUPS)), TypeError, "this KernelPCA, which uses none"),
        (lambda: bp.KernelPCA(K).fit(bp.open(X, sample_weight=WEIGHTS)), TypeError, "have weights .*KernelPCA cannot"),
        (lambda: bp.ingest(LABELLED, "absent/x.zarr"), TypeError, "which this call does not use"),
        (lambda: bp.PCA(K).fit(X).transform(ROWS), ValueError, "rows have 2 covariates, but"),
        (lambda: bp.CCA(1).fit(X2, bp.open(Y2, covariates=Z)), TypeError, "which this call does not use"),
        (lambda: bp.PCA(K).fit(X, covariates=ROWS), TypeError, "which this call does not use"),
        (lambda: bp.quality.cka(ROWS, Y2), TypeError, "which this call does not use"),
        (lambda: bp.quality.local_pca(WEIGHED, 2), TypeError, "which this call does not use"),
        (lambda: bp.quality.reconstruction_error(SklearnPCA(2).fit(X), WEIGHED), TypeError, "this call does not use"),
        (lambda: bp.PCA(K, nan_policy="mean").fit(ROWS), ValueError, 'with covariates: use "raise" or "omit"'),
        (lambda: bp.ApproximatePCA(K, nan_policy="mean").fit(ROWS), ValueError, 'covariates: use "raise" or "omit"'),
        (lambda: bp.quality.plan_local_pca(WEIGHED, 2), TypeError, "which this call does not use"),
        (lambda: bp.compare_layers({"a": WEIGHED}, {"b": Y2}), TypeError, "which this call does not use"),
        (lambda: bp.ingest(ROWS, "absent/x.zarr"), TypeError, "which this call does not use"),
        (lambda: FITTED.to_sklearn(), TypeError, "with 2 covariates"),
        (lambda: FITTED.to_onnx("absent/m.onnx"), TypeError, "with 2 covariates"),
        (lambda: FITTED.linear_map(), TypeError, "with 2 covariates"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


BATCH = np.arange(N) % 2
TURNED = np.linalg.qr(RNG.standard_normal((4, 4)))[0]
NEARLY = np.linalg.qr(RNG.standard_normal((N, 4)))[0] * 1e-9 ** np.linspace(0, 1, 4) @ TURNED
APART: dict[str, tuple[Array, Array, str, int]] = {
    "batches 1,000 deviations apart": (X + 1e3 * BATCH[:, None], BATCH[:, None], "f4", 1),
    "batches 1e8 deviations apart": (X + 1e8 * BATCH[:, None], BATCH[:, None], "f8", 2),
    "nearly dependent covariates": (X + 1e3 * (NEARLY @ TURNED.T * 1e9)[:, 3:], NEARLY, "f8", 2),
    "indicators": (X + BATCH[:, None], np.eye(3)[RNG.integers(0, 3, N)], "f8", 2),
}


@pytest.mark.usefixtures("float32_products")
@pytest.mark.filterwarnings("ignore:of 3 covariates, 2 are")
@pytest.mark.parametrize("name", APART)
def test_what_is_left_has_its_digits_however_much_is_taken_out(name: str, tmp_path: Path) -> None:
    rows, beside, dtype, reads = APART[name]
    rows, beside = rows.astype(dtype), beside.astype(dtype)
    centred = beside.astype("f8") - beside.mean(axis=0, dtype="f8")
    U, s, _ = np.linalg.svd(centred / np.linalg.norm(centred, axis=0), full_matrices=False)
    Q = U[:, s > 1e-13 * s[0]]
    left = rows.astype("f8") - rows.mean(axis=0, dtype="f8")
    left -= Q @ (Q.T @ left)
    model = bp.PCA(K).fit(rows, covariates=beside)
    assert model.provenance_ is not None
    assert (model.provenance_.reads, model.solve_error_ < 1e-6) == (reads, True)
    np.testing.assert_allclose(model.explained_variance_, bp.PCA(K).fit(left).explained_variance_, rtol=1e-6)
    assert model.total_variance_ == pytest.approx((left**2).sum() / (N - 1), rel=1e-6)
    learned = bp.PCA(K, solver="dot").fit(rows, covariates=beside)  # whose rows are those that are left
    np.testing.assert_allclose(learned.explained_variance_, bp.PCA(K).fit(left).explained_variance_, rtol=1e-5)
    model.save(tmp_path / "m")
    for kept in (model, bp.load(tmp_path / "m")):
        truth = bp.PCA(K).fit(left)
        assert kept.spe_limit(limit="box") == pytest.approx(truth.spe_limit(limit="box"), rel=1e-6)
        np.testing.assert_allclose(kept.feature_correlations(), truth.feature_correlations(), atol=1e-6)


def test_batches_too_far_apart_for_the_stored_values_or_for_one_read_say_so() -> None:
    rows, beside = X + 1e9 * BATCH[:, None], BATCH[:, None].astype("f8")
    with pytest.warns(ApproximationWarning, match="everything that the rounding of the stored values is 1 of"):
        assert bp.PCA(K).fit(rows.astype("f4"), covariates=beside.astype("f4")).solve_error_ < 1e-3
    grown = bp.PCA(K).partial_fit(rows[:70], covariates=beside[:70]).partial_fit(rows[70:], covariates=beside[70:])
    with pytest.warns(ApproximationWarning, match=r"the covariates explain so nearly everything.* \(solve_error_\)"):
        assert grown.solve_error_ > 1e-3
    normal = X[:, 3:5] / X[:, 3:5].std(axis=0)
    beside = normal @ [[1.0, 1.0], [0.0, 1e-6]]
    for pair in (bp.Ridge(1.0), bp.CCA(1), bp.PLSSVD(1), bp.PLSRegression(1)):
        pair.partial_fit(X[:70, :3], X[:70, 5:], covariates=beside[:70])
        with pytest.warns(
            ApproximationWarning, match=r"the covariates explain so nearly everything.* \(solve_error_\)"
        ):
            assert pair.partial_fit(X[70:, :3], X[70:, 5:], covariates=beside[70:]).solve_error_ > 1e-3
