"""Scales of columns and of scores: rules that users give instead of True or a vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import numpy as np

from bigpca.arrays import Integers, Vector, held_array
from bigpca.errors import brief, check_switch, positive_integer, real_number
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


@dataclass(frozen=True)
class Blocks:
    """Scale of several blocks of columns: each is divided by the root of the first eigenvalue of its covariance.

    No block then decides the first components alone, however many columns it has, and in whatever unit (multiple
    factor analysis).

    Parameters
    ----------
    blocks : mapping, or sequence of str
        Slices or ranges of columns by the name of their block, or the name of the block of each column. Every column
        must be in one block. The last slice may have no end.
    standardize : bool, default False
        Divide each column by its standard deviation first.

    Notes
    -----
    Escofier & Pagès (1994), "Multiple factor analysis (AFMULT package)". ``PCA.block_contributions_`` has the share of
    each block in each component. The eigenvalues come from the matrix of ``solver="covariance"``, or from a dot matrix
    of each block, without a further read; with "krylov", or parallel analysis, each block is first fitted by itself.

    Examples
    --------
    >>> Blocks(["genes", "genes", "proteins"]) == Blocks({"genes": slice(0, 2), "proteins": range(2, 3)})
    True
    """

    blocks: Mapping[str, object] | Sequence[str] | Sequence[tuple[str, int, int | None]]
    standardize: bool = False

    def __post_init__(self) -> None:
        check_switch("standardize", self.standardize)
        object.__setattr__(self, "blocks", _runs(self.blocks))  # comparable, with a repr that evaluates

    @property
    def runs(self) -> Sequence[tuple[str, int, int]]:
        """Name, first column and end of each run of columns of one block, in order; for rows of :meth:`of`."""
        return cast("Sequence[tuple[str, int, int]]", self.blocks)

    @property
    def columns(self) -> dict[str, Integers]:
        """The columns of each block, in the order of their first ones."""
        names = dict.fromkeys(name for name, _, _ in self.runs)
        return {
            name: np.concatenate([np.arange(first, stop) for own, first, stop in self.runs if own == name])
            for name in names
        }

    def of(self, d: int) -> Blocks:
        """Return the rule for rows of d columns, all of whose runs have an end; raises ValueError for too many."""
        *others, (name, first, end) = self.runs
        if (max(d, first + 1) if end is None else end) != d:
            raise ValueError(
                f"the blocks of Blocks have {end or first + 1} columns, but X has {d}. Name each column once."
            )
        return replace(self, blocks=(*others, (name, first, d)))


def _runs(blocks: object) -> tuple[tuple[str, int, int | None], ...]:
    """Return the runs of blocks that are given in one of three ways; raises as :class:`Blocks`."""
    wanted = TypeError(
        f"blocks = {brief(repr(blocks))}; slices of columns by name, such as {{'a': slice(0, 3), 'b': slice(3, "
        "None)}, or the name of the block of each column, were expected."
    )
    ends = list[int]()
    if isinstance(blocks, Mapping):
        slices = [own for own in blocks.values() if isinstance(own, slice)]
        ends = [(own.start or 0) + 1 for own in slices if own.stop is None]  # known with the rows: at least these
        ranges = [
            range(own.stop or (own.start or 0) + 1)[own] if isinstance(own, slice) else own for own in blocks.values()
        ]
        if not ranges or not all(isinstance(own, range) and len(own) and min(own) >= 0 for own in ranges):
            raise wanted
        taken = np.concatenate([np.asarray(own) for own in ranges])
        times = np.bincount(taken)
        if not (times == 1).all():
            j = int(np.argmax(times != 1))
            raise ValueError(f"column {j} is in {times[j]} blocks, but one block for each column was expected.")
        codes = np.repeat(np.arange(len(ranges)), list(map(len, ranges)))[np.argsort(taken)]
        names = np.array([str(name) for name in blocks], object)[codes].tolist()
        if ends and ends != [len(names)]:
            raise wanted
    elif isinstance(blocks, str) or not isinstance(blocks, Iterable):
        raise wanted
    else:
        names = list(blocks)
        if names and all(isinstance(one, tuple | list) for one in names):  # runs, as in a repr, or in a file
            return tuple((str(name), int(first), None if end is None else int(end)) for name, first, end in names)
        if not names or not all(isinstance(one, str) for one in names):
            raise wanted
    starts = [j for j in range(len(names)) if not j or names[j] != names[j - 1]]
    stops = [*starts[1:], None if ends else len(names)]
    return tuple((str(names[j]), j, stop) for j, stop in zip(starts, stops, strict=True))


LearnedScale: TypeAlias = bool | Patterson | Blocks  # True: standard deviations


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
        # Dividing by a variance that is rounding would make unit noise of nothing.
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
