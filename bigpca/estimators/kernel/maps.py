"""Row maps of kernel models: scores, distances to the subspace, and pre-images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from scipy.sparse import csr_array

from bigpca.arrays import Array, DType
from bigpca.estimators.kernel.expansion import Expansion, FeatureProjection
from bigpca.estimators.shared.finite import bad_places, reject_non_finite, settle_non_finite
from bigpca.estimators.shared.references import TILE_ROWS, References
from bigpca.kernels.base import Kernel
from bigpca.passes.reading.arithmetic import Values
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.reading.row_maps import RowMap

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class KernelScores(RowMap):
    """Scores of rows (SPCA paper, appendix C: centred by the means of the training rows).

    Attributes
    ----------
    expansion : Expansion or FeatureProjection
    nan_policy : {"raise", "omit"}
    """

    expansion: Expansion | FeatureProjection
    nan_policy: str = "raise"

    @property
    def takes_csr(self) -> bool:
        """Whether the kernel compares sparse rows with dense ones."""
        return self.expansion.takes_csr

    def apply(self, rows: Values, where: str) -> Array:
        """Return scores (b, k) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        clean, bad = _set_aside(rows, where, self.nan_policy, "scores")
        with np.errstate(over="ignore"):
            scores = self.expansion.apply(clean).astype(working_dtype(rows.dtype), copy=False)
        settle_non_finite(clean, scores, where, "raise", "scores")
        scores[bad] = np.nan
        return scores

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The memory of the expansion, clean rows and scores; its coefficients are kept."""
        k = self.expansion.coefficients.shape[1]
        own = rows * (k * itemsize + d * (1 + itemsize))
        return self.expansion.bytes_for(d, rows, itemsize, k) + own, self.expansion.coefficients.nbytes

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        return {"map": "kernel scores", "nan_policy": self.nan_policy, **self.expansion.describe()}


@dataclass(frozen=True)
class Novelty(RowMap):
    """Squared distance of a row's image to the subspace, one column: ``k_c(x, x) - |y|^2``, clipped at 0."""

    expansion: Expansion | FeatureProjection
    nan_policy: str = "raise"

    def output_dtype(self, dtype: DType) -> DType:
        """Always float64: the difference of nearly equal numbers."""
        return np.dtype(np.float64)

    @property
    def takes_csr(self) -> bool:
        """As for scores."""
        return self.expansion.takes_csr

    def apply(self, rows: Values, where: str) -> Array:
        """Return squared distances (b, 1)."""
        clean, bad = _set_aside(rows, where, self.nan_policy, "distances")
        distances = self.expansion.distances(clean)
        distances[bad] = np.nan
        return distances[:, None]

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """As for scores, in float64."""
        base, kept = KernelScores(self.expansion).bytes_for(d, rows, 8)
        return base + 8 * rows * (d + 4), 2 * kept

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        return {"map": "novelty", "nan_policy": self.nan_policy, **self.expansion.describe()}


def _set_aside(rows: Values, where: str, nan_policy: str, name: str) -> tuple[Values, NDArray[np.bool_]]:
    """Return the rows with finite values in place of rows that are not finite, and a mask of these.

    The replacement is a valid row, so that every kernel accepts it; the caller sets its result to NaN.

    Raises
    ------
    NonFiniteError
        Where the policy is to raise.
    """
    bad = np.zeros(rows.shape[0], np.bool_)
    bad[bad_places(rows)[0]] = True
    if not bad.any():
        return rows, bad
    if nan_policy != "omit":
        reject_non_finite(rows, where, name)
    if isinstance(rows, csr_array):  # kernels that accept CSR accept rows of zeros
        finite = np.where(np.isfinite(rows.data), rows.data, 0)
        return csr_array((finite, rows.indices, rows.indptr), rows.shape), bad
    clean = rows.copy()
    clean[bad] = rows[~bad][0] if not bad.all() else 1
    return clean, bad


