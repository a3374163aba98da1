"""What figures and reports read: numbers of a fitted model, the rows that are drawn, and the kinds of their labels.

At most 20,000 rows are drawn, the same whatever the chunks and workers are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, Integers, Vector, unmasked
from bigpca.data.checks import check_dtype
from bigpca.data.containers import check_chunk_shape, is_dask_frame, is_path_list, reject_foreign
from bigpca.data.keys import aligned
from bigpca.data.labels import one_each
from bigpca.data.provenance import are_scores
from bigpca.data.sources import open as open_array
from bigpca.data.sparse import is_sparse
from bigpca.errors import an, component_columns, format_bytes
from bigpca.passes.graphs import computed, wrap_sources
from bigpca.plots.style import COLOURS, percent
from bigpca.seeds import uniforms

VALUES = {  # what is drawn of each component
    "eigenvalues_": "eigenvalue",
    "explained_variance_": "eigenvalue",
    "correlations_": "canonical correlation",
    "singular_values_": "covariance",
    "r2_": "R^2",
    "cv_scores_": "R^2",  # of each target, with the penalty that was taken
}
SHARES = {  # of components, and of what they are
    "explained_variance_ratio_": "the variance",
    "squared_covariance_fraction_": "the squared covariance",
    "explained_inertia_ratio_": "the inertia",
}
MAX_ROWS = 20_000
ROUNDED = 1e-9  # of the ends of intervals: sums of the same numbers differ by less
SILENT_BYTES = 256 * 2**20  # reads of less are not announced
MAX_KINDS = len(COLOURS)


def name_of(model: Any) -> str:
    """Return the class of a model, or "" for an array or a path."""
    return type(model).__name__ if hasattr(model, "fit") else ""


def is_array(model: Any) -> bool:
    """Whether numbers were given in place of a model."""
    return isinstance(model, np.ndarray | list | tuple)


def fitted(model: Any) -> Any:
    """Return the model whose components these are, fitted: what a ``ScoredPCA`` holds, else ``model`` itself.

    Raises
    ------
    sklearn.exceptions.NotFittedError
    TypeError
        If it is not an estimator.
    """
    from sklearn.utils.validation import check_is_fitted

    if not hasattr(model, "fit"):
        raise TypeError(
            f"{an(type(model).__name__)} is not a fitted model. Pass one, or an array of its numbers; bigpca.load("
            "path) reads a saved model."
        )
    check_is_fitted(model)
    return getattr(model, getattr(getattr(model, "_traits", None), "core", ""), model)


def shares_or_none(model: Any) -> Vector | None:
    """Return the shares of the variance, or None where a model has none, and for an array or a path."""
    return shares_of(fitted(model))[0] if hasattr(model, "fit") else None


def shares_of(found: Any) -> tuple[Vector | None, str]:
    """Return the shares of components (k,), or None, and the name of their whole, from a fitted model or a result.

    The whole is the variance between the classes for discriminants.
    """
    own = [(shares, whole) for name, whole in SHARES.items() if (shares := getattr(found, name, None)) is not None]
    shares, whole = own[0] if own else (None, "the variance")
    if getattr(found, "discriminants_", None) is not None:
        whole = "the variance between the classes"
    return None if shares is None else np.asarray(shares, dtype=np.float64), whole


def column_shares(model: Any) -> Vector | None:
    """Return the share of the variance of each feature (d,), or None where a model keeps no statistics of its rows.

    Features that a ``ScoredPCA`` has not selected have the share 0.
    """
    kept = getattr(fitted(model), "_column_shares", None)
    found: Vector | None = None if kept is None else kept()
    return None if found is None else _of_all_columns(model, found)


def _of_all_columns(model: Any, found: Vector) -> Vector:
    """Return numbers of the features of the fitted model, with 0 for those that a ``ScoredPCA`` has not selected."""
    if not hasattr(model, "selected_"):
        return found
    whole = np.zeros((*found.shape[:-1], model.n_features_in_))
    whole[..., model.selected_] = found
    return whole


def field_of(model: Any, d: int) -> Any:
    """Return the grid of the d features of a fit to a field, of two dimensions with several places each, or None."""
    grid = None if is_array(model) else getattr(getattr(model, "_steps", None), "grid", None)
    return grid if grid is not None and len(grid.dims) == 2 and grid.n_columns == d and min(grid.sizes) > 1 else None


def whole_of(model: Any) -> str:
    """Return the name of what the shares of a model, or of a result, are parts of, see :func:`shares_of`."""
    whole = shares_of(fitted(model) if hasattr(model, "fit") else model)[1]
    return f"{whole} of the selected features" if hasattr(model, "selected_") else whole


def captured(model: Any) -> str:
    """Return how much of their whole the components of a model, or of a result, hold; "" where none have shares.

    The eigenvalues of an approximation may be outside of their bounds, which are then what is known.
    """
    held = fitted(model) if hasattr(model, "fit") else model
    shares, _ = shares_of(held)
    if shares is None:
        return ""
    total, bounds = float(shares.sum()), getattr(held, "captured_variance_bounds_", None)
    ends = [total] if bounds is None or within(total, *bounds) else bounds
    return f"{' to '.join(map(percent, ends))} of {whole_of(model)}"


def within(values: Any, low: Any, high: Any) -> Any:
    """Whether values are in their intervals, whose ends were added up in another order."""
    return (values >= low - ROUNDED * np.abs(low)) & (values <= high + ROUNDED * np.abs(high))


def kind_of_values(model: Any) -> str:
    """Return what :func:`eigenvalues` of a model are called; the variances of factors and of rotations are none."""
    inner = fitted(model) if hasattr(model, "fit") else model
    if hasattr(inner, "rotation_matrix_") or np.ndim(getattr(inner, "noise_variance_", 0.0)):
        return "variance"
    return next((word for name, word in VALUES.items() if hasattr(inner, name)), "eigenvalue")


def eigenvalues(model: Any) -> Vector:
    """Return the eigenvalues (k,): those of HKH of a kernel model, else variances, else a discriminant's.

    Of two sides, their correlations or covariances, and of a regression R^2 of each target.

    Raises
    ------
    ValueError
        For a model without components.
    """
    if is_array(model):
        return vector(model, "eigenvalues")
    inner = fitted(model)
    for name in VALUES:
        if hasattr(inner, name):
            found = np.asarray(getattr(inner, name), dtype=np.float64)
            return found if found.ndim == 1 else found[found.mean(axis=1).argmax()]
    raise ValueError(f"{an(name_of(model))} has no eigenvalues. Fit a PCA, or another model of components.")


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

    Those of two sides are the weights of X. Features that a ``ScoredPCA`` has not selected have the weight 0.

    Raises
    ------
    ValueError
        For a model whose components are not in the space of the features, and for a different number of names.
    """
    if is_array(model):
        found: Vector = np.atleast_2d(np.asarray(model, dtype=np.float64))
    else:
        inner = fitted(model)
        axes = inner.components_ if hasattr(inner, "components_") else getattr(inner, "x_weights_", np.zeros(0)).T
        if not axes.size:
            if hasattr(inner, "coef_"):
                instead = "it has coefficients of targets. Pass these: model.coef_."
            else:
                instead = (
                    "its components are functions of the rows, not weights of the features. Draw the scores, or fit a "
                    "linear model such as PCA."
                )
            raise ValueError(f"{an(name_of(model))} has no components_: {instead}")
        found = _of_all_columns(model, np.asarray(axes, dtype=np.float64))
        names = getattr(model, "feature_names_in_", None) if names is None else names
    d = found.shape[1]
    texts = [f"feature {i}" for i in range(d)] if names is None else [str(name) for name in names]
    if len(texts) != d:
        raise ValueError(f"{len(texts)} feature names were given, but components have {d} features. Name each feature.")
    return Weights(found, np.array(texts))


