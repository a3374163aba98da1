"""A hundred thousand chunks: graphs are sent in windows, and neither client nor scheduler holds all of them."""

import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from distributed import Client

import bigpca as bp
from bigpca.data.dask_arrays import open_source
from bigpca.data.source import Source, Stamp
from bigpca.engine import layout
from bigpca.engine.events import Event, GroupEvent
from tests.passes.kit import moments_of, rows_read

CHUNKS, ROWS, D = 100_000, 4, 16
GROUPS = 300
pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class CountingRows(Source):
    """A store of many small chunks that nobody wrote: every entry of row i is i modulo 8."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("f4")

    def row_chunks(self) -> tuple[int, ...]:
        return (ROWS,) * CHUNKS

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        rows = np.arange(start, stop, dtype=np.float32) % 8
        return np.repeat(rows[:, None], columns[1] - columns[0], axis=1)

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        return []

    def details(self) -> dict[str, Any]:
        return {}


def test_100000_chunks_are_folded_with_few_tasks_at_a_time_and_little_memory_in_the_client(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(layout, "MIN_GROUPS", GROUPS)
    events: list[Event] = []
    known: list[int] = []

    def look(event: Event) -> None:
        events.append(event)
        if isinstance(event, GroupEvent) and len(events) % 10 == 0:
            known.append(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))

    X = open_source(CountingRows((CHUNKS * ROWS, D), format="counting"))
    tracemalloc.start()
    try:
        found = moments_of(X, progress=look, workers_timeout=600)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.count == rows_read(events) == CHUNKS * ROWS
    np.testing.assert_allclose(found.mean, 3.5, rtol=1e-12)
    assert len(known) >= 5
    assert max(known) <= 150  # segments of 16 groups and their merges, a few at a time: not 600
    assert most <= 60 << 20


def test_the_plan_of_100000_chunks_is_made_without_a_task_for_each() -> None:
    X = open_source(CountingRows((CHUNKS * ROWS, D), format="counting"))
    assert bp.PCA(3, solver="covariance").plan(X).tasks <= 2000
