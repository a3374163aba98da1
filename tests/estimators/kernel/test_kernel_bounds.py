"""Every bound on an eigenvalue of HKH holds: 100 random cases, all approximations, against the
whole matrix in long double.

The bounds contain their rounding slack, so the tests add none: only what the oracle itself owes to rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca import ApproximateKernelPCA, KernelPCA, NystromKernelPCA
from bigpca.kernels import RBF, ChiSquare, Cosine, HistogramIntersection, Kernel, Laplacian, Linear, Polynomial, Tanh
from bigpca.sketches import SRHT, FeatureHash, Gaussian, SparseSign

Array = NDArray[Any]
Wide = NDArray[np.longdouble]
L = np.longdouble
BATCHES, CASES = 10, 10
SAMPLINGS = ("rpcholesky", "uniform", "diagonal", "column-norm")
CORES = ("nystrom", "tutorial", "ritz")
SKETCHES = (Gaussian, partial(SparseSign, nnz=1), FeatureHash, SRHT)
pytestmark = [
    pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.usefixtures("float32_products"),
]


def distances(X: Wide, power: int) -> Wide:
    """``sum_i |x_i - y_i|^power`` (n, n)."""
    found: Wide = sum(np.abs(x[:, None] - x) ** power for x in X.T)
    return found


def about_mean(X: Wide) -> Wide:
    about: Wide = X - X.mean(axis=0)
    return about @ about.T


def unit_rows(X: Wide) -> Wide:
    rows: Wide = X / np.sqrt((X**2).sum(axis=1, keepdims=True))
    return rows


def chi_square(X: Wide) -> Wide:
    found: Wide = sum(np.outer(x, x) / np.maximum(x[:, None] + x, np.finfo(L).tiny) for x in X.T)
    return found


@dataclass(frozen=True)
class Choice:
    """A kernel for rows of a variance and a mean square, and its matrix (or that less a constant) in long double."""

    make: Callable[[float, float], Any]
    matrix: Callable[[Wide, Any], Wide]
    histograms: bool = False


def gaussian(X: Wide, k: RBF) -> Wide:
    return np.expm1(-L(k.gamma) * distances(X, 2))


def laplacian(X: Wide, k: Laplacian) -> Wide:
    return np.expm1(-L(k.gamma) * (distances(X, 1) if k.norm == "l1" else np.sqrt(distances(X, 2))))


def power(X: Wide, k: Polynomial) -> Wide:
    base = L(k.gamma) * (X @ X.T) + L(k.coef0)
    return np.multiply.reduce([base] * k.degree)


def tanh(X: Wide, k: Tanh) -> Wide:
    return np.tanh(L(k.gamma) * (X @ X.T) + L(k.coef0))


DEFINITE: dict[str, Choice] = {
    "rbf": Choice(lambda v, s: RBF(1 / v), gaussian),
    "wide rbf": Choice(lambda v, s: RBF(1e-3 / v), gaussian),
    "narrow rbf": Choice(lambda v, s: RBF(30 / v), gaussian),
    "laplacian": Choice(lambda v, s: Laplacian(0.2 / np.sqrt(v)), laplacian),
    "laplacian, l2": Choice(lambda v, s: Laplacian(1e-2 / np.sqrt(v), "l2"), laplacian),
    "degree 5": Choice(lambda v, s: Polynomial(5, gamma=1 / s, coef0=1.0), power),
    "degree 5 of raw rows": Choice(lambda v, s: Polynomial(5, gamma=1.0, coef0=0.0), power),
    "linear": Choice(lambda v, s: Linear(), lambda X, k: about_mean(X)),
    "cosine": Choice(lambda v, s: Cosine(), lambda X, k: about_mean(unit_rows(X))),
    "sum": Choice(
        lambda v, s: RBF(1 / v) + 0.1 / s * Linear(),
        lambda X, k: gaussian(X, k.kernels[0]) + L(k.weights[1]) * about_mean(X),
    ),
    "chi-square": Choice(lambda v, s: ChiSquare(), lambda X, k: chi_square(X), True),
    "intersection": Choice(
        lambda v, s: HistogramIntersection(), lambda X, k: sum(np.minimum(x[:, None], x) for x in X.T), True
    ),
}
INDEFINITE: dict[str, Choice] = {
    "tanh": Choice(lambda v, s: Tanh(1 / s, 0.0), tanh),
    "shifted tanh": Choice(lambda v, s: Tanh(1 / s, -1.0), tanh),
    "nearly linear tanh": Choice(lambda v, s: Tanh(1e-3 / s, 0.0), tanh),
    "square": Choice(lambda v, s: Polynomial(2, gamma=1 / s, coef0=-0.5), power),
    "cube": Choice(lambda v, s: Polynomial(3, gamma=1 / s, coef0=-3.0), power),
    "difference": Choice(
        lambda v, s: RBF(1 / v) - 0.5 * RBF(30 / v),
        lambda X, k: gaussian(X, k.kernels[0]) + L(k.weights[1]) * gaussian(X, k.kernels[1]),
    ),
    "negative": Choice(lambda v, s: -1.0 * RBF(1 / v), lambda X, k: -gaussian(X, k.kernels[0])),
}


@dataclass(frozen=True)
class Truth:
    """HKH (n, n), its eigenvalues, and how far rounding may have taken them from those of the rows."""

    A: Array
    values: Array
    rounding: float


def truth(rows: Array, kernel: Kernel, choice: Choice) -> Truth:
    K = choice.matrix(rows.astype(L), kernel)
    left = K - K.mean(axis=0)
    A = (left - left.mean(axis=1, keepdims=True)).astype(np.float64)
    A = (A + A.T) / 2
    values = np.linalg.eigvalsh(A)[::-1]
    own = 10 * float(np.finfo(L).eps) * float(np.sqrt((K**2).sum()))
    return Truth(A, values, own + len(rows) * float(np.finfo(np.float64).eps) * float(np.abs(values).max()))


@dataclass(frozen=True)
class Case:
    """Rows, a kernel, and models to be held against the whole matrix."""

    name: str
    rows: Array
    kernel: Any
    truth: Truth
    seed: int
    k: int
    m: int
    q: int

    def models(self) -> Iterator[tuple[str, Any]]:
        """All routes to bounds: a sketch by every core, the iteration, and landmarks by two samplings."""
        k, seed = self.k, self.seed
        sketch = SKETCHES[seed % 4](self.q, random_state=seed)
        for core in CORES:
            yield core, ApproximateKernelPCA(k, kernel=self.kernel, sketch=sketch, approximation=core)
        passes = 2 + seed % 5
        yield ("krylov", KernelPCA(k, kernel=self.kernel, solver="krylov", random_state=seed, max_passes=passes))
        if self.kernel.positive_semidefinite:
            for sampling in self.samplings():
                yield (
                    sampling,
                    NystromKernelPCA(k, kernel=self.kernel, n_landmarks=self.m, sampling=sampling, random_state=seed),
                )

    def samplings(self) -> tuple[str, ...]:
        chosen = (SAMPLINGS[self.seed % 4], SAMPLINGS[(self.seed + 1 + self.seed // 4 % 3) % 4])
        # Means of clusters: distinct rows enough for as many, and of zeros there is no direction.
        distinct = len(np.unique(self.rows, axis=0)) == len(self.rows)
        return (*chosen, "kmeans") if self.seed % 10 == 0 and distinct else chosen


def random_rows(rng: np.random.Generator, n: int) -> Array:
    """Rows of any scale and offset; duplicated, nearly duplicated, of low rank, or with outliers."""
    d = int(rng.integers(1, 41))
    X = rng.standard_normal((n, d)) * 10 ** rng.uniform(-1, 1, d)
    kind = rng.choice(
        ["plain", "duplicates", "near duplicates", "low rank", "outliers"], p=[0.4, 0.15, 0.15, 0.15, 0.15]
    )
    if kind == "low rank":
        X = rng.standard_normal((n, 2)) @ rng.standard_normal((2, d))
    if kind == "outliers":
        X[: max(1, n // 50)] *= 10 ** rng.uniform(1, 3)
    if "duplicates" in kind:
        X = X[rng.integers(0, max(2, n // 4), n)]
    if kind == "near duplicates":
        X = X * (1 + 10.0 ** -rng.integers(2, 12) * rng.standard_normal(X.shape))
    if rng.random() < 0.4:
        X = X + rng.uniform(-30, 30)
    return X * 10 ** rng.uniform(-3, 3)


def case_of(seed: int, least: int = 20, most: int = 200) -> Case:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(least, most + 1))
    table = DEFINITE if rng.random() < 0.7 else INDEFINITE
    name = str(rng.choice(list(table)))
    dtype = "f4" if seed % 2 else "f8"
    rows = random_rows(rng, n).astype(dtype)
    choice = table[name]
    if choice.histograms:
        rows = np.abs(rows)
    wide = rows.astype(np.float64)
    variance = float(wide.var(axis=0).sum()) or 1.0  # of few rows that are all the same one
    kernel = choice.make(variance, float((wide**2).sum(axis=1).mean()))
    k = int(rng.integers(1, min(6, n)))
    m, q = int(rng.integers(k, n + 1)), int(rng.integers(max(k, min(8, n)), max(k, min(60, n)) + 1))
    label = f"case {seed}: {name}, n = {n}, d = {rows.shape[1]}, {dtype}, k = {k}, m = {m}, q = {q}"
    return Case(label, rows, kernel, truth(rows, kernel, choice), seed, k, m, q)


def eigenvalue_faults(model: Any, known: Truth) -> list[str]:
    """Eigenvalues outside their bounds, and bounds that are none."""
    lower, upper = model.eigenvalue_bounds_.T
    values = known.values[: len(lower)]
    found = [
        f"eigenvalue {i} is {values[i]:.17g} < {lower[i]:.17g}" for i in np.flatnonzero(lower > values + known.rounding)
    ]
    found += [
        f"eigenvalue {i} is {values[i]:.17g} > {upper[i]:.17g}" for i in np.flatnonzero(upper < values - known.rounding)
    ]
    if not np.isfinite(model.eigenvalue_bounds_).all() or (np.diff(lower) > 0).any() or (np.diff(upper) > 0).any():
        found.append(f"bounds {model.eigenvalue_bounds_.tolist()}")
    return found


def captured_faults(model: Any, rows: Array, known: Truth) -> list[str]:
    """The variance along the model's axes, outside its bounds."""
    values, scores = model.eigenvalues_, None
    if (
        getattr(model, "approximation", "") == "tutorial"
    ):  # nearly parallel axes: what separates them is lost in their scores
        values, scores = np.ones(model.n_components_), model.eigenvectors_
    kept = values > 1e-9 * values[0] if values[0] > 0 else np.zeros(len(values), bool)
    scores = model.transform(rows.astype(np.float64)) if scores is None else scores
    axes = np.linalg.qr(scores[:, kept] / np.sqrt(values[kept]))[0]
    captured = float(np.trace(axes.T @ known.A @ axes))
    total = model.total_variance_ * (len(rows) - 1)
    least, most = model.captured_variance_bounds_ * total
    least -= float(values[~kept].sum())
    if most >= total * (1 - 1e-9):  # all of it, whatever rounding makes of the trace
        most = max(most, float(np.trace(known.A)))
    inside = least - known.rounding <= captured <= most + known.rounding
    return [] if inside else [f"captured {captured:.17g} is outside {least:.17g} to {most:.17g}"]


