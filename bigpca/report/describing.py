"""All that a report says of a model, put together as records.

Whether to trust it: a few checks, each with the number that decides it. What the fit did, what to cite, and how a model
was made. What is known of rows beside their scores: classes, keys, pictures; from arrays, or columns of a file of
labels. One read of the scores: the rows that figures draw, and those at both ends of each component. A report as a
file: complete or absent.
"""

from __future__ import annotations

import base64
import io
import os
import shlex
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from bigpca.arrays import Array, Input, Integers, Matrix, Vector
from bigpca.data.keys import Keys, aligned, keys_of_rows
from bigpca.data.labels import one_each
from bigpca.data.provenance import are_scores
from bigpca.data.sources import open as open_array
from bigpca.errors import an, brief, counted
from bigpca.passes.rows import Rows
from bigpca.passes.summaries import Ends, read_ends
from bigpca.plots import bounds, components, drift, scree
from bigpca.plots.data import (
    DrawnScores,
    Weights,
    captured,
    column_shares,
    component_names,
    drawn_rows,
    eigenvalues,
    field_of,
    fitted,
    kind_of_values,
    kinds_of,
    name_of,
    shares_or_none,
    weights,
    whole_of,
    within,
)
from bigpca.plots.images import largest_weights
from bigpca.plots.scatter import axis_names, draw_scores
from bigpca.plots.spectra import LEVELS, reaching
from bigpca.plots.style import percent, require_matplotlib, short
from bigpca.report.page import Extreme, Extremes, Figure, Light, Report, Table, Verdict, drawn, render
from bigpca.solvers.certificates import Bounds, trustworthy
from bigpca.solvers.eigh import AGAIN
from bigpca.storage.carriers import reject_file, write_file
from bigpca.storage.files import public, read_regular

NARROW = 0.1  # width of bounds, relative to the lower end, that does not matter for most uses
DOMINATING = 0.5  # of the variance
MAX_OMITTED = 0.1  # of the rows
UNSHRUNK = 0.95  # least factor of scores of new rows that does not matter for most uses
THUMBNAIL = 72  # pixels of the longer side
MAX_PICTURE_BYTES = 32 * 2**20
MAX_PIXELS = 64 * 10**6
MAX_COMPONENTS = 6  # whose extremes are shown
ROWS_AT_AN_END = 5
BY_SOLVER = {"covariance": "moments", "krylov": "krylov", "em": "EM", "sketch": "sketch"}
MISSING = {
    "mean": "the means of their columns",
    "pairwise": "left out of the pairs of columns that lack one of both",
    "em": "estimated by maximum likelihood",
}
MAX_VALUE = 200  # characters of a parameter
TOP_FEATURES = 5
MAX_FEATURE_COMPONENTS = 50  # of the table of features
PICTURES = 12
PAGES = (".html", ".htm")
PRIVATE = ("made by", "updated by", "from")  # lines about a model that may name paths and hosts


def lights_of(model: Any, weights: Weights | None) -> tuple[Light, ...]:
    """Return the checks of a fitted model; ``weights`` are its components as weights of features, if it has any."""
    inner = fitted(model)
    of_columns = _dominated(weights, column_shares(model))
    return (converged_light(inner), bounds_light(inner), _flat(inner), *of_columns, _omitted(inner), *_shrunk(inner))


def _certainty(model: Any) -> tuple[bool, str]:
    """Return whether an answer is exact to rounding, and what is known of its error."""
    found, bounded = [], hasattr(model, "bounds_confidence_")
    if not getattr(model, "converged_", True):
        found.append("not converged")
    if bounded:
        found.append("approximate, with certified bounds")
    elif getattr(model, "converged_", False):
        found.append(f"converged to a tolerance of {_tolerance(model):g}")
    m, n = len(getattr(model, "landmarks_", ())), int(getattr(model, "n_samples_", 0))
    if 0 < m < n and not bounded:
        found.append(f"approximate, by {m:,} landmarks for {n:,} rows, without bounds")
    if missed := getattr(model, "missed_label_trace_", 0.0):
        found.append(f"approximate, by label features that miss {percent(missed)} of the trace of their kernel")
    if features := model._steps.parameters.get("n_features"):
        found.append(f"approximate, by {features:,} random features of the labels, without bounds")
    if (lowest := getattr(model, "negative_eigenvalue_", None)) is not None:
        found.append("estimated from pairs of columns" + f", with eigenvalues down to {lowest:.3g}" * bool(lowest))
    if (error := getattr(model, "solve_error_", 0.0)) > AGAIN:
        found.append(f"with an error of about {error:.1g} by rounding")
    return not found, "; ".join(found) or "exact to rounding"


