"""Everything that bigpca stores on disk: models, outputs, locks; complete or absent, and checked when read.

An output is written by any process in ``chunks`` of an unfinished Zarr array (``outputs``), and committed by one
process to its form: a Zarr store, or a table in one file (``forms``). Row keys and provenance are its ``Annotations``.
A model is one of ``groups``. ``files`` are complete or absent, and say where a path or URL keeps its bytes and which
part of it may be shown; a ``lock`` is held by one process.
"""

from bigpca.storage.chunks import ChunkRecord, ChunkWriter
from bigpca.storage.files import atomic_write_bytes, free_bytes
from bigpca.storage.forms import Annotations
from bigpca.storage.groups import MODEL_FORMAT, Group, read_group, write_group
from bigpca.storage.lock import RunLock
from bigpca.storage.outputs import Output, create_output

__all__ = [
    "MODEL_FORMAT",
    "Annotations",
    "ChunkRecord",
    "ChunkWriter",
    "Group",
    "Output",
    "RunLock",
    "atomic_write_bytes",
    "create_output",
    "free_bytes",
    "read_group",
    "write_group",
]
