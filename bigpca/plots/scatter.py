"""Rows by their scores on two components, with classes or values as colours; and the features beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bigpca.arrays import Input, Matrix, Vector
from bigpca.data.roles import given_array
from bigpca.errors import an
from bigpca.plots.data import (
    DrawnScores,
    Kinds,
    Values,
    chosen,
    component_names,
    drawn_scores,
    kinds_of,
    name_of,
    shares_or_none,
    weights,
)
from bigpca.plots.style import (
    ACCENT,
    COLOURS,
    INK,
    MARKERS,
    QUIET,
    axes_of,
    legend,
    main_of,
    percent,
    percents,
    require_matplotlib,
    short,
    short_names,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY_POINTS = 2_000  # above this, points are one image in SVG and PDF files
SHORT = 5  # points between the tip of an arrow and its name; names further away have a line


def scores(
    model: Any,
    X: Input | None = None,
    *,
    rows: Input | None = None,
    scores: Input | None = None,
    labels: Input | None = None,
    components: tuple[int | str, int | str] = (0, 1),
    ellipses: float | None = None,
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
        Rows, or scores that ``transform`` has returned or stored: the record beside stored or lazy scores says so, or
        the names of the columns, the dimensions, or their number. Lazy rows take one read, which the log announces if
        it exceeds 256 MiB.
    rows, scores : as X, default None
        Say which it is, where nothing else does: an array of as many columns as features and as components.
    labels : array-like of shape (n,), or path, optional
        Of all rows. A Series with an index of keys, or a file with a column of keys, is joined by key to rows or scores
        that have keys; other labels must be in the order of the rows; ``bigpca.data.by_key(labels, X, keys=False)``
        declares this for labels with keys. Integers, booleans and text are classes: if there are more than ten, the
        largest nine are named, and the rest are "others". Real numbers are values on a colour bar. Rows without a label
        are crosses.
    components : two of int from 0 or str, default (0, 1)
        By number or by name, such as "pca0"; the first is the x-axis. A model of one component is drawn as a histogram.
    ellipses : float in (0, 1), optional
        Draw around each class, or around all rows without labels, the ellipse that holds this share of Gaussian rows
        with the mean and covariance of its drawn rows. No ellipse is drawn for classes of
        fewer than three rows.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.
    seed : int, default 0
        Seed for choosing the rows that are drawn.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For components that do not exist, labels that do not fit, models without components, such as a sketch, scores
        of another model, and where it is not clear whether X holds rows or scores.
    ImportError
        If matplotlib is not installed.
    """
    drawn, ratio, kinds = _drawn(model, given_array(X, rows, scores), seed, labels=labels)
    names = component_names(model, drawn.scores.shape[1])
    pair = chosen(components, names)
    title = f"{name_of(model)}, scores of {drawn.title()}" if hasattr(model, "fit") else f"Scores of {drawn.title()}"
    ax = draw_points(axes_of(ax), drawn, kinds, axis_names(pair, names, ratio), pair, title)
    if ellipses is not None:
        if not 0 < ellipses < 1:
            raise ValueError(
                f"ellipses = {ellipses!r}; a share of the rows between 0 and 1 was expected, such as 0.95."
            )
        if pair[1] < 0 or isinstance(kinds, Values):
            raise ValueError(
                "ellipses are drawn for classes in two components. Leave out ellipses, or pass classes as labels."
            )
        _ellipses(ax, drawn.scores[:, pair], kinds, ellipses)
        tidy(ax, f"{title}; ellipses hold {percent(ellipses)} of Gaussian rows")
    return ax


def _ellipses(ax: Axes, xy: Matrix, kinds: Kinds | None, share: float) -> None:
    groups = (
        [(ACCENT, xy)]
        if kinds is None
        else [(COLOURS[code], xy[kinds.codes == code]) for code in range(len(kinds.names) - kinds.others)]
    )
    angles = np.linspace(0, 2 * np.pi, 181)
    circle = np.sqrt(-2 * np.log1p(-share)) * np.stack([np.cos(angles), np.sin(angles)])  # quantile of chi^2(2)
    for colour, rows in groups:
        if len(rows) >= 3:
            variances, axes = np.linalg.eigh(np.cov(rows.T))
            ax.plot(
                *(rows.mean(axis=0) + (axes * np.sqrt(variances.clip(0)) @ circle).T).T, color=colour, linewidth=1.3
            )


def draw_points(
    ax: Axes, drawn: DrawnScores, kinds: Kinds | Values | None, names: list[str], pair: tuple[int, ...], title: str
) -> Axes:
    """Draw scores in a pair of columns, or as a histogram those of one column (the other is -1)."""
    if pair[1] < 0:
        draw_histogram(ax, drawn.scores[:, 0], kinds)
        ax.set(xlabel=names[0], ylabel="rows")
    else:
        draw_marks(ax, drawn.scores[:, pair], kinds)
        ax.set(xlabel=names[0], ylabel=names[1])
        ax.locator_params(axis="x", nbins=5)  # numbers of five digits do not touch beside a wide legend
    return tidy(ax, title)


