"""How an exact kernel fit is planned: which route, at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np

from bigpca.estimators.kernel.features_fit import plan_features
from bigpca.estimators.kernel.krylov_fit import KernelKrylovFit
from bigpca.estimators.kernel.matrix_fit import DenseFit
from bigpca.estimators.kernel.spectrum import KernelFit, KernelSettings, KernelSpectrum, check_references
from bigpca.estimators.linear.iteration import RULE_COLUMNS
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.shared.fit import Fit, seconds
from bigpca.kernels.base import Kernel
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.rows import RowInput
from bigpca.solvers.components import partial_will_do

FITS: dict[str, type[KernelFit]] = {"dense": DenseFit, "krylov": KernelKrylovFit}
KERNEL_SOLVERS = ("auto", *FITS, "features")
DENSE_ROWS = 2000  # up to which the whole matrix is the default
DENSE_INDEFINITE_ROWS = 4000  # the same for kernels whose negative mass only the whole spectrum tells


def plan_kernel_fit(
    opened: da.Array,
    settings: KernelSettings,
    solver: str,
    *,
    memory_limit: int | str | None,
    policies: Mapping[str, Any],
    pairs_only: bool = False,
) -> Fit[KernelSpectrum]:
    """Plan a fit without reading X.

    Parameters
    ----------
    pairs_only : bool
        Whether the model must keep reference rows: no route by features.

    Raises
    ------
    ValueError
        For an unknown solver, missing values that are to be omitted, or a kernel without features for ``"features"``.
    MemoryBudgetError
        For rows that a model can neither hold nor read again.
    """
    if solver not in KERNEL_SOLVERS:
        raise ValueError(f"solver = {solver!r} is unknown; one of {', '.join(map(repr, KERNEL_SOLVERS))} was expected.")
    if pairs_only and solver == "features":
        raise ValueError(
            'fit_inverse_transform regresses on reference rows, which solver="features" does not keep. Use solver="dense" or '
            '"krylov".'
        )
    featured = None
    if solver == "features" or (solver == "auto" and not pairs_only and _offers_features(opened, settings)):
        featured = plan_features(opened, settings, memory_limit=memory_limit, policies=policies)
        if solver == "features":
            return featured
    rows = RowInput(opened, **policies)
    check_enough_rows(rows.n_rows)
    check_square(rows, settings.kernel)
    resources = find_resources(memory_limit, in_process=rows.in_process)
    iterates = _iterates(rows, settings)
    small = not partial_will_do(settings.n_components, rows.n_rows, rows.n_rows) and rows.n_rows <= RULE_COLUMNS
    dense = solver == "dense" or (solver == "auto" and not iterates) or (solver == "krylov" and small)
    fit = FITS["dense" if dense else "krylov"].planned(rows, settings, resources)
    if (
        featured is not None
        and featured.plan.fits
        and (not fit.plan.fits or seconds(featured.plan) <= seconds(fit.plan))
    ):
        return featured
    if rows.nan_policy == "omit":
        raise ValueError(
            f'nan_policy="omit" leaves out rows as they are read, but solver="{fit.solver}" compares all pairs of rows and '
            f"must know them before. Remove such rows first, or use NystromKernelPCA."
        )
    check_references(rows, settings.kernel)
    return fit


def _offers_features(opened: da.Array, settings: KernelSettings) -> bool:
    """Whether the kernel has features, and as many as there are to be components: its matrix has n eigenvalues, if only zeros."""
    width, given = settings.kernel.feature_width(int(opened.shape[1])), settings.n_components
    return width is not None and not (isinstance(given, int | np.integer) and given > width)


def check_square(rows: RowInput, kernel: Kernel) -> None:
    """Refuse a kernel matrix that is not square, where the rows are one.

    Raises
    ------
    ValueError
    """
    if not kernel.needs_rows and rows.n_rows != rows.n_columns:
        raise ValueError(
            f"X has shape ({rows.n_rows}, {rows.n_columns}), but {kernel} takes the kernel matrix of the training rows; (n, n) "
            f"was expected. Give it whole to fit, and (new rows, n) to transform."
        )


def _iterates(rows: RowInput, settings: KernelSettings) -> bool:
    """Whether the default is to iterate: beyond some thousand rows, for a number of components or a rule that allows it."""
    few = DENSE_ROWS if settings.kernel.positive_semidefinite else DENSE_INDEFINITE_ROWS
    given: Any = settings.n_components
    if not settings.kernel.positive_semidefinite and not isinstance(given, int | np.integer):
        return False  # shares and rules need the whole of an indefinite spectrum
    return rows.n_rows > few and partial_will_do(settings.n_components, rows.n_rows, rows.n_rows)
