"""Kernel PCA by landmarks against the whole matrix: what the features give, how models grow, and odd data."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import bigpca as bp
from bigpca import NystromKernelPCA
from bigpca.errors import ApproximationWarning
from bigpca.kernels import (
    RBF,
    ChiSquare,
    Cosine,
    HistogramIntersection,
    Kernel,
    Laplacian,
    Linear,
    Polynomial,
    Precomputed,
    Spectrum,
    Subsequence,
    Tanh,
    normalized,
)
from bigpca.landmarks import SAMPLINGS
from bigpca.passes.reading import blocks
from tests.builders import assert_covered, offset_data
from tests.estimators.stores import stored, unreadable
from tests.landmarks.cases import CountedRBF, Tally, digits
from tests.operators.counting import Reads

Array = NDArray[Any]
N, D, M, K = 240, 6, 30, 4
KERNELS: dict[str, Kernel] = {
    "rbf": RBF(0.05),
    "laplacian": Laplacian(0.05),
    "polynomial": Polynomial(degree=3, gamma=0.1, coef0=1.0),
    "linear": Linear(),
    "cosine": Cosine(),
    "sum": normalized(Polynomial(degree=2, gamma=1.0, coef0=0.0)) + RBF(0.02),
    "chi-square": ChiSquare(),
    "intersection": HistogramIntersection(),
}
X = np.abs(offset_data(N, D, mean=2.0, dtype="f8"))
NEW = np.abs(offset_data(50, D, mean=2.0, seed=1, dtype="f8"))
EPS32 = float(np.finfo(np.float32).eps)


def nystrom(k: Any = K, kernel: Any = KERNELS["rbf"], n_landmarks: int | None = M, **options: Any) -> NystromKernelPCA:
    return NystromKernelPCA(k, kernel=kernel, n_landmarks=n_landmarks, **options)


def matrix(kernel: Kernel, A: Array, B: Array | None = None) -> Array:
    return np.asarray(kernel(A, B), np.float64)


def centred(G: Array) -> Array:
    H = np.eye(len(G)) - 1 / len(G)
    product: Array = H @ G @ H
    return product


def assert_columns(found: Array, expected: Array, atol: float) -> None:
    """Equal but for the signs of columns."""
    signs = np.sign(np.sum(found * expected, axis=0))
    np.testing.assert_allclose(found, expected * signs, rtol=0, atol=atol)


def assert_same(one: NystromKernelPCA, other: NystromKernelPCA, rtol: float = 1e-9) -> None:
    assert (one.n_samples_, one.n_components_, one.rank_) == (other.n_samples_, other.n_components_, other.rank_)
    for name in ("eigenvalues_", "eigenvalue_bounds_", "total_variance_", "trace_error_", "captured_variance_bounds_"):
        scale = np.max(np.abs(getattr(other, name)))
        atol = 1e-15 if name == "trace_error_" else rtol * scale  # a share: where it is 0, rounding is left
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=atol, err_msg=name)
    assert_columns(one.transform(NEW), other.transform(NEW), 1e-6 * np.abs(other.transform(NEW)).max())


@pytest.mark.parametrize("name", KERNELS)
def test_all_rows_as_landmarks_are_exact_kernel_pca(name: str) -> None:
    kernel = KERNELS[name]
    values, V = np.linalg.eigh(centred(matrix(kernel, X)))
    values, V = values[::-1][:K], V[:, ::-1][:, :K]
    model = nystrom(kernel=kernel, sampling=np.arange(N), n_landmarks=None).fit(X)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-8)
    assert_columns(model.transform(X), V * np.sqrt(values), 1e-8 * np.sqrt(values[0]))
    assert abs(model.trace_error_) <= 1e-8
    assert_covered(model.eigenvalue_bounds_, values)


@pytest.mark.parametrize("name", KERNELS)
def test_the_model_is_the_pca_of_the_features_about_the_mean_of_all_rows(name: str) -> None:
    kernel = KERNELS[name]
    model = nystrom(kernel=kernel).fit(X)
    T, L = model.landmark_transform_, model.landmarks_
    np.testing.assert_allclose(T.T @ matrix(kernel, L) @ T, np.eye(model.rank_), atol=1e-6)  # condition 1e10 x eps
    np.testing.assert_array_equal(L, X[model.landmark_indices_])
    B = matrix(kernel, X, L) @ T
    values, V = np.linalg.eigh((B - B.mean(axis=0)).T @ (B - B.mean(axis=0)))
    values, V = values[::-1][:K], V[:, ::-1][:, :K]
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-8)
    expected = (matrix(kernel, NEW, L) @ T - B.mean(axis=0)) @ V
    assert_columns(model.transform(NEW), expected, 1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(model.explained_variance_, values / (N - 1), rtol=1e-8)
    np.testing.assert_allclose((model.transform(X) ** 2).sum(axis=0), model.eigenvalues_, rtol=1e-7)
    np.testing.assert_allclose(model.transform(X).mean(axis=0), 0, atol=1e-7 * np.sqrt(values[0]))


@pytest.mark.parametrize("name", KERNELS)
def test_the_trace_error_and_the_total_are_those_of_the_whole_matrix(name: str) -> None:
    kernel = KERNELS[name]
    model = nystrom(kernel=kernel, n_landmarks=12).fit(X)
    G, C = matrix(kernel, X), matrix(kernel, X, model.landmarks_)
    approximation = C @ np.linalg.pinv(matrix(kernel, model.landmarks_), rcond=1e-11, hermitian=True) @ C.T
    left = np.trace(G - approximation) / np.trace(G)
    np.testing.assert_allclose(model.trace_error_, left, rtol=1e-6, atol=1e-9)
    total = np.trace(centred(approximation)) + np.trace(G - approximation)
    np.testing.assert_allclose(model.total_variance_ * (N - 1), total, rtol=1e-8)
    assert model.total_variance_ * (N - 1) >= np.trace(centred(G)) * (1 - 1e-12)
    np.testing.assert_allclose(model.explained_variance_ratio_, model.eigenvalues_ / total, rtol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_novelty_is_the_distance_to_the_subspace_and_never_negative(name: str) -> None:
    kernel = KERNELS[name]
    model = nystrom(kernel=kernel).fit(X)
    T, L = model.landmark_transform_, model.landmarks_
    mean = (matrix(kernel, X, L) @ T).mean(axis=0)
    B, diagonal = matrix(kernel, NEW, L) @ T, kernel.diagonal(NEW)
    expected = diagonal - (B**2).sum(axis=1) + ((B - mean) ** 2).sum(axis=1) - (model.transform(NEW) ** 2).sum(axis=1)
    np.testing.assert_allclose(model.novelty(NEW), expected, rtol=0, atol=1e-9 * diagonal.max())
    assert (model.novelty(np.concatenate([X, NEW, 50 * NEW])) >= 0).all()


def test_pre_images_are_ridge_regressions_of_landmarks_on_their_scores() -> None:
    kernel = RBF(0.05)
    model = nystrom(kernel=kernel, fit_inverse_transform=0.1).fit(X)
    scores = model.transform(model.landmarks_)
    weights = np.linalg.solve(matrix(kernel, scores) + 0.1 * np.eye(M), model.landmarks_)
    expected = matrix(kernel, model.transform(NEW), scores) @ weights
    np.testing.assert_allclose(model.inverse_transform(model.transform(NEW)), expected, rtol=1e-7)
    with pytest.raises(AttributeError) as caught:
        nystrom().fit(X).inverse_transform(scores)
    assert "after a fit with fit_inverse_transform=True" in str(caught.value.__cause__)


def whole_extension(kernel: Kernel, L: Array, rows: Array, n: int) -> tuple[Array, Array]:
    """Tutorial, eqs. 62-63: ``(n / m) lambda_q``, and ``k_c(x, L) u / sqrt(lambda_q)`` centred by the landmarks'
    means.
    """
    G, C = matrix(kernel, L), matrix(kernel, rows, L)
    values, U = np.linalg.eigh(centred(G))
    values, U = values[::-1][:K], U[:, ::-1][:, :K]
    U = U * np.sign(U[np.argmax(np.abs(U), axis=0), np.arange(K)])  # the largest entry of each is positive
    about = C - C.mean(axis=1)[:, None] - G.mean(axis=0) + G.mean()
    return values * n / len(L), about @ U / np.sqrt(values)


@pytest.mark.parametrize("name", ["rbf", "polynomial"])
@pytest.mark.parametrize("sampling", ["uniform", "rpcholesky"])
def test_the_tutorial_extension_is_its_formula(name: str, sampling: str) -> None:
    kernel = KERNELS[name]
    model = nystrom(kernel=kernel, sampling=sampling, components_from="landmarks").fit(X)
    values, scores = whole_extension(kernel, model.landmarks_, NEW, N)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-8)
    np.testing.assert_allclose(model.transform(NEW), scores, rtol=0, atol=1e-7 * np.abs(scores).max())
    assert (model.n_samples_, model.n_omitted_) == (N, 0)
    for name in ("eigenvalue_bounds_", "captured_variance_bounds_", "trace_error_"):
        assert not hasattr(model, name)  # nothing is certified


def test_the_tutorial_extension_takes_an_indefinite_kernel_and_features_reject_it() -> None:
    kernel = Tanh(gamma=0.01, coef0=0.0)
    model = nystrom(kernel=kernel, sampling="uniform", components_from="landmarks").fit(X)
    values, scores = whole_extension(kernel, model.landmarks_, NEW, N)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-8)
    assert_columns(model.transform(NEW), scores, 1e-7 * np.abs(scores).max())
    with pytest.raises(
        ValueError, match=r'is not positive semi-definite, so it has no features.*components_from="landmarks"'
    ):
        nystrom(kernel=kernel).fit(unreadable(N, D))
    with pytest.raises(ValueError, match=r'sampling="rpcholesky" requires a kernel that is'):
        nystrom(kernel=kernel, components_from="landmarks").fit(X)


def axes_of_digits(kernel: Kernel) -> Array:
    """The ten leading kernel principal axes of the first 400 digits."""
    axes: Array = np.linalg.eigh(centred(matrix(kernel, digits(400))))[1][:, ::-1][:, :10]
    return axes


def mean_similarity(axes: Array, **options: Any) -> float:
    found = []
    for seed in range(10):
        scores = nystrom(10, n_landmarks=50, random_state=seed, **options).fit(digits(400)).transform(digits(400))
        found.append(np.abs(np.sum(axes * scores / np.linalg.norm(scores, axis=0), axis=0)).mean())
    return float(np.mean(found))


def test_landmarks_drawn_by_size_find_the_axes_of_a_polynomial_and_uniform_ones_do_not() -> None:
    kernel = Polynomial(degree=5, gamma=1.0, coef0=0.0)
    axes = axes_of_digits(kernel)
    for sampling in ("rpcholesky", "diagonal", "column-norm"):
        assert mean_similarity(axes, kernel=kernel, sampling=sampling) >= 0.999
    with pytest.warns(
        ApproximationWarning, match=r"50 landmarks miss [0-9.]+% of the trace .* larger components may be"
    ):
        assert mean_similarity(axes, kernel=kernel, sampling="uniform") <= 0.2


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_reads_and_evaluations_are_counted(sampling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tally, lazy = Tally(), stored(tmp_path, X, (20, D))
    reads = Reads().watch(monkeypatch)
    model = nystrom(kernel=CountedRBF(0.05, tally), sampling=sampling).fit(lazy)
    counts = reads.per_chunk((N, D), (20, D))
    # The first read, here all of X, is looked at for the shift of distances: one of the passes.
    assert counts.mean() == pytest.approx(model.n_passes_, abs=0.01)
    assert model.n_passes_ <= (model.plan_.most_passes or model.plan_.passes) + 0.01
    if sampling != "kmeans":  # whose iterations end where they converge
        assert model.n_passes_ >= model.plan_.passes - 0.01
    # K_mm and its diagonal come on top: small, and not counted.
    assert model.kernel_evaluations_ <= tally.entries <= model.kernel_evaluations_ + 4 * M * (M + 1) + N
    if sampling == "uniform":
        assert model.kernel_evaluations_ == N * M


def test_landmarks_can_be_given_by_number_or_as_rows() -> None:
    numbers = np.random.default_rng(0).permutation(N)[:M]
    by_number, by_row = (nystrom(n_landmarks=None, sampling=s).fit(X) for s in (numbers, X[numbers]))
    assert_same(by_number, by_row)
    np.testing.assert_array_equal(by_number.landmark_indices_, numbers)
    assert not hasattr(by_row, "landmark_indices_")
    elsewhere = nystrom(n_landmarks=None, sampling=NEW).fit(X)  # rows that X does not have, more than X has
    assert elsewhere.landmarks_.shape == NEW.shape
    many = nystrom(n_landmarks=None, sampling=X).fit(X[:40])
    np.testing.assert_allclose(
        many.eigenvalues_, np.linalg.eigvalsh(centred(matrix(RBF(0.05), X[:40])))[::-1][:K], rtol=1e-7
    )


REJECTED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"n_landmarks": N + 1}, ValueError, "241 is more than the 240 rows of X that count. Use 240 or fewer"),
    ({"n_components": M + 1}, ValueError, "n_components = 31 is out of range"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REJECTED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_rejected_unread(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    parameters: dict[str, Any] = {"n_components": K, "n_landmarks": M} | changes
    with pytest.raises(error, match=message):
        NystromKernelPCA(**parameters).fit(unreadable(N, D))


def test_a_share_is_taken_of_what_the_landmarks_hold() -> None:
    model = nystrom(0.8, n_landmarks=100).fit(X)
    assert model.explained_variance_ratio_.sum() > 0.8
    assert model.explained_variance_ratio_[:-1].sum() <= 0.8
    assert nystrom(None, n_landmarks=12).fit(X).n_components_ == 12
    with pytest.raises(ValueError, match="more of the spectrum than 5 landmarks show"):
        nystrom(0.999999, n_landmarks=5).fit(X)


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=5), name=st.sampled_from(sorted(KERNELS)))
def test_any_split_into_batches_equals_one_fit_with_the_same_landmarks(cuts: list[int], name: str) -> None:
    parameters: dict[str, Any] = {"kernel": KERNELS[name], "sampling": X[::8], "n_landmarks": None}
    model = nystrom(**parameters)
    edges = [0, *sorted({max(K + 1, cut) for cut in cuts}), N]
    for start, stop in pairwise(edges):
        model.partial_fit(X[start:stop])
    whole = nystrom(**parameters).fit(X)
    assert_same(model, whole, 1e-8)
    assert model.kernel_evaluations_ == whole.kernel_evaluations_


def test_new_rows_cost_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, lazy = nystrom().fit(X[:100]), stored(tmp_path, X[100:], (20, D))
    before, reads = model.kernel_evaluations_, Reads().watch(monkeypatch)
    model.partial_fit(lazy)
    assert (reads.per_chunk((N - 100, D), (20, D)) == 1).all()
    assert model.kernel_evaluations_ == before + (N - 100) * M


def test_features_made_in_float64_stay_in_float64_as_rows_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    # A wide kernel's T magnifies rounding by up to 1e5: of float32 that would leave nothing.
    rows, kernel = X.astype(np.float32), RBF(1e-3)
    model = nystrom(kernel=kernel, n_landmarks=60).fit(rows[:200])
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)
    model.partial_fit(rows[200:]).partial_fit(rows[:100])
    everything = np.concatenate([rows, rows[:100]]).astype(np.float64)
    values = np.linalg.eigvalsh(centred(matrix(kernel, everything)))[::-1][:K]
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-6)
    lower, upper = model.eigenvalue_bounds_.T
    assert (lower <= values).all()
    assert (values <= upper).all()
    assert ((upper - lower) <= 1e-6 * values[0]).all()


def test_the_tutorial_extension_keeps_nothing_to_go_on_from_and_says_so() -> None:
    model = nystrom(components_from="landmarks").fit(X)
    with pytest.raises(AttributeError) as caught:
        model.partial_fit(X)
    assert "does not keep the moments of the features" in str(caught.value.__cause__)


@pytest.mark.parametrize("name", KERNELS)
def test_float32_rows_give_the_answer_to_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = KERNELS[name], X.astype(np.float32)
    numbers = np.arange(0, N, 8)
    exact = nystrom(kernel=kernel, sampling=numbers).fit(rows)  # a small pass: in float64
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)
    model = nystrom(kernel=kernel, sampling=numbers).fit(rows)
    trace = kernel.diagonal(rows).sum()
    # What T drops, 1e-5 of the landmarks' largest eigenvalue, and rounding times the 316 that it magnifies by.
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=0, atol=400 * EPS32 * trace)
    assert model.transform(rows).dtype == np.float32
    values = np.linalg.eigvalsh(centred(matrix(kernel, rows.astype(np.float64))))[::-1][:K]
    assert_covered(model.eigenvalue_bounds_, values)


def test_strings_and_a_precomputed_matrix_are_rows_too(tmp_path: Path) -> None:
    words = np.array(
        ["banana", "bandana", "cabana", "havana", "ananas", "nirvana", "savanna", "gala", "bananas", "and"] * 3
    )
    for kernel in (normalized(Spectrum(2)), normalized(Subsequence(2, 0.5))):
        model = nystrom(3, kernel=kernel, n_landmarks=10, sampling=np.arange(10)).fit(words)
        G = matrix(kernel, bp.kernels.string_codes(words))
        np.testing.assert_allclose(model.eigenvalues_, np.linalg.eigvalsh(centred(G))[::-1][:3], rtol=1e-8)
        longer = model.transform(np.array(["a very long word indeed", "banana"]))
        np.testing.assert_allclose(longer[1], model.transform(words)[0], atol=1e-10)
        assert model.partial_fit(np.array(["mississippi", "banana"])).n_samples_ == 32
    G = matrix(RBF(0.05), X)
    numbers = np.random.default_rng(1).permutation(N)[:M]
    for sampling in ("rpcholesky", "uniform", "diagonal", "column-norm", numbers):
        model = nystrom(kernel=Precomputed(), sampling=sampling).fit(G)
        chosen = model.landmark_indices_
        same = nystrom(kernel=RBF(0.05), sampling=chosen, n_landmarks=None).fit(X)
        np.testing.assert_allclose(model.eigenvalues_, same.eigenvalues_, rtol=1e-8)
        assert_columns(model.transform(matrix(RBF(0.05), NEW, X)), same.transform(NEW), 1e-7)
        assert not hasattr(model, "novelty")
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(bp.load(tmp_path / "model").transform(G), model.transform(G))


@pytest.mark.filterwarnings("ignore:the values of the kernel hardly differ:bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_duplicates_and_equal_rows_do_no_harm(sampling: str) -> None:
    few = np.repeat(X[:10], 20, axis=0)
    model = nystrom(None, n_landmarks=20, sampling=sampling).fit(few)
    assert model.rank_ <= (20 if sampling == "kmeans" else 10)  # a centre may lie between rows
    values = np.linalg.eigvalsh(centred(matrix(RBF(0.05), few)))[::-1][: model.n_components_]
    assert_covered(model.eigenvalue_bounds_, values)
    if sampling in ("rpcholesky"):  # others may miss one of the ten rows
        assert model.rank_ == 10
        np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-7)
    equal = nystrom(None, n_landmarks=20, sampling=sampling).fit(np.tile(X[0], (30, 1)))
    assert equal.n_components_ == 1
    if sampling != "kmeans":  # whose centres are equal to rounding only
        assert equal.rank_ == 1
    np.testing.assert_allclose(equal.eigenvalues_, 0, atol=1e-12)
    assert np.isfinite(equal.transform(NEW)).all()


def test_rows_of_zeros_have_no_images_under_a_linear_kernel() -> None:
    some = X.copy()
    some[::3] = 0
    model = nystrom(3, kernel=Linear(), n_landmarks=40).fit(some)
    np.testing.assert_allclose(model.eigenvalues_, np.linalg.eigvalsh(centred(some @ some.T))[::-1][:3], rtol=1e-8)
    for sampling in (s for s in SAMPLINGS if s != "kmeans"):
        with pytest.raises(ValueError, match=r"are 0|is 0: squares"):
            nystrom(3, kernel=Linear(), sampling=sampling).fit(np.zeros((N, D)))
        with pytest.raises(ValueError, match=r"is 0, so a kernel that is positive semi-definite, as it was assumed"):
            nystrom(3, kernel=Precomputed(), sampling=sampling).fit(np.zeros((N, N)))


ROWS_AFAR = np.random.default_rng(5).standard_normal((700, 6)) * [3, 2, 1.5, 1, 0.8, 0.5] + 1e5


def monomials(X: Any) -> Any:
    """The features of ``(x'y / 6 + 1)^2``, but for the constant."""
    X = X / np.sqrt(np.longdouble(6))
    squares = [X[:, i] * X[:, j] * np.sqrt(np.longdouble(1 + (i < j))) for i in range(6) for j in range(i, 6)]
    return np.column_stack([*squares, np.sqrt(np.longdouble(2)) * X])


AFAR: dict[str, tuple[Callable[[float], Kernel], Callable[[Any], Any]]] = {
    "linear": (lambda unit: Linear(), lambda X: X),
    "cosine": (lambda unit: Cosine(), lambda X: X / np.sqrt((X**2).sum(axis=1, keepdims=True))),
    "degree 2": (lambda unit: Polynomial(gamma=1 / 6 / unit**2, degree=2), monomials),
    "sum": (lambda unit: Linear() + unit**2 * Cosine(), lambda X: X),
}


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("sampling", ["rpcholesky", "uniform", "diagonal"])
@pytest.mark.parametrize("name", AFAR)
@pytest.mark.filterwarnings("ignore:the values of the kernel hardly differ")  # of bounds, which contain rounding
def test_rows_far_from_the_origin_have_the_eigenvalues_of_their_variance(name: str, sampling: str, unit: float) -> None:
    """Centring removes 1 - 1e-10 of the kernel matrix, and float64 leaves six digits of the rest."""
    make, features = AFAR[name]
    images = features(ROWS_AFAR.astype(np.longdouble))
    values = np.linalg.svd((images - images.mean(axis=0)).astype(np.float64), compute_uv=False)[:3] ** 2
    values *= unit**2 if name in ("linear", "sum") else 1
    model = nystrom(3, kernel=make(unit), n_landmarks=50, sampling=sampling).fit(ROWS_AFAR * unit)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-4)
    assert (model.eigenvalue_bounds_[:, 0] <= values).all()
    assert (values <= model.eigenvalue_bounds_[:, 1]).all()


