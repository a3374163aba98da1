"""The contract of accumulators, small states that fold blocks, merge and are stored; and what several of them share.

A state declares what it holds once, as fields made by :func:`kept`: their shapes give the empty state, its bytes in
plans, its arrays in checkpoints and models, and the check of arrays that come back.

An accumulator is a template until :meth:`Accumulator.fresh` returns an empty copy for the rows of one group. The task
that owns a copy may update it in place; ``merge`` never changes its inputs, because Dask may use them again. Below the
contract: classes of rows, the error of implicit centring, symmetric products, and statistics of columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache, partial
from math import inf, prod
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from bigpca.arrays import Array, Integers, Vector, named, sum_of
from bigpca.costs import BlockForm, Work
from bigpca.data.sparse import scaled_rows
from bigpca.devices import Namespace
from bigpca.errors import counted, warn_approximation
from bigpca.forms import DENSE, Values
from bigpca.host import HOST
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.row_maps import identified
from bigpca.solvers.components import check_total
from bigpca.solvers.scaling import LearnedScale, Patterson

Arrays = dict[str, Array]
CSR_PARTS = ("data", "indices", "indptr", "shape")
T = TypeVar("T")
SHAPE = "shape"  # in the metadata of a field: the state keeps it when it is closed
SQUARE = "square"  # in the metadata of a field: its size is that of a symmetric matrix
FIRST_ROW = "first_row"  # the field with the number of the first row that has a value in the parameter by row
HERE = "here"  # in the metadata of a field: it is never on a device
MERGED = "merge"  # in the metadata of a field: what two states keep together, where that is not the sum
KEPT: dict[str, object] = {SHAPE: None}  # an inner state, or a value of no known shape
PARAMETER = KEPT | {"parameter": True}  # what a closed state keeps, and an empty one has from its template
# Rows are centred before they are multiplied everywhere else in the library. Of sparse rows that would store every
# zero. Their sums are in float64 instead, and the digits that the subtraction costs are bounded, reported and limited.
MAX_CENTRING_ERROR = 1e-6
COMPENSATED = 4  # roundings of a compensated sum, its square and their difference
VARIES = 100.0  # roundings of a value, by which a column that varies differs from its mean: far above those of merges


def kept(  # type: ignore[explicit-any]  # as of dataclasses.field
    *shape: int | str,
    dtype: DTypeLike = np.float64,
    order: str = "C",
    default: object = MISSING,
    square: bool | str = False,
    here: bool = False,
    merge: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Return a field that a state keeps when it is closed: an array that is zeros of a shape in an empty state.

    Parameters
    ----------
    *shape : int or str
        Sizes, or names of attributes of the state that give them; none for a value of no known shape.
    dtype, order : dtype and memory order of the array
    default : value
        What an empty state has instead of zeros: a number, or None before the first rows.
    square : bool, or str
        Whether it is a symmetric matrix of that size: its packed triangle, or on a device the whole one. A name is that
        of the attribute of the state that says so.
    here : bool
        Whether it is in the host's memory, where its numbers come from, also if the state is on a device.
    merge : callable or None
        What two states keep together, from what each has; None for the sum.
    """
    kind: dict[str, object] = {SHAPE: shape or None, "dtype": np.dtype(dtype), "order": order, SQUARE: square}
    kind |= {HERE: here, MERGED: merge or _both}
    if default is not MISSING:
        return field(default=default, metadata=kind)
    empty = partial(np.zeros, tuple(0 if isinstance(size, str) else size for size in shape), dtype)
    return field(default_factory=empty, metadata=kind)


