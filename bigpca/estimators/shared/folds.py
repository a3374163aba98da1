"""Which fold or group each row is in, for fits that keep a state for each; and the error of a statistic from folds."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from bigpca.arrays import Array, named
from bigpca.estimators.shared.files import unpack_values
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.rows import Rows
from bigpca.records import PART, Held


def placed_in_folds(states: FoldStates, joined: Rows, groups: Unchecked = None, least: int = 2) -> FoldStates:
    """Return the states of folds, with the fold of each row of sides that are begun.

    Rows of one label are a fold. Without labels, a fold is a hash of the key of the row, and where rows have no keys,
    of its number. So rows with keys have the same folds in any order and in any process, and all rows that a pattern
    makes of one sample are in one fold.

    Raises
    ------
    ValueError
        For labels that are missing or do not belong to the rows, and for fewer than ``least`` groups.
    """
    from bigpca.data.keys import in_row_order, keys_of_rows  # imports all formats of labels
    from bigpca.data.labels import class_values, one_each, reject_gaps

    sides = joined.origin.sides
    if groups is not None:
        if joined.order.open_ended:
            raise ValueError(
                "there are groups, but batches of an unknown number of rows. Give it: "
                "from_batches(batches, shape=(n, d))."
            )
        given = one_each(in_row_order(groups, sides[0].given, word="group"), joined.n_rows, "group", gaps=True)
        present = joined.counted.which(joined.n_rows)
        reject_gaps(given.gaps & present, "group")
        codes = np.zeros(len(present), np.int32)
        names, codes[present] = np.unique(given.values[present], return_inverse=True)
        if len(names) < least:
            raise ValueError(f"all rows are in the group {names.tolist()[0]!r}; at least {least} groups were expected.")
        labels = class_values(names, np.zeros(len(names), bool))
        return replace(states, n_folds=len(names), codes=codes, labels=labels)
    for keys in (keys_of_rows(side.given) for side in sides):
        if keys.names is not None and not keys.loose:
            hashes = (hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=4) for key in keys.names)
            drawn = np.fromiter((int.from_bytes(one.digest(), "big") for one in hashes), np.int64)
            folds = (drawn * states.n_folds >> 32).astype(np.int32)
            return replace(states, codes=folds if keys.places is None else folds[keys.places])
    return states


def jackknife(values: Array) -> Array:
    """Return the standard errors (...) of statistics from their values (f, ...) without each of f folds (Efron &
    Tibshirani 1993, eq. 11.5).
    """
    f = len(values)
    return np.asarray(np.sqrt((f - 1) / f * np.sum((values - values.mean(axis=0)) ** 2, axis=0)))


def check_folds(before: Accumulator | None, added: Accumulator) -> None:
    """Reject states of rows with other folds than those before; raises as :meth:`FoldStates.union`."""
    if before is None:
        return
    if isinstance(before, FoldStates) and isinstance(added, FoldStates):
        before.union(added)
    elif isinstance(before, FoldStates) or isinstance(added, FoldStates):
        raise ValueError(
            "some rows were fitted with a state for each fold or group, others with one. Fit all rows by the same "
            "parameters, and give groups= for all or for none."
        )


def held_folds(held: Held, name: str, template: Accumulator) -> Accumulator:
    """Return the template of the statistics of that name in a file, which may be one state for each fold or group.

    Raises
    ------
    ValueError
        For a file with another number of groups.
    """
    folds = {key.partition("_")[0] for key in named(held.arrays, f"{name}{PART}states_")}
    if not folds:
        return template
    labels = unpack_values(held.values["groups"]) if "groups" in held.values else None
    if labels is not None and len(labels) != len(folds):
        raise ValueError(f"it has statistics of {len(folds)} groups, and {len(labels)} labels of groups")
    found = template if isinstance(template, FoldStates) else FoldStates(template, 1)
    return replace(found, n_folds=len(folds), labels=labels)
