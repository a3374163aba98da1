"""A fit in a process of its own, to be killed: of STORE CHECKPOINT [SCHEDULER].

Prints a line for every event, and the digest of the bits at the end.
"""

import hashlib
from pathlib import Path

import dask
from distributed import Client

from bigpca.engine import layout
from bigpca.engine.events import Event
from tests.passes.kit import bits, logged, moments_of


def show(event: Event) -> None:
    print(type(event).__name__, flush=True)


def main(store: str, checkpoint: str, scheduler: str = "") -> None:
    """Fit with the groups of the ``small_groups`` fixture and slow reads."""
    layout.MIN_GROUP_BYTES, layout.MIN_GROUPS = 256, 80
    X = logged(Path(store), Path(store).with_name("log"), delay=0.02)
    if scheduler:
        with Client(scheduler):
            found = moments_of(X, checkpoint=Path(checkpoint), progress=show)
    else:
        with dask.config.set(scheduler="threads", num_workers=2):
            found = moments_of(X, checkpoint=Path(checkpoint), progress=show)
    print(hashlib.sha256(repr(bits(found)).encode()).hexdigest(), flush=True)
