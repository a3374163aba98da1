"""Examples weigh as the dot matrix's eigenvectors say, and eigenvalues move no further than the
bound when features go.
"""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA as InMemoryPCA
from sklearn.exceptions import NotFittedError

import bigpca as bp
from bigpca.quality import example_importance, feature_replacement_bound
from tests.builders import data_with_spectrum, power_law, rank_deficient
from tests.passes.kit import logged, reads_in, write_store

EPS = float(np.finfo(np.float64).eps)
X = data_with_spectrum(90, power_law(8, 1.0), mean=4.0)[0]


def dot_eigenvectors(A: NDArray[Any], k: int) -> NDArray[np.float64]:
    """Leading eigenvectors (n, k) of the centred dot matrix, by NumPy on the whole matrix."""
    centred = A - A.mean(0)
    return np.asarray(np.linalg.eigh(centred @ centred.T)[1][:, ::-1][:, :k])


@pytest.mark.parametrize("solver", ["covariance", "dot"])
@pytest.mark.parametrize("options", [{}, {"whiten": True}, {"scale": True}], ids=str)
def test_importance_is_the_eigenvectors_of_the_dot_matrix_up_to_sign(solver: str, options: dict[str, Any]) -> None:
    V = example_importance(bp.PCA(5, solver=solver, **options).fit(X), X)
    truth = dot_eigenvectors(X / X.std(0) if "scale" in options else X, 5)
    np.testing.assert_allclose(np.abs((V * truth).sum(0)), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(V.T @ V, np.eye(5), rtol=0, atol=1e-12)


def test_a_component_is_the_sum_of_the_examples_with_these_weights() -> None:
    pca = bp.PCA(3).fit(X)  # equation 25
    axes = example_importance(pca, X).T @ (X - X.mean(0)) / pca.singular_values_[:, None]
    np.testing.assert_allclose(axes, pca.components_, rtol=0, atol=1e-12)


def test_lazy_rows_give_a_lazy_array_of_the_same_chunks_read_when_computed(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", X.astype("f4"), (20, 8))
    source = logged(tmp_path / "x.zarr", tmp_path / "log", chunk_rows=20)
    pca = bp.PCA(3).fit(X)
    lazy = example_importance(pca, source)
    assert isinstance(lazy, da.Array)
    assert (lazy.chunks[0], lazy.shape, lazy.dtype) == (source.chunks[0], (90, 3), np.dtype("f4"))
    assert not reads_in(tmp_path / "log")
    np.testing.assert_allclose(lazy.compute(), example_importance(pca, X), rtol=0, atol=1e-6)


def test_the_model_of_another_library_will_do() -> None:
    V = example_importance(InMemoryPCA(2).fit(X), X)
    np.testing.assert_allclose(np.abs((V * dot_eigenvectors(X, 2)).sum(0)), 1, rtol=0, atol=1e-12)


def test_an_example_that_is_an_outlier_ranks_first() -> None:
    A = np.random.default_rng(0).standard_normal((50, 6))
    A[17] *= 40
    V = example_importance(bp.PCA(3).fit(A), A)
    assert abs(V[17, 0]) > 0.9 > abs(np.delete(V[:, 0], 17)).max()


def test_a_component_without_variance_or_an_unfitted_model_is_rejected() -> None:
    A = data_with_spectrum(30, rank_deficient(6, 2))[0]
    with pytest.raises(ValueError, match=r"component 2 of 4 has variance 0, .* Fit with n_components = 2"):
        example_importance(bp.PCA(4).fit(A), A)
    with pytest.raises(NotFittedError):
        example_importance(bp.PCA(2), A)


def correlated(n: int, d: int, correlation: float, seed: int = 0) -> NDArray[np.float64]:
    """Features of correlation ``c^|i - j|``, of several scales and means."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, d))
    for j in range(1, d):
        A[:, j] = correlation * A[:, j - 1] + np.sqrt(1 - correlation**2) * A[:, j]
    return A + rng.standard_normal(d) * 5


def swapped(d: int, a: int, b: int) -> NDArray[np.int64]:
    replacements = np.arange(d)
    replacements[a] = b
    return replacements


def moved(A: NDArray[Any], replacements: NDArray[np.int64], center: bool = True) -> tuple[float, NDArray[Any]]:
    """How far eigenvalues of the dot matrix move, and D: by NumPy on the whole matrix."""
    centred = A - A.mean(0) if center else A
    other = centred[:, replacements]
    before, after = centred @ centred.T, other @ other.T
    return float(np.abs(np.linalg.eigvalsh(before) - np.linalg.eigvalsh(after)).max()), before - after


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.99, -0.9, 1 - 1e-9])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("a", "b"), [(0, 1), (3, 2), (5, 0)])
def test_one_replacement_has_the_norms_of_d_and_bounds_the_eigenvalues(
    correlation: float, center: bool, a: int, b: int
) -> None:
    A = correlated(40, 6, correlation)
    found = feature_replacement_bound(A, swapped(6, a, b), center=center)
    movement, D = moved(A, swapped(6, a, b), center)
    slack = 100 * EPS * float(((A - A.mean(0) * center) ** 2).sum())
    assert (found.features.tolist(), found.replacements.tolist(), found.n_rows) == ([a], [b], 40)
    assert found.frobenius[0] == pytest.approx(np.linalg.norm(D), rel=1e-6, abs=slack)  # equation 35
    assert found.spectral[0] == pytest.approx(np.linalg.norm(D, 2), rel=1e-6, abs=slack)
    assert movement <= found.bound + slack
    assert found.bound <= found.frobenius[0] * (1 + 4 * EPS)
    assert found.frobenius[0] <= np.sqrt(2) * found.bound * (1 + 4 * EPS)
    assert found.variance_bound == found.bound / 39


def test_equation_35_is_that_of_the_covariance() -> None:
    A = correlated(60, 5, 0.4)
    S = (A - A.mean(0)).T @ (A - A.mean(0))
    found = feature_replacement_bound(A, swapped(5, 3, 1))
    expected = S[3, 3] ** 2 + S[1, 1] ** 2 - 2 * S[3, 1] ** 2
    assert found.frobenius[0] ** 2 == pytest.approx(expected, rel=1e-12)
    assert found.correlations[0] == pytest.approx(S[3, 1] / np.sqrt(S[3, 3] * S[1, 1]), rel=1e-12)


def test_the_bound_is_reached_where_a_constant_feature_replaces_the_only_other_one() -> None:
    A = np.column_stack([np.random.default_rng(0).standard_normal(30), np.full(30, 2.0)])
    found = feature_replacement_bound(A, [1, 1])
    movement, _ = moved(A, np.array([1, 1]))
    assert found.bound == pytest.approx(movement, rel=1e-12)
    assert found.frobenius[0] == pytest.approx(movement, rel=1e-12)
    assert np.isnan(found.correlations[0])


def test_equal_features_replace_each_other_for_nothing_and_near_equal_ones_for_little() -> None:
    A = correlated(50, 4, 0.2)
    A[:, 2] = A[:, 0]
    A[:, 3] = A[:, 0] + 1e-9 * A[:, 1]
    variance = ((A[:, 0] - A[:, 0].mean()) ** 2).sum()
    for dtype in ("f4", "f8"):
        B = A.astype(dtype)
        assert feature_replacement_bound(B, swapped(4, 2, 0)).bound == 0
    # Equation 35 itself, a difference of squares, would not see anything below 1e-8 of the variance.
    found = feature_replacement_bound(A, swapped(4, 3, 0))
    assert 1e-10 * variance < found.bound < 1e-8 * variance
    assert found.bound == pytest.approx(np.linalg.norm(moved(A, swapped(4, 3, 0))[1], 2), rel=1e-4)


@pytest.mark.parametrize("correlation", [0.0, 0.7, 0.99])
@pytest.mark.parametrize("seed", range(5))
def test_many_replacements_at_once_move_eigenvalues_no_further_than_the_sum(correlation: float, seed: int) -> None:
    A = correlated(30, 12, correlation, seed)
    rng = np.random.default_rng(seed)
    for replacements in (np.arange(12) // 3 * 3, rng.integers(12, size=12), rng.permutation(12), np.zeros(12, int)):
        found = feature_replacement_bound(A, replacements)
        movement, D = moved(A, replacements)
        slack = 100 * EPS * ((A - A.mean(0)) ** 2).sum()
        assert movement <= np.linalg.norm(D, 2) + slack
        assert np.linalg.norm(D, 2) <= found.bound + slack
        before, after = (np.linalg.svd(B - B.mean(0), compute_uv=False) for B in (A, A[:, replacements]))
        assert np.abs(before - after).max() <= found.singular_value_bound * (1 + 1e-12)
        apart = A - A[:, replacements]
        assert found.singular_value_bound == pytest.approx(np.linalg.norm(apart - apart.mean(0)), rel=1e-12)
        assert len(found.features) == np.count_nonzero(replacements != np.arange(12))


def test_nothing_replaced_moves_nothing() -> None:
    found = feature_replacement_bound(X, np.arange(8))
    assert (found.bound, found.variance_bound, found.singular_value_bound, len(found.features)) == (0.0, 0.0, 0.0, 0)


def test_the_more_features_are_correlated_the_smaller_the_bound() -> None:
    bounds = [feature_replacement_bound(correlated(500, 2, c), [0, 0]).bound for c in (0.0, 0.5, 0.9, 0.99, 0.999)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.1 * bounds[0]


def test_neighbouring_pixels_of_real_images_stand_for_each_other_better_than_distant_ones() -> None:
    images = load_digits().data[:400]  # 8 x 8
    near = np.arange(64).reshape(8, 8)[np.arange(8) // 2 * 2].ravel()  # the upper pixel of each pair
    far = near.copy()
    far[near != np.arange(64)] = np.roll(np.arange(64).reshape(8, 8), 4, axis=1).reshape(-1)[near != np.arange(64)]
    found = {name: feature_replacement_bound(images, groups) for name, groups in (("near", near), ("far", far))}
    assert moved(images, near)[0] <= found["near"].bound < found["far"].bound
    assert moved(images, far)[0] <= found["far"].bound
    assert np.nanmean(found["near"].correlations) > 0.4 > 0.1 > np.nanmean(found["far"].correlations)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "u1"])
@pytest.mark.parametrize("chunks", [(90, 8), (13, 8), (20, 3)])
def test_any_dtype_and_chunks_give_the_same_bound(dtype: str, chunks: tuple[int, int], tmp_path: Path) -> None:
    A = (np.abs(X) * 10).astype(dtype)
    write_store(tmp_path / "x.zarr", A, chunks)
    replacements = np.array([0, 0, 2, 2] * 2)
    exact = feature_replacement_bound(A.astype("f8"), replacements)
    source = logged(tmp_path / "x.zarr", tmp_path / "log")
    for lazy in (source, da.from_array(A, chunks=chunks) + np.zeros((), dtype)):
        found = feature_replacement_bound(lazy, replacements)
        np.testing.assert_allclose(found.spectral, exact.spectral, rtol=1e-9)
        np.testing.assert_allclose(found.correlations, exact.correlations, rtol=1e-9)
    assert sum(stop - start for start, stop in reads_in(tmp_path / "log")) == 90  # one read


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: feature_replacement_bound(X, [0, 1]), ValueError,
            r"shape \(2,\), but one feature number for each of 8"),
        (lambda: feature_replacement_bound(X, np.arange(8) + 1), ValueError,
            "feature 7 is replaced by feature 8, but .* 0 to 7"),
        (lambda: feature_replacement_bound(X, np.arange(8) - 1), ValueError, "feature 0 is replaced by feature -1"),
        (lambda: feature_replacement_bound(X, np.zeros(8)), TypeError,
            "replacements are float64, but features are numbered by integers"),
        (lambda: feature_replacement_bound(X, np.arange(8), memory_limit=1), bp.errors.MemoryBudgetError,
            "replacements needs"),
        (lambda: feature_replacement_bound(np.full((3, 8), np.nan), np.arange(8)), bp.errors.NonFiniteError,
            "24 NaN or infinite"),
    ],
)  # fmt: skip
def test_what_is_no_grouping_of_features_is_rejected(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
