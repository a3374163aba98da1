"""Fashion-MNIST, batch by batch
=============================

``partial_fit`` learns from 60,000 pictures of clothes, batch by batch. 10,000 held-out pictures judge the result.

This example needs the data files of one Debian package: apt-get install dataset-fashion-mnist
"""
# sphinx_gallery_thumbnail_path = 'pictures/02_real_data_fashion.webp'

import gzip
import tempfile
from pathlib import Path

import numpy as np

import bigpca as bp

KEPT = (4, 16, 64)


def find_data() -> Path | None:
    folder = Path("/usr/share/datasets/fashion-mnist")
    return folder if folder.is_dir() else None


def read_images(file: Path) -> np.ndarray:
    """Rows of 784 grey levels; 16 bytes of an IDX file come before them."""
    return np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16).reshape(-1, 784)


def main() -> None:
    folder = find_data()
    if folder is None:
        print("skipped: Fashion-MNIST is not installed (apt-get install dataset-fashion-mnist)")
        return
    train, test = read_images(folder / "train-images-idx3-ubyte.gz"), read_images(folder / "t10k-images-idx3-ubyte.gz")

    pca = bp.PCA(n_components=max(KEPT))
    for batch in np.array_split(train, 4):
        pca.partial_fit(batch)
        print(f"{pca.n_samples_:6,} rows seen, lambda_1 = {pca.explained_variance_[0]:,.1f}")
    whole = bp.PCA(n_components=max(KEPT)).fit(train)
    off = np.abs(pca.explained_variance_ - whole.explained_variance_).max() / whole.explained_variance_[0]
    print(f"four batches against one fit: eigenvalues differ by {off:.1g} lambda_1")

    # Components are orthonormal, so what k of them miss is what the squares of the other scores would add.
    scores = pca.transform(test)
    spread = ((test - pca.mean_) ** 2).sum()
    for k in KEPT:
        seen, held_out = pca.explained_variance_ratio_[:k].sum(), (scores[:, :k].astype(np.float64) ** 2).sum() / spread
        print(
            f"{k:4} components hold {seen:.1%} of the variance they were fitted to, "
            f"{held_out:.1%} of the held-out pictures"
        )

    try:
        from bigpca.plots.images import image_tiles
        from bigpca.plots.style import plain_figure, save_picture
    except ImportError:
        return
    shown = np.arange(12)
    strips = {"held-out pictures": test[shown]}
    for k in reversed(KEPT):
        leading = np.where(np.arange(max(KEPT)) < k, scores[shown], 0)
        strips[f"from {k} components"] = pca.inverse_transform(leading)
    figure = plain_figure(12.3, 1.45 * len(strips))
    for ax, (name, images) in zip(figure.subplots(len(strips)), strips.items(), strict=True):
        ax.imshow(image_tiles(images, (28, 28), len(shown), limits=(255, 0)), interpolation="nearest")
        ax.set_title(name, loc="left", fontsize=11)
        ax.set_axis_off()
    picture = save_picture(figure, Path(tempfile.mkdtemp(prefix="bigpca-fashion-")) / "reconstructions.png")
    print(f"held-out pictures, and from {', '.join(map(str, reversed(KEPT)))} components: {picture}")


if __name__ == "__main__":
    main()
