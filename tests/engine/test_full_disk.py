"""A checkpoint on a full disk is rejected at the start; one that fills up in mid-run is warned of, and the run goes
on.
"""

from pathlib import Path

import dask
import pytest
from distributed import Client

import bigpca as bp
from bigpca.engine.checkpoint import Checkpoint
from bigpca.engine.events import CheckpointEvent, Event, RetryEvent
from tests.engine.conftest import fill_disk
from tests.passes.kit import bits, moments_of, rows_read

N, D = 2000, 16
pytestmark = pytest.mark.usefixtures("small_groups", "one_thread")


def test_a_disk_full_from_the_start_is_rejected_before_any_read(small_disk: Path) -> None:
    fill_disk(small_disk, leave=0)
    with pytest.raises(
        bp.errors.CheckpointError, match=r"cannot be written \(OSError: .*No space left.*: free some space"
    ):
        Checkpoint(small_disk / "c", {"run": 1})


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_a_disk_that_fills_up_is_warned_of_once_and_the_run_continues_to_the_same_bits(
    scheduler: str, store: Path, small_disk: Path
) -> None:
    expected = bits(moments_of(bp.open(store)))

    def fill(event: Event) -> None:
        if isinstance(event, CheckpointEvent) and event.segment == 10:
            fill_disk(small_disk, leave=0)

    with (
        dask.config.set(scheduler=scheduler),
        pytest.warns(UserWarning, match=r"cannot be written any more \(OSError: .*No space left") as caught,
    ):
        assert bits(moments_of(bp.open(store), checkpoint=small_disk / "c", progress=fill)) == expected
    assert len(caught) == 1
    (small_disk / "filler").unlink()
    events: list[Event] = []
    assert bits(moments_of(bp.open(store), checkpoint=small_disk / "c", progress=events.append)) == expected
    assert rows_read(events) < N


@pytest.mark.cluster
@pytest.mark.parametrize("way", ["workers write", "client writes", "states stay on the workers"])
def test_a_disk_that_fills_up_on_a_cluster_is_warned_of_once_and_the_run_continues_to_the_same_bits(
    way: str, store: Path, small_disk: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bits(moments_of(bp.open(store)))
    if way == "client writes":
        monkeypatch.setattr("bigpca.engine.cluster.run._workers_see", lambda client, directory: False)
    if way == "states stay on the workers":
        monkeypatch.setattr("bigpca.engine.cluster.run.CLIENT_BYTES", 0)
    events: list[Event] = []

    def fill(event: Event) -> None:
        events.append(event)
        if isinstance(event, CheckpointEvent) and event.segment == 10:
            fill_disk(small_disk, leave=0)

    with (
        dask.config.set(scheduler=client.get),
        pytest.warns(UserWarning, match=r"cannot be written any more \(OSError: .*No space left") as caught,
    ):
        assert bits(moments_of(bp.open(store), checkpoint=small_disk / "c", progress=fill)) == expected
    assert len(caught) == 1
    assert [e.reason for e in events if isinstance(e, RetryEvent)] == ["checkpoint not writable"]
    assert rows_read(events) < 2 * N
