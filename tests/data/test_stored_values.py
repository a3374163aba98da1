"""Stored numbers that are not the values, and matrices that are not the data, are rejected with what to open
instead.
"""

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from numpy.typing import NDArray

import bigpca as bp
from bigpca.arrays import held_array
from bigpca.data.dask_arrays import source_of

X = np.random.default_rng(0).integers(-400, 400, (50, 6)) / 100
UMAP = X[:, :2]


def _write(group: Any, name: str, values: NDArray[Any]) -> None:
    if isinstance(group, h5py.Group):
        group.create_dataset(name, data=values)
    else:
        group.create_array(name, data=values)


def write_anndata(folder: Path, end: str, matrix: Any) -> Path:
    anndata = pytest.importorskip("anndata", reason="anndata writes the files of this case")
    cells = anndata.AnnData(matrix, obsm={"X_umap": UMAP}, shape=(50, 6) if matrix is None else None)
    path = folder / f"cells.{end}"
    (cells.write_h5ad if end == "h5ad" else cells.write_zarr)(path)
    return path


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("end", ["h5ad", "zarr"])
def test_anndata_opens_x_or_says_why_not_and_never_an_embedding(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_anndata(tmp_path, end, X)
    np.testing.assert_array_equal(bp.open(path), X)
    np.testing.assert_array_equal(bp.open(path, member="obsm/X_umap"), UMAP)
    for matrix in (sp.csr_matrix(X), sp.csc_matrix(X)):
        path = write_anndata(_folder(tmp_path / matrix.format), end, matrix)
        for member in (None, "X"):
            if matrix.format == "csr":
                np.testing.assert_array_equal(bp.open(path, member=member).compute().toarray(), X)
            else:
                with pytest.raises(
                    TypeError, match=r"X is a sparse matrix of shape \(50, 6\) in compressed col"
                ) as told:
                    bp.open(path, member=member)
        np.testing.assert_array_equal(bp.open(path, member="obsm/X_umap"), UMAP)
    monkeypatch.chdir(tmp_path)
    exec(str(told.value).split("by row: ")[1].removesuffix("."), {"anndata": pytest.importorskip("anndata")})
    np.testing.assert_array_equal(bp.open(f"rows.{end}").compute().toarray(), X)
    path = write_anndata(_folder(tmp_path / "none"), end, None)
    with pytest.raises(
        ValueError, match=r'is AnnData without X; it holds .*obsm/X_umap \(50, 2\).* member="obsm/X_pca"'
    ):
        bp.open(path)
    with pytest.raises(ValueError, match="is AnnData without X"):
        bp.PCA(2).fit(path)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_sparse_matrices_in_other_files_are_distinguished_from_embeddings(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "tenx.h5", "w") as file:
        for part in ("data", "indices", "indptr"):
            file[f"matrix/{part}"] = getattr(sp.csc_matrix(X), part)
        file["embedding"] = UMAP
    with pytest.raises(
        ValueError,
        match=r"holds 2 arrays with two dimensions or more \(1 of them sparse\), so one must be named with member=: it "
        r"holds matrix \(sparse\), embedding \(50, 2\)",
    ):
        bp.open(tmp_path / "tenx.h5")
    np.testing.assert_array_equal(bp.open(tmp_path / "tenx.h5", member="embedding"), UMAP)
    with pytest.raises(ValueError, match=r"tenx.h5:matrix has the arrays .*, but its shape is not stated"):
        bp.open(tmp_path / "tenx.h5", member="matrix")


PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 1.0, "_FillValue": -9999}
ENCODINGS: list[tuple[dict[str, Any], str]] = [
    (PACKED, "has scale_factor = 0.01, add_offset = 1.0, _FillValue = -9999, so its stored numbers are encoded values"),
    ({"dtype": "i4", "_FillValue": -9999}, "has _FillValue = -9999"),
    ({"dtype": "f8", "_FillValue": 1e20}, r"has _FillValue = 1e\+20"),
    ({"dtype": "i2", "add_offset": 2.0}, "has add_offset = 2.0"),
]


