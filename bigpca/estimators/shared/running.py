"""A run and its surroundings: the progress report, the locked checkpoint, and the check that the input is unchanged."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from bigpca.blas import Caller
from bigpca.data.provenance import Provenance
from bigpca.errors import CheckpointError
from bigpca.estimators.shared.fit import Reading
from bigpca.estimators.shared.outputs import Path
from bigpca.passes.engine.checkpoint import Checkpoint
from bigpca.passes.engine.events import PlanEvent
from bigpca.passes.engine.progress import ProgressArgument, resolve_progress
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.speed import known_speed
from bigpca.passes.holes import find_fill
from bigpca.planning import Plan
from bigpca.settings import setting

Read = TypeVar("Read")
log = logging.getLogger("bigpca")


@contextmanager
def running(
    fit: Reading,
    *,
    progress: ProgressArgument,
    workers_timeout: float,
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
    fit.check_readable()
    fit.plan.check()
    rows, plan, began = fit.rows, fit.plan, time.perf_counter()
    if rows.unstamped and checkpoint is not None:
        raise CheckpointError(
            f"checkpoint = {os.fspath(checkpoint)!r}, but {rows.unstamped}, so no run can be resumed. Fit without "
            "checkpoint=, or copy the rows to a store that has times of change, such as a local folder (bigpca.ingest)."
        )
    if rows.unstamped:
        log.warning("%s, so the model may mix old and new rows", rows.unstamped)
    with resolve_progress(progress) as report:
        report(PlanEvent(plan.solver, plan.reason, int(plan.passes + 0.999), plan.bytes_read, plan.peak_bytes))
        held = None if checkpoint is None else Checkpoint(checkpoint, fit.identity(), seed, Caller())
        try:
            scheduler = "local" if rows.in_process else None
            before = rows.files_digest()
            run = Run(held, report, workers_timeout, scheduler, plan.peak_bytes, declared=Run.declares(fit.declared))
            for counted in rows.counting:
                run.read_beside(counted)
            find_fill(run, rows)
            yield run
            run.seconds = time.perf_counter() - began
            rows.check_unchanged(before)
        finally:
            if held is not None:
                held.release()


def execute(
    estimator: object, planned: Reading, read: Callable[[Run], Read], call: str, *, progress: ProgressArgument,
    checkpoint: Path | None = None, seed: int | None = None,
) -> tuple[Read, Provenance]:  # fmt: skip
    """Return the result of ``read`` in a run that is held to the plan, and the record of it.

    ``call`` is what a user called, for the record.
    """
    with running(
        planned,
        checkpoint=checkpoint,
        progress=progress,
        workers_timeout=setting(estimator, "workers_timeout"),
        seed=seed,
    ) as run:
        found = read(run)
    return found, made_by(call, planned, run)


def made_by(call: str, fit: Reading, run: Run) -> Provenance:
    """Return the provenance of a model that a finished run made."""
    rows = fit.rows
    made = Provenance.now(rows.paths, rows.member, rows.rows_read, call, seconds=run.seconds, reads=run.reads)
    return with_plan(made, fit.plan)


def with_plan(made: Provenance, plan: Plan) -> Provenance:
    """Return the record with the numbers of the plan, to compare them with what was measured."""
    return replace(
        made,
        planned_reads=plan.passes,
        planned_max_reads=plan.most_passes,
        planned_seconds=replace(plan, speed=known_speed()).seconds,
        planned_bytes=plan.process_bytes * plan.resources.processes,
    )
