"""Supervised PCA equals the eigenvectors of X'H K_y H X of the whole matrix, for classes and for real labels;
label features are made slab by slab.
"""

import tracemalloc
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.pipeline import make_pipeline

import bigpca as bp
from bigpca import KernelSupervisedPCA, SupervisedPCA, SupervisedRandomProjection
from bigpca.errors import ApproximationWarning, MemoryBudgetError
from bigpca.estimators.supervised import label_features
from bigpca.estimators.supervised.label_features import DeltaRows, FourierLabels, LandmarkLabels, LinearLabels
from bigpca.passes.accumulators.thin_products import LeftProduct
from bigpca.passes.reading.blocks import Block
from tests.estimators.labelled import assert_same_axes, centred, labelled_rows, one_hot
from tests.estimators.stores import unreadable

Array = NDArray[Any]
N, D, C = 300, 8, 4
X, Y = labelled_rows(N, D, C, mean=3.0)
RNG = np.random.default_rng(7)
REAL = np.column_stack([X[:, 0] + RNG.standard_normal(N), X[:, 1] ** 2])
REPEATED = np.round(REAL[:, 0])  # a dozen values


def dependence(X: Array, K_y: Array, k: int) -> tuple[Array, Array]:
    """The k leading eigenpairs of X'H K_y H X, with the (n, n) label kernel made whole (SPCA paper, section 5.1)."""
    values, vectors = np.linalg.eigh(centred(X).T @ K_y @ centred(X))
    return values[::-1][:k], vectors[:, ::-1][:, :k].T


def assert_solves(model: Any, K_y: Array, k: int, tolerance: float = 1e-8) -> None:
    values, axes = dependence(X, K_y, k)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=tolerance)
    assert_same_axes(model.components_, axes, tolerance)


def test_classes_have_the_delta_kernel_and_one_axis_less_than_classes() -> None:
    model = SupervisedPCA().fit(X, Y)
    assert model.n_components_ == model.rank_ == C - 1
    assert_solves(model, one_hot(Y) @ one_hot(Y).T, C - 1)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(C - 1), atol=1e-13)


@pytest.mark.parametrize("labels", [REAL[:, 0], REAL], ids=["one column", "two columns"])
def test_real_labels_have_the_linear_kernel(labels: Array) -> None:
    columns = labels.reshape(N, -1)
    model = SupervisedPCA().fit(X, labels)
    assert model.rank_ == columns.shape[1]
    assert_solves(model, columns @ columns.T, columns.shape[1])
    assert not hasattr(model, "classes_")


@pytest.mark.parametrize("gamma", [None, 0.3])
def test_the_gaussian_label_kernel_is_exact_where_labels_repeat(gamma: float | None) -> None:
    assert len(np.unique(REPEATED)) < 30
    model = SupervisedPCA(3, label_kernel="rbf", label_gamma=gamma).fit(X, REPEATED)
    width = 1 / REPEATED.var() if gamma is None else gamma
    assert_solves(model, rbf_kernel(REPEATED[:, None], gamma=width), 3)


MANY = np.random.default_rng(8).standard_normal((2000, 3)) * [3, 1, 1]  # 2,000 distinct labels in three columns
ROWS = np.random.default_rng(9).standard_normal((2000, 4)) + np.sin(MANY[:, :1])


def test_the_trace_that_landmarks_of_labels_miss_is_measured_reported_and_less_than_that_of_quantiles(
    tmp_path: Path,
) -> None:
    K_y = rbf_kernel(MANY, gamma=0.3)
    quantiles = np.unique(MANY, axis=0)[np.linspace(0, 1999, 256).round().astype(int)]
    by_quantiles = 1 - np.einsum(
        "ij,jk,ik->", k_nm := rbf_kernel(MANY, quantiles, gamma=0.3),
        np.linalg.pinv(rbf_kernel(quantiles, gamma=0.3), rcond=1e-10), k_nm,
    ) / 2000  # fmt: skip
    options: dict[str, Any] = {"label_kernel": "rbf", "label_gamma": 0.3}
    with pytest.warns(ApproximationWarning, match="features of the RBF label kernel miss"):
        model = SupervisedPCA(2, **options).fit(ROWS, MANY)
    delta = model._result.supervision.features.features(MANY)
    missed = 1 - (delta**2).sum() / 2000
    assert model.missed_label_trace_ == pytest.approx(missed, rel=1e-9)
    assert 1e-3 < missed < 0.8 * by_quantiles
    exact = float((centred(ROWS) * (K_y @ centred(ROWS))).sum()) / 1999**2
    with pytest.warns(ApproximationWarning, match="features of the RBF label kernel miss"):
        assert exact * (1 - 5 * missed) < SupervisedPCA(**options).fit(ROWS, MANY).eigenvalues_.sum() / 1999**2 <= exact
    model.save(tmp_path / "model")
    loaded = bp.load(tmp_path / "model")
    assert loaded.missed_label_trace_ == model.missed_label_trace_
    with pytest.warns(ApproximationWarning, match=r"miss 1 of its trace over 500 labels"):
        loaded.partial_fit(ROWS[:500], MANY[:500] + 1e3)  # of which the first labels say nothing
    assert loaded.missed_label_trace_ == pytest.approx((4 * missed + 1) / 5, rel=1e-9)


