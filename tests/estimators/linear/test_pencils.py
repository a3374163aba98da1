"""Slow features, minimum noise fraction and tICA equal dense pencils of plain NumPy, however the rows are cut."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.base import clone

import bigpca as bp

Array = NDArray[Any]
N, D, LAG, WIDTH = 360, 5, 7, 18
RNG = np.random.default_rng(3)
X = np.cumsum(RNG.standard_normal((N, D)), axis=0) * [0.3, 0.2, 0.1, 0.05, 0.0] + RNG.standard_normal((N, D)) + 2.0
RUNS = np.repeat(["a", "b", "a", "c", "d"], [100, 3, 150, 7, 100])  # two are shorter than the lag, or as long


def pairs(X: Array, lag: int, runs: Any = None, width: int = 0, gone: Any = ()) -> tuple[Array, Array]:
    """Both rows of each pair."""
    t = np.arange(len(X) - lag)
    if runs is not None:  # each change of label begins a run
        runs = np.cumsum(np.diff(np.unique(runs, return_inverse=True)[1], prepend=0) != 0)
        t = t[runs[t] == runs[t + lag]]
    t = t[t % width != width - 1] if width else t
    t = t[~np.isin(t, gone) & ~np.isin(t + lag, gone)]
    return X[t], X[t + lag]


def slow(X: Array, **options: Any) -> tuple[Array, Array]:
    x, y = pairs(X, 1, **options)
    return eigh(np.cov((y - x).T), np.cov(np.delete(X, options.get("gone", []), axis=0).T))


def noise(X: Array, width: int = WIDTH, **options: Any) -> tuple[Array, Array]:
    x, y = pairs(X, width + 1, width=width, **options)
    values, V = eigh(np.cov(np.delete(X, options.get("gone", []), axis=0).T), np.cov((y - x).T) / 2)
    return values[::-1], V[:, ::-1]


def lagged(X: Array, lag: int = LAG, **options: Any) -> tuple[Array, Array]:
    x, y = pairs(X, lag, **options)
    mean, n = (x.mean(axis=0) + y.mean(axis=0)) / 2, len(x)
    x, y = x - mean, y - mean
    values, V = eigh((x.T @ y + y.T @ x) / (2 * n), (x.T @ x + y.T @ y) / (2 * n))
    order = np.argsort(-np.abs(values))
    return values[order], V[:, order]


METHODS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Array, Array]]]] = {
    "slow": (bp.SlowFeatureAnalysis, slow),
    "noise": (lambda k=None, **options: bp.MinimumNoiseFraction(k, width=WIDTH, **options), noise),
    "lagged": (lambda k=None, **options: bp.TICA(k, lag=LAG, **options), lagged),
}
every = pytest.mark.parametrize("name", METHODS)


def assert_solves(model: Any, expected: tuple[Array, Array], tolerance: float = 1e-11) -> None:
    values, V = expected[0], expected[1].T
    np.testing.assert_allclose(model.eigenvalues_, values[: len(model.eigenvalues_)], rtol=tolerance)
    found = model.components_
    flip = np.sign(np.einsum("ij,ij->i", found, V[: len(found)]))
    np.testing.assert_allclose(found * flip[:, None], V[: len(found)], atol=tolerance * 10 * np.abs(V).max())


@every
@pytest.mark.parametrize("chunk", [1, 5, 7, 50, N])
@pytest.mark.parametrize("grouped", [False, True])
def test_each_method_is_its_dense_pencil_for_any_chunks_and_no_pair_crosses_a_border(
    name: str, chunk: int, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bigpca.engine import layout

    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 64)
    monkeypatch.setattr(layout, "MIN_GROUPS", 40)
    make, dense = METHODS[name]
    runs = RUNS if grouped else None
    model = make().fit(da.from_array(X, chunks=(chunk, D)), groups=runs)
    assert_solves(model, dense(X, runs=runs))
    assert model.n_samples_ == N
    scores = model.transform(X)
    np.testing.assert_allclose(model.inverse_transform(scores), X, atol=1e-9)


def test_labels_that_come_back_are_other_trajectories_as_of_lagged_rows() -> None:
    """Three rows of b between two runs of a are fewer than the lag: no pair crosses them."""
    windows = bp.data.lagged(X, (0, LAG), groups=RUNS).compute()
    np.testing.assert_array_equal(windows, np.hstack(pairs(X, LAG, RUNS)))
    again = np.repeat(np.arange(5), [100, 3, 150, 7, 100])
    for make, _ in METHODS.values():
        np.testing.assert_array_equal(make().fit(X, groups=RUNS).components_, make().fit(X, groups=again).components_)


@every
def test_rows_with_missing_values_are_left_out_with_their_pairs(name: str) -> None:
    make, dense = METHODS[name]
    gone, holed = np.array([0, 1, 40, 41, 200, N - 1]), X.copy()
    holed[gone, 2] = np.nan
    model = make(nan_policy="omit").fit(da.from_array(holed, chunks=(41, D)))
    assert_solves(model, dense(X, gone=gone))
    assert model.n_omitted_ == len(gone)


@every
@pytest.mark.parametrize("units", [1e80, 1e-80, np.array([1e80, 1e-80, 1.0, 300.0, 1e-3])], ids=["up", "down", "own"])
def test_columns_may_have_any_units(name: str, units: Any) -> None:
    make, dense = METHODS[name]
    values, V = dense(X)
    model = make(2).fit(X * units)
    np.testing.assert_allclose(model.eigenvalues_, values[:2], rtol=1e-10)
    np.testing.assert_allclose(np.abs(model.components_ * units), np.abs(V[:, :2].T), atol=1e-9 * np.abs(V).max())


@every
def test_constant_and_dependent_columns_add_no_axis(name: str) -> None:
    make, dense = METHODS[name]
    wide = np.column_stack([X, np.full(N, 1e6 + 0.1), X[:, 0] - 3 * X[:, 1]])
    model = make().fit(wide)
    assert model.rank_ == D
    np.testing.assert_allclose(model.eigenvalues_, dense(X)[0], rtol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(model.transform(wide)), wide, rtol=1e-9)
    with pytest.raises(ValueError, match=r"the rows vary in 5 directions only, .*; 6 or more were expected"):
        make(6).fit(wide)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_slow_columns_of_float32_keep_the_digits_of_their_steps(offset: float) -> None:
    """A scatter less a lagged scatter would lose them: eps / 1e-6 of float32 is 12 %."""
    t = np.arange(20_000.0)
    phases = np.arange(4.0)
    slow_rows = np.sin(t[:, None] / [300.0, 170.0, 90.0, 50.0] + phases) + offset
    given = slow_rows.astype("f4")
    told = "stored to a relative 3e-08, which changes the solution by about 0.03 of its size"  # steps of 1e-3, 5e-4
    with pytest.warns(bp.errors.ApproximationWarning, match=told) if offset else nullcontext():
        model = bp.SlowFeatureAnalysis(4).fit(da.from_array(given, chunks=(999, 4)))
    exact = slow(given.astype("f8"))[0]
    np.testing.assert_allclose(model.eigenvalues_, exact, rtol=1e-6)
    with pytest.warns(bp.errors.ApproximationWarning, match=told) if offset else nullcontext():
        tica = bp.TICA(4).fit(da.from_array(given, chunks=(999, 4)))
    np.testing.assert_allclose(1 - tica.eigenvalues_, 1 - lagged(given.astype("f8"), 1)[0], rtol=1e-5)


def test_rounding_of_stored_steps_changes_no_number_and_is_told() -> None:
    rows = np.column_stack([np.sin(np.arange(400) / 9), np.repeat([1e6, 1e6 + 1], 200)]).astype("f4")
    twins = np.column_stack([X, X[:, 0] + 1]).astype("f4")  # whose difference is rounding
    for make, dense in (METHODS["slow"], METHODS["lagged"], (bp.MinimumNoiseFraction, partial(noise, width=0))):
        for given in (rows, twins):
            with pytest.warns(bp.errors.ApproximationWarning, match="stored to a relative 3e-08, which changes the"):
                model = make().fit(given)
            exact = given.astype("f8")
            exact[:, -1] -= exact[:, 0] * (given is twins) + exact[0, -1] * (given is rows)
            np.testing.assert_allclose(model.eigenvalues_, dense(exact)[0], rtol=1e-6)
            assert (model.rank_, model.solve_error_ < 1e-6) == (given.shape[1], True)


def test_steps_below_the_rounding_of_float64_are_reported() -> None:
    rows = np.column_stack([np.sin(np.arange(400) / 9), np.repeat([1e6, 1e6 + 2.0**-27], 200)])
    with pytest.warns(bp.errors.ApproximationWarning, match="1 of 2 components change between rows by no more than"):
        bp.SlowFeatureAnalysis().fit(rows)
    with pytest.raises(ValueError, match="1 of 2 directions vary, but rows that are pairs do not differ along them"):
        bp.MinimumNoiseFraction().fit(rows)
    with pytest.warns(bp.errors.ApproximationWarning, match="1 of 1 components"):
        still = bp.TICA(lag=2).fit(np.repeat([[0.0], [1.0]], 9, axis=0), groups=np.repeat([0, 1], 9))
    assert (still.timescales_ == np.inf).all()
    few = np.random.default_rng(0).standard_normal((6, 5))
    for model in (bp.SlowFeatureAnalysis(), bp.TICA(), bp.TICA(1)):  # whose last are -1 or 1, whatever the rows are
        with pytest.warns(bp.errors.ApproximationWarning, match="5 pairs of rows cannot tell 5 directions apart: some"):
            model.fit(few)
    with pytest.raises(ValueError, match=r"5 pairs of rows cannot tell 5 directions apart: .* Give longer series"):
        bp.MinimumNoiseFraction().fit(few)


@every
def test_what_has_no_pairs_or_no_variance_is_rejected(name: str) -> None:
    make, _ = METHODS[name]
    lag = {"slow": 1, "noise": WIDTH + 1, "lagged": LAG}[name]
    with pytest.raises(ValueError, match=rf"{N} rows have 0 pairs at a lag of {lag}; at least 2 were expected"):
        make().fit(X, groups=np.arange(N))
    few = WIDTH if name == "noise" else lag + 1
    with pytest.raises(ValueError, match=rf"^{few} rows have (0 pairs|1 pair) at a lag of {lag}; at least 2 were"):
        make().plan(da.from_array(X[:few]))
    with pytest.raises(ValueError, match="n_components = 8"):
        make(8).fit(X)
    with pytest.raises(
        ValueError, match=r"the rows vary in 0 directions only, to .*; 1 or more were expected of 5 columns"
    ):
        make(1).fit(np.full((N, D), 7.1))
    for call in (make().fit, make().fit(X).partial_fit):
        with pytest.raises(TypeError, match="a step belongs to two rows"):
            call(X, sample_weight=np.ones(N))


def test_a_width_that_does_not_divide_the_rows_is_rejected_unread() -> None:
    for rows in (da.from_array(X, chunks=(50, D)), bp.from_batches(iter(np.split(X, 8)))):  # counted as they are read
        with pytest.raises(ValueError, match="width = 7 does not divide 360 rows"):
            bp.MinimumNoiseFraction(width=7).fit(rows)
    streamed = bp.MinimumNoiseFraction(width=WIDTH).fit(bp.from_batches(iter(np.split(X, 8))))
    assert_solves(streamed, noise(X))


@every
def test_added_rows_and_merged_models_are_trajectories_of_their_own(name: str) -> None:
    make, dense = METHODS[name]
    cut = 10 * WIDTH
    runs = np.arange(N) < cut
    grown = make().fit(X[:cut]).partial_fit(X[cut:])
    merged = bp.merge(make().fit(X[:cut]), make().fit(X[cut:]))
    for model in (grown, merged):
        assert_solves(model, dense(X, runs=runs))
        assert model.n_samples_ == N
    with bp.config(keep_state_bytes=0):
        small = make().fit(X)
        for call in (lambda: small.partial_fit(X), lambda: bp.merge(small, small)):
            with pytest.raises(ValueError, match=r"needs the sums of all rows, .*B, which are not kept because"):
                call()


CHANGED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "lag": (bp.TICA(2), None, {"lag": 5}),
    "background": (bp.ContrastivePCA(2, background="a"), RUNS, {"background": "b"}),
    "kernel of labels": (bp.SupervisedPCA(2, label_kernel="rbf"), X[:, :2] ** 2, {"label_kernel": "linear"}),
    "width of labels": (bp.SupervisedPCA(2, label_kernel="rbf"), X[:, :2] ** 2, {"label_gamma": 0.01}),
    "features of labels": (bp.SupervisedRandomProjection(2, n_features=9), X[:, :2], {"n_features": 8}),
    "preprocess_y": (bp.PLSRegression(2), X[:, :2] ** 2, {"preprocess_y": bp.preprocessing.Power(0.5)}),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_the_sums_is_not_changed_between_rows_or_models(name: str) -> None:
    model, y, changes = CHANGED[name]
    one, other = clone(model).fit(X, y), clone(model).set_params(**changes).fit(X, y)
    with pytest.raises(ValueError, match=rf", {next(iter(changes))}=.* and .* cannot be merged"):
        bp.merge(one, other)
    one.set_params(**changes)
    calls = [lambda: one.partial_fit(X, y), lambda: bp.merge(one, other)]
    if name == "preprocess_y":
        calls += [lambda: one.transform(X, y), lambda: one.score(X, y)]
    for call in calls:
        with pytest.raises(ValueError, match=rf"{next(iter(changes))} was changed after the fit: .*do not belong"):
            call()


TWIN = X[:, :1] + 1e-6 * RNG.standard_normal((N, 1))
NEARLY = {
    "the columns are": (bp.SlowFeatureAnalysis(2), np.column_stack([X, TWIN])),
    "the rows of metric are": (bp.GeneralizedPCA(2, metric=np.eye(D) + 1e12), X),
}


@pytest.mark.parametrize("what", NEARLY)
def test_what_is_nearly_dependent_is_named(what: str) -> None:
    model, rows = NEARLY[what]
    with pytest.warns(bp.errors.ApproximationWarning, match=rf"^{what} so .* by .* \(solve_error_\)"):
        model.fit(bp.from_batches(iter([rows])))


@every
@pytest.mark.parametrize("apart", [1e-6, 3e-8])
def test_columns_that_one_read_cannot_tell_apart_are_read_again(name: str, apart: float) -> None:
    """What tells them apart is slow, and moves beside noise; without a second read its columns are named."""
    make, dense = METHODS[name]
    rows = np.column_stack([X, X[:, 4] + apart * (np.sin(np.arange(N) / 40) + 0.01 * X[:, 2])])
    model, plan = make().fit(rows), make().plan(rows)
    assert (model.provenance_.reads, plan.passes, plan.most_passes) == (2, 1, 2)
    assert (model.rank_, model.solve_error_ < 1e-6) == (6, True)
    plain = np.column_stack([X, (rows[:, 5] - rows[:, 4]) / apart])
    np.testing.assert_allclose(model.eigenvalues_, dense(plain)[0], rtol=1e-6)
    np.testing.assert_allclose(make().fit(rows * 2.0**-495).eigenvalues_, model.eigenvalues_, rtol=1e-6)
    scores, expected = model.transform(rows), make().fit(plain).transform(plain)
    flip = np.sign((scores * expected).sum(axis=0))
    np.testing.assert_allclose(scores * flip, expected, atol=1e-5 * np.abs(expected).max())
    halves = [pd.DataFrame(rows, columns=[*"abcdef"])[own] for own in (slice(0, 180), slice(180, N))]
    merged = bp.merge(*(make().fit(half) for half in halves))
    match = "the columns e, f are so .* by 1 of its size .* Or fit all rows at once" if apart < 1e-7 else "solve_error_"
    with pytest.warns(bp.errors.ApproximationWarning, match=match):
        assert merged.solve_error_ > 1e-3
    assert merged.rank_ == (5 if apart < 1e-7 else 6)


@pytest.mark.parametrize("unit", [1e-160, 1e-170, 1e-310])
@pytest.mark.parametrize("model", [bp.TICA(1), bp.SlowFeatureAnalysis(1)], ids=str)
def test_a_column_of_tiny_values_beside_others_changes_no_axis_of_them(model: Any, unit: float) -> None:
    rows = np.random.default_rng(0).standard_normal((200, 3)).cumsum(axis=0)
    found = clone(model).fit(np.column_stack([rows, rows[:, 0] * unit]))
    np.testing.assert_allclose(found.eigenvalues_, clone(model).fit(rows).eigenvalues_, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e154, 1e200])
def test_squares_that_overflow_are_named_before_they_are_multiplied(unit: float) -> None:
    rows = np.random.default_rng(0).standard_normal((200, 3)).cumsum(axis=0)
    for model in (bp.TICA(1), bp.FisherDiscriminantAnalysis(), bp.SupervisedPCA(), bp.RoweisDiscriminantAnalysis()):
        with pytest.raises(ValueError, match="squares of the values overflow float64"):
            model.fit(rows * unit, np.arange(200) % 2)
