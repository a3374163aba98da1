"""Label features are made slab by slab: labels are small, their features need not be."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca import KernelSupervisedPCA, SupervisedPCA, SupervisedRandomProjection
from bigpca.errors import MemoryBudgetError
from bigpca.estimators.supervised.label_features import DeltaRows, FourierLabels, LandmarkLabels, LinearLabels
from bigpca.passes.accumulators.thin_products import LeftProduct
from bigpca.passes.reading.blocks import Block
from tests.estimators.stores import unreadable

Array = NDArray[Any]
N = 40
VALUES = np.random.default_rng(0).standard_normal((N, 2))
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
    truth = np.zeros((N, maker.count))
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
@pytest.mark.parametrize("step", [7, N])
def test_a_product_with_features_made_slab_by_slab_is_that_with_the_whole(name: str, step: int) -> None:
    rows = DeltaRows(MAKERS[name], VALUES)
    X = np.random.default_rng(1).standard_normal((N, 3))
    products = []
    for V in (rows, rows.whole()):
        state = LeftProduct(3, V).fresh(0, N)
        for i in range(0, N, step):
            numbers = np.arange(i, min(N, i + step))
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
