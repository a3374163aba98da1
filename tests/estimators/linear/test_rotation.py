"""Rotated components: simple structure, the span and the reconstruction of the PCA, and factor_analyzer's numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

import bigpca as bp
from bigpca.errors import ApproximationWarning
from bigpca.solvers import rotation
from bigpca.solvers.rotation import orthomax

Array = NDArray[Any]
N, D, K = 300, 24, 4
METHODS = ("varimax", "quartimax", "promax")


def blocks_of_features(n: int = N, d: int = D, k: int = K, seed: int = 0) -> Array:
    """Rows whose features follow one of k factors each, with noise."""
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((n, k)) * np.linspace(3, 1, k)
    return factors[:, np.arange(d) % k] + 0.4 * rng.standard_normal((n, d)) + 5


X = blocks_of_features()
PLAIN = bp.PCA(K).fit(X)


@pytest.mark.parametrize("method", ["varimax", "promax"])
@pytest.mark.parametrize("data", ["blocks", "measured"])
def test_loadings_equal_those_of_factor_analyzer(method: str, data: str) -> None:
    theirs: Any = pytest.importorskip("factor_analyzer.rotator", reason="factor_analyzer is not installed")
    rows, scale = (X, False) if data == "blocks" else (load_breast_cancer().data, True)
    model = bp.PCA(K, scale=scale).fit(rows)
    found = bp.RotatedPCA.of(model, method)
    other = theirs.Rotator(method=method, tol=1e-12, max_iter=5000)
    expected = other.fit_transform(model.loadings_.copy())
    order = np.argsort(-(expected**2).sum(axis=0))
    expected = expected[:, order]
    signs = np.sign(expected[np.abs(expected).argmax(axis=0), np.arange(K)])
    np.testing.assert_allclose(found.loadings_, expected * signs, rtol=0, atol=1e-6 * np.abs(expected).max())
    if method == "promax":
        phi = other.phi_[np.ix_(order, order)] * np.outer(signs, signs)
        np.testing.assert_allclose(found.phi_, phi, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [False, True])
def test_scores_are_of_unit_variance_correlated_by_phi_and_reconstruct_as_the_pca_does(
    method: str, scale: bool
) -> None:
    pca = bp.PCA(K, scale=scale).fit(X)
    found = bp.RotatedPCA.of(pca, method)
    scores = found.transform(X)
    np.testing.assert_allclose(np.cov(scores.T), found.phi_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.diag(found.phi_), 1, rtol=1e-10)
    np.testing.assert_allclose(found.inverse_transform(scores), pca.inverse_transform(pca.transform(X)), rtol=1e-10)
    np.testing.assert_allclose(found.loadings_, pca.loadings_ @ found.rotation_matrix_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.explained_variance_.sum(), pca.explained_variance_.sum(), rtol=1e-10)
    squares = (found.loadings_**2).sum(axis=0)
    assert (np.diff(squares) <= 1e-12 * squares[0]).all()
    if method != "promax":
        np.testing.assert_allclose(found.explained_variance_, squares, rtol=1e-10)
        np.testing.assert_allclose(found.rotation_matrix_ @ found.rotation_matrix_.T, np.eye(K), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::PendingDeprecationWarning")
def test_rotated_patterns_of_fields_are_those_of_xeofs(scale: bool) -> None:
    xeofs, xr = pytest.importorskip("xeofs.single"), pytest.importorskip("xarray")
    field = xr.DataArray(X.reshape(len(X), -1, 4), dims=("time", "lat", "lon"), coords={"time": np.arange(len(X))})
    eof = xeofs.EOF(n_modes=K, standardize=scale, solver="full").fit(field, dim="time")
    for method, power in (("varimax", 1), ("promax", 4)):
        theirs = xeofs.EOFRotator(n_modes=K, power=power, rtol=1e-14).fit(eof)
        ours = bp.RotatedPCA(K, rotation=method, power=4, estimator=bp.PCA(K, scale=scale)).fit(field)
        np.testing.assert_allclose(np.sort(ours.explained_variance_), np.sort(theirs.explained_variance()), rtol=0.2)
        patterns = theirs.components().transpose("mode", "lat", "lon").values.reshape(K, -1)
        own = ours.loadings_.T / np.linalg.norm(ours.loadings_.T, axis=1, keepdims=True)
        patterns = patterns / np.linalg.norm(patterns, axis=1, keepdims=True)
        np.testing.assert_allclose(np.abs(own @ patterns.T).max(axis=1), 1, atol=1e-6)


def test_without_normalisation_the_variance_of_squared_loadings_is_largest() -> None:
    def criterion(A: Any) -> float:
        return float((A**2).var(axis=0).sum())

    unequal = bp.PCA(K).fit(X * np.linspace(0.2, 3, X.shape[1]))
    raw, kaiser = (bp.RotatedPCA.of(unequal, normalize=one) for one in (False, True))
    assert criterion(raw.loadings_) > 1.0001 * criterion(kaiser.loadings_)
    fitted = bp.RotatedPCA(K, normalize=False).fit(X * np.linspace(0.2, 3, X.shape[1]))
    np.testing.assert_allclose(fitted.loadings_, raw.loadings_, atol=1e-10)
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = np.linalg.qr(rng.standard_normal((K, K)))[0]
        assert criterion(unequal.loadings_ @ other) <= criterion(raw.loadings_) * (1 + 1e-9)


@pytest.mark.parametrize("gamma", [1.0, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_rotation_is_a_maximum_where_the_gradient_iteration_alternates(seed: int, gamma: float) -> None:
    rows = blocks_of_features(seed=seed, d=8, k=2)
    A = bp.PCA(2).fit(rows).loadings_
    A = A / np.linalg.norm(A, axis=1, keepdims=True)
    R, turned = orthomax(A, gamma)
    assert turned <= rotation.TOLERANCE
    angles = np.linspace(0, np.pi, 2001)
    turns = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]])

    def criterion(B: Array) -> Any:
        return (B**4).mean(axis=0).sum(axis=0) - gamma * ((B**2).mean(axis=0) ** 2).sum(axis=0)

    assert criterion(A @ R) >= criterion(np.einsum("ij,jka->ika", A, turns)).max() - 1e-12


def test_constant_features_have_no_loading_and_change_nothing() -> None:
    wider = np.hstack([X, np.ones((N, 3))])
    found = bp.RotatedPCA.of(bp.PCA(K).fit(wider)).loadings_
    np.testing.assert_allclose(found[:D], bp.RotatedPCA.of(PLAIN).loadings_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found[D:], 0, rtol=0, atol=1e-12)


def test_a_rotation_that_does_not_converge_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "MAX_SWEEPS", 1)
    with pytest.warns(ApproximationWarning, match=r"varimax still rotated by .* radians"):
        bp.RotatedPCA.of(bp.PCA(8).fit(np.random.default_rng(1).standard_normal((100, 20))))


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "one component": (lambda: bp.RotatedPCA.of(bp.PCA(1).fit(X)), "at least two components, but the model has 1"),
    "a fit of one": (lambda: bp.RotatedPCA(1).fit(X), "at least two components, but the model has 1"),
    "no variance": (
        lambda: bp.RotatedPCA.of(bp.PCA(3).fit(X[:, :1] * np.arange(1, 5))), "2 of 3 components have variance 0"
    ),
    "another method": (
        lambda: bp.RotatedPCA.of(PLAIN, "oblimin"), "rotation = 'oblimin' is unknown. Use one of 'varimax', 'quartimax'"
    ),
    "a power of one": (lambda: bp.RotatedPCA.of(PLAIN, "promax", power=1), r"power = 1 is outside \(1, inf\); a power"),
    "another model": (lambda: bp.RotatedPCA.of(bp.KernelPCA(2).fit(X)), "a KernelPCA cannot be rotated. Give a fitted"),
    "another estimator": (lambda: bp.RotatedPCA(estimator=bp.KernelPCA(2)).fit(X), "is a KernelPCA; a PCA or"),
    "oblique axes": (
        lambda: bp.RotatedPCA(estimator=bp.ApproximatePCA(2, bp.sketches.Gaussian(5), approximation="tutorial")).fit(X),
        "components are not orthonormal",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_rotated_is_rejected_in_words(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError), match=message):
        call()
