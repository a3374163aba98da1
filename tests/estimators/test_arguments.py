"""Arguments beside X are opened as X is: with masks, lost chunks, packing, keys and names, in one dimension or two.

Every argument of every estimator and function is tried in the forms that lost something, and one argument of each kind
in all forms.
"""

import re
from collections.abc import Callable
from inspect import getmembers, isabstract, isclass, isfunction, signature
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import dask.dataframe as dd
import h5py
import matplotlib.pyplot as plt
import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from numpy.typing import NDArray

import bigpca as bp
from bigpca.estimators.shared.transformer import Estimator

Array = NDArray[Any]
RNG = np.random.default_rng(7)
N, HOLE = 40, 5
X = RNG.standard_normal((N, 3)) + 2.0
Y = np.round(X @ [1.0, 2.0, 3.0] + 0.1 * RNG.standard_normal(N), 3)
KEYS = [f"k{i}" for i in range(N)]


def at_hole(values: Array, value: float) -> Array:
    found = values.astype(float) if np.isnan(value) else values.copy()
    found[HOLE] = value
    return found


def in_zarr(folder: Path, values: Array, *, lost: bool = False, **attributes: Any) -> Any:
    chunks = (min(8, len(values) // 3), *values.shape[1:])
    array = zarr.create_array(folder / "v.zarr", data=values, chunks=chunks, config={"write_empty_chunks": True})
    array.attrs.update(attributes)
    if lost:
        (folder / "v.zarr" / "c" / "/".join(["2"] + ["0"] * (values.ndim - 1))).unlink()
    return zarr.open_array(folder / "v.zarr", mode="r")


def in_hdf5(folder: Path, values: Array, *, lost: bool = False, **attributes: Any) -> Any:
    with h5py.File(folder / "v.h5", "w") as file:
        dataset = file.create_dataset("v", values.shape, values.dtype, chunks=(4, *values.shape[1:]))
        written = slice(0, 8 if lost else None)
        dataset[written] = values[written]
        dataset.attrs.update(attributes)
    return h5py.File(folder / "v.h5", "r")["v"]


def in_npy(folder: Path, values: Array) -> Path:
    np.save(folder / "v.npy", values)
    return folder / "v.npy"


def assigned(mapped: Array, values: Array) -> Array:
    mapped[...] = values
    return mapped


def lazily(values: Array) -> Any:
    return da.from_array(values, chunks=(8, *values.shape[1:]))


def labelled(values: Array, **options: Any) -> xr.DataArray:
    return xr.DataArray(values, dims=("t", "f")[: values.ndim], **options)


class Tensor:
    """What a tensor of torch says of itself, by which it is known where torch is not installed."""

    def __init__(self, values: Array, **said: Any) -> None:
        self.values, self.shape, self.ndim = values, values.shape, values.ndim
        self.dtype, self.device, self.layout, self.requires_grad = "torch.float64", "cpu", "torch.strided", False
        vars(self).update(said)

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


Tensor.__module__, Tensor.__qualname__, Tensor.__name__ = "torch", "Tensor", "Tensor"

ENCODED = "its stored numbers are encoded values. Decoded values were expected"
SAME, MISSING = "the values", "the values, one of which is missing"  # the answer; or the words of the rejection
SHORT = "the values in a short dtype"
Form = tuple[Callable[[Path, Array], Any], str]
FORMS: dict[str, Form] = {
    "list": (lambda p, v: v.tolist(), SAME),
    "masked": (lambda p, v: np.ma.masked_equal(at_hole(v, -99), -99), MISSING),
    "list of masked rows": (lambda p, v: list(np.ma.masked_equal(at_hole(v, -99), -99)), MISSING),
    "Dask, masked": (lambda p, v: da.ma.masked_equal(lazily(at_hole(v, -99)), -99), MISSING),
    "Dask": (lambda p, v: lazily(v), SAME),
    "Zarr": (in_zarr, SAME),
    "Zarr, a chunk lost": (lambda p, v: in_zarr(p, v, lost=True), "not in the store"),
    "Zarr, packed": (lambda p, v: in_zarr(p, v, scale_factor=0.1), ENCODED),
    "Dask of Zarr, a chunk lost": (lambda p, v: da.from_zarr(in_zarr(p, v, lost=True)) * 1, "not in the store"),
    "Dask of HDF5": (lambda p, v: lazily(in_hdf5(p, v)) * 1, SAME),
    "Dask of HDF5, a chunk lost": (lambda p, v: lazily(in_hdf5(p, v, lost=True)), "were never written"),
    "HDF5": (in_hdf5, SAME),
    "HDF5, a chunk lost": (lambda p, v: in_hdf5(p, v, lost=True), "were never written"),
    "HDF5, filled": (lambda p, v: in_hdf5(p, at_hole(v, -99), _FillValue=-99.0), ENCODED),
    ".npy": (in_npy, SAME),
    "memory map": (lambda p, v: np.load(in_npy(p, v), mmap_mode="r"), SAME),
    "memory map, assigned to": (lambda p, v: assigned(np.load(in_npy(p, 0 * v), mmap_mode="c"), v), SAME),
    "DataArray": (lambda p, v: labelled(v), SAME),
    "DataArray, packed": (lambda p, v: labelled(v, attrs={"scale_factor": 0.1}), ENCODED),
    "tensor with grad": (lambda p, v: Tensor(v, requires_grad=True), r"torch.Tensor .* Pass X\.detach\(\)\.numpy"),
    "imaginary part of a conjugate tensor": (
        lambda p, v: Tensor(v, is_neg=lambda: True),
        r"torch.Tensor .* Pass X\.resolve_neg\(\)\.numpy",
    ),
    "tensor of bfloat16": (lambda p, v: Tensor(v, dtype="torch.bfloat16"), r"torch.Tensor .* Pass X\.float\(\)\.numpy"),
    "bfloat16": (lambda p, v: v.astype(ml_dtypes.bfloat16), r"bfloat16 cannot be used.* X\.astype\(np\.float32"),
    "dates": (lambda p, v: v.astype("M8[s]"), "dtype datetime64|hold numbers"),
    "complex": (lambda p, v: v * 1j, "[Cc]omplex"),
}
COLUMNS: dict[str, Form] = {  # (n,) alone
    "Series": (lambda p, v: pd.Series(v), SAME),
    "Series with NA": (lambda p, v: pd.Series(at_hole(v, np.nan)).astype("Float64"), MISSING),
    "Dask Series": (lambda p, v: dd.from_pandas(pd.Series(v), npartitions=3), SAME),
    "polars": (lambda p, v: pl.Series(v), SAME),
    "Arrow": (lambda p, v: pa.chunked_array([v[:9], v[9:]]), SAME),
}


class Argument(NamedTuple):
    """An argument: one number for each row, or a column of them, and the answer to a call."""

    name: str
    call: Callable[[Any], Any]


def numbers(*found: Any) -> Array:
    return np.concatenate([np.ravel(np.asarray(one, float)) for one in found])


def of_pair(make: Callable[..., Any], method: str) -> Callable[[Any], Array]:
    def call(y: Any) -> Array:
        model = make(1, nan_policy="omit")
        if method == "fit":
            model.fit(X, y)
        elif method == "partial_fit":
            model.fit(X[::-1] + 1, Y[::-1]).partial_fit(X, y)
        else:
            model.fit(X, Y)
        if method == "score":
            return numbers(model.score(X, y))
        if method.startswith("transform"):
            found = model.transform_y(y) if method == "transform_y" else model.transform(X, y)[1]
            return numbers(np.nan_to_num(found))
        return numbers(model.n_samples_, model.coef_ if hasattr(model, "predict") else model.transform(X))

    return call


def of_partial_cca(method: str) -> Callable[[Any], Array]:
    def call(z: Any) -> Array:
        model = bp.CCA(1, nan_policy="omit").fit(X[::-1], Y[::-1], covariates=z if method == "fit" else WEIGHTS)
        if method == "partial_fit":
            model.partial_fit(X, Y, covariates=z)
        elif method != "fit":
            sides = {"transform_y": (Y,), "score": (X, Y)}.get(method, (X,))
            return numbers(np.nan_to_num(getattr(model, method)(*sides, covariates=z)))
        return numbers(model.n_samples_, model.coef_)

    return call


def of_covariates(method: str) -> Callable[[Any], Array]:
    def call(z: Any) -> Array:
        model = bp.PCA(2, nan_policy="omit")
        if method == "partial_fit":
            return numbers(model.fit(X[::-1] + 1, covariates=Y).partial_fit(X, covariates=z).components_)
        if method == "fit":
            return numbers(model.fit(X, covariates=z).components_, model.n_samples_)
        if method == "fit_transform":
            return numbers(np.nan_to_num(model.fit_transform(X, covariates=z)))
        return numbers(np.nan_to_num(model.fit(X, covariates=Y).transform(X, covariates=z)))

    return call


quality = bp.quality
SIDES: dict[str, Argument] = {
    **{
        f"{make.__name__}.{method}": Argument("Y", of_pair(make, method))
        for make, methods in (
            (bp.Ridge, ("fit", "partial_fit", "score")),
            (bp.CCA, ("fit", "partial_fit", "score", "transform", "transform_y")),
            (bp.PLSSVD, ("fit", "partial_fit", "transform", "transform_y")),
        )
        for method in methods
    },
    **{
        f"PCA.{method}(covariates)": Argument("Z", of_covariates(method))
        for method in ("fit", "partial_fit", "transform", "fit_transform")
    },
    **{
        f"CCA.{method}(covariates)": Argument("Z", of_partial_cca(method))
        for method in ("fit", "partial_fit", "transform", "transform_y", "predict", "score")
    },
    "cka": Argument("Y", lambda y: numbers(quality.cka(X, y, nan_policy="omit").value)),
    "procrustes": Argument("Y", lambda y: numbers(quality.procrustes(X, y, nan_policy="omit").value)),
    "compare_layers": Argument(
        "layer 'b'", lambda y: numbers(bp.compare_layers({"a": X, "b": y}, nan_policy="omit").values)
    ),
}


CLASSES = np.arange(N) % 3
WEIGHTS = np.arange(1.0, N + 1)


def of_labels(make: Callable[..., Any], method: str, fitted: Array) -> Callable[[Any], Array]:
    def call(y: Any) -> Array:
        model = make(1, missing_labels="drop")
        if method == "score":
            return numbers(model.fit(X, fitted).score(X, y))
        model = model.fit(X, y) if method == "fit" else model.fit(X[::-1], fitted[::-1]).partial_fit(X, y)
        return numbers(model.components_, model.n_samples_)

    return call


discriminant = bp.FisherDiscriminantAnalysis
LABELS: dict[str, tuple[Argument, Array]] = {
    "targets.fit": (Argument("y", of_labels(bp.SupervisedPCA, "fit", Y)), Y),
    "targets.partial": (Argument("y", of_labels(bp.SupervisedPCA, "partial", Y)), Y),
    **{
        f"classes.{method}": (Argument("y", of_labels(discriminant, method, CLASSES)), CLASSES)
        for method in ("fit", "partial", "score")
    },
    "ScoredPCA": (
        Argument("y", lambda y: numbers(bp.ScoredPCA(1, missing_labels="drop").fit(X, y).transform(X))), Y,
    ),
}  # fmt: skip
NOT_MISSING: dict[str, tuple[Argument, Array, str]] = {  # and what is said of a value that is missing
    "weights": (
        Argument("sample_weight", lambda w: numbers(bp.PCA(1).fit(X, sample_weight=w).mean_)), WEIGHTS,
        "1 of 40 weights are missing",
    ),
    "weights of Ridge.score": (
        Argument("sample_weight", lambda w: numbers(bp.Ridge(1.0).fit(X, Y).score(X, Y, w))), WEIGHTS,
        "1 of 40 weights are missing",
    ),
    "reliability": (Argument("sample_weight", bp.data.reliability), WEIGHTS, "1 of 40 weights are missing"),
    "groups": (
        Argument("groups", lambda g: bp.Ridge([1, 2]).fit(X, Y, groups=g).cv_scores_), CLASSES, "1 of 40 g"
    ),
    "groups of PCA": (
        Argument("groups", lambda g: numbers(bp.PCA(1).fit(X, groups=g).without_group(1).mean_)), CLASSES, "1 of 40 g"
    ),
    "groups of cka": (
        Argument("groups", lambda g: numbers(quality.cka(X, Y, groups=g).standard_error)), CLASSES, "1 of 40 g"
    ),
    "landmark rows": (
        Argument("sampling", lambda L: bp.NystromKernelPCA(1, sampling=L).fit(X).eigenvalues_), X[:20],
        "landmark 5 has nan in column 0",
    ),
    "landmark numbers": (
        Argument("sampling", lambda L: bp.NystromKernelPCA(1, sampling=L).fit(X).eigenvalues_), np.arange(20),
        "X has dtype float64",
    ),
    **{
        name: (
            Argument(name, lambda v, name=name: bp.PCA(1, **{name: v}).fit(np.tile(X, 4)).components_),
            np.arange(1.0, 13), rf"{name} is nan in column 5",
        )
        for name in ("center", "scale")
    },
}  # fmt: skip
NOT_MISSING |= {  # keys, and what functions of quality compare
    "keys": (
        Argument("keys", lambda keys: bp.data.by_key(WEIGHTS, pd.DataFrame(X), keys)), np.arange(N),
        r"1 of 40 keys are missing \(row 5\)",
    ),
    "similarity": (
        Argument("components_a", lambda V: quality.similarity(V, X)), X, "row 5 of components_a has no direction"
    ),
    "positions": (
        Argument("positions", lambda at: quality.local_pca(np.tile(X, 4), 6, positions=at).explained_variance_),
        np.arange(12.0), r"positions of shape \(12,\) have 11 finite numbers",
    ),
}  # fmt: skip
NOT_MISSING["metric"] = (
    Argument("metric", lambda M: bp.GeneralizedPCA(2, metric=M).fit(np.tile(X, 7)[:, :20]).components_),
    np.eye(20) + 0.5, "a finite and symmetric matrix",
)  # fmt: skip
HELD: dict[str, Argument] = {  # functions of rows in memory
    "kernel(X, X)": Argument("X", lambda A: bp.kernels.RBF(1.0)(A, X)),
    "kernel(X, Y)": Argument("Y", lambda A: bp.kernels.RBF(1.0)(X, A)),
    "kernel.diagonal": Argument("X", lambda A: bp.kernels.Polynomial(gamma=2).diagonal(A)),
}


MODEL = bp.PCA(2).fit(X)
SCORES = MODEL.transform(X)


def drawn(ax: Any) -> Array:
    return numbers(np.ma.filled(ax.collections[0].get_offsets(), np.nan))


def written(rows: Any, folder: Path) -> Array:
    with bp.FeatureWriter(folder / "w.zarr", overwrite=True) as writer:
        writer.write(rows)
    return numbers(bp.open(folder / "w.zarr"))


@pytest.fixture
def read_alone(tmp_path: Path) -> dict[str, tuple[Argument, Array]]:
    """What is read without a fit's door."""
    fit = bp.PCA(1, nan_policy="omit").fit
    labels = bp.FisherDiscriminantAnalysis(1, missing_labels="drop").fit
    return {
        "rows of batches": (Argument("batch", lambda A: numbers(fit(bp.from_batches([A])).mean_)), X),
        "labels of batches": (
            Argument("labels", lambda y: numbers(labels(bp.from_batches([(X, y)], classes=range(3))).components_)),
            CLASSES,
        ),
        "rows that are written": (Argument("rows", lambda A: written(A, tmp_path)), X),
        "scores of a figure": (Argument("scores", lambda A: drawn(bp.plots.scores(MODEL, scores=A))), SCORES),
        "scores of a frame": (Argument("scores", lambda A: numbers(MODEL.to_frame(A))), SCORES),
    }  # fmt: skip


@pytest.mark.parametrize("form", ["masked", "list of masked rows", "Zarr, a chunk lost", "Dask of Zarr, a chunk lost",
                                  "HDF5, a chunk lost"])  # fmt: skip
@pytest.mark.parametrize("name", ["rows of batches", "labels of batches", "rows that are written", "scores of a figure",
                                  "scores of a frame"])  # fmt: skip
def test_what_is_read_alone_keeps_its_mask_and_notices_lost_chunks(
    name: str, form: str, read_alone: dict[str, tuple[Argument, Array]], tmp_path: Path
) -> None:
    argument, values = read_alone[name]
    check(argument, FORMS[form], tmp_path, values)
    plt.close("all")


def test_rows_of_different_lengths_are_named() -> None:
    ragged = [[1.0, 2.0], [3.0]]
    for call in (MODEL.transform, lambda y: bp.Ridge(1.0).fit(X, y), lambda y: bp.plots.scores(MODEL, scores=y)):
        with pytest.raises(TypeError, match="rows of different lengths, from 1 to 2"):
            call(ragged)


WORDS = {"sample_weight": "weights", "sampling": "landmark", "eigenvalues": "eigenvalue", "keys": "key"}


def check(argument: Argument, form: Form, folder: Path, values: Array) -> None:
    """Compare the answer with that of plain values; or the error with what is wrong, and the name of the argument."""
    make, expected = form
    given = make(folder, values)
    if expected in (SAME, MISSING, SHORT):
        plain = values if expected == SAME else at_hole(values, np.nan)
        plain = given.astype(np.float32) if expected == SHORT else plain
        np.testing.assert_array_equal(argument.call(given), argument.call(plain))
        return
    with pytest.raises((TypeError, ValueError, bp.errors.MissingChunksError)) as caught:
        argument.call(given)
    said = str(caught.value)
    assert re.search(expected.replace("X", argument.name), said), said
    assert any(word in said for word in (argument.name, WORDS.get(argument.name, argument.name), str(folder))), said


@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_rows_beside_x_are_opened_as_x_is(name: str, dimensions: int, tmp_path: Path) -> None:
    form = (FORMS[name][0], SHORT) if name == "bfloat16" else FORMS[name]  # as of X
    check(SIDES["Ridge.fit"], form, tmp_path, Y if dimensions == 1 else Y[:, None])


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_other_libraries_are_opened(name: str, tmp_path: Path) -> None:
    check(SIDES["Ridge.fit"], COLUMNS[name], tmp_path, Y)


@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_labels_are_read_as_x_is(name: str, dimensions: int, tmp_path: Path) -> None:
    for argument, values in (LABELS["targets.fit"], LABELS["classes.fit"]):
        folder = tmp_path / str(values.dtype)
        folder.mkdir()
        check(argument, FORMS[name], folder, values if dimensions == 1 else values[:, None])


@pytest.mark.parametrize("name", LABELS)
def test_all_labels_keep_their_mask_and_notice_lost_chunks(name: str, tmp_path: Path) -> None:
    argument, values = LABELS[name]
    for form in ("masked", "HDF5, a chunk lost", "tensor with grad"):
        check(argument, FORMS[form], tmp_path, values)
    with pytest.raises(ValueError, match=r"39 labels for 40 rows"):
        argument.call(values[:-1])


@pytest.mark.parametrize("name", NOT_MISSING)
def test_what_may_not_be_missing_is_read_as_x_is(name: str, tmp_path: Path) -> None:
    argument, values, missing = NOT_MISSING[name]
    for form in ("masked", "list of masked rows", "Dask, masked"):
        check(argument, (FORMS[form][0], missing), tmp_path, values)
    for form, (make, expected) in FORMS.items():
        if expected != MISSING and form not in ("list", ".npy"):
            folder = tmp_path / form
            folder.mkdir()
            check(argument, (make, "." if form in ("complex", "dates") else expected), folder, values)


@pytest.mark.parametrize("name", HELD)
def test_rows_in_memory_are_what_kernels_take(name: str, tmp_path: Path) -> None:
    argument = HELD[name]
    for form, expected in (
        ("masked", r"X\[5, 0\] = nan is not finite"), ("list of masked rows", r"X\[5, 0\] = nan is"),
        ("DataArray, packed", "X is a xarray.DataArray; .* encoded"), ("list", SAME),
        ("Dask", "X is a dask.Array; an array in m"),
        ("HDF5", r"X is a h5py.* bigpca.open\(X\).compute"), ("Zarr, a chunk lost", "X is a zarr.Array; .* notices"),
        ("tensor with grad", r"X is a torch.Tensor; .* X.detach\(\).cpu"),
    ):  # fmt: skip
        check(argument, (FORMS[form][0], expected), tmp_path, X)


@pytest.mark.parametrize("form", ["dates", "complex"])
def test_parameters_are_real_numbers(form: str, tmp_path: Path) -> None:
    words = "X has dtype .*, which holds no real numbers"
    for name, call in {
        "latitude": lambda v: bp.PCA(1, scale=bp.scales.CosLatitude(v)).fit(np.tile(X, 4)),
        "means": lambda v: bp.kernels.GaussianMixtureScore((1.0,), v[None], np.ones((1, 12))),
    }.items():
        check(Argument(name, call), (FORMS[form][0], words), tmp_path, np.arange(12.0))


@pytest.mark.parametrize("name", SIDES)
def test_every_side_keeps_its_mask_and_notices_lost_chunks(name: str, tmp_path: Path) -> None:
    for form in ("masked", "HDF5, a chunk lost", "tensor with grad"):
        check(SIDES[name], FORMS[form], tmp_path, Y)
    if ".transform" not in name or "covariates" in name:  # which maps rows of Y alone
        with pytest.raises(ValueError, match=r"40 rows, and .* 39"):
            SIDES[name].call(Y[:-1])


ESTIMATORS = {
    name: one
    for name in dir(bp)
    if isinstance(one := getattr(bp, name), type) and issubclass(one, Estimator) and not isabstract(one)
}


GROUPED = ("PCA", "SlowFeatureAnalysis", "MinimumNoiseFraction", "TICA")  # groups are trajectories but for PCA


@pytest.mark.parametrize("name", ESTIMATORS)
def test_groups_are_rejected_by_what_does_not_use_them(name: str) -> None:
    model, y = ESTIMATORS[name](), np.arange(N) % 2
    for call in (model.fit, model.plan) if name not in GROUPED else ():
        with pytest.raises(TypeError, match=f"to this {name}, which uses none"):
            call(X, X[:, :2] if name in ("CCA", "PLSSVD", "PLSRegression") else y, groups=y)


FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
OTHER = FRAME[["c", "b", "a"]]
BY_COVARIATES = bp.PCA(1).fit(Y[:, None] + X[:, :2], covariates=FRAME)
OF_TARGETS = bp.CCA(1).fit(X, FRAME)
NAMED = xr.DataArray(OTHER.to_numpy(), dims=("t", "f"), coords={"f": list("cba")})
REORDERED: dict[str, Callable[[], Any]] = {
    "Z of transform": lambda: BY_COVARIATES.transform(X[:, :2], covariates=OTHER),
    "Z of partial_fit": lambda: BY_COVARIATES.partial_fit(X[:, :2], covariates=OTHER),
    "Z as a DataArray": lambda: BY_COVARIATES.transform(
        X[:, :2], covariates=xr.DataArray(X, dims=("t", "f"), coords={"f": list("cba")})
    ),
    "Z of a merged model": lambda: bp.merge(BY_COVARIATES, BY_COVARIATES).transform(X[:, :2], covariates=OTHER),
    "Y of transform_y": lambda: OF_TARGETS.transform_y(OTHER),
    "Y of score": lambda: OF_TARGETS.score(X, OTHER),
    "Y of partial_fit": lambda: OF_TARGETS.partial_fit(X, OTHER),
    "center of a fit": lambda: bp.PCA(1, center=OTHER.mean()).fit(FRAME),
    "scale of a fit": lambda: bp.ApproximatePCA(1, scale=OTHER.std()).fit(FRAME),
    "sampling of a fit": lambda: bp.NystromKernelPCA(1, sampling=OTHER[:9]).fit(FRAME),
    "metric of a fit": lambda: bp.GeneralizedPCA(1, metric=OTHER.cov()).fit(FRAME),
    "center as a DataArray": lambda: bp.PCA(1, center=NAMED.mean("t")).fit(FRAME),
    "sampling as a DataArray": lambda: bp.NystromKernelPCA(1, sampling=NAMED[:9]).fit(FRAME),
    "metric as a DataArray": lambda: bp.GeneralizedPCA(1, metric=NAMED[:3].assign_coords(t=list("cba"))).fit(FRAME),
}


@pytest.mark.parametrize("name", REORDERED)
def test_columns_in_another_order_are_noticed(name: str) -> None:
    with pytest.raises(ValueError, match=r"feature names should match.*\nFeature names must be in the same order"):
        REORDERED[name]()


FIELD = xr.DataArray(
    np.tile(X, 2).reshape(N, 2, 3), dims=("t", "lat", "lon"), coords={"lat": [10.0, 50.0], "lon": [0.0, 1.0, 2.0]}
)


def test_landmarks_beside_a_field_are_on_its_grid() -> None:
    fit = lambda rows: bp.NystromKernelPCA(1, sampling=rows).fit(FIELD).eigenvalues_  # noqa: E731
    flat = FIELD.values[:9].reshape(9, -1)
    for same in (FIELD[:9], FIELD[:9].drop_vars(["lat", "lon"]), xr.DataArray(flat), flat):
        np.testing.assert_array_equal(fit(same), fit(FIELD[:9]))
    with pytest.raises(
        ValueError, match=r"coordinate 'lat' of sampling is \[50.0, 10.0\].*that of X is \[10.0, 50.0\]"
    ):
        fit(FIELD[:9, ::-1])
    with pytest.raises(
        ValueError, match=r"dimensions t, lon, lat, .*of X are lat, lon.*transpose\(\.\.\., 'lat', 'lon'"
    ):
        fit(FIELD[:9].transpose("t", "lon", "lat"))


def test_names_of_covariates_are_kept_with_the_model(tmp_path: Path) -> None:
    BY_COVARIATES.save(tmp_path / "m.zarr")
    loaded = bp.load(tmp_path / "m.zarr")
    assert loaded.covariate_names_in_.tolist() == ["a", "b", "c"]
    with pytest.warns(UserWarning, match="Z does not have valid feature names, but PCA was fitted with feature names"):
        loaded.transform(X[:, :2], covariates=X)
    with pytest.raises(ValueError, match=r"the models name covariate 0 'a' and 'c'. Fit both on the same"):
        bp.merge(loaded, bp.PCA(1).fit(X[:, :2], covariates=OTHER))
    assert not hasattr(bp.PCA(1).fit(FRAME, covariates=FRAME).fit(FRAME, covariates=X[:, :1]), "covariate_names_in_")


def test_a_model_of_residuals_asks_for_the_covariates_that_a_measurement_needs() -> None:
    with pytest.raises(ValueError, match="the rows have 0 covariates, but PCA was fitted with 3"):
        quality.reconstruction_error(BY_COVARIATES, X[:, :2])


OPENED = {  # by a row of the tables above, or by the same function as one
    "Y", "covariates", "y", "labels", "values", "keys", "classes", "sample_weight", "weights", "groups", "center",
    "scale", "sampling", "components_a", "components_b", "latitude",
    "means", "covariances", "metric", "positions",
}  # fmt: skip
BY_THE_DOOR_OF_X = {"X", "Z", "queries", "rows", "scores", "source", "held_out", "batch", "batches", "layers"}
NO_ARRAYS_BESIDE_X = {  # models, results, functions, names, numbers and choices
    "a", "alpha", "b", "absent", "background", "blocks", "column", "columns", "components", "description", "dtype",
    "ends", "errors", "estimator", "f", "feature_names", "found", "function", "gammas", "given", "grid",
    "images", "input_features", "kernel", "lag", "levels", "like", "mask", "missing_value", "model", "models", "names",
    "path", "pictures", "preprocess", "result", "sample_dims", "score", "standard_errors", "store",
    "write",
}  # fmt: skip
LOOSE = re.compile(r"Any\b|Input|ArrayLike|NDArray|Center|Scale\b|Sequence|Vector|Matrix")


def test_every_argument_that_may_be_an_array_is_in_one_of_the_tables() -> None:
    found: dict[str, str] = {}
    for module in (bp, quality, bp.data, bp.kernels, bp.rules, bp.scales, bp.plots):
        for name in getattr(module, "__all__", dir(module)):
            one = getattr(module, name)
            methods = getmembers(one, isfunction) if isclass(one) and module in (bp, quality) else []
            public = [method for label, method in methods if not label.startswith("_")]
            for call in (one, *public) if getattr(one, "__module__", "").startswith("bigpca") and callable(one) else ():
                for parameter in signature(call).parameters.values():
                    if LOOSE.search(str(parameter.annotation)) and parameter.kind not in (2, 4):  # *args, **options
                        found[parameter.name] = f"{module.__name__}.{name}"
    unknown = found.keys() - OPENED - BY_THE_DOOR_OF_X - NO_ARRAYS_BESIDE_X
    assert not unknown, {name: found[name] for name in unknown}  # say by what they are opened, and try them there
    assert not OPENED - found.keys()


SHARED = pd.DataFrame(np.ones((9, 3)), columns=list("aab"))


@pytest.mark.parametrize("table", [SHARED, pa.table([[1.0] * 9] * 2, names=["a", "a"])], ids=["pandas", "pyarrow"])
def test_columns_of_one_name_are_named(table: Any) -> None:
    rows = np.random.default_rng(0).standard_normal((9, 3))
    for call in (
        lambda: bp.PCA(1).fit(table),
        lambda: bp.PCA(1).fit(rows, covariates=table),
        lambda: bp.PCA(1).fit(rows).transform(table),
        lambda: bp.PCA(1).fit(bp.from_batches([table])),
        lambda: bp.Ridge(1.0).fit(rows, table),
        lambda: bp.open(table),
        lambda: quality.cka(table, rows),
    ):
        with pytest.raises(ValueError, match=r"2 of [23] columns of the table are named 'a', .*which must differ"):
            call()


def test_masks_of_columns_and_penalties_are_not_dropped() -> None:
    for given in (FRAME, bp.open(FRAME)):
        mask = pd.Series([True, True, False], index=FRAME.columns)
        np.testing.assert_array_equal(bp.open(given, columns=mask), X[:, :2])
        with pytest.raises(ValueError, match="the mask of columns names position 0 'c', but X names it 'a'"):
            bp.open(given, columns=mask[::-1])
    np.testing.assert_array_equal(bp.open(X, columns=mask[::-1]), X[:, 1:])  # X has no names
    with pytest.raises(TypeError, match="chooses no positions"):
        bp.open(X, columns=np.ma.masked_array([0, 1], [False, True]))
    with pytest.raises(ValueError, match="a number of at least 0"):
        bp.Ridge(np.ma.masked_equal([1.0, 10.0], 10.0)).fit(X, Y)


def test_a_list_of_dicts_is_no_rows() -> None:
    layers = {"a": np.ones((9, 2)), "b": np.ones((9, 3))}
    for call in (bp.PCA(1).fit, bp.compare_layers, lambda X: quality.cka(X, np.ones((9, 1)))):
        with pytest.raises(TypeError, match=r"is a list of 2 dicts\. Batches of blocks of rows, .*from_batches\(X\)"):
            call([layers, layers])
