"""A checkpoint is resumed to the same bits, rejected where it is not this run's, and repaired where it is damaged."""

import json
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client

import bigpca as bp
from bigpca.data.source import MemoryRows
from bigpca.engine.checkpoint import Checkpoint
from bigpca.engine.events import CheckpointEvent, Event, RetryEvent
from bigpca.passes.accumulators.moments import ColumnMoments, Moments
from bigpca.passes.rows import Rows
from tests.conftest import everywhere, local_or_memory
from tests.engine.conftest import fill_disk
from tests.estimators.stores import Looks
from tests.passes.kit import bits, moments_of, normal, rows_read, write_store

N, D = 2000, 16
pytestmark = pytest.mark.usefixtures("small_groups", "one_thread")


def test_a_checkpoint_looks_at_a_store_of_any_size_as_often_as_a_fit_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, folder = normal(1100, 4), tmp_path / "in" / "x.zarr"  # in more chunks than a small listing has
    zarr.create_array(folder, shape=rows.shape, dtype=rows.dtype, chunks=(1, 4), compressors=None)
    for i, row in enumerate(rows):
        (folder / "c" / str(i)).mkdir(parents=True)
        row.tofile(folder / "c" / str(i) / "0")
    X, looks = bp.open(folder), Looks(folder, monkeypatch)
    for options in ({}, {"checkpoint": tmp_path / "c"}, {"checkpoint": tmp_path / "c"}):
        looks.clear()
        bp.PCA(2, solver="covariance").fit(X, **options)
        called = Counter(name for name, path in looks.elements())
        assert called["stat"] == 2200 + 1100 * (called["open"] > 0)  # before and at the end, and after each read
        assert called["open"] <= 1100
        assert called["lstat"] + called["scandir"] + called["listdir"] == 0


def interrupt_after(segment: int) -> Callable[[Event], None]:
    def stop(event: Event) -> None:
        if isinstance(event, CheckpointEvent) and event.segment >= segment:
            raise KeyboardInterrupt

    return stop


def interrupted(store: Path, checkpoint: Any, segment: int = 20) -> None:
    """Leave the checkpoint of an interrupted run."""
    with pytest.raises(KeyboardInterrupt):
        moments_of(bp.open(store), checkpoint=checkpoint, progress=interrupt_after(segment))


def half_done(store: Path, checkpoint: Path, segment: int = 20) -> Path:
    """Leave the checkpoint of an interrupted run; returns the directory of its states."""
    interrupted(store, checkpoint, segment)
    (directory,) = checkpoint.glob("*/pass-01")
    return directory


def states(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir() if p.suffix == ".npz")


def test_a_checkpoint_holds_a_prefix_and_later_segments_and_no_pickle(store: Path, tmp_path: Path) -> None:
    directory = half_done(store, tmp_path / "c")
    assert len(states(directory)) <= 2
    for name in states(directory):
        with zipfile.ZipFile(directory / name) as archive:
            assert all(archive.read(member).startswith(b"\x93NUMPY") for member in archive.namelist())
        with np.load(directory / name, allow_pickle=False) as arrays:
            assert all(arrays[key].dtype.kind in "iuf" for key in arrays.files)


def test_disk_use_stays_within_a_prefix_and_the_segments_in_flight(store: Path, tmp_path: Path) -> None:
    most = 0

    def look(event: Event) -> None:
        nonlocal most
        if isinstance(event, CheckpointEvent):
            most = max(most, len(list(Path(event.path).glob("*.npz"))))

    with dask.config.set(scheduler="threads", num_workers=2):
        moments_of(bp.open(store), checkpoint=tmp_path / "c", progress=look)
    assert most <= 2 + 4
    assert states(next((tmp_path / "c").glob("*/pass-01"))) == ["prefix-064.npz"]


@everywhere
def test_a_changed_chunk_is_rejected_on_resume_with_its_rows(store: Path, place: Any) -> None:
    interrupted(store, place, 6)
    chunk = store / "c" / "5" / "0"
    os.utime(chunk, ns=(0, 0))
    with pytest.raises(bp.errors.CheckpointError, match=r"the input changed since the checkpoint .*/out.zarr was "
        r"written: 1 of \d+ finished "
                       r"groups, the first with rows 125:150\. .* delete the checkpoint to start again"):  # fmt: skip
        moments_of(bp.open(store), checkpoint=place)


