"""What covariates leave of the rows that they stand behind: of their sums, of a second read, and of each row.

Fits from moments have the covariates in their sums, ``[x, z]``, and take the effect out of these (:class:`Adjustment`).
For all other fits one more read finds it first, and their rows are those that it leaves (:class:`LearnedResiduals`).
Where the digits of one read are too few, either reads :class:`Remainder` once more. A model maps new rows as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from bigpca.arrays import STRIP, Array, Integers, Matrix, Vector, add_packed, packed_size, unpack
from bigpca.csr import Forms
from bigpca.engine.run import Run
from bigpca.errors import warn_approximation
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import whole_moments
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.accumulators.thin_products import DenseFactor, FusedProduct
from bigpca.passes.fold import Read
from bigpca.passes.reading.row_maps import EachSide, Float64Map, Learning, MapStep, RowMap, RowPreprocessor
from bigpca.passes.rows import Rows
from bigpca.passes.side_by_side import beside_covariates
from bigpca.passes.summaries import Lesson
from bigpca.records import stored
from bigpca.solvers.eigh import AGAIN, ENOUGH, EPS, FAINT, NOISE, ROUNDED, TOLD, rounded_squares, stored_squares

if TYPE_CHECKING:
    from bigpca.solvers.moments import Frame, Scatter

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

    def warn(self) -> None:
        """Report the rank of the covariates where some follow from others, and a remainder that rounding may change."""
        if self.rank < len(self.mean):
            warn_approximation(
                f"of {len(self.mean)} covariates, {self.rank} are linearly independent to rounding (beside a "
                "constant). What these explain was taken out, but their coefficients are not unique. Leave out those "
                "that follow from others, such as one of the indicators of groups."
            )
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


@dataclass(frozen=True)
class Adjustment:
    """How the linear effect of covariates, the last columns of sums, is taken out of the other columns.

    Attributes
    ----------
    covariates : int
        q of them; where there are none, sums are left as they are.
    roundings : tuple of float
        Relative rounding of the stored values, of rows (or of each of their columns) and of covariates.
    scales : bool
        Whether columns are divided by anything.
    alike : bool
        Whether each column counts alike in the error of what is left, although none is divided by anything.
    """

    covariates: int
    roundings: tuple[float, ...]
    scales: bool = False
    alike: bool = False

    def of(self, joint: Moments, again: Remainder | None = None) -> tuple[Moments, Regression | None]:
        """Return the moments of the residuals of the columns, and the regression; the same moments where q is 0.

        ``S_xx - S_xz S_zz^-1 S_zx``, with the inverse on the numerical range of S_zz; after a second read the same of
        what it left of x. What is left of a column that covariates determine is rounding, and becomes 0.

        Raises
        ------
        ValueError
            If the covariates determine every column, because they are as many as the rows.
        """
        if not (q := self.covariates):
            return joint, None
        from bigpca.solvers.moments import least_squares  # which other fits do not need

        summed = joint if again is None else whole_moments(cast("Accumulator", again.state))
        S, p, precision = unpack(summed.packed, summed.n_features), joint.n_features - q, max(summed.precision, EPS)
        z, across, B, squares = self._scatter(joint), S[:p, p:].T, None, joint.squares
        check_left(z.rank, joint.count)
        if again is None:
            across = z.frame.into(across)
        else:
            z, B = replace(z, S=S[p:, p:], frame=cast("Frame", again.frame)), again.coef.T
        coef, error = least_squares(z, across, 0.0, B)
        explained = z.solved().across(across)  # (rank, p), of uncorrelated covariates
        S, total = S[:p, :p].copy(), np.diagonal(S)[:p].copy()
        for i in range(0, p, STRIP):
            S[i : i + STRIP, i:] -= explained[:, i : i + STRIP].T @ explained[:, i:]
        # The difference of two sums of the size of the total is known to its rounding, and rows to that of centring.
        lost, noise = ROUNDED * np.sqrt(p + q) * precision * total, rounded_squares(squares, joint.mean, joint.weight)
        noise, left = noise[:p] + noise[p:] @ coef**2, np.diagonal(S).copy()
        roundings = np.append(np.broadcast_to(self.roundings[:-1], p), np.full(q, self.roundings[-1]))
        stored = stored_squares(squares, joint.mean, joint.weight, roundings)
        coarse = np.where(left > np.maximum(lost, NOISE * noise), stored[:p] + stored[p:] @ coef**2, 0.0)
        if self.scales:  # columns that are divided by what is left of them would be rounding of their stored values
            noise = np.maximum(noise, stored[:p])
        rounded = left <= np.maximum(lost, NOISE * noise)
        S[rounded], S[:, rounded] = 0.0, 0.0
        # Of each column where they are divided by their deviations, else of their sum.
        left, known, share = np.maximum(left, lost), np.maximum(np.maximum(left, lost), FAINT * NOISE * noise), 0.0
        if (total > 0).any():
            parts = np.stack([lost, known, coarse, left])[:, total > 0]
            lost, known, coarse, left = parts if self.scales or self.alike else parts.sum(axis=1, keepdims=True)
            error, share = max(error, float((lost / known).max())), float((coarse / left).max())
        packed, found = np.zeros(packed_size(p)), None if joint.lost is None else joint.lost[:p]
        add_packed(packed, S)
        residual = replace(joint, n_features=p, mean=joint.mean[:p], packed=packed, precision=precision, lost=found)
        return residual, Regression(coef.T.copy(), joint.mean[p:], z.rank, error, share)

    def doubt(self, state: Accumulator) -> Remainder | None:
        """Return a second read of what covariates leave of rows, by the sums of the first; None where these suffice."""
        joint = whole_moments(state)
        _, known = self.of(joint)
        if known is None or known.error <= AGAIN:
            return None
        return Remainder(joint.mean, known.coef, self._scatter(joint).refined())

    def planned(self, rows: Rows) -> Rows | None:
        """Return rows as that read sums them, to plan it; None if they come only once, or have no covariates."""
        if not self.covariates or rows.order.once or rows.order.open_ended:
            return None
        d, q = rows.n_columns - self.covariates, self.covariates
        return Remainder(np.zeros(d + q), np.broadcast_to(0.0, (d, q))).applied(rows)

    def _scatter(self, joint: Moments) -> Scatter:
        """Return the scatter of the covariates."""
        from bigpca.solvers.moments import Scatter

        own = slice(joint.n_features - self.covariates, None)
        noise = rounded_squares(joint.squares[own], joint.mean[own], joint.weight)
        S = unpack(joint.packed, joint.n_features)[own, own]
        return Scatter.of(S, noise, max(joint.precision, EPS), joint.count - 1)


def taken_out(joint: Moments, known: Regression | None) -> Moments:
    """Return moments of rows without the effect of covariates that is known from others, if any is."""
    if known is None:
        return joint
    d = len(known.coef)
    mean = joint.mean[:d] - known.coef @ (joint.mean[d:] - known.mean)
    return replace(joint.times(np.hstack([np.eye(d), -known.coef]).T), mean=mean)


class OfCovariates(Float64Map, RowPreprocessor):
    """A map of rows beside their covariates. What is left may be small beside the rows: in float64."""

    forms: ClassVar[Forms] = {}  # a product of covariates fills sparse rows, which come in dense strips


@dataclass(frozen=True)
class Remainder(OfCovariates):
    """Rows as they are read again where one read leaves too few digits, and their sums: what covariates leave of x.

    ``x - mean_x - coef (z - mean_z)`` and, behind it, ``T'(z - mean_z)``, whose scatter is near the identity.

    Attributes
    ----------
    mean : ndarray of shape (d + q,)
    coef : ndarray of shape (d, q)
        As one read knows it; what is left of the effect is small, and known to its own digits.
    frame : Frame
        T; None in plans.
    state : Accumulator or None
        Once it is read.
    """

    mean: Vector
    coef: Matrix
    frame: Frame | None = None
    state: Accumulator | None = None

    def apply_at(self, rows: Array, numbers: Integers, where: str) -> Array:
        """Return (b, d + q)."""
        found = np.subtract(rows, self.mean, dtype=np.float64)
        left, z = np.split(found, [len(self.coef)], axis=1)
        left -= z @ self.coef.T
        z[...] = z @ cast("Frame", self.frame).T
        return found

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The centred rows, and the effect, in float64."""
        return 16 * rows * d, 0

    def applied(self, rows: Rows) -> Rows:
        """Return the rows of the second read, from those of the first."""
        return rows.mapped(MapStep(self, rows.n_columns, 2 * self.coef.size))


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
class Residuals(OfCovariates):
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

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The effect, what is left, and what is rounding of both, in float64."""
        return 56 * rows * d, 0


@dataclass(eq=False)
class LearnedResiduals(Learning):
    """Residuals whose coefficients one read of rows beside their covariates finds: their products with the latter.

    Where that leaves too few digits, a second read finds them as in fits from moments.
    """

    found: Residuals
    second: Learning | None = None

    def lessons(self, rows: Rows) -> Sequence[Lesson]:  # type: ignore[override]
        """Return both reads."""
        d, q = rows.widths
        products = {"products": FusedProduct.of(d + q, DenseFactor(np.eye(d + q, q, -d)))}
        self.second = Learning(Remainder(np.zeros(d + q), np.broadcast_to(0.0, (d, q))))
        again = rows.mapped(MapStep(self.second, d + q, 2 * d * q))
        effect = f"effect of {q} covariates"
        return (
            Lesson(self, rows, effect, products, _regressed, about_zero=False),
            SecondLesson(self, again, f"rest of the {effect}, if digits lack", products, _regressed, about_zero=False),
        )


@dataclass(frozen=True)
class SecondLesson(Lesson):
    """A read of what the first one left, which is made where that left too few digits."""

    @cached_property
    def read(self) -> Read[dict[str, Accumulator]]:
        """The read."""
        return super().read.repeated(0, 1)

    def learn(self, run: Run) -> None:
        """Read, if necessary."""
        if _remainder_of(self.of).frame is not None:
            super().learn(run)


def _remainder_of(of: Learning) -> Remainder:
    return cast("Remainder", cast("Learning", cast("LearnedResiduals", of).second).found)


def _regressed(of: Learning, states: Mapping[str, Accumulator]) -> RowPreprocessor:
    from bigpca.solvers.moments import Scatter, least_squares  # which other fits do not need

    products, known, mean = cast("FusedProduct", states["products"]), _remainder_of(of), None
    S, q, precision = products.centred(), products.n_columns, max(products.precision, EPS)
    S_zz, across = (S[-q:] + S[-q:].T) / 2, S[:-q].T
    if known.frame is None:
        mean = products.mean
        noise = rounded_squares(products.centred_squares()[-q:], mean[-q:], products.weight)
        z = Scatter.of(S_zz, noise, precision, products.count - 1)
        coef, error = least_squares(z, z.frame.into(across), 0.0)
    else:
        mean, z = known.mean, Scatter(S_zz, known.frame, precision, products.count - 1)
        coef, error = least_squares(z, across, 0.0, known.coef.T)
    check_left(z.rank, products.count)
    found = Regression(coef.T.copy(), mean[-q:], z.rank, error)
    if known.frame is None and error > AGAIN:
        cast("Learning", cast("LearnedResiduals", of).second).found = Remainder(mean, found.coef, z.refined())
    else:
        found.warn()
    return Residuals(cast("Residuals", of.found).keeps_mean, found.coef, mean, z.rank)


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
