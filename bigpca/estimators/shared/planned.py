"""Estimators whose fit is planned before anything is read, and run by the engine."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from bigpca.estimators.shared.fit import Fit
from bigpca.estimators.shared.running import made_by, running
from bigpca.estimators.shared.transformer import Path, RowTransformer
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.solving import solving, solving_with
from bigpca.passes.engine.speed import machine_speed
from bigpca.planning import Plan

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Unsolved(Generic[Found]):
    """The answer to rows that were added and that nobody has asked for yet.

    Attributes
    ----------
    solve : callable
        Computes it, from statistics and parameters as they were when the rows were added.
    solver : str
    threads : int or None
        ``solve_threads``.
    lock : threading.Lock
        Held while one thread solves.
    """

    solve: Callable[[], Found]
    solver: str
    threads: int | None
    lock: Any = field(default_factory=threading.Lock)


NOT_SOLVED_FOR = {"n_features_in_", "feature_names_in_", "plan_", "seed_"}  # of the rows or of a fit


def is_answer(name: str) -> bool:
    """Whether an attribute of this name holds what a solve found."""
    return name in ("_found", "_preimage", "_certificate") or (
        name[-1:] == "_" != name[:1] and name not in NOT_SOLVED_FOR
    )


class PlannedModel(RowTransformer, Generic[Found]):
    """A transformer that says what a fit will cost, and then fits in as many reads.

    A subclass plans by :meth:`_fit`, and takes what a run of that brings by :meth:`_take`. Its ``partial_fit`` adds rows by
    :meth:`_take_later`: the solve waits until a fitted attribute is first asked for, which ``transform``, ``save`` and pickle
    do, and ``clone``, ``repr`` and ``check_is_fitted`` do not.

    Attributes
    ----------
    plan_ : Plan
    """

    plan_: Plan
    solver_: str
    _unsolved: Unsolved[Found] | None

    @abstractmethod
    def _fit(self, seen: Self, X: Any, y: Any) -> Fit[Found]:
        """Check X with ``seen``, a copy that takes number and names of features, and plan the fit; X is not read."""

    @abstractmethod
    def _take(self, found: Found, solver: str) -> None:
        """Set the fitted attributes."""

    def plan(self, X: Any, y: Any = None) -> Plan:
        """Return what ``fit(X, y)`` will cost, without reading X: print it, or use its fields.

        The first plan on a machine takes a second to measure how fast it is, for the time that a plan states.

        Raises
        ------
        MemoryBudgetError
            Where nothing fits (with ``solver="auto"``); a named solver's plan says ``fits`` instead.
        """
        return replace(self._fit(copy(self), X, y).plan, speed=machine_speed())

    @solving
    def fit(self, X: Any, y: Any = None, *, checkpoint: Path | None = None, progress: ProgressArgument = None) -> Self:
        """Fit to X (n, d), in as many reads as :meth:`plan` counts.

        Parameters
        ----------
        X : Dask array or DataFrame, path, list of paths, Zarr array, h5py.Dataset, xarray.DataArray, or anything array-like
            Dimensions after the first are flattened; masked entries are NaN; columns of frames and coordinates of a
            DataArray's features are feature names.
        y : labels of the rows, where the model learns from them; else ignored
        checkpoint : path of a directory
            What a killed run leaves there, a rerun of the same fit continues from, to the same bits.
        progress : True for a bar, or a callable that takes events

        Raises
        ------
        MemoryBudgetError
            Before any read, where the plan does not fit.
        TypeError
            For dtypes and containers whose rows are no dense real numbers in memory (sparse, on a GPU): with what to pass.
        NonFiniteError, MissingChunksError, CorruptedChunkError
            From the read, naming rows and block.
        CheckpointError, OutputLockedError
            Where the checkpoint is another computation's or in use.
        """
        seen = self._begun(checkpoint)  # takes the names and number of features; self changes when all went well
        planned = seen._fit(seen, X, y)
        planned.plan.check()
        with running(
            planned, checkpoint=checkpoint, progress=progress, workers_timeout=self.workers_timeout,
            seed=vars(seen).get("seed_"),
        ) as run:  # fmt: skip
            found = planned.run(run)
        self._remember_features(seen)
        self.__dict__.pop("_unsolved", None)
        self._take(found, planned.plan.solver)
        self.plan_ = planned.plan
        self._provenance = made_by(f"{self._called}.fit(X)", planned, run)
        return self

    # Answers that wait -----------------------------------------------------------------------------------------------

    def _take_later(self, solve: Callable[[], Found], solver: str | None = None) -> None:
        """Forget the answer for fewer rows, and call ``solve``, at most once, when the new one is first asked for.

        ``solver`` is its name; None for that of the fit that the rows are added to.
        """
        waiting: Unsolved[Found] | None = vars(self).get("_unsolved")
        solver = solver or (self.solver_ if waiting is None else waiting.solver)
        for name in [name for name in vars(self) if is_answer(name)]:
            del self.__dict__[name]
        self.__dict__.pop("_provenance", None)  # of fewer rows
        self._unsolved = Unsolved(solve, solver, getattr(self, "solve_threads", None))

    def _settle(self) -> None:
        """Solve, where rows were added since; one thread does it, and a solve that fails changes nothing."""
        waiting: Unsolved[Found] | None = vars(self).get("_unsolved")
        if waiting is None:
            return
        with waiting.lock, solving_with(waiting.threads):
            if vars(self).get("_unsolved") == waiting:  # not solved by another thread meanwhile
                solved = self._unasked()
                solved._take(waiting.solve(), waiting.solver)
                del solved.__dict__["_unsolved"]
                self.__dict__ = solved.__dict__  # at once: another thread sees all of the answer, or none

    def _unasked(self) -> Self:
        """Return a shallow copy without the answer that waits: for its names and pictures, which scikit-learn asks values for."""
        twin = copy(self)
        if "_unsolved" in vars(twin):
            twin._unsolved = None
        return twin

    if not TYPE_CHECKING:  # for which every attribute would exist

        def __getattr__(self, name: str) -> Any:
            if is_answer(name):
                self._settle()
            return object.__getattribute__(self, name)  # there now, or the error of an attribute that is not

    def __copy__(self) -> Self:
        """Return a shallow copy; what waits to be solved waits in both."""
        twin = object.__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    def __dir__(self) -> list[str]:
        return list(super(PlannedModel, self._unasked()).__dir__())

    def _repr_html_inner(self) -> str:
        return str(super(PlannedModel, self._unasked())._repr_html_inner())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super(PlannedModel, self._unasked())._repr_mimebundle_(**options)
        return bundle

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        state: dict[str, Any] = super().__getstate__()
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return "_unsolved" in vars(self) or "n_components_" in vars(self)

    def _with_parameters(self) -> Self:
        """Return an unfitted estimator with the parameters as they are now, for a solve that waits."""
        return type(self)(**self.get_params(deep=False))
