"""Kernel PCA that is not exact, but has bounds: by a sketch of the kernel matrix, or by landmarks.

A sketch of the empirical kernel map (tutorial, algorithm 6): one sweep over K, or two. The fit, then the estimator.
Landmarks: any number of rows, one parallel pass after the choice of landmarks, whose fit is in ``landmarks``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bigpca.arrays import Matrix, Vector, norm_of
from bigpca.blas import solving_alone
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.estimators.kernel.kernel_pca import frobenius_bounds, warn_indefinite
from bigpca.estimators.kernel.landmarks import Choice, NystromFit, completed_features
from bigpca.estimators.kernel.model import UNWEIGHTED, KernelLike, KernelModel
from bigpca.estimators.kernel.spectrum import (
    EigenPairs,
    KeptFeatures,
    KernelSettings,
    KernelSpectrum,
    PairsFit,
    check_kernel_components,
    check_references,
    with_regression,
)
from bigpca.estimators.linear.approximate_pca import Sketched, solve_nystrom
from bigpca.estimators.linear.maps import given_sketch
from bigpca.estimators.linear.spectrum import Settings, check_enough_rows, shown_components
from bigpca.estimators.shared.certificates import Certificate, certify
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import rows_of_fit
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.operators import PROBES
from bigpca.operators.kernel import KernelOperator, products
from bigpca.passes.accumulators.all_pairs import KernelProduct
from bigpca.passes.rows import Rows, reject_weights
from bigpca.passes.sweeps import Sweep
from bigpca.sketches import Gaussian, Sketch
from bigpca.solvers.components import NComponents, counted, needs_full_spectrum
from bigpca.solvers.eigh import fix_signs
from bigpca.solvers.nystrom import (
    SignedPairs,
    negative_mass,
    nystrom,
    nystrom_bytes,
    orthonormal_product,
    signed_nystrom,
    signed_ritz,
)


@dataclass(frozen=True)
class KernelSketchFit(PairsFit):
    """One sweep with q columns ("ritz": two of that; "tutorial": a second one with k).

    Attributes
    ----------
    sketch : Sketch
        Of n columns.
    approximation : {"nystrom", "tutorial", "ritz"}
    """

    depends_on: ClassVar[tuple[str, ...]] = ("settings.kernel", "sketch", "approximation")

    sketch: Sketch
    approximation: str

    def __post_init__(self) -> None:
        given = self.settings.n_components
        kernel = self.settings.kernel
        if not kernel.positive_semidefinite and given is not None and needs_full_spectrum(given):
            raise ValueError(
                f"n_components = {given!r} needs the whole spectrum, because {kernel} has negative eigenvalues, which "
                'the trace includes. Give a number, or use KernelPCA(solver="dense").'
            )

    @property
    def solver(self) -> str:
        """Name of the solver, with its approximation."""
        return f"kernel sketch ({self.approximation})"

    @property
    def account(self) -> str:
        what = {
            "nystrom": "one sweep",
            "tutorial": "algorithm 6: one sweep, and another for its vectors",
            "ritz": "two sweeps",
        }
        return f"{what[self.approximation]} over pairs of rows, {self.q} columns at a time"

    @property
    def q(self) -> int:
        """Columns of the sketch."""
        return self.sketch.width(self.rows.n_rows)

    @cached_property
    def sweep(self) -> Sweep[KernelProduct]:
        """One multiplication."""
        n, q, sweeps = self.rows.n_rows, self.q, 1 if self.approximation == "nystrom" else 2
        held = 5 * 8 * n * (q + PROBES + 1) + nystrom_bytes(n, q, q)
        return products(self.rows, self.settings.kernel, q).costing(driver_bytes=held).repeated(sweeps)

    def solve_cost(self) -> SolveCost:
        return self.cost_of(8.0 * self.rows.n_rows * self.q**2)

    def spectrum(self, run: Run) -> KernelSpectrum:
        rows, settings = self.rows, self.settings
        operator = self.operator(run, self.sketch.random_state)
        # Y = HKH W, the sketch of the empirical kernel map (algorithm 6).
        W = self.sketch.matrix(rows.n_rows)
        Y = operator.begin(W).AB  # sweep 1
        negative_mass = None
        # A step of subspace iteration: the second sweep multiplies an orthonormal basis of HKH W.
        if self.approximation == "ritz":
            W = np.linalg.qr(Y)[0]
            Y = operator.multiply(W)  # sweep 2
        if not settings.kernel.positive_semidefinite:
            values, V, certificate, negative_mass = _signed(operator, W, Y, settings, self.approximation)
        elif self.approximation == "tutorial":
            values, V, certificate = _tutorial(operator, W, Y, settings)
        else:
            values, V, certificate = _definite(operator, W, Y, settings, orthonormal=self.approximation == "ritz")
        found = EigenPairs.of(operator, values, V, certificate, negative_mass)
        return self.solved(run, found, f"a sketch of {self.q} columns shows", ", or use a wider sketch")


def _definite(
    operator: KernelOperator, W: Matrix, Y: Matrix, settings: KernelSettings, *, orthonormal: bool
) -> tuple[Vector, Matrix, Certificate]:
    """Apply Nyström's formula to the product: the function of approximate PCA, on another operator."""
    # Of any positive semi-definite A: HKH, whose mean is 0, stands for the covariance.
    n = operator.size
    found = Sketched(n, 0, np.zeros(n), None, operator.trace, W, Y, operator.probes, operator.rounding, orthonormal)
    fit = Settings(settings.n_components, solve_threads=settings.solve_threads, seed=settings.seed)
    spectrum = solve_nystrom(found, fit, multiplied=True)
    if spectrum.certificate is None:
        raise TypeError("Nyström's formula returned no certificate")
    return spectrum.explained_variance_, spectrum.components_.T, spectrum.certificate


