"""What kernel PCA rejects, and why; and what it makes of rows with missing values."""

import operator
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import KernelPCA as Oracle
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

import bigpca as bp
from bigpca import KernelPCA, kernels
from tests.estimators.kernel.test_kernel_pca import NEW, WORDS, Array, N, X, assert_same_up_to_sign


def with_value(row: int, column: int, value: float) -> Array:
    bad = X.copy()
    bad[row, column] = value
    return bad


REJECTED: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "gamma 0": ({"kernel": "rbf", "gamma": 0}, X, ValueError, "gamma = 0 is not a finite number above 0"),
    "gamma twice": (
        {"kernel": kernels.RBF(0.1), "gamma": 0.2}, X, ValueError,
        r"gamma were given together with kernel = RBF\(gamma=0.1\), which has its own parameters",
    ),
    "unknown kernel": ({"kernel": "gauss"}, X, ValueError, "kernel = 'gauss' is not known. Did you mean rbf"),
    "mle": ({"n_components": "mle"}, X, ValueError, 'n_components = "mle" is for linear PCA'),
    "too many": ({"n_components": N + 1, "kernel": "rbf"}, X, ValueError,
        f"n_components = {N + 1} .*: the kernel matrix of {N} rows"),
    "no features": (
        {"kernel": "rbf", "solver": "features"}, X, ValueError,
        'has no exact finite feature map of 6 columns; solver="features"',
    ),
    "features and back": (
        {"kernel": "linear", "solver": "features", "fit_inverse_transform": True}, X, ValueError,
        'regresses on reference rows, which solver="features" does not keep',
    ),
    "nan": ({"kernel": "rbf"}, with_value(33, 2, np.nan), bp.errors.NonFiniteError, "the first is in row 33, column 2"),
    "omit": (
        {"kernel": "rbf", "nan_policy": "omit"}, X, ValueError,
        r'nan_policy="omit" leaves out rows .* compares all pairs of rows .* or use NystromKernelPCA',
    ),
    "negative": ({"kernel": kernels.ChiSquare()}, np.abs(X) * np.where(np.arange(N) == 99, -1, 1)[:, None], ValueError,
        "row 99, column 0 is -"),
    "overflow": (
        {"kernel": kernels.Polynomial(5, gamma=1)}, X * 1e60, ValueError, r"row 0: .* to the power 5 and squared",
    ),
    "overflow of distances": ({"kernel": "rbf"}, X * 1e200, ValueError, r"has values beyond float64.*Divide the data"),
    "no square": ({"kernel": "precomputed"}, X, ValueError,
        r"X has shape \(150, 6\), but Precomputed.* \(n, n\) was expected"),
    "asymmetric": (
        {"kernel": "precomputed"}, X @ X.T + np.triu(np.ones((N, N)), 1), ValueError,
        r"a symmetric kernel matrix was expected",
    ),
    "precomputed and back": (
        {"kernel": "precomputed", "fit_inverse_transform": True}, X @ X.T, ValueError,
        "regresses rows on their scores, which Precomputed.* cannot compare",
    ),
    "strings and back": (
        {"kernel": kernels.Spectrum(2), "fit_inverse_transform": True}, WORDS, ValueError,
        "regresses rows on their scores, which Spectrum.* cannot compare: it takes strings",
    ),
    "histograms and back": (
        {"kernel": kernels.ChiSquare(), "fit_inverse_transform": True}, np.abs(X), ValueError,
        "regresses rows on their scores, which ChiSquare.* does not take: .*at least 0",
    ),
    "shape of a function": (
        {"kernel": lambda A, B: A}, X, ValueError,
        r"the kernel function returned shape \(128, 6\) for blocks of 128 and 128 rows",
    ),
    "asymmetric function": (
        {"kernel": lambda A, B: A[:, :1] - B[:, :1].T}, X, ValueError, r"a kernel is symmetric. Make it k\(x, y\)",
    ),
}  # fmt: skip


MATRIX = kernels.RBF(0.1)(X, X)
SHIFTED = MATRIX + np.triu(np.full((N, N), 0.01), 1)
ORDER = np.random.default_rng(0).permutation(N)
SAMPLED = [{"sampling": name} for name in ("rpcholesky", "uniform", "diagonal")] + [
    {"sampling": np.arange(0, N, 9)}, {"solver": "dense"}, {"solver": "krylov"},
]  # fmt: skip


@pytest.mark.parametrize("how", SAMPLED, ids=str)
@pytest.mark.parametrize(
    ("K", "message"),
    [
        (SHIFTED, "a symmetric kernel matrix was expected"),
        (MATRIX[ORDER], "check the order of its rows"),
        ((X @ X.T)[ORDER], "the order of (its|the) "),
    ],
    ids=["asymmetric", "permuted", "permuted, negative"],
)
def test_a_matrix_that_is_not_symmetric_is_rejected_by_every_fit(how: Any, K: Any, message: str) -> None:
    make = KernelPCA if "solver" in how else partial(bp.NystromKernelPCA, n_landmarks=20)
    if not isinstance(how.get("sampling", ""), str):
        make = bp.NystromKernelPCA
    with pytest.raises(ValueError, match=message):
        make(2, kernel="precomputed", **how).fit(K)


GIVEN = kernels.Precomputed()
DERIVED: dict[str, Any] = {
    "normalised": kernels.normalized,
    "in an RBF": partial(kernels.rbf_of, gamma=1.0),
}


