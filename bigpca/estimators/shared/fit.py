"""One way to solve a problem, as a record: its reads are declared once, and then planned, enforced and executed.

A run and its surroundings: the progress report, the locked checkpoint, and the check that the input is unchanged. The
seed of a fit: given as ``random_state``, drawn, or read from the checkpoint that a rerun resumes.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from operator import attrgetter
from typing import ClassVar, Generic, Self, TypeAlias, TypeVar, cast

import numpy as np

from bigpca.arrays import Path
from bigpca.blas import undone
from bigpca.data.batches import why_once
from bigpca.data.provenance import Provenance
from bigpca.devices import shares_of_work, solving_on
from bigpca.engine.checkpoint import Checkpoint, stored_seed
from bigpca.engine.events import PlanEvent, ProgressArgument, resolve_progress
from bigpca.engine.local import threads_here
from bigpca.engine.planning import SMALLER_CHUNKS, PassCost, Plan, SolveCost, plan_of
from bigpca.engine.run import Run
from bigpca.errors import CheckpointError, MemoryBudgetError, NonFiniteError, format_bytes
from bigpca.estimators.shared.inputs import BaseEstimator
from bigpca.host import HOST
from bigpca.passes.fold import Declared, costs
from bigpca.passes.prices import counting_reads, known_speed
from bigpca.passes.reading.row_maps import identified
from bigpca.passes.rows import Rows, place_of, unchanged
from bigpca.passes.summaries import Lesson, lessons
from bigpca.seeds import check_seed, draw_seed, draws_seed
from bigpca.settings import setting

Found = TypeVar("Found", covariant=True)
Model = TypeVar("Model", bound=BaseEstimator)
FLOPS_PER_SECOND = 3e10  # of one core: only ratios of costs matter
BYTES_PER_SECOND = 1e9
EXACT_SECONDS = 30.0  # of one core, below which an exact fit is always preferred
INEXACT = f"is not exact (preferred where an exact fit takes over {EXACT_SECONDS:g} s and twice as long)"
PLANNED_ROWS = 1_000_000  # of batches whose number of rows is not known


@dataclass(frozen=True)
class Reading(ABC):
    """Planned reads of X, and their cost.

    A subclass declares its passes (``reads``, or :meth:`passes` where these depend on more) with the templates and
    layouts that it executes; a run rejects any other pass.

    Attributes
    ----------
    reads : tuple of str
        Names of own attributes: a read, or the cost of one that is no pass of the engine, or several, or None.
    depends_on : tuple of str
        Names of own attributes, such as "settings.tol", on which the passes depend beside the rows; never threads or
        limits, nor what only the solve depends on: one checkpoint of moments serves any number of components.
    rows : Rows
    """

    exact: ClassVar[bool] = True  # False for a result to a tolerance
    reads: ClassVar[tuple[str, ...]] = ()
    depends_on: ClassVar[tuple[str, ...]] = ()
    max_evaluations: ClassVar[float] = inf  # of a kernel, beyond which the plan is rejected

    rows: Rows

    @property
    @abstractmethod
    def solver(self) -> str:
        """Name of the solver."""

    @property
    @abstractmethod
    def account(self) -> str:
        """The method in a few words, with its numbers."""

    def passes(self) -> tuple[Declared, ...]:
        """Declare all reads that a run may make: those that ``reads`` names."""
        found = list[Declared]()
        for name in self.reads:
            one = attrgetter(name)(self)
            found += [*one] if isinstance(one, tuple) else [] if one is None else [one]
        return tuple(found)

    def solve_cost(self) -> SolveCost:
        """Return the cost of what the fitting process computes and holds."""
        return SolveCost()

    def describe(self) -> dict[str, object]:
        """Return what identifies the passes, for the fingerprint of checkpoints."""
        own = {name: identified(attrgetter(name)(self)) for name in self.depends_on}
        return {"computes": type(self).__name__, "input": self.rows.describe()} | own

    @cached_property
    def lessons(self) -> tuple[Lesson, ...]:
        """Reads that find what the maps of rows were not given."""
        return lessons(self.rows)

    @cached_property
    def declared(self) -> tuple[PassCost, ...]:
        """All reads: to count rows, if their number was unknown, to find what maps were not given, and the passes."""
        return costs((*counting_reads(self.rows), *(one.read for one in self.lessons), *self.passes()))

    def prepare(self, run: Run) -> None:
        """Make the reads before the passes: find what rows and maps were not given."""
        for counted in counting_reads(self.rows):
            run.read_beside(counted)
        for lesson in self.lessons:
            lesson.learn(run)

    def check(self) -> None:
        """Reject what does not fit the memory of processes or devices.

        Raises
        ------
        MemoryBudgetError, EvaluationBudgetError
        """
        self.plan.check()
        for one in self.declared:
            if self.rows.order.resources.local and not one.by_cores:
                one.device.check_room(f"the read {one.name!r}", one.device_bytes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Further lines of the plan."""
        return ()

    @property
    def most_reads(self) -> float:
        """The most complete reads that a run may take; the first rows, which are kept, do not count."""
        return sum(max(one.reads, one.most_reads) * one.most_times for one in self.declared if one.layout.groups)

    @property
    def readable(self) -> bool:
        """Whether rows can be read so often, and their number is known where that is necessary."""
        return not (self.rows.order.once or self.rows.order.open_ended) or self.most_reads <= 1

    @cached_property
    def plan(self) -> Plan:
        """The cost; raises ValueError for batches that cannot be read as often as the fit requires."""
        if not self.readable:
            raise self._unreadable()
        # Where the number of rows is not known, a million of the declared rows are planned.
        share = PLANNED_ROWS / self.rows.n_rows if self.rows.order.open_ended else 1.0
        solve = self.solve_cost()
        plan = plan_of(
            self.declared,
            solve,
            self.rows.order.resources,
            solver=self.solver,
            reason=self.account,
            notes=self.notes,
            most_evaluations=self.max_evaluations,
            share=share,
        )
        rows, (requests, in_flight), lines = self.rows, self.rows.origin.requests, list[str]()
        lines += rows.counted.notes(rows.n_rows)
        lines += [f"{one.of.found!r}: one more read finds the {one.name}" for one in self.lessons]
        lines += [*rows.origin.unnoticed, *plan.notes]
        if rows.sparse:
            lines.append("compiling: the first fit of sparse rows in each process takes 1 to 3 s longer")
        if (chosen := setting(None, "arithmetic") or place_of(rows)) not in ("", HOST.name):
            why = "sparse rows" if rows.sparse else "states or kernels for NumPy only"
            lines += shares_of_work(chosen, [one for one in self.declared if one.layout.groups], why)
        return replace(plan, notes=tuple(lines), requests=round(requests * plan.passes), flight_bytes=in_flight)

    def _unreadable(self) -> ValueError:
        reads, one = f"{self.solver} takes up to {self.most_reads:g} reads", 'PCA(solver="covariance"), ApproximatePCA'
        if self.lessons:
            maps = ", ".join(dict.fromkeys(repr(lesson.of.found) for lesson in self.lessons))
            one += ' (with nan_policy="omit", and the numbers of preprocess given)'
            reads += f", {len(self.lessons)} of them for the numbers of {maps}"
        if self.rows.order.once and (given := self.rows.order.batches) is not None:
            why = ". ".join(why_once(given.stream.batches))
            return ValueError(
                f"{reads}, but {why}, or use a fit of one read: {one}, NystromKernelPCA with given landmarks."
            )
        return ValueError(
            f"{reads}, and the number of rows must be known in advance. Pass from_batches(batches, shape=(n, d)), or "
            f"use a fit of one read, such as {one}."
        )

    def chosen(self, against: Sequence[str]) -> Self:
        """Return the same, with what is known of it, and the comparison that led to its choice."""
        found = copy(self)
        vars(found)["plan"] = replace(self.plan, reason="; ".join((self.plan.reason, *against)))
        return found


