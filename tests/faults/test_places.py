"""Runs at object stores: complete or absent, resumed after anything, with the bits of a run on a disk."""

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import dask
import dask.array as da
import numpy as np
import obstore
import pytest
import zarr
from distributed import Client, LocalCluster
from obstore.store import MemoryStore
from snailmail import Fixed
from snailmail import ObjectStore as Server
from zarr.storage import ObjectStore as ZarrStore

import bigpca as bp
from bigpca.data import provenance_of
from bigpca.engine import layout
from bigpca.engine.events import CheckpointEvent, Event
from bigpca.errors import ModelFormatError, OutputExistsError, OutputLockedError, OutputWriteError
from bigpca.storage import objects
from bigpca.storage.grammar import PROBE
from bigpca.storage.outputs import Annotations, NpyForm
from bigpca.storage.places import ObjectStore
from tests.cli.running import run as run_command
from tests.cli.running import words
from tests.conftest import PLACES
from tests.faults.kit import need_root, process, worker_command
from tests.forks import ended
from tests.passes.kit import normal
from tests.storage.writing import DIMENSION, EXPECTED, begin, beside, fill, read, stored
from tests.storage.writing import write as write_output

pytestmark = pytest.mark.usefixtures("small_groups", "one_thread")
enforced = pytest.mark.parametrize("place", ["memory", "enforces"], indirect=True)
X = normal(48, 6).astype(np.float32)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "x.zarr"
    zarr.create_array(path, shape=X.shape, chunks=(8, 6), dtype="f4")[:] = X
    return path


@pytest.fixture(scope="module")
def model() -> bp.PCA:
    return bp.PCA(3, random_state=0).fit(X)


def numbers(objects: dict[str, bytes]) -> dict[str, bytes]:
    """Return what does not tell when and where it was made."""
    return {key: data for key, data in objects.items() if not key.startswith("provenance")}


def transform(model: bp.PCA, rows: Path) -> Callable[[Any], object]:
    return lambda out: model.transform(rows, out=out, keys=[str(i) for i in range(len(X))])


def ingest(model: bp.PCA, rows: Path) -> Callable[[Any], object]:
    return lambda out: bp.ingest(rows, out, chunk_rows=7)


def write(model: bp.PCA, rows: Path) -> Callable[[Any], object]:
    def written(out: Any) -> None:
        resume = {} if isinstance(out, Path) else {"resume": True}
        with bp.FeatureWriter(out, chunk_rows=8, **resume) as writer:
            for start in range(writer.n_rows, 43, 5):
                writer.write(X[start : min(start + 5, 43)], keys=[str(i) for i in range(start, min(start + 5, 43))])

    return written


WRITES = {"transform": transform, "ingest": ingest, "FeatureWriter": write}
each_write = pytest.mark.parametrize("name", WRITES)


@pytest.mark.parametrize(  # a copy of rows is written by the functions that write scores
    ("name", "place"),
    [*((name, kind) for name in ("transform", "FeatureWriter") for kind in PLACES), ("ingest", "enforces")],
    indirect=["place"],
)
def test_an_array_has_the_bits_of_one_on_a_disk(
    place: ObjectStore, name: str, model: bp.PCA, rows: Path, tmp_path: Path
) -> None:
    run = WRITES[name](model, rows)
    run(place)
    run(tmp_path / "local.zarr")
    assert numbers(stored(place)) == numbers(stored(tmp_path / "local.zarr"))
    assert np.array_equal(read(place), read(tmp_path / "local.zarr"))
    with pytest.raises(OutputExistsError, match=r"exists already \(a Zarr array"):
        run(place)
    bp.ingest(place, copy := beside(place, "-copy"))
    assert np.array_equal(bp.data.stored_keys(copy), bp.data.stored_keys(place))  # which it inherits


class Stop(BaseException):
    """Raised in the place of a request."""


def stop() -> None:
    raise Stop


def stopping(
    monkeypatch: pytest.MonkeyPatch, number: int, end: Callable[[], None] = stop, *, lasting: bool = False
) -> list[str]:
    """Raise at the request of that number, and at all later ones if it lasts, or end otherwise; return the requests."""
    made: list[str] = []
    for verb in ("put", "get", "list", "delete", "head"):
        real = getattr(obstore, verb)

        def request(*given: Any, real: Any = real, verb: str = verb, **options: Any) -> Any:
            made.append(f"{verb} {given[1] if len(given) > 1 else ''}")
            if len(made) == number or (lasting and len(made) > number):
                if lasting and verb == "list":  # fails where its first answer is awaited
                    return (end() for _ in "1")
                end()
            return real(*given, **options)

        monkeypatch.setattr(obstore, verb, request)
    return made


