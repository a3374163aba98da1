"""Quickstart: shards to components and scores
===========================================

A folder of feature shards to components and scores, in five lines of bigpca."""

import tempfile
from pathlib import Path

import numpy as np

import bigpca as bp


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bigpca-quickstart-"))
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((256, 256)) * np.geomspace(10, 0.01, 256)[:, None]
    (folder / "features").mkdir()
    for shard in range(4):
        rows = rng.standard_normal((5_000, 256)) @ mixing
        np.save(folder / "features" / f"features_{shard}.npy", rows.astype("float32"))

    X = bp.ingest(folder / "features", folder / "features.zarr")
    pca = bp.PCA(n_components=0.95)
    print(pca.plan(X))
    pca.fit(X, progress=True)
    pca.transform(X, out=folder / "scores.zarr")
    pca.save(folder / "model.zarr")

    captured = pca.explained_variance_ratio_.sum()
    print(f"\n{pca.n_components_} components capture {captured:.1%} of the variance; results are in {folder}")


if __name__ == "__main__":
    main()
