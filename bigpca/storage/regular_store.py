"""A local Zarr store that reads only regular files; apart from ``regular``, which does not import Zarr."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zarr.storage import LocalStore

from bigpca.storage.regular import DOCUMENTS, MAX_DOCUMENT_BYTES, check_size, is_there


class RegularStore(LocalStore):
    """A local Zarr store that reads only regular files, and metadata of bounded size."""

    def __init__(self, root: str | Path, *, read_only: bool = True) -> None:
        super().__init__(root, read_only=read_only)

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of one object; see :func:`check_regular`."""
        self._check(key)
        return await super().get(key, *arguments, **options)

    def get_sync(self, key: str, **options: Any) -> Any:
        """Return the bytes of one object; see :func:`check_regular`."""
        self._check(key)
        return super().get_sync(key, **options)

    def _check(self, key: str) -> None:
        path = self.root / key
        if is_there(path) and path.name in DOCUMENTS:
            check_size(path.stat().st_size, path, MAX_DOCUMENT_BYTES)
