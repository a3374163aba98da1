"""Downsampling averages areas, on whichever axes shrink, and keeps lengths where it can."""

import math

import numpy as np
import pytest

from bigpca.sketches import Downsample

DIVIDING = [
    ((12,), (4,)),
    ((112, 92), (28, 23)),
    ((8, 6, 3), (4, 2, 3)),  # (h, w, c)
    ((3, 8, 6), (3, 4, 2)),  # (c, h, w)
    ((4, 8, 6), (2, 8, 6)),
    ((5, 5), (1, 1)),
    ((4, 3), (4, 3)),
]
FRACTIONAL = [((7,), (3,)), ((10, 7), (4, 5)), ((3, 10, 7), (3, 9, 2)), ((9, 5, 3), (4, 5, 2))]


def images(shape, seed=0):
    return np.random.default_rng(seed).standard_normal((5, *shape))


def mean_by_repeating(image, n, m, axis):
    """Area mean from n to m cells: cut every cell into m equal ones, then average runs of n."""
    fine = np.repeat(image, m, axis=axis)
    return fine.reshape(*fine.shape[:axis], m, n, *fine.shape[axis + 1 :]).mean(axis=axis + 1)


@pytest.mark.parametrize(("shape", "to"), DIVIDING + FRACTIONAL)
def test_every_cell_is_the_mean_of_the_area_it_covers(shape, to):
    X = images(shape)
    expected = X
    for axis, (n, m) in enumerate(zip(shape, to, strict=True), start=1):
        expected = mean_by_repeating(expected, n, m, axis)
    Z = Downsample(shape, to).apply(X.reshape(5, -1)).reshape(5, *to)
    scale = math.sqrt(math.prod(shape) / math.prod(to))
    np.testing.assert_allclose(Z, scale * expected, atol=1e-12 * scale)


@pytest.mark.parametrize(("shape", "to"), DIVIDING)
def test_the_scale_makes_W_orthonormal_where_sizes_divide(shape, to):
    if math.prod(shape) > 2000:
        shape, to = (56, 46), (14, 23)
    W = Downsample(shape, to).matrix(math.prod(shape))
    np.testing.assert_allclose(W.T @ W, np.eye(math.prod(to)), atol=1e-14)


@pytest.mark.parametrize(("shape", "to"), DIVIDING + FRACTIONAL)
def test_constant_images_keep_their_length(shape, to):
    d = math.prod(shape)
    z = Downsample(shape, to).apply(np.full((1, d), 3.0))
    assert np.linalg.norm(z) == pytest.approx(3.0 * math.sqrt(d), rel=1e-13)


def test_sizes_may_come_as_a_list_from_json():
    assert Downsample([4, 6], [2, 3]) == Downsample((4, 6), (np.int64(2), 3))
