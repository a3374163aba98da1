"""Interrupts, errors of the disk and of memory at every line, and short reads and writes at every call.

After each: the answer has the bits of an undisturbed run, or there is none; a rerun in the same process has these bits,
or says why it has not, and no thread, lock or temporary file remains after it. A rerun solves, so it would wait for
ever for a solve that was left behind. The traceback of the error is kept meanwhile, as IPython does.

Run it in full, or every n-th line of some works::

    python -m tests.faults.every_line [--every 50] [WORK ...]
"""

import argparse
import gc
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import dask
import numpy as np
import scipy.sparse
import zarr

import bigpca as bp
from bigpca.data import checks
from bigpca.data.batches import BatchStream
from bigpca.engine import layout
from bigpca.passes import project
from bigpca.storage.carriers import write_file
from tests.cli.running import run as command
from tests.interrupts import Interrupt, Line, lines_of

PACKAGE = os.path.dirname(bp.__file__)
ROWS = np.random.default_rng(0).standard_normal((60, 4)).astype("f4") @ np.diag([4, 2, 1, 0.5]).astype("f4")
KEYS = [f"row {i}" for i in range(60)]
ERRORS: dict[str, Callable[[], BaseException]] = {
    "interrupt": KeyboardInterrupt, "disk": lambda: OSError(5, "Input/output error"), "memory": MemoryError,
}  # fmt: skip
CALLS = ("read", "pread", "write", "pwrite", "fsync", "replace", "rename", "open", "mkdir", "unlink", "listdir")
HELD: dict[Path | str, Any] = {}  # what a user keeps between two attempts in one folder, and what all attempts use
OWN = (bp.errors.OutputExistsError, bp.errors.CheckpointError)  # of a rerun that says why it does not answer
SECONDS = 60


def within(frame: FrameType) -> bool:
    """All of the package, without the imports that only the first run of a process has."""
    return frame.f_code.co_filename.startswith(PACKAGE) and frame.f_code.co_name != "<module>"


def bits(model: Any) -> tuple[bytes, ...]:
    return tuple(np.asarray(value).tobytes() for value in (model.components_, model.explained_variance_, model.mean_))


def stream(folder: Path) -> Any:
    if folder not in HELD:
        HELD[folder] = bp.from_batches([ROWS[i : i + 7] for i in range(0, 60, 7)])
    return HELD[folder]


def stream_once(folder: Path) -> Any:
    if folder not in HELD:
        HELD[folder] = bp.from_batches(iter([ROWS[i : i + 7] for i in range(0, 60, 7)]), ROWS.shape)
    return HELD[folder]


def batches(folder: Path) -> object:
    """The same list of batches again, with a checkpoint."""
    return bits(bp.PCA(2).fit(stream(folder), checkpoint=folder / "c"))


def iterator(folder: Path) -> object:
    """An iterator that may be asked again, and is replaced if it says that this cannot be."""
    try:
        return bits(bp.PCA(2).fit(stream_once(folder)))
    except Exception as error:
        if not is_lost(error):
            raise
        del HELD[folder]
        return iterator(folder)


def reading(folder: Path) -> object:
    """Rows of batches read on from where an error left them, as a fit with a checkpoint does."""
    if folder not in HELD:
        HELD[folder] = BatchStream([ROWS[i : i + 7] for i in range(0, 60, 7)], (4,), None), []
    held, found = HELD[folder]
    while sum(map(len, found)) < 60:
        done = sum(map(len, found))
        found.append(held.read(done, done + 5))
        if not len(found[-1]):
            break
    return b"".join(rows.tobytes() for rows in found)


def reading_once(folder: Path) -> object:
    """The same from an iterator, or the error that says that rows may be lost."""
    if folder not in HELD:
        HELD[folder] = BatchStream(iter([ROWS[i : i + 7] for i in range(0, 60, 7)]), (4,), None), []
    try:
        return reading(folder)
    except Exception as error:
        if not is_lost(error):
            raise
        del HELD[folder]
        return reading_once(folder)


def is_lost(error: Exception) -> bool:
    """Whether a stream of an iterator cannot be used again: it says so, or repeats the error that ended it."""
    before, HELD["error"] = HELD.get("error"), error
    return before is error or "Make a new" in str(error)


def content(path: Path) -> object:
    keys = bp.data.stored_keys(path)
    return zarr.open_array(path, mode="r")[:].tobytes(), None if keys is None else keys.tolist()


def writer(folder: Path) -> object:
    """A writer that is asked again as long as it is open, and then a new one of its path."""
    out = folder / "w.zarr"
    for _ in range(2):
        held = HELD.pop(folder, None)
        if held is None:
            try:
                held = bp.FeatureWriter(out, chunk_rows=8)
            except bp.errors.OutputExistsError:
                break
        HELD[folder] = held
        try:
            while held.n_rows < 60:
                held.write(ROWS[held.n_rows : held.n_rows + 13], KEYS[held.n_rows : held.n_rows + 13])
            held.close()
            del HELD[folder]
            break
        except RuntimeError as error:
            if "is closed" not in str(error):
                raise
            del HELD[folder]
    return content(out)


