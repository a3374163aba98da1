"""Approximate kernel PCA: a sketch of the empirical kernel map, from one sweep over the kernel matrix or two."""

from __future__ import annotations

from bigpca.errors import check_choice
from bigpca.estimators.kernel.model import KernelModel
from bigpca.estimators.kernel.sketch_fit import KernelSketchFit
from bigpca.estimators.kernel.spectrum import check_kernel_components, check_references
from bigpca.estimators.linear.sketch import CORES
from bigpca.estimators.linear.spectrum import check_enough_rows, counted
from bigpca.estimators.shared.fit import RandomState
from bigpca.estimators.shared.inputs import Input, Opened
from bigpca.passes.reading.preprocessing import Preprocess
from bigpca.sketches import Gaussian, Sketch
from bigpca.solvers.components import NComponents


class ApproximateKernelPCA(KernelModel):
    """Kernel PCA from a sketch of the empirical kernel map, ``Z = HKH W`` (tutorial, algorithm 6).

    Every row of HKH is a point in R^n, the empirical kernel map of the row, which W (n, q) reduces to q numbers. A
    sweep over pairs of rows costs ``n^2 / 2`` kernel evaluations. :class:`bigpca.KernelPCA` has a better start and
    iterates if one sweep is not enough; the cost of a sketch is known in advance.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None, default None
        None for as many as the sketch has columns.
    kernel, gamma, degree, coef0
        As in :class:`bigpca.KernelPCA`; defaults "linear", None, 3 and 1.
    sketch : Sketch or None, default None
        Of n columns; None for ``Gaussian(min(n, max(50, 3 k)))``.
    core : {"nystrom", "tutorial", "ritz"}, default "nystrom"
        "nystrom" (one sweep) and "ritz" (two) are the functions of :class:`bigpca.ApproximatePCA` on another matrix;
        "tutorial" is algorithm 6 as printed: eigenpairs of Z'Z, and a second sweep for the vectors.
    random_state : int, RandomState, Generator or None
        Seed of the default sketch; as in :class:`bigpca.PCA`.
    max_kernel_evaluations, fit_inverse_transform, alpha
        As in :class:`bigpca.KernelPCA`; defaults 2e11, False and 1.0.
    preprocess, nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`; defaults None, "raise", "raise", None, None and 60.0.

    Attributes
    ----------
    eigenvectors_ : ndarray of shape (n, k); unit vectors, orthogonal except for "tutorial"
    sketch_ : Sketch
    negative_mass_ : float
        For kernels that are not positive semi-definite: a lower bound, from the Ritz values of the sketch.

    See :class:`bigpca.estimators.kernel.model.KernelModel` for the others.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((300, 3))
    >>> model = ApproximateKernelPCA(2, kernel="rbf", gamma=0.1, core="ritz").fit(X)
    >>> model.transform(X).shape
    (300, 2)
    """

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        kernel: Input = "linear",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1,
        sketch: Sketch | None = None,
        core: str = "nystrom",
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
        self.sketch = sketch
        self.core = core
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

    def _fit(self, opened: Opened, y: Input) -> KernelSketchFit:
        check_choice("core", self.core, CORES)
        rows, resources = self._rows(opened.array)
        check_enough_rows(rows.n_rows)
        if rows.nan_policy == "omit":
            raise ValueError(
                'nan_policy="omit" leaves out rows as they are read, but a sweep compares all pairs of rows and must '
                "know them in advance. Remove such rows first, or use NystromKernelPCA."
            )
        settings, n = self._settings(rows.n_columns, opened.seed), rows.n_rows
        check_kernel_components(self.n_components, n, rows.n_columns)
        self._check_regression(n)
        check_references(rows, settings.kernel)
        return KernelSketchFit(rows, resources, settings, self._sketch(n, opened.seed), self.core)

    def _sketch(self, n: int, seed: int) -> Sketch:
        """Return the given sketch, or the default one.

        Raises
        ------
        TypeError
            For what is no sketch.
        ValueError
            For a sketch narrower than the components wanted.
        """
        k = counted(self.n_components) or 1
        if self.sketch is None:
            return Gaussian(min(n, max(50, 3 * k)), seed=seed)
        if not isinstance(self.sketch, Sketch):
            raise TypeError(
                f"sketch = {self.sketch!r} is not a sketch. Use one of bigpca.sketches, such as "
                f"bigpca.sketches.Gaussian(100)."
            )
        if self.sketch.width(n) < k:
            raise ValueError(
                f"n_components = {k} is over the {self.sketch.width(n)} columns of the sketch. Use a sketch of at "
                f"least {k} columns, better of {3 * k}."
            )
        return self.sketch
