"""A map from distances
====================

Classical multidimensional scaling draws a map from distances alone, through a precomputed kernel.

Distances D become the kernel matrix -1/2 H D^2 H, with squares entry by entry and H = I - 11'/n. It is positive
semi-definite exactly if D are distances between points. KernelPCA centres its input, so H changes no score. But -1/2
D^2 alone, with its diagonal of 0, is never positive semi-definite, and `Precomputed` cannot know that it will be after
centring.

What to see: cities come out in the right places, up to rotation and reflection, which distances do not determine.
Distances over the globe are not distances between points in a flat space. Their matrix has negative eigenvalues, so it
is declared indefinite. The share of the negative eigenvalues says how far from flat it is, and the positive ones add
up to more than the trace. Straight lines through the earth are distances in flat space, and three axes capture them.
For the digits, Euclidean distances give the scores of linear PCA, up to signs. Sums of absolute differences are far
from Euclidean, but their square roots are Euclidean.
"""

import warnings
from pathlib import Path

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from tutorial_data import options, output_folder

import bigpca as bp
from bigpca.kernels import Precomputed

EARTH = 6371.0  # radius, km
CENTRE = (50.0, 10.0)  # of the true map: latitude and longitude, degrees
ROUNDING = 1e-9  # of the trace
CITIES = {
    "Amsterdam": (52.37, 4.90), "Athens": (37.98, 23.73), "Belgrade": (44.79, 20.45), "Berlin": (52.52, 13.41),
    "Bucharest": (44.43, 26.10), "Copenhagen": (55.68, 12.57), "Dublin": (53.35, -6.26), "Helsinki": (60.17, 24.94),
    "Istanbul": (41.01, 28.98), "Kyiv": (50.45, 30.52), "Lisbon": (38.72, -9.14), "London": (51.51, -0.13),
    "Madrid": (40.42, -3.70), "Oslo": (59.91, 10.75), "Paris": (48.86, 2.35), "Prague": (50.08, 14.44),
    "Reykjavik": (64.15, -21.94), "Riga": (56.95, 24.11), "Rome": (41.90, 12.50), "Sofia": (42.70, 23.32),
    "Stockholm": (59.33, 18.07), "Vienna": (48.21, 16.37), "Warsaw": (52.23, 21.01), "Zurich": (47.37, 8.54),
}  # fmt: skip


def positions(degrees: np.ndarray) -> np.ndarray:
    """Points (n, 3) of a sphere of radius 1, from latitudes and longitudes (n, 2)."""
    latitude, longitude = np.radians(degrees).T
    east, north = np.cos(latitude) * np.sin(longitude), np.sin(latitude)
    return np.column_stack([np.cos(latitude) * np.cos(longitude), east, north])


def true_map(degrees: np.ndarray) -> np.ndarray:
    """Kilometres east and north (n, 2) of the centre: distances from there are true."""
    latitude, longitude = np.radians(CENTRE)
    towards = np.array([[0.0, 1.0, 0.0], [-np.sin(latitude), 0.0, np.cos(latitude)]])
    turned = positions(degrees - (0.0, np.degrees(longitude)))
    flat = turned @ towards.T
    far = np.arccos(turned @ positions(np.array([[CENTRE[0], 0.0]]))[0])
    return EARTH * flat * (far / np.linalg.norm(flat, axis=1))[:, None]


def scaled(distances: np.ndarray, k: int, *, indefinite: bool) -> tuple[np.ndarray, bp.KernelPCA]:
    """Coordinates (n, k) by classical scaling, and the model."""
    K = -0.5 * distances**2
    K -= K.mean(axis=0)
    K -= K.mean(axis=1)[:, None]
    model = bp.KernelPCA(k, kernel=Precomputed(indefinite=indefinite), solver="dense")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.errors.ApproximationWarning)  # the table says the negative share
        return model.fit_transform((K + K.T) / 2), model


def laid_over(found: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The map found, turned and shifted, not stretched, to lie on the known one."""
    centred = found - found.mean(axis=0)
    rotation, _ = orthogonal_procrustes(centred, known - known.mean(axis=0))
    return centred @ rotation + known.mean(axis=0)


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=1000, help="digits, at most 1,797")
    given = parser.parse_args(arguments)
    folder = output_folder(given.out)
    degrees, X = np.array(list(CITIES.values())), load_digits().data[: given.rows]
    chords = EARTH * cdist(positions(degrees), positions(degrees))
    globe = 2 * EARTH * np.arcsin(np.minimum(chords / (2 * EARTH), 1.0))
    absolute = cdist(X, X, "cityblock")

    print(f"{'distances':34} {'points':>6}  axes  theirs / trace   negative eigenvalues / trace")
    for name, distances, k in (
        ("cities, over the globe", globe, 2), ("cities, through the earth", chords, 3),
        ("digits, Euclidean", cdist(X, X), 10),
        ("digits, absolute differences", absolute, 10), ("digits, their roots", np.sqrt(absolute), 10),
    ):  # fmt: skip
        _, model = scaled(distances, k, indefinite=True)
        trace = model.total_variance_ * (len(distances) - 1)
        negative = model.negative_mass_ / trace if model.negative_mass_ > ROUNDING * trace else 0.0
        print(f"{name:34} {len(distances):6} {k:5}  {model.explained_variance_ratio_.sum():14.2%}   {negative:14.2%}")

    known = true_map(degrees)
    found = laid_over(scaled(globe, 2, indefinite=True)[0], known)
    off = np.linalg.norm(found - known, axis=1)
    print(
        f"\ncities are {off.mean():.0f} km from their places on average, "
        f"{list(CITIES)[off.argmax()]} {off.max():.0f} km"
    )
    scores, by_distances = bp.PCA(10).fit_transform(X), scaled(cdist(X, X), 10, indefinite=False)[0]
    apart = np.abs(np.abs(scores) - np.abs(by_distances)).max() / np.abs(scores).max()
    print(f"digits: scores of PCA and of classical scaling differ by {apart:.1g} of the largest")
    draw(folder, known, found)


def draw(folder: Path, known: np.ndarray, found: np.ndarray) -> None:
    """Draw the known and the recovered map, if Matplotlib is installed."""
    try:
        from matplotlib.figure import Figure

        from bigpca.plots.style import COLOURS, save_picture
    except ImportError:
        return
    figure = Figure(figsize=(10, 8), dpi=100, layout="constrained", facecolor="white")
    axes = figure.subplots()
    for label, points, colour, marker in (
        ("known", known, COLOURS[7], "o"),
        ("from distances", found, COLOURS[1], "x"),
    ):
        axes.scatter(*points.T, color=colour, marker=marker, label=label)
    for name, (x, y) in zip(CITIES, known, strict=True):
        axes.annotate(name, (x, y), (6, 4), textcoords="offset points", fontsize=9)
    axes.set(xlabel="km east of 50 N 10 E", ylabel="km north", aspect="equal")
    axes.set_title("Cities from their distances over the globe", loc="left")
    axes.margins(0.12)
    axes.legend(frameon=False, loc="lower left")
    print(f"\nthe map: {save_picture(figure, folder / 'kernel_scaling.png')}")


if __name__ == "__main__":
    main()
