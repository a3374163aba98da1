"""Approximate PCA from one read: the sketch ``Z = X W`` and ``X'Z`` in the same pass (tutorial, algorithms 3 and 4).

- "nystrom": ``A_hat = Y (W'Y)^-1 Y'`` from ``Y = A W``: far better than algorithm 4's vectors at equal cost.
- "tutorial": algorithm 4 as printed: eigenpairs of Z'Z, axes ``X'Z u / lambda``, normalised; they are not orthogonal.
- "ritz": one more read multiplies an orthonormal basis of Y, and Nyström's formula on that product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.estimators.linear.certificates import certify
from bigpca.estimators.linear.covariance_fit import fold_memory, model_bytes
from bigpca.estimators.linear.spectrum import Certificate, Settings, Spectrum, check_enough_rows
from bigpca.operators.covariance import PROBES, CovarianceOperator, Probes
from bigpca.passes.accumulators.dot_matrix import column_scale
from bigpca.passes.accumulators.factors import SketchFactor, probe_vectors
from bigpca.passes.accumulators.fused_product import FusedProduct
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources
from bigpca.sketches.base import Sketch
from bigpca.solvers.components import needs_full_spectrum, resolve_partial
from bigpca.solvers.eigh import fix_signs, top_eigenpairs
from bigpca.solvers.nystrom import nystrom, nystrom_bytes
from bigpca.solvers.subspaces import orthonormal_axes

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
CORES = ("nystrom", "tutorial", "ritz")


@dataclass(frozen=True)
class SketchSettings:
    """What an approximate fit computes.

    Attributes
    ----------
    fit : Settings
    sketch : Sketch
    core : {"nystrom", "tutorial", "ritz"}
    """

    fit: Settings
    sketch: Sketch
    core: str

    @property
    def scaled_first(self) -> bool:
        """Whether the columns' deviations must be known before the sketch: algorithm 4 has no other way to scale."""
        return self.fit.scale and self.core == "tutorial"

    def factor(self, d: int, scale: Vector | None = None) -> SketchFactor:
        """W and the probes; probes need the scale of the columns, if there is to be one, before the read."""
        probes = 0 if self.fit.scale and scale is None else PROBES
        inverse = None if scale is None else 1.0 / scale
        return SketchFactor(self.sketch, d, probes, self.sketch.seed, inverse)

    def template(self, d: int) -> FusedProduct:
        """The state of the one pass."""
        return FusedProduct.of(d, self.factor(d))


@dataclass(frozen=True)
class Sketched:
    """What one read brought, centred and divided by n - 1.

    Attributes
    ----------
    count, omitted : int
    mean : ndarray of shape (d,)
    scale : ndarray of shape (d,) or None
    trace : float
    W, Y : ndarray of shape (d, q); ``Y = A W``
    probes : Probes or None
    precision : float
    passes : float
        Reads of X so far.
    orthonormal : bool
        Whether W has orthonormal columns.
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
    passes: float = 1.0
    orthonormal: bool = False


def plan_sketch(rows: RowInput, settings: SketchSettings, resources: Resources) -> Plan:
    """Cost of an approximate fit: one read ("ritz", and a scaled "tutorial": two) and 4 n d q flops in each."""
    n, d = rows.n_rows, rows.n_columns
    template, q = settings.template(d), settings.sketch.width(d)
    flops = float(n) * template.flops_per_row
    peak, block_rows, groups = fold_memory(rows, template.state_bytes, template.product_bytes, flops)
    solve = 3 * 8 * d * template.n_columns + nystrom_bytes(d, q, min(q, n), overwrite=True)
    peak = max(peak, (solve - 3 * template.state_bytes) // resources.threads)
    reads = 1 + int(settings.core == "ritz") + int(settings.scaled_first) + int(rows.counted)
    what = {"nystrom": "one read", "tutorial": "algorithm 4 in one read", "ritz": "one read, and one for its basis"}
    kept = template.state_bytes if settings.core != "ritz" else 0
    return Plan(
        solver=f"sketch ({settings.core})",
        reason=f"{what[settings.core]}{', after one for the scale' if settings.scaled_first else ''}; "
        f"{d} x {q} products",
        passes=reads,
        bytes_read=reads * n * d * rows.dtype.itemsize,
        flops=flops * (1 + int(settings.core == "ritz")) + 8.0 * d * q * q,
        tasks=(2 * groups + 1) * reads,
        state_bytes=template.state_bytes,
        block_rows=block_rows,
        peak_bytes=peak,
        output_bytes=model_bytes(_most(settings, n, d), d, kept, settings.fit.keep_state_bytes),
        resources=resources,
    )


def describe_sketch(rows: RowInput, settings: SketchSettings) -> dict[str, Any]:
    """Fingerprint of the passes."""
    return {
        "computes": "sketch", "input": rows.describe(), "center": settings.fit.center, "scale": settings.fit.scale,
        "core": settings.core, "sketch": settings.sketch.describe(),
    }  # fmt: skip


def run_sketch(rows: RowInput, settings: SketchSettings, options: RunOptions) -> Spectrum:
    """Fit in one read, or two; one more where the rows had to be counted first."""
    spectrum = _run_passes(rows, settings, options)
    certificate: Any = spectrum.certificate
    return replace(spectrum, certificate=replace(certificate, n_passes=certificate.n_passes + rows.counted))


def _run_passes(rows: RowInput, settings: SketchSettings, options: RunOptions) -> Spectrum:
    d = rows.n_columns
    if not settings.scaled_first and settings.core != "ritz":
        finish = partial(solve_product_state, settings=settings)
        spectrum: Spectrum = fold_product(rows, settings.template(d), finish, settings, options, 1)  # pass 1 over X
        return spectrum
    if settings.core == "ritz":
        return _run_ritz(rows, settings, options)
    columns: Any = fold(  # pass 1 over X
        rows, {"columns": ColumnMoments(d)}, _take_columns, name="scale", number=1, options=options
    )
    scale = column_scale(columns.squares, columns.mean, columns.count)
    factor = settings.factor(d, scale)
    finish = partial(solve_product_state, settings=settings, scale=scale)
    scaled: Spectrum = fold_product(rows, FusedProduct.of(d, factor), finish, settings, options, 2)  # pass 2 over X
    return scaled


def fold_product(
    rows: RowInput, template: FusedProduct, finish: Any, settings: SketchSettings, options: RunOptions, number: int
) -> Any:
    """Fold ``X'(X W)`` about the groups' means: exact for any offset, with centring and without."""
    return fold(rows, {"product": template}, finish, name="sketch", number=number, options=options)  # one pass over X


def take_state(state: PassState) -> tuple[FusedProduct, int]:
    """The state itself: the pass of ``partial_fit``."""
    part: Any = state.parts["product"]
    return part, state.omitted


def _take_columns(state: PassState) -> Any:
    return state.parts["columns"]


def solve_product_state(state: PassState, *, settings: SketchSettings, scale: Vector | None = None) -> Spectrum:
    """Solve where the state lies."""
    part: Any = state.parts["product"]
    return solve_product(part, settings, omitted=state.omitted, scale=scale)


def solve_product(
    part: FusedProduct, settings: SketchSettings, *, omitted: int = 0, scale: Vector | None = None
) -> Spectrum:
    """Compute components from the complete state of a sketched pass.

    Parameters
    ----------
    scale : ndarray of shape (d,) or None
        What the pass divided the columns by already ("tutorial").
    """
    keep = part.state_bytes <= settings.fit.keep_state_bytes and scale is None
    found = unpack(part, settings, omitted=omitted, scale=scale)
    solve = solve_tutorial if settings.core == "tutorial" else solve_nystrom
    spectrum = solve(found, settings.fit)
    return replace(spectrum, state=part if keep else None)


def unpack(part: FusedProduct, settings: SketchSettings, *, omitted: int, scale: Vector | None) -> Sketched:
    """Centre, scale and divide the product; ``Y_z = D^-1 Y`` is A_z's product with ``D W`` (MATHS: z-scoring is exact)."""
    n, d, fit = part.count, part.n_features, settings.fit
    check_enough_rows(n, omitted)
    q = settings.sketch.width(d)
    Y, squares, W = part.centred(), part.centred_squares(), settings.sketch.matrix(d)
    if not fit.center:  # adds, and cancels nothing
        Y += np.multiply.outer(n * part.mean, part.projected_mean())
    Y /= n - 1
    scaled = scale
    if fit.scale and scale is None:
        scaled = column_scale(squares, part.mean, n)
        W *= scaled[:, None]
    if scaled is not None:
        Y /= scaled[:, None]
    about = squares if fit.center else squares + n * part.mean**2
    trace = float((about if scaled is None else about / scaled**2).sum()) / (n - 1)
    if not np.isfinite(trace):
        raise ValueError(
            f"the total variance is {trace}: squares of the values overflow float64 (beyond 1e154). Smaller numbers were "
            f"expected. Divide the data by a constant first."
        )
    probes = None
    if Y.shape[1] > q:
        vectors = probe_vectors(settings.sketch.seed, d, Y.shape[1] - q).astype(np.float64)
        probes = Probes(vectors, Y[:, q:].copy())
        Y = np.ascontiguousarray(Y[:, :q])
    mean = part.mean if fit.center else np.zeros(d)
    passes = 1.0 if scale is None else 2.0
    return Sketched(n, omitted, mean, scaled, trace, W, Y, probes, part.precision, passes)


