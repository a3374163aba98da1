"""The base of all kernel models, whatever their fit: scores, distances, pre-images, files.

In this order: the kernel that the parameters name, with switches and budgets; strings as rows; which methods a model
has (each condition is True, or raises AttributeError with the reason); and the model, with the regression of rows on
scores that ``inverse_transform`` uses, which is checked before a fit and fitted at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeAlias

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, Input, Path
from bigpca.data.containers import is_path_list, reject_foreign
from bigpca.errors import MemoryBudgetError, format_bytes
from bigpca.estimators.kernel.maps import Expansion, FeatureProjection, FixedPoint, KernelScores, Novelty, RidgePreimage
from bigpca.estimators.kernel.spectrum import KernelSettings, KernelSpectrum
from bigpca.estimators.shared.certificates import BoundedSubspaces
from bigpca.estimators.shared.exporting import Inverts
from bigpca.estimators.shared.fit import RandomState
from bigpca.estimators.shared.growing import Grows
from bigpca.estimators.shared.inputs import Lazy, Unchecked, is_lazy
from bigpca.estimators.shared.outputs import Destination, mapped_to_numbers, mapped_to_rows, maps_rows
from bigpca.estimators.shared.transformer import Estimator, of_all
from bigpca.kernels import as_kernel
from bigpca.kernels.base import Kernel
from bigpca.kernels.distance import RBF
from bigpca.kernels.string import string_codes
from bigpca.passes.accumulators.landmark_moments import LandmarkMoments
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.row_maps import RowMap, RowPreprocessor
from bigpca.passes.rows import Rows
from bigpca.records import Held
from bigpca.settings import setting
from bigpca.solvers.components import NComponents

KernelLike: TypeAlias = Kernel | str | Callable[[Array, Array], Array]  # a function of two blocks of rows
WIDTHS = {"gamma": None, "degree": 3, "coef0": 1}  # parameters of kernels given by name, and scikit-learn's defaults
UNWEIGHTED = "a kernel matrix of all rows is centred with every row counted once"
MAX_REGRESSED = 10_000  # reference rows of a regression, which solves a dense system of their number
PAIRWISE = ("precomputed", "Precomputed")  # kernels whose rows cross-validation splits in both directions


def resolved_kernel(model: KernelModel, d: int) -> Kernel:
    """Return the kernel for d features, with the parameters that scikit-learn has beside its name, and defaults.

    Raises
    ------
    TypeError, ValueError
        If ``kernel`` is not a kernel, or is an object and parameters are given beside it.
    """
    kernel = as_kernel(model.kernel)
    values = {name: getattr(model, name) for name in WIDTHS}
    given = {n: v for n, v in values.items() if v != WIDTHS[n] or isinstance(v, bool | np.bool_)}  # True == 1
    own = {field.name for field in fields(kernel)}
    if given and not isinstance(model.kernel, str):
        raise ValueError(
            f"{', '.join(given)} were given together with kernel = {model.kernel!r}, which has its own parameters. Set "
            f"them there."
        )
    if model.kernel == "linear":
        return kernel.resolve(d)
    return replace(kernel, **{name: value for name, value in given.items() if name in own}).resolve(d)


def requested_kernel(model: KernelModel) -> Kernel | None:
    """Return the kernel that the parameters name, for rows of one feature; None if ``fit`` will reject them."""
    try:
        return resolved_kernel(model, 1)
    except (TypeError, ValueError):
        return None


def coded_strings(X: Unchecked) -> Array:
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


# scikit-learn's ``available_if`` calls them, so that ``hasattr`` is False for a method that the parameters rule out.
def measures_distances(model: KernelModel) -> bool:
    """Whether the squared distance to the subspace can be computed, which requires k(x, x)."""
    kernel = requested_kernel(model)
    if kernel is not None and not kernel.needs_rows:
        raise AttributeError(
            f"the distance of a row's image requires k(x, x), but rows for {kernel} contain only k(x, training "
            f"rows). Use a kernel that computes its entries."
        )
    return _projects(model)


def has_fixed_points(model: KernelModel) -> bool:
    """Whether the fixed-point iteration is defined: its equation holds for Gaussian kernels only."""
    kernel = requested_kernel(model)
    if kernel is not None and not isinstance(kernel, RBF):
        raise AttributeError(
            f"denoise requires a Gaussian kernel, but this model has {kernel}. Use "
            f"fit_inverse_transform=True and inverse_transform, which work for any kernel by regressing rows on scores."
        )
    return _projects(model)


def _projects(model: KernelModel) -> bool:
    """Whether the scores are those of an orthogonal projection."""
    if not model._orthonormal:
        raise AttributeError(
            "the axes are not orthonormal if r2 > 0, so the scores are not a projection, and neither distances to "
            "the subspace nor pre-images exist. Use r2 = 0, KernelPCA, or inverse_transform after a fit with "
            "fit_inverse_transform=True."
        )
    return True


@of_all
class KernelModel(Estimator[KernelSpectrum], Grows, Inverts, BoundedSubspaces):
    """Scores along the leading axes of the rows' images under a kernel: ``k(x, R) A - b``.

    A subclass plans its fit in :meth:`_fit`; with landmarks also the read of added rows, which :meth:`_solve` solves.

    Attributes
    ----------
    kernel_ : Kernel
        The kernel, with its defaults filled in.
    eigenvalues_ : ndarray of shape (k,), descending
        Of the centred kernel matrix HKH, as scikit-learn's. Where it has fewer eigenvalues above 0 than the requested
        components, the others are 0, and so are their scores; a warning gives their number.
    explained_variance_, explained_variance_ratio_ : ndarray of shape (k,)
        Of kernel PCA: ``eigenvalues_ / (n - 1)``, and their share of the trace of HKH; of an indefinite kernel, whose
        negative eigenvalues are in the trace, the sum can exceed 1.
    total_variance_ : float
        ``trace(HKH) / (n - 1)``; with landmarks, an upper bound of it.
    kernel_evaluations_ : int
        Kernel evaluations of the fit.
    n_components_, n_features_in_, n_samples_, n_omitted_ : int
    sum_weights_, n_effective_ : float
        As of :class:`bigpca.PCA`.
    eigenvalue_bounds_ : ndarray of shape (k, 2)
        Of kernel PCA that is not exact: bounds of the eigenvalues of HKH.
    captured_variance_bounds_, bounds_confidence_, n_passes_
        Of the same fits, as in :class:`bigpca.PCA`, for HKH; only kernels that are not indefinite have bounds of the
        variance, because the trace of others has negative parts.
    subspace_error_bounds_, residuals_
        Of the same fits, but only where HKH is multiplied, which fits with landmarks never do: bounds of its
        eigenvectors and of the axes in feature space, not for indefinite kernels.
    converged_ : bool
        Of an iteration.
    transform_dtype_ : dtype
        Precision in which float32 rows are scored: float32, unless the scores of about 256 training rows would have
        relative errors above 1e-4, as for data far from the origin; float64 after a fit to float64. The scores are
        float32 in both cases.
    solver_ : str
    plan_ : Plan
    """

    n_components: NComponents
    kernel: KernelLike
    gamma: float | None = None
    degree: int = 3
    coef0: float = 1
    random_state: RandomState = 0
    fit_inverse_transform: bool | float = False

    @property
    def _why_fixed(self) -> str:
        return f"{type(self).__name__} compares all pairs of rows, so rows cannot be added. Use NystromKernelPCA."

    def _missing_state(self, what: str) -> str:
        return (
            f'{what} needs the statistics of the features, which a fit with components_from="landmarks" or '
            'solver="pairs" does not keep. Fit again with other parameters.'
        )

    @available_if(measures_distances)  # type: ignore[untyped-decorator]
    @maps_rows
    def novelty(self, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return the squared distance of each row's image from the subspace: near 0 for rows like the training rows.

        ``k_c(x, x) - |y|^2 >= 0``, in the units of the kernel; lazy for lazy input. Shape (n,), or (n, 1) in ``out``.
        Not available for a precomputed kernel, because its rows lack k(x, x).

        Returns
        -------
        ndarray or dask.array.Array of shape (n,), or (n, 1) in ``out``
            Squared distances, in the units of the kernel. Lazy if X is lazy. For a DataArray, one with the coordinates
            of its samples.
        """
        check_is_fitted(self)
        return mapped_to_numbers(
            self, X, Novelty(self._expansion(), self.nan_policy), "novelty", Destination(out, overwrite)
        )

    @available_if(has_fixed_points)  # type: ignore[untyped-decorator]
    @maps_rows
    def denoise(
        self, X: Input, *, max_iter: int = 100, tol: float = 1e-6, out: Path | None = None, overwrite: bool = False
    ) -> Lazy:
        """Return pre-images (n, d) of the projections of rows, by the fixed-point iteration of a Gaussian kernel.

        Mika et al. (1999), eq. 10, started at the rows themselves. For other kernels, use
        ``inverse_transform``.

        Parameters
        ----------
        max_iter : int, default 100
            Maximum number of iterations of a row.
        tol : float, default 1e-6
            Step of a row at which its iteration stops, relative to the spread of the reference rows (their root mean
            square distance from their mean).

        Returns
        -------
        ndarray or dask.array.Array of shape (n, d)
            Rows in the space of the features. Lazy if X is lazy.
        """
        check_is_fitted(self)
        back = FixedPoint(self._result.over_rows, max_iter, tol)
        return mapped_to_rows(self, X, back, Destination(out, overwrite))

    @property
    def _why_one_way(self) -> str:
        if self.fit_inverse_transform:
            return ""
        return (
            "inverse_transform regresses rows on scores after a fit with fit_inverse_transform=True. For a Gaussian "
            "kernel, denoise(X) returns fixed-point pre-images without such a fit."
        )

    def _reconstruction(self) -> RidgePreimage:
        found = self._result.preimage
        if found is None:
            raise ValueError(
                "the model was not fitted for inverse_transform: fit with fit_inverse_transform=True. For a Gaussian "
                "kernel, denoise(X) returns fixed-point pre-images without it."
            )
        return RidgePreimage(found)

    @property
    def _orthonormal(self) -> bool:
        """Whether the axes are orthonormal; a hook for models whose axes may not be."""
        return True

    def _open(self, X: Unchecked, *, minimum: int = 1, fitted: bool = False) -> Rows:
        strings = as_kernel(self.kernel).accepts_strings
        lazy = is_lazy(X) and not is_path_list(X, (str,))  # a list of strings is data, not paths
        if strings and not lazy:
            X = coded_strings(X)
        return super()._open(X, minimum=minimum, fitted=fitted and not strings)  # which may be longer than in the fit

    def _preprocessors(self) -> tuple[RowPreprocessor, ...]:
        return self._of_vectors(super()._preprocessors(), f"preprocess = {self.preprocess!r}", "preprocess=None")

    def _learns(self, rows: Rows) -> tuple[RowPreprocessor, ...]:
        return self._of_vectors(super()._learns(rows), "taking covariates out", "rows without covariates")

    def _of_vectors(self, maps: tuple[RowPreprocessor, ...], what: str, instead: str) -> tuple[RowPreprocessor, ...]:
        """Return maps of vectors; raises ValueError if rows are something else."""
        kernel = as_kernel(self.kernel)
        if maps and (kernel.accepts_strings or not kernel.needs_rows):
            raise ValueError(
                f"{what} requires rows that are vectors, but {kernel} does not compare real vectors. Use {instead}."
            )
        return maps

    def _settings(self, d: int, seed: int = 0) -> KernelSettings:
        kernel, most = resolved_kernel(self, d), setting(self, "max_kernel_evaluations")
        penalty = float(self.fit_inverse_transform)
        return KernelSettings.of(self, kernel=kernel, max_kernel_evaluations=most, penalty=penalty, seed=seed)

    def _row_map(self) -> RowMap:
        return KernelScores(self._expansion(), self.nan_policy)

    def _expansion(self) -> Expansion | FeatureProjection:
        return self._result.expansion

    def _check_regression(self, n: int) -> None:
        """Reject a regression on too many reference rows, or by a kernel that does not take scores.

        Raises
        ------
        MemoryBudgetError
        ValueError
        """
        kernel = as_kernel(self.kernel)
        if self.fit_inverse_transform and (kernel.accepts_strings or not kernel.needs_rows):
            raise ValueError(
                f"fit_inverse_transform regresses rows on their scores, which {kernel} cannot compare: it takes "
                f"{'strings' if kernel.accepts_strings else 'rows of a kernel matrix'}. Use "
                f"fit_inverse_transform=False."
            )
        if self.fit_inverse_transform and n > MAX_REGRESSED:
            raise MemoryBudgetError(
                f"fit_inverse_transform regresses {n} rows on their scores, by a matrix of {n} x {n} numbers, "
                f"{format_bytes(8 * n * n)}; the limit is {MAX_REGRESSED} rows. Use NystromKernelPCA, which "
                f"regresses only its landmarks, or denoise(X) for a Gaussian kernel."
            )

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        kernel = self.kernel
        pairs = not hasattr(self, "n_landmarks") or getattr(self, "solver", "") == "pairs"  # of dense rows
        tags.input_tags.sparse = not pairs
        tags.input_tags.pairwise = (isinstance(kernel, Kernel) and not kernel.needs_rows) or (
            isinstance(kernel, str) and kernel in PAIRWISE
        )
        return tags

    def _restored(self, held: Held) -> KernelSpectrum:
        held.context |= {"kernel": resolved_kernel(self, held.size("d")), "state": self._template(), "columns": "m"}
        return super()._restored(held)

    def _template(self) -> object:
        """Return what statistics are in a file, as ``of`` of :class:`bigpca.records.FileForm`."""
        return lambda held, name: LandmarkMoments(held.size("d"), None, Moments(held.size("m")))
