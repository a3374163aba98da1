"""The operators make the kernels they say, flags and hooks follow the parts, and products do not overflow in
silence; matrices that are kernels already are known by the numbers of their rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bigpca.kernels import RBF, Cosine, Kernel, Linear, Polynomial, Product, Sum, Tanh, normalized, rbf_of
from bigpca.kernels.base import WIDEST
from bigpca.kernels.custom import SYMMETRY, Precomputed
from tests.builders import named

X = np.random.default_rng(0).standard_normal((12, 4))
R, L, T = RBF(0.3), Linear(), Tanh(0.5)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (R + L, R(X) + L(X)),
        (R - L, R(X) - L(X)),
        (R + 2, R(X) + 2),
        (2 + R, R(X) + 2),
        (R - 2, R(X) - 2),
        (3 * R, 3 * R(X)),
        (R * 3, 3 * R(X)),
        (R * L, R(X) * L(X)),
        (L**2, L(X) ** 2),
        (L**1, L(X)),
        (R**0.5, R(X) ** 0.5),
        (2 * (R + L + 1) * (L + 3) ** 2, 2 * (R(X) + L(X) + 1) * (L(X) + 3) ** 2),
        (sum([R, L, T]), R(X) + L(X) + T(X)),
        ((R * L) * (L * T), R(X) * L(X) ** 2 * T(X)),
        ((R + L) - (L + 1), R(X) - 1),
    ],
    ids=named,
)
def test_operators_on_kernels_are_operators_on_their_matrices(kernel: Kernel, expected: Any) -> None:
    np.testing.assert_allclose(kernel(X), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel.diagonal(X), np.diagonal(expected), rtol=1e-12, atol=1e-13)


def test_sums_and_products_are_kept_flat() -> None:
    assert Sum((R, L, T), (1.0, 1.0, 2.0)) == R + L + 2 * T
    assert Product((R, L, T), (1, 1, 2)) == R * L * T**2


@pytest.mark.parametrize(
    ("kernel", "psd"),
    [
        (R + L, True), (R + 0, True), (R + 1, True), (R - 1, False), (0 * R, True), (-1 * R, False), (R - L, False),
        (R * L, True), (R**3, True), (R**0.5, False), (R**2.0, True), (R + T, False), (R * T, False), (T**2, False),
        (0.5 * (R + L) ** 2, True), (rbf_of(R, 1.0), True), (rbf_of(T, 1.0), False), (normalized(R + L), True),
        (normalized(T), False), (Linear(-1.0), False),
        (Polynomial(coef0=-1.0), False), (rbf_of(R - L, 1.0), False),
    ],
    ids=named,
)  # fmt: skip
def test_the_flag_follows_the_algebra(kernel: Kernel, psd: bool) -> None:
    assert kernel.positive_semidefinite == psd


@pytest.mark.parametrize(
    ("kernel", "width"),
    [
        (Linear(), 4), (Linear(2.0), 5), (Linear() + 1, 5), (Linear() + Cosine(), 8), (2 * Linear(), 4),
        (Linear() ** 2, 16),
        (Linear() * Cosine() * Linear(1.0), 80), (Linear() ** 0.5, None), (Linear() - 1, None), (-1 * Linear(), None),
        (Polynomial(degree=3), 35), (Polynomial(degree=3, coef0=0.0), 20), (Polynomial(coef0=-1.0), None),
        (normalized(Linear(1.0)), 5), (R, None), (R + L, None), (R * L, None), (rbf_of(L, 1.0), None), (L**8, None),
    ],
    ids=named,
)  # fmt: skip
def test_widths_of_feature_maps_add_and_multiply(kernel: Kernel, width: int | None) -> None:
    assert kernel.feature_width(4) == width
    if width is not None:
        features = kernel.features(X)
        assert features.shape == (12, width)
        np.testing.assert_allclose(features @ features.T, kernel(X), rtol=1e-12, atol=1e-12)


def test_wide_maps_are_not_offered_except_the_rows_themselves() -> None:
    d = 140
    assert Polynomial(degree=2).resolve(d).feature_width(d) == 141 * 142 // 2
    assert Polynomial(degree=2).feature_width(198) == 199 * 200 // 2 <= WIDEST
    assert Polynomial(degree=2).feature_width(200) is None
    assert (Linear() ** 2).feature_width(141) == 141**2
    assert (Linear() ** 2).feature_width(142) is None
    assert (2 * Linear()).feature_width(30_000) == 30_000
    assert (Linear() + Cosine()).feature_width(30_000) is None


def test_defaults_are_filled_in_at_every_depth() -> None:
    kernel = normalized(2 * RBF() * Linear() + Polynomial())
    text = str(kernel.resolve(5))
    assert "None" in str(kernel)
    assert "None" not in text
    assert text.count("gamma=0.2") == 2


def test_float32_powers_are_taken_in_float64() -> None:
    rows = (1e5 * X).astype(np.float32)
    K = (Linear() ** 5)(rows)
    expected = (rows.astype(np.float64) @ rows.T.astype(np.float64)) ** 5
    assert np.abs(expected).max() > np.finfo(np.float32).max
    np.testing.assert_allclose(K, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (L**40)(1e5 * X), r"a product of kernel values exceeds 1.8e308.*Scale the rows"),
        (lambda: rbf_of(-1 * L, 100.0)(100 * X), r"the exponential of kernel values exceeds 1.8e308"),
        (lambda: (L**0.5)(X), r"kernel value is -.*no real power 0.5; values >= 0"),
        (lambda: L**0, r"exponents = \(0.0,\); numbers above 0"),
        (lambda: L**-1, r"numbers above 0 were expected"),
        (lambda: np.inf * L, r"weights = \(inf,\), but every kernel requires one finite number: 1 in all"),
        (lambda: L + np.nan, r"constant = \(nan,\), but every kernel requires one finite number: 1 in all"),
        (lambda: Sum((L, R), (1.0,)), r"one finite number: 2 in all"),
        (
            lambda: normalized(L)(np.eye(3)[[0, 1, 2]] * [[1.0], [0.0], [1.0]]),
            r"k\(x, x\) = 0 at row 1, but normalisation needs a value above 0",
        ),
        (lambda: normalized(L).prepare(np.zeros((2, 3)), None, 40), r"at row 40"),
        (lambda: normalized(L).features(np.zeros((2, 3)), 40), r"at row 40"),
        (lambda: rbf_of(L, 0.0), r"gamma = 0.0 is not a finite number above 0"),
        (lambda: rbf_of(L, None), r"gamma = None, but no default"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_computed_is_rejected(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L + "1", r"unsupported operand"),
        (lambda: L * [1], r"can't multiply|unsupported operand"),
        (lambda: L ** "2", r"unsupported operand"),
        (lambda: L * True, r"unsupported operand"),
        (lambda: Sum((), ()), r"kernels = \(\); one or more kernels"),
        (lambda: Sum(("rbf",), (1.0,)), r"one or more kernels were expected"),  # type: ignore[arg-type]
        (lambda: normalized("rbf"), r"inner = 'rbf' is not a kernel"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_kernel_is_rejected(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


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
