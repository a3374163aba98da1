"""Roweis discriminant analysis where no d x d matrix fits: Rayleigh-Ritz on a block Krylov space of the within-class scatter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import warn_approximation
from bigpca.estimators.linear.covariance_fit import fold_memory
from bigpca.estimators.supervised.labels import Supervision
from bigpca.estimators.supervised.model import SupervisedFit
from bigpca.estimators.supervised.statistics import LabelStatistics, fold_labels
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.class_moments import ClassMoments
from bigpca.passes.accumulators.within_product import WithinFactor, WithinProduct
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources
from bigpca.seeds import normals
from bigpca.solvers.roweis import Axes, RoweisFamily

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
EXTRA = 10  # random columns beside the wanted ones, in which the leading axes of S_W show
TYPICAL_READS = 6


@dataclass(frozen=True)
class Point:
    """What of the family is wanted, and how well.

    Attributes
    ----------
    wanted : callable
        From a family in some basis, and the statistics, to its axes there; it warns and refuses.
    k : int
    r1, r2 : float
    added : float
        Multiple of I that is added to R2.
    normalize : bool
    tol : float
        Relative change of the k eigenvalues between reads at which it stops.
    max_passes : int
    seed : int
    threads : int or None
    """

    wanted: Callable[[RoweisFamily, LabelStatistics], Axes]
    k: int
    r1: float
    r2: float
    added: float
    normalize: bool
    tol: float
    max_passes: int
    seed: int = 0
    threads: int | None = None


@dataclass(frozen=True)
class KrylovRoweisJob:
    """The iteration, planned.

    One read for class means; then each read multiplies S_W by a new block, and the generalised eigenproblem is solved on the
    span of all blocks so far (Rayleigh-Ritz): eigenvalues grow towards the true ones. The first block spans the class
    means, the label features and some random directions, so that the space holds ``p(S_W) S_B`` for all polynomials p of
    a degree that grows by one a read: what ``R2^-1`` is approximated by.
    """

    rows: RowInput
    plan: Plan
    templates: dict[str, Accumulator]
    supervision: Supervision
    point: Point

    def describe(self) -> dict[str, Any]:
        """Fingerprint of the passes."""
        states = {name: template.describe() for name, template in self.templates.items()}
        point = self.point
        settings = [point.k, point.r1, point.r2, point.added, point.normalize, point.tol, point.max_passes, point.seed]
        return {"computes": "labelled krylov", "input": self.rows.describe(), "states": states, "settings": settings}

    def run(self, options: RunOptions) -> SupervisedFit:
        """Read until the eigenvalues stand."""
        point = self.point
        statistics = fold_labels(self.rows, self.templates, options)
        if point.r2 == 1.0 and not point.added:
            reject_singular(statistics.count, statistics.n_classes, self.rows.n_columns)
        classes: Any = self.templates["classes"]
        Q = first_block(statistics, point)
        basis, products = np.zeros((len(Q), 0)), np.zeros((len(Q), 0))
        values, converged, reads = np.zeros(0), False, 1
        while reads < point.max_passes and Q.shape[1]:
            reads += 1
            template = WithinProduct(len(Q), Q.shape[1], classes.codes, WithinFactor(statistics.moments.means, Q))
            dtype = product_dtype(self.rows.dtype, 4.0 * self.rows.n_rows * Q.size * TYPICAL_READS)
            Y = fold(  # one pass over X
                self.rows, {"within": template}, _take, name="within", number=reads, options=options, dtype=dtype
            )
            basis, products = np.hstack([basis, Q]), np.hstack([products, Y])
            family = family_in(basis, products, statistics, point)
            found = family.solve(point.r1, point.r2, point.k).values
            if len(values) == len(found):
                converged = bool((np.abs(found - values) <= point.tol * found).all())
            values = found
            if converged:
                break
            Q = next_block(basis, Y)
        converged = converged or not Q.shape[1]  # the whole space
        axes = point.wanted(family, statistics)
        if not converged:
            warn_approximation(
                f"the eigenvalues changed by more than tol = {point.tol:g} in the last of {reads} reads; they are lower bounds. "
                f"Give a larger max_passes, r2 further from 1, or a regularization."
            )
        facts = {"n_passes": reads + int(self.rows.counted), "converged": converged}
        return SupervisedFit(statistics, self.supervision, axes, facts)


def _take(state: PassState) -> Matrix:
    part: Any = state.parts["within"]
    product: Matrix = part.product
    return product


def reject_singular(count: int, n_classes: int, d: int) -> None:
    """Refuse an S_W that is singular whatever the rows are.

    Raises
    ------
    ValueError
        For fewer than ``d + c`` rows.
    """
    if count - n_classes < d:
        raise ValueError(
            f"R2 = S_W is singular: {count} rows of {n_classes} classes differ from their means in at most {max(0, count - n_classes)} "
            f"of {d} directions. Use a number as regularization, which is added to its diagonal, r2 < 1, fewer features or, where "
            f'd x d fits, robust=True or regularization="pinv".'
        )


def first_block(statistics: LabelStatistics, point: Point) -> Matrix:
    """Return orthonormal columns (d, l): class means, label features, the mean where rows are classified, random directions."""
    d = statistics.moments.n_features
    random = normals(point.seed, "roweis-start", 0, point.k + EXTRA, d, np.float64)
    origin = statistics.mean[None] if point.r2 == 1.0 else np.zeros((0, d))  # coefficients of a classifier are about it
    parts = [
        statistics.between, statistics.psi if statistics.cross is not None else np.zeros((0, d)), origin, random,
    ]  # fmt: skip
    columns = [
        part.T / max(float(np.linalg.norm(part, 2)) if part.size else 1.0, np.finfo(float).tiny) for part in parts
    ]
    return orthonormal(np.hstack(columns)[:, :d] if d < sum(map(len, parts)) else np.hstack(columns))


def orthonormal(V: Matrix) -> Matrix:
    """Return orthonormal columns that span V, less directions that are rounding."""
    U, s, _ = np.linalg.svd(V, full_matrices=False)
    return U[:, s > 1e-10 * s[0]] if s.size and s[0] > 0 else U[:, :0]


def next_block(basis: Matrix, Y: Matrix) -> Matrix:
    """Return what ``Y`` adds to the basis, orthonormal; no column where it adds nothing."""
    Z = Y / max(float(np.linalg.norm(Y, 2)), np.finfo(float).tiny)
    for _ in range(2):
        Z = Z - basis @ (basis.T @ Z)
    U, s, _ = np.linalg.svd(Z, full_matrices=False)
    room = len(basis) - basis.shape[1]
    return np.ascontiguousarray(U[:, s > 1e-10][:, :room])


def family_in(basis: Matrix, products: Matrix, statistics: LabelStatistics, point: Point) -> RoweisFamily:
    """Return the family on the span of the basis."""
    S = basis.T @ products
    d = statistics.moments.n_features
    within = float(statistics.moments.within.sum())
    traces = (float((statistics.psi**2).sum()), statistics.total_scatter, within)
    scales = tuple(d / trace if point.normalize and trace > 0 else 1.0 for trace in traces)
    return RoweisFamily(
        (S + S.T) / 2, statistics.between, statistics.psi, freedom=max(0, statistics.count - statistics.n_classes),
        threads=point.threads, scales=scales, added=point.added, basis=basis,
    )  # fmt: skip


def plan_krylov_roweis(
    rows: RowInput, templates: dict[str, Accumulator], resources: Resources, name: str, point: Point
) -> Plan:
    """Cost of one read for the means, and of five more: typical, not a bound."""
    n, d = rows.n_rows, rows.n_columns
    classes: Any = templates["classes"]
    width = min(
        d,
        point.k
        + EXTRA
        + classes.n_classes
        + (point.r2 == 1.0)
        + sum(p.state_bytes for k, p in templates.items() if k == "cross") // (8 * d),
    )
    means = np.broadcast_to(0.0, (classes.n_classes, d))
    block = WithinProduct(d, width, classes.codes[:0], WithinFactor(means, np.broadcast_to(0.0, (d, width))))
    moments = ClassMoments(d, classes.n_classes, classes.codes[:0], whole=False)
    state = max(block.state_bytes, sum(template.state_bytes for template in templates.values()))
    product = max(block.product_bytes, moments.product_bytes)
    flops = float(n) * (block.flops_per_row * (TYPICAL_READS - 1) + moments.flops_per_row)
    peak, block_rows, groups = fold_memory(rows, state, product, flops)
    basis = 2 * TYPICAL_READS * block.state_bytes
    if resources.local:
        peak += (basis + 2 * block.state_bytes) // resources.threads
    passes = TYPICAL_READS + int(rows.counted)
    return Plan(
        solver=f"{name} (krylov)",
        reason=f"{width} columns at a time until the eigenvalues stand to {point.tol:g}: {TYPICAL_READS} reads are typical, at most "
        f"{point.max_passes} (max_passes)",
        passes=passes,
        bytes_read=passes * n * d * rows.dtype.itemsize,
        most_passes=max(point.max_passes, TYPICAL_READS) + int(rows.counted),
        flops=flops,
        tasks=TYPICAL_READS * (2 * groups + 1),
        state_bytes=state,
        block_rows=block_rows,
        peak_bytes=peak,
        output_bytes=8 * d * (point.k + classes.n_classes),
        resources=resources,
    )
