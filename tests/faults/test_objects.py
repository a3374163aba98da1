"""Rows in object stores and in memory: a change of equal size is noticed wherever a file's time would tell it."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import dask.dataframe as dd
import fsspec
import icechunk
import numpy as np
import obstore.store
import pandas as pd
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from zarr.storage import FsspecStore, MemoryStore, ObjectStore, ZipStore

import bigpca as bp
from bigpca.data import zarr_arrays
from bigpca.data.sources import rows_stamp
from bigpca.data.zarr_arrays import ZarrReader
from bigpca.engine.events import CheckpointEvent, Event, GroupEvent, PassEvent
from bigpca.passes.rows import Rows
from tests.cli.running import run, run_json, words
from tests.forks import ended
from tests.passes.kit import normal

N, D, CHUNK = 32, 6, 8
pytestmark = pytest.mark.usefixtures("small_groups")
OLD, NEW = normal(N, D).astype(np.float32), normal(N, D, seed=1).astype(np.float32)


class Store(NamedTuple):
    """Replaces all rows, opens them as a user would, and to be changed where that is possible."""

    write: Callable[[np.ndarray], object]
    opened: Callable[[], Any]
    edited: Callable[[], AbstractContextManager[Any]]


def fill(store: Any, rows: np.ndarray) -> None:
    z = zarr.create_array(
        store, shape=rows.shape, chunks=(CHUNK, D), dtype="f4", compressors=None, overwrite=True,
        config={"write_empty_chunks": True},
    )  # fmt: skip
    z[:] = rows


def in_xarray(url: str) -> Store:
    def write(rows: np.ndarray) -> None:
        dataset = xr.Dataset({"f": (("t", "c"), rows)})
        dataset.to_zarr(url, mode="w", encoding={"f": {"chunks": (CHUNK, D), "compressors": None}}, consolidated=False)

    opened, edited = lambda: xr.open_zarr(url, consolidated=False)["f"], lambda: zarr.open_group(url, mode="a")["f"]
    return Store(write, opened, lambda: nullcontext(edited()))


def at(url: str) -> Store:
    return Store(lambda rows: fill(url, rows), lambda: url, lambda: nullcontext(zarr.open_array(url, mode="a")))


def in_zarr(store: Any) -> Store:
    def opened(mode: Any = "r") -> Any:
        return zarr.open_array(store(), mode=mode)

    return Store(lambda rows: fill(store(), rows), opened, lambda: nullcontext(opened("a")))


def in_icechunk(storage: Any) -> Store:
    repo = icechunk.Repository.open_or_create(storage)

    def write(rows: np.ndarray) -> None:
        session = repo.writable_session("main")
        fill(session.store, rows)
        session.commit("rows")

    @contextmanager
    def edited() -> Iterator[Any]:
        session = repo.writable_session("main")
        yield zarr.open_array(session.store, mode="a")
        session.commit("changes")

    return Store(write, lambda: zarr.open_array(repo.readonly_session("main").store, mode="r"), edited)


def in_zip(path: Path) -> Store:
    def write(rows: np.ndarray) -> None:
        path.unlink(missing_ok=True)
        with ZipStore(path, mode="w") as store:
            z = zarr.create_array(store, shape=rows.shape, chunks=(CHUNK, D), dtype="f4", compressors=None)
            z[:] = rows

    return Store(write, lambda: zarr.open_array(ZipStore(path, mode="r"), mode="r"), lambda: nullcontext(None))


def on_s3(endpoint: str, prefix: str) -> ObjectStore[Any]:
    return ObjectStore(obstore.store.S3Store("rows", prefix=prefix, endpoint=endpoint, allow_http=True))


def readable_by_all(name: str) -> FsspecStore:
    return FsspecStore.from_url(f"s3://rows/{name}", {"s3_additional_kwargs": {"ACL": "public-read"}})


KINDS = (
    "local", "s3", "http", "fsspec", "obstore", "xarray", "memory", "obstore in memory", "zarr in memory", "icechunk",
    "zip",
)  # fmt: skip
FIXED = ("icechunk", "zip")  # what is open stays as it was


@pytest.fixture
def store(kind: str, bucket: str, tmp_path: Path) -> Store:
    name = tmp_path.name
    held, ours = MemoryStore(), ObjectStore(obstore.store.MemoryStore())
    made: dict[str, Callable[[], Store]] = {
        "local": lambda: at(str(tmp_path / "x.zarr")),
        "s3": lambda: at(f"s3://rows/{name}"),
        "http": lambda: in_zarr(lambda: readable_by_all(name))._replace(opened=lambda: f"{bucket}/rows/{name}"),
        "fsspec": lambda: in_zarr(lambda: FsspecStore.from_url(f"s3://rows/{name}")),
        "obstore": lambda: in_zarr(lambda: on_s3(bucket, name)),
        "xarray": lambda: in_xarray(f"memory://{name}.zarr"),
        "memory": lambda: at(f"memory://{name}.zarr"),
        "obstore in memory": lambda: in_zarr(lambda: ours),
        "zarr in memory": lambda: in_zarr(lambda: held),
        "icechunk": lambda: in_icechunk(icechunk.in_memory_storage()),
        "zip": lambda: in_zip(tmp_path / "x.zip"),
    }
    found = made[kind]()
    found.write(OLD)
    return found


class Interrupted(KeyboardInterrupt):
    """Raised in the middle of a run."""


def interrupted(at: type[Event]) -> Callable[[Event], None]:
    def stop(event: Event) -> None:
        if isinstance(event, at):
            raise Interrupted

    return stop


def once(at: type[Event], then: Callable[[], object]) -> Callable[[Event], None]:
    """Return a consumer of events that does something at the first of a kind."""
    waiting = [then]
    return lambda event: waiting.pop()() if waiting and isinstance(event, at) else None  # type: ignore[func-returns-value]


def fit(X: Any, **options: Any) -> Any:
    with dask.config.set(scheduler="sync"):
        return bp.PCA(2).fit(X, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_resumed_with_the_same_rows_only(store: Store, tmp_path: Path) -> None:
    finished, unfinished = tmp_path / "finished", tmp_path / "unfinished"
    with pytest.raises(Interrupted):
        fit(store.opened(), checkpoint=unfinished, progress=interrupted(CheckpointEvent))
    shutil.copytree(unfinished, finished)
    expected, found = fit(OLD), fit(store.opened(), checkpoint=finished)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)
    assert fit(store.opened(), checkpoint=finished).components_.tobytes() == found.components_.tobytes()
    store.write(NEW)
    for checkpoint in (finished, unfinished):
        with pytest.raises(bp.errors.CheckpointError, match="the input changed since the checkpoint"):
            fit(store.opened(), checkpoint=checkpoint)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FIXED])
def test_rows_that_change_during_a_fit_stop_it(store: Store) -> None:
    with pytest.raises(ValueError, match=r"the input changed while it was read: .* ETag .* Start again"):
        fit(store.opened(), progress=once(GroupEvent, lambda: store.write(NEW)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (*FIXED, "xarray")])  # whose reads are its own
def test_lazy_results_of_rows_that_were_replaced_since_they_were_opened_are_errors(store: Store) -> None:
    X, model = bp.open(store.opened()), bp.PCA(2).fit(OLD)
    scores = model.transform(X)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_allclose(scores.compute(), model.transform(OLD), atol=1e-5)
        store.write(NEW)
        for lazy in (X[3:5], X.sum(axis=0), scores):
            with pytest.raises(bp.errors.InputChangedError, match=r"the input changed while it was read"):
                lazy.compute()
        np.testing.assert_array_equal(bp.open(store.opened()), NEW)


def test_changes_of_files_of_virtual_chunks_are_said_to_go_unnoticed() -> None:
    url, config = "s3://elsewhere/", icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(url, icechunk.s3_store(region="x")))
    allowed = icechunk.containers_credentials({url: None})
    repo = icechunk.Repository.create(
        icechunk.in_memory_storage(), config=config, authorize_virtual_chunk_access=allowed
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, shape=OLD.shape, chunks=(CHUNK, D), dtype="f4", compressors=None, filters=None)
    for i in range(N // CHUNK):
        size = CHUNK * D * 4
        session.store.set_virtual_ref(f"c/{i}/0", f"{url}rows.bin", offset=i * size, length=size)
    session.commit("rows")
    rows = zarr.open_array(repo.readonly_session("main").store, mode="r")
    for X in (rows, bp.data.lagged(rows, range(2))):  # also where rows are made of others
        assert "changes of the files behind icechunk's virtual chunks go unnoticed" in str(bp.PCA(2).plan(X))


@pytest.mark.parametrize("event", [PassEvent, GroupEvent])
@pytest.mark.parametrize("kind", FIXED)
def test_a_fit_of_what_is_open_does_not_see_later_rows(kind: str, store: Store, event: type[Event]) -> None:
    by_time = pytest.raises(ValueError, match="the input changed while it was read")  # of the file
    with by_time if kind == "zip" else nullcontext():
        found = fit(store.opened(), progress=once(event, lambda: store.write(NEW)))
        np.testing.assert_allclose(found.mean_, OLD.mean(0), atol=1e-6)


RESUMED = """
import sys
import dask, icechunk, zarr
import bigpca as bp
from bigpca.engine.events import PassEvent
from bigpca.engine import layout

