"""Approximate kernel PCA, compared
================================

Approximate kernel PCA of faces, ten eigenpairs compared with exact ones: figures 8 and 9 of Marukatat (2022).

The data are 400 ORL faces, z-scored. The kernels are tanh(1e-4 x'y), ``exp(-1e-4 |x - y|^2)``, (x'y)^5, their sum, and
the sum of the three, each scaled to k(x, x) = 1. A sketch of the empirical kernel map (Gaussian or feature hashing, q
columns) costs all n^2 kernel values; landmarks cost n q. The kernels use the scores on all 399 axes instead of the
10,304 pixels, because these have the same distances and dot products. Sim is the absolute cosine between exact and
approximate eigenvectors, and Diff the relative error of eigenvalues. The figures of the paper average ten draws:
--seeds 10 -q 25 50 100 200 does the same in a quarter of an hour.

What to see: a Gaussian sketch of 50 columns with the "ritz" core is nearly exact. Algorithm 6 as printed ("tutorial")
takes the same two sweeps, but has errors of some 7 % in the eigenvalues, and mixes neighbouring axes. "nystrom" needs
only one sweep. Feature hashing is as good, except for (x'y)^5, which has a few heavy rows: whatever shares a column
with one of them is lost. The "features" of landmarks, with the mean of all rows, are better than eqs. 62-63
("tutorial"), whose eigenvalues, n / q times those of the landmarks, are valid only for uniform landmarks. For (x'y)^5
the sampling decides. Uniform landmarks miss the heavy rows. Landmarks by diagonal or column norm are nearly exact.
Pivoted Cholesky, which reduces the trace rather than the error of the first axes, is in between. The plain sum is
almost equal to this polynomial, because the other kernels are lost in its rounding. Only its sketches differ, because
cores are signed for a kernel that is not positive semi-definite. tanh is not positive semi-definite, so features and
pivoted Cholesky are not defined for kernels that contain it: the table has a dash. Where Sim is low and Diff is small,
eigenvalues are close and their axes have turned.
"""
# sphinx_gallery_thumbnail_path = 'pictures/04_kernel_approximations.webp'

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from tutorial_data import FACES_MISSING, options, output_folder, read_faces, z_scored

import bigpca as bp
from bigpca.kernels import RBF, Kernel, Polynomial, Tanh, normalized
from bigpca.quality import similarity
from bigpca.sketches import FeatureHash, Gaussian

K = 10
SKETCHES = {"Gaussian": Gaussian, "feature hashing": FeatureHash}
CORES = ("ritz", "nystrom", "tutorial")
SAMPLINGS = ("rpcholesky", "column-norm", "diagonal", "uniform")
SOURCES = ("rows", "landmarks")
FIGURES = {"Sim": "figure_8_similarity", "Diff": "figure_9_difference"}
Curves = dict[tuple[str, str], dict[int, tuple[float, float]]]


def kernels() -> dict[str, Kernel]:
    """The three kernels of the tutorial, and two sums."""
    tanh, rbf, polynomial = Tanh(gamma=1e-4, coef0=0), RBF(gamma=1e-4), Polynomial(gamma=1.0, coef0=0, degree=5)
    return {
        "tanh": tanh, "RBF": rbf, "(x'y)^5": polynomial, "sum": tanh + rbf + polynomial,
        "sum, k(x, x) = 1 each": normalized(tanh) + rbf + normalized(polynomial),
    }  # fmt: skip


def methods(kernel: Kernel, q: int, seed: int) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield (name, variant) and the model to fit, of all that are defined for this kernel."""
    for name, sketch in SKETCHES.items():
        for core in CORES:
            yield (
                (name, core),
                bp.ApproximateKernelPCA(K, kernel=kernel, sketch=sketch(q, random_state=seed), approximation=core),
            )
    for sampling in SAMPLINGS:
        for source in SOURCES:
            if kernel.positive_semidefinite or (source == "landmarks" and sampling != "rpcholesky"):
                options_ = {"sampling": sampling, "components_from": source, "random_state": seed}
                yield (sampling, source), bp.NystromKernelPCA(K, kernel=kernel, n_landmarks=q, **options_)


def compare(X: np.ndarray, exact: bp.KernelPCA, model: Any) -> tuple[float, float]:
    """Mean Sim and Diff: scores of the training rows are eigenvectors, times the root of the eigenvalue."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.errors.ApproximationWarning)
        model.fit(X)
    # An indefinite kernel may leave fewer than K positive eigenvalues: the others count as 0, with a Diff of 1.
    k = len(model.eigenvalues_)
    sims = similarity(exact.eigenvectors_[:, :k].T, model.transform(X).T)
    differences = abs(model.eigenvalues_ / exact.eigenvalues_[:k] - 1)
    return sims.sum() / K, (differences.sum() + K - k) / K


