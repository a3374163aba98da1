"""Iterations and sketches of sparse rows, centred by implication, against plain NumPy on the dense float64 rows."""

from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array
from sklearn.base import clone

import bigpca as bp
from bigpca.operators.covariance import leading_value
from tests.builders import assert_covered
from tests.passes.kit import interrupt_after
from tests.peaks import traced_peak

Array = NDArray[Any]
N, D, K = 900, 60, 4
ROWS = np.random.default_rng(2)


def sparse_rows(case: str) -> csr_array:
    """Counts of few columns, with axes of very different variance; then what might break implicit centring."""
    scores = np.random.default_rng(1).poisson(1.0, (N, K)) * np.array([40.0, 20, 8, 3])
    loadings = random_array((K, D), density=0.3, rng=np.random.default_rng(2)).toarray()
    X = np.round(scores @ loadings) + random_array((N, D), density=0.05, rng=np.random.default_rng(3)).toarray()
    X[np.random.default_rng(4).random((N, D)) < 0.5] = 0
    if case == "a dominating mean":
        X[:, 7] = 2e4 + 9 * X[:, 0]
    if case == "a column of a small variance":
        X[:, 3] = 1e3 + 0.3 * np.random.default_rng(5).random(N)
    if case == "a dense column":
        X[:, 3] = 1e3 + np.random.default_rng(5).standard_normal(N)
    if case == "constant columns":
        X[:, 9], X[:, 10] = 1.0, 0.1
    if case == "empty rows":
        X[:400] = X[-1] = 0
    if case == "rank below k":
        X = X[:, :1] * np.arange(D) % 5
        X[:, 2:] = 0
    if case == "more columns than rows":
        X = np.hstack([X[:50]] * 2)
    return csr_array(X)


CASES = [
    "plain", "a dominating mean", "a dense column", "a column of a small variance", "constant columns", "empty rows",
    "rank below k", "more columns than rows",
]  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "": {}, "scaled": {"scale": True}, "not centred": {"center": False},
    "scaled, not centred": {"scale": True, "center": False},
}  # fmt: skip


def weights_of(rows: csr_array) -> Array:
    """Return 0, 1, 2 or 3 for each row."""
    return np.arange(rows.shape[0]) % 4.0


def truth_of(rows: csr_array, weights: Array | None = None, *, scale: bool = False, center: bool = True) -> Array:
    """Return the covariance, or correlation, matrix of the rows."""
    X = rows.toarray().astype("f8")
    w = np.ones(len(X)) if weights is None else weights
    mean = w @ X / w.sum()
    about = X - mean if center else X
    if scale:
        deviations = np.sqrt(w @ (X - mean) ** 2 / w.sum())
        about = about / np.where(deviations > 1e-12, deviations, 1.0)
    return np.asarray((about * w[:, None]).T @ about / (w.sum() - 1))


def assert_certified(model: Any, A: Array, tolerance: float) -> None:
    """Values and variance are those of A to ``tolerance``; the bounds hold; residuals are those of the components."""
    k = len(model.explained_variance_)
    values = np.linalg.eigvalsh(A)[::-1][:k]
    assert_covered(model.eigenvalue_bounds_, values, 1e-12 * values)
    np.testing.assert_allclose(model.explained_variance_, values, rtol=tolerance, atol=tolerance * values[0] * 1e-3)
    np.testing.assert_allclose(model.total_variance_, np.trace(A), rtol=1e-6)
    V = model.components_
    measured = np.linalg.norm(A @ V.T - V.T * model.explained_variance_, axis=0)
    assert (measured <= model.residuals_ + 1e-6 * values[0]).all()
    if model.center or model.scale:
        assert 0 < model.centring_error_ < 1e-6
    low, high = model.captured_variance_bounds_
    assert low - 1e-9 <= np.trace(V @ A @ V.T) / np.trace(A) <= high + 1e-9


@pytest.mark.parametrize("options", OPTIONS, ids=lambda name: name or "centred")
@pytest.mark.parametrize("case", CASES)
def test_an_iteration_meets_its_tolerance_and_its_bounds_hold(case: str, options: str) -> None:
    rows = sparse_rows(case)
    k = 1 if case == "rank below k" else 3
    model = bp.PCA(k, solver="krylov", tol=1e-6, **OPTIONS[options]).fit(rows)
    assert_certified(model, truth_of(rows, **OPTIONS[options]), 1e-5)


