"""Rotated principal components: the axes of a PCA turned to simple structure by varimax, quartimax or promax."""

from __future__ import annotations

from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Matrix, Vector
from bigpca.blas import one_blas_thread
from bigpca.errors import an
from bigpca.estimators.linear.approximate_pca import ApproximatePCA
from bigpca.estimators.linear.maps import Projection, Reconstruction, limits_of
from bigpca.estimators.linear.monitoring import has_covariance
from bigpca.estimators.linear.pca import PCA
from bigpca.estimators.linear.spectrum import PCAResult
from bigpca.estimators.shared.exporting import FeatureAxes, LinearExports
from bigpca.estimators.shared.files import OF_MODELS
from bigpca.estimators.shared.fit import Fit, fit_seed
from bigpca.estimators.shared.inputs import Unchecked, check_parameters, check_policies
from bigpca.estimators.shared.opening import maps_of, set_known
from bigpca.estimators.shared.results import Result, Traits
from bigpca.estimators.shared.transformer import OF_ALL, Estimator, with_parameters
from bigpca.passes.rows import Rows
from bigpca.records import of_part, stored
from bigpca.solvers.components import NComponents
from bigpca.solvers.rotation import simple_structure


@dataclass(frozen=True)
class Rotated(Result):
    """A rotated PCA: the fitted attributes of the model.

    Attributes
    ----------
    estimator_ : fitted PCA or ApproximatePCA
    rotation_matrix_ : ndarray of shape (k, k)
        The transformation of its loadings.
    """

    none_is_known: ClassVar[frozenset[str]] = frozenset({"scale_"})

    estimator_: PCA | ApproximatePCA = stored(coding=OF_MODELS)
    rotation_matrix_: Matrix = stored("k", "k")

    @property
    def spectrum(self) -> PCAResult:
        """That of the PCA."""
        return self.estimator_._result

    @cached_property
    def loadings_(self) -> Matrix:
        """Loadings (d, k)."""
        with one_blas_thread():  # so that a loaded model has the bits of the one that was saved
            return self.estimator_.loadings_ @ self.rotation_matrix_

    @cached_property
    def components_(self) -> Matrix:
        """The transposed loadings (k, d)."""
        return np.ascontiguousarray(self.loadings_.T)

    @cached_property
    def phi_(self) -> Matrix:
        """Correlations (k, k) of the scores."""
        with one_blas_thread():
            return np.asarray(np.linalg.inv(self.rotation_matrix_.T @ self.rotation_matrix_), np.float64)

    @cached_property
    def explained_variance_(self) -> Vector:
        """Sums of squares (k,) of the loadings."""
        with one_blas_thread():
            return np.asarray(np.einsum("ij,ji->i", self.phi_, self.components_ @ self.loadings_))

    @property
    def explained_variance_ratio_(self) -> Vector:
        """Their shares (k,) of the total variance."""
        return self.explained_variance_ / self.spectrum.total_variance_

    mean_ = of_part("spectrum", "mean_")
    scale_ = of_part("spectrum", "scale_")
    n_samples_ = of_part("spectrum", "n_samples_")
    n_omitted_ = of_part("spectrum", "n_omitted_")
    sum_weights_ = of_part("spectrum", "sum_weights_")
    n_effective_ = of_part("spectrum", "n_effective_")
    n_passes_ = of_part("spectrum", "n_passes_")
    converged_ = of_part("spectrum", "converged_")
    captured_variance_bounds_ = of_part("spectrum", "captured_variance_bounds_")
    bounds_confidence_ = of_part("spectrum", "bounds_confidence_")

    def checked(self) -> Self:
        """Return itself; raises TypeError or ValueError for another estimator, or for what is no rotation."""
        if not isinstance(self.estimator_, PCA | ApproximatePCA):
            raise TypeError(f"it holds {an(type(self.estimator_).__name__)}, not a PCA")
        k, T = self.spectrum.n_components_, self.rotation_matrix_
        if T.shape != (k, k) or np.linalg.matrix_rank(T) < k:
            raise ValueError(f"it has a rotation_matrix of shape {T.shape}; an invertible one of {(k, k)} was expected")
        return self


