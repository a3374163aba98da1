"""``bigpca fit --update``: the rows that were appended to a store are added to its model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from bigpca.cli import options as o
from bigpca.cli.description import describe_file
from bigpca.cli.output import reporting
from bigpca.cli.runs import PassCounter, reject_existing, reject_shared_paths, shown
from bigpca.cli.runtime import running
from bigpca.cli.sources import described, open_sources, recorded
from bigpca.passes.engine.events import format_seconds
from bigpca.passes.engine.progress import TerminalProgress


def check_update(
    model: Path, estimator: o.Estimator, supervision: o.Supervision, scores: Path | None, checkpoint: Path | None
) -> None:
    """Reject options that an update does not use.

    Raises
    ------
    typer.BadParameter
    """
    if estimator != o.Estimator() or supervision != o.Supervision():
        raise typer.BadParameter(
            f"--update adds rows to {model}, which has a method, parameters and labels of its own. Leave these options "
            "out, or fit without --update."
        )
    if scores is not None or checkpoint is not None:
        raise typer.BadParameter(
            "--update reads appended rows only, without --scores and --checkpoint. Write scores with bigpca transform."
        )


def update(
    source: list[str], old: Path, out: Path, reading: o.Reading, cluster: o.Cluster, shows: o.Shows, *, overwrite: bool
) -> None:
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
        with running(cluster):
            data = open_sources(source, reading)
            rows = appended_rows(data, model.provenance_)
            output.show({"data": described(source, data), "appended": f"{rows.shape[0]:,} rows"})
            start = time.monotonic()
            with TerminalProgress() as bar, stamping(rows_stamp(data, data.shape[0])):
                model.partial_fit(rows, progress=shown(PassCounter(), bar, output, None))
                model.save(str(out), overwrite=overwrite)
        seconds = time.monotonic() - start
        output.show({"model": f"{out}, of {data.shape[0]:,} rows", "time": format_seconds(seconds)})
        record = {"command": "fit", "source": recorded(source), "update": old, "appended": rows.shape[0]}
        output.finish({**record, **describe_file(str(out)), "model": out, "seconds": seconds})
