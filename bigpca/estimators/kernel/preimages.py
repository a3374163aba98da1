"""The regression of rows on scores that ``inverse_transform`` uses: checked before a fit, and fitted at its end."""

from __future__ import annotations

import numpy as np

from bigpca.blas import one_blas_thread
from bigpca.errors import MemoryBudgetError, format_bytes
from bigpca.estimators.kernel.expansion import Expansion, FeatureProjection
from bigpca.estimators.kernel.maps import ridge_preimage
from bigpca.estimators.kernel.parameters import KernelParameters
from bigpca.kernels import as_kernel

MAX_REGRESSED = 10_000  # reference rows of a regression, which solves a dense system of their number


def check_regression(model: KernelParameters, n: int) -> None:
    """Reject a regression on too many reference rows, or by a kernel that does not take scores.

    Raises
    ------
    MemoryBudgetError
    ValueError
    """
    kernel = as_kernel(model.kernel)
    if model.fit_inverse_transform and (kernel.accepts_strings or not kernel.needs_rows):
        raise ValueError(
            f"fit_inverse_transform regresses rows on their scores, which {kernel} cannot compare: it takes "
            f"{'strings' if kernel.accepts_strings else 'rows of a kernel matrix'}. Use "
            f"fit_inverse_transform=False."
        )
    if model.fit_inverse_transform and n > MAX_REGRESSED:
        raise MemoryBudgetError(
            f"fit_inverse_transform regresses {n} rows on their scores, by a matrix of {n} x {n} numbers, "
            f"{format_bytes(8 * n * n)}; the limit is {MAX_REGRESSED} rows. Use NystromKernelPCA, which regresses its "
            f"landmarks only, or denoise(X) for a Gaussian kernel."
        )


@one_blas_thread()  # so that a loaded model has the bits of the one that was saved
def fitted_regression(model: KernelParameters, expansion: Expansion | FeatureProjection) -> Expansion | None:
    """Return the regression of the reference rows on their scores, if ``fit_inverse_transform`` is set.

    Raises
    ------
    ValueError
        If the kernel rejects scores as rows.
    """
    if not model.fit_inverse_transform or not isinstance(expansion, Expansion):
        return None
    rows = np.concatenate([tile for _, tile in expansion.references.tiles()])
    scores = expansion.apply(rows)
    try:
        return ridge_preimage(expansion.kernel, rows, scores, model.alpha)
    except ValueError as error:
        raise ValueError(
            f"fit_inverse_transform regresses rows on their scores, which {expansion.kernel} does not take: "
            f"{error} Use fit_inverse_transform=False."
        ) from error
