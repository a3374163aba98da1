"""Component tiles and scree curve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bigpca.quality.plots import component_tiles, picture_of_components, save_picture


def test_a_tile_holds_its_component_scaled_to_its_own_peak() -> None:
    components = np.array([[1.0, -2.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]])
    tiles = component_tiles(components, (2, 2), columns=2, gap=1)
    assert tiles.shape == (5, 5, 3)
    np.testing.assert_allclose(tiles[:2, :2, 0], [[0.75, 0.0], [0.5, 1.0]])
    np.testing.assert_allclose(tiles[:2, 3:], 0.5)
    np.testing.assert_allclose(tiles[3:, :2], 1.0)
    np.testing.assert_allclose(tiles[2], 1.0)


def test_colour_tiles_keep_their_channels() -> None:
    red = np.zeros((1, 12))
    red[0, ::3] = 1.0
    tiles = component_tiles(red, (2, 2, 3), columns=1)
    np.testing.assert_allclose(tiles, np.broadcast_to([1.0, 0.5, 0.5], (2, 2, 3)))


@pytest.mark.parametrize("shape", [(3, 2), (4,), (2, 2, 1), (1, 2, 2)])
def test_an_image_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"image_shape = .* components of 4 features .* Give the shape of one image"):
        component_tiles(np.eye(4), shape)


def test_the_picture_is_a_png_and_leaves_zero_variance_off_the_log_axis(tmp_path: Path) -> None:
    ratio = np.array([0.7, 0.3, 0.0, 0.0])
    path = save_picture(picture_of_components(np.eye(4), ratio, (2, 2), title="four"), tmp_path / "four.png")
    assert path.read_bytes().startswith(b"\x89PNG")
