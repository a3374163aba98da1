"""The choice of a solver of PCA: all applicable fits, compared by cost.

Parallel analysis by any solver: reads that find the edge of unrelated columns, and then the fit that it decides; and
blocks of columns: a fit of each, and then that of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from bigpca.arrays import Array, DType, Integers, Vector
from bigpca.csr import KEPT, Forms
from bigpca.engine.planning import PassCost, SolveCost
from bigpca.engine.run import Run
from bigpca.estimators.linear.covariance_fit import CovarianceFit
from bigpca.estimators.linear.dot_fit import DotFit
from bigpca.estimators.linear.em_fit import ProbabilisticFit, em_settings, filled_up
from bigpca.estimators.linear.krylov import KrylovFit
from bigpca.estimators.linear.maps import Standardization
from bigpca.estimators.linear.spectrum import PCAFit, PCAResult, Settings, check_enough_rows
from bigpca.estimators.shared.fit import Fit, choose, first_that_fits
from bigpca.forms import Values
from bigpca.passes.accumulators.base import column_scale
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.fold import Declared, Folded, Read, costs
from bigpca.passes.reading.row_maps import Affine, MapStep, NumberedMap, RowMap
from bigpca.passes.rows import Rows, check_dense
from bigpca.records import of_part
from bigpca.seeds import signs
from bigpca.solvers.components import NComponents, ParallelAnalysis, by_name, noise_edge, unknown_edge
from bigpca.solvers.scaling import Blocks

FLIPPED = "flipped"


@dataclass(frozen=True)
class SignFlip(NumberedMap):
    """Row map to centred and scaled rows with random signs: ``r_tj (x_tj - mean_j) / scale_j``, r_tj = -1 or 1.

    The signs depend only on seed, flip, and absolute row and column.

    Attributes
    ----------
    affine : Affine
    seed, flip : int
    """

    affine: Affine
    seed: int
    flip: int

    def apply_at(self, rows: Array, numbers: Integers, where: str) -> Array:
        """Return the rows with these numbers, which ascend."""
        mapped = self.affine.apply(rows, where)
        if len(numbers):
            first, stop = int(numbers[0]), int(numbers[-1]) + 1
            drawn = signs(self.seed, f"signflip-{self.flip}", first, stop, rows.shape[1], np.int8)
            np.multiply(mapped, drawn if len(drawn) == len(numbers) else drawn[numbers - first], out=mapped)
        return mapped

    def output_dtype(self, dtype: DType) -> DType:
        """That of the rows."""
        return dtype

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The mapped rows, and the signs as they are drawn."""
        return rows * d * (itemsize + 3), 0


def undecided(n_components: NComponents, *, variances: bool) -> ParallelAnalysis | None:
    """Return the rule if it is parallel analysis whose edge is not known; ``variances`` if those of columns will be."""
    rule = by_name(n_components)
    if not isinstance(rule, ParallelAnalysis) or rule.whole_spectrum_because is None:
        return None
    return None if variances and rule.null == "deterministic" else rule


def reject_undecided(n_components: NComponents, *, variances: bool) -> None:
    """Reject parallel analysis where no further read can find its edge.

    Raises
    ------
    ValueError
    """
    rule = undecided(n_components, variances=variances)
    if rule is not None:
        raise ValueError(unknown_edge(rule))