def _tolerance(model: Any) -> float:
    """Return the tolerance of the fit; a rotation holds the PCA that it turned."""
    return float(getattr(model, "estimator_", model)._steps.parameters["tol"])


def converged_light(model: Any) -> Light:
    """Return whether a fit met its tolerance, if it had one."""
    name, reads = "converged", getattr(model, "n_passes_", None)
    taken = "" if reads is None else f" after {counted(reads, 'read')}"
    if not hasattr(model, "converged_"):
        exact, words = _certainty(model)
        return Light(name, Verdict.PASS, "exact to rounding, no iteration" if exact else f"no iteration; {words}")
    if model.converged_:
        return Light(name, Verdict.PASS, f"yes{taken}, tolerance {_tolerance(model):g} met")
    steps = "max_iter" if hasattr(model, "max_iter") else "max_passes"
    return Light(name, Verdict.FAIL, f"no, stopped{taken}. Raise {steps}, or ask for fewer components")


def bounds_light(model: Any) -> Light:
    """Return how wide the bounds of an approximation are, and whether they hold."""
    name = "bounds"
    if not hasattr(model, "eigenvalue_bounds_"):
        if hasattr(model, "bounds_confidence_"):
            return Light(name, Verdict.NONE, "of the span of the components, not of each")
        exact, words = _certainty(model)
        if exact:
            return Light(name, Verdict.PASS, f"none needed: the answer is {words}")
        return Light(name, Verdict.NONE, f"none known: {words}")
    low, high = np.asarray(model.eigenvalue_bounds_, dtype=np.float64).T
    confidence = float(model.bounds_confidence_)
    trust = trustworthy(Bounds(low, high, confidence))
    hold = "they always hold" if confidence == 1 else f"they hold with probability {confidence:.6g}"
    certified = f"{trust.components} of {trust.k} components certified"
    wide = f"widest {percent(trust.width)} of its lower end; {certified}; {hold}"
    if outside := int(np.count_nonzero(~within(eigenvalues(model), low, high))):
        return Light(name, Verdict.FAIL, f"{outside} of {trust.k} eigenvalues are outside of their bounds; {wide}")
    if trust.components < trust.k:
        return Light(name, Verdict.FAIL, f"{wide}. Use a wider sketch, more landmarks, or a solver that iterates")
    return Light(name, Verdict.PASS if trust.width <= NARROW else Verdict.WARNING, wide)


def _flat(model: Any) -> Light:
    """Compare the largest eigenvalue with the edge that noise alone reaches, ``(1 + sqrt(d / n))^2`` times the mean."""
    name = "spectrum"  # weights count rows, as they do in the rules for n_components
    n = float(getattr(model, "sum_weights_", getattr(model, "n_samples_", 0)))
    total = getattr(model, "total_variance_", None)
    of_covariance = hasattr(model, "explained_variance_") and kind_of_values(model) == "eigenvalue"
    if not of_covariance or hasattr(model, "kernel_") or total is None or not total > 0 or n < 2:
        return Light(name, Verdict.NONE, "the model has no eigenvalues of a covariance, for which an edge is known")
    d = int(model.n_features_in_)
    ends = getattr(model, "eigenvalue_bounds_", np.asarray(model.explained_variance_)[:, None])[0]
    low, high = (float(end) * min(n - 1, d) / float(total) for end in (ends[0], ends[-1]))
    edge = (1 + np.sqrt(min(n, d) / max(n, d))) ** 2
    largest = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
    text = f"largest eigenvalue {largest} times the mean; noise alone reaches {edge:.3g}"
    if d == 1 or low > 1.1 * edge:
        return Light(name, Verdict.PASS, text)
    if high > 1.1 * edge:
        return Light(name, Verdict.NONE, f"not known: {text}")
    return Light(name, Verdict.WARNING, f"flat: {text}. Components of a flat spectrum mean little")


