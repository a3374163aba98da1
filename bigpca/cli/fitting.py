"""``bigpca plan`` and ``bigpca fit``."""

from __future__ import annotations

import math
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.description import components_table, describe_file, facts
from bigpca.cli.groups import grouped
from bigpca.cli.labels import check_columns, open_given_labels, open_given_weights
from bigpca.cli.output import Output, command_line, plain, reporting
from bigpca.cli.parameters import Estimator
from bigpca.cli.runs import PassCounter, reject_existing, reject_shared_paths, reject_unwritable, shown
from bigpca.cli.runtime import running
from bigpca.cli.scoring import transform_command
from bigpca.cli.sources import described, open_sources, recorded
from bigpca.cli.updating import check_update, update
from bigpca.errors import format_bytes
from bigpca.passes.engine.events import format_seconds
from bigpca.passes.engine.progress import TerminalProgress
from bigpca.planning import Plan, format_estimate, format_times


@dataclass(frozen=True)
class Outputs:
    """Where a fit writes its results."""

    model: Annotated[Path, typer.Option(help="Where the model is saved.")] = Path("model.zarr")
    scores: Annotated[
        Path | None, typer.Option(help="Also write the scores: to a Zarr store, or a .npy or .parquet table.")
    ] = None
    checkpoint: Annotated[
        Path | None, typer.Option(help="Store progress here, so that the same command resumes after a stop.")
    ] = None
    update: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Add to this model the rows that were appended since; no others are read."),
    ] = None
    overwrite: o.Overwrite = False


@grouped
def plan(
    source: o.Sources,
    estimator: Estimator,
    supervision: o.Supervision,
    reading: o.Reading,
    cluster: o.Cluster,
    shows: o.Shows,
) -> None:
    """Show what a fit would cost (solver, reads, time, memory) without reading the data."""
    estimator.check(supervision.labels is not None)
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        model = estimator.build(reading.missing_chunks, cluster.workers_timeout)
        check_columns(supervision)
        with running(cluster):
            data = _opened(output, source, reading)
            planned = _planned(output, model, source, data, estimator, supervision).plan
        _show_plan(output, planned, shows)
        output.finish({"command": "plan", "source": recorded(source), "plan": _plain(planned)})


@grouped
def fit(
    source: o.Sources,
    outputs: Outputs,
    estimator: Estimator,
    supervision: o.Supervision,
    reading: o.Reading,
    cluster: o.Cluster,
    shows: o.Shows,
) -> None:
    """Fit a model and save it, with --scores also the scores; shows the plan, the components and the cost."""
    estimator.check(supervision.labels is not None and outputs.update is None)
    if outputs.update is not None:
        check_update(outputs.update, estimator, outputs.scores, outputs.checkpoint)
        model, out, overwrite = outputs.update, outputs.model, outputs.overwrite
        update(source, model, out, supervision, reading, cluster, shows, overwrite=overwrite)
        return
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        from bigpca.quality.memory import MemoryMeter

        scores_command = transform_command(source, outputs.model, outputs.scores, reading)
        model = estimator.build(reading.missing_chunks, cluster.workers_timeout)
        check_columns(supervision)
        data = _opened(output, source, reading)  # a wrong path is told before what is wrong with outputs
        _reject_existing_outputs(source, outputs, scores_command)
        with running(cluster) as client:
            found = _planned(output, model, source, data, estimator, supervision)
            planned = found.plan
            _show_plan(output, planned, shows, outputs)
            reject_unwritable(outputs.model, "model", planned.output_bytes)
            reject_unwritable(outputs.scores, "scores store", _scores_bytes(data, model))
            with MemoryMeter(client) as meter:
                record = _fit_and_save(output, model, found, outputs, scores_command)
        record |= {"peak_bytes": meter.peak_bytes, "baseline_bytes": meter.baseline_bytes}
        _show_result(output, record, planned, source)
        output.finish({"command": "fit", "source": recorded(source), **record, "plan": _plain(planned)})


@dataclass(frozen=True)
class Planned:
    """A plan, and the rows, labels and weights that it is of."""

    plan: Plan
    data: Any
    labels: Any
    weights: dict[str, Any]


def _opened(output: Output, source: list[str], reading: o.Reading) -> Any:
    output.doing(f"opening {source[0]} ...")
    return open_sources(source, reading)


def _planned(
    output: Output,
    model: Any,
    source: list[str],
    data: Any,
    estimator: Estimator,
    supervision: o.Supervision,
) -> Planned:
    """Return the plan and what it is of, after showing what was found."""
    rows: dict[str, object] = {"data": described(source, data)}
    labels, how = open_given_labels(supervision, source, data, estimator.missing_labels)
    if how:
        rows["labels"] = how
    weights, how = open_given_weights(supervision, source, data)
    if how:
        rows["weights"] = how
    output.show(rows)
    output.doing("planning ...")
    return Planned(model.plan(data, labels, **weights), data, labels, weights)


