"""State that a forked child must discard: threads do not survive a fork, so waiting for one would never end.

Dask keeps its thread pool and its clients in globals, which a child inherits without their threads. The pool is created
again; an inherited client is rejected by :func:`reject_inherited`.
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
    """Reject a client that was created before this process was forked: nothing here listens to its scheduler.

    Raises
    ------
    RuntimeError
    """
    if client in _inherited:
        raise RuntimeError(
            f"this process ({os.getpid()}) was forked from one that has a Dask client ({client.id}), which does not "
            'survive a fork. Start it by multiprocessing.get_context("spawn"), create a client here, or run without '
            'one: dask.config.set(scheduler="threads").'
        )
