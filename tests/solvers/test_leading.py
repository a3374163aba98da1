"""A few leading eigenpairs by iteration are the dense solver's, and what the iteration misses is found out."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh

from bigpca.solvers import eigh as leading
from bigpca.solvers.eigh import eigh_bytes, is_iterated, leading_eigenpairs, top_eigenpairs

Array = NDArray[Any]
D, K = 1024, 20
I = np.arange(1, D + 1.0)
SPECTRA: dict[str, Array] = {
    "i^-1": 1 / I,
    "i^-2": I**-2,
    "geometric": 0.95**I,
    "three equal at the edge": np.where((I >= K - 1) & (I <= K + 1), 1 / K, 1 / I),
    "large": 1e30 / I,
    "small": 1e-200 / I,
}


@cache
def axes() -> Array:
    return np.linalg.qr(np.random.default_rng(0).standard_normal((D, D)))[0]


@cache
def known(name: str) -> Array:
    return rotated(SPECTRA[name])


def rotated(values: Array) -> Array:
    """A symmetric matrix with these eigenvalues, exactly symmetric."""
    Q = axes()
    S = (Q * values) @ Q.T
    return np.triu(S) + np.triu(S, 1).T


def iterated(S: Array, k: int = K, *, lower: bool = False) -> tuple[Array, Array] | None:
    return leading_eigenpairs(np.asfortranarray(S.copy()), S.diagonal().copy(), k, lower=lower)


@pytest.mark.parametrize(("name", "lower"), [*((name, False) for name in SPECTRA), ("i^-1", True)])
def test_eigenvalues_are_those_of_the_dense_solver(name: str, lower: bool) -> None:
    """Within d eps lambda_1, through both triangles; residuals and lengths to rounding."""
    S = known(name)
    truth = eigh(S, eigvals_only=True)[::-1][:K]
    filled = np.tril(S) if lower else np.triu(S)
    values, vectors = top_eigenpairs(filled, K, lower=lower)
    noise = D * np.finfo(np.float64).eps * truth[0]
    np.testing.assert_allclose(values, truth, rtol=0, atol=noise)
    assert np.abs(S @ vectors.T - vectors.T * values).max() < noise
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(K), atol=1e-12)


@pytest.mark.parametrize("name", ["i^-1", "geometric"])
def test_it_is_the_iteration_that_answers_and_twice_alike(name: str) -> None:
    S = known(name)
    found, again = iterated(S), iterated(S)
    assert found is not None
    assert again is not None
    np.testing.assert_array_equal(found[0], again[0])
    np.testing.assert_array_equal(found[1], again[1])


@pytest.mark.parametrize(("name", "factorised"), [("i^-1", True), ("i^-2", False), ("geometric", False)])
def test_a_spectrum_that_falls_fast_needs_no_factorisation(
    name: str, factorised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The squares of all other eigenvalues sum to less than lambda_k^2."""
    calls = []
    monkeypatch.setattr(leading, "_are_largest", lambda *arguments, **options: calls.append(1) is None)
    assert iterated(known(name)) is not None
    assert bool(calls) is factorised


def test_an_eigenvector_that_the_start_cannot_see_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagonal matrix, and a start without the axis of its third eigenvalue: the Krylov space never meets it."""
    S = np.diag(SPECTRA["geometric"])
    start = np.ones(D)
    start[2] = 0.0
    monkeypatch.setattr(leading, "normals", lambda *arguments: start[None])
    blind = eigsh(S, K, which="LA", v0=start, ncv=80)[0][::-1]
    assert abs(blind[2] / S[2, 2] - 1) > 0.01  # so it does miss it
    assert iterated(S) is None
    np.testing.assert_allclose(top_eigenpairs(S.copy(), K)[0], S.diagonal()[:K], rtol=1e-12)


def test_a_solve_that_fails_after_a_factorisation_is_repeated_from_a_whole_triangle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    S, factorise = known("i^-1"), leading._are_largest

    def failing(*arguments: Any, driver: str, **options: Any) -> Any:
        if driver == "evr":
            raise np.linalg.LinAlgError
        return eigh(*arguments, driver=driver, **options)

    monkeypatch.setattr(leading, "_are_largest", lambda *a, **b: factorise(*a, **b) and False)
    monkeypatch.setattr(leading, "eigh", failing)
    np.testing.assert_allclose(top_eigenpairs(S.copy(), K)[0], SPECTRA["i^-1"][:K], rtol=1e-11)


@pytest.mark.parametrize("rank", [0, K - 1])
def test_zeros_among_the_wanted_are_left_to_the_dense_solver(rank: int) -> None:
    S = rotated(np.where(rank >= I, 1 / I, 0.0))
    assert iterated(S) is None
    values, vectors = top_eigenpairs(S, K)
    np.testing.assert_allclose(values, np.where(rank >= I, 1 / I, 0.0)[:K], atol=D * np.finfo(np.float64).eps)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(K), atol=1e-12)


def test_what_does_not_converge_in_time_is_left_to_the_dense_solver() -> None:
    even = np.linspace(2, 1, D)
    S = rotated(even)
    assert iterated(S) is None
    np.testing.assert_allclose(top_eigenpairs(S.copy(), K)[0], even[:K], rtol=1e-12)


@pytest.mark.parametrize("lower", [False, True])
def test_the_filled_triangle_stays(lower: bool) -> None:
    S = known("i^-1")
    used = np.asfortranarray(np.tril(S) if lower else np.triu(S))
    assert leading_eigenpairs(used, S.diagonal().copy(), K, lower=lower) is not None
    keep = np.tril if lower else np.triu
    np.testing.assert_array_equal(keep(used, -1 if lower else 1), keep(S, -1 if lower else 1))


def test_small_matrices_and_many_pairs_are_not_iterated_for() -> None:
    assert is_iterated(1024, 51)
    assert not is_iterated(1024, 52)
    assert not is_iterated(1023, 1)
    assert eigh_bytes(4096, 10) < eigh_bytes(4096, 100) < eigh_bytes(4096)
