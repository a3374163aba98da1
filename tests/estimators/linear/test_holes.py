"""Rows with missing values: the fit of the filled matrix or of pairs that are there, and scores by what is there."""

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array

import bigpca as bp
from bigpca.errors import ApproximationWarning, NonFiniteError
from tests.estimators.stores import stored, unreadable

RNG = np.random.default_rng(0)
N, D, K = 120, 9, 3
X = RNG.standard_normal((N, D)) @ np.diag(0.7 ** np.arange(D)) @ RNG.standard_normal((D, D)) + 5
HOLES = RNG.random((N, D)) < 0.15
HOLES[7], HOLES[8, 2:] = True, True  # no value, and fewer than components
HOLED = np.where(HOLES, np.nan, X)
WEIGHTS = RNG.integers(0, 4, N)
APART = np.eye(2).repeat(9, 0)[:, [0, 0, 1]]
quiet = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


def fill(rows: Any, weights: Any = None) -> Any:
    present = ~np.isnan(rows)
    means = np.average(np.where(present, rows, 0), axis=0, weights=None if weights is None else weights)
    share = np.average(present, axis=0, weights=weights)
    return np.where(present, rows, means / share)


@quiet
@pytest.mark.parametrize("solver", ["covariance", "dot", "krylov"])
def test_weights_weigh_the_means_that_fill(solver: str) -> None:
    rows = np.where((WEIGHTS == 0)[:, None], np.nan, HOLED)
    model = bp.PCA(K, solver=solver, tol=1e-9, nan_policy="mean").fit(rows, sample_weight=WEIGHTS)
    truth = bp.PCA(K, solver="covariance").fit(np.repeat(fill(HOLED, WEIGHTS), WEIGHTS, axis=0))
    np.testing.assert_allclose(model.mean_, truth.mean_, rtol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-8)


@quiet
@pytest.mark.parametrize("solver", ["covariance", "dot", "krylov"])
@pytest.mark.parametrize(("dtype", "offset"), [("f2", 1e3), ("f4", 1e7), ("f8", 0)])
def test_the_dtype_of_rows_does_not_round_the_means_that_fill(dtype: str, offset: float, solver: str) -> None:
    rows = (HOLED + offset).astype(dtype)
    model = bp.PCA(K, solver=solver, tol=1e-10, nan_policy="mean").fit(da.from_array(rows, chunks=(50, 4)))
    truth = bp.PCA(K).fit(fill(rows.astype("f8")))
    np.testing.assert_allclose(model.mean_, truth.mean_, rtol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)


@quiet
def test_sparse_rows_are_filled_where_they_store_nan() -> None:
    rows = np.where(X > 5, HOLED, 0)
    model = bp.PCA(K, nan_policy="mean").fit(csr_array(rows))
    truth = bp.PCA(K).fit(fill(rows))
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-10)


@quiet
def test_batches_that_can_be_iterated_again_are_filled_with_the_bits_of_rows_in_memory() -> None:
    batches = bp.from_batches([HOLED[:50], HOLED[50:]], shape=(N, D))
    found = bp.PCA(K, nan_policy="mean").fit(batches)
    assert found.components_.tobytes() == bp.PCA(K, nan_policy="mean").fit(HOLED).components_.tobytes()


def test_a_warning_says_what_is_missing_and_what_that_does() -> None:
    share = 1 - HOLES.mean()
    with pytest.warns(ApproximationWarning) as caught:
        bp.PCA(K, nan_policy="mean").fit(HOLED)
    ((text, where),) = [(str(one.message), one.filename) for one in caught]
    assert where == __file__
    assert text.startswith(f"{1 - share:.3g} of the entries are missing")
    assert "1 row without any value became the mean row" in text
    assert f"eigenvalues far above the variance of a column are about {share**2:.3g} of theirs" in text


