"""What estimators take as X, checked once at the entrance."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

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

LAZY = (da.Array, str, os.PathLike, np.memmap)


def is_lazy(X: Any) -> bool:
    """Whether X is read by the engine (Dask, Zarr, xarray, HDF5, paths or a memory map) and not a plain array in memory."""
    known = (is_labelled, is_dask_frame, is_zarr_array, is_zarr_group, is_hdf5_dataset, is_path_list)
    return isinstance(X, LAZY) or any(is_one(X) for is_one in known)


def as_dask(estimator: Any, X: Any, *, reset: bool, minimum: int = 1) -> da.Array:
    """Return X as a Dask array (n, d), having checked dtype, shape, number and names of features; nothing is read.

    Arrays in memory pass scikit-learn's validation (which knows data frames and feature names); NaN is left to the pass.
    Masked entries are NaN; dimensions after the first are flattened.

    Raises
    ------
    TypeError
        For dtypes that have no principal components, and for containers whose rows cannot be read.
    ValueError
        For the wrong number or names of features, and for empty input.
    """
    if not is_lazy(X):
        return open_in_memory(in_memory(estimator, X, reset=reset, minimum=minimum))
    opened = open_array(X)
    n, d = opened.shape
    if d == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={opened.shape}) while a minimum of 1 is required.")
    if n < minimum:
        raise ValueError(
            f"Found array with {n} sample{'s' if n != 1 else ''} (shape={opened.shape}) while a minimum of {minimum} is "
            f"required: a variance needs two rows. Give more rows."
        )
    names = feature_names(X)
    if reset:
        estimator.n_features_in_ = int(d)
        vars(estimator).pop("feature_names_in_", None)
        if names is not None:
            estimator.feature_names_in_ = names
        return opened
    _check_names(estimator, names)
    if d != estimator.n_features_in_:
        name = type(estimator).__name__
        raise ValueError(
            f"X has {d} features, but {name} is expecting {estimator.n_features_in_} features as input: it was fitted on "
            f"rows of that length. Pass rows of the same features."
        )
    return opened


def in_memory(estimator: Any, X: Any, *, reset: bool, minimum: int = 1) -> NDArray[Any]:
    """Return X, which is no lazy container, as a checked array (n, d); errors are those of :func:`as_dask`."""
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
    options = {"dtype": "numeric", "ensure_all_finite": False, "ensure_min_samples": minimum}
    try:
        checked: NDArray[Any] = np.asarray(validate_data(estimator, X, reset=reset, **options))
    except ValueError as error:
        reject_text_columns(X)
        raise error from None
    rounded = _rounded_before(X) if checked.dtype == np.float64 else 0
    if rounded:
        warn_rounded(rounded)
    return checked


def _rounded_before(X: Any) -> int:
    """Count the integers that a conversion to float64 has rounded: Python's, and columns of a frame beside floats."""
    if isinstance(X, np.ndarray):
        whole = (value for value in X.ravel() if isinstance(value, int)) if X.dtype.kind == "O" else ()
        return sum(int(float(value)) != value for value in whole)
    with tally_rounded() as tally:
        if hasattr(X, "columns"):
            note_rounded_columns(X)
    return tally.count


def _check_names(estimator: Any, names: NDArray[np.object_] | None) -> None:
    """Compare names of features with those of the fit, in scikit-learn's words."""
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


def check_plain_parameters(estimator: Any) -> None:
    """Refuse switches that are not booleans, and counts that are not integers, under the names that all estimators share.

    Raises
    ------
    TypeError, ValueError
    """
    for name in ("center", "scale", "whiten"):
        value = getattr(estimator, name, False)
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} = {value!r} is a {type(value).__name__}; True or False was expected.")
    if getattr(estimator, "solve_threads", None) is not None:
        positive_integer("solve_threads", estimator.solve_threads)
    kept = getattr(estimator, "keep_state_bytes", 0)
    if isinstance(kept, bool | np.bool_) or not isinstance(kept, Integral):
        raise TypeError(f"keep_state_bytes = {kept!r} is a {type(kept).__name__}; a number of bytes was expected.")


def _check_kind(X: np.ndarray[Any, Any]) -> None:
    if X.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X is {X.dtype}. Take real and imaginary parts as columns.")
    check_dtype(X.dtype)
