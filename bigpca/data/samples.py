"""From the rows of a view back to its samples: scores as maps, and labels of samples for their rows."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from bigpca.data.label_values import label_values, with_gaps
from bigpca.data.sources import open as open_array
from bigpca.data.views import view_of
from bigpca.errors import counted


def as_maps(scores: Any, shape: tuple[int, ...]) -> Any:
    """Return scores of all places of samples as maps, lazily if the scores are lazy.

    Parameters
    ----------
    scores : array of shape (n * h * w, k), or a path
        Of rows that a pattern such as ``"n c h w -> (n h w) c"`` makes.
    shape : (h, w)
        Or any other shape of the places of one sample, in the order of the pattern.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, h, w, k)

    Raises
    ------
    ValueError
        If the number of rows is unknown or no multiple of the places.

    Examples
    --------
    >>> as_maps(np.zeros((24, 3)), (4, 2)).shape
    (3, 4, 2, 3)
    """
    if not isinstance(shape, tuple | list):
        raise TypeError(f"shape = {shape!r} is a {type(shape).__name__}; the height and width, (h, w), were expected.")
    shape = tuple(int(size) for size in shape)
    places = math.prod(shape)
    X = scores if isinstance(scores, np.ndarray | da.Array) else open_array(scores)
    if X.ndim != 2:
        raise ValueError(
            f"scores have shape {X.shape}; (n, k) was expected. Give a statistic of the rows as a column, spe[:, None]."
        )
    if np.isnan(X.shape[0]):
        raise ValueError(f"scores have shape {X.shape}; a known n was expected. Call compute_chunk_sizes().")
    n, k = int(X.shape[0]), int(X.shape[1])
    if min(shape, default=0) < 1 or n % places:
        raise ValueError(
            f"{n} rows are not maps of shape {shape}, of which each has {places} places. Give the shape of the places "
            f"that one sample has in the pattern."
        )
    if isinstance(X, np.ndarray):
        return X.reshape(n // places, *shape, k)
    if any(count % places for count in X.chunks[0]) or len(X.chunks[1]) > 1:
        largest = max(X.chunks[0])
        X = X.rechunk((-(-largest // places) * places, k))
    counts = tuple(count // places for count in X.chunks[0])
    return X.map_blocks(
        lambda block: block.reshape(-1, *shape, k), dtype=X.dtype, chunks=(counts, *((s,) for s in shape), (k,)),
        new_axis=list(range(1, len(shape) + 1)),
    )  # fmt: skip


def repeat_labels(y: Any, X: da.Array) -> NDArray[Any]:
    """Return the labels of samples once for each row that a pattern makes of a sample.

    Parameters
    ----------
    y : array-like or path of n labels
        As for the ``fit`` of supervised models: one for each sample, in their order.
    X : dask.array.Array
        Opened with a pattern, by :func:`bigpca.open`.

    Returns
    -------
    ndarray of shape (rows of X,) or (rows of X, m)
        Missing labels are None, or NaN among real numbers.

    Raises
    ------
    ValueError
        For another number of labels than samples, and arrays that were opened without a pattern.

    Examples
    --------
    >>> X = open_array(np.zeros((2, 5, 3)), pattern="n t d -> (n t) d", t=slice(1, 4))
    >>> repeat_labels(["cat", "dog"], X).tolist()
    ['cat', 'cat', 'cat', 'dog', 'dog', 'dog']
    """
    samples, view = view_of(X)
    if view is None:
        raise ValueError("X was opened without a pattern, so that each sample is one row. Pass the labels as they are.")
    values, gaps = label_values(y)
    if len(values) != samples.shape[0]:
        given = counted(len(values), "label")
        raise ValueError(f"y has {given}, but X has {counted(samples.shape[0], 'sample')}. Give one for each.")
    return np.repeat(with_gaps(values, gaps), view.rows_per_sample, axis=0)
