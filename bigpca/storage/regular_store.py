"""What Zarr is given to read from; apart from ``files`` and ``places``, which do not import Zarr.

A local store that reads only regular files, the metadata of objects, and the bytes of objects that have been got.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from bigpca.storage.files import DOCUMENTS, MAX_DOCUMENT_BYTES, check_size, is_there

if TYPE_CHECKING:
    from bigpca.storage.requests import ObjectFile

Rewritten = Callable[[dict[str, Any]], dict[str, Any]]  # a metadata document -> the one that Zarr is given instead


class RegularStore(LocalStore):
    """A local Zarr store that reads only regular files, and metadata of bounded size.

    Attributes
    ----------
    rewritten : callable or None
        A metadata document -> the one that Zarr is given instead.
    """

    rewritten: Rewritten | None = None

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of one object; see :func:`check_regular`."""
        self._check(key)
        return _rewrite(self.rewritten, key, await super().get(key, *arguments, **options))

    def get_sync(self, key: str, **options: Any) -> Any:
        """Return the bytes of one object; see :func:`check_regular`."""
        self._check(key)
        return _rewrite(self.rewritten, key, super().get_sync(key, **options))

    def _check(self, key: str) -> None:
        path = self.root / key
        if is_there(path) and path.name in DOCUMENTS:
            check_size(path.stat().st_size, path, MAX_DOCUMENT_BYTES)


class ObjectDocuments(ObjectStore):  # type: ignore[type-arg]  # not generic in the lowest zarr that is allowed
    """The objects of an obstore store, of whose metadata some are given to Zarr in another form."""

    def __init__(self, store: Any, *, read_only: bool = True, rewritten: Rewritten | None = None) -> None:
        super().__init__(store, read_only=read_only)
        self.rewritten = rewritten

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of one object, or None."""
        found = await super().get(key, *arguments, **options)
        if found is not None and key.rpartition("/")[2] in DOCUMENTS:
            check_size(len(found), key, MAX_DOCUMENT_BYTES)
        return _rewrite(self.rewritten, key, found)


class HeldStore(MemoryStore):
    """Objects that have been got, in whole or in part; no other exists here."""

    def __init__(self, held: Mapping[str, ObjectFile]) -> None:
        super().__init__(read_only=True)
        self.held = held

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return the bytes of one object, or None."""
        return self.get_sync(key, prototype=prototype, byte_range=byte_range)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return the bytes of one object, or None."""
        if (file := self.held.get(key)) is None:
            return None
        start, stop = getattr(byte_range, "start", 0), getattr(byte_range, "end", file.size)
        start = max(getattr(byte_range, "offset", start), file.size - getattr(byte_range, "suffix", file.size))
        return (prototype or default_buffer_prototype()).buffer.from_bytes(file.part(start, stop))


def _rewrite(rewritten: Rewritten | None, key: str, found: Any) -> Any:
    if rewritten is None or found is None or key.rpartition("/")[2] not in DOCUMENTS:
        return found
    document = json.loads(found.to_bytes())
    if not isinstance(document, dict):
        return found
    return type(found).from_bytes(json.dumps(rewritten(document)).encode())
