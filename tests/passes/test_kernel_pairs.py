"""One sweep over a kernel matrix is K, its products, its trace and its norms, in the reads and
evaluations that were counted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import polynomial_kernel, sigmoid_kernel

import bigpca as bp
from bigpca import kernels
from bigpca.arrays import mirror_upper
from bigpca.engine.events import Event, GroupEvent, PassEvent
from bigpca.engine.run import Run
from bigpca.passes import sweeps
from bigpca.passes.accumulators.all_pairs import DotPanels, KernelProduct
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import Sweep, kernel_layout
from tests.builders import offset_data
from tests.estimators.stores import stored, unreadable
from tests.operators.counting import Reads
from tests.operators.test_covariance import CHUNKINGS, given

N, D, L = 400, 24, 4
Array = NDArray[Any]
EPS = {"f4": 2.0**-23, "f8": 2.0**-52}


def rbf(X: Array, gamma: float = 0.05) -> Array:
    """By differences, which an offset costs no digits."""
    return np.asarray(np.exp(-gamma * cdist(X, X, "sqeuclidean")))


def chi_square(X: Array) -> Array:
    total = np.zeros((len(X), len(X)))
    for x in X.T:
        total += x[:, None] * x / (x[:, None] + x)
    return total


KERNELS: dict[str, tuple[kernels.Kernel, Callable[[Array], Array]]] = {
    "rbf": (kernels.RBF(0.05), rbf),
    "laplacian": (kernels.Laplacian(0.02), lambda X: np.exp(-0.02 * cdist(X, X, "cityblock"))),
    "polynomial": (
        kernels.Polynomial(3, gamma=0.1, coef0=1.0),
        lambda X: polynomial_kernel(X, gamma=0.1, coef0=1.0, degree=3),
    ),
    "tanh": (kernels.Tanh(0.05, -0.5), lambda X: sigmoid_kernel(X, gamma=0.05, coef0=-0.5)),
    "chi square": (kernels.ChiSquare(), chi_square),
    "sum": (kernels.RBF(0.05) + 2 * kernels.Linear(), lambda X: rbf(X) + 2 * X @ X.T),
}


def sweep(X: da.Array, kernel: kernels.Kernel, template: Any, **options: Any) -> Any:
    rows = Rows.of(X)
    shift = np.asarray(X[: min(50, len(X))]).astype("f8").mean(axis=0)
    return Sweep.of_pairs(rows, kernel, "kernel", template)(Run(**options), shift=shift)


def factor(n: int, columns: int = L) -> Array:
    return np.random.default_rng(3).standard_normal((n, columns))


@pytest.fixture
def many_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data as if it were large: 16 panels of 25 rows."""
    monkeypatch.setattr(sweeps, "MIN_TILE", 16)


def inputs(X: Array, folder: Path) -> dict[str, da.Array]:
    lazy = da.from_array(X, chunks=(70, 11))
    made = {chunking: given(X, chunking, folder) for chunking in CHUNKINGS}
    return made | {"tiny": stored(folder, X, (3, len(X[0]))), "persisted": lazy.persist(), "mapped": (lazy * 2) / 2}


@pytest.mark.parametrize(
    ("name", "offset", "dtype"),
    [*((name, 0.0, "f4") for name in KERNELS), ("rbf", 0.0, "f8"), ("rbf", 1e3, "f4"), ("polynomial", 1e3, "f8")],
)
def test_a_sweep_is_the_product_with_the_whole_matrix_however_it_is_chunked(
    name: str, offset: float, dtype: str, many_tiles: None, tmp_path: Path, float32_products: None
) -> None:
    kernel, oracle = KERNELS[name]
    X = offset_data(N, D, mean=offset, dtype=dtype)
    X = np.abs(X) if name == "chi square" else X
    K, V = oracle(X.astype("f8")), factor(N)
    tolerance = 100 * EPS[dtype]  # sums of 24 products, taken to a power of 3 and summed over tiles
    made = inputs(X, tmp_path)
    for chunking in made if name == "rbf" else ("rows", "ragged"):
        found: KernelProduct = sweep(made[chunking], kernel, KernelProduct(N, L, V, squared=True))
        size = np.linalg.norm(K, 2) * np.linalg.norm(V, axis=0)
        assert (np.linalg.norm(found.product - K @ V, axis=0) <= tolerance * size).all(), chunking
        np.testing.assert_allclose(found.squares, (K**2).sum(axis=1), rtol=4 * tolerance, err_msg=chunking)
        assert found.diagonal == pytest.approx(np.trace(K), rel=tolerance)
        assert found.precision in (EPS[dtype], EPS["f8"])  # kernels decide for float64 where float32 does not do


