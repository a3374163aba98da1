"""Row maps that judge rows by a fitted subspace: Hotelling's T2, SPE, Mahalanobis distances, and contributions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, content_digest
from bigpca.errors import closest
from bigpca.estimators.linear.maps import Projection, strip_rows
from bigpca.estimators.shared.finite import settle_non_finite
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.reading.row_maps import RowMap
from bigpca.solvers.component_rules import rounding_level

Vector = NDArray[np.float64]
STATISTICS = ("t2", "spe", "mahalanobis")
CONTRIBUTIONS = ("t2", "spe")
LEAST_SQUARES = 1e-25  # sum of float32 squares to which those that underflow, below 1e-38 each, add nothing


def check_statistics(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of statistics as a tuple, after checking them.

    Raises
    ------
    ValueError
        For unknown and doubled names, and for none.

    Examples
    --------
    >>> check_statistics("t2"), check_statistics(["spe", "t2"])
    (('t2',), ('spe', 't2'))
    """
    found = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    for name in found:
        if name not in STATISTICS:
            raise ValueError(
                f"there is no statistic {name!r}; {', '.join(map(repr, STATISTICS))} were expected."
                f"{closest(str(name), STATISTICS)}"
            )
    if not found or len(set(found)) < len(found):
        raise ValueError(
            f"statistics = {list(found)!r}; one or more different names of {list(STATISTICS)} were expected."
        )
    return found


def sound_variances(variances: Vector, n_samples: int, n_features: int) -> Vector:
    """Return the variances (k,), with 0 for those at the level of the solver's rounding."""
    level = rounding_level(variances, min(n_samples, n_features))
    return np.where(variances > level, variances, 0.0)


def _inverse(variances: Vector) -> Vector:
    """Return ``1 / variances``; 0 for variances of 0, whose axes do not count."""
    return np.where(variances > 0, 1 / np.where(variances > 0, variances, 1.0), 0.0)