layout.MIN_GROUP_BYTES, layout.MIN_GROUPS = 256, 80  # as small_groups
dask.config.set(scheduler="sync")
url, ice, folder = sys.argv[1:]
session = icechunk.Repository.open(icechunk.local_filesystem_storage(ice)).readonly_session("main")
for name, X in ("s3", url), ("icechunk", zarr.open_array(session.store, mode="r")):
    events = []
    model = bp.PCA(2).fit(X, checkpoint=f"{folder}/{name}", progress=events.append)
    model.save(f"{folder}/{name}.zarr")
    assert sum(event.groups_resumed for event in events if isinstance(event, PassEvent)) > 0
"""


def test_another_process_resumes_a_fit(bucket: str, tmp_path: Path) -> None:
    url, ice = f"s3://rows/{tmp_path.name}", str(tmp_path / "x")
    stores = {"s3": at(url), "icechunk": in_icechunk(icechunk.local_filesystem_storage(ice))}
    for name, store in stores.items():
        store.write(OLD)
        with pytest.raises(Interrupted):
            fit(store.opened(), checkpoint=tmp_path / name, progress=interrupted(CheckpointEvent))
    assert ended(RESUMED, url, ice, tmp_path) == 0
    for name, store in stores.items():
        found = bp.load(tmp_path / f"{name}.zarr").components_
        assert found.tobytes() == fit(store.opened()).components_.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_holds_no_rows_of_before_a_change(kind: str, store: Store, tmp_path: Path) -> None:
    model, out = bp.PCA(2).fit(OLD), tmp_path / "out.zarr"
    with dask.config.set(scheduler="sync"):
        with pytest.raises(Interrupted):
            model.transform(bp.open(store.opened()), out=out, progress=interrupted(GroupEvent))
        store.write(NEW)
        if kind not in FIXED:
            with pytest.raises(ValueError, match="the input changed while it was read"):
                model.transform(bp.open(store.opened()), out=out, progress=once(GroupEvent, lambda: store.write(OLD)))
        scores = model.transform(bp.open(store.opened()), out=out).compute()
    np.testing.assert_allclose(scores, model.transform(NEW if kind in FIXED else OLD), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_identifies_opened_rows_is_that_of_their_content(kind: str, store: Store) -> None:
    def identity() -> tuple[str, str]:
        X = bp.open(store.opened())
        return "" if kind == "xarray" else X.name, Rows.opened(
            X
        ).origin.files_digest()  # xarray names its arrays itself

    before = identity()
    assert identity() == before
    changed = OLD.copy()
    changed[-1] += 1  # in the last chunk only
    store.write(changed)
    name, digest = identity()
    assert digest != before[1]
    assert (name == before[0]) is (kind == "xarray")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("xarray", "zip")])
def test_appended_rows_are_told_from_changed_ones(kind: str, store: Store) -> None:
    before = rows_stamp(bp.open(store.opened()), N - 3)
    assert before is not None
    with store.edited() as z:
        z.append(NEW)
    grown = rows_stamp(bp.open(store.opened()), N - 3)
    assert (grown == before) is (kind not in FIXED)  # any commit makes another snapshot
    with store.edited() as z:
        z[CHUNK] += 1
    assert rows_stamp(bp.open(store.opened()), N - 3) not in (before, grown)


@pytest.mark.parametrize("kind", ["s3", "http", "memory"])
def test_an_update_at_a_url_reads_what_was_appended_and_rejects_what_was_changed(store: Store, tmp_path: Path) -> None:
    url, old, new = store.opened(), tmp_path / "m.zarr", tmp_path / "n.zarr"
    assert run("fit", url, "-k", 2, "--model", old, "--quiet").exit_code == 0
    with store.edited() as z:
        z.append(NEW)
    assert run_json("fit", url, "--update", old, "--model", new)["appended"] == N
    expected = bp.PCA(2).fit(np.concatenate([OLD, NEW]))
    np.testing.assert_allclose(bp.load(new).explained_variance_, expected.explained_variance_, rtol=1e-5)
    with store.edited() as z:
        z[CHUNK] += 1
    said = run("fit", url, "--update", new, "--model", tmp_path / "o.zarr")
    assert (said.exit_code, "are not the same" in words(said.output)) == (3, True), said.output


@pytest.mark.parametrize("kind", ["s3", "obstore"])
def test_stamps_take_one_listing_and_no_request_per_chunk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_arrays, "_of_object", None)
    source = bp.data.dask_arrays.source_of(bp.open(store.opened()))
    assert len(source.stamps(0, N)) == N // CHUNK


def test_many_chunks_are_stamped_by_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "x.zarr", OLD)
    files = ZarrReader(tmp_path / "x.zarr").files()
    one_by_one = files.stamps([(0, N), (0, D)])
    monkeypatch.setattr(zarr_arrays, "MANY", 0)
    assert files.stamps([(0, N), (0, D)]) == one_by_one


class TestStoresThatDoNotSay:
    """Uncommitted rows of icechunk, and a file system that gives sizes only."""

    @pytest.fixture(params=["icechunk", "file system"])
    def rows(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
        if request.param == "icechunk":
            session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
            fill(session.store, OLD)
            return zarr.open_array(session.store, mode="r")
        fill("memory://sizes.zarr", OLD)
        system = fsspec.filesystem("memory")
        plain = type(system).info
        monkeypatch.setattr(type(system), "info", lambda *a, **o: {**plain(*a, **o), "created": None})
        known = type(system).ls

        def ls(self: Any, path: str, detail: bool = True, **options: Any) -> Any:
            found = known(self, path, detail=detail, **options)
            return [{**one, "created": None} for one in found] if detail else found

        monkeypatch.setattr(type(system), "ls", ls)
        return "memory://sizes.zarr"

    def test_plan_and_log_say_so_before_the_first_read(self, rows: Any, caplog: pytest.LogCaptureFixture) -> None:
        X = bp.open(rows)
        assert any("go unnoticed" in note and "cannot be resumed" in note for note in bp.PCA(2).plan(X).notes)
        logged: list[bool] = []
        fit(X, progress=lambda event: logged.append("go unnoticed" in caplog.text))
        assert logged[0]

    def test_a_checkpoint_is_rejected(self, rows: Any, tmp_path: Path) -> None:
        with pytest.raises(
            bp.errors.CheckpointError, match=r"go unnoticed: its store has no ETags .* Fit without checkpoint="
        ):
            fit(bp.open(rows), checkpoint=tmp_path / "fit")

    def test_an_output_begins_again(self, rows: Any, tmp_path: Path) -> None:
        model, out, chunks = bp.PCA(2).fit(OLD), tmp_path / "out.zarr", []
        with dask.config.set(scheduler="sync"):
            with pytest.raises(Interrupted):
                model.transform(bp.open(rows), out=out, progress=interrupted(GroupEvent))
            model.transform(bp.open(rows), out=out, progress=chunks.append)
        assert [event.groups_resumed for event in chunks if isinstance(event, PassEvent)] == [0]


class TestGraphsOfFiles:
    """What a graph reads by functions that are not bigpca's has no stamps."""

    @staticmethod
    def graphs(folder: Path) -> dict[str, Any]:
        xr.Dataset({"t": (("n", "c"), OLD)}).to_netcdf(folder / "x.nc", engine="scipy")
        table = pd.DataFrame(OLD, columns=list("abcdef"))
        table.to_parquet(folder / "x.parquet")
        read = dask.delayed(lambda path: np.asarray(pd.read_parquet(path)))
        return {
            "open_dataset-t": xr.open_dataset(folder / "x.nc", engine="scipy", chunks={"n": CHUNK})["t"],
            "read_parquet": dd.read_parquet(folder / "x.parquet"),
            "lambda": da.from_delayed(read(folder / "x.parquet"), OLD.shape, OLD.dtype),
            "": da.concatenate([da.from_array(OLD, chunks=CHUNK) * 2, da.random.default_rng(0).random(OLD.shape)]),
            "frame": dd.from_pandas(table + 1, npartitions=2) * 2,
        }

    @pytest.mark.parametrize("kind", ["open_dataset-t", "read_parquet", "lambda", "", "frame"])
    def test_plan_and_log_say_that_changes_go_unnoticed(
        self, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        X = self.graphs(tmp_path)[kind]
        said, known = "changes of the files behind ", kind in ("", "frame")
        notes = [note for note in bp.PCA(2).plan(X).notes if said in note]
        assert len(notes) == (not known)
        assert all(f"{kind} go unnoticed while" in note for note in notes)
        with caplog.at_level(logging.INFO, "bigpca"):
            logged: list[bool] = []
            fit(X, progress=lambda event: logged.append(said in caplog.text))
        assert logged[0] is not known


def test_a_store_that_cannot_be_sent_is_read_here_beside_others_and_in_graphs() -> None:
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    fill(session.store, OLD)
    held, beside = zarr.open_array(session.store, mode="r"), OLD[:, :2]
    for found, expected in (
        (bp.PCA(2).fit(held, covariates=beside), bp.PCA(2).fit(OLD, covariates=beside)),
        (bp.PCA(2).fit(bp.open(held) * 2), bp.PCA(2).fit(OLD * 2)),
    ):
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)


