"""One pencil for many methods: two symmetric matrices A and B, summed over rows, and the axes of extreme v'Av / v'Bv.

Each class states its method as a :class:`Pencil`: what is summed, which axes come first, and the unit of the scores.
All are solved by :mod:`bigpca.solvers.moments`: columns may have any units, and may be dependent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from sklearn.utils import Tags

from bigpca.arrays import Matrix, Vector, unmasked, unpack
from bigpca.blas import blas_threads
from bigpca.data.labels import ClassLabels, merge_classes, open_labels, reject_gaps
from bigpca.errors import brief, counted, listed, warn_approximation
from bigpca.estimators.linear.maps import Projection, Reconstruction, SecondRead
from bigpca.estimators.linear.pca import PCA, moments_of_both
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.linear.sums import SumsModel, SumsResult
from bigpca.estimators.shared.exporting import FeatureAxes, LinearExports
from bigpca.estimators.shared.growing import kept_by
from bigpca.estimators.shared.inputs import Unchecked, check_parameters
from bigpca.estimators.shared.opening import placed_in_folds, set_known
from bigpca.estimators.shared.results import KeptRows, Traits
from bigpca.estimators.shared.transformer import OF_ALL, with_parameters
from bigpca.parameters import Parameter
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.accumulators.moments import PROFILE, Moments, ProfileMoments
from bigpca.passes.accumulators.paired_moments import SteppedMoments
from bigpca.passes.reading.row_maps import RowPreprocessor
from bigpca.passes.rows import Rows
from bigpca.records import stored
from bigpca.solvers.components import check_total
from bigpca.solvers.eigh import ENOUGH, EPS, NOISE, rounded_squares, stored_squares
from bigpca.solvers.moments import Scatter, graded_svd, warn_dependent, warn_stored

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
class TimescalesResult(PencilResult):
    """That of rows and of those a lag later."""

    lag: int = stored(of=int, least=1)

    @property
    def timescales_(self) -> Vector:
        """Implied timescales (k,), in rows; infinite for an eigenvalue of 1."""
        with np.errstate(divide="ignore"):
            return np.abs(self.lag / np.log(np.abs(self.eigenvalues_)))


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
    def _pair(self, kept: KeptRows) -> Pair:
        """Return A and B."""

    @abstractmethod
    def _facts(self, state: Unchecked) -> dict[str, Unchecked]:
        """Return the mean of rows, and what else the result holds."""

    def _checked(self, kept: KeptRows) -> Pair:
        check_enough_rows(kept.state.count, kept.n_omitted_, sums=getattr(kept.state, "weight_sums", None))
        return self._pair(kept)

    def _solve(self, kept: KeptRows, again: SecondRead | None = None) -> PencilResult:
        """Return the axes of the pencil, of unit ``v'A v`` or ``v'B v``.

        Raises
        ------
        ValueError
            For constant rows, fewer than two pairs, and more components than axes exist.
        """
        pencil, (A, B) = self._pencil, self._checked(kept)
        S_a, S_b = (A, B) if again is None else self._pair(replace(kept, state=again.state))
        d, a, b = len(B.noise), np.diagonal(S_a.matrix), np.diagonal(S_b.matrix)
        units = np.divide(a, b, out=np.zeros(d), where=b > 0)
        graded = not pencil.signed and units.max() / GRADED > units[units > 0].min(initial=np.inf)
        # So that no step of a Cholesky factorization adds large numbers to small ones.
        order = np.argsort(units) if graded and again is None else np.arange(d)
        at, back = np.ix_(order, order), np.argsort(order)
        with blas_threads(None, 12.0 * d**3):
            # V'BV = I on the range of B, in whatever units columns are; then V'AV = U diag(ratio) U'.
            if again is None:
                scatter = Scatter.of(B.matrix[at], B.noise[order], EPS, B.freedom)
                inner = scatter.frame.congruent(A.matrix[at])
            else:  # summed in the frame of the second read
                scatter, inner = Scatter(S_b.matrix, again.frame, EPS, B.freedom), S_a.matrix
            solution = scatter.solved()
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
        if pencil.unknown == "reported":
            warn_stored(float(rounded[own].max()), kept.roundings)
        axes, patterns = axes[own], patterns[:, own]
        root = np.sqrt(A.divisor / ratios[own] if pencil.of_a else np.full(k, B.divisor))
        root *= np.sign(axes[np.arange(k), np.abs(axes).argmax(axis=1)])  # as fix_signs, of the patterns too
        return self._result_of(
            kept, components_=axes * root[:, None], patterns_=patterns / root, eigenvalues_=values[own], rank_=rank,
            solve_error_=1.0 if cut else solution.error, cut=cut, **self._facts(kept.state),
        )  # fmt: skip

    def _warn(self, found: PencilResult, n_classes: int = 1) -> None:
        super()._warn(found)
        of, remedy = self._pencil.dependent
        if found.cut:
            names = getattr(self, "feature_names_in_", np.arange(len(found.mean_)))[list(found.cut)]
            of, remedy = f"the columns {listed(names)}", f"{remedy} Or fit all rows at once, which reads them again."
        warn_dependent(found.solve_error_, of, remedy)

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

    def _empty(
        self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Accumulator | None = None
    ) -> SteppedMoments:
        template = self._steps_in(d, rows)
        if rows is None:
            return template
        if like is None and not (np.isnan(rows.n_rows) or rows.order.open_ended):
            reject_few_pairs(max(rows.n_rows - template.lag, 0), rows.n_rows, template.lag)
        if rows.groups is None:
            return template
        codes = np.array(placed_in_folds(FoldStates(Moments(1), 1), rows, rows.groups, least=1).codes)
        own = rows.counted.which(len(codes))
        codes[own] = np.cumsum(np.diff(codes[own], prepend=codes[own][:1]) != 0)
        return replace(template, codes=codes)

    def _pair(self, kept: KeptRows) -> Pair:
        """Return the steps of rows, and the rows themselves."""
        state, rounding = cast("SteppedMoments", kept.state), kept.roundings[0]
        reject_few_pairs(state.steps.count, state.count, state.lag)
        return Sums.of(state.steps, rounding, state.level, terms=2), Sums.of(state.level, rounding, state.level)

    def _doubt(self, kept: KeptRows, solved: PencilResult | None = None) -> SecondRead | None:
        if solved is not None:
            return None
        _, B = self._checked(kept)
        scatter = Scatter.of(B.matrix, B.noise, EPS, B.freedom)
        if not scatter.cut and scatter.solved().error <= self._enough:
            return None
        return SecondRead(self._facts(kept.state)["mean_"], slice(None), scatter.refined())

    def _facts(self, state: SteppedMoments) -> dict[str, Unchecked]:
        return {"mean_": state.level.mean}


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
        PencilResult, "sfa", frozenset({"groups"}), unweighted=UNWEIGHTED,
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
    that of the differences of neighbours (Green, Berman, Switzer & Craig 1988). With the moments of other differences,
    such as those along time, ``GeneralizedPCA.of`` has the same axes. Scores have noise of variance 1, so
    that a PCA or a threshold treats all alike; ``inverse_transform`` of the first scores removes noise. Without noise
    estimates of your own, this is also the noise-adjusted PCA and the maximum autocorrelation factors (MAF).

    Parameters
    ----------
    n_components : int or None, default None
        None for all that exist.
    width : int or None, default None
        Pixels of a line: the neighbour of a pixel is the next of the next line, at a lag of ``width + 1``, as in
        ``spectral.mnf``; the ends of lines have none. None for rows whose neighbour is the next row.
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
        PencilResult, "mnf", frozenset({"groups"}), unweighted=UNWEIGHTED,
        summary=(("signal", "eigenvalues_"), ("noise_fraction", "noise_fractions_")),
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY
    width: int | None = None

    @property
    def noise_fractions_(self) -> Vector:
        """Shares of the noise in the variances of the scores."""
        return 1 / self._result.eigenvalues_

    def _steps_in(self, d: int, rows: Rows | None) -> SteppedMoments:
        if rows is not None and not (np.isnan(rows.n_rows) or rows.order.open_ended):
            self._check_lines(rows.n_rows)
        return SteppedMoments.of(d, (self.width or 0) + 1, width=self.width)

    def _check_lines(self, n: int) -> None:
        if self.width and n % self.width:
            raise ValueError(
                f"width = {self.width} does not divide {n:,} rows. Give the pixels of a line of an image, whose "
                "rows are its pixels, line by line."
            )

    def _pair(self, kept: KeptRows) -> Pair:
        self._check_lines(kept.state.count + kept.n_omitted_)  # of batches known only now
        A, B = super()._pair(kept)
        return replace(A, divisor=2 * A.divisor), B


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
    lag : int, default 1
        Rows.
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
    lag: int = 1

    def _steps_in(self, d: int, rows: Rows | None) -> SteppedMoments:
        return SteppedMoments.of(d, self.lag, sums=True)

    def _pair(self, kept: KeptRows) -> Pair:
        # With s = x + y and d = y - x about the common mean of x and y, which is that of s / 2:
        # X'X + Y'Y = (S'S + D'D) / 2 and X'Y + Y'X = (S'S - D'D) / 2, so lambda = 1 - 2 v'D'D v / v'(S'S + D'D) v.
        # The sum of two rows is twice as large as they are, and has the rounding of two.
        state, rounding = cast("SteppedMoments", kept.state), kept.roundings[0]
        reject_few_pairs(state.steps.count, state.count, state.lag)
        s = Sums.of(state.level, rounding, state.level, terms=0.5)
        d = Sums.of(state.steps, rounding, state.level, terms=0.5, about_zero=True)
        both = Sums(d.matrix + s.matrix, 4 * d.divisor, d.noise + s.noise, d.stored + s.stored, 2 * d.freedom + 1)
        return replace(d, divisor=both.divisor), both

    def _facts(self, state: SteppedMoments) -> dict[str, Unchecked]:
        return {"mean_": state.level.mean / 2, "lag": state.lag}


class OfModels(PencilModel):
    """A pencil of two covariances, which two fitted PCAs know as well."""

    @abstractmethod
    def _known(self, model: PCA, other: PCA, moments: Moments, others: Moments) -> tuple[Accumulator, int]:
        """Return the state that a fit would have kept, from the moments of both, and the number of omitted rows."""

    @classmethod
    def of(cls, model: PCA, other: PCA, n_components: int | None = None, **parameters: Unchecked) -> Self:
        """Return the model of two fitted PCAs that kept their moments; nothing is read.

        Columns are centred at their means and not divided, whatever ``center``, ``scale`` and ``whiten`` of the models
        are: eigenvalues, ``mean_`` and scores are in the units of the rows. With the moments of noise as the metric of
        :class:`GeneralizedPCA`, ratios are signal-to-noise ratios; with those of differences of neighbours, the first
        axes are the slowest. :meth:`bigpca.PCA.of_group` makes two models of one fit.

        Parameters
        ----------
        model, other : fitted PCA
            Of the rows, and of the background, or of the rows whose covariance is the metric; not changed.
        n_components : int or None, default None
            As for the class.
        **parameters
            Others of the class, such as ``alpha``.

        Returns
        -------
        ContrastivePCA or GeneralizedPCA
            Fitted; the metric is a parameter. ``partial_fit`` and :func:`bigpca.merge` add rows.

        Raises
        ------
        TypeError, ValueError
            For models of another class, of other features or preprocessing, with covariates, or without moments; if
            ``center`` or ``scale`` was changed after the fit; and if the metric has directions of no variance.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X, Y = rng.standard_normal((200, 3)) * [9, 3, 1], rng.standard_normal((200, 3)) * [9, 1, 1]
        >>> models = PCA().fit(X), PCA().fit(Y)
        >>> [np.abs(ContrastivePCA.of(*models, 1, alpha=a).components_[0]).round(1).tolist() for a in (0, 2)]
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
        >>> bool(8 < GeneralizedPCA.of(*models, 1).eigenvalues_[0] < 12)
        True
        """
        moments = moments_of_both(model, other, f"{cls.__name__}.of")
        if model._steps.covariates or other._steps.covariates:
            raise ValueError("models with covariates cannot be contrasted. Fit both without.")
        make: Unchecked = cls
        made = cast("Self", make(n_components, **parameters, **{name: getattr(model, name) for name in OF_ALL}))
        check_parameters(made)
        kept, d = made._known(model, other, *moments), model.n_features_in_
        roundings = tuple(map(max, kept_by(other).roundings, kept_by(model).roundings))
        made._found = made._solve(KeptRows(*kept, roundings))
        made.n_features_in_, made.solver_ = d, model.solver_
        made._steps = made._steps_of(d, model._steps.view, model._steps.grid)
        names, (one, two) = vars(model).get("feature_names_in_"), (model.provenance_, other.provenance_)
        set_known(made, feature_names_in_=names, _provenance=one and two and one.merged(two))
        return made


@with_parameters
class ContrastivePCA(OfModels):
    """Contrastive PCA: the directions that vary more in some rows than in the background, in one read of both.

    The axes are the eigenvectors of ``C - alpha B``, with the covariances C of the rows of interest and B of the
    background (Abid, Zhang, Bagaria & Zou 2018). Columns are centred, each kind of rows about its own mean, and not
    standardised; the package ``contrastive`` standardises by default: divide by deviations first for its numbers.
    ``fit(["target.zarr", "background.zarr"], y)`` reads two dumps side by side; :meth:`of` takes two fitted PCAs and
    reads nothing.

    Parameters
    ----------
    n_components : int or None, default None
        None for d.
    alpha : float, default 1.0
        How much variance of the background counts against a direction; 0 is PCA. To compare several from one read of
        each kind, use :meth:`of`.
    background : label, default 0
        What y is in the rows of the background; all other rows are of interest.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values raise an error, or are left out.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,), descending
        Variance of the rows of interest less alpha times that of the background; may be negative.
    components_ : ndarray of shape (k, d)
        Orthonormal.
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
        PencilResult, "cpca", frozenset({"labels"}),
        ranges={"alpha": Parameter("", "[0, inf)", "a number such as 1,")},
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY
    alpha: float = 1.0
    background: object = 0

    def _known(self, model: PCA, other: PCA, moments: Moments, background: Moments) -> tuple[Accumulator, int]:
        # As a fit would have kept them: first the background, then the rows of interest.
        state = replace(self._empty(model.n_features_in_), states=(background, moments))
        return state, model.n_omitted_ + other.n_omitted_

    def _empty(
        self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Accumulator | None = None
    ) -> FoldStates:
        template = FoldStates(Moments(d), 2)
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

    def _pair(self, kept: KeptRows) -> Pair:
        kinds = cast("tuple[Moments, Moments]", kept.state.states)
        self._check_kinds(*(one.count for one in kinds))
        for one in kinds:
            check_enough_rows(one.count, sums=one.weight_sums)
        B, C = (covariance_of(one, kept.roundings[0]) for one in kinds)
        with np.errstate(over="ignore"):
            A = C - self.alpha * B
        if not np.isfinite(A).all():
            raise ValueError(f"alpha = {self.alpha:g} times the covariance of the background overflows float64.")
        return Sums.known(A), Sums.known(np.eye(len(C)))

    def _facts(self, state: FoldStates) -> dict[str, Unchecked]:
        return {"mean_": cast("Moments", state.states[1]).mean}


