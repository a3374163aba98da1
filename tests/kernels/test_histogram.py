"""Histogram kernels: their promises about rounding, zeros and bits, and the rows that they reject."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from bigpca.kernels.histogram import (
    ChiSquare,
    GeneralizedHistogramIntersection,
    Hellinger,
    HistogramIntersection,
    JensenShannon,
    growth_polynomial,
)
from bigpca.kernels.loops import COLUMNS, LANES, RUN, STRIP

NON_NEGATIVE = [HistogramIntersection(), ChiSquare(), Hellinger(), JensenShannon()]
COMPILED = [HistogramIntersection(), GeneralizedHistogramIntersection(0.5), ChiSquare(), JensenShannon()]
EPS = {np.float32: 2.0**-24, np.float64: 2.0**-53}
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def exact_jensen_shannon(x: float, y: float) -> Decimal:
    with localcontext() as context:
        context.prec = 50
        a, b = Decimal(float(x)), Decimal(float(y))
        return (a * ((a + b) / a).ln() + b * ((a + b) / b).ln()) / Decimal(2).ln()


@each_dtype
@pytest.mark.parametrize("ratio", [1 + 1e-6, 0.5, 1e-12, 1e-25])
def test_jensen_shannon_terms_keep_their_digits_near_and_far_from_each_other(dtype, ratio):
    x = np.exp(2 * np.random.default_rng(0).standard_normal(10)).astype(dtype)[:, None]
    y = (x * ratio).astype(dtype)
    A, B = (JensenShannon().prepare(rows) for rows in (x, y))
    K = np.diagonal(JensenShannon().block(A, B))
    for value, a, b in zip(K, x[:, 0], y[:, 0], strict=True):
        exact = exact_jensen_shannon(a, b)
        logarithms = max(abs(np.log2(a)), abs(np.log2(b)))
        bound = 2 * 2 * EPS[dtype] * logarithms + (2e-15 if dtype == np.float64 else 3e-6)
        assert abs(Decimal(float(value)) / exact - 1) <= Decimal(float(bound))


def test_the_growth_polynomial_is_as_good_as_its_precision():
    r = np.linspace(0, 1, 20_001)[1:].astype(np.longdouble)
    exact = (1 + r) * np.log1p(r) / (r * np.log(np.longdouble(2)))
    for degree, bound in ((9, EPS[np.float32] / 10), (19, 8 * EPS[np.float64])):
        found = np.polynomial.polynomial.polyval(2 * r.astype(float) - 1, growth_polynomial(degree))
        assert len(growth_polynomial(degree)) == degree + 1
        assert np.abs(found / exact - 1).max() <= bound
    assert np.abs(np.polynomial.polynomial.polyval(2 * r - 1, growth_polynomial(5)) / exact - 1).max() > 1e-8


@pytest.mark.parametrize("kernel", COMPILED, ids=str)
def test_float32_sums_err_by_no_more_than_a_short_run(kernel):
    X = np.repeat(np.array([[0.1], [0.3], [0.7], [1.1]], np.float32), 30_000, axis=1)  # roundings of equal signs add up
    exact = kernel(X.astype(np.float64))
    terms = 3e-6 if isinstance(kernel, JensenShannon) else 4 * EPS[np.float32]
    np.testing.assert_allclose(kernel(X), exact, rtol=16 * EPS[np.float32] + terms, atol=0)


@each_dtype
@pytest.mark.parametrize("kernel", COMPILED, ids=str)
def test_the_bits_of_an_entry_depend_on_its_two_rows_only(kernel, dtype):
    n, d = STRIP + LANES + 3, COLUMNS + RUN + 5
    X = np.random.default_rng(2).random((n, d)).astype(dtype)
    A = kernel.prepare(X)
    K = kernel.block(A, A)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(K, kernel.block(A, kernel.prepare(X)))
    part = kernel.block(kernel.prepare(X[7:11]), kernel.prepare(X[n - 3 :]))
    np.testing.assert_array_equal(part, K[7:11, n - 3 :])


@each_dtype
@pytest.mark.parametrize("kernel", [*COMPILED, Hellinger()], ids=str)
def test_empty_histograms_and_empty_bins_give_zeros_and_nothing_else(kernel, dtype):
    X = np.zeros((4, 5), dtype)
    X[0, :2], X[1, 3:], X[2] = 1, 1, 2
    K = kernel(X)
    assert np.isfinite(K).all()
    assert (K[3] == 0).all()
    assert (K[:, 3] == 0).all()
    assert K[0, 1] == 0  # of disjoint bins
    assert (K[2, :3] > 0).all()
    assert kernel.block(kernel.prepare(X[:0]), kernel.prepare(X)).shape == (0, 4)


@each_dtype
@pytest.mark.parametrize("kernel", [ChiSquare(), JensenShannon(), HistogramIntersection()], ids=str)
def test_very_small_and_very_large_numbers_neither_vanish_nor_overflow(kernel, dtype):
    one = kernel(np.array([[1.0], [3.0]], dtype)).astype(np.float64)
    for scale in (float(np.finfo(dtype).tiny) * 4, float(np.finfo(dtype).max) / 16):
        scaled = kernel(np.array([[1.0], [3.0]], dtype) * dtype(scale)).astype(np.float64) / scale
        np.testing.assert_allclose(scaled, one, rtol=2500 * EPS[dtype])  # log2 of the largest float64 is 1024


def test_blocks_of_two_precisions_meet_in_the_wider_one():
    X, Y = (np.random.default_rng(seed).random((6, 9)) for seed in (0, 1))
    for kernel in COMPILED:
        K = kernel(X, Y.astype(np.float32))
        assert K.dtype == np.float64
        np.testing.assert_allclose(K, kernel(X, Y), rtol=1e-5)


def test_the_intersection_of_counts_is_exact_in_float32():
    X = np.random.default_rng(3).integers(0, 256, (20, 784))
    expected = np.minimum(X[:, None], X[None]).sum(axis=2)
    np.testing.assert_array_equal(HistogramIntersection()(X.astype(np.float32)), expected)


@pytest.mark.parametrize("kernel", NON_NEGATIVE, ids=str)
def test_a_negative_number_is_rejected_with_its_place(kernel):
    X = np.ones((3, 4))
    X[1, 2] = -0.5
    with pytest.raises(ValueError, match=r"row 101, column 2 is -0\.5; \w+ needs numbers of at least 0\. Shift"):
        kernel.prepare(X, None, 100)
    X[1, 2] = -0.0
    assert np.isfinite(kernel(X)).all()


@pytest.mark.parametrize("alpha", [0, -1.0, np.inf, np.nan, "1", True])
def test_an_alpha_that_is_no_positive_number_is_rejected(alpha):
    with pytest.raises((TypeError, ValueError), match=r"alpha = .* a finite number above 0 \(1 is"):
        GeneralizedHistogramIntersection(alpha)


def test_powers_that_overflow_are_rejected():
    kernel = GeneralizedHistogramIntersection(20.0)
    X = np.array([[1.0, 2.0], [1.0, 300.0]])
    with pytest.raises(ValueError, match=r"row 6, column 1: \|300\.0\|\^20\.0 overflows float32"):
        kernel.prepare(X.astype(np.float32), None, 5)
    assert np.isfinite(kernel(X)).all()
