"""Digits, requests for landmarks, and the oracles on the whole kernel matrix that they are held against."""

import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import bigpca as bp
from bigpca.engine.run import Run
from bigpca.kernels.base import Kernel
from bigpca.kernels.distance import RBF
from bigpca.landmarks import (
    SAMPLINGS,
    LandmarkRequest,
    Landmarks,
    draw_rows,
    drawing,
    landmark_passes,
    select_landmarks,
)
from bigpca.passes.accumulators.landmark_moments import square_block
from bigpca.passes.accumulators.row_weights import Residual
from bigpca.passes.fold import costs
from bigpca.passes.rows import Rows
from bigpca.solvers.landmarks import landmark_transform, residual_rounding, truncation_for

Array = NDArray[Any]


@cache
def digits(n: int = 1797) -> Array:
    """The first n digits, z-scored on themselves; constant columns are 0."""
    X = load_digits().data[:n]
    deviations = X.std(axis=0)
    scaled: Array = (X - X.mean(axis=0)) / np.where(deviations > 0, deviations, 1)
    scaled.flags.writeable = False
    return scaled


def request(
    X: Array | da.Array, kernel: Kernel, count: int, *, nan_policy: str = "raise", **options: Any
) -> LandmarkRequest:
    rows = Rows.of(X if isinstance(X, da.Array) else bp.open(X), nan_policy=nan_policy)
    return LandmarkRequest(rows, kernel.resolve(rows.n_columns), count, **options)


def matrix(kernel: Kernel, X: Array) -> Array:
    """K (n, n) in float64."""
    return np.asarray(kernel(X), np.float64)


@dataclass(frozen=True)
class Found:
    """What was chosen, and what it took."""

    landmarks: Landmarks
    passes: float
    evaluations: int
    requested: int

    @property
    def rows(self) -> Array:
        return self.landmarks.rows

    @property
    def indices(self) -> Array | None:
        return self.landmarks.indices

    @property
    def trace(self) -> float | None:
        return self.landmarks.trace

    @property
    def short(self) -> bool:
        return len(self.rows) < self.requested


def choose(sampling: Any, wanted: LandmarkRequest) -> Found:
    """Choose within what is declared, as a fit does."""
    if (isinstance(sampling, str) and sampling in SAMPLINGS) or not isinstance(sampling, str):
        wanted.run.declared = Run.declares(costs(landmark_passes(sampling, wanted)))
    landmarks = select_landmarks(sampling, wanted)
    return Found(landmarks, wanted.run.reads, wanted.run.evaluations, wanted.count)


def sequential_rpcholesky(K: Array, m: int, seed: int) -> list[int]:
    """Chen, Epperly, Tropp & Webber's RPCholesky, a pivot at a time."""
    rng, n = np.random.default_rng(seed), len(K)
    residual, F = np.diag(K).copy(), np.zeros((n, m))
    pivots: list[int] = []
    for i in range(m):
        j = int(rng.choice(n, p=residual / residual.sum()))
        column = K[:, j] - F[:, :i] @ F[j, :i]
        F[:, i] = column / np.sqrt(column[j])
        pivots.append(j)
        residual = np.maximum(residual - F[:, i] ** 2, 0)
        residual[pivots] = 0
    return pivots


def features(K: Array, chosen: Array | list[int]) -> Array:
    """B (n, r) with ``B B' = K_nm pinv(K_mm) K_mn``; landmarks scaled to k(x, x) = 1 first."""
    scale = 1 / np.sqrt(np.diag(K)[chosen])
    values, vectors = np.linalg.eigh(K[np.ix_(chosen, chosen)] * scale * scale[:, None])
    kept = values > 1e-10 * values[-1]
    product: Array = (K[:, chosen] * scale) @ (vectors[:, kept] / np.sqrt(values[kept]))
    return product


def residual_sum(kernel: Kernel, X: Array, chosen: Array) -> float:
    """The sum of what these rows leave of k(x, x), as the pass that draws by it computes it."""
    wanted = request(X, kernel, 1)
    T = landmark_transform(
        square_block(wanted.kernel, X[chosen], chosen, None), truncation_for(wanted.precision), equilibrated=True
    )
    rows = X[chosen].astype(wanted.dtype)
    weight = Residual(wanted.kernel, rows, chosen, T, residual_rounding(wanted.precision), None)
    return draw_rows(wanted, drawing(wanted, 1), weight).weight_sum


def trace_error(K: Array, chosen: Array | list[int]) -> float:
    """``trace(K - B B') / trace(K)``."""
    return float(1 - (features(K, chosen) ** 2).sum() / np.trace(K))


def similarity(K: Array, chosen: Array, k: int = 10) -> float:
    """Mean |v_i'w_i| of the first k kernel principal axes, and those of the features centred by the mean of all
    rows.
    """
    H = np.eye(len(K)) - 1 / len(K)
    exact = np.linalg.eigh(H @ K @ H)[1][:, ::-1][:, :k]
    B = features(K, chosen)
    found = np.linalg.svd(B - B.mean(axis=0), full_matrices=False)[0][:, :k]
    return float(np.abs((exact * found).sum(axis=0)).mean())


@dataclass
class Tally:
    """How many kernel values were computed."""

    entries: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def add(self, entries: int) -> None:
        with self.lock:
            self.entries += entries


@dataclass(frozen=True)
class CountedRBF(Kernel):
    """An RBF kernel that counts its values."""

    gamma: float
    tally: Tally

    @property
    def rbf(self) -> RBF:
        return RBF(self.gamma)

    @property
    def positive_semidefinite(self) -> bool:
        return True

    def prepare(self, rows: Array, shift: Array | None = None, first_row: int = 0) -> Any:
        return self.rbf.prepare(rows, shift, first_row), len(rows)

    def block(self, A: Any, B: Any) -> Array:
        self.tally.add(A[1] * B[1])
        return self.rbf.block(A[0], A[0] if A is B else B[0])

    def diagonal_of(self, A: Any) -> Array:
        self.tally.add(A[1])
        return self.rbf.diagonal_of(A[0])

    def flops_per_entry(self, d: int) -> float:
        return self.rbf.flops_per_entry(d)

    def entry_bytes(self, itemsize: int) -> int:
        return self.rbf.entry_bytes(itemsize)

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return self.rbf.prepared_bytes(d, itemsize)
