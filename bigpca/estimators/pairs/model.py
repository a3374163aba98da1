"""The base of estimators of two sides: their read, added and merged rows, scores of both sides, predictions, files."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Tags, TargetTags
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, Input, Matrix, Path, Vector, unpack
from bigpca.blas import blas_threads
from bigpca.data.batches import has_batches
from bigpca.data.grids import Grid, grid_from_stored, grid_to_stored
from bigpca.data.views import View
from bigpca.engine.driver import solving
from bigpca.engine.events import ProgressArgument
from bigpca.errors import positive_integer
from bigpca.estimators.linear.maps import (
    Projection,
    Reconstruction,
    SecondRead,
    projected,
    scale_vector,
)
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.linear.sums import SumsModel
from bigpca.estimators.shared.exporting import Inverts
from bigpca.estimators.shared.files import OF_VALUES
from bigpca.estimators.shared.growing import check_same_steps, kept_by
from bigpca.estimators.shared.inputs import Lazy, Unchecked, open_scores, policies, settle_non_finite
from bigpca.estimators.shared.labelled import (
    common_grid,
    common_view,
    dataset_of,
    grid_of_columns,
    labelled_rows,
    labels_for,
    on_fitted_grid,
    open_side,
    without_absent_columns,
)
from bigpca.estimators.shared.opening import (
    opened,
    placed_in_folds,
    preprocessors_of,
    read_once,
    reject_groups,
)
from bigpca.estimators.shared.outputs import (
    Destination,
    mapped,
    mapped_back,
    maps_rows,
)
from bigpca.estimators.shared.results import KeptRows, RowCounts, checked_count
from bigpca.estimators.shared.transformer import of_all
from bigpca.parameters import Parameter
from bigpca.passes.accumulators.base import Accumulator, column_scale
from bigpca.passes.accumulators.folds import FoldStates, check_folds, whole_moments
from bigpca.passes.accumulators.moments import ColumnMoments, Moments
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.reading.row_maps import (
    EachSide,
    Float64Map,
    MapStep,
    Preprocess,
    RowPreprocessor,
    preprocessors,
)
from bigpca.passes.residuals import FLOPS_PER_VALUE, Adjustment, Regression, Remainder
from bigpca.passes.rows import Rows
from bigpca.passes.side_by_side import beside_covariates, blocks_of_batches, check_paired, side_by_side
from bigpca.records import Coding, of_part, stored
from bigpca.solvers.components import check_total
from bigpca.solvers.eigh import EPS, NOISE, rounded_squares, stored_squares
from bigpca.solvers.moments import Frame, Scatter, warn_dependent, warn_stored
from bigpca.solvers.pairs import Columns
from bigpca.solvers.scaling import CosLatitude

SCALED = {"scale": Parameter()}  # which is something else in models of one side
SideScale: TypeAlias = bool | CosLatitude | tuple[bool | CosLatitude | ArrayLike, bool | CosLatitude | ArrayLike]
Divisors: TypeAlias = tuple[bool | Vector, bool | Vector]

if TYPE_CHECKING:
    import xarray as xr


def open_pair(rows: Rows, Y: Unchecked, owner: str) -> Rows:
    """Return opened rows of X with those of Y side by side, and covariates behind them.

    Y of None stands for the second arrays of batches.

    Raises
    ------
    ValueError
        If there is no Y, for batches of a different number of arrays, and as
        :func:`bigpca.passes.side_by_side.side_by_side`.
    """
    batches = Y is None and rows.origin.arrays is not None and has_batches(rows.X)
    if batches and (joined := blocks_of_batches(rows)) is not None:
        if len(joined.widths) != 2:
            raise ValueError(f"the batches have {len(joined.widths)} blocks; pairs (X, Y) were expected.")
        return joined if rows.covariates is None else beside_covariates(rows)  # which raises
    if Y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None. Give Y of shape (n, q).")
    more = [] if rows.covariates is None else [rows.covariates]
    return side_by_side([replace(rows, covariates=None), open_side(Y, owner, "Y"), *more], "XYZ"[: 2 + len(more)])


@dataclass(frozen=True)
class Effects(Regression):
    """The linear effect of r covariates on the columns of both sides."""

    coef: Matrix = stored("p + q", "r")
    mean: Vector = stored("r")


@dataclass(frozen=True)
class JointMoments:
    """Moments of both sides as the solves take them.

    Attributes
    ----------
    moments : Moments
        Of the first read.
    p : int
        Columns of X.
    scale : tuple of two, bool or ndarray of shape (p,), (q,)
        Of both sides: whether columns are divided by their standard deviations (divisor n - 1), those that are constant
        by 1; or given divisors.
    roundings : tuple of float
        Relative rounding of the stored values of both sides, and of covariates.
    second : SecondRead or None
        The second read, if there was one.
    again : Moments or None
        Of the second read.
    centred : bool
        Whether the scatter is about the means; else it is about 0.
    lost : ndarray of shape (p + q,), or 0.0
        Sums of squares of the first read up to it are rounding of those of more rows.
    regression : Effects or None
        Of both sides on covariates, whose effect the moments are without.
    explained : ndarray of shape (p + q,), or 0.0
        Sums of squares of that effect.
    """

    moments: Moments
    p: int
    scale: Divisors
    roundings: tuple[float, ...]
    second: SecondRead | None = None
    again: Moments | None = None
    centred: bool = True
    lost: Vector | float = 0.0
    regression: Effects | None = None
    explained: Vector | float = 0.0

    def error(self, of: float) -> float:
        """Return the estimated error of a solution, which is not below that of the effect that was taken out."""
        return float(max(of, 0.0 if self.regression is None else self.regression.error))

    def without(self, covariates: int, again: Remainder | None = None) -> JointMoments:
        """Return the same of what so many of the last columns leave of the others."""
        whole = self.moments
        widths = self.p, whole.n_features - covariates - self.p
        moments, found = _adjustment(covariates, self.roundings, widths, scale=self.scale).of(whole, again)
        if found is None:
            return self
        last = whole if again is None else whole_moments(cast("Accumulator", again.state))
        before, summed = (one.squares[:-covariates] for one in (whole, last))
        left = moments.squares
        # The difference of two sums of the size of the total is known to its rounding.
        share = np.divide(summed, left, out=np.ones(len(left)), where=left > 0)
        precision = max(moments.precision, EPS) * float(share.max(initial=1.0))
        effects = Effects(found.coef, found.mean, found.rank, found.error, found.coarse)
        moments = replace(moments, precision=precision)
        return replace(self, moments=moments, explained=before - left, regression=effects)

    @property
    def freedom(self) -> float:
        """Sum of the weights less 1."""
        return self.moments.weight - 1

    @property
    def mean(self) -> Vector:
        """What is subtracted from all columns (p + q,)."""
        return self.moments.mean * self.centred

    @property
    def summed_mean(self) -> Vector:
        """The same of the rows of the last read."""
        return self.summed.mean * self.centred

    @property
    def summed(self) -> Moments:
        """Moments of the last read, in the coordinates that it had."""
        return self.moments if self.again is None else self.again

    def of(self, summed: Moments) -> JointMoments:
        """Return the same of some rows of the last read, which were summed about the shift of all."""
        if self.again is not None:
            return replace(self, again=summed)
        own = replace(self, moments=summed).without(0 if self.regression is None else len(self.regression.mean))
        return replace(own, lost=NOISE * max(own.moments.precision, EPS) * np.diagonal(self.scatter))

    @cached_property
    def scatter(self) -> Matrix:
        """The scatter (p + q, p + q) of the last read; 0 of columns that vary by no more than their rounding."""
        S = unpack(self.summed.packed, self.summed.n_features)
        if not self.centred:  # sum_t x_t x_t' = S + n m m'
            S += self.summed.weight * np.outer(self.summed.mean, self.summed.mean)
        if self.again is None:
            constant = np.diagonal(S) <= np.maximum(NOISE * self._rounded, self.lost)
            S[constant], S[:, constant] = 0.0, 0.0
        return S

    @property
    def _rounded(self) -> Vector:
        """What rounding of centred rows adds to the sums of squares (p + q,)."""
        moments = self.moments
        return rounded_squares(moments.squares + self.explained, moments.mean, moments.weight)

    @property
    def stored(self) -> Vector:
        """What rounding of the stored values adds to the sums of squares (p + q,)."""
        moments, widths = self.moments, (self.p, self.moments.n_features - self.p)
        squares, roundings = moments.squares + self.explained, np.repeat(self.roundings[:2], widths)
        return stored_squares(squares, moments.mean, moments.weight, roundings)

    def _side(self, own: Columns, frame: Frame | None) -> Scatter:
        moments, S, n = self.summed, self.scatter[own, own], self.summed.count - self.centred
        n -= 0 if self.regression is None else self.regression.rank
        precision = max(moments.precision, EPS)
        return Scatter.of(S, self._rounded[own], precision, n) if frame is None else Scatter(S, frame, precision, n)

    @cached_property
    def x(self) -> Scatter:
        """The scatter of X."""
        return self._side(slice(0, self.p), None if self.second is None else self.second.frame)

    @cached_property
    def y(self) -> Scatter:
        """The scatter of Y."""
        own = slice(self.p, self.moments.n_features)
        return self._side(own, None if self.second is None else self.second.other)

    @property
    def cross(self) -> Matrix:
        """The scatter between the coordinates of X and the columns of the last read (p, q)."""
        S = self.scatter[: self.p, self.p :]
        return S if self.second is not None else self.x.frame.into(S)

    def deviating(self, W: Matrix) -> Matrix:
        """Return d (p, q): predictions by W differ by d'z from those that the last read subtracted from y."""
        # x - mean = R z, so (W - B)'(x - mean) = (R'(W - B))'z.
        second = self.second
        return W if second is None else second.frame.R.T @ (W if second.B is None else W - second.B)

    def checked(self, omitted: int) -> JointMoments:
        """Return the same, once there are two rows and no side is constant.

        Raises
        ------
        ValueError
        """
        check_enough_rows(self.moments.count, omitted, sums=self.moments.weight_sums)
        S = self.moments.squares
        S = S if self.centred else S + self.moments.weight * self.moments.mean**2
        check_total(float(S.sum()))
        for name, part in (("X", S[: self.p]), ("Y", S[self.p :])):
            check_total(float(part.max(initial=0.0)))
            if not (part > 0).any() and self.regression is not None:
                raise ValueError(
                    f"the covariates determine {name}, or it is constant: nothing of it is left. Leave out covariates "
                    f"that follow from {name}."
                )
            if not (part > 0).any():
                raise ValueError(
                    f"{name} is constant in all {self.moments.count} rows, or varies by less than 1e-162, whose "
                    "squares are 0 in float64: nothing varies with it."
                )
        return self

    def deviations(self) -> Vector:
        """Return the divisors (p + q,) of the columns."""
        moments, squares, weight = self.moments, self.moments.squares, self.moments.weight
        found = column_scale(squares, moments.mean, moments.count, True, weight)
        constant = (found == 1.0) & (np.abs(squares / weight - 1.0) > 1e-9)
        found = np.where(constant, 1.0, found * np.sqrt(weight / self.freedom))  # divisor n - 1
        for part, own in zip(self.scale, np.split(found, [self.p]), strict=True):
            if not isinstance(part, bool):
                own[:] = part
            elif not part:
                own[:] = 1.0
        return found


