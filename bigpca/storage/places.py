"""Places: an object prefix with five verbs (list, get, put, delete, describe), over obstore.

Imported for URLs and stores of objects only: local folders keep to :mod:`bigpca.storage.files`. Every request is
repeated with growing pauses while the store is busy or cannot be reached. A write is conditional wherever the store
enforces conditions, so that of two runs only one creates an object, and the other learns what it holds.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

from bigpca.errors import OutputWriteError, UnansweredError, brief
from bigpca.storage.files import (
    BUCKETS,
    PLACES,
    Content,
    OccupiedError,
    bucket_of,
    change_of,
    denied,
    is_denied,
    public,
    split_url,
    url_of,
    without_credentials,
)
from bigpca.storage.grammar import PROBE

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Store

T = TypeVar("T")
Conditions = Literal["enforced", "rejected", "ignored"]
RETRY_SECONDS = 36.0  # of tries and pauses, beside the longest try, after which a request is not repeated
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
TRANSFER_SECONDS = 600.0  # of one request whose bytes arrive or leave, such as a chunk of 1 GiB at 2 MB/s
SILENT_SECONDS = 18.0  # without a byte, after which a connection is dead
SENT_RATE = 5e6  # bytes a second that leave at least
LISTED = 1000  # objects per request of a listing
LARGEST_PUT = 4 * 2**30  # bytes of one object in one request
WRITING = ("put", "delete")  # requests that change a store
MARK = "bigpca"  # the attribute of an object that says which run wrote it
SECRET = re.compile("secret|token|sas|password|account_key|access_key|credential|service_account_key|shared_key")
CLIENT_OPTIONS = ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout", "user_agent")
NO_SECRET = ("access_key_id", "client_id", "credential_provider_type")
_STATUS = re.compile(r"status code: (\d{3})")
_CONDITIONS: dict[object, Conditions] = {}
_STORES: dict[tuple[str, str, int, float], Store] = {}
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "STORAGE_EMULATOR")  # variables that stores read when they are opened
_LOCK = threading.Lock()
_PROCESS: list[int] = []  # the one that opened the first store


class Entry(NamedTuple):
    """One object of a listing.

    Attributes
    ----------
    key : str
        Relative to the place.
    size : int
    change : str or None
        ETag, version and time of change, as far as the store has them; changes with the object.
    etag : str
        Compared for equality only: what it is made of differs between stores.
    """

    key: str
    size: int
    change: str | None
    etag: str


class ObjectStore:
    """An object prefix: a URL of S3, Google Cloud Storage or Azure, or a store that is open.

    Each process takes the credentials from its own environment. Workers receive only the URL and the options. A store
    carries its credentials, which is accepted within this process and over TLS.

    Parameters
    ----------
    store : str, obstore store, zarr.storage.ObjectStore or ObjectStore
        ``s3://``, ``gs://`` or ``az://``.
    exclusive : bool, default False
        True if you make sure that nobody else writes there. Stores that do not enforce conditional writes require it.
    **options
        Settings of the store that are not secret, such as ``endpoint="https://minio:9000"`` and ``region="eu-west-1"``.

    Raises
    ------
    ImportError
        If obstore is not installed.
    ValueError
        For other URLs, names that no object can have, and secrets among the options.

    Examples
    --------
    >>> import numpy as np, bigpca as bp
    >>> from obstore.store import MemoryStore
    >>> place = bp.ObjectStore(MemoryStore())  # as for a bucket: bp.ObjectStore("s3://bucket/scores.zarr")
    >>> X = np.eye(4, 3)
    >>> bp.PCA(2).fit(X).transform(X, out=place).shape
    (4, 2)
    >>> [entry.key for entry in place.list()]
    ['c/0/0', 'provenance/zarr.json', 'zarr.json']
    """

    def __init__(self, store: Any, *, exclusive: bool = False, **options: Any) -> None:
        if find_spec("obstore") is None:
            raise ImportError(
                f"{public(str(store))} is an object store, which needs obstore. Run: pip install 'bigpca[cloud]'."
            )
        self._held: Store | None = None
        self.exclusive, self.options, self.root, self.prefix = exclusive, options, "", ""
        secret = [name for name in options if _is_secret(name)]
        if secret:
            raise ValueError(
                f"the option {secret[0]} is a secret, which would be sent to workers and be shown in messages. Set "
                "it in the environment of each process that reads or writes, or pass an obstore store."
            )
        if isinstance(store, ObjectStore):
            self._held, self.root, self.prefix = store._held, store.root, store.prefix
            self.exclusive, self.options = exclusive or store.exclusive, store.options | options
        elif isinstance(store, str):
            self._set_url(store)
        else:
            self._held = getattr(store, "store", store)  # zarr's ObjectStore holds one

    def _set_url(self, url: str) -> None:
        scheme, path = split_url(url)
        if public(url) != url:
            raise ValueError(
                f"{public(url)} was given with credentials or a query, which every message and task would carry. Leave "
                "them out, and set the credentials in the environment, or pass an obstore store."
            )
        if scheme.lower() not in PLACES or not path.strip("/"):
            raise ValueError(
                f"{public(url)}: models and outputs are kept at s3://, gs:// and az:// URLs, in obstore stores and on "
                "disks; at other URLs, bigpca reads rows alone. Give one of those, such as the path of a copy."
            )
        _check_names(url, path.rstrip("/"))
        # The last part is the prefix in the store of the folder around it, so that objects beside it can be reached.
        folder, slash, name = path.rstrip("/").rpartition("/")
        self.root, self.prefix = (url_of(scheme, folder), name) if slash else (url_of(scheme, name), "")

    @property
    def store(self) -> Store:
        """The obstore store in this process; keys there begin with :attr:`prefix`."""
        return self.sending(0)

    def sending(self, nbytes: int) -> Store:
        """Return the store by which a request sends so many bytes.

        NOTE: To a client, a connection is silent as long as bytes leave, so it waits for an answer for that long too.
        """
        check_not_forked()
        if self._held is not None:
            return self._held
        doubled = max(0, math.ceil(math.log2(1 + nbytes / SENT_RATE / SILENT_SECONDS)))
        return _opened(self.root, self.options, SILENT_SECONDS * 2**doubled)

    @property
    def url(self) -> str:
        """The URL as it was given, or that of the store; secrets included."""
        if self._held is None:
            return f"{self.root}/{self.prefix}".rstrip("/")
        name = type(self._held).__name__
        parts = (bucket_of(self._held) or f"{id(self._held):x}", getattr(self._held, "prefix", None) or "", self.prefix)
        scheme = (BUCKETS | {"MemoryStore": "memory-store"}).get(name, name)
        return url_of(scheme, "/".join(part for part in map(str, parts) if part))

    def describe(self, key: str = "") -> str:
        """Return the URL of the place, or of an object there, without secrets."""
        return public(f"{self.url}/{key}".rstrip("/"))

    def __repr__(self) -> str:
        return f"<ObjectStore {self.describe()}>"

    __str__ = describe

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.root, self.prefix, repr(sorted(self.options.items())), self.exclusive, id(self._held or None)

    def __dask_tokenize__(self) -> object:
        return "bigpca.ObjectStore", self.describe(), sorted(self.options.items())

    def __getstate__(self) -> dict[str, Any]:
        """Reject a store whose pickle would carry a secret over a network that others can read.

        Raises
        ------
        TypeError
        """
        self.check_sendable()
        return vars(self)

    def check_sendable(self) -> None:
        """Raise TypeError if this place cannot be sent to the workers of the present client."""
        held = self._held
        if held is None:
            return
        if type(held).__name__ == "MemoryStore":
            raise TypeError(
                f"{self.describe()} is in the memory of this process, where workers cannot reach it. Pass the URL of a "
                'store, or run without workers (dask.config.set(scheduler="threads")).'
            )
        found = None
        with suppress(KeyError, ValueError):  # not imported, or no client
            found = sys.modules["distributed"].default_client()
        address = getattr(getattr(found, "scheduler", None), "address", None)
        if address is not None and split_url(address)[0] not in ("tls", "wss", "inproc") and _has_secret(held):
            raise TypeError(
                f"the store of {self.describe()} carries its credentials, which would be sent to workers through "
                f"{address} without encryption. Pass the URL, and set the credentials in the environment of the "
                "workers; or use a cluster with TLS."
            )

    def at(self, key: str) -> ObjectStore:
        """Return the place of the objects below a key."""
        other = ObjectStore(self)
        other.prefix = self.key(key)
        _check_names(other.url, other.prefix)
        return other

    def openable(self) -> Any:
        """Return what readers open: the URL if it is all that they need, else the Zarr array or group here."""
        if self._held is None and not self.options:
            return self.url
        import zarr

        store = zarr.storage.ObjectStore(self.store, read_only=True)
        try:
            return self.request("read", "", lambda: zarr.open(store, path=self.prefix, mode="r"))
        except (FileNotFoundError, json.JSONDecodeError):  # which an object without bytes is
            raise FileNotFoundError(
                f"{self.describe()} is neither a Zarr array nor a group. Pass the URL of a table instead of a store."
            ) from None

    def key(self, key: str) -> str:
        """Return the key in the store of an object of this place."""
        return f"{self.prefix}/{key}".strip("/")

    def list(self, below: str = "") -> Iterator[Entry]:
        """Iterate over the objects below a key, in the order of their keys; one request per 1,000.

        The mark of a folder at the place itself (``m.zarr/``) is skipped: what it is called here is no object.
        """
        import obstore

        start = self.key("") + "/" if self.prefix else ""
        stream: Any = None
        last: str | None = None

        def following() -> Any:
            nonlocal stream
            stream = stream or obstore.list(self.store, self.key(below) or None, offset=last, chunk_size=LISTED)
            try:
                return next(stream, None)
            except BaseException:
                stream = None  # NOTE: after an error it only says that it has ended, as if that were all
                raise

        # Each batch is a request, and can be repeated alone: behind the last key that came.
        while batch := self.request("list", below, following):
            last = batch[-1]["path"]
            for facts in batch:
                size, change = change_of(facts)
                if len(facts["path"]) < len(start):
                    continue
                yield Entry(facts["path"][len(start) :], size, change, facts["e_tag"] or change or "")

    def survey(self, root: str | None = None) -> dict[str, Entry]:
        """Return all objects by key, except those without bytes: marks of folders, and what killed processes leave.

        With the ``root`` "", also the object at the place itself, which is in no listing below it.
        """
        found = {entry.key: entry for entry in self.list() if entry.size}
        itself = self.entry("") if root == "" else None
        return found | ({"": itself} if itself is not None else {})

    def entry(self, key: str) -> Entry | None:
        """Return what a listing shows of an object that has bytes; None without one; one request."""
        import obstore

        try:
            facts = self.request("look up", key, lambda: obstore.head(self.store, self.key(key)))
        except FileNotFoundError:
            return None
        size, change = change_of(facts)
        return Entry(key, size, change, facts["e_tag"] or change or "") if size else None

    def exists(self, key: str) -> bool:
        """Whether an object with bytes has this key; one request."""
        return self.entry(key) is not None

    def get(self, key: str) -> Content:
        """Return a whole object.

        Raises
        ------
        FileNotFoundError
        """
        import obstore

        def got() -> Content:
            found = obstore.get(self.store, self.key(key))
            facts, data = found.meta, bytes(found.bytes())
            if len(data) != facts["size"]:
                raise BusyError(f"only {len(data):,} of {facts['size']:,} bytes arrived")
            mark = dict(found.attributes).get(MARK, "")
            return Content(data, facts["e_tag"] or change_of(facts)[1] or "", str(mark))

        return self.request("get", key, got)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_etag: str | None = None, mark: str = "") -> str:
        """Put an object whole, and return its ETag.

        Parameters
        ----------
        if_absent : bool
            Only if no object with bytes has this key. If it has the same ones, an earlier try of this request put it,
            which is no error.
        if_etag : str or None
            Only if the object still has this ETag.
        mark : str
            Stored with the object: the run that wrote it.

        Raises
        ------
        OccupiedError
            If a condition does not hold; ``found`` is the object that is there.
        FileNotFoundError
            If the bucket does not exist, or with ``if_etag`` the object.
        """
        import obstore

        if len(data) > LARGEST_PUT:
            raise OutputWriteError(
                f"{self.describe(key)} would have {len(data):,} bytes, and one request puts at most {LARGEST_PUT:,}. "
                "Write scores as a Zarr array (.zarr), and larger files to a disk."
            )
        conditional = (if_absent or if_etag is not None) and self.conditions() == "enforced"
        mode: Any = "overwrite"
        if conditional:
            mode = "create" if if_absent else {"e_tag": if_etag}
        attributes: Any = {MARK: mark} if mark else None
        store = self.sending(len(data))

        def put() -> str:
            made = obstore.put(store, self.key(key), data, mode=mode, use_multipart=False, attributes=attributes)
            return made["e_tag"] or ""

        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return self.request("put", key, put)
            except _UnmetError:
                try:
                    found = self.get(key)
                except FileNotFoundError:
                    # Deleted since, or two writers at once (409): ask again.
                    if if_etag is not None or time.monotonic() > deadline:
                        raise
                    time.sleep(FIRST_PAUSE)
                    continue
                if found.data == data:
                    return found.etag
                if if_absent and not found.data:  # the mark of a folder, or what is left of an attempt
                    mode = {"e_tag": found.etag}
                    continue
                raise OccupiedError(f"{self.describe(key)} exists with other bytes", found) from None

    def fill(self, key: str, write: Callable[[Any], object], *, if_etag: str | None = None) -> int:
        """Put what a function writes to a file, like :meth:`put`, and return its size; all its bytes are in memory."""
        buffer = io.BytesIO()
        write(buffer)
        self.put(key, buffer.getvalue(), if_absent=if_etag is None, if_etag=if_etag)
        return buffer.tell()

    def opened(self, key: str) -> io.BytesIO:
        """Return an object as a file."""
        return io.BytesIO(self.get(key).data)

    @property
    def shared(self) -> bool:
        """True if the place can be sent to workers: see :meth:`check_sendable`."""
        self.check_sendable()
        return True

    def sweep(self) -> None:
        """Do nothing: an object is put whole."""

    def mark(self, key: str) -> str:
        """Return the mark of the run that put an object; raises like :meth:`get`."""
        import obstore

        part = self.request("get", key, lambda: obstore.get(self.store, self.key(key), options={"range": (0, 1)}))
        return str(dict(part.attributes).get(MARK, ""))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, as far as they exist; one request per 1,000 where the store can."""
        import obstore

        asked = [*keys]
        for first in range(0, len(asked), LISTED):
            some = asked[first : first + LISTED]
            names = [self.key(key) for key in some]
            try:
                self.request("delete", some[0], lambda names=names: obstore.delete(self.store, names))  # type: ignore[misc]
            except FileNotFoundError:  # stores in memory say so, and stop there
                for key in some if len(some) > 1 else ():
                    self.delete([key])

    def conditions(self) -> Conditions:
        """Return what the store does about conditional writes, found by creating one key twice; once per process.

        Returns
        -------
        {"enforced", "rejected", "ignored"}

        Raises
        ------
        OutputWriteError
            For a store that cannot be written.
        """
        known = (self.root, repr(sorted(self.options.items())), id(self._held or None))
        if known not in _CONDITIONS:
            _CONDITIONS[known] = self._probe()
        return _CONDITIONS[known]

    def _probe(self) -> Conditions:
        import obstore

        if type(self._held).__name__ == "LocalStore":  # its objects have no attributes for the mark of a run
            raise OutputWriteError(
                f"{self} is a folder on this machine, and obstore's LocalStore is only read. Pass its path instead."
            )
        key = f"{PROBE}{uuid.uuid4().hex}"

        def create() -> None:
            obstore.put(self.store, self.key(key), b"", mode="create", use_multipart=False)

        try:
            for _ in range(3):  # a run that published here may have deleted the first one
                self.request("put", key, create)
        except _UnsupportedError:
            return "rejected"
        except _UnmetError:
            return "enforced"
        finally:
            self.delete([key])
        return "ignored"

    def check_exclusive(self) -> None:
        """Raise OutputWriteError if two runs could write here at once and nobody has said that there is only one."""
        found = self.conditions()  # rejects a store that cannot be written, even if it is exclusive
        if found != "enforced" and not self.exclusive:
            raise OutputWriteError(
                f"the store of {self.describe()} {'rejects' if found == 'rejected' else 'ignores'} conditional writes, "
                "so nothing keeps two runs from writing one output at once. If only this run writes there, say so: "
                f"bigpca.ObjectStore({self.describe()!r}, exclusive=True)."
            )

    @property
    def whole(self) -> Store:
        """An obstore store with the keys of the place, for libraries that read metadata."""
        check_not_forked()
        return self._held if self._held is not None else _opened(self.url, self.options, SILENT_SECONDS)

    def busy(self, error: Exception, key: str, verb: str = "read") -> str:
        """Return why a request may be repeated; raise any other error with its remedy, without secrets.

        Errors are told apart by their class, and by the status in them.
        """
        from obstore import exceptions

        at, generic = self.describe(key), isinstance(error, exceptions.GenericError)
        status = _STATUS.search(str(error)) if generic else None
        code = int(status[1]) if status else 0
        if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
            raise _UnmetError(public(str(error))) from error
        if isinstance(error, exceptions.NotSupportedError | NotImplementedError) or code == 501:
            raise _UnsupportedError(_reason(error)) from error
        repeated = code in (408, 409, 429) or code >= 500 or (not code and "source: Builder" not in str(error))
        if isinstance(error, BusyError) or (generic and repeated):
            return brief(_reason(error), 300)
        if is_denied(error):
            raise denied(at, verb, _reason(error)) from error
        if isinstance(error, FileNotFoundError):
            if "NoSuchBucket" not in str(error) and verb not in ("put", "list"):
                raise FileNotFoundError(f"{at} does not exist.") from error
            raise NoBucketError(
                f"{at}: its bucket does not exist, or these credentials cannot see it. Create it, or check the name."
            ) from error
        if generic:
            raise (OutputWriteError if verb in WRITING else OSError)(
                f"{at}: the store could not {verb} it ({brief(_reason(error), 300)}). Check the address, the network "
                "and the credentials of this process."
            ) from error
        with without_credentials(self.url):
            raise error
        raise AssertionError("unreachable")

    def request(self, verb: str, key: str, call: Callable[[], T]) -> T:
        """Make one request, repeated while the store is busy or out of reach.

        The tries end once all but the longest, and the pauses, have taken ``RETRY_SECONDS``: a long transfer that
        breaks is so repeated once, and a store that is silent is left after less than a minute.
        """
        began = last = time.monotonic()
        pause, longest = FIRST_PAUSE, 0.0
        while True:
            try:
                return call()
            except Exception as error:
                why, now = self.busy(error, key, verb), time.monotonic()
                longest = max(longest, now - last)
                if now - began - longest >= RETRY_SECONDS:
                    if is_denied(error):  # where credentials are asked for, nobody answers
                        raise denied(self.describe(key), verb, why) from error
                    raise (OutputWriteError if verb in WRITING else UnansweredError)(
                        f"{self.describe(key)}: the store could not {verb} it for {now - began:.0f} s "
                        f"({why}). Check the address and the network, and run it again"
                        f"{': it resumes' if verb in WRITING else ''}."
                    ) from error
            time.sleep(pause * (0.5 + random.random() / 2))  # by chance, as many workers may ask at once
            last, pause = time.monotonic(), min(2 * pause, LONGEST_PAUSE)


