"""Pictures of fitted models: components as images, spectra, scores, errors. Needs matplotlib (``bigpca[plot]``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigpca.quality.tiles import component_tiles as component_tiles
from bigpca.quality.tiles import image_tiles as image_tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, QUIET, GRID = "#1f2430", "#0b6e99", "#8a8f98", "#e6e8eb"
# Okabe & Ito (2008), distinguishable by most colour-blind readers, and four more; repeated for more than ten kinds.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", INK, "#b5cf6b", QUIET)
LEVELS = (0.90, 0.95, 0.99)  # of the variance, as in the tutorial's table 2


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


def draw_scree(axes: Axes, explained_variance_ratio: NDArray[np.float64]) -> None:
    """Draw each component's share of the variance (log scale) and, on a second axis, the share captured so far."""
    ratio = np.asarray(explained_variance_ratio, dtype=np.float64)
    order = np.arange(1, len(ratio) + 1)
    positive = ratio > 0
    axes.semilogy(order[positive], 100 * ratio[positive], color=ACCENT, marker="o", markersize=3, linewidth=1.2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("component", color=INK)
    axes.set_ylabel("variance explained, % (log scale)", color=ACCENT)
    captured = axes.twinx()
    captured.plot(order, 100 * np.cumsum(ratio), color=QUIET, linewidth=1.6)
    captured.set_ylim(0, 105)
    captured.set_ylabel("captured so far, %", color=QUIET)
    total = 100 * float(ratio.sum())
    captured.annotate(
        f"{len(ratio)} components: {total:.1f} %",
        (len(ratio), total),
        (0, -14),
        textcoords="offset points",
        ha="right",
        va="top",
        color=INK,
    )
    for side in (axes, captured):
        _tidy(side)
    captured.grid(visible=False)
    captured.spines["right"].set_visible(True)


def draw_eigenvalues(axes: Axes, explained_variance: NDArray[np.float64]) -> None:
    """Draw the eigenvalues in decreasing order, on a log scale, omitting those that are not positive."""
    values = np.asarray(explained_variance, dtype=np.float64)
    order = np.arange(1, len(values) + 1)
    positive = values > 0
    dots = "o" if len(values) <= 40 else ""
    axes.semilogy(order[positive], values[positive], color=ACCENT, marker=dots, markersize=3.5, linewidth=1.4)
    axes.set(xlabel="component", ylabel="eigenvalue (log scale)")
    _tidy(axes)


def draw_captured(
    axes: Axes, explained_variance_ratio: NDArray[np.float64], levels: Sequence[float] = LEVELS
) -> list[int]:
    """Draw the share of the variance captured by the first components, and mark how many of them reach each level.

    Returns
    -------
    list of int
        The smallest number of components that reaches each level, omitting levels that all of them do not reach.
    """
    held = np.cumsum(np.asarray(explained_variance_ratio, dtype=np.float64))
    axes.plot(np.arange(len(held) + 1), 100 * np.append(0.0, held), color=ACCENT, linewidth=1.6)
    counts = [int(np.argmax(held >= level)) + 1 for level in levels if held.max(initial=0.0) >= level]
    if counts:
        axes.plot(counts, [100 * held[k - 1] for k in counts], "o", color=INK, markersize=3.5)
        found = [f"{k:,} hold {100 * level:g} %" for k, level in zip(counts, levels, strict=False)]
        axes.text(
            0.96, 0.08, "\n".join(found), transform=axes.transAxes, ha="right", va="bottom", color=INK, fontsize=9
        )
    axes.set(xlabel="components", ylabel="variance captured, %", ylim=(0, 105))
    _tidy(axes)
    return counts


def draw_scores(
    axes: Axes, scores: NDArray[Any], pair: tuple[int, int] = (0, 1), labels: NDArray[Any] | None = None
) -> None:
    """Draw rows by their scores on a pair of components, the first of the pair along the abscissa.

    Parameters
    ----------
    axes : matplotlib Axes
    scores : ndarray of shape (m, k)
    pair : (column, column) of scores; negative numbers count from the last
    labels : ndarray of shape (m,) or None
        Classes, each drawn in its own colour and named in a legend.
    """
    k, size = scores.shape[1], float(np.clip(6000 / max(1, len(scores)), 1.5, 14.0))
    kinds = [None] if labels is None else list(np.unique(labels))
    for index, kind in enumerate(kinds):
        rows = slice(None) if kind is None else labels == kind
        x, y = (scores[rows, column] for column in pair)
        colour = COLOURS[index % len(COLOURS)]
        axes.scatter(x, y, s=size, color=colour, alpha=0.65, linewidths=0, label="" if kind is None else str(kind))
    horizontal, vertical = (column % k + 1 for column in pair)
    axes.set(xlabel=f"score on component {horizontal:,}", ylabel=f"on component {vertical:,}")
    _tidy(axes)


def draw_errors(
    axes: Axes, curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], *, xlabel: str, ylabel: str
) -> None:
    """Draw errors against sizes, both on log scales: one line per name, or one point for a single size.

    Parameters
    ----------
    axes : matplotlib Axes
    curves : mapping of name -> (sizes, errors), of equal lengths
    xlabel, ylabel : str
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    markers = "os^Dv*PX<>"
    for index, (name, (sizes, errors)) in enumerate(curves.items()):
        colour, marker = COLOURS[index % len(COLOURS)], markers[index % len(markers)]
        axes.loglog(sizes, errors, color=colour, marker=marker, markersize=5, linewidth=1.4, label=name)
    ticks = _apart({int(size) for sizes, _ in curves.values() for size in sizes})
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(fontsize=9, frameon=False)
    _tidy(axes)


def _apart(sizes: set[int]) -> list[int]:
    """Remove sizes whose labels would touch the previous one on a log scale."""
    shown: list[int] = []
    for size in sorted(sizes):
        if not shown or size > 1.35 * shown[-1]:
            shown.append(size)
    return shown


def _tidy(axes: Axes) -> None:
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(which="both", colors=INK, labelsize=9)


def picture_of_portraits(portraits: Sequence[Portrait], *, title: str = "") -> Figure:
    """Draw one row per model: eigenvalues, variance captured, scores on axes 1 and 2, and on the first and last axis.

    These are the four columns of the tutorial's figures 1 and 3 (Marukatat 2022). Rows with 2 to 10 classes have a
    legend.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = len(portraits)
    figure = Figure(figsize=(15, 0.5 + 2.9 * rows), dpi=100, layout="constrained", facecolor="white")
    for line, portrait in zip(figure.subplots(rows, 4, squeeze=False), portraits, strict=True):
        draw_eigenvalues(line[0], portrait.explained_variance)
        draw_captured(line[1], portrait.explained_variance_ratio)
        for axes in line[:2]:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        draw_scores(line[2], portrait.scores, (0, 1), portrait.labels)
        draw_scores(line[3], portrait.scores, (0, -1), portrait.labels)
        line[0].set_title(portrait.name, color=INK, fontsize=11, loc="left")
        if portrait.labels is not None and 2 <= len(np.unique(portrait.labels)) <= len(COLOURS):
            legend = line[3].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)
            for handle in legend.legend_handles:
                handle.set_sizes([30.0])  # points of a dense plot are too small to show their colour
    if title:
        figure.suptitle(title, color=INK, fontsize=13)
    return figure


