"""What covariates leave of the rows that they stand behind: a learned row map, and the regression behind it.

Fits from moments take the effect out of their sums, and a model maps new rows as any other. For all other fits one more
read finds it first, and their rows are those that it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from bigpca.arrays import Array, DType, Integers, Matrix, Vector
from bigpca.errors import warn_approximation
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.thin_products import DenseFactor, FusedProduct
from bigpca.passes.reading.row_maps import EachSide, Learning, MapStep, RowMap, RowPreprocessor
from bigpca.passes.rows import Rows
from bigpca.passes.side_by_side import beside_covariates
from bigpca.passes.summaries import Lesson
from bigpca.records import stored
from bigpca.solvers.eigh import ENOUGH, EPS, TOLD, rounded_squares

FLOPS_PER_VALUE = 4  # of preprocessing
# Of an effect, up to which what is left counts as rounding: a sum of q products with coefficients that are rounded too.
# Of a value itself two units: its mean, which may be large, is subtracted once.
LOST = 64 * EPS


@dataclass(frozen=True)
class Regression:
    """The linear effect of covariates on the columns: ``coef (z - mean)``.

    Attributes
    ----------
    coef : ndarray of shape (d, q)
        Of least norm in units of the deviations, where covariates are linearly dependent.
    mean : ndarray of shape (q,)
    rank : int
        Number of covariates that are linearly independent.
    error : float
        Estimated relative error of the variance that is left, by the rounding of what was taken out.
    coarse : float
        Largest share of what is left that the rounding of the stored values may be.
    """

    coef: Matrix = stored("d", "q")
    mean: Vector = stored("q")
    rank: int = stored(of=int, least=0)
    error: float = stored(of=float, least=0, default=0.0)
    coarse: float = stored(of=float, least=0, default=0.0)

    def residuals(self, own: slice[int | None, int | None, None]) -> Residuals:
        """Return what takes it out of some of the columns."""
        coef = self.coef[own]
        return Residuals(coef=coef, mean=np.concatenate([np.zeros(len(coef)), self.mean]), rank=self.rank)

    def warn_if_dependent(self, *, once: bool = False) -> None:
        """Report the rank of the covariates where some follow from others, to the digits of ``once`` read rows."""
        if self.rank < len(self.mean):
            digits, which = (" to the digits of one read", "these") if once else ("", "all of them")
            warn_approximation(
                f"of {len(self.mean)} covariates, {self.rank} are linearly independent (beside a constant){digits}. "
                f"What {which} explain was taken out, but their coefficients are not unique. Leave out those that "
                "follow from others, such as one of the indicators of groups."
            )

    def warn_if_rounded(self) -> None:
        """Report a remainder that rounding may change."""
        if self.error > ENOUGH:
            warn_approximation(
                "the covariates explain so nearly everything, or are so nearly dependent, that rounding may change "
                f"what is left by {self.error:.1g} of its size (solve_error_). Leave out columns that covariates "
                "determine, and covariates that follow from others, or fit all rows at once."
            )
        elif self.coarse > TOLD:  # not an error of the solve, whose result is that of the stored values
            warn_approximation(
                "the covariates explain so nearly everything that the rounding of the stored values is "
                f"{min(self.coarse, 1.0):.1g} of the variance that is left. The result is that of the stored values. "
                "Store float64, deviations from a constant, or leave out columns that covariates determine."
            )


def rank_of(maps: Sequence[RowPreprocessor]) -> int:
    """Return the rank of the covariates whose effect the maps take out."""
    return sum(one.rank for one in maps if isinstance(one, Residuals))


def check_effect(maps: Sequence[RowPreprocessor], d: int) -> None:
    """Check that maps take the effect of covariates out of d columns, if of any; raises ValueError."""
    for one in maps:
        if isinstance(one, Residuals):
            coef, mean = np.asarray(one.coef, np.float64), np.asarray(one.mean, np.float64)
            if coef.ndim != 2 or len(coef) != d or mean.shape != (sum(coef.shape),):
                raise ValueError(
                    f"it has an effect of covariates of shape {coef.shape}, mean {mean.shape}, not {d} rows"
                )


def check_left(rank: int, n: int) -> None:
    """Reject covariates of a rank by which they determine whatever n rows are."""
    if rank >= n - 1:
        raise ValueError(
            f"{rank:,} covariates determine all columns of {n:,} rows: nothing of X is left. Give more rows or fewer "
            "covariates. With folds, the rows of all other folds count."
        )


@dataclass(frozen=True, eq=False)
class Residuals(RowPreprocessor):
    """What covariates leave of the rows that they stand behind: ``x - mean_x - coef (z - mean_z)``.

    Attributes
    ----------
    keeps_mean : bool
        Whether the mean of x is added again, for models that subtract it themselves and report it.
    coef : ndarray of shape (d, q), or None
    mean : ndarray of shape (d + q,), or None
        None for what a read of the fit finds.
    rank : int
        Of the covariates: so many rows count less.
    """

    found_by_fit: ClassVar[tuple[str, ...]] = ("coef", "mean")

    keeps_mean: bool = False
    coef: Matrix | None = field(default=None, repr=False)
    mean: Vector | None = field(default=None, repr=False)
    rank: int = 0

    @property
    def covariates(self) -> int:
        """q."""
        return 0 if self.coef is None else int(self.coef.shape[1])

    def __eq__(self, other: object) -> bool:
        return type(other) is Residuals and self.describe() == other.describe()

    __hash__ = None  # type: ignore[assignment]  # of arrays

    def apply_at(self, rows: Array, numbers: Integers, where: str) -> Array:
        """Return (b, d) of rows (b, d + q)."""
        self.check_known()
        coef, mean = cast("Matrix", self.coef), cast("Vector", self.mean)
        d = len(coef)
        with np.errstate(invalid="ignore", over="ignore"):
            effect = (rows[:, d:] - mean[d:]) @ coef.T
            left: Array = rows[:, :d] - mean[:d] - effect
            # Where covariates determine a value, the difference is rounding, which no scale may make a signal.
            left[np.abs(left) <= np.maximum(LOST * np.abs(effect), 2 * EPS * np.abs(rows[:, :d]))] = 0
            if self.keeps_mean:
                left += mean[:d]
        return left

    def output_dtype(self, dtype: DType) -> DType:
        """Return float64: what is left may be small beside the rows."""
        return np.dtype(np.float64)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The effect, what is left, and what is rounding of both, in float64."""
        return 56 * rows * d, 0


@dataclass(eq=False)
class LearnedResiduals(Learning):
    """Residuals whose coefficients one read of rows beside their covariates finds: their products with the latter."""

    found: Residuals

    def lessons(self, rows: Rows) -> Sequence[Lesson]:  # type: ignore[override]
        """Return that read."""
        d, q = rows.widths
        template = FusedProduct.of(d + q, DenseFactor(np.eye(d + q, q, -d)))
        return (Lesson(self, rows, f"effect of {q} covariates", {"products": template}, _regressed, about_zero=False),)


def _regressed(of: Learning, states: Mapping[str, Accumulator]) -> RowPreprocessor:
    from bigpca.solvers.moments import Scatter, least_squares  # which other fits do not need

    products, given = cast("FusedProduct", states["products"]), cast("Residuals", of.found)
    S, mean, q = products.centred(), products.mean, products.n_columns
    noise = rounded_squares(products.centred_squares()[-q:], mean[-q:], products.weight)
    z = Scatter.of((S[-q:] + S[-q:].T) / 2, noise, max(products.precision, EPS), products.count - 1)
    coef, error = least_squares(z, z.frame.into(S[:-q].T), 0.0)
    check_left(z.rank, products.count)
    found = Regression(coef.T.copy(), mean[-q:], z.rank, error)
    found.warn_if_dependent(once=True)
    if z.rank == q:  # else directions that are cut seem unknown
        found.warn_if_rounded()
    return Residuals(given.keeps_mean, found.coef, mean, z.rank)


def steps_beside(maps: Sequence[RowPreprocessor], rows: Rows) -> tuple[Rows, tuple[MapStep, ...]]:
    """Return the steps that apply maps to rows, and these: beside their covariates, if the last map takes them out.

    Other maps leave the covariates behind X as they are.
    """
    last = [one for one in maps[-1:] if isinstance(one.settled, Residuals)]
    own: Sequence[RowMap] = maps[: len(maps) - len(last)]
    rows = beside_covariates(rows) if last else rows
    width, d = rows.viewed_columns, (rows.widths or (0,))[0]
    if own and rows.widths:
        own = [EachSide((tuple(maps[: len(own)]), ()), rows.widths)]
    steps = [MapStep(one, width, FLOPS_PER_VALUE * width) for one in own]
    return rows, (*steps, *(MapStep(one, d, 2 * d * (width - d)) for one in last))
