"""Other array libraries of the array API standard: rows that are on a device, and what a task does there."""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from math import inf
from typing import Any, ClassVar, TypeAlias

import numpy as np

from bigpca.arrays import STRIP, Array, DType, Vector, add_outer_upper, unpack
from bigpca.blas import during
from bigpca.csr import FORMS
from bigpca.errors import MemoryBudgetError, brief, format_bytes
from bigpca.forms import DenseForm
from bigpca.host import HOST, SUMMED_ROWS, Gram, Host, KernelSums, Thin

LIBRARIES = ("torch", "cupy", "jax", "array_api_strict")

STAYING = ("bool", "int8", "int16", "int32", "uint8", "float16", "float32", "float64")  # dtypes of rows on a device
MEMORY_THERE = 16 << 30  # of a device whose library does not report it
STAGED_BYTES = 1 << 20  # of host memory, from which a transfer goes through pinned buffers
PAIRED = 128  # rows that are summed in their own precision
MARK_EXPONENT = 60  # of the factor of values that are summed to find out whether they are finite: no sum overflows
DEPTH = 1024  # rows of V multiplied in float32 at a time, before their products are added in float64
FLOAT32_EXPONENT = 120  # beyond which a power of two is not used to scale
SOLVED_THERE = 1024  # size of a matrix from which its eigenproblem is solved on the device of the fit


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
        return dtype_of(self.array)

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


def looked_at(rows: Any) -> Any:
    """Return rows in which values that are not finite are looked for here: none, if a device says that all are."""
    return np.asarray(rows[:0] if rows.finite else rows) if isinstance(rows, RowsThere) else rows


def joined(parts: Any) -> Any:
    """Return dense rows (b, d) of blocks of rows and columns, ``parts[i][j]``, all of one library."""
    first = parts[0][0]
    if not isinstance(first, RowsThere):
        return np.block([list(line) for line in parts])
    lines = [first.xp.concat([one.array for one in line], axis=1) if line[1:] else line[0].array for line in parts]
    return RowsThere(first.xp.concat(lines, axis=0), first.place)


@contextmanager
def settled(rows: Any) -> Iterator[None]:
    """Wait for rows that are made in another stream of a device, and have that wait for what is done with them."""
    if isinstance(rows, RowsThere):
        rows.settle()
    yield
    if isinstance(rows, RowsThere):
        rows.settle()  # before their memory is used again


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
    return None if "cpu" in (name := _named(array)).lower() else name


def _named(array: Any) -> str:
    """Return library and device of an array: of cuda:0, <CUDA Device 0>, or array_api_strict.Device('device1')."""
    library = type(array).__module__.partition(".")[0].replace("jaxlib", "jax")
    return library + ":" + re.sub(r".*Device[ (']*|[>')]*$", "", str(getattr(array, "device", "cpu")))


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


_driving = threading.RLock()
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


def array_there(rows: Any) -> Any:
    """Return the array of rows on a device."""
    return rows.array if isinstance(rows, RowsThere) else rows


def dtype_of(array: Any) -> DType:
    """Return the dtype that NumPy has for that of an array of any library."""
    return np.dtype(str(array.dtype).rpartition(".")[2])


