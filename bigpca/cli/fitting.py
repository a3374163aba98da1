"""``bigpca plan`` and ``bigpca fit``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.output import Output, command_line, plain, reporting, table
from bigpca.cli.runs import PassCounter, open_source, refuse_existing, refuse_shared_paths, refuse_unwritable, shown
from bigpca.cli.runtime import ClusterOptions, running
from bigpca.cli.scoring import transform_command
from bigpca.errors import format_bytes
from bigpca.passes.events import format_seconds
from bigpca.passes.progress import TerminalProgress
from bigpca.quality.memory import MemoryMeter


@dataclass(frozen=True)
class Outputs:
    """Where a fit leaves its results."""

    model: Path
    scores: Path | None
    checkpoint: Path | None
    overwrite: bool


def plan(
    source: o.Source,
    n_components: o.Components = "all",
    member: o.Member = None,
    solver: o.SolverOption = o.Solver.AUTO,
    center: o.Center = True,
    scale: o.Scale = False,
    whiten: o.Whiten = False,
    missing_chunks: o.Missing = o.MissingChunks.RAISE,
    nan_policy: o.Nan = o.NanPolicy.RAISE,
    memory_limit: o.MemoryLimit = None,
    workers: o.Workers = None,
    threads: o.Threads = None,
    memory: o.Memory = None,
    scheduler: o.Scheduler = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Say what a fit would cost (solver, passes, bytes, peak memory) without reading the data."""
    estimator = o.EstimatorOptions(
        n_components, solver, center, scale, whiten, nan_policy, missing_chunks, memory_limit, None
    )
    with reporting(as_json, debug) as output:
        pca = estimator.build()
        with running(ClusterOptions(workers, threads, memory, scheduler)):
            planned = pca.plan(open_source(source, member, missing_chunks))
        output.say(str(planned))
        output.finish({"command": "plan", "source": source, "plan": plain(planned)})


def fit(
    source: o.Source,
    n_components: o.Components = "all",
    model: Annotated[Path, typer.Option(help="Where the model is saved.")] = Path("model.zarr"),
    scores: Annotated[Path | None, typer.Option(help="Also write the scores, to this Zarr store.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Keep progress here; the same command then resumes.")] = None,
    overwrite: o.Overwrite = False,
    member: o.Member = None,
    solver: o.SolverOption = o.Solver.AUTO,
    center: o.Center = True,
    scale: o.Scale = False,
    whiten: o.Whiten = False,
    missing_chunks: o.Missing = o.MissingChunks.RAISE,
    nan_policy: o.Nan = o.NanPolicy.RAISE,
    memory_limit: o.MemoryLimit = None,
    solve_threads: o.SolveThreads = None,
    workers: o.Workers = None,
    threads: o.Threads = None,
    memory: o.Memory = None,
    scheduler: o.Scheduler = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Fit PCA, save the model and, with --scores, write the scores. Prints the plan first and the cost after."""
    estimator = o.EstimatorOptions(
        n_components, solver, center, scale, whiten, nan_policy, missing_chunks, memory_limit, solve_threads
    )
    outputs = Outputs(model, scores, checkpoint, overwrite)
    with reporting(as_json, debug) as output:
        scores_command = transform_command(source, model, scores, member, str(missing_chunks))
        _refuse_existing_outputs(source, outputs, scores_command)
        pca = estimator.build()
        with running(ClusterOptions(workers, threads, memory, scheduler)) as client:
            data = open_source(source, member, missing_chunks)
            planned = pca.plan(data)
            output.say(str(planned))
            refuse_unwritable(model, "model", planned.output_bytes)
            refuse_unwritable(scores, "scores store", _scores_bytes(data, pca))
            with MemoryMeter(client) as meter:
                record = _fit_and_save(output, pca, data, outputs, scores_command)
        record |= {"peak_bytes": meter.peak_bytes, "baseline_bytes": meter.baseline_bytes}
        output.say("\n" + _summary(record))
        output.finish({"command": "fit", "source": source, **record, "plan": plain(planned)})


def _refuse_existing_outputs(source: str, outputs: Outputs, scores_command: str) -> None:
    refuse_shared_paths(source, model=outputs.model, scores=outputs.scores, checkpoint=outputs.checkpoint)
    scores_only = ""
    if outputs.scores is not None and not outputs.scores.exists():
        scores_only = f" To write only the scores: {scores_command}"
    refuse_existing(outputs.model, "model", outputs.overwrite, scores_only)
    refuse_existing(outputs.scores, "scores store", outputs.overwrite)


def _scores_bytes(data: Any, pca: Any) -> int:
    """Least bytes of the scores: 0 where their number is not known before the fit."""
    rows, k = data.shape[0], pca.n_components
    return int(4 * rows * k) if isinstance(k, int) and rows == rows else 0


def _fit_and_save(output: Output, pca: Any, data: Any, outputs: Outputs, scores_command: str) -> dict[str, Any]:
    """Fit, save, write scores; ``output.resume`` always says how to go on if this stops here."""
    output.resume = _how_to_resume(outputs.checkpoint)
    counter, start = PassCounter(), time.monotonic()
    with TerminalProgress() as bar:
        checkpoint = None if outputs.checkpoint is None else str(outputs.checkpoint)
        pca.fit(data, checkpoint=checkpoint, progress=shown(counter, bar))
        fitted = time.monotonic()
        pca.save(str(outputs.model), overwrite=outputs.overwrite)
        output.resume = f"The model is saved in {outputs.model}."
        if outputs.scores is not None:
            output.resume += f" Finished score chunks are kept. To go on:\n  {scores_command}"
            progress = shown(PassCounter(), bar)
            pca.transform(data, out=str(outputs.scores), overwrite=outputs.overwrite, progress=progress)
    end = time.monotonic()
    return {
        "n_components": int(pca.n_components_),
        "variance_captured": float(pca.explained_variance_ratio_.sum()),
        "passes": counter.passes,
        "groups_resumed": counter.groups_resumed,
        "seconds": {"fit": fitted - start, "scores": end - fitted, "total": end - start},
        "model": outputs.model,
        "scores": outputs.scores,
        "checkpoint": outputs.checkpoint,
    }


def _how_to_resume(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "Progress was not kept. Give --checkpoint PATH to be able to resume."
    return f"Finished segments are kept in {checkpoint}. To resume:\n  {command_line()}"


def _summary(record: dict[str, Any]) -> str:
    seconds = record["seconds"]
    time_spent = format_seconds(seconds["fit"])
    if record["scores"] is not None:
        time_spent += f" fit, {format_seconds(seconds['scores'])} scores"
    rows: dict[str, object] = {
        "components": record["n_components"],
        "variance captured": f"{100 * record['variance_captured']:.2f} %",
        "passes over the data": record["passes"],
        "time": time_spent,
        "peak memory": f"{format_bytes(record['peak_bytes'])} over {format_bytes(record['baseline_bytes'])} idle",
        "model": record["model"],
    }
    if record["groups_resumed"]:
        rows["resumed"] = f"{record['groups_resumed']} groups from {record['checkpoint']}"
    if record["scores"] is not None:
        rows["scores"] = record["scores"]
    return table(rows)
