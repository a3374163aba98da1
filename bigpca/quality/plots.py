"""Pictures of fitted models: components as images, spectra, scores, errors. Needs matplotlib (``bigpca[plot]``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, QUIET, GRID = "#1f2430", "#0b6e99", "#8a8f98", "#e6e8eb"
# Okabe & Ito (2008), told apart by most colour-blind eyes; with four more; more than ten kinds go round again.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", INK, "#b5cf6b", QUIET)
LEVELS = (0.90, 0.95, 0.99)  # of the variance, as in the tutorial's table 2


@dataclass(frozen=True)
class Portrait:
    """What :func:`picture_of_portraits` draws of one fitted model.

    Attributes
    ----------
    name : str
    explained_variance, explained_variance_ratio : ndarray of shape (k,)
    scores : ndarray of shape (m, k)
        Of all rows or of some.
    labels : ndarray of shape (m,) or None
        What kind each of these rows is.
    """

    name: str
    explained_variance: NDArray[np.float64]
    explained_variance_ratio: NDArray[np.float64]
    scores: NDArray[Any]
    labels: NDArray[Any] | None = None


def component_tiles(
    components: NDArray[Any], image_shape: tuple[int, ...], columns: int = 8, gap: int = 2
) -> NDArray[np.float64]:
    """Lay components out as one picture of image tiles, row by row.

    Each tile is scaled by its own largest magnitude, so that 0 is mid-grey: ``0.5 + 0.5 c / max |c|``.

    Parameters
    ----------
    components : ndarray of shape (k, d)
    image_shape : (height, width) or (height, width, 3), whose product is d
    columns : int
        Tiles per row.
    gap : int
        White pixels between tiles.

    Returns
    -------
    ndarray of shape (rows * (height + gap) - gap, columns * (width + gap) - gap, 3), float64 in [0, 1]

    Raises
    ------
    ValueError
        If ``image_shape`` does not hold d values, or is neither grey nor RGB.

    Examples
    --------
    >>> component_tiles(np.eye(4), (2, 2), columns=2, gap=1).shape
    (5, 5, 3)
    """
    values = np.asarray(components, dtype=np.float64)
    peaks = np.abs(values).max(axis=1, keepdims=True)
    return _lay_out(0.5 + 0.5 * values / np.where(peaks > 0, peaks, 1.0), image_shape, columns, gap)


def image_tiles(
    images: NDArray[Any],
    image_shape: tuple[int, ...],
    columns: int = 8,
    gap: int = 2,
    *,
    limits: tuple[float, float] = (0.0, 255.0),
) -> NDArray[np.float64]:
    """Lay images out as one picture of tiles, row by row, all on the same scale.

    Each value becomes ``(value - limits[0]) / (limits[1] - limits[0])``, cut to [0, 1]; limits from
    high to low give the negative.

    Parameters
    ----------
    images : ndarray of shape (m, d)
    image_shape, columns, gap : as for :func:`component_tiles`
    limits : (black, white)

    Returns
    -------
    ndarray of shape (rows * (height + gap) - gap, columns * (width + gap) - gap, 3), float64 in [0, 1]

    Raises
    ------
    ValueError
        If ``image_shape`` does not fit d, or black equals white.

    Examples
    --------
    >>> image_tiles(np.array([[0, 51]]), (1, 2), columns=1)[0, :, 0].tolist()
    [0.0, 0.2]
    """
    black, white = limits
    if black == white:
        raise ValueError(
            f"limits = {limits} are equal, but the values of black and white were expected. Give for example (0, 1)."
        )
    values = (np.asarray(images, dtype=np.float64) - black) / (white - black)
    return _lay_out(values.clip(0, 1), image_shape, columns, gap)


def _lay_out(tiles: NDArray[np.float64], image_shape: tuple[int, ...], columns: int, gap: int) -> NDArray[np.float64]:
    """Put tiles (m, d) with values in [0, 1] on white."""
    m, d = tiles.shape
    if int(np.prod(image_shape)) != d or len(image_shape) not in (2, 3) or image_shape[2:] not in ((), (3,)):
        raise ValueError(
            f"image_shape = {image_shape} holds {int(np.prod(image_shape))} values, but components of {d} features as "
            "(height, width) or (height, width, 3) were expected. Give the shape of one image."
        )
    height, width = image_shape[:2]
    rows = -(-m // columns)
    picture = np.ones((rows * (height + gap) - gap, columns * (width + gap) - gap, 3))
    for index, tile in enumerate(tiles):
        top, left = (index // columns) * (height + gap), (index % columns) * (width + gap)
        picture[top : top + height, left : left + width] = tile.reshape(height, width, -1)  # grey fills all three
    return picture


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
    """Draw the eigenvalues in decreasing order, on a log scale; those that are not positive are left out."""
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
    """Draw the share of the variance that the first components hold, and mark how many of them hold each level.

    Returns
    -------
    list of int
        The least k whose components hold each level; levels that all of them do not hold are left out.
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
        A colour for each kind, with its name for a legend.
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
    """Draw errors against sizes, both on log scales, one line for each name, or one point where there is one size.

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
    """Leave out sizes whose labels would touch the one before, on a log scale."""
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
    """Draw one row for each model: eigenvalues, variance captured, scores on the first
    two axes, on the first and the last.

    The four columns of the tutorial's figures 1 and 3 (Marukatat 2022). A legend stands beside rows of 2 to 10 kinds.

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
                handle.set_sizes([30.0])  # points of a dense plot are too small to tell their colour
    if title:
        figure.suptitle(title, color=INK, fontsize=13)
    return figure


def picture_of_strips(strips: Mapping[str, NDArray[np.float64]], *, title: str = "") -> Figure:
    """Draw pictures of :func:`component_tiles` or :func:`image_tiles` one above the other, all as
    wide, each with its name.

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
