"""Whether to trust a model: a few checks, each with the number that decides it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigpca.plots.data import Vector, Weights, column_shares, fitted
from bigpca.plots.style import counted, percent, short
from bigpca.report.records import Light, Verdict
from bigpca.solvers.certificates import Bounds, trustworthy

NARROW = 0.1  # width of bounds, relative to the lower end, that is no matter for most uses
DOMINATING = 0.5  # of the variance
MAX_OMITTED = 0.1  # of the rows
NO_WEIGHT = 1e-7  # relative to the largest weight of a component


def lights_of(model: Any, weights: Weights | None) -> tuple[Light, ...]:
    """Return the checks of a fitted model; ``weights`` are its components as weights of features, if it has any."""
    inner = fitted(model)
    of_columns = (*_dominated(weights, column_shares(model)), _unused(weights))
    return (_converged(inner), _bounds(inner), _flat(inner), *of_columns, _omitted(inner))


def _converged(model: Any) -> Light:
    name, reads = "converged", getattr(model, "n_passes_", None)
    taken = "" if reads is None else f" after {counted_reads(reads)}"
    tolerance = getattr(model, "tol", None)
    if not hasattr(model, "converged_"):
        exact = not hasattr(model, "eigenvalue_bounds_")
        text = "exact to rounding, no iteration" if exact else "one approximation, no iteration: see its bounds"
        return Light(name, Verdict.PASS, text)
    if model.converged_:
        met = "" if tolerance is None else f", tolerance {tolerance:g} met"
        return Light(name, Verdict.PASS, f"yes{taken}{met}")
    return Light(name, Verdict.FAIL, f"no, stopped{taken}. Raise max_passes, or ask for fewer components")


def _bounds(model: Any) -> Light:
    name = "bounds"
    if not hasattr(model, "eigenvalue_bounds_"):
        return Light(name, Verdict.PASS, "none needed: the answer is exact to rounding")
    low, high = np.asarray(model.eigenvalue_bounds_, dtype=np.float64).T
    confidence = float(model.bounds_confidence_)
    trust = trustworthy(Bounds(low, high, confidence))
    hold = "they always hold" if confidence == 1 else f"they hold with probability {confidence:.6g}"
    certified = f"{trust.components} of {trust.k} components certified"
    wide = f"widest {percent(trust.width)} of its lower end; {certified}; {hold}"
    if trust.components < trust.k:
        return Light(name, Verdict.FAIL, f"{wide}. Use a wider sketch, more landmarks, or a solver that iterates")
    return Light(name, Verdict.PASS if trust.width <= NARROW else Verdict.WARNING, wide)


def _flat(model: Any) -> Light:
    """Compare the largest eigenvalue with the edge that noise alone reaches, ``(1 + sqrt(d / n))^2`` times the mean."""
    name = "spectrum"  # weights count rows, as they do in the rules for n_components
    n = float(getattr(model, "sum_weights_", getattr(model, "n_samples_", 0)))
    total = getattr(model, "total_variance_", None)
    if not hasattr(model, "explained_variance_") or total is None or not total > 0 or n < 2:
        return Light(name, Verdict.NONE, "the eigenvalues are no parts of the variance")
    d = n if hasattr(model, "kernel_") else int(model.n_features_in_)
    largest = float(np.asarray(model.explained_variance_)[0]) * min(n - 1, d) / float(total)
    edge = (1 + np.sqrt(min(n, d) / max(n, d))) ** 2
    text = f"largest eigenvalue {largest:.3g} times the mean; noise alone reaches {edge:.3g}"
    if d == 1 or largest > 1.1 * edge:
        return Light(name, Verdict.PASS, text)
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


def _unused(weights: Weights | None) -> Light:
    name = "constant columns"
    if weights is None:
        return Light(name, Verdict.NONE, "components are no weights of features")
    sizes = np.abs(weights.components)
    without = np.flatnonzero((sizes <= NO_WEIGHT * sizes.max(initial=0.0)).all(axis=0))
    d = sizes.shape[1]
    if not len(without):
        return Light(name, Verdict.PASS, f"none: all {d:,} columns have weights")
    named = ", ".join(short(name) for name in weights.names[without[:3]]) + (", ..." if len(without) > 3 else "")
    text = (
        f"{len(without):,} of {d:,} columns have no weight in any component: {named}. They are constant, or unrelated"
    )
    return Light(name, Verdict.WARNING, text)


def _omitted(model: Any) -> Light:
    name = "rows omitted"
    if not hasattr(model, "n_omitted_"):
        return Light(name, Verdict.NONE, "the model does not count rows")
    omitted, used = int(model.n_omitted_), int(model.n_samples_)
    share = omitted / max(1, omitted + used)
    unlabelled = int(getattr(model, "n_unlabelled_", 0))
    without = f"; {counted(unlabelled, 'row')} without a label" if unlabelled else ""
    text = f"{omitted:,} of {used + omitted:,}{without}"
    if not omitted and not unlabelled:
        return Light(name, Verdict.PASS, text)
    text += f" ({percent(share)}): they hold NaN or infinity" if omitted else ""
    return Light(name, Verdict.FAIL if share > MAX_OMITTED else Verdict.WARNING, text)


def counted_reads(reads: float) -> str:
    """Return a number of reads in words.

    >>> counted_reads(1.0), counted_reads(2.5)
    ('1 read', '2.5 reads')
    """
    return f"{reads:.3g} read{'' if reads == 1 else 's'}"
