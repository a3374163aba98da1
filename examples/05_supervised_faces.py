"""Supervised PCA and discriminants of faces
=========================================

Supervised PCA and Roweis discriminant analysis of faces: Ghojogh & Crowley, sections 7.2 and 7.3, and the corners of
the Roweis map.

Six pictures of each of the 40 people of the ORL faces are used for training, and four are held out.

What to see: no axes reconstruct faces as well as PCA's. Supervised PCA has only 39 axes, one less than there are
people. (Rows are centred; the paper reconstructs without the mean.) The scatter within people, of 10,304 pixels, has
rank 200, n - c, so Fisher needs to know what to add to it: here the mean of its 200 eigenvalues. Then a few axes
separate new pictures better than PCA's. The original Fisherfaces apply Fisher to the first n - c axes of PCA. Their
scatter is barely regular, and the method fails. All people have the same number of pictures, so double supervised (1,
1) has nearly Fisher's axes. Supervised axes draw the pictures of each of three people together. A Gaussian kernel does
this most strongly, but held-out pictures fall between their own person and the middle.

The second task is glasses or none, with nine people each. The more closely a model follows the labels, the better it
sorts the training pictures, as in the paper's figure 14, and the worse it sorts pictures of other people. It has
learned eighteen people, not glasses.
"""
# sphinx_gallery_thumbnail_path = 'pictures/05_supervised_faces.webp'

from typing import Any

import numpy as np
from nearest_neighbour import OfScores
from tutorial_data import FACE, FACES_MISSING, options, output_folder, read_faces, same_kind, z_scored

import bigpca as bp

LEARNT = 6  # pictures of each person
KEPT = (2, 5, 10, 39)
AXES = 10  # drawn of each corner
CORNERS = {"PCA": (0, 0), "supervised PCA": (1, 0), "Fisher": (0, 1), "double supervised": (1, 1)}
GLASSES = (2, 6, 14, 20, 27, 28, 31, 34, 37)  # who wear them in all ten pictures
BARE = (1, 3, 5, 8, 9, 10, 11, 12, 15)  # in none
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def split(rows: np.ndarray, labels: np.ndarray, held_out: np.ndarray) -> Split:
    """Rows and labels that are learnt, and those held out."""
    return rows[~held_out], labels[~held_out], rows[held_out], labels[held_out]


def corner(name: str, k: int) -> Any:
    """The model of a corner of the Roweis map."""
    r1, r2 = CORNERS[name]
    return OfScores(k, float(r1)) if r2 else bp.SupervisedPCA(k) if r1 else bp.PCA(k)


