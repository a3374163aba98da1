"""Block Krylov on matrices with known spectra: the eigenvalues to tol, one multiplication per iteration, honest ends."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bigpca.solvers.krylov import KrylovOptions, block_krylov, krylov_bytes
from tests import builders

N, K, BLOCK = 300, 12, 24
EPS = float(np.finfo(np.float64).eps)
SPECTRA = builders.solver_spectra(N)


@pytest.fixture(autouse=True)
def one_blas_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


def options(**changes):
    chosen = {"tol": 1e-3, "most_multiplications": 20, "most_columns": N, "block": BLOCK, "precision": EPS}
    return KrylovOptions(**{**chosen, **changes})


def product(name="power law 1", dtype=np.float64, n=N):
    return builders.CountedProduct(builders.symmetric(builders.solver_spectra(n)[name])[0], dtype)


def solve(A, k=K, *, start=None, given=None, observe=None, **changes):
    start = np.empty((len(A.A), 0)) if start is None else start
    changes = {"precision": A.precision, **changes}
    return block_krylov(A, start, k, options(**changes), products=given, observe=observe)


def worst_error(result, A, tol):
    """Largest error relative to max(lambda_i, tol lambda_1), as tol is meant."""
    true = A.eigenvalues()[: len(result.values)]
    scale = np.maximum(true, tol * true[0])
    return float(np.max(np.abs(result.values - true) / np.where(scale > 0, scale, 1.0)))


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("most_columns", [N, 3 * BLOCK])
def test_eigenvalues_are_within_tol_and_vectors_are_theirs(name, dtype, most_columns):
    A = product(name, dtype)
    result = solve(A, most_columns=most_columns)
    slack = 10 * A.precision * float(np.trace(A.A))
    assert result.converged
    assert result.largest_error <= 1e-3
    # "rank deficient" here is a hundred eigenvalues half a percent apart: errors exceed their estimate (see docstring).
    assert worst_error(result, A, 1e-3) <= (1e-2 if name == "rank deficient" else 1e-3)
    assert (result.ritz_values <= result.values + slack).all()
    assert (result.values <= A.eigenvalues()[:K] + slack).all()
    assert np.abs(result.vectors @ result.vectors.T - np.eye(K)).max() < 20 * EPS
    captured = float(np.trace(result.vectors @ A.A @ result.vectors.T))
    assert captured >= (1 - 2e-3) * A.eigenvalues()[:K].sum() - slack


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("tol", [1e-4, 1e-8])
def test_a_smaller_tol_is_met_too(name, tol):
    A = product(name)
    result = solve(A, tol=tol, most_multiplications=40)
    assert result.converged
    assert worst_error(result, A, tol) <= (10 * tol if name == "rank deficient" else tol) + 1e-13


@pytest.mark.parametrize("name", SPECTRA)
def test_every_iteration_costs_one_multiplication_and_no_other_is_made(name):
    steps, A = [], product(name)
    result = solve(A, observe=steps.append)
    assert A.count == result.multiplications == len(steps)
    assert [step.multiplications for step in steps] == list(range(1, A.count + 1))
    assert A.columns == result.columns_multiplied <= A.count * BLOCK


@pytest.mark.parametrize("p", [0.5, 0.7, 1.0, 1.4, 2.0])
@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-4])
def test_the_error_estimate_is_near_the_true_error(p, tol):
    A = builders.CountedProduct(np.diag(builders.power_law(1000, p)))
    for seed in range(3):
        result = solve(A, tol=tol, seed=seed, most_columns=200)
        error = worst_error(result, A, tol)
        assert error <= tol
        assert 0.5 * error < result.largest_error < 16 * error


@pytest.mark.parametrize("spectrum", ["white noise", "i^-0.1", "i^-0.3"])
@pytest.mark.parametrize(("k", "block"), [(5, 15), (50, 100)])
def test_a_flat_spectrum_does_not_pass_for_a_known_one(spectrum, k, block):
    """Residuals are small there however wrong the Ritz values are; how slowly they still rise shows it."""
    i = np.arange(1, 1201.0)
    noise = (1 + np.sqrt(0.02)) ** 2 - 0.56 * (i / 1200) ** (2 / 3)  # about the edge of Marchenko and Pastur's law
    values = noise if spectrum == "white noise" else i ** -float(spectrum.removeprefix("i^-"))
    A = builders.CountedProduct(np.diag(values))
    for seed in range(2):
        result = solve(A, k, block=block, seed=seed, most_columns=4 * block, most_multiplications=9)
        error = worst_error(result, A, 1e-3)
        assert error <= 1e-3 or not result.converged
        assert 0.5 * error < result.largest_error < 4 * error


def test_residuals_are_those_of_the_ritz_pairs_without_a_further_multiplication():
    seen, A = {}, product()

    def keep(step):
        seen["basis"], seen["products"] = step.basis.copy(), step.products.copy()
        seen["residuals"] = step.residuals

    result = solve(A, observe=keep)
    B = seen["basis"]
    assert np.abs(B.T @ B - np.eye(B.shape[1])).max() < 1e-13
    assert np.abs(A.A @ B - seen["products"]).max() < 1e-13
    values, Y = np.linalg.eigh(B.T @ A.A @ B)
    U, theta = B @ Y[:, ::-1][:, :K], values[::-1][:K]
    assert np.abs(theta - result.ritz_values).max() < 1e-13
    assert np.abs(np.linalg.norm(A.A @ U - U * theta, axis=0) - result.residuals).max() < 1e-12
    assert np.array_equal(seen["residuals"], result.residuals)


def test_restarts_give_the_same_eigenvalues_inside_a_smaller_basis():
    largest, A = [], product("power law 0.5")
    full = solve(A, tol=1e-9, most_multiplications=60)
    restarted = solve(
        A, tol=1e-9, most_multiplications=60, most_columns=72, observe=lambda s: largest.append(s.basis.shape[1])
    )
    assert max(largest) == 72 < restarted.columns_multiplied
    assert restarted.converged
    assert np.abs(full.values - restarted.values).max() < 2e-9
    assert np.abs(full.vectors @ restarted.vectors.T).diagonal().min() > 1 - 1e-6


@pytest.mark.parametrize("k", [BLOCK + 10, 3 * BLOCK])
def test_eigenvalues_repeated_more_often_than_the_block_has_columns_are_all_found(k):
    A = product("repeated")  # 3, a hundred times 2, then less than 1
    result = solve(A, k, block=BLOCK)
    assert result.converged
    assert np.abs(result.values[1:] - 2.0).max() < 2e-3


def test_a_start_without_the_first_eigenvectors_is_mended_by_random_columns():
    spectrum = builders.power_law(N)
    A = builders.CountedProduct(builders.symmetric(spectrum)[0])
    V = builders.symmetric(spectrum)[1]
    blind = V[3 : 3 + K].T  # an invariant subspace: residuals of zero, and the three largest missing
    result = solve(A, start=blind)
    assert result.converged
    assert worst_error(result, A, 1e-3) <= 1e-3
    assert A.count > 1


def test_even_a_start_as_wide_as_the_block_has_random_columns_beside_it():
    A = product()
    V = builders.symmetric(SPECTRA["power law 1"])[1]
    result = solve(A, start=V[3 : 3 + BLOCK].T)
    assert result.converged
    assert worst_error(result, A, 1e-3) <= 1e-3


def test_given_products_that_hide_the_first_eigenvectors_do_not_pass_as_converged():
    A, rng = product(), np.random.default_rng(0)
    V = builders.symmetric(SPECTRA["power law 1"])[1]
    B = np.hstack([V[3 : 3 + 2 * BLOCK].T, rng.standard_normal((N, 5))])
    result = solve(A, given=(B, A.A @ B))
    assert not result.converged
    assert result.stopped == "missed"
    assert result.largest_error > 0.1


def test_a_good_start_saves_multiplications():
    A = product("power law 0.5")
    cold = solve(A)
    V = builders.symmetric(SPECTRA["power law 0.5"])[1]
    near = V[:BLOCK].T + 0.02 * np.random.default_rng(0).standard_normal((N, BLOCK)) / np.sqrt(N)
    warm = solve(A, start=near, block=BLOCK + 6)
    assert warm.converged
    assert warm.multiplications <= cold.multiplications - 2


def test_products_that_are_known_already_are_not_computed_again():
    states, A = [], product("power law 0.5")
    whole = solve(A, tol=1e-6, observe=lambda s: states.append((s.basis.copy(), s.products.copy())))
    again = product("power law 0.5")
    resumed = solve(again, tol=1e-6, given=states[1])
    assert again.count == resumed.multiplications == whole.multiplications - 2
    assert resumed.converged
    assert np.abs(resumed.values - whole.values).max() < 1e-12


def test_given_products_need_not_be_of_an_orthonormal_basis():
    A, rng = product(), np.random.default_rng(0)
    B = rng.standard_normal((N, 40)) * np.geomspace(1, 100, 40)
    B[:, 3] = B[:, 4]
    result = solve(A, given=(B, A.A @ B))
    assert result.converged
    assert worst_error(result, A, 1e-3) <= 1e-3


def test_a_start_joins_given_products():
    A, rng = product("power law 0.5"), np.random.default_rng(0)
    B = rng.standard_normal((N, 30))
    seen = []
    solve(A, given=(B, A.A @ B), start=rng.standard_normal((N, 5)), observe=lambda s: seen.append(s.basis.shape[1]))
    assert seen[0] == 30 + BLOCK


@pytest.mark.parametrize("start", ["repeated columns", "zeros"])
def test_a_start_that_lacks_rank_is_filled_up(start):
    A = product()
    columns = np.zeros((N, BLOCK)) if start == "zeros" else np.repeat(A.A[:, :3], 8, axis=1)
    result = solve(A, start=columns)
    assert result.converged
    assert worst_error(result, A, 1e-3) <= 1e-3


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
    result = solve(product("power law 0.5"), most_multiplications=2)
    assert not result.converged
    assert result.stopped == "multiplications"
    assert result.multiplications == 2
    assert result.largest_error > 1e-3
    assert (result.residuals > 0).all()


def test_a_tol_below_the_rounding_of_the_products_ends_without_a_loop():
    A = product("power law 2", np.float32)
    result = solve(A, tol=1e-11, most_multiplications=100)
    assert not result.converged
    assert result.stopped in ("rounding", "stagnation")
    assert result.multiplications < 20
    assert result.residuals.max() < 1e-5  # it went as far as the products allow
    assert worst_error(result, A, 1e-3) < 1e-3


def test_noise_above_the_stated_precision_is_noticed_as_stagnation():
    rng, A = np.random.default_rng(0), product("power law 1").A
    noisy = builders.CountedProduct(A)
    noisy.precision = EPS  # what the caller claims; the products are far worse

    def multiply(Q):
        return noisy(Q) + 1e-4 * rng.standard_normal(Q.shape) / np.sqrt(N)

    result = block_krylov(multiply, np.empty((N, 0)), K, options(tol=1e-10, most_multiplications=100))
    assert result.stopped == "stagnation"
    assert result.multiplications < 13  # N columns would be reached after 13


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
    assert len(result.approximation.values) == result.columns_multiplied > K
    assert result.approximation.trace <= np.trace(A.A)
    omega = np.random.default_rng(0).standard_normal((N, 3))
    direct = result.approximation.multiply(omega)
    assert np.abs(direct - A.A @ omega).max() < np.abs(A.A @ omega).max()


def test_the_same_seed_gives_the_same_bits_and_another_seed_other_ones():
    first, second, other = (solve(product("power law 0.5"), seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.vectors, second.vectors)
    assert not np.array_equal(first.values, other.values)


def test_blocks_are_orthonormal_columns():
    A = product("power law 2", np.float32)
    blocks = []

    def multiply(Q):
        blocks.append(Q.copy())
        return A(Q)

    block_krylov(multiply, np.empty((N, 0)), K, options(precision=A.precision, tol=1e-6))
    together = np.hstack(blocks)
    assert len(blocks) > 2
    assert np.abs(together.T @ together - np.eye(together.shape[1])).max() < 1e-13


def test_the_stated_memory_is_kept():
    n, k, block, columns = 40_000, 5, 10, 30
    spectrum = builders.power_law(n, 0.5)[:, None]
    tracemalloc.start()
    try:
        chosen = options(most_columns=columns, block=block, most_multiplications=6)
        block_krylov(lambda Q: spectrum * Q, np.empty((n, 0)), k, chosen)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.6 * krylov_bytes(n, columns, block, k) < peak <= krylov_bytes(n, columns, block, k)


@pytest.mark.parametrize(
    ("k", "changes", "message"),
    [
        (0, {}, "0 eigenpairs were asked for, but a matrix of size 300 has 1 to 300"),
        (N + 1, {}, "301 eigenpairs were asked for"),
        (40, {"most_columns": 79}, "40 eigenpairs need a basis of 80 columns, but only 79 fit the memory limit"),
        (lambda values: 0, {}, "0 eigenpairs were asked for"),
        (lambda values: 50, {"most_columns": 60}, "50 eigenpairs need a basis of 100 columns, but only 60 fit"),
        (K, {"tol": 0.0}, r"tol = 0\.0, but it is a relative error: give a number in \(0, 1\)"),
        (K, {"tol": 1.0}, r"tol = 1\.0"),
        (K, {"block": 0}, "block = 0, but it must be at least 1"),
        (K, {"most_multiplications": 0}, "most_multiplications = 0"),
    ],
)
def test_impossible_wishes_are_refused_with_the_numbers(k, changes, message):
    with pytest.raises(ValueError, match=message):
        solve(product(), k, **changes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.ones((N, 3)), np.ones((N, 4))), r"given products have shapes \(300, 3\) and \(300, 4\), but both must be"),
        ((np.ones((N - 1, 3)), np.ones((N - 1, 3))), r"must be \(300, c\) with c <= 60"),
        ((np.ones((N, 61)), np.ones((N, 61))), "the columns that the basis can hold"),
    ],
)
def test_products_that_do_not_fit_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        solve(product(), given=given, most_columns=60)


def test_a_start_that_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match="the start has 61 columns and the given products 0, but the basis can hold 60"
    ):
        solve(product(), start=np.ones((N, 61)), most_columns=60)


def test_products_of_another_shape_or_not_finite_are_refused():
    with pytest.raises(ValueError, match=r"multiply returned shape \(24, 300\) for columns of shape \(300, 24\)"):
        block_krylov(lambda Q: Q.T, np.empty((N, 0)), K, options())
    with pytest.raises(ValueError, match="multiplication 1 gave numbers that are not finite"):
        block_krylov(lambda Q: np.full(Q.shape, np.nan), np.empty((N, 0)), K, options())
