"""What every format is: a range of stored rows read into new memory; and which array, and which part, a read wants.

``Source`` is the (n, d) view of one stored array; its subclasses are the formats; one, an array in memory, is
here. ``plan_index`` turns an index of Dask into the rectangle that a source reads, ``choose_member`` a name into one of
the arrays of a file or store.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from operator import eq
from platform import node
from types import EllipsisType
from typing import Any, ClassVar, NamedTuple, SupportsIndex, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix

from bigpca.arrays import BFLOAT16, Array, Integers, widened
from bigpca.data.checks import (
    MATLAB,
    SPOKEN,
    MemberError,
    ValidRange,
    check_decoded,
    owned,
    regular_chunks,
    whole_chunks,
)
from bigpca.errors import MAX_MESSAGE, brief, shorten
from bigpca.forms import DENSE, DenseForm
from bigpca.storage.files import (
    ABSENT,
    Mark,
    Seen,
    digest,
    input_changed,
    kind_of,
    marks_of,
    noting_got,
    one_look,
    seen_file,
)

Stamp = tuple[str, int, int | str | None]  # key, size, change: a time, or what a store has in its place
IN_MEMORY = ("numpy", "scipy")
IN_ORDER = (
    "in any order, but batches come in a fixed order. Pass the result of from_batches directly to fit or transform, "
    "or write the batches with bigpca.FeatureWriter and open the store."
)
_UNNAMED = {"numpy": "the array in memory", "scipy": "the sparse rows in memory", "batches": "the batches"}
SPARSE_PARTS = ("data", "indices", "indptr")  # of a compressed sparse matrix, in AnnData and 10x
SENT_MARKS = 4096  # of objects, 32 KiB in each task
MAX_LISTED = 20  # arrays of a file, in messages


AnySource = TypeVar("AnySource", bound="Source")


class Wanted(NamedTuple):
    """What a caller said of the columns of a table.

    Attributes
    ----------
    keys : str or None
        The column that names the rows.
    columns : tuple of str, or None
        Those that will be chosen; none for positions among those that hold numbers.
    """

    keys: str | None = None
    columns: tuple[str, ...] | None = None


class Looks:
    """What the files behind each chunk of a source were when it was opened, in 20 bytes a file.

    Rows are compared after they are read, with one look at each of their files, as :func:`bigpca.storage.files.changed`
    does; on other machines, whose mounts may have other inodes and times, by size and second of modification.

    Attributes
    ----------
    edges : ndarray of int64
        The number of the first row, and of those after each chunk.
    marks : list of ndarray of shape (files, 5)
        Of each chunk: digests of a file's name and of what a look has seen of it.
    """

    def __init__(self, source: Source, rows: Sequence[int], known: Seen) -> None:
        """Begin with what a look at all files has seen."""
        self.edges, self.host = np.cumsum([0, *rows]), node()
        self.marks = [_marks(source, start, stop, known) for start, stop in pairwise(self.edges.tolist())]

    def part(self, start: int, stop: int) -> Looks:
        """Return those of the chunks with those rows."""
        own, first = copy(self), int(np.searchsorted(self.edges, start, "right")) - 1
        last = int(np.searchsorted(self.edges, stop))
        own.edges, own.marks = self.edges[first : last + 1], self.marks[first:last]
        return own

    def same(self, source: Source, start: int, stop: int, got: set[Mark]) -> bool:
        """Whether the files of those rows are as they were."""
        known, there = dict[int, list[int]](), node() != self.host
        for chunk in self.part(start, stop).marks:
            known |= {name: marks for name, *marks in chunk.tolist()}
        for name, *marks in _marks(source, start, stop, {}).tolist() if known else ():
            times, inode, others, rounded = map(eq, marks, known.get(name, [0] * 4))
            if not (times or (inode and not others) or (rounded and there)):
                return False
        return True


def _marks(source: Source, start: int, stop: int, known: Seen) -> NDArray[np.uint32]:
    own: Seen = {}
    with one_look(ChainMap(own, known)):
        source.stamps(start, stop)
    marks = [(path, look[:3], (look[:2], look[3]), look[4], (look[0], look[1] // 10**9)) for path, look in own.items()]
    return np.array([[crc32(repr(part).encode()) for part in one] for one in marks], np.uint32).reshape(-1, 5)


class ObjectLooks:
    """What the objects of a Dask array were when it was opened, in 8 bytes each.

    An object is compared as it arrives, by the ETag in the answer of its store, which takes no further request. Of
    libraries that do not pass it on, the objects are looked up again, by one request each. At Google Cloud Storage and
    Azure, whose answers may have other ETags than their listings, only runs compare, by the listing at their end.

    Attributes
    ----------
    known : ndarray of uint64, ascending
        Digests of the marks of all objects that have an ETag.
    """

    def __init__(self, stamps: Sequence[Stamp]) -> None:
        """Begin with what a look at all objects has seen."""
        self.known = np.unique(np.array([*map(_digest, marks_of(stamps))], np.uint64))

    def part(self, start: int, stop: int) -> ObjectLooks | None:
        """Return all; None if they are too many to be sent with a task: the look at the end of a run tells as much."""
        return self if len(self.known) <= SENT_MARKS else None

    def same(self, source: Source, start: int, stop: int, got: set[Mark]) -> bool:
        """Whether all objects that a read of those rows ``got`` are as they were."""
        return not len(self.known) or all(self._has(*mark) for mark in got or marks_of(source.looked_up(start, stop)))

    def _has(self, url: str, size: int, etag: str) -> bool:
        # Stamps have the whole URL, or the last parts of it, below an array or a group of arrays.
        names, parts = [url], url.split("/")
        names += ["/".join(parts[i:]) for i in range(len(parts) - 1, 2, -1)]
        return bool(np.isin(np.array([_digest((name, size, etag)) for name in names], np.uint64), self.known).any())


def _digest(mark: Mark) -> int:
    return int.from_bytes(hashlib.sha256(repr(mark).encode()).digest()[:8], "little")


@dataclass(frozen=True, eq=False)
class Source(ABC):
    """Rows of one stored array as a matrix; a small record (under 2 KiB pickled, except for values in memory).

    It holds paths, never open handles. Feature maps (n, c, h, w) are viewed as (n, c*h*w). A format says how rows are
    stored and read: ``facts``, ``read_block`` and ``details``; and, where they are not dense ranges of one file, or its
    numbers not always values, what has a default here. Created by :func:`bigpca.open`.

    Attributes
    ----------
    array_shape : tuple of int
        Stored shape, rows first, before flattening.
    path : str
        Absolute path, or URL; empty for values in memory.
    member : str
        Name of the array in the file or group; may be empty.
    format : str
        "zarr", "npy", "npy-folder", "hdf5", "netcdf", "parquet", "safetensors", "torch", "bed", "pgen", "raw", "numpy",
        "scipy" or "batches".
    limits : ValidRange or None
        Which stored numbers are not values, if some are not.
    looks : Looks, ObjectLooks or None
        What is compared with each read.
    form : DenseForm
        What rows do in the way of their kind.
    shape : (n, d)
    sparse : bool
        Whether rows are read as CSR.
    in_memory : bool
        Whether the rows are an array of this process.
    dtype : numpy.dtype
        Stored dtype, in native byte order.
    decoded_rows : int or None
        Rows that are decoded together; 1 where any range can be read, None where all of a row chunk are.
    column_chunk : int
        Columns that can be read without decoding others; d if rows are stored whole.
    reach : int
        Rows after its own that a read decodes, whatever the chunks; 0 where a row has nothing of another.
    stored_values : int or None
        Number of stored values of sparse rows; None for dense rows.
    row_bytes : float
        Bytes of a row as it is read; of sparse rows, on average.
    """

    ndim: ClassVar[int] = 2
    gives_rows: ClassVar[bool] = False  # whether the caller may overwrite what read_block returns

    array_shape: tuple[int, ...]
    _: KW_ONLY
    path: str = ""
    member: str = ""
    format: str = ""
    limits: ValidRange | None = None
    looks: Looks | ObjectLooks | None = None
    form: DenseForm = field(default=DENSE, init=False)
    shape: tuple[int, int] = field(init=False)
    sparse: bool = field(init=False)
    in_memory: bool = field(init=False)
    dtype: np.dtype[Any] = field(init=False)
    decoded_rows: int | None = field(default=1, init=False)
    column_chunk: int = field(init=False)
    reach: int = field(default=0, init=False)
    stored_values: int | None = field(default=None, init=False)
    row_bytes: float = field(init=False)

    def __post_init__(self) -> None:
        n, *sizes = self.array_shape or (0,)
        d = math.prod(sizes)
        vars(self).update(shape=(n, d), in_memory=self.format in IN_MEMORY, column_chunk=max(d, 1))
        vars(self).update(self.facts())
        values = d if self.stored_values is None else self.stored_values / max(1, n)
        vars(self).setdefault("row_bytes", self.form.row_bytes(values, self.dtype.itemsize))
        vars(self)["sparse"] = not self.form.shifts

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return ``dtype``, and those other fields above that differ from their defaults.

        The defaults are for files in which any range can be read. Facts are asked for once, when the shape is known;
        nothing is read for them.
        """

    @abstractmethod
    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        """Read a block of the (n, d) view, of shape (stop - start, columns), as stored; the bounds have been checked.

        An array, or of sparse rows a ``csr_array`` as :func:`bigpca.data.sparse.csr_block` makes it.
        """

    def details(self) -> dict[str, Any]:
        """Return what a fingerprint needs beyond place, shape and dtype, as JSON values."""
        return {}

    def row_chunks(self) -> tuple[int, ...]:
        """Return consecutive row counts that can each be read without decoding anything twice.

        By default of about 4 MiB, for formats that can read any range.
        """
        return regular_chunks(self.array_shape[0], row_bytes=self.shape[1] * self.dtype.itemsize)

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return (key, size, change) of the files that hold those rows, to detect a changed input: by default one file.

        The change is a time in ns, or what a store has in its place.
        """
        return [file_stamp(self.path)]

    @property
    def home(self) -> Any:
        """Beside what keys and names are stored: a path, a URL, or the place in an open store of Zarr; "" for none."""
        member = self.member.strip("/") if self.path and self.format in ("zarr", "hdf5") else ""
        return f"{self.path}/{member}" if member else self.path

    @property
    def densest(self) -> float | None:
        """Stored values of a mean row of the densest row chunk, by which memory is planned; None for dense rows."""
        return None

    @property
    def unseen(self) -> str | None:
        """What holds rows whose changes stamps do not tell: "" for nothing, None for all, as in a few stores."""
        return ""

    @property
    def requests(self) -> tuple[int, int]:
        """Requests to an object store for one read of all rows, and the most bytes in flight; (0, 0) elsewhere."""
        return 0, 0

    @property
    def column_names(self) -> list[str] | None:
        """Names of the columns of a table."""
        return None

    def decoded(self, start: int, stop: int) -> tuple[int, int]:
        """Return the rows that are decoded where rows ``start:stop`` are read."""
        together = self.decoded_rows
        if together is None:
            return whole_chunks(self.row_chunks(), start, stop)
        return start - start % together, min(self.array_shape[0], -(-stop // together) * together)

    def decoding_bytes(self, columns: int) -> int:
        """Bytes that decoding so many columns takes beside the rows that are returned; 0 where none are decoded."""
        return 0

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What the file says of its numbers, such as a scale or the range of values."""
        return {}

    def texts(self) -> Array | None:
        """Read the keys of the rows that stand beside their numbers in the same file; None where there are none."""
        return None

    @property
    def label(self) -> str:
        """Location of the rows, for messages."""
        return f"{self.path}:{self.member}" if self.member else self.path or _UNNAMED.get(self.format, "the rows")

    def read(self, start: int, stop: int, columns: tuple[int, int] | None = None) -> Array | csr_array:
        """Read rows ``start:stop`` into new memory.

        Parameters
        ----------
        start, stop : int
            ``0 <= start <= stop <= n``.
        columns : (int, int), optional
            Range of columns of the (n, d) view; all by default.

        Returns
        -------
        ndarray or csr_array of shape (stop - start, number of columns)
            C order, native byte order, writable; the caller may overwrite it. CSR has sorted indices and no duplicates.

        Raises
        ------
        IndexError
            If the rows or columns are not in the source.
        MissingChunksError, CorruptedChunkError
            If the stored bytes are missing or damaged.
        InputChangedError
            If they are not those of when the rows were opened.
        """
        n, d = self.shape
        first, last = columns or (0, d)
        if not 0 <= start <= stop <= n:
            raise IndexError(f"rows {start}:{stop} of {self.label} were requested, but it has {n}.")
        if not 0 <= first <= last <= d:
            raise IndexError(f"columns {first}:{last} of {self.label} were requested, but it has {d}.")
        got = set[Mark]()
        try:
            with noting_got(got):
                block: Any = self.read_block(start, stop, (first, last))
        finally:  # also instead of what is raised: a mixture of old and new rows fails in many ways
            if self.looks is not None and not self.looks.same(self, start, stop, got):
                raise input_changed(self.label)
        if self.limits is not None:
            block = self.limits.values(owned(block, self.dtype), self.label, start)
        return block if self.gives_rows else owned(block, self.dtype)

    def __getitem__(self, index: Any) -> Array:
        """Read a selection, as Dask's getter requests it: of sparse rows, a ``csr_matrix``; of numbers, one dimension.

        Raises
        ------
        TypeError
            For batches, which are read in order.
        """
        if self.format == "batches":
            raise TypeError(f"the rows of batches are computed by Dask, {IN_ORDER}")
        if len(self.array_shape) == 1 and (not isinstance(index, tuple) or len(index) == 1):
            index = (*index, 0) if isinstance(index, tuple) else (index, 0)
        plan = plan_index(index, self.shape)
        rows, columns = plan.bounds
        block: Any = self.read(*rows, columns)
        if self.sparse:
            selected: Array = csr_matrix(plan.finish(csr_matrix(block)))  # a matrix keeps both dimensions
            return selected
        return owned(plan.finish(block), self.dtype)  # type: ignore[no-any-return]  # of NumPy

    def looked_up(self, start: int, stop: int) -> list[Stamp]:
        """Return stamps of the objects of those rows, by one request each; none where reads have them."""
        return []

    def describe(self) -> dict[str, Any]:
        """Return JSON values that identify this source: format, path, member, shape, dtype, and the format's own."""
        return {
            "format": self.format,
            "path": self.path,
            "member": self.member,
            "shape": list(self.array_shape),
            "dtype": self.dtype.str,
            **({} if self.limits is None else {"limits": [self.limits.fill, self.limits.low, self.limits.high]}),
            **self.details(),
        }

    def token(self, stamps: list[Stamp] | None = None) -> str:
        """Return a short digest of the description and the stamps of all rows, for Dask names."""
        if stamps is None:
            stamps = [] if self.in_memory else self.stamps(0, self.shape[0])  # a description of values has their CRC-32
        return digest([self.describe(), stamps])

    def __dask_tokenize__(self) -> object:
        return f"bigpca.{type(self).__name__}", self.token()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.format} {self.label} shape={self.shape} dtype={self.dtype}>"