class FormThere(DenseForm):
    """Rows on a device, or arrays there: results stay there, and nothing is looked at from here.

    Functions return their result, as arrays of JAX cannot be changed.
    """

    def column_sums(
        self, values: Any, total: Any = None, weights: Vector | None = None, dtype: DType | None = None
    ) -> Any:
        with (device := Device.holding(values)).precise():
            return _sums(values, None if weights is None else device.put(weights))

    def column_squares(self, values: Any, weights: Vector | None = None, scale: Any = None) -> Any:
        device, V = Device.holding(values), array_there(values)
        weights = None if weights is None else device.put(weights)
        if V.dtype == device.xp.float64:
            return _sums(V, weights, power=2)
        scale = device.power_of_two(V) if scale is None else scale
        return _sums(V * scale, weights, power=2) / scale / scale

    def add_left(self, product: Any, V: Array, values: Any, block: Any) -> Any:
        return product + block.device.product(block.device.put(V.astype(values.dtype)), values.array)

    def mean(self, values: Any, dtype: DType | None = None) -> Any:
        with (device := Device.holding(values)).precise():
            V = array_there(values) if dtype is None else device.floats(array_there(values), dtype)
            xp, finite = device.xp, device.xp.isfinite(V)
            # Of complete rows alone, if there are any, as on the host.
            complete = xp.all(finite, axis=1, keepdims=True)
            finite = finite & (complete | ~xp.any(complete))
            counts = _sums(xp.astype(finite, V.dtype))
            shift = _sums(xp.where(finite, V, xp.zeros_like(V))) / xp.where(counts > 0, counts, 1.0)
            return xp.astype(xp.where(xp.isfinite(shift), shift, xp.zeros_like(shift)), V.dtype)

    def shifted(self, values: Any, shift: Any | None, dtype: DType) -> tuple[RowsThere, Any, Any, Any]:
        """The rows are in a dtype; of the shift, one is where it came from, and one there.

        The shift is rounded to the dtype first, so that the subtraction is all that rounds; one that is there was
        returned by this.
        """
        device = Device.holding(values)
        V = device.floats(values.array, dtype)
        own = self.mean(V) if shift is None else device.floats(device.put(shift), dtype)
        given = shift is None or isinstance(shift, np.ndarray)
        there = device.floats(own, np.dtype(np.float64)) if given else shift
        about = shift.astype(dtype).astype(np.float64) if isinstance(shift, np.ndarray) else there
        rows = RowsThere(V - own, values.place)
        return rows, _sums(rows), about, there


THERE = FORMS[RowsThere] = FormThere()


def _sums(values: Any, weights: Any = None, *, power: int = 1, axis: int = 0) -> Any:
    """Return sums of (weighted) rows V (b, d), or of their squares, along an axis, in float64."""
    V = array_there(values)
    xp = _xp(V)
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
    return xp.sum(V if weights is None else V * weights[:, None], axis=axis)


def _largest(V: Any, axis: int | None) -> Any:
    """Return the largest magnitudes along an axis, in one read where the library needs no copy for that."""
    xp = _xp(V)
    if type(V).__module__.partition(".")[0] in ("torch", "jax", "jaxlib"):
        return xp.linalg.vector_norm(V, axis=axis, ord=np.inf)
    return xp.maximum(xp.max(V, axis=axis), -xp.min(V, axis=axis))


def marks(rows: Any) -> Any:
    """Return a number for each row of (b, d), which is finite exactly if all its values are."""
    xp, V, device = rows.xp, rows.array, _library("array_api_compat").device(rows.array)
    with Device.holding(rows).precise():
        return xp.matmul(V, xp.full((V.shape[1],), 2.0**-MARK_EXPONENT, dtype=V.dtype, device=device))


def all_finite(arrays: list[Any]) -> bool:
    """Whether all values of some arrays on a device are finite, which takes one look."""
    if not arrays:
        return True
    with (device := Device.holding(arrays[0])).precise():
        xp = device.xp
        vectors = [one for one in arrays if one.ndim == 1]  # as one: to ask for each takes longer than to look
        joined = ([xp.concat(vectors)] if vectors else []) + [one for one in arrays if one.ndim != 1]
        return bool(xp.all(xp.stack([xp.all(xp.isfinite(one)) for one in joined])))