@quiet
@pytest.mark.parametrize(
    "make",
    [
        lambda: bp.PCA(K),
        lambda: bp.PCA(K, scale=True, whiten=True),
        lambda: bp.ApproximatePCA(K, bp.sketches.Gaussian(5), approximation="tutorial"),
        lambda: bp.RotatedPCA(K, rotation="promax"),
    ],
)
def test_incomplete_rows_are_projected_by_least_squares_on_what_is_there(make: Any) -> None:
    model = make().fit(X).set_params(nan_policy="mean")
    complete = model.transform(X)
    scores = model.transform(HOLED)
    scale = 1.0 if model.scale_ is None else model.scale_
    # A complete row's scores are linear in its point in the plane of the axes; any basis of the plane will do.
    basis = np.linalg.qr(model._row_map().components.T)[0]
    to_scores = np.linalg.lstsq((X - model.mean_) / scale @ basis, complete, rcond=None)[0]
    for row, holes, found in zip(HOLED, HOLES, scores, strict=True):
        z = ((row - model.mean_) / scale)[~holes]
        point = np.linalg.lstsq(basis[~holes], z, rcond=None)[0] if len(z) else np.full(K, np.nan)
        np.testing.assert_allclose(found, point @ to_scores, rtol=0, atol=1e-8 * np.abs(complete).max())
    assert np.array_equal(scores[~HOLES.any(1)], complete[~HOLES.any(1)])
    assert np.isnan(scores[7]).all()
    scale = np.nanmax(np.abs(scores))
    single = model.transform(HOLED.astype("f4"))
    assert single.dtype == "f4"
    np.testing.assert_allclose(single, scores, rtol=0, atol=1e-4 * scale)
    lazy = model.transform(da.from_array(HOLED, chunks=(50, D)))
    np.testing.assert_allclose(lazy.compute(), scores, rtol=0, atol=1e-12 * scale)


def test_rows_that_do_not_determine_their_scores_are_told_once() -> None:
    model = bp.PCA(K).fit(X).set_params(nan_policy="mean")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        model.transform(da.from_array(HOLED, chunks=(8, D))).compute(scheduler="sync")
    assert len(caught) == 1
    assert "do not determine the scores of some rows: these rows have fewer values" in str(caught[0].message)
    few = np.full((1, D), np.nan)
    few[0, :2] = X[0, :2]
    with pytest.warns(ApproximationWarning, match="minimum norm"):
        t = model.transform(few)
    np.testing.assert_allclose((t @ model.components_ + model.mean_)[:, :2], few[:, :2])


def of_pairs(rows: Any, weights: Any = None) -> Any:
    """Return the means, and the covariance of each pair of columns about them, over the rows that have both."""
    w = np.ones(len(rows)) if weights is None else weights
    there = ~np.isnan(rows)
    means = w @ np.where(there, rows, 0) / (w @ there)
    values, weighted = np.where(there, rows - means, 0), there * w[:, None]
    return means, values.T @ (weighted * values) / (weighted.T @ there) * w.sum() / (w.sum() - 1)


PAIRED: dict[str, Any] = {
    "in memory": lambda rows, folder: rows,
    "lazy": lambda rows, folder: da.from_array(rows, chunks=(50, 4)),
    "of another layout": lambda rows, folder: np.asfortranarray(rows),
    "big-endian": lambda rows, folder: rows.astype(">f8"),
    "sparse": lambda rows, folder: csr_array(np.where(rows > 5, rows, np.where(np.isnan(rows), rows, 0))),
    "batches": lambda rows, folder: bp.from_batches([rows[:50], rows[50:]], shape=rows.shape),
    "a store": lambda rows, folder: stored(folder, rows, (10, D)),
    "filled lazily": lambda rows, folder: bp.open(np.where(np.isnan(rows), -9, rows), missing_value=-9),
}


