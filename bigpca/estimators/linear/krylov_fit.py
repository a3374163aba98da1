"""PCA by block Krylov iteration: a few reads of X, memory of a few (d, l) blocks, error bounds from the same reads.

One read a multiplication; the start is the PCA of a sample of the rows. Over a store chunked in columns the iteration runs
on the dot matrix (n, n) instead, and one more read turns its vectors into components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import blas_threads
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.certificates import certify, warn_if_doubtful
from bigpca.estimators.linear.covariance_fit import fold_memory, model_bytes
from bigpca.estimators.linear.dot_fit import DotSpectrum, dot_spectrum, reject_omission, take_products
from bigpca.estimators.linear.spectrum import Certificate, Settings, Spectrum, check_enough_rows
from bigpca.operators.covariance import PROBES, CovarianceOperator, Probes, Products
from bigpca.operators.dot import DotOperator
from bigpca.passes.accumulators.dot_matrix import ColumnProducts, column_scale
from bigpca.passes.accumulators.factors import DenseFactor, probe_vectors
from bigpca.passes.accumulators.fused_product import FusedProduct
from bigpca.passes.columns import column_layout, fold_columns
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.rows import RowInput
from bigpca.passes.sampling import sample_size
from bigpca.planning import Plan, Resources, peak_bytes
from bigpca.seeds import normals
from bigpca.solvers.components import NComponents, resolve_partial, starting_components
from bigpca.solvers.dual import axes_bytes
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
    def reads(self) -> float:
        """Reads of X so far."""

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
    """

    components: int
    block: int
    columns: int
    size: int

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
    columns = blocks * block
    if not isinstance(settings.n_components, int | np.integer):
        columns = max(columns, RULE_COLUMNS)
    return Iteration(k, block, min(size, columns), size)


def plan_krylov(rows: RowInput, settings: Settings, resources: Resources) -> tuple[Plan, Iteration]:
    """Cost of an iteration of three reads; the plan says at most how many there can be.

    The basis is as large as four blocks; where that does not fit the memory limit, three or two, with restarts.
    """
    for blocks in (BLOCKS, 3, 2):
        iteration = size_iteration(rows, settings, blocks)
        plan = _plan_with(rows, settings, resources, iteration)
        if plan.fits:
            break
    return plan, iteration


