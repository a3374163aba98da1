"""Certificates: bounds belong to what is returned, and hold for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca import PCA, ApproximateKernelPCA, ApproximatePCA, KernelPCA, NystromKernelPCA
from bigpca.errors import ModelFormatError
from bigpca.estimators.linear.maps import low_rank_plus_diagonal
from bigpca.estimators.linear.model import LinearModel
from bigpca.estimators.shared.certificates import Certificate, Certified, certify
from bigpca.estimators.shared.files import StoredModel, save_model
from bigpca.kernels import RBF, Polynomial
from bigpca.passes.accumulators.moments import Moments
from bigpca.sketches import FeatureHash, Gaussian
from bigpca.solvers.nystrom import nystrom
from tests.builders import data_with_spectrum, gap, orthonormal_rows, power_law
from tests.estimators.stores import save_changed, stored

Array = NDArray[Any]
doubtful = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


@pytest.mark.parametrize("length", [1 - 4e-15, 1 + 4e-15])
def test_bounds_hold_for_a_basis_that_is_orthonormal_to_its_rounding_only(length: float) -> None:
    """A Krylov basis is accepted at 1e-14, five times the slack of float64 products."""
    spectrum = power_law(60, 2.0)
    B = length * np.linalg.qr(np.eye(60, 20) + 1e-9 * orthonormal_rows(20, 60).T)[0]
    found = nystrom(B, spectrum[:, None] * B, 5, precision=2.0**-52)
    certificate = certify(found, 5, float(spectrum.sum()), precision=2.0**-52, basis=B)
    lower, upper = certificate.eigenvalue_bounds.T
    assert (lower <= spectrum[:5]).all()
    assert (spectrum[:5] <= upper).all()
    assert (upper - lower <= 1e-11).all()


@doubtful
@pytest.mark.parametrize("seed", range(10))
def test_the_captured_variance_of_oblique_axes_is_that_of_what_they_span(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((150, 40)) * power_law(40, 0.3)
    A = np.cov(X.T)
    model: Any = ApproximatePCA(6, Gaussian(12, random_state=seed), approximation="tutorial").fit(X)
    Q = np.linalg.qr(model.components_.T)[0]
    least, most = model.captured_variance_bounds_ * np.trace(A)
    assert least <= np.trace(Q.T @ A @ Q) <= most
    kernel = (Polynomial(2, gamma=1 / 40, coef0=1.0), RBF(1 / 40))[seed % 2]
    K = kernel(X)
    G = K - K.mean(axis=0)
    G -= G.mean(axis=1)[:, None]
    model = ApproximateKernelPCA(
        6, kernel=kernel, sketch=Gaussian(30, random_state=seed), approximation="tutorial"
    ).fit(X)
    Q = np.linalg.qr(model.eigenvectors_)[0]
    least, most = model.captured_variance_bounds_ * np.trace(G)
    assert least <= np.trace(Q.T @ G @ Q) <= most


@doubtful
def test_axes_that_a_sketch_without_rank_leaves_empty_capture_nothing() -> None:
    X = np.random.default_rng(0).standard_normal((100, 30))
    A = np.cov(X.T)
    model = ApproximatePCA(20, FeatureHash(20), approximation="tutorial").fit(X)  # some of 20 columns stay empty
    lengths, V = np.linalg.svd(model.components_)[1:]
    rank = int((lengths > 1e-10).sum())
    assert rank < 20
    least, most = model.captured_variance_bounds_ * np.trace(A)
    assert least <= np.trace(V[:rank] @ A @ V[:rank].T) * (1 + 1e-12) <= most


def angle(axes: Array, V: Array) -> float:
    """The sine of the largest angle between rows of axes, not always orthogonal, and the span of
    orthonormal columns V.
    """
    Q = np.linalg.qr(axes.T)[0]
    return float(np.linalg.norm(Q - V @ (V.T @ Q), 2))


def assert_certified(model: Any, axes: Array, A: Array, useful: float) -> None:
    """All bounds hold, and the last is below ``useful``."""
    V, k = np.linalg.eigh(A)[1][:, ::-1], len(axes)
    assert model.subspace_error_bounds_.shape == (k,)
    for j in range(1, k + 1):
        assert angle(axes[:j], V[:, :j]) <= model.subspace_error_bounds_[j - 1]
        assert model.containment_bound(j, j) == model.subspace_error_bounds_[j - 1]
        for p in range(j, 2 * k + 1):
            assert angle(axes[:j], V[:, :p]) <= model.containment_bound(j, p)
    assert model.subspace_error_bounds_[-1] < useful


USEFUL = {"nystrom": 0.7, "tutorial": 1.01, "ritz": 2e-2, "krylov": 2e-2, "by columns": 2e-2}


@doubtful
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("route", USEFUL)
def test_every_route_bounds_the_angles_of_its_axes(
    route: str, scale: bool, dtype: str, tmp_path: Path, float32_products: None
) -> None:
    X = data_with_spectrum(200, gap(40, 4, size=30.0), mean=1.0)[0].astype(dtype)
    rows = X.astype("f8") - X.astype("f8").mean(axis=0)
    rows = rows / rows.std(axis=0) if scale else rows
    model: Any = PCA(4, solver="krylov", scale=scale)
    if route in ("nystrom", "tutorial", "ritz"):
        model = ApproximatePCA(4, Gaussian(25), approximation=route, scale=scale)
    source = stored(tmp_path, X, (200, 10)) if route == "by columns" else X
    model.fit(source)
    assert_certified(
        model, model.components_, rows.T @ rows / 199, 1.01 if scale and route == "nystrom" else USEFUL[route]
    )


@doubtful
@pytest.mark.parametrize("kernel", [RBF(0.02), Polynomial(2, gamma=0.1, coef0=1.0)], ids=["rbf", "polynomial"])
@pytest.mark.parametrize("route", ["nystrom", "tutorial", "ritz", "krylov"])
def test_every_kernel_route_bounds_the_angles_of_its_vectors_and_of_its_axes(route: str, kernel: Any) -> None:
    X = np.random.default_rng(0).standard_normal((120, 4)) * np.array([4.0, 3.0, 0.3, 0.2])
    K = kernel(X)
    G = K - K.mean(axis=0)
    G -= G.mean(axis=1)[:, None]
    model: Any = KernelPCA(2, kernel=kernel, solver="krylov")
    if route != "krylov":
        model = ApproximateKernelPCA(2, kernel=kernel, sketch=Gaussian(60), approximation=route)
    model.fit(X)
    V = model.eigenvectors_
    assert_certified(model, V.T, G, 0.2)
    w, Z = np.linalg.eigh((G + G.T) / 2)
    root = (Z * np.sqrt(np.maximum(w, 0))) @ Z.T  # G = X X' with X = root: the axes are X'V
    assert_certified(model, (root @ V).T, G, 0.2)


def test_bounds_of_subspaces_exist_only_where_the_matrix_is_multiplied_and_definite(tmp_path: Path) -> None:
    X = data_with_spectrum(80, power_law(6), mean=1.0)[0]
    model = PCA(2, solver="krylov").fit(X)
    model.save(tmp_path / "m.zarr")
    loaded = bp.load(tmp_path / "m.zarr")
    assert np.array_equal(loaded.subspace_error_bounds_, model.subspace_error_bounds_)
    assert loaded.containment_bound(1, 2) == model.containment_bound(1, 2)
    kernel = KernelPCA(2, kernel=RBF(0.1), solver="krylov").fit(X)
    kernel.save(tmp_path / "k.zarr")
    assert bp.load(tmp_path / "k.zarr").containment_bound(2, 4) == kernel.containment_bound(2, 4)
    for exact in (model.set_params(solver="covariance").fit(X), kernel.set_params(solver="dense").fit(X)):
        assert not hasattr(exact, "subspace_error_bounds_")
        assert not hasattr(exact, "containment_bound")
    landmarks = NystromKernelPCA(2, kernel=RBF(0.1), n_landmarks=20).fit(X)
    assert not hasattr(landmarks, "subspace_error_bounds_")
    assert hasattr(landmarks, "eigenvalue_bounds_")


@pytest.mark.parametrize(("n_axes", "n_true"), [(0, 1), (3, 3), (2, 1), (1, 5)])
def test_containment_takes_numbers_that_are_bounded(n_axes: int, n_true: int) -> None:
    model = PCA(2, solver="krylov").fit(data_with_spectrum(80, power_law(9))[0])
    with pytest.raises(ValueError, match=rf"n_axes = {n_axes} and n_true = {n_true}; 1 <= n_axes <= 2 .* n_true <= 4"):
        model.containment_bound(n_axes, n_true)


@pytest.mark.parametrize("model", [PCA(2, solver="krylov"), KernelPCA(2, kernel=RBF(0.1), solver="krylov")])
def test_forged_bounds_of_subspaces_are_rejected(model: Any, tmp_path: Path) -> None:
    model.fit(data_with_spectrum(80, power_law(9))[0])
    for name, array in (
        ("certificate__subspaces__upper", np.ones(2)),
        ("certificate__subspaces__lowest", np.ones(3)),
        ("certificate__subspaces__deficits", None),
    ):
        forged = StoredModel.of(model)
        if array is None:
            del forged.arrays[name]
        else:
            forged.arrays[name] = array
        save_model(tmp_path / "m.zarr", forged, overwrite=True)
        with pytest.raises(ModelFormatError, match=r"subspace|upper bounds"):
            bp.load(tmp_path / "m.zarr")


# What a solver certifies becomes attributes, survives the disk, and never outlives the fit that it was about


X = data_with_spectrum(50, power_law(6), mean=5.0)[0]
BOUNDS = np.array([[1.0, 1.1], [0.5, 0.6], [0.3, 0.4]])
FULL = Certificate(BOUNDS, np.array([0.01, 0.02, 0.03]), np.array([0.8, 0.9]), 0.999, 2.5, False)


def certified(certificate: Certificate) -> PCA:
    """A PCA whose solver certified its answer."""
    pca = PCA(3).fit(X)
    pca._found = replace(pca._result, certificate=certificate)
    return pca


def certificate_of(model: Any) -> dict[str, Any]:
    return {
        name: getattr(model, name) for name in vars(Certified) if name[-1] == "_" != name[0] and hasattr(model, name)
    }


def test_a_certificate_becomes_attributes() -> None:
    found = certificate_of(certified(FULL))
    assert set(found) == {
        "eigenvalue_bounds_", "residuals_", "captured_variance_bounds_", "bounds_confidence_", "n_passes_",
        "converged_",
    }  # fmt: skip
    assert found["eigenvalue_bounds_"] is FULL.eigenvalue_bounds
    assert found["residuals_"] is FULL.residuals
    assert (found["bounds_confidence_"], found["n_passes_"], found["converged_"]) == (0.999, 2.5, False)


@pytest.mark.parametrize("refit", ["fit", "partial_fit"])
def test_an_exact_fit_forgets_the_certificate_of_the_fit_before(refit: str) -> None:
    assert certificate_of(getattr(certified(FULL), refit)(X)) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"certificate__eigenvalue_bounds": np.full((3, 2), np.inf)},
            "eigenvalue_bounds with values that are not finite",
        ),
        ({"certificate__eigenvalue_bounds": None}, "lacks certificate__eigenvalue_bounds"),
        ({"state__packed": None}, "packed"),
    ],
)
def test_a_wrong_certificate_or_state_is_rejected(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save_changed(certified(FULL), changes, tmp_path / "model.zarr")
    with pytest.raises(ModelFormatError, match=rf"does not hold what a PCA of format .*{message}"):
        bp.load(path)


def test_a_dense_covariance_over_16_gib_is_rejected_before_it_is_allocated() -> None:
    wrong = np.ones(2)  # which no product with one component accepts
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"a dense 46341 x 46341 matrix takes 16\.0 GiB, more than"):
        low_rank_plus_diagonal(np.ones((1, 46_341)), wrong, 1.0)
    with pytest.raises(ValueError, match="matmul"):
        low_rank_plus_diagonal(np.ones((1, 46_340)), wrong, 1.0)


def test_models_of_two_classes_or_of_one_that_depends_on_its_rows_are_not_merged() -> None:
    with pytest.raises(TypeError, match="a PCA and a SketchTransformer cannot be merged"):
        bp.merge(PCA(2).fit(X), bp.SketchTransformer(bp.sketches.Gaussian(2)).fit(X))
    with pytest.raises(TypeError, match="two models of dict cannot be merged"):
        bp.merge({}, {})
    rotated = bp.RotatedPCA(2).fit(X)
    with pytest.raises(TypeError, match="two models of RotatedPCA cannot be merged: what each keeps"):
        bp.merge(rotated, rotated)


def test_a_linear_model_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        LinearModel[Moments]()  # type: ignore[abstract]