OF_GRIDS: Coding = (grid_to_stored, lambda value, own, held: grid_from_stored(value, own))
OF_VIEWS: Coding = (lambda view: (view.to_json(), {}), lambda value, own, held: View.from_json(value, held.size("q")))


@dataclass(frozen=True)
class Targets:
    """What a model knows of its Y, whether or not it is solved.

    Attributes
    ----------
    single : bool
        Whether Y was one number for each row, (n,).
    roundings : tuple of float
        Relative rounding of the stored values of both sides, and of covariates.
    grid : Grid or None
        Of the columns of Y, if it was a DataArray.
    view : View or None
        Of Y, if it was opened with a pattern or with chosen columns.
    x_scale, y_scale : ndarray of shape (p,), (q,), or None
        Divisors of the columns that were given, or follow from their grid.
    """

    single: bool = stored(of=bool)
    roundings: tuple[float, ...] = stored(of=tuple, least=0)
    grid: Grid | None = stored(coding=OF_GRIDS, default=None)
    view: View | None = stored(coding=OF_VIEWS, default=None)
    x_scale: Vector | None = stored("d", default=None)
    y_scale: Vector | None = stored("q", default=None)

    def merge(self, other: Targets) -> Targets:
        """Return what is known of both; raises ValueError for rows of different patterns."""
        view, grid = common_view(self.view, other.view, " of Y"), common_grid(self.grid, other.grid)
        return replace(self, roundings=tuple(map(max, self.roundings, other.roundings)), grid=grid, view=view)


