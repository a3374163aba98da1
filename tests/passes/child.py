"""A fit in a process of its own, to be killed: of STORE CHECKPOINT SEGMENTS [SCHEDULER].

Says that so many segments are stored, and then waits to be killed, while its workers go on.
"""

import signal
from pathlib import Path

import dask
from distributed import Client

from bigpca.engine import layout
from bigpca.engine.events import CheckpointEvent, Event
from tests.passes.kit import logged, moments_of


def main(store: str, checkpoint: str, segments: str, scheduler: str = "") -> None:
    """Fit with the groups of the ``small_groups`` fixture and slow reads."""
    layout.MIN_GROUP_BYTES, layout.MIN_GROUPS = 256, 80
    left = int(segments)

    def stop(event: Event) -> None:
        nonlocal left
        left -= isinstance(event, CheckpointEvent)
        if not left:
            print("stored", flush=True)
            signal.pause()

    X = logged(Path(store), Path(store).with_name("log"), delay=0.02)
    if scheduler:
        with Client(scheduler):
            moments_of(X, checkpoint=Path(checkpoint), progress=stop)
    else:
        with dask.config.set(scheduler="threads", num_workers=2):
            moments_of(X, checkpoint=Path(checkpoint), progress=stop)
