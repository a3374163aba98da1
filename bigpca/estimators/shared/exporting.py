"""What a fitted model gives: names, tables, a report, its display, and what other libraries compute of it.

Three rooms of methods: of all models; of models whose ``transform`` is linear after preprocessing; and of models whose
scores are along axes in the space of the features.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Input, Path
from bigpca.engine.driver import solving
from bigpca.errors import required
from bigpca.estimators.shared.inputs import BaseEstimator, Lazy, Unchecked, open_scores
from bigpca.estimators.shared.labelled import dataset_of
from bigpca.estimators.shared.opening import preprocessors_of
from bigpca.estimators.shared.outputs import Destination, mapped_back, maps_rows
from bigpca.estimators.shared.results import Waiting, unsolved
from bigpca.export.linear import (
    LinearMap,
    LinearRowMap,
    MatrixAndOffset,
    faiss_transform,
    torch_layer,
    write_onnx,
)
from bigpca.passes.graphs import wrap_sources
from bigpca.passes.reading.row_maps import RowMap

if TYPE_CHECKING:
    import faiss
    import pandas as pd
    import sklearn.decomposition
    import sklearn.pipeline
    import torch
    import xarray as xr


class Tables(BaseEstimator):
    """Names and tables of the components, the report, and the display of a model."""

    def get_feature_names_out(self, input_features: Input | None = None) -> NDArray[np.object_]:
        """Return the names of the columns of ``transform``: "pca0", "pca1" and so on, also in figures and reports.

        Wherever components are chosen by number (counted from 0), these names are accepted too.

        Parameters
        ----------
        input_features : default None
            Ignored; the names do not depend on it.

        Returns
        -------
        ndarray of shape (k,), object
        """
        check_is_fitted(self)
        return np.array([f"{self._traits.prefix}{i}" for i in range(self._result.width)], dtype=object)

    def summary(self) -> pd.DataFrame:
        """Return a table of the components: names, variances, their shares, and bounds where they are approximate.

        Returns
        -------
        pandas.DataFrame of k rows, whose index is the names of the components
            ``variance``, of discriminants and other models without variances ``eigenvalue``, of kernel models both;
            ``share`` of the total variance, and its ``cumulative`` sum, where the model has them; ``lower`` and
            ``upper``, certified bounds of the first of these columns, of approximate models. Of CCA, ``correlation``;
            of PLSSVD, ``covariance`` and its ``share`` of the squared covariance; of Ridge, a row for each target, with
            ``alpha`` and ``cv_score``.

        Raises
        ------
        ImportError
            If pandas is not installed.

        Examples
        --------
        >>> from bigpca import PCA
        >>> PCA(1).fit([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]).summary()["variance"].to_dict()
        {'pca0': 4.0}
        """
        check_is_fitted(self)
        core = getattr(self, self._traits.core, self)  # whose components these are
        columns = {name: getattr(core, found) for name, found in core._traits.summary if hasattr(core, found)}
        if "share" in columns:
            columns["cumulative"] = np.cumsum(columns["share"])
        if hasattr(core, "eigenvalue_bounds_"):
            columns["lower"], columns["upper"] = np.asarray(core.eigenvalue_bounds_).T
        return required("pandas", "summary", "pandas").DataFrame(columns, index=components_index(self, "summary"))

    def to_frame(self, scores: Input | None = None) -> pd.DataFrame:
        """Return scores, or the loadings, as a table whose rows and columns have their names.

        Parameters
        ----------
        scores : array-like, Dask array or path, of shape (n, k), or None, default None
            What ``transform`` returned or wrote, which is read into memory; None for the loadings of a linear model.

        Returns
        -------
        pandas.DataFrame of shape (n, k) or (d, k)
            Its columns are the names of the components. Its index holds the keys that are stored with the scores, or
            the names of the features; numbers from 0 where there are none.

        Raises
        ------
        ValueError, TypeError
            For scores of a different number of components, for codes, and without scores if the model has no loadings.
        ImportError
            If pandas is not installed.

        Examples
        --------
        >>> from bigpca import PCA
        >>> pca = PCA(1).fit([[0.0, 3.0], [2.0, 3.0], [4.0, 3.0]])
        >>> pca.to_frame()["pca0"].tolist(), pca.to_frame(pca.transform([[5.0, 3.0]])).columns.tolist()
        ([2.0, 0.0], ['pca0'])
        """
        check_is_fitted(self)
        columns = components_index(self, "to_frame")
        if scores is not None:
            from bigpca.data.keys import stored_keys  # imports the formats of labels, which fits do not need

            values = np.asarray(wrap_sources(open_scores(self, scores).X))
            return required("pandas", "to_frame", "pandas").DataFrame(values, stored_keys(scores), columns)
        if not hasattr(self, "loadings_"):
            raise ValueError(f"{type(self).__name__} has no loadings_. Pass scores: to_frame(model.transform(X)).")
        return required("pandas", "to_frame", "pandas").DataFrame(
            self.loadings_, getattr(self, "feature_names_in_", None), columns
        )

    def report(
        self,
        out: Path = "report.html",
        *,
        scores: Input | None = None,
        labels: Input | None = None,
        keys: Input | None = None,
        pictures: Input | None = None,
        image_shape: tuple[int, ...] | None = None,
        feature_names: Input | None = None,
        standard_errors: Input | None = None,
        drift: object = None,
        provenance: bool = True,
        overwrite: bool = False,
    ) -> FilePath | str:
        """Write a report on the model to an HTML file, and return its path.

        Parameters
        ----------
        out : path, default "report.html"
        scores : array, or path of a store, of shape (n, k), default None
            Read once, in blocks. Without it no rows are shown.
        labels : array-like of shape (n,), or path such as "labels.csv::class", default None
            Joined by key where labels and scores have keys, or ``keys`` are given; else in the order of the rows.
        keys, pictures : array-like of shape (n,), default None
            Names of the rows, by default the keys of the scores; False for labels in the order of the rows, whatever
            keys they have. And paths of their images.
        image_shape : (height, width) or (height, width, 3), default None
            Of one row: components are then shown as pictures. Those of a field, such as latitude by longitude, are
            shown as maps without it.
        feature_names : array-like of shape (d,), default None
            None for those of the fit.
        standard_errors : StandardErrors, default None
            From :func:`bigpca.quality.standard_errors`, of this model.
        drift : Drift, default None
            From :func:`bigpca.quality.drift`, of this model.
        provenance : bool, default True
            False leaves out paths and commands.
        overwrite : bool, default False
            Replace an existing file.

        Returns
        -------
        Path or str
            Where the file is: an absolute path, or the URL of an object.
        """
        from bigpca.report import write_report  # imports Matplotlib, which other methods do not need

        return write_report(
            self,
            out,
            scores=scores,
            labels=labels,
            keys=keys,
            pictures=pictures,
            image_shape=image_shape,
            feature_names=feature_names,
            standard_errors=standard_errors,
            drift=drift,
            provenance=provenance,
            overwrite=overwrite,
        )

    def __dir__(self) -> list[str]:
        found = vars(self).get("_found")
        shown = super(Tables, shown_of(self)).__dir__()
        return sorted({*shown, *([] if found is None or isinstance(found, Waiting) else found.attributes)})

    def _repr_html_inner(self) -> str:
        return str(super(Tables, shown_of(self))._repr_html_inner())

    def _repr_mimebundle_(self, **options: Unchecked) -> dict[str, str]:
        return dict(super(Tables, shown_of(self))._repr_mimebundle_(**options))


def components_index(model: BaseEstimator, what: str) -> pd.Index:
    """Return the index of a table with a row for each component, or for each target of a regression."""
    return required("pandas", what, "pandas").Index(
        model.get_feature_names_out(), name="target" if model._traits.output == "predictions" else "component"
    )


def shown_of(model: Tables) -> Tables:
    """Return a copy that has no attributes while a solve waits: pages that show a model look at all of them."""
    twin, found = copy(model), vars(model).get("_found")
    if isinstance(found, Waiting):
        vars(twin)["_found"] = replace(found, solve=unsolved, found=None)
    return twin


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
        first += [one.sklearn_step() for one in preprocessors_of(self, same=True)]
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
        missing = self._steps.missing_value.codes
        return write_onnx(linear, path, overwrite=overwrite, before=preprocessors_of(self, same=True), missing=missing)

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
    if maps := preprocessors_of(model, same=True):
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
