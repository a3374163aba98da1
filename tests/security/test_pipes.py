"""Nothing but regular files is read: a named pipe in a dump, a model or a checkpoint is an error at
once and not a wait for ever.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import bigpca as bp
from bigpca.data.label_files import read_label_file
from bigpca.storage.files import open_regular

X = np.random.default_rng(0).normal(size=(64, 4)).astype("f4")
OPEN: Callable[[Path], Any] = bp.open


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def store(path: Path, **options: Any) -> Path:
    zarr.create_array(path, data=X, chunks=(16, 4), **options)
    return path


def read(path: Path, **options: Any) -> Any:
    return bp.open(path, **options).compute()


def members(path: Path) -> Path:
    group = zarr.open_group(path, mode="w")
    for name in ("a", "b"):
        group.create_array(name, data=X)
    return path


def shards(path: Path) -> Path:
    path.mkdir()
    np.save(path / "0.npy", X)
    return path


def model(path: Path) -> Path:
    bp.PCA(2).fit(X).save(path)
    return path


def opened_before(make: Callable[[Path], Path], name: str) -> Callable[[Path], None]:
    """Read what became a pipe after it was opened."""

    def run(folder: Path) -> None:
        lazy = bp.open(make(folder / "x"))
        pipe(folder / "x" / name)
        lazy.compute()

    return run


CASES: dict[str, Callable[[Path], Any]] = {
    "a file": lambda d: read(pipe(d / "x.npy")),
    "a file of no known name": lambda d: read(pipe(d / "x")),
    "safetensors": lambda d: read(pipe(d / "x.safetensors")),
    "parquet": lambda d: read(pipe(d / "x.parquet")),
    "parquet by a pattern": lambda d: read(pipe(d / "x.parquet").with_name("*.parquet")),
    "hdf5": lambda d: read(pipe(d / "x.h5")),
    "a shard": lambda d: read(pipe(shards(d / "x") / "1.npy").parent),
    "a shard, later": opened_before(shards, "0.npy"),
    "a chunk": lambda d: read(pipe(store(d / "x") / "c/1/0").parents[2]),
    "a chunk read directly": lambda d: read(pipe(store(d / "x", compressors=None) / "c/1/0").parents[2]),
    "a blosc chunk": lambda d: read(pipe(store(d / "x", compressors=zarr.codecs.BloscCodec()) / "c/1/0").parents[2]),
    "a shard of chunks": lambda d: read(pipe(store(d / "x", shards=(32, 4)) / "c/1/0").parents[2]),
    "a chunk of Zarr v2": lambda d: read(pipe(store(d / "x", zarr_format=2) / "1.0").parent),
    "attributes of Zarr v2": lambda d: read(pipe(store(d / "x", zarr_format=2) / ".zattrs").parent),
    "a chunk that may be missing": lambda d: read(
        pipe(store(d / "x", compressors=zarr.codecs.BloscCodec()) / "c/1/0").parents[2], missing_chunks="fill"
    ),
    "a member's metadata": lambda d: read(pipe(members(d / "x") / "b/zarr.json").parents[1]),
    "metadata, later": opened_before(store, "zarr.json"),
    "verify": lambda d: bp.data.verify(pipe(members(d / "x") / "b/zarr.json").parents[1]),
    "labels": lambda d: read_label_file(str(pipe(d / "y.npy"))),
    "labels as text": lambda d: read_label_file(str(pipe(d / "y.csv"))),
    "labels in parquet": lambda d: read_label_file(str(pipe(d / "y.parquet"))),
    "labels in Zarr": lambda d: read_label_file(str(pipe(store(d / "y") / "c/1/0").parents[2])),
    "a model": lambda d: bp.load(pipe(model(d / "m") / "zarr.json").parent),
    "a model's array": lambda d: bp.load(pipe(model(d / "m") / "mean/zarr.json").parents[1]),
    "a model's chunk": lambda d: bp.load(pipe(model(d / "m") / "mean/c/0").parents[2]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_named_pipe_is_an_error_and_not_a_wait(case: str, tmp_path: Path) -> None:
    with pytest.raises(
        (ValueError, FileNotFoundError), match=r"is a named pipe, but only regular files are read|its files hold 0"
    ):
        CASES[case](tmp_path)


def test_verify_counts_a_pipe_among_broken_chunks(tmp_path: Path) -> None:
    pipe(store(tmp_path / "x") / "c/1/0")
    assert bp.data.verify(tmp_path / "x").damaged == ("c/1/0",)


@pytest.mark.parametrize("name", ["run.json", "pass-01/pass.json", "pass-01/segment-000.npz"])
def test_a_pipe_in_a_checkpoint_is_an_error_or_read_anew(name: str, tmp_path: Path) -> None:
    dump, kept = store(tmp_path / "x"), tmp_path / "kept"
    expected = bp.PCA(2).fit(dump, checkpoint=kept).components_
    (run,) = (path for path in kept.iterdir() if path.is_dir())
    pipe(run / name)
    if name.endswith(".npz"):
        with pytest.warns(UserWarning, match=r"cannot be read back .* is a named pipe"):
            again = bp.PCA(2).fit(dump, checkpoint=kept)
        assert np.array_equal(again.components_, expected)
        return
    for seed in (0, None):  # None is looked up in the checkpoint
        with pytest.raises((ValueError, bp.errors.CheckpointError), match="is a named pipe"):
            bp.PCA(2, random_state=seed).fit(dump, checkpoint=kept)


def test_devices_are_no_files_either() -> None:
    with pytest.raises(ValueError, match="/dev/zero is a device, but only regular files are read"):
        open_regular("/dev/zero")


@pytest.mark.parametrize("by", ["directly", "in the middle"])
def test_an_external_link_of_hdf5_is_not_opened(by: str, tmp_path: Path) -> None:
    """Opening a pipe would wait for ever, so an error says that nothing was opened."""
    other = pipe(tmp_path / "other.h5")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_group("inside")["there"] = h5py.ExternalLink(str(other), "/")
    member = {"directly": "inside/there", "in the middle": "inside/there/x"}[by]
    with pytest.raises(ValueError, match=r"is in another file .*is not followed"):
        bp.open(tmp_path / "x.h5", member=member)
