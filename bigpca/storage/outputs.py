"""The driver's side of an output: written in chunks of rows, resumable, and invisible until complete.

What outputs on a disk and at object stores have in common; :mod:`bigpca.storage.carriers` makes them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from bigpca.errors import OutputWriteError, brief
from bigpca.storage.chunks import LEVEL, ChunkRecord, ChunkWriter, array_metadata, fill_value
from bigpca.storage.forms import NOTHING, Annotations
from bigpca.storage.lock import RunLock

FORMAT = (1, 0)
GROWING = 2**62  # rows of an output whose number of rows is set before its last chunk is written


@dataclass(frozen=True)
class OutputLayout:
    """What must agree for a partial output to be resumed."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    identity: str

    @property
    def fields(self) -> tuple[tuple[int, ...], str, int]:
        """Shape, dtype and rows per chunk, as writers and claims have them."""
        return self.shape, self.dtype.str, self.chunk_rows

    @property
    def grows(self) -> bool:
        """Whether the number of rows is set at the end; the metadata have 0 until then."""
        return self.shape[0] == GROWING


def rows_at_end(data: bytes, where: str, remedy: str) -> int:
    """Return the number of rows that a run recorded at the end of an output that grows, and was killed there.

    Raises
    ------
    OutputWriteError
        If it is none.
    """
    if not re.fullmatch(rb"\d{1,18}", data):
        raise OutputWriteError(
            f"{where} holds {brief(data)}; a number of rows was expected: it is damaged or forged. {remedy}"
        )
    return int(data)


def partial_document(layout: OutputLayout) -> dict[str, Any]:
    """Return the metadata of an unfinished array."""
    shape = (0, *layout.shape[1:]) if layout.grows else layout.shape
    chunks = (layout.chunk_rows, *layout.shape[1:])
    attributes = {"kind": "partial array", "format": list(FORMAT), "identity": layout.identity}
    return array_metadata(shape, layout.dtype, chunks, fill_value(layout.dtype), LEVEL, {"bigpca": attributes})


@dataclass(frozen=True)
class Reserved:
    """Where an output will be, and what is known of it before the output is.

    Attributes
    ----------
    target : path, URL, store or ObjectStore
    layout : OutputLayout or None
        Of the unfinished output there, which is to be continued.
    lock : RunLock or None
        On a disk: held until the output is finished or aborted.
    """

    target: Any
    layout: OutputLayout | None = None
    lock: RunLock | None = None


class Output(ABC):
    """An output being written: pass :attr:`writer` to the tasks, then :meth:`finish`.

    Made by :func:`bigpca.storage.carriers.create_output`.

    Leaving its context without :meth:`finish` aborts it, and it can be resumed.

    Attributes
    ----------
    path : Path, or str
        Path of the finished array or table; URL without secrets.
    writer : ChunkWriter
        Small and picklable; ``writer.write(index, rows)`` in any process.
    shape : tuple of int
    dtype : dtype
    n_chunks : int
    place : bigpca.storage.places.ObjectStore or None
        The prefix of its objects; None on a disk.
    joins : bool
        Whether chunks of runs of equal identity are its own.
    published : bool
        Whether a killed run of equal identity had published it, and had only to remove its journal.
    """

    place: Any = None
    published: bool = False

    def __init__(self, path: Path | str, writer: ChunkWriter, *, joins: bool = True) -> None:
        self.path, self.writer, self.joins = path, writer, joins
        self.shape = writer.shape
        self.dtype = np.dtype(writer.dtype)
        self.n_chunks = writer.n_chunks

    def leading(self) -> int:
        """Return how many chunks are finished before the first one that is not."""
        finished = self._finished()
        return next(index for index in range(len(finished) + 1) if index not in finished)

    def set_rows(self, n: int) -> bool:
        """Set the number of rows of an output that grows, before its last chunk is written and it is finished.

        False if an interrupted :meth:`finish` has made it visible already.
        """
        self._check_open()
        hidden = not self._is_visible()
        if hidden:
            self.keep("rows", str(n).encode())
        self.writer = replace(self.writer, shape=(n, *self.shape[1:]))
        self.shape, self.n_chunks = self.writer.shape, self.writer.n_chunks
        return hidden

    def pending(self) -> list[int]:
        """List the chunks still to be written, in order."""
        finished = self._finished()
        return [index for index in range(self.n_chunks) if index not in finished]

    def finish(self, annotations: Annotations = NOTHING) -> None:
        """Make the output visible: check that it is complete, give it its form, make it durable, publish it.

        A Zarr array's attributes get ``bigpca_manifest`` (CRC-32 of every stored chunk) and ``bigpca`` (kind, format,
        identity). Other runs may then write to the path.

        Parameters
        ----------
        annotations : Annotations
            Row keys, provenance, and what its numbers are.

        Raises
        ------
        RuntimeError
            If chunks are missing: states how many, and the first ones. The output stays open.
        OutputExistsError
            If something appeared at ``path`` meanwhile and ``overwrite`` is False.
        """
        self._check_open()
        if not self._is_visible():
            finished = self._finished()
            missing = [index for index in range(self.n_chunks) if index not in finished]
            if missing:
                raise RuntimeError(
                    f"{len(missing)} of {self.n_chunks} chunks of {self.path} are not written (first: {missing[:10]}). "
                    "Write them, or abort and rerun: finished chunks are kept."
                )
            self._publish(finished, annotations)
        self._close()

    @abstractmethod
    def abort(self) -> None:
        """Let other runs write, and keep finished chunks for the next one; remove the output if there are none.

        A no-op after :meth:`finish`.
        """

    @abstractmethod
    def keep(self, name: str, data: bytes) -> None:
        """Store a small record beside the chunks of the unfinished output."""

    @abstractmethod
    def kept(self, name: str) -> bytes | None:
        """Return a record that :meth:`keep` stored, or None."""

    def note(self, record: ChunkRecord) -> None:  # noqa: B027  # an output on a disk has nothing to do
        """Take note of a chunk that a task or this process has written."""

    @abstractmethod
    def _finished(self) -> dict[int, ChunkRecord]:
        """Return the records of the chunks that are written."""

    @abstractmethod
    def _is_visible(self) -> bool:
        """Whether the output was published by this run, or one of the same identity."""

    @abstractmethod
    def _publish(self, finished: dict[int, ChunkRecord], annotations: Annotations) -> None:
        """Make the chunks visible at the path, all at once."""

    @abstractmethod
    def _close(self) -> None:
        """Remove what is of no use once the output is visible, and let other runs write."""

    @abstractmethod
    def _is_open(self) -> bool:
        """Whether it is neither finished nor aborted."""

    def _check_open(self) -> None:
        if not self._is_open():
            raise RuntimeError(f"the output {self.path} is finished or aborted already. Create it again to resume.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()
