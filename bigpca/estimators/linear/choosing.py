"""The choice of a solver of PCA: all applicable fits, compared by cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from numbers import Real

from bigpca.errors import closest
from bigpca.estimators.linear.covariance_fit import CovarianceFit
from bigpca.estimators.linear.dot_fit import DotFit
from bigpca.estimators.linear.krylov_fit import KrylovFit
from bigpca.estimators.linear.null_fit import null_fit, undecided
from bigpca.estimators.linear.spectrum import PCAFit, Settings, Spectrum, check_enough_rows
from bigpca.estimators.shared.fit import Fit, choose
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources
from bigpca.sketches.base import positive_integer
from bigpca.solvers.parallel_analysis import ParallelAnalysis

FITS: dict[str, type[PCAFit]] = {fit.solver: fit for fit in (CovarianceFit, DotFit, KrylovFit)}  # a new solver: one row

SKLEARN_SOLVERS = {"full": "covariance", "covariance_eigh": "covariance", "randomized": "krylov", "arpack": "krylov"}


@dataclass(frozen=True)
class SolverChoice:
    """Which solver was chosen, and why, with the numbers.

    Attributes
    ----------
    solver, reason : str
    """

    solver: str
    reason: str

    def __str__(self) -> str:
        return f"{self.solver}: {self.reason}"


def check_solver(solver: str) -> None:
    """Reject an unknown solver.

    Raises
    ------
    ValueError
    """
    if solver != "auto" and solver not in FITS:
        known = ", ".join(map(repr, ("auto", *FITS)))
        ours = SKLEARN_SOLVERS.get(solver)
        hint = closest(solver, FITS) if ours is None else f" scikit-learn's {solver!r} is {ours!r} here."
        raise ValueError(f"solver = {solver!r} is unknown. Use one of {known}.{hint}")


def check_iteration(tol: float, max_passes: int | None, *, unlimited: bool = False) -> None:
    """Reject a tolerance or a number of reads that is not valid for an iteration; None where that may be unlimited.

    Raises
    ------
    TypeError, ValueError
    """
    given: object = tol
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(f"tol = {tol!r} is a {type(tol).__name__}; a number in (0, 1) was expected, such as 1e-3.")
    if not 0 < tol < 1:
        raise ValueError(f"tol = {tol} is outside (0, 1), where it is a relative error. Give a number such as 1e-3.")
    if max_passes is None and unlimited:
        return
    if positive_integer("max_passes", max_passes) < 2:
        raise ValueError(
            "max_passes = 1, but an iteration reads X at least twice. Give 2 or more, or use ApproximatePCA."
        )


def plan_fit(rows: RowInput, resources: Resources, settings: Settings, solver: str) -> Fit[Spectrum]:
    """Plan a fit without reading X.

    Raises
    ------
    ValueError
        For an unknown solver, and for fewer than two rows.
    MemoryBudgetError
        With ``solver="auto"``, if no solver fits.
    """
    check_solver(solver)
    check_enough_rows(rows.n_present, sums=rows.weight_sums)
    rule = undecided(settings.n_components, variances=False)
    if rule is None:
        return _planned(rows, resources, settings, solver)
    if rule.null == "deterministic" and solver in ("auto", CovarianceFit.solver):
        fit = CovarianceFit.planned(rows, settings, resources)  # its one read has the variances of the columns too
        if solver != "auto" or fit.plan.fits:
            return fit

    def decided(known: ParallelAnalysis) -> Fit[Spectrum]:
        return _planned(rows, resources, replace(settings, n_components=known), solver)

    return null_fit(rule, rows, settings, decided, partial(cheapest, resources=resources))


def cheapest(rows: RowInput, settings: Settings, *, resources: Resources) -> PCAFit:
    """Return the cheapest fit that fits in memory, whatever solver was requested."""
    return _planned(rows, resources, settings, "auto")


def _planned(rows: RowInput, resources: Resources, settings: Settings, solver: str) -> PCAFit:
    named = FITS.get(solver)
    if named is not None and not named.stands_back(rows, settings):
        return named.planned(rows, settings, resources)
    offered = [fit for fit in FITS.values() if fit is not named and fit.offered(rows, settings)]
    return choose([fit.planned(rows, settings, resources) for fit in offered])