@pytest.mark.parametrize("solver", ["landmarks", "pairs"])
def test_kernel_models_report_it_too(solver: str, tmp_path: Path) -> None:
    with pytest.warns(ApproximationWarning, match="features of the RBF label kernel miss"):
        model = bp.KernelSupervisedPCA(
            2, solver=solver, kernel="linear", label_kernel="rbf", label_gamma=0.3, sampling=ROWS[:4]
        ).fit(ROWS, MANY)
    assert 1e-3 < model.missed_label_trace_ < 0.5
    model.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").missed_label_trace_ == model.missed_label_trace_


def test_labels_that_many_rows_share_are_landmarks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted by their rows, which are all that counts: 40 far labels of 100 rows each among 400 of one row."""
    monkeypatch.setattr(label_features, "MAX_LANDMARKS", 50)
    values = np.concatenate([np.repeat(np.arange(40.0), 100), 100.0 + np.arange(400)])[:, None]
    features = LandmarkLabels.of(values, 50.0)
    assert np.isin(np.arange(40.0), features.landmarks).sum() >= 35  # 5 of 50 by chance
    assert features.missed(values) < 0.2


def test_of_very_many_labels_evenly_spread_ones_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_features, "MAX_CANDIDATES", 500)
    values = np.random.default_rng(0).standard_normal((3000, 1)).round(3)
    distinct, weights = label_features.candidates(values)
    assert len(distinct) <= 500 == weights.sum()
    np.testing.assert_allclose(np.average(distinct[:, 0], weights=weights), values.mean(), atol=0.02)
    assert LandmarkLabels.of(values, 1.0).missed(values) < 1e-9


def test_landmark_features_reproduce_the_kernel_of_their_landmarks_in_any_tiles() -> None:
    features = LandmarkLabels.of(REPEATED[:, None], 0.3)
    many = np.tile(REPEATED[:, None], (20, 1))  # 6,000 rows: two tiles
    delta = features.features(many)
    np.testing.assert_allclose(delta[:N] @ delta[:N].T, rbf_kernel(REPEATED[:, None], gamma=0.3), atol=1e-9)
    np.testing.assert_allclose(delta[-N:], features.features(REPEATED[:, None]), atol=1e-12)


def test_the_default_width_ignores_where_labels_lie() -> None:
    far = REAL + np.array([0.0, 1e3])
    one, other = (SupervisedPCA(2, label_kernel="rbf").fit(X, labels) for labels in (REAL, far))
    np.testing.assert_allclose(one.eigenvalues_, other.eigenvalues_, rtol=1e-9)


def test_labels_far_from_0_lose_no_digits_in_float32(float32_products: None) -> None:
    """Tolerance: 50 eps of float32, of labels that are 1e6 of their deviations from 0."""
    far = np.round(REAL[:, 0], 3) + 1e6
    model = SupervisedPCA().fit(X.astype("f4"), far)
    values, axes = dependence(X.astype("f4"), np.outer(far - far.mean(), far - far.mean()), 1)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=50 * np.finfo("f4").eps)
    assert_same_axes(model.components_, axes, 50 * float(np.finfo("f4").eps))


def test_random_features_converge_to_the_gaussian_label_kernel() -> None:
    """Standard error of an entry: at most (1 / m)^(1/2) for m features; 5 of them allowed over 300 x 300 entries."""
    K_y = rbf_kernel(REAL, gamma=0.4)
    errors = []
    for count in (100, 10_000):
        delta = FourierLabels.draw(2, count, 0.4, seed=1).features(REAL)
        errors.append(np.abs(delta @ delta.T - K_y).max())
        assert errors[-1] < 5 / count**0.5
    assert errors[1] < errors[0] / 4


def test_random_projection_of_classes_is_supervised_pca_of_them() -> None:
    """A Gaussian kernel of one-hot vectors is ``(1 - e^-2 gamma)`` times the delta kernel, and a constant."""
    model, truth = SupervisedRandomProjection().fit(X, Y), SupervisedPCA().fit(X, Y)
    np.testing.assert_array_equal(model.components_, truth.components_)
    values, axes = dependence(X, rbf_kernel(one_hot(Y), gamma=0.2), C - 1)
    assert_same_axes(model.components_, axes)
    np.testing.assert_allclose(values, (1 - np.exp(-0.4)) * model.eigenvalues_, rtol=1e-10)


# One read, any chunks, any scheduler


@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_with_dask_ml_scales_splits_and_stays_lazy() -> None:
    model = bp.FisherDiscriminantAnalysis()
    preprocessing = pytest.importorskip("dask_ml.preprocessing")
    selection = pytest.importorskip("dask_ml.model_selection")
    scaled = X * np.geomspace(1, 1e3, D)
    train, test, y_train, _ = selection.train_test_split(
        da.from_array(scaled, chunks=(50, D)), da.from_array(Y, chunks=50), random_state=0, shuffle=True
    )
    pipeline = make_pipeline(preprocessing.StandardScaler(), clone(model)).fit(train, y_train)
    scores = pipeline.transform(test)
    assert isinstance(scores, da.Array)
    known, labels = train.compute(), y_train.compute()
    truth = clone(model).fit((known - known.mean(axis=0)) / known.std(axis=0), labels)
    expected = truth.transform((test.compute() - known.mean(axis=0)) / known.std(axis=0))
    np.testing.assert_allclose(scores.compute(), expected, atol=1e-10)


def test_a_plan_reads_nothing_and_a_thin_solve_fits_where_a_wide_one_does_not() -> None:
    lazy, y = unreadable(1000, 30_000, dtype=np.float32, chunk=100), np.arange(1000) % 3
    plan = SupervisedPCA(memory_limit="4 GiB").plan(lazy, y)
    assert plan.fits
    assert plan.passes == 1
    whole = bp.RoweisDiscriminantAnalysis(2, memory_limit="4 GiB")
    assert not whole.plan(lazy, y).fits
    with pytest.raises(MemoryBudgetError, match=r"memory_limit = 4.0 GiB"):
        whole.fit(lazy, y)
    with pytest.raises(MemoryBudgetError, match="memory_limit"):
        SupervisedPCA(memory_limit="1 MiB").fit(lazy, y)


def test_a_plan_counts_the_labels_and_never_the_features_of_all_rows() -> None:
    lazy = unreadable(200_000, 20, chunk=50_000)
    labels = np.random.default_rng(0).standard_normal((200_000, 30))
    plans = [SupervisedRandomProjection(n_features=60).plan(lazy, labels[:, :t]) for t in (1, 30)]
    assert (plans[1].peak_bytes - plans[0].peak_bytes + 1) * plans[0].resources.threads >= 8 * 200_000 * 29
    thin, wide = (SupervisedRandomProjection(n_features=m).plan(lazy, labels[:, 0]) for m in (1, 600))
    assert 8 * 20 * 599 < wide.peak_bytes - thin.peak_bytes < 8 * 200_000 * 599 / 10


FEW = 40
VALUES = np.random.default_rng(0).standard_normal((FEW, 2))
VALUES[[3, 17], [0, 1]] = np.nan
KNOWN = ~np.isnan(VALUES).any(axis=1)
MAKERS: dict[str, Any] = {
    "linear": LinearLabels.of(VALUES[KNOWN]),
    "rbf": LandmarkLabels.of(VALUES[KNOWN], 20.0),
    "random": FourierLabels.draw(2, 7, 0.3, 0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_rows_of_delta_are_the_features_of_their_labels_and_zeros_without_one(name: str) -> None:
    maker = MAKERS[name]
    truth = np.zeros((FEW, maker.count))
    truth[KNOWN] = maker.features(VALUES[KNOWN])
    rows = DeltaRows(maker, VALUES)
    assert rows.shape == truth.shape
    assert rows.nbytes == VALUES.nbytes
    np.testing.assert_allclose(rows.whole(), truth, atol=1e-14)
    np.testing.assert_allclose(rows[np.array([17, 4, 4])], truth[[17, 4, 4]], atol=1e-14)
    np.testing.assert_allclose(rows[10:20][np.arange(10)], truth[10:20], atol=1e-14)
    assert rows.digest() == DeltaRows(maker, VALUES.copy()).digest()
    assert rows.digest() != DeltaRows(maker, VALUES + 1).digest()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("step", [7, FEW])
def test_a_product_with_features_made_slab_by_slab_is_that_with_the_whole(name: str, step: int) -> None:
    rows = DeltaRows(MAKERS[name], VALUES)
    X = np.random.default_rng(1).standard_normal((FEW, 3))
    products = []
    for V in (rows, rows.whole()):
        state = LeftProduct(3, V).fresh(0, FEW)
        for i in range(0, FEW, step):
            numbers = np.arange(i, min(FEW, i + step))
            state.update(Block(X[numbers], numbers, np.zeros(3), X[numbers].sum(axis=0)))
        state.close()
        assert isinstance(state.V, np.ndarray)  # nothing of the labels travels with a state
        products.append(state.product)
    np.testing.assert_allclose(products[0], rows.whole().T @ X, atol=1e-12)
    np.testing.assert_allclose(products[0], products[1], atol=1e-12)


@pytest.mark.parametrize("model", [
    SupervisedPCA(label_kernel="rbf", memory_limit="8 MiB"),
    SupervisedRandomProjection(n_features=5000, memory_limit="8 MiB"),
    KernelSupervisedPCA(label_kernel="rbf", gamma=0.1, n_landmarks=500, memory_limit="8 MiB"),
], ids=lambda model: type(model).__name__)  # fmt: skip
def test_features_that_would_not_fit_are_not_made_before_the_plan_says_so(model: Any) -> None:
    n = 200_000
    y = np.random.default_rng(0).standard_normal(n)
    tracemalloc.start()
    with pytest.raises(MemoryBudgetError):
        model.fit(unreadable(n, 8, chunk=20_000), y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * y.nbytes  # the features of all rows would be 256 times the labels, or 5,000 times
