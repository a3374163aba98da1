"""Labels joined to rows by key, so that the order of neither matters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.label_values import label_values
from bigpca.errors import brief

SHOWN_KEYS = 5


def join_labels(
    labels: Any, keys: Any, row_keys: NDArray[np.str_], *, missing: str = "raise", word: str = "label"
) -> NDArray[Any]:
    """Return the label of each row: that of the entry with the same key.

    Parameters
    ----------
    labels : array of shape (m,) or (m, c)
        Labels as they are stored, gaps included.
    keys : array of shape (m,)
        Their keys: strings or integers.
    row_keys : ndarray of shape (n,), str
        Keys of the rows.
    missing : {"raise", "drop"}
        What to do about rows whose key has no label: raise an error, or leave them without one.
    word : {"label", "weight"}
        What is joined, for messages.

    Returns
    -------
    ndarray of shape (n,) or (n, c); None for rows without a label

    Raises
    ------
    ValueError
        For two labels of one key, labels and keys of other lengths, and rows without a label, or with "drop" no row
        that has one; names the keys.

    Examples
    --------
    >>> join_labels(["dog", "cat", "ape"], ["b.jpg", "a.jpg", "c.jpg"], np.array(["a.jpg", "b.jpg"])).tolist()
    ['cat', 'dog']
    """
    values = np.asarray(labels, dtype=object)
    texts = np.asarray(label_values(keys)[0]).astype(np.str_)
    if len(texts) != len(values):
        raise ValueError(
            f"the number of keys, {len(texts):,}, is not that of the {word}s, {len(values):,}. Give one key for each "
            f"{word}."
        )
    order = np.argsort(texts, kind="stable")
    ordered = texts[order]
    doubled = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if len(doubled):
        have = "key has" if len(doubled) == 1 else "keys have"
        raise ValueError(
            f"{len(doubled):,} {have} more than one {word}: {_listed(doubled)}. One {word} for each key was expected: "
            "remove the others."
        )
    places = np.searchsorted(ordered, row_keys.astype(np.str_))
    places[places == len(ordered)] = 0
    there = ordered[places] == row_keys if len(ordered) else np.zeros(len(row_keys), bool)
    if not there.all() and (missing == "raise" or not there.any()):
        drop = missing == "raise" and word == "label"
        remedy = ', or use missing_labels="drop" (--missing-labels drop)' if drop else ""
        raise ValueError(
            f"{(~there).sum():,} of {len(row_keys):,} rows have no {word}: {_listed(row_keys[~there])}. The keys of "
            f"the {word}s are like {_listed(texts[:2])}. Add the missing {word}s{remedy}."
        )
    joined = np.full((len(row_keys), *values.shape[1:]), None, dtype=object)
    joined[there] = values[order[places[there]]]
    return joined


def _listed(keys: NDArray[np.str_]) -> str:
    shown = ", ".join(brief(repr(key)) for key in keys[:SHOWN_KEYS].tolist())
    return shown + (", ..." if len(keys) > SHOWN_KEYS else "")
