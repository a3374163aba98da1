"""Rows drawn by weight: the winners of a race that no cut of the rows changes, with the law of successive sampling."""

import tracemalloc
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest

from bigpca.kernels.base import Kernel
from bigpca.kernels.distance import RBF
from bigpca.kernels.dot import Polynomial
from bigpca.passes.accumulators import landmark_moments, row_weights
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.accumulators.row_weights import BestRows, Diagonal, GivenWeight, Ones, Residual, RowWeight
from bigpca.passes.reading.blocks import Block
from bigpca.seeds import uniforms
from bigpca.solvers.landmarks import landmark_transform
from tests.passes.kit import normal

N, D, M = 90, 4, 12
KERNEL = Polynomial(degree=2, gamma=0.3, coef0=1.0)
CHOSEN = np.array([3, 50, 17])


def residual(X: Any, kernel: Kernel = KERNEL, chosen: Any = CHOSEN, **options: Any) -> Residual:
    T = landmark_transform(np.asarray(kernel(X[chosen]), np.float64))
    return Residual(kernel, X[chosen], np.asarray(chosen), T, 1e-9, **options)


def weights_of(X: Any) -> dict[str, RowWeight]:
    given_weights = np.random.default_rng(1).exponential(size=N)
    given_weights[::5] = 0
    return {
        "ones": Ones(),
        "given": GivenWeight(given_weights),
        "diagonal": Diagonal(KERNEL, 2),
        "residual": residual(X),
    }


def expected_weights(X: Any, name: str) -> Any:
    """The weights by NumPy on the whole kernel matrix."""
    K = np.asarray(KERNEL(X))
    if name == "residual":
        left = np.diag(K) - np.diag(K[:, CHOSEN] @ np.linalg.inv(K[np.ix_(CHOSEN, CHOSEN)]) @ K[CHOSEN])
        left[CHOSEN] = 0
        return left
    given_weights: Any = weights_of(X)["given"]
    return {"ones": np.ones(N), "given": given_weights.values, "diagonal": np.diag(K) ** 2}[name]


def block_of(X: Any, start: int, stop: int) -> Block:
    return Block(X[start:stop], np.arange(start, stop), np.zeros(X.shape[1]), X[start:stop].sum(axis=0))


def folded(template: Any, X: Any, cuts: list[int]) -> Any:
    """Fold rows cut[0]:cut[-1] as one group, a block between each two cuts."""
    first, last = cuts[0], cuts[-1]
    state = template.for_rows(first, last).with_shared(template.shared).fresh(first, last)
    for start, stop in pairwise(cuts):
        if stop > start:
            state.update(block_of(X, start, stop))
    state.close()
    return state


@pytest.mark.parametrize("name", ["ones", "given", "diagonal", "residual"])
def test_the_winners_are_those_of_the_whole(name: str) -> None:
    X = normal(N, D, dtype="f8")
    weights = expected_weights(X, name)
    template = BestRows(D, M, weights_of(X)[name], 5, "race")
    a, b, c = (folded(template, X, cuts) for cuts in ([0, 7, 30], [30, 31], [31, 70, N]))
    with np.errstate(divide="ignore"):
        keys = -np.log1p(-uniforms(5, "race", 0, N, 1)[:, 0]) / weights
    order = np.argsort(keys)[:M]
    trace = np.trace(KERNEL(X)) if name in ("diagonal", "residual") else 0.0
    for state in (folded(template, X, [0, 40, N]), a.merge(b).merge(c), c.merge(a).merge(b), a.merge(c.merge(b))):
        assert np.array_equal(state.indices, order)
        assert np.array_equal(state.rows, X[order])
        np.testing.assert_allclose(state.weights, weights[order], rtol=1e-9)
        np.testing.assert_allclose(np.exp(state.keys), keys[order], rtol=1e-9)
        assert state.weight_sum == pytest.approx(weights.sum(), rel=1e-10)
        assert state.diagonal_sum == pytest.approx(trace, rel=1e-12)


def test_rows_are_drawn_one_after_the_other_by_their_weight_among_those_left() -> None:
    weights, draws = np.array([5.0, 0.0, 2.0, 1.0, 1.0]), 6000
    X = np.zeros((5, 1))
    template = GivenWeight(weights)
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(draws):
        drawn = tuple(folded(BestRows(1, 2, template, seed, "race"), X, [0, 5]).indices.tolist())
        counts[drawn] = counts.get(drawn, 0) + 1
    total = weights.sum()
    for pair in permutations(range(5), 2):
        i, j = pair
        p = weights[i] / total * weights[j] / (total - weights[i])
        assert abs(counts.get(pair, 0) - draws * p) <= 4.5 * np.sqrt(draws * p * (1 - p))


