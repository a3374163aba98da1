"""Estimators whose fit is planned before anything is read, and run by the engine."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Any, Generic, Protocol, Self, TypeVar

from bigpca.estimators.fitting import running
from bigpca.estimators.row_transformer import Path, RowTransformer
from bigpca.passes.jobs import RunOptions
from bigpca.passes.progress import ProgressArgument
from bigpca.passes.rows import RowInput
from bigpca.passes.solving import solving
from bigpca.planning import Plan

Found = TypeVar("Found")
Brought = TypeVar("Brought", covariant=True)


class Job(Protocol[Brought]):
    """One fit, planned and not yet run."""

    @property
    def rows(self) -> RowInput:
        """What it reads."""

    @property
    def plan(self) -> Plan:
        """What it costs, and which solver it uses."""

    def run(self, options: RunOptions) -> Brought:
        """Read X and solve."""

    def describe(self) -> dict[str, Any]:
        """Fingerprint of the passes, for checkpoints."""


class PlannedModel(RowTransformer, Generic[Found]):
    """A transformer that says what a fit will cost, and then fits in as many reads.

    A subclass plans by :meth:`_job`, and takes what the job brings by :meth:`_take`.

    Attributes
    ----------
    plan_ : Plan
    """

    plan_: Plan

    @abstractmethod
    def _job(self, seen: Self, X: Any, y: Any) -> Job[Found]:
        """Check X with ``seen``, a copy that takes number and names of features, and plan the fit; X is not read."""

    @abstractmethod
    def _take(self, found: Found, solver: str) -> None:
        """Set the fitted attributes."""

    def plan(self, X: Any, y: Any = None) -> Plan:
        """Return what ``fit(X, y)`` will cost, without reading X: print it, or use its fields.

        Raises
        ------
        MemoryBudgetError
            Where nothing fits (with ``solver="auto"``); a named solver's plan says ``fits`` instead.
        """
        return self._job(copy(self), X, y).plan

    @solving
    def fit(self, X: Any, y: Any = None, *, checkpoint: Path | None = None, progress: ProgressArgument = None) -> Self:
        """Fit to X (n, d), in as many reads as :meth:`plan` counts.

        Parameters
        ----------
        X : Dask array, path, Zarr array, xarray.DataArray, or anything array-like
        y : labels of the rows, where the model learns from them; else ignored
        checkpoint : path of a directory
            What a killed run leaves there, a rerun of the same fit continues from, to the same bits.
        progress : True for a bar, or a callable that takes events

        Raises
        ------
        MemoryBudgetError
            Before any read, where the plan does not fit.
        NonFiniteError, MissingChunksError, CorruptedChunkError
            From the read, naming rows and block.
        CheckpointError, OutputLockedError
            Where the checkpoint is another computation's or in use.
        """
        seen = copy(self)  # takes the names and number of features; self changes when all went well
        job = self._job(seen, X, y)
        job.plan.check()
        description = job.describe() if checkpoint is not None else None
        with running(
            job.rows, description, checkpoint=checkpoint, progress=progress,
            workers_timeout=self.workers_timeout, plan=job.plan,
        ) as options:  # fmt: skip
            spectrum = job.run(options)
        self._remember_features(seen)
        self._take(spectrum, job.plan.solver)
        self.plan_ = job.plan
        return self
