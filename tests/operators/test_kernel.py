"""The kernel operator multiplies as HKH does, which it never forms, in one sweep a product."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca import kernels
from bigpca.engine.run import Run
from bigpca.operators import PROBES
from bigpca.operators.kernel import KernelOperator, products, squares
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import kernel_layout
from tests.builders import offset_data
from tests.estimators.stores import stored
from tests.passes.test_kernel_pairs import EPS, KERNELS

N, D, L = 300, 24, 5
Array = NDArray[Any]
V = np.linalg.qr(np.random.default_rng(1).standard_normal((N, 2 * L)))[0]


def rows_for(name: str, dtype: str) -> Array:
    X = offset_data(N, D, mean=2.0, dtype=dtype)
    return np.abs(X) if name == "chi square" else X


def centred(K: Array) -> Array:
    """HKH, by NumPy."""
    H = np.eye(len(K)) - 1 / len(K)
    return H @ K @ H


def operator(X: Any, kernel: kernels.Kernel) -> KernelOperator:
    return KernelOperator(Run(), products(Rows.of(X), kernel, L), shift=np.full(D, 2.0))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.usefixtures("float32_products")
def test_products_trace_and_means_are_those_of_the_centred_matrix(name: str, dtype: str, tmp_path: Path) -> None:
    kernel, oracle = KERNELS[name]
    X = rows_for(name, dtype)
    K = oracle(X.astype("f8"))
    A = centred(K)
    rounding = 100 * EPS[dtype] * np.linalg.norm(K, 2)  # of K: centring may leave little of it
    op = operator(stored(tmp_path, X, (70, D)), kernel)
    first = op.begin(V[:, :L])
    assert np.array_equal(first.B, V[:, :L])
    for found, block in (
        (first.AB, V[:, :L]),
        (op.multiply(V[:, L:]), V[:, L:]),
        (op.multiply(V[:, :1] + 3), V[:, :1]),
    ):
        np.testing.assert_allclose(found, A @ block, rtol=0, atol=rounding)
        np.testing.assert_allclose(found.sum(axis=0), 0, atol=N * rounding)
    np.testing.assert_allclose(op.row_means, K.mean(axis=1), rtol=0, atol=rounding / N**0.5)
    assert op.mean == pytest.approx(K.mean(), rel=100 * EPS[dtype])
    assert op.trace == pytest.approx(np.trace(A), abs=N**0.5 * rounding)
    assert op.probes is not None
    assert op.probes.vectors.shape == (N, PROBES)
    np.testing.assert_allclose(op.probes.products, A @ op.probes.vectors, rtol=0, atol=N**0.5 * rounding)
    assert (op.size, op.shape, op.omitted) == (N, (N, N), 0)


@pytest.mark.parametrize("name", ["tanh", "rbf"])
def test_the_frobenius_norm_is_known_where_the_trace_bounds_nothing(name: str) -> None:
    kernel, oracle = KERNELS[name]
    X = rows_for(name, "f8")
    op = operator(bp.open(X), kernel)
    op.begin(V[:, :L])
    K = oracle(X)
    squared = float((centred(K) ** 2).sum())
    if kernel.positive_semidefinite:
        assert op.norm > 0
    else:
        assert squared <= op.norm**2 <= squared + 100 * EPS["f8"] * (K**2).sum()


def test_norms_of_rows_come_from_one_sweep() -> None:
    kernel, oracle = KERNELS["laplacian"]
    X = rows_for("laplacian", "f8")
    rows = Rows.of(bp.open(X))
    run = Run()
    found = squares(rows, kernel)(run, shift=np.zeros(D)).squares
    np.testing.assert_allclose(found, (oracle(X) ** 2).sum(axis=1), rtol=1e-12)
    layout = kernel_layout(rows, kernel)
    assert (run.evaluations, run.reads) == (layout.total_evaluations, layout.decoded_rows / layout.n_rows)


@pytest.mark.parametrize("scale", [1e160, 1e200])
def test_kernel_values_beyond_float64_are_said_with_the_row(scale: float) -> None:
    X = rows_for("rbf", "f8")
    X[7:] *= scale
    with pytest.raises(ValueError, match=r"Linear.* has values beyond float64 .* the first is row .*Divide the data"):
        operator(bp.open(X), kernels.Linear()).begin(V)


@pytest.mark.parametrize("gamma", [1e-3, 1e-7])
@pytest.mark.usefixtures("float32_products")
def test_the_precision_says_what_centring_leaves_of_the_products(gamma: float) -> None:
    X = rows_for("rbf", "f4")
    op = operator(bp.open(X), kernels.RBF(gamma))
    first = op.begin(V[:, :L])
    wide = X.astype("f8")
    squares = ((wide[:, None] - wide) ** 2).sum(axis=2)
    A = centred(np.expm1(-gamma * squares))  # H annihilates the 1
    error = np.linalg.norm(first.AB - A @ V[:, :L], 2)
    assert error <= 2 * op.precision * max(op.trace, np.linalg.norm(A))
    assert op.precision >= EPS["f4"]
