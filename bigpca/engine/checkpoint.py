"""Checkpoints of a pass: finished segments and one growing prefix, as files that are complete or absent.

``<checkpoint>/<fingerprint>/pass-01/segment-017.npz`` holds the state of one segment, ``prefix-018.npz`` the left fold
of segments 0 to 17. Arrays only, never pickle; the zip container checks a CRC of every array that is read back. The
finished prefix is kept, so repeating a fit on the same input reads nothing.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bigpca.blas import numerical_environment
from bigpca.engine.interfaces import State
from bigpca.engine.jobs import PassState, merge_states
from bigpca.engine.planning import Layout
from bigpca.errors import CheckpointError, CorruptedChunkError
from bigpca.storage import RunLock
from bigpca.storage.files import (
    Folder,
    OccupiedError,
    digest,
    is_objects,
    local_path,
    parsed_document,
    read_arrays,
    reject_url,
)
from bigpca.storage.grammar import PROBE

if TYPE_CHECKING:
    from bigpca.storage.places import ObjectStore

FORMAT = 2
PASS = "pass.json"  # of each pass: what its states are of
STATE = r"(segment|prefix)-(\d+)\.npz"
STATE_MARGIN = 4  # a file may hold this many times the declared bytes of a state
# Words for what identifies a computation, by the last part of its name; those of parameters are their names.
WORDS = {
    "computes": "the estimator or its solver",
    "seed": "random_state",
    "maps": "preprocess",
    "count": "n_landmarks",
    "codes": "the labels",
    "crc32": "the values of X",
    "row_chunks": "the chunks of X",
    "shape": "the shape of X",
    "dtype": "the dtype of X",
    "path": "the path of X",
    "metadata_sha256": "the metadata of X",
    "shards_sha256": "the shards of X",
}
DIGESTED = {
    word for name, word in WORDS.items() if name in ("codes", "crc32", "row_chunks") or "sha256" in name
}  # whose digests say nothing to a reader
MAX_RECORD = 1 << 26  # bytes of the stamps and small arrays of a state


class WriteFailed(RuntimeError):
    """A state could not be written, usually because the disk is full; the run continues without the checkpoint."""


@dataclass(frozen=True)
class SegmentStates:
    """The stored states of one pass; small and picklable, so that tasks can write and read them.

    Attributes
    ----------
    place : Folder or ObjectStore
    templates : dict of str to State
        Bare ones, as ``with_arrays`` requires.
    max_bytes : int
        Of the arrays in one state; larger ones are not read.
    """

    place: Folder | ObjectStore
    templates: dict[str, State]
    max_bytes: int

    @property
    def directory(self) -> str:
        """The path, or the URL."""
        return self.place.describe()

    def write(self, kind: str, index: int, state: PassState) -> int:
        """Write a state atomically and durably, and return its bytes. Two writers of one state write equal bytes.

        Raises
        ------
        WriteFailed
            If the file system or the store rejects it; no part of it remains.
        """
        name, fill = state_name(kind, index), partial(np.savez, **state.to_arrays())  # type: ignore[arg-type]
        try:
            return self.place.fill(name, fill)
        except OccupiedError as error:  # by an equal run at an object store: its state stands if it can be read
            try:
                self.read(kind, index)
            except CheckpointError:
                return self.place.fill(name, fill, if_etag=error.found.etag)
            return len(error.found.data)
        except OSError as error:
            raise WriteFailed(f"{type(error).__name__}: {error}") from error

    def read(self, kind: str, index: int) -> PassState:
        """Read a state back.

        Raises
        ------
        CheckpointError
            If it is truncated or altered, or gone.
        """
        where = self.place.describe(state_name(kind, index))
        try:
            arrays = read_arrays(self.place.opened(state_name(kind, index)), self.max_bytes)
            return PassState.from_arrays(self.templates, arrays)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{where} was deleted while this run needed it, by another run of the same fit that is ahead. Run "
                "again: it resumes."
            ) from error
        except (zipfile.BadZipFile, zlib.error, ValueError, LookupError, EOFError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{where} cannot be read back ({error}): it was truncated or altered. Delete it and run again: only "
                "its rows will be read again."
            ) from error

    def delete(self, states: Sequence[tuple[str, int]]) -> None:
        """Delete states, as far as they exist."""
        self.place.delete([state_name(kind, index) for kind, index in states])

    def forget(self, segments: range) -> None:
        """Delete what a prefix supersedes that was extended by these segments: their states, and the shorter one."""
        self.delete([("prefix", segments.start), *(("segment", index) for index in segments)])

    def present(self) -> list[tuple[str, int]]:
        """Return kind and index of every stored state."""
        found = (re.fullmatch(STATE, name) for name in self.place.survey())
        return sorted((match[1], int(match[2])) for match in found if match)


class StateStore(Protocol):
    """What writes states, as :class:`SegmentStates` does, and says whether it did."""

    def write(self, kind: str, index: int, state: PassState) -> int | bool:
        """Write a state; return 0 or False if it was not written."""

    def forget(self, segments: range) -> None:
        """Delete what a prefix supersedes."""


@dataclass
class Prefix:
    """The left fold of the first segments, and their number; the checkpoint, if there is one, holds it after each."""

    total: PassState | None = None
    covered: int = 0

    def extend(self, state: PassState, files: StateStore | None) -> bool:
        """Fold the next segment; return whether the sum was written."""
        self.total = state if self.total is None else merge_states(self.total, state)
        written = files is not None and bool(files.write("prefix", self.covered + 1, self.total))
        if files is not None and written:
            files.forget(range(self.covered, self.covered + 1))
        self.covered += 1
        return written


def state_name(kind: str, index: int) -> str:
    """Return the name of the state of segment ``index``, or of the prefix over segments ``0:index``."""
    return f"{kind}-{index:03d}.npz"


@dataclass(frozen=True)
class Resumed:
    """What an earlier run of a pass finished, or nothing: where this run starts.

    Attributes
    ----------
    files : SegmentStates or None
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


