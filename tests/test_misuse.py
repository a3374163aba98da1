"""What a newcomer does wrong in Python is answered with what to do instead."""

import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import zarr

import bigpca as bp

MAX_FRAMES = 6  # below the line that the user wrote
X = np.random.default_rng(0).standard_normal((30, 5))
TABLE = pd.DataFrame({"a": X[:, 0], "species": ["cat", "dog", "fox"] * 10, "b": X[:, 1]})
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no model": (lambda: bp.load("nope.zarr"), "nope.zarr does not exist. Check the path"),
    "data as a model": (lambda: bp.load("data.zarr"), "data.zarr is a Zarr array, such as data or scores"),
    "a folder as a model": (lambda: bp.load("."), "is not a saved model: it has no zarr.json"),
    "a file as a model": (lambda: bp.load("x.npy"), "x.npy is not a saved model: it has no zarr.json"),
    "a model as data": (lambda: bp.open("model.zarr"), "model.zarr is a saved model (PCA); rows of features"),
    "no data": (lambda: bp.PCA(2).fit("nope.npy"), "nope.npy does not exist"),
    "a column of text": (lambda: bp.PCA(1).fit(TABLE), "columns of X do not hold numbers: 'species' (such as 'cat')"),
    "a kernel's other name": (lambda: bp.KernelPCA(1, kernel="gaussian").fit(X), "Did you mean rbf?"),
    "a solver's other name": (lambda: bp.PCA(1, solver="full").fit(X), "scikit-learn's 'full' is 'covariance' here"),
    "belongs to the constructor": (
        lambda: bp.PCA(1).fit(X, solver="krylov"), "belongs to the constructor: PCA(solver='krylov').fit(...)"
    ),
    "a misspelt name": (lambda: bp.mergee, "module 'bigpca' has no attribute 'mergee'. Did you mean merge?"),
    "a name of another module": (
        lambda: bp.preprocessing.CosLatitude, "no attribute 'CosLatitude'. Use bp.scales.CosLatitude."
    ),
    "a name below the top": (lambda: bp.verify, "module 'bigpca' has no attribute 'verify'. Use bp.data.verify."),
    "belongs to open": (
        lambda: bp.PCA(1).fit(X, sample_dims="time"), "belongs to bp.open: fit(bp.open(X, sample_dims='time'))."
    ),
    "another name of weights": (lambda: bp.PCA(1).fit(X, weights=[1]), "no argument 'weights'. Did you mean sample_we"),
    "no such argument": (lambda: bp.PCA(1).fit(X, zzz=1), "fit has no argument 'zzz'; it has X, y, "),
    "a name before the release": (lambda: bp.__getattr__("rows"), "no attribute 'rows'. Use preprocessing."),
    "scikit-learn's class": (lambda: bp.IncrementalPCA, "no attribute 'IncrementalPCA'. Use PCA(...).partial_fit(X)."),
    "cells of scanpy": (lambda: bp.pca, "no attribute 'pca'. Use cells.pca, or PCA(...).fit(X)."),
    "LDA": (lambda: bp.LDA, "no attribute 'LDA'. Use FisherDiscriminantAnalysis."),
    "dask-ml's solver": (lambda: bp.PCA(1, svd_solver="tsqr"), '"tsqr" of dask-ml is "dot" or "covariance"'),
    "whitening by a root": (lambda: bp.scales.Whitening(-0.5), "such as 0.5, which gives scores variance 1"),
    "scikit-learn's attribute": (lambda: bp.PCA(1).fit(X).n_samples_seen_, "'n_samples_seen_'. Use n_samples_."),
    "a misspelt rule": (lambda: bp.PCA("elbo").fit(X), "Did you mean elbow?"),
    "a misspelt column": (
        lambda: bp.FisherDiscriminantAnalysis().fit(X, "labels.csv::specie"), "Did you mean species?"
    ),
}  # fmt: skip


class OnDevice:
    """An array of another library, whose values are not in the host's memory."""

    shape, dtype, ndim, device = X.shape, X.dtype, 2, "device1"

    def __array_namespace__(self, **options: Any) -> Any:
        return np

    def to_device(self, device: str) -> Any:
        return self

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("Can't convert array on the 'device1' device to a NumPy array.")


