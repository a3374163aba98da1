"""Sweeps over a kernel matrix by other array libraries: K's products, counted as planned, with equal bits."""

import threading
from functools import cache
from math import isqrt
from pathlib import Path
from typing import Any, ClassVar

import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone

import bigpca as bp
from bigpca import devices, kernels
from bigpca.devices import Device
from bigpca.engine.events import PassEvent
from bigpca.engine.run import Run
from bigpca.errors import MemoryBudgetError
from bigpca.estimators.kernel.maps import scored_rows
from bigpca.passes import sweeps
from bigpca.passes.accumulators.all_pairs import DotPanels, KernelProduct
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import Sweep
from tests.builders import offset_data
from tests.estimators.stores import stored, unreadable
from tests.operators.counting import Reads
from tests.passes.kit import interrupt_after
from tests.passes.test_kernel_pairs import EPS, D, L, factor, rbf, sweep
from tests.passes.test_other_libraries import DEVICES, OnDevice, looks_of, require, watch
from tests.peaks import traced_peak

pytest.importorskip("array_api_compat", reason="other array libraries need array-api-compat")

N, STRICT = 500, "array_api_strict:device1"
KERNELS: dict[str, kernels.Kernel] = {
    "rbf": kernels.RBF(0.05),
    "near": kernels.RBF(1e4),  # near pairs from differences, by NumPy
    "polynomial": kernels.Polynomial(3, gamma=0.1, coef0=1.0),
    "linear": kernels.Linear(1.0),
    "cosine": kernels.Cosine(),
    "laplacian": kernels.Laplacian(0.05, norm="l2"),
    "near laplacian": kernels.Laplacian(1e6, norm="l2"),
    "tanh": kernels.Tanh(0.05, -0.5),
}


