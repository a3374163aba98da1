"""Row maps of fitted models: scores, sketches, reconstructions, log-likelihoods; each a picklable function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import csr
from bigpca.arrays import Array, DType, content_digest
from bigpca.costs import BlockForm
from bigpca.data.sparse import with_values
from bigpca.estimators.linear.incomplete import incomplete_bytes, incomplete_scores, warn_undetermined
from bigpca.estimators.shared.finite import settle_non_finite
from bigpca.export.linear import LinearMap
from bigpca.passes.reading.arithmetic import Values
from bigpca.passes.reading.filling import Limits
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.reading.preprocessing import L2
from bigpca.passes.reading.row_maps import RowMap
from bigpca.sketches import Sketch

Vector = NDArray[np.float64]
STRIP_BYTES = 2**20  # of centred rows: they stay in a core's cache
MIN_STRIP_ROWS = 256


@dataclass(frozen=True)
class Projection(RowMap):
    """Scores ``(x - mean) / scale @ components'``, divided by the standard deviations if whitened.

    The mean is subtracted in the precision of the rows, and the correction for its rounding is added to the scores, so
    float32 rows of mean 1e4 keep their digits.

    Attributes
    ----------
    mean, scale : ndarray of shape (d,); scale may be None
    components : ndarray of shape (k, d)
    deviations : ndarray of shape (k,) or None
        Divides the scores (whitening); where it is 0 the scores are 0.
    nan_policy : {"raise", "omit", "mean"}
        "omit" gives rows of NaN for rows that hold one; "mean" least squares on the columns that are there.
    l2 : bool
        Divides the scores of each row by their norm.
    limits : Limits or None
        Of the values of rows.
    """

    mean: Vector
    scale: Vector | None
    components: NDArray[np.float64]
    deviations: Vector | None = None
    nan_policy: str = "raise"
    l2: bool = False
    limits: Limits | None = None

    def linear(self, d: int) -> LinearMap:
        """Return the same map as a matrix and a centre."""
        return LinearMap(self._axes(), self.mean, self.l2)

    def sklearn_steps(self, d: int, facts: dict[str, object]) -> list[object]:
        """Return the same map as fitted transformers of scikit-learn."""
        from bigpca.export.sklearn import projection_steps  # only exports need scikit-learn's PCA

        return projection_steps(self.mean, self.scale, self.components, self.deviations, facts, l2=self.l2)

    def _axes(self) -> NDArray[np.float64]:
        axes = self.components if self.scale is None else self.components / self.scale
        if self.deviations is not None:
            axes = axes / np.where(self.deviations > 0, self.deviations, np.inf)[:, None]
        return axes

    def check_limits(self, rows: Array, where: str) -> None:
        """Reject values outside the limits, which a model of counts of alleles has."""
        if self.limits is not None:
            self.limits.check(rows, where)

    def _complete(self, rows: Array, scores: Array) -> None:
        """Write the scores of rows with NaN, by least squares on the columns that are there.

        Whitening divides what least squares finds. Rows with infinities keep NaN.
        """
        lines = np.flatnonzero(np.isnan(scores).any(axis=1))
        lines = lines[~np.isinf(rows[lines]).any(axis=1)]
        if not len(lines):
            return
        found, undetermined = incomplete_scores(rows[lines], self.mean, self.scale, self.components)
        if self.deviations is not None:
            found /= np.where(self.deviations > 0, self.deviations, np.inf)
        scores[lines] = found
        if undetermined:
            warn_undetermined()

    def apply(self, rows: Values, where: str) -> Array:
        """Return the scores (b, k) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold infinities, or NaN and the policy is to raise.
        ValueError
            Where values are outside the limits.
        """
        if isinstance(rows, csr_array):
            return self._of_sparse(rows, where)
        self.check_limits(rows, where)
        dtype = working_dtype(rows.dtype)
        mean, axes = self.mean.astype(dtype), self._axes()
        turned, strip = axes.T.astype(dtype), strip_rows(len(rows), len(mean), dtype.itemsize)
        scores, centred = np.empty((len(rows), len(axes)), dtype), np.empty((strip, len(mean)), dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(rows), strip):
                part, out = rows[start : start + strip], scores[start : start + strip]
                shifted = np.subtract(part, mean, out=centred[: len(part)], dtype=dtype, casting="unsafe")
                np.matmul(shifted, turned, out=out)
            scores += ((mean - self.mean) @ axes.T).astype(dtype)
        if self.nan_policy == "mean":
            self._complete(rows, scores)
        return self._settled(rows, scores, where)

    @property
    def takes_csr(self) -> bool:
        """Unless rows may be incomplete, whose values are examined one by one."""
        return self.nan_policy != "mean" and self.limits is None

    def _of_sparse(self, rows: csr_array, where: str) -> Array:
        """Return ``x A' - A mean`` in float64."""
        axes, dtype = self._axes(), working_dtype(rows.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            scores = csr.multiply(with_values(rows, rows.data.astype(np.float64)), axes.T) - axes @ self.mean
            return self._settled(rows, scores.astype(dtype, copy=False), where)

    def _settled(self, rows: Values, scores: Array, where: str) -> Array:
        settle_non_finite(rows, scores, where, self.nan_policy, "scores")
        return L2(zero_rows="keep").apply(scores, where) if self.l2 else scores

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows, divided and rounded axes, scores, and the check that they are finite."""
        k, divided = len(self.components), (self.scale is not None) + (self.deviations is not None)
        strip = strip_rows(rows, d, itemsize)
        scores = rows * k * itemsize
        mapped = (strip + 2) * d * itemsize + k * d * (itemsize + 8 * divided) + scores + rows * k
        least_squares = incomplete_bytes(rows, d, k, itemsize) if self.nan_policy == "mean" else 0
        return mapped + self.l2 * scores + least_squares, 0

    def describe(self) -> dict[str, object]:
        """Digest of the map, for the identity of a partial output."""
        digest = content_digest(self.mean, self.scale, self.components, self.deviations)
        own = {"map": "projection", "nan_policy": self.nan_policy, "digest": digest}
        return own | ({"l2": True} if self.l2 else {})


def strip_rows(rows: int, d: int, itemsize: int) -> int:
    """Return how many of ``rows`` rows are centred at a time, about the same number each time.

    That many rows are still in the cache when they are multiplied. Fewer would be slow, and the BLAS multiplies a
    single row by another routine, with other last bits.
    """
    most = max(MIN_STRIP_ROWS, STRIP_BYTES // max(1, d * itemsize))
    return max(1, -(-rows // max(1, -(-rows // most))))


@dataclass(frozen=True)
class Sketching(RowMap):
    """Sketches of rows: ``rows @ W``.

    Attributes
    ----------
    sketch : Sketch
    nan_policy : {"raise", "omit"}
        "omit" gives rows of NaN for rows that hold one.
    """

    sketch: Sketch
    nan_policy: str = "raise"

    def linear(self, d: int) -> LinearMap:
        """Return the matrix W' (q, d), about the origin."""
        return LinearMap(np.ascontiguousarray(self.sketch.matrix(d).T), np.zeros(d))

    def sklearn_steps(self, d: int, facts: dict[str, object]) -> list[object]:
        """Return the same map as a transformer of scikit-learn."""
        from bigpca.export.sklearn import fitted_pca  # only exports need scikit-learn's PCA

        return [fitted_pca(self.linear(d), facts)]

    @property
    def takes_csr(self) -> bool:
        """Always: sketches are applied to CSR as it is."""
        return True

    def apply(self, rows: Values, where: str) -> Array:
        """Return sketches (b, q) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            sketches: Array = self.sketch.apply(rows.astype(working_dtype(rows.dtype), copy=False))
        settle_non_finite(rows, sketches, where, self.nan_policy, "sketches")
        return sketches

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """What the sketch needs beside its matrix, or the search for non-finite values; and the matrix, if kept."""
        kept, q = self.sketch.cached_bytes(d, itemsize), self.sketch.width(d)
        searching = rows * (q * itemsize + q + d)
        sketching = self.sketch.cost(BlockForm(d, rows, itemsize=itemsize)).bytes
        return max(sketching - kept, searching), kept

    def describe(self) -> dict[str, object]:
        """What identifies the map."""
        return {"map": "sketch", "nan_policy": self.nan_policy, "sketch": self.sketch.describe()}


@dataclass(frozen=True)
class Reconstruction(RowMap):
    """Rows back from scores: ``scores @ components * scale + mean``, un-whitened first."""

    mean: Vector
    scale: Vector | None
    components: NDArray[np.float64]
    deviations: Vector | None = None

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows (b, d) from scores (b, k)."""
        dtype = working_dtype(rows.dtype)
        axes = self.components if self.deviations is None else self.components * self.deviations[:, None]
        if self.scale is not None:
            axes = axes * self.scale
        back: Array = rows.astype(dtype, copy=False) @ axes.astype(dtype) + self.mean.astype(dtype)
        return back

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Scaled axes (k, p), and rows (b, p) before and after the mean is added; here d is k."""
        scaled = (self.scale is not None) + (self.deviations is not None)
        return self.components.size * (itemsize + 8 * scaled) + 2 * rows * self.components.shape[1] * itemsize, 0

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        digest = content_digest(self.mean, self.scale, self.components, self.deviations)
        return {"map": "reconstruction", "digest": digest}


@dataclass(frozen=True)
class Removal(RowMap):
    """Rows without their part along some axes: ``x - scale * sum_i t_i v_i``, t the least-squares scores of x.

    Attributes
    ----------
    scores : Projection
        To t (b, m): its components are the axes, or their duals where they are not orthonormal.
    axes : ndarray of shape (m, d)
    """

    scores: Projection
    axes: NDArray[np.float64]

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows (b, d) from rows (b, d); raises as :meth:`Projection.apply`."""
        dtype = working_dtype(rows.dtype)
        axes = self.axes if self.scores.scale is None else self.axes * self.scores.scale
        part = self.scores.apply(rows, where) @ axes.astype(dtype)
        with np.errstate(invalid="ignore"):  # rows that hold NaN are NaN
            left: Array = np.subtract(rows, part, out=part, dtype=dtype, casting="unsafe")
        return left

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The scores, scaled axes, and the rows."""
        projecting, kept = self.scores.bytes_for(d, rows, itemsize)
        return projecting + self.axes.size * (8 + itemsize) + rows * d * itemsize, kept

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        return {"map": "removal", "of": self.scores.describe(), "axes": content_digest(self.axes)}


@dataclass(frozen=True)
class LogLikelihood(RowMap):
    """Log-likelihood of rows under probabilistic PCA (Bishop 2006, eq. 12.43, as scikit-learn), one column.

    With noise s the quadratic form is ``(|x|^2 - sum_i z_i^2 (1 - s / lambda_i)) / s``: no d x d matrix.
    """

    projection: Projection
    variances: Vector
    noise: float

    def output_dtype(self, dtype: DType) -> DType:
        """Always float64."""
        return np.dtype(np.float64)

    def apply(self, rows: Array, where: str) -> Array:
        """Return log-likelihoods (b, 1)."""
        scores = self.projection.apply(rows.astype(np.float64), where)
        k, d = self.projection.components.shape
        log_determinant = float(np.log(self.variances).sum())
        if k < d:
            centred = np.subtract(rows, self.projection.mean, dtype=np.float64, casting="unsafe")
            if self.projection.scale is not None:
                centred /= self.projection.scale
            squares = np.einsum("ij,ij->i", centred, centred)
            quadratic = (squares - (scores**2) @ (1 - self.noise / self.variances)) / self.noise
            log_determinant += (d - k) * float(np.log(self.noise))
        else:
            quadratic = (scores**2) @ (1 / self.variances)
        likelihoods: NDArray[np.float64] = -0.5 * (quadratic + d * np.log(2 * np.pi) + log_determinant)
        return likelihoods[:, None]

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The rows in float64, what their projection takes, and squared scores."""
        projecting, kept = self.projection.bytes_for(d, rows, 8)
        return 8 * rows * (d + 2 * len(self.variances)) + projecting, kept

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        return {"map": "log-likelihood", "of": self.projection.describe(), "noise": self.noise}
