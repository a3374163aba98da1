"""Other array libraries of the array API standard: rows that are on a device, and what a task does there."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from bigpca.arrays import Array, DType, Vector
from bigpca.errors import brief

There: TypeAlias = Any  # an array, a device or a module of another library

LIBRARIES = ("torch", "cupy", "jax", "array_api_strict")

STAYING = ("bool", "int8", "int16", "int32", "uint8", "float16", "float32", "float64")  # dtypes of rows on a device


class RowsThere:
    """Rows of another array library on one of its devices, with NumPy's names for what reading does to them.

    Slices, copies and conversions stay on the device. NumPy does everything else, to a copy in the host's memory:
    ``numpy.asarray(rows)``.

    Parameters
    ----------
    array : array of shape (b, ...)
    place : str
        Library and device, as :func:`bigpca.config` names them.
    """

    def __init__(self, array: Any, place: str) -> None:
        self.array, self.place = array, place

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
        return import_module("array_api_compat").array_namespace(self.array)

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
            return RowsThere(self.array[index, ...], self.place)
        numbers = np.flatnonzero(index) if index.dtype == bool else index
        return RowsThere(self.xp.take(self.array, self.put(numbers), axis=0), self.place)

    def __setitem__(self, index: Any, rows: RowsThere | Array) -> None:
        """Copy rows to a slice."""
        array = rows.array if isinstance(rows, RowsThere) else self.put(rows)
        if hasattr(self.array, "at"):  # of JAX, whose arrays do not change
            self.array = self.array.at[index].set(array)
        else:
            self.array[index, ...] = array

    def put(self, values: Array) -> Any:
        """Return an array beside the rows."""
        return self.xp.asarray(values, device=import_module("array_api_compat").device(self.array))

    def room(self, rows: int, dtype: DType) -> RowsThere:
        """Return rows beside these, (rows, d), whose values are not set."""
        xp, device = self.xp, import_module("array_api_compat").device(self.array)
        shape = rows, *self.shape[1:]
        return RowsThere(xp.empty(shape, dtype=getattr(xp, dtype.name), device=device), self.place)

    def reshape(self, *shape: int) -> RowsThere:
        """Return the rows in another shape."""
        return RowsThere(self.xp.reshape(self.array, shape), self.place)

    def astype(self, dtype: Any, copy: bool = True) -> RowsThere:
        """Return the rows in another dtype."""
        xp = self.xp
        with import_module("jax").enable_x64(True) if self.place.startswith("jax") else nullcontext():
            return RowsThere(xp.astype(self.array, getattr(xp, np.dtype(dtype).name), copy=copy), self.place)

    def settle(self) -> None:
        """Wait until the device has done all it was asked to, in whatever stream of whatever thread."""
        if self.place.startswith("torch:cuda"):
            import_module("torch").cuda.synchronize(self.array.device)
        elif self.place.startswith("cupy"):
            self.array.device.synchronize()

    @staticmethod
    def joined(parts: Any) -> RowsThere:
        """Return rows (b, d) of blocks of rows and columns, ``parts[i][j]``."""
        first = parts[0][0]
        lines = [first.xp.concat([one.array for one in line], axis=1) for line in parts]
        return RowsThere(first.xp.concat(lines, axis=0), first.place)


def _place_of(array: Any) -> str | None:
    """Return library and device of an array that is not in the host's memory; None for all others."""
    library = type(array).__module__.partition(".")[0].replace("jaxlib", "jax")
    if library not in LIBRARIES or str(getattr(array, "layout", "")).startswith("torch.sparse"):
        return None
    if library == "jax" and len(array.devices()) > 1:  # in parts
        return None
    # Written as cuda:0, as <CUDA Device 0>, or as array_api_strict.Device('device1')
    where = re.sub(r".*Device[ (']*|[>')]*$", "", str(getattr(array, "device", "cpu")))
    return None if "cpu" in where.lower() else f"{library}:{where}"


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


