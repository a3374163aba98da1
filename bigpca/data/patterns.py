"""What is a row, in the notation of einops, with positions along its axes and pooling over those that it leaves out.

A pattern is what a user wrote, checked; with the shape of the samples it becomes a :class:`bigpca.data.views.View`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import unmasked
from bigpca.errors import an, brief, check_choice, closest

Taken: TypeAlias = slice | NDArray[np.int64]
GEM_MIN = 1e-6  # of the values that are pooled by their generalised mean
STRIP_BYTES = 2**20  # of samples in float64: they stay in a core's cache
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


Rule = Callable[[NDArray[np.float64], tuple[int, ...]], NDArray[np.float64]]


def _mean(values: NDArray[np.float64], axes: tuple[int, ...]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = values.mean(axis=axes)
    return found


def _gem(values: NDArray[np.float64], axes: tuple[int, ...]) -> NDArray[np.float64]:
    """Generalised mean of power 3 (Radenovic et al. 2019, eq. 3); values below 1e-6 count as 1e-6, as there."""
    positive = np.maximum(values, GEM_MIN)
    found: NDArray[np.float64] = np.cbrt((positive * positive * positive).mean(axis=axes))
    return found


RULES: dict[str, Rule | None] = {"mean": _mean, "max": None, "gem": _gem}


def pool(cells: NDArray[Any], axes: tuple[int, ...], rule: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return cells (b, ...) pooled over ``axes``; averages are computed in float64. NaN makes NaN.

    >>> pool(np.arange(6.0).reshape(1, 2, 3), (2,), "mean", np.dtype("f4"))
    array([[1., 4.]], dtype=float32)
    """
    average = RULES[rule]
    if average is None:
        largest: NDArray[Any] = cells.max(axis=axes)
        return largest
    out = np.empty(tuple(size for axis, size in enumerate(cells.shape) if axis not in axes), dtype)
    step = max(1, STRIP_BYTES // (8 * math.prod(cells.shape[1:])))
    for i in range(0, len(cells), step):
        with np.errstate(all="ignore"):
            out[i : i + step] = average(cells[i : i + step].astype(np.float64), axes)
    return out


Axes: TypeAlias = tuple[tuple[str, ...], ...]  # of one side of a pattern: names that are joined by brackets


@dataclass(frozen=True)
class RowPattern:
    """What is a row, as a user described it in :func:`bigpca.open`.

    Attributes
    ----------
    text : str or None
        In einops' notation; None for whole samples, flattened.
    reduce : str or None
        How axes are pooled that are not on the right.
    sizes : tuple of (name, int)
        Of axes that the shape of the samples does not determine.
    taken : tuple of (name, Positions)
        Positions that are used, by axis.
    columns : Positions or None
    missing : int, float or None
        The stored value that means that there is none.
    """

    text: str | None = None
    reduce: str | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    taken: tuple[tuple[str, Positions], ...] = ()
    columns: Positions | None = None
    missing: float | None = None

    @classmethod
    def of(
        cls, text: str | None, reduce: str | None, columns: Any, axes: Mapping[str, Any], missing: Any = None
    ) -> RowPattern:
        """Check what a user wrote; ``axes`` are the sizes (integers) and positions of axes, by name.

        Raises
        ------
        TypeError, ValueError
            For texts that are not patterns, axes that they do not have, and pooling without a rule or the reverse.
        """
        if reduce is not None:
            check_choice("reduce", reduce, RULES)
        chosen, missing = None if columns is None else Positions.of(columns, "columns"), missing_code(missing)
        if text is None:
            unknown = next(iter(axes), None)
            if unknown is not None:
                raise TypeError(
                    f"open() got an unexpected keyword argument {unknown!r}. Positions of an axis require pattern=."
                )
            if reduce is not None:
                raise ValueError(f"reduce = {reduce!r} requires pattern=, such as 'n c h w -> n c'.")
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
        pattern = cls(text, reduce, tuple(sizes.items()), taken, chosen, missing=missing)
        pattern._check_pooling()
        return pattern

    def masked(self, places: NDArray[np.int64], *, on_grid: bool = False) -> RowPattern:
        """Return the same with the columns that a mask keeps.

        Raises
        ------
        ValueError
            Beside a pattern or columns, and ``on_grid`` beside a code of missing values.
        """
        if self != RowPattern(missing=None if on_grid else self.missing):
            raise ValueError(
                "a mask and a pattern, columns or (of a DataArray) a missing value were given. Give one: columns= and "
                "the axes of a pattern take masks, and DataArray.where replaces values."
            )
        return replace(self, columns=Positions.of(places, "mask"))

    def _check_pooling(self) -> None:
        """Reject pooling without a rule, and a rule without pooling; raises as :meth:`of`."""
        pooled = self.pooled
        if pooled and self.reduce is None:
            raise ValueError(
                f"the pattern {self.text!r} leaves out {', '.join(pooled)} on the right. Say how to pool them: "
                f"reduce={' or '.join(map(repr, RULES))}; or add them to the rows or columns."
            )
        if self.reduce is not None and not pooled:
            raise ValueError(
                f"reduce = {self.reduce!r}, but the pattern {self.text!r} pools no axis: all are on the right. Leave "
                f"out reduce, or the axes to pool on the right, as in 'n c h w -> n c'."
            )

    @property
    def pooled(self) -> list[str]:
        """Names of the axes that are not on the right."""
        left, right = _sides(self.text or "n d -> n d")
        kept = {name for group in right for name in group}
        return [name for group in left for name in group if name not in kept]

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
            return (math.prod(shape),)
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

    @property
    def axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The axes that number the rows of a sample, and those that make the columns."""
        left, (rows, columns) = _sides(self.text or "n d -> n d")
        names = [name for group in left[1:] for name in group]
        return tuple(names.index(name) for name in rows[1:]), tuple(names.index(name) for name in columns)

    def __str__(self) -> str:
        parts = [] if self.text is None else [self.text]
        parts += [] if self.reduce is None else [f"{self.reduce} of {', '.join(self.pooled)}"]
        for name, one in (*self.taken, *([("columns", self.columns)] if self.columns is not None else ())):
            parts.append(f"{name} {one}")
        parts += [] if self.missing is None else [f"{self.missing:g} is missing"]
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "pattern": self.text,
            "reduce": self.reduce,
            "sizes": dict(self.sizes),
            "taken": {name: one.to_json() for name, one in self.taken},
            "columns": None if self.columns is None else self.columns.to_json(),
            **({} if self.missing is None else {"missing": self.missing}),
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
        found = cls.of(values["pattern"], values["reduce"], None, axes, values.get("missing"))
        taken = tuple((name, Positions.from_json(one)) for name, one in values["taken"].items())
        columns = None if values["columns"] is None else Positions.from_json(values["columns"])
        return cls(found.text, found.reduce, found.sizes, taken, columns, found.missing)


def missing_code(given: Any, dtype: np.dtype[Any] | None = None) -> float | None:
    """Return the code of missing values, a number that values of the dtype can have; None for none.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> missing_code(-1, np.dtype("i1")), missing_code(np.float32(-9999.0)), missing_code(None)
    (-1, -9999.0, None)
    """
    if given is None:
        return None
    if isinstance(given, bool | np.bool_) or not isinstance(given, Real):
        raise TypeError(f"missing_value = {given!r} is {an(type(given).__name__)}, not a number such as -1.")
    if not math.isfinite(given):
        raise ValueError(
            f"missing_value = {given} cannot be a code for missing values; a finite number was expected. NaN is "
            "missing without a code."
        )
    code = int(given) if isinstance(given, Integral) else float(given)
    if dtype is None or dtype.kind == "f":
        return code
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if code != int(code) or not low <= code <= high:
        raise ValueError(
            f"missing_value = {given}, but the values are {dtype}, whole numbers from {low} to {high}, so none has "
            "this value. Pass the stored code."
        )
    return code


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
