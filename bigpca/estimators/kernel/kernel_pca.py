"""Kernel PCA, exact to rounding or to a tolerance, without the n x n matrix beyond some thousand rows.

The choice of a solver of KernelPCA: all applicable fits, compared by cost.
"""

from __future__ import annotations

from bigpca.errors import check_choice
from bigpca.estimators.kernel.krylov import KernelKrylovFit
from bigpca.estimators.kernel.landmarks import FeaturesFit
from bigpca.estimators.kernel.matrix_fit import DenseFit
from bigpca.estimators.kernel.model import KernelModel, resolved_kernel
from bigpca.estimators.kernel.spectrum import KernelFit, KernelSettings, check_kernel_components, check_references
from bigpca.estimators.linear.choosing import check_iteration
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.shared.fit import RandomState, choose
from bigpca.estimators.shared.inputs import Input, Opened
from bigpca.kernels.base import Kernel
from bigpca.passes.reading.preprocessing import Preprocess
from bigpca.passes.rows import Rows
from bigpca.planning import Resources
from bigpca.settings import setting
from bigpca.solvers.components import NComponents

FITS: dict[str, type[KernelFit]] = {  # a new solver: one row; the first of equal prices is chosen
    "features": FeaturesFit,
    "dense": DenseFit,
    "krylov": KernelKrylovFit,
}


def plan_kernel_fit(
    rows: Rows, resources: Resources, settings: KernelSettings, solver: str, *, pairs_only: bool = False
) -> KernelFit:
    """Plan a fit without reading X.

    Parameters
    ----------
    pairs_only : bool
        Whether the model must keep reference rows, as the regression on scores requires.

    Raises
    ------
    ValueError
        For missing values that are to be omitted, or a kernel without features for ``"features"``.
    MemoryBudgetError, EvaluationBudgetError
        With ``solver="auto"``, if no solver fits, and for rows that a model can neither hold nor read again.
    """
    named = FITS.get(solver)
    if pairs_only and named is not None and not named.compares_pairs:
        raise ValueError(
            f'fit_inverse_transform regresses on reference rows, which solver="{solver}" does not keep. Use '
            f'solver="dense" or "krylov".'
        )
    check_enough_rows(rows.n_rows)
    check_square(rows, settings.kernel)
    auto = [one for one in FITS.values() if one.offered(rows, settings) and (one.compares_pairs or not pairs_only)]
    fit = choose([one.planned(rows, settings, resources) for one in (auto if named is None else [named])])
    if not fit.compares_pairs:
        return fit
    if rows.nan_policy == "omit":
        raise ValueError(
            f'nan_policy="omit" leaves out rows as they are read, but solver="{fit.solver}" compares all pairs of rows '
            "and must know them in advance. Remove such rows first, or use NystromKernelPCA."
        )
    check_references(rows, settings.kernel)
    return fit


def check_square(rows: Rows, kernel: Kernel) -> None:
    """Reject a precomputed kernel matrix that is not square.

    Raises
    ------
    ValueError
    """
    if not kernel.needs_rows and rows.n_rows != rows.n_columns:
        raise ValueError(
            f"X has shape ({rows.n_rows}, {rows.n_columns}), but {kernel} takes the kernel matrix of the training "
            f"rows; (n, n) was expected. Give it whole to fit, and (new rows, n) to transform."
        )


