"""Errors of the nearest neighbour against the number of axes, as the 05_* examples print and draw
them, and the models compared.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tutorial_data import same_kind

import bigpca as bp
from bigpca.estimators.supervised.roweis_map import RoweisMap

AXES = (1, 2, 3, 5, 7, 9, 20, 50, 100)
WIDTH = 0.7  # of Gaussian kernels: gamma times the mean squared distance of two rows
CHOSEN = "Roweis, best of the map"
WHOLE = "all columns"
MAP_COLUMNS = 2000  # most with which the map's matrices of columns by columns are worth their time
HELD_OUT = 5000  # most rows on which a model of the map is chosen


@dataclass(frozen=True)
class Rows:
    """Rows to learn from and held-out ones, and the kinds of both."""

    X: Any
    y: np.ndarray
    new: Any
    new_y: np.ndarray

    @property
    def most(self) -> int:
        """Axes that tell the kinds apart: one less than there are, and no more than columns."""
        return int(min(len(np.unique(self.y)) - 1, self.X.shape[1]))

    @property
    def within_rank(self) -> int:
        """Most eigenvalues of S_W that are not 0."""
        return int(min(len(self.X) - len(np.unique(self.y)), self.X.shape[1]))

    @property
    def few(self) -> bool:
        """True where S_W is singular: fewer rows than columns."""
        return self.within_rank < int(self.X.shape[1])

    @property
    def mapped(self) -> bool:
        """True where models of the map are worth choosing from: rows to spare, and few enough columns."""
        return not self.few and self.within_rank <= MAP_COLUMNS

    @property
    def axes(self) -> list[int]:
        """How many axes are kept: those of AXES, all that labels give, and no more than there are."""
        return sorted({k for k in (*AXES, self.most) if k <= min(len(self.X) - 1, self.X.shape[1])})


@dataclass(frozen=True)
class Curve:
    """Shares of held-out rows whose nearest neighbour, on so many axes, is of another kind."""

    axes: list[int]
    errors: list[float]
    seconds: float


class OfScores:
    """Roweis discriminant analysis with r2 = 1 of all n - 1 scores of PCA, where there are too many columns.

    What is added to S_W is the mean of its non-zero eigenvalues. The axes lie in the span of the rows: nothing is lost.
    """

    def __init__(self, k: int, r1: float) -> None:
        self.k, self.r1 = k, r1

    def fit(self, X: np.ndarray, y: np.ndarray) -> "OfScores":
        """Learn from rows and their labels."""
        mean = (len(X) - 1) / (len(X) - len(np.unique(y)))  # normalize=True makes the trace of S_W that of I
        self.pca = bp.PCA(len(X) - 1).fit(X)
        self.inner = bp.RoweisDiscriminantAnalysis(self.k, r1=self.r1, r2=1.0, normalize=True, regularization=mean)
        self.inner.fit(self.pca.transform(X), y)
        self.eigenvalues_ = self.inner.eigenvalues_
        self.components_ = self.inner.components_ @ self.pca.components_
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Return the scores."""
        return np.asarray(self.inner.transform(self.pca.transform(X)))


def roweis(rows: Rows, k: int, r1: float = 0.0, r2: float = 0.0) -> Any:
    """A model of the family, its terms of equal trace: 1 is the mean of all eigenvalues of S_W.

    With few rows, the mean of the non-zero ones is added to them; otherwise axes without scatter are left out.
    """
    d = rows.X.shape[1]
    if d > MAP_COLUMNS:
        return OfScores(k, r1)
    added = d / rows.within_rank if rows.few else "pinv"
    return bp.RoweisDiscriminantAnalysis(k, r1=r1, r2=r2, normalize=True, regularization=added)


def models(rows: Rows, landmarks: int) -> dict[str, Any]:
    """The models to compare, by name, the kernel ones by landmarks."""
    sample = np.asarray(rows.X[:: max(1, len(rows.X) // 1000)]).astype("float64")
    m, most, k = min(landmarks, len(rows.X)), rows.most, rows.axes[-1]
    kernel: dict[str, Any] = {"gamma": WIDTH / (2 * sample.var(axis=0).sum()), "n_landmarks": m}
    in_features = min(k, m - 1)
    return {
        "PCA": bp.PCA(k),
        "supervised PCA": bp.SupervisedPCA(most),
        "Fisher": roweis(rows, most, r2=1.0),
        "double supervised": roweis(rows, most, r1=1.0, r2=1.0),
        "kernel PCA": bp.NystromKernelPCA(in_features, kernel="rbf", **kernel),
        "kernel supervised PCA": bp.KernelSupervisedPCA(most, **kernel),
        "kernel Roweis (0, 0.999)": bp.KernelRoweisDiscriminantAnalysis(in_features, r1=0.0, r2=0.999, **kernel),
    }


def choose(rows: Rows, grid: int) -> tuple[Any, RoweisMap, np.ndarray]:
    """Return the model of the map that errs least, to be fitted to all rows, the map and its errors.

    It is chosen on the last sixth of the rows, 5,000 at most, which the map did not see; those of ``new`` have no say.
    """
    n = len(rows.X) - min(HELD_OUT, len(rows.X) // 6)
    start = time.perf_counter()
    found = bp.roweis_map(rows.X[:n], rows.y[:n], grid, model=roweis(rows, rows.most))
    seconds = time.perf_counter() - start
    errors = found.errors(rows.X[n:], rows.y[n:], criterion="1-nn")
    i, j = np.unravel_index(errors.argmin(), errors.shape)
    r1, r2 = float(found.r1[i]), float(found.r2[j])
    print(f"{errors.size} models of the map from one read of {n:,} rows: {seconds:.1f} s")
    print(
        f"least error among {len(rows.X) - n:,} others, on {rows.most} axes: {errors.min():.1%}, r1 = {r1:g}, "
        f"r2 = {r2:g}"
    )
    k = rows.axes[-1] if max(r1, r2) < 1 else rows.most  # where either is 1, further axes are arbitrary
    return roweis(rows, k, r1, r2), found, errors


def measure(name: str, model: Any, rows: Rows) -> Curve:
    """Fit a model, find its errors and print them."""
    start = time.perf_counter()
    model.fit(rows.X, rows.y)
    seconds = time.perf_counter() - start
    known, new = (np.asarray(model.transform(part)) for part in (rows.X, rows.new))
    axes = [k for k in rows.axes if k <= known.shape[1]]
    errors = [1 - same_kind(known[:, :k], rows.y, new[:, :k], rows.new_y) for k in axes]
    cells = [f"{error:7.1%}" for error in errors] + [f"{'':7}"] * (len(rows.axes) - len(axes))
    print(f"{name:26}{''.join(cells)}{seconds:9.1f}", flush=True)
    return Curve(axes, errors, seconds)


def compare(rows: Rows, landmarks: int, chosen: Any = None) -> dict[str, Curve]:
    """Print the errors of all models, one line each, and what they say; returns them, and
    those of all columns at the end.
    """
    compared = models(rows, landmarks) | ({} if chosen is None else {CHOSEN: chosen})
    print(f"{'nearest of another kind':26}" + "".join(f"{k:7}" for k in rows.axes) + " axes; seconds")
    curves = {name: measure(name, model, rows) for name, model in compared.items()}
    known, new = (np.asarray(part, dtype="float32") for part in (rows.X, rows.new))
    whole = 1 - same_kind(known, rows.y, new, rows.new_y)
    print(f"{WHOLE:26}{whole:7.1%}\n\n{in_words(curves, rows.most)}")
    return curves | {WHOLE: Curve([rows.X.shape[1]], [whole], 0.0)}


def in_words(curves: Mapping[str, Curve], most: int) -> str:
    """Say which models err least, with as many axes as labels give and with any number, and where PCA gets there."""
    found = [
        (error, name, k) for name, curve in curves.items() for k, error in zip(curve.axes, curve.errors, strict=True)
    ]
    least, first = lowest([(error, name) for error, name, k in found if k == most])
    pca = curves["PCA"]
    own = pca.errors[pca.axes.index(most)]
    enough = [k for k, error in zip(pca.axes, pca.errors, strict=True) if error <= least]
    there = f"takes {enough[0]} to err no more" if enough else f"errs more on any number up to {pca.axes[-1]}"
    rest = f"; PCA, {own:.1%}, {there}" if own > least else ""
    of_all, those = lowest([(error, f"{name} on {k} {'axis' if k == 1 else 'axes'}") for error, name, k in found])
    return (
        f"On {most} axes the least error is {least:.1%}, of {first}{rest}.\nThe least of all is {of_all:.1%}, "
        f"of {those}."
    )


def lowest(found: list[tuple[float, str]]) -> tuple[float, str]:
    """The least error, and the names of all that have it."""
    least = min(error for error, _ in found)
    return least, ", ".join(name for error, name in found if error == least)


def draw_curves(axes: Any, curves: Mapping[str, Curve], title: str) -> None:
    """Errors in per cent against the number of axes, and a line at that of all columns."""
    from matplotlib.ticker import LogLocator
    from tutorial_pictures import draw_errors

    from bigpca.plots.style import QUIET, legend

    whole = curves[WHOLE]
    shown = {
        name: (curve.axes, [100 * error for error in curve.errors]) for name, curve in curves.items() if name != WHOLE
    }
    draw_errors(axes, shown, xlabel="axes kept", ylabel="nearest is of another kind, %", title=title)
    all_columns = axes.axhline(100 * whole.errors[0], color=QUIET, linestyle=":")
    ticks = sorted({k for sizes, _ in shown.values() for k in sizes})
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    legend(axes, [*axes.lines[: len(shown)], all_columns], [*shown, f"all {whole.axes[0]:,} columns"])
