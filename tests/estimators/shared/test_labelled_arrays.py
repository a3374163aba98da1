"""Labelled arrays: rows by sample_dims, land left out and put back, scores and patterns with their coordinates."""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import bigpca as bp
from bigpca.data.dask_arrays import source_of
from bigpca.errors import ModelFormatError
from bigpca.estimators.shared import files

xr = pytest.importorskip("xarray")

RNG = np.random.default_rng(0)
T, M, LAT, LON = 24, 3, 5, 4
LAND = np.zeros((LAT, LON), bool)
LAND[[0, 2, 2, 4], [0, 1, 2, 3]] = True
SEA = ~LAND.ravel()
VALUES = np.where(LAND, np.nan, RNG.standard_normal((T, M, LAT, LON)) + 3 * RNG.standard_normal((T, M, 1, 1)) + 280)
FLAT = VALUES.reshape(T * M, -1)[:, SEA]
COORDS: dict[str, Any] = {
    "time": np.datetime64("2000-01-01", "ns") + np.arange(T) * np.timedelta64(30, "D"),
    "member": list("abc"),
    "lat": ("lat", np.linspace(-60, 60, LAT), {"units": "degrees_north"}),
    "lon": np.arange(LON) * 10.0,
    "season": ("time", np.arange(T) % 4),
    "area": (("lat", "lon"), RNG.random((LAT, LON))),
    "basin": ("lon", np.array(["p", "p", "a", "a"], object)),
    "month": ("lat", np.datetime64("2000-01", "ns") + np.arange(LAT) * np.timedelta64(1, "D")),
    "both": (("time", "lat"), np.zeros((T, LAT))),
    "depth": 5.0,
}
FIELD = xr.DataArray(
    VALUES,
    dims=("time", "member", "lat", "lon"),
    coords=COORDS,
    name="sst",
    attrs={"units": "K", "range": np.arange(2)},
)
ONE = FIELD.isel(member=0)
SAMPLES = ("time", "member")
quiet = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
REFERENCE = bp.PCA(3).fit(FLAT)


def stored(folder: Path, field: Any) -> Any:
    field.drop_vars("basin").to_dataset(name="sst").to_zarr(folder / "field.zarr", consolidated=False, zarr_format=2)
    return xr.open_zarr(folder / "field.zarr", consolidated=False, chunks=None)["sst"]


FORMS: dict[str, Callable[[Path], Any]] = {
    "NumPy": lambda p: FIELD,
    "Dask": lambda p: FIELD.chunk(time=7, lon=2),
    "transposed": lambda p: FIELD.transpose("lat", "time", "lon", "member"),
    "transposed Dask": lambda p: FIELD.transpose("lon", "lat", "member", "time").chunk(time=9, lat=2),
    "Dask, all times of a cell": lambda p: FIELD.chunk(time=-1, member=1, lat=1, lon=1),
    "members first in memory": lambda p: FIELD.transpose("member", ...).copy(deep=True),
    "not read": lambda p: stored(p, FIELD),
}


@pytest.mark.parametrize("form", FORMS)
def test_samples_along_named_dimensions_are_rows_whatever_the_order_of_dimensions(form: str, tmp_path: Path) -> None:
    given = FORMS[form](tmp_path)
    rows = bp.open(given.transpose(..., "lat", "lon"), sample_dims=SAMPLES)
    np.testing.assert_array_equal(rows, VALUES.reshape(T * M, -1))
    pca = bp.PCA(3, solver="covariance").fit(rows)
    np.testing.assert_allclose(pca.explained_variance_, REFERENCE.explained_variance_, rtol=1e-10)
    scores = pca.transform(given)
    assert scores.dims == (*SAMPLES, "component")
    assert isinstance(scores.data, da.Array) == ("Dask" in form or form == "not read")
    np.testing.assert_allclose(np.asarray(scores).reshape(-1, 3), REFERENCE.transform(FLAT), atol=1e-10)
    assert scores.component.values.tolist() == [0, 1, 2]
    for name in ("time", "member", "season"):
        xr.testing.assert_identical(scores.coords[name].variable, FIELD.coords[name].variable)
    assert not {"lat", "area", "both", "depth"} & set(scores.coords)
    written = pca.transform(given, out=tmp_path / "scores.zarr")
    xr.testing.assert_identical(written.compute(), scores.compute())
    back = pca.inverse_transform(scores.transpose("component", ...))
    assert (back.dims, type(back.data)) == (FIELD.dims, type(scores.data))
    np.testing.assert_allclose(np.isnan(back), np.isnan(VALUES))
    np.testing.assert_allclose(back.values.reshape(T * M, -1)[:, SEA], REFERENCE.inverse_transform(
        REFERENCE.transform(FLAT)))  # fmt: skip
    assert pca.remove_components(given, 0).dims == FIELD.dims


