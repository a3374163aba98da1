"""PCA by block Krylov iteration: a few reads of X, memory of a few (d, l) blocks, error bounds from the same reads.

Block Krylov iteration on an operator, whatever its matrix: sizes, start, stopping rule, certificate, warnings.

Each multiplication is one read; the iteration starts from the PCA of a sample of the rows. For a store chunked in
columns it uses the dot matrix (n, n) instead, and one more read turns the eigenvectors into components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from bigpca.arrays import Matrix, Vector
from bigpca.blas import solving_alone
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.dot_fit import DotSpectrum, components_read, reject_omission, spectrum_by_columns
from bigpca.estimators.linear.spectrum import (
    IterationSettings,
    PCAFit,
    PCAResult,
    Settings,
    check_enough_rows,
    result_of,
)
from bigpca.estimators.shared.certificates import Certificate, certify, warn_if_doubtful
from bigpca.estimators.shared.fit import EXACT_SECONDS
from bigpca.operators import PROBES, Operator
from bigpca.operators.covariance import CovarianceOperator, CovariancePasses, DotOperator, dot_products
from bigpca.passes.accumulators.all_pairs import ColumnProducts, DotProduct
from bigpca.passes.panels import ColumnRead, column_layout
from bigpca.passes.rows import Rows
from bigpca.seeds import normals
from bigpca.solvers.components import NComponents, partial_will_do, resolve_partial, starting_components
from bigpca.solvers.dual import axes_flops
from bigpca.solvers.eigh import fix_signs
from bigpca.solvers.krylov import (
    FLOOR,
    Known,
    KrylovOptions,
    KrylovResult,
    block_krylov,
    krylov_bytes,
    krylov_flops,
    orthonormal_columns,
)

BLOCKS = 4  # in the basis before it is restarted, where USUAL_PASSES reads or fewer are granted
USUAL_PASSES = 10
MAX_PASSES = 10_000  # where max_passes is None and no basis can hold the whole space
TYPICAL_PASSES = 3
REMEDIES = {
    "multiplications": "max_passes = {passes} was reached. Raise it, use a larger tol, or use an exact solver if "
    "one fits.",
    "stagnation": "the last reads did not improve them. Use a larger tol, request more components, or use an exact "
    "solver if one fits.",
    "unresolved": "the last {unresolved} of {k} eigenvalues are below {least:.2g} of the first, where rounding of "
    "products with precision {precision:.1g} exceeds tol. Request fewer components, use a larger tol, or scale "
    "the columns.",
}
WIDE = (
    "The iteration met tol = {0:g} by its estimate, but slowly falling eigenvalues leave the certified bounds wide. "
    "Set a smaller tol for narrower bounds, or use an exact solver if one fits."
)
MORE_COLUMNS = 10  # minimum number of columns of a block in addition to the components
# What determines the blocks of later passes, as of Reading.depends_on.
ITERATED = ("settings.n_components", "settings.tol", "settings.seed", "iteration.block", "iteration.columns")
RULE_COLUMNS = 1024  # of the basis, if the spectrum decides the number of components, or many reads are granted


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
        Maximum number of columns of the basis.
    size : int
        N, d or n.
    max_passes : int
        Maximum number of reads.
    by_rule : bool
        Whether the spectrum decides the number of components; the blocks then grow with it.
    """

    components: int
    block: int
    columns: int
    size: int
    max_passes: int
    by_rule: bool = False

    @classmethod
    def sizes(cls, settings: IterationSettings, k: int, size: int) -> Iterator[Iteration]:
        """Yield block and basis, the largest basis first; smaller ones are restarted, and so need less memory.

        A read costs far more than columns, so a block has 2 k columns, at least k + 10. Four blocks hold what the usual
        fit multiplies. On a flat spectrum, an estimate of the error falls only while the basis grows: it holds the
        products of all reads that are granted, up to 1024 columns, if these are more than usual or complete the space.
        """
        most, by_rule = settings.max_passes, not isinstance(settings.n_components, int | np.integer)
        block = min(size, max(2 * k, k + MORE_COLUMNS))
        granted = RULE_COLUMNS if most is None else min(RULE_COLUMNS, block * most)
        many = most is None or most > USUAL_PASSES or granted >= size
        columns = [granted >> i for i in range(granted.bit_length()) if many and granted >> i > BLOCKS * block]
        for held in [*columns, BLOCKS * block, 3 * block, 2 * block]:
            held = min(size, max(held, RULE_COLUMNS if by_rule else 0))
            # The space is complete after ceil(N / block) blocks, in each of two precisions.
            limit = 2 * (-(-size // block) + 2) if held == size else MAX_PASSES
            yield cls(k, block, held, size, limit if most is None else most, by_rule)

    @property
    def note(self) -> str:
        """The line of a plan about the basis."""
        return f"basis of up to {self.columns} columns: {self.basis_bytes / 2**20:,.0f} MiB in the process that fits"

    @property
    def most_block(self) -> int:
        """Maximum number of columns multiplied at a time."""
        return max(self.block, self.columns // 2) if self.by_rule else self.block

    def flops(self, products: float) -> float:
        """Floating-point operations of the solver between so many products."""
        return krylov_flops(self.size, self.block, self.components, max(1, round(products)))

    @property
    def basis_bytes(self) -> int:
        """Memory of the basis, the products and the small problems in the fitting process."""
        return krylov_bytes(self.size, self.columns, self.block, self.components, PROBES)


def too_fine(variances: Vector, k: int, tol: float, magnification: float = 1.0) -> bool:
    """Whether rounding in float32 products would exceed a tenth of tol, relative to the k-th of these variances."""
    if len(variances) < k:
        return True
    # Products err by eps times the largest eigenvalue, whichever axis they are of: a small one keeps fewer digits.
    eps = float(np.finfo(np.float32).eps) * magnification
    return FLOOR * eps * float(variances[0]) > tol * float(variances[k - 1])


def iterate(
    operator: Operator, start: Matrix | None, settings: IterationSettings, iteration: Iteration
) -> KrylovResult:
    """Iterate from a first block of the sample's axes and random columns."""
    # Arguments in this order: the first product is a read, after which the operator knows what the others ask for.
    # It has no name here, so that the solver alone keeps its blocks.
    return block_krylov(
        operator,
        _first_product(operator, start, settings, iteration),
        _pairs_wanted(operator, settings, iteration),
        KrylovOptions(
            tol=settings.tol,
            max_multiplications=iteration.max_passes - operator.other_reads,
            max_columns=iteration.columns,
            block=iteration.block,
            rank=min(operator.shape),
            shift=operator.sigma,
            seed=settings.seed,
            threads=settings.threads,
        ),
    )


def _first_product(
    operator: Operator, start: Matrix | None, settings: IterationSettings, iteration: Iteration
) -> Known:
    """Multiply the first block, and the probes with it."""
    axes = np.zeros((operator.size, 0)) if start is None else start
    missing = iteration.block - axes.shape[1]  # random columns, for directions that the sample misses
    # By row number and seed alone: the same numbers whatever the chunks and threads are.
    random = normals(settings.seed, "start", 0, operator.size, max(1, missing), np.float64)[:, :missing]
    with solving_alone(settings.threads):
        block = orthonormal_columns([axes, random], settings.seed)
    del random  # is as large as a block, and would be held during the read
    first = operator.begin(block)
    check_enough_rows(operator.shape[0], operator.omitted)
    return Known(first.B, first.AB, operator.probes.vectors, operator.probes.products)


def _pairs_wanted(
    operator: Operator, settings: IterationSettings, iteration: Iteration
) -> int | Callable[[Vector], int]:
    if isinstance(settings.n_components, int | np.integer):
        return partial(_above_rounding, operator, iteration) if operator.resolution else iteration.components
    # A restart keeps the pairs that are wanted, and needs as many columns again to improve them.
    room = iteration.columns if iteration.columns >= min(operator.shape) else iteration.columns // 2
    return partial(_wanted, settings.n_components, operator, room)


def _above_rounding(operator: Operator, iteration: Iteration, ritz: Vector) -> int:
    """Return how many components are not rounding, once a second product shows what the first block may have missed."""
    seen = int(np.count_nonzero(ritz - operator.sigma > operator.resolution))
    return iteration.components if len(ritz) <= iteration.block else min(max(1, seen), iteration.components)


def _wanted(n_components: NComponents, operator: Operator, most: int, ritz: Vector) -> int:
    """Return the number of components by the Ritz values so far; one more than there are if they do not determine it.

    Raises
    ------
    ValueError
        If that is more than half of the columns of the basis.
    """
    n, d = operator.shape
    # Ritz values are below the eigenvalues, so a share of the trace is reached no earlier than it is in truth.
    k = resolve_partial(n_components, ritz, operator.trace, n, d, operator.weight)
    wanted = len(ritz) + 1 if k is None else k
    if most < wanted < min(n, d):
        share = float(ritz[:most].sum()) / operator.trace
        raise ValueError(
            f'n_components = {n_components!r} needs more than {most} components, the most that solver="krylov" keeps; '
            f"{min(most, len(ritz))} capture {share:.3f} of the variance. Request fewer, or use "
            'solver="covariance" or "dot" if they fit.'
        )
    return wanted


def kept_components(operator: Operator, result: KrylovResult, settings: IterationSettings) -> int:
    """Return the number of components by the final values, which are slightly larger than the Ritz values.

    Raises
    ------
    ValueError
        For more components than rows after omissions.
    """
    n, d = operator.shape
    most, values = len(result.values), result.approximation.values
    return min(most, resolve_partial(settings.n_components, values, operator.trace, n, d, operator.weight) or most)


def certify_iteration(
    operator: Operator, result: KrylovResult, k: int, settings: IterationSettings, run: Run
) -> Certificate:
    """Bound the first k eigenvalues, and warn if the tolerance was not met."""
    with solving_alone(settings.threads):
        certificate = certify(
            result.approximation,
            k,
            operator.trace,
            precision=operator.rounding,
            norm_bound=result.norm_bound,
            residuals=result.residuals[:k],
            multiplied=operator.of_rows,
            trace_error=operator.trace_error,
        )
    if not result.converged:
        warn_unconverged(operator, result, settings, run)
    elif certificate.eigenvalue_bounds[0, 0] > 0:  # otherwise all values are rounding
        warn_if_doubtful(certificate, WIDE.format(settings.tol))
    return replace(certificate, converged=result.converged)


def warn_unconverged(operator: Operator, result: KrylovResult, settings: IterationSettings, run: Run) -> None:
    """Warn with the error of the eigenvalues, and a remedy."""
    # Rounding is relative to the largest eigenvalue of what was multiplied, tolerances to those of the rows.
    multiplied = float(result.ritz_values[0])  # of the matrix that was multiplied, which may be a shifted one
    largest = multiplied - operator.sigma
    remedy = REMEDIES[result.stopped].format(
        passes=settings.max_passes or MAX_PASSES,
        unresolved=result.unresolved,
        k=len(result.ritz_values),
        precision=operator.precision,
        least=FLOOR * operator.precision / settings.tol * (multiplied / largest if largest > 0 else np.inf),
    )
    warn_approximation(
        f"the iteration stopped after {run.reads:.3g} reads with eigenvalue errors of about "
        f"{result.largest_error:.2g}, tol = {settings.tol:g} was asked for (largest residual "
        f"{float(result.residuals.max()):.3g}, largest eigenvalue {largest:.3g}): {remedy}"
    )


def size_iteration(rows: Rows, settings: Settings) -> Iterator[Iteration]:
    """Return the choices of block and basis, the largest first.

    Raises
    ------
    ValueError
        For an ``n_components`` that requires the whole spectrum, and for too few reads of a store chunked in columns.
    """
    n, d = rows.n_rows, rows.n_columns
    k = starting_components(settings.n_components, rows.n_present, d)
    by_columns = column_layout(rows) is not None
    if by_columns and settings.max_passes is not None and settings.max_passes < 3:
        raise ValueError(
            f"max_passes = {settings.max_passes}, but an iteration over a store chunked in columns reads it at least "
            f"three times: twice for the eigenvalues, once for the components. Use 3 or more, or store the input in "
            f"row chunks."
        )
    return Iteration.sizes(settings, k, n if by_columns else d)


@dataclass(frozen=True)
class KrylovFit(PCAFit):
    """An iteration of about three reads on the covariance; the plan reports the maximum.

    Attributes
    ----------
    iteration : Iteration
    """

    reads: ClassVar[tuple[str, ...]] = ("operator_passes.costs",)
    depends_on: ClassVar[tuple[str, ...]] = ("settings.center", "settings.scale", *ITERATED)
    solver: ClassVar[str] = "krylov"
    exact: ClassVar[bool] = False
    least_price: ClassVar[float] = EXACT_SECONDS

    iteration: Iteration

    @classmethod
    def choices(cls, rows: Rows, settings: Settings) -> Sequence[PCAFit]:
        """Return the fit with each basis, the largest first."""
        which = KrylovFit if column_layout(rows) is None else KrylovDotFit
        return [which(rows, settings, sizes) for sizes in size_iteration(rows, settings)]

    @classmethod
    def offered(cls, rows: Rows, settings: Settings) -> bool:
        """For numbers of components that do not require the whole spectrum."""
        return partial_will_do(settings.n_components, rows.n_present, rows.n_columns)

    @classmethod
    def prefers_exact(cls, rows: Rows, settings: Settings) -> bool:
        """For few rows or columns, whose basis would span the whole space: the exact fits are cheaper."""
        return not cls.offered(rows, settings) and min(rows.n_present, rows.n_columns) <= RULE_COLUMNS

    @property
    def account(self) -> str:
        return (
            f"block Krylov, {self.iteration.block} columns at a time, until the eigenvalues are known to "
            f"{self.settings.tol:g}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"reads: 2 where the spectrum falls fast, at most {self.iteration.max_passes} (max_passes); "
            f"{TYPICAL_PASSES} are typical",
            self.iteration.note,
        )

    @property
    def random(self) -> int:
        """Random columns of the first block, for directions that the sample misses entirely, such as a rare class."""
        return max(2, self.iteration.block // 20)

    @cached_property
    def operator_passes(self) -> CovariancePasses:
        """The passes of the operator."""
        iteration, most = self.iteration, self.iteration.max_passes
        found = CovariancePasses.of(
            self.rows,
            iteration.block,
            (min(TYPICAL_PASSES, most), most),
            seed=self.settings.seed,
            sampled=max(0, iteration.block - self.random),
            most=iteration.most_block,
        )
        return replace(found, product=found.product.costing(driver_bytes=iteration.basis_bytes))

    def solve_cost(self) -> SolveCost:
        passes, d = self.operator_passes, self.rows.n_columns
        sample = 0 if passes.sample is None else passes.sample.cost.layout.n_rows
        start = axes_flops(sample, d, self.iteration.block)  # for the first block
        return SolveCost(between=start + self.iteration.flops(passes.product.cost.times))

    def run(self, run: Run) -> PCAResult:
        """Iterate until the requested eigenvalues are known to ``tol``, or ``max_passes`` is reached."""
        settings, iteration = self.settings, self.iteration
        operator = CovarianceOperator(
            self.rows,
            run,
            self.operator_passes,
            center=settings.center,
            scale=settings.scale,
            seed=settings.seed,
            threads=settings.solve_threads,
        )
        # The axes of a sample, if there are enough rows; its variances determine the precision.
        sample = operator.sample(iteration.block - self.random)
        if sample is not None and too_fine(
            sample.variances, iteration.components, settings.tol, operator.magnification
        ):
            operator.refine()
        result = iterate(operator, None if sample is None else sample.axes, settings, iteration)
        k = kept_components(operator, result, settings)
        certificate = certify_iteration(operator, result, k, settings, run)
        components = fix_signs(np.ascontiguousarray(result.vectors[:k]))
        check_enough_rows(operator.count, operator.omitted, sums=operator.weight_sums)
        found = result_of(operator, settings, result.values[:k], components, certificate)
        return replace(found, roundings=self.rows.roundings)


@dataclass(frozen=True)
class KrylovDotFit(KrylovFit):
    """The iteration on the dot matrix of a column-chunked store, and one more read for the components."""

    reads: ClassVar[tuple[str, ...]] = ("product", "components")

    @property
    def account(self) -> str:
        return (
            f"block Krylov on the dot matrix, {self.iteration.block} columns at a time, until the eigenvalues are "
            f"known to {self.settings.tol:g}"
        )

    def solve_cost(self) -> SolveCost:
        return SolveCost(between=self.iteration.flops(self.product.cost.times))

    @cached_property
    def product(self) -> ColumnRead[DotProduct]:
        """One multiplication."""
        iteration, most = self.iteration, self.iteration.max_passes - 1  # the components take one read
        times = min(TYPICAL_PASSES, most), most
        read = dot_products(self.rows, iteration.block, times, most=iteration.most_block)
        return read.costing(driver_bytes=iteration.basis_bytes)

    @cached_property
    def components(self) -> ColumnRead[ColumnProducts]:
        """The read for the components."""
        d = self.rows.n_columns
        k = min(self.iteration.columns, self.settings.wanted(self.rows.n_present, d))
        return components_read(self.rows, k, self.product.cost.layout)

    def run(self, run: Run) -> PCAResult:
        """Iterate on the dot matrix, then compute the components."""
        rows, settings = self.rows, self.settings
        check_enough_rows(rows.n_present, sums=rows.counted.sums)
        reject_omission(rows)
        operator = DotOperator(run, self.product, center=settings.center, scale=settings.scale, seed=settings.seed)
        result = iterate(operator, None, settings, self.iteration)
        k = kept_components(operator, result, settings)
        certificate = certify_iteration(operator, result, k, settings, run)
        V = np.ascontiguousarray(result.vectors[:k].T)
        dot = DotSpectrum(result.values[:k], V, operator.trace, operator.mean, operator.squares)
        found = spectrum_by_columns(run, self.components, settings, dot, corrected=False)
        return replace(found, certificate=certificate)