@quiet
@pytest.mark.parametrize("given", PAIRED)
def test_pairwise_divides_each_product_by_the_share_of_the_rows_that_have_both_columns(
    given: str, tmp_path: Path
) -> None:
    rows = PAIRED[given](HOLED + 1e3 * (given != "sparse"), tmp_path)
    model = bp.PCA(D, nan_policy="pairwise")
    plan, whole = model.plan(rows), rows.toarray() if given == "sparse" else HOLED + 1e3
    means, C = of_pairs(whole)
    model.fit(rows)
    values = np.linalg.eigvalsh(C)[::-1]
    rtol = 1e-5 if given == "filled lazily" else 1e-9
    np.testing.assert_allclose(model.mean_, means, rtol=1e-7 if given == "filled lazily" else 1e-12)
    np.testing.assert_allclose(model.explained_variance_, np.maximum(values, 0), rtol=rtol, atol=rtol * values[0])
    assert model.total_variance_ == pytest.approx(np.trace(C), rel=rtol)
    assert model.solver_ == "covariance"
    assert plan.passes == model.provenance_.reads == 2


@quiet
@pytest.mark.parametrize(
    ("made", "map_"),
    [
        ({"center": False}, lambda rows: (rows, 0.0)),
        ({"center": np.arange(D) * 1.0}, lambda rows: (rows - np.arange(D), 0.0)),
        ({"scale": np.arange(1.0, D + 1)}, lambda rows: (rows / np.arange(1, D + 1), None)),
        ({"scale": True}, lambda rows: (rows / np.sqrt(np.diag(of_pairs(rows)[1]) * (N - 1) / N), None)),
    ],
)
def test_pairs_are_centred_and_scaled_as_complete_rows(made: Any, map_: Any) -> None:
    rows, centre = map_(HOLED)
    means, C = of_pairs(rows)
    if centre is not None:
        C = C + N / (N - 1) * np.outer(means, means)
    found = bp.PCA(K, nan_policy="pairwise", **made).fit(HOLED)
    np.testing.assert_allclose(found.explained_variance_, np.linalg.eigvalsh(C)[: -K - 1 : -1], rtol=1e-10)


@quiet
def test_weights_repeat_the_rows_whose_pairs_are_summed(tmp_path: Path) -> None:
    rows = np.where((WEIGHTS == 0)[:, None], np.nan, HOLED)
    model = bp.PCA(K, nan_policy="pairwise").fit(rows, sample_weight=WEIGHTS)
    truth = bp.PCA(K, nan_policy="pairwise").fit(np.repeat(HOLED, WEIGHTS, axis=0))
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(model.transform(HOLED), truth.transform(HOLED), rtol=0, atol=1e-9)
    model.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").transform(HOLED).tobytes() == model.transform(HOLED).tobytes()


def test_negative_eigenvalues_of_pairs_are_told_and_kept(tmp_path: Path) -> None:
    rows = np.where(np.random.default_rng(1).random((40, D)) < 0.5, np.nan, X[:40])
    lowest = np.linalg.eigvalsh(of_pairs(rows)[1])[0]
    with pytest.warns(ApproximationWarning, match=f"the smallest is {lowest:.3g}"):
        model = bp.PCA(D, nan_policy="pairwise").fit(rows)
    assert model.negative_eigenvalue_ == pytest.approx(lowest, rel=1e-9)
    assert model.explained_variance_ratio_.sum() > 1  # of a total in which negative ones count
    assert model.noise_variance_ == 0
    model.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").negative_eigenvalue_ == model.negative_eigenvalue_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bp.PCA(D, nan_policy="pairwise").fit(X).negative_eigenvalue_ == 0


