"""Reads are cut by work: they keep many threads busy, with the same bits on any number of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import bigpca as bp
from bigpca import arrays, blas
from bigpca.engine import layout
from bigpca.engine.layout import Cut, plan_layout
from bigpca.engine.planning import PIECES
from bigpca.passes.project import output_chunk_rows, plan_writing
from bigpca.passes.reading.row_maps import Affine
from bigpca.passes.rows import Rows

DRAWN = {"sample", "landmarks"}  # reads that multiply little, if they multiply
RBF = {"kernel": "rbf", "gamma": 0.01}
FITS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "covariance": lambda X, Y, y: (bp.PCA(5, solver="covariance"), X),
    "krylov": lambda X, Y, y: (bp.PCA(5, solver="krylov"), X),
    "ApproximatePCA": lambda X, Y, y: (bp.ApproximatePCA(5), X),
    "RotatedPCA": lambda X, Y, y: (bp.RotatedPCA(5), X),
    "NystromKernelPCA": lambda X, Y, y: (bp.NystromKernelPCA(5, **RBF, n_landmarks=1000, sampling="uniform"), X),
    "NystromKernelPCA by pivots": lambda X, Y, y: (bp.NystromKernelPCA(5, **RBF, n_landmarks=1000), X),
    "KernelPCA": lambda X, Y, y: (bp.KernelPCA(5, **RBF, solver="krylov"), X),
    "ApproximateKernelPCA": lambda X, Y, y: (bp.ApproximateKernelPCA(5, **RBF), X),
    "Fisher": lambda X, Y, y: (bp.FisherDiscriminantAnalysis(5), X, y),
    "Roweis": lambda X, Y, y: (bp.RoweisDiscriminantAnalysis(5), X, y),
    "SupervisedPCA": lambda X, Y, y: (bp.SupervisedPCA(5), X, y),
    "SupervisedRandomProjection": lambda X, Y, y: (bp.SupervisedRandomProjection(5), X, y),
    "KernelSupervisedPCA": lambda X, Y, y: (bp.KernelSupervisedPCA(5, **RBF), X, y),
    "KernelRoweis": lambda X, Y, y: (bp.KernelRoweisDiscriminantAnalysis(5, **RBF), X, y),
    "CCA": lambda X, Y, y: (bp.CCA(5), X, Y),
    "PLSSVD": lambda X, Y, y: (bp.PLSSVD(5), X, Y),
    "Ridge": lambda X, Y, y: (bp.Ridge(), X, Y),
    "SketchTransformer": lambda X, Y, y: (bp.SketchTransformer(), X),
    "dense kernel": lambda X, Y, y: (bp.KernelPCA(5, **RBF, solver="dense"), X[:20_000]),
    "pairs of a kernel": lambda X, Y, y: (bp.KernelSupervisedPCA(5, **RBF, solver="pairs"), X, y),
    "numbers": lambda X, Y, y: (bp.SupervisedPCA(5), X, np.stack([y / 2] * 7, axis=1)),
    "ScoredPCA": lambda X, Y, y: (bp.ScoredPCA(5, n_features_to_select=X.shape[1]), X, y),
    "cross-validated": lambda X, Y, y: (bp.PCA("cross-validated", solver="covariance"), X),
    "FactorAnalysis": lambda X, Y, y: (bp.FactorAnalysis(5), X),
    "PLSRegression": lambda X, Y, y: (bp.PLSRegression(5), X, Y),
    "ContrastivePCA": lambda X, Y, y: (bp.ContrastivePCA(5), X, y > 4),
    "GeneralizedPCA": lambda X, Y, y: (bp.GeneralizedPCA(5), X, y > 4),
    "SlowFeatureAnalysis": lambda X, Y, y: (bp.SlowFeatureAnalysis(5), X),
    "TICA": lambda X, Y, y: (bp.TICA(5), X),
    "MinimumNoiseFraction": lambda X, Y, y: (bp.MinimumNoiseFraction(5), X),
    "CorrespondenceAnalysis": lambda X, Y, y: (bp.CorrespondenceAnalysis(5), X),
}


@pytest.mark.parametrize(("mib", "d"), [(200, 64), (200, 2048), (2048, 2048)])
def test_every_read_keeps_32_threads_busy(mib: int, d: int) -> None:
    n = mib * 2**20 // (4 * d)
    X, Y = (np.broadcast_to(np.zeros((1, 1), "f4"), (n, columns)) for columns in (d, 64))
    y = (np.arange(n) % 10).astype("u1")
    few, kinds = [], set[type]()
    with (
        dask.config.set(scheduler="threads", num_workers=32),
        bp.config(memory_limit="500 GiB", max_kernel_evaluations=1e15),
    ):
        for name, case in FITS.items():
            model, *given = case(X, Y, y)
            plan = model.plan(*given)
            kinds.add(type(model))
            few += [
                (name, read, busy)
                for read, busy in plan.parallelism.items()
                if busy < 32 and read.removeprefix("fit: ") not in DRAWN
            ]
            assert plan.idle is None or few
        rows = Rows.of(bp.open(X))
        size = output_chunk_rows(rows, 20)
        plan = plan_writing(rows, Affine(np.zeros(d)), 5, size, "scores")
        few += [("transform", *one) for one in plan.parallelism.items() if one[1] < 32]
        assert plan.parallelism
    assert few == []
    public = [getattr(bp, name) for name in bp.__all__]
    assert kinds == {one for one in public if isinstance(one, type) and hasattr(one, "fit")}


@pytest.mark.parametrize("name", ["covariance", "Fisher", "CCA", "MinimumNoiseFraction"])
def test_more_rows_are_cut_into_more_groups_that_take_no_more_memory(name: str) -> None:
    peaks = []
    for n in (131_072, 524_288):
        X = bp.open(zarr.zeros((n, 2048), chunks=(1024, 2048), dtype="f4"))
        with dask.config.set(scheduler="threads", num_workers=2):
            model, *given = FITS[name](X, np.zeros((n, 16), "f4"), (np.arange(n) % 10).astype("u1"))
            peaks.append(model.plan(*given).process_bytes)
    assert peaks[1] <= 1.1 * peaks[0]


@pytest.mark.parametrize(("chunk", "least"), [(2000, 6.5), (100, 31.9)])
def test_idle_threads_multiply_pairs_of_slabs_of_a_dot_matrix_and_read_later_rows(chunk: int, least: float) -> None:
    X = bp.open(zarr.zeros((2000, 26_214), chunks=(chunk, 26_214), dtype="f4"))
    with dask.config.set(scheduler="threads", num_workers=32), bp.config(memory_limit="500 GiB"):
        plan = bp.PCA(5, solver="dot").plan(X)
    assert plan.parallelism["dot"] > least
    assert chunk < 2000 or plan.costs[1].layout.pieces == 1  # threads that only multiply hold no reads


def test_a_plan_says_which_read_leaves_threads_idle_and_which_chunks_would_not() -> None:
    X = bp.open(zarr.zeros((200_000, 256), chunks=(65_536, 256), dtype="f4"))
    with dask.config.set(scheduler="threads", num_workers=16):
        plan = bp.PCA(5, solver="covariance").plan(X)
    assert plan.parallelism["moments"] < 16
    assert plan.idle == (
        "the read 'moments' keeps 4.4 of 16 threads busy; the solve is 0% of the work. It has 4 chunks: "
        "bp.ingest(X, out, chunk_rows=4096)"
    )
    assert f"idle threads  {plan.idle}" in str(plan)
    with dask.config.set(scheduler="threads", num_workers=4):
        assert bp.PCA(5, solver="covariance").plan(X).idle is None


def test_a_plan_counts_no_more_threads_than_the_run_has_and_than_there_are_tiles_of_a_slab() -> None:
    X = bp.open(zarr.zeros((60_000, 256), chunks=(30_000, 256), dtype="f4"))
    with dask.config.set(scheduler="threads", num_workers=16):
        nystrom = bp.NystromKernelPCA(5, **RBF, n_landmarks=500).plan(X)
        exact = bp.KernelPCA(5, **RBF, solver="dense").plan(np.zeros((6000, 64), "f4"))
    tiles = {one.name: one.shared_by for one in nystrom.costs if one.layout.groups}
    assert tiles == {"landmarks": 5, "features": 4}
    assert all(2 < busy < 2 * tiles[read] for read, busy in nystrom.parallelism.items())  # two chunks, each a group
    assert exact.parallelism == {"kernel": 16}


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 3000), min_size=1, max_size=100), d=st.integers(256, 4096),
    work=st.floats(1e12, 1e15), state=st.integers(1, 10**9),
)  # fmt: skip
def test_no_read_of_1e12_operations_has_fewer_than_64_pieces(
    chunks: list[int], d: int, work: float, state: int
) -> None:
    cut = plan_layout(chunks, d, np.dtype("f4"), state, work=work)
    slab = work / sum(chunks) * min(cut.slab_rows, max(chunks))
    assert len(cut.groups) * cut.strips >= min(PIECES, slab // layout.STRIP_WORK)


@pytest.mark.parametrize(("chunk", "groups"), [(512, 59), (937, 64), (1400, 42), (30_000, 2)])
def test_groups_of_whole_chunks_are_about_64(chunk: int, groups: int) -> None:
    chunks = [chunk] * (60_000 // chunk)
    cut = plan_layout(chunks, 2048, np.dtype("f4"), 8 * 2048 * 30, work=60_000 * 4.0 * 2048 * 30)
    assert len(cut.groups) == groups
    assert max(map(len, cut.groups)) == 1


def test_sparse_rows_have_no_strips() -> None:
    assert plan_layout([8000], 1000, np.dtype("f4"), 0, work=1e12).strips == PIECES
    assert plan_layout([8000], 1000, np.dtype("f4"), 0, work=1e12, cut=Cut(strips=False)).strips == 1


@pytest.fixture
def large_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of three chunks, whose products are cut like those of larger rows."""
    monkeypatch.setattr(layout, "STRIP_WORK", 1e4)
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 4096)
    monkeypatch.setattr(arrays, "SUMMED", 256)
    monkeypatch.setattr("bigpca.forms.WIDTH", 16)
    for name in ("STRIP_COLUMNS", "FACTOR_COLUMNS", "STRIP_ROWS"):
        monkeypatch.setattr(blas, name, 8)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6000, 72)) * 0.9 ** np.arange(72) + 3
    array = zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(2000, 72), dtype="f4")
    array[:] = rows
    return tmp_path / "x.zarr"


