"""Parameters of kernel models: the kernel that they name, switches and budgets, and strings as rows."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Protocol

import numpy as np

from bigpca.arrays import Array
from bigpca.data.containers import reject_foreign
from bigpca.estimators.shared.inputs import Input
from bigpca.kernels import as_kernel
from bigpca.kernels.base import Kernel
from bigpca.kernels.codes import string_codes
from bigpca.kernels.parameters import is_number
from bigpca.kernels.rows import checked_switch

WIDTHS = {"gamma": None, "degree": 3, "coef0": 1}  # parameters of kernels given by name, and scikit-learn's defaults


class KernelParameters(Protocol):
    """The parameters that all kernel models have."""

    kernel: Input
    gamma: float | None
    degree: int
    coef0: float
    max_kernel_evaluations: float
    fit_inverse_transform: bool
    alpha: float


def check_numbers(model: KernelParameters) -> None:
    """Reject a switch that is not a boolean, a ridge penalty below 0, and a budget that is not above 0.

    Raises
    ------
    TypeError, ValueError
    """
    checked_switch("fit_inverse_transform", model.fit_inverse_transform)
    budget, alpha = model.max_kernel_evaluations, model.alpha
    if not is_number(budget) or not budget > 0:
        raise ValueError(
            f"max_kernel_evaluations = {budget!r}; a number above 0 was expected. Use np.inf for no limit."
        )
    if not is_number(alpha) or not 0 <= alpha < np.inf:
        raise ValueError(
            f"alpha = {alpha!r}; a finite number of at least 0 was expected, the penalty of the regression that "
            f"inverse_transform requires. Use for example 1.0."
        )


def resolved_kernel(model: KernelParameters, d: int) -> Kernel:
    """Return the kernel for d features, with the parameters that scikit-learn has beside its name, and defaults.

    Raises
    ------
    TypeError, ValueError
        If ``kernel`` is not a kernel, or is an object and parameters are given beside it.
    """
    kernel = as_kernel(model.kernel)
    check_numbers(model)
    values = {name: getattr(model, name) for name in WIDTHS}
    given = {n: v for n, v in values.items() if v != WIDTHS[n] or isinstance(v, bool | np.bool_)}  # True == 1
    own = {field.name for field in fields(kernel)}
    if given and not isinstance(model.kernel, str):
        raise ValueError(
            f"{', '.join(given)} were given beside kernel = {model.kernel!r}, which has parameters of its own. Set "
            f"them there."
        )
    if model.kernel == "linear":
        return kernel.resolve(d)
    return replace(kernel, **{name: value for name, value in given.items() if name in own}).resolve(d)


def requested_kernel(model: KernelParameters) -> Kernel | None:
    """Return the kernel that the parameters name, for rows of one feature; None if ``fit`` will reject them."""
    try:
        return resolved_kernel(model, 1)
    except (TypeError, ValueError):
        return None


def coded_strings(X: Input) -> Array:
    """Return strings as rows of character codes; rows of numbers are returned as an array.

    Raises
    ------
    TypeError, ValueError
        For containers of other libraries, masked strings, and values that are not strings.
    """
    reject_foreign(X)
    if np.ma.is_masked(X):
        raise ValueError("X has masked strings; one string for each row was expected. Remove those rows.")
    codes = np.asarray(X)
    if codes.dtype.kind in "OSU":  # not the array of a list: NumPy converts other values in it to strings, too
        codes = string_codes(X if isinstance(X, list | tuple) else codes)
    if not codes.shape[-1]:  # all strings are empty
        codes = np.zeros((len(codes), 1), codes.dtype)
    return codes
