"""A number for each model of a grid of (r1, r2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigpca.plots.style import COLOURS, axes_of, percent, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_WRITTEN = 7  # values along a side up to which each cell has its number


def roweis_map(found: Any, errors: Any = None, *, ax: Axes | None = None) -> Axes:
    """Draw a grid of Roweis discriminant analyses: the errors on held-out rows, or how far they separate the classes.

    Parameters
    ----------
    found : bigpca.RoweisMap
    errors : array-like of shape (a, b), optional
        Shares of held-out rows classified wrongly, from ``found.errors(X, y)``; the smallest is framed. Without them,
        the share of the variance along component 1 that lies between the classes of the training rows is drawn, which
        needs no read; the largest is framed.
    ax : matplotlib Axes, optional
        By default those of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For errors of another shape than the grid.
    ImportError
        If matplotlib is not installed.
    """
    from matplotlib.patches import Rectangle

    shape = (len(found.r1), len(found.r2))
    values = separation(found) if errors is None else np.asarray(errors, dtype=np.float64)
    if values.shape != shape:
        raise ValueError(f"errors have shape {values.shape}, but the grid has {shape}. Pass found.errors(X, y).")
    ax = axes_of(ax, 6.0, 5.0)
    image = ax.imshow(100 * values.T, origin="lower", cmap="cividis", aspect="equal", interpolation="nearest")
    what = "variance along component 1 between classes" if errors is None else "held-out rows classified wrongly"
    ax.figure.colorbar(image, ax=ax, label=f"{what}, %")
    for axis, grid in ((ax.xaxis, found.r1), (ax.yaxis, found.r2)):
        shown = np.unique(np.linspace(0, len(grid) - 1, min(len(grid), MAX_WRITTEN)).round().astype(int))
        axis.set_ticks(shown, [f"{grid[i]:.2g}" for i in shown])
    ax.set(xlabel="r1", ylabel="r2")
    if max(shape) <= MAX_WRITTEN:
        middle = (np.nanmin(values) + np.nanmax(values)) / 2
        for (i, j), value in np.ndenumerate(values):
            ax.text(i, j, f"{100 * value:.3g}", ha="center", va="center", color="black" if value > middle else "white")
    best = np.unravel_index(int(np.nanargmax(values) if errors is None else np.nanargmin(values)), shape)
    ax.add_patch(
        Rectangle((best[0] - 0.5, best[1] - 0.5), 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=2.5, zorder=3)
    )
    at = f"at r1 = {found.r1[best[0]]:.3g}, r2 = {found.r2[best[1]]:.3g}"
    if errors is None:
        title = f"Variance between classes: {percent(values[best])} {at}"
    else:
        title = f"Least error {percent(values[best])} {at}"
    tidy(ax, title)
    ax.grid(visible=False)
    return ax


def separation(found: Any) -> NDArray[np.float64]:
    """Return the share of the variance along component 1 that lies between the classes, for each model (a, b)."""
    statistics = found.statistics
    within = statistics.within

    def share(axes: Any) -> float:
        direction = axes.components[0]
        between = float(((statistics.between @ direction) ** 2).sum())
        total = between + float(direction @ within @ direction)
        return between / total if total > 0 else 0.0

    return np.array([[share(axes) for axes in line] for line in found.axes])
