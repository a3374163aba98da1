"""Whatever rows come in gives NumPy's answer, or an error that says what it is and what to pass; nothing between."""

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn

import bigpca as bp
from bigpca.data import flat_files
from bigpca.data.containers import is_labelled
from bigpca.data.dask_arrays import source_of
from bigpca.data.grids import is_held
from bigpca.estimators.shared.inputs import is_lazy
from tests.estimators.doors import DENSE_ONLY, REJECTED, RIGHT, lazy

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((60, 6)) * [3, 2, 1.5, 1, 1, 1] + 5).astype("f4").astype("f8")
FITTED = bp.PCA(2).fit(X)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names", "ignore:X has feature names")
@pytest.mark.parametrize("name", RIGHT)
def test_a_container_gives_the_answer_of_numpy_in_every_way_in(name: str, tmp_path: Path) -> None:
    given = RIGHT[name].make(tmp_path, X)
    found = [bp.PCA(2).fit(given), bp.PCA(2).partial_fit(given)]
    for pca in found:
        np.testing.assert_allclose(pca.explained_variance_, FITTED.explained_variance_, rtol=1e-10)
        np.testing.assert_allclose(pca.mean_, FITTED.mean_, rtol=1e-10)
    reads = bp.PCA(2).plan(given).passes
    if is_labelled(given) or "netCDF" in name:  # of which the first chunk is searched for land
        assert 1 < reads <= 2
    else:
        assert reads == 1 + ("DataFrame" in name and "Dask" in name)  # which is counted first
    scores = FITTED.transform(given)
    values = scores.data if is_labelled(scores) else scores
    assert is_labelled(scores) == is_labelled(given)
    assert isinstance(values, da.Array) == (is_lazy(given) and not is_held(given))
    np.testing.assert_allclose(scores, FITTED.transform(X), atol=1e-9)
    np.testing.assert_allclose(found[0].score_samples(given), FITTED.score_samples(X), rtol=1e-9)
    copied = FITTED.transform(given, out=tmp_path / "scores.zarr")
    np.testing.assert_allclose(copied, FITTED.transform(X), atol=1e-9)


@pytest.mark.parametrize(
    "name", [name for name in RIGHT if not ({"lists", "lists,", "tuple", "objects"} & set(name.split()))]
)
def test_open_and_ingest_take_what_estimators_take(name: str, tmp_path: Path) -> None:
    given = RIGHT[name].make(tmp_path, X)
    opened = bp.open(given).compute()
    if hasattr(opened, "toarray"):
        np.testing.assert_array_equal(opened.toarray(), X)
        with pytest.raises(TypeError, match="is sparse, 60 x 6, and ingest writes dense rows"):
            bp.ingest(given, tmp_path / "copy.zarr")
        return
    np.testing.assert_array_equal(opened, X)
    np.testing.assert_array_equal(bp.ingest(given, tmp_path / "copy.zarr"), X)


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("name", REJECTED)
def test_a_container_that_cannot_be_read_is_rejected_in_words_in_every_way_in(name: str, tmp_path: Path) -> None:
    make, words = REJECTED[name]
    calls = [bp.PCA(2).fit, bp.PCA(2).partial_fit, lambda given: np.asarray(FITTED.transform(given))]
    unseen = ("hides", "only says", "too few", "too many", "wide")  # by a plan, which reads nothing
    calls += [] if any(word in name for word in unseen) else [bp.PCA(2).plan]
    calls += [bp.open, lambda given: bp.from_batches([given])] if " frame with " in name else []
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=words):
            call(make(tmp_path, X))


@pytest.mark.parametrize("lazily", [False, True], ids=["memory", "lazy"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "i2", "?"])
def test_masked_entries_are_missing_values(dtype: str, lazily: bool, tmp_path: Path) -> None:
    data = (10 * X).astype(dtype)
    mask = np.zeros(X.shape, bool)
    mask[3, 2] = mask[41, 0] = True
    given: Any = np.ma.masked_array(data, mask)
    if lazily:
        given = da.ma.masked_array(lazy(data), lazy(mask))
    with pytest.raises(
        bp.errors.NonFiniteError,
        match=r"NaN or infinite values? in .* row 3, column 2.* masked entries are treated as NaN",
    ):
        bp.PCA(2).fit(given)
    pca = bp.PCA(2, nan_policy="omit").fit(given)
    kept = ~mask.any(axis=1)
    assert pca.n_omitted_ == 2
    np.testing.assert_allclose(pca.explained_variance_, bp.PCA(2).fit(data[kept]).explained_variance_, rtol=1e-6)
    for scores in (np.asarray(pca.transform(given)), np.asarray(pca.transform(given, out=tmp_path / "s.zarr"))):
        assert np.array_equal(np.isnan(scores).any(axis=1), ~kept)
    assert np.isnan(np.asarray(bp.open(given if not lazily else np.ma.masked_array(data, mask)))[mask]).all()


