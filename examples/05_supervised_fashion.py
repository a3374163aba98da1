"""Axes that know the labels, on Fashion-MNIST: the map of all Roweis discriminant analyses from one read, and kernel versions.

What to see: nine axes of Fisher (0, 1) leave fewer held-out pictures with a nearest neighbour of another kind than nine of PCA,
and the kernel version, by landmarks, fewer than all others. With two axes supervision helps less. In the map (terms of equal
trace) the error falls with r2: what matters is to divide by the scatter within kinds, not the labels in r1. As printed in the
paper, the terms grow as n^2, n and 1, and the map would show its corners only.
"""

import time
from typing import Any

import numpy as np
from tutorial_data import FASHION_MISSING, options, output_folder, read_fashion, same_kind

import bigpca as bp

KEPT = (2, 5, 9)
GAMMA = 4 / 784  # of grey levels from 0 to 1


def models(k: int, landmarks: int) -> dict[str, Any]:
    """The models to compare, by name."""
    kernel: dict[str, Any] = {"gamma": GAMMA, "n_landmarks": landmarks}
    return {
        "PCA": bp.PCA(k),
        "supervised PCA": bp.SupervisedPCA(k),
        "Fisher": bp.FisherDiscriminantAnalysis(k),
        "double supervised (1, 1)": bp.RoweisDiscriminantAnalysis(k, r1=1.0, r2=1.0),
        "kernel PCA": bp.NystromKernelPCA(k, kernel="rbf", **kernel),
        "kernel supervised PCA": bp.KernelSupervisedPCA(k, **kernel),
        "kernel Roweis (0, 0.999)": bp.KernelRoweisDiscriminantAnalysis(k, r1=0.0, r2=0.999, **kernel),
    }


def draw_map(found: bp.RoweisMap, errors: np.ndarray) -> Any:
    """Errors over the square of (r1, r2)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.8), dpi=100, layout="constrained", facecolor="white")
    axes = figure.subplots()
    edges = np.arange(len(found.r1) + 1) - 0.5
    shown = axes.pcolormesh(edges, edges, 100 * errors, cmap="viridis")
    axes.set_xticks(range(len(found.r2)), [f"{value:g}" for value in found.r2])
    axes.set_yticks(range(len(found.r1)), [f"{value:g}" for value in found.r1])
    axes.set(xlabel="r2: scatter within kinds", ylabel="r1: labels")
    axes.set_title("held-out pictures nearest to the mean of another kind", loc="left")
    figure.colorbar(shown, ax=axes, label="%")
    return figure


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

    print(f"{len(X):,} pictures, {len(new):,} held out: share whose nearest picture is of another kind, by axes kept\n")
    print(f"{'':26}" + "".join(f"{k:>7}" for k in KEPT) + "  seconds")
    for name, model in models(max(KEPT), given.landmarks).items():
        start = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - start
        known, held_out = np.asarray(model.transform(X)), np.asarray(model.transform(new))
        errors = [1 - same_kind(known[:, :k], y, held_out[:, :k], new_y) for k in KEPT]
        print(f"{name:26}" + "".join(f"{error:7.1%}" for error in errors) + f"{seconds:9.1f}")

    start = time.perf_counter()
    found = bp.roweis_map(X, y, given.grid, model=bp.RoweisDiscriminantAnalysis(max(KEPT), normalize=True))
    seconds = time.perf_counter() - start
    errors = found.errors(new, new_y)
    i, j = np.unravel_index(errors.argmin(), errors.shape)
    print(f"\n{errors.size} models of the map from one read: {seconds:.1f} s. Nearest-mean error of held-out pictures:")
    for name, place in (
        ("PCA", (0, 0)),
        ("supervised PCA", (-1, 0)),
        ("Fisher", (0, -1)),
        ("double supervised", (-1, -1)),
    ):
        print(f"  {name:18} {errors[place]:.1%}")
    print(f"  {'best':18} {errors[i, j]:.1%}  at r1 = {found.r1[i]:g}, r2 = {found.r2[j]:g}")

    try:
        from bigpca.quality.plots import save_picture

        picture = save_picture(draw_map(found, errors), folder / "supervised_fashion_map.png")
    except ImportError:
        return
    print(f"\nthe map: {picture}")


if __name__ == "__main__":
    main()
