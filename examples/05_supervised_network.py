"""Nearest-neighbour errors against the number of axes, on pixels of Fashion-MNIST and on a network's features of them.

Axes are PCA's and those of three corners of the Roweis map. The features are the last maps of MobileNetV2 (ImageNet weights), as
in the tutorial's experiments; features of your own network do as well: --features TRAIN TEST, rows in the order of the pictures.

What to see: whether labels still help once a network has made the features. Where columns are nearly dependent the scatter within
kinds is ill-conditioned or, with fewer rows than columns, singular; what Fisher adds to it is a tenth of its mean eigenvalue. The
models are iterated (solver="krylov"), in some reads of the features, as no matrix of columns by columns need fit.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from tutorial_data import (
    FASHION_MISSING,
    NETWORK_MISSING,
    options,
    output_folder,
    read_fashion,
    same_kind,
    write_network_features,
)

import bigpca as bp

KEPT = (1, 2, 3, 5, 7, 9)  # ten kinds have nine axes
ADDED = 0.1


def models(k: int) -> dict[str, Any]:
    """The corners of the map, by name; normalize=True makes the mean eigenvalue of S_W 1."""
    settings: dict[str, Any] = {"r2": 1.0, "normalize": True, "regularization": ADDED, "solver": "krylov"}
    return {
        "PCA": bp.PCA(k),
        "supervised PCA": bp.SupervisedPCA(k),
        "Fisher": bp.RoweisDiscriminantAnalysis(k, r1=0.0, **settings),
        "double supervised": bp.RoweisDiscriminantAnalysis(k, r1=1.0, **settings),
    }


def network_features(images: np.ndarray, size: int, folder: Path) -> Path | None:
    """Write the network's features of some pictures; None where it is not installed."""
    if folder.exists() or write_network_features(images, (28, 28), size, folder):
        return folder
    return None


def errors_by_axes(X: Any, y: np.ndarray, new: Any, new_y: np.ndarray) -> dict[str, list[float]]:
    """Fit each model, and find the share of new rows whose nearest known row is of another kind."""
    found = {}
    for name, model in models(max(KEPT)).items():
        known = np.asarray(model.fit(X, y).transform(X))
        held_out = np.asarray(model.transform(new))
        found[name] = [1 - same_kind(known[:, :k], y, held_out[:, :k], new_y) for k in KEPT]
        print(f"  {name:20}" + "".join(f"{error:8.1%}" for error in found[name]))
    return found


def tables(given: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[float]]] | str:
    """Print the errors on pixels and on features; returns them, or what is missing."""
    parts = [read_fashion(given.fashion, part) for part in ("train", "t10k")]
    if None in parts:
        return FASHION_MISSING
    counts = (given.rows, given.test_rows)
    (images, y), (new_images, new_y) = ((part[0][:n], part[1][:n]) for part, n in zip(parts, counts, strict=True))
    names = [folder / f"maps_{part}_{n}_{given.pixels}" for part, n in zip(("train", "test"), counts, strict=True)]
    features = given.features or [
        network_features(rows, given.pixels, name) for rows, name in zip((images, new_images), names, strict=True)
    ]
    if None in features:
        return NETWORK_MISSING
    found = {}
    for kind, sources in {
        "pixels": [rows.astype("float32") / 255 for rows in (images, new_images)],
        "features": features,
    }.items():
        X, new = (
            bp.ingest(source, folder / f"{kind}_{part}.zarr", overwrite=True)
            for source, part in zip(sources, ("train", "test"), strict=True)
        )
        print(f"{len(X):,} rows of {X.shape[1]:,} {kind}, {len(new):,} held out\n")
        print(f"  {'axes':20}" + "".join(f"{k:8}" for k in KEPT))
        found[kind] = errors_by_axes(X, y, new, new_y)
        print()
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=2000, help="pictures to learn from, at most 60,000")
    parser.add_argument("--test-rows", type=int, default=1000, help="pictures held out, at most 10,000")
    parser.add_argument("--pixels", type=int, default=64, help="side of the network's input; 64 gives 5,120 columns")
    parser.add_argument(
        "--features", type=Path, nargs=2, help="dumps of other features, anything that bigpca.open takes"
    )
    given = parser.parse_args(arguments)
    folder = output_folder(given.out)
    found = tables(given, folder)
    if isinstance(found, str):
        print(f"skipped: {found}")
        return

    try:
        from matplotlib.figure import Figure

        from bigpca.quality.plots import draw_errors, save_picture
    except ImportError:
        return
    figure = Figure(figsize=(12, 4.8), dpi=100, layout="constrained", facecolor="white")
    for axes, (kind, table) in zip(figure.subplots(1, 2, sharey=True), found.items(), strict=True):
        curves = {name: (KEPT, [100 * error for error in errors]) for name, errors in table.items()}
        draw_errors(axes, curves, xlabel="axes kept", ylabel="nearest is of another kind, %")
        axes.set(xscale="linear", yscale="linear", xticks=KEPT, ylim=(0, None))
        axes.label_outer()
        axes.set_title(kind, loc="left", fontsize=11)
    print(f"error against axes: {save_picture(figure, folder / 'supervised_network.png')}")


if __name__ == "__main__":
    main()
