"""Wherever an interrupt comes, it leaves no task on the scheduler, although IPython keeps the traceback."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import distributed.client
import numpy as np
import pytest
from distributed import Client

import bigpca as bp
from bigpca.passes.engine import cluster
from bigpca.passes.engine.cluster import run
from tests.passes.kit import moments_of, normal, tasks_on, wait_for_none, write_store

ENGINE = os.path.dirname(cluster.__file__)
SUBMITTING = ("submit_segment", "get")
Line = tuple[str, int]


class Interrupt:
    """A trace function that raises KeyboardInterrupt at a line of the engine's part for clusters.

    Or at one of ``distributed`` while a segment is submitted. Without a line it only notes all of them.
    """

    def __init__(self, at: Line | None = None) -> None:
        self.at = at
        self.lines: dict[Line, None] = {}  # in the order in which they are executed first

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        submits = name == distributed.client.__file__ and frame.f_back and frame.f_back.f_code.co_name in SUBMITTING
        return self._line if name.startswith(ENGINE) or submits else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        line = frame.f_code.co_filename, frame.f_lineno
        self.lines[line] = None
        if line == self.at:
            sys.settrace(None)
            raise KeyboardInterrupt(line)
        return self._line


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


def traced(work: Callable[[Any, Path], None], X: Any, path: Path, interrupt: Interrupt) -> KeyboardInterrupt | None:
    """Return the interrupt, with its traceback, or None if the work ended without one."""
    sys.settrace(interrupt)
    try:
        work(X, path)
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(None)
    return None


WORKS = (gathered, stored, kept_on_workers, broadcast, computed_before)


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_an_interrupt_at_any_line_leaves_no_task(tmp_path: Path, client: Client) -> None:
    X = bp.open(write_store(tmp_path / "x.zarr", normal(50, 4), (25, 4)))
    before = tasks_on(client).keys()
    raised: dict[Line, KeyboardInterrupt | None] = {}  # None where a run did not come to the line again
    for work in WORKS:
        traced(work, X, tmp_path, Interrupt())  # has the lines that only the first run of a process executes
        every = Interrupt()
        assert traced(work, X, tmp_path, every) is None
        raised |= {line: traced(work, X, tmp_path, Interrupt(line)) for line in every.lines if line not in raised}
    assert sum(error is not None for error in raised.values()) > 0.9 * len(raised)
    wait_for_none(lambda: tasks_on(client).keys() - before)
    for work in WORKS:
        work(X, tmp_path)
    wait_for_none(lambda: tasks_on(client).keys() - before)


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_a_result_that_the_caller_persisted_outlives_a_fit_that_needs_it(tmp_path: Path, client: Client) -> None:
    A = normal(50, 4)
    X = bp.open(write_store(tmp_path / "x.zarr", A, (25, 4))).rechunk((25, 4))
    mean = X.mean(axis=0)
    persisted = mean.persist()
    bp.PCA(1, solver="covariance").fit(X - mean)  # computes the mean under the same key
    np.testing.assert_allclose(persisted.compute(), A.mean(axis=0), rtol=1e-6)
