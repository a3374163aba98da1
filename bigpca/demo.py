"""The demonstration: all 16 x 16 x 3 patches of scikit-learn's two photographs, fitted in less memory than they need.

515,000 x 768 float32 patches are 1.5 GiB. They are written as a folder of ``.npy`` shards, the form that feature
extractors write, then ingested, fitted, transformed and plotted, while the memory of all processes is measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from bigpca.engine.events import PassCounter, Progress
from bigpca.errors import OutputExistsError
from bigpca.quality.memory import MemoryMeter
from bigpca.storage.files import local_path, temporary_sibling

PATCH = (16, 16, 3)
BAND = 16
CHUNK_ROWS = 5000  # 14.6 MiB: small chunks keep reads small, and so the peak
THREADS = 2  # the plan counts every thread, so more would exceed the budget
BUDGET = 512 * 2**20  # above the idle process
N_COMPONENTS = 64


@dataclass(frozen=True)
class DemoReport:
    """What the demonstration did, and its cost.

    Attributes
    ----------
    n_samples, n_features, n_components, passes : int
    data_bytes : int; size of the patches as float32.
    budget_bytes : int; memory the run may use above the idle process.
    peak_bytes, baseline_bytes : int; measured over all processes, the peak above the baseline.
    variance_captured : float in [0, 1]
    seconds : dict of step -> seconds
    solver : str
    store, model, scores : Path
    picture : Path or None; None if matplotlib is not installed.
    """

    n_samples: int
    n_features: int
    n_components: int
    passes: int
    data_bytes: int
    budget_bytes: int
    peak_bytes: int
    baseline_bytes: int
    variance_captured: float
    seconds: dict[str, float]
    solver: str
    store: Path
    model: Path
    scores: Path
    picture: Path | None

    @property
    def within_budget(self) -> bool:
        """Whether the measured peak stayed within the budget."""
        return self.peak_bytes <= self.budget_bytes


def patch_bands(photographs: list[NDArray[np.uint8]], step: int = 1) -> Iterator[NDArray[np.float32]]:
    """Yield all patches of the photographs, one band of patch rows at a time, as float32 of shape (rows, 768).

    >>> bands = list(patch_bands([np.zeros((34, 20, 3), np.uint8)]))
    >>> [band.shape for band in bands]
    [(80, 768), (15, 768)]
    """
    for photograph in photographs:
        windows = np.lib.stride_tricks.sliding_window_view(photograph, PATCH)[::step, :, 0]
        for top in range(0, len(windows), BAND):
            yield windows[top : top + BAND].reshape(-1, int(np.prod(PATCH))).astype(np.float32)


def write_shards(directory: Path, *, small: bool) -> int:
    """Write the patches as numbered ``.npy`` shards of at most 30 MiB; return their number of rows."""
    from sklearn.datasets import load_sample_images

    try:
        photographs = load_sample_images().images
    except ImportError as error:
        raise ImportError("the demo's photographs are read by Pillow. Run pip install 'bigpca[plot]'.") from error
    directory.mkdir(parents=True)
    rows = 0
    for number, band in enumerate(patch_bands(photographs, step=16 if small else 1)):
        np.save(directory / f"patches_{number}.npy", band)
        rows += len(band)
    return rows


def run_demo(directory: Path, *, small: bool = False, progress: tuple[Progress, ...] = ()) -> DemoReport:
    """Ingest, fit, transform and plot the patches in 512 MiB above the idle process, on two threads.

    Parameters
    ----------
    directory : Path
        New or empty.
    small : bool
        Use every sixteenth row of patches only: 32,500 instead of 515,000.
    progress : tuple of callables that receive events

    Raises
    ------
    OutputExistsError
        If ``directory`` holds anything.
    MemoryBudgetError
        If the plan does not fit the budget, before the fit reads anything.
    """
    import dask.config

    import bigpca
    from bigpca.engine.planning import SAFE_SHARE

    directory = Path(local_path(directory))
    if directory.is_dir() and (there := sorted(path.name for path in directory.iterdir())):
        raise OutputExistsError(
            f"{directory} holds {len(there)} other entries (such as {there[0]}), but a new or empty directory was "
            "expected. Remove that of an earlier demonstration, or choose another with --dir."
        )
    import_module("dask.array")  # which a first read would import: it is idle memory, and no plan contains it
    clock = _Clock()
    limit = int((psutil.Process().memory_info().rss + BUDGET) / SAFE_SHARE)  # a plan may use this share of the limit
    with dask.config.set(num_workers=THREADS), MemoryMeter() as meter:
        store = directory / "patches.zarr"
        with temporary_sibling(directory / "shards") as sibling:
            write_shards(sibling / "shards", small=small)
            clock.stop("patches")
            bigpca.ingest(sibling / "shards", store, chunk_rows=CHUNK_ROWS, progress=progress)
        clock.stop("ingest")
        data = bigpca.open(store)
        pca = bigpca.PCA(n_components=N_COMPONENTS, memory_limit=limit)
        counter = PassCounter()
        solver = pca.plan(data).solver
        pca.fit(data, progress=(*progress, counter))
        pca.save(directory / "model.zarr")
        clock.stop("fit")
        pca.transform(data, out=directory / "scores.zarr", progress=progress)
        clock.stop("scores")
    picture = _draw(pca, directory / "components.png", len(data))
    clock.stop("picture")
    return DemoReport(
        n_samples=data.shape[0],
        n_features=data.shape[1],
        n_components=int(pca.n_components_),
        passes=counter.passes,
        data_bytes=data.nbytes,
        budget_bytes=BUDGET,
        peak_bytes=meter.peak_bytes,
        baseline_bytes=meter.baseline_bytes,
        variance_captured=float(pca.explained_variance_ratio_.sum()),
        seconds=clock.seconds,
        solver=solver,
        store=store,
        model=directory / "model.zarr",
        scores=directory / "scores.zarr",
        picture=picture,
    )


class _Clock:
    """Seconds taken by each step, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.monotonic()

    def stop(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self.last = now - self.last, now


def _draw(pca: Any, path: Path, rows: int) -> Path | None:
    from bigpca.plots.images import components
    from bigpca.plots.spectra import scree
    from bigpca.plots.style import INK, plain_figure, save_picture

    try:
        figure = plain_figure(12.5, 5.4)
    except ImportError:
        return None
    left, right = figure.subplots(1, 2)
    components(pca, PATCH, n=16, ax=left)
    scree(pca, ax=right)
    figure.suptitle(f"PCA of {rows:,} patches of 16 x 16 x 3 from two photographs", color=INK, fontsize=13)
    return save_picture(figure, path)