def _check_names(url: str, path: str) -> None:
    """Raise ValueError for parts of a path that stores of objects keep as no names: a client would leave a prefix."""
    for name in path.split("/") if path else ():
        if name in ("", ".", "..") or re.search(r"[\x00-\x1f\x7f]", name):
            raise ValueError(
                f"{brief(public(url))} has the part {brief(repr(name))}, but the parts of a URL are names of objects: "
                "not empty, not '.' or '..', and without control characters. Write the path that is meant."
            )


class BusyError(OSError):
    """The store is busy or cannot be reached: worth another try."""


class NoBucketError(FileNotFoundError):
    """There is no such bucket, unlike an object that a bucket does not have."""


class _UnmetError(OSError):
    """The condition of a write does not hold."""


class _UnsupportedError(OSError):
    """The store does not know this kind of request."""


def _reason(error: BaseException) -> str:
    """Return the part of an error of obstore that a person can use."""
    text = public(str(error))
    code, said = re.search(r"<Code>(\w+)</Code>", text), re.search(r"<Message>([^<]*)</Message>", text)
    if code:
        return f"{code[1]}: {said[1]}" if said else code[1]
    return text.partition("\n")[0].partition(" Debug source:")[0]


def check_not_forked() -> None:
    """Raise RuntimeError in a forked child of a process that has used object stores.

    The threads that wait for answers do not survive a fork, but their epoll descriptor does, and is shared: a request
    of the child would wait for ever, and so would its parent's, which gets the events of the child's connection.
    """
    if not _PROCESS:
        _PROCESS.append(os.getpid())
    if _PROCESS[0] != os.getpid():
        raise RuntimeError(
            f"this process ({os.getpid()}) was forked from one that has used object stores ({_PROCESS[0]}), whose "
            'connections do not survive a fork. Start it by multiprocessing.get_context("spawn"), or fork before the '
            "first URL is opened."
        )


