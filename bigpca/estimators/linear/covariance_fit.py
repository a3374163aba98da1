"""PCA by the covariance matrix: one pass of moments, one d x d eigenproblem (tutorial, algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, cast

import numpy as np

from bigpca.costs import BlockForm
from bigpca.engine.jobs import PassState
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.spectrum import PCAFit, PCAResult, Settings, solve_moments
from bigpca.estimators.shared.results import KeptRows
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.accumulators.observed_columns import ObservedPairs
from bigpca.passes.fold import Folded, Read
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.residuals import Remainder
from bigpca.solvers.components import CrossValidated, by_name
from bigpca.solvers.eigh import eigh_bytes


@dataclass(frozen=True)
class CovarianceFit(PCAFit):
    """One read, n d^2 flops for the symmetric product, about 4/3 d^3 for the solve.

    Attributes
    ----------
    before : int or None
        Rows to which these are added (``partial_fit``); None for a fit of its own. Blocks are multiplied in the
        precision of one pass over all of these rows. Few rows in memory form one group, because the states of several
        groups would cost more than the rows.
    groups : FoldStates or None
        Of the groups, or folds, of the rows, whose moments are kept apart.
    """

    reads: ClassVar[tuple[str, ...]] = ("moments", "again")
    depends_on: ClassVar[tuple[str, ...]] = ("template",)
    solver: ClassVar[str] = "covariance"

    before: int | None = None
    groups: FoldStates | None = None

    @property
    def account(self) -> str:
        d, q = self.rows.n_columns, self.settings.covariates
        groups = ""
        if self.groups is not None:
            groups = f", for each of {self.groups.n_folds} {'folds' if self.groups.labels is None else 'groups'}"
        pairs = ", and another of the rows that have both columns" if self.rows.with_gaps else ""
        return f"one read {f'of X and {q} covariates ' if q else ''}and a {d} x {d} matrix{groups}{pairs}"

    @property
    def template(self) -> Accumulator:
        """The state of the pass."""
        kind = ObservedPairs if self.rows.with_gaps else Moments
        return kind(self.rows.n_columns) if self.groups is None else self.groups

    @cached_property
    def moments(self) -> Read[Folded[Accumulator]]:
        """The pass."""
        rows, template, layout = self.rows, self.template, None
        each = template.cost(BlockForm(rows.n_columns)).flops
        if self.before is not None:
            layout = rows.layout(template.state_bytes, rows.n_rows * each)
            if rows.in_memory and layout.n_rows * layout.row_bytes <= 2 * template.state_bytes:
                layout = replace(layout, groups=(range(len(layout.reads)),), segments=(range(1),))
        work = float(rows.n_rows + (self.before or 0)) * each
        dtype, d = PRECISE if self.settings.covariates or rows.with_gaps else None, rows.n_columns
        # The matrix, and what its eigenvectors take; of pairs also the divided products and a factor of the matrix.
        solving = template.state_bytes + (3 if rows.with_gaps else 1) * 8 * d * d + eigh_bytes(d)
        return Read.into(rows, "moments", template, work=work, layout=layout, dtype=dtype, finish_bytes=solving)

    @cached_property
    def again(self) -> Read[Folded[Accumulator]] | None:
        """The second read, if there may be one: of what covariates leave of the rows."""
        if not self.settings.covariates or self.before is not None:
            return None
        rows = self.settings.adjustment.planned(self.rows)
        if rows is None:
            return None
        rule = by_name(self.settings.n_components)  # one that leaves out folds needs the state of each
        left = self.template if isinstance(rule, CrossValidated) else Moments(self.rows.n_columns)
        return Read.into(rows, "refined", left, dtype=PRECISE).repeated(0, 1)

    @property
    def precision(self) -> float:
        """eps of the products."""
        return float(np.finfo(self.moments.cost.dtype).eps)

    def solve_cost(self) -> SolveCost:
        d, template = self.rows.n_columns, self.template
        beside = self.settings.covariates  # a copy of the matrix without them, and what they explain
        size = self.moments.cost.finish_bytes + 4 * 8 * d * d + 8 * beside * (3 * d + 12 * beside) if beside else 0
        flops = 4 / 3 * d**3 + 2.0 * d * d * self.settings.wanted(self.rows.n_present, d)
        if isinstance(by_name(self.settings.n_components), CrossValidated):
            # The same for each fold, and products of (d, d) matrices, which are held beside all states.
            flops += 12.0 * d**3 * getattr(template, "n_folds", 1)
            size += 2 * template.state_bytes + 10 * 8 * d * d + eigh_bytes(d)
        return SolveCost(flops, bytes=size)

    def read(self, run: Run) -> KeptRows:
        """Return the moments of X."""
        found = self.moments(run, shift=self.rows.means)  # one pass over X
        return KeptRows(found.state, found.omitted, self.rows.roundings)

    def run(self, run: Run) -> PCAResult:
        settings = replace(self.settings, roundings=self.rows.roundings)
        solve: Callable[[PassState], Doubtful | PCAResult] = partial(_solve, settings=settings, unsure=bool(self.again))
        found = self.moments.to(solve)(run, shift=self.rows.means)  # one pass over X
        if isinstance(found, Doubtful):
            # The second read is of rows in a frame that the first one found: there their scatter is near the identity.
            again = replace(cast("Read[Folded[Accumulator]]", self.again), rows=found.second.applied(self.rows))
            second = replace(found.second, state=again(run).state)
            found = solve_moments(found.sums, settings, omitted=found.omitted, again=second)
        if found.negative_eigenvalue_:
            warn_approximation(
                "the covariance from pairs of columns has negative eigenvalues, as no covariance of complete rows has: "
                f"the smallest is {found.negative_eigenvalue_:.3g} (negative_eigenvalue_), the largest "
                f"{found.explained_variance_[0]:.3g}. Trust components whose variance is several times the size of "
                "the smallest. With more rows or fewer columns, it is smaller."
            )
        return found


@dataclass(frozen=True)
class Doubtful:
    """The sums of a read that leave too few digits, and the second read that finds them."""

    sums: Accumulator
    omitted: int
    second: Remainder


def _solve(state: PassState, *, settings: Settings, unsure: bool) -> Doubtful | PCAResult:
    """Solve in the task that holds the state."""
    sums = cast("Accumulator", state.parts["state"])
    if isinstance(sums, FoldStates):
        sums = sums.here()
    second = settings.adjustment.doubt(sums) if unsure else None
    if second is not None:
        return Doubtful(sums.here(), state.omitted, second)
    return solve_moments(sums, settings, omitted=state.omitted)