@with_parameters
class RotatedPCA(Estimator[Rotated], LinearExports, FeatureAxes):
    """A PCA whose loadings are rotated, so that each feature has a large loading in few components.

    With loadings ``A = components' sqrt(variances)`` (d, k) and unit scores z of the PCA, ``x ~ mean + A z = mean + (A
    T) (T^-1 z)``: the span, and therefore the reconstruction, is that of the PCA. Varimax takes the orthogonal T that
    maximises the variance of the squared loadings of each component, quartimax the sum of their squares; promax lets
    components correlate. With Kaiser's normalisation, features have the same weight, whatever share of their variance
    the components explain.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None, default None
        Number of components of the PCA; unused with an ``estimator``.
    rotation : {"varimax", "quartimax", "promax"}, default "varimax"
        Two orthogonal rotations, and an oblique one.
    power : float, default 4
        For promax: the target is this power of the varimax loadings.
    normalize : bool, default True
        Kaiser's normalisation: the loadings of each feature have length 1 while they are rotated, as in R's ``varimax``
        and in xeofs. Without it, features that vary most decide, as grid cells that are not standardized.
    estimator : PCA, ApproximatePCA or None, default None
        None for ``PCA(n_components)``.
    preprocess : a preprocessor such as ``bp.preprocessing.L2()``, a list of them, or None, default None
        As in :class:`bigpca.PCA`.
    nan_policy : {"raise", "omit", "mean"}, default "raise"
        As in :class:`bigpca.PCA`.
    memory_limit : int, str or None, default None
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    loadings_ : ndarray of shape (d, k)
        ``A T``: the covariance of (scaled) features and unit scores if the rotation is orthogonal; columns are in
        descending order of their sum of squares, and the entry of largest magnitude is positive.
    components_ : ndarray of shape (k, d)
        ``loadings_'``, as in a factor analysis: not orthonormal.
    rotation_matrix_ : ndarray of shape (k, k)
        T.
    phi_ : ndarray of shape (k, k)
        Correlations of the scores, ``(T'T)^-1``; I except for promax.
    explained_variance_, explained_variance_ratio_ : ndarray of shape (k,)
        Sums of squares of the loadings (with promax ``diag(phi_ loadings_' loadings_)``), and their share of the total
        variance; they add up to those of the PCA.
    estimator_ : the fitted PCA
    mean_, scale_, n_components_, n_features_in_, n_samples_, n_omitted_, sum_weights_, n_effective_, solver_
        Those of the PCA, as are ``n_passes_``, ``converged_``, ``captured_variance_bounds_`` and ``bounds_confidence_``
        of an approximate one. Its other bounds are not those of rotated components.

    Notes
    -----
    Kaiser (1958); Neuhaus & Wrigley (1954); Hendrickson & White (1964). The scores have variance 1, like those of a
    whitened PCA: rotated unscaled scores would be correlated.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> pairs = rng.standard_normal((500, 2))
    >>> X = pairs[:, [0, 0, 1, 1]] + 0.1 * rng.standard_normal((500, 4))
    >>> (RotatedPCA(2).fit(X).loadings_ > 0.5).sum(axis=0).tolist()
    [2, 2]
    """

    _traits = Traits(Rotated, "rotated", frozenset({"mean"}))

    n_components: NComponents = None
    _: KW_ONLY
    rotation: str = "varimax"
    power: float = 4
    normalize: bool = True
    estimator: Unchecked = None

    @classmethod
    def of(
        cls, model: PCA | ApproximatePCA, rotation: str = "varimax", *, power: float = 4, normalize: bool = True
    ) -> Self:
        """Rotate the loadings of a fitted PCA; nothing is read.

        Parameters
        ----------
        model : fitted PCA or ApproximatePCA
            Is not changed.
        rotation : {"varimax", "quartimax", "promax"}, default "varimax"
            Two orthogonal rotations, and an oblique one.
        power : float, default 4
            Of promax.
        normalize : bool, default True
            Kaiser's normalisation.

        Returns
        -------
        RotatedPCA
            Fitted, with ``loadings_``, ``phi_``, ``transform``, ``inverse_transform`` and ``save``.

        Raises
        ------
        TypeError, AttributeError
            For a model of another class, and for components that are not orthonormal.
        ValueError
            For a single component, and for components of variance 0.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((500, 2))[:, [0, 0, 1, 1]] + 0.1 * rng.standard_normal((500, 4))
        >>> rotated = RotatedPCA.of(PCA(2).fit(X), "promax")
        >>> (rotated.loadings_ > 0.5).sum(axis=0).tolist()
        [2, 2]
        """
        if not isinstance(model, PCA | ApproximatePCA):
            raise TypeError(f"{an(type(model).__name__)} cannot be rotated. Give a fitted PCA or ApproximatePCA.")
        check_is_fitted(model)
        has_covariance(model)
        policies = {name: getattr(model, name) for name in OF_ALL}
        rotated = cls(rotation=rotation, power=power, normalize=normalize, estimator=clone(model), **policies)
        rotated._inner()
        rotated._found, rotated.solver_ = Rotated(copy(model), rotated._rotation(model)), model.solver_
        rotated.n_features_in_ = model.n_features_in_
        steps = rotated._steps_of(model.n_features_in_, model._steps.view, model._steps.grid)
        # maps_of raises if they were changed after the fit.
        rotated._steps = replace(steps, preprocessing=maps_of(model), counts=model._steps.counts)
        names = {one: vars(model).get(one) for one in ("feature_names_in_", "covariate_names_in_")}
        set_known(rotated, _provenance=model.provenance_, **names)
        return rotated

    def _inner(self) -> PCA | ApproximatePCA:
        """Return the unfitted estimator, with the policies of this one."""
        check_parameters(self)
        policies = {name: getattr(self, name) for name in OF_ALL}
        given: Unchecked = self.estimator
        if given is None:
            return PCA(self.n_components, **policies)
        if not isinstance(given, PCA | ApproximatePCA):
            raise TypeError(
                f"estimator = {given!r} is {an(type(given).__name__)}; a PCA or an ApproximatePCA was expected."
            )
        inner: PCA | ApproximatePCA = clone(given).set_params(**policies)
        return inner

    def _fit(self, rows: Rows, y: Unchecked) -> Fit[PCAResult]:
        inner = self._inner()
        has_covariance(inner)
        return inner._fit(replace(rows, seed=fit_seed(inner)), y)

    def _made(self, found: PCAResult) -> Rotated:
        inner = self._inner()
        inner._found, inner.n_features_in_ = found, len(found.mean_)
        return Rotated(inner, self._rotation(inner))

    def _remember(self, rows: Rows) -> None:
        super()._remember(rows)
        grid = self._steps.grid  # the scale of the PCA may name coordinates of it
        self.estimator_.solver_ = self.solver_
        steps = self.estimator_._steps_of(rows.viewed_columns, None, grid)
        self.estimator_._steps = replace(steps, preprocessing=self._steps.preprocessing)

    def _column_shares(self) -> Vector | None:
        return self._result.estimator_._column_shares()

    def _reconstruction(self) -> Reconstruction:
        return Reconstruction(self.mean_, self.scale_, self.components_, None)

    def _row_map(self) -> Projection:
        check_policies(self)
        inner = self.estimator_
        unit = inner.components_ / np.sqrt(inner.explained_variance_)[:, None]
        axes = np.asarray(np.linalg.solve(self.rotation_matrix_, unit), np.float64)
        return Projection(self.mean_, self.scale_, axes, None, self.nan_policy, limits=limits_of(inner.scale))

    def _rotation(self, model: PCA | ApproximatePCA) -> Matrix:
        """Return the transformation of the loadings.

        Raises
        ------
        ValueError
            For a single component, and for components of variance 0.
        """
        k = model.n_components_
        if k < 2:
            raise ValueError(f"a rotation needs at least two components, but the model has {k}. Fit more.")
        # Axes are divided by the deviations of their scores, so none may be rounding.
        sound = np.count_nonzero(model._result.known_variances)
        if sound < k:
            raise ValueError(
                f"{k - sound} of {k} components have variance 0, so they have no scores of variance 1 to rotate. Keep "
                f"{sound} components."
            )
        return simple_structure(model.loadings_, self.rotation, self.power, normalized=self.normalize)
