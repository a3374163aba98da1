"""Contrastive PCA and PCA in a metric equal dense eigenproblems of NumPy's covariances."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import eigh

import bigpca as bp

Array = NDArray[Any]
D, ALPHA = 5, 0.7
RNG = np.random.default_rng(5)
OF_INTEREST = RNG.standard_normal((210, D)) @ RNG.standard_normal((D, D)) + 3.0
BACKGROUND = RNG.standard_normal((140, D)) * [3, 1, 1, 0.5, 2] - 40.0
ORDER = RNG.permutation(350)
X = np.concatenate([OF_INTEREST, BACKGROUND])[ORDER]
Y = np.repeat(["a", "b", "none"], [110, 100, 140])[ORDER]


def assert_axes(components: Array, expected: Array, tolerance: float = 1e-11) -> None:
    signs = np.sign(np.einsum("ij,ij->i", components, expected))
    np.testing.assert_allclose(components * signs[:, None], expected, atol=tolerance)


def assert_contrasts(model: Any, k: int, alpha: float, tolerance: float = 1e-11) -> None:
    values, V = eigh(np.cov(OF_INTEREST.T) - alpha * np.cov(BACKGROUND.T))
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:k], atol=tolerance * np.abs(values).max())
    assert_axes(model.components_, V[:, ::-1][:, :k].T, 10 * tolerance)
    np.testing.assert_allclose(model.mean_, OF_INTEREST.mean(axis=0))


@pytest.mark.parametrize("chunk", [3, 50, 350])
def test_a_contrast_is_a_dense_eigenproblem_for_any_chunks(chunk: int) -> None:
    model = bp.ContrastivePCA(2, alpha=ALPHA, background="none").fit(da.from_array(X, chunks=(chunk, D)), Y)
    assert_contrasts(model, 2, ALPHA)
    assert (model.plan_.passes, model.n_samples_) == (1, 350)
    one = bp.ContrastivePCA(alpha=0.7, background="none").fit(X, Y)
    np.testing.assert_allclose(one.inverse_transform(one.transform(X)), X, atol=1e-11)


def test_two_fitted_models_are_contrasted_without_a_read() -> None:
    models = bp.PCA(1).fit(OF_INTEREST), bp.PCA(scale=True).fit(BACKGROUND)
    for alpha in (0, 0.7, 3.0):
        assert_contrasts(bp.ContrastivePCA.of(*models, 2, alpha=alpha), 2, alpha)
    with pytest.raises(TypeError, match=r"alpha = \[0\.7\] is a list; a number in \[0, inf\) was expected"):
        bp.ContrastivePCA.of(*models, alpha=[0.7])
    kinds = bp.PCA(1).fit(X, groups=Y == "none")
    model = bp.ContrastivePCA.of(kinds.of_group(False), kinds.of_group(True), alpha=0.7)
    assert_contrasts(model, D, 0.7)
    assert (model.n_samples_, model.n_features_in_) == (350, D)
    with pytest.raises(TypeError, match="a KernelPCA was given; two fitted PCAs were expected"):
        bp.ContrastivePCA.of(models[0], bp.KernelPCA(1).fit(X))
    for other in (
        bp.PCA(1).fit(X[:, :3]),
        bp.PCA(1, preprocess=bp.preprocessing.L2()).fit(X),
        bp.PCA(1).fit(X, covariates=X[:, 0]),
    ):
        with pytest.raises(
            ValueError, match=r"models of 5 and [35] features, preprocessed by \(\) and|with covariates"
        ):
            bp.ContrastivePCA.of(models[0], other)
    with bp.config(keep_state_bytes=0):
        small = bp.PCA(1).fit(X)
        with pytest.raises(ValueError, match=r"ContrastivePCA\.of needs the moments of all rows, 240 B, which"):
            bp.ContrastivePCA.of(models[0], small)


UNITS = np.array([9.0, 3.0, 1.0, 0.1, 2.0])
PARAMETERS: tuple[dict[str, Any], ...] = ({}, {"scale": UNITS}, {"center": UNITS}, {"center": -UNITS, "scale": UNITS})


@pytest.mark.parametrize("of_background", range(4))
@pytest.mark.parametrize("of_interest", range(4))
def test_models_of_any_centre_and_scale_are_contrasted_in_the_units_of_their_rows(
    of_interest: int, of_background: int
) -> None:
    a, b = bp.PCA(**PARAMETERS[of_interest]).fit(OF_INTEREST), bp.PCA(**PARAMETERS[of_background]).fit(BACKGROUND)
    model = bp.ContrastivePCA.of(a, b, 2, alpha=0.5)
    assert_contrasts(model, 2, 0.5)
    scores, others = model.transform(OF_INTEREST), model.transform(BACKGROUND)
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scores.var(0, ddof=1) - 0.5 * others.var(0, ddof=1), model.eigenvalues_, rtol=1e-10)
    if of_interest:
        with pytest.raises(ValueError, match="center or scale was changed after the fit"):
            bp.ContrastivePCA.of(a.set_params(scale=UNITS / 2), b)


@pytest.mark.parametrize(("of_rows", "of_metric"), [(0, 0), (1, 2), (2, 3), (3, 1), (0, 3), (3, 0)])
def test_a_model_in_the_metric_of_another_is_that_of_its_rows_and_grows(
    of_rows: int, of_metric: int, tmp_path: Path
) -> None:
    w = np.arange(len(BACKGROUND)) % 3 + 1
    a = bp.PCA(1, **PARAMETERS[of_rows]).fit(OF_INTEREST)
    b = bp.PCA(whiten=True, **PARAMETERS[of_metric]).fit(BACKGROUND, sample_weight=w)
    model = bp.GeneralizedPCA.of(a, b, 2)
    direct = bp.GeneralizedPCA(2, metric=np.cov(BACKGROUND.T, fweights=w)).fit(OF_INTEREST)
    np.testing.assert_allclose(model.eigenvalues_, direct.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(model.transform(X), direct.transform(X), atol=1e-10)
    model.save(tmp_path / "m.zarr")
    for one in (model, bp.load(tmp_path / "m.zarr")):
        assert one.n_samples_ == len(OF_INTEREST)
        grown = one.partial_fit(BACKGROUND)
        np.testing.assert_allclose(grown.transform(X), direct_of(np.vstack([OF_INTEREST, BACKGROUND]), w), atol=1e-9)


def direct_of(rows: Array, w: Array) -> Any:
    return bp.GeneralizedPCA(2, metric=np.cov(BACKGROUND.T, fweights=w)).fit(rows).transform(X)


def test_a_metric_of_a_model_is_of_other_rows_and_of_all_directions() -> None:
    model = bp.PCA(1).fit(OF_INTEREST)
    few, covariates = bp.PCA(1).fit(BACKGROUND[:4]), bp.PCA(1).fit(X, covariates=X[:, 0])
    with pytest.raises(ValueError, match="metric has 3 directions of positive length to rounding; 5 were expected"):
        bp.GeneralizedPCA.of(model, few)
    with pytest.raises(ValueError, match="models with covariates cannot be contrasted"):
        bp.GeneralizedPCA.of(model, covariates)
    with bp.config(keep_state_bytes=0):
        small = bp.PCA(1).fit(X)
        with pytest.raises(ValueError, match=r"GeneralizedPCA\.of needs the moments of all rows, 240 B, which"):
            bp.GeneralizedPCA.of(model, small)


def test_batches_may_be_of_one_kind() -> None:
    model = bp.ContrastivePCA(2, alpha=ALPHA, background="none").fit(X[:200], Y[:200])
    for kind in (Y == "none", Y != "none"):
        more = np.flatnonzero(kind & (np.arange(len(X)) >= 200))
        model.partial_fit(X[more], Y[more])
    assert_contrasts(model, 2, ALPHA)


def test_what_cannot_be_contrasted_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"requires y to be passed, but the target y is None\. Give the label 0 for"):
        bp.ContrastivePCA(1).fit(X)
    with pytest.raises(ValueError, match=r"background = 7 is the label of 0 rows, and 350 have others; at least 2 of"):
        bp.ContrastivePCA(1, background=7).fit(X, (Y == "none").astype(int))
    with pytest.raises(TypeError, match="background = 0 is not a label such as those in y: "):
        bp.ContrastivePCA(1).fit(X, Y)
    with pytest.raises(ValueError, match=r"alpha = 1e\+308 times the covariance of the background overflows float64"):
        bp.ContrastivePCA(1, alpha=1e308, background="none").fit(X, Y)
    with pytest.raises(
        ValueError, match=r"1 of 350 row labels are missing .* Fill them in, or leave those rows out\.$"
    ):
        bp.ContrastivePCA(1).fit(X, np.where(np.arange(350) == 3, np.nan, Y == "none"))
    with pytest.raises(ValueError, match="there are 349 labels for 350 rows"):
        bp.ContrastivePCA(1, background="none").fit(X, Y[1:])
    for kind in (Y == "none", Y != "none"):  # too little of one, beside enough of both
        with pytest.raises(ValueError, match=r"the weights add up to 1\.4, .* and a sum of at least 2 is required"):
            bp.ContrastivePCA(1, background="none").fit(X, Y, sample_weight=np.where(kind, 1.4 / kind.sum(), 1.0))


@pytest.mark.parametrize("units", [1.0, np.array([1e60, 1e-60, 1.0, 300.0, 1e-3])], ids=["one", "own"])
def test_a_metric_is_the_dense_pencil_in_any_units(units: Any) -> None:
    M = np.cov(BACKGROUND.T)
    values, V = eigh(np.cov(OF_INTEREST.T), M)
    model = bp.GeneralizedPCA(metric=np.outer(units, units) * M).fit(da.from_array(OF_INTEREST * units, chunks=(50, D)))
    np.testing.assert_allclose(model.eigenvalues_, values[::-1], rtol=1e-10)
    assert_axes(model.components_ * units, V[:, ::-1].T, 1e-9 * np.abs(V).max())
    scores = model.transform(OF_INTEREST * units)
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), model.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(scores) / units, OF_INTEREST, atol=1e-9)
    for unit in (2.0**-490, 2.0**500):  # of rows alone
        far = bp.GeneralizedPCA(metric=M).fit(OF_INTEREST * unit)
        np.testing.assert_allclose(far.eigenvalues_ / unit / unit, values[::-1], rtol=1e-10)
    plain, pca = bp.GeneralizedPCA(2).fit(X), bp.PCA(2).fit(X)
    np.testing.assert_allclose(plain.eigenvalues_, pca.explained_variance_)
    assert_axes(plain.components_, pca.components_)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("span", [0, 6, 12, 24, 60, 200])
def test_every_eigenvalue_has_its_own_digits_in_a_metric_of_any_range(span: int, full: bool) -> None:
    """Exact fractions: axes with V C V' = diag(eigenvalues) and V M V' = I, each entry relative to both of its axes."""
    exact = np.vectorize(Fraction, otypes=[object])
    units = 10.0 ** (np.linspace(-span / 4, span / 4, D)[[2, 0, 4, 1, 3]])
    M = units[:, None] * (np.corrcoef(BACKGROUND[:9].T) if full else np.eye(D)) * units
    M = (M + M.T) / 2
    rows = OF_INTEREST[:60]
    model = bp.GeneralizedPCA(metric=M).fit(rows)
    assert model.eigenvalues_.max() > 10.0 ** (span - 3) * model.eigenvalues_.min()
    V, centred = exact(model.components_), exact(rows)
    centred = centred - centred.sum(axis=0) / len(rows)
    roots = np.sqrt(model.eigenvalues_)
    of_c = (V @ (centred.T @ centred / (len(rows) - 1)) @ V.T).astype(float) / np.outer(roots, roots)
    np.testing.assert_allclose(of_c, np.eye(D), atol=1e-12)
    np.testing.assert_allclose((V @ exact(M) @ V.T).astype(float), np.eye(D), atol=1e-12)
    np.testing.assert_allclose((exact(model.patterns_).T @ V.T).astype(float), np.eye(D), atol=1e-12)


def test_what_is_no_metric_is_rejected_unread() -> None:
    lazy = da.from_array(X, chunks=(50, D))
    for metric, message in (
        (np.eye(3), r"metric has shape \(3, 3\) .*; a finite and symmetric matrix of shape \(5, 5\), with a diagonal"),
        (np.triu(np.ones((D, D))), r"metric .* differs from its transpose by up to 1; a finite and symmetric matrix"),
        (np.full((D, D), np.nan), "metric has shape .*; a finite"),
        (np.ones((D, D)), "metric has 1 directions of positive length to rounding; 5 were expected"),
        (np.diag([1.0, 1, 1, 1, -1]), "metric has 4 directions"),
        (np.diag([1.0, 1, 1, 1, 1e-310]), "with a diagonal of 1e-300 to 1e300, was expected"),
        (np.eye(D) * 1.7e308, "with a diagonal of 1e-300 to 1e300, was expected"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            bp.GeneralizedPCA(metric=metric).plan(lazy)
    for wrong in ("euclidean", np.eye(D) * 1j):
        with pytest.raises(TypeError, match=r"metric = .* is not a matrix of real numbers"):
            bp.GeneralizedPCA(metric=wrong).plan(lazy)