@each_write
def test_a_run_that_stops_at_any_request_is_completed_by_a_rerun(
    name: str, model: bp.PCA, rows: Path, tmp_path: Path
) -> None:
    run = WRITES[name](model, rows)
    run(tmp_path / "local.zarr")
    expected = numbers(stored(tmp_path / "local.zarr"))
    number, done = 0, False
    while not done:
        number += 1
        place = ObjectStore(MemoryStore()).at("out.zarr")
        with pytest.MonkeyPatch.context() as patch:
            made = stopping(patch, number)
            try:
                run(place)
                done = number > len(made)
            except (Stop, ConnectionError):  # raised where the check of the store is awaited that was stopped
                assert "zarr.json" not in stored(place) or made[-1].startswith(("delete", "list", "get")), made[-1]
        if not done:
            finished = {key: data for key, data in stored(place).items() if key.startswith("c/")}
            try:
                run(place)
            except OutputExistsError:
                assert "zarr.json" in stored(place)
            assert numbers(stored(place)) == expected, made[-1]
            assert finished.items() <= stored(place).items()
    assert 15 < number < 80


CLAIMED = {"identity": None, "layout": [[-4, 6], "<f8", 8], "kind": "rows", "members": [[1]], "marks": 7, "host": {}}
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2], "binary": lambda data: b"\xff\xfe\x00",
    "null": lambda data: b"null", "nested": lambda data: b"[" * 100_000,
}  # fmt: skip
FORGED = {
    name: (lambda data, name=name: json.dumps(json.loads(data) | {name: CLAIMED[name]}).encode()) for name in CLAIMED
}


def left_unfinished(place: ObjectStore, model: bp.PCA, rows: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stopping(patch, 17, lasting=True)
        with pytest.raises(Stop):
            write(model, rows)(place)


@pytest.mark.parametrize("damage", [*DAMAGE, *FORGED])
def test_a_damaged_claim_is_named_with_what_to_do_and_hides_no_other(damage: str, model: bp.PCA, rows: Path) -> None:
    home = ObjectStore(MemoryStore()).at("runs")
    for name in ("a.zarr", "b.zarr"):
        left_unfinished(home.at(name), model, rows)
    claim = home.get("a.zarr/.bigpca/claim").data
    home.put("a.zarr/.bigpca/claim", (DAMAGE | FORGED)[damage](claim))
    said = r"runs/a\.zarr/\.bigpca/claim is not a claim of bigpca \(.*\): .* Delete it and the chunks beside it"
    with pytest.raises(OutputExistsError, match=said):
        write(model, rows)(home.at("a.zarr"))
    write(model, rows)(home.at("b.zarr"))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("record", "said"), [("keys-0.json", "the keys of chunk 0 .* are damaged"), ("rows", "rows holds .* is damaged")]
)
def test_other_damaged_records_are_named(record: str, said: str, damage: str, model: bp.PCA, rows: Path) -> None:
    place = ObjectStore(MemoryStore()).at("out.zarr")
    left_unfinished(place, model, rows)
    place.put(f".bigpca/{record}", DAMAGE[damage](json.dumps(["0", "1", "2", "3"]).encode()))
    with pytest.raises(OutputWriteError, match=rf"out\.zarr.*{said}.* with overwrite=True"):
        write(model, rows)(place)


def test_a_folder_of_temporary_files_that_is_missing_or_full_is_named(
    object_server: Server, model: bp.PCA, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        model.transform(rows, out=f"s3://rows/{tmp_path.name}.npy")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        OutputWriteError, match=r"temporary folder .*/gone cannot be written \(No such .*\)\. Set TMPDIR"
    ):
        run()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    full = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, full[1]))  # the error of a file that cannot grow
        with pytest.raises(
            OutputWriteError, match=r"temporary folder .* cannot be written \(File too .*\)\. Set TMPDIR"
        ):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, full)
        signal.signal(signal.SIGXFSZ, handler)
    run()


def expire() -> None:
    raise obstore.exceptions.GenericError("status code: 400 Bad Request: <Code>ExpiredToken</Code>")


@each_write
@pytest.mark.parametrize("number", [5, 9, 11])
def test_credentials_that_expire_in_the_middle_are_named_and_a_rerun_resumes(
    name: str, number: int, model: bp.PCA, rows: Path, tmp_path: Path
) -> None:
    place, run = ObjectStore(MemoryStore()).at("out.zarr"), WRITES[name](model, rows)
    with pytest.MonkeyPatch.context() as patch:
        stopping(patch, number, expire, lasting=True)
        with pytest.raises(PermissionError, match=r"or they have expired \(ExpiredToken\)\. Renew them"):
            run(place)
    finished = {key: data for key, data in stored(place).items() if key.startswith("c/")}
    run(place)
    run(tmp_path / "local.zarr")
    assert finished.items() <= stored(place).items()
    assert numbers(stored(place)) == numbers(stored(tmp_path / "local.zarr"))


