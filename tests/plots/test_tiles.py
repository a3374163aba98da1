"""Images laid out as one picture of tiles."""

import numpy as np
import pytest

from bigpca.plots.images import component_tiles, image_tiles


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
def test_an_image_shape_that_does_not_fit_is_rejected(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"image_shape = .* components of 4 features .* Give the shape of one image"):
        component_tiles(np.eye(4), shape)


@pytest.mark.parametrize(("limits", "expected"), [((0, 255), [0, 0.2, 1, 1]), ((255, 0), [1, 0.8, 0, 0])])
def test_image_tiles_share_one_scale_and_are_cut_at_its_ends(
    limits: tuple[float, float], expected: list[float]
) -> None:
    tiles = image_tiles(np.array([[-0.0, 51.0], [255.0, 300.0]]), (1, 2), columns=2, gap=0, limits=limits)
    assert tiles.shape == (1, 4, 3)
    np.testing.assert_allclose(tiles, np.broadcast_to(np.array(expected)[:, None], (1, 4, 3)))


def test_image_tiles_reject_limits_without_a_range_and_a_shape_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"limits = \(3, 3\) are equal.*Give for example \(0, 1\)"):
        image_tiles(np.eye(4), (2, 2), limits=(3, 3))
    with pytest.raises(ValueError, match="image_shape"):
        image_tiles(np.eye(4), (2, 3))
