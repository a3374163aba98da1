"""PCA by block Krylov: eigenvalues to the tolerance in a few counted reads, bounds that hold, and honest errors."""

import os
import warnings
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

import bigpca as bp
from bigpca import PCA, ApproximatePCA
from bigpca.engine.events import Event, PassEvent
from bigpca.errors import ApproximationWarning, MemoryBudgetError
from bigpca.estimators.linear import krylov as iteration
from bigpca.estimators.linear import krylov as krylov_fit
from bigpca.passes.fold import sample_runs, sample_size
from bigpca.solvers import krylov as solver
from tests.builders import assert_covered, data_with_spectrum, gap, power_law, solver_spectra
from tests.estimators.stores import exact, largest_angle, stored, unreadable
from tests.operators.counting import Reads

D, K = 60, 6
TOL = 1e-3
Array = NDArray[Any]


def krylov(k: Any = K, **options: Any) -> PCA:
    return PCA(k, solver="krylov", **options)


def assert_certified(pca: PCA, X: Array, *, scale: bool = False, center: bool = True, precision: float = 1e-12) -> None:
    """Eigenvalues within the tolerance; every bound holds; the components are orthonormal and capture what is said."""
    values, _, total = exact(X, pca.n_components_, center=center, scale=scale)
    slack = precision * total
    errors = np.abs(pca.explained_variance_ - values)
    assert (errors <= pca.tol * values + slack).all()
    assert_covered(pca.eigenvalue_bounds_, values, slack)
    np.testing.assert_allclose(pca.total_variance_, total, rtol=precision, atol=1e-300)
    V = pca.components_
    np.testing.assert_allclose(V @ V.T, np.eye(len(V)), rtol=0, atol=1e-12)
    rows = X.astype(np.float64)
    rows = (rows - rows.mean(axis=0) if center else rows) / (rows.std(axis=0) if scale else 1.0)
    captured = np.sum((rows @ V.T) ** 2) / (len(X) - 1) / (total or 1.0) if total else 1.0
    least, most = pca.captured_variance_bounds_
    assert least - precision <= captured <= most + precision


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", solver_spectra(D))
def test_eigenvalues_are_within_the_tolerance_on_every_spectrum(name: str, dtype: str, float32_products: None) -> None:
    for n in (120, 400):  # without a sample, and with one
        X = data_with_spectrum(n, solver_spectra(D)[name], mean=3.0, dtype=dtype)[0]
        pca = krylov().fit(X)
        assert_certified(pca, X, precision=1e-5 if dtype == "f4" else 1e-12)
        assert pca.converged_ is True
        assert pca.solver_ == "krylov"
        assert pca.n_passes_ <= pca.max_passes + 1


@pytest.mark.parametrize(("dtype", "offset"), [("f4", 0.0), ("f4", 1e3), ("f8", 1e3)])
@pytest.mark.parametrize("center", [False, True], ids=["about zero", "center"])
def test_components_are_the_axes_where_there_is_a_gap(center: bool, dtype: str, offset: float) -> None:
    X = data_with_spectrum(600, gap(D, K), mean=offset, dtype=dtype)[0]
    values, V, _ = exact(X, K, center=center)
    pca = krylov(tol=1e-6, center=center, max_passes=20).fit(X)
    np.testing.assert_allclose(pca.explained_variance_, values, rtol=2e-6)
    assert largest_angle(pca.components_, V) < 1e-3
    assert (pca.components_[np.arange(K), np.abs(pca.components_).argmax(axis=1)] > 0).all()
    np.testing.assert_allclose(pca.mean_, X.mean(axis=0, dtype="f8") if center else 0, rtol=1e-6, atol=1e-9)


VARIANTS: list[dict[str, Any]] = [{}, {"center": False}, {"scale": True}, {"scale": True, "center": False}]


@pytest.mark.parametrize(("variant", "dtype"), list(zip(VARIANTS, ["f4", "f8"] * 2, strict=True)), ids=str)
@pytest.mark.parametrize("chunking", ["memory", "rows", "columns", "general", "unknown"])
def test_every_input_and_variant_has_the_eigenvalues_of_numpy(
    dtype: str, chunking: str, variant: dict[str, Any], tmp_path: Path
) -> None:
    X = data_with_spectrum(300, power_law(D), mean=2.0, dtype=dtype)[0]
    X[:, 5] *= 100
    lazy = da.from_array(X, chunks=(70, 30))
    given = {
        "memory": lambda: X,
        "rows": lambda: stored(tmp_path, X, (70, D)),
        "columns": lambda: stored(tmp_path, X, (300, 9)),
        "general": lambda: lazy * 2 / 2,
        "unknown": lambda: lazy[lazy[:, 0] > -np.inf],
    }[chunking]()
    pca = krylov(**variant).fit(given)
    assert_certified(pca, X, **variant, precision=1e-6 if dtype == "f4" else 1e-12)
    assert pca.n_passes_ == pytest.approx(round(pca.n_passes_) + (0.1 if chunking == "memory" else 0))
    assert pca.components_.dtype == np.float64


