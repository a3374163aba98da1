"""Eigenvalues and axes agree with NumPy's SVD of the whole matrix in float64, whatever the mean,
dtype, chunks and solver.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import hadamard
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.decomposition import PCA as InMemoryPCA
from sklearn.preprocessing import StandardScaler

from bigpca import PCA
from tests.builders import data_with_spectrum, gap, power_law
from tests.estimators.stores import exact, largest_angle, stored

N, D, K = 400, 64, 20
ROUTES = {
    "covariance, row chunks": ("covariance", (90, D)),
    "covariance, column chunks": ("covariance", (90, 25)),
    "dot, row panels": ("dot", (90, D)),
    "dot, column blocks": ("dot", (N, 16)),
    "dot, column blocks of cut rows": ("dot", (90, 25)),
}
routes_and_ratios = pytest.mark.parametrize(
    ("route", "ratio"), [*((route, 1e4) for route in ROUTES), *(("covariance, row chunks", ratio) for ratio in (0, 10))]
)
# The steep one has lambda_20 = 1.05e-3 lambda_1, the limit to which the relative bound is promised.
SPECTRA = {"gap": gap(D, 30), "power law": power_law(D, 0.5), "steep": power_law(D, -np.log(1.05e-3) / np.log(K))}


def offset(spectrum: NDArray[np.float64], ratio: float, seed: int = 0) -> NDArray[np.float32]:
    mean = ratio * float(np.sqrt(spectrum.mean()))
    return np.asarray(data_with_spectrum(N, spectrum, mean=mean, seed=seed, dtype=np.float32)[0], np.float32)


@pytest.mark.parametrize(
    ("route", "ratio", "spectrum"),
    [*((route, ratio, "power law") for route in ROUTES for ratio in (0, 1e4)),
     *(("covariance, row chunks", ratio, spectrum) for ratio in (1, 10, 100) for spectrum in SPECTRA)],
)  # fmt: skip
def test_float32_eigenvalues_are_right_at_any_mean(route: str, ratio: float, spectrum: str, tmp_path: Path) -> None:
    solver, chunks = ROUTES[route]
    X = offset(SPECTRA[spectrum], ratio)
    expected, axes, total = exact(X, K)
    assert expected[-1] >= 1e-3 * expected[0]
    pca = PCA(K, solver=solver).fit(stored(tmp_path, X, chunks))
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=0, atol=1e-6 * expected[0])
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-6)
    np.testing.assert_allclose(pca.total_variance_, total, rtol=1e-6)
    np.testing.assert_allclose(pca.mean_, X.mean(axis=0, dtype=np.float64), atol=1e-6 * np.sqrt(expected[0]))
    gram = pca.components_ @ pca.components_.T
    np.testing.assert_allclose(gram, np.eye(K), atol=1e-12)
    if spectrum == "power law":
        separation = 1 - (K / (K + 1)) ** 0.5  # relative to lambda_20: what Davis and Kahan divide by
        assert largest_angle(pca.components_, axes) < 1e-6 * expected[0] / (separation * expected[-1])


@pytest.mark.usefixtures("float32_products")
@pytest.mark.parametrize("options", [{}, {"center": False}, {"scale": True}])
@pytest.mark.parametrize("route", [route for route in ROUTES if route.startswith("dot")])
def test_the_read_for_components_corrects_the_dot_matrix_of_float32(
    route: str, options: dict[str, bool], tmp_path: Path
) -> None:
    solver, chunks = ROUTES[route]
    X = offset(SPECTRA["power law"], 1)
    expected, axes, total = exact(X, K, **options)  # alone, products in float32 have errors of 1e-8 to 1e-7
    pca = PCA(K, solver=solver, **options).fit(stored(tmp_path, X, chunks))  # type: ignore[arg-type]
    rtol = 5e-8 if options.get("scale") else 1e-9  # deviations of columns come from float32 rows
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=rtol)
    np.testing.assert_allclose(pca.total_variance_, total, rtol=rtol)
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(K), atol=1e-12)
    assert largest_angle(pca.components_, axes) < 1e-4
    low = (X[:, :5] @ np.eye(5, D)).astype(np.float32)  # rank 5
    pca = PCA(K, solver=solver, **options).fit(stored(tmp_path / "low", low, chunks))  # type: ignore[arg-type]
    assert np.count_nonzero(pca.explained_variance_) == 5
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(K), atol=1e-12)


@pytest.mark.parametrize(
    ("route", "dtype"),
    [
        *((route, np.uint8) for route in ROUTES),
        *(("covariance, row chunks", dtype) for dtype in (np.float16, np.int16, np.bool_)),
    ],
)  # fmt: skip
def test_narrow_dtypes_equal_their_upcast_to_the_bit(route: str, dtype: type, tmp_path: Path) -> None:
    solver, chunks = ROUTES[route]
    X = (np.random.default_rng(1).gamma(2.0, 20.0, (N, D)).clip(0, 255) * (10 if dtype is np.int16 else 1)).astype(
        dtype
    )
    narrow = PCA(K, solver=solver).fit(stored(tmp_path, X, chunks))
    upcast = PCA(K, solver=solver).fit(stored(tmp_path, X.astype(np.float32), chunks))
    assert np.array_equal(narrow.components_, upcast.components_)
    assert np.array_equal(narrow.explained_variance_, upcast.explained_variance_)
    assert np.array_equal(narrow.transform(X), upcast.transform(X.astype(np.float32)))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64, np.float64])
def test_wide_dtypes_are_computed_in_float64(dtype: type, tmp_path: Path) -> None:
    X = (1e9 + 1e3 * np.random.default_rng(2).standard_normal((N, D))).astype(dtype)
    expected, _, _ = exact(X.astype(np.float64), K)
    for solver, chunks in ROUTES.values():
        pca = PCA(K, solver=solver).fit(stored(tmp_path, X, chunks))
        np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-9)


@routes_and_ratios
def test_center_false_is_the_svd_of_the_raw_matrix(route: str, ratio: float, tmp_path: Path) -> None:
    solver, chunks = ROUTES[route]
    X = offset(SPECTRA["gap"], ratio)
    pca = PCA(K, solver=solver, center=False).fit(stored(tmp_path, X, chunks))
    singular = np.linalg.svd(X.astype(np.float64), compute_uv=False)[:K]
    expected = singular**2 / (N - 1)
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=0, atol=1e-6 * expected[0])
    np.testing.assert_allclose(pca.singular_values_[0], singular[0], rtol=1e-6)
    assert not pca.mean_.any()


@routes_and_ratios
def test_scale_is_the_standard_scaler_before_pca(route: str, ratio: float, tmp_path: Path) -> None:
    solver, chunks = ROUTES[route]
    X = offset(SPECTRA["gap"], ratio)
    X *= np.geomspace(1, 64, D).astype(np.float32)
    scaler = StandardScaler().fit(X.astype(np.float64))
    reference = InMemoryPCA(K, svd_solver="full").fit(scaler.transform(X.astype(np.float64)))
    pca = PCA(K, solver=solver, scale=True).fit(stored(tmp_path, X, chunks))
    np.testing.assert_allclose(pca.scale_, scaler.scale_, rtol=1e-6)
    np.testing.assert_allclose(pca.explained_variance_, reference.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(pca.total_variance_, D * N / (N - 1), rtol=1e-6)


@routes_and_ratios
def test_scale_without_centring_divides_by_deviations_about_the_mean(route: str, ratio: float, tmp_path: Path) -> None:
    solver, chunks = ROUTES[route]
    X = offset(SPECTRA["gap"], ratio)
    expected, _, _ = exact(X, 1, center=False, scale=True)
    pca = PCA(K, solver=solver, center=False, scale=True).fit(stored(tmp_path, X, chunks))
    np.testing.assert_allclose(pca.scale_, X.std(axis=0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(pca.explained_variance_[0], expected[0], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
@pytest.mark.parametrize("route", ["covariance, row chunks", "dot, row panels", "dot, column blocks"])
def test_squares_beyond_float32_are_not_lost(route: str, scale: float, tmp_path: Path) -> None:
    solver, chunks = ROUTES[route]
    X = (data_with_spectrum(N, SPECTRA["gap"], dtype=np.float32)[0] * np.float32(scale)).astype(np.float32)
    expected, _, _ = exact(X, K)
    pca = PCA(K, solver=solver).fit(stored(tmp_path, X, chunks))
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-6)


def test_equal_entries_prove_nothing_that_is_false() -> None:
    """The squares of many equal numbers are rounded one way: the second copy of an eigenvalue hid in their sum."""
    d, share, size = 1500, 0.83, 2.5e-6
    columns = hadamard(64).astype(float)
    X = np.repeat(share * columns[:, 1:2], d, axis=1)
    lengths = share * np.sqrt(size * d * np.array([1, 1, 1, 0.8, 0.72, 0.64, 0.56, 0.48]))
    X[:, [0, 1, 2, 5, 6, 7, 8, 9]] += lengths * columns[:, [2, 3, 4, 6, 7, 8, 9, 10]]
    values = PCA(3, solver="covariance").fit(X).explained_variance_
    truth = np.linalg.svd(X, compute_uv=False)[:3] ** 2 / 63
    np.testing.assert_allclose(values, truth, rtol=0, atol=4 * d * np.finfo(np.float64).eps * truth[0])


# The tutorial's table 2 (Marukatat 2022): axes that hold 90, 95 and 99 % of the variance of z-scored data
TABLE: dict[str, tuple[Any, tuple[int, ...]]] = {
    "diabetes": (load_diabetes, (7, 8, 8)), "breast cancer": (load_breast_cancer, (7, 10, 17)),
    "iris": (load_iris, (2, 2, 3)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "solver"), [*((name, "covariance") for name in TABLE), ("iris", "dot")])
def test_the_numbers_of_axes_are_those_of_the_table(name: str, solver: str) -> None:
    load, axes = TABLE[name]
    found = [PCA(share, solver=solver, scale=True).fit(load().data).n_components_ for share in (0.90, 0.95, 0.99)]
    assert tuple(found) == axes