@pytest.mark.parametrize("inner", [GIVEN, GIVEN + 1.0, 2 * GIVEN**2, GIVEN * GIVEN], ids=str)
@pytest.mark.parametrize("make", DERIVED.values(), ids=DERIVED)
def test_kernels_that_need_a_number_of_each_row_reject_a_precomputed_matrix(make: Any, inner: Any) -> None:
    with pytest.raises(ValueError, match=r"only sees row numbers, but .* Give Precomputed\(\) the finished"):
        make(inner)


@pytest.mark.parametrize("other", [kernels.RBF(), kernels.Spectrum(2)])
@pytest.mark.parametrize("combine", [operator.add, operator.sub, operator.mul])
def test_a_precomputed_matrix_is_not_combined_with_kernels_of_its_rows(combine: Any, other: Any) -> None:
    for pair in ((GIVEN + 1.0, other), (other, GIVEN + 1.0)):
        with pytest.raises(TypeError, match=r"compares rows of a kernel matrix.*cannot be combined.*of one kind"):
            combine(*pair)


@pytest.mark.parametrize(("kernel", "made"), [(GIVEN + GIVEN, 2.0), (3 * GIVEN - 1.0, 3.0)], ids=str)
def test_combinations_of_precomputed_matrices_score_new_rows(kernel: Any, made: float) -> None:
    model, same = (KernelPCA(2, kernel=one).fit(c * X @ X.T) for one, c in ((kernel, 1.0), (GIVEN, made)))
    np.testing.assert_allclose(model.transform(NEW @ X.T), same.transform(made * NEW @ X.T), atol=1e-9)


@pytest.mark.parametrize("name", REJECTED)
def test_bad_input_is_rejected_with_the_reason(name: str) -> None:
    parameters, rows, error, message = REJECTED[name]
    with pytest.raises(error, match=message):
        KernelPCA(**({"n_components": 2} | parameters)).fit(rows)


def test_a_precomputed_matrix_maps_any_number_of_new_rows_and_knows_no_distance() -> None:
    many = np.vstack([NEW] * 5)
    model = KernelPCA(3, kernel="precomputed").fit(X @ X.T)
    assert_same_up_to_sign(model.transform(many @ X.T), KernelPCA(3).fit(X).transform(many), 1e-9)
    with pytest.raises(AttributeError) as caught:
        model.novelty(many @ X.T)
    assert "requires k(x, x), but rows for Precomputed" in str(caught.value.__cause__)


def test_denoising_needs_a_gaussian_kernel_and_scores_of_the_right_width() -> None:
    with pytest.raises(AttributeError) as caught:
        KernelPCA(2).fit(X).denoise(X)
    assert "denoise requires a Gaussian kernel, but this model has Linear" in str(caught.value.__cause__)
    with pytest.raises(ValueError, match=r"scores have 3 columns; 2 \(n_components_\) were expected"):
        KernelPCA(2, kernel="rbf", fit_inverse_transform=True).fit(X).inverse_transform(np.zeros((4, 3)))


@pytest.mark.parametrize("solver", ["dense", "features", "krylov"])
def test_a_row_of_zeros_has_the_image_0_under_cosine_as_in_scikit_learn(solver: str) -> None:
    rows = X * (np.arange(N) != 80)[:, None]
    model = KernelPCA(3, kernel="cosine", solver=solver, tol=1e-8, max_passes=30).fit(rows)
    oracle = Oracle(3, kernel="cosine", eigen_solver="dense").fit(rows)
    np.testing.assert_allclose(model.eigenvalues_, oracle.eigenvalues_, rtol=1e-7)
    assert_same_up_to_sign(model.transform(rows[78:83]), oracle.transform(rows[78:83]), 1e-5)


@pytest.mark.parametrize("given", ["precomputed", kernels.Precomputed(), kernels.Precomputed() + 1.0])
def test_cross_validation_cuts_a_kernel_matrix_in_both_directions(given: Any) -> None:
    labels = (X[:, 0] > 0.5).astype(int)
    model = make_pipeline(KernelPCA(3, kernel=given), LogisticRegression())
    plain = make_pipeline(KernelPCA(3), LogisticRegression())
    found = cross_val_score(model, X @ X.T, labels, cv=3, error_score="raise")
    np.testing.assert_allclose(found, cross_val_score(plain, X, labels, cv=3))
    grid = GridSearchCV(model, {"kernelpca__n_components": [1, 3]}, cv=3, error_score="raise").fit(X @ X.T, labels)
    assert grid.best_score_ >= found.mean()
    assert not get_tags(plain).input_tags.pairwise


@pytest.mark.parametrize("kind", [bp.ApproximateKernelPCA, bp.NystromKernelPCA, bp.KernelSupervisedPCA])
def test_every_kernel_estimator_says_that_a_precomputed_matrix_is_pairwise(kind: Any) -> None:
    assert get_tags(kind(2, kernel="precomputed")).input_tags.pairwise
    assert not get_tags(kind(2, kernel="rbf")).input_tags.pairwise


def test_kernel_pca_has_the_default_kernel_of_scikit_learn_and_approximations_one_that_needs_them() -> None:
    assert KernelPCA().kernel == Oracle().kernel == "linear"
    assert bp.ApproximateKernelPCA().kernel == bp.NystromKernelPCA().kernel == "rbf"