def _strips(projection: Projection, rows: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield (first row, scores (b, k), centred and scaled rows (b, d)) of strips of rows, in their working dtype.

    Mean and scale apply to the rows, so that no difference of large numbers remains: the rounding of the mean to
    float32 is added back. The centred rows may be overwritten.
    """
    dtype = working_dtype(rows.dtype)
    mean = projection.mean.astype(dtype)
    rest = (mean - projection.mean).astype(dtype) if dtype != np.float64 else None
    inverse = None if projection.scale is None else (1 / projection.scale).astype(dtype)
    axes = np.ascontiguousarray(projection.components.T, dtype)  # (d, k)
    strip = strip_rows(len(rows), len(mean), dtype.itemsize)
    centred, scores = np.empty((strip, len(mean)), dtype), np.empty((strip, axes.shape[1]), dtype)
    for start in range(0, len(rows), strip):
        part = rows[start : start + strip]
        shifted = np.subtract(part, mean, out=centred[: len(part)], dtype=dtype, casting="unsafe")
        if rest is not None:
            shifted += rest
        if inverse is not None:
            shifted *= inverse
        yield start, np.matmul(shifted, axes, out=scores[: len(part)]), shifted


@dataclass(frozen=True)
class RowStatistics(RowMap):
    """Statistics of rows under a model with orthonormal axes V (k, d), one column each.

    With ``x_s = (x - mean) / scale`` and ``t = V x_s``: T2 is ``sum_a t_a^2 / lambda_a``; SPE is ``|x_s - V't|^2``, of
    the residual itself, because a difference of two large squares would cancel; and the squared Mahalanobis distance is
    ``sum_a t_a^2 / max(lambda_a, noise) + SPE / noise``, by the precision of probabilistic PCA.

    Attributes
    ----------
    projection : Projection
        Without whitening.
    variances : ndarray of shape (k,)
        lambda_a; 0 for axes that do not count.
    noise : float
        Variance along each axis that was not kept.
    names : tuple of {"t2", "spe", "mahalanobis"}
        The columns.
    """

    projection: Projection
    variances: Vector
    noise: float
    names: tuple[str, ...]

    def output_dtype(self, dtype: DType) -> DType:
        """Always float64; residuals and scores are computed in the precision of the rows."""
        return np.dtype(np.float64)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the statistics (b, m) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        found = np.empty((len(rows), len(self.names)))
        within, outside = self._weights()
        self.projection.check_limits(rows, where)
        with np.errstate(invalid="ignore", over="ignore"):
            for start, scores, shifted in _strips(self.projection, rows):
                out = found[start : start + len(scores)]
                np.matmul(scores.astype(np.float64) ** 2, within, out=out)
                if outside.any():
                    out += np.outer(self._squared_residuals(scores, shifted), outside)
        settle_non_finite(rows, found, where, self.projection.nan_policy, "statistics")
        return found

    def _weights(self) -> tuple[NDArray[np.float64], Vector]:
        """Return the weights of squared scores (k, m), and of squared residuals (m,)."""
        both = {
            "t2": (_inverse(self.variances), 0.0),
            "spe": (np.zeros(len(self.variances)), 1.0),
            "mahalanobis": (_inverse(np.maximum(self.variances, self.noise)), 1 / self.noise if self.noise > 0 else 0),
        }
        chosen = [both[name] for name in self.names]
        return np.column_stack([squares for squares, _ in chosen]), np.array([rest for _, rest in chosen])

    def _squared_residuals(self, scores: Array, shifted: Array) -> Vector:
        k, d = self.projection.components.shape
        if k == d:  # no direction is left; rows that are not finite have no statistic either
            return np.where(np.isfinite(scores).all(axis=1), 0.0, np.nan)
        shifted -= scores @ self.projection.components.astype(shifted.dtype)
        with np.errstate(under="ignore"):
            squares: Vector = np.vecdot(shifted, shifted).astype(np.float64)
        if shifted.dtype != np.float64:  # the squares of very small or large rows leave float32's range
            far = ~((squares > LEAST_SQUARES) & (squares < 1 / LEAST_SQUARES))
            squares[far] = np.einsum("ij,ij->i", shifted[far], shifted[far], dtype=np.float64)
        return squares

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows and their reconstruction by strip, two copies of the axes, and the statistics."""
        k, strip = len(self.variances), strip_rows(rows, d, itemsize)
        held = (2 * strip + 4) * d * itemsize + 2 * k * d * itemsize
        return held + strip * k * (itemsize + 16) + 8 * (rows + 4 * strip) * len(self.names) + rows * len(self.names), 0

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        variances, of = content_digest(self.variances), self.projection.describe()
        return {"map": "statistics", "of": of, "variances": variances, "noise": self.noise, "names": list(self.names)}


@dataclass(frozen=True)
class Contributions(RowMap):
    """What each feature contributes to a statistic of a row, in units of the scaled features.

    SPE: the residual ``x_s - V't`` itself, whose squares add up to the SPE and whose signs show on which side a feature
    lies. T2: ``x_sj sum_a v_aj t_a / lambda_a``, which add up to T2 and may be negative.

    Attributes
    ----------
    projection, variances
        As for :class:`RowStatistics`.
    of : {"t2", "spe"}

    Notes
    -----
    Westerhuis, Gurden & Smilde (2000).
    """

    projection: Projection
    variances: Vector
    of: str

    def apply(self, rows: Array, where: str) -> Array:
        """Return the contributions (b, d) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        found = np.empty(rows.shape, working_dtype(rows.dtype))
        axes = self.projection.components
        # T2 in units of the largest deviation, a power of two: the inverse of a variance can leave the range of float32
        exponent = int(np.frexp(np.sqrt(self.variances.max(initial=0.0)))[1])
        weighted = axes if self.of == "spe" else axes * _inverse(np.ldexp(self.variances, -2 * exponent))[:, None]
        weighted = weighted.astype(found.dtype)
        self.projection.check_limits(rows, where)
        with np.errstate(invalid="ignore", over="ignore"):
            for start, scores, shifted in _strips(self.projection, rows):
                if self.of == "t2":
                    scores = np.ldexp(scores, -exponent)
                out = np.matmul(scores, weighted, out=found[start : start + len(scores)])
                if self.of == "spe":
                    np.subtract(shifted, out, out=out)
                else:
                    out *= np.ldexp(shifted, -exponent, out=shifted)
        settle_non_finite(rows, found, where, self.projection.nan_policy, "contributions")
        return found

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Contributions and the check that they are finite, centred rows by strip, and three copies of the axes."""
        k, strip = len(self.variances), strip_rows(rows, d, itemsize)
        copies = k * d * (2 * itemsize + 8)
        return rows * d * (itemsize + 1) + (strip + 4) * d * itemsize + copies + strip * k * itemsize, 0

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        variances, under = content_digest(self.variances), self.projection.describe()
        return {"map": "contributions", "of": self.of, "under": under, "variances": variances}