@with_parameters
class GeneralizedPCA(OfModels):
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

    def _known(self, model: PCA, other: PCA, moments: Moments, noise: Moments) -> tuple[Accumulator, int]:
        self.metric = covariance_of(noise)
        return moments, model.n_omitted_

    def _metric(self, d: int) -> Matrix:
        from bigpca.data.label_files import whole  # all formats of labels, of no use to other fits

        if self.metric is None:
            return np.eye(d)
        held = whole(self.metric, "metric", "number", f"A matrix of {d} x {d} numbers")
        try:
            M = unmasked(held).astype(np.float64, casting="same_kind")
        except (TypeError, ValueError):
            raise TypeError(f"metric = {brief(repr(self.metric))} is not a matrix of real numbers.") from None
        sizes = np.abs(np.diagonal(M)) if M.shape == (d, d) and np.isfinite(M).all() else np.zeros(0)
        apart = np.abs(M - M.T).max() if len(sizes) else 0.0
        if not len(sizes) or 0 < sizes.min() < 1e-300 or sizes.max() > 1e300 or apart > 1e-8 * np.abs(M).max():
            raise ValueError(
                f"metric has shape {M.shape} and differs from its transpose by up to {apart:.3g}; a finite and "
                f"symmetric matrix of shape {(d, d)}, with a diagonal of 1e-300 to 1e300, was expected, such as the "
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

    def _pair(self, kept: KeptRows) -> Pair:
        return Sums.of(kept.state, kept.roundings[0], kept.state), Sums.known(self._metric(kept.state.n_features))

    def _facts(self, state: Moments) -> dict[str, Unchecked]:
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

    def _rows(self, rows: Rows, y: Unchecked, like: KeptRows | None = None) -> Rows:
        found = super()._rows(rows, y)
        return replace(found, steps=found.steps[:-1])  # the sums have the profiles and weights

    def _preprocessors(self) -> tuple[RowPreprocessor, ...]:
        return (*super()._preprocessors(), PROFILE)

    def _learns(self, rows: Rows) -> tuple[RowPreprocessor, ...]:
        raise TypeError("CorrespondenceAnalysis() takes amounts of at least 0: leave out covariates, or use PCA.")

    def _empty(
        self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Accumulator | None = None
    ) -> ProfileMoments:
        if d < 2:
            raise ValueError(f"n_features = {d}, but a profile of one column is 1 in each row. Give more columns.")
        return ProfileMoments.of(d)

    def _pair(self, kept: KeptRows) -> Pair:
        profiles = kept.state.moments
        inertia = replace(Sums.of(profiles, kept.roundings[0], profiles), divisor=profiles.weight)
        return inertia, Sums.known(np.diag(profiles.mean))

    def _facts(self, state: ProfileMoments) -> dict[str, Unchecked]:
        profiles = state.moments
        masses, squares = profiles.mean, profiles.squares / profiles.weight
        inertia = np.divide(squares, masses, out=np.zeros_like(masses), where=masses > 0)
        return {"mean_": masses, "total_inertia_": float(inertia.sum())}

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags
