"""The parameters that say what a fit does about missing values and chunks, checked."""

from __future__ import annotations

from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator

from bigpca.errors import check_choice
from bigpca.settings import setting
from bigpca.sketches.base import positive_integer
from bigpca.solvers.whitening import Whitening


def check_policies(estimator: BaseEstimator) -> None:
    """Reject unknown policies, switches that are not booleans and counts that are not integers.

    Raises
    ------
    TypeError, ValueError
    """
    known = getattr(estimator, "_nan_policies", ("raise", "omit"))
    if estimator.nan_policy == "mean" and "mean" not in known:
        raise ValueError(
            f'nan_policy = "mean" is for PCA, ApproximatePCA and RotatedPCA, not for {type(estimator).__name__}. Use '
            f'"raise" or "omit", or fill in the missing values first.'
        )
    for name, allowed in (("nan_policy", known), ("missing_chunks", ("raise", "fill"))):
        check_choice(name, getattr(estimator, name), allowed)
    check_filling(estimator)
    whiten = getattr(estimator, "whiten", False)
    if not isinstance(whiten, bool | np.bool_ | Whitening):
        raise TypeError(
            f"whiten = {whiten!r} is a {type(whiten).__name__}; True, False or a rule such as bp.Whitening(power=0.25) "
            f"was expected."
        )
    threads, kept = setting(estimator, "solve_threads"), setting(estimator, "keep_state_bytes")
    if threads is not None:
        positive_integer("solve_threads", threads)
    if isinstance(kept, bool | np.bool_) or not isinstance(kept, Integral | None):
        raise TypeError(f"keep_state_bytes = {kept!r} is a {type(kept).__name__}; a number of bytes was expected.")


def check_filling(estimator: BaseEstimator) -> None:
    """Reject rows that would be preprocessed although they have missing values.

    Raises
    ------
    ValueError
    """
    preprocess = getattr(estimator, "preprocess", None)
    if estimator.nan_policy == "mean" and preprocess is not None:
        raise ValueError(
            f'nan_policy = "mean" is about missing values in the columns of X, but preprocess = {preprocess!r} is a '
            f'function of complete rows. Preprocess the rows before the fit, or use nan_policy="omit".'
        )
