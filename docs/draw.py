"""Draw the pictures of the first page and of the page on bounds: ``python docs/draw.py [FOLDER]``.

The first needs Fashion-MNIST (``apt-get install dataset-fashion-mnist``).
"""

import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "examples")]
mpl.use("Agg")

from matplotlib.figure import Figure  # noqa: E402
from tutorial_data import read_fashion  # noqa: E402

import bigpca as bp  # noqa: E402


def start() -> Figure | None:
    found = read_fashion(Path("/usr/share/datasets/fashion-mnist"))
    if found is None:
        return None
    rows, labels = found
    pca = bp.PCA(50).fit(rows)
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.25))
    bp.plots.components(pca, (28, 28), ax=left)
    bp.plots.scores(pca, rows, labels=labels, ax=right)
    return figure


def bounds() -> Figure:
    rng = np.random.default_rng(0)  # the two fits of docs/bounds.md
    figure = Figure(figsize=(10, 4), layout="constrained")
    for ax, power in zip(figure.subplots(1, 2), (2.0, 0.5), strict=True):
        rows = rng.standard_normal((3000, 600), dtype="f4") * np.arange(1, 601, dtype="f4") ** (-power / 2)
        bp.plots.bounds(bp.ApproximatePCA(8, sketch=bp.sketches.Gaussian(100)).fit(rows), ax=ax)
    return figure


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "pictures"
    warnings.simplefilter("ignore", bp.errors.ApproximationWarning)
    for draw in (start, bounds):
        if (figure := draw()) is not None:
            figure.savefig(folder / f"{draw.__name__}.webp", dpi=100, pil_kwargs={"quality": 40, "method": 6})


if __name__ == "__main__":
    main()
