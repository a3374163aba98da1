"""Other array libraries of the array API standard: rows that are on a device, and what a task does there."""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from bigpca.arrays import STRIP, Array, DType, Vector, add_outer_upper
from bigpca.blas import during
from bigpca.errors import brief

LIBRARIES = ("torch", "cupy", "jax", "array_api_strict")

STAYING = ("bool", "int8", "int16", "int32", "uint8", "float16", "float32", "float64")  # dtypes of rows on a device


@cache
def _library(name: str) -> Any:
    return import_module(name)


class RowsThere:
    """Rows of another array library on one of its devices, with NumPy's names for what reading does to them.

    Slices, copies and conversions stay on the device. NumPy does everything else, to a copy in the host's memory:
    ``numpy.asarray(rows)``.

    Parameters
    ----------
    array : array of shape (b, ...)
    place : str
        Library and device, as :func:`bigpca.config` names them.
    stream : stream of the library, or None
        In which the rows are made; None for that of this thread.
    """

    def __init__(self, array: Any, place: str, stream: Any = None) -> None:
        self.array, self.place, self.stream = array, place, stream or _stream(array, place)

    @classmethod
    def of(cls, array: Any) -> RowsThere | None:
        """Return an array on a device; None for one that NumPy reads or copies, or without array-api-compat."""
        place = _place_of(array)
        if place is None or find_spec("array_api_compat") is None:
            return None
        rows = cls(array.detach() if hasattr(array, "detach") else array, place)
        dtype = str(array.dtype).rpartition(".")[2]
        if dtype == "bfloat16":  # float32 represents each value
            return rows.astype(np.float32)
        return rows if dtype in STAYING else None

    @property
    def xp(self) -> Any:
        """The library's functions, as the array API standard names them."""
        return _xp(self.array)

    @property
    def finite(self) -> bool:
        """Whether no value is NaN or infinite."""
        return bool(self.xp.all(self.xp.isfinite(self.array)))

    @property
    def dtype(self) -> DType:
        """NumPy's dtype of the values."""
        return np.dtype(str(self.array.dtype).rpartition(".")[2])

    @property
    def shape(self) -> tuple[int, ...]:
        """(b, ...)."""
        return tuple(self.array.shape)

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.array.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Copy the rows to the host's memory."""
        return np.asarray(host_array(self.array), dtype)

    def __getitem__(self, index: Any) -> RowsThere:
        """Return a row, or the rows of a slice, a mask or a list of numbers."""
        if isinstance(index, slice):
            index = slice(*index.indices(len(self)))  # the standard does not define others
        if not isinstance(index, np.ndarray):
            return RowsThere(self.array[index, ...], self.place, self.stream)
        numbers = np.flatnonzero(index) if index.dtype == bool else index
        return RowsThere(self.xp.take(self.array, self.put(numbers), axis=0), self.place, self.stream)

    def __setitem__(self, index: Any, rows: RowsThere | Array) -> None:
        """Copy rows to a slice."""
        array = rows.array if isinstance(rows, RowsThere) else self.put(rows)
        if hasattr(self.array, "at"):  # of JAX, whose arrays do not change
            self.array = self.array.at[index].set(array)
        else:
            self.array[index, ...] = array

    def put(self, values: Array) -> Any:
        """Return an array beside the rows."""
        return beside(self.array, values)

    def room(self, rows: int, dtype: DType) -> RowsThere:
        """Return rows beside these, (rows, d), whose values are not set."""
        xp, device = self.xp, _library("array_api_compat").device(self.array)
        shape = rows, *self.shape[1:]
        return RowsThere(xp.empty(shape, dtype=getattr(xp, dtype.name), device=device), self.place)

    def reshape(self, *shape: int) -> RowsThere:
        """Return the rows in another shape."""
        return RowsThere(self.xp.reshape(self.array, shape), self.place, self.stream)

    def astype(self, dtype: Any, copy: bool = True) -> RowsThere:
        """Return the rows in another dtype."""
        xp = self.xp
        with _library("jax").enable_x64(True) if self.place.startswith("jax") else nullcontext():
            array = xp.astype(self.array, getattr(xp, np.dtype(dtype).name), copy=copy)
        return RowsThere(array, self.place, self.stream)

    def settle(self) -> None:
        """Have the stream of this thread wait for that in which the rows were made, which it may be itself."""
        own = _stream(self.array, self.place)
        if own == self.stream:
            return
        if self.place.startswith("torch"):
            own.wait_stream(self.stream)
            self.array.record_stream(own)  # their memory is used again after what this stream does with them
        else:
            self.array.device.synchronize()

    @staticmethod
    def joined(parts: Any) -> RowsThere:
        """Return rows (b, d) of blocks of rows and columns, ``parts[i][j]``."""
        first = parts[0][0]
        lines = [first.xp.concat([one.array for one in line], axis=1) if line[1:] else line[0].array for line in parts]
        return RowsThere(first.xp.concat(lines, axis=0), first.place)


