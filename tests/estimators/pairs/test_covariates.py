"""PCA given covariates is PCA of the residuals of scikit-learn's regression, in one read of rows and covariates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn import decomposition, linear_model

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


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("weights", [None, W])
def test_it_is_the_pca_of_the_residuals_of_scikit_learn(weights: Any, scale: bool) -> None:
    left = residuals(X, Z, weights)
    model, truth = bp.PCA(K, scale=scale), bp.PCA(K, scale=scale).fit(left, sample_weight=weights)
    model.fit(X, given=Z, sample_weight=weights)
    if weights is None and not scale:
        theirs = decomposition.PCA(K).fit(left)
        np.testing.assert_allclose(model.explained_variance_, theirs.explained_variance_, rtol=1e-9)
        np.testing.assert_allclose(model.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-9)
        same_scores(model.transform(X, given=Z), theirs.transform(left))
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.components_, truth.components_, atol=1e-9)
    same_scores(model.transform(X, given=Z), truth.transform(left))
    np.testing.assert_allclose(model.noise_variance_, truth.noise_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.feature_correlations(), truth.feature_correlations(), atol=1e-9)
    assert model.n_features_in_ == P
    assert abs(np.corrcoef(np.asarray(model.transform(X, given=Z)).T, Z.T)[:K, K:]).max() < 1e-6 or weights is not None


def test_stores_parts_files_and_merged_models_give_one_answer(tmp_path: Path) -> None:
    whole = bp.PCA(K).fit(X, given=Z)
    bp.ingest(X, tmp_path / "x.zarr", chunk_rows=17)
    stored, beside = str(tmp_path / "x.zarr"), da.from_array(Z, chunks=(40, 2))
    planned = bp.PCA(K).plan(stored, given=beside)
    assert (planned.passes, planned.fits) == (1, True)
    assert "one read of X and 2 covariates and a 9 x 9 matrix" in planned.reason
    first, again = (bp.PCA(K).fit(stored, given=beside, checkpoint=tmp_path / "c") for _ in range(2))
    assert first.components_.tobytes() == again.components_.tobytes()
    grown = bp.PCA(K).partial_fit(X[:70], given=Z[:70]).partial_fit(X[70:], given=Z[70:])
    both = bp.merge(bp.PCA(K).fit(X[:70], given=Z[:70]), bp.PCA(K).fit(X[70:], given=Z[70:]))
    truth = whole.transform(X, given=Z)
    for model in (first, grown, both):
        np.testing.assert_allclose(model.explained_variance_, whole.explained_variance_, rtol=1e-9)
        same_scores(model.transform(X, given=Z), truth)
    whole.save(tmp_path / "m.zarr")
    loaded = bp.load(tmp_path / "m.zarr")
    assert np.asarray(loaded.transform(X, given=Z)).tobytes() == np.asarray(truth).tobytes()
    assert loaded.partial_fit(X[:9], given=Z[:9]).n_samples_ == N + 9
    written = whole.transform(stored, given=beside, out=tmp_path / "s.zarr")
    same_scores(written, truth, 1e-9)
    assert repr(whole.fit(X).transform(X).shape) == f"({N}, {K})"  # a later fit has none


def test_a_column_that_covariates_determine_has_no_variance_left() -> None:
    rows = np.column_stack([X, Z @ [2.0, -1.0] + 4])
    for dtype in ("f4", "f8"):
        model = bp.PCA(scale=True).fit(rows.astype(dtype), given=Z.astype(dtype))
        assert abs(model.components_[:P, P]).max() == 0
        np.testing.assert_allclose(model.explained_variance_[P:], 0, atol=1e-12)


def test_dependent_covariates_are_reported_by_rank_and_change_nothing() -> None:
    twice = np.column_stack([Z, Z @ [3.0, -1.0], np.ones(N)])
    with pytest.warns(ApproximationWarning, match="of 4 covariates, 2 are linearly independent"):
        model = bp.PCA(K).fit(X, given=twice)
    same_scores(model.transform(X, given=twice), bp.PCA(K).fit(X, given=Z).transform(X, given=Z), 1e-6)


def test_sparse_rows_missing_values_preprocessing_and_units() -> None:
    sparse = np.where(np.median(X) < X, X, 0)
    model = bp.PCA(K).fit(csr_array(sparse), given=Z)
    left = residuals(sparse, Z)
    np.testing.assert_allclose(model.explained_variance_, bp.PCA(K).fit(left).explained_variance_, rtol=1e-8)
    holed, other = X.copy(), Z.copy()
    holed[3, 1] = other[7, 1] = np.nan
    kept = np.setdiff1d(np.arange(N), [3, 7])
    model = bp.PCA(K, nan_policy="omit").fit(holed, given=other)
    assert (model.n_samples_, model.n_omitted_) == (N - 2, 2)
    scores = np.asarray(model.transform(holed, given=other))
    assert np.isnan(scores[[3, 7]]).all()
    same_scores(scores[kept], bp.PCA(K).fit(residuals(X[kept], Z[kept])).transform(residuals(X[kept], Z[kept])))
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    model = bp.PCA(K, preprocess=bp.rows.L2()).partial_fit(csr_array(X[:70]), given=Z[:70])
    model.partial_fit(X[70:], given=Z[70:])
    left = residuals(unit, Z)
    same_scores(model.transform(csr_array(X), given=Z), bp.PCA(K).fit(left).transform(left))
    moved = bp.PCA(K).fit(X * 2.0**60, given=Z * [2.0**-60, 2.0**40])
    expected = bp.PCA(K).fit(X, given=Z).explained_variance_
    np.testing.assert_allclose(moved.explained_variance_ / 2.0**120, expected, rtol=1e-9)


FITTED = bp.PCA(K).fit(X, given=Z)
HOLED = np.where(np.arange(2 * N).reshape(N, 2) == 9, np.nan, Z)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bp.PCA(K).fit(X, given=Z[1:]), ValueError, "X has 150 rows, and Z 149"),
        (lambda: bp.PCA(K).fit(X, given=HOLED), bp.errors.NonFiniteError, "column 1 of Z"),
        (lambda: bp.PCA(K, solver="krylov").fit(X, given=Z), ValueError, "solver = 'krylov' cannot be used with"),
        (lambda: bp.PCA(K, nan_policy="mean").fit(X, given=Z), ValueError, "nan_policy = 'mean' cannot be used with"),
        (lambda: bp.PCA(K, center=np.ones(P)).fit(X, given=Z), ValueError, "center and scale"),
        (lambda: bp.PCA(8).fit(X, given=Z), ValueError, "n_components = 8 is out of range: 150 samples of 7 features"),
        (lambda: bp.KernelPCA(K).fit(X, given=Z), TypeError, "KernelPCA, which cannot remove the effect of covariates"),
        (lambda: bp.ApproximatePCA(K).plan(X, given=Z), TypeError, "ApproximatePCA, which cannot"),
        (lambda: FITTED.transform(X), TypeError, "was fitted with 2 covariates"),
        (lambda: FITTED.score_samples(X), TypeError, "was fitted with 2 covariates"),
        (lambda: FITTED.spe(X), TypeError, "was fitted with 2 covariates"),
        (lambda: bp.quality.standard_errors(FITTED, X), TypeError, "was fitted with 2 covariates"),
        (lambda: FITTED.transform(X, given=Z[:, :1]), ValueError, "Z has 1 columns, but PCA was fitted with 2"),
        (lambda: FITTED.transform(X, given=Z[1:]), ValueError, "X has 150 rows, and Z 149"),
        (lambda: bp.PCA(K).fit(X).transform(X, given=Z), ValueError, "was fitted with 0 covariates"),
        (lambda: bp.PCA(K).fit(X, given=Z).partial_fit(X), TypeError, "was fitted with 2 covariates"),
        (lambda: bp.merge(FITTED, bp.PCA(K).fit(X)), ValueError, "with 2 and 0 covariates"),
        (lambda: bp.RotatedPCA.of(FITTED), TypeError, "fitted with covariates"),
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
def test_what_is_left_has_its_digits_however_much_is_taken_out(name: str) -> None:
    rows, beside, dtype, reads = APART[name]
    rows, beside = rows.astype(dtype), beside.astype(dtype)
    centred = beside.astype("f8") - beside.mean(axis=0, dtype="f8")
    U, s, _ = np.linalg.svd(centred / np.linalg.norm(centred, axis=0), full_matrices=False)
    Q = U[:, s > 1e-13 * s[0]]
    left = rows.astype("f8") - rows.mean(axis=0, dtype="f8")
    left -= Q @ (Q.T @ left)
    model = bp.PCA(K).fit(rows, given=beside)
    assert model.provenance_ is not None
    assert (model.provenance_.reads, model.solve_error_ < 1e-6) == (reads, True)
    np.testing.assert_allclose(model.explained_variance_, bp.PCA(K).fit(left).explained_variance_, rtol=1e-6)
    assert model.total_variance_ == pytest.approx((left**2).sum() / (N - 1), rel=1e-6)


def test_batches_too_far_apart_for_the_stored_values_or_for_one_read_say_so() -> None:
    rows, beside = X + 1e9 * BATCH[:, None], BATCH[:, None].astype("f8")
    with pytest.warns(ApproximationWarning, match=r"the covariates explain so nearly everything.* \(solve_error_\)"):
        assert bp.PCA(K).fit(rows.astype("f4"), given=beside.astype("f4")).solve_error_ > 1e-3
    grown = bp.PCA(K).partial_fit(rows[:70], given=beside[:70]).partial_fit(rows[70:], given=beside[70:])
    with pytest.warns(ApproximationWarning, match=r"the covariates explain so nearly everything.* \(solve_error_\)"):
        assert grown.solve_error_ > 1e-3