MISTAKES |= {
    "an open array to verify": (
        lambda: bp.data.verify(zarr.open_array("data.zarr")),
        "Array, but a path was expected, as a str or os.PathLike. Pass"
    ),
    "an open array as output": (
        lambda: bp.PCA(2).fit(X).transform(X, out=zarr.open_array("data.zarr")), "out is an Array, but a path"
    ),
    "an open array as a copy": (lambda: bp.ingest(X, zarr.open_array("data.zarr")), "is an Array, but a path was"),
    "an open array as a model": (lambda: bp.PCA(2).fit(X).save(zarr.open_array("data.zarr")), "is an Array, but a"),
    "an array on a device": (lambda: bp.PCA(2).fit(OnDevice()), "OnDevice on device1, which NumPy cannot read. An"),
}  # fmt: skip
BAD = np.where(np.arange(150).reshape(30, 5) == 38, np.nan, X)
READS: dict[str, Callable[[], Any]] = {
    "fit an array": lambda: bp.PCA(2).fit(BAD),
    "fit a store": lambda: bp.PCA(2).fit("bad.zarr"),
    "fit a damaged store": lambda: bp.PCA(2).fit("damaged.zarr"),
    "fit a store without a chunk": lambda: bp.PCA(2).fit("gap.zarr"),
    "several reads": lambda: bp.PCA(2, solver="krylov").fit("bad.zarr"),
    "a kernel that rejects rows": lambda: bp.KernelPCA(2, kernel="ChiSquare").fit("data.zarr"),
    "labels": lambda: bp.FisherDiscriminantAnalysis(1).fit("bad.zarr", [0, 1] * 15),
    "partial_fit": lambda: bp.PCA(2).partial_fit(BAD),
    "transform": lambda: bp.load("model.zarr").transform("bad.zarr", out="scores.zarr"),
    "ingest": lambda: bp.ingest("damaged.zarr", "copy.zarr"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("misuse")
    np.save(path / "x.npy", X)
    for name, rows in {"data": X, "bad": BAD, "damaged": X, "gap": X}.items():
        bp.ingest(rows, path / f"{name}.zarr", chunk_rows=10)
    (path / "damaged.zarr/c/1/0").write_bytes(b"damaged")
    (path / "gap.zarr/c/1/0").unlink()
    bp.PCA(2).fit(X).save(path / "model.zarr")
    TABLE[["a", "species"]].to_csv(path / "labels.csv", index=False)
    return path


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    call, message = MISTAKES[name]
    with pytest.raises((ValueError, TypeError, FileNotFoundError, AttributeError)) as caught:
        call()
    assert message in str(caught.value)
    assert len(frames_of(caught.value)) <= MAX_FRAMES


def frames_of(error: BaseException) -> list[str]:
    """Return the functions in the traceback of an error and its causes, from the call of the user on."""
    shown = traceback.TracebackException.from_exception(error)
    assert shown.__cause__ is None
    assert shown.__context__ is None or shown.__suppress_context__
    return [frame.name for frame in shown.stack[2:]]


@pytest.fixture(params=["one thread", "threads", pytest.param("workers", marks=pytest.mark.cluster)])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    settings = {"one thread": {"scheduler": "sync"}, "threads": {"scheduler": "threads", "num_workers": 2}}
    if request.param == "workers":
        request.getfixturevalue("client")
    with dask.config.set(settings.get(request.param, {})):
        yield request.param


@pytest.mark.parametrize("name", READS)
def test_the_traceback_of_bad_data_is_short(
    name: str, scheduler: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError) as caught:
        READS[name]()
    assert len(frames_of(caught.value)) <= MAX_FRAMES


def test_the_traceback_is_whole_for_faults_of_the_code_and_for_developers(caplog: pytest.LogCaptureFixture) -> None:
    """A user's own kernel that fails, and any error if the log is at the level DEBUG."""

    def broken(A: Any, B: Any) -> Any:
        return np.zeros(3) + np.zeros(4)

    with pytest.raises(ValueError) as of_code:
        bp.KernelPCA(1, kernel=broken).fit(X)
    with caplog.at_level(logging.DEBUG, "bigpca"), pytest.raises(bp.errors.NonFiniteError) as of_data:
        bp.PCA(2).fit(BAD)
    for caught in (of_code, of_data):
        assert {"fit", "run_pass"} < set(frames_of(caught.value))


def test_labels_in_a_file_beside_rows_with_keys_are_said_to_be_in_order(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    bp.ingest(X, "keyed.zarr", keys=range(len(X)))
    for rows, expected in (("keyed.zarr", 1), (bp.open("keyed.zarr"), 2), ("data.zarr", 2)):
        with caplog.at_level(logging.WARNING, "bigpca"):
            bp.FisherDiscriminantAnalysis(1).fit(rows, "labels.csv::species")
        assert sum("by position" in message for message in caplog.messages) == expected


def test_an_array_of_a_model_is_opened_by_its_name(folder: Path) -> None:
    components = bp.open(folder / "model.zarr", member="components").compute()
    np.testing.assert_array_equal(components, bp.load(folder / "model.zarr").components_)


def test_dir_lists_the_public_names_only() -> None:
    assert len(dir(bp)) <= 48
    for room in (bp, bp.data, bp.plots, bp.quality, bp.preprocessing, bp.rules):
        assert dir(room) == sorted(room.__all__)
        assert all(getattr(room, name) is not None for name in dir(room))
    assert bp.quality.__name__ == "bigpca.quality"


@pytest.mark.parametrize("given", ["many", -3, 0, 1.5])
def test_threads_that_dask_cannot_have_are_named_before_a_read(given: Any) -> None:
    with (
        dask.config.set(num_workers=given),
        pytest.raises(ValueError, match=r"num_workers \(DASK_NUM_WORKERS .* is .*"),
    ):
        bp.PCA(2).fit(np.eye(9))
