"""Block Krylov iteration on an operator, whatever its matrix: sizes, start, stopping rule, certificate, warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import solving_alone
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.certificates import certify, warn_if_doubtful
from bigpca.estimators.linear.certified import Certificate
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.operators.covariance import CovarianceOperator
from bigpca.operators.products import PROBES, Probes, Products
from bigpca.passes.engine.run import Run
from bigpca.seeds import normals
from bigpca.solvers.components import NComponents, resolve_partial
from bigpca.solvers.krylov import block_krylov
from bigpca.solvers.krylov_basis import orthonormal_columns
from bigpca.solvers.krylov_pairs import FLOOR
from bigpca.solvers.krylov_problem import (
    Known,
    KrylovOptions,
    KrylovResult,
    Multiplied,
    krylov_bytes,
    krylov_flops,
)

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
BLOCKS = 4  # in the basis before it is restarted, where USUAL_PASSES reads or fewer are granted
USUAL_PASSES = 10
MAX_PASSES = 10_000  # where max_passes is None and no basis can hold the whole space
TYPICAL_PASSES = 3
REMEDIES = {
    "multiplications": "max_passes = {passes} was reached. Raise it, ask for a larger tol, or use an exact solver "
    "where it fits.",
    "stagnation": "the last reads did not improve them. Ask for a larger tol or more components, or use an exact "
    "solver where it fits.",
    "unresolved": "the last {unresolved} of {k} eigenvalues are below {least:.2g} of the first, where products of "
    "precision {precision:.1g} leave more than tol of them as rounding. Ask for fewer components or a larger tol, or "
    "scale the columns.",
}
WIDE = (
    "The iteration met tol = {0:g} by its estimate, but slowly falling eigenvalues leave the certified bounds wide. "
    "Set a smaller tol for narrower ones, or use an exact solver where it fits."
)
MORE_COLUMNS = 10  # minimum number of columns of a block in addition to the components
RULE_COLUMNS = 1024  # of the basis, if the spectrum decides the number of components, or many reads are granted


class Operator(Multiplied, Protocol):
    """A symmetric matrix of size N that can only be multiplied; some attributes are known after the first product."""

    @property
    def rounding(self) -> float:
        """Rounding that the bounds allow for, relative to |A|_F."""

    @property
    def trace_error(self) -> float:
        """Bound of the error of the trace; known after :meth:`begin`."""

    @property
    def sigma(self) -> float:
        """Multiple of I that was added to the matrix whose eigenvalues are computed; known after :meth:`begin`."""

    @property
    def probes(self) -> Probes:
        """Probes and their products; known after :meth:`begin`."""

    @property
    def other_reads(self) -> int:
        """Reads that are no multiplications of the solver: those of :meth:`begin`, and those after the last."""

    @property
    def omitted(self) -> int:
        """Rows of X that were omitted."""

    @property
    def size(self) -> int:
        """N."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows counted so far, and columns: both limit the number of components."""

    @property
    def weight(self) -> float:
        """Sum of the weights of these rows, or their number."""

    def begin(self, V: Matrix, /) -> Products:
        """Multiply the first block, and the probes with it."""


class IterationSettings(Protocol):
    """The settings of a fit that an iteration depends on."""

    @property
    def n_components(self) -> NComponents: ...
    @property
    def tol(self) -> float: ...
    @property
    def max_passes(self) -> int | None: ...
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
    eps = float(np.finfo(np.float32).eps) * magnification
    return FLOOR * eps * float(variances[0]) > tol * float(variances[k - 1])


def iterate(
    operator: Operator,
    start: Matrix | None,
    settings: IterationSettings,
    iteration: Iteration,
) -> KrylovResult:
    """Iterate from a first block of the sample's axes and random columns, which only the solver keeps."""
    return block_krylov(
        operator,
        _known(operator, _first_block(operator, start, settings, iteration)),
        _pairs_wanted(operator, settings, iteration),
        _options(operator, settings, iteration),
    )


def _first_block(operator: Operator, start: Matrix | None, settings: IterationSettings, iteration: Iteration) -> Matrix:
    axes = np.zeros((operator.size, 0)) if start is None else start
    missing = iteration.block - axes.shape[1]
    random = normals(settings.seed, "start", 0, operator.size, max(1, missing), np.float64)[:, :missing]
    with solving_alone(settings.threads):
        return orthonormal_columns([axes, random], settings.seed)


def _known(operator: Operator, block: Matrix) -> Known:
    """Multiply the first block, and the probes with it."""
    first = operator.begin(block)
    check_enough_rows(operator.shape[0], operator.omitted)
    return Known(first.B, first.AB, operator.probes.vectors, operator.probes.products)


def _options(operator: Operator, settings: IterationSettings, iteration: Iteration) -> KrylovOptions:
    """Return the options of the solver, which depend on the first product."""
    return KrylovOptions(
        tol=settings.tol, max_multiplications=iteration.max_passes - operator.other_reads,
        max_columns=iteration.columns, block=iteration.block, rank=min(operator.shape), shift=operator.sigma,
        seed=settings.seed, threads=settings.threads,
    )  # fmt: skip


def _pairs_wanted(
    operator: Operator, settings: IterationSettings, iteration: Iteration
) -> int | Callable[[Vector], int]:
    if isinstance(settings.n_components, int | np.integer):
        return iteration.components
    room = iteration.columns if iteration.columns >= min(operator.shape) else iteration.columns // 2
    return partial(_wanted, settings.n_components, operator, room)


def _wanted(n_components: NComponents, operator: Operator, most: int, ritz: Vector) -> int:
    """Return the number of components by the Ritz values so far; one more than there are if they do not determine it.

    Raises
    ------
    ValueError
        If that is more than half of the columns of the basis.
    """
    n, d = operator.shape
    k = resolve_partial(n_components, ritz, operator.trace, n, d, operator.weight)
    wanted = len(ritz) + 1 if k is None else k
    if most < wanted < min(n, d):
        share = float(ritz[:most].sum()) / operator.trace
        raise ValueError(
            f"n_components = {n_components!r} asks for more than {most} components, of which an iteration keeps no "
            f"more in its basis; {min(most, len(ritz))} hold {share:.3f} of the variance. Ask for fewer, or use "
            f'solver="covariance" or "dot" where they fit.'
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
            result.approximation, k, operator.trace, precision=operator.rounding,
            norm_bound=result.norm_bound, residuals=result.residuals[:k],
            multiplied=not isinstance(operator, CovarianceOperator), trace_error=operator.trace_error,
        )  # fmt: skip
    if not result.converged:
        warn_unconverged(operator, result, settings, run)
    elif certificate.eigenvalue_bounds[0, 0] > 0:  # otherwise all values are rounding
        warn_if_doubtful(certificate, WIDE.format(settings.tol))
    return replace(certificate, n_passes=run.reads, converged=result.converged)


def warn_unconverged(operator: Operator, result: KrylovResult, settings: IterationSettings, run: Run) -> None:
    """Warn with the error of the eigenvalues, and a remedy."""
    remedy = REMEDIES[result.stopped].format(
        passes=settings.max_passes or MAX_PASSES, unresolved=result.unresolved, k=len(result.ritz_values),
        precision=operator.precision,
        least=FLOOR * operator.precision / settings.tol,
    )  # fmt: skip
    warn_approximation(
        f"the iteration stopped after {run.reads:.3g} reads with eigenvalue errors of about "
        f"{result.largest_error:.2g}, tol = {settings.tol:g} was asked for (largest residual "
        f"{float(result.residuals.max()):.3g}, largest eigenvalue {float(result.ritz_values[0]):.3g}): {remedy}"
    )
