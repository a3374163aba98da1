"""Blocks multiplied by other array libraries: the same numbers, what is transferred, and what is rejected."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from dask.highlevelgraph import HighLevelGraph
from sklearn.base import clone

import bigpca as bp
from bigpca import devices
from bigpca.arrays import packed_size
from bigpca.costs import BlockForm
from bigpca.data.batches import BatchRows
from bigpca.data.dask_arrays import array_of
from bigpca.devices import Device, GramThere, RowsThere, solving_on
from bigpca.engine.run import Run
from bigpca.errors import CheckpointError, MemoryBudgetError, NonFiniteError
from bigpca.estimators.kernel.maps import scored_rows
from bigpca.host import HOST
from bigpca.kernels.dot import PreparedThere
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.accumulators.landmark_moments import LandmarkMap, LandmarkMoments
from bigpca.passes.accumulators.moments import ClassMoments, Moments, ProfileMoments
from bigpca.passes.accumulators.paired_moments import SteppedMoments
from bigpca.passes.accumulators.thin_products import DenseFactor, FusedProduct, LeftProduct
from bigpca.passes.panels import PanelRead
from bigpca.passes.reading import blocks
from bigpca.passes.reading.blocks import Block
from bigpca.passes.rows import Rows
from bigpca.solvers.eigh import top_eigenpairs, top_eigenvalues, whole_spectrum
from tests.builders import data_with_spectrum, power_law
from tests.peaks import traced_peak

pytest.importorskip("array_api_compat", reason="other array libraries need array-api-compat")
array_api_strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")

N, D, K = 1500, 300, 4
# The second device of array-api-strict: every implicit transfer raises.
DEVICES = ["array_api_strict:device1", "torch:cpu", "jax:cpu", "torch:cuda", "cupy:0", "jax:gpu"]
GPUS = DEVICES[3:]
WEIGHTS = np.arange(N) % 3
FITS: dict[str, Any] = {
    "covariance": lambda X: bp.PCA(K, solver="covariance").fit(X),
    "weighted covariance": lambda X: bp.PCA(K, solver="covariance").fit(X, sample_weight=WEIGHTS),
    "krylov": lambda X: bp.PCA(K, solver="krylov", random_state=0).fit(X),
    "sketch": lambda X: bp.ApproximatePCA(K, bp.sketches.Gaussian(150)).fit(X),
}


def require(name: str) -> None:
    """Skip the test if that library is not installed, or has no such GPU."""
    library = name.partition(":")[0]
    pytest.importorskip(library, reason=f"{library} is not installed")
    if name in GPUS:
        try:
            Device.of(name)
        except ValueError as error:
            pytest.skip(str(error))


@cache
def values() -> np.ndarray:
    return data_with_spectrum(N, power_law(D), mean=30.0)[0]


def lazy(dtype: str = "f4") -> Any:
    return da.from_array(values().astype(dtype), chunks=(250, D))


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("name", DEVICES)
def test_the_numbers_are_those_of_numpy(name: str, fit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(name)
    monkeypatch.setattr("bigpca.passes.reading.blocks.PRECISE_FLOPS", 0.0)  # multiply in float32
    X = lazy()
    expected = FITS[fit](X)
    with bp.config(arithmetic=name):
        found = FITS[fit](X)
    assert any(note.startswith(f"multiplied by {name}") for note in found.plan_.notes)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=3e-6)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-12)
    assert bp.quality.similarity(found.components_, expected.components_).min() > 1 - 1e-5


CODES = np.where(np.arange(N) % 5 == 4, np.nan, np.arange(N) % 5)  # four classes, and rows without a label
LABELLED: dict[str, Any] = {
    "classes": lambda X: bp.FisherDiscriminantAnalysis(3, missing_labels="drop").fit(X, CODES),
    "weighted classes": lambda X: bp.FisherDiscriminantAnalysis(3, missing_labels="drop").fit(
        X, CODES, sample_weight=WEIGHTS
    ),
    "variances": lambda X: bp.RoweisDiscriminantAnalysis(1, r1=1.0, r2=0.0, missing_labels="drop").fit(X, CODES),
    "numbers": lambda X: bp.SupervisedPCA(2).fit(X, np.column_stack([np.arange(N) % 7, WEIGHTS]) / 2 + 0.1),
    "dot": lambda X: bp.PCA(K, solver="dot").fit(X[:250]),
    "weighted dot": lambda X: bp.PCA(K, solver="dot", scale=True).fit(X[:500], sample_weight=WEIGHTS[:500]),
    "groups": lambda X: bp.ContrastivePCA(3).fit(X, CODES > 1),
    "penalties": lambda X: bp.Ridge(alpha=[0.1, 10.0]).fit(X, X[:, :2]),
    "steps": lambda X: bp.SlowFeatureAnalysis(3).fit(X, groups=np.arange(N) // 99),
    "profiles": lambda X: bp.CorrespondenceAnalysis(3).fit(amounts(X)),
    "lags": lambda X: bp.TICA(3, lag=300).fit(X, groups=np.arange(N) // 700),
    "noise": lambda X: bp.MinimumNoiseFraction(3, width=50, nan_policy="omit").fit(holed(X)),
}


def amounts(X: Any) -> Any:
    """Return rows of amounts; all amounts of some rows are 0."""
    return abs(X) * (np.arange(len(X)) % 11 > 0)[:, None].astype(X.dtype)


def holed(X: Any) -> Any:
    """Return rows, some with a missing value."""
    return X.map_blocks(lambda rows: np.where(np.abs(rows - rows.mean(axis=0)) > 4 * rows.std(axis=0), np.nan, rows))


@pytest.mark.parametrize("fit", LABELLED)
@pytest.mark.parametrize("name", DEVICES)
def test_fits_with_labels_and_folds_are_those_of_numpy(name: str, fit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(name)
    monkeypatch.setattr("bigpca.passes.reading.blocks.PRECISE_FLOPS", 0.0)  # multiply in float32
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUP_BYTES", 1 << 18)  # states merge
    X = lazy()[:, :40]
    expected = LABELLED[fit](X)
    with bp.config(arithmetic=name):
        found, again = LABELLED[fit](X), LABELLED[fit](X)
    assert any(note.startswith(f"multiplied by {name}") for note in found.plan_.notes)
    here, there, twice = (getattr(one, "predict" if fit == "penalties" else "transform")(X[:200].compute())
                          for one in (expected, found, again))  # fmt: skip
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-4 * np.abs(here).max())
    assert np.array_equal(twice, there)


# gamma = 1e4: norms are large compared with the width, so NumPy computes near pairs again, from differences.
KERNELS = [
    bp.kernels.RBF(0.1), bp.kernels.RBF(1e4), bp.kernels.Linear(1.0), bp.kernels.Polynomial(degree=2),
    bp.kernels.Cosine(), bp.kernels.Polynomial(9, gamma=0.1),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:50 landmarks miss")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", DEVICES)
def test_landmark_features_are_those_of_numpy(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(name)
    monkeypatch.setattr("bigpca.passes.reading.blocks.PRECISE_FLOPS", 0.0)  # the precision of the rows
    X = lazy(dtype)[:, :10] - 30
    landmarks = X[1::30].compute()
    for kernel, weights in zip(KERNELS, cycle((None, WEIGHTS)), strict=False):
        model = bp.NystromKernelPCA(K, kernel=kernel, n_landmarks=len(landmarks), sampling=landmarks)
        expected = clone(model).fit(X, sample_weight=weights)
        with bp.config(arithmetic=name):
            found = model.fit(X, sample_weight=weights)
            scores = found.transform(X[:300].compute())
        assert found.plan_.notes[-1].startswith(f"multiplied by {name}"), found.plan_.notes
        # Rounding moves an eigenvalue by a few eps of the trace.
        trace = kernel.diagonal(X.compute()) @ (np.ones(N) if weights is None else weights)
        rounding = 2 * np.finfo(dtype).eps * trace
        np.testing.assert_allclose(found.eigenvalues_, expected.eigenvalues_, rtol=0, atol=rounding)
        assert abs(found.trace_error_ - expected.trace_error_) < 40 * np.finfo(dtype).eps
        here = found.transform(X[:300].compute())  # the same model by NumPy
        np.testing.assert_allclose(scores, here, rtol=0, atol=100 * np.finfo(dtype).eps * np.abs(here).max())


def watch(monkeypatch: pytest.MonkeyPatch, moved: dict[str, int]) -> None:
    """Count the bytes that go to a device, and those that come from it."""
    put, fetch, put_rows = Device.put, devices.host_array, RowsThere.put

    def counted_put(device: Device, values: Any) -> Any:
        moved["put"] += values.nbytes if isinstance(values, np.ndarray) else 0
        return put(device, values)

    def counted_rows(beside: RowsThere, values: Any) -> Any:
        moved["put"] += values.nbytes
        return put_rows(beside, values)

    def counted_fetch(array: Any) -> Any:
        found = fetch(array)
        moved["fetch"] += found.nbytes
        return found

    monkeypatch.setattr(Device, "put", counted_put)
    monkeypatch.setattr(RowsThere, "put", counted_rows)
    monkeypatch.setattr(devices, "host_array", counted_fetch)


def looks_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry for each wait for a device: the numbers that come from it."""
    found, fetch, finite = list[int](), devices.host_array, blocks.all_finite
    monkeypatch.setattr(devices, "host_array", lambda array: (found.append(int(np.prod(array.shape))), fetch(array))[1])
    monkeypatch.setattr(blocks, "all_finite", lambda arrays: (found.extend([1] * bool(arrays)), finite(arrays))[1])
    return found


