"""Rows by their scores on two components, with classes or values as colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bigpca.arrays import Input, Matrix, Vector
from bigpca.data.provenance import given_array
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
)
from bigpca.plots.style import (
    ACCENT,
    COLOURS,
    MARKERS,
    QUIET,
    axes_of,
    legend,
    percents,
    require_matplotlib,
    short,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY_POINTS = 2_000  # above this, points are one image in SVG and PDF files


def scores(
    model: Any,
    X: Input | None = None,
    *,
    rows: Input | None = None,
    scores: Input | None = None,
    labels: Input | None = None,
    components: tuple[int | str, int | str] = (0, 1),
    ax: Axes | None = None,
    random_state: int = 0,
) -> Axes:
    """Draw rows by their scores on two components, coloured by labels.

    At most 20,000 rows are drawn: one at a random place in each of as many equal strata, by ``random_state`` and row
    number, so that it does not depend on chunks or workers.

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
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.
    random_state : int, default 0
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
    require_matplotlib()  # before a read
    if hasattr(model, "sketch_") and shares_or_none(model) is None:
        raise ValueError(
            f"{an(name_of(model))} has no components: the columns of its sketch are random combinations of the "
            f"features. Fit a PCA, or another model of components."
        )
    given, said = given_array(X, rows, scores)
    drawn = drawn_scores(model, given, said, seed=random_state)
    kinds = None if labels is None else kinds_of(labels, drawn.n, drawn.rows, model if given is None else given)
    return draw_scores(axes_of(ax), model, drawn, kinds, components)


def draw_scores(
    ax: Axes, model: Any, drawn: DrawnScores, kinds: Kinds | Values | None, components: Any = (0, 1)
) -> Axes:
    """Draw scores on two components; those of a model of one as a histogram."""
    names = component_names(model, drawn.scores.shape[1])
    pair = chosen(components, names)
    x, *y = axis_names(pair, names, shares_or_none(model))
    if y:
        draw_marks(ax, drawn.scores[:, pair], kinds)
        ax.locator_params(axis="x", nbins=5)  # numbers of five digits do not touch beside a wide legend
    else:
        draw_histogram(ax, drawn.scores[:, 0], kinds)
    ax.set(xlabel=x, ylabel=y[0] if y else "rows")
    return tidy(ax, f"{name_of(model)}, scores of {drawn.title()}" if name_of(model) else f"Scores of {drawn.title()}")


def axis_names(columns: Sequence[int], names: Sequence[str], ratio: Vector | None) -> list[str]:
    """Return the names of components with their shares of the variance in equal digits.

    >>> axis_names([0, 1], ["pca0", "pca1"], np.array([0.7296, 0.18])), axis_names([0], ["kpca0"], None)
    (['pca0 (73.0 %)', 'pca1 (18.0 %)'], ['kpca0'])
    """
    if ratio is None:
        return [names[column] for column in columns]
    shares = percents(ratio[list(columns)].tolist())
    return [f"{names[column]} ({share})" for column, share in zip(columns, shares, strict=True)]


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
