"""The rows at both ends of each component."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from bigpca.data.sources import open as open_array
from bigpca.data.views import carried
from bigpca.estimators.linear.monitoring import STATISTICS
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.project import keys_of
from bigpca.passes.reading.row_maps import MapStep
from bigpca.passes.rows import Rows
from bigpca.passes.summaries import Ends, read_ends
from bigpca.settings import setting
from bigpca.sketches.base import positive_integer


def extremes(model: Any, X: Any, n: int = 10, *, progress: ProgressArgument = None) -> Ends:
    """Return the rows with the lowest and highest scores of each component, in one read and bounded memory.

    They show what a component means. Of equal scores the first rows are returned.

    Parameters
    ----------
    model : fitted model, or None for scores of any model
    X : array-like, Dask array, path and so on
        Rows (n, d), which are transformed as they are read, or scores (n, k): with as many columns as the model has
        components, and another number than it has features, these are scores.
    n : int, default 10
        How many at each end; at most all rows are returned.
    progress : True, "auto", a callable that receives events, or None, default None
        True shows a bar, "auto" one after two seconds.

    Returns
    -------
    Ends
        Row numbers and scores, the furthest first, and keys if the source stores keys. Rows without scores (NaN), and
        with ``nan_policy="omit"`` rows with NaN, are at no end.

    Raises
    ------
    TypeError, ValueError
        If ``n`` is not a positive integer, and for a table of statistics in place of scores.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.

    Examples
    --------
    >>> import numpy as np
    >>> from bigpca import PCA
    >>> X = np.array([[0.0, 0], [5, 1], [-7, 0], [2, -1]])
    >>> ends = extremes(PCA(1).fit(X), X, n=1)
    >>> ends.lowest.tolist(), ends.highest.tolist()
    ([[2]], [[1]])
    """
    n = positive_integer("n", n)
    if model is not None:
        if not isinstance(model, BaseEstimator):
            raise TypeError(
                f"model is a {type(model).__name__}; a fitted model or None was expected: extremes(model, X)."
            )
        check_is_fitted(model)
    opened = open_array(X)
    if model is None or (opened.shape[1] == model._n_features_out != model.n_features_in_):
        names = carried(opened).names
        if model is not None and names is not None and set(names) <= set(STATISTICS):
            raise ValueError(
                f"the columns of X are statistics ({', '.join(names)}), not scores of the {model._n_features_out} "
                f"components. Give rows or scores, or None as the model: extremes(None, X)."
            )
        rows = scores = Rows.of(opened, nan_policy="omit")
    else:
        rows, _ = model._rows(model._open_like(X))
        k = model._n_features_out
        scores = rows.mapped(MapStep(model._row_map(), k, 2 * rows.n_columns * k))
    limit = None if model is None else setting(model, "memory_limit")
    ends = read_ends(scores, n, memory_limit=limit, progress=progress).ends
    return ends.with_keys(keys_of(rows))
