"""Class moments equal plain NumPy, keep the digits that subtracting scatters loses, and know what they counted."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca.passes.accumulators import moments
from bigpca.passes.accumulators.moments import ClassMoments
from bigpca.passes.rows import Rows
from tests.estimators.labelled import labelled_rows, within_scatter
from tests.passes.kit import folded, full

Array = NDArray[Any]
N, D, C = 3000, 7, 5
EPS32 = float(np.finfo(np.float32).eps)


def moments_by_class(
    X: Array, codes: Array, classes: int, *, whole: bool = True, chunk: int = 0, **policies: str
) -> ClassMoments:
    """Fold rows as a fit does."""
    rows = Rows.of(bp.open(X).rechunk((chunk or len(X), X.shape[1])), **policies)
    template = ClassMoments(X.shape[1], classes, codes.astype(np.int32), whole)
    return folded(rows, template).state


def scatter(state: ClassMoments) -> Array:
    return full(state.scatter)


@pytest.mark.usefixtures("float32_products")
@pytest.mark.parametrize("order", ["shuffled", "class by class"])
def test_classes_a_thousand_apart_in_float32_keep_their_scatter(order: str) -> None:
    """Direct accumulation: under 1e-5 of the scatter; total minus between-class scatter in float32: all digits lost."""
    X, y = labelled_rows(N, D, C, apart=1e3, dtype="f4")
    if order == "class by class":
        X, y = X[np.argsort(y)], np.sort(y)
    truth = within_scatter(X, y)
    error = np.abs(scatter(moments_by_class(X, y, C)) - truth).max() / np.abs(truth).max()
    assert error < 1e-5
    mean = X.mean(axis=0)
    means = np.array([X[y == j].mean(axis=0) for j in range(C)])
    weighted = (means - mean) * np.sqrt(np.bincount(y)).astype("f4")[:, None]
    subtracted = (X - mean).T @ (X - mean) - weighted.T @ weighted
    assert np.abs(subtracted - truth).max() / np.abs(truth).max() > 1e-2


@pytest.mark.usefixtures("small_groups", "float32_products")
def test_many_small_steps_and_groups_lose_no_digits_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tolerance: 4 eps of float32."""
    monkeypatch.setattr(moments, "TILE_BYTES", 1024)  # steps of 256 rows
    X, y = labelled_rows(N, D, C, mean=1e4, dtype="f4")
    truth = within_scatter(X, y)
    for chunk in (25, N):
        state = moments_by_class(X, y, C, chunk=chunk)
        np.testing.assert_allclose(scatter(state), truth, rtol=0, atol=4 * EPS32 * np.abs(truth).max())


@pytest.mark.parametrize("value", [0.1, 7.25, -1e4])
def test_equal_rows_have_a_scatter_of_0_and_one_mean_to_the_last_bit(value: float) -> None:
    X, y = np.full((50, D), value), np.arange(50) % 3
    state = moments_by_class(X, y, 3, chunk=7)
    assert np.abs(state.within).max() <= 50 * (np.finfo(float).eps * value) ** 2
    np.testing.assert_array_equal(state.mean, X[0])
    np.testing.assert_array_equal(state.means, X[:3])


def test_the_mean_of_equal_means_is_theirs_to_the_last_bit() -> None:
    """Their weighted sum over the count is not, for a tenth of these."""
    rng, rounded = np.random.default_rng(0), 0
    for _ in range(100):
        counts, means = rng.integers(1, 99, 3).astype(float), np.full((3, 1), rng.standard_normal())
        state = ClassMoments(1, 3, np.zeros(0, np.int32), False, counts=counts, means=means, count=int(counts.sum()))
        assert state.mean == means[0]
        rounded += bool(counts @ means / counts.sum() != means[0])
    assert rounded >= 10


def test_no_rows_have_the_mean_0() -> None:
    state = ClassMoments(D, C, np.zeros(0, np.int32)).fresh(0, 0)
    np.testing.assert_array_equal(state.mean, np.zeros(D))
    assert state.count == 0


def test_classes_move_with_their_rows_when_others_come_between() -> None:
    X, y = labelled_rows(90, D, 3)
    old = moments_by_class(X[y < 2], y[y < 2], 2)
    new = moments_by_class(X[y == 2], np.zeros((y == 2).sum()), 1)
    merged = old.with_classes(np.array([0, 2]), 3).merge(new.with_classes(np.array([1]), 3))
    renamed = np.array([0, 2, 1])[y]
    truth = within_scatter(X, y)
    np.testing.assert_array_equal(merged.counts, np.bincount(renamed))
    np.testing.assert_allclose(merged.means, [X[renamed == j].mean(axis=0) for j in range(3)], atol=1e-13)
    np.testing.assert_allclose(scatter(merged), truth, rtol=0, atol=1e-12 * truth.max())