def test_masked_integers_are_not_written_as_numbers(tmp_path: Path) -> None:
    given = da.ma.masked_greater(lazy((10 * X).astype("i2")), 60)
    with pytest.raises(TypeError, match="has dtype float32, which an output of dtype int16 cannot hold"):
        bp.ingest(given, tmp_path / "x.zarr")
    assert (
        np.isnan(bp.ingest(given, tmp_path / "f.zarr", dtype="f4").compute()).sum()
        == ((10 * X).astype("i2") > 60).sum()
    )


@pytest.mark.parametrize(("value", "dtype"), [(np.nan, "i2"), (3.7e9, "i2"), (-1.0, "u1"), (1e300, "f4"), (7e4, "f2")])
def test_ingest_rejects_values_that_its_dtype_cannot_hold(value: float, dtype: str, tmp_path: Path) -> None:
    rows = np.ones((20, 4))
    rows[7, 3] = value
    with pytest.raises(ValueError, match=rf"row 7, column 3\) does not fit dtype {np.dtype(dtype)}.* Choose another"):
        bp.ingest(rows, tmp_path / "x.zarr", dtype=dtype)


def test_a_chunk_of_another_kind_than_promised_is_named() -> None:
    given = lazy(X.astype("i4")).map_blocks(lambda b: b / 2, dtype="i4", meta=np.empty((0, 0), "i4"))
    with pytest.raises(TypeError, match=r"has dtype float64, but the Dask array says int32.* dtype='float64'"):
        bp.PCA(2).fit(given)


def test_a_global_output_container_does_not_load_lazy_scores(tmp_path: Path) -> None:
    with sklearn.config_context(transform_output="pandas"):
        assert list(bp.PCA(2).fit_transform(X).columns) == ["pca0", "pca1"]
        for call in (
            FITTED.transform,
            bp.PCA(2).fit_transform,
            lambda given: FITTED.transform(X, out=tmp_path / "s.zarr"),
        ):
            with pytest.raises(
                TypeError, match=r'sklearn.set_config\(transform_output="pandas"\) would load all lazy scores'
            ):
                call(lazy(X))
        named = bp.PCA(2).set_output(transform="pandas").fit(X)
        with pytest.raises(TypeError, match=r'would load all lazy scores.*Call set_output\(transform="default"\)'):
            named.transform(lazy(X), out=tmp_path / "s.zarr")
        assert not (tmp_path / "s.zarr").exists()
        kept = bp.PCA(2).set_output(transform="default").fit(X)
        assert isinstance(kept.transform(lazy(X)), da.Array)


def test_a_list_of_strings_is_rows_for_a_kernel_of_strings_and_paths_elsewhere(tmp_path: Path) -> None:
    words = ["abc", "abd", "xyz", "ab"]
    codes = bp.kernels.string_codes(words)
    np.save(tmp_path / "a.npy", codes[:1])
    np.save(tmp_path / "b.npy", codes[1:])
    kernel = bp.kernels.Spectrum(2)
    model = bp.KernelPCA(2, kernel=kernel).fit(words)
    shards = bp.KernelPCA(2, kernel=kernel).fit([tmp_path / "a.npy", tmp_path / "b.npy"])
    np.testing.assert_allclose(shards.eigenvalues_, model.eigenvalues_, rtol=1e-9)
    with pytest.raises(FileNotFoundError, match=r"abc does not exist"):
        bp.PCA(2).fit(words)


