"""The base of estimators of two sides: their read, added and merged rows, scores of both sides, predictions, files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Self, cast

import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils import Tags, TargetTags
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, Input, Matrix, Path, Vector, unpack
from bigpca.blas import blas_threads
from bigpca.data.containers import is_labelled
from bigpca.data.grids import Grid, grid_from_stored, grid_to_stored
from bigpca.data.provenance import Provenance
from bigpca.data.views import View
from bigpca.engine.driver import solving
from bigpca.engine.events import ProgressArgument
from bigpca.errors import positive_integer
from bigpca.estimators.linear.maps import Projection, Reconstruction, Standardization, projected
from bigpca.estimators.linear.spectrum import (
    Regression,
    Remainder,
    Settings,
    check_enough_rows,
    not_kept,
    whole_moments,
    without_covariates,
)
from bigpca.estimators.linear.sums import Refinement
from bigpca.estimators.pairs.fits import PairFit, open_pair
from bigpca.estimators.shared.exporting import Inverts
from bigpca.estimators.shared.files import OF_VALUES
from bigpca.estimators.shared.fit import called, execute, unfitted
from bigpca.estimators.shared.folds import check_folds, held_folds, placed_in_folds
from bigpca.estimators.shared.growing import Grows, MoreRows, check_same_steps, kept_by
from bigpca.estimators.shared.inputs import Lazy, Unchecked, open_scores, settle_non_finite
from bigpca.estimators.shared.labelled import common_grid, dataset_of, grid_of_columns, labelled_rows, open_side
from bigpca.estimators.shared.opening import (
    FLOPS_PER_VALUE,
    covariates_like,
    of_first_side,
    open_like,
    policies,
    read_once,
    reject_groups,
    without_absent_columns,
)
from bigpca.estimators.shared.outputs import (
    Destination,
    mapped,
    mapped_as_given,
    mapped_back,
    maps_rows,
    on_fitted_grid,
)
from bigpca.estimators.shared.results import RowCounts, checked_count
from bigpca.estimators.shared.transformer import Estimator, of_all
from bigpca.parameters import SWITCH
from bigpca.passes.accumulators.base import Accumulator, column_scale
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.accumulators.moments import ColumnMoments, Moments
from bigpca.passes.reading.blocks import PRECISE, CountedRows
from bigpca.passes.reading.row_maps import (
    EachSide,
    Float64Map,
    MapStep,
    Preprocess,
    RowMap,
    RowPreprocessor,
    chained,
    preprocessors,
)
from bigpca.passes.rows import Rows, beside_covariates, check_paired
from bigpca.records import Coding, Held, of_part, stored
from bigpca.settings import setting
from bigpca.solvers.components import check_total
from bigpca.solvers.eigh import ENOUGH, EPS, NOISE, rounded_squares, stored_squares
from bigpca.solvers.moments import Frame, Scatter, warn_dependent, warn_stored
from bigpca.solvers.pairs import Columns
from bigpca.storage.files import content_digest

SCALED = {"scale": SWITCH}  # which is something else in models of one side

if TYPE_CHECKING:
    import xarray as xr


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
    scale : bool
        Whether columns are divided by their standard deviations (divisor n - 1), those that are constant by 1.
    roundings : tuple of float
        Relative rounding of the stored values of both sides, and of covariates.
    second : Refinement or None
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
    scale: bool
    roundings: tuple[float, ...]
    second: Refinement | None = None
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
        if not covariates:
            return self
        whole = self.moments
        settings = _settings(covariates, self.roundings, (self.p, whole.n_features - covariates - self.p))
        moments, found = without_covariates(whole, settings, again)
        before, summed = (one.squares[:-covariates] for one in (whole, whole if again is None else again.moments))
        left = moments.squares
        # The difference of two sums of the size of the total is known to its rounding.
        share = np.divide(summed, left, out=np.ones(len(left)), where=left > 0)
        precision = max(moments.precision, EPS) * float(share.max(initial=1.0))
        effects = Effects(found.coef, found.mean, found.rank, found.error, found.coarse)
        moments = replace(moments, precision=precision)
        return replace(self, moments=moments, explained=before - left, regression=effects)

    def residuals(self, whole: Moments) -> Moments:
        """Return moments of rows of all columns without the effect of covariates that is known from others."""
        known = self.regression
        if known is None:
            return whole
        w = len(known.coef)
        mean = whole.mean[:w] - known.coef @ (whole.mean[w:] - known.mean)
        return replace(whole.times(np.hstack([np.eye(w), -known.coef]).T), mean=mean)

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
        if not self.centred:
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
        return self._side(slice(0, self.p), None if self.second is None else self.second.x)

    @cached_property
    def y(self) -> Scatter:
        """The scatter of Y."""
        own = slice(self.p, self.moments.n_features)
        return self._side(own, None if self.second is None else self.second.y)

    @property
    def cross(self) -> Matrix:
        """The scatter between the coordinates of X and the columns of the last read (p, q)."""
        S = self.scatter[: self.p, self.p :]
        return S if self.second is not None else self.x.frame.into(S)

    def deviating(self, W: Matrix) -> Matrix:
        """Return d (p, q): predictions by W differ by d'z from those that the last read subtracted from y."""
        second = self.second
        return W if second is None else second.x.R.T @ (W if second.B is None else W - second.B)

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
        d, weight = self.moments.n_features, self.moments.weight
        if not self.scale:
            return np.ones(d)
        squares = self.moments.squares
        found = column_scale(squares, self.moments.mean, self.moments.count, True, weight)
        constant = (found == 1.0) & (np.abs(squares / weight - 1.0) > 1e-9)
        return np.where(constant, 1.0, found * np.sqrt(weight / self.freedom))


