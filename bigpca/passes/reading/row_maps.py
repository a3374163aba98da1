"""Row maps: pure functions from rows to rows, applied in a chain inside the task that reads them.

In folds they are applied to complete rows, before the shift; outputs are mapped whatever values the rows have. The last
of a chain may change the dtype in which rows are stored. At the end, preprocessing of single rows: records that users
give to an estimator, each a row map.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from scipy.sparse import csr_array

from bigpca.arrays import Array, DType, Integers, Vector, working_dtype
from bigpca.costs import BlockForm, Work
from bigpca.csr import KEPT, PRODUCT, RESIDUALS, FactoredRows, Forms, form_of, residuals_above_zero, sparse_form
from bigpca.data.sparse import row_range, scaled_rows, stacked
from bigpca.devices import Namespace
from bigpca.errors import check_choice, real_number
from bigpca.forms import DENSE, Values
from bigpca.host import HOST
from bigpca.storage.files import content_digest

SHOWN_ROWS = 5  # in messages
USUAL_FACTORS = 24  # columns of a thin factor of residuals, in costs: for sums of rows up to a factor of 100 apart
# Of the residuals of zeros, relative to the largest.
EXPANSION_ERROR = 1e-12
# Residuals are the difference of parts up to 1 + theta times as large in their squares: that many digits are lost.
MOST_THETA = 1e4


class RowMap(ABC):
    """A picklable function of rows, and what it takes. Each one is a frozen record.

    Attributes
    ----------
    of_stored : bool
        Whether it takes rows as they are stored, before incomplete ones are rejected. Such maps come first in a chain,
        and keep the number and the width of rows.
    changes : bool
        Whether the result may be other rows, not rows that were only checked.
    leaves : bool
        Whether NaN of incomplete rows are left in the result.
    """

    of_stored: ClassVar[bool] = False
    changes: ClassVar[bool] = True
    leaves: bool = False

    @abstractmethod
    def apply(self, rows: Values, where: str) -> Values:
        """Map rows (b, d), sparse ones only with :attr:`forms`, to rows (b, k)."""

    def apply_in_place(self, rows: Values, where: str) -> Values:
        """Map rows that may be overwritten, which saves a second block of memory where a map can do so."""
        return self.apply(rows, where)

    def on(self, device: Namespace) -> tuple[RowMap, Namespace]:
        """Return the same map of rows on a device, and where it takes them: here, unless it says otherwise."""
        return self, HOST

    @property
    def forms(self) -> Forms:
        """Which sparse rows it takes as they are, and the form of the result; it is given others in dense strips.

        Sparse, in costs with as many stored values per column; in float64 with factors; or dense, the few columns of a
        product.
        """
        return {}

    def output_dtype(self, dtype: DType) -> DType:
        """Return the dtype of the result for input of ``dtype``: float32 for float32 and narrower, else float64."""
        return working_dtype(dtype)

    @abstractmethod
    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Return the peak bytes of ``apply``, including its result, and the bytes it keeps per process for all threads.

        For ``rows`` rows of d columns, with ``itemsize`` bytes per number in their working dtype.
        """

    def describe(self) -> dict[str, object]:
        """Return what identifies the map, for fingerprints of checkpoints and partial outputs: its fields."""
        return identified_fields(self)


def identified_fields(record: object) -> dict[str, object]:
    """Return the class of a record and its fields, but for private ones, as :func:`identified` does each."""
    names = [one.name for one in fields(record) if one.name[0] != "_"]  # type: ignore[arg-type]
    return {"class": type(record).__name__} | {name: identified(getattr(record, name)) for name in names}


def identified(value: Any) -> object:  # type: ignore[explicit-any]  # of any type
    """Return what identifies a value in fingerprints, as a value of JSON.

    Arrays, and what gives rows of one, by their digests; parts as they describe themselves; records by their fields.
    """
    if hasattr(value, "describe"):
        try:
            return value.describe()
        except TypeError:  # a kernel with a Python function, which has no values of JSON
            return repr(value)
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype == object else content_digest(value)
    if isinstance(value, tuple | list):
        return [identified(one) for one in value]
    if isinstance(value, Mapping):
        return {name: identified(one) for name, one in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype):
        return str(value)
    if hasattr(value, "digest"):
        return value.digest()
    return identified_fields(value) if is_dataclass(value) else value


class Float64Map(RowMap):
    """A row map to float64 numbers, whatever the dtype of the rows is."""

    def output_dtype(self, dtype: DType) -> DType:
        """Return float64."""
        return np.dtype(np.float64)


