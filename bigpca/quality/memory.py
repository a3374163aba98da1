"""Measured memory: the peak of a run over where its processes stood when it began."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psutil

if TYPE_CHECKING:
    from distributed import Client


def resident_bytes(process: psutil.Process) -> int:
    """Resident bytes of a process, without pages of mapped files where the system tells them apart.

    >>> resident_bytes(psutil.Process()) > 0
    True
    """
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def process_tree_bytes() -> int:
    """Resident bytes of this process and all its descendants; one that ends meanwhile counts as 0."""
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
    """Samples the memory of this process and its children (and of a joined cluster's workers) while a run lasts.

    Pages of memory-mapped files are not counted where the system tells them apart: it can drop them at any time.

    Parameters
    ----------
    client : Client, optional
        A client that joined a running cluster: its workers are then counted too, as they report themselves.
    interval : float
        Seconds between two samples; a joined cluster is sampled once a second.

    Attributes
    ----------
    baseline_bytes, peak_bytes : int
        The total when the meter started, and the highest total since, over that baseline.

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
        # Asked of the workers themselves: what a young worker last reported was less than what it holds by now.
        idle = [] if self._remote is None else self._remote.run(_resident_total).values()
        self.baseline_bytes = self._highest = process_tree_bytes() + sum(idle)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            self._sample()

    @property
    def peak_bytes(self) -> int:
        """Highest total so far, over the baseline."""
        return self._highest - self.baseline_bytes

    def _watch(self) -> None:
        while not self._stop.wait(self.interval):
            self._sample()

    def _sample(self) -> None:
        try:
            self._highest = max(self._highest, self._total())
        except (OSError, psutil.Error):  # a scheduler that went away: the run itself reports that
            return

    def _total(self) -> int:
        total = process_tree_bytes()
        if self._remote is not None:
            workers = self._remote.scheduler_info(n_workers=-1)["workers"].values()
            total += sum(int(worker["metrics"].get("memory", 0)) for worker in workers)
        return total


def _resident_total() -> int:
    """All resident bytes of this process, as Dask workers report themselves."""
    return int(psutil.Process().memory_info().rss)
