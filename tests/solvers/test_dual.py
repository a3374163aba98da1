"""The axes of a few rows by their dot matrix are the right singular vectors, whatever the units and the pieces."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca.solvers import dual
from bigpca.solvers.dual import axes_bytes, leading_axes
from bigpca.solvers.strips import STRIP_WIDTH
from tests.builders import data_with_spectrum, power_law
from tests.peaks import traced_peak

M, D, K = 40, 150, 6
Array = NDArray[Any]


def sample(offset: float, dtype: str) -> Array:
    return data_with_spectrum(M, np.where(np.arange(D) < M - 1, power_law(D), 0.0), mean=offset)[0].astype(dtype)


def by_svd(X: Array, center: bool, scale: bool) -> tuple[Array, Array]:
    wide = X.astype(np.float64)
    about = wide - wide.mean(axis=0)
    rows = (about if center else wide) / (about.std(axis=0) if scale else 1.0)
    _, singular, V = np.linalg.svd(rows, full_matrices=False)
    return singular[:K] ** 2 / (len(X) - 1), V[:K]


@pytest.mark.parametrize("strip", [7, 4096])
@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scale", [False, True], ids=["", "scale"])
@pytest.mark.parametrize("center", [False, True], ids=["about zero", "center"])
def test_axes_are_the_singular_vectors(
    center: bool, scale: bool, dtype: str, offset: float, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dual, "STRIP_WIDTH", strip)
    X = sample(offset, dtype)
    pieces = [X[:1], X[1:13], X[13:13], X[13:]]
    before = X.copy()
    found = leading_axes(pieces, K, center=center, scale=scale, threads=1)
    values, V = by_svd(X, center, scale)
    eps = float(np.finfo(dtype).eps)
    used = int(
        np.count_nonzero(values > 1e-5 * values[0])
    )  # below, an offset without centring leaves float32's rounding
    assert found.count == M
    np.testing.assert_allclose(found.mean, X.mean(axis=0, dtype=np.float64), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(found.squares, M * X.astype(np.float64).var(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.variances[:used], values[:used], rtol=0, atol=50 * eps * values[0])
    gram = found.axes[:, :used].T @ found.axes[:, :used]
    np.testing.assert_allclose(gram, np.eye(used), rtol=0, atol=50 * eps * values[0] / values[used - 1])
    residual = V[:used] - (V[:used] @ found.axes[:, :used]) @ found.axes[:, :used].T
    assert np.abs(residual).max() <= 300 * eps * values[0] / values[used - 1]
    assert np.array_equal(X, before)


@pytest.mark.parametrize(("dtype", "unit"), [("f4", 2.0**90), ("f4", 2.0**-90), ("f8", 2.0**500), ("f8", 2.0**-500)])
@pytest.mark.parametrize("scale", [False, True])
def test_the_unit_of_the_rows_changes_no_bit(dtype: str, unit: float, scale: bool) -> None:
    X = sample(1.0, dtype)
    plain, other = (leading_axes([rows], K, scale=scale) for rows in (X, X * np.asarray(unit, dtype)))
    assert np.array_equal(plain.axes, other.axes)
    assert np.array_equal(plain.mean * unit, other.mean)
    assert np.array_equal(plain.squares * unit**2, other.squares)
    assert np.array_equal(plain.variances * (1.0 if scale else unit**2), other.variances)


def test_there_are_no_more_axes_than_the_rank() -> None:
    X = sample(0.0, "f8")
    assert leading_axes([X[:3]], 6).axes.shape == (D, 2)
    assert leading_axes([X[:3]], 6, center=False).axes.shape == (D, 3)
    assert leading_axes([np.ones((5, 4))], 3).axes.shape == (4, 0)
    assert leading_axes([np.zeros((5, 4), "f4")], 3, center=False, scale=True).axes.shape == (4, 0)


def test_constant_columns_are_not_scaled() -> None:
    X = sample(0.0, "f4")
    X[:, 4], X[:, 9] = 0.1, 0.0
    found = leading_axes([X], K, scale=True)
    assert np.abs(found.axes[[4, 9]]).max() < 1e-5
    np.testing.assert_allclose(found.squares[[4, 9]], 0, atol=1e-14)


@pytest.mark.parametrize("d", [2000, 9000])
def test_memory_stays_within_what_is_said(d: int) -> None:
    m, k = 150, 20
    X = np.random.default_rng(0).standard_normal((m, d)).astype("f4")
    leading_axes([X[:50], X[50:]], k, threads=5)
    peak = traced_peak(lambda: leading_axes([X[:50], X[50:]], k, threads=5))
    assert peak <= axes_bytes(m, d, k, 4)
    assert d > STRIP_WIDTH or axes_bytes(m, d, k, 4) <= 3 * peak  # threads need not all be at their peak at once
