"""A model on disk comes back as it was, or is rejected; it never comes back as something else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import bigpca as bp
from bigpca import PCA, kernels, sketches
from bigpca.errors import ModelFormatError
from bigpca.estimators.loading import restored
from bigpca.estimators.shared.files import StoredModel
from tests.builders import data_with_spectrum, power_law
from tests.estimators.stores import save_changed
from tests.estimators.test_every_estimator import bits

X = data_with_spectrum(50, power_law(6), mean=5.0)[0]
Y = np.arange(50) % 2
MODELS: dict[str, Any] = {  # with parameters of every kind
    "whitened": PCA(3, whiten=True),
    "scaled": PCA(3, scale=True, center=False),
    "share": PCA(0.8, memory_limit="8 GiB"),
    "threshold": PCA(bp.rules.RelativeThreshold(0.2), nan_policy="omit"),
    "mle": PCA("mle"),
    "krylov": PCA(3, solver="krylov", tol=1e-4, max_passes=7, random_state=3),
    "sparse signs": bp.ApproximatePCA(2, sketches.SparseSign(4, nnz=2, random_state=5), whiten=True),
    "hash": bp.ApproximatePCA(2, sketches.FeatureHash(4, signed=False), scale=True, center=False),
    "downsample": bp.ApproximatePCA(2, sketches.Downsample((2, 3), (2, 2)), approximation="tutorial"),
    "ritz": bp.ApproximatePCA(0.5, sketches.SRHT(4), approximation="ritz"),
    "kernel, krylov": bp.KernelPCA(2, kernel=kernels.RBF(0.3), solver="krylov", tol=1e-4, max_passes=7),
    "features": bp.KernelPCA(3, kernel="poly", degree=2, coef0=0.5),
    "algebra": bp.KernelPCA(3, kernel=2 * kernels.RBF(0.3) * kernels.Laplacian() + kernels.normalized(
        kernels.Polynomial(2, gamma=1.0, coef0=1.0))),
    "and back": bp.KernelPCA(3, kernel="rbf", fit_inverse_transform=0.1),
    "indefinite": bp.KernelPCA(3, kernel=kernels.Tanh(0.5, -1.0)),
    "supervised, and back": bp.KernelSupervisedPCA(1, kernel="rbf", solver="pairs", fit_inverse_transform=True),
    "a kernel of columns": bp.ScoredPCA(
        n_features_to_select=0.5, estimator=bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=20)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "kept"), [*((name, True) for name in MODELS), ("share", False), ("hash", False)])
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
def test_everything_comes_back(name: str, kept: bool, tmp_path: Path) -> None:
    with bp.config(keep_state_bytes=None if kept else 0):
        model = clone(MODELS[name]).fit(X, Y)
    model.save(tmp_path / "model")
    loaded = bp.load(tmp_path / "model")
    assert str(loaded.get_params()) == str(model.get_params())
    assert bits(loaded) == bits(model)
    scores = model.transform(X)
    np.testing.assert_array_equal(loaded.transform(X), scores)
    if hasattr(model, "inverse_transform"):
        np.testing.assert_array_equal(loaded.inverse_transform(scores), model.inverse_transform(scores))


METRIC = np.diag(np.arange(1.0, 81))
WIDE = np.random.default_rng(0).standard_normal((70, 80))
GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "a metric": (lambda: bp.GeneralizedPCA(2, metric=METRIC), {"metric": METRIC}),
    "a metric of a table": (lambda: bp.GeneralizedPCA(2, metric=pd.DataFrame(METRIC)), {"metric": METRIC}),
    "a centre of a table": (lambda: bp.PCA(2, center=pd.Series(METRIC[0])), {"center": METRIC[0]}),
    "landmarks": (
        lambda: bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=30, sampling=WIDE[:30]),
        {"sampling": WIDE[:30]},
    ),
    "a centre of what is held": (
        lambda: bp.RotatedPCA(estimator=bp.PCA(2, center=np.arange(1200.0), scale=np.full(1200, 2.0, "f4"))), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
def test_many_given_numbers_are_arrays_of_the_file(name: str, tmp_path: Path) -> None:
    make, given = GIVEN[name]
    rows = np.tile(WIDE, 15) if name == "a centre of what is held" else WIDE
    model = make().fit(rows)
    model.save(tmp_path / "m.zarr")
    assert (tmp_path / "m.zarr" / "zarr.json").stat().st_size < 30_000
    loaded = bp.load(tmp_path / "m.zarr")
    for parameter, value in given.items():
        np.testing.assert_array_equal(loaded.get_params()[parameter], value)
        assert loaded.get_params()[parameter].dtype == value.dtype
    if not given:
        inner, own = loaded.estimator.get_params(), model.estimator.get_params()
        for parameter in ("center", "scale"):
            np.testing.assert_array_equal(inner[parameter], own[parameter])
            assert inner[parameter].dtype == own[parameter].dtype
    np.testing.assert_array_equal(loaded.transform(rows), model.transform(rows))
    loaded.save(tmp_path / "again.zarr")
    assert {one.name for one in (tmp_path / "again.zarr").iterdir()} == {
        one.name for one in (tmp_path / "m.zarr").iterdir()
    }


def test_a_loaded_model_without_state_cannot_go_on(tmp_path: Path) -> None:
    PCA(3, solver="dot").fit(X).save(tmp_path / "dot.zarr")
    with pytest.raises(ValueError, match=r'fitted by solver="dot", which keeps none'):
        bp.load(tmp_path / "dot.zarr").set_params(solver="auto").partial_fit(X)
    with bp.config(keep_state_bytes=0):
        PCA(3).fit(X).save(tmp_path / "bare.zarr")
    with pytest.raises(ValueError, match=r"not kept because keep_state_bytes was smaller when it was fitted"):
        bp.load(tmp_path / "bare.zarr").partial_fit(X)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": np.zeros(5)}, r"mean of shape \(5,\); \(6,\) was expected, as n_features has it"),
        ({"components": np.zeros(6)}, r"components of shape \(6,\); \(k, d\) was expected"),
        ({"components": 2 * np.eye(3, 6)}, "components that are not orthonormal"),
        ({"mean": np.full(6, np.nan)}, "mean with values that are not finite"),
        ({"mean": None}, "lacks mean"),
        ({"state__count": None}, "does not hold what a PCA of format"),
    ],
)
def test_a_whole_but_wrong_model_is_rejected(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save_changed(PCA(3).fit(X), changes, tmp_path / "model.zarr")
    with pytest.raises(ModelFormatError, match=message):
        bp.load(path)


def test_effects_of_covariates_on_other_columns_are_rejected(tmp_path: Path) -> None:
    model = bp.CCA(1).fit(X[:, :3], X[:, 3:5], covariates=X[:, 5:])
    path = save_changed(model, {"regression__coef": np.ones((4, 1))}, tmp_path / "model.zarr")
    with pytest.raises(ModelFormatError, match="regression of 4 columns, not of 5"):
        bp.load(path)


DETERMINE_NOTHING = {
    "certificate__subspaces__upper",
    "state__moments_0_packed",
}  # arrays whose size no other has, or that may be flat
FORGED = {
    "n_features": (-1, 0, 1.5, "6", True, None, 2**70), "n_samples": (-1, 1.5, "6", True, None, []),
    "n_omitted": (-1, 0.5, "0", True, None), "rank": (-1, 0.5, "1"), "axes__rank": (-1, 0.5, "1", None),
    "total_variance": ("2", True, None, float("nan")), "total": ("2", True, None, float("inf")),
    "solver": (1, None, []), "feature_names": (["a"], [1, 2, 3, 4, 5, 6], "abcdef"),
    "certificate__confidence": (2, None, "0.9"), "certificate__n_passes": (-1.0, "1"),
    "certificate__converged": ("yes", 1), "weight_sums": ([3.0, float("nan")],), "kernel_evaluations": (-1, 0.5, "9"),
    "statistics__omitted": (-1, 0.5), "supervision__unlabelled": (-1, 0.5, True), "supervision__missed": (-1.0, "0"),
}  # fmt: skip


@pytest.mark.parametrize(
    "model",
    [PCA(2), bp.ApproximatePCA(2), bp.KernelPCA(2, kernel="rbf"), bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=9),
     bp.SupervisedPCA(1), bp.ScoredPCA(1), bp.FisherDiscriminantAnalysis(1), bp.KernelSupervisedPCA(1, kernel="rbf"),
     bp.SketchTransformer(bp.sketches.Gaussian(2)),
     bp.SupervisedRandomProjection(1, n_features=9), bp.SupervisedPCA(1, label_kernel="rbf")],  # of real labels
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_forged_counts_types_and_sizes_are_rejected_when_a_model_is_read(model: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 5))
    real = isinstance(model, bp.SupervisedRandomProjection) or getattr(model, "label_kernel", "") == "rbf"
    model.fit(rows, np.arange(40) % 2 / (2 if real else 1))
    stored = StoredModel.of(model)
    for name in FORGED.keys() & stored.attributes.keys():
        for value in FORGED[name]:
            with pytest.raises((TypeError, ValueError), match=f"it has .*{name}"):
                restored(replace(stored, attributes=stored.attributes | {name: value}))
    counts = {"n_features", "n_samples"} if "state__count" in stored.arrays else {"n_features"}
    for name in counts & stored.attributes.keys() if stored.arrays else ():  # a sketch has its sizes alone
        with pytest.raises((TypeError, ValueError)):
            restored(replace(stored, attributes=stored.attributes | {name: stored.attributes[name] + 1}))
    for name, array in stored.arrays.items():
        if array.ndim and name not in DETERMINE_NOTHING:
            for axis in range(array.ndim):
                with pytest.raises((TypeError, ValueError, KeyError)):
                    restored(replace(stored, arrays=stored.arrays | {name: np.delete(array, 0, axis)}))
            with pytest.raises((TypeError, ValueError, KeyError)):
                restored(replace(stored, arrays=stored.arrays | {name: array[None]}))
            with pytest.raises((TypeError, ValueError), match=f"it has .*{name.removeprefix('estimator__')}"):
                restored(replace(stored, arrays=stored.arrays | {name: array.astype("U8")}))
