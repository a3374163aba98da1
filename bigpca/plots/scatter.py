"""Rows by their scores on two components, with classes or values as colours; and the features beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bigpca.arrays import Matrix, Vector
from bigpca.plots.data import (
    DrawnScores,
    Kinds,
    Values,
    chosen,
    drawn_scores,
    kinds_of,
    name_of,
    shares_or_none,
    weights,
)
from bigpca.plots.style import ACCENT, COLOURS, INK, MARKERS, QUIET, axes_of, legend, percent, short_names, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY_POINTS = 2_000  # above this, points are one image in SVG and PDF files


def scores(
    model: Any,
    X: Any = None,
    *,
    labels: Any = None,
    components: tuple[int, int] = (1, 2),
    ax: Axes | None = None,
    seed: int = 0,
) -> Axes:
    """Draw rows by their scores on two components, coloured by labels.

    At most 20,000 rows are drawn: one at a random place in each of as many equal strata, by ``seed`` and row number, so
    that it does not depend on chunks or workers.

    Parameters
    ----------
    model : fitted model, or scores of shape (n, k)
    X : array-like, Dask array, path and so on, of shape (n, d) or (n, k), default None
        Rows, or scores that ``transform`` has returned or stored. As many columns as components, but not as many as
        features, are scores. Lazy rows take one read; its size is announced in the log where it is over 256 MiB.
    labels : array-like of shape (n,), or path, optional
        Of all rows. A Series with an index of keys, or a file with a column of keys, is joined by key to rows or scores
        that have keys; other labels are in the order of the rows, as ``bigpca.data.by_key(labels, X, keys=False)``
        says that they are. Integers, booleans and text are classes: of more than ten, the largest nine are named, and
        the rest are "others". Real numbers are values on a colour bar. Rows without a label are crosses.
    components : (int, int), default (1, 2)
        Counted from 1; the first along the abscissa. A model of one component is drawn as a histogram.
    ax : matplotlib Axes, optional
        By default those of a new figure.
    seed : int, default 0
        Of the rows drawn.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For components or labels that do not fit, and models without components, such as a sketch.
    ImportError
        If matplotlib is not installed.
    """
    drawn, ratio = _drawn(model, X, seed)
    pair = chosen(components, drawn.scores.shape[1])
    kinds = None if labels is None else kinds_of(labels, drawn.n, drawn.rows, model if X is None else X)
    name = f"{name_of(model)}, scores" if hasattr(model, "fit") else "Scores"
    return draw_points(axes_of(ax), drawn, kinds, ratio, pair, f"{name} of {drawn.title()}")


def draw_points(
    ax: Axes, drawn: DrawnScores, kinds: Kinds | Values | None, ratio: Vector | None, pair: tuple[int, int], title: str
) -> Axes:
    """Draw scores in a pair of columns, or as a histogram those of one column (the other is -1)."""
    first, second = pair
    if second < 0:
        _histogram(ax, drawn.scores[:, 0], kinds)
        ax.set(xlabel=axis_name(0, ratio), ylabel="rows")
    else:
        _points(ax, drawn.scores[:, [first, second]], kinds)
        ax.set(xlabel=axis_name(first, ratio), ylabel=axis_name(second, ratio))
        ax.locator_params(axis="x", nbins=5)  # numbers of five digits do not touch beside a wide legend
    return tidy(ax, title)


def biplot(
    model: Any,
    X: Any = None,
    *,
    labels: Any = None,
    components: tuple[int, int] = (1, 2),
    top: int = 10,
    feature_names: Any = None,
    ax: Axes | None = None,
    seed: int = 0,
) -> Axes:
    """Draw rows by their scores, and as arrows the features with the largest weights in the two components.

    Arrows have the direction of the features' weights, and one common factor of length. A name for which there is no
    room is left out, and the title counts those that are shown.

    Parameters
    ----------
    model : fitted linear model
    X, labels, components, ax, seed
        As in :func:`scores`; defaults None, None, (1, 2), None and 0.
    top : int, default 10
        Number of features, by the length of their arrows.
    feature_names : array-like of shape (d,), optional
        By default the names that the model was fitted with, or "feature 0" and so on.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For a model without components in the space of the features, or with one only.
    ImportError
        If matplotlib is not installed.
    """
    found = weights(model, feature_names)
    first, second = chosen(components, len(found.components))
    if second < 0:
        raise ValueError("a biplot needs two components, but the model has 1. Fit two, or draw its components.")
    drawn, ratio = _drawn(model, X, seed)
    kinds = None if labels is None else kinds_of(labels, drawn.n, drawn.rows, model if X is None else X)
    ax = draw_points(axes_of(ax), drawn, kinds, ratio, (first, second), "")
    pair = found.components[[first, second]]
    lengths = np.hypot(*pair)
    largest = np.argsort(-lengths, kind="stable")[:top]
    largest = largest[lengths[largest] > 0]
    reach = np.abs(drawn.scores[:, [first, second]]).max(initial=0.0)
    factor = 0.9 * (reach or 1.0) / (lengths[largest].max(initial=0.0) or 1.0)
    tips = factor * pair[:, largest].T
    for tip in tips:
        ax.annotate(
            "",
            tip,
            (0.0, 0.0),
            arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
        )
    ax.update_datalim(1.3 * tips)
    ax.autoscale_view()
    shown = _name_arrows(ax, tips, short_names(found.names[largest].tolist()))
    named = "" if shown == len(tips) else f", {shown} of them named"
    features = f"{len(tips)} largest of {found.components.shape[1]:,} features"
    return tidy(ax, f"{name_of(model)}, {drawn.title()} and the {features}{named}")


def axis_name(column: int, ratio: Vector | None) -> str:
    """Return the name of a component's axis, counted from 1, with its share of the variance.

    >>> axis_name(0, np.array([0.183])), axis_name(1, None)
    ('component 1 (18.3 %)', 'component 2')
    """
    return f"component {column + 1:,}" + ("" if ratio is None else f" ({percent(ratio[column])})")


def _drawn(model: Any, X: Any, seed: int) -> tuple[DrawnScores, Vector | None]:
    """Return the scores to draw, and the shares of the variance where they are known."""
    if hasattr(model, "fit"):
        ratio = shares_or_none(model)
        if ratio is None and hasattr(model, "sketch_"):
            raise ValueError(
                f"a {name_of(model)} has no components: the columns of its sketch are random combinations of the "
                "features, all alike. Fit a PCA, or another model of components."
            )
        return drawn_scores(model, X, seed=seed), ratio
    return drawn_scores(model, X, seed=seed), None


def _points(ax: Axes, xy: Matrix, kinds: Kinds | Values | None) -> None:
    size, raster = float(np.clip(20_000 / max(1, len(xy)), 3.0, 24.0)), len(xy) > MANY_POINTS
    style: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.75, "rasterized": raster}
    if kinds is None:
        ax.scatter(*xy.T, color=ACCENT, label="rows", **style)
        return
    if isinstance(kinds, Values):
        known = np.isfinite(kinds.values)
        x, y = xy[known].T
        coloured = ax.scatter(x, y, c=kinds.values[known], cmap="cividis", label="rows", **style)
        ax.figure.colorbar(coloured, ax=ax, label="label")
        unlabelled = ~known
    else:
        counts = np.bincount(kinds.codes[kinds.codes >= 0], minlength=len(kinds.names))
        for code in np.argsort(-counts, kind="stable"):  # the smallest classes on top
            ax.scatter(
                *xy[kinds.codes == code].T, color=COLOURS[code], marker=MARKERS[code], label=kinds.names[code], **style
            )
        unlabelled = kinds.codes < 0
    if unlabelled.any():
        x, y = xy[unlabelled].T
        ax.scatter(x, y, s=size + 6, color=QUIET, marker="x", linewidths=0.8, label="no label", rasterized=raster)
    _name_kinds(ax, kinds, bool(unlabelled.any()))


def _name_kinds(ax: Axes, kinds: Kinds | Values, unlabelled: bool) -> None:
    """Name classes in a legend whose symbols are large enough to show their colour, however small the points are."""
    from matplotlib.lines import Line2D

    names = kinds.names if isinstance(kinds, Kinds) else ()
    handles = [
        Line2D([], [], linestyle="", marker=MARKERS[i], color=COLOURS[i], markersize=6, markeredgewidth=0)
        for i in range(len(names))
    ]
    if unlabelled:
        handles.append(Line2D([], [], linestyle="", marker="x", color=QUIET, markersize=6))
    if handles:
        legend(ax, handles, [*names, *(["no label"] if unlabelled else [])])


def _histogram(ax: Axes, values: Vector, kinds: Kinds | Values | None) -> None:
    """Draw the scores of the only component, of each class as a line of its own."""
    edges: Any = np.histogram_bin_edges(values, bins=int(np.clip(np.sqrt(len(values)), 5, 60)))
    if not isinstance(kinds, Kinds):
        ax.hist(values, bins=edges, color=ACCENT)
        return
    for code in range(len(kinds.names)):
        ax.hist(values[kinds.codes == code], bins=edges, histtype="step", linewidth=1.6, color=COLOURS[code])
    if (kinds.codes < 0).any():
        ax.hist(values[kinds.codes < 0], bins=edges, histtype="step", linewidth=1.0, color=QUIET, linestyle=":")
    from matplotlib.lines import Line2D

    names = [*kinds.names, *(["no label"] if (kinds.codes < 0).any() else [])]
    legend(ax, [Line2D([], [], color=[*COLOURS[: len(kinds.names)], QUIET][i]) for i in range(len(names))], names)


def _name_arrows(ax: Axes, tips: Matrix, names: list[str]) -> int:
    """Name arrows beyond their tips, where a name covers no other name and no arrow; return how many found room."""
    from matplotlib.patheffects import withStroke

    figure: Any = ax.figure
    figure.draw_without_rendering()  # the layout decides which places are free
    start, ends = ax.transData.transform((0.0, 0.0)), ax.transData.transform(tips)
    along = np.linspace(0.0, 1.0, 100)[:, None, None]
    arrows = (start + along * (ends - start)).reshape(-1, 2)
    taken: list[Any] = []
    for tip, end, name in zip(tips, ends, names, strict=True):
        outward = np.arctan2(*(end - start)[::-1])
        text = ax.annotate(
            name, tip, (0, 0), textcoords="offset points", fontsize=9, color=INK, parse_math=False, va="center"
        )
        text.set(in_layout=False, path_effects=[withStroke(linewidth=2.5, foreground="white")])
        for distance, turn in ((d, t) for d in (5, 12, 20, 30, 42) for t in (0, 0.5, -0.5, 1.0, -1.0, 1.6, -1.6)):
            towards = np.array([np.cos(outward + turn), np.sin(outward + turn)])
            text.xyann = tuple(distance * towards)
            text.set_horizontalalignment("center" if abs(towards[0]) < 0.5 else "left" if towards[0] > 0 else "right")
            box = text.get_window_extent().padded(1)
            inside = ax.bbox.contains(box.x0, box.y0) and ax.bbox.contains(box.x1, box.y1)
            struck = box.count_contains(arrows) > 0
            if inside and not struck and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            text.remove()
    return len(taken)
