"""Eigenvalues, their shares of the variance, and their bounds; how groups of rows differ over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bigpca.arrays import Vector
from bigpca.errors import an, counted, listed
from bigpca.plots.data import (
    captured,
    eigenvalues,
    fitted,
    is_array,
    kind_of_values,
    name_of,
    shares_or_none,
    vector,
    whole_of,
)
from bigpca.plots.style import (
    ACCENT,
    COLOURS,
    INK,
    MARKERS,
    axes_of,
    legend,
    log_ticks,
    percent,
    short_names,
    tidy,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LEVELS = (0.90, 0.95, 0.99)  # of the variance
MAX_LETTERS = 48  # of the names at the abscissa
MAX_BARS = 60  # components with a bar or a marker each; more are drawn as a line
LIMIT = 3.0  # robust standard deviations beyond which a group is unlike the others
NAMED = 3  # groups in a title
ROUNDED = 1e-9  # of the largest, above which a negative eigenvalue is no rounding
BARS: dict[str, Any] = {
    "fmt": "o",
    "markersize": 3.5,
    "color": ACCENT,
    "ecolor": INK,
    "elinewidth": 1.2,
    "capsize": 3,
}


def scree(model: Any, *, ax: Axes | None = None, levels: Sequence[float] = LEVELS) -> Axes:
    """Draw the share of the variance of each component, the cumulative share, and where it reaches given levels.

    The eigenvalues of other models are drawn on a log scale: those of the criterion of a supervised model, the
    correlations of CCA, the covariances of PLSSVD, R^2 of each target of Ridge.

    Parameters
    ----------
    model : fitted model, or array-like of shape (k,)
        A model with ``explained_variance_ratio_`` or eigenvalues, or shares.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.
    levels : sequence of float in (0, 1], default (0.9, 0.95, 0.99)
        Shares to mark; the legend lists those that the components do not reach.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For a model without eigenvalues.
    ImportError
        If matplotlib is not installed.
    """
    ratio = vector(model, "shares of the variance") if is_array(model) else shares_or_none(model)
    if ratio is None:
        return _values(model, ax)
    ax = axes_of(ax)
    order, so_far = np.arange(len(ratio)), np.cumsum(ratio)
    if len(ratio) <= MAX_BARS:
        handles: list[Any] = [ax.bar(order, 100 * ratio, width=0.7, color=ACCENT)]
    else:
        handles = [ax.fill_between(order, 100 * ratio, color=ACCENT, linewidth=0)]
    handles += ax.plot(order, 100 * so_far, color=INK, linewidth=1.4, marker="." if len(ratio) == 1 else "")
    names = ["each component", "so far"]
    for level, marker in zip(levels, MARKERS * len(levels), strict=False):
        count = reaching(ratio, level)
        if count is None:
            handles += ax.plot([], [], marker="", linestyle="")
            names.append(f"{percent(level)}: not reached")
        else:
            handles += ax.plot([count - 1], [100 * so_far[count - 1]], marker, color=COLOURS[1], markersize=6, zorder=3)
            names.append(f"{percent(level)}: {counted(count, 'component')}")
    ax.set(xlabel="component", ylabel=f"share of {whole_of(model)}, %", xlim=(-0.7, len(ratio) - 0.3))
    ax.set_ylim(0)
    whole_numbers(ax)
    legend(ax, handles, names)
    held = f"{percent(float(so_far[-1]))} of {whole_of(model)}" if is_array(model) else captured(model)
    title = f"{counted(len(ratio), 'component')}: {held}"
    return tidy(ax, f"{name_of(model)}, {title}" if name_of(model) else title)


def reaching(ratio: Vector, level: float) -> int | None:
    """Return the smallest number of components that capture a share of the variance, or None if all do not.

    >>> reaching(np.array([0.6, 0.3, 0.05]), 0.9), reaching(np.array([0.6, 0.3, 0.05]), 0.99)
    (2, None)
    """
    held = np.flatnonzero(np.cumsum(ratio) >= level - 1e-12)  # sums of shares are rounded
    return int(held[0]) + 1 if len(held) else None


def _values(model: Any, ax: Axes | None) -> Axes:
    """Draw the eigenvalues of a model that has no shares of a variance: on a log scale, if none is negative.

    Zeros, and what rounding makes of them, have no logarithm and are left out.
    """
    found, kind, ax = eigenvalues(model), kind_of_values(model), axes_of(ax)
    signed = bool((found < -ROUNDED * np.abs(found).max(initial=0.0)).any())
    order, shown = np.arange(len(found)), (found > 0) | signed
    dots = MARKERS[0] if len(found) <= MAX_BARS else ""
    draw = ax.plot if signed else ax.semilogy
    draw(order[shown], found[shown], color=ACCENT, marker=dots, markersize=4, linewidth=1.4)
    of_targets = kind == "R^2"
    ax.set(xlabel="target" if of_targets else "component", ylabel=kind if signed else f"{kind} (log scale)")
    if not signed:
        log_ticks(ax)
    whole_numbers(ax)
    return tidy(ax, f"{name_of(model)}, {'R^2 of each target' if of_targets else counted(len(found), kind)}")


def bounds(model: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the eigenvalues of an approximate model with their certified bounds, on a log scale.

    The bounds are not symmetric. The title gives the width of the widest bound relative to its eigenvalue, and the
    probability that all bounds hold.

    Parameters
    ----------
    model : fitted model with ``eigenvalue_bounds_``
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For a model without bounds: an exact one, or one that certifies nothing.
    ImportError
        If matplotlib is not installed.
    """
    if is_array(model) or not hasattr(fitted(model), "eigenvalue_bounds_"):
        raise ValueError(
            f"{'an array' if is_array(model) else 'a ' + name_of(model)} has no eigenvalue_bounds_: only "
            f"approximate models have bounds; an exact answer needs none, and rotated components are not bounded. Draw "
            "scree(model)."
        )
    inner = fitted(model)
    values, (low, high) = eigenvalues(model), np.asarray(inner.eigenvalue_bounds_, dtype=np.float64).T
    ax = axes_of(ax)
    order, positive = np.arange(len(values)), values > 0
    if not positive.any():
        raise ValueError(
            f"none of the {len(values)} eigenvalues is positive, but a log scale shows only positive numbers. "
            "Look at model.eigenvalue_bounds_."
        )
    least = np.concatenate([values[positive], low[low > 0]]).min()
    floor = least / 3 if (low[positive] <= 0).any() else 0.8 * least  # bars of lower bounds of 0 end at the lower edge
    below = np.clip(values - np.maximum(low, floor), 0, None)[positive]
    above = np.clip(high - values, 0, None)[positive]
    ax.errorbar(order[positive], values[positive], yerr=[below, above], **BARS)
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor)
    log_ticks(ax)
    ax.set(xlabel="component", ylabel="eigenvalue and bounds (log scale)")
    whole_numbers(ax)
    confidence = float(inner.bounds_confidence_)
    hold = "always hold" if confidence == 1 else f"hold with probability {confidence:.6g}"
    return tidy(ax, f"{name_of(model)}, widest bounds {percent(relative_width(values, low, high))}; {hold}")


def drift(result: Any, *, ax: Axes | None = None) -> Axes:
    """Draw how unlike the others each group of rows is, in the order of the groups: a control chart, if they are days.

    T2, SPE and the share of variance that is lost are drawn as distances from their medians over the groups, in robust
    standard deviations, so that they have one limit: 3. The title names those that are the furthest above it.

    Parameters
    ----------
    result : Drift
        From :func:`bigpca.quality.drift`. Infinite distances, which groups have where more than half of the others are
        equal, are drawn above all others.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        For anything but a result of that function.
    ImportError
        If matplotlib is not installed.
    """
    if not hasattr(result, "z"):
        raise TypeError(f"result is {an(type(result).__name__)}. Pass what bigpca.quality.drift(model) returns.")
    ax = axes_of(ax)
    z, names = np.asarray(result.z), short_names(result.groups)
    top = 2 * max(LIMIT, float(np.abs(z[np.isfinite(z)]).max(initial=0.0)))
    shown = np.nan_to_num(z, posinf=top, neginf=-top)
    handles: list[Any] = []
    for column, colour, marker in zip(shown.T, COLOURS, MARKERS, strict=False):
        handles += ax.plot(column, color=colour, marker=marker, markersize=4, linewidth=1)
    handles.append(ax.axhline(LIMIT, color=INK, linewidth=1, linestyle="--"))
    ax.set(xlabel="group", ylabel="robust deviations")
    whole_numbers(ax, most=max(1, MAX_LETTERS // max(map(len, names))))
    ax.xaxis.set_major_formatter(lambda place, _: names[int(place)] if 0 <= place < len(names) else "")
    legend(ax, handles, ["T2", "SPE", "lost", "limit"])
    worst = z.max(axis=1)
    beyond = [names[i] for i in np.argsort(-worst, kind="stable") if worst[i] > LIMIT]
    title = f"{len(beyond)} of {counted(len(names), 'group')} beyond the limit"
    return tidy(ax, f"{title}: {listed(beyond, NAMED)}" if beyond else title)


def relative_width(values: Vector, low: Vector, high: Vector) -> float:
    """Return the largest width of bounds relative to their eigenvalue; infinite where none is positive.

    >>> relative_width(np.array([4.0, 2.0]), np.array([3.9, 1.0]), np.array([4.2, 2.5]))
    0.75
    """
    positive = values > 0
    widths = (high - low)[positive] / values[positive]
    return float(widths.max()) if positive.all() and len(widths) else float("inf")