OF_GRIDS: Coding = (grid_to_stored, lambda value, own, held: _held_grid(grid_from_stored(value, own), held))
OF_VIEWS: Coding = (lambda view: (view.to_json(), {}), lambda value, own, held: View.from_json(value, held.size("q")))


def _held_grid(grid: Grid, held: Held) -> Grid:
    held.check("target_grid", (grid.n_columns,), ("q",))
    return grid


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
    """

    single: bool = stored(of=bool)
    roundings: tuple[float, ...] = stored(of=tuple, least=0)
    grid: Grid | None = stored(coding=OF_GRIDS, default=None)
    view: View | None = stored(coding=OF_VIEWS, default=None)

    def beside(self, roundings: tuple[float, ...]) -> Targets:
        """Return the same of rows to which others were added."""
        return replace(self, roundings=tuple(map(max, self.roundings, roundings)))


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
    state_bytes : int
        Bytes of the state, which may not be kept.
    regression : Effects or None
        Of both sides on covariates, whose effect was taken out.
    """

    n_targets_: int = stored(of=int, least=1)
    x_mean_: Vector = stored("d")
    y_mean_: Vector = stored("q")
    targets: Targets = stored(of=Targets)
    groups_: Array | None = stored(coding=OF_VALUES, default=None)
    state: Accumulator | None = stored(default=None)
    state_bytes: int = 0
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
    def n_covariates(self) -> int:
        """r."""
        return 0 if self.regression is None else len(self.regression.mean)

    def beside(self, state: Accumulator, omitted: int, targets: Targets) -> Self:
        """Return the statistics of all rows, with the solution of fewer."""
        n, omitted = whole_moments(state).count, self.n_omitted_ + omitted
        return replace(self, n_samples_=n, n_omitted_=omitted, state=state, targets=targets)

    def merge(self, other: PairResult) -> Self:
        """Return the statistics of the rows of both models.

        Raises
        ------
        ValueError
            For other columns, patterns and folds.
        """
        if self.n_targets_ != other.n_targets_:
            raise ValueError(f"models of {self.n_targets_} and {other.n_targets_} columns of Y cannot be merged.")
        if self.state is None or other.state is None:
            return replace(self, state=None)
        check_folds(self.state, other.state)
        one, more = self.targets, other.targets
        # Rows of maps of several sizes are alike.
        patterns = [each.view and each.view.pattern and replace(each.view.pattern, sizes=()) for each in (one, more)]
        if patterns[0] != patterns[1]:
            raise ValueError(
                f"the models were fitted to rows of Y of different patterns, {patterns[0]} and {patterns[1]}. Fit both "
                "with the same."
            )
        same = one.view is not None and more.view is not None and one.view.describe() == more.view.describe()
        grid, view = common_grid(one.grid, more.grid), one.view if same else None
        targets = replace(one.beside(more.roundings), grid=grid, view=view)
        return self.beside(self.state.merge(other.state), other.n_omitted_, targets)

    def checked(self) -> Self:
        """Return itself; raises ValueError for statistics of other sizes, which would fail when rows are added."""
        q = self.n_targets_
        if len(self.y_mean_) != q or (self.targets.single and q != 1):
            raise ValueError(f"it has n_targets = {q} of {len(self.y_mean_)} columns, single = {self.targets.single}")
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


