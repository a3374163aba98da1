"""``bigpca info``, ``bigpca ingest`` and ``bigpca verify``; models are described from their attributes alone."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.output import ExitCode, command_line, plain, reporting
from bigpca.cli.runtime import (
    described,
    open_sources,
    recorded,
    reject_existing,
    reject_shared_paths,
    running,
    shard_line,
    shards_of,
    shown,
)
from bigpca.errors import brief, format_bytes
from bigpca.passes.engine.events import TerminalProgress
from bigpca.planning import format_seconds

if TYPE_CHECKING:
    from bigpca.storage import Group

# ``describe`` gives the JSON record of a model, ``shown`` its text: what it is, then a table of the leading components
# with their eigenvalues, bounds and shares. ``bigpca fit`` shows the file that it has just written in the same way.
RECORDED, SHOWN = 10, 5  # leading components in JSON, and in text
SUBSPACES = ("residuals", "deficits", "lowest", "upper")
BOUNDS = "certificate__"
ARRAYS = (
    "explained_variance",
    "eigenvalues",
    "axes__values",
    "statistics__moments__count",
    "rotation_matrix",
    *(BOUNDS + name for name in ("eigenvalue_bounds", "captured_variance_bounds")),
    *(f"{BOUNDS}subspaces__{name}" for name in SUBSPACES),
    "correlations",
    "singular_values",
    "squared_covariance_fraction",
    "r2",
    "chosen",
    "cv_scores",
)
HELD = "estimator__"  # prefix of the arrays of a model that another one holds
FACTS = ("trace_error", "negative_mass", "n_unlabelled")
# What a table shows of each component, and what it is called; of Ridge, R^2 of each target.
VALUES = {
    "eigenvalues": "eigenvalue",
    "explained_variance": "eigenvalue",
    "correlations": "correlation",
    "singular_values": "covariance",
    "r2": "R^2",
}
MAX_PARAMETER = 200  # characters


def describe_file(path: str) -> dict[str, Any]:
    """Return the JSON record of a saved model; reads its attributes and the arrays of at most k values.

    Raises
    ------
    ModelFormatError
        As :func:`bigpca.load`, but only what is read is checked.
    """
    from bigpca.storage import MODEL_FORMAT, read_group

    names = [prefix + name for prefix in ("", HELD, 2 * HELD) for name in ARRAYS]
    return describe(read_group(path, kind=None, newest=MODEL_FORMAT, names=names))


def describe(stored: Group) -> dict[str, Any]:
    """Return the JSON record of a model: its class and parameters, sizes, leading eigenvalues, and certificate.

    Parameters
    ----------
    stored : Group
        With the arrays named in ``ARRAYS``, and the shapes of all.

    Returns
    -------
    dict
        ``certificate`` is None if the answer is exact to rounding; values that the model does not have are left out.
    """
    arrays, attributes, shapes = stored.arrays, stored.attributes, stored.shapes
    parameters = attributes["parameters"] | attributes.get("fitted_with", {})
    if attributes.get("estimator") is not None:  # of selected columns, or a rotation: another model is held
        inner = replace(stored, **attributes["estimator"], arrays=_held(arrays), shapes=_held(shapes))
        own = {name: value for name, value in parameters.items() if value is not None and name != "estimator"}
        named = {"estimator": stored.kind, "parameters": own, "n_features_in": attributes["n_features"]}
        named |= {"n_features_selected": shapes["selected"][0]} if "selected" in shapes else {}
        named |= _pattern(attributes)
        held = describe(inner)
        return {
            **(_rotated(held, inner.arrays, arrays["rotation_matrix"]) if "rotation_matrix" in arrays else held),
            **plain(named),
        }
    record: dict[str, Any] = {
        "estimator": stored.kind,
        "parameters": {name: value for name, value in parameters.items() if value is not None},
        **_pattern(attributes),
    }
    if parameters.get("kernel") is not None:
        record["kernel"] = kernel_text(parameters)
    values = arrays.get("explained_variance", _eigenvalues(arrays))
    rows, left_out = arrays.get("statistics__moments__count"), attributes.get("statistics__omitted")
    known = {
        "n_components": None if values is None else len(values),
        "n_features_in": attributes["n_features"],
        "n_samples": attributes.get("n_samples", None if rows is None else rows.item()),
        "n_omitted": attributes.get("n_omitted", left_out),
        "solver": attributes.get("solver"),
        "kernel_evaluations": attributes.get("kernel_evaluations"),
        "landmarks": shapes["landmark_transform"][0] if "landmark_transform" in shapes else None,
        **{name: attributes.get(name) for name in FACTS},
    }
    record |= {name: value for name, value in known.items() if value is not None}
    if "n_targets" in attributes:
        return plain(record | _of_targets(arrays, attributes))  # type: ignore[no-any-return]
    return plain(record | ({} if values is None else _answer(stored)))  # type: ignore[no-any-return]


def _of_targets(arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model of two sides found."""
    names = ("correlations", "singular_values", "squared_covariance_fraction", "r2")
    found = {name: arrays[name] for name in names if name in arrays}
    if "chosen" in arrays:
        scores, chosen = arrays["cv_scores"], arrays["chosen"]
        one = scores.mean(axis=1).argmax()
        best = [scores[:, i].argmax() if attributes["per_target"] else one for i in range(len(chosen))]
        found = {
            "r2": scores[best, range(len(best))],
            "alpha": chosen if attributes["per_target"] else chosen[0].item(),
        }
    sizes = {"n_targets": attributes["n_targets"], "n_components": len(next(iter(found.values())))}
    return {"certificate": None, **sizes, **{n: one if n == "alpha" else one[:RECORDED] for n, one in found.items()}}


