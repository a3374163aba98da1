"""The one pass of a fit by landmarks: moments of the features and what they leave of k(x, x), as NumPy has them."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca import kernels
from bigpca.host import HOST
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.landmark_moments import LandmarkMap, LandmarkMoments, features_with_squares
from bigpca.passes.rows import Rows
from bigpca.solvers.landmarks import landmark_transform
from tests.builders import offset_data
from tests.passes.kit import folded

N, D, M = 700, 6, 30
X = offset_data(N, D, mean=5.0, dtype="f8")
Array = NDArray[Any]


def features(kernel: kernels.Kernel, rows: Array = X) -> tuple[Array, Array]:
    """Landmarks' transform T and B of all rows, by NumPy."""
    T = landmark_transform(kernel(rows[:M]), 1e-12)
    return T, kernel(rows, rows[:M]) @ T


def mapped(kernel: kernels.Kernel) -> LandmarkMap:
    return LandmarkMap(kernel, X[:M], features(kernel)[0], np.full(D, 5.0))


def unshifted(given: da.Array, template: Accumulator, **options: Any) -> Any:
    return folded(Rows.of(given), template, shift=np.zeros(D), **options).state


@pytest.mark.parametrize(
    "kernel", [kernels.RBF(0.1), kernels.Polynomial(3, gamma=0.1, coef0=1.0), kernels.Laplacian(0.1)], ids=str
)
@pytest.mark.parametrize("rows", [N, 256, 37, 3])
def test_moments_and_residuals_are_those_of_the_whole_features(kernel: kernels.Kernel, rows: int) -> None:
    _, B = features(kernel)
    found: LandmarkMoments = unshifted(da.from_array(X, chunks=(rows, D)) + 0, LandmarkMoments.of(D, mapped(kernel)))
    moments = found.moments
    size = float(np.abs(B).max())
    assert moments.count == N
    np.testing.assert_allclose(moments.mean, B.mean(axis=0), rtol=0, atol=1e-11 * size)
    scatter = np.triu((B - B.mean(axis=0)).T @ (B - B.mean(axis=0)))
    np.testing.assert_allclose(np.triu(moments.scatter), scatter, rtol=0, atol=1e-10 * scatter.max())
    diagonal = np.diagonal(kernel(X))
    assert found.diagonal == pytest.approx(diagonal.sum(), rel=1e-12)
    residual = np.maximum(diagonal - (B**2).sum(axis=1), 0).sum()
    assert found.residual == pytest.approx(residual, abs=1e-9 * diagonal.sum())
    assert found.evaluations == N * M
    assert found.precision == 2.0**-52


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_squares_of_rows_are_summed_in_float64(dtype: str) -> None:
    B = np.random.default_rng(0).standard_normal((700, 300)).astype(dtype)
    _, squares = features_with_squares(B, np.eye(300), HOST)
    np.testing.assert_allclose(squares, (B.astype("f8") ** 2).sum(axis=1), rtol=1e-14)
