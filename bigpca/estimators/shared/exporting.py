"""Methods of linear models that hand their map to other libraries; each class lists them."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Protocol

from sklearn.utils.validation import check_is_fitted

from bigpca.estimators.shared.inputs import Exported
from bigpca.estimators.shared.outputs import Path
from bigpca.export.linear import Affine, LinearMap, faiss_transform, torch_layer, write_onnx
from bigpca.passes.reading.preprocessing import Preprocess, RowPreprocessor


class LinearRowMap(Protocol):
    """A row map that other libraries can compute."""

    def linear(self, d: int) -> LinearMap:
        """Return the same map of rows of d columns; raises ValueError if it is none."""

    def sklearn_steps(self, d: int, facts: dict[str, object]) -> list[object]:
        """Return the same map as fitted transformers of scikit-learn, with what else is known of the model."""


class Exportable(Protocol):
    """A model whose ``transform`` is a linear map of rows."""

    n_features_in_: int
    preprocess: Preprocess

    def _row_map(self) -> LinearRowMap: ...

    def _fitted_preprocessors(self) -> tuple[RowPreprocessor, ...]: ...


def linear_map(self: Exportable) -> Affine:
    """Return (A (k, d), b (k,)), such that ``X @ A.T + b`` equals ``transform(X)``.

    Returns
    -------
    A : ndarray of shape (k, d), float64
    b : ndarray of shape (k,), float64

    Raises
    ------
    ValueError
        If the map is not linear: with ``preprocess``, or scores divided by their norm.
    """
    return _linear(self).affine


def to_sklearn(self: Exportable) -> Exported:
    """Return a fitted ``sklearn.decomposition.PCA`` with the same ``transform``, or a Pipeline.

    It is a Pipeline where X is preprocessed or scaled, or where scores are divided by more than their standard
    deviations. Of models other than PCA it has the components and the mean only. ``nan_policy`` is not kept.

    Returns
    -------
    sklearn.decomposition.PCA or sklearn.pipeline.Pipeline

    Raises
    ------
    ValueError
        If the model is no linear map of preprocessed rows.
    """
    from bigpca.export.sklearn import KEPT, joined  # imports more of scikit-learn than a fit

    check_is_fitted(self)
    known = {name: getattr(self, name, None) for name in KEPT}
    facts = {name: value for name, value in known.items() if value is not None}
    first = [one.sklearn_step() for one in self._fitted_preprocessors()]
    return joined(first + self._row_map().sklearn_steps(self.n_features_in_, facts))


def to_onnx(self: Exportable, path: Path, *, overwrite: bool = False) -> FilePath:
    """Write an ONNX model of ``transform`` in float32, from ``rows`` (n, d) to ``scores`` (n, k); return its path.

    Preprocessing is part of it; rows of zeros remain zero.

    Parameters
    ----------
    path : path of the new file
    overwrite : bool, default False
        Replace an existing file.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    ImportError
        If onnx is not installed.
    OutputExistsError
        If the path exists and ``overwrite`` is False.
    ValueError
        If the model is no linear map of preprocessed rows.
    """
    check_is_fitted(self)
    linear = self._row_map().linear(self.n_features_in_)
    return write_onnx(linear, path, overwrite=overwrite, before=self._fitted_preprocessors())


def to_torch(self: Exportable) -> Exported:
    """Return a ``torch.nn.Linear`` in float32, equal to ``transform`` to the rounding of ``X @ A.T + b``.

    Returns
    -------
    torch.nn.Linear

    Raises
    ------
    ImportError
        If torch is not installed.
    ValueError
        As for :meth:`linear_map`.
    """
    return torch_layer(_linear(self))


def to_faiss(self: Exportable) -> Exported:
    """Return a trained ``faiss.LinearTransform`` in float32, for a ``faiss.IndexPreTransform``.

    Returns
    -------
    faiss.LinearTransform

    Raises
    ------
    ImportError
        If faiss is not installed.
    ValueError
        As for :meth:`linear_map`.
    """
    return faiss_transform(_linear(self))


def _linear(self: Exportable) -> LinearMap:
    check_is_fitted(self)
    if self._fitted_preprocessors():
        raise ValueError(
            f"preprocess = {self.preprocess!r} is not linear, so that the model is no linear map of X. Preprocess "
            f"X before a fit without it, or use to_sklearn or to_onnx."
        )
    return self._row_map().linear(self.n_features_in_)
