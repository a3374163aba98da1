"""What is a row: a pattern as a user describes it, and the view of samples that it makes.

A pattern, in the notation of einops with positions along its axes, is what a user wrote, checked; with the shape of the
samples it becomes a ``View``: which numbers of each stored sample are analysed, and what a row is. A view is applied
where rows are read, and nothing is copied. A Dask array carries it (:class:`bigpca.data.dask_arrays.Carried`), so that
the engine reads the samples directly.
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
from scipy.sparse import issparse

from bigpca.arrays import unmasked
from bigpca.data.containers import check_chunk_shape
from bigpca.errors import NonFiniteError, an, brief, closest
from bigpca.storage.files import content_digest

Names: TypeAlias = NDArray[np.object_] | None
Taken: TypeAlias = slice | NDArray[np.int64]
Axes: TypeAlias = tuple[tuple[str, ...], ...]  # of one side of a pattern: names that are joined by brackets
SPELLING = '"n c h w -> (n h w) c" was expected: samples, rows and columns'
AXES = re.compile(r"\(([^()]*)\)|([^\s()]+|\S)")  # joined by brackets, or alone
COPIED_ROWS = 32  # of a transposed sample at a time: two cache lines of each column
COPIED_BYTES = 2**18  # of smaller samples, which are transposed together


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


@dataclass(frozen=True, eq=False)
class View:
    """Rows of stored samples: some axes of a sample number its rows, the others make their columns.

    Row ``sample * rows_per_sample + position`` is the row at a position of a sample.

    Attributes
    ----------
    sample : tuple of int
        Shape of one stored sample.
    row_axes : tuple of int
        Axes of the sample that number its rows, the slowest first; none where a sample is a row.
    column_axes : tuple of int
        Axes that make the columns, the slowest first.
    taken : tuple of slice or ndarray of int64, or ()
        Which positions of each axis are used, in this order; () for all of all axes.
    columns : ndarray of int64, or None
        Which columns are kept, in this order; None for all.
    pattern : RowPattern or None
        What the view was made of, if a user described it.
    absent : {"", "nan", "masked"}
        Why the other places of a grid are left out: they are NaN in every row, which is checked, or a mask excludes
        them, whatever they hold; "" where no grid is involved.
    missing : MissingCodes
        Samples have these values where there is none: they become NaN, before anything else.
    complete : ndarray of int64, or None
        Columns without which a row is NaN: where one of them is not finite, so are all that are kept.
    """

    sample: tuple[int, ...]
    row_axes: tuple[int, ...] = ()
    column_axes: tuple[int, ...] = (0,)
    taken: tuple[Taken, ...] = ()
    columns: NDArray[np.int64] | None = None
    pattern: RowPattern | None = None
    absent: str = ""
    missing: MissingCodes = NO_CODES
    complete: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, pattern: RowPattern, shape: tuple[int, ...], names: Names = None) -> View:
        """Return the view that a pattern describes of samples of a shape.

        ``names`` are those of the columns before some are chosen.

        Raises
        ------
        ValueError
            If the pattern does not fit, or chooses what there is not.
        """
        sizes = pattern.sample(shape)
        positions = pattern.positions(sizes)
        whole = cls(sizes, *pattern.axes(len(sizes)), positions, pattern=pattern, missing=pattern.missing)
        if pattern.columns is None:
            return whole
        chosen = pattern.columns.on(whole.width, "columns", names)
        if isinstance(chosen, slice):
            chosen = np.arange(*chosen.indices(whole.width), dtype=np.int64)
        return replace(whole, columns=chosen)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values of a view of a pattern: the pattern, with named columns by their positions."""
        pattern = replace(self.pattern or RowPattern(), missing=self.missing)
        if self.columns is not None and pattern.columns is not None and not isinstance(pattern.columns.given, slice):
            pattern = replace(pattern, columns=Positions(tuple(self.columns.tolist()), pattern.columns.length))
        return {"sample": list(self.sample), **pattern.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], width: int) -> View:
        """Return what :meth:`to_json` gave of a view of ``width`` columns.

        Raises
        ------
        KeyError, TypeError, ValueError
            For values that it does not give.
        """
        pattern, sizes = RowPattern.from_json(values), tuple(int(size) for size in values["sample"])
        if min(sizes, default=0) < 1:
            raise ValueError(f"its samples have the shape {sizes}")
        shape = pattern.shape(sizes)
        found = cls.of(replace(pattern, columns=None), shape).width
        if pattern.columns is not None:
            found = pattern.columns.count(found)  # before memory is allocated for so many
        if found != width:
            raise ValueError(f"its pattern makes rows of {found} columns, not {width}")
        return cls.of(pattern, shape)

    @property
    def rows_per_sample(self) -> int:
        """Rows of one sample."""
        return self._places(self.row_axes)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self._places(self.column_axes) if self.columns is None else len(self.columns)

    @property
    def column_sizes(self) -> tuple[int, ...]:
        """Sizes of the axes that make the columns; some positions and columns may be left out."""
        return tuple(self.sample[axis] for axis in self.column_axes)

    @property
    def kept(self) -> bool:
        """Whether a model keeps the view, and applies it to new samples."""
        return bool(self.absent) or (self.pattern is not None and not self.plain)

    @property
    def plain(self) -> bool:
        """Whether rows are the samples, as they are without a view."""
        return not self.copies and self.rows_per_sample == 1 and self.width == math.prod(self.sample)

    @property
    def copies(self) -> bool:
        """Whether rows are never the memory of the samples."""
        order = self.row_axes + self.column_axes
        chosen = bool(self.missing) or any(not isinstance(one, slice) for one in self.taken)
        return chosen or self.columns is not None or order != tuple(sorted(order))

    def _places(self, axes: tuple[int, ...]) -> int:
        return math.prod(
            _length(self.taken[axis], self.sample[axis]) if self.taken else self.sample[axis] for axis in axes
        )

    def dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of rows of samples in a dtype: float32 or float64 where values are missing."""
        return self.missing.dtype(stored) if self.missing else stored

    def samples(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of samples that hold rows ``start:stop``."""
        return start // self.rows_per_sample, -(-stop // self.rows_per_sample)

    def chunks(self, samples: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows of chunks of so many samples."""
        each = self.rows_per_sample
        return tuple(count * each for count in samples)

    def apply(
        self, samples: NDArray[Any], *, owned: bool = False, present: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Return the rows (b * rows_per_sample, width) of samples (b, d), which may be overwritten if ``owned``.

        Columns that are NaN are those of the rows that are ``present``; None for all.
        """
        if issparse(samples):
            chosen: NDArray[Any] = self._sparse(samples)
            return chosen
        if self.missing:
            samples, owned = self.missing.decoded(samples), True
        check_chunk_shape(samples.shape, (math.prod(self.sample),), "the Dask array")
        cells = samples.reshape(len(samples), *self.sample)
        for axis, taken in enumerate(self.taken):
            cells = cells[(slice(None),) * (axis + 1) + (taken,)]
        order = (0, *(axis + 1 for axis in self.row_axes + self.column_axes))
        rows = cells.transpose(order).reshape(len(cells), self.rows_per_sample, self._places(self.column_axes))
        whole = owned and not self.taken and samples.flags.c_contiguous
        flat = _contiguous(rows, samples if whole else None).reshape(-1, rows.shape[2])
        if self.columns is None:
            return flat
        if self.absent == "nan":
            _check_absent(flat, self.columns, present)
        found: NDArray[Any] = np.take(flat, self.columns, axis=1)
        if self.complete is not None and found.dtype.kind == "f":
            found[~np.isfinite(flat).take(self.complete, axis=1).all(axis=1)] = np.nan
        return found

    def _sparse(self, samples: Any) -> Any:
        """Return the chosen columns of CSR rows, with sorted indices."""
        if self.absent == "nan" and self.columns is not None:  # what is not stored is 0, which is a value
            _check_absent(np.zeros((min(samples.shape[0], 1), samples.shape[1])), self.columns)
        rows = samples if self.columns is None else samples[:, self.columns]
        if self.complete is not None and rows.dtype.kind == "f":
            stored = samples[:, self.complete].tocoo()
            gaps = np.unique(stored.row[~np.isfinite(stored.data)])
            places = (gaps, np.zeros_like(gaps))  # one NaN in each such row
            rows = rows + type(rows)((np.full(len(gaps), np.nan, rows.dtype), places), shape=rows.shape)
        rows.sort_indices()
        return rows

    def describe(self) -> dict[str, Any]:
        """Return what identifies the view, for fingerprints."""
        columns = None if self.columns is None else content_digest(self.columns)
        taken = [str(one if isinstance(one, slice) else one.tolist()) for one in self.taken]
        shape = {"sample": list(self.sample), "row_axes": list(self.row_axes), "column_axes": list(self.column_axes)}
        checked = {"absent": self.absent} if self.absent else {}
        coded = {"missing": self.missing.to_json()} if self.missing else {}
        needed = {} if self.complete is None else {"complete": content_digest(self.complete)}
        return {**shape, "taken": taken, "columns": columns, **checked, **coded, **needed}

    def __dask_tokenize__(self) -> object:
        return "bigpca.View", self.describe()


def _check_absent(rows: NDArray[Any], columns: NDArray[np.int64], counted: NDArray[np.bool_] | None = None) -> None:
    """Check that all columns (b, d) but some are NaN, in the rows that count.

    Raises
    ------
    NonFiniteError
        Has the positions of those that are not, as ``stored_columns``.
    """
    rest = np.ones(rows.shape[1], bool)
    rest[columns] = False
    places, present = np.flatnonzero(rest), np.zeros(len(rest) - len(columns), bool)
    step = max(1, COPIED_BYTES // max(1, rows.itemsize * len(places)))
    own = np.ones(len(rows), bool) if counted is None else counted
    for i in range(0, len(rows), step):
        strip = own[i : i + step]
        present |= ~np.isnan(rows[i : i + step, places][strip]).all(axis=0)
    if not present.any():
        return
    found = places[present]
    value = next(one for one in rows[own, found[0]] if not np.isnan(one))
    error = NonFiniteError(
        f"{len(found)} column{'s hold' if len(found) > 1 else ' holds'} NaN in some rows and values in others: the "
        f"first is column {found[0]}, with the value {value}. Columns that are NaN in every row of a fit are left out, "
        f"and may hold no value elsewhere. Fill in such columns, or set them to NaN."
    )
    error.stored_columns = tuple(found.tolist())
    raise error


def _length(taken: Taken, size: int) -> int:
    return len(range(*taken.indices(size))) if isinstance(taken, slice) else len(taken)


def _contiguous(rows: NDArray[Any], memory: NDArray[Any] | None) -> NDArray[Any]:
    """Return rows (b, places, d) in C order: transposed a few lines at a time, so that what is read stays cached.

    ``memory`` is that of the rows, if it may be overwritten: sample by sample, which saves an array of all rows.
    """
    if rows.flags.c_contiguous:
        return rows
    out = np.empty(rows.shape, rows.dtype) if memory is None else memory.reshape(rows.shape)
    together = max(1, COPIED_BYTES // max(1, math.prod(rows.shape[1:]) * rows.itemsize))
    for s in range(0, len(rows), together):
        samples, into = rows[s : s + together], out[s : s + together]
        lines = into if memory is None else np.empty(samples.shape, rows.dtype)
        for i in range(0, rows.shape[1], COPIED_ROWS):
            lines[:, i : i + COPIED_ROWS] = samples[:, i : i + COPIED_ROWS]
        if memory is not None:
            into[...] = lines
    return out
