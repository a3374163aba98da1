"""What a run reports, as frozen records, and the tally that all displays share.

The engine emits these; ``passes/engine/progress.py`` displays them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from bigpca.errors import format_bytes
from bigpca.planning import Plan


@dataclass(frozen=True)
class PlanEvent:
    """A plan is about to run: solver, reason for the choice, and cost (``peak_bytes`` per worker thread)."""

    solver: str
    reason: str
    passes: int
    bytes_read: int
    peak_bytes: int
    plan: Plan | None = None


@dataclass(frozen=True)
class PassEvent:
    """A read of the data starts.

    Totals are those of the whole pass, including resumed groups, which are not read again; 0 for batches whose number
    of rows is not known. Bytes are counted in the dtype in which X is stored. ``evaluations_total`` counts kernel
    evaluations, 0 without a kernel.
    """

    name: str
    rows_total: int
    bytes_total: int
    groups_total: int
    groups_resumed: int = 0
    evaluations_total: int = 0


@dataclass(frozen=True)
class SkipEvent:
    """The first rows of batches are read on over and compared with a checkpoint, which holds what they add up to."""

    rows: int


@dataclass(frozen=True)
class GroupEvent:
    """One group of rows has been read and reduced (or written), with this many kernel ``evaluations``."""

    rows: int
    bytes: int
    evaluations: int = 0


@dataclass(frozen=True)
class RetryEvent:
    """Work was lost and is being repeated, for the ``count``-th time."""

    reason: str
    count: int


@dataclass(frozen=True)
class CheckpointEvent:
    """Segment number ``segment`` is stored under ``path``."""

    path: str
    segment: int


@dataclass(frozen=True)
class DoneEvent:
    """The pass (or step) called ``name`` is complete after ``seconds``."""

    name: str
    seconds: float


Event = PlanEvent | PassEvent | SkipEvent | GroupEvent | RetryEvent | CheckpointEvent | DoneEvent
Progress = Callable[[Event], None]


class PassTally:
    """Rows, bytes and rates of the running pass, counted from its events.

    >>> tally = PassTally()
    >>> tally.add(PassEvent("covariance", 100, 800, 4, groups_resumed=1))
    >>> tally.add(GroupEvent(25, 200))
    >>> tally.fraction, tally.groups
    (0.5, 2)
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.start(PassEvent("", 0, 0, 0))

    def start(self, event: PassEvent) -> None:
        """Start counting a new pass."""
        self.event = event
        self._counts[event.name] += 1
        self.rows = 0
        self.bytes = 0
        self.evaluations = 0
        self.groups = event.groups_resumed
        self.started = time.monotonic()

    def add(self, event: Event) -> None:
        """Count one event; events without rows change nothing."""
        if isinstance(event, PassEvent):
            self.start(event)
        elif isinstance(event, GroupEvent):
            self.rows += event.rows
            self.bytes += event.bytes
            self.evaluations += event.evaluations
            self.groups += 1

    @property
    def title(self) -> str:
        """Name of the pass for display, numbered when the same step is repeated: an iteration's second product."""
        name, count = self.event.name, self._counts[self.event.name]
        return f"{name} {count}" if count > 1 else name

    def sentence(self, event: Event) -> str:
        """Describe an event in one line for display, the running pass by its title.

        >>> tally = PassTally()
        >>> for _ in range(2):
        ...     tally.add(PassEvent("product", 100, 800, 4))
        >>> tally.sentence(DoneEvent("product", 2.0))
        'product 2: done in 2.0 s'
        """
        if isinstance(event, PassEvent | DoneEvent) and event.name == self.event.name:
            event = replace(event, name=self.title)
        return sentence(event)

    @property
    def resumed_fraction(self) -> float:
        """Share of the pass that an earlier run finished, in [0, 1]."""
        return min(1.0, self.event.groups_resumed / self.event.groups_total) if self.event.groups_total else 0.0

    @property
    def fraction(self) -> float:
        """Share of the pass that is done, in [0, 1]."""
        return min(1.0, self.resumed_fraction + self._done_here)

    @property
    def _done_here(self) -> float:
        """Share of the pass that this run has done, in kernel evaluations if there are any, else in rows."""
        if self.event.evaluations_total:
            return self.evaluations / self.event.evaluations_total
        return self.rows / self.event.rows_total if self.event.rows_total else 0.0

    @property
    def rates(self) -> tuple[float, float]:
        """Rows and bytes per second since the pass began; resumed groups do not count."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        return self.rows / seconds, self.bytes / seconds

    @property
    def seconds_left(self) -> float | None:
        """Time left at the rate so far, or None before the first group."""
        done = self._done_here
        if done <= 0:
            return None
        return max(0.0, 1.0 - self.fraction) / done * (time.monotonic() - self.started)

    def speed(self) -> str:
        """Return kernel evaluations per second if there are any, else rows and bytes per second.

        >>> tally = PassTally()
        >>> tally.add(PassEvent("kernel", 1000, 8000, 4, evaluations_total=500_000))
        >>> tally.add(GroupEvent(250, 2000, 125_000))
        >>> tally.fraction, tally.speed().endswith("kernel evaluations/s")
        (0.25, True)
        """
        if self.event.evaluations_total:
            seconds = max(time.monotonic() - self.started, 1e-9)
            return f"{self.evaluations / seconds:,.3g} kernel evaluations/s"
        rows, size = self.rates
        return f"{rows:,.0f} rows/s, {format_bytes(size)}/s"

    def line(self) -> str:
        """Return the speed and the time left in one line, for display."""
        left = self.seconds_left
        return self.speed() + ("" if left is None else f", {format_seconds(left)} left")


def format_seconds(seconds: float) -> str:
    """Format a duration for display.

    >>> format_seconds(2.25), format_seconds(125), format_seconds(7260)
    ('2.2 s', '2 min 05 s', '2 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def sentence(event: Event) -> str:
    """Describe an event in one line for display.

    >>> sentence(DoneEvent("covariance", 2.0))
    'covariance: done in 2.0 s'
    """
    match event:
        case PlanEvent():
            reads = "1 read" if event.passes == 1 else f"{event.passes} reads"
            return f'solver="{event.solver}" ({event.reason}): {reads}, {format_bytes(event.bytes_read)}'
        case PassEvent():
            size = format_bytes(event.bytes_total)
            resumed = f", {event.groups_resumed} of {event.groups_total} groups resumed" if event.groups_resumed else ""
            kernel = f", {event.evaluations_total:,} kernel evaluations" if event.evaluations_total else ""
            rows = f"{event.rows_total:,} rows, {size}" if event.rows_total else "rows are counted as they are read"
            return f"{event.name}: {rows}{kernel}{resumed}"
        case SkipEvent():
            return f"resumed: the first {event.rows:,} rows are skipped"
        case GroupEvent():
            return f"{event.rows:,} rows, {format_bytes(event.bytes)}"
        case RetryEvent():
            return f"retry {event.count}: {event.reason}"
        case CheckpointEvent():
            return f"segment {event.segment} is stored in {event.path}"
        case DoneEvent():
            return f"{event.name}: done in {format_seconds(event.seconds)}"
