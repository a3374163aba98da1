"""PCA by block Krylov iteration: a few reads of X, memory of a few (d, l) blocks, error bounds from the same reads.

One read a multiplication; the start is the PCA of a sample of the rows. Over a store chunked in columns the iteration runs
on the dot matrix (n, n) instead, and one more read turns its vectors into components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import blas_threads
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.certificates import certify, warn_if_doubtful
from bigpca.estimators.linear.covariance_fit import model_bytes
from bigpca.estimators.linear.dot_fit import DotSpectrum, components_pass, dot_spectrum, reject_omission
from bigpca.estimators.linear.spectrum import Certificate, PCAFit, Settings, Spectrum, check_enough_rows
from bigpca.estimators.shared.fit import first_that_fits
from bigpca.operators.covariance import PROBES, CovarianceOperator, CovariancePasses, Probes, Products
from bigpca.operators.dot import DotOperator, dot_pass
from bigpca.passes.accumulators.dot_matrix import ColumnProducts, column_scale
from bigpca.passes.accumulators.factors import probe_vectors
from bigpca.passes.columns import column_layout, fold_columns
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.rows import RowInput
from bigpca.planning import PassCost, Resources, SolveCost, Times
from bigpca.seeds import normals
from bigpca.solvers.components import NComponents, partial_will_do, resolve_partial, starting_components
from bigpca.solvers.eigh import fix_signs
from bigpca.solvers.krylov import Known, KrylovOptions, KrylovResult, Multiplied, block_krylov, krylov_bytes
from bigpca.solvers.krylov_basis import orthonormal_columns
from bigpca.solvers.krylov_pairs import FLOOR

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
BLOCKS = 4  # in the basis before it is restarted
TYPICAL_PASSES = 3
REMEDIES = {
    "multiplications": "max_passes = {passes} was reached. Raise it, ask for a larger tol, or use an exact solver where it fits.",
    "stagnation": "the last reads did not improve them. Ask for a larger tol or more components, or use an exact solver where it "
    "fits.",
    "unresolved": "the last {unresolved} of {k} eigenvalues are below {least:.2g} of the first, where products of precision "
    "{precision:.1g} leave more than tol of them as rounding. Ask for fewer components or a larger tol, or scale the columns.",
}
WIDE = (
    "The iteration met tol = {0:g} by its estimate, but slowly falling eigenvalues leave the certified bounds wide. Set a smaller tol "
    "for narrower ones, or use an exact solver where it fits."
)
RULE_COLUMNS = 1024  # in the basis where the spectrum decides how many components there are


class Operator(Multiplied, Protocol):
    """A symmetric matrix of size N that is only multiplied; what it learns from the first product is known after it."""

    @property
    def rounding(self) -> float:
        """What bounds allow for, relative to |A|_F."""

    @property
    def sigma(self) -> float:
        """Multiple of I by which the matrix exceeds the one whose eigenvalues are wanted; known after :meth:`begin`."""

    @property
    def probes(self) -> Probes | None:
        """Known after :meth:`begin`, if at all."""

    @property
    def omitted(self) -> int:
        """Rows of X left out."""

    @property
    def size(self) -> int:
        """N."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows counted so far, and columns: what limits the number of components."""

    def begin(self, V: Matrix, /) -> Products:
        """Multiply a first block, and probes beside it."""