@pytest.mark.parametrize("solver", ["covariance", "krylov"])
def test_a_fit_that_stops_at_any_request_resumes_to_the_same_bits(solver: str, rows: Path) -> None:
    def fit(checkpoint: Any) -> bytes:
        fitted = bp.PCA(2, solver=solver, random_state=0).fit(rows, checkpoint=checkpoint)
        return fitted.components_.tobytes() + fitted.mean_.tobytes()

    expected, number, done = fit(None), 0, False
    while not done:
        number += 7 if solver == "krylov" else 1
        place = ObjectStore(MemoryStore()).at("run.ckpt")
        with pytest.MonkeyPatch.context() as patch:
            made = stopping(patch, number)
            try:
                assert fit(place) == expected
                done = True
            except Stop:
                pass
        assert fit(place) == expected, made[-1]
        assert not stored(place)


def test_what_a_killed_worker_leaves_where_it_asked_a_store_is_deleted_with_the_checkpoint(rows: Path) -> None:
    place, asked = ObjectStore(MemoryStore()).at("run.ckpt"), list[str]()

    def ask(event: Event) -> None:
        if isinstance(event, CheckpointEvent):
            asked.append(f"{event.path.rpartition('run.ckpt/')[2]}/{PROBE}{len(asked)}")
            place.put(asked[-1], b"")

    bp.PCA(2, solver="covariance").fit(rows, checkpoint=place, progress=ask)
    assert asked
    assert not stored(place)


def fit(model: bp.PCA, rows: Path) -> Callable[[Any], object]:
    return lambda out: bp.PCA(2, solver="covariance", random_state=0).fit(rows, checkpoint=out)


KILLED = {"fit": fit, "transform": transform, "FeatureWriter": write}
KILLS = (9, 12, 15)  # numbers of requests


def be_killed(at: str, rows: str) -> None:
    """Start each run three times in a process of its own, which kills itself at one of its requests."""
    layout.MIN_GROUP_BYTES, layout.MIN_GROUPS = 256, 80  # as small_groups
    with dask.config.set(scheduler="sync"):
        model = bp.PCA(3, random_state=0).fit(X)
        for name, made in KILLED.items():
            run = made(model, Path(rows))
            run(Path(rows).with_name(name))  # imports what the children share
            for number in KILLS:
                if (child := os.fork()) == 0:
                    stopping(pytest.MonkeyPatch(), number, lambda: os.kill(os.getpid(), signal.SIGKILL))
                    run(ObjectStore(f"{at}/{name}-{number}"))
                    os._exit(0)
                status = os.waitpid(child, 0)[1]
                assert os.WIFSIGNALED(status), (name, number, status)


@pytest.mark.cluster  # for its time
def test_a_run_that_is_killed_is_completed_by_a_rerun(
    place: ObjectStore, model: bp.PCA, rows: Path, tmp_path: Path
) -> None:
    assert ended(f"from {__name__} import be_killed; be_killed({str(place)!r}, {str(rows)!r})") == 0
    for name, made in KILLED.items():
        run = made(model, rows)
        expected: Any = run(tmp_path / name)
        for number in KILLS:
            at = place.at(f"{name}-{number}")
            assert stored(at)
            assert "zarr.json" not in stored(at)
            found: Any = run(at)
            if name == "fit":
                assert found.components_.tobytes() == expected.components_.tobytes()
                assert not stored(at)
            else:
                assert numbers(stored(at)) == numbers(stored(tmp_path / name))


