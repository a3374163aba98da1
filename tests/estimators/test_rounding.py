"""Every decision about rank, noise and kernels that hardly differ, with products in float64 and in float32.

Rows of rank 3 that float32 holds exactly: what is found beyond is rounding of the products.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import bigpca as bp
from bigpca import kernels
from bigpca.errors import ApproximationWarning
from bigpca.passes.reading import blocks

N, D = 300, 40
RNG = np.random.default_rng(0)
FACTORS = RNG.integers(-200, 201, (N, 3))
X = (FACTORS @ RNG.integers(-2000, 2001, (3, D)) / 2.0**20).astype("f4")
CLASSES = RNG.integers(0, 8, N)
NUMBERS = np.column_stack([FACTORS / 200, FACTORS[:, 0] * FACTORS[:, 1] / 4e4, RNG.standard_normal((N, 4))])
SQUARE = kernels.Polynomial(2, gamma=1.0, coef0=0.0)  # of 3 columns: 6
Roweis = bp.RoweisDiscriminantAnalysis
INDEFINITE = kernels.Cosine() - 0.5
KernelRoweis = partial(bp.KernelRoweisDiscriminantAnalysis, kernel="linear")
Dual = partial(bp.KernelSupervisedPCA, solver="pairs")
Extended = partial(bp.NystromKernelPCA, components_from="landmarks", sampling="uniform")


def in_precision(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Multiply float32 rows in that dtype."""
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0 if dtype == "f4" else np.inf)


@dataclass
class Grown:
    """Fits a model to the two halves of the rows: one after the other, or each by a model of its own."""

    model: Any
    merged: bool = False

    def fit(self, rows: Any, labels: Any) -> Any:
        halves = [rows[:150], rows[150:]]
        if self.merged:
            return bp.merge(*(clone(self.model).partial_fit(half) for half in halves))
        return self.model.partial_fit(halves[0]).partial_fit(halves[1])


def axes_that_count(model: Any, rows: Any) -> int:
    """Return the number of axes whose variances and scores are not 0."""
    values = model.explained_variance_ if isinstance(model, bp.PCA) else model.eigenvalues_
    return int(np.count_nonzero((values > 0) & (model.transform(rows).std(axis=0) > 0)))