def _dominated(weights: Weights | None, held: Vector | None) -> tuple[Light, ...]:
    """Compare the variance of each column with that of all columns; nothing for fits that do not keep them."""
    if weights is None or held is None:
        return ()
    name, leading = "columns", int(held.argmax())
    text = f"{short(weights.names[leading])} has {percent(held[leading])} of the variance"
    if len(held) <= 2 or held[leading] <= DOMINATING:
        return (Light(name, Verdict.PASS, f"none dominates: {text}"),)
    return (Light(name, Verdict.WARNING, f"{text}. If the units of features differ, fit with scale=True"),)


def _omitted(model: Any) -> Light:
    name = "rows omitted"
    if not hasattr(model, "n_omitted_"):
        return Light(name, Verdict.NONE, "the model did not count rows")
    omitted, used = int(model.n_omitted_), int(model.n_samples_)
    share = omitted / max(1, omitted + used)
    unlabelled = int(getattr(model, "n_unlabelled_", 0))
    without = f"; {counted(unlabelled, 'row')} without a label" if unlabelled else ""
    text = f"{omitted:,} of {used + omitted:,}{without}"
    if not omitted and not unlabelled:
        return Light(name, Verdict.PASS, text)
    text += f" ({percent(share)}): they hold NaN or infinity" if omitted else ""
    return Light(name, Verdict.FAIL if share > MAX_OMITTED else Verdict.WARNING, text)


def _shrunk(model: Any) -> tuple[Light, ...]:
    """Compare scores of new rows with those of rows of the fit, where these were fewer than the columns."""
    factors = getattr(model, "shrinkage_factors_", None)
    if factors is None or int(model.n_samples_) >= int(model.n_features_in_):
        return ()
    text = (
        f"their scores are {factors.min():.2f} to {factors.max():.2f} of those of rows of the fit (shrinkage_factors_)"
    )
    if factors.min() >= UNSHRUNK:
        return (Light("new rows", Verdict.PASS, text),)
    return (Light("new rows", Verdict.WARNING, f'{text}. Use transform(X, shrinkage="factor") or "oadp" for new rows'),)


@dataclass(frozen=True, eq=False)
class Companions:
    """What the rows are, in their order; None for what is not known.

    Attributes
    ----------
    labels : ndarray of shape (n,), or None
        Classes or values; None for rows without one.
    keys : ndarray of shape (n,), str, or None
    pictures : ndarray of shape (n,), str, or None
        Paths of image files, relative to ``folder``.
    folder : Path
    source, column : str
        How labels and rows were joined, in words; the name of the labels, or "".
    """

    labels: Array | None = None
    keys: Array | None = None
    pictures: Array | None = None
    folder: Path = Path()
    source: str = ""
    column: str = ""

    def name(self, row: int) -> str:
        """Return the key of a row, or its number."""
        key = None if self.keys is None else self.keys[row]
        return f"row {row:,}" if key in (None, "") else brief(key, 80)

    def label(self, row: int) -> str:
        """Return the label of a row, or ""."""
        label = None if self.labels is None else self.labels[row]
        return "" if label is None or label != label else brief(label, 40)

    def picture(self, row: int) -> str:
        """Return the picture of a row as a small data URI, or "" where there is none that can be read."""
        path = None if self.pictures is None else self.pictures[row]
        if not path:
            return ""
        try:
            return thumbnail(self.folder, str(path))
        except Exception:  # Pillow raises OSError, ValueError, SyntaxError and its own for broken files
            return ""


