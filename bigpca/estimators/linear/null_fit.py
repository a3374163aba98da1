"""Parallel analysis by any solver: reads that find the edge of unrelated columns, and then the fit that it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType
from bigpca.costs import PassCost, SolveCost, Times
from bigpca.estimators.linear.spectrum import PCAFit, Settings, Spectrum
from bigpca.estimators.linear.standardization import Standardization
from bigpca.estimators.shared.fit import Fit
from bigpca.passes.accumulators.column_statistics import column_scale
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.reading.row_maps import Affine, MapStep, NumberedMap
from bigpca.passes.row_checks import check_dense
from bigpca.passes.rows import RowInput
from bigpca.seeds import signs
from bigpca.solvers.components import NComponents, by_name
from bigpca.solvers.parallel_analysis import ParallelAnalysis, noise_edge, unknown_edge
from bigpca.solvers.scaling import scale_identity

Vector = NDArray[np.float64]
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

    def apply_at(self, rows: Array, numbers: NDArray[np.int64], where: str) -> Array:
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

    def describe(self) -> dict[str, object]:
        """What identifies rows and signs."""
        return {"map": "signflip", "affine": self.affine.describe(), "seed": self.seed, "flip": self.flip}


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
class NullFit(Fit[Spectrum]):
    """The reads for the edge, and then a fit that keeps what is above it.

    Attributes
    ----------
    rule : ParallelAnalysis
    settings : Settings
        Of the fit.
    decided : callable
        Rule with its edge -> the fit, planned.
    null : PCAFit or None
        The fit of one component to flipped rows.
    """

    rule: ParallelAnalysis
    settings: Settings
    decided: Callable[[ParallelAnalysis], Fit[Spectrum]]
    null: PCAFit | None

    @cached_property
    def main(self) -> Fit[Spectrum]:
        """The fit, for any edge."""
        return self.decided(self.rule.at(np.inf))

    @property
    def solver(self) -> str:
        return self.main.solver

    @property
    def account(self) -> str:
        before = "one read for the variances of the columns"
        if self.null is not None:
            before = f"{self.rule.n_flips} fits of one component to flipped rows ({self.null.solver})"
        return f"{before}, whose edge decides; {self.main.reason}"

    @property
    def notes(self) -> tuple[str, ...]:
        return self.main.notes

    @cached_property
    def columns(self) -> PassPlan:
        """The read for means and variances."""
        template = ColumnMoments(self.rows.n_columns)
        work = self.rows.dense_work(template)
        return row_pass(self.rows, "null columns", [template], cut_bytes=template.state_bytes, work=work)

    def passes(self) -> tuple[PassCost, ...]:
        flipped: list[PassCost] = []
        for one in () if self.null is None else self.null.passes():
            times = Times(one.times.typical * self.rule.n_flips, one.times.most * self.rule.n_flips)
            flipped.append(replace(one.repeated(times), name=f"{FLIPPED} {one.name}"))
        return (self.columns, *flipped, *self.main.passes())

    def solve_cost(self) -> SolveCost:
        main = self.main.solve_cost()
        if self.null is None:
            return main
        null, flips = self.null.solve_cost(), self.rule.n_flips
        return replace(
            main, flops=main.flops + flips * null.flops, between=main.between + flips * null.between,
            bytes=max(main.bytes, null.bytes),
        )  # fmt: skip

    def identity(self) -> dict[str, object]:
        settings = self.settings
        return {
            "computes": "parallel analysis", "rule": repr(self.rule), "center": settings.center,
            "scale": scale_identity(settings.scale), "fit": self.main.identity(),
        }  # fmt: skip

    def run(self, run: Run) -> Spectrum:
        columns = fold(run, self.columns, self.rows, ColumnMoments(self.rows.n_columns)).state  # one read of X
        settings, scale = self.settings, None
        if settings.scale:
            scale = column_scale(columns.squares, columns.mean, columns.count, settings.scale, columns.weight)
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

    def _largest(self, run: Run, null: PCAFit, affine: Affine, flip: int) -> float:
        """Return the largest eigenvalue of the flipped rows."""
        rows = flipped_rows(self.rows, SignFlip(affine, self.rule.seed, flip))
        with run.within(FLIPPED):
            return float(replace(null, rows=rows).run(run).variances[0])


def flipped_rows(rows: RowInput, flip: SignFlip) -> RowInput:
    """Return the rows with flipped signs."""
    check_dense(rows, "flipping the signs of entries")
    return rows.mapped(MapStep(flip, rows.n_columns, 3 * rows.n_columns))


def null_fit(
    rule: ParallelAnalysis, rows: RowInput, settings: Settings, decided: Callable[[ParallelAnalysis], Fit[Spectrum]],
    choose_null: Callable[[RowInput, Settings], PCAFit],
) -> NullFit:  # fmt: skip
    """Plan the reads for the edge of a rule before the fit that it decides.

    Parameters
    ----------
    choose_null : callable
        Rows and settings of one component -> the cheapest fit.
    """
    null = None
    if rule.null == "signflip":
        flipped = flipped_rows(rows, SignFlip(Affine(np.zeros(rows.n_columns)), rule.seed, 0))
        one = replace(settings, n_components=1, standardization=Standardization(center=False), keep_state_bytes=0)
        null = choose_null(flipped, one)
    return NullFit(rows, decided(rule.at(np.inf)).resources, rule, settings, decided, null)
