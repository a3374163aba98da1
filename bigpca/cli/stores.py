"""``bigpca info``, ``bigpca ingest`` and ``bigpca verify``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.certificate import answer_rows, describe_answer
from bigpca.cli.exits import ExitCode
from bigpca.cli.groups import grouped
from bigpca.cli.output import command_line, plain, reporting, table
from bigpca.cli.runs import PassCounter, open_source, reject_existing, shown
from bigpca.cli.runtime import running
from bigpca.data.provenance import provenance_of
from bigpca.errors import format_bytes
from bigpca.passes.engine.events import format_seconds
from bigpca.passes.engine.progress import TerminalProgress


def info(
    path: Annotated[str, typer.Argument(help="A saved model, or any source that fit can read.")],
    member: o.Member = None,
    references: o.References = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Show the contents of a model or a data store, without reading the data."""
    with reporting(as_json, debug) as output:
        record = (
            _describe_model(path, references or [])
            if _is_model(Path(path))
            else _describe_source(path, o.Reading(member))
        )
        made = provenance_of(path)
        output.say(table(_readable(record) | ({} if made is None else made.lines())))
        output.finish({"command": "info", "path": path, **record, "provenance": made})


@grouped
def ingest(
    source: o.Source,
    out: Annotated[Path, typer.Argument(help="The Zarr store to write.")],
    reading: o.Reading,
    cluster: o.Cluster,
    overwrite: o.Overwrite = False,
    dtype: Annotated[str | None, typer.Option(help="Convert to this dtype, e.g. float32.")] = None,
    chunk_rows: Annotated[int | None, typer.Option(min=1, help="Rows per chunk (default: about 64 MiB).")] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Copy SOURCE into one checksummed Zarr store, visible only when complete. Run it again after a stop to resume."""
    with reporting(as_json, debug) as output:
        reject_existing(out, "store", overwrite)
        import bigpca

        with running(cluster):
            data = open_source(source, reading)
            output.resume = f"Finished chunks are kept. To resume:\n  {command_line()}"
            start = time.monotonic()
            with TerminalProgress() as bar:
                progress = shown(PassCounter(), bar)
                bigpca.ingest(
                    data, str(out), overwrite=overwrite, dtype=dtype, chunk_rows=chunk_rows, progress=progress,
                    workers_timeout=cluster.workers_timeout,
                )  # fmt: skip
        seconds = time.monotonic() - start
        record = _describe_source(str(out), o.Reading())
        output.say(f"{out}: {record['rows']:,} rows x {record['columns']:,}, {format_seconds(seconds)}")
        output.finish({"command": "ingest", "source": source, "out": out, "seconds": seconds, **record})


def verify(
    path: Annotated[str, typer.Argument(help="The Zarr store to check.")],
    member: o.Member = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Read every chunk of a Zarr store and list those that are missing, truncated or corrupted (then exit code 3)."""
    with reporting(as_json, debug) as output:
        import bigpca

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


def _describe_model(path: str, references: list[str]) -> dict[str, Any]:
    import bigpca

    model = bigpca.load(path, references=references)
    record: dict[str, Any] = {"model": " ".join(repr(model).split())}
    names = ("n_components_", "n_features_in_", "n_samples_", "n_passes_", "solver_", "noise_variance_")
    record |= {name.rstrip("_"): getattr(model, name) for name in names if hasattr(model, name)}
    record |= (
        describe_answer(model)
        if hasattr(model, "explained_variance_")
        else {"columns": len(model.get_feature_names_out())}
    )
    return plain(record)  # type: ignore[no-any-return]


def _describe_source(path: str, reading: o.Reading) -> dict[str, Any]:
    data = open_source(path, reading)
    rows, columns = data.shape
    return {
        "rows": rows,
        "columns": columns,
        "dtype": str(data.dtype),
        "bytes": rows * columns * data.dtype.itemsize,
        "blocks": data.numblocks[0],
    }


def _readable(record: dict[str, Any]) -> dict[str, object]:
    """Return a record as rows of a table: numbers with thousands separators, and an answer with its bounds."""
    rows: dict[str, object] = {}
    for name, value in record.items():
        if name == "bytes":
            rows[name] = format_bytes(value)
        elif isinstance(value, int | float):
            rows[name.replace("_", " ")] = f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
        elif isinstance(value, str):
            rows[name.replace("_", " ")] = value
    return rows | (answer_rows(record) if "certificate" in record else {})
