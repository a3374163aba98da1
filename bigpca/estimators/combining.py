"""Models made of models, and the choice of a solver without one."""

from __future__ import annotations

from typing import Any

from bigpca.estimators.fitting import SolverChoice
from bigpca.estimators.pca import PCA
from bigpca.estimators.spectrum import no_state
from bigpca.solvers.components import NComponents


def merge(a: PCA, b: PCA) -> PCA:
    """Return the model of all rows of two models, exact to rounding; neither is changed, nothing is read.

    Raises
    ------
    ValueError
        Where they differ in features, centring or scaling, or have no sufficient statistics.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> both = merge(PCA(2).fit(X[:10]), PCA(2).fit(X[10:]))
    >>> bool(np.allclose(both.explained_variance_, PCA(2).fit(X).explained_variance_))
    True
    """
    for model in (a, b):
        model._check_fitted()
        if model._moments is None:
            raise ValueError(no_state("merge", model.solver_, model.n_features_in_, model.keep_state_bytes))
    differing = [p for p in ("center", "scale") if getattr(a, p) != getattr(b, p)]
    if a.n_features_in_ != b.n_features_in_ or differing:
        raise ValueError(
            f"models of {a.n_features_in_} and {b.n_features_in_} features"
            + "".join(f", {p}={getattr(a, p)} and {getattr(b, p)}" for p in differing)
            + ": equal ones were expected. Fit both with the same parameters."
        )
    names = [getattr(model, "feature_names_in_", None) for model in (a, b)]
    if names[0] is not None and names[1] is not None and list(names[0]) != list(names[1]):
        first = next(i for i in range(len(names[0])) if names[0][i] != names[1][i])
        raise ValueError(
            f"the models name feature {first} {names[0][first]!r} and {names[1][first]!r}: equal names in equal order were "
            f"expected. Fit both on the same columns."
        )
    both = PCA(**a.get_params())
    both.n_features_in_ = a.n_features_in_
    if hasattr(a, "feature_names_in_"):
        both.feature_names_in_ = a.feature_names_in_
    both._absorb(a._moments.merge(b._moments), a.n_omitted_ + b.n_omitted_)  # type: ignore[union-attr, arg-type]
    return both


def select_solver(X: Any, n_components: NComponents = None, **parameters: Any) -> SolverChoice:
    """Return the solver that ``PCA(n_components, **parameters).fit(X)`` will use, and why."""
    return PCA(n_components, **parameters).select_solver(X)
