"""``bigpca report`` and ``export``: what is done with fitted models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from bigpca.cli import options as o
from bigpca.cli.output import reporting, table, wrapped
from bigpca.cli.runtime import open_sources, reject_shared_paths
from bigpca.errors import an

EXPORTED = (".npz", ".onnx")  # formats of linear maps


def report(
    model: str,
    reading: o.SourceOptions,
    *,
    scores: str | None = None,
    labels: str | None = None,
    by_position: bool = False,
    image_shape: str | None = None,
    rows: str | None = None,
    out: str = "report.html",
    provenance: bool = True,
    references: list[str] | None = None,
    overwrite: bool = False,
    as_json: bool = False,
    debug: bool = False,
) -> None:
    """Write a report on MODEL: one HTML file with checks, figures, extremes and tables that opens without a network.

    Labels are joined by key where the scores have row keys (--keys) and labels.csv has a column of them. A column of
    image paths gives the pictures of extreme rows.

    Parameters
    ----------
    rows : SOURCE
        The rows of the fit, read once for standard errors of the sample.
    out : PATH
        The HTML file to write.
    provenance
        Show paths and the command of the fit.

    Examples
    --------
    bigpca report model.zarr --scores scores.zarr --labels labels.csv --image-shape 28x28
    """
    with reporting(as_json, debug) as output:
        import bigpca
        from bigpca.plots.style import require_matplotlib
        from bigpca.report import describe
        from bigpca.report.describing import PAGES
        from bigpca.report.page import render
        from bigpca.storage.carriers import reject_file, write_file

        require_matplotlib()
        shape = None if image_shape is None else parse_image_shape(image_shape)
        reject_file(out, overwrite, *PAGES)
        reject_shared_paths([(labels or "").partition("::")[0]], report=out)
        fitted, errors = bigpca.load(model, references=references or []), None
        if rows is not None:
            from bigpca.quality import standard_errors

            errors = standard_errors(fitted, open_sources([rows], reading))
        apart_groups = None
        if hasattr(fitted, "of_group") and len(getattr(fitted, "groups_", ())) > 2 and fitted.center is True:
            from bigpca.quality import drift

            apart_groups = drift(fitted)
        described = describe(
            fitted,
            scores=scores,
            labels=labels,
            keys=False if by_position else None,
            image_shape=shape,
            standard_errors=errors,
            drift=apart_groups,
            provenance=provenance,
            path=model,
        )
        page = render(described).encode()
        write_file(out, page, overwrite=overwrite)
        captions = [figure.caption for figure in described.figures if figure.name == "scores"]
        output.say("\n".join(wrapped(described.summary, output.width)) + "\n")
        output.say(table({light.name: f"{light.verdict}: {light.text}" for light in described.lights}, output.width))
        for note in ("", *captions, *described.notes):
            output.say("\n".join(wrapped(note, output.width)))
        output.say(f"\n{out}: {len(page) / 1e6:.2f} MB; open it in a browser")
        output.finish({"command": "report", "model": model, "out": out, "bytes": len(page), "lights": described.lights})


def parse_image_shape(text: str) -> tuple[int, ...]:
    """Parse the shape of an image.

    >>> parse_image_shape("28x28"), parse_image_shape("32x32x3")
    ((28, 28), (32, 32, 3))
    """
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*(x[13])?", text):
        raise typer.BadParameter(
            f"{text!r} is not the shape of an image. Write its height and width, such as 28x28 or 32x32x3."
        )
    height, width, *channels = (int(size) for size in text.split("x"))
    return (height, width) if channels in ([], [1]) else (height, width, *channels)


def export(model: str, *, out: str, overwrite: bool = False, as_json: bool = False, debug: bool = False) -> None:
    """Write the linear map of MODEL for programs without bigpca: scores are X A' + b.

    Parameters
    ----------
    out : PATH
        The file to write: .onnx, or .npz with A (k, d) and b (k,).

    Examples
    --------
    bigpca export model.zarr --out model.onnx
    """
    with reporting(as_json, debug) as output:
        import bigpca
        from bigpca.export.linear import write_npz
        from bigpca.storage.carriers import reject_file

        reject_shared_paths([model], out=out)
        reject_file(out, overwrite, *EXPORTED)
        fitted: Any = bigpca.load(model)
        if not hasattr(fitted, "linear_map"):
            raise ValueError(
                f"{model} is {an(type(fitted).__name__)}, which has no linear map. Export a linear model, such as PCA."
            )
        k, d = len(fitted.get_feature_names_out()), fitted.n_features_in_
        if Path(out).suffix.lower() == ".onnx":
            fitted.to_onnx(out, overwrite=overwrite)
        else:
            A, b = fitted.linear_map()
            write_npz(out, overwrite=overwrite, A=A, b=b)
        output.say(f"{out}: from {d:,} columns to {k:,} scores")
        output.finish({"command": "export", "model": model, "out": out, "shape": [k, d]})
