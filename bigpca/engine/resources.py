"""What the processes of a run may use: threads, memory limit and idle memory, queried from Dask or the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bigpca.engine.local import Eligible, current_client, local_threads, workers_of
from bigpca.engine.planning import Resources
from bigpca.settings import memory_limit as machine_limit
from bigpca.settings import memory_now

IMPORTED_BYTES = 250 << 20  # a worker after it has imported what a fold needs; a new one reports less


def parse_limit(memory_limit: int | str) -> int:
    """Return a memory limit in bytes; ``"2 GiB"`` and plain numbers are accepted.

    Raises
    ------
    ValueError
        If it is not a positive size.
    """
    try:
        size = read_size(memory_limit) if isinstance(memory_limit, str) else int(memory_limit)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f'memory_limit = {memory_limit!r} is not a size; a number of bytes or "2 GiB" was expected.'
        ) from error
    if size <= 0:
        raise ValueError(
            f"memory_limit = {memory_limit!r} is not positive; a number of bytes or a size like '2 GiB' was expected."
        )
    return int(size)


def read_size(text: str) -> int:
    """Return the bytes of a size such as "512MiB", "2 GB" or "1e9"; raises ValueError for other texts."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " "))


def find_resources(memory_limit: int | str | None, *, in_process: bool = False) -> Resources:
    """Return what one process of the run may use.

    Parameters
    ----------
    memory_limit : int, str or None
        Limit per process; None for the limit of the live workers, or the machine's free memory. Whatever is given, a
        run is rejected if a worker's own limit is smaller than its plan.
    in_process : bool
        Whether the run stays in this process even if there is a client (NumPy input).
    """
    given = None if memory_limit is None else parse_limit(memory_limit)
    client = None if in_process else current_client()
    if client is not None:
        # The tightest worker; without any worker yet, one thread within the given limit.
        workers = workers_of(client)
        eligible = Eligible.here().threads_of(workers)
        found = [_of_worker(address, workers[address], threads, given) for address, threads in eligible.items()]
        if not found:
            where = "memory_limit" if given else "this machine (no worker yet)"
            return Resources(1, given or machine_limit(), 0, where, local=False)
        smallest = replace(min(found, key=lambda r: r.room_bytes / r.threads), processes=len(found))
        if given:
            return replace(smallest, where="memory_limit")
        if len({(r.limit_bytes, r.threads) for r in found}) == 1:
            return replace(smallest, where="the workers' memory limit")
        return smallest
    idle, free = memory_now()
    if given is not None:
        return Resources(local_threads(), given, idle, "memory_limit")
    return Resources(local_threads(), free + idle, idle, "this machine's free memory")


def _of_worker(address: str, worker: Mapping[str, Any], threads: int, given: int | None) -> Resources:
    limit = given or int(worker.get("memory_limit") or 0) or machine_limit()
    idle = max(IMPORTED_BYTES, int(worker.get("metrics", {}).get("memory", 0)))
    where = f"the memory limit of the smallest worker, {address},"
    return Resources(threads, limit, idle, where, local=False)
