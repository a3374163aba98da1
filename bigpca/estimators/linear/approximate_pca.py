"""Approximate PCA from one read: the sketch ``Z = X W`` and ``X'Z`` in the same pass (tutorial, algorithms 3 and 4).

From a sketch of a matrix and its product to components (Nyström, and algorithm 4 as printed), with bounds on what they
miss; the fit; the estimator.

- "nystrom": ``A_hat = Y (W'Y)^-1 Y'`` from ``Y = A W``: far more accurate than algorithm 4 at equal cost.
- "tutorial": algorithm 4 as printed: eigenpairs of Z'Z, axes ``X'Z u / lambda``, normalised; they are not orthogonal.
- "ritz": one more read multiplies an orthonormal basis of Y, and Nyström's formula is applied to that product.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from bigpca.arrays import Matrix, Vector, norm_of
from bigpca.data.grids import Grid
from bigpca.engine.jobs import PassState
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.estimators.linear.choosing import null_fit, reject_undecided, undecided
from bigpca.estimators.linear.maps import given_sketch
from bigpca.estimators.linear.model import LinearModel, rows_to_fit, standardization_of
from bigpca.estimators.linear.spectrum import (
    PCAResult,
    Settings,
    check_enough_rows,
    result_of,
    shown_components,
)
from bigpca.estimators.shared.certificates import certify, warn_if_doubtful
from bigpca.estimators.shared.fit import Fit
from bigpca.estimators.shared.growing import not_kept
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import KeptRows, Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.operators import PROBES, Probes
from bigpca.operators.covariance import (
    CovarianceOperator,
    CovariancePasses,
    centring_rounding,
    leading_value,
    lost_variance,
    magnification,
)
from bigpca.passes.accumulators.base import Weighted, WeightSums, broadcast, column_scale
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.accumulators.thin_products import FusedProduct, SketchFactor, probe_vectors
from bigpca.passes.fold import Declared, Folded, Read
from bigpca.passes.rows import Rows
from bigpca.settings import setting
from bigpca.sketches import Gaussian, Sketch
from bigpca.solvers.components import (
    NComponents,
    ParallelAnalysis,
    check_n_components,
    check_total,
    counted,
    reject_folds,
)
from bigpca.solvers.eigh import fix_signs, top_eigenpairs
from bigpca.solvers.nystrom import nystrom, nystrom_bytes
from bigpca.solvers.scaling import Blocks, Patterson

MIN_COLUMNS = 100
COLUMNS_PER_COMPONENT = 10
PRODUCTS = "products of all rows"  # with a sketch, which a model keeps


@dataclass(frozen=True)
class Sketched(Weighted):
    """The result of one read, centred and divided by n - 1.

    Attributes
    ----------
    count, omitted : int
    mean : ndarray of shape (d,)
    scale : ndarray of shape (d,) or None
    trace : float
    W, Y : ndarray of shape (d, q); ``Y = A W``
    probes : Probes or None
    precision : float
    orthonormal : bool
        Whether W has orthonormal columns.
    weight_sums : (float, float) or None
    centring_error : float or None
        As of :class:`bigpca.estimators.linear.spectrum.PCAResult`.
    trace_error : float
        Bound of the error of the trace, of sparse rows.
    scale_error : float
        Bound of the relative error of any entry of A by the scale, whose squares of sparse rows are centred afterwards.
    """

    count: int
    omitted: int
    mean: Vector
    scale: Vector | None
    trace: float
    W: Matrix
    Y: Matrix
    probes: Probes | None
    precision: float
    orthonormal: bool = False
    weight_sums: WeightSums = None
    centring_error: float | None = None
    trace_error: float = 0.0
    scale_error: float = 0.0

    @property
    def rounding(self) -> float:
        """Rounding error that bounds allow for, relative to |A|_F."""
        return self.precision + self.scale_error


def solve_nystrom(found: Sketched, fit: Settings, *, multiplied: bool = False) -> PCAResult:
    """Nyström approximation of the covariance, with its certificate; ``multiplied`` as for :func:`certify`."""
    d, q = found.Y.shape
    most = _bounded(fit, found.count, d, q)
    # C ~ Y (W'Y)^-1 Y' with Y = C W: never above C, so that its eigenvalues are lower bounds of those of C.
    approximation = nystrom(found.W, found.Y, most, precision=found.precision, threads=fit.threads, overwrite=True)
    k = _resolve(fit, approximation.values, found)
    certificate = certify(
        approximation,
        k,
        found.trace,
        precision=found.rounding,
        probes=found.probes,
        basis=found.W if found.orthonormal else None,
        multiplied=multiplied,
        trace_error=found.trace_error,
    )
    components = fix_signs(np.ascontiguousarray(approximation.vectors[:k]))
    return result_of(found, fit, approximation.values[:k], components, certificate)


def solve_tutorial(found: Sketched, fit: Settings) -> PCAResult:
    """Algorithm 4: eigenpairs (lambda, u) of ``Z'Z / (n - 1) = W'Y``, axes ``Y u / lambda``, normalised.

    The certificate comes from Nyström's formula on the same arrays, and bounds the true eigenvalues and what the axes
    capture; the residuals are bounded by ``|A_hat u - lambda u| + |A - A_hat|``.
    """
    d, q = found.Y.shape
    S = found.W.T @ found.Y  # Z'Z / (n - 1), symmetric but for rounding
    eigenvalues, U = top_eigenpairs((S + S.T) / 2, q, threads=fit.threads)
    k = min(_resolve(fit, eigenvalues, found), _bounded(fit, found.count, d, q))
    # The length of Y u is measured, as it is lambda for true axes only; 0 is that of a direction without variance.
    axes = U[:k] @ found.Y.T
    norms = norm_of(axes, axis=1)
    axes /= np.where(norms > 0, norms, 1.0)[:, None]
    # The bounds are those of Nyström's A_hat on the same W and Y, which take no further read.
    approximation = nystrom(found.W, found.Y, k, precision=found.precision, threads=fit.threads)
    certificate = certify(
        approximation,
        k,
        found.trace,
        precision=found.rounding,
        probes=found.probes,
        axes=(axes, eigenvalues[:k]),
        trace_error=found.trace_error,
    )
    return result_of(found, fit, eigenvalues[:k], fix_signs(axes), certificate)


def _bounded(fit: Settings, n: int, d: int, q: int) -> int:
    k = counted(fit.n_components)
    return max(1, min(q if k is None else k, q, n, d))


def _resolve(fit: Settings, values: Vector, found: Sketched) -> int:
    """Return the number of components among the values of the sketch; raises as :func:`shown_components`."""
    n, d = found.count, len(found.Y)
    remedy = f"Use a wider sketch, or PCA(n_components={fit.n_components!r})."
    shown, most = f"a sketch of {len(values)} columns shows", _bounded(fit, n, d, len(values))
    return shown_components(fit, values, found.trace, (n, d), shown, remedy, weight=found.weight, most=most)


@dataclass(frozen=True)
class SketchSettings:
    """What an approximate fit computes.

    Attributes
    ----------
    fit : Settings
    sketch : Sketch
    approximation : {"nystrom", "tutorial", "ritz"}
    """

    fit: Settings
    sketch: Sketch
    approximation: str

    @property
    def scaled_first(self) -> bool:
        """Whether the columns' deviations must be known before the sketch, as algorithm 4 requires."""
        return bool(self.fit.scale) and self.approximation == "tutorial"

    def factor(self, d: int, scale: Vector | None = None) -> SketchFactor:
        """Return W and the probes, which require the scale of the columns, if any, before the read."""
        # Probes g bound |A - A_hat|_F by products with random vectors, which are of the scaled columns or of none.
        probes = 0 if self.fit.scale and scale is None else PROBES
        inverse = None if scale is None else 1.0 / scale
        return SketchFactor(self.sketch, d, probes, self.sketch.random_state, inverse)

    def template(self, d: int, scale: Vector | None = None) -> FusedProduct:
        """The state of the sketching pass; ``scale`` if the columns' deviations are known before it."""
        return FusedProduct.of(d, self.factor(d, scale))


