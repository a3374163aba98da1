"""CCA, PLSSVD and Ridge of rows side by side equal the public numbers, scikit-learn's, and fits of parts."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.typing import NDArray
from sklearn import cross_decomposition, linear_model
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_linnerud
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict

import bigpca as bp

Array = NDArray[Any]
RNG = np.random.default_rng(0)
N, P, Q = 120, 6, 4
X = RNG.standard_normal((N, P)) * 0.7 ** np.arange(P) + 3.0
Y = X[:, :3] @ RNG.standard_normal((3, Q)) + 0.5 * RNG.standard_normal((N, Q)) - 2.0


def test_public_numbers() -> None:
    exercise = load_linnerud()
    found = bp.CCA(3).fit(exercise.data, exercise.target)
    np.testing.assert_allclose(found.correlations_, [0.7956, 0.2006, 0.0726], atol=5e-5)
    iris = load_iris().data
    np.testing.assert_allclose(bp.CCA(2).fit(iris[:, :2], iris[:, 2:]).correlations_, [0.9410, 0.1239], atol=1e-4)
    images = load_digits().images
    left, right = (part.reshape(len(images), -1) for part in (images[:, :, :4], images[:, :, 4:]))
    with pytest.warns(bp.errors.ApproximationWarning, match=r"is singular: of 32 columns, \d+ are"):
        found = bp.CCA(3).fit(left, right)
    np.testing.assert_allclose(found.correlations_, [0.8161, 0.8021, 0.6953], atol=1e-4)
    shares = bp.PLSSVD(2, scale=False).fit(left, right).squared_covariance_fraction_
    np.testing.assert_allclose(shares, [0.3827, 0.3310], atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::PendingDeprecationWarning")
def test_covariances_of_sea_surface_temperatures_are_those_of_xeofs(weighted: bool) -> None:
    pytest.importorskip("netCDF4")
    eofs, xeofs = pytest.importorskip("eofs"), pytest.importorskip("xeofs.cross")
    field = xr.open_dataset(Path(eofs.__file__).parent / "examples/example_data/sst_ndjfm_anom.nc")["sst"].astype("f8")
    field = field.assign_coords(latitude=field.latitude.astype("f8"))  # xeofs weights in the precision of latitudes
    west, east = field.isel(longitude=slice(18)), field.isel(longitude=slice(18, None))
    theirs = xeofs.MCA(n_modes=3, standardize=False, use_coslat=weighted, use_pca=False, solver="full")
    theirs.fit(west, east, dim="time")
    ours = bp.PLSSVD(3, scale=bp.scales.CosLatitude("latitude") if weighted else False).fit(
        west, east
    )  # land of both sides is left out
    np.testing.assert_allclose(
        ours.squared_covariance_fraction_, theirs.squared_covariance_fraction().to_numpy(), atol=1e-6
    )
    for own, other in zip(ours.transform(west, east), theirs.scores(normalized=False), strict=True):
        np.testing.assert_allclose(np.abs(own), np.abs(other.transpose("time", "mode").to_numpy()), atol=1e-6)
    for of_side, other, field_of in zip(ours.to_xarray(), theirs.components(), (west, east), strict=True):
        found = of_side.weights.assign_coords(component=other.mode.values)
        truth = other.rename(mode="component").transpose(*found.dims)
        assert found.longitude.equals(field_of.longitude)
        assert (np.isnan(found) == field_of.isnull().all("time")).all()
        xr.testing.assert_allclose(np.abs(found), np.abs(truth).drop_attrs(), atol=1e-6)


LAT_X, LAT_Y = np.linspace(-50, 60, X.shape[1]), np.linspace(0, 80, Y.shape[1])
SCALES = {
    "latitudes": ((bp.scales.CosLatitude(LAT_X), bp.scales.CosLatitude(LAT_Y)), True),
    "numbers, deviations": ((np.cos(np.deg2rad(LAT_X)) ** -0.5, True), False),
    "nothing, latitudes": ((False, bp.scales.CosLatitude(LAT_Y)), True),
}


@pytest.mark.parametrize("case", SCALES)
@pytest.mark.parametrize("make", [bp.CCA, bp.PLSSVD, bp.PLSRegression])
def test_each_side_has_a_scale_of_its_own(make: Any, case: str, tmp_path: Path) -> None:
    scale, of_y = SCALES[case]
    divisors = [np.cos(np.deg2rad(LAT_X)) ** -0.5, np.cos(np.deg2rad(LAT_Y)) ** -0.5]
    divisors = [np.ones(X.shape[1]) if scale[0] is False else divisors[0], divisors[1] if of_y else Y.std(0, ddof=1)]
    options = {"regularization": 0.3} if make is bp.CCA else {}
    model = make(2, scale=scale, **options).fit(X, Y)
    np.testing.assert_allclose([*model.x_std_, *model.y_std_], np.concatenate(divisors), rtol=1e-12)
    plain = make(2, scale=False, **options).fit(X / divisors[0], Y / divisors[1])
    np.testing.assert_allclose(np.abs(model.transform(X)), np.abs(plain.transform(X / divisors[0])), atol=1e-8)
    model.save(tmp_path / "m.zarr")
    parts = [clone(model).fit(X[own], Y[own]) for own in (slice(0, 25), slice(25, None))]
    for other in (bp.load(tmp_path / "m.zarr"), bp.merge(*parts), parts[0].partial_fit(X[25:], Y[25:])):
        np.testing.assert_allclose(np.abs(other.transform(X)), np.abs(model.transform(X)), atol=1e-8)


SEA = xr.DataArray(X, dims=("time", "place"))
FIELD = xr.DataArray(Y.reshape(N, 2, 2), dims=("time", "lat", "lon"), coords={"lat": [10.0, 20.0], "lon": [5.0, 6.0]})
OCEAN = FIELD.where(FIELD.lat + FIELD.lon > 15)  # the first place is land


def test_land_of_y_is_left_out_and_is_nan_in_predictions(tmp_path: Path) -> None:
    for lazily in (OCEAN, OCEAN.chunk(time=50)):
        assert bp.Ridge(1.0).plan(SEA, lazily).passes == 1
        model, plain = bp.Ridge(1.0).fit(SEA, lazily), bp.Ridge(1.0).fit(X, Y[:, 1:])
        np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-12)
    model.save(tmp_path / "m.zarr")
    halves = [bp.Ridge(1.0).fit(SEA[rows], OCEAN[rows]) for rows in (slice(70), slice(70, None))]
    for one in (model, bp.load(tmp_path / "m.zarr"), bp.merge(*halves), halves[0].partial_fit(SEA[70:], OCEAN[70:])):
        found = one.predict(SEA)
        assert found.dims == OCEAN.dims
        assert found.lat.equals(OCEAN.lat)
        assert found[:, 0, 0].isnull().all()
        np.testing.assert_allclose(found.to_numpy().reshape(N, -1)[:, 1:], plain.predict(X), rtol=1e-9)
        assert one.score(SEA, OCEAN.transpose("time", "lon", "lat")) == pytest.approx(plain.score(X, Y[:, 1:]))
        for rows in (X, da.from_array(X, chunks=50)):  # without labels too: the columns of Y as they were given
            np.testing.assert_allclose(one.predict(rows), found.to_numpy().reshape(N, -1), rtol=1e-12)
        values = OCEAN.to_numpy().reshape(N, -1)
        assert one.score(X, values) == one.score(X, values[:, 1:]) == pytest.approx(one.score(SEA, OCEAN))
    assert np.isnan(model.predict(X, out=tmp_path / "p.zarr")[:, 0]).all()
    scores = bp.CCA(2).fit(X, OCEAN).transform_y(OCEAN)
    assert scores.dims == ("time", "component")
    np.testing.assert_allclose(scores, bp.CCA(2).fit(X, Y[:, 1:]).transform_y(Y[:, 1:]), atol=1e-12)


@pytest.mark.parametrize("make", [bp.CCA, bp.PLSSVD])
def test_each_side_has_maps_on_its_own_grid(make: Any, tmp_path: Path) -> None:
    model = make(2).fit(SEA, OCEAN)
    model.save(tmp_path / "m.zarr")
    merged = bp.merge(make(2).fit(SEA[:70], OCEAN[:70]), make(2).fit(SEA[70:], OCEAN[70:]))
    for one in (model, bp.load(tmp_path / "m.zarr"), merged):
        of_x, of_y = one.to_xarray()
        for name in ["weights"] + ["rotations", "loadings"] * (make is bp.CCA):
            np.testing.assert_allclose(of_x[name], getattr(model, f"x_{name}_").T, atol=1e-9)
            assert of_y[name].dims == ("component", "lat", "lon")
            found = of_y[name].to_numpy().reshape(2, -1)
            np.testing.assert_allclose(found[:, 1:], getattr(model, f"y_{name}_").T, atol=1e-9)
            assert np.isnan(found[:, 0]).all()
        np.testing.assert_allclose(of_y["std"].to_numpy().ravel()[1:], model.y_std_)
        assert of_y.lat.equals(OCEAN.lat)
        assert of_y.sizes["component"] == 2
        strength = "correlations" if make is bp.CCA else "squared_covariance_fraction"
        np.testing.assert_allclose(of_x[strength], getattr(model, f"{strength}_"))
    plain = make(2).fit(X, Y[:, 1:])
    for chunks in (False, True):
        sides = (one.chunk(time=50) if chunks else one for one in (SEA, OCEAN))
        x, y = model.inverse_transform(*model.transform(*sides))
        assert (x.dims, y.dims, x.chunks is None) == (SEA.dims, OCEAN.dims, not chunks)
        assert y[:, 0, 0].isnull().all()
        expected = plain.inverse_transform(*plain.transform(X, Y[:, 1:]))
        for own, other in zip((x, y), expected, strict=True):
            np.testing.assert_allclose(own.to_numpy().reshape(N, -1)[:, -other.shape[1] :], other, atol=1e-9)
    frame = pd.DataFrame(Y, columns=list("abcd"))
    by_name = make(2).fit(X, frame)
    assert by_name.to_xarray()[1].feature.values.tolist() == list("abcd")
    with pytest.raises(ValueError, match="same order as they were in fit"):
        by_name.transform_y(frame[list("badc")])
    assert make(2).fit(X, Y).to_xarray()[1].weights.dims == ("component", "feature")


@pytest.mark.parametrize("scale", [True, False])
def test_cca_is_that_of_scikit_learn(scale: bool) -> None:
    ours = bp.CCA(3, scale=scale).fit(X, Y)
    theirs = cross_decomposition.CCA(3, scale=scale, tol=1e-20, max_iter=100_000).fit(X, Y)
    for name in ("x_weights", "x_rotations", "x_loadings", "y_loadings", "y_rotations", "coef"):
        np.testing.assert_allclose(getattr(ours, f"{name}_"), getattr(theirs, f"{name}_"), atol=1e-6, err_msg=name)
    scores, expected = ours.transform(X, Y), theirs.transform(X, Y)
    back = zip(ours.inverse_transform(*scores), theirs.inverse_transform(*expected), strict=True)
    for own, other in [*zip(scores, expected, strict=True), *back]:
        np.testing.assert_allclose(own, other, atol=1e-6)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-6)
    np.testing.assert_allclose(X @ ours.coef_.T + ours.intercept_, ours.predict(X), atol=1e-9)
    assert ours.score(X, Y) == pytest.approx(theirs.score(X, Y), abs=1e-6)
    scores = np.hstack(ours.transform(X, Y))
    np.testing.assert_allclose(np.diag(np.corrcoef(scores.T)[:3, 3:]), ours.correlations_, atol=1e-10)


@pytest.mark.parametrize("scale", [True, False])
def test_plssvd_is_that_of_scikit_learn(scale: bool) -> None:
    ours, theirs = (one(2, scale=scale).fit(X, Y) for one in (bp.PLSSVD, cross_decomposition.PLSSVD))
    for own, other in zip(ours.transform(X, Y), theirs.transform(X, Y), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-6)
    W, scores = ours.x_weights_, ours.transform(X)
    back = ours.x_mean_ + ours.x_std_ * ((X - ours.x_mean_) / ours.x_std_ @ W @ W.T)
    np.testing.assert_allclose(ours.inverse_transform(scores), back, atol=1e-12)
    cross = np.cov(*(np.asarray(one).T for one in ours.transform(X, Y)))[:2, 2:]
    np.testing.assert_allclose(cross, np.diag(ours.singular_values_), atol=1e-10)
    assert not hasattr(ours, "predict")


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 50.0])
def test_ridge_is_that_of_scikit_learn(alpha: float, intercept: bool, tmp_path: Path) -> None:
    for weights in (None, np.arange(N) % 4):
        ours = bp.Ridge(alpha, fit_intercept=intercept).fit(X, Y, sample_weight=weights)
        theirs = linear_model.Ridge(alpha, fit_intercept=intercept).fit(X, Y, sample_weight=weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-8)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-7 * intercept)
        assert ours.score(X, Y, weights) == pytest.approx(theirs.score(X, Y, weights), abs=1e-8)
        assert ours.cv_scores_.mean() == pytest.approx(theirs.score(X, Y, weights), abs=1e-8)
        ours.save(tmp_path / "m.zarr", overwrite=True)
        np.testing.assert_allclose(bp.load(tmp_path / "m.zarr").predict(X[:5]), theirs.predict(X[:5]), atol=1e-7)
    ones = bp.Ridge(0.0, fit_intercept=False).fit(np.ones((N, 1)), Y)
    np.testing.assert_allclose(ones.coef_[:, 0], Y.mean(axis=0))


def test_each_target_may_choose_its_own_penalty(tmp_path: Path) -> None:
    alphas, noisy = [1e-3, 1.0, 1e2, 1e4], Y + RNG.standard_normal((N, Q)) * [0.0, 1.0, 5.0, 50.0]
    ours, one = bp.Ridge(alphas, alpha_per_target=True).fit(X, noisy), bp.Ridge(alphas).fit(X, noisy)
    np.testing.assert_array_equal(ours.cv_scores_, one.cv_scores_)
    np.testing.assert_array_equal(ours.alpha_, np.array(alphas)[ours.cv_scores_.argmax(axis=0)])
    assert len(np.unique(ours.alpha_)) > 1
    for target, alpha in enumerate(ours.alpha_):
        truth = linear_model.Ridge(alpha).fit(X, noisy[:, target])
        np.testing.assert_allclose(ours.coef_[target], truth.coef_, atol=1e-8)
    ours.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(bp.load(tmp_path / "m.zarr").alpha_, ours.alpha_)


def test_a_penalty_is_chosen_by_left_out_folds_of_the_same_read() -> None:
    alphas = [1e-3, 1.0, 1e3, 1e6]
    ours = bp.Ridge(alphas, cv=4).fit(X, Y)
    from bigpca.seeds import uniforms

    folds = (uniforms(0, "folds", 0, N, 1)[:, 0] * 4).astype(int)
    for i, alpha in enumerate(alphas):
        predicted = np.zeros_like(Y)
        for fold in range(4):
            model = linear_model.Ridge(alpha).fit(X[folds != fold], Y[folds != fold])
            predicted[folds == fold] = model.predict(X[folds == fold])
        truth = 1 - ((Y - predicted) ** 2).sum(0) / ((Y - Y.mean(0)) ** 2).sum(0)
        np.testing.assert_allclose(ours.cv_scores_[i], truth, atol=1e-10)
    assert ours.alpha_ == alphas[int(ours.cv_scores_.mean(axis=1).argmax())]
    np.testing.assert_allclose(ours.coef_, linear_model.Ridge(ours.alpha_).fit(X, Y).coef_, atol=1e-8)


KEYS = np.array([f"a{i}" for i in range(N)])
GROUPS = np.repeat([f"s{i}" for i in range(24)], 5)  # more than there may be folds


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keyed")
    order = RNG.permutation(N)
    for name, rows, own in (("x", X, KEYS), ("y", Y[order], KEYS[order]), ("z", Y, np.char.add(KEYS, "b"))):
        bp.ingest(rows, folder / f"{name}.zarr", keys=own)
    return folder


def test_each_group_is_left_out_in_turn_as_by_scikit_learn(keyed: Path, tmp_path: Path) -> None:
    alphas, x, y = [1e-2, 1.0, 1e2], keyed / "x.zarr", pd.DataFrame(Y, index=KEYS)
    ours = bp.Ridge(alphas).fit(X, Y, groups=GROUPS)
    for i, alpha in enumerate(alphas):
        predicted = cross_val_predict(linear_model.Ridge(alpha), X, Y, groups=GROUPS, cv=LeaveOneGroupOut())
        truth = 1 - ((Y - predicted) ** 2).sum(0) / ((Y - Y.mean(0)) ** 2).sum(0)
        np.testing.assert_allclose(ours.cv_scores_[i], truth, atol=1e-10)
    assert "for each of 24 folds" in bp.Ridge(alphas).plan(X, Y, groups=GROUPS).reason
    labels = pd.Series(GROUPS, KEYS).iloc[::-1]  # joined by key
    batches = bp.from_batches([(X[:50], Y[:50]), (X[50:], Y[50:])], (N, P))
    for a, b, groups in ((x, y, labels), (batches, None, GROUPS)):
        found = bp.Ridge(alphas).fit(a, b, groups=groups)
        np.testing.assert_allclose(found.cv_scores_, ours.cv_scores_, atol=1e-8)
    # Parts that cut a group, and a group alone, are joined by label: whole, merged, and from a file.
    a, b, c = (
        bp.Ridge(alphas).fit(X[own], Y[own], groups=GROUPS[own]) for own in (slice(73), slice(73, 97), slice(97, N))
    )
    a.save(tmp_path / "m.zarr")
    grown = bp.load(tmp_path / "m.zarr")
    for own in (slice(73, 75), slice(75, N)):
        grown.partial_fit(X[own], Y[own], groups=GROUPS[own])
    for found in (bp.merge(bp.merge(c, a), b), grown):
        np.testing.assert_allclose(found.cv_scores_, ours.cv_scores_, atol=1e-12)
        np.testing.assert_allclose(found.coef_, ours.coef_, atol=1e-12)
    error = bp.quality.cka(X, Y, groups=GROUPS).standard_error
    without = [
        bp.quality.cka(X[kept], Y[kept], n_folds=None).value for kept in (g != GROUPS for g in np.unique(GROUPS))
    ]
    assert error == pytest.approx(np.sqrt(23 / 24 * ((without - np.mean(without)) ** 2).sum()), rel=1e-9)


def test_rows_with_keys_have_the_same_folds_in_any_order_and_process(keyed: Path) -> None:
    order, make = RNG.permutation(N), bp.Ridge([0.5, 5.0], cv=3)
    expected = make.fit(keyed / "x.zarr", Y).cv_scores_.copy()
    for x, y in (
        (X[order], pd.DataFrame(Y[order], index=KEYS[order])),  # of either side
        (bp.open(keyed / "x.zarr")[order], Y[order]),
    ):
        np.testing.assert_allclose(make.fit(x, y).cv_scores_, expected, atol=1e-10)
    assert not np.allclose(make.fit(X, Y).cv_scores_, expected)
    np.testing.assert_allclose(expected[0], [0.865724, 0.565816, 0.833179, 0.639362], atol=1e-6)


MODELS: dict[str, Any] = {
    "CCA": lambda: bp.CCA(2),
    "CCA regularised": lambda: bp.CCA(2, regularization=(0.1, 0.2)),
    "PLSSVD": lambda: bp.PLSSVD(2),
    "Ridge": lambda: bp.Ridge(0.5),
    "Ridge of folds": lambda: bp.Ridge([0.5, 5.0], cv=3),
}
every = pytest.mark.parametrize("name", MODELS)


def answers(model: Any) -> list[Array]:
    found = model.transform(X, Y) if hasattr(model, "transform_y") else (model.predict(X),)
    return [np.asarray(one) for one in found]


@every
def test_sides_in_chunks_of_their_own_give_one_answer_in_one_read(name: str, tmp_path: Path) -> None:
    make = MODELS[name]
    bp.ingest(X, tmp_path / "x.zarr", chunk_rows=17)
    given = str(tmp_path / "x.zarr"), da.from_array(Y, chunks=(23, 4))
    planned = make().plan(*given)
    assert (planned.passes, planned.fits) == (1, True)
    assert "one read of both sides, 6 + 4 columns" in planned.reason
    for own, other in zip(answers(make().fit(*given)), answers(make().fit(X, Y)), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-8)


def test_rows_that_are_added_have_the_folds_of_their_numbers_among_all_rows(tmp_path: Path) -> None:
    holed, weights = np.where(np.arange(N)[:, None] % 7 == 3, np.nan, X), np.arange(N) % 4.0
    for x, w, policy in ((X, None, "raise"), (X, weights, "raise"), (holed, weights, "omit")):
        make = bp.Ridge([0.5, 5.0, 500.0], cv=3, nan_policy=policy)
        parts = [(x[own], Y[own], None if w is None else w[own]) for own in (slice(70), slice(70, 81), slice(81, N))]
        make.fit(parts[0][0], parts[0][1], sample_weight=parts[0][2]).save(tmp_path / policy, overwrite=True)
        grown = bp.load(tmp_path / policy)
        for rows, targets, own in parts[1:]:
            grown.partial_fit(rows, targets, sample_weight=own)
        np.testing.assert_allclose(grown.cv_scores_, make.fit(x, Y, sample_weight=w).cv_scores_, atol=1e-10)
    from_batches = make.fit(bp.from_batches([(holed[:50], Y[:50]), (holed[50:], Y[50:])]))
    np.testing.assert_allclose(from_batches.cv_scores_, make.fit(holed, Y).cv_scores_, atol=1e-10)


MAPS = Y.reshape(N, 2, 2)


def seen(maps: Any) -> Any:
    return bp.open(maps, pattern="n c h -> n (h c)")


def test_new_rows_of_y_are_cut_as_those_of_the_fit(tmp_path: Path) -> None:
    model, half = bp.CCA(2).fit(X, seen(MAPS)), bp.CCA(2).fit(X[:70], seen(MAPS[:70]))
    expected = model.transform_y(seen(MAPS))
    model.save(tmp_path / "m.zarr")
    merged = bp.merge(half, bp.CCA(2).fit(X[70:], seen(MAPS[70:])))
    for one in (model, bp.load(tmp_path / "m.zarr"), merged, half.partial_fit(X[70:], MAPS[70:])):
        np.testing.assert_allclose(one.transform_y(MAPS), expected, atol=1e-8)


@every
def test_missing_values_of_each_side_are_left_out_or_named(name: str) -> None:
    make = MODELS[name]
    holed, other = X.copy(), Y.copy()
    holed[3, 1] = other[7, 2] = np.nan
    kept = np.setdiff1d(np.arange(N), [3, 7])
    omitting = make().set_params(nan_policy="omit").fit(holed, other)
    assert (omitting.n_samples_, omitting.n_omitted_) == (N - 2, 2)
    if name != "Ridge of folds":
        np.testing.assert_allclose(omitting.transform(X), make().fit(X[kept], Y[kept]).transform(X), atol=1e-8)
    with pytest.raises(bp.errors.NonFiniteError, match=r"6 columns\) beside .* in row 7, column 8"):
        make().fit(X, other)


def by_group(groups: Any, sides: Any = (X, Y), **options: Any) -> Any:
    return bp.Ridge([1, 2], **options).fit(*sides, groups=groups)


def test_more_columns_than_rows_need_a_regularization_and_say_so() -> None:
    wide = RNG.standard_normal((20, 50))
    with pytest.warns(bp.errors.ApproximationWarning, match="of 50 columns, 19 are independent in 20 rows"):
        found = bp.CCA(2).fit(wide, Y[:20])
    np.testing.assert_allclose(found.correlations_, 1.0, atol=1e-9)
    assert found.ranks_.tolist() == [19, 4]
    assert bp.CCA(2, regularization=1.0).fit(wide, Y[:20]).correlations_[0] < 0.999


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bp.CCA(2).fit(X), ValueError, "CCA requires y to be passed, but the target y is None. Give Y"),
        (lambda: bp.CCA(5).fit(X, Y), ValueError, "n_components = 5, but X has 6 columns and Y 4: at most 4"),
        (lambda: bp.PLSSVD(0).fit(X, Y), ValueError, "n_components = 0"),
        (lambda: bp.PLSSVD(1, scale="lat").fit(X, Y), TypeError, "scale = 'lat' is a str; True, False, a rule such as"),
        (lambda: bp.CCA(1, scale=bp.scales.CosLatitude("lat")).fit(X, Y), ValueError, "X is not a DataArray"),
        (lambda: bp.CCA(1, scale=(True, [1.0, 2.0])).fit(X, Y), ValueError, "scale has 2 numbers"),
        (lambda: bp.CCA(1, scale="patterson").fit(X, Y), TypeError, "scale = 'patterson' is a str; True, F"),
        (lambda: bp.Ridge(-1.0).fit(X, Y), ValueError, "alpha = -1.0; a number of at least 0"),
        (lambda: bp.Ridge([]).fit(X, Y), ValueError, r"alpha = \[\]"),
        (lambda: bp.Ridge(fit_intercept="no").fit(X, Y), TypeError, "fit_intercept = 'no' is a str; True or False"),
        (lambda: bp.Ridge([1, 2], cv=30).fit(X, Y), ValueError, r"cv = 30 is outside \[2, 20\]; a number of folds"),
        (lambda: by_group(GROUPS[1:]), ValueError, "there are 119 groups for 120 rows"),
        (lambda: by_group([None, *GROUPS[1:]]), ValueError, r"1 of \d+ groups are missing \(row 0\)"),
        (lambda: by_group(["a"] * N), ValueError, "all rows are in the group 'a'; at least 2"),
        (lambda: by_group(GROUPS, (bp.from_batches(iter([(X, Y)])),)), ValueError, "unknown number of rows"),
        (lambda: by_group(GROUPS, memory_limit="1 MiB"), MemoryError, "memory"),
        (lambda: bp.Ridge(1.0).fit(X, Y, groups=GROUPS), TypeError, "this Ridge, which uses none"),
        (lambda: bp.ApproximatePCA(1).plan(X, groups=GROUPS), TypeError, "PCA, which uses none: bigpca.Ridge"),
        (lambda: by_group(GROUPS).partial_fit(X, Y), ValueError, "folds of some rows are groups, those of others are"),
        (lambda: by_group(GROUPS).partial_fit(X, Y, groups=range(N)), TypeError, "so far are strings .*s0.* numbers"),
        (lambda: by_group(None).partial_fit(X, Y, groups=GROUPS), ValueError, "Give groups= for all rows, or for none"),
        (lambda: by_group(None).set_params(cv=3).partial_fit(X, Y), ValueError, "5 folds, others 3. Give one cv"),
        (lambda: by_group(GROUPS).set_params(alpha=1).partial_fit(X, Y), ValueError, "others with one. Fit all rows"),
        (lambda: bp.merge(bp.Ridge(1.0).fit(X, Y), by_group(None)), ValueError, "a state for each fold"),
        (lambda: bp.merge(bp.Ridge().fit(X, Y), bp.Ridge().fit(X, Y[:, :3])), ValueError, "of 4 and 3 columns of Y"),
        (lambda: bp.CCA(1).fit(X, Y).partial_fit(X, Y, groups=GROUPS), TypeError, "this CCA, which uses none"),
        (lambda: bp.CCA(2, regularization=-1).fit(X, Y), ValueError, "regularization = -1; a number of at least 0"),
        (lambda: bp.CCA(2, nan_policy="mean").fit(X, Y), ValueError, 'nan_policy = "mean" is for PCA'),
        (lambda: bp.CCA(2).fit(X, Y).transform(Y), ValueError, "X has 4 features, but CCA is expecting 6"),
        (lambda: bp.CCA(2).fit(X, Y).transform(X, X), ValueError, "Y has 6 columns, .* fitted on 4. .*swapped"),
        (lambda: bp.CCA(2).fit(X, Y).partial_fit(X, X), ValueError, "Y has 6 columns, but CCA was fitted on 4"),
        (lambda: bp.CCA(2, memory_limit="1 MiB").fit(X, Y), MemoryError, "memory"),
        (lambda: bp.merge(bp.CCA(2).fit(X, Y), bp.CCA(2).fit(X, Y[:, :3])), ValueError, "4 and 3 columns of Y"),
        (lambda: bp.merge(bp.CCA(1).fit(X, Y), bp.CCA(1).fit(X, seen(MAPS))), ValueError, "of Y of different patterns"),
        (lambda: bp.CCA(2).fit(X, FIELD * np.nan), ValueError, "all 4 columns of the DataArray are NaN"),
        (lambda: bp.Ridge().fit(X, OCEAN).score(X, FIELD[:, :1]), ValueError, "the features of Y are .*Pass Y on that"),
        (lambda: bp.Ridge().fit(X, OCEAN).score(X, FIELD), ValueError, "1 column holds NaN in some rows and values"),
        *((partial(call, of, as_given), ValueError, "X has 120 rows, and Y 113: row i of Y belongs to row i of X")
          for of in (bp.CCA(2), bp.PLSSVD(2), bp.PLSRegression(2))
          for as_given in (np.asarray, lambda rows: da.from_array(rows, chunks=(50, -1)))
          for call in (
              lambda of, given: clone(of).fit(X, Y).transform(given(X), given(Y[:113])),
              lambda of, given: clone(of).fit(X, Y).inverse_transform(given(X[:, :2]), given(Y[:113, :2])),
          )),
        (lambda: bp.CCA(1).fit(X, Y).inverse_transform(pd.DataFrame(X[:, :1], KEYS), pd.DataFrame(X[:, 0], KEYS)[::-1]),
         ValueError, "the rows of Y have the keys of the rows of X, but in another order"),
        (lambda: bp.merge(bp.CCA(2).fit(X, OCEAN), bp.CCA(2).fit(X, FIELD)), ValueError, "4 columns of Y"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


WAYS: dict[str, Any] = {
    "cka": lambda a, b: bp.quality.cka(a, b),
    "biased cka": lambda a, b: bp.quality.cka(a, b, debiased=False),
    "procrustes": lambda a, b: bp.quality.procrustes(a, b),
    "compare_layers": lambda a, b: bp.compare_layers({"X": a, "Y": b}),
    "CCA": lambda a, b: bp.CCA(1).fit(a, b),
    "PLSSVD": lambda a, b: bp.PLSSVD(1).fit(a, b),
    "Ridge": lambda a, b: bp.Ridge([0.1, 1.0]).fit(a, b),
    "covariates": lambda a, b: bp.PCA(1).fit(a, covariates=b),
}
HOLED = np.where(np.arange(N * Q).reshape(N, Q) == 9, np.nan, Y)
OTHER = "[YZ]|layer 'Y'"
BAD: dict[str, tuple[Any, Any, str, set[str]]] = {  # X, Y, the message, and the ways that accept it
    "unequal rows": (X, Y[1:], "X has 120 rows, and [YZ] 119: row i of [YZ] belongs to row i of X", set()),
    "complex Y": (X, Y * 1j, f"not supported: ({OTHER}) is complex128", set()),
    "strings in Y": (X, Y.astype(str), f"({OTHER}): dtype='numeric' is not compatible", set()),
    "objects in Y": (X, np.full((N, 2), "a", object), f"({OTHER}): could not convert", set()),
    "dates in Y": (X, np.zeros((N, 2), "M8[s]"), f"({OTHER}): dtype datetime64", set()),
    "one row": (X[:1], Y[:1], "1 sample|1 rows", set()),
    "three rows": (X[:3], Y[:3], "3 rows|but X has 3|2 are linearly", {"PLSSVD", "Ridge"}),
    "no columns": (X, Y[:, :0], "0 feature", set()),
    "constant Y": (X, np.ones((N, 3)), "Y is constant in all 120 rows|of 3 covariates, 0 are linearly", set()),
    "constant X": (np.ones((N, 3)), Y, "X is constant in all 120 rows", {"covariates"}),
    "values whose squares are 0": (X * 1e-170, Y, "below 1e-150 leave|varies by less than 1e-162", set()),
    "a hole in Y": (X, HOLED, r"6 columns\) beside .* in row 2, column 7", set()),
    "more columns than rows": (
        np.hstack([X] * 20), np.vander(np.linspace(0, 1, N), 130), "is singular|linearly independent",
        set(WAYS) - {"CCA", "covariates"},
    ),
    "keys in another order": (
        "x.zarr", "y.zarr", r"have the keys of the rows of X, but in another order: 'a0'.*by_key\([YZ], X\)",
        {"covariates"},
    ),
    "a series in another order": (
        pd.DataFrame(X, KEYS), pd.Series(Y[:, 0], KEYS)[::-1], "in another order: 'a0', 'a1' and 'a119'",
        {"covariates"},
    ),
    "a labelled column in another order": (
        xr.DataArray(X, {"time": KEYS}, ("time", "place")), xr.DataArray(Y[:, 0], {"time": KEYS}, ("time",))[::-1],
        "in another order: 'a0', 'a1' and 'a119'", {"covariates"},
    ),
    "labelled rows that lag": (
        xr.DataArray(X, {"time": KEYS}, ("time", "place"))[:-1], xr.DataArray(Y, {"time": KEYS}, ("time", "at"))[1:],
        r"1 of 119 rows (of X have no row of [YZ]: 'a0'.* no keys: [YZ].drop_vars\(dimension\)|have no covariate)",
        set(),
    ),
    "other keys": ("x.zarr", "z.zarr", "no (value|covariate): 'a0'.*have keys such as 'a0b'", set()),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_compared_is_named_by_all_that_compare(
    bad: str, keyed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(keyed)
    a, b, message, accepting = BAD[bad]
    for way, call in WAYS.items():
        if way in accepting:
            call(a, b)
            continue
        with pytest.raises((ValueError, TypeError, bp.errors.ApproximationWarning)) as caught:
            call(a, b)
        assert re.search(message, str(caught.value), re.DOTALL), (way, str(caught.value))
    if bad == "keys in another order":  # and the remedy that the message names
        joined = bp.data.by_key("y.zarr", "x.zarr")
        assert bp.quality.cka("x.zarr", joined, n_folds=None).value == bp.quality.cka(X, Y, n_folds=None).value


@pytest.mark.parametrize(("p", "q"), [(1, Q), (P, 1), (1, 1)])
def test_sides_of_one_column_are_compared(p: int, q: int) -> None:
    for call in WAYS.values():
        call(X[:, :p], Y[:, :q])


def test_one_column_a_side_and_one_target() -> None:
    r = np.corrcoef(X[:, 0], Y[:, 0])[0, 1]
    assert bp.CCA(1).fit(X[:, :1], Y[:, 0]).correlations_[0] == pytest.approx(abs(r), rel=1e-12)
    assert bp.Ridge(0.0).fit(X[:, :1], Y[:, 0]).score(X[:, :1], Y[:, 0]) == pytest.approx(r**2, rel=1e-10)


def test_every_two_layers_are_compared_in_one_read() -> None:
    layers = {"first": X, "second": X[:, :3] ** 2, "third": Y}
    for found in (bp.compare_layers(layers), bp.compare_layers(bp.from_batches([layers]))):
        assert found.rows == found.columns == ("first", "second", "third")
        assert found.values.diagonal().tolist() == [1.0, 1.0, 1.0]
        assert found.values[0, 2] == pytest.approx(bp.quality.cka(X, Y).value, rel=1e-12)
        np.testing.assert_allclose(found.values, found.values.T)
    two = bp.compare_layers(layers, {"out": Y, "in": X}, debiased=False)
    assert two.values.shape == (3, 2)
    assert two.values[2, 0] == pytest.approx(1.0)
    assert two.values[1, 1] == pytest.approx(bp.quality.cka(X[:, :3] ** 2, X, debiased=False).value, rel=1e-12)
    shapes = bp.compare_layers(layers, metric="procrustes")
    assert shapes.values[0, 2] == pytest.approx(bp.quality.procrustes(X, Y).value, rel=1e-12)
    two = bp.compare_layers(layers, {"out": Y, "in": X}, metric="procrustes")
    np.testing.assert_allclose(two.to_frame()[["in", "out"]], shapes.values[:, [0, 2]], rtol=1e-10)
    two = bp.compare_layers(layers, {"out": Y, "in": X * 2.0**-60})
    np.testing.assert_allclose(two.values, bp.compare_layers(layers).values[:, [2, 0]], rtol=1e-10)
    assert "second" in str(two)
    with pytest.raises(ValueError, match="flat is constant"):
        bp.compare_layers({"x": X, "flat": np.ones((N, 2))})
    with pytest.raises(TypeError, match=r"dicts \{name: rows\}"):
        bp.compare_layers(X)


@pytest.mark.parametrize("metric", ["cka", "procrustes"])
@pytest.mark.parametrize("other", [False, True])
def test_every_two_layers_have_the_error_of_their_own_comparison(metric: str, other: bool) -> None:
    layers, groups = {"first": X, "second": X[:, :3] ** 2, "third": Y}, np.arange(N) % 6
    pair = getattr(bp.quality, metric)
    given = (layers, {"out": Y, "in": X}) if other else (layers,)
    found = bp.compare_layers(*given, metric=metric, groups=groups)
    columns = given[-1]
    for i, a in enumerate(layers.values()):
        for j, b in enumerate(columns.values()):
            if a is not b:
                one = pair(a, b, groups=groups)
                assert found.values[i, j] == pytest.approx(one.value, rel=1e-10)
                assert found.standard_errors[i, j] == pytest.approx(one.standard_error, rel=1e-8)
    np.testing.assert_allclose(bp.compare_layers(*given, metric=metric, n_folds=5).values, found.values, rtol=1e-12)


ONE = Y[:, 0]
GIVEN_ONE: dict[str, Any] = {  # forms of one target, as (n,) and as (n, 1)
    "array": lambda y: (X, y),
    "Dask": lambda y: (X, da.from_array(y, chunks=(50, *y.shape[1:]))),
    "pandas": lambda y: (X, pd.Series(y) if y.ndim == 1 else pd.DataFrame(y)),
    "list": lambda y: (X, y.tolist()),
    "batches": lambda y: (bp.from_batches([(X[:50], y[:50]), (X[50:], y[50:])]), None),
}


@pytest.mark.parametrize("form", GIVEN_ONE)
def test_one_target_has_the_dimensions_that_it_was_given_in_as_in_scikit_learn(form: str, tmp_path: Path) -> None:
    for y in (ONE, ONE[:, None]):
        theirs, of_cca = linear_model.Ridge(1.0).fit(X, ONE), cross_decomposition.CCA(1).fit(X, y)
        # NOTE: scikit-learn's Ridge drops the dimension of (n, 1) in some versions; here it stays.
        coef, predicted = theirs.coef_.reshape(*y.shape[1:], P), theirs.predict(X).reshape(y.shape)
        model = bp.Ridge(1.0).fit(*GIVEN_ONE[form](y))
        assert np.shape(model.intercept_) == y.shape[1:]
        model.save(tmp_path / f"{y.ndim}.zarr")
        for one in (model, bp.load(tmp_path / f"{y.ndim}.zarr")):
            np.testing.assert_allclose(one.coef_, coef, atol=1e-9, strict=True)
            np.testing.assert_allclose(one.predict(X), predicted, atol=1e-9, strict=True)
            assert one.predict(da.from_array(X, chunks=50)).shape == y.shape
            assert one.score(X, y) == pytest.approx(theirs.score(X, y))
        ours = bp.CCA(1).fit(*GIVEN_ONE[form](y))
        assert ours.coef_.shape == of_cca.coef_.shape == (1, P)
        np.testing.assert_allclose(ours.predict(X), of_cca.predict(X), atol=1e-9)
        assert ours.transform(X).shape == ours.transform_y(y).shape == (N, 1)
        if form != "batches":
            parts = [GIVEN_ONE[form](part) for part in (y[:70], y[70:])]
            halves = [bp.Ridge(1.0).fit(rows, part) for rows, (_, part) in zip((X[:70], X[70:]), parts, strict=True)]
            for whole in (bp.merge(*halves), halves[0].partial_fit(X[70:], parts[1][1])):
                np.testing.assert_allclose(whole.predict(X), predicted, atol=1e-9, strict=True)


def test_a_single_target_that_is_a_dataarray_has_predictions_along_its_samples() -> None:
    model = bp.Ridge(1.0).fit(SEA, FIELD[:, 0, 0].rename("sst"))
    found = model.predict(SEA)
    assert (found.dims, found.name) == (("time",), "sst")
    np.testing.assert_array_equal(found, model.predict(X))