@dataclass(frozen=True, kw_only=True)
class KeptSides(KeptRows):
    """The statistics of all rows of both sides.

    Attributes
    ----------
    widths : tuple of int
        Columns of X, of Y, and of covariates.
    targets : Targets
    """

    widths: tuple[int, ...]
    targets: Targets

    def merge(self, other: KeptRows) -> Self:
        """Return the statistics of both sets of rows; raises ValueError for other columns, patterns and folds."""
        more = cast("KeptSides", other)
        if self.widths != more.widths:
            raise ValueError(f"models of {self.widths[1]} and {more.widths[1]} columns of Y cannot be merged.")
        targets = self.targets.merge(more.targets)
        return replace(super().merge(other), targets=targets, roundings=targets.roundings)


@dataclass(frozen=True, kw_only=True)
class PairResult(RowCounts):
    """The result of a fit of two sides: the fitted attributes, and what the model keeps.

    Attributes
    ----------
    n_targets_ : int
        Columns of Y.
    x_mean_, y_mean_ : ndarray of shape (p,), (q,)
    targets : Targets
    state : Accumulator or None
        Of both sides, and for each fold if there are folds; None if it is not kept.
    groups_ : ndarray, or None
        Labels of the folds, if these are groups.
    coarse : float
        What the rounding of the stored values changes, relative to the solution.
    regression : Effects or None
        Of both sides on covariates, whose effect was taken out.
    """

    n_targets_: int = stored(of=int, least=1)
    x_mean_: Vector = stored("d")
    y_mean_: Vector = stored("q")
    targets: Targets = stored(of=Targets)
    groups_: Array | None = stored(coding=OF_VALUES, default=None)
    state: Accumulator | None = stored(default=None)
    coarse: float = 0.0
    regression: Effects | None = stored(of=Effects, default=None)

    covariate_mean_ = of_part("regression", "mean")

    @property
    def x_covariate_coef_(self) -> Matrix | None:
        """Coefficients (p, r) of the covariates in X."""
        return None if self.regression is None else self.regression.coef[: len(self.x_mean_)]

    @property
    def y_covariate_coef_(self) -> Matrix | None:
        """Coefficients (q, r) of the covariates in Y."""
        return None if self.regression is None else self.regression.coef[len(self.x_mean_) :]

    @property
    def so_far(self) -> KeptSides:
        """The statistics, with what solves of more rows need beside them."""
        widths = (len(self.x_mean_), self.n_targets_, 0 if self.regression is None else len(self.regression.mean))
        known = self.targets
        return KeptSides(self.state, self.n_omitted_, known.roundings, widths=widths, targets=known)

    def checked(self) -> Self:
        """Return itself; raises ValueError for statistics of other sizes, which would fail when rows are added."""
        q, grid, known = self.n_targets_, self.targets.grid, self.regression
        if len(self.y_mean_) != q or (self.targets.single and q != 1) or (grid is not None and grid.n_columns != q):
            raise ValueError(f"it has n_targets = {q} of {len(self.y_mean_)} columns, single = {self.targets.single}")
        if known is not None and len(known.coef) != len(self.x_mean_) + q:
            raise ValueError(f"it has regression of {len(known.coef)} columns, not of {len(self.x_mean_) + q}")
        return checked_count(self)


