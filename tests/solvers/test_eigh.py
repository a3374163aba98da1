"""The small dense solve, on matrices with known spectra."""

import numpy as np
import pytest
import scipy.linalg

from bigpca.blas import current_threads
from bigpca.solvers import eigh as module
from bigpca.solvers import nystrom
from bigpca.solvers.eigh import complete_orthonormal, eigh_bytes, fix_signs, numerical_rank, top_eigenpairs
from tests import builders
from tests.peaks import traced_peak

EPS = np.finfo(np.float64).eps
D = 40


@pytest.mark.parametrize("name", builders.spectra(D))
@pytest.mark.parametrize("k", [1, 7, D, None])
def test_eigenvalues_and_residuals_are_at_rounding_for_every_spectrum(name, k):
    spectrum = builders.spectra(D)[name]
    S, _ = builders.symmetric(spectrum)
    values, vectors = top_eigenpairs(S.copy(), k)
    kept = D if k is None else k
    slack = 10 * D * EPS * max(spectrum[0], 1e-300)
    assert values.shape == (kept,)
    assert vectors.shape == (kept, D)
    assert np.abs(values - spectrum[:kept]).max() <= slack
    assert np.abs(vectors @ S - values[:, None] * vectors).max() <= slack
    assert np.abs(vectors @ vectors.T - np.eye(kept)).max() <= 10 * D * EPS


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("order", ["C", "F", "strided", "read-only"])
@pytest.mark.parametrize("k", [5, None])
def test_only_the_filled_triangle_is_read_in_any_memory_order(lower, order, k):
    spectrum = builders.power_law(300)  # more than one strip of the mirrored copy
    full, _ = builders.symmetric(spectrum)
    S = builders.only_triangle(full, lower=lower, rubbish=np.nan)
    if order == "F":
        S = np.asfortranarray(S)
    elif order == "strided":
        wide = np.zeros((300, 600))
        wide[:, ::2] = S
        S = wide[:, ::2]
    elif order == "read-only":
        S.flags.writeable = False
    values, _ = top_eigenpairs(S, k, lower=lower)
    assert np.abs(values - spectrum[: len(values)]).max() < 300 * EPS


def test_a_contiguous_matrix_is_not_copied_and_serves_as_workspace():
    S, _ = builders.symmetric(builders.power_law(D))
    before = S.copy()
    top_eigenpairs(S, 3)
    assert not np.array_equal(S, before)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("failure", ["raises", "not orthonormal"])
def test_a_failed_solve_is_repeated_by_qr_from_the_other_triangle(monkeypatch, lower, failure):
    full, _ = builders.symmetric(builders.power_law(300))
    real = scipy.linalg.eigh

    def fails(a, **options):
        values, columns = real(a, **options)
        if options["driver"] != "evr":
            return values, columns
        if failure == "raises":
            raise scipy.linalg.LinAlgError("internal error")
        return values, columns * 1.01

    monkeypatch.setattr(module, "eigh", fails)
    values, vectors = top_eigenpairs(builders.only_triangle(full, lower=lower), 9, lower=lower)
    assert np.abs(values - builders.power_law(300)[:9]).max() < 300 * EPS
    assert np.abs(vectors @ full - values[:, None] * vectors).max() < 300 * EPS


def test_large_whole_spectra_go_without_divide_and_conquer(monkeypatch):
    monkeypatch.setattr(module, "DIVIDE_AND_CONQUER_UP_TO", 10)
    spectrum = builders.clustered(D)
    values, vectors = top_eigenpairs(builders.symmetric(spectrum)[0])
    assert np.abs(values - spectrum).max() < 10 * D * EPS
    assert np.abs(vectors @ vectors.T - np.eye(D)).max() < 10 * D * EPS
    assert eigh_bytes(20) < eigh_bytes(10) * 4


class Stopped(Exception):
    pass


@pytest.mark.parametrize(("call", "least"), [
    (lambda S, threads: top_eigenpairs(S, 10, signed=True, threads=threads), 1645),
    (lambda S, threads: top_eigenpairs(S, threads=threads), 1217),
    (lambda S, threads: nystrom.negative_eigenvalue(S, 1.0, threads=threads), 2621),
], ids=["few", "all", "Cholesky"])  # fmt: skip
def test_a_solve_uses_threads_from_half_a_second_of_one_core(call, least, monkeypatch, two_blas_threads):
    """By its own cost: other threads would wait busily for most of a short one."""
    used = []

    def seen(*arguments, **options):
        used.append(max(current_threads()))
        raise Stopped

    monkeypatch.setattr(module, "eigh", seen)
    monkeypatch.setattr(nystrom, "cholesky", seen)
    for n in (874, least - 20, least + 20):
        with pytest.raises(Stopped):
            call(np.ones((n, n)), 2)
    assert used == [1, 1, 2]


