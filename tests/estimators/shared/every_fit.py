"""Fit every estimator, by every solver, and print a digest of each number that comes of it.

``python every_fit.py memory|threads|cluster [FIT ...]``: rows in memory, lazy ones, or lazy ones on a LocalCluster that
was started before the first fit. ``python every_fit.py record``, with OPENBLAS_NUM_THREADS=1, writes those of public
results to ``digests.json``, with which a test compares: one record for each set of vector instructions. ``record FIT
...`` adds those of new fits, and leaves all others as they are. On a processor with AVX-512, run it again with
NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL" for those without, and with "AVX512_SPR" added where NumPy finds that too.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import bigpca as bp
from bigpca.blas import numerical_environment
from bigpca.kernels import RBF, Polynomial

RECORD = Path(__file__).with_name("digests.json")
N, D, K = 330, 120, 5
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D)) * np.arange(1, D + 1.0) ** -0.5 + 3
Y = np.argmax(X[:, :4] + RNG.standard_normal((N, 4)), axis=1)
REAL = X[:, :2] @ RNG.standard_normal((2, 2)) + RNG.standard_normal((N, 2))
SKETCH = bp.sketches.Gaussian(90)
LANDMARKS = {"n_landmarks": 110}

FITS: dict[str, tuple[Callable[[], Any], Any]] = {
    "covariance": (lambda: bp.PCA(K, solver="covariance"), None),
    "whole spectrum": (lambda: bp.PCA(solver="covariance", whiten=True), None),
    "dot": (lambda: bp.PCA(K, solver="dot"), None),
    "krylov": (lambda: bp.PCA(K, solver="krylov", scale=True), None),
    **{
        core: (lambda core=core: bp.ApproximatePCA(K, SKETCH, approximation=core), None)
        for core in ("nystrom", "tutorial", "ritz")
    },
    **{
        f"kernel {solver}": (lambda solver=solver: bp.KernelPCA(K, kernel=RBF(), solver=solver), None)
        for solver in ("dense", "krylov")
    },
    "kernel features": (lambda: bp.KernelPCA(K, kernel=Polynomial(gamma=2), solver="features"), "narrow"),
    "preimages": (lambda: bp.KernelPCA(K, kernel=RBF(), fit_inverse_transform=True), None),
    "approximate kernel": (lambda: bp.ApproximateKernelPCA(K, kernel=RBF()), None),
    **{
        sampling: (lambda sampling=sampling: bp.NystromKernelPCA(K, kernel=RBF(), sampling=sampling, **LANDMARKS), None)
        for sampling in ("uniform", "rpcholesky", "kmeans", "column-norm")
    },
    "tutorial landmarks": (
        lambda: bp.NystromKernelPCA(K, kernel=RBF(), components_from="landmarks", **LANDMARKS),
        None,
    ),
    "supervised": (lambda: bp.SupervisedPCA(3), Y),
    "supervised by numbers": (lambda: bp.SupervisedPCA(2), REAL),
    "supervised projection": (lambda: bp.SupervisedRandomProjection(20), REAL),
    "kernel supervised": (lambda: bp.KernelSupervisedPCA(3, kernel=RBF(), **LANDMARKS), Y),
    "kernel supervised dual": (lambda: bp.KernelSupervisedPCA(3, kernel=RBF(), solver="pairs"), Y),
    "roweis": (lambda: bp.RoweisDiscriminantAnalysis(3, r1=0.5, r2=0.5), Y),
    "fisher": (lambda: bp.FisherDiscriminantAnalysis(3), Y),
    "kernel roweis": (lambda: bp.KernelRoweisDiscriminantAnalysis(3, kernel=RBF(), **LANDMARKS), Y),
    "scored": (lambda: bp.ScoredPCA(3, n_features_to_select="cv", estimator=bp.PCA(3)), Y),
    "rotated": (lambda: bp.RotatedPCA(estimator=bp.PCA(3)), None),
    "sketch": (lambda: bp.SketchTransformer(SKETCH), None),
    "canonical": (lambda: bp.CCA(2), REAL),
    "covariances of sides": (lambda: bp.PLSSVD(2), REAL),
    "partial least squares": (lambda: bp.PLSRegression(2), REAL),
    "factors": (lambda: bp.FactorAnalysis(2), None),
    "slow features": (lambda: bp.SlowFeatureAnalysis(2), None),
    "noise fraction": (lambda: bp.MinimumNoiseFraction(2), None),
    "lagged": (lambda: bp.TICA(2, lag=3), None),
    "contrasts": (lambda: bp.ContrastivePCA(2, alpha=0.5), Y),
    "metric": (lambda: bp.GeneralizedPCA(2, metric=np.diag(np.arange(1.0, X.shape[1] + 1))), None),
    "correspondences": (lambda: bp.CorrespondenceAnalysis(2), "counts"),
    "ridge of folds": (lambda: bp.Ridge([0.1, 10.0], cv=3), REAL),
    "partial least squares of folds": (lambda: bp.PLSRegression(bp.rules.CrossValidated(cv=3)), REAL),
    "cross-validated": (lambda: bp.PCA(bp.rules.CrossValidated(cv=3), solver="covariance"), None),
    "groups": (lambda: bp.PCA(2, solver="covariance"), {"groups": Y}),
    "windows": (lambda: bp.PCA(2, solver="krylov", tol=1e-9), "windows"),
    "windows by moments": (lambda: bp.PCA(2, solver="covariance"), "windows"),
}


def numbers(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Give the digest of every array and number that an object holds."""
    if isinstance(value, np.ndarray | np.generic | int | float | complex | str | bool | None):
        array = np.asarray(value)
        content = array.tobytes() if array.dtype.kind != "O" else repr(value).encode()
        yield name, f"{array.dtype}{array.shape}{hashlib.sha256(content).hexdigest()[:16]}"
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, f"{name}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for i, one in enumerate(value):
            yield from numbers(one, f"{name}.{i}", depth + 1)
    elif hasattr(value, "__dict__") and depth < 8:
        for key, one in sorted(vars(value).items()):
            if key not in ("plan_", "_provenance"):
                yield from numbers(one, f"{name}.{key}", depth + 1)