@dataclass(frozen=True, kw_only=True)
class AxesResult(PairResult):
    """That of axes of both sides, along which :class:`SideScores` has scores."""

    x_weights_: Matrix = stored("d", "k")
    y_weights_: Matrix = stored("q", "k")
    x_std_: Vector = stored("d")
    y_std_: Vector = stored("q")


@dataclass(frozen=True, kw_only=True)
class RotatedAxesResult(AxesResult):
    """That of axes with rotations, by which Y is predicted."""

    x_rotations_: Matrix = stored("d", "k")
    y_rotations_: Matrix = stored("q", "k")
    x_loadings_: Matrix = stored("d", "k")
    y_loadings_: Matrix = stored("q", "k")
    coef_: Matrix = stored("q", "d")
    intercept_: Vector = stored("q")


class PairModel(SumsModel[PairResult]):
    """What is learned from rows of X (n, p) and Y (n, q) side by side, in one read of both.

    A subclass defines its solve (:meth:`_solve`) and the record of its result. These attributes are those of all.

    Attributes
    ----------
    n_features_in_, n_targets_ : int
        p and q: columns of a DataArray that are NaN in every row are left out.
    x_mean_, y_mean_ : ndarray of shape (p,), (q,)
        0 without an intercept.
    x_std_, y_std_ : ndarray of shape (p,), (q,)
        Not of Ridge: standard deviations by which columns are divided; ones without ``scale``.
    n_samples_, n_omitted_ : int
        Rows used, and rows with missing values on either side.
    sum_weights_, n_effective_ : float
        As of :class:`bigpca.PCA`.
    n_components_ : int
        Columns of the output of ``transform``.
    x_covariate_coef_, y_covariate_coef_ : ndarray of shape (p, r), (q, r)
        Of ``fit(X, Y, covariates=Z)``: their effects, which are taken out of both sides. All other attributes
        describe what is left, ``x - x_mean_ - x_covariate_coef_ (z - covariate_mean_)``. A second read is made where
        one read leaves too few digits of that, but not where columns of what is left are nearly dependent.
    covariate_mean_ : ndarray of shape (r,)
    covariate_names_in_ : ndarray of str, if Z had names
    solve_error_ : float
        Estimated relative error by rounding, that of the variance which covariates leave included; above 1e-3 with a
        warning. Of PLS only with covariates.
    """

    preprocess_y: Preprocess
    _remedy: ClassVar[str] = ""  # for a solution that rounding may change

    @abstractmethod
    def _solution(self, joint: JointMoments, state: Accumulator) -> dict[str, Unchecked]:
        """Return the solution by the fields of the result; ``state`` is that of the last read."""

    def _again(self, joint: JointMoments) -> SecondRead | None:
        """Return the rows of a second read, for a solution with too few digits; a hook for those that divide."""
        return None

    def _stored(self, joint: JointMoments, solution: dict[str, Unchecked]) -> float:
        """Return what the rounding of the stored values changes, relative to the solution; a hook of those."""
        return 0.0

    def _warn(self, found: PairResult, n_classes: int = 1) -> None:
        super()._warn(found)
        warn_stored(found.coarse, found.targets.roundings)
        error, known = getattr(found, "solve_error_", None) or 0.0, found.regression
        if known is not None:
            known.warn()
        if known is None or error > known.error:
            warn_dependent(error, "the columns", self._remedy)

    @property
    def _scales(self) -> tuple[Unchecked, Unchecked]:
        """How the columns of each side are divided."""
        given: Unchecked = getattr(self, "scale", False)
        return tuple(given) if isinstance(given, list | tuple) and len(given) == 2 else (given, given)

    def _divisors(self, known: Targets) -> Divisors:
        """The same, with the divisors that are known of the columns."""
        pairs = zip(self._scales, (known.x_scale, known.y_scale), strict=True)
        x, y = (bool(one) if isinstance(one, bool | np.bool_) or vector is None else vector for one, vector in pairs)
        return x, y

    @property
    def _centred(self) -> bool:
        """Whether the solve is about the means."""
        return bool(getattr(self, "fit_intercept", True))

    @property
    def _folds(self) -> int | None:
        """How many folds of the rows are summed apart; None for none."""
        return None

    def _empty(
        self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Accumulator | None = None
    ) -> Accumulator:
        n_folds = self._folds
        if n_folds is None:
            state: Accumulator = Moments(d)
            if rows is not None and rows.groups is not None:
                reject_groups(self)
        else:
            offset = like.n_rows if isinstance(like, FoldStates) else 0
            state = FoldStates(Moments(d), n_folds, offset=offset)
            if rows is not None:
                state = placed_in_folds(state, rows, rows.groups, 2 if like is None else 1)
        check_folds(like, state)
        return state

    def _problems(self, state: Unchecked) -> int:
        return getattr(state, "n_folds", 1)

    def _maps_of_sides(self) -> tuple[tuple[RowPreprocessor, ...], tuple[RowPreprocessor, ...]]:
        y = getattr(self, "preprocess_y", None)
        return self._preprocessors(), () if y is None else preprocessors(y, "preprocess_y")

    def _learns(self, rows: Rows) -> tuple[RowPreprocessor, ...]:
        return ()  # the effect on both sides is taken out of their moments

    def _rows(self, rows: Rows, y: Unchecked, like: KeptRows | None = None) -> Rows:
        joined = open_pair(rows, y, type(self).__name__).begun(**policies(self))
        if like is not None:
            self._check_targets(joined.widths[1])
        maps, d = self._maps_of_sides(), joined.viewed_columns
        if any(maps):
            each = maps if rows.covariates is None else (*maps, ())
            joined = joined.mapped(MapStep(EachSide(each, joined.widths), d, FLOPS_PER_VALUE * d))
        return joined

    def _targets(self, rows: Rows, y: Unchecked, use: str, progress: ProgressArgument) -> Unchecked:
        """Return the rows of Y opened: in a new fit without the columns that have no values in rows that count."""
        if y is None or use == "more":
            return y if y is None else self._side_like(y)
        side, counted = open_side(y, type(self).__name__), rows.counted
        paired = counted.weights is not None and len(counted.weights) == side.n_rows
        return without_absent_columns(self, side, counted if paired else None, read=use != "plan", progress=progress)

    def _check(self, widths: tuple[int, ...]) -> None:
        if len(widths) > 2 and not self._centred:
            raise ValueError("fit_intercept = False cannot be used with covariates, whose effect has one.")

    def _kept(self, rows: Rows, state: Accumulator) -> KeptSides:
        p, q = rows.widths[:2]
        x, side = (*rows.origin.sides, rows.origin)[:2]  # batches have one origin
        named = side is not rows.origin and side.names is not None
        grid = side.labels.grid if side.labels is not None else grid_of_columns(side.names, q) if named else None
        # A view with absent columns is as that of the grid.
        view = None if side.view is None or side is rows.origin or side.view.absent else side.view
        single = side.sample == () if rows.order.batches is None else rows.order.batches.stream.single[-1]
        scales = (
            None if isinstance(one, bool | np.bool_) else scale_vector(one, d, own.labels.grid if own.labels else None)
            for one, d, own in zip(self._scales, (p, q), (x, side), strict=True)
        )
        targets = Targets(single, rows.roundings, grid, view, *scales)
        return KeptSides(state, 0, rows.roundings, widths=(p, q, sum(rows.widths[2:])), targets=targets)

    def _side_like(self, y: Unchecked) -> Rows:
        """Return new rows of Y as those of the fit."""
        known = cast("KeptSides", kept_by(self)).targets
        return open_side(y, type(self).__name__, grid=known.grid, view=known.view)

    def _joint(self, kept: KeptSides, again: Unchecked = None) -> JointMoments:
        """Return the moments of all rows as a solve takes them."""
        p, _, covariates = kept.widths
        joint = JointMoments(
            whole_moments(kept.state), p, self._divisors(kept.targets), kept.roundings, centred=self._centred
        )
        joint = joint.without(covariates, again if covariates else None).checked(kept.n_omitted_)
        if again is None or covariates:
            return joint
        return replace(joint, second=again, again=whole_moments(again.state))

    def _doubt(self, kept: KeptSides, solved: PairResult | None = None) -> SecondRead | Remainder | None:
        p, q, covariates = kept.widths
        if covariates:
            adjustment = _adjustment(covariates, kept.roundings, (p, q), scale=self._divisors(kept.targets))
            return None if solved else adjustment.doubt(kept.state)
        error = getattr(solved, "solve_error_", None) or 0.0  # PLS estimates none
        return self._again(self._joint(kept)) if error > self._enough else None

    def _solve(self, kept: KeptSides, again: Unchecked = None) -> PairResult:
        joint, (p, q, covariates), state = self._joint(kept, again), kept.widths, kept.state
        # Folds are in the coordinates of the first read, where covariates are taken out.
        last = state if again is None or covariates else again.state
        with blas_threads(None, 2 / 3 * p**3 + 2 / 3 * q**3):
            solution = self._solution(joint, last)
        state = self._kept_state(state.present if isinstance(state, FoldStates) else state)
        return cast("type[PairResult]", self._traits.result)(
            n_samples_=joint.moments.count,
            n_omitted_=kept.n_omitted_,
            n_targets_=q,
            x_mean_=joint.mean[:p],
            y_mean_=joint.mean[p:],
            targets=replace(kept.targets, roundings=kept.roundings),
            state=state,
            groups_=getattr(state, "labels", None),
            weight_sums=joint.moments.weight_sums,
            regression=joint.regression,
            coarse=self._stored(joint, solution) if max(joint.roundings) > EPS else 0.0,
            **{
                name: np.ascontiguousarray(one) if isinstance(one, np.ndarray) else one
                for name, one in solution.items()
            },
        )

    def _check_targets(self, q: int) -> None:
        if q != (known := cast("KeptSides", kept_by(self)).widths[1]):
            also = " Y has as many columns as X of the fit: are the sides swapped?" if q == self.n_features_in_ else ""
            raise ValueError(
                f"Y has {q} columns, but {type(self).__name__} was fitted on {known}.{also} Pass the columns "
                "of the fit."
            )

    @property
    def _columns(self) -> int:
        return sum(kept_by(self).widths)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        # Of scores, those of one column have two dimensions too.
        tags.target_tags = TargetTags(required=True, multi_output=True, single_output=False)
        return tags


