"""Each group against the others: the numbers of NumPy from the rows, and what was planted is found."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bigpca as bp
from bigpca.arrays import Array
from bigpca.quality import drift

RNG = np.random.default_rng(0)
G, D, K = 9, 6, 2
SIZES = RNG.integers(60, 120, G)
DAYS = np.repeat([f"day{g}" for g in range(G)], SIZES)
X = RNG.standard_normal((len(DAYS), D)) * [5, 4, 1, 1, 1, 1] + 10
Z = RNG.standard_normal((len(X), 1))
X = X + Z * RNG.standard_normal(D)


def expected(rows: Array, k: int, scale: Any) -> Array:
    found = []
    for day in np.unique(DAYS):
        own, rest = rows[day == DAYS], rows[day != DAYS]
        by = scale if isinstance(scale, np.ndarray) else rest.std(axis=0) if scale else np.ones(D)
        values, vectors = np.linalg.eigh(np.cov((rest / by).T))
        l, V = values[::-1][:k], vectors[:, ::-1][:, :k]
        e, S, share = (own.mean(0) - rest.mean(0)) / by, np.cov((own / by).T), 1 / len(own) + 1 / len(rest)
        t2 = ((V.T @ e) ** 2 / l).sum() - k * share
        spe = ((e - V @ (V.T @ e)) ** 2).sum() - (values.sum() - l.sum()) * share
        found.append([t2, spe, 1 - np.trace(V.T @ S @ V) / np.linalg.eigvalsh(S)[-k:].sum()])
    return np.array(found)


@pytest.mark.parametrize("scale", [False, True, np.arange(1.0, D + 1)])
def test_drift_is_that_of_the_rows(scale: Any) -> None:
    found = drift(bp.PCA(K, scale=scale).fit(X, groups=DAYS))
    numbers = np.stack([found.t2, found.spe, found.lost], axis=1)
    np.testing.assert_allclose(numbers, expected(X, K, scale), rtol=1e-8, atol=1e-10)
    centre = np.median(numbers, axis=0)
    z = (numbers - centre) / (1.4826 * np.median(np.abs(numbers - centre), axis=0))
    np.testing.assert_allclose(found.z, z, atol=1e-6)
    assert found.n_rows.tolist() == SIZES.tolist()
    assert repr(found).splitlines()[1].split()[:2] == ["day0", f"{SIZES[0]}"]


def test_axes_that_span_the_rows_leave_nothing_that_differs() -> None:
    for rows in (X, np.c_[X, X[:, 0] - X[:, 1]] * 1e6):
        found = drift(bp.PCA(D).fit(rows, groups=DAYS))
        assert not np.any([found.spe, found.lost])
        assert not found.z[:, 1:].any()
        assert found.z[:, 0].any()


def test_drift_of_residuals_is_that_without_the_covariates() -> None:
    found = drift(bp.PCA(K).fit(X, groups=DAYS, covariates=Z))
    for i, day in enumerate(found.groups):
        rest = day != DAYS
        coef = np.linalg.lstsq(Z[rest] - Z[rest].mean(), X[rest] - X[rest].mean(0), rcond=None)[0]
        truth = expected(X - Z @ coef, K, False)[i]
        np.testing.assert_allclose([found.t2[i], found.spe[i], found.lost[i]], truth, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        (0, lambda rows: rows + 15.0 * np.eye(D)[0]),  # along an axis
        (1, lambda rows: rows + 3.0 * np.eye(D)[3]),  # off the axes
        (2, lambda rows: (rows - rows.mean(0)) @ np.roll(np.eye(D), 2, axis=1) + rows.mean(0)),  # other axes
    ],
)
def test_a_group_that_was_changed_is_the_unusual_one(what: int, change: Callable[[Array], Array]) -> None:
    changed = X.copy()
    changed[DAYS == "day4"] = change(changed[DAYS == "day4"])
    z = drift(bp.PCA(K).fit(changed, groups=DAYS)).z
    assert z[:, what].argmax() == 4
    assert z[4, what] > 6 > np.abs(np.delete(z[:, what], 4)).max()


def test_small_groups_are_named_and_groups_that_are_alike_have_no_distance() -> None:
    model = bp.PCA(K).fit(np.concatenate([X[:15]] * 4), groups=np.repeat(range(4), 15))
    with pytest.warns(bp.errors.ApproximationWarning, match="4 of 4 groups have fewer than 10 rows for each of 2 comp"):
        found = drift(model)
    assert np.abs(found.lost).max() < 1e-12


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: drift(bp.PCA(K).fit(X)), ValueError, "the model has no groups"),
        (lambda: drift(bp.ApproximatePCA(K).fit(X)), TypeError, "a PCA was expected"),
        (lambda: drift(bp.PCA(K).fit(X, groups=DAYS < "day5")), ValueError, "has 2 groups; at least 3 were expected"),
        (lambda: drift(bp.PCA(K).fit(X, groups=["alone", *DAYS[1:]])), ValueError, "group 'alone' with 1 sample"),
        (lambda: drift(bp.PCA(K, center=False).fit(X, groups=DAYS)), ValueError, "a drift is known for rows about"),
    ],
)
def test_what_has_no_drift_is_said(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_weights_are_repetitions() -> None:
    weights = RNG.integers(1, 4, len(X))
    many = np.repeat(np.arange(len(X)), weights)
    weighted = drift(bp.PCA(K).fit(X, groups=DAYS, sample_weight=weights))
    repeated = drift(bp.PCA(K).fit(X[many], groups=DAYS[many]))
    for name in ("n_rows", "t2", "spe", "lost"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-8, atol=1e-11)