RANKS: dict[str, tuple[Callable[[], Any], Any, int]] = {
    "covariance": (lambda: bp.PCA(None, solver="covariance"), None, 3),
    "covariance, whitened": (lambda: bp.PCA(None, solver="covariance", whiten=True), None, 3),
    "covariance, correlation": (lambda: bp.PCA(None, solver="covariance", scale=True), None, 3),
    "partial_fit": (lambda: Grown(bp.PCA(None)), None, 3),
    "partial_fit, Marchenko-Pastur": (lambda: Grown(bp.PCA(bp.rules.MarchenkoPastur())), None, 3),
    "merge": (lambda: Grown(bp.PCA(None), merged=True), None, 3),
    "merge, Gavish-Donoho": (lambda: Grown(bp.PCA(bp.rules.GavishDonoho()), merged=True), None, 3),
    "Marchenko-Pastur": (lambda: bp.PCA(bp.rules.MarchenkoPastur()), None, 3),
    "Gavish-Donoho": (lambda: bp.PCA(bp.rules.GavishDonoho()), None, 3),
    "a small threshold": (lambda: bp.PCA(bp.rules.RelativeThreshold(1e-9)), None, 3),
    "dot, Marchenko-Pastur": (lambda: bp.PCA(bp.rules.MarchenkoPastur(), solver="dot"), None, 3),
    "supervised, classes": (lambda: bp.SupervisedPCA(None), CLASSES, 3),
    "supervised, numbers": (lambda: bp.SupervisedPCA(None), NUMBERS, 3),
    "supervised projection": (lambda: bp.SupervisedRandomProjection(None), NUMBERS, 3),
    "Roweis (0, 0)": (lambda: Roweis(None, r1=0, r2=0), CLASSES, 3),
    "Roweis (0.5, 0.5)": (lambda: Roweis(None, r1=0.5, r2=0.5), CLASSES, 3),
    "Roweis (0.5, 0.999)": (lambda: Roweis(None, r1=0.5, r2=0.999), CLASSES, 3),
    "Roweis (1, 0.5)": (lambda: Roweis(None, r1=1, r2=0.5), CLASSES, 3),
    "Roweis (0.5, 1), pinv": (lambda: Roweis(None, r1=0.5, r2=1, regularization="pinv"), CLASSES, 3),
    "Roweis (1, 1), pinv": (lambda: Roweis(None, r1=1, r2=1, regularization="pinv"), CLASSES, 3),
    "Roweis (1, 1), ridge": (lambda: Roweis(None, r1=1, r2=1, regularization=1e-3), CLASSES, 3),
    "Fisher, pinv": (lambda: bp.FisherDiscriminantAnalysis(None, regularization="pinv"), CLASSES, 3),
    "kernel, dense": (lambda: bp.KernelPCA(None, kernel="linear", solver="dense"), None, 3),
    "kernel, dense, cosine": (lambda: bp.KernelPCA(None, kernel="cosine", solver="dense"), None, 3),
    "kernel, dense, polynomial": (lambda: bp.KernelPCA(None, kernel=SQUARE, solver="dense"), None, 6),
    "kernel, features": (lambda: bp.KernelPCA(None, kernel=SQUARE, solver="features"), None, 6),
    "kernel, features of few columns": (lambda: bp.KernelPCA(None, kernel=SQUARE, solver="features"), None, 6),
    "kernel, krylov": (lambda: bp.KernelPCA(10, kernel="linear", solver="krylov"), None, 3),
    "kernel, nystrom": (lambda: bp.ApproximateKernelPCA(None, kernel="linear"), None, 3),
    "kernel, ritz": (lambda: bp.ApproximateKernelPCA(None, kernel="linear", approximation="ritz"), None, 3),
    "kernel, tutorial": (lambda: bp.ApproximateKernelPCA(None, kernel="linear", approximation="tutorial"), None, 3),
    "precomputed, dense": (lambda: bp.KernelPCA(None, kernel="precomputed", solver="dense"), None, 3),
    "precomputed, krylov": (lambda: bp.KernelPCA(10, kernel="precomputed", solver="krylov"), None, 3),
    "precomputed, nystrom": (lambda: bp.ApproximateKernelPCA(None, kernel="precomputed"), None, 3),
    "precomputed, tutorial": (
        lambda: bp.ApproximateKernelPCA(None, kernel="precomputed", approximation="tutorial"),
        None,
        3,
    ),
    "precomputed, landmarks": (lambda: bp.NystromKernelPCA(None, kernel="precomputed", n_landmarks=60), None, 3),
    "precomputed, landmarks alone": (lambda: Extended(None, kernel="precomputed", n_landmarks=60), None, 3),
    "precomputed, dual": (lambda: Dual(None, kernel="precomputed"), NUMBERS, 3),
    "precomputed, direct": (lambda: bp.KernelSupervisedPCA(None, kernel="precomputed"), NUMBERS, 3),
    "precomputed, Roweis": (lambda: KernelRoweis(None, kernel="precomputed", r1=0.5, r2=0.5), CLASSES, 3),
    "landmarks alone": (lambda: Extended(None, kernel="linear", n_landmarks=60), None, 3),
    "landmarks": (lambda: bp.NystromKernelPCA(None, kernel="cosine", n_landmarks=60), None, 3),
    "landmarks, polynomial": (lambda: bp.NystromKernelPCA(None, kernel=SQUARE, n_landmarks=60), None, 6),
    "dual, classes": (lambda: Dual(None, kernel="linear"), CLASSES, 3),
    "dual, numbers": (lambda: Dual(None, kernel="linear"), NUMBERS, 3),
    "dual, cosine": (lambda: Dual(None, kernel="cosine"), NUMBERS, 3),
    "direct": (lambda: bp.KernelSupervisedPCA(None, kernel="linear"), NUMBERS, 3),
    "kernel Roweis (0.5, 0.5)": (lambda: KernelRoweis(None, r1=0.5, r2=0.5), CLASSES, 3),
    "kernel Roweis (1, 0.5)": (lambda: KernelRoweis(None, r1=1, r2=0.5), CLASSES, 3),
}


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.filterwarnings("ignore:10 components were requested")
@pytest.mark.parametrize("name", RANKS)
def test_axes_that_count_are_as_many_as_the_rows_have(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_precision(monkeypatch, dtype)
    make, labels, rank = RANKS[name]
    rows = X[:, :12] if "few columns" in name else X
    if "precomputed" in name:
        rows = (X.astype("f8") @ X.T).astype(dtype)
    assert axes_that_count(make().fit(rows, labels), rows) == rank


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_scatter_within_classes_that_is_rounding_is_singular(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_precision(monkeypatch, dtype)
    with pytest.raises(ValueError, match=f"singular: {D - 3} of its {D} eigenvalues are 0 to rounding"):
        bp.FisherDiscriminantAnalysis().fit(X, CLASSES)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_columns_in_small_units_are_no_rounding(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_precision(monkeypatch, dtype)
    rows = np.random.default_rng(1).standard_normal((N, 6)) * 10.0 ** -np.arange(6)
    for r2 in (0.5, 1.0):
        assert Roweis(None, r1=0.5, r2=r2).fit(rows.astype("f4"), CLASSES).rank_ == 6


ALIKE: dict[str, tuple[Callable[[], Any], Any]] = {
    "dense": (lambda: bp.KernelPCA(2, kernel="cosine", solver="dense"), None),
    "krylov": (lambda: bp.KernelPCA(2, kernel="cosine", solver="krylov", tol=0.1), None),
    "sketch": (lambda: bp.ApproximateKernelPCA(2, kernel="cosine"), None),
    "landmarks": (lambda: bp.NystromKernelPCA(2, kernel="cosine", n_landmarks=20), None),
    "landmarks alone": (lambda: Extended(2, kernel="cosine", n_landmarks=20), None),
    "ritz": (lambda: bp.ApproximateKernelPCA(2, kernel="cosine", approximation="ritz"), None),
    "tutorial": (lambda: bp.ApproximateKernelPCA(2, kernel="cosine", approximation="tutorial"), None),
    "features": (lambda: bp.KernelPCA(2, kernel="cosine", solver="features"), None),
    "indefinite, dense": (lambda: bp.KernelPCA(2, kernel=INDEFINITE, solver="dense"), None),
    "indefinite, krylov": (lambda: bp.KernelPCA(2, kernel=INDEFINITE, solver="krylov", tol=0.1), None),
    "indefinite, sketch": (lambda: bp.ApproximateKernelPCA(2, kernel=INDEFINITE), None),
    "dual": (lambda: Dual(2, kernel="cosine"), NUMBERS),
    "direct": (lambda: bp.KernelSupervisedPCA(None, kernel="cosine"), NUMBERS),
    "Roweis": (lambda: bp.KernelRoweisDiscriminantAnalysis(None, kernel="cosine"), CLASSES),
}


# An iteration goes on in float64, a read by landmarks is made in it where float32 would drop directions, and K of the
# landmarks alone is always so; rows as features lose half the digits.
IN_FLOAT64 = ("krylov", "indefinite, krylov", "landmarks", "landmarks alone", "features")


@pytest.mark.filterwarnings("ignore:the iteration stopped")  # for the same reason, without the remedy
@pytest.mark.parametrize(
    ("name", "dtype", "mean"),
    [*((name, "f8", 1e7) for name in ALIKE), *((name, "f4", 300.0) for name in ALIKE if name not in IN_FLOAT64)],
)
def test_kernels_that_differ_by_little_more_than_rounding_are_said(
    name: str, dtype: str, mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_precision(monkeypatch, dtype)
    make, labels = ALIKE[name]
    rows = X[:80].astype(dtype)
    labels = None if labels is None else labels[:80]
    make().fit(rows, labels)
    rows[:, 0] += mean
    with pytest.warns(ApproximationWarning, match="the values of the kernel hardly differ: the "):
        make().fit(rows, labels)


@pytest.mark.parametrize("make", [partial(Roweis, None, r1=0.5, r2=0.5), partial(bp.PCA, None)])
def test_the_precision_of_products_is_saved_with_the_statistics(
    make: partial[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_precision(monkeypatch, "f4")
    make().fit(X, CLASSES).save(tmp_path / "model")
    in_precision(monkeypatch, "f8")
    grown = bp.load(tmp_path / "model").partial_fit(X, *([CLASSES] if make.func is Roweis else []))
    assert axes_that_count(grown, X) == 3


UNSCALED: dict[str, tuple[Callable[[], Any], str]] = {
    "PCA": (lambda: bp.PCA(2), "explained_variance_"),
    "kernel": (lambda: bp.KernelPCA(2, kernel="rbf"), "eigenvalues_"),
    "cosine": (lambda: bp.KernelPCA(2, kernel="cosine"), "eigenvalues_"),
    "landmarks": (lambda: bp.NystromKernelPCA(2, kernel="rbf"), "eigenvalues_"),
    "Ridge": (lambda: bp.Ridge(1e-3), "coef_"),
    "scored": (lambda: bp.ScoredPCA(2, n_features_to_select=3), "scores_"),
}
SCALED: dict[str, tuple[Callable[[], Any], str]] = {
    "PCA": (lambda: bp.PCA(2, scale=True), "explained_variance_"),
    "sketch": (lambda: bp.ApproximatePCA(2, scale=True), "explained_variance_"),
    "PLS": (lambda: bp.PLSSVD(1), "singular_values_"),
    "regression": (lambda: bp.PLSRegression(1), "coef_"),
    "CCA": (lambda: bp.CCA(1), "correlations_"),
}


def beside(constant: float) -> tuple[Any, Any]:
    rows = np.random.default_rng(0).standard_normal((200, 4))
    rows[:, 2] = constant
    return rows, rows[:, [0]] + 0.1 * rows[:, [1]] ** 2


@pytest.mark.parametrize("constant", [1e-200, -1e-160, 1e-320])
@pytest.mark.parametrize("name", UNSCALED)
def test_a_column_whose_squares_are_lost_counts_as_constant(name: str, constant: float) -> None:
    make, attribute = UNSCALED[name]
    found, expected = (getattr(make().fit(*beside(value)), attribute) for value in (constant, 0.0))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("constant", [1e-200, -1e-160])
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.filterwarnings("ignore:the covariance of X is singular")
def test_a_column_to_be_scaled_whose_squares_are_lost_is_named(name: str, constant: float) -> None:
    """Whether it is constant cannot be told from squares that are 0: multiplied as advised, it can."""
    make, attribute = SCALED[name]
    with pytest.raises(ValueError, match=r"column 2 \(mean -?1e-\d+\), which may be .* Multiply that column by a"):
        make().fit(*beside(constant))
    found, expected = (getattr(make().fit(*beside(value)), attribute) for value in (constant * 1e150, 0.0))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


# Stored values are the data: what float16 or float32 rows give is what the same numbers give in float64, whatever one
# column's digits are worth; and NumPy agrees.

COARSE_CLASSES = np.arange(600) % 3
COARSE: dict[str, tuple[Callable[[], Any], str]] = {
    "PCA": (lambda: bp.PCA(), "explained_variance_"),
    "leading": (lambda: bp.PCA(1), "explained_variance_"),
    "dot": (lambda: bp.PCA(solver="dot"), "explained_variance_"),
    "krylov": (lambda: bp.PCA(2, solver="krylov", tol=1e-9), "explained_variance_"),
    "correlation": (lambda: bp.PCA(scale=True), "explained_variance_"),
    "sketch": (lambda: bp.ApproximatePCA(2), "explained_variance_"),
    "factors": (lambda: bp.FactorAnalysis(1), "noise_variance_"),
    "Fisher": (lambda: bp.FisherDiscriminantAnalysis(2), "eigenvalues_"),
    "Fisher, robust": (lambda: bp.FisherDiscriminantAnalysis(2, robust=0.9), "eigenvalues_"),
    "Fisher, ridge": (lambda: bp.FisherDiscriminantAnalysis(2, regularization=1.0), "eigenvalues_"),
    "Roweis (0, 0.5)": (lambda: Roweis(2, r1=0, r2=0.5), "eigenvalues_"),
    "supervised": (lambda: bp.SupervisedPCA(2), "eigenvalues_"),
}


def coarse_rows(dtype: str) -> Any:
    """Rows of three classes. One column is far from 0, where the unit of its last digit is 2 or 64."""
    rows = np.random.default_rng(3).standard_normal((len(COARSE_CLASSES), 5)) * [2, 1.2, 1.1, 1, 0.9]
    rows[:, 1:3] += 2 * np.eye(3)[COARSE_CLASSES][:, :2]
    rows[:, 0] = {"f2": 4000 + rows[:, 0], "f4": 1e9 + 30 * rows[:, 0]}[dtype]
    return rows.astype(dtype)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("name", COARSE)
def test_short_floats_give_what_the_same_numbers_give_in_float64(name: str, dtype: str) -> None:
    make, attribute = COARSE[name]
    rows = coarse_rows(dtype)
    found = [getattr(make().fit(one, COARSE_CLASSES), attribute) for one in (rows, rows.astype("f8"))]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    if name in ("PCA", "leading", "dot"):
        exact = np.linalg.eigvalsh(np.cov(rows.T, dtype="f8"))[::-1]
        np.testing.assert_allclose(found[0], exact[: len(found[0])], rtol=1e-5)


def test_an_axis_that_is_rounding_of_storage_is_not_divided_by_and_its_neighbours_are() -> None:
    """A column of 1e6 + 0.02 z in float32 has steps of 1/16: its variance stays, and whitening leaves it at 0."""
    rows = np.random.default_rng(4).standard_normal((900, 4)) * [3, 0.02, 1e-2, 1e-3]
    rows[:, 1] += 1e6
    rows = rows.astype("f4")
    model = bp.PCA(whiten=True).fit(rows)
    spread = np.asarray(model.transform(rows)).std(axis=0, ddof=1)
    stored = int(np.argmax(np.abs(model.components_[:, 1])))
    assert (model.explained_variance_ > 0).all()
    np.testing.assert_allclose(np.delete(spread, stored), 1, rtol=1e-3)
    assert spread[stored] == 0
    assert bp.PCA(2).fit(rows).noise_variance_ > 0
