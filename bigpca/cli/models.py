"""``bigpca report``, ``plot``, ``extremes``, ``compare`` and ``export``: what is done with fitted models."""

from __future__ import annotations

import re
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from bigpca.cli import options as o
from bigpca.cli.output import reporting, table, wrapped
from bigpca.cli.runtime import described, open_sources, recorded, reject_shared_paths, running, shown
from bigpca.errors import an, component_columns, format_bytes
from bigpca.passes.engine.events import TerminalProgress

Kind = StrEnum("Kind", ["SCREE", "SPECTRUM", "BOUNDS", "SCORES", "COMPONENTS", "BIPLOT", "MAPS", "DRIFT"])
SCORED = (Kind.SCORES, Kind.BIPLOT, Kind.MAPS)  # which are drawn from scores
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
    held_out: str | None = None,
    held_out_labels: str | None = None,
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
    held_out : SOURCE
        Rows that were not fitted, on which accuracy is measured.
    held_out_labels : FILE[::COLUMN]
        The classes of the held-out rows.
    out : PATH
        The HTML file to write.
    provenance
        Show paths and the command of the fit.

    Examples
    --------
    bigpca report model.zarr --scores scores.zarr --labels labels.csv --image-shape 28x28
    """
    with reporting(as_json, debug) as output:
        from bigpca.plots.style import require_matplotlib
        from bigpca.report import describe
        from bigpca.report.describing import PAGES
        from bigpca.report.page import render
        from bigpca.storage.carriers import reject_file, write_file

        if (held_out is None) != (held_out_labels is None):
            raise typer.BadParameter("--held-out and --held-out-labels belong together. Give both or neither.")
        require_matplotlib()
        shape = None if image_shape is None else parse_image_shape(image_shape)
        reject_file(out, overwrite, *PAGES)
        reject_shared_paths([(labels or "").partition("::")[0]], report=out)
        fitted, errors = _load(model, references), None
        if rows is not None:
            from bigpca.quality import standard_errors

            errors = standard_errors(fitted, open_sources([rows], reading))
        apart_groups = None
        if hasattr(fitted, "of_group") and len(getattr(fitted, "groups_", ())) > 2 and fitted.center is True:
            from bigpca.quality import drift

            apart_groups = drift(fitted)
        apart = None if held_out is None else (open_sources([held_out], reading), held_out_labels)
        described = describe(
            fitted,
            scores=scores,
            labels=labels,
            keys=False if by_position else None,
            image_shape=shape,
            standard_errors=errors,
            drift=apart_groups,
            held_out=apart,
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


def plot(
    kind: Kind,
    model: str,
    reading: o.SourceOptions,
    *,
    out: str = "figure.png",
    scores: str | None = None,
    rows: str | None = None,
    labels: str | None = None,
    by_position: bool = False,
    components: str | None = None,
    image_shape: str | None = None,
    map_shape: str | None = None,
    references: list[str] | None = None,
    overwrite: bool = False,
    as_json: bool = False,
    debug: bool = False,
) -> None:
    """Draw MODEL: scree, spectrum, bounds, scores, components, biplot, maps of scores, or drift of groups.

    Parameters
    ----------
    kind : KIND
        What is drawn.
    out : PATH
        The file to write: .png, .svg or .pdf.
    rows : SOURCE
        For scores and biplot without --scores: rows, read once.
    components : NAMES
        Numbers from 0, or names: two (0,1 or pca0,pca1); for maps, one or three (0,1,2).
    map_shape : HxW
        For maps: the places of one sample in the pattern, e.g. 14x14.

    Examples
    --------
    bigpca plot scree model.zarr --out scree.png
    bigpca plot scores model.zarr --scores scores.zarr --labels labels.csv --out scores.png
    bigpca plot maps model.zarr --scores scores.zarr --map-shape 28x28 --out maps.png
    """
    with reporting(as_json, debug) as output:
        from bigpca.plots.style import FORMATS, picture_bytes, plain_figure
        from bigpca.storage.carriers import reject_file, write_file

        reject_file(out, overwrite, *FORMATS)
        reject_shared_paths([(labels or "").partition("::")[0]], figure=out)
        if kind in SCORED and scores is None and rows is None:
            raise typer.BadParameter(f"{kind} needs --scores STORE, or --rows SOURCE to compute them.")
        given: dict[str, Any] = {"scores": scores}
        if rows is not None and scores is None and kind in SCORED:
            given = {"rows": open_sources([rows], reading)}
            size = format_bytes(given["rows"].nbytes)
            output.say(f"reads {rows} once, {size}; with --scores nothing is transformed")
        colours: Any = labels
        if labels is not None and by_position:
            from bigpca.data import by_key

            colours = by_key(labels, given.get("rows", scores), keys=False)
        figure = plain_figure(6.4, 4.8 if kind is Kind.COMPONENTS else 4.2)
        fitted, ax, shape = _load(model, references), figure.subplots(), image_shape
        if kind is Kind.MAPS:
            _draw_maps(fitted, ax, given, parse_components(components or "0,1,2", (1, 3)), map_shape)
        else:
            _draw(kind, fitted, ax, given, colours, parse_components(components or "0,1", (2,)), shape)
        write_file(out, picture_bytes(figure, Path(out).suffix), overwrite=overwrite)
        output.say(f"{kind} of {model}: {out}")
        output.finish({"command": "plot", "kind": str(kind), "model": model, "out": out})


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


def parse_components(text: str, counts: tuple[int, ...]) -> tuple[int | str, ...]:
    """Parse the numbers or names of components.

    >>> parse_components("0,pca2", (2,))
    (0, 'pca2')
    """
    given = text.split(",")
    if len(given) not in counts or not all(given):
        raise typer.BadParameter(
            f"{text!r} does not choose components. Write {' or '.join(map(str, counts))} numbers from 0, or names: "
            f"{','.join(map(str, range(counts[-1])))}."
        )
    return tuple(int(one) if one.isdecimal() else one for one in given)


def _draw_maps(
    model: Any, ax: Any, given: dict[str, Any], components: tuple[int | str, ...], shape: str | None
) -> None:
    import bigpca
    from bigpca.data.roles import are_scores

    if shape is None:
        raise typer.BadParameter("bigpca plot maps needs --map-shape: height and width of one sample, such as 14x14.")
    scores = model.transform(given["rows"]) if "rows" in given else bigpca.open(given["scores"])
    are_scores(model, given.get("scores"), scores, "scores")
    columns = tuple(component_columns(components, model.get_feature_names_out().tolist()))
    bigpca.plots.maps(bigpca.data.as_maps(scores, parse_image_shape(shape)[:2]), columns, ax=ax)


def _draw(
    kind: Kind, model: Any, ax: Any, given: dict[str, Any], labels: Any, pair: tuple[int | str, ...], shape: str | None
) -> None:
    from bigpca import plots

    if kind in SCORED:
        draw = plots.scores if kind is Kind.SCORES else plots.biplot
        draw(model, **given, labels=labels, components=(pair[0], pair[1]), ax=ax)
    elif kind is Kind.COMPONENTS:
        plots.components(model, None if shape is None else parse_image_shape(shape), ax=ax)
    elif kind is Kind.DRIFT:
        from bigpca.quality import drift

        plots.drift(drift(model), ax=ax)
    else:
        getattr(plots, kind)(model, ax=ax)


def _load(model: str, references: list[str] | None) -> Any:
    import bigpca

    return bigpca.load(model, references=references or [])


def extremes(
    model: str,
    source: list[str],
    reading: o.SourceOptions,
    cluster: o.Cluster,
    shows: o.Shows,
    *,
    n: int = 5,
    scores: bool | None = None,
    references: list[str] | None = None,
) -> None:
    """Show the rows with the lowest and highest scores of each component of MODEL, in one read of SOURCE.

    Parameters
    ----------
    source : SOURCE
        Rows, or scores of the model.
    n : -n INT >= 1
        Rows at each end.
    scores : --scores/--rows
        What SOURCE holds, if neither its store nor its width says.

    Examples
    --------
    bigpca extremes model.zarr features.zarr
    bigpca extremes model.zarr scores.zarr -n 10 --json
    """
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        import bigpca

        fitted: Any = bigpca.load(model, references=references or [])
        with running(cluster):
            data = open_sources(source, reading)
            output.show({"data": described(source, data)})
            with TerminalProgress() as bar:
                given = {{None: "X", True: "scores", False: "rows"}[scores]: data}
                ends = bigpca.quality.extremes(fitted, n=n, progress=shown(bar, output, None), **given)
        names, found = fitted.get_feature_names_out().tolist(), []
        sides = (ends.lowest, ends.lowest_keys), (ends.highest, ends.highest_keys)
        lowest, highest = ((rows if keys is None else keys).tolist() for rows, keys in sides)  # numbers, without keys
        for i, (name, low, high) in enumerate(zip(names, lowest, highest, strict=True)):
            ends_of = {"lowest_scores": ends.lowest_scores[i], "highest_scores": ends.highest_scores[i]}
            found.append({"component": name, "lowest": low, "highest": high, **ends_of})
            output.show({name: [f"lowest: {', '.join(map(str, low))}", f"highest: {', '.join(map(str, high))}"]})
        output.finish({"command": "extremes", "model": model, "source": recorded(source), "components": found})


Metric = StrEnum("Metric", ["CKA", "SVCCA", "PROCRUSTES"])


def compare(
    first: str, second: str, *, metric: Metric | None = None, as_json: bool = False, debug: bool = False
) -> None:
    """Compare two models of the same features, without reading data; with --metric, two networks' features of rows.

    Parameters
    ----------
    first : A
        A model saved by a fit; with --metric, features of rows.
    second : B
        The other.
    metric
        Compare two sets of features of the same rows, in one read of both.

    Examples
    --------
    bigpca compare monday.zarr tuesday.zarr
    bigpca compare first_layer.zarr second_layer.zarr --metric cka
    """
    with reporting(as_json, debug) as output:
        import bigpca

        if metric is not None:
            sides = [open_sources([path], o.SourceOptions()) for path in (first, second)]
            output.show({path: described([path], X) for path, X in zip((first, second), sides, strict=True)})
            with TerminalProgress() as bar:
                progress = shown(bar, output, None)
                alike = getattr(bigpca.quality, metric)(*sides, progress=progress)
            p_value = "" if alike.p_value is None else f", p = {alike.p_value:.2g} of independence"
            error = "" if alike.standard_error is None else f" +- {alike.standard_error:.2g}"
            name = "Procrustes" if metric == "procrustes" else metric.upper()
            output.show({name: f"{alike.value:.6g}{error}{p_value}, {alike.n_rows:,} rows"})
            output.finish({"command": "compare", "x": first, "y": second, "metric": str(metric), **asdict(alike)})
            return
        a, b = (bigpca.load(path) for path in (first, second))
        found = bigpca.quality.compare(a, b)
        output.show({"a": first, "b": second} | {cell[0]: cell[1] for cell in found.cells()})
        distance = None
        try:
            distance = bigpca.quality.frechet_distance(a, b)
            output.show({"Fréchet": f"{distance:.6g} between the rows as two Gaussians, squared"})
        except (TypeError, ValueError) as error:
            output.show({"Fréchet": f"unknown: {error}"})
        shares = {"a_in_b": found.a_in_b, "b_in_a": found.b_in_a, "frechet_distance": distance}
        output.finish({"command": "compare", "a": first, "b": second, "angles": found.angles, **shares})


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
