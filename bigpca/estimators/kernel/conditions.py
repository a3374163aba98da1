"""Which methods a kernel model has: each condition is True, or raises AttributeError with the reason.

scikit-learn's ``available_if`` calls them, so that ``hasattr`` is False for a method that the parameters rule out.
"""

from __future__ import annotations

from typing import Protocol

from bigpca.estimators.kernel.parameters import KernelParameters, requested_kernel
from bigpca.kernels.distance import RBF


class Conditional(KernelParameters, Protocol):
    """What the conditions look at, beside the parameters."""

    @property
    def _orthonormal(self) -> bool: ...
    @property
    def _why_fixed(self) -> str: ...


def measures_distances(model: Conditional) -> bool:
    """Whether the squared distance to the subspace can be computed, which requires k(x, x)."""
    kernel = requested_kernel(model)
    if kernel is not None and not kernel.needs_rows:
        raise AttributeError(
            f"the distance of a row's image requires k(x, x), which is not in the rows that {kernel} takes: these hold "
            f"k(x, training rows) only. Use a kernel that computes its entries."
        )
    return _projects(model)


def has_fixed_points(model: Conditional) -> bool:
    """Whether the fixed-point iteration is defined: its equation holds for Gaussian kernels only."""
    kernel = requested_kernel(model)
    if kernel is not None and not isinstance(kernel, RBF):
        raise AttributeError(
            f"the fixed-point pre-image requires a Gaussian kernel; this model's is {kernel}. Use "
            f"fit_inverse_transform=True and inverse_transform, which regress rows on scores for any kernel."
        )
    return _projects(model)


def regresses(model: Conditional) -> bool:
    """Whether a fit includes the regression of rows on scores."""
    if not model.fit_inverse_transform:
        raise AttributeError(
            "inverse_transform regresses rows on scores after a fit with fit_inverse_transform=True. For a Gaussian "
            "kernel, denoise(X) returns fixed-point pre-images without such a fit."
        )
    return True


def grows(model: Conditional) -> bool:
    """Whether rows can be added to a fitted model."""
    if model._why_fixed:
        raise AttributeError(model._why_fixed)
    return True


def _projects(model: Conditional) -> bool:
    """Whether the scores are those of an orthogonal projection."""
    if not model._orthonormal:
        raise AttributeError(
            "the axes are not orthonormal if r2 > 0, so the scores are not those of a projection: neither the distance "
            "to it nor its pre-image exists. Use r2 = 0, KernelPCA, or inverse_transform after a fit with "
            "fit_inverse_transform=True."
        )
    return True