def component_names(model: Any, k: int) -> list[str]:
    """Return the names of the k components of a model, or of the columns of an array."""
    if hasattr(model, "get_feature_names_out"):
        return [str(name) for name in model.get_feature_names_out()]
    return [f"component {i}" for i in range(k)]


def chosen(components: Any, names: Sequence[str]) -> tuple[int, ...]:
    """Return the columns of two components, given by number from 0 or by name; of the pair of a model of one, that one.

    >>> chosen((2, "pca0"), ["pca0", "pca1", "pca2"]), chosen((0, 1), ["pca0"])
    ((2, 0), (0,))

    Raises
    ------
    ValueError
        For another number of components, and components that the model does not have.
    """
    if len(names) == 1 and components == (0, 1):
        return (0,)
    found = tuple(component_columns(components, names))
    if len(found) != 2:
        raise ValueError(f"components = {components!r}, but 2 of the {len(names)} are drawn, such as {(*names[:2],)}.")
    return found


def vector(values: Any, what: str) -> Vector:
    """Return one number each (k,), such as the value of each component; ``what`` names them in the error."""
    found: Vector = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found):
        raise ValueError(
            f"an array of shape {found.shape} was given as {what}; (k,) was expected. Give one number each."
        )
    return found


log = logging.getLogger("bigpca")