@dataclass(frozen=True)
class NullFit(Fit[PCAResult]):
    """The reads for the edge, and then a fit that keeps what is above it.

    Attributes
    ----------
    rule : ParallelAnalysis
    settings : Settings
        Of the fit.
    decided : callable
        Rule with its edge -> the fit, planned.
    null : Fit or None
        The fit of one component to flipped rows.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("rule", "main", "settings.center", "settings.scale")

    rule: ParallelAnalysis
    settings: Settings
    decided: Callable[[ParallelAnalysis], Fit[PCAResult]]
    null: Fit[PCAResult] | None

    @cached_property
    def main(self) -> Fit[PCAResult]:
        """The fit, for any edge."""
        return self.decided(self.rule.at(np.inf))

    solver = of_part("main", "solver")
    exact = of_part("main", "exact")
    least_price = of_part("main", "least_price")

    @property
    def account(self) -> str:
        before = "one read for the variances of the columns"
        if self.null is not None:
            before = f"{self.rule.n_flips} fits of one component to flipped rows ({self.null.solver})"
        return f"{before}, whose edge decides; {self.main.plan.reason}"

    notes = of_part("main", "notes")

    @cached_property
    def columns(self) -> Read[Folded[ColumnMoments]]:
        """The read for means and variances."""
        return Read.into(self.rows, "null columns", ColumnMoments(self.rows.n_columns))

    def passes(self) -> tuple[Declared, ...]:
        flipped: list[PassCost] = []
        for one in () if self.null is None else costs(self.null.passes()):
            flips = self.rule.n_flips
            again = one.repeated(one.times * flips, one.most_times * flips)
            flipped.append(replace(again, name=f"{FLIPPED} {one.name}"))
        return (self.columns, *flipped, *self.main.passes())

    def solve_cost(self) -> SolveCost:
        main = self.main.solve_cost()
        if self.null is None:
            return main
        null, flips = self.null.solve_cost(), self.rule.n_flips
        return replace(
            main,
            flops=main.flops + flips * null.flops,
            between=main.between + flips * null.between,
            bytes=max(main.bytes, null.bytes),
        )

    def run(self, run: Run) -> PCAResult:
        columns = self.columns(run).state  # one read of X
        settings, scale = self.settings, None
        if settings.scale:
            scale = column_scale(columns.squares, columns.mean, columns.count, settings.scale, columns.weight)
        # The edge of the noise: in theory that of independent columns with these variances, or a quantile of the
        # largest eigenvalues of the rows with random signs, whose columns are no longer correlated.
        if self.null is None:
            squares = columns.squares if settings.center else columns.squares + columns.weight * columns.mean**2
            variances = (squares if scale is None else squares / scale**2) / (columns.weight - 1)
            edge = noise_edge(variances, max(2, round(columns.weight)) - 1)
        else:
            mean = columns.mean if settings.center else np.zeros(self.rows.n_columns)
            affine = Affine(mean, None if scale is None else 1 / scale)
            largest = [self._largest(run, self.null, affine, flip) for flip in range(self.rule.n_flips)]
            edge = float(np.quantile(largest, self.rule.quantile))
        return self.decided(self.rule.at(edge)).run(run)

    def _largest(self, run: Run, null: Fit[PCAResult], affine: Affine, flip: int) -> float:
        """Return the largest eigenvalue of the flipped rows."""
        rows = flipped_rows(self.rows, SignFlip(affine, self.rule.random_state, flip))
        with run.within(FLIPPED):
            return float(replace(null, rows=rows).run(run).explained_variance_[0])


def flipped_rows(rows: Rows, flip: SignFlip) -> Rows:
    """Return the rows with flipped signs."""
    check_dense(rows, "flipping the signs of entries")
    return rows.mapped(MapStep(flip, rows.n_columns, 3 * rows.n_columns))


def null_fit(
    rule: ParallelAnalysis, rows: Rows, settings: Settings, decided: Callable[[ParallelAnalysis], Fit[PCAResult]]
) -> NullFit:
    """Plan the reads for the edge of a rule, by the cheapest fit of one component, before the fit that it decides."""
    null = None
    if rule.null == "signflip":
        flipped = flipped_rows(rows, SignFlip(Affine(np.zeros(rows.n_columns)), rule.random_state, 0))
        one = replace(settings, n_components=1, standardization=Standardization(center=False), keep_state_bytes=0)
        null = plan_fit(flipped, one, "auto")
    return NullFit(rows, rule, settings, decided, null)


@dataclass(frozen=True)
class ColumnsAt(RowMap):
    """Row map to some of the columns.

    Attributes
    ----------
    columns : ndarray of shape (m,), ascending
    """

    forms: ClassVar[Forms] = KEPT

    columns: Integers

    def apply(self, rows: Values, where: str) -> Values:
        """Return rows (b, m)."""
        return rows[:, self.columns]

    def output_dtype(self, dtype: DType) -> DType:
        """That of the rows."""
        return dtype

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The mapped rows."""
        return rows * len(self.columns) * itemsize, 0