def test_a_list_of_many_shards_travels_in_little_and_a_changed_one_is_noticed(tmp_path: Path) -> None:
    paths = [tmp_path / f"a-folder-with-a-long-name-{i % 7}-{i}.npy" for i in range(400)]
    for i, path in enumerate(paths):
        np.save(path, X[i % 50 : i % 50 + 3])
    given = bp.open(paths[::-1])
    np.testing.assert_array_equal(given, np.concatenate([X[i % 50 : i % 50 + 3] for i in range(400)][::-1]))
    source = source_of(given)
    assert source is not None
    assert len(pickle.dumps(source)) < 3000 + 20 * 400  # of each, what it was as it was opened; not its path
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(0, 5), given[:5])
    np.save(paths[0], X[:9])
    flat_files._listed.cache_clear()  # as in another process
    with pytest.raises(
        ValueError, match=r"the list of 400 files from .*-399.npy on is not the set of shards that was opened"
    ):
        bp.PCA(2).fit(pickle.loads(pickle.dumps(given)))


def test_plans_do_not_read_hdf5_datasets(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (10**7, 500), "f4", chunks=(1000, 500))  # 19 GiB, and no chunk of it on disk
    with h5py.File(tmp_path / "x.h5", "r") as file:
        assert bp.PCA(2).plan(file["x"]).bytes_read == 10**7 * 500 * 4


NAMED = {
    "Dask DataFrame": (lambda p: RIGHT["Dask DataFrame"].make(p, X), lambda given: given[list(given.columns)[::-1]]),
    "pandas.DataFrame": (lambda p: RIGHT["pandas.DataFrame"].make(p, X),
        lambda given: given[list(given.columns)[::-1]]),
    "pandas.DataFrame, opened": (lambda p: bp.open(_frame(X)), lambda given: bp.open(_frame(X).iloc[:, ::-1])),
    "polars.DataFrame, opened": (lambda p: bp.open(pl.DataFrame(_frame(X))),
        lambda given: bp.open(pl.DataFrame(_frame(X).iloc[:, ::-1]))),
    "pyarrow.Table, opened": (lambda p: bp.open(pa.table(_frame(X))),
        lambda given: bp.open(pa.table(_frame(X).iloc[:, ::-1]))),
    "pyarrow.RecordBatch": (lambda p: pa.RecordBatch.from_pandas(_frame(X)), lambda given: given.select([*"zyxwvu"])),
    "Dask DataFrame, opened": (lambda p: bp.open(RIGHT["Dask DataFrame"].make(p, X)),
        lambda given: bp.open(_frame(X).set_axis([f"f{i}" for i in range(6)][::-1], axis=1))),
    "columns of an opened table": (lambda p: bp.open(_frame(X)), lambda given: given[:, ::-1]),
    "a list of its columns": (lambda p: bp.open(_frame(X)), lambda given: given[:, [1, 0, 2, 3, 4, 5]]),
    "rows of an opened table": (lambda p: bp.open(_frame(X))[5:], lambda given: bp.open(_frame(X).iloc[:, ::-1])[::2]),
    "rows of a DataArray": (lambda p: bp.open(_array(X, f=list("uvwxyz"))).rechunk((7, 3))[[*range(9, 60), 3]],
        lambda given: bp.open(_array(X[:, ::-1], f=list("zyxwvu")))[5:]),
    "columns of a list of its rows": (lambda p: bp.open(_array(X, f=list("uvwxyz")))[5:][:, [0, 2, 4, 1, 3, 5]],
        lambda given: given[::2, ::-1]),
    "joined rows": (lambda p: da.concatenate([bp.open(_frame(X))[:3], bp.open(_frame(X))]),
        lambda given: given[:, ::-1]),
    "DataArray": (lambda p: _array(X, f=list("uvwxyz")), lambda given: given[:, ::-1]),
    "DataArray of numbers": (lambda p: _array(X, f=[0.5, 1.5, 2.5, 3.5, 4.5, 5.5]), lambda given: given[:, ::-1]),
    "DataArray of a grid": (lambda p: _array(X.reshape(60, 3, 2), lat=[10, 20, 30], lon=[5, 6]),
        lambda given: given[:, ::-1]),
    "DataArray of Dask": (lambda p: _array(lazy(X.reshape(60, 3, 2)), lat=[10, 20, 30]), lambda given: given[:, ::-1]),
}  # fmt: skip


REORDERED = (
    r"feature names should match those .*\n.*must be in the same order as they were in fit|"
    r"the coordinate '(f|lat)' of X is \[.*, but PCA was fitted on \["
)


def _frame(values: Any) -> Any:
    return pd.DataFrame(values, columns=list("uvwxyz"))


def _array(values: Any, **coords: Any) -> Any:
    xr = pytest.importorskip("xarray")
    return xr.DataArray(values, dims=("t", *(["f"] if values.ndim == 2 else ["lat", "lon"])), coords=coords)


@pytest.mark.parametrize("name", NAMED)
def test_reordered_features_are_noticed(name: str, tmp_path: Path) -> None:
    make, reorder = NAMED[name]
    given = make(tmp_path)
    pca = bp.PCA(2).fit(given)
    assert len(set(pca.feature_names_in_)) == 6
    pca.transform(given)
    for call in (pca.transform, pca.partial_fit, pca.score_samples):
        with pytest.raises(ValueError, match=REORDERED):
            call(reorder(given))
    with pytest.warns(UserWarning, match="X does not have valid feature names, but PCA was fitted with feature names"):
        pca.transform(lazy(X))
    with pytest.warns(UserWarning, match="X has feature names, but PCA was fitted without feature names"):
        FITTED.transform(given)
    pca.save(tmp_path / "pca.model")
    with pytest.raises(ValueError, match=REORDERED):
        bp.load(tmp_path / "pca.model").transform(reorder(given))
    assert not hasattr(pca.fit(lazy(X)), "feature_names_in_")


def test_names_of_a_grid_are_those_of_its_coordinates(tmp_path: Path) -> None:
    given = _array(X.reshape(60, 3, 2), lat=[10.5, 20, 30])
    assert bp.PCA(2).fit(given).feature_names_in_.tolist()[:3] == ["10.5, 0", "10.5, 1", "20.0, 0"]
    with pytest.raises(
        ValueError, match=r"unseen at fit time:\n- a\n(.*\n)*.*now missing:\n- 10.5, 0\n(.*\n)*- \.\.\."
    ):
        bp.PCA(2).fit(given).transform(RIGHT["pandas.DataFrame"].make(tmp_path, X).set_axis(list("abcdef"), axis=1))


def test_names_of_columns_are_all_strings_or_none(tmp_path: Path) -> None:
    frame = RIGHT["Dask DataFrame"].make(tmp_path, X)
    assert not hasattr(bp.PCA(2).fit(frame.rename(columns={f"f{i}": i for i in range(6)})), "feature_names_in_")
    with pytest.raises(
        TypeError, match=r"only supported if all input features have string names, but X has \['int', 'str'\]"
    ):
        bp.PCA(2).fit(frame.rename(columns={"f0": 0}))


@pytest.mark.parametrize(
    "name",
    [
        "SciPy CSR matrix",
        "sparse.COO",
        "generator",
        "cupy.ndarray",
        "torch.Tensor on a GPU",
        "dict of arrays",
        "polars frame with dates",
        "duckdb relation",
        "list of dask.delayed",
    ],
)
def test_labels_and_landmarks_that_cannot_be_read_are_rejected_in_words(name: str, tmp_path: Path) -> None:
    make, words = (REJECTED | DENSE_ONLY)[name]
    with pytest.raises(TypeError, match=words.replace("X", "y").replace("sparse data", "y is sparse data")):
        bp.SupervisedPCA(1).fit(X, make(tmp_path, X))
    if name not in DENSE_ONLY:  # landmarks may be sparse
        with pytest.raises(TypeError, match=words.replace("X", "sampling")):
            bp.NystromKernelPCA(2, sampling=make(tmp_path, X)).fit(X)


def test_landmarks_are_flattened_and_unmasked_as_rows_are() -> None:
    expected = bp.NystromKernelPCA(2, kernel="rbf", sampling=X[:9]).fit(X).eigenvalues_
    given = bp.NystromKernelPCA(2, kernel="rbf", sampling=X[:9].reshape(9, 3, 2)).fit(X.reshape(60, 3, 2)).eigenvalues_
    np.testing.assert_array_equal(given, expected)
    with pytest.raises(ValueError, match="landmark 4 has nan in column 1, which is not finite"):
        bp.NystromKernelPCA(2, sampling=np.ma.masked_equal(X[:9], X[4, 1])).fit(X)


def test_masked_strings_are_rejected() -> None:
    words = np.ma.masked_equal(np.array(["abc", "abd", "xyz"], object), "xyz")
    with pytest.raises(ValueError, match="X has masked strings; one string for each row was expected"):
        bp.KernelPCA(2, kernel=bp.kernels.Spectrum(2)).fit(words)
