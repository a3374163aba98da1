"""From a sketch of a matrix and its product to components: Nyström, and algorithm 4 as printed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import norm_of
from bigpca.estimators.linear.certificates import certify
from bigpca.estimators.linear.certified import Certificate
from bigpca.estimators.linear.spectrum import Settings, Spectrum, counted
from bigpca.operators.products import Probes
from bigpca.passes.accumulators.base import WeightSums
from bigpca.solvers.components import resolve_partial
from bigpca.solvers.eigh import fix_signs, top_eigenpairs
from bigpca.solvers.nystrom import nystrom
from bigpca.solvers.subspaces import orthonormal_axes

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Sketched:
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
        As of :class:`bigpca.estimators.linear.spectrum.Spectrum`.
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

    @property
    def weight(self) -> float:
        """Sum of the weights; the number of rows without weights."""
        return float(self.count) if self.weight_sums is None else self.weight_sums[0]


def solve_nystrom(found: Sketched, fit: Settings, *, multiplied: bool = False) -> Spectrum:
    """Nyström approximation of the covariance, with its certificate; ``multiplied`` as for :func:`certify`."""
    d, q = found.Y.shape
    most = _bounded(fit, found.count, d, q)
    approximation = nystrom(found.W, found.Y, most, precision=found.precision, threads=fit.threads, overwrite=True)
    k = _resolve(fit, approximation.values, found)
    certificate = certify(
        approximation, k, found.trace, precision=found.rounding, probes=found.probes,
        basis=found.W if found.orthonormal else None, multiplied=multiplied, trace_error=found.trace_error,
    )  # fmt: skip
    components = fix_signs(np.ascontiguousarray(approximation.vectors[:k]))
    return _spectrum(found, fit, approximation.values[:k], components, certificate)


def solve_tutorial(found: Sketched, fit: Settings) -> Spectrum:
    """Algorithm 4: eigenpairs (lambda, u) of ``Z'Z / (n - 1) = W'Y``, axes ``Y u / lambda``, normalised.

    The certificate comes from Nyström's formula on the same arrays, and bounds the true eigenvalues and what the axes
    capture; the residuals are bounded by ``|A_hat u - lambda u| + |A - A_hat|``.
    """
    d, q = found.Y.shape
    S = found.W.T @ found.Y
    eigenvalues, U = top_eigenpairs((S + S.T) / 2, q, threads=fit.threads)
    k = min(_resolve(fit, eigenvalues, found), _bounded(fit, found.count, d, q))
    axes = U[:k] @ found.Y.T
    norms = norm_of(axes, axis=1)
    axes /= np.where(norms > 0, norms, 1.0)[:, None]
    approximation = nystrom(found.W, found.Y, k, precision=found.precision, threads=fit.threads)
    certificate = certify(
        approximation,
        k,
        found.trace,
        precision=found.rounding,
        probes=found.probes,
        axes=orthonormal_axes(axes),
        trace_error=found.trace_error,
    )
    products = approximation.multiply(axes.T)
    off = norm_of(products - axes.T * eigenvalues[:k], axis=0)
    residuals = np.asarray(certificate.residuals) + off
    certificate = replace(certificate, residuals=residuals)
    return _spectrum(found, fit, eigenvalues[:k], fix_signs(axes), certificate)


def _bounded(fit: Settings, n: int, d: int, q: int) -> int:
    k = counted(fit.n_components)
    return max(1, min(q if k is None else k, q, n, d))


def _resolve(fit: Settings, values: Vector, found: Sketched) -> int:
    """Return the number of components among the values of the sketch.

    Raises
    ------
    ValueError
        If the rule requires more of the spectrum than the sketch determines.
    """
    q, n, d, trace = len(values), found.count, len(found.Y), found.trace
    most = _bounded(fit, n, d, q)
    if fit.n_components is None:
        return most
    k = resolve_partial(fit.n_components, values, trace, n, d, found.weight)
    if k is None:
        share = float(values.sum()) / trace if trace > 0 else 1.0
        raise ValueError(
            f"n_components = {fit.n_components!r} needs more of the spectrum than a sketch of {q} columns shows: its "
            f"{q} values hold {share:.3f} of the variance. Use a wider sketch, or "
            f"PCA(n_components={fit.n_components!r})."
        )
    return min(k, most)


def _spectrum(found: Sketched, fit: Settings, values: Vector, components: Matrix, certificate: Certificate) -> Spectrum:
    mean, scale = fit.standardization.in_units_of_rows(found.mean, found.scale)
    return Spectrum(
        found.count,
        found.omitted,
        mean,
        scale,
        values,
        components,
        found.trace,
        certificate=certificate,
        weight_sums=found.weight_sums,
        centring_error=found.centring_error,
    )
