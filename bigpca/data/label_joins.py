"""Which label belongs to which row: the rules by which the keys of both are compared, in one place for every door.

The first rule that fits decides:

1. The caller says how: ``bigpca.by_key(y, X, keys)`` joins, ``keys=False`` takes labels by position.
2. Both sides have keys, equal one by one: by position. Repeated keys are allowed.
3. Both have keys, all distinct: joined. Rows without a label are an error; so are repeated keys in another order.
4. DataArrays whose coordinates differ are rejected (:meth:`bigpca.data.grids.Labels.by_sample`).
5. Labels have keys, but the rows lost theirs since they left a store that has some, or the labels are a column of a
   table with keys, and the rows have none: an error.
6. All else is by position: NumPy labels, and the unnamed integers of an index, as scikit-learn's ``train_test_split``
   leaves them. The same integers in another order on both sides are an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.label_values import label_values, rows_shown, with_gaps
from bigpca.errors import brief

SHOWN_KEYS = 5
ABSENT = "raise"
_REMEDIES = {
    "label": ', or use missing_labels="drop" (--missing-labels drop)',
    "value": ", or pass absent=0 for weights, absent=None for labels",
}
BY_POSITION = (
    "If they are in the order of the rows, say so: bigpca.by_key(values, X, keys=False), or keys=False in a report, or "
    "--by-position on the command line."
)


@dataclass(frozen=True, eq=False)
class Keys:
    """What names rows, or labels.

    Attributes
    ----------
    names : ndarray of shape (m,), str (integers where they are loose), or None
    places : ndarray of shape (n,), int, or None
        Which name each row has; None for m rows in the order of the names.
    samples : bool
        Whether the names are those of samples, of which each has several rows.
    loose : bool
        Whether they are the unnamed integers of an index, by which nothing is joined.
    lost : str
        The store with keys from which rows without names were computed.
    file : str
        The table in which labels and their keys are columns.
    """

    names: NDArray[Any] | None = None
    places: NDArray[np.int64] | None = None
    samples: bool = False
    loose: bool = False
    lost: str = ""
    file: str = ""

    @property
    def of_rows(self) -> NDArray[Any] | None:
        """The name of each row."""
        return self.names if self.names is None or self.places is None else self.names[self.places]

    def firm(self) -> Keys:
        """Return the same keys, by which labels are joined even if they are integers of an index."""
        return self if self.names is None else replace(self, names=self.names.astype(np.str_), loose=False)


def label_places(
    rows: Keys, labels: Keys, *, absent: Any = ABSENT, word: str = "label"
) -> tuple[NDArray[np.intp], NDArray[np.bool_]] | None:
    """Return the place of each row's label, and which rows have one; None where labels are taken by position.

    Parameters
    ----------
    rows, labels : Keys
        Without names where rule 1 says so, or where there are none.
    absent : "raise", or the label of rows without one
    word : {"label", "weight", "value"}
        What is joined, for messages.

    Raises
    ------
    ValueError
        By the rules above; names five keys, and the remedy.

    Examples
    --------
    >>> places, there = label_places(Keys(np.array(["a", "b"])), Keys(np.array(["c", "b", "a"])))
    >>> places.tolist(), there.all()
    ([2, 1], np.True_)
    """
    given, own = labels.names, rows.of_rows
    if given is None or (own is None and (labels.loose or not (rows.lost or labels.file))):
        return None
    if own is None and rows.lost:
        raise ValueError(
            f"the {word}s have keys, such as {keys_listed(given[:2])}, but the rows of X have lost theirs: X was "
            f"computed from {rows.lost}, whose rows have keys. Slices of rows and columns, and scores of transform, "
            f"keep them: pass such, or write X with keys: bigpca.ingest(X, path, keys=...). {BY_POSITION}"
        )
    if own is None:
        raise ValueError(
            f"the {word}s in {labels.file} have keys, such as {keys_listed(given[:2])}, but the rows of X have none to "
            f"join them by. Store them: bigpca.ingest(X, path, keys=...) (bigpca ingest ... --keys). {BY_POSITION}"
        )
    if rows.loose or labels.loose:
        if len(own) != len(given):
            return None
        if not (rows.loose and labels.loose):
            own, given = own.astype(np.str_), given.astype(np.str_)
        if not np.array_equal(own, given) and np.array_equal(np.sort(own), np.sort(given)):
            raise ValueError(
                f"the rows and their {word}s have the same index, but in another order: {keys_listed(own)} and "
                f"{keys_listed(given)}. Give them one order: bigpca.by_key(values, X) joins them. {BY_POSITION}"
            )
        return None
    if np.array_equal(own, given):
        return None
    doubled = np.empty(0) if rows.samples else _doubled(own)
    if len(doubled):
        raise ValueError(
            f"{np.isin(own, doubled).sum():,} of {len(own):,} rows share their key with another row: "
            f"{keys_listed(doubled)}, and the keys of the {word}s are not the same one by one. Give distinct keys, or "
            f"the {word}s in the order of the rows. {BY_POSITION}"
        )
    doubled = _doubled(given)
    if len(doubled):
        have = "key has" if len(doubled) == 1 else "keys have"
        raise ValueError(
            f"{len(doubled):,} {have} more than one {word}: {keys_listed(doubled)}. One {word} for each key was "
            "expected: remove the others."
        )
    order = np.argsort(given, kind="stable")
    places = np.minimum(np.searchsorted(given, own, sorter=order), max(len(given) - 1, 0))
    places = order[places] if len(given) else np.zeros(len(own), np.intp)
    there = given[places] == own if len(given) else np.zeros(len(own), bool)
    strict = isinstance(absent, str) and absent == ABSENT
    if not there.all() and (strict or not there.any()):
        raise ValueError(
            f"{(~there).sum():,} of {len(own):,} rows have no {word}: {keys_listed(own[~there])}. The keys of the "
            f"{word}s are like {keys_listed(given[:2])}. Add the missing {word}s"
            f"{_REMEDIES.get(word, '') if strict else ''}.{'' if there.any() else ' ' + BY_POSITION}"
        )
    return places, there


def given_keys(keys: Any, count: int, word: str) -> NDArray[np.str_]:
    """Read the keys that a caller gives for so many labels.

    Raises
    ------
    ValueError
        For another number of keys, and for labels without a key.
    """
    values, gaps = label_values(keys, "key")
    if len(values) != count:
        raise ValueError(
            f"the number of keys, {len(values):,}, is not that of the {word}s, {count:,}. Give one key for each {word}."
        )
    if gaps.any():
        raise ValueError(
            f"{gaps.sum():,} of {count:,} {word}s have no key ({rows_shown(gaps)}), so that they belong to no row. "
            "Give them a key, or remove them."
        )
    return values.astype(np.str_)


def joined(values: Any, found: tuple[NDArray[np.intp], NDArray[np.bool_]], absent: Any, word: str) -> NDArray[Any]:
    """Return the labels at the places of :func:`label_places`, and ``absent`` for rows without one."""
    places, there = found
    entries = with_gaps(*label_values(values, word))
    if there.all():
        return entries[places]
    of_rows = np.full((len(places), *entries.shape[1:]), absent, dtype=object)
    of_rows[there] = entries[places[there]]
    return with_gaps(*label_values(of_rows, word))


def keys_listed(keys: NDArray[Any]) -> str:
    """Format the first of some keys, for messages.

    >>> keys_listed(np.array(["a", "b"]))
    "'a', 'b'"
    """
    shown = ", ".join(brief(repr(key)) for key in keys[:SHOWN_KEYS].tolist())
    return shown + (", ..." if len(keys) > SHOWN_KEYS else "")


def _doubled(keys: NDArray[np.str_]) -> NDArray[np.str_]:
    ordered = np.sort(keys)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
