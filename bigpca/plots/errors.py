"""How much eigenvalues would vary between samples of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bigpca.plots.numbers import eigenvalues, name_of
from bigpca.plots.style import ACCENT, INK, axes_of, counted, legend, log_ticks, tidy, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 2.0  # standard errors on either side


def standard_errors(model: Any, errors: Any, *, ax: Axes | None = None) -> Axes:
    """Draw eigenvalues with two standard errors on either side, on a log scale.

    These bars are about the sample: how far the eigenvalues would vary if as many other rows were drawn. Those of
    :func:`bounds` are about the computation: how far the eigenvalues of these very rows may be. Eigenvalues without a
    standard error, which the rows do not determine, are hollow.

    Parameters
    ----------
    model : fitted PCA or ApproximatePCA
    errors : StandardErrors
        From :func:`bigpca.standard_errors`, of this model.
    ax : matplotlib Axes, optional
        By default those of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        For anything else than standard errors.
    ValueError
        For those of another number of components, rows or columns.
    ImportError
        If matplotlib is not installed.
    """
    if not hasattr(errors, "explained_variance_") or not hasattr(errors, "n_rows"):
        raise TypeError(
            f"standard errors were expected, but a {type(errors).__name__} was given. Compute them from the rows of "
            "the fit: bigpca.standard_errors(model, X)."
        )
    values, found = eigenvalues(model), np.asarray(errors.explained_variance_, dtype=np.float64)
    if len(found) != len(values):
        raise ValueError(
            f"the standard errors are of {counted(len(found), 'component')}, but the model has {len(values)}. Compute "
            "them for this model: bigpca.standard_errors(model, X)."
        )
    fitted = (model.sum_weights_, model.n_features_in_)
    if not np.allclose((errors.n_rows, errors.n_features), fitted):
        raise ValueError(
            f"the standard errors are of {errors.n_rows:,.6g} rows of {errors.n_features:,} columns, but the model was "
            f"fitted to {fitted[0]:,.6g} rows of {fitted[1]:,}. Compute them for this model: "
            "bigpca.standard_errors(model, X)."
        )
    ax = axes_of(ax)
    order, positive = np.arange(1, len(values) + 1), values > 0
    known, unknown = positive & np.isfinite(found), positive & ~np.isfinite(found)
    reach = WIDTH * found[known]
    floor = 0.8 * min([*(values[known] - reach)[values[known] > reach], *values[positive]], default=0.1)
    below = np.minimum(reach, values[known] - floor)
    bars = ax.errorbar(
        order[known], values[known], yerr=[below, reach], fmt="o", markersize=3.5, color=ACCENT, ecolor=INK,
        elinewidth=1.2, capsize=3,
    )  # fmt: skip
    if unknown.any():
        hollow = ax.plot(order[unknown], values[unknown], "o", markersize=4, color=ACCENT, markerfacecolor="none")
        legend(ax, [bars, *hollow], ["two standard errors", "not determined by the rows"])
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor)
    log_ticks(ax)
    ax.set(xlabel="component", ylabel="eigenvalue (log scale)", xlim=(0.3, len(values) + 0.7))
    whole_numbers(ax)
    return tidy(ax, f"{name_of(model)}, variation between samples of {errors.n_rows:,.6g} rows")
