"""What Zarr is given to read from; apart from ``files`` and ``places``, which do not import Zarr.

A local store that reads only regular files, and the metadata of objects.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, ObjectStore

from bigpca.storage.files import DOCUMENTS, MAX_DOCUMENT_BYTES, check_size, open_regular


def _given(key: str, found: Any) -> Any:
    """Return what a store found: metadata of bounded size, or chunks."""
    if found is None or key.rpartition("/")[2] not in DOCUMENTS:
        return found
    # What stands for a root that is being replaced, or the mark of a folder; attributes are lost, not absent.
    if not len(found) and not key.endswith(".zattrs"):
        return None
    check_size(len(found), key, MAX_DOCUMENT_BYTES)
    return found


class RegularStore(LocalStore):
    """A local Zarr store that reads only regular files."""

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return the bytes of one file, or None."""
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return the bytes of one file, or None."""
        try:
            with open_regular(self.root / key) as file:
                size = os.fstat(file.fileno()).st_size
                if os.path.basename(key) in DOCUMENTS:
                    check_size(size, self.root / key, MAX_DOCUMENT_BYTES)
                # Zarr's requests are of a range, from an offset on, or of a suffix.
                start, stop = getattr(byte_range, "start", 0), getattr(byte_range, "end", size)
                start = max(getattr(byte_range, "offset", start), size - getattr(byte_range, "suffix", size))
                file.seek(start)
                data = file.read(max(0, stop - start))
                return _given(key, (prototype or default_buffer_prototype()).buffer.from_bytes(data))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None


class ObjectDocuments(ObjectStore):  # type: ignore[type-arg]  # not generic in the lowest zarr
    """The objects of an obstore store."""

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of one object, or None."""
        return _given(key, await super().get(key, *arguments, **options))
