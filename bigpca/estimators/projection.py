"""Row maps of a fitted PCA: scores, reconstructions and log-likelihoods, each a picklable function of rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import NonFiniteError
from bigpca.passes.blocks import working_dtype

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Projection:
    """Scores ``(x - mean) / scale @ components'``, divided by the standard deviations where whitened.

    The mean is subtracted in the rows' precision, and what rounding it lost is added back to the scores, so float32 rows
    of mean 1e4 keep their digits.

    Attributes
    ----------
    mean, scale : ndarray of shape (d,); scale may be None
    components : ndarray of shape (k, d)
    deviations : ndarray of shape (k,) or None
        Divides the scores (whitening).
    nan_policy : {"raise", "omit"}
        "omit" gives rows of NaN for rows that hold one.
    """

    mean: Vector
    scale: Vector | None
    components: NDArray[np.float64]
    deviations: Vector | None = None
    nan_policy: str = "raise"

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """float32 for float32 and narrower input, else float64."""
        return working_dtype(dtype)

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Return the scores (b, k) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        dtype = working_dtype(rows.dtype)
        mean = self.mean.astype(dtype)
        axes = self.components if self.scale is None else self.components / self.scale
        if self.deviations is not None:
            axes = axes / self.deviations[:, None]
        with np.errstate(invalid="ignore", over="ignore"):
            scores: NDArray[Any] = (rows.astype(dtype, copy=False) - mean) @ axes.T.astype(dtype)
            scores += ((mean - self.mean) @ axes.T).astype(dtype)
        if not np.isfinite(scores).all():
            self._refuse(rows, scores, where)
        return scores

    def _refuse(self, rows: NDArray[Any], scores: NDArray[Any], where: str) -> None:
        bad = ~np.isfinite(rows)
        lines = np.flatnonzero(bad.any(axis=1))
        if not len(lines):
            raise ValueError(
                f"scores of {where} overflow {scores.dtype}: the values are too large. Pass float64 input."
            )
        if self.nan_policy == "raise":
            column = int(np.flatnonzero(bad[lines[0]])[0])
            raise NonFiniteError(
                f"{int(bad.sum())} NaN or infinite values in {len(lines)} rows of {where}: the first in its row {lines[0]}, "
                f'column {column}. Finite values were expected; nan_policy="omit" gives such rows NaN scores.'
            )
        scores[lines] = np.nan

    def describe(self) -> dict[str, Any]:
        """Digest of the map, for the identity of a partial output."""
        digest = _digest(self.mean, self.scale, self.components, self.deviations)
        return {"map": "projection", "nan_policy": self.nan_policy, "digest": digest}


def _digest(*arrays: NDArray[np.float64] | None) -> str:
    content = hashlib.sha256()
    for array in arrays:
        content.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


@dataclass(frozen=True)
class Reconstruction:
    """Rows back from scores: ``scores @ components * scale + mean``, un-whitened first."""

    mean: Vector
    scale: Vector | None
    components: NDArray[np.float64]
    deviations: Vector | None = None

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The working dtype of the scores."""
        return working_dtype(dtype)

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Return rows (b, d) from scores (b, k)."""
        dtype = working_dtype(rows.dtype)
        axes = self.components if self.deviations is None else self.components * self.deviations[:, None]
        if self.scale is not None:
            axes = axes * self.scale
        back: NDArray[Any] = rows.astype(dtype, copy=False) @ axes.astype(dtype) + self.mean.astype(dtype)
        return back

    def describe(self) -> dict[str, Any]:
        """Digest of the map."""
        digest = _digest(self.mean, self.scale, self.components, self.deviations)
        return {"map": "reconstruction", "digest": digest}


@dataclass(frozen=True)
class LogLikelihood:
    """Log-likelihood of rows under probabilistic PCA (Bishop 2006, eq. 12.43, as scikit-learn), one column.

    With noise s the quadratic form is ``(|x|^2 - sum_i z_i^2 (1 - s / lambda_i)) / s``: no d x d matrix.
    """

    projection: Projection
    variances: Vector
    noise: float

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Always float64."""
        return np.dtype(np.float64)

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Return log-likelihoods (b, 1)."""
        scores = self.projection.apply(rows.astype(np.float64), where)
        k, d = self.projection.components.shape
        log_determinant = float(np.log(self.variances).sum())
        if k < d:
            centred = rows.astype(np.float64) - self.projection.mean
            if self.projection.scale is not None:
                centred /= self.projection.scale
            squares = np.einsum("ij,ij->i", centred, centred)
            quadratic = (squares - (scores**2) @ (1 - self.noise / self.variances)) / self.noise
            log_determinant += (d - k) * float(np.log(self.noise))
        else:
            quadratic = (scores**2) @ (1 / self.variances)
        likelihoods: NDArray[np.float64] = -0.5 * (quadratic + d * np.log(2 * np.pi) + log_determinant)
        return likelihoods[:, None]

    def describe(self) -> dict[str, Any]:
        """Digest of the map."""
        return {"map": "log-likelihood", "of": self.projection.describe(), "noise": self.noise}
