"""What other libraries compute of a fitted model: a linear map of rows, and patterns on the grid of the features.

Two rooms of methods: of models whose ``transform`` is linear after preprocessing, and of models whose scores are along
axes in the space of the features.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING, cast

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Input, Path
from bigpca.engine.driver import solving
from bigpca.estimators.shared.inputs import Lazy
from bigpca.estimators.shared.labelled import dataset_of
from bigpca.estimators.shared.opening import fitted_preprocessors
from bigpca.estimators.shared.outputs import Destination, mapped_back, maps_rows
from bigpca.estimators.shared.sklearn_bases import BaseEstimator
from bigpca.export.linear import (
    LinearMap,
    LinearRowMap,
    MatrixAndOffset,
    faiss_transform,
    torch_layer,
    write_onnx,
)
from bigpca.passes.reading.row_maps import RowMap

if TYPE_CHECKING:
    import faiss
    import sklearn.decomposition
    import sklearn.pipeline
    import torch
    import xarray as xr


class LinearExports(BaseEstimator):
    """Methods of models whose ``transform`` is a linear map of preprocessed rows."""

    def linear_map(self) -> MatrixAndOffset:
        """Return (A (k, d), b (k,)), such that ``X @ A.T + b`` equals ``transform(X)``.

        Returns
        -------
        A : ndarray of shape (k, d), float64
        b : ndarray of shape (k,), float64

        Raises
        ------
        ValueError
            If the map is not linear: with ``preprocess``, a ``missing_value``, or scores divided by their norm.
        """
        return linear_of(self).affine

    def to_sklearn(self) -> sklearn.decomposition.PCA | sklearn.pipeline.Pipeline:
        """Return a fitted ``sklearn.decomposition.PCA`` with the same ``transform``, or a Pipeline.

        It is a Pipeline if X is preprocessed or scaled, or if scores are divided by more than their standard
        deviations, or a code stands for missing values. For models other than PCA, it has only the components and the
        mean. It rejects rows with missing values, whatever ``nan_policy`` is.

        Returns
        -------
        sklearn.decomposition.PCA or sklearn.pipeline.Pipeline

        Raises
        ------
        ValueError
            If the model is not a linear map of preprocessed rows.
        """
        from bigpca.export.sklearn import KEPT, decoder, joined  # imports more of scikit-learn than a fit

        check_is_fitted(self)
        known = {name: getattr(self, name, None) for name in KEPT}
        facts = {name: value for name, value in known.items() if value is not None}
        missing = self._steps.missing_value
        first = [decoder(missing)] if missing else []
        first += [one.sklearn_step() for one in fitted_preprocessors(self)]
        return joined(first + linear_rows(self).sklearn_steps(self.n_features_in_, facts))

    def to_onnx(self, path: Path, *, overwrite: bool = False) -> FilePath | str:
        """Write an ONNX model of ``transform`` in float32, from ``rows`` (n, d) to ``scores`` (n, k); return its path.

        Preprocessing is part of it; rows of zeros remain zero. Rows that hold the ``missing_value`` of the fit, NaN or
        infinity have scores of NaN, whatever ``nan_policy`` is.

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
            If the model is not a linear map of preprocessed rows.
        """
        check_is_fitted(self)
        linear = linear_rows(self).linear(self.n_features_in_)
        missing = self._steps.missing_value.constants(self.n_features_in_)
        return write_onnx(linear, path, overwrite=overwrite, before=fitted_preprocessors(self), missing=missing)

    def to_torch(self) -> torch.nn.Module:
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
        return torch_layer(linear_of(self))

    def to_faiss(self) -> faiss.LinearTransform:
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
        transform: faiss.LinearTransform = faiss_transform(linear_of(self))
        return transform


def inverts(model: BaseEstimator) -> bool:
    """Whether rows follow from scores; otherwise raises AttributeError, with the reason, as ``available_if`` needs."""
    if model._why_one_way:
        raise AttributeError(model._why_one_way)
    return True


class Inverts(BaseEstimator):
    """The method of models that return rows from scores: a subclass writes :meth:`_reconstruction`."""

    @property
    def _why_one_way(self) -> str:
        """The reason why rows cannot be returned from scores; empty if they can."""
        return ""

    def _reconstruction(self) -> RowMap:
        """Return the map from scores back to rows."""
        raise NotImplementedError

    @available_if(inverts)  # type: ignore[untyped-decorator]
    @solving
    @maps_rows
    def inverse_transform(self, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return rows (n, d) from scores (n, k), in the space of the features, before which rows were preprocessed.

        Of linear models, the least-squares reconstruction: for axes U (d, k) ``mean + U (U'U)^-1 y`` (SPCA paper, eq.
        4); after a rotation ``mean + loadings_ y``, which equals the reconstruction by the PCA. Whitening is undone,
        but ``preprocess`` is not, because it has no inverse. Of kernel models, the ridge regression of the reference
        rows (with landmarks, of these only) on their scores, after a fit with ``fit_inverse_transform=True``, as in
        scikit-learn.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, k)
            Scores.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, d)
            Rows in the space of the features. Lazy if X is lazy.

        Raises
        ------
        ValueError
            For a different number of scores, for ``whiten=Whitening(l2=True)``, which does not keep the norms of the
            scores, and if the model was not fitted for it.
        """
        check_is_fitted(self)
        return mapped_back(self, X, self._reconstruction(), Destination(out, overwrite))


