"""What every sketch is: a (d, q) matrix W that makes rows short, known by a seed instead of being stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigpca.seeds import check_seed
from bigpca.sketches.cache import CACHE

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
TILE_BYTES = 8 << 20  # of rows laid out anew, or of W drawn anew, at a time
FIXED_BYTES = 1 << 20  # what building draws on beside the parts themselves: one block of random numbers and its copies


@dataclass(frozen=True)
class Sketch(ABC):
    """A (d, q) matrix W with E[W W'] = I (up to :meth:`dot_product_bias`), applied to blocks of rows.

    W is a function of the seed and the absolute column of X: chunks, workers and threads cannot change it. What
    :meth:`apply` multiplies by is made of *parts*; they are kept per process, up to 256 MiB over all sketches, and made
    again at every call where one sketch's parts exceed that. Both give the same bits.

    Parameters
    ----------
    seed : int >= 0
    """

    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        self._check_fields()

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether the mean of <W'x, W'y> over seeds is x'y for every x and y."""

    @abstractmethod
    def flops_per_row(self, d: int) -> int:
        """Floating-point operations that one row of d columns costs, the making of W left out."""

    @abstractmethod
    def _check_fields(self) -> None:
        """Refuse parameters that suit no data, and store the others as plain ints and tuples."""

    @abstractmethod
    def _width(self, d: int) -> int:
        """Return q, or refuse d."""

    @abstractmethod
    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        """Return rows ``start:stop`` of W."""

    @abstractmethod
    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[Any]:
        """Make what :meth:`_apply` multiplies by, part by part."""

    @abstractmethod
    def _part_bytes(self, d: int, itemsize: int) -> tuple[int, int]:
        """Return the bytes of all parts, and the most that one takes while it is made."""

    @abstractmethod
    def _apply(self, rows: NDArray[Any], parts: Iterable[Any], out: NDArray[Any]) -> None:
        """Write ``rows @ W`` to ``out``. The parts come in their order, and can be gone through only once."""

    @abstractmethod
    def _scratch_bytes(self, d: int, rows: int, itemsize: int) -> int:
        """Return the bytes that :meth:`_apply` takes beside rows, parts and out."""

    @abstractmethod
    def _moments(self, x: Matrix, y: Matrix) -> tuple[Vector, Vector]:
        """Return bias and variance of <W'x, W'y> over seeds, for each pair of rows."""

    def width(self, d: int) -> int:
        """Return q, the columns of W, after checking that the sketch suits rows of d columns.

        Raises
        ------
        ValueError
            When q > d, or a shape does not multiply to d.
        """
        return self._width(positive_integer("d", d))

    def apply(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Compute ``rows @ W``, in the precision of the rows; from several threads at once if you like.

        Parameters
        ----------
        rows : ndarray of shape (b, d), float32 or float64
            Copied, at a cost that :meth:`apply_bytes` leaves out, unless C-contiguous.

        Returns
        -------
        ndarray of shape (b, q), same dtype

        Raises
        ------
        TypeError
            When rows is not an ndarray of float32 or float64.
        ValueError
            When it is not two-dimensional, or :meth:`width` refuses d.
        """
        given: Any = rows
        if not isinstance(given, np.ndarray) or given.dtype not in (np.float32, np.float64):
            kind = given.dtype if isinstance(given, np.ndarray) else type(given).__name__
            raise TypeError(f"rows are {kind}, but a sketch needs an ndarray of float32 or float64. Convert them.")
        if rows.ndim != 2:
            raise ValueError(f"rows have shape {rows.shape}, but a sketch needs (b, d). Reshape them.")
        d = rows.shape[1]
        out = np.empty((len(rows), self.width(d)), rows.dtype)
        if len(rows):
            self._apply(rows, self._kept_parts(d, rows.dtype), out)
        return out

    def matrix(self, d: int, start: int = 0, stop: int | None = None) -> Matrix:
        """Return rows ``start:stop`` of W, one for each column of X, as an array.

        The same bits however the range is cut. Takes 8 q (stop - start) bytes: for tests and for scaling W, not for
        :meth:`apply`.

        Parameters
        ----------
        d : columns of X.
        start, stop : 0 <= start <= stop <= d; to the last column where stop is None.

        Returns
        -------
        ndarray of shape (stop - start, q), float64

        Raises
        ------
        ValueError
            When the range is not within d, or :meth:`width` refuses d.
        """
        self.width(d)
        end = d if stop is None else stop
        if not 0 <= start <= end <= d:
            raise ValueError(f"rows {start}:{end} of W were asked for, but it has {d}. Use 0 <= start <= stop <= {d}.")
        return self._rows(d, start, end)

    def cached_bytes(self, d: int, itemsize: int) -> int:
        """Bytes of W that stay in this process between calls, once for all threads; 0 where W is made at every call."""
        self.width(d)
        total, _ = self._part_bytes(d, itemsize)
        return total if CACHE.fits(total) else 0

    def apply_bytes(self, d: int, rows: int, itemsize: int) -> int:
        """Peak bytes of :meth:`apply` beside its input: what stays cached, temporaries and output.

        Parameters
        ----------
        d : columns of X.
        rows : rows of one block.
        itemsize : 4 or 8, bytes of one number.
        """
        _, largest = self._part_bytes(d, itemsize)
        output = rows * self.width(d) * itemsize
        return self.cached_bytes(d, itemsize) + largest + self._scratch_bytes(d, rows, itemsize) + output + FIXED_BYTES

    def dot_product_variance(self, x: ArrayLike, y: ArrayLike) -> Vector:
        """Return the variance of <W'x, W'y> over seeds, in closed form.

        Parameters
        ----------
        x, y : vectors of length d, or as many rows of that length each.

        Returns
        -------
        float64 ndarray of shape () or (rows,)

        Raises
        ------
        ValueError
            When their shapes differ, or :meth:`width` refuses d.
        """
        return self._moments_of(x, y)[1]

    def dot_product_bias(self, x: ArrayLike, y: ArrayLike) -> Vector:
        """Return the mean of <W'x, W'y> over seeds, less x'y; arguments, shapes and errors as for the variance."""
        return self._moments_of(x, y)[0]

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON values; :func:`bigpca.sketches.sketch_from` makes the sketch again.

        It identifies W, so it belongs in every fingerprint of a computation that uses the sketch.
        """
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"sketch": type(self).__name__} | fields

    def _kept_parts(self, d: int, dtype: np.dtype[Any]) -> Iterable[Any]:
        """Return the parts from the cache, or as they are made where they do not fit it."""
        total, _ = self._part_bytes(d, dtype.itemsize)
        if not CACHE.fits(total):
            return self._parts(d, dtype)
        kept: tuple[Any, ...] = CACHE.get((self, d, dtype.char), total, lambda: tuple(self._parts(d, dtype)))
        return kept

    def _moments_of(self, x: ArrayLike, y: ArrayLike) -> tuple[Vector, Vector]:
        left, right = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if left.shape != right.shape or left.ndim not in (1, 2):
            raise ValueError(
                f"x has shape {left.shape} and y {right.shape}, but two vectors, or as many rows of each, are needed."
            )
        self.width(left.shape[-1])
        bias, variance = self._moments(np.atleast_2d(left), np.atleast_2d(right))
        return bias.reshape(left.shape[:-1]), variance.reshape(left.shape[:-1])


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

    @abstractmethod
    def _check_options(self) -> None:
        """Refuse the parameters beside q and the seed."""

    def _width(self, d: int) -> int:
        if self.q > d:
            raise ValueError(
                f"q = {self.q} is over the {d} columns of the data, but a sketch must not be wider than what it "
                f"shortens. Use q <= {d}."
            )
        return self.q


def positive_integer(name: str, value: Any) -> int:
    """Return ``value`` as an int, or refuse it under this name.

    Raises
    ------
    TypeError, ValueError
        When it is not an integer, or below 1.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} = {value!r} is a {type(value).__name__}, but an integer of at least 1 is needed.")
    if value < 1:
        raise ValueError(f"{name} = {value} is below 1, but an integer of at least 1 is needed.")
    return int(value)


def pair_products(x: Matrix, y: Matrix) -> tuple[Vector, Vector, Vector]:
    """Return x'y, |x|^2 |y|^2 and sum_i x_i^2 y_i^2 of each pair of rows: what all variances are made of."""
    dots = np.einsum("ij,ij->i", x, y)
    norms = np.einsum("ij,ij->i", x, x) * np.einsum("ij,ij->i", y, y)
    products = x * y
    return dots, norms, np.einsum("ij,ij->i", products, products)


def spans(total: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut ``range(total)`` into spans of ``step``, the last one shorter."""
    return ((start, min(start + step, total)) for start in range(0, total, step))