CLASSES = np.arange(T * M) % 3
OF_ROWS: dict[str, tuple[Any, str | None]] = {  # methods that map rows: of which model, and the last dimension, if any
    **dict.fromkeys(("hotelling_t2", "spe", "mahalanobis", "score_samples"), (bp.PCA(3), None)),
    "statistics": (bp.PCA(3), "statistic"),
    "contributions": (bp.PCA(3), "lon"),
    "novelty": (bp.KernelPCA(3, kernel="rbf"), None),
    "predict": (bp.FisherDiscriminantAnalysis(), None),
}


@pytest.mark.parametrize("method", OF_ROWS)
def test_what_is_known_of_each_row_has_the_labels_of_its_sample(method: str) -> None:
    model, dim = OF_ROWS[method]
    truth = getattr(clone(model).fit(FLAT, CLASSES), method)(FLAT)
    fitted = clone(model).fit(bp.open(FIELD, sample_dims=SAMPLES), CLASSES)
    for given in (FIELD, FIELD.chunk(time=7)):
        found = getattr(fitted, method)(given)
        assert found.dims == (FIELD.dims if dim == "lon" else SAMPLES if dim is None else (*SAMPLES, dim))
        assert isinstance(found.data, da.Array) == (given.chunks is not None)
        xr.testing.assert_identical(found.season.variable, FIELD.season.variable)
        rows = found.values.reshape(T * M, -1)
        np.testing.assert_allclose(rows[:, SEA] if dim == "lon" else np.squeeze(rows), truth, rtol=1e-8, atol=1e-10)
    if hasattr(fitted, "spe_limit"):
        assert fitted.spe_limit(0.9, FIELD) == pytest.approx(clone(model).fit(FLAT).spe_limit(0.9, FLAT))
    else:
        assert method == "novelty" or fitted.score(FIELD, CLASSES) == clone(model).fit(FLAT, CLASSES).score(
            FLAT, CLASSES
        )


def test_a_model_as_a_dataset_has_its_patterns_on_the_grid_also_from_a_file_and_a_pickle(tmp_path: Path) -> None:
    pca = bp.PCA(3, scale=True).fit(bp.open(FIELD.chunk(time=5), sample_dims=SAMPLES))
    found = pca.to_xarray()
    assert found.components.dims == ("component", "lat", "lon")
    np.testing.assert_array_equal(np.isnan(found.components), np.broadcast_to(LAND, (3, LAT, LON)))
    np.testing.assert_array_equal(found.components.values.reshape(3, -1)[:, SEA], pca.components_)
    for name, values in (("mean", pca.mean_), ("scale", pca.scale_)):
        np.testing.assert_array_equal(found[name].values.ravel()[SEA], values)
        assert np.isnan(found[name].values.ravel()[~SEA]).all()
    np.testing.assert_array_equal(found.explained_variance_ratio, pca.explained_variance_ratio_)
    assert set(found.coords) == {"component", "lat", "lon", "area", "basin", "month"}
    assert found.lat.attrs == {"units": "degrees_north"}
    assert {name: found.attrs[name] for name in ("units", "variable", "solver", "n_samples", "sample_dims")} == {
        "units": "K", "variable": "sst", "solver": pca.solver_, "n_samples": T * M, "sample_dims": "time, member",
    }  # fmt: skip
    assert found.attrs["call"] == "PCA(n_components=3, scale=True).fit(X)"
    pca.save(tmp_path / "model")
    for again in (bp.load(tmp_path / "model"), pickle.loads(pickle.dumps(pca))):
        same = again.to_xarray()
        same["basin"] = same.basin.astype(object)  # strings of a file are those of NumPy
        xr.testing.assert_equal(same, found)
        xr.testing.assert_identical(again.transform(FIELD), pca.transform(FIELD))
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            assert again.transform(VALUES.reshape(T * M, -1)).shape == (T * M, 3)
    plain = bp.PCA(2).fit(FLAT).to_xarray()
    assert plain.components.dims == ("component", "feature")
    numbered = xr.DataArray(VALUES[:, 0], dims=(0, 1, 2))
    assert bp.PCA(2).fit(numbered).transform(numbered).dims == ("0", "component")
    assert bp.PCA(2).fit(ONE.drop_vars(list(ONE.coords))).to_xarray().components.dims == ("component", "lat", "lon")


