"""Rows with missing values: their scores by least squares on the columns that are there, and what they rule out."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.errors import ApproximationWarning

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
SOUND = 1e-6  # smallest eigenvalue of a normal matrix that is inverted
TILE_BYTES = 2**22  # of rows in float64 at a time


def incomplete_scores(rows: Array, mean: Vector, scale: Vector | None, axes: Matrix) -> tuple[Matrix, int]:
    """Return scores (b, k) of rows with NaN along axes (k, d), and for how many of them they are not determined.

    With an orthonormal basis Q (d, k) of the axes, ``axes' = Q R``, and the columns o of a row z that are there, the
    coordinates are ``c = argmin |z_o - Q_o c|``, of minimum norm where the columns do not determine them, and the
    scores those of the point ``Q c``, ``t = R' c``: of a complete row, ``axes z`` (Nelson, Taylor & MacGregor 1996,
    "Missing data methods in PCA and PLS: score calculations with incomplete observations", projection to the model
    plane). The normal matrix is ``Q_o' Q_o = I - Q_m' Q_m``, with the columns m that are missing; it is the same for
    all rows where the same are.
    """
    Q, R = (np.asarray(one, np.float64) for one in scipy.linalg.qr(axes.T, mode="economic"))
    scores, undetermined = np.empty((len(rows), len(axes))), 0
    step = max(1, TILE_BYTES // (8 * max(1, rows.shape[1])))
    for i in range(0, len(rows), step):
        z = rows[i : i + step] - mean
        if scale is not None:
            z /= scale
        missing = np.isnan(z)
        z[missing] = 0
        _, first, members = np.unique(np.packbits(missing, axis=1), axis=0, return_index=True, return_inverse=True)
        for pattern, row in enumerate(first):
            own = np.flatnonzero(members.ravel() == pattern)
            coordinates, determined = _coordinates(Q, missing[row], z[own])
            scores[i + own] = coordinates @ R
            undetermined += 0 if determined else len(own)
    return scores, undetermined


def incomplete_bytes(rows: int, d: int, k: int, itemsize: int) -> int:
    """Return the bytes that :func:`incomplete_scores` takes: a copy of rows, tiles, two bases, and scores."""
    tile = min(rows, max(1, TILE_BYTES // (8 * max(1, d))))
    return rows * d * itemsize + tile * d * 20 + 24 * d * k + rows * (8 * k + d)


def _coordinates(Q: Matrix, missing: NDArray[np.bool_], z: Matrix) -> tuple[Matrix, bool]:
    """Return ``argmin |z_o - Q_o c|`` (b, k) of rows z (b, d), 0 where they are missing, and whether only one is it."""
    k, absent = Q.shape[1], Q[missing]
    if len(absent) <= len(missing) // 2:
        normal = np.eye(k) - absent.T @ absent
    else:
        normal = Q[~missing].T @ Q[~missing]
    values, vectors = np.linalg.eigh(normal)
    if k and values[0] > SOUND:
        return np.asarray(z @ Q @ (vectors / values) @ vectors.T), True
    # The normal matrix has lost half of the digits: the singular values of Q_o itself decide.
    there = Q[~missing]
    found, _, rank, _ = scipy.linalg.lstsq(there, z[:, ~missing].T) if len(there) else (np.zeros((k, len(z))), 0, 0, 0)
    return np.asarray(found.T, np.float64), rank == k


def warn_undetermined() -> None:
    """Warn that the values that are there do not determine some scores: in words that Python shows once per process."""
    warnings.warn(
        "the values that are there do not determine the scores of some rows: these have fewer values than there are "
        "components, or in columns where components cannot be told apart. Theirs are the scores of minimum norm, which "
        "are 0 for rows without any value.",
        ApproximationWarning,
        stacklevel=2,
    )


FILLED: dict[str, object] = {"fill": "mean"}


def of_all_rows(what: str) -> str:
    """Return the message that ``what`` is impossible where missing values are filled by the means of all rows."""
    return (
        f'{what} needs statistics to which rows can be added, but with nan_policy="mean" missing values are replaced '
        f"by the means of all rows, which more rows change. Fit all rows at once."
    )