@dataclass
class Accumulator(ABC):
    """One state folded over row blocks and merged by a fixed tree.

    The life of a state, in this order, which the shared suite (``tests/passes/accumulators/test_accumulators.py``)
    walks every accumulator through::

        template                  made by the caller: sizes and parameters, no rows
        for_rows(start, stop)     is sent to the task: only what these rows need, without the broadcast value
        with_shared(value)        in the task: has the broadcast value, which every group needs, again
        fresh(start, stop)        an empty state for the group
        update(block) ...         in place, in order of rows, all blocks about one shift
        close()                   once, in place, at the end of the group; drops what only folding needs
        merge(other) ...          any grouping of closed states; changes neither
        to_arrays()               into a checkpoint, and back by ``template.with_arrays(arrays)``

    Attributes
    ----------
    device : Host or Device
        Where the arrays are that the state keeps, and the states in it. One on a device takes blocks that are there,
        and comes back by :meth:`here`: to be stored, or sent to another process. Merging rounds alike in both.
    lives_there : bool
        Whether the state may be on a device: ``update``, ``close`` and ``merge`` are written for arrays of any library.
    tag : str
        Name of the state in checkpoints and fingerprints; unlike the class name, it never changes.
    shared_field : str or None
        The field that holds the broadcast value: a parameter that every group needs to fold, and that is too large to
        be sent with each task. It is None in templates being sent and in closed states.
    by_row : str or None
        The parameter that has a value for each row from number ``first_row`` on, such as the codes of classes: each
        group gets its own part, and closed states have none.
    needs_largest : bool
        Whether ``update`` uses the largest magnitude in its block.
    gaps : tuple of str
        Fields in which NaN stands for what there is not.
    accepts : frozenset of {"dense", "csr", "factors", "weights", "nan"}
        The blocks that ``update`` can use. Sparse rows are made dense in strips for states that do not accept "csr", or
        "factors" if the product of two thin factors is added to them;
        weighted rows are rejected before the read if a state does not accept "weights". NaN stay in blocks if all
        states of a read accept "nan".
    """

    tag: ClassVar[str]
    accepts: ClassVar[frozenset[str]] = frozenset({"dense"})
    shared_field: ClassVar[str | None] = None
    by_row: ClassVar[str | None] = None
    needs_largest: ClassVar[bool] = False
    gaps: ClassVar[tuple[str, ...]] = ()
    lives_there: ClassVar[bool] = False

    device: Namespace = field(default=HOST, kw_only=True, repr=False, compare=False)

    def there(self, device: Namespace) -> Self:
        """Return a template whose empty states, and those in them, are on a device, if they may be."""
        inner = {
            one.name: _of_inner(getattr(self, one.name), lambda state: state.there(device))
            for one in _stored(type(self))
        }
        changed: dict[str, object] = {name: states for name, states in inner.items() if states is not None}
        return replace(self, **changed, device=device if self.lives_there else HOST)

    @property
    def xp(self) -> ModuleType:
        """The library of the arrays that the state keeps."""
        xp: ModuleType = self.device.xp
        return xp

    def put(self, values: Array) -> Array:
        """Return an array beside those that the state keeps."""
        return self.device.put(values)  # type: ignore[no-any-return]

    def arrays_there(self) -> list[Array]:
        """Return the arrays that the state keeps on a device."""
        found = list[Array]()
        for one in _stored(type(self)):
            value = getattr(self, one.name)
            inner = _of_inner(value, lambda state: state.arrays_there()) or ()
            found += inner if isinstance(inner, list) else [array for arrays in inner for array in arrays]
            if one.metadata[SHAPE] and not isinstance(value, np.ndarray | None):
                found.append(value)
        return found

    def here(self) -> Self:
        """Return the closed state in the host's memory."""
        changed = dict[str, object]()
        for one in _stored(type(self)):
            value = getattr(self, one.name)
            if (inner := _of_inner(value, lambda state: state.here())) is not None:
                changed[one.name] = inner
            elif one.metadata[SHAPE]:
                changed[one.name] = self.device.home(value, square=self._is_square(one), order=one.metadata["order"])
        return replace(self, **changed, device=HOST)

    def fresh(self, start: int, stop: int) -> Self:
        """Return an empty state for rows ``start:stop``: zeros of the declared shapes, and empty inner states."""
        # A field holds an inner state, what the caller declared, or sums: the last begin at 0, where the state lives.
        made = dict[str, object]()
        for one in _held(type(self)):
            value = getattr(self, one.name)
            inner = _of_inner(value, lambda state: state.fresh(start, stop))
            if inner is not None or one.metadata.get("parameter"):
                value = value if inner is None else inner
            elif one.default is not MISSING:
                value = one.default
            elif one.metadata.get(SHAPE):
                place = HOST if one.metadata[HERE] else self.device
                value = place.zeros(self._shape(one, place), one.metadata["dtype"], one.metadata["order"])
            elif one.default_factory is not MISSING:
                value = one.default_factory()
            made[one.name] = value
        return replace(self, **made)  # type: ignore[arg-type]  # by name

    def _shape(self, one: Field[object], place: Namespace = HOST) -> tuple[int, ...]:
        """Return the shape of an array in the host's memory, or on a device, where symmetric matrices are whole."""
        sizes = tuple([int(getattr(self, size) if isinstance(size, str) else size) for size in one.metadata[SHAPE]])
        return place.square_shape(*sizes) if self._is_square(one) else sizes

    def _is_square(self, one: Field[object]) -> bool:
        square = one.metadata[SQUARE]
        return bool(getattr(self, square)) if isinstance(square, str) else bool(square)

    @abstractmethod
    def update(self, block: Block) -> None:
        """Add the rows of one block, in place. All blocks of one group have the same shift."""

    def note_rows(self, count: int) -> None:  # noqa: B027  (optional)
        """Note how many rows were read, with those that do not count, once, before the end of a group."""

    def close(self) -> None:
        """Finish the state and those in it in place, once, at the end of a group; drop what only folding needs."""
        for one in _held(type(self)):
            if SHAPE in one.metadata:
                _of_inner(getattr(self, one.name), lambda state: state.close())
            else:
                setattr(self, one.name, one.default if one.default_factory is MISSING else one.default_factory())
        if self.shared_field is not None:
            setattr(self, self.shared_field, None)
        if self.by_row is not None and (values := getattr(self, self.by_row)) is not None:
            setattr(self, self.by_row, values[:0])

    def finished(self) -> Self:
        """Return the state of all rows of a read, to which those of other reads are added."""
        return self

    def for_rows(self, start: int, stop: int) -> Self:
        """Return a template with only the parameters that rows ``start:stop`` need, without the broadcast value."""
        own: dict[str, object] = {} if self.shared is None else {str(self.shared_field): None}
        for one in _stored(type(self)):
            if (inner := _of_inner(getattr(self, one.name), lambda state: state.for_rows(start, stop))) is not None:
                own[one.name] = inner
        if self.by_row is not None and (values := getattr(self, self.by_row)) is not None:
            first: int = getattr(self, FIRST_ROW)
            own |= {self.by_row: values[start - first : stop - first], FIRST_ROW: start}
        return replace(self, **own)  # type: ignore[arg-type]  # by name

    def device_bytes(self, rows: BlockForm) -> float:
        """Return the peak memory of the device of another array library; infinite for states of NumPy only.

        Blocks are multiplied on a device, and rows that are there stay there, if no state of a read is of NumPy only
        and the rows are dense. 0 is for states that multiply nothing: by themselves, they take no other rows to a
        device.
        """
        return inf

    def bare(self) -> Self:
        """Return a template without the parameters that only folding needs."""
        first: int = getattr(self, FIRST_ROW, 0)
        return self.for_rows(first, first)

    @property
    def shared(self) -> object:
        """The broadcast value, or None if there is none, or if it is sent with the state."""
        return None if self.shared_field is None else getattr(self, self.shared_field)

    def with_shared(self, value: object) -> Self:
        """Return a template that has the broadcast value again, if there is one."""
        return self if value is None else replace(self, **{str(self.shared_field): value})  # type: ignore[arg-type]

    def merge(self, other: Self) -> Self:
        """Return the state of both row ranges, associative to rounding: what each field keeps of both, or its sum."""
        kept = [one for one in _stored(type(self)) if "parameter" not in one.metadata]
        both = {
            one.name: one.metadata.get(MERGED, _both)(getattr(self, one.name), getattr(other, one.name)) for one in kept
        }
        return replace(self, **both)

    def joined(self, other: Self) -> Self:
        """Return what :meth:`merge` does, on a device only if both states are there: one of a checkpoint is not."""
        if self.device != other.device:
            return self.here().merge(other.here())
        with self.device.precise():
            return self.merge(other)

    @property
    def state_bytes(self) -> int:
        """Bytes of the closed state: of its arrays, and of its inner states."""
        total = 0
        for one in _stored(type(self)):
            shape, value = one.metadata[SHAPE], getattr(self, one.name)
            inner = value if isinstance(value, tuple) else (value,)
            total += one.metadata["dtype"].itemsize * prod(self._shape(one)) if shape else 0
            total += sum(state.state_bytes for state in inner if isinstance(state, Accumulator))
        return total

    @property
    def bytes_there(self) -> int:
        """Bytes of the closed state on a device, where symmetric matrices are whole; 0 if it comes back."""
        total, own = 0, 8 * self.lives_there
        for one in _stored(type(self)):
            shape = one.metadata[SHAPE]
            total += own * prod(self._shape(one, self.device)) if shape else 0
            inner = _of_inner(getattr(self, one.name), lambda state: state.bytes_there)
            total += sum(inner) if isinstance(inner, tuple) else inner or 0
        return total

    @abstractmethod
    def cost(self, rows: BlockForm) -> Work:
        """Return the scratch space that ``update`` keeps while a group is folded, and the operations per row.

        ``rows`` are sparse only if the state accepts "csr"; see :func:`cost_of`.
        """

    def to_arrays(self) -> Arrays:
        """Return the closed state as named arrays; fields that are None have none."""
        names, here = [one.name for one in _stored(type(self))], self.here()
        return {key: array for name in names for key, array in _named(name, getattr(here, name)).items()}

    def with_arrays(self, arrays: Mapping[str, Array]) -> Self:
        """Return the closed state whose :meth:`to_arrays` returned ``arrays``.

        Raises
        ------
        KeyError, ValueError
            For arrays that are missing, or of another shape than the template declares.
        """
        bare, stored = self.bare(), _stored(type(self))
        others = [one.name for one in stored if not one.metadata[SHAPE]]
        found: dict[str, object] = {name: _restored(getattr(bare, name), name, arrays) for name in others}
        state = replace(bare, **found)  # type: ignore[arg-type]  # by name
        for one in stored:
            if one.metadata[SHAPE] and (one.name in arrays or one.default is MISSING):
                array, expected = arrays[one.name], state._shape(one)
                if array.shape != expected:
                    raise ValueError(f"it has {one.name} of shape {array.shape}, where {expected} was expected")
                setattr(state, one.name, array)
        return state

    def describe(self) -> dict[str, object]:
        """Return what identifies the computation in fingerprints: the tag, the parameters, and the states inside."""
        described: dict[str, object] = {"accumulator": self.tag}
        for one in fields(self):
            value = getattr(self, one.name)
            held = SHAPE in one.metadata and "parameter" not in one.metadata and _of_inner(value, bool) is None
            if not held and one.name[0] != "_" and one.name != "device":
                described[one.name] = identified(value)
        return described


