"""Comparison of axes and eigenvalues: one by one, or as whole subspaces."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr, svdvals

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def similarity(V: ArrayLike, V2: ArrayLike) -> Vector:
    """Compare axes one by one: ``Sim_i = |v_i' v2_i| / (|v_i| |v2_i|)``, 1 for the same axis up to its sign.

    It penalises rotations within nearly equal eigenvalues, where axes are arbitrary but their span is not; see also
    :func:`principal_angles`.

    Parameters
    ----------
    V, V2 : array-like of shape (k, d), or fitted models; rows are components, of any length

    Returns
    -------
    ndarray of shape (k,), in [0, 1]

    Raises
    ------
    ValueError
        If shapes differ, or a row has no direction (length 0, or not finite).

    Notes
    -----
    Marukatat 2022, the comparisons of section 5.5.

    Examples
    --------
    >>> similarity([[1.0, 0.0], [0.0, 1.0]], [[-2.0, 0.0], [3.0, 4.0]]).tolist()
    [1.0, 0.8]
    """
    A, B = unit_rows(V, "V"), unit_rows(V2, "V2")
    if A.shape != B.shape:
        raise ValueError(
            f"V has shape {A.shape} and V2 {B.shape}, so that their rows do not correspond one to one. Truncate "
            "the longer one, or compare whole subspaces with principal_angles."
        )
    return np.asarray(np.minimum(np.abs(np.einsum("ij,ij->i", A, B)), 1.0))


def eigenvalue_difference(eigenvalues: ArrayLike, eigenvalues2: ArrayLike) -> Vector:
    """Compare eigenvalues one by one: ``Diff_i = |l_i - l2_i| / l_i``, relative to the first argument.

    Parameters
    ----------
    eigenvalues, eigenvalues2 : array-like of shape (k,), or fitted models; the exact ones first

    Returns
    -------
    ndarray of shape (k,)

    Raises
    ------
    ValueError
        If shapes differ, or one of the first eigenvalues is not positive.

    Notes
    -----
    Marukatat 2022, the comparisons of section 5.5.

    Examples
    --------
    >>> eigenvalue_difference([4.0, 2.0], [3.0, 2.0]).tolist()
    [0.25, 0.0]
    """
    exact, found = (
        np.asarray(getattr(one, "eigenvalues_", getattr(one, "explained_variance_", one)), np.float64)
        for one in (eigenvalues, eigenvalues2)
    )
    if exact.ndim != 1 or exact.shape != found.shape:
        raise ValueError(f"eigenvalues have shapes {exact.shape} and {found.shape}. Truncate the longer one.")
    bad = np.flatnonzero(~(exact > 0))
    if len(bad):
        raise ValueError(
            f"eigenvalue {bad[0]} is {exact[bad[0]]:g}, but differences are relative to positive ones. Compare the "
            f"{bad[0]} before it."
        )
    return np.asarray(np.abs(exact - found) / exact)


def principal_angles(V: ArrayLike, V2: ArrayLike) -> Vector:
    """Compare whole subspaces: the principal angles between the spans of the rows, in radians, largest first.

    With orthonormal rows Q and Q2 of the two spans, the cosines are the singular values of Q Q2', and the sines those
    of ``Q - (Q Q2') Q2``, where Q is the smaller one. Each angle is computed from both, so that even an angle of 1e-12,
    whose cosine is 1 in all digits, is accurate. Costs O(d k^2).

    Parameters
    ----------
    V, V2 : array-like of shapes (k, d) and (k2, d), or fitted models; rows are components, orthonormal or not

    Returns
    -------
    ndarray of shape (min(k, k2),), in [0, pi/2]

    Raises
    ------
    ValueError
        If the numbers of columns differ, values are not finite, or rows are linearly dependent.

    Notes
    -----
    Bjorck & Golub 1973, theorem 1 and section 3; Knyazev & Argentati 2002, algorithm 3.1. NOTE: ``arctan2`` of both,
    where they choose one: SciPy 1.17's ``subspace_angles`` chooses the cosine of small angles if there are also large
    ones, which gives an error of 1e-8.

    Examples
    --------
    >>> principal_angles([[1.0, 0.0, 0.0]], [[1.0, 1e-12, 0.0]]).tolist()
    [1e-12]
    """
    A, B = unit_rows(V, "V"), unit_rows(V2, "V2")
    if A.shape[1] != B.shape[1]:
        raise ValueError(
            f"V has rows of length {A.shape[1]} and V2 of {B.shape[1]}: they are axes of different spaces. Pass the "
            "components of the same features."
        )
    Q, Q2 = sorted((orthonormal(A, "V"), orthonormal(B, "V2")), key=len)
    cross = Q @ Q2.T
    cosines, sines = svdvals(cross), svdvals(Q - cross @ Q2)
    return np.asarray(np.arctan2(sines, cosines[::-1]))  # pairs the largest sine with the smallest cosine


def unit_rows(V: ArrayLike, name: str) -> Matrix:
    """Return the rows scaled to length 1; raise ValueError, with this name, if one has no direction."""
    rows = np.asarray(getattr(V, "components_", V), np.float64)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{name} has shape {rows.shape}; rows of components, (k, d), were expected. Reshape it.")
    largest = np.abs(rows).max(axis=1, keepdims=True)
    bad = np.flatnonzero(~((largest > 0) & np.isfinite(largest)))
    if len(bad):
        raise ValueError(
            f"row {bad[0]} of {name} has no direction: its largest entry is {largest[bad[0], 0]:g}. Remove it, "
            "or replace it by finite numbers."
        )
    scaled = rows / largest  # because squares of the entries could overflow
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1, keepdims=True))


def orthonormal(rows: Matrix, name: str) -> Matrix:
    """Return orthonormal rows of the same span; raise if the rows (of unit length) are linearly dependent."""
    Q, R, _ = qr(rows.T, mode="economic", pivoting=True)
    least = float(np.abs(np.diagonal(R)).min()) if len(rows) <= rows.shape[1] else 0.0
    if least <= max(rows.shape) * np.finfo(np.float64).eps:
        raise ValueError(
            f"the {len(rows)} rows of {name} are linearly dependent (to {least:.1g}), so they span fewer dimensions. "
            "Remove the redundant ones."
        )
    return np.ascontiguousarray(Q.T)
