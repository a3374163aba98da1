"""Discriminant analysis without a d x d matrix: the same answers where the space is whole, lower
bounds and the truth else.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

import bigpca as bp
from bigpca import FisherDiscriminantAnalysis, RoweisDiscriminantAnalysis
from bigpca.data.sources import open as open_array
from bigpca.passes.accumulators.moments import WithinFactor, WithinProduct
from bigpca.passes.rows import Rows
from tests.estimators.labelled import assert_same_axes, labelled_rows, within_scatter
from tests.estimators.stores import stored, unreadable
from tests.operators.counting import Reads
from tests.passes.kit import folded

Array = NDArray[Any]
N, D, C = 400, 30, 4
X, Y = labelled_rows(N, D, C, mean=5.0)
POINTS = [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5), (0.0, 0.9), (1.0, 0.5)]


def wide(n: int = 300, d: int = 800, dtype: Any = "f8") -> tuple[Array, Array]:
    """Rows of fewer directions than columns, in a spectrum that falls like i^-2."""
    rng = np.random.default_rng(3)
    weights, y = np.arange(1.0, d + 1) ** -1, rng.integers(0, C, n)
    rows = rng.standard_normal((n, d)) * weights + 2 * (rng.standard_normal((C, d)) * weights)[y]
    return rows.astype(dtype), y


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_product_is_that_of_the_scatter_and_rows_without_a_label_are_left_out(dtype: str) -> None:
    W, codes = np.random.default_rng(0).standard_normal((D, 5)), Y.astype(np.int32).copy()
    codes[::7] = -1
    used = codes >= 0
    means = np.array([X[codes == j].mean(axis=0) for j in range(C)])
    template = WithinProduct(D, 5, codes, WithinFactor(means, W))
    rows = Rows.of(open_array(X.astype(dtype)).rechunk((70, D)))
    found = folded(rows, template).state.product
    truth = within_scatter(X[used], codes[used]) @ W
    np.testing.assert_allclose(found, truth, rtol=0, atol=(1e-5 if dtype == "f4" else 1e-12) * np.abs(truth).max())


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("r1", "r2"), POINTS)
def test_it_ends_in_the_answer_of_the_whole_matrix(r1: float, r2: float, normalize: bool) -> None:
    options: dict[str, Any] = {"r1": r1, "r2": r2, "normalize": normalize}
    exact = RoweisDiscriminantAnalysis(3, solver="covariance", **options).fit(X, Y)
    model = RoweisDiscriminantAnalysis(3, solver="krylov", tol=1e-10, **options).fit(X, Y)
    assert model.converged_
    assert model.solver_ == "RoweisDiscriminantAnalysis (krylov)"
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=1e-9)
    assert_same_axes(model.components_, exact.components_, 1e-6)
    np.testing.assert_allclose(model.mean_, exact.mean_, rtol=1e-12)


def test_nearly_dependent_features_are_reported_as_by_the_whole_matrix() -> None:
    twins = np.column_stack([X, X[:, 0] + 1e-6 * np.random.default_rng(0).standard_normal(N)])
    with pytest.warns(bp.errors.ApproximationWarning, match=r"within classes are so nearly dependent .*solve_error_"):
        assert FisherDiscriminantAnalysis(solver="krylov").fit(twins, Y).solve_error_ > 1e-3
    assert FisherDiscriminantAnalysis(solver="krylov").fit(X, Y).solve_error_ < 1e-9


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_where_the_space_is_not_whole_eigenvalues_are_below_the_true_ones_and_near(dtype: str) -> None:
    rows, y = wide(dtype=dtype)
    options: dict[str, Any] = {"r1": 0.2, "r2": 0.3}
    exact = RoweisDiscriminantAnalysis(3, solver="covariance", **options).fit(rows.astype("f8"), y)
    model = RoweisDiscriminantAnalysis(3, solver="krylov", tol=1e-4, **options).fit(rows, y)
    assert (model.eigenvalues_ <= exact.eigenvalues_ * (1 + 1e-6)).all()
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=1e-3)


def test_reads_are_counted_planned_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, y = wide()
    lazy, reads = stored(tmp_path, rows, (50, 800)), Reads().watch(monkeypatch)
    model = RoweisDiscriminantAnalysis(3, r1=0.2, r2=0.3, solver="krylov").fit(lazy, y)
    assert (reads.per_chunk(rows.shape, (50, 800)) == model.n_passes_).all()
    assert "at most 20 (max_passes)" in str(model.plan_.reason)
    with pytest.warns(bp.errors.ApproximationWarning, match=r"changed by more than tol = 1e-06 in the last of 3 reads"):
        few = RoweisDiscriminantAnalysis(3, r1=0.2, r2=0.3, solver="krylov", tol=1e-6, max_passes=3).fit(lazy, y)
    assert (few.n_passes_, few.converged_) == (3, False)
    all_granted = clone(few).set_params(max_passes=None).fit(lazy, y)
    assert all_granted.converged_ is True
    assert 3 < all_granted.n_passes_ <= all_granted.plan_.most_passes <= 2 * rows.shape[1]


def test_auto_takes_it_where_the_matrix_does_not_fit() -> None:
    X = unreadable(100_000, 30_000, 100, np.float32)
    y = np.arange(100_000) % 10
    model = RoweisDiscriminantAnalysis(5, memory_limit="4 GiB")
    plan = model.plan(X, y)
    assert plan.fits
    assert plan.solver.endswith("(krylov)")
    assert not model.set_params(solver="covariance").plan(X, y).fits
    with pytest.raises(bp.errors.MemoryBudgetError):
        RoweisDiscriminantAnalysis(0.9, memory_limit="4 GiB").fit(X, y)  # a share needs the whole spectrum


def test_a_saved_model_maps_and_cannot_go_on(tmp_path: Path) -> None:
    model = FisherDiscriminantAnalysis(solver="krylov").fit(X, Y)
    model.save(tmp_path / "model")
    loaded = bp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
    assert (loaded.n_passes_, loaded.converged_) == (model.n_passes_, True)
    for one in (loaded, FisherDiscriminantAnalysis(solver="krylov")):
        with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as caught:
            one.partial_fit(X, Y)
        assert 'whole scatter, which solver="krylov" never computes' in str(caught.value.__cause__)
    with pytest.raises(ValueError, match=r"by the krylov solver\. Such fits keep only the diagonal"):
        loaded.set_params(solver="auto").partial_fit(X, Y)
    assert hasattr(RoweisDiscriminantAnalysis(r1=1, r2=0, solver="krylov"), "partial_fit")


def test_real_labels_need_no_scatter_within_classes() -> None:
    y = X[:, 2] + np.random.default_rng(0).standard_normal(N)
    exact = RoweisDiscriminantAnalysis(2, r1=0.4, r2=0.0, solver="covariance").fit(X, y)
    model = RoweisDiscriminantAnalysis(2, r1=0.4, r2=0.0, solver="krylov", tol=1e-10).fit(X, y)
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=1e-9)


def test_a_singular_scatter_is_rejected_and_a_number_mends_it() -> None:
    rows, y = wide()
    with pytest.raises(
        ValueError, match=r"R2 = S_W is singular: 300 rows of 4 classes .* at most 296 of 800 directions"
    ):
        FisherDiscriminantAnalysis(solver="krylov").fit(rows, y)
    exact = FisherDiscriminantAnalysis(solver="covariance", regularization=5.0).fit(rows, y)
    model = FisherDiscriminantAnalysis(solver="krylov", regularization=5.0, tol=1e-5).fit(rows, y)
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "dot"}, r"solver = 'dot' is unknown. Use one of 'auto', 'covariance', 'krylov'"),
        ({"solver": "krylov", "robust": True}, r'solver="krylov" with robust=True'),
        ({"solver": "krylov", "regularization": "pinv"}, r'solver="krylov" with regularization="pinv"'),
        ({"solver": "krylov", "n_components": 0.5}, r'solver="krylov" with n_components = 0.5'),
        ({"solver": "krylov", "n_components": None}, r'solver="krylov" with n_components = None'),
        ({"solver": "krylov", "tol": 2.0}, "tol = 2.0"),
        ({"solver": "krylov", "max_passes": 1}, "max_passes = 1"),
    ],
)
def test_what_it_cannot_do_is_rejected_unread(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoweisDiscriminantAnalysis(**({"n_components": 2} | options)).fit(unreadable(N, D), Y)
