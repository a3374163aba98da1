"""Randomly pivoted Cholesky: its law, what it costs, what it never chooses, where it stops, and how well it stands for
all rows.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigpca.kernels.base import Kernel
from bigpca.kernels.custom import FromFunction
from bigpca.kernels.distance import RBF
from bigpca.kernels.dot import Linear, Polynomial, Tanh
from tests.builders import offset_data
from tests.estimators.stores import stored
from tests.landmarks.cases import (
    CountedRBF,
    Found,
    Tally,
    choose,
    digits,
    matrix,
    request,
    residual_sum,
    sequential_rpcholesky,
    trace_error,
)
from tests.operators.counting import Reads

N, D = 600, 12


def rpcholesky(X: Any, kernel: Any, m: int, **options: Any) -> Found:
    return choose("rpcholesky", request(X, kernel, m, **options))


def rows(seed: int = 0) -> np.ndarray:
    return offset_data(N, D, mean=2.0, seed=seed, dtype="f8")


WIDE, NARROW = 0.002, 1.0


@pytest.mark.parametrize(("gamma", "least", "most"), [(NARROW, 1, 1), (0.05, 1, 2), (WIDE, 2, 5)])
def test_kernel_evaluations_and_reads_are_counted_exactly(
    gamma: float, least: int, most: int, reads: Reads, tmp_path: Path
) -> None:
    tally, m = Tally(), 40
    X = stored(tmp_path, rows(), (100, D))
    found = rpcholesky(X, CountedRBF(gamma, tally), m)
    assert len(found.rows) == m
    assert found.evaluations == tally.entries
    assert least <= found.passes <= most
    assert (reads.per_chunk((N, D), (100, D)) == found.passes).all()


def test_landmarks_are_rows_in_the_working_dtype() -> None:
    for stored_as, working in (("f4", "f4"), ("f8", "f8"), ("u1", "f4"), ("i4", "f8")):
        X = (10 * rows()).astype(stored_as)
        found = rpcholesky(X, RBF(gamma=0.001), 30)
        assert found.indices is not None
        assert found.rows.dtype == working
        assert np.array_equal(found.rows, X[found.indices])
        assert len(found.rows) == 30


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.usefixtures("float32_products")
def test_duplicates_are_never_chosen(dtype: str, seed: int) -> None:
    X = np.tile(rows(seed)[:10], (30, 1)).astype(dtype)
    for kernel in (RBF(gamma=0.05), Polynomial(degree=5, gamma=1.0, coef0=1.0)):
        found = rpcholesky(X, kernel, 20, seed=seed)
        assert found.indices is not None
        assert sorted(found.indices % 10) == list(range(10))
        assert residual_sum(kernel, X, found.indices) == 0


def test_a_kernel_of_low_rank_gives_as_many_landmarks() -> None:
    found = rpcholesky(rows(), Linear(), 30)
    assert len(found.rows) == D
    assert np.linalg.matrix_rank(found.rows) == D
    assert found.indices is not None
    assert residual_sum(Linear(), rows(), found.indices) == 0


@pytest.mark.parametrize("sampling", ["diagonal", "rpcholesky"])
def test_zero_rows_are_never_chosen(sampling: str) -> None:
    X = rows()
    X[: N - 20] = 0
    for seed in range(5):
        found = choose(sampling, request(X, Linear(), 8, seed=seed))
        assert found.indices is not None
        assert (found.indices >= N - 20).all()
        assert len(found.rows) == 8
    trusted = FromFunction(lambda A, B: np.zeros((len(A), len(B))), positive_semidefinite=True)
    lost, zero = (
        r"is 0: squares of values .* or are they all zero\?",
        r"is 0, so a kernel .* Use KernelPCA with -D\*\*2 / 2",
    )
    for kernel, said in ((Linear(), lost), (trusted, zero)):
        with pytest.raises(ValueError, match=rf"k\(x, x\).* {said}"):
            choose(sampling, request(np.zeros((50, 3)), kernel, 8))


def test_fewer_rows_of_positive_weight_than_landmarks_give_as_many() -> None:
    X = rows()
    X[5:] = 0
    found = choose("diagonal", request(X, Linear(), 8))
    assert found.indices is not None
    assert sorted(found.indices) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sampling", ["rpcholesky"])
def test_indefinite_kernels_are_rejected(sampling: str) -> None:
    with pytest.raises(ValueError, match=f'not positive semi-definite.*"{sampling}" requires.*Use sampling="uniform"'):
        choose(sampling, request(rows(), Tanh(gamma=0.05, coef0=-1.0), 8))
    for allowed in ("uniform", "diagonal"):
        assert len(choose(allowed, request(rows(), Tanh(gamma=0.05, coef0=-1.0), 8)).rows) == 8


def test_weights_beyond_float64_are_said_with_their_row() -> None:
    X = rows()
    X[17] *= 1e80
    with pytest.raises(ValueError, match=r"the sampling weight of row 17 is inf; a finite .* normalise the kernel"):
        choose("diagonal", request(X, Linear(), 8))


SEEDS = range(6)
KERNELS = {
    "rbf 0.002": RBF(gamma=0.002),
    "poly 5": Polynomial(degree=5, gamma=1.0, coef0=0.0),
}


def mean_error(sampling: str, kernel: Kernel, K: np.ndarray, m: int, dtype: str = "f8") -> float:
    X = digits().astype(dtype)
    chosen = [choose(sampling, request(X, kernel, m, seed=s)).indices for s in SEEDS]
    assert all(indices is not None and len(set(indices)) == m for indices in chosen)
    return float(np.mean([trace_error(K, indices) for indices in chosen]))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["rbf 0.002", "poly 5"])
def test_blocks_lose_as_little_of_the_trace_as_sequential_pivoted_cholesky(name: str) -> None:
    kernel = KERNELS[name]
    K = matrix(kernel, digits())
    for m in (50,):
        sequential = np.mean([trace_error(K, sequential_rpcholesky(K, m, s)) for s in SEEDS])
        ratio = mean_error("rpcholesky", kernel, K, m) / sequential
        assert 0.85 < ratio < 1.15  # the standard error of the ratio is up to 0.05
