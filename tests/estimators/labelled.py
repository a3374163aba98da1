"""What the tests of supervised models share: labelled rows, and NumPy's answers on the whole matrix."""

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


def labelled_rows(
    n: int, d: int, c: int, *, apart: float = 2.0, mean: float = 0.0, seed: int = 0, dtype: DTypeLike = np.float64
) -> tuple[Array, Array]:
    """Correlated normal rows about c centres, ``apart`` times a normal deviate from each other, and their classes."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % c)
    noise = rng.standard_normal((n, d)) @ (np.eye(d) + rng.standard_normal((d, d)) / d)
    return (noise + apart * rng.standard_normal((c, d))[y] + mean).astype(dtype), y


def one_hot(y: Array) -> Array:
    """Delta (n, c)."""
    return np.eye(int(y.max()) + 1)[y]


def centred(X: Array) -> Array:
    """HX in float64."""
    wide = X.astype(np.float64)
    return wide - wide.mean(axis=0)


def within_scatter(X: Array, y: Array) -> Array:
    """S_W (d, d) from the rows of each class."""
    return np.sum([centred(X[y == j]).T @ centred(X[y == j]) for j in np.unique(y)], axis=0)


def roweis_matrices(X: Array, y: Array, r1: float, r2: float) -> tuple[Array, Array]:
    """R1 = X'H P H X with P = r1 Delta Delta' + (1 - r1) I made whole, and R2 (RDA paper, eqs. 31-36)."""
    n, d = X.shape
    delta, Y = one_hot(y), centred(X)
    P = r1 * delta @ delta.T + (1 - r1) * np.eye(n)
    return Y.T @ P @ Y, r2 * within_scatter(X, y) + (1 - r2) * np.eye(d)


def unit_of(y: Array, r2: float, scale: float = 1.0) -> float:
    """s of ``U'R2 U = s I``, where R2 / s is a weighted mean of the covariance within classes (divisor n - c) and I."""
    return r2 * scale * (len(y) - len(np.unique(y))) + 1 - r2


def generalised(R1: Array, R2: Array, k: int, unit: float = 1.0) -> tuple[Array, Array]:
    """The k leading eigenvalues of ``R1 u = lambda R2 u`` and their axes as rows with ``u'R2 u = unit``, by SciPy."""
    values, vectors = scipy.linalg.eigh(R1, R2)
    return values[::-1][:k], vectors[:, ::-1][:, :k].T * np.sqrt(unit)


def assert_same_axes(found: Array, truth: Array, tolerance: float = 1e-8) -> None:
    """Each row equals that of the truth up to its sign, relative to the largest entry of the truth."""
    signs = np.sign(np.einsum("ij,ij->i", found, truth))[:, None]
    np.testing.assert_allclose(found * signs, truth, rtol=0, atol=tolerance * np.abs(truth).max())


def outside(B: Array, A: Array) -> float:
    """``|B - Q Q'B| / |B|`` for the columns of B and an orthonormal basis Q of the columns of A."""
    Q = np.linalg.qr(A)[0]
    return float(np.linalg.norm(B - Q @ (Q.T @ B)) / np.linalg.norm(B))