@everywhere
def test_a_chunk_not_yet_read_may_change(place: Any, tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    write_store(store, normal(N // 4, D), (25, D))
    expected = bits(moments_of(bp.open(store)))
    interrupted(store, place, 5)
    os.utime(store / "c" / "19" / "0", ns=(0, 0))
    events: list[Event] = []
    assert bits(moments_of(bp.open(store), checkpoint=place, progress=events.append)) == expected
    assert 0 < rows_read(events) < N // 4


def test_a_changed_chunk_under_a_general_array_is_rejected_on_resume(store: Path, tmp_path: Path) -> None:
    def X() -> da.Array:
        return bp.open(store).rechunk((50, D)) + 1

    with pytest.raises(KeyboardInterrupt):
        moments_of(X(), checkpoint=tmp_path / "c", progress=interrupt_after(5))
    os.utime(store / "c" / "70" / "0", ns=(0, 0))
    with pytest.raises(bp.errors.CheckpointError, match=r"another computation \(name: "):
        moments_of(X(), checkpoint=tmp_path / "c")


def test_values_of_an_array_in_memory_are_digested_for_checkpoints_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("all values were read for a name")

    monkeypatch.setattr(MemoryRows, "details", fail)
    monkeypatch.setattr(MemoryRows, "stamps", fail)
    X = np.random.default_rng(0).standard_normal((50, 6))
    assert bp.PCA(2).fit(X).transform(X).shape == (50, 2)


@local_or_memory
def test_changed_values_of_an_array_in_memory_are_rejected_on_resume(place: Any) -> None:
    A = normal(N, D)
    moments_of(bp.open(A), checkpoint=place)
    A[7, 3] += 1
    with pytest.raises(bp.errors.CheckpointError, match=r"belongs to another computation \(the values of X differ\)"):
        moments_of(bp.open(A), checkpoint=place)


@local_or_memory
@pytest.mark.parametrize(
    ("again", "difference"),
    [
        (
            lambda path, c: moments_of(bp.open(path), checkpoint=c, nan_policy="omit"),
            "(nan_policy: raise there, omit here)",
        ),
        (
            lambda path, c: moments_of(bp.open(path, missing_chunks="fill"), checkpoint=c),
            "(missing_chunks: raise there, fill here)",
        ),
    ],
)
def test_other_parameters_are_rejected_and_named(again: Any, difference: str, store: Path, place: Any) -> None:
    interrupted(store, place, 2)
    with pytest.raises(bp.errors.CheckpointError, match="belongs to another computation") as caught:
        again(store, place)
    assert difference in str(caught.value)
    assert "Resume with the same input and parameters, pass another checkpoint path" in str(caught.value)


@local_or_memory
def test_another_input_is_rejected_and_named(store: Path, place: Any, tmp_path: Path) -> None:
    interrupted(store, place, 2)
    write_store(tmp_path / "y.zarr", normal(N + 25, D), (25, D))
    with pytest.raises(bp.errors.CheckpointError, match=r"the shape of X: \[2000, 16\] there, \[2025, 16\] here"):
        moments_of(bp.open(tmp_path / "y.zarr"), checkpoint=place)


def damage_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def damage_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("prefix", damage_half), ("prefix", damage_bit), ("segment", lambda content: b""),
     ("segment", lambda content: b"not a zip file")],
)  # fmt: skip
def test_a_damaged_state_is_warned_of_and_read_anew_to_the_same_bits(
    kind: str, damage: Callable[[bytes], bytes], store: Path, tmp_path: Path
) -> None:
    expected = bits(moments_of(bp.open(store)))
    directory = half_done(store, tmp_path / "c")
    if kind == "segment":  # as a run on two threads may leave it: a later segment without the one before
        held = Checkpoint(tmp_path / "c", json.loads((directory.parent / "run.json").read_text())["description"])
        rows = Rows.of(bp.open(store))
        files = held.files(1, {"state": Moments(D)}, rows.layout(Moments(D).state_bytes))
        files.write("segment", 40, files.read("prefix", 21))
        held.release()
    (name,) = [n for n in states(directory) if n.startswith(kind)][-1:]
    (directory / name).write_bytes(damage((directory / name).read_bytes()))
    events: list[Event] = []
    with pytest.warns(UserWarning, match=rf"{name} cannot be read back .*: it was truncated or altered"):
        found = moments_of(bp.open(store), checkpoint=tmp_path / "c", progress=events.append)
    assert bits(found) == expected
    assert rows_read(events) > 0


def test_every_flipped_bit_of_a_state_is_found_or_harmless(store: Path, tmp_path: Path) -> None:
    directory = half_done(store, tmp_path / "c")
    prefix = directory / next(n for n in states(directory) if n.startswith("prefix"))
    content = prefix.read_bytes()
    description = json.loads((directory.parent / "run.json").read_text())["description"]
    held = Checkpoint(tmp_path / "c", description)
    layout = Rows.of(bp.open(store)).layout(Moments(D).state_bytes)
    files = held.files(1, {"state": Moments(D)}, layout)
    index = int(prefix.stem.split("-")[1])
    good = files.read("prefix", index)
    for position in range(0, len(content), 13):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        prefix.write_bytes(flipped)
        try:
            found = files.read("prefix", index)
        except bp.errors.CheckpointError:
            continue
        part: Any = found.parts["state"]
        assert bits(part) == bits(good.parts["state"])  # type: ignore[arg-type]
        assert found.stamps == good.stamps
    held.release()


def test_a_state_under_another_segments_name_is_not_believed(store: Path, tmp_path: Path) -> None:
    expected = bits(moments_of(bp.open(store)))
    directory = half_done(store, tmp_path / "c")
    prefix = directory / next(n for n in states(directory) if n.startswith("prefix"))
    shutil.copy(prefix, directory / "prefix-060.npz")
    with pytest.warns(UserWarning, match=r"prefix-060.npz holds \d+ groups of rows that do not match its name"):
        assert bits(moments_of(bp.open(store), checkpoint=tmp_path / "c")) == expected


def test_unfinished_files_of_a_killed_run_are_removed(store: Path, tmp_path: Path) -> None:
    directory = half_done(store, tmp_path / "c")
    left = directory / f".segment-030.npz.{32 * '0'}"
    left.write_bytes(b"half")
    moments_of(bp.open(store), checkpoint=tmp_path / "c")
    assert not left.exists()


def test_a_pass_that_computes_something_else_does_not_take_up_old_states(store: Path, tmp_path: Path) -> None:
    held = Checkpoint(tmp_path / "c", {"computes": "anything"})
    layout = Rows.of(bp.open(store)).layout(0)
    other = held.files(1, {"state": Moments(D)}, layout)
    Path(other.directory, "segment-000.npz").write_bytes(b"state")
    with pytest.warns(
        UserWarning, match=r"pass 1 of this fit computed differently.*deleted, and its rows are read again"
    ):
        files = held.files(1, {"columns": ColumnMoments(D)}, layout)
    assert files.present() == []
    held.release()


def test_other_library_versions_warn_that_the_last_bits_may_differ(store: Path, tmp_path: Path) -> None:
    directory = half_done(store, tmp_path / "c")
    record = directory.parent / "run.json"
    content = json.loads(record.read_text())
    content["machine"]["blas"] = "openblas 0.0 Z80"
    record.write_text(json.dumps(content))
    with pytest.warns(
        UserWarning, match=r"started with other libraries \(blas openblas 0.0 Z80 -> .*its last bits may differ"
    ):
        moments_of(bp.open(store), checkpoint=tmp_path / "c")


def test_two_runs_on_one_checkpoint_are_rejected(tmp_path: Path) -> None:
    held = Checkpoint(tmp_path / "c", {"run": 1})
    with pytest.raises(bp.errors.OutputLockedError, match="the checkpoint"):
        Checkpoint(tmp_path / "c", {"run": 1})
    held.release()
    Checkpoint(tmp_path / "c", {"run": 1}).release()


@pytest.mark.parametrize("below", ["", "inside"])
def test_a_file_in_the_place_of_the_directory_is_rejected(below: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    with pytest.raises(
        bp.errors.CheckpointError, match=r"is a file, or is under one; a new or existing directory was expected"
    ):
        Checkpoint(tmp_path / "c" / below, {"run": 1})


def test_foreign_files_are_rejected_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.tex").write_text("dear")
    with pytest.raises(
        bp.errors.CheckpointError, match=r"holds files that are not a checkpoint's \(thesis.tex\)\. Pass the path of"
    ):
        Checkpoint(tmp_path / "c", {"run": 1})
    assert (tmp_path / "c" / "thesis.tex").read_text() == "dear"
    Path(tmp_path / "c" / "thesis.tex").unlink()
    Checkpoint(tmp_path / "c", {"run": 1}).release()


def earlier(record: Path) -> None:
    """Make the record of a checkpoint that of an earlier format, under the name that it had there."""
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "format": content["format"] - 1}))
    record.parent.rename(record.parent.with_name("0" * 32))


