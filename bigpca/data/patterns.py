"""What is a row, in the notation of einops, with positions along its axes.

A pattern is what a user wrote, checked; with the shape of the samples it becomes a :class:`bigpca.data.views.View`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import unmasked
from bigpca.errors import an, brief, closest

Taken: TypeAlias = slice | NDArray[np.int64]
SPELLING = '"n c h w -> (n h w) c" was expected: samples, rows and columns'
AXES = re.compile(r"\(([^()]*)\)|([^\s()]+|\S)")  # joined by brackets, or alone


@dataclass(frozen=True)
class Positions:
    """Positions along an axis as a user chose them, before the length of the axis is known.

    Attributes
    ----------
    given : slice, tuple of int, or tuple of str
        Names of columns are strings.
    length : int or None
        That the axis must have, because a mask chose.
    index : tuple of str
        Names of a mask, a Series; the names of the axis, if it has any, must be the same.
    """

    given: slice | tuple[int, ...] | tuple[str, ...]
    length: int | None = None
    index: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, value: Any, what: str) -> Positions:
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
        found = unmasked(value)
        texts = found.dtype.kind in "UO" and all(isinstance(one, str) for one in found.ravel().tolist())
        if found.ndim != 1 or isinstance(value, str) or not (found.dtype.kind in "iub" or texts):
            raise TypeError(
                f"{what} = {brief(repr(value))} chooses no positions. Give a slice, a list of positions or names, or a "
                f"mask, such as slice(1, None) or [0, 3]."
            )
        length = len(found) if found.dtype.kind == "b" else None
        chosen = np.flatnonzero(found) if length is not None else found
        if not len(chosen):
            raise ValueError(f"{what} chooses no positions. Choose at least one.")
        index = tuple(getattr(value, "index", ())) if length is not None and hasattr(value, "iloc") else ()
        return cls(tuple(chosen.tolist()), length, index if all(isinstance(name, str) for name in index) else ())

    def on(self, size: int, what: str, names: NDArray[np.object_] | None = None) -> Taken:
        """Return the positions on an axis of ``size``; ``names`` are the axis's names, if it has any.

        Raises
        ------
        ValueError
            For positions outside, chosen twice, masks of another length, and names that do not exist.
        """
        if self.length not in (None, size):
            raise ValueError(
                f"the mask of {what} has {self.length} entries, but its axis has {size}. Give one for each."
            )
        other = next((i for i, name in enumerate(self.index) if names is not None and name != names[i]), None)
        if other is not None and names is not None:
            raise ValueError(
                f"the mask of {what} names position {other} {self.index[other]!r}, but X names it {names[other]!r}. "
                f"Put both in one order: {what}.reindex(X.columns)."
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
    def from_json(cls, values: Mapping[str, Any]) -> Positions:
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


Axes: TypeAlias = tuple[tuple[str, ...], ...]  # of one side of a pattern: names that are joined by brackets


@dataclass(frozen=True)
class MissingCodes:
    """Stored values that mean that there is none, in any column; none is false.

    Attributes
    ----------
    codes : tuple of number
        In ascending order.
    """

    codes: tuple[int | float, ...] = ()

    @classmethod
    def of(cls, given: Any) -> MissingCodes:
        """Return what a user wrote, a number or several in a sequence; codes themselves as they are.

        Raises
        ------
        TypeError, ValueError

        Examples
        --------
        >>> [str(MissingCodes.of(one)) for one in (-1, (-9, np.float32(-1.0)))]
        ['-1', '-9 and -1']
        """
        if given is None or isinstance(given, cls):
            return given or NO_CODES
        return cls(tuple(sorted(set(_codes(given)))))

    def __bool__(self) -> bool:
        return bool(self.codes)

    def check(self, dtype: np.dtype[Any]) -> None:
        """Reject codes that values of a dtype cannot have; raises ValueError."""
        if dtype.kind == "f":
            return
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        for code in self.codes:
            if code != int(code) or not low <= code <= high:
                raise ValueError(
                    f"missing_value = {code}, but the values are {dtype}, whole numbers from {low} to {high}, so none "
                    "has this value. Pass the stored code."
                )

    def decoded(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Return samples (b, d) with NaN in place of codes, as floats that hold all other values."""
        absent = samples == self.codes[0]
        for code in self.codes[1:]:
            absent |= samples == code
        return np.where(absent, self.dtype(samples.dtype).type(np.nan), samples)

    @staticmethod
    def dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of decoded samples."""
        return stored if stored.kind == "f" else np.result_type(stored, np.float32)

    def __str__(self) -> str:
        return " and ".join(f"{code:g}" for code in self.codes)

    def to_json(self) -> Any:
        """Return JSON values: one code alone, or each with None, for all columns."""
        return self.codes[0] if len(self.codes) == 1 else [[code, None] for code in self.codes]

    @classmethod
    def from_json(cls, values: Any) -> MissingCodes:
        """Return what :meth:`to_json` gave; raises ValueError for codes of single columns."""
        if isinstance(values, list) and any(columns is not None for _, columns in values):
            raise ValueError("it has codes of missing values for single columns")
        return cls.of([code for code, _ in values] if isinstance(values, list) else values)


NO_CODES = MissingCodes()


def _codes(given: Any) -> list[int | float]:
    """Return the codes of a number or a sequence of them; raises TypeError and ValueError for others."""
    codes = list(given) if isinstance(given, list | tuple | set) else [given]
    for code in codes or [given]:
        if isinstance(code, bool | np.bool_) or not isinstance(code, Real):
            raise TypeError(
                f"missing_value = {brief(repr(code))} is {an(type(code).__name__)}, not a number such as -1. Codes of "
                "single columns are replaced before: dask.array.where(X == codes, numpy.nan, X)."
            )
        if not math.isfinite(code):
            raise ValueError(
                f"missing_value = {code} cannot be a code for missing values; a finite number was expected. NaN is "
                "missing without a code."
            )
    return [int(code) if isinstance(code, Integral) else float(code) for code in codes]


@dataclass(frozen=True)
class RowPattern:
    """What is a row, as a user described it in :func:`bigpca.open`.

    Attributes
    ----------
    text : str or None
        In einops' notation; None for whole samples, flattened.
    sizes : tuple of (name, int)
        Of axes that the shape of the samples does not determine.
    taken : tuple of (name, Positions)
        Positions that are used, by axis.
    columns : Positions or None
    missing : MissingCodes
        Stored values that mean that there is none.
    """

    text: str | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    taken: tuple[tuple[str, Positions], ...] = ()
    columns: Positions | None = None
    missing: MissingCodes = NO_CODES

    @classmethod
    def of(cls, text: str | None, columns: Any, axes: Mapping[str, Any], missing: Any = None) -> RowPattern:
        """Check what a user wrote; ``axes`` are the sizes (integers) and positions of axes, by name.

        Raises
        ------
        TypeError, ValueError
            For texts that are not patterns, and axes that they do not have or leave out.
        """
        chosen, missing = None if columns is None else Positions.of(columns, "columns"), MissingCodes.of(missing)
        if text is None:
            unknown = next(iter(axes), None)
            if unknown is not None:
                raise TypeError(
                    f"open() got an unexpected keyword argument {unknown!r}. Positions of an axis require pattern=."
                )
            return cls(columns=chosen, missing=missing)
        if not isinstance(text, str):
            raise TypeError(f"pattern = {text!r} is {an(type(text).__name__)}; a string such as {SPELLING}.")
        left, _ = _sides(text)
        names = [name for group in left[1:] for name in group]
        for name in axes:
            if name not in names:
                what = "is that of the samples" if name == left[0][0] else "is not in it"
                raise ValueError(
                    f"the pattern {text!r} has the axes {', '.join(names)}; {name!r} {what}.{closest(name, names)}"
                )
        integers = int | np.integer
        sizes = {a: int(v) for a, v in axes.items() if isinstance(v, integers) and not isinstance(v, bool)}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} = {size}; the size of an axis is at least 1. Positions are a list: [{size}].")
        taken = tuple((name, Positions.of(value, name)) for name, value in axes.items() if name not in sizes)
        return cls(text, tuple(sizes.items()), taken, chosen, missing=missing)

    def masked(self, places: NDArray[np.int64]) -> RowPattern:
        """Return the same with the columns that a mask keeps; raises ValueError beside a pattern or columns."""
        if self != RowPattern(missing=self.missing):
            raise ValueError(
                "a mask and a pattern or columns were given. Give one: columns= and the axes of a pattern take masks."
            )
        return replace(self, columns=Positions.of(places, "mask"))

    @property
    def dimensions(self) -> int:
        """Dimensions of the arrays that the pattern describes, with that of the samples; 2 for columns alone."""
        return 2 if self.text is None else len(_sides(self.text)[0])

    def sample(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of the pattern's axes after the first, for samples of a shape.

        Raises
        ------
        ValueError
            For samples of other dimensions or sizes.
        """
        if self.text is None:
            return shape or (1,)
        left, _ = _sides(self.text)
        if len(left) - 1 != len(shape):
            raise ValueError(
                f"the pattern {self.text!r} describes arrays of {len(left)} dimensions, but X has shape "
                f"{_shape(shape)}. Describe those."
            )
        known, sizes = dict(self.sizes), []
        for group, size in zip(left[1:], shape, strict=True):
            open_axes = [name for name in group if name not in known]
            product = math.prod(known[name] for name in group if name in known)
            if len(open_axes) > 1:
                raise ValueError(
                    f"the pattern {self.text!r} does not say how {size} is divided into {' and '.join(open_axes)}. "
                    f"Give their sizes, such as {open_axes[0]}=28."
                )
            if product < 1 or size % product or (not open_axes and product != size):
                raise ValueError(
                    f"{' x '.join(f'{name} = {known[name]}' for name in group if name in known)} does not fit {size}, "
                    f"the size of ({' '.join(group)}) in X of shape {_shape(shape)}. Correct the sizes."
                )
            sizes += [known.get(name, size // product) for name in group]
        return tuple(sizes)

    def shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of samples whose axes have these sizes; the inverse of :meth:`sample`."""
        if self.text is None:
            return sizes
        ends = np.cumsum([len(group) for group in _sides(self.text)[0][1:]]).tolist()
        if ends[-1] != len(sizes):
            raise ValueError(f"the pattern {self.text!r} has {ends[-1]} axes; {len(sizes)} sizes were given.")
        return tuple(math.prod(sizes[a:b]) for a, b in pairwise([0, *ends]))

    def positions(self, sizes: tuple[int, ...]) -> tuple[Taken, ...]:
        """Return the positions that are used of each axis after the first; () for all of all axes.

        Raises
        ------
        ValueError
            For positions outside the axes.
        """
        if not self.taken:
            return ()
        left, _ = _sides(self.text or "")
        names, chosen = [name for group in left[1:] for name in group], dict(self.taken)
        return tuple(
            chosen[name].on(size, name) if name in chosen else slice(None)
            for name, size in zip(names, sizes, strict=True)
        )

    def axes(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return which of so many axes number the rows of a sample, and which make the columns."""
        if self.text is None:
            return (), tuple(range(count))
        left, (rows, columns) = _sides(self.text)
        names = [name for group in left[1:] for name in group]
        return tuple(names.index(name) for name in rows[1:]), tuple(names.index(name) for name in columns)

    def __str__(self) -> str:
        parts = [] if self.text is None else [self.text]
        for name, one in (*self.taken, *([("columns", self.columns)] if self.columns is not None else ())):
            parts.append(f"{name} {one}")
        parts += [f"{self.missing} is missing"] if self.missing else []
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "pattern": self.text,
            "sizes": dict(self.sizes),
            "taken": {name: one.to_json() for name, one in self.taken},
            "columns": None if self.columns is None else self.columns.to_json(),
            **({"missing": self.missing.to_json()} if self.missing else {}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RowPattern:
        """Return what :meth:`to_json` gave.

        Raises
        ------
        KeyError, TypeError, ValueError
            For values that it does not give.
        """
        axes = {**values["sizes"], **dict.fromkeys(values["taken"], slice(None))}
        found = cls.of(values["pattern"], None, axes)
        taken = tuple((name, Positions.from_json(one)) for name, one in values["taken"].items())
        columns = None if values["columns"] is None else Positions.from_json(values["columns"])
        return cls(found.text, found.sizes, taken, columns, MissingCodes.from_json(values.get("missing")))


@lru_cache(maxsize=64)
def _sides(text: str) -> tuple[Axes, Axes]:
    """Return the axes on both sides of a pattern.

    >>> _sides("n c h w -> (n h w) c")
    ((('n',), ('c',), ('h',), ('w',)), (('n', 'h', 'w'), ('c',)))
    """
    if text.count("->") != 1:
        raise ValueError(f"the pattern {brief(repr(text))} needs one arrow; {SPELLING}.")
    left, right = (
        tuple(tuple((joined or alone).split()) for joined, alone in AXES.findall(side)) for side in text.split("->")
    )
    for side in (left, right):
        names = [name for group in side for name in group or ("()",)]
        wrong = next((name for name in names if not name.isidentifier()), None)
        if wrong is not None:
            raise ValueError(f"the pattern {brief(repr(text))} has {wrong!r} where an axis was expected; {SPELLING}.")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"the pattern {text!r} has the axis {twice!r} twice on one side. Name each axis once.")
    known = [name for group in left for name in group]
    absent = next((name for group in right for name in group if name not in known), None)
    if absent is not None:
        raise ValueError(f"the pattern {text!r} has no axis {absent!r} on the left.{closest(absent, known)}")
    kept = [name for group in right for name in group]
    if pooled := [name for name in known if name not in kept]:
        raise ValueError(
            f"the pattern {text!r} leaves out {', '.join(pooled)} on the right. Add them to the rows or columns; "
            "or pool them first: bigpca.open(dask.array.from_zarr(path).mean(axis=(2, 3)))."
        )
    if len(left) < 2 or len(left[0]) != 1 or len(right) != 2:
        raise ValueError(
            f"the pattern {text!r} has {len(left)} axes on the left and {len(right)} on the right; rows and columns "
            f"are needed on the right, where brackets join axes, and one axis of samples first on the left. {SPELLING}."
        )
    if right[0][0] != left[0][0]:
        raise ValueError(
            f"samples are read one after another, so the rows ({' '.join(right[0])}) of the pattern {text!r} must "
            f"begin with {left[0][0]!r}. Write ({left[0][0]} ...)."
        )
    return left, right


def _shape(sample: tuple[int, ...]) -> str:
    return f"({', '.join(['n', *map(str, sample)])})"