class NumberedMap(RowMap):
    """A row map that also depends on absolute row numbers: appended labels, kernels that look rows up."""

    @abstractmethod
    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Map rows (b, d) with those numbers (b,) to rows (b, k)."""

    def apply(self, rows: Array, where: str) -> Array:
        """Return the mapped rows, numbered from 0 within ``where``."""
        return self.apply_at(rows, np.arange(rows.shape[0]), where)


@dataclass(frozen=True)
class MapStep:
    """One row map of a chain, and its cost.

    Attributes
    ----------
    f : RowMap
    width : int
        k, columns of its result.
    flops_per_row : int
        Of a dense row; of a sparse one, in proportion to the values that it stores.
    tile_rows : int or None
        Maximum rows per call; None for whole slabs.
    """

    f: RowMap
    width: int
    flops_per_row: int = 0
    tile_rows: int | None = None


def chain_cost(steps: Sequence[MapStep], rows: BlockForm) -> tuple[Work, BlockForm]:
    """Return what the maps of a chain take, and what the rows are after them: sparse as long as the maps keep them so.

    A map from CSR to CSR costs as much as one of dense rows with as many columns as values are stored.
    """
    held, flops = 0, 0.0
    for step in steps:
        form = sparse_form(rows.factors)
        made = step.f.forms.get(form, DENSE)
        strips, rows = rows.taken(form in step.f.forms)
        flops += step.flops_per_row * rows.values / max(1, rows.columns)
        count = min(rows.rows, step.tile_rows or rows.rows)
        after, (columns, itemsize) = rows.mapped(step.width, count, not made.shifts, made.factors)
        held += 4 * 8 * USUAL_FACTORS * (count + step.width) if after.factors else 0
        held += strips + sum(step.f.bytes_for(columns, count, itemsize))
        rows = after  # in tiles, as map_tiles yields them
    return Work(held, flops), rows


def _mapped(
    maps: Sequence[RowMap], rows: Values, numbers: Integers, where: str, *, owned: bool = False
) -> Iterator[tuple[Values, Integers]]:
    """Yield (mapped rows, their numbers): at once, or in the dense strips of sparse rows for maps that require them.

    The first map may overwrite the rows if they are ``owned``.
    """
    if not maps:
        yield rows, numbers
        return
    f, count = maps[0], len(numbers)
    form = form_of(rows)
    for part, first in form.parts(rows, form in f.forms):
        own = numbers[first : first + part.shape[0]]
        at = where if len(own) == count else _strip_of(where, first, first + len(own))
        if isinstance(f, NumberedMap):
            mapped = f.apply_at(part, own, at)
        else:
            mapped = f.apply_in_place(part, at) if owned else f.apply(part, at)
        yield from _mapped(maps[1:], mapped, own, at)


def _strip_of(where: str, first: int, stop: int) -> str:
    """Return the words for some of the rows that ``where`` names, in which maps number their rows.

    >>> _strip_of("rows 100:300 of x.npy", 20, 60), _strip_of("a block of the input", 20, 60)
    ('rows 120:160 of x.npy', 'rows 20:60 of a block of the input')
    """
    found = re.match(r"rows (\d+):\d+", where)
    if found is None:
        return f"rows {first}:{stop} of {where}"
    return f"rows {int(found[1]) + first}:{int(found[1]) + stop}{where[found.end() :]}"


def row_of(where: str, row: int) -> str:
    """Return the words for the row with that number within ``where``.

    >>> row_of("rows 100:300 of x.npy", 20), row_of("a block of the input", 20)
    ('row 120', 'its row 20')
    """
    found = re.match(r"rows (\d+):\d+", where)
    return f"its row {row}" if found is None else f"row {int(found[1]) + row}"


def _mapped_whole(maps: Sequence[RowMap], rows: Values, numbers: Integers, where: str) -> Values:
    """Return the mapped rows in one array."""
    return stacked([form_of(part).whole(part) for part, _ in _mapped(maps, rows, numbers, where)])


def map_tiles(
    steps: tuple[MapStep, ...], values: Values, numbers: Integers, where: str
) -> Iterator[tuple[Values, Integers]]:
    """Yield (mapped rows, their numbers), in tiles of at most the smallest ``tile_rows`` of the chain.

    The rows, which are complete, may be overwritten.
    """
    maps = [step.f for step in steps]
    size = min((step.tile_rows for step in steps if step.tile_rows), default=max(1, values.shape[0]))
    for i in range(0, values.shape[0], size):
        yield from _mapped(maps, row_range(values, i, i + size), numbers[i : i + size], where, owned=True)


def map_stored(steps: tuple[MapStep, ...], rows: Values, numbers: Integers, where: str, *, owned: bool) -> Values:
    """Return rows after the maps of stored rows, which may overwrite them if they are ``owned``."""
    ((found, _),) = _mapped([step.f for step in steps], rows, numbers, where, owned=owned)
    return found


def map_rows(steps: tuple[MapStep, ...], values: Values, numbers: Integers, where: str) -> Values:
    """Return the mapped rows of a block about zero."""
    return stacked([form_of(rows).whole(rows) for rows, _ in map_tiles(steps, values, numbers, where)])


def map_run(steps: tuple[MapStep, ...], rows: Values, first: int, where: str) -> Values:
    """Return consecutive rows mapped, finite or not, for an output."""
    return _mapped_whole([step.f for step in steps], rows, np.arange(first, first + rows.shape[0]), where)


@dataclass(frozen=True)
class Affine(RowMap):
    """A given centre and a given scale: ``(x - shift) * inverse_scale``, in the precision of the rows.

    Attributes
    ----------
    shift : ndarray of shape (d,)
    inverse_scale : ndarray of shape (d,) or None
    """

    shift: Vector
    inverse_scale: Vector | None = None

    def apply(self, rows: Values, where: str) -> Values:
        """Return the centred and scaled rows; of sparse rows, which nothing is subtracted from, the scaled ones."""
        return form_of(rows).affine(rows, self.shift, self.inverse_scale)

    def apply_in_place(self, rows: Values, where: str) -> Values:
        """Centre and scale the rows."""
        return form_of(rows).affine(rows, self.shift, self.inverse_scale, rows)

    @property
    def forms(self) -> Forms:
        """Sparse rows, if nothing is subtracted, so that zeros stay zeros."""
        return {} if self.shift.any() else KEPT

    def output_dtype(self, dtype: DType) -> DType:
        """That of the rows."""
        return dtype

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The mapped rows."""
        return rows * d * itemsize, 0


