"""Kernel PCA of faces
===================

PCA, dual PCA and kernel PCA of faces, in and out of sample, and faces reconstructed from 2 axes and from all axes:
Ghojogh & Crowley, section 7.1.

The ORL faces replace the Frey faces of the paper: 400 pictures of 40 people, shuffled, 80 % for training.

What to see: PCA by the covariance of the pixels, dual PCA by the dot matrix of the pictures, and kernel PCA with the
linear kernel (by its n x n kernel matrix) give the same scores, up to rounding and signs. Under every kernel, new
pictures fall among the training pictures. The cosine kernel looks like linear PCA of rows on a sphere. From all axes,
training pictures are reconstructed exactly. New pictures have half the error that they have with two axes, because the
part outside the span is lost. Two axes give an average face of the right brightness. PCA is centred, so the mean face
is added; the paper reconstructs faces without it. Kernel PCA has no axes in pixels, so pictures are predicted from
scores by regression (`inverse_transform`). The same kernel is applied to pixels and scores, so faces are scaled to be
about 1 apart in both.
"""
# sphinx_gallery_thumbnail_path = 'pictures/04_kernel_faces.webp'

from pathlib import Path

import numpy as np
from tutorial_data import FACE, FACES_MISSING, options, output_folder, read_faces, z_scored

import bigpca as bp
from bigpca.kernels import RBF, Cosine, Linear

HELD_OUT = 0.2
SHOWN = 14


def error(found: np.ndarray, faces: np.ndarray) -> float:
    """Root mean square difference of grey levels."""
    return float(np.sqrt(np.mean((found - faces) ** 2)))


def rebuilt(model: bp.PCA, faces: np.ndarray, k: int) -> np.ndarray:
    """Faces from their first k scores alone."""
    scores = model.transform(faces)
    return model.inverse_transform(np.where(np.arange(scores.shape[1]) < k, scores, 0))


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--pixels", type=int, default=4, help="keep one pixel in so many where a covariance is needed")
    given = parser.parse_args(arguments)
    faces = read_faces(given.faces)
    if faces is None:
        print(f"skipped: {FACES_MISSING}")
        return
    folder = output_folder(given.out)
    shuffled = faces[np.random.default_rng(0).permutation(len(faces))].astype("float64")
    known, new = np.split(shuffled, [round(len(faces) * (1 - HELD_OUT))])

    small = shuffled.reshape(-1, *FACE)[:, :: given.pixels, :: given.pixels].reshape(len(faces), -1)
    X, held_out = (z_scored(part, small[: len(known)]) for part in np.split(small, [len(known)]))
    embedded = compare_scores(X, held_out)
    strips = compare_rebuilt_faces(known, new)
    draw(folder, embedded, strips)


def compare_scores(X: np.ndarray, held_out: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Scores on 2 axes, in and out of sample, and a table of how far they are from those of PCA."""
    models = {
        "PCA": bp.PCA(2, solver="covariance"),
        "dual PCA": bp.PCA(2, solver="dot"),
        "linear kernel": bp.KernelPCA(2, kernel=Linear(), solver="dense"),
        "RBF kernel": bp.KernelPCA(2, kernel=RBF()),  # of width 1 / d
        "cosine kernel": bp.KernelPCA(2, kernel=Cosine(), solver="dense"),
    }
    embedded = {name: (model.fit_transform(X), model.transform(held_out)) for name, model in models.items()}
    print(f"{len(X)} faces of {X.shape[1]:,} pixels, {len(held_out)} held out: scores on 2 axes\n")
    print(f"{'':15} {'solver':>10}   off PCA's   spread of new / of known")
    for name, (inside, outside) in embedded.items():
        spread = " ".join(f"{ratio:8.2f}" for ratio in outside.std(axis=0) / inside.std(axis=0))
        off = np.abs(np.abs(inside) - np.abs(embedded["PCA"][0])).max()
        comparable = "kernel" not in name or "linear" in name
        same = f"{off / np.abs(embedded['PCA'][0]).max():11.1g}" if comparable else f"{'':11}"
        print(f"{name:15} {models[name].solver_:>10} {same}   {spread}")
    return embedded


def compare_rebuilt_faces(known: np.ndarray, new: np.ndarray) -> dict[str, np.ndarray]:
    """Faces rebuilt from 2 axes, from all axes and from those of a kernel, and a table of their errors."""
    whole = bp.PCA(len(known) - 1, solver="dot").fit(known)
    mean, size = whole.mean_, np.sqrt(whole.total_variance_)
    kernel = bp.KernelPCA(len(known) - 1, kernel=RBF(0.5), fit_inverse_transform=1e-3)
    kernel.fit((known - mean) / size)
    strips = {"known": known, "held out": new}
    print(f"\n{'faces from':32}     known  held out   (grey levels of 255, off by)")
    for label, make in {
        "2 axes": lambda rows: rebuilt(whole, rows, 2),
        "all axes": lambda rows: rebuilt(whole, rows, len(known)),
        "all axes of an RBF kernel": lambda rows: (
            mean + size * kernel.inverse_transform(kernel.transform((rows - mean) / size))
        ),
    }.items():
        found = make(known), make(new)
        print(f"{label:32}{error(found[0], known):10.2g}{error(found[1], new):10.2g}")
        strips |= {f"known, from {label}": found[0], f"held out, from {label}": found[1]}
    return strips


def draw(folder: Path, embedded: dict[str, tuple[np.ndarray, np.ndarray]], strips: dict[str, np.ndarray]) -> None:
    """Draw the scores of each model and strips of faces, if Matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
        from tutorial_pictures import picture_of_strips

        from bigpca.plots.images import image_tiles
        from bigpca.plots.style import save_picture
    except ImportError:
        return
    figure = Figure(figsize=(3.6 * len(embedded), 4.2), dpi=100, layout="constrained", facecolor="white")
    labels = np.repeat(["known", "new"], [len(part) for part in embedded["PCA"]])
    for axes, (name, both) in zip(figure.subplots(1, len(embedded)), embedded.items(), strict=True):
        bp.plots.scores(np.concatenate(both), labels=labels, ax=axes)
        axes.set_title(name, loc="left")
        axes.locator_params(axis="x", nbins=5)
    for axes in figure.axes[:-1]:
        axes.get_legend().remove()
    print(f"\nscores: {save_picture(figure, folder / 'kernel_faces_scores.png')}")
    tiles = {name: image_tiles(rows[:SHOWN], FACE, SHOWN) for name, rows in strips.items()}
    figure = picture_of_strips(tiles, title="Faces, and what is left of them in the leading axes")
    print(f"faces: {save_picture(figure, folder / 'kernel_faces.png')}")


if __name__ == "__main__":
    main()
