"""Models on disk: what is written is read back, and nothing else is."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from bigpca.errors import ModelFormatError, OutputExistsError
from bigpca.storage import carriers, files, objects, read_group, write_group
from bigpca.storage.places import ObjectStore
from tests.conftest import everywhere, local_or_memory

ARRAYS = {
    "components": np.arange(12, dtype=np.float64).reshape(3, 4) / 7,
    "mean": np.array([0.5, np.nan, np.inf, -0.0], np.float32),
    "half": np.array([1.5, 65504.0], np.float16),
    "counts": np.array([[2**62, -1]], np.int64),
    "pixels": np.array([0, 255], np.uint8),
    "mask": np.array([True, False]),
    "total": np.array(3.25),
    "nothing": np.zeros((0, 4)),
    "zeros": np.zeros((300, 300)),
}
ATTRIBUTES = {
    "n_components": 3,
    "tol": 0.1 + 0.2,
    "whiten": False,
    "seed": None,
    "names": ["a", "ü", "<b>"],
    "limits": {"low": float("-inf"), "high": float("inf")},
}


def save(path, **changes):
    write_group(path, ARRAYS, ATTRIBUTES, **({"kind": "PCA", "format_version": (1, 0)} | changes))
    return path


def load(path, kind="PCA", newest=(1, 0)):
    return read_group(path, kind=kind, newest=newest)


def assert_same(group):
    assert group.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert group.arrays[name].dtype == array.dtype
        assert group.arrays[name].shape == array.shape
        assert group.arrays[name].tobytes() == array.tobytes()
    assert group.attributes == ATTRIBUTES


def rewrite(path, change, *, rehash=False):
    """Apply ``change`` to a zarr.json as an attacker would, with valid hashes if asked."""
    metadata = json.loads((path / "zarr.json").read_bytes())
    change(metadata)
    if rehash:
        own = metadata["attributes"]["bigpca"]
        own["attributes_sha256"] = carriers._attributes_digest(own, metadata["attributes"]["attributes"])
    (path / "zarr.json").write_text(json.dumps(metadata))


@everywhere
def test_everything_is_read_back_bit_for_bit(place):
    group = load(save(place))
    assert_same(group)
    assert (group.kind, group.format) == ("PCA", (1, 0))
    assert all(array.flags.writeable for array in group.arrays.values())
    assert isinstance(place, ObjectStore) or os.listdir(place.parent) == [place.name]


def test_any_zarr_reader_can_open_it(tmp_path):
    stored = zarr.open_group(save(tmp_path / "model.zarr"), mode="r")
    assert np.array_equal(stored["components"][...], ARRAYS["components"])
    assert stored.attrs["bigpca"]["kind"] == "PCA"
    assert stored.attrs["attributes"]["n_components"] == 3
    json.loads((tmp_path / "model.zarr/zarr.json").read_bytes(), parse_constant=pytest.fail)


@local_or_memory
@pytest.mark.parametrize("array", [np.arange(24.0).reshape(2, 3, 4)[:, ::2], np.asfortranarray(np.eye(3) * 2), ">f4"])
def test_memory_order_and_byte_order_do_not_matter(place, array):
    array = np.arange(5, dtype=">f4") if isinstance(array, str) else array
    write_group(place, {"x": array}, {}, kind="PCA", format_version=(1, 0))
    assert np.array_equal(load(place).arrays["x"], array)


def test_large_arrays_are_chunked_along_the_leading_axes(tmp_path, monkeypatch):
    monkeypatch.setattr(carriers, "CHUNK_BYTES", 1000)
    wide = np.arange(600.0).reshape(2, 300)
    tall = np.arange(600.0).reshape(300, 2)
    write_group(tmp_path / "m", {"wide": wide, "tall": tall}, {}, kind="PCA", format_version=(1, 0))
    stored = zarr.open_group(tmp_path / "m", mode="r")
    assert stored["wide"].chunks == (1, 125)
    assert stored["tall"].chunks == (62, 2)
    assert np.array_equal(load(tmp_path / "m").arrays["wide"], wide)
    assert np.array_equal(load(tmp_path / "m").arrays["tall"], tall)


def test_numpy_scalars_and_tuples_become_json_values(tmp_path):
    values = {"a": np.float32(0.5), "b": (np.int64(1), np.bool_(True)), "c": [float("nan")]}
    write_group(tmp_path / "m", {}, values, kind="PCA", format_version=(1, 0))
    found = load(tmp_path / "m").attributes
    assert found["a"] == 0.5
    assert found["b"] == [1, True]
    assert np.isnan(found["c"][0])


@local_or_memory
def test_an_existing_path_is_kept_unless_overwriting_is_asked_for(place):
    save(place)
    with pytest.raises(
        OutputExistsError, match=r"already \(a (bigpca PCA model|Zarr group)\).*overwrite=True \(--over"
    ):
        save(place, kind="Other")
    assert load(place).kind == "PCA"
    save(place, kind="Other", overwrite=True)
    assert load(place, "Other").kind == "Other"
    assert isinstance(place, ObjectStore) or os.listdir(place.parent) == [place.name]


@pytest.mark.parametrize("what", ["a folder of other things", "a file", "a dangling link"])
def test_overwriting_takes_away_nothing_but_zarr_stores(tmp_path, what):
    path = tmp_path / "thesis"
    if "folder" in what:
        path.mkdir()
        (path / "chapter.tex").write_text("abc")
    elif "file" in what:
        path.write_text("abc")
    else:
        path.symlink_to(path)
    with pytest.raises(
        OutputExistsError,
        match=f"is {what.replace('dangling link', 'file')}, and overwriting replaces only models that bigpca wrote",
    ):
        save(path, overwrite=True)


def test_an_empty_folder_and_a_link_to_a_store_may_be_overwritten(tmp_path):
    (tmp_path / "empty").mkdir()
    assert_same(load(save(tmp_path / "empty", overwrite=True)))
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert_same(load(save(tmp_path / "link", overwrite=True)))
    assert (tmp_path / "link").is_symlink()


def test_a_newer_minor_version_loads_and_a_newer_major_says_upgrade(tmp_path):
    assert_same(load(save(tmp_path / "minor", format_version=(1, 7))))
    with pytest.raises(ModelFormatError, match=r"format 2\.3, newer than 1\.0.*Upgrade bigpca"):
        load(save(tmp_path / "major", format_version=(2, 3)))


def test_an_unexpected_kind_is_named(tmp_path):
    path = save(tmp_path / "m", kind="KernelPCA")
    assert load(path, ["PCA", "KernelPCA"]).kind == "KernelPCA"
    assert load(path, None).kind == "KernelPCA"
    with pytest.raises(ModelFormatError, match="holds a 'KernelPCA', but PCA was expected"):
        load(path)
    with pytest.raises(ModelFormatError, match="but A, B was expected"):
        load(path, ["B", "A"])


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda path: None, "does not exist. Check the path"),
        (lambda path: path.mkdir(), "is not a saved model: it has no zarr.json"),
        (lambda path: path.write_text("x"), "is not a saved model: it has no zarr.json"),
        (lambda path: zarr.create_array(path, shape=(2,), dtype="f4"), "is a Zarr array, such as data or scores"),
        (lambda path: zarr.create_group(path, attributes={"bigpca": 3}), "cannot be read .*not one of bigpca's"),
    ],
)
def test_what_is_not_a_model_is_rejected_with_path_and_cause(tmp_path, make, cause):
    make(tmp_path / "m")
    with pytest.raises(FileNotFoundError if "exist" in cause else ModelFormatError, match=f"m {cause}"):
        load(tmp_path / "m")


@pytest.mark.parametrize("name", ["components", "mean", "total"])
def test_a_missing_array_or_chunk_is_named(tmp_path, name):
    path = save(tmp_path / "m")
    chunk = next(p for p in (path / name).rglob("c*") if p.is_file() or name != "total")
    shutil.rmtree(chunk) if chunk.is_dir() else chunk.unlink()
    with pytest.raises(ModelFormatError, match=f"array '{name}' is missing, truncated or altered"):
        load(path)
    shutil.rmtree(path / name)
    with pytest.raises(ModelFormatError, match=f"array '{name}' is missing"):
        load(path)


def test_altered_attributes_are_noticed(tmp_path):
    path = save(tmp_path / "m")
    rewrite(path, lambda m: m["attributes"]["attributes"].update(n_components=4))
    with pytest.raises(ModelFormatError, match="attributes were altered"):
        load(path)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"components": {"shape": [-1, 4], "dtype": "float64", "sha256": ""}}, "not storable"),
        ({"components": {"shape": [3, 4], "dtype": "object", "sha256": ""}}, "not storable"),
        ({"components": {"shape": [4, 3], "dtype": "float64", "sha256": ""}}, "declared"),
        ({"../secret": {"shape": [3, 4], "dtype": "float64", "sha256": ""}}, "attributes were altered"),
        ({"components": 3}, "missing, truncated or altered"),
        ({"components": {"shape": [3, 4], "dtype": "float64", "sha256": "0" * 64}}, "SHA-256"),
    ],
)
def test_false_declarations_are_rejected_even_with_valid_hashes(tmp_path, change, cause):
    path = save(tmp_path / "m")
    rewrite(path, lambda m: m["attributes"]["bigpca"].update(arrays=change), rehash=True)
    with pytest.raises(ModelFormatError, match=cause):
        load(path)


@pytest.mark.parametrize(
    ("shape", "chunks", "cause"),
    [
        ([10**9, 10**9], [10**9, 10**9], "more than 67,108,864 bytes"),
        # The indices alone of so many chunks would take 40 GB.
        ([10**9, 10**9], [1, 1], "components' is missing"),
        ([0, 10**9], [1, 1], "SHA-256"),
    ],
)
def test_no_array_is_allocated_that_its_files_cannot_hold(tmp_path, shape, chunks, cause):
    path = save(tmp_path / "m")
    declared = {"components": {"shape": shape, "dtype": "float64", "sha256": ""}}
    rewrite(path, lambda m: m["attributes"]["bigpca"].update(arrays=declared), rehash=True)
    rewrite(path / "components", lambda m: m.update(shape=shape))
    rewrite(path / "components", lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=chunks))
    with pytest.raises(ModelFormatError, match=cause):
        load(path)


class Payload:
    def __reduce__(self):
        return (os.mkdir, ("ran",))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"codecs": [{"name": "numcodecs.pickle", "configuration": {}}]}, "bigpca writes bytes, zstd"),
        ({"codecs": []}, "bigpca writes bytes, zstd"),
        ({"data_type": "variable_length_bytes"}, "declared"),
        ({"storage_transformers": [{"name": "x"}]}, "storage transformers"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10**9, 4]}}}, "impossible for the shape"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}}}, "impossible for the shape"),
        ({"chunk_grid": {}}, "missing, truncated or altered"),
    ],
)
def test_array_metadata_that_bigpca_never_writes_is_rejected_and_no_code_runs(tmp_path, monkeypatch, change, cause):
    import pickle

    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "m")
    rewrite(path / "components", lambda m: m.update(change))
    (path / "components/c/0/0").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ModelFormatError, match=cause):
        load(path)
    assert not Path("ran").exists()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return save(tmp_path_factory.mktemp("pristine") / "m")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), how=st.sampled_from(["flip", "cut", "empty", "insert", "delete", "swap"]))
def test_no_damage_anywhere_is_believed(pristine, data, how):
    files = sorted(path for path in pristine.rglob("*") if path.is_file())
    victim = data.draw(st.sampled_from(files))
    before = victim.read_bytes()
    position = data.draw(st.integers(0, max(len(before) - 1, 0)))
    after = {
        "flip": before[:position] + bytes([before[position] ^ data.draw(st.integers(1, 255))]) + before[position + 1 :],
        "cut": before[:position],
        "empty": b"",
        "insert": before[:position] + data.draw(st.binary(min_size=1, max_size=4)) + before[position:],
        "delete": None,
        "swap": data.draw(st.sampled_from(files)).read_bytes(),
    }[how]
    try:
        victim.unlink() if after is None else victim.write_bytes(after)
        group, message = None, ""
        try:
            group = load(pristine)
        except ModelFormatError as error:
            message = str(error)
        assert_same(group) if group is not None else None
        assert group is not None or str(pristine) in message
    finally:
        victim.write_bytes(before)


@pytest.mark.parametrize(
    ("arrays", "attributes", "error", "message"),
    [
        ({"x": np.array(["a"])}, {}, TypeError, "array 'x' has dtype <U1, but only bool, integer and floating"),
        ({"x": np.array([None])}, {}, TypeError, "array 'x' has dtype object"),
        ({"x": np.zeros(2, complex)}, {}, TypeError, "array 'x' has dtype complex128"),
        ({"x": np.zeros(2, np.longdouble)}, {}, TypeError, "up to 64 bits"),
        ({"../x": np.zeros(2)}, {}, ValueError, "array name '../x' is not a Python identifier"),
        (
            {},
            {"a": {"b": np.zeros(2)}},
            TypeError,
            r"attributes\['a'\]\['b'\] is an ndarray, which JSON cannot represent",
        ),
        ({}, {"a": [print]}, TypeError, r"attributes\['a'\]\[0\] is a builtin"),
        ({}, {"a": {1: 2}}, TypeError, r"attributes\['a'\] has the key 1, but keys must be str"),
    ],
)
def test_what_cannot_be_stored_is_rejected_before_anything_is_written(tmp_path, arrays, attributes, error, message):
    with pytest.raises(error, match=message):
        write_group(tmp_path / "m", arrays, attributes, kind="PCA", format_version=(1, 0))
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fsync_tree", lambda path: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "m")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("before", ["the header", "an array", "the path is back"])
def test_a_model_that_is_replaced_as_it_is_read_is_read_once_more(before, tmp_path, monkeypatch):
    path, done = tmp_path / "model.zarr", []
    write_group(path, {"old": np.arange(3.0)}, {}, kind="PCA", format_version=(1, 0))
    save(tmp_path / "new.zarr")

    def replaced(*args):
        if not done:
            done.append(path.rename(tmp_path / "old.zarr"))
            (tmp_path / "new.zarr").rename(path) if before != "the path is back" else None
        return read(*args)

    def slept(seconds):
        if before == "the path is back":
            (tmp_path / "new.zarr").rename(path)

    name = "_read_array" if before == "an array" else "_read_header"
    read = getattr(carriers, name)
    monkeypatch.setattr(carriers, name, replaced)
    monkeypatch.setattr(carriers.time, "sleep", slept)
    assert_same(load(path))
    assert done


def test_a_model_in_an_object_store_that_is_replaced_as_it_is_read_is_read_once_more(monkeypatch):
    place, done = ObjectStore(MemoryStore()).at("model.zarr"), []
    write_group(place, {"old": np.arange(3.0)}, {}, kind="PCA", format_version=(1, 0))

    def replaced(found, one):
        if one.key != "zarr.json" and not done:
            done.append(one.key)
            write_group(place, ARRAYS, ATTRIBUTES, kind="PCA", format_version=(1, 0), overwrite=True)
        return get(found, one)

    get = objects.get_part
    monkeypatch.setattr(objects, "get_part", replaced)
    assert_same(load(place))
    assert done


def test_what_fails_for_another_reason_is_read_once(tmp_path, monkeypatch):
    reads = []
    monkeypatch.setattr(carriers, "_got_group", lambda *given: reads.append(1) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load(tmp_path)
    assert len(reads) == 1
