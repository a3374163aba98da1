"""One pencil for many methods: two symmetric matrices A and B, summed over rows, and the axes of extreme v'Av / v'Bv.

Each class states its method as a :class:`Pencil`: what is summed, which axes come first, and the unit of the scores.
All are solved by :mod:`bigpca.solvers.moments`: columns may have any units, and may be dependent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh, pinv
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, Integers, Matrix, Vector, unmasked, unpack
from bigpca.blas import blas_threads
from bigpca.data.labels import ClassLabels, merge_classes, open_labels, reject_gaps
from bigpca.errors import brief, counted, listed, positive_integer, real_number, warn_approximation
from bigpca.estimators.linear.maps import Projection, Reconstruction, SecondRead
from bigpca.estimators.linear.pca import PCA, moments_of_both
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.linear.sums import SumsModel, SumsResult
from bigpca.estimators.shared.exporting import FeatureAxes, LinearExports
from bigpca.estimators.shared.folds import placed_in_folds
from bigpca.estimators.shared.growing import kept_by, twin
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import set_known
from bigpca.estimators.shared.results import VARIANCES, KeptRows, Traits
from bigpca.estimators.shared.transformer import OF_ALL, with_parameters
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.accumulators.moments import PROFILE, Moments, ProfileMoments
from bigpca.passes.accumulators.stepped_moments import SteppedMoments
from bigpca.passes.reading.row_maps import RowPreprocessor
from bigpca.passes.rows import Rows
from bigpca.records import PART, Held, Values, pack, stored
from bigpca.records import unpack as restored
from bigpca.solvers.components import check_total
from bigpca.solvers.eigh import ENOUGH, EPS, NOISE, rounded_squares, stored_squares
from bigpca.solvers.moments import Frame, Scatter, graded_svd, warn_dependent, warn_stored

GRADED = 1e6  # ratio of the largest variance to the smallest, in units of B, from which small ones lose digits
UNWEIGHTED = "a step belongs to two rows"


@dataclass(frozen=True)
class Sums:
    """A sum of squares over rows: a symmetric matrix (d, d), its divisor, and what rounding adds to it.

    Attributes
    ----------
    matrix : ndarray of shape (d, d)
    divisor : float
    noise, stored : ndarray of shape (d,)
        What rounding adds to the diagonal: of the computation, and of the stored values.
    freedom : int
        Most directions in which what is summed can differ.
    """

    matrix: Matrix
    divisor: float
    noise: Vector
    stored: Vector
    freedom: int

    @classmethod
    def of(
        cls, moments: Moments, rounding: float, level: Moments, *, terms: float = 1.0, about_zero: bool = False
    ) -> Sums:
        """Return the scatter of moments, or their squares about 0, of ``terms`` rows as large as ``level``."""
        check_total(float(level.squares.sum()), mean=level.mean)
        matrix, n = unpack(moments.packed, moments.n_features), moments.weight
        if about_zero:
            matrix += n * np.outer(moments.mean, moments.mean)
        # Sums and differences of ``terms`` rows have the rounding of each: the offset of these is in it, too.
        size, times = (level.squares, level.mean, level.weight), terms * n / max(level.weight, 1)
        noise, stored = rounded_squares(*size) * times, stored_squares(*size, rounding) * times
        return cls(matrix, n if about_zero else n - 1, noise, stored, moments.count - 1)

    @classmethod
    def known(cls, matrix: Matrix) -> Sums:
        """Return a matrix that is given, not summed."""
        d = len(matrix)
        return cls(matrix, 1.0, np.zeros(d), np.zeros(d), d)


Pair: TypeAlias = tuple[Sums, Sums]  # A and B


@dataclass(frozen=True)
class Pencil:
    """A method: axes v that make ``v'A v / v'B v`` extreme.

    Attributes
    ----------
    eigenvalue : callable
        From ``v'A v / v'B v``.
    order : callable
        A key of eigenvalues, whose smallest come first.
    of_a : bool
        Whether scores have unit ``v'A v``, or else unit ``v'B v``.
    unknown : {"reported", "left out", "kept"}
        What becomes of axes along which ``v'A v`` is rounding.
    signed : bool
        Whether ``v'A v`` may be less than 0.
    dependent : (str, str)
        What B is of, and what to do if it is nearly singular.
    """

    eigenvalue: Callable[[Vector], Vector] = lambda ratio: ratio
    order: Callable[[Vector], Vector] = lambda eigenvalue: -eigenvalue
    of_a: bool = False
    unknown: str = "reported"
    signed: bool = False
    dependent: tuple[str, str] = ("the columns", "Leave out columns that follow from others.")


def reject_few_pairs(pairs: int, n: int, lag: int) -> None:
    """Reject fewer than two pairs of n rows.

    Raises
    ------
    ValueError
    """
    if pairs < 2:
        raise ValueError(
            f"{n:,} rows have {counted(pairs, 'pair')} at a lag of {lag}; at least 2 were expected. Give trajectories "
            "that are longer than the lag."
        )


def covariance_of(moments: Moments, rounding: float = EPS) -> Matrix:
    """Return the covariance (d, d) of rows from their moments, divisor n - 1."""
    sums = Sums.of(moments, rounding, moments)
    return sums.matrix / sums.divisor


@dataclass(frozen=True, kw_only=True)
class PencilResult(SumsResult):
    """The result of a fit of a pencil, whose attributes it has."""

    patterns_: Matrix = stored("d", "k")
    eigenvalues_: Vector = stored("k")
    rank_: int = stored(of=int, least=0)
    solve_error_: float = stored(of=float, least=0)
    cut: tuple[int, ...] = stored(of=tuple, least=0, default=())  # columns of directions that rounding hides


@dataclass(frozen=True, kw_only=True)
class SteppedResult(PencilResult):
    """That of rows in an order."""

    lag: int = stored(of=int, least=1)


def _pack_others(others: Sequence[TimescalesResult]) -> tuple[list[Values], dict[str, Array]]:
    packed = [pack(one, f"{i}{PART}") for i, one in enumerate(others)]
    return [values for _, values in packed], {name: one for arrays, _ in packed for name, one in arrays.items()}


def _unpack_others(packed: Sequence[Values], own: Mapping[str, Array], held: Held) -> tuple[TimescalesResult, ...]:
    sizes = {"d": (held.size("d"), "")}
    return tuple(
        restored(TimescalesResult, Held(own, dict(values), held.context, dict(sizes)), f"{i}{PART}")
        for i, values in enumerate(packed)
    )


@dataclass(frozen=True, kw_only=True)
class TimescalesResult(SteppedResult):
    """That of rows and of those a lag later, and the results at other lags, which have no sums of their own."""

    others: tuple[TimescalesResult, ...] = stored(coding=(_pack_others, _unpack_others), default=())

    @property
    def lags_(self) -> Integers:
        """All lags (l,)."""
        return np.array([self.lag, *(one.lag for one in self.others)], np.int64)

    @property
    def timescales_(self) -> Vector:
        """Implied timescales (k,), in rows; infinite for an eigenvalue of 1."""
        with np.errstate(divide="ignore"):
            return np.abs(self.lag / np.log(np.abs(self.eigenvalues_)))

    @property
    def implied_timescales_(self) -> Matrix:
        """Those at each lag (l, m)."""
        found = (self, *self.others)
        m = min(one.n_components_ for one in found)
        return np.stack([one.timescales_[:m] for one in found])


@dataclass(frozen=True, kw_only=True)
class ContrastResult(PencilResult):
    """That of several alphas."""

    alphas_: Vector = stored("k")


@dataclass(frozen=True, kw_only=True)
class CorrespondenceResult(PencilResult):
    """That of a correspondence analysis."""

    total_inertia_: float = stored(of=float, least=0)

    @property
    def explained_inertia_ratio_(self) -> Vector:
        """Share of the inertia that each axis explains (k,)."""
        return self.eigenvalues_ / self.total_inertia_

    @property
    def column_coordinates_(self) -> Matrix:
        """Principal coordinates of the columns (d, k); 0 of columns of zeros."""
        masses, coordinates = self.mean_[:, None], self.patterns_ * np.sqrt(self.eigenvalues_)
        return np.divide(coordinates, masses, out=np.zeros_like(coordinates), where=masses > 0)


@dataclass(frozen=True)
class PencilAxes:
    """The solution of one pencil: eigenvalues (k,), axes (k, d), patterns (d, k), how many exist, and their errors.

    ``stored`` is by the rounding of the stored values; ``cut`` the columns of directions that were dropped.
    """

    values: Vector
    components: Matrix
    patterns: Matrix
    rank: int
    error: float
    stored: float
    cut: tuple[int, ...]


class PencilModel(SumsModel[PencilResult], LinearExports, FeatureAxes):
    """Scores ``components_ (x - mean_)`` along axes v of extreme ``v'A v / v'B v``, from one read.

    Rows in an order are read once more where one read leaves too few digits of columns that are nearly dependent.

    Attributes
    ----------
    components_ : ndarray of shape (k, d)
        Axes v, which are not orthonormal.
    patterns_ : ndarray of shape (d, k)
        What a score of 1 is in the units of the columns: ``inverse_transform`` is ``mean_ + patterns_ y``, the least
        squares of rows on scores.
    eigenvalues_ : ndarray of shape (k,)
    mean_ : ndarray of shape (d,)
    rank_ : int
        Of B: the number of axes that exist. Constant columns, and columns that follow from others, add none.
    solve_error_ : float
        Estimated relative error of the axes by rounding; above 1e-3 with a warning. 1 where rows cannot be read a
        second time, and columns are so nearly dependent that rounding hides some of their directions, which are left
        out. The rounding of stored values does not count: if it changes more than 1 %, another warning tells.
    n_samples_, n_omitted_ : int
    """

    _pencil: ClassVar[Pencil]

    @abstractmethod
    def _pairs(self, kept: KeptRows) -> list[Pair]:
        """Return the pencils: one, or one for each of several lags or alphas."""

    @abstractmethod
    def _facts(self, state: Unchecked, found: list[PencilAxes]) -> dict[str, Unchecked]:
        """Return the mean of rows, and what else the result holds."""

    def _together(self, found: list[PencilAxes]) -> PencilAxes:
        """Return the axes of the model, from those of each pencil."""
        return found[0]

    def _checked(self, kept: KeptRows) -> list[Pair]:
        check_enough_rows(kept.state.count, kept.n_omitted_, sums=getattr(kept.state, "weight_sums", None))
        return self._pairs(kept)

    def _solve(self, kept: KeptRows, again: SecondRead | None = None) -> PencilResult:
        """Return the axes of the pencil, of unit ``v'A v`` or ``v'B v``.

        Raises
        ------
        ValueError
            For constant rows, fewer than two pairs, and more components than axes exist.
        """
        pairs = self._checked(kept)
        if again is None:
            found = [self._axes(*pair) for pair in pairs]
        else:
            both = zip(pairs, self._pairs(replace(kept, state=again.state)), strict=True)
            found = [self._axes(*one, again.frame, *(z.matrix for z in two)) for one, two in both]
        if self._pencil.unknown == "reported":
            warn_stored(max(one.stored for one in found), kept.roundings)
        axes = self._together(found)
        return self._result_of(
            kept, components_=axes.components, patterns_=axes.patterns, eigenvalues_=axes.values, rank_=axes.rank,
            solve_error_=axes.error, cut=axes.cut, **self._facts(kept.state, found),
        )  # fmt: skip

    def _axes(
        self, A: Sums, B: Sums, frame: Frame | None = None, A_z: Matrix | None = None, B_z: Matrix | None = None
    ) -> PencilAxes:
        """Return the axes, from the sums of rows, or from matrices that a second read summed in a frame."""
        pencil, d, b = self._pencil, len(B.noise), np.diagonal(B.matrix if B_z is None else B_z)
        a = np.diagonal(A.matrix if A_z is None else A_z)
        units = np.divide(a, b, out=np.zeros(d), where=b > 0)
        graded = not pencil.signed and units.max() / GRADED > units[units > 0].min(initial=np.inf)
        # So that no step of a Cholesky factorization adds large numbers to small ones.
        order = np.argsort(units) if graded and frame is None else np.arange(d)
        at, back = np.ix_(order, order), np.argsort(order)
        with blas_threads(None, 12.0 * d**3):
            # V'BV = I on the range of B, in whatever units columns are; then V'AV = U diag(ratio) U'.
            if frame is None or B_z is None:
                scatter = Scatter.of(B.matrix[at], B.noise[order], EPS, B.freedom)
            else:
                scatter = Scatter(B_z, frame, EPS, B.freedom)
            inner, solution = scatter.frame.congruent(A.matrix[at]) if A_z is None else A_z, scatter.solved()
            if not graded:
                K = solution.across(solution.across(inner).T)
                ratios, U = eigh((K + K.T) / 2, driver="evd") if len(K) else (np.zeros(0), K)
            else:
                noise = scatter.frame.congruent(np.diag(A.noise[order]))
                U, s, _ = graded_svd(solution.across(Scatter.of(inner, noise, EPS, A.freedom).factor))  # A = F F'
                ratios = np.append(s**2, np.zeros(len(U) - len(s)))
        axes, patterns = solution.along(U).T[:, back], solution.products(U)[back]
        cut = tuple(sorted(order[list(scatter.cut)].tolist()))
        ratios = ratios if pencil.signed else np.maximum(ratios, 0.0)

        def squares(diagonal: Vector) -> Vector:
            """Return v'D v of each axis, whose squares alone may leave the range of float64."""
            return np.asarray(((axes * np.sqrt(diagonal)) ** 2).sum(axis=1))

        # What rounding alone makes of v'A v: of the stored values, and of the solve.
        known = ratios > NOISE * squares(A.noise) + d * EPS * float(ratios.max(initial=0.0))
        few = f"{A.freedom + 1} pairs of rows cannot tell {len(ratios)} directions apart: some eigenvalues follow "
        few = f"{few}from their number alone. Give longer series." if A.freedom < len(ratios) else ""
        if pencil.of_a and not known.all():
            raise ValueError(
                f"{np.count_nonzero(~known)} of {len(known)} directions vary, but rows that are pairs do not differ "
                "along them by more than the rounding of their values: there is no noise to divide by. "
                + (few or "Leave out columns that are constant in space or follow from others.")
            )
        rounded = np.divide(squares(A.stored), ratios, out=np.zeros(len(ratios)), where=known & (ratios > 0))
        rounded += squares(B.stored)
        values = pencil.eigenvalue(ratios * (B.divisor / A.divisor))
        own = np.argsort(pencil.order(values), kind="stable")
        own = own[known[own]] if pencil.unknown == "left out" else own
        k = len(own) if self.n_components is None else self.n_components
        if max(k, 1) > len(own):
            raise ValueError(
                f"the rows vary in {len(own)} directions only, to the rounding of their values; {max(k, 1)} or more "
                f"were expected of {d} columns. Ask for fewer components, or give other rows."
            )
        rank, own = len(own), own[:k]
        if pencil.unknown == "reported" and (few or not known[own].all()):
            warn_approximation(
                few
                or f"{np.count_nonzero(~known[own])} of {k} components change between rows by no more than the "
                "rounding of their values, so their eigenvalues are not known. Give a larger lag, or fewer components."
            )
        axes, patterns, error = axes[own], patterns[:, own], 1.0 if cut else solution.error
        root = np.sqrt(A.divisor / ratios[own] if pencil.of_a else np.full(k, B.divisor))
        root *= np.sign(axes[np.arange(k), np.abs(axes).argmax(axis=1)])  # as fix_signs, of the patterns too
        changed = float(rounded[own].max())
        return PencilAxes(values[own], axes * root[:, None], patterns / root, rank, error, changed, cut)

    def _warn(self, found: PencilResult, n_classes: int = 1) -> None:
        super()._warn(found)
        of, remedy = self._pencil.dependent
        if found.cut:
            names = getattr(self, "feature_names_in_", np.arange(len(found.mean_)))[list(found.cut)]
            of, remedy = f"the columns {listed(names)}", f"{remedy} Or fit all rows at once, which reads them again."
        warn_dependent(found.solve_error_, of, remedy)

    def _of_models(self, state: Accumulator, model: PCA, other: PCA, omitted: int) -> Self:
        """Return itself, fitted to what two PCAs keep of their rows; raises ValueError for those with covariates."""
        if model._steps.covariates or other._steps.covariates:
            raise ValueError("models with covariates cannot be contrasted. Fit both without.")
        roundings = tuple(map(max, kept_by(other).roundings, kept_by(model).roundings))
        self._found = self._solve(KeptRows(state, omitted, roundings))
        self.n_features_in_, self.solver_ = model.n_features_in_, model.solver_
        self._steps = self._steps_of(model.n_features_in_, model._steps.view, model._steps.grid)
        one, two = model.provenance_, other.provenance_
        set_known(
            self,
            feature_names_in_=vars(model).get("feature_names_in_"),
            _provenance=one and two and one.merged(two),
        )
        return self

    def _row_map(self) -> Projection:
        return Projection(self.mean_, None, self.components_, None, self.nan_policy)

    def _reconstruction(self) -> Reconstruction:
        return Reconstruction(self.mean_, None, np.ascontiguousarray(self.patterns_.T), None)


