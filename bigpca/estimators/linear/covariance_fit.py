"""PCA by the covariance matrix: one pass of moments, one d x d eigenproblem (tutorial, algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

from bigpca.costs import BlockForm, PassCost, SolveCost
from bigpca.estimators.linear.files import linear_bytes
from bigpca.estimators.linear.spectrum import PCAFit, Settings, Spectrum, solve_moments
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import Folded, fold, fold_to, row_pass
from bigpca.triangles import packed_size


@dataclass(frozen=True)
class CovarianceFit(PCAFit):
    """One read, n d^2 flops for the symmetric product, about 4/3 d^3 for the solve.

    Attributes
    ----------
    before : int or None
        Rows to which these are added (``partial_fit``); None for a fit of its own. Blocks are multiplied in the
        precision of one pass over all of these rows. Few rows in memory form one group, because the states of several
        groups would cost more than the rows.
    """

    solver: ClassVar[str] = "covariance"

    before: int | None = None

    @property
    def account(self) -> str:
        return f"one read and a {self.rows.n_columns} x {self.rows.n_columns} matrix"

    @property
    def template(self) -> Moments:
        """The state of the pass."""
        return Moments(self.rows.n_columns)

    @cached_property
    def moments(self) -> PassPlan:
        """The pass."""
        rows, template, layout = self.rows, self.template, None
        if self.before is not None:
            layout = rows.layout(template.state_bytes)
            if rows.in_memory and layout.n_rows * layout.row_bytes <= 2 * template.state_bytes:
                layout = replace(layout, groups=(range(len(layout.reads)),), segments=(range(1),))
        work = float(rows.n_rows + (self.before or 0)) * template.cost(BlockForm(rows.n_columns)).flops
        return row_pass(rows, "moments", [template], cut_bytes=template.state_bytes, work=work, layout=layout)

    def passes(self) -> tuple[PassCost, ...]:
        return (self.moments,)

    def solve_cost(self) -> SolveCost:
        n, d = self.rows.n_present, self.rows.n_columns
        k = self.settings.wanted(n, d)
        kept = self.template.state_bytes <= self.settings.keep_state_bytes
        state = 8 * (1 + d + packed_size(d)) if kept else 0
        output = linear_bytes(k, d, scaled=self.settings.scales, state=state)
        return SolveCost(4 / 3 * d**3 + 2.0 * d * d * k, output_bytes=output)

    def identity(self) -> dict[str, object]:
        """The moments depend on the input alone, so one checkpoint serves any n_components, scale and centring."""
        return {"computes": "moments", "input": self.rows.describe()}

    def read(self, run: Run) -> Folded[Moments]:
        """Return the moments of X."""
        return fold(run, self.moments, self.rows, self.template)  # one pass over X

    def run(self, run: Run) -> Spectrum:
        solve: Callable[[PassState], Spectrum] = partial(_solve, settings=self.settings)
        return fold_to(run, self.moments, self.rows, {"moments": self.template}, solve)  # one pass over X


def _solve(state: PassState, *, settings: Settings) -> Spectrum:
    """Solve in the task that holds the state."""
    return solve_moments(state.part("moments", Moments), settings, omitted=state.omitted)