def measure(kernel: Kernel, X: np.ndarray, widths: list[int], seeds: int) -> tuple[bp.KernelPCA, Curves]:
    """Return the exact fit, and for every method: q -> (Sim, Diff), averaged over the seeds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.errors.ApproximationWarning)  # the table says the negative mass
        exact = bp.KernelPCA(K, kernel=kernel).fit(X)
    curves: Curves = {}
    for q in widths:
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for seed in range(seeds):
            for name, model in methods(kernel, q, seed):
                found.setdefault(name, []).append(compare(X, exact, model))
        for name, pairs in found.items():
            curves.setdefault(name, {})[q] = tuple(np.mean(pairs, axis=0))
    return exact, curves


def print_table(name: str, exact: bp.KernelPCA, curves: Curves, widths: list[int]) -> None:
    values, negative = exact.eigenvalues_, getattr(exact, "negative_mass_", 0.0)
    print(f"\n{name}: eigenvalues {values[0]:.3g} ... {values[-1]:.3g}, negative ones sum to {0.0 - negative:.3g}")
    print(f"{'':28}" + "".join(f"   q = {q:<3}  Sim    Diff" for q in widths))
    for first, seconds in (*((s, CORES) for s in SKETCHES), *((s, SOURCES) for s in SAMPLINGS)):
        for second in seconds:
            cells = (curves.get((first, second), {}).get(q) for q in widths)
            shown = (f"{'-':>15}{'-':>8}" if cell is None else f"{cell[0]:15.3f}{cell[1]:8.1%}" for cell in cells)
            print(f"{first:17} {second:10}" + "".join(shown))


def draw(which: int, label: str, found: dict[str, Curves]) -> Any:
    """One column of two panels for each kernel: sketches above, landmarks below."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    from bigpca.plots.style import COLOURS, GRID

    figure = Figure(figsize=(3.3 * len(found), 7.5), dpi=100, layout="constrained", facecolor="white")
    panels = figure.subplots(2, len(found), sharex=True, sharey=True, squeeze=False)
    groups = ((SKETCHES, CORES, "sketch of HKH"), (SAMPLINGS, SOURCES, "landmarks"))
    for axes, kernel in zip(panels[0], found, strict=True):
        axes.set_title(kernel, loc="left")
    for line, (firsts, seconds, title) in zip(panels, groups, strict=True):
        for axes, curves in zip(line, found.values(), strict=True):
            for colour, first in zip(COLOURS, firsts, strict=False):
                for style, marker, second in zip(("-", "--", ":"), "os^", seconds, strict=False):
                    points = curves.get((first, second), {})
                    values = [point[which] for point in points.values()]
                    drawn = {"color": colour, "linestyle": style, "marker": marker, "markersize": 4, "linewidth": 1.3}
                    axes.plot(list(points), values, label=f"{first}, {second}", **drawn)
            axes.set(xscale="log", yscale="log" if which else "linear")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xticks(list(points := next(iter(curves.values()))), [str(q) for q in points])
            axes.grid(color=GRID, linewidth=0.8)
        line[0].set_ylabel(f"{label}, mean of {K} eigenpairs")
        line[-1].legend(title=title, loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=9, frameon=False)
    for axes in panels[1]:
        axes.set_xlabel("q, columns or landmarks")
    figure.suptitle(f"Approximate kernel PCA of ORL faces against exact: {label}")
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="to average over")
    parser.add_argument("-q", type=int, nargs="+", default=[25, 50, 100], help="columns, or landmarks")
    parser.add_argument("--kernels", nargs="+", choices=kernels(), default=list(kernels()))
    given = parser.parse_args(arguments)
    faces = read_faces(given.faces)
    if faces is None:
        print(f"skipped: {FACES_MISSING}")
        return
    folder, X = output_folder(given.out), bp.PCA().fit_transform(z_scored(faces))

    found: dict[str, Curves] = {}
    for name in given.kernels:
        exact, found[name] = measure(kernels()[name], X, given.q, given.seeds)
        print_table(name, exact, found[name], given.q)

    try:
        from bigpca.plots.style import save_picture

        pictures = [
            save_picture(draw(which, label, found), folder / f"{file}.png")
            for which, (label, file) in enumerate(FIGURES.items())
        ]
    except ImportError:
        return
    print(f"\nSim and Diff against q: {', '.join(map(str, pictures))}")


if __name__ == "__main__":
    main()
