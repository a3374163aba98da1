"""What a run needs around it: progress, the locked checkpoint, an input that does not change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bigpca.passes.engine.checkpoint import Checkpoint
from bigpca.passes.engine.events import PlanEvent
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.progress import ProgressArgument, resolve_progress
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan


@contextmanager
def running(
    rows: RowInput,
    description: dict[str, Any] | None,
    *,
    checkpoint: str | os.PathLike[str] | None,
    progress: ProgressArgument,
    workers_timeout: float,
    plan: Plan | None = None,
    seed: int | None = None,
) -> Iterator[RunOptions]:
    """Open what a run needs, progress and the locked checkpoint, which keeps the seed, and close it at the end.

    Raises
    ------
    ValueError
        Where files of the input changed between the reads of a run that needs several.
    """
    with resolve_progress(progress) as report:
        if plan is not None:
            report(PlanEvent(plan.solver, plan.reason, int(plan.passes + 0.999), plan.bytes_read, plan.peak_bytes))
        held = None
        if checkpoint is not None and description is not None:
            held = Checkpoint(checkpoint, description, seed)
        try:
            scheduler = "local" if rows.in_process else None
            before = rows.files_digest() if plan is not None and plan.passes > 1 else ""
            yield RunOptions(held, report, workers_timeout, scheduler, 0 if plan is None else plan.peak_bytes)
            if before and rows.files_digest() != before:
                raise ValueError(
                    "the input changed while it was read more than once: some files have another size or time of change than when "
                    "the fit began. One unchanged input was expected: a model of old and new rows would be wrong. Fit again."
                )
        finally:
            if held is not None:
                held.release()