def picture_of_strips(strips: Mapping[str, NDArray[np.float64]], *, title: str = "") -> Figure:
    """Draw pictures of :func:`component_tiles` or :func:`image_tiles` below one another, equally wide and with names.

    Parameters
    ----------
    strips : mapping of name -> ndarray of shape (height, width, 3) with values in [0, 1]
    title : str

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    width = 12.0  # inches
    heights = [width * strip.shape[0] / strip.shape[1] for strip in strips.values()]
    size = (width + 0.3, sum(heights) + 0.35 * len(strips) + 0.5)
    figure = Figure(figsize=size, dpi=100, layout="constrained", facecolor="white")
    lines = figure.subplots(len(strips), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, strip) in zip(lines, strips.items(), strict=True):
        axes.imshow(strip, interpolation="nearest")
        axes.set_axis_off()
        axes.set_title(name, color=INK, fontsize=11, loc="left")
    if title:
        figure.suptitle(title, color=INK, fontsize=13)
    return figure


def picture_of_components(
    components: NDArray[Any],
    explained_variance_ratio: NDArray[np.float64],
    image_shape: tuple[int, ...],
    *,
    title: str = "",
    leading: int = 64,
) -> Figure:
    """Draw the leading components as image tiles with the scree curve beside them.

    Parameters
    ----------
    components : ndarray of shape (k, d)
    explained_variance_ratio : ndarray of shape (k,)
    image_shape : (height, width) or (height, width, 3)
    title : str
    leading : int
        How many components to show as tiles.

    Raises
    ------
    ValueError
        If ``image_shape`` does not fit d.
    ImportError
        If matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    tiles = component_tiles(components[:leading], image_shape)
    figure = Figure(figsize=(12.5, 6.4), dpi=120, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=(1.05, 1.0))
    left.imshow(tiles, interpolation="nearest")
    left.set_axis_off()
    left.set_title(f"leading {min(leading, len(components))} components, row by row", color=INK, fontsize=11)
    draw_scree(right, explained_variance_ratio)
    right.set_title("variance explained", color=INK, fontsize=11)
    if title:
        figure.suptitle(title, color=INK, fontsize=13)
    return figure


def save_picture(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG and return its path."""
    path = Path(path)
    figure.savefig(path, format="png")
    return path