@dataclass(frozen=True)
class Device(Host):
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
    form: ClassVar[FormThere] = THERE
    driven: ClassVar[bool] = True

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

    @cached_property
    def has_float64(self) -> bool:
        """Whether it has float64, in which sums are: else their last digits would depend on the order of rows."""
        try:
            return bool(self.fetch(self.zeros((1,))).dtype == np.float64)
        except Exception:  # each library has its own
            return False

    @classmethod
    def holding(cls, rows: Any) -> Device:
        """Return the device on which rows, or an array of another library, are."""
        library, _, place = (rows.place if isinstance(rows, RowsThere) else _named(rows)).partition(":")
        return cls(library, place)

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

    def check_room(self, what: str, nbytes: int) -> None:
        """Reject what takes more of the device than is free there, where its library reports that.

        Raises
        ------
        MemoryBudgetError
        """
        if self.memory and nbytes > (free := self.memory[0]):
            raise MemoryBudgetError(
                f"{what} takes {format_bytes(nbytes)} of {self.name}, and {format_bytes(free)} are free there. Free "
                'some of it, fit fewer columns, or use arithmetic="numpy".'
            )

    def driving(self) -> AbstractContextManager[Any]:
        """Return what statements run in whose arrays take most of the device's memory: one thread at a time."""
        return _driving

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

    def square_shape(self, d: int) -> tuple[int, ...]:
        """Return the shape of what a state keeps of a symmetric matrix (d, d): all of it."""
        return d, d

    def zeros(self, shape: tuple[int, ...], dtype: object = None, order: str = "C") -> Any:
        """Return zeros in float64."""
        with self.precise():
            xp = self.xp
            return xp.zeros(shape, dtype=xp.float64, device=self._device)

    def fetch(self, array: Any) -> Array:
        """Return an array of the device in this process."""
        return host_array(array)

    def home(self, value: Any, *, square: bool, order: Any) -> Any:
        """Return what a state keeps, in the host's memory: of a symmetric matrix, the packed triangle."""
        if value is None or isinstance(value, np.ndarray):
            return value
        return pack_upper(value) if square else np.asarray(self.fetch(value), order=order)

    def row_squares(self, rows: Any) -> Vector:
        """Return the sum of squares of each row (b,), in float64, in this process."""
        return self.fetch(_sums(rows, power=2, axis=1))

    def within_range(self, values: Any, largest: float | None) -> Any:
        """Return the rows, which are scaled before they are multiplied."""
        return values

    def power_of_two(self, values: Any, axis: int | None = None) -> Any:
        """Return powers of two, in the dtype of V (b, d), by which the largest, or those of columns, come to about 1.

        Products of float32 numbers then neither overflow nor vanish, and scaling rounds nothing: so no block has to be
        looked at from here before it is multiplied. A group has the scale of its first block.
        """
        xp, V = self.xp, self.put(values)
        most = xp.astype(_largest(V, axis), xp.float64)
        usable = xp.isfinite(most) & (most > 0)
        exponent = xp.floor(xp.log2(xp.where(usable, most, xp.ones_like(most))))
        exponent = xp.clip(exponent, -FLOAT32_EXPONENT, FLOAT32_EXPONENT)
        # Rounded to float32, in which a power of two is exact even where a library's pow is not.
        return xp.astype(xp.astype(xp.pow(xp.full_like(most, 2.0), -exponent), xp.float32), V.dtype)

    def add_pair(self, rows: Any, columns: Any, target: Array, there: list[Any]) -> None:
        """Add a tile, the product of rows (a, d) with others (d, b), to those that are there."""
        there.append(self.product(rows.T, columns))

    def store(self, K: Any, target: Array, there: list[Any]) -> None:
        """Add a tile to those that are there."""
        there.append(K)

    def kernel_sums(self, V: Array, product: Array, squares: Vector, start: int) -> KernelSumsThere:
        """Return what multiplies tiles of a kernel matrix by V (n, l), for rows from ``start`` on."""
        return KernelSumsThere(V, product, squares, start, self)

    def product(self, V: Any, Z: Any) -> Any:
        """Return ``V'Z`` in float64; 8,192 rows are summed in the precision of the rows, as in this process."""
        xp, b = self.xp, V.shape[0]
        whole = b // SUMMED_ROWS * SUMMED_ROWS
        if V.dtype == xp.float64 or whole < 2 * SUMMED_ROWS:
            return xp.astype(xp.matmul(xp.matrix_transpose(V), Z), xp.float64, copy=False)
        # V'Z = sum_s V_s'Z_s over runs of rows: float32 within a run, float64 between them.
        first, second = (xp.reshape(one[:whole, :], (-1, SUMMED_ROWS, one.shape[1])) for one in (V, Z))
        product = xp.sum(xp.matmul(xp.matrix_transpose(first), second), axis=0, dtype=xp.float64)
        return product if whole == b else product + self.product(V[whole:, :], Z[whole:, :])

    def plus_squares(self, total: Any, rows: Any, sign: float, *, whole: bool) -> Any:
        """Return a symmetric matrix plus ``sign rows' rows``, or its diagonal plus that of it."""
        return total + sign * (rows.T @ rows if whole else self.xp.sum(rows * rows, axis=0))

    def one_hot(self, codes: Array, classes: int, weights: Vector | None, dtype: DType) -> Any:
        """Return a row (c,) for each code, with the weight of its row, or 1, in the column of its class.

        Sums by class are products with these rows: atomic additions have no fixed order.
        """
        own = self.put(codes)[:, None] == self.put(np.arange(classes, dtype=codes.dtype))
        rows = self.xp.astype(own, getattr(self.xp, dtype.name))
        return rows if weights is None else rows * self.put(weights.astype(dtype))[:, None]

    def less(self, V: Any, centres: Any, codes: Array, out: object = None) -> Any:
        """Return rows less the centres of their classes."""
        return self.put(V) - self.xp.take(centres, self.put(codes), axis=0)

    def gram(self, d: int) -> GramThere:
        """Return what adds up products of rows (b, d) with themselves."""
        return GramThere(self)

    def thin(self, factor: Any, first: Any) -> ThinThere:
        """Return what multiplies rows by a thin factor (d, l), for a group that begins with these."""
        return ThinThere(self, factor, first)

    def projected(self, rows: Array, mean: Array, axes: Array) -> Array:
        """Return ``(rows - mean) axes`` (b, k) in the precision of the axes (d, k)."""
        ((_, scores, _),) = self.scored(rows, mean, axes, None, None, residuals=False)
        return np.require(scores, requirements=["W"])  # JAX lets nobody change it

    def scored(
        self, rows: Array, mean: Vector, axes: Array, rest: Vector | None, factors: Vector | None, *, residuals: bool
    ) -> Iterator[tuple[int, Array, Vector | None]]:
        """Yield 0, and ``Z = V A`` (b, k) of ``V = (rows - mean + rest) factors`` (b, d), in the precision of A (d, k);
        with ``residuals``, ``|V - Z A'|^2`` (b,) in float64 for orthonormal columns of A too.

        The rows are transferred once.
        """
        with self.precise():
            xp, A = self.xp, self.put(axes)
            # Centred first: a difference of products would lose the digits of rows far from zero.
            V = self.put(rows.astype(axes.dtype, copy=False)) - self.put(mean)
            V = V if rest is None else V + self.put(rest)
            V = V if factors is None else V * self.put(factors)
            Z = xp.matmul(V, A)
            squares = None
            if residuals:
                left = xp.astype(V - xp.matmul(Z, xp.matrix_transpose(A)), xp.float64)
                squares = self.fetch(xp.sum(left * left, axis=1))
            scores = self.fetch(Z)
        yield 0, scores, squares


