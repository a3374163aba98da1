"""Write what this version leaves on a disk beside models: rows, scores, a checkpoint and an output that were stopped.

``python make.py VERSION`` writes ``VERSION.tar.xz`` in this folder, at a release; earlier ones stay.
"""

import contextlib
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import bigpca as bp

N, D = 400, 6
X = np.random.default_rng(0).standard_normal((N, D)).astype("f4") + 2
KEYS = np.array([f"image {i}" for i in range(N)])


class Stopped(KeyboardInterrupt):
    """Raised as soon as a group is read, as a user who presses Ctrl-C."""


def stop(event: Any) -> None:
    if type(event).__name__ == "GroupEvent":
        raise Stopped


def main(folder: Path) -> None:
    """Write them into a folder."""
    bp.ingest(X, folder / "rows.zarr", chunk_rows=50, keys=KEYS)
    rows = bp.open(folder / "rows.zarr")
    model = bp.PCA(2, solver="covariance").fit(rows)
    model.save(folder / "model.zarr")
    model.transform(rows, out=folder / "scores.zarr")
    np.save(folder / "scores.npy", np.asarray(model.transform(X)))
    with contextlib.suppress(Stopped):
        bp.PCA(2, solver="krylov").fit(rows, checkpoint=folder / "run.ckpt", progress=stop)
    with contextlib.suppress(Stopped):
        model.transform(rows, out=folder / "stopped.zarr", progress=stop)
    with contextlib.suppress(Stopped), bp.FeatureWriter(folder / "written.zarr", chunk_rows=50, resume=True) as writer:
        writer.write(X[:150], KEYS[:150])
        raise Stopped


if __name__ == "__main__":
    here = Path(__file__).parent
    with TemporaryDirectory() as made, tarfile.open(here / f"{sys.argv[1]}.tar.xz", "w:xz") as archive:
        main(Path(made))
        for path in sorted(Path(made).iterdir()):
            archive.add(path, arcname=path.name)
