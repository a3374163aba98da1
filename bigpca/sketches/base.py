"""The sketch interface: a (d, q) matrix W that shortens rows, defined by a seed; and the cache of its parts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array

from bigpca.arrays import Array, Matrix
from bigpca.costs import BlockForm, Work
from bigpca.csr import form_of
from bigpca.errors import positive_integer
from bigpca.seeds import check_seed

CACHE_BYTES = 256 << 20
REARRANGED_BYTES = 8 << 20  # of rearranged rows, or of redrawn W, at a time
FIXED_BYTES = 1 << 20  # temporaries of building the parts: one block of random numbers and its copies


class Cache:
    """The most recently used values, up to ``limit`` bytes in total.

    Values are evicted before a new one is built, so the cache never exceeds the limit; an evicted value stays alive
    until the threads that use it are done. Other threads wait while one builds a value.

    Parameters
    ----------
    limit : int, bytes
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.RLock()
        self._values: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of all cached values."""
        with self._lock:
            return sum(nbytes for nbytes, _ in self._values.values())

    def fits(self, nbytes: int) -> bool:
        """Whether a value of this size is cached."""
        return nbytes <= self.limit

    def get(self, key: Hashable, nbytes: int, build: Callable[[], Any]) -> Any:
        """Return the value cached under ``key``, built once by the first thread that needs it.

        Parameters
        ----------
        key : everything that the value depends on.
        nbytes : its size; a value over the limit is not cached.
        build : builds it. Values are shared between threads and must not be modified.
        """
        if not self.fits(nbytes):
            return build()
        with self._lock:
            if key not in self._values:
                while self.nbytes + nbytes > self.limit:
                    self._values.popitem(last=False)
                self._values[key] = nbytes, build()
            self._values.move_to_end(key)
            return self._values[key][1]

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()


CACHE = Cache(CACHE_BYTES)


@dataclass(frozen=True)
class Sketch(ABC):
    """A (d, q) matrix W with E[W W'] = I, unless it says otherwise, applied to blocks of rows.

    W is a function of the seed and the absolute column of X, independent of chunks, workers and threads. :meth:`apply`
    multiplies by *parts* of W, which are cached per process, up to 256 MiB over all sketches; if one sketch's parts
    exceed that, they are built again for every call. Both give the same bits.

    Parameters
    ----------
    random_state : int >= 0, default 0
    """

    random_state: int = field(default=0, kw_only=True)

    accepts_csr: ClassVar[bool] = False  # or is given dense strips of sparse rows

    def __post_init__(self) -> None:
        object.__setattr__(self, "random_state", check_seed(self.random_state, "random_state"))
        self._check_fields()

    @abstractmethod
    def _check_fields(self) -> None:
        """Reject parameters that are invalid for any data, and store the others as plain ints and tuples."""

    @abstractmethod
    def _width(self, d: int) -> int:
        """Return q; raise if the sketch does not fit d columns."""

    @abstractmethod
    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        """Return rows ``start:stop`` of W."""

    @abstractmethod
    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[Any]:
        """Build the parts that :meth:`_apply` multiplies by, one after another."""

    @abstractmethod
    def _part_bytes(self, d: int, itemsize: int) -> tuple[int, int]:
        """Return the bytes of all parts, and the peak bytes of building one."""

    @abstractmethod
    def _apply(self, rows: Any, parts: Iterable[Any], out: Array) -> None:
        """Write ``rows @ W`` to ``out``. The parts come in order, and can be iterated over only once."""

    @abstractmethod
    def _work(self, rows: BlockForm) -> Work:
        """Return the operations of :meth:`_apply` per row and their time, without memory."""

    @abstractmethod
    def _scratch_bytes(self, rows: BlockForm) -> int:
        """Return the bytes that :meth:`_apply` needs besides rows, parts and out."""

    def width(self, d: int) -> int:
        """Return q, the number of columns of W, after checking that the sketch fits rows of d columns.

        Raises
        ------
        ValueError
            If q > d, or the product of a shape is not d.
        """
        return self._width(positive_integer("d", d))

    def apply(self, rows: Array | csr_array) -> Array:
        """Compute ``rows @ W`` in the precision of the rows. Safe to call from several threads.

        Parameters
        ----------
        rows : ndarray or csr_array of shape (b, d), float32 or float64
            Copied unless C-contiguous; :meth:`cost` does not count the copy. The Gaussian and the sparse sketches never
            make CSR dense; the others do so in strips of 4 MiB.

        Returns
        -------
        ndarray of shape (b, q), same dtype

        Raises
        ------
        TypeError
            If rows is not an ndarray or csr_array of float32 or float64.
        ValueError
            If it is not two-dimensional, or :meth:`width` rejects d.
        """
        given: Any = rows
        if not isinstance(given, np.ndarray | csr_array) or given.dtype not in (np.float32, np.float64):
            kind = given.dtype if isinstance(given, np.ndarray | csr_array) else type(given).__name__
            raise TypeError(
                f"rows are {kind}, but a sketch requires an ndarray of float32 or float64, or such a csr_array. "
                "Convert them."
            )
        if rows.ndim != 2:
            raise ValueError(f"rows have shape {rows.shape}, but a sketch requires (b, d). Reshape them.")
        count, d = rows.shape
        out = np.empty((count, self.width(d)), rows.dtype)
        parts = self._kept_parts(d, rows.dtype) if count else ()
        form = form_of(rows)
        parts = parts if form.shifts or self.accepts_csr else list(parts)  # which each strip goes through
        for part, first in form.parts(rows, self.accepts_csr) if count else ():
            self._apply(part, parts, out[first : first + part.shape[0]])
        return out

    def matrix(self, d: int, start: int = 0, stop: int | None = None) -> Matrix:
        """Return rows ``start:stop`` of W, one per column of X, as an array.

        Any split of the range gives the same bits. Needs 8 q (stop - start) bytes: for tests and for scaling W, not for
        :meth:`apply`.

        Parameters
        ----------
        d : columns of X.
        start, stop : 0 <= start <= stop <= d; stop = None means d.

        Returns
        -------
        ndarray of shape (stop - start, q), float64

        Raises
        ------
        ValueError
            If the range is not within d, or :meth:`width` rejects d.
        """
        self.width(d)
        end = d if stop is None else stop
        if not 0 <= start <= end <= d:
            raise ValueError(f"rows {start}:{end} of W were requested, but it has {d}. Use 0 <= start <= stop <= {d}.")
        return self._rows(d, start, end)

    def cached_bytes(self, d: int, itemsize: int) -> int:
        """Return the bytes of W cached in this process, once for all threads; 0 if W is built for every call."""
        self.width(d)
        total, _ = self._part_bytes(d, itemsize)
        return total if CACHE.fits(total) else 0

    def cost(self, rows: BlockForm) -> Work:
        """Return the memory and work that :meth:`apply` needs for a block of rows, dense or sparse.

        Returns
        -------
        Work
            The peak bytes besides its input: cache, temporaries and output; and the floating-point operations per row,
            not counting the construction of W.

        Raises
        ------
        ValueError
            If :meth:`width` rejects d.
        """
        d, itemsize = rows.columns, rows.itemsize
        output = rows.rows * self.width(d) * itemsize
        _, largest = self._part_bytes(d, itemsize)
        held = self.cached_bytes(d, itemsize) + largest + output + FIXED_BYTES
        strips, rows = rows.taken(self.accepts_csr)
        held += rows.rows * d * itemsize if strips else 0
        return Work(held + self._scratch_bytes(rows)) + self._work(rows)

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON values; :func:`bigpca.sketches.sketch_from` restores the sketch.

        They identify W, so they are part of the fingerprint of every computation that uses the sketch.
        """
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"sketch": type(self).__name__} | fields

    def _kept_parts(self, d: int, dtype: np.dtype[Any]) -> Iterable[Any]:
        """Return the parts from the cache, or build them one by one if they do not fit it."""
        total, _ = self._part_bytes(d, dtype.itemsize)
        if not CACHE.fits(total):
            return self._parts(d, dtype)
        kept: tuple[Any, ...] = CACHE.get((self, d, dtype.char), total, lambda: tuple(self._parts(d, dtype)))
        return kept


@dataclass(frozen=True)
class RandomSketch(Sketch):
    """A sketch of any q <= d columns.

    Parameters
    ----------
    q : int >= 1
    """

    q: int

    def _check_fields(self) -> None:
        object.__setattr__(self, "q", positive_integer("q", self.q))
        self._check_options()

    def _check_options(self) -> None:
        """Check the parameters other than q and the seed."""

    def _width(self, d: int) -> int:
        if self.q > d:
            raise ValueError(
                f"q = {self.q} is over the {d} columns of the data, but a sketch must not be wider than the data. "
                f"Use q <= {d}."
            )
        return self.q


def spans(total: int, step: int) -> Iterator[tuple[int, int]]:
    """Split ``range(total)`` into spans of ``step``; the last may be shorter."""
    return ((start, min(start + step, total)) for start in range(0, total, step))
