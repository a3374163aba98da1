"""The approximation from a basis and its products: that of Nyström, by small matrices, and the majorant of A."""

from functools import partial

import numpy as np
import pytest

from bigpca.solvers.krylov import KrylovBasis, approximate, ritz_pairs
from bigpca.solvers.nystrom import nystrom
from tests import builders

EPS = float(np.finfo("f8").eps)


def approximated(B, Y, k, precision=EPS):
    """The approximation of an orthonormal basis and its products, as an iteration returns it."""
    basis = KrylovBasis(B.shape[1], len(B), seed=0)
    basis.adopt(B, Y, precision)
    pairs = ritz_pairs(basis, k, k, tol=1e-3, shift=0.0, precision=precision, rank=len(B))
    return approximate(basis, pairs, precision=precision)


@pytest.mark.parametrize("name", list(builders.spectra(60)))
@pytest.mark.parametrize("precision", [EPS, float(np.finfo("f4").eps)])
@pytest.mark.parametrize("unit", [1.0, 1e-150, 1e150])
def test_it_is_the_nystrom_approximation_of_the_same_products(name, precision, unit):
    A, _ = builders.symmetric(unit * builders.spectra(60)[name], seed=3)
    B = np.linalg.qr(np.hstack([A / unit @ np.eye(60)[:, :6], np.random.default_rng(1).standard_normal((60, 6))]))[0]
    dtype = np.float32 if precision > EPS else np.float64
    Y = unit * ((A / unit).astype(dtype) @ B.astype(dtype)).astype(np.float64)
    found, oracle = approximated(B, Y, 5, precision), nystrom(B, Y, 5, precision=precision)
    rounding = 20 * precision * max(float(np.linalg.norm(Y)), 1e-300)
    assert np.abs(found.values - oracle.values).max() <= rounding
    assert abs(found.shift - oracle.shift) <= rounding
    assert np.abs(found.vectors @ found.vectors.T - np.eye(5)).max() < 1e-14
    assert np.abs(found.multiply(np.eye(60)) - oracle.multiply(np.eye(60))).max() <= rounding
    assert np.array_equal(found.basis, B)
    for norm in (0.0, 0.1, 1.0):
        mine, other = (one(norm * unit, 5) for one in (found.majorant_values, partial(oracle.majorant_values, B)))
        assert np.abs(mine - other).max() <= rounding
