"""Exact principal component analysis of data that does not fit in memory."""

from __future__ import annotations

import os
from copy import copy
from dataclasses import replace
from typing import Any, Self, TypeAlias

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bigpca.estimators.covariance_route import fold_moments
from bigpca.estimators.fitting import FitJob, SolverChoice, check_solver, plan_fit, running
from bigpca.estimators.inputs import as_dask, is_lazy
from bigpca.estimators.model_io import PcaModel, save_model
from bigpca.estimators.projection import LogLikelihood, Projection, Reconstruction
from bigpca.estimators.spectrum import Settings, Spectrum, low_rank_plus_diagonal, no_state, solve_moments
from bigpca.passes.accumulators import Moments
from bigpca.passes.progress import ProgressArgument
from bigpca.passes.project import RowMap, project_in_memory, project_lazily, project_to
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan
from bigpca.solvers.components import NComponents, check_n_components

Path: TypeAlias = str | os.PathLike[str]
Lazy: TypeAlias = Any  # an array in memory, or a Dask array (which has no types) for lazy input


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal component analysis, exact to rounding, in bounded memory.

    ``X - mean = scores @ components_ + residual``, with orthonormal ``components_`` along which the variance is largest.

    Parameters
    ----------
    n_components : int, float in (0, 1), "mle", RelativeThreshold or None
        How many: given, a share of the variance, Minka's choice, all with lambda_i >= eps lambda_1, or min(n, d).
    solver : {"auto", "covariance", "dot"}
        "covariance": one read, a d x d matrix (Marukatat 2022, algorithm 1). "dot": an n x n matrix, for wide data
        (algorithm 2, dual PCA). "auto" compares their costs and what fits; see :meth:`select_solver`.
    center : bool
        Subtract the mean; False decomposes moments about zero (latent semantic analysis).
    scale : bool
        Divide each feature by its standard deviation (divisor n, as StandardScaler), in the same pass: correlation PCA.
    whiten : bool
        Divide scores by their standard deviations.
    nan_policy : {"raise", "omit"}
        Rows with NaN or infinities: an error, or left out of the fit ("covariance" only) and given NaN scores.
    missing_chunks : {"raise", "fill"}
        Zarr chunks that do not exist: an error, or the fill value.
    memory_limit : int, str or None
        Per process, such as "2 GiB"; None asks the live workers, or the machine for its free memory.
    solve_threads : int or None
        BLAS threads of the small eigenproblem; None for all cores. Bits depend on it.
    workers_timeout : float
        Seconds without any worker after which a run on a cluster is given up.
    keep_state_bytes : int
        Largest sufficient statistics kept with the model, for ``partial_fit`` and ``merge``.

    Attributes
    ----------
    components_ : ndarray of shape (k, d); the entry of largest magnitude of each row is positive
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (k,)
        Eigenvalues of the covariance (divisor n - 1), their share of the TRUE total variance, and sqrt((n - 1) eigenvalue).
    mean_ : ndarray of shape (d,)
    scale_ : ndarray of shape (d,) or None
    noise_variance_ : float
        (total - kept) / (min(n, d) - k).
    total_variance_ : float
    n_components_, n_features_in_, n_samples_, n_omitted_ : int
    solver_ : str
    plan_ : Plan

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[-1.0, -1], [-2, -1], [-3, -2], [1, 1], [2, 1], [3, 2]])
    >>> pca = PCA(n_components=1).fit(X)
    >>> pca.explained_variance_ratio_.round(4).tolist()
    [0.9924]
    """

    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    _moments: Moments | None

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        solver: str = "auto",
        center: bool = True,
        scale: bool = False,
        whiten: bool = False,
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        solve_threads: int | None = None,
        workers_timeout: float = 60.0,
        keep_state_bytes: int = 256 << 20,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.solve_threads = solve_threads
        self.workers_timeout = workers_timeout
        self.keep_state_bytes = keep_state_bytes

    def plan(self, X: Any) -> Plan:
        """Return what ``fit(X)`` will cost, without reading X: print it, or use its fields.

        Raises
        ------
        MemoryBudgetError
            Where nothing fits (with ``solver="auto"``); a named solver's plan says ``fits`` instead.
        """
        return self._job(copy(self), X).plan

    def select_solver(self, X: Any) -> SolverChoice:
        """Return the solver that ``fit(X)`` will use, and why; nothing is read."""
        plan = self.plan(X)
        return SolverChoice(plan.solver, plan.reason)

    def fit(self, X: Any, y: Any = None, *, checkpoint: Path | None = None, progress: ProgressArgument = None) -> Self:
        """Fit to X (n, d): one read with ``solver="covariance"``; the plan counts those of "dot".

        Parameters
        ----------
        X : Dask array, path, Zarr array, xarray.DataArray, or anything array-like
        y : ignored
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
        job = self._job(seen, X)
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

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Lazy:
        """Fit to X and return its scores: one more read of X, when a lazy result is computed."""
        if is_lazy(X):
            self._refuse_container()
        return self.fit(X, y, **options).transform(X)

    def partial_fit(self, X: Any, y: Any = None, *, progress: ProgressArgument = None) -> Self:
        """Add rows, any number at a time; the result equals a fit on all rows to rounding. One read of the new rows.

        Works by the covariance whatever ``solver`` says. Until there are as many rows as ``n_components`` needs, it keeps
        one component per row.

        Raises
        ------
        ValueError
            Where the model has no sufficient statistics: fitted by "dot", or larger than ``keep_state_bytes``.
        MemoryBudgetError
            Before any read, where the covariance does not fit.
        """
        first, seen = "_moments" not in vars(self), copy(self)
        if not first and self._moments is None:
            raise ValueError(no_state("partial_fit", self.solver_, self.n_features_in_, self.keep_state_bytes))
        check_solver(self.solver)
        opened = as_dask(seen, X, reset=first)
        check_n_components(self.n_components, None, opened.shape[1])
        if Moments(opened.shape[1]).state_bytes > self.keep_state_bytes:
            raise ValueError(no_state("partial_fit", "covariance", opened.shape[1], self.keep_state_bytes))
        job = plan_fit(
            opened, self._settings(), "covariance", memory_limit=self.memory_limit, policies=self._policies, minimum=1
        )
        job.plan.check()
        rows = job.rows
        with running(rows, None, checkpoint=None, progress=progress, workers_timeout=self.workers_timeout) as options:
            new, omitted = fold_moments(rows, options)
        old = None if first else self._moments
        self._absorb(new if old is None else old.merge(new), omitted + (0 if first else self.n_omitted_))
        self._remember_features(seen)
        return self

    def transform(
        self, X: Any, *, out: Path | None = None, overwrite: bool = False, progress: ProgressArgument = None
    ) -> Lazy:
        """Return the scores (n, k) of X: lazy for lazy input with the same row chunks, else computed.

        Parameters
        ----------
        out : path
            Write to a new Zarr array instead, in one read, and return the Dask array over it. Invisible until complete; a
            killed run resumes.
        overwrite : bool
            Replace an existing ``out`` once the new one is complete.

        Raises
        ------
        NonFiniteError, MissingChunksError, CorruptedChunkError
            From the read, naming rows and block.
        OutputExistsError, OutputLockedError, MemoryBudgetError
            Before any read, where ``out`` is taken or does not fit the disk or memory.
        """
        self._check_fitted()
        if out is not None or is_lazy(X):
            self._refuse_container()
        return self._map(X, self._projection(), self.n_components_, out, overwrite, progress)

    def inverse_transform(self, X: Any, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return rows (n, d) from scores (n, k): the least-squares reconstruction."""
        self._check_fitted()
        back = Reconstruction(self.mean_, self.scale_, self.components_, self._deviations())
        return self._map(X, back, self.n_features_in_, out, overwrite, None, width=self.n_components_)

    def score_samples(self, X: Any) -> Lazy:
        """Return the log-likelihood of each row under probabilistic PCA (of the scaled features, where scaled).

        Raises
        ------
        ValueError
            Where the noise variance is 0 with k < d: the model has no density there.
        """
        self._check_fitted()
        degenerate = self.noise_variance_ <= 0 and self.n_components_ < self.n_features_in_
        if degenerate or (self.explained_variance_ <= 0).any():
            raise ValueError(
                f"the model has no density: {self.n_components_} components of {self.n_features_in_} features with noise "
                f"variance {self.noise_variance_:g} and least variance {self.explained_variance_.min():g}; positive values "
                f"were expected. Keep fewer components."
            )
        plain = Projection(self.mean_, self.scale_, self.components_, None, self.nan_policy)
        likelihood = LogLikelihood(plain, self.explained_variance_, self.noise_variance_)
        return self._map(X, likelihood, 1, None, False, None)[:, 0]

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows (with ``nan_policy="omit"``, of the others); one read."""
        mean = np.nanmean if self.nan_policy == "omit" else np.mean
        return float(mean(self.score_samples(X)))

    def get_covariance(self) -> NDArray[np.float64]:
        """Return the model's covariance (d, d): ``components' (variances - noise) components + noise I``."""
        self._check_fitted()
        weights = np.maximum(self.explained_variance_ - self.noise_variance_, 0)
        return low_rank_plus_diagonal(self.components_, weights, self.noise_variance_)

    def get_precision(self) -> NDArray[np.float64]:
        """Return the inverse of :meth:`get_covariance`, by the matrix inversion lemma."""
        self._check_fitted()
        if self.noise_variance_ <= 0:
            if self.n_components_ < self.n_features_in_ or (self.explained_variance_ <= 0).any():
                return np.asarray(np.linalg.pinv(self.get_covariance(), hermitian=True))
            return low_rank_plus_diagonal(self.components_, 1 / self.explained_variance_, 0.0)
        noise = self.noise_variance_
        weights = 1 / np.maximum(self.explained_variance_, noise) - 1 / noise
        return low_rank_plus_diagonal(self.components_, weights, 1 / noise)

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group of arrays and JSON, never pickle; :func:`bigpca.load` reads it back.

        Raises
        ------
        OutputExistsError
            Where the path is taken and ``overwrite`` is False.
        """
        self._check_fitted()
        save_model(path, PcaModel.of(self), overwrite=overwrite)

    # Inside ---------------------------------------------------------------------------------------------------------

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    @property
    def _policies(self) -> dict[str, str]:
        for name, allowed in (("nan_policy", ("raise", "omit")), ("missing_chunks", ("raise", "fill"))):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f'{name} = {getattr(self, name)!r} is unknown; "{allowed[0]}" or "{allowed[1]}" was expected.'
                )
        return {"nan_policy": self.nan_policy, "missing_chunks": self.missing_chunks}

    def _settings(self) -> Settings:
        return Settings(self.n_components, self.center, self.scale, self.solve_threads, self.keep_state_bytes)

    def _job(self, seen: PCA, X: Any) -> FitJob:
        opened = as_dask(seen, X, reset=True, minimum=2)
        n, d = opened.shape
        check_n_components(self.n_components, None if np.isnan(n) else n, d)
        job = plan_fit(opened, self._settings(), self.solver, memory_limit=self.memory_limit, policies=self._policies)
        check_n_components(self.n_components, job.rows.n_rows, d)  # where the rows had to be counted
        return job

    def _remember_features(self, seen: PCA) -> None:
        self.n_features_in_ = seen.n_features_in_
        if hasattr(seen, "feature_names_in_"):
            self.feature_names_in_ = seen.feature_names_in_
        else:
            self.__dict__.pop("feature_names_in_", None)

    def _check_fitted(self) -> None:
        check_is_fitted(self, "components_")

    def _take(self, found: Spectrum, solver: str) -> None:
        n, d, k = found.count, len(found.mean), len(found.variances)
        self.components_ = found.components
        self.explained_variance_ = found.variances
        self.explained_variance_ratio_ = found.variances / found.total if found.total > 0 else np.zeros(k)
        self.singular_values_ = np.sqrt(found.variances * (n - 1))
        self.mean_, self.scale_ = found.mean, found.scale
        self.total_variance_ = found.total
        left = min(n, d) - k
        self.noise_variance_ = max(0.0, (found.total - float(found.variances.sum())) / left) if left > 0 else 0.0
        self.n_components_, self.n_samples_, self.n_omitted_ = k, n, found.omitted
        self.n_features_in_, self.solver_ = d, solver
        self._moments = found.moments

    def _absorb(self, moments: Moments, omitted: int) -> None:
        """Solve from merged moments; with too few rows so far, as many components as there are."""
        if moments.count < 2:
            self._moments, self.n_samples_, self.n_omitted_ = moments, moments.count, omitted
            return
        settings = self._settings()
        needed = moments.n_features if self.n_components == "mle" else self.n_components
        if isinstance(needed, int | np.integer) and moments.count < needed:
            settings = replace(settings, n_components=None)
        self._take(solve_moments(moments, settings, omitted=omitted), "covariance")

    def _deviations(self) -> NDArray[np.float64] | None:
        if not self.whiten:
            return None
        largest = float(self.explained_variance_[0])
        floor = np.finfo(np.float64).eps * largest if largest > 0 else 1.0  # no variance at all: scores stay 0
        return np.sqrt(np.maximum(self.explained_variance_, floor))

    def _projection(self) -> Projection:
        return Projection(self.mean_, self.scale_, self.components_, self._deviations(), self.nan_policy)

    def _map(
        self, X: Any, f: RowMap, columns: int, out: Path | None, overwrite: bool, progress: ProgressArgument, *, width: int | None = None
    ) -> Lazy:  # fmt: skip
        opened = as_dask(self, X, reset=False) if width is None else _scores(X, width)
        if out is not None:
            rows = RowInput(opened, **self._policies)
            with running(
                rows, None, checkpoint=None, progress=progress, workers_timeout=self.workers_timeout
            ) as options:
                limit = self.memory_limit
                return project_to(
                    rows, f, columns, out, name="scores", options=options, overwrite=overwrite, memory_limit=limit
                )
        if is_lazy(X):
            return project_lazily(opened, f, columns, missing_chunks=self.missing_chunks)
        return project_in_memory(RowInput(opened), f, columns)

    def _refuse_container(self) -> None:
        container = getattr(self, "_sklearn_output_config", {}).get("transform")
        if container not in (None, "default"):
            raise TypeError(
                f'set_output(transform="{container}") would load all lazy scores into memory. '
                f'Call set_output(transform="default") and convert what fits, or compute() X first.'
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _scores(X: Any, width: int) -> da.Array:
    opened = as_dask(PCA(), X, reset=True)
    if opened.shape[1] != width:
        raise ValueError(f"scores have {opened.shape[1]} columns; {width} (n_components_) were expected.")
    return opened
