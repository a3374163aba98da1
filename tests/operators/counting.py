"""Which chunks of a store a run decodes, and how often: what "reads per chunk" means in the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca.data.zarr_arrays import ZarrRows


class Reads:
    """Every read of a Zarr store in this process, from :meth:`watch` on."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int, int]] = []

    def watch(self, patch: pytest.MonkeyPatch) -> Reads:
        """Record reads until the patch is undone."""
        read = ZarrRows.read_block

        def recorded(rows: ZarrRows, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
            self.calls.append((start, stop, *columns))
            return read(rows, start, stop, columns)

        patch.setattr(ZarrRows, "read_block", recorded)
        return self

    def per_chunk(self, shape: tuple[int, int], chunks: tuple[int, int]) -> NDArray[np.int64]:
        """Return how often each chunk was decoded since the last call, and forget those reads."""
        counts = np.zeros([-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)], np.int64)
        for start, stop, left, right in self.calls:
            rows = slice(start // chunks[0], -(-stop // chunks[0]))
            counts[rows, left // chunks[1] : -(-right // chunks[1])] += 1
        self.calls.clear()
        return counts
