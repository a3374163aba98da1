"""Resume after an interruption
============================

A fit that is stopped half-way resumes from its checkpoint, and gives the same bits as a fit that never stopped."""

# sphinx_gallery_thumbnail_path = 'pictures/thumb_resume.webp'

import tempfile
from pathlib import Path

import dask
import numpy as np

import bigpca as bp
from bigpca.engine.events import CheckpointEvent, Event, PassEvent

# %%
# A fit reports its progress as events. This callable raises KeyboardInterrupt once a few segments are in the
# checkpoint, as if you had pressed Ctrl-C.


class StopAfter:
    """Acts as Ctrl-C would: interrupts the run when a number of segments are safe."""

    def __init__(self, segments: int) -> None:
        self.segments = segments

    def __call__(self, event: Event) -> None:
        if isinstance(event, CheckpointEvent):
            self.segments -= 1
            if self.segments == 0:
                raise KeyboardInterrupt


# %%
# The second run reports how many groups of rows it takes from the checkpoint.


def say_what_is_resumed(event: Event) -> None:
    if isinstance(event, PassEvent):
        print(f"{event.groups_resumed} of {event.groups_total} groups come from the checkpoint")


# %%
# Fit three times: without interruption, with one, and again with the same checkpoint. Then compare the bits.


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bigpca-resume-"))
    rows = np.random.default_rng(0).standard_normal((100_000, 128)).astype("float32")
    X = bp.ingest(rows, folder / "rows.zarr", chunk_rows=4_096)

    undisturbed = bp.PCA(n_components=8).fit(X)
    with dask.config.set(num_workers=1):
        try:
            bp.PCA(n_components=8).fit(X, checkpoint=folder / "run.ckpt", progress=StopAfter(3))
        except KeyboardInterrupt:
            print("stopped")
    resumed = bp.PCA(n_components=8).fit(X, checkpoint=folder / "run.ckpt", progress=say_what_is_resumed)
    print("same bits:", np.array_equal(resumed.components_, undisturbed.components_))


# %%
# Run it.
if __name__ == "__main__":
    main()
