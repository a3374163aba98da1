"""Dask DataFrames out of Dask DataFrames: ``set_output(transform="pandas")`` of rows that need not fit in memory."""

from __future__ import annotations

from functools import wraps
from typing import Protocol

import dask.array as da
from sklearn import get_config
from sklearn.base import BaseEstimator

from bigpca.data.containers import is_dask_frame
from bigpca.estimators.shared.inputs import Input, Lazy


class Method(Protocol):
    """A method of estimators that returns one row for each row of X."""

    def __call__(self, estimator: BaseEstimator, X: Input, /, *args: Input, **options: Input) -> Lazy: ...


def container_of(estimator: BaseEstimator) -> tuple[str, bool]:
    """Return the container in which scikit-learn puts transformed rows, and whether it is the estimator's own."""
    own = getattr(estimator, "_sklearn_output_config", {}).get("transform")
    return own or get_config()["transform_output"], bool(own)


def frames_of(estimator: BaseEstimator, X: Input) -> bool:
    """Whether rows of X are to be returned as a Dask DataFrame."""
    return is_dask_frame(X) and container_of(estimator)[0] == "pandas"


def with_dask_frames(method: Method) -> Method:
    """Return a method that scikit-learn has wrapped for ``set_output``, and that keeps Dask DataFrames lazy.

    scikit-learn would load them into a pandas DataFrame. Partitions, divisions and index are those of X.
    """
    unwrapped: Method = method.__wrapped__  # type: ignore[attr-defined]

    @wraps(method)
    def wrapped(self: BaseEstimator, X: Input, *args: Input, **options: Input) -> Lazy:
        if not frames_of(self, X):
            return method(self, X, *args, **options)
        rows = unwrapped(self, X, *args, **options)
        if not isinstance(rows, da.Array):
            return rows
        return rows.to_dask_dataframe(columns=list(self.get_feature_names_out()), index=X.index)

    return wrapped
