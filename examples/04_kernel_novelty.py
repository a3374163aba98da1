"""Novelty detection
=================

How to find what a model has not seen: the distance to the kernel subspace, on Fashion-MNIST.

The model is fitted to clothes for the upper body; everything else is novel. `novelty` is the squared distance of a
row's image to the subspace, ``k_c(x, x) - |y|^2``, in the units of the kernel. It is 0 for a row in the span of the
axes.

What to see: the area under the ROC curve is the probability that a novel picture is further away than a held-out
picture of a known class; 0.5 is guessing. Shoes are easy and dresses are hard: the dresses that look known could just
as well be long shirts. In such cases the Gaussian kernel is better than linear PCA, and landmarks are as good as all
rows. Known pictures that look novel are strongly patterned or have an unusual cut. For linear PCA they are patterned,
because it misses more of a picture with more contrast.
"""
# sphinx_gallery_thumbnail_path = 'pictures/04_kernel_novelty.webp'

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from tutorial_data import CLOTHES, FASHION_MISSING, options, output_folder, read_fashion

import bigpca as bp
from bigpca.kernels import RBF, Linear

KNOWN = ("T-shirt", "pullover", "coat", "shirt")
SHOWN = 14


def models(k: int, landmarks: int, gamma: float) -> dict[str, Any]:
    """The models to compare, by name."""
    rbf = RBF(gamma)
    return {
        "linear": bp.KernelPCA(k, kernel=Linear()),
        "RBF": bp.KernelPCA(k, kernel=rbf),
        "RBF, by landmarks": bp.NystromKernelPCA(k, kernel=rbf, n_landmarks=landmarks),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=4000, help="known pictures to learn from, at most 24,000")
    parser.add_argument("--test-rows", type=int, default=3000, help="pictures to judge, at most 10,000")
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("-k", type=int, default=50, help="axes")
    parser.add_argument("--gamma", type=float, default=4 / 784, help="of grey levels from 0 to 1")
    given = parser.parse_args(arguments)
    train, test = read_fashion(given.fashion), read_fashion(given.fashion, "t10k")
    if train is None or test is None:
        print(f"skipped: {FASHION_MISSING}")
        return
    folder = output_folder(given.out)
    learnt = train[0][np.isin(train[1], KNOWN)][: given.rows].astype("float32") / 255
    judged, kinds = test[0][: given.test_rows].astype("float32") / 255, test[1][: given.test_rows]
    X = bp.ingest(learnt, folder / "known.zarr", overwrite=True)
    novel = ~np.isin(kinds, KNOWN)

    others = [kind for kind in CLOTHES if kind not in KNOWN]
    print(
        f"{len(X):,} pictures of {', '.join(KNOWN)}; {len(judged):,} judged: area under the ROC curve, {given.k} axes\n"
    )
    print(f"{'':20}" + "".join(f"{kind:>12}" for kind in others) + f"{'all novel':>12}")
    distances = {}
    for name, model in models(given.k, given.landmarks, given.gamma).items():
        distances[name] = model.fit(X).novelty(judged)
        areas = [
            roc_auc_score(novel[chosen], distances[name][chosen])
            for kind in others
            for chosen in [~novel | (kinds == kind)]
        ]
        areas.append(roc_auc_score(novel, distances[name]))
        print(f"{name:20}" + "".join(f"{area:12.3f}" for area in areas))
    draw(folder, judged, novel, distances)


def draw(folder: Path, judged: np.ndarray, novel: np.ndarray, distances: dict[str, np.ndarray]) -> None:
    """Draw the pictures that each model ranks most wrongly, if Matplotlib is installed."""
    try:
        from tutorial_pictures import picture_of_strips

        from bigpca.plots.images import image_tiles
        from bigpca.plots.style import save_picture
    except ImportError:
        return
    tiles = {}
    for name, far in distances.items():
        order = np.argsort(far)
        for label, rows in (
            ("known, furthest away", order[~novel[order]][::-1]),
            ("novel, nearest", order[novel[order]]),
        ):
            tiles[f"{name}: {label}"] = image_tiles(judged[rows[:SHOWN]], (28, 28), SHOWN, limits=(1, 0))
    figure = picture_of_strips(tiles, title="The pictures that each model ranks most wrongly")
    print(f"\nthe pictures: {save_picture(figure, folder / 'kernel_novelty.png')}")


if __name__ == "__main__":
    main()
