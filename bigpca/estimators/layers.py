"""One model for each layer of a network from one forward pass: several fits that share the batches they read."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import ClassVar, TypeVar
from urllib.parse import quote

from numpy.typing import ArrayLike
from sklearn.base import clone

import bigpca.dask_array as da
from bigpca.arrays import Path
from bigpca.blas import one_blas_thread
from bigpca.data.batches import AGAIN, ReadAgain, from_batches, has_batches, names_of_columns, unread_batches
from bigpca.data.sources import open as open_array
from bigpca.engine.events import Event, PlanEvent
from bigpca.engine.local import threads_here
from bigpca.engine.planning import Plan, SolveCost
from bigpca.errors import an, brief
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.transformer import AnyEstimator

Failure = TypeVar("Failure", bound=BaseException)
AHEAD = 2  # batches that a layer may be behind the one that is read next


@dataclass(eq=False)
class SharedBatches:
    """Batches of dicts that several readers take in step, each its own block: one iteration, a few batches held.

    Attributes
    ----------
    batches : iterator
        Of dicts {name: rows}, or of pairs of such a dict and labels (or targets) of the rows.
    waiting : dict of str to deque
        Blocks that a reader has not taken yet; readers that have ended are removed.
    plans : dict of str to Plan
        Of the fits that are about to read; none reads before all are known, and fit in memory together.
    solving : set of str
        Readers that were told that the batches have ended: one for each core, because each solve takes memory.
    keys : str or None
        The entry of each batch that names its rows.
    complete : bool
        Whether every layer of a batch must be read, as if one estimator is for all.
    """

    batches: Iterator[Unchecked]
    waiting: dict[str, deque[Unchecked]] = field(default_factory=dict)
    keys: str | None = None
    complete: bool = False
    plans: dict[str, Plan] = field(default_factory=dict)
    solving: set[str] = field(default_factory=set)
    failure: BaseException | None = None
    ended: bool = False
    number: int = 0
    _turn: threading.Condition = field(default_factory=threading.Condition)

    def of(self, name: str) -> Iterator[Unchecked]:
        """Iterate over the blocks of one name; the next batch is taken when the other readers are near enough."""
        own = self.waiting[name]
        while True:
            with self._turn:
                while not own and not self.ended:
                    if self.failure is not None:
                        raise RuntimeError("another layer failed") from self.failure
                    if max(map(len, self.waiting.values())) < AHEAD:
                        self.take()
                    else:
                        self._turn.wait()
                if not own:
                    self._turn.wait_for(lambda: self.failure is not None or len(self.solving) < threads_here(None))
                    self.solving.add(name)
                    return
                block = own.popleft()
                if len(own) == AHEAD - 1 and max(map(len, self.waiting.values())) < AHEAD:
                    self._turn.notify_all()  # those that waited for this one
            yield block

    def planned(self, name: str, event: Event) -> None:
        """Note the plan of a fit, and wait for those of the others."""
        if isinstance(event, PlanEvent):
            with self._turn:
                self.plans[name] = event.plan
                self._turn.notify_all()
                self._turn.wait_for(lambda: self.failure is not None or self.waiting.keys() <= self.plans.keys())

    def take(self) -> None:
        """Take the next batch for all readers."""
        if self.number == 1:  # the first batch was taken to open the rows, before any plan
            _summed(self.plans).check()
        try:
            batch = next(self.batches)
        except StopIteration:
            self.ended = True
        except BaseException as error:
            self.failure = error
            raise
        else:
            labels = None
            if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[0], Mapping):
                batch, labels = batch
            wanted, batch = self.waiting.keys() | ({self.keys} if self.keys else set()), _blocks(batch)
            if not isinstance(batch, Mapping) or wanted - batch.keys():
                what = brief(list(batch)) if isinstance(batch, Mapping) else type(batch).__name__
                raise ValueError(
                    f"batch {self.number} is {what}; a dict with {brief(sorted(wanted))} was expected, or a pair "
                    "of it and labels."
                )
            if self.complete and (new := batch.keys() - wanted):
                raise ValueError(
                    f"batch {self.number} has {brief(sorted(map(str, new)))}, which the first batch has not. Give each "
                    "batch all layers, with (0, d) for one without rows, or estimators by name."
                )
            for name, own in self.waiting.items():
                rows = batch[name] if self.keys is None else {name: batch[name], self.keys: batch[self.keys]}
                own.append(rows if labels is None else (rows, labels))
            self.number += 1
        self._turn.notify_all()

    def end(self, name: str, failure: BaseException | None = None) -> None:
        """Note that a reader has ended, so that the others no longer wait for it."""
        with self._turn:
            self.failure = self.failure or failure
            self.waiting.pop(name, None)
            self.solving.discard(name)
            self._turn.notify_all()


@dataclass(frozen=True)
class OfLayer(Iterator[Unchecked]):
    """The blocks of one layer, which come once whatever the batches of all are."""

    blocks: Iterator[Unchecked]
    why_once: ClassVar[tuple[str, str]] = (
        "the batches are iterated once, for all layers together",
        f"Fit this layer alone, from {AGAIN}",
    )

    def __next__(self) -> Unchecked:
        return next(self.blocks)


def fit_layers(
    batches: Iterable[Unchecked],
    estimators: Mapping[str, AnyEstimator] | AnyEstimator,
    *,
    patterns: Mapping[str, str] | None = None,
    classes: ArrayLike | None = None,
    keys: str | None = None,
    checkpoint: Path | None = None,
) -> dict[str, AnyEstimator]:
    """Fit one model to each layer of a network in one pass over its batches, such as one forward pass.

    The fits run side by side, and share each batch: memory is that of all of them together, with at most two batches.
    Each model is the same, bit for bit, as a fit of that layer alone to the same batches with
    ``bigpca.config(solve_threads=1)``.

    Parameters
    ----------
    batches : iterable of dicts {name: rows of that layer}, or what from_batches returned for one
        Rows as for :func:`bigpca.from_batches`, of any number: a layer may have none in a batch, (0, d), as experts do.
        Or pairs of such a dict and labels, or targets, of the rows, for models that need these. Or tables of pandas,
        polars or Arrow, or a Dataset, whose columns of vectors are the layers. Iterated once.
    estimators : dict of str to estimator, or one estimator
        Fitted copies are returned. A single estimator is used for every layer, and all are in the first batch.
    patterns : dict of str to str, default None
        What a row of a layer is, as for :func:`bigpca.open`, such as ``"n c h w -> (n h w) c"``.
    classes : array-like of shape (c,), default None
        The classes that labels may have, for discriminants and supervised PCA; the same for all layers.
    keys : str, default None
        The entry of each batch that names its rows, as for :func:`bigpca.from_batches`: it is not a layer.
    checkpoint : path of a directory, default None
        A rerun of a killed run resumes from here, with one folder for each layer, and gives the same bits. The batches
        are iterated again; rows that are already in the checkpoint are compared by their digest and skipped.

    Returns
    -------
    dict of str to fitted estimator

    Raises
    ------
    MemoryBudgetError
        Before a second batch is read, if all states together do not fit: see :func:`plan_layers`.
    ValueError
        For batches without a layer, and for fits that read their rows more than once.

    Examples
    --------
    >>> import numpy as np, bigpca as bp
    >>> A = np.random.default_rng(0).standard_normal((60, 4))
    >>> forward = ({"first": A[i : i + 20], "second": A[i : i + 20, :2] ** 2} for i in range(0, 60, 20))
    >>> models = fit_layers(forward, {"first": bp.PCA(2), "second": bp.PCA(1)})
    >>> models["first"].n_samples_, models["second"].components_.shape
    (60, (1, 2))
    """
    shared, models, rows = _opened(batches, estimators, patterns, classes, keys)
    folder = None if checkpoint is None else os.fspath(checkpoint)

    def fit(name: str) -> None:
        try:
            own = folder and f"{folder}/{quote(name, safe='')}"
            models[name].fit(rows[name], checkpoint=own, progress=partial(shared.planned, name))
        except BaseException as error:
            shared.end(name, error if error is shared.failure else _named(error, name))
        else:
            shared.end(name)

    # The fits count as one fold, in which each solves with one thread: none waits for another that waits for batches.
    with one_blas_thread():
        threads = [threading.Thread(target=copy_context().run, args=(fit, name), daemon=True) for name in models]
        for one in threads:
            one.start()
        try:
            for one in threads:
                one.join()
        except BaseException as error:
            shared.end("", error)  # an interrupt: the fits end at their next batch
            for one in threads:
                one.join()
            raise
    if shared.failure is not None:
        raise shared.failure
    return models


def plan_layers(
    batches: Iterable[Unchecked],
    estimators: Mapping[str, AnyEstimator] | AnyEstimator,
    *,
    patterns: Mapping[str, str] | None = None,
    classes: ArrayLike | None = None,
    keys: str | None = None,
) -> Plan:
    """Return the cost of :func:`fit_layers`: the sum of the plans of all layers. Takes the first batch only.

    Parameters
    ----------
    batches, estimators
        As for :func:`fit_layers`; an iterator has then lost its first batch.
    patterns, classes, keys : as for :func:`fit_layers`, default None

    Returns
    -------
    Plan
        For a million rows of each layer if their number is not known.

    Examples
    --------
    >>> import numpy as np, bigpca as bp
    >>> plan_layers([{"a": np.ones((9, 4)), "b": np.ones((9, 3))}], bp.PCA(2)).passes
    1.0
    """
    _, models, rows = _opened(batches, estimators, patterns, classes, keys)
    return _summed({name: model.plan(rows[name]) for name, model in models.items()})


def _opened(
    batches: Iterable[Unchecked],
    estimators: Mapping[str, AnyEstimator] | AnyEstimator,
    patterns: Mapping[str, str] | None,
    classes: ArrayLike | None,
    keys: str | None,
) -> tuple[SharedBatches, dict[str, AnyEstimator], dict[str, da.Array]]:
    """Return the batches, unfitted models, and the rows of each, once the first batch is known."""
    if isinstance(batches, da.Array) and has_batches(batches):
        batches = unread_batches(batches)
    elif hasattr(batches, "to_batches") and not hasattr(batches, "__iter__"):
        batches = ReadAgain(batches)
    if not hasattr(batches, "__iter__") or isinstance(batches, Mapping | da.Array):
        raise TypeError(
            f"batches is {an(type(batches).__name__)}; an iterable of dicts {{name: rows}} was expected, as a forward "
            "pass yields them. Fit stored layers one by one."
        )
    iterator = iter(batches)
    first = next(iterator, None)
    blocks = _blocks(first[0] if isinstance(first, tuple | list) and first else first)
    if not isinstance(blocks, Mapping) or not blocks:
        what = "no batch" if first is None else f"a first batch of {type(first).__name__}"
        raise ValueError(f"there is {what}; dicts {{name: rows}} were expected, or pairs of a dict and labels.")
    every = [str(name) for name in blocks if name != keys]
    named = estimators if isinstance(estimators, Mapping) else dict.fromkeys(every, estimators)
    patterns = patterns or {}
    unknown = {*named, *patterns, *([] if keys is None else [keys])} - blocks.keys()
    if unknown or not named:
        raise ValueError(f"the first batch has {brief(list(blocks))}, but not {brief(sorted(map(str, unknown)))}.")
    whole = not isinstance(estimators, Mapping)
    shared = SharedBatches(chain([first], iterator), {name: deque() for name in named}, keys, whole)
    rows = {}
    for name in named:
        try:
            column = None if keys is None else name
            blocks_of_one = OfLayer(shared.of(name))
            rows[name] = from_batches(blocks_of_one, classes=classes, column=column, keys=keys)
        except (TypeError, ValueError) as error:
            raise _named(error, name) from None
    opened = {name: open_array(one, pattern=patterns[name]) if name in patterns else one for name, one in rows.items()}
    return shared, {name: clone(one) for name, one in named.items()}, opened


def _blocks(batch: Unchecked) -> Unchecked:
    """Return a batch that is a table as a dict of its columns, others as they are."""
    names = None if isinstance(batch, Mapping) else names_of_columns(batch)
    return batch if names is None else {name: batch[name] for name in names}


def _named(error: Failure, name: str) -> Failure:
    """Return an error of one layer with its name."""
    if error.args and isinstance(error.args[0], str):
        error.args = (f"layer {name!r}: {error.args[0]}", *error.args[1:])
    return error


def _summed(plans: Mapping[str, Plan]) -> Plan:
    """Return the plan of fits that run side by side."""
    every = list(plans.values())
    each = ", ".join(f"{name}: {plan.solver}" for name, plan in plans.items())
    sums = {
        name: sum(getattr(plan, name) for plan in every)
        for name in ("bytes_read", "flops", "tasks", "state_bytes", "peak_bytes")
    }
    costs = [replace(one, name=f"{name}: {one.name}") for name, plan in plans.items() for one in plan.costs]
    solve = SolveCost(sum(plan.solve.flops for plan in every), sum(plan.solve.between for plan in every))
    passes = max(plan.passes for plan in every)
    reason = f"{len(every)} layers in one pass ({each})"
    return replace(every[0], reason=reason, passes=passes, costs=tuple(costs), solve=solve, **sums)