@dataclass(frozen=True)
class Chain(NumberedMap):
    """Row maps that keep the width of rows, and then a last one, as one map.

    Attributes
    ----------
    first : tuple of RowMap
    last : RowMap
    """

    first: tuple[RowMap, ...]
    last: RowMap

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the mapped rows; sparse ones as long as the maps keep them so, then dense strips."""
        return _mapped_whole((*self.first, self.last), rows, numbers, where)

    @property
    def forms(self) -> Forms:
        """Sparse rows, always: a map that does not take them is given dense strips."""
        return KEPT if all(f.forms is KEPT for f in (*self.first, self.last)) else PRODUCT

    def output_dtype(self, dtype: DType) -> DType:
        """That of the last map."""
        for f in (*self.first, self.last):
            dtype = f.output_dtype(dtype)
        return dtype

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """What each map needs."""
        needed = [f.bytes_for(d, rows, itemsize) for f in (*self.first, self.last)]
        return sum(peak for peak, _ in needed), sum(kept for _, kept in needed)


def chained(first: tuple[RowMap, ...], last: RowMap) -> RowMap:
    """Return the map that applies ``first`` before ``last``."""
    return Chain(first, last) if first else last


@dataclass(frozen=True)
class EachSide(NumberedMap):
    """Row maps of adjacent blocks of columns. Each map keeps the width of its block.

    Attributes
    ----------
    maps : tuple of tuple of RowMap
        Those of each block, in order.
    widths : tuple of int
        Columns of each block.
    """

    maps: tuple[tuple[RowMap, ...], ...]
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        """Reject maps that lack something: no read of a fit finds it in one block."""
        for one in chain.from_iterable(self.maps):
            if isinstance(one, RowPreprocessor):
                one.settled.check_known()

    def apply_at(self, rows: Array, numbers: Integers, where: str) -> Array:
        """Return the mapped blocks side by side."""
        ends = np.cumsum(self.widths)
        out = np.empty(rows.shape, self.output_dtype(rows.dtype))
        for maps, stop, width in zip(self.maps, ends, self.widths, strict=True):
            part = np.ascontiguousarray(rows[:, stop - width : stop])
            out[:, stop - width : stop] = _mapped_whole(maps, part, numbers, where)
        return out

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The mapped rows, and what each map needs for a copy of its block."""
        needed = [
            f.bytes_for(width, rows, itemsize) for maps, width in zip(self.maps, self.widths, strict=True) for f in maps
        ]
        return 2 * rows * d * itemsize + sum(peak for peak, _ in needed), sum(kept for _, kept in needed)


@dataclass(frozen=True)
class Beside(NumberedMap):
    """Appends columns to each row by its number, such as labels.

    Attributes
    ----------
    values : ndarray of n rows
    columns : callable
        Picklable; maps values (b, ...) to columns (b, m).
    """

    values: Array
    columns: Callable[[Array], Array]

    def apply_at(self, rows: Array, numbers: Integers, where: str) -> Array:
        """Return rows (b, d + m)."""
        return np.concatenate([rows, self.columns(self.values[numbers])], axis=1)

    def output_dtype(self, dtype: DType) -> DType:
        """That of the rows."""
        return dtype

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Twice the longer rows, because the columns are computed first; all values are kept."""
        return 2 * rows * (d * itemsize + self.columns(self.values[:1]).nbytes), self.values.nbytes

    def describe(self) -> dict[str, object]:
        """Digest of the values."""
        return {"map": "beside", "values": content_digest(self.values)}


@dataclass(frozen=True)
class Copy(RowMap):
    """Rows, or what another map makes of them, with an optional cast. Values that the dtype cannot hold are rejected.

    Attributes
    ----------
    dtype : str or None
    of : RowMap or None
    """

    dtype: str | None = None
    of: RowMap | None = None

    @property
    def forms(self) -> Forms:
        return {} if self.of is None else {given: made for given, made in self.of.forms.items() if made is DENSE}

    def apply(self, rows: Values, where: str) -> Values:
        rows = rows if self.of is None else self.of.apply(rows, where)
        if self.dtype is None:
            return rows
        dtype = np.dtype(self.dtype)
        if rows.size and dtype.kind != "b" and not np.can_cast(rows.dtype, dtype):
            ends = (np.iinfo if dtype.kind in "iu" else np.finfo)(dtype)
            infinite = dtype.kind == "f"  # which holds NaN and infinities
            inside = (rows >= ends.min) & (rows <= ends.max) | (infinite & ~np.isfinite(rows))
            if not inside.all():
                row, column = np.argwhere(~inside)[0]
                raise ValueError(
                    f"{where}: {rows[row, column]} ({row_of(where, int(row))}, column {column}) does not fit "
                    f"dtype {dtype}, whose values are in {ends.min:g} to {ends.max:g}. Choose another dtype, or repair "
                    "the data."
                )
        return rows.astype(dtype, copy=False)

    def output_dtype(self, dtype: DType) -> DType:
        return np.dtype(self.dtype) if self.dtype is not None else dtype.newbyteorder("=")

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Those of the map, as much for its results; or the cast rows, and before that, three masks of what fits."""
        if self.of is not None:
            peak, kept = self.of.bytes_for(d, rows, itemsize)
            return 2 * peak, kept
        return 0 if self.dtype is None else rows * d * max(3, np.dtype(self.dtype).itemsize), 0


