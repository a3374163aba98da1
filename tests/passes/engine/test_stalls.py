"""A worker that is stopped, or whose read never ends, holds nobody up: it is named, and its groups are read by others
too.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import bigpca as bp
from bigpca.passes.engine.cluster import watch
from bigpca.passes.engine.run import Run
from bigpca.passes.rows import Rows
from tests.passes.conftest import start_cluster
from tests.passes.kit import Moments, bits, folded, logged, moments_of, normal, reads_in, write_store

N, D = 2000, 16
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("small_groups")]


def fold_with(X: Any, seconds: float) -> tuple[Moments, list[str]]:
    """Fold as fits do, with a limit of so many seconds; also the warnings."""
    rows = Rows.of(X)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = folded(rows, Moments(D), Run(stalled_seconds=seconds), name="moments").state
    return found, [str(one.message) for one in told if str(one.message).startswith("worker ")]


@contextmanager
def when(condition: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Act in another thread as soon as a condition holds."""

    def run() -> None:
        deadline = time.monotonic() + 600
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)


def test_a_stopped_worker_is_named_and_its_groups_are_read_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = tmp_path / "x.zarr", tmp_path / "log"
    write_store(store, normal(N, D), (25, D))
    expected = bits(moments_of(logged(store, tmp_path / "before")))
    X = logged(store, log, delay=0.05)
    with start_cluster(2) as cluster, Client(cluster) as client:
        stopped = sorted(client.run(os.getpid).items())[0]
        try:
            with when(lambda: len(reads_in(log)) > 8, lambda: os.kill(stopped[1], signal.SIGSTOP)):
                found, told = fold_with(X, 3)
            monkeypatch.setattr(watch, "ANSWER_SECONDS", 2)
            with pytest.raises(TimeoutError, match=f"^worker {stopped[0]} did not answer within 2 s"):
                watch.check_visible(client, str(tmp_path))
        finally:
            os.kill(stopped[1], signal.SIGCONT)
    assert bits(found) == expected
    assert any(f"worker {stopped[0]} has been silent for " in one for one in told)
    assert any("These rows are read by other workers too." in one for one in told)


def test_a_worker_that_stopped_before_rows_are_counted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch.ANSWER_SECONDS + max(watch.NAMING_SECONDS, watch.LOOK_SECONDS) < 60  # within a minute
    assert min(watch.ANSWER_SECONDS, watch.LOST_SECONDS) > 45  # for which a scheduler may pause
    X, told = da.from_array(normal(N, D), chunks=(100, D)), list[str]()
    with start_cluster(2) as cluster, Client(cluster) as client:
        before = bp.PCA(2).fit(X[X[:, 0] > 0])  # the workers are known from now on, and not asked again
        who, process = sorted(client.run(os.getpid).items())[0]
        monkeypatch.setattr(watch, "ANSWER_SECONDS", 5)
        monkeypatch.setattr(watch, "LOOK_SECONDS", 0.2)
        monkeypatch.setattr(warnings, "warn", lambda text, *_, **options: told.append(str(text)))
        os.kill(process, signal.SIGSTOP)
        with when(lambda: any(who in one for one in told), lambda: os.kill(process, signal.SIGCONT)):
            found = bp.PCA(2).fit(X[X[:, 0] > 0] * 1)
    assert any(one.startswith(f"worker {who} has been silent for ") for one in told)
    np.testing.assert_allclose(found.explained_variance_, before.explained_variance_)


def test_a_worker_whose_read_never_ends_is_named_and_its_groups_are_read_elsewhere(tmp_path: Path) -> None:
    store, log, gate = tmp_path / "x.zarr", tmp_path / "log", tmp_path / "gate"
    write_store(store, normal(N, D), (25, D))
    with start_cluster(2) as cluster, Client(cluster) as client:
        unhindered, _ = fold_with(logged(store, tmp_path / "before"), 60)  # in it workers import what segments need
        stuck = sorted(client.run(os.getpid).items())[0]
        X = logged(store, log, delay=0.02, gate=str(gate), gate_row=N // 2, gate_process=stuck[1])
        try:
            found, told = fold_with(X, 2)
        finally:
            gate.touch()
    assert bits(found) == bits(unhindered)
    assert any(f"worker {stuck[0]} has finished nothing for " in one and ", and has group " in one for one in told)
