"""How well landmarks stand for all rows: figures on digits, over a few seeds, against the methods' own definitions."""

import numpy as np
import pytest

from bigpca.kernels.base import Kernel
from bigpca.kernels.distance import RBF
from bigpca.kernels.dot import Polynomial
from tests.landmarks.cases import choose, digits, matrix, request, sequential_rpcholesky, trace_error

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


@pytest.mark.usefixtures("float32_products")
def test_blocks_in_float32_lose_as_little() -> None:
    kernel = KERNELS["rbf 0.002"]
    K = matrix(kernel, digits())
    assert request(digits().astype("f4"), kernel, 50).dtype == np.float32
    sequential = np.mean([trace_error(K, sequential_rpcholesky(K, 50, s)) for s in SEEDS])
    assert mean_error("rpcholesky", kernel, K, 50, "f4") < 1.15 * sequential
