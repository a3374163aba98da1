"""A plan says what a fit will cost before anything is read, and rejects what does not fit, with the numbers and ways
out; its reads are those that run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster

import bigpca as bp
from bigpca import PCA
from bigpca.engine.events import GroupEvent, PassEvent
from bigpca.errors import MemoryBudgetError
from bigpca.estimators.shared.fit import FLOPS_PER_SECOND, seconds
from bigpca.landmarks import SAMPLINGS
from bigpca.sketches import Gaussian
from tests.estimators.stores import stored, unreadable
from tests.operators.counting import Reads

ISSUE_FIELDS = {
    "solver", "reason", "passes", "bytes_read", "flops", "tasks", "state_bytes", "block_rows", "peak_bytes",
    "output_bytes",
}  # fmt: skip


def test_a_plan_is_a_record_of_the_costs() -> None:
    n, d, k = 1000, 40, 7
    plan = PCA(k, solver="covariance").plan(unreadable(n, d, chunk=100))
    assert {field.name for field in fields(plan)} >= ISSUE_FIELDS
    assert (plan.solver, plan.passes, plan.bytes_read) == ("covariance", 1, n * d * 8)
    assert plan.state_bytes == 8 * d * (d + 1)
    assert n * d * d < plan.flops < 2 * n * d * d
    assert 100 <= plan.block_rows <= n
    assert plan.tasks == 3
    assert PCA(k, solver="covariance").plan(unreadable(10**6, d, chunk=10_000)).tasks == 2 * 50 + 1  # of 2 chunks
    assert plan.peak_bytes >= 4 * plan.state_bytes + plan.block_rows * d * 8


@pytest.mark.parametrize(("threads", "panels"), [(1, 2), (2, 4)])
def test_the_dot_matrix_has_two_panels_for_each_thread(threads: int, panels: int) -> None:
    with dask.config.set(num_workers=threads):
        plan = PCA(5, solver="dot", memory_limit="16 GiB").plan(unreadable(2000, 40_000, chunk=100))
    assert f" reads in {panels} row panels" in plan.reason


@pytest.mark.parametrize(("n", "single"), [(3000, False), (6000, True)])
def test_an_iteration_multiplies_in_the_precision_that_all_its_reads_are_worth(n: int, single: bool) -> None:
    """One read costs 30 or 60 Gflop, the typical three 90 or 181."""
    plan = PCA(50, solver="krylov").plan(da.zeros((n, 25_088), dtype="f4", chunks=(500, -1)))
    assert {one.single for one in plan.costs if one.flops} == {single}


@pytest.mark.parametrize("model", [PCA(5, solver="krylov"), bp.KernelPCA(5, kernel="rbf", solver="krylov")])
def test_what_an_iteration_computes_between_its_reads_counts_in_the_time_alone(model: Any) -> None:
    plan = model.plan(unreadable(5000, 3000, chunk=100))
    speed = {"single": 1e10, "double": 1e10, "read": 1e9}
    without = replace(plan, solve=replace(plan.solve, between=0.0))
    more = plan.timed(speed).seconds - without.timed(speed).seconds  # type: ignore[operator]
    assert more == pytest.approx(plan.solve.between / 1e10 / plan.resources.threads)
    assert more > 0
    assert seconds(plan) == seconds(without)  # by which fits are chosen


def test_sparse_rows_are_timed_by_their_operations_which_count_as_more_than_dense_ones() -> None:
    X = sp.random_array((2000, 300), density=0.1, format="csr", rng=np.random.default_rng(0))
    plan = PCA(5, solver="krylov").plan(X)
    slow, fast = ({"single": rate, "double": rate, "read": 1e9} for rate in (1e10, 2e10))
    less = plan.timed(slow).seconds - plan.timed(fast).seconds  # type: ignore[operator]
    assert less == pytest.approx((plan.flops + plan.solve.between) / 2e10 / plan.resources.threads)
    assert seconds(plan) == seconds(replace(plan, costs=())) == plan.flops / FLOPS_PER_SECOND
    assert "compiling: " in str(plan)


def test_a_printed_plan_is_a_small_table() -> None:
    text = str(PCA(3).plan(unreadable(200, 50)))
    lines = text.splitlines()
    names = ["solver", "others", "reads", "work", "time", "speed", "state", "peak memory", "limit"]
    assert [line[:13].strip() for line in lines] == names
    assert all(len(line) < 150 for line in lines)
    assert "all rows once, 78.1 KiB" in text
    assert "blocks of up to 200 rows" in text
    assert text.count(": fits") == 1


def test_a_printed_plan_says_what_does_not_fit() -> None:
    text = str(PCA(3, solver="covariance", memory_limit="1 MiB").plan(unreadable(200, 50)))
    assert "1.0 MiB, memory_limit: DOES NOT FIT" in text


def test_an_iteration_is_chosen_only_where_an_exact_answer_is_dear() -> None:
    small, large = (PCA(20).plan(unreadable(n, d, 500, "f4")) for n, d in ((60_000, 1_200), (60_000, 12_000)))
    assert small.solver == "covariance"
    assert large.solver == "krylov"
    assert "covariance costs" in large.reason


@pytest.mark.parametrize(
    ("n_components", "dtype", "single"), [(500, "f4", True), (501, "f4", False), (None, "f4", False), (5, "f8", False)]
)
def test_a_dot_matrix_that_is_corrected_is_multiplied_in_float32_at_a_tenth_of_the_cost(
    n_components: int | None, dtype: str, single: bool
) -> None:
    for d in (2000, 3000):  # 8e9 and 1.2e10 flops
        plan = PCA(n_components, solver="dot").plan(da.zeros((2000, d), chunks=(500, d), dtype=dtype))
        assert any(one.single for one in plan.costs) is (single and d == 3000)


@pytest.mark.parametrize("solver", ["covariance", "dot", "auto"])
def test_what_does_not_fit_is_rejected_before_any_read_with_numbers_and_ways_out(solver: str) -> None:
    n = d = 30_000 if solver == "auto" else 20_000
    X = unreadable(n, d, chunk=1000)
    with pytest.raises(MemoryBudgetError) as caught:
        PCA(3, solver=solver, memory_limit="1 GiB").fit(X)
    message = str(caught.value)
    named = ("covariance", "dot") if solver == "auto" else (solver,)
    for name in named:
        assert f"{name} needs " in message
    assert "a state is " in message
    assert "are left of memory_limit = 1.0 GiB (75% of it, less" in message
    for way_out in ("more memory", "fewer threads", "smaller chunks", "reduce the number of columns"):
        assert way_out in message


def test_auto_takes_the_smaller_matrix_and_says_why() -> None:
    tall, wide = PCA().plan(unreadable(5000, 20, chunk=500)), PCA().plan(unreadable(30, 3000))
    assert (tall.solver, wide.solver) == ("covariance", "dot")
    assert "dot costs" in tall.reason
    assert "times as much" in tall.reason
    cheaper = PCA(2).plan(unreadable(20_000, 2000, chunk=2000))
    assert cheaper.solver == "covariance"
    assert cheaper.reason.endswith(
        "krylov is not exact (preferred where an exact fit takes over 30 s and twice as long)"
    )
    assert "covariance costs" in wide.reason


def test_auto_takes_the_one_that_fits() -> None:
    tall = PCA(memory_limit="4 GiB").plan(unreadable(100_000, 20, chunk=10_000))
    wide = PCA(memory_limit="4 GiB").plan(unreadable(20, 100_000))  # with what an idle process of tests holds
    assert (tall.solver, wide.solver) == ("covariance", "dot")
    assert "dot does not fit" in tall.reason
    assert "covariance does not fit" in wide.reason


def test_fit_uses_the_solver_that_was_selected() -> None:
    rng = np.random.default_rng(0)
    for shape in ((300, 10), (10, 300)):
        X = da.from_array(rng.standard_normal(shape), chunks=(5, shape[1]))
        assert PCA(3).fit(X).solver_ == PCA(3).plan(X).solver


def test_omitting_rows_selects_the_covariance() -> None:
    assert PCA(nan_policy="omit").plan(unreadable(30, 300)).solver == "covariance"


def test_on_a_cluster_the_tightest_worker_decides() -> None:
    X = unreadable(2000, 30, chunk=100)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=3, processes=False, memory_limit="4321MiB", dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        plan = PCA(3).plan(X)
        own = PCA(3, memory_limit="8 GiB").plan(X)
        in_memory = PCA(3).plan(np.zeros((20, 3)))
        with pytest.raises(MemoryBudgetError, match=r"3 threads x .* workers' memory limit = 4\.2 GiB"):
            PCA(3, solver="covariance").fit(unreadable(50_000, 40_000, chunk=1000))
    assert (plan.resources.limit_bytes, plan.resources.threads) == (4321 * 2**20, 3)
    assert plan.resources.where == "the workers' memory limit"
    assert "4.2 GiB, the workers' memory limit: fits" in str(plan)
    assert (own.resources.limit_bytes, own.resources.where) == (2**33, "memory_limit")
    assert in_memory.resources.where == "this machine's free memory"


def test_scores_larger_than_the_free_disk_are_rejected_before_any_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pca = PCA(3).fit(np.random.default_rng(0).standard_normal((20, 4)))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=10**9, used=10**9, free=2**20))
    with pytest.raises(
        bp.errors.MemoryBudgetError, match=r"scores.zarr needs 4,848,000 bytes of disk .* but 1,048,576 are free"
    ):
        pca.transform(unreadable(200_000, 4, chunk=10_000), out=tmp_path / "scores.zarr")
    assert not list(tmp_path.glob("scores.zarr"))


def test_the_plan_of_an_iteration_says_what_it_holds_and_how_often_it_may_read() -> None:
    n, d, k = 50_000, 20_000, 20
    plan = PCA(k, solver="krylov", max_passes=6, tol=1e-4, memory_limit="16 GiB").plan(unreadable(n, d, chunk=500))
    assert plan.solver == "krylov"
    assert 3 <= plan.passes <= 3.2  # a sample decodes whole chunks
    assert "until the eigenvalues are known to 0.0001" in plan.reason
    assert "at most 6 (max_passes)" in plan.notes[0]
    assert "basis of up to 160 columns" in plan.notes[1]
    assert plan.process_bytes >= 16 * d * 160


N, D, CHUNK = 400, 12, 20
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D)) * 0.7 ** np.arange(D) + 2.0
Y = np.arange(N) % 3
RBF = {"kernel": "rbf", "gamma": 0.05}
CASES: dict[str, Callable[[], Any]] = {
    "SketchTransformer": lambda: bp.SketchTransformer(Gaussian(8)),
    "SupervisedRandomProjection": lambda: bp.SupervisedRandomProjection(2),
    "PCA scaled": lambda: bp.PCA(2, solver="dot", scale=True),
    "ApproximatePCA scaled": lambda: bp.ApproximatePCA(2, Gaussian(8), scale=True),
    **{f"PCA {s}": lambda s=s: bp.PCA(2, solver=s) for s in ("covariance", "dot", "krylov")},
    "PCA signflip": lambda: bp.PCA(bp.rules.ParallelAnalysis("signflip", n_flips=2), solver="covariance"),
    "PCA signflip krylov": lambda: bp.PCA(bp.rules.ParallelAnalysis("signflip", n_flips=2), solver="krylov"),
    "PCA cross-validated": lambda: bp.PCA("cross-validated"),
    "PCA parallel dot": lambda: bp.PCA("parallel-analysis", solver="dot"),
    "ApproximatePCA parallel": lambda: bp.ApproximatePCA("parallel-analysis", Gaussian(8)),
    **{f"ApproximatePCA {c}": lambda c=c: bp.ApproximatePCA(2, Gaussian(8), approximation=c)
       for c in ("nystrom", "tutorial", "ritz")},
    "ApproximatePCA tutorial scaled": lambda: bp.ApproximatePCA(2, Gaussian(8), approximation="tutorial", scale=True),
    **{f"KernelPCA {s}": lambda s=s: bp.KernelPCA(2, solver=s, **RBF) for s in ("dense", "krylov")},
    "KernelPCA features": lambda: bp.KernelPCA(2, kernel="linear", solver="features"),
    **{f"ApproximateKernelPCA {c}": lambda c=c: bp.ApproximateKernelPCA(2, approximation=c, **RBF)
       for c in ("nystrom", "tutorial", "ritz")},
    **{f"NystromKernelPCA {s} {e}":
           lambda s=s, e=e: bp.NystromKernelPCA(2, n_landmarks=30, sampling=s, components_from=e, **RBF)
       for s in SAMPLINGS for e in ("rows", "landmarks")},
    "NystromKernelPCA numbers": lambda: bp.NystromKernelPCA(2, sampling=np.arange(0, N, 13), **RBF),
    "NystromKernelPCA rows": lambda: bp.NystromKernelPCA(2, sampling=X[::13], **RBF),
    "SupervisedPCA": lambda: bp.SupervisedPCA(2),
    "Roweis": lambda: bp.RoweisDiscriminantAnalysis(2, r1=0.5, r2=0.5),
    "Fisher": lambda: bp.FisherDiscriminantAnalysis(2),
    **{f"KernelSupervisedPCA {s}": lambda s=s: bp.KernelSupervisedPCA(2, n_landmarks=30, sampling=s, **RBF)
       for s in ("rpcholesky", "kmeans")},
    "KernelSupervisedPCA dual": lambda: bp.KernelSupervisedPCA(2, solver="pairs", **RBF),
    "KernelRoweis": lambda: bp.KernelRoweisDiscriminantAnalysis(2, n_landmarks=30, **RBF),
    "KernelSupervisedPCA of all rows": lambda: bp.KernelSupervisedPCA(None, kernel="rbf", gamma=1.0),
    "ScoredPCA": lambda: bp.ScoredPCA(2),
    "SlowFeatureAnalysis": lambda: bp.SlowFeatureAnalysis(2),
    "MinimumNoiseFraction": lambda: bp.MinimumNoiseFraction(2, width=20),
    "TICA": lambda: bp.TICA(2, lag=30),
    "ContrastivePCA": lambda: bp.ContrastivePCA(2, alpha=0.5),
    "GeneralizedPCA": lambda: bp.GeneralizedPCA(2, metric=np.diag(np.arange(1.0, D + 1))),
    "CorrespondenceAnalysis": lambda: bp.CorrespondenceAnalysis(2),
    "FactorAnalysis": lambda: bp.FactorAnalysis(2),
    **{kind: lambda kind=kind: getattr(bp, kind)(1) for kind in ("CCA", "PLSSVD", "PLSRegression", "Ridge")},
    "PLSRegression of folds": lambda: bp.PLSRegression(bp.rules.CrossValidated(3)),
    "windows by covariance": lambda: bp.PCA(2, solver="covariance"),
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


@pytest.mark.parametrize("name", CASES)
def test_planned_reads_are_counted_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = stored(tmp_path, np.abs(X).astype("f4"), (CHUNK, D))
    lazy = bp.data.lagged(lazy, range(5)) if "windows" in name else lazy
    model = CASES[name]()
    y = Y[: len(lazy)]
    plan = model.plan(lazy, y)
    reads, events = Reads().watch(monkeypatch), []
    model.fit(lazy, y, progress=events.append)
    counted = float(reads.per_chunk((N, D), (CHUNK, D)).mean())
    if plan.most_passes is None:
        assert counted == pytest.approx(plan.passes, abs=0.01)
    else:
        assert counted <= plan.most_passes
        assert plan.passes < plan.most_passes
    if hasattr(model, "n_passes_") and "krylov" not in name:  # a sample of some rows of every chunk is less than a read
        assert model.n_passes_ == pytest.approx(counted, abs=0.01)
    begun = [event for event in events if isinstance(event, PassEvent)]
    shown = sum(event.bytes for event in events if isinstance(event, GroupEvent))
    assert shown == sum(event.bytes_total for event in begun)
    beside = y.nbytes if isinstance(model, (bp.CCA, bp.PLSSVD, bp.PLSRegression, bp.Ridge)) else 0
    assert shown <= 1.001 * counted * 4 * N * D + beside  # the rest: the first rows, for a shift, and k-means


@pytest.mark.parametrize("dtype", ["u1", "f4", "i8", "f8"])
def test_progress_counts_the_bytes_that_are_read_whatever_they_are_multiplied_in(dtype: str, tmp_path: Path) -> None:
    data = (10 * X).astype(dtype)
    lazy, events = stored(tmp_path, data, (CHUNK, D)), []
    bp.PCA(2, solver="covariance").fit(lazy, progress=events.append).transform(
        lazy, out=tmp_path / "scores", progress=events.append
    )
    bp.KernelPCA(2, solver="dense", **RBF).fit(lazy, progress=events.append)
    totals = [event.bytes_total for event in events if isinstance(event, PassEvent)]
    assert totals[:2] == [data.nbytes] * 2
    assert totals[2] == pytest.approx(2.05 * data.nbytes)  # panels read on to the end
    assert sum(event.bytes for event in events if isinstance(event, GroupEvent)) == sum(totals)