Namespace: TypeAlias = Host  # where a state's arrays are, and the library that has their functions


def namespace(name: str) -> Namespace:
    """Return what the setting ``arithmetic`` names; the host by default, and where a device has no float64."""
    if not name or name == HOST.name:
        return HOST
    device = Device.of(name)
    return device if device.has_float64 else HOST


def taken(
    device: Namespace, states: Iterable[Any], rows: object, merging: int, *, staying: bool
) -> tuple[Namespace, int]:
    """Return what multiplies such blocks for states, and its memory that they take, so many of each when they merge.

    It is the host if one of them is NumPy's only, or if all multiply nothing of rows that come from a device.
    """
    if not device.driven:
        return HOST, 0
    moved = [one.there(device) for one in states]
    held = sum(inf if one.lives_there and one.device == HOST else one.device_bytes(rows) for one in moved)
    if held == inf or not (staying or held):
        return HOST, 0
    return device, int(held) + (merging * sum(one.bytes_there for one in moved) if held else 0)


def square_on(device: Namespace, fetched: Any, moments: Any) -> Any:
    """Return the scatter of moments, which were fetched too, as a new (d, d) matrix on a device; on the host, its upper
    triangle.
    """
    if not device.driven:
        return fetched.scatter
    if isinstance(S := moments.packed, np.ndarray):
        return device.put(unpack(S, moments.n_features))
    upper = device.xp.triu(S)  # the lower triangle may be rounded otherwise
    return upper + device.xp.matrix_transpose(device.xp.triu(upper, k=1))


