"""The model of all rows of two models, and the choice of a solver without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from sklearn.utils.validation import check_is_fitted

from bigpca.engine.driver import solving_with
from bigpca.engine.local import threads_here
from bigpca.errors import an, brief
from bigpca.estimators.linear.maps import of_all_rows
from bigpca.estimators.linear.model import LinearModel
from bigpca.estimators.linear.sums import SumsModel
from bigpca.estimators.shared.growing import alike, check_same_steps, required, solve_later, twin
from bigpca.estimators.shared.inputs import summed
from bigpca.estimators.shared.labelled import common_grid, common_view
from bigpca.estimators.shared.opening import set_known
from bigpca.settings import setting

MAX_SHOWN = 60  # characters of a parameter in a message
Model = TypeVar("Model", bound=LinearModel[Any] | SumsModel[Any])


def merge(a: Model, b: Model) -> Model:
    """Return the model of the rows of both models, exact to rounding. Neither model changes, and nothing is read.

    Folds (``cv`` of :class:`bigpca.Ridge`) stay as both fits drew them. If rows have keys or groups, one fit on all
    rows would draw the same folds.

    Parameters
    ----------
    a, b : fitted models of one class
        With labels or without. Models of labels may have different classes; with real labels they must have a linear
        label kernel, or random features of the same seed and ``label_gamma``.

    Returns
    -------
    fitted model
        Of the class and parameters of ``a``.

    Raises
    ------
    TypeError
        If their classes differ, or are of models that cannot be merged, such as those with landmarks.
    ValueError
        If they differ in features, in parameters that change the statistics (centring, scaling), or in the kind or
        features of labels, or if one of them has no statistics.

    Examples
    --------
    >>> import numpy as np
    >>> from bigpca import PCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> both = merge(PCA(2).fit(X[:10]), PCA(2).fit(X[10:]))
    >>> bool(np.allclose(both.explained_variance_, PCA(2).fit(X).explained_variance_))
    True
    """
    _check_alike(a, b)
    view, grid = common_view(a._steps.view, b._steps.view), common_grid(a._steps.grid, b._steps.grid)
    for one in (a, b):
        check_same_steps(one)
    both = twin(a)
    both._steps = both._steps_of(a.n_features_in_, view, grid)
    threads = threads_here(setting(a, "solve_threads"))
    with solving_with(threads):
        solve_later(both, required(a, "merge").merge(required(b, "merge")))
    of_a, of_b = a.provenance_, b.provenance_
    set_known(both, _provenance=of_a and of_b and replace(of_a.merged(of_b), solve_threads=threads))
    return both


def _check_alike(a: Model, b: Model) -> None:
    """Reject models of other classes, parameters, features, columns or patterns; raises as :func:`merge`."""
    if type(a) is not type(b):
        raise TypeError(
            f"{an(type(a).__name__)} and {an(type(b).__name__)} cannot be merged. Fit both with the same class."
        )
    if not isinstance(a, LinearModel | SumsModel):
        raise TypeError(
            f"two models of {type(a).__name__} cannot be merged: what each keeps depends on the rows of its own fit. "
            "Add the rows of one to the other by partial_fit, if it has that, or fit all rows."
        )
    for model in (a, b):
        check_is_fitted(model)
        required(model, "merge")
        if model._steps.filled:
            raise ValueError(of_all_rows("merge", model._steps.filled))
    differing = [p for p in (*a._traits.alike, *summed(a)) if not alike(getattr(a, p), getattr(b, p))]
    if a.n_features_in_ != b.n_features_in_ or differing:
        raise ValueError(
            f"models of {a.n_features_in_} and {b.n_features_in_} features"
            + "".join(f", {p}={_shown(getattr(a, p))} and {_shown(getattr(b, p))}" for p in differing)
            + " cannot be merged. Fit both with the same parameters."
        )
    maps = [[*one.preprocess_, *([] if one._steps.counts is None else [one._steps.counts])] for one in (a, b)]
    if maps[0] != maps[1] and not differing:
        raise ValueError(
            f"rows were mapped by {maps[0]} and {maps[1]}, so the models cannot be merged. Fit "
            "both with the same target. What one fit found of covariates, partial_fit applies to further rows."
        )
    if a._steps.covariates != b._steps.covariates:
        raise ValueError(
            f"the models were fitted with {a._steps.covariates} and {b._steps.covariates} covariates. Fit both "
            "with the same covariates (covariates=)."
        )
    for what in ("feature", "covariate"):
        names = [vars(model).get(f"{what}_names_in_") for model in (a, b)]
        if names[0] is not None and names[1] is not None and list(names[0]) != list(names[1]):
            first = next(i for i in range(len(names[0])) if names[0][i] != names[1][i])
            raise ValueError(
                f"the models name {what} {first} {names[0][first]!r} and {names[1][first]!r}. Fit both on the same "
                f"columns in the same order."
            )


def _shown(value: Any) -> str:
    return brief(str(value), MAX_SHOWN)
