"""From the merged state of a pass to eigenvalues and components: the small solve at the end of a fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from bigpca.data.weights import degrees_of_freedom
from bigpca.errors import format_bytes
from bigpca.estimators.linear.certified import Certificate
from bigpca.estimators.linear.standardization import Standardization
from bigpca.estimators.shared.fit import Fit
from bigpca.passes.accumulators.base import Accumulator, WeightSums
from bigpca.passes.accumulators.column_statistics import column_scale
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.engine.local import threads_here
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources
from bigpca.solvers.components import NComponents, resolve_components
from bigpca.solvers.eigh import fix_signs, numerical_rank, top_eigenpairs
from bigpca.solvers.scaling import LearnedScale
from bigpca.triangles import STRIP, add_outer_upper

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """What a fit computes, independent of how it is executed.

    Attributes
    ----------
    n_components : int, float, "mle", RelativeThreshold or None
    standardization : Standardization
    solve_threads : int or None
        BLAS threads of the eigenproblem; None for all cores of the machine that solves it.
    keep_state_bytes : int
        Maximum size of a state that the model keeps.
    tol : float
        Relative error of the eigenvalues at which an iteration stops.
    max_passes : int or None
        Maximum number of reads of all rows by an iteration; None for as many as it takes.
    seed : int
        Seed of the sample, random columns and probes of an iteration.
    """

    n_components: NComponents
    standardization: Standardization = field(default_factory=Standardization)
    solve_threads: int | None = None
    keep_state_bytes: int = 256 << 20
    tol: float = 1e-3
    max_passes: int | None = 10
    seed: int = 0

    @property
    def center(self) -> bool:
        """Whether the mean of the rows is subtracted."""
        return self.standardization.center

    @property
    def scale(self) -> LearnedScale:
        """By what is learned of the columns they are divided."""
        return self.standardization.scale

    @property
    def scales(self) -> bool:
        """Whether columns are divided by anything, learned or given."""
        return self.standardization.scales

    @property
    def threads(self) -> int:
        """BLAS threads for a solve in this process."""
        return threads_here(self.solve_threads)

    def wanted(self, n: int, d: int) -> int:
        """Number of eigenpairs to compute."""
        k = counted(self.n_components)
        return min(n, d) if k is None else min(k, n, d)


def counted(n_components: NComponents) -> int | None:
    """Return the number of components if it is given; None for a share, a rule, or all."""
    return int(n_components) if isinstance(n_components, Integral) else None


@dataclass(frozen=True)
class Spectrum:
    """A solved principal component problem.

    Attributes
    ----------
    count, omitted : int
        Rows used, and rows omitted because of missing values.
    weight_sums : (float, float) or None
        Sums of the weights and of their squares; None for rows without weights.
    mean, scale : ndarray of shape (d,); scale is None if columns were not scaled
    variances : ndarray of shape (k,)
        Eigenvalues of the (scaled) covariance, divided by n - 1, descending.
    components : ndarray of shape (k, d), orthonormal rows, signs fixed
    total : float
        Total variance: the trace of that covariance.
    state : Accumulator or None
        Sufficient statistics, for ``partial_fit`` and ``merge``.
    certificate : Certificate or None
        None for exact solvers, whose only error is rounding.
    centring_error : float or None
        Bound of the relative error of any column's variance by the centring of sparse rows; None for dense rows.
    """

    count: int
    omitted: int
    mean: Vector
    scale: Vector | None
    variances: Vector
    components: Matrix
    total: float
    state: Accumulator | None = None
    certificate: Certificate | None = None
    weight_sums: WeightSums = None
    centring_error: float | None = None

    @property
    def weight(self) -> float:
        """Sum of the weights; the number of rows without weights."""
        return float(self.count) if self.weight_sums is None else self.weight_sums[0]

    @property
    def n_effective(self) -> float:
        """Kish's effective number of rows, ``(sum w)^2 / sum w^2``."""
        return float(self.count) if self.weight_sums is None else self.weight_sums[0] ** 2 / self.weight_sums[1]


