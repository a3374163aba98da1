"""Answers that wait: rows were added, and nothing is solved until a fitted attribute is accessed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, cast

from bigpca.passes.engine.solving import solving_with
from bigpca.settings import setting

Found = TypeVar("Found")
Taken = TypeVar("Taken", contravariant=True)
Model = TypeVar("Model")


class Settable(Protocol[Taken]):
    """An estimator that sets its fitted attributes from the result of a solve."""

    solver_: str

    def _take(self, found: Taken, solver: str) -> None: ...

    def _check_shares(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Unsolved(Generic[Found]):
    """The pending solve of an estimator to which rows were added.

    Attributes
    ----------
    solve : callable
        Computes the result from the statistics and parameters at the time when the rows were added.
    solver : str
    threads : int or None
        ``solve_threads``.
    lock : threading.Lock
        Held while one thread solves.
    """

    solve: Callable[[], Found]
    solver: str
    threads: int | None
    lock: threading.Lock = field(default_factory=threading.Lock)


NOT_SOLVED_FOR = {"n_features_in_", "feature_names_in_", "plan_", "seed_"}  # known from the rows, or from a fit


def is_answer(name: str) -> bool:
    """Whether an attribute of this name holds the result of a solve."""
    return name in ("_found", "_preimage", "_certificate") or (
        name[-1:] == "_" != name[:1] and name not in NOT_SOLVED_FOR
    )


def pending(model: object) -> Unsolved[object] | None:
    """Return the solve that waits, if any."""
    return cast("Unsolved[object] | None", vars(model).get("_unsolved"))


def postpone(model: Settable[Found], solve: Callable[[], Found], solver: str | None = None) -> None:
    """Delete the fitted attributes of fewer rows, and keep ``solve``, to be called at most once by :func:`settle`.

    ``solver`` is its name; None for the solver of the fit to which the rows are added.
    """
    waiting, attributes = pending(model), vars(model)
    solver = solver or (model.solver_ if waiting is None else waiting.solver)
    for name in [name for name in attributes if is_answer(name)]:
        del attributes[name]
    attributes["_unsolved"] = Unsolved(solve, solver, setting(model, "solve_threads"))


def settle(model: Settable[Found]) -> None:
    """Run the solve that waits, if any, in one thread only; a solve that fails changes nothing."""
    found = pending(model)
    if found is None:
        return
    waiting = cast("Unsolved[Found]", found)
    with waiting.lock, solving_with(waiting.threads):
        if pending(model) == waiting:  # no other thread has solved it meanwhile
            solved = without_answer(model)
            solved._take(waiting.solve(), waiting.solver)
            solved._check_shares()
            del vars(solved)["_unsolved"]
            model.__dict__ = solved.__dict__  # in one step: another thread sees the whole result, or none of it


def without_answer(model: Model) -> Model:
    """Return a shallow copy without the solve that waits: its names and display can be computed without solving."""
    twin = copy(model)
    if "_unsolved" in vars(twin):
        vars(twin)["_unsolved"] = None
    return twin
