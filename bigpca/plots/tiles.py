"""Images laid out as one picture of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
