"""Checkpoints of a pass: finished segments and one growing prefix, as files that are complete or absent.

``<checkpoint>/<fingerprint>/pass-01/segment-017.npz`` holds the state of one segment, ``prefix-018.npz`` the left fold
of segments 0 to 17. Arrays only, never pickle; the zip container checks a CRC of every array that is read back. The
finished prefix is kept, so repeating a fit on the same input reads nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bigpca.blas import Caller, numerical_environment
from bigpca.errors import CheckpointError, CorruptedChunkError
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.engine.jobs import PassState, digest
from bigpca.passes.reading.layout import Layout
from bigpca.storage import RunLock, atomic_write_bytes
from bigpca.storage.files import read_arrays, read_document, read_regular, reject_url

FORMAT = 1
STATE_MARGIN = 4  # a file may hold this many times the declared bytes of a state
MAX_RECORD = 1 << 26  # bytes of the stamps and small arrays of a state


class WriteFailed(RuntimeError):
    """A state could not be written, usually because the disk is full; the run continues without the checkpoint."""


@dataclass(frozen=True)
class SegmentFiles:
    """The files of the states of one pass; small and picklable, so that tasks can write and read them.

    Attributes
    ----------
    directory : str
    templates : dict of str to Accumulator
        Bare accumulators, as ``with_arrays`` requires.
    max_bytes : int
        Of the arrays in one file; larger files are not read.
    """

    directory: str
    templates: dict[str, Accumulator]
    max_bytes: int

    def path(self, kind: str, index: int) -> Path:
        """Return the file of segment ``index``, or of the prefix over segments ``0:index``."""
        return Path(self.directory, f"{kind}-{index:03d}.npz")

    def write(self, kind: str, index: int, state: PassState) -> int:
        """Write a state atomically and durably, and return its bytes. Two writers of one state write equal files.

        Raises
        ------
        WriteFailed
            If the file system rejects it; no partial file remains.
        """
        target = self.path(kind, index)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with open(temporary, "xb") as file:
                np.savez(file, **state.to_arrays())  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            return target.stat().st_size
        except OSError as error:
            raise WriteFailed(f"{type(error).__name__}: {error}") from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def read(self, kind: str, index: int) -> PassState:
        """Read a state back.

        Raises
        ------
        CheckpointError
            If the file is truncated or altered.
        """
        target = self.path(kind, index)
        try:
            return PassState.from_arrays(self.templates, read_arrays(target, self.max_bytes))
        except (zipfile.BadZipFile, zlib.error, ValueError, LookupError, EOFError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{target} cannot be read back ({error}): it was truncated or altered. Delete it and run again: "
                "only its rows will be read again."
            ) from error

    def forget_before(self, count: int) -> None:
        """Delete the files that the prefix over segments ``0:count`` supersedes."""
        for kind, index in self.present():
            if index < count:
                self.path(kind, index).unlink(missing_ok=True)

    def forget_unfinished(self) -> None:
        """Delete files of killed writers; only the run that holds the checkpoint may, before or after its pass."""
        _remove_hidden(Path(self.directory))

    def present(self) -> list[tuple[str, int]]:
        """Return kind and index of every state file."""
        found = []
        with suppress(FileNotFoundError):
            for name in os.listdir(self.directory):
                match = re.fullmatch(r"(segment|prefix)-(\d+)\.npz", name)
                if match:
                    found.append((match[1], int(match[2])))
        return sorted(found)


@dataclass(frozen=True)
class Resumed:
    """What an earlier run of a pass finished, or nothing: where this run starts.

    Attributes
    ----------
    files : SegmentFiles or None
    prefix : PassState or None
        The fold of segments ``0:covered``.
    covered : int
    segments : frozenset of int
        Later segments whose states are on disk.
    writing : bool
        False once the checkpoint cannot be written, and is only read.
    """

    files: SegmentFiles | None = None
    prefix: PassState | None = None
    covered: int = 0
    segments: frozenset[int] = frozenset()
    writing: bool = True


class Checkpoint:
    """The directory of one resumable fit, locked while it runs.

    Parameters
    ----------
    path : path-like
    description : mapping
        JSON-able: source, layout and what is computed. Its digest is the fingerprint.
    seed : int or None
        The fit's seed, not part of the description: a rerun that would draw a seed uses it, see :func:`stored_seed`.
    user : Caller or None
        The frame of the fit, after which nobody holds the directory, whatever interrupted it.

    Raises
    ------
    CheckpointError
        If the directory belongs to another computation; names the differences.
    OutputLockedError
        If a live run holds it.
    """

    def __init__(
        self, path: str | os.PathLike[str], description: Mapping[str, object], seed: int | None = None,
        user: Caller | None = None,
    ) -> None:  # fmt: skip
        self.path, self.seed = Path(path), seed
        self.description = json.loads(json.dumps(description, default=str))
        self.fingerprint = digest({"format": FORMAT, **self.description})
        self.directory = self.path / self.fingerprint
        self._lock = RunLock(self.path / "run.lock", f"the checkpoint {self.path}", user)
        try:
            reject_url(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._open()
        except (FileExistsError, NotADirectoryError) as error:
            raise CheckpointError(
                f"the checkpoint {self.path} is a file, or is under one; a new or existing directory was expected."
            ) from error
        except CorruptedChunkError as error:
            self.release()
            raise CheckpointError(
                f"the checkpoint {self.path} cannot be used: {error} Or delete the directory to start again."
            ) from error
        except OSError as error:
            self.release()
            raise CheckpointError(
                f"the checkpoint {self.path} cannot be written ({type(error).__name__}: {error}). It needs a directory "
                "with room for a few states: free space or allow writing there, or pass another path."
            ) from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlock the directory; its files are kept."""
        self._lock.release()

    def _open(self) -> None:
        others = [p for p in self.path.iterdir() if p.is_dir() and (p / "run.json").exists() and p != self.directory]
        if others:
            stored = read_document(others[0] / "run.json")
            differences = "; ".join(_differences(stored.get("description", {}), self.description)) or "another format"
            raise CheckpointError(
                f"the checkpoint {self.path} belongs to another computation ({differences}). Resume with the same "
                "input and parameters, pass another checkpoint path, or delete the directory to start again."
            )
        foreign = [
            p.name for p in self.path.iterdir() if p.name not in {"run.lock", self.fingerprint} and p.name[0] != "."
        ]
        if foreign:
            raise CheckpointError(
                f"the checkpoint {self.path} holds files that are not a checkpoint's "
                f"({', '.join(sorted(foreign)[:3])}). Pass the path of a new or empty directory."
            )
        self.directory.mkdir(exist_ok=True)
        _remove_hidden(self.directory)
        record = self.directory / "run.json"
        machine = numerical_environment()
        if record.exists():
            stored = read_document(record).get("machine", {})
            changed = [f"{k} {stored.get(k)} -> {v}" for k, v in machine.items() if stored.get(k) != v]
            if changed:
                warnings.warn(
                    f"the checkpoint {self.path} was started with other libraries ({'; '.join(changed)}): the result "
                    "is as accurate, but its last bits may differ from those of an uninterrupted run.",
                    UserWarning,
                    stacklevel=2,
                )
        else:
            content = {"format": FORMAT, "description": self.description, "machine": machine, "seed": self.seed}
            atomic_write_bytes(record, json.dumps(content, indent=1).encode())

    def files(
        self,
        number: int,
        templates: Mapping[str, Accumulator],
        layout: Layout,
        rows: Mapping[str, object] | None = None,
    ) -> SegmentFiles:
        """Return the files of pass ``number``; if its layout, rows or templates changed, delete them with a warning."""
        directory = self.directory / f"pass-{number:02d}"
        cut = digest(
            [layout.reads, layout.slab_rows, [list(g) for g in layout.groups], [list(s) for s in layout.segments]]
        )
        described = json.dumps(
            {"layout": cut, **{k: a.describe() for k, a in templates.items()}, **({"rows": rows} if rows else {})},
            sort_keys=True,
        )
        mark = directory / "pass.json"
        if directory.exists() and (not mark.exists() or read_regular(mark) != described.encode()):
            if mark.exists():  # else a killed run had written no state yet
                warnings.warn(
                    f"{directory} holds what pass {number} of this fit computed in another way, as other versions or "
                    "machines may. It is deleted, and its rows are read again.",
                    UserWarning,
                    stacklevel=2,
                )
            shutil.rmtree(directory)
        directory.mkdir(exist_ok=True)
        if not mark.exists():
            atomic_write_bytes(mark, described.encode())
        expected = STATE_MARGIN * sum(a.state_bytes for a in templates.values()) + MAX_RECORD
        files = SegmentFiles(str(directory.absolute()), {k: a.bare() for k, a in templates.items()}, expected)
        files.forget_unfinished()
        return files

    def finished(self, files: SegmentFiles, segments: Sequence[range]) -> Resumed:
        """Return what an earlier run finished of a pass; damaged files are deleted with a warning.

        Parameters
        ----------
        segments : sequence of range
            The groups of each segment, which each state's stamps must match.
        """
        prefix, covered, stored = None, 0, set()
        for kind, index in reversed(files.present()):  # segments first, then prefixes, the longest first
            try:
                if kind == "prefix" and prefix is None:
                    prefix, covered = _of_groups(files, kind, index, segments[:index]), index
                elif kind == "segment":
                    _of_groups(files, kind, index, segments[index : index + 1])
                    stored.add(index)
            except CheckpointError as error:
                warnings.warn(str(error), UserWarning, stacklevel=2)
                files.path(kind, index).unlink(missing_ok=True)
        return Resumed(files, prefix, covered, frozenset(s for s in stored if s >= covered))