@dataclass(frozen=True)
class OnnxNode:
    """One operation of ONNX: its name, the names of what it reads and of its result, and its integer attributes."""

    operation: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OnnxForm:
    """A function of rows in ONNX: nodes from ``"rows"`` to ``"result"``, and their constants."""

    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, float | Vector] = field(default_factory=dict)


class RowPreprocessor(NumberedMap):
    """A function of single rows that learns nothing and keeps their width: the argument of ``preprocess``."""

    @abstractmethod
    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return new rows (b, d), in their working dtype; ``numbers`` (b,) and ``where`` name them in messages.

        Rows with NaN or infinities keep them in the same places.
        """

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Rows in the working dtype, and the result."""
        return 2 * rows * d * itemsize, 0

    @property
    def forms(self) -> Forms:
        """The values that are not stored stay zero."""
        return KEPT

    found_by_fit: ClassVar[tuple[str, ...]] = ()  # fields that a read of the fit finds where they are None

    @property
    def learns(self) -> bool:
        """Whether a read of the fit finds something that is not given."""
        return any(getattr(self, name) is None for name in self.found_by_fit)

    def check_known(self) -> None:
        """Reject a map that lacks something.

        Raises
        ------
        ValueError
        """
        if self.learns:
            names = " and ".join(self.found_by_fit)
            raise ValueError(
                f"{self!r} takes {names} from all rows, which only a fit to X alone finds: none with covariates or "
                f"targets, or by partial_fit. Give {names}."
            )

    def begun(self) -> RowPreprocessor:
        """Return what a new fit applies: the same, unless a read of the fit finds what is not given."""
        return Learning(self) if self.learns else self

    @property
    def settled(self) -> RowPreprocessor:
        """What a fit applied, with all that its reads found."""
        return self

    def becomes(self, fitted: RowPreprocessor) -> bool:
        """Whether a fit with this one may have applied ``fitted``."""
        if not self.learns or type(self) is not type(fitted):
            return self == fitted
        known = {name: getattr(self, name) for name in self.found_by_fit}
        return self == replace(fitted, **known)  # type: ignore[type-var]  # each is a dataclass

    def sklearn_step(self) -> object:
        """Return the same function as a transformer of scikit-learn; it imports bigpca if there is none."""
        from sklearn.preprocessing import FunctionTransformer  # only exports need it

        return FunctionTransformer(partial(self.apply, where="X"), feature_names_out="one-to-one")

    def onnx_form(self) -> OnnxForm:
        """Return the same function as nodes of ONNX.

        Raises
        ------
        ValueError
            If it has no such form.
        """
        raise ValueError(
            f"preprocess = {self!r} has no form in ONNX. Use bp.preprocessing.L2() or bp.preprocessing.Power()."
        )


@dataclass(eq=False)
class Learning(RowPreprocessor):
    """A map in a fit whose own read finds what was not given.

    Attributes
    ----------
    found : RowPreprocessor
        As it was given, and after that read with what it found.
    """

    found: RowPreprocessor

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        return self.found.apply_at(rows, numbers, where)

    @property
    def forms(self) -> Forms:
        return self.found.forms

    def output_dtype(self, dtype: DType) -> DType:
        return self.found.output_dtype(dtype)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        return self.found.bytes_for(d, rows, itemsize)

    @property
    def settled(self) -> RowPreprocessor:
        return self.found

    def lessons(self, rows: object) -> Sequence[object]:
        """Return the reads of these rows that find it; none for those of :func:`bigpca.passes.summaries.lessons`."""
        return ()


Preprocess: TypeAlias = RowPreprocessor | Sequence[RowPreprocessor] | None