@pytest.mark.filterwarnings(
    "ignore:Failed to open Zarr store with consolidated", "ignore:saving variable None with floating"
)
@pytest.mark.parametrize(("encoding", "words"), ENCODINGS, ids=str)
@pytest.mark.parametrize("version", [2, 3])
def test_encoded_variables_of_xarray_are_rejected_with_the_line_that_decodes_them(
    encoding: dict[str, Any], words: str, version: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "ds.zarr")
    values = X if "scale_factor" in encoding else np.round(X)
    dataset = xr.Dataset({"t": (("time", "x"), values)})
    dataset.to_zarr(path, zarr_format=version, encoding={"t": encoding}, consolidated=False)
    with pytest.raises(ValueError, match=words) as told:
        bp.open(path)
    line = str(told.value).split("Pass ")[1].split(", or")[0].split(" (--")[0].replace("...", repr(path))
    decoded = eval(line, {"xarray": xr, "bigpca": bp})
    np.testing.assert_allclose(bp.open(decoded), values, atol=1e-9)
    with pytest.raises(ValueError, match=words):
        bp.PCA(2).fit(zarr.open_group(path, mode="r")["t"])
    with pytest.raises(ValueError, match=r"the DataArray 't' has .* (Open it without mask_and_scale=False|Pass bigp)"):
        bp.open(xr.open_dataset(path, engine="zarr", chunks={}, mask_and_scale=False)["t"])
    assert bp.open(da.from_zarr(path, component="t")).dtype == encoding["dtype"]  # as they are stored, on request


CODED = np.where(np.arange(300).reshape(50, 6) % 7 == 3, -9999, np.round(100 * X)).astype("i2")
WITH_GAPS = np.where(CODED == -9999, np.nan, CODED)


def _coded_in(form: str, attributes: dict[str, Any], folder: Path) -> Any:
    if form == "DataArray":
        return xr.DataArray(CODED, dims=("time", "x"), attrs=attributes, name="t")
    if form == "zarr":
        zarr.create_array(folder / "t", data=CODED, chunks=(20, 6), attributes=attributes)
        return folder / "t"
    if form == "netcdf":
        xr.Dataset({"t": (("time", "x"), CODED, attributes)}).to_netcdf(folder / "t.nc")
        return folder / "t.nc"
    with h5py.File(folder / "t.h5", "w") as file:
        file["t"] = CODED
        file["t"].attrs.update(attributes)
    return folder / "t.h5"


@pytest.mark.parametrize("form", ["zarr", "hdf5", "netcdf", "DataArray"])
@pytest.mark.parametrize("name", ["_FillValue", "missing_value", "nodata", "nodatavals"])
def test_a_code_for_missing_values_is_rejected_until_the_caller_says_what_it_is(
    name: str, form: str, tmp_path: Path
) -> None:
    code = np.int16(-9999) if form == "netcdf" else [-9999] if name == "nodatavals" else -9999
    source = _coded_in(form, {name: code}, tmp_path)
    if form == "netcdf" and name in ("_FillValue", "missing_value"):  # which xarray decodes
        np.testing.assert_array_equal(bp.open(source), WITH_GAPS)
    else:
        with pytest.raises(ValueError, match=rf"has {name} = -9999, .* or .*fill=None.* if that is a value"):
            bp.open(source)
    np.testing.assert_array_equal(bp.open(source, missing_value=-9999), WITH_GAPS)
    np.testing.assert_array_equal(bp.open(source, fill=-9999), WITH_GAPS)
    np.testing.assert_array_equal(bp.open(source, fill=None), CODED)
    with pytest.raises(ValueError, match=f"has {name} = -9999"):
        bp.open(source, missing_value=-1)
    if form == "DataArray":
        np.testing.assert_array_equal(bp.open(source.where(source != -9999), fill=None), WITH_GAPS)
        with pytest.raises(TypeError, match="notices lost chunks and encoded numbers"):
            held_array(source, "weights")