class Checkpoint:
    """The directory of one resumable fit, locked while it runs; or its prefix at an object store.

    Runs of the same fit need no lock at an object store: they put equal states, each created once. There the states are
    deleted once the fit has its result.

    Parameters
    ----------
    given : path-like, URL, store or ObjectStore
    description : mapping
        JSON-able: source, layout and what is computed. Its digest is the fingerprint.
    seed : int or None
        The fit's seed, not part of the description: a rerun that would draw a seed uses it, see :func:`stored_seed`.

    Attributes
    ----------
    path : Path, or str
        For messages: a path, or a URL without secrets.

    Raises
    ------
    CheckpointError
        If the directory belongs to another computation; names the differences.
    OutputLockedError
        If a live run holds it.
    """

    def __init__(
        self,
        given: str | os.PathLike[str],
        description: Mapping[str, object],
        seed: int | None = None,
    ) -> None:
        self.seed, self.place = seed, _place_of(given)
        self.description = json.loads(json.dumps(description, default=str))
        self.fingerprint = digest({"format": FORMAT, **self.description})
        self._lock: RunLock | None = None
        if not isinstance(self.place, Folder):
            self.path: Path | str = self.place.describe()
            self.place.check_exclusive()
            self._open()
            return
        self.path = Path(self.place.path)
        self._lock = RunLock(self.path / "run.lock", f"the checkpoint {self.path}")
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
        """Let other runs use the checkpoint; ``done`` if the fit has its result.

        Files are kept: with them, a repeated fit reads nothing.
        """
        if self._lock is not None:
            self._lock.release()
        elif done and not isinstance(self.place, Folder):
            probe = rf"{re.escape(PROBE)}\w+"  # of a worker too, which asks where it writes, and may have been killed
            own = rf"{self.fingerprint}/(run\.json|pass-\d+/({PASS}|{STATE}|{probe}))|{probe}"
            self.place.delete([entry.key for entry in self.place.list() if re.fullmatch(own, entry.key)])

    def _open(self) -> None:
        own, names = f"{self.fingerprint}/run.json", self.place.survey()
        others = sorted(name for name in names if name.endswith("/run.json") and name != own)
        if others:
            stored = parsed_document(self.place.get(others[0]).data, self.place.describe(others[0]))
            raise _belongs_to_another(self.path, stored, self.description)
        foreign = {name.partition("/")[0] for name in names if name[0] != "."} - {"run.lock", self.fingerprint}
        if foreign:
            raise CheckpointError(
                f"the checkpoint {self.path} holds files that are not a checkpoint's "
                f"({', '.join(sorted(foreign)[:3])}). Pass the path of a new or empty directory."
            )
        self.place.at(self.fingerprint).sweep()
        machine = numerical_environment()
        record = {"format": FORMAT, "description": self.description, "machine": machine, "seed": self.seed}
        try:
            self.place.put(own, json.dumps(record, indent=1).encode(), if_absent=True)
        except OccupiedError as error:
            _warn_of_changes(self.path, parsed_document(error.found.data, self.place.describe(own)))

    def files(
        self,
        number: int,
        templates: Mapping[str, State],
        layout: Layout,
        rows: Mapping[str, object] | None = None,
    ) -> SegmentStates:
        """Return the states of pass ``number``; of another layout, rows or templates, delete them with a warning."""
        place = self.place.at(f"{self.fingerprint}/pass-{number:02d}")
        described = _describe_pass(templates, layout, rows)
        try:
            place.put(PASS, described, if_absent=True)
        except OccupiedError as error:  # its states go first: a killed run leaves their description
            warnings.warn(
                f"{place.describe()} contains results that pass {number} of this fit computed differently, for "
                "example with another version or machine. It is deleted, and its rows are read again.",
                UserWarning,
                stacklevel=2,
            )
            place.delete([name for name in place.survey() if re.fullmatch(STATE, name)])
            place.put(PASS, described, if_etag=error.found.etag)
        place.sweep()
        most = STATE_MARGIN * sum(a.state_bytes for a in templates.values()) + MAX_RECORD  # bytes of a state
        return SegmentStates(place, {k: a.bare() for k, a in templates.items()}, most)

    def finished(self, files: SegmentStates, segments: Sequence[range]) -> Resumed:
        """Return what an earlier run finished of a pass; damaged states are deleted with a warning.

        Parameters
        ----------
        segments : sequence of range
            The groups of each segment, which each state's stamps must match.
        """
        prefix, covered, stored, present = None, 0, set(), files.present()
        for kind, index in reversed(present):  # segments first, then prefixes, the longest first
            try:
                if kind == "prefix" and prefix is None:
                    prefix, covered = _of_groups(files, kind, index, segments[:index]), index
                elif kind == "segment":
                    _of_groups(files, kind, index, segments[index : index + 1])
                    stored.add(index)
            except CheckpointError as error:
                warnings.warn(str(error), UserWarning, stacklevel=2)
                files.delete([(kind, index)])
        files.delete([one for one in present if one[1] < covered])  # of a run that was killed before it did
        return Resumed(files, prefix, covered, frozenset(s for s in stored if s >= covered))


