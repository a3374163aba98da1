"""Measured memory: the peak of a run above the memory of its processes at the start."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psutil

from bigpca.data.provenance import recording
from bigpca.engine.local import workers_of

if TYPE_CHECKING:
    from distributed import Client


def resident_bytes(process: psutil.Process) -> int:
    """Return the resident bytes of a process, without pages of mapped files if the system reports them.

    >>> resident_bytes(psutil.Process()) > 0
    True
    """
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def process_tree_bytes() -> int:
    """Return the resident bytes of this process and all its descendants; one that ends meanwhile counts as 0."""
    me = psutil.Process()
    total = resident_bytes(me)
    try:
        children = me.children(recursive=True)
    except psutil.Error:
        return total
    for child in children:
        try:
            total += resident_bytes(child)
        except psutil.Error:
            continue
    return total


class MemoryMeter:
    """Samples the memory of this process and its children (and of a joined cluster's workers) during a run.

    Models and stores written meanwhile record the peak so far in their provenance.

    Pages of memory-mapped files are not counted where the system reports them separately, because it can drop them at
    any time.

    Parameters
    ----------
    client : Client or None, default None
        A client of a running cluster; its workers are then counted too, as they report themselves.
    interval : float, default 0.05
        Seconds between two samples; a joined cluster is sampled once a second.

    Attributes
    ----------
    baseline_bytes, peak_bytes : int
        The total when the meter started, and the highest total since then above that baseline.

    Examples
    --------
    >>> with MemoryMeter(interval=0.01) as meter:
    ...     block = bytearray(b"1" * 50_000_000)
    >>> meter.peak_bytes > 40_000_000
    True
    """

    def __init__(self, client: Client | None = None, interval: float = 0.05) -> None:
        self._remote = client if client is not None and client.cluster is None else None
        self.interval = 1.0 if self._remote is not None else interval
        self.baseline_bytes = self._highest = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bigpca-memory", daemon=True)

    def __enter__(self) -> Self:
        # Queried from the workers directly: the last report of a new worker was below its present memory.
        idle = [] if self._remote is None else self._remote.run(_resident_total).values()
        self.baseline_bytes = self._highest = process_tree_bytes() + sum(idle)
        self._thread.start()
        self._recorded = recording(peak=self._peak_now)
        self._recorded.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorded.__exit__(None, None, None)
        self._stop.set()
        self._thread.join()
        if error is None:
            self._sample()

    @property
    def peak_bytes(self) -> int:
        """Highest total so far, above the baseline."""
        return self._highest - self.baseline_bytes

    def _peak_now(self) -> int:
        self._sample()
        return self.peak_bytes

    def _watch(self) -> None:
        while not self._stop.wait(self.interval):
            self._sample()

    def _sample(self) -> None:
        try:
            total = process_tree_bytes()
            if self._remote is not None:
                total += sum(int(one["metrics"].get("memory", 0)) for one in workers_of(self._remote).values())
            self._highest = max(self._highest, total)
        except (OSError, psutil.Error):  # the scheduler is gone, which the run itself reports
            return


def _resident_total() -> int:
    """Return all resident bytes of this process, the number that Dask workers report."""
    return int(psutil.Process().memory_info().rss)