def _opened(root: str, options: dict[str, Any], silent: float) -> Store:
    """Return this process's store of a URL, which keeps its connections; another one once the environment changes.

    A store has read endpoint and credentials from there: one of an earlier endpoint would be asked for nothing.
    Connections are dead after ``silent`` seconds.
    """
    settings = [item for item in os.environ.items() if item[0].startswith(_SETTINGS)]
    key = root, repr(sorted(options.items())), hash(tuple(sorted(settings))), silent
    with _LOCK:
        if key not in _STORES:
            from obstore.store import from_url

            retries: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}  # the rest is ours
            # Who names an address without TLS, here or in the environment, means it.
            plain = split_url(str(options.get("endpoint", _endpoint(root))))[0] == "http"
            limits = {"timeout": TRANSFER_SECONDS, "read_timeout": silent}
            client: Any = {name: timedelta(seconds=seconds) for name, seconds in limits.items()}
            client |= {"allow_http": True} if plain else {}
            client |= {name: options[name] for name in CLIENT_OPTIONS if name in options}
            own = {name: value for name, value in options.items() if name not in client} | _found_credentials(root)
            if plain and root.startswith("gs"):  # an emulator, as Google's own client finds it
                nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
                emulator = {"gcs_base_url": _endpoint(root), "disable_oauth": True, **nobody}
                own["service_account_key"] = json.dumps(emulator)
            with without_credentials(root):
                address = url_of(split_url(root)[0], quote(split_url(root)[1]))  # a percent sign is one of the name
                _STORES[key] = from_url(address, retry_config=retries, client_options=client or None, **own)
    return _STORES[key]