def of_task(source: AnySource, start: int, stop: int) -> AnySource:
    """Return a source with what a task needs that reads those rows."""
    return source if source.looks is None else replace(source, looks=source.looks.part(start, stop))


def file_stamp(path: str) -> Stamp:
    """Return (path, size, mtime in ns) of one file; of an object at a URL what its store says, by one request."""
    if kind_of(path) != "disk":
        from bigpca.storage.requests import object_stamp  # imports clients of object stores

        return object_stamp(path)
    found = seen_file(path, regular=True)
    if found == ABSENT:
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    return path, *found


def parts_of(ends: Sequence[int] | Integers, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (part, first row, end) of the parts that hold rows ``start:stop``, with the rows numbered in each part.

    ``ends`` are the numbers of the rows after each part.

    >>> list(parts_of([3, 7], 2, 5))
    [(0, 2, 3), (1, 0, 2)]
    """
    for i in range(bisect_right(ends, start), len(ends)):
        first = ends[i - 1] if i else 0
        if first >= stop:
            return
        yield i, max(start - first, 0), min(stop, ends[i]) - first


@dataclass(frozen=True, eq=False, repr=False)
class StoredRows(Source):
    """Rows of numbers of one dtype, which is known without opening what holds them.

    Attributes
    ----------
    stored : str
        Dtype with its byte order, or "bfloat16", which NumPy does not have.
    """

    stored: str

    def facts(self) -> dict[str, Any]:
        """The dtype is float32 for bfloat16."""
        return {"dtype": np.dtype(np.float32) if self.stored == BFLOAT16 else np.dtype(self.stored).newbyteorder("=")}

    @property
    def bits(self) -> np.dtype[Any]:
        """Dtype of the numbers as NumPy reads them, in their byte order: integers for bfloat16."""
        return np.dtype("<u2" if self.stored == BFLOAT16 else self.stored)

    def numbers(self, block: Array) -> Array:
        """Return what was read in the dtype of the rows."""
        return widened(block) if self.stored == BFLOAT16 else block.astype(self.dtype, copy=False)


@dataclass(frozen=True, eq=False, repr=False)
class MemoryRows(Source):
    """Rows of a NumPy array; pickled with its values."""

    array: Array
    format: str = field(default="numpy", kw_only=True)

    def facts(self) -> dict[str, Any]:
        return {"dtype": self.array.dtype.newbyteorder("=")}

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Array:
        """Copy a block."""
        block = np.empty((stop - start, columns[1] - columns[0]), self.dtype)
        block[...] = self.view(start, stop)[:, slice(*columns)]
        return block

    def view(self, start: int, stop: int) -> Array:
        """Return rows as they are in memory, (stop - start, d), for whoever does not change them."""
        rows = self.array[start:stop]
        return rows if rows.ndim == 2 else rows.reshape(stop - start, self.shape[1])

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return the CRC-32 of those values in place of a file's mtime."""
        rows = self.read_block(start, stop, (0, self.shape[1]))
        return [("memory", rows.nbytes, crc32(rows.data))]

    def details(self) -> dict[str, Any]:
        """Return the CRC-32 of all values (reads the whole array, 16 MiB at a time)."""
        crc, start = 0, 0
        for rows in self.row_chunks():
            crc = crc32(self.read_block(start, start + rows, (0, self.shape[1])).data, crc)
            start += rows
        return {"crc32": crc}


@dataclass(frozen=True, eq=False, repr=False)
class DerivedRows(Source):
    """Rows that are made of those of other sources."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Source, ...]:
        """Those sources."""

    @property
    def unseen(self) -> str | None:
        each = [part.unseen for part in self.parts]
        return None if None in each else next(filter(None, each), "")

    @property
    def requests(self) -> tuple[int, int]:
        counts, flights = zip(*(part.requests for part in self.parts), strict=True)
        return sum(counts), max(flights)


def stored_values(source: Source, fill: str | None, codes: Iterable[float] = ()) -> Source:
    """Return the source of a file's array with what its attributes say of its numbers, unless ``fill`` is None.

    ``codes`` are the numbers of missing values that the caller named.

    Raises
    ------
    ValueError
        If the numbers are encoded values, or their axes reversed; has the line that decodes them, and the one that uses
        the stored numbers.
    """
    attributes = source.attributes
    if not attributes.keys() & SPOKEN:
        return source
    group, name = os.path.split(source.member)
    kind = 'engine="zarr", ' if source.format == "zarr" else ""
    inside = f"group={group!r}, " if group else ""
    raw = "dask.array.from_zarr" if kind else "dask.array.from_array(h5py_dataset)"
    decode = f"xarray.open_dataset({source.path!r}, {kind}{inside}chunks={{}})[{name!r}], or " if name else ""
    remedy = f"Pass {decode}{raw} to use the stored numbers"  # xarray opens groups only
    check_decoded(attributes, source.label, remedy, fill, codes)
    if MATLAB in attributes:
        raise ValueError(
            f"{source.label} was written by MATLAB 7.3, which reverses the axes: its rows appear as columns, in shape "
            f"{source.array_shape}. Rows of features were expected. Pass "
            f"dask.array.from_array(h5py.File({source.path!r})[{source.member!r}]).T."
        )
    return source if fill is None else replace(source, limits=ValidRange.of(attributes, source.dtype))


AxisIndex = slice | SupportsIndex | list[int] | Array
Index = AxisIndex | EllipsisType | tuple[AxisIndex | EllipsisType, ...]


@dataclass(frozen=True)
class IndexPlan:
    """The ranges to read, and what to select from them on each axis.

    Attributes
    ----------
    bounds : tuple of (int, int)
        Half-open range to read on each axis.
    rest : tuple
        On each axis an integer (which removes the axis), a slice, or an array of positions, relative to the range.
    """

    bounds: tuple[tuple[int, int], ...]
    rest: tuple[Any, ...]

    def finish(self, block: Array) -> Array:
        """Apply the selection to the ranges that were read; lists act on each axis separately."""
        for axis in reversed(range(len(self.rest))):
            taken = self.rest[axis]
            if not (isinstance(taken, slice) and taken == slice(None)):
                block = block[(slice(None),) * axis + (taken,)]
        return block


def plan_index(index: Any, shape: tuple[int, ...]) -> IndexPlan:
    """Split an index into ranges to read and a selection to apply in memory.

    Raises
    ------
    IndexError
        If it is out of bounds, has too many indices, or is of a kind that stores do not support (``None``).

    Examples
    --------
    >>> plan_index((slice(2, 8, 3), -1), (10, 4)).bounds
    ((2, 6), (3, 4))
    """
    given: list[Any] = list(index) if isinstance(index, tuple) else [index]
    at = next((i for i, one in enumerate(given) if one is Ellipsis), len(given))
    given[at : at + 1] = [slice(None)] * (len(shape) - len(given) + (at < len(given)))
    if len(given) != len(shape):
        raise IndexError(f"{len(given)} indices were given for an array of {len(shape)} dimensions.")
    axes = [_axis(one, size) for one, size in zip(given, shape, strict=True)]
    return IndexPlan(tuple(bounds for bounds, _ in axes), tuple(rest for _, rest in axes))


def _axis(index: Any, size: int) -> tuple[tuple[int, int], Any]:
    """Return the range of an axis to read, and what to select from it."""
    if isinstance(index, slice):
        taken = range(size)[index]
        ends = sorted((taken[0], taken[-1])) if taken else (0, -1)
        return (ends[0], ends[1] + 1), slice(None) if taken.step == 1 or not taken else slice(None, None, taken.step)
    places = np.asarray(index)
    if places.dtype == bool and places.shape == (size,):
        places = np.flatnonzero(places)
    if places.shape == (0,):
        return (0, 0), slice(None)
    if places.dtype.kind not in "iu" or places.ndim > 1 or places.min() < -size or places.max() >= size:
        raise IndexError(f"{brief(repr(index))} is not an index, or a list of them, within an axis of size {size}.")
    places = np.where(places < 0, places + size, places)
    lo, hi = int(places.min()), int(places.max()) + 1
    return (lo, hi), places - lo if places.ndim else 0


Shapes = Mapping[str, tuple[int, ...]]


def choose_member(path: str, member: str | None, shapes: Shapes, *, anndata: bool = False) -> str:
    """Pick the named member; else X of an AnnData file, else the only matrix: two dimensions or more, or sparse.

    Parameters
    ----------
    shapes : dict of str to shape
        Of every array there, nested groups as ``"group/name"``.
    anndata : bool
        Whether the file is marked as AnnData, in which other matrices, such as embeddings, are derived from X.

    Returns
    -------
    str
        Name of an array, or of a group of three that is one of :func:`sparse_members`.

    Raises
    ------
    MemberError
        If there is no array of that name; lists those that exist.
    ValueError
        If the choice is ambiguous, or AnnData has no X.

    Examples
    --------
    >>> choose_member("a.h5ad", None, {"X": (9, 4), "obsm/X_pca": (9, 2), "obs/_index": (9,)}, anndata=True)
    'X'
    """
    sparse = sparse_members(shapes)
    if member is not None:
        member = member.strip("/")
        if member not in shapes and member not in sparse:
            raise MemberError(
                f"{path} has no array {brief(repr(member))}; it holds {_listed(shapes)}. Name one of them with member=."
            )
        return member
    if anndata:
        if "X" not in shapes and "X" not in sparse:
            raise ValueError(
                f"{path} is AnnData without X; it holds {_listed(shapes)}. Name one of them with member=, such as "
                f'member="obsm/X_pca".'
            )
        return "X"
    wanted = [name for name, shape in shapes.items() if len(shape) >= 2] + sparse
    if len(wanted) != 1:
        also = f" ({len(sparse)} of them sparse)" if sparse else ""
        raise ValueError(
            f"{path} holds {len(wanted)} arrays with two dimensions or more{also}, so one must be named with member=: "
            f"it holds {_listed(shapes)}."
        )
    return wanted[0]


def sparse_members(shapes: Shapes) -> list[str]:
    """List the groups that are compressed sparse matrices; "" for the file itself."""
    ends = [name.removesuffix("indptr") for name in shapes if name == "indptr" or name.endswith("/indptr")]
    return [end.rstrip("/") for end in ends if all(f"{end}{part}" in shapes for part in SPARSE_PARTS)]


def _listed(shapes: Shapes) -> str:
    """List what is there: sparse matrices, then arrays, matrices first."""
    sparse = sparse_members(shapes)
    parts = {f"{name}/{part}".lstrip("/") for name in sparse for part in SPARSE_PARTS}
    arrays = sorted((name for name in shapes if name not in parts), key=lambda name: len(shapes[name]) < 2)
    found = [f"{brief(name)} (sparse)".lstrip() for name in sparse]
    found += [f"{brief(name)} {brief(shapes[name])}" for name in arrays]
    return (
        shorten(", ".join(found[:MAX_LISTED]), MAX_MESSAGE // 4) + (", ..." if len(found) > MAX_LISTED else "")
        or "nothing"
    )
