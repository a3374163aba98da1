"""The reads and the bytes of the model that a plan states are those that run and are saved: for every estimator, solver
and sampling, or within the stated range.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import bigpca as bp
from bigpca.engine.events import GroupEvent, PassEvent
from bigpca.landmarks import SAMPLINGS
from bigpca.sketches import Gaussian
from tests.estimators.stores import stored
from tests.operators.counting import Reads

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


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_training_rows_of_a_computation_are_held_in_the_working_dtype(dtype: str) -> None:
    rows = da.from_array((10 * X).astype(dtype), chunks=(CHUNK, D)) + np.ones((), dtype)
    for solver in ("dense", "krylov"):
        held = bp.KernelPCA(2, solver=solver, **RBF).fit(rows)._found.expansion.references.rows
        assert held.dtype == (np.float64 if dtype == "f8" else np.float32)
        np.testing.assert_array_equal(held, rows.compute())
