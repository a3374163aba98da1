"""Labels joined to rows by key, so that the order of neither matters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.label_values import label_values, rows_shown
from bigpca.errors import brief

SHOWN_KEYS = 5
ABSENT = "raise"
_REMEDIES = {
    "label": ', or use missing_labels="drop" (--missing-labels drop)',
    "value": ", or pass absent=0 for weights, absent=None for labels",
}


def join_labels(
    labels: Any, keys: Any, row_keys: NDArray[np.str_], *, absent: Any = ABSENT, word: str = "label"
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
    absent : "raise", None, or a label
        The label of rows whose key has none; "raise" rejects them.
    word : {"label", "weight", "value"}
        What is joined, for messages.

    Returns
    -------
    ndarray of shape (n,) or (n, c), object; ``absent`` for rows without a label

    Raises
    ------
    ValueError
        For two labels of one key, labels without a key, labels and keys of other lengths, and rows without a label, or,
        where ``absent`` says what they get, no row that has one; names the keys.

    Examples
    --------
    >>> join_labels(["dog", "cat", "ape"], ["b.jpg", "a.jpg", "c.jpg"], np.array(["a.jpg", "b.jpg"])).tolist()
    ['cat', 'dog']
    """
    values = np.asarray(labels, dtype=object)
    given, gaps = label_values(keys, "key")
    texts = given.astype(np.str_)
    if len(texts) != len(values):
        raise ValueError(
            f"the number of keys, {len(texts):,}, is not that of the {word}s, {len(values):,}. Give one key for each "
            f"{word}."
        )
    if gaps.any():
        raise ValueError(
            f"{gaps.sum():,} of {len(texts):,} {word}s have no key ({rows_shown(gaps)}), so that they belong to no "
            "row. Give them a key, or remove them."
        )
    order = np.argsort(texts, kind="stable")
    ordered = texts[order]
    doubled = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if len(doubled):
        have = "key has" if len(doubled) == 1 else "keys have"
        raise ValueError(
            f"{len(doubled):,} {have} more than one {word}: {keys_listed(doubled)}. One {word} for each key was "
            "expected: remove the others."
        )
    places = np.searchsorted(ordered, row_keys.astype(np.str_))
    places[places == len(ordered)] = 0
    there = ordered[places] == row_keys if len(ordered) else np.zeros(len(row_keys), bool)
    strict = isinstance(absent, str) and absent == ABSENT
    if not there.all() and (strict or not there.any()):
        remedy = _REMEDIES.get(word, "") if strict else ""
        raise ValueError(
            f"{(~there).sum():,} of {len(row_keys):,} rows have no {word}: {keys_listed(row_keys[~there])}. The keys "
            f"of the {word}s are like {keys_listed(texts[:2])}. Add the missing {word}s{remedy}."
        )
    joined = np.full((len(row_keys), *values.shape[1:]), None if strict else absent, dtype=object)
    joined[there] = values[order[places[there]]]
    return joined


def keys_listed(keys: NDArray[np.str_]) -> str:
    """Format the first of some keys, for messages.

    >>> keys_listed(np.array(["a", "b"]))
    "'a', 'b'"
    """
    shown = ", ".join(brief(repr(key)) for key in keys[:SHOWN_KEYS].tolist())
    return shown + (", ..." if len(keys) > SHOWN_KEYS else "")
