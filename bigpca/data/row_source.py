"""The (n, d) view of stored rows from which Dask graphs and passes read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix

from bigpca.data.checks import Limits, check_shape, owned, row_width
from bigpca.data.members import plan_index
from bigpca.data.sparse import stored_row_bytes
from bigpca.data.storages import Stamp, Storage

IN_ORDER = (
    "in any order, but batches have one. Pass what from_batches returned to fit or transform as it is, or write them "
    "with bigpca.FeatureWriter and open the store."
)
IN_MEMORY = ("numpy", "scipy")
_UNNAMED = {"numpy": "the array in memory", "scipy": "the sparse rows in memory", "batches": "the batches"}


@dataclass(frozen=True, eq=False)
class RowSource:
    """Rows of one stored array as a matrix; a small record (under 2 KiB pickled, except for values in memory).

    Feature maps (n, c, h, w) are viewed as (n, c*h*w). Created by :func:`bigpca.open`.

    Attributes
    ----------
    format : str
        "zarr", "npy", "npz", "npy-folder", "hdf5", "parquet", "safetensors", "raw", "numpy", "scipy" or "batches".
    path : str
        Absolute path, or URL; empty for values in memory.
    member : str
        Name of the array in the file or group; may be empty.
    storage : Storage
        The reader of that format.
    limits : Limits or None
        Which stored numbers are not values, if some are not.
    """

    format: str
    path: str
    member: str
    storage: Storage
    limits: Limits | None = None

    def __post_init__(self) -> None:
        check_shape(self.storage.array_shape, self.label)

    @property
    def label(self) -> str:
        """Location of the rows, for messages."""
        return f"{self.path}:{self.member}" if self.member else self.path or _UNNAMED.get(self.format, "the rows")

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Stored shape, before flattening."""
        return self.storage.array_shape

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return self.array_shape[0], row_width(self.array_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype, in native byte order."""
        return self.storage.dtype

    @property
    def ndim(self) -> int:
        """Always 2."""
        return 2

    @property
    def row_bytes(self) -> float:
        """Bytes of a row as it is read; of sparse rows, on average."""
        n, d = self.shape
        if self.stored_values is None:
            return d * self.dtype.itemsize
        return stored_row_bytes(n, self.stored_values, self.dtype.itemsize)

    @property
    def in_memory(self) -> bool:
        """Whether the rows are an array of this process."""
        return self.format in IN_MEMORY

    @property
    def sparse(self) -> bool:
        """Whether rows are read as CSR."""
        return self.stored_values is not None

    @property
    def stored_values(self) -> int | None:
        """Number of stored values of sparse rows; None for dense rows."""
        found: int | None = getattr(self.storage, "stored_values", None)
        return found

    @property
    def densest(self) -> float | None:
        """Stored values of a mean row where sparse rows are densest; None for dense rows."""
        found: float | None = getattr(self.storage, "densest", None)
        return found

    @property
    def column_chunk(self) -> int:
        """Columns that are stored together; d if rows are stored whole."""
        return max(getattr(self.storage, "column_chunk", self.shape[1]), 1)

    def row_chunks(self) -> tuple[int, ...]:
        """Return consecutive row counts that can each be read without decoding anything twice."""
        return self.storage.row_chunks()

    def read(self, start: int, stop: int, columns: slice = slice(None)) -> NDArray[Any] | csr_array:
        """Read rows ``start:stop`` into new memory.

        Parameters
        ----------
        start, stop : int
            ``0 <= start <= stop <= n``.
        columns : slice
            Columns of the (n, d) view.

        Returns
        -------
        ndarray or csr_array of shape (stop - start, number of columns)
            C order, native byte order, writable; the caller may overwrite it. CSR has sorted indices and no duplicates.

        Raises
        ------
        IndexError
            If the rows are not in the source.
        MissingChunksError, CorruptedChunkError
            If the stored bytes are missing or damaged.
        """
        n, d = self.shape
        if not 0 <= start <= stop <= n:
            raise IndexError(f"rows {start}:{stop} of {self.label} were requested, but it has {n}.")
        plan = plan_index((slice(start, stop), columns), (n, d))
        block = self._values(start, stop, plan.bounds[1])
        taken = plan.rest[1]
        if self.sparse:
            rows: csr_array = block if taken == slice(None) else block[:, taken]
            return rows
        return owned(block if taken == slice(None) else block[:, taken], self.dtype)

    def _values(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        block = self.storage.read(start, stop, columns)
        return block if self.limits is None else self.limits.values(owned(block, self.dtype), self.label, start)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Read a 2-d selection, as Dask's getter requests it: of sparse rows, a ``csr_matrix``.

        Raises
        ------
        TypeError
            For batches, which are read in order.
        """
        if self.format == "batches":
            raise TypeError(f"the rows of batches are computed by Dask, {IN_ORDER}")
        plan = plan_index(index, self.shape)
        rows, columns = plan.bounds
        block = self._values(*rows, columns)
        if self.sparse:
            selected: NDArray[Any] = csr_matrix(plan.finish(csr_matrix(block)))  # a matrix keeps both dimensions
            return selected
        return owned(plan.finish(block), self.dtype)

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return (key, size, change) of the files that hold rows ``start:stop``, to detect a changed input."""
        return self.storage.stamps(start, stop)

    @property
    def stamped(self) -> bool:
        """Whether stamps would tell that rows changed: all but those of a few stores do."""
        return bool(getattr(self.storage, "stamped", True))

    def describe(self) -> dict[str, Any]:
        """Return JSON values that identify this source: format, path, member, shape, dtype, and the format's own."""
        return {
            "format": self.format,
            "path": self.path,
            "member": self.member,
            "shape": list(self.array_shape),
            "dtype": self.dtype.str,
            **({} if self.limits is None else {"limits": [self.limits.fill, self.limits.low, self.limits.high]}),
            **self.storage.describe(),
        }

    def token(self) -> str:
        """Return a short digest of the description and the stamps of all rows, for Dask names."""
        stamps = [] if self.in_memory else self.stamps(0, self.shape[0])  # a description of values has their CRC-32
        text = json.dumps([self.describe(), stamps], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __dask_tokenize__(self) -> object:
        return "bigpca.RowSource", self.token()

    def __repr__(self) -> str:
        return f"<RowSource {self.format} {self.label} shape={self.shape} dtype={self.dtype}>"
