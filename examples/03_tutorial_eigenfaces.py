"""Eigenfaces at three resolutions
===============================

Eigenfaces at three resolutions, and full-size eigenfaces from small pictures: figure 4 and algorithm 3 of Marukatat
(2022).

What to see: the ten eigenfaces look alike at 112 x 92, 89 x 77 and 56 x 46 pixels, because each picture contributes
about equally. Sim compares the weights of the pictures (the eigenvectors of the dot matrix) with those at full size. A
`Downsample` sketch works the other way round: one read of the full pictures gives full-size eigenfaces, computed from
averages of 6 x 6 pixels. Where Sim drops, two eigenvalues are close, and their axes turn within the plane that they
span.
"""
# sphinx_gallery_thumbnail_path = 'pictures/03_tutorial_eigenfaces.webp'

from pathlib import Path

import numpy as np
from tutorial_data import FACE, FACES_MISSING, options, output_folder, read_faces

import bigpca as bp
from bigpca.quality import principal_angles, similarity

K = 10
RESOLUTIONS = ((112, 92), (89, 77), (56, 46))
SMALL = (19, 16)


def line(name: str, exact: np.ndarray, found: np.ndarray, eigenvalues: tuple[np.ndarray, np.ndarray]) -> None:
    sims, angle = similarity(exact, found), np.degrees(principal_angles(exact, found).max())
    difference = abs(eigenvalues[1] / eigenvalues[0] - 1).mean()
    print(f"{name:36} {sims.mean():6.3f} {sims.min():6.3f} {angle:8.1f} {difference:8.1%}")


def main(arguments: list[str] | None = None) -> None:
    given = options(__doc__).parse_args(arguments)
    faces = read_faces(given.faces)
    if faces is None:
        print(f"skipped: {FACES_MISSING}")
        return
    folder = output_folder(given.out)
    bp.ingest(faces.astype("float32"), folder / "faces.zarr", overwrite=True)
    X = bp.open(folder / "faces.zarr")

    fitted, weights = {}, {}
    for shape in RESOLUTIONS:
        sketch = bp.sketches.Downsample(FACE, shape)
        resized = (
            bp.SketchTransformer(sketch).fit(X).transform(X, out=folder / f"faces_{shape[0]}.zarr", overwrite=True)
        )
        fitted[shape] = bp.PCA(K, solver="dot").fit(resized)  # 400 x 400, at every resolution
        weights[shape] = np.asarray(fitted[shape].transform(resized)).T / fitted[shape].singular_values_[:, None]
    exact = fitted[FACE]

    print(f"the first {K} axes, against full size   Sim     min   angle/°    Diff")
    for shape in RESOLUTIONS[1:]:
        values = exact.explained_variance_, fitted[shape].explained_variance_
        line(f"weights of the pictures, {shape[0]} x {shape[1]}", weights[FACE], weights[shape], values)
    cores = {}
    for core in ("tutorial", "nystrom"):
        cores[core] = bp.ApproximatePCA(K, bp.sketches.Downsample(FACE, SMALL), approximation=core).fit(X)
        values = exact.explained_variance_, cores[core].explained_variance_
        line(
            f"eigenfaces from {SMALL[0]} x {SMALL[1]}, {core} core", exact.components_, cores[core].components_, values
        )
    draw(folder, fitted, cores["nystrom"])


def draw(folder: Path, fitted: dict[tuple[int, int], bp.PCA], one_read: bp.ApproximatePCA) -> None:
    """Draw the eigenfaces of each resolution, if Matplotlib is installed."""
    try:
        from tutorial_pictures import picture_of_strips

        from bigpca.plots.images import component_tiles
        from bigpca.plots.style import save_picture

        strips = {
            f"{shape[0]} x {shape[1]} pixels": component_tiles(model.components_, shape, K)
            for shape, model in fitted.items()
        }
        small = f"{FACE[0]} x {FACE[1]}, in one read through averages of {SMALL[0]} x {SMALL[1]}"
        strips[small] = component_tiles(one_read.components_, FACE, K)
        picture = save_picture(
            picture_of_strips(strips, title="The ten first eigenfaces of ORL"), folder / "eigenfaces.png"
        )
    except ImportError:
        return
    print(f"\nthe eigenfaces: {picture}")


if __name__ == "__main__":
    main()