def shares_of_work(name: str, passes: Sequence[Any], why: str) -> Iterator[str]:
    """Yield the lines of a plan about what multiplies in its passes, where the device ``name`` was set.

    ``why`` says why NumPy does, on a device with float64.
    """
    there = [one.name + ", whose rows are there" * one.there for one in passes if not one.by_cores]
    here = [one.name for one in passes if one.by_cores]
    if there:
        held = format_bytes(max(one.device_bytes for one in passes))
        yield f"multiplied by {name} ({held} of its memory): {', '.join(dict.fromkeys(there))}"
    if here:
        why = why if Device.of(name).has_float64 else "a device without float64"
        yield f"multiplied by NumPy, not by {name} ({why}): {', '.join(dict.fromkeys(here))}"


def place_name(array: Any) -> str:
    """Return library and device of rows that a fit takes as they are; empty for those of the host."""
    rows = None if type(array) is np.ndarray else RowsThere.of(array)
    return "" if rows is None else rows.place


def namespace_of(rows: Any) -> Namespace:
    """Return where rows are."""
    return Device.holding(rows) if isinstance(rows, RowsThere) else HOST


class GramThere(Gram):
    """Products ``V'V`` (d, d) of rows on a device, as :class:`bigpca.host.Gram`, of columns that are scaled."""

    def __init__(self, device: Device) -> None:
        self.device, self.scale, self.precision = device, None, 0.0

    def add(self, total: Any, values: Any, weights: Vector | None = None) -> Any:
        """Return the sum with that of more rows; the first ones say how columns are scaled."""
        device, V = self.device, self.device.put(values)
        self.precision = max(self.precision, float(np.finfo(dtype_of(V)).eps))
        if self.scale is None and V.dtype != device.xp.float64:
            self.scale = device.power_of_two(V, axis=0)
        if weights is not None:
            V = V * device.floats(device.put(np.sqrt(weights)), dtype_of(V))[:, None]
        V = V if self.scale is None else V * self.scale
        total += device.product(V, V)  # in float64, in the precision of the rows for some of them
        return total

    def close(self, total: Any) -> Any:
        """Return the sum without the scale of both columns, whose product may be out of range."""
        scale, self.scale = self.scale, None
        return total if scale is None else total / scale[:, None] / scale