class KernelPCA(KernelModel):
    """Kernel PCA: the leading axes of the rows' images under a kernel, exact or, where ``solver_`` is "krylov", to a
    tolerance.

    (Tutorial, algorithm 5.) ``HKH v = lambda v``, ``H = I - 11'/n``; the score of x is
    ``sum_t v_t k_c(x_t, x) / sqrt(lambda)``, with the kernel centred by the training rows. Up to 2,000 rows the matrix
    is in memory; for more, a block Krylov iteration multiplies HKH by thin blocks in sweeps over pairs of row blocks:
    about three, of ``n^2 / 2`` kernel evaluations each, in the memory of a few (n, 2 k) arrays. Kernels with an exact
    finite feature map (linear, cosine, Hellinger, sums of these, polynomials of few columns) require no kernel matrix:
    the PCA of their features is the same, in one read or a few.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None, default None
        None for all components with a positive eigenvalue (few rows only).
    kernel : str, Kernel, or callable
        One of :mod:`bigpca.kernels`, or scikit-learn's names; a function of two blocks of rows (a, d), (b, d).
        "linear" by default here, in :class:`bigpca.ApproximateKernelPCA` and in :class:`bigpca.NystromKernelPCA`, as in
        scikit-learn: the solver does not change the model, and no width of a Gaussian suits data of all units.
    gamma, degree, coef0 : of a kernel given by name; ``gamma=None`` is 1 / d
        Defaults None, 3 and 1.
    solver : {"auto", "dense", "krylov", "features"}, default "auto"
    tol : float, default 0.001
        "krylov" stops when the relative error of every requested eigenvalue, estimated by probes, is at most this.
    max_passes : int or None, default 10
        Maximum number of sweeps; None for as many as ``tol`` takes, or until rounding hides any progress. If that is
        not enough, a warning reports the error reached, and ``converged_`` is False.
    random_state : int, RandomState, Generator or None, default 0
        As in :class:`bigpca.PCA`.
    max_kernel_evaluations : float, default 2e11
        A plan that requires more is rejected before any read.
    fit_inverse_transform, alpha : bool, float
        Also fit the ridge regression for ``inverse_transform``, with this penalty: n^3 / 3 flops, at most 10,000
        rows; defaults False and 1.0.
    preprocess, nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`; defaults None, "raise", "raise", None, None and 60.0.

    Attributes
    ----------
    eigenvectors_ : ndarray of shape (n, k)
        Unit vectors; not set if ``solver_`` is "features".
    negative_mass_ : float
        For kernels that are not positive semi-definite: the absolute sum of the negative eigenvalues, or a lower bound
        of it unless ``solver_`` is "dense".

    See :class:`bigpca.estimators.kernel.model.KernelModel` for the others.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> kpca = KernelPCA(2, kernel="rbf", gamma=0.1).fit(X)
    >>> kpca.transform(X).shape, bool(np.allclose((kpca.transform(X) ** 2).sum(axis=0), kpca.eigenvalues_))
    ((200, 2), True)
    """

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        kernel: Input = "linear",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1,
        solver: str = "auto",
        tol: float = 1e-3,
        max_passes: int | None = 10,
        random_state: RandomState = 0,
        max_kernel_evaluations: float = 2e11,
        fit_inverse_transform: bool = False,
        alpha: float = 1.0,
        preprocess: Preprocess = None,
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        solve_threads: int | None = None,
        workers_timeout: float = 60.0,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.solver = solver
        self.tol = tol
        self.max_passes = max_passes
        self.random_state = random_state
        self.max_kernel_evaluations = max_kernel_evaluations
        self.fit_inverse_transform = fit_inverse_transform
        self.alpha = alpha
        self.preprocess = preprocess
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.solve_threads = solve_threads
        self.workers_timeout = workers_timeout

    def _fit(self, opened: Opened, y: Input) -> KernelFit:
        check_iteration(self.tol, self.max_passes, unlimited=True)
        check_choice("solver", self.solver, ("auto", *FITS))
        rows, resources = self._rows(opened.array)
        self._check_components(rows.n_rows, rows.n_columns)
        settings = self._settings(rows.n_columns, opened.seed)
        fit = plan_kernel_fit(rows, resources, settings, self.solver, pairs_only=self.fit_inverse_transform)
        self._check_regression(rows.n_rows)
        return fit

    def _check_components(self, n: int, d: int) -> None:
        if self.n_components == "mle":
            raise ValueError(
                'n_components = "mle" is for linear PCA: it needs the spectrum of d features. Give a number, a share '
                "or a rule."
            )
        check_kernel_components(self.n_components, n, d)

    def _settings(self, d: int, seed: int = 0) -> KernelSettings:
        return KernelSettings(
            self.n_components, resolved_kernel(self, d), self.tol, self.max_passes, seed,
            setting(self, "solve_threads"), self.max_kernel_evaluations,
        )  # fmt: skip
