"""HSIC equals its definition on whole kernel matrices, and landmarks never give more."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca.kernels import RBF, Linear
from tests.estimators.labelled import labelled_rows, one_hot

Array = NDArray[Any]
N = 150
X, Y = labelled_rows(N, 5, 3, mean=3.0)
REAL = np.sin(X[:, 0]) + X[:, 1] / 5


def criterion(K: Array, L: Array) -> float:
    """tr(K H L H) / (n - 1)^2."""
    H = np.eye(N) - 1 / N
    return float(np.trace(K @ H @ L @ H)) / (N - 1) ** 2


KERNELS = {"linear": Linear(), "rbf": RBF(0.2)}
LABELS: dict[str, tuple[Any, dict[str, Any], Array]] = {
    "classes": (Y, {}, one_hot(Y) @ one_hot(Y).T),
    "linear": (REAL, {}, np.outer(REAL, REAL)),
    "rbf": (REAL, {"label_kernel": "rbf", "label_gamma": 0.7}, np.asarray(RBF(0.7)(REAL[:, None]), np.float64)),
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_hsic_is_its_definition_and_landmarks_bound_it_from_below(kernel: str, labels: str) -> None:
    y, options, L = LABELS[labels]
    gamma = {"gamma": 0.2} if kernel == "rbf" else {}
    expected = criterion(np.asarray(KERNELS[kernel](X), np.float64), L)
    assert bp.quality.hsic(X, y, kernel=kernel, **gamma, **options) == pytest.approx(expected, rel=1e-8)
    assert bp.quality.hsic(da.from_array(X, chunks=(40, 5)), y, kernel=kernel, **gamma, **options) == pytest.approx(
        expected, rel=1e-8
    )
    some = bp.quality.hsic(X, y, kernel=kernel, n_landmarks=60, **gamma, **options)
    assert 0.9 * expected < some <= expected * (1 + 1e-8)


def test_hsic_of_rows_that_do_not_depend_on_their_labels_is_0() -> None:
    rows = np.repeat(np.random.default_rng(0).standard_normal((N // 3, 2)), 3, axis=0)
    y = np.tile([0, 1, 2], N // 3)
    for kernel in ("linear", "rbf"):
        assert bp.quality.hsic(rows, y, kernel=kernel) == pytest.approx(0, abs=1e-25 if kernel == "linear" else 1e-15)


def test_rows_without_a_label_are_left_out() -> None:
    y = np.where(np.arange(N) % 10 == 0, None, Y.astype(object))
    used = np.arange(N) % 10 != 0
    assert bp.quality.hsic(X, y, missing_labels="drop") == pytest.approx(bp.quality.hsic(X[used], Y[used]), rel=1e-10)
    with pytest.raises(ValueError, match="missing"):
        bp.quality.hsic(X, y)


@pytest.mark.parametrize("unit", [1e-140, 1e-8, 1.0, 1e8, 1e140])
@pytest.mark.parametrize("options", [{}, {"kernel": "rbf"}, {"n_landmarks": 60}, {"label_kernel": "rbf"}], ids=str)
def test_hsic_has_the_units_of_its_labels(options: dict[str, Any], unit: float) -> None:
    factor = 1.0 if "label_kernel" in options else unit**2
    found = bp.quality.hsic(X, REAL * unit, **options)
    assert found == pytest.approx(factor * bp.quality.hsic(X, REAL, **options), rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (1.0, 1e200, r"variance of the labels is (inf|nan): .* Divide the labels by a constant"),
        (1.0, 1e-170, r"variance of the labels is 0: .* Multiply the labels by a constant"),
        (1e100, 1e100, r"HSIC is .*e\+199 squared, .* Divide the rows or the labels by a constant"),
        (1e-100, 1e-100, r"HSIC is .*e-20\d squared, .* the rows or the labels by a constant"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"kernel": Linear()}, {"n_landmarks": 60}], ids=str)
def test_hsic_beyond_float64_says_which_numbers(
    rows: float, labels: float, message: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=message):
        bp.quality.hsic(X * rows, REAL * labels, **options)


def test_labels_that_lack_lead_to_an_estimate_by_landmarks() -> None:
    y = np.where(np.arange(N) % 10 == 0, np.nan, REAL)
    with pytest.raises(ValueError, match="or estimate HSIC from landmarks, by n_landmarks"):
        bp.quality.hsic(X, y, kernel="rbf", missing_labels="drop")
    assert bp.quality.hsic(X, y, kernel="rbf", missing_labels="drop", n_landmarks=60) > 0