def test_a_class_that_the_sample_lacks_is_found() -> None:
    n, d, k = 3000, 60, 3
    block = 20  # columns of the first block, of which 18 come from the sample
    runs = sample_runs(n, sample_size(n, 8 * d, block - 2), 0)
    gaps = [(a, b) for (_, a), (b, _) in pairwise(runs)]
    start, stop = max(gaps, key=lambda edges: edges[1] - edges[0])
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * np.linspace(1.0, 0.5, d)
    X[:, d - 1] = 0.0
    X[start:stop, d - 1] = 30.0 * rng.standard_normal(stop - start)  # rows sorted by class: this one is in no run
    pca = krylov(k).fit(X)
    assert_certified(pca, X)
    assert abs(pca.components_[0, d - 1]) > 0.999


RULES = [
    0.5,
    0.9,
    bp.rules.RelativeThreshold(0.05),
    bp.rules.MarchenkoPastur(),
    bp.rules.Elbow(),
    bp.rules.GavishDonoho(1e-3),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_choose_as_many_components_as_with_the_whole_spectrum(rule: Any) -> None:
    X = data_with_spectrum(300, np.where(np.arange(90) < 10, power_law(90), 1e-3), mean=1.0)[0]
    assert krylov(rule, tol=1e-4).fit(X).n_components_ == PCA(rule, solver="covariance").fit(X).n_components_


@pytest.mark.parametrize("n_components", [None, "mle", bp.rules.GavishDonoho()], ids=str)
def test_what_needs_the_whole_spectrum_is_rejected_unread_or_solved_exactly_where_a_basis_would_hold_it(
    n_components: Any,
) -> None:
    with pytest.raises(ValueError, match=r"needs all 1100 eigenvalues, but this solver computes only the leading ones"):
        krylov(n_components).fit(unreadable(3000, 1100))
    X = data_with_spectrum(300, power_law(90), mean=1.0)[0]
    found, expected = krylov(n_components).fit(X), PCA(n_components, solver="covariance").fit(X)
    assert found.solver_ != "krylov"
    assert found.n_components_ == expected.n_components_
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-10)


@pytest.mark.parametrize("shape", [(150, 300), (300, 150)])
def test_a_share_that_needs_most_of_few_rows_or_columns_is_found(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(krylov_fit, "RULE_COLUMNS", 190)
    X = np.random.default_rng(0).standard_normal(shape)
    found, expected = krylov(0.98).fit(X), PCA(0.98, solver="covariance").fit(X)
    assert expected.n_components_ > 95
    assert found.n_components_ == expected.n_components_
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=TOL)


def with_column(X: Array, scale: float) -> Array:
    """X with one column of that scale: an id, a count, a timestamp."""
    X[:, 7] = np.random.default_rng(1).standard_normal(len(X)) * scale
    return X


def plateaus(n: int, width: int) -> Array:
    """Rows whose covariance has two plateaus of that width, each wider than a block."""
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((n, 2 * width)))[0] * n**0.5
    return Q * np.sqrt(np.r_[np.linspace(2.2, 2, width), np.linspace(1.1, 1, width)])


def falling(n: int, d: int, p: float) -> Array:
    return np.random.default_rng(0).standard_normal((n, d)) * np.arange(1, d + 1.0) ** -p


HONEST = {
    "one unscaled column": (10, lambda: with_column(falling(3000, 400, 0.25), 1e3), True),
    "one unscaled column in float32": (10, lambda: with_column(falling(2048, 512, 0.25), 1e3).astype("f4"), True),
    "a column that float64 cannot see past": (10, lambda: with_column(falling(1000, 200, 0.25), 1e7), False),
    "white noise in float32": (5, lambda: falling(20_000, 100, 0.0).astype("f4"), None),
    "plateaus wider than the block": (10, lambda: plateaus(1000, 130), False),
    "one row far out": (5, lambda: np.vstack([falling(999, 200, 0.25), 1e4 * np.ones((1, 200))]), True),
}