@of_all
class SideScores(PairModel, Inverts):
    """A model of two sides that has scores of both along axes: ``x_`` and ``y_`` of the attribute that it names."""

    scale: SideScale = True
    preprocess_y: Preprocess = None
    _axes: ClassVar[str]

    def transform(self, X: Input, Y: Input | None = None, **options: Any) -> Lazy:  # type: ignore[explicit-any]
        """Return the scores of X (n, k); with Y, a tuple of those of X and of Y. Lazy if the rows are lazy.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, p)
            Rows, as for :meth:`fit`.
        Y : array-like, Dask array, path and so on, of shape (n, q), default None
            Rows of the other side.
        **options
            ``out``, ``overwrite``, ``progress``, ``keys``, ``dtype`` and ``covariates``, as for
            :meth:`bigpca.PCA.transform`. ``transform_y`` writes the scores of Y.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k), or a tuple of two
        """
        check_is_fitted(self)
        if Y is None:
            return super().transform(X, **options)
        rows = opened(self, X, covariates=options.get("covariates"), use="map")
        check_paired([rows, self._side_like(Y)], "XY")
        of_y = self.transform_y(Y, covariates=rows.covariates)  # type: ignore[arg-type]
        return super().transform(X, **options), of_y

    @maps_rows
    def transform_y(
        self, X: Input, *, out: Path | None = None, overwrite: bool = False, covariates: Input | None = None
    ) -> Lazy:
        """Return the scores of rows of Y (n, q): lazily if they are lazy.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, q)
            Rows of Y.
        covariates : array-like, Dask array, path and so on, of shape (n, r), default None
            Covariates of these rows, if X was not opened with them. Only for a model of rows with covariates.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k); a DataArray for one
        """
        check_is_fitted(self)
        check_same_steps(self)
        rows = opened(self, self._side_like(X), covariates=covariates, use="map")
        self._check_targets(rows.viewed_columns)
        to, of_targets = Destination(out, overwrite, what="scores of Y"), self._row_map("y")
        maps, known = self._maps_of_sides()[1], self._result.regression
        maps = maps if known is None else (*maps, known.residuals(slice(self.n_features_in_, None)))
        scores = mapped(self, rows, of_targets, len(of_targets.components), to, maps)
        return labelled_rows(scores, labels_for(X, rows), self._traits.output)

    @solving
    @maps_rows
    def inverse_transform(
        self, X: Input, Y: Input | None = None, *, out: Path | None = None, overwrite: bool = False
    ) -> Lazy:
        """Return rows of X (n, p) from their scores; with Y, the scores of Y, a tuple of rows of X and of Y.

        ``x_mean_ + x_std_ * (scores @ x_loadings_.T)``, as in scikit-learn; of PLSSVD, which has no loadings, with
        ``x_weights_``. Preprocessing is not undone, and covariates are at their means.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, k)
            Scores of X.
        Y : array-like, Dask array, path and so on, of shape (n, k), default None
            Scores of Y.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, p), or a tuple of two
            Lazy if the scores are lazy.
        """
        check_is_fitted(self)
        if Y is not None:
            check_paired([open_scores(self, X), open_scores(self, Y)], "XY")
        rows = mapped_back(self, X, self._reconstruction(), Destination(out, overwrite))
        return rows if Y is None else (rows, mapped_back(self, Y, self._reconstruction("y"), Destination(), "y_"))

    def _reconstruction(self, side: str = "x") -> Reconstruction:
        mean, std, weights = (getattr(self, f"{side}_{name}_") for name in ("mean", "std", "weights"))
        return Reconstruction(mean, std, np.ascontiguousarray(getattr(self, f"{side}_loadings_", weights).T))

    @solving
    def to_xarray(self) -> tuple[xr.Dataset, xr.Dataset]:
        """Return the model as two Datasets, of X and of Y: patterns on the grid of each side. No read.

        A side that was no DataArray has the only dimension ``feature``, with the names of the columns of a frame.

        Returns
        -------
        tuple of two xarray.Dataset
            ``weights``, and of CCA ``rotations`` and ``loadings``, of shape (component, features...), ``mean`` and
            ``std`` of shape (features...), with NaN where columns without values were left out; ``correlations``, or
            ``singular_values`` and ``squared_covariance_fraction``, of shape (component,). Attributes as of
            :meth:`bigpca.PCA.to_xarray`, which raises the same.

        Examples
        --------
        >>> import bigpca as bp, numpy as np, xarray as xr
        >>> X = xr.DataArray(np.eye(4).reshape(4, 2, 2), dims=("time", "lat", "lon"), coords={"lat": [10, 20]})
        >>> of_x, of_y = bp.PLSSVD(1).fit(X, X[:, 0].rename(lon="station") ** 2).to_xarray()
        >>> of_x.weights.dims, of_y.weights.dims
        (('component', 'lat', 'lon'), ('component', 'station'))
        """
        check_is_fitted(self)
        return dataset_of(self, "x_"), dataset_of(self, "y_")

    def _row_map(self, side: str = "x") -> Projection:
        mean, std, axes = (getattr(self, f"{side}_{name}_") for name in ("mean", "std", self._axes))
        return Projection(mean, std, axes.T, None, self.nan_policy)


