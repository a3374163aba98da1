"""Outputs: whole chunks from any process, resumed after anything, invisible until complete."""

import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import uuid
import zlib
from pathlib import Path

import numpy as np
import pytest
import zarr

from bigpca import FeatureWriter
from bigpca.errors import OutputExistsError, OutputLockedError, OutputWriteError
from bigpca.storage import ChunkRecord, RunLock, create_output, disk, files, objects, outputs, read_group, write_group
from bigpca.storage.carriers import carrier
from bigpca.storage.disk import DiskOutput
from bigpca.storage.files import publish
from bigpca.storage.outputs import form_of
from bigpca.storage.places import ObjectStore
from tests.conftest import everywhere, local_or_memory
from tests.house import PACKAGE
from tests.storage.writing import DIMENSION, EXPECTED, N, begin, dead, fill, opened, read, rows_of, stored, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scores.zarr"


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint16", "int64", "bool"])
def test_metadata_are_those_that_zarr_writes(kind):
    held, dtype, attributes = {}, np.dtype(kind), {"bigpca": {"kind": "array"}}
    zarr.create_array(
        zarr.storage.MemoryStore(held),
        shape=(5, 3),
        dtype=dtype,
        chunks=(2, 3),
        compressors=[zarr.codecs.ZstdCodec(level=1, checksum=True)],
        filters=None,
        fill_value=outputs.fill_value(dtype),
        attributes=attributes,
    )
    made = outputs.array_metadata((5, 3), dtype, (2, 3), outputs.fill_value(dtype), 1, attributes)
    assert json.dumps(made) == json.dumps(json.loads(held["zarr.json"].to_bytes()))


def test_both_carriers_have_the_functions_that_are_called_of_one():
    called = set(re.findall(r"carrier\([\w.]+\)\.(\w+)", "".join(path.read_text() for path in PACKAGE.rglob("*.py"))))
    assert {"begin", "reserve", "reject_output", "put_group"} < called
    for name in called:
        here, there = (list(inspect.signature(getattr(module, name)).parameters) for module in (disk, objects))
        assert here == there, name


@local_or_memory
@pytest.mark.parametrize(
    ("dtype", "chunk_rows"),
    [*((dtype, 5) for dtype in ("float16", "float64", ">f4", "uint8", "int8", "int64", "bool")),
     *(("float32", rows) for rows in (1, 23, 1000))],
)  # fmt: skip
def test_zarr_reads_what_was_written_for_every_dtype_and_chunking(place, dtype, chunk_rows):
    with begin(place, dtype=dtype, chunk_rows=chunk_rows) as output:
        for index in output.pending():
            output.note(output.writer.write(index, (rows_of(output, index) % 2).astype(output.dtype)))
        output.finish()
    found = opened(place)
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    assert found.chunks == (min(chunk_rows, N), DIMENSION)
    assert np.array_equal(found[...], (EXPECTED % 2).astype(dtype))
    assert {key.partition("/")[0] for key in stored(place)} == {"c", "zarr.json"}
    assert isinstance(place, ObjectStore) or os.listdir(place.parent) == [place.name]


@local_or_memory
def test_an_output_without_rows_is_an_array_without_rows(place):
    with begin(place, shape=(0, 3)) as output:
        assert output.pending() == []
        output.finish()
    assert read(place).shape == (0, 3)


@local_or_memory
def test_never_written_reads_as_nan_and_codec_has_a_checksum(place):
    metadata = json.loads(stored(write(place))["zarr.json"])
    assert metadata["fill_value"] == "NaN"
    assert metadata["codecs"][-1] == {"name": "zstd", "configuration": {"level": 1, "checksum": True}}


@local_or_memory
def test_the_manifest_holds_the_crc_of_every_chunk_file(place):
    attributes = opened(write(place)).attrs
    manifest = attributes["bigpca_manifest"]
    assert manifest["algorithm"] == "crc32"
    assert list(manifest["chunks"]) == [f"c/{i}/0" for i in range(5)]
    for key, crc in manifest["chunks"].items():
        assert zlib.crc32(stored(place)[key]) == crc
    assert attributes["bigpca"] == {"kind": "array", "format": [1, 0], "identity": "one"}


@everywhere
def test_finishing_early_names_the_missing_chunks_and_can_go_on(place):
    with begin(place) as output:
        fill(output, [0, 3])
        with pytest.raises(RuntimeError, match=r"3 of 5 chunks of .* are not written \(first: \[1, 2, 4\]\)"):
            output.finish()
        fill(output)
        output.finish()
        with pytest.raises(RuntimeError, match="is finished or aborted already"):
            output.finish()


@pytest.mark.parametrize("big", [False, True])
def test_a_resume_keeps_finished_chunks_and_their_files(path, monkeypatch, big):
    monkeypatch.setattr(disk, "FSYNC_BYTES", 1 if big else 10**9)
    with begin(path) as output:
        fill(output, [3, 1])
    partial = path.with_name("scores.zarr.partial")
    before = (partial / "c/1/0").stat()
    (partial / f".zarr.json.{uuid.uuid4().hex}.tmp").touch()  # of a run that was killed while it wrote the metadata
    with begin(path) as output:
        assert output.pending() == [0, 2, 4]
        fill(output)
        output.finish()
    after = (path / "c/1/0").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not list(path.glob(".zarr.json.*"))
    assert np.array_equal(read(path), EXPECTED)


@pytest.mark.parametrize("changes", [{"identity": "two"}, {"resume": False}, {"dtype": "float64"}, {"chunk_rows": 4}])
def test_another_computation_begins_again(path, changes):
    with begin(path) as output:
        fill(output, [0, 1])
    with begin(path, **changes) as output:
        assert output.pending() == list(range(output.n_chunks))


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "gone", "foreign", "no record", "torn record"])
def test_damaged_chunks_are_redone(path, monkeypatch, damage, big):
    monkeypatch.setattr(disk, "FSYNC_BYTES", 1 if big else 10**9)
    with begin(path) as output:
        fill(output, [0, 1])
        chunk = output.writer.chunk_path(1)
        (log,) = Path(output.writer.journal).glob("*.log")
    data = chunk.read_bytes()
    if damage == "gone":
        chunk.unlink()
    elif damage == "foreign":
        chunk.write_bytes(output.writer.chunk_path(0).read_bytes())
    elif "record" in damage:
        lines = log.read_bytes()
        log.write_bytes(lines[: lines.rindex(b"[1,") + (4 if damage == "torn record" else 0)])
    else:
        chunk.write_bytes({"cut": data[:-1], "empty": b"", "flip": bytes([data[0] ^ 1]) + data[1:]}[damage])
    with begin(path) as output:
        assert output.pending() == [1, 2, 3, 4]
        fill(output)
        assert output.pending() == []
        output.finish()
    assert np.array_equal(read(path), EXPECTED)


