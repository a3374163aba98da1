"""Places: five verbs over object stores, whose answers may be late, lost, doubled or wrong."""

import pickle
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import obstore
import pytest
from distributed import Client
from obstore.exceptions import GenericError
from obstore.store import MemoryStore, S3Store
from snailmail import ObjectStore as Server
from zarr.storage import ObjectStore as ZarrStore

import bigpca as bp
from bigpca.errors import OutputWriteError, UnansweredError
from bigpca.storage import places
from bigpca.storage.files import OccupiedError
from bigpca.storage.places import ObjectStore
from bigpca.storage.requests import Request, requests
from tests.conftest import PLACES
from tests.storage.writing import beside

everywhere = pytest.mark.parametrize("place", PLACES, indirect=True)
enforced = pytest.mark.parametrize("place", ["memory", "enforces"], indirect=True)


@everywhere
def test_what_is_put_is_listed_got_and_deleted_the_same_everywhere(place: ObjectStore) -> None:
    etag = place.put("c/1/0", b"0123456789", if_absent=True, mark="one")
    place.put("zarr.json", b"{}")
    beside(place, "-other").put("zarr.json", b"[]")
    assert [(entry.key, entry.size) for entry in place.list()] == [("c/1/0", 10), ("zarr.json", 2)]
    assert [entry.key for entry in place.list("c")] == ["c/1/0"]
    assert next(place.list("c")).etag == etag == place.get("c/1/0").etag
    assert place.get("c/1/0").data == b"0123456789"
    place.delete(["c/1/0", "zarr.json", "absent"])
    assert not list(place.list())
    assert not place.exists("c/1/0")
    with pytest.raises(FileNotFoundError, match=r"zarr.json does not exist"):
        place.get("zarr.json")
    beside(place, "-other").delete(["zarr.json"])


@enforced
def test_an_object_is_created_by_one_of_two(place: ObjectStore) -> None:
    first = place.put("claim", b"one", if_absent=True, mark="run 1")
    assert place.put("claim", b"one", if_absent=True) == first
    with pytest.raises(OccupiedError, match="other bytes") as caught:
        place.put("claim", b"two", if_absent=True)
    assert caught.value.found[:2] == (b"one", first)
    assert caught.value.found.mark == "run 1"
    second = place.put("claim", b"two", if_etag=first)
    assert place.put("claim", b"two", if_etag=first) == second
    with pytest.raises(OccupiedError):
        place.put("claim", b"three", if_etag=first)


@everywhere
def test_the_store_is_asked_what_it_does_about_conditions(place: ObjectStore, request: pytest.FixtureRequest) -> None:
    places._CONDITIONS.clear()
    expected = {"memory": "enforced", "enforces": "enforced", "rejects": "rejected", "ignores": "ignored"}
    kind = request.node.callspec.params["place"]
    assert place.conditions() == expected[kind]
    assert not list(place.list())
    place.exclusive = False
    if expected[kind] == "enforced":
        place.check_exclusive()
    else:
        with pytest.raises(OutputWriteError, match=r"conditional writes.*exclusive=True"):
            place.check_exclusive()


def answers(*failures: Any) -> Callable[..., Any]:
    """Fail the first calls: before the real one, or after it where ``("after", error)`` is given."""
    left: Iterator[Any] = iter(failures)
    real = obstore.put

    def put(*given: Any, **options: Any) -> Any:
        failure = next(left, None)
        if isinstance(failure, tuple):
            real(*given, **options)
            raise failure[1]
        if failure is not None:
            raise failure
        return real(*given, **options)

    return put


def status(code: int, said: str = "") -> GenericError:
    return GenericError(f"Error performing PUT - Server returned non-2xx status code: {code} : <Code>{said}</Code>")