@dataclass(frozen=True)
class PCAFit(Fit[Spectrum]):
    """One way to compute principal components.

    Attributes
    ----------
    settings : Settings
    """

    settings: Settings

    @classmethod
    def planned(cls, rows: RowInput, settings: Settings, resources: Resources) -> PCAFit:
        """Return the fit, cut for those resources; X is not read."""
        return cls(rows, resources, settings)

    @classmethod
    def offered(cls, rows: RowInput, settings: Settings) -> bool:
        """Whether ``solver="auto"`` may choose it."""
        return True

    @classmethod
    def stands_back(cls, rows: RowInput, settings: Settings) -> bool:
        """Whether an exact fit replaces this one even if it was requested by name."""
        return False


def solve_moments(moments: Moments, settings: Settings, *, omitted: int = 0) -> Spectrum:
    """Eigen-decompose the covariance of a :class:`Moments` state (tutorial, algorithm 1).

    ``center=False`` uses moments about zero, ``scatter + n mean mean'``, without cancellation; ``scale``
    divides by the standard deviations (correlation matrix). Memory beside the packed state: the d x d matrix and
    LAPACK's work space.

    Raises
    ------
    ValueError
        With fewer than two rows left.
    """
    n, d, weight = moments.count, moments.n_features, moments.weight
    check_enough_rows(n, omitted, sums=moments.weight_sums)
    centred = moments.centring_error if settings.center or settings.scale else None
    keep = moments.state_bytes <= settings.keep_state_bytes
    S = moments.scatter
    scale = None
    if settings.scale:
        scale = column_scale(np.diagonal(S).copy(), moments.mean, n, settings.scale, weight)
    if not settings.center:
        add_outer_upper(S, weight, moments.mean)
    if scale is not None:
        for i in range(0, d, STRIP):
            S[i : i + STRIP, i:] /= scale[i : i + STRIP, None] * scale[i:]
    S /= weight - 1
    total = float(np.trace(S))
    if not np.isfinite(total):
        raise ValueError(
            f"the total variance is {total}: squares of the values overflow float64 (beyond 1e154). Divide the data "
            f"by a constant first."
        )
    columns = np.diagonal(S).copy()
    values, vectors = top_eigenpairs(S, settings.wanted(n, d), threads=settings.threads)
    k = resolve_components(settings.n_components, values, total, n, d, weight, columns)
    components = fix_signs(np.ascontiguousarray(vectors[:k]))
    values = np.where(
        np.arange(len(values)) < numerical_rank(values, d), values, 0.0
    )  # the others are rounding of the solver
    mean, scale = settings.standardization.in_units_of_rows(moments.mean if settings.center else np.zeros(d), scale)
    state = moments if keep else None
    return Spectrum(
        n, omitted, mean, scale, values[:k], components, total, state, weight_sums=moments.weight_sums,
        centring_error=centred,
    )  # fmt: skip


def check_enough_rows(n: int, omitted: int = 0, minimum: int = 2, sums: WeightSums = None) -> None:
    """Reject fewer than two rows, or than ``minimum``, and weights that add up to less than two.

    Raises
    ------
    ValueError
    """
    if n < minimum:
        left = f" after {omitted} rows with NaN or infinite values were left out" if omitted else ""
        raise ValueError(
            f"Found array with {n} sample{'s' if n != 1 else ''}{left}, while a minimum of {minimum} is required: a "
            f"variance needs two rows. Give more rows."
        )
    if minimum > 1:
        degrees_of_freedom(n, sums)


def no_state(what: str, solver: str, d: int, keep_state_bytes: int) -> str:
    """Return the message that ``what`` (``partial_fit``, ``merge``) is impossible without the moments of all rows."""
    if solver != "covariance":
        return (
            f'{what} needs the moments of all rows, but this model was fitted by solver="{solver}", which keeps none. '
            f'Fit with solver="covariance", or begin with partial_fit.'
        )
    size = Moments(d).state_bytes
    return (
        f"{what} needs the moments of all rows, {format_bytes(size)}, which are not kept because "
        f"{limit_of_states(size, keep_state_bytes)}. Fit again with a larger keep_state_bytes."
    )


def limit_of_states(size: float, keep_state_bytes: int) -> str:
    """Say why statistics of that size are not kept: by the limit of today, or by that of the fit."""
    if size > keep_state_bytes:
        return f"keep_state_bytes = {format_bytes(keep_state_bytes)}"
    return "keep_state_bytes was smaller when it was fitted (set in bp.config or set_params)"