def companions(
    labels: Input | None = None,
    *,
    keys: Input | bool | None = None,
    pictures: Input | None = None,
    scores: Input | None = None,
    n: int,
) -> Companions:
    """Return what is known of n rows.

    Parameters
    ----------
    labels : array-like of shape (n,), or path of a file of labels such as "labels.csv" or "labels.csv::class"
        Joined to scores that have keys, or to ``keys``, as :func:`bigpca.data.keys.aligned` does.
    keys, pictures : array-like of shape (n,), optional
        Names of the rows, or False for labels in their order; paths of their images, beside or below the working
        directory.
    scores : path or array, optional
        The scores of the rows, whose keys name the rows.
    n : int

    Raises
    ------
    ValueError
        For labels that cannot be joined, and a different number of labels, keys or pictures than n.
    FileNotFoundError, MemberError
        If there is no such file, or a column must be named.
    """
    given = keys is None or keys is False
    rows = keys_of_rows(scores) if given else Keys(_texts(keys, "key", n).astype(np.str_))
    found = aligned(labels, rows, False if keys is False else None, absent=None, pictures=True)
    names, folder = None if rows.loose else rows.of_rows, Path.cwd()
    source = "" if labels is None else f"labels: {found.how or 'in the order of the rows, as they were given'}"
    column = str(getattr(labels, "name", None) or "")
    if found.table is not None:
        column = found.table.column
        folder = Path(found.table.path).resolve().parent
        names = found.table.keys if names is None else names
        pictures = found.taken(found.table.pictures) if pictures is None else pictures
    labels, keys, pictures = (
        None if one is None else _texts(one, name, n)
        for one, name in ((found.values, "label"), (names, "key"), (pictures, "picture"))
    )
    return Companions(labels, keys, pictures, folder, source, column)


def _texts(values: Any, name: str, n: int) -> Array:
    """Return n values as an array of objects, None where there is none."""
    given, gaps = one_each(values, n, name, gaps=True)
    objects = given.astype(object)
    objects[gaps] = None
    return objects


def thumbnail(folder: Path, path: str) -> str:
    """Return an image file beside or below a folder as a data URI of at most 72 pixels.

    Raises
    ------
    ValueError
        For a path that leads elsewhere, and for pictures of more than 64 million pixels.
    OSError
        If the file cannot be read or is not a picture.
    """
    real = (folder / path).resolve()
    if not real.is_relative_to(folder.resolve()):
        raise ValueError(f"{brief(path)} is not inside {folder}.")
    from PIL import Image

    # Pillow raises for a header of twice as many pixels before it decodes any.
    with Image.open(io.BytesIO(read_regular(real, MAX_PICTURE_BYTES))) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{path} has {image.width} x {image.height} pixels; at most {MAX_PIXELS:,} are read.")
        image.draft("RGB", (2 * THUMBNAIL, 2 * THUMBNAIL))
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class ScoresRead:
    """What one read of the scores found.

    Attributes
    ----------
    drawn : DrawnScores
    ends : Ends
    without : int
        Rows that have no scores.
    """

    drawn: DrawnScores
    ends: Ends
    without: int


def read_scores(model: Any, scores: Input) -> ScoresRead:
    """Read scores (n, k) once; raises as :func:`bigpca.data.provenance.are_scores`."""
    opened = open_array(scores)
    are_scores(model, scores, opened, "scores")
    n = int(opened.shape[0])
    rows = drawn_rows(n)
    found = read_ends(Rows.of(opened, nan_policy="omit"), ROWS_AT_AN_END, columns=MAX_COMPONENTS, chosen=rows)
    values = found.chosen.astype(np.float64)
    drawn = DrawnScores(values, found.chosen_rows, n, len(rows) - len(values))
    return ScoresRead(drawn, found.ends, found.omitted)


def describe_ends(ends: Ends, names: list[str], known: Companions) -> tuple[Extremes, ...]:
    """Return the rows at both ends of each component, with their names, labels and pictures."""

    def described(rows: Integers, scores: Matrix) -> tuple[Extreme, ...]:
        return tuple(
            Extreme(int(row), float(score), known.name(row), known.label(row), known.picture(row))
            for row, score in zip(rows, scores, strict=True)
        )

    sides = zip(ends.lowest, ends.lowest_scores, ends.highest, ends.highest_scores, strict=True)
    return tuple(
        Extremes(name, described(low, low_scores), described(high, high_scores))
        for name, (low, low_scores, high, high_scores) in zip(names, sides, strict=False)
    )


