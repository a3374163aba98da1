"""Packed triangles against whole matrices, on any number of strips."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca.arrays import (
    STRIP,
    add_outer_packed,
    add_outer_upper,
    add_packed,
    add_product_packed,
    mirror_upper,
    packed_diagonal,
    packed_size,
    packed_strips,
    sum_of,
    sum_packed,
    unpack,
    unpack_upper,
)

Matrix = NDArray[np.float64]
SIZES = [0, 1, STRIP - 1, STRIP, STRIP + 44, 2 * STRIP + 1]


def pack(A: Matrix) -> Matrix:
    """The packed upper triangle of A, written out."""
    strips = [A[i : i + STRIP, i:].ravel() for i in range(0, len(A), STRIP)]
    return np.concatenate(strips or [np.zeros(0)])


@pytest.fixture(params=SIZES)
def symmetric(request: pytest.FixtureRequest) -> Matrix:
    A = np.random.default_rng(request.param).standard_normal((request.param, request.param))
    return A + A.T


def test_unpacking_gives_back_what_was_packed(symmetric: Matrix) -> None:
    d, packed = len(symmetric), pack(symmetric)
    assert packed.shape == (packed_size(d),)
    np.testing.assert_array_equal(unpack(packed, d), symmetric)
    np.testing.assert_array_equal(np.triu(unpack_upper(packed, d)), np.triu(symmetric))
    np.testing.assert_array_equal(packed_diagonal(packed, d), np.diagonal(symmetric))


def test_strips_are_views_that_cover_the_triangle_once(symmetric: Matrix) -> None:
    d, packed = len(symmetric), np.zeros(packed_size(len(symmetric)))
    for rows, strip in packed_strips(packed, d):
        assert strip.base is not None
        strip += symmetric[rows, rows.start :]
    np.testing.assert_array_equal(packed, pack(symmetric))


def test_mirroring_copies_the_upper_triangle_and_never_reads_the_lower(symmetric: Matrix) -> None:
    filled = np.triu(symmetric) + np.tril(np.full(symmetric.shape, np.nan), -1)
    np.testing.assert_array_equal(mirror_upper(filled.copy()), symmetric)
    transposed = filled.T.copy()
    mirror_upper(transposed.T)
    np.testing.assert_array_equal(transposed, symmetric)


def term(A: Matrix) -> tuple[Matrix, Callable[[Matrix], None]]:
    return A, lambda packed: add_packed(packed, A)


def single(A: Matrix) -> tuple[Matrix, Callable[[Matrix], None]]:
    return A.astype("f4").astype("f8"), lambda packed: add_packed(packed, A.astype("f4"))


def outer(A: Matrix) -> tuple[Matrix, Callable[[Matrix], None]]:
    v = A[:1].sum(axis=0)
    return -2.0 * np.outer(v, v), lambda packed: add_outer_packed(packed, -2.0, v)


def product(A: Matrix) -> tuple[Matrix, Callable[[Matrix], None]]:
    rows = A[:3]
    return -(rows.T @ rows), lambda packed: add_product_packed(packed, -1.0, rows)


@pytest.mark.parametrize("case", [term, single, outer, product])
def test_packed_sums_are_those_of_whole_matrices(
    symmetric: Matrix, case: Callable[[Matrix], tuple[Matrix, Callable[[Matrix], None]]]
) -> None:
    d = len(symmetric)
    expected, add = case(symmetric)
    packed = pack(np.eye(d))
    add(packed)
    np.testing.assert_allclose(unpack(packed, d), np.eye(d) + expected, rtol=1e-13, atol=1e-12)


def test_an_outer_product_is_added_above_the_diagonal() -> None:
    d = 2 * STRIP + 1
    S, v = np.zeros((d, d)), np.linspace(-1, 1, d)
    add_outer_upper(S, 3.0, v)
    np.testing.assert_allclose(np.triu(S), np.triu(3 * np.outer(v, v)), rtol=1e-15)


def test_sums_of_triangles_are_new(symmetric: Matrix) -> None:
    packed, vector = pack(symmetric), np.arange(len(symmetric)) / 7
    before, doubled = packed.copy(), 2 * symmetric
    summed = sum_packed(packed, packed, -0.5, vector)
    np.testing.assert_allclose(unpack(summed, len(symmetric)), doubled - 0.5 * np.outer(vector, vector), atol=1e-9)
    np.testing.assert_array_equal(sum_of(packed, packed), 2 * packed)
    np.testing.assert_array_equal(sum_of(symmetric, symmetric), doubled)
    np.testing.assert_array_equal(packed, before)