def sparse(folder: Path) -> object:
    return bits(bp.PCA(2).fit(scipy.sparse.csr_array(np.where(ROWS > 0, ROWS, 0))))


def holes(folder: Path) -> object:
    return bits(bp.PCA(2, nan_policy="mean").fit(np.where(ROWS > 3, np.nan, ROWS), checkpoint=folder / "c"))


def checkpoint(folder: Path) -> object:
    return bits(bp.PCA(2, solver="covariance").fit(bp.open(inputs() / "x.zarr"), checkpoint=folder / "c"))


def scores(folder: Path) -> object:
    return _scores(folder / "s.zarr")


def table(folder: Path) -> object:
    return _scores(folder / "s.parquet")


def _scores(out: Path) -> object:
    model = bp.load(inputs() / "m.zarr")
    with suppress(bp.errors.OutputExistsError):
        model.transform(bp.open(inputs() / "x.zarr"), out=out, keys=KEYS)
    return np.asarray(bp.open(out)).tobytes(), bp.data.stored_keys(out).tolist()


def update(folder: Path) -> object:
    out, grown, half = folder / "n.zarr", inputs() / "grown.zarr", inputs() / "half.zarr"
    if not half.exists():
        rows = zarr.create_array(grown, shape=(40, 4), chunks=(5, 4), dtype="f4")
        rows[:] = ROWS[:40]
        fitted("fit", grown, "--model", half)
        rows.append(ROWS[40:])
    if not out.exists():
        fitted("fit", grown, "--update", half, "--model", out)
    return bits(bp.load(out))


def fitted(*arguments: object) -> None:
    done = command(*arguments, "--quiet")
    if done.exit_code:
        raise RuntimeError(done.output)


def report(folder: Path) -> object:
    out = folder / "r.html"
    with suppress(bp.errors.OutputExistsError):
        write_file(out, b"<html>" * 1000, overwrite=False)
    return out.read_bytes()


def krylov(folder: Path) -> object:
    return bits(bp.PCA(1, solver="krylov", random_state=0).fit(bp.open(inputs() / "x.zarr"), checkpoint=folder / "c"))


def cluster(folder: Path) -> object:
    from distributed import Client, LocalCluster

    if "client" not in HELD:
        HELD["client"] = Client(LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=None))
    with HELD["client"].as_current(), dask.config.set(scheduler="distributed"):
        return krylov(folder)


WORKS: dict[str, Callable[[Path], object]] = {
    work.__name__: work
    for work in (
        batches,
        iterator,
        reading,
        reading_once,
        writer,
        sparse,
        holes,
        checkpoint,
        scores,
        table,
        update,
        report,
        krylov,
        cluster,
    )
}


BEFORE = {batches: stream, iterator: stream_once}  # what is made before an attack, and used again after it


def inputs() -> Path:
    found: Path = HELD["inputs"]
    if not found.exists():
        found.mkdir()
        zarr.create_array(found / "x.zarr", data=ROWS, chunks=(5, 4))
        bp.PCA(2, solver="covariance").fit(bp.open(found / "x.zarr")).save(found / "m.zarr")
    return found


