"""A local Zarr store that reads only regular files; apart from ``files``, which does not import Zarr."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zarr.storage import LocalStore

from bigpca.storage.files import DOCUMENTS, MAX_DOCUMENT_BYTES, check_size, is_there


class RegularStore(LocalStore):
    """A local Zarr store that reads only regular files, and metadata of bounded size.

    Parameters
    ----------
    rewritten : callable or None
        A metadata document -> the one that Zarr is given instead.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        read_only: bool = True,
        rewritten: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(root, read_only=read_only)
        self.rewritten = rewritten

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of one object; see :func:`check_regular`."""
        self._check(key)
        return self._rewrite(key, await super().get(key, *arguments, **options))

    def get_sync(self, key: str, **options: Any) -> Any:
        """Return the bytes of one object; see :func:`check_regular`."""
        self._check(key)
        return self._rewrite(key, super().get_sync(key, **options))

    def _rewrite(self, key: str, found: Any) -> Any:
        if self.rewritten is None or found is None or key.rpartition("/")[2] not in DOCUMENTS:
            return found
        document = json.loads(found.to_bytes())
        if not isinstance(document, dict):
            return found
        return type(found).from_bytes(json.dumps(self.rewritten(document)).encode())

    def _check(self, key: str) -> None:
        path = self.root / key
        if is_there(path) and path.name in DOCUMENTS:
            check_size(path.stat().st_size, path, MAX_DOCUMENT_BYTES)
