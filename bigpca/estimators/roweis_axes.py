"""Axes at one point of the Roweis family, and the checks that all of its models make: linear ones, those of kernels, and maps."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from bigpca.errors import warn_approximation
from bigpca.estimators.label_statistics import LabelStatistics
from bigpca.estimators.supervised_pca import is_share, share_count
from bigpca.solvers.roweis import Axes, Conditioning, RoweisFamily


def check_factor(name: str, value: Any) -> float:
    """Return a Roweis factor.

    Raises
    ------
    TypeError, ValueError
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} = {value!r} is a {type(value).__name__}; a number from 0 to 1 was expected.")
    if not 0 <= float(value) <= 1:
        raise ValueError(f"{name} = {value} is outside [0, 1], the range of Roweis factors. Give a number from 0 to 1.")
    return float(value)


def check_conditioning(robust: Any, robust_share: Any, regularization: Any) -> Conditioning:
    """Return what is done where R2 is singular.

    Raises
    ------
    ValueError
    """
    given: Any = regularization
    number = not isinstance(given, bool) and isinstance(given, Real) and 0 < float(given) < np.inf
    if given is not None and not number and not (isinstance(given, str) and given == "pinv"):
        raise ValueError(f'regularization = {regularization!r}; None, "pinv" or a positive number was expected.')
    if not isinstance(robust_share, Real) or not 0 < float(robust_share) < 1:
        raise ValueError(
            f"robust_share = {robust_share!r} is outside (0, 1), where it is a share of a sum. Give a number such as 0.98."
        )
    return Conditioning(bool(robust), float(robust_share), float(given) if number else given)


def check_classes(statistics: LabelStatistics, r1: float, r2: float) -> None:
    """Refuse classes that cannot be told apart; warn of classes of one row, where missing values or a batch left them so.

    Raises
    ------
    ValueError
    """
    counts = statistics.moments.counts
    if statistics.cross is None and statistics.n_classes < 2 and (r1, r2) != (0.0, 0.0):
        raise ValueError(
            f"only one of {len(counts)} classes has rows left, out of {statistics.count} rows; at least two classes were "
            f"expected. Give rows of several classes, or use PCA."
        )
    if statistics.count < 2:
        raise ValueError(
            f"Found array with {statistics.count} sample(s) that have labels and no missing values, while a minimum of 2 is "
            f"required. Give more rows."
        )
    alone = int(np.count_nonzero(counts == 1))
    if statistics.cross is None and r2 > 0 and alone:
        warn_approximation(
            f"{alone} of {len(counts)} classes have one row each without missing values: they say nothing of the scatter within "
            f"classes, and yet pull the means apart. Give more rows of them, or leave them out."
        )


def family_of(statistics: LabelStatistics, *, normalize: bool, threads: int | None) -> RoweisFamily:
    """Return the family of the statistics: one (d, d) eigenproblem.

    Raises
    ------
    ValueError
        For statistics of a model of (1, 0), which keep no (d, d) matrix.
    """
    statistics.check_whole()
    return RoweisFamily(
        statistics.within, statistics.between, statistics.psi, normalize=normalize,
        freedom=max(0, statistics.count - statistics.n_classes), threads=threads,
    )  # fmt: skip


def family_axes(
    family: RoweisFamily,
    r1: float,
    r2: float,
    n_components: Any,
    conditioning: Conditioning,
    statistics: LabelStatistics,
) -> Axes:
    """Return the axes at one point of the family, and what classifies where r2 = 1.

    Raises
    ------
    TypeError, ValueError
        For components that cannot be; see also :meth:`bigpca.solvers.roweis.RoweisFamily.constraint`.
    """
    found = _leading(family, r1, r2, n_components, conditioning, statistics.n_classes)
    if r2 < 1.0:
        return found
    rows = np.vstack([statistics.deviations, statistics.mean])
    return replace(found, inverses=family.inverses(rows, statistics.count, conditioning))


def _leading(
    family: RoweisFamily, r1: float, r2: float, n_components: Any, conditioning: Conditioning, n_classes: int
) -> Axes:
    """Return the axes at one point of the family, as many as are wanted.

    Raises
    ------
    TypeError, ValueError
        For components that cannot be; see also :meth:`bigpca.solvers.roweis.RoweisFamily.constraint`.
    """
    d, fisher = family.size, (r1, r2) == (0.0, 1.0)
    _, added = family.constraint(r2, conditioning)
    if added:
        warn_approximation(
            f"the leading eigenvalues of R2 hold all of their sum, so that the others' mean is 0: {added:.3g} was added to it. "
            f"Use a smaller robust_share than {conditioning.robust_share:g} to keep fewer."
        )
    check_components(n_components, d)
    if is_share(n_components):
        found = family.solve(r1, r2, None, conditioning)
        k = share_count(found.values, n_components)
        return Axes(found.values[:k], found.components[:k], found.rank)
    if n_components is None:
        found = family.solve(r1, r2, min(n_classes - 1, d) if fisher else None, conditioning)
        kept = max(1, found.rank)
        return Axes(found.values[:kept], found.components[:kept], found.rank)
    k = int(n_components)
    if fisher and k > n_classes - 1:
        warn_approximation(
            f"n_components = {k}, but {n_classes} classes have {n_classes - 1} axes that tell them apart: the "
            f"eigenvalues of the others are 1 and these axes arbitrary. Use {n_classes - 1} or fewer."
        )
    found = family.solve(r1, r2, k, conditioning)
    if found.rank < len(found.values):
        warn_approximation(
            f"n_components = {k}, but R1 has {found.rank} eigenvalues that are not 0 to rounding: the axes of the others are "
            f"arbitrary. Use {found.rank} or fewer, or a smaller r1."
        )
    return found


def check_components(n_components: Any, d: int) -> None:
    """Refuse a number of components that no labels could make right.

    Raises
    ------
    TypeError, ValueError
    """
    if n_components is None or is_share(n_components):
        return
    if isinstance(n_components, bool) or not isinstance(n_components, Integral):
        raise TypeError(f"n_components = {n_components!r}; an int, a float in (0, 1) or None was expected here.")
    if not 1 <= int(n_components) <= d:
        raise ValueError(
            f"n_components = {n_components} is out of range; 1 to {d}, the number of features, was expected."
        )