@pytest.mark.parametrize(
    ("S", "k", "error", "message"),
    [
        (np.eye(3, dtype=np.float32), 1, TypeError, "the matrix is float32, but float64"),
        (np.ones((2, 3)), 1, ValueError, r"shape \(2, 3\), but it must be \(d, d\)"),
        (np.ones((0, 0)), None, ValueError, r"shape \(0, 0\)"),
        (np.eye(3), 4, ValueError, r"4 eigenpairs were requested, but a \(3, 3\) matrix has 1 to 3"),
        (np.eye(3), 0, ValueError, "0 eigenpairs were requested"),
        (np.diag([1.0, np.nan, 1.0]), 1, ValueError, r"nan at \[1, 1\], so it has no eigenvalues"),
    ],
)
def test_bad_matrices_are_rejected_with_the_numbers(S, k, error, message):
    with pytest.raises(error, match=message):
        top_eigenpairs(S, k)


def test_signs_make_the_largest_entry_positive_and_the_first_one_on_ties():
    components = np.array([[0.1, -0.9, 0.2], [-0.5, 0.5, 0.0], [0.5, -0.5, 0.0], [0.0, 0.0, 0.0]])
    same = fix_signs(components)
    assert same is components
    assert components.tolist() == [[-0.1, 0.9, -0.2], [0.5, -0.5, 0.0], [0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("r", "k", "d"), [(0, 1, 1), (0, 5, 5), (3, 3, 9), (3, 9, 9), (1, 30, 200), (19, 20, 20)])
def test_completed_rows_are_orthonormal_and_the_given_ones_stay(r, k, d):
    V = builders.orthonormal_rows(max(r, 1), d)[:r]
    rows = complete_orthonormal(V, k)
    assert np.array_equal(rows[:r], V)
    assert np.abs(rows @ rows.T - np.eye(k)).max() < 50 * EPS
    assert np.array_equal(rows, complete_orthonormal(V, k))


@pytest.mark.parametrize("k", [2, 6])
def test_impossible_completions_are_rejected(k):
    with pytest.raises(
        ValueError, match=rf"{k} orthonormal rows were requested, but from 3 rows of length 5 only 3 to"
    ):
        complete_orthonormal(builders.orthonormal_rows(3, 5), k)


@pytest.mark.parametrize("rank", [1, 10, D])
def test_numerical_rank_counts_what_is_above_rounding(rank):
    values, _ = top_eigenpairs(builders.symmetric(builders.rank_deficient(D, rank))[0])
    assert numerical_rank(values, D) == rank


def test_nothing_has_rank_zero():
    assert numerical_rank(np.zeros(4), 4) == 0
    assert numerical_rank(np.zeros(0), 4) == 0


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("k", [1, 30, 399, None])
def test_memory_beside_the_matrix_is_what_the_plan_counts(lower, k):
    S, _ = builders.symmetric(builders.power_law(400))
    peak = traced_peak(lambda: top_eigenpairs(S, k, lower=lower))
    assert 0.4 * eigh_bytes(400, k) < peak <= eigh_bytes(400, k)


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e-30, 1e30, 1e150, 1e300])
@pytest.mark.parametrize("k", [5, None])
def test_extreme_scales_lose_no_digits(scale, k):
    S, _ = builders.symmetric(builders.clustered(D))
    values, vectors = top_eigenpairs(S * scale, k)
    kept = len(values)
    assert np.abs(values / scale - builders.clustered(D)[:kept]).max() < 10 * D * EPS
    assert np.abs(vectors @ vectors.T - np.eye(kept)).max() < 10 * D * EPS


def test_signed_eigenvalues_keep_their_signs_and_others_become_zero():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    spectrum = np.array([3.0, 1.0, 0.0, -0.5, -2.0, -4.0])
    S = (Q * spectrum) @ Q.T
    values, vectors = top_eigenpairs(S.copy(), signed=True)
    np.testing.assert_allclose(values, spectrum, atol=1e-14)
    np.testing.assert_allclose(S @ vectors.T, vectors.T * spectrum, atol=1e-14)
    np.testing.assert_allclose(top_eigenpairs(S.copy())[0], np.maximum(spectrum, 0), atol=1e-14)