@pytest.mark.parametrize("attributes", [{"nodata": None}, {"nodatavals": (float("nan"),) * 3}, {"nodata": "none"}])
def test_attributes_that_name_no_code_are_accepted(attributes: dict[str, Any], tmp_path: Path) -> None:
    np.testing.assert_array_equal(bp.open(_coded_in("DataArray", attributes, tmp_path)), CODED)
    np.testing.assert_array_equal(bp.open(_coded_in("zarr", attributes, tmp_path)), CODED)


def test_a_code_that_xarray_has_decoded_is_accepted() -> None:
    field = xr.DataArray(WITH_GAPS, dims=("time", "x"), attrs={"nodata": -9999})
    field.encoding["_FillValue"] = np.int16(-9999)
    np.testing.assert_array_equal(bp.open(field), WITH_GAPS)


def test_dimensions_of_a_file_are_not_named_where_its_stored_numbers_are_read(tmp_path: Path) -> None:
    path = _coded_in("netcdf", {}, tmp_path)
    assert bp.open(path, sample_dims="x").shape == (6, 50)
    with pytest.raises(ValueError, match="or a path with a missing value or fill=None were given"):
        bp.open(path, sample_dims="x", fill=None)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_variables_that_are_stored_as_they_are_open(dtype: str, version: Any, tmp_path: Path) -> None:
    values = np.round(X).astype(dtype)
    xr.Dataset({"t": (("time", "x"), values)}).to_zarr(tmp_path / "ds.zarr", zarr_format=version, consolidated=False)
    np.testing.assert_array_equal(bp.open(tmp_path / "ds.zarr"), values)


def test_encoded_netcdf_variables_are_rejected_with_the_line_that_decodes_them(tmp_path: Path) -> None:
    path = tmp_path / "data.nc"
    with h5py.File(path, "w") as file:
        file["t"] = np.round(100 * X).astype("i2")
        file["t"].attrs["scale_factor"] = np.array([0.01])
        file["plain/t"] = X
        file["plain/t"].attrs["missing_value"] = np.float32("nan")
        for name, text in (("unsigned", "true"), ("by netCDF", np.bytes_("true"))):
            file[name] = np.zeros((5, 3), "i1")
            file[name].attrs["_Unsigned"] = text
        file["when"] = np.zeros((5, 3), "i4")
        file["when"].attrs["units"] = np.bytes_("days since 2000-01-01")
    with pytest.raises(
        ValueError,
        match=r"data.nc:t has scale_factor = 0.01, .* Pass xarray.open_dataset\('.*data.nc', chunks={}\)\['t'\]",
    ):
        bp.open(path, member="t")
    for name, words in (
        ("unsigned", "_Unsigned = true"),
        ("by netCDF", "_Unsigned = true"),
        ("when", "= days since 2"),
    ):
        with pytest.raises(ValueError, match=words):
            bp.open(path, member=name)
    np.testing.assert_array_equal(bp.open(path, member="plain/t"), X)
    with h5py.File(path) as file:
        with pytest.raises(ValueError, match=r"scale_factor = 0\.01"):
            bp.PCA(2).fit(file["t"])
        assert bp.PCA(2).fit(da.from_array(file["t"], chunks=(20, 6))).mean_[0] == pytest.approx(100 * X[:, 0].mean())


