"""Quickstart: shards to components and scores
===========================================

Start with a folder of feature shards. Six lines of bigpca give you a store, a model, scores and a picture.
"""

import tempfile
from pathlib import Path

import numpy as np

import bigpca as bp

# %%
# Sample data: four shards, as a network would write them. Skip this step if you have your own.


def write_shards(folder: Path) -> np.ndarray:
    """Write four .npy shards of 5,000 rows and 256 columns; returns the class of each row."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 5, 20_000)
    centres = 6 * rng.standard_normal((5, 256))
    mixing = rng.standard_normal((256, 256)) * np.geomspace(2, 0.01, 256)[:, None]
    folder.mkdir()
    for shard in range(4):
        rows = slice(5_000 * shard, 5_000 * (shard + 1))
        features = centres[kind[rows]] + rng.standard_normal((5_000, 256)) @ mixing
        np.save(folder / f"features_{shard}.npy", features.astype("float32"))
    return kind


# %%
# The six lines: ingest, plan, fit, transform, save, and the picture. With `n_components=0.95`, PCA keeps the fewest
# components that capture 95 % of the variance.


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bigpca-quickstart-"))
    kind = write_shards(folder / "features")

    X = bp.ingest(folder / "features", folder / "features.zarr")
    pca = bp.PCA(n_components=0.95)
    print(pca.plan(X))
    pca.fit(X)
    scores = pca.transform(X, out=folder / "scores.zarr")
    pca.save(folder / "model.zarr")

    captured = pca.explained_variance_ratio_.sum()
    print(f"\n{pca.n_components_} components capture {captured:.1%} of the variance; results are in {folder}")
    draw(folder / "quickstart.png", pca, scores, kind)


# %%
# The picture has the scree plot on the left, and the rows by their first two scores on the right.


def draw(picture: Path, pca: bp.PCA, scores: object, kind: np.ndarray) -> None:
    """Draw the shares of the variance and the leading scores, if Matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(10, 4), dpi=100, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    bp.plots.scree(pca, ax=left)
    bp.plots.scores(pca, scores, labels=kind, ax=right)
    figure.savefig(picture)
    print(f"the picture: {picture}")


# %%
# Run it. The plan is printed before any row is read.
if __name__ == "__main__":
    main()