@cache
def _stored(kind: type[Accumulator]) -> tuple[Field[object], ...]:
    """Return the fields that a closed state keeps, in the order of their declaration."""
    return tuple(one for one in fields(kind) if SHAPE in one.metadata)


@cache
def _held(kind: type[Accumulator]) -> tuple[Field[object], ...]:
    """Return the fields that an empty state has anew: those that it keeps, and those of an open group."""
    return tuple(one for one in fields(kind) if SHAPE in one.metadata or one.name.startswith("_"))


def _both(a: Any, b: Any) -> Any:  # type: ignore[explicit-any]  # of any type
    """Return what two states keep in a field: pieces and states of both, or the sum, where None is zero."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Accumulator):
        return a.merge(b)
    if isinstance(a, tuple):
        return tuple(_both(*pair) for pair in zip(a, b, strict=True))
    return a | b if isinstance(a, dict) else sum_of(a, b)


def _of_inner(value: object, f: Callable[[Accumulator], Any]) -> Any:  # type: ignore[explicit-any]
    """Return what a function makes of the states in a field, one or several; None if there are none."""
    if isinstance(value, Accumulator):
        return f(value)
    if not (isinstance(value, tuple) and value and isinstance(value[0], Accumulator)):
        return None
    return tuple(f(state) for state in value)


def _named(name: str, value: object) -> Arrays:
    """Return a field as arrays under its name; those of the states and pieces in it have their own names after it."""
    if isinstance(value, Accumulator):
        value = value.to_arrays()
    elif isinstance(value, csr_array):
        value = {part: getattr(value, part) for part in CSR_PARTS}
    elif isinstance(value, tuple) and all(isinstance(one, Accumulator) for one in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {} if value is None else {name: np.asarray(value)}
    return {key: array for inner, one in value.items() for key, array in _named(f"{name}_{inner}", one).items()}


def _restored(template: object, name: str, arrays: Mapping[str, Array]) -> object:
    """Return the field that :func:`_named` named, of the same kind as in a template."""
    if name == "weight_sums" and name in arrays:
        # None in templates, though it may hold two numbers, which states compare with ==: no array.
        total, squares = arrays[name]
        return float(total), float(squares)
    if template is None:
        return arrays.get(name)
    if isinstance(template, int | float):
        return type(template)(arrays[name])
    if isinstance(template, np.ndarray):
        return arrays[name]
    own = named(arrays, f"{name}_")
    if isinstance(template, Accumulator):
        return template.with_arrays(own)
    if isinstance(template, tuple):
        return tuple(_restored(one, f"{i}", own) for i, one in enumerate(template))
    return {int(key.partition("_")[0]): _piece(own, key.partition("_")[0]) for key in own}


def _piece(arrays: Mapping[str, Array], name: str) -> Values:
    if name in arrays:
        return arrays[name]
    data, indices, indptr, shape = (arrays[f"{name}_{part}"] for part in CSR_PARTS)
    return csr_array((data, indices, indptr), tuple(shape.tolist()))


WeightSums = tuple[float, float] | None


class Weighted:
    """A state or result of rows that may have weights.

    Attributes
    ----------
    count : int
        Number of rows.
    weight_sums : (float, float) or None
        ``sum_t w_t`` and ``sum_t w_t^2`` of weighted rows; None if every row counts once.
    """

    count: int
    weight_sums: WeightSums

    @property
    def weight(self) -> float:
        """``sum_t w_t``; the count of rows without weights."""
        return float(self.count) if self.weight_sums is None else self.weight_sums[0]

    @property
    def n_effective(self) -> float:
        """Kish's effective number of rows, ``(sum w)^2 / sum w^2``."""
        return float(self.count) if self.weight_sums is None else self.weight_sums[0] ** 2 / self.weight_sums[1]


def add_weights(count: int, sums: WeightSums, more: int, weights: Vector | WeightSums) -> WeightSums:
    """Return ``(sum w, sum w^2)`` of ``count`` rows and ``more`` others; None if every row counts once."""
    if sums is None and weights is None:
        return None
    if isinstance(weights, np.ndarray):
        weights = float(weights.sum()), float(weights @ weights)
    # A row without a weight counts as 1, so sum w = sum w^2 = the number of rows.
    (total, squares), (added, more_squares) = sums or (count, count), weights or (more, more)
    return total + added, squares + more_squares


def broadcast(value: T | None) -> T:
    """Return the broadcast value of a state that is being updated.

    Raises
    ------
    ValueError
        If :meth:`Accumulator.with_shared` has not been called.
    """
    if value is None:
        raise ValueError("the state has no broadcast value; call with_shared(value) before fresh and update.")
    return value


def cost_of(state: Accumulator, rows: BlockForm) -> Work:
    """Return what :func:`update_all` takes to update a state: sparse rows are made dense for those that require it."""
    strips, rows = rows.taken(("factors" if rows.factors else "csr") in state.accepts)
    return Work(strips) + state.cost(rows)


def update_all(states: Iterable[Accumulator], block: Block, strip_shift: Vector | None) -> Vector | None:
    """Update states with a block; states that require dense rows, with dense strips of a sparse block.

    Returns
    -------
    ndarray of shape (d,) or None
        The shift of the strips, for the next block of the group.
    """
    dense = []
    for state in states:
        if ("factors" if block.form.factors else "csr") in state.accepts:
            state.update(block)
        else:
            dense.append(state)
    for strip in block.strips(strip_shift) if dense else ():
        strip_shift = strip_shift if strip is block else strip.shift  # a dense block is no strip, and has its own
        for state in dense:
            state.update(strip)
    return strip_shift


def lost_squares(squares: Vector, terms: int) -> Vector:
    """Return what rounding may have cost sums of squares (d,) of so many terms, and the subtraction of their mean."""
    return np.finfo(np.float64).eps * (terms + COMPENSATED) * squares


def centring_error(lost: Vector, scatter: Vector) -> float:
    """Return ``max_j lost_j / scatter_jj``, the relative error of the variance of the worst column.

    Parameters
    ----------
    lost : ndarray of shape (d,)
        Bounds of the errors of sums that were centred afterwards; 0 for columns that are known exactly.
    scatter : ndarray of shape (d,)
        ``sum_t w_t (x_tj - mean_j)^2`` of all rows.

    Raises
    ------
    ValueError
        Beyond 1e-6; names the column.
    """
    if not len(lost):
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(lost > 0, lost / np.maximum(scatter, 0), 0)
    worst = int(np.argmax(errors))
    if errors[worst] > MAX_CENTRING_ERROR:
        raise ValueError(
            f"column {worst} of the sparse rows varies little compared with its mean. Because its zeros are not "
            f"stored, its centred variance has a relative error of up to {errors[worst]:.1e}, over "
            f"{MAX_CENTRING_ERROR:.0e}. Subtract a constant from the column, leave it out, or pass dense rows: "
            "X.toarray(), or of a Dask array X.map_blocks(lambda block: block.toarray())."
        )
    return float(errors[worst])


def add_known(a: Vector | None, b: Vector | None) -> Vector | None:
    """Return the sum of two vectors, where None is zero."""
    return b if a is None else a if b is None else a + b


