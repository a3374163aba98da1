"""Several panels in one figure: portraits of models, strips of images, components and shares, errors by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigpca.plots.data import chosen, component_names, kinds_of, name_of, shares_or_none
from bigpca.plots.data import drawn_scores as read_scores
from bigpca.plots.images import components as draw_components
from bigpca.plots.scatter import axis_names, draw_histogram, draw_marks
from bigpca.plots.scatter import scores as draw_scores
from bigpca.plots.spectra import captured, scree, spectrum
from bigpca.plots.style import COLOURS, INK, MARKERS, legend, log_ticks, plain_figure, require_matplotlib, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_PAIRED = 8  # components of a grid


def pairs(
    model: Any, X: Any = None, *, labels: Any = None, components: Sequence[int | str] = (0, 1, 2, 3), seed: int = 0
) -> Figure:
    """Draw rows by their scores on every pair of some components, and the distribution of each on the diagonal.

    Parameters
    ----------
    model, X, labels, seed
        As in :func:`bigpca.plots.scores`; defaults None, None and 0.
    components : sequence of 2 to 8 int or str, default (0, 1, 2, 3)
        By number from 0 or by name. By default the first four, or all if the model has fewer.

    Returns
    -------
    matplotlib Figure
        Its axes are those of the panels, row by row.

    Raises
    ------
    ValueError
        For components that do not exist, and labels that do not fit.
    ImportError
        If matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib.pyplot as plt

    drawn = read_scores(model, X, seed=seed)
    k = drawn.scores.shape[1]
    given = components[: max(2, k)] if tuple(components) == (0, 1, 2, 3) else components
    own = component_names(model, k)
    columns = chosen(given, own, range(2, MOST_PAIRED + 1))
    kinds = None if labels is None else kinds_of(labels, drawn.n, drawn.rows, model if X is None else X)
    names = axis_names(columns, own, shares_or_none(model) if hasattr(model, "fit") else None)
    size = len(columns)
    figure: Figure = plt.figure(figsize=(1.2 + 2.1 * size, 0.6 + 2.0 * size), layout="constrained")
    panels = figure.subplots(size, size, sharex="col")
    for (i, j), ax in np.ndenumerate(panels):
        if i < j:
            ax.set_axis_off()
            continue
        if i == j:
            draw_histogram(ax, drawn.scores[:, columns[i]], kinds)
        else:
            draw_marks(ax, drawn.scores[:, [columns[j], columns[i]]], kinds)
        tidy(ax)
        if (names_shown := ax.get_legend()) is not None:
            names_shown.set_in_layout(False)
            names_shown.set_bbox_to_anchor((0, 1), transform=panels[0, -1].transAxes)  # where no panels are
            if (i, j) != (0, 0):
                names_shown.remove()
        if i == size - 1:
            ax.set_xlabel(names[j], fontsize=9)
        if j == 0:
            ax.set_ylabel("rows" if i == 0 else names[i], fontsize=9)
        ax.locator_params(nbins=4)
    name = f"{name_of(model)}, scores" if hasattr(model, "fit") else "Scores"
    figure.suptitle(f"{name} of {drawn.title()}", color=INK, fontsize=11)
    return figure


@dataclass(frozen=True)
class Portrait:
    """The numbers of one fitted model that :func:`picture_of_portraits` draws.

    Attributes
    ----------
    name : str
    explained_variance, explained_variance_ratio : ndarray of shape (k,)
    scores : ndarray of shape (m, k)
        Scores of all rows or of some.
    labels : ndarray of shape (m,) or None
        The class of each of these rows.
    """

    name: str
    explained_variance: NDArray[np.float64]
    explained_variance_ratio: NDArray[np.float64]
    scores: NDArray[Any]
    labels: NDArray[Any] | None = None


def picture_of_portraits(portraits: Sequence[Portrait], *, title: str = "") -> Figure:
    """Draw one row per model: eigenvalues, variance captured, scores on axes 1 and 2, and on the first and last axis.

    These are the four columns of the tutorial's figures 1 and 3 (Marukatat 2022). Classes are named once a row.
    """
    rows = len(portraits)
    figure = plain_figure(15, 0.5 + 2.9 * rows)
    for line, portrait in zip(figure.subplots(rows, 4, squeeze=False), portraits, strict=True):
        last = max(2, portrait.scores.shape[1])
        spectrum(portrait.explained_variance, ax=line[0])
        captured(portrait.explained_variance_ratio, ax=line[1])
        for ax, pair in zip(line[2:], ((0, 1), (0, last - 1)), strict=True):
            draw_scores(portrait.scores, labels=portrait.labels, components=pair, ax=ax)
        for ax, name in zip(line, (portrait.name, "variance captured", "scores", "scores"), strict=True):
            tidy(ax, name)
        if (repeated := line[2].get_legend()) is not None:
            repeated.remove()
    if title:
        figure.suptitle(title, color=INK, fontsize=13)
    return figure


def picture_of_strips(strips: Mapping[str, NDArray[np.float64]], *, title: str) -> Figure:
    """Draw pictures of :mod:`bigpca.plots.images` below one another, equally wide and with names.

    Parameters
    ----------
    strips : mapping of name -> ndarray of shape (height, width, 3) with values in [0, 1]
    title : str
    """
    width = 12.0  # inches
    heights = [width * strip.shape[0] / strip.shape[1] for strip in strips.values()]
    figure = plain_figure(width + 0.3, sum(heights) + 0.35 * len(strips) + 0.5)
    lines = figure.subplots(len(strips), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (name, strip) in zip(lines, strips.items(), strict=True):
        ax.imshow(strip, interpolation="nearest")
        tidy(ax, name)
        ax.set_axis_off()
    figure.suptitle(title, color=INK, fontsize=13)
    return figure


def picture_of_components(model: Any, image_shape: tuple[int, ...], *, title: str = "") -> Figure:
    """Draw the leading components of a fitted model as pictures, and their shares of the variance beside them.

    Raises
    ------
    ValueError
        If ``image_shape`` does not fit the features.
    """
    figure = plain_figure(12.5, 5.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.0))
    draw_components(model, image_shape, n=16, ax=left)
    scree(model, ax=right)
    if title:
        figure.suptitle(title, color=INK, fontsize=13)
    return figure


def draw_errors(
    ax: Axes, curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], *, xlabel: str, ylabel: str, title: str
) -> Axes:
    """Draw errors against sizes, both on log scales: one line per name, or one point for a single size.

    Parameters
    ----------
    ax : matplotlib Axes
    curves : mapping of name -> (sizes, errors), of equal lengths
    xlabel, ylabel, title : str
    """
    handles = []
    for index, (name, (sizes, errors)) in enumerate(curves.items()):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        handles += ax.loglog(sizes, errors, color=colour, marker=marker, markersize=5, linewidth=1.4, label=name)
    ticks = _apart({int(size) for sizes, _ in curves.values() for size in sizes})
    ax.set_xticks(ticks, [f"{size:,}" for size in ticks])
    ax.set_xticks([], minor=True)
    log_ticks(ax)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    legend(ax, handles, list(curves))
    return tidy(ax, title)


def _apart(sizes: set[int]) -> list[int]:
    """Remove sizes whose labels would touch the previous one on a log scale."""
    shown: list[int] = []
    for size in sorted(sizes):
        if not shown or size > 1.35 * shown[-1]:
            shown.append(size)
    return shown
