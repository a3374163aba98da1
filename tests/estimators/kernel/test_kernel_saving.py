"""A kernel model on disk comes back as it was, with its training rows or with where they are; or it is rejected."""

import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from threadpoolctl import threadpool_limits

import bigpca as bp
from bigpca import KernelPCA, kernels
from bigpca.errors import ModelFormatError
from bigpca.estimators.kernel import spectrum
from bigpca.estimators.shared import files
from bigpca.estimators.shared.files import StoredModel
from bigpca.storage import read_group, write_group
from tests.builders import data_with_spectrum, power_law
from tests.cli.running import run
from tests.estimators.stores import save_changed, stored

N, D = 90, 5
X = data_with_spectrum(N, power_law(D), mean=1.0)[0]
NEW = data_with_spectrum(20, power_law(D), mean=1.0, seed=5)[0]
WORDS = np.array(["banana", "ananas", "nab", "a", "bandana", "cabana"])


@pytest.mark.parametrize(
    ("kernel", "dtype", "threads"), [("rbf", "f4", 2), ("rbf", "f8", 1), ("linear", "f8", 2), ("laplacian", "f4", 1)]
)
def test_preimages_are_the_same_bits_after_loading(kernel: str, dtype: str, threads: int, tmp_path: Path) -> None:
    rows = np.tile(X, (4, 40)).astype(dtype)  # wide enough for BLAS to use its threads
    rows += np.random.default_rng(0).standard_normal(rows.shape).astype(dtype)
    with threadpool_limits(threads, "blas"):
        model = KernelPCA(5, kernel=kernel, fit_inverse_transform=True).fit(rows)
        model.save(tmp_path / "model")
        stored = zarr.open_group(tmp_path / "model", mode="r")
        assert stored["preimage__coefficients"].shape == rows.shape  # nothing is solved again
        loaded, scores = bp.load(tmp_path / "model"), model.transform(rows)
        for given in (scores, scores[:1], da.from_array(scores, chunks=(100, 5))):
            back = [np.asarray(one.inverse_transform(given)) for one in (model, loaded, model)]
            assert back[0].tobytes() == back[1].tobytes() == back[2].tobytes()


