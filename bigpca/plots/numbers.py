"""The numbers that figures and reports read of a fitted model, or of an array in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def name_of(model: Any) -> str:
    """Return the class of a model, or "" for an array."""
    return "" if is_array(model) else type(model).__name__


def is_array(model: Any) -> bool:
    """Whether numbers were given in place of a model."""
    return isinstance(model, np.ndarray | list | tuple)


def fitted(model: Any) -> Any:
    """Return the model that holds the components, fitted: the one inside a ``ScoredPCA``, else ``model`` itself.

    Raises
    ------
    sklearn.exceptions.NotFittedError
    TypeError
        For what is no estimator.
    """
    from sklearn.utils.validation import check_is_fitted

    if not hasattr(model, "fit"):
        raise TypeError(
            f"a {type(model).__name__} was given; a fitted model, or an array of its numbers, was expected. "
            "A saved model is read by bigpca.load(path)."
        )
    check_is_fitted(model)
    return getattr(model, "estimator_", model)


def shares(model: Any) -> Vector:
    """Return the share of the variance of each component (k,).

    Raises
    ------
    ValueError
        For a model whose eigenvalues are no shares of the variance.
    """
    if is_array(model):
        return _vector(model, "shares of the variance")
    found = shares_or_none(model)
    if found is None:
        raise ValueError(
            f"a {name_of(model)} has no explained_variance_ratio_{_why_no_shares(model)}. {_instead(model)}"
        )
    return found


def shares_or_none(model: Any) -> Vector | None:
    """Return the shares of the variance, or None where a model has none."""
    found = getattr(fitted(model), "explained_variance_ratio_", None)
    return None if found is None else np.asarray(found, dtype=np.float64)


def column_shares(model: Any) -> Vector | None:
    """Return the share of the variance of each feature (d,), or None where a model keeps no statistics of its rows.

    Features that a ``ScoredPCA`` has not selected have the share 0.
    """
    inner = fitted(model)
    kept = getattr(inner, "_column_shares", None)
    found: Vector | None = None if kept is None else kept()
    if found is not None and inner is not model and hasattr(model, "selected_"):
        whole = np.zeros(model.n_features_in_)
        whole[model.selected_] = found
        return whole
    return found


def whole_of(model: Any) -> str:
    """Return of what the shares of a model are: of a discriminant's, the variance between the classes."""
    between = not is_array(model) and hasattr(fitted(model), "discriminants_")
    return "the variance between the classes" if between else "the variance"


def eigenvalues(model: Any) -> Vector:
    """Return the eigenvalues (k,): those of HKH of a kernel model, else variances, else a discriminant's.

    Raises
    ------
    ValueError
        For a model without components.
    """
    if is_array(model):
        return _vector(model, "eigenvalues")
    inner = fitted(model)
    for name in ("eigenvalues_", "explained_variance_"):
        if hasattr(inner, name):
            return np.asarray(getattr(inner, name), dtype=np.float64)
    raise ValueError(
        f"a {name_of(model)} has no eigenvalues{_why_no_shares(model)}. Fit a PCA, or another model of components."
    )


@dataclass(frozen=True)
class Weights:
    """Components, and the names of their features.

    Attributes
    ----------
    components : ndarray of shape (k, d)
    names : ndarray of shape (d,), str
    """

    components: Vector
    names: NDArray[np.str_]


def weights(model: Any, names: Any = None) -> Weights:
    """Return the components with names of features: given ones, the model's, or "feature 0" and so on.

    Features that a ``ScoredPCA`` has not selected have the weight 0.

    Raises
    ------
    ValueError
        For a model whose components are not in the space of the features, and for another number of names.
    """
    if is_array(model):
        found: Vector = np.atleast_2d(np.asarray(model, dtype=np.float64))
    else:
        inner = fitted(model)
        if not hasattr(inner, "components_"):
            raise ValueError(
                f"a {name_of(model)} has no components_: its components are functions of the rows, not weights of the "
                "features. Draw the scores, or fit a linear model such as PCA."
            )
        found = np.asarray(inner.components_, dtype=np.float64)
        if inner is not model and hasattr(model, "selected_"):
            whole = np.zeros((len(found), model.n_features_in_))
            whole[:, model.selected_] = found
            found = whole
        names = getattr(model, "feature_names_in_", None) if names is None else names
    d = found.shape[1]
    texts = [f"feature {i}" for i in range(d)] if names is None else [str(name) for name in names]
    if len(texts) != d:
        raise ValueError(f"{len(texts)} feature names were given, but components have {d} features. Name each feature.")
    return Weights(found, np.array(texts))


def chosen(components: tuple[int, int], k: int) -> tuple[int, int]:
    """Return the columns of a pair of components that are counted from 1; of one component alone, it and none (-1).

    Raises
    ------
    ValueError
        For numbers that are not those of two components.
    """
    first, second = components
    if k == 1 and components == (1, 2):
        return 0, -1
    if not (1 <= first <= k and 1 <= second <= k and first != second):
        raise ValueError(
            f"components = {components}; two different numbers from 1 to {k} were expected, the number of components. "
            "The first component is 1."
        )
    return first - 1, second - 1


def _vector(values: Any, what: str) -> Vector:
    found: Vector = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found):
        raise ValueError(
            f"an array of shape {found.shape} was given as {what}; (k,) was expected. Give one number each."
        )
    return found


def _why_no_shares(model: Any) -> str:
    if hasattr(model, "sketch_") and not hasattr(model, "components_"):
        return ": the columns of a sketch are random combinations of the features, not components"
    if not hasattr(fitted(model), "eigenvalues_"):
        return ""
    return ": its eigenvalues weigh the labels or the classes, and are no parts of the variance"


def _instead(model: Any) -> str:
    if hasattr(fitted(model), "eigenvalues_"):
        return "Draw its eigenvalues with spectrum(model), or its scores."
    return "Fit a PCA, or another model of components."
