"""Few singular triplets and solved scatters have the digits of full decompositions, wherever these are taken."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca.solvers import pairs
from bigpca.solvers.eigh import EPS
from bigpca.solvers.moments import Scatter
from bigpca.solvers.pairs import leading_triplets
from tests.builders import orthonormal_rows

Array = NDArray[Any]
P, Q, K = 90, 60, 8
SPECTRA: dict[str, tuple[Array, bool]] = {  # and whether the Gram matrix is accurate enough
    "decaying": (0.8 ** np.arange(Q), True),
    "equal": (np.ones(Q), True),
    "a gap": (np.where(np.arange(Q) < K, 1.0, 1e-9), True),
    "tiny": (1e-180 * 0.8 ** np.arange(Q), True),
    "huge": (1e180 * 0.8 ** np.arange(Q), True),
    "falling below the squares": (10.0 ** -np.arange(Q), False),
    "rank two": (np.where(np.arange(Q) < 2, 1.0, 0.0), False),
    "zero": (np.zeros(Q), False),
}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_few_triplets_have_the_digits_of_a_full_decomposition(spectrum: str, wide: bool) -> None:
    values, few = SPECTRA[spectrum]
    U, V = orthonormal_rows(Q, P, 1).T, orthonormal_rows(Q, Q, 2)
    A = (U * values) @ V.T
    with patch.object(pairs, "svd", wraps=pairs.svd) as full:
        left, s, right = leading_triplets(A.T if wide else A, K)
    assert any(call.args[0].shape[1] == Q for call in full.call_args_list) is not few
    left, right = (right, left) if wide else (left, right)
    scale = max(values[0], 1e-300)
    np.testing.assert_allclose(s / scale, values[:K] / scale, rtol=0, atol=1e-13)
    A, s = A / scale, s / scale
    np.testing.assert_allclose(A.T @ left - right * s, 0, atol=1e-12)
    np.testing.assert_allclose(A @ right - left * s, 0, atol=1e-12)
    np.testing.assert_allclose(left.T @ left, np.eye(K), atol=1e-12)


def scatter_of(C: Array, n: int = 10**9) -> Scatter:
    return Scatter.of(C, np.zeros(len(C)), EPS, n)


@pytest.mark.parametrize(("condition", "rank"), [(1e2, Q), (1e10, Q), (1e12, Q), (1e20, None)])
@pytest.mark.parametrize("units", [0, 30])
def test_solved_scatters_are_the_identity_on_their_range_in_any_units(
    condition: float, rank: int | None, units: int
) -> None:
    values, V = condition ** -np.linspace(0, 1, Q), orthonormal_rows(Q, Q)
    C, unit = (V * values) @ V.T, 2.0 ** (units * np.cos(np.arange(Q)).round())
    C = C * unit * unit[:, None]
    for alpha in (0.0, 0.1):
        scatter = scatter_of(C)
        found = scatter.solved(alpha)
        assert rank is None or scatter.rank == rank
        assert (scatter.rank < Q) is (rank is None)
        V = found.along(np.eye(len(found.across(scatter.frame.into(C)))))
        if rank is not None:  # summed without cancellation
            B = np.vstack([np.sqrt(values)[:, None] * orthonormal_rows(Q, Q).T * unit, np.sqrt(alpha) * np.eye(Q)]) @ V
            np.testing.assert_allclose(B.T @ B, np.eye(Q), atol=1e-14 * condition + 1e-12 + alpha * 1e-8)
