"""Rows that are added to a fitted model, and models that are merged: one way for all families.

A model keeps statistics of all its rows. Those of further rows, or of another model, are added to them, and the solve
waits in the place of the result until it is needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self, TypeVar

import numpy as np
from sklearn.utils.metaestimators import available_if

from bigpca.arrays import Input
from bigpca.data.provenance import Provenance
from bigpca.engine.driver import solving
from bigpca.engine.events import ProgressArgument
from bigpca.engine.local import threads_here
from bigpca.errors import format_bytes
from bigpca.estimators.shared.fit import call_of, execute, unfitted
from bigpca.estimators.shared.inputs import BaseEstimator, Unchecked, check_parameters, summed
from bigpca.estimators.shared.opening import opened, set_known
from bigpca.estimators.shared.results import Result, Waiting
from bigpca.passes.rows import Rows
from bigpca.records import check_shapes
from bigpca.settings import setting

Model = TypeVar("Model", bound=BaseEstimator)


def grows(model: BaseEstimator) -> bool:
    """Whether rows can be added; otherwise raises AttributeError, with the reason, as ``available_if`` requires."""
    if model._why_fixed:
        raise AttributeError(model._why_fixed)
    return True


def kept_by(model: BaseEstimator) -> Unchecked:
    """Return the statistics of all rows of a model, solved or not."""
    found = model._found
    return found.kept if isinstance(found, Waiting) else found.so_far


def twin(model: Model) -> Model:
    """Return an estimator with the parameters of now that knows the features of the fit, for other rows of these."""
    other = unfitted(model)
    known = ("n_features_in_", "feature_names_in_", "covariate_names_in_", "solver_", "_steps")
    output = dict(vars(model).get("_sklearn_output_config") or {})  # of set_output, which changes it in place
    set_known(other, _sklearn_output_config=output or None, **{name: vars(model).get(name) for name in known})
    return other


def check_same_steps(model: BaseEstimator) -> None:
    """Reject parameters that change what is summed, if they were changed since the fit.

    Raises
    ------
    ValueError
    """
    fitted = model._steps
    now = model._steps_of(model.n_features_in_, fitted.view, fitted.grid)
    changed = [one for one in summed(model) if not alike(now.parameters[one], fitted.parameters[one])]
    if any(getattr(now, one) != getattr(fitted, one) for one in ("preprocessing", "filled", "standardized")):
        changed = ["preprocess, nan_policy, center or scale"]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} was changed after the fit: {' '.join(repr(model).split())}. The model was "
            "computed with the former values, to which other rows do not belong. Set them again, or fit all rows."
        )


def alike(a: Unchecked, b: Unchecked) -> bool:
    """Whether two parameters are equal: values, records, vectors, lists of records, or one of each side."""
    if all(isinstance(one, list | tuple) and len(one) == 2 for one in (a, b)):
        return all(map(alike, a, b))
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def required(model: Unchecked, what: str) -> Unchecked:
    """Return the statistics of all rows, which ``what`` requires; raises ValueError if they are not kept."""
    kept = kept_by(model)
    if getattr(kept, "state", kept) is None:
        raise ValueError(model._unsummed(what) or model._missing_state(what))
    return kept


def not_kept(what: str, statistics: str, size: float, keep_state_bytes: int) -> str:
    """Return the message that ``what`` (``partial_fit``, ``merge``) is impossible without statistics that are not kept:
    because of the limit of today, or of that of the fit.
    """
    limit = "keep_state_bytes was smaller when it was fitted (set by bigpca.config)"
    if size > keep_state_bytes:
        limit = f"keep_state_bytes = {format_bytes(keep_state_bytes)}"
    return (
        f"{what} needs the {statistics}, {format_bytes(size)}, which are not kept because {limit}. Fit again with a "
        "larger bigpca.config(keep_state_bytes=...), or with fewer columns."
    )


def solve_later(model: Unchecked, kept: Unchecked) -> None:
    """Keep statistics, and in the place of the result their solve: it runs once, when that is needed.

    With other parameters than those of the fit they are solved at once, and a failure changes nothing.
    """
    owner = twin(model)

    def solved() -> Result:
        found: Result = check_shapes(owner._made(owner._solve(kept)))
        owner._warn(found)
        return found

    found, parameters = Waiting(solved, kept, setting(model, "solve_threads")), model.get_params(deep=False)
    if not all(alike(value, model._steps.parameters[name]) for name, value in parameters.items()):
        found()
    model._found = found


def read_more(
    model: BaseEstimator, rows: Rows, like: Unchecked, progress: ProgressArgument = None
) -> tuple[Unchecked, Provenance, str]:
    """Return the statistics of rows to be added to those of ``like``, the record of their read, and its solver."""
    fit: Unchecked = model._fit(rows, rows.y, like=like)
    call = call_of(model, "partial_fit", rows)
    return *execute(model, fit, fit.read, call, progress=progress, adds=True), fit.solver


class Grows(BaseEstimator):
    """A model to which rows can be added, and that can be merged with others.

    What a subclass writes::

        _fit(rows, y, like=None)    the planned fit, whose ``read`` returns the statistics of these rows alone; where
                                    ``like`` has those of the rows before, only that read, with what depends on them
        _solve(kept)                what the fit returns, from statistics
        _unsummed(what)             why the parameters exclude statistics that add up, which ``what`` needs; or ""

    Statistics have ``merge``; they are the result, or its property ``so_far``.
    """

    n_features_in_: int
    _statistics: ClassVar[str] = "sums of all rows"  # what a fit keeps

    def _unsummed(self, what: str) -> str:
        """Return why the parameters exclude statistics that add up, which ``what`` needs; empty if they do not."""
        return ""

    @property
    def _why_fixed(self) -> str:
        """The reason why rows cannot be added; empty if they can."""
        return self._unsummed("partial_fit")

    @available_if(grows)  # type: ignore[untyped-decorator]
    @solving
    def partial_fit(
        self,
        X: Input,
        y: Input | None = None,
        *,
        sample_weight: Input | None = None,
        covariates: Input | None = None,
        groups: Input | None = None,
        classes: Input | None = None,
        progress: ProgressArgument = None,
    ) -> Self:
        """Add rows, any number at a time; the result equals a fit on all rows to rounding. One read of the new rows.

        The model is solved when a fitted attribute is next accessed. The first call is a fit, which for PCA may be of
        fewer rows than ``n_components``: it keeps one component per row, and uses the covariance, whatever ``solver``
        is. Labelled rows may add new classes, even of one row. Landmarks and the label features of real labels remain
        those of the first fit.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (m, d)
            New rows, as for :meth:`fit`.
        y : labels or targets of the new rows as for :meth:`fit`, default None
        sample_weight : weights of the new rows as for :meth:`fit`, default None
        covariates : covariates of the new rows as for :meth:`fit`, default None
        groups : labels of groups of the new rows as for :meth:`fit`, default None
            Rows of a known label join its group.
        classes : array-like, or None, default None
            The classes that labels may have, as for scikit-learn's classifiers. Optional: None accepts any class.
        progress : True, "auto", a callable that receives events, or None, default None
            True shows a bar; "auto" shows one after two seconds.

        Returns
        -------
        Self
            The estimator itself.

        Raises
        ------
        ValueError
            As for :meth:`fit`; for labels that are not in ``classes``; if the model has no statistics of its rows,
            because its solver keeps none or they exceed ``keep_state_bytes``; or if ``preprocess``, or a ``center`` or
            ``scale`` given as numbers, was changed after the fit. Not available if the parameters exclude such
            statistics.
        MemoryBudgetError, EvaluationBudgetError
            Before any read, if the plan does not fit.
        """
        if classes is not None:
            check_among(self, y, classes)
        beside = {"sample_weight": sample_weight, "covariates": covariates, "groups": groups, "progress": progress}
        if "_found" not in vars(self):
            return self._first(X, y, **beside)
        check_parameters(self)
        check_same_steps(self)
        kept, made = self._more(required(self, "partial_fit"), X, y, **beside)
        solve_later(self, kept)
        # Without the record of the rows before, none says how all came to be.
        before, threads = self.provenance_, threads_here(setting(self, "solve_threads"))
        made = before and replace(before.with_rows(made), solve_threads=threads)
        set_known(self, _steps=replace(self._steps, parameters=self.get_params(deep=False)), _provenance=made)
        return self

    def _solve(self, kept: Unchecked) -> Unchecked:
        """Return what a fit returns, from the statistics of all rows."""
        raise AttributeError(self._why_fixed)

    def _missing_state(self, what: str) -> str:
        """Return the message that ``what`` needs the statistics of all rows, which are not kept."""
        size = self._empty(self._columns).finished().state_bytes
        return not_kept(what, self._statistics, size, setting(self, "keep_state_bytes"))

    @property
    def _columns(self) -> int:
        """Columns of the sums of a fitted model."""
        return self.n_features_in_

    def _more(self, kept: Unchecked, X: Unchecked, y: Unchecked, **beside: Unchecked) -> tuple[Unchecked, Provenance]:
        """Read more rows, and return the statistics of all, and the record of the read."""
        rows = opened(self, X, y, **beside, use="more")
        read, made, _ = read_more(self, rows, kept, beside["progress"])
        return kept.merge(read), made

    def _first(self, X: Unchecked, y: Unchecked, **beside: Unchecked) -> Self:
        """Fit the first rows."""
        return self.fit(X, y, **beside)  # type: ignore[no-any-return]


def check_among(model: Grows, y: Unchecked, classes: Unchecked) -> None:
    """Reject labels that are not among the classes, and classes for a model without labels.

    Raises
    ------
    TypeError, ValueError
    """
    if not hasattr(model, "missing_labels"):
        raise TypeError(f"classes were passed to {type(model).__name__}, which has no labels. Leave them out.")
    if y is None:
        raise ValueError("classes were given without y. Those of batches are named by from_batches(classes=...).")
    from bigpca.data.labels import ClassLabels, merge_classes  # imports file formats

    known = merge_classes(classes, classes)[0]
    ClassLabels(np.zeros(0, np.int32), known, 0).encode(y, missing=model.missing_labels)