@dataclass(frozen=True)
class BlockFit(Fit[PCAResult]):
    """A fit of one component to each block of columns, and then that of all blocks, divided by what these found.

    Attributes
    ----------
    settings : Settings
    blocks : Blocks
    divided : callable
        Divisors of the columns -> the fit, planned.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("blocks", "main", "settings.center")

    settings: Settings
    blocks: Blocks
    divided: Callable[[Vector], Fit[PCAResult]]

    @cached_property
    def main(self) -> Fit[PCAResult]:
        """The fit, for any divisors."""
        return self.divided(np.ones(self.rows.n_columns))

    @cached_property
    def parts(self) -> dict[str, Fit[PCAResult]]:
        """The fit of each block."""
        standardization = Standardization(self.settings.center, self.blocks.standardize)
        one = replace(self.settings, n_components=1, standardization=standardization, keep_state_bytes=0)
        return {
            f"block {name}": plan_fit(self.rows.mapped(MapStep(ColumnsAt(own), len(own))), one, self.main.solver)
            for name, own in self.blocks.columns.items()
        }

    solver = of_part("main", "solver")
    exact = of_part("main", "exact")
    least_price = of_part("main", "least_price")
    notes = of_part("main", "notes")

    @property
    def account(self) -> str:
        return f"a fit of one component to each of {len(self.parts)} blocks; {self.main.plan.reason}"

    def passes(self) -> tuple[Declared, ...]:
        named = [(name, one) for name, fit in self.parts.items() for one in costs(fit.passes())]
        return (*(replace(one, name=f"{name} {one.name}") for name, one in named), *self.main.passes())

    def solve_cost(self) -> SolveCost:
        main, parts = self.main.solve_cost(), [fit.solve_cost() for fit in self.parts.values()]
        return replace(
            main,
            flops=main.flops + sum(one.flops for one in parts),
            between=main.between + sum(one.between for one in parts),
            bytes=max(main.bytes, *(one.bytes for one in parts)),
        )

    def run(self, run: Run) -> PCAResult:
        scale = np.ones(self.rows.n_columns)
        for (name, fit), own in zip(self.parts.items(), self.blocks.columns.values(), strict=True):
            with run.within(name):
                found = fit.run(run)
            root = np.sqrt(found.explained_variance_[0]) or 1.0  # of a constant block
            scale[own] = root if found.scale_ is None else root * found.scale_
        return self.divided(scale).run(run)


def block_fit(rows: Rows, settings: Settings, solver: str, blocks: Blocks) -> BlockFit:
    """Plan a fit of each block before that of all."""
    standardization = settings.standardization

    def divided(scale: Vector) -> Fit[PCAResult]:
        affine = Affine(np.zeros(len(scale)), 1 / scale)
        given = affine if standardization.given is None else replace(standardization.given, inverse_scale=1 / scale)
        known = replace(settings, standardization=replace(standardization, scale=False, given=given))
        return plan_fit(rows.mapped(MapStep(affine, len(scale), len(scale))), known, solver)

    return BlockFit(rows, settings, blocks, divided)


FITS: dict[str, type[PCAFit]] = {fit.solver: fit for fit in (CovarianceFit, DotFit, KrylovFit)}  # a new solver: one row


def plan_fit(rows: Rows, settings: Settings, solver: str) -> Fit[PCAResult]:
    """Plan a fit without reading X.

    Raises
    ------
    ValueError
        For fewer than two rows.
    MemoryBudgetError
        With ``solver="auto"``, if no solver fits.
    """
    check_enough_rows(rows.n_present, sums=rows.counted.sums)
    if rows.with_gaps and rows.nan_policy == "em":
        begun = plan_fit(filled_up(rows), em_settings(rows, settings, solver), solver)
        return ProbabilisticFit(rows, settings, begun)
    if rows.with_gaps:
        if solver not in ("auto", CovarianceFit.solver):
            raise ValueError(
                f'solver = "{solver}" multiplies whole rows, but nan_policy="pairwise" divides each entry of the '
                'covariance by the share of the rows that have both columns. Use solver="covariance", or "auto", if '
                'd x d fits, or nan_policy="mean".'
            )
        reject_undecided(settings.n_components, variances=True)
        return CovarianceFit(rows, settings)
    rule, blocks = undecided(settings.n_components, variances=False), settings.scale
    if rule is not None and isinstance(blocks, Blocks):
        return block_fit(rows, settings, solver, blocks)
    if rule is not None:
        moments = CovarianceFit(rows, settings)  # its one read has the variances of the columns too
        one_read = rule.null == "deterministic"
        if one_read and (solver == CovarianceFit.solver or rows.order.once):
            return moments
        null = null_fit(
            rule, rows, settings, lambda known: plan_fit(rows, replace(settings, n_components=known), solver)
        )
        best = choose([moments], [null]) if one_read and solver == "auto" else null
        return null if best.solver != CovarianceFit.solver else best  # whose reason compares already

    def choices(kind: type[PCAFit]) -> Sequence[Fit[PCAResult]]:
        if kind is KrylovFit and isinstance(blocks, Blocks):  # whose products are of columns that are divided already
            return [block_fit(rows, settings, KrylovFit.solver, blocks)]
        return kind.choices(rows, settings)

    named = FITS.get(solver)
    if named is not None and not named.prefers_exact(rows, settings):
        return first_that_fits(choices(named))
    again = not (rows.order.once or rows.order.open_ended)  # as an iteration reads them
    known = [fit for fit in FITS.values() if fit is not named and (again or fit.exact)]
    return choose(*(choices(fit) for fit in known if fit.offered(rows, settings)))
