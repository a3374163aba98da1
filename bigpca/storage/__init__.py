"""Everything that bigpca stores on disk: models, outputs, locks; complete or absent, and checked when read.

- ``groups``         a model: one Zarr group of named arrays and JSON attributes
- ``outputs``        the driver's side of an output: written in chunks of rows, resumable, invisible until complete
- ``chunks``         the worker's side: whole chunks in an unfinished Zarr array, written by any process, with a journal
- ``forms``          what a complete output is: a Zarr store, or a table in one file; with row keys and provenance
- ``carriers``       the door of outputs and files: which of the two that follow has them
- ``disk``           outputs, models and files on a disk: a lock, a folder beside the path, and a rename
- ``objects``        the same functions at object stores: claims, chunks create-only, the root metadata last
- ``lock``           one run at a time, by a file that records its holder
- ``files``          durable writes and safe reads; where a path or URL keeps its bytes, and what of it may be shown
- ``grammar``        kinds of outputs, and which keys below each are bigpca's: all that is ever deleted
- ``places``         an object prefix: list, get, put, delete, describe; apart, because only URLs need it
- ``requests``       many objects at a time: what is in flight, which the threads of a process share
- ``regular_store``  what Zarr is given to read: regular files, and objects; apart, because it imports Zarr
"""

from bigpca.storage.carriers import create_output
from bigpca.storage.chunks import ChunkRecord, ChunkWriter
from bigpca.storage.files import atomic_write_bytes, free_bytes
from bigpca.storage.forms import Annotations
from bigpca.storage.groups import MODEL_FORMAT, GotGroup, read_group, write_group
from bigpca.storage.lock import RunLock
from bigpca.storage.outputs import Output

__all__ = [
    "MODEL_FORMAT",
    "Annotations",
    "ChunkRecord",
    "ChunkWriter",
    "GotGroup",
    "Output",
    "RunLock",
    "atomic_write_bytes",
    "create_output",
    "free_bytes",
    "read_group",
    "write_group",
]