@dataclass(frozen=True)
class PairFound:
    """A solution for two sides.

    Attributes
    ----------
    state : Accumulator
        Of both sides, and for each fold if there are folds.
    omitted : int
    targets : Targets
    joint : JointMoments
        What was solved.
    solution : dict
        Fields of the result.
    """

    state: Accumulator
    omitted: int
    targets: Targets
    joint: JointMoments
    solution: dict[str, Unchecked]


class PairModel(Estimator[PairResult], Grows):
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
        Of ``fit(X, Y, given=Z)``: effects of the covariates, which are taken out of both sides. All other attributes
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
    _enough: ClassVar[float] = ENOUGH  # estimated error above which rows are read once more

    @abstractmethod
    def _solve(self, joint: JointMoments, state: Accumulator) -> dict[str, Unchecked]:
        """Return the solution by the fields of the result; ``state`` is that of the last read."""

    @abstractmethod
    def _check(self, p: int, q: int) -> None:
        """Check the parameters for so many columns."""

    def _second(self, joint: JointMoments) -> Refinement | None:
        """Return the rows of a second read, for a solution with too few digits; a hook for those that divide."""
        return None

    def _stored(self, joint: JointMoments, solution: dict[str, Unchecked]) -> float:
        """Return what the rounding of the stored values changes, relative to the solution; a hook of those."""
        return 0.0

    def _warn(self, found: PairResult, n_classes: int = 1) -> None:
        super()._warn(found)
        warn_of_covariates(found)
        error, known = getattr(found, "solve_error_", None) or 0.0, found.regression
        if known is None or error > known.error:
            warn_dependent(error, "the columns", self._remedy)

    @property
    def _scales(self) -> bool:
        """Whether columns are divided by their standard deviations."""
        return getattr(self, "scale", False)

    @property
    def _centred(self) -> bool:
        """Whether the solve is about the means."""
        return bool(getattr(self, "fit_intercept", True))

    def _template(self, d: int) -> Accumulator:
        """Return the state of the read; a hook for models with folds."""
        return Moments(d)

    def _placed(self, joined: Rows, groups: Unchecked = None, before: Accumulator | None = None) -> Accumulator:
        template = self._template(sum(joined.widths))
        if isinstance(template, FoldStates):
            if isinstance(before, FoldStates):
                template = replace(template, offset=before.n_rows)
            template = placed_in_folds(template, joined, groups, 2 if before is None else 1)
        else:
            reject_groups(self, groups)
        if before is not None:
            check_folds(before, template)
        return template

    def _maps_of_sides(self) -> tuple[tuple[RowPreprocessor, ...], tuple[RowPreprocessor, ...]]:
        y = getattr(self, "preprocess_y", None)
        return self._preprocessors(), () if y is None else preprocessors(y, "preprocess_y")

    def _joined(self, rows: Rows, y: Unchecked) -> Rows:
        """Return both sides as a fit reads them, preprocessed."""
        joined = open_pair(rows, y, type(self).__name__).begun(**policies(self))
        maps, d = self._maps_of_sides(), joined.viewed_columns
        if any(maps):
            each = maps if rows.covariates is None else (*maps, ())
            joined = joined.mapped(MapStep(EachSide(each, joined.widths), d, FLOPS_PER_VALUE * d))
        return joined

    def _opened_targets(
        self, y: Unchecked, counted: CountedRows, *, read: bool = True, progress: ProgressArgument = None
    ) -> Unchecked:
        """Return the rows of Y opened, without the columns that have no values in rows that count."""
        if y is None:
            return y
        side = open_side(y, type(self).__name__)
        paired = counted.weights is not None and len(counted.weights) == side.n_rows
        return without_absent_columns(self, side, counted if paired else None, read=read, progress=progress)

    def _joined_like(self, X: Unchecked, y: Unchecked, weights: Unchecked, given: Unchecked) -> Rows:
        """Return new rows of both sides as those of the fit."""
        check_same_steps(self)
        y = y if y is None else self._side_like(y)
        joined = self._joined(open_like(self, X, given).weighted(weights), y)
        self._check_targets(joined.widths[1])
        return joined

    def _side_like(self, y: Unchecked) -> Rows:
        """Return new rows of Y as those of the fit."""
        known = cast("PairResult", kept_by(self)).targets
        return open_side(y, type(self).__name__, grid=known.grid, view=known.view)

    def _solver_of(
        self, p: int, targets: Targets, covariates: int
    ) -> Callable[[Accumulator, int, Refinement | Remainder | None], PairFound]:
        scale = self._scales

        def solve(state: Accumulator, omitted: int, second: Refinement | Remainder | None = None) -> PairFound:
            joint = JointMoments(whole_moments(state), p, scale, targets.roundings, centred=self._centred)
            last = state if second is None or second.state is None else second.state
            apart = second if isinstance(second, Remainder) else None
            joint = joint.without(covariates, apart).checked(omitted)
            if isinstance(second, Remainder):
                last = state  # in whose coordinates folds are
            elif second is not None:
                joint = replace(joint, second=second, again=whole_moments(last))
            with blas_threads(None, 2 / 3 * p**3 + 2 / 3 * (joint.moments.n_features - p) ** 3):
                return PairFound(state, omitted, targets, joint, self._solve(joint, last))

        return solve

    def _refined(self, found: PairFound) -> Refinement | None:
        return self._second(found.joint) if found.solution["solve_error_"] > self._enough else None

    def _fit(self, rows: Rows, y: Unchecked) -> PairFit[PairFound, Accumulator]:
        joined = self._joined(rows, y)
        (p, q), covariates = joined.widths[:2], sum(joined.widths[2:])
        self._check(p, q)
        if covariates and not self._centred:
            raise ValueError("fit_intercept = False cannot be used with covariates (given), whose effect has one.")
        side = joined.origin.sides[1] if joined.origin.sides else joined.origin
        named = side is not joined.origin and side.names is not None
        grid = side.labels.grid if side.labels is not None else grid_of_columns(side.names, q) if named else None
        # A view with absent columns is as that of the grid.
        view = None if side.view is None or side is joined.origin or side.view.absent else side.view
        owner = unfitted(self)
        single = side.sample == () if joined.order.batches is None else joined.order.batches.stream.single[-1]
        solve = owner._solver_of(p, Targets(single, joined.roundings, grid, view), covariates)
        refines = "solve_error_" in self._traits.result.__dataclass_fields__
        refine = owner._refined if refines and not covariates else None
        settings = _settings(covariates, joined.roundings, (p, q)) if covariates else None
        apart = None if settings is None else partial(Remainder.of, settings=settings)
        return PairFit(joined, self._placed(joined, rows.groups), solve, refine=refine, apart=apart)

    def _more(self, kept: PairResult, more: MoreRows) -> tuple[PairResult, Provenance]:
        old = self._whole_state(kept, "partial_fit")
        joined = self._joined_like(more.X, more.y, more.weights, more.given)
        targets = kept.targets.beside(joined.roundings)
        solve = unfitted(self)._solver_of(self.n_features_in_, targets, kept.n_covariates)
        fit = PairFit(joined, self._placed(joined, more.groups, old), solve, old)
        call = f"{called(self)}.partial_fit(X, Y)"
        read, made = execute(self, fit, fit.read, call, progress=more.progress, adds=True)
        return kept.beside(old.merge(read.state), read.omitted, targets), made

    def _solution(self, kept: PairResult) -> tuple[Callable[[], PairFound], str]:
        self._check(self.n_features_in_, kept.n_targets_)
        state, omitted = self._whole_state(kept, "merge"), kept.n_omitted_
        solve = unfitted(self)._solver_of(self.n_features_in_, kept.targets, kept.n_covariates)
        return lambda: solve(state, omitted, None), self.solver_

    @maps_rows
    def transform(
        self,
        X: Input,
        Y: Input | None = None,
        *,
        out: Path | None = None,
        overwrite: bool = False,
        progress: ProgressArgument = None,
        keys: Input | None = None,
        dtype: DTypeLike | None = None,
        given: Input | None = None,
    ) -> Lazy:
        """Return the scores of X (n, k); with Y, a tuple of those of X and of Y. Lazy if the rows are lazy.

        Parameters
        ----------
        Y : array-like, Dask array, path and so on, of shape (n, q), default None
            Rows of the other side.
        out : path, default None
            Write the scores of X to a new Zarr array. ``transform_y`` writes the scores of Y.
        progress : True for a bar, or a callable that receives events, default None
        dtype : {"float16", "float32", "float64"}, default None
            Dtype of the scores.
        given : array-like, Dask array, path and so on, of shape (n, r), default None
            Covariates of these rows. Required if the model was fitted with covariates, otherwise rejected.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k), or a tuple of two

        Raises
        ------
        TypeError
            For Y, if the model has scores of X alone.
        """
        check_is_fitted(self)
        of_y = None if Y is None else self._scores_of_y(X, Y, given)
        scores = super().transform(
            X, out=out, overwrite=overwrite, progress=progress, keys=keys, dtype=dtype, given=given
        )
        return scores if Y is None else (scores, of_y)

    def _scores_of_y(self, X: Input, Y: Input, given: Input | None) -> Lazy:
        """Return the scores of Y, whose rows belong to those of X."""
        raise TypeError(f"{type(self).__name__} has no scores of Y: they are those of X. Pass X alone.")

    def _check_targets(self, q: int) -> None:
        if q != self.n_targets_:
            also = " Y has as many columns as X of the fit: are the sides swapped?" if q == self.n_features_in_ else ""
            raise ValueError(
                f"Y has {q} columns, but {type(self).__name__} was fitted on {self.n_targets_}.{also} Pass the columns "
                "of the fit."
            )

    def _whole_state(self, kept: PairResult, what: str) -> Accumulator:
        """Return the statistics of all rows.

        Raises
        ------
        ValueError
            If they are not kept.
        """
        if kept.state is None:
            d = self.n_features_in_ + self.n_targets_ + kept.n_covariates
            size = kept.state_bytes or self._template(d).state_bytes
            raise ValueError(not_kept(what, "moments of all rows", size, setting(self, "keep_state_bytes")))
        return kept.state

    def _made(self, found: PairFound) -> PairResult:
        moments, p, state, joint = whole_moments(found.state), found.joint.p, found.state, found.joint
        if max(joint.roundings) > EPS:
            warn_stored(self._stored(joint, found.solution), joint.roundings)
        state = state.present if isinstance(state, FoldStates) else state
        kept = state.state_bytes <= setting(self, "keep_state_bytes")
        solution = {
            name: np.ascontiguousarray(one) if isinstance(one, np.ndarray) else one
            for name, one in found.solution.items()
        }
        kind = cast("type[PairResult]", self._traits.result)
        return kind(
            n_samples_=moments.count,
            n_omitted_=found.omitted,
            n_targets_=joint.moments.n_features - p,
            x_mean_=joint.mean[:p],
            y_mean_=joint.mean[p:],
            targets=found.targets,
            state=state if kept else None,
            groups_=state.labels if kept and isinstance(state, FoldStates) else None,
            state_bytes=state.state_bytes,
            weight_sums=moments.weight_sums,
            regression=joint.regression,
            **solution,
        )

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        # Of scores, those of one column have two dimensions too.
        tags.target_tags = TargetTags(required=True, multi_output=True, single_output=False)
        return tags

    def _restored(self, held: Held) -> PairResult:
        def template(held: Held, name: str) -> Accumulator:
            return held_folds(held, name, self._template(held.size("d") + held.size("q") + r))

        r = len(held.arrays.get("regression__mean", ()))
        held.context["state"] = template
        found = super()._restored(held)
        self._steps = replace(self._steps, covariates=r)
        return found


