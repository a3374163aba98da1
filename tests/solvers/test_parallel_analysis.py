"""Deterministic parallel analysis: its edge is that of permuted columns, which share nothing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import Polynomial

import bigpca as bp
from bigpca.solvers.component_rules import noise_edge
from bigpca.solvers.components import decode_components, encode_components

N, D = 1200, 300
RNG = np.random.default_rng(3)
DEVIATIONS = np.linspace(0.5, 2, D)
NOISE = RNG.standard_normal((N, D)) * DEVIATIONS
SIGNAL = RNG.standard_normal((N, 3)) @ (np.linalg.qr(RNG.standard_normal((D, 3)))[0] * [9, 7, 5]).T


@pytest.mark.parametrize("ratio", [0.01, 1.0, 4.0])
def test_the_edge_of_equal_variances_is_that_of_marchenko_and_pastur(ratio: float) -> None:
    found = noise_edge(np.full(400, 3.0), round(400 / ratio))
    assert found == pytest.approx(3 * (1 + np.sqrt(ratio)) ** 2, rel=1e-6)


@pytest.mark.parametrize("m", [100, 300, 2000])
def test_the_edge_of_unequal_variances_is_where_the_density_of_eigenvalues_ends(m: int) -> None:
    """There z = -1 / v + (1 / m) sum_l s_l / (1 + s_l v) (Silverstein) has a complex root v below, and none above."""
    a, b, copies = 4.0, 1.0, (40, 160)
    edge = noise_edge(np.repeat([a, b], copies), m)
    first, second, v = Polynomial([1, a]), Polynomial([1, b]), Polynomial([0, 1])
    pulled = (copies[0] * a * second + copies[1] * b * first) * v / m
    for z, complex_roots in ((edge * (1 - 1e-5), 2), (edge * (1 + 1e-5), 0)):
        roots = ((z * v + 1) * first * second - pulled).roots()
        assert np.count_nonzero(np.abs(roots.imag) > 1e-9) == complex_roots


@pytest.mark.parametrize("scale", [False, True])
def test_planted_components_are_counted_and_noise_has_none_but_the_first(scale: bool) -> None:
    model = bp.PCA("parallel-analysis", solver="covariance", scale=scale).fit(NOISE + SIGNAL)
    assert model.n_components_ == 3
    assert bp.PCA(bp.ParallelAnalysis(), scale=scale).fit(NOISE).n_components_ == 1  # the least that is kept


def test_rows_of_unequal_size_pass_the_edge() -> None:
    """The failure that the documentation names: outliers are no signal, but no permuted column has them."""
    sizes = np.where(np.arange(N) % 100 == 0, 12.0, 1.0)
    assert bp.PCA(bp.ParallelAnalysis()).fit(NOISE * sizes[:, None]).n_components_ > 3


def test_solvers_without_the_variances_of_columns_reject_it_and_it_is_saved() -> None:
    for model in (bp.PCA(bp.ParallelAnalysis(), solver="dot"), bp.ApproximatePCA(bp.ParallelAnalysis())):
        with pytest.raises(ValueError, match=r"needs the variances of (the|all) columns|needs all"):
            model.fit(NOISE[:100])
    with pytest.raises(ValueError, match='only "deterministic"'):
        bp.ParallelAnalysis("guess")
    assert decode_components(encode_components(bp.ParallelAnalysis())) == bp.ParallelAnalysis()
    assert bp.PCA(bp.ParallelAnalysis()).plan(NOISE[:100]).solver == "covariance"