class SteppedModel(PencilModel):
    """A pencil of rows in an order, and of the steps between them.

    Pairs of rows at a lag are formed in the task that reads them, in float64, however the rows are cut; a row with
    missing values that is left out takes its pairs with it. With ``fit(X, groups=labels)`` only rows of one trajectory
    (run, or image) are pairs; as in :func:`bigpca.data.lagged`, each change of label begins another one. Rows that
    ``partial_fit`` or :func:`bigpca.merge` add are trajectories of their own: no pair has one row before and one after
    the border.
    """

    _enough = ENOUGH

    @abstractmethod
    def _steps_in(self, d: int, rows: Rows | None) -> SteppedMoments:
        """Check the parameters, and return the empty sums of d columns, and of steps between these rows."""

    def _pair(self, steps: Moments, level: Moments, rounding: float) -> Pair:
        """Return the pencil of steps, and of rows, or of sums of pairs: the steps of rows and the rows themselves."""
        return Sums.of(steps, rounding, level, terms=2), Sums.of(level, rounding, level)

    def _empty(
        self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Accumulator | None = None
    ) -> SteppedMoments:
        template = self._steps_in(d, rows)
        if rows is None:
            return template
        if like is None and not (np.isnan(rows.n_rows) or rows.order.open_ended):
            reject_few_pairs(max(rows.n_rows - template.reach, 0), rows.n_rows, template.reach)
        if rows.groups is None:
            return template
        codes = np.array(placed_in_folds(FoldStates(Moments(1), 1), rows, rows.groups, least=1).codes)
        own = np.ones(len(codes), bool) if rows.counted.present is None else rows.counted.present
        codes[own] = np.cumsum(np.diff(codes[own], prepend=codes[own][:1]) != 0)
        return replace(template, codes=codes)

    def _pairs(self, kept: KeptRows) -> list[Pair]:
        state, found = cast("SteppedMoments", kept.state), []
        for lag, steps, level in zip(state.lags, state.steps, state.level, strict=True):
            reject_few_pairs(steps.count, state.count, lag)
            found.append(self._pair(steps, level, kept.roundings[0]))
        return found

    def _doubt(self, kept: KeptRows, solved: PencilResult | None = None) -> SecondRead | None:
        if solved is not None:
            return None
        B = self._checked(kept)[0][1]
        scatter = Scatter.of(B.matrix, B.noise, EPS, B.freedom)
        if not scatter.cut and scatter.solved().error <= self._enough:
            return None
        return SecondRead(self._facts(kept.state, [])["mean_"], slice(None), scatter.refined())

    def _facts(self, state: SteppedMoments, found: list[PencilAxes]) -> dict[str, Unchecked]:
        return {"mean_": state.level[0].mean / (2 if state.sums else 1), "lag": state.lags[0]}