def biplot(
    model: Any,
    X: Input | None = None,
    *,
    rows: Input | None = None,
    scores: Input | None = None,
    labels: Input | None = None,
    components: tuple[int | str, int | str] = (0, 1),
    top: int = 10,
    feature_names: Input | None = None,
    ax: Axes | None = None,
    seed: int = 0,
) -> Axes:
    """Draw rows by their scores, and as arrows the features with the largest weights in the two components.

    Arrows point in the direction of the features' weights, and their lengths share one factor. Each name is placed at
    its own arrow, with a thin line if it is not at the tip. Names without room are left out, and the title says how
    many are shown.

    Parameters
    ----------
    model : fitted linear model
    X, rows, scores, labels, components, ax, seed
        As in :func:`scores`; defaults None, None, None, None, (0, 1), None and 0.
    top : int, default 10
        Number of features: the best of each component in turn, by absolute weight.
    feature_names : array-like of shape (d,), optional
        By default the names that the model was fitted with, or "feature 0" and so on.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For a model without components in the space of the features, or with only one.
    ImportError
        If matplotlib is not installed.
    """
    found = weights(model, feature_names)
    names = component_names(model, len(found.components))
    columns = chosen(components, names)
    if columns[1] < 0:
        raise ValueError("a biplot needs two components, but the model has 1. Fit two, or draw its components.")
    drawn, ratio, kinds = _drawn(model, given_array(X, rows, scores), seed, labels=labels)
    ax = draw_points(axes_of(ax), drawn, kinds, axis_names(columns, names, ratio), columns, "")
    pair = found.components[[*columns]]
    largest = best_of_each(pair, top)
    reach = np.abs(drawn.scores[:, columns]).max(initial=0.0)
    factor = 0.9 * (reach or 1.0) / (np.hypot(*pair[:, largest]).max(initial=0.0) or 1.0)
    named = _arrows(ax, factor * pair[:, largest].T, found.names[largest].tolist())
    return tidy(ax, f"{name_of(model)}, {drawn.title()} and {main_of(len(largest), len(found.names))}{named}")


def best_of_each(components: Matrix, top: int) -> list[int]:
    """Return features with the largest absolute weights: the best of each component, then the second best, and so on.

    >>> best_of_each(np.array([[3.0, 2, 1, 0], [0, 0, -1, 0]]), 3)
    [0, 2, 1]
    """
    order = np.argsort(-np.abs(components), axis=1, kind="stable")[:, : 2 * top]
    found = [(i, one) for column in order.T.tolist() for i, one in enumerate(column)]
    return list(dict.fromkeys(one for i, one in found if components[i, one] != 0))[:top]


def _arrows(ax: Axes, tips: Matrix, names: list[str]) -> str:
    """Draw arrows from the origin, and name those for whose names there is room; return how many, if not all are."""
    for tip in tips:
        ax.annotate(
            "",
            tip,
            (0.0, 0.0),
            arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
        )
    ax.update_datalim(1.3 * tips)
    ax.autoscale_view()
    shown = _name_arrows(ax, tips, short_names(names))
    return "" if shown == len(tips) else f", {shown} of them named"


def axis_names(columns: Sequence[int], names: Sequence[str], ratio: Vector | None) -> list[str]:
    """Return the names of components with their shares of the variance in equal digits; a column of -1 is left out.

    >>> axis_names([0, 1], ["pca0", "pca1"], np.array([0.7296, 0.18])), axis_names([0, -1], ["kpca0"], None)
    (['pca0 (73.0 %)', 'pca1 (18.0 %)'], ['kpca0'])
    """
    shown = [column for column in columns if column >= 0]
    if ratio is None:
        return [names[column] for column in shown]
    shares = percents(ratio[shown].tolist())
    return [f"{names[column]} ({share})" for column, share in zip(shown, shares, strict=True)]


def _drawn(
    model: Any, given: tuple[Any, str], seed: int, labels: Any = None
) -> tuple[DrawnScores, Vector | None, Kinds | Values | None]:
    """Return the scores to draw, and where they are known the shares of the variance, and the labels of the rows."""
    require_matplotlib()  # before a read
    ratio = shares_or_none(model)
    if ratio is None and hasattr(model, "sketch_"):
        raise ValueError(
            f"{an(name_of(model))} has no components: the columns of its sketch are random combinations of the "
            f"features. Fit a PCA, or another model of components."
        )
    drawn, X = drawn_scores(model, *given, seed=seed), model if given[0] is None else given[0]
    return drawn, ratio, None if labels is None else kinds_of(labels, drawn.n, drawn.rows, X)


def draw_marks(ax: Axes, xy: Matrix, kinds: Kinds | Values | None) -> None:
    """Draw points, with colours and shapes for classes, or a colour bar for values."""
    size, raster = float(np.clip(20_000 / max(1, len(xy)), 3.0, 24.0)), len(xy) > MANY_POINTS
    style: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.75, "rasterized": raster}
    if kinds is None:
        ax.scatter(*xy.T, color=ACCENT, label="rows", **style)
        return
    if isinstance(kinds, Values):
        known = np.isfinite(kinds.values)
        x, y = xy[known].T
        coloured = ax.scatter(x, y, c=kinds.values[known], cmap="cividis", label="rows", **style)
        ax.figure.colorbar(coloured, ax=ax).set_label(short(kinds.column or "label"), parse_math=False)
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
    # Symbols in the legend are large enough to show their colour, however small the points are.
    names = kinds.names if isinstance(kinds, Kinds) else ()
    styles = [{"marker": marker, "markeredgewidth": 0} for marker in MARKERS[: len(names)]]
    _legend(ax, names, bool(unlabelled.any()), kinds.column, [*styles, {"marker": "x"}], linestyle="", markersize=6)


def draw_histogram(ax: Axes, values: Vector, kinds: Kinds | Values | None) -> None:
    """Draw the scores of the only component, of each class as a line of its own."""
    edges: Any = np.histogram_bin_edges(values, bins=int(np.clip(np.sqrt(len(values)), 5, 60)))
    if not isinstance(kinds, Kinds):
        ax.hist(values, bins=edges, color=ACCENT)
        return
    for code in range(len(kinds.names)):
        ax.hist(values[kinds.codes == code], bins=edges, histtype="step", linewidth=1.6, color=COLOURS[code])
    if (kinds.codes < 0).any():
        ax.hist(values[kinds.codes < 0], bins=edges, histtype="step", linewidth=1.0, color=QUIET, linestyle=":")
    _legend(ax, kinds.names, bool((kinds.codes < 0).any()), kinds.column, [{}] * (len(kinds.names) + 1))


def _legend(
    ax: Axes, names: Sequence[str], unlabelled: bool, title: str, styles: Sequence[dict[str, Any]], **common: Any
) -> None:
    """Name classes, and rows without a label as the last, with a line or mark of each one's style."""
    from matplotlib.lines import Line2D

    named = [*zip(names, COLOURS, styles, strict=False), *([("no label", QUIET, styles[-1])] if unlabelled else [])]
    handles = [Line2D([], [], color=colour, **style, **common) for _, colour, style in named]
    if handles:
        legend(ax, handles, [name for name, *_ in named], short(title))


def _name_arrows(ax: Axes, tips: Matrix, names: list[str]) -> int:
    """Name arrows where a name covers nothing and is nearest to its own arrow; return how many found room."""
    from matplotlib.patheffects import withStroke

    figure: Any = ax.figure
    figure.draw_without_rendering()  # the layout decides which places are free
    start, ends = ax.transData.transform((0.0, 0.0)), ax.transData.transform(tips)
    along = np.linspace(0.0, 1.0, 100)[:, None]
    arrows = start + along[:, None] * (ends - start)  # (100, m, 2)
    apart = np.linalg.norm(ends[:, None] - ends, axis=2) > SHORT * 2  # arrows that end at one place share its names
    taken: list[Any] = []
    lines: list[Any] = []
    for i, (tip, end, name) in enumerate(zip(tips, ends, names, strict=True)):
        outward = np.arctan2(*(end - start)[::-1])
        text = ax.annotate(
            name, tip, (0, 0), textcoords="offset points", fontsize=9, color=INK, parse_math=False, va="center"
        )
        text.set(in_layout=False, path_effects=[withStroke(linewidth=2.5, foreground="white")])
        for distance, turn in ((d, t) for d in (SHORT, 12, 20, 30, 42) for t in (0, 0.5, -0.5, 1.0, -1.0, 1.6, -1.6)):
            towards = np.array([np.cos(outward + turn), np.sin(outward + turn)])
            text.xyann = tuple(distance * towards)
            text.set_horizontalalignment("center" if abs(towards[0]) < 0.5 else "left" if towards[0] > 0 else "right")
            box = text.get_window_extent().padded(1)
            corners = np.array([[box.x0, box.y0], [box.x1, box.y1]])
            inside = all(ax.bbox.contains(*corner) for corner in corners)
            gaps = np.hypot(*np.maximum(np.maximum(corners[0] - arrows, arrows - corners[1]), 0).T).min(axis=1)
            line = end + along * (np.clip(end, *corners) - end)  # from the tip to the nearest point of the name
            free = not any(box.overlaps(other) or other.count_contains(line) for other in taken)
            clear = 0 < gaps[i] < 0.8 * gaps[apart[i]].min(initial=np.inf) and gaps.min() > 0
            if inside and clear and free and not any(box.count_contains(other) for other in lines):
                taken.append(box)
                if distance > SHORT:
                    lines.append(line)
                    ax.annotate(
                        "",
                        tip,
                        tuple(72 / figure.dpi * (line[-1] - end)),
                        textcoords="offset points",
                        arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0},
                    ).set_in_layout(False)
                break
        else:
            text.remove()
    return len(taken)
