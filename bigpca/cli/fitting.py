"""``bigpca plan`` and ``bigpca fit``."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.certificate import answer_rows, describe_answer
from bigpca.cli.groups import grouped
from bigpca.cli.output import Output, command_line, plain, reporting, table
from bigpca.cli.runs import PassCounter, open_source, reject_existing, reject_shared_paths, reject_unwritable, shown
from bigpca.cli.runtime import running
from bigpca.cli.scoring import transform_command
from bigpca.errors import format_bytes
from bigpca.passes.engine.events import format_seconds
from bigpca.passes.engine.progress import TerminalProgress
from bigpca.planning import Plan


@dataclass(frozen=True)
class Outputs:
    """Where a fit writes its results."""

    model: Annotated[Path, typer.Option(help="Where the model is saved.")] = Path("model.zarr")
    scores: Annotated[Path | None, typer.Option(help="Also write the scores, to this Zarr store.")] = None
    checkpoint: Annotated[Path | None, typer.Option(help="Store progress here; the same command then resumes.")] = None
    overwrite: o.Overwrite = False


@grouped
def plan(
    source: o.Source,
    reading: o.Reading,
    estimator: o.Estimator,
    cluster: o.Cluster,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Report what a fit would cost (solver, reads, bytes, peak memory) without reading the data."""
    with reporting(as_json, debug) as output:
        model = estimator.build(reading.missing_chunks, cluster.workers_timeout)
        with running(cluster):
            planned = model.plan(open_source(source, reading))
        output.say(str(planned))
        output.finish({"command": "plan", "source": source, "plan": _plain(planned)})


@grouped
def fit(
    source: o.Source,
    outputs: Outputs,
    reading: o.Reading,
    estimator: o.Estimator,
    cluster: o.Cluster,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Fit PCA (with --sketch an approximation), save the model and, with --scores, the scores; print plan and cost."""
    from bigpca.quality.memory import MemoryMeter

    with reporting(as_json, debug) as output:
        scores_command = transform_command(source, outputs.model, outputs.scores, reading)
        _reject_existing_outputs(source, outputs, scores_command)
        model = estimator.build(reading.missing_chunks, cluster.workers_timeout)
        with running(cluster) as client:
            data = open_source(source, reading)
            planned = model.plan(data)
            output.say(str(planned))
            reject_unwritable(outputs.model, "model", planned.output_bytes)
            reject_unwritable(outputs.scores, "scores store", _scores_bytes(data, model))
            with MemoryMeter(client) as meter:
                record = _fit_and_save(output, model, data, outputs, scores_command)
        record |= {"peak_bytes": meter.peak_bytes, "baseline_bytes": meter.baseline_bytes}
        output.say("\n" + _summary(record))
        output.finish({"command": "fit", "source": source, **record, "plan": _plain(planned)})


def _plain(planned: Plan) -> dict[str, Any]:
    return {**plain(planned), "seconds": planned.seconds}


def _reject_existing_outputs(source: str, outputs: Outputs, scores_command: str) -> None:
    reject_shared_paths(source, model=outputs.model, scores=outputs.scores, checkpoint=outputs.checkpoint)
    scores_only = ""
    if outputs.scores is not None and not os.path.lexists(outputs.scores):
        scores_only = f" To write only the scores: {scores_command}"
    reject_existing(outputs.model, "model", outputs.overwrite, scores_only)
    reject_existing(outputs.scores, "scores store", outputs.overwrite, table=True)


def _scores_bytes(data: Any, model: Any) -> int:
    """Return a lower bound of the bytes of the scores: 0 if their number is unknown before the fit."""
    rows, k = data.shape[0], model.n_components
    return int(4 * rows * k) if isinstance(k, int) and not math.isnan(rows) else 0


def _fit_and_save(output: Output, model: Any, data: Any, outputs: Outputs, scores_command: str) -> dict[str, Any]:
    """Fit, save, write scores; ``output.resume`` always explains how to resume if this stops here."""
    output.resume = _how_to_resume(outputs.checkpoint)
    counter, start = PassCounter(), time.monotonic()
    with TerminalProgress() as bar:
        checkpoint = None if outputs.checkpoint is None else str(outputs.checkpoint)
        model.fit(data, checkpoint=checkpoint, progress=shown(counter, bar))
        fitted = time.monotonic()
        model.save(str(outputs.model), overwrite=outputs.overwrite)
        output.resume = f"The model is saved in {outputs.model}."
        if outputs.scores is not None:
            output.resume += f" Finished score chunks are kept. To resume:\n  {scores_command}"
            progress = shown(PassCounter(), bar)
            model.transform(data, out=str(outputs.scores), overwrite=outputs.overwrite, progress=progress)
    end = time.monotonic()
    return {
        "n_components": int(model.n_components_),
        **describe_answer(model),
        "passes": getattr(model, "n_passes_", counter.passes),
        "groups_resumed": counter.groups_resumed,
        "seconds": {"fit": fitted - start, "scores": end - fitted, "total": end - start},
        "model": outputs.model,
        "scores": outputs.scores,
        "checkpoint": outputs.checkpoint,
    }


def _how_to_resume(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "Progress was not stored. Give --checkpoint PATH to be able to resume."
    return f"Finished segments are kept in {checkpoint}. To resume:\n  {command_line()}"


def _summary(record: dict[str, Any]) -> str:
    seconds = record["seconds"]
    time_spent = format_seconds(seconds["fit"])
    if record["scores"] is not None:
        time_spent += f" fit, {format_seconds(seconds['scores'])} scores"
    rows: dict[str, object] = {
        "components": record["n_components"],
        **answer_rows(record),
        "reads of the data": f"{record['passes']:.3g}",
        "time": time_spent,
        "peak memory": f"{format_bytes(record['peak_bytes'])} above {format_bytes(record['baseline_bytes'])} idle",
        "model": record["model"],
    }
    if record["groups_resumed"]:
        rows["resumed"] = f"{record['groups_resumed']} groups from {record['checkpoint']}"
    if record["scores"] is not None:
        rows["scores"] = record["scores"]
    return table(rows)