def _endpoint(root: str) -> str:
    """Return the address of a server of S3 in this process's environment, by the name that other clients give it."""
    known = {"s3": ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"], "gs": ["STORAGE_EMULATOR_HOST"]}
    return next((os.environ[name] for name in known.get(root[:2], []) if os.environ.get(name)), "")


def _found_credentials(root: str) -> dict[str, Any]:
    """Return the provider of the credentials in shared profiles of AWS, which obstore does not read itself."""
    profiles = os.environ.get("AWS_PROFILE") or any(
        os.path.exists(os.path.expanduser(f"~/.aws/{name}")) for name in ("credentials", "config")
    )
    if not root.startswith("s3") or not profiles or os.environ.get("AWS_ACCESS_KEY_ID") or find_spec("boto3") is None:
        return {}
    import boto3  # type: ignore[import-untyped,unused-ignore]
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    region = {} if session.region_name is None else {"region": session.region_name}
    return {"credential_provider": Boto3CredentialProvider(session), **region}


def _is_secret(name: str) -> bool:
    return SECRET.search(name.lower()) is not None and not name.lower().endswith(NO_SECRET)


def _has_secret(store: Any) -> bool:
    try:
        held = getattr(store, "credential_provider", None) is not None
        return held or any(_is_secret(str(name)) for name in getattr(store, "config", {}))
    except BaseException as error:  # pyo3's PanicException, of a store with options of its client, is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return True
