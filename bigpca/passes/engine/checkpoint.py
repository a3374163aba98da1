"""Checkpoints of a pass: finished segments and one growing prefix, as files that are complete or absent.

``<checkpoint>/<fingerprint>/pass-01/segment-017.npz`` holds the state of one segment, ``prefix-018.npz`` the left fold
of segments 0 to 17. Arrays only, never pickle; the zip container checks a CRC of every array that is read back. The
finished prefix is kept, so repeating a fit on the same input reads nothing.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import uuid
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bigpca.arrays import Array
from bigpca.blas import Caller, numerical_environment
from bigpca.errors import CheckpointError, CorruptedChunkError
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.engine.jobs import PassState, digest
from bigpca.passes.reading.layout import Layout
from bigpca.storage import RunLock, atomic_write_bytes
from bigpca.storage.files import is_objects, read_arrays, read_document, read_regular, reject_url

if TYPE_CHECKING:
    from bigpca.storage.places import Place

FORMAT = 1
STATE_MARGIN = 4  # a file may hold this many times the declared bytes of a state
MAX_RECORD = 1 << 26  # bytes of the stamps and small arrays of a state


class WriteFailed(RuntimeError):
    """A state could not be written, usually because the disk is full; the run continues without the checkpoint."""


@dataclass(frozen=True)
class SegmentStates(ABC):
    """The stored states of one pass; small and picklable, so that tasks can write and read them.

    Attributes
    ----------
    directory : str
        Or the URL of a prefix.
    templates : dict of str to Accumulator
        Bare accumulators, as ``with_arrays`` requires.
    max_bytes : int
        Of the arrays in one state; larger ones are not read.
    """

    directory: str
    templates: dict[str, Accumulator]
    max_bytes: int

    @abstractmethod
    def write(self, kind: str, index: int, state: PassState) -> int:
        """Write a state atomically and durably, and return its bytes. Two writers of one state write equal bytes.

        Raises
        ------
        WriteFailed
            If the file system or the store rejects it; no part of it remains.
        """

    def read(self, kind: str, index: int) -> PassState:
        """Read a state back.

        Raises
        ------
        CheckpointError
            If it is truncated or altered.
        """
        try:
            return PassState.from_arrays(self.templates, self._arrays(kind, index))
        except (zipfile.BadZipFile, zlib.error, ValueError, LookupError, EOFError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.where(kind, index)} cannot be read back ({error}): it was truncated or altered. Delete it and "
                "run again: only its rows will be read again."
            ) from error

    @abstractmethod
    def _arrays(self, kind: str, index: int) -> dict[str, Array]:
        """Read the arrays of a state, of at most ``max_bytes``."""

    @abstractmethod
    def where(self, kind: str, index: int) -> str:
        """Return the path or URL of segment ``index``, or of the prefix over segments ``0:index``."""

    @abstractmethod
    def delete(self, states: Sequence[tuple[str, int]]) -> None:
        """Delete states, as far as they exist."""

    @abstractmethod
    def _names(self) -> list[str]:
        """Return the names of what is stored."""

    @property
    @abstractmethod
    def shared(self) -> bool | None:
        """Whether tasks write and read the states; None if that depends on what workers see of the directory."""

    @abstractmethod
    def forget_unfinished(self) -> None:
        """Delete what killed writers left; only the run that holds the checkpoint may, before or after its pass."""

    def forget_before(self, count: int) -> None:
        """Delete the states that the prefix over segments ``0:count`` supersedes."""
        self.delete([(kind, index) for kind, index in self.present() if index < count])

    def present(self) -> list[tuple[str, int]]:
        """Return kind and index of every stored state."""
        found = (re.fullmatch(r"(segment|prefix)-(\d+)\.npz", name) for name in self._names())
        return sorted((match[1], int(match[2])) for match in found if match)


def state_name(kind: str, index: int) -> str:
    """Return the name of a state in its directory."""
    return f"{kind}-{index:03d}.npz"


@dataclass(frozen=True)
class SegmentFiles(SegmentStates):
    """States as files of a local folder."""

    def path(self, kind: str, index: int) -> Path:
        """Return the file of segment ``index``, or of the prefix over segments ``0:index``."""
        return Path(self.directory, state_name(kind, index))

    def where(self, kind: str, index: int) -> str:
        """Return the path of a state."""
        return str(self.path(kind, index))

    def write(self, kind: str, index: int, state: PassState) -> int:
        """Write a file, and rename it."""
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

    def _arrays(self, kind: str, index: int) -> dict[str, Array]:
        return read_arrays(self.path(kind, index), self.max_bytes)

    def delete(self, states: Sequence[tuple[str, int]]) -> None:
        """Remove the files."""
        for kind, index in states:
            self.path(kind, index).unlink(missing_ok=True)

    @property
    def shared(self) -> bool | None:
        """Each worker has to look."""
        return None

    def forget_unfinished(self) -> None:
        """Delete temporary files."""
        _remove_hidden(Path(self.directory))

    def _names(self) -> list[str]:
        with suppress(FileNotFoundError):
            return os.listdir(self.directory)
        return []


@dataclass(frozen=True)
class SegmentObjects(SegmentStates):
    """States as objects, created if absent.

    Attributes
    ----------
    place : Place
    """

    place: Place

    def where(self, kind: str, index: int) -> str:
        """Return the URL of a state."""
        return self.place.describe(state_name(kind, index))

    def write(self, kind: str, index: int, state: PassState) -> int:
        """Put an object; memory: the encoded state. One that an equal run has put stands if it can be read."""
        from bigpca.storage.places import LARGEST_PUT, OccupiedError

        buffer, name = io.BytesIO(), state_name(kind, index)
        np.savez(buffer, **state.to_arrays())  # type: ignore[arg-type]
        data = buffer.getvalue()
        if len(data) > LARGEST_PUT:
            raise WriteFailed(f"a state of {len(data):,} bytes, and one request puts at most {LARGEST_PUT:,}")
        try:
            self.place.put(name, data, if_absent=True)
        except OccupiedError as error:
            try:
                self.read(kind, index)
            except CheckpointError:
                self.place.put(name, data, if_etag=error.found.etag)
        except OSError as error:
            raise WriteFailed(f"{type(error).__name__}: {error}") from error
        return len(data)

    def _arrays(self, kind: str, index: int) -> dict[str, Array]:
        try:
            data = self.place.get(state_name(kind, index)).data
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{self.where(kind, index)} was deleted while this run needed it, by another run of the same fit "
                "that is further. Run again: it resumes."
            ) from error
        return read_arrays(io.BytesIO(data), self.max_bytes)

    def delete(self, states: Sequence[tuple[str, int]]) -> None:
        """Delete the objects."""
        self.place.delete([state_name(kind, index) for kind, index in states])

    @property
    def shared(self) -> bool | None:
        """True, if the place can be sent to workers."""
        self.place.check_sendable()
        return True

    def forget_unfinished(self) -> None:
        """Do nothing: an object is put whole."""

    def _names(self) -> list[str]:
        return [entry.key for entry in self.place.list()]


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

    files: SegmentStates | None = None
    prefix: PassState | None = None
    covered: int = 0
    segments: frozenset[int] = frozenset()
    writing: bool = True


class States(ABC):
    """Where the states of a resumable run are.

    Attributes
    ----------
    path : Path, or str
        For messages: a path, or a URL without secrets.
    """

    path: Path | str

    @abstractmethod
    def files(
        self,
        number: int,
        templates: Mapping[str, Accumulator],
        layout: Layout,
        rows: Mapping[str, object] | None = None,
    ) -> SegmentStates:
        """Return the states of pass ``number``; of another layout, rows or templates, delete them with a warning."""

    @abstractmethod
    def release(self, *, done: bool = False) -> None:
        """Let other runs use the checkpoint; ``done`` if the fit has its result."""

    def finished(self, files: SegmentStates, segments: Sequence[range]) -> Resumed:
        """Return what an earlier run finished of a pass; damaged states are deleted with a warning.

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
                files.delete([(kind, index)])
        return Resumed(files, prefix, covered, frozenset(s for s in stored if s >= covered))


