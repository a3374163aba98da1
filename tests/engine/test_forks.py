"""A forked child of a process that has fitted fits by itself, or says why it cannot; it never waits
for its parent's threads.
"""

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import bigpca as bp
from bigpca.blas import one_blas_thread
from bigpca.storage import places
from bigpca.storage.places import ObjectStore
from bigpca.storage.requests import Request, requests
from tests.passes.kit import normal, write_store

pytestmark = [
    pytest.mark.usefixtures("small_groups"),
    pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning"),
]
X = da.from_array(normal(400, 8), chunks=(50, 8))


def in_a_fork(work: Callable[[], Any]) -> str:
    """Return what ``work`` gives in a forked child, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(100)  # a child that waits for ever ends
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def fitted() -> float:
    model = bp.PCA(2).fit(X)
    return float(np.abs(model.transform(X)).sum().compute() + model.explained_variance_.sum())


def test_a_fork_of_a_process_that_has_fitted_gives_the_same_answer() -> None:
    assert in_a_fork(fitted) == str(fitted())
    assert in_a_fork(fitted) == str(fitted())  # now that Dask's threads are there


def test_a_fork_during_a_fold_of_another_thread_does_not_wait_for_it() -> None:
    folding, leave = threading.Event(), threading.Event()

    def fold() -> None:
        with one_blas_thread():
            folding.set()
            leave.wait(600)

    expected = str(fitted())
    thread = threading.Thread(target=fold, daemon=True)
    thread.start()
    folding.wait(600)
    said = in_a_fork(fitted)
    leave.set()
    thread.join(60)
    assert said == expected


def test_a_fork_of_a_process_with_a_client_says_that_it_cannot_use_it(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", normal(200, 8), (25, 8))
    with LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as cluster, Client(cluster) as client:
        said = in_a_fork(lambda: bp.PCA(2).fit(tmp_path / "x.zarr"))
    assert said.startswith("RuntimeError: this process (")
    assert f"was forked from one that has a Dask client ({client.id}), which does not survive a fork" in said


@pytest.mark.usefixtures("object_server")
def test_a_fork_of_a_process_that_uses_object_stores_says_that_it_cannot_and_its_parent_goes_on(tmp_path: Path) -> None:
    """A request of the child would be registered with the epoll descriptor of its parent, which would wait for ever."""
    place, wanted = ObjectStore(f"s3://rows/{tmp_path.name}"), [Request("c/0", 4)] * 20
    place.put("c/0", b"1234")
    left = requests().each(place, wanted)
    next(left)

    def forget() -> str:
        nonlocal left
        places._STORES.clear()
        requests.__globals__["_REQUESTS"].clear()
        del left
        return f"{gc.collect() > -1}"

    works: list[Callable[[], Any]] = [
        lambda: bp.open(str(place)), lambda: place.put("d", b""), lambda: requests().all(place, wanted), forget
    ]  # fmt: skip
    for work in works:
        said = in_a_fork(work)
        assert said == "True" or "was forked from one that has used object stores" in said
        assert len(requests().all(place, wanted)) == 20
    assert len(list(left)) == 19