@dataclass(frozen=True)
class Fit(Reading, Generic[Found]):
    """One way to solve a problem: its reads, its solve, and the function that executes them."""

    least_price: ClassVar[float] = 0.0  # whatever the plan

    @abstractmethod
    def run(self, run: Run) -> Found:
        """Read X and solve."""

    @property
    def price(self) -> float:
        """Seconds of one core at a constant speed, by which the fits of one problem are compared.

        A fit to a tolerance is chosen only if no exact fit fits in memory, or if the best exact one takes more than
        30 seconds of one core and more than twice as long.
        """
        return max(self.least_price, (1 if self.exact else 2) * seconds(self.plan))


AnyFit = TypeVar("AnyFit", bound=Fit[object])


def seconds(plan: Plan) -> float:
    """Estimate a plan's time on one core, to compare solvers: at a constant speed, the same on every machine."""
    return max(plan.flops / FLOPS_PER_SECOND, plan.bytes_read / BYTES_PER_SECOND)


def choose(*given: Sequence[AnyFit]) -> AnyFit:
    """Return the fit with the lowest price among those that fit in memory, with the comparison as its reason.

    Each kind of fit comes in the sizes that it may have; the first size that fits in memory is compared. One kind alone
    is returned even if it does not fit: its plan reports the shortage. A fit whose least price is not below that of
    another is not planned.

    Raises
    ------
    EvaluationBudgetError, MemoryBudgetError
        If no fit is within the limits.
    """
    kinds = [kind for kind in given if kind[0].readable] or given[:1]
    if len(kinds) == 1:
        return first_that_fits(kinds[0])
    fits, unplanned = list[AnyFit](), list[str]()
    for kind in sorted(kinds, key=lambda kind: kind[0].least_price):
        if kind[0].least_price and any(fit.plan.fits and fit.price <= kind[0].least_price for fit in fits):
            unplanned.append(f"{kind[0].solver} {INEXACT}")
        else:
            fits.append(first_that_fits(kind))
    fitting = [fit for fit in fits if fit.plan.fits]
    if not fitting:
        for fit in fits:
            if fit.plan.evaluations > fit.plan.most_evaluations:
                fit.plan.check()
        raise MemoryBudgetError(
            f"{'; '.join(fit.plan.shortage() for fit in fits)}. Give each process more memory or fewer threads, "
            f"{SMALLER_CHUNKS}, request fewer components, or reduce the number of columns."
        )
    best = min(fitting, key=lambda fit: fit.price)
    return best.chosen([*(_compare(other.plan, best.plan) for other in fits if other is not best), *unplanned])