@enforced
@pytest.mark.parametrize(
    "failures",
    [
        [status(500)], [status(503, "SlowDown"), status(503, "SlowDown")], [status(429)], [status(409)],
        [GenericError("connection reset by peer")], [("after", status(500))], [("after", GenericError("reset"))],
    ],
)  # fmt: skip
def test_a_failed_or_lost_answer_is_tried_again(
    place: ObjectStore, failures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.conditions()
    monkeypatch.setattr(places, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(obstore, "put", answers(*failures))
    etag = place.put("c/0", b"rows", if_absent=True)
    assert place.get("c/0")[:2] == (b"rows", etag)
    with pytest.raises(OccupiedError):
        place.put("c/0", b"others", if_absent=True)


def test_a_body_that_is_cut_is_got_again(place: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("c/0", b"0123456789")
    real, left = obstore.get, [True, True]
    monkeypatch.setattr(places, "FIRST_PAUSE", 0.001)

    class Cut:
        def __init__(self, found: Any) -> None:
            self.meta, self.attributes, self._data = found.meta, found.attributes, bytes(found.bytes())

        def bytes(self) -> bytes:
            return self._data[: 4 if left and left.pop() else None]

    monkeypatch.setattr(obstore, "get", lambda *given, **options: Cut(real(*given, **options)))
    assert place.get("c/0").data == b"0123456789"


def test_a_store_that_does_not_answer_is_an_error_with_the_key(
    place: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.exists("c/0")
    monkeypatch.setattr(places, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(places, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(obstore, "put", answers(*[status(503, "SlowDown")] * 100))
    with pytest.raises(OutputWriteError, match=r"out.zarr/c/0: the store could not put it for 0 s \(SlowDown\)"):
        place.put("c/0", b"rows")


@contextmanager
def trickling(seconds: float, answered: bytes = b"") -> Iterator[ObjectStore]:
    """A store that takes so long to receive what is sent, or to send what is asked for; it never stands still."""
    ended = threading.Event()

    def serve() -> None:
        while True:
            try:
                peer = server.accept()[0]
            except OSError:
                return
            with peer, suppress(OSError):  # the client has gone
                head = b""
                while b"\r\n\r\n" not in head:
                    head += peer.recv(4096)
                first, _, body = head.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", first.lower())
                expected, count = int(length[1]) if length else 0, len(body)
                began = time.monotonic()
                while count < expected:
                    got = len(peer.recv(max(1, expected // 50)))
                    count += got or expected
                    ended.wait(max(0.0, began + seconds * count / expected - time.monotonic()) if got else 0.0)
                peer.sendall(b'HTTP/1.1 200 OK\r\nETag: "1"\r\nLast-Modified: Tue, 24 Nov 2026 12:00:00 GMT\r\n'
                             b"Content-Length: %d\r\n\r\n" % len(answered))  # fmt: skip
                for at in range(len(answered)):
                    peer.sendall(answered[at : at + 1])
                    ended.wait(seconds / len(answered))

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield ObjectStore("s3://rows/x", endpoint=f"http://127.0.0.1:{server.getsockname()[1]}", exclusive=True)
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name in ("RETRY_SECONDS", "SILENT_SECONDS"):
        monkeypatch.setattr(places, name, 0.4)


@pytest.mark.usefixtures("hurried")
def test_bytes_that_leave_or_arrive_may_take_longer_than_a_store_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SENT_RATE": 2**23, "RETRY_SECONDS": 1.5, "SILENT_SECONDS": 1.5}.items():
        monkeypatch.setattr(places, name, value)
    with trickling(2.0) as place:
        place.put("c/0", bytes(2**24))
    with trickling(2.0, b"12345678") as place:
        assert requests().all(place, [Request("c/0", 8)])[0].data == b"12345678"


@pytest.mark.usefixtures("hurried")
def test_a_store_that_stands_still_is_left_soon_whatever_it_was_sent() -> None:
    with trickling(60.0, b"12345678") as place:
        with pytest.raises(UnansweredError, match=r"c/0: the store could not read it for \d s"):
            requests().all(place, [Request("c/0", 2**30)])
        with pytest.raises(OutputWriteError, match=r"c/0: the store could not put it for \d s"):
            place.put("c/0", bytes(2**20))


def test_a_bucket_that_does_not_exist_is_named(object_server: Server) -> None:
    with pytest.raises(FileNotFoundError, match=r"s3://nobody/x.zarr/c: its bucket does not exist"):
        ObjectStore("s3://nobody/x.zarr").put("c", b"")


WAYS: dict[str, Callable[[str], Any]] = {
    "as": ObjectStore, "load": bp.load, "write": lambda url: bp.ingest(np.eye(3), url), "read": bp.open,
}  # fmt: skip


@pytest.mark.parametrize("way", ["as", "load", "write"])  # they can be read
@pytest.mark.parametrize(
    ("given", "message"),
    [("memory://x", "kept at s3://, gs:// and az:// URLs"), ("https://host/x", "at other URLs, bigpca reads rows")],
)
def test_other_urls_are_for_reading_only(given: str, message: str, way: str) -> None:
    with pytest.raises(ValueError, match=message):
        WAYS[way](given)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("s3://", "models and outputs are"), ("s3://key:hush@rows/x", "s3://rows/x was given with credentials"),
        ("s3://rows/x?y.zarr", "with credentials or a query"), ("s3://rows/x#y.zarr", "with credentials or a query"),
        ("s3://rows/x/../y.zarr", r"x/\.\./y\.zarr has the part '\.\.', but .* are names of objects: not empty"),
        ("s3://rows/..", r"has the part '\.\.'"), ("s3://rows/./y.zarr", r"has the part '\.'"),
        ("s3://rows/../*.npy", r"has the part '\.\.'|cannot be"), ("s3://rows/x//y.zarr", "has the part ''"),
        ("s3://rows/x\ny.zarr", r"rows/x\\ny\.zarr has the part 'x\\ny.zarr'"),
    ],
)  # fmt: skip
def test_urls_that_name_no_object_or_hold_secrets_are_rejected(given: str, message: str, way: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        WAYS[way](given)
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_no_key_leaves_the_prefix() -> None:
    with pytest.raises(ValueError, match=r"out.zarr/\.\./x has the part '\.\.'"):
        ObjectStore(MemoryStore()).at("out.zarr").at("../x")


@pytest.mark.parametrize("name", ["a[1]b", "a%20b*", "x*/%2e%2e"])
def test_names_are_those_of_the_objects(name: str, place: ObjectStore) -> None:
    """Also where they could be patterns or encoded: of folders, tables and models that are written, and read again."""
    home, rows = place.describe().removesuffix("out.zarr"), np.eye(6, 3)
    model = bp.PCA(1).fit(rows)
    assert np.array_equal(bp.ingest(rows, f"{home}{name}/x.zarr").compute(), rows)
    ObjectStore(f"{home}shards {name}").put("a1b.npy", b"")  # is matched by one of the names, as a pattern
    for out in (f"{home}{name}.npy", f"{home}shards {name}/{name}.npy", f"{home}{name}.parquet"):
        assert np.array_equal(model.transform(rows, out=out).compute(), bp.open(out).compute())
    ObjectStore(f"{home}shards {name}").delete(["a1b.npy"])
    assert "/" in name or bp.open(f"{home}shards {name}").shape == (6, 1)
    model.save(f"{home}{name}/m.zarr")
    assert np.array_equal(bp.load(f"{home}{name}/m.zarr").components_, model.components_)
    keys = [
        one["path"] for part in obstore.list(S3Store("rows", prefix=home.removeprefix("s3://rows/"))) for one in part
    ]
    assert len(keys) > 10
    assert not [key for key in keys if not key.startswith((name, f"shards {name}"))]


def test_no_secret_is_an_option() -> None:
    with pytest.raises(ValueError, match="secret_access_key is a secret"):
        ObjectStore("s3://rows/x", secret_access_key="hidden")
    assert ObjectStore("s3://rows/x", access_key_id="name").options == {"access_key_id": "name"}


def test_stores_are_accepted_as_they_are(object_server: Server) -> None:
    own = S3Store("rows", prefix="given/x.zarr", endpoint=object_server.endpoint_url, allow_http=True)  # type: ignore[call-arg]
    ObjectStore(own).put("c/0", b"rows")
    assert [entry.key for entry in ObjectStore("s3://rows/given/x.zarr").list()] == ["c/0"]
    assert ObjectStore(ZarrStore(own)).get("c/0").data == b"rows"
    assert ObjectStore(own).describe("c/0") == "s3://rows/given/x.zarr/c/0"
    assert str(ObjectStore(ObjectStore("s3://rows/a/b"))) == "s3://rows/a/b"
    rows, held = np.eye(6, 3), MemoryStore()
    for at in (ObjectStore(held).at("x.zarr"), MemoryStore(), ObjectStore(own).at("y.zarr")):
        bp.ingest(rows, at)
        assert np.array_equal(bp.open(at).compute(), rows)
        assert bp.PCA(1).fit(at).n_samples_ == 6
    with pytest.raises(FileNotFoundError, match=r"is neither a Zarr array nor a group\. Pass the URL of a table"):
        bp.open(ObjectStore(held).at("x.npy"))


def test_a_place_is_sent_as_its_url(place: ObjectStore) -> None:
    place.put("c/0", b"rows")
    sent = pickle.dumps(place)
    assert b"secret" not in sent
    assert pickle.loads(sent).get("c/0").data == b"rows"


@pytest.mark.cluster
def test_a_store_with_a_secret_is_not_sent_without_encryption(client: Client) -> None:
    held = ObjectStore(S3Store("rows", access_key_id="key", secret_access_key="hidden"))
    with pytest.raises(TypeError, match=r"carries its credentials.*tcp://.*without encryption") as caught:
        pickle.dumps(held)
    assert "hidden" not in str(caught.value)
    pickle.dumps(ObjectStore(S3Store("rows", skip_signature=True)))
    with pytest.raises(TypeError, match="in the memory of this process"):
        pickle.dumps(ObjectStore(MemoryStore()))


def test_the_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'bigpca\[cloud\]'"):
        ObjectStore("s3://rows/x")


def test_a_url_is_asked_where_the_environment_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hang of a process whose endpoint had moved: its store went on asking the earlier one."""
    endpoints = []
    for port in (9001, 9002, 9001):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        endpoints.append(ObjectStore("s3://moved/x").store)
    assert endpoints[0] is endpoints[2]
    assert endpoints[0] is not endpoints[1]
