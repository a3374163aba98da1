"""What a run reports, as frozen records, and the consumers that display them: terminal, notebook, log.

The engine emits events and never prints. A consumer is any callable that takes one event, so a user's own function
works too; all displays share one tally. A consumer that fails is dropped with one warning: displaying progress never
ends a run. :func:`resolve_progress` makes the consumers of a fit from its ``progress``.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Literal

from bigpca.engine.planning import Plan, format_seconds
from bigpca.errors import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


@dataclass(frozen=True)
class PlanEvent:
    """A plan is about to run: solver, reason for the choice, and cost."""

    plan: Plan


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
    def fraction(self) -> float:
        """Share of the pass that is done, in [0, 1]."""
        resumed = self.event.groups_resumed / self.event.groups_total if self.event.groups_total else 0.0
        return min(1.0, resumed + self._done_here)

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


def sentence(event: Event) -> str:
    """Describe an event in one line for display.

    >>> sentence(DoneEvent("covariance", 2.0))
    'covariance: done in 2.0 s'
    """
    match event:
        case PlanEvent():
            plan, most = event.plan, math.ceil(event.plan.passes)
            reads = "1 read" if most == 1 else f"{most} reads"
            return f'solver="{plan.solver}" ({plan.reason}): {reads}, {format_bytes(plan.bytes_read)}'
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


ProgressArgument = None | bool | Literal["auto"] | Progress | list[Progress] | tuple[Progress, ...]

logger = logging.getLogger("bigpca")


class Closing(AbstractContextManager):  # type: ignore[type-arg]  # it returns itself
    """A context manager that closes at its end, however that comes."""

    @abstractmethod
    def close(self) -> None:
        """Remove what is shown."""

    def __exit__(self, *error: object) -> None:
        self.close()


class LogProgress:
    """Log events to the logger "bigpca": groups at most every ``interval`` seconds, retries as warnings."""

    def __init__(self, interval: float = 10.0) -> None:
        self.interval = interval
        self.tally = PassTally()
        self._last = time.monotonic()

    def __call__(self, event: Event) -> None:
        self.tally.add(event)
        if isinstance(event, RetryEvent):
            logger.warning("%s", sentence(event))
        elif isinstance(event, CheckpointEvent):
            logger.debug("%s", sentence(event))
        elif not isinstance(event, GroupEvent):
            self._last = time.monotonic()
            logger.info("%s", self.tally.sentence(event))
        elif time.monotonic() - self._last >= self.interval:
            self._last = time.monotonic()
            logger.info("%s: %.0f %%, %s", self.tally.title, 100 * self.tally.fraction, self.tally.line())


class TerminalProgress(Closing):
    """A bar per pass with rows/s, bytes/s and the time left, on standard error.

    Silent if the output is not a terminal, unless ``force``. Each finished pass leaves one line behind. Use it as a
    context manager, so that an exception removes the bar from the screen.

    Attributes
    ----------
    kept : str
        Where finished groups are kept, if that is to be shown.
    """

    kept = ""

    def __init__(self, file: IO[str] | None = None, *, force: bool = False) -> None:
        self.file = sys.stderr if file is None else file
        self.shown = force or bool(getattr(self.file, "isatty", lambda: False)())
        self.force = force
        self.tally = PassTally()
        self._bar: RichProgress | None = None
        self._task: Any = None

    def __call__(self, event: Event) -> None:
        self.tally.add(event)
        if not self.shown:
            return
        if isinstance(event, PassEvent):
            self._open(event)
        elif isinstance(event, SkipEvent):
            self.file.write(sentence(event) + "\n")
        elif self._bar is not None and isinstance(event, GroupEvent):
            self._bar.update(self._task, completed=self.tally.fraction, detail=self.tally.line())
        elif self._bar is not None and isinstance(event, RetryEvent):
            self._bar.console.print(sentence(event), markup=False, highlight=False)
        elif self._bar is not None and isinstance(event, DoneEvent) and event.name == self.tally.event.name:
            speed = f"{self.tally.speed()}, " if self.tally.rows else ""  # none if all groups were resumed
            detail = f"{self.tally.title}: {speed}{format_seconds(event.seconds)}"
            console = self._bar.console
            self.close()
            console.print(detail, markup=False, highlight=False)

    def _open(self, event: PassEvent) -> None:
        from rich.console import Console
        from rich.markup import escape as escape_markup
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

        self.close()
        console = Console(file=self.file, force_terminal=True if self.force else None)
        # The spinner is the sign of life until the first group is done.
        columns = (SpinnerColumn("line"), TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn())
        detail = TextColumn("{task.fields[detail]}")
        self._bar = Progress(*columns, detail, console=console, refresh_per_second=4, expand=True, transient=True)
        self._task = self._bar.add_task(escape_markup(self.tally.title), total=1.0, detail="starting")
        self._bar.update(self._task, completed=self.tally.fraction)
        if event.groups_resumed:
            source = f" from {self.kept}" if self.kept else ""
            groups = f"{event.groups_resumed:,} of {event.groups_total:,} groups of {self.tally.title}"
            console.print(f"resumed{source}: {groups} are done", markup=False, highlight=False)
        self._bar.start()

    def close(self) -> None:
        """Remove the bar from the screen; a later pass opens a new one."""
        if self._bar is not None:
            bar, self._bar = self._bar, None
            bar.stop()


class NotebookProgress(Closing):
    """A bar per pass in a Jupyter notebook, drawn with IPython's own display (no widgets needed).

    Each update contains the whole bar, so that a browser that reconnects to a running kernel shows it with the next
    update; the bar of a resumed pass starts at the share already done. Use it as a context manager, so that the bar of
    a stopped run is marked as stopped.
    """

    def __init__(self, interval: float = 0.25) -> None:
        self.interval = interval
        self.tally = PassTally()
        self._handle: Any = None
        self._last = 0.0

    def __call__(self, event: Event) -> None:
        self.tally.add(event)
        if isinstance(event, PassEvent):
            self._handle = import_module("IPython.display").display(self._html(""), display_id=True)
        elif self._handle is None or isinstance(event, PlanEvent | CheckpointEvent | SkipEvent):
            return
        elif isinstance(event, DoneEvent):
            self._handle.update(self._html(f"{self.tally.speed()}, {format_seconds(event.seconds)}", done=True))
            self._handle = None
        elif not isinstance(event, GroupEvent) or time.monotonic() - self._last >= self.interval:
            self._last = time.monotonic()
            self._handle.update(self._html("" if isinstance(event, GroupEvent) else sentence(event)))

    def close(self) -> None:
        """Mark the bar of an unfinished pass as stopped."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle.update(self._html("stopped"))

    def _html(self, note: str, done: bool = False) -> Any:
        fraction = 1.0 if done else self.tally.fraction
        resumed, total = self.tally.event.groups_resumed, self.tally.event.groups_total
        name = self.tally.title + (f" ({resumed} of {total} groups resumed)" if resumed else "")
        text = escape(f"{name}  {100 * fraction:.0f} %  {note or self.tally.line()}")
        return import_module("IPython.display").HTML(
            f'<div><progress value="{fraction:.4f}" max="1"></progress> {text}</div>'
        )