@pytest.mark.cluster
def test_workers_without_any_shared_disk_one_of_which_is_killed_give_the_bits_of_a_disk(
    place: ObjectStore, object_server: Server, tmp_path: Path
) -> None:
    """Each has a disk of its own at ``tmp_path``; data, checkpoint, model and scores are at URLs alone."""
    need_root("unshare")
    A, named = normal(1000, 24).astype("f4"), {name: str(place.at(name)) for name in ("x.zarr", "ckpt", "model", "out")}
    bp.ingest(A, named["x.zarr"], chunk_rows=25)
    secret = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("AWS_")]
    script = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
    apart = ["env", *secret, "unshare", "--mount", "sh", "-c", script, str(tmp_path)]
    with (
        dask.config.set(scheduler=None), LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client, client.as_current(),
        process([*apart, *worker_command(client.scheduler.address, tmp_path, "--no-nanny")]) as one,
        process([*apart, *worker_command(client.scheduler.address, tmp_path, "--no-nanny")]),
    ):  # fmt: skip
        client.wait_for_workers(2, timeout=600)
        object_server.set_latency(Fixed(20))

        def kill(event: object) -> None:
            if isinstance(event, CheckpointEvent):
                one.kill()

        fitted = bp.PCA(3, solver="covariance").fit(named["x.zarr"], checkpoint=named["ckpt"], progress=kill)
        object_server.set_latency(Fixed(0))
        assert one.wait(60) == -signal.SIGKILL
        fitted.save(named["model"])
        bp.load(named["model"]).transform(named["x.zarr"], out=named["out"])
        assert not stored(place.at("ckpt"))
    with dask.config.set(scheduler="sync"):
        bp.ingest(A, tmp_path / "x.zarr", chunk_rows=25)
        expected = bp.PCA(3, solver="covariance").fit(tmp_path / "x.zarr")
        expected.transform(tmp_path / "x.zarr", out=tmp_path / "out")
    assert fitted.components_.tobytes() == expected.components_.tobytes()
    found, local = (
        {key: data for key, data in stored(out).items() if key != "zarr.json"}  # which names the input
        for out in (place.at("out"), tmp_path / "out")
    )
    assert numbers(found) == numbers(local)


def test_a_save_that_stops_at_any_request_is_completed_by_a_rerun(model: bp.PCA, tmp_path: Path) -> None:
    model.save(tmp_path / "model.zarr")
    expected, number, done = numbers(stored(tmp_path / "model.zarr")), 0, False
    while not done:
        number += 3
        place = ObjectStore(MemoryStore()).at("model.zarr")
        with pytest.MonkeyPatch.context() as patch:
            stopping(patch, number)
            try:
                model.save(place)
                done = True
            except Stop:
                with pytest.raises((FileNotFoundError, ModelFormatError)):
                    bp.load(place) if "zarr.json" not in stored(place) else bp.load(tmp_path / "absent.zarr")
        if not done:
            try:
                model.save(place)
            except OutputExistsError:
                assert "zarr.json" in stored(place)
            assert numbers(stored(place)) == expected
            assert not stored(beside(place, ".bigpca"))


@enforced
def test_two_equal_runs_both_succeed(place: ObjectStore) -> None:
    with begin(place) as one, begin(place) as two:
        fill(one, [0, 1])
        fill(two)
        fill(one, range(2, 5))
        two.finish()
        one.finish()
    assert np.array_equal(read(place), EXPECTED)
    assert not [key for key in stored(place) if key.startswith(".bigpca")]


@enforced
def test_a_chunk_of_an_equal_run_that_rounded_in_another_way_stands(place: ObjectStore) -> None:
    with begin(place) as one, begin(place) as two:
        fill(one, [0], change=1)
        fill(two)
        two.finish()
    first = two.writer.chunk_rows
    assert np.array_equal(read(place)[:first], EXPECTED[:first] + 1)
    assert np.array_equal(read(place)[first:], EXPECTED[first:])


def test_two_equal_runs_of_a_table_both_succeed(place: ObjectStore) -> None:
    """The chunks that the second one was to copy are deleted by then."""
    table, form = place.at("t.npy"), NpyForm(("a", "b", "c"))
    with begin(table, form=form) as one, begin(table, form=form) as two:
        fill(one)
        fill(two)
        one.finish()
        two.finish()
    assert np.array_equal(bp.open(str(table)).compute(), EXPECTED)
    assert list(stored(place)) == ["t.npy"]


@enforced
def test_runs_of_different_identity_are_told_apart(place: ObjectStore) -> None:
    with begin(place) as one:
        fill(one, [0])
        with pytest.raises(OutputLockedError, match=r"holds the unfinished output of run \w+ \(.*-one\).*-two"):
            begin(place, identity="two")
        with begin(place, identity="two", overwrite=True) as two:
            assert "c/0/0" not in stored(place)
            fill(two, change=1)
            with pytest.raises(OutputLockedError, match=r"c/1/0 exists with other values, of the run .*-two.*-one"):
                fill(one, [1])
            two.finish()
        with pytest.raises(OutputLockedError, match=r"was deleted|exists with other values"):
            fill_rest(one)
    assert np.array_equal(read(place), EXPECTED + 1)


def fill_rest(output: Any) -> None:
    output._records = dict.fromkeys(range(output.n_chunks), output._records[0])
    output.finish()


