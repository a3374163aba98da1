"""Waits on a cluster have limits: no worker for too long, or a lost scheduler, is an error instead of a wait.

Checks of a cluster before the first read: the same software, the input's files, memory for the plan. Which differences
between the software of client, scheduler and workers break a run, and which only warn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from distributed import Client
from distributed.versions import get_versions

from bigpca.engine.cluster.tasks import releasing, starts_with
from bigpca.engine.events import RetryEvent
from bigpca.engine.group import RunCancelled
from bigpca.engine.local import ANSWER_SECONDS, Eligible, ask
from bigpca.engine.planning import SAFE_SHARE, SMALLER_CHUNKS
from bigpca.engine.resources import IMPORTED_BYTES
from bigpca.engine.run import Run
from bigpca.errors import MemoryBudgetError, counted, format_bytes
from bigpca.storage.files import kind_of

LOST_SECONDS = 60  # of a scheduler that does not answer
LOOK_SECONDS = 5  # between questions about silent workers
SETTLE_SECONDS = 0.1  # between looks at whether a scheduler has noticed that a connection broke
QUIET_SECONDS = 100  # without any progress, after which a line says what is waited for
LEFT_SECONDS = 1.0  # between looks at whether workers that have not answered are still there
AT_ONCE = 256  # workers that are asked at a time: each takes a connection of the client and one of the scheduler
_pool = ThreadPoolExecutor(1, thread_name_prefix="bigpca-join")
logger = logging.getLogger("bigpca")


class Watch:
    """Watches the workers of a client while a pass waits for its futures.

    Parameters
    ----------
    client : distributed.Client
    options : Run
    join : callable
        New workers and their threads -> sentences about those with too little memory; raises for workers that cannot
        run tasks.

    Attributes
    ----------
    workers : dict of str to int
        The workers that may run the tasks, and how many each runs at a time.
    wanted : Eligible
        Which these are, by the annotations of the context.
    """

    def __init__(self, client: Client, options: Run, join: Callable[[Mapping[str, int]], list[str]]) -> None:
        self.client, self.options, self.join = client, options, join
        self.address = getattr(client.scheduler, "address", "")  # which a closed client does not know
        self.wanted, self._eligible = Eligible.here(), dict[str, int]()
        self.unasked: set[str] = set()
        self.asking: Future[list[str]] | None = None
        self.seen = self.checked = time.monotonic()
        self.workers: dict[str, int] = {}
        self.lost, self.told = 0, False
        self.looked = self.seen
        self.silent: set[str] = set()
        self.unknown = Unknown()
        self.broke = -inf  # when the client was first found to wait for its scheduler's notice

    @property
    def threads(self) -> int:
        """Worker threads at the last check of the cluster."""
        return sum(self.workers.values())

    def wait_for_workers(self) -> None:
        """Wait until a worker is up, then check all of them.

        Submits a dummy task, because adaptive clusters start workers only when there is work.
        """
        self.check()
        if not self.workers:
            key = f"bigpca-waits-for-a-worker-{uuid.uuid4().hex[:8]}"
            releasing(self.client, starts_with(key), partial(self._wait_by, key))
        unanswered = known_of(self.client).unanswered  # they are asked again, but not waited for
        short = self._join(sorted(self.unasked - unanswered))
        self.unasked &= unanswered
        if short:
            raise MemoryBudgetError(
                f"{'; '.join(short)}. Retire such workers (client.retire_workers), start workers with more memory or "
                f"fewer threads, or {SMALLER_CHUNKS}."
            )

    def _wait_by(self, key: str) -> None:
        future = self.client.submit(int, key=key, pure=False)
        while not self.workers:
            time.sleep(0.1)
            self.check()
        future.release()

    def check(self) -> None:
        """Raise if the cluster is gone; report lost workers."""
        now = self._nthreads()
        gone, new = self.workers.keys() - now.keys(), now.keys() - self.workers.keys()
        self.unasked = (self.unasked | new) & now.keys()
        self.workers, self.checked = now, time.monotonic()
        if now:
            self.seen, self.told = self.checked, False
        if gone:
            self.lost += len(gone)
            logger.warning(
                "lost %d worker(s) (%s); their unfinished groups are read again", len(gone), ", ".join(sorted(gone))
            )
            self.options.progress(RetryEvent("worker lost", self.lost))
        limit, what = self.options.workers_timeout, f"no worker{self.wanted} on {self.address}"
        if not self.workers and time.monotonic() - self.seen > limit:
            raise TimeoutError(
                f"{what} for {limit:g} s (workers_timeout). Start workers and run again.{resume_hint(self.options)}"
            )
        if not self.told and time.monotonic() - self.seen > QUIET_SECONDS:
            self.told = True
            logger.warning(
                "%s for %g s; the run waits up to %g s for one (workers_timeout)", what, QUIET_SECONDS, limit
            )

    def wait_until_settled(self) -> None:
        """Wait until the scheduler has noticed that earlier connections of this client broke; a minute for each break.

        NOTE: when it does, Dask forgets what the client has asked for, and closes its present connection: both are
        found by the client's name, which all its connections have. What is submitted before is cancelled again.
        """
        begun, told = time.monotonic(), False
        if begun - self.broke > 2 * LOST_SECONDS:  # else another segment has waited for the same break
            self.broke = begun
        while time.monotonic() - self.broke < LOST_SECONDS:
            self.check()
            with contextlib.suppress(OSError):
                if self.client.status == "running":
                    known, quiet = ask(self.client, self.client.run_on_scheduler, by_value(settled), self.client.id)
                    if known and quiet:
                        self.broke = -inf
                        return
                    if not known:
                        self._connect_again()
            if not told:
                told = True
                logger.warning("a connection to the scheduler broke; waiting up to %g s until it settles", LOST_SECONDS)
            time.sleep(SETTLE_SECONDS)

    def _connect_again(self) -> None:
        """Connect a client that counts as running, and that the scheduler does not know any more.

        NOTE: where the scheduler notices late that an earlier connection broke, it says farewell on the present one.
        Dask's client then listens no more, and neither connects again nor says so.
        """
        client: Any = self.client

        async def connect() -> None:
            client.scheduler_comm.comm.abort()
            if client._handle_report_task.done():  # else that connects again
                await client._reconnect()
                client._handle_report_task = asyncio.ensure_future(client._handle_report())

        client.sync(connect, callback_timeout=ANSWER_SECONDS)

    def warn_of_silent(self, waited: list[Any]) -> None:
        """Warn once of each worker from which the scheduler has not heard for nearly a minute.

        Raises
        ------
        RunCancelled
            If the scheduler does not know tasks that the client waits for: it forgot them without telling the client.
        """
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return
        asked = (), inf, waited, self.client.id
        found, unknown, heard = ask(self.client, self.client.run_on_scheduler, by_value(at_work), *asked)
        if self.unknown.forgotten(unknown, heard):
            raise RunCancelled("the scheduler has forgotten tasks of this run")
        for who, (seconds, *_) in found.items():
            if seconds > ANSWER_SECONDS and who not in self.silent:
                self.silent.add(who)
                warnings.warn(
                    f"worker {who} has been silent for {seconds:.3g} s. It may be stopped or swapping; the "
                    f"computation is waiting for it. Continue it, or remove it from the cluster.",
                    UserWarning,
                    stacklevel=2,
                )
        self.looked = time.monotonic()

    def look_at_new(self, *, wait: bool = False) -> None:
        """Check workers that joined during the run, in the background: one that has just died answers late.

        Parameters
        ----------
        wait : bool
            Whether to wait for the answers. After a failed task, what its worker lacks explains more than the failure.
        """
        if self.asking is None and self.unasked:
            self.asking = _pool.submit(self._join, sorted(self.unasked))
            self.unasked.clear()
        if self.asking is not None and (wait or self.asking.done()):
            asking, self.asking = self.asking, None
            short = asking.result()
            if short:
                warnings.warn(
                    f"{'; '.join(short)}: it joined during the run and may be killed.", UserWarning, stacklevel=2
                )

    def _join(self, workers: list[str]) -> list[str]:
        try:
            return self.join({who: self.workers[who] for who in workers if who in self.workers})
        except (ConnectionError, FileNotFoundError) as error:
            raise type(error)(f"{error}{resume_hint(self.options)}") from error

    def _nthreads(self) -> dict[str, int]:
        end, lost = time.monotonic() + LOST_SECONDS, None
        # A scheduler that is paused, or too busy to accept connections for a while, is not lost. A client whose
        # connection broke tries to connect again, and closes if it cannot.
        while self.client.status not in ("closing", "closed") and (left := end - time.monotonic()) > 0:
            try:
                return self._of_these(self.client.sync(self.client.scheduler.ncores, callback_timeout=left))
            except (OSError, TimeoutError, RuntimeError) as error:
                lost = error
            time.sleep(0.1)
        raise ConnectionError(
            f"the Dask scheduler is lost or the client was closed during the run (client status: "
            f"{self.client.status}). Keep both until the run ends, and run again.{resume_hint(self.options)}"
        ) from lost

    def _of_these(self, workers: Mapping[str, int]) -> dict[str, int]:
        """Return the workers that may run the tasks; what a new one has is asked once, if annotations name anything."""
        if not self.wanted.restricts:
            return dict(workers)
        if not workers.keys() <= self._eligible.keys():
            described = ask(self.client, self.client.scheduler.identity, n_workers=-1)["workers"]
            self._eligible = dict.fromkeys(workers, 0) | self.wanted.threads_of(described)
        return {who: self._eligible[who] for who in workers if self._eligible[who]}

    def cancelled(self, times: int = 1) -> RuntimeError:
        """Return the error to raise where the results of tasks are lost, though scheduler and workers are there."""
        return RuntimeError(
            f"tasks of this run were cancelled {counted(times, 'time')}: by another client, by a restart "
            "of the workers, or because the connection to the scheduler broke. Run again."
            f"{resume_hint(self.options)}"
        )


@dataclass
class KnownWorkers:
    """What a client knows of the workers of its cluster, for all its runs.

    Attributes
    ----------
    looked : dict of str to set of str
        Worker (or ``SCHEDULER``) -> paths that were checked there.
    sees : dict
        (worker, directory) -> whether it sees what the client creates there.
    unanswered : set of str
        Workers that were there, and did not answer a question.
    stalled : set of str
        Workers that made no progress when they were last looked at.
    arithmetic : dict of str to list of str
        BLAS kernels and vector instructions -> the workers that compute with them.
    """

    looked: dict[str, set[str]] = field(default_factory=dict)
    sees: dict[tuple[str, str], bool] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)
    stalled: set[str] = field(default_factory=set)
    arithmetic: dict[str, list[str]] = field(default_factory=dict)


_known: WeakKeyDictionary[Client, KnownWorkers] = WeakKeyDictionary()


def known_of(client: Client) -> KnownWorkers:
    """Return what a client knows of its cluster."""
    return _known.setdefault(client, KnownWorkers())


def ask_workers(client: Client, question: Callable[..., Awaitable[Any]], workers: Iterable[str]) -> dict[str, Any]:
    """Ask each worker alone, all at once, and return the answers of those that answer in ``ANSWER_SECONDS``.

    One that leaves meanwhile is not waited for. One that stays and does not answer counts as stalled.

    Parameters
    ----------
    question : callable
        ``workers=[address]`` -> an awaitable dict, as the methods of a client that ask all workers.

    Warns
    -----
    UserWarning
        Once of each worker that does not answer.
    """
    known, silent = known_of(client), list[str]()

    async def answers() -> dict[str, Any]:
        gate, found = asyncio.Semaphore(AT_ONCE), dict[str, Any]()

        async def one(who: str) -> None:
            async with gate:
                try:
                    found.update(await asyncio.wait_for(question(workers=[who]), ANSWER_SECONDS))
                except TimeoutError:
                    silent.append(who)
                except Exception as error:
                    if not isinstance(error, OSError) and client.status == "running":
                        raise
                    logger.info("worker %s was asked, and left: %s", who, error)  # or the client did

        asked = {asyncio.ensure_future(one(who)): who for who in workers}
        waiting, left = set(asked), set[Any]()
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=LEFT_SECONDS)
            for task in done - left:
                task.result()
            live = await asyncio.wait_for(client.scheduler.ncores(), ANSWER_SECONDS) if waiting else {}
            for task in waiting:
                if asked[task] not in live:
                    task.cancel()
                    left.add(task)
        return found

    found: dict[str, Any] = client.sync(answers)
    known.unanswered -= found.keys()
    for who in sorted(set(silent) - known.unanswered):
        warnings.warn(
            f"worker {who} did not answer within {ANSWER_SECONDS} s. It may be stopped or swapping. Others do its "
            "work until it answers; the run waits if there are none.",
            UserWarning,
            stacklevel=2,
        )
    known.unanswered |= set(silent)
    return found


class Unknown:
    """The tasks that a client waits for and its scheduler does not know: forgotten, or still on their way to it.

    What a client sends arrives in order, but may wait for long in a connection that was interrupted. So tasks have been
    forgotten only if the scheduler has heard of the client since it was first asked about them.
    """

    def __init__(self) -> None:
        self.since: dict[Any, float] = {}

    def forgotten(self, unknown: set[Any], heard: float) -> set[Any]:
        """Return those that it has forgotten, by its answer: what it does not know, and when it heard of the client."""
        now = time.monotonic()
        self.since = {key: self.since.get(key, now) for key in unknown}
        return {key for key, since in self.since.items() if since < now - heard}


def at_work(
    prefix: str | tuple[()], silent: float, waited: list[Any], client: str, dask_scheduler: Any = None
) -> tuple[dict[str, Any], set[Any], float]:
    """Return each worker's silence in seconds, its tasks of a pass, those it holds, whether it runs only others,
    whether all of its threads run what nobody waits for any more, and its status.

    Also return those of the ``waited`` tasks that the scheduler does not know, and how many seconds ago it heard of the
    client on the connection of its submissions: 0 for one that it does not know either.

    What a worker holds may be many tasks, so it is listed only for workers that have been silent for so many seconds.
    No task begins with the prefix ``()``. This runs on the scheduler, is pickled by value and imports what it needs,
    because bigpca may be missing there.
    """
    import time

    found = {}
    for address, worker in dask_scheduler.workers.items():
        silence = time.time() - worker.last_seen
        processing, held, running = (
            [task.key for task in tasks if isinstance(task.key, str) and task.key.startswith(prefix)]
            for tasks in (worker.processing, worker.has_what if silence > silent else (), worker.executing)
        )
        released = sum(task.processing_on is not worker for task in worker.executing)
        released += worker.metrics.get("task_counts", {}).get("cancelled", 0)
        others, full = bool(worker.executing) and not running, released >= worker.nthreads
        found[address] = silence, processing, held, others, full, worker.status.name
    known = dask_scheduler.clients.get(client)
    heard = 0.0 if known is None else time.time() - known.last_seen
    return found, {key for key in waited if key not in dask_scheduler.tasks}, heard


def settled(client: str, dask_scheduler: Any = None) -> tuple[bool, bool]:
    """Whether a client is connected, and every connection of a client is its present one; runs on the scheduler."""
    present = dask_scheduler.client_comms
    streams = [comm for comm, op in dask_scheduler._comms.items() if op == "register-client"]
    return client in present, all(any(one.comm is comm for one in present.values()) for comm in streams)


def resume_hint(options: Run) -> str:
    """Return the end of an error message that explains how to resume; empty without a checkpoint."""
    return f" Resume with checkpoint={str(options.checkpoint.path)!r}." if options.checkpoint else ""


@contextlib.contextmanager
def scheduler_loss_named(watch: Watch) -> Iterator[None]:
    """Convert the errors of calls to a scheduler that has just died into the one that names the cause.

    The loss may show first in any call: a gather, a submission, a cancelled future.
    """
    from distributed.comm import CommClosedError

    try:
        yield
    except CommClosedError as error:
        watch.check()  # raises if the scheduler does not answer
        raise ConnectionError(
            f"a connection of the cluster {watch.client.scheduler.address} broke ({error}), although its scheduler "
            f"answers. Run again.{resume_hint(watch.options)}"
        ) from error
    except Exception as error:
        # raised by distributed for a closed client and its futures
        cancelled = isinstance(error, RunCancelled | CancelledError)
        closed = type(error) is Exception or type(error).__name__ == "ClosedClientError"  # of some versions
        if not (cancelled or closed or isinstance(error, RuntimeError)):
            raise
        if watch.client.status != "running":
            watch.check()  # raises if the scheduler is lost, and not only the connection
        if cancelled:
            raise watch.cancelled() from error
        raise


# =============  ======================  ===================================================================
# package        must agree              because
# =============  ======================  ===================================================================
# python         major.minor             functions are sent as byte code, which changes with the minor version
# bigpca         the whole version       states and readers are sent as pickles of its classes
# dask,          year.month              task graphs and messages are pickles of their classes, which change
# distributed                            between releases; patches keep them
# numpy, zarr    major                   arrays and stores are pickled and read in the form of that major
# scipy,         (only a warning)        last digits may differ; formats do not
# numcodecs
# =============  ======================  ===================================================================
#
# Any other difference is reported in one warning: results are as accurate, but identical bits are guaranteed only for
# identical versions. A scheduler runs no tasks, but it unpickles graphs, so the same applies to it.
WHOLE = 99
MUST_AGREE = {
    "python": 2,
    "bigpca": WHOLE,
    "dask": 2,
    "distributed": 2,
    "numpy": 1,
    "zarr": 1,
    "scipy": 0,
    "numcodecs": 0,
}
PACKAGES = tuple(MUST_AGREE)
INSTALL = (
    "It is best to run scheduler and workers in the same image or environment as the client. Running workers can "
    'install it by client.register_plugin(distributed.PipInstall(["bigpca"])), or by '
    "distributed.diagnostics.plugin.UploadDirectory of the folder that holds the package."
)
Versions = Mapping[str, str | None]


def check_versions(here: Versions, others: Mapping[str, Versions]) -> str | None:
    """Compare the versions of a client with those of its scheduler and workers.

    Parameters
    ----------
    here : mapping of str to str or None
        Package -> version in this process.
    others : mapping of str to such a mapping
        ``"scheduler"`` or ``"worker tcp://..."`` -> versions there; None for a missing package.

    Returns
    -------
    str or None
        The warning, if something differs that does not break a run.

    Raises
    ------
    ConnectionError
        If something that a run needs is missing, or differs in a way that breaks it.
    """
    places: dict[tuple[str, str | None], list[str]] = {}
    for who, there in others.items():
        for name in here:
            if there[name] != here[name]:
                places.setdefault((name, there[name]), []).append(who)
    told, breaking = list[str](), list[str]()
    for (name, version), where in places.items():
        told.append(f"{name} is {version or 'missing'} on {some(where)} and {here[name]} here")
        parts = MUST_AGREE[name]
        if version is None or version.split(".")[:parts] != str(here[name]).split(".")[:parts]:
            breaking.append(told[-1])
    if breaking:
        raise ConnectionError(
            f"{'; '.join(breaking)}: tasks cannot be exchanged between them (python must agree in major.minor, dask "
            f"and distributed in year.month, numpy and zarr in the major version, bigpca in all). {INSTALL}"
        )
    if told:
        return f"{'; '.join(told)}: the result is as accurate, but last bits may differ from those of equal versions."
    return None


def some(places: list[str]) -> str:
    """Name the first place, and count the others."""
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"


# The client queries its scheduler, and each worker when it first appears, including workers that join during a pass;
# files are checked once per worker and path. Versions are requested by Dask's own message, which contains no pickle and
# therefore works between different Pythons; the rest by one small function that requires only Python there.
SCHEDULER = "the scheduler"
Answer: TypeAlias = dict[str, Any]  # of a process to a message: small built-in values by name


def join_workers(client: Client, workers: Mapping[str, int], paths: Mapping[str, str], thread_bytes: int) -> list[str]:
    """Check workers that were not checked before, and report those of the new ones that lack memory.

    Sends two messages to new workers, one to known workers if a path is new, and none otherwise.

    Parameters
    ----------
    workers : mapping of str to int
        Addresses, and how many tasks each runs at a time.
    paths : mapping of str to {"reads", "writes"}
        Files, directories and addresses in memory that the tasks will use, and how; URLs are not checked.
    thread_bytes : int
        Planned bytes of each thread, above the idle process; 0 without a plan.

    Returns
    -------
    list of str
        A sentence for each new worker that lacks the planned memory.

    Raises
    ------
    ConnectionError
        For software that is missing or incompatible.
    FileNotFoundError
        For a path that a worker cannot see, or under which it sees something else.
    """
    looked = known_of(client).looked
    local = {path: how for path, how in paths.items() if path and kind_of(path) != "remote"}
    asked = [who for who in workers if who not in looked or not local.keys() <= looked[who]]
    new = [who for who in asked if who not in looked]
    if not asked:
        return []
    here, others = package_versions(client, new, scheduler=SCHEDULER not in looked) if new else ({}, {})
    warning = check_versions(here, others)
    found = ask_workers(client, partial(client.run, by_value(look), list(local), on_error="return"), asked)
    answers = {who: answer for who, answer in found.items() if isinstance(answer, dict)}  # others may have just left
    for who, answer in found.items():
        if isinstance(answer, Exception) and not isinstance(answer, OSError):
            raise ConnectionError(
                f"bigpca cannot be imported on worker {who} ({type(answer).__name__}: {answer}), although it can be "
                f"imported here. {INSTALL}"
            ) from answer
    with_package = {f"worker {who}": answer["package"] for who, answer in answers.items() if who in new}
    if new and SCHEDULER not in looked:
        with_package[SCHEDULER] = ask(client, client.run_on_scheduler, by_value(look), [])["package"]
    check_versions({"bigpca": look([])["package"]}, {who: {"bigpca": version} for who, version in with_package.items()})
    _check_paths({who: answer["paths"] for who, answer in answers.items()}, local)
    told = [warning, _mixed(known_of(client).arithmetic, {who: answers[who] for who in new if who in answers})]
    for said in filter(None, told):
        warnings.warn(said, UserWarning, stacklevel=2)
    for who in [*answers, SCHEDULER]:
        looked.setdefault(who, set()).update(local)
    return [line for who in new if who in answers for line in _shortage(who, workers[who], answers[who], thread_bytes)]


def _mixed(known: dict[str, list[str]], answers: Mapping[str, Answer]) -> str | None:
    """Return a warning if new workers compute other last bits than those before, or than each other."""
    before = len(known)
    for who, answer in answers.items():
        if answer.get("arithmetic"):
            known.setdefault(answer["arithmetic"], []).append(f"worker {who}")
    if len(known) <= max(1, before):
        return None
    found = "; ".join(f"{kind} on {some(places)}" for kind, places in known.items())
    return (
        f"workers compute with different BLAS kernels or vector instructions ({found}): results are as accurate, but "
        "their last bits depend on which worker computed what. For equal bits, set OPENBLAS_CORETYPE and "
        "NPY_DISABLE_CPU_FEATURES to the same values on all."
    )


def check_visible(client: Client, path: str) -> None:
    """Reject what this process writes where workers, which will read it, do not see it.

    Raises
    ------
    FileNotFoundError
    """
    if kind_of(path) != "remote":
        workers = ask(client, client.scheduler.ncores)
        found = ask_workers(client, partial(client.run, by_value(look), [path], on_error="return"), workers)
        _check_paths(
            {who: answer["paths"] for who, answer in found.items() if isinstance(answer, dict)}, {path: "writes"}
        )


def look(paths: list[str], dask_worker: Any = None) -> Answer:
    """Describe this process: the version of bigpca or None, memory, and what exists under each path.

    It is pickled by value and imports what it needs, because bigpca may be missing where it runs.
    """
    import glob
    import importlib.util
    import logging
    import os
    import pathlib
    import socket
    import zlib

    def seen(path: str) -> object:
        if "memory://" in path:
            return ["memory of", socket.gethostname(), os.getpid()]
        if os.path.isdir(path):  # its metadata distinguish a Zarr store from another one of this name
            documents = [pathlib.Path(path, name) for name in ("zarr.json", ".zarray", ".zgroup")]
            try:
                return ["directory", *(zlib.crc32(file.read_bytes()) for file in documents if file.is_file())]
            except OSError:  # not readable there
                return None
        if os.path.exists(path):
            return ["file", os.path.getsize(path)]
        return ["files", len(glob.glob(path))] if glob.glob(path) else None

    log = logging.getLogger("distributed.worker")  # also of a scheduler: it names each function that it is sent
    if not getattr(log, "bigpca", False):
        log.bigpca = True  # type: ignore[attr-defined]
        asked = [(name,) for name in ("at_work", "unpin", "settled")]
        log.addFilter(lambda record: not (record.args in asked and str(record.msg).startswith("Run out-of-band")))
    present = importlib.util.find_spec("bigpca") is not None
    package = importlib.import_module("bigpca").__version__ if present else None  # metadata: a listing of sys.path
    found = {"package": package, "paths": {path: seen(path) for path in paths}}
    if package is not None and hasattr(dask_worker, "memory_manager"):
        here = importlib.import_module("bigpca.blas").numerical_environment()
        found["arithmetic"] = f"{here['blas']}, {here['simd']}"
    if hasattr(dask_worker, "memory_manager"):  # a scheduler passes itself here too
        found["limit"] = dask_worker.memory_manager.memory_limit
        found["memory"] = dask_worker.monitor.get_process_memory()
    return found


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function that is pickled with its code, like functions of ``__main__``, not by name."""
    return FunctionType(function.__code__, {"__name__": "__main__"}, function.__name__, function.__defaults__)