class Predicts(PairModel):
    """A model of two sides whose ``coef_`` predicts Y from X."""

    @maps_rows
    def predict(
        self, X: Input, *, out: Path | None = None, overwrite: bool = False, covariates: Input | None = None
    ) -> Lazy:
        """Predict Y (n, q) from X (n, p), row by row: lazily if X is lazy.

        With covariates, ``y_mean_ + y_covariate_coef_ (z - covariate_mean_)`` and what the rest of x adds.

        Parameters
        ----------
        covariates : array-like, Dask array, path and so on, of shape (n, r), default None
            Covariates of these rows, if X was not opened with them. Only for a model of rows with covariates.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, q), or (n,) if Y of the fit was
            In float64: all columns of Y of the fit, NaN in those of a DataArray that had no values. For DataArrays X,
            if Y of the fit was one, a DataArray on its grid. ``out`` has two dimensions.
        """
        check_is_fitted(self)
        to, grid = Destination(out, overwrite, what="predictions"), self._result.targets.grid
        rows = opened(self, X, covariates=covariates, use="map")
        width = self.n_targets_ if grid is None else grid.width
        found = mapped(self, rows, self._prediction(grid), width, to, preprocessors_of(self, same=True))
        if self._result.targets.single and out is None:
            labels = labels_for(X, rows)
            if grid is None or labels is None:
                return found[:, 0]
            return labelled_rows(found, labels, grid.name or self._traits.output, None)
        return found if grid is None else on_fitted_grid(self, X, rows, found, grid=replace(grid, kept=None))

    def _prediction(self, grid: Grid | None = None) -> Prediction:
        mean, known = self.x_mean_, self._result.regression
        coef = self.coef_.reshape(self.n_targets_, self.n_features_in_)  # of a single target too
        if known is not None:  # of rows beside their covariates
            of_x, of_y = np.split(known.coef, [len(mean)])
            mean, coef = np.append(mean, known.mean), np.hstack([coef, of_y - coef @ of_x])
        return Prediction(mean, coef, self.y_mean_, self.nan_policy, grid)

    @solving
    def score(
        self, X: Input, y: Input | None = None, sample_weight: Input | None = None, *, covariates: Input | None = None
    ) -> float:
        """Return the mean R^2 over the columns of Y, from one read of both sides.

        Parameters
        ----------
        X, y : as for :meth:`fit`, default None
        sample_weight : array-like of shape (n,), default None
        covariates : covariates as for :meth:`predict`, default None

        Returns
        -------
        float
            ``1 - sum (y - prediction)^2 / sum (y - mean)^2``; a constant column counts as 0, or as 1 if it is predicted
            exactly.
        """
        check_is_fitted(self)
        check_same_steps(self)
        rows = opened(self, X, y, sample_weight=sample_weight, covariates=covariates, use="more")
        joined = self._rows(rows, rows.y)
        self._check_targets(joined.widths[1])
        (p, q), f = joined.widths[:2], self._prediction()
        # Columns of y - prediction, and of y, about its mean of the fit: sums of their squares cancel no digits.
        M, own = np.zeros((2 * q, sum(joined.widths))), slice(p, p + q)
        M[:q, :p], M[:q, p + q :], M[:q, own], M[q:, own] = -f.coef[:, :p], -f.coef[:, p:], np.eye(q), np.eye(q)
        measured = projected(joined, np.concatenate([f.mean[:p], self.y_mean_, f.mean[p:]]), M.T)
        state = read_once(measured, ColumnMoments(2 * q), "score", dtype=PRECISE)
        weight = state.weight
        residual = state.squares[:q] + weight * state.mean[:q] ** 2
        total, known = state.squares[q:], rounded_squares(state.squares[q:], self.y_mean_, weight, EPS)
        varies = total > NOISE * known
        constant = np.where(residual > 1e-12 * max(float(total.max(initial=0)), 1e-300), 0.0, 1.0)
        ratios = np.divide(residual, total, out=np.ones(q), where=varies)
        return float(np.where(varies, 1 - ratios, constant).mean())


