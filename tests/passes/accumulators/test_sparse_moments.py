"""Moments of sparse rows are those of the same rows made dense, however they are summed."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array

from bigpca import csr
from bigpca.passes.accumulators.base import centring_error, lost_squares
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block

N, D = 300, 60
FEW, MANY = 0.05, 0.6
RNG = np.random.default_rng(0)
WEIGHTS = RNG.integers(1, 9, N) / 4


def rows_of(density: float, dtype: str = "f8") -> csr_array:
    rows = csr_array(random_array((N, D), density=density, rng=np.random.default_rng(1), format="csr"))
    rows.data = (10 * rows.data + 1).astype(dtype)
    rows.indices = rows.indices.astype("i4")
    return rows


def summed(rows: csr_array, ends: tuple[int, ...] = (90, 91, N), weights: NDArray[Any] | None = None) -> Moments:
    """The moments of three groups of two blocks each, merged."""
    states, start = [], 0
    for stop in ends:
        state = Moments(D).fresh(start, stop)
        middle = (start + stop) // 2
        for part in (slice(start, middle), slice(middle, stop)):
            block = Block.about(rows[part], np.arange(N)[part], None)
            if block.count:
                state.update(block if weights is None else block.weighted(weights[part]))
        state.close()
        states.append(state)
        start = stop
    return states[0].merge(states[1].merge(states[2]))


def truth(X: NDArray[Any], w: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    mean = w @ X / w.sum()
    return mean, (X - mean).T * w @ (X - mean)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("density", "dtype"), [(FEW, "f8"), (FEW, "f4"), (MANY, "f8"), (MANY, "f4")])
def test_sparse_rows_have_the_moments_of_dense_rows(density: float, dtype: str, weighted: bool) -> None:
    rows = rows_of(density, dtype)
    weights = WEIGHTS if weighted else None
    found = summed(rows, weights=weights)
    mean, scatter = truth(rows.toarray().astype("f8"), WEIGHTS if weighted else np.ones(N))
    tolerance = 1e-13 if dtype == "f8" or density == FEW else 1e-6  # products of few float32 values are exact
    np.testing.assert_allclose(found.mean, mean, rtol=0, atol=tolerance * mean.max())
    np.testing.assert_allclose(np.triu(found.scatter), np.triu(scatter), rtol=0, atol=tolerance * scatter.max())
    again = Moments(D).with_arrays(found.to_arrays())
    assert np.array_equal(again.packed, found.packed)
    assert again.centring_error == found.centring_error
    assert found.centring_error is not None
    assert (found.centring_error == 0) == (density == MANY)


def test_few_stored_values_are_multiplied_as_they_are_and_many_in_strips() -> None:
    assert not csr.prefers_strips(rows_of(FEW))
    assert csr.prefers_strips(rows_of(MANY))


def test_tiles_of_a_product_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, found = rows_of(FEW), []
    for values in (csr.GRAM_TILE_VALUES, 1):
        monkeypatch.setattr(csr, "GRAM_TILE_VALUES", values)
        found.append(np.zeros((D, D)))
        csr.add_gram(rows, None, found[-1], np.zeros(D), np.zeros(D))
    assert np.array_equal(*found)


@pytest.mark.parametrize("n", [3000, 30_000])
@pytest.mark.parametrize("case", ["two values", "one value but for some", "zero once", "later rows only"])
def test_columns_that_vary_little_about_their_mean_keep_their_digits_up_to_the_reported_error(
    case: str, n: int
) -> None:
    """Terms that are alike are rounded alike, so that the error of a sum about zero grows with the number of rows."""
    rows, t = random_array((n, D), density=FEW, rng=np.random.default_rng(1), format="csr").toarray(), np.arange(n)
    rows[:, 3] = {
        "two values": 1000.1 + 0.05 * (t % 2), "one value but for some": 0.1 + 1e-4 * (t % 100 == 0),
        "zero once": 1000.1 * (t != 7), "later rows only": np.where(t < n // 4, 0, 1000.1 + 1e-5 * (t % 3)),
    }[case]  # fmt: skip
    rows[:, 4] = rows[:, 3] * (1 + 1e-3 * (t % 2))
    found = summed(csr_array(rows), (n // 2, n // 2 + 1, n))
    exact = rows.astype(np.longdouble)[:, [3, 4, 5]]
    truth = ((exact - exact.mean(axis=0)).T @ (exact - exact.mean(axis=0))).astype("f8")
    assert found.centring_error is not None
    assert found.centring_error < 1e-9
    unit = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
    assert (np.abs(np.triu(found.scatter[3:6, 3:6] - truth)) <= found.centring_error * unit).all()


def test_an_error_of_more_than_a_millionth_is_rejected() -> None:
    assert centring_error(lost_squares(np.array([1.0, 4e6]), 996), np.array([1.0, 1.0])) == pytest.approx(8.88e-7, 1e-3)
    with pytest.raises(ValueError, match=r"column 1 of the sparse rows varies little.*over 1e-06.*dense rows"):
        centring_error(lost_squares(np.array([1.0, 5e6]), 996), np.array([1.0, 1.0]))


@pytest.mark.parametrize("weighted", [False, True])
def test_constant_columns_have_no_variance_at_all(weighted: bool) -> None:
    rows = rows_of(FEW).toarray()
    rows[:, 2], rows[:, 7], rows[:, 9] = 0.1, 0, 3e8
    found = summed(csr_array(rows), weights=WEIGHTS if weighted else None)
    scatter = np.triu(found.scatter) + np.triu(found.scatter, 1).T
    for column, value in ((2, 0.1), (7, 0), (9, 3e8)):
        assert not scatter[column].any()
        assert found.mean[column] == value
    assert found.centring_error is not None
    assert found.centring_error < 1e-12