def on_s3_with_keys(name: str, address: str) -> FsspecStore:
    """Return a store that carries its credentials, because the workers' environment has none."""
    options = {"key": "key", "secret": "secret", "endpoint_url": address}
    return FsspecStore.from_url(f"s3://rows/{name}", options)


@pytest.mark.cluster
class TestOnWorkers:
    def test_stores_behind_a_network_are_read(self, client: Client, bucket: str, tmp_path: Path) -> None:
        storage = icechunk.s3_storage(
            bucket="rows", prefix=f"{tmp_path.name}/ice", endpoint_url=bucket, allow_http=True, region="us-east-1",
            force_path_style=True, access_key_id="key", secret_access_key="secret",
        )  # fmt: skip
        expected = bp.PCA(2).fit(OLD).explained_variance_
        for store in (in_icechunk(storage), in_zarr(lambda: on_s3_with_keys(tmp_path.name, bucket))):
            store.write(OLD)
            found = bp.PCA(2).fit(store.opened()).explained_variance_
            np.testing.assert_allclose(found, expected, rtol=1e-5)

    @pytest.mark.parametrize("kind", ["memory", "obstore in memory"])
    def test_the_memory_of_this_process_is_rejected(self, client: Client, store: Store) -> None:
        with pytest.raises((FileNotFoundError, TypeError), match=r"memory://.*(the memory of this process|be pickled)"):
            bp.PCA(2).fit(store.opened())

    def test_a_store_that_cannot_be_sent_is_named(self, client: Client) -> None:
        session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
        fill(session.store, OLD)
        with pytest.raises(TypeError, match=r"(?s)icechunk:// cannot be sent to workers.* Pass .*readonly_session"):
            bp.PCA(2).fit(zarr.open_array(session.store, mode="r"))

    def test_rows_that_a_closed_cluster_held_are_named(self) -> None:
        with LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster, Client(cluster):
            X = (da.from_array(OLD, chunks=(CHUNK, D)) + 1).persist()
        with pytest.raises(ConnectionError, match=r"\d of \d chunks of .* were persisted on a cluster that is closed"):
            bp.PCA(2).fit(X)

    def test_a_coroutine_of_an_asynchronous_client_is_told_to_use_a_thread(self) -> None:
        async def coroutine() -> Any:
            async with Client(processes=False, asynchronous=True, n_workers=1, dashboard_address="127.0.0.1:0"):
                with pytest.raises(RuntimeError, match=r"Client is asynchronous.* await asyncio\.to_thread"):
                    bp.PCA(2).fit(OLD + da.zeros((N, D), chunks=(CHUNK, D)))

        asyncio.run(coroutine())