@of_all
class SideScores(PairModel, Inverts):
    """A model of two sides that has scores of both along axes: ``x_`` and ``y_`` of the attribute that it names."""

    scale: bool = True
    preprocess_y: Preprocess = None
    _axes: ClassVar[str]

    def _scores_of_y(self, X: Input, Y: Input, given: Input | None) -> Lazy:
        check_paired([open_like(self, X, given), self._side_like(Y)], "XY")
        return self.transform_y(Y, given=given)

    @maps_rows
    def transform_y(
        self, X: Input, *, out: Path | None = None, overwrite: bool = False, given: Input | None = None
    ) -> Lazy:
        """Return the scores of rows of Y (n, q): lazily if they are lazy.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, q)
            Rows of Y.
        given : array-like, Dask array, path and so on, of shape (n, r), default None
            Covariates of these rows. Required if the model was fitted with covariates, otherwise rejected.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k); a DataArray for one
        """
        check_is_fitted(self)
        check_same_steps(self)
        rows = self._side_like(X)
        self._check_targets(rows.viewed_columns)
        to, of_targets = Destination(out, overwrite, what="scores of Y"), self._projection("y")
        beside = beside_covariates(covariates_like(self, rows, given))
        maps = chained(of_first_side(self._maps_of_sides()[1], beside), of_targets)
        scores = mapped_as_given(self, beside, maps, len(of_targets.components), to)
        labels = rows.origin.labels if is_labelled(X) else None
        return scores if labels is None else labelled_rows(scores, labels, self._traits.output)

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

    def _row_map(self) -> RowMap:
        return self._projection("x")

    def _projection(self, side: str) -> Projection:
        mean, std, axes = (getattr(self, f"{side}_{name}_") for name in ("mean", "std", self._axes))
        coef, axes = getattr(self._result, f"{side}_covariate_coef_"), axes.T
        if coef is not None:  # of rows beside their covariates: (x - mean - coef (z - mean_z)) / std along the axes
            mean, axes = np.append(mean, self.covariate_mean_), axes / std
            axes, std = np.hstack([axes, -axes @ coef]), None
        return Projection(mean, std, axes, None, self.nan_policy)