def faults(case: Case) -> tuple[int, list[str]]:
    """How many models were held against the whole matrix, and all that was wrong."""
    found: list[str] = []
    count = 0
    for name, model in case.models():
        model.fit(case.rows)
        count += 1
        wrong = eigenvalue_faults(model, case.truth)
        if case.kernel.positive_semidefinite:
            wrong += captured_faults(model, case.rows, case.truth)
        found += [f"{case.name}, {name}: {what}" for what in wrong]
    return count, found


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_eigenvalue_bound_holds_on_100_of_100_random_cases(batch: int) -> None:
    models, wrong = 0, []
    for seed in range(batch * CASES, (batch + 1) * CASES):
        count, found = faults(case_of(seed))
        models, wrong = models + count, wrong + found
    assert wrong == []
    assert models >= 4 * CASES


def test_they_hold_for_a_handful_of_rows() -> None:
    wrong = [what for seed in range(1000, 1015) for what in faults(case_of(seed, 2, 19))[1]]
    assert wrong == []


# What the bounds are worth

# Largest width of the first three intervals, as a share of the eigenvalue, and of the captured
# variance: 300 rows, 5 columns.
WIDTHS: dict[str, dict[str, tuple[float, float]]] = {
    "rbf": {"rpcholesky": (0.1, 0.02), "nystrom": (0.05, 0.02), "ritz": (0.01, 0.005), "krylov": (1e-5, 1e-5)},
    "wide rbf": {"rpcholesky": (1e-5, 1e-6), "nystrom": (1e-8, 1e-8), "ritz": (1e-9, 1e-9), "krylov": (1e-9, 1e-9)},
    "degree 5": {"rpcholesky": (1e-6, 1e-7), "nystrom": (1e-6, 1e-7), "ritz": (1e-7, 1e-8), "krylov": (1e-6, 1e-7)},
    "laplacian": {"rpcholesky": (1.0, 0.15), "nystrom": (0.3, 0.1), "ritz": (0.15, 0.05), "krylov": (1e-5, 1e-5)},
    "linear": {"rpcholesky": (1e-9, 1e-10), "nystrom": (1e-9, 1e-10), "ritz": (1e-9, 1e-10), "krylov": (1e-9, 1e-10)},
    "shifted tanh": {"ritz": (0.1, 1.0), "tutorial": (0.1, 1.0), "krylov": (0.1, 1.0)},
}


