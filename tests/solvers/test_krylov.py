"""Block Krylov on matrices with known spectra: the eigenvalues to tol, one multiplication per
iteration, honest ends.
"""

import tracemalloc
from functools import cache

import numpy as np
import pytest

from bigpca.solvers.krylov import Known, KrylovOptions, block_krylov, krylov_bytes
from tests import builders

N, K, BLOCK, PROBES = 240, 12, 24, 10
EPS = float(np.finfo(np.float64).eps)
SPECTRA = builders.solver_spectra(N)


def options(**changes):
    chosen = {"tol": 1e-3, "max_multiplications": 20, "max_columns": N, "block": BLOCK, "rank": None}
    return KrylovOptions(**{**chosen, **changes})


symmetric = cache(lambda name: builders.symmetric(SPECTRA[name]))


def product(name="power law 1", dtype=np.float64):
    return builders.CountedProduct(symmetric(name)[0], dtype)


def known(A, width=BLOCK, *, start=None, seed=0):
    """A first block, its leading columns given or random, and probes, multiplied together."""
    rng, n = np.random.default_rng(seed), len(A.A)
    B, probes = np.linalg.qr(rng.standard_normal((n, min(width, n))))[0], rng.standard_normal((n, PROBES))
    if start is not None:
        B[:, : start.shape[1]] = start
    both = A.multiply(np.hstack([B, probes]))
    AB, AP = both[:, :-PROBES], both[:, -PROBES:]
    return Known(B, AB, probes, AP)


def solve(A, k=K, *, given=None, seed=0, **changes):
    o = options(seed=seed, **changes)
    return block_krylov(A, known(A, o.block, seed=seed) if given is None else given, k, o)


def worst_error(result, A, tol):
    """Largest error relative to each eigenvalue, where the rounding of the products is less than tol of it."""
    true = A.eigenvalues()[: len(result.values)]
    scale = np.maximum(true, 10 * A.precision * true[0] / tol)
    return float(np.max(np.abs(result.values - true) / np.where(scale > 0, scale, 1.0)))


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("max_columns", [N, 3 * BLOCK])
def test_eigenvalues_are_within_tol_and_vectors_are_theirs(name, dtype, max_columns):
    A = product(name, dtype)
    result = solve(A, max_columns=max_columns)
    slack = 10 * A.precision * float(np.trace(A.A))
    assert worst_error(result, A, 1e-3) <= 1e-3
    if result.converged:
        assert result.largest_error <= 1e-3
        assert not result.unresolved
    assert (result.ritz_values <= result.values + slack).all()
    assert (result.values <= A.eigenvalues()[:K] + slack).all()
    assert np.abs(result.vectors @ result.vectors.T - np.eye(K)).max() < 20 * EPS
    captured = float(np.trace(result.vectors @ A.A @ result.vectors.T))
    assert captured >= (1 - 2e-3) * A.eigenvalues()[:K].sum() - slack


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("tol", [1e-4, 1e-8])
def test_a_smaller_tol_is_met_too(name, tol):
    A = product(name)
    result = solve(A, tol=tol, max_multiplications=40)
    assert result.converged or name in ("clustered", "repeated")  # wider than the block: admitted
    assert worst_error(result, A, tol) <= tol + 1e-13 or not result.converged


@pytest.mark.parametrize("spectrum", ["white noise", "i^-0.1", "i^-0.3"])
@pytest.mark.parametrize(("k", "block"), [(5, 15), (50, 100)])
def test_a_flat_spectrum_does_not_pass_for_a_known_one(spectrum, k, block):
    """Residuals are small there however wrong the Ritz values are; what the probes still meet shows it."""
    i = np.arange(1, 501.0)
    noise = (1 + np.sqrt(0.02)) ** 2 - 0.56 * (i / 500) ** (2 / 3)  # about the edge of Marchenko and Pastur's law
    values = noise if spectrum == "white noise" else i ** -float(spectrum.removeprefix("i^-"))
    A = builders.CountedProduct(np.diag(values))
    for seed in range(2):
        result = solve(A, k, block=block, seed=seed, max_columns=4 * block, max_multiplications=9)
        error = worst_error(result, A, 1e-3)
        assert error <= 1e-3 or not result.converged
        assert error < 1.5 * result.largest_error


@pytest.mark.parametrize("k", [BLOCK + 10, 3 * BLOCK])
def test_eigenvalues_repeated_more_often_than_the_block_has_columns_are_all_found(k):
    A = product("repeated")  # 3, eighty times 2, then less than 1
    result = solve(A, k, block=BLOCK)
    assert result.converged
    assert np.abs(result.values[1:] - 2.0).max() < 2e-3


