"""One pencil for many methods: two symmetric matrices A and B, summed over rows, and the axes of extreme v'Av / v'Bv.

A method is a row of :data:`PENCILS`: what is summed, what is solved, and what the scores are called. All are solved by
:func:`bigpca.solvers.moments`: columns may have any units, and may be dependent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from scipy.linalg import eigh

from bigpca.arrays import Matrix, Vector, packed_diagonal, unpack
from bigpca.blas import blas_threads
from bigpca.errors import positive_integer, warn_approximation
from bigpca.estimators.linear.maps import Projection, Reconstruction
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.linear.sums import SumsModel, SumsResult
from bigpca.estimators.shared.folds import placed_in_folds
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.accumulators.stepped_moments import SteppedMoments
from bigpca.passes.rows import Rows
from bigpca.records import stored
from bigpca.settings import setting
from bigpca.solvers.components import check_total
from bigpca.solvers.eigh import ENOUGH, EPS, NOISE, rounded_squares
from bigpca.solvers.moments import Scatter

UNWEIGHTED = "a step belongs to two rows"


@dataclass(frozen=True)
class Sums:
    """A sum of squares over rows: a symmetric matrix (d, d), its divisor, and the rounding of the stored values in it.

    Attributes
    ----------
    matrix : ndarray of shape (d, d)
    divisor : float
    noise : ndarray of shape (d,)
        What that rounding adds to the diagonal.
    """

    matrix: Matrix
    divisor: float
    noise: Vector

    @classmethod
    def of(cls, moments: Moments, eps: float, level: Moments, *, about_zero: bool = False) -> Sums:
        """Return the scatter of moments, or their squares about 0, of rows that were rounded as large as ``level``."""
        matrix, n = unpack(moments.packed, moments.n_features), moments.weight
        if about_zero:
            matrix += n * np.outer(moments.mean, moments.mean)
        squares = packed_diagonal(level.packed, level.n_features)
        noise = rounded_squares(squares, level.mean, level.weight, eps) * (n / max(level.weight, 1))
        return cls(matrix, n if about_zero else n - 1, noise)


@dataclass(frozen=True)
class Pencil:
    """A method: axes v that make ``v'A v / v'B v`` extreme.

    Attributes
    ----------
    summed : callable
        (state, eps of the stored values) -> A and B.
    eigenvalue : callable
        From ``v'A v / v'B v``.
    order : callable
        A key of eigenvalues, whose smallest come first.
    of_a : bool
        Whether scores have unit ``v'A v``, or else unit ``v'B v``.
    """

    summed: Callable[[SteppedMoments, float], tuple[Sums, Sums]]
    eigenvalue: Callable[[Vector], Vector]
    order: Callable[[Vector], Vector]
    of_a: bool = False


def _slowness(state: SteppedMoments, eps: float) -> tuple[Sums, Sums]:
    return Sums.of(state.steps, eps * np.sqrt(2), state.level), Sums.of(state.level, eps, state.level)


def _noise(state: SteppedMoments, eps: float) -> tuple[Sums, Sums]:
    steps, rows = _slowness(state, eps)
    return replace(steps, divisor=2 * steps.divisor), rows


def _lagged(state: SteppedMoments, eps: float) -> tuple[Sums, Sums]:
    # With s = x + y and d = y - x about the common mean of x and y, which is that of s / 2:
    # X'X + Y'Y = (S'S + D'D) / 2 and X'Y + Y'X = (S'S - D'D) / 2, so lambda = 1 - 2 v'D'D v / v'(S'S + D'D) v.
    d, s = Sums.of(state.steps, eps, state.level, about_zero=True), Sums.of(state.level, eps, state.level)
    both = Sums(d.matrix + s.matrix, 4 * d.divisor, d.noise + s.noise)
    return replace(d, divisor=both.divisor), both


PENCILS = {
    # method: A and B, the eigenvalue by v'Av / v'Bv, those that come first, and the unit of scores
    "SlowFeatureAnalysis": Pencil(_slowness, lambda ratio: ratio, lambda slowness: slowness),
    "MinimumNoiseFraction": Pencil(_noise, lambda ratio: 1 / ratio, lambda signal: -signal, of_a=True),
    "TICA": Pencil(_lagged, lambda ratio: 1 - 2 * ratio, lambda correlation: -np.abs(correlation)),
}


@dataclass(frozen=True, kw_only=True)
class PencilResult(SumsResult):
    """The result of a fit of a pencil, whose attributes it has."""

    patterns_: Matrix = stored("d", "k")
    eigenvalues_: Vector = stored("k")
    rank_: int = stored(of=int, least=0)
    solve_error_: float = stored(of=float, least=0)
    lag: int = stored(of=int, least=1)


class PencilModel(SumsModel[PencilResult]):
    """Scores ``components_ (x - mean_)`` along axes v of extreme ``v'A v / v'B v``, from one read of ordered rows.

    Pairs of rows at a lag are formed in the task that reads them, in float64, however the rows are cut; a row with
    missing values that is left out takes its pairs with it. With ``fit(X, groups=labels)`` only rows of one label are
    pairs: trajectories, runs, or images. Rows that ``partial_fit`` or :func:`bigpca.merge` add are trajectories of
    their own: no pair has one row before and one after the border.

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
        Estimated relative error of the axes by rounding; above 1e-3 with a warning.
    n_samples_, n_omitted_ : int
    """

    def _placed(self, template: SteppedMoments, rows: Rows, y: Unchecked) -> SteppedMoments:
        if template.width and not np.isnan(rows.n_rows) and rows.n_rows % template.width:
            raise ValueError(
                f"width = {template.width} does not divide {rows.n_rows:,} rows. Give the number of pixels of a line "
                "of an image whose rows are its pixels, line by line."
            )
        if rows.groups is None:
            return template
        placed = placed_in_folds(FoldStates(Moments(1), 1), rows, rows.groups, least=1)
        return replace(template, codes=placed.codes)

    def _finished(self, state: SteppedMoments) -> SteppedMoments:
        return state.finished()

    def _solved(self, state: SteppedMoments, omitted: int, roundings: tuple[float, ...]) -> PencilResult:
        """Return the axes of the pencil, of unit ``v'A v`` or ``v'B v``.

        Raises
        ------
        ValueError
            For constant rows, fewer than two pairs, and more components than axes exist.
        """
        pencil, d, state = PENCILS[type(self).__name__], state.n_features, self._finished(state)
        check_enough_rows(state.count, omitted)
        if state.steps.count < 2:
            raise ValueError(
                f"{state.count:,} rows have {state.steps.count} pairs at a lag of {state.lag}; at least 2 were "
                "expected. Give trajectories that are longer than the lag."
            )
        A, B = pencil.summed(state, roundings[0])
        check_total(float(np.trace(B.matrix)))
        with blas_threads(None, 12.0 * d**3):
            # V'BV = I on the range of B, in whatever units columns are; then V'AV = U diag(ratio) U'.
            scatter = Scatter.of(B.matrix, B.noise, EPS, (2 * state.steps.count if state.sums else state.count) - 1)
            solution = scatter.solved()
            K = solution.across(solution.across(scatter.frame.congruent(A.matrix)).T)
            ratios, U = eigh((K + K.T) / 2, driver="evd") if len(K) else (np.zeros(0), K)
        error = solution.error
        if solution.triangular is None:  # directions that are left out are no error of the others
            error = scatter.level * float((scatter.spectral.inverse**2).sum(axis=1).max(initial=0.0))
        k = len(ratios) if self.n_components is None else self.n_components
        if not len(ratios) or k > len(ratios):
            raise ValueError(
                f"{k} components of {d} columns were requested, but the rows vary in {len(ratios)} directions only, to "
                "the rounding of their values. Ask for fewer, or give other rows."
            )
        ratios, axes, patterns = np.maximum(ratios, 0.0), solution.along(U).T, solution.products(U)
        # What rounding alone makes of v'A v: of the stored values, and of the solve.
        known = ratios > NOISE * (axes**2 @ A.noise) + d * EPS * float(ratios.max())
        if pencil.of_a and not known.all():
            raise ValueError(
                f"{np.count_nonzero(~known)} of {len(known)} directions vary, but rows that are pairs do not differ "
                "along them by more than the rounding of their values: there is no noise to divide by. Leave out "
                "columns that are constant in space or follow from others."
            )
        values = pencil.eigenvalue(ratios * (B.divisor / A.divisor))
        own = np.argsort(pencil.order(values), kind="stable")[:k]
        if not known[own].all():
            warn_approximation(
                f"{np.count_nonzero(~known[own])} of {k} components change between rows by no more than the rounding "
                "of their values, so their eigenvalues are not known. Give float64 rows, or a larger lag."
            )
        axes, patterns = axes[own], patterns[:, own]
        root = np.sqrt(A.divisor / ratios[own] if pencil.of_a else np.full(k, B.divisor))
        root *= np.sign(axes[np.arange(k), np.abs(axes).argmax(axis=1)])  # as fix_signs, of the patterns too
        kept = state.state_bytes <= setting(self, "keep_state_bytes")
        return PencilResult(
            n_samples_=state.count, n_omitted_=omitted, mean_=state.level.mean / (2 if state.sums else 1),
            components_=axes * root[:, None], patterns_=patterns / root, eigenvalues_=values[own], rank_=len(ratios),
            solve_error_=error, lag=state.lag, roundings=roundings, state=state if kept else None,
        )  # fmt: skip

    def _warn(self, found: PencilResult, n_classes: int = 1) -> None:
        super()._warn(found)
        if found.solve_error_ > ENOUGH:
            warn_approximation(
                f"the columns are so nearly dependent that rounding may change the axes by {found.solve_error_:.1g} of "
                "their size (solve_error_). Leave out columns that follow from others."
            )

    def _row_map(self) -> Projection:
        return Projection(self.mean_, None, self.components_, None, self.nan_policy)

    def _reconstruction(self) -> Reconstruction:
        return Reconstruction(self.mean_, None, np.ascontiguousarray(self.patterns_.T), None)


@with_parameters
class SlowFeatureAnalysis(PencilModel):
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
        See :class:`bigpca.estimators.supervised.pencils.PencilModel`.

    Examples
    --------
    >>> import numpy as np
    >>> t = np.arange(2000.0)
    >>> X = np.stack([np.sin(t / 20) + np.sin(2 * t), np.sin(2 * t)], axis=1)
    >>> SlowFeatureAnalysis(1).fit(X).eigenvalues_.round(4).tolist()
    [0.0025]
    """

    _traits = Traits(
        PencilResult, "sfa", frozenset({"groups"}), unweighted=UNWEIGHTED,
        summary=(("slowness", "eigenvalues_"),),
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY

    def _template(self, d: int) -> SteppedMoments:
        return SteppedMoments.of(d, 1)


@with_parameters
class MinimumNoiseFraction(PencilModel):
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
        See :class:`bigpca.estimators.supervised.pencils.PencilModel`.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).standard_normal((20, 30, 3))
    >>> image = noise + np.sin(np.arange(30) / 9)[:, None] * [9, 5, 2]
    >>> bool(MinimumNoiseFraction(1, width=30).fit(image.reshape(600, 3)).noise_fractions_[0] < 0.15)
    True
    """

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

    def _template(self, d: int) -> SteppedMoments:
        width = 0 if self.width is None else positive_integer("width", self.width)
        return SteppedMoments.of(d, width + 1, width=width)


@with_parameters
class TICA(PencilModel):
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
        See :class:`bigpca.estimators.supervised.pencils.PencilModel`.

    Examples
    --------
    >>> import numpy as np
    >>> t = np.arange(400.0)
    >>> X = np.stack([np.sin(t / 40) + np.sin(2 * t), np.sin(2 * t)], axis=1)
    >>> TICA(1, lag=5).fit(X).eigenvalues_.round(2).tolist()
    [0.99]
    """

    _traits = Traits(
        PencilResult, "tica", frozenset({"groups"}), unweighted=UNWEIGHTED,
        summary=(("autocorrelation", "eigenvalues_"), ("timescale", "timescales_")),
    )  # fmt: skip

    n_components: int | None = None
    _: KW_ONLY
    lag: int = 1

    @property
    def timescales_(self) -> Vector:
        """Implied timescales, in rows; infinite for an eigenvalue of 1."""
        with np.errstate(divide="ignore"):
            return -self._result.lag / np.log(np.abs(self._result.eigenvalues_))

    def _template(self, d: int) -> SteppedMoments:
        return SteppedMoments.of(d, positive_integer("lag", self.lag), sums=True)
