"""Rows of several origins side by side: row i of the first, then row i of the second, in one read of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

import bigpca.dask_array as da
from bigpca.arrays import DType, Integers
from bigpca.data.batches import blocks_in_batches, reject_batches
from bigpca.data.dask_arrays import LEFT_OUT, array_of, carried, graph_of, largest_chunk, open_source
from bigpca.data.source import MemoryRows, Source, of_task
from bigpca.data.sparse import beside
from bigpca.engine.interfaces import Inputs
from bigpca.engine.layout import coalesce
from bigpca.forms import DENSE, Values
from bigpca.passes.reading.readers import DirectReader, Reader
from bigpca.passes.rows import Arrays, Order, Origin, Rows
from bigpca.storage.files import digest

SENT_BYTES = 1 << 30  # of rows in memory that workers are sent in each read of the stored rows beside them
PIECE_BYTES = 1 << 20  # of small stored chunks that are read together, of rows beside others
BESIDE = (
    "comes in batches, but {} are read side by side, in any order, but batches come in one. Write the batches with "
    "bigpca.FeatureWriter and open the store. CCA, PLSSVD, PLSRegression and Ridge also take batches of pairs (X, Y)."
)


@dataclass(eq=False)
class SideBySide(Origin):
    """The origin of rows of several origins side by side.

    Attributes
    ----------
    several : tuple of Origin
        Those.
    pieces : tuple of int
        The row chunks in which they are read if all are arrays in memory; empty for others.
    chunk_bytes : int
        Those of chunks of Dask arrays that are cut into several slabs.
    direct : tuple of Source
        Their sources, if rows are read without a graph: of dense sides, one of them stored and others in memory.
    in_memory : bool
        Whether all are, or those beside stored ones are too large to be sent to workers, slice by slice.
    """

    several: tuple[Origin, ...] = ()
    pieces: tuple[int, ...] = ()
    chunk_bytes: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        held = [side for side in self.several if side.in_memory]
        n, self.widths = self.several[0].shape[0], tuple(int(side.shape[1]) for side in self.several)
        if self.arrays is None:  # each side is copied to its place
            self.shape, self.form, self.dtype = (
                (n, sum(self.widths)),
                DENSE,
                np.result_type(*(side.dtype for side in self.several)),
            )
            self.owned = True
        sent = all(type(getattr(side.stored, "array", None)) is np.ndarray for side in held)
        size = sum(side.row_bytes for side in held) * n
        self.in_memory = len(held) == len(self.several) or not sent or size > SENT_BYTES
        plain = [side for side in self.several if side.view is None and side.form.shifts]
        direct = tuple(side.stored for side in plain if side.stored is not None)
        if len(direct) == len(self.several):
            # Rows are cut where chunks of the longest end; those of another store would be decoded for several reads.
            longest = max(direct, key=lambda one: one.row_bytes)
            self.direct = direct if all(one.in_memory or one is longest for one in direct) else ()

    @property
    def sides(self) -> tuple[Origin, ...]:
        """Those."""
        return self.several

    @cached_property
    def lazily(self) -> Arrays:
        """The rows as Dask arrays; they are made of rows in memory when they are first needed."""
        if self.arrays is not None:
            return self.arrays
        # Named by files or values: a checkpoint of what is made of them is found again.
        names = [f"{found}-pieces" if (found := side.files_digest()) else None for side in self.several]
        each = zip(self.direct, names, strict=True)
        X = da.concatenate([open_source(one, name, self.pieces).astype(self.dtype) for one, name in each], axis=1)
        return Arrays(X, X, X)

    @property
    def label(self) -> str:
        """What they are, for messages."""
        return labels_of_sides(self.several)

    @cached_property
    def row_chunks(self) -> tuple[int, ...]:
        """The pieces, or Dask's chunks."""
        return self.pieces or tuple(int(c) for c in self.X.chunks[0])

    @property
    def row_bytes(self) -> float:
        """Stored bytes decoded for one row of all."""
        return sum(side.row_bytes for side in self.several)

    def stamp(self, start: int, stop: int) -> str:
        """Digest of those of each."""
        return digest([side.stamp(start, stop) for side in self.several])

    def files_digest(self) -> str:
        """Digest of those of each; empty where none has files."""
        each = [side.files_digest() for side in self.several]
        return digest(each) if any(each) else ""

    def describe(self) -> object:
        """JSON-able description for fingerprints."""
        return [
            {
                "source": side.describe(),
                "shape": list(map(int, side.shape)),
                "dtype": side.dtype.str,
                "row_chunks": digest(side.row_chunks),
                "view": None if side.view is None else side.view.describe(),
            }
            for side in self.several
        ]

    def reader(self, start: int, stop: int, *, owned: bool, there: bool) -> tuple[Reader, Inputs]:
        """Return a reader of rows ``start:stop``, and the futures its task must be given."""
        if not self.direct:
            return super().reader(start, stop, owned=owned, there=there)
        return SidesReader(tuple(_part(one, start, stop) for one in self.direct), self.dtype), {}


@dataclass(frozen=True)
class SidesReader(Reader):
    """Rows of several dense sources side by side, in one dtype, copied once.

    Attributes
    ----------
    sides : tuple of DirectReader
    dtype : numpy.dtype
    """

    owned: ClassVar[bool] = True

    sides: tuple[DirectReader, ...]
    dtype: DType

    def read(self, start: int, stop: int) -> Values:
        return np.concatenate([side.read(start, stop) for side in self.sides], axis=1, dtype=self.dtype)

    def where(self, start: int, stop: int) -> str:
        return f"rows {start}:{stop} of {labels_of_sides([side.source for side in self.sides])}"


def labels_of_sides(sides: Sequence[Origin | Source]) -> str:
    """Return what the sides are, for messages."""
    return " beside ".join(f"{side.label} ({side.shape[1]} columns)" for side in sides)


def _part(source: Source, start: int, stop: int) -> DirectReader:
    """Return a reader of rows that must not be overwritten; of an array in memory, it holds only these rows."""
    if not isinstance(source, MemoryRows):
        return DirectReader(of_task(source, start, stop), owned=False)
    part = source.array[start:stop]
    return DirectReader(replace(source, array_shape=part.shape, array=part), owned=False, begins=start)


def beside_covariates(rows: Rows) -> Rows:
    """Return rows with their covariates behind them, (n, d + q); the same rows where there are none."""
    if rows.covariates is None:
        return rows
    both = side_by_side([replace(rows, covariates=None), rows.covariates], "XZ")
    if both.origin.arrays is None:
        return both
    return replace(both, origin=replace(both.origin, arrays=both.origin.lazily._replace(given=rows.origin.given)))


def side_by_side(sides: Sequence[Rows], names: Sequence[str] = "XY") -> Rows:
    """Return rows of several origins as one: row i is row i of each, in order. One read of it is one read of each.

    They are cut where the chunks of any end; where one is sparse, all are read as CSR. Views act on
    each; row maps, and the policy for incomplete rows, act on the whole. Weights are those of the first.

    Parameters
    ----------
    sides : sequence of Rows, opened
    names : sequence of str
        What users call each of them.

    Raises
    ------
    ValueError
        For other numbers of rows, and for keys that differ, or that come in another order.
    TypeError
        For rows in batches beside others, for rows with covariates, which are a side of their own, and for what
        belongs to the rows of another side than the first.
    """
    together = " and ".join(names)
    for name, side in zip(names, sides, strict=True):
        if side.covariates is not None or (side.origin.brings and side is not sides[0]):
            raise TypeError(LEFT_OUT)
        if side.origin.arrays is not None:
            reject_batches(side.X, name, BESIDE.format(together))
    sides = [side.begun() if np.isnan(side.origin.shape[0]) else side for side in sides]
    check_paired(sides, names)
    # Chunks are those of the side with the longest rows. Chunks of others that end within them are held, and decoded
    # once for each group that they belong to.
    lead = max(range(len(sides)), key=lambda i: sides[i].origin.row_bytes)
    each, longest = tuple(side.origin for side in sides), sides[lead].origin
    if all(one.arrays is None and one.form is DENSE for one in each) and longest.stored is not None:
        pieces = coalesce(longest.stored.row_chunks(), longest.row_bytes, PIECE_BYTES)
        origin: Origin = SideBySide(None, lazy=False, several=each, pieces=pieces)
        return Rows(origin=origin, counted=sides[0].counted, seed=sides[0].seed)
    arrays = [side.X for side in sides]
    arrays[lead] = _in_pieces(sides[lead].origin, arrays[lead])
    arrays = [
        array if i == lead else _in_pieces(side.origin, array, arrays[lead].chunks[0])
        for i, (side, array) in enumerate(zip(sides, arrays, strict=True))
    ]
    # Each side is a block of columns, which readers copy once, to its place. CSR cannot have float16.
    cut = [array.rechunk({0: arrays[lead].chunks[0], 1: -1}) for array in arrays]
    dtype, form = beside([array._meta for array in arrays])
    whole = da.concatenate([array.astype(dtype) for array in cut], axis=1)
    joined = array_of(graph_of(whole), whole.name, whole.chunks, form.meta(dtype))
    lazy = any(side.origin.lazy for side in sides)
    # Of a side that is not read in pieces a chunk is held for the slabs that are cut of it, and the next one is read.
    rows = max(arrays[lead].chunks[0], default=0)
    beyond = (
        largest_chunk(array) - math.floor(rows * side.origin.row_bytes)
        for array, side in zip(arrays, sides, strict=True)
        if array is side.X  # else in pieces
    )
    origin = SideBySide(
        None,
        Arrays(joined, joined, joined),
        lazy=lazy,
        several=each,
        chunk_bytes=2 * sum(max(0, one) for one in beyond),
    )
    return Rows(origin=origin, counted=sides[0].counted, seed=sides[0].seed)