def print_rebuilt(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> None:
    """Root mean square errors of faces from 2 axes and from all."""
    print(f"{'faces from':26}{'axes':>6}{'learnt':>9}{'held out':>10}   (grey levels of 255, off by)")
    for name, most in (("PCA", len(X) - 1), ("supervised PCA", len(np.unique(y)) - 1)):
        for k in (2, most):
            model = corner(name, k).fit(X, y)
            found = (model.inverse_transform(model.transform(rows)) - rows for rows in (X, new))
            errors = [float(np.sqrt(np.mean(np.square(rows)))) for rows in found]
            print(f"{name:26}{k:6}{errors[0]:9.3g}{errors[1]:10.3g}")


def print_neighbours(X: np.ndarray, y: np.ndarray, new: np.ndarray, new_y: np.ndarray) -> dict[str, np.ndarray]:
    """Errors of the nearest neighbour, by axes kept; returns the components of the corners."""
    k, c = max(KEPT), len(np.unique(y))
    mean = (len(X) - 1) / (len(X) - c)  # columns have mean 0: the linear kernel has n - 1 features, and I that trace
    kernel = bp.KernelRoweisDiscriminantAnalysis(
        k, r1=0.0, r2=1.0, kernel="linear", normalize=True, regularization=mean
    )
    models = {name: corner(name, k) for name in CORNERS} | {
        "Fisher by a linear kernel": kernel,
        "Fisher, n - c axes of PCA": bp.FisherDiscriminantAnalysis(k),
        "kernel supervised PCA": bp.KernelSupervisedPCA(k),  # Gaussian, of width 1 / d
    }
    inner = bp.PCA(len(X) - c).fit(X)
    print(f"\n{'nearest of another person':26}" + "".join(f"{kept:>7}" for kept in KEPT) + " axes")
    for name, model in models.items():
        rows = (inner.transform(X), inner.transform(new)) if "axes of PCA" in name else (X, new)
        known = np.asarray(model.fit(rows[0], y).transform(rows[0]))
        held_out = np.asarray(model.transform(rows[1]))
        errors = [1 - same_kind(known[:, :kept], y, held_out[:, :kept], new_y) for kept in KEPT]
        print(f"{name:26}" + "".join(f"{error:7.1%}" for error in errors))
    off = models["Fisher"].eigenvalues_ / kernel.eigenvalues_ - 1
    print(f"Fisher: eigenvalues from pixels and from a linear kernel differ by {np.abs(off).max():.1g}")
    return {name: models[name].components_[:AXES] for name in CORNERS}


def within(scores: np.ndarray, people: np.ndarray) -> float:
    """Share of the scatter of the scores that is about the means of people."""
    means = np.stack([scores[people == person].mean(axis=0) for person in people])
    return float(np.sum((scores - means) ** 2) / np.sum((scores - scores.mean(axis=0)) ** 2))


def three_people(faces: np.ndarray, people: np.ndarray, held_out: np.ndarray) -> dict[str, Split]:
    """Scores of the first three people on two axes, learnt and held out."""
    first = people <= 3
    X, y, new, new_y = split(faces[first], people[first], held_out[first])
    X, new = z_scored(X), z_scored(new, X)
    models = {
        "PCA": bp.PCA(2),
        "supervised PCA": bp.SupervisedPCA(2),
        "kernel supervised PCA": bp.KernelSupervisedPCA(2),
    }
    print(
        f"\n{'three people, 2 axes':26}{'learnt':>9}{'held out':>10}   (scatter within people)   direct and dual "
        "differ by"
    )
    found = {}
    labels = np.vectorize("person {}".format)
    for name, model in models.items():
        scores = model.fit(X, y).transform(X), model.transform(new)
        off = ""
        if name != "PCA":
            kernel = "rbf" if "kernel" in name else "linear"
            dual = bp.KernelSupervisedPCA(2, kernel=kernel, solver="pairs").fit(X, y).transform(X)
            off = f"{np.abs(np.abs(dual) - np.abs(scores[0])).max() / np.abs(dual).max():.1g}"
        print(f"{name:26}{within(scores[0], y):9.1%}{within(scores[1], new_y):10.1%}{off:>31}".rstrip())
        found[name] = (scores[0], labels(y), scores[1], labels(new_y))
    return found


def nearer_mean(model: Any, X: np.ndarray, y: np.ndarray, *others: tuple[np.ndarray, np.ndarray]) -> list[float]:
    """Shares of the rows of each pair (rows, labels) whose scores are nearest to the mean of another kind's."""
    scores = np.asarray(model.fit(X, y).transform(X))
    kinds = np.unique(y)
    means = np.stack([scores[y == kind].mean(axis=0) for kind in kinds])
    return [1 - same_kind(means, kinds, np.asarray(model.transform(rows)), labels) for rows, labels in others]


def glasses(faces: np.ndarray, people: np.ndarray, held_out: np.ndarray) -> dict[str, Split]:
    """Print errors of glasses or none; returns scores on two axes (PCA), on one and PCA's first (supervised)."""
    both = np.isin(people, GLASSES + BARE)
    faces, people, held_out = faces[both], people[both], held_out[both]
    kinds = np.where(np.isin(people, GLASSES), "glasses", "none")
    models = {
        "PCA, 2 axes": bp.PCA(2),
        "supervised PCA": bp.SupervisedPCA(1),
        "kernel supervised PCA": bp.KernelSupervisedPCA(1),
        "Fisher": corner("Fisher", 1),
    }
    print(f"\n{'glasses, or none':26}{'learnt':>9}{'new pictures':>14}{'new people':>12}   (nearest to the wrong mean)")
    X, y, new, new_y = split(faces, kinds, held_out)
    found: dict[str, Split] = {}
    for name, model in models.items():
        like = z_scored(X), z_scored(new, X)
        learnt, pictures = nearer_mean(model, like[0], y, (like[0], y), (like[1], new_y))
        strangers = []
        for pair in zip(GLASSES, BARE, strict=True):
            rest, rest_y, two, two_y = split(faces, kinds, np.isin(people, pair))
            strangers += nearer_mean(model, z_scored(rest), rest_y, (z_scored(two, rest), two_y))
        print(f"{name:26}{learnt:9.0%}{pictures:14.0%}{np.mean(strangers):12.0%}")
        if name != "Fisher":
            found[f"glasses: {name}"] = scores_with_pca(model, faces, kinds, np.isin(people, (GLASSES[-1], BARE[-1])))
    return found


def scores_with_pca(model: Any, faces: np.ndarray, kinds: np.ndarray, held_out: np.ndarray) -> Split:
    """Scores without two of the people and of them, with PCA's first beside where the model has one axis."""
    X, y, new, new_y = split(faces, kinds, held_out)
    X, new = z_scored(X), z_scored(new, X)
    pca = bp.PCA(1).fit(X)
    model.fit(X, y)
    known, others = (np.hstack([model.transform(rows), pca.transform(rows)])[:, :2] for rows in (X, new))
    return known, y, others, new_y


def draw_embeddings(embedded: dict[str, Split]) -> Any:
    """Two axes of each model: learnt pictures as dots, held-out ones as rings."""
    from matplotlib.figure import Figure

    from bigpca.plots.style import COLOURS

    figure = Figure(figsize=(13, 8), dpi=100, layout="constrained", facecolor="white")
    for axes, (name, (known, y, new, new_y)) in zip(figure.subplots(2, 3).flat, embedded.items(), strict=True):
        bp.plots.scores(known, labels=y, ax=axes)
        for index, kind in enumerate(np.unique(y)):
            rows = new_y == kind
            axes.scatter(*new[rows].T, s=34, facecolors="none", edgecolors=COLOURS[index], label=f"{kind}, held out")
        axes.set_title(name, loc="left", fontsize=11)
        axes.get_legend().remove()
        if "kernel" in name:  # at the end of each line
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
        if "glasses" in name and "PCA, 2" not in name:
            axes.set(xlabel="score on the supervised axis", ylabel="on pca0 of PCA")
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--pixels", type=int, default=1, help="keep every so many pixels, down and across, at most 4")
    given = parser.parse_args(arguments)
    faces = read_faces(given.faces)
    if faces is None:
        print(f"skipped: {FACES_MISSING}")
        return
    folder = output_folder(given.out)
    pictures = faces.reshape(-1, *FACE)[:, :: given.pixels, :: given.pixels].astype("float64")
    shape, faces = pictures.shape[1:], pictures.reshape(len(pictures), -1)
    people = np.repeat(np.arange(1, 41), 10)
    held_out = np.arange(len(faces)) % 10 >= LEARNT
    X, y, new, new_y = split(faces, people, held_out)
    print(f"{len(X)} faces of {X.shape[1]:,} pixels, {len(new)} held out\n")
    print_rebuilt(X, y, new)
    components = print_neighbours(z_scored(X), y, z_scored(new, X), new_y)
    embedded = three_people(faces, people, held_out) | glasses(faces, people, held_out)

    try:
        from tutorial_pictures import picture_of_strips

        from bigpca.plots.images import component_tiles
        from bigpca.plots.style import save_picture
    except ImportError:
        return
    print(f"\nscores: {save_picture(draw_embeddings(embedded), folder / 'supervised_faces_scores.png')}")
    strips = {
        f"{name}, r1 = {CORNERS[name][0]}, r2 = {CORNERS[name][1]}": component_tiles(tiles, shape, AXES)
        for name, tiles in components.items()
    }
    figure = picture_of_strips(strips, title="Roweisfaces of ORL")
    print(f"Roweisfaces: {save_picture(figure, folder / 'roweisfaces.png')}")


if __name__ == "__main__":
    main()
