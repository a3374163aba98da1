"""All that a report says of a model, put together as records."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigpca.data.urls import public
from bigpca.plots import bounds, components, scree, spectrum
from bigpca.plots import standard_errors as errors_of
from bigpca.plots.drawn import DrawnScores
from bigpca.plots.images import top_features
from bigpca.plots.kinds import kinds_of
from bigpca.plots.numbers import Weights, chosen, eigenvalues, fitted, name_of, shares_or_none, weights, whole_of
from bigpca.plots.scatter import axis_name, draw_points
from bigpca.plots.spectra import LEVELS, reaching
from bigpca.plots.style import counted, percent
from bigpca.report.companions import Companions, companions
from bigpca.report.extremes import ScoresRead, describe_ends, read_scores
from bigpca.report.figures import drawn
from bigpca.report.lights import lights_of
from bigpca.report.methods import citations_of, made_of, method_name, methods_of, plan_table
from bigpca.report.records import Extremes, Figure, Report, Table

TOP_FEATURES = 5
MAX_FEATURE_COMPONENTS = 50  # of the table of features
PICTURES = 12


@dataclass(frozen=True)
class Subject:
    """What a report is about: a model, with what is given beside it.

    Attributes
    ----------
    model : fitted model
    weights : Weights or None
        Its components in the space of the features, where it has any.
    image_shape : tuple of int, or None
    read : ScoresRead or None
    known : Companions
    errors : StandardErrors or None
    """

    model: Any
    weights: Weights | None
    image_shape: tuple[int, ...] | None
    read: ScoresRead | None
    known: Companions
    errors: Any = None


def describe(
    model: Any,
    *,
    scores: Any = None,
    labels: Any = None,
    keys: Any = None,
    pictures: Any = None,
    image_shape: tuple[int, ...] | None = None,
    feature_names: Any = None,
    standard_errors: Any = None,
    provenance: bool = True,
    path: str = "model.zarr",
) -> Report:
    """Return all that a report says; the scores are read once, nothing else is read.

    Parameters and errors are those of :func:`bigpca.report.write_report`; ``path`` is that of the model, for the
    commands that are shown.
    """
    inner, k = fitted(model), len(eigenvalues(model))
    own = weights(model, feature_names) if hasattr(inner, "components_") else None
    read = None if scores is None else read_scores(scores, k)
    if read is None and not all(one is None for one in (labels, keys, pictures)):
        raise ValueError(
            "labels, keys or pictures were given without the scores to which they belong. Give the scores."
        )
    known = Companions()
    if read is not None:
        known = companions(labels, keys=keys, pictures=pictures, scores=scores, n=read.drawn.n)
    subject = Subject(model, own, image_shape, read, known, standard_errors)
    names = [axis_name(i, shares_or_none(model)) for i in range(k)]
    extremes = () if read is None else describe_ends(read.ends, names, known)
    return Report(
        title=method_name(model),
        summary=_summary(model, k),
        lights=lights_of(model, own),
        figures=_figures(subject),
        components=_components_table(model, standard_errors),
        features=None if own is None or image_shape is not None else _features_table(own),
        extremes=extremes,
        plan=plan_table(model),
        made=made_of(model, provenance=provenance),
        methods=methods_of(model),
        citations=citations_of(model),
        next_steps=_next_steps(path, scores, labels) if provenance else _next_steps("model.zarr"),
        notes=_notes(subject, extremes),
    )


def _summary(model: Any, k: int) -> str:
    inner = fitted(model)
    size = f"{int(getattr(inner, 'n_samples_', 0)):,} rows x {int(model.n_features_in_):,} features"
    ratio = shares_or_none(model)
    held = "" if ratio is None else f" with {percent(float(ratio.sum()))} of {whole_of(model)}"
    certainty = "approximate, with certified bounds" if hasattr(inner, "eigenvalue_bounds_") else "exact to rounding"
    if not hasattr(inner, "explained_variance_") and not hasattr(inner, "eigenvalue_bounds_"):
        certainty = "from labels"
    solver = getattr(inner, "solver_", "-")
    return f"{name_of(model)} of {size}: {counted(k, 'component')}{held}, {certainty}; solver {solver}."


def _figures(subject: Subject) -> tuple[Figure, ...]:
    model, inner, found = subject.model, fitted(subject.model), []
    ratio = shares_or_none(model)
    if ratio is not None:
        found.append(drawn("scree", _levels(ratio, whole_of(model)), lambda ax: scree(model, ax=ax)))
    else:
        found.append(drawn("spectrum", "The eigenvalues of the model's criterion.", lambda ax: spectrum(model, ax=ax)))
    if hasattr(inner, "eigenvalue_bounds_") and (eigenvalues(model) > 0).any():
        caption = "Each bar is certain to hold its true eigenvalue; bounds are not symmetric."
        if inner.bounds_confidence_ < 1:
            caption = f"All bars hold their true eigenvalues with probability {inner.bounds_confidence_:.6g}."
        found.append(drawn("bounds", caption, lambda ax: bounds(model, ax=ax)))
    if subject.errors is not None:
        found.append(drawn("standard-errors", _sampled(inner), lambda ax: errors_of(model, subject.errors, ax=ax)))
    if subject.read is not None:
        found.append(_scatter(subject, subject.read.drawn))
    if subject.weights is not None:
        own = subject.weights
        shown = min(PICTURES, len(own.components))
        if subject.image_shape is not None:
            lines = -(-shown // 4)
            caption = "Components as pictures: grey is 0, black and white are the largest weights."
        else:
            lines = 3
            caption = "Weights of the features that are among the four largest of a component."
        found.append(
            drawn(
                "components", caption,
                lambda ax: components(model, subject.image_shape, feature_names=own.names, n=shown, ax=ax),
                height=max(2.2, 0.5 + 1.5 * lines),
            )
        )  # fmt: skip
    return tuple(found)


def _scatter(subject: Subject, points: DrawnScores) -> Figure:
    known = subject.known
    kinds = None if known.labels is None else kinds_of(known.labels, points.n, points.rows)
    caption = f"Scores of {points.title()}."
    if known.source:
        caption += f" {known.source[0].upper()}{known.source[1:]}."

    pair = chosen((1, 2), points.scores.shape[1])
    ratio, title = shares_or_none(subject.model), f"{name_of(subject.model)}, scores of {points.title()}"
    return drawn("scores", caption, lambda ax: draw_points(ax, points, kinds, ratio, pair, title))


def _sampled(inner: Any) -> str:
    """Return the caption of standard errors, told apart from the errors of the computation."""
    computed = "rounding"
    if hasattr(inner, "eigenvalue_bounds_"):
        computed = "within the certified bounds of the figure before"
    return (
        "Bars are two standard errors: how far eigenvalues would vary between samples of as many rows. They are about "
        f"the data, not about the computation, whose error is {computed}."
    )


def _levels(ratio: np.ndarray[Any, Any], whole: str) -> str:
    reached = {level: reaching(ratio, level) for level in LEVELS}
    texts = [f"{percent(level)} by {counted(count, 'component')}" for level, count in reached.items() if count]
    missed = [percent(level) for level, count in reached.items() if not count]
    return (
        (
            (f"Of {whole}, " + ", ".join(texts) + " are reached. " if texts else "")
            + (f"Not reached: {', '.join(missed)}." if missed else "")
        )
        .replace("are reached", "is reached" if len(texts) == 1 else "are reached")
        .strip()
    )


def _components_table(model: Any, errors: Any = None) -> Table:
    values, ratio = eigenvalues(model), shares_or_none(model)
    limits = getattr(fitted(model), "eigenvalue_bounds_", None)
    header = ["component", "eigenvalue"]
    columns: list[Any] = [range(1, len(values) + 1), values.tolist()]
    if limits is not None:
        header += ["lower bound", "upper bound"]
        columns += np.asarray(limits, dtype=np.float64).T.tolist()
    if errors is not None:
        header += ["standard error", "angle of the axis, rad"]
        columns += [
            ["not determined" if np.isnan(one) else float(one) for one in found]
            for found in (errors.explained_variance_, errors.component_angle_)
        ]
    if ratio is not None:
        header += [f"% of {whole_of(model)}", "% so far"]
        columns += [(100 * ratio).tolist(), (100 * np.cumsum(ratio)).tolist()]
    return Table("Components", tuple(header), tuple(zip(*columns, strict=True)))


def _features_table(own: Weights) -> Table:
    shown = own.components[:MAX_FEATURE_COMPONENTS]
    top = top_features(shown, TOP_FEATURES)
    rows = [
        (number, rank + 1, str(own.names[feature]), float(component[feature]))
        for number, (component, features) in enumerate(zip(shown, top, strict=True), 1)
        for rank, feature in enumerate(features)
    ]
    return Table("Main features", ("component", "rank", "feature", "weight"), tuple(rows))


def _next_steps(path: str, scores: Any = None, labels: Any = None) -> tuple[tuple[str, str], ...]:
    """Return commands to go on with, of the files that were given, where they are files."""
    named = (path, _named(scores, "scores.zarr"), _named(labels, "labels.csv::COLUMN"))
    model, stored, column = (shlex.quote(public(one)) for one in named)
    return (
        ("Scores of more rows", f"bigpca transform ROWS --model {model} --scores scores.zarr"),
        (
            "A figure of the scores",
            f"bigpca plot scores {model} --scores {stored} --labels {column} --out scores.png",
        ),
        ("In Python", f"import bigpca as bp\nmodel = bp.load({path!r})\nscores = model.transform(X)"),
    )


def _named(given: Any, instead: str) -> str:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else instead


def _notes(subject: Subject, extremes: tuple[Extremes, ...]) -> tuple[str, ...]:
    notes = [] if subject.errors is None else [*subject.errors.notes]
    if subject.known.pictures is not None:
        shown = [row for one in extremes for row in (*one.lowest, *one.highest)]
        missing = sum(not row.picture for row in shown)
        if missing == len(shown):
            notes.append("No image files were found beside or below the file of labels, so rows are shown by name.")
        elif missing:
            notes.append(
                f"{missing} of {len(shown)} pictures could not be read. Image files beside or below "
                "the file of labels were expected."
            )
    if subject.read is None:
        notes.append("No scores were given, so no rows are shown. Write them with bigpca transform, and give --scores.")
    elif subject.read.without:
        notes.append(f"{counted(subject.read.without, 'row')} had no scores, and are not among the extremes.")
    if subject.read is not None and subject.known.labels is None:
        notes.append("No labels were given, so rows are shown in one colour. Give --labels labels.csv.")
    if subject.weights is not None and subject.image_shape is None and subject.weights.names[0] == "feature 0":
        notes.append("Features have no names. If they are pixels, give --image-shape HEIGHTxWIDTH.")
    return tuple(notes)
