"""RBF and Laplacian: digits at offsets, near duplicates and large norms; several widths from one product."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from bigpca.kernels import RBF, Laplacian
from bigpca.kernels.distance import square_error
from bigpca.kernels.dot import HARMLESS, prepare_rows, product_error, products

Kernel = RBF | Laplacian
KERNELS: dict[str, Kernel] = {"rbf": RBF(0.1), "l1": Laplacian(0.1), "l2": Laplacian(0.1, "l2")}
METRICS = {"rbf": "sqeuclidean", "l1": "cityblock", "l2": "euclidean"}
each_kernel = pytest.mark.parametrize("name", KERNELS)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])


def expected(name: str, X: Any, Y: Any, gamma: float) -> NDArray[np.float64]:
    return np.exp(-gamma * cdist(X.astype(np.float64), Y.astype(np.float64), METRICS[name]))


def error_of(name: str, X: Any, gamma: float) -> float:
    return float(np.abs(replace(KERNELS[name], gamma=gamma)(X) - expected(name, X, X, gamma)).max())


def near_duplicates(dtype: Any, offset: float = 0.0) -> Any:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 30)) + offset
    return np.concatenate([X, X, X + 1e-4 * rng.standard_normal(X.shape)]).astype(dtype)


@each_kernel
@each_dtype
def test_the_same_block_twice_is_symmetric_to_the_bit_with_ones_on_the_diagonal(name: str, dtype: Any) -> None:
    X = np.random.default_rng(0).standard_normal((700, 5)).astype(dtype)
    A = KERNELS[name].prepare(X)
    K = KERNELS[name].block(A, A)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(np.diagonal(K), 1)


@each_kernel
@each_dtype
def test_no_value_is_over_1_though_squares_are_differences(name: str, dtype: Any) -> None:
    X = near_duplicates(dtype)
    A, B = (KERNELS[name].prepare(X.copy()) for _ in range(2))
    assert KERNELS[name].block(A, B).max() <= 1


@each_kernel
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_near_duplicates_in_float32_keep_their_distance(name: str, offset: float) -> None:
    assert error_of(name, near_duplicates(np.float32, offset), 1.0) <= 2e-5


@pytest.mark.parametrize("name", ["rbf", "l2"])
@each_dtype
def test_equal_and_near_rows_are_seen_though_norms_are_vast_beside_the_width(name: str, dtype: Any) -> None:
    """Here even products in float64 err by more than the width: equal rows would not be alike."""
    rng = np.random.default_rng(7)
    X = (1e5 * rng.standard_normal((30, 40))).astype(dtype)
    Y = np.concatenate([X, X + 0.1 * rng.standard_normal(X.shape).astype(dtype)])
    gamma = 3.0 if name == "rbf" else 1.0
    kernel = replace(KERNELS[name], gamma=gamma)
    A, B = prepare_rows(X), prepare_rows(Y)
    assert gamma * square_error(A, B, np.float64) > 1e-3
    K, truth = kernel.block(A, B), expected(name, X, Y, gamma)
    assert ((truth > 0.01) & (truth < 0.99)).sum() >= 25
    assert np.abs(K - truth).max() <= (HARMLESS if dtype == np.float32 else 1e-11)


def test_near_duplicates_in_float64_keep_their_l2_distance() -> None:
    """Products alone would err by the root of their rounding error, 1e-7."""
    assert error_of("l2", near_duplicates(np.float64), 1.0) <= 1e-11


@each_dtype
def test_repeated_rows_have_distance_0_in_whichever_block(dtype: Any) -> None:
    X = np.random.default_rng(2).standard_normal((10, 100)).astype(dtype)
    for name, kernel in KERNELS.items():
        K = kernel.block(kernel.prepare(X), kernel.prepare(np.tile(X, (3, 1))))
        error = np.abs(np.diagonal(K[:, 10:20]) - 1).max()
        assert error <= (0 if name != "rbf" else 0.1 * square_error(prepare_rows(X), prepare_rows(X), dtype))


def test_large_norms_meet_in_float64_and_small_ones_do_not() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((80, 400))
    for scale, wide in ((0.05, False), (30.0, True)):
        rows = (scale * X + 1e-2 * rng.standard_normal(X.shape)).astype(np.float32)
        rows = np.concatenate([rows, rows + np.float32(1e-2) * rng.standard_normal(rows.shape).astype(np.float32)])
        A = prepare_rows(rows)
        assert (square_error(A, A) > HARMLESS) == wide
        assert error_of("rbf", rows, 1.0) <= HARMLESS
        naive = np.exp(2 * np.minimum(products(A, A, np.dtype(np.float32), less_squares=True), 0))
        assert (np.abs(naive - expected("rbf", rows, rows, 1.0)).max() > HARMLESS) == wide


@each_dtype
@pytest.mark.parametrize("d", [3, 50, 784, 3000])
@pytest.mark.parametrize("kind", ["normal", "uniform", "sparse"])
def test_products_err_by_less_than_the_bound_that_decides_the_precision(dtype: Any, d: int, kind: str) -> None:
    rng = np.random.default_rng(d)
    X = rng.standard_normal((60, d)) if kind == "normal" else rng.random((60, d))
    X = (X * (rng.random(X.shape) < 0.1) if kind == "sparse" else X).astype(dtype)
    A = prepare_rows(X)
    wide = X.astype(np.longdouble)
    norms = (wide**2).sum(axis=1) / 2
    error = np.abs(products(A, A, np.dtype(dtype), less_squares=True) - (wide @ wide.T - norms[:, None] - norms)).max()
    assert 0 < float(error) <= product_error(d, np.dtype(dtype)) * A.largest


def test_rows_of_both_precisions_meet_in_float64() -> None:
    X = np.random.default_rng(4).standard_normal((30, 7))
    for name, kernel in KERNELS.items():
        K = kernel.block(kernel.prepare(X.astype(np.float32)), kernel.prepare(X))
        assert K.dtype == np.float64
        np.testing.assert_allclose(K, expected(name, X.astype(np.float32), X, 0.1), rtol=0, atol=1e-6)


@each_kernel
def test_equal_rows_are_all_alike_and_no_rows_give_an_empty_block(name: str) -> None:
    X = np.full((20, 6), 7.3, np.float32)
    np.testing.assert_allclose(KERNELS[name](X), 1, rtol=0, atol=0)
    assert KERNELS[name](X[:0]).shape == (0, 0)
    assert KERNELS[name](X, X[:0]).shape == (20, 0)


WIDTHS = [1e-320, 1e-46, 1e-38, 1e38, 1e39, 1e200, 1.7e308]  # beyond what float32 holds, or nearly


@each_kernel
@each_dtype
@pytest.mark.parametrize("scale", [0.0, 1e-18, 1.0, 1e15])
@pytest.mark.parametrize("gamma", WIDTHS)
def test_equal_rows_are_alike_at_any_width(name: str, dtype: Any, scale: float, gamma: float) -> None:
    X = (scale * np.random.default_rng(8).standard_normal((20, 4))).astype(dtype)
    kernel = replace(KERNELS[name], gamma=gamma)
    A, B = kernel.prepare(X), kernel.prepare(X[:9])
    with np.errstate(over="ignore"):
        truth = expected(name, X, X[:9], gamma)
    K = kernel.block(A, B)
    np.testing.assert_allclose(K, truth, rtol=0, atol=1e-5)
    assert K.dtype.itemsize <= kernel.entry_bytes(dtype(0).itemsize)
    # As values are between 0 and 1; of rows that are equal or far apart they are exact at any width.
    assert 0 <= kernel.entry_error(A, B) <= (1e-4 if scale == 1 and gamma < 1e308 else 1)


@pytest.mark.parametrize("gamma", [1e-39, 1e39])
def test_sums_of_differences_beyond_float32_count_at_widths_beyond_it(gamma: float) -> None:
    """Such sums are infinite or lose digits in float32."""
    X = np.array([[3e38, 3e38], [-3e38, 0.0]] if gamma < 1 else [[1e-39, 0.0], [0.0, 3e-40]], np.float32)
    np.testing.assert_allclose(Laplacian(gamma)(X), expected("l1", X, X, gamma), rtol=0, atol=1e-6)
