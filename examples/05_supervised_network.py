"""Labels on the features of a network
===================================

Nearest-neighbour errors for different numbers of axes, on pixels and on a network's features of the same pictures.

The features are the means of the last maps of MobileNetV2 (ImageNet weights): 1,280 columns, stored in half precision.
To use features of your own network, pass --features TRAIN TEST, with rows in the order of the pictures. The models are
those of 05_supervised_fashion.py. There is no map if there are more than 2,000 columns, or fewer rows than columns.

What to see: a network that never saw such pictures produces many axes that PCA cannot rank. With nine axes of PCA, its
features of clothes (60,000) have larger errors than pixels; with nine axes of Fisher, smaller ones. Labels help more
here. There are fewer faces (--data faces, 240 faces of 40 people) than columns, so the scatter within people is
singular. The example adds the mean of its non-zero eigenvalues, and Fisher is then better than PCA with up to some
twenty axes. 160 faces are held out; one is 0.6 %.
"""
# sphinx_gallery_thumbnail_path = 'pictures/05_supervised_network.webp'

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from nearest_neighbour import Curve, Rows, choose, compare, draw_curves
from tutorial_data import (
    FACE,
    FACES_MISSING,
    FASHION_MISSING,
    NETWORK_MISSING,
    options,
    output_folder,
    read_faces,
    read_fashion,
    write_network_features,
)

import bigpca as bp

LEARNT = 6  # faces of each person
Part = tuple[np.ndarray, np.ndarray]


def fashion_parts(given: argparse.Namespace) -> list[Part] | str:
    """Pictures of clothes and what they show, to learn from and held out, or what is missing."""
    parts = [read_fashion(given.fashion, part) for part in ("train", "t10k")]
    if None in parts:
        return FASHION_MISSING
    return [(part[0][:n], part[1][:n]) for part, n in zip(parts, (given.rows, given.test_rows), strict=True)]


def face_parts(given: argparse.Namespace) -> list[Part] | str:
    """Faces and who they are, to learn from and held out, or what is missing."""
    faces = read_faces(given.faces)
    if faces is None:
        return FACES_MISSING
    people, learnt = np.repeat(np.arange(1, 41), 10), np.tile(np.arange(10), 40) < LEARNT
    return [(faces[chosen], people[chosen]) for chosen in (learnt, ~learnt)]


def network_features(images: np.ndarray, given: argparse.Namespace, folder: Path) -> Path | None:
    """Write the network's features of some pictures, unless they are there; None where it is not installed."""
    shape = FACE if given.data == "faces" else (28, 28)
    if folder.exists() or write_network_features(images, shape, given.pixels, folder, pooled=True):
        return folder
    return None


def sources(given: argparse.Namespace, folder: Path, parts: list[Part]) -> dict[str, list[Any]] | None:
    """Grey levels and features, to learn from and held out; None where the network is not installed."""
    names = [
        f"features_{part}_{len(rows)}_{given.pixels}" for part, (rows, _) in zip(("train", "test"), parts, strict=True)
    ]
    features: list[Any] = given.features or [
        network_features(rows, given, folder / name) for (rows, _), name in zip(parts, names, strict=True)
    ]
    if None in features:
        return None
    return {"pixels": [rows.astype("float32") / 255 for rows, _ in parts], "features": features}


def curves_of(
    kind: str, pair: list[Any], labels: list[np.ndarray], given: argparse.Namespace, folder: Path
) -> dict[str, Curve]:
    """Store rows to learn from and held-out ones; print and return the errors on them."""
    dtype = "float16" if kind == "features" and not given.features else None  # MobileNetV2's are from 0 to 6
    X, new = (
        bp.ingest(source, folder / f"{given.data}_{kind}_{part}.zarr", dtype=dtype, overwrite=True)
        for source, part in zip(pair, ("train", "test"), strict=True)
    )
    rows = Rows(X, labels[0], new, labels[1])
    print(f"{len(X):,} rows of {X.shape[1]:,} {kind}, {len(new):,} held out")
    chosen = choose(rows, given.grid)[0] if rows.mapped else None
    print()
    found = compare(rows, given.landmarks, chosen)
    print()
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--data", choices=("fashion", "faces"), default="fashion")
    parser.add_argument("--rows", type=int, default=2000, help="clothes to learn from, at most 60,000")
    parser.add_argument("--test-rows", type=int, default=1000, help="clothes held out, at most 10,000")
    parser.add_argument("--pixels", type=int, default=96, help="side of the network's input, a multiple of 32")
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--grid", type=int, default=11, help="values of r1, and of r2, of the map")
    parser.add_argument(
        "--features", type=Path, nargs=2, help="dumps of other features, anything that bigpca.open takes"
    )
    given = parser.parse_args(arguments)
    parts = face_parts(given) if given.data == "faces" else fashion_parts(given)
    if isinstance(parts, str):
        print(f"skipped: {parts}")
        return
    folder = output_folder(given.out)
    pairs = sources(given, folder, parts)
    if pairs is None:
        print(f"skipped: {NETWORK_MISSING}")
        return
    labels = [labels for _, labels in parts]
    found = {kind: curves_of(kind, pair, labels, given, folder) for kind, pair in pairs.items()}

    try:
        from matplotlib.figure import Figure

        from bigpca.plots.style import save_picture
    except ImportError:
        return
    figure = Figure(figsize=(13, 5.2), dpi=100, layout="constrained", facecolor="white")
    for axes, (kind, curves) in zip(figure.subplots(1, 2, sharey=True), found.items(), strict=True):
        draw_curves(axes, curves, kind)
        axes.label_outer()
    print(f"error against axes: {save_picture(figure, folder / f'supervised_network_{given.data}.png')}")


if __name__ == "__main__":
    main()
