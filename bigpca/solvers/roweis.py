"""The Roweis family from sufficient statistics: every (r1, r2) by one rotation, supervised PCA by a thin matrix.

And the classifier that a covariance within classes and the class means make: linear discriminant functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigpca.arrays import Matrix, Vector, norm_of
from bigpca.blas import blas_threads
from bigpca.records import stored
from bigpca.solvers.eigh import ROUNDED, complete_orthonormal, fix_signs, top_eigenpairs
from bigpca.solvers.moments import Scatter, Solution

STRENGTHENED = 1e-8  # of R2's largest eigenvalue, where the mean of those replaced is 0
FLOAT64 = float(np.finfo(np.float64).eps)
CENTRED = 1e3 * FLOAT64  # relative error of a row less the mean of its class


@dataclass(frozen=True)
class Axes:
    """Directions U (d, k) with ``U'R1 U = s diag(values)`` and ``U'R2 U = s I``, for the s of
    :meth:`RoweisFamily.unit`.

    Attributes
    ----------
    values : ndarray of shape (k,), descending
        Generalised eigenvalues ``u'R1 u / u'R2 u``.
    components : ndarray of shape (k, d); U'
    rank : int
        Of R1 within the range of R2: eigenvalues above rounding.
    inverses : ndarray of shape (c + 1, d), or None
        Where r2 = 1: what :class:`bigpca.solvers.roweis.Discriminants` classify by.
    error : float
        Estimated relative error by the rounding of S_W, which R2^-1 magnifies; 0 where r2 = 0.
    """

    values: Vector = stored("k")
    components: Matrix = stored("k", "d")
    rank: int = stored(of=int, least=0)
    inverses: Matrix | None = stored("e", "d", default=None)
    error: float = stored(of=float, least=0, default=0.0)


@dataclass(frozen=True)
class Conditioning:
    """What is done where R2 is singular.

    Attributes
    ----------
    robust : float or None
        Replace the trailing eigenvalues of R2, all but the fewest that hold this share of their sum, by their mean
        (RDA paper, section 5.2).
    regularization : None, "pinv" or float
        Reject; leave out the null space of R2; or add that multiple of I to R2.
    """

    robust: float | None = None
    regularization: float | str | None = None


PLAIN = Conditioning()


class RoweisFamily:
    """All ``max tr(U'R1 U) s.t. U'R2 U = I`` over (r1, r2), from one rotation into the eigenvectors of S_W.

    ``R1 = r1 Psi Psi' + (1 - r1) S_T`` and ``R2 = r2 S_W + (1 - r2) I``, with ``S_T = S_W + S_B``: in those axes R2 is
    diagonal for every r2, so a whole grid costs one (d, d) eigenproblem to begin with and one more, of the k leading
    pairs only, for each of its models (RDA paper, eqs. 31-36).

    NOTE: the paper's axes have ``U'R2 U = I``, whose length shrinks like n^-1/2 where r2 > 0. Here it is ``U'R2 U = s
    I`` with ``s = r2 (n - c) + 1 - r2``: ``R2 / s`` is a weighted mean of the covariance within classes ``S_W / (n -
    c)`` and of I, so that axes have unit deviation within classes where r2 = 1, and unit length where r2 = 0. With
    ``normalize``, ``s = (a (n - c))^r2``, a the scale of S_W: the same at both ends, and lengths that follow a unit of
    the rows as its power -r2 between them.
    Directions and eigenvalues are the paper's.

    Parameters
    ----------
    within : Scatter
        S_W (d, d); the total scatter if there are no classes. With n rows, at most ``n - c`` eigenvalues are not 0.
    between : ndarray of shape (c, d)
        Rows ``sqrt(n_c) (mean_c - mean)'``, whose product is S_B.
    psi : ndarray of shape (m, d)
        Psi', ``Delta'H X``.
    normalize : bool
        Scale Psi Psi', S_T and S_W to the trace of I. NOTE: as printed they grow as n^2, n and n while I does not grow,
        so that on large n an even grid of (r1, r2) holds its four corners only.
    divisor : float or None
        Of the covariance within classes: ``n - c``, where n is the sum of the weights of weighted rows; None for that
        of rows, at least 1.
    threads : int or None

    Attributes
    ----------
    values : ndarray of shape (d,), descending
        Eigenvalues of S_W; 0 where they are rounding, in whatever units columns are.
    """

    def __init__(
        self,
        within: Scatter,
        between: Matrix,
        psi: Matrix,
        *,
        divisor: float | None = None,
        normalize: bool = False,
        threads: int | None = None,
    ) -> None:
        # The rotation into the eigenvectors of S_W makes R2 diagonal for every r2 (RDA paper, eq. 31).
        self.within, found = within, within.spectral
        d, r = len(within.S), len(found.s)
        self.values, self.rotation = np.concatenate([found.s**2, np.zeros(d - r)]), found.axes.T
        trace_within, trace_between = float((found.F**2).sum()), float((between**2).sum())
        # What rounding changes in u'S_B u and u'Psi Psi'u, which are squares of products, as sums over squares of u.
        rounding = (d * FLOAT64 + ROUNDED * within.precision) ** 2
        self._lost_of_total, self._lost_of_psi = (rounding * (rows**2).sum(axis=0) for rows in (between, psi))
        self.threads, self.divisor = threads, max(1, within.freedom) if divisor is None else divisor
        self._between, self._psi = between @ self.rotation.T, psi @ self.rotation.T
        traces = (float((psi**2).sum()), trace_within + trace_between, trace_within)
        self._scales = tuple(d / trace if normalize and trace > 0 else 1.0 for trace in traces)
        self._normalize = normalize

    @property
    def size(self) -> int:
        """d."""
        return len(self.values)

    def unit(self, r2: float) -> float:
        """Return s, by which ``R2 / s`` is a weighted mean of the covariance within classes and I; of normalized terms,
        which have no unit, one between the two ends that has none of its own."""
        within = self._scales[2] * self.divisor
        return float(within**r2) if self._normalize else r2 * within + 1.0 - r2

    def inverses(self, rows: Matrix, count: float, conditioning: Conditioning = PLAIN) -> Matrix:
        """Return ``C^-1 rows`` (c, d) with ``C = S_W / count``, conditioned as R2 is where r2 = 1."""
        L, _ = self.constraint(1.0, conditioning)
        # In the axes of S_W, C = S_W / count is diagonal; L has S_W's scale in it, which is divided out again.
        weights = np.divide(self._scales[2] * count, L, out=np.zeros_like(L), where=L > 0)
        return (rows @ self.rotation.T * weights) @ self.rotation

    def constraint(self, r2: float, conditioning: Conditioning = PLAIN) -> tuple[Vector, float]:
        """Return the eigenvalues of R2 (d,) along the rotated axes, 0 for those left out, and what
        was added to a zero mean.

        Raises
        ------
        ValueError
            Where R2 is singular and nothing was said about it, and where it is 0.
        """
        # R2 = r2 S_W + (1 - r2) I, which is diagonal here.
        found = r2 * self._scales[2] * self.values + (1.0 - r2)
        added = 0.0
        if conditioning.robust is not None:
            # RDA paper, section 5.2: trailing eigenvalues become their mean: none is divided by noise.
            shares = np.cumsum(found)
            leading = int(np.searchsorted(shares, conditioning.robust * shares[-1])) + 1
            if leading < len(found):
                mean = float(found[leading:].mean())
                # Where all of them are 0, so is their mean: a small share of the first eigenvalue makes R2 invertible.
                smallest = STRENGTHENED * float(found[0])
                added = smallest if mean < smallest else 0.0
                found = np.concatenate([found[:leading], np.full(len(found) - leading, mean + added)])
        given = conditioning.regularization
        if isinstance(given, float | int) and not isinstance(given, bool):
            found = found + given
        null = found <= 0
        if null.all():
            raise ValueError(
                f"R2 = r2 S_W + (1 - r2) I with r2 = {r2:g} is 0: rows of a class are equal (or differ by less than "
                "1e-150, whose squares float64 does not hold), or there is one row per class, so there is no "
                "within-class scatter. Use r2 < 1, a number as regularization, or more rows of each class."
            )
        if null.any() and given != "pinv":
            raise ValueError(
                f"R2 = r2 S_W + (1 - r2) I with r2 = {r2:g} is singular: {int(null.sum())} of its {len(found)} "
                "eigenvalues are 0 "
                f"to rounding, as rows of a class differ in too few directions (constant features, or d > n - c). Use "
                f'robust=True, regularization="pinv" or a number added to its diagonal, r2 < 1, or fewer features.'
            )
        return np.where(null, 0.0, found), added

    def solve(self, r1: float, r2: float, k: int | None, conditioning: Conditioning = PLAIN) -> Axes:
        """Return the k leading generalised eigenpairs of (R1, R2); all where k is None.

        Cost: 2 c d^2 flops for R1 in rotated axes, and an eigenproblem of order d.
        """
        # R2^-1/2, with 0 for directions that are left out: the substitution V = R2^1/2 U turns the generalised
        # problem into the symmetric one of R2^-1/2 R1 R2^-1/2 (RDA paper, eqs. 33-34).
        L, _ = self.constraint(r2, conditioning)
        root = np.divide(1.0, np.sqrt(L), out=np.zeros_like(L), where=L > 0)
        between, psi = self._between * root, self._psi * root
        # R1 = r1 Psi Psi' + (1 - r1) (S_B + S_W). The first two are thin products; S_W is diagonal in these axes.
        total = (1.0 - r1) * self._scales[1]
        R1 = total * (between.T @ between)
        R1 += (r1 * self._scales[0]) * (psi.T @ psi)
        R1.flat[:: len(R1) + 1] += total * self.values * root**2
        size = int(np.count_nonzero(L))
        wanted = size if k is None else min(k, size)
        values, vectors = top_eigenpairs(R1, wanted, threads=self.threads)
        # Back to the columns of X: U = R2^-1/2 V, scaled to U'R2 U = s I (see NOTE of the class).
        axes = fix_signs((vectors * (root * np.sqrt(self.unit(r2)))) @ self.rotation)
        # R2^-1/2 magnifies the rounding of R1 in each axis by u'u; the solver adds d eps lambda_1.
        lost = total * self._lost_of_total + r1 * self._scales[0] * self._lost_of_psi
        sure = values > np.maximum(len(L) * FLOAT64 * values[0], axes**2 @ lost / self.unit(r2))
        return Axes(values, axes, int(np.flatnonzero(sure).max(initial=-1)) + 1)


class FisherPencil:
    """The point (0, 1) of the family where S_W has full rank: c - 1 axes of ``S_B v = (lambda - 1) S_W v``.

    By the Cholesky factor of S_W, in which S_B is a thin product: a pencil has no units, and no rotation.

    Parameters
    ----------
    solution : Solution
        V with ``V'S_W V = I``.
    between : ndarray of shape (c, d)
    divisor : float
        As of :class:`RoweisFamily`.
    """

    def __init__(self, solution: Solution, between: Matrix, divisor: float) -> None:
        self.solution, self.within, self.divisor = solution, solution.scatter, divisor
        self.size = len(self.within.S)
        self._between = self._across(between)

    def _across(self, rows: Matrix) -> Matrix:
        return self.solution.across(self.within.frame.into(rows.T))

    def constraint(self, r2: float, conditioning: Conditioning = PLAIN) -> tuple[Vector, float]:
        """Return that all directions have a scatter, of 1 along V, and that nothing was added."""
        return np.ones(self.size), 0.0

    def solve(self, r1: float, r2: float, k: int, conditioning: Conditioning = PLAIN) -> Axes:
        """Return the k leading generalised eigenpairs, c - 1 at most."""
        # S_T = S_W + S_B, so the generalised eigenvalues are 1 + s^2, with s of the thin V'B' instead of V'S_B V.
        U, s, _ = np.linalg.svd(self._between, full_matrices=False)
        axes = fix_signs(self.solution.along(U[:, :k]).T * np.sqrt(self.divisor))
        return Axes(1 + s[:k] ** 2, axes, k)

    def inverses(self, rows: Matrix, count: float, conditioning: Conditioning = PLAIN) -> Matrix:
        """Return ``C^-1 rows`` (c, d) with ``C = S_W / count``."""
        return self.solution.along(self._across(rows)).T * count


def supervised_axes(psi: Matrix, k: int | None, *, precision: float = FLOAT64, threads: int | None = None) -> Axes:
    """Return the leading eigenpairs of ``Psi Psi'``, whichever way is cheaper (SPCA paper, sections 5.1 and 5.3).

    Directly from the (d, d) matrix where there are more label features than features, else by the singular value
    decomposition of ``Psi' = Delta'H X`` (the dual form), which never makes it.

    Parameters
    ----------
    psi : ndarray of shape (m, d)
    k : int or None
        None for the rank.
    precision : float
        eps of the products in Psi: singular values are known to ten of it.

    Raises
    ------
    ValueError
        For values whose squares leave the range of float64.
    """
    (m, d), size = psi.shape, float(norm_of(psi))
    if size and not 1e-150 < size < 1e150:  # the eigenvalues are squares, and small squares lose digits
        raise ValueError(
            f"X'H Delta has the norm {size:.3g}, whose square leaves the range of float64; values from 1e-150 to 1e150 "
            "were expected. Divide the data by a constant first."
        )
    if m > d:
        # More label features than columns: Psi Psi' (d, d) is the smaller matrix.
        values, vectors = top_eigenpairs(psi.T @ psi, threads=threads)
    else:
        with blas_threads(threads, 10.0 * d * m**2):
            # The dual form: right singular vectors of Psi' are the eigenvectors of Psi Psi' (SPCA paper, section 5.3).
            _, s, vectors = np.linalg.svd(psi, full_matrices=False)
        values = s**2
    least = max(max(m, d) * FLOAT64, (ROUNDED * precision) ** 2)
    rank = int(np.count_nonzero(values > least * values[0])) if values.size else 0
    kept = rank if k is None else min(k, len(values))
    return Axes(values[:kept], fix_signs(np.ascontiguousarray(vectors[:kept])), rank)


def completed(found: Axes, k: int) -> Axes:
    """Return k orthonormal axes: the leading ones, and beyond them arbitrary ones of eigenvalue 0."""
    values = np.concatenate([found.values, np.zeros(max(0, k - len(found.values)))])[:k]
    return Axes(values, complete_orthonormal(found.components[:k], k), found.rank)


@dataclass(frozen=True)
class Discriminants:
    """Log-posteriors of normal classes that share a covariance C, up to a constant of each row.

    ``g_k(x) = (x - mean)'C^-1 e_k - e_k'C^-1 e_k / 2 + log(n_k / n)`` with ``e_k = mean_k - mean``: about the mean, so
    that an offset of the data costs no digits. All c - 1 directions that tell classes apart count.

    Attributes
    ----------
    mean : ndarray of shape (d,)
    slopes : ndarray of shape (c, d); ``C^-1 e_k``, 0 for classes without rows
    offsets : ndarray of shape (c,); -inf for classes without rows
    common : ndarray of shape (d,); ``C^-1 mean``

    Notes
    -----
    Hastie, Tibshirani & Friedman (2009), eq. 4.10. scikit-learn's coefficients are ``C^-1 mean_k``, about the origin,
    by which all g_k of a row differ by one number.
    """

    mean: Vector
    slopes: Matrix
    offsets: Vector
    common: Vector

    @classmethod
    def of(cls, inverses: Matrix, deviations: Matrix, mean: Vector, counts: Vector) -> Discriminants:
        """Return those of classes that have counts n_k and deviate by e_k from the mean.

        Parameters
        ----------
        inverses : ndarray of shape (c + 1, d)
            ``C^-1 e_k`` of the classes, and ``C^-1 mean``.
        deviations : ndarray of shape (c, d)
        mean : ndarray of shape (d,)
        counts : ndarray of shape (c,)
        """
        slopes = inverses[:-1]
        with np.errstate(divide="ignore"):
            # Classes without rows have a prior of 0, so a posterior of 0: log 0 = -inf is meant.
            priors = np.log(counts / counts.sum())
        offsets = priors - 0.5 * np.einsum("ij,ij->i", deviations, slopes)
        return cls(mean, slopes, offsets, inverses[-1])

    @property
    def inverses(self) -> Matrix:
        """What :meth:`of` was given."""
        return np.vstack([self.slopes, self.common])

    @property
    def coefficients(self) -> Matrix:
        """``C^-1 mean_k`` (c, d); of two classes their difference (1, d), as in scikit-learn."""
        return np.diff(self.slopes, axis=0) if len(self.slopes) == 2 else self.slopes + self.common

    @property
    def intercepts(self) -> Vector:
        """What ``x'coefficients`` lacks (c,), or (1,) of two classes."""
        # x'C^-1 e_k about the mean, as x'C^-1 mean_k about the origin: the constants differ by mean'C^-1 e_k.
        about_the_origin = self.offsets - self.slopes @ self.mean
        return np.diff(about_the_origin) if len(self.slopes) == 2 else about_the_origin - 0.5 * self.mean @ self.common
