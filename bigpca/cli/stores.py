"""``bigpca info``, ``bigpca ingest`` and ``bigpca verify``, and how commands describe a fitted model."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from typing import Any

import typer

from bigpca.cli import options as o
from bigpca.cli.output import ExitCode, command_line, plain, reporting
from bigpca.cli.runtime import (
    KEPT,
    described,
    made_at,
    open_sources,
    recorded,
    reject_existing,
    reject_shared_paths,
    running,
    shown,
)
from bigpca.engine.events import TerminalProgress
from bigpca.engine.planning import format_seconds
from bigpca.errors import brief, listed

# ``describe`` gives the JSON record of a model; ``facts`` and ``components_table`` are its text, with what ``summary``
# has of the leading components. ``bigpca fit`` shows the model that it has fitted in the same way.
RECORDED, SHOWN = 10, 5  # leading components in JSON, and in text
KNOWN = (
    "n_components",
    "n_samples",
    "n_omitted",
    "n_targets",
    "n_unlabelled",
    "solver",
    "kernel_evaluations",
    "trace_error",
    "negative_mass",
    "alpha",
    "groups",
    "cv_errors",
)
CERTIFIED = {
    "reads": "n_passes_",
    "converged": "converged_",
    "eigenvalue_bounds": "eigenvalue_bounds_",
    "captured_variance_bounds": "captured_variance_bounds_",
    "subspace_error_bounds": "subspace_error_bounds_",
    "confidence": "bounds_confidence_",
}
LEADING = ("eigenvalue_bounds", "subspace_error_bounds")
FACTS = (
    "pattern",
    "kernel",
    "kernel_evaluations",
    "landmarks",
    "n_unlabelled",
    "n_features_selected",
    "trace_error",
    "negative_mass",
)
MAX_PARAMETER = 200  # characters


def describe(model: Any) -> dict[str, Any]:
    """Return the JSON record of a fitted model: its class and parameters, sizes, leading eigenvalues, and certificate.

    ``certificate`` is None for a fit that neither iterates nor has bounds; what the model does not have is left out.
    """
    from bigpca.plots.data import fitted, shares_or_none, whole_of

    held = fitted(model)  # whose components these are
    values = (model.get_params(deep=False) | model._steps.parameters).items()  # those of the fit
    record: dict[str, Any] = {
        "estimator": type(model).__name__,
        "parameters": {name: _written(one) for name, one in values if one is not None and name != "estimator"},
        "n_features_in": model.n_features_in_,
    }
    for name, attribute in (("pattern", "pattern_"), ("kernel", "kernel_")):
        found = getattr(model, attribute, getattr(held, attribute, None))
        record |= {} if found is None else {name: str(found)}
    for name, attribute in (("n_features_selected", "selected_"), ("landmarks", "landmark_indices_")):
        found = getattr(model, attribute, getattr(held, attribute, None))
        record |= {} if found is None else {name: len(found)}
    of_components = [attribute.removesuffix("_") for _, attribute in held._traits.summary if attribute[0] != "_"]
    found = {name: getattr(held, f"{name}_", None) for name in (*KNOWN, *of_components)}
    record |= {name: one for name, one in found.items() if one is not None}
    shares = shares_or_none(model)
    record |= {} if shares is None else {"captured": float(shares.sum()), "captured_of": whole_of(model)}
    certificate: dict[str, Any] = {name: getattr(held, attribute, None) for name, attribute in CERTIFIED.items()}
    known = {certificate["confidence"], certificate["converged"]} != {None}
    record["certificate"] = certificate if known else None
    for part in (record, certificate):
        part |= {
            name: part[name][:RECORDED] for name in (*of_components, *LEADING) if hasattr(part.get(name), "__len__")
        }
    return plain(record)  # type: ignore[no-any-return]


def facts(model: Any, record: Mapping[str, Any]) -> dict[str, object]:
    """Return what is known of an answer as a whole, as rows of a table: as a report says it.

    >>> import bigpca as bp
    >>> facts(bp.PCA(1).fit([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]), {})["captured"]
    '100 % of the variance'
    """
    from bigpca.plots.data import captured, fitted
    from bigpca.report.describing import bounds_light, converged_light

    found = {name: record[name] for name in FACTS if record.get(name)}
    rows: dict[str, object] = {
        name.removeprefix("n_").replace("_", " "): one if isinstance(one, str) else f"{one:,.6g}"
        for name, one in found.items()
    }
    if "groups" in record:
        rows["groups"] = f"{len(record['groups']):,}: {listed(record['groups'])}"
    if share := captured(model):
        rows["captured"] = share
    return rows | {light.name: light.text for light in (converged_light(fitted(model)), bounds_light(fitted(model)))}


def components_table(model: Any) -> str:
    """Return the leading components as text: what :meth:`bigpca.PCA.summary` has of them.

    >>> import bigpca as bp
    >>> print(components_table(bp.PCA(1).fit([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])))
               variance  share  cumulative
    component
    pca0              4      1           1
    """
    summary = model.summary()
    if summary.columns.empty:  # of a sketch
        return ""
    text = summary.head(SHOWN).to_string(float_format="{:.6g}".format)
    lines = [line.rstrip() for line in text.splitlines()]
    more = len(summary) - SHOWN
    return "\n".join([*lines, f"... and {more:,} more"] if more > 0 else lines)


def info(path: str, shows: o.Shows, *, member: str | None = None, references: list[str] | None = None) -> None:
    """Show what a model or a data store is, without reading the data. With -v, all parameters of a model.

    Parameters
    ----------
    path : PATH
        A saved model, or any source that fit can read.

    Examples
    --------
    bigpca info model.zarr -v
    bigpca info features.zarr
    """
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        from bigpca.data.provenance import provenance_of

        made = provenance_of(path)
        lines = {} if made is None else made.lines()
        if not shows.verbose:
            lines = {name: text for name, text in lines.items() if name not in ("model digest", "versions")}
        from bigpca.storage.carriers import kind_at

        if kind_at(path) not in (None, "array"):
            from bigpca.estimators.loading import load

            model = load(path, references=references or ())
            record = describe(model)
            output.show(_model_rows(record, shows.verbose) | facts(model, record) | lines)
            if table := components_table(model):
                output.say(f"\n{table}")
        else:
            from bigpca.data.keys import stored_keys  # imports the formats of labels, which models do not need

            record, rows = _describe_source(path, member)
            keys = stored_keys(path if member is None else f"{path}/{member}")
            if keys is not None:
                record["keys"] = len(keys)
                rows["keys"] = f"{len(keys):,}, such as {brief(repr(str(keys[0])))}" if len(keys) else "0"
            output.show(rows | lines)
        output.finish({"command": "info", "path": path, **record, "provenance": made})


def ingest(
    source: list[str],
    reading: o.SourceOptions,
    cluster: o.Cluster,
    shows: o.Shows,
    *,
    out: str | None = None,
    overwrite: bool = False,
    dtype: str | None = None,
    chunk_rows: int | None = None,
    keys: str | None = None,
) -> None:
    """Copy SOURCE into one checksummed Zarr store, visible only when complete. Run it again after a stop to resume.

    Parameters
    ----------
    out : PATH
        The Zarr store to write.
    dtype : DTYPE
        Convert to this dtype, e.g. float32.
    chunk_rows : INT >= 1
        Rows per chunk (default: about 64 MiB).
    keys : FILE::COLUMN
        Store these row keys too, such as labels.csv::filename.

    Examples
    --------
    bigpca ingest shards/*.npy --out features.zarr
    bigpca ingest features.h5 --member fc7 --dtype float16 --out features.zarr
    """
    source, store = _with_output(source, out)
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        reject_shared_paths(source, store=store)
        import bigpca
        from bigpca.data.keys import row_keys
        from bigpca.data.provenance import fingerprint_of, recording
        from bigpca.data.sources import rows_stamp

        with running(cluster):
            data = open_sources(source, reading)
            output.show({"data": described(source, data)})
            own, stamp = None if keys is None else row_keys(keys), rows_stamp(data, data.shape[0])
            fingerprint = fingerprint_of(None, stamp, [reading.arguments, own, dtype, chunk_rows])
            made = not overwrite and made_at(store, fingerprint) is not None
            if not made:
                reject_existing(store, overwrite, "rows")
            output.resume = f"Finished chunks are kept. To resume:\n  {command_line()}"
            start = time.monotonic()
            if made:
                output.show({"kept": KEPT.format(store)})
            else:
                to: dict[str, Any] = {"overwrite": overwrite, "dtype": dtype, "chunk_rows": chunk_rows, "keys": own}
                with TerminalProgress() as bar, recording(stamp=stamp, fingerprint=fingerprint):
                    bigpca.ingest(data, store, **to, progress=shown(bar, output, store))
        seconds = time.monotonic() - start
        record, rows = _describe_source(store, None)
        output.show({"store": [store, *rows["data"]], "time": format_seconds(seconds)})
        output.say(f"\nNext: bigpca plan {shlex.quote(store)}")
        output.finish({"command": "ingest", "source": recorded(source), "out": store, "seconds": seconds, **record})


def _with_output(sources: list[str], out: str | None) -> tuple[list[str], str]:
    """Return sources and output: ``--out``, or the second of two paths if it cannot be a shard.

    Raises
    ------
    typer.BadParameter
        If the output is not certain.
    """
    if out is not None:
        return sources, out
    if len(sources) == 2 and (sources[1].endswith(".zarr") or not os.path.lexists(sources[1])):
        return sources[:1], sources[1]
    raise typer.BadParameter("the Zarr store to write is not given. Add --out STORE, such as --out features.zarr.")


def verify(path: str, shows: o.Shows) -> None:
    """Read every chunk of a Zarr store and list those that are missing or damaged (then exit code 3).

    Parameters
    ----------
    path : PATH
        The Zarr store to check.

    Examples
    --------
    bigpca verify features.zarr
    """
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        import bigpca

        output.doing(f"reading every chunk of {path} ...")
        report = bigpca.data.verify(path)
        output.say(str(report))
        output.finish({"command": "verify", "ok": report.ok, **plain(report)})
        if not report.ok:
            raise typer.Exit(int(ExitCode.INPUT))


def _describe_source(path: str, member: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON record of rows, and what is shown of them."""
    from bigpca.data.files import file_source  # without Dask

    found = file_source(path, member, "raise")
    rows, columns = found.shape
    chunks, size = len(found.row_chunks()), int(rows * found.row_bytes)
    record = {"rows": rows, "columns": columns, "dtype": str(found.dtype), "bytes": size, "chunks": chunks}
    record |= {} if found.stored_values is None else {"stored_values": found.stored_values}
    return record, {"data": described([path], found)}


def _written(value: Any) -> Any:
    """Return a parameter as JSON has it: a number or text as it is, a record as its call, an array by its shape."""
    if hasattr(value, "shape") and value.shape:
        return f"numbers of shape {value.shape}"
    return value if isinstance(value, str | bool | int | float) else " ".join(str(value).split())


def _model_rows(record: dict[str, Any], verbose: bool) -> dict[str, object]:
    """Return what a model is, as rows of a table."""
    fitted = {name: record.get(name) for name in ("n_components", "n_features_in", "n_samples")}
    k, d, n = (None if value is None else f"{value:,}" for value in fitted.values())
    what = f"{record['estimator']} of {f'{n} rows x ' if n else ''}{d} columns"
    if "n_targets" in record:
        what += f", and {record['n_targets']:,} of targets"
    rows: dict[str, object] = {"model": what}
    if k is not None:
        rows["components"] = k
    if "solver" in record:
        rows["solver"] = record["solver"]
    if verbose:
        rows["parameters"] = [
            f"{name} = {brief(str(value), MAX_PARAMETER)}" for name, value in record["parameters"].items()
        ]
    return rows
