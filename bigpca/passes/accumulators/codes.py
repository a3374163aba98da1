"""Classes of rows as accumulators read them: an array, or labels that are known once their rows were read."""

from __future__ import annotations

from typing import Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray


class CodeRows(Protocol):
    """Codes of rows that come with the rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""

    def __len__(self) -> int:
        """Number of rows."""

    @overload
    def __getitem__(self, rows: slice[int | None, int, None]) -> Codes: ...
    @overload
    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.int32]: ...
    def __getitem__(self, rows: slice[int | None, int, None] | NDArray[np.int64]) -> Codes | NDArray[np.int32]:
        """Return the codes of a slice of rows (an array if it is empty), or an array of those with given numbers."""

    def digest(self) -> str:
        """What identifies them before the read."""


Codes: TypeAlias = NDArray[np.int32] | CodeRows


def codes_bytes(codes: Codes) -> bytes:
    """Return what identifies codes in checkpoints."""
    return np.ascontiguousarray(codes).tobytes() if isinstance(codes, np.ndarray) else codes.digest().encode()
