"""The choice of a solver of KernelPCA: all applicable fits, compared by cost."""

from __future__ import annotations

from bigpca.estimators.kernel.features_fit import FeaturesFit
from bigpca.estimators.kernel.krylov_fit import KernelKrylovFit
from bigpca.estimators.kernel.matrix_fit import DenseFit
from bigpca.estimators.kernel.spectrum import KernelFit, KernelSettings, check_references
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.shared.fit import choose
from bigpca.kernels.base import Kernel
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources

FITS: dict[str, type[KernelFit]] = {  # a new solver: one row; the first of equal prices is chosen
    "features": FeaturesFit,
    "dense": DenseFit,
    "krylov": KernelKrylovFit,
}


def plan_kernel_fit(
    rows: RowInput, resources: Resources, settings: KernelSettings, solver: str, *, pairs_only: bool = False
) -> KernelFit:
    """Plan a fit without reading X.

    Parameters
    ----------
    pairs_only : bool
        Whether the model must keep reference rows, as the regression on scores requires.

    Raises
    ------
    ValueError
        For missing values that are to be omitted, or a kernel without features for ``"features"``.
    MemoryBudgetError, EvaluationBudgetError
        With ``solver="auto"``, if no solver fits, and for rows that a model can neither hold nor read again.
    """
    named = FITS.get(solver)
    if pairs_only and named is not None and not named.compares_pairs:
        raise ValueError(
            f'fit_inverse_transform regresses on reference rows, which solver="{solver}" does not keep. Use '
            f'solver="dense" or "krylov".'
        )
    check_enough_rows(rows.n_rows)
    check_square(rows, settings.kernel)
    auto = [one for one in FITS.values() if one.offered(rows, settings) and (one.compares_pairs or not pairs_only)]
    fit = choose([one.planned(rows, settings, resources) for one in (auto if named is None else [named])])
    if not fit.compares_pairs:
        return fit
    if rows.nan_policy == "omit":
        raise ValueError(
            f'nan_policy="omit" leaves out rows as they are read, but solver="{fit.solver}" compares all pairs of rows '
            "and must know them in advance. Remove such rows first, or use NystromKernelPCA."
        )
    check_references(rows, settings.kernel)
    return fit


def check_square(rows: RowInput, kernel: Kernel) -> None:
    """Reject a precomputed kernel matrix that is not square.

    Raises
    ------
    ValueError
    """
    if not kernel.needs_rows and rows.n_rows != rows.n_columns:
        raise ValueError(
            f"X has shape ({rows.n_rows}, {rows.n_columns}), but {kernel} takes the kernel matrix of the training "
            f"rows; (n, n) was expected. Give it whole to fit, and (new rows, n) to transform."
        )
