"""The covariance operator multiplies as the matrix of all rows does, which it never forms, in one read a product."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca.engine.run import Run
from bigpca.operators import PROBES
from bigpca.operators.covariance import CovarianceOperator, CovariancePasses, DotOperator, dot_products
from bigpca.passes.fold import sample_runs, sample_size
from bigpca.passes.rows import Rows
from tests.builders import offset_data
from tests.estimators.stores import stored

N, D, L = 400, 24, 6
Q = np.linalg.qr(np.random.default_rng(1).standard_normal((D, 2 * L)))[0]
Array = NDArray[Any]
CHUNKINGS = ["memory", "rows", "one chunk", "columns", "ragged", "general"]


def given(X: Array, chunking: str, folder: Path) -> da.Array:
    """X, as each of the inputs that a fold reads in its own way."""
    stores = {"rows": (150, D), "one chunk": X.shape, "columns": (200, 9)}
    if chunking in stores:
        return stored(folder, X, stores[chunking])
    if chunking == "memory":
        return bp.open(X)
    lazy = da.from_array(X, chunks=((0, 1, 130, 0, 200, len(X) - 331), D))
    return lazy if chunking == "ragged" else (lazy * 2).rechunk((90, 10)) / 2


def operator(X: da.Array, *, columns: int = L, **options: Any) -> CovarianceOperator:
    rows, seed = Rows.of(X), options.get("seed", 0)
    passes = CovariancePasses.of(rows, columns, (3, 10), sampled=columns, seed=seed)
    return CovarianceOperator(rows, Run(), passes, threads=1, **options)


def matrix(X: Array, center: bool, scale: bool) -> tuple[Array, Array, Array]:
    """The operator as a matrix (d, d), with mean and deviations, by NumPy in float64."""
    wide = X.astype(np.float64)
    mean = wide.mean(axis=0)
    about = wide - mean
    deviations = np.sqrt((about**2).mean(axis=0)) if scale else np.ones(X.shape[1])
    rows = (about if center else wide) / deviations
    return rows.T @ rows / (len(X) - 1), mean, deviations


def assert_products(found: Array, A: Array, B: Array, tolerance: float) -> None:
    """Each column within ``tolerance`` of |A| |b|."""
    sizes = np.linalg.norm(A, 2) * np.linalg.norm(B, axis=0)
    assert (np.linalg.norm(found - A @ B, axis=0) <= tolerance * sizes).all()


@pytest.mark.parametrize(
    ("center", "scale", "dtype", "offset", "sampled"),
    [*((center, scale, "f4", 1e4, True) for center in (False, True) for scale in (False, True)),
     (True, False, "f4", 1e4, False), (True, True, "f8", 0.0, False), (False, True, "f8", 1e4, True)],
)  # fmt: skip
@pytest.mark.usefixtures("float32_products")
def test_products_are_those_of_the_matrix(
    center: bool, scale: bool, dtype: str, offset: float, sampled: bool, tmp_path: Path
) -> None:
    X = offset_data(N, D, mean=offset, dtype=dtype)
    A, mean, deviations = matrix(X, center, scale)
    tolerance = 1e-6 if dtype == "f4" else 1e-11  # an offset of 1e5 deviations costs 1e5 eps of the mean's rounding
    means = 1e-7 if dtype == "f4" else 1e-11
    for chunking in CHUNKINGS:
        op = operator(given(X, chunking, tmp_path), center=center, scale=scale)
        if sampled:
            op.sample(L)
        first = op.begin(Q[:, :L])
        assert_products(first.AB, A, first.B, tolerance)
        assert_products(op.multiply(Q[:, L:]), A, Q[:, L:], tolerance)
        assert (op.count, op.omitted) == (N, 0)
        np.testing.assert_allclose(op.mean, mean if center else np.zeros(D), rtol=0, atol=means)
        np.testing.assert_allclose(op.trace, np.trace(A), rtol=tolerance)
        if scale:
            np.testing.assert_allclose(op.scale, deviations, rtol=tolerance)
        # Without a sample nothing is known of deviations, which differ by more than a factor of ten.
        assert op.other_reads == 1 + (scale and not sampled)
        assert op.probes.vectors.shape == (D, PROBES)
        assert_products(op.probes.products, A, op.probes.vectors, tolerance)
        assert op.precision == np.finfo(dtype).eps


def test_the_block_that_was_given_is_multiplied_unless_columns_are_scaled() -> None:
    X = offset_data(N, D, mean=1.0, dtype="f8")
    assert np.array_equal(operator(bp.open(X)).begin(Q).B, Q)
    scaled = operator(bp.open(X), scale=True)
    scaled.sample(L)
    assert np.abs(scaled.begin(Q).B - Q).max() < 0.5  # the sample's deviations are near


def test_scaled_columns_need_a_first_pass_before_products() -> None:
    op = operator(bp.open(offset_data(N, D, mean=0.0)), scale=True)
    with pytest.raises(RuntimeError, match="the columns' deviations are known only after the first read: call begin"):
        op.multiply(Q)


def test_a_column_that_is_constant_in_the_sample_alone_keeps_its_pair_exact() -> None:
    X = offset_data(N, D, mean=0.0, dtype="f8")
    rows = np.concatenate([np.arange(a, b) for a, b in sample_runs(N, sample_size(N, 8 * D, L), 0)])
    X[rows, 5] = 0.0
    A, _, _ = matrix(X, True, True)
    op = operator(bp.open(X), scale=True)
    assert op.sample(L) is not None
    first = op.begin(Q)
    assert_products(first.AB, A, first.B, 1e-12)


def test_what_is_known_from_an_earlier_pass_is_not_computed_again() -> None:
    X = offset_data(N, D, mean=5.0, dtype="f8")
    A, mean, deviations = matrix(X, True, True)
    op = operator(bp.open(X), scale=True)
    op.set_statistics(N, 0, mean, deviations, 123.0, None)
    assert_products(op.multiply(Q), A, Q, 1e-12)
    assert op.trace == 123.0
    assert op.run.reads == 1


def test_rows_that_are_not_stored_in_columns_have_no_dot_operator(tmp_path: Path) -> None:
    rows = Rows.of(stored(tmp_path, np.zeros((30, 160)), (10, 160)))
    with pytest.raises(ValueError, match=r"the store is not chunked in columns. Use the covariance operator"):
        DotOperator(Run(), dot_products(rows, 5, (3, 10)))


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scale", [False, True], ids=["", "scale"])
@pytest.mark.parametrize("center", [False, True], ids=["about zero", "center"])
@pytest.mark.usefixtures("float32_products")
def test_products_are_those_of_the_dot_matrix(
    center: bool, scale: bool, dtype: str, offset: float, tmp_path: Path
) -> None:
    X = offset_data(30, 160, mean=offset, dtype=dtype)
    wide = X.astype("f8")
    about = (wide - wide.mean(axis=0) * center) / (wide.std(axis=0) if scale else 1.0)
    A, rtol = about @ about.T / 29, 1e-6 if dtype == "f4" else 1e-11
    V = np.linalg.qr(np.random.default_rng(1).standard_normal((30, 10)))[0]
    for chunks in ((30, 20), (11, 33)):
        rows = Rows.of(stored(tmp_path, X, chunks))
        op = DotOperator(Run(), dot_products(rows, 5, (3, 10)), center=center, scale=scale)
        for found, block in ((op.begin(V[:, :5]).AB, V[:, :5]), (op.multiply(V[:, 5:]), V[:, 5:])):
            np.testing.assert_allclose(found, A @ block, rtol=0, atol=rtol * np.linalg.norm(A, 2))
        assert op.trace == pytest.approx(np.trace(A), rel=rtol)
        np.testing.assert_allclose(op.mean, wide.mean(axis=0), rtol=0, atol=1e-7 if dtype == "f4" else 1e-11)
        np.testing.assert_allclose(op.squares, wide.var(axis=0) * 30, rtol=1e-5)