def results(name: str, lazily: bool) -> Iterator[tuple[str, str]]:
    """Give the digests of one fit, of the scores of new rows, of pre-images, and of what more rows make of it."""
    make, y = FITS[name]
    rows = {"narrow": X[:, :12], "counts": np.abs(X)}.get(y, X) if isinstance(y, str) else X
    named = y if isinstance(y, dict) else {}
    beside = () if y is None or isinstance(y, str | dict) else (y,)
    given: Any = da.from_array(rows, chunks=(110, rows.shape[1])) if lazily else rows
    if name.startswith("windows"):
        given = bp.data.lagged(given[:, :12], range(5))
        rows = np.asarray(given)
    model = make().fit(given, *beside, **named)
    yield from numbers(model, name)
    for attribute in dir(type(model)):
        if (
            attribute.endswith("_")
            and not attribute.startswith(("_", "provenance", "shrinkage"))
            and hasattr(model, attribute)
        ):
            yield from numbers(getattr(model, attribute), f"{name}: {attribute}")
    scores = model.transform(given[:300])
    yield from numbers(np.asarray(scores), f"{name}: scores")
    for method in ("inverse_transform", "score_samples", "novelty", "denoise", "predict_proba", "decision_function"):
        try:
            found = getattr(model, method)(np.asarray(scores) if method == "inverse_transform" else rows[:50])
        except (AttributeError, ValueError, TypeError):
            continue  # it has none
        yield from numbers(np.asarray(found), f"{name}: {method}")
    for method in ("get_covariance", "get_precision"):
        if hasattr(model, method) and name != "tutorial":
            yield from numbers(getattr(model, method)(), f"{name}: {method}")
    if hasattr(model, "partial_fit"):
        try:
            more = {argument: values[:200] for argument, values in named.items()}
            model.partial_fit(rows[:200], *(values[:200] for values in beside), **more)
        except (ValueError, TypeError):
            return  # this fit kept no statistics
        yield from numbers(model, f"{name}: more rows")


def public(found: dict[str, str]) -> dict[str, str]:
    """Return one digest for the public results of each fit: attributes, scores, and what methods return."""
    fits: dict[str, list[str]] = {}
    for key, digest in sorted(found.items()):
        fit, colon, _ = key.partition(": ")
        if colon and "more rows" not in key:
            fits.setdefault(fit, []).append(f"{key} {digest}")
    return {fit: hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] for fit, lines in fits.items()}


def every(where: str, names: list[str]) -> dict[str, str]:
    """Return the digests of these fits, or of all and of what is made of several."""
    found = {key: digest for name in names or FITS for key, digest in results(name, where in ("threads", "cluster"))}
    if not names:
        a, b = (bp.PCA(K, solver="covariance").fit(part) for part in (X[:150], X[150:]))
        found |= dict(numbers(bp.merge(a, b), "merged"))
        found |= dict(numbers(bp.roweis_map(X, Y, 3, model=bp.RoweisDiscriminantAnalysis(2)), "map"))
    return found


def record(found: dict[str, str], *, added: bool) -> None:
    """Write digests to the record of this environment: they replace it, or are ``added`` to those of other fits."""
    environment, records = numerical_environment(), json.loads(RECORD.read_text())
    known = [one["digests"] for one in records if one["environment"] == environment]
    if added and not known:
        raise SystemExit(f"{RECORD.name} has no record of this environment, {environment}. Record all fits.")
    others = [one for one in records if one["environment"] != environment]
    digests = {**(known[0] if added else {}), **public(found)}
    RECORD.write_text(json.dumps([*others, {"environment": environment, "digests": digests}], indent=1) + "\n")


def main(where: str, names: list[str]) -> None:
    """Print all digests as JSON."""
    warnings.simplefilter("ignore")
    cluster: Any = None
    if where == "cluster":
        from distributed import Client, LocalCluster

        cluster = LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0")
        Client(cluster)
    bp.config(solve_threads=2).keep()
    found = every(where, names)
    if where == "record":
        record(found, added=bool(names))
    else:
        print(json.dumps(found))
    if cluster is not None:
        cluster.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