@pytest.mark.parametrize("options", ["", "scaled"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")  # of "more columns": its bounds are wide
def test_bounds_allow_for_products_in_float32(case: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigpca.passes.reading.blocks.PRECISE_FLOPS", 0)
    rows = sparse_rows(case).astype("f4")
    model = bp.PCA(1 if case == "rank below k" else 3, solver="krylov", tol=1e-3, **OPTIONS[options])
    assert_certified(
        model.fit(rows, sample_weight=weights_of(rows)), truth_of(rows, weights_of(rows), **OPTIONS[options]), 1e-3
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("core", "options"),
    [*(("nystrom", name) for name in ("", "scaled", "scaled, not centred")), ("ritz", ""), ("tutorial", "scaled")],
)
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
def test_the_bounds_of_a_sketch_hold(case: str, core: str, options: str) -> None:
    rows = sparse_rows(case)
    A = truth_of(rows, **OPTIONS[options])
    k, wide = 1 if case == "rank below k" else 3, bp.sketches.Gaussian(rows.shape[1])
    for sketch in (bp.sketches.SparseSign(20), wide):  # as wide as the data, bounds are of rounding alone
        assert_bounded(bp.ApproximatePCA(k, sketch=sketch, approximation=core, **OPTIONS[options]).fit(rows), rows, A)


def assert_bounded(model: Any, rows: csr_array, A: Array) -> None:
    values = np.linalg.eigvalsh(A)[::-1][: len(model.explained_variance_)]
    assert_covered(model.eigenvalue_bounds_, values, 1e-12 * values)
    mean = rows.toarray().mean(axis=0) if model.center else np.zeros(rows.shape[1])
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fit", [bp.PCA(2, solver="krylov"), bp.ApproximatePCA(2, sketch=bp.sketches.SparseSign(20))])
def test_a_column_that_varies_little_about_its_mean_is_rejected_unless_no_mean_is_subtracted(fit: Any) -> None:
    rows = sparse_rows("plain").toarray()
    rows[:, 7] = 1e6 + 0.01 * rows[:, 0]
    with pytest.raises(
        ValueError, match=r"column 7 of the sparse rows varies little compared with its mean. Because its zeros are not"
    ):
        fit.fit(csr_array(rows))
    model = clone(fit).set_params(center=False).fit(csr_array(rows))
    assert not hasattr(model, "centring_error_")
    np.testing.assert_allclose(model.explained_variance_[0], N / (N - 1) * 1e12, rtol=1e-6)


def test_sparse_rows_that_vary_little_about_their_mean_have_no_dot_matrix_unless_none_is_subtracted() -> None:
    rows = sparse_rows("plain").toarray()[:100]
    rows[:, 7] = 1e7 + 0.01 * rows[:, 0]
    with pytest.raises(ValueError, match=r"the sparse rows vary little compared with their mean. .* over 1e-06"):
        bp.PCA(2, solver="dot").fit(csr_array(rows))
    model = bp.PCA(2, solver="dot", center=False).fit(csr_array(rows))
    np.testing.assert_allclose(model.explained_variance_[0], 100 / 99 * 1e14, rtol=1e-6)


def test_later_blocks_of_small_eigenvalues_do_not_lower_the_bound_of_the_first() -> None:
    """Of a block W with small products the bound is small, and so the largest of all blocks decides."""
    rng = np.random.default_rng(0)
    values, V = np.arange(1, 31.0) ** -2, np.linalg.qr(rng.standard_normal((30, 30)))[0]
    A = (V * values) @ V.T
    for W in (rng.standard_normal((30, 5)), V[:, :3], V[:, 10:14]):
        found = leading_value(W, A @ W)
        assert found <= 1 + 1e-12
        assert found >= np.linalg.eigvalsh(W.T @ A @ A @ W)[-1] / np.linalg.eigvalsh(W.T @ A @ W)[-1] * (1 - 1e-12)
    rows = sparse_rows("a dense column").astype("f4")
    model = bp.PCA(3, solver="krylov").fit(rows)
    assert model.n_passes_ < 4


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda name: name or "centred")
@pytest.mark.parametrize("case", CASES)
def test_a_dot_matrix_of_sparse_rows_has_the_eigenvalues_of_dense_ones(case: str, options: str, weighted: bool) -> None:
    rows = sparse_rows(case)[:300]
    weights = weights_of(rows) if weighted else None
    A = truth_of(rows, weights, **OPTIONS[options])
    model = bp.PCA(3, solver="dot", **OPTIONS[options]).fit(rows, sample_weight=weights)
    V, values = model.components_, np.linalg.eigvalsh(A)[::-1][:3]
    rounding = 1e-14 * np.trace(truth_of(rows, weights, **OPTIONS[options] | {"center": False}))
    np.testing.assert_allclose(model.explained_variance_, values, rtol=1e-10, atol=rounding)
    np.testing.assert_allclose(model.total_variance_, np.trace(A), rtol=1e-10, atol=rounding)
    if model.center:
        assert abs(model.total_variance_ - np.trace(A)) <= (model.centring_error_ + 1e-12) * np.trace(A)
        assert model.centring_error_ < 1e-6
    np.testing.assert_allclose(V @ V.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(V @ A, values[:, None] * V, rtol=0, atol=1e-7 * values[0])
    if model.center:
        w = np.ones(rows.shape[0]) if weights is None else weights
        np.testing.assert_allclose(model.mean_, rows.T @ w / w.sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [1500, 20000])
def test_centring_a_dot_matrix_of_sparse_rows_loses_no_more_than_its_bound(d: int) -> None:
    """Long sums of equal products round one way."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((40, d)) < 0.3, 57.3, rng.standard_normal((40, d)) + 57.3)
    exact = X.astype(np.longdouble)
    truth = float(((exact - exact.mean(axis=0)) ** 2).sum() / 39)
    model = bp.PCA(1, solver="dot").fit(csr_array(X))
    assert abs(model.total_variance_ / truth - 1) <= model.centring_error_ < 1e-6


def lazily(rows: csr_array, chunk: int) -> Any:
    return da.from_array(rows.toarray(), chunks=(chunk, -1)).map_blocks(csr_array, meta=csr_array((0, 0)))


def test_few_sparse_rows_of_many_columns_have_a_dot_matrix_by_default(tmp_path: Path) -> None:
    rows = csr_array(random_array((60, 20_000), density=0.01, rng=np.random.default_rng(0)))
    plan = bp.PCA(3).plan(rows)
    assert (plan.solver, plan.passes) == ("dot", 2.0)
    assert bp.PCA(3).plan(rows[:, :400]).solver != "dot"
    model = bp.PCA(3).fit(rows)
    assert traced_peak(lambda: bp.PCA(3).fit(rows)) < plan.process_bytes < 100 * 20_000 * 8
    assert_same = partial(np.testing.assert_allclose, model.explained_variance_, rtol=1e-12)
    assert_same(bp.PCA(3, solver="dot").fit(rows.toarray()).explained_variance_)
    for chunk in (7, 60):
        assert_same(bp.PCA(3).fit(lazily(rows, chunk)).explained_variance_)
    checkpoint = tmp_path / "checkpoint"
    with dask.config.set(scheduler="sync"):
        with pytest.raises(KeyboardInterrupt):
            bp.PCA(3).fit(lazily(rows, 7), checkpoint=checkpoint, progress=interrupt_after(2))
        resumed = bp.PCA(3).fit(lazily(rows, 7), checkpoint=checkpoint)
        whole = bp.PCA(3).fit(lazily(rows, 7))
    assert resumed.components_.tobytes() == whole.components_.tobytes()


@pytest.mark.parametrize("weights", [None, np.arange(40) % 3.0])
def test_a_value_that_is_not_finite_is_named_unless_its_row_has_no_weight(weights: Array | None) -> None:
    rows = csr_array(random_array((40, 500), density=0.1, rng=np.random.default_rng(0)))
    whole = bp.PCA(2, solver="dot").fit(rows, sample_weight=weights)
    rows.data[rows.indptr[30]] = np.nan
    if weights is None:
        with pytest.raises(bp.errors.NonFiniteError, match="row 30"):
            bp.PCA(2, solver="dot").fit(rows)
    else:
        found = bp.PCA(2, solver="dot").fit(rows, sample_weight=weights)
        np.testing.assert_allclose(found.explained_variance_, whole.explained_variance_, rtol=1e-12)