@dataclass(frozen=True)
class SketchFit(Fit[PCAResult]):
    """One read ("ritz", and a scaled "tutorial": two) and 4 n d q flops in each.

    Attributes
    ----------
    settings : SketchSettings
    """

    depends_on: ClassVar[tuple[str, ...]] = (
        "settings.fit.center",
        "settings.fit.scale",
        "settings.approximation",
        "settings.sketch",
    )

    settings: SketchSettings

    @property
    def solver(self) -> str:
        """Name of the solver, with its approximation."""
        return f"sketch ({self.settings.approximation})"

    @property
    def account(self) -> str:
        what = {"nystrom": "one read", "tutorial": "algorithm 4 in one read", "ritz": "one read, and one for its basis"}
        after = ", after one for the scale" if self.settings.scaled_first else ""
        d = self.rows.n_columns
        return f"{what[self.settings.approximation]}{after}; {d} x {self.settings.sketch.width(d)} products"

    @cached_property
    def scale(self) -> Read[Folded[ColumnMoments]]:
        """The read for the columns' deviations, if they must be known before the sketch."""
        return Read.into(self.rows, "scale", ColumnMoments(self.rows.n_columns))

    @cached_property
    def sketched(self) -> Read[Folded[FusedProduct]]:
        """The read for the products."""
        n, d = self.rows.n_rows, self.rows.n_columns
        settings, q = self.settings, self.settings.sketch.width(d)
        template = settings.template(d, np.ones(d) if settings.scaled_first else None)
        solve = 3 * 8 * d * template.n_columns + nystrom_bytes(d, q, min(q, n), overwrite=True)
        return Read.into(self.rows, "sketch", template, finish_bytes=solve)

    @cached_property
    def ritz(self) -> CovariancePasses:
        """The read for the basis, if there is one."""
        return CovariancePasses.of(self.rows, self.settings.sketch.width(self.rows.n_columns))

    def passes(self) -> tuple[Declared, ...]:
        before = (self.scale,) if self.settings.scaled_first else ()
        after = (self.ritz.product,) if self.settings.approximation == "ritz" else ()
        return (*before, self.sketched, *after)

    def solve_cost(self) -> SolveCost:
        d = self.rows.n_columns
        return SolveCost(8.0 * d * self.settings.sketch.width(d) ** 2)

    def read(self, run: Run) -> KeptRows:
        """Return the products alone: the pass of ``partial_fit``."""
        found = self.sketched.holding(self.settings.template(self.rows.n_columns))(run)  # one pass over X
        return KeptRows(found.state, found.omitted, self.rows.roundings)

    def run(self, run: Run) -> PCAResult:
        found = self._run_ritz(run) if self.settings.approximation == "ritz" else self._run_once(run)
        found = replace(found, roundings=self.rows.roundings)
        warn_if_wide(found)
        return found

    def _run_once(self, run: Run) -> PCAResult:
        settings, d, scale = self.settings, self.rows.n_columns, None
        if settings.scaled_first:
            columns = self.scale(run).state  # pass 1 over X
            scale = column_scale(columns.squares, columns.mean, columns.count, settings.fit.scale, columns.weight)
        template = settings.template(d, scale)
        finish = partial(_solve, settings=settings, scale=scale)
        return self.sketched.holding(template).to(finish)(run)  # one pass over X

    def _run_ritz(self, run: Run) -> PCAResult:
        """One read for ``Y = A W``, one for the product with an orthonormal basis of Y."""
        rows, settings, fit = self.rows, self.settings, self.settings.fit
        template, finish = settings.template(rows.n_columns), partial(_take_basis, settings=settings)
        found, basis = self.sketched.holding(template).to(finish)(run)  # pass 1 over X
        operator = CovarianceOperator(
            rows, run, self.ritz, center=fit.center, scale=fit.scale, seed=settings.sketch.random_state
        )
        # The first read found mean, scale and trace; the second multiplies the centred rows by the orthonormal basis.
        operator.set_statistics(found.count, found.omitted, found.mean, found.scale, found.trace, found.weight_sums)
        product = operator.begin(basis).AB  # pass 2 over X
        again = replace(
            found, W=basis, Y=product, probes=operator.probes, precision=operator.precision, orthonormal=True
        )
        return solve_nystrom(again, fit)