class Checkpoint(States):
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
        self.path: Path = Path(path)
        self.seed = seed
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
                f"the checkpoint {self.path} cannot be written ({type(error).__name__}: {error}). It needs a "
                f"directory with room for a few states: free some space, allow writing there, or pass another path."
            ) from error
        except BaseException:
            self.release()
            raise

    def release(self, *, done: bool = False) -> None:
        """Unlock the directory; its files are kept: with them, a repeated fit reads nothing."""
        self._lock.release()

    def _open(self) -> None:
        others = [p for p in self.path.iterdir() if p.is_dir() and (p / "run.json").exists() and p != self.directory]
        if others:
            stored = read_document(others[0] / "run.json")
            raise _belongs_to_another(self.path, stored, self.description)
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
        if record.exists():
            _warn_of_changes(self.path, read_document(record))
        else:
            machine = numerical_environment()
            content = {"format": FORMAT, "description": self.description, "machine": machine, "seed": self.seed}
            atomic_write_bytes(record, json.dumps(content, indent=1).encode())

    def files(
        self,
        number: int,
        templates: Mapping[str, Accumulator],
        layout: Layout,
        rows: Mapping[str, object] | None = None,
    ) -> SegmentStates:
        """Return the states of a pass as files."""
        directory = self.directory / f"pass-{number:02d}"
        described = _describe_pass(templates, layout, rows)
        mark = directory / "pass.json"
        if directory.exists() and (not mark.exists() or read_regular(mark) != described):
            if mark.exists():  # else a killed run had written no state yet
                _warn_of_another_way(directory, number)
            shutil.rmtree(directory)
        directory.mkdir(exist_ok=True)
        if not mark.exists():
            atomic_write_bytes(mark, described)
        files = SegmentFiles(str(directory.absolute()), *_expected(templates))
        files.forget_unfinished()
        return files


