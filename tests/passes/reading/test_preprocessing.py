"""Preprocessing of rows is what its formula says, for values of any size, and keeps what is not finite in its place."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

import bigpca as bp
from bigpca.csr import FACTORED, KEPT, FactoredGram, FactoredRows
from bigpca.passes.reading.row_maps import Affine, RowPreprocessor, chained, preprocessors

RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 5))
MEAN, SCALE = np.array([0.5, 0, -1, 100, 3]), np.array([0.25, 1, 2, 0.5, 50])
Z0 = -MEAN / SCALE  # of which one is clipped
SHARES = (0.1, 0.2, 0.4, 0.0, 0.3)  # of no counts in one column


def residuals(x: Any, theta: float, clip: float) -> Any:
    """Those of the formula; 0 where nothing is expected."""
    mu = np.outer(x.sum(axis=1), SHARES)
    return np.clip(np.divide(x - mu, np.sqrt(mu + mu**2 / theta), out=np.zeros(x.shape), where=mu > 0), -clip, clip)


EXPECTED: dict[RowPreprocessor, Any] = {
    bp.preprocessing.L2(): lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
    bp.preprocessing.L2(zero_rows="keep"): lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
    bp.preprocessing.Power(): lambda x: np.sign(x) * np.sqrt(np.abs(x)),
    bp.preprocessing.Power(0.3): lambda x: np.sign(x) * np.abs(x) ** 0.3,
    bp.preprocessing.NormalizeTotal(1e4): lambda x: 1e4 * x / x.sum(axis=1, keepdims=True),
    bp.preprocessing.Log1p(): np.log1p,
    bp.preprocessing.Standardize(None, MEAN, SCALE): lambda x: (x - MEAN) / SCALE + MEAN / SCALE,
    bp.preprocessing.Standardize(2.5, MEAN, SCALE): lambda x: (
        np.clip((x - MEAN) / SCALE, -2.5, 2.5) - np.clip(Z0, -2.5, 2.5)
    ),
    bp.preprocessing.PearsonResiduals(100, 6, SHARES): lambda x: residuals(x, 100, 6),
    bp.preprocessing.PearsonResiduals(np.inf, np.inf, SHARES): lambda x: residuals(x, np.inf, np.inf),
}
TAKES_COUNTS = bp.preprocessing.NormalizeTotal | bp.preprocessing.Log1p | bp.preprocessing.PearsonResiduals


@pytest.mark.parametrize(("apart", "terms"), [(1, 15), (30, 22), (1e3, 33), (1e6, 62)])
@pytest.mark.parametrize("theta", [0.5, 30, 1e4])
def test_residuals_of_zeros_are_expanded_whatever_means_and_theta(theta: float, apart: float, terms: int) -> None:
    rng = np.random.default_rng(0)
    shares = np.sort(rng.random(40)) ** 20  # of 1e-30 to nearly all counts
    totals = 1 + np.geomspace(1, apart, 50)
    totals[7] = 0
    rows = np.floor(totals[:, None] * shares * rng.random((50, 40)) * 2)
    totals = rows.sum(axis=1)
    assert 0.1 < (rows == 0).mean() < 0.99
    f = bp.preprocessing.PearsonResiduals(theta, 100, tuple(shares / shares.sum()))
    found = f.apply_at(csr_array(rows), np.arange(50), "X")
    assert isinstance(found, FactoredRows)
    assert found.left.shape[1] <= terms
    expected = f.apply(rows, "X")
    np.testing.assert_allclose(FACTORED.dense(found), expected, rtol=0, atol=1e-10 * np.abs(expected).max())
    assert not FACTORED.dense(found)[totals == 0].any()


@pytest.mark.parametrize("weights", [None, np.arange(1.0, 8)])
def test_sparse_rows_with_factors_do_what_dense_ones_do(weights: Any) -> None:
    left, right, Q = RNG.random((7, 2)), RNG.random((2, 5)), RNG.random((5, 3))
    rows = FactoredRows(csr_array(np.where(X > 0.5, X, 0)), left, right, np.dtype("f8"))
    dense = rows.stored.toarray() + left @ right
    w = np.ones(7) if weights is None else weights
    gram = FACTORED.gram(rows) or FactoredGram(np.zeros(5), np.zeros((5, 5)), np.zeros(5))
    gram.add(rows, weights)
    gram.add(rows[2:], None)
    for found, expected in (
        (FACTORED.dense(rows[np.arange(7) % 2 == 0]), dense[::2]),
        (FACTORED.column_sums(rows, weights=weights), w @ dense),
        (FACTORED.column_squares(rows, weights), w @ dense**2),
        (FACTORED.multiply(rows, Q), dense @ Q),
        (FACTORED.projected(rows, Q[:, 0], Q, 4), (dense - Q[:, 0]) @ Q),
        (FACTORED.add_product(rows, dense @ Q), dense.T @ dense @ Q),
        (np.triu(gram.product), np.triu((w[:, None] * dense).T @ dense + dense[2:].T @ dense[2:])),
        (gram.sums, w @ dense + dense[2:].sum(axis=0)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def rows_for(f: RowPreprocessor) -> Any:
    """Return X, or its absolute values where they are taken for counts."""
    return np.abs(X) if isinstance(f, TAKES_COUNTS) else X


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i1"])
@pytest.mark.parametrize("f", EXPECTED, ids=repr)
def test_rows_are_those_of_the_formula_and_the_input_is_unchanged(f: RowPreprocessor, dtype: str) -> None:
    rows = (100 * rows_for(f)).clip(-128, 127).astype(dtype)
    before = rows.copy()
    found = f.apply(rows, "X")
    wide = dtype == "f8" or f == bp.preprocessing.Standardize(None, MEAN, SCALE)
    assert found.dtype == f.output_dtype(rows.dtype) == ("f8" if wide else "f4")
    eps = np.finfo(found.dtype).eps
    expected = EXPECTED[f](rows.astype("f8"))
    cancels = isinstance(f, bp.preprocessing.Standardize | bp.preprocessing.PearsonResiduals)
    np.testing.assert_allclose(found, expected, rtol=4 * eps, atol=200 * eps * cancels)
    assert np.array_equal(rows, before)
    names = {one: getattr(bp.preprocessing, one) for one in bp.preprocessing.__all__} | {"inf": np.inf}
    assert eval(repr(f), names).becomes(f)
    if dtype != "f2":  # which SciPy has no sparse arrays of
        sparse = f.apply(csr_array(rows), "X")
        dense = sparse.toarray() if f.forms is KEPT else sparse
        np.testing.assert_allclose(dense, found, rtol=4 * np.finfo(found.dtype).eps)
    assert (f.forms is KEPT) != isinstance(f, bp.preprocessing.PearsonResiduals)


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e200, 1e308])
def test_norms_of_any_size_are_norms(size: float) -> None:
    dtype = np.float64 if size != 1e-30 else np.float32
    found = bp.preprocessing.L2().apply((size * np.array([[0.75, 1.0], [0.0, 0.25]])).astype(dtype), "X")
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 1.0]], rtol=1e-6)


@pytest.mark.parametrize("f", EXPECTED, ids=repr)
def test_what_is_not_finite_remains_in_its_place(f: RowPreprocessor) -> None:
    rows = rows_for(f).copy()
    rows[2, 3], rows[4, 1] = np.nan, np.inf if rows is not X and rows.min() >= 0 else -np.inf
    found = f.apply(rows, "X")
    assert np.array_equal(np.isnan(found), np.isnan(rows))
    assert np.array_equal(np.isinf(found), np.isinf(rows))
    kept = [0, 1, 3, 5, 6]
    np.testing.assert_array_equal(found[kept], f.apply(rows[kept], "X"))


def test_rows_of_zeros_are_rejected_by_number_or_kept() -> None:
    rows = X.copy()
    rows[[1, 5]] = 0
    with pytest.raises(ValueError, match=r"2 of the rows in the store, which are zeros: 101, 105\. .*L2\(zero_rows="):
        bp.preprocessing.L2().apply_at(rows, np.arange(100, 107), "the store")
    assert not bp.preprocessing.L2(zero_rows="keep").apply(rows, "X")[[1, 5]].any()


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_negative_counts_are_rejected_by_row_and_rows_of_zeros_stay(form: Any) -> None:
    rows = np.abs(X)
    rows[3] = 0
    takes = {
        bp.preprocessing.NormalizeTotal(100): "takes counts",
        bp.preprocessing.Log1p(): "takes values above -1",
        bp.preprocessing.PearsonResiduals(100, 6, SHARES): "takes counts",
    }
    for f in takes:
        found = f.apply(form(rows), "X")
        assert not np.asarray(found.toarray() if hasattr(found, "toarray") else found)[3].any()
    rows[5, 1] = -1.5
    for f, words in takes.items():
        with pytest.raises(ValueError, match=rf"{words}, but row 105 of the store has -1\.5\. Were these rows"):
            f.apply_at(form(rows), np.arange(100, 107), "the store")


def test_a_chain_is_one_map_after_the_other() -> None:
    last = Affine(np.ones(5), np.full(5, 2.0))
    whole = chained((bp.preprocessing.Power(), bp.preprocessing.L2()), last)
    expected = last.apply(bp.preprocessing.L2().apply(bp.preprocessing.Power().apply(X, ""), ""), "")
    np.testing.assert_array_equal(whole.apply(X, ""), expected)
    assert whole.output_dtype(np.dtype("f2")) == np.float32
    assert whole.describe() != chained((bp.preprocessing.L2(), bp.preprocessing.Power()), last).describe()
    assert chained((), last) is last


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: bp.preprocessing.L2(zero_rows="drop"), ValueError, "zero_rows = 'drop' is unknown"),
        (lambda: bp.preprocessing.Power(0), ValueError, "exponent = 0 is outside"),
        (lambda: bp.preprocessing.Power(2), ValueError, "exponent = 2 is outside"),
        (lambda: bp.preprocessing.Power("0.5"), TypeError, "exponent = '0.5' is a str"),
        (lambda: bp.preprocessing.NormalizeTotal(0), ValueError, "target = 0 is outside"),
        (lambda: bp.preprocessing.NormalizeTotal("1e4"), TypeError, "target = '1e4' is a str"),
        (
            lambda: bp.preprocessing.NormalizeTotal().apply(np.abs(X), "X"),
            ValueError,
            "target from all rows.* Give target",
        ),
        (lambda: bp.preprocessing.Standardize(-1), ValueError, "max_value = -1 is outside"),
        (lambda: bp.preprocessing.Standardize(mean=[1.0]), ValueError, "mean and scale were expected together"),
        (
            lambda: bp.preprocessing.Standardize(10).apply(X, "X"),
            ValueError,
            "mean and scale from all rows.* Give mean",
        ),
        (
            lambda: bp.preprocessing.Standardize(10, [1, 2], [1, 1]).apply(X, "X"),
            ValueError,
            "has 2 means, but X has 5 col",
        ),
        (lambda: bp.preprocessing.PearsonResiduals(0), ValueError, "theta = 0 is outside"),
        (lambda: bp.preprocessing.PearsonResiduals(clip=-1), ValueError, "clip = -1 is outside"),
        (
            lambda: bp.preprocessing.PearsonResiduals().apply(np.abs(X), "X"),
            ValueError,
            "clip and shares from all rows",
        ),
        (
            lambda: bp.preprocessing.PearsonResiduals(9, 9, [1]).apply(X, "X"),
            ValueError,
            "has 1 shares, but X has 5 col",
        ),
        (lambda: preprocessors("l2"), TypeError, "preprocess = 'l2' is not known"),
        (lambda: preprocessors([bp.preprocessing.L2(), 1]), TypeError, "is not known; None, a record such as"),
        (lambda: preprocessors(bp.preprocessing.L2), TypeError, "is not known"),
    ],
)
def test_what_is_no_preprocessing_is_rejected(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
