"""Fixtures of all rooms: one cluster for tests that leave it whole, data cut as if it were large, counted reads."""

import faulthandler
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from _pytest.faulthandler import fault_handler_stderr_fd_key
from distributed import Client
from distributed.utils import get_mp_context
from obstore.store import MemoryStore
from snailmail import ObjectStore as Server
from snailmail import StoreBehavior
from threadpoolctl import threadpool_limits

from bigpca.data import batches
from bigpca.engine import layout
from bigpca.estimators import HOMES
from bigpca.passes.reading import blocks, readers
from bigpca.storage.places import ObjectStore
from tests.engine.conftest import small_disk as small_disk
from tests.engine.conftest import start_cluster
from tests.operators.counting import Reads
from tests.passes.kit import normal, write_store

# Files whose few tests take long, the longest first.
LONG = (
    "test_stalls.py", "test_waiting.py", "test_chaos.py", "test_traffic.py", "test_notebook.py", "test_network.py",
    "test_scheduler.py", "test_cluster.py", "test_kills.py", "test_elastic.py", "test_workers.py", "test_joining.py",
    "test_measured_peaks.py", "test_examples.py", "test_every_line.py", "test_benchmarks.py", "test_blas_threads.py",
    "test_processes.py",
)  # fmt: skip
_watched = -60.0  # when the watch over this process began
PRELOADED = [
    "distributed", "pandas", "scipy.linalg", "zarr", "tests.passes.kit", "bigpca.cli.commands",
    *HOMES,
]  # fmt: skip


def _from_zarr(url: Any, component: str | None = None, **options: Any) -> da.Array:
    """Dask's array expressions have no ``from_zarr`` yet, and no ``__array__``: the same, by ``from_array``."""
    stored = url if hasattr(url, "chunks") else zarr.open(url, path=component, mode="r")
    return da.from_array(stored, **{"chunks": stored.chunks, **options})


if da.array_expr_enabled():
    da.from_zarr = _from_zarr
    da.Array.__array__ = lambda self, dtype=None, copy=None: np.asarray(self.compute(), dtype)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """With Dask's array expressions on, skip tests that use what Dask itself does not have yet, and name it.

    A test that fails inside bigpca fails.
    """
    report = yield
    found = call.excinfo
    if da.array_expr_enabled() and found is not None and found.errisinstance((NotImplementedError, AttributeError)):
        paths, last = [str(entry.path) for entry in found.traceback], found.traceback[-1]
        own = any("/bigpca/" in path and "/tests/" not in path for path in paths)
        if not own and ("/dask/" in paths[-1] or "'Array' object has no attribute" in str(found.value)):
            reason = f"Dask's array expressions do not have this: {last.path.name}:{last.lineno} {found.exconly()}"
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, reason)
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist keep the order of ``pytest_collection_modifyitems``, and its processes keep what they compile.

    Where a container says PYTHONDONTWRITEBYTECODE, each process would compile the package and all tests again. All
    multiply and solve with one BLAS thread, children too: these matrices are small, and threads that wait for each
    other on a busy machine take several times as long. The first process would take most of a device's memory for JAX.
    """
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "BIGPCA_SOLVE_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if cache := getattr(config, "cache", None):
        os.environ["NUMBA_CACHE_DIR"] = str(cache.mkdir("numba"))  # what one process compiled, the next loads
    threadpool_limits(1, user_api="blas")
    config.option.loadscopereorder = False
    if config.getoption("numprocesses", None):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# A test a line, or a file below tests/; tests/mutants/README.md says what they find.
QUICK = frozenset(Path(__file__).with_name("quick.txt").read_text(encoding="utf-8").splitlines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that processes end together; then those with most tests.

    Of a failure that is expected only the reason is printed: its traceback is not laid out, which takes half a second.
    """
    for item in items:
        if item.get_closest_marker("xfail"):
            item.repr_failure = lambda excinfo, style=None: excinfo.exconly()
        if item.nodeid in QUICK or item.nodeid.partition("::")[0].removeprefix("tests/") in QUICK:
            item.add_marker("quick")
    count = Counter(item.path for item in items)
    rank = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: (rank.get(item.path.name, len(LONG)), -count[item.path], item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Collect without garbage collection, which would look at all tests again and again and find nothing to free."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()  # trees of the files that pytest has compiled
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without a test on a cluster where only these are to run."""
    if config.option.markexpr != "cluster" or collection_path.suffix != ".py":
        return None
    return b"mark.cluster" not in collection_path.read_bytes() or None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End a process that hangs where no signal is handled: print the stacks after 20 minutes, or its limit, and exit.

    The clock starts anew once a minute, not for each test as pytest's own ``faulthandler_timeout`` has it: stopping it
    waits for its thread, several milliseconds on a busy machine.
    """
    global _watched
    limit = item.get_closest_marker("timeout")
    longer = 0 if limit is None else limit.args[0] - 900
    if longer > 0 or monotonic() > _watched + 60:
        file = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(1200 + max(0, longer), exit=True, file=file)
        _watched = monotonic()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """End a process that a thread keeps after its last test: print the stacks after five minutes, and exit."""
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)


