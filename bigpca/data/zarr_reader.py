"""One Zarr array whose missing chunks are never read as zeros, and whose damaged chunks are named."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigpca.data.bfloat16 import as_integers, is_half, widened
from bigpca.data.checks import check_dtype, is_decode_error
from bigpca.data.containers import is_zarr_array
from bigpca.data.urls import public, without_credentials
from bigpca.data.zarr_chunks import Cell, ChunkFiles, Stamp
from bigpca.data.zarr_index import Index, plan_index
from bigpca.data.zarr_metadata import array_document, check_document, is_uncompressed, naming_damage
from bigpca.errors import CorruptedChunkError, MissingChunksError, brief, check_choice
from bigpca.storage.regular import read_document
from bigpca.storage.stores import address_of, disk_path, kind_of

if TYPE_CHECKING:
    import zarr

MissingChunks = Literal["raise", "fill"]
DOCUMENTS = {"zarr.json": 3, ".zarray": 2}


class _Opened(NamedTuple):
    stamp: tuple[int, int, int] | None
    files: ChunkFiles
    digest: str


_OPENED: dict[tuple[str, str], _Opened] = {}  # one handle per array and process; replaced when its metadata changes
_LOCK = threading.Lock()


class ZarrReader:
    """A Zarr array (v2 or v3, sharded or not, any dimensions) that checks that chunks exist before it decodes them.

    Pickled as a path and a few numbers; the handle is opened once per process. Inside an existing shard, Zarr does not
    distinguish a chunk that was never written from one of fill values, so neither does this class.

    Parameters
    ----------
    store : str, path or zarr.Array
        Local directory, or a URL that Zarr understands. An array in any other store is kept open.
    path_in_group : str
        Path of the array inside a group; empty for a store that is one array.
    missing_chunks : {"raise", "fill"}
        What to do about a missing chunk: raise an error, or use Zarr's fill value.

    Raises
    ------
    FileNotFoundError
        If there is no array at that path.
    TypeError, ValueError
        For dtypes and codecs that :func:`bigpca.data.zarr_metadata.check_document` rejects, before any chunk is read.
    """

    def __init__(
        self, store: str | os.PathLike[str] | zarr.Array[Any], path_in_group: str = "", missing_chunks: str = "raise"
    ) -> None:
        check_choice("missing_chunks", missing_chunks, ("raise", "fill"))
        self.missing_chunks = missing_chunks
        self._held: ChunkFiles | None = None
        if is_zarr_array(store):
            path_in_group = store.path
            self.store = address_of(store.store)
            if disk_path(store.store) is None:
                self._held = ChunkFiles.of(store)
        else:
            self.store = os.path.abspath(store) if kind_of(store) == "disk" else os.fspath(store)
        self.path_in_group = path_in_group.strip("/")
        self._digest = ""
        if self._held is not None:
            check_document(array_document(self._held.array), self.label)
        elif kind_of(self.store) != "disk":
            _OPENED.pop((self.store, self.path_in_group), None)
        files = self.files()
        self._digest = files.digest
        self.shape: tuple[int, ...] = files.array.shape
        self.chunks: tuple[int, ...] = files.array.chunks
        self.cell_shape: tuple[int, ...] = files.cell_shape
        self.dtype = np.dtype(np.float32) if files.halves else check_dtype(files.array.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle an open array too, so that a store that cannot be sent to workers is named.

        Raises
        ------
        TypeError
        """
        state = vars(self).copy()
        if self._held is not None:
            try:
                state["_held"] = pickle.dumps(self._held)
            except BaseException as error:  # pyo3's PanicException is not an Exception
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                raise TypeError(
                    f"{self.label} cannot be sent to workers, because its store cannot be pickled "
                    f"({type(error).__name__}: {brief(error)}). Pass its URL or, of icechunk, an array of "
                    'repo.readonly_session("main").store; or run without workers '
                    '(dask.config.set(scheduler="threads")).'
                ) from None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = state["_held"]
        vars(self).update(state, _held=None if held is None else pickle.loads(held))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def label(self) -> str:
        """Location of the array, for messages."""
        store = public(self.store)
        return os.path.join(store, self.path_in_group) if self.path_in_group else store

    @property
    def digest(self) -> str:
        """SHA-256 of the metadata that define how chunks are decoded."""
        return self._digest

    def __repr__(self) -> str:
        return f"<ZarrReader {self.label} shape={self.shape} dtype={self.dtype} missing_chunks={self.missing_chunks!r}>"

    def __dask_tokenize__(self) -> object:
        return "bigpca.ZarrReader", self.label, self._digest, self.missing_chunks, self.stamps()

    def stamps(self) -> list[Stamp]:
        """Return a stamp for each chunk (or shard), as :meth:`bigpca.data.zarr_chunks.ChunkFiles.stamps`."""
        return self.files().stamps((0, size) for size in self.shape)

    @property
    def stamped(self) -> bool:
        """Whether the store says when its objects change."""
        return self.files().stamped

    def files(self) -> ChunkFiles:
        """Return this process's open array and its stored objects."""
        if self._held is not None:
            return self._held
        key = (self.store, self.path_in_group)
        document, version = self._document()
        stamp = _stamp(document) if document else None
        with _LOCK:
            opened = _OPENED.get(key)
            replaced = opened is not None and not document and self._digest not in ("", opened.digest)
            if opened is None or replaced or opened.stamp != stamp:
                files = self._open(document, version)
                opened = _OPENED[key] = _Opened(stamp, files, files.digest)
        if self._digest and opened.digest != self._digest:
            raise ValueError(
                f"{self.label} is not the array that was opened: its shape, dtype, chunks or codecs changed "
                f"(shape {self.shape} then, {opened.files.array.shape} now). Open it again."
            )
        return opened.files

    def _document(self) -> tuple[str, int]:
        """Return path and Zarr version of the metadata file; an empty path for URLs."""
        if kind_of(self.store) != "disk":
            return "", 0
        for name, version in DOCUMENTS.items():
            path = os.path.join(self.label, name)
            if os.path.exists(path):
                return path, version
        raise FileNotFoundError(
            f"{self.label} holds no Zarr array: it has neither zarr.json nor .zarray. "
            "Check the path, and the member for an array inside a group."
        )

    def _open(self, document: str, version: int) -> ChunkFiles:
        import zarr  # slow to import, so only when the first store is opened

        from bigpca.storage.regular_store import RegularStore

        if not document:
            with without_credentials(self.store):
                array = zarr.open_array(store=self.store, path=self.path_in_group, mode="r")
            check_document(array_document(array), self.label)
            return ChunkFiles.of(array)
        # The metadata that were checked must be those that are opened, so Zarr must not search for the version.
        metadata = read_document(document)
        if metadata.get("node_type", "array") != "array":
            raise ValueError(f"{self.label} is a Zarr group, not an array. Name the array with member=.")
        with naming_damage(self.label):
            check_document(as_integers(metadata), self.label)
            root = RegularStore(self.store, rewritten=as_integers)
            return ChunkFiles.of(
                zarr.open_array(store=root, path=self.path_in_group, mode="r", zarr_format=3 if version == 3 else 2),
                is_half(metadata),
            )

    def __getitem__(self, index: Index) -> NDArray[Any]:
        """Read a selection into new memory: integers, slices of any step, and one list of rows or columns per axis.

        Raises
        ------
        MissingChunksError
            If a chunk of the selection is not in the store (``missing_chunks="raise"``).
        CorruptedChunkError
            If one cannot be decoded. An OSError of the file system is not changed.
        """
        plan = plan_index(index, self.shape)
        files = self.files()
        block = self._direct(files, plan.bounds)
        if block is None:
            with without_credentials(self.store):
                if self.missing_chunks == "raise":
                    self._check_present(files, plan.bounds)
                block = np.asarray(self._decode(files, plan.bounds))
        block = plan.finish(block)
        block = np.asarray(widened(block) if files.halves else block, dtype=self.dtype, order="C")
        return block if block.flags.writeable else block.copy()

    def _direct(self, files: ChunkFiles, bounds: tuple[tuple[int, int], ...]) -> NDArray[Any] | None:
        """Decode whole rows directly into the result, if the layout allows it and every file is as expected."""
        whole_rows = all((lo, hi) == (0, size) for (lo, hi), size in zip(bounds[1:], self.shape[1:], strict=True))
        return files.direct.read(files.key, *bounds[0]) if whole_rows and files.direct is not None else None

    def _check_present(self, files: ChunkFiles, bounds: Sequence[tuple[int, int]]) -> None:
        missing = files.missing(files.cells(bounds))
        if missing.lost:
            shown = ", ".join(missing.first) + (", ..." if missing.lost > len(missing.first) else "")
            raise MissingChunksError(
                f"{self.label}: {missing.lost} of the {missing.looked} chunks needed here are not in the store: "
                f"{shown}. Either their files were lost (a killed writer, a full disk, an incomplete copy), or the "
                "writer dropped chunks that hold only the fill value (write_empty_chunks=False, Zarr's default). "
                'Restore them, or, if you know that they held the fill value, pass missing_chunks="fill".'
            )

    def _decode(self, files: ChunkFiles, bounds: tuple[tuple[int, int], ...]) -> Any:
        cut = [(cell, ValueError("its Blosc header states more")) for cell in files.cut_short(files.cells(bounds))]
        large = files.too_large(bounds)
        cut += [(cell, ValueError(reason)) for cell, reason in large]
        if cut:
            raise CorruptedChunkError(self._describe(files, cut))
        index = tuple(slice(lo, hi) for lo, hi in bounds)
        try:
            return files.array[index]
        except Exception as error:
            if not is_decode_error(error):
                raise
            broken = [one for one in (_broken(files, cell) for cell in files.cells(bounds)) if one]
            if broken:
                raise CorruptedChunkError(self._describe(files, broken)) from error
            # Each chunk alone can be decoded, so the failure was transient (a short read): try once more.
            return files.array[index]

    def _describe(self, files: ChunkFiles, broken: Sequence[tuple[Cell, Exception]]) -> str:
        cell, error = broken[0]
        key, size = files.key(cell), files.size(cell)
        others = f" Nor can {', '.join(files.key(c) for c, _ in broken[1:10])}." if len(broken) > 1 else ""
        shape, nbytes = files.cell_shape, int(np.prod(files.cell_shape)) * files.array.dtype.itemsize
        expected = "exactly" if is_uncompressed(array_document(files.array)) else "compressed data that decode to"
        return (
            f"{self.label}: chunk {key} cannot be decoded: its file has {size:,} bytes, {expected} {nbytes:,} bytes "
            f"for the shape {shape} were expected ({type(error).__name__}: {error}).{others} "
            "Restore the file from a copy, or rewrite the store; `bigpca verify` lists all damaged chunks."
        )


def _broken(files: ChunkFiles, cell: Cell) -> tuple[Cell, Exception] | None:
    try:
        files.decode(cell)
    except Exception as error:
        if not is_decode_error(error):
            raise
        return cell, error
    return None


def _stamp(path: str) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


def wrap_zarr(array: zarr.Array[Any], missing_chunks: str = "raise") -> ZarrReader:
    """Wrap a Zarr array found in a Dask graph, so that its missing chunks are detected when they are read."""
    return ZarrReader(array, missing_chunks=missing_chunks)