@cache
def honest(name: str, n: int) -> tuple[Array, Array, Array]:
    """At most n rows, and their exact eigenvalues and axes."""
    k, make, _ = HONEST[name]
    X = make()[:n]
    return (X, *exact(X, k)[:2])


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("name", HONEST)
def test_what_passes_for_converged_is_within_tol_of_every_eigenvalue(
    name: str, columns: bool, tmp_path: Path, float32_products: None
) -> None:
    k, _, converges = HONEST[name]
    X, values, V = honest(name, 2000 if columns else 20_000)
    given = stored(tmp_path, X, (len(X), 50)) if columns else X
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pca = krylov(k, max_passes=6 + 3 * columns).fit(given)
    said = [str(warning.message) for warning in caught if issubclass(warning.category, ApproximationWarning)]
    assert converges in (None, pca.converged_)
    if pca.converged_:
        assert (np.abs(pca.explained_variance_ - values) <= TOL * values).all()
    else:
        assert any("tol = 0.001 was asked for" in message for message in said)
    if "unscaled" in name:
        assert largest_angle(pca.components_[:1], V[:1]) < 1e-3
    if "cannot see" in name:
        assert any("the last 9 of 10 eigenvalues are below" in message for message in said)


@pytest.mark.parametrize("route", ["covariance", "dot", "kernel", "one pass"])
def test_bounds_hold_where_a_giant_column_takes_few_values(route: str, tmp_path: Path, float32_products: None) -> None:
    """Float32 sums of equal terms are rounded alike: by up to half their number times the precision."""
    for seed in (7, 8):  # of 45 that were tried, the dot operator's bound was broken at 7
        rng = np.random.default_rng(seed)
        n = int(rng.integers(300, 600))
        X = rng.standard_normal((n, 80)).astype("f4")
        X[:, 7] = 1e4 * (np.arange(n) < rng.uniform(0.01, 0.2) * n)  # rows sorted by class
        true, total = exact(X, 1)[0][0], 2e-16 * float(np.sum(X.astype("f8") ** 2))
        if route == "kernel":
            model: Any = bp.KernelPCA(1, kernel="linear", solver="krylov", tol=1e-2).fit(X)
            lower, upper = model.eigenvalue_bounds_[0] / (n - 1)
        elif route == "one pass":
            lower, upper = bp.ApproximatePCA(1, bp.sketches.Gaussian(30)).fit(X).eigenvalue_bounds_[0]
        else:
            rows = stored(tmp_path, X, (n, 27 if route == "dot" else 80))
            lower, upper = krylov(1, tol=1e-2).fit(rows).eigenvalue_bounds_[0]
        assert lower - total <= true <= upper + total


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("chunks", [None, (5, 7)], ids=["rows", "columns"])
def test_a_handful_of_rows_will_do(n: int, chunks: tuple[int, int] | None, tmp_path: Path) -> None:
    X = np.random.default_rng(n).standard_normal((n, 50))
    given = X if chunks is None else stored(tmp_path, X, chunks)
    for k in (1, n):
        pca = krylov(k).fit(given)
        np.testing.assert_allclose(pca.explained_variance_, exact(X, k)[0], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(k), atol=1e-12)


@pytest.mark.parametrize("scale", [False, True])
def test_equal_rows_have_eigenvalues_of_zero(scale: bool) -> None:
    for dtype in ("f4", "f8"):
        for row in (np.full(40, 0.1, dtype), np.random.default_rng(0).standard_normal(40).astype(dtype)):
            model = krylov(3, scale=scale).fit(np.tile(row, (600, 1)))
            assert model.converged_
            assert model.explained_variance_.tolist() == [0, 0, 0]


@pytest.mark.parametrize("scale", [False, True])
def test_constant_columns_have_no_part_in_the_components(scale: bool) -> None:
    X = data_with_spectrum(300, power_law(D), mean=1.0)[0]
    X[:, 3], X[:, 7] = 0.1, 0.0
    pca = krylov(scale=scale).fit(X)
    rest = krylov(scale=scale).fit(np.delete(X, [3, 7], axis=1))
    assert np.abs(pca.components_[:, [3, 7]]).max() < 1e-12
    np.testing.assert_allclose(pca.explained_variance_, rest.explained_variance_, rtol=2 * TOL)
    np.testing.assert_allclose(pca.total_variance_, rest.total_variance_, rtol=1e-12)


