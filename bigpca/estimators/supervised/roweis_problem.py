"""One point of the Roweis family as a problem, linear or under a kernel, and the checks that the family shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Self

import numpy as np

from bigpca.data.labels import TargetLabels
from bigpca.data.weights import degrees_of_freedom
from bigpca.errors import check_choice, warn_approximation
from bigpca.estimators.linear.choosing import check_iteration
from bigpca.estimators.shared.inputs import Input
from bigpca.estimators.supervised.label_features import LabelFeatures
from bigpca.estimators.supervised.labels import Labelled
from bigpca.estimators.supervised.problems import Problem, is_share, share_count
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.solvers.roweis import Axes, Conditioning, RoweisFamily, completed, supervised_axes

SOLVERS = ("auto", "covariance", "krylov")


@dataclass(frozen=True)
class RoweisProblem(Problem):
    """The axes at one point (r1, r2) of the family.

    Attributes
    ----------
    r1, r2 : float in [0, 1]
    conditioning : Conditioning
        The treatment of a singular R2.
    normalize : bool
        Whether the terms have equal traces.
    solver : {"auto", "covariance", "krylov"}
    tol, max_passes
        Of the iteration.
    featured : bool
        Whether the rows are features of landmarks, whose scatter is always kept whole.
    """

    r1: float
    r2: float
    conditioning: Conditioning
    normalize: bool
    solver: str = "covariance"
    tol: float = 1e-3
    max_passes: int = 20
    featured: bool = False

    @property
    def needs_classes(self) -> bool:
        return self.r2 > 0

    @property
    def whole(self) -> bool:
        return self.featured or (self.r1, self.r2) != (1.0, 0.0)

    @property
    def classifies(self) -> bool:
        return self.r2 == 1

    def check(self, d: int) -> None:
        check_components(self.n_components, d)
        check_choice("solver", self.solver, SOLVERS)
        check_iteration(self.tol, self.max_passes)

    def most_axes(self, rank: int, d: int) -> int:
        fisher = (self.r1, self.r2) == (0.0, 1.0)
        return super().most_axes(d if self.whole and not fisher else rank, d)

    def check_labels(self, labelled: Labelled, d: int) -> None:
        """Reject an S_W of d features that is singular for any rows.

        Raises
        ------
        ValueError
            If there are fewer than ``d + c`` rows, without conditioning.
        """
        plain = not self.conditioning.robust and self.conditioning.regularization is None
        if self.r2 == 1.0 and plain:
            codes = labelled.codes
            known = int(np.count_nonzero(codes >= 0)) if isinstance(codes, np.ndarray) else len(codes)
            reject_singular(known, labelled.n_classes, d)

    def at(self, r1: float, r2: float) -> Self:
        """Return the problem at another point of the family."""
        return replace(self, r1=float(r1), r2=float(r2))

    @property
    def iterates(self) -> bool:
        """Whether an iteration can solve it: without the whole spectrum of the scatter."""
        fisher = (self.r1, self.r2) == (0.0, 1.0)
        counted = fisher if self.n_components is None else not is_share(self.n_components)
        return counted and not self.conditioning.robust and self.conditioning.regularization != "pinv"

    def wanted(self, n_classes: int) -> int:
        """Return the number of axes that an iteration computes.

        Raises
        ------
        ValueError
            If the parameters require the whole spectrum of the scatter.
        """
        given: Input = n_classes - 1 if self.n_components is None else self.n_components
        if not self.iterates:
            what = "robust=True" if self.conditioning.robust else f"n_components = {self.n_components!r}"
            what = 'regularization="pinv"' if self.conditioning.regularization == "pinv" else what
            raise ValueError(
                f'solver="krylov" with {what} would need the whole spectrum of the scatter, which it never forms. Give '
                "an integer for n_components and a number for regularization."
            )
        return int(given)

    def features(self, labels: TargetLabels) -> LabelFeatures:
        if self.r2 > 0:
            raise ValueError(
                f"labels are continuous numbers, and r2 = {self.r2:g} > 0 needs the scatter within classes; classes "
                f"were expected. Give classes (strings or integers), or use r2 = 0."
            )
        return super().features(labels)

    def solve(self, statistics: LabelStatistics) -> Axes:
        if not self.whole:
            return thin_axes(statistics, self.n_components, normalize=self.normalize, threads=self.threads)
        check_classes(statistics, self.r1, self.r2)
        family = family_of(statistics, self.r2, normalize=self.normalize, threads=self.threads)
        return self.axes(family, statistics)

    def axes(self, family: RoweisFamily, statistics: LabelStatistics) -> Axes:
        """Return the axes at this point of a family."""
        return family_axes(family, self.r1, self.r2, self.n_components, self.conditioning, statistics)


def check_factor(name: str, value: Input) -> float:
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


def check_conditioning(robust: Input, robust_share: Input, regularization: Input) -> Conditioning:
    """Return the treatment of a singular R2.

    Raises
    ------
    ValueError
    """
    given: Input = regularization
    number = not isinstance(given, bool) and isinstance(given, Real) and 0 < float(given) < np.inf
    if given is not None and not number and not (isinstance(given, str) and given == "pinv"):
        raise ValueError(f'regularization = {regularization!r}; None, "pinv" or a positive number was expected.')
    if not isinstance(robust_share, Real) or not 0 < float(robust_share) < 1:
        raise ValueError(
            f"robust_share = {robust_share!r} is outside (0, 1), where it is a share of a sum. Give a number such as "
            f"0.98."
        )
    return Conditioning(bool(robust), float(robust_share), float(given) if number else given)


def check_classes(statistics: LabelStatistics, r1: float, r2: float) -> None:
    """Reject fewer than two classes; warn about classes with one row, after omissions or in a batch.

    Raises
    ------
    ValueError
    """
    counts = statistics.moments.counts
    if statistics.cross is None and statistics.n_classes < 2 and (r1, r2) != (0.0, 0.0):
        raise ValueError(
            f"only one of {len(counts)} classes has rows left, out of {statistics.count} rows. Give rows of several "
            f"classes, or use PCA."
        )
    if statistics.count < 2:
        raise ValueError(
            f"Found array with {statistics.count} sample(s) that have labels and no missing values, while a minimum of "
            f"2 is required. Give more rows."
        )
    degrees_of_freedom(statistics.count, statistics.moments.weight_sums, statistics.n_classes if r2 > 0 else 1)
    alone = 0 if statistics.moments.weight_sums else int(np.count_nonzero(counts == 1))
    if statistics.cross is None and r2 > 0 and alone:
        warn_approximation(
            f"{alone} of {len(counts)} classes have one row each without missing values: they add nothing to the "
            f"scatter within classes, but affect the means. Give more rows of them, or remove them."
        )


def family_of(statistics: LabelStatistics, r2: float, *, normalize: bool, threads: int | None) -> RoweisFamily:
    """Return the family of the statistics, to be solved at ``r2`` at most: one (d, d) eigenproblem.

    Raises
    ------
    ValueError
        For statistics of a model of (1, 0), which keep no (d, d) matrix.
    """
    statistics.check_whole()
    return RoweisFamily(
        statistics.within, statistics.between, statistics.psi, normalize=normalize,
        freedom=max(0, statistics.count - statistics.n_classes), divisor=statistics.freedom if r2 > 0 else None,
        threads=threads,
    )  # fmt: skip


def family_axes(
    family: RoweisFamily,
    r1: float,
    r2: float,
    n_components: Input,
    conditioning: Conditioning,
    statistics: LabelStatistics,
) -> Axes:
    """Return the axes at one point of the family, and the classifier if r2 = 1.

    Raises
    ------
    TypeError, ValueError
        For invalid numbers of components; see also :meth:`bigpca.solvers.roweis.RoweisFamily.constraint`.
    """
    _, added = family.constraint(r2, conditioning)
    if added:
        warn_approximation(
            f"the leading eigenvalues of R2 hold all of their sum, so that the others' mean is 0: {added:.3g} was "
            f"added to it. Use a smaller robust_share than {conditioning.robust_share:g} to keep fewer."
        )
    solve = partial(family.solve, r1, r2, conditioning=conditioning)
    found = wanted_axes(solve, family.size, r1, r2, n_components, statistics)
    if r2 < 1.0:
        return found
    rows = np.vstack([statistics.deviations, statistics.mean])
    return replace(found, inverses=family.inverses(rows, statistics.weight, conditioning))


def thin_axes(statistics: LabelStatistics, n_components: Input, *, normalize: bool, threads: int | None) -> Axes:
    """Return the axes at (1, 0), which depend on Psi only.

    Raises
    ------
    TypeError, ValueError
        As :func:`family_axes`.
    """
    found = supervised_axes(statistics.psi, None, threads=threads)
    d, trace = statistics.moments.n_features, float((statistics.psi**2).sum())
    found = replace(found, values=found.values * (d / trace if normalize and trace > 0 else 1.0))

    def solve(k: int | None) -> Axes:
        return completed(found, max(1, found.rank) if k is None else k)

    return wanted_axes(solve, d, 1.0, 0.0, n_components, statistics)


def wanted_axes(
    solve: Callable[[int | None], Axes],
    size: int,
    r1: float,
    r2: float,
    n_components: Input,
    statistics: LabelStatistics,
) -> Axes:
    """Return the requested axes, and warn about arbitrary ones: one rule for all points of the family.

    Parameters
    ----------
    solve : callable
        Returns the given number of leading axes; all for None.
    size : int
        Maximum number of axes.

    Raises
    ------
    TypeError, ValueError
        For invalid numbers of components.
    """
    check_components(n_components, size)
    fisher, apart = (r1, r2) == (0.0, 1.0), statistics.n_classes - 1
    given = None if n_components is None or is_share(n_components) else int(n_components)
    found = solve(min(apart, size) if fisher and n_components is None else given)
    if r1 == 1.0 and statistics.independent:
        found = replace(found, rank=0)
    k = len(found.values)
    if is_share(n_components):
        k = share_count(found.values, n_components)
    elif given is None:
        k = max(1, found.rank)
    if not found.rank or (fisher and statistics.independent):
        warn_approximation(
            f"all {k} axes are arbitrary: to rounding, rows are equal or do not depend on their labels. Rows that "
            f"differ with their labels were expected."
        )
    elif fisher and given is not None and k > apart:
        warn_approximation(
            f"n_components = {k}, but {apart + 1} classes have {apart} axes that tell them apart: the "
            f"eigenvalues of the others are 1 and these axes arbitrary. Use {apart} or fewer."
        )
    elif found.rank < k:
        warn_approximation(
            f"n_components = {k}, but R1 has {found.rank} eigenvalues that are not 0 to rounding: the axes of the "
            f"others are arbitrary. Use {found.rank} or fewer, or a smaller r1."
        )
    return Axes(found.values[:k], found.components[:k], found.rank)


def check_components(n_components: Input, d: int) -> None:
    """Reject a number of components that is invalid for any labels.

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


def reject_singular(count: int, n_classes: int, d: int) -> None:
    """Reject an S_W that is singular for any rows.

    Raises
    ------
    ValueError
        For fewer than ``d + c`` rows.
    """
    if count - n_classes < d:
        raise ValueError(
            f"R2 = S_W is singular: {count} rows of {n_classes} classes differ from their means in at most "
            f"{max(0, count - n_classes)} of {d} directions. Use a number as regularization, which is added to its "
            f'diagonal, r2 < 1, fewer features or, if d x d fits, robust=True or regularization="pinv".'
        )