BY_DEFAULT: dict[str, tuple[Callable[[str], Any], int, Any]] = {
    "kernel PCA": (lambda sampling: nystrom(n_landmarks=None, sampling=sampling, nan_policy="omit"), 300, None),
    "all rows": (
        lambda sampling: bp.KernelSupervisedPCA(sampling=sampling, kernel=KERNELS["rbf"], nan_policy="omit"),
        300,
        np.arange(300) % 3,
    ),
    "more than the exact ones": (
        lambda sampling: bp.KernelSupervisedPCA(sampling=sampling, kernel=KERNELS["rbf"], nan_policy="omit"),
        2010,
        np.arange(2010) % 3,
    ),
}


@pytest.mark.parametrize("sampling", [s for s in SAMPLINGS if s not in ("kmeans", "column-norm")])
@pytest.mark.parametrize("name", BY_DEFAULT)
def test_as_many_landmarks_as_there_are_rows_by_default(name: str, sampling: str) -> None:
    """Fewer rows than the default are left: they are the landmarks, and the fit is that to them alone."""
    make, n, labels = BY_DEFAULT[name]
    rows = np.random.default_rng(2).standard_normal((n, 4))
    bad = rows.copy()
    bad[200:, 1] = np.nan
    model = make(sampling).fit(bad, labels)
    assert len(model.landmarks_) <= 200
    only = make(sampling).fit(rows[:200], None if labels is None else labels[:200])
    np.testing.assert_allclose(model.eigenvalues_, only.eigenvalues_, rtol=1e-6)


@pytest.mark.parametrize("sampling", [s for s in SAMPLINGS if s not in ("kmeans", "column-norm")])
@pytest.mark.parametrize("make", [nystrom, bp.KernelSupervisedPCA])
def test_kernel_values_beyond_float64_are_said(make: Callable[..., Any], sampling: str) -> None:
    rows = X.copy()
    rows[:, 1] = 1e200
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"kernel matrix of landmarks exceeds 1\.8e308"):
        make(kernel="rbf", n_landmarks=20, sampling=sampling).fit(
            rows, *([np.arange(N) % 3] if make != nystrom else [])
        )