class Predicts(PairModel):
    """A model of two sides whose ``coef_`` predicts Y from X."""

    @maps_rows
    def predict(
        self, X: Input, *, out: Path | None = None, overwrite: bool = False, given: Input | None = None
    ) -> Lazy:
        """Predict Y (n, q) from X (n, p), row by row: lazily if X is lazy.

        With covariates, ``y_mean_ + y_covariate_coef_ (z - covariate_mean_)`` and what the rest of x adds.

        Parameters
        ----------
        given : array-like, Dask array, path and so on, of shape (n, r), default None
            Covariates of these rows. Required if the model was fitted with covariates, otherwise rejected.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, q), or (n,) if Y of the fit was
            In float64: all columns of Y of the fit, NaN in those of a DataArray that had no values. For DataArrays X,
            if Y of the fit was one, a DataArray on its grid. ``out`` has two dimensions.
        """
        check_is_fitted(self)
        to, grid = Destination(out, overwrite, what="predictions"), self._result.targets.grid
        rows = open_like(self, X, given)
        found = mapped(self, rows, self._prediction(grid), self.n_targets_ if grid is None else grid.width, to)
        if self._result.targets.single and out is None:
            labels = rows.origin.labels if is_labelled(X) else None
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
        self, X: Input, y: Input | None = None, sample_weight: Input | None = None, *, given: Input | None = None
    ) -> float:
        """Return the mean R^2 over the columns of Y, from one read of both sides.

        Parameters
        ----------
        X, y : as for :meth:`fit`, default None
        sample_weight : array-like of shape (n,), default None
        given : covariates as for :meth:`predict`, default None

        Returns
        -------
        float
            ``1 - sum (y - prediction)^2 / sum (y - mean)^2``; a constant column counts as 0, or as 1 if it is predicted
            exactly.
        """
        check_is_fitted(self)
        joined = self._joined_like(X, y, sample_weight, given)
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


def _settings(covariates: int, roundings: tuple[float, ...], widths: tuple[int, int]) -> Settings:
    """Return how covariates are taken out: each column counts alike, whatever it is divided by."""
    each = (*np.repeat(roundings[:2], widths).tolist(), roundings[-1])
    return Settings(None, Standardization(True, True), covariates=covariates, roundings=each)


def warn_of_covariates(found: PairResult) -> None:
    """Report covariates that depend on each other, and a remainder that rounding may change."""
    if found.regression is not None:
        found.regression.warn_if_dependent()
        found.regression.warn_if_rounded()


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

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        return {
            "map": "prediction",
            "nan_policy": self.nan_policy,
            "digest": content_digest(self.mean, self.coef, self.intercept),
            "kept": None if self.grid is None or self.grid.kept is None else content_digest(self.grid.kept),
        }
