"""Matrices with known answers, shared by all tests: prescribed spectra, means and scales; and whether bounds hold."""

import re

import numpy as np
from numpy.typing import DTypeLike, NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def flat(d: int) -> Vector:
    """All eigenvalues equal."""
    return np.ones(d)


def power_law(d: int, p: float = 1.0) -> Vector:
    """lambda_i = i^-p."""
    return np.arange(1, d + 1, dtype=np.float64) ** -p


def gap(d: int, k: int, size: float = 100.0) -> Vector:
    """k eigenvalues near ``size`` (a little apart), the rest below 1."""
    spectrum = np.linspace(1.0, 0.5, d)
    spectrum[:k] = size * np.linspace(2.0, 1.0, k)
    return spectrum


def clustered(d: int, clusters: int = 3, spread: float = 1e-12) -> Vector:
    """Groups of eigenvalues that agree to ``spread``."""
    centres = 10.0 ** -np.sort(np.arange(d) % clusters)
    return np.sort(centres * (1 + spread * np.arange(d)))[::-1].copy()


def rank_deficient(d: int, rank: int) -> Vector:
    """``rank`` eigenvalues from 2 down to 1, then exact zeros."""
    spectrum = np.zeros(d)
    spectrum[:rank] = np.linspace(2.0, 1.0, rank)
    return spectrum


def spectra(d: int) -> dict[str, Vector]:
    """One of each kind, descending, for table-driven tests."""
    return {
        "flat": flat(d),
        "power law 0.5": power_law(d, 0.5),
        "power law 2": power_law(d, 2.0),
        "gap": gap(d, max(1, d // 5)),
        "clustered": clustered(d),
        "rank deficient": rank_deficient(d, max(1, d // 3)),
        "zero": np.zeros(d),
    }


def orthonormal_rows(k: int, d: int, seed: int = 0) -> Matrix:
    """k random orthonormal rows of length d (Haar: the signs of R are taken out)."""
    Q, R = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))
    return np.ascontiguousarray((Q * np.sign(np.diag(R))).T)


def symmetric(spectrum: Vector, seed: int = 0) -> tuple[Matrix, Matrix]:
    """A symmetric matrix with this spectrum, and its eigenvectors as rows."""
    V = orthonormal_rows(len(spectrum), len(spectrum), seed)
    S = (V.T * spectrum) @ V
    return (S + S.T) / 2, V


def only_triangle(S: Matrix, *, lower: bool, rubbish: float = 7.0) -> Matrix:
    """S with the other triangle overwritten by ``rubbish``."""
    kept = np.tril(S) if lower else np.triu(S)
    other = np.triu(np.full_like(S, rubbish), 1) if lower else np.tril(np.full_like(S, rubbish), -1)
    return np.ascontiguousarray(kept + other)


def data_with_spectrum(
    n: int, spectrum: Vector, *, mean: float = 0.0, seed: int = 0, dtype: DTypeLike = np.float64
) -> tuple[NDArray[np.float64], Matrix]:
    """Rows whose sample covariance (divided by n - 1) has exactly this spectrum, up to rounding, and its axes.

    Needs n - 1 >= the number of non-zero eigenvalues. ``mean`` is added to every feature, so mean/std is
    ``mean / sqrt(spectrum.mean())``; the cast to ``dtype`` comes last.
    """
    d = len(spectrum)
    rank = int(np.count_nonzero(spectrum))
    if rank > n - 1:
        raise ValueError(f"{n} centred rows have rank {n - 1}, below the {rank} eigenvalues wanted")
    V = orthonormal_rows(d, d, seed)
    noise = np.random.default_rng(seed + 1).standard_normal((n, rank))
    U = np.linalg.qr(noise - noise.mean(0))[0]
    X = (U * np.sqrt(spectrum[:rank] * (n - 1))) @ V[:rank]
    return (X + mean).astype(dtype), V


def offset_data(
    n: int, d: int, *, mean: float, std: float = 1.0, seed: int = 0, dtype: DTypeLike = np.float32
) -> NDArray[np.float64]:
    """Independent normal features whose standard deviations fall from ``std`` to ``std / 10``, all with this mean."""
    scales = std * np.geomspace(1.0, 0.1, d)
    return (mean + scales * np.random.default_rng(seed).standard_normal((n, d))).astype(dtype)


def tiny_trailing(d: int, rank: int, size: float = 1e-12) -> Vector:
    """``rank`` eigenvalues from 2 down to 1, the rest at ``size``."""
    spectrum = np.full(d, size)
    spectrum[:rank] = np.linspace(2.0, 1.0, rank)
    return spectrum


def repeated(d: int, copies: int) -> Vector:
    """3, then ``copies`` times 2, then i^-1/2."""
    return np.concatenate([[3.0], np.full(copies, 2.0), power_law(d - copies - 1, 0.5)])


def solver_spectra(d: int) -> dict[str, Vector]:
    """:func:`spectra`, and what is hard for solvers that see a matrix through few products."""
    return {
        **spectra(d),
        "power law 1": power_law(d, 1.0),
        "power law 4": power_law(d, 4.0),
        "tiny trailing": tiny_trailing(d, max(1, d // 10)),
        "repeated": repeated(d, d // 3),
    }


class CountedProduct:
    """A symmetric matrix seen only through counted products, computed in ``dtype`` as a pass over data would."""

    def __init__(self, A: Matrix, dtype: DTypeLike = np.float64) -> None:
        self.rounded = A.astype(dtype)
        self.A = self.rounded.astype(np.float64)
        self.precision = float(np.finfo(dtype).eps)
        self.trace = float(np.trace(self.A))
        self.refinable = False
        self.count = 0
        self.columns = 0

    def __call__(self, Q: Matrix) -> Matrix:
        self.count += 1
        self.columns += Q.shape[1]
        return (self.rounded @ Q.astype(self.rounded.dtype)).astype(np.float64)

    multiply = __call__

    def eigenvalues(self) -> Vector:
        """The true ones, descending, of the matrix as rounded."""
        return np.maximum(np.linalg.eigvalsh(self.A)[::-1], 0.0)


def named(value: object) -> str:
    """Return a name for a case: without the addresses of functions, so that every process collects the same names."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def sketch_of(kind: str = "gaussian", n: int = 200, q: int = 40, seed: int = 0) -> Matrix:
    """A block W (n, q) to sketch with: Gaussian, orthonormal, rank-deficient or badly scaled."""
    W = np.random.default_rng(seed).standard_normal((n, q)) / np.sqrt(q)
    if kind == "orthonormal":
        W = np.linalg.qr(W)[0]
    elif kind == "rank-deficient":
        W[:, 1], W[:, 2] = W[:, 0], 0.0
    elif kind == "badly scaled":
        W *= np.geomspace(1.0, 1e-4, q)
    return W


def assert_covered(bounds: Matrix, values: Vector | float, slack: Vector | float = 0.0) -> None:
    """Every value lies between its two bounds, but for the slack."""
    lower, upper = bounds.T
    assert (lower <= values + slack).all()
    assert (values <= upper + slack).all()
