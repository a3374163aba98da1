"""What others have put beside and inside outputs is there after every call that deletes, on a disk and at a store."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore
from snailmail import ObjectStore as Server

import bigpca as bp
from bigpca.engine.events import CheckpointEvent, Event
from bigpca.errors import OutputExistsError
from bigpca.storage import files
from bigpca.storage.grammar import sort_keys
from bigpca.storage.places import ObjectStore
from tests.cli.running import run as run_command
from tests.cli.running import words
from tests.conftest import local_or_memory
from tests.faults.test_places import Stop, expire, numbers, stop, stopping
from tests.storage.writing import begin, beside, dead, fill, stored

pytestmark = pytest.mark.usefixtures("one_thread")

X = np.random.default_rng(0).standard_normal((24, 4)).astype("f4")
MODEL, OTHER = bp.PCA(2, random_state=0).fit(X), bp.PCA(3, random_state=0).fit(-X)
FOREIGN = {
    "labels": ["labels.csv"],
    "sibling dump": ["rows.zarr/zarr.json", "rows.zarr/c/0/0"],
    "member with metadata": ["extra/zarr.json", "extra/c/0/0"],
    "checkpoint": ["run.ckpt/0f3a/run.json", "run.ckpt/0f3a/pass-01/prefix-003.npz"],
    "file among chunks": ["c/notes.txt"],
    "file of a member": ["keys/mine.csv", "components/mine.csv"],
    "name like ours": [".bigpca-notes/x", ".bigpca.txt"],
    "Zarr v2": [".zattrs"],
}
ALL = [key for keys in FOREIGN.values() for key in keys]


def write_features(out: Any, rows: np.ndarray, **options: Any) -> None:
    with bp.FeatureWriter(out, chunk_rows=8, **options) as writer:
        writer.write(rows, keys=[str(i) for i in range(len(rows))])


# Each writes one of two outputs, the second of which replaces the first.
REPLACES: dict[str, Callable[..., Any]] = {
    "save": lambda out, new=False, **options: (OTHER if new else MODEL).save(out, **options),
    "transform": lambda out, new=False, **options: (OTHER if new else MODEL).transform(
        X, out=out, keys=[str(i) for i in range(len(X))], **options
    ),
    "ingest": lambda out, new=False, **options: bp.ingest(X[: 9 if new else 24], out, chunk_rows=8, **options),
    "FeatureWriter": lambda out, new=False, **options: write_features(out, X[: 9 if new else 24], **options),
}
each_call = pytest.mark.parametrize("call", REPLACES.values(), ids=REPLACES)


def put(place: Path | ObjectStore, keys: list[str]) -> dict[str, bytes]:
    """Put something at keys below an output, and return it."""
    for key in keys:
        if isinstance(place, ObjectStore):
            place.put(key, b"precious")
        else:
            (place / key).parent.mkdir(parents=True, exist_ok=True)
            (place / key).write_bytes(b"precious")
    return dict.fromkeys(keys, b"precious")


@local_or_memory
@each_call
def test_an_output_with_files_of_others_is_not_replaced(place: Any, call: Any) -> None:
    call(place)
    chunks = [["c/9/0"]] if call is REPLACES["save"] else []  # which a model, a group, has not
    for keys in [*FOREIGN.values(), *chunks]:
        put(place, keys)
        before = stored(place)
        with pytest.raises(OutputExistsError, match=r"that bigpca did not write, such as .*so nothing was changed"):
            call(place, new=True, overwrite=True)
        assert stored(place) == before
        drop(place, keys)


def drop(place: Path | ObjectStore, keys: list[str]) -> None:
    """Delete what :func:`put` has put."""
    if isinstance(place, ObjectStore):
        place.delete(keys)
        return
    for key in keys:
        (place / key).unlink()
        with suppress(OSError):
            os.removedirs((place / key).parent)


@local_or_memory
@each_call
def test_an_output_is_replaced_by_one_of_its_kind_only(place: Any, call: Any) -> None:
    kinds = {"save": "models that bigpca wrote"}
    for name, other in REPLACES.items():
        if (other is REPLACES["save"]) is not (call is REPLACES["save"]):
            other(place)
            before = stored(place)
            wanted = kinds.get("save" if call is REPLACES["save"] else "", "rows or scores that bigpca wrote")
            with pytest.raises(OutputExistsError, match=f"{wanted}. Choose another path") as caught:
                call(place, new=True, overwrite=True)
            assert ("a bigpca PCA model" in str(caught.value)) is (name == "save")
            assert stored(place) == before
            place = place.with_name(name) if isinstance(place, Path) else beside(place, name)
    call(place)
    call(place, new=True, overwrite=True)
    assert not [key for key in stored(place) if key.startswith(".bigpca")]


@local_or_memory
@each_call
@pytest.mark.parametrize("what", ["array", "group", "folder", "chunks without metadata"])
def test_what_bigpca_did_not_write_is_not_replaced(place: Any, call: Any, what: str) -> None:
    at = place if isinstance(place, Path) else zarr.storage.ObjectStore(place.store)
    path = None if isinstance(place, Path) else place.prefix
    if what == "array":
        zarr.create_array(at, name=path, shape=(3, 2), chunks=(1, 2), dtype="f4")[:] = 1
    elif what == "group":
        zarr.open_group(at, path=path, mode="a").create_array("x", shape=(3,), chunks=(1,), dtype="f4")[:] = 1
    else:
        put(place, ["labels.csv"] if what == "folder" else ["c/0/0", "c/1/0"])
    before = stored(place)
    for options, said in (({}, "exists already"), ({"overwrite": True}, "and overwriting replaces only")):
        with pytest.raises(OutputExistsError, match=said):
            call(place, new=True, **options)
        assert stored(place) == before


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@pytest.mark.parametrize("disk", [True, False])
def test_a_table_replaces_files_only(suffix: str, disk: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    table: Any = tmp_path / f"scores{suffix}"
    if not disk:
        table = request.getfixturevalue("place").at(f"scores{suffix}")
        put(table, ["labels.csv"])
    else:
        put(table, ["labels.csv"])
    before = stored(table)
    with pytest.raises(OutputExistsError, match="and overwriting replaces only files"):
        MODEL.transform(X, out=table, overwrite=True)
    assert stored(table) == before


def command(*given: str) -> None:
    """Run a command, and raise what it says."""
    done = run_command(*given, "--overwrite")
    if done.exit_code:
        raise OutputExistsError(words(done.output))


FILES: dict[str, Callable[[Any, Path], Any]] = {  # by name, calls that write one file
    "scores.npy": lambda out, p: MODEL.transform(X, out=out, overwrite=True),
    "scores.parquet": lambda out, p: MODEL.transform(X, out=out, overwrite=True),
    "upper.NPY": lambda out, p: MODEL.transform(X, out=out, overwrite=True),
    "rows.npy": lambda out, p: MODEL.inverse_transform(MODEL.transform(X), out=out, overwrite=True),
    "model.onnx": lambda out, p: MODEL.to_onnx(out, overwrite=True),
    "report.html": lambda out, p: MODEL.report(out, overwrite=True),
    "report.htm": lambda out, p: MODEL.report(out, overwrite=True),
    "map.npz": lambda out, p: command("export", str(p / "m.zarr"), "--out", str(out)),
    "command.npy": lambda out, p: command(
        "transform", str(p / "x.npy"), "--model", str(p / "m.zarr"), "--scores", str(out)
    ),
}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("name", "disk"), [(name, disk) for name in FILES for disk in {True, name == "upper.NPY"}])
def test_a_file_is_replaced_by_one_of_its_kind_only(
    name: str, disk: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for module in {".onnx": ["onnx"], ".parquet": ["pyarrow"], ".png": ["matplotlib"]}.get(Path(name).suffix, []):
        pytest.importorskip(module)
    MODEL.save(tmp_path / "m.zarr")
    np.save(tmp_path / "x.npy", X)
    out: Any = tmp_path / name
    if not disk:
        out = request.getfixturevalue("place").at(name).url
    at = ObjectStore(out) if not disk else None

    def content(data: bytes | None = None) -> bytes:
        if data is not None:
            out.write_bytes(data) if at is None else at.put("", data)
        return out.read_bytes() if at is None else at.get("").data

    for foreign in (b"date,income\n2026,1\n", b"\x00" * 900, b"N", b"PK"[:1]):
        content(foreign)
        with pytest.raises(OutputExistsError, match=f"begins with .*, as no {Path(name).suffix.lower()} file does"):
            FILES[name](out, tmp_path)
        assert content() == foreign
    content(b"")
    FILES[name](out, tmp_path)
    first = content()
    assert first
    FILES[name](out, tmp_path)
    assert len(content()) > 0


@pytest.mark.parametrize("target", ["notes.txt", "blob", "rows.npy"])
def test_a_link_to_what_is_no_table_is_not_replaced(target: str, tmp_path: Path) -> None:
    (tmp_path / target).write_bytes(b"precious")
    (tmp_path / "scores.npy").symlink_to(tmp_path / target)
    with pytest.raises(OutputExistsError, match="begins with b'precious', as no"):
        MODEL.transform(X, out=tmp_path / "scores.npy", overwrite=True)
    assert (tmp_path / target).read_bytes() == b"precious"


@pytest.mark.parametrize("lasting", [False, True], ids=["killed", "expired"])
def test_a_replaced_model_can_be_loaded_and_is_continued_by_the_same_call_after_any_stop(lasting: bool) -> None:
    """The old one has other arrays than the new one, and its root is the first that goes once the new one is there."""
    old, number, done, alone = (
        bp.KernelPCA(2, kernel="rbf", gamma=0.1).fit(X),
        0,
        False,
        ObjectStore(MemoryStore()).at("m"),
    )
    MODEL.save(alone)
    while not done:
        number += 2 if lasting else 1
        place = ObjectStore(MemoryStore()).at("m")
        old.save(place)
        with pytest.MonkeyPatch.context() as patch:
            made = stopping(patch, number, expire if lasting else stop, lasting=lasting)
            with suppress(Stop, PermissionError):
                MODEL.save(place, overwrite=True)
                done = number > len(made)
        again = bp.load(place)
        assert type(again) is type(MODEL) or not done
        assert again.provenance_.model == (MODEL if type(again) is type(MODEL) else old)._digest(), made[-1]
        MODEL.save(place, overwrite=True)
        assert numbers(stored(place)) == numbers(stored(alone)), made[-1]
    assert number > 15


def test_a_replacement_that_was_begun_is_continued_by_another_model() -> None:
    """Which knows the members of the old one by the claim alone."""
    old, place, alone = (
        bp.KernelPCA(2, kernel="rbf", gamma=0.1).fit(X),
        ObjectStore(MemoryStore()).at("m"),
        MemoryStore(),
    )
    old.save(place)
    real = ObjectStore.delete

    def delete(self: ObjectStore, keys: Any) -> None:
        real(self, [keys := [*keys]] and keys[:1])  # the root, and then no more
        if "zarr.json" not in keys:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectStore, "delete", delete)
        with pytest.raises(Stop):
            MODEL.save(place, overwrite=True)
    assert "zarr.json" not in stored(place)
    assert json.loads(stored(place)[".bigpca/claim"])["clearing"]
    put(place, ["extra/zarr.json"])
    with pytest.raises(OutputExistsError, match=r"such as extra/zarr\.json"):
        OTHER.save(place, overwrite=True)
    with pytest.raises(OutputExistsError, match="is an unfinished output of another kind"):
        bp.ingest(X, place, overwrite=True)
    place.delete(["extra/zarr.json"])
    OTHER.save(place, overwrite=True)
    OTHER.save(ObjectStore(alone))
    assert numbers(stored(place)) == numbers(stored(ObjectStore(alone)))


@local_or_memory
def test_a_checkpoint_that_ends_leaves_what_others_put_there(place: Any) -> None:
    kept: dict[str, bytes] = {}

    def meanwhile(event: Event) -> None:
        if not kept and isinstance(event, CheckpointEvent):
            (folder,) = {key.partition("/")[0] for key in stored(place) if key.endswith("run.json")}
            inside = [f"{folder}/{key}" for key in (".env", "notes.txt", "pass-01/mine.npz", "pass-01/.env")]
            kept.update(put(place, [*ALL, *inside]))

    fit = bp.PCA(2, solver="covariance", random_state=0).fit
    fit(X, checkpoint=place, progress=meanwhile)
    assert kept.items() <= stored(place).items()
    if isinstance(place, ObjectStore):
        assert stored(place) == kept
    else:
        drop(place, ALL)
        fit(X, checkpoint=place)
        assert {key for key in kept if key not in ALL} <= stored(place).keys()


def test_an_unfinished_output_leaves_what_others_put_there(place: Any) -> None:
    """Aborted without chunks; resumed behind a gap; started again by another run."""
    unfinished = place if isinstance(place, ObjectStore) else place.with_name(f"{place.name}.partial")
    output = begin(place)
    kept = put(unfinished, ALL)
    output.abort()
    assert stored(unfinished) == kept or not isinstance(place, ObjectStore)
    assert stored(unfinished).items() >= kept.items()
    if isinstance(place, ObjectStore):
        place.delete(kept)
        with begin(place, joins=False, resume=True) as output:
            fill(output, [0, 2])
            put(place, ALL)
        with begin(place, joins=False, resume=True) as output:
            assert output.pending() == [1, 2, 3, 4]
            fill(output)
            output.finish()
        assert stored(place).items() >= kept.items()
        return
    shutil.rmtree(unfinished)
    with begin(place) as output:
        fill(output, [0])
    before = stored(unfinished) | put(unfinished, ALL)
    with pytest.raises(OutputExistsError, match="that bigpca did not write"):
        begin(place, identity="two")
    assert stored(unfinished) == before


def test_names_of_others_beside_an_output_stay_as_they_are_for_every_call(tmp_path: Path, monkeypatch: Any) -> None:
    """Without 32 digits and a record inside, a name that looks like one of bigpca's is not bigpca's."""
    monkeypatch.chdir(tmp_path)
    names = [f".{start}{end}" for start in ("m", "m.partial") for end in (".new-1", ".new-0a1b2c", f".new-{'0a' * 16}")]
    kept = {f"{name}/labels.csv": b"precious" for name in names}
    kept |= dict.fromkeys([".m.old-2024", f".m.old-{'0a' * 16}", "m.lock.old", f".m.{'0a' * 16}.tmp"], b"precious")
    for key, data in kept.items():
        Path(key).parent.mkdir(exist_ok=True)
        Path(key).write_bytes(data)
    for name, call in REPLACES.items():
        call(tmp_path / "m")
        call(tmp_path / "m", new=True, overwrite=True)
        if name == "save":
            bp.load("m")
        assert stored(tmp_path).keys() - {key for key in stored(tmp_path) if key.startswith("m/")} == kept.keys()
        shutil.rmtree("m")
        OTHER.save(f".m.old-{name}")
        with pytest.raises(FileNotFoundError):
            bp.load("m")
        shutil.rmtree(f".m.old-{name}")
    for what, write in {
        "a complete store": lambda: bp.ingest(X, "w.partial"),
        "a folder": lambda: os.mkdir("w.partial"),
    }.items():
        write()
        before = stored(Path("w.partial"))
        with pytest.raises(
            OutputExistsError, match=r"w\.partial exists and is not an unfinished output of bigpca.*: move it"
        ):
            bp.ingest(X[:9], "w")
        assert stored(Path("w.partial")) == before, what
        assert not Path("w").exists()
        shutil.rmtree("w.partial")


def test_a_store_in_the_middle_of_its_replacement_is_read_where_it_is(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "m.zarr")
    sibling = beside_of(tmp_path / "m.zarr")
    before = stored(tmp_path)
    assert np.array_equal(bp.load(tmp_path / "m.zarr").components_, MODEL.components_)
    assert stored(tmp_path) == before, "which neither renames nor deletes"
    OTHER.save(tmp_path / "m.zarr", overwrite=True)
    assert (os.listdir(tmp_path), sibling.exists()) == (["m.zarr"], False)


def beside_of(path: Path) -> Path:
    """Move an output into what a run leaves that is killed between the two renames of a replacement."""
    sibling = dead(path)
    path.rename(sibling / files.OLD)
    return sibling


def test_the_demonstration_replaces_files_of_a_demonstration_only(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "model.zarr")
    before = stored(tmp_path)
    done = run_command("demo", "--small", "--dir", tmp_path)
    assert (done.exit_code, "other entries (such as model.zarr)" in words(done.output)) == (5, True)
    assert stored(tmp_path) == before


@pytest.mark.parametrize("call", [REPLACES["save"], REPLACES["ingest"]])
def test_marks_of_folders_are_not_objects_and_keys_that_no_path_names_stop_a_replacement(
    call: Any, place: ObjectStore, object_server: Server
) -> None:
    client = boto3.client("s3", endpoint_url=object_server.endpoint_url)
    marks = [f"{place.prefix}/", f"{place.prefix}/c/", f"{place.prefix}/plots/"]
    root = place.root.partition("s3://rows/")[2]
    for key in marks:
        client.put_object(Bucket="rows", Key=f"{root}/{key}", Body=b"")
    call(place)
    call(place, new=True, overwrite=True)
    strange = f"{root}/{place.prefix}//labels.csv"
    client.put_object(Bucket="rows", Key=strange, Body=b"precious")
    with pytest.raises(OSError, match="InvalidPathError: Encountered object with invalid path"):
        call(place, overwrite=True)
    found = client.list_objects_v2(Bucket="rows", Prefix=f"{root}/")["Contents"]
    keys = {one["Key"] for one in found}
    assert {*(f"{root}/{key}" for key in marks), strange, f"{root}/{place.prefix}/zarr.json"} <= keys


def test_the_command_line_deletes_nothing_of_others(place: ObjectStore, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    MODEL.save(place)
    put(place, FOREIGN["labels"] + FOREIGN["sibling dump"])
    before = stored(place)
    with pytest.raises(OutputExistsError, match="holds 3 files that bigpca did not write"):
        command("fit", str(tmp_path / "x.npy"), "-k", "2", "--model", str(place))
    assert stored(place) == before


def test_longer_outputs_leave_no_chunks_to_shorter_ones() -> None:
    ours, others = sort_keys(["c/0/0", "c.99.0", "c/0/0/0/0", "c", "c/x", "keys/c/7", "d/0", "c/0.0"])
    assert (len(ours), others) == (5, ["c/x", "d/0", "c/0.0"])
    place = ObjectStore(MemoryStore()).at("out.zarr")
    bp.ingest(X, place, chunk_rows=2)
    bp.ingest(X[:4], place, chunk_rows=2, overwrite=True)
    assert sorted(key for key in stored(place) if key.startswith("c")) == ["c.0.0", "c.1.0"]
    bp.ingest(X[:3], place, chunk_rows=2, overwrite=True)
    assert sorted(key for key in stored(place) if key.startswith("c")) == ["c/0/0", "c/1/0"]