LANDMARKS = {**RBF, "n_landmarks": 40}
SPLIT = FITS | {
    "dot": lambda X, Y, y: (bp.PCA(3, solver="dot"), X[::6]),
    "KernelPCA": lambda X, Y, y: (bp.KernelPCA(3, **RBF, solver="krylov"), X[:1500]),
    "NystromKernelPCA": lambda X, Y, y: (bp.NystromKernelPCA(5, **LANDMARKS), X),
    "KernelRoweis": lambda X, Y, y: (bp.KernelRoweisDiscriminantAnalysis(2, **LANDMARKS), X, y),
}


@pytest.mark.parametrize(
    "name",
    ["covariance", "krylov", "dot", "ApproximatePCA", "KernelPCA", "NystromKernelPCA", "Fisher", "KernelRoweis", "CCA"],
)
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
def test_split_slabs_give_equal_bits_on_1_2_5_and_16_threads(
    name: str, large_chunks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[int] = []
    each = blas.Crew.each

    def counted(crew: blas.Crew, work: Any, pieces: Any) -> None:
        shared.append(crew.threads)
        each(crew, work, pieces)

    monkeypatch.setattr(blas.Crew, "each", counted)
    X, found = bp.open(large_chunks), []
    for threads in (1, 2, 5, 16):
        with dask.config.set(scheduler="threads", num_workers=threads), bp.config(solve_threads=2):
            model, *given = SPLIT[name](X, X[:, :7], np.arange(6000) % 4)
            found.append(model.fit(*given).transform(X[:9]))
    assert all(np.array_equal(np.asarray(found[0]), np.asarray(one)) for one in found[1:])
    assert set(shared) == {2, 5, 16}
