"""What an estimator shows of its certificate, and how the certificate is stored with the model."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from bigpca.estimators.linear.spectrum import Certificate
from bigpca.solvers.subspaces import SubspaceBounds

CERTIFICATE_FIELDS = {
    "eigenvalue_bounds_": "eigenvalue_bounds",
    "residuals_": "residuals",
    "captured_variance_bounds_": "captured_variance_bounds",
    "subspace_error_bounds_": "subspace_error_bounds",
    "bounds_confidence_": "confidence",
    "n_passes_": "n_passes",
    "converged_": "converged",
}
ARRAYS = ("eigenvalue_bounds", "residuals", "captured_variance_bounds")
SUBSPACE_ARRAYS = tuple(field.name for field in fields(SubspaceBounds))


def _bounds_subspaces(model: Any) -> bool:
    return getattr(getattr(model, "_certificate", None), "subspaces", None) is not None


class CertifiedModel:
    """The part of an estimator that shows what is known of its answer."""

    _certificate: Certificate | None

    @available_if(_bounds_subspaces)  # type: ignore[untyped-decorator]
    def containment_bound(self, n_axes: int, n_true: int) -> float:
        """Bound how far the leading axes point out of a larger true principal subspace.

        Where eigenvalues lie close together, as in a cluster cut by ``n_axes``, the leading axes are not determined, and
        ``subspace_error_bounds_`` has a 1; that they lie within the span of the whole cluster may still be certain.

        Parameters
        ----------
        n_axes : int, 1 to k
            The leading axes, in order.
        n_true : int, ``n_axes`` to 2 k (at most the number of eigenvalues)
            Dimension of the true leading principal subspace.

        Returns
        -------
        float
            The sine of the largest angle between an axis, or a combination of them, and that subspace is at most this, with
            probability ``bounds_confidence_``; 1.0 where nothing is certain. ``containment_bound(j, j)`` is
            ``subspace_error_bounds_[j - 1]``.

        Raises
        ------
        ValueError
            For numbers out of range.
        AttributeError
            Where the model has no ``subspace_error_bounds_``.
        """
        subspaces: Any = getattr(self._certificate, "subspaces", None)
        k, most = len(subspaces.lowest), len(subspaces.upper) - 1
        if not 1 <= n_axes <= k or not n_axes <= n_true <= most:
            raise ValueError(
                f"n_axes = {n_axes} and n_true = {n_true}; 1 <= n_axes <= {k} (n_components_) and n_axes <= n_true <= {most} "
                f"were expected. Fit more components to bound larger subspaces."
            )
        return float(subspaces.bound(n_axes, n_true))

    def _take_certificate(self, certificate: Certificate | None) -> None:
        """Set what is known of the answer; what is not, by this fit, has no attribute: not an earlier fit's, not None."""
        self._certificate = certificate
        for name, field in CERTIFICATE_FIELDS.items():
            value = getattr(certificate, field, None)
            if value is None:
                self.__dict__.pop(name, None)
            else:
                setattr(self, name, value)


def pack_certificate(certificate: Certificate | None) -> tuple[dict[str, NDArray[Any]], dict[str, Any] | None]:
    """Return a certificate as arrays and JSON values; None for the values of none."""
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


def unpack_certificate(arrays: dict[str, NDArray[Any]], certified: dict[str, Any] | None) -> Certificate | None:
    """Return the certificate that :func:`pack_certificate` took apart.

    Raises
    ------
    KeyError, TypeError, ValueError
        Where something is missing, or shapes disagree.
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