def _rotated(record: dict[str, Any], arrays: Mapping[str, Any], T: Any) -> dict[str, Any]:
    """Return the record of a PCA with the variances of its rotated components, as :class:`bigpca.RotatedPCA` has them.

    With loadings ``A = V' sqrt(Lambda)`` and T, they are ``diag((T'T)^-1 T' Lambda T)``. Bounds of eigenvalues and of
    leading axes are of no rotated component.
    """
    import numpy as np

    variances = arrays["explained_variance"]
    turned = np.diag(np.linalg.inv(T.T @ T) @ (T.T * variances) @ T)[:RECORDED]
    unit = record["explained_variance"][0] / variances[0]
    share = record["explained_variance_ratio"][0] / variances[0]
    found = record | {"explained_variance": turned * unit, "explained_variance_ratio": turned * share, "rotated": True}
    if record.get("certificate") is not None:
        found["certificate"] = record["certificate"] | {"eigenvalue_bounds": None, "subspace_error_bounds": None}
    return plain(found)  # type: ignore[no-any-return]


def _pattern(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return what is a row, if the model was fitted on rows of a pattern."""
    if attributes.get("rows") is None:
        return {}
    from bigpca.data.patterns import RowPattern

    return {"pattern": str(RowPattern.from_json(attributes["rows"]))}


def _held(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(HELD): value for name, value in values.items() if name.startswith(HELD)}


def _answer(stored: Group) -> dict[str, Any]:
    arrays, attributes = stored.arrays, stored.attributes
    answer: dict[str, Any] = {"certificate": _certificate(arrays, attributes)}
    eigenvalues = _eigenvalues(arrays)
    if eigenvalues is not None:
        answer["eigenvalues"] = eigenvalues[:RECORDED]
    weight = attributes.get("weight_sums", [attributes.get("n_samples", 1)])[0]
    scale = weight - 1 if "total" in attributes and weight > 1 else 1
    variances = arrays.get("explained_variance")
    total = attributes.get("total_variance", attributes.get("total"))
    if variances is None and (total is None or "n_unlabelled" in attributes):  # eigenvalues of labels
        return answer
    values = eigenvalues if variances is None else variances
    shares = values / total if total and total > 0 else 0.0 * values
    return answer | {
        "variance_captured": float(shares.sum()),
        "explained_variance": values[:RECORDED] / scale,
        "explained_variance_ratio": shares[:RECORDED],
    }


def _certificate(arrays: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any] | None:
    bounds = arrays.get(f"{BOUNDS}eigenvalue_bounds")
    if bounds is None:
        return None
    turned = None
    if f"{BOUNDS}subspaces__upper" in arrays:
        from bigpca.solvers.certificates import SubspaceBounds

        turned = SubspaceBounds(**{name: arrays[f"{BOUNDS}subspaces__{name}"] for name in SUBSPACES}).errors[:RECORDED]
    return {
        "reads": attributes.get(f"{BOUNDS}n_passes"),
        "converged": attributes.get(f"{BOUNDS}converged"),
        "eigenvalue_bounds": bounds[:RECORDED],
        "captured_variance_bounds": arrays.get(f"{BOUNDS}captured_variance_bounds"),
        "subspace_error_bounds": turned,
        "confidence": attributes[f"{BOUNDS}confidence"],
    }


def _eigenvalues(arrays: Mapping[str, Any]) -> Any:
    """Return the eigenvalues of a kernel model, or of one of labels."""
    return arrays.get("eigenvalues", arrays.get("axes__values"))


def kernel_text(parameters: Mapping[str, Any]) -> str:
    """Return a stored kernel as text.

    >>> kernel_text({"kernel": {"kernel": "RBF", "gamma": 0.1}}), kernel_text({"kernel": "rbf", "gamma": None})
    ('RBF(gamma=0.1)', 'rbf')
    """
    kernel = parameters["kernel"]
    if isinstance(kernel, Mapping):
        values = ", ".join(
            f"{name}={kernel_text({'kernel': value}) if isinstance(value, Mapping) else repr(value)}"
            for name, value in kernel.items()
            if name != "kernel"
        )
        return f"{kernel['kernel']}({values})"
    gamma = parameters.get("gamma")
    return str(kernel) if gamma is None else f"{kernel}, gamma = {gamma:g}"


def facts(record: Mapping[str, Any]) -> dict[str, object]:
    """Return what is known of an answer as a whole, as rows of a table.

    >>> facts({"kernel": "RBF(gamma=0.1)", "kernel_evaluations": 90_000, "certificate": None})
    {'kernel': 'RBF(gamma=0.1)', 'kernel evaluations': '90,000'}
    """
    rows: dict[str, object] = {name: record[name] for name in ("pattern", "kernel") if name in record}
    for name in ("kernel_evaluations", "landmarks", "n_unlabelled", "n_features_selected"):
        if name in record:
            rows[name.removeprefix("n_").replace("_", " ")] = f"{record[name]:,}"
    rows |= {name.replace("_", " "): f"{record[name]:.3g}" for name in FACTS[:3] if name in record}
    certificate = record.get("certificate")
    if "variance_captured" in record:
        rows["captured"] = f"{100 * record['variance_captured']:.2f} % of the variance"
    if certificate is None:
        return rows
    if certificate["captured_variance_bounds"] is not None:
        low, high = (100 * share for share in certificate["captured_variance_bounds"])
        rows["captured"] = f"{rows['captured']} ({low:.2f} to {high:.2f})"
    confidence = certificate["confidence"]
    rows["bounds hold"] = "always" if confidence == 1 else f"with probability {confidence:.6g}"
    if certificate.get("subspace_error_bounds"):
        turned = " ".join(f"{sine:.2g}" for sine in certificate["subspace_error_bounds"][:SHOWN])
        rows["leading axes"] = f"sine of the angle to the true subspaces at most {turned}"
    if certificate["converged"] is not None:
        rows["converged"] = "yes" if certificate["converged"] else "NO"
    return rows


def components_table(record: Mapping[str, Any]) -> list[str]:
    """Return the leading components as lines of a table, with their shares of the variance where they have one.

    >>> certificate = {"eigenvalue_bounds": [[3.9, 4.2]]}
    >>> answer = {"estimator": "PCA", "explained_variance": [4.0], "explained_variance_ratio": [0.8]}
    >>> print("\\n".join(components_table(answer | {"certificate": certificate})))
    component  eigenvalue          %  so far
         pca0  4 (3.9 to 4.2)  80.00   80.00
    """
    kind = next((name for name in VALUES if name in record), "eigenvalues")
    values = record.get(kind, [])[:SHOWN]
    bounds = (record.get("certificate") or {}).get("eigenvalue_bounds") or [None] * len(values)
    shares = record.get("explained_variance_ratio", record.get("squared_covariance_fraction", []))[:SHOWN]
    called = "variance" if record.get("rotated") else VALUES[kind]
    rows = [["component", called] + (["%", "so far"] if len(shares) else [])]
    prefix = o.prefix_of(record["estimator"])
    for index, (value, bound) in enumerate(zip(values, bounds, strict=False)):
        text = f"{value:.6g}" if bound is None else f"{value:.6g} ({bound[0]:.6g} to {bound[1]:.6g})"
        rows.append([f"{prefix}{index}", text])
        if len(shares):
            rows[-1] += [f"{100 * shares[index]:.2f}", f"{100 * sum(shares[: index + 1]):.2f}"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    more = record.get("n_components", len(values)) - len(values)
    return [*lines, f"... and {more:,} more"] if more > 0 else lines


def info(path: str, shows: o.Shows, *, member: str | None = None) -> None:
    """Show what a model or a data store is, without reading the data. With -v, all parameters of a model.

    Parameters
    ----------
    path
        A saved model, or any source that fit can read.

    Examples
    --------
    bigpca info model.zarr -v
    bigpca info features.zarr
    """
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet, estimators=False) as output:
        from bigpca.data.provenance import provenance_of

        made = provenance_of(path)
        lines = {} if made is None else made.lines()
        if not shows.verbose:
            lines = {name: text for name, text in lines.items() if name not in ("model digest", "versions")}
        from bigpca.storage.groups import kind_at

        if kind_at(path) not in (None, "array"):
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
    dtype
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
        reject_existing(store, overwrite, "rows")
        import bigpca

        with running(cluster):
            data = open_sources(source, reading)
            output.show({"data": described(source, data)})
            output.resume = f"Finished chunks are kept. To resume:\n  {command_line()}"
            start = time.monotonic()
            with TerminalProgress() as bar:
                progress = shown(bar, output, store)
                bigpca.ingest(
                    data,
                    store,
                    overwrite=overwrite,
                    dtype=dtype,
                    chunk_rows=chunk_rows,
                    keys=keys,
                    progress=progress,
                )
        seconds = time.monotonic() - start
        record = _describe_source(store, None)
        size = f"{format_bytes(record['bytes'])} in {record['chunks']:,} chunk{'s'[: record['chunks'] != 1]}"
        output.show({"store": f"{store}, {record['dtype']}, {size}", "time": format_seconds(seconds)})
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


def verify(path: str, shows: o.Shows, *, member: str | None = None) -> None:
    """Read every chunk of a Zarr store and list those that are missing, truncated or corrupted (then exit code 3).

    Parameters
    ----------
    path
        The Zarr store to check.

    Examples
    --------
    bigpca verify features.zarr
    """
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        import bigpca

        output.doing(f"reading every chunk of {path} ...")
        report = bigpca.data.verify(path, member=member)
        output.say(str(report))
        output.finish({"command": "verify", "ok": report.ok, **plain(report)})
        if not report.ok:
            raise typer.Exit(int(ExitCode.INPUT))


def _describe_source(path: str, member: str | None) -> dict[str, Any]:
    from bigpca.data.files import file_source  # without Dask

    found = file_source(path, member, "raise")
    rows, columns = found.shape
    chunks, size = len(found.row_chunks()), int(rows * found.row_bytes)
    record = {"rows": rows, "columns": columns, "dtype": str(found.dtype), "bytes": size, "chunks": chunks}
    return record if found.stored_values is None else record | {"stored_values": found.stored_values}


def _written(value: Any) -> str:
    """Return a parameter as it was written: a record as its call, and given numbers by their shape."""
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if not isinstance(value, dict) or "record" not in value:
        return str(value)
    if value["record"] == "vector":
        return f"numbers of shape {tuple(value.get('shape', ()))}"
    own = ((name, one) for name, one in value.items() if name != "record")
    given = (f"{name}={_written(one) if isinstance(one, list | dict) else repr(one)}" for name, one in own)
    return f"{value['record']}({', '.join(given)})"


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
            f"{name} = {brief(_written(value), MAX_PARAMETER)}" for name, value in record["parameters"].items()
        ]
    return rows | facts(record)