@with_parameters
class SlowFeatureAnalysis(SteppedModel):
    """Slow feature analysis: the directions whose scores change least from row to row, in one read.

    Minimises ``v'A v / v'B v`` with the covariance A of the differences of consecutive rows (about their mean) and the
    covariance B of rows. Scores have variance 1 and are uncorrelated (Wiskott & Sejnowski 2002, section 4, the linear
    case).

    Parameters
    ----------
    n_components : int or None, default None
        None for all that exist.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values raise an error, or are left out with their pairs.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,), ascending
        Slowness: the variance of a step of a score. 2 where rows do not depend on those before.
    components_, patterns_, mean_, rank_, solve_error_, n_samples_, n_omitted_
        See :class:`bigpca.estimators.linear.pencils.PencilModel`.

    Examples
    --------
    >>> import numpy as np
    >>> t = np.arange(2000.0)
    >>> X = np.stack([np.sin(t / 20) + np.sin(2 * t), np.sin(2 * t)], axis=1)
    >>> SlowFeatureAnalysis(1).fit(X).eigenvalues_.round(4).tolist()
    [0.0025]
    """

    _pencil = Pencil(order=lambda slowness: slowness)
    _traits = Traits(
        SteppedResult, "sfa", frozenset({"groups"}), unweighted=UNWEIGHTED,
        summary=(("slowness", "eigenvalues_"),),
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY

    def _steps_in(self, d: int, rows: Rows | None) -> SteppedMoments:
        return SteppedMoments.of(d, 1)


@with_parameters
class MinimumNoiseFraction(SteppedModel):
    """Minimum noise fraction: the directions of images whose signal is largest beside the noise, in one read.

    Maximises ``v'B v / v'A v`` with the covariance B of rows, which are pixels, and the covariance A of the noise: half
    that of the differences of neighbours (Green, Berman, Switzer & Craig 1988). Scores have noise of variance 1, so
    that a PCA or a threshold treats all alike; ``inverse_transform`` of the first scores removes noise. Without noise
    estimates of your own, this is also the noise-adjusted PCA and the maximum autocorrelation factors (MAF).

    Parameters
    ----------
    n_components : int or None, default None
        None for all that exist.
    width : int or None, default None
        Pixels of a line: the neighbour of a pixel is the next of the next line, at a lag of ``width + 1``, as in
        ``spectral.mnf``; the ends of lines have none. None for rows whose neighbour is the next row.
    neighbours : str or tuple of str, or None, default None
        Dimensions, in place of ``width``, for rows of ``bp.open(X, sample_dims=...)``. The neighbour is one step
        further along each: ``("y", "x")`` is the same as ``width``, ``"x"`` is the next pixel of the line.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values raise an error, or are left out with their pairs.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,), descending
        Variance of the scores in units of the noise: 1 is noise alone, and the signal-to-noise ratio is the eigenvalue
        less 1.
    noise_fractions_ : ndarray of shape (k,)
        ``1 / eigenvalues_``.
    components_, patterns_, mean_, rank_, solve_error_, n_samples_, n_omitted_
        See :class:`bigpca.estimators.linear.pencils.PencilModel`.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).standard_normal((20, 30, 3))
    >>> image = noise + np.sin(np.arange(30) / 9)[:, None] * [9, 5, 2]
    >>> bool(MinimumNoiseFraction(1, width=30).fit(image.reshape(600, 3)).noise_fractions_[0] < 0.15)
    True
    """

    _pencil = Pencil(lambda ratio: 1 / ratio, of_a=True)
    _traits = Traits(
        SteppedResult, "mnf", frozenset({"groups"}), unweighted=UNWEIGHTED,
        summary=(("signal", "eigenvalues_"), ("noise_fraction", "noise_fractions_")),
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY
    width: int | None = None
    neighbours: str | Sequence[str] | None = None

    @property
    def noise_fractions_(self) -> Vector:
        """Shares of the noise in the variances of the scores."""
        return 1 / self._result.eigenvalues_

    def _steps_in(self, d: int, rows: Rows | None) -> SteppedMoments:
        if rows is not None and not (np.isnan(rows.n_rows) or rows.order.open_ended):
            self._check_lines(rows.n_rows)
        if self.neighbours is None:
            return SteppedMoments.of(d, (self.width or 0) + 1, edges=((1, self.width),) if self.width else ())
        if self.width is not None:
            raise ValueError(
                f"width = {self.width} and neighbours = {self.neighbours!r} say both which samples are neighbours. "
                "Give one of them."
            )
        named = (self.neighbours,) if isinstance(self.neighbours, str) else self.neighbours
        if not isinstance(named, list | tuple) or not all(isinstance(one, str) for one in named):
            raise TypeError(
                f'neighbours = {brief(repr(named))} are not names of dimensions, such as "x" or ("y", "x").'
            )
        if rows is None:
            return SteppedMoments.of(d, 1)
        labels = rows.origin.labels
        sizes = {} if labels is None else dict(zip(labels.grid.samples, labels.sizes, strict=True))
        if not named or not sizes.keys() >= set(named):
            raise ValueError(
                f"neighbours = {self.neighbours!r}, but the samples of X have the dimensions "
                f"{', '.join(sizes) or 'of no DataArray'}. Name some of them, as bp.open(X, sample_dims=...) has "
                "them, or give width."
            )
        strides = dict(zip(sizes, np.cumprod([1, *list(sizes.values())[:0:-1]])[::-1].tolist(), strict=True))
        edges = tuple((strides[one], sizes[one]) for one in dict.fromkeys(named))
        return SteppedMoments.of(d, sum(stride for stride, _ in edges), edges=edges)

    def _check_lines(self, n: int) -> None:
        if self.width and n % self.width:
            raise ValueError(
                f"width = {self.width} does not divide {n:,} rows. Give the pixels of a line of an image, whose "
                "rows are its pixels, line by line."
            )

    def _pair(self, steps: Moments, level: Moments, rounding: float) -> Pair:
        A, B = super()._pair(steps, level, rounding)
        return replace(A, divisor=2 * A.divisor), B

    def _pairs(self, kept: KeptRows) -> list[Pair]:
        self._check_lines(kept.state.count + kept.n_omitted_)  # of batches known only now
        return super()._pairs(kept)


@with_parameters
class TICA(SteppedModel):
    """Time-lagged independent component analysis: the directions with the largest autocorrelation, in one read.

    Solves ``A v = lambda B v`` of rows ``x_t`` and ``y_t = x_{t+lag}`` about the common mean of both: A is their
    symmetrised covariance, ``(X'Y + Y'X) / 2T``, and B ``(X'X + Y'Y) / 2T``. Scores have variance 1 (Pérez-Hernández,
    Paul, Giorgino, De Fabritiis & Noé 2013). The sums are those of ``x + y`` and ``y - x``, so that eigenvalues near
    1 keep their distance from it. Equals ``deeptime.decomposition.TICA(scaling=None)``. VAMP, whose sides have means of
    their own, is ``CCA(k).fit(X[:-lag], X[lag:])``.

    Parameters
    ----------
    n_components : int or None, default None
        None for all that exist.
    lag : int or sequence of int, default 1
        Rows. Of several, all from the same read, the model is that of the first; ``implied_timescales_`` compares them,
        and :meth:`of_lag` returns the model of another.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values raise an error, or are left out with their pairs.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,)
        Autocorrelations of the scores at the lag, the largest magnitude first.
    timescales_ : ndarray of shape (k,)
        ``-lag / log |eigenvalue|``, in rows.
    lags_ : ndarray of shape (l,)
    implied_timescales_ : ndarray of shape (l, m)
        The timescales at each lag, as many as exist at all of them, or k.
    components_, patterns_, mean_, rank_, solve_error_, n_samples_, n_omitted_
        See :class:`bigpca.estimators.linear.pencils.PencilModel`.

    Examples
    --------
    >>> import numpy as np
    >>> t = np.arange(400.0)
    >>> X = np.stack([np.sin(t / 40) + np.sin(2 * t), np.sin(2 * t)], axis=1)
    >>> TICA(1, lag=5).fit(X).eigenvalues_.round(2).tolist()
    [0.99]
    """

    _pencil = Pencil(lambda ratio: 1 - 2 * ratio, lambda correlation: -np.abs(correlation))
    _traits = Traits(
        TimescalesResult, "tica", frozenset({"groups"}), unweighted=UNWEIGHTED,
        summary=(("autocorrelation", "eigenvalues_"), ("timescale", "timescales_")),
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY
    lag: int | Sequence[int] = 1

    def of_lag(self, lag: int) -> TICA:
        """Return the model of one lag of several; nothing is read, or solved.

        Parameters
        ----------
        lag : int
            One of ``lags_``.

        Returns
        -------
        TICA
            As fitted with this lag alone, to rounding.

        Raises
        ------
        ValueError
            For another lag.

        Examples
        --------
        >>> X = np.sin(np.arange(400.0)[:, None] / [9, 20]) + np.random.default_rng(0).standard_normal((400, 2))
        >>> tica = TICA(2, lag=(1, 5)).fit(X)
        >>> tica.implied_timescales_.shape, bool(tica.of_lag(5).timescales_[0] == tica.implied_timescales_[1, 0])
        ((2, 2), True)
        """
        check_is_fitted(self)
        whole = cast("TimescalesResult", self._result)
        found = next((one for one in (whole, *whole.others) if one.lag == lag), None)
        if found is None:
            raise ValueError(f"lag = {lag!r} is not one of {whole.lags_.tolist()}, at which the model was fitted.")
        made = twin(self)
        made.lag = found.lag
        made._steps = replace(self._steps, parameters={**self._steps.parameters, "lag": found.lag})
        made._found = replace(found, state=whole.state and whole.state.of_lag(lag), others=())
        made._warn(made._found)
        set_known(made, _provenance=self.provenance_)
        return made

    @property
    def _lags(self) -> list[int]:
        given = [self.lag] if np.ndim(self.lag) == 0 else list(cast("Sequence[int]", self.lag))
        if not given:
            raise ValueError("lag = () has no number; one or several such as (1, 5, 10) were expected.")
        return [positive_integer("lag", one) for one in given]

    def _sizes(self, state: SteppedMoments) -> tuple[int, int]:
        return len(state.lags), 1

    def _steps_in(self, d: int, rows: Rows | None) -> SteppedMoments:
        return SteppedMoments.of(d, *self._lags, sums=True)

    def _pair(self, steps: Moments, level: Moments, rounding: float) -> Pair:
        # With s = x + y and d = y - x about the common mean of x and y, which is that of s / 2:
        # X'X + Y'Y = (S'S + D'D) / 2 and X'Y + Y'X = (S'S - D'D) / 2, so lambda = 1 - 2 v'D'D v / v'(S'S + D'D) v.
        # The sum of two rows is twice as large as they are, and has the rounding of two.
        d, s = (Sums.of(steps, rounding, level, terms=0.5, about_zero=True), Sums.of(level, rounding, level, terms=0.5))
        both = Sums(d.matrix + s.matrix, 4 * d.divisor, d.noise + s.noise, d.stored + s.stored, 2 * steps.count - 1)
        return replace(d, divisor=both.divisor), both

    def _solve(self, kept: KeptRows, again: SecondRead | None = None) -> PencilResult:
        state, found = cast("SteppedMoments", kept.state), []
        for lag in state.lags:
            second = again and replace(again, state=cast("SteppedMoments", again.state).of_lag(lag))
            one = super()._solve(replace(kept, state=state.of_lag(lag)), second)
            found.append(cast("TimescalesResult", one))
        others = tuple(replace(one, state=None) for one in found[1:])
        return replace(found[0], state=self._kept_state(state), others=others)


@with_parameters
class ContrastivePCA(PencilModel):
    """Contrastive PCA: the directions that vary more in some rows than in the background, in one read of both.

    The axes are the eigenvectors of ``C - alpha B``, with the covariances C of the rows of interest and B of the
    background (Abid, Zhang, Bagaria & Zou 2018). Columns are centred, each kind of rows about its own mean, and not
    standardised; the package ``contrastive`` standardises by default: divide by deviations first for its numbers.
    ``fit(["target.zarr", "background.zarr"], y)`` reads two dumps side by side; :meth:`of` takes two fitted PCAs and
    reads nothing.

    Parameters
    ----------
    n_components : int or None, default None
        Of each alpha; None for d.
    alpha : float or sequence of float, default 1.0
        How much variance of the background counts against a direction; 0 is PCA. Several are solved from one read, and
        their components are side by side: ``alphas_`` has the alpha of each.
    background : label, default 0
        What y is in the rows of the background; all other rows are of interest.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values raise an error, or are left out.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,), descending for each alpha
        Variance of the rows of interest less alpha times that of the background; may be negative.
    alphas_ : ndarray of shape (k,)
    components_ : ndarray of shape (k, d)
        Orthonormal for each alpha.
    mean_ : ndarray of shape (d,)
        Of the rows of interest.
    patterns_, rank_, solve_error_, n_samples_, n_omitted_
        See :class:`bigpca.estimators.linear.pencils.PencilModel`; rows of both kinds count.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((400, 3)) * [9, 1, 1]
    >>> X[:200, 1] *= 3
    >>> y = np.repeat([1, 0], 200)
    >>> np.abs(ContrastivePCA(1, alpha=2).fit(X, y).components_).round(1).tolist()
    [[0.0, 1.0, 0.0]]
    """

    _pencil = Pencil(unknown="kept", signed=True)
    _traits = Traits(
        ContrastResult, "cpca", frozenset({"labels"}),
        summary=(("alpha", "alphas_"), *VARIANCES),
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY
    alpha: float | Sequence[float] = 1.0
    background: object = 0

    @classmethod
    def of(
        cls, model: PCA, background: PCA, n_components: int | None = None, *, alpha: float | Sequence[float] = 1.0
    ) -> Self:
        """Contrast two fitted PCAs that kept their moments; nothing is read.

        Columns are centred at their means and not divided, whatever ``center``, ``scale`` and ``whiten`` of the models
        are: eigenvalues, ``mean_`` and scores are in the units of the rows, also of models with different scales.

        Parameters
        ----------
        model, background : fitted PCA
            Of the rows of interest, and of the background; not changed. :meth:`bigpca.PCA.of_group` makes two of one
            fit.
        n_components : int or None, default None
            Of each alpha.
        alpha : float or sequence of float, default 1.0
            As for the class.

        Returns
        -------
        ContrastivePCA
            Fitted.

        Raises
        ------
        TypeError, ValueError
            For models of another class, of other features or preprocessing, with covariates, or without moments; and
            if ``center`` or ``scale`` was changed after the fit.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X, Y = rng.standard_normal((200, 3)) * [9, 3, 1], rng.standard_normal((200, 3)) * [9, 1, 1]
        >>> contrast = ContrastivePCA.of(PCA().fit(X), PCA().fit(Y), 1, alpha=[0, 2])
        >>> np.abs(contrast.components_).round(1).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
        """
        # The two states that a fit would have kept: first the background, then the rows of interest.
        states = moments_of_both(model, background, "ContrastivePCA.of")[::-1]
        made = cls(n_components, alpha=alpha, **{name: getattr(model, name) for name in OF_ALL})
        state = replace(made._empty(model.n_features_in_), states=states)
        return made._of_models(state, model, background, background.n_omitted_ + model.n_omitted_)

    @property
    def _alphas(self) -> list[float]:
        given = cast("Sequence[float]", self.alpha if np.ndim(self.alpha) else [self.alpha])
        if not len(given):
            raise ValueError("alpha = () has no number; one or several such as [0.5, 1, 2] were expected.")
        return [real_number("alpha", one, "[0, inf)", "a number such as 1, or several,") for one in given]

    def _sizes(self, state: FoldStates) -> tuple[int, int]:
        return 1, len(self._alphas)

    def _empty(
        self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Accumulator | None = None
    ) -> FoldStates:
        template = FoldStates(Moments(d), 1 + bool(self._alphas))
        if rows is None:
            return template
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. Give the label "
                f"{self.background!r} for each row of the background, and others for the rows of interest."
            )
        present = rows.counted.present
        read = open_labels(y, rows.n_rows, kind="classes", missing="drop", min_classes=1, present=present)
        labels = cast("ClassLabels", read)
        reject_gaps(~labels.used if present is None else ~labels.used & present, "row label")
        try:
            _, known, given = merge_classes(labels.classes, cast("Unchecked", [self.background]))
        except (TypeError, ValueError) as error:
            raise TypeError(f"background = {self.background!r} is not a label such as those in y: {error}") from None
        codes = (~np.isin(known[labels.codes], given)).astype(np.int32)
        if like is None:  # rows that are added may be of one kind
            self._check_kinds(*np.bincount(codes[labels.used], minlength=2).tolist())
        return replace(template, codes=codes)

    def _check_kinds(self, of_background: int, others: int) -> None:
        if min(of_background, others) < 2:
            raise ValueError(
                f"background = {self.background!r} is the label of {of_background:,} rows, and {others:,} have others; "
                "at least 2 of each were expected. Give the label of the background."
            )

    def _pairs(self, kept: KeptRows) -> list[Pair]:
        kinds = cast("tuple[Moments, Moments]", kept.state.states)
        self._check_kinds(*(one.count for one in kinds))
        for one in kinds:
            check_enough_rows(one.count, sums=one.weight_sums)
        (B, C), pairs = (covariance_of(one, kept.roundings[0]) for one in kinds), []
        for alpha in self._alphas:
            with np.errstate(over="ignore"):
                A = C - alpha * B
            if not np.isfinite(A).all():
                raise ValueError(f"alpha = {alpha:g} times the covariance of the background overflows float64.")
            pairs.append((Sums.known(A), Sums.known(np.eye(len(C)))))
        return pairs

    def _together(self, found: list[PencilAxes]) -> PencilAxes:
        # Of one pencil, the patterns are those in its metric; several have axes in one space, with one nearest row.
        components = np.concatenate([one.components for one in found])
        values = np.concatenate([one.values for one in found])
        patterns = found[0].patterns if len(found) == 1 else np.asarray(pinv(components))
        return replace(found[0], values=values, components=components, patterns=patterns)

    def _facts(self, state: FoldStates, found: list[PencilAxes]) -> dict[str, Unchecked]:
        alphas = np.repeat(self._alphas, [len(one.values) for one in found])
        return {"mean_": cast("Moments", state.states[1]).mean, "alphas_": alphas}


@with_parameters
class GeneralizedPCA(PencilModel):
    """Generalised PCA: the directions of largest variance in a metric of columns, in one read.

    Maximises ``v'C v / v'M v`` with the covariance C of rows and a given positive definite M. With M the covariance of
    noise, or of other rows, the eigenvalues are ratios of variances: M = ``PCA().fit(Z).get_covariance()``.

    Parameters
    ----------
    n_components : int or None, default None
        None for d.
    metric : array-like of shape (d, d) or None, default None
        M, symmetric and positive definite; None for the identity, which is PCA.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values raise an error, or are left out.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,), descending
        Variances of the scores.
    components_ : ndarray of shape (k, d)
        Axes with ``components_ M components_' = I``.
    patterns_, mean_, rank_, solve_error_, n_samples_, n_omitted_
        See :class:`bigpca.estimators.linear.pencils.PencilModel`.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((400, 2)) * [5, 3]
    >>> GeneralizedPCA(1, metric=np.diag([25.0, 1.0])).fit(X).components_.round(1).tolist()
    [[0.0, 1.0]]
    """

    _pencil = Pencil(unknown="kept", dependent=("the rows of metric", "Add a multiple of the identity to it."))
    _traits = Traits(PencilResult, "gpca")

    n_components: int | None = None
    _: KW_ONLY
    metric: ArrayLike | None = None

    @classmethod
    def of(cls, model: PCA, metric: PCA, n_components: int | None = None) -> Self:
        """Return the axes of largest variance of one fitted PCA in units of that of another; nothing is read.

        Maximises ``v'C v / v'M v`` with the covariances C and M of the rows of both, in the units of the rows, each
        about its own mean, whatever ``center``, ``scale`` and ``whiten`` of the models are. With the moments of noise,
        ratios are signal-to-noise ratios; with those of differences of neighbours, the first axes are the slowest.

        Parameters
        ----------
        model, metric : fitted PCA
            Of the rows, and of those whose covariance is the metric; not changed.
        n_components : int or None, default None
            None for d.

        Returns
        -------
        GeneralizedPCA
            Fitted, with ``metric`` as a parameter. ``partial_fit`` and :func:`bigpca.merge` add rows to those of
            ``model``.

        Raises
        ------
        TypeError, ValueError
            As :meth:`ContrastivePCA.of`, and if the metric has directions of no variance.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> noise = rng.standard_normal((400, 2)) * [5, 1]
        >>> signal = rng.standard_normal((400, 1)) * [0, 3]
        >>> model = GeneralizedPCA.of(PCA().fit(noise + signal), PCA().fit(noise), 1)
        >>> bool(8 < model.eigenvalues_[0] < 12)
        True
        """
        state, noise = moments_of_both(model, metric, "GeneralizedPCA.of")
        made = cls(n_components, metric=covariance_of(noise), **{name: getattr(model, name) for name in OF_ALL})
        return made._of_models(state, model, metric, model.n_omitted_)

    def _metric(self, d: int) -> Matrix:
        from bigpca.data.label_files import whole  # all formats of labels, of no use to other fits

        if self.metric is None:
            return np.eye(d)
        held = whole(self.metric, "metric", "number", f"A matrix of {d} x {d} numbers")
        try:
            M = unmasked(held).astype(np.float64, casting="same_kind")
        except (TypeError, ValueError):
            raise TypeError(f"metric = {brief(repr(self.metric))} is not a matrix of real numbers.") from None
        wrong = f"has shape {M.shape}" if M.shape != (d, d) else ""
        if not wrong and not np.isfinite(M).all():
            wrong = "has values that are not finite"
        if not wrong and (0 < (sizes := np.abs(np.diagonal(M))).min() < 1e-300 or sizes.max() > 1e300):
            wrong = f"has diagonal entries from {sizes.min():.3g} to {sizes.max():.3g}, beyond 1e-300 to 1e300"
        if not wrong and (apart := np.abs(M - M.T).max()) > 1e-8 * np.abs(M).max():
            wrong = f"differs from its transpose by up to {apart:.3g}"
        if wrong:
            raise ValueError(
                f"metric {wrong}; a finite and symmetric matrix of shape {(d, d)} was expected, such as the "
                "covariance of noise."
            )
        M = (M + M.T) / 2
        rank = Scatter.of(M, np.zeros(d), EPS, d).rank
        if rank < d:
            raise ValueError(
                f"metric has {rank} directions of positive length to rounding; {d} were expected. Add a multiple of "
                "the identity to it."
            )
        return M

    def _empty(self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Accumulator | None = None) -> Moments:
        self._metric(d)
        return Moments(d)

    def _pairs(self, kept: KeptRows) -> list[Pair]:
        return [(Sums.of(kept.state, kept.roundings[0], kept.state), Sums.known(self._metric(kept.state.n_features)))]

    def _facts(self, state: Moments, found: list[PencilAxes]) -> dict[str, Unchecked]:
        return {"mean_": state.mean}


@with_parameters
class CorrespondenceAnalysis(PencilModel):
    """Correspondence analysis of a table of counts or other amounts, in one read of its rows.

    PCA of row profiles ``x / sum(x)``, each with the sum as its weight, in the metric of chi-square distances: columns
    are divided by the roots of their masses. Centred in the read, so that small inertias keep their digits. Scores are
    the principal coordinates of rows (Greenacre 2017, chapter 8). The axes after the first one of a PCA of counts that
    are scaled for Poisson noise, without centring (Keenan & Kotula 2004), are these axes.

    Parameters
    ----------
    n_components : int or None, default None
        None for all axes whose inertia is more than rounding.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values raise an error, or are left out. Negative values raise an error.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,), descending
        Principal inertias.
    total_inertia_ : float
        Chi-square statistic of the table, divided by the sum of all amounts.
    explained_inertia_ratio_ : ndarray of shape (k,)
    components_ : ndarray of shape (k, d)
        Standard coordinates of columns: scores are ``components_ (profile - mean_)``.
    column_coordinates_ : ndarray of shape (d, k)
        Principal coordinates of columns; 0 of columns of zeros.
    mean_ : ndarray of shape (d,)
        Masses of the columns: their shares of all amounts.
    patterns_, rank_, solve_error_, n_samples_, n_omitted_
        See :class:`bigpca.estimators.linear.pencils.PencilModel`; ``inverse_transform`` returns profiles. Rows of
        zeros weigh nothing and do not count; their scores are those of a profile of zeros.

    Examples
    --------
    >>> table = np.array([[20.0, 5, 1], [6, 20, 4], [1, 5, 20]])
    >>> model = CorrespondenceAnalysis(1).fit(table)
    >>> model.eigenvalues_.round(3).tolist(), round(model.total_inertia_, 3)
    ([0.539], 0.762)
    """

    _pencil = Pencil(unknown="left out")
    _traits = Traits(
        CorrespondenceResult, "ca", unweighted="the sum of a row is its weight",
        summary=(("inertia", "eigenvalues_"), ("share", "explained_inertia_ratio_")),
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY

    def _rows(self, rows: Rows, y: Unchecked) -> Rows:
        found = super()._rows(rows, y)
        return replace(found, steps=found.steps[:-1])  # the sums have the profiles and weights

    def _preprocessors(self) -> tuple[RowPreprocessor, ...]:
        return (*super()._preprocessors(), PROFILE)

    def _learns(self, rows: Rows) -> tuple[RowPreprocessor, ...]:
        if rows.covariates is not None:
            raise TypeError("CorrespondenceAnalysis() takes amounts of at least 0: leave out covariates, or use PCA.")
        return ()

    def _empty(
        self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Accumulator | None = None
    ) -> ProfileMoments:
        if d < 2:
            raise ValueError(f"n_features = {d}, but a profile of one column is 1 in each row. Give more columns.")
        return ProfileMoments.of(d)

    def _pairs(self, kept: KeptRows) -> list[Pair]:
        profiles = kept.state.moments
        inertia = replace(Sums.of(profiles, kept.roundings[0], profiles), divisor=profiles.weight)
        return [(inertia, Sums.known(np.diag(profiles.mean)))]

    def _facts(self, state: ProfileMoments, found: list[PencilAxes]) -> dict[str, Unchecked]:
        profiles = state.moments
        masses, squares = profiles.mean, profiles.squares / profiles.weight
        inertia = np.divide(squares, masses, out=np.zeros_like(masses), where=masses > 0)
        return {"mean_": masses, "total_inertia_": float(inertia.sum())}

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags
