"""What a cluster must have before the first read: the same software, the input's files, memory for the plan.

A client asks its scheduler and each worker once, when it is first seen, which includes workers that join in mid-pass;
files are looked for once per worker and path. Versions are asked by Dask's own message, which carries no pickle and so
works between different Pythons; the rest by one small function that needs nothing but Python there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from distributed.versions import get_versions

from bigpca.errors import format_bytes
from bigpca.passes.engine.cluster.versions import INSTALL, PACKAGES, Versions, check_versions, some
from bigpca.passes.engine.cluster.watch import ask
from bigpca.passes.engine.resources import IMPORTED_BYTES
from bigpca.planning import SAFE_SHARE

SCHEDULER = "the scheduler"
# Client -> worker address -> paths that were looked for there; the scheduler stands among the workers.
_looked: WeakKeyDictionary[Any, dict[str, set[str]]] = WeakKeyDictionary()


def join_workers(
    client: Any, workers: Iterable[str], paths: Mapping[str, str], process_bytes: Callable[[int], int]
) -> list[str]:
    """Look at workers that were not looked at before, and return what is wrong with the memory of the new ones.

    Two messages to new workers, one to workers that are known where a path is new, none otherwise.

    Parameters
    ----------
    workers : iterable of str
        Addresses.
    paths : mapping of str to {"reads", "writes"}
        Files and directories that the tasks will use, and how; URLs are taken as they are.
    process_bytes : callable
        Threads of a process -> planned bytes over the idle process; 0 where nobody planned.

    Returns
    -------
    list of str
        A sentence for each new worker that has not the memory planned.

    Raises
    ------
    ConnectionError
        For software that is missing or does not work together.
    FileNotFoundError
        For a path that a worker does not see, or under which it sees something else.
    """
    looked = _looked.setdefault(client, {})
    local = {path: how for path, how in paths.items() if path and "://" not in path}
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


def look(paths: list[str], dask_worker: Any = None) -> dict[str, Any]:
    """Say what this process has: the version of bigpca or None, threads and memory, and what is there under each path.

    It travels by value and imports what it needs, because bigpca may be missing where it runs.
    """
    import glob
    import importlib.metadata
    import importlib.util
    import os
    import pathlib
    import zlib

    def seen(path: str) -> object:
        if os.path.isdir(path):  # the metadata of a Zarr store tells it from another one under this name
            documents = [pathlib.Path(path, name) for name in ("zarr.json", ".zarray", ".zgroup")]
            try:
                return ["directory", *(zlib.crc32(file.read_bytes()) for file in documents if file.is_file())]
            except OSError:  # it may not be read there
                return None
        if os.path.exists(path):
            return ["file", os.path.getsize(path)]
        return ["files", len(glob.glob(path))] if glob.glob(path) else None

    package = None
    if importlib.util.find_spec("bigpca") is not None:
        try:
            package = importlib.metadata.version("bigpca")
        except importlib.metadata.PackageNotFoundError:  # a folder on the path, as UploadDirectory leaves it
            package = importlib.import_module("bigpca").__version__
    found = {"package": package, "paths": {path: seen(path) for path in paths}}
    if hasattr(dask_worker, "memory_manager"):  # a scheduler passes itself here too
        found["threads"] = dask_worker.state.nthreads
        found["limit"] = dask_worker.memory_manager.memory_limit
        found["memory"] = dask_worker.monitor.get_process_memory()
    return found


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function that pickles with its code, as functions of ``__main__`` do, and not by its name."""
    return FunctionType(function.__code__, {"__name__": "__main__"}, function.__name__, function.__defaults__)


def package_versions(
    client: Any, workers: Iterable[str], *, scheduler: bool = True
) -> tuple[Versions, dict[str, Versions]]:
    """Return the versions of Python and the packages that must agree (but bigpca): here,
    and on the scheduler and workers.
    """
    packages = [name for name in PACKAGES if name not in ("python", "bigpca")]
    message = {"op": "versions", "packages": packages}
    answers = ask(client, client.scheduler.broadcast, msg=message, workers=list(workers), on_error="ignore")
    others = {f"worker {who}": _of_interest(answer) for who, answer in answers.items()}
    if scheduler:
        others[SCHEDULER] = _of_interest(ask(client, client.scheduler.versions, packages=packages))
    return _of_interest(get_versions(packages)), others


def _of_interest(answer: Mapping[str, Any]) -> Versions:
    return {name: answer["packages"].get(name) for name in PACKAGES if name != "bigpca"}


def _check_answers(found: Mapping[str, Any]) -> None:
    for who, answer in found.items():
        if isinstance(answer, Exception) and not isinstance(answer, OSError):
            raise ConnectionError(
                f"bigpca cannot be imported on worker {who} ({type(answer).__name__}: {answer}); it was expected to "
                f"work as here. {INSTALL}"
            ) from answer


def _check_paths(seen: Mapping[str, Mapping[str, Any]], paths: Mapping[str, str]) -> None:
    here = look(list(paths))["paths"]
    for path, how in paths.items():
        blind = [f"worker {who}" for who, found in seen.items() if found[path] is None]
        if blind:
            raise FileNotFoundError(
                f"{some(blind)} cannot see {path}, which this run {how} and which is here: it lies on this machine's "
                "own disk, or is not mounted there. Put it on storage that all workers mount under this path, start "
                "the workers on this "
                f'machine, or run without them (dask.config.set(scheduler="threads")).'
            )
        others = [f"worker {who}" for who, found in seen.items() if found[path] != here[path]]
        if others:
            raise FileNotFoundError(
                f"{some(others)} has something else under {path}, which this run {how}: another disk is mounted there. "
                "Put it on storage that all workers share, or give it a path that means the same everywhere."
            )


def _shortage(who: str, answer: Mapping[str, Any], process_bytes: Callable[[int], int]) -> list[str]:
    threads, limit, needed = answer["threads"], answer["limit"], process_bytes(answer["threads"])
    room = int(SAFE_SHARE * (limit or 0)) - max(IMPORTED_BYTES, answer["memory"])
    if not limit or needed <= room:
        return []
    return [
        f"worker {who} has {format_bytes(max(0, room))} left of its memory limit of {format_bytes(limit)} "
        f"({SAFE_SHARE:.0%} of it, less what it holds idle), but the plan for its {threads} "
        f"thread{'s' if threads > 1 else ''} is {format_bytes(needed)}"
    ]