def solve_nystrom(found: Sketched, fit: Settings, *, multiplied: bool = False) -> Spectrum:
    """Nyström approximation of the covariance, with its certificate; ``multiplied`` as for :func:`certify`."""
    d, q = found.Y.shape
    most = _bounded(fit, found.count, d, q)
    approximation = nystrom(found.W, found.Y, most, precision=found.precision, threads=fit.threads, overwrite=True)
    k = _resolve(fit, approximation.values, found.trace, found.count, d)
    certificate = certify(
        approximation, k, found.trace, precision=found.precision, probes=found.probes,
        basis=found.W if found.orthonormal else None, multiplied=multiplied,
    )  # fmt: skip
    components = fix_signs(np.ascontiguousarray(approximation.vectors[:k]))
    return _spectrum(found, approximation.values[:k], components, certificate)


def solve_tutorial(found: Sketched, fit: Settings) -> Spectrum:
    """Algorithm 4: eigenpairs (lambda, u) of ``Z'Z / (n - 1) = W'Y``, axes ``Y u / lambda``, normalised.

    The certificate comes from Nyström's formula on the same arrays, and bounds the true eigenvalues and what the axes
    capture; the residuals are bounded by ``|A_hat u - lambda u| + |A - A_hat|``.
    """
    d, q = found.Y.shape
    S = found.W.T @ found.Y
    eigenvalues, U = top_eigenpairs((S + S.T) / 2, q, threads=fit.threads)
    k = min(_resolve(fit, eigenvalues, found.trace, found.count, d), _bounded(fit, found.count, d, q))
    axes = U[:k] @ found.Y.T
    norms = np.linalg.norm(axes, axis=1)
    axes /= np.where(norms > 0, norms, 1.0)[:, None]
    approximation = nystrom(found.W, found.Y, k, precision=found.precision, threads=fit.threads)
    certificate = certify(
        approximation, k, found.trace, precision=found.precision, probes=found.probes, axes=orthonormal_axes(axes)
    )
    products = approximation.multiply(axes.T)
    off = np.linalg.norm(products - axes.T * eigenvalues[:k], axis=0)
    residuals = np.asarray(certificate.residuals) + off
    certificate = replace(certificate, residuals=residuals)
    return _spectrum(found, eigenvalues[:k], fix_signs(axes), certificate)


def _run_ritz(rows: RowInput, settings: SketchSettings, options: RunOptions) -> Spectrum:
    """One read for ``Y = A W``, one for the product with an orthonormal basis of Y."""
    d, fit = rows.n_columns, settings.fit
    finish = partial(_take_basis, settings=settings)
    template = settings.template(d)
    found, basis = fold_product(rows, template, finish, settings, options, 1)  # pass 1 over X
    operator = CovarianceOperator(
        rows, options, center=fit.center, scale=fit.scale, columns=basis.shape[1], seed=settings.sketch.seed
    )  # fmt: skip
    operator.number = 1
    operator.know(found.count, found.omitted, found.mean, found.scale, found.trace)
    product = operator.begin(basis).AB  # pass 2 over X
    again = replace(
        found, W=basis, Y=product, probes=operator.probes, precision=operator.precision, passes=2.0, orthonormal=True
    )
    return solve_nystrom(again, fit)


def _take_basis(state: PassState, *, settings: SketchSettings) -> tuple[Sketched, Matrix]:
    """An orthonormal basis of Y (d, q), and what else the pass knows; the arrays of the sketch stay behind."""
    part: Any = state.parts["product"]
    found = unpack(part, settings, omitted=state.omitted, scale=None)
    basis = np.linalg.qr(found.Y)[0]
    return replace(found, W=np.zeros((0, 0)), Y=np.zeros((0, 0)), probes=None), basis


def _most(settings: SketchSettings, n: int, d: int) -> int:
    return _bounded(settings.fit, n, d, settings.sketch.width(d))


def _bounded(fit: Settings, n: int, d: int, q: int) -> int:
    given: Any = fit.n_components
    wanted = q if given is None or needs_full_spectrum(given) else int(given)
    return max(1, min(wanted, q, n, d))


def _resolve(fit: Settings, values: Vector, trace: float, n: int, d: int) -> int:
    """How many of the sketch's values are components.

    Raises
    ------
    ValueError
        Where the rule needs more of the spectrum than the sketch gives.
    """
    q = len(values)
    most = _bounded(fit, n, d, q)
    if fit.n_components is None:
        return most
    k = resolve_partial(fit.n_components, values, trace, n, d)
    if k is None:
        share = float(values.sum()) / trace if trace > 0 else 1.0
        raise ValueError(
            f"n_components = {fit.n_components!r} needs more of the spectrum than a sketch of {q} columns shows: its "
            f"{q} values hold {share:.3f} of the variance. Use a wider sketch, or PCA(n_components={fit.n_components!r})."
        )
    return min(k, most)


def _spectrum(found: Sketched, values: Vector, components: Matrix, certificate: Certificate) -> Spectrum:
    return Spectrum(
        found.count,
        found.omitted,
        found.mean,
        found.scale,
        values,
        components,
        found.trace,
        certificate=replace(certificate, n_passes=found.passes),
    )
