"""Kernel supervised PCA and kernel Roweis analysis equal the representer forms of the whole kernel matrix."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from bigpca import (
    KernelPCA,
    KernelRoweisDiscriminantAnalysis,
    KernelSupervisedPCA,
    RoweisDiscriminantAnalysis,
    kernels,
)
from tests.estimators.labelled import labelled_rows, one_hot, outside, unit_of

Array = NDArray[Any]
N, D, C, GAMMA = 160, 5, 4, 0.1
X, Y = labelled_rows(N + 30, D, C, apart=1.0)
(X, NEW), Y = np.split(X, [N]), Y[:N]
REAL = np.column_stack([X[:, 0] ** 2, np.sin(X[:, 1])])
H = np.eye(N) - 1 / N
KERNELS: dict[str, kernels.Kernel] = {
    "RBF": kernels.RBF(GAMMA),
    "polynomial": kernels.Polynomial(2, gamma=0.1, coef0=1.0),
    "linear": kernels.Linear(),
}


def gram(kernel: kernels.Kernel, rows: Array) -> Array:
    return np.asarray(kernel(rows, X), np.float64)


def representer(kernel: kernels.Kernel, delta: Array, r1: float, r2: float, k: int) -> tuple[Array, Array]:
    """Eigenvalues, and centred scores of new rows, of ``K H P H K theta = lambda (r2 N + (1 - r2) K) theta``.

    ``theta = V a`` in the range of K (RDA paper, section 4): a generalised problem whose second
    matrix has full rank there.
    """
    K = gram(kernel, X)
    values, V = np.linalg.eigh(K)
    V = V[:, values > 1e-10 * values[-1]]
    P = r1 * delta @ delta.T + (1 - r1) * np.eye(N)
    own = [K[:, j == Y] for j in range(C)]
    within = np.sum([A @ (np.eye(A.shape[1]) - 1 / A.shape[1]) @ A.T for A in own], axis=0)
    M, L = K @ H @ P @ H @ K, r2 * within + (1 - r2) * K
    found, a = scipy.linalg.eigh(V.T @ M @ V, V.T @ L @ V)
    theta = V @ a[:, ::-1][:, :k]
    return found[::-1][:k], np.sqrt(unit_of(Y, r2)) * (gram(kernel, NEW) - K.mean(axis=0)) @ theta


def assert_same_scores(found: Array, truth: Array, tolerance: float) -> None:
    signs = np.sign(np.einsum("ij,ij->j", found, truth))
    np.testing.assert_allclose(found * signs, truth, rtol=0, atol=tolerance * np.abs(truth).max())


@pytest.mark.parametrize(
    ("name", "r1", "r2"),
    [*((name, 0.5, 0.6) for name in KERNELS),
     *(("RBF", *r) for r in ((0, 0), (1, 0), (1, 0.5), (0, 0.9), (1, 0.999), (0, 0.999)))],
)  # fmt: skip
def test_all_rows_as_landmarks_give_the_representer_form(name: str, r1: float, r2: float) -> None:
    """To 1e-8, for kernel matrices of condition below 1e8 (in their range).

    Beyond r2 = 0.99, ``(1 - r2) K`` alone keeps the second matrix from being singular: rounding grows by 1 / (1 - r2).
    """
    tolerance = max(1e-8, 1e-10 / (1 - r2))
    values = np.linalg.eigvalsh(gram(KERNELS[name], X))
    assert values[-1] / values[values > 1e-10 * values[-1]][0] < 1e8
    truth, scores = representer(KERNELS[name], one_hot(Y), r1, r2, 3)
    model = KernelRoweisDiscriminantAnalysis(3, r1=r1, r2=r2, kernel=KERNELS[name]).fit(X, Y)
    np.testing.assert_allclose(model.eigenvalues_, truth, rtol=1e-8)
    assert_same_scores(model.transform(NEW), scores, tolerance)
    assert outside(model.transform(NEW), scores) < tolerance
    assert model.supervision_level_ == (r1 + r2) / 2
    assert model.roweis_criterion_ == pytest.approx(truth.mean(), rel=1e-8)


@pytest.mark.parametrize(("r1", "r2"), [(0, 1), (1, 1), (0.3, 0.8)])
def test_the_linear_kernel_gives_the_linear_analysis(r1: float, r2: float) -> None:
    """d < n - c, so that S_W is not singular even with r2 = 1."""
    model = KernelRoweisDiscriminantAnalysis(3, r1=r1, r2=r2, kernel="linear").fit(X, Y)
    linear = RoweisDiscriminantAnalysis(3, r1=r1, r2=r2).fit(X, Y)
    np.testing.assert_allclose(model.eigenvalues_, linear.eigenvalues_, rtol=1e-9)
    assert_same_scores(model.transform(NEW), linear.transform(NEW), 1e-9)


def test_without_supervision_it_is_kernel_pca() -> None:
    model = KernelRoweisDiscriminantAnalysis(3, r1=0, r2=0, gamma=GAMMA).fit(X, Y)
    truth = KernelPCA(3, kernel="rbf", gamma=GAMMA).fit(X)
    np.testing.assert_allclose(model.eigenvalues_, truth.eigenvalues_, rtol=1e-9)
    assert_same_scores(model.transform(NEW), truth.transform(NEW), 1e-8)
    np.testing.assert_allclose(model.novelty(NEW), truth.novelty(NEW), atol=1e-8)
    np.testing.assert_allclose(model.denoise(NEW), truth.denoise(NEW), atol=1e-6)
    assert model.total_variance_ == pytest.approx(truth.total_variance_, rel=1e-9)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("labels", ["classes", "real", "real, RBF"])
def test_direct_and_dual_forms_are_one(name: str, labels: str) -> None:
    """``(Delta'H K H Delta) v = s^2 v`` and scores ``s^-1 v'Delta'H k(X, x)``: divided by s (SPCA paper, section
    6.2).
    """
    options: dict[str, Any] = {"label_kernel": "rbf", "n_components": 2} if labels == "real, RBF" else {}
    y: Any = Y if labels == "classes" else (np.round(REAL) if options else REAL)
    direct, dual = (
        KernelSupervisedPCA(solver=one, kernel=KERNELS[name], **options).fit(X, y) for one in ("landmarks", "pairs")
    )
    np.testing.assert_allclose(direct.eigenvalues_, dual.eigenvalues_, rtol=1e-8)
    assert_same_scores(direct.transform(NEW), dual.transform(NEW), 1e-8)
    np.testing.assert_allclose(direct.novelty(NEW), dual.novelty(NEW), rtol=1e-6, atol=1e-9)
    assert direct.rank_ == dual.rank_
    if not options:
        delta = one_hot(Y) if labels == "classes" else REAL
        K = gram(KERNELS[name], X)
        values, v = np.linalg.eigh(delta.T @ H @ K @ H @ delta)
        kept = dual.n_components_
        values, v = values[::-1][:kept], v[:, ::-1][:, :kept]
        np.testing.assert_allclose(dual.eigenvalues_, values, rtol=1e-9)
        scores = (gram(KERNELS[name], NEW) - K.mean(axis=0)) @ H @ delta @ v / np.sqrt(values)
        assert_same_scores(dual.transform(NEW), scores, 1e-9)
        assert kept == (C - 1 if labels == "classes" else 2)
        criterion = np.trace(K @ H @ delta @ delta.T @ H)  # of Hilbert and Schmidt, times (n - 1)^2
        assert dual.eigenvalues_.sum() == pytest.approx(criterion, rel=1e-9)


def test_there_may_be_more_axes_than_columns() -> None:
    y, options = np.round(REAL), {"gamma": GAMMA, "label_kernel": "rbf"}
    direct, dual = (KernelSupervisedPCA(D + 1, solver=one, **options).fit(X, y) for one in ("landmarks", "pairs"))
    assert dual.n_components_ == D + 1
    np.testing.assert_allclose(direct.eigenvalues_, dual.eigenvalues_, rtol=1e-8)


@pytest.mark.parametrize("solver", ["landmarks", "pairs"])
def test_precomputed_kernels_and_strings_are_taken(solver: str) -> None:
    truth = KernelSupervisedPCA(solver=solver, gamma=GAMMA).fit(X, Y)
    given = KernelSupervisedPCA(solver=solver, kernel="precomputed").fit(gram(KERNELS["RBF"], X), Y)
    np.testing.assert_allclose(given.eigenvalues_, truth.eigenvalues_, rtol=1e-9)
    assert_same_scores(given.transform(gram(KERNELS["RBF"], NEW)), truth.transform(NEW), 1e-9)
    words = np.array(["abab", "bbb", "aab", "bab"])[Y]
    strings = KernelSupervisedPCA(solver=solver, kernel=kernels.Spectrum(2)).fit(words[:, None], Y)
    scores = strings.transform(words[:, None])
    assert len(np.unique(scores.round(6), axis=0)) == C  # each class has one word


@pytest.mark.parametrize("sampling", ["rpcholesky", X[:25]], ids=["rpcholesky", "given"])
def test_by_landmarks_it_is_the_linear_analysis_of_their_features(sampling: Any) -> None:
    m = 25
    model = KernelRoweisDiscriminantAnalysis(3, r1=0.4, r2=0.9, gamma=GAMMA, n_landmarks=m, sampling=sampling).fit(X, Y)
    kernel, T = kernels.RBF(GAMMA), model.landmark_transform_
    B, new = (np.asarray(kernel(rows, model.landmarks_), np.float64) @ T for rows in (X, NEW))
    linear = RoweisDiscriminantAnalysis(3, r1=0.4, r2=0.9).fit(B, Y)
    assert model.landmarks_.shape == (m, D)
    np.testing.assert_allclose(model.eigenvalues_, linear.eigenvalues_, rtol=1e-8)
    assert_same_scores(model.transform(NEW), linear.transform(new), 1e-8)


def test_with_all_rows_and_r2_of_1_the_scatter_within_classes_is_singular() -> None:
    """n - c axes of the n are left; with fewer landmarks than n - c there are none to leave out."""
    with pytest.raises(ValueError, match=f"r2 = 1 is singular: {C} of its {N} eigenvalues are 0"):
        KernelRoweisDiscriminantAnalysis(2, r1=0, r2=1, gamma=GAMMA).fit(X, Y)
    few = KernelRoweisDiscriminantAnalysis(3, r1=0, r2=1, gamma=GAMMA, n_landmarks=30).fit(X, Y)
    assert (few.eigenvalues_ > 1).all()
    for options in ({"robust": True}, {"regularization": "pinv"}, {"regularization": 1e-3}):
        model = KernelRoweisDiscriminantAnalysis(2, r1=0, r2=1, gamma=GAMMA, **options).fit(X, Y)
        assert np.isfinite(model.transform(NEW)).all()


@pytest.mark.parametrize("unit", [1e-170, 1e-160, 1e155, 1e200])
@pytest.mark.parametrize("options", [{"solver": "pairs"}, {"label_kernel": "rbf"}], ids=str)
def test_labels_whose_squares_leave_float64_are_named(unit: float, options: dict[str, Any]) -> None:
    model, y = KernelSupervisedPCA(1, gamma=GAMMA, **options), X[:, 0] * unit
    with pytest.raises(ValueError, match=r"the variance of the labels is .*: squares of"):
        model.fit(X, y)


def test_normalized_terms_and_shares_are_those_of_the_features() -> None:
    K = gram(KERNELS["RBF"], X)
    values, V = np.linalg.eigh(K)
    B = V * np.sqrt(values)  # (n, n), K = B B'
    for n_components in (2, 0.5):
        model = KernelRoweisDiscriminantAnalysis(n_components, r1=0.5, r2=0.6, gamma=GAMMA, normalize=True).fit(X, Y)
        linear = RoweisDiscriminantAnalysis(n_components, r1=0.5, r2=0.6, normalize=True).fit(B, Y)
        np.testing.assert_allclose(model.eigenvalues_, linear.eigenvalues_, rtol=1e-8)


@pytest.mark.parametrize("method", ["novelty", "denoise"])
def test_axes_that_are_not_orthonormal_make_no_projection(method: str) -> None:
    model = KernelRoweisDiscriminantAnalysis(2, r1=0, r2=0.5, gamma=GAMMA)
    for one in (model, model.fit(X, Y)):
        with pytest.raises(AttributeError, match=f"has no attribute '{method}'") as caught:
            getattr(one, method)(NEW)
        assert "the axes are not orthonormal if r2 > 0" in str(caught.value.__cause__)


# Reads, files, checkpoints
