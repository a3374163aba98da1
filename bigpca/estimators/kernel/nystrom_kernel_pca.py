"""Kernel PCA by landmarks: any number of rows, one parallel pass after the choice of landmarks, and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from typing import Self, cast

from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if

from bigpca.arrays import Input
from bigpca.engine.driver import solving
from bigpca.engine.events import ProgressArgument
from bigpca.estimators.kernel.landmarks import Choice, NystromFit, landmark_features, solve_grown
from bigpca.estimators.kernel.model import UNWEIGHTED, KernelLike, KernelModel, requested_kernel
from bigpca.estimators.kernel.spectrum import KernelSpectrum, check_kernel_components, with_regression
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.shared.fit import called, draw_fit_seed, execute, with_reads
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import open_weighted, rows_of_fit
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import finish, with_parameters
from bigpca.kernels.distance import DistanceKernel
from bigpca.passes.rows import Rows, reject_weights
from bigpca.solvers.components import NComponents


def _has_widths(model: NystromKernelPCA) -> bool:
    """Whether several widths can be fitted from one read; otherwise raises AttributeError, with the reason."""
    kernel = requested_kernel(model)
    if kernel is not None and not hasattr(kernel, "blocks_at"):
        raise AttributeError(f"{kernel} has no width: fit_widths requires a kernel of distances (RBF, Laplacian).")
    # A fit must keep the moments of the features.
    if model._why_fixed:
        raise AttributeError(model._why_fixed)
    return True


@with_parameters
class NystromKernelPCA(KernelModel):
    """Kernel PCA by landmarks: PCA of the Nyström features ``B = k(X, L) K_mm^(-1/2)``, centred by the mean of ALL
    rows.

    The model is (landmarks, coefficients, mean): ``transform`` is one parallel pass, and no array of size n is kept.
    The features' residual ``sum_i k(x_i, x_i) - |B_i|^2`` bounds every eigenvalue of HKH from above, those of ``HBB'H``
    from below (tutorial 5.3; Williams & Seeger 2001; Hallgren 2021).

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None, default None
        None for all components that the features determine.
    kernel, gamma, degree, coef0
        As in :class:`bigpca.KernelPCA`; defaults "rbf", None, 3 and 1. A linear kernel
        has exact components in one read: use :class:`bigpca.PCA`.
    n_landmarks : int or None, default None
        Number of landmarks m; None for 1,000, or for all rows if there are fewer. Costs n m kernel evaluations per read
        and memory for m^2 numbers.
    sampling : str, or row numbers (m,), or rows (m, d), default "rpcholesky"
        "rpcholesky", "uniform", "diagonal", "column-norm" or "kmeans". See
        :func:`bigpca.landmarks.select_landmarks`. For kernels with a constant diagonal, "diagonal" equals "uniform".
    components_from : {"rows", "landmarks"}, default "rows"
        "rows": PCA of the features of all rows. "landmarks": eigenvectors of the landmarks alone, centred by their mean
        and extended to other rows (tutorial, eqs. 62-63): no further read, but far less accurate; for comparison.
    random_state, fit_inverse_transform
        As in :class:`bigpca.KernelPCA`; the regression is over the landmarks; defaults 0 and False.
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    landmarks_ : ndarray of shape (m, d)
    landmark_indices_ : ndarray of shape (m,), if the landmarks are rows of X
    landmark_transform_ : ndarray of shape (m, r)
        T with ``T'K_mm T = I``: features are ``k(x, landmarks_) @ T``.
    trace_error_ : float
        ``(tr K - tr BB') / tr K``, the exact relative trace error of the approximation. An ``ApproximationWarning``
        says that m is too small if this exceeds 0.9 and the share of the variance of all k components.
    rank_ : int
        r. Of features in float32 (large fits, which the plan says) without directions below 1e-5 of the largest, unless
        these would change an eigenvalue of the landmarks by 0.1 %: the read is then made in float64.

    See :class:`bigpca.estimators.kernel.model.KernelModel` for the others.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 3))
    >>> model = NystromKernelPCA(2, kernel="rbf", gamma=0.1, n_landmarks=40).fit(X)
    >>> model.transform(X).shape, model.trace_error_ < 0.05
    ((500, 2), True)
    """

    _traits = Traits(KernelSpectrum, "kpca", unweighted=UNWEIGHTED)

    n_components: NComponents = None
    _: KW_ONLY
    kernel: KernelLike = "rbf"
    n_landmarks: int | None = None
    sampling: str | ArrayLike = "rpcholesky"
    components_from: str = "rows"

    @available_if(_has_widths)  # type: ignore[untyped-decorator]
    @solving
    def fit_widths(self, X: Input, gammas: Sequence[float], *, progress: ProgressArgument = None) -> list[Self]:
        """Fit one model for each gamma with the same landmarks, in one read after they are chosen.

        The landmarks are chosen by this estimator's kernel; the distances to them are computed once for all widths.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        gammas : sequence of float
        progress : True, "auto", a callable that receives events, or None, default None
            True shows a bar; "auto" shows one after two seconds.

        Returns
        -------
        list of fitted NystromKernelPCA, with ``gamma`` set.

        Raises
        ------
        ValueError
            If no gamma is given. Not available for a kernel without a width, or for ``components_from="landmarks"``.
        """
        opened = replace(open_weighted(self, X, None), seed=draw_fit_seed(self))
        planned = self._fit(opened, None)
        kernel = cast(DistanceKernel, planned.settings.kernel)  # others have no fit_widths
        if not len(gammas):
            raise ValueError("gammas is empty. Give at least one width, such as [0.1, 1.0].")
        # This estimator's kernel chooses the landmarks; the read after it makes the features of all widths.
        fit = replace(planned, kernels=tuple(kernel.with_gamma(gamma) for gamma in gammas))
        found, made = execute(
            self,
            fit,
            lambda run: [with_reads(fit.regressed(run, one), run.reads) for one in fit.run_widths(run)],
            f"{called(self)}.fit_widths(X, gammas)",
            progress=progress,
        )
        models = []
        for own, gamma, spectrum in zip(fit.kernels, gammas, found, strict=True):
            model = clone(self)
            model.set_params(**({"gamma": float(gamma)} if isinstance(self.kernel, str) else {"kernel": own}))
            finish(model, opened, fit.plan, spectrum)
            model._provenance = made
            models.append(model)
        return models

    @property
    def _why_fixed(self) -> str:
        if self.components_from != "landmarks":
            return ""
        return (
            'components_from="landmarks" does not keep the moments of the features, which are needed to add rows. Use '
            'components_from="rows".'
        )

    def _solve(self, kept: KernelSpectrum) -> KernelSpectrum:
        m, settings = len(landmark_features(kept).landmarks), self._settings(self.n_features_in_)
        check_kernel_components(self.n_components, kept.n_samples_, self.n_features_in_, m)
        return with_regression(solve_grown(kept, settings), settings)

    def _fit(self, rows: Rows, y: Unchecked, like: KernelSpectrum | None = None) -> NystromFit:
        rows = rows_of_fit(self, rows)
        if like is not None:
            settings = self._settings(rows.n_columns)
            return NystromFit(rows, settings, Choice.like(like), (settings.kernel,), like=like)
        if self.components_from == "landmarks":
            reject_weights(rows, ['components_from="landmarks"'], "its centring counts each row once")
        check_enough_rows(rows.n_present, sums=rows.counted.sums)
        settings = self._settings(rows.n_columns, rows.seed)
        if not settings.kernel.positive_semidefinite and self.components_from == "rows":
            raise ValueError(
                f"{settings.kernel} is not positive semi-definite, so it has no features. Use KernelPCA, whose "
                f'eigenvalues may be negative, or components_from="landmarks".'
            )
        choice = Choice.of(self.n_landmarks, self.sampling, rows.n_rows, min(1000, rows.n_rows))
        check_kernel_components(self.n_components, rows.n_rows, rows.n_columns, choice.count)
        # Components from landmarks have the spectrum of the landmarks, and no features are read.
        kernels = (settings.kernel,) if self.components_from == "rows" else ()
        return NystromFit(rows, settings, choice, kernels)
