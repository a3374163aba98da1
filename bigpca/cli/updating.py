"""``bigpca fit --update``: the rows that were appended to a store are added to its model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from bigpca.cli import options as o
from bigpca.cli.description import describe_file
from bigpca.cli.labels import check_columns, open_given_labels, open_given_weights
from bigpca.cli.output import reporting
from bigpca.cli.parameters import Estimator, MissingLabels
from bigpca.cli.runs import PassCounter, reject_existing, reject_shared_paths, shown
from bigpca.cli.runtime import running
from bigpca.cli.sources import described, open_sources, recorded
from bigpca.passes.engine.events import format_seconds
from bigpca.passes.engine.progress import TerminalProgress


def check_update(model: Path, estimator: Estimator, scores: Path | None, checkpoint: Path | None) -> None:
    """Reject options that an update does not use.

    Raises
    ------
    typer.BadParameter
    """
    if estimator != Estimator():
        raise typer.BadParameter(
            f"--update adds rows to {model}, which has a method and parameters of its own. Leave these options out, or "
            "fit without --update."
        )
    if scores is not None or checkpoint is not None:
        raise typer.BadParameter(
            "--update reads appended rows only, without --scores and --checkpoint. Write scores with bigpca transform."
        )


def update(
    source: list[str], old: Path, out: Path, supervision: o.Supervision, reading: o.Reading, cluster: o.Cluster,
    shows: o.Shows, *, overwrite: bool,
) -> None:  # fmt: skip
    """Add the appended rows of SOURCE to the model at ``old``, and save it at ``out``."""
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        import bigpca
        from bigpca.data.growth import appended_rows, rows_stamp
        from bigpca.data.provenance import stamping

        reject_shared_paths(source, model=out)
        reject_existing(out, "model", overwrite)
        model: Any = bigpca.load(str(old))
        model.workers_timeout = cluster.workers_timeout
        if not hasattr(model, "partial_fit"):
            raise ValueError(f"{old} is a {type(model).__name__} that takes no more rows. Fit again without --update.")
        check_columns(supervision)
        with running(cluster):
            data = open_sources(source, reading)
            rows = appended_rows(data, model.provenance_)
            given = _of_appended_rows(model, supervision, source, data, data.shape[0] - rows.shape[0])
            output.show({"data": described(source, data), "appended": f"{rows.shape[0]:,} rows"})
            start = time.monotonic()
            with TerminalProgress() as bar, stamping(rows_stamp(data, data.shape[0])):
                model.partial_fit(rows, **given, progress=shown(PassCounter(), bar, output, None))
                model.save(str(out), overwrite=overwrite)
        seconds = time.monotonic() - start
        output.show({"model": f"{out}, of {data.shape[0]:,} rows", "time": format_seconds(seconds)})
        record = {"command": "fit", "source": recorded(source), "update": old, "appended": rows.shape[0]}
        output.finish({**record, **describe_file(str(out)), "model": out, "seconds": seconds})


def _of_appended_rows(model: Any, given: o.Supervision, source: list[str], data: Any, seen: int) -> dict[str, Any]:
    """Return labels and weights of the rows after the first ``seen``, from files that have those of all rows.

    Raises
    ------
    typer.BadParameter
        If the model has labels or weights and none are given, or labels are given for a model without.
    ValueError
        If there is not one for each row of the source.
    """
    labelled, weighted = model.__sklearn_tags__().target_tags.required, _is_weighted(model)
    for name, file, own in (("labels", given.labels, labelled), ("weights", given.weights, weighted)):
        if own and file is None:
            raise typer.BadParameter(
                f"the model was fitted with {name}, so that the appended rows need theirs: give those of all rows, "
                f"--{name} FILE::COLUMN."
            )
    if given.labels is not None and not labelled:
        raise typer.BadParameter(f"{type(model).__name__} takes no labels. Leave out --labels.")
    found: dict[str, Any] = {}
    if given.labels is not None:
        found["y"] = open_given_labels(given, source, data, MissingLabels(model.missing_labels))[0][seen:]
    if given.weights is not None:
        weights = open_given_weights(given, source, data)[0]
        found |= {name: values[seen:] for name, values in weights.items()}
    return found


def _is_weighted(model: Any) -> bool:
    n = model.n_samples_
    return any(abs(getattr(model, name, n) - n) > 1e-9 * n for name in ("sum_weights_", "n_effective_"))
