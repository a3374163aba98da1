"""Sketches and dot products
=========================

How well sketches preserve the dot products of a network's features: figure 6 of Marukatat (2022), with MobileNetV2.

What to see: on centred rows, which algorithm 4 sketches, every random sketch has an error of about 0.8 / sqrt(q) of
``|x||y|``, for any width of the rows, so the lines are straight and close together. Feature hashing is as good as a
Gaussian matrix and takes a fiftieth of the time. Its unsigned form (hash kernels) is biased, and useless on such
features. MAPE, the tutorial's measure, divides by x'y. On raw features, which all have the same sign, MAPE is small,
but the error of every pair is nearly the same multiple of ``|mean|^2``. That is a matter of luck, so --draws averages
over several sketches. On centred features x'y is often close to 0, and MAPE (last column) is large. Averages over the
cells of each map preserve only what neighbours share. To use features of your own network, pass --features DUMP --maps
CHANNELS HEIGHT WIDTH.
"""
# sphinx_gallery_thumbnail_path = 'pictures/03_tutorial_dot_products.webp'

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tutorial_data import (
    FACE,
    FACES_MISSING,
    NETWORK_MISSING,
    options,
    output_folder,
    read_faces,
    write_network_features,
)

import bigpca as bp
from bigpca.sketches import SRHT, Downsample, FeatureHash, Gaussian, Sketch, SparseSign

RANDOM = {
    "Gaussian": Gaussian,
    "sparse signs, 8 entries": SparseSign,
    "SRHT": SRHT,
    "feature hashing": FeatureHash,
    "hash kernels (unsigned)": lambda q: FeatureHash(q, signed=False),
}


def features_of_faces(folder: Path, given: argparse.Namespace) -> tuple[Path, tuple[int, ...]] | str:
    """Write the features of some pictures; returns the shards and the shape of one row, or why there are none."""
    faces = read_faces(given.faces)
    if faces is None:
        return FACES_MISSING
    chosen = faces[:: max(1, len(faces) // given.rows)][: given.rows]
    shards = folder / f"maps_{len(chosen)}_{given.pixels}"
    if not shards.exists() and not write_network_features(chosen, FACE, given.pixels, shards):
        return NETWORK_MISSING
    return shards, (1280, given.pixels // 32, given.pixels // 32)


def sketches(shape: tuple[int, ...], widths: list[int]) -> dict[str, list[Sketch]]:
    """Every random sketch at each width, and averages over ever smaller cells of the maps."""
    channels, side = shape[0], min(shape[1:])
    averages: list[Sketch] = [Downsample(shape, (channels, cells, cells)) for cells in range(1, side)]
    return {name: [make(q) for q in widths] for name, make in RANDOM.items()} | {"averages of cells": averages}


def errors(X: Any, Z: Any) -> tuple[float, float]:
    """Mean errors of the dot products of pairs of rows: as proportions of themselves (MAPE), and of |x||y|."""
    rows = np.unique(np.random.default_rng(0).integers(0, X.shape[0], 600))
    pairs = np.triu_indices(len(rows), 1)
    A, B = (np.asarray(one[rows], np.float64) for one in (X, Z))
    exact, found, norms = (A @ A.T)[pairs], (B @ B.T)[pairs], np.linalg.norm(A, axis=1)
    missed = np.abs(exact - found)
    return (missed / np.abs(exact)).mean(), (missed / np.outer(norms, norms)[pairs]).mean()


def measure(sketch: Sketch, X: Any, X_centred: Any, draws: int) -> np.ndarray:
    """Errors of one sketch, averaged over its seeds: MAPE, then centred of |x||y|, centred MAPE, and seconds."""
    found = []
    for seed in range(draws):
        start = time.perf_counter()
        Z = bp.SketchTransformer(replace(sketch, random_state=seed)).fit(X).transform(X).persist()
        seconds = time.perf_counter() - start
        (raw, _), (centred, of_norms) = errors(X, Z), errors(X_centred, Z - Z.mean(axis=0))
        found.append((raw, of_norms, centred, seconds))
    return np.mean(found, axis=0)


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=100, help="faces to send through the network, at most 400")
    parser.add_argument("--pixels", type=int, default=160, help="side of its input; 224 gives 62,720 columns")
    parser.add_argument("--features", type=Path, help="a dump of other features, anything that bigpca.open takes")
    parser.add_argument("--maps", type=int, nargs=3, help="their channels, height and width, as each row is flattened")
    parser.add_argument("--draws", type=int, default=1, help="seeds to average over")
    parser.add_argument("-q", type=int, nargs="+", default=[500, 1000, 2000, 5000])
    given = parser.parse_args(arguments)
    if given.features and not given.maps:
        parser.error("--features needs --maps CHANNELS HEIGHT WIDTH")
    folder = output_folder(given.out)
    found = (given.features, tuple(given.maps)) if given.features else features_of_faces(folder, given)
    if isinstance(found, str):
        print(f"skipped: {found}")
        return
    source, shape = found
    X = bp.ingest(source, folder / "features.zarr", overwrite=True)
    X_centred = X - X.mean(axis=0).compute()  # lazy: only the rows of sampled pairs are read

    print(f"{len(X)} rows of {X.shape[1]:,} columns: {shape[0]} maps of {shape[1]} x {shape[2]}\n")
    print(f"{'':24} {'q':>6} {'MAPE':>8}   centred: of |x||y|     MAPE   seconds")
    curves: tuple[dict[str, tuple[list[int], list[float]]], ...] = ({}, {})
    for name, wanted in sketches(shape, given.q).items():
        widths = [sketch.width(X.shape[1]) for sketch in wanted]
        errors = np.array([measure(sketch, X, X_centred, given.draws) for sketch in wanted])
        for q, (raw, of_norms, centred, seconds) in zip(widths, errors, strict=True):
            print(f"{name:24} {q:6,} {raw:8.1%} {of_norms:20.2%} {centred:8.0%} {seconds:9.2f}")
        for curve, column in zip(curves, errors.T, strict=False):
            curve[name] = (widths, list(100 * column))

    try:
        from matplotlib.figure import Figure
        from tutorial_pictures import draw_errors

        from bigpca.plots.style import save_picture
    except ImportError:
        return
    figure = Figure(figsize=(13, 5.5), dpi=100, layout="constrained")
    labels = {"raw rows": "mean error of x'y (MAPE), %", "centred rows": "mean error, % of |x||y|"}
    for axes, curve, (title, label) in zip(figure.subplots(1, 2), curves, labels.items(), strict=True):
        draw_errors(axes, curve, xlabel="q, columns of the sketch", ylabel=label, title=title)
    figure.suptitle(f"Dot products of {len(X)} rows of {X.shape[1]:,} features")
    print(f"\nerror against q: {save_picture(figure, folder / 'dot_products.png')}")


if __name__ == "__main__":
    main()