def waits_of(name: str, groups: int, reads: int) -> Counter[int]:
    """Return what comes from a device, by size: one look at each group, and the arrays of one state of each read."""
    looks, whole, c = Counter({1: groups}), packed_size(D), 4
    if name in ("covariance", "batches", "profiles"):
        sums = Counter({500: N // 250}) if name == "profiles" else Counter()  # and the least value, of each row
        return looks + sums + Counter({D: 1 + (name == "batches"), whole: 1})  # and the first row of batches
    if name == "classes":
        return looks + Counter({c * D: 1, whole: 1})
    if name == "numbers":  # one class without its scatter; the product with the labels, and its shift
        return looks + Counter({D: 4})
    if name in ("folds", "steps"):
        return looks + Counter({D: 2 + 2 * (name == "steps"), whole: 2})  # and the rows at both ends
    columns = 24  # of each product; squares come with the first one
    return Counter({1: groups * reads, D: reads + 1, columns: reads, D * columns: reads, 0: reads - 1})


WAITING: dict[str, Any] = FITS | LABELLED | {
    "batches": lambda X: bp.PCA(K, solver="covariance").fit(X),
    "folds": lambda X: bp.ContrastivePCA(K).fit(X, CODES > 1),
    "profiles": lambda X: bp.CorrespondenceAnalysis(3).fit(X),
    "numbers": lambda X: bp.SupervisedPCA(1).fit(X, WEIGHTS / 2 + 0.1),
}  # fmt: skip


@pytest.mark.parametrize("fit", ["covariance", "batches", "krylov", "classes", "numbers", "folds", "steps", "profiles"])
def test_a_fit_fetches_one_state_of_each_read_and_waits_once_for_each_group(
    fit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, X = "array_api_strict:device1", bp.ingest(lazy("f8"), tmp_path / "rows.zarr", chunk_rows=250)
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUP_BYTES", 1 << 18)
    monkeypatch.setattr(Device, "slab_bytes", 1 << 18)
    moved = {"put": 0, "fetch": 0}
    there = batched_there(X.compute(), name, monkeypatch)
    given = bp.from_batches(there, shape=X.shape) if fit == "batches" else X
    devices.namespace(name)  # a device is looked at once in a process
    watch(monkeypatch, moved)
    waits = looks_of(monkeypatch)
    with bp.config(arithmetic=name):
        model = WAITING[fit](given)
    read = next(one for one in model.plan_.costs if one.device_bytes)
    groups, reads = len(read.layout.groups), waits.count(24 * D) if fit == "krylov" else 1
    assert groups > 2 or fit == "batches"
    assert reads == 1 or 1 < reads <= model.n_passes_
    assert Counter(waits) == waits_of(fit, groups, reads)
    assert moved["put"] < (0.1 if fit == "batches" else reads * 1.2) * X.nbytes


def test_amounts_below_0_are_named_as_those_of_numpy() -> None:
    X, said = values()[:, :40].astype("f4"), list[str]()
    X[7, 3] = -1
    for name in ("numpy", "array_api_strict:device1"):
        with bp.config(arithmetic=name), pytest.raises(ValueError, match="at least 0") as error:
            bp.CorrespondenceAnalysis(3).fit(X)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert "7" in said[0]


@pytest.mark.parametrize("size", [1.0, 3e19, 1e-25])
@pytest.mark.parametrize("name", DEVICES[:3])
def test_a_dot_matrix_takes_each_row_in_once_a_panel_and_gives_its_panels_out(
    name: str, size: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(name)
    A = (lazy("f8")[:400].compute() * size).astype("f8" if size == 1.0 else "f4")
    X, shift = bp.ingest(A, tmp_path / "rows.zarr", chunk_rows=100), A.astype("f8").mean(axis=0)
    monkeypatch.setattr("bigpca.engine.layout.MIN_SLAB_BYTES", 1)
    monkeypatch.setattr("bigpca.engine.layout.SLAB_ROWS", 100)
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)
    moved, found = {"put": 0, "fetch": 0}, list[Any]()
    devices.namespace(name)
    watch(monkeypatch, moved)
    waits = looks_of(monkeypatch)
    for panels in (1, 2, 4):
        with bp.config(arithmetic=name), dask.config.set(num_workers=4):  # one of the threads drives a device
            rows = Rows.of(X)
            read = PanelRead.of_panels(rows, panels)
            waits.clear()
            moved.update(put=0, fetch=0)
            found.append(read(Run(), shift=shift).matrix())
        assert read.cost.reads == (panels + 1) / 2
        assert waits.count(1) == panels
        assert sum(waits) == panels + 100 * 100 * 10  # tiles of the upper triangle
        assert moved["put"] == read.cost.reads * (A.nbytes + 4 * shift.nbytes)
    Y = A.astype("f8") - shift
    np.testing.assert_allclose(np.triu(found[0]), np.triu(Y @ Y.T), rtol=0, atol=1e-6 * np.square(Y).sum(1).max())
    assert all(np.array_equal(found[0], one) for one in found[1:])


@pytest.mark.parametrize("name", DEVICES)
def test_problems_above_a_size_are_solved_on_the_device_of_the_fit_and_others_never(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(name)
    S = np.cov(values()[:, :40].T.astype("f8"))
    solves: list[Any] = [lambda: top_eigenpairs(S.copy(), 3), lambda: whole_spectrum(S)]
    expected, device, moved = [solve() for solve in solves], Device.of(name), {"put": 0, "fetch": 0}
    watch(monkeypatch, moved)
    with solving_on(device):
        for here, solve in zip(expected, solves, strict=True):
            assert all(np.array_equal(one, other) for one, other in zip(here, solve(), strict=True))
    assert moved == {"put": 0, "fetch": 0}
    monkeypatch.setattr(devices, "SOLVED_THERE", 40)
    with solving_on(device):
        for here, solve in zip(expected, solves, strict=True):
            before, found = moved["put"], solve()
            assert moved["put"] - before == S.nbytes
            np.testing.assert_allclose(found[0], here[0], rtol=0, atol=1e-13 * here[0][0])
            for one, other in zip(found[1:], here[1:], strict=True):
                np.testing.assert_allclose(np.abs(one), np.abs(other), atol=1e-7)
    np.testing.assert_allclose(top_eigenvalues(device.put(S), 5), top_eigenvalues(S, 5), atol=1e-13 * expected[0][0][0])


@pytest.mark.parametrize("kernel", [KERNELS[0], KERNELS[3], bp.kernels.Laplacian(0.01)])
@pytest.mark.parametrize("name", DEVICES)
def test_matrices_of_many_landmarks_are_made_on_the_device_of_the_fit(
    name: str, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(name)
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)  # the precision of the rows
    X, m = lazy()[:, :10] - 30, 60
    landmarks = X[1::25].compute()
    model = bp.NystromKernelPCA(K, kernel=kernel, n_landmarks=m, sampling=landmarks)
    expected, made = clone(model).fit(X), list[int]()
    monkeypatch.setattr(devices, "SOLVED_THERE", m)
    make = PreparedThere.products
    monkeypatch.setattr(PreparedThere, "products", lambda A, *more: (made.append(len(A.squares)), make(A, *more))[1])
    with bp.config(arithmetic=name):
        found = model.fit(X)
    # K_mm, and the scores of landmarks: all of them in float64, and some in both precisions.
    few = scored_rows(m)
    assert (kernel.place(Device.of(name)) != HOST) == (Counter(made) >= Counter([m, m, few, few]))
    np.testing.assert_allclose(found.eigenvalues_, expected.eigenvalues_, rtol=0, atol=1e-6 * expected.eigenvalues_[0])
    here, scores = expected.transform(landmarks), found.transform(landmarks)
    np.testing.assert_allclose(np.abs(scores), np.abs(here), rtol=0, atol=1e-3 * np.abs(here).max())


# Operations that a device is asked for by a further block of a read: of the first one of an iteration, with squares.
# Rows in float64 are summed and multiplied in fewer, and looked at for values whose squares are lost.
ASKED = {
    "f4": {"covariance": 12, "krylov": 21, "classes": 18, "features": 37},
    "f8": {"covariance": 17, "krylov": 23, "classes": 30, "features": 45},
}
RENAMED = (
    "view",
    "slice",
    "alias",
    "detach",
    "transpose",
    "expand",
    "_unsafe_view",
    "unsqueeze",
    "permute",
    "lift_fresh",
)


@pytest.mark.parametrize("dtype", ASKED)
@pytest.mark.parametrize("fit", ASKED["f4"])
def test_a_block_asks_a_device_for_few_operations(fit: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch:cpu")
    from torch.utils._python_dispatch import TorchDispatchMode

    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)
    size, d = 65536 // np.dtype(dtype).itemsize, 8
    monkeypatch.setattr(Device, "slab_bytes", 65536 * d)
    X = np.random.default_rng(0).standard_normal((8 * size, d)).astype(dtype) * np.arange(1, d + 1, dtype=dtype)
    fits: dict[str, Any] = {
        "covariance": lambda rows: bp.PCA(2, solver="covariance").fit(rows),
        "krylov": lambda rows: bp.PCA(2, solver="krylov", random_state=0, max_passes=2, tol=0.9).fit(rows),
        "classes": lambda rows: bp.FisherDiscriminantAnalysis(2).fit(rows, np.arange(rows.shape[0]) % 3),
        "features": lambda rows: bp.NystromKernelPCA(2, **RBF, n_landmarks=9, sampling=X[:9]).fit(rows),
    }
    asked: list[str] = []

    class Asked(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(op.__name__)
            return op(*args, **(kwargs or {}))

    counts = []
    for n in (4, 8):
        batches = batched_there(X[: n * size], "torch:cpu", monkeypatch, size)
        asked.clear()
        with Asked():
            model = fits[fit](bp.from_batches(batches, shape=(n * size, d)))
        counts.append(sum(not name.startswith(RENAMED) for name in asked))
    assert fit != "krylov" or round(model.n_passes_) == 1
    assert (counts[1] - counts[0]) / 4 <= ASKED[dtype][fit]


def test_the_shift_there_is_the_mean_of_complete_rows_or_of_what_is_known() -> None:
    device = Device("array_api_strict", "device1")
    rows = np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, 1e9], [5.0, np.inf]])
    for some, shift in ((rows, [2.0, 3.0]), (rows[2:], [5.0, 1e9])):
        found = device.form.shifted(device.rows(some), None, np.dtype("f8"))[3]
        np.testing.assert_array_equal(device.fetch(found), shift)


def test_what_comes_from_a_device_names_none() -> None:
    device, X = Device("array_api_strict", "device1"), values()[:9, :3].copy()
    template = FoldStates(Moments(3), 2).there(device)
    state = template.fresh(0, 9)
    state.update(Block.about(X, np.arange(9), None, device))
    state.close()
    assert state.device == device
    found = state.here()
    assert found.device == HOST
    assert found.template.device == HOST
    assert "array_api_strict" not in repr([vars(one) for one in (found, *found.states, found.template)])
    np.testing.assert_allclose(found.count, 9)


def test_a_resumed_fit_has_the_bits_of_one_that_ran_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "SOLVED_THERE", 100)
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUP_BYTES", 1 << 18)
    X = bp.ingest(lazy("f4"), tmp_path / "rows.zarr", chunk_rows=100)
    with bp.config(arithmetic="array_api_strict:device1"):
        whole = bp.PCA(K, solver="covariance").fit(X)
        merge, merged = Moments.merge, list[int]()

        def stop(a: Moments, b: Moments) -> Moments:
            merged.append(1)
            if len(merged) == 3:
                raise KeyboardInterrupt
            return merge(a, b)

        with monkeypatch.context() as patched:
            patched.setattr(Moments, "merge", stop)
            with pytest.raises(KeyboardInterrupt):
                bp.PCA(K, solver="covariance").fit(X, checkpoint=tmp_path / "c")
        again = bp.PCA(K, solver="covariance").fit(X, checkpoint=tmp_path / "c")
    assert np.array_equal(again.components_, whole.components_)
    assert np.array_equal(again.explained_variance_, whole.explained_variance_)


@pytest.mark.parametrize("kind", ["store", "batches"])
def test_a_checkpoint_takes_one_state_of_each_segment_from_the_device(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, X = "array_api_strict:device1", bp.ingest(lazy("f8"), tmp_path / "rows.zarr", chunk_rows=100)
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUP_BYTES", 1 << 18)
    given = X if kind == "store" else bp.from_batches(batched_there(X.compute(), name, monkeypatch), shape=X.shape)
    with bp.config(arithmetic=name):
        whole, waits = bp.PCA(K, solver="covariance").fit(given), looks_of(monkeypatch)
        found = bp.PCA(K, solver="covariance").fit(given, checkpoint=tmp_path / "c")
    segments = found.plan_.costs[0].layout.segments
    assert waits.count(packed_size(D)) == len(segments)
    assert len(segments) > 3 or kind == "batches"
    assert np.array_equal(found.components_, whole.components_)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("name", DEVICES)
def test_scores_and_statistics_are_those_of_numpy(name: str, scale: bool, tmp_path: Path) -> None:
    require(name)
    X = lazy().compute()[:300]
    X[7] = np.nan
    models = [bp.PCA(K, scale=scale, whiten=True, nan_policy="omit").fit(X[:, :20]), bp.PCA(20, nan_policy="omit")]
    models[1].fit(X[:, :20])
    for model in models:
        expected, statistics = model.transform(X[:, :20]), model.statistics(X[:, :20])
        corrected = model.transform(X[:, :20], shrinkage="oadp")
        with bp.config(arithmetic=name):
            again = model.transform(X[:, :20], shrinkage="oadp")
            np.testing.assert_allclose(again, corrected, rtol=2e-5, atol=2e-5 * np.nanmax(np.abs(corrected)))
            found = model.transform(X[:, :20])
            np.testing.assert_allclose(model.statistics(X[:, :20]), statistics, rtol=2e-5, atol=1e-9)
            stored = model.transform(X[:, :20], out=tmp_path / f"{len(found[0])}.zarr").compute()
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.nanmax(np.abs(expected)))
        assert np.array_equal(stored, found, equal_nan=True)


def test_landmark_features_take_one_block_in_and_give_two_numbers_of_each_row_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, m, moved = lazy("f8")[:, :40], 30, {"put": 0, "fetch": 0}
    watch(monkeypatch, moved)
    with bp.config(arithmetic="array_api_strict:device1"), dask.config.set(num_workers=1):
        bp.NystromKernelPCA(K, n_landmarks=m, sampling=X[:m].compute()).fit(X)
    tiles = N // 250
    assert 0 <= moved["put"] - X.nbytes < 8 * (m * (40 + m + 2 * tiles) + 40 * (tiles + 1))
    assert 0 <= moved["fetch"] - 8 * 2 * N < 8 * (packed_size(m) + 3 * m) * tiles + 1000


def test_tiles_of_landmark_features_follow_the_memory_of_a_device_and_not_a_cache() -> None:
    features = LandmarkMap(bp.kernels.RBF(0.1), np.zeros((2000, 8), "f4"), np.eye(2000), np.zeros(8))
    assert (features.tile_rows, features.tile_rows_on(Device("array_api_strict"))) == (524, 33554)
    seen: list[int] = []

    class Noted(bp.kernels.RBF):
        def block(self, A: Any, B: Any) -> Any:
            seen.append(len(A.squares))
            return super().block(A, B)

    X = np.random.default_rng(0).standard_normal((9000, 2)).astype("f4")
    with bp.config(arithmetic="array_api_strict"):
        bp.NystromKernelPCA(2, kernel=Noted(0.1), n_landmarks=9, sampling=X[:9]).fit(bp.from_batches([X]))
    assert max(seen) == 9000


def test_scores_take_one_block_in_and_give_scores_out(monkeypatch: pytest.MonkeyPatch) -> None:
    X, moved = lazy("f8").compute(), {"put": 0, "fetch": 0}
    model = bp.PCA(K).fit(X)
    watch(monkeypatch, moved)
    with bp.config(arithmetic="array_api_strict:device1"):
        model.transform(X)
        scored = dict(moved)
        model.spe(X)
    assert 0 <= scored["put"] - X.nbytes < 8 * D * (K + 2)  # and the axes and the mean
    assert 0 <= scored["fetch"] - 8 * N * K < 100
    assert 0 <= moved["fetch"] - scored["fetch"] - 8 * N * (K + 1) < 100


@pytest.mark.parametrize("large", [1e25, 1e-25])
def test_squares_that_float32_does_not_hold_are_multiplied_in_float64(
    large: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigpca.passes.reading.blocks.PRECISE_FLOPS", 0.0)
    X = (lazy().compute()[:, :20] * np.float32(large)).astype("f4")
    with bp.config(arithmetic="array_api_strict"):
        found = bp.PCA(K, solver="covariance").fit(X)
    expected = np.linalg.svd(X.astype("f8") - X.mean(axis=0, dtype="f8"), compute_uv=False)[:K] ** 2 / (N - 1)
    np.testing.assert_allclose(found.explained_variance_, expected, rtol=1e-6)


RBF = {"kernel": "rbf", "gamma": 1e-3}
Y, FEATURES, DRAWN = np.arange(N) % 3, {"labelled-features"}, {"landmarks"}
# Row of the table in docs/how-to/other-libraries.md -> fits, and their reads on the device and in this process.
TABLE: dict[str, list[tuple[Any, set[str], set[str]]]] = {
    "covariance": [
        (lambda X: bp.PCA(K, solver="covariance").plan(X), {"moments"}, set()),
        (lambda X: bp.RotatedPCA(K).plan(X), {"moments"}, set()),
        (lambda X: bp.FactorAnalysis(K).plan(X), {"sums"}, set()),
        (lambda X: bp.GeneralizedPCA(K).plan(X, Y > 0), {"sums"}, set()),
    ],
    "krylov": [(lambda X: bp.PCA(K, solver="krylov").plan(X), {"product"}, {"sample"})],
    "sketch": [(lambda X: bp.ApproximatePCA(K).plan(X), {"sketch"}, set())],
    "labels": [
        (lambda X: bp.FisherDiscriminantAnalysis(1).plan(X, Y), {"sums", "refined"}, set()),
        (lambda X: bp.SupervisedPCA(1).plan(X, Y), {"sums"}, set()),
        (lambda X: bp.ScoredPCA(1).plan(X, Y / 2), {"labels", "fit: moments"}, set()),
        (lambda X: bp.KernelSupervisedPCA(1, **RBF, solver="landmarks").plan(X, Y), FEATURES, {"landmarks"}),
        (lambda X: bp.KernelRoweisDiscriminantAnalysis(1, **RBF).plan(X, Y), FEATURES, {"landmarks"}),
    ],
    "folds": [
        (lambda X: bp.ContrastivePCA(K).plan(X, Y > 0), {"sums"}, set()),
        (lambda X: bp.PCA("cross-validated", solver="covariance").plan(X), {"moments"}, set()),
        (lambda X: bp.Ridge(alpha=[0.1, 1.0]).plan(X, X[:, :2]), {"sums", "refined"}, set()),
    ],
    "steps": [
        (lambda X: bp.SlowFeatureAnalysis(K).plan(X), {"sums", "refined"}, set()),
        (lambda X: bp.TICA(K, lag=5).plan(X), {"sums", "refined"}, set()),
        (lambda X: bp.MinimumNoiseFraction(K).plan(X), {"sums", "refined"}, set()),
    ],
    "profiles": [(lambda X: bp.CorrespondenceAnalysis(K).plan(X), {"sums"}, set())],
    "features": [
        (lambda X: bp.NystromKernelPCA(K, **RBF, n_landmarks=9).plan(X), {"features", "landmarks"}, set()),
        (lambda X: bp.NystromKernelPCA(K, **RBF, n_landmarks=9, sampling="uniform").plan(X), {"features"}, DRAWN),
    ],
    "sweeps": [
        (lambda X: bp.KernelPCA(K, **RBF, solver="krylov").plan(X), {"features", "kernel"}, {"landmarks", "start"}),
        (lambda X: bp.ApproximateKernelPCA(K, **RBF).plan(X), {"kernel"}, set()),
        (lambda X: bp.KernelSupervisedPCA(1, **RBF, solver="pairs").plan(X, Y), {"kernel"}, set()),
        (lambda X: bp.KernelPCA(K, **RBF, solver="dense").plan(X), {"kernel"}, set()),
        (lambda X: bp.PCA(K, solver="dot").plan(X[:250]), {"dot", "components"}, set()),
    ],
    "made": [
        (lambda X: bp.PCA(K, solver="covariance", preprocess=bp.preprocessing.L2()).plan(X), {"moments"}, set()),
        (lambda X: bp.CCA(2).plan(X, X[:, :2]), {"sums", "refined"}, set()),
        (lambda X: bp.PLSRegression(2).plan(X, X[:, :2]), {"sums"}, set()),
    ],
    "nothing": [
        (lambda X: bp.NystromKernelPCA(K, kernel="laplacian", n_landmarks=9).plan(X), set(), {"features", "landmarks"}),
        (lambda X: bp.PCA(K).plan(sp.csr_array((X[:100].compute() > 30).astype("f4"))), set(), {"moments"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_the_table_of_what_runs_on_a_device_is_what_plans_say(row: str) -> None:
    name = "array_api_strict:device1"
    for plan, there, here in TABLE[row]:
        with bp.config(arithmetic=name, memory_limit="8 GiB"):
            found = plan(lazy())
        noted = {key: set[str]() for key in ("multiplied by NumPy", f"multiplied by {name}")}
        for note in found.notes:
            for key, names in noted.items():
                if note.startswith(key):
                    names |= set(note.rpartition("): ")[2].split(", "))
        assert noted == dict(zip(noted, (here, there), strict=True)), found.notes


def test_sparse_rows_have_the_bits_of_numpy_with_a_device_too() -> None:
    rows = sp.random_array((100, 20), density=0.2, format="csr", rng=0)
    expected = bp.PCA(2).fit(rows)
    with bp.config(arithmetic="array_api_strict:device1"):
        found = bp.PCA(2).fit(rows)
    assert np.array_equal(found.components_, expected.components_)
    assert "multiplied by NumPy, not by array_api_strict:device1 (sparse rows): moments" in found.plan_.notes


@pytest.mark.parametrize("name", DEVICES)
def test_rows_of_every_dtype_are_multiplied_there(name: str) -> None:
    require(name)
    for dtype in ("f2", "u1", "i2", "i4", "i8", ">f4", "?"):
        X = (values()[:400, :20] * (1 if "f" in dtype else 3)).astype(dtype)
        with bp.config(arithmetic=name):
            found = bp.PCA(K, solver="covariance").fit(X)
        np.testing.assert_allclose(found.explained_variance_, bp.PCA(K).fit(X).explained_variance_, rtol=1e-12)


def test_a_checkpoint_of_another_arithmetic_is_not_used(tmp_path: Path) -> None:
    X, model = bp.ingest(lazy(), tmp_path / "rows.zarr"), bp.PCA(K, solver="covariance")
    model.fit(X, checkpoint=tmp_path / "c")
    with bp.config(arithmetic="array_api_strict"):
        alone = clone(model).fit(X).components_
        with pytest.warns(UserWarning, match="computed differently"):
            assert np.array_equal(model.fit(X, checkpoint=tmp_path / "c").components_, alone)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("tpu", ValueError, "one of torch, cupy, jax, array_api_strict with a device"),
        ("array_api_strict:device9", ValueError, "cannot use that device"),
        ("cupy:99", (ImportError, ValueError), "cupy"),
    ],
)
def test_what_cannot_multiply_is_named_before_a_read(name: str, error: Any, words: str) -> None:
    with bp.config(arithmetic=name), pytest.raises(error, match=words):
        bp.PCA(K).plan(lazy())


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["moments", "thin", "landmarks", "classes", "left", "folds", "steps", "profiles"])
def test_the_memory_of_a_device_is_planned_as_it_is_taken(dtype: str, kind: str) -> None:
    rows, device = np.ones((200, 600), dtype), Device("array_api_strict")
    factor = DenseFactor(np.ones((600, 150)))
    features = [  # each puts its landmarks there once
        LandmarkMoments.of(
            600, LandmarkMap(bp.kernels.RBF(0.1), np.eye(150, 600, dtype=dtype), np.eye(150), np.zeros(600))
        )
        for _ in range(2)
    ]
    codes = np.arange(200, dtype=np.int32) % 9
    states = {
        "moments": Moments(600),
        "thin": FusedProduct.of(600, factor),
        "classes": ClassMoments(600, 9, codes),
        "left": LeftProduct(600, np.ones((200, 50))),
        "folds": FoldStates(Moments(600), 3),
        "steps": SteppedMoments.of(600, 3, sums=True),
        "profiles": ProfileMoments.of(600),
    }
    state = states.get(kind) or features[0]
    planned = state.device_bytes(BlockForm(600, 200, itemsize=rows.itemsize))
    weights = None if kind in ("steps", "profiles") else np.ones(200)
    block = replace(Block.about(rows, np.arange(200), np.zeros(600), device), weights=weights)
    # Arrays of array-api-strict are NumPy's; those that are put there were allocated before.
    put = {"thin": rows.nbytes + factor.Q.nbytes, "landmarks": 8 * 150**2}.get(kind, rows.nbytes)
    here = state.state_bytes if kind == "landmarks" else 0

    def add_twice() -> None:
        own = (features.pop() if kind == "landmarks" else state).there(device).fresh(0, 200)
        for _ in range(2):
            own.update(block)

    peak = traced_peak(add_twice) + put - here
    assert 0.8 * planned < peak < planned + 20_000


def test_a_read_that_a_device_cannot_hold_is_rejected_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Device("torch", "cpu").memory is None
    with bp.config(arithmetic="array_api_strict"), dask.config.set(num_workers=2):
        plan = bp.PCA(K, solver="covariance").plan(lazy())
        assert "multiplied by array_api_strict (10.0 MiB of its memory): moments" in plan.notes
        monkeypatch.setattr(Device, "memory", (2 << 20, 16 << 30))
        with pytest.raises(MemoryBudgetError, match=r"'moments' takes 10\.0 MiB of array_api_strict"):
            bp.PCA(K, solver="covariance").fit(lazy())


SMALL = {1: 16 << 20, 16: 256 << 20, 24: 256 << 20, 40: 512 << 20, 80: 1 << 30, 141: 1 << 30}


def test_blocks_follow_the_memory_of_a_kind_of_device_and_bits_not_what_is_free_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, device = "array_api_strict:device1", Device("array_api_strict", "device1")
    assert (device.slab_bytes, device.tile_bytes) == (256 << 20, 256 << 20)  # whose memory is not known
    for size, expected in SMALL.items():
        monkeypatch.setattr(Device, "memory", (0, size << 30))
        assert (device.slab_bytes, device.tile_bytes) == (expected, min(expected, 256 << 20))
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)
    batches = batched_there(lazy().compute(), name, monkeypatch)
    model, rows, found = bp.PCA(K, solver="covariance"), list[int](), list[Any]()
    seen, add = list[int](), GramThere.add

    def noted(gram: GramThere, total: Any, V: Any, *others: Any) -> Any:
        seen.append(V.shape[0])
        return add(gram, total, V, *others)

    monkeypatch.setattr(GramThere, "add", noted)
    for memory in ((1 << 30, 2 << 30), (1 << 29, 2 << 30), (16 << 20, 16 << 20)):
        monkeypatch.setattr(Device, "memory", memory)
        seen.clear()
        fitted = clone(model).fit(bp.from_batches(batches, shape=(N, D)), checkpoint=tmp_path / f"{memory}")
        found, rows = [*found, fitted], [*rows, max(seen)]
        assert fitted.plan_.costs[0].device_bytes <= memory[0]
    assert rows == [N, N, (256 << 10) // (4 * D)]
    assert np.array_equal(found[0].components_, found[1].components_)
    np.testing.assert_allclose(found[2].explained_variance_, found[0].explained_variance_, rtol=1e-6)
    with pytest.warns(UserWarning, match="computed differently"):  # sums of other blocks have other last digits
        model.fit(bp.from_batches(batches, shape=(N, D)), checkpoint=tmp_path / f"{(1 << 30, 2 << 30)}")
    monkeypatch.setattr(Device, "memory", (1 << 20, 16 << 20))
    with pytest.raises(MemoryBudgetError, match=r"takes [\d.]+ MiB of array_api_strict:device1, and 1\.0 MiB are free"):
        clone(model).fit(bp.from_batches(batches, shape=(N, D)))


def test_a_device_without_float64_leaves_all_sums_to_numpy_and_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "array_api_strict:no_float64"
    try:
        array_api_strict.Device("no_float64")
    except ValueError:
        pytest.skip("this array-api-strict has no device without float64")
    X, labels = lazy(), np.arange(N) % 3
    fits: list[Any] = [bp.PCA(K, solver="covariance"), bp.PCA(K, solver="krylov", random_state=0)]
    fits += [
        bp.FisherDiscriminantAnalysis(2),
        bp.NystromKernelPCA(K, **RBF, n_landmarks=9),
        bp.KernelPCA(K, **RBF, solver="krylov"),
    ]
    said = f"multiplied by NumPy, not by {name} (a device without float64): "
    for model in fits:
        y = (labels,) if isinstance(model, bp.FisherDiscriminantAnalysis) else ()
        expected = clone(model).fit(X, *y)
        with bp.config(arithmetic=name):
            found = clone(model).fit(X, *y)
            scores = found.transform(X[:50].compute())
        assert any(note.startswith(said) for note in found.plan_.notes), found.plan_.notes
        assert np.array_equal(scores, expected.transform(X[:50].compute()))
    there = clone(fits[0]).fit(bp.from_batches(batched_there(X.compute(), name, monkeypatch)))
    assert said + "moments" in there.plan_.notes
    assert np.array_equal(there.components_, clone(fits[0]).fit(bp.from_batches([X.compute()])).components_)


def test_lack_of_memory_on_a_device_is_named() -> None:
    with (
        pytest.raises(MemoryError, match="the memory of array_api_strict:0 does not hold"),
        Device("array_api_strict", "0").precise(),
    ):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    with pytest.raises(RuntimeError, match=r"^another$"), Device("array_api_strict", "0").precise():
        raise RuntimeError("another")


def test_torch_multiplies_without_tf32_and_restores_the_switches() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    device, on_cuda, on_cpu = Device("torch", "cpu"), torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    own = torch.get_float32_matmul_precision()
    try:
        for older, newer in (("highest", "none"), ("high", "tf32"), ("medium", "tf32"), ("highest", "tf32")):
            torch.set_float32_matmul_precision(older)
            on_cuda.fp32_precision = newer  # the last pair: only the newer switch was set, and torch reads no older one
            before = on_cuda.fp32_precision, on_cpu.fp32_precision
            with device.precise():
                with device.precise():
                    assert (on_cuda.fp32_precision, on_cpu.fp32_precision) == ("ieee", "ieee")
                assert not on_cuda.allow_tf32
            assert (on_cuda.fp32_precision, on_cpu.fp32_precision) == before
            if (older, newer) != ("highest", "tf32"):
                assert torch.get_float32_matmul_precision() == older
    finally:
        torch.set_float32_matmul_precision(own)


def test_cupy_multiplies_without_tf32_and_restores_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = {"f": 7}  # COMPUTE_TYPE_TF32
    imitated = SimpleNamespace(
        COMPUTE_TYPE_DEFAULT=1, get_compute_type=lambda dtype: switch[np.dtype(dtype).char],
        set_compute_type=lambda dtype, kind: switch.update({np.dtype(dtype).char: kind}),
    )  # fmt: skip
    monkeypatch.setattr("bigpca.devices.import_module", lambda name: imitated)
    with Device("cupy", "0").precise():
        with Device("cupy", "1").precise():
            assert switch == {"f": 1}
        assert switch == {"f": 1}
    assert switch == {"f": 7}


def batched_there(rows: Any, name: str, monkeypatch: pytest.MonkeyPatch, size: int = 170) -> list[Any]:
    """Return batches of rows on a device; those of a library on the CPU are treated as if they were on another one."""
    require(name)
    library, _, place = name.partition(":")
    if place == "cpu":
        monkeypatch.setattr(devices, "_place_of", lambda array: None if isinstance(array, np.ndarray) else name)
    return [Device(library, place).put(rows[i : i + size]) for i in range(0, len(rows), size)]


MORE: dict[str, Any] = {
    "partial": lambda X: bp.PCA(K).partial_fit(X),
    "scaled sketch": lambda X: bp.ApproximatePCA(K, bp.sketches.SRHT(290), scale=True).fit(X),
}


@pytest.mark.parametrize("fit", [*FITS, *MORE])
@pytest.mark.parametrize("name", DEVICES)
def test_rows_that_come_from_a_device_stay_there(name: str, fit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)  # multiply in float32
    solve = {**FITS, **MORE}[fit]
    X, moved = lazy().compute(), {"put": 0, "fetch": 0}
    expected, given = solve(X), batched_there(X, name, monkeypatch)
    watch(monkeypatch, moved)
    found = solve(bp.from_batches(given))
    assert max(moved.values()) < X.nbytes / 2, moved  # a triangle or thin matrices, weights and sums, but no rows
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=3e-6)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-12)
    again = solve(bp.from_batches(batched_there(X, name, monkeypatch, 333)))
    assert np.array_equal(again.components_, found.components_)
    if fit != "partial":
        assert any(f"multiplied by {name.partition(':')[0]}" in note and "rows are there" in note
                   for note in found.plan_.notes)  # fmt: skip


class OneBuffer:
    """Batches of rows on a device in one array, which each next batch overwrites."""

    def __init__(self, rows: np.ndarray, name: str, size: int) -> None:
        self.rows, self.device, self.size = rows, Device.of(name), size
        self.buffer = RowsThere(self.device.put(np.zeros_like(rows[:size])), name)

    def __iter__(self) -> Iterator[Any]:
        for i in range(0, len(self.rows), self.size):
            rows = self.rows[i : i + self.size]
            self.buffer[: len(rows)] = rows
            yield self.buffer.array[: len(rows), ...]
        self.buffer[:] = np.full_like(self.rows[: self.size], np.nan)  # when further ones are asked for


@pytest.mark.parametrize(("fit", "reads"), [("covariance", 1), ("krylov", 2)])
def test_rows_of_one_batch_are_multiplied_where_they_are(fit: str, reads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, copied, found = "array_api_strict:device1", list[int](), list[Any]()
    X, put, size = lazy("f8").compute(), RowsThere.__setitem__, 250
    monkeypatch.setattr(BatchRows, "row_chunks", lambda self: (size,) * (N // size))
    monkeypatch.setattr(Device, "slab_bytes", 8 * D * size)
    given = [Device.of(name).put(X)], batched_there(X, name, monkeypatch, 100), OneBuffer(X, name, size)
    monkeypatch.setattr(
        RowsThere, "__setitem__", lambda there, i, rows: (copied.append(len(rows)), put(there, i, rows))[1]
    )
    for batches in given:
        found.append(FITS[fit](bp.from_batches(batches, shape=X.shape)))
        # Of batches that are smaller than a read, each row once a read; and a few rows of the sample.
        if batches is not given[-1]:
            assert sum(count for count in copied if count > 10) == (len(found) - 1) * reads * N
    assert all(np.array_equal(found[0].components_, one.components_) for one in found[1:])


def test_another_thread_has_a_copy_of_rows_whose_buffer_the_next_batch_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, scores = lazy("f4").compute(), Device.scored
    pca, size, seen = bp.PCA(K).fit(X), 50, list[int]()
    monkeypatch.setattr(BatchRows, "row_chunks", lambda self: (size,) * (N // size))
    monkeypatch.setattr(Device, "slab_bytes", 4 * D * size)

    def slow(*given: Any, **more: Any) -> Any:
        seen.append(len(given[1]))
        threading.Event().wait(0.02)
        return scores(*given, **more)

    monkeypatch.setattr(Device, "scored", slow)
    batches = OneBuffer(X, "array_api_strict:device1", size)
    found = pca.transform(bp.from_batches(batches, shape=X.shape), out=tmp_path / "s.zarr")
    assert seen == [size] * (N // size)
    np.testing.assert_allclose(found.compute(), pca.transform(X), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", DEVICES)
def test_batches_on_a_device_are_mapped_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, moved = lazy().compute(), {"put": 0, "fetch": 0}
    model = bp.PCA(K, nan_policy="omit").fit(X)
    X[[3, 700], 5] = np.nan
    expected, statistics = model.transform(X), model.statistics(X)
    given = batched_there(X, name, monkeypatch)
    found = model.transform(bp.from_batches(given))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.nanmax(np.abs(expected)))
    np.testing.assert_allclose(model.statistics(bp.from_batches(given)), statistics, rtol=2e-5, atol=1e-9)
    stored = model.transform(bp.from_batches(given), out=tmp_path / "scores.zarr")
    assert np.array_equal(stored.compute(), found, equal_nan=True)
    given = batched_there(X[710:], name, monkeypatch)
    watch(monkeypatch, moved)
    model.spe(bp.from_batches(given))
    assert moved["fetch"] < X[710:].nbytes / 10
    assert moved["put"] < 8 * D * (K + 3)


SAMPLED = [(np.arange(0, N, 125), KERNELS[3]), ("uniform", KERNELS[4]), ("rpcholesky", bp.kernels.RBF(1e-4))]


@pytest.mark.parametrize(("sampling", "kernel"), SAMPLED)
@pytest.mark.parametrize("name", DEVICES)
def test_landmarks_and_features_of_rows_that_are_there_are_found_there(
    name: str, sampling: Any, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, moved, m = lazy().compute(), {"put": 0, "fetch": 0}, 12
    model = bp.NystromKernelPCA(K, kernel=kernel, n_landmarks=m, sampling=sampling, random_state=0)
    expected, given = clone(model).fit(X), batched_there(X, name, monkeypatch)
    watch(monkeypatch, moved)
    found = model.fit(bp.from_batches(given))
    fitted = dict(moved)
    scores = found.transform(bp.from_batches(given))
    # Numbers of each row, and the rows that are drawn: of pivoted Cholesky, 10 m candidates of each group.
    assert moved["fetch"] < X.nbytes / (2 if sampling is SAMPLED[2][0] else 10), moved
    assert moved["fetch"] - fitted["fetch"] < 8 * (N * (K + 1) + 2 * D)
    assert moved["put"] < 8 * m * D * 8
    assert found.landmark_indices_.tolist() == expected.landmark_indices_.tolist()
    np.testing.assert_allclose(found.eigenvalues_, expected.eigenvalues_, rtol=1e-9)
    atol = 100 * np.finfo("f4").eps * np.abs(scores).max()
    np.testing.assert_allclose(scores, expected.transform(X), rtol=0, atol=atol)
    assert all("rows are there" in note for note in found.plan_.notes if note.startswith("multiplied by"))


@pytest.mark.parametrize("name", DEVICES)
def test_rows_from_the_cpu_are_compared_with_landmarks_on_a_device(name: str) -> None:
    require(name)
    X, model = lazy(), bp.NystromKernelPCA(K, kernel="rbf", gamma=1e-4, n_landmarks=12, random_state=0)
    expected = clone(model).fit(X)
    with bp.config(arithmetic=name):
        found = model.fit(X)
    assert found.landmark_indices_.tolist() == expected.landmark_indices_.tolist()
    assert np.array_equal(found.landmarks_, expected.landmarks_)
    assert any(note.startswith(f"multiplied by {name}") and "landmarks" in note for note in found.plan_.notes)


class OnDevice(np.ndarray):
    """What a Dask array says of chunks of array-api-strict, which Dask does not know."""

    device = "array_api_strict.Device('device1')"


OnDevice.__module__ = "array_api_strict"


@pytest.mark.parametrize("kind", ["computed", "held"])
@pytest.mark.parametrize("name", ["array_api_strict:device1", "cupy:0"])
def test_chunks_of_a_dask_array_stay_on_their_device(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(name)
    library, _, place = name.partition(":")
    X, moved, meta = lazy(), {"put": 0, "fetch": 0}, np.empty((0, 0), "f4")
    meta = Device(library, place).put(meta) if library == "cupy" else meta.view(OnDevice)
    there = X.map_blocks(lambda block: Device(library, place).put(block), dtype="f4", meta=meta)
    if kind == "held":
        chunks = {("held", i, 0): Device(library, place).put(X.blocks[i].compute()) for i in range(N // 250)}
        there = array_of(HighLevelGraph.from_collections("held", chunks), "held", X.chunks, meta)
        monkeypatch.setattr("bigpca.passes.graphs.cloudpickle.dumps", None)  # which would copy them
    expected, model = bp.PCA(K, solver="covariance").fit(X), bp.FisherDiscriminantAnalysis(1)
    monkeypatch.setattr("bigpca.passes.reading.readers.FIRST_BYTES", 4 * D)
    put = X.nbytes if kind == "computed" else 0  # by the map of the blocks
    watch(monkeypatch, moved)
    found = bp.PCA(K, solver="covariance").fit(there)
    assert moved["put"] < put + 16 * D
    assert moved["fetch"] < 8 * (packed_size(D) + 10 * D)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(expected.transform(there).compute(), expected.transform(X).compute(), atol=1e-3)
    labels = np.arange(N) % 2  # by states of NumPy
    assert np.array_equal(model.fit(there, labels).components_, model.fit(X, labels).components_)
    if kind == "computed":  # dask-ml clusters rows of NumPy
        clusters = bp.NystromKernelPCA(1, kernel="rbf", gamma=1e-3, n_landmarks=4, sampling="kmeans")
        assert np.array_equal(clusters.fit(there[:250]).landmarks_, clusters.fit(X[:250]).landmarks_)


@pytest.mark.filterwarnings("ignore:3.33e-05 of the entries are missing")
def test_missing_values_and_checkpoints_of_rows_there_are_as_of_rows_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "array_api_strict:device1"
    X = lazy().compute()[:, :40]
    whole = bp.PCA(K).fit(bp.from_batches(batched_there(X, name, monkeypatch)), checkpoint=tmp_path / "c")
    again = bp.PCA(K).fit(bp.from_batches(batched_there(X, name, monkeypatch, 40)), checkpoint=tmp_path / "c")
    assert np.array_equal(again.components_, whole.components_)
    changed = batched_there(X + 1, name, monkeypatch)
    with pytest.raises(CheckpointError, match="the input changed"):
        bp.PCA(K).fit(bp.from_batches(changed), checkpoint=tmp_path / "c")
    with bp.config(arithmetic="numpy"):
        here = bp.PCA(K).fit(bp.from_batches(changed))
    assert np.array_equal(here.components_, bp.PCA(K).fit(X + 1).components_)
    X[7, 3], X[900, 1] = np.nan, np.inf
    given = batched_there(X, name, monkeypatch)
    with pytest.raises(NonFiniteError, match=r"in 2 rows of rows 0:1500 .*: rows 7, 900; the first is in column 1, 3"):
        bp.PCA(K).fit(bp.from_batches(given))
    for policy in ("omit", "mean"):
        X[900, 1] = np.nan
        given = batched_there(X, name, monkeypatch)
        found, expected = (bp.PCA(K, nan_policy=policy).fit(one) for one in (bp.from_batches(given), X))
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-12)
        assert found.n_omitted_ == expected.n_omitted_


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i2", "i4", "?"])
def test_every_dtype_of_rows_there_is_that_of_rows_here(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.abs(lazy().compute()[:, :40])
    X = (np.median(X) < X) if dtype == "?" else X.astype(dtype)
    given = X.astype("f4") if dtype == "f2" else X  # which the standard does not have
    batches = batched_there(given, "array_api_strict:device1", monkeypatch)
    for rows in (bp.from_batches(batches), bp.from_batches(iter(batches), X.shape)):
        found = bp.PCA(K).fit(rows)
        np.testing.assert_allclose(found.explained_variance_, bp.PCA(K).fit(X).explained_variance_, rtol=1e-12)