@enforced
def test_a_late_chunk_of_an_older_run_is_named(place: ObjectStore) -> None:
    with begin(place) as one:
        fill(one, [0])
        with begin(place, identity="two", overwrite=True) as two:
            fill(one, [3])  # a task that nobody told
            with pytest.raises(OutputLockedError, match=r"c/3/0 exists with other values, of the run .*-one.*-two"):
                fill(two, change=1)
    place.put("c/4/0", stored(place)["c/0/0"], mark="older")  # in no journal
    with pytest.raises(OutputLockedError, match=r"c/\d/0 exists .* of the run .*-one|c/4/0 exists .* of the run older"):
        begin(place, identity="two")
    with begin(place, identity="two", overwrite=True) as two:
        fill(two, change=1)
        two.finish()
    assert np.array_equal(read(place), EXPECTED + 1)


@enforced
def test_another_run_that_takes_the_output_over_is_noticed(place: ObjectStore) -> None:
    write_output(place)
    with begin(place, overwrite=True) as one:
        fill(one)
        with begin(place, identity="two", overwrite=True) as two:
            fill(two, change=1)
            with pytest.raises(OutputLockedError, match=r"was taken over by run \w+ \(\S+two"):
                one.finish(Annotations(provenance={"by": "one"}))
            two.finish(Annotations(provenance={"by": "two"}))
    assert np.array_equal(read(place), EXPECTED + 1)
    assert json.loads(stored(place)["provenance/zarr.json"])["attributes"] == {"by": "two"}


