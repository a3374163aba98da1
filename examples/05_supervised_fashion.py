"""The map of Roweis discriminant analyses
=======================================

Axes that know the labels, on Fashion-MNIST: the map of all Roweis discriminant analyses from one read, and kernel
versions.

Errors are those of the nearest neighbour, for different numbers of axes. What to see, with all 60,000 pictures: with
up to three axes and with nine, Fisher (0, 1) has a smaller error than PCA; with five and seven, the same. With nine
axes, the kernel version by landmarks has the smallest error. Ten classes have nine axes. If r1 and r2 are less than 1,
there are more axes, and they help: fifty of them are better than all pixels, which fifty axes of PCA are not. In the
map (with terms of equal trace), r2, the within-class scatter, matters, and r1, the labels, matters little; but r2 =
0.9 is better than 1. In the paper as printed, the terms grow as n^2, n and 1, and the map would show only its corners.
"""
# sphinx_gallery_thumbnail_path = 'pictures/05_supervised_fashion.webp'

from typing import Any

import numpy as np
from nearest_neighbour import Rows, choose, compare, draw_curves
from tutorial_data import FASHION_MISSING, options, output_folder, read_fashion

import bigpca as bp
from bigpca.estimators.supervised.roweis_map import RoweisMap


def draw_map(axes: Any, found: RoweisMap, errors: np.ndarray) -> None:
    """Errors over the square of (r1, r2)."""
    edges = np.arange(len(found.r1) + 1) - 0.5
    shown = axes.pcolormesh(edges, edges, 100 * errors, cmap="viridis")
    axes.set_xticks(range(len(found.r2)), [f"{value:g}" for value in found.r2])
    axes.set_yticks(range(len(found.r1)), [f"{value:g}" for value in found.r1])
    axes.set(xlabel="r2: scatter within kinds", ylabel="r1: labels")
    axes.set_title("the map: error on nine axes", loc="left", fontsize=11)
    axes.figure.colorbar(shown, ax=axes, label="%")


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="pictures to learn from, at most 60,000")
    parser.add_argument("--test-rows", type=int, default=2_000, help="pictures held out, at most 10,000")
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--grid", type=int, default=11, help="values of r1, and of r2")
    given = parser.parse_args(arguments)
    train, test = read_fashion(given.fashion), read_fashion(given.fashion, "t10k")
    if train is None or test is None:
        print(f"skipped: {FASHION_MISSING}")
        return
    folder, y, new_y = output_folder(given.out), train[1][: given.rows], test[1][: given.test_rows]
    grey = (part[0][:most].astype("float32") / 255 for part, most in ((train, given.rows), (test, given.test_rows)))
    X, new = (bp.ingest(rows, folder / f"{name}.zarr", overwrite=True) for name, rows in zip("Xy", grey, strict=True))
    rows = Rows(X, y, new, new_y)
    print(f"{len(X):,} pictures of {X.shape[1]:,} pixels, {len(new):,} held out\n")
    chosen, found, errors = choose(rows, given.grid)
    print("Errors of its corners, there:")
    for name, place in (
        ("PCA", (0, 0)),
        ("supervised PCA", (-1, 0)),
        ("Fisher", (0, -1)),
        ("double supervised", (-1, -1)),
    ):
        print(f"  {name:18} {errors[place]:.1%}")
    print()
    curves = compare(rows, given.landmarks, chosen)

    try:
        from matplotlib.figure import Figure

        from bigpca.plots.style import save_picture
    except ImportError:
        return
    figure = Figure(figsize=(13, 5.2), dpi=100, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    draw_curves(left, curves, "held-out pictures")
    draw_map(right, found, errors)
    print(f"\nerrors against axes, and the map: {save_picture(figure, folder / 'supervised_fashion.png')}")


if __name__ == "__main__":
    main()