def _plan_with(rows: RowInput, settings: Settings, resources: Resources, iteration: Iteration) -> Plan:
    n, d = rows.n_rows, rows.n_columns
    width = iteration.block + PROBES
    layout = column_layout(rows)
    flops = 4.0 * n * d * width
    if layout is None:
        template = FusedProduct.of(d, DenseFactor(np.broadcast_to(np.float32(0), (d, width))), by_driver=True)
        state, product = template.state_bytes, template.product_bytes
        peak, block_rows, groups = fold_memory(rows, state, product, 0.0)  # float64, if the spectrum falls far
        sample = sample_size(n, d * rows.dtype.itemsize, iteration.block)
        start = sample * d * 4 + axes_bytes(sample, d, iteration.block, 4)
        extra, reason = sample / max(1, n), f"block Krylov, {iteration.block} columns at a time"
    else:
        state, start = 8 * n * width, 0
        read = layout.read_rows * n * rows.dtype.itemsize
        slab = min(layout.slab_rows, layout.read_rows) * n * 8
        peak, block_rows, groups = peak_bytes(read, slab, 2 * state, state) + slab, n, len(layout.groups)
        extra, reason = 1.0, f"block Krylov on the dot matrix, {iteration.block} columns at a time"
    basis = iteration.basis_bytes
    if resources.local:
        peak = max(peak + basis // resources.threads, start // resources.threads)
    passes = TYPICAL_PASSES + extra + int(rows.counted)
    return Plan(
        solver="krylov",
        reason=f"{reason}, until the eigenvalues are known to {settings.tol:g}",
        passes=round(passes, 2),
        bytes_read=int(passes * n * d * rows.dtype.itemsize),
        most_passes=round(max(settings.max_passes, TYPICAL_PASSES) + extra + int(rows.counted), 2),
        flops=TYPICAL_PASSES * flops,
        tasks=TYPICAL_PASSES * (2 * groups + 1),
        state_bytes=state,
        block_rows=block_rows,
        peak_bytes=peak,
        output_bytes=model_bytes(iteration.components, d, 1, 0),
        resources=resources,
        notes=(
            f"reads: 2 where the spectrum falls fast, at most {settings.max_passes} (max_passes); {TYPICAL_PASSES} are typical",
            f"basis of up to {iteration.columns} columns: {basis / 2**20:,.0f} MiB in the process that fits",
        ),
    )


def describe_krylov(rows: RowInput, settings: Settings, iteration: Iteration) -> dict[str, Any]:
    """Fingerprint of the passes: later ones depend on everything that led to their block."""
    return {
        "computes": "krylov", "input": rows.describe(), "center": settings.center, "scale": settings.scale,
        "n_components": repr(settings.n_components), "tol": settings.tol, "seed": settings.seed,
        "columns": [iteration.block, iteration.columns], "probes": PROBES,
    }  # fmt: skip


def run_krylov(rows: RowInput, settings: Settings, options: RunOptions, iteration: Iteration) -> Spectrum:
    """Iterate until the wanted eigenvalues are known to ``tol``, or ``max_passes`` is reached."""
    if column_layout(rows) is not None:
        return _run_dot(rows, settings, options, iteration)
    operator = CovarianceOperator(
        rows, options, center=settings.center, scale=settings.scale, columns=iteration.block, seed=settings.seed,
        threads=settings.solve_threads,
    )  # fmt: skip
    result = iterate(operator, _sampled_axes(operator, settings.tol, iteration), settings, iteration)
    k = kept_components(operator, result, settings)
    certificate = certify_iteration(operator, result, k, settings)
    components = fix_signs(np.ascontiguousarray(result.vectors[:k]))
    return Spectrum(
        operator.count, operator.omitted, operator.mean, operator.scale, result.values[:k], components, operator.trace,
        certificate=certificate,
    )  # fmt: skip


def _sampled_axes(operator: CovarianceOperator, tol: float, iteration: Iteration) -> Matrix | None:
    """Return the axes of a sample (d, l), if there are rows for one; its variances choose the precision of the products."""
    random = max(2, iteration.block // 20)  # a sample never saw the classes that it lacks
    sample = operator.sample(iteration.block - random) if iteration.block > random else None
    if sample is None:
        return None
    if too_fine(sample.variances, iteration.components, tol):
        operator.refine()
    return sample.axes


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


def certify_iteration(operator: Operator, result: KrylovResult, k: int, settings: IterationSettings) -> Certificate:
    """Bound the first k eigenvalues, and warn where the tolerance was not met."""
    certificate = certify(
        result.approximation, k, operator.trace, precision=operator.rounding,
        norm_bound=result.norm_bound, residuals=result.residuals[:k], basis=result.basis,
        multiplied=not isinstance(operator, CovarianceOperator),
    )  # fmt: skip
    if not result.converged:
        warn_unconverged(operator, result, settings)
    elif certificate.eigenvalue_bounds[0, 0] > 0:  # else all of it is rounding
        warn_if_doubtful(certificate, WIDE.format(settings.tol))
    return replace(certificate, n_passes=operator.reads, converged=result.converged)


def warn_unconverged(operator: Operator, result: KrylovResult, settings: IterationSettings) -> None:
    """Warn how far the eigenvalues got, and what to do."""
    remedy = REMEDIES[result.stopped].format(
        passes=settings.max_passes, unresolved=result.unresolved, k=len(result.ritz_values), precision=operator.precision,
        least=FLOOR * operator.precision / settings.tol,
    )  # fmt: skip
    warn_approximation(
        f"the iteration stopped after {operator.reads:.3g} reads with eigenvalue errors of about "
        f"{result.largest_error:.2g}, tol = {settings.tol:g} was asked for (largest residual "
        f"{float(result.residuals.max()):.3g}, largest eigenvalue {float(result.ritz_values[0]):.3g}): {remedy}"
    )


def _run_dot(rows: RowInput, settings: Settings, options: RunOptions, iteration: Iteration) -> Spectrum:
    """Iterate on the dot matrix of a column-chunked store, then compute the components in one more read."""
    n, d = rows.n_rows, rows.n_columns
    reject_omission(rows)
    operator = DotOperator(
        rows, options, center=settings.center, scale=settings.scale, columns=iteration.block, seed=settings.seed
    )
    result = iterate(operator, None, settings, iteration)
    k = kept_components(operator, result, settings)
    certificate = certify_iteration(operator, result, k, settings)
    V = np.ascontiguousarray(result.vectors[:k].T)
    products = ColumnProducts(d, V, settings.center, settings.scale)
    product, _, _ = fold_columns(  # last pass over X
        rows, products, take_products, layout=operator.layout, number=operator.number + 1, options=options
    )
    scale = column_scale(operator.squares, operator.mean, n) if settings.scale else None
    dot = DotSpectrum(result.values[:k], V, operator.trace, operator.mean, operator.squares)
    spectrum = dot_spectrum(rows, settings, dot, product, operator.mean, scale)
    return replace(spectrum, certificate=replace(certificate, n_passes=operator.reads + 1))