@dataclass(frozen=True)
class FixedPoint(RowMap):
    """Pre-images under a Gaussian kernel by the fixed-point iteration (Mika et al. 1999, eq. 10).

    The projection of a row's image is ``sum_t g_t phi(r_t)`` with ``g = A y + c``; its pre-image is a fixed point of
    ``z = sum_t g_t k(z, r_t) r_t / sum_t g_t k(z, r_t)``. Starts at the row itself.

    Attributes
    ----------
    expansion : Expansion
        Whose kernel is an RBF.
    max_iter : int
    tol : float
        Stop when no row moves by more than ``tol`` of its length.
    """

    expansion: Expansion
    max_iter: int = 100
    tol: float = 1e-6

    def apply(self, rows: Array, where: str) -> Array:
        """Return pre-images (b, d) of the projections of rows (b, d); the last iterate if the weights vanish."""
        clean, _ = _set_aside(rows, where, "raise", "pre-images")
        e = self.expansion
        z = clean.astype(np.float64)
        weights = e.apply(z) @ e.coefficients.T + e.mean_weights  # (b, p)
        for _ in range(self.max_iter):
            moved = self._step(z, weights)
            still = np.linalg.norm(moved - z, axis=1) <= self.tol * np.maximum(np.linalg.norm(moved, axis=1), 1e-300)
            z = moved
            if still.all():
                break
        return z.astype(working_dtype(rows.dtype), copy=False)

    def _step(self, z: Matrix, weights: Matrix) -> Matrix:
        e = self.expansion
        A = e.kernel.prepare(z, e.shift, 0)
        numerator, denominator = np.zeros_like(z), np.zeros(len(z))
        for first, references in e.references.tiles():
            R = references.astype(np.float64)
            K = e.kernel.block(A, e.kernel.prepare(R, e.shift, first)) * weights[:, first : first + len(R)]
            numerator += K @ R
            denominator += K.sum(axis=1)
        stuck = np.abs(denominator) <= 1e-12 * np.abs(weights).max(axis=1)
        return np.where(stuck[:, None], z, numerator / np.where(stuck, 1.0, denominator)[:, None])

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Weights and kernel values of all references, and four copies of the rows in float64."""
        p = self.expansion.references.shape[0]
        held = self.expansion.references.held_bytes
        return 8 * rows * (p + 2 * TILE_ROWS + 5 * d) + 3 * 8 * TILE_ROWS * d, held

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        return {"map": "fixed point", "max_iter": self.max_iter, "tol": self.tol, **self.expansion.describe()}


@dataclass(frozen=True)
class RidgePreimage(RowMap):
    """Rows back from scores by kernel ridge regression from scores to rows (scikit-learn's ``fit_inverse_transform``).

    Attributes
    ----------
    expansion : Expansion
        Over the scores of the reference rows, with the rows' regression coefficients.
    """

    expansion: Expansion

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows (b, d) from scores (b, k)."""
        clean, _ = _set_aside(rows, where, "raise", "reconstructions")
        return self.expansion.apply(clean).astype(working_dtype(rows.dtype), copy=False)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """As for scores, with d columns."""
        return KernelScores(self.expansion).bytes_for(d, rows, itemsize)

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        return {"map": "ridge pre-image", **self.expansion.describe()}


def ridge_preimage(kernel: Kernel, rows: Array, scores: Matrix, alpha: float) -> Expansion:
    """Return the regression from scores (p, k) to rows (p, d): ``(k(S, S) + alpha I)^-1 R``; p^3 / 3 + 2 p^2 d flop."""
    K = kernel(scores).astype(np.float64)
    K.flat[:: len(K) + 1] += alpha
    coefficients = solve(K, rows.astype(np.float64), assume_a="sym")
    points = References(np.ascontiguousarray(scores))
    return Expansion(
        kernel, scores.mean(axis=0), points, coefficients, np.zeros(rows.shape[1]), np.zeros(len(rows)), 0.0,
        np.zeros(len(rows)),
    )  # fmt: skip
