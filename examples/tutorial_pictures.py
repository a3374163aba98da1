"""The pictures of the 03_*, 04_* and 05_* examples: portraits of models, strips of images, errors by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import bigpca as bp
from bigpca.plots.spectra import reaching
from bigpca.plots.style import ACCENT, COLOURS, INK, MARKERS, legend, log_ticks, plain_figure, tidy, whole_numbers


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
    explained_variance: np.ndarray
    explained_variance_ratio: np.ndarray
    scores: np.ndarray
    labels: np.ndarray | None = None


def picture_of_portraits(portraits: Sequence[Portrait], *, title: str = "") -> Figure:
    """Draw one row per model: eigenvalues, variance captured, scores on axes 1 and 2, and on the first and last axis.

    These are the four columns of the tutorial's figures 1 and 3 (Marukatat 2022). Classes are named once a row.
    """
    rows = len(portraits)
    figure = plain_figure(15, 0.5 + 2.9 * rows)
    for line, portrait in zip(figure.subplots(rows, 4, squeeze=False), portraits, strict=True):
        last = max(2, portrait.scores.shape[1])
        line[0].semilogy(portrait.explained_variance, marker=".")
        captured(portrait.explained_variance_ratio, line[1])
        for ax, pair in zip(line[2:], ((0, 1), (0, last - 1)), strict=True):
            bp.plots.scores(portrait.scores, labels=portrait.labels, components=pair, ax=ax)
        for ax, name in zip(line, (portrait.name, "variance captured", "scores", "scores"), strict=True):
            tidy(ax, name)
        if (repeated := line[2].get_legend()) is not None:
            repeated.remove()
    if title:
        figure.suptitle(title, color=INK, fontsize=13)
    return figure


def captured(ratio: np.ndarray, ax: Axes) -> None:
    """Draw the share of the variance that the first components capture, and mark how many of them reach each level."""
    held = np.append(0.0, np.cumsum(ratio))
    ax.plot(np.arange(len(held)), 100 * held, color=ACCENT, linewidth=1.6)
    counts = {level: count for level in (0.9, 0.95, 0.99) if (count := reaching(ratio, level)) is not None}
    if counts:
        ax.plot([*counts.values()], [100 * held[k] for k in counts.values()], "o", color=INK, markersize=3.5)
        found = "\n".join(f"{k:,} hold {100 * level:g} %" for level, k in counts.items())
        ax.text(0.96, 0.08, found, transform=ax.transAxes, ha="right", va="bottom", color=INK, fontsize=9)
    ax.set(xlabel="components", ylabel="variance captured, %", ylim=(0, 105))
    whole_numbers(ax)


def picture_of_strips(strips: Mapping[str, np.ndarray], *, title: str) -> Figure:
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