Z = np.round(X)
DEFAULT_FILLS: dict[str, Any] = {
    "f4": np.float32(9.969209968386869e36), "f8": 9.969209968386869e36, "i1": -127, "u1": 255, "i2": -32767,
    "u2": 65535, "i4": -2147483647, "u4": 4294967295, "i8": -9223372036854775806, "u8": 18446744073709551614,
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "chunks"), [*((dtype, None) for dtype in DEFAULT_FILLS), ("f4", (20, 3))])
def test_the_default_fill_of_netcdf_4_is_missing_or_an_error_unless_it_is_a_value(
    dtype: str, chunks: Any, tmp_path: Path
) -> None:
    values = np.abs(Z).astype(dtype)
    values[30:, 1] = DEFAULT_FILLS[dtype]
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2,hdf5=1.14.2"
        file.create_dataset("t", data=values, chunks=chunks)
        file.create_dataset("marked", data=values).attrs["_FillValue"] = np.array(
            np.nan, dtype if "f" in dtype else "f4"
        )
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["t"] = values
    for same in (
        bp.open(tmp_path / "x.nc", member="t", fill=None), bp.open(tmp_path / "x.nc", member="marked"),
        bp.open(tmp_path / "x.h5"), bp.open([tmp_path / "x.h5"] * 2, fill=None)[50:],
    ):  # fmt: skip
        np.testing.assert_array_equal(same, values[: len(same)])
    rows = bp.open(tmp_path / "x.nc", member="t")
    source = source_of(rows)
    assert source is not None
    np.testing.assert_array_equal(source.read(0, 30), values[:30])
    assert rows.name != bp.open(tmp_path / "x.nc", member="t", fill=None).name
    filled = bp.open(tmp_path / "x.nc", member="t", fill=DEFAULT_FILLS[dtype]).compute()
    np.testing.assert_array_equal(np.argwhere(np.isnan(filled)), [[row, 1] for row in range(30, 50)])
    if "f" in dtype:
        np.testing.assert_array_equal(rows, filled)
        assert bp.PCA(2, nan_policy="omit").fit(rows).n_omitted_ == 20
        return
    for read in (rows.compute, lambda: bp.PCA(2).fit(rows), lambda: bp.PCA(2).fit(h5py.File(tmp_path / "x.nc")["t"])):
        with pytest.raises(
            ValueError,
            match=rf"row 30, column 1 of .*x.nc:t is {values[30, 1]}: netCDF-4's default .* fill=None.*"
            rf"--fill none.* if it is missing, pass fill={values[30, 1]}\.",
        ):
            read()


def test_variables_that_netcdf_4_does_not_fill_hold_values_only(tmp_path: Path) -> None:
    netCDF4 = pytest.importorskip("netCDF4")
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        for name, size in (("n", 9), ("d", 4)):
            file.createDimension(name, size)
        for name, options in {"filled": {}, "bare": {"fill_value": False}}.items():
            file.createVariable(name, "u1", ("n", "d"), contiguous=True, **options)[:5] = 7
        file["bare"][5:] = 255
    np.testing.assert_array_equal(
        bp.open(tmp_path / "x.nc", member="bare"), np.repeat([7, 255], [20, 16]).reshape(9, 4)
    )
    with pytest.raises(ValueError, match=r"row 5, column 0 of .* is 255: netCDF-4"):
        bp.open(tmp_path / "x.nc", member="filled").compute()


@pytest.mark.parametrize(
    ("attributes", "dtype", "words"),
    [({"valid_range": np.array([-399, 400], "i2")}, "i2", "row 2, column 3 of .* is -400: .* valid range, -399 to 400"),
     ({"valid_min": -399.0}, "f4", r"row 2, column 3 of .* is -400.0: .* valid range, -399.0 to None"),
     ({"valid_max": np.float64(0.1)}, "f4", r"row 4, column 0 of .* is 0.2.*: .* valid range, None to 0.1"),
     ({"valid_range": [-400, 400]}, "i2", ""), ({"valid_range": "-3 to 3"}, "i2", ""), ({"valid_range": [3]}, "f4", ""),
     ({"valid_max": 0.1}, "f4 tenth", "")],
)  # fmt: skip
@pytest.mark.parametrize("end", ["h5", "zarr"])
def test_numbers_out_of_their_valid_range_are_an_error(
    end: str, attributes: dict[str, Any], dtype: str, words: str, tmp_path: Path
) -> None:
    values = np.full((6, 4), -5, dtype.split()[0])
    values[2, 3] = -400
    if dtype[0] == "f":
        values[4, 0] = 0.1 if "tenth" in dtype else 0.2
        values[5, 2] = np.nan  # missing, and so neither in nor out
    root: Any = h5py.File(tmp_path / "x.h5", "w") if end == "h5" else zarr.open_group(tmp_path / "x.zarr", mode="w")
    _write(root, "t", values)
    root["t"].attrs.update(
        {name: np.asarray(one).tolist() if end == "zarr" else one for name, one in attributes.items()}
    )
    if end == "h5":
        root.close()
    np.testing.assert_array_equal(bp.open(tmp_path / f"x.{end}", fill=None), values)
    if words:
        with pytest.raises(ValueError, match=words):
            bp.open(tmp_path / f"x.{end}").compute()
    else:
        np.testing.assert_array_equal(bp.open(tmp_path / f"x.{end}"), values)


