"""Spectra and scores of real data
===============================

Eigenvalues, captured variance and scores of real data: figures 1, 3 and 7 of Marukatat (2022).

What to see: each row of pictures shows one data set. Eigenvalues fall steeply. The first scores spread further than
the second, and the last scores hardly spread at all, except for the rows listed in the table. On Fashion-MNIST this
row is a checked dress, which 03_tutorial_denoising.py draws. On the faces it is one of two nearly identical pictures
of the same person, and the axis is their difference. The faces have more pixels than pictures, so the dot matrix is
used. Features of a network are approximated in one read, through a Gaussian sketch of 500 columns. The scores separate
the classes, although PCA did not know them.
"""
# sphinx_gallery_thumbnail_path = 'pictures/03_tutorial_spectra.webp'

import warnings
from pathlib import Path

import numpy as np
import tutorial_data as data
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

import bigpca as bp

SHOWN = 3000  # points of a scatter plot
PIXELS = 96  # side of the network's input


def tables(fashion: Path, faces: Path | None, rows: int) -> dict[str, tuple[np.ndarray, np.ndarray | None, bp.PCA]]:
    """Name -> (rows, what each of them is, the model to fit), of what is installed."""
    found: dict[str, tuple[np.ndarray, np.ndarray | None, bp.PCA]] = {
        "diabetes": (load_diabetes().data, None, bp.PCA(scale=True))
    }
    for name, load in {"breast cancer": load_breast_cancer, "iris": load_iris}.items():
        loaded = load()
        found[name] = (loaded.data, loaded.target_names[loaded.target], bp.PCA(scale=True))
    clothes, pictures = data.read_fashion(fashion), data.read_faces(faces)
    if clothes is None:
        print(f"without Fashion-MNIST: {data.FASHION_MISSING}")
    else:
        found["Fashion-MNIST"] = (clothes[0][:rows], clothes[1][:rows], bp.PCA(scale=True))
    if pictures is None:
        print(f"without faces: {data.FACES_MISSING}")
    else:
        found["ORL faces"] = (pictures, np.repeat(np.arange(40), 10), bp.PCA(len(pictures) - 1))
    return found


def features_of_clothes(
    fashion: Path, folder: Path, rows: int, q: int
) -> tuple[Path, np.ndarray, bp.ApproximatePCA] | None:
    """Send pictures through the network; None where it, or the pictures, are not installed."""
    clothes = data.read_fashion(fashion, "t10k")
    shards = folder / f"maps_{rows}"
    if clothes is None:
        return None
    if not shards.exists() and not data.write_network_features(clothes[0][:rows], (28, 28), PIXELS, shards):
        print(f"without a network's features: {data.NETWORK_MISSING}")
        return None
    return shards, clothes[1][:rows], bp.ApproximatePCA(min(100, rows - 1), bp.sketches.Gaussian(q))


def main(arguments: list[str] | None = None) -> None:
    parser = data.options(__doc__)
    parser.add_argument("--rows", type=int, default=60_000, help="of Fashion-MNIST")
    parser.add_argument("--network-rows", type=int, default=1000, help="of Fashion-MNIST, sent through the network")
    given = parser.parse_args(arguments)
    folder = data.output_folder(given.out)
    found = tables(given.fashion, given.faces, given.rows)
    features = features_of_clothes(given.fashion, folder, given.network_rows, 500)
    if features is not None:
        found["MobileNetV2 of Fashion-MNIST"] = features

    print(f"{'':29} {'rows':>6} {'columns':>8} {'solver':>17}  first / last eigenvalue   furthest on the last axis")
    portraits = []
    for name, (source, kinds, model) in found.items():
        X = bp.ingest(source, folder / f"{name}.zarr", overwrite=True)
        with warnings.catch_warnings(record=True) as doubts:  # a one-pass answer that is not to be trusted says so
            warnings.simplefilter("always", bp.errors.ApproximationWarning)
            model.fit(X)
        scores = np.asarray(model.transform(X))
        last = np.abs(scores[:, -1]) / np.sqrt(model.explained_variance_[-1])
        ends = f"{model.explained_variance_[0]:10.4g} / {model.explained_variance_[-1]:<10.3g}"
        print(
            f"{name:29} {len(X):6,} {X.shape[1]:8,} {model.solver_:>17}  {ends}  {last.max():8.1f} sd, "
            f"row {last.argmax():,}"
        )
        for doubt in doubts:
            print(f"  doubtful: {doubt.message}")
        few = slice(None, None, -(-len(X) // SHOWN))
        portraits.append((name, model, scores[few], None if kinds is None else kinds[few]))

    try:
        from tutorial_pictures import Portrait, picture_of_portraits

        from bigpca.plots.style import save_picture

        drawn = [
            Portrait(name, model.explained_variance_, model.explained_variance_ratio_, *rest)
            for name, model, *rest in portraits
        ]
        picture = save_picture(picture_of_portraits(drawn), folder / "spectra.png")
    except ImportError:
        return
    print(f"\nspectra and scores: {picture}")


if __name__ == "__main__":
    main()