WORKER = """
import os, pickle, signal, sys
import numpy as np
writer, indices = pickle.loads(bytes.fromhex(sys.argv[1]))
for index in indices:
    start, stop = writer.row_range(index)
    writer.write(index, (np.arange(start * 3, stop * 3) % 251).reshape(-1, 3).astype("f4"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_several_processes_write_at_once_and_chunks_finished_before_a_kill_are_kept(path):
    with begin(path, shape=(500, 3)) as output:
        everything = range(output.n_chunks)
        assert len(pickle.dumps(output.writer)) < 1000
        shares = [list(everything[:60]), list(everything[40:])]  # twenty chunks are written by both
        children = [
            subprocess.Popen([sys.executable, "-c", WORKER, pickle.dumps((output.writer, share)).hex()])
            for share in shares
        ]
        assert [child.wait(300) for child in children] == [-9, -9]
        assert output.pending() == []
        output.finish()
    assert np.array_equal(read(path), (np.arange(1500) % 251).reshape(500, 3))


def test_a_late_task_cannot_touch_a_finished_or_a_newer_output(path):
    with begin(path) as output:
        fill(output)
        output.finish()
        with pytest.raises(FileNotFoundError, match="now belongs to another run, so chunk 2 was not written"):
            output.writer.write(2, rows_of(output, 2))
    with begin(path, identity="two", overwrite=True) as newer:
        with pytest.raises(FileNotFoundError, match="now belongs to another run"):
            output.writer.write(2, rows_of(output, 2) + 1)
        fill(newer)
        newer.finish()
    assert np.array_equal(read(path), EXPECTED)


@local_or_memory
def test_an_existing_output_is_named_and_kept(place):
    before = stored(write(place))
    with pytest.raises(OutputExistsError, match=r"\(a Zarr array \(23, 3\) float32\).*overwrite=True \(--overwrite"):
        begin(place)
    assert stored(place) == before


@local_or_memory
def test_what_a_run_left_that_was_killed_once_its_output_was_visible_goes_with_the_next_look(place):
    write(place)
    before = stored(place)
    if isinstance(place, ObjectStore):
        claim = objects.Claim("one", [[1, 1], "<f4", 1], "w", (place.mark("zarr.json"),))
        place.put(".bigpca/claim", claim.encoded())
        place.put(".bigpca/chunks-0", b"[]")
    else:
        dead(place)
        dead(place.with_name(f"{place.name}.partial"))
        RunLock(place.with_name(f"{place.name}.lock"), "it").acquire()  # by nobody who lives
    carrier(place).tidy(place)
    assert stored(place) == before
    assert isinstance(place, ObjectStore) or os.listdir(place.parent) == [place.name]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("end", ["npy", "parquet"])
def test_an_error_after_a_table_is_visible_leaves_no_chunks_beside_it(end, killed, tmp_path, monkeypatch):
    path = tmp_path / f"s.{end}"
    form, partial = form_of(path, ("a", "b", "c")), path.with_name(f"{path.name}.partial")

    def published(source, target, **options):
        publish(source, target, **options)
        if target == path:
            raise OSError("of the disk")

    with monkeypatch.context() as patched:
        patched.setattr(files, "publish", published)
        if killed:  # nothing is done after the error
            patched.setattr(DiskOutput, "abort", lambda output: output._lock.release())
        with pytest.raises(OutputWriteError, match="of the disk"):
            write(path, form=form)
    assert (path.exists(), partial.exists()) == (True, killed)
    with pytest.raises(OutputExistsError):
        begin(path, form=form)
    assert os.listdir(tmp_path) == [path.name]
    with begin(path, form=form, overwrite=True) as output:  # chunks of a run that is to replace it are kept
        fill(output, [0])
    with pytest.raises(OutputExistsError):
        begin(path, form=form)
    assert partial.exists()


def test_overwriting_keeps_the_old_output_until_the_new_one_is_complete(path):
    write(path)
    with begin(path, identity="two", overwrite=True) as output:
        for index in output.pending():
            output.writer.write(index, -rows_of(output, index))
            assert np.array_equal(read(path), EXPECTED)
        output.finish()
    assert np.array_equal(read(path), -EXPECTED)
    assert os.listdir(path.parent) == ["scores.zarr"]


def test_an_output_that_appeared_meanwhile_is_not_replaced(path):
    with begin(path) as output:
        fill(output)
        path.mkdir()
        (path / "x").touch()
        with pytest.raises(OutputExistsError, match="a folder of other things"):
            output.finish()


def test_a_foreign_folder_in_the_place_of_the_partial_output_is_not_removed(path):
    foreign = path.with_name("scores.zarr.partial")
    foreign.mkdir()
    with pytest.raises(
        OutputExistsError, match=r"scores.zarr.partial exists and is not an unfinished output of bigpca.*: move it"
    ):
        begin(path)
    assert os.listdir(path.parent) == ["scores.zarr.partial"]
    (foreign / "zarr.json").write_text('{"shape": [9, 3], "attributes": {"bigpca": {"identity": "one"}}}')
    for create in (begin, FeatureWriter):
        with pytest.raises(
            OutputExistsError, match=r"scores.zarr.partial exists and is not an unfinished output of bigpca"
        ):
            create(path)
    assert os.listdir(path.parent) == ["scores.zarr.partial"]


def test_two_runs_on_one_output_exclude_each_other(path):
    with begin(path) as output:
        fill(output, [0])
        with pytest.raises(OutputLockedError, match=f"the output {path} is held by run"):
            begin(path)
        assert output.pending() == [1, 2, 3, 4]
    begin(path).abort()


def test_an_abort_keeps_finished_chunks_and_nothing_else(path):
    begin(path).abort()
    assert os.listdir(path.parent) == []
    output = begin(path)
    fill(output, [0])
    output.abort()
    output.abort()
    assert os.listdir(path.parent) == ["scores.zarr.partial"]


def test_parent_folders_are_made_and_links_are_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a" / "scores.zarr")
    write(tmp_path / "link")
    assert np.array_equal(read(tmp_path / "a" / "scores.zarr"), EXPECTED)


def test_foreign_lines_in_a_log_are_passed_over(path):
    with begin(path) as output:
        fill(output, [0])
        (log,) = os.listdir(output.writer.journal)
        with open(os.path.join(output.writer.journal, log), "ab") as file:
            file.write(b'\n[1]\n{"a": 1}\n[99, 0, 0, 0, true]\n["a", 1, 1, 1, 1]\n\xff\xfe\n[3')
        assert [record.index for record in output.writer.records()] == [0]
        fill(output, [2])
        assert isinstance(next(output.writer.records()), ChunkRecord)
        assert output.pending() == [1, 3, 4]


# SIGKILL at every step of every write: the old content or the new one, and the next run goes on


CASES = ("model new", "model replace", "output new", "output replace", "table replace")
NAMES = {"model": "x.zarr", "output": "x.zarr", "table": "x.npy"}

# Forks one child per step; child i dies by SIGKILL at its i-th call of a function that changes the disk.
KILLER = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
import zarr.storage, zarr.codecs  # once, not in every child; no thread has started
import bigpca.storage as storage
from bigpca.storage.outputs import form_of

def model(path, value, **options):
    storage.write_group(path, {"axes": np.eye(4) * value}, {"value": value}, kind="PCA",
                        format_version=(1, 0), **options)

def output(path, value, **options):
    with storage.create_output(path, shape=(8, 2), dtype="f4", chunk_rows=2, identity=str(value), **options) as o:
        for index in o.pending():
            o.writer.write(index, np.full((2, 2), value, "f4"))
        arm()
        o.finish()

def arm():
    global armed
    armed = True

def table(path, value, **options):
    output(path, value, form=form_of(path, ("a", "b")), **options)

folder = Path(sys.argv[1])
for case in sys.argv[2:]:
    what, how = case.split()
    act = {"model": model, "output": output, "table": table}[what]
    target, replace, step = "x.npy" if what == "table" else "x.zarr", how == "replace", 0
    while True:
        place = folder / case / f"step-{step:03d}"
        place.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            if replace:
                act(place / target, 1.0)
            count, armed = 0, what != "table"  # whose chunks are those of an output
            def killing(function):
                def call(*args, **kwargs):
                    global count
                    if armed and count == step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    count += armed
                    return function(*args, **kwargs)
                return call
            for module, name in [(os, "rename"), (os, "replace"), (os, "unlink"), (os, "write"),
                                 (os, "mkdir"), (os, "rmdir"), (shutil, "rmtree")]:
                setattr(module, name, killing(getattr(module, name)))
            act(place / target, 2.0, **({"overwrite": True} if replace else {}))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        assert os.WIFSIGNALED(status), status
        step += 1
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, "-c", KILLER, str(folder), *CASES], check=True, timeout=600)
    return folder


@pytest.fixture(params=CASES)
def killed(request, steps):
    places = sorted((steps / request.param).iterdir())
    assert len(places) >= 5
    return *request.param.split(), places


def content(what: str, path: Path) -> float | None:
    """The value everywhere in what is at ``path``; None when nothing is visible."""
    if what == "model":
        try:
            group = read_group(path, kind="PCA", newest=(1, 0))
        except FileNotFoundError:
            with pytest.raises(FileNotFoundError, match=r"does not exist\. Check the path"):
                read_group(path, kind="PCA", newest=(1, 0))
            return None
        assert np.array_equal(group.arrays["axes"], np.eye(4) * group.attributes["value"])
        return float(group.attributes["value"])
    if not path.exists():
        return None
    if what == "table":
        values = np.unique(np.load(path))
    else:
        stored = zarr.open_array(path, mode="r")
        assert len(stored.attrs["bigpca_manifest"]["chunks"]) == 4
        values = np.unique(stored[...])
    assert len(values) == 1
    return float(values[0])


def again(what: str, path: Path) -> None:
    if what == "model":
        write_group(path, {"axes": np.eye(4) * 2}, {"value": 2.0}, kind="PCA", format_version=(1, 0), overwrite=True)
        return
    with create_output(path, shape=(8, 2), dtype="f4", chunk_rows=2, identity="2.0", form=form_of(path, ("a", "b")),
                       overwrite=True) as output:  # fmt: skip
        for index in output.pending():
            output.writer.write(index, np.full((2, 2), 2.0, "f4"))
        output.finish()


def test_a_kill_at_any_step_leaves_old_or_new_and_the_rerun_leaves_no_litter(killed):
    what, how, places = killed
    seen = []
    for place in places:
        path = place / NAMES[what]
        if what != "model" and how == "replace" and not path.exists():
            # Between the two renames: the next start repairs it.
            with pytest.raises(FileExistsError):
                create_output(
                    path, shape=(8, 2), dtype="f4", chunk_rows=2, identity="2.0", form=form_of(path, ("a", "b"))
                )
        seen.append(content(what, path))
        assert not list(path.rglob("*.tmp")), "what is published has no metadata of a killed run"
        again(what, path)
        assert content(what, path) == 2.0
        assert not list(path.rglob("*.tmp"))
        assert os.listdir(place) == [NAMES[what]]
    assert set(seen) == {1.0 if how == "replace" else None, 2.0}
    assert seen == sorted(seen, key=lambda value: value or 0), "the new content appears once and stays"
