"""What the tests of the engine share: stores that log and delay their reads, one short way to fold, plain NumPy
answers.
"""

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import dask.array as da
import numpy as np
import zarr
from distributed import Client
from numpy.typing import NDArray

from bigpca.costs import BlockForm
from bigpca.data.dask_arrays import open_source
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows
from bigpca.engine.checkpoint import Checkpoint
from bigpca.engine.events import Event, GroupEvent
from bigpca.engine.planning import Layout
from bigpca.engine.run import Run
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.fold import Folded, Read
from bigpca.passes.reading.blocks import Block, Preparing
from bigpca.passes.rows import Rows

State = TypeVar("State", bound=Accumulator)
Array = NDArray[Any]


def normal(n: int, d: int, *, mean: float = 3.0, seed: int = 0, dtype: str = "f4") -> Array:
    return (np.random.default_rng(seed).normal(size=(n, d)) + mean).astype(dtype)


def prepare_block(
    values: Any,
    row: int,
    shift: Array | None,
    *,
    owned: bool,
    nan_policy: str,
    where: str,
    find_largest: bool = False,
    numbers: Array | None = None,
    keep_nan: bool = False,
) -> Block:
    """The rows of a slab less a shift, as a task prepares them."""
    reader: Any = SimpleNamespace(owned=owned)
    step = Preparing(reader, values.dtype, nan_policy, searched=find_largest, keeps_nan=keep_nan)
    return step.prepared(values, row, where, shift, numbers)


def write_store(path: Path, A: Array, chunks: tuple[int, ...], **options: Any) -> Any:
    """Write A to a Zarr array with every chunk present."""
    config: Any = {"write_empty_chunks": True}
    array = zarr.create_array(path, shape=A.shape, dtype=A.dtype, chunks=chunks, config=config, **options)
    array[...] = A
    return array


@dataclass(frozen=True)
class LoggedRows(ZarrRows):
    """Rows of a Zarr array whose reads leave a file in ``log``, take ``delay`` seconds, and wait for ``gate``.

    In ``gate_process`` only, where that is not 0: as where one machine has lost its file server.
    """

    log: str = ""
    delay: float = 0.0
    gate: str = ""
    gate_row: int = 0
    gate_process: int = 0

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Array:
        Path(self.log, f"{start}-{stop}-{os.getpid()}-{uuid.uuid4().hex[:6]}").touch()
        time.sleep(self.delay)
        gated = self.gate and start >= self.gate_row and self.gate_process in (0, os.getpid())
        while gated and not os.path.exists(self.gate):
            time.sleep(0.01)
        return super().read_block(start, stop, columns)


def logged(
    store: Path, log: Path, *, delay: float = 0.0, gate: str = "", gate_row: int = 0, gate_process: int = 0,
    chunk_rows: int = 0,
) -> da.Array:  # fmt: skip
    """Open a store so that its reads are logged; Dask chunks of ``chunk_rows``, else joined as ``open`` joins them."""
    log.mkdir(exist_ok=True)
    source = LoggedRows.of(ZarrReader(store), str(log), delay, gate, gate_row, gate_process)
    if not chunk_rows:
        return open_source(source)
    return da.from_array(
        source, chunks=(chunk_rows, source.shape[1]), asarray=False, meta=np.empty((0, 0), source.dtype)
    )


def reads_in(log: Path) -> list[tuple[int, int]]:
    """(start, stop) of every logged read, in order of rows."""
    return sorted((int(a), int(b)) for a, b, *_ in (name.split("-") for name in os.listdir(log)))


def folded(
    rows: Rows,
    template: State,
    run: Run | None = None,
    *,
    name: str = "test",
    layout: Layout | None = None,
    dtype: np.dtype[Any] | None = None,
    shift: NDArray[np.float64] | None = None,
) -> Folded[State]:
    """Fold one read into an accumulator, as fits do whose only pass it is."""
    work = float((layout or rows.layout(0)).n_rows) * template.cost(BlockForm(rows.n_columns)).flops
    read = Read.into(rows, name, template, cut_bytes=template.state_bytes, work=work, layout=layout, dtype=dtype)
    return read(run or Run(), shift=shift)


def moments_of(
    X: da.Array,
    *,
    checkpoint: Any = None,
    progress: Callable[[Event], None] = lambda event: None,
    workers_timeout: float = 600.0,
    **policies: str,
) -> Moments:
    """Fold X into its moments, as a fit by the covariance matrix does."""
    rows = Rows.of(X, **policies)
    described = {"computes": "moments", "input": rows.describe()}
    held = None if checkpoint is None else Checkpoint(checkpoint, described, None)
    run = Run(held, progress, workers_timeout=workers_timeout)
    try:
        return folded(rows, Moments(rows.n_columns), run, name="moments").state
    finally:
        if held is not None:
            held.release()


def scatter_of(A: Array) -> Array:
    """Centred scatter (d, d) in float64."""
    wide = np.asarray(A, np.float64)
    centred = wide - wide.mean(axis=0)
    product: Array = centred.T @ centred
    return product


def full(upper: Array) -> Array:
    """Both triangles of a matrix of which the upper one is kept."""
    return np.triu(upper) + np.triu(upper, 1).T


def assert_moments(found: Moments, A: Array, tolerance: float = 1e-6) -> None:
    """Count exact; mean and scatter within ``tolerance`` of their largest entries."""
    wide = np.asarray(A, np.float64)
    truth = scatter_of(A)
    assert found.count == len(A)
    np.testing.assert_allclose(found.mean, wide.mean(axis=0), rtol=0, atol=tolerance * max(1.0, np.abs(wide).max()))
    np.testing.assert_allclose(full(found.scatter), truth, rtol=0, atol=tolerance * max(np.abs(truth).max(), 1e-300))


def bits(moments: Moments) -> tuple[int, bytes, bytes]:
    """Everything that a moments state holds, to the last bit."""
    return moments.count, moments.mean.tobytes(), np.triu(moments.scatter).tobytes()


def rows_read(events: list[Event]) -> int:
    return sum(event.rows for event in events if isinstance(event, GroupEvent))


def interrupt_after(groups: int) -> Callable[[Event], None]:
    """A progress that raises KeyboardInterrupt at that group."""
    left = [groups]

    def stop(event: Event) -> None:
        if isinstance(event, GroupEvent):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    return stop


def tasks_on(client: Client) -> dict[str, str]:
    """Return the tasks on the scheduler, with their states."""
    found: dict[str, str] = client.run_on_scheduler(
        lambda dask_scheduler: {str(key): task.state for key, task in dask_scheduler.tasks.items()}
    )
    return found


def wait_for_none(left: Callable[[], object], seconds: float = 600.0) -> None:
    """Wait until nothing is left; what still is after that time is the failure's message."""
    deadline = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