@cache
def _known() -> dict[str, Any]:
    """Return ``methods.toml``: citations, and what each class does."""
    return tomllib.loads(Path(__file__).with_name("methods.toml").read_text("utf-8"))


def method_name(model: Any) -> str:
    """Return what the model does, in words."""
    own = _known()["methods"].get(name_of(model))
    return str(own["words"]) if own else name_of(model)


def citations_of(model: Any) -> tuple[str, ...]:
    """Return what a paper cites: the method, and the algorithm of the solver."""
    solver, known = str(getattr(fitted(model), "solver_", "")), _known()
    own = known["methods"].get(name_of(model), {"cites": []})["cites"]
    keys = [*own, *(key for name, key in BY_SOLVER.items() if name in solver)]
    return tuple(known["citations"][key] for key in dict.fromkeys(keys))


def solver_of(inner: Any) -> str:
    """Return the solver of a fit, without the class of the model; "" where the class has only one."""
    text = str(getattr(inner, "solver_", "")).removeprefix(type(inner).__name__).strip()
    if text == "covariance" and not hasattr(inner, "solver"):
        return ""
    return text[1:-1] if text.startswith("(") else text


def done_of(model: Any, *, provenance: bool = True) -> tuple[tuple[str, str], ...]:
    """Return what the fit did to its rows, and the parameters that are not their defaults, all from its record."""
    inner = getattr(fitted(model), "estimator_", fitted(model))
    lines: dict[str, str] = {}
    for one in (inner, model):  # what a model holds was fitted with its own
        steps, known, of = one._steps, signature(type(one)).parameters, "" if one is model else "estimator__"
        told: dict[str, object] = {
            "missing value": steps.missing_value or None,
            "rows mapped by": steps.preprocessing or None,  # with what the reads of the fit found
            "missing entries": MISSING.get(steps.filled),
            "covariates removed": steps.covariates or None,
        }
        for name, value in steps.parameters.items():
            if name not in ("preprocess", "estimator") and repr(value) != repr(known[name].default):
                told[of + name] = value
        lines |= {name: _written(value) for name, value in told.items() if value is not None}
    return tuple(line for line in lines.items() if provenance or "/" not in line[1])  # which may be a path


def _written(value: Any) -> str:
    if shape := getattr(value, "shape", ()):
        return f"numbers of shape {shape}"
    one = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    return " ".join(brief(one, MAX_VALUE).split())


def made_of(model: Any, *, provenance: bool) -> tuple[tuple[str, str], ...]:
    """Return how a model was made, and what was planned; without paths and command where ``provenance`` is False."""
    record = provenance_of(model)
    lines = {} if record is None else record.lines()
    return tuple((name, text) for name, text in lines.items() if provenance or name not in PRIVATE)


def data_name(model: Any) -> str:
    """Return the name of the file that a model was fitted to, and how many more there were; "" for rows in memory."""
    source = getattr(provenance_of(model), "source", None) or ""
    first, *more = [part.rstrip("/").rpartition("/")[2] for part in source.split(", ")]
    return first + (f" and {len(more):,} more" if more else "")


