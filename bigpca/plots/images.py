"""Matrices as pictures: components, weights of features, scores of pixels, tiles of images, grids of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Matrix, unmasked
from bigpca.data.containers import is_hdf5_dataset, is_zarr_array
from bigpca.data.label_files import whole
from bigpca.plots.data import Weights, chosen, component_names, grid_of, name_of, shares_or_none, weights
from bigpca.plots.style import (
    ABSENT,
    ACCENT,
    COLOURS,
    INK,
    axes_of,
    main_of,
    percent,
    percents,
    require_matplotlib,
    short_names,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def component_tiles(
    components: NDArray[Any], image_shape: tuple[int, ...], columns: int = 8, gap: int = 2
) -> NDArray[np.float64]:
    """Arrange components as one picture of image tiles, row by row.

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
        If the product of ``image_shape`` is not d, or it is neither grey nor RGB.

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
    """Arrange images as one picture of tiles, row by row, all on the same scale.

    Each value becomes ``(value - limits[0]) / (limits[1] - limits[0])``, clipped to [0, 1]; descending limits give the
    negative.

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
            f"limits = {limits} are equal; the values of black and white must differ. Give for example (0, 1)."
        )
    values = (np.asarray(images, dtype=np.float64) - black) / (white - black)
    return _lay_out(values.clip(0, 1), image_shape, columns, gap)


def _lay_out(tiles: NDArray[np.float64], image_shape: tuple[int, ...], columns: int, gap: int) -> NDArray[np.float64]:
    """Place tiles (m, d) with values in [0, 1] on a white background."""
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
        picture[top : top + height, left : left + width] = tile.reshape(
            height, width, -1
        )  # grey is broadcast to all three channels
    return picture


COLUMNS = 4  # pictures in a line; of more than 16, twice as many
TOP_FEATURES = 4  # of each component, where components are not pictures
RANGE = (2.0, 98.0)  # percentiles of scores that are the ends of a colour
MAX_CELLS = 10  # columns in which weights are written as numbers


def components(
    model: Any,
    image_shape: tuple[int, ...] | None = None,
    *,
    n: int = 12,
    feature_names: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the leading components: as pictures or maps where features are pixels, else as weights of main features.

    In a picture 0 is mid-grey, and the largest magnitude of each component is black or white. A model that was fitted
    to a labelled array with two dimensions of features, such as latitude and longitude, has maps (EOFs): 0 is white,
    the largest magnitudes are orange and violet, and places without values, such as land, are grey. Of CCA and PLSSVD
    the weights of X are drawn.

    Parameters
    ----------
    model : fitted linear model, or array-like of shape (k, d)
    image_shape : (height, width) or (height, width, 3), optional
        Of one row. Without it and without a grid, the weights of the features that are among the four largest of a
        component are drawn.
    n : int, default 12
        Number of components, at most.
    feature_names : array-like of shape (d,), optional
        By default the names that the model was fitted with, or "feature 0" and so on.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For models whose components are not weights of features (kernels, sketches), and an image shape of another size.
    ImportError
        If matplotlib is not installed.
    """
    found = weights(model, feature_names)
    ratio = shares_or_none(model)
    k = min(n, len(found.components))
    names = known = component_names(model, len(found.components))[:k]
    if ratio is not None:
        names = [f"{name} ({share})" for name, share in zip(names, percents(ratio[:k].tolist()), strict=True)]
    leading = f"{name_of(model) or 'Components'}, {known[0] if k == 1 else f'{known[0]} to {known[-1]}'}"
    grid = grid_of(model) if image_shape is None and feature_names is None else None
    if grid is not None and len(grid.dims) == 2 and grid.n_columns == found.components.shape[1] and min(grid.sizes) > 1:
        pictures, (height, width), where = _on_grid(grid, found.components[:k])
        leading += f": {where}"
    elif image_shape is None:
        return _heat_map(
            ax, Weights(found.components[:k], found.names), names, f"{name_of(model) or 'Components'}: weights"
        )
    else:
        height, width = image_shape[:2]
        pictures = [component_tiles(one[None], tuple(image_shape), columns=1) for one in found.components[:k]]
    columns = min(k, COLUMNS if k <= 16 else 2 * COLUMNS)
    lines = -(-k // columns)
    across, down = 1.08 * width, 1.08 * height + 0.16 * width  # from one picture to the next, with room for a name
    ax = axes_of(ax, max(3.2, 1.6 * columns), 0.5 + 1.6 * lines * down / across)
    for i, (name, picture) in enumerate(zip(names, pictures, strict=True)):
        left, top = (i % columns) * across, (i // columns) * down
        ax.imshow(picture, extent=(left, left + width, top + height, top), interpolation="nearest")
        ax.text(left, top - 0.02 * width, name, ha="left", va="bottom", color=INK, fontsize=8)
    ax.set(xlim=(0, columns * across), ylim=(lines * down - 0.16 * width, -0.16 * width))
    ax.set_axis_off()
    return tidy(ax, leading)


def _on_grid(grid: Any, components: Matrix) -> tuple[list[Any], tuple[float, float], str]:
    """Return components as coloured maps, the height and width of one in units of its x-axis, and its axes in words.

    The first dimension goes up and the second to the right, with their coordinates ascending.
    """
    from matplotlib import colormaps

    values = np.asarray(grid.spread(components), np.float64).reshape(-1, *grid.sizes)
    steps, named = [], []
    for axis, (dim, size) in enumerate(zip(grid.dims, grid.sizes, strict=True)):
        at = grid.coords[dim].values if dim in grid.coords else np.arange(size)
        numbers = at.dtype.kind in "iuf"
        if numbers and at[0] > at[-1]:
            values, at = np.flip(values, axis + 1), at[::-1]
        steps.append(float(abs(at[-1] - at[0])) / (size - 1) if numbers else 1.0)
        named.append(f"{dim} {at[0]:g} to {at[-1]:g}" if numbers else str(dim))
    values = values[:, ::-1]  # rows of a picture go down
    peaks = np.nanmax(np.abs(values), axis=(1, 2), keepdims=True)
    shades = colormaps["PuOr"].with_extremes(bad=ABSENT)(
        np.ma.masked_invalid(0.5 + 0.5 * values / np.where(peaks, peaks, 1))
    )
    ratio = float(np.clip(steps[0] / steps[1] if min(steps) > 0 else 1.0, 0.2, 5.0))
    where = f"{named[0]} upwards, {named[1]} to the right"
    where += "" if grid.kept is None else "; grey has no values"
    return list(shades), (ratio * grid.sizes[0], float(grid.sizes[1])), where


def top_features(
    model: Any, component: int | str = 0, n: int = 10, *, feature_names: Any = None, ax: Axes | None = None
) -> Axes:
    """Draw the largest weights of features in a component as bars, the largest first: its loadings.

    The numbers are those of ``model.top_features``, the entries of ``components_``, with their signs.

    Parameters
    ----------
    model : fitted linear model, or array-like of shape (k, d)
    component : int or str, default 0
        By number from 0 or by name.
    n : int, default 10
        Number of features, at most.
    feature_names : array-like of shape (d,), optional
        By default the names that the model was fitted with, or "feature 0" and so on.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For models whose components are not weights of features (kernels, sketches), and for a component that does not
        exist.
    ImportError
        If matplotlib is not installed.
    """
    found = weights(model, feature_names)
    names = component_names(model, len(found.components))
    (column,) = chosen(component, names, (1,))
    (largest,) = largest_weights(found.components[[column]], n)
    values = found.components[column, largest]
    ax = axes_of(ax, 6.0, 1.2 + 0.24 * len(largest))
    ax.barh(
        np.arange(len(largest)), values, height=0.7, color=[ACCENT if value > 0 else COLOURS[1] for value in values]
    )
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_yticks(range(len(largest)), short_names(found.names[largest].tolist()), parse_math=False)
    ax.invert_yaxis()
    ratio = shares_or_none(model)
    ax.set_xlabel(f"weight in {names[column]}" + ("" if ratio is None else f" ({percent(ratio[column])})"))
    return tidy(ax, f"{name_of(model) or 'Components'}, {main_of(len(largest), len(found.names))}", grid="x")


def maps(scores: Any, components: tuple[int, ...] = (0, 1, 2), *, n: int = 12, ax: Axes | None = None) -> Axes:
    """Draw maps of scores as pictures, with three components as red, green and blue, or one as grey.

    Each component is scaled by its 2nd and 98th percentile over all drawn maps, so that equal colours are equal scores.

    Parameters
    ----------
    scores : array of shape (m, h, w, k), in memory or lazy
        From :func:`bigpca.data.as_maps`. The first n maps are read.
    components : (int, int, int) or (int,), default (0, 1, 2)
        Their numbers, counted from 0.
    n : int, default 12
        Number of maps, at most.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For other shapes, and components that do not exist.
    ImportError
        If matplotlib is not installed.
    """
    given = getattr(scores, "shape", ())
    if len(given) != 4:
        raise ValueError(f"maps have shape {given}; (m, h, w, k) was expected. Pass bp.data.as_maps(scores, (h, w)).")
    total, height, width, k = map(int, given)
    shown = chosen(components, component_names(scores, k), (1, 3))
    drawn = min(n, total)
    taken = scores if is_zarr_array(scores) or is_hdf5_dataset(scores) else scores[:drawn]
    values = unmasked(whole(taken, "scores", "value", "An array of maps"))[:drawn]
    values = values.astype(np.float64)[..., shown].reshape(-1, len(shown))
    known = values[np.isfinite(values).all(axis=1)]
    low, high = np.percentile(known, RANGE, axis=0) if len(known) else np.zeros((2, len(shown)))
    shades = np.nan_to_num((values - low) / np.where(high > low, high - low, 1.0), nan=1.0)
    columns = min(drawn, COLUMNS if drawn <= 16 else 2 * COLUMNS)
    shape = (height, width, 3) if len(shown) == 3 else (height, width)
    picture = image_tiles(shades.reshape(drawn, -1), shape, columns=columns, limits=(0.0, 1.0))
    ax = axes_of(ax, max(3.2, 1.6 * columns), 0.5 + 1.6 * columns * picture.shape[0] / picture.shape[1])
    ax.imshow(picture, interpolation="nearest")
    names = ", ".join(str(column) for column in shown)
    how = f"components {names} as red, green, blue" if len(shown) == 3 else f"component {names}"
    ax.set_axis_off()
    return tidy(ax, f"{drawn:,} of {total:,} maps, {how}")


def extremes(ends: Any, images: Any, *, n: int = 6, ax: Axes | None = None) -> Axes:
    """Draw the images at both ends of each component: those of the lowest scores at the left, the highest at the right.

    Parameters
    ----------
    ends : Ends
        From :func:`bigpca.quality.extremes`.
    images : array of shape (m, height, width) or (m, height, width, 3), in memory or lazy, or callable
        Of all rows; only those that are drawn are read. Or a function from row numbers (b,) to their images. Values are
        integers up to 255; otherwise grey levels run from the smallest to the largest value drawn.
    n : int, default 6
        Number of components, at most.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For images of another shape, and for rows without an image.
    ImportError
        If matplotlib is not installed.
    """
    require_matplotlib()  # before pictures are read
    count, at_an_end = min(n, len(ends.lowest)), ends.lowest.shape[1]
    lines = np.concatenate([ends.lowest[:count], ends.highest[:count, ::-1]], axis=1)
    rows, places = np.unique(lines, return_inverse=True)
    if not callable(images) and not hasattr(images, "shape"):
        raise TypeError(
            f"images is a {type(images).__name__}; an array (m, height, width), or a function from row numbers to "
            "images, was expected. Pass np.asarray(images), or bp.open(path)."
        )
    if not callable(images) and len(rows) and rows[-1] >= images.shape[0]:
        raise ValueError(
            f"there are {images.shape[0]:,} images, but row {rows[-1]:,} is at an end. Give those of all rows."
        )
    found = np.asarray(images(rows) if callable(images) else images[rows])
    if found.ndim not in (3, 4) or len(found) != len(rows):
        raise ValueError(
            f"the images of {len(rows)} rows have shape {found.shape}; ({len(rows)}, height, width) or (..., 3) was "
            "expected."
        )
    low, high = (0.0, 255.0) if found.dtype == np.uint8 else (float(np.nanmin(found)), float(np.nanmax(found)))
    limits = (low, high if high > low else low + 1.0)
    height, width = found.shape[1:3]
    down, across = 1.08 * height + 0.22 * width, 1.04 * width
    half = at_an_end * across + 0.3 * width  # the right half begins here
    ax = axes_of(ax, 1.1 * 2 * at_an_end + 0.4, 0.6 + 1.1 * count * down / across)
    for i, line in enumerate(places.reshape(lines.shape)):
        for j, place in enumerate(line):
            left = j * across if j < at_an_end else half + (j - at_an_end) * across
            picture = image_tiles(found[place : place + 1].reshape(1, -1), found.shape[1:], columns=1, limits=limits)
            ax.imshow(picture, extent=(left, left + width, i * down + height, i * down), interpolation="nearest")
        for left, name in ((0.0, f"{ends.names[i] if ends.names else i}: lowest"), (half, "highest")):
            ax.text(left, i * down - 0.03 * width, name, ha="left", va="bottom", color=INK, fontsize=8)
    ax.set(xlim=(0, half + at_an_end * across), ylim=(count * down - 0.22 * width, -0.22 * width))
    ax.set_axis_off()
    return tidy(ax, "Rows at both ends of each component")


def largest_weights(components: Any, top: int) -> np.ndarray[Any, Any]:
    """Return the features with the largest absolute weights of each component, (k, top), the largest first."""
    return np.argsort(-np.abs(np.asarray(components)), axis=1, kind="stable")[:, :top]


def _heat_map(ax: Axes | None, found: Weights, names: list[str], title: str) -> Axes:
    """Draw the weights (components by features) of features that are among the largest of some component."""
    leading = largest_weights(found.components, TOP_FEATURES)
    features = list(dict.fromkeys(leading.ravel().tolist()))[: 3 * MAX_CELLS]
    values = found.components[:, features].T
    ax = axes_of(ax, 1.8 + 0.6 * max(4, len(names)), 1.4 + 0.22 * len(features))
    peak = float(np.abs(values).max(initial=0.0)) or 1.0
    image = ax.imshow(values, cmap="PuOr", vmin=-peak, vmax=peak, aspect="auto", interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, label="weight")
    ax.set_yticks(range(len(features)), short_names(found.names[features].tolist()), parse_math=False)
    turned: dict[str, Any] = {} if len(names) <= 4 else {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(names)), names, **turned)
    ax.set_xlabel("component")
    return tidy(ax, title, grid="")


MAX_WRITTEN = 7  # values along a side up to which each cell has its number


def roweis_map(found: Any, errors: Any = None, *, ax: Axes | None = None) -> Axes:
    """Draw a grid of Roweis discriminant analyses: the errors on held-out rows, or how far they separate the classes.

    Parameters
    ----------
    found : RoweisMap
        From :func:`bigpca.roweis_map`.
    errors : array-like of shape (a, b), optional
        Shares of held-out rows classified wrongly, from ``found.errors(X, y)``; a frame marks the smallest. Without
        them, the figure shows the share of the variance along component 0 that is between the classes of the training
        rows, without a read; a frame marks the largest.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure.

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
    what = "variance along component 0 between classes" if errors is None else "held-out rows classified wrongly"
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
    what = "Variance between classes:" if errors is None else "Least error"
    return tidy(ax, f"{what} {percent(values[best])} {at}", grid="")


MIN_NAMED, MIN_WRITTEN = 0.17, 0.42  # inches of a cell beside which a name, and in which a number, has room


def layers(found: Any, *, ax: Axes | None = None) -> Axes:
    """Draw how similar every two layers are as a heat map, with the numbers where there is room for them.

    Parameters
    ----------
    found : LayerComparison
        From :func:`bigpca.compare_layers`.
    ax : matplotlib Axes, optional
        By default, the axes of a new figure, whose size depends on the number of layers.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    values = np.asarray(found.values, dtype=np.float64)
    sides = [short_names(found.columns), short_names(found.rows)]
    cell = 0.55 if max(values.shape) <= 12 else 0.22
    names = [0.4 + 0.075 * max(map(len, side)) for side in sides]  # inches that they take
    ax = axes_of(ax, max(4.0, 1.2 + names[1] + cell * values.shape[1]), 0.6 + names[0] + cell * values.shape[0])
    low = min(0.0, float(np.nanmin(values)))
    image = ax.imshow(values, cmap="cividis", vmin=low, vmax=1.0, aspect="auto", interpolation="nearest")
    cells = []
    for axis, side, size in ((ax.xaxis, sides[0], ax.bbox.width), (ax.yaxis, sides[1], ax.bbox.height)):
        room = size / ax.figure.dpi / 0.77 - names[axis is ax.xaxis] - 0.9  # of axes and what is around them
        cells.append(max(0.8, room) / len(side))
        shown = range(0, len(side), int(np.ceil(MIN_NAMED / cells[-1])))
        axis.set_ticks(shown, [side[i] for i in shown], parse_math=False)
    ax.tick_params(axis="x", rotation=90)
    for (i, j), value in np.ndenumerate(values) if min(cells) >= MIN_WRITTEN else ():
        shade = "black" if value > (1 + low) / 2 else "white"
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=shade, fontsize=8)
    ax.figure.colorbar(image, ax=ax, label=found.metric.upper())
    many = " x ".join(str(size) for size in dict.fromkeys(values.shape))
    return tidy(ax, f"{found.metric.upper()} of {many} layers, {found.n_rows:,} rows", grid="")


def separation(found: Any) -> NDArray[np.float64]:
    """Return the share of the variance along component 0 that is between the classes, for each model (a, b)."""
    statistics = found.statistics
    within = statistics.within

    def share(axes: Any) -> float:
        direction = axes.components[0]
        between = float(((statistics.between @ direction) ** 2).sum())
        total = between + float(direction @ within @ direction)
        return between / total if total > 0 else 0.0

    return np.array([[share(axes) for axes in line] for line in found.axes])