@dataclass(frozen=True)
class Attack:
    """A failure at one line, or at one call of a function of the operating system."""

    kind: str
    place: Any

    def during(self, work: Callable[[], object]) -> tuple[object, BaseException | None]:
        """Return the answer of the work, or the error that ends it."""
        try:
            if self.kind not in ERRORS:
                with self._call():
                    return work(), None
            found: list[object] = []
            error = Interrupt(within, self.place, ERRORS[self.kind]).during(lambda: found.append(work()))
            if isinstance(error, TooLong):
                raise error
            return (found or [None])[0], error
        except TooLong:
            raise
        except BaseException as error:
            return None, error

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Fail at a call, or do only half of it."""
        name, number = self.place
        function, count = getattr(os, name), 0

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count != number:
                return function(*arguments, **options)
            if self.kind == "failed call":
                raise OSError(5, "Input/output error")
            first, rest, *others = arguments
            return function(first, rest // 2 if isinstance(rest, int) else rest[: len(rest) // 2], *others)

        with mock.patch.object(os, name, call):
            yield


def attacks(work: Callable[[Path], object], folder: Path, before: set[Line] | None = None) -> Iterator[Attack]:
    """Iterate over all attacks on a work; with the lines of other works, only over one at each further line."""
    runs = iter(range(10**6))
    lines = lines_of(lambda: work(folder / str(next(runs))), within)
    if before is None:
        yield from (Attack(kind, line) for kind in ERRORS for line in lines)
    else:
        yield from (Attack(kind, line) for kind, line in zip(cycle(ERRORS), lines) if line not in before)
        before.update(lines)
    with ExitStack() as patched:
        counts = {
            name: patched.enter_context(mock.patch.object(os, name, mock.Mock(wraps=getattr(os, name))))
            for name in CALLS
        }
        work(folder / str(next(runs)))
    for name, counted in counts.items():
        for number in range(1, counted.call_count + 1):
            yield Attack("failed call", (name, number))
            if name in ("read", "pread", "write", "pwrite"):
                yield Attack("short call", (name, number))


def litter(folder: Path) -> set[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {name for name in names if name.endswith((".lock", ".tmp", ".partial")) or "/." in f"/{name}"}


def survives(work: Callable[[Path], object], attack: Attack, folder: Path, expected: object) -> str:
    """Attack a work, run it again, and return what is wrong; nothing if all is well."""
    found, error = attack.during(lambda: work(folder))
    if error is None and found != expected:
        return "another answer, without an error"
    try:
        try:
            again = work(folder)
        except bp.errors.OutputLockedError:  # by what the traceback keeps, until it is replaced by that of this error
            error = None
            gc.collect()
            again = work(folder)
        if again != expected:
            return "another answer of the rerun"
    except OWN as reason:
        return "" if str(reason) else "a rerun that says nothing"
    except TooLong:
        raise
    except BaseException as reason:
        return f"the rerun failed: {type(reason).__name__}: {str(reason)[:300]}"
    left = litter(folder)
    if left:
        return f"left behind: {sorted(left)[:3]}"
    error = None
    HELD.pop("error", None)
    gc.collect()
    for _ in range(100):
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("bigpca-fold")]
        if not threads:
            return ""
        time.sleep(0.05)
    return f"threads are left: {threads}"


class TooLong(BaseException):
    """Raised by the alarm of :func:`in_time`."""


def in_time(survive: Callable[[], str]) -> str:
    """Return what is wrong, or where it waits for ever."""

    def ring(number: int, frame: FrameType | None) -> None:
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        raise TooLong("" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}")

    before = signal.signal(signal.SIGALRM, ring)
    began, (left, _) = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return survive()
    except TooLong as where:
        return f"it waits for ever: {where}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # a process has one such timer: it was that of pytest-timeout
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001))


@contextmanager
def small(folder: Path) -> Iterator[None]:
    """Let few rows make many groups and chunks, and share inputs and a cluster meanwhile."""
    groups = {"MIN_GROUP_BYTES": 64, "GROUP_BYTES": 200, "MIN_GROUPS": 4}
    HELD["inputs"] = folder / "inputs"
    with (
        mock.patch.multiple(layout, **groups), mock.patch.object(checks, "READABLE_BYTES", 160),
        mock.patch.object(project, "OUTPUT_CHUNKS", 4), dask.config.set(scheduler="sync"), warnings.catch_warnings(),
        mock.patch.object(logging, "raiseExceptions", False),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            client = HELD.pop("client", None)
            if client is not None:
                client.cluster.close()
                client.close()
            gc.unfreeze()


def attack_all(
    names: list[str], every: int, folder: Path, say: Callable[[str], None] = print, *, once: bool = False
) -> list[str]:
    """Return what is wrong after every n-th attack, drawn at random, on the works of these names.

    ``once``: each line is attacked in one work, by one kind of error.
    """
    wrong: list[str] = []
    before: set[Line] | None = set() if once else None
    with small(folder):
        for name in names:
            work = WORKS[name]
            (folder / name).mkdir()
            expected = work(folder / name / "expected")
            every_one = list(attacks(work, folder / name, before))
            drawn = random.Random(0).sample(every_one, -(-len(every_one) // every))
            wrong += [f"{name}: {what}" for what in attack_each(work, drawn, folder / name, expected, say)]
            say(f"{name}: {len(drawn):,} of {len(every_one):,} attacks")
    return wrong


def attack_each(
    work: Callable[[Path], object], chosen: Sequence[Attack], folder: Path, expected: object,
    say: Callable[[str], None] = print,
) -> list[str]:  # fmt: skip
    """Return what is wrong after each of these attacks on a work, in new folders."""
    wrong = []
    gc.collect()
    gc.freeze()  # each attack collects what is new, not the modules
    for i, attack in enumerate(chosen):
        place = folder / f"attack-{i}"
        place.mkdir()
        if work in BEFORE:
            BEFORE[work](place)
        what = in_time(partial(survives, work, attack, place, expected))
        if what:
            wrong.append(f"{attack.kind} at {attack.place}: {what}")
            say(wrong[-1])
        HELD.pop(place, None)
        shutil.rmtree(place, ignore_errors=True)
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", default=[], metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        sys.exit(bool(attack_all(given.works or list(WORKS), given.every, Path(place))))
