"""A certificate: bounds of the error of an approximate result, as fitted attributes and in model files."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from bigpca.arrays import Array
from bigpca.estimators.shared.files import Values
from bigpca.solvers.subspaces import SubspaceBounds

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
ARRAYS = ("eigenvalue_bounds", "residuals", "captured_variance_bounds")
SUBSPACE_ARRAYS = tuple(field.name for field in fields(SubspaceBounds))
CERTIFICATE_FIELDS = {
    "eigenvalue_bounds_": "eigenvalue_bounds",
    "residuals_": "residuals",
    "captured_variance_bounds_": "captured_variance_bounds",
    "subspace_error_bounds_": "subspace_error_bounds",
    "bounds_confidence_": "confidence",
    "n_passes_": "n_passes",
    "converged_": "converged",
}


@dataclass(frozen=True)
class Certificate:
    """Bounds of the error of an approximate result.

    Attributes
    ----------
    eigenvalue_bounds : ndarray of shape (k, 2)
        Lower and upper bounds of the leading eigenvalues of the covariance, which ``variances`` approximate.
    residuals : ndarray of shape (k,) or None
        ``|C v_i - lambda_i v_i|``, in the units of the eigenvalues; None if the reads do not determine them.
    captured_variance_bounds : ndarray of shape (2,) or None
        Bounds of the share of ``total`` along the components; None if the matrix is not positive semi-definite.
    confidence : float
        Probability with which all bounds hold; 1.0 for bounds that always do.
    n_passes : float or None
        Reads of X by the fit; a read of a tenth of the rows counts 0.1.
    converged : bool or None
        Whether the tolerance was met; None without a tolerance.
    subspaces : SubspaceBounds or None
        Bounds of the angles between leading axes and leading eigenspaces; None if the matrix is not multiplied, or
        not positive semi-definite.
    """

    eigenvalue_bounds: Matrix
    residuals: Vector | None
    captured_variance_bounds: Vector | None
    confidence: float
    n_passes: float | None = None
    converged: bool | None = None
    subspaces: SubspaceBounds | None = None

    def times(self, exponent: int) -> Certificate:
        """Return the certificate of ``2^exponent A``; sines and shares do not change."""
        limits, residuals, subspaces = self.eigenvalue_bounds, self.residuals, self.subspaces
        return replace(
            self, eigenvalue_bounds=np.ldexp(limits, exponent),
            residuals=None if residuals is None else np.ldexp(residuals, exponent),
            subspaces=subspaces
            and SubspaceBounds(**{name: np.ldexp(getattr(subspaces, name), exponent) for name in SUBSPACE_ARRAYS}),
        )  # fmt: skip

    @property
    def subspace_error_bounds(self) -> Vector | None:
        """Bounds (k,) of the sines of the angles between the leading j axes and the leading j eigenvectors."""
        return None if self.subspaces is None else self.subspaces.errors


def certified_attributes(certificate: Certificate | None) -> dict[str, object]:
    """Return the fitted attributes of a certificate; None for those that are unknown."""
    return {name: getattr(certificate, field, None) for name, field in CERTIFICATE_FIELDS.items()}


def _bounds_subspaces(model: object) -> bool:
    """Whether a model has bounds of subspaces; otherwise the method that requires them does not exist."""
    return getattr(getattr(model, "_certificate", None), "subspaces", None) is not None


class Certified(Protocol):
    """A model with a certificate that bounds subspaces."""

    @property
    def _certificate(self) -> Certificate | None: ...


@available_if(_bounds_subspaces)  # type: ignore[untyped-decorator]
def containment_bound(self: Certified, n_axes: int, n_true: int) -> float:
    """Bound the angle between the leading axes and a larger true principal subspace.

    Where eigenvalues lie close together, as in a cluster cut by ``n_axes``, the leading axes are not determined,
    and ``subspace_error_bounds_`` is 1; it may still be certain that they lie within the span of the whole cluster.

    Parameters
    ----------
    n_axes : int, 1 to k
        The leading axes, in order.
    n_true : int, ``n_axes`` to 2 k (at most the number of eigenvalues)
        Dimension of the true leading principal subspace.

    Returns
    -------
    float
        The sine of the largest angle between an axis, or a combination of them, and that subspace is at most this,
        with probability ``bounds_confidence_``; 1.0 if nothing is certain. ``containment_bound(j, j)`` is
        ``subspace_error_bounds_[j - 1]``.

    Raises
    ------
    ValueError
        For numbers out of range.
    AttributeError
        If the model has no ``subspace_error_bounds_``.
    """
    subspaces = None if self._certificate is None else self._certificate.subspaces
    if subspaces is None:
        raise AttributeError("the model has no certified bounds of subspaces.")
    k, most = len(subspaces.lowest), len(subspaces.upper) - 1
    if not 1 <= n_axes <= k or not n_axes <= n_true <= most:
        raise ValueError(
            f"n_axes = {n_axes} and n_true = {n_true}; 1 <= n_axes <= {k} (n_components_) and n_axes <= n_true <= "
            f"{most} were expected. Fit more components to bound larger subspaces."
        )
    return float(subspaces.bound(n_axes, n_true))


def certificate_bytes(k: int, size: int) -> int:
    """Return the bytes of the certificate of k eigenvalues of a positive semi-definite matrix of that size."""
    return 8 * (6 * k + 2 + min(2 * k, size) + 1)


def pack_certificate(certificate: Certificate | None) -> tuple[dict[str, Array], Values | None]:
    """Return a certificate as arrays and JSON values; the values are None without a certificate."""
    if certificate is None:
        return {}, None
    arrays = {name: getattr(certificate, name) for name in ARRAYS if getattr(certificate, name) is not None}
    if certificate.subspaces is not None:
        arrays |= {f"subspace_{name}": getattr(certificate.subspaces, name) for name in SUBSPACE_ARRAYS}
    return arrays, {
        "confidence": float(certificate.confidence),
        "n_passes": None if certificate.n_passes is None else float(certificate.n_passes),
        "converged": None if certificate.converged is None else bool(certificate.converged),
    }


def unpack_certificate(arrays: dict[str, Array], certified: Values | None) -> Certificate | None:
    """Return the certificate that :func:`pack_certificate` packed.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a value is missing, or shapes disagree.
    """
    if certified is None:
        return None
    bounds, subspaces = arrays["eigenvalue_bounds"], None
    if "subspace_upper" in arrays:
        subspaces = SubspaceBounds(**{name: arrays[f"subspace_{name}"] for name in SUBSPACE_ARRAYS})
        shapes = [np.shape(getattr(subspaces, name)) for name in SUBSPACE_ARRAYS]
        if shapes[:3] != [bounds.shape[:1]] * 3 or len(shapes[3]) != 1 or shapes[3] <= bounds.shape[:1]:
            raise ValueError(f"it has bounds of subspaces of shapes {shapes} beside those of {len(bounds)} eigenvalues")
    known = (arrays.get("residuals"), arrays.get("captured_variance_bounds"))
    return Certificate(bounds, *known, **certified, subspaces=subspaces)
