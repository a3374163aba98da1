"""A certificate as arrays and JSON values, with the model that it is about."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from bigpca.arrays import Array
from bigpca.estimators.linear.spectrum import Certificate
from bigpca.estimators.shared.files import Values
from bigpca.solvers.subspaces import SubspaceBounds

ARRAYS = ("eigenvalue_bounds", "residuals", "captured_variance_bounds")
SUBSPACE_ARRAYS = tuple(field.name for field in fields(SubspaceBounds))


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