@dataclass(frozen=True)
class L2(RowPreprocessor):
    """Divides each row by its Euclidean norm: dot products of rows become cosines.

    Parameters
    ----------
    zero_rows : {"raise", "keep"}, default "raise"
        A row of zeros has no direction: it raises an error, or remains zero (as in scikit-learn's ``Normalizer``).

    Raises
    ------
    ValueError
        For rows of zeros, by number, with ``zero_rows="raise"``.

    Notes
    -----
    The usual first step for embeddings that are compared by cosine: Jégou & Chum (2012), "Negative evidences and
    co-occurrences in image retrieval: the benefit of PCA and whitening".

    Examples
    --------
    >>> L2().apply(np.array([[3.0, 4.0], [0.0, 2.0]]), "X").tolist()
    [[0.6, 0.8], [0.0, 1.0]]
    """

    zero_rows: str = "raise"

    def __post_init__(self) -> None:
        check_choice("zero_rows", self.zero_rows, ("raise", "keep"))

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return rows of norm 1; division by the largest entry first keeps squares in range."""
        form, values = form_of(rows), rows.astype(working_dtype(rows.dtype), copy=False)
        with np.errstate(invalid="ignore"):
            largest = np.maximum(form.along_rows(values, np.maximum), -form.along_rows(values, np.minimum))
            zero = largest == 0
            if self.zero_rows == "raise" and zero.any():
                raise ValueError(_zero_rows(numbers[zero], where))
            unit = form.mapped(values, np.divide, by_row=(np.where(zero | ~np.isfinite(largest), 1, largest),))
            norms = form.row_norms(unit)
        return form.mapped(unit, np.divide, by_row=(np.where(zero | ~np.isfinite(norms), 1, norms),), out=unit)

    def sklearn_step(self) -> object:
        """Return a ``Normalizer``, which leaves rows of zeros unchanged."""
        from sklearn.preprocessing import Normalizer  # only exports need it

        return Normalizer()

    def onnx_form(self) -> OnnxForm:
        """Return one node, which leaves rows of zeros unchanged."""
        return OnnxForm((OnnxNode("LpNormalization", ("rows",), "result", {"axis": 1, "p": 2}),))


@dataclass(frozen=True)
class Power(RowPreprocessor):
    """Signed power of each value, ``sign(x) |x|^exponent``, which reduces the weight of large values.

    Parameters
    ----------
    exponent : float in (0, 1], default 0.5

    Notes
    -----
    Perronnin, Sánchez & Mensink (2010), "Improving the Fisher kernel for large-scale image classification". For
    non-negative rows, ``[Power(0.5), L2()]`` is the Hellinger map, known as RootSIFT (Arandjelović & Zisserman 2012,
    "Three things everyone should know to improve object retrieval").

    Examples
    --------
    >>> Power(0.5).apply(np.array([[4.0, -9.0]]), "X").tolist()
    [[2.0, -3.0]]
    """

    exponent: float = 0.5

    def __post_init__(self) -> None:
        real_number("exponent", self.exponent, "(0, 1]", "0.5, the square root, or another power")

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the powers; for sparse rows, those of the stored values."""
        return form_of(rows).mapped(rows, self._powers)

    def _powers(self, rows: Array) -> Array:
        values = rows.astype(working_dtype(rows.dtype), copy=False)
        powers = np.abs(values)
        if self.exponent == 0.5:
            np.sqrt(powers, out=powers)
        else:
            np.power(powers, self.exponent, out=powers)
        result: Array = np.copysign(powers, values, out=powers)
        return result

    def onnx_form(self) -> OnnxForm:
        """Return ``sign(x) |x|^exponent``."""
        nodes = (
            OnnxNode("Abs", ("rows",), "size"), OnnxNode("Pow", ("size", "exponent"), "power"),
            OnnxNode("Sign", ("rows",), "sign"), OnnxNode("Mul", ("sign", "power"), "result"),
        )  # fmt: skip
        return OnnxForm(nodes, {"exponent": self.exponent})


@dataclass(frozen=True)
class NormalizeTotal(RowPreprocessor):
    """Divides each row of counts by its sum, and multiplies it by a target: cells become as deep as each other.

    Parameters
    ----------
    target : float > 0, or None, default None
        The sum of every row; None for the median of the sums of the rows that are not zero, which one more read of
        ``fit`` finds. ``model.preprocess_`` has it. Sums of counts are integers; an error if over four million differ.

    Raises
    ------
    ValueError
        For rows with negative values, by number; and with None outside a fit, or in the first ``partial_fit``.

    Notes
    -----
    As ``scanpy.pp.normalize_total``. Rows of zeros remain zero. The sum is that of the row as it is given: leave
    columns out after this map, not before it.

    Examples
    --------
    >>> NormalizeTotal(10).apply(np.array([[1.0, 3.0], [0.0, 0.0]]), "X").tolist()
    [[2.5, 7.5], [0.0, 0.0]]
    """

    found_by_fit: ClassVar[tuple[str, ...]] = ("target",)
    taken_rows: ClassVar[str] = "NormalizeTotal() takes counts"

    target: float | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            real_number("target", self.target, "(0, inf)", "1e4, or None for the median of the sums of the rows")

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the divided rows."""
        self.check_known()
        target, values = float(self.target or 0), rows.astype(working_dtype(rows.dtype), copy=False)
        _reject_below(values, 0, numbers, where, self.taken_rows)
        totals = form_of(values).along_rows(values, np.add, np.float64)
        with np.errstate(over="ignore"):
            factors = target / np.where((totals == 0) | ~np.isfinite(totals), target, totals)
        return scaled_rows(values, factors)

    def onnx_form(self) -> OnnxForm:
        """Return the row divided by its sum, times the target."""
        nodes = (
            OnnxNode("LpNormalization", ("rows",), "share", {"axis": 1, "p": 1}),
            OnnxNode("Mul", ("share", "target"), "result"),
        )
        assert self.target is not None  # of a fitted model
        return OnnxForm(nodes, {"target": self.target})


class Profile(NormalizeTotal):
    """Divides each row of amounts by its sum, in a correspondence analysis."""

    taken_rows: ClassVar[str] = "CorrespondenceAnalysis() takes counts, or other amounts of at least 0"


@dataclass(frozen=True)
class Log1p(RowPreprocessor):
    """The natural logarithm of 1 + x of each value, the usual second step for counts.

    Raises
    ------
    ValueError
        For values of -1 or less; names the row.

    Examples
    --------
    >>> Log1p().apply(np.array([[0.0, np.e - 1]]), "X").tolist()
    [[0.0, 1.0]]
    """

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the logarithms; for sparse rows, those of the stored values."""
        values = rows.astype(working_dtype(rows.dtype), copy=False)
        below_one = np.nextafter(values.dtype.type(-1), values.dtype.type(0))
        _reject_below(values, below_one, numbers, where, "Log1p() takes values above -1")
        return form_of(values).mapped(values, np.log1p)

    def onnx_form(self) -> OnnxForm:
        """Return ``log(x + 1)``."""
        nodes = (OnnxNode("Add", ("rows", "one"), "more"), OnnxNode("Log", ("more",), "result"))
        return OnnxForm(nodes, {"one": 1.0})