def provenance_of(model: Any) -> Any:
    """Return the record of how a model was made, or None: its attributes are read where they exist."""
    return getattr(model, "provenance_", None)


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
    apart : Drift or None
    is_field : bool
        Whether components are drawn as maps of a field.
    """

    model: Any
    weights: Weights | None
    image_shape: tuple[int, ...] | None
    read: ScoresRead | None
    known: Companions
    errors: Any = None
    apart: Any = None
    is_field: bool = False


def describe(
    model: Any,
    *,
    scores: Input | None = None,
    labels: Input | None = None,
    keys: Input | bool | None = None,
    pictures: Input | None = None,
    image_shape: tuple[int, ...] | None = None,
    feature_names: Input | None = None,
    standard_errors: Any = None,
    drift: Any = None,
    provenance: bool = True,
    path: str = "model.zarr",
) -> Report:
    """Return all that a report says; the scores are read once, nothing else is read.

    Parameters
    ----------
    model : fitted model with components
    scores : array, or path of a store, of shape (n, k), optional
        Read once, in blocks. Without it no rows are shown.
    labels : array-like of shape (n,), or path such as "labels.csv::class", optional
        A Series with an index of keys, and a file with a column of keys, are joined by key where the scores have keys,
        or ``keys`` are given; others are in the order of the rows, and the report says so. A column of image paths is
        shown as pictures.
    keys, pictures : array-like of shape (n,), optional
        Names of the rows, by default the keys of the scores, stored or lazy; False for labels in the order of the rows,
        whatever keys they have. And paths of their images beside or below the working directory.
    image_shape : (height, width) or (height, width, 3), optional
        Of one row: components are then shown as pictures. Those of a field, such as latitude by longitude, are shown
        as maps without it.
    feature_names : array-like of shape (d,), optional
        By default those of the fit.
    standard_errors : StandardErrors, optional
        From :func:`bigpca.quality.standard_errors`, of this model: the report then shows how much eigenvalues and axes
        would vary between samples of rows, beside the bounds of the computation.
    drift : Drift, optional
        From :func:`bigpca.quality.drift`, of this model: the report then has its chart.
    provenance : bool, default True
        False leaves out paths and commands.
    path : str, default "model.zarr"
        Where the model is, for the commands that are shown.
    """
    inner, k = fitted(model), len(eigenvalues(model))
    own = weights(model, feature_names) if hasattr(inner, "components_") else None
    read = None if scores is None else read_scores(model, scores)
    for name, given, sign, maker in (
        ("standard_errors", standard_errors, "component_angle_", "bigpca.quality.standard_errors(model, X)"),
        ("drift", drift, "z", "bigpca.quality.drift(model)"),
    ):
        if given is not None and not hasattr(given, sign):
            raise TypeError(f"{name} is {an(type(given).__name__)}. Pass what {maker} returns.")
    if read is None and not all(one is None for one in (labels, keys, pictures)):
        raise ValueError("labels, keys or pictures were given without the scores that they belong to. Give the scores.")
    known = Companions()
    if read is not None:
        known = companions(labels, keys=keys, pictures=pictures, scores=scores, n=read.drawn.n)
    is_field = own is not None and feature_names is None and field_of(model, len(own.names)) is not None
    subject = Subject(model, own, image_shape, read, known, standard_errors, drift, is_field)
    names = axis_names(range(min(k, MAX_COMPONENTS)), component_names(model, k), shares_or_none(model))
    extremes = () if read is None else describe_ends(read.ends, names, known)
    data = data_name(model) if provenance else ""
    return Report(
        title=method_name(model) + (f" of {data}" if data else ""),
        summary=_summary(model, k),
        lights=lights_of(model, own),
        figures=_figures(subject),
        components=_components_table(model, standard_errors),
        features=None if own is None or image_shape is not None else _features_table(own, component_names(model, k)),
        extremes=extremes,
        done=done_of(model, provenance=provenance),
        made=made_of(model, provenance=provenance),
        citations=citations_of(model),
        next_steps=_next_steps(path, scores, labels) if provenance else _next_steps("model.zarr"),
        notes=_notes(subject, extremes),
    )


def _summary(model: Any, k: int) -> str:
    inner = fitted(model)
    size = f"{int(getattr(inner, 'n_samples_', 0)):,} rows x {int(model.n_features_in_):,} features"
    held = captured(model) and f" with {captured(model)}"
    if hasattr(inner, "n_targets_"):
        size += f" and {counted(inner.n_targets_, 'column')} of Y"
    elif "labels" in model._traits.accepts:
        size += " and their labels"
    solver, kind = solver_of(inner), "target" if hasattr(inner, "cv_scores_") else "component"
    solved = f"; solver {solver}" if solver else ""
    return f"{name_of(model)} of {size}: {counted(k, kind)}{held}, {_certainty(inner)[1]}{solved}."


def _figures(subject: Subject) -> tuple[Figure, ...]:
    model, inner, found = subject.model, fitted(subject.model), []
    ratio, kind = shares_or_none(model), kind_of_values(inner)
    caption = "The eigenvalues of the model's criterion." if kind == "eigenvalue" else f"The model's {kind}."
    found.append(drawn("scree", caption if ratio is None else _levels(model, ratio), lambda ax: scree(model, ax=ax)))
    if hasattr(inner, "eigenvalue_bounds_") and (eigenvalues(model) > 0).any():
        caption = "Each bar is certain to contain its true eigenvalue; bounds are not symmetric."
        if inner.bounds_confidence_ < 1:
            caption = f"All bars contain their true eigenvalues with probability {inner.bounds_confidence_:.6g}."
        found.append(drawn("bounds", caption, lambda ax: bounds(model, ax=ax)))
    if subject.apart is not None:
        caption = (
            "Groups in their order. Above the limit, a group is unlike the others: in its mean within the axes (T2) "
        )
        caption += "or outside of them (SPE), or in its own axes (lost)."
        found.append(drawn("drift", caption, lambda ax: drift(subject.apart, ax=ax)))
    if subject.read is not None:
        found.append(_scatter(subject, subject.read.drawn))
    if subject.weights is not None:
        names = None if subject.is_field else subject.weights.names
        shown = min(PICTURES, len(subject.weights.components))
        lines = -(-shown // 4)
        if subject.image_shape is not None:
            caption = "Components as pictures: grey is 0, black and white are the largest weights."
        elif subject.is_field:
            caption = "Components as maps: white is 0, orange and violet are the largest weights of each component."
        else:
            lines = 3
            caption = "Weights of the features that are among the four largest of a component."
        found.append(
            drawn(
                "components",
                caption,
                lambda ax: components(model, subject.image_shape, feature_names=names, n=shown, ax=ax),
                height=max(2.2, 0.5 + 1.5 * lines),
            )
        )
    return tuple(found)


def _scatter(subject: Subject, points: DrawnScores) -> Figure:
    known = subject.known
    kinds = (
        None if known.labels is None else replace(kinds_of(known.labels, points.n, points.rows), column=known.column)
    )
    caption = f"Scores of {points.title()}."
    if known.source:
        caption += f" {known.source[0].upper()}{known.source[1:]}."
    return drawn("scores", caption, lambda ax: draw_scores(ax, subject.model, points, kinds))


def _sampled(inner: Any) -> str:
    """Return the note on standard errors, told apart from the errors of the computation."""
    return (
        "Standard errors say how far eigenvalues would vary between samples of as many rows. They are about the data, "
        f"not about the computation, which is {_certainty(inner)[1]}."
    )


def _levels(model: Any, ratio: np.ndarray[Any, Any]) -> str:
    if f"{percent(float(ratio.sum()))} of" not in captured(model):
        return f"Shares that the eigenvalues state. The components hold {captured(model)}."
    reached = {level: reaching(ratio, level) for level in LEVELS}
    texts = [f"{percent(level)} by {counted(count, 'component')}" for level, count in reached.items() if count]
    missed = [percent(level) for level, count in reached.items() if not count]
    verb = "is" if len(texts) == 1 else "are"
    found = f"Of {whole_of(model)}, {', '.join(texts)} {verb} reached. " if texts else ""
    return found + (f"Not reached: {', '.join(missed)}." if missed else "")


def _components_table(model: Any, errors: Any = None) -> Table:
    found, shares = model.summary(), ["share", "cumulative"]
    header = {"share": f"% of {whole_of(model)}", "cumulative": "% so far"}
    header |= {end: f"{end} bound" for end in ("lower", "upper")}
    for name in found.columns.intersection(shares):
        found[name] *= 100
    if errors is not None:
        fit = (len(found), model.sum_weights_, model.n_features_in_)
        own = (len(errors.explained_variance_), errors.n_rows, errors.n_features)
        if not np.allclose(own, fit):
            raise ValueError(
                "the standard errors describe {} components of {:,.6g} rows and {:,} columns, but the model has {} of "
                "{:,.6g} rows and {:,} columns. ".format(*own, *fit)
                + "Compute them for this model: bigpca.quality.standard_errors(model, X)."
            )
        columns = {"standard error": errors.explained_variance_, "angle of the axis, rad": errors.component_angle_}
        for name, values in columns.items():
            found[name] = ["not determined" if np.isnan(one) else float(one) for one in values]
    names = [header.get(name, name.replace("_", " ")) for name in found.columns]
    return Table("Components", ("component", *names), tuple(found.itertuples(name=None)))


def _features_table(own: Weights, names: list[str]) -> Table:
    shown = own.components[:MAX_FEATURE_COMPONENTS]
    top = largest_weights(shown, TOP_FEATURES)
    rows = [
        (name, rank + 1, str(own.names[feature]), float(component[feature]))
        for name, component, features in zip(names, shown, top, strict=False)
        for rank, feature in enumerate(features)
    ]
    return Table("Main features", ("component", "rank", "feature", "weight"), tuple(rows))


def _next_steps(path: str, scores: Any = None, labels: Any = None) -> tuple[tuple[str, str], ...]:
    """Return commands to go on with, of the files that were given, where they are files."""
    named = (path, _named_describing(scores, "scores.zarr"), _named_describing(labels, "labels.csv::COLUMN"))
    model, stored, column = (shlex.quote(public(one)) for one in named)
    return (
        ("Scores of more rows", f"bigpca transform ROWS --model {model} --scores new.zarr"),
        (
            "A report with labels",
            f"bigpca report {model} --scores {stored} --labels {column} --out labels.html",
        ),
        ("In Python", f"import bigpca as bp\nmodel = bp.load({path!r})\nscores = model.transform(X)"),
    )


def _named_describing(given: Any, instead: str) -> str:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else instead


def _notes(subject: Subject, extremes: tuple[Extremes, ...]) -> tuple[str, ...]:
    notes = [] if subject.errors is None else [_sampled(fitted(subject.model)), *subject.errors.notes]
    if subject.known.pictures is not None:
        shown = [row for one in extremes for row in (*one.lowest, *one.highest)]
        missing = sum(not row.picture for row in shown)
        if missing == len(shown):
            notes.append("No image files were found next to the file of labels or below it, so rows are shown by name.")
        elif missing:
            notes.append(
                f"{missing} of {len(shown)} pictures could not be read. Image files beside or below "
                "the file of labels were expected."
            )
    if subject.apart is None and hasattr(subject.model, "of_group") and hasattr(subject.model, "groups_"):
        notes.append("The model has groups. To show how they differ, give drift=bigpca.quality.drift(model).")
    if subject.read is None:
        notes.append("No scores were given, so no rows are shown. Write them with bigpca transform, and give --scores.")
    elif subject.read.without:
        notes.append(f"{counted(subject.read.without, 'row')} had no scores and are not among the extremes.")
    if subject.read is not None and subject.known.labels is None:
        notes.append("No labels were given, so rows are shown in one colour. Give --labels labels.csv.")
    drawn_whole = subject.image_shape is not None or subject.is_field
    if subject.weights is not None and not drawn_whole and subject.weights.names[0] == "feature 0":
        notes.append("Features have no names. If they are pixels, give --image-shape HEIGHTxWIDTH.")
    return tuple(notes)


def write_report(
    model: Any, out: str | os.PathLike[str] = "report.html", *, overwrite: bool = False, **options: Any
) -> Path | str:
    """Write a report on a fitted model: one HTML file that needs no network, of at most 3 MB.

    It has checks with their numbers, the spectrum, the scores with their labels, components, the rows at both ends of
    each component, all certificates, what the fit did, what was planned and measured, and what to cite.

    Parameters
    ----------
    model : fitted model with components
    out : path, default "report.html"
    overwrite : bool, default False
        Replace an existing file.
    **options
        Those of :func:`describe`.

    Returns
    -------
    Path or str
        Where the file is: an absolute path, or the URL of an object.

    Raises
    ------
    OutputExistsError
        If ``out`` exists and ``overwrite`` is False.
    ValueError
        For the extension of another format than HTML, a model without components, and scores, labels or standard
        errors that do not fit.
    ImportError
        If matplotlib is not installed.
    """
    require_matplotlib()
    reject_file(out, overwrite, *PAGES)
    return write_file(out, render(describe(model, **options)).encode(), overwrite=overwrite)
