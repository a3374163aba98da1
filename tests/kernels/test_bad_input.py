"""Wrong parameters, rows and functions: a clear error each, or the right answer."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import pairwise

from bigpca.errors import ModelFormatError
from bigpca.kernels import (
    RBF,
    Cosine,
    FromFunction,
    Kernel,
    Laplacian,
    Linear,
    Polynomial,
    Precomputed,
    Tanh,
    as_kernel,
    kernel_from,
    normalized,
    rbf_of,
)
from tests.builders import named

X = np.random.default_rng(0).standard_normal((12, 4))


@pytest.mark.parametrize("kind", [RBF, Laplacian, Tanh, Polynomial])
@pytest.mark.parametrize("gamma", [0.0, -1.0, np.nan, np.inf, True, np.True_, "auto", "scale", "1", 1j])
def test_a_gamma_that_is_not_above_0_is_rejected(kind: Any, gamma: float) -> None:
    with pytest.raises(ValueError, match=r"gamma = .*a finite number above 0.*None"):
        kind(gamma=gamma)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Polynomial(degree=0), r"degree = 0 is outside \[1, inf\); an integer of at least 1"),
        (lambda: Polynomial(degree=2.5), r"degree = 2.5 is a float; an integer in \[1, inf\) was expected"),  # type: ignore[arg-type]
        (lambda: Polynomial(degree=True), r"degree = True is a bool; an integer"),
        (lambda: Linear(np.nan), r"coef0 = nan is outside \(-inf, inf\); a finite number"),
        (lambda: Tanh(coef0=np.inf), r"coef0 = inf is outside \(-inf, inf\); a finite number"),
        (lambda: Linear("1"), r"coef0 = '1' is a str; a number"),  # type: ignore[arg-type]
        (lambda: Linear(True), r"coef0 = True is a bool; a number"),
        (lambda: Laplacian(norm="max"), r"norm = 'max' is unknown. Use 'l1' or 'l2'"),
        (lambda: RBF()(X[0]), r"X has shape \(4,\). Reshape it to \(rows, columns\)"),
        (lambda: RBF()(np.array([["a"]])), r"X has dtype <U1, which holds no real numbers"),
        (lambda: RBF()(X, X[:, :2]), r"X has 4 columns, but Y has 2"),
        (lambda: RBF()(np.array([[1.0, 2.0], [0.0, np.nan]])), r"X\[1, 1\] = nan is not finite"),
        (
            lambda: as_kernel("gaussian"),
            r"kernel = 'gaussian' is not known. Did you mean rbf\? Give a Kernel, or one of linear \(coef0\), "
            r"poly \(gamma, coef0, degree\), rbf \(gamma\), .*, JensenShannon\b",
        ),
        (lambda: as_kernel("Normalized"), r"kernel = 'Normalized' requires values for inner"),
    ],
)
def test_parameters_and_rows_that_do_not_fit_are_rejected(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("offset", [0, 5])
def test_degree_5_on_raw_pixels_in_float32_keeps_its_digits(offset: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (30, 784)).astype(np.float32)
    K = Polynomial(gamma=1.0, coef0=offset, degree=5)(pixels)
    exact = [
        [float((int(dot) + offset) ** 5) for dot in row] for row in pixels.astype(np.int64) @ pixels.T.astype(np.int64)
    ]
    assert K.dtype == np.float64
    np.testing.assert_allclose(K, exact, rtol=1e-13)


def test_small_rows_stay_in_float32() -> None:
    for kernel in (Polynomial(degree=5), Tanh(), Linear(), RBF()):
        assert kernel(X.astype(np.float32)).dtype == np.float32


def test_a_precision_depends_on_the_rows_not_on_their_order() -> None:
    rows = np.concatenate([X, 1e6 * X]).astype(np.float32)
    kernel = Polynomial(gamma=1.0, degree=4)
    for order in (slice(None), slice(None, None, -1)):
        assert kernel(rows[order]).dtype == np.float64


def test_an_overflow_of_float64_names_the_row_and_both_sides_of_the_bound_are_right() -> None:
    row = np.zeros((3, 2))
    row[2, 0] = 10.0
    assert Polynomial(gamma=1.0, coef0=0.0, degree=74)(row)[2, 2] == pytest.approx(1e148, rel=1e-12)
    with pytest.raises(ValueError, match=r"row 9: gamma \|x\|\^2 \+ \|coef0\| = inf; at most 1e\+150"):
        Polynomial(gamma=1e308, degree=1).prepare(row, None, 7)
    with pytest.raises(
        ValueError,
        match=r"row 9: gamma \|x\|\^2 \+ \|coef0\| = 100; at most 94.1 is possible, because .* the power 76.*Scale",
    ):
        Polynomial(gamma=1.0, coef0=0.0, degree=76).prepare(row, None, 7)


def test_a_large_linear_product_in_float32_does_not_overflow() -> None:
    rows = np.full((2, 3), 1e19, np.float32)
    np.testing.assert_allclose(Linear()(rows), 3 * float(rows[0, 0]) ** 2, rtol=1e-12)
    assert np.isfinite(RBF(1.0)(rows)).all()


def test_integers_and_bools_are_numbers() -> None:
    ones = np.array([[1, 0], [1, 1]])
    for rows in (ones, ones.astype(np.uint8), ones.astype(bool)):
        np.testing.assert_array_equal(Linear()(rows), [[1, 1], [1, 2]])


def row_function(x: Any, y: Any) -> float:
    return float(np.sum(x * y[: len(x)]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            row_function,
            r"returned shape \(\) for blocks of 12 and 12 rows; \(12, 12\) was expected.*not for two single rows",
        ),
        (
            lambda a, b: float(a @ b),
            r"takes two rows, but .* blocks of rows, of shapes \(12, 4\) and \(12, 4\).*raised \w+Error.*lambda A, B:",
        ),
        (lambda A, B: (A @ B.T)[:, :-1], r"returned shape \(12, 11\)"),
        (lambda A, B: A @ B.T * np.nan, r"returned nan for rows 0 and 0"),
        (lambda A, B: (A @ B.T).astype(complex), r"returned complex128, not real numbers"),
        (lambda A, B: A[:, :1] + 0 * B[:, 0], r"for rows \(\d+, \d+\) of a block and .* Make it k\(x, y\) = k\(y, x\)"),
    ],
)
def test_a_function_that_is_no_kernel_is_rejected(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FromFunction(function)(X)


def test_the_diagonal_of_a_function_is_found_by_the_block_and_checked() -> None:
    np.testing.assert_allclose(FromFunction(lambda A, B: A @ B.T)(X).diagonal(), (X**2).sum(axis=1))
    np.testing.assert_allclose(FromFunction(lambda A, B: A @ B.T).diagonal(X), (X**2).sum(axis=1))
    with pytest.raises(ValueError, match=r"returned shape \(8, 1\)"):
        FromFunction(lambda A, B: A[:, :1]).diagonal(X)


def test_integer_results_of_a_function_become_float64() -> None:
    assert FromFunction(lambda A, B: np.ones((len(A), len(B)), int))(X).dtype == np.float64


@pytest.mark.parametrize("kernel", [FromFunction(np.matmul), 2 * FromFunction(np.matmul)], ids=named)
def test_a_function_cannot_be_described(kernel: Kernel) -> None:
    with pytest.raises(TypeError, match=r"is the Python function .*which cannot be stored in a model file.*pickle it"):
        kernel.describe()


@pytest.mark.parametrize(
    "description",
    [
        {"kernel": "Gaussian"},
        {"kernel": None},
        {},
        {"kernel": "RBF"},
        {"kernel": "RBF", "gamma": 1.0, "sigma": 2.0},
        {"kernel": "RBF", "gamma": -1.0},
        {"kernel": "Normalized", "inner": 3},
        {"kernel": "Normalized", "inner": {"kernel": "Gaussian"}},
        {"kernel": "Sum", "kernels": [{"kernel": "RBF", "gamma": 1.0}], "weights": [1.0, 2.0], "constant": 0.0},
    ],
)
def test_an_altered_description_is_rejected(description: dict[str, Any]) -> None:
    with pytest.raises(ModelFormatError, match=r"is not a kernel of this version|is described by|cannot be made"):
        kernel_from(json.loads(json.dumps(description)))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("linear", pairwise.linear_kernel), ("poly", pairwise.polynomial_kernel),
        ("polynomial", pairwise.polynomial_kernel),
        ("rbf", pairwise.rbf_kernel), ("RBF", pairwise.rbf_kernel), ("laplacian", pairwise.laplacian_kernel),
        ("sigmoid", pairwise.sigmoid_kernel), ("Tanh", pairwise.sigmoid_kernel), ("cosine", pairwise.cosine_similarity),
        (pairwise.rbf_kernel, pairwise.rbf_kernel), (Linear(), pairwise.linear_kernel),
    ],
    ids=named,
)  # fmt: skip
def test_names_and_functions_are_understood(name: Any, function: Any) -> None:
    np.testing.assert_allclose(as_kernel(name)(X), function(X), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kernel", [3, None, ["rbf"], RBF])
def test_what_is_no_kernel_is_rejected(kernel: Any) -> None:
    with pytest.raises(TypeError, match=r"neither a kernel, nor a name, nor a function of two blocks of rows"):
        as_kernel(kernel)


def test_what_is_no_function_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"function = 3 is not a function"):
        FromFunction(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, "yes", None])
def test_switches_are_true_or_false(value: Any) -> None:
    for make in (lambda: Precomputed(indefinite=value), lambda: FromFunction(np.matmul, positive_semidefinite=value)):
        with pytest.raises(TypeError, match="; True or False was expected"):
            make()


@pytest.mark.parametrize("factor", [1e60, -1e60, 1e-60, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_beyond_float32_neither_overflow_nor_vanish(factor: float, dtype: Any) -> None:
    rows = X.astype(dtype)
    K = RBF()(X)
    for kernel, expected in (
        (factor * RBF(), factor * K), (factor * (RBF() + 1), factor * K + factor),
        (RBF() - factor * RBF(), K - factor * K),
    ):  # fmt: skip
        found = kernel(rows)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
        np.testing.assert_allclose(np.diagonal(found), kernel.diagonal(rows), rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e15, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernels_of_very_small_or_large_rows_keep_their_digits(scale: float, dtype: Any) -> None:
    rows = (scale * X).astype(dtype)
    G = rows.astype(np.float64) @ rows.T.astype(np.float64)
    lengths = np.sqrt(np.diagonal(G))
    for kernel, expected in (
        (Linear(), G), (Polynomial(degree=2, gamma=1.0, coef0=0.0), G**2), (Cosine(), G / np.outer(lengths, lengths)),
        (normalized(Linear()), G / np.outer(lengths, lengths)),
    ):  # fmt: skip
        np.testing.assert_allclose(kernel(rows), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("parameter", [1e39, -1e39, 1e308, -1e308])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parameters_of_tanh_beyond_float32_saturate_it(parameter: float, dtype: Any) -> None:
    rows = (1e9 * X).astype(dtype)
    np.testing.assert_array_equal(Tanh(1.0, parameter)(rows), np.sign(parameter))
    np.testing.assert_array_equal(Tanh(abs(parameter), 0.0)(rows), np.sign(rows.astype("f8") @ rows.T.astype("f8")))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_cosine_of_float64_rows_whose_squares_vanish_or_overflow(scale: float) -> None:
    K = Cosine()(np.vstack([scale * X, X, np.zeros((1, 4))]))
    expected = pairwise.cosine_similarity(np.vstack([X, X, np.zeros((1, 4))]))
    np.testing.assert_allclose(K, expected, rtol=0, atol=1e-14)
    assert Cosine().diagonal(np.zeros((1, 4))).tolist() == [0.0]


def test_an_rbf_of_a_kernel_whose_differences_are_rounding_is_rejected() -> None:
    far = X + 1e8
    np.testing.assert_allclose(rbf_of(Linear(), 0.3)(far), RBF(0.3)(far), rtol=0, atol=0)
    with pytest.raises(
        ValueError, match=r"k\(x, x\) reaches .* so float64 gives gamma .* only to .*; 0.001 is required"
    ):
        rbf_of(2 * Linear(), 0.3)(far)