def warn_if_wide(spectrum: PCAResult) -> None:
    """Warn if the bounds are too wide to trust the result."""
    if spectrum.certificate is not None:
        warn_if_doubtful(
            spectrum.certificate,
            'Use approximation="ritz" (one more read), a wider sketch, or PCA(solver="krylov"), which iterates to a '
            "tolerance.",
        )


def _solve(state: PassState, *, settings: SketchSettings, scale: Vector | None = None) -> PCAResult:
    """Solve in the task that holds the state."""
    product = state.part("state", FusedProduct)
    return solve_product(product, settings, omitted=state.omitted, scale=scale)


def solve_product(
    part: FusedProduct, settings: SketchSettings, *, omitted: int = 0, scale: Vector | None = None
) -> PCAResult:
    """Compute components from the complete state of a sketched pass.

    Parameters
    ----------
    scale : ndarray of shape (d,) or None
        By which the pass has already divided the columns ("tutorial").
    """
    keep = part.state_bytes <= settings.fit.keep_state_bytes and scale is None
    found = unpack(part, settings, omitted=omitted, scale=scale)
    solve = solve_tutorial if settings.approximation == "tutorial" else solve_nystrom
    return replace(solve(found, settings.fit), state=part if keep else None)


def unpack(part: FusedProduct, settings: SketchSettings, *, omitted: int, scale: Vector | None) -> Sketched:
    """Centre, scale and divide the product; ``Y_z = D^-1 Y`` is the product of A_z with ``D W`` (z-scoring)."""
    d, weight, fit = part.n_features, part.weight, settings.fit
    check_enough_rows(part.count, omitted, sums=part.weight_sums)
    q = settings.sketch.width(d)
    Y, squares, W = part.centred(), part.centred_squares(), settings.sketch.matrix(d)
    if not fit.center:
        # X'X W = Xc'Xc W + n mean (W'mean)', which only adds, so there is no cancellation.
        Y += np.multiply.outer(weight * part.mean, broadcast(part.factor).multiply(part.mean[None, :])[0])
    Y /= weight - 1
    centred = part.centring_error if fit.center or fit.scale else None
    scaled = scale
    if fit.scale and scale is None:
        scaled = column_scale(squares, part.mean, part.count, fit.scale, weight)
        W *= scaled[:, None]
    if scaled is not None:
        Y /= scaled[:, None]
    about = squares if fit.center else squares + weight * part.mean**2
    trace = float((about if scaled is None else about / scaled**2).sum()) / (weight - 1)
    check_total(trace, mean=part.mean)
    precision, trace_error = part.precision, 0.0
    if part.constants is None:
        offset = part.offset if scaled is None else part.offset / scaled
        trace_error = centring_rounding(offset, weight, trace, precision)
    elif fit.center:  # sparse rows: summed about zero, in float64
        mean = part.mean if scaled is None else part.mean / scaled
        precision *= magnification(mean, leading_value(W, Y[:, :q]))
        trace_error = lost_variance(mean, weight) / (weight - 1)
    scale_error = centred or 0.0 if fit.scale else 0.0
    trace_error += scale_error * trace
    probes = None
    if Y.shape[1] > q:
        vectors = probe_vectors(settings.sketch.random_state, d, Y.shape[1] - q).astype(np.float64)
        probes = Probes(vectors, Y[:, q:].copy())
        Y = np.ascontiguousarray(Y[:, :q])
    mean = part.mean if fit.center else np.zeros(d)
    return Sketched(
        part.count,
        omitted,
        mean,
        scaled,
        trace,
        W,
        Y,
        probes,
        precision,
        weight_sums=part.weight_sums,
        centring_error=centred,
        trace_error=trace_error,
        scale_error=scale_error,
    )