@dataclass(frozen=True)
class Standardize(RowPreprocessor):
    """Divides the deviation of each value from the mean of its column by the standard deviation, and clips the result.

    ``clip((x - mean) / scale, -max_value, max_value)``, less the same of x = 0: so zeros remain zero, and sparse rows
    sparse. A PCA subtracts the means of the results anyway, so its scores are those of the clipped values themselves.

    Parameters
    ----------
    max_value : float > 0, or None, default None
        Where both ends are clipped; None for no clipping, with results in float64.
    mean, scale : sequence of float, or None, default None
        Of the columns; None for those of the rows, after the steps before this one, with divisor n - 1, which one more
        read of ``fit`` finds. ``model.preprocess_`` has them. A scale of 0, of a column without variance, counts as 1.

    Raises
    ------
    ValueError
        For rows of another width; and with None outside a fit, in the first ``partial_fit``, or for sparse columns that
        vary too little, compared with their mean, for their deviation to be known.

    Notes
    -----
    As ``scanpy.pp.scale(max_value=10)``. In PCA, ``scale=True`` does the same without clipping, in no further read.

    Examples
    --------
    >>> Standardize(2, mean=(1.0, 0.0), scale=(0.5, 1.0)).apply(np.array([[0.0, 0.0], [3.0, 1.0]]), "X").tolist()
    [[0.0, 0.0], [4.0, 1.0]]
    """

    found_by_fit: ClassVar[tuple[str, ...]] = ("mean", "scale")

    max_value: float | None = None
    mean: tuple[float, ...] | None = field(default=None, repr=False)
    scale: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.max_value is not None:
            real_number("max_value", self.max_value, "(0, inf)", "10, or None for no clipping")
        for name in self.found_by_fit:
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(map(float, given)))
        if (self.mean is None) != (self.scale is None) or len(self.mean or ()) != len(self.scale or ()):
            raise ValueError(
                "mean and scale were expected together, one number of each for every column, or neither, for those of "
                "the rows of the fit."
            )

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the standardised rows; of sparse rows, the stored values."""
        self.check_known()
        if rows.shape[1] != len(self.mean or ()):
            raise ValueError(f"Standardize has {len(self.mean or ())} means, but {where} has {rows.shape[1]} columns.")
        dtype, most = self.output_dtype(rows.dtype), np.inf if self.max_value is None else self.max_value
        of_columns = (one.astype(dtype) for one in self._of_columns(most))
        return form_of(rows).mapped(rows.astype(dtype, copy=False), partial(_clipped, most), *of_columns)

    def output_dtype(self, dtype: DType) -> DType:
        """Float64 without clipping: less that of zero, the result is as far from zero as the column, in deviations."""
        return np.dtype(np.float64) if self.max_value is None else working_dtype(dtype)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Rows in the dtype of the result, the result, and the numbers of each column."""
        return 3 * rows * d * (8 if self.max_value is None else itemsize) + 4 * 8 * d, 0

    def _of_columns(self, most: float) -> tuple[Vector, Vector, Vector]:
        """Return the means, the scales, and what becomes of zeros."""
        mean, scale = np.array(self.mean), np.array(self.scale)
        scale[scale == 0] = 1
        return mean, scale, np.clip(-mean / scale, -most, most)

    def onnx_form(self) -> OnnxForm:
        """Return the clipped deviations, less those of zeros."""
        most = float(np.finfo(np.float32).max) if self.max_value is None else self.max_value
        mean, scale, zero = self._of_columns(most)
        nodes = (
            OnnxNode("Sub", ("rows", "mean"), "deviation"),
            OnnxNode("Div", ("deviation", "scale"), "scaled"),
            OnnxNode("Clip", ("scaled", "least", "most"), "clipped"),
            OnnxNode("Sub", ("clipped", "zero"), "result"),
        )
        return OnnxForm(nodes, {"mean": mean, "scale": scale, "zero": zero, "least": -most, "most": most})


