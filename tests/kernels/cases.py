"""One row per kernel: what the shared suite of test_kernels.py needs of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Vector
from bigpca.kernels.algebra import normalized, rbf_of
from bigpca.kernels.base import Kernel
from bigpca.kernels.custom import FromFunction
from bigpca.kernels.distance import RBF, Laplacian
from bigpca.kernels.dot import Cosine, Linear, Polynomial, Tanh

Rows = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A kernel, rows that suit it, and its formula in plain NumPy.

    ``rows(seed, n)`` returns float64 rows (n, d); those of psd=False have a clearly negative eigenvalue at some seed <
    5. ``oracle(x, y)`` takes two float64 rows. Tolerances are relative to the largest entry of the kernel matrix.
    """

    name: str
    kernel: Kernel
    rows: Callable[[int, int], Rows]
    oracle: Callable[[Vector, Vector], float]
    psd: bool
    tolerance64: float
    tolerance32: float


D = 6
EPS = float(np.finfo(np.float64).eps)
EPS32 = float(np.finfo(np.float32).eps)
# Sums of products and a few operations on them: some dozens of roundings, times the exponents and factors below.
T64, T32 = 100 * EPS, 30 * EPS32


def normal(seed: int, n: int) -> Rows:
    return np.random.default_rng(seed).standard_normal((n, D))


def wide(seed: int, n: int) -> Rows:
    """With more columns than one tile of float64 is deep, and one compiled run long."""
    return np.random.default_rng(seed).standard_normal((n, 1300)) / 20


def pixels(seed: int, n: int) -> Rows:
    return np.random.default_rng(seed).integers(0, 256, (n, 200)).astype(float)


def squared(x: Vector, y: Vector) -> float:
    return float(((x - y) ** 2).sum())


def l1(x: Vector, y: Vector) -> float:
    return float(np.abs(x - y).sum())


def dot(x: Vector, y: Vector) -> float:
    return float(x @ y)


def first_column(rows: Rows) -> Any:
    return 1 + rows[:, 0] ** 2


def f(x: Vector) -> float:
    return float(1 + x[0] ** 2)


def product_function(A: Rows, B: Rows) -> Rows:
    return np.asarray((A @ B.T) ** 3)


def rbf(x: Vector, y: Vector) -> float:
    return math.exp(-0.3 * squared(x, y))


def tanh(x: Vector, y: Vector) -> float:
    return math.tanh(0.5 * dot(x, y) - 1)


def rbf_of_tanh(x: Vector, y: Vector) -> float:
    return math.exp(-0.3 * (tanh(x, x) + tanh(y, y) - 2 * tanh(x, y)))


def normalized_square(x: Vector, y: Vector) -> float:
    return (dot(x, y) + 1) ** 2 / ((dot(x, x) + 1) * (dot(y, y) + 1))


RBF3, TANH = RBF(gamma=0.3), Tanh(gamma=0.5, coef0=-1)
CASES = [
    Case("linear", Linear(), normal, dot, True, T64, T32),
    Case("linear plus constant", Linear(2.0), normal, lambda x, y: dot(x, y) + 2, True, T64, T32),
    Case("linear minus constant", Linear(-2.0), normal, lambda x, y: dot(x, y) - 2, False, T64, T32),
    Case("linear, wide", Linear(), wide, dot, True, T64, T32),
    Case("polynomial", Polynomial(), normal, lambda x, y: (dot(x, y) / D + 1) ** 3, True, T64, T32),
    Case("polynomial of degree 5", Polynomial(5, gamma=2, coef0=0), normal, lambda x, y: (2 * dot(x, y)) ** 5, True,
        T64, T32),
    Case("polynomial of degree 5 on pixels", Polynomial(5, gamma=1), pixels, lambda x, y: (dot(x, y) + 1) ** 5, True,
        T64, T32),
    Case("polynomial, coef0 < 0", Polynomial(2, gamma=1, coef0=-3), normal, lambda x, y: (dot(x, y) - 3) ** 2, False,
        T64, T32),
    Case("tanh", TANH, normal, tanh, False, T64, T32),
    Case("tanh, wide", Tanh(coef0=0.0, gamma=2.0), wide, lambda x, y: math.tanh(2 * dot(x, y)), False, T64, T32),
    Case("cosine", Cosine(), normal, lambda x, y: dot(x, y) / math.sqrt(dot(x, x) * dot(y, y)), True, T64, T32),
    Case("rbf", RBF(), normal, lambda x, y: math.exp(-squared(x, y) / D), True, T64, T32),
    Case("rbf, wide", RBF(gamma=0.2), wide, lambda x, y: math.exp(-0.2 * squared(x, y)), True, T64, T32),
    Case("rbf, narrow", RBF(gamma=20.0), normal, lambda x, y: math.exp(-20 * squared(x, y)), True, 1000 * EPS, T32),
    Case("laplacian", Laplacian(), normal, lambda x, y: math.exp(-l1(x, y) / D), True, T64, T32),
    Case("laplacian, wide", Laplacian(gamma=0.02), wide, lambda x, y: math.exp(-0.02 * l1(x, y)), True, T64, T32),
    Case("laplacian, l2", Laplacian(0.5, "l2"), normal, lambda x, y: math.exp(-0.5 * squared(x, y) ** 0.5), True, 1e-12,
        1e-5),
    Case("laplacian, l2, wide", Laplacian(0.5, "l2"), wide, lambda x, y: math.exp(-0.5 * squared(x, y) ** 0.5), True,
        1e-12, 1e-5),
    Case("sum", RBF3 + Linear(), normal, lambda x, y: rbf(x, y) + dot(x, y), True, T64, T32),
    Case("weighted sum", 2 * RBF3 + 3 * Linear() ** 2 + 1, normal, lambda x, y: 2 * rbf(x, y) + 3 * dot(x, y) ** 2 + 1,
        True, T64, T32),
    Case("difference", RBF3 - Linear(), normal, lambda x, y: rbf(x, y) - dot(x, y), False, T64, T32),
    Case("multiple", 0.5 * Linear(), normal, lambda x, y: dot(x, y) / 2, True, T64, T32),
    Case("negative multiple", -1 * RBF3, normal, lambda x, y: -rbf(x, y), False, T64, T32),
    Case("sum with tanh", RBF3 + TANH, normal, lambda x, y: rbf(x, y) + tanh(x, y), False, T64, T32),
    Case("product", RBF3 * Linear(1.0), normal, lambda x, y: rbf(x, y) * (dot(x, y) + 1), True, T64, T32),
    Case("product of linears", Linear() * (2 * Linear(1.0)), normal, lambda x, y: 2 * dot(x, y) * (dot(x, y) + 1), True,
        T64, T32),
    Case("power", Linear() ** 3, normal, lambda x, y: dot(x, y) ** 3, True, T64, T32),
    Case("fractional power", Polynomial(2, gamma=1, coef0=0) ** 0.25, normal, lambda x, y: abs(dot(x, y)) ** 0.5, False,
        T64**0.5, T32**0.5),
    Case("square of tanh", TANH**2, normal, lambda x, y: tanh(x, y) ** 2, False, T64, T32),
    Case("rbf of linear", rbf_of(Linear(), 0.3), normal, rbf, True, T64, T32),
    Case("rbf of tanh", rbf_of(TANH, 0.3), normal, rbf_of_tanh, False, T64, T32),
    Case("normalized", normalized(Polynomial(2, gamma=1.0, coef0=1.0)), normal, normalized_square, True, T64, T32),
    Case("function", FromFunction(product_function, True), normal, lambda x, y: dot(x, y) ** 3, True, T64, T32),
]  # fmt: skip
