"""Images to nearest neighbours
============================

From a folder of images to features of a network, a store, PCA with whitening, and then neighbours, extremes and
outliers.

The images are the 400 ORL faces and the network is MobileNetV2 (ImageNet weights), both read from installed packages.
If either is missing, the example uses 600 synthetic images, and random filters instead of the network, so you can
always run it. To use your own network, replace ``random_filters`` by any function from images (b, h, w) to features
(b, d).

Features are written batch by batch, with the path of each image as its key. If the extraction is killed, run the
example again with the same ``--out``: it continues after the last whole chunk, and gives the same bits.

What to see: each line has a query and its five nearest neighbours, the images with the lowest and the highest scores
of one component, which show what it means, and one of the images that are furthest from the mean. Whitening divides
every score by its standard deviation, so directions that all images share no longer dominate the distance. With the
faces, 92.8 % of the neighbours by 48 whitened scores are of the same person, and 91.6 % by all 1,280 features. For the
synthetic images, all features find every neighbour. Whitening loses some, because it also amplifies the axes of noise.
Measure on your own data.

The table searches among people whom the PCA has not seen. The PCA is fitted to the images of 20 people and maps those
of the other 20. Recall@10 is the share of a query's nine other images among its ten nearest. With features of norm 1
and half the power of whitening, 64 scores find more than all 1,280 features do.
"""

# sphinx_gallery_thumbnail_path = 'pictures/07_images_to_neighbours.webp'

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tutorial_data import BATCH, FACE, network_features, options, output_folder

import bigpca as bp

SIDE = 32  # of a synthetic image
NEIGHBOURS = 5
LINES = 6  # of the picture: queries, components and outliers
AT_AN_END = 3  # images at each end of a component
FOUND = 10  # rows in which recall is measured
SPLITS = 5
WHITENINGS = {
    "no whitening": False,
    "power 0.25": bp.scales.Whitening(0.25),
    "power 0.5": True,
    "epsilon 0.1": bp.scales.Whitening(0.5, epsilon=0.1),
}


# %%
# Images. The synthetic ones are gratings of twelve directions and widths, written as files like real images.


def write_synthetic_images(folder: Path, n: int = 600, kinds: int = 12) -> None:
    """Gratings of ``kinds`` directions and widths, each shifted at random and with noise, as PGM files."""
    rng = np.random.default_rng(0)
    kind = np.sort(rng.integers(0, kinds, n))
    angle, width = np.pi * kind / kinds, 0.5 + 0.25 * (kind % 3)
    down, across = np.mgrid[:SIDE, :SIDE]
    wave = np.cos(angle)[:, None, None] * down + np.sin(angle)[:, None, None] * across
    images = np.sin(width[:, None, None] * wave + rng.uniform(0, 2 * np.pi, (n, 1, 1)))
    pixels = (128 + 60 * images + 40 * rng.standard_normal(images.shape)).clip(0, 255).astype("uint8")
    for number, image in enumerate(pixels):
        file = folder / f"s{kind[number]}" / f"{number}.pgm"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"P5\n%d %d\n255\n" % (SIDE, SIDE) + image.tobytes())


def read_images(folder: Path, keys: Any) -> np.ndarray:
    """Return the grey levels (b, h, w) of PGM files: the letters P5, width, height, 255, and the pixels."""
    contents = [(folder / key).read_bytes() for key in keys]
    width, height = map(int, contents[0].split(maxsplit=3)[1:3])
    return np.stack([np.frombuffer(one[-width * height :], np.uint8).reshape(height, width) for one in contents])


# %%
# A network. Replace this function by your own.


def random_filters(images: np.ndarray) -> np.ndarray:
    """One layer of 96 random 7 x 7 filters, rectified, and the mean over the image: features of shape (b, 96)."""
    filters = np.random.default_rng(0).standard_normal((96, 49)).astype("float32")
    filters -= filters.mean(axis=1, keepdims=True)
    patches = np.lib.stride_tricks.sliding_window_view(images.astype("float32") / 255, (7, 7), axis=(1, 2))[:, ::2, ::2]
    maps = np.maximum(patches.reshape(-1, 49) @ filters.T, 0)
    return maps.reshape(len(images), -1, 96).mean(axis=1)


# %%
# Extraction. `FeatureWriter` writes whole chunks, and knows after a kill how many rows are done.


