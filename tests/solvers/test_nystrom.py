"""The Nyström approximation: never above the eigenvalues, exact where the test matrix spans the range."""

import tracemalloc
from functools import partial

import numpy as np
import pytest

from bigpca.solvers import nystrom as module
from bigpca.solvers.krylov import KrylovBasis, approximate, ritz_pairs
from bigpca.solvers.nystrom import nystrom, nystrom_bytes
from tests import builders

EPS = np.finfo(np.float64).eps
N, Q, K = 200, 40, 10


KINDS = ("Gaussian", "orthonormal", "rank-deficient", "badly scaled")


def case(name, dtype, kind, n=N, q=Q):
    A = builders.CountedProduct(builders.symmetric(builders.solver_spectra(n)[name])[0], dtype)
    W = builders.sketch_of(kind, n, q)
    return A, W, A(W)


def slack_of(A):
    return 10 * A.precision * float(np.trace(A.A))


@pytest.mark.parametrize("name", builders.solver_spectra(N))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_no_value_exceeds_its_eigenvalue_and_the_vectors_are_orthonormal(name, dtype, kind):
    A, W, Y = case(name, dtype, kind)
    found = nystrom(W, Y, K, precision=A.precision)
    assert found.values.shape == (Q,)
    assert (np.diff(found.values) <= 0).all()
    assert found.values[-1] >= 0
    assert (found.values - A.eigenvalues()[:Q]).max() <= slack_of(A) + found.shift
    assert found.trace == found.values.sum() <= np.trace(A.A) + slack_of(A) + found.shift
    assert np.abs(found.vectors @ found.vectors.T - np.eye(K)).max() < 20 * EPS


@pytest.mark.parametrize("name", builders.solver_spectra(N))
@pytest.mark.parametrize("kind", KINDS)
def test_products_with_the_approximation_are_those_of_its_eigenpairs(name, kind):
    A, W, Y = case(name, np.float64, kind)
    found = nystrom(W, Y, K, precision=A.precision)
    A_hat = found.multiply(np.eye(N))
    scale = max(found.values[0], 1e-300)
    assert np.abs(A_hat - A_hat.T).max() <= 100 * EPS * scale
    assert abs(np.trace(A_hat) - found.trace) <= 100 * EPS * max(found.trace, 1e-300)
    assert np.abs(A_hat @ found.vectors.T - found.vectors.T * found.values[:K]).max() <= 100 * EPS * scale