def first_that_fits(fits: Sequence[AnyFit]) -> AnyFit:
    """Return the first fit that fits in memory, or the last one, whose plan reports the shortage."""
    fitting = (fit for fit in fits[:-1] if fit.plan.process_bytes <= fit.rows.order.resources.room_bytes)
    return next(fitting, fits[-1])


def _compare(other: Plan, best: Plan) -> str:
    if not other.fits:
        return f"{other.solver} does not fit ({format_bytes(other.process_bytes)} per process)"
    ratio = seconds(other) / max(seconds(best), 1e-9)
    text = f"{other.solver} costs {ratio:,.{0 if ratio >= 100 else 1}f} times as much"
    if ratio >= 1:
        return text
    return f"{text}, but {INEXACT}"


Done = TypeVar("Done")
log = logging.getLogger("bigpca")


@contextmanager
def running(
    fit: Reading,
    *,
    progress: ProgressArgument,
    checkpoint: str | os.PathLike[str] | None = None,
    seed: int | None = None,
) -> Iterator[Run]:
    """Open the progress report and the locked checkpoint of a run that fits in memory, and close them at its end.

    Parameters
    ----------
    seed : int or None
        Kept in the checkpoint.

    Raises
    ------
    MemoryBudgetError, EvaluationBudgetError
        If the plan does not fit.
    ValueError
        If files of the input changed during the run, or a checkpoint is given for rows whose changes go unnoticed.
    """
    rows, plan, began = fit.rows, fit.plan, time.perf_counter()  # the plan: this look makes every read of `reads`
    fit.check()
    if rows.origin.unstamped and checkpoint is not None:
        raise CheckpointError(
            f"checkpoint = {str(checkpoint)!r}, but {rows.origin.unstamped}, so no run can be resumed. Fit without "
            "checkpoint=, or copy the rows to a store that records modification times, such as a local folder "
            "(bigpca.ingest)."
        )
    if rows.origin.unstamped:
        log.warning(
            "%s. If the input changed during the run, the model mixes old and new rows: fit again.",
            rows.origin.unstamped,
        )
    elif rows.origin.unnoticed:
        log.info(*rows.origin.unnoticed)
    with resolve_progress(progress) as report:
        report(PlanEvent(plan))
        done, held = False, cast("Checkpoint | None", None)

        def release() -> None:
            nonlocal held
            if held is not None:
                held.release(done=done)
            held = None

        with undone(release):
            held = None if checkpoint is None else Checkpoint(checkpoint, fit.describe(), seed)
            scheduler = "local" if rows.order.in_process else None
            run = Run(held, report, scheduler, plan.peak_bytes, declared=Run.declares(fit.declared))
            with unchanged(rows.origin, rows.origin.files_digest()):
                try:
                    fit.prepare(run)
                    yield run
                except NonFiniteError as error:
                    if (labels := rows.origin.labels) is None or rows.origin.widths:  # of other columns beside X
                        raise
                    raise labels.grid.naming(error) from None
                run.seconds = time.perf_counter() - began
            done = True