@dataclass(frozen=True)
class PearsonResiduals(RowPreprocessor):
    """Analytic Pearson residuals of counts: their deviations from what row and column sums predict, over its deviation.

    ``clip((x - mu) / sqrt(mu + mu^2 / theta), -clip, clip)`` with ``mu`` the sum of the row times the share of the
    column in all counts.

    Parameters
    ----------
    theta : float > 0, default 100
        Of the negative binomial distribution; ``np.inf`` for Poisson's.
    clip : float > 0, or None, default None
        Where both ends are clipped, ``np.inf`` for no clipping; None for the square root of the number of rows of the
        fit.
    shares : sequence of float, or None, default None
        Of the columns; None for those of the rows. One more read of ``fit`` finds both; ``model.preprocess_`` has them.

    Raises
    ------
    ValueError
        For rows with negative values, by number; for rows of another width; and with None outside a fit, or in the
        first ``partial_fit``.

    Notes
    -----
    Lause, Berens & Kobak (2021), "Analytic Pearson residuals for normalization of single-cell RNA-seq UMI data", as
    ``scanpy.experimental.pp.normalize_pearson_residuals``. Residuals of columns without counts in the fit, and of rows
    of zeros, are 0. Zeros of a row get residuals too: those of sparse rows are products of two thin factors, to 1e-10
    of the largest. Where ``clip^2`` is less than ``theta``, so that they may be clipped, or ``theta`` is over 1e4,
    sparse rows become dense, some at a time.

    Examples
    --------
    >>> PearsonResiduals(np.inf, 10, (0.75, 0.25)).apply(np.array([[3.0, 1.0], [0.0, 4.0]]), "X").round(3).tolist()
    [[0.0, 0.0], [-1.732, 3.0]]
    """

    found_by_fit: ClassVar[tuple[str, ...]] = ("clip", "shares")

    theta: float = 100.0
    clip: float | None = None
    shares: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        real_number("theta", self.theta, "(0, inf]", "100, or np.inf for counts of Poisson's distribution,")
        if self.clip is not None:
            real_number("clip", self.clip, "(0, inf]", "30, or None for the root of the number of rows,")
        if self.shares is not None:
            object.__setattr__(self, "shares", tuple(map(float, self.shares)))

    @property
    def forms(self) -> Forms:
        """Sparse rows to factors, unless the residuals of zeros, at most ``sqrt(theta)``, may be clipped, or lose
        digits.
        """
        return RESIDUALS if self.theta <= min(MOST_THETA, (self.clip or np.inf) ** 2) else {}

    def apply(self, rows: Values, where: str) -> Array:
        """Return the residuals of all values."""
        found = super().apply(rows, where)
        return form_of(found).dense(found)

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the residuals; of sparse rows, those of stored values, and factors of those of zeros."""
        self.check_known()
        if rows.shape[1] != len(self.shares or ()):
            raise ValueError(
                f"PearsonResiduals has {len(self.shares or ())} shares, but {where} has {rows.shape[1]} columns."
            )
        given = rows if self.forms else form_of(rows).dense(rows)
        form, values = form_of(given), given.astype(working_dtype(rows.dtype), copy=False)
        _reject_below(values, 0, numbers, where, "PearsonResiduals() takes counts")
        totals = form.along_rows(values, np.add, np.float64)
        totals[~np.isfinite(totals)] = 0  # of rows that are rejected or left out
        if not form.shifts:
            return self._factored(values, totals)
        expected = np.multiply.outer(totals, np.array(self.shares)).astype(values.dtype)
        found = self.of(values, expected)
        np.copyto(found, values, where=~np.isfinite(values))
        return found

    def _factored(self, rows: csr_array, totals: Vector) -> FactoredRows:
        """Return residuals whose zeros are expanded in Chebyshev polynomials of the logarithm of the row's sum.

        ``-mu / sqrt(mu + mu^2 / theta)`` with ``mu = exp(s) share`` has its nearest singularities at ``Im s = pi``,
        whatever shares and theta are, so the number of terms depends on the range of s alone.
        """
        shares, known = np.array(self.shares), totals > 0
        s = np.log(totals, out=np.zeros(len(totals)), where=known)
        ends = (s[known].min(), s[known].max()) if known.any() else (0.0, 0.0)
        middle, half = sum(ends) / 2, max((ends[1] - ends[0]) / 2, 1e-9)
        q = int(np.ceil(np.log(EXPANSION_ERROR) / -np.log((np.pi + np.hypot(np.pi, half)) / half)))
        nodes = np.cos(np.pi * (np.arange(q) + 0.5) / q)
        expected = np.multiply.outer(np.exp(middle + half * nodes), shares)
        weights = chebvander(nodes, q - 1).T * (2 / q)
        weights[0] /= 2
        right = weights @ -np.sqrt(expected / (1 + expected / self.theta))
        left = chebvander(np.where(known, (s - middle) / half, 0), q - 1) * known[:, None]
        stored = residuals_above_zero(rows, totals, shares, self.theta, self.clip or np.inf)
        return FactoredRows(stored, left, right, rows.dtype)

    def with_sums(self, sums: Vector, n: float) -> PearsonResiduals:
        """Return the map for n rows with column sums in proportion to these."""
        total = sums.sum()
        if not total > 0:
            raise ValueError(
                f"PearsonResiduals() takes counts, but all values add up to {total:g}: no column has a share of it."
            )
        clip = self.clip or float(np.sqrt(n))
        return replace(self, clip=clip, shares=self.shares or tuple((sums / total).tolist()))

    def of(self, values: Array, expected: Array) -> Array:
        """Return the clipped residuals of values from what is expected of them; ``expected`` is overwritten."""
        found: Array = values - expected
        variance = expected / self.theta
        variance += 1
        variance *= expected
        deviation = np.sqrt(variance, out=variance)
        known = deviation > 0
        np.divide(found, deviation, out=found, where=known)
        found[~known] = 0
        most = self.clip or np.inf
        return np.clip(found, -most, most, out=found)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The values, what is expected, in float64 first, the residuals and their deviations."""
        return rows * d * (2 * 8 + 4 * itemsize + 1) + 3 * 8 * d, 0