PLAIN = xr.DataArray(RNG.standard_normal((9, LAT, 3)), dims=("time", "lat", "lon"), coords={"lon": [0, 1, 2]})
LOST: dict[str, tuple[Callable[[], Any], str, str]] = {
    "dates of a calendar": (lambda: PLAIN.assign_coords(
        lat=xr.date_range("0000-02-28", periods=LAT, freq="12345s", calendar="360_day", use_cftime=True)),
        "lat", r"'lat' \(Datetime360Day\)"),
    "several levels": (lambda: PLAIN.assign_coords(lat=np.arange(LAT) * 0.1).stack(cell=("lat", "lon")),
        "cell", r"'cell' \(tuple\)"),
    "texts and numbers": (lambda: PLAIN.assign_coords(lat=np.array(["a", 1, None, 2.5, "b"], object)),
        "lat", r"'lat' \(NoneType, float, int, str\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
def test_a_file_says_which_coordinates_it_leaves_out(case: str, tmp_path: Path) -> None:
    pytest.importorskip("cftime")
    make, lost, message = LOST[case]
    field = make()
    model = bp.PCA(2).fit(field)
    with pytest.warns(UserWarning, match=message):
        model.save(tmp_path / "model")
    again = bp.load(tmp_path / "model")
    assert again.feature_names_in_.tolist() == model.feature_names_in_.tolist()
    assert set(model.to_xarray().coords) - {"component"} == set(field[0].coords)
    assert set(model.to_xarray().coords) - set(again.to_xarray().coords) == {lost}
    other = field.isel({field.dims[1]: slice(None, None, -1)})
    with pytest.raises(ValueError, match=r"feature names should match|the coordinate 'lat' of X is"):
        again.transform(other)


def test_columns_without_values_are_left_out() -> None:
    lazy = ONE.chunk(time=4)
    pca = bp.PCA(2, solver="covariance").fit(lazy)
    assert bp.PCA(2, solver="covariance").fit(ONE).provenance_.reads == 1 + 1 / T
    assert pca.n_features_in_ == SEA.sum()
    np.testing.assert_allclose(pca.explained_variance_, bp.PCA(2).fit(FLAT[::M]).explained_variance_, rtol=1e-10)
    holes = ONE.copy(deep=True)
    holes[0], holes[7, 1, 1] = np.nan, np.nan  # a missing time step, and a missing value
    holes[6, 2, 0] = np.inf
    for chunks in (1, 5):
        left = bp.PCA(2, solver="covariance", nan_policy="omit").fit(holes.chunk(time=chunks))
        assert (left.n_omitted_, left.n_features_in_, left.provenance_.reads) == (3, SEA.sum(), 1 + (1 + chunks / T))
        expected = bp.PCA(2).fit(np.delete(FLAT[::M], [0, 6, 7], axis=0))
        np.testing.assert_allclose(left.explained_variance_, expected.explained_variance_, rtol=1e-10)
        assert np.flatnonzero(np.isnan(left.transform(holes)).any("component")).tolist() == [0, 6, 7]
    weights = (np.arange(T - 1) > 0).astype(float)  # 0 for the missing step, which is as if it were not there
    holes[6] = ONE[6]
    weighted = bp.PCA(2, solver="covariance").fit(holes.drop_isel(time=7).chunk(time=4), sample_weight=weights)
    assert weighted.n_features_in_ == SEA.sum()
    assert bp.PCA(2).fit(ONE.fillna(0.0)).n_features_in_ == LAT * LON
    again = weighted.fit(FLAT)  # which forgets the grid
    assert again.transform(FLAT).shape == (T * M, 2)
    assert again.to_xarray().components.dims == ("component", "feature")
    assert bp.PCA(2).fit(ONE.fillna(0.0).astype(int)).n_features_in_ == LAT * LON


COMPLETE, LATE_LAND = ONE.fillna(280.0), ONE.copy(deep=True)
LATE_LAND[9, 1, 1] = np.nan
ALONG = xr.DataArray(1 + np.arange(T) % 3, dims="time", coords={"time": ONE.time})  # a number for each sample
SEARCHED: dict[str, tuple[Any, str, int, float]] = {  # a field, the policy, times in a chunk, and the reads of its fit
    "land": (ONE, "raise", 4, 1 + 4 / T),
    "no land": (COMPLETE, "raise", 4, 1 + 4 / T),
    "integers": (COMPLETE.astype("i4"), "raise", 4, 1),
    "incomplete rows": (LATE_LAND, "omit", 4, 2 + 4 / T),
    "incomplete rows without land": (LATE_LAND.fillna(280.0), "omit", 4, 1 + 4 / T),
    "filled": (LATE_LAND, "mean", 4, 2),
    "filled, in one chunk": (LATE_LAND, "mean", T, 2),
    "filled, complete": (COMPLETE, "mean", 5, 2),
    "filled, integers": (COMPLETE.astype("i4"), "mean", 5, 1),
}


@quiet
@pytest.mark.parametrize("case", SEARCHED)
def test_the_reads_that_find_columns_without_values_are_planned_and_counted(case: str) -> None:
    field, policy, times, reads = SEARCHED[case]
    lazy, pca = field.chunk(time=times, lat=2), bp.PCA(2, solver="covariance", nan_policy=policy)
    rows = field.values.reshape(T, -1).astype("f8")
    rows = rows[:, ~np.isnan(rows).all(axis=0)]
    rows = rows[~np.isnan(rows).any(axis=1)] if policy == "omit" else rows
    rows = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    planned = pca.plan(lazy)
    for _ in range(2):  # the first leaves no mark on the array
        found = pca.fit(lazy)
        assert (found.provenance_.reads, found.n_features_in_) == (pytest.approx(reads), rows.shape[1])
        assert planned.passes <= round(reads, 2) <= (planned.most_passes or planned.passes)
        assert found.plan_.passes == round(reads, 2)
        np.testing.assert_allclose(found.explained_variance_, np.linalg.eigvalsh(np.cov(rows.T))[:-3:-1], rtol=1e-9)


def test_coordinates_are_compared_by_value_and_where_they_are_missing_positions_count() -> None:
    field = ONE.assign_coords(lat=np.arange(-2.0, 3))
    model = bp.PCA(2).fit(field)
    truth = model.transform(field).values
    for lat in (np.arange(-2, 3), -np.arange(-2.0, 3)[::-1], np.arange(-2, 3, dtype="f4")):
        np.testing.assert_array_equal(model.transform(field.assign_coords(lat=lat)), truth)
    for lost in (["lat"], ["lat", "lon"]):
        with pytest.warns(UserWarning, match=rf"no coordinates along {', '.join(lost)}, but PCA was fitted with them"):
            np.testing.assert_array_equal(model.transform(field.drop_vars(lost).chunk(time=5)), truth)


def test_weights_and_labels_of_labelled_samples_are_those_of_their_coordinates() -> None:
    both = (ALONG * xr.DataArray([1, 0, 2], dims="member", coords={"member": FIELD.member})).astype("f8")
    rows = bp.open(FIELD, sample_dims=SAMPLES)
    weighted = bp.PCA(2).fit(rows, sample_weight=both.transpose("member", "time"))
    truth = bp.PCA(2).fit(FLAT, sample_weight=both.transpose(*SAMPLES).values.ravel())
    np.testing.assert_allclose(weighted.explained_variance_, truth.explained_variance_, rtol=1e-12)
    assert bp.PCA(2).plan(rows, sample_weight=both).notes[0].startswith(f"weights: {2 * T} rows")
    labelled = bp.SupervisedPCA(1).fit(ONE, ALONG)
    np.testing.assert_array_equal(labelled.components_, bp.SupervisedPCA(1).fit(ONE, ALONG.values).components_)


def test_rows_of_weight_0_hide_no_column_from_rows_that_are_added() -> None:
    field = ONE.copy(deep=True)
    field[0] = np.nan
    weights = np.arange(T) > 0
    grown = bp.PCA(2, solver="covariance").partial_fit(field[:9], sample_weight=weights[:9].astype(float))
    assert grown.n_features_in_ == SEA.sum()
    grown.partial_fit(field[9:])
    np.testing.assert_allclose(grown.explained_variance_, bp.PCA(2).fit(ONE[1:]).explained_variance_, rtol=1e-10)


HALVES = np.arange(T, dtype="O") % 2
LABELLED_ROWS = partial(bp.SupervisedPCA, 1, missing_labels="drop", nan_policy="omit")
NOT_COUNTED: dict[str, Callable[[Any, Any], Any]] = {  # fits of a field whose rows that are not True have no part in it
    "weights of 0": lambda X, own: bp.PCA(2, solver="covariance").fit(X, sample_weight=own.astype(float)),
    "weights of 0, incomplete rows": lambda X, own: bp.PCA(2, solver="covariance", nan_policy="omit").fit(
        X, sample_weight=own.astype(float)
    ),
    "weights of 0, filled": lambda X, own: bp.PCA(2, nan_policy="mean").fit(X, sample_weight=own.astype(float)),
    **{
        f"no label, {kind.__name__}": partial(
            lambda kind, X, own: kind(1, missing_labels="drop").fit(X, np.where(own, HALVES, None)), kind
        )
        for kind in (bp.SupervisedPCA, bp.FisherDiscriminantAnalysis, bp.KernelSupervisedPCA)
    },
    "no label, real": lambda X, own: bp.SupervisedPCA(1, missing_labels="drop").fit(
        X, np.where(own, np.arange(T) ** 2.0, np.nan)
    ),
    "no label, incomplete rows": lambda X, own: LABELLED_ROWS().fit(X, np.where(own, HALVES, None)),
    "no label, chosen columns": lambda X, own: bp.ScoredPCA(
        n_features_to_select=4, estimator=LABELLED_ROWS(), missing_labels="drop", nan_policy="omit"
    ).fit(X, np.where(own, HALVES, None)),
}


@quiet
@pytest.mark.parametrize("times", [None, 5])
@pytest.mark.parametrize("holds", ["values on land", "no values"])
@pytest.mark.parametrize("case", NOT_COUNTED)
def test_rows_that_do_not_count_decide_on_no_column(case: str, holds: str, times: int | None) -> None:
    own = ~np.isin(np.arange(T), [0, 1, 9])
    field = ONE.copy(deep=True)
    field[~own] = 7.0 if holds == "values on land" else np.nan
    found = NOT_COUNTED[case](field if times is None else field.chunk(time=times), own)
    truth = NOT_COUNTED[case](ONE.copy(), own)
    assert found.n_features_in_ == SEA.sum()
    rows = FLAT[::M][own]
    np.testing.assert_allclose(found.transform(ONE[own]), truth.transform(ONE[own]), atol=1e-8)
    if isinstance(found, bp.PCA):
        np.testing.assert_allclose(found.explained_variance_, np.linalg.eigvalsh(np.cov(rows.T))[:-3:-1], rtol=1e-9)


def test_batches_and_merged_models_agree_on_the_grid_and_its_land() -> None:
    def model() -> Any:
        return bp.PCA(2, scale=bp.scales.CosLatitude("lat"), solver="covariance")

    whole = model().fit(ONE)
    grown = model().partial_fit(ONE[:7]).partial_fit(ONE[7:8].chunk())
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        grown.partial_fit(VALUES[8:, 0].reshape(T - 8, -1))
    merged = bp.merge(model().fit(ONE[:9]), model().fit(ONE[9:]))
    given = bp.PCA(2, scale=bp.scales.CosLatitude(np.repeat(ONE.lat.values, LON)), solver="covariance").fit(ONE)
    for one in (grown, merged, given):
        np.testing.assert_allclose(one.explained_variance_, whole.explained_variance_, rtol=1e-9)
        np.testing.assert_allclose(one.to_xarray().components, whole.to_xarray().components, atol=1e-9)
    swapped = ONE.drop_vars(["lat", "lon"])
    for one, other, words in (
        (whole, ONE.assign_coords(lon=ONE.lon + 1), "name feature 0 '-60.0, 10.0' and"),
        (whole, ONE.where(ONE.lat > -40), "models of 16 and 13 features"),
        (bp.PCA(2, solver="covariance").fit(swapped), swapped.roll(lat=1), "left out different columns"),
    ):
        with pytest.raises(ValueError, match=words):
            bp.merge(one, clone(one).fit(other))


HOLES = ONE.copy(deep=True)
HOLES[3, 1, 1] = HOLES[4, 1, 2] = np.nan
LATE = ONE.copy(deep=True)
LATE[0, 3, 0] = np.nan
MODEL = bp.PCA(2).fit(ONE)


@pytest.mark.parametrize(("form", "reader"), [("NETCDF4", "hdf5"), ("NETCDF3_64BIT", "netcdf"), ("packed", "netcdf")])
def test_a_netcdf_file_has_its_dimensions_and_its_land(form: str, reader: str, tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    data = ONE.drop_vars(["member", "basin"]).to_dataset(name="sst")
    data.lat.attrs["bounds"] = "lat_bounds"
    data["lat_bounds"] = (("lat", "b"), np.zeros((LAT, 2)))
    packed = {"sst": {"dtype": "i4", "scale_factor": 1e-6, "_FillValue": -(2**31)}}
    options: dict[str, Any] = {"encoding": packed} if form == "packed" else {"format": form}
    data.to_netcdf(tmp_path / "sst.nc", **options)
    source = source_of(bp.open(tmp_path / "sst.nc"))
    assert source is not None
    assert source.format == reader  # without xarray where its numbers are values
    pca, expected = bp.PCA(2).fit(tmp_path / "sst.nc"), bp.PCA(2).fit(data["sst"])
    np.testing.assert_allclose(pca.components_, expected.components_, atol=1e-5)
    assert pca.to_xarray().components.dims == ("component", "lat", "lon")
    assert bp.open(tmp_path / "sst.nc", sample_dims=("lat", "lon")).shape == (LAT * LON, T)


WEIGHTS = np.cos(np.deg2rad(FIELD.lat))


@pytest.mark.parametrize(
    "weights",
    [WEIGHTS, WEIGHTS.expand_dims(lon=FIELD.lon), WEIGHTS.drop_vars(["lat", "month"])],
    ids=lambda w: str(w.dims),
)
def test_weights_on_the_grid_are_aligned_by_name(weights: Any, tmp_path: Path) -> None:
    pca = bp.PCA(2, scale=1 / weights, center=ONE.mean("time").T).fit(ONE)
    np.testing.assert_allclose(pca.scale_, np.repeat(1 / WEIGHTS.values, LON)[SEA])
    pca.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(bp.load(tmp_path / "m.zarr").scale, pca.scale_)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "partly NaN": (lambda: bp.PCA(2).fit(HOLES), r"2 columns .*, the first at lat = -30.0, lon = 10"),
    "NaN in the first row only": (
        lambda: bp.PCA(2).fit(LATE.chunk(time=1)),
        r"column 12, with the value .*1 column of .* in some samples only, the first at lat = 30.0",
    ),
    "no values": (lambda: bp.PCA(2).fit(ONE * np.nan), r"all 20 columns of the DataArray are NaN in the first row, so"),
    "nothing counted": (lambda: bp.PCA(2, nan_policy="omit").fit(ONE * np.nan), r"DataArray are NaN in every row"),
    "nothing to fill in": (lambda: bp.PCA(2, nan_policy="mean").fit(ONE * np.nan), r"DataArray are NaN in every"),
    "infinite": (lambda: bp.PCA(2).fit(ONE.where(ONE.lat > -60, np.inf)), r"infinite values in 1 row.*lat = -60.0"),
    "values on land": (lambda: MODEL.transform(ONE.fillna(0)), r"4 columns hold NaN in some rows and values in others"),
    "sparse rows": (lambda: MODEL.transform(sp.csr_array(np.zeros((4, LAT * LON)))), "4 columns hold NaN in some rows"),
    "land elsewhere": (lambda: MODEL.transform(ONE.where(ONE.lat > -40)), r"NaN or infinite value"),
    "columns without land": (lambda: MODEL.transform(FLAT[:, :9]), r"columns of 20 that have values\. Pass rows of 20"),
    "other latitudes": (lambda: MODEL.transform(ONE.assign_coords(lat=ONE.lat + 1)),
        r"coordinate 'lat' of X is \[-59.0, .*\]\.\.\., but PCA was fitted on \[-60.0, .*X.reindex"),
    "a part": (lambda: MODEL.transform(ONE[:, 1:]), r"are lat = 4 x lon = 4, but PCA was fitted on lat = 5"),
    "reversed": (lambda: MODEL.partial_fit(ONE[:, ::-1]), r"coordinate 'lat' of X"),
    "other dimensions": (lambda: MODEL.transform(FIELD), r"time, member, lat, lon, but PCA .* along time with"),
    "other order when opened": (lambda: MODEL.transform(bp.open(ONE.transpose("time", "lon", "lat"))),
        "features of X are lon = 4 x lat = 5"),
    "no such dimension": (lambda: bp.open(ONE, sample_dims="tine"), r"are time, lat, lon\. Did you mean"),
    "twice": (lambda: bp.open(ONE, sample_dims=("time", "time")), r"one or more different dimensions were expected"),
    "none": (lambda: bp.open(ONE, sample_dims=()), r"one or more different dimensions were expected"),
    "all": (lambda: bp.open(ONE, sample_dims=ONE.dims), r"leaves none for its features"),
    "not labelled": (lambda: bp.open(FLAT, sample_dims="time"), r"the source is numpy.ndarray\. Pass xr.DataArray\("),
    "a dataset": (lambda: bp.open(ONE.to_dataset(), sample_dims="time"), r"xarray.Dataset.* Pass one of its variables"),
    "a path": (lambda: bp.open("sst.zarr", sample_dims="time"), r"source is str\. Open it by xarray and pass one"),
    "one sample": (lambda: MODEL.transform(ONE[3]), r"X\.expand_dims\(\['time'\]\) makes a row of one sample"),
    "no sample": (lambda: MODEL.transform(ONE[:0]), r"a minimum of 1 is required\. Give more rows"),
    "scores of one sample": (lambda: MODEL.inverse_transform(MODEL.transform(ONE)[3]), r"scores\.isel\(time=\[0\]\)"),
    "weights in another order": (lambda: bp.PCA(2).fit(ONE, sample_weight=ALONG[::-1]),
        r"coordinate 'time' of sample_weight is .* Put them in the same order, .* sample_weight\.reindex_like\(X\)"),
    "weights of added rows": (lambda: clone(MODEL).partial_fit(ONE).partial_fit(ONE[:9], sample_weight=ALONG[9:18]),
        r"coordinate 'time' of sample_weight"),
    "weights of cells": (lambda: bp.PCA(2).fit(ONE[:5], sample_weight=np.cos(ONE.lat)), r"has the dimensions lat, but"),
    "labels in another order": (lambda: bp.SupervisedPCA(1).fit(ONE, ALONG[::-1]), r"the coordinate 'time' of y is"),
    "a scale on another grid": (lambda: bp.PCA(2, scale=ONE.std("time")[::-1]).fit(ONE), r"'lat' of scale is .*rei"),
    "a scale of times": (lambda: bp.PCA(2, scale=ONE.std("lat")).fit(ONE), r"scale has the dimensions time = "),
    "a feature dimension mean": (lambda: bp.PCA(1).fit(ONE.rename(lat="mean")).to_xarray(), "which is a variable of"),
    "a pattern too": (lambda: bp.open(ONE, sample_dims="time", columns=[0]), r"a missing value or fill=None were"),
    "no such latitude": (lambda: bp.PCA(2, scale=bp.scales.CosLatitude("latitude")).fit(ONE),
        r"coordinate 'latitude', but the features of X have 'lat'"),
    "values of a coordinate": (lambda: bp.PCA(2, scale=bp.scales.CosLatitude(ONE.lat)).fit(ONE),
        r"'lat' has [0-9]+: name the coordinate, bp.scales.CosLatitude\('lat'\), or give a DataArray along 'lat'"),
    "no grid": (lambda: bp.PCA(2, scale=bp.scales.CosLatitude("lat")).fit(FLAT), r"but X is not a DataArray"),
    "latitudes in words": (lambda: bp.PCA(2, scale=bp.scales.CosLatitude("basin")).fit(ONE), "has object, not"),
    "other components": (lambda: MODEL.inverse_transform(MODEL.transform(ONE)[:, ::-1]), r"of the components \[1, 0\]"),
    "a feature dimension component": (lambda: bp.PCA(1).fit(MODEL.transform(ONE)).to_xarray(), "Rename it before the"),
    "a dimension component": (lambda: bp.PCA(2).fit_transform(ONE.rename(time="component")), r"Rename it"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("case", BAD)
def test_labels_that_do_not_match_are_rejected_in_words(case: str) -> None:
    call, words = BAD[case]
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_a_forged_grid_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = files.grid_to_stored
    for change, arrays in (
        ({"sizes": [5, 5]}, {}), ({"sizes": [-5, -4]}, {}), ({}, {"kept": np.array([99])}), ({"sizes": [5]}, {}),
        ({}, {"kept": np.arange(3)}), ({}, {"coord_0": np.zeros(9)}),
    ):  # fmt: skip

        def forged(grid: Any, c: Any = change, a: Any = arrays) -> Any:
            values, own = true(grid)
            return values | c, own | a

        monkeypatch.setattr(files, "grid_to_stored", forged)
        MODEL.save(tmp_path / "model", overwrite=True)
        with pytest.raises(ModelFormatError, match="does not hold what a PCA"):
            bp.load(tmp_path / "model")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_patterns_and_scores_with_weights_are_those_of_xeofs_on_sea_surface_temperatures() -> None:
    pytest.importorskip("netCDF4")
    eofs, xeofs = pytest.importorskip("eofs"), pytest.importorskip("xeofs.single")
    path = Path(eofs.__file__).parent / "examples/example_data/sst_ndjfm_anom.nc"
    field = xr.open_dataset(path)["sst"].astype("f8")
    field = field.assign_coords(latitude=field.latitude.astype("f8"))  # xeofs weights in the precision of latitudes
    theirs = xeofs.EOF(n_modes=5, use_coslat=True, solver="full").fit(field, dim="time")
    ours = bp.PCA(5, scale=bp.scales.CosLatitude("latitude")).fit(field)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance(), rtol=1e-6)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio(), rtol=1e-6)
    patterns, scores = (
        one.assign_coords(mode=one.mode - 1).rename(mode="component")
        for one in (theirs.components(), theirs.scores(normalized=False))
    )
    patterns, scores = patterns.transpose("component", ...), scores.transpose("time", ...)
    signs = np.sign((ours.to_xarray().components * patterns).sum(["latitude", "longitude"]))
    xr.testing.assert_allclose(ours.to_xarray().components * signs, patterns, atol=1e-6)
    xr.testing.assert_allclose(ours.transform(field) * signs, scores, atol=1e-6 * float(np.abs(scores).max()))