@pytest.mark.parametrize("model", [ApproximatePCA(1), krylov(1)], ids=["sketch", "krylov"])
def test_equal_rows_whose_mean_is_rounded_have_no_variance(model: PCA | ApproximatePCA) -> None:
    rows = np.full((400, 3), 1e6 + 1e-9)
    model = clone(model).set_params(preprocess=[bp.preprocessing.L2()])
    with pytest.warns(ApproximationWarning, match="0 of 1") if isinstance(model, ApproximatePCA) else nullcontext():
        fitted = model.fit(rows)
    assert fitted.eigenvalue_bounds_[0, 0] == 0
    assert fitted.explained_variance_[0] < 1e-40


@pytest.mark.parametrize("offset", [1e1, 1e4])
def test_rows_of_length_1_with_small_deviations_are_scaled(offset: float) -> None:
    X = np.random.default_rng(1).standard_normal((11, 4)).astype("f4") + np.float32(offset)
    options = {"center": X.mean(axis=0), "scale": True, "preprocess": [bp.preprocessing.L2()]}
    exactly = PCA(1, solver="covariance", **options).fit(X)
    np.testing.assert_allclose(krylov(1, **options).fit(X).explained_variance_, exactly.explained_variance_, rtol=TOL)


@pytest.mark.parametrize("seed", [0, 9])  # where the whole spectrum's values sum to more than the trace, by rounding
def test_rules_count_the_rows_that_are_left(seed: int) -> None:
    X = np.random.default_rng(seed).permutation(data_with_spectrum(600, power_law(70), mean=2.0)[0])
    X[150:] = np.nan
    found, expected = (
        PCA(bp.rules.MarchenkoPastur(), solver=solver, nan_policy="omit").fit(X) for solver in ("krylov", "covariance")
    )
    assert found.n_components_ == expected.n_components_


@pytest.mark.parametrize("chunks", [None, (300, 9)], ids=["rows", "columns"])
def test_a_number_of_reads_that_does_not_do_is_said_with_the_error(
    chunks: tuple[int, int] | None, tmp_path: Path
) -> None:
    X = data_with_spectrum(300, power_law(D, 0.5))[0]
    pca = krylov(tol=1e-10, max_passes=3)
    with pytest.warns(
        ApproximationWarning, match=r"stopped after \d.* reads with eigenvalue errors of about .*, tol = 1e-10 "
    ):
        pca.fit(X if chunks is None else stored(tmp_path, X, chunks))
    assert pca.converged_ is False
    assert pca.n_passes_ <= 3 + (0.2 if chunks is None else 0)  # the sample's share
    lower, upper = pca.eigenvalue_bounds_.T
    values = exact(X, K)[0]
    assert (lower <= values * (1 + 1e-12)).all()
    assert (values <= upper * (1 + 1e-12)).all()
    assert pca.residuals_.max() > 1e-10


