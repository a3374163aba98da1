"""Kernel PCA by landmarks: any number of rows, one parallel pass after the choice of landmarks, and bounds."""

from __future__ import annotations

from dataclasses import KW_ONLY

from numpy.typing import ArrayLike

from bigpca.estimators.kernel.landmarks import Choice, NystromFit, landmark_features, solve_grown
from bigpca.estimators.kernel.model import UNWEIGHTED, KernelLike, KernelModel
from bigpca.estimators.kernel.spectrum import KernelSpectrum, check_kernel_components, with_regression
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import rows_of_fit
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.passes.rows import Rows, reject_weights
from bigpca.solvers.components import NComponents


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
