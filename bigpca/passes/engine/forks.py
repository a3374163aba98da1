"""What a forked child must forget: threads do not survive a fork, and whoever waits for one waits for ever.

Dask keeps its pool of threads, and its clients, in globals that a child inherits without what drives them. The pool is
made anew; of an inherited client only an error can come, which :func:`reject_inherited` words.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from weakref import WeakSet

import dask.threaded

from bigpca.blas import forget_others

_inherited: WeakSet[Any] = WeakSet()


def _forget_threads() -> None:
    forget_others()
    dask.threaded.default_pool = None
    dask.threaded.pools.clear()
    clients = sys.modules.get("distributed.client")
    if clients is not None:
        _inherited.update(clients._global_clients.values())


os.register_at_fork(after_in_child=_forget_threads)


def reject_inherited(client: Any) -> None:
    """Refuse a client that was made before this process was forked: nothing in this process listens to its scheduler.

    Raises
    ------
    RuntimeError
    """
    if client in _inherited:
        raise RuntimeError(
            f"this process ({os.getpid()}) was forked from one that has a Dask client ({client.id}), "
            "which does not survive a "
            'fork; a process started afresh was expected. Start it by multiprocessing.get_context("spawn"), '
            "or make a client of "
            f'its own here, or run without one: dask.config.set(scheduler="threads").'
        )
