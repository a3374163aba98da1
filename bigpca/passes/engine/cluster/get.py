"""Compute a small graph where the passes run, with their limits: what a pass needs to know about X beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import dask.array as da
from dask.core import flatten

from bigpca.blas import solve_paused
from bigpca.passes.engine.local import chosen_scheduler, current_client
from bigpca.passes.engine.run import Run

if TYPE_CHECKING:
    from bigpca.passes.engine.cluster.watch import Watch

POLL_SECONDS = 0.5


def get_watched(graph: object, keys: object, paths: Mapping[str, str], **options: object) -> Any:
    """Compute ``keys`` of a graph on the scheduler that Dask would use; on a client, under :class:`Watch`.

    Parameters
    ----------
    paths : mapping of str to {"reads"}
        What the graph reads: workers are checked first, as before a pass.

    Raises
    ------
    TimeoutError, ConnectionError, FileNotFoundError
        On a cluster: no worker for ``workers_timeout`` seconds, a lost scheduler, or workers that lack software or
        files.
    """
    with solve_paused():
        client = current_client()
        if client is None:
            get = chosen_scheduler() or da.Array.__dask_scheduler__
            return get(graph, keys, **options)
        from bigpca.passes.engine.cluster.tasks import releasing
        from bigpca.passes.engine.cluster.watch import (
            Watch,
            join_workers,  # imports distributed, which is slow
            scheduler_loss_named,
        )

        watch = Watch(client, Run(), lambda workers: join_workers(client, workers, paths, lambda threads: 0))
        with scheduler_loss_named(watch):
            watch.wait_for_workers()
            theirs = client.futures.keys() & set(flatten([keys]))  # results that the caller persisted
            own = set(flatten([keys])) - theirs
            return releasing(client, own.__contains__, partial(_gather, watch, graph, keys, options))


def _gather(watch: Watch, graph: Any, keys: Any, options: dict[str, Any]) -> Any:
    from distributed import wait  # slow to import, so only if there is a client

    from bigpca.passes.engine.cluster.tasks import GATHER_SECONDS, awaited

    futures = watch.client.get(graph, keys, sync=False, **options)
    while True:
        try:
            wait(futures, timeout=POLL_SECONDS)
            break
        except TimeoutError:
            watch.check()
            watch.warn_of_silent()
    return awaited(watch.client, partial(watch.client.gather, futures), watch.check, GATHER_SECONDS)
