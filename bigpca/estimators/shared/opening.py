"""The way of rows, labels and what belongs to them into a fit, and of new rows into a fitted model.

What only some estimators take (weights, covariates, groups, labels) is declared by their class, and asked here. Then
the one planned read of rows for what a model, or a measure of quality, says of all of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Generic, TypeVar

import numpy as np

from bigpca.arrays import DType, working_dtype
from bigpca.data.weights import open_weights
from bigpca.engine.events import ProgressArgument
from bigpca.errors import brief, naming_argument
from bigpca.estimators.shared.fit import Reading, running
from bigpca.estimators.shared.inputs import (
    BaseEstimator,
    Unchecked,
    check_names,
    check_parameters,
    compare_own_columns,
)
from bigpca.estimators.shared.labelled import open_side, without_absent_columns
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.fold import Folded, Read
from bigpca.passes.reading.blocks import INCOMPLETE
from bigpca.passes.reading.row_maps import MapStep, RowMap, RowPreprocessor
from bigpca.passes.residuals import Residuals, steps_beside
from bigpca.passes.rows import Rows, reject_weights
from bigpca.passes.side_by_side import beside_covariates, check_paired, rows_at
from bigpca.settings import setting
from bigpca.solvers.components import degrees_of_freedom

State = TypeVar("State", bound=Accumulator)
WORDS = {"sample_weight": "weight", "labels": "label", "groups": "group"}  # what is beside rows, in messages


def opened(
    model: BaseEstimator,
    X: Unchecked,
    y: Unchecked = None,
    *,
    sample_weight: Unchecked = None,
    covariates: Unchecked = None,
    groups: Unchecked = None,
    use: str = "fit",
    progress: ProgressArgument = None,
) -> Rows:
    """Open X with what belongs to its rows, in their order: the one door of what estimators and measures are given.

    What is given beside X, and what X was opened with (:func:`bigpca.open`), is attached alike.

    Parameters
    ----------
    use : {"fit", "plan", "first", "more", "measure", "map"}
        What becomes of the rows: all rows of a new fit, or of one that is planned without a read; the first of a fit
        that grows; rows as those of the fit, which are added to it or scored; the same without labels; and without
        weights, as each is mapped by itself.

    Raises
    ------
    TypeError, ValueError
        For what is given twice, or that the class cannot use; as :func:`without_absent_columns`; and for rows as those
        of the fit with other features, or without its covariates.
    """
    whole, new = use in ("fit", "plan"), use in ("fit", "plan", "first")
    if whole:
        check_parameters(model)
    rows = X if isinstance(X, Rows) else model._open(X, minimum=model._traits.min_rows if whole else 1, fitted=not new)
    if rows.origin.brings or covariates is not None or not new:
        rows = with_covariates(model, rows, covariates, like=not new)
    if rows.origin.brings and use != "map":
        sample_weight = given_beside(rows, "sample_weight", sample_weight)
        groups = groups if use == "measure" else given_beside(rows, "groups", groups)
    if sample_weight is not None:
        rows = rows.weighted(sample_weight)
    if whole and rows.counted.weights is not None:
        degrees_of_freedom(rows.n_present, rows.counted.sums)
    counted = rows.counted
    if use not in ("map", "measure"):
        if y is not None or "labels" in model._traits.accepts:
            y = model._targets(rows, y, use, progress)
        rows = replace(rows, y=y, groups=groups)
        if rows.groups is not None and "groups" not in model._traits.accepts:
            reject_groups(model)
        if rows.origin.labels is not None and rows.y is not None and "labels" in model._traits.accepts:
            from bigpca.data.labels import one_each  # imports all formats of labels

            labels = one_each(rows.y, rows.n_rows, columns=True, gaps=True)
            rows, counted = replace(rows, y=labels), counted.among(-labels.gaps.astype(np.int32))
    if new and rows.origin.labels is not None:
        rows = without_absent_columns(model, rows, counted, read=use != "plan", progress=progress)
    if not new:
        return rows
    maps = tuple(one.begun() for one in model._preprocessors()) if whole else preprocessors_of(model)
    learned = () if rows.covariates is None else model._learns(rows)
    return replace(rows, preprocessing=(*maps, *learned))


def given_beside(rows: Rows, name: str, given: Unchecked, absent: Unchecked = "raise") -> Unchecked:
    """Return the weights, labels or groups given beside rows, or those that the rows were opened with, in their order.

    Raises
    ------
    ValueError
        For both; ``absent`` as of :func:`bigpca.data.keys.aligned`.
    """
    if not rows.origin.brings:
        return given
    from bigpca.data.keys import brought, in_row_order  # imports all formats of labels
    from bigpca.data.labels import one_each, with_gaps

    found, places = brought(rows.X, name, given)
    if not found:
        return given
    each, word = [], WORDS[name]
    read = open_weights if name == "sample_weight" else partial(in_row_order, absent=absent, word=word)
    for base, own in found:
        n = None if np.isnan(base.shape[0]) else int(base.shape[0])
        each.append(with_gaps(*one_each(read(own, base), n, word, columns=True, gaps=True)))
    return np.concatenate(each) if places is None else np.concatenate(each)[places]


def with_covariates(model: BaseEstimator, rows: Rows, covariates: Unchecked, *, like: bool) -> Rows:
    """Return the rows with their covariates, given or as they were opened, in their order; ``like`` those of the fit.

    Raises
    ------
    ValueError
        For those that are given twice, that do not belong to the rows, for policies that need all columns to be alike,
        and for others than those of the fit.
    """
    name, places, found = type(model).__name__, None, [] if covariates is None else [(rows, covariates)]
    if rows.origin.brings:
        from bigpca.data.keys import brought  # imports all formats of labels

        own, at = brought(rows.X, "covariates", covariates)
        if own:
            places, found = at, [(Rows.opened(base), given) for base, given in own]
    parts = list[Rows]()
    joined = places is not None or len(found) > 1  # of some of the rows that were opened, or of several such
    for base, given in found:
        parts.append(open_side(given, name, "Z", beside=base))
        if joined:
            check_paired([base, parts[-1]], "XZ")
    if joined:
        known = [part.viewed_columns if part.origin.names is None else list(part.origin.names) for part in parts]
        if any(one != known[0] for one in known):
            raise ValueError(f"the rows of X were opened with different covariates: {brief(known)}. Give all the same.")
        parts = [rows_at(places, *parts)]
    q = parts[0].viewed_columns if parts else 0
    if like and q != model._steps.covariates:
        raise ValueError(
            f"the rows have {q} covariates, but {name} was fitted with {model._steps.covariates}. Give those of the "
            "fit, in the same order: bigpca.open(X, covariates=Z), or the argument covariates of a method."
        )
    if not parts:
        return rows
    if like:
        with naming_argument("Z"):
            check_names(vars(model).get("covariate_names_in_"), parts[0].origin.names, name, "Z")
    elif model.nan_policy in INCOMPLETE:
        raise ValueError(f'nan_policy = {model.nan_policy!r} cannot be used with covariates: use "raise" or "omit".')
    return replace(rows, covariates=parts[0])


def reject_groups(model: BaseEstimator) -> None:
    """Reject groups that were passed to an estimator without folds."""
    raise TypeError(
        f"groups were passed to this {type(model).__name__}, which uses none: bigpca.Ridge with several alphas "
        "divides them into folds, and bigpca.PCA keeps the moments of each. Leave them out."
    )


def placed_in_folds(states: FoldStates, joined: Rows, groups: Unchecked = None, least: int = 2) -> FoldStates:
    """Return the states of folds, with the fold of each row of sides that are begun.

    Rows of one label are a fold. Without labels, a fold is a hash of the key of the row, and where rows have no keys,
    of its number. So rows with keys have the same folds in any order and in any process, and all rows that a pattern
    makes of one sample are in one fold.

    Raises
    ------
    ValueError
        For labels that are missing or do not belong to the rows, and for fewer than ``least`` groups.
    """
    from bigpca.data.keys import in_row_order, keys_of_rows  # imports all formats of labels
    from bigpca.data.labels import class_values, one_each, reject_gaps

    sides = joined.origin.sides
    if groups is not None:
        if joined.order.open_ended:
            raise ValueError(
                "there are groups, but batches of an unknown number of rows. Give it: "
                "from_batches(batches, shape=(n, d))."
            )
        given = one_each(in_row_order(groups, sides[0].given, word="group"), joined.n_rows, "group", gaps=True)
        present = joined.counted.which(joined.n_rows)
        reject_gaps(given.gaps & present, "group")
        codes = np.zeros(len(present), np.int32)
        names, codes[present] = np.unique(given.values[present], return_inverse=True)
        if len(names) < least:
            raise ValueError(f"all rows are in the group {names.tolist()[0]!r}; at least {least} groups were expected.")
        labels = class_values(names, np.zeros(len(names), bool))
        return replace(states, n_folds=len(names), codes=codes, labels=labels)
    for keys in (keys_of_rows(side.given) for side in sides):
        if keys.names is not None and not keys.loose:
            hashes = (hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=4) for key in keys.names)
            drawn = np.fromiter((int.from_bytes(one.digest(), "big") for one in hashes), np.int64)
            folds = (drawn * states.n_folds >> 32).astype(np.int32)
            return replace(states, codes=folds if keys.places is None else folds[keys.places])
    return states


def rows_of_fit(
    model: BaseEstimator, rows: Rows, *, weighted: bool = True, memory_limit: int | str | None = None
) -> Rows:
    """Return the rows that a fit reads, preprocessed, within ``memory_limit``; None for that of the model.

    Raises
    ------
    TypeError
        For weights that the fit cannot use.
    ValueError
        For maps of rows that lack what a read of the fit finds, if these are not the only rows that the fit reads.
    """
    check_parameters(model)
    if (labels := rows.origin.labels) is not None or rows.origin.names is not None:
        for name in ("center", "scale", "sampling", "metric"):  # parameters that may name the columns
            compare_own_columns(labels, rows.origin.names, getattr(model, name, None), name)
    if not weighted:
        reject_weights(rows, [type(model).__name__], model._traits.unweighted)
    maps = preprocessors_of(model) if rows.preprocessing is None else rows.preprocessing
    for one in maps:
        one.check_known()
    rows, steps = steps_beside(maps, beside_covariates(rows) if model._beside else rows)
    rows = rows.begun(nan_policy=model.nan_policy, memory_limit=setting(model, "memory_limit", memory_limit))
    return rows.mapped(*steps)


def maps_of(model: BaseEstimator) -> tuple[RowPreprocessor, ...]:
    """Return what is applied to each new row first: as in the fit, and what takes the effect of covariates out."""
    known, maps = getattr(model._result, "regression", None), preprocessors_of(model, same=True)
    return maps if known is None or model._beside else (*maps, known.residuals(slice(model.n_features_in_)))


def rows_like(
    model: BaseEstimator,
    X: Unchecked,
    y: Unchecked = None,
    *,
    use: str = "measure",
    sample_weight: Unchecked = None,
    memory_limit: int | str | None = None,
) -> Rows:
    """Return new rows as those of the fit were read: preprocessed, and left out by the same policies.

    Raises
    ------
    TypeError, ValueError
        As :func:`opened` and :func:`preprocessors_of`.
    """
    rows = opened(model, X, y, sample_weight=sample_weight, use=use)
    read = rows_of_fit(model, replace(rows, preprocessing=maps_of(model)), memory_limit=memory_limit)
    return replace(read, y=rows.y)


def preprocessors_of(model: BaseEstimator, *, same: bool = False) -> tuple[RowPreprocessor, ...]:
    """Return what ``preprocess`` says now, with what the last fit found if it said the same.

    Raises
    ------
    ValueError
        If it must be the ``same`` as in the fit, and was changed since: other rows would be mapped than were fitted.
    """
    now: tuple[RowPreprocessor, ...] = model._preprocessors()
    fitted: tuple[RowPreprocessor, ...] = model._steps.preprocessing or ()
    own = fitted[:-1] if fitted and isinstance(fitted[-1], Residuals) else fitted
    if len(now) == len(own) and all(one.becomes(f) for one, f in zip(now, own, strict=True)):
        return fitted
    if same and model._steps.preprocessing is not None:
        raise ValueError(
            f"preprocess = {model.preprocess!r} was set after a fit with {list(fitted) or None}. Set it back, or "
            f"fit again."
        )
    return now


def set_known(model: BaseEstimator, **values: object) -> None:
    """Set the attributes whose value is not None, and delete the others, which an earlier fit may have set."""
    for name, value in values.items():
        if value is None:
            model.__dict__.pop(name, None)
        else:
            setattr(model, name, value)


@dataclass(frozen=True)
class Measurement(Reading, Generic[State]):
    """One read that is folded into an accumulator.

    Attributes
    ----------
    solver : str
        Name of the read.
    template : Accumulator
    dtype : numpy.dtype or None
        Of the products; None chooses by their number.
    """

    reads: ClassVar[tuple[str, ...]] = ("whole",)
    depends_on: ClassVar[tuple[str, ...]] = ("name",)
    account: ClassVar[str] = "one read"

    name: str
    template: State
    dtype: DType | None = None

    @property
    def solver(self) -> str:
        return self.name

    @cached_property
    def whole(self) -> Read[Folded[State]]:
        """The read."""
        return Read.into(self.rows, self.name, self.template, dtype=self.dtype)


def read_once(
    rows: Rows,
    template: State,
    name: str,
    *,
    progress: ProgressArgument = None,
    dtype: DType | None = None,
    about_zero: bool = False,
) -> State:
    """Fold one read of X into ``template`` and return its state.  # one pass over X

    Parameters
    ----------
    dtype : numpy.dtype or None
        Of the products; None chooses by their number.
    about_zero : bool
        Whether rows are unshifted, so that sums of integers are exact.

    Raises
    ------
    MemoryBudgetError
        Before any read, if blocks and state do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.
    """
    measurement, shift = Measurement(rows, name, template, dtype), np.zeros(rows.n_columns) if about_zero else None
    with running(measurement, progress=progress) as run:
        return measurement.whole(run, shift=shift).state


def read_mapped(rows: Rows, f: RowMap, template: State, name: str, *, width: int = 1, flops: int = 0) -> State:
    """Fold ``f`` of rows, of ``width`` numbers, about zero into ``template``, in one read: as f maps rows for outputs.

    Raises as :func:`read_once`.
    """
    mapped = rows.mapped(MapStep(f, width, flops))
    return read_once(mapped, template, name, dtype=working_dtype(rows.dtype), about_zero=True)
