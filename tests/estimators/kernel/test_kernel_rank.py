"""Kernel matrices of fewer positive eigenvalues than components: one rule for all kernel models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigpca as bp
from bigpca import kernels
from bigpca.errors import ApproximationWarning
from bigpca.estimators.kernel import landmarks
from bigpca.landmarks import Landmarks
from tests.builders import assert_covered
from tests.estimators.kernel.test_kernel_scores import rows_at

N, K = 120, 6
X = np.random.default_rng(3).standard_normal((N, 3)) @ np.diag([3.0, 2.0, 1.0]) + 1.0
SIGNS = np.array([1.0, 1.0, -1.0])
FEATURES = X - X.mean(axis=0)
SOME = {"sampling": "uniform", "n_landmarks": 40}

MATRICES: dict[str, tuple[Any, Any, int]] = {  # kernel, rows and rank
    "few columns": (kernels.Linear(), X, 3),
    "a function": (kernels.FromFunction(lambda A, B: A @ B.T, positive_semidefinite=True), X, 3),
    "precomputed": (kernels.Precomputed(), X @ X.T, 3),
    "indefinite": (kernels.FromFunction(lambda A, B: (A * SIGNS) @ B.T), X, 2),
    "indefinite, precomputed": (kernels.Precomputed(indefinite=True), (X * SIGNS) @ X.T, 2),
}
ROUTES: dict[str, Callable[..., Any]] = {
    "dense": lambda k, kernel: bp.KernelPCA(k, kernel=kernel, solver="dense"),
    "krylov": lambda k, kernel: bp.KernelPCA(k, kernel=kernel, solver="krylov"),
    "sketch": lambda k, kernel: bp.ApproximateKernelPCA(k, kernel=kernel),
    "ritz": lambda k, kernel: bp.ApproximateKernelPCA(k, kernel=kernel, approximation="ritz"),
    "algorithm 6": lambda k, kernel: bp.ApproximateKernelPCA(k, kernel=kernel, approximation="tutorial"),
    "landmarks": lambda k, kernel: bp.NystromKernelPCA(k, kernel=kernel, **SOME),
    "few landmarks": lambda k, kernel: bp.NystromKernelPCA(k, kernel=kernel),
    "landmarks alone": lambda k, kernel: bp.NystromKernelPCA(k, kernel=kernel, components_from="landmarks", **SOME),
}
CASES = [
    (route, name)
    for route in ROUTES
    for name in MATRICES
    if not (name.startswith("indefinite") and "landmarks" in route)
]


def eigenvalues(rank: int) -> Any:
    values = np.linalg.eigvals((FEATURES * (SIGNS if rank == 2 else 1.0)).T @ FEATURES).real
    return np.append(np.sort(values[values > 0])[::-1], np.zeros(K - rank))


@pytest.mark.parametrize(("route", "name"), CASES)
def test_components_beyond_the_rank_are_zeros_with_one_warning(route: str, name: str, tmp_path: Path) -> None:
    kernel, rows, rank = MATRICES[name]
    with pytest.warns(ApproximationWarning) as caught:
        model = ROUTES[route](K, kernel).fit(rows)
    said = [str(one.message) for one in caught if "is not positive semi-definite" not in str(one.message)]
    assert len(said) == 1
    assert said[0].startswith("6 components were requested, but ")
    assert f" {rank} eigenvalues above 0: the others, and their scores, are set to 0. Request fewer" in said[0]
    assert (model.n_components_, len(model.eigenvalues_)) == (K, K)
    assert (model.eigenvalues_ > 0).tolist() == [True] * rank + [False] * (K - rank)
    scores = model.transform(rows)
    assert scores.shape == (N, K)
    assert not scores[:, rank:].any()
    assert (np.abs(scores[:, :rank]).max(axis=0) > 0).all()
    if "alone" not in route and "6" not in route:
        np.testing.assert_allclose(model.eigenvalues_, eigenvalues(rank), rtol=1e-8)
    if hasattr(model, "eigenvalue_bounds_"):
        assert_covered(model.eigenvalue_bounds_, eigenvalues(rank))
    if name != "a function" and name != "indefinite":
        model.save(tmp_path / "model")  # warnings are errors: a loaded model repeats none
        assert bp.load(tmp_path / "model").transform(rows).tobytes() == scores.tobytes()


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "krylov"])
def test_all_components_are_those_of_the_rank(route: str) -> None:
    assert ROUTES[route](None, kernels.Linear()).fit(X).n_components_ == 3


def test_rows_that_are_added_count_in_the_rank() -> None:
    model = bp.NystromKernelPCA(2, kernel="linear", sampling=X[:5])
    with pytest.warns(ApproximationWarning, match="2 components were requested, but .* 1 eigenvalues above 0"):
        model.partial_fit(X[:2])
    assert (model.eigenvalues_ > 0).tolist() == [True, False]
    model.partial_fit(X[2:])
    np.testing.assert_allclose(model.eigenvalues_, eigenvalues(3)[:2], rtol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("negative", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("k", [2, 3, 6])
def test_an_iteration_that_finds_all_of_an_indefinite_matrix_converges(k: int, negative: float, dtype: Any) -> None:
    signs = np.array([1.0, 1.0, -negative])
    kernel = kernels.FromFunction(lambda A, B: (A * signs.astype(A.dtype)) @ B.T)
    with pytest.warns(ApproximationWarning) as caught:
        model = bp.KernelPCA(k, kernel=kernel, solver="krylov").fit(X.astype(dtype))
    assert not any("the iteration stopped" in str(one.message) for one in caught)
    assert model.converged_
    values = np.sort(np.linalg.eigvals((FEATURES * signs).T @ FEATURES).real)[::-1]
    values = np.append(values[:2], np.zeros(K - 2))[:k]
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-3, atol=1e-5 * values[0])
    lower, upper = model.eigenvalue_bounds_.T
    slack = 1e-5 * values[0] if dtype == np.float32 else 0.0  # the rows are rounded
    assert (lower <= values + slack).all()
    assert (values <= upper + slack).all()
    # The Ritz values hold the whole norm: what is left for others is rounding.
    assert upper[2:].max(initial=0.0) < 1e-2 * values[0]


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("negative", [1, 10])
@pytest.mark.parametrize("scale", [1e-3, 1e6])
def test_the_rounding_of_stored_values_is_no_component_to_be_known(rank: int, negative: int, scale: float) -> None:
    """Of a matrix in float32, whose eigenvalues beyond its rank are 1e-8 of the first, and flat."""
    U = np.linalg.qr(np.random.default_rng(rank).standard_normal((N, rank + negative)))[0]
    values = np.concatenate([np.logspace(0, -2, rank), -np.logspace(0.5, -1, negative)]) * scale
    stored = ((U * values) @ U.T).astype(np.float32)
    with pytest.warns(ApproximationWarning) as caught:
        model = bp.KernelPCA(K + 3, kernel=kernels.Precomputed(indefinite=True), solver="krylov").fit(stored)
    assert not any("the iteration stopped" in str(one.message) for one in caught)
    assert model.converged_
    H = np.eye(N) - 1 / N
    expected = np.sort(np.linalg.eigvalsh(H @ stored.astype(float) @ H))[::-1][:rank]
    np.testing.assert_allclose(model.eigenvalues_, np.append(expected, np.zeros(K + 3 - rank)), rtol=1e-3)


@pytest.mark.parametrize("kernel", [kernels.Linear(), kernels.RBF(), kernels.Polynomial(degree=3)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("row", [np.full(7, 3.0), np.full(7, 0.1), X[0, 0] * np.arange(7)], ids=["3", "0.1", "row"])
def test_equal_rows_have_eigenvalues_of_zero(row: Any, dtype: str, kernel: Any) -> None:
    with pytest.warns(ApproximationWarning) as caught:
        model = bp.KernelPCA(3, kernel=kernel, solver="krylov").fit(np.tile(row.astype(dtype), (N, 1)))
    assert ["hardly differ" in str(one.message) for one in caught] == [True]
    assert model.converged_
    assert model.eigenvalues_.tolist() == [0, 0, 0]


def test_features_are_computed_in_float64_where_float32_would_drop_components(float32_products: None) -> None:
    rows = rows_at(1e4, kernels.RBF(), np.float32)  # centring leaves 1e-8 of the values
    kernel = kernels.Polynomial(3, gamma=0.1, coef0=1.0)
    model = bp.NystromKernelPCA(2, kernel=kernel)
    assert "in float64 where the components need them" in str(model.plan(rows))
    matrix = kernel(rows.astype(np.float64))
    centred = matrix - matrix.mean(axis=0)
    expected = np.linalg.eigvalsh(centred - centred.mean(axis=1)[:, None])[::-1][:2]
    np.testing.assert_allclose(model.fit(rows).eigenvalues_, expected, rtol=1e-3)


@pytest.mark.parametrize("wanted", [1, 3, 20, 200, None])
@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(
    "kernel",
    [kernels.RBF(0.01), kernels.RBF(2.0), kernels.Polynomial(2, gamma=1.0, coef0=10.0), kernels.Linear(1.0)],
    ids=["rbf", "narrow rbf", "polynomial", "linear"],
)
def test_float32_has_all_directions_exactly_where_components_of_the_landmarks_need_them(
    kernel: kernels.Kernel, power: float, wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(5).standard_normal((90, 8)) * np.arange(1, 9) ** -power
    solved = list[int]()
    solve = landmarks.top_eigenvalues
    monkeypatch.setattr(landmarks, "top_eigenvalues", lambda S, k: (solved.append(len(S)), solve(S, k))[1])
    matrix, both = kernel(rows), list[int]()
    for precision in (2.2e-16, 1.2e-7):
        found = landmarks.features_of(kernel, Landmarks(rows, None), np.zeros(8), precision, 1, wanted)
        both.append(found.transform.shape[1])
    T = landmarks.features_of(kernel, Landmarks(rows, None), np.zeros(8), 2.2e-16, 1, wanted).transform
    sizes = np.linalg.norm(np.sqrt(np.diagonal(matrix))[:, None] * T, axis=0) ** -2
    kept = np.count_nonzero(sizes > 1e-5 * sizes[0])
    B = matrix @ T
    B -= B.mean(axis=0)
    whole, part = (np.linalg.eigvalsh(B[:, :columns].T @ B[:, :columns])[::-1] for columns in (None, kept))
    part = np.append(part, np.zeros(len(whole) - kept))
    if wanted is None:
        whole, part = whole.sum(keepdims=True), part.sum(keepdims=True)
    missed = ((whole - part) > 1e-3 * np.maximum(whole, 1e-10 * whole[0]))[:wanted].any()
    assert both == [T.shape[1], T.shape[1] if missed else kept]
    others = sizes[kept] * np.diagonal(matrix).max() if kept < len(sizes) else 0.0  # more than these hold
    if wanted is None or (wanted <= kept and others <= 5e-4 * part[wanted - 1]):
        assert not solved
