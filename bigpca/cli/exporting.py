"""``bigpca export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.output import reporting
from bigpca.cli.runs import reject_shared_paths

FORMATS = (".npz", ".onnx")


def export(
    model: Annotated[Path, typer.Argument(help="A linear model saved by a fit.")],
    out: Annotated[Path, typer.Option(help="The file to write: .onnx, or .npz with A (k, d) and b (k,).")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Write the linear map of MODEL for programs without bigpca: scores are X A' + b."""
    if out.suffix.lower() not in FORMATS:
        raise typer.BadParameter(
            f"--out {out} has the suffix {out.suffix!r}; one of {', '.join(FORMATS)} is needed.", param_hint="'--out'"
        )
    with reporting(as_json, debug) as output:
        import bigpca
        from bigpca.export.networks import write_npz

        reject_shared_paths([str(model)], out=out)
        fitted: Any = bigpca.load(str(model))
        if not hasattr(fitted, "linear_map"):
            raise ValueError(
                f"{model} is a {type(fitted).__name__}, which has no linear map. Export a linear model, such as a PCA."
            )
        k, d = len(fitted.get_feature_names_out()), fitted.n_features_in_
        if out.suffix.lower() == ".onnx":
            fitted.to_onnx(out, overwrite=overwrite)
        else:
            A, b = fitted.linear_map()
            write_npz(out, overwrite=overwrite, A=A, b=b)
        output.say(f"{out}: from {d:,} columns to {k:,} scores")
        output.finish({"command": "export", "model": model, "out": out, "shape": [k, d]})
