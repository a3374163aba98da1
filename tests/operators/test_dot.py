"""The dot operator multiplies as the n x n matrix of a column-chunked store does, in one read a product."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca.engine.run import Run
from bigpca.operators import PROBES
from bigpca.operators.covariance import DotOperator, dot_products
from bigpca.passes.rows import Rows
from tests.builders import offset_data
from tests.estimators.stores import stored

N, D, L = 30, 160, 5
V = np.linalg.qr(np.random.default_rng(1).standard_normal((N, 2 * L)))[0]
CHUNKINGS = [(N, 20), (11, 33)]


def operator(X: Any, **options: Any) -> DotOperator:
    return DotOperator(Run(), dot_products(Rows.of(X), L, (3, 10)), **options)


def dot_matrix(X: NDArray[Any], center: bool, scale: bool) -> NDArray[np.float64]:
    wide = X.astype(np.float64)
    about = wide - wide.mean(axis=0)
    deviations = np.sqrt((about**2).mean(axis=0)) if scale else 1.0
    rows = (about if center else wide) / deviations
    product: NDArray[np.float64] = rows @ rows.T / (len(X) - 1)
    return product


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scale", [False, True], ids=["", "scale"])
@pytest.mark.parametrize("center", [False, True], ids=["about zero", "center"])
@pytest.mark.usefixtures("float32_products")
def test_products_are_those_of_the_matrix(center: bool, scale: bool, dtype: str, offset: float, tmp_path: Path) -> None:
    X = offset_data(N, D, mean=offset, dtype=dtype)
    A = dot_matrix(X, center, scale)
    tolerance = (1e-6 if dtype == "f4" else 1e-11) * float(np.linalg.norm(A, 2))
    means = 1e-7 if dtype == "f4" else 1e-11  # an offset of 1e5 deviations costs 1e5 eps of the mean's rounding
    wide = X.astype(np.float64)
    for chunks in CHUNKINGS:
        op = operator(stored(tmp_path, X, chunks), center=center, scale=scale)
        first = op.begin(V[:, :L])
        assert np.array_equal(first.B, V[:, :L])
        for found, block in ((first.AB, V[:, :L]), (op.multiply(V[:, L:]), V[:, L:])):
            np.testing.assert_allclose(found, A @ block, rtol=0, atol=tolerance)
        assert op.trace == pytest.approx(float(np.trace(A)), rel=1e-6 if dtype == "f4" else 1e-12)
        np.testing.assert_allclose(op.mean, wide.mean(axis=0), rtol=0, atol=means)
        np.testing.assert_allclose(op.squares, ((wide - wide.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-5)
        assert op.probes is not None
        assert op.probes.vectors.shape == (N, PROBES)
        lengths = np.linalg.norm(op.probes.vectors, axis=0)
        assert (np.linalg.norm(op.probes.products - A @ op.probes.vectors, axis=0) <= tolerance * lengths).all()
        assert op.precision == np.finfo(dtype).eps


def test_a_store_chunked_in_rows_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the store is not chunked in columns. Use the covariance operator"):
        operator(stored(tmp_path, np.zeros((N, D)), (10, D)))