@dataclass(frozen=True)
class DrawnScores:
    """Scores of the rows that a figure shows.

    Attributes
    ----------
    scores : ndarray of shape (m, k), float64
        Without the rows that have none (NaN).
    rows : ndarray of shape (m,), int64
        Their absolute numbers, ascending.
    n : int
        Rows that there are.
    omitted : int
        Rows of the sample without scores.
    """

    scores: NDArray[np.float64]
    rows: Integers
    n: int
    omitted: int

    def title(self) -> str:
        """Return what is shown, in words."""
        shown = len(self.rows) + self.omitted
        text = f"{self.n:,} rows" if shown == self.n else f"{shown:,} of {self.n:,} rows"
        return text + (f", {self.omitted:,} without scores" if self.omitted else "")


def drawn_rows(n: int, seed: int = 0, most: int = MAX_ROWS) -> Integers:
    """Return which rows of n are drawn: all, or one at a random place in each of ``most`` equal strata.

    >>> drawn_rows(3).tolist(), drawn_rows(10, seed=1, most=5).tolist()
    ([0, 1, 2], [1, 3, 5, 6, 8])
    """
    if n <= most:
        return np.arange(n)
    edges = np.array([i * n // most for i in range(most + 1)])
    places = uniforms(seed, "drawn rows", 0, most, 1)[:, 0]
    return edges[:-1] + (places * np.diff(edges)).astype(np.int64)


def drawn_scores(model: Any, X: Any = None, said: str = "", *, seed: int = 0, most: int = MAX_ROWS) -> DrawnScores:
    """Return the scores of the rows that are drawn.

    Parameters
    ----------
    model : fitted model, or scores of shape (n, k)
    X : rows (n, d) or scores (n, k), in memory, lazy or stored
        Of rows only the drawn ones are transformed. That reads lazy rows once, which a line of the log announces with
        its bytes.
    said : {"rows", "scores", ""}
        What the caller said of X; otherwise :func:`bigpca.data.provenance.are_scores` decides.

    Raises
    ------
    TypeError
        Where neither rows nor scores are given.
    ValueError
        As that function, for arrays of another width, and for rows whose number is unknown.
    """
    if X is None:
        if hasattr(model, "fit"):
            raise TypeError(f"no rows were given with the {name_of(model)}. Pass X or its scores.")
        model, X = None, model
    transform: Any = getattr(model, "transform", None)
    if _in_memory(X):
        frame = hasattr(X, "iloc")
        held: Any = X
        if not frame:
            reject_foreign(X)
            held = unmasked(X)
            check_dtype(held.dtype)
        mapped = are_scores(model, X, held, said)
        if getattr(model, "pattern_", None) is not None and not mapped:
            held, mapped = np.asarray(transform(held)), True  # a sample may have several rows
        rows = drawn_rows(len(held), seed, most)
        taken = held.iloc[rows] if frame else held[rows]
        return _shown(np.asarray(taken if mapped else transform(taken)), rows, len(held))
    opened = open_array(X)
    scores = opened if are_scores(model, X, opened, said) else transform(X)
    n = scores.shape[0]
    if np.isnan(n):
        raise ValueError("the number of rows is unknown. Call X.compute_chunk_sizes() first.")
    rows = drawn_rows(int(n), seed, most)
    if scores is not opened and opened.nbytes > SILENT_BYTES:
        log.warning(
            "the scores of %s drawn rows take one read of X, %s. Scores that transform(X, out=path) has stored are "
            "drawn without it.",
            f"{len(rows):,}",
            format_bytes(opened.nbytes),
        )
    drawn = computed(wrap_sources(scores[rows]))
    drawn = np.asarray(drawn.toarray() if is_sparse(drawn) else drawn)
    check_chunk_shape(drawn.shape, (len(rows), scores.shape[1]), "the scores")
    return _shown(drawn, rows, int(n))


def _shown(scores: Array, rows: Integers, n: int) -> DrawnScores:
    known = np.isfinite(scores).all(axis=1)
    return DrawnScores(scores[known].astype(np.float64), rows[known], n, int(len(rows) - known.sum()))


def _in_memory(X: Any) -> bool:
    if isinstance(X, np.memmap | str | os.PathLike):
        return False
    if isinstance(X, list | tuple):
        return not is_path_list(X)
    return isinstance(X, np.ndarray) or (hasattr(X, "iloc") and not is_dask_frame(X))


@dataclass(frozen=True)
class Kinds:
    """Classes of rows, in the order of a legend.

    Attributes
    ----------
    names : tuple of str
        At most ten; of more classes the nine with most rows, and "others (21 classes)".
    codes : ndarray of shape (m,), int
        Position in ``names`` of each drawn row; -1 without a label.
    column : str
        Name of the labels, or "".
    """

    names: tuple[str, ...]
    codes: NDArray[np.intp]
    column: str = ""


@dataclass(frozen=True)
class Values:
    """Real labels of rows.

    Attributes
    ----------
    values : ndarray of shape (m,), float64
        NaN without a label.
    column : str
        Name of the labels, or "".
    """

    values: NDArray[np.float64]
    column: str = ""


def kinds_of(labels: Any, n: int, rows: Integers, X: Any = None) -> Kinds | Values:
    """Return the kinds of some rows; integers, booleans and text are classes, real numbers are values.

    Parameters
    ----------
    labels : array-like of shape (n,), or the path of a file of labels
        Of all n rows, or with keys. None, NaN and empty fields are rows without a label.
    n : int
    rows : ndarray of shape (m,)
        The rows that are drawn.
    X : path or array, optional
        What was given as the rows or their scores, by whose keys labels are joined
        (:func:`bigpca.data.keys.aligned`).

    Raises
    ------
    ValueError
        For a different number of labels than n, several columns, and files that cannot be joined.
    TypeError
        For labels that are neither numbers nor text.
    """
    found = aligned(labels, X, absent=None)
    found.note("label")
    values, gaps = one_each(found.values, n, gaps=True)
    column = str(getattr(labels, "name", None) or "") if found.table is None else found.table.column
    if values.dtype.kind == "f":
        return Values(np.where(gaps, np.nan, values)[rows], column)
    classes, codes, counts = np.unique(values[~gaps], return_inverse=True, return_counts=True)
    names = [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in classes.tolist()]
    whole = np.full(n, -1, np.intp)
    if len(names) > MAX_KINDS:
        largest = np.sort(np.argsort(-counts, kind="stable")[: MAX_KINDS - 1])
        place = np.full(len(names), MAX_KINDS - 1, np.intp)
        place[largest] = np.arange(MAX_KINDS - 1)
        others = f"{len(names) - len(largest):,} classes"  # at least two
        names, codes = [*(names[i] for i in largest), f"others ({others})"], place[codes]
    whole[~gaps] = codes
    return Kinds(tuple(names), whole[rows], column)