def _tutorial(
    operator: KernelOperator, W: Matrix, Z: Matrix, settings: KernelSettings
) -> tuple[Vector, Matrix, Certificate]:
    """Algorithm 6: eigenpairs (lambda, u) of Z'Z, eigenvalues sqrt(lambda), vectors ``Kc Z u / lambda`` normalised."""
    values, U = _singular(Z, settings)
    k = _components(settings, values, operator)
    V = fix_signs(_unit_rows(operator.multiply(_unit_rows(Z @ U[:k].T).T))).T  # sweep 2
    approximation = nystrom(W, Z, k, precision=operator.precision, threads=settings.threads)
    axes, rounding, probes = (np.ascontiguousarray(V.T), values[:k]), operator.rounding, operator.probes
    return values[:k], V, certify(approximation, k, operator.trace, precision=rounding, probes=probes, axes=axes)


def _singular(Z: Matrix, settings: KernelSettings) -> tuple[Vector, Matrix]:
    """Return the singular values of Z (n, q) and its right singular vectors as rows.

    NOTE: algorithm 6 takes them from Z'Z, whose rounding hides values below 1e-8 of the first: ``sqrt(eps)``.
    """
    exponent = int(np.frexp(np.abs(Z).max(initial=0.0))[1])  # LAPACK scales small matrices by no power of two
    with solving_alone(settings.threads):
        _, values, U = np.linalg.svd(np.linalg.qr(np.ldexp(Z, -exponent), mode="r"))
    return np.ldexp(values, exponent), U


def _unit_rows(columns: Matrix) -> Matrix:
    """Return columns (n, k), divided by their lengths, as rows (k, n); zeros stay.

    The columns in a sweep require this length, because products with float32 tiles overflow at 3e38.
    """
    norms = norm_of(columns, axis=0)
    return np.ascontiguousarray((columns / np.where(norms > 0, norms, 1.0)).T)


def _signed(
    operator: KernelOperator, W: Matrix, Y: Matrix, settings: KernelSettings, approximation: str
) -> tuple[Vector, Matrix, Certificate, float]:
    """Signed eigenpairs of an indefinite kernel: the largest by value.

    Bounds and negative mass use the Ritz values of the multiplied block: Nyström's values are not bounds here.
    """
    q = Y.shape[1]
    if approximation == "ritz":
        pairs = signed_ritz(W, Y, q)
    elif approximation == "tutorial":
        # Algorithm 6, whose axes, multiplied again, span what is far closer to the leading ones.
        # NOTE: a square root has no sign, so the sign is that of the Rayleigh quotient of Y u: the second sweep
        # multiplies all q columns.
        values, U = _singular(Y, settings)
        axes = _unit_rows(Y @ U.T).T
        products = operator.multiply(axes)  # sweep 2
        values *= np.sign(np.einsum("ij,ij->j", axes, products))
        order = np.argsort(-values, kind="stable")
        pairs, W, Y = SignedPairs(values[order], _unit_rows(products)[order]), axes, products
    else:
        pairs = signed_nystrom(W, Y, q, precision=operator.precision)
    given = counted(settings.n_components)  # None for all: the fit rejects shares and rules
    k = len(pairs.vectors) if given is None else min(given, len(pairs.vectors))
    norm = operator.norm
    ritz = pairs if approximation == "ritz" else signed_ritz(*orthonormal_product(W, Y), 1)
    negative = negative_mass(ritz.values, 10 * operator.precision * norm)
    warn_indefinite(settings, negative, norm, whole=False)
    V = fix_signs(np.ascontiguousarray(pairs.vectors[:k])).T
    return np.maximum(pairs.values[:k], 0.0), V, frobenius_bounds(operator, ritz.values, given or k), negative


