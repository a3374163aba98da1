"""The inputs that estimators accept as X, checked once at the entrance."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from bigpca.arrays import Array
from bigpca.data.checks import check_dtype, row_width
from bigpca.data.containers import (
    is_dask_frame,
    is_hdf5_dataset,
    is_labelled,
    is_path_list,
    is_zarr_array,
    is_zarr_group,
    reject_foreign,
    unmasked,
)
from bigpca.data.labelled import feature_names, note_rounded_columns, reject_text_columns
from bigpca.data.rounding import tally_rounded
from bigpca.data.sources import open as open_array
from bigpca.data.sources import open_in_memory
from bigpca.errors import warn_caller, warn_rounded
from bigpca.sketches.base import positive_integer

log = logging.getLogger("bigpca")
Input: TypeAlias = Any  # what a user passed as X, y or a parameter, before its type is checked
Lazy: TypeAlias = Any  # an array in memory, or a Dask array (which has no types) for lazy input
Names: TypeAlias = NDArray[np.object_] | None
LAZY = (da.Array, str, os.PathLike, np.memmap)


def is_lazy(X: Input) -> bool:
    """Whether the engine reads X (Dask, Zarr, xarray, HDF5, paths, memory maps); False for an array in memory."""
    known = (is_labelled, is_dask_frame, is_zarr_array, is_zarr_group, is_hdf5_dataset, is_path_list)
    return isinstance(X, LAZY) or any(is_one(X) for is_one in known)


@dataclass(frozen=True)
class Opened:
    """X after the checks at the entrance; nothing has been read.

    Attributes
    ----------
    array : dask.array.Array of shape (n, d)
    names : ndarray of shape (d,), or None
        Feature names.
    in_memory : bool
        Whether X is an array in memory, which the engine does not read.
    seed : int
        Seed of all random draws of a fit.
    """

    array: da.Array
    names: Names
    in_memory: bool = False
    seed: int = 0

    @property
    def n_features(self) -> int:
        """Number of columns d."""
        return int(self.array.shape[1])


def open_rows(X: Input, estimator: str, *, minimum: int = 1) -> Opened:
    """Check the dtype and shape of X and open it, without reading.

    Arrays in memory go through scikit-learn's validation, which handles data frames and feature names; the pass handles
    NaN. Masked entries become NaN; dimensions after the first are flattened.

    Parameters
    ----------
    estimator : str
        Name of the class, for messages.
    minimum : int
        Required number of rows.

    Raises
    ------
    TypeError
        For dtypes that have no principal components, and for containers whose rows cannot be read.
    ValueError
        For empty input.
    """
    if not is_lazy(X):
        values, names = in_memory(X, estimator, minimum=minimum)
        return Opened(open_in_memory(values), names, in_memory=True)
    opened = open_array(X)
    n, d = opened.shape
    if d == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={opened.shape}) while a minimum of 1 is required.")
    if n < minimum:
        raise ValueError(
            f"Found array with {n} sample{'s' if n != 1 else ''} (shape={opened.shape}) while a minimum of {minimum} "
            f"is required: a variance needs two rows. Give more rows."
        )
    return Opened(opened, feature_names(X))


def open_scores(X: Input, estimator: str, k: int) -> da.Array:
    """Open scores of k components.

    Raises
    ------
    ValueError
        For another number of columns.
    """
    opened = open_rows(X, estimator).array
    if opened.shape[1] != k:
        raise ValueError(f"scores have {opened.shape[1]} columns; {k} (n_components_) were expected.")
    return opened


def in_memory(X: Input, estimator: str, *, minimum: int = 1) -> tuple[Array, Names]:
    """Return X, which is not lazy, as a checked array (n, d), and its feature names; raises as :func:`open_rows`."""
    reject_foreign(X)
    if isinstance(X, list | tuple):
        masked = any(isinstance(row, np.ma.MaskedArray) for row in X)
        X = np.ma.stack(X) if masked else np.asarray(X)
    if isinstance(X, np.ma.MaskedArray):
        X = unmasked(X)
    if len(getattr(X, "shape", ())) > 2:
        X = np.asarray(X).reshape(X.shape[0], row_width(X.shape))
    if isinstance(X, np.ndarray) and X.dtype.kind not in "OUS":
        _check_kind(X)
    asked = BaseEstimator()  # receives the names
    options = {"dtype": "numeric", "ensure_all_finite": False, "ensure_min_samples": minimum}
    try:
        checked: Array = np.asarray(validate_data(asked, X, estimator=estimator, **options))
    except ValueError as error:
        reject_text_columns(X)
        raise error from None
    rounded = _rounded_before(X) if checked.dtype == np.float64 else 0
    if rounded:
        warn_rounded(rounded)
    return checked, getattr(asked, "feature_names_in_", None)


def note_flattened(X: Input) -> None:
    """Log that rows of several dimensions are flattened, which only their shape shows."""
    shape = getattr(X, "shape", ())
    if len(shape) > 2:
        log.warning(
            "X has shape %s: each row is flattened, in C order, to %d features.", shape, row_width(tuple(shape))
        )


def check_features(estimator: BaseEstimator, n_features: int, names: Names) -> None:
    """Compare the number and names of features with those of the fit.

    Raises
    ------
    ValueError
    """
    _check_names(estimator, names)
    if n_features != estimator.n_features_in_:
        name = type(estimator).__name__
        raise ValueError(
            f"X has {n_features} features, but {name} is expecting {estimator.n_features_in_} features as input: it "
            f"was fitted on rows of that length. Pass rows of the same features."
        )


def _rounded_before(X: Input) -> int:
    """Count the integers that the conversion to float64 rounded: of Python, or in integer columns beside floats."""
    if isinstance(X, np.ndarray):
        whole = (value for value in X.ravel() if isinstance(value, int)) if X.dtype.kind == "O" else ()
        return sum(int(float(value)) != value for value in whole)
    with tally_rounded() as tally:
        if hasattr(X, "columns"):
            note_rounded_columns(X)
    return tally.count


def _check_names(estimator: BaseEstimator, names: Names) -> None:
    """Compare feature names with those of the fit, with the messages of scikit-learn."""
    known = getattr(estimator, "feature_names_in_", None)
    name = type(estimator).__name__
    if known is None or names is None:
        if names is not None:
            warn_caller(f"X has feature names, but {name} was fitted without feature names", UserWarning)
        if known is not None:
            warn_caller(f"X does not have valid feature names, but {name} was fitted with feature names", UserWarning)
        return
    if len(known) == len(names) and (known == names).all():
        return
    unseen, missing = sorted(set(names) - set(known)), sorted(set(known) - set(names))
    message = "The feature names should match those that were passed during fit.\n"
    for title, found in (
        ("Feature names unseen at fit time", unseen),
        ("Feature names seen at fit time, yet now missing", missing),
    ):
        if found:
            message += "".join(
                [f"{title}:\n", *(f"- {one}\n" for one in found[:5]), "- ...\n" if len(found) > 5 else ""]
            )
    if not unseen and not missing:
        message += "Feature names must be in the same order as they were in fit.\n"
    raise ValueError(message)


def check_policies(estimator: BaseEstimator) -> None:
    """Reject unknown policies, switches that are not booleans and counts that are not integers.

    Raises
    ------
    TypeError, ValueError
    """
    for name, allowed in (("nan_policy", ("raise", "omit")), ("missing_chunks", ("raise", "fill"))):
        if getattr(estimator, name) not in allowed:
            raise ValueError(
                f'{name} = {getattr(estimator, name)!r} is unknown; "{allowed[0]}" or "{allowed[1]}" was expected.'
            )
    for name in ("center", "scale", "whiten"):
        value = getattr(estimator, name, False)
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} = {value!r} is a {type(value).__name__}; True or False was expected.")
    if getattr(estimator, "solve_threads", None) is not None:
        positive_integer("solve_threads", estimator.solve_threads)
    kept = getattr(estimator, "keep_state_bytes", 0)
    if isinstance(kept, bool | np.bool_) or not isinstance(kept, Integral):
        raise TypeError(f"keep_state_bytes = {kept!r} is a {type(kept).__name__}; a number of bytes was expected.")


def _check_kind(X: Array) -> None:
    if X.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X is {X.dtype}. Take real and imaginary parts as columns.")
    check_dtype(X.dtype)
