"""``bigpca info``, ``bigpca ingest`` and ``bigpca verify``."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.description import components_table, describe_file, facts
from bigpca.cli.exits import ExitCode
from bigpca.cli.groups import grouped
from bigpca.cli.output import command_line, plain, reporting
from bigpca.cli.runs import PassCounter, reject_existing, reject_shared_paths, shown
from bigpca.cli.runtime import running
from bigpca.cli.sources import described, open_sources, recorded, shard_line, shards_of
from bigpca.errors import brief, format_bytes
from bigpca.passes.engine.events import format_seconds
from bigpca.passes.engine.progress import TerminalProgress

MAX_PARAMETER = 200  # characters


@grouped
def info(
    path: Annotated[str, typer.Argument(help="A saved model, or any source that fit can read.")],
    shows: o.Shows,
    member: o.Member = None,
) -> None:
    """Show what a model or a data store is, without reading the data. With -v, all parameters of a model."""
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet, estimators=False) as output:
        from bigpca.data.provenance import provenance_of

        made = provenance_of(path)
        lines = {} if made is None else made.lines()
        if not shows.verbose:
            lines = {name: text for name, text in lines.items() if name not in ("model digest", "versions")}
        if _is_model(Path(path)):
            record = describe_file(path)
            output.show(_model_rows(record, shows.verbose) | lines)
            if record.get("certificate", record) is not record:
                output.say("\n" + "\n".join(components_table(record)))
        else:
            from bigpca.data.keys import stored_keys  # imports the formats of labels, which models do not need

            record = _describe_source(path, member)
            size = f"{format_bytes(record['bytes'])} in {record['chunks']:,} chunk{'s'[: record['chunks'] != 1]}"
            shards = shard_line(shards_of([path]))
            rows: dict[str, object] = {"shards": shards} if shards else {}
            counts = {name: f"{record[name]:,}" for name in ("rows", "columns")}
            rows |= counts | {"dtype": record["dtype"], "size": size}
            if "stored_values" in record:
                share = record["stored_values"] / max(1, record["rows"] * record["columns"])
                rows["stored values"] = f"{record['stored_values']:,}, {100 * share:.3g} % of all"
            keys = stored_keys(path if member is None else f"{path}/{member}")
            if keys is not None:
                record["keys"] = len(keys)
                rows["keys"] = f"{len(keys):,}, such as {brief(repr(str(keys[0])))}" if len(keys) else "0"
            output.show(rows | lines)
        output.finish({"command": "info", "path": path, **record, "provenance": made})


@grouped
def ingest(
    source: o.Sources,
    reading: o.Reading,
    cluster: o.Cluster,
    shows: o.Shows,
    out: Annotated[Path | None, typer.Option(help="The Zarr store to write.")] = None,
    overwrite: o.Overwrite = False,
    dtype: Annotated[str | None, typer.Option(help="Convert to this dtype, e.g. float32.")] = None,
    chunk_rows: Annotated[int | None, typer.Option(min=1, help="Rows per chunk (default: about 64 MiB).")] = None,
    keys: Annotated[
        str | None,
        typer.Option(metavar="FILE::COLUMN", help="Store these row keys too, such as labels.csv::filename."),
    ] = None,
) -> None:
    """Copy SOURCE into one checksummed Zarr store, visible only when complete. Run it again after a stop to resume."""
    source, store = _with_output(source, out)
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        reject_shared_paths(source, store=store)
        reject_existing(store, "store", overwrite)
        import bigpca

        with running(cluster):
            data = open_sources(source, reading)
            output.show({"data": described(source, data)})
            output.resume = f"Finished chunks are kept. To resume:\n  {command_line()}"
            start = time.monotonic()
            with TerminalProgress() as bar:
                progress = shown(PassCounter(), bar, output, str(store))
                bigpca.ingest(
                    data, str(store), overwrite=overwrite, dtype=dtype, chunk_rows=chunk_rows, keys=keys,
                    progress=progress, workers_timeout=cluster.workers_timeout,
                )  # fmt: skip
        seconds = time.monotonic() - start
        record = _describe_source(str(store), None)
        size = f"{format_bytes(record['bytes'])} in {record['chunks']:,} chunk{'s'[: record['chunks'] != 1]}"
        output.show({"store": f"{store}, {record['dtype']}, {size}", "time": format_seconds(seconds)})
        output.say(f"\nNext: bigpca plan {shlex.quote(str(store))}")
        output.finish({"command": "ingest", "source": recorded(source), "out": store, "seconds": seconds, **record})


def _with_output(sources: list[str], out: Path | None) -> tuple[list[str], Path]:
    """Return sources and output: ``--out``, or the second of two paths if it cannot be a shard.

    Raises
    ------
    typer.BadParameter
        If the output is not certain.
    """
    if out is not None:
        return sources, out
    if len(sources) == 2 and (sources[1].endswith(".zarr") or not os.path.lexists(sources[1])):
        return sources[:1], Path(sources[1])
    raise typer.BadParameter("the Zarr store to write is not given. Add --out STORE, such as --out features.zarr.")


@grouped
def verify(
    path: Annotated[str, typer.Argument(help="The Zarr store to check.")],
    shows: o.Shows,
    member: o.Member = None,
) -> None:
    """Read every chunk of a Zarr store and list those that are missing, truncated or corrupted (then exit code 3)."""
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        import bigpca

        output.doing(f"reading every chunk of {path} ...")
        report = bigpca.verify(path, member=member)
        output.say(str(report))
        output.finish({"command": "verify", "ok": report.ok, **plain(report)})
        if not report.ok:
            raise typer.Exit(int(ExitCode.INPUT))


def _is_model(path: Path) -> bool:
    """Whether a directory is marked as a bigpca model, which its loader then checks."""
    from bigpca.storage.regular import read_document

    try:
        attributes = read_document(path / "zarr.json").get("attributes", {})
        return str(attributes["bigpca"]["kind"]) != "array"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _describe_source(path: str, member: str | None) -> dict[str, Any]:
    from bigpca.data.files import file_source  # without Dask

    found = file_source(path, member, "raise")
    rows, columns = found.shape
    chunks, size = len(found.row_chunks()), int(rows * found.row_bytes)
    record = {"rows": rows, "columns": columns, "dtype": str(found.dtype), "bytes": size, "chunks": chunks}
    return record if found.stored_values is None else record | {"stored_values": found.stored_values}


def _model_rows(record: dict[str, Any], verbose: bool) -> dict[str, object]:
    """Return what a model is, as rows of a table."""
    fitted = {name: record.get(name) for name in ("n_components", "n_features_in", "n_samples")}
    k, d, n = (None if value is None else f"{value:,}" for value in fitted.values())
    what = f"{record['estimator']} of {f'{n} rows x ' if n else ''}{d} columns"
    rows: dict[str, object] = {"model": what}
    if k is not None:
        rows["components"] = k
    if "solver" in record:
        rows["solver"] = record["solver"]
    if verbose:
        rows["parameters"] = [f"{name} = {brief(value, MAX_PARAMETER)}" for name, value in record["parameters"].items()]
    return rows | facts(record)
