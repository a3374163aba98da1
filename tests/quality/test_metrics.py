"""Metrics equal plain NumPy on the whole matrix, give known answers, read what they say and reject what has no
answer.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA as InMemoryPCA
from sklearn.exceptions import NotFittedError

import bigpca as bp
from bigpca.quality import metrics, principal_angles, reconstruction_error, similarity
from tests.builders import data_with_spectrum, offset_data, orthonormal_rows, power_law
from tests.passes.kit import logged, reads_in, write_store

EPS = float(np.finfo(np.float64).eps)
SPECTRUM = power_law(12, 1.5)
X = data_with_spectrum(150, SPECTRUM, mean=3.0)[0]


def rotated(k: int, d: int, angles: NDArray[np.float64], seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """k orthonormal axes, and the same ones each turned by its angle towards an axis of its own outside their span."""
    rows = orthonormal_rows(2 * k, d, seed)
    A, outside = rows[:k], rows[k:]
    return A, A * np.cos(angles)[:, None] + outside * np.sin(angles)[:, None]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("lengths", [1.0, 1e-200, 1e200])
def test_axes_turned_by_an_angle_have_its_cosine_as_similarity(sign: int, lengths: float) -> None:
    angles = np.array([0.0, 1e-3, 0.5, 1.2, np.pi / 2])
    A, B = rotated(5, 30, angles)
    np.testing.assert_allclose(similarity(A, sign * lengths * B), np.cos(angles), rtol=0, atol=30 * EPS)


def test_similarity_never_exceeds_1_and_is_that_of_plain_numpy() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 400, 7))
    plain = [abs(a @ b) / np.sqrt((a @ a) * (b @ b)) for a, b in zip(A, B, strict=True)]
    np.testing.assert_allclose(similarity(A, B), plain, rtol=1e-12)
    models = [SimpleNamespace(components_=rows) for rows in (A, B)]
    np.testing.assert_array_equal(similarity(*models), similarity(A, B))
    assert similarity(A, A.astype(np.float32)).max() <= 1
    assert similarity(A, A).min() > 1 - 10 * EPS


@pytest.mark.parametrize("size", [1e-13, 1e-8, 1e-3, 0.3, 0.8, 1.4, np.pi / 2])
@pytest.mark.parametrize("seed", range(3))
def test_subspaces_turned_by_known_angles_have_them_as_principal_angles(size: float, seed: int) -> None:
    angles = size * np.array([1.0, 0.7, 0.2, 0.0])
    A, B = rotated(4, 25, angles, seed)
    mixing = np.random.default_rng(seed).standard_normal((2, 4, 4)) + 3 * np.eye(4)  # other rows of the same spans
    found = principal_angles(mixing[0] @ A, 5.0 * mixing[1] @ B)
    condition = max(np.linalg.cond(M) for M in mixing)
    np.testing.assert_allclose(found, angles, rtol=0, atol=50 * EPS * condition)


def test_subspaces_of_different_sizes_have_as_many_angles_as_the_smaller_one() -> None:
    rows = orthonormal_rows(5, 9)
    assert principal_angles(rows[:2], rows).shape == (2,)
    assert principal_angles(rows, rows[:2]).max() < 10 * EPS
    np.testing.assert_allclose(principal_angles(rows[:2], rows[1:4]), [np.pi / 2, 0], atol=10 * EPS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: similarity(np.ones((2, 3)), np.ones((3, 3))),
            r"components_a has shape \(2, 3\) and components_b \(3, 3\), so their rows do not correspond",
        ),
        (
            lambda: similarity(np.ones(3), np.ones(3)),
            r"components_a has shape \(3,\); rows of components, \(k, d\), were expected",
        ),
        (lambda: similarity(np.ones((1, 3)), np.ones((1, 0))), r"components_b has shape \(1, 0\); rows of components"),
        (
            lambda: similarity([[1.0, 0.0], [0.0, 0.0]], np.eye(2)),
            "row 1 of components_a has no direction: its largest entry is 0",
        ),
        (
            lambda: similarity(np.eye(2), [[1.0, np.nan], [0, 1]]),
            "row 0 of components_b has no direction: its largest entry is nan",
        ),
        (
            lambda: principal_angles(np.eye(2), np.eye(3)),
            "components_a has rows of length 2 and components_b of 3: they are axes of different spaces",
        ),
        (
            lambda: principal_angles(np.ones((2, 3)), np.eye(3)),
            r"the 2 rows of components_a are linearly dependent \(to",
        ),
        (
            lambda: principal_angles(np.eye(2), [[1, 0], [0, 1], [1, 1]]),
            "the 3 rows of components_b are linearly dependent",
        ),
    ],
)
def test_what_has_no_answer_is_rejected_with_the_numbers(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def reconstruction_by_numpy(model: Any, A: NDArray[Any]) -> tuple[float, float]:
    """Mean squared residual, relative one: by the model's own reconstruction, in the model's units."""
    scale = 1.0 if getattr(model, "scale_", None) is None else model.scale_
    wide = A.astype(np.float64)
    residual = (wide - model.inverse_transform(model.transform(wide))) / scale
    return float((residual**2).sum(1).mean()), float((residual**2).sum() / (((wide - model.mean_) / scale) ** 2).sum())


@pytest.mark.parametrize(
    "options",
    [{}, {"scale": True}, {"center": False}, {"whiten": True}, {"solver": "dot"}, {"scale": True, "whiten": True}],
    ids=str,
)
@pytest.mark.parametrize("k", [1, 4, 11])
def test_the_reconstruction_error_is_that_of_the_model_s_own_reconstruction(k: int, options: dict[str, Any]) -> None:
    model = bp.PCA(k, **options).fit(X)
    mean_squared, relative = reconstruction_by_numpy(model, X)
    found = reconstruction_error(model, X)
    assert found.n_rows == len(X)
    assert found.mean_squared == pytest.approx(mean_squared, rel=1e-9)
    assert found.relative == pytest.approx(relative, rel=1e-9)
    assert found.relative == pytest.approx(1 - model.explained_variance_ratio_.sum(), rel=1e-8)


def test_a_tiny_residual_far_from_the_origin_keeps_its_digits() -> None:
    # 1e-10 of the variance is left; in float64 the rows at 1e3 carry an error of 1e3 eps each, 2e-13 against 1e-5.
    spectrum = np.concatenate([np.full(3, 1.0), np.full(5, 6e-11)])
    A, _ = data_with_spectrum(200, spectrum, mean=1e3)
    assert reconstruction_error(bp.PCA(3).fit(A), A).relative == pytest.approx(3e-10 / (3 + 3e-10), rel=1e-5)


def test_float32_rows_of_mean_1e4_are_measured_as_they_are() -> None:
    A = offset_data(300, 10, mean=1e4)
    model = bp.PCA(4).fit(A)
    mean_squared, relative = reconstruction_by_numpy(model, A)
    found = reconstruction_error(model, A)
    assert (found.mean_squared, found.relative) == pytest.approx((mean_squared, relative), rel=1e-9)


def test_components_that_are_not_orthonormal_give_the_closest_point_of_their_span() -> None:
    mixing = np.array([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [1.0, 1.0, 1.0]])
    exact = reconstruction_error(bp.PCA(3).fit(X), X).relative
    skew = InMemoryPCA(3).fit(X)
    skew.components_ = mixing @ skew.components_
    assert reconstruction_error(skew, X).relative == pytest.approx(exact, rel=1e-10)


def test_all_components_leave_rounding_and_no_variance_leaves_nothing() -> None:
    assert reconstruction_error(bp.PCA().fit(X), X).relative < 1e-28
    constant = np.full((5, 3), 7.0)
    assert reconstruction_error(bp.PCA(1).fit(constant), constant) == metrics.ReconstructionError(5, 0.0, 0.0)


def test_an_unfitted_model_other_features_and_too_little_memory_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        reconstruction_error(bp.PCA(2), X)
    model = bp.PCA(2).fit(X)
    with pytest.raises(ValueError, match="X has 5 features, but PCA is expecting 12"):
        reconstruction_error(model, X[:, :5])
    write_store(tmp_path / "x.zarr", X, (50, 12))
    source = logged(tmp_path / "x.zarr", tmp_path / "log")
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"residuals needs .* per process"):
        reconstruction_error(model, source, memory_limit="1 MiB")
    assert not reads_in(tmp_path / "log")
    reconstruction_error(model, source)
    assert sum(stop - start for start, stop in reads_in(tmp_path / "log")) == len(X)  # one read
