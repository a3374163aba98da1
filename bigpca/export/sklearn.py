"""A fitted model as transformers of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from bigpca.arrays import Matrix, Vector
from bigpca.data.views import MissingCodes
from bigpca.export.linear import LinearMap

KEPT = (
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "noise_variance_",
    "n_samples_",
    "feature_names_in_",
)


def fitted_pca(axes: LinearMap, facts: dict[str, Any], *, whiten: bool = False) -> PCA:
    """Return a fitted PCA of scikit-learn whose ``transform`` is a linear map.

    Parameters
    ----------
    axes : LinearMap
        Before whitening.
    facts : dict
        Attributes of ``KEPT`` that are known; ``explained_variance_`` if ``whiten``.
    whiten : bool
        Divide the scores by their standard deviations.
    """
    k, d = axes.matrix.shape
    pca = PCA(n_components=k, whiten=whiten)
    pca.components_, pca.mean_ = axes.matrix.copy(), axes.centre.copy()
    pca.n_components_, pca.n_features_in_ = k, d
    for name, value in facts.items():
        setattr(pca, name, value)
    return pca


def scaler(divisors: Vector) -> StandardScaler:
    """Return a fitted StandardScaler that divides, by infinity where 0; it takes sparse rows, as it only divides."""
    made = StandardScaler(with_mean=False)
    made.scale_ = np.where(divisors > 0, divisors, np.inf)
    made.var_ = made.scale_**2
    made.mean_, made.n_samples_seen_, made.n_features_in_ = None, 0, len(divisors)
    return made


def decoder(missing: MissingCodes) -> FunctionTransformer:
    """Return a transformer that puts NaN in place of codes of missing values; it imports bigpca."""
    return FunctionTransformer(missing.decoded, feature_names_out="one-to-one")


def joined(steps: list[Any]) -> Any:
    """Return one step as it is, several as a Pipeline."""
    found: Pipeline = make_pipeline(*steps)
    return steps[0] if len(steps) == 1 else found


def projection_steps(
    centre: Vector,
    scale: Vector | None,
    components: Matrix,
    deviations: Vector | None,
    facts: dict[str, Any],
    *,
    l2: bool = False,
) -> list[Any]:
    """Return the steps of ``(x - centre) / scale @ components'``, divided by ``deviations``, and by their norm."""
    steps: list[Any] = []
    if scale is not None:
        divide = scaler(scale)
        steps, centre = [divide], centre / divide.scale_
        facts = {name: value for name, value in facts.items() if name != "feature_names_in_"}
    variances = facts.get("explained_variance_")
    usual = deviations is not None and variances is not None and bool((deviations > 0).all())
    usual = usual and np.array_equal(np.asarray(deviations), np.sqrt(np.asarray(variances)))
    steps.append(fitted_pca(LinearMap(components, centre), facts, whiten=usual))
    if deviations is not None and not usual:
        steps.append(scaler(deviations))
    return [*steps, Normalizer()] if l2 else steps
