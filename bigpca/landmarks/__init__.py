"""Landmarks of Nyström approximations, and the samplings that choose them.

- ``base``        ``LandmarkRequest`` and ``Landmarks``; the pass by which samplings draw rows by weight; landmarks that
  the caller chose; "uniform", "diagonal", "column-norm", whose weights are known from the rows or from one sweep
- ``samplings``   "rpcholesky", randomly pivoted Cholesky in one read or a few; "leverage", ridge leverage
  scores, estimated from a uniform sample held in memory; "kmeans", cluster centres, by dask-ml

A fit makes a ``LandmarkRequest`` from its rows, with their view and maps, and declares ``landmark_passes``;
``select_landmarks`` then checks the sampling and calls its function, which folds ``BestRows`` with a ``RowWeight`` and
returns ``Landmarks`` in the dtype of the rows. ``compared_rows`` is for the memory of the plan.

Add a sampling: a function and its passes in ``samplings``, one row of ``SAMPLINGS``, one row in ``tests/landmarks``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from bigpca.arrays import Array
from bigpca.landmarks.base import (
    LandmarkRequest,
    Landmarks,
    column_norm,
    column_norm_passes,
    diagonal,
    diagonal_passes,
    given,
    given_passes,
    landmark_values,
    uniform,
    uniform_passes,
)
from bigpca.landmarks.samplings import (
    kmeans,
    kmeans_passes,
    leverage,
    leverage_passes,
    rpcholesky,
    rpcholesky_passes,
    scoring_rows,
)
from bigpca.passes.rows import reject_weights
from bigpca.planning import PassCost

__all__ = ["LandmarkRequest", "Landmarks", "SAMPLINGS", "compared_rows", "landmark_passes", "select_landmarks"]


@dataclass(frozen=True)
class Sampling:
    """A method that chooses landmarks.

    Attributes
    ----------
    choose : callable
    passes : callable
        Declares what ``choose`` reads.
    compared : callable
        Maximum number of rows that ``choose`` compares with each other in memory.
    """

    choose: Callable[[LandmarkRequest], Landmarks]
    passes: Callable[[LandmarkRequest], tuple[PassCost, ...]]
    compared: Callable[[LandmarkRequest], int] = attrgetter("count")


SAMPLINGS = {
    "rpcholesky": Sampling(rpcholesky, rpcholesky_passes),
    "uniform": Sampling(uniform, uniform_passes),
    "diagonal": Sampling(diagonal, diagonal_passes),
    "column-norm": Sampling(column_norm, column_norm_passes),
    "leverage": Sampling(leverage, leverage_passes, scoring_rows),
    "kmeans": Sampling(kmeans, kmeans_passes),
}


def landmark_passes(sampling: str | Array, request: LandmarkRequest) -> tuple[PassCost, ...]:
    """Declare what :func:`select_landmarks` reads; rejects weighted rows unless the landmarks are given."""
    if not isinstance(sampling, str):
        return given_passes(landmark_values(sampling), request)
    reject_weights(request.rows, [f"sampling={sampling!r}"], "it draws landmarks with every row counted once")
    return SAMPLINGS[sampling].passes(request)


def compared_rows(sampling: str | Array, request: LandmarkRequest) -> int:
    """Return the maximum number of rows that :func:`select_landmarks` compares with each other in memory."""
    return SAMPLINGS[sampling].compared(request) if isinstance(sampling, str) else request.count


def select_landmarks(sampling: str | Array, request: LandmarkRequest) -> Landmarks:
    """Return m landmarks of X, chosen by the method ``sampling``.

    =============== =========================================== ====== =================== ============
    sampling        which                                       reads  kernel evaluations  kernels
    =============== =========================================== ====== =================== ============
    "rpcholesky"    by the residual of k(x, x)                  1 to 6 n m                 PSD
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
    if sampling not in SAMPLINGS:
        raise ValueError(
            f"sampling = {sampling!r} is unknown. Use one of {', '.join(map(repr, SAMPLINGS))}, an array of row "
            "numbers, or an array of rows."
        )
    return SAMPLINGS[sampling].choose(request)
