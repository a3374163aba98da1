"""Kernel PCA, exact to rounding or to a tolerance, without the n x n matrix beyond some thousand rows.

First kernels that are not positive semi-definite: iteration on a shifted matrix, bounds, and warnings. Then the fit of
few rows, by the whole kernel matrix, double-centred and solved (tutorial, algorithm 5); the fit by block Krylov
iteration on the implicit HKH: a few sweeps over pairs of rows, nothing of size n x n, from kernel PCA of the Nyström
features of a few hundred landmarks, which costs a few hundredths of a sweep; the choice of a solver, all applicable
fits compared by cost; and the estimator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from bigpca.arrays import Matrix, Vector, mirror_upper, norm_of, norm_of_upper, working_dtype
from bigpca.engine.jobs import PassState
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import warn_approximation
from bigpca.estimators.kernel.landmarks import (
    FeaturesFit,
    features_dtype,
    features_of,
    features_read,
    fold_features,
    solve_features,
)
from bigpca.estimators.kernel.maps import Expansion, KernelScores
from bigpca.estimators.kernel.model import UNWEIGHTED, KernelLike, KernelModel
from bigpca.estimators.kernel.spectrum import (
    EigenPairs,
    KernelFit,
    KernelSettings,
    KernelSpectrum,
    PairsFit,
    check_kernel_components,
    check_references,
    rounding_of,
    take_rows,
)
from bigpca.estimators.linear.krylov import (
    ITERATED,
    RULE_COLUMNS,
    Iteration,
    certify_iteration,
    iterate,
    kept_components,
    too_fine,
    warn_unconverged,
)
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.shared.certificates import Certificate
from bigpca.estimators.shared.fit import choose
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import rows_of_fit
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.host import HOST
from bigpca.kernels.base import FIXED_BYTES, Kernel
from bigpca.landmarks import LandmarkRequest, landmark_passes, select_landmarks
from bigpca.operators import PROBES
from bigpca.operators.kernel import ALIKE, KernelOperator, products
from bigpca.parameters import Parameter
from bigpca.passes.accumulators.all_pairs import (
    DotPanels,
    KernelProduct,
    double_centre,
    reject_contradicted,
    reject_overflow,
    reject_underflow,
)
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.fold import Declared, Folded, Read
from bigpca.passes.reading.row_maps import MapStep
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import Sweep
from bigpca.solvers.certificates import rounding_slack
from bigpca.solvers.components import NComponents, counted, partial_will_do, resolve_components, starting_components
from bigpca.solvers.eigh import eigh_bytes, eigh_flops, fix_signs, top_eigenpairs
from bigpca.solvers.krylov import KrylovResult
from bigpca.solvers.nystrom import negative_eigenvalue, negative_mass

DENSE_ROWS = 2500  # up to which the whole matrix is the default: here it took 0.9 of the time of sweeps
DENSE_INDEFINITE_ROWS = 4000  # the same for indefinite kernels: only the whole spectrum determines their negative mass
LANDMARKS_A_COLUMN = 16  # for each column of the first block
LANDMARK_SHARE = 20  # at most one row in 20 is a landmark
MAX_LANDMARKS = 2048
# NOTE: K is evaluated again in each sweep. Its upper triangle in memory saved 3 to 19 % of the processor time of 1,797
# to 9,000 rows (8 components, Gaussian and Laplacian kernels), because the start leaves one or two sweeps.
TYPICAL_SWEEPS = 3


def iterate_indefinite(
    operator: KernelOperator, settings: KernelSettings, iteration: Iteration, run: Run
) -> tuple[KrylovResult, Vector, Certificate, float]:
    """Return the algebraically largest eigenvalues, their bounds, and the negative mass that was found.

    The operator is a shifted one.
    """
    result = iterate(operator, None, settings, iteration)
    if not result.converged:
        warn_unconverged(operator, result, settings, run)
    B = result.basis  # on which the approximation is exact
    ritz = np.linalg.eigvalsh(B.T @ result.approximation.multiply(B)) - operator.sigma
    k = kept_components(operator, result, settings)
    values = np.maximum(result.values[:k] - operator.sigma, 0.0)
    norm = operator.norm
    negative = negative_mass(ritz.astype(np.float64), 10 * operator.precision * norm)
    certificate = replace(
        frobenius_bounds(operator, np.sort(ritz)[::-1], k), residuals=result.residuals[:k], converged=result.converged
    )
    warn_indefinite(settings, negative, norm, whole=False)
    return result, values, certificate, negative


def frobenius_bounds(operator: KernelOperator, ritz: Vector, k: int) -> Certificate:
    """Bound the k leading eigenvalues of an indefinite HKH by Ritz values (r,), descending.

    Each Ritz value is at most the eigenvalue of its number, and a negative one at least that of its number from the end
    (Cauchy), so ``lambda_i^2 <= |HKH|_F^2 - sum_(j != i) theta_j^2``, over positive and negative ones. Only the first
    eigenvalue is known to be at least 0 (``HKH 1 = 0``). Shares of a trace with negative parts are not defined.
    """
    norm = operator.norm
    slack = rounding_slack(operator.size**0.5 * norm, precision=operator.precision)
    least = np.concatenate([ritz[:k] - slack, np.full(max(0, k - len(ritz)), -norm)])
    least[:1] = np.maximum(least[:1], 0.0)
    # As shares of the norm; reduced by the slack, because the square root below magnifies an excess.
    squares = (np.maximum(np.abs(ritz) - slack, 0.0) / (norm or 1.0)) ** 2
    own = np.zeros(k)
    own[: len(ritz)] = np.where(ritz > 0, squares, 0.0)[:k]
    upper = norm * np.sqrt(np.maximum(1.0 - (np.sum(squares) - own), 0.0)) + slack
    bounds = np.column_stack([least, np.maximum.accumulate(upper[::-1])[::-1]])
    return Certificate(bounds, None, None, 1.0)


def warn_indefinite(settings: KernelSettings, negative: float, norm: float, *, whole: bool) -> None:
    """Warn that the kernel is not an inner product, if negative mass was found, and report how much."""
    if not negative:
        return
    found = f"{negative:.3g}" if whole else f"at least {negative:.3g}"
    warn_approximation(
        f"{settings.kernel} is not positive semi-definite: its centred matrix has negative eigenvalues, whose "
        f"magnitudes sum to {found} (Frobenius norm {norm:.3g}). The largest eigenvalues by value are kept, and the "
        f"trace gives no bounds. Use a positive semi-definite kernel if variances and distances must be meaningful."
    )


@dataclass(frozen=True)
class DenseFit(PairsFit):
    """One sweep, an n x n matrix and its eigenproblem."""

    solver: ClassVar[str] = "dense"

    @classmethod
    def offered(cls, rows: Rows, settings: KernelSettings) -> bool:
        """Whenever no iteration is offered."""
        return not iterates(rows, settings)

    @property
    def account(self) -> str:
        return f"a {self.rows.n_rows} x {self.rows.n_rows} kernel matrix in memory"

    @cached_property
    def sweep(self) -> Sweep[DotPanels]:
        """The sweep."""
        rows, kernel, n = self.rows, self.settings.kernel, self.rows.n_rows
        sweep = Sweep.of_pairs(rows, kernel, "kernel", DotPanels(n, rows.n_columns), collected=True)
        # Panels of the upper triangle, also as they come from other workers; the matrix; and its factorisation. The
        # temporaries of each thread's last tile are free then, but the allocator may still keep them.
        held = sweep.cost.state_bytes + 8 * n * n + 16 * n * n * kernel.taken_on_trust
        solve = eigh_bytes(n, pairs_wanted(self.settings, n)) + self.rows.order.resources.threads * FIXED_BYTES
        return sweep.costing(finish_bytes=held + solve)

    def solve_cost(self) -> SolveCost:
        n = self.rows.n_rows
        return self.cost_of(eigh_flops(n, pairs_wanted(self.settings, n)))

    def spectrum(self, run: Run) -> KernelSpectrum:
        rows, settings, kernel = self.rows, self.settings, self.settings.kernel
        shift = self.first(run)
        stored, tiles = (float(np.finfo(dtype).eps) for dtype in (working_dtype(rows.dtype), self.sweep.cost.dtype))
        finish = partial(_solve, settings=settings, stored=stored, tiles=max(tiles, kernel.stored_eps(rows.dtype)))
        found, norm = self.sweep.to(finish)(run, shift=shift)  # one sweep
        if found.negative_mass is not None:
            warn_indefinite(settings, found.negative_mass, norm, whole=True)
        return self.solved(run, replace(found, shift=shift), f"the centred matrix of {kernel} has")


def iterates(rows: Rows, settings: KernelSettings) -> bool:
    """Whether the default is to iterate: beyond a few thousand rows, if the number or rule allows it."""
    few = DENSE_ROWS if settings.kernel.positive_semidefinite else DENSE_INDEFINITE_ROWS
    if not settings.kernel.positive_semidefinite and counted(settings.n_components) is None:
        return False  # shares and rules require the whole indefinite spectrum
    return rows.n_rows > few and partial_will_do(settings.n_components, rows.n_rows, rows.n_rows)


def pairs_wanted(settings: KernelSettings, n: int) -> int | None:
    """Return how many eigenpairs are computed; None for all, as the negative mass of an indefinite kernel requires."""
    number = counted(settings.n_components)
    return None if number is None or not settings.kernel.positive_semidefinite else min(number, n)


def _solve(state: PassState, *, settings: KernelSettings, stored: float, tiles: float) -> tuple[EigenPairs, float]:
    """Centre and eigen-decompose the kernel matrix, and return ``|HKH|_F`` too; memory: two n x n matrices beside K.

    ``stored`` is the eps of the rows, in which a kernel of the caller may compute, and ``tiles`` that of K's entries.
    """
    K = state.part("kernel", DotPanels).matrix()
    n = len(K)
    reject_underflow(settings.kernel, float(np.trace(K)))
    with np.errstate(over="ignore", invalid="ignore"):
        row_means = double_centre(K)
    reject_overflow(settings.kernel, row_means)
    trace, norm = float(np.trace(K)), norm_of_upper(K)
    # Eigenvalues of HKH are known to about eps |K|, for the eps of its entries: ten times that is rounding.
    # |K|^2 = |HKH|^2 + 2 n |m - mean(m)|^2 + n^2 mean(m)^2 with the means m of rows
    mean = float(row_means.mean())
    entries = 10 * float(norm_of(np.array([norm, np.sqrt(2 * n) * norm_of(row_means - mean), n * mean])))
    if settings.kernel.taken_on_trust:
        least = negative_eigenvalue(mirror_upper(K), stored * entries, threads=settings.threads)
        evidence = None if least is None else f"its centred matrix has the eigenvalue {least:.3g}"
        reject_contradicted(settings.kernel, evidence)
    given, wanted, signed = settings.n_components, pairs_wanted(settings, n), not settings.kernel.positive_semidefinite
    eigenvalues, vectors = top_eigenpairs(K, wanted, signed=signed, threads=settings.threads)
    rounding = rounding_of(eigenvalues, row_means, tiles * entries)
    positive = np.where(eigenvalues > rounding, eigenvalues, 0.0)
    k = n if given is None else min(resolve_components(given, positive, trace, n, n), n)
    if settings.kernel.positive_semidefinite:
        # A positive semi-definite matrix has a trace below 0 by rounding only.
        trace = max(trace, 0.0)
    V = np.ascontiguousarray(fix_signs(np.ascontiguousarray(vectors[:k])).T)
    negative = negative_mass(eigenvalues, rounding) if signed else None
    return EigenPairs(positive[:k], V, trace, rounding, row_means, np.zeros(0), negative_mass=negative), norm


@dataclass(frozen=True)
class Start:
    """The leading axes of a Nyström approximation, from which an iteration starts: three reads.

    Attributes
    ----------
    request : LandmarkRequest
    settings : KernelSettings
        With the required number of axes.
    """

    request: LandmarkRequest
    settings: KernelSettings

    def passes(self) -> tuple[Declared, ...]:
        """Declare the draw of the landmarks, the moments of their features, and the read of the scores."""
        rows, kernel, m = self.request.rows, self.settings.kernel, self.request.count
        return (*landmark_passes("diagonal", self.request), features_read(rows, kernel, m), self._scores)

    @property
    def _scores(self) -> Read[Folded[RowSample]]:
        rows, m = self.request.rows, self.request.count
        template = RowSample(self._wanted, rows.n_rows, 8.0 * self._wanted)
        work = 2.0 * rows.n_rows * rows.n_columns * self._wanted
        read = Read.into(rows, "start", template, cut_bytes=0, work=work)
        evaluations, kernel = float(rows.n_rows) * m, self.settings.kernel
        return read.costing(
            peak_bytes=read.cost.peak_bytes + 16 * 1024 * m + 8 * 3 * m**2,
            evaluations=evaluations,
            flops=evaluations * kernel.flops_per_entry(rows.n_columns),
        )

    @property
    def _wanted(self) -> int:
        return counted(self.settings.n_components) or 0

    def axes(self, run: Run, shift: Vector) -> tuple[Matrix, Vector] | None:
        """Return the axes (n, l) and their eigenvalues (l,); None if there are no axes."""
        rows = self.request.rows
        # "diagonal" draws in one read; randomly pivoted Cholesky may take several.
        landmarks = select_landmarks("diagonal", replace(self.request, run=run, shift=shift))
        # Scores (B - mean) V are eigenvectors of H B B'H times sqrt(lambda), so near those of HKH.
        # In the precision of the pass: a start may miss small components.
        kernel, m = self.settings.kernel, len(landmarks.rows)
        precision = float(np.finfo(features_dtype(rows, kernel, m)).eps)
        features = features_of(kernel, landmarks, shift, precision, self.settings.threads, 0)
        found = solve_features(fold_features(run, features_read(rows, kernel, m), features), self.settings)
        if not isinstance(found.expansion, Expansion) or not len(found.eigenvalues_):
            return None
        width = found.expansion.coefficients.shape[1]
        scored = rows.mapped(MapStep(KernelScores(found.expansion, device=HOST), width))
        # The third read: the scores of all rows.
        template = RowSample(width, rows.n_rows, 8.0 * width)
        read = self._scores.holding(template, scored)
        scores = read.to(take_rows)(run, shift=np.zeros(width))  # one pass over X
        run.add_evaluations(rows.n_rows * len(landmarks.rows))
        return scores.astype(np.float64), found.eigenvalues_


def size_iteration(rows: Rows, settings: KernelSettings) -> Iterator[Iteration]:
    """Return the choices of block and basis, the largest first.

    Raises
    ------
    ValueError
        For a share or a rule that requires more of the spectrum than an iteration computes.
    """
    n = rows.n_rows
    k = starting_components(settings.n_components, n, n)
    if not settings.kernel.positive_semidefinite and not isinstance(settings.n_components, int | np.integer):
        raise ValueError(
            f"n_components = {settings.n_components!r} needs the whole spectrum, because {settings.kernel} has "
            'negative eigenvalues, which the trace includes. Give a number, or use solver="dense".'
        )
    return Iteration.sizes(settings, k, n)


@dataclass(frozen=True)
class KernelKrylovFit(PairsFit):
    """An iteration of about three sweeps.

    Attributes
    ----------
    iteration : Iteration
    """

    depends_on: ClassVar[tuple[str, ...]] = ("settings.kernel", *ITERATED)
    solver: ClassVar[str] = "krylov"
    exact: ClassVar[bool] = False

    iteration: Iteration

    @classmethod
    def choices(cls, rows: Rows, settings: KernelSettings) -> Sequence[KernelFit]:
        """Return the fit with each basis, the largest first.

        The whole spectrum of few rows is computed from the whole matrix.
        """
        if not partial_will_do(settings.n_components, rows.n_rows, rows.n_rows) and rows.n_rows <= RULE_COLUMNS:
            return DenseFit.choices(rows, settings)
        return [cls(rows, settings, sizes) for sizes in size_iteration(rows, settings)]

    @classmethod
    def offered(cls, rows: Rows, settings: KernelSettings) -> bool:
        """For many rows."""
        return iterates(rows, settings)

    @property
    def account(self) -> str:
        return (
            f"block Krylov on the implicit kernel matrix, {self.iteration.block} columns at a time, until the "
            f"eigenvalues are known to {self.settings.tol:g}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        sweep = self.sweep.cost
        return (
            f"a sweep makes {sweep.evaluations:.3g} kernel evaluations and reads X {sweep.reads:.3g} times; "
            f"{TYPICAL_SWEEPS} are typical, at most {self.iteration.max_passes} (max_passes)",
            self.iteration.note,
        )

    @cached_property
    def sweep(self) -> Sweep[KernelProduct]:
        """One multiplication."""
        rows, iteration, most = self.rows, self.iteration, self.iteration.max_passes
        width = iteration.block + PROBES + 1
        kernel, held = self.settings.kernel, iteration.basis_bytes + 16 * rows.n_rows * width
        refinable = not kernel.taken_on_trust
        sweep = products(rows, kernel, iteration.block, most=iteration.most_block, refinable=refinable)
        return sweep.costing(driver_bytes=held).repeated(min(TYPICAL_SWEEPS, most), most)

    @cached_property
    def start(self) -> Start | None:
        """The start, if there are enough rows for one."""
        block = self.iteration.block
        m = min(LANDMARKS_A_COLUMN * block, MAX_LANDMARKS, self.rows.n_rows // LANDMARK_SHARE)
        # Few landmarks show few axes, and a kernel that is not positive semi-definite has no features.
        if m < 2 * block or not self.settings.kernel.positive_semidefinite:
            return None
        random = max(2, block // 20)
        request = LandmarkRequest(self.rows, self.settings.kernel, m, self.settings.seed, threads=self.settings.threads)
        return Start(request, replace(self.settings, n_components=block - random))

    @property
    def starting(self) -> tuple[Declared, ...]:
        return () if self.start is None else self.start.passes()

    def solve_cost(self) -> SolveCost:
        return self.cost_of(between=self.iteration.flops(self.sweep.cost.times))

    def spectrum(self, run: Run) -> KernelSpectrum:
        """Iterate until the requested eigenvalues are known to ``tol``, or ``max_passes`` is reached."""
        settings, kernel, iteration = self.settings, self.settings.kernel, self.iteration
        operator = self.operator(run, settings.seed, shifted=not kernel.positive_semidefinite)
        start = None if self.start is None else self._started(run, operator)
        negative_mass = None
        # The trace bounds what eigenvalues are left only where none is negative; elsewhere the Frobenius norm does.
        if kernel.positive_semidefinite:
            result = iterate(operator, start, settings, iteration)
            k = kept_components(operator, result, settings)
            certificate = certify_iteration(operator, result, k, settings, run)
            values = result.values[:k]
        else:
            result, values, certificate, negative_mass = iterate_indefinite(operator, settings, iteration, run)
            k = len(values)
        V = np.ascontiguousarray(fix_signs(np.ascontiguousarray(result.vectors[:k])).T)
        found = EigenPairs.of(operator, values, V, certificate, negative_mass)
        return self.solved(run, found, f"the iteration on the matrix of {kernel} finds")

    def _started(self, run: Run, operator: KernelOperator) -> Matrix | None:
        """Return the axes of the start; its eigenvalues determine the precision of the tiles."""
        found = None if self.start is None else self.start.axes(run, operator.shift)
        if found is None:
            return None
        axes, eigenvalues = found
        # The start shows how small the wanted eigenvalues are: below what float32 resolves, tiles are in float64.
        if operator.refinable and too_fine(eigenvalues, self.iteration.components, self.settings.tol / ALIKE):
            operator.refine()
        return axes


FITS: dict[str, type[KernelFit]] = {  # a new solver: one row; the first of equal prices is chosen
    "features": FeaturesFit,
    "dense": DenseFit,
    "krylov": KernelKrylovFit,
}


def plan_kernel_fit(rows: Rows, settings: KernelSettings, solver: str, *, pairs_only: bool = False) -> KernelFit:
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
    if pairs_only and named is not None and not issubclass(named, PairsFit):
        raise ValueError(
            f'fit_inverse_transform regresses on reference rows, which solver="{solver}" does not keep. Use '
            f'solver="dense" or "krylov".'
        )
    check_enough_rows(rows.n_rows)
    check_square(rows, settings.kernel)
    wanted = PairsFit if pairs_only else KernelFit  # a regression needs the rows that the others do not keep
    auto = [one for one in FITS.values() if one.offered(rows, settings) and issubclass(one, wanted)]
    tried = auto if named is None else [named]
    fit = choose(*(one.choices(rows, settings) for one in tried))
    if not isinstance(fit, PairsFit):
        return fit
    check_references(rows, settings.kernel, f'solver="{fit.solver}"')
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
            f"rows; (n, n) was expected. Pass the whole matrix to fit, and (new rows, n) to transform."
        )


@with_parameters
class KernelPCA(KernelModel):
    """Kernel PCA: the leading axes of the rows' images under a kernel, exact or, if ``solver_`` is "krylov", to
    a tolerance.

    (Tutorial, algorithm 5.) ``HKH v = lambda v``, ``H = I - 11'/n``; the score of x is ``sum_t v_t k_c(x_t, x) /
    sqrt(lambda)``, with the kernel centred by the training rows. Up to 2,500 rows the matrix is in memory; for more, a
    block Krylov iteration multiplies HKH by thin blocks in sweeps over pairs of row blocks: about three sweeps of ``n^2
    / 2`` kernel evaluations each, with the memory of a few (n, 2 k) arrays; a GPU makes them if
    ``bigpca.config(arithmetic=...)`` names it. Kernels with an exact finite feature map
    (linear, cosine, Hellinger, sums of these, polynomials of few columns) require no kernel matrix: the PCA of their
    features gives the same result, in one read or a few.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None, default None
        None for all components with a positive eigenvalue (few rows only).
    kernel : str, Kernel, or callable
        One of :mod:`bigpca.kernels`, a name as in scikit-learn, or a function of two blocks of rows (a, d), (b, d). The
        default is "linear" here, in :class:`bigpca.ApproximateKernelPCA` and in :class:`bigpca.NystromKernelPCA`, as in
        scikit-learn: the solver does not change the model, and no Gaussian width suits data in every unit.
    gamma, degree, coef0 : of a kernel given by name; ``gamma=None`` is 1 / d
        Defaults None, 3 and 1.
    solver : {"auto", "dense", "krylov", "features"}, default "auto"
    tol : float, default 0.001
        "krylov" stops when the relative error of every requested eigenvalue, estimated by probes, is at most this.
    max_passes : int or None, default 10
        Maximum number of sweeps; None for as many as ``tol`` requires, or until rounding hides further progress. If
        that is not enough, a warning reports the error reached, and ``converged_`` is False.
    random_state : int, RandomState, Generator or None, default 0
        As in :class:`bigpca.PCA`.
    fit_inverse_transform : bool or float, default False
        Also fit the ridge regression for ``inverse_transform``, with this penalty (scikit-learn's ``alpha``), which
        for True is 1.0: n^3 / 3 flops, at most 10,000 rows.
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    eigenvectors_ : ndarray of shape (n, k)
        Unit vectors; not set if ``solver_`` is "features".
    negative_mass_ : float
        For kernels that are not positive semi-definite: the sum of the absolute values of the negative eigenvalues; a
        lower bound on it unless ``solver_`` is "dense".

    See :class:`bigpca.estimators.kernel.model.KernelModel` for the others.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> kpca = KernelPCA(2, kernel="rbf", gamma=0.1).fit(X)
    >>> kpca.transform(X).shape, bool(np.allclose((kpca.transform(X) ** 2).sum(axis=0), kpca.eigenvalues_))
    ((200, 2), True)
    """

    _traits = Traits(
        KernelSpectrum, "kpca", unweighted=UNWEIGHTED, ranges={"solver": Parameter(words=lambda: ("auto", *FITS))}
    )

    n_components: NComponents = None
    _: KW_ONLY
    kernel: KernelLike = "linear"
    solver: str = "auto"
    tol: float = 1e-3
    max_passes: int | None = 10

    def _fit(self, rows: Rows, y: Unchecked) -> KernelFit:
        rows = rows_of_fit(self, rows, weighted=False)
        self._check_components(rows.n_rows, rows.n_columns)
        settings = self._settings(rows.n_columns, rows.seed)
        fit = plan_kernel_fit(rows, settings, self.solver, pairs_only=bool(self.fit_inverse_transform))
        self._check_regression(rows.n_rows)
        return fit

    def _check_components(self, n: int, d: int) -> None:
        if self.n_components == "mle":
            raise ValueError(
                'n_components = "mle" is for linear PCA: it needs the spectrum of d features. Give a number, a share '
                "or a rule."
            )
        check_kernel_components(self.n_components, n, d)
