"""What a fitted model shows of itself: names, tables, a report, and how it is displayed."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from numbers import Integral
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Input, Path
from bigpca.errors import counted, required
from bigpca.estimators.shared.inputs import Unchecked, open_scores
from bigpca.estimators.shared.results import Result, Waiting, unsolved
from bigpca.estimators.shared.sklearn_bases import BaseEstimator
from bigpca.passes.graphs import wrap_sources

if TYPE_CHECKING:
    import pandas as pd


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
        return np.array(component_names(self), dtype=object)

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
        columns = {name: getattr(self, found) for name, found in self._traits.summary if hasattr(self, found)}
        if "share" in columns:
            columns["cumulative"] = np.cumsum(columns["share"])
        if hasattr(self, "eigenvalue_bounds_"):
            columns["lower"], columns["upper"] = np.asarray(self.eigenvalue_bounds_).T
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
        return str(super(Tables, shown_of(self))._repr_html_inner()) + in_a_line(vars(self).get("_found"))

    def _repr_mimebundle_(self, **options: Unchecked) -> dict[str, str]:
        bundle: dict[str, str] = super(Tables, shown_of(self))._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += in_a_line(vars(self).get("_found"))
        return bundle


def components_index(model: BaseEstimator, what: str) -> pd.Index:
    """Return the index of a table with a row for each component, or for each target of a regression."""
    return required("pandas", what, "pandas").Index(
        model.get_feature_names_out(), name="target" if model._traits.output == "predictions" else "component"
    )


def component_names(model: BaseEstimator) -> list[str]:
    """Return the names of the components: "pca0", "pca1" and so on."""
    return [f"{model._traits.prefix}{i}" for i in range(model._result.width)]


def shown_of(model: Tables) -> Tables:
    """Return a copy that has no attributes while a solve waits: pages that show a model look at all of them."""
    twin, found = copy(model), vars(model).get("_found")
    if isinstance(found, Waiting):
        vars(twin)["_found"] = replace(found, solve=unsolved, found=None)
    return twin


def in_a_line(found: Result | Waiting[Unchecked] | None) -> str:
    """Return a line of HTML: the number of components and their share of the variance, as far as they are solved."""
    from bigpca.plots.data import captured  # imports the readers of figures' rows

    k = getattr(found, "n_components_", None)
    share = captured(found) and f" with {captured(found)}"
    return f"<p>{counted(int(k), 'component')}{share}</p>" if isinstance(k, Integral) else ""
