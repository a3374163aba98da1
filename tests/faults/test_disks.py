"""Full disks: under an output it is an error that leaves nothing visible and resumes; under Dask's spill it is no
matter.
"""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import bigpca as bp
from bigpca.engine.events import Event, GroupEvent
from tests.engine.conftest import fill_disk, on_cluster
from tests.faults.kit import wait_until
from tests.passes.kit import bits, moments_of, normal, rows_read, write_store

N, D = 4000, 32
pytestmark = pytest.mark.usefixtures("small_groups")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "x.zarr", normal(N, D), (50, D))
    return tmp_path / "x.zarr"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no file beyond ``size`` bytes, as ``ulimit -f`` does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.cluster
@pytest.mark.parametrize("scheduler", ["threads", "cluster"])
def test_a_disk_that_fills_up_under_scores_leaves_nothing_visible_and_a_rerun_continues(
    scheduler: str, store: Path, small_disk: Path, tmp_path: Path, client: Client
) -> None:
    model = bp.PCA(D, solver="covariance").fit(normal(N, D))
    out = small_disk / "scores.zarr"
    seen: list[Event] = []

    def fill(event: Event) -> None:
        seen.append(event)
        if sum(isinstance(e, GroupEvent) for e in seen) == 5:
            fill_disk(small_disk, leave=0)

    with dask.config.set(scheduler=client.get if scheduler == "cluster" else scheduler):
        with pytest.raises(OSError, match=r"chunk \d+ of .* \(No space left .* Free space, .* and rerun") as caught:
            model.transform(bp.open(store), out=out, progress=fill)
        assert caught.value.errno == errno.ENOSPC
        assert not out.exists()
        assert not Path(f"{out}.lock").exists()
        (small_disk / "filler").unlink()
        events: list[Event] = []
        scores = model.transform(bp.open(store), out=out, progress=events.append)
    assert 0 < rows_read(events) < N
    # Written too: lazy scores are products of other numbers of rows, which some CPUs round in another way.
    uninterrupted = model.transform(bp.open(store), out=tmp_path / "uninterrupted.zarr")
    np.testing.assert_array_equal(scores.compute(), uninterrupted.compute())
    assert [path.name for path in small_disk.iterdir()] == ["scores.zarr"]


def test_a_limit_on_the_size_of_files_is_an_error_too(store: Path, tmp_path: Path) -> None:
    model = bp.PCA(D, solver="covariance").fit(normal(N, D))
    sentence = r"chunk 0 of [\d,]+ bytes cannot be written at .* \(File too large\).* raise the limit \(ulimit -f\)"
    with dask.config.set(scheduler="sync"), largest_file(4096), pytest.raises(OSError, match=sentence) as caught:
        model.transform(bp.open(store), out=tmp_path / "scores.zarr")
    assert caught.value.errno == errno.EFBIG
    assert not (tmp_path / "scores.zarr").exists()
    model.transform(bp.open(store), out=tmp_path / "scores.zarr")


def spilled(dask_worker: Any) -> int:
    """Results that a worker has put on its disk."""
    return len(dask_worker.data.disk)


@pytest.mark.cluster
def test_a_full_spill_disk_is_no_matter_for_stored_rows_and_is_named_where_chunks_were_persisted(
    store: Path, small_disk: Path
) -> None:
    with dask.config.set(scheduler="sync"):
        expected = bits(moments_of(bp.open(store)))
    spilling = {"distributed.worker.memory.target": 1e-5, "distributed.worker.memory.spill": 2e-5}  # 10 KiB of 1 GiB
    with (
        dask.config.set(spilling),
        on_cluster(1, local_directory=str(small_disk)) as client,
    ):
        kept = da.from_array(normal(N, D), chunks=(50, D)).persist()
        wait_until(lambda: client.run(spilled).popitem()[1] > 60)
        fill_disk(small_disk, leave=0)
        assert bits(moments_of(bp.open(store))) == expected
        with pytest.raises(
            OSError, match=f"the disk to which workers spill .* is full \\({small_disk}/.* do not persist the input"
        ):
            moments_of(kept)
        (small_disk / "filler").unlink()
        assert bits(moments_of(kept)) == expected
