"""Scores of new rows where rows are few beside columns: corrected by a factor, and as one more row of the fit."""

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import bigpca as bp
from bigpca.errors import ApproximationWarning

N, D, K = 40, 400, 3
RNG = np.random.default_rng(0)
AXES = np.linalg.qr(RNG.standard_normal((D, K)))[0] * np.sqrt([90.0, 60.0, 40.0])
SIGNALS, NEW_SIGNALS = RNG.standard_normal((N, K)), RNG.standard_normal((25, K))
X = SIGNALS @ AXES.T + RNG.standard_normal((N, D)) + 3
Y = NEW_SIGNALS @ AXES.T + 1.4 * RNG.standard_normal((25, D)) + 3
COUNTS = np.abs(X).round() * (RNG.random(X.shape) < 0.3)


def procrustes(target: np.ndarray, found: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Turn and scale a row as the rows that were found are turned and scaled to their target."""
    P, length, R = np.linalg.svd(target.T @ found)
    return np.asarray(length.sum() / (found**2).sum() * (P @ R @ row))


def augmented(X: np.ndarray, Y: np.ndarray, k: int = K) -> np.ndarray:
    """Scores of centred rows Y by the SVD of the k components of X with each of them as one more row."""
    U, s, V = (one[..., :k] if i < 2 else one[:k] for i, one in enumerate(np.linalg.svd(X, full_matrices=False)))
    found = []
    for y in Y:
        left, singular, _ = np.linalg.svd(np.vstack([s[:, None] * V, y]), full_matrices=False)
        B = left[:, :k] * singular[:k]
        found.append(procrustes(U * s, U @ B[:k], B[k]))
    return np.array(found)


def factors(values: np.ndarray, k: int, freedom: float) -> np.ndarray:
    """Dey and Lee's factors of the first k of all eigenvalues."""
    return np.array([1 / (1 + sum(rest / (value - rest) for rest in values[k:]) / freedom) for value in values[:k]])


def same_signs(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.asarray(expected * np.sign((found * expected).sum(axis=0)))


@pytest.mark.parametrize("solver", ["covariance", "dot", "krylov"])
@pytest.mark.parametrize("scale", [False, True])
def test_oadp_is_the_decomposition_of_the_components_and_one_more_row(solver: str, scale: bool) -> None:
    model = bp.PCA(K, solver=solver, scale=scale, tol=1e-13, max_passes=None).fit(X)
    unit = X.std(axis=0, ddof=1) if scale else 1.0
    if scale:
        unit = model.scale_
    found = model.transform(Y, shrinkage="oadp")
    expected = same_signs(found, augmented((X - X.mean(axis=0)) / unit, (Y - X.mean(axis=0)) / unit))
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=(1e-7 if solver == "krylov" else 1e-12) * largest)
    short = model.transform(Y.astype("f4"), shrinkage="oadp")
    assert short.dtype == np.float32
    np.testing.assert_allclose(short, expected, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("solver", ["covariance", "dot", "columns", "krylov"])
def test_factors_come_from_all_eigenvalues_or_from_a_flat_rest(solver: str, tmp_path: Path) -> None:
    rows: Any = X[:, :200] if solver == "covariance" else X
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[: N - 1] ** 2
    if solver == "columns":
        rows = da.from_array(X, chunks=(N, 90))
    if solver == "krylov":
        values[K:] = values[K:].mean()
    model = bp.PCA(K, solver="dot" if solver == "columns" else solver, tol=1e-13, max_passes=None).fit(rows)
    np.testing.assert_allclose(model.shrinkage_factors_, factors(values, K, N - 1), rtol=1e-6)
    new = Y[:, : rows.shape[1]]
    np.testing.assert_allclose(
        model.transform(new, shrinkage="factor"), model.transform(new) / model.shrinkage_factors_, rtol=1e-9, atol=1e-9
    )
    model.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(bp.load(tmp_path / "m.zarr").shrinkage_factors_, model.shrinkage_factors_)


def test_the_other_eigenvalues_change_no_bit_of_the_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = {solver: bp.PCA(K, solver=solver).fit(X) for solver in ("covariance", "dot")}
    for solver, module in (("covariance", "spectrum.WHOLE"), ("dot", "dot_fit.WHOLE")):
        monkeypatch.setattr(f"bigpca.estimators.linear.{module}", 0)
        monkeypatch.setattr("bigpca.estimators.linear.dot_fit.MUCH", 10**6)
        plain = bp.PCA(K, solver=solver).fit(X)
        assert plain._result.shrinkage is None
        assert plain.components_.tobytes() == fits[solver].components_.tobytes()
        assert plain.explained_variance_.tobytes() == fits[solver].explained_variance_.tobytes()


@pytest.mark.parametrize("shrinkage", ["oadp", "factor"])
def test_rows_of_all_kinds_are_corrected_alike(shrinkage: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(COUNTS, columns=[f"g{i}" for i in range(D)])
    model = bp.PCA(K, solver="dot").fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the components of counts are weak, and some rows have names
        expected = model.transform(frame, shrinkage=shrinkage)
        lazy = da.from_array(COUNTS, chunks=(11, D))
        found = {
            "sparse": model.transform(sp.csr_array(COUNTS), shrinkage=shrinkage),
            "lazy": model.transform(lazy, shrinkage=shrinkage).compute(),
            "written": model.transform(lazy, out=tmp_path / "s.zarr", shrinkage=shrinkage).compute(),
            "batches": model.transform(bp.from_batches([frame[:30], frame[30:]]), shrinkage=shrinkage),
        }
        plain = model.transform(lazy, out=tmp_path / "s.zarr", overwrite=True).compute()
    for name, scores in found.items():
        np.testing.assert_allclose(np.asarray(scores), expected, rtol=1e-9, atol=1e-9, err_msg=name)
    assert np.abs(plain - expected).max() > 0.1


def test_incomplete_rows_are_fitted_to_their_values_first() -> None:
    model = bp.PCA(K, solver="dot").fit(X).set_params(nan_policy="mean")
    gaps = np.where(RNG.random(Y.shape) < 0.4, np.nan, Y)
    gaps[4], gaps[5] = np.nan, Y[5]
    z, s = model.transform(gaps), np.sqrt(model.explained_variance_ * (N - 1))
    residual = (gaps - model.mean_) - z @ model.components_
    observed = np.isfinite(gaps).sum(axis=1)
    squares = np.nansum(residual**2, axis=1) * np.where(observed < D, D / np.maximum(observed - K, 1), 1.0)
    # A row with these scores and that distance to the plane, along another direction.
    aside = np.linalg.qr(np.vstack([model.components_, RNG.standard_normal(D)]).T)[0][:, K]
    rows = model.mean_ + z @ model.components_ + np.sqrt(squares)[:, None] * aside
    found, kept = model.transform(gaps, shrinkage="oadp"), np.arange(len(Y)) != 4
    assert np.isnan(found[4]).all()
    expected = same_signs(found[kept], augmented(X - X.mean(axis=0), rows[kept] - model.mean_))
    np.testing.assert_allclose(found[kept], expected, rtol=0, atol=1e-10 * s[0])
    np.testing.assert_allclose(model.transform(gaps, shrinkage="factor"), z / model.shrinkage_factors_)
    omitted = model.set_params(nan_policy="omit").transform(gaps, shrinkage="oadp")
    assert np.flatnonzero(np.isfinite(omitted).all(axis=1)).tolist() == [5]
    with pytest.raises(bp.errors.NonFiniteError):
        model.set_params(nan_policy="raise").transform(gaps, shrinkage="oadp")


def test_whitened_scores_and_rows_with_covariates_are_corrected_before() -> None:
    plain, whitened = (bp.PCA(K, solver="dot", whiten=white).fit(X) for white in (False, True))
    for how in ("oadp", "factor"):
        scores = plain.transform(Y, shrinkage=how) / np.sqrt(plain.explained_variance_)
        np.testing.assert_allclose(whitened.transform(Y, shrinkage=how), scores, rtol=1e-9)
    Z, Z_new = RNG.standard_normal((N, 2)), RNG.standard_normal((len(Y), 2))
    beside = bp.PCA(K).fit(X, covariates=Z)
    for solver in ("dot", "covariance"):  # the effect is taken out in a first step, of dependent covariates too
        first = bp.PCA(K, solver=solver, center=True, scale=np.ones(D)).fit(X, covariates=Z)
        np.testing.assert_allclose(first.shrinkage_factors_, beside.shrinkage_factors_, rtol=1e-6)
    left = X - X.mean(axis=0) - (Z - Z.mean(axis=0)) @ beside.covariate_coef_.T
    new = Y - beside.mean_ - (Z_new - Z.mean(axis=0)) @ beside.covariate_coef_.T
    values = np.linalg.svd(left, compute_uv=False) ** 2
    np.testing.assert_allclose(beside.shrinkage_factors_, factors(values[: N - 3], K, N - 3), rtol=1e-6)
    found = beside.transform(Y, covariates=Z_new, shrinkage="oadp")
    np.testing.assert_allclose(found, same_signs(found, augmented(left, new)), rtol=0, atol=1e-7 * np.abs(found).max())


def test_axes_without_variance_keep_their_scores() -> None:
    flat = np.repeat(X[:4, :6], 3, axis=0)
    model = bp.PCA(5).fit(flat)
    assert model.explained_variance_[3:].max() == 0
    np.testing.assert_allclose(model.shrinkage_factors_, 1.0)
    found = model.transform(Y[:, :6], shrinkage="oadp")
    np.testing.assert_array_equal(found[:, 3:], model.transform(Y[:, :6])[:, 3:])


def test_a_component_with_the_variance_of_others_gets_no_scores() -> None:
    model = bp.PCA(2).fit(np.eye(6))
    assert model.shrinkage_factors_.tolist() == [0, 0]
    with pytest.warns(bp.errors.ApproximationWarning, match="2 of 2 components, .* the least 0:"):
        assert not model.transform(np.eye(6), shrinkage="factor").any()


def test_rows_whose_squares_overflow_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"squares of values in rows 0:25 .* leave the range of float64"):
        bp.PCA(K).fit(X).transform(1e200 * Y, shrinkage="oadp")


def test_weak_components_are_warned_of_and_what_cannot_be_corrected_is_an_error() -> None:
    noise = bp.PCA(K, solver="dot").fit(RNG.standard_normal((N, D)))
    for how in ("oadp", "factor"):
        with pytest.warns(ApproximationWarning, match=r"3 of 3 components, the first .* number 0, .* below 0.5"):
            noise.transform(Y, shrinkage=how)
    with pytest.raises(ValueError, match="shrinkage"):
        noise.transform(Y, shrinkage="lee")
    with pytest.raises(TypeError, match="corrects the scores of PCA, but the model is an ApproximatePCA"):
        bp.ApproximatePCA(K).fit(X).transform(Y, shrinkage="oadp")
    with pytest.raises(TypeError, match="shrinkage"):  # rows of the fit are not new
        bp.PCA(K).fit_transform(X, shrinkage="oadp")