def test_given_products_need_not_be_of_an_orthonormal_basis():
    A, rng = product(), np.random.default_rng(0)
    B = rng.standard_normal((N, 40)) * np.geomspace(1, 100, 40)
    B[:, 3] = B[:, 4]
    probes = rng.standard_normal((N, PROBES))
    result = solve(A, given=Known(B, A.A @ B, probes, A.A @ probes))
    assert result.converged
    assert worst_error(result, A, 1e-3) <= 1e-3


PLATEAUS = {
    "steps": np.concatenate([np.linspace(2.2, 2.0, 100), np.linspace(1.1, 1.0, 200)]),
    "wide": np.linspace(1.1, 1.0, N),
    "under a giant": np.concatenate([[1e6], np.linspace(1.1, 1.0, N - 1)]),
    "under three": np.concatenate([[1e5, 1e3, 30.0], np.arange(1.0, N - 2) ** -0.5]),
}


@pytest.mark.parametrize("name", PLATEAUS)
@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-5])
def test_clusters_wider_than_the_block_and_giants_do_not_pass_for_converged(name, k, tol):
    A = builders.CountedProduct(np.diag(PLATEAUS[name]))
    for seed in range(3):
        result = solve(A, k, tol=tol, block=15, seed=seed, max_columns=60, max_multiplications=5)
        assert worst_error(result, A, tol) <= tol or not result.converged


@pytest.mark.parametrize("name", ["power law 0.5", "gap", "power law 2"])
def test_a_start_without_the_first_eigenvectors_does_not_pass_for_converged(name):
    A = product(name)
    V = symmetric(name)[1]
    for random in (2, 8):  # columns beside an invariant subspace, whose residuals are zero
        given = known(A, BLOCK, start=V[3 : 3 + BLOCK - random].T)
        early = block_krylov(A, given, K, options(max_multiplications=1))
        assert worst_error(early, A, 1e-3) <= 1e-3 or not early.converged
        result = block_krylov(A, given, K, options())
        assert result.converged
        assert worst_error(result, A, 1e-3) <= 1e-3


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_norm_of_what_is_missed_is_bounded_by_the_probes(name, dtype):
    A = product(name, dtype)
    for reads in (0, 1, 3):
        result = block_krylov(A, known(A), K, options(max_multiplications=reads, max_columns=3 * BLOCK))
        missed = np.linalg.norm(A.A - result.approximation.multiply(np.eye(N)), 2)
        assert missed <= result.norm_bound + 20 * A.precision * np.trace(A.A)


class Refined(builders.CountedProduct):
    """Products in float32, until they are refined."""

    def __init__(self, A):
        super().__init__(A, np.float32)
        self.refinable = True

    def refine(self):
        self.rounded, self.precision, self.refinable = self.A, EPS, False


@pytest.mark.parametrize(("name", "refined"), [("power law 4", True), ("power law 0.5", False)])
def test_products_are_refined_where_their_rounding_hides_eigenvalues(name, refined):
    coarse, A = product(name, np.float32), Refined(product(name).A)
    result = solve(A)
    assert A.refinable is not refined
    assert result.converged
    assert worst_error(result, A, 1e-3) <= 1e-3
    without = solve(coarse)
    assert without.stopped == ("unresolved" if refined else "tol")
    hidden = coarse.eigenvalues()[:K] < 10 * coarse.precision * coarse.eigenvalues()[0] / 1e-3
    assert without.unresolved == np.count_nonzero(hidden)
    assert without.converged == (without.largest_error <= 1e-3)


def test_zeros_of_a_matrix_that_lacks_rank_are_an_answer():
    A = builders.CountedProduct(builders.symmetric(builders.rank_deficient(N, 5))[0])
    result = solve(A)
    assert result.converged
    assert not result.unresolved
    assert np.abs(result.values[5:]).max() < 1e-13


def test_every_iteration_costs_one_multiplication_and_no_other_is_made():
    for name in SPECTRA:
        A = product(name)
        result = solve(A)
        assert A.count == 1 + result.multiplications
        assert A.columns <= A.count * (BLOCK + PROBES)