def _take_basis(state: PassState, *, settings: SketchSettings) -> tuple[Sketched, Matrix]:
    """Return an orthonormal basis of Y (d, q), and the statistics of the pass without the arrays of the sketch."""
    found = unpack(state.part("state", FusedProduct), settings, omitted=state.omitted, scale=None)
    basis = np.linalg.qr(found.Y)[0]
    return replace(found, W=np.zeros((0, 0)), Y=np.zeros((0, 0)), probes=None), basis


@with_parameters
class ApproximatePCA(LinearModel[FusedProduct]):
    """Approximate principal component analysis in one read, with bounds on what it misses.

    ``Z = Xc W`` and ``Xc'Z`` come from the same read, where W (d, q) is a sketch. This takes the memory of a few d x q
    blocks, whatever n and d are. One read is enough if the spectrum decays like i^-1 or faster; for a heavier tail the
    bounds are wide, and the fit warns.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule such as RelativeThreshold, or None for all q, default None
    sketch : Sketch or None, default None
        ``bp.sketches.Gaussian(q)``, ``SparseSign``, ``FeatureHash``, ``SRHT`` or ``Downsample`` (tutorial, algorithms 3
        and 4); None for a Gaussian sketch of 10 columns per component, at least 100.
    approximation : {"nystrom", "tutorial", "ritz"}, default "nystrom"
        "nystrom": ``A_hat = Y (W'Y)^-1 Y'`` from ``Y = Xc'Z``, one read. "tutorial": algorithm 4 as printed, one read
        (two if a scale is learned); its axes are unit vectors that are not orthogonal. "ritz": one more read multiplies
        an orthonormal basis of Y.
    center, scale, whiten
        As for :class:`bigpca.PCA`; defaults True, False and False.
    preprocess, nan_policy, memory_limit
        As for :class:`bigpca.PCA`; the state kept for ``partial_fit`` and ``merge`` has 8 d (q + 13) bytes; defaults
        None, "raise" and None.

    Attributes
    ----------
    components_, explained_variance_, ... : as for :class:`bigpca.PCA`
        With "nystrom" and "ritz" the variances never exceed the true ones, except for rounding.
    eigenvalue_bounds_, residuals_, captured_variance_bounds_, subspace_error_bounds_, bounds_confidence_
        From the same read (trace and probes), for the axes that are returned. With ``scale``, the bounds of a single
        read come from the trace alone. The probability ``bounds_confidence_`` refers to the seed of the sketch, for
        data that do not depend on it.
    n_passes_ : float

    Notes
    -----
    Marukatat (2022), algorithms 3 and 4. NOTE: algorithm 3 lacks the factor sqrt(d / q), and algorithm 4 as printed
    needs two reads. A Gaussian sketch as wide as the data (q = d) makes "nystrom" and "ritz" exact to rounding.
    ``scale=True`` in one read makes ``diag(scale) W`` the sketch: "nystrom" hardly sees columns whose deviation is
    below 1e-6 of the largest one (3e-4 in float32), and becomes less accurate as deviations differ more. A scale given
    as a vector costs nothing.

    Examples
    --------
    >>> import bigpca as bp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 40)) * 0.8 ** np.arange(40)
    >>> model = ApproximatePCA(3, bp.sketches.Gaussian(20)).fit(X)
    >>> exact = bp.PCA(3).fit(X).explained_variance_
    >>> lower, upper = model.eigenvalue_bounds_.T
    >>> bool((lower <= exact).all() and (exact <= upper).all())
    True
    """

    _traits = Traits(PCAResult, "pca", frozenset({"mean"}), alike=("preprocess", "center", "scale", "approximation"))

    n_components: NComponents = None
    sketch: Sketch | None = None
    _: KW_ONLY
    approximation: str = "nystrom"

    @property
    def _orthonormal(self) -> bool:
        return self.approximation != "tutorial"

    def _settings(self, d: int, grid: Grid | None = None) -> SketchSettings:
        k = counted(self.n_components) or 0
        default = Gaussian(min(d, max(MIN_COLUMNS, COLUMNS_PER_COMPONENT * k)))
        sketch = given_sketch(self.sketch, default, d, k)
        if self.n_components == "mle":
            raise ValueError(
                'n_components = "mle" needs the whole spectrum, which a sketch does not provide. Use PCA, or an int.'
            )
        if isinstance(self.scale, Blocks):
            raise ValueError(
                "scale=Blocks(...) needs the first eigenvalue of each block of columns, which a sketch does not "
                "provide. Use PCA, which reads further times if the covariance is too large."
            )
        standardization, keep = standardization_of(self, d, grid), setting(self, "keep_state_bytes")
        fit = Settings.of(self, standardization=standardization, keep_state_bytes=keep)
        return SketchSettings(fit, sketch, self.approximation)

    def _fit(self, rows: Rows, y: Unchecked, like: KeptRows | None = None) -> Fit[PCAResult]:
        n, d = rows.origin.shape
        if like is not None:
            reject_undecided(self.n_components, variances=False)
        check_n_components(self.n_components, None if np.isnan(n) or like is not None else n, d)
        reject_folds(self.n_components)
        labels = rows.origin.labels
        settings = self._settings(d, None if labels is None else labels.grid)
        rows, _ = rows_to_fit(self, rows)
        check_enough_rows(rows.n_present, minimum=2 if like is None else 1)
        fit, rule = SketchFit(rows, settings), undecided(self.n_components, variances=False)
        # Rows are added to the products Y = C W that a fit has kept: if these were too large to keep, none can be.
        size, keep = settings.template(rows.n_columns).state_bytes, settings.fit.keep_state_bytes
        if like is not None and size > keep:
            raise ValueError(not_kept("partial_fit", PRODUCTS, size, keep))
        if rule is None or like is not None:
            return fit

        def decided(known: ParallelAnalysis) -> SketchFit:
            return replace(fit, settings=replace(settings, fit=replace(settings.fit, n_components=known)))

        return null_fit(rule, fit.rows, settings.fit, decided)

    def _solve(self, kept: KeptRows) -> PCAResult:
        settings, k = self._settings(kept.state.n_features), counted(self.n_components)
        if k is not None and kept.n_samples_ < k:
            settings = replace(settings, fit=replace(settings.fit, n_components=None))
        found = solve_product(kept.state, settings, omitted=kept.n_omitted_)
        warn_if_wide(found)
        return replace(found, roundings=kept.roundings)

    @property
    def _scaled_first(self) -> bool:
        """Whether a scale is learned in a read before that of the sketch."""
        return self.approximation == "tutorial" and isinstance(self.scale, bool | Patterson) and bool(self.scale)

    def _whole_spectrum(self, what: str) -> Vector:
        raise ValueError(
            f"{what} needs all eigenvalues of the covariance, which a sketch does not provide. Use PCA, or a limit "
            "from rows."
        )

    _statistics = PRODUCTS

    def _unsummed(self, what: str) -> str:
        if self.approximation != "ritz" and not self._scaled_first:  # fit reports an unknown approximation
            return ""
        learned = f" with scale={self.scale}" if self._scaled_first else ""
        return (
            f"{what} needs a model of one read, but approximation={self.approximation!r}{learned} "
            f'reads all rows twice. Use approximation="nystrom".'
        )

    def _empty(self, d: int) -> FusedProduct:
        return self._settings(d).template(d)
