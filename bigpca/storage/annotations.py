"""Members of a store beside its numbers, outside of every digest: row keys and provenance."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.storage.json_values import to_json
from bigpca.storage.regular import check_size, is_there, read_document

KEYS = "keys"  # a Zarr array of strings
KEY_COLUMN = "key"  # the same in a table
PROVENANCE = "provenance"  # a Zarr group without arrays, whose attributes it is
KEYS_PER_CHUNK = 2**16
MAX_PROVENANCE_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class Annotations:
    """Members of a store that change none of its numbers.

    Attributes
    ----------
    keys : ndarray of shape (n,), str, or None
    provenance : mapping of JSON values, or None
    """

    keys: NDArray[np.str_] | None = None
    provenance: Mapping[str, Any] | None = None

    def write(self, store: Path) -> None:
        """Write both into an unfinished store."""
        if self.keys is not None:
            _write_keys(store / KEYS, self.keys)
        if self.provenance is not None:
            (store / PROVENANCE).mkdir()
            attributes = to_json(dict(self.provenance), PROVENANCE)
            document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
            (store / PROVENANCE / "zarr.json").write_text(json.dumps(document))


NOTHING = Annotations()


def _write_keys(path: Path, keys: NDArray[np.str_]) -> None:
    import zarr  # heavy: only what writes a store loads it
    from zarr.codecs import ZstdCodec

    stored = zarr.create_array(
        str(path),
        shape=keys.shape,
        dtype=str,
        chunks=(max(1, min(len(keys), KEYS_PER_CHUNK)),),
        compressors=[ZstdCodec(level=3, checksum=True)],
        filters=None,
        config={"write_empty_chunks": True},
    )
    for start in range(0, len(keys), KEYS_PER_CHUNK):
        stored[start : start + KEYS_PER_CHUNK] = keys[start : start + KEYS_PER_CHUNK]


def read_provenance(store: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the provenance in an untrusted store as JSON values; None if it has none.

    Raises
    ------
    CorruptedChunkError
        If it is larger than 1 MiB, not JSON, or not an object.
    """
    path = Path(store) / PROVENANCE / "zarr.json"
    if not is_there(path):
        return None
    check_size(path.stat().st_size, path, MAX_PROVENANCE_BYTES)
    attributes = read_document(path).get("attributes")
    return attributes if isinstance(attributes, dict) else {}