def rows_at(places: Integers | None, *parts: Rows) -> Rows:
    """Return some rows of several arrays, which are numbered one after the other; None for all, in this order."""
    held = [one for part in parts if type(one := getattr(part.source, "array", None)) is np.ndarray]
    if len(held) == len(parts):  # which are known again by their values
        values = np.concatenate(held)
        return Rows.held(
            values if places is None else values[places], names=parts[0].origin.names, sample=parts[0].origin.sample
        )
    whole, steps = da.concatenate([part.begun().X for part in parts]), np.diff([] if places is None else places)
    if places is not None and len(steps) and (steps == steps[0]).all() and steps[0] > 0:
        return parts[0].shown(whole[places[0] : places[-1] + 1 : steps[0]])  # which Dask cuts, without a shuffle
    return parts[0].shown(whole if places is None else whole[places])


def check_paired(sides: Sequence[Rows], names: Sequence[str]) -> None:
    """Check that row i of each side belongs to row i of the first, by number and keys; unknown numbers are not counted.

    Raises
    ------
    ValueError
        As :func:`side_by_side`.
    """
    # All formats of labels, which other fits do not need.
    from bigpca.data.keys import keys_listed, keys_of_rows, label_places

    counts = [side.origin.shape[0] for side in sides]
    if np.isnan(counts).any():
        return
    n = int(counts[0])
    for name, count, side in zip(names[1:], map(int, counts[1:]), sides[1:], strict=True):
        if count != n:
            raise ValueError(
                f"{names[0]} has {n:,} rows, and {name} {count:,}: row i of {name} belongs to row i of "
                f"{names[0]}. Give one row of {name} for each row of {names[0]}, in the same order."
            )
        if side.origin.arrays is None:  # an array
            continue
        known = carried(side.origin.given)
        if side.origin.in_memory and known.index is known.labels is None:
            continue
        others = keys_of_rows(side.origin.given)
        if (second := others.of_rows) is None:  # by position
            continue
        own = keys_of_rows(sides[0].origin.given)
        first, places = own.of_rows, label_places(own, others, absent=None, word="value")
        if places is not None and first is not None:
            lacking = first[~places[1]]
            if len(lacking):
                raise ValueError(
                    f"{len(lacking):,} of {n:,} rows of {names[0]} have no row of {name}: {keys_listed(lacking)}. Give "
                    f"{name} the keys of {names[0]} or, for pairs by position, such as lagged ones, no keys: "
                    f"{name}.drop_vars(dimension) of a DataArray, {name}.reset_index(drop=True) of a frame."
                )
            raise ValueError(
                f"the rows of {name} have the keys of the rows of {names[0]}, but in another order: "
                f"{keys_listed(first[:2])} and {keys_listed(second[:2])}. Both are read in the order of their stores. "
                f"bigpca.data.by_key({name}, {names[0]}) returns {name} in the order of {names[0]}."
            )


def _in_pieces(side: Origin, array: da.Array, chunks: tuple[int, ...] = ()) -> da.Array:
    """Return an array that a source is read into in its stored chunks, not in the larger ones of Dask; others as given.

    Pieces of at least 1 MiB, so that what is decoded beyond the ends of a group is little beside the group. Rows in
    memory have the ``chunks`` of the side beside them, if that is known.
    """
    if side.stored is None or side.view is not None:
        return array
    held = side.stored.in_memory and chunks
    rows = chunks if held else coalesce(side.stored.row_chunks(), side.row_bytes, PIECE_BYTES)
    return open_source(side.stored, f"{array.name.removeprefix('bigpca-open-')}-pieces", rows)


def blocks_of_batches(rows: Rows) -> Rows | None:
    """Return rows in batches with the arrays of each batch side by side; None for rows of other origins."""
    found = blocks_in_batches(rows.X)
    if found is None:
        return None
    return replace(rows.shown(found[0], names=None), order=Order(widths=tuple(found[1].values())))