@pytest.mark.parametrize("scheme", ["s3://rows", "memory://"])
def test_an_array_that_is_gone_is_not_called_damaged(scheme: str, bucket: str) -> None:
    with pytest.raises(FileNotFoundError, match="No array found"):
        ZarrReader(f"{scheme}/nothing.zarr")


def test_an_error_of_a_client_names_the_address_and_what_to_check(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill("s3://rows/unread.zarr", OLD)

    class NoCredentialsError(Exception):  # as botocore's
        pass

    async def denied(*args: Any, **options: Any) -> Any:
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(zarr_arrays, "find_spec", lambda name: None)  # obstore is not installed: by fsspec
    monkeypatch.setattr("s3fs.S3FileSystem._cat_file", denied)
    with pytest.raises(OSError, match=r"s3://rows/unread.zarr cannot be read \(NoCred.* the credentials"):
        bp.open("s3://rows/unread.zarr")


@pytest.mark.parametrize(
    "url", ["gs://nobody/x.zarr", "gs://nobody/x.npy", "https://127.0.0.1:9/x.zarr", "https://127.0.0.1:9/x.npy"]
)
def test_a_place_that_cannot_be_reached_is_named_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **options: Any) -> Any:
        raise obstore.exceptions.GenericError("Generic GCS error: Server returned non-2xx status code: 403 Forbidden")

    monkeypatch.setattr(obstore, "list", lambda *args, **options: iter(unreachable, None))
    monkeypatch.setattr(obstore, "head", unreachable)
    monkeypatch.setattr(obstore, "get", unreachable)
    said = "(Check the address, the network and the cred|these credentials)"  # as a 403 says
    with pytest.raises(OSError, match=rf"{url.rpartition('/')[0]}.*{said}"):
        bp.open(url)