class ObjectCheckpoint(States):
    """The prefix of one resumable fit at an object store; its states are deleted once the fit has its result.

    Runs of the same fit need no lock: they put equal states, each created once.

    Parameters
    ----------
    given : str, store or Place
    description, seed
        As for :class:`Checkpoint`.

    Raises
    ------
    CheckpointError
        If the prefix belongs to another computation; names the differences.
    """

    def __init__(self, given: object, description: Mapping[str, object], seed: int | None = None) -> None:
        from bigpca.storage.places import OccupiedError, Place

        self.place = Place(given)
        self.path, self.seed = self.place.describe(), seed
        self.description = json.loads(json.dumps(description, default=str))
        self.fingerprint = digest({"format": FORMAT, **self.description})
        self.place.check_exclusive()
        names = list(self.place.survey())
        others = [name for name in names if name.endswith("/run.json") and name != f"{self.fingerprint}/run.json"]
        if others:
            raise _belongs_to_another(self.path, json.loads(self.place.get(others[0]).data), self.description)
        foreign = [name for name in names if not name.startswith(f"{self.fingerprint}/")]
        if foreign:
            raise CheckpointError(
                f"the checkpoint {self.path} holds objects that are not a checkpoint's "
                f"({', '.join(sorted(foreign)[:3])}). Pass the URL of a new or empty prefix."
            )
        record = {"format": FORMAT, "description": self.description, "machine": numerical_environment(), "seed": seed}
        try:
            self.place.put(f"{self.fingerprint}/run.json", json.dumps(record, indent=1).encode(), if_absent=True)
        except OccupiedError as error:
            _warn_of_changes(self.path, json.loads(error.found.data))

    def files(
        self,
        number: int,
        templates: Mapping[str, Accumulator],
        layout: Layout,
        rows: Mapping[str, object] | None = None,
    ) -> SegmentStates:
        """Return the states of a pass as objects."""
        from bigpca.storage.places import OccupiedError

        place = self.place.at(f"{self.fingerprint}/pass-{number:02d}")
        described = _describe_pass(templates, layout, rows)
        try:
            place.put("pass.json", described, if_absent=True)
        except OccupiedError as error:
            _warn_of_another_way(place.describe(), number)
            place.delete([entry.key for entry in place.list() if entry.key != "pass.json"])
            place.put("pass.json", described, if_etag=error.found.etag)
        return SegmentObjects(place.describe(), *_expected(templates), place)

    def release(self, *, done: bool = False) -> None:
        """Delete the states if the fit has its result, else keep them."""
        if done:
            self.place.delete([entry.key for entry in self.place.list()])


