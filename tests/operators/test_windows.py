"""The covariance of a series' windows is multiplied from the sums of one read, as their dense matrix is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import dask
import numpy as np
import pytest

import bigpca as bp
from bigpca.data import lagged
from bigpca.estimators.linear.windows_fit import WindowsFit
from bigpca.estimators.shared.opening import planned_fit
from bigpca.operators.windows import WindowOperator, window_bytes
from bigpca.passes.engine.events import Event
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold
from bigpca.passes.reading import layout
from bigpca.passes.rows import Rows
from tests.estimators.stores import stored
from tests.operators.counting import Reads
from tests.operators.test_covariance import assert_products, matrix
from tests.passes.kit import interrupt_after, rows_read
from tests.peaks import traced_peak

N, D = 203, 5
X = np.random.default_rng(0).standard_normal((N, D)).cumsum(axis=0) + 1e3
TRAJECTORIES = np.repeat(["a", "b", "c", "b", "d"], [50, 3, 100, 49, 1])
KRYLOV: dict[str, Any] = {"solver": "krylov", "tol": 1e-9}


def fit_of(rows: Any, **options: Any) -> WindowsFit:
    return cast("WindowsFit", planned_fit(bp.PCA(3, **KRYLOV, **options), Rows.of(rows), None))


@pytest.mark.parametrize("chunk", [7, 50, 123, N])
@pytest.mark.parametrize("lags", [range(2), range(4), range(0, 12, 3), range(60), (0, 1, 5, 6), (0, 4, 10)], ids=str)
@pytest.mark.parametrize("groups", [None, TRAJECTORIES], ids=["one", "trajectories"])
def test_products_are_those_of_the_dense_matrix(
    chunk: int, lags: Sequence[int], groups: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 512)
    rows = lagged(stored(tmp_path, X, (chunk, D)), lags, groups=groups)
    dense, fit = rows.compute(), fit_of(rows)
    state = fold(Run(), fit.sums, fit.series, fit.template).state
    V = np.random.default_rng(1).standard_normal((dense.shape[1], 40))
    for center in (True, False):
        for scale in (False, True):
            A, _, deviations = matrix(dense, center, scale)
            operator = WindowOperator(state, *fit.ends, fit.windows.lags, center=center, scale=scale, threads=1)
            assert_products(operator.multiply(V), A, V, 1e-12)
            assert operator.trace == pytest.approx(np.trace(A), rel=1e-12)
            if scale:
                np.testing.assert_allclose(operator.scale, deviations, rtol=1e-12)


@pytest.mark.parametrize(("d", "lags", "step"), [(20, 100, 1), (1, 3000, 1), (4, 100, 7)])
def test_the_memory_of_products_is_within_the_plan(d: int, lags: int, step: int) -> None:
    series = np.random.default_rng(0).standard_normal((lags * step + 2000, d))
    fit = fit_of(lagged(series, range(0, lags * step, step)))
    state, ends = fold(Run(), fit.sums, fit.series, fit.template).state, 2 * step
    V = np.zeros((lags * d, 40))
    peak = traced_peak(lambda: WindowOperator(state, *fit.ends, fit.windows.lags, threads=1).multiply(V))
    assert peak - V.nbytes <= window_bytes(lags * d, d, ends) <= 4 * peak


def test_a_series_of_constant_columns_has_no_variance(tmp_path: Path) -> None:
    model = bp.PCA(2, **KRYLOV).fit(lagged(stored(tmp_path, np.full((N, D), 0.1), (50, D)), range(9)))
    assert model.explained_variance_.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("how", [{}, {"scale": True}, {"center": False}], ids=str)
def test_the_fit_is_that_of_all_windows_in_one_read_with_its_certificate(how: dict[str, Any], tmp_path: Path) -> None:
    rows, watched = lagged(stored(tmp_path, X - 1e3, (50, D)), range(30)), Reads()
    with pytest.MonkeyPatch.context() as patch:
        watched.watch(patch)
        model = bp.PCA(3, **KRYLOV, **how).fit(rows)
    assert model.n_passes_ == model.plan_.passes == 1
    assert watched.per_chunk(X.shape, (50, D)).ravel().tolist() == [1, 1, 1, 1, 1]
    exact = bp.PCA(3, solver="covariance", **how).fit(rows.compute())
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.components_, exact.components_, atol=1e-6)
    assert model.total_variance_ == pytest.approx(exact.total_variance_, rel=1e-12)
    lower, upper = model.eigenvalue_bounds_.T
    assert model.converged_
    assert (lower <= exact.explained_variance_).all()
    assert (exact.explained_variance_ <= upper).all()
    assert (upper <= (1 + 1e-6) * lower).all()


def test_auto_sums_lags_where_the_matrix_does_not_fit(tmp_path: Path) -> None:
    series = np.random.default_rng(0).standard_normal((8000, 20), dtype="f4").cumsum(axis=0)
    rows = lagged(stored(tmp_path, series, (400, 20)), range(100))
    roomy = bp.PCA(2).plan(rows)
    assert roomy.solver == "covariance"
    idle, asked = roomy.resources.baseline_bytes, 0.75 * roomy.process_bytes
    model = bp.PCA(2, memory_limit=int((idle + asked) / 0.75))
    plan = model.plan(rows)
    assert plan.solver == "krylov"
    assert "one read for the 100 20 x 20 blocks" in plan.reason
    assert "covariance does not fit" in plan.reason
    assert plan.passes < 1.3
    model.fit(rows)
    assert model.n_passes_ == pytest.approx(plan.passes, abs=0.005)
    values = np.linalg.eigvalsh(np.cov(rows.compute().T, dtype="f8"))[:-3:-1]
    np.testing.assert_allclose(model.explained_variance_, values, rtol=1e-3)


def test_a_stopped_fit_continues_and_no_number_of_threads_changes_a_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 512)
    rows, found = lagged(stored(tmp_path, X, (20, D)), range(12), groups=TRAJECTORIES), []
    with pytest.raises(KeyboardInterrupt):
        bp.PCA(3, **KRYLOV).fit(rows, checkpoint=tmp_path / "c", progress=interrupt_after(3))
    events: list[Event] = []
    found.append(bp.PCA(3, **KRYLOV).fit(rows, checkpoint=tmp_path / "c", progress=events.append))
    assert 0 < rows_read(events) < len(rows)
    for workers in (1, 4):
        with dask.config.set(scheduler="threads", num_workers=workers):
            found.append(bp.PCA(3, **KRYLOV).fit(rows))
    for name in ("components_", "explained_variance_", "mean_", "eigenvalue_bounds_"):
        assert len({getattr(model, name).tobytes() for model in found}) == 1


@pytest.mark.parametrize("case", ["weights", "omitted", "scaled before", "graph"])
def test_rows_whose_sums_do_not_make_the_matrix_are_read_for_each_product(case: str, tmp_path: Path) -> None:
    """A window has its own weight, missing rows or norm; sums over rows do not know them."""
    series = X - 1e3
    if case == "omitted":
        series[60, 2] = np.nan
    rows = lagged(stored(tmp_path, series, (50, D)), range(3))
    policies: dict[str, Any] = {"omitted": {"nan_policy": "omit"}, "scaled before": {"preprocess": bp.rows.L2()}}
    options = policies.get(case, {})
    weights = np.arange(1.0, len(rows) + 1) if case == "weights" else None
    rows = rows * 2 if case == "graph" else rows
    model = bp.PCA(2, **KRYLOV, **options)
    plan = model.plan(rows, sample_weight=weights)
    model.fit(rows, sample_weight=weights)
    assert "block Toeplitz" not in plan.reason
    assert 1 < model.n_passes_ <= plan.most_passes
    dense = rows.compute()
    dense = dense[np.isfinite(dense).all(axis=1)]
    dense = dense / np.linalg.norm(dense, axis=1, keepdims=True) if case == "scaled before" else dense
    values, V = np.linalg.eigh(np.cov(dense.T, fweights=None if weights is None else weights.astype(int)))
    np.testing.assert_allclose(model.explained_variance_, values[:-3:-1], rtol=1e-9)
    scores = (dense - model.mean_) @ V[:, :-3:-1]
    found = np.abs(model.transform(rows).compute())
    np.testing.assert_allclose(found[np.isfinite(found).all(axis=1)], np.abs(scores), atol=1e-5 * np.abs(scores).max())


@pytest.mark.parametrize("where", [0, -1, [0, 5, 7]], ids=str)
def test_bounds_count_the_rounding_of_large_rows_at_an_end(where: Any) -> None:
    series = np.random.default_rng(0).standard_normal((3000, 2))
    series[where] = 2e7
    rows = lagged(series, range(60))
    dense = rows.compute()
    A, _, _ = matrix(dense, True, True)
    with pytest.warns(bp.errors.ApproximationWarning, match="rounding of products"):
        model = bp.PCA(4, solver="krylov", scale=True, tol=1e-8).fit(rows)
    low, high = np.asarray(model.eigenvalue_bounds_).T
    eigenvalues = np.linalg.eigvalsh(A)[::-1][:4]
    assert np.all((low <= eigenvalues) & (eigenvalues <= high))


def test_rows_at_an_end_that_leave_only_rounding_are_rejected() -> None:
    series = np.random.default_rng(0).standard_normal((3000, 2))
    series[0] = 1e10
    with pytest.raises(ValueError, match="rows at an end of the series are so much larger"):
        bp.PCA(4, solver="krylov", scale=True).fit(lagged(series, range(60)))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("unit", [1e152, 1e200])
def test_squares_of_a_series_that_overflow_are_named_before_columns_are_scaled(unit: float, scale: bool) -> None:
    with pytest.raises(ValueError, match="squares of the values overflow float64"):
        bp.PCA(1, **KRYLOV, scale=scale).fit(lagged((X - 1e3) * unit, range(5)))
