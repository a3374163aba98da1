"""Scales of columns and of scores: rules that users give instead of True or a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bigpca.arrays import Vector, held_array
from bigpca.errors import check_switch, positive_integer, real_number
from bigpca.solvers.components import rounding_level

ROUNDING = 1e-12  # of allele frequencies


@dataclass(frozen=True)
class Patterson:
    """Scale of genotype counts: ``sqrt(p (1 - p))`` with the allele frequency p = mean / ploidy of each column.

    The values are allele counts, 0 to ploidy. Columns without variation (p = 0 or 1) get scale 1. The mean comes
    from the read in which the model is fitted.

    Parameters
    ----------
    ploidy : int, default 2

    Notes
    -----
    Patterson, Price & Reich (2006), "Population structure and eigenanalysis", equation 3.

    Examples
    --------
    >>> Patterson(2).of(np.array([1.0, 0.4, 2.0])).round(3).tolist()
    [0.5, 0.4, 1.0]
    """

    ploidy: int = 2

    def __post_init__(self) -> None:
        positive_integer("ploidy", self.ploidy)

    def of(self, mean: Vector) -> Vector:
        """Return the scale of columns with those means.

        Raises
        ------
        ValueError
            If a mean is outside [0, ploidy].
        """
        share = mean / self.ploidy
        if not ((share >= -ROUNDING) & (share <= 1 + ROUNDING)).all():
            raise ValueError(
                f"columns have means from {mean.min():g} to {mean.max():g}, but those of allele counts are between 0 "
                f"and {self.ploidy} under Patterson(ploidy={self.ploidy}). Code missing calls as NaN, or set ploidy."
            )
        variance = share * (1 - share)
        varies = variance > ROUNDING
        return np.where(varies, np.sqrt(np.where(varies, variance, 1.0)), 1.0)


@dataclass(frozen=True)
class CosLatitude:
    """Weights of columns by the area of their grid cells: each is multiplied by sqrt(cos(latitude)).

    Parameters
    ----------
    latitude : sequence of float, or str
        Latitude of each column, in degrees; for fields of shape (lat, lon), ``np.repeat(lat, len(lon))``. Or the name
        of that coordinate of an xarray.DataArray, such as ``"lat"``.

    Notes
    -----
    North, Bell, Cahalan & Moeng (1982), "Sampling errors in the estimation of empirical orthogonal functions". The
    scale is the reciprocal, ``1 / sqrt(cos(latitude))``.

    Examples
    --------
    >>> CosLatitude([0, 60]).scale.round(4).tolist()
    [1.0, 1.4142]
    """

    latitude: Sequence[float] | str

    def __post_init__(self) -> None:
        if isinstance(self.latitude, str):
            return
        values = held_array(self.latitude, "latitude").astype(np.float64)
        self.of(values)
        object.__setattr__(self, "latitude", tuple(values.tolist()))  # comparable, with a repr that evaluates

    @property
    def scale(self) -> Vector:
        """The divisors of the columns, if the latitudes are given."""
        return self.of(np.asarray(self.latitude, np.float64))

    @staticmethod
    def of(latitude: Vector) -> Vector:
        """Return the divisors of columns at those latitudes.

        Raises
        ------
        ValueError
            For latitudes outside -90 to 90 degrees.
        """
        if latitude.ndim != 1 or not (np.abs(latitude) <= 90).all():
            raise ValueError(
                f"latitudes of shape {latitude.shape} from {latitude.min(initial=0):g} to {latitude.max(initial=0):g} "
                f"were given; one for each column, from -90 to 90 degrees, was expected."
            )
        return np.asarray(1 / np.sqrt(np.cos(np.deg2rad(latitude))))


LearnedScale: TypeAlias = bool | Patterson  # True: standard deviations


@dataclass(frozen=True)
class Whitening:
    """Divides score i by ``(lambda_i + epsilon lambda_1)^power``; ``whiten=True`` is ``Whitening()``.

    Scores along axes whose variance is only rounding are 0.

    Parameters
    ----------
    power : float of at least 0, default 0.5
        0.5 gives scores of variance 1, and 0 leaves them unchanged; in between, leading axes keep more weight.
    epsilon : float of at least 0, default 0
        Added to the variances, as a share of the largest one, to keep axes of little variance from being amplified.
    l2 : bool, default False
        Divide the scores of each row by their norm, as for comparison by cosine; scores that are all 0 stay 0. The
        model then has no ``inverse_transform``, because the norms are lost.

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
        real_number("power", self.power, "[0, inf)", "a power such as 0.5, which gives scores variance 1,")
        real_number("epsilon", self.epsilon, "[0, inf)", "a share of the largest variance such as 0.01")
        check_switch("l2", self.l2)

    def divisors(self, variances: Vector, rank: int) -> Vector:
        """Return the divisors (k,) of the scores, 0 where these are set to 0.

        Parameters
        ----------
        variances : ndarray of shape (k,), descending
        rank : int
            min(n, d): the variances below ``rank eps lambda_1`` are rounding.

        Raises
        ------
        ValueError
            If the power of a variance is beyond float64: scores would be 0, or infinite.
        """
        used = np.where(variances > rounding_level(variances, rank), variances, 0.0)
        if self.power == 0.5 and self.epsilon == 0:
            return np.sqrt(used)
        with np.errstate(over="ignore", under="ignore"):
            found = np.where(used > 0, (used + self.epsilon * variances[0]) ** self.power, 0.0)
        if not ((found[used > 0] >= np.finfo(np.float64).tiny) & (found[used > 0] < np.inf)).all():
            raise ValueError(
                f"{self} divides by powers of variances of {used[used > 0].min():.3g} to {used.max():.3g}, which leave "
                "the range of float64. Divide the data by a constant first."
            )
        return found