@pytest.mark.parametrize("kind", ["Gaussian", "orthonormal"])
def test_it_is_the_textbook_formula(kind):
    A, W, Y = case("power law 1", np.float64, kind)
    found = nystrom(W, Y, K, precision=A.precision)
    expected = Y @ np.linalg.pinv(W.T @ Y) @ Y.T
    assert np.abs(found.multiply(np.eye(N)) - expected).max() < 1e-10  # pinv: eps lambda_1 / lambda_40(W'AW)
    assert np.abs(found.values[:K] - np.linalg.eigvalsh(expected)[::-1][:K]).max() < 1e-10


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["Gaussian", "orthonormal", "rank-deficient"])
def test_a_matrix_of_low_rank_is_recovered_and_values_beyond_the_rank_are_zero(dtype, kind):
    spectrum = builders.rank_deficient(N, K // 2)
    A = builders.CountedProduct(builders.symmetric(spectrum)[0], dtype)
    W = builders.sketch_of(kind)
    found = nystrom(W, A(W), K, precision=A.precision)
    # A direction of A that W sees at length sqrt(q / N) loses nu N / q of its value to the shift.
    assert np.abs(found.values[: K // 2] - spectrum[: K // 2]).max() <= 4 * N / Q * found.shift
    assert found.values[K // 2 :].max() <= slack_of(A)
    assert np.abs(found.vectors @ found.vectors.T - np.eye(K)).max() < 20 * EPS


def test_a_zero_test_matrix_gives_zeros():
    found = nystrom(np.zeros((N, Q)), np.zeros((N, Q)), K, precision=EPS)
    assert not found.values.any()
    assert np.abs(found.vectors @ found.vectors.T - np.eye(K)).max() < 20 * EPS


def test_as_many_test_vectors_as_rows_give_the_whole_spectrum():
    A, W, Y = case("power law 2", np.float64, "orthonormal", q=N)
    found = nystrom(W, Y, N, precision=A.precision)
    assert np.abs(found.values - A.eigenvalues()).max() <= 2 * found.shift
    wide = np.random.default_rng(1).standard_normal((N, N + 30))  # more than rows: no rank above N
    assert np.abs(nystrom(wide, A(wide), 5, precision=A.precision).values[:5] - A.eigenvalues()[:5]).max() < 1e-9


@pytest.mark.parametrize("kind", ["Gaussian", "badly scaled"])
@pytest.mark.parametrize("name", ["flat", "gap", "power law 0.5"])
def test_short_directions_of_a_square_test_matrix_neither_lose_nor_magnify_values(name, kind):
    A, W, Y = case(name, np.float64, kind, q=N)
    found = nystrom(W, Y, N, precision=A.precision)  # the shortest has 1e-7 of |W|_2
    assert np.abs(found.values - A.eigenvalues())[: N // 2].max() <= found.shift < 1e-7 * A.trace


def test_where_cholesky_fails_the_leading_directions_are_used():
    # Products of a matrix that is not positive semi-definite, far beyond rounding: the small solve must not fail.
    spectrum = builders.power_law(N, 1.0)
    spectrum[-20:] = -0.5
    A, _ = builders.symmetric(spectrum)
    W = builders.sketch_of("orthonormal", q=N)
    found = nystrom(W, A @ W, 5, precision=EPS)
    assert np.isfinite(found.values).all()
    assert np.abs(found.values[:5] - spectrum[:5]).max() < 1e-9


def test_the_fallback_agrees_with_cholesky(monkeypatch):
    A, W, Y = case("power law 1", np.float64, "Gaussian")
    expected = nystrom(W, Y, K, precision=A.precision)

    def fail(*_args, **_keywords):
        raise module.LinAlgError("not positive definite")

    monkeypatch.setattr(module, "cholesky", fail)
    found = nystrom(W, Y, K, precision=A.precision)
    assert np.abs(found.values - expected.values).max() < 1e-12
    assert np.abs(found.multiply(W) - expected.multiply(W)).max() < 1e-12


@pytest.mark.parametrize("unit", [2.0**-400, 2.0**400])
def test_units_that_are_powers_of_two_change_no_bit(unit):
    A, W, Y = case("power law 1", np.float64, "Gaussian")
    one, other = (nystrom(W, Y * scale, K, precision=A.precision) for scale in (1.0, unit))
    assert np.array_equal(one.values * unit, other.values)
    assert np.array_equal(one.vectors, other.vectors)
    assert one.shift * unit == other.shift


@pytest.mark.parametrize("name", [name for name in builders.solver_spectra(N) if name not in ("zero", "flat")])
@pytest.mark.parametrize("kind", ["Gaussian", "orthonormal"])
def test_the_shift_exceeds_what_rounding_does_to_the_matrix_but_not_by_much(name, kind):
    A, W, Y = case(name, np.float32, kind)
    rounding = np.linalg.norm(Y - A.A @ W, 2)
    if kind == "Gaussian":
        rounding /= np.linalg.svd(W, compute_uv=False)[-1]
    assert 1.0 < nystrom(W, Y, K, precision=A.precision).shift / (3 * rounding) < 10.0


def test_only_overwrite_touches_the_product():
    A, W, Y = case("power law 1", np.float64, "Gaussian")
    before = Y.copy()
    first = nystrom(W, Y, K, precision=A.precision)
    assert np.array_equal(Y, before)
    second = nystrom(W, Y, K, precision=A.precision, overwrite=True)
    assert not np.array_equal(Y, before)
    assert np.array_equal(first.values, second.values)


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_stated_memory_is_kept(overwrite, monkeypatch):
    monkeypatch.setattr(module, "STRIP_ROWS", 256)
    n, q, k = 20_000, 40, 10
    spectrum = builders.power_law(n)
    W = builders.sketch_of("Gaussian", n, q)
    Y = spectrum[:, None] * W
    tracemalloc.start()
    try:
        nystrom(W, Y, k, precision=EPS, overwrite=overwrite)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.5 * nystrom_bytes(n, q, k, overwrite=overwrite) < peak <= nystrom_bytes(n, q, k, overwrite=overwrite)


@pytest.mark.parametrize(
    ("W", "Y", "k", "message"),
    [
        (np.ones((5, 2)), np.full((5, 2), np.nan), 1, "the product Y holds nan"),
        (np.ones((5, 2)), np.full((5, 2), -np.inf), 1, "the product Y holds inf"),
    ],
)
def test_bad_input_is_rejected(W, Y, k, message):
    with pytest.raises(ValueError, match=message):
        nystrom(W, Y, k, precision=EPS)


@pytest.mark.parametrize("name", list(builders.spectra(60)))
@pytest.mark.parametrize("precision", [np.finfo("f8").eps, np.finfo("f4").eps])
def test_majorant_values_are_those_of_the_dense_majorant_and_bound_the_eigenvalues(name, precision):
    """Tolerance: the roundings of the products (ten of them), and 500 eps."""
    spectrum = builders.spectra(60)[name]
    A, _ = builders.symmetric(spectrum, seed=3)
    B = np.linalg.qr(np.hstack([A @ (A @ np.eye(60)[:, :6]), np.random.default_rng(1).standard_normal((60, 6))]))[0]
    dtype = np.float32 if precision > 1e-10 else np.float64
    Y = (A.astype(dtype) @ B.astype(dtype)).astype(np.float64)
    found = nystrom(B, Y, 5, precision=precision)
    A_hat = found.multiply(np.eye(60))
    norm = float(np.linalg.norm(A - A_hat, 2))
    upper = found.majorant_values(B, norm, 5)
    dense = np.linalg.eigvalsh(A_hat + norm * (np.eye(60) - B @ B.T))[::-1][:5]
    largest = max(spectrum[0], 1e-300)
    assert np.abs(upper - dense).max() <= 1e-13 * largest
    slack = 10 * precision * spectrum.sum() + found.shift
    assert (upper + slack >= spectrum[:5]).all()
    assert (upper <= found.values[:5] + norm + slack + 1e-13 * largest).all()  # never looser than Weyl's inequality


def test_majorant_values_close_quadratically_where_the_basis_holds_the_eigenvectors():
    spectrum = builders.power_law(400, 1.0)
    A, V = builders.symmetric(spectrum, seed=5)
    angle = 1e-4
    lead = V[:10].T + angle * V[200:210].T
    B = np.linalg.qr(np.hstack([lead, np.random.default_rng(2).standard_normal((400, 10))]))[0]
    found = nystrom(B, A @ B, 10, precision=np.finfo("f8").eps)
    norm = float(np.linalg.norm(A - found.multiply(np.eye(400)), 2))
    excess = found.majorant_values(B, norm, 10) - spectrum[:10]
    assert (excess >= -1e-12).all()
    assert excess[:5].max() < 100 * angle**2 < 0.01 * norm


def approximated(B, Y, k, precision=EPS):
    """The approximation of an orthonormal basis and its products, as an iteration returns it."""
    basis = KrylovBasis(B.shape[1], len(B), seed=0)
    basis.adopt(B, Y, precision)
    pairs = ritz_pairs(basis, k, k, tol=1e-3, shift=0.0, precision=precision, rank=len(B))
    return approximate(basis, pairs, precision=precision)


@pytest.mark.parametrize("name", list(builders.spectra(60)))
@pytest.mark.parametrize("precision", [EPS, float(np.finfo("f4").eps)])
@pytest.mark.parametrize("unit", [1.0, 1e-150, 1e150])
def test_it_is_the_nystrom_approximation_of_the_same_products(name, precision, unit):
    A, _ = builders.symmetric(unit * builders.spectra(60)[name], seed=3)
    B = np.linalg.qr(np.hstack([A / unit @ np.eye(60)[:, :6], np.random.default_rng(1).standard_normal((60, 6))]))[0]
    dtype = np.float32 if precision > EPS else np.float64
    Y = unit * ((A / unit).astype(dtype) @ B.astype(dtype)).astype(np.float64)
    found, oracle = approximated(B, Y, 5, precision), nystrom(B, Y, 5, precision=precision)
    rounding = 20 * precision * max(float(np.linalg.norm(Y)), 1e-300)
    assert np.abs(found.values - oracle.values).max() <= rounding
    assert abs(found.shift - oracle.shift) <= rounding
    assert np.abs(found.vectors @ found.vectors.T - np.eye(5)).max() < 1e-14
    assert np.abs(found.multiply(np.eye(60)) - oracle.multiply(np.eye(60))).max() <= rounding
    assert np.array_equal(found.basis, B)
    for norm in (0.0, 0.1, 1.0):
        mine, other = (one(norm * unit, 5) for one in (found.majorant_values, partial(oracle.majorant_values, B)))
        assert np.abs(mine - other).max() <= rounding