def _components(settings: KernelSettings, values: Vector, operator: KernelOperator) -> int:
    shape, shown = (operator.size, operator.size), f"a sketch of {len(values)} columns shows"
    return shown_components(settings, values, operator.trace, shape, shown, "Use a wider sketch, or KernelPCA.")


@with_parameters
class ApproximateKernelPCA(KernelModel):
    """Kernel PCA from a sketch of the empirical kernel map, ``Z = HKH W`` (tutorial, algorithm 6).

    Every row of HKH is a point in R^n, the empirical kernel map of the row, which W (n, q) reduces to q numbers. A
    sweep over pairs of rows costs ``n^2 / 2`` kernel evaluations. :class:`bigpca.KernelPCA` has a better start and
    iterates if one sweep is not enough; the cost of a sketch is known in advance.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None, default None
        None for as many eigenvalues above 0 as the sketch shows.
    kernel, gamma, degree, coef0
        As in :class:`bigpca.KernelPCA`; defaults "rbf", None, 3 and 1.
    sketch : Sketch or None, default None
        Of n columns; None for ``Gaussian(min(n, max(50, 3 k)))``.
    approximation : {"nystrom", "tutorial", "ritz"}, default "nystrom"
        "nystrom" (one sweep) and "ritz" (two) are the functions of :class:`bigpca.ApproximatePCA` on another matrix;
        "tutorial" is algorithm 6 as printed: eigenpairs of Z'Z, and a second sweep for the vectors.
    random_state : int, RandomState, Generator or None
        Seed of the default sketch; as in :class:`bigpca.PCA`.
    fit_inverse_transform
        As in :class:`bigpca.KernelPCA`; default False.
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    eigenvectors_ : ndarray of shape (n, k); unit vectors, orthogonal except for "tutorial"
    negative_mass_ : float
        For kernels that are not positive semi-definite: a lower bound, from the Ritz values of the sketch.

    See :class:`bigpca.estimators.kernel.model.KernelModel` for the others.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((300, 3))
    >>> model = ApproximateKernelPCA(2, kernel="rbf", gamma=0.1, approximation="ritz").fit(X)
    >>> model.transform(X).shape
    (300, 2)
    """

    _traits = Traits(KernelSpectrum, "kpca", unweighted=UNWEIGHTED)

    n_components: NComponents = None
    _: KW_ONLY
    kernel: KernelLike = "rbf"
    sketch: Sketch | None = None
    approximation: str = "nystrom"

    def _fit(self, rows: Rows, y: Unchecked) -> KernelSketchFit:
        rows = rows_of_fit(self, rows, weighted=False)
        check_enough_rows(rows.n_rows)
        settings, n = self._settings(rows.n_columns, rows.seed), rows.n_rows
        check_kernel_components(self.n_components, n, rows.n_columns)
        self._check_regression(n)
        check_references(rows, settings.kernel)
        k = counted(self.n_components) or 1
        sketch = given_sketch(self.sketch, Gaussian(min(n, max(50, 3 * k)), random_state=rows.seed), n, k)
        return KernelSketchFit(rows, settings, sketch, self.approximation)


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

    def _solve(self, kept: KeptFeatures) -> KernelSpectrum:
        d, n, m = self.n_features_in_, kept.state.moments.count, len(kept.features.landmarks)
        check_kernel_components(self.n_components, n, d, m)
        settings = self._settings(d)
        return with_regression(completed_features(kept, settings), settings)

    def _fit(self, rows: Rows, y: Unchecked, like: KeptFeatures | None = None) -> NystromFit:
        rows = rows_of_fit(self, rows)
        if like is not None:
            return NystromFit(rows, self._settings(rows.n_columns), Choice.like(like), like=like)
        extended = self.components_from == "landmarks"
        if extended:
            reject_weights(rows, ['components_from="landmarks"'], "its centring counts each row once")
        check_enough_rows(rows.n_present, sums=rows.counted.sums)
        settings = self._settings(rows.n_columns, rows.seed)
        # B = k(X, L) K_mm^(-1/2) needs K_mm >= 0; the extension takes the positive eigenvalues of any K_mm.
        if not settings.kernel.positive_semidefinite and not extended:
            raise ValueError(
                f"{settings.kernel} is not positive semi-definite, so it has no features. Use KernelPCA, whose "
                f'eigenvalues may be negative, or components_from="landmarks".'
            )
        choice = Choice.of(self.n_landmarks, self.sampling, rows.n_rows, min(1000, rows.n_rows))
        check_kernel_components(self.n_components, rows.n_rows, rows.n_columns, choice.count)
        return NystromFit(rows, settings, choice, extended=extended)