def stored_seed(path: str | os.PathLike[str]) -> int | None:
    """Return the seed of the fit that was started in a checkpoint's directory; None if there is no readable one."""
    for record in sorted(Path(path).glob("*/run.json")):
        with suppress(OSError, ValueError, AttributeError):
            seed = read_document(record).get("seed")
            if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
                return seed
    return None


def _remove_hidden(directory: Path) -> None:
    """Delete temporary files, which are the only ones whose names start with a dot."""
    for unfinished in directory.glob(".*"):
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _of_groups(files: SegmentFiles, kind: str, index: int, segments: Sequence[range]) -> PassState:
    state = files.read(kind, index)
    if state.stamps.keys() != {group for groups in segments for group in groups}:
        raise CheckpointError(
            f"{files.path(kind, index)} holds {len(state.stamps)} groups of rows that do not match its name: it was "
            "renamed or copied from elsewhere. It is deleted, and its rows are read again."
        )
    return state


def warn_unwritten(error: WriteFailed, path: Path) -> None:
    """Warn that a run continues without its checkpoint."""
    warnings.warn(
        f"the checkpoint {path} cannot be written any more ({error}). The run continues without it; if it were "
        "interrupted, a rerun would start from what is stored there so far. Free space there.",
        UserWarning,
        stacklevel=2,
    )


def _differences(stored: object, current: object, name: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(current, dict):
        keys = sorted(stored.keys() | current.keys())
        return [line for k in keys for line in _differences(stored.get(k), current.get(k), f"{name}.{k}".lstrip("."))]
    return [] if stored == current else [f"{name}: {_short(stored)} there, {_short(current)} here"]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."


def check_stamps(
    stored: Mapping[int, str], current: Mapping[int, str], rows_of: Callable[[int], tuple[int, int]], path: Path
) -> None:
    """Check that the input has not changed since the checkpoint was written.

    Raises
    ------
    CheckpointError
        If it has; names the first rows whose files changed.
    """
    changed = sorted(group for group, stamp in stored.items() if current.get(group) != stamp)
    if changed:
        start, stop = rows_of(changed[0])
        raise CheckpointError(
            f"the input changed since the checkpoint {path} was written: {len(changed)} of {len(stored)} finished "
            f"groups, the first with rows {start}:{stop}. A model of old and new rows would be wrong; delete the "
            "checkpoint to start again."
        )