def open_checkpoint(
    path: str | os.PathLike[str], description: Mapping[str, object], seed: int | None, user: Caller | None
) -> States:
    """Return the checkpoint at a path, or at a URL or place of objects."""
    if is_objects(path):
        return ObjectCheckpoint(path, description, seed)
    return Checkpoint(path, description, seed, user)


def _belongs_to_another(path: Path | str, stored: Mapping[str, object], description: object) -> CheckpointError:
    differences = "; ".join(_differences(stored.get("description", {}), description)) or "another format"
    return CheckpointError(
        f"the checkpoint {path} belongs to another computation ({differences}). Resume with the same "
        "input and parameters, pass another checkpoint path, or delete the directory to start again."
    )


def _warn_of_changes(path: Path | str, stored: Mapping[str, object]) -> None:
    """Warn if the run was started with other libraries."""
    before, machine = stored.get("machine", {}), numerical_environment()
    there = before if isinstance(before, dict) else {}
    changed = [f"{k} {there.get(k)} -> {v}" for k, v in machine.items() if there.get(k) != v]
    if changed:
        warnings.warn(
            f"the checkpoint {path} was started with other libraries ({'; '.join(changed)}): the result "
            "is as accurate, but its last bits may differ from those of an uninterrupted run.",
            UserWarning,
            stacklevel=2,
        )


def _warn_of_another_way(directory: Path | str, number: int) -> None:
    warnings.warn(
        f"{directory} contains results that pass {number} of this fit computed differently, for example with "
        "another version or machine. It is deleted, and its rows are read again.",
        UserWarning,
        stacklevel=2,
    )


def _describe_pass(templates: Mapping[str, Accumulator], layout: Layout, rows: Mapping[str, object] | None) -> bytes:
    """Return what must agree for the states of a pass to be used."""
    cut = digest([layout.reads, layout.slab_rows, [list(g) for g in layout.groups], [list(s) for s in layout.segments]])
    described = {"layout": cut, **{k: a.describe() for k, a in templates.items()}, **({"rows": rows} if rows else {})}
    return json.dumps(described, sort_keys=True).encode()


def _expected(templates: Mapping[str, Accumulator]) -> tuple[dict[str, Accumulator], int]:
    """Return bare accumulators, and how many bytes a state of them may have."""
    expected = STATE_MARGIN * sum(a.state_bytes for a in templates.values()) + MAX_RECORD
    return {k: a.bare() for k, a in templates.items()}, expected


def stored_seed(path: str | os.PathLike[str]) -> int | None:
    """Return the seed of the fit that was started in a checkpoint's directory; None if there is no readable one."""
    if is_objects(path):
        from bigpca.storage.places import Place

        place = Place(path)
        records = [entry.key for entry in place.list() if entry.key.endswith("/run.json")]
        found = [json.loads(place.get(key).data).get("seed") for key in records]
        return next((seed for seed in found if isinstance(seed, int) and seed >= 0), None)
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


def _of_groups(files: SegmentStates, kind: str, index: int, segments: Sequence[range]) -> PassState:
    state = files.read(kind, index)
    if state.stamps.keys() != {group for groups in segments for group in groups}:
        raise CheckpointError(
            f"{files.where(kind, index)} holds {len(state.stamps)} groups of rows that do not match its name: it was "
            "renamed or copied from elsewhere. It is deleted, and its rows are read again."
        )
    return state


def warn_unwritten(error: WriteFailed, path: Path | str) -> None:
    """Warn that a run continues without its checkpoint."""
    warnings.warn(
        f"the checkpoint {path} cannot be written any more ({error}). The run continues without it; after an "
        f"interruption, a rerun would start from what is stored there now. Free space there.",
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
    stored: Mapping[int, str], current: Mapping[int, str], rows_of: Callable[[int], tuple[int, int]], path: Path | str
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
