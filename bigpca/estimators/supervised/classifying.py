"""Methods of labelled models that are classifiers: normal classes with one covariance."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array
from bigpca.data.labels import merge_classes
from bigpca.data.weights import open_weights
from bigpca.estimators.shared.inputs import Input, Lazy
from bigpca.estimators.shared.opening import labels_of_fit
from bigpca.estimators.shared.transforming import Transforming, mapped_to_numbers
from bigpca.estimators.supervised.class_maps import ClassMap
from bigpca.estimators.supervised.labels import open_classes


class Classifying(Transforming, Protocol):
    """A model that may be a classifier."""

    classes_: Array
    missing_labels: str
    nan_policy: str

    @property
    def _classifies(self) -> bool: ...

    def predict(self, X: Input) -> Lazy: ...


def classifies(model: Classifying) -> bool:
    """Whether a model is a classifier; otherwise raises AttributeError, as ``available_if`` requires."""
    if not model._classifies:
        point = f" with r2 = {model.r2!r}" if hasattr(model, "r2") else ""
        raise AttributeError(
            f"{type(model).__name__}{point} is not a classifier: normal classes with one covariance require r2 = 1, "
            "where R2 is the scatter within classes alone. Use r2=1, FisherDiscriminantAnalysis, or a classifier on "
            "the scores."
        )
    return True


@available_if(classifies)  # type: ignore[untyped-decorator]
def predict(self: Classifying, X: Input) -> Lazy:
    """Return the most probable class of each row of X (n, d), (n,): lazy for lazy input, as ``transform``.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.

    Returns
    -------
    ndarray or dask.array.Array of shape (n,)
        Values of ``classes_``. Lazy if X is lazy. For a DataArray, one with the coordinates of its samples.

    Raises
    ------
    NonFiniteError
        For rows with missing values, which have no class, whatever ``nan_policy`` is.
    """
    return _classified(self, X, "classes", one=True)


@available_if(classifies)  # type: ignore[untyped-decorator]
def predict_proba(self: Classifying, X: Input) -> Lazy:
    """Return the posterior probabilities of classes (n, c), float64; lazy for lazy input.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, c), float64
        Columns in the order of ``classes_``; each row sums to 1. Lazy if X is lazy. For a DataArray, one with the
        coordinates of its samples and a dimension ``class``.
    """
    return _classified(self, X, "probabilities")


@available_if(classifies)  # type: ignore[untyped-decorator]
def predict_log_proba(self: Classifying, X: Input) -> Lazy:
    """Return the logarithms of :meth:`predict_proba` (n, c), which do not underflow; lazy for lazy input.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, c), float64
        Columns in the order of ``classes_``. Lazy if X is lazy. For a DataArray, one with the coordinates of its
        samples and a dimension ``class``.
    """
    return _classified(self, X, "log-probabilities")


@available_if(classifies)  # type: ignore[untyped-decorator]
def decision_function(self: Classifying, X: Input) -> Lazy:
    """Return log-posteriors up to a constant of each row (n, c), or log-odds of ``classes_[1]`` (n,); lazily.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, c), or (n,) for two classes
        Columns in the order of ``classes_``. Lazy if X is lazy. For a DataArray, one with the coordinates of its
        samples and a dimension ``class``.
    """
    two = len(self.classes_) == 2 if hasattr(self, "classes_") else False
    return _classified(self, X, "decisions", one=two)


@available_if(classifies)  # type: ignore[untyped-decorator]
def score(self: Classifying, X: Input, y: Input, sample_weight: Input = None) -> float:
    """Return the share of rows of X whose class is predicted correctly, in one read, without the unlabelled rows.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    y : labels as in ``fit``; classes that were not fitted count as errors
    sample_weight : array-like of shape (n,), or None, default None

    Returns
    -------
    float in [0, 1]
    """
    predicted = np.asarray(self.predict(X)).ravel()
    opened = self._open_like(X)
    labels = open_classes(labels_of_fit(self, opened, y), len(predicted), missing=self.missing_labels)
    _, known, given = merge_classes(self.classes_, labels.classes)
    used = labels.used
    hits = known[np.searchsorted(self.classes_, predicted[used])] == given[labels.codes[used]]
    weights = None if sample_weight is None else open_weights(sample_weight, opened)[used]
    return float(np.average(hits, weights=weights))


def _classified(self: Classifying, X: Input, output: str, *, one: bool = False) -> Lazy:
    check_is_fitted(self)
    functions = getattr(self, "discriminants_", None)
    if functions is None:
        raise ValueError("the model was fitted with r2 other than 1, so it is not a classifier. Fit again.")
    found = ClassMap(functions, self.classes_, output, self.nan_policy)
    return mapped_to_numbers(self, X, found, output, dim=None if one else "class", values=self.classes_)
