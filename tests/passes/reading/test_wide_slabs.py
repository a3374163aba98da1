"""Products of slabs of few rows are summed as one slab's would be: rarely added in float64, and
never lost to float32's range.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca import host
from bigpca.engine.layout import SLAB_ROWS
from bigpca.passes.accumulators.moments import Moments
from tests.passes.kit import full, normal, prepare_block, scatter_of

D = 6
SIZES = {
    "usual": np.ones(D),
    "large": np.full(D, 1e25),  # squares overflow float32
    "nearly large": np.full(D, 1.5e18),  # squares of one slab do not, of several they do
    "small": np.full(D, 1e-25),  # squares vanish
    "one small": np.array([1, 1, 1e-25, 1, 1, 1]),
    "one zero": np.array([1, 1, 0, 1, 1, 1]),
}


def moments_of(slabs: list[NDArray[Any]]) -> Moments:
    state, row = Moments(D).fresh(0, sum(map(len, slabs))), 0
    for slab in slabs:
        zero = np.zeros(D, slab.dtype)
        state.update(prepare_block(slab, row, zero, owned=False, nan_policy="raise", where="rows"))
        row += len(slab)
    state.close()
    return state


@pytest.mark.parametrize("order", list(itertools.permutations(SIZES, 3)), ids=", ".join)
def test_slabs_of_any_size_after_each_other_keep_every_square(order: tuple[str, ...]) -> None:
    with np.errstate(over="ignore"):
        slabs = [(normal(40, D, mean=0, seed=i) * SIZES[size]).astype("f4") for i, size in enumerate(order)]
        found = moments_of(slabs)
    A = np.concatenate(slabs)
    truth = scatter_of(A)
    scale = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
    error = np.abs(full(found.scatter) - truth) / np.where(scale > 0, scale, 1)
    assert found.count == len(A)
    assert error.max() < 100 * np.finfo("f4").eps


def test_a_large_first_slab_does_not_hide_a_column_that_is_small_in_all_later_ones() -> None:
    slabs = [normal(40, D, mean=0, seed=i) * np.float32(1e-16) for i in range(3)]
    slabs[0][:, 1:] = 1.0
    found, truth = moments_of(slabs), scatter_of(np.concatenate(slabs))
    np.testing.assert_allclose(found.scatter[0, 0], truth[0, 0], rtol=1e-5)


def test_products_are_added_in_float64_once_in_as_many_rows_as_one_slab_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[NDArray[Any]] = []
    add_packed = host.add_packed

    def count(total: NDArray[Any], term: NDArray[Any]) -> None:
        added.append(term)
        add_packed(total, term)

    monkeypatch.setattr(host, "add_packed", count)
    moments_of([normal(SLAB_ROWS // 8, D, seed=i) for i in range(20)])
    assert len(added) == 3


def test_many_slabs_are_as_exact_as_one() -> None:
    A = normal(SLAB_ROWS, D, mean=0)
    truth = scatter_of(A)
    one, many = (np.abs(full(moments_of(np.split(A, parts)).scatter) - truth).max() for parts in (1, 64))
    bound = np.sqrt(SLAB_ROWS) * np.finfo("f4").eps * np.diag(truth).max()
    assert max(one, many) < bound
