"""What estimators take as X, checked once at the entrance."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any

import dask.array as da
import numpy as np
import zarr
from sklearn.utils.validation import validate_data

from bigpca.data.checks import check_dtype
from bigpca.data.sources import open as open_array
from bigpca.sketches.base import positive_integer


def is_lazy(X: Any) -> bool:
    """Whether X is read by the engine (Dask, Zarr, xarray, a path or a memory map) and not a plain array in memory."""
    labelled = all(hasattr(X, name) for name in ("dims", "coords", "data")) and hasattr(X, "to_dataset")
    return labelled or isinstance(X, da.Array | zarr.Array | zarr.Group | str | os.PathLike | np.memmap)


def as_dask(estimator: Any, X: Any, *, reset: bool, minimum: int = 1) -> da.Array:
    """Return X as a Dask array (n, d), having checked dtype, shape and number of features; nothing is read.

    Arrays in memory pass scikit-learn's validation (which knows data frames and feature names); NaN is left to the pass.

    Raises
    ------
    TypeError
        For dtypes that have no principal components.
    ValueError
        For the wrong number of features, and for empty input.
    """
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise TypeError(
            f"X is a masked array with {int(np.ma.getmaskarray(X).sum())} masked values, which PCA would take at face value. "
            f'Pass X.filled(np.nan) with nan_policy="omit" to leave those rows out, or fill them.'
        )
    if not is_lazy(X):
        if isinstance(X, np.ndarray) and X.dtype.kind not in "OUS":
            _check_kind(X)
        X = validate_data(
            estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False, ensure_min_samples=minimum
        )
        return open_array(np.asarray(X))
    opened = open_array(X)
    check_dtype(opened.dtype)
    n, d = opened.shape
    if d == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={opened.shape}) while a minimum of 1 is required.")
    if n < minimum:
        raise ValueError(
            f"Found array with {n} sample{'s' if n != 1 else ''} (shape={opened.shape}) while a minimum of {minimum} is "
            f"required: a variance needs two rows. Give more rows."
        )
    if reset:
        estimator.n_features_in_ = int(d)
        vars(estimator).pop("feature_names_in_", None)
    elif d != estimator.n_features_in_:
        name = type(estimator).__name__
        raise ValueError(
            f"X has {d} features, but {name} is expecting {estimator.n_features_in_} features as input: it was fitted on "
            f"rows of that length. Pass rows of the same features."
        )
    return opened


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