class DelayedProgress:
    """Shows a bar only if a run takes longer than ``delay`` seconds; what happened until then is shown at that time."""

    def __init__(self, bar: TerminalProgress | NotebookProgress, delay: float = 2.0) -> None:
        self.bar, self.delay = bar, delay
        self._held: list[tuple[float, Event]] | None = []
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def __call__(self, event: Event) -> None:
        with self._lock:
            if self._held is None:
                self.bar(event)
                return
            self._held.append((time.monotonic(), event))
            if self._timer is None:
                self._timer = threading.Timer(self.delay, self._release)
                self._timer.daemon = True
                self._timer.start()

    def _release(self) -> None:
        with self._lock:
            held, self._held = self._held or [], None
            for when, event in held:
                self.bar(event)
                if isinstance(event, PassEvent):
                    self.bar.tally.started = when  # so that rates count the time before the bar

    def close(self) -> None:
        """Remove the bar; it does not appear any more."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self.bar.close()


class Reporter(Closing):
    """Pass each event to every consumer; a consumer that raises is dropped with one warning.

    It may be called from any thread. As a context manager it closes the bars at the end.
    """

    def __init__(self, consumers: Sequence[Progress]) -> None:
        self._consumers = list(consumers)
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            for consumer in tuple(self._consumers):
                self._guard(consumer, lambda consumer=consumer: consumer(event))  # type: ignore[misc]

    def _guard(self, consumer: Progress, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a broken display must not end hours of work
            if consumer in self._consumers:
                self._consumers.remove(consumer)
            name = getattr(consumer, "__qualname__", type(consumer).__qualname__)
            logger.warning("progress consumer %s failed and was dropped: %s: %s", name, type(error).__name__, error)

    def close(self) -> None:
        """Remove terminal bars from the screen, and mark unfinished notebook bars as stopped."""
        with self._lock:
            for consumer in tuple(self._consumers):
                if isinstance(consumer, TerminalProgress | NotebookProgress | DelayedProgress):
                    self._guard(consumer, consumer.close)


def resolve_progress(progress: ProgressArgument) -> Reporter:
    """Convert the ``progress`` argument of an estimator to one callable that never raises.

    Parameters
    ----------
    progress : None or False (no display), True (a bar: terminal or notebook), "auto" (the same, after two seconds), a
        callable, or a sequence of them.

    Returns
    -------
    Reporter
        Call it with events; use it as a context manager around the run.

    Raises
    ------
    TypeError
        If ``progress`` is none of these.
    """
    if isinstance(progress, Reporter):
        return progress
    if progress is None or progress is False:
        return Reporter(())
    if progress is True or progress == "auto":
        bar = NotebookProgress() if _in_notebook() else TerminalProgress()
        return Reporter((bar if progress is True else DelayedProgress(bar),))
    if callable(progress):
        return Reporter((progress,))
    if isinstance(progress, list | tuple) and all(callable(one) for one in progress):
        return Reporter(progress)
    raise TypeError(
        f"progress is {progress!r}, but None, True, 'auto', a callable or a sequence of callables was expected. "
        "Pass progress=True for a bar, or a function that takes one event."
    )


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None
    return instance is not None and type(instance).__name__ == "ZMQInteractiveShell"


@dataclass
class PassCounter:
    """Counts the actual reads of the data from the run's events."""

    passes: int = 0
    groups_resumed: int = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, PassEvent):
            self.passes += 1
            self.groups_resumed += event.groups_resumed