@pytest.mark.parametrize("n", [2, 3, 127, 128, 129, 255, 257])
def test_every_entry_is_computed_whatever_the_number_of_rows(n: int) -> None:
    X = offset_data(n, 3, mean=1.0, dtype="f8")
    K = rbf(X, 0.3)
    found: DotPanels = sweep(bp.open(X), kernels.RBF(0.3), DotPanels(n, 3))
    np.testing.assert_allclose(mirror_upper(found.matrix()), K, rtol=0, atol=1e-14)
    product: KernelProduct = sweep(bp.open(X), kernels.RBF(0.3), KernelProduct(n, L, factor(n)))
    np.testing.assert_allclose(product.product, K @ factor(n), rtol=0, atol=1e-13 * n)


@pytest.mark.parametrize("chunks", [1, 7, 25, 26, 100, 399, 400])
def test_evaluations_are_those_that_the_layout_counts(chunks: int, many_tiles: None) -> None:
    X = da.from_array(offset_data(N, D, mean=0.0), chunks=(chunks, D)) + 0
    layout = kernel_layout(Rows.of(X), kernels.RBF(0.1))
    events: list[Event] = []
    found: KernelProduct = sweep(X, kernels.RBF(0.1), KernelProduct(N, L, factor(N)), progress=events.append)
    assert found.evaluations == layout.total_evaluations
    assert N * (N + 1) / 2 <= found.evaluations <= 0.55 * N**2
    (begun,) = [event for event in events if isinstance(event, PassEvent)]
    done = [event.evaluations for event in events if isinstance(event, GroupEvent)]
    assert begun.evaluations_total == sum(done) == found.evaluations
    assert min(done) > 0


@pytest.mark.parametrize("n", [16_384, 20_000, 60_000, 113_270, 10_000_000])
@pytest.mark.parametrize("chunk", [1_000, 16_384, 100_000_000])
@pytest.mark.parametrize("d", [2, 784])
def test_a_sweep_makes_at_most_055_of_all_pairs_and_its_panels_are_bounded(n: int, chunk: int, d: int) -> None:
    rows = Rows.of(unreadable(n, d, min(chunk, n), np.float32))
    layout = kernel_layout(rows, kernels.RBF(0.1))
    assert n * (n + 1) / 2 <= layout.total_evaluations <= 0.55 * n**2
    assert layout.reads[0][0] == 0
    assert layout.reads[-1][1] == n
    assert len(layout.segments) <= 64
    assert layout.read_rows * kernels.RBF(0.1).prepared_bytes(d, 4) <= 2 * sweeps.PANEL_BYTES
    panels = len(layout.groups)
    assert panels >= 16
    assert (
        (panels + 1) / 2 - 1e-9
        <= layout.decoded_rows / layout.n_rows
        <= (panels + 1) / 2 + panels * min(1.0, chunk / n)
    )


@pytest.mark.parametrize("chunks", [(N, D), (150, D), (33, D), (5, D), (200, 9)])
@pytest.mark.parametrize("tiles", [16, 128])
def test_each_chunk_is_decoded_once_by_every_panel_that_needs_it(
    chunks: tuple[int, int], tiles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "MIN_TILE", tiles)
    X = stored(tmp_path, offset_data(N, D, mean=1.0), chunks)
    layout = kernel_layout(Rows.of(X), kernels.RBF(0.1))
    V, shift, rows = factor(N), np.ones(D), Rows.of(X)
    reads = Reads().watch(monkeypatch)
    kernel, template = kernels.RBF(0.1), KernelProduct(N, L, V)
    Sweep.of_pairs(rows, kernel, "kernel", template)(Run(), shift=shift)
    counts = reads.per_chunk((N, D), chunks)
    starts = np.array([start for start, _ in layout.reads])
    rows_of = [min(chunks[0], N - i) for i in range(0, N, chunks[0])]
    expected = [(starts < stop).sum() for stop in np.cumsum(rows_of)]
    assert (counts == np.array(expected)[:, None]).all()
    assert layout.decoded_rows / layout.n_rows == pytest.approx(np.average(expected, weights=rows_of))


def test_norms_of_rows_do_not_overflow_where_the_entries_do_not() -> None:
    X = offset_data(50, D, mean=0.0, dtype="f4") * np.float32(1e8)
    kernel = kernels.Polynomial(2, gamma=1.0, coef0=0.0)
    K = (X.astype("f8") @ X.astype("f8").T) ** 2
    assert K.max() > 1e34  # squares are beyond float32
    found: KernelProduct = sweep(bp.open(X), kernel, KernelProduct(50, L, factor(50), squared=True))
    np.testing.assert_allclose(found.squares, (K**2).sum(axis=1), rtol=1e-5)


def test_the_worst_precision_of_panels_counts_and_all_evaluations() -> None:
    template = KernelProduct(10, 2, None)
    states = [template.fresh(0, 4), template.fresh(4, 10)]
    for i, state in enumerate(states):
        state.precision, state.evaluations = 0.5**i, i + 1
    for one, other in (states, states[::-1]):
        merged = template.with_arrays(one.merge(other).to_arrays())
        assert (merged.precision, merged.evaluations) == (1.0, 3)