def extract(network: Callable[[np.ndarray], Any], folder: Path, keys: list[str], out: Path) -> None:
    """Write the features of images, those of ``BATCH`` images at a time; after a kill, those that are missing."""
    with bp.FeatureWriter(out, chunk_rows=BATCH, overwrite=True) as writer:
        if writer.n_rows:
            print(f"an earlier run was killed: {writer.n_rows} of {len(keys)} images are done, and are not read again")
        for start in range(writer.n_rows, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            writer.write(network(read_images(folder, batch)), keys=batch)


# %%
# Search, and how good it is: recall among kinds that the PCA has not seen.


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
            pca = bp.PCA(min(k, *fitted.shape), preprocess=bp.preprocessing.L2(), whiten=whiten).fit(fitted)
            found[name].append(recall(pca.transform(X[new]), kind[new]))
    return {name: np.array(values) for name, values in found.items()}


# %%
# The whole way: extract, fit, transform, search, and list extremes and outliers.


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("-k", type=int, default=48, help="components")
    given = parser.parse_args(arguments)
    out = output_folder(given.out)
    folder, network = given.faces, network_features(FACE, 224, pooled=True)
    faces = network is not None and folder is not None and folder.is_dir()
    if not faces:
        folder, network = out / "images", random_filters
        write_synthetic_images(folder)

    files = sorted(folder.glob("s*/*.pgm"), key=lambda file: (int(file.parent.name[1:]), int(file.stem)))
    keys = [f"{file.parent.name}/{file.name}" for file in files]
    kind = np.array([int(file.parent.name[1:]) for file in files])
    store = out / f"features_of_{'mobilenet' if faces else 'random_filters'}.zarr"  # never those of another network
    if not store.exists() or list(bp.data.stored_keys(store)) != keys:  # or of other images
        extract(network, folder, keys, store)

    X = bp.open(store)
    pca = bp.PCA(n_components=min(given.k, X.shape[1]), whiten=True).fit(X)
    scores = np.asarray(pca.transform(X, out=out / "scores.zarr", overwrite=True))
    print(f"{len(X)} images, {X.shape[1]} features of {'MobileNetV2' if faces else 'random filters'}, "
          f"{pca.n_components_} components: {pca.explained_variance_ratio_.sum():.1%} of the variance")  # fmt: skip
    for name, vectors in (("all features", X.compute()), ("whitened scores", scores)):
        share = (kind[nearest(vectors)] == kind[:, None]).mean()
        print(f"{name:16} {share:6.1%} of {NEIGHBOURS} neighbours are of the same kind")

    ends = bp.quality.extremes(pca, out / "scores.zarr", n=AT_AN_END)
    print("\nimages with the lowest and the highest scores:")
    for number in range(3):
        low, high = ", ".join(ends.lowest_keys[number]), ", ".join(ends.highest_keys[number][::-1])
        print(f"pca{number}: {low}  ...  {high}")
    outliers, typical = pca.top_outliers(X, LINES), np.median(np.asarray(pca.mahalanobis(X)))
    print(f"outliers, by their Mahalanobis distance squared (the median of all images is {typical:,.0f}):")
    print(", ".join(f"{key} {value:,.0f}" for key, value in zip(outliers.keys, outliers.values, strict=True)))

    k = min(64, X.shape[1])
    recalls = recall_of_new_kinds(X.compute(), kind, k)
    print(f"\nrecall@{FOUND} of new kinds, {k} components of rows of norm 1 (and the difference from all features):")
    for name, values in recalls.items():
        less = values - recalls["all features"]
        print(f"{name:16} {values.mean():6.1%}  {less.mean():+6.1%} +- {less.std(ddof=1) / len(less) ** 0.5:.1%}")

    queries = np.linspace(0, len(X) - 1, LINES).astype(int)
    draw(out / "neighbours.png", folder, {
        "Query": np.array(keys)[queries, None],
        "Its nearest neighbours": np.array(keys)[nearest(scores)[queries]],
        "Component: lowest ...": ends.lowest_keys[:LINES],
        "... and highest scores": ends.highest_keys[:LINES, ::-1],
        "Outlier": outliers.keys[:, None],
    })  # fmt: skip


# %%
# The picture.


def draw(picture: Path, folder: Path, grids: dict[str, Any]) -> None:
    """Draw grids of images, named by their keys, if Matplotlib is installed."""
    try:
        from matplotlib.figure import Figure

        from bigpca.plots.images import image_tiles
    except ImportError:
        return
    figure: Any = Figure(figsize=(10.4, 5), dpi=100, layout="constrained", facecolor="white")
    widths = [grid.shape[1] for grid in grids.values()]
    for axes, (title, grid) in zip(figure.subplots(1, len(grids), width_ratios=widths), grids.items(), strict=True):
        images = read_images(folder, grid.ravel())
        axes.imshow(image_tiles(images.reshape(len(images), -1), images.shape[1:], columns=grid.shape[1]))
        axes.set_axis_off()
        axes.set_title(title, loc="left", fontsize=11)
    figure.savefig(picture)
    print(f"\nthe picture: {picture}")


# %%
# Run it.
if __name__ == "__main__":
    main()
