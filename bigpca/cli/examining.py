"""``bigpca extremes`` and ``bigpca compare``: what components mean, and how two models agree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.groups import grouped
from bigpca.cli.output import reporting
from bigpca.cli.runs import PassCounter, shown
from bigpca.cli.runtime import running
from bigpca.cli.sources import described, open_sources, recorded
from bigpca.passes.engine.progress import TerminalProgress

SHOWN_ANGLES = 5
FROM = Annotated[Path, typer.Argument(help="A model saved by a fit.")]


@grouped
def extremes(
    model: FROM,
    source: Annotated[list[str], typer.Argument(help="Rows, or scores of the model.")],
    reading: o.Reading,
    cluster: o.Cluster,
    shows: o.Shows,
    n: Annotated[int, typer.Option("-n", min=1, help="Rows at each end.")] = 5,
    references: o.References = None,
) -> None:
    """Show the rows with the lowest and highest scores of each component of MODEL, in one read of SOURCE."""
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        import bigpca

        fitted: Any = bigpca.load(str(model), references=references or [])
        with running(cluster):
            data = open_sources(source, reading)
            output.show({"data": described(source, data)})
            with TerminalProgress() as bar:
                ends = bigpca.extremes(fitted, data, n, progress=shown(PassCounter(), bar, output, None))
        names, found = fitted.get_feature_names_out().tolist(), []
        for i, name in enumerate(names):
            low, high = _end(ends.lowest, ends.lowest_keys, i), _end(ends.highest, ends.highest_keys, i)
            scores = {"lowest_scores": ends.lowest_scores[i], "highest_scores": ends.highest_scores[i]}
            found.append({"component": name, "lowest": low, "highest": high, **scores})
            output.show({name: [f"lowest: {', '.join(map(str, low))}", f"highest: {', '.join(map(str, high))}"]})
        output.finish({"command": "extremes", "model": model, "source": recorded(source), "components": found})


def _end(rows: Any, keys: Any, component: int) -> list[Any]:
    """Return the keys of the rows at one end, or their numbers where there are none."""
    named: list[Any] = (rows if keys is None else keys)[component].tolist()
    return named


def compare(
    first: FROM,
    second: FROM,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Compare the axes of two models of the same features, and the distributions of their rows; reads no data."""
    with reporting(as_json, debug) as output:
        import numpy as np

        import bigpca

        a, b = (bigpca.load(str(path)) for path in (first, second))
        found = bigpca.compare(a, b)
        degrees = np.degrees(found.angles)
        listed = ", ".join(f"{angle:.3g}" for angle in degrees[:SHOWN_ANGLES])
        more = f" and {len(degrees) - SHOWN_ANGLES} smaller ones" if len(degrees) > SHOWN_ANGLES else ""
        output.show(
            {
                "angles": f"{listed} degrees{more}, the largest first",
                "variance": [
                    f"{found.a_in_b:.4%} of that along the components of {first} is in the span of {second}",
                    f"{found.b_in_a:.4%} of that along the components of {second} is in the span of {first}",
                ],
            }
        )
        distance = None
        try:
            distance = bigpca.frechet_distance(a, b)
            output.show({"Fréchet": f"{distance:.6g} between the rows as two Gaussians, squared"})
        except (TypeError, ValueError) as error:
            output.show({"Fréchet": f"unknown: {error}"})
        shares = {"a_in_b": found.a_in_b, "b_in_a": found.b_in_a, "frechet_distance": distance}
        output.finish({"command": "compare", "a": first, "b": second, "angles": found.angles, **shares})
