"""``bigpca plan``, ``bigpca fit`` (with ``--update`` for appended rows) and ``bigpca transform``."""

from __future__ import annotations

import math
import shlex
import time
from dataclasses import dataclass
from typing import Any

import typer

from bigpca.cli import options as o
from bigpca.cli.options import ModelOptions
from bigpca.cli.output import Streams, command_line, plain, reporting
from bigpca.cli.runtime import (
    KEPT,
    check_key,
    described,
    made_at,
    open_beside,
    open_sources,
    recorded,
    reject_existing,
    reject_shared_paths,
    reject_unwritable,
    running,
    shown,
)
from bigpca.cli.stores import components_table, describe, facts
from bigpca.engine.events import PassCounter, TerminalProgress
from bigpca.engine.planning import Plan, format_seconds, format_times
from bigpca.errors import an, counted, format_bytes
from bigpca.settings import setting
from bigpca.storage.files import kind_of
from bigpca.storage.outputs import STORES, check_extension

READ_BEFORE = "nothing again: an earlier run read all rows"
DECIDING = ("solver", "rows", "reads", "time", "peak memory", "limit")  # shown of a plan without --verbose


def transform(
    source: list[str],
    reading: o.SourceOptions,
    cluster: o.Cluster,
    shows: o.Shows,
    *,
    model: str = "model.zarr",
    scores: str = "scores.zarr",
    keys: str | None = None,
    statistics: str | None = None,
    dtype: str | None = None,
    shrinkage: str | None = None,
    references: list[str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the scores of SOURCE under a saved model to a store or a table. Run it again after a stop to resume.

    Parameters
    ----------
    model : PATH
        The model saved by a fit.
    scores : PATH
        Where the scores are written: a Zarr store, or a .npy or .parquet table.
    keys : FILE::COLUMN
        Store these row keys too, such as labels.csv::filename.
    statistics : NAMES
        Write these statistics of each row instead of scores: t2,spe,mahalanobis.
    dtype : DTYPE
        Store the scores as float16, float32 or float64.
    shrinkage : RULE
        Correct the scores of new rows, where rows of the fit were few beside columns: oadp or factor.

    Examples
    --------
    bigpca transform new.npy --model model.zarr --scores new_scores.zarr
    bigpca transform new.npy --model model.zarr --statistics t2,spe --scores judged.parquet
    """
    names = None if statistics is None else [name.strip() for name in statistics.split(",")]
    if names is not None and (dtype is not None or shrinkage is not None):
        option = "--shrinkage" if dtype is None else "--dtype"
        raise typer.BadParameter(f"statistics are written as float64, from plain scores. Leave out {option}.")
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        import bigpca
        from bigpca.data.keys import row_keys
        from bigpca.data.provenance import fingerprint_of, recording
        from bigpca.data.sources import rows_stamp
        from bigpca.quality.memory import MemoryMeter

        reject_shared_paths([*source, model], scores=scores)
        fitted = _load(model, [*source, *(references or ())], names)
        with running(cluster) as client:
            data = open_sources(source, reading)
            output.show({"data": described(source, data)})
            own, stamp = None if keys is None else row_keys(keys), rows_stamp(data, data.shape[0])
            given = ["transform", fitted._digest(), reading.arguments, own, names, dtype, shrinkage]
            fingerprint = fingerprint_of(fitted, stamp, given)
            made = not overwrite and made_at(scores, fingerprint) is not None
            if not made:
                reject_existing(scores, overwrite, "scores")
            output.resume = f"Finished score chunks are kept. To resume:\n  {command_line()}"
            start = time.monotonic()
            with (
                MemoryMeter(client) as meter,
                TerminalProgress() as bar,
                recording(stamp=stamp, fingerprint=fingerprint),
            ):
                progress = shown(bar, output, scores)
                to = {"out": scores, "overwrite": overwrite, "progress": progress, "keys": own}
                if made:
                    output.show({"kept": KEPT.format(scores)})
                    written = bigpca.open(scores)
                elif names is None:
                    written = fitted.transform(data, dtype=dtype, shrinkage=shrinkage, **to)
                else:
                    written = fitted.statistics(data, names, **to)
        seconds = time.monotonic() - start
        shape = " x ".join(map(counted, written.shape, ("row", "column")))
        output.show(
            {
                "scores" if names is None else "statistics": f"{scores}, {shape}",
                "time": format_seconds(seconds),
                "peak memory": format_peak(meter.peak_bytes),
            }
        )
        record: dict[str, Any] = {"command": "transform", "source": recorded(source), "model": model, "scores": scores}
        record |= {} if names is None else {"statistics": names}
        record |= {"shape": written.shape, "seconds": seconds, "peak_bytes": meter.peak_bytes}
        output.finish(record | {"baseline_bytes": meter.baseline_bytes})


def _load(model: str, references: list[str], statistics: list[str] | None) -> Any:
    """Return the model; ValueError if it has no statistics of rows, and some are wanted."""
    import bigpca

    fitted = bigpca.load(model, references=references)
    if statistics is not None and not hasattr(fitted, "statistics"):
        raise ValueError(
            f"--statistics {','.join(statistics)} requires a PCA, or an ApproximatePCA with orthogonal components, but "
            f"this model is {an(type(fitted).__name__)}. Leave out --statistics."
        )
    return fitted


def update(
    source: list[str],
    old: str,
    outputs: Outputs,
    supervision: o.Labelling,
    reading: o.SourceOptions,
    cluster: o.Cluster,
    shows: o.Shows,
) -> None:
    """Add the appended rows of SOURCE to the model at ``old``, and save it."""
    if outputs.scores is not None or outputs.checkpoint is not None:
        raise typer.BadParameter(
            "--update reads only appended rows, and takes neither --scores nor --checkpoint. Write scores with "
            "bigpca transform."
        )
    out = outputs.model
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        import bigpca
        from bigpca.data.provenance import fingerprint_of, recording
        from bigpca.data.sources import rows_stamp

        reject_shared_paths(source, model=out)
        check_extension(out, *STORES)
        model: Any = bigpca.load(old)
        if not hasattr(model, "partial_fit"):
            raise ValueError(
                f"{old} is {an(type(model).__name__)}, which cannot take more rows. Fit again without --update."
            )
        check_key(supervision)
        with running(cluster):
            data = open_sources(source, reading)
            rows = _appended_rows(data, model.provenance_)
            given = _of_appended_rows(model, supervision, data, data.shape[0] - rows.shape[0])
            output.show({"data": described(source, data), "appended": f"{rows.shape[0]:,} rows"})
            start, stamp = time.monotonic(), rows_stamp(data, data.shape[0])
            fingerprint = fingerprint_of(model, stamp, [reading.arguments, model.provenance_.model, given])
            if not rows.shape[0]:
                out = old  # which has all rows: nothing is written
            elif made_at(out, fingerprint, type(model).__name__) is None:
                reject_existing(out, outputs.overwrite, "model")
                with TerminalProgress() as bar, recording(stamp=stamp, fingerprint=fingerprint):
                    model.partial_fit(rows, **given, progress=shown(bar, output, None))
                    model.save(out, overwrite=outputs.overwrite)
        seconds = time.monotonic() - start
        output.show({"model": f"{out}, of {data.shape[0]:,} rows", "time": format_seconds(seconds)})
        record = {"command": "fit", "source": recorded(source), "update": old, "appended": rows.shape[0]}
        output.finish({**record, **describe(model), "model": out, "seconds": seconds})


def _appended_rows(X: Any, seen: Any) -> Any:
    """Return the rows of X that were appended since a model was made of the others.

    Raises
    ------
    ValueError
        If the model has no record of its rows; and if these changed, are gone, or are elsewhere.
    """
    from bigpca.data.dask_arrays import rows_from, source_of, view_of
    from bigpca.data.sources import rows_stamp

    n = int(X.shape[0])
    if seen is None or seen.stamp is None:
        raise ValueError(
            "the model has no record of its rows: it was not made from a store by `bigpca fit`, or was merged. "
            "Fit again, or add new rows with partial_fit."
        )
    if n < seen.rows or rows_stamp(X, seen.rows) != seen.stamp:
        source = source_of(view_of(X)[0])
        place = source.path if source is not None else "the source"
        raise ValueError(
            f"the model was fitted to {seen.rows:,} rows of {seen.source}. The first {seen.rows:,} of the {n:,} rows "
            f"of {place} are not the same: they changed, moved or were removed, or are read with other options, "
            "such as --columns. Give the options of the fit, or fit again without --update."
        )
    return rows_from(X, seen.rows)


def _of_appended_rows(model: Any, given: o.Labelling, data: Any, seen: int) -> dict[str, Any]:
    """Return what belongs to the rows after the first ``seen``, from files that have that of all rows.

    Raises
    ------
    typer.BadParameter
        If the model has labels, weights or groups and none are given, or labels are given for a model without.
    ValueError
        If there is not one for each row of the source.
    """
    targeted = hasattr(model, "n_targets_")
    owned = {"labels": model.__sklearn_tags__().target_tags.required and not targeted, "targets": targeted}
    # Weights of 1 leave no trace: their sum and their effective number are the number of rows.
    n = model.n_samples_
    sums = [getattr(model, name, n) for name in ("sum_weights_", "n_effective_")]
    owned["weights"] = any(abs(one - n) > 1e-9 * n for one in sums)
    owned["groups"] = hasattr(model, "groups_")
    for name, own in owned.items():
        if own and getattr(given, name) is None:
            raise typer.BadParameter(
                f"the model was fitted with {name}. Give --{name} {o.NEEDED.get(name, 'FILE::COLUMN')} for all rows, "
                "old and new."
            )
        if name in o.NEEDED and getattr(given, name) is not None and not own:
            raise typer.BadParameter(f"{type(model).__name__} takes no {name}. Leave out --{name}.")
    found, _ = open_beside(given, data, getattr(model, "missing_labels", "raise"))
    return {name: values[seen:] for name, values in found.items()}


@dataclass(frozen=True)
class Outputs:
    """Where a fit writes its results.

    Parameters
    ----------
    model : PATH
        Where the model is saved.
    scores : PATH
        Also write the scores, to a Zarr store or a .npy or .parquet table.
    checkpoint : PATH
        Store progress here, so that the same command resumes after a stop.
    update : MODEL
        Add the rows appended since the fit to this model; no others are read.
    """

    model: str = "model.zarr"
    scores: str | None = None
    checkpoint: str | None = None
    update: str | None = None
    overwrite: bool = False


def plan(
    source: list[str],
    estimator: ModelOptions,
    supervision: o.Labelling,
    reading: o.SourceOptions,
    cluster: o.Cluster,
    shows: o.Shows,
) -> None:
    """Show what a fit would cost (solver, reads, time, memory) without reading the data.

    Examples
    --------
    bigpca plan features.zarr -k 64
    bigpca plan features.zarr -k 64 --solver krylov -v
    bigpca plan features.zarr -k 64 --kernel rbf --gamma 0.1 --landmarks 1000
    """
    estimator.check(supervision)
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        model = estimator.build()
        check_key(supervision)
        with running(cluster), estimator.settings():
            data = _opened(output, source, reading)
            planned = _planned(output, model, source, data, supervision, reading).plan
        _show_plan(output, planned, shows)
        output.finish({"command": "plan", "source": recorded(source), "plan": _plain(planned)})


def fit(
    source: list[str],
    outputs: Outputs,
    estimator: ModelOptions,
    supervision: o.Labelling,
    reading: o.SourceOptions,
    cluster: o.Cluster,
    shows: o.Shows,
) -> None:
    """Fit a model and save it, with --scores also the scores; shows the plan, the components and the cost.

    Examples
    --------
    bigpca fit features.zarr -k 64 --scores scores.zarr --checkpoint run.ckpt
    bigpca fit shards/*.npy -k 0.95 --model features95.zarr
    bigpca fit features.zarr --method fisher --labels labels.csv::species --key filename
    bigpca fit features.zarr -k 64 --kernel rbf --gamma 0.1 --landmarks 1000
    bigpca fit features.zarr --method ridge --targets answers.zarr --alpha 0.1,1,10
    bigpca fit maps.npy -k 3 --pattern "n c h w -> (n h w) c"
    """
    if outputs.update is not None:
        if estimator != ModelOptions():
            raise typer.BadParameter(
                f"--update adds rows to {outputs.update}, which has a method and parameters of its own. Leave out "
                "-k and all other options of the method, or fit without --update."
            )
        update(source, outputs.update, outputs, supervision, reading, cluster, shows)
        return
    estimator.check(supervision)
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        from bigpca.quality.memory import MemoryMeter

        model = estimator.build()
        check_key(supervision)
        data = _opened(output, source, reading)  # a wrong path is told before what is wrong with outputs
        read = [*source, *filter(None, [supervision.targets])]
        reject_shared_paths(read, model=outputs.model, scores=outputs.scores, checkpoint=outputs.checkpoint)
        instead = f" If rows were appended since that fit, add them: --update {outputs.model}."
        with running(cluster) as client, estimator.settings():
            found = _planned(output, model, source, data, supervision, reading)
            planned = found.plan
            made = None if outputs.overwrite else made_at(outputs.model, found.fingerprint, type(model).__name__)
            if made is None:
                reject_existing(outputs.model, outputs.overwrite, "model", instead)
            if made is None or not made_at(outputs.scores, found.fingerprint):
                reject_existing(outputs.scores, outputs.overwrite, "scores")
            _show_plan(output, planned, shows, outputs)
            kept = min(planned.state_bytes, setting(model, "keep_state_bytes"))
            reject_unwritable(outputs.model, "model", kept)
            reject_unwritable(outputs.scores, "scores store", _scores_bytes(data, model))
            with MemoryMeter(client) as meter:
                if made is not None:
                    model = _load(outputs.model, read, None)
                record = _fit_and_save(output, model, found, outputs, made is not None)
        record |= {"peak_bytes": meter.peak_bytes, "baseline_bytes": meter.baseline_bytes}
        _show_result(output, model, record, planned)
        output.finish({"command": "fit", "source": recorded(source), **record, "plan": _plain(planned)})


@dataclass(frozen=True)
class Planned:
    """A plan, the rows that it is of and what a fit takes beside them, and what identifies the rows and all of it."""

    plan: Plan
    data: Any
    beside: dict[str, Any]
    stamp: str | None
    fingerprint: str | None


def _opened(output: Streams, source: list[str], reading: o.SourceOptions) -> Any:
    output.doing(f"opening {source[0]} ...")
    return open_sources(source, reading)


def _planned(
    output: Streams, model: Any, source: list[str], data: Any, supervision: o.Labelling, reading: o.SourceOptions
) -> Planned:
    """Return the plan and what it is of, after showing what was found."""
    from bigpca.data.provenance import fingerprint_of
    from bigpca.data.sources import rows_stamp

    beside, how = open_beside(supervision, data, getattr(model, "missing_labels", "raise"))
    output.show({"data": described(source, data), **how})
    output.doing("planning ...")
    plan, stamp = model.plan(data, **beside), rows_stamp(data, data.shape[0])
    return Planned(plan, data, beside, stamp, fingerprint_of(model, stamp, [reading.arguments, beside]))


def _show_plan(output: Streams, planned: Plan, shows: o.Shows, outputs: Outputs | None = None) -> None:
    """Show the deciding rows of a plan, or with ``--verbose`` all of them, and what is written."""
    cells = [cell for cell in planned.cells() if shows.verbose or cell[0] in DECIDING]
    writes = [] if outputs is None else [outputs.model, outputs.scores, outputs.checkpoint]
    output.show(dict(_numbered(cells)) | {"writes": [path for path in writes if path is not None]})


def _numbered(rows: list[tuple[str, ...]]) -> list[tuple[str, Any]]:
    """Collect the texts of rows with the same name."""
    names = dict.fromkeys(name for name, _ in rows)
    return [(name, [text for one, text in rows if one == name]) for name in names]


def _plain(planned: Plan) -> dict[str, Any]:
    return {**plain(planned), "seconds": planned.seconds}


def _scores_bytes(data: Any, model: Any) -> int:
    """Return a lower bound of the bytes of the scores: 0 if their number is unknown before the fit."""
    rows, k = data.shape[0], getattr(model, "n_components", None)
    return int(4 * rows * k) if isinstance(k, int) and not math.isnan(rows) else 0


def _fit_and_save(output: Streams, model: Any, planned: Planned, outputs: Outputs, made: bool) -> dict[str, Any]:
    """Fit, save, write scores; ``output.resume`` always explains how to resume if this stops here.

    What an equal command has ``made`` before is kept: the model, and then its scores.
    """
    data = planned.data
    from bigpca.data.provenance import recording

    checkpoint = outputs.checkpoint
    output.resume = "Progress was not stored. Give --checkpoint PATH to be able to resume."
    if checkpoint is not None:
        output.resume = f"Finished segments are kept in {checkpoint}. To resume:\n  {command_line()}"
    counter, start = PassCounter(), time.monotonic()
    with TerminalProgress() as bar, recording(stamp=planned.stamp, fingerprint=planned.fingerprint):
        if made:
            output.show({"kept": KEPT.format(outputs.model)})
        else:
            heard = [counter, *shown(bar, output, checkpoint)]
            model.fit(data, **planned.beside, checkpoint=checkpoint, progress=heard)
        fitted = time.monotonic()
        if not made:
            model.save(outputs.model, overwrite=outputs.overwrite)
        output.resume = f"The model is saved in {outputs.model}."
        if outputs.scores is not None and not (made and made_at(outputs.scores, planned.fingerprint)):
            output.resume += " Finished chunks of scores are kept: run the same command again, or bigpca transform."
            progress = shown(bar, output, outputs.scores)
            model.transform(data, out=outputs.scores, overwrite=outputs.overwrite, progress=progress)
    end = time.monotonic()
    record = describe(model)
    del record["parameters"]
    return {
        **record,
        "passes": model.provenance_.reads if counter.passes else 0,
        "groups_resumed": counter.groups_resumed,
        "fit_peak_bytes": None if made else model.provenance_.peak_bytes,
        "seconds": {
            "fit": fitted - start,
            "scores": None if outputs.scores is None else end - fitted,
            "total": end - start,
        },
        "model": outputs.model,
        "scores": outputs.scores,
        "checkpoint": outputs.checkpoint,
    }


def format_peak(peak: int) -> str:
    """Return a measured peak: below 1 MiB it depends on which pages the process has touched before."""
    return f"{format_bytes(peak)} at most" if peak >= 1 << 20 else "under 1 MiB"


def _show_result(output: Streams, model: Any, record: dict[str, Any], planned: Plan) -> None:
    """Show the leading components, what is known of them, the cost, and what to do next."""
    seconds = record["seconds"]
    output.say(f"\n{components_table(model)}\n")
    time_spent = format_seconds(seconds["fit"])
    if record["scores"] is not None:
        time_spent += f" fit, {format_seconds(seconds['scores'])} scores"
    alone = planned.resources.processes == 1
    expected = f" (planned: {format_bytes(planned.process_bytes)})" if alone else ", in all processes"
    peak = record["peak_bytes"] if record["fit_peak_bytes"] is None else record["fit_peak_bytes"]
    rows = facts(model, record) | {
        "reads": f"all rows {format_times(record['passes'])}" if record["passes"] else READ_BEFORE,
        "time": time_spent,
        "peak memory": f"{format_peak(peak)}{expected}",
        "model": str(record["model"]),
    }
    if record["scores"] is not None:
        rows["scores"] = str(record["scores"])
    if record["checkpoint"] is not None and kind_of(record["checkpoint"]) == "disk":  # objects are deleted
        rows["checkpoint"] = f"no longer needed: rm -r {shlex.quote(str(record['checkpoint']))}"
    output.show(rows)
    scores = [] if record["scores"] is None else ["--scores", record["scores"]]
    output.say(f"\nNext: {shlex.join(['bigpca', 'report', record['model'], *scores])}")
