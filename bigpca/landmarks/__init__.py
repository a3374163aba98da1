"""Landmarks of Nyström approximations: how the rows are chosen."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from bigpca.landmarks.base import LandmarkRequest, Landmarks
from bigpca.landmarks.given import given, landmark_values
from bigpca.landmarks.kmeans import KMEANS_READS, kmeans
from bigpca.landmarks.leverage import leverage
from bigpca.landmarks.rpcholesky import rpcholesky
from bigpca.landmarks.weighted import RowSquares, column_norm, diagonal, uniform

__all__ = ["KMEANS_READS", "LandmarkRequest", "Landmarks", "SAMPLINGS", "select_landmarks"]

SAMPLINGS = ("rpcholesky", "uniform", "diagonal", "column-norm", "leverage", "kmeans")


def select_landmarks(
    sampling: str | NDArray[Any],
    request: LandmarkRequest,
    row_squares: RowSquares | None = None,
) -> Landmarks:
    """Return m landmarks of X, chosen by the method ``sampling``.

    =============== =========================================== ====== =================== ============
    sampling        which                                       passes kernel evaluations  kernels
    =============== =========================================== ====== =================== ============
    "rpcholesky"    by the residual of k(x, x)                  rounds n m                 PSD
    "uniform"       with equal probability                      1      0                   all
    "diagonal"      by k(x, x)^2; uniform for RBF, Laplacian,   1      n                   all
                    cosine and normalised kernels
    "column-norm"   by the sums of squares of K's columns       2      n^2                 all
    "leverage"      by ridge leverage scores                    2      n m                 PSD
    "kmeans"        the centres of m clusters, not rows         many   0                   real vectors
    ndarray (m,)    the rows with these numbers                 1      0                   all
    ndarray (m, d)  these rows                                  0      0                   all
    =============== =========================================== ====== =================== ============

    Except for k-means, the choice depends only on the seed and the rows, not on chunks, workers or threads.

    Parameters
    ----------
    sampling : str or ndarray
    request : LandmarkRequest
    row_squares : callable or None
        For "column-norm": sweeps over the kernel matrix and returns ``sum_j k(x_i, x_j)^2`` (n,), evaluations and
        reads.

    Raises
    ------
    ValueError
        For an unknown sampling, more landmarks than rows, or input that the sampling rejects.
    TypeError
        For given landmarks that are not numbers.
    """
    n, m = request.rows.n_rows, request.count
    if m < 1:
        raise ValueError(f"n_landmarks = {m}; at least 1 was expected. Give for example {min(n, 1000)}.")
    if not isinstance(sampling, str):
        return given(landmark_values(sampling), request)
    if m > n:
        raise ValueError(f"{m} landmarks were requested, but X has only {n} rows. Give n_landmarks={n} or fewer.")
    if sampling == "column-norm":
        return column_norm(request, row_squares)
    methods = {
        "rpcholesky": rpcholesky, "uniform": uniform, "diagonal": diagonal, "leverage": leverage, "kmeans": kmeans,
    }  # fmt: skip
    if sampling not in methods:
        raise ValueError(
            f"sampling = {sampling!r} is unknown. Use one of {', '.join(map(repr, SAMPLINGS))}, an array of row "
            "numbers, or an array of rows."
        )
    return methods[sampling](request)
