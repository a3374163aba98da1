"""Wherever an interrupt comes, it leaves no task on the scheduler, although IPython keeps the traceback."""

import asyncio
import os
import threading
import uuid
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import distributed.client
import numpy as np
import pytest
from distributed import Client

import bigpca as bp
from bigpca.engine import cluster
from bigpca.engine.cluster import run
from bigpca.engine.cluster.tasks import awaited
from tests.interrupts import Interrupt, Line, lines_of
from tests.passes.kit import moments_of, normal, tasks_on, wait_for_none, write_store

ENGINE = os.path.dirname(cluster.__file__)
SUBMITTING = ("submit_segment", "get")


def within(frame: FrameType) -> bool:
    """The engine's part for clusters, and what the client does while a segment is submitted."""
    name, caller = frame.f_code.co_filename, frame.f_back
    submits = name == distributed.client.__file__ and caller is not None and caller.f_code.co_name in SUBMITTING
    return name.startswith(ENGINE) or submits


def gathered(X: Any, path: Path) -> None:
    moments_of(X)


def stored(X: Any, path: Path) -> None:
    moments_of(X, checkpoint=path / f"checkpoint-{uuid.uuid4().hex}")


def kept_on_workers(X: Any, path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CLIENT_BYTES", 0)
        moments_of(X)


def broadcast(X: Any, path: Path) -> None:
    bp.PCA(1, solver="krylov", random_state=0).fit(X)


def computed_before(X: Any, path: Path) -> None:
    X = X.rechunk((25, 4))
    bp.PCA(1, solver="covariance").fit(X - X.mean(axis=0))


WORKS = (gathered, stored, kept_on_workers, broadcast, computed_before)


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_an_interrupt_at_any_line_leaves_no_task(tmp_path: Path, client: Client) -> None:
    X = bp.open(write_store(tmp_path / "x.zarr", normal(50, 4), (25, 4)))
    before = tasks_on(client).keys()
    raised: dict[Line, BaseException | None] = {}  # None where a run did not come to the line again
    for work in WORKS:
        run_it = partial(work, X, tmp_path)
        raised |= {
            line: Interrupt(within, line).during(run_it) for line in lines_of(run_it, within) if line not in raised
        }
    assert sum(error is not None for error in raised.values()) > 0.9 * len(raised)
    assert {type(error) for error in raised.values() if error is not None} == {KeyboardInterrupt}
    wait_for_none(lambda: tasks_on(client).keys() - before)
    for work in WORKS:
        work(X, tmp_path)
    wait_for_none(lambda: tasks_on(client).keys() - before)


@pytest.mark.cluster
def test_an_interrupted_or_slow_wait_leaves_the_call_running(client: Client) -> None:
    """A gather that is cancelled before its first step makes every later gather of the client fail."""
    began, ended = [], threading.Event()

    async def call() -> str:
        began.append(1)
        await asyncio.sleep(0.3)
        ended.set()
        return "result"

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert awaited(client, call, lambda: None, 0.01) == "result"
    ended.clear()
    with pytest.raises(KeyboardInterrupt):
        awaited(client, call, interrupt, 0.01)
    assert ended.wait(600)
    assert len(began) == 2


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_a_result_that_the_caller_persisted_outlives_a_fit_that_needs_it(tmp_path: Path, client: Client) -> None:
    A = normal(50, 4)
    X = bp.open(write_store(tmp_path / "x.zarr", A, (25, 4))).rechunk((25, 4))
    mean = X.mean(axis=0)
    persisted = mean.persist()
    bp.PCA(1, solver="covariance").fit(X - mean)  # computes the mean under the same key
    np.testing.assert_allclose(persisted.compute(), A.mean(axis=0), rtol=1e-6)
