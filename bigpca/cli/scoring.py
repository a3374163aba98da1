"""``bigpca transform``."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.groups import grouped
from bigpca.cli.output import command_line, reporting
from bigpca.cli.runs import PassCounter, reject_existing, reject_shared_paths, shown
from bigpca.cli.runtime import running
from bigpca.cli.sources import described, open_sources, recorded
from bigpca.errors import counted, format_bytes
from bigpca.passes.engine.events import format_seconds
from bigpca.passes.engine.progress import TerminalProgress


@grouped
def transform(
    source: o.Sources,
    reading: o.Reading,
    cluster: o.Cluster,
    shows: o.Shows,
    model: Annotated[Path, typer.Option(help="The model saved by a fit.")] = Path("model.zarr"),
    scores: Annotated[
        Path, typer.Option(help="Where the scores are written: a Zarr store, or a .npy or .parquet table.")
    ] = Path("scores.zarr"),
    keys: Annotated[
        str | None, typer.Option(help="Store these row keys too: FILE::COLUMN, such as labels.csv::filename.")
    ] = None,
    statistics: Annotated[
        str | None, typer.Option(help="Write these statistics of each row in place of scores: t2,spe,mahalanobis.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Store the scores as float16, float32 or float64.")] = None,
    references: o.References = None,
    overwrite: o.Overwrite = False,
) -> None:
    """Write the scores of SOURCE under a saved model to a store or a table. Run it again after a stop to resume."""
    names = None if statistics is None else [name.strip() for name in statistics.split(",")]
    if names is not None and dtype is not None:
        raise typer.BadParameter("statistics are written as float64. Leave out --dtype.")
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        from bigpca.quality.memory import MemoryMeter

        reject_shared_paths([*source, str(model)], scores=scores)
        reject_existing(scores, "scores store", overwrite, table=True)
        fitted = _load(model, [*source, *(references or ())], names)
        fitted.workers_timeout = cluster.workers_timeout
        with running(cluster) as client:
            data = open_sources(source, reading)
            output.show({"data": described(source, data)})
            output.resume = f"Finished score chunks are kept. To resume:\n  {command_line()}"
            start = time.monotonic()
            with MemoryMeter(client) as meter, TerminalProgress() as bar:
                progress = shown(PassCounter(), bar, output, str(scores))
                to = {"out": str(scores), "overwrite": overwrite, "progress": progress, "keys": keys}
                if names is None:
                    written = fitted.transform(data, dtype=dtype, **to)
                else:
                    written = fitted.statistics(data, names, **to)
        seconds = time.monotonic() - start
        shape = " x ".join(map(counted, written.shape, ("row", "column")))
        output.show(
            {
                "scores" if names is None else "statistics": f"{scores}, {shape}",
                "time": format_seconds(seconds),
                "memory": f"{format_bytes(meter.peak_bytes)} at most",
            }
        )
        record: dict[str, Any] = {"command": "transform", "source": recorded(source), "model": model, "scores": scores}
        record |= {} if names is None else {"statistics": names}
        record |= {"shape": written.shape, "seconds": seconds, "peak_bytes": meter.peak_bytes}
        output.finish(record | {"baseline_bytes": meter.baseline_bytes})


def _load(model: Path, references: list[str], statistics: list[str] | None) -> Any:
    """Return the model; ValueError if it has no statistics of rows, and some are wanted."""
    import bigpca

    fitted = bigpca.load(str(model), references=references)
    if statistics is not None and not hasattr(fitted, "statistics"):
        raise ValueError(
            f"a {type(fitted).__name__} has no {', '.join(statistics)} of rows: these are of a PCA, or of an "
            "ApproximatePCA with orthogonal components. Leave out --statistics, or fit one of them."
        )
    return fitted


def transform_command(sources: list[str], model: Path, scores: Path | None, reading: o.Reading) -> str:
    """Return the command that writes only the scores, quoted for a shell.

    >>> transform_command(["my dump.h5"], Path("m.zarr"), Path("s.zarr"), o.Reading("fc7"))
    "bigpca transform 'my dump.h5' --model m.zarr --scores s.zarr --member fc7"
    """
    command = ["bigpca", "transform", *sources, "--model", str(model), "--scores", str(scores)]
    return shlex.join(command + reading.arguments)