def test_what_identifies_a_race_is_described() -> None:
    X = normal(N, D, dtype="f8")
    kernels = (KERNEL, Polynomial(degree=3, gamma=0.3, coef0=1.0))
    weights = [
        Ones(), GivenWeight(np.ones(N)), GivenWeight(2 * np.ones(N)),
        *(Diagonal(k, p) for k in kernels for p in (1, 2)),
        Diagonal(KERNEL, 1, np.ones(D)), *(residual(X, k) for k in kernels), residual(X, chosen=[3, 50, 18]),
        residual(X, shift=np.ones(D)),
    ]  # fmt: skip
    templates = [BestRows(D, M, w, 5, "race") for w in weights]
    templates += [
        BestRows(D, M, Ones(), 6, "race"),
        BestRows(D, M, Ones(), 5, "other"),
        BestRows(D, 3, Ones(), 5, "race"),
    ]
    described = [repr(t.describe()) for t in templates]
    assert len(set(described)) == len(described)
    assert RowsAt(D, np.array([1, 2])).describe() != RowsAt(D, np.array([1, 3])).describe()


def test_the_residual_is_a_large_weights_way_to_the_tasks_once() -> None:
    X = normal(N, D, dtype="f8")
    template = BestRows(D, M, residual(X), 5, "race")
    assert template.shared is template.weight
    assert template.for_rows(0, N).weight is None
    with pytest.raises(ValueError, match="has no broadcast value"):
        folded(template.for_rows(0, N), X, [0, N])
    assert BestRows(D, M, Ones(), 5, "race").shared is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e-9])
def test_weights_that_are_none_are_rejected(bad: float) -> None:
    weights = np.ones(N)
    weights[41] = bad
    with pytest.raises(ValueError, match=rf"the sampling weight of row 41 is {bad}; a finite number of at least 0"):
        folded(BestRows(D, M, GivenWeight(weights), 5, "race"), normal(N, D), [0, 40, N])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_residuals_are_computed_in_tiles_of_bounded_memory(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (landmark_moments, row_weights):
        monkeypatch.setattr(module, "TILE_BYTES", 1 << 20)
    n, m = 20_000, 300
    X = normal(n, 5, dtype=dtype)
    weight = residual(X, RBF(gamma=0.2), np.arange(m))
    block = block_of(X, 0, n)
    item = X.dtype.itemsize
    tracemalloc.start()
    weight.weigh(block, weight.prepared(block))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    results = 8 * 2 * n + 2 * n  # weights and diagonal, and the masks that compare them
    assert peak <= weight.working_bytes(5, item) + 3 * results
    assert weight.working_bytes(5, item) < n * m * item / 2  # which the whole block would take twice


def test_the_residual_of_float32_blocks_is_near_and_zero_at_duplicates() -> None:
    X = np.tile(normal(60, D), (2, 1))
    kernel, chosen = RBF(gamma=0.1), np.arange(20)
    wide = X.astype("f8")
    weight = Residual(
        kernel, X[chosen], chosen, landmark_transform(np.asarray(kernel(wide[chosen])), 1e-5), 6e-4
    )  # fmt: skip
    found, diagonal = weight.weigh(block_of(X, 0, 120), weight.prepared(block_of(X, 0, 120)))
    K = np.asarray(kernel(wide))
    expected = 1 - np.diag(K[:, chosen] @ np.linalg.pinv(K[np.ix_(chosen, chosen)]) @ K[chosen])
    assert (found[[*range(20), *range(60, 80)]] == 0).all()
    np.testing.assert_allclose(found, np.where(expected > 6e-4, expected, 0), rtol=0, atol=1e-3)
    assert (diagonal == 1).all()


def test_landmarks_weigh_exactly_nothing_even_where_rounding_is_not_forgiven() -> None:
    X = normal(N, D, dtype="f8")
    chosen = np.arange(10, 25)
    weight = replace(residual(X, chosen=chosen), rounding=0.0)
    found = weight.weigh(block_of(X, 5, N), weight.prepared(block_of(X, 5, N)))[0]
    assert (found[chosen - 5] == 0).all()
    unlike = replace(weight, indices=chosen + 60)  # the same points under other numbers keep their rounding
    few = block_of(X, 5, 60)
    assert (unlike.weigh(few, unlike.prepared(few))[0][chosen - 5] > 0).any()
