"""The choice of a solver of a problem with labels: exact, or an iteration if that is far cheaper or alone fits."""

from __future__ import annotations

from bigpca.estimators.shared.fit import choose
from bigpca.estimators.supervised.krylov_fit import KrylovRoweisFit
from bigpca.estimators.supervised.labels import Labelled
from bigpca.estimators.supervised.labels_fit import LabelledFit, LabelsFit
from bigpca.estimators.supervised.problems import Problem
from bigpca.estimators.supervised.roweis_problem import RoweisProblem
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources


def plan_labelled(rows: RowInput, resources: Resources, name: str, labelled: Labelled, problem: Problem) -> LabelledFit:
    """Plan a fit without reading X.

    Raises
    ------
    ValueError
        For a scatter that must be singular, and parameters that a named iteration does not support.
    MemoryBudgetError
        With ``solver="auto"``, if no solver fits.
    """
    exact = LabelsFit(rows, resources, name, labelled, problem.whole, problem)
    if not isinstance(problem, RoweisProblem) or not problem.whole:
        return exact
    problem.check_labels(labelled, rows.n_columns)
    if problem.solver == "covariance" or (problem.solver == "auto" and not problem.iterates):
        return exact
    iteration = KrylovRoweisFit.planned(rows, resources, name, labelled, problem)
    return iteration if problem.solver == "krylov" else choose([exact, iteration])
