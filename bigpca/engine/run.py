"""One execution of a fit: numbers its passes, checks them against the plan, and counts their reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from bigpca.engine.checkpoint import Checkpoint
from bigpca.engine.events import Event, Progress
from bigpca.engine.planning import PassCost
from bigpca.errors import UndeclaredPassError
from bigpca.settings import setting

ROUNDING = 1e-9


def no_progress(event: Event) -> None:
    """Report nothing."""


@dataclass
class Run:
    """One execution: options, which change no bit of the result, and what it has done so far.

    Attributes
    ----------
    checkpoint : Checkpoint or None
    progress : callable taking events, from any thread; a :class:`~bigpca.engine.events.Reporter` takes turns
    scheduler : "local" to stay in this process whatever client there is (NumPy input), or None.
    peak_bytes : int
        Planned peak of one worker thread, for errors; 0 without a plan.
    workers_timeout : float
        Seconds without any worker after which a run on a cluster fails; that of :class:`bigpca.config`.
    stalled_seconds : float
        Seconds without an answer after which a worker is reported and its segments are submitted to others too.
    first : dict of str to str
        Digests of the first rows of Dask arrays, at the first read of each.
    declared : dict of str to PassCost, or None
        The passes of the plan, by name; None for a single read that its caller planned.
    number : int
        Number of the latest pass, from 1; names its checkpoint directory.
    reads : float
        Reads of X so far.
    evaluations : int
        Kernel evaluations so far.
    seconds : float
        Wall time, once it is finished.
    adds : bool
        Whether the rows are added to those of a model: then all of them may be left out for missing values.
    scope : str
        Precedes the names of passes in the plan, while a fit runs another one for a part of its work.
    """

    checkpoint: Checkpoint | None = None
    progress: Progress = no_progress
    scheduler: str | None = None
    peak_bytes: int = 0
    workers_timeout: float = field(default_factory=partial(setting, None, "workers_timeout"))
    stalled_seconds: ClassVar[float] = 60.0
    adds: bool = False
    first: dict[str, str] = field(default_factory=dict)
    declared: Mapping[str, PassCost] | None = None
    number: int = 0
    reads: float = 0.0
    evaluations: int = 0
    seconds: float = 0.0
    scope: str = ""
    _times: Counter[str] = field(default_factory=Counter, repr=False)

    @staticmethod
    def declares(passes: Iterable[PassCost]) -> dict[str, PassCost]:
        """Return passes by name.

        Raises
        ------
        UndeclaredPassError
            If two have the same name.
        """
        named: dict[str, PassCost] = {}
        for one in passes:
            if one.name in named:
                raise UndeclaredPassError(f"the plan declares two passes named {one.name!r}")
            named[one.name] = one
        return named

    def compare_first(self, seen: Mapping[str, str]) -> None:
        """Compare the first rows of Dask arrays with those at the first read of each.

        Raises
        ------
        ValueError
        """
        for name, rows in seen.items():
            if self.first.setdefault(name, rows) != rows:
                raise ValueError(
                    f"{name} yields different values at each read: its first rows changed between two reads of the "
                    f"same fit, so the result would describe a mixture of rows. This happens with graphs that draw "
                    f"random numbers or read changing data. Fit the array that bp.ingest(X, out) writes, or use "
                    f"X.persist()."
                )

    def read_beside(self, cost: PassCost, times: float = 1) -> None:
        """Count reads that are not a pass of the engine: of the first rows, to count rows, or by another library.

        Raises
        ------
        UndeclaredPassError
            As for :meth:`admit`.
        """
        self.admit(cost, cost.state_bytes, times)
        self.reads += cost.reads * times
        self.evaluations += int(cost.evaluations * times)

    def add_evaluations(self, count: int) -> None:
        """Count kernel evaluations that no pass announces."""
        self.evaluations += count

    @contextmanager
    def within(self, scope: str, passes: Iterable[PassCost] = ()) -> Iterator[None]:
        """Run another fit, whose passes the plan has under names that begin with ``scope``.

        Where what it reads was not known before, its plan is another one: these ``passes``.
        """
        before, declared, self.scope = self.scope, self.declared, f"{self.scope}{scope} "
        if passes and declared is not None:
            self.declared = {**declared, **self.declares(replace(one, name=self.scope + one.name) for one in passes)}
        try:
            yield
        finally:
            self.scope, self.declared = before, declared

    def admit(self, cost: PassCost, state_bytes: int, times: float = 1) -> None:
        """Check a pass and the size of its states against the plan.

        Raises
        ------
        UndeclaredPassError
            If the plan does not have the pass, or has it with a smaller state, fewer reads, another dtype of products,
            or fewer repetitions.
        """
        cost = replace(cost, name=self.scope + cost.name)
        self._times[cost.name] += times  # type: ignore[assignment]
        if self.declared is None:
            return
        planned = self.declared.get(cost.name)
        if planned is None:
            raise UndeclaredPassError(f"the pass {cost.name!r} is not in the plan, which has {sorted(self.declared)}")
        done = self._times[cost.name]
        if done > planned.most_times + ROUNDING:
            raise UndeclaredPassError(f"the pass {cost.name!r} ran {done:g} times; the plan has {planned.most_times:g}")
        if state_bytes > planned.state_bytes:
            raise UndeclaredPassError(
                f"a state of the pass {cost.name!r} holds {state_bytes} bytes; the plan has {planned.state_bytes}"
            )
        if cost.reads > max(planned.reads, planned.most_reads) + ROUNDING:
            raise UndeclaredPassError(
                f"the pass {cost.name!r} takes {cost.reads:g} reads; the plan has {planned.reads:g}"
            )
        if cost.dtype != planned.dtype and not (planned.refinable and cost.dtype == np.float64):
            raise UndeclaredPassError(
                f"the pass {cost.name!r} multiplies in {cost.dtype}; the plan has {planned.dtype}"
            )
