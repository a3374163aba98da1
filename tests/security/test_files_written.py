"""What bigpca writes is numbers and JSON; reading it back runs no code, believes no size, and follows no link."""

import json
import os
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import pytest

import bigpca as bp
from bigpca import sketches
from bigpca.data.sources import row_source
from bigpca.engine.checkpoint import Checkpoint
from bigpca.errors import ApproximationWarning, ModelFormatError, OutputExistsError
from bigpca.estimators.loading import CLASSES
from bigpca.storage import RunLock
from bigpca.storage.carriers import create_output
from tests.security.attacks import little_memory, npy_header

RNG = np.random.default_rng(0)
LABELS = np.array(["a", "b", "c"])[np.arange(60) % 3]
X = np.abs(RNG.normal(size=(60, 6)) + 2.0 + 3.0 * np.eye(6)[np.arange(60) % 3])  # one model takes counts
ZSTD = b"\x28\xb5\x2f\xfd"


def fitted(name: str) -> Any:
    given: dict[str, Any] = {
        "SketchTransformer": {"sketch": sketches.Gaussian(3)}, "Ridge": {},
        "ContrastivePCA": {"n_components": 2, "background": LABELS[0]},
    }  # fmt: skip
    y = X[:, :2] if name in ("CCA", "PLSSVD", "PLSRegression", "Ridge") else LABELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)
        return getattr(bp, name)(**given.get(name, {"n_components": 2})).fit(X, y)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model of every class."""
    folder = tmp_path_factory.mktemp("models")
    for name in CLASSES:
        fitted(name).save(folder / f"{name}.zarr")
    return {name: folder / f"{name}.zarr" for name in CLASSES}


@pytest.fixture(scope="module")
def written(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything else: a store, checkpoints, a finished and an unfinished output with its lock."""
    folder = tmp_path_factory.mktemp("written")
    with dask.config.set(scheduler="sync"):
        rows = bp.ingest(X, folder / "rows.zarr", chunk_rows=20)
        bp.PCA(2, solver="covariance").fit(rows, checkpoint=folder / "covariance")
        model = bp.PCA(2, solver="krylov").fit(rows, checkpoint=folder / "krylov")
        bp.KernelPCA(2, kernel="rbf").fit(rows, checkpoint=folder / "kernel")
        model.transform(rows, out=folder / "scores.zarr")
    held = Checkpoint(folder / "held", {"run": 1})
    output = create_output(folder / "half.zarr", shape=(60, 2), dtype="f4", chunk_rows=20, identity="a")
    output.writer.write(0, np.ones((20, 2), "f4"))
    yield folder
    output.abort()
    held.release()


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def check_form(path: Path) -> str:
    """Say which of the few forms a file has; anything else fails."""
    content = path.read_bytes()
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    assert np.lib.format.read_array(member, allow_pickle=False).dtype.kind in "fiub"
        return "arrays"
    if path.suffix == ".log":
        return "journal" if [json.loads(line) for line in content.splitlines() if line] else ""
    if content.startswith(ZSTD):
        assert "c" in path.parts
        return "chunk"
    json.loads(content)
    return "json"


def test_every_file_that_is_written_holds_numbers_or_json(models: dict[str, Path], written: Path) -> None:
    forms = {path: check_form(path) for folder in (written, *models.values()) for path in files_of(folder)}
    assert set(forms.values()) == {"arrays", "journal", "chunk", "json"}
    names = {path.name for path in forms}
    assert {"run.lock", "half.zarr.lock", "run.json", "pass.json", "zarr.json"} <= names


@pytest.fixture
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("something was unpickled")

    for module in (pickle, cloudpickle):
        for name in ("load", "loads"):
            monkeypatch.setattr(module, name, reject)
    monkeypatch.setattr(pickle, "Unpickler", reject)


@pytest.mark.usefixtures("no_pickle")
def test_nothing_is_unpickled_to_read_models_checkpoints_and_stores(
    models: dict[str, Path], written: Path, tmp_path: Path
) -> None:
    for path in models.values():
        bp.load(path)
    shutil.copytree(written / "covariance", tmp_path / "c")
    with dask.config.set(scheduler="sync"):
        rows = bp.open(written / "rows.zarr")
        np.testing.assert_array_equal(
            row_source(written / "rows.zarr").read(0, 60), X
        )  # Dask pickles classes to name them
        passes: list[Any] = []
        bp.PCA(2, solver="covariance").fit(rows, checkpoint=tmp_path / "c", progress=passes.append)
        assert any(getattr(event, "groups_resumed", 0) for event in passes)
    assert bp.data.verify(written / "scores.zarr").ok