def _show_plan(output: Output, planned: Plan, shows: o.Shows, outputs: Outputs | None = None) -> None:
    """Show a plan in five rows, or in full with ``--verbose``."""
    if shows.verbose:
        output.show(dict(_numbered(planned.rows())))
        return
    reason, *_ = planned.reason.split(";")
    about = "" if planned.most_passes is None else "about "
    reads = f"all rows {about}{format_times(planned.passes)}, {format_bytes(planned.bytes_read)}"
    if planned.most_passes is not None:
        reads += f"; at most {format_times(planned.most_passes)}"
    threads = planned.resources.threads * planned.resources.processes
    each = "" if planned.resources.processes == 1 else f" in each of {planned.resources.processes} processes"
    writes = [f"a model of {format_bytes(planned.output_bytes)}"]
    if outputs is not None:
        writes = [f"{outputs.model}, {format_bytes(planned.output_bytes)}"]
        writes += [str(path) for path in (outputs.scores, outputs.checkpoint) if path is not None]
    rows: dict[str, object] = {"solver": f"{planned.solver}: {reason}", "reads": reads}
    if planned.seconds is not None:
        rows["time"] = f"{format_estimate(planned.seconds)} on {threads} thread{'s'[: threads != 1]}"
    limit = f"{planned.resources.where} is {format_bytes(planned.limit_bytes)}"
    rows["memory"] = f"{format_bytes(planned.process_bytes)}{each}; {limit}"
    output.show(rows | {"writes": writes})


def _numbered(rows: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    """Collect the texts of rows with the same name."""
    names = dict.fromkeys(name for name, _ in rows)
    return [(name, [text for one, text in rows if one == name]) for name in names]


def _plain(planned: Plan) -> dict[str, Any]:
    return {**plain(planned), "seconds": planned.seconds}


def _reject_existing_outputs(source: list[str], outputs: Outputs, scores_command: str) -> None:
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


def _fit_and_save(
    output: Output, model: Any, planned: Planned, outputs: Outputs, scores_command: str
) -> dict[str, Any]:
    """Fit, save, write scores; ``output.resume`` always explains how to resume if this stops here."""
    data = planned.data
    from bigpca.data.growth import rows_stamp
    from bigpca.data.provenance import stamping

    output.resume = _how_to_resume(outputs.checkpoint)
    counter, start = PassCounter(), time.monotonic()
    with TerminalProgress() as bar:
        checkpoint = None if outputs.checkpoint is None else str(outputs.checkpoint)
        with stamping(rows_stamp(data, data.shape[0])):
            progress = shown(counter, bar, output, checkpoint)
            model.fit(data, planned.labels, **planned.weights, checkpoint=checkpoint, progress=progress)
        fitted = time.monotonic()
        model.save(str(outputs.model), overwrite=outputs.overwrite)
        output.resume = f"The model is saved in {outputs.model}."
        if outputs.scores is not None:
            output.resume += f" Finished score chunks are kept. To resume:\n  {scores_command}"
            progress = shown(PassCounter(), bar, output, str(outputs.scores))
            model.transform(data, out=str(outputs.scores), overwrite=outputs.overwrite, progress=progress)
    end = time.monotonic()
    record = describe_file(str(outputs.model))
    return {
        **{name: value for name, value in record.items() if name not in ("parameters", "n_passes")},
        "passes": getattr(model, "n_passes_", counter.passes),
        "groups_resumed": counter.groups_resumed,
        "seconds": {
            "fit": fitted - start,
            "scores": None if outputs.scores is None else end - fitted,
            "total": end - start,
        },
        "model": outputs.model,
        "scores": outputs.scores,
        "checkpoint": outputs.checkpoint,
    }


def _how_to_resume(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "Progress was not stored. Give --checkpoint PATH to be able to resume."
    return f"Finished segments are kept in {checkpoint}. To resume:\n  {command_line()}"


def _show_result(output: Output, record: dict[str, Any], planned: Plan, source: list[str]) -> None:
    """Show the leading components, what is known of them, the cost, and what to do next."""
    seconds = record["seconds"]
    output.say("\n" + "\n".join(components_table(record)) + "\n")
    time_spent = format_seconds(seconds["fit"])
    if record["scores"] is not None:
        time_spent += f" fit, {format_seconds(seconds['scores'])} scores"
    alone = planned.resources.processes == 1
    expected = f" (planned: {format_bytes(planned.process_bytes)})" if alone else ", in all processes"
    rows = facts(record) | {
        "reads": f"all rows {format_times(record['passes'])}",
        "time": time_spent,
        "memory": f"{format_bytes(record['peak_bytes'])} at most{expected}",
        "model": str(record["model"]),
    }
    if record["scores"] is not None:
        rows["scores"] = str(record["scores"])
    if record["checkpoint"] is not None:
        rows["checkpoint"] = f"no longer needed: rm -r {shlex.quote(str(record['checkpoint']))}"
    output.show(rows)
    output.say(f"\nNext: {_next(record, source)}")


def _next(record: dict[str, Any], source: list[str]) -> str:
    model = shlex.quote(str(record["model"]))
    if record["scores"] is not None:
        return f"bigpca report {model} --scores {shlex.quote(str(record['scores']))}"
    return f"bigpca plot scree {model}" if "variance_captured" in record else f"bigpca report {model}"