@enforced
@pytest.mark.parametrize("late", [False, True])
def test_another_run_that_takes_the_output_over_and_leaves_is_noticed(
    late: bool, place: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def come_and_go(*given: Any, **more: Any) -> list[str]:
        with suppress(KeyError), begin(place, identity="two", overwrite=True):
            raise KeyError
        return []

    with begin(place) as one:
        fill(one)
        if late:  # after the chunks were listed
            monkeypatch.setattr(objects, "put_members", come_and_go)
        else:
            come_and_go()
        with pytest.raises(OutputLockedError, match="was deleted since it was put"):
            one.finish()
    assert "zarr.json" not in stored(place)
    monkeypatch.undo()
    write_output(place)
    assert not [key for key in stored(place) if key.startswith(".bigpca")]


@enforced
def test_a_chunk_that_is_replaced_or_deleted_before_it_is_published_is_named(place: ObjectStore) -> None:
    def become(data: bytes, mark: str) -> None:
        place.delete(["c/2/0"])
        place.put("c/2/0", data, mark=mark)

    def copied() -> None:  # with its metadata, as stores copy
        become((other := place.get("c/1/0")).data, other.mark)

    def cut() -> None:
        become((own := place.get("c/2/0")).data[:-1], own.mark)

    for change in (copied, cut):  # between two runs
        with suppress(KeyError), begin(place) as output:
            fill(output)
            raise KeyError
        change()
        with pytest.raises(OutputLockedError, match="c/2/0 exists with other values"):
            begin(place)
        place.delete(["c/2/0"])
    for change in (lambda: place.put("c/2/0", b"other"), lambda: place.delete(["c/2/0"]), copied, cut):
        with begin(place) as output:
            fill(output, [index for index in range(5) if f"c/{index}/0" not in stored(place)])
            for index in range(5):
                if index not in output._finished():
                    fill(output, [index])
            change()
            with pytest.raises(OutputLockedError, match=r"c/2/0 exists with other values|chunk 2 of .* was deleted"):
                output.finish()
        place.delete(["c/2/0"])
    with begin(place) as output:
        fill(output)
        output.finish()


@enforced
def test_a_foreign_zarr_json_is_named_and_kept(place: ObjectStore) -> None:
    with begin(place) as output:
        fill(output, [0, 1])
    store = ZarrStore(place.store)
    zarr.create_array(store, name=place.prefix, shape=(3, 3), chunks=(1, 1), dtype="f4")
    for _ in range(2):
        with pytest.raises(OutputExistsError, match=r"a zarr.json of another program"):
            begin(place)
    with pytest.raises(OutputExistsError, match=r"is a Zarr array \(3, 3\) float32, and overwriting replaces only"):
        begin(place, overwrite=True)
    place.delete(["zarr.json"])
    with begin(place) as output:
        fill(output)
        place.put("zarr.json", b'{"zarr_format": 3}')
        with pytest.raises(OutputExistsError, match="appeared while this run wrote"):
            output.finish()
    assert stored(place)["zarr.json"] == b'{"zarr_format": 3}'


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_run_that_is_taken_over_while_it_replaces_deletes_nothing_of_the_other(
    place: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_output(place)
    real, others = objects.put_members, list[Any]()

    def taken_over(*given: Any, **more: Any) -> list[str]:
        found = real(*given, **more)
        if not others:
            others.append(begin(place, identity="two", overwrite=True))
            fill(others[0], change=1)
        return found

    monkeypatch.setattr(objects, "put_members", taken_over)
    with begin(place, identity="three", overwrite=True) as output:
        fill(output, change=2)
        with pytest.raises(OutputLockedError, match="was taken over by run"):
            output.finish()
    others[0].finish()
    assert np.array_equal(read(place), EXPECTED + 1)


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_what_is_replaced_stands_until_the_new_one_is_complete(
    place: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    with begin(place) as output:
        fill(output)
        output.finish()
    before = stored(place)
    for kept in (True, False):  # by a run that ends without chunks, and by one that goes on
        with begin(place, overwrite=True, shape=(7, DIMENSION), identity="two") as output:
            assert before.items() <= stored(place).items()
            if not kept:
                fill(output)
                assert np.array_equal(read(place), EXPECTED)
                assert "Readers that have it open get fill values" not in caplog.text
                output.finish()
        assert not kept or stored(place) == before
    assert "Readers that have it open get fill values" in caplog.text
    assert sorted(stored(place)) == ["c.0.0", "c.1.0", "zarr.json"]


@pytest.mark.parametrize("call", ["transform", "write"])
def test_a_replacement_that_stops_at_any_request_leaves_old_or_new_and_is_completed_by_a_rerun(
    call: str, model: bp.PCA, rows: Path
) -> None:
    """The old output has more rows, more chunks and other keys."""
    keys = [f"old {i}" for i in range(2 * len(X))]

    def old(out: ObjectStore) -> None:
        with bp.FeatureWriter(out, chunk_rows=4) as writer:
            writer.write(np.full((2 * len(X), 3), 7.0), keys=keys)

    def new(out: ObjectStore) -> None:
        if call == "transform":
            model.transform(rows, out=out, keys=[str(i) for i in range(len(X))], overwrite=True)
            return
        with bp.FeatureWriter(out, chunk_rows=7, overwrite=True, resume=True) as writer:
            done = writer.n_rows
            writer.write(X[done:], keys=[str(i) for i in range(done, len(X))])

    alone = ObjectStore(MemoryStore()).at("out.zarr")
    old(alone)
    first = numbers(stored(alone))
    new(alone)
    number, done, seen = 0, False, set()
    while not done:
        number += 1
        place = ObjectStore(MemoryStore()).at("out.zarr")
        old(place)
        with pytest.MonkeyPatch.context() as patch:
            made = stopping(patch, number)
            try:
                new(place)
                done = number > len(made)
            except (Stop, ConnectionError):
                pass
        found = numbers(stored(place))
        root = found.get("zarr.json", b"")
        whole = first if root == first["zarr.json"] else numbers(stored(alone)) if root else {}
        assert whole.items() <= found.items(), made[-1]
        seen.add(root)
        new(place)
        again = numbers(stored(place))
        assert np.array_equal(read(place), read(alone)), made[-1]
        assert again["keys/c/0"] == stored(alone)["keys/c/0"], made[-1]
        # Batches, which nothing tells from others, replace what a killed writer of them had completed.
        assert {key.replace(".", "/") for key in again} == {key.replace(".", "/") for key in numbers(stored(alone))}
    assert seen == {b"", first["zarr.json"], stored(alone)["zarr.json"]}


def test_rows_that_read_what_they_replace_in_a_way_that_nobody_sees_are_written_whole(place: ObjectStore) -> None:
    def once() -> Iterator[np.ndarray]:
        yield from (read(place)[start : start + 4] + 1 for start in range(0, 12, 4))

    def hidden() -> Any:
        return da.from_delayed(dask.delayed(lambda: read(place)[:12] + 1)(), (12, 3), "f8")

    for rows in (lambda: bp.from_batches(once(), shape=(12, 3)), hidden):
        with bp.FeatureWriter(place, chunk_rows=4, overwrite=True) as writer:
            writer.write(np.arange(36.0).reshape(12, 3))
        bp.ingest(rows(), place, overwrite=True)
        assert np.array_equal(read(place), np.arange(36.0).reshape(12, 3) + 1)


@pytest.mark.parametrize("key", ["c/0/0", "zarr.json", "keys/zarr.json", "provenance/zarr.json", ".bigpca/claim"])
def test_objects_without_bytes_are_none(key: str, model: bp.PCA, rows: Path) -> None:
    """Which listings of folders, and runs that were killed, leave."""
    for write in (transform(model, rows), model.save):
        place = ObjectStore(MemoryStore()).at("out.zarr")
        obstore.put(place.store, place.key(key), b"")
        write(place)
        assert stored(place)["zarr.json"]
        with pytest.raises(OutputExistsError):
            write(place)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_chunks_of_features_are_put_at_the_same_time_and_continued_without_a_gap(
    place: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, together = ObjectStore.put, Barrier(4, timeout=600)

    def put(self: ObjectStore, key: str, *given: Any, **options: Any) -> str:
        if key.startswith("c/"):
            together.wait()
            if key == "c/1/0":
                raise OSError("the store is gone")
        return real(self, key, *given, **options)

    monkeypatch.setattr(ObjectStore, "put", put)
    with pytest.raises(OSError, match="the store is gone"), bp.FeatureWriter(place, chunk_rows=4) as writer:
        writer.write(X[:16])
    assert sorted(key for key in stored(place) if key.startswith("c/")) == ["c/0/0", "c/2/0", "c/3/0"]
    monkeypatch.undo()
    with bp.FeatureWriter(place, chunk_rows=4, resume=True) as writer:
        assert writer.n_rows == 4
        writer.write(X[20:36])  # others than were in flight
    assert np.array_equal(read(place), X[[*range(4), *range(20, 36)]])


@enforced
def test_a_second_writer_of_features_is_rejected_until_it_is_said_to_resume(place: ObjectStore) -> None:
    one, keys = bp.FeatureWriter(place, chunk_rows=4), [f"row {i}" for i in range(48)]

    def late() -> None:
        one.write(X[20:23], keys[20:23])
        one.close()

    one.write(X[:10], keys[:10])
    wait(one._begun)
    with pytest.raises(OutputLockedError, match=r"unfinished output of run .*resume=True"):
        bp.FeatureWriter(place)
    two = bp.FeatureWriter(place, resume=True)
    assert two.n_rows == 8
    two.write(X[8:12], keys[8:12])
    wait(two._begun)
    with pytest.raises(OutputLockedError, match=r"exists with other values, of the run"):
        late()
    two.write(X[12:14], keys[12:14])
    one.abort()
    two.abort()  # it is killed too, and what it wrote has its own keys
    with bp.FeatureWriter(place, resume=True) as three:
        three.write(X[12:14], keys[12:14])
    assert np.array_equal(read(place), X[:14])
    assert read(place.at("keys")).tolist() == keys[:14]


@enforced
def test_batches_are_not_continued(place: ObjectStore, model: bp.PCA) -> None:
    def batches() -> Iterator[Any]:
        for start in range(0, 48, 16):
            yield X[start : start + 16]

    with pytest.MonkeyPatch.context() as patch:
        stopping(patch, 9)
        with pytest.raises(Stop):
            model.transform(bp.from_batches(batches()), out=place)
    with pytest.raises(OutputLockedError, match="holds the unfinished output"):
        model.transform(bp.from_batches(batches()), out=place)
    model.transform(bp.from_batches(batches()), out=place, overwrite=True)
    assert np.array_equal(read(place), model.transform(X))


@pytest.mark.parametrize("place", ["rejects", "ignores"], indirect=True)
def test_a_store_without_conditions_is_rejected_before_anything_is_written(
    place: ObjectStore, model: bp.PCA, rows: Path
) -> None:
    place.exclusive = False
    for call in (
        lambda: model.transform(rows, out=place), lambda: bp.FeatureWriter(place),
        lambda: bp.PCA(2).fit(rows, checkpoint=place),
    ):  # fmt: skip
        with pytest.raises(OutputWriteError, match=r"conditional writes.*exclusive=True"):
            call()
    assert not stored(place)
    place.exclusive = True
    model.transform(rows, out=place)


def test_a_folder_as_a_store_of_objects_is_read_but_not_written(model: bp.PCA, rows: Path, tmp_path: Path) -> None:
    place = ObjectStore(obstore.store.LocalStore(tmp_path))
    for call in (
        lambda: model.transform(rows, out=place), lambda: bp.FeatureWriter(place), lambda: model.save(place),
        lambda: bp.PCA(2).fit(rows, checkpoint=place), lambda: bp.ingest(rows, place, overwrite=True),
    ):  # fmt: skip
        with pytest.raises(OutputWriteError, match="obstore's LocalStore is only read"):
            call()
    assert not [*tmp_path.iterdir()]
    assert np.array_equal(np.asarray(bp.open(ObjectStore(obstore.store.LocalStore(rows)))), X)


each_table = pytest.mark.parametrize("name", ["scores.parquet", "scores.npy"])


def scores_at(model: bp.PCA, rows: Path, **options: Any) -> Callable[[Any], object]:
    return lambda out: model.transform(rows, out=out, **options)


@pytest.mark.parametrize("place", ["enforces", "ignores"], indirect=True)
@each_table
def test_a_table_is_one_object_with_the_values_of_one_on_a_disk(
    place: ObjectStore, name: str, model: bp.PCA, rows: Path, tmp_path: Path
) -> None:
    keys = None if name.endswith(".npy") else [f"row {i}" for i in range(len(X))]
    table, run = place.at(name), scores_at(model, rows, keys=keys)
    found = run(table)
    expected = run(tmp_path / name)
    assert found.compute().tobytes() == expected.compute().tobytes()
    assert list(stored(place)) == [name]
    if name.endswith(".npy"):
        assert stored(place)[name] == (tmp_path / name).read_bytes()
    else:
        assert provenance_of(str(table)).call == provenance_of(tmp_path / name).call
        assert bp.data.stored_keys(str(table)).tolist() == bp.data.stored_keys(tmp_path / name).tolist() == keys
    with pytest.raises(OutputExistsError, match=r"exists already \(a file\)"):
        run(table)
    bp.PCA(2).fit(X).transform(rows, out=table, overwrite=True)
    assert bp.open(str(table)).shape == (48, 2)
    assert list(stored(place)) == [name]


def test_a_table_whose_run_stops_is_completed_by_a_rerun(
    place: ObjectStore, model: bp.PCA, rows: Path, tmp_path: Path
) -> None:
    run, number, done, name = scores_at(model, rows), 0, False, "scores.parquet"
    expected = run(tmp_path / name).compute().tobytes()
    while not done:
        number += 11
        place = beside(place, "-")
        with pytest.MonkeyPatch.context() as patch:
            made = stopping(patch, number)
            try:
                run(place.at(name))
                done = True
            except Stop:
                pass
        if not done:
            with suppress(OutputExistsError):
                run(place.at(name))
        assert list(stored(place)) == [name], made[-1]
        assert bp.open(str(place.at(name))).compute().tobytes() == expected, made[-1]


def test_a_table_that_appears_meanwhile_is_named_and_kept(place: ObjectStore, model: bp.PCA, rows: Path) -> None:
    table = place.at("scores.npy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NpyForm, "write", lambda *given, real=NpyForm.write: (
            table.put("", b"foreign"), real(*given))[1])  # fmt: skip
        with pytest.raises(OutputExistsError, match=r"scores\.npy appeared while this run wrote"):
            model.transform(rows, out=table)
    assert table.get("").data == b"foreign"


def test_a_table_in_an_open_store_is_rejected(model: bp.PCA, rows: Path) -> None:
    with pytest.raises(OutputWriteError, match=r"Tables need a URL, not an open store: pass the URL of"):
        model.transform(rows, out=ObjectStore(MemoryStore()).at("scores.parquet"))


def test_all_commands_take_urls(place: ObjectStore, rows: Path, tmp_path: Path) -> None:
    at = f"{place}/folder/"
    url, model, scores, table = f"{at}rows.zarr", f"{at}model.zarr", f"{at}scores.zarr", f"{at}scores.parquet"
    commands = [
        ["ingest", rows, "--out", url],
        ["verify", url],
        ["plan", url, "-k", "2"],
        ["fit", url, "-k", "2", "--model", model, "--scores", scores, "--checkpoint", f"{at}run.ckpt"],
        ["transform", url, "--model", model, "--scores", table],
        ["info", model], ["info", scores], ["info", table], ["verify", scores],
        ["report", model, "--scores", table, "--out", f"{at}report.html"],
        ["export", model, "--out", f"{at}model.onnx"], ["export", model, "--out", f"{at}model.npz"],
    ]  # fmt: skip
    for command in commands:
        done = run_command(*command)
        assert done.exit_code == 0, (command, done.output)
    assert [run_command(*commands[i]).exit_code for i in (0, 3, 4)] == [0, 0, 0]  # all is made
    other = ["ingest", rows, "--dtype", "float64", "--out", url]
    for command in other, commands[9], commands[10], commands[11]:
        done = run_command(*command)
        assert (done.exit_code, "exists already" in words(done.output)) == (5, True), (command, done.output)
    names = [Path(entry.key).name for entry in place.list() if ".zarr/" not in entry.key]
    assert sorted(names) == ["model.npz", "model.onnx", "report.html", "scores.parquet"]
    assert words(run_command("verify", scores).output).count("all chunks exist and decode") == 1
    damaged = ObjectStore(scores)
    damaged.put("c/0/0", damaged.get("c/0/0").data[:-3])
    assert "damaged 1: c/0/0" in words(run_command("verify", scores).output)
