"""Masks say which places of a sample are columns; models keep them, and never look at the other places."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bigpca as bp

LAT, LON = [10.0, 20.0, 30.0, 40.0], [1, 2, 3, 5, 8]
SEA = np.random.default_rng(2).random((4, 5)) > 0.3
VALUES = np.random.default_rng(0).standard_normal((30, 4, 5)) * np.arange(1.0, 6)
PLAIN = VALUES.reshape(30, 20)[:, SEA.ravel()]
GRID = {"lat": LAT, "lon": LON}
MASKS: dict[str, Any] = {
    "array": SEA,
    "flat": SEA.ravel(),
    "field": xr.DataArray(SEA, dims=("lat", "lon"), coords=GRID),
    "turned": xr.DataArray(SEA.T, dims=("lon", "lat"), coords={"lat": LAT}),
}


def field(rows: slice = slice(None), land: float = 7.0) -> xr.DataArray:
    values = np.where(SEA, VALUES, land)
    values[::2, ~SEA] *= 1e30
    coords = {"time": np.arange(30)[rows], **GRID}
    return xr.DataArray(values[rows], dims=("time", "lat", "lon"), coords=coords, name="sst")


CONTAINERS: dict[str, Callable[[Path], Any]] = {
    "in memory": lambda folder: field(),
    "lazy": lambda folder: field().chunk(time=7),
    "netCDF": lambda folder: field().to_netcdf(folder / "x.nc") or folder / "x.nc",
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("mask", MASKS)
def test_a_fit_is_that_of_the_places_that_the_mask_keeps(container: str, mask: str, tmp_path: Path) -> None:
    model = bp.PCA(2).fit(bp.open(CONTAINERS[container](tmp_path), mask=MASKS[mask]))
    plain = bp.PCA(2).fit(PLAIN)
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-10)
    np.testing.assert_array_equal(model.to_xarray()["components"].notnull()[0], SEA)
    assert len(model.feature_names_in_) == SEA.sum()
    assert model.feature_names_in_[0] == "10.0, 3"


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("land", [7.0, np.nan])
def test_whole_fields_are_mapped_whatever_the_other_places_hold(saved: bool, land: float, tmp_path: Path) -> None:
    model = bp.PCA(2).fit(bp.open(field(), mask=SEA))
    expected = bp.PCA(2).fit(PLAIN).transform(PLAIN)
    if saved:
        model.save(tmp_path / "m")
        model = bp.load(tmp_path / "m")
    for rows in (field(land=land), field(land=land).chunk(time=4), bp.open(field(land=land), mask=SEA)):
        np.testing.assert_allclose(model.transform(rows), expected, atol=1e-9)
    back = model.inverse_transform(model.transform(field()))
    assert back.dims == ("time", "lat", "lon")
    assert (back.notnull().all("time") == SEA).all()


def test_rows_are_added_and_models_merged_on_one_mask(tmp_path: Path) -> None:
    model = bp.PCA(2).fit(bp.open(field(slice(0, 12)), mask=SEA)).partial_fit(field(slice(12, 30)))
    both = bp.merge(*(bp.PCA(2).fit(bp.open(field(part), mask=SEA)) for part in (slice(0, 12), slice(12, 30))))
    for one in (model, both, pickle.loads(pickle.dumps(model))):
        np.testing.assert_allclose(one.explained_variance_, bp.PCA(2).fit(PLAIN).explained_variance_, rtol=1e-10)
    other = SEA.copy()
    other[0, 0] ^= True
    for moved in (bp.open(field(), mask=other), bp.open(field(), mask=other)[3:], bp.open(field(), mask=~SEA)[[1]]):
        with pytest.raises(ValueError, match=r"the mask of X keeps \d+ places, which are not the 1\d that PCA"):
            model.transform(moved)


@pytest.mark.parametrize("coords", [True, False])
def test_rows_that_are_chosen_keep_grid_and_mask(coords: bool) -> None:
    given = field() if coords else field().drop_vars(["lat", "lon"])
    rows = bp.open(given, mask=SEA)
    model = bp.PCA(2).fit(rows[4:])
    np.testing.assert_allclose(model.transform(given), bp.PCA(2).fit(PLAIN[4:]).transform(PLAIN), atol=1e-9)
    np.testing.assert_array_equal(model.to_xarray()["components"].notnull()[0], SEA)
    np.testing.assert_allclose(model.transform(rows[[7, 3]]), model.transform(rows)[[7, 3]], atol=1e-12)
    with pytest.raises(ValueError, match="already opened with a pattern, columns or a missing value"):
        bp.open(rows[4:], mask=np.arange(12) > 3)
    two = bp.open(given.expand_dims(member=2).assign_coords(member=[1, 2]), sample_dims=("time", "member"), mask=SEA)
    np.testing.assert_allclose(bp.PCA(2).fit(two[8:]).mean_, model.mean_, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 4, 4), (48,)])
def test_a_mask_of_other_samples_chooses_columns(shape: tuple[int, ...]) -> None:
    X = np.random.default_rng(3).standard_normal((20, *shape))
    mask = (np.arange(48) % 3 > 0).reshape(shape)
    opened = bp.open(X, mask=mask)
    np.testing.assert_array_equal(opened, X.reshape(20, 48)[:, mask.ravel()])
    model = bp.PCA(2).fit(opened)
    np.testing.assert_array_equal(model.transform(X), model.transform(opened))
    for call in (model.transform, model.partial_fit):
        with pytest.raises(ValueError, match="opened with other columns, or another mask, than those that PCA was"):
            call(bp.open(X, mask=np.roll(mask.ravel(), 1)))


def test_samples_of_another_shape_are_no_samples_of_the_mask() -> None:
    X, mask = np.random.default_rng(3).standard_normal((20, 3, 4, 4)), np.arange(48).reshape(3, 4, 4) % 3 > 0
    model = bp.PCA(2).fit(bp.open(X, mask=mask))
    for other in (X.reshape(20, 4, 4, 3), bp.open(X.reshape(20, 4, 4, 3), mask=mask.ravel())):
        with pytest.raises(ValueError, match=r"samples of X have the shape \(4, 4, 3\), but PCA .* shape \(3, 4, 4\)"):
            model.transform(other)


def test_columns_that_are_chosen_by_name_may_stand_elsewhere() -> None:
    frame = pd.DataFrame(VALUES.reshape(30, 20)[:, :4], columns=list("abcd"))
    model = bp.PCA(2).fit(bp.open(frame, columns=["a", "c"]))
    turned = bp.open(frame[list("dcba")], columns=["a", "c"])
    np.testing.assert_allclose(model.transform(turned), model.transform(frame[["a", "c"]]), atol=1e-12)


def test_a_mask_beside_a_code_of_missing_values_keeps_both() -> None:
    X = np.array([[1, -1, 9], [2, 3, 9], [4, 5, 9]], np.int8)
    found = bp.open(X, mask=[True, True, False], missing_value=-1).compute()
    np.testing.assert_array_equal(found, [[1, np.nan], [2, 3], [4, 5]])


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "numbers": (SEA.astype(float), {}, r"dtype float64; bool was expected. Pass mask > 0.5, or mask.notnull\(\)"),
    "a field of numbers": (MASKS["field"].astype(int), {}, "dtype int64; bool was expected"),
    "nothing": (np.zeros((4, 5), bool), {}, "False at all 20 places"),
    "another shape": (SEA.T, {}, r"shape \(5, 4\), but a sample has \(4, 5\)"),
    "another dimension": (MASKS["field"].rename(lat="y"), {}, "mask has the dimensions y = 4 x lon = 5, but"),
    "another grid": (
        MASKS["field"].assign_coords(lat=LAT[::-1]),
        {},
        "coordinate 'lat' of mask is .* that of X",
    ),
    "columns": (SEA, {"columns": [0]}, "Give one"),
    "masked entries": (np.ma.array(SEA, mask=SEA), {}, r"masked entries; .* Pass mask.filled\(False\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_masks_that_do_not_fit_are_rejected(name: str) -> None:
    mask, options, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        bp.open(field(), mask=mask, **options)