def without_blocks(record: Path) -> None:
    """Make it one of an iteration whose blocks had another rule, as of another version."""
    content = json.loads(record.read_text())
    del content["description"]["iteration.block"]
    record.write_text(json.dumps(content))
    record.parent.rename(record.parent.with_name("1" * 32))


@pytest.mark.parametrize(
    ("age", "difference"), [(earlier, r"\(another format\)"), (without_blocks, r"\(block: None there, 12 here\)")]
)
def test_the_checkpoint_of_an_older_iteration_is_rejected_and_left_alone(
    age: Callable[[Path], None], difference: str, store: Path, tmp_path: Path
) -> None:
    model = bp.PCA(2, solver="krylov", max_passes=2, tol=0.5)
    model.fit(bp.open(store), checkpoint=tmp_path / "c")
    (record,) = (tmp_path / "c").glob("*/run.json")
    age(record)
    before = {path: path.read_bytes() for path in (tmp_path / "c").glob("*/**/*") if path.is_file()}
    assert any(path.suffix == ".npz" for path in before)
    with pytest.raises(bp.errors.CheckpointError, match="belongs to another computation " + difference):
        model.fit(bp.open(store), checkpoint=tmp_path / "c")
    assert {path: path.read_bytes() for path in (tmp_path / "c").glob("*/**/*") if path.is_file()} == before