@pytest.mark.parametrize("name", WIDTHS)
def test_bounds_are_narrow_where_landmarks_columns_or_sweeps_are_many(name: str) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 5)) * np.geomspace(1, 0.1, 5) + 3
    choice = (DEFINITE | INDEFINITE)[name]
    kernel = choice.make(float(rows.var(axis=0).sum()), float((rows**2).sum(axis=1).mean()))
    values = truth(rows, kernel, choice).values[:3]
    sketch = Gaussian(100)
    for route, (widest, captured) in WIDTHS[name].items():
        model: Any = ApproximateKernelPCA(3, kernel=kernel, sketch=sketch, approximation=route)
        if route == "rpcholesky":
            model = NystromKernelPCA(3, kernel=kernel, n_landmarks=150)
        if route == "krylov":
            model = KernelPCA(3, kernel=kernel, solver="krylov", tol=1e-6, max_passes=30)
        model.fit(rows)
        width = model.eigenvalue_bounds_[:, 1] - model.eigenvalue_bounds_[:, 0]
        assert (width <= widest * values).all(), route
        if kernel.positive_semidefinite:
            assert np.diff(model.captured_variance_bounds_)[0] <= captured, route


# Kernels that magnify the rounding of rows


@pytest.mark.parametrize("seed", [2, 3, 5])
@pytest.mark.parametrize(("name", "width"), [("l1", 0.01), ("l2", 0.3), ("rbf", 0.1), ("sum", 0.01)])
def test_bounds_cover_the_rounding_of_a_kernel_far_narrower_than_the_rows_are_wide(
    name: str, width: float, seed: int
) -> None:
    """Rows in clusters of some share of the kernel's width, 1e-6 of their distances: entries are known to 1e-10 at
    best.
    """
    rng, gamma = np.random.default_rng(seed), 1e6
    centres, within = rng.standard_normal((5, 4)), rng.standard_normal((100, 4)) * width / gamma
    X = centres[rng.integers(0, 5, 100)] + within + 0.1
    wide = {"l1": distances(X.astype(L), 1), "squares": distances(X.astype(L), 2)}
    kernel, K = {
        "l1": (Laplacian(gamma), np.exp(-L(gamma) * wide["l1"])),
        "l2": (Laplacian(gamma, "l2"), np.exp(-L(gamma) * np.sqrt(wide["squares"]))),
        "rbf": (RBF(gamma**2), np.exp(-(L(gamma) ** 2) * wide["squares"])),
        "sum": (0.5 * Laplacian(gamma) + RBF(1.0) * Laplacian(gamma), None),
    }[name]
    if K is None:
        K = np.exp(-L(gamma) * wide["l1"]) * (0.5 + np.exp(-wide["squares"]))
    left = K - K.mean(axis=0)
    values = np.linalg.eigvalsh((left - left.mean(axis=1, keepdims=True)).astype(np.float64))[::-1]
    known = Truth(K, values, 100 * float(np.finfo(np.float64).eps) * values[0])
    for model in (
        KernelPCA(4, kernel=kernel, solver="krylov", tol=1e-6),
        ApproximateKernelPCA(4, kernel=kernel, sketch=Gaussian(40), approximation="ritz"),
        NystromKernelPCA(4, kernel=kernel, n_landmarks=40),
    ):
        assert eigenvalue_faults(model.fit(X), known) == []
        assert (np.diff(model.eigenvalue_bounds_)[:, 0] < 0.1 * values[0]).all() or isinstance(model, NystromKernelPCA)


