"""Everything that bigpca stores on disk: models, outputs, locks; complete or absent, and checked when read.

- ``carriers``       the door of models, outputs and files: which of ``disk`` and ``objects`` has them; and a model, one
  Zarr group of named arrays and JSON attributes
- ``outputs``        an output: whole chunks of rows written by any process; what it is when complete, a Zarr store or a
  table in one file, with row keys and provenance; the driver's side, resumable, invisible until complete
- ``disk``           outputs, models and files on a disk: a lock, a folder beside the path, and a rename
- ``objects``        the same functions at object stores: claims, chunks create-only, the root metadata last
- ``lock``           one run at a time, by a file that records its holder
- ``files``          durable writes and safe reads; where a path or URL keeps its bytes, and what of it may be shown
- ``grammar``        kinds of outputs, and which keys below each are bigpca's: all that is ever deleted
- ``places``         an object prefix: list, get, put, delete, describe; apart, because only URLs need it
- ``requests``       many objects at a time: what is in flight, which the threads of a process share
- ``regular_store``  what Zarr is given to read: regular files, and objects; apart, because it imports Zarr
"""

from bigpca.storage.carriers import MODEL_FORMAT, GotGroup, create_output, read_group, write_group
from bigpca.storage.files import atomic_write_bytes, free_bytes
from bigpca.storage.lock import RunLock
from bigpca.storage.outputs import Annotations, ChunkRecord, ChunkWriter, Output

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