def _place_of(given: str | os.PathLike[str]) -> Folder | ObjectStore:
    if not is_objects(given):
        return Folder(local_path(given))
    from bigpca.storage.places import ObjectStore

    return ObjectStore(given)


def _belongs_to_another(path: Path | str, stored: Mapping[str, object], description: object) -> CheckpointError:
    found = list(_differences(stored.get("description", {}), description))
    if any(name == "computes" for name, *_ in found):  # whose parameters are others
        found = [one for one in found if one[0] == "computes" or (one[0].startswith("input.") and None not in one)]
    else:  # what is derived from parameters follows these
        found = [one for one in found if not one[0].startswith("iteration.")] or found
    lines = dict[str, str]()
    for name, there, here in found:
        last = name.rpartition(".")[2]
        lines.setdefault(WORDS.get(last, last), f": {_short(there)} there, {_short(here)} here")
    differences = "; ".join(f"{word}{' differ' if word in DIGESTED else line}" for word, line in lines.items())
    differences = differences or "another format"
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


def _describe_pass(templates: Mapping[str, State], layout: Layout, rows: Mapping[str, object] | None) -> bytes:
    """Return what must agree for the states of a pass to be used."""
    parts = [list(g) for g in layout.groups], [list(s) for s in layout.segments]
    cut = digest([layout.reads, layout.slab_rows, *parts, layout.runs, layout.strips])
    described = {"layout": cut, **{k: a.describe() for k, a in templates.items()}, **({"rows": rows} if rows else {})}
    return json.dumps(described, sort_keys=True).encode()


def stored_seed(path: str | os.PathLike[str]) -> int | None:
    """Return the seed of the fit that was started in a checkpoint's directory; None if there is no readable one."""
    place = _place_of(path)
    for key in sorted(name for name in place.survey() if name.endswith("/run.json")):
        with suppress(OSError, ValueError, AttributeError):
            seed = parsed_document(place.get(key).data, key).get("seed")
            if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
                return seed
    return None


def _of_groups(files: SegmentStates, kind: str, index: int, segments: Sequence[range]) -> PassState:
    state = files.read(kind, index)
    if state.stamps.keys() != {group for groups in segments for group in groups}:
        raise CheckpointError(
            f"{files.place.describe(state_name(kind, index))} holds {len(state.stamps)} groups of rows that do not "
            "match its name: it was renamed or copied from elsewhere. It is deleted, and its rows are read again."
        )
    return state


def warn_unwritten(error: WriteFailed, path: Path | str) -> None:
    """Warn that a run continues without its checkpoint."""
    warnings.warn(
        f"the checkpoint {path} cannot be written any more ({error}). The run continues; if it is interrupted, a rerun "
        "starts from the last state that was stored. If there is no space left, free some.",
        UserWarning,
        stacklevel=2,
    )


def _differences(stored: object, current: object, name: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield what differs between two descriptions: its name in them, what it is there and here."""
    if isinstance(stored, dict) and isinstance(current, dict):
        for k in sorted(stored.keys() | current.keys()):
            yield from _differences(stored.get(k), current.get(k), f"{name}.{k}".lstrip("."))
    elif stored != current:
        yield name, stored, current


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
