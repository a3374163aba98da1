"""One run at a time: a lock file that records its holder, so that a dead holder can be recognised."""

from __future__ import annotations

import json
import os
import re
import socket
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from weakref import WeakValueDictionary

import psutil

from bigpca.errors import OutputLockedError
from bigpca.storage.files import MUTEX_SECONDS, flock, read_regular

BEGIN = re.compile(rb'\{"run_id": "[0-9a-f]{32}"')  # of a record; the writer of a part of it has died
EXACT = os.O_RDWR | getattr(os, "O_BINARY", 0)  # Windows writes texts in its own way otherwise
TEMPORARY = getattr(os, "O_TMPFILE", 0)  # a file that has no name yet, where the system has such
_OURS: WeakValueDictionary[str, RunLock] = WeakValueDictionary()  # of this process


@dataclass(frozen=True)
class Holder:
    """The holder of a lock.

    Attributes
    ----------
    run_id : str
        32 hexadecimal digits.
    host, namespace : str
        The machine, and its PID namespace (containers have their own).
    pid : int
    started : str
        Identifies the process's start, so that a reused pid is not mistaken for the holder.
    since : str
        When the lock was acquired, ISO 8601, UTC.
    """

    run_id: str
    host: str
    namespace: str
    pid: int
    started: str
    since: str


class RunLock:
    """Mutual exclusion of runs by a small JSON file, created only by the run that acquires it.

    The lock of a dead holder on this machine (no such process, or another one with its pid) is taken over; a holder on
    another machine cannot be checked and counts as alive. A file without a part of a record is not one of bigpca: an
    empty one is used, and is empty again in the end.

    Parameters
    ----------
    path : path of the lock file itself, such as ``scores.zarr.lock``; its directory must exist.
    what : what it guards, for messages: ``"the output scores.zarr"``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.lock"
    >>> with RunLock(path, "the checkpoint run.ckpt"):
    ...     path.exists()
    True
    >>> path.exists()
    False
    """

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        self.path, self.what = Path(path), what
        self.run_id = uuid.uuid4().hex
        self._held = self._found = False  # found: an empty file of someone, which stays
        _OURS[self.run_id] = self

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._held

    def acquire(self) -> None:
        """Acquire the lock, or raise immediately; release it after any error, which may be an interrupt.

        Raises
        ------
        OutputLockedError
            If a live run holds it: names host, pid, start time and the remedy.
        """
        while not self._held:
            try:
                if self._linked():
                    return
                descriptor, created = os.open(self.path, os.O_CREAT | os.O_EXCL | EXACT, 0o644), True
            except FileExistsError:
                try:
                    descriptor, created = os.open(self.path, EXACT | getattr(os, "O_NOFOLLOW", 0)), False
                except FileNotFoundError:
                    continue
            try:
                self._take(descriptor, created)
            finally:
                os.close(descriptor)

    def _linked(self) -> bool:
        """Create the file with its record in it, so that none is ever empty; False where the system cannot."""
        try:
            descriptor = os.open(self.path.parent, TEMPORARY | os.O_RDWR, 0o644)
        except OSError:
            return False
        try:
            self._record(descriptor)
            # NOTE: Python follows the link only if it is told of a folder.
            os.link(f"/proc/self/fd/{descriptor}", self.path, src_dir_fd=descriptor)
        except FileExistsError:
            self._held = False
            raise
        except OSError:
            self._held = False
        finally:
            os.close(descriptor)
        return self._held

    def _record(self, descriptor: int) -> None:
        now, pid = datetime.now(UTC).isoformat(timespec="seconds"), os.getpid()
        ours = Holder(self.run_id, socket.gethostname(), _namespace(), pid, _start_mark(pid), now)
        record = json.dumps(asdict(ours)).encode()
        self._held = True  # so that release() finds what an interrupt leaves
        written = os.lseek(descriptor, 0, os.SEEK_SET)
        while written < len(record):  # a part of a record would be taken for that of a run that died
            written += os.write(descriptor, record[written:])
        os.ftruncate(descriptor, written)  # last: a kill leaves a record, or the begin of one
        os.fsync(descriptor)

    def _take(self, descriptor: int, created: bool) -> None:
        """Decide under the kernel's lock on the file, so that two runs cannot both take over a dead one's."""
        with suppress(FileNotFoundError), flock(self.path, wait_seconds=MUTEX_SECONDS) as alone:
            if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                return
            content = os.read(descriptor, 1 << 16)
            holder = _parse(content)
            begun = content.rstrip(b"\0")  # of a machine that stopped
            if holder is None and begun and not BEGIN.match(begun):
                raise OutputLockedError(
                    f"{self.path} is where {self.what} is locked, but it is a file that bigpca did not write. Move it, "
                    "or choose another path."
                )
            # The creator of a file without a record died (or lost this race) before it wrote: the file is free if we
            # hold its kernel lock. Without kernel locks only the creator may continue.
            free = (created or alone) if holder is None else _is_dead(holder)
            if not free:
                who = (
                    "a run that is just starting"
                    if holder is None
                    else (f"run {holder.run_id[:12]}, pid {holder.pid} on {holder.host}, since {holder.since}")
                )
                raise OutputLockedError(
                    f"{self.what} is held by {who}; only one run at a time may write it. Wait for that run to end or "
                    "stop it; if it is certainly dead (which cannot be checked for another machine), delete "
                    f"{self.path}."
                )
            self._found = not begun and not created
            self._record(descriptor)

    def release(self) -> None:
        """Release the lock, even if it is interrupted once; a no-op if it is not held.

        A file that was deleted and created by another run is left alone.
        """
        try:
            self._free()
        except BaseException:
            self._free()
            raise

    def _free(self) -> None:
        if not self._held:
            return
        with suppress(FileNotFoundError), flock(self.path, wait_seconds=MUTEX_SECONDS):
            holder = _parse(read_regular(self.path))
            if holder is not None and holder.run_id == self.run_id:
                if self._found:
                    os.truncate(self.path, 0)
                else:
                    self.path.unlink()
        self._held = False

    def __enter__(self) -> RunLock:
        try:
            self.acquire()
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_mark(pid: int) -> str:
    """Identify one process uniquely: boot id and start tick on Linux (immune to clock changes), else start second."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The second field is the command in parentheses, which may hold anything; the start time is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{boot}:{fields[19]}"
    except FileNotFoundError:
        return f"{psutil.Process(pid).create_time():.0f}"


def _is_dead(holder: Holder) -> bool:
    if (holder.host, holder.namespace) != (socket.gethostname(), _namespace()):
        return False
    if not psutil.pid_exists(holder.pid):
        return True
    try:
        if holder.pid == os.getpid() and _start_mark(holder.pid) == holder.started:
            return holder.run_id not in _OURS  # an interrupt came before its release
        return _start_mark(holder.pid) != holder.started or psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False  # it exists but may not be inspected: it counts as alive


def _parse(content: bytes) -> Holder | None:
    try:
        record = Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None
    return record if isinstance(record.pid, int) and BEGIN.match(content) else None