def execute(
    estimator: BaseEstimator,
    planned: Reading,
    read: Callable[[Run], Done],
    call: str,
    *,
    progress: ProgressArgument,
    checkpoint: Path | None = None,
    seed: int | None = None,
    adds: bool = False,
) -> tuple[Done, Provenance]:
    """Return the result of ``read`` in a run that is held to the plan, and the record of it.

    ``call`` is what a user called, for the record, with ``{}`` for the estimator; ``adds`` says whether the rows are
    added to those of a model.
    """
    rows = planned.rows
    with running(planned, checkpoint=checkpoint, progress=progress, seed=seed) as run, solving_on(rows.solver):
        run.adds = adds
        found = with_reads(read(run), run.reads)
    member, call = getattr(rows.origin.stored, "member", ""), call.format(called(estimator))
    made = Provenance.now(rows.origin.paths, member, rows.rows_read, call, seconds=run.seconds, reads=run.reads)
    threads = setting(estimator, "solve_threads") or (threads_here(None) if rows.order.resources.local else None)
    plan = planned.plan  # whose numbers stand beside those that were measured
    made = replace(
        made,
        planned_reads=plan.passes,
        planned_max_reads=plan.most_passes,
        planned_seconds=plan.timed(known_speed()).seconds,
        planned_bytes=plan.process_bytes * plan.resources.processes,
        solve_threads=threads,
    )
    return found, made


def with_reads(found: Done, reads: float) -> Done:
    """Return a result whose certificate, if it has one, says how often X was read."""
    certificate = getattr(found, "certificate", None)
    return found if certificate is None else replace(found, certificate=replace(certificate, n_passes=reads))  # type: ignore[type-var]


@contextmanager
def running_part(run: Run, name: str, fit: Reading) -> Iterator[None]:
    """Run a fit that was planned within the run, as a part of it with this name."""
    fit.check()
    with run.within(name, fit.declared):
        fit.prepare(run)
        yield


RandomState: TypeAlias = int | np.random.RandomState | np.random.Generator | None


def fit_seed(estimator: object) -> int:
    """Return the seed that ``random_state`` states, or the one that the last fit drew (0 before any fit).

    Raises
    ------
    TypeError, ValueError
        If ``random_state`` is not a random state.
    """
    given = getattr(estimator, "random_state", 0)
    return int(vars(estimator).get("seed_", 0)) if draws_seed(given) else check_seed(given, "random_state")


def draw_fit_seed(estimator: object, checkpoint: str | os.PathLike[str] | None = None) -> int:
    """Return the seed of a new fit; if one is drawn, a seed in the checkpoint replaces it, so that the fit resumes."""
    given = getattr(estimator, "random_state", 0)
    drawn = draw_seed(given)
    held = stored_seed(checkpoint) if checkpoint is not None and draws_seed(given) else None
    return drawn if held is None else held


def called(model: BaseEstimator) -> str:
    """The class and its parameters other than defaults, in one line."""
    return " ".join(repr(model).split())


def call_of(model: BaseEstimator, method: str, rows: Rows) -> str:
    """Return the call of a method with rows and what is beside them, for :func:`execute`."""
    given = {
        ", Y": isinstance(rows.y, Rows),
        ", y": rows.y is not None and "labels" in model._traits.accepts,
        ", sample_weight=w": rows.counted.weights is not None,
        ", covariates=Z": rows.covariates is not None,
        ", groups=groups": rows.groups is not None,
    }
    return f"{{}}.{method}(X{''.join(name for name, used in given.items() if used)})"


def unfitted(model: Model) -> Model:
    """Return an unfitted estimator with the current parameters, for a solve that waits."""
    return type(model)(**model.get_params(deep=False))