class FeatureAxes(Inverts):
    """Methods of models whose scores are along axes in the space of the features."""

    @solving
    def to_xarray(self) -> xr.Dataset:
        """Return the model as a Dataset: patterns on the grid of the features, which a fit to a DataArray keeps.

        After other fits the only feature dimension is ``feature``. Components are numbered from 0 (the modes of xeofs
        from 1). No read.

        Returns
        -------
        xarray.Dataset
            ``components`` of shape (component, features...), ``mean`` and ``scale`` of shape (features...), with NaN
            where columns without values were left out; ``explained_variance``, ``explained_variance_ratio`` and other
            attributes of the model of shape (component,), where it has them. Its attributes are those of the DataArray,
            plus the call, the solver, the number of samples, and the version of bigpca.

        Raises
        ------
        ImportError
            If xarray is not installed.
        ValueError
            If a dimension or coordinate of the features has the name of a variable or dimension of the Dataset.

        Examples
        --------
        >>> import bigpca as bp, numpy as np, xarray as xr
        >>> field = xr.DataArray(np.eye(4).reshape(4, 2, 2), dims=("time", "lat", "lon"), coords={"lat": [10, 20]})
        >>> modes = bp.PCA(2).fit(field).to_xarray()
        >>> modes.components.dims, modes.sizes["component"], modes.lat.values.tolist()
        (('component', 'lat', 'lon'), 2, [10, 20])
        """
        check_is_fitted(self)
        return dataset_of(self)


def linear_rows(model: BaseEstimator) -> LinearRowMap:
    """Return the row map that ``transform`` applies after preprocessing, which is linear.

    Raises
    ------
    TypeError
        If it needs covariates beside the rows.
    """
    if model._steps.covariates:
        raise TypeError(
            f"{type(model).__name__} was fitted with {model._steps.covariates} covariates, which other libraries "
            "have no place for. Export a PCA of the residuals."
        )
    return cast("LinearRowMap", model._row_map())


def linear_of(model: BaseEstimator) -> LinearMap:
    """Return what a fitted model does to rows as one linear map; rejects models whose map is not linear."""
    check_is_fitted(model)
    if maps := fitted_preprocessors(model):
        raise ValueError(
            f"preprocess = {list(maps)} is not linear, so the model is not a linear map of X. Preprocess "
            f"X before a fit without it, or use to_sklearn or to_onnx."
        )
    missing = model._steps.missing_value
    if missing:
        raise ValueError(
            f"missing_value = {missing} stands for missing values, but a linear map would multiply it like any "
            "other number. Use to_sklearn or to_onnx, or fit rows that hold NaN instead."
        )
    return linear_rows(model).linear(model.n_features_in_)
