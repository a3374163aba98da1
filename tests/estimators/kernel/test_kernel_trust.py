"""Matrices and functions that are said to be positive semi-definite and are not: an error by every route, never an
answer.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca import kernels
from bigpca.errors import ApproximationWarning

N = 200
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((N, 5)), np.arange(N) % 3
NOISE = RNG.standard_normal((N, N))
DISTANCES = np.sqrt(np.maximum(((X[:, None] - X) ** 2).sum(axis=2), 0))
SOME = {"n_landmarks": 30, "sampling": "uniform"}
Array = NDArray[Any]


def distance(A: Array, B: Array) -> Array:
    return np.asarray(np.sqrt(((A[:, None] - B) ** 2).sum(axis=2)))


def gaussian(A: Array, B: Array) -> Array:
    return np.asarray(np.exp(-0.1 * ((A[:, None] - B) ** 2).sum(axis=2)))


ROUTES: dict[str, Callable[[Any], Any]] = {
    "dense": lambda kernel: bp.KernelPCA(2, kernel=kernel),
    "krylov": lambda kernel: bp.KernelPCA(2, kernel=kernel, solver="krylov"),
    "sketch": lambda kernel: bp.ApproximateKernelPCA(2, kernel=kernel),
    "algorithm 6": lambda kernel: bp.ApproximateKernelPCA(2, kernel=kernel, approximation="tutorial"),
    "landmarks": lambda kernel: bp.NystromKernelPCA(2, kernel=kernel, **SOME),
    "tutorial": lambda kernel: bp.NystromKernelPCA(2, kernel=kernel, components_from="landmarks", **SOME),
    "supervised": lambda kernel: bp.KernelSupervisedPCA(2, kernel=kernel),
    "dual": lambda kernel: bp.KernelSupervisedPCA(2, kernel=kernel, solver="pairs"),
    "roweis": lambda kernel: bp.KernelRoweisDiscriminantAnalysis(2, kernel=kernel, **SOME),
}
TRUSTED: dict[str, tuple[Any, Array]] = {
    "distances": ("precomputed", DISTANCES),
    "random": ("precomputed", (NOISE + NOISE.T) / 2),
    "random, float32": ("precomputed", ((NOISE + NOISE.T) / 2).astype(np.float32)),
    "part of a sum": (kernels.Precomputed() + 2.0, DISTANCES),
    "function": (kernels.FromFunction(distance, positive_semidefinite=True), X),
    "normalized function": (
        kernels.normalized(kernels.FromFunction(lambda A, B: distance(A, B) + 1, positive_semidefinite=True)), X,
    ),
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", TRUSTED)
def test_what_is_not_positive_semi_definite_is_rejected_with_the_evidence(name: str, route: str) -> None:
    kernel, rows = TRUSTED[name]
    evidence = r"was assumed to be positive semi-definite, but .* (the trace|eigenvalue|sum to).* -D\*\*2 / 2"
    with pytest.raises(ValueError, match=evidence):
        ROUTES[route](kernel).fit(rows, Y)


def test_landmarks_that_look_well_are_rejected_where_other_rows_are_not() -> None:
    G = np.full((N, N), 3.0) - 2 * np.eye(N)
    G[:2, :2] = np.eye(2)
    with pytest.raises(
        ValueError, match=r"the squares of the features of its 2 landmarks sum to 3.57e\+03, over its trace, 200, so"
    ):
        bp.NystromKernelPCA(2, kernel="precomputed", n_landmarks=2, sampling=[0, 1]).fit(G)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 0.0), (np.float32, 1e3), (np.float64, 1e3)])
@pytest.mark.filterwarnings(
    "ignore::bigpca.errors.ApproximationWarning"
)  # bounds are wide where float32 leaves little of K
def test_what_is_positive_semi_definite_to_rounding_is_not_rejected(route: str, dtype: Any, offset: float) -> None:
    G = ((X + offset) @ (X + offset).T).astype(dtype)  # float32 leaves eigenvalues down to -3 at 1e3
    for kernel, rows in (
        ("precomputed", G),
        (kernels.FromFunction(gaussian, positive_semidefinite=True), X.astype(dtype)),
    ):
        largest = ROUTES[route](kernel).fit(rows, Y).eigenvalues_[0]
        assert largest > 0 or (dtype == np.float32 and offset)  # where rounding may be all of it


@pytest.mark.parametrize("route", ["dense", "krylov", "sketch", "algorithm 6"])
def test_classical_scaling_finds_the_rows_of_a_matrix_of_distances(route: str) -> None:
    model = ROUTES[route]("precomputed").set_params(n_components=5).fit(-(DISTANCES**2) / 2)
    expected = np.linalg.eigvalsh(np.cov(X.T, ddof=0) * N)[::-1]
    if route != "algorithm 6":
        np.testing.assert_allclose(model.eigenvalues_, expected, rtol=2e-3)


@pytest.mark.parametrize("route", ["dense", "krylov", "sketch"])
def test_a_function_of_unknown_sign_is_called_indefinite_only_where_negative_eigenvalues_are_seen(route: str) -> None:
    model = ROUTES[route](gaussian).fit(X)  # warnings are errors
    assert str(model.negative_mass_) == "0.0"
    with pytest.warns(ApproximationWarning) as caught:
        model = ROUTES[route](distance).fit(X)
    said = [str(warning.message) for warning in caught]
    assert any("is not positive semi-definite" in words for words in said)
    assert any("2 components were requested, but " in words for words in said)
    assert model.negative_mass_ > 0
    assert model.eigenvalues_.tolist() == [0.0, 0.0]
    assert not model.transform(X).any()