@pytest.fixture(autouse=True, scope="session")
def _quiet_process() -> Iterator[None]:
    """Look at no stacks of threads, which may wait for ever before Python 3.11.9 (see bigpca/blas.py). Force no file to
    the disk: a process that dies leaves what it wrote to the system. Lay out 16 GiB for an unknown number of rows: a
    TiB of narrow ones takes a second. Try reads that fail again at once.
    """
    with pytest.MonkeyPatch.context() as patch, dask.config.set({"distributed.worker.profile.enabled": False}):
        patch.setenv("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")  # of child processes
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(batches, "OPEN_BYTES", 1 << 34)
        patch.setattr(readers, "PAUSE", 0.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def _forked_workers(_quiet_process: None) -> Iterator[None]:
    """Fork workers from one process that has imported what they need: a worker then starts in 0.1 instead of 2 seconds.

    By default nannies start each in a fresh interpreter: processes that tests run as a user would still do.
    """
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context()  # Dask names its own packages here, once
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports whose figures have no SVG, for tests of other things: each takes a tenth of a second."""
    monkeypatch.setattr("bigpca.report.page.svg_of", lambda figure, name: "<svg></svg>")


@pytest.fixture
def two_blas_threads() -> Iterator[None]:
    """Two in this process, so that it shows whether they come back after a fold."""
    with threadpool_limits(2, user_api="blas"):
        yield


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Client]:
    """A client, not the default one, of two workers of one thread; for tests that kill nothing."""
    levels = {handler: handler.level for handler in logging.getLogger("distributed").handlers}
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        for handler, level in levels.items():  # pytest's, which the cluster silences as long as it lives
            handler.setLevel(level)
        yield client


def settle(server: Server) -> None:
    """Wait until the server has logged what it has answered."""
    for _ in range(1000):
        if not server.middleware._in_flight:
            return
        time.sleep(0.001)
    server.middleware._in_flight = 0  # connections that were reset are not counted down


@pytest.fixture(scope="session")
def object_server() -> Iterator[Server]:
    """An S3 server in this process with an empty bucket "rows", which logs requests and can be told to misbehave.

    Its credentials are in the environment, where they stay to the end of the session, since clients are kept.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with Server(bucket="rows") as server, pytest.MonkeyPatch.context() as patch:
        own = {
            "ACCESS_KEY_ID": "key",
            "SECRET_ACCESS_KEY": "secret",
            "DEFAULT_REGION": "us-east-1",
            "ENDPOINT_URL": server.endpoint_url,
            "ALLOW_HTTP": "true",
        }
        for name, value in own.items():
            patch.setenv(f"AWS_{name}", value)
        # For each request it tries 180 names of services, and in each listing it parses the time of every object.
        found, app = import_module("moto.core.serialize"), server.middleware.app
        patch.setattr(app, "get_backend_for_host", cache(app.get_backend_for_host))
        patch.setattr(found, "parse_to_aware_datetime", cache(found.parse_to_aware_datetime))
        yield server


@pytest.fixture
def bucket(object_server: Server) -> str:
    """The address of the S3 server."""
    return object_server.endpoint_url


PLACES = ("memory", "enforces", "rejects", "ignores")  # in this process's memory; what S3 does about conditions
everywhere = pytest.mark.parametrize("place", ["local", *PLACES], indirect=True)
local_or_memory = pytest.mark.parametrize("place", ["local", "memory"], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A new path ("local"), or an empty object prefix; where conditions do not hold, for this run alone."""
    kind = getattr(request, "param", "enforces")
    if kind in ("local", "memory"):
        yield tmp_path / "out.zarr" if kind == "local" else ObjectStore(MemoryStore()).at("out.zarr")
        return
    server = request.getfixturevalue("object_server")
    server.set_behavior(StoreBehavior(conditional_writes=kind.removesuffix("s")))
    yield ObjectStore(f"s3://rows/{kind}/{tmp_path.name}/out.zarr", exclusive=kind in ("rejects", "ignores"))
    server.set_behavior(StoreBehavior())


@pytest.fixture
def client(two_workers: Client) -> Iterator[Client]:
    """The shared client as the one that Dask uses in this test."""
    with two_workers.as_current():
        yield two_workers


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run passes in this thread."""
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As many rows and columns as N and D of the file say, in chunks of 25 rows."""
    write_store(tmp_path / "x.zarr", normal(request.module.N, request.module.D), (25, request.module.D))
    return tmp_path / "x.zarr"


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data as if it were large: 80 groups in 64 segments where the chunks allow."""
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(layout, "MIN_GROUPS", 80)


@pytest.fixture
def float32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply float32 data in float32, and evaluate its kernels, as large passes do."""
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads().watch(monkeypatch)
