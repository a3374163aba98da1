"""Fit and save a small model of every class, with what it returns for new rows.

``python make.py --add NAME`` adds the model of a new class to ``models.tar.xz`` and ``expected.npz`` in this folder.
``python make.py`` makes both again: only where a change of the format is meant, which the change log then says. Until
then every change reads them, and finds the same numbers.
"""

import argparse
import contextlib
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
SKETCH = bp.sketches.Gaussian(5, random_state=1)
LANDMARKS: dict[str, Any] = {"kernel": RBF(0.2), "n_landmarks": 20, "random_state": 0}

MODELS: dict[str, Callable[[], Any]] = {  # one of each class
    "PCA": lambda: bp.PCA(K, solver="covariance", scale=True).fit(X),
    "ApproximatePCA": lambda: bp.ApproximatePCA(K, SKETCH).fit(X),
    "RotatedPCA": lambda: bp.RotatedPCA(estimator=bp.PCA(K, solver="covariance")).fit(X),
    "SketchTransformer": lambda: bp.SketchTransformer(bp.sketches.SRHT(4, random_state=2)).fit(X),
    "KernelPCA": lambda: bp.KernelPCA(K, kernel=2 * normalized(Polynomial(gamma=2)) + ChiSquare(), solver="dense").fit(
        X
    ),
    "ApproximateKernelPCA": lambda: bp.ApproximateKernelPCA(K, kernel=RBF(0.2), sketch=SKETCH, random_state=0).fit(X),
    "NystromKernelPCA": lambda: bp.NystromKernelPCA(K, **LANDMARKS).fit(X),
    "SupervisedPCA": lambda: bp.SupervisedPCA(K, label_kernel="rbf").fit(X, REAL),
    "SupervisedRandomProjection": lambda: bp.SupervisedRandomProjection(5, n_features=9, random_state=0).fit(X, REAL),
    "RoweisDiscriminantAnalysis": lambda: bp.RoweisDiscriminantAnalysis(1, r1=1.0, r2=0.5, robust=True).fit(X, Y),
    "FisherDiscriminantAnalysis": lambda: bp.FisherDiscriminantAnalysis(K).fit(X, NAMES[Y]),
    "KernelSupervisedPCA": lambda: bp.KernelSupervisedPCA(K, **LANDMARKS).fit(X, Y),
    "KernelRoweisDiscriminantAnalysis": lambda: bp.KernelRoweisDiscriminantAnalysis(K, **LANDMARKS).fit(X, Y),
    "ScoredPCA": lambda: bp.ScoredPCA(K, n_features_to_select=4, estimator=bp.PCA(K)).fit(X, Y),
    "CCA": lambda: bp.CCA(K).fit(X, REAL),
    "PLSSVD": lambda: bp.PLSSVD(K).fit(X, REAL),
    "PLSRegression": lambda: bp.PLSRegression(K).fit(X, REAL),
    "FactorAnalysis": lambda: bp.FactorAnalysis(K).fit(X),
    "SlowFeatureAnalysis": lambda: bp.SlowFeatureAnalysis(K).fit(X),
    "MinimumNoiseFraction": lambda: bp.MinimumNoiseFraction(K).fit(X),
    "TICA": lambda: bp.TICA(K, lag=2).fit(X),
    "ContrastivePCA": lambda: bp.ContrastivePCA(K, alpha=0.5).fit(X, Y),
    "GeneralizedPCA": lambda: bp.GeneralizedPCA(K, metric=np.diag(np.arange(1.0, D + 1))).fit(X),
    "CorrespondenceAnalysis": lambda: bp.CorrespondenceAnalysis(K).fit(X),
    "Ridge": lambda: bp.Ridge(alpha=(0.1, 1.0)).fit(X, REAL),
}

LABELS: dict[str, Any] = {  # of the rows that are added
    **dict.fromkeys(
        ("SupervisedPCA", "SupervisedRandomProjection", "CCA", "PLSSVD", "PLSRegression", "Ridge"), REAL[:9]
    ),
    **dict.fromkeys(("RoweisDiscriminantAnalysis", "KernelSupervisedPCA", "ContrastivePCA"), Y[:9]),
    "KernelRoweisDiscriminantAnalysis": Y[:9],
    "FisherDiscriminantAnalysis": NAMES[Y[:9]],
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


def main(folder: Path, added: str | None = None) -> None:
    """Write both files, or add a model to them."""
    models, expected = folder / "models.tar.xz", dict[str, Any]()
    with TemporaryDirectory() as place:
        if added is not None:
            expected |= np.load(folder / "expected.npz")
            with tarfile.open(models) as archive:
                archive.extractall(place, filter="data")
        for name in MODELS if added is None else [added]:
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                MODELS[name]().save(Path(place, name))  # which refuses to replace a model
            returned = results(bp.load(Path(place, name)), LABELS.get(name))
            expected |= {f"{name}/{result}": values for result, values in returned.items()}
        with tarfile.open(models, "w:xz") as archive:
            for path in sorted(Path(place).iterdir()):
                archive.add(path, arcname=path.name)
    np.savez_compressed(folder / "expected.npz", **expected)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", metavar="NAME", choices=MODELS, help="a key of MODELS")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    given = parser.parse_args()
    main(given.folder, given.add)