@pytest.fixture(autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data as if it were large: 11 tiles in four panels."""
    if "usual_sizes" not in request.fixturenames:
        for module in (sweeps, devices):
            monkeypatch.setattr(module, "DEPTH", 16)
        monkeypatch.setattr(Device, "tile_edge", lambda device, itemsize: isqrt(4 * 48**2 // itemsize))
        monkeypatch.setattr(sweeps, "PANEL_BYTES_THERE", N * (4 * D + 8) // 4)


@pytest.fixture
def usual_sizes() -> None:
    """Leave the sizes as they are."""


@cache
def rows() -> Any:
    return offset_data(N, D, mean=30.0, dtype="f4")


@pytest.mark.parametrize("precision", ["f4", "f8"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_sweep_is_the_product_with_the_whole_matrix(
    name: str, precision: str, request: pytest.FixtureRequest
) -> None:
    require(name)
    if precision == "f4":
        request.getfixturevalue("float32_products")
    X, V = rows() - 30, factor(N)
    for kind, kernel in KERNELS.items():
        K = kernel(X.astype("f8"))
        with bp.config(arithmetic=name):
            found, again = (sweep(bp.open(X), kernel, KernelProduct(N, L, V, squared=True)) for _ in range(2))
        tolerance = max(100 * EPS[precision], 40 * found.precision)  # the second is the slack of bounds
        size = np.linalg.norm(K, 2) * np.linalg.norm(V, axis=0)
        assert (np.linalg.norm(found.product - K @ V, axis=0) <= tolerance * size).all(), kind
        np.testing.assert_allclose(found.squares, (K**2).sum(axis=1), rtol=4 * tolerance, err_msg=kind)
        assert found.diagonal == pytest.approx(np.trace(K), rel=4 * EPS["f4"] if precision == "f4" else 1e-13), kind
        assert np.array_equal(again.product, found.product), kind


@pytest.mark.parametrize("chunks", [1, 7, 48, 100, N])
def test_evaluations_and_reads_are_those_that_the_plan_counts(
    chunks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, kernel, template = stored(tmp_path, rows(), (chunks, D)), kernels.RBF(0.1), KernelProduct(N, L, factor(N))
    reads, events = Reads().watch(monkeypatch), list[Any]()
    with bp.config(arithmetic=STRICT):
        opened = Rows.of(X)
        read = Sweep.of_pairs(opened, kernel, "kernel", template)
        cost, found = read.cost, read(Run(progress=events.append), shift=np.ones(D))
    assert len(cost.layout.decoded) > 4
    assert found.evaluations == cost.evaluations == next(e.evaluations_total for e in events if type(e) is PassEvent)
    assert N * (N + 1) / 2 <= found.evaluations <= 0.56 * N**2
    (counts,) = reads.per_chunk((N, D), (chunks, D)).T
    lengths = [min(chunks, N - i) for i in range(0, N, chunks)]
    assert cost.reads == pytest.approx(np.average(counts, weights=lengths))


@pytest.mark.parametrize("n", [3000, 50_000, 1_000_000, 30_000_000])
@pytest.mark.parametrize("chunk", [1_000, 100_000_000])
@pytest.mark.parametrize("d", [16, 4096])
def test_tiles_are_large_and_panels_bounded(
    n: int, chunk: int, d: int, usual_sizes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bp.config(arithmetic=STRICT):
        cost = Sweep.of_pairs(
            Rows.of(unreadable(n, d, min(chunk, n), np.float32)), kernels.RBF(0.1), "kernel",
            KernelProduct(n, L, np.broadcast_to(0.0, (n, L))),
        ).cost  # fmt: skip
    layout, tile = cost.layout, cost.layout.slab_rows
    assert n * (n + 1) / 2 <= cost.evaluations <= (0.58 if n > 3000 else 0.7) * n**2
    assert tile == {3000: 1024, 50_000: 5120 if d == 16 else 7168}.get(n, 8192)  # of 16 columns in float64
    assert all(start % tile == 0 for start, _ in layout.reads)
    assert layout.read_rows * 4 * d <= sweeps.PANEL_BYTES_THERE + 4 * d * tile
    assert len(layout.segments) == min(64, len(layout.reads))
    assert cost.device_bytes < 20e9 * max(1, n / 5e6)
    assert (n, d) != (50_000, 16) or cost.reads == 1


def test_a_sweep_takes_each_row_in_once_a_panel_and_gives_products_out(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, waits = {"put": 0, "fetch": 0}, looks_of(monkeypatch)
    with bp.config(arithmetic=STRICT):
        template = KernelProduct(N, L, factor(N))
        cost = Sweep.of_pairs(Rows.of(bp.open(rows())), kernels.RBF(0.1), "kernel", template).cost
        watch(monkeypatch, moved)
        waits.clear()
        sweep(bp.open(rows()), kernels.RBF(0.1), KernelProduct(N, L, factor(N)))
    # Of each tile of rows of each panel, a look, its norms and its products.
    assert sum(count for count in waits if count > 1) == round(cost.reads * N) * (1 + L)
    assert waits.count(1) == sum(count > 1 for count in waits) / 2
    assert cost.reads * N * (4 * D + 8 * L) <= moved["put"] < cost.reads * N * 8 * (D + L + 8)
    products = cost.reads * N * 8 * L
    assert products <= moved["fetch"] < products + cost.reads * N * 8 + 1000  # and norms of rows


def test_a_whole_matrix_is_computed_there_and_fetched_once_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, kernel, template = looks_of(monkeypatch), kernels.RBF(0.1), DotPanels(N, D)
    with bp.config(arithmetic=STRICT):
        cost = Sweep.of_pairs(Rows.of(bp.open(rows())), kernel, "kernel", template).cost
        waits.clear()
        found = sweep(bp.open(rows()), kernel, template).matrix()
    np.testing.assert_allclose(np.triu(found), np.triu(rbf(rows().astype("f8"), 0.1)), rtol=0, atol=1e-12)
    # Of each tile of rows of each panel, a look and its norms; and the tiles of the panel.
    assert sum(count for count in waits if count > 1) == round(cost.reads * N) + cost.evaluations


def test_the_memory_of_a_device_is_planned_as_it_is_taken(usual_sizes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    n, columns = 3000, 20
    X, V = offset_data(n, D, mean=0.0, dtype="f4"), factor(n, columns)
    monkeypatch.setattr("bigpca.passes.reading.blocks.PRECISE_FLOPS", 0.0)
    with bp.config(arithmetic="array_api_strict"):
        kernel, template = kernels.RBF(0.1), KernelProduct(n, columns, V)
        planned = Sweep.of_pairs(Rows.of(bp.open(X)), kernel, "kernel", template).cost
        peak = traced_peak(lambda: sweep(bp.open(X), kernel, template))
        here = planned.state_bytes
        assert 0.7 * planned.device_bytes < peak - here < planned.device_bytes + 3 * here
        monkeypatch.setattr(Device, "memory", (planned.device_bytes, 16 << 30))
        with (
            dask.config.set(num_workers=1),
            pytest.raises(MemoryBudgetError, match=r"'kernel' takes 36[\d.]+ MiB of array_api_strict, and 18"),
        ):
            bp.KernelPCA(2, kernel="rbf", gamma=0.1, solver="krylov").fit(X)


class Watched(kernels.RBF):
    """Counts the threads that are in it at once."""

    busy: ClassVar[list[int]] = [0]
    most: ClassVar[list[int]] = [0]
    lock: ClassVar[threading.Lock] = threading.Lock()

    def prepare(self, rows: Any, shift: Any = None, first_row: int = 0) -> Any:
        with self.lock:
            self.busy[0] += 1
            self.most[0] = max(self.most[0], self.busy[0])
        found = super().prepare(rows, shift, first_row)
        threading.Event().wait(0.002)
        with self.lock:
            self.busy[0] -= 1
        return found


def test_no_time_is_planned_for_a_device(usual_sizes: None) -> None:
    with bp.config(arithmetic=STRICT), dask.config.set(num_workers=2):  # as many as NumPy's part, of two chunks, takes
        plan = bp.KernelPCA(3, kernel="rbf", gamma=0.1, solver="krylov").plan(
            unreadable(100_000, D, 50_000, np.float32)
        )
    assert plan.seconds is None
    assert plan.idle is None  # no chunks would make a device faster


def test_one_thread_at_a_time_has_a_device_compute() -> None:
    with bp.config(arithmetic=STRICT), dask.config.set(num_workers=4):
        sweep(bp.open(rows()), Watched(0.1), KernelProduct(N, L, factor(N)))
    assert Watched.most == [1]


FITTED = {
    "rbf": kernels.RBF(0.02),
    "polynomial": kernels.Polynomial(2, gamma=0.01, coef0=1.0),
    "cosine": kernels.Cosine(),
}


@pytest.mark.parametrize("precision", ["f4", "f8"])
@pytest.mark.parametrize("kind", [*FITTED, "tanh"])
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.filterwarnings("ignore:Tanh")
def test_a_fit_is_certified_and_its_bounds_hold(
    name: str, kind: str, precision: str, request: pytest.FixtureRequest
) -> None:
    require(name)
    if precision == "f4":
        request.getfixturevalue("float32_products")
    X, kernel = rows() - 30, {**FITTED, "tanh": kernels.Tanh(0.01, 0.1)}[kind]
    K = kernel(X.astype("f8"))
    expected = np.linalg.eigvalsh(K - K.mean(0) - K.mean(1)[:, None] + K.mean())[::-1][:4]
    with bp.config(arithmetic=name):
        model, again = (bp.KernelPCA(4, kernel=kernel, solver="krylov", tol=1e-3).fit(X) for _ in range(2))
    assert model.converged_
    low, high = model.eigenvalue_bounds_.T
    assert ((low <= expected) & (expected <= high)).all()
    np.testing.assert_allclose(model.eigenvalues_, expected, rtol=2e-3)
    assert np.array_equal(model.eigenvalues_, again.eigenvalues_)
    assert np.array_equal(model.eigenvectors_, again.eigenvectors_)
    assert any(note.startswith(f"multiplied by {name}") and "kernel" in note for note in model.plan_.notes)


@pytest.mark.parametrize(
    "model",
    [
        bp.ApproximateKernelPCA(3, kernel=FITTED["rbf"], approximation="ritz"),
        bp.KernelSupervisedPCA(2, kernel=FITTED["rbf"], solver="pairs"),
    ],
    ids=["sketch", "labels"],
)
def test_other_fits_by_sweeps_have_them_there(model: Any) -> None:
    labels = np.arange(N) % 3 if isinstance(model, bp.KernelSupervisedPCA) else None
    expected = clone(model).fit(rows(), labels)
    with bp.config(arithmetic=STRICT):
        found = model.fit(rows(), labels)
    assert any(note.startswith(f"multiplied by {STRICT}") for note in found.plan_.notes)
    np.testing.assert_allclose(found.eigenvalues_, expected.eigenvalues_, rtol=1e-9)


def test_rows_are_scored_in_two_precisions_there_in_tiles_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.concatenate([rows(), rows() + 1, rows() - 1])
    expansion = bp.KernelPCA(3, kernel="rbf", gamma=0.02, solver="krylov").fit(X)._result.expansion
    waits, sample = looks_of(monkeypatch), scored_rows(len(X))
    found = expansion.in_needed_precision(Device.of(STRICT))
    assert found.dtype == expansion.dtype == np.float32
    # Of each precision, norms of both sides and products, of one tile of pairs.
    assert sorted(waits) == sorted(2 * [sample, len(X), 3 * sample])


def test_a_run_that_was_stopped_within_a_sweep_goes_on_with_the_next_panel(tmp_path: Path) -> None:
    X, model = stored(tmp_path, rows(), (50, D)), bp.KernelPCA(3, kernel="rbf", gamma=0.02, solver="krylov")
    with bp.config(arithmetic=STRICT), dask.config.set(scheduler="sync"):
        whole = model.fit(X)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, checkpoint=tmp_path / "c", progress=interrupt_after(3))
        events: list[Any] = []
        found = model.fit(X, checkpoint=tmp_path / "c", progress=events.append)
    resumed = [e.groups_resumed for e in events if type(e) is PassEvent and e.name == "kernel"]
    assert 0 < resumed[0] < 4, resumed
    assert np.array_equal(found.eigenvectors_, whole.eigenvectors_)
    with pytest.warns(UserWarning, match="computed differently"):  # bits depend on the library
        model.fit(X, checkpoint=tmp_path / "c")


def test_rows_that_come_from_a_device_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    X, moved = da.from_array(rows(), chunks=(100, D)), {"put": 0, "fetch": 0}
    meta = np.empty((0, 0), "f4").view(OnDevice)
    there = X.map_blocks(lambda block: Device("array_api_strict", "device1").put(block), dtype="f4", meta=meta)
    monkeypatch.setattr("bigpca.passes.reading.readers.FIRST_BYTES", 4 * D)
    watch(monkeypatch, moved)
    kernel, template, given = kernels.RBF(0.1), KernelProduct(N, L, factor(N)), Rows.of(there)
    read = Sweep.of_pairs(given, kernel, "kernel", template)
    cost, found = read.cost, read(Run(), shift=np.full(D, 30.0))
    np.testing.assert_allclose(found.product, rbf(rows().astype("f8"), 0.1) @ factor(N), rtol=0, atol=1e-9)
    assert moved["fetch"] < cost.reads * 8 * (N * (L + 1) + 10 * D)  # products, norms and sums, but no rows
