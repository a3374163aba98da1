"""Whitening: how scores are divided by the spread along their axes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from bigpca.solvers.component_rules import rounding_level

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Whitening:
    """Divides score i by ``(lambda_i + epsilon lambda_1)^power``; ``whiten=True`` is ``Whitening()``.

    Scores along axes whose variance is rounding are 0.

    Parameters
    ----------
    power : float of at least 0, default 0.5
        0.5 gives scores of variance 1, 0 leaves them as they are; between them, leading axes keep more weight.
    epsilon : float of at least 0, default 0
        Added to the variances, as a share of the largest one, so that axes of little variance are not amplified.
    l2 : bool, default False
        Divide the scores of each row by their norm, as for comparison by cosine; scores of zeros remain. There is no
        ``inverse_transform``, because the norms are lost.

    Notes
    -----
    FAISS's ``PCAMatrix`` has ``eigen_power = -power`` and adds its ``epsilon`` absolutely; ``l2`` is its ``L2norm``.
    Jégou & Chum (2012), "Negative evidences and co-occurrences in image retrieval: the benefit of PCA and whitening".

    Examples
    --------
    >>> Whitening(0.5, epsilon=0.25).divisors(np.array([4.0, 0.25]), 2).round(3).tolist()
    [2.236, 1.118]
    """

    power: float = 0.5
    epsilon: float = 0.0
    l2: bool = False

    def __post_init__(self) -> None:
        for name in ("power", "epsilon"):
            given: object = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, Real):
                raise TypeError(f"{name} = {given!r} is a {type(given).__name__}; a number was expected, such as 0.5.")
            if not 0 <= float(given) < np.inf:
                raise ValueError(f"{name} = {given}; a finite number of at least 0 was expected.")
        if not isinstance(self.l2, bool | np.bool_):
            raise TypeError(f"l2 = {self.l2!r} is a {type(self.l2).__name__}; True or False was expected.")

    def divisors(self, variances: Vector, rank: int) -> Vector:
        """Return the divisors (k,) of the scores, 0 where these are set to 0.

        Parameters
        ----------
        variances : ndarray of shape (k,), descending
        rank : int
            min(n, d): the variances below ``rank eps lambda_1`` are rounding.
        """
        used = np.where(variances > rounding_level(variances, rank), variances, 0.0)
        if self.power == 0.5 and self.epsilon == 0:
            return np.sqrt(used)
        return np.where(used > 0, (used + self.epsilon * variances[0]) ** self.power, 0.0)
