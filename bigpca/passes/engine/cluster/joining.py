"""Checks of a cluster before the first read: the same software, the input's files, memory for the plan.

The client queries its scheduler, and each worker when it first appears, including workers that join during a pass;
files are checked once per worker and path. Versions are requested by Dask's own message, which contains no pickle and
therefore works between different Pythons; the rest by one small function that requires only Python there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from distributed import Client
from distributed.versions import get_versions

from bigpca.errors import format_bytes
from bigpca.passes.engine.cluster.versions import INSTALL, PACKAGES, Versions, check_versions, some
from bigpca.passes.engine.cluster.watch import ask
from bigpca.passes.engine.resources import IMPORTED_BYTES
from bigpca.planning import SAFE_SHARE
from bigpca.storage.stores import kind_of

SCHEDULER = "the scheduler"
Answer: TypeAlias = dict[str, Any]  # of a process to a message: small built-in values by name
# Client -> worker address (or SCHEDULER) -> paths that were checked there.
_looked: WeakKeyDictionary[Client, dict[str, set[str]]] = WeakKeyDictionary()


def join_workers(
    client: Client, workers: Iterable[str], paths: Mapping[str, str], process_bytes: Callable[[int], int]
) -> list[str]:
    """Check workers that were not checked before, and report those of the new ones that lack memory.

    Sends two messages to new workers, one to known workers if a path is new, and none otherwise.

    Parameters
    ----------
    workers : iterable of str
        Addresses.
    paths : mapping of str to {"reads", "writes"}
        Files, directories and addresses in memory that the tasks will use, and how; URLs are not checked.
    process_bytes : callable
        Threads of a process -> planned bytes above the idle process; 0 without a plan.

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
    looked = _looked.setdefault(client, {})
    local = {path: how for path, how in paths.items() if path and kind_of(path) != "remote"}
    asked = [who for who in workers if who not in looked or not local.keys() <= looked[who]]
    new = [who for who in asked if who not in looked]
    if not asked:
        return []
    here, others = package_versions(client, new, scheduler=SCHEDULER not in looked) if new else ({}, {})
    warning = check_versions(here, others)
    found = ask(client, client.run, by_value(look), list(local), workers=asked, on_error="return")
    answers = {who: answer for who, answer in found.items() if isinstance(answer, dict)}  # others may have just left
    _check_answers(found)
    with_package = {f"worker {who}": answer["package"] for who, answer in answers.items() if who in new}
    if new and SCHEDULER not in looked:
        with_package[SCHEDULER] = ask(client, client.run_on_scheduler, by_value(look), [])["package"]
    check_versions({"bigpca": look([])["package"]}, {who: {"bigpca": version} for who, version in with_package.items()})
    _check_paths({who: answer["paths"] for who, answer in answers.items()}, local)
    if warning:
        warnings.warn(warning, UserWarning, stacklevel=2)
    for who in [*answers, SCHEDULER]:
        looked.setdefault(who, set()).update(local)
    return [line for who in new if who in answers for line in _shortage(who, answers[who], process_bytes)]


def look(paths: list[str], dask_worker: Any = None) -> Answer:
    """Describe this process: the version of bigpca or None, threads and memory, and what exists under each path.

    It is pickled by value and imports what it needs, because bigpca may be missing where it runs.
    """
    import glob
    import importlib.metadata
    import importlib.util
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

    package = None
    if importlib.util.find_spec("bigpca") is not None:
        try:
            package = importlib.metadata.version("bigpca")
        except importlib.metadata.PackageNotFoundError:  # a folder on the path, as created by UploadDirectory
            package = importlib.import_module("bigpca").__version__
    found = {"package": package, "paths": {path: seen(path) for path in paths}}
    if hasattr(dask_worker, "memory_manager"):  # a scheduler passes itself here too
        found["threads"] = dask_worker.state.nthreads
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
    answers = ask(client, client.scheduler.broadcast, msg=message, workers=list(workers), on_error="ignore")
    others = {f"worker {who}": _of_interest(answer) for who, answer in answers.items()}
    if scheduler:
        others[SCHEDULER] = _of_interest(ask(client, client.scheduler.versions, packages=packages))
    return _of_interest(get_versions(packages)), others


def _of_interest(answer: Answer) -> Versions:
    return {name: answer["packages"].get(name) for name in PACKAGES if name != "bigpca"}


def _check_answers(found: Mapping[str, object]) -> None:
    for who, answer in found.items():
        if isinstance(answer, Exception) and not isinstance(answer, OSError):
            raise ConnectionError(
                f"bigpca cannot be imported on worker {who} ({type(answer).__name__}: {answer}), although it can be "
                f"here. {INSTALL}"
            ) from answer


def _check_paths(seen: Mapping[str, Answer], paths: Mapping[str, str]) -> None:
    here = look(list(paths))["paths"]
    for path, how in paths.items():
        blind = [f"worker {who}" for who, found in seen.items() if found[path] is None]
        if blind:
            raise FileNotFoundError(
                f"{some(blind)} cannot see {path}, which this run {how} and which exists here: it is on this machine's "
                "own disk, or is not mounted there. Put it on storage that all workers mount under this path, start "
                'the workers on this machine, or run without them (dask.config.set(scheduler="threads")).'
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
                f"{some(others)} has something else under {path}, which this run {how}: another disk is mounted there. "
                "Put it on storage that all workers share, or give it a path that means the same everywhere."
            )


def _shortage(who: str, answer: Answer, process_bytes: Callable[[int], int]) -> list[str]:
    threads, limit, needed = answer["threads"], answer["limit"], process_bytes(answer["threads"])
    room = int(SAFE_SHARE * (limit or 0)) - max(IMPORTED_BYTES, answer["memory"])
    if not limit or needed <= room:
        return []
    return [
        f"worker {who} has {format_bytes(max(0, room))} left of its memory limit of {format_bytes(limit)} "
        f"({SAFE_SHARE:.0%} of it, less its idle memory), but the plan for its {threads} "
        f"thread{'s' if threads > 1 else ''} is {format_bytes(needed)}"
    ]