@dataclass(frozen=True)
class GeneMap(RowPreprocessor):
    """Row map from the counts of all genes to clipped standard scores of the genes that vary most, or to logarithms.

    Counts are divided by the sum of the row over all genes, and standardised as logarithms, unless ``max_value`` is
    None, as by :class:`NormalizeTotal`, :class:`Log1p` and :class:`Standardize`.

    Attributes
    ----------
    n_top_genes : int
    max_value : float or None
    target : float or None
    genes : tuple of int, ascending, or None
    mean, scale : tuple of float, or None
        Of those genes.
    n_genes : int
        d, of all genes.
    names : tuple of str, or None
        Of all genes, if they have names.
    """

    found_by_fit: ClassVar[tuple[str, ...]] = ("target", "genes", "mean", "scale")

    n_top_genes: int
    max_value: float | None
    target: float | None
    genes: tuple[int, ...] | None = field(default=None, repr=False)
    mean: tuple[float, ...] | None = field(default=None, repr=False)
    scale: tuple[float, ...] | None = field(default=None, repr=False)
    n_genes: int = field(default=0, repr=False)
    names: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("genes", "mean", "scale", "names"):  # lists, in files
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else tuple(given))

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return rows (b, m) of the chosen genes."""
        normalised = NormalizeTotal(self.target).apply_at(rows, numbers, where)
        logs = Log1p().apply_at(normalised[:, np.array(self.genes)], numbers, where)
        if self.max_value is None:
            return logs
        return Standardize(self.max_value, self.mean, self.scale).apply_at(logs, numbers, where).astype(logs.dtype)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Normalised rows, and what follows of them at most."""
        return 5 * rows * d * itemsize, 0


def _clipped(most: float, values: Array, mean: Vector, scale: Vector, zero: Vector) -> Array:
    """Return the standardised values less that of zero; infinities as they are."""
    found: Array = (values - mean) / scale
    np.clip(found, -most, most, out=found, where=np.isfinite(found))
    found -= zero
    return found


def _reject_below(values: Values, least: float, numbers: Integers, where: str, takes: str) -> None:
    """Reject rows with values below the least, minus infinity excepted, which others report."""
    form = form_of(values)
    stored = form.stored(values)
    low = (stored < least) & ~np.isinf(stored)
    if not low.any():
        return
    row = form.places(values, low)[0][0]
    raise ValueError(
        f"{takes}, but row {numbers[row]} of {where} has {stored[low][0]:g}. Were these rows normalised or scaled "
        "before? Pass the counts."
    )


def preprocessors(preprocess: Preprocess, name: str = "preprocess") -> tuple[RowPreprocessor, ...]:
    """Return what is applied to each row, in order; nothing for None. ``name`` is for the error message.

    Raises
    ------
    TypeError
        For anything else than records such as ``L2()``.

    Examples
    --------
    >>> preprocessors(None), preprocessors(L2()), preprocessors([Power(), L2("keep")])
    ((), (L2(zero_rows='raise'),), (Power(exponent=0.5), L2(zero_rows='keep')))
    """
    given: object = () if preprocess is None else preprocess
    found = (given,) if isinstance(given, RowPreprocessor) else given
    if not isinstance(found, list | tuple) or not all(isinstance(one, RowPreprocessor) for one in found):
        raise TypeError(
            f"{name} = {preprocess!r} is not known; None, a record such as bp.preprocessing.L2() or "
            f"bp.preprocessing.Power(0.5), or a list of those was expected."
        )
    return tuple(found)


def _zero_rows(numbers: Integers, where: str) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN_ROWS])) + (", ..." if len(numbers) > SHOWN_ROWS else "")
    return (
        f"L2() cannot normalise {len(numbers)} of the rows in {where}, which are zeros: {shown}. Rows with a direction "
        f'were expected. Use L2(zero_rows="keep") to leave them zero, or remove them.'
    )