def rejected_by(method: str) -> Any:
    return lambda: getattr(bp.PCA(K).fit(X).set_params(nan_policy="mean"), method)(HOLED)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bp.PCA(K, nan_policy="mean").fit(np.where(np.arange(D) == 4, np.nan, X)), ValueError,
         "1 of 9 columns have no value in any row, so there is no mean to fill in: 4. Leave them out by"),
        (lambda: bp.PCA(K, nan_policy="mean").fit(X * np.nan), ValueError, "9 of 9 columns have no .* 4, ..."),
        (lambda: bp.PCA(K, nan_policy="mean").fit(np.where(HOLES, np.inf, X)), NonFiniteError, "were expected"),
        (lambda: bp.PCA(K, nan_policy="mean", preprocess=bp.preprocessing.L2()).fit(unreadable(N, D)), ValueError,
         "a function of complete rows"),
        (lambda: bp.PCA(K, preprocess=bp.preprocessing.L2()).fit(X).set_params(nan_policy="mean").transform(HOLED),
         ValueError, "a function of complete rows"),
        (lambda: bp.PCA(K, nan_policy="mean").fit(X).set_params(nan_policy="raise").partial_fit(X), ValueError,
         "preprocess, nan_policy, center or scale was changed after the fit"),
        (lambda: bp.merge(bp.PCA(K, nan_policy="mean").fit(X), bp.PCA(K, nan_policy="mean").fit(X)), ValueError,
         "merge needs statistics to which rows can be added"),
        (lambda: bp.PCA(K, nan_policy="mean").fit(bp.from_batches(iter([X]), shape=(N, D))), ValueError,
         'takes up to 2 reads, 1 of them for .* missing values, .* ApproximatePCA .with nan_policy="omit"'),
        (lambda: bp.PCA(K, solver="krylov", nan_policy="pairwise").fit(unreadable(N, D)), ValueError,
         'solver = "krylov" multiplies whole rows'),
        (lambda: bp.PCA(bp.rules.ParallelAnalysis(null="signflip"), nan_policy="pairwise").fit(unreadable(N, D)),
         ValueError, "with flipped signs, which are not available here"),
        (lambda: bp.PCA(K, nan_policy="pairwise").fit(unreadable(N, D), groups=np.arange(N)), ValueError,
         "nan_policy = 'pairwise' cannot be used with groups"),
        (lambda: bp.PCA(K, nan_policy="pairwise", preprocess=bp.preprocessing.L2()).fit(unreadable(N, D)), ValueError,
         "a function of complete rows"),
        (lambda: bp.PCA(K, nan_policy="pairwise").fit(np.where(APART, np.nan, X[:18, :3])), ValueError,
         "2 pairs of columns are in no row together, such as 0, 2"),
        (lambda: bp.PCA(K, nan_policy="pairwise").fit(np.where(HOLES, np.inf, X)), NonFiniteError, "were expected"),
        (lambda: bp.merge(*(bp.PCA(K, nan_policy="pairwise").fit(X),) * 2), ValueError, "which more rows change"),
        *((rejected_by(method), NonFiniteError, 'nan_policy="omit" gives such rows NaN')
          for method in ("spe", "hotelling_t2", "mahalanobis", "score_samples", "contributions")),
        (rejected_by("top_outliers"), NonFiniteError, "whatever else reads rows takes complete ones"),
        (lambda: bp.quality.standard_errors(bp.PCA(K).fit(X).set_params(nan_policy="mean"), HOLED), NonFiniteError,
         'Pass nan_policy="omit" to leave those rows out'),
        (lambda: bp.PCA(K).fit(X).set_params(nan_policy="mean").remove_components(HOLED, 0), NonFiniteError, "NaN"),
    ],
)  # fmt: skip
def test_what_has_no_answer_is_rejected(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_rows_cannot_be_added_where_all_rows_decide_what_fills() -> None:
    model = bp.PCA(K, nan_policy="mean")
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError) as caught:
        model.partial_fit(X)
    assert "which more rows change" in str(caught.value.__cause__)


def test_integers_have_no_holes_and_take_no_read_to_find_them() -> None:
    rows = da.from_array(np.arange(60).reshape(20, 3) % 7, chunks=(5, 3))
    model = bp.PCA(2, nan_policy="mean")
    assert model.plan(rows).passes == 1
    assert "one more read finds the means" in str(model.plan(rows.astype("f4")))
    assert model.fit(rows).components_.tobytes() == bp.PCA(2).fit(rows).components_.tobytes()