@pytest.mark.parametrize("compress", [False, True])
def test_a_state_of_more_bytes_than_its_pass_can_have_is_not_read(
    compress: bool, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bits(moments_of(bp.open(store)))
    monkeypatch.setattr("bigpca.engine.checkpoint.MAX_RECORD", 1 << 16)
    directory = half_done(store, tmp_path / "c")
    forged = directory / max(name for name in states(directory) if "prefix" in name)
    with np.load(forged) as archive:
        arrays = {**archive, "more": np.zeros(1 << 20)}
    (np.savez_compressed if compress else np.savez)(forged, **arrays)
    with pytest.warns(UserWarning, match=r"its arrays have 8,.* bytes, and at most .* were expected.*Delete it"):
        found = moments_of(bp.open(store), checkpoint=tmp_path / "c")
    assert bits(found) == expected


# A checkpoint on a full disk is rejected at the start; one that fills up in mid-run is warned of, and the run goes on


def test_a_disk_full_from_the_start_is_rejected_before_any_read(small_disk: Path) -> None:
    fill_disk(small_disk, leave=0)
    with pytest.raises(
        bp.errors.CheckpointError, match=r"cannot be written \(OSError: .*No space left.*: free some space"
    ):
        Checkpoint(small_disk / "c", {"run": 1})


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_a_disk_that_fills_up_is_warned_of_once_and_the_run_continues_to_the_same_bits(
    scheduler: str, store: Path, small_disk: Path
) -> None:
    expected = bits(moments_of(bp.open(store)))

    def fill(event: Event) -> None:
        if isinstance(event, CheckpointEvent) and event.segment == 10:
            fill_disk(small_disk, leave=0)

    with (
        dask.config.set(scheduler=scheduler),
        pytest.warns(UserWarning, match=r"cannot be written any more \(OSError: .*No space left") as caught,
    ):
        assert bits(moments_of(bp.open(store), checkpoint=small_disk / "c", progress=fill)) == expected
    assert len(caught) == 1
    (small_disk / "filler").unlink()
    events: list[Event] = []
    assert bits(moments_of(bp.open(store), checkpoint=small_disk / "c", progress=events.append)) == expected
    assert rows_read(events) < N


@pytest.mark.cluster
@pytest.mark.parametrize("way", ["workers write", "client writes", "states stay on the workers"])
def test_a_disk_that_fills_up_on_a_cluster_is_warned_of_once_and_the_run_continues_to_the_same_bits(
    way: str, store: Path, small_disk: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bits(moments_of(bp.open(store)))
    if way == "client writes":
        monkeypatch.setattr("bigpca.engine.cluster.run._workers_see", lambda client, directory: False)
    if way == "states stay on the workers":
        monkeypatch.setattr("bigpca.engine.cluster.run.CLIENT_BYTES", 0)
    events: list[Event] = []

    def fill(event: Event) -> None:
        events.append(event)
        if isinstance(event, CheckpointEvent) and event.segment == 10:
            fill_disk(small_disk, leave=0)

    with (
        dask.config.set(scheduler=client.get),
        pytest.warns(UserWarning, match=r"cannot be written any more \(OSError: .*No space left") as caught,
    ):
        assert bits(moments_of(bp.open(store), checkpoint=small_disk / "c", progress=fill)) == expected
    assert len(caught) == 1
    assert [e.reason for e in events if isinstance(e, RetryEvent)] == ["checkpoint not writable"]
    assert rows_read(events) < 2 * N
