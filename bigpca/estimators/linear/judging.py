"""What the methods that judge rows require of a model, and the checks that they share."""

from __future__ import annotations

from typing import Protocol

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from bigpca.estimators.linear.axes import orthonormality_error
from bigpca.estimators.linear.maps import Projection
from bigpca.estimators.linear.standardization import Center, Scale, limits_of
from bigpca.estimators.linear.statistics import sound_variances
from bigpca.estimators.shared.inputs import Input, Lazy
from bigpca.estimators.shared.transforming import Transforming
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources

Vector = NDArray[np.float64]


class Judging(Transforming, Protocol):
    """A fitted model with orthonormal axes V (k, d) and a variance along each, which judges rows."""

    center: Center
    scale: Scale
    nan_policy: str
    components_: NDArray[np.float64]
    explained_variance_: Vector
    noise_variance_: float
    mean_: Vector
    scale_: Vector | None
    n_components_: int
    n_samples_: int
    sum_weights_: float

    @property
    def _orthonormal(self) -> bool: ...

    def statistics(self, X: Input, names: str, **options: Input) -> Lazy: ...

    def score_samples(self, X: Input) -> Lazy: ...

    def get_covariance(self) -> NDArray[np.float64]: ...

    def _whole_spectrum(self, what: str) -> Vector: ...

    def _rows(self, opened: da.Array) -> tuple[RowInput, Resources]: ...


def has_covariance(model: Judging) -> bool:
    """Whether components are orthonormal; otherwise raises AttributeError, as ``available_if`` requires."""
    if not model._orthonormal:
        off = f" (off by {orthonormality_error(model.components_):.2g})" if "components_" in vars(model) else ""
        raise AttributeError(
            f"the components are not orthonormal{off}, which the covariance components' diag(variances) components + "
            f'noise I requires. Fit a model with orthonormal components, such as core="nystrom".'
        )
    return True


def plain_projection(self: Judging) -> Projection:
    """Return the map of complete rows to scores that are not whitened; see :meth:`LinearModel.transform` for others."""
    policy = "raise" if self.nan_policy == "mean" else self.nan_policy
    return Projection(self.mean_, self.scale_, self.components_, None, policy, limits=limits_of(self.scale))


def counted_variances(self: Judging) -> Vector:
    """Return the variances (k,), with 0 for those at the level of the rounding of the fit, which do not count."""
    return sound_variances(self.explained_variance_, self.n_samples_, self.n_features_in_)


def check_density(self: Judging) -> None:
    """Reject a model whose covariance is singular.

    Raises
    ------
    ValueError
    """
    degenerate = self.noise_variance_ <= 0 and self.n_components_ < self.n_features_in_
    if degenerate or (self.explained_variance_ <= 0).any():
        raise ValueError(
            f"the model has no density: {self.n_components_} components of {self.n_features_in_} features with "
            f"noise variance {self.noise_variance_:g} and least variance {self.explained_variance_.min():g}; "
            f"positive values were expected. Keep fewer components."
        )


def check_centred(self: Judging, what: str) -> None:
    """Reject a model of rows that are not about their mean: ``what`` requires that.

    Raises
    ------
    ValueError
    """
    if not isinstance(self.center, bool | np.bool_) or not self.center:
        raise ValueError(
            f"{what} is known for rows about their mean, but the model has center={self.center!r}. Fit with "
            f"center=True."
        )
