"""Images unlike those of the training
====================================

Which images show something that the model has not seen? Features of a network, PCA, and T2, SPE and Mahalanobis
distances.

A quarter of the classes is held out, and three in ten images of each other class. The model is fitted to the rest, and
judges all images that it has not seen. The images are the 400 ORL faces and the network is MobileNetV2 (ImageNet
weights), both read from installed packages. If either is missing, the example uses the pixels of scikit-learn's
digits, so you can always run it.

What to see: the area under the ROC curve is the probability that an image of a held-out class is further away than one
of a known class; 0.5 is guessing. On the features of the faces, SPE has 0.846 and T2 0.442: held-out people are not
further from the mean, but outside the subspace. Fisher's distance to the nearest class, which knows the labels, has
0.927. The five nearest neighbours, which keep every training row, have 0.857. On the pixels of the digits, T2 is
better (0.841), and the neighbours are best (0.979). Measure on your own data. The theoretical limit for Gaussian rows
calls 43 % of the known faces unusual, because axes of 210 rows with 1,280 features fit these rows far better than
others.
"""

# sphinx_gallery_thumbnail_path = 'pictures/thumb_unusual_images.webp'

import importlib.util
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from tutorial_data import FACE, options, output_folder, read_faces, write_network_features

import bigpca as bp

CONFIDENCE = 0.95
NEIGHBOURS = 5


# %%
# Features of a network if there is one, and pixels of digits otherwise.


def read_features(faces: np.ndarray | None, folder: Path) -> tuple[np.ndarray, np.ndarray, str]:
    """Return features (n, d), what each image shows, and where the features come from."""
    if faces is not None and importlib.util.find_spec("torch") is not None:
        features = folder / "features"
        if features.exists() or write_network_features(faces, FACE, 224, features, pooled=True):
            return bp.open(features).compute(), np.repeat(np.arange(40), 10), "MobileNetV2, of faces"
    digits = load_digits()
    return digits.data.astype("float32"), digits.target, "pixels, of digits"


# %%
# Some kinds are held out completely, and some images of every other kind.


def split(kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which images are learnt (seven in ten of each known kind), and which show a kind that is held out."""
    kinds = np.unique(kind)
    novel = kind >= kinds[-(len(kinds) // 4)]
    turn = np.zeros(len(kind), int)
    for one in kinds:
        turn[kind == one] = np.arange(np.count_nonzero(kind == one))
    return ~novel & (turn % 10 < 7), novel


# %%
# Fit to the known images, and judge all others by five distances.


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("-k", type=int, default=30, help="components")
    given = parser.parse_args(arguments)
    folder = output_folder(given.out)
    features, kind, source = read_features(read_faces(given.faces), folder)
    learnt, novel = split(kind)
    X = bp.ingest(features[learnt], folder / "learnt.zarr", overwrite=True)
    numbers = np.flatnonzero(~learnt)
    judged = bp.ingest(features[~learnt], folder / "judged.zarr", keys=[f"image {i}" for i in numbers], overwrite=True)
    new = novel[~learnt]
    print(f"{len(X)} images learnt, {len(judged)} judged, {new.sum()} of them of kinds held out ({source}, "
          f"{X.shape[1]} features)\n")  # fmt: skip

    pca = bp.PCA(given.k, solver="covariance").fit(X)  # whose state the theory of SPE requires
    names = ["t2", "spe", "mahalanobis"]
    statistics = np.asarray(pca.statistics(judged, names, out=folder / "statistics.zarr", overwrite=True))
    distances = dict(zip(names, statistics.T, strict=True))
    fisher = bp.FisherDiscriminantAnalysis(regularization="pinv").fit(X, kind[learnt])
    distances["nearest class"] = np.asarray(fisher.mahalanobis(judged))
    tree = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(features[learnt])
    distances["neighbours"] = tree.kneighbors(features[~learnt])[0].mean(axis=1)

    print(f"{'':16}area under the ROC curve")
    for name, values in distances.items():
        print(f"{name:16}{roc_auc_score(new, values):8.3f}")

    known = features[~learnt][~new]
    limit = pca.spe_limit(CONFIDENCE, known)
    theory = pca.spe_limit(CONFIDENCE, limit="box")
    far = distances["spe"] > limit
    print(f"\nbeyond the SPE of {CONFIDENCE:.0%} of the known images: {far[new].mean():.0%} of the held-out kinds")
    print(f"the theory of Gaussian rows calls {(distances['spe'][~new] > theory).mean():.0%} of the known ones unusual")
    first = pca.top_outliers(judged, 5, of="spe")
    print("the most unusual:", ", ".join(first.keys))


# %%
# Run it.
if __name__ == "__main__":
    main()
