"""Matrices as pictures: components, weights of features, tiles of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Input, Matrix
from bigpca.plots.data import Weights, component_names, field_of, name_of, shares_or_none, weights
from bigpca.plots.style import ABSENT, INK, axes_of, percents, short_names, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 4  # pictures in a line; of more than 16, twice as many
TOP_FEATURES = 4  # of each component, where components are not pictures
MAX_CELLS = 10  # columns in which weights are written as numbers


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


def components(
    model: Any,
    image_shape: tuple[int, ...] | None = None,
    *,
    n: int = 12,
    feature_names: Input | None = None,
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
    grid = field_of(model, len(found.names)) if image_shape is None and feature_names is None else None
    if grid is not None:
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