def test_a_precomputed_kernel_and_strings_come_back(tmp_path: Path) -> None:
    matrix, new = X @ X.T, NEW @ X.T
    for name, kernel, rows, others in (
        ("matrix", "precomputed", matrix, new),
        ("words", kernels.Subsequence(2, 0.5), WORDS, np.array(["bananabananabanana", "", "nab"])),
        ("letters", kernels.Spectrum(2), WORDS, np.array(["bananabananabanana", "", "nab"])),
    ):
        model = KernelPCA(2, kernel=kernel).fit(rows)
        model.save(tmp_path / name)
        assert np.array_equal(bp.load(tmp_path / name).transform(others), model.transform(others)), name


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1"])
def test_training_rows_of_a_small_store_are_copied_into_the_model(dtype: str, tmp_path: Path) -> None:
    rows = (20 * X + 100).astype(dtype)
    given = stored(tmp_path, rows, (20, D))
    model = KernelPCA(2, kernel="rbf", gamma=1e-3).fit(given)
    expected = model.transform(20 * NEW + 100)
    model.save(tmp_path / "model.zarr")
    for store in tmp_path.glob("store-*"):
        shutil.rmtree(store)
    loaded = bp.load(tmp_path / "model.zarr")
    assert np.array_equal(loaded.transform(20 * NEW + 100), expected)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every store for one that is too large to copy."""
    for module in (files, spectrum):
        monkeypatch.setattr(module, "HELD_BYTES", 100)


@pytest.mark.usefixtures("large")
def test_training_rows_of_a_large_store_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = KernelPCA(2, kernel="rbf").fit(stored(tmp_path, X, (20, D)))
    monkeypatch.chdir(tmp_path)
    model.save("model.zarr")
    monkeypatch.chdir("/")
    loaded = bp.load(tmp_path / "model.zarr")
    assert np.array_equal(loaded.transform(NEW), model.transform(NEW))
    assert "expansion__references__rows" not in StoredModel.of(model).arrays
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.transform(NEW), model.transform(NEW))
    assert len(pickle.dumps(model)) < 3 * (X.nbytes + 20_000)


@pytest.mark.usefixtures("large")
def test_a_store_that_is_gone_or_of_another_shape_is_named(tmp_path: Path) -> None:
    model = KernelPCA(2, kernel="rbf").fit(stored(tmp_path, X, (20, D)))
    model.save(tmp_path / "model.zarr")
    (path,) = tmp_path.glob("store-*")
    path.rename(tmp_path / "elsewhere.zarr")
    with pytest.raises(
        ModelFormatError, match=rf"its training rows were in {path}, which is gone\. Put them back there"
    ):
        bp.load(tmp_path / "model.zarr")
    for given in (NEW, bp.open(tmp_path / "elsewhere.zarr")):
        with pytest.raises(FileNotFoundError, match=rf"the model's training rows were in {path}, .*Restore them there"):
            np.asarray(model.transform(given))
    with pytest.raises(FileNotFoundError, match=r"the model's training rows were in"):
        model.denoise(NEW)
    bp.ingest(X[:50], path)
    with pytest.raises(ModelFormatError, match=r"its training rows were of shape \(90, 5\), but .* holds \(50, 5\)"):
        bp.load(tmp_path / "model.zarr")
    shutil.rmtree(path)
    (tmp_path / "elsewhere.zarr").rename(path)
    assert np.array_equal(bp.load(tmp_path / "model.zarr").transform(NEW), model.transform(NEW))


@pytest.mark.usefixtures("large")
def test_training_rows_that_changed_are_rejected_and_a_copy_of_them_is_not(tmp_path: Path) -> None:
    model = KernelPCA(2, kernel="rbf").fit(stored(tmp_path, X, (20, D)))
    scores = model.transform(NEW)
    model.save(tmp_path / "model.zarr")
    (path,) = tmp_path.glob("store-*")
    path.rename(tmp_path / "kept.zarr")
    shutil.copytree(tmp_path / "kept.zarr", path)  # the same rows in files of another age
    assert np.array_equal(bp.load(tmp_path / "model.zarr").transform(NEW), scores)
    changed = zarr.open_array(path, mode="r+")
    changed[:] = changed[:] + 1
    with pytest.raises(ValueError, match=rf"training rows were in {path}, whose files changed after the fit"):
        model.transform(NEW)
    with pytest.raises(ModelFormatError, match=rf"its training rows were in {path}, which now holds other rows"):
        bp.load(tmp_path / "model.zarr")


@pytest.mark.parametrize(
    "kernel", [lambda A, B: A @ B.T, kernels.FromFunction(lambda A, B: A @ B.T, True)], ids=["function", "kernel of it"]
)
def test_a_kernel_made_of_a_function_is_not_saved(kernel: Any, tmp_path: Path) -> None:
    model = KernelPCA(2, kernel=kernel, solver="dense")
    model.fit(X)  # its matrix has no negative eigenvalue, so nothing is said
    with pytest.raises(TypeError, match=r"Python function"):
        model.save(tmp_path / "model.zarr")
    assert not (tmp_path / "model.zarr").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expansion__references__rows": np.full((90, 5), np.nan)}, "references__rows with values that are not finite"),
        ({"expansion__shift": np.zeros(4)}, r"it has expansion__references of shape \(90, 5\); \(90, 4\) was expected"),
        ({"expansion__shift": None}, "does not hold what a KernelPCA of format"),
    ],
)
def test_a_whole_but_wrong_model_is_rejected(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save_changed(KernelPCA(2, kernel="rbf").fit(X), changes, tmp_path / "model.zarr")
    with pytest.raises(ModelFormatError, match=message):
        bp.load(path)


@pytest.mark.usefixtures("large")
def test_training_rows_in_other_places_are_read_only_where_the_caller_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, place = tmp_path / "rows", tmp_path / "models" / "model.zarr"
    model = KernelPCA(2, kernel="rbf").fit(stored(rows, X, (20, D)))
    (store,) = rows.glob("store-*")
    model.save(place)
    opened: list[str] = []
    monkeypatch.setattr(files, "open_array", lambda path, member: opened.append(path) or bp.open(path))
    for references in ((), str(tmp_path / "row"), [f"{store}-2"], [f"{store}/c"], "https://example.org"):
        line = re.escape(f"bigpca.load({str(place)!r}, references={str(store)!r}), or --references")
        with pytest.raises(
            ModelFormatError, match=f"names its training rows in '{store}', but by default only stores .*{line}"
        ):
            bp.load(place, references=references)
    assert opened == []
    for allowed in (store, str(store), [rows], (str(rows / ".." / "rows"),)):
        np.testing.assert_array_equal(bp.load(place, references=allowed).transform(NEW), model.transform(NEW))
    (tmp_path / "models" / "link.zarr").symlink_to(store)
    forge(place, {"path": str(tmp_path / "models" / "link.zarr")})  # a link beside the model leads elsewhere
    with pytest.raises(ModelFormatError, match="only stores next to or inside"):
        bp.load(place)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "named",
    ["https://example.org/x.zarr", "memory://x", "simplecache::s3://a/b", "/etc", "//host/share",
        "{here}/../../etc/x.npy",
        "x.zarr",
     "{here}/*/../../../etc/*.npy", "\x1b[2J" + "x" * 5000, ""],
)  # fmt: skip
def test_a_model_that_names_other_places_opens_nothing(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = KernelPCA(2, kernel="rbf").fit(stored(tmp_path, X, (20, D)))
    model.save(tmp_path / "model.zarr")
    forge(tmp_path / "model.zarr", {"path": named.format(here=tmp_path)})
    monkeypatch.setattr(files, "open_array", lambda *arguments, **options: pytest.fail("it was opened"))
    with pytest.raises(ModelFormatError, match="by default only stores next to or inside a model are opened") as caught:
        bp.load(tmp_path / "model.zarr")
    assert len(str(caught.value)) < 2000
    assert "\x1b" not in str(caught.value)


def forge(path: Path, place: dict[str, Any]) -> None:
    """Change where a model says that its training rows are, with valid checksums."""
    group = read_group(path, kind=None, newest=(1, 0))
    group.attributes["expansion__references"] |= place
    write_group(path, group.arrays, group.attributes, kind=group.kind, format_version=group.format, overwrite=True)


@pytest.mark.usefixtures("large")
def test_a_url_is_opened_with_the_credentials_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = KernelPCA(2, kernel="rbf").fit(stored(tmp_path, X, (20, D)))
    (store,) = tmp_path.glob("store-*")
    model.save(tmp_path / "model.zarr")
    forge(tmp_path / "model.zarr", {"path": "s3://bucket/rows.zarr"})
    urls: list[str] = []
    monkeypatch.setattr(files, "open_array", lambda path, member: urls.append(path) or bp.open(store))
    loaded = bp.load(tmp_path / "model.zarr", references="s3://key:secret@bucket/rows.zarr")
    assert urls == ["s3://key:secret@bucket/rows.zarr"]
    assert np.array_equal(loaded.transform(NEW), model.transform(NEW))


@pytest.mark.usefixtures("large")
def test_the_command_line_reads_training_rows_elsewhere_only_where_they_are_named(tmp_path: Path) -> None:
    KernelPCA(2, kernel="rbf").fit(stored(tmp_path / "rows", X, (20, D))).save(tmp_path / "models" / "model.zarr")
    (store,) = (tmp_path / "rows").glob("store-*")
    np.save(tmp_path / "new.npy", NEW)
    model, scores = tmp_path / "models" / "model.zarr", ("--scores", tmp_path / "scores.zarr")
    assert run("info", model).exit_code == 6
    assert run("info", model, "--references", store).exit_code == 0
    command = ("transform", tmp_path / "new.npy", "--model", model, *scores)
    result = run(*command)
    assert result.exit_code == 6
    assert "or --references on the command line" in result.stderr
    assert run(*command, "--references", store).exit_code == 0
    assert run("transform", store, "--model", model, *scores, "--overwrite").exit_code == 0  # it is named as the source
