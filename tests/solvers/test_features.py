"""The factor of K_mm: features whose products are those of the kernel, whatever its rank and scale."""

import numpy as np
import pytest

from bigpca.solvers.landmarks import landmark_transform, residual_rounding, truncation_for
from tests.builders import symmetric

EPS = np.finfo(np.float64).eps
M = 30


def spectrum(rank: int) -> np.ndarray:
    values = np.zeros(M)
    values[:rank] = np.geomspace(1, 1e-4, rank)
    return values


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("rank", [1, 10, M])
@pytest.mark.parametrize("equilibrated", [False, True])
def test_the_factor_makes_an_orthonormal_basis(equilibrated: bool, rank: int, scale: float) -> None:
    K, _ = symmetric(scale * spectrum(rank))
    before = K.copy()
    T = landmark_transform(K, equilibrated=equilibrated)
    assert T.shape == (M, rank)
    np.testing.assert_allclose(T.T @ K @ T, np.eye(rank), rtol=0, atol=M * EPS * 1e6)  # eps / the smallest eigenvalue
    np.testing.assert_allclose(K @ T @ T.T @ K, K, rtol=0, atol=M * EPS * 1e4 * scale)
    assert np.array_equal(K, before)
    if not equilibrated:
        inverse = np.linalg.pinv(K, rcond=1e-10, hermitian=True)
        np.testing.assert_allclose(T @ T.T, inverse, rtol=0, atol=M * EPS * 1e8 / scale)


def test_eigenvalues_below_the_tolerance_are_dropped_relative_to_the_largest() -> None:
    for scale in (1e-30, 1.0, 1e30):
        K = scale * np.diag([1.0, 1e-4, 1e-6, 1e-9, 1e-11])
        assert landmark_transform(K).shape == (5, 4)
        assert landmark_transform(K, 1e-5).shape == (5, 2)
        assert landmark_transform(K, equilibrated=True).shape == (5, 5)  # orthogonal landmarks, each of its own size


def test_landmarks_of_no_size_have_no_part() -> None:
    K = np.diag([1.0, 0.0, 2.0])
    for equilibrated in (False, True):
        T = landmark_transform(K, equilibrated=equilibrated)
        np.testing.assert_allclose(T @ T.T, np.diag([1, 0, 0.5]), rtol=0, atol=EPS)
    assert landmark_transform(np.zeros((3, 3))).shape == (3, 0)
    assert landmark_transform(np.zeros((0, 0))).shape == (0, 0)


def test_what_is_no_kernel_matrix_is_rejected() -> None:
    with pytest.raises(ValueError):
        landmark_transform(np.ones((2, 3)))
    with pytest.raises(ValueError):
        landmark_transform(np.diag([1.0, np.nan]))


def test_tolerances_follow_the_precision_of_the_blocks() -> None:
    assert truncation_for(EPS) == 1e-10
    assert truncation_for(float(np.finfo(np.float32).eps)) == 1e-5
    assert EPS < residual_rounding(EPS) < 1e-9 < residual_rounding(float(np.finfo(np.float32).eps)) < 1e-3