@pytest.mark.parametrize("n", [1, 5, BLOCK - 1, BLOCK + 1])
@pytest.mark.parametrize("name", ["power law 1", "flat", "zero"])
def test_a_matrix_smaller_than_the_block_is_solved_in_two_multiplications_at_most(n, name):
    spectrum = {"power law 1": builders.power_law(n), "flat": builders.flat(n), "zero": np.zeros(n)}[name]
    A = builders.CountedProduct(builders.symmetric(spectrum)[0])
    result = solve(A, n, tol=1e-9)
    assert A.count <= 2
    assert result.converged
    assert np.abs(result.values - spectrum).max() <= 1e-13
    assert np.abs(result.vectors @ result.vectors.T - np.eye(n)).max() < 20 * EPS


def test_too_few_multiplications_are_admitted():
    result = solve(product("power law 0.5"), max_multiplications=2)
    assert not result.converged
    assert result.stopped == "multiplications"
    assert result.multiplications == 2
    assert result.largest_error > 1e-3
    assert (result.residuals > 0).all()


def test_a_tol_below_the_rounding_of_the_products_ends_without_a_loop():
    A = product("power law 2", np.float32)
    result = solve(A, tol=1e-11, max_multiplications=100)
    assert not result.converged
    assert result.stopped in ("unresolved", "stagnation")
    assert result.multiplications < 20
    assert np.abs(result.values - A.eigenvalues()[:K]).max() < 10 * A.precision  # it went as far as the products allow
    assert worst_error(result, A, 1e-3) < 1e-3


def share_of_trace(share, trace):
    """As the caller of a fraction asks: the fewest Ritz values that hold it, one more than there are if they do not."""
    return lambda values: int(np.searchsorted(np.cumsum(values), share * trace)) + 1


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("name", ["power law 1", "gap", "rank deficient"])
def test_a_wanted_share_of_the_trace_grows_the_block_until_it_is_held(share, name):
    A = product(name)
    trace = float(np.trace(A.A))
    expected = int(np.searchsorted(np.cumsum(A.eigenvalues()), share * trace)) + 1
    result = solve(A, share_of_trace(share, trace), block=8)
    assert result.converged
    assert len(result.values) in (expected, expected + 1)  # Ritz values fall short of the eigenvalues by up to tol


def test_all_values_and_the_trace_serve_the_certificates():
    A = product("power law 0.5")
    result = solve(A)
    assert len(result.approximation.values) == result.basis.shape[1] > K
    assert result.approximation.trace <= np.trace(A.A)
    omega = np.random.default_rng(0).standard_normal((N, 3))
    direct = result.approximation.multiply(omega)
    assert np.abs(direct - A.A @ omega).max() < np.abs(A.A @ omega).max()


class Diagonal:
    """Nothing but its diagonal."""

    precision, refinable = EPS, False

    def __init__(self, spectrum):
        self.spectrum, self.trace = spectrum[:, None], float(spectrum.sum())

    def multiply(self, Q):
        return self.spectrum * Q


def test_the_stated_memory_is_kept():
    n, k, block, columns = 40_000, 5, 10, 30
    A, rng = Diagonal(builders.power_law(n, 0.5)), np.random.default_rng(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        B, probes = np.linalg.qr(rng.standard_normal((n, block)))[0], rng.standard_normal((n, PROBES))
        given = [Known(B, A.multiply(B), probes, A.multiply(probes))]
        del B, probes
        tracemalloc.reset_peak()
        block_krylov(A, given.pop(), k, options(max_columns=columns, block=block, max_multiplications=6))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    stated = krylov_bytes(n, columns, block, k, PROBES)
    assert 0.6 * stated < peak <= stated


@pytest.mark.parametrize(
    ("k", "changes", "message"),
    [
        (0, {}, "0 eigenpairs were requested, but a matrix of size 240 has 1 to 240"),
        (N + 1, {}, "241 eigenpairs were requested"),
        (40, {"max_columns": 79}, "40 eigenpairs need a basis of 80 columns, but only 79 fit the memory limit"),
        (40, {"max_columns": 49, "rank": 50}, "40 eigenpairs need a basis of 50 columns, but only 49 fit"),
        (lambda values: 0, {}, "0 eigenpairs were requested"),
        (lambda values: 50, {"max_columns": 60}, "50 eigenpairs need a basis of 100 columns, but only 60 fit"),
    ],
)
def test_impossible_wishes_are_rejected_with_the_numbers(k, changes, message):
    with pytest.raises(ValueError, match=message):
        solve(product(), k, **changes)


def test_products_that_are_not_finite_are_rejected():
    A = product("power law 0.5")
    given = known(A)
    A.multiply = lambda Q: np.full(Q.shape, np.nan)
    with pytest.raises(ValueError, match="multiplication 1 returned values that are not finite"):
        solve(A, given=given)
