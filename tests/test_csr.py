"""Compiled products of sparse rows: SciPy's results, with bits that do not depend on tiles or on other rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array

from bigpca import csr

Array = NDArray[Any]
D, COLUMNS = 700, 9


def rows_of(case: str, dtype: str) -> csr_array:
    """600 rows: more than a strip, with empty ones first, in the middle and last."""
    X = csr_array(random_array((600, D), density=0.03, rng=np.random.default_rng(0), format="csr"), dtype=dtype)
    keep = np.ones(600)
    keep[[0, 1, 255, 256, 599]] = 0
    X = csr_array(X.multiply(keep[:, None].astype(dtype)))
    if case == "unsorted, with duplicates":
        order = np.concatenate(
            [a + np.random.default_rng(a).permutation(b - a) for a, b in zip(X.indptr, X.indptr[1:], strict=False)]
        )
        twice = np.repeat(order, 2)
        return csr_array((X.data[twice] / 2, X.indices[twice], 2 * X.indptr), X.shape)
    if case == "int64 indices":
        X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    if case == "a dense column":
        dense = X.toarray()
        dense[:, 5] = 3
        return csr_array(dense)
    if case == "no stored values":
        return csr_array((600, D), dtype=dtype)
    return X


CASES = ["random", "unsorted, with duplicates", "int64 indices", "a dense column", "no stored values"]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tile_bytes", [1 << 18, 1])
def test_products_sums_and_squares_are_those_of_the_dense_rows(
    case: str, dtype: str, tile_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csr, "TILE_BYTES", tile_bytes)
    monkeypatch.setattr(csr, "TILE_VALUES", 0)
    X, rng = rows_of(case, dtype), np.random.default_rng(1)
    Q, Z = rng.standard_normal((D, COLUMNS)).astype(dtype), rng.standard_normal((600, COLUMNS)).astype(dtype)
    weights, dense = rng.random(600), X.toarray().astype("f8")
    sums, squares = np.zeros(D), np.ones(D)
    csr.add_column_sums(X, sums)
    csr.add_column_sums(X, squares, weights, power=2)
    into, added = np.ones((D, COLUMNS), dtype, order="F"), np.zeros((D, COLUMNS), dtype)
    csr.add_product(X, Z, into)
    csr.add_product(X, Z, added)
    tolerance = {"rtol": 0, "atol": 1e3 * float(np.finfo(dtype).eps)}
    assert csr.multiply(X, Q).dtype == dtype
    np.testing.assert_allclose(csr.multiply(X, Q), dense @ Q, **tolerance)
    np.testing.assert_allclose(added, dense.T @ Z, **tolerance)
    np.testing.assert_allclose(into, 1 + dense.T @ Z, **tolerance)
    if case != "unsorted, with duplicates":  # each stored value is squared by itself
        np.testing.assert_allclose(csr.row_squares(X), (dense**2).sum(axis=1), rtol=1e-14)
        np.testing.assert_allclose(sums, dense.sum(axis=0), rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(squares, 1 + weights @ dense**2, rtol=1e-14)


def test_the_bits_of_a_row_depend_on_the_row_alone_and_those_of_sums_not_on_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, rng = rows_of("random", "f4"), np.random.default_rng(1)
    Q, Z = rng.standard_normal((D, COLUMNS)).astype("f4"), rng.standard_normal((600, COLUMNS)).astype("f4")
    whole, added = csr.multiply(X, Q), np.zeros((D, COLUMNS), "f4")
    csr.add_product(X, Z, added)
    monkeypatch.setattr(csr, "TILE_BYTES", 1)
    parts, pieces = np.vstack([csr.multiply(X[i : i + 7], Q) for i in range(0, 600, 7)]), np.zeros((D, COLUMNS), "f4")
    for i in range(0, 600, csr.RUN):
        csr.add_product(X[i : i + csr.RUN], Z[i : i + csr.RUN], pieces)
    np.testing.assert_array_equal(parts, whole)
    np.testing.assert_array_equal(pieces, added)


def test_a_sparse_product_of_two_is_the_dense_one() -> None:
    X, W = rows_of("random", "f8"), csr_array(random_array((D, 20), density=0.1, rng=np.random.default_rng(2)))
    out = np.ones((600, 20))
    csr.add_sparse_product(X, W, out)
    np.testing.assert_allclose(out, 1 + X.toarray() @ W.toarray(), rtol=1e-13)


def test_terms_that_are_alike_do_not_pile_up_their_rounding() -> None:
    """Each of 8,192 equal terms is rounded alike: one after another they would lose 205 eps."""
    ones, third = csr_array(np.ones((1, 8192), "f4")), np.full((8192, 1), 1 / 3, "f4")
    truth, eps = 8192 * float(third[0, 0]), float(np.finfo("f4").eps)
    summed = np.zeros((1, 1), "f4")
    csr.add_product(csr_array(np.ones((8192, 1), "f4")), third, summed)
    for found in (csr.multiply(ones, third), summed):
        assert abs(float(found[0, 0]) - truth) <= 32 * eps * truth
    column, sums, squares = csr_array(np.full((8192, 1), 0.1)), np.zeros(1), np.zeros(1)
    csr.add_column_sums(column, sums)
    csr.add_column_sums(column, squares, power=2)
    np.testing.assert_allclose([sums[0], squares[0]], [819.2, 81.92], rtol=3e-16)


def test_compiled_loops_are_kept_in_the_folder_that_is_named_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for named in ("kept", "file/cannot be made", ""):
        monkeypatch.setenv("NUMBA_CACHE_DIR", named and str(tmp_path / named))
        loop, counts = csr.compiled.__wrapped__(csr._constants), np.zeros(1, int)
        loop(np.array([0, 0]), np.array([3.0, 4.0]), np.zeros(1), counts)
        assert counts == 2
        assert str(loop.stats.cache_path).startswith(str(tmp_path)) == (named == "kept")
        assert named == "kept" or loop.stats.cache_path is None
