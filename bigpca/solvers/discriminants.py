"""Linear discriminant functions: the classifier that a covariance within classes and the class means make."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


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
        about_the_origin = self.offsets - self.slopes @ self.mean
        return np.diff(about_the_origin) if len(self.slopes) == 2 else about_the_origin - 0.5 * self.mean @ self.common