@pytest.mark.parametrize("name", CLASSES)
def test_a_flipped_byte_anywhere_in_a_model_is_rejected_or_changes_nothing(
    name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    copy, expected, rejected = tmp_path / "copy.zarr", bp.load(models[name]).transform(X), 0
    shutil.copytree(models[name], copy)
    for file in files_of(copy):
        content = file.read_bytes()
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 0x11]) + content[middle + 1 :])
        try:
            loaded = bp.load(copy)
        except ModelFormatError:
            rejected += 1
        else:
            assert file.name == "zarr.json"  # white space or redundant metadata
            np.testing.assert_array_equal(loaded.transform(X), expected)
        file.write_bytes(content)
    assert rejected >= 1


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_checkpoint_that_promises_more_than_it_holds_is_rejected_and_read_anew(
    method: int, written: Path, tmp_path: Path
) -> None:
    shutil.copytree(written / "covariance", tmp_path / "c")
    (state,) = (path for path in (tmp_path / "c").rglob("prefix-*.npz"))
    with zipfile.ZipFile(state, "w", method) as archive:
        archive.writestr("moments.scatter.npy", npy_header((10**7, 10**6)) + bytes(99))
    rows = bp.open(written / "rows.zarr")
    with little_memory(), pytest.warns(UserWarning, match="declares 40,000,000,000,000 bytes of values"):
        again = bp.PCA(2, solver="covariance").fit(rows, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(again.components_, bp.PCA(2, solver="covariance").fit(rows).components_)


def test_a_checkpoint_with_objects_is_rejected_and_read_anew(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written / "covariance", tmp_path / "c")
    (state,) = (path for path in (tmp_path / "c").rglob("prefix-*.npz"))
    np.savez(state, record=np.array([{}], object))
    with pytest.warns(UserWarning, match=r"cannot be read back .*truncated or altered"):
        bp.PCA(2, solver="covariance").fit(bp.open(written / "rows.zarr"), checkpoint=tmp_path / "c")


def test_links_in_the_places_of_locks_manifests_and_states_are_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("precious")
    for name in ("x.zarr.lock", "ckpt.lock"):
        (tmp_path / name).symlink_to(victim / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        create_output(tmp_path / "x.zarr", shape=(4, 2), dtype="f4", chunk_rows=2, identity="a")
    with pytest.raises(OSError, match="symbolic links"):
        RunLock(tmp_path / "ckpt.lock", "it").acquire()
    create_output(victim / "y.zarr", shape=(4, 2), dtype="f4", chunk_rows=2, identity="a").writer.write(
        0, X[:2, :2].astype("f4")
    )
    (tmp_path / "y.zarr.partial").symlink_to(victim / "y.zarr.partial")
    with pytest.raises(OutputExistsError, match=r"y\.zarr\.partial is a symbolic link, which is not followed"):
        create_output(tmp_path / "y.zarr", shape=(4, 2), dtype="f4", chunk_rows=2, identity="a")
    assert (victim / "precious").read_text() == "precious"


def test_a_link_in_the_place_of_a_checkpoints_files_is_replaced_and_not_followed(written: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    shutil.copytree(written / "covariance", tmp_path / "c")
    (state,) = (path for path in (tmp_path / "c").rglob("prefix-*.npz"))
    state.unlink()
    state.symlink_to(tmp_path / "precious")
    with pytest.warns(UserWarning, match="cannot be read back"):
        bp.PCA(2, solver="covariance").fit(bp.open(written / "rows.zarr"), checkpoint=tmp_path / "c")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not state.is_symlink()


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_files_are_as_private_as_the_umask_asks(tmp_path: Path) -> None:
    rows = bp.ingest(X, tmp_path / "rows.zarr", chunk_rows=20)
    model = bp.PCA(2, solver="covariance").fit(rows, checkpoint=tmp_path / "c")
    model.transform(rows, out=tmp_path / "scores.zarr")
    model.save(tmp_path / "model.zarr")
    held = Checkpoint(tmp_path / "held", {"run": 1})
    found = list(tmp_path.rglob("*"))
    assert len(found) > 30
    assert [path for path in found if path.stat().st_mode & 0o077] == []
    held.release()