def _adjustment(
    covariates: int, roundings: tuple[float, ...], widths: tuple[int, int], *, scale: Divisors
) -> Adjustment:
    """Return how covariates are taken out: each column counts alike, whatever it is divided by."""
    each = (*np.repeat(roundings[:2], widths).tolist(), roundings[-1])
    return Adjustment(covariates, each, any(one is True for one in scale), alike=True)


def check_components(n_components: int, p: int, q: int) -> None:
    """Reject a number of pairs of directions that do not exist.

    Raises
    ------
    TypeError, ValueError
    """
    k = positive_integer("n_components", n_components)
    if k > min(p, q):
        raise ValueError(
            f"n_components = {k}, but X has {p} columns and Y {q}: at most {min(p, q)} pairs of directions exist."
        )


def squared_errors(moments: Moments, p: int, D: Matrix, z_mean: Vector, e_mean: Vector) -> tuple[Vector, Vector]:
    """Return for each target ``sum_t (e_t - e_mean - D'(z_t - z_mean))^2`` (q,), and the spread of e about its mean.

    From the moments of rows [z, e]: ``S_ee - 2 D'S_ze + D'S_zz D``, no less than its rounding, and n times the square
    of the mean error.
    """
    S = unpack(moments.packed, moments.n_features)
    scatter = np.maximum(np.diagonal(S), 0.0)  # a constant column's, of merged or moved moments, may round below 0
    total = scatter[p:]
    spread = total - 2 * np.einsum("ij,ij->j", D, S[:p, p:]) + np.einsum("ij,ij->j", D, S[:p, :p] @ D)
    terms = np.sqrt(total) + np.sqrt(scatter[:p]) @ np.abs(D)
    mean_error = moments.mean[p:] - e_mean - D.T @ (moments.mean[:p] - z_mean)
    return np.maximum(spread, max(moments.precision, EPS) * terms**2) + moments.weight * mean_error**2, total


@dataclass(frozen=True)
class Prediction(Float64Map):
    """Predictions ``(x - mean) coef' + intercept`` (b, q), in float64.

    Attributes
    ----------
    mean : ndarray of shape (p,), coef : ndarray of shape (q, p), intercept : ndarray of shape (q,)
    nan_policy : {"raise", "omit"}
    grid : Grid or None
        Of the columns of Y; those that have no values are NaN.
    """

    mean: Vector
    coef: Matrix
    intercept: Vector
    nan_policy: str = "raise"
    grid: Grid | None = None

    def apply(self, rows: Array, where: str) -> Array:
        """Return the predictions; rows with missing values raise, or have NaN."""
        with np.errstate(invalid="ignore", over="ignore"):
            found: Matrix = (rows.astype(np.float64) - self.mean) @ self.coef.T + self.intercept
        settle_non_finite(rows, found, where, self.nan_policy, "predictions")
        return found if self.grid is None else self.grid.spread(found)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows and predictions in float64."""
        return 8 * rows * (d + 2 * len(self.coef) + (0 if self.grid is None else self.grid.width)), 0
