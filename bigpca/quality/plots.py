"""Pictures of a fitted model: components as image tiles, and the scree curve. Needs matplotlib (``bigpca[plot]``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, QUIET = "#1f2430", "#0b6e99", "#8a8f98"


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
    k, d = components.shape
    if int(np.prod(image_shape)) != d or len(image_shape) not in (2, 3) or image_shape[2:] not in ((), (3,)):
        raise ValueError(
            f"image_shape = {image_shape} holds {int(np.prod(image_shape))} values, but components of {d} features as "
            "(height, width) or (height, width, 3) were expected. Give the shape of one image."
        )
    height, width = image_shape[:2]
    rows = -(-k // columns)
    picture = np.ones((rows * (height + gap) - gap, columns * (width + gap) - gap, 3))
    for index, component in enumerate(np.asarray(components, dtype=np.float64)):
        peak = np.abs(component).max()
        tile = 0.5 + 0.5 * (component / peak if peak > 0 else component)
        top, left = (index // columns) * (height + gap), (index % columns) * (width + gap)
        channels = tile.reshape(height, width, -1)
        picture[top : top + height, left : left + width] = np.broadcast_to(channels, (height, width, 3))
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
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    for side in (axes, captured):
        side.spines["top"].set_visible(False)
        side.tick_params(colors=INK, labelsize=9)


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
