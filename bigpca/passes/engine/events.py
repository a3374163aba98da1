"""What a run reports while it works, as frozen records, and the counting that every display shares.

The engine emits these; ``passes/engine/progress.py`` shows them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from bigpca.errors import format_bytes


@dataclass(frozen=True)
class PlanEvent:
    """What is about to run: the solver, why it was chosen, and what it costs (bytes per worker thread for the peak)."""

    solver: str
    reason: str
    passes: int
    bytes_read: int
    peak_bytes: int


@dataclass(frozen=True)
class PassEvent:
    """A read of the data begins. Totals are those of the whole pass; resumed groups are not read again. Bytes are those
    decoded, in the dtype in which X is stored.

    ``evaluations_total`` counts kernel evaluations, 0 for passes without any.
    """

    name: str
    rows_total: int
    bytes_total: int
    groups_total: int
    groups_resumed: int = 0
    evaluations_total: int = 0


@dataclass(frozen=True)
class GroupEvent:
    """One group of rows has been read and reduced (or written); ``evaluations`` of a kernel were made for it."""

    rows: int
    bytes: int
    evaluations: int = 0


@dataclass(frozen=True)
class RetryEvent:
    """Work was lost and is being done again; ``count`` says how often so far."""

    reason: str
    count: int


@dataclass(frozen=True)
class CheckpointEvent:
    """Segment number ``segment`` is safe on disk under ``path``."""

    path: str
    segment: int


@dataclass(frozen=True)
class DoneEvent:
    """The pass (or step) called ``name`` is complete after ``seconds``."""

    name: str
    seconds: float


Event = PlanEvent | PassEvent | GroupEvent | RetryEvent | CheckpointEvent | DoneEvent
Progress = Callable[[Event], None]


class PassTally:
    """Rows, bytes and rates of the pass that is running, counted from its events.

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
        """Begin counting a new pass."""
        self.event = event
        self._counts[event.name] += 1
        self.rows = 0
        self.bytes = 0
        self.evaluations = 0
        self.groups = event.groups_resumed
        self.started = time.monotonic()

    def add(self, event: Event) -> None:
        """Count one event; those that carry no rows change nothing."""
        if isinstance(event, PassEvent):
            self.start(event)
        elif isinstance(event, GroupEvent):
            self.rows += event.rows
            self.bytes += event.bytes
            self.evaluations += event.evaluations
            self.groups += 1

    @property
    def title(self) -> str:
        """Name of the pass for people, numbered where the same step is done again: an iteration's second product."""
        name, count = self.event.name, self._counts[self.event.name]
        return f"{name} {count}" if count > 1 else name

    def sentence(self, event: Event) -> str:
        """Say what happened in one line for people, the running pass under its title.

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
        """Share of the pass that an earlier run had finished, in [0, 1]."""
        return min(1.0, self.event.groups_resumed / self.event.groups_total) if self.event.groups_total else 0.0

    @property
    def fraction(self) -> float:
        """Share of the pass that is done, in [0, 1]."""
        return min(1.0, self.resumed_fraction + self._done_here)

    @property
    def _done_here(self) -> float:
        """Share of the pass that this run did: by kernel evaluations where there are any, else by rows."""
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
        """Kernel evaluations per second where there are any, else rows and bytes per second.

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
        """One line for people: the speed and the time left."""
        left = self.seconds_left
        return self.speed() + ("" if left is None else f", {format_seconds(left)} left")


def format_seconds(seconds: float) -> str:
    """Write a duration for people.

    >>> format_seconds(2.25), format_seconds(125), format_seconds(7260)
    ('2.2 s', '2 min 05 s', '2 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def sentence(event: Event) -> str:
    """Say what happened in one line for people.

    >>> sentence(DoneEvent("covariance", 2.0))
    'covariance: done in 2.0 s'
    """
    match event:
        case PlanEvent():
            passes = "1 pass" if event.passes == 1 else f"{event.passes} passes"
            return f'solver="{event.solver}" ({event.reason}): {passes}, {format_bytes(event.bytes_read)} to read'
        case PassEvent():
            size = format_bytes(event.bytes_total)
            resumed = f", {event.groups_resumed} of {event.groups_total} groups resumed" if event.groups_resumed else ""
            kernel = f", {event.evaluations_total:,} kernel evaluations" if event.evaluations_total else ""
            return f"{event.name}: {event.rows_total:,} rows, {size}{kernel}{resumed}"
        case GroupEvent():
            return f"{event.rows:,} rows, {format_bytes(event.bytes)}"
        case RetryEvent():
            return f"retry {event.count}: {event.reason}"
        case CheckpointEvent():
            return f"segment {event.segment} is safe in {event.path}"
        case DoneEvent():
            return f"{event.name}: done in {format_seconds(event.seconds)}"
