"""Parallel analysis: its edge is that of columns that share nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

import bigpca as bp
from bigpca.engine.events import CheckpointEvent, Event
from bigpca.seeds import signs
from bigpca.solvers.components import decode_components, encode_components, noise_edge

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
    assert bp.PCA(bp.rules.ParallelAnalysis(), scale=scale).fit(NOISE).n_components_ == 1  # the least that is kept


def largest_of_flips(X: NDArray[np.float64], rule: bp.rules.ParallelAnalysis, weights: NDArray[np.float64]) -> float:
    """The edge in plain NumPy, from centred (and scaled) rows."""
    found = []
    for flip in range(rule.n_flips):
        flipped = X * signs(rule.random_state, f"signflip-{flip}", 0, *X.shape, np.int8)
        found.append(np.linalg.eigvalsh((flipped.T * weights) @ flipped)[-1] / (weights.sum() - 1))
    return float(np.quantile(found, rule.quantile))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (lambda rule: bp.PCA(rule, solver="covariance"), ""),
        (lambda rule: bp.PCA(rule, solver="covariance", scale=True), "scaled"),
        (lambda rule: bp.PCA(rule, solver="covariance", center=False), "uncentred"),
        (lambda rule: bp.PCA(rule, solver="covariance"), "weighted"),
        (lambda rule: bp.PCA(rule, solver="covariance", nan_policy="omit"), "omitted"),
        (lambda rule: bp.PCA(rule, solver="dot"), ""),
        (lambda rule: bp.PCA(rule, solver="krylov"), ""),
        (lambda rule: bp.ApproximatePCA(rule, bp.sketches.Gaussian(60)), ""),
    ],
)
@pytest.mark.parametrize("null", ["deterministic", "signflip"])
def test_every_solver_keeps_what_is_above_the_edge_of_numpy(
    model: Callable[[bp.rules.ParallelAnalysis], Any], options: str, null: str
) -> None:
    n, d, rng = 300, 80, np.random.default_rng(1)
    noise = rng.standard_normal((n, d)) * np.linspace(0.5, 2, d)
    X = noise + rng.standard_normal((n, 6)) @ (np.linalg.qr(rng.standard_normal((d, 6)))[0] * [9, 7, 5, 4, 3, 2.5]).T
    X, weights = X + 2, np.ones(n)
    given = X.copy()
    if options == "weighted":
        weights = rng.integers(0, 4, n).astype(float)
    if options == "omitted":
        given[::7, 3], weights[::7] = np.nan, 0
    mean = weights @ X / weights.sum() if options != "uncentred" else np.zeros(d)
    Y = X - mean
    if options == "scaled":
        Y /= Y.std(axis=0)
    rule = bp.rules.ParallelAnalysis(null, n_flips=3, quantile=0.5, random_state=4)
    covariance = (Y.T * weights) @ Y / (weights.sum() - 1)
    edge = largest_of_flips(Y, rule, weights)
    if null == "deterministic":
        edge = noise_edge(np.diagonal(covariance), int(weights.sum()) - 1)
    expected = np.linalg.eigvalsh(covariance)[::-1]
    found = model(rule)
    found.fit(given, **({"sample_weight": weights} if options == "weighted" else {}))
    assert 1 < (expected > edge).sum() == found.n_components_ < 10
    plan = found.plan_
    assert plan.passes >= (3 + 1 if null == "signflip" else 1)
    rows = found.plan(given, **({"sample_weight": weights} if options == "weighted" else {}))
    assert rows.passes == plan.passes


def test_flipped_signs_keep_the_sizes_of_rows_which_pass_the_deterministic_edge() -> None:
    """The failure that the documentation names: outliers are no signal, but no permuted column has them."""
    sizes = np.where(np.arange(N) % 100 == 0, 12.0, 1.0)
    X = (NOISE * sizes[:, None])[:, :60]
    assert bp.PCA(bp.rules.ParallelAnalysis()).fit(X).n_components_ > 3
    assert bp.PCA(bp.rules.ParallelAnalysis("signflip")).fit(X).n_components_ == 1


def test_a_killed_analysis_resumes_to_the_same_bits_and_chunks_do_not_change_signs(tmp_path: Path) -> None:
    X = (NOISE + SIGNAL)[:400, :50]
    rule = bp.rules.ParallelAnalysis("signflip", n_flips=4, quantile=0.3)
    whole = bp.PCA(rule, solver="covariance").fit(X)
    reads = 0

    def stop(event: Event) -> None:
        nonlocal reads
        reads += isinstance(event, CheckpointEvent)
        if reads == 4:
            raise KeyboardInterrupt

    model = bp.PCA(rule, solver="covariance")
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, checkpoint=tmp_path / "c", progress=stop)
    model.fit(X, checkpoint=tmp_path / "c")
    assert model.components_.tobytes() == whole.components_.tobytes()
    assert model.plan_.passes == 6  # the mean, four flips, and the fit
    lazy = bp.PCA(rule, solver="covariance").fit(da.from_array(X, chunks=(37, 50)))
    assert lazy.n_components_ == whole.n_components_


def test_what_has_no_further_read_rejects_it_and_it_is_saved() -> None:
    X = NOISE[:100, :20]
    flips = bp.rules.ParallelAnalysis("signflip", 5, 0.5, 3)
    for model, needed in (
        (bp.PCA(flips), "the rows again, with flipped signs"),
        (bp.ApproximatePCA(flips), "the rows again, with flipped signs"),
        (bp.ApproximatePCA("parallel-analysis"), "the variances of the columns"),
    ):
        with pytest.raises(ValueError, match=f"needs {needed}, which are not available here. Use fit of PCA"):
            model.partial_fit(X)
    with pytest.raises(ValueError, match="needs"):
        bp.KernelPCA(flips, kernel=bp.kernels.RBF(), solver="dense").fit(X)
    sparse = scipy.sparse.csr_array(np.eye(30))
    with pytest.raises(TypeError, match="flipping the signs of entries requires dense rows"):
        bp.PCA(flips, center=False).plan(sparse)
    for given in (bp.rules.ParallelAnalysis(), flips):
        assert decode_components(encode_components(given)) == given
    assert decode_components({"parallel_analysis": "deterministic"}) == bp.rules.ParallelAnalysis()
    assert bp.PCA(bp.rules.ParallelAnalysis()).plan(X).solver == "covariance"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"null": "guess"}, "null = 'guess' is unknown. Use 'deterministic' or 'signflip'"),
        ({"n_flips": 0}, "n_flips = 0 is below 1"),
        ({"quantile": 1.5}, r"quantile = 1.5 is outside \[0, 1\]"),
        ({"random_state": -1}, "random_state = -1 is negative"),
    ],
)
def test_impossible_parameters_are_rejected(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bp.rules.ParallelAnalysis(**given)


def test_wide_rows_are_analysed_by_their_small_side_with_the_result_of_their_covariance() -> None:
    X = np.random.default_rng(0).standard_normal((60, 1200))
    X[:, :400] += 4 * np.random.default_rng(1).standard_normal((60, 1))
    model, known = bp.PCA("parallel-analysis"), bp.PCA("parallel-analysis", solver="covariance").fit(X)
    plan = model.plan(X)
    assert plan.solver == model.fit(X).solver_ == "dot"
    assert plan.process_bytes < known.plan_.process_bytes / 5
    assert model.n_components_ == known.n_components_ >= 1
    np.testing.assert_allclose(model.explained_variance_, known.explained_variance_, rtol=1e-10)
    once = bp.PCA("parallel-analysis").fit(bp.from_batches(iter([X[:30], X[30:]]), shape=X.shape))
    assert once.solver_ == "covariance"  # these rows cannot be read again
    assert once.n_components_ == known.n_components_
