"""Exports of linear models compute what ``transform`` computes, each run by the library that it is for."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.decomposition import PCA as SklearnPCA
from sklearn.pipeline import Pipeline

import bigpca as bp
from bigpca.errors import OutputExistsError
from bigpca.passes.reading.row_maps import RowPreprocessor
from tests.estimators.test_every_estimator import CASES, NEW, X

Array = NDArray[Any]
pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
LINEAR: dict[str, Callable[[], Any]] = {
    **{
        name: lambda case=case: case.make().fit(X, case.y)
        for name, case in CASES.items()
        if "ernel" not in name
        and " dot" not in name
        and "krylov" not in name
        # of two sides: no linear map of one
        and name.partition(" of ")[0] not in ("CCA", "PLSSVD", "PLSRegression", "Ridge")
    },
    "scaled": lambda: bp.PCA(3, scale=True).fit(X),
    "scaled and whitened": lambda: bp.PCA(3, scale=True, whiten=True).fit(X),
    "whitened": lambda: bp.PCA(3, whiten=True).fit(X),
    "whitened, with axes of rounding": lambda: bp.PCA(6, whiten=True).fit(X[:, [0, 1, 2, 0, 1, 2]]),
    "not centred": lambda: bp.PCA(2, center=False).fit(X),
    "far from the origin": lambda: bp.PCA(2).fit(X + 1e4),
    "axes that are not orthonormal": lambda: bp.ApproximatePCA(
        3, bp.sketches.Gaussian(5), approximation="tutorial"
    ).fit(X),
    "scaled columns": lambda: bp.ScoredPCA(estimator=bp.PCA(2, scale=True, whiten=True)).fit(X, X[:, 0]),
}
COUNTS_FIRST = [bp.preprocessing.NormalizeTotal(), bp.preprocessing.Log1p()]
CURVED: dict[str, Callable[[], Any]] = {
    "of unit length": lambda: bp.PCA(2, preprocess=bp.preprocessing.L2()).fit(X),
    "roots of unit length": lambda: bp.PCA(
        2, preprocess=[bp.preprocessing.Power(0.3), bp.preprocessing.L2("keep")]
    ).fit(X),
    "logarithms of counts": lambda: bp.PCA(2, preprocess=COUNTS_FIRST).fit(np.abs(X)),
    "clipped deviations": lambda: bp.PCA(2, preprocess=[bp.preprocessing.Standardize(1.0)]).fit(X * [1, 1, 1, 1, 1, 0]),
    "deviations": lambda: bp.PCA(2, preprocess=[bp.preprocessing.L2(), bp.preprocessing.Standardize()]).fit(X),
    "scores of unit length": lambda: bp.PCA(2, whiten=bp.scales.Whitening(l2=True)).fit(X),
    **{name: made for name, made in LINEAR.items() if name in ("PCA of values", "CorrespondenceAnalysis")},
}
LINEAR = {name: made for name, made in LINEAR.items() if name not in CURVED}
linear = pytest.mark.parametrize("name", LINEAR)


@lru_cache
def fitted(name: str) -> Any:
    return (LINEAR | CURVED)[name]()


def rows_for(name: str) -> Array:
    if "rounding" in name:
        return NEW[:, [0, 1, 2, 0, 1, 2]]
    if "counts" in name:
        return np.vstack([np.abs(NEW), np.zeros(6)])
    return np.vstack([NEW, np.zeros(6)]) if "roots" in name else NEW + 1e4 if "origin" in name else NEW


@pytest.mark.parametrize("name", LINEAR | CURVED)
def test_the_linear_map_and_scikit_learn_give_the_scores_of_transform(name: str) -> None:
    model, new = fitted(name), rows_for(name)
    scores = model.transform(new)
    size = np.abs(scores).max() + np.abs(new).max()  # of the terms that cancel
    if name not in CURVED:
        A, b = model.linear_map()
        size = np.abs(scores).max() + np.abs(new).max() * np.abs(A).max()
        np.testing.assert_allclose(new @ A.T + b, scores, rtol=0, atol=1e-13 * size)
    other = pickle.loads(pickle.dumps(model.to_sklearn()))
    np.testing.assert_allclose(other.transform(new), scores, rtol=0, atol=1e-13 * size)
    if name not in CURVED:
        np.testing.assert_allclose(other.transform(csr_array(new)), scores, rtol=0, atol=1e-13 * size)
    steps = name in CURVED or getattr(model, "scale", False) or "rounding" in name
    assert isinstance(other, Pipeline if steps else SklearnPCA)


def test_a_pca_of_scikit_learn_has_what_it_would_have_fitted() -> None:
    model = bp.PCA(2, whiten=True).fit(X).to_sklearn()
    own = SklearnPCA(2, whiten=True).fit(X)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "noise_variance_", "mean_"):
        np.testing.assert_allclose(getattr(model, name), getattr(own, name), rtol=1e-10)
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), own.inverse_transform(own.transform(X)))
    np.testing.assert_allclose(model.score_samples(NEW), own.score_samples(NEW), rtol=1e-10)
    assert clone(model).get_params()["n_components"] == 2


@pytest.mark.parametrize("name", LINEAR | CURVED)
def test_onnx_computes_the_scores_in_float32(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model, new = fitted(name), rows_for(name).astype("f4")
    scores = model.transform(new)
    path = model.to_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    (found,) = session.run(["scores"], {"rows": new})
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-5 * np.abs(scores).max())


@linear
def test_faiss_computes_the_scores_in_float32(name: str) -> None:
    pytest.importorskip("faiss")
    model, new = fitted(name), rows_for(name).astype("f4")
    A, b = model.linear_map()
    rounding = 1e-6 * (np.abs(new) @ np.abs(A).T + np.abs(b)).max()  # float32 sums about the origin
    np.testing.assert_allclose(model.to_faiss().apply(new), model.transform(new), rtol=0, atol=rounding)


def test_a_layer_of_torch_computes_the_scores_in_float32() -> None:
    torch = pytest.importorskip("torch")
    new, state = NEW.astype("f4"), torch.get_rng_state()
    for model in (bp.PCA(3, scale=True, whiten=True).fit(X), bp.PCA(1, solver="covariance").fit(X)):
        torch.from_numpy(model.components_)  # has no negative stride, as the reversed row of one eigenvector
        layer = model.to_torch()
        assert isinstance(layer, torch.nn.Linear)
        scores = layer(torch.from_numpy(new)).detach().numpy()
        np.testing.assert_allclose(scores, model.transform(new), rtol=0, atol=1e-5)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_existing_file_is_kept_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    model = bp.PCA(1).fit(X)
    first = model.to_onnx(tmp_path / "model.onnx").read_bytes()
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        bp.PCA(2).fit(X).to_onnx(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == first
    assert bp.PCA(2).fit(X).to_onnx(tmp_path / "model.onnx", overwrite=True).read_bytes() != first


@dataclass(frozen=True)
class Doubled(RowPreprocessor):
    """One that ONNX is not told of."""

    def apply_at(self, rows: Array, numbers: Array, where: str) -> Array:
        return 2 * rows


def test_a_preprocessor_without_a_form_in_onnx_is_rejected(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(
        ValueError,
        match=r"preprocess = Doubled\(\) has no form in ONNX. Use bp\.preprocessing\.L2\(\) or",
    ):
        bp.PCA(2, preprocess=Doubled()).fit(X).to_onnx(tmp_path / "model.onnx")


def test_what_has_no_linear_map_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = bp.ScoredPCA(estimator=bp.KernelPCA(1, kernel="rbf")).fit(X, X[:, 0])
    for export in (kernel.linear_map, kernel.to_sklearn, kernel.to_faiss):
        with pytest.raises(ValueError, match="a kernel model, or preprocesses its rows"):
            export()
    for name in CURVED:
        with pytest.raises(ValueError, match="not linear"):
            fitted(name).linear_map()
    assert not hasattr(bp.KernelPCA(1), "linear_map")
    model = bp.PCA(1).fit(X)
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        model.to_faiss()