def _stream(array: Any, place: str) -> Any:
    """Return the stream of this thread on the device of an array; None where its library has none."""
    if place.startswith("torch:cuda"):
        return _library("torch").cuda.current_stream(array.device)
    return _library("cupy").cuda.get_current_stream() if place.startswith("cupy") else None


def _place_of(array: Any) -> str | None:
    """Return library and device of an array that is not in the host's memory; None for all others."""
    library = type(array).__module__.partition(".")[0].replace("jaxlib", "jax")
    if library not in LIBRARIES or str(getattr(array, "layout", "")).startswith("torch.sparse"):
        return None
    if library == "jax" and len(array.devices()) > 1:  # in parts
        return None
    where = _where(array)
    return None if "cpu" in where.lower() else f"{library}:{where}"


def _where(array: Any) -> str:
    """Return the name of an array's device: of cuda:0, <CUDA Device 0>, or array_api_strict.Device('device1')."""
    return re.sub(r".*Device[ (']*|[>')]*$", "", str(getattr(array, "device", "cpu")))


def host_array(array: Any) -> Array:
    """Return an array or a tensor as a NumPy array in the host's memory, without importing its library."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        try:
            return np.asarray(array)
        except (TypeError, RuntimeError):  # NumPy has no such dtype
            return np.asarray(array.float())
    if type(array).__module__.startswith("array_api_strict"):
        array = array.to_device(import_module("array_api_strict").Device("CPU_DEVICE"))
    return np.asarray(array.get() if is_on_gpu(array) else array)


def is_on_gpu(array: Any) -> bool:
    """Whether this is an array of CuPy."""
    return hasattr(array, "__cuda_array_interface__") and hasattr(array, "get")


BYTES_THERE = 256 << 20  # of a tile, at most: a device has no cache to hold it, and is asked for few of them
SLAB_BYTES_THERE = 1024 << 20  # of rows that are there, at most: to ask for a block takes longer than its products
SLABS_THERE = 64  # that its memory could hold at least
MEMORY_THERE = 16 << 30  # of a device whose library does not report it
STAGED_BYTES = 1 << 20  # of host memory, from which a transfer goes through pinned buffers
SUMMED_ROWS = 8192  # whose product is summed in their own precision
PAIRED = 128  # rows that are summed in their own precision
MARK_EXPONENT = 60  # of the factor of values that are summed to find out whether they are finite: no sum overflows
FLOAT32_EXPONENT = 120  # beyond which a power of two is not used to scale
_thread = threading.local()  # what each thread has under way


def _transferred(values: Array, device: str) -> tuple[Any, Any]:
    """Return a copy of values on a GPU of torch, made beside other work through one of two pinned buffers, and the
    stream in which it is made.
    """
    torch = _library("torch")
    events, stream = _thread.__dict__.setdefault("events", deque()), _transfers(device)
    if len(events) == 2:  # torch uses the buffer of a transfer that is done again
        events.popleft().synchronize()
    with torch.cuda.stream(stream):
        buffer = torch.empty(values.shape, dtype=getattr(torch, values.dtype.name), pin_memory=True)
        np.copyto(buffer.numpy(), values)
        copy = buffer.to(device, non_blocking=True)
        events.append(stream.record_event())
    return copy, stream


@cache
def _transfers(device: str) -> Any:
    """Return the stream of transfers to a GPU of torch."""
    return _library("torch").cuda.Stream(device)


@dataclass(frozen=True)
class Device:
    """An array library of the array API standard, on one of its devices: what a task does to a block there.

    Blocks are transferred once, and checked and shifted there. States stay on the device in float64, and are fetched to
    be stored, sent or solved. Functions return their result, as arrays of JAX cannot be changed. The record is
    picklable: it names the library and the device.

    Attributes
    ----------
    library : str
        "torch", "cupy", "jax" or "array_api_strict".
    place : str
        Name of the device in that library; empty for its default.
    """

    library: str
    place: str = ""

    @property
    def name(self) -> str:
        """The setting that chooses it."""
        return f"{self.library}:{self.place}" if self.place else self.library

    @property
    def reads_too(self) -> bool:
        """Whether the thread that drives it may make batches too: they would see the precision that JAX is set to."""
        return self.library != "jax"

    @classmethod
    @cache  # a look at a device waits for it
    def of(cls, name: str) -> Device:
        """Return the device that the setting ``arithmetic`` names.

        Raises
        ------
        ValueError
            For another library, or a device that it does not have.
        ImportError
            If the library, or array-api-compat, is not installed.
        """
        library, _, place = name.partition(":")
        if library not in LIBRARIES:
            raise ValueError(
                f'arithmetic = {name!r}; "numpy" was expected, or one of {", ".join(LIBRARIES)} with a device, such as '
                '"torch:cuda".'
            )
        for module in (library, "array_api_compat"):
            if find_spec(module) is None:
                package = module.replace("_", "-")
                raise ImportError(
                    f"arithmetic = {name!r} needs {package}, which is not installed: pip install {package}."
                )
        device = cls(library, place)
        try:
            device.fetch(device.put(np.zeros(1, np.float32)))
        except Exception as error:  # each library has its own
            raise ValueError(
                f"arithmetic = {name!r}: {library} cannot use that device ({brief(error)}). Choose another one."
            ) from error
        return device

    @classmethod
    def summing(cls, name: str) -> Device | None:
        """Return the device of a name on which blocks are summed; None for one without float64, where NumPy does."""
        device = cls.of(name)
        return device if device.has_float64 else None

    @cached_property
    def has_float64(self) -> bool:
        """Whether it has float64, in which sums are: else their last digits would depend on the order of rows."""
        try:
            return bool(self.fetch(self.zeros((1,))).dtype == np.float64)
        except Exception:  # each library has its own
            return False

    @classmethod
    def holding(cls, rows: RowsThere) -> Device:
        """Return the device on which rows are."""
        library, _, place = rows.place.partition(":")
        return cls(library, place)

    @classmethod
    def of_array(cls, array: Any) -> Device:
        """Return the device of an array of another library."""
        library = type(array).__module__.partition(".")[0].replace("jaxlib", "jax")
        return cls(library, _where(array))

    @property
    def xp(self) -> Any:
        """The library's functions, as the standard names them."""
        if self.library in ("torch", "cupy"):  # whose own functions differ from the standard's
            return _library(f"array_api_compat.{self.library}")
        return _library("jax.numpy" if self.library == "jax" else self.library)

    @property
    def _device(self) -> Any:
        if self.library == "array_api_strict":
            return _library(self.library).Device(self.place or "CPU_DEVICE")
        if self.library == "jax":
            kind, _, number = self.place.partition(":")
            return _library("jax").devices(kind or None)[int(number or 0)]
        if self.library == "cupy":
            return _library("cupy").cuda.Device(int(self.place or 0))
        return self.place or "cpu"

    @property
    def memory(self) -> tuple[int, int] | None:
        """Bytes of the device that are free, and all of them; None where its library does not report it."""
        if self.library == "torch" and self.place.startswith("cuda"):
            cuda, where = _library("torch").cuda, self.place  # what torch holds for later arrays is free too
            free, total = cuda.mem_get_info(where)
            return int(free + cuda.memory_reserved(where) - cuda.memory_allocated(where)), int(total)
        if self.library == "cupy":
            with self._device:
                free, total = self._device.mem_info
                return int(free + _library("cupy").get_default_memory_pool().free_bytes()), int(total)
        stats = self._device.memory_stats() if self.library == "jax" else None  # None on a CPU
        return (int(stats["bytes_limit"] - stats["bytes_in_use"]), int(stats["bytes_limit"])) if stats else None

    def share(self, parts: int, most: int) -> int:
        """Return one of so many parts of the device's memory, rounded down to a power of two, or ``most`` bytes.

        It is the same on all devices of a kind, whatever is free, as the bits of sums depend on it.
        """
        memory = self.memory
        return min(most, 1 << ((MEMORY_THERE if memory is None else memory[1]) // parts).bit_length() - 1)

    @property
    def slab_bytes(self) -> int:
        """Bytes of the rows on the device that are multiplied at a time."""
        return self.share(SLABS_THERE, SLAB_BYTES_THERE)

    @property
    def identity(self) -> dict[str, object]:
        """What the last bits of sums on it depend on."""
        return {"arithmetic": self.name, "slab_bytes": self.slab_bytes}

    @contextmanager
    def precise(self) -> Iterator[None]:
        """In a block of statements: multiply float32 in float32, not in TF32; have float64; name lack of memory.

        Raises
        ------
        MemoryError
            If the memory of the device does not suffice.
        """
        if getattr(_thread, "precise", "") == self.name:  # a surrounding block of statements has seen to it
            yield
            return
        _thread.precise, before = self.name, getattr(_thread, "precise", "")
        try:
            if self.library == "jax":
                jax = _library("jax")
                with jax.enable_x64(True), jax.default_matmul_precision("highest"):
                    yield
            elif self.library in ("torch", "cupy"):
                with _without_tf32(self.library):
                    yield
            else:
                yield
        except Exception as error:  # each library has its own
            if not re.search("out ?of ?memory|RESOURCE_EXHAUSTED", f"{type(error).__name__} {error}", re.IGNORECASE):
                raise
            raise MemoryError(
                f"the memory of {self.name} does not hold a block and its sums ({brief(error)}). Free some of it, "
                'fit fewer columns, or use arithmetic="numpy".'
            ) from error
        finally:
            _thread.precise = before

    def put(self, values: Any) -> Any:
        """Return an array on the device, also one that is there."""
        if isinstance(values, RowsThere):
            return _library("array_api_compat").to_device(values.array, self._device)
        if not isinstance(values, np.ndarray):
            return values
        xp = self.xp
        if self.library == "torch":
            # CUDA copies what is not pinned before it returns; torch would wait for all work besides.
            pending, here = self.place.startswith("cuda"), np.require(values, requirements=["C", "W"])
            return xp.from_numpy(here).to(self._device, non_blocking=pending)
        with self.precise():  # elsewhere JAX makes float32 of float64
            return xp.asarray(values, device=self._device)

    def rows(self, values: Any) -> Any:
        """Return rows as RowsThere on the device: those of this process may still be on their way there."""
        staged = self.library == "torch" and self.place.startswith("cuda")  # JAX names its devices so too
        if staged and isinstance(values, np.ndarray) and values.nbytes >= STAGED_BYTES:
            copy, stream = _transferred(values, self.place)
            return RowsThere(copy, self.name, stream)
        own = isinstance(values, RowsThere) and values.place == self.name
        return values if own else RowsThere(self.put(values), self.name)

    def sent(self, values: Any) -> Any:
        """Return rows of this process, in a dtype that the device takes, on their way to it; others as they are."""
        return self.rows(values) if isinstance(values, np.ndarray) and self.takes(values.dtype) else values

    def takes(self, dtype: DType) -> bool:
        """Whether rows of a dtype are transferred as they are: the standard leaves float16 to each library."""
        return dtype.name in STAYING and hasattr(self.xp, dtype.name)

    def floats(self, values: Any, dtype: DType) -> Any:
        """Return values of the device in a floating-point dtype of NumPy."""
        return self.xp.astype(values, getattr(self.xp, dtype.name), copy=False)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Return zeros in float64."""
        with self.precise():
            xp = self.xp
            return xp.zeros(shape, dtype=xp.float64, device=self._device)

    def fetch(self, array: Any) -> Array:
        """Return an array of the device in this process."""
        return host_array(array)

    def dtype_of(self, array: Any) -> DType:
        """Return the dtype that NumPy has for an array of the device."""
        return np.dtype(f"f{self.xp.finfo(array.dtype).bits // 8}")

    def sums(self, values: Any, weights: Vector | None = None, *, power: int = 1, axis: int = 0) -> Any:
        """Return sums of (weighted) rows V (b, d), or of their squares, along an axis, in float64."""
        with self.precise():
            xp, V = self.xp, self.put(values)
            if weights is None and V.dtype == xp.float32 and V.shape[axis] >= PAIRED:
                # In the precision of the rows for 128 of them, as in this process: a third of the memory traffic.
                (b, d), whole = V.shape, V.shape[axis] // PAIRED * PAIRED
                V = V if power == 1 else V * V
                first, rest = (V[:whole, :], V[whole:, :]) if axis == 0 else (V[:, :whole], V[:, whole:])
                parts = xp.sum(xp.reshape(first, (-1, PAIRED, d) if axis == 0 else (b, -1, PAIRED)), axis=1 + axis)
                total = xp.sum(parts, axis=axis, dtype=xp.float64)
                return total if whole == (b, d)[axis] else total + xp.sum(rest, axis=axis, dtype=xp.float64)
            V = xp.astype(V, xp.float64, copy=False)
            V = V if power == 1 else V * V
            return xp.sum(V if weights is None else V * self.put(weights)[:, None], axis=axis)

    def squares(self, values: Any, weights: Vector | None, scale: Any) -> Any:
        """Return the (weighted) sums of squares (d,) of rows, in float64; the rows are scaled by a power of two."""
        xp, V = self.xp, self.put(values)
        V = V if V.dtype == xp.float64 else V * scale
        found = self.sums(V, weights, power=2)
        return found if V.dtype == xp.float64 else found / scale / scale

    def largest(self, values: Any, axis: int | None) -> Any:
        """Return the largest magnitudes along an axis, in one read where the library needs no copy for that."""
        xp, V = self.xp, self.put(values)
        if self.library in ("torch", "jax"):
            return xp.linalg.vector_norm(V, axis=axis, ord=np.inf)
        return xp.maximum(xp.max(V, axis=axis), -xp.min(V, axis=axis))

    def power_of_two(self, values: Any, axis: int | None = None) -> Any:
        """Return powers of two, in the dtype of V (b, d), by which the largest, or those of columns, come to about 1.

        Products of float32 numbers then neither overflow nor vanish, and scaling rounds nothing: so no block has to be
        looked at from here before it is multiplied. A group has the scale of its first block.
        """
        xp, V = self.xp, self.put(values)
        most = xp.astype(self.largest(V, axis), xp.float64)
        usable = xp.isfinite(most) & (most > 0)
        exponent = xp.floor(xp.log2(xp.where(usable, most, xp.ones_like(most))))
        exponent = xp.clip(exponent, -FLOAT32_EXPONENT, FLOAT32_EXPONENT)
        # Rounded to float32, in which a power of two is exact even where a library's pow is not.
        return xp.astype(xp.astype(xp.pow(xp.full_like(most, 2.0), -exponent), xp.float32), V.dtype)

    def shifted(self, rows: RowsThere, shift: Any | None, dtype: DType) -> tuple[RowsThere, Any]:
        """Return rows in a dtype less a shift (d,), or less the mean of their finite values, and that shift in float64.

        The mean of complete rows, if there are some, as of :func:`bigpca.passes.reading.blocks.group_shift`.

        The shift is rounded to the dtype first, so that the subtraction is all that rounds; one that is there was
        returned by this.
        """
        with self.precise():
            xp, V, given = self.xp, self.floats(self.put(rows), dtype), shift
            there = given is not None and not isinstance(given, np.ndarray)
            if shift is None:
                finite = xp.isfinite(V)
                complete = xp.all(finite, axis=1, keepdims=True)
                finite = finite & (complete | ~xp.any(complete))
                counts = self.sums(xp.astype(finite, V.dtype))
                shift = self.sums(xp.where(finite, V, xp.zeros_like(V))) / xp.where(counts > 0, counts, 1.0)
                shift = xp.where(xp.isfinite(shift), shift, xp.zeros_like(shift))
            s = self.floats(self.put(shift), dtype)
            return RowsThere(V - s, self.name), given if there else xp.astype(s, xp.float64)

    def marks(self, rows: Any) -> Any:
        """Return a number for each row of (b, d), which is finite exactly if all its values are."""
        with self.precise():
            xp, V = self.xp, self.put(rows)
            return xp.matmul(V, xp.full((V.shape[1],), 2.0**-MARK_EXPONENT, dtype=V.dtype, device=self._device))

    def all_finite(self, arrays: list[Any]) -> bool:
        """Whether all values of some arrays are finite, which takes one look."""
        with self.precise():
            xp = self.xp
            vectors = [one for one in arrays if one.ndim == 1]  # as one: to ask for each takes longer than to look
            joined = ([xp.concat(vectors)] if vectors else []) + [one for one in arrays if one.ndim != 1]
            return bool(xp.all(xp.stack([xp.all(xp.isfinite(one)) for one in joined])))

    def add_gram(self, total: Any, values: Any, scale: Any | None, weights: Vector | None = None) -> Any:
        """Return ``total + V'W V`` (d, d) of rows V (b, d), whose memory may be that of total; the sum is in float64.

        The product is in the precision of the rows; of columns that are multiplied by ``scale`` (d,), if one is given.
        """
        with self.precise():
            xp, V = self.xp, self.put(values)
            if weights is not None:
                V = V * xp.astype(self.put(np.sqrt(weights)), V.dtype)[:, None]
            V = V if scale is None else V * scale
            total += self.product(V, V)
            return total

    def product(self, V: Any, Z: Any) -> Any:
        """Return ``V'Z`` in float64; 8,192 rows are summed in the precision of the rows, as in this process."""
        xp, b = self.xp, V.shape[0]
        whole = b // SUMMED_ROWS * SUMMED_ROWS
        if V.dtype == xp.float64 or whole < 2 * SUMMED_ROWS:
            return xp.astype(xp.matmul(xp.matrix_transpose(V), Z), xp.float64, copy=False)
        first, second = (xp.reshape(one[:whole, :], (-1, SUMMED_ROWS, one.shape[1])) for one in (V, Z))
        product = xp.sum(xp.matmul(xp.matrix_transpose(first), second), axis=0, dtype=xp.float64)
        return product if whole == b else product + self.product(V[whole:, :], Z[whole:, :])

    def add_products(self, total: Any, sums: Any, values: Any, Q: Any, weights: Vector | None) -> tuple[Any, Any]:
        """Return ``total + V'W Z`` (d, l), and ``sums + 1'W Z`` (l,), for ``Z = V Q`` with thin Q (d, l) on the device.

        Products are in the precision of the rows V (b, d) and of Q, sums in float64; W are the weights of the rows.
        """
        with self.precise():
            xp, V = self.xp, self.put(values)
            Z = xp.matmul(V, Q)
            if weights is not None:
                Z = Z * xp.astype(self.put(weights), V.dtype)[:, None]
            total += self.product(V, Z)
            return total, sums + xp.sum(Z, axis=0, dtype=xp.float64)

    def scores(
        self,
        rows: Array,
        mean: Vector,
        axes: Array,
        *,
        rest: Vector | None = None,
        factors: Vector | None = None,
        residuals: bool = False,
    ) -> tuple[Array, Vector | None]:
        """Return ``Z = V A`` (b, k) of ``V = (rows - mean + rest) factors`` (b, d), in the precision of A (d, k); and,
        with ``residuals``, ``|V - Z A'|^2`` (b,) in float64 for orthonormal columns of A.

        The rows are transferred once.
        """
        with self.precise():
            xp, A = self.xp, self.put(axes)
            # Centred first: a difference of products would lose the digits of rows far from zero.
            V = self.put(rows.astype(axes.dtype, copy=False)) - self.put(mean)
            V = V if rest is None else V + self.put(rest)
            V = V if factors is None else V * self.put(factors)
            Z = xp.matmul(V, A)
            if not residuals:
                return self.fetch(Z), None
            left = xp.astype(V - xp.matmul(Z, xp.matrix_transpose(A)), xp.float64)
            return self.fetch(Z), self.fetch(xp.sum(left * left, axis=1))


def unscaled(S: Any, scale: Any) -> Any:
    """Return a sum of products (d, d) without the scale (d,) of both columns, whose product may be out of range."""
    return S / scale[:, None] / scale


def tile_bytes(device: Device | None) -> int:
    """Return the bytes of a tile on a device, or of a usual one."""
    return BYTES_THERE if device is None else device.share(SLABS_THERE, BYTES_THERE)


def gram_bytes(d: int, rows: int, itemsize: int) -> int:
    """Return what adding the product of rows with themselves to a sum (d, d) takes of a device, with the sum."""
    pieces = 1 if itemsize == 8 else max(1, rows // SUMMED_ROWS)
    return (8 + 12 * pieces) * d * d


def library_on(device: Device | None) -> Any:
    """Return the library of arrays that are on a device, or in this process."""
    return np if device is None else device.xp


def beside_those_on(device: Device | None, values: Array) -> Any:
    """Return an array beside others that are on a device, or in this process."""
    return values if device is None else device.put(values)


def precisely(device: Device | None) -> AbstractContextManager[None]:
    """Return what statements run in that may multiply on a device."""
    return nullcontext() if device is None else device.precise()


_driving = threading.RLock()


def driving(device: Device | None) -> AbstractContextManager[object]:
    """Return what statements run in whose arrays take most of a device's memory: one thread at a time."""
    return nullcontext() if device is None else _driving


SOLVED_THERE = 1024  # size of a matrix from which its eigenproblem is solved on the device of the fit
_solving: ContextVar[Device | None] = ContextVar("device of solves", default=None)


def solving_on(device: Device | None) -> AbstractContextManager[None]:
    """Solve large problems on a device, in a block of statements; None leaves what is set."""
    return during(_solving, device or _solving.get())


def device_of_solve(d: int) -> Device | None:
    """Return the device that solves a problem with a (d, d) matrix, which depends on d alone; None for this process."""
    return _solving.get() if d >= SOLVED_THERE else None


def pack_upper(S: Any) -> Vector:
    """Return the packed upper triangle of a matrix (d, d) of another library."""
    xp, d = _xp(S), S.shape[0]
    strips = [xp.reshape(S[i : min(i + STRIP, d), i:], (-1,)) for i in range(0, d, STRIP)]
    return host_array(xp.concat(strips)) if strips else np.zeros(0)


def diagonal_of(S: Any) -> Vector:
    """Return the diagonal (d,) of a matrix of any library."""
    return np.diagonal(S).copy() if isinstance(S, np.ndarray) else host_array(_xp(S).linalg.diagonal(S))


def plus_outer(S: Any, factor: float, vector: Vector) -> Any:
    """Return ``S + factor vector vector'``; of NumPy's, the upper triangle in place."""
    if isinstance(S, np.ndarray):
        add_outer_upper(S, factor, vector)
        return S
    v = beside(S, vector)
    return S + (factor * v)[:, None] * v


def divided_by(S: Any, scale: Vector) -> Any:
    """Return ``S_ij / (scale_i scale_j)``; of NumPy's, the upper triangle in place."""
    if not isinstance(S, np.ndarray):
        s = beside(S, scale)
        return S / s[:, None] / s
    for i in range(0, len(S), STRIP):
        S[i : i + STRIP, i:] /= scale[i : i + STRIP, None] * scale[i:]
    return S


def beside(S: Any, values: Array) -> Any:
    """Return values as an array of the library and on the device of another one."""
    return _xp(S).asarray(values, device=_library("array_api_compat").device(S))


def _xp(S: Any) -> Any:
    return _library("array_api_compat").array_namespace(S)


MIN_SQUARE, MAX_SQUARE = 1e-28, 1e38  # the range in which float32 holds sums of squares
_TF32 = threading.Lock()
_exact: Counter[str] = Counter()  # threads that multiply without TF32, by library
_restore: dict[str, Callable[[], None]] = {}


@contextmanager
def _without_tf32(library: str) -> Iterator[None]:
    """Multiply float32 in float32 while any thread multiplies; the switches are the process's."""
    with _TF32:
        if not _exact[library]:
            _restore[library] = (_torch_exact if library == "torch" else _cupy_exact)()
        _exact[library] += 1
    try:
        yield
    finally:
        with _TF32:
            _exact[library] -= 1
            if not _exact[library]:
                _restore[library]()


def _torch_exact() -> Callable[[], None]:
    """Switch TF32 off, and bfloat16 on a CPU; return what sets the switches as they were."""
    torch = _library("torch")
    own: tuple[Any, Any] = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)
    newer = [(flags, flags.fp32_precision) for flags in own if hasattr(flags, "fp32_precision")]  # from torch 2.9 on
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # where only a newer switch was set
        older = "highest"
    torch.set_float32_matmul_precision("highest")

    def restore() -> None:
        torch.set_float32_matmul_precision(older)
        for flags, precision in newer:
            flags.fp32_precision = precision

    return restore


def _cupy_exact() -> Callable[[], None]:
    """Switch TF32 off; return what sets the switch as it was."""
    products = import_module("cupy._core._routines_linalg")  # CuPy's only switch besides CUPY_TF32
    own = products.get_compute_type(np.float32)
    products.set_compute_type(np.float32, products.COMPUTE_TYPE_DEFAULT)
    return lambda: products.set_compute_type(np.float32, own)