class ThinThere(Thin):
    """Products of rows on a device with a thin factor W (d, l), as :class:`bigpca.host.Thin`: scaled, not opened."""

    def __init__(self, device: Device, factor: Any, first: Any) -> None:
        self.device, self.scale = device, device.power_of_two(first)  # transferred once for the group
        W = device.floats(device.put(factor.matrix()), np.dtype(np.float64)) * self.scale
        self.W = device.floats(W, first.dtype)

    def multiply(self, V: Any) -> Any:
        """Return ``V W`` (b, l)."""
        return self.device.xp.matmul(self.device.put(V), self.W)

    def add(self, total: Any, V: Any, Z: Any) -> Any:
        """Return the sum with ``V'Z`` (d, l)."""
        total += self.device.product(self.device.put(V), Z)
        return total

    def close(self, *sums: Any) -> tuple[Any, ...]:
        """Return sums without the scale."""
        return tuple(one / self.scale for one in sums)


def gram_bytes(d: int, rows: int, itemsize: int) -> int:
    """Return what adding the product of rows with themselves to a sum (d, d) takes of a device, with the sum."""
    pieces = 1 if itemsize == 8 else max(1, rows // SUMMED_ROWS)
    return (8 + 12 * pieces) * d * d


_solving: ContextVar[Namespace] = ContextVar("device of solves", default=HOST)


def solving_on(device: Namespace) -> AbstractContextManager[None]:
    """Solve large problems on a device, in a block of statements; the host leaves what is set."""
    return during(_solving, _solving.get() if device == HOST else device)


def device_of_solve(d: int) -> Namespace:
    """Return what solves a problem with a (d, d) matrix, which depends on d alone."""
    return _solving.get() if d >= SOLVED_THERE else HOST


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


_TF32 = threading.Lock()
_exact: Counter[str] = Counter()  # threads that multiply without TF32, by library
_restore: dict[str, Callable[[], None]] = {}


@dataclass
class KernelSumsThere(KernelSums):
    """``K V`` (and the squares of K) on a device, as :class:`bigpca.host.KernelSums`: a piece for each tile of rows.

    Pieces are replaced, because arrays of JAX cannot be changed, and fetched once, at the end.
    """

    device: Device
    _factors: dict[int, Any] = field(default_factory=dict)
    _products: dict[int, Any] = field(default_factory=dict)
    _squares: dict[int, Any] = field(default_factory=dict)

    def add(self, K: Any, row: int, column: int) -> float:
        """Add a tile (a, b) of K, and its mirror image if it is off the diagonal; its trace is not looked at."""
        self._add(K, row, column)
        if row != column:
            self._add(self.device.xp.matrix_transpose(K), column, row)
        return 0.0

    def _add(self, K: Any, row: int, column: int) -> None:
        xp = self.device.xp
        if column not in self._factors:
            rows = self.V[column : column + K.shape[1]]
            self._factors[column] = self.device.put(rows.astype(dtype_of(K)))
        self._products[row] = self._products.get(row, 0.0) + self._multiplied(K, self._factors[column])
        if len(self.squares):
            self._squares[row] = self._squares.get(row, 0.0) + xp.sum(K * K, axis=1, dtype=xp.float64)

    def _multiplied(self, K: Any, V: Any) -> Any:
        """Return ``K V`` (a, l): products of strips of K (a, b), as one stack, and their sum in float64."""
        (a, b), xp = K.shape, self.device.xp
        # K V = sum_s K_s V_s over strips of columns of K: the error of float32 is that of one strip.
        depth = min(DEPTH, b)
        whole = b // depth * depth
        strips = xp.permute_dims(xp.reshape(K[:, :whole], (a, b // depth, depth)), (1, 0, 2))
        factors = xp.reshape(V[:whole, :], (b // depth, depth, V.shape[1]))
        product = xp.sum(xp.matmul(strips, factors), axis=0, dtype=xp.float64)
        return product if whole == b else product + self._multiplied(K[:, whole:], V[whole:, :])

    def close(self) -> None:
        """Fetch the pieces."""
        for here, there in ((self.product, self._products), (self.squares, self._squares)):
            for row, piece in there.items():
                here[row - self.start : row - self.start + piece.shape[0]] = self.device.fetch(piece)


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