Pieces = dict[int, NDArray[np.float64]]  # by first column


def joined(pieces: Pieces, axis: int = 0) -> NDArray[np.float64]:
    """Concatenate pieces in the order of their first columns."""
    return np.concatenate([pieces[first] for first in sorted(pieces)], axis=axis)


def standardized_columns(
    block: Block, values: Array, center: bool, scale: LearnedScale
) -> tuple[Array, NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns of a block of all rows, centred, scaled and times the square roots of the weights, with their
    means and sums of squares about these; ``values`` are those of the block, possibly in a wider precision.
    """
    # What the first rows gave as a shift is near the mean, but not it.
    residual, deviations = column_moments(block, center)
    mean = block.shift + residual
    if center:
        values = values - residual.astype(values.dtype)
    if scale:
        count, weight = int(np.count_nonzero(block.each)), float(block.each.sum())
        values = values / _scale_of(deviations, mean, count, scale, weight)[0].astype(values.dtype)
    if block.weights is not None:
        # (w^1/2 x)(w^1/2 x)' = w x x': products of these rows are weighted.
        values = np.asarray(scaled_rows(values, np.sqrt(block.weights)))
    return values, mean, deviations


def column_moments(block: Block, shifted: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the column means of a block of all rows, and the sums of squares about them, weighted if the rows are."""
    values, weight = block.values, float(block.each.sum())
    if shifted:
        # The rows were shifted to about their mean: what is left of it is subtracted afterwards, without loss.
        residual = block.sums / weight
        return residual, DENSE.column_squares(values, block.weights) - weight * residual**2
    if block.weights is not None:
        mean = block.sums / weight
        return mean, DENSE.column_squares(values - mean, block.weights)
    # Not shifted: two looks at the rows, never E[xx] - E[x]E[x].
    mean = values.mean(axis=0, dtype=np.float64)
    total = np.zeros(values.shape[1])
    for i in range(0, len(values), 128):
        rows = values[i : i + 128] - mean
        total += np.einsum("ij,ij->j", rows, rows)
    return mean, total


def column_scale(
    squares: NDArray[np.float64],
    mean: NDArray[np.float64],
    count: int,
    scale: LearnedScale = True,
    weight: float | None = None,
) -> NDArray[np.float64]:
    """Return the standard deviations (divided by n) of columns, and 1 for columns that are constant to rounding.

    ``count`` is the number n of rows that were added, and ``weight`` the sum of their weights. The rule for "constant"
    is scikit-learn's: ``var <= n eps var + (n mean eps)^2``, in which the rounding of n additions is n whatever the
    weights are. A rule such as ``Patterson()`` gives another scale. Warns of columns that are taken for constant though
    they vary by more than the rounding of one value.
    """
    found, varying = _scale_of(squares, mean, count, scale, weight)
    if len(varying):
        first = int(varying[0])
        warn_approximation(
            f"column {first} varies by less than the rounding that {count} additions of values near its mean "
            f"{mean[first]:.6g} may have: it is treated as constant and not scaled "
            f"({counted(len(varying), 'such column')}). Subtract an offset from these columns."
        )
    return found


def _scale_of(
    squares: NDArray[np.float64], mean: NDArray[np.float64], count: int, scale: LearnedScale, weight: float | None
) -> tuple[NDArray[np.float64], Integers]:
    """Return the scale, and the columns that vary although they are treated as constant."""
    if isinstance(scale, Patterson):
        return scale.of(mean), np.zeros(0, np.int64)
    variance = np.maximum(squares, 0) / ((count if weight is None else weight) or 1)
    eps = np.finfo(np.float64).eps
    # Sums of n values near the mean err by up to n eps mean, so a constant column may have its square as variance.
    constant = variance <= count * eps * variance + (count * mean * eps) ** 2
    # Of columns that vary the smallest variance, and of others the smallest mean whose square may have been lost.
    for columns, sizes, suffix in (
        (~constant, variance, ""),
        ((variance == 0) & (mean != 0), np.abs(mean), ", which may be constant,"),
    ):
        if columns.any():
            at = int(np.argmin(np.where(columns, sizes, np.inf)))
            what = f"the variance of column {at} (mean {mean[at]:.3g}){suffix}"
            check_total(float(variance[at]), what, mean[at : at + 1] if suffix else None, whole="that column")
    varying = np.flatnonzero(constant & (variance > (VARIES * mean * eps) ** 2))
    return np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance))), varying