NARROW: dict[str, Callable[..., Kernel]] = {
    "rbf": RBF, "l2": partial(Laplacian, norm="l2"), "l1": Laplacian, "sum": lambda gamma: 1.0 * RBF(gamma)
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "unit", "gamma"),
    [*((name, 1.0, gamma) for name in NARROW for gamma in (1e12, 1e24, 1e26, 1e32, 1e40, 1e290)),
     *((name, unit, 1e26) for name in NARROW for unit in (1e-8, 1e8))],
)  # fmt: skip
def test_kernels_narrower_than_rounding_tell_rows_apart(name: str, unit: float, gamma: float) -> None:
    """K is the identity to the bit, but for rows that are equal: rounding does not bring others nearer."""
    make = NARROW[name]
    rows = np.random.default_rng(0).standard_normal((60, 3)) * unit
    rows[[7, 9]] = rows[3]
    K = np.eye(60)
    K[np.ix_([3, 7, 9], [3, 7, 9])] = 1
    values = np.linalg.eigvalsh(K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean())[::-1][:2]
    for model in (
        KernelPCA(2, kernel=make(gamma=gamma / unit**2), solver="krylov", max_passes=20),
        ApproximateKernelPCA(2, kernel=make(gamma=gamma / unit**2)),
        NystromKernelPCA(2, kernel=make(gamma=gamma / unit**2), n_landmarks=60),
    ):
        model.fit(rows)
        np.testing.assert_allclose(model.eigenvalues_, values, rtol=0.05)  # of a flat spectrum, by a sketch of it
        lower, upper = model.eigenvalue_bounds_.T
        assert (0.95 * values <= lower).all()
        assert (lower <= values * (1 + 1e-12)).all()
        assert (values * (1 - 1e-12) <= upper).all()
