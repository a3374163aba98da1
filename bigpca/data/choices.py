"""Positions along an axis as a user chooses them: a slice, integers, a mask or names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import brief, closest

Taken: TypeAlias = slice | NDArray[np.int64]


@dataclass(frozen=True)
class Chosen:
    """Positions along an axis as a user chose them, before the length of the axis is known.

    Attributes
    ----------
    given : slice, tuple of int, or tuple of str
        Names of columns are strings.
    length : int or None
        That the axis must have, because a mask chose.
    """

    given: slice | tuple[int, ...] | tuple[str, ...]
    length: int | None = None

    @classmethod
    def of(cls, value: Any, what: str) -> Chosen:
        """Return what a slice, integers, a mask or names choose.

        Raises
        ------
        TypeError, ValueError
            For other values, and integers, names or masks that are not one-dimensional or choose nothing twice.
        """
        if isinstance(value, slice):
            bounds = (value.start, value.stop, value.step)
            if any(one is not None and not isinstance(one, int | np.integer) for one in bounds) or value.step == 0:
                raise ValueError(f"{what} = {value!r} does not slice by integers. Give for example slice(1, None).")
            return cls(slice(*(None if one is None else int(one) for one in bounds)))
        found = np.asarray(value)
        texts = found.dtype.kind in "UO" and all(isinstance(one, str) for one in found.ravel().tolist())
        if found.ndim != 1 or isinstance(value, str) or not (found.dtype.kind in "iub" or texts):
            raise TypeError(
                f"{what} = {brief(repr(value))} chooses no positions. Give a slice, a list of positions or names, or a "
                f"mask, such as slice(1, None) or [0, 3]."
            )
        length = len(found) if found.dtype.kind == "b" else None
        chosen = np.flatnonzero(found) if length is not None else found
        if not len(chosen):
            raise ValueError(f"{what} chooses nothing. Choose at least one position.")
        return cls(tuple(chosen.tolist()), length)

    def on(self, size: int, what: str, names: NDArray[np.object_] | None = None) -> Taken:
        """Return the positions on an axis of ``size``, of which ``names`` are the names, if it has any.

        Raises
        ------
        ValueError
            For positions outside, chosen twice, masks of another length, and names that there are not.
        """
        if self.length not in (None, size):
            raise ValueError(
                f"the mask of {what} has {self.length} entries, but its axis has {size}. Give one for each."
            )
        if isinstance(self.given, slice):
            outside = [one for one in (self.given.start, self.given.stop) if one is not None and abs(one) > size]
            if outside or not len(range(*self.given.indices(size))):
                raise ValueError(
                    f"{what} = {self}, which reaches beyond the {size} positions of its axis. Choose a range of those."
                )
            return self.given
        positions = _named(self.given, what, names) if isinstance(self.given[0], str) else np.array(self.given)
        bad = positions[(positions < -size) | (positions >= size)]
        if len(bad):
            raise ValueError(f"{what} chooses position {bad[0]}, but its axis has positions 0 to {size - 1}.")
        positions = np.where(positions < 0, positions + size, positions).astype(np.int64)
        values, counts = np.unique(positions, return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"{what} chooses position {values[counts > 1][0]} twice. Choose each position once.")
        return positions

    def count(self, size: int) -> int:
        """Return how many positions are chosen on an axis of ``size``."""
        return len(range(*self.given.indices(size))) if isinstance(self.given, slice) else len(self.given)

    def __str__(self) -> str:
        if not isinstance(self.given, slice):
            return f"{len(self.given):,} chosen"
        ends = ["" if one is None else str(one) for one in (self.given.start, self.given.stop)]
        return ":".join(ends if self.given.step is None else [*ends, str(self.given.step)])

    def to_json(self) -> Any:
        """Return JSON values."""
        if isinstance(self.given, slice):
            return {"slice": [self.given.start, self.given.stop, self.given.step]}
        return {"positions": list(self.given), "length": self.length}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Chosen:
        """Return what :meth:`to_json` gave."""
        if "slice" in values:
            start, stop, step = values["slice"]
            return cls.of(slice(start, stop, step), "a stored choice")
        length = values["length"]
        return cls(cls.of(values["positions"], "a stored choice").given, None if length is None else int(length))


def _named(wanted: Sequence[Any], what: str, names: NDArray[np.object_] | None) -> NDArray[np.int64]:
    """Return the places of names."""
    if names is None:
        raise ValueError(
            f"{what} names {brief(repr(wanted[0]))}, but the columns of X have no names. Give positions, as in [0, 3]."
        )
    place = {str(name): i for i, name in enumerate(names)}
    absent = [name for name in wanted if name not in place]
    if absent:
        raise ValueError(
            f"{what} names {brief(repr(absent[0]))}, but X has no such column.{closest(absent[0], tuple(place))}"
        )
    return np.array([place[name] for name in wanted], np.int64)
