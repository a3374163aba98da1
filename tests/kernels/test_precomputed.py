"""Precomputed kernels: rows known by their numbers, and matrices that are none."""

import numpy as np
import pytest

from bigpca.kernels.custom import SYMMETRY, Precomputed


def gram(n: int = 8) -> np.ndarray:
    G = np.random.default_rng(0).standard_normal((n, 3))
    return G @ G.T


def test_blocks_are_looked_up_by_absolute_numbers_and_need_no_columns_of_b():
    K, kernel = gram(), Precomputed()
    A = kernel.prepare(K[2:5], None, 2)
    B = kernel.prepare(np.empty((3, 0)), None, 4)
    np.testing.assert_array_equal(kernel.block(A, B), K[2:5, 4:7])
    np.testing.assert_array_equal(kernel.diagonal_of(A), np.diagonal(K)[2:5])
    assert not kernel.needs_rows


def test_new_rows_meet_the_training_rows_but_have_no_diagonal():
    K, kernel = gram(), Precomputed()
    new = kernel.prepare(K[6:, :6], None, 6)
    np.testing.assert_array_equal(kernel.block(new, kernel.prepare(K[:6, :6])), K[6:, :6])
    with pytest.raises(ValueError, match=r"k\(x, x\) of row 6 was requested, but rows have 6 columns"):
        kernel.diagonal_of(new)
    with pytest.raises(ValueError, match=r"k\(x, x\) of row 6 was"):
        kernel.diagonal_of(kernel.prepare(K[4:, :6], None, 4))


def test_columns_that_are_not_there_are_rejected():
    K, kernel = gram(), Precomputed()
    A = kernel.prepare(K[:3, :6])
    assert kernel.block(A, kernel.prepare(K[4:6], None, 4)).shape == (3, 2)
    with pytest.raises(ValueError, match=r"rows have 6 columns, but their kernel with rows 5:7 was requested"):
        kernel.block(A, kernel.prepare(K[5:7], None, 5))
    with pytest.raises(ValueError, match=r"rows have 6 columns, but their kernel with rows 0:8"):
        kernel(K[:, :6])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_a_matrix_that_is_not_symmetric_is_rejected_with_its_worst_entry(dtype, scale):
    K, kernel = (gram() * scale).astype(dtype), Precomputed()
    largest = float(np.abs(K).max())
    K[6, 4] = K[4, 6] + dtype(0.5 * SYMMETRY * largest)
    np.testing.assert_array_equal(kernel(K), K)
    K[6, 4] = K[4, 6] + dtype(2 * SYMMETRY * largest)
    for start in (0, 3):
        A = kernel.prepare(K[start:], None, start)
        with pytest.raises(
            ValueError, match=r"K\[4, 6\] = .*, but K\[6, 4\] = .*; a symmetric kernel matrix was expected"
        ):
            kernel.block(A, A)


def test_the_flag_is_what_the_user_says():
    assert Precomputed().positive_semidefinite
    assert not Precomputed(indefinite=True).positive_semidefinite


def test_no_rows_give_an_empty_block():
    kernel = Precomputed()
    empty = kernel.prepare(np.empty((0, 5)))
    assert kernel.block(empty, empty).shape == (0, 0)
    assert kernel.diagonal_of(empty).shape == (0,)
