"""Approximate principal component analysis in one read, with bounds on what it misses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, replace
from functools import partial
from math import inf

import numpy as np

from bigpca.arrays import Vector
from bigpca.data.grids import Grid
from bigpca.data.provenance import Provenance
from bigpca.estimators.linear.choosing import cheapest, null_fit, reject_undecided, undecided
from bigpca.estimators.linear.maps import Center, Scale, given_sketch
from bigpca.estimators.linear.model import LinearModel, rows_to_fit, standardization_of
from bigpca.estimators.linear.sketch import SketchFit, SketchSettings, solve_product, warn_if_wide
from bigpca.estimators.linear.spectrum import PCAResult, Settings, check_enough_rows, counted, limit_of_states
from bigpca.estimators.shared.fit import Fit, called, execute
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import KeptRows, Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.passes.accumulators.thin_products import FusedProduct
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.rows import Rows
from bigpca.settings import setting
from bigpca.sketches import Gaussian, Sketch
from bigpca.solvers.components import NComponents, ParallelAnalysis, check_n_components
from bigpca.solvers.scaling import Patterson, Whitening

MIN_COLUMNS = 100
COLUMNS_PER_COMPONENT = 10


def _solve_and_warn(
    state: FusedProduct, settings: SketchSettings, omitted: int, roundings: tuple[float, ...]
) -> PCAResult:
    spectrum = replace(solve_product(state, settings, omitted=omitted), roundings=roundings)
    warn_if_wide(spectrum)
    return spectrum


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

    _traits = Traits(
        PCAResult, "pca", frozenset({"gaps"}), alike=("preprocess", "center", "scale", "approximation", "sketch")
    )

    n_components: NComponents = None
    sketch: Sketch | None = None
    _: KW_ONLY
    approximation: str = "nystrom"
    center: Center = True
    scale: Scale = False
    whiten: bool | Whitening = False

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
        fit = Settings(
            self.n_components,
            standardization_of(self, d, grid),
            setting(self, "keep_state_bytes"),
            solve_threads=setting(self, "solve_threads"),
        )
        return SketchSettings(fit, sketch, self.approximation)

    def _fit(self, rows: Rows, y: Unchecked) -> Fit[PCAResult]:
        fit = self._planned(rows, minimum=2)
        rule, settings = undecided(self.n_components, variances=False), fit.settings
        if rule is None:
            return fit

        def decided(known: ParallelAnalysis) -> SketchFit:
            return replace(fit, settings=replace(settings, fit=replace(settings.fit, n_components=known)))

        return null_fit(rule, fit.rows, settings.fit, decided, partial(cheapest, resources=fit.resources))

    def _planned(self, rows: Rows, *, minimum: int) -> SketchFit:
        n, d = rows.X.shape
        check_n_components(self.n_components, None if np.isnan(n) or minimum < 2 else n, d)
        labels = rows.labels
        settings = self._settings(d, None if labels is None else labels.grid)
        rows, _, resources = rows_to_fit(self, rows)
        check_enough_rows(rows.n_present, minimum=minimum)
        return SketchFit(rows, resources, settings)

    def _read_state(
        self, rows: Rows, *, old: FusedProduct | None, progress: ProgressArgument
    ) -> tuple[KeptRows, Provenance]:
        reject_undecided(self.n_components, variances=False)
        fit = self._planned(rows, minimum=1)
        if fit.settings.template(fit.rows.n_columns).state_bytes > setting(self, "keep_state_bytes"):
            raise ValueError(self._missing_state("partial_fit"))
        found, made = execute(self, fit, fit.read, f"{called(self)}.partial_fit(X)", progress=progress, adds=True)
        return KeptRows(found.state, found.omitted, fit.rows.roundings), made

    def _solution(self, kept: KeptRows) -> tuple[Callable[[], PCAResult], str]:
        state = kept.known(self._missing_state, "merge")
        settings = self._settings(state.n_features)
        k = counted(self.n_components)
        if k is not None and kept.n_samples_ < k:
            settings = replace(settings, fit=replace(settings.fit, n_components=None))
        solve = partial(_solve_and_warn, state, settings, omitted=kept.n_omitted_, roundings=kept.roundings)
        return solve, f"sketch ({self.approximation})"

    @property
    def _scaled_first(self) -> bool:
        """Whether a scale is learned in a read before that of the sketch."""
        return self.approximation == "tutorial" and isinstance(self.scale, bool | Patterson) and bool(self.scale)

    def _whole_spectrum(self, what: str) -> Vector:
        raise ValueError(
            f"{what} needs all eigenvalues of the covariance, which a sketch does not provide. Use PCA, or a limit "
            "from rows."
        )

    def _missing_state(self, what: str, *, fitted: bool = True) -> str:
        if self.approximation == "ritz" or self._scaled_first:  # fit reports an unknown approximation
            learned = f" with scale={self.scale}" if self._scaled_first else ""
            return (
                f"{what} needs a model of one read, but approximation={self.approximation!r}{learned} "
                f'reads all rows twice. Use approximation="nystrom".'
            )
        if not fitted:
            return ""
        d: int | None = getattr(self, "n_features_in_", None)
        size = inf if d is None else self._template(d).state_bytes
        limit = limit_of_states(size, setting(self, "keep_state_bytes"))
        return (
            f"{what} needs the products of all rows, which are not kept because {limit}. Fit again with a larger "
            "bigpca.config(keep_state_bytes=...), or a narrower sketch."
        )

    def _template(self, d: int) -> FusedProduct:
        return self._settings(d).template(d)
