"""Fit and save a small model of every class, with what it returns for new rows: ``python make.py FOLDER``.

``models.tar.xz`` and ``expected.npz`` in this folder were made by the commit a06b0d8, before the fits were rebuilt.
They are never made again: a change that cannot read them breaks the models of users.
"""

from __future__ import annotations

import contextlib
import sys
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import bigpca as bp
from bigpca.kernels import RBF, ChiSquare, Polynomial, normalized

N, D, K = 48, 6, 2
METHODS = (
    "transform",
    "inverse_transform",
    "score_samples",
    "novelty",
    "denoise",
    "decision_function",
    "predict_proba",
)
_rng = np.random.default_rng(0)
X = np.abs(_rng.standard_normal((N, D)) * np.arange(1, D + 1.0) ** -0.5 + 3)
NEW = np.abs(_rng.standard_normal((9, D)) + 3)
Y = np.argmax(X[:, :3] + _rng.standard_normal((N, 3)), axis=1)
REAL = X[:, :2] @ _rng.standard_normal((2, 2)) + _rng.standard_normal((N, 2))
NAMES = np.array(["low", "middle", "high"])
SKETCH = bp.sketches.Gaussian(5, seed=1)
LANDMARKS: dict[str, Any] = {"kernel": RBF(0.2), "n_landmarks": 20, "random_state": 0}

MODELS: dict[str, Callable[[], Any]] = {
    "pca": lambda: bp.PCA(K, solver="covariance").fit(X),
    "pca-whole": lambda: bp.PCA(whiten=True, scale=True, solver="covariance").fit(X.astype("f4")),
    "pca-dot": lambda: bp.PCA(K, solver="dot", center=False).fit(X),
    "pca-krylov": lambda: bp.PCA(K, solver="krylov", random_state=0).fit(X),
    "pca-rule": lambda: bp.PCA(bp.RelativeThreshold(0.2), nan_policy="omit").fit(X),
    **{
        f"approximate-{core}": lambda core=core: bp.ApproximatePCA(K, SKETCH, core=core).fit(X)
        for core in ("nystrom", "tutorial", "ritz")
    },
    "approximate-sparse": lambda: bp.ApproximatePCA(K, bp.sketches.SparseSign(5, nnz=2, seed=5), scale=True).fit(X),
    "sketch": lambda: bp.SketchTransformer(bp.sketches.SRHT(4, seed=2)).fit(X),
    **{
        f"kernel-{solver}": lambda solver=solver: bp.KernelPCA(K, kernel=RBF(0.2), solver=solver, random_state=0).fit(X)
        for solver in ("dense", "krylov")
    },
    "kernel-features": lambda: bp.KernelPCA(K, kernel=Polynomial(2), solver="features").fit(X),
    "kernel-preimages": lambda: bp.KernelPCA(K, kernel=RBF(0.2), fit_inverse_transform=True).fit(X),
    "kernel-algebra": lambda: bp.KernelPCA(K, kernel=2 * normalized(Polynomial(2)) + ChiSquare()).fit(X),
    **{
        f"approximate-kernel-{core}": lambda core=core: bp.ApproximateKernelPCA(
            K, kernel=RBF(0.2), sketch=bp.sketches.Gaussian(9, seed=1), core=core, random_state=0
        ).fit(X)
        for core in ("nystrom", "tutorial", "ritz")
    },
    **{
        f"nystrom-{sampling}": lambda sampling=sampling: bp.NystromKernelPCA(K, sampling=sampling, **LANDMARKS).fit(X)
        for sampling in ("uniform", "rpcholesky", "leverage", "kmeans", "column-norm")
    },
    "nystrom-tutorial": lambda: bp.NystromKernelPCA(K, extension="tutorial", **LANDMARKS).fit(X),
    "supervised": lambda: bp.SupervisedPCA(K).fit(X, Y),
    "supervised-numbers": lambda: bp.SupervisedPCA(K, label_kernel="rbf").fit(X, REAL),
    "projection": lambda: bp.SupervisedRandomProjection(5, n_features=9, random_state=0).fit(X, REAL),
    "roweis": lambda: bp.RoweisDiscriminantAnalysis(K, r1=0.5, r2=0.5).fit(X, Y),
    "roweis-krylov": lambda: bp.RoweisDiscriminantAnalysis(K, r1=1.0, r2=0.0, solver="krylov").fit(X, Y),
    "roweis-robust": lambda: bp.RoweisDiscriminantAnalysis(1, r1=1.0, r2=0.5, robust=True).fit(X, Y),
    "fisher": lambda: bp.FisherDiscriminantAnalysis(K).fit(X, NAMES[Y]),
    "kernel-supervised": lambda: bp.KernelSupervisedPCA(K, **LANDMARKS).fit(X, Y),
    "kernel-supervised-dual": lambda: bp.KernelSupervisedPCA(K, kernel=RBF(0.2), form="dual", random_state=0).fit(X, Y),
    "kernel-roweis": lambda: bp.KernelRoweisDiscriminantAnalysis(K, **LANDMARKS).fit(X, Y),
    "scored": lambda: bp.ScoredPCA(K, n_features_to_select=4, estimator=bp.PCA(K)).fit(X, Y),
}  # fmt: skip

LABELS: dict[str, Any] = {
    **dict.fromkeys(("supervised", "roweis", "roweis-robust", "kernel-supervised", "kernel-roweis", "scored"), Y[:9]),
    **dict.fromkeys(("supervised-numbers", "projection"), REAL[:9]),
    "fisher": NAMES[Y[:9]],
}


def results(model: Any, labels: Any) -> dict[str, Any]:
    """Return what each method returns for new rows, in both precisions, and after more rows with these labels."""
    found: dict[str, Any] = {}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found["transform of float32"] = model.transform(NEW.astype("f4"))
        for method in METHODS:
            if hasattr(model, method):
                try:
                    given = found["transform"] if method == "inverse_transform" else NEW
                    found[method] = getattr(model, method)(given)
                except (AttributeError, TypeError, ValueError):
                    continue  # this fit has none
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # it keeps no statistics
            found["after more rows"] = model.partial_fit(NEW, labels).transform(NEW)
    return {name: np.asarray(values) for name, values in found.items()}


def main(folder: Path) -> None:
    """Write both files."""
    expected: dict[str, Any] = {}
    with TemporaryDirectory() as place, tarfile.open(folder / "models.tar.xz", "w:xz") as archive:
        for name, make in MODELS.items():
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                make().save(Path(place, name))
            archive.add(Path(place, name), arcname=name)
            returned = results(bp.load(Path(place, name)), LABELS.get(name))
            expected |= {f"{name}/{result}": values for result, values in returned.items()}
    np.savez_compressed(folder / "expected.npz", **expected)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