def package_versions(
    client: Client, workers: Iterable[str], *, scheduler: bool = True
) -> tuple[Versions, dict[str, Versions]]:
    """Return the versions of Python and the packages that must agree (except bigpca): here, and on the cluster."""
    packages = [name for name in PACKAGES if name not in ("python", "bigpca")]
    message = {"op": "versions", "packages": packages}
    answers = ask_workers(client, partial(client.scheduler.broadcast, msg=message, on_error="ignore"), workers)
    others = {f"worker {who}": _of_interest(answer) for who, answer in answers.items()}
    if scheduler:
        others[SCHEDULER] = _of_interest(ask(client, client.scheduler.versions, packages=packages))
    return _of_interest(get_versions(packages)), others


def _of_interest(answer: Answer) -> Versions:
    return {name: answer["packages"].get(name) for name in PACKAGES if name != "bigpca"}


def _check_paths(seen: Mapping[str, Answer], paths: Mapping[str, str]) -> None:
    here = look(list(paths))["paths"]
    for path, how in paths.items():
        blind = [f"worker {who}" for who, found in seen.items() if found[path] is None]
        if blind:
            raise FileNotFoundError(
                f"{some(blind)} cannot see {path}, which this run {how} and which exists here: it is on a local disk "
                "of this machine, or is not mounted there. Put it on storage that all workers mount under this path, "
                'start the workers on this machine, or run without them (dask.config.set(scheduler="threads")).'
            )
        others = [f"worker {who}" for who, found in seen.items() if found[path] != here[path]]
        if others and kind_of(path) == "process":
            raise FileNotFoundError(
                f"{some(others)} cannot see {path}, which this run {how}: it is in the memory of this process. Write "
                "it to a store that workers see (bigpca.ingest), or run without them "
                '(dask.config.set(scheduler="threads")).'
            )
        if others:
            raise FileNotFoundError(
                f"{some(others)} finds something else at {path}, which this run {how}: another disk is mounted there. "
                "Put it on storage that all workers share, or give it a path that is the same everywhere."
            )


def _shortage(who: str, threads: int, answer: Answer, thread_bytes: int) -> list[str]:
    limit, needed = answer["limit"], threads * thread_bytes
    room = int(SAFE_SHARE * (limit or 0)) - max(IMPORTED_BYTES, answer["memory"])
    if not limit or needed <= room:
        return []
    return [
        f"worker {who} has {format_bytes(max(0, room))} left of its memory limit of {format_bytes(limit)} "
        f"({SAFE_SHARE:.0%} of it, less its idle memory), but the plan for its "
        f"{counted(threads, 'thread')} is {format_bytes(needed)}"
    ]