@pytest.mark.parametrize(
    ("packing", "limits", "shown"),
    [({"scale_factor": 0.01}, {"valid_range": np.array([-400, 400], "i2")}, "9.0: .* valid range, -4.0 to 4.0"),
     ({"scale_factor": -0.01, "add_offset": 1.0}, {"valid_max": np.int16(400)}, "-8.0: .* valid range, -3.0 to None"),
     ({"scale_factor": 0.01}, {"valid_range": np.array([-4.0, 4.0])}, "9.0: .* valid range, -4.0 to 4.0"),
     ({"scale_factor": 0.01}, {"valid_range": np.array([-32767, 900], "i2")}, ""), ({"scale_factor": 0.01}, {}, "")],
)  # fmt: skip
def test_packed_numbers_out_of_their_valid_range_are_an_error_once_decoded(
    packing: dict[str, Any], limits: dict[str, Any], shown: str, tmp_path: Path
) -> None:
    stored = np.full((5, 3), 7, "i2")
    stored[2, 1] = 900
    field = xr.DataArray(stored, dims=("time", "x"), name="t", attrs=limits | packing)
    field.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    decoded = xr.open_dataset(tmp_path / "x.nc", chunks={"time": 2}).t
    for opened in (tmp_path / "x.nc", decoded, decoded.compute()):
        if shown:
            with pytest.raises(ValueError, match=rf"row 2, column 1 of .*x.nc:t is {shown}.* field.where\(field != "):
                bp.PCA(1).fit(opened)
        else:
            np.testing.assert_array_equal(bp.open(opened), decoded)
    for kept in (bp.open(decoded, fill=None), bp.open(decoded * 1.0), bp.open(xr.concat([decoded] * 2, "time"))[:5]):
        np.testing.assert_array_equal(kept, decoded)
    stored[2, 1], stored[4, 2] = 7, -32767  # which was never written
    field.to_netcdf(tmp_path / "y.nc", engine="netcdf4")
    for opened in (tmp_path / "y.nc", xr.open_dataset(tmp_path / "y.nc").t):
        filled = bp.open(opened)[4].compute()
        np.testing.assert_array_equal(np.isnan(filled), [False, False, True])


def test_matlab_stores_rows_as_columns_and_the_remedy_turns_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x.mat", "x.h5"):
        with h5py.File(name, "w", userblock_size=512) as file:
            file["rows"] = X.T
            file["rows"].attrs["MATLAB_class"] = np.bytes_("double")
        with open(name, "r+b") as raw:
            raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64")
        with pytest.raises(
            ValueError, match=r"reverses the axes: its rows appear as columns, in shape \(6, 50\)"
        ) as told:
            bp.PCA(2).fit(name)
        turned = eval(str(told.value).split("Pass ")[1].removesuffix("."), {"dask": dask, "h5py": h5py})
        np.testing.assert_array_equal(turned, X)
        np.testing.assert_allclose(bp.PCA(2).fit(turned).components_, bp.PCA(2).fit(X).components_, atol=1e-12)


def test_netcdf_3_and_tables_are_rejected_with_what_reads_them(tmp_path: Path) -> None:
    path = str(tmp_path / "old.nc")
    xr.Dataset({"x": (("time", "f"), X)}).to_netcdf(path, engine="scipy")
    with pytest.raises(ValueError, match=r"old.nc is a netCDF-3 file.* pass xarray.open_dataset") as told:
        bp.open(path, fill=None)
    decoded = eval(str(told.value).split(" pass ")[1].split(", one")[0], {"xarray": xr})
    np.testing.assert_allclose(bp.open(decoded), X)