@pytest.mark.parametrize("parameters", [{"tol": 0.0}, {"tol": 1}, {"max_passes": 1}], ids=str)
def test_parameters_out_of_range_are_rejected_unread(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(tol|max_passes) = [01].* is outside [\[(]"):
        krylov(**parameters).fit(unreadable(50, D))


@pytest.mark.parametrize("blocks_held", [2, 3])
def test_a_basis_that_is_restarted_still_reaches_the_tolerance_and_keeps_its_bounds(
    blocks_held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = data_with_spectrum(300, power_law(150, 0.5))[0]
    monkeypatch.setattr(iteration, "BLOCKS", blocks_held)
    monkeypatch.setattr(iteration, "RULE_COLUMNS", 0)  # no larger basis, though 20 reads are granted
    pca = krylov(4, tol=1e-4, max_passes=20).fit(X)
    assert_certified(pca, X)
    lower, upper = pca.eigenvalue_bounds_.T
    assert (upper < 2 * lower).all()  # a bound of what a restart drops is added to the one before it
    assert pca.converged_ is True
    assert pca.n_passes_ > blocks_held + 1


@pytest.mark.parametrize(
    ("shape", "granted", "largest", "warning"),
    [
        ((400, 200), 40, 1024, ""),  # the basis holds all products
        ((400, 200), None, 1024, ""),
        ((400, 200), 40, 0, ""),  # it is restarted
        ((900, 300), 8, 0, "max_passes = 8 was reached"),
        ((900, 300), None, 0, "the bounds certify 0 of 4 components.*The iteration met tol"),
    ],
)
def test_a_flat_spectrum_takes_the_reads_that_are_granted(
    shape: tuple[int, int], granted: int | None, largest: int, warning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).standard_normal(shape)
    monkeypatch.setattr(iteration, "RULE_COLUMNS", largest)
    model = krylov(4, max_passes=granted)
    with pytest.warns(ApproximationWarning, match=warning) if warning else nullcontext():
        model.fit(X)
    assert_certified(model, X)
    assert model.converged_ is (granted != 8)
    assert model.n_passes_ < 15 if model.converged_ else model.n_passes_ > 7  # a sample is a part of a read
    assert model.n_passes_ <= model.plan_.most_passes < 20_000


def test_reads_without_progress_end_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "PATIENCE", 0)
    with pytest.warns(ApproximationWarning, match="the last reads did not improve them"):
        krylov(4, max_passes=40).fit(np.random.default_rng(0).standard_normal((400, 200)))


def test_a_basis_beyond_the_memory_is_cut_and_then_rejected_unread() -> None:
    X = unreadable(200_000, 100_000, chunk=100, dtype="f4")
    held, limits = [], range(1000, 8000, 100)
    for limit in limits:
        plan = krylov(50, memory_limit=f"{limit} MiB").plan(X)
        if plan.fits:
            held.append(int(plan.notes[1].removeprefix("basis of up to ").split()[0]))
            assert plan.process_bytes <= plan.resources.room_bytes
    assert sorted(set(held)) == [200, 300, 400]
    assert held == sorted(held)
    with pytest.raises(MemoryBudgetError, match=r"krylov needs .* but .* are left of memory_limit = 1000.0 MiB"):
        krylov(50, memory_limit="1000 MiB").fit(X)


def spoil(block: Array, flag: str) -> Array:
    """The block, with a NaN once the file ``flag`` exists: data that changed between two reads."""
    return np.where(np.arange(len(block))[:, None] == 3, np.nan, block) if os.path.exists(flag) else block


def test_rows_that_become_nan_in_a_later_pass_stop_it_and_the_checkpoint_survives(tmp_path: Path) -> None:
    X = data_with_spectrum(600, power_law(D, 0.5), mean=1.0)[0]
    flag = tmp_path / "flag"
    lazy = da.from_array(X, chunks=(100, D)).map_blocks(spoil, str(flag), dtype=X.dtype, meta=X[:0])
    expected = krylov().fit(lazy)
    products: list[Event] = []

    def spoil_second(event: Event) -> None:
        if isinstance(event, PassEvent) and event.name == "product":
            products.append(event)
            if len(products) == 2:
                flag.touch()

    with pytest.raises(bp.errors.NonFiniteError, match="NaN or infinite value"):
        krylov().fit(lazy, checkpoint=tmp_path / "c", progress=spoil_second)
    flag.unlink()
    seen: list[Event] = []
    found = krylov().fit(lazy, checkpoint=tmp_path / "c", progress=seen.append)
    passes = [event for event in seen if isinstance(event, PassEvent)]
    assert [event.groups_resumed for event in passes[:3]] == [6, passes[1].groups_total, 0]
    assert found.components_.tobytes() == expected.components_.tobytes()
    assert found.explained_variance_.tobytes() == expected.explained_variance_.tobytes()


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("n", [100, 2000])
def test_q_multiplications_cost_q_reads_and_the_share_of_the_sample(
    n: int, scale: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = stored(tmp_path, data_with_spectrum(n, power_law(D, 0.5), mean=2.0, dtype="f4")[0], (10, D))
    events: list[Event] = []
    reads = Reads().watch(monkeypatch)
    pca = krylov(scale=scale).fit(X, progress=events.append)
    counts = reads.per_chunk((n, D), (10, D))
    q = sum(isinstance(event, PassEvent) and event.name == "product" for event in events)
    assert counts.min() == q
    assert counts.max() <= q + 1
    assert counts.sum() <= (q + 0.1) * counts.size + 32  # two chunks at the ends of each of 16 runs, or the first one
    assert pca.n_passes_ == pytest.approx(counts.mean())
    assert 2 <= q <= 5


def test_a_column_store_is_read_once_a_multiplication_and_once_for_the_components(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = stored(tmp_path, data_with_spectrum(60, power_law(59), mean=2.0)[0], (60, 10))
    reads = Reads().watch(monkeypatch)
    pca = krylov(scale=True).fit(X)
    assert (reads.per_chunk((60, 59), (60, 10)) == pca.n_passes_).all()
