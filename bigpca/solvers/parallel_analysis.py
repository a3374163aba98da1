"""Parallel analysis: components whose eigenvalue unrelated columns cannot reach."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Real
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import check_choice
from bigpca.seeds import check_seed
from bigpca.solvers.component_rules import ComponentRule, rounding_level

Vector = NDArray[np.float64]
NULLS = ("deterministic", "signflip")


@dataclass(frozen=True)
class ParallelAnalysis(ComponentRule):
    """Keep the components whose eigenvalue unrelated columns of the same sizes cannot reach.

    Horn's parallel analysis compares the eigenvalues with those of rows whose columns were permuted, which destroys
    what the columns share. All components above the largest of these, the edge, are kept.

    - ``null="deterministic"``: as n and d grow, the edge is known without drawing anything. With m = n - 1 rows left by
      centring and the variances s_l of the columns, it is the smallest value of ``z(u) = 1 / u + (1 / m) sum_l s_l / (1
      - s_l u)`` over ``0 < u < 1 / max s_l``. With equal variances that is the edge of :class:`MarchenkoPastur` for
      noise that has the whole variance of each column. ``PCA(solver="covariance")`` has the variances; any other solver
      of PCA, and ApproximatePCA, takes one more read for them.
    - ``null="signflip"``: every entry of the centred (and scaled) rows has its sign flipped with probability 1/2, which
      keeps the size of every entry, and so those of rows and columns. The edge is a quantile of the largest eigenvalue
      over ``n_flips`` such matrices. One read for the mean, and then a fit of one component to each of them, by the
      cheapest solver: ``n_flips`` reads with a d x d matrix. The plan counts them.

    Parameters
    ----------
    null : {"deterministic", "signflip"}, default "deterministic"
        How the edge is found.
    n_flips : int, default 10
        Matrices of flipped signs.
    quantile : float in [0, 1], default 1.0
        Of their largest eigenvalues; 1 is the largest of all.
    seed : int, default 0
        Of the signs, which depend on it and on absolute row and column numbers alone.

    Raises
    ------
    ValueError, TypeError
        For another null, no flips, a quantile outside [0, 1], and an invalid seed.

    Notes
    -----
    Horn 1965 (A rationale and test for the number of factors in factor analysis); Dobriban & Owen 2019 (Deterministic
    parallel analysis), their DPA, with the edge of Silverstein & Choi 1995; Hong, Sheng & Dobriban 2020 (Selecting the
    number of components in PCA via random signflips), algorithm 1, with the upper edge for all components. Large
    components raise the variances of columns, and so the edge: small ones may be missed beside them. The deterministic
    edge fails on rows of unequal size (outliers, mixed scales), which permuted columns do not keep: it is too low, and
    too many components are kept. Flipped signs keep the sizes of rows too; with either null, noise that is correlated
    between columns is counted as components. Sparse rows, which centring makes dense, are rejected for "signflip".

    Examples
    --------
    >>> rule = ParallelAnalysis().for_columns(np.array([4.0, 4.0, 1.2, 1.0, 0.8]))
    >>> rule.choose(np.array([7.5, 1.1, 1.0, 0.9, 0.5]), 11.0, 401, 5)
    1
    """

    by_weight: ClassVar[bool] = True

    null: str = "deterministic"
    n_flips: int = 10
    quantile: float = 1.0
    seed: int = 0
    _variances: Vector | None = field(default=None, init=False, repr=False, compare=False)
    _edge: float | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice("null", self.null, NULLS)
        flips: object = self.n_flips
        if isinstance(flips, bool) or not isinstance(flips, int | np.integer) or flips < 1:
            raise ValueError(f"n_flips = {flips!r}, but an int of at least 1 was expected, such as 10.")
        quantile: object = self.quantile
        if isinstance(quantile, bool) or not isinstance(quantile, Real) or not 0 <= float(quantile) <= 1:
            raise ValueError(f"quantile = {quantile!r}, but a number in [0, 1] was expected, such as 1.0.")
        check_seed(self.seed)

    def for_columns(self, variances: Vector | None) -> ParallelAnalysis:
        """Return the rule with the variances of the columns, which the deterministic edge requires."""
        return self._knowing(_variances=variances)

    def at(self, edge: float) -> ParallelAnalysis:
        """Return the rule with its edge."""
        return self._knowing(_edge=edge)

    def _knowing(self, **known: Vector | float | None) -> Self:
        rule = replace(self)
        for name, value in {"_variances": self._variances, "_edge": self._edge, **known}.items():
            object.__setattr__(rule, name, value)
        return rule

    @property
    def whole_spectrum_because(self) -> str | None:
        """The edge; None once it is known, because leading eigenvalues then decide."""
        return "its edge is not known" if self._edge is None else None

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Count the eigenvalues above the edge.

        Raises
        ------
        ValueError
            If neither the edge nor what it is computed from is known.
        """
        edge = self._edge
        if edge is None:
            if self.null != "deterministic" or self._variances is None:
                raise ValueError(unknown_edge(self))
            edge = noise_edge(self._variances, n_samples - 1)
        k = int(np.count_nonzero(values > max(edge, rounding_level(values, n_features))))
        return k if k < len(values) or len(values) == min(n_samples, n_features) else None


def unknown_edge(rule: ParallelAnalysis) -> str:
    """Return the message where nothing determines the edge of a rule."""
    what = "the variances of the columns" if rule.null == "deterministic" else "the rows again, with flipped signs"
    return (
        f"{rule} needs {what}, which are not available here. Use fit of PCA or ApproximatePCA, MarchenkoPastur, or an "
        "int."
    )


def noise_edge(variances: Vector, m: int) -> float:
    """Return the upper edge of the eigenvalues of m independent rows with unrelated columns of these variances.

    Examples
    --------
    >>> round(noise_edge(np.ones(100), 400), 6)  # (1 + sqrt(1 / 4))^2
    2.25
    """
    from scipy.optimize import minimize_scalar  # a fifth of a second that workers need not spend

    largest = float(variances.max())
    if largest <= 0:
        return 0.0
    shares = variances / largest
    found = minimize_scalar(
        lambda u: 1 / u + float((shares / (1 - shares * u)).sum()) / m, bounds=(0, 1), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    return largest * float(found.fun)