class IterationSettings(Protocol):
    """What an iteration needs to know of a fit."""

    @property
    def n_components(self) -> NComponents: ...
    @property
    def tol(self) -> float: ...
    @property
    def max_passes(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def threads(self) -> int: ...


@dataclass(frozen=True)
class Iteration:
    """The sizes of one iteration.

    Attributes
    ----------
    components : int
        k, or a first guess of it.
    block : int
        l, columns multiplied at a time: 2 k, at least k + 10.
    columns : int
        Most columns of the basis.
    size : int
        N, d or n.
    by_rule : bool
        Whether the spectrum decides how many components there are: blocks then grow with them.
    """

    components: int
    block: int
    columns: int
    size: int
    by_rule: bool = False

    @property
    def most_block(self) -> int:
        """Most columns multiplied at a time."""
        return max(self.block, self.columns // 2) if self.by_rule else self.block

    @property
    def basis_bytes(self) -> int:
        """Memory of basis, products and their small problems, in the process that fits."""
        return krylov_bytes(self.size, self.columns, self.block, self.components, PROBES)


def size_iteration(rows: RowInput, settings: Settings, blocks: int = BLOCKS) -> Iteration:
    """Choose block and basis.

    Raises
    ------
    ValueError
        For an ``n_components`` that needs the whole spectrum, and for too few passes over a store chunked in columns.
    """
    n, d = rows.n_rows, rows.n_columns
    k = starting_components(settings.n_components, n, d)
    by_columns = column_layout(rows) is not None
    if by_columns and settings.max_passes < 3:
        raise ValueError(
            f"max_passes = {settings.max_passes}, but an iteration over a store chunked in columns reads it at least three "
            f"times: twice for the eigenvalues, once for the components. Use 3 or more, or store the input in row chunks."
        )
    size = n if by_columns else d
    block = min(size, max(2 * k, k + 10))
    by_rule = not isinstance(settings.n_components, int | np.integer)
    columns = max(blocks * block, RULE_COLUMNS if by_rule else 0)
    return Iteration(k, block, min(size, columns), size, by_rule)


@dataclass(frozen=True)
class KrylovFit(PCAFit):
    """An iteration of some three reads on the covariance; the plan says at most how many there can be.

    Attributes
    ----------
    iteration : Iteration
    """

    solver: ClassVar[str] = "krylov"
    exact: ClassVar[bool] = False

    iteration: Iteration

    @classmethod
    def planned(cls, rows: RowInput, settings: Settings, resources: Resources) -> PCAFit:
        """Return the fit with a basis of four blocks; where that does not fit the memory limit, three or two, with restarts."""
        which = KrylovFit if column_layout(rows) is None else KrylovDotFit
        fits = (which(rows, resources, settings, size_iteration(rows, settings, blocks)) for blocks in (BLOCKS, 3, 2))
        return first_that_fits(fits)

    @classmethod
    def offered(cls, rows: RowInput, settings: Settings) -> bool:
        """For numbers of components that need no whole spectrum."""
        return partial_will_do(settings.n_components, rows.n_rows, rows.n_columns)

    @classmethod
    def stands_back(cls, rows: RowInput, settings: Settings) -> bool:
        """Of few rows or columns a basis would hold the whole space: what wants the whole spectrum is solved exactly."""
        return not cls.offered(rows, settings) and min(rows.n_rows, rows.n_columns) <= RULE_COLUMNS

    @property
    def account(self) -> str:
        return (
            f"block Krylov, {self.iteration.block} columns at a time, until the eigenvalues are known to "
            f"{self.settings.tol:g}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        columns, basis = self.iteration.columns, self.iteration.basis_bytes
        return (
            f"reads: 2 where the spectrum falls fast, at most {self.settings.max_passes} (max_passes); {TYPICAL_PASSES} are "
            f"typical",
            f"basis of up to {columns} columns: {basis / 2**20:,.0f} MiB in the process that fits",
        )

    @property
    def random(self) -> int:
        """Random columns of the first block: a sample never saw the classes that it lacks."""
        return max(2, self.iteration.block // 20)

    @cached_property
    def operator_passes(self) -> CovariancePasses:
        """Those of the operator."""
        iteration, most = self.iteration, self.settings.max_passes
        return CovariancePasses.of(
            self.rows, iteration.block, Times(min(TYPICAL_PASSES, most), most), seed=self.settings.seed,
            sampled=max(0, iteration.block - self.random), driver_bytes=iteration.basis_bytes,
            most=iteration.most_block,
        )  # fmt: skip

    def passes(self) -> tuple[PassCost, ...]:
        return (*self.rows.counting, *self.operator_passes.costs)

    def solve_cost(self) -> SolveCost:
        return SolveCost(output_bytes=model_bytes(self.iteration.components, self.rows.n_columns, 1, 0))

    def identity(self) -> dict[str, Any]:
        """Later passes depend on everything that led to their block."""
        settings, iteration = self.settings, self.iteration
        return {
            "computes": "krylov", "input": self.rows.describe(), "center": settings.center, "scale": settings.scale,
            "n_components": repr(settings.n_components), "tol": settings.tol, "seed": settings.seed,
            "columns": [iteration.block, iteration.columns], "probes": PROBES,
        }  # fmt: skip

    def run(self, run: Run) -> Spectrum:
        """Iterate until the wanted eigenvalues are known to ``tol``, or ``max_passes`` is reached."""
        settings, iteration = self.settings, self.iteration
        operator = CovarianceOperator(
            self.rows, run, self.operator_passes, center=settings.center, scale=settings.scale, seed=settings.seed,
            threads=settings.solve_threads,
        )  # fmt: skip
        result = iterate(operator, self._sampled_axes(operator), settings, iteration)
        k = kept_components(operator, result, settings)
        certificate = certify_iteration(operator, result, k, settings, run)
        components = fix_signs(np.ascontiguousarray(result.vectors[:k]))
        check_enough_rows(operator.count, operator.omitted)
        return Spectrum(
            operator.count, operator.omitted, operator.mean, operator.scale, result.values[:k], components,
            operator.trace, certificate=certificate,
        )  # fmt: skip

    def _sampled_axes(self, operator: CovarianceOperator) -> Matrix | None:
        """Return the axes of a sample (d, l), if there are rows for one; its variances choose the products' precision."""
        sample = operator.sample(self.iteration.block - self.random)
        if sample is None:
            return None
        if too_fine(sample.variances, self.iteration.components, self.settings.tol):
            operator.refine()
        return sample.axes


@dataclass(frozen=True)
class KrylovDotFit(KrylovFit):
    """The iteration on the dot matrix of a column-chunked store, and one more read for the components."""

    @property
    def account(self) -> str:
        return (
            f"block Krylov on the dot matrix, {self.iteration.block} columns at a time, until the eigenvalues are known to "
            f"{self.settings.tol:g}"
        )

    @cached_property
    def product(self) -> PassPlan:
        """One multiplication."""
        iteration, most = self.iteration, self.settings.max_passes - 1  # the components take one read
        times = Times(min(TYPICAL_PASSES, most), most)
        return dot_pass(
            self.rows, iteration.block, times, driver_bytes=iteration.basis_bytes, most=iteration.most_block
        )

    @cached_property
    def components(self) -> PassPlan:
        """The read for the components."""
        n, d = self.rows.n_rows, self.rows.n_columns
        k = min(self.iteration.columns, self.settings.wanted(n, d))
        return components_pass(self.rows, k, self.product.layout)

    def passes(self) -> tuple[PassCost, ...]:
        return (*self.rows.counting, self.product, self.components)

    def run(self, run: Run) -> Spectrum:
        """Iterate on the dot matrix, then compute the components."""
        rows, settings = self.rows, self.settings
        n, d = rows.n_rows, rows.n_columns
        reject_omission(rows)
        operator = DotOperator(
            rows, run, self.product, center=settings.center, scale=settings.scale, seed=settings.seed
        )
        result = iterate(operator, None, settings, self.iteration)
        k = kept_components(operator, result, settings)
        certificate = certify_iteration(operator, result, k, settings, run)
        V = np.ascontiguousarray(result.vectors[:k].T)
        products = ColumnProducts(d, V, settings.center, settings.scale)
        product = fold_columns(run, self.components, rows, products).product()  # last pass over X
        scale = column_scale(operator.squares, operator.mean, n) if settings.scale else None
        dot = DotSpectrum(result.values[:k], V, operator.trace, operator.mean, operator.squares)
        spectrum = dot_spectrum(rows, settings, dot, product, operator.mean, scale)
        return replace(spectrum, certificate=replace(certificate, n_passes=run.reads))


def too_fine(variances: Vector, k: int, tol: float) -> bool:
    """Whether float32 products would leave more than a tenth of tol of the k-th of these variances as rounding."""
    if len(variances) < k:
        return True
    return FLOOR * float(np.finfo(np.float32).eps) * float(variances[0]) > tol * float(variances[k - 1])


def iterate(
    operator: Operator,
    start: Matrix | None,
    settings: IterationSettings,
    iteration: Iteration,
) -> KrylovResult:
    """Multiply the first block, from the sample and random columns, and hand over to the solver, which alone keeps it."""
    return block_krylov(
        operator,
        _known(operator, _first_block(operator, start, settings, iteration), settings.seed),
        _pairs_wanted(operator, settings, iteration),
        _options(operator, settings, iteration),
    )


def _first_block(operator: Operator, start: Matrix | None, settings: IterationSettings, iteration: Iteration) -> Matrix:
    axes = np.zeros((operator.size, 0)) if start is None else start
    missing = iteration.block - axes.shape[1]
    random = normals(settings.seed, "start", 0, operator.size, max(1, missing), np.float64)[:, :missing]
    with blas_threads(settings.threads):
        return orthonormal_columns([axes, random], settings.seed)


def _known(operator: Operator, block: Matrix, seed: int) -> Known:
    """Multiply the first block, and probes beside it."""
    first = operator.begin(block)
    check_enough_rows(operator.shape[0], operator.omitted)
    if operator.probes is None:
        return Known(first.B, first.AB, probe_vectors(seed, operator.size, PROBES).astype(np.float64))
    return Known(first.B, first.AB, operator.probes.vectors, operator.probes.products)


def _options(operator: Operator, settings: IterationSettings, iteration: Iteration) -> KrylovOptions:
    """Options of the solver, by what the first product told of the matrix."""
    left = settings.max_passes - 1 - int(isinstance(operator, DotOperator))  # its components take one more read
    return KrylovOptions(
        tol=settings.tol, max_multiplications=left, max_columns=iteration.columns, block=iteration.block,
        rank=min(operator.shape), shift=operator.sigma, seed=settings.seed, threads=settings.threads,
    )  # fmt: skip


def _pairs_wanted(
    operator: Operator, settings: IterationSettings, iteration: Iteration
) -> int | Callable[[Vector], int]:
    if isinstance(settings.n_components, int | np.integer):
        return iteration.components
    room = iteration.columns if iteration.columns >= min(operator.shape) else iteration.columns // 2
    return partial(_wanted, settings.n_components, operator, room)


def _wanted(n_components: Any, operator: Operator, most: int, ritz: Vector) -> int:
    """How many components the Ritz values so far ask for; one more than there are where they do not tell.

    Raises
    ------
    ValueError
        Where that is more than half of what the basis holds.
    """
    n, d = operator.shape
    k = resolve_partial(n_components, ritz, operator.trace, n, d)
    wanted = len(ritz) + 1 if k is None else k
    if most < wanted < min(n, d):
        share = float(ritz[:most].sum()) / operator.trace
        raise ValueError(
            f"n_components = {n_components!r} asks for more than {most} components, of which an iteration keeps no more in its "
            f"basis; {min(most, len(ritz))} hold {share:.3f} of the variance. Ask for fewer, or use "
            f'solver="covariance" or "dot" where they fit.'
        )
    return wanted


def kept_components(operator: Operator, result: KrylovResult, settings: IterationSettings) -> int:
    """How many components the final values ask for, which are a little larger than the Ritz values were.

    Raises
    ------
    ValueError
        For more components than rows are left.
    """
    n, d = operator.shape
    most, values = len(result.values), result.approximation.values
    return min(most, resolve_partial(settings.n_components, values, operator.trace, n, d) or most)


def certify_iteration(
    operator: Operator, result: KrylovResult, k: int, settings: IterationSettings, run: Run
) -> Certificate:
    """Bound the first k eigenvalues, and warn where the tolerance was not met."""
    certificate = certify(
        result.approximation, k, operator.trace, precision=operator.rounding,
        norm_bound=result.norm_bound, residuals=result.residuals[:k], basis=result.basis,
        multiplied=not isinstance(operator, CovarianceOperator),
    )  # fmt: skip
    if not result.converged:
        warn_unconverged(operator, result, settings, run)
    elif certificate.eigenvalue_bounds[0, 0] > 0:  # else all of it is rounding
        warn_if_doubtful(certificate, WIDE.format(settings.tol))
    return replace(certificate, n_passes=run.reads, converged=result.converged)


def warn_unconverged(operator: Operator, result: KrylovResult, settings: IterationSettings, run: Run) -> None:
    """Warn how far the eigenvalues got, and what to do."""
    remedy = REMEDIES[result.stopped].format(
        passes=settings.max_passes, unresolved=result.unresolved, k=len(result.ritz_values), precision=operator.precision,
        least=FLOOR * operator.precision / settings.tol,
    )  # fmt: skip
    warn_approximation(
        f"the iteration stopped after {run.reads:.3g} reads with eigenvalue errors of about "
        f"{result.largest_error:.2g}, tol = {settings.tol:g} was asked for (largest residual "
        f"{float(result.residuals.max()):.3g}, largest eigenvalue {float(result.ritz_values[0]):.3g}): {remedy}"
    )