@dataclass(frozen=True)
class Device:
    """An array library of the array API standard, on one of its devices: what a task does to a block there.

    Blocks are checked and shifted in this process, and transferred once. Sums of a group stay on the device in float64,
    and are fetched when the group is closed. Functions return their result, as arrays of JAX cannot be changed. The
    record is picklable: it names the library and the device.

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

    @classmethod
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
            device.fetch(device.zeros((1,)))
        except Exception as error:  # each library has its own
            raise ValueError(
                f"arithmetic = {name!r}: {library} cannot use that device with float64 ({brief(error)}). Choose "
                "another one."
            ) from error
        return device

    @classmethod
    def holding(cls, rows: RowsThere) -> Device:
        """Return the device on which rows are."""
        library, _, place = rows.place.partition(":")
        return cls(library, place)

    @property
    def xp(self) -> There:
        """The library's functions, as the standard names them."""
        if self.library in ("torch", "cupy"):  # whose own functions differ from the standard's
            return import_module(f"array_api_compat.{self.library}")
        return import_module("jax.numpy" if self.library == "jax" else self.library)

    @property
    def _device(self) -> There:
        if self.library == "array_api_strict":
            return import_module(self.library).Device(self.place or "CPU_DEVICE")
        if self.library == "jax":
            kind, _, number = self.place.partition(":")
            return import_module("jax").devices(kind or None)[int(number or 0)]
        if self.library == "cupy":
            return import_module("cupy").cuda.Device(int(self.place or 0))
        return self.place or "cpu"

    @property
    def free_bytes(self) -> int | None:
        """Memory of the device that is free; None where its library does not report it."""
        if self.library == "torch" and self.place.startswith("cuda"):
            cuda, where = import_module("torch").cuda, self.place  # what torch holds for later arrays is free too
            return int(cuda.mem_get_info(where)[0] + cuda.memory_reserved(where) - cuda.memory_allocated(where))
        if self.library == "cupy":
            with self._device:
                return int(self._device.mem_info[0] + import_module("cupy").get_default_memory_pool().free_bytes())
        stats = self._device.memory_stats() if self.library == "jax" else None  # None on a CPU
        return int(stats["bytes_limit"] - stats["bytes_in_use"]) if stats else None

    @contextmanager
    def precise(self) -> Iterator[None]:
        """Multiply float32 in float32, not in TF32, and have float64, in a block of statements; name lack of memory.

        Raises
        ------
        MemoryError
            If the memory of the device does not suffice.
        """
        try:
            if self.library == "jax":
                jax = import_module("jax")
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
                f"the memory of {self.name} does not hold a block and its sums ({brief(error)}). Use fewer threads "
                '(dask.config.set(num_workers=1)), or arithmetic="numpy".'
            ) from error

    def put(self, values: There) -> There:
        """Return an array on the device, also one that is there."""
        if isinstance(values, RowsThere):
            return import_module("array_api_compat").to_device(values.array, self._device)
        if not isinstance(values, np.ndarray):
            return values
        xp = self.xp
        if self.library == "torch":
            return xp.from_numpy(np.ascontiguousarray(values)).to(self._device)
        return xp.asarray(values, device=self._device)

    def rows(self, values: There) -> There:
        """Return rows as RowsThere on the device."""
        return RowsThere(self.put(values), self.name)

    def zeros(self, shape: tuple[int, ...]) -> There:
        """Return zeros in float64."""
        with self.precise():
            xp = self.xp
            return xp.zeros(shape, dtype=xp.float64, device=self._device)

    def fetch(self, array: There) -> Array:
        """Return an array of the device in this process."""
        return host_array(array)

    def dtype_of(self, array: There) -> DType:
        """Return the dtype that NumPy has for an array of the device."""
        return np.dtype(f"f{self.xp.finfo(array.dtype).bits // 8}")

    def sums(self, values: There, weights: Vector | None = None, *, power: int = 1, axis: int = 0) -> Vector:
        """Return sums of (weighted) rows V (b, d), or of their squares, along an axis: in float64, and here."""
        with self.precise():
            xp = self.xp
            V = xp.astype(self.put(values), xp.float64, copy=False)
            V = V if power == 1 else V * V
            return self.fetch(xp.sum(V if weights is None else V * self.put(weights)[:, None], axis=axis))

    def shifted(self, rows: RowsThere, shift: Array, *, find_largest: bool) -> tuple[There, Vector, float]:
        """Return rows less a shift (d,) in its precision, the sums of the columns, and the largest magnitude."""
        with self.precise():
            xp, s = self.xp, self.put(shift)
            V = xp.astype(self.put(rows), s.dtype, copy=False) - s
            largest = float(self.fetch(xp.max(xp.abs(V)))) if find_largest and len(rows) else 0.0
            return RowsThere(V, self.name), self.sums(V), largest

    def add_gram(self, total: There, values: There, weights: Vector | None = None) -> tuple[There, DType]:
        """Return ``total + V'W V`` (d, d) of rows V (b, d), and the dtype of the product; the sum is in float64.

        The product is in the precision of the rows, if that holds all squares.
        """
        with self.precise():
            xp, V = self.xp, self.put(values)
            if weights is not None:
                V = V * xp.astype(self.put(np.sqrt(weights)), V.dtype)[:, None]
            if V.dtype != xp.float64:
                squares = self.sums(V, power=2)
                if not ((squares == 0) | ((squares >= MIN_SQUARE) & (squares < MAX_SQUARE))).all():
                    V = xp.astype(V, xp.float64)
            return total + xp.astype(xp.matmul(xp.matrix_transpose(V), V), xp.float64), self.dtype_of(V)

    def add_products(
        self, total: There, sums: There, values: Array, Q: There, weights: Vector | None, Z: There = None
    ) -> tuple[There, There]:
        """Return ``total + V'W Z`` (d, l), and ``sums + 1'W Z`` (l,), for ``Z = V Q`` with thin Q (d, l) on the device.

        Products are in the precision of the rows V (b, d), sums in float64; W are the weights of the rows. Z may be
        given instead of Q.
        """
        with self.precise():
            xp, V = self.xp, self.put(values)
            Z = xp.matmul(V, xp.astype(Q, V.dtype)) if Z is None else self.put(Z)
            if weights is not None:
                Z = Z * xp.astype(self.put(weights), V.dtype)[:, None]
            product = xp.matmul(xp.matrix_transpose(V), Z)
            return total + xp.astype(product, xp.float64), sums + xp.sum(xp.astype(Z, xp.float64), axis=0)

    def scores(
        self, rows: Array, mean: Vector, axes: Array, *, rest: Vector | None = None, factors: Vector | None = None,
        residuals: bool = False,
    ) -> tuple[Array, Vector | None]:  # fmt: skip
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


def precisely(device: Device | None) -> AbstractContextManager[None]:
    """Return what statements run in that may multiply on a device."""
    return nullcontext() if device is None else device.precise()


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
    torch = import_module("torch")
    own: tuple[There, There] = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)
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
