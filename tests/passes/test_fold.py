"""However an array was made, direct from a store or by any Dask graph, folding it equals NumPy on the whole matrix."""

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

import bigpca as bp
from bigpca.data import checks
from bigpca.engine import layout, local
from bigpca.errors import MemoryBudgetError
from bigpca.passes import graphs
from bigpca.passes.rows import Origin
from tests.passes.kit import assert_moments, logged, moments_of, normal, reads_in, write_store

Array = NDArray[Any]
N, D = 600, 12
A = normal(N, D)
ORDER = np.random.default_rng(1).permutation(N)
pytestmark = pytest.mark.usefixtures("small_groups")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    return write_store(tmp_path / "x.zarr", A, (50, D))


GRAPHS: dict[str, tuple[Callable[[da.Array], da.Array], Callable[[Array], Array]]] = {
    "as it is": (lambda X: X, lambda A: A),
    "sliced": (lambda X: X[7:-3:2, 1:], lambda A: A[7:-3:2, 1:]),
    "reversed": (lambda X: X[::-1], lambda A: A[::-1]),
    "rechunked to odd sizes": (lambda X: X.rechunk(((77,) * 7 + (61,), (5, 4, 3))), lambda A: A),
    "in memory, rechunked to pieces": (lambda X: da.from_array(A, chunks=(10, D)).rechunk((13, 3)), lambda A: A),
    "one chunk": (lambda X: X.rechunk(-1), lambda A: A),
    "one row a chunk": (lambda X: X[:90].rechunk((1, D)), lambda A: A[:90]),
    "scaled": (lambda X: 2 * X + 1, lambda A: 2 * A + 1),
    "centred": (lambda X: X - X.mean(0), lambda A: A - A.mean(0)),
    "standardised": (lambda X: (X - X.mean(0)) / X.std(0), lambda A: (A - A.mean(0)) / A.std(0)),
    "centred in column chunks": (lambda X: X.rechunk((40, 5)) - X.rechunk((40, 5)).mean(0), lambda A: A - A.mean(0)),
    "empty chunks between": (lambda X: da.concatenate([X[:0], X[:100], X[100:100], X[100:]]), lambda A: A),
    "concatenated": (lambda X: da.concatenate([X, X + 1]), lambda A: np.concatenate([A, A + 1])),
    "sampled in order": (lambda X: X[np.sort(ORDER[:300])], lambda A: A[np.sort(ORDER[:300])]),
    "few chunks shuffled": (lambda X: X.rechunk((100, D))[ORDER], lambda A: A[ORDER]),
    "ends and middle share chunks": (lambda X: X[np.r_[40:50, 0:N, 40:50]], lambda A: A[np.r_[40:50, 0:N, 40:50]]),
    "unknown chunk sizes": (lambda X: X[X[:, 0] > 3], lambda A: A[A[:, 0] > 3]),
    "optimised by Dask": (lambda X: dask.optimize(2 * X[3:])[0], lambda A: 2 * A[3:]),
    "persisted": (lambda X: (X + 1).persist(), lambda A: A + 1),
    "persisted and sliced": (lambda X: (X + 1).persist()[5:], lambda A: A[5:] + 1),
    "from delayed": (
        lambda X: da.concatenate([da.from_delayed(dask.delayed(np.ones)((50, D), "f4"), (50, D), "f4"), X]),
        lambda A: np.concatenate([np.ones((50, D), "f4"), A]),
    ),
    "float64": (lambda X: X.astype("f8"), lambda A: A.astype("f8")),
    "multiplied": (lambda X: X @ da.from_array(np.eye(D, 5, dtype="f4")), lambda A: A[:, :5]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_general_array_folds_to_what_numpy_says(name: str, store: Any) -> None:
    make, answer = GRAPHS[name]
    assert_moments(moments_of(make(da.from_zarr(store))), answer(A), 3e-6)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "name",
    ["as it is", "rechunked to odd sizes", "centred", "persisted", "persisted and sliced", "unknown chunk sizes"],
)
def test_a_general_array_folds_to_the_same_on_a_cluster(name: str, store: Any, client: Client) -> None:
    make, answer = GRAPHS[name]
    assert_moments(moments_of(make(da.from_zarr(store))), answer(A), 3e-6)


@pytest.mark.parametrize(
    ("chunks", "options"),
    [((50, 5), {}), ((1, D), {}), ((599, D), {}), ((600, 1), {}), ((10, D), {"shards": (100, D)}), ((7, 7), {})],
)
def test_stores_in_chunks_of_any_shape_fold_to_the_same_moments(
    chunks: tuple[int, int], options: dict[str, Any], tmp_path: Path
) -> None:
    assert_moments(moments_of(da.from_zarr(write_store(tmp_path / "y.zarr", A, chunks, **options))), A)


def test_a_stored_chunk_that_rechunk_cut_is_read_once_a_group_and_not_once_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUPS", 3)
    write_store(tmp_path / "y.zarr", A, (100, D))
    X = logged(tmp_path / "y.zarr", tmp_path / "log", chunk_rows=100).rechunk((10, D))
    assert_moments(moments_of(X), A)
    assert reads_in(tmp_path / "log") == [(i, i + 100) for i in range(0, N, 100)]


def test_shared_means_are_computed_once_and_not_by_every_group(tmp_path: Path) -> None:
    write_store(tmp_path / "y.zarr", A, (50, D))
    X = logged(tmp_path / "y.zarr", tmp_path / "log", chunk_rows=50)
    moments_of((X - X.mean(0)) / X.std(0))
    assert len(reads_in(tmp_path / "log")) == 2 * 12  # once for mean and deviation, once for the fold


def test_a_chunk_that_is_read_for_itself_and_for_the_mean_is_not_sent_to_every_group(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "SHARED_BYTES", 8 * D)  # the mean, and no chunk
    X = da.from_zarr(store)[:100]  # whole chunks: Dask gives them another name
    assert_moments(moments_of(X - X.mean(0)), A[:100] - A[:100].mean(0))


def test_two_groups_read_the_stored_chunk_at_their_border_and_are_not_sent_it(tmp_path: Path) -> None:
    X = da.from_zarr(write_store(tmp_path / "y.zarr", A, (400, D)))[np.arange(N) % 5 != 0]
    first = X.chunks[0][0]
    assert all(len(graphs.GraphSource(X).cut(i, j)[0].blob) < A.nbytes / 4 for i, j in [(0, first), (first, 480)])
    assert_moments(moments_of(X), A[np.arange(N) % 5 != 0])


HELD = csr_matrix(np.where(A > 3, A, 0))
FROM_MEMORY: dict[str, Callable[[], da.Array]] = {
    "CSR, mapped": lambda: da.from_array(HELD, chunks=(20, D)).map_blocks(lambda block: 2 * block),
    "CSR, sliced": lambda: 2 * da.from_array(HELD, chunks=(20, D))[1:],
    "source, sliced": lambda: 2 * bp.open(HELD)[1:],
    "chunks of CSR": lambda: da.concatenate([da.from_array(HELD[i : i + 20]) for i in range(0, N, 20)]),
    "delayed chunks of CSR": lambda: da.concatenate(
        [da.from_delayed(dask.delayed(HELD[i : i + 20]), (20, D), meta=HELD[:0]) for i in range(0, N, 20)]
    ),
    "delayed chunks": lambda: da.concatenate(
        [da.from_delayed(dask.delayed(A[i : i + 20]), (20, D), A.dtype) for i in range(0, N, 20)]
    ),
}


@pytest.mark.parametrize("name", FROM_MEMORY)
def test_a_group_is_sent_its_own_rows_of_what_is_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigpca.data.dask_arrays.DASK_CHUNK_BYTES", 1000)
    monkeypatch.setattr("bigpca.data.sparse.NATIVE_BYTES", 1000)
    X = FROM_MEMORY[name]()
    source = graphs.GraphSource(X)
    whole, part = (len(source.cut(0, rows)[0].blob) for rows in (int(X.shape[0]) - 9, 100))
    assert part < whole / 4
    rows = X.compute()
    assert_moments(moments_of(X), rows.toarray() if issparse(rows) else rows)


@pytest.mark.parametrize("chunk_rows", [64, 16])
def test_few_rows_are_read_of_chunks_that_hold_few_of_many_columns(chunk_rows: int) -> None:
    wide = normal(64, 640)
    X = 2 * da.from_array(wide, chunks=(chunk_rows, 5))
    np.testing.assert_array_equal(graphs.GraphSource(X).cut(14, 18)[0].read(14, 18), 2 * wide[14:18])


def test_a_graph_of_which_every_group_reads_everything_is_rejected_and_ingest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUPS", 4)
    X = da.from_zarr(write_store(tmp_path / "y.zarr", A, (5, D)))
    X = da.concatenate([X[:5], X[ORDER], X[-5:]])
    message = (
        r"group of \d+ rows of the Dask array .* needs \d+ input chunks instead of \d+, so most "
        r"of the input would be read again for every group\. Write the array once with bp\.ingest\(X, out\)"
    )
    with pytest.raises(ValueError, match=message):
        moments_of(X)


TWO_STEPS = pytest.mark.skipif(da.array_expr_enabled(), reason="Dask's expressions cannot rechunk in two steps yet")


@TWO_STEPS
@pytest.mark.parametrize("turn", [lambda X: X.rechunk((-1, 10)).T, lambda X: X[:40] @ X.T])
def test_input_that_all_groups_need_whole_is_rejected_before_it_is_all_in_memory(
    turn: Callable[[da.Array], da.Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "SHARED_BYTES", 8 * 4 * 640)  # 8 of the 64 chunks
    write_store(tmp_path / "w.zarr", normal(64, 640), (1, 640))
    X = turn(logged(tmp_path / "w.zarr", tmp_path / "log", chunk_rows=1).rechunk((8, 640)))
    with pytest.raises(
        MemoryBudgetError, match=r"share .* MiB of computed nodes, .* Write the array once with bp.ingest"
    ):
        moments_of(X)
    assert len(reads_in(tmp_path / "log")) <= 2 * 64  # a few nodes were computed, not all


@TWO_STEPS
def test_a_store_seen_by_columns_is_folded_where_it_is_small_enough_to_be_sent_to_every_group(tmp_path: Path) -> None:
    wide = normal(64, 640)
    X = da.from_zarr(write_store(tmp_path / "w.zarr", wide, (1, 640)))
    assert_moments(moments_of(X.rechunk((-1, 10)).T), wide.T)


def test_a_chunk_with_other_rows_than_promised_is_an_error_that_says_which(store: Any) -> None:
    X = da.from_zarr(store).map_blocks(lambda block: block[:-1], dtype="f4", chunks=((50,) * 12, (D,)))
    with pytest.raises(
        ValueError,
        match=r"a chunk of the Dask array .* has shape \(49, \d+\), but the Dask array declares \(50, "
        r".*compute_chunk_sizes",
    ):
        moments_of(X)


@pytest.mark.parametrize("policy", ["omit", "weights"])
def test_rows_that_are_left_out_cost_the_others_no_digits(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group begins with slabs of 25 rows that are left out, then one that is left out in part."""
    for name in ("SLAB_BYTES", "MIN_SLAB_BYTES"):
        monkeypatch.setattr(layout, name, 8 * D * 25)
    B = normal(2000, D, mean=1e7).astype("f8")
    B[:, 1] = 0.1
    out = np.arange(2000) % 500 < 130
    R = B[~out] - B[~out].mean(axis=0)
    B[out] = 1e13
    if policy == "omit":
        B[out, 0] = np.nan
    X = bp.open(write_store(tmp_path / "b.zarr", B, (50, D)))
    nan_policy = "omit" if policy == "omit" else "raise"
    weights = (~out).astype("f8") if policy == "weights" else None
    model = bp.PCA(3, solver="covariance", nan_policy=nan_policy).fit(X, sample_weight=weights)
    truth = np.linalg.eigvalsh(R.T @ R / (len(R) - 1))[::-1][:3]
    np.testing.assert_allclose(model.explained_variance_, truth, rtol=1e-10)
    assert model.set_params(scale=True).fit(X, sample_weight=weights).scale_[1] == 1


def test_mapped_rows_may_begin_with_a_read_that_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLAB_BYTES", "MIN_SLAB_BYTES"):
        monkeypatch.setattr(layout, name, 4 * D * 25)
    monkeypatch.setattr(checks, "READABLE_BYTES", 4 * D * 25)
    B = normal(500, D, mean=3.0)
    B[:50, 0] = np.nan
    X = bp.open(write_store(tmp_path / "b.zarr", B, (50, D)))
    model = bp.NystromKernelPCA(2, gamma=0.1, sampling=B[-20:], preprocess=bp.preprocessing.L2(), nan_policy="omit")
    found, expected = model.fit(X).eigenvalues_, model.fit(B[50:]).eigenvalues_
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_zarr_array_that_was_deleted_is_an_error_and_not_zeros(store: Any, tmp_path: Path) -> None:
    X = da.from_zarr(store)
    zarr.open_group(tmp_path, mode="a")
    os.rename(tmp_path / "x.zarr", tmp_path / "elsewhere.zarr")
    with pytest.raises(FileNotFoundError, match="holds no Zarr array"):
        moments_of(X)


@pytest.mark.parametrize("threads", [1, 2])
def test_few_states_wait_to_be_merged_however_many_groups_there_are(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 1)
    monkeypatch.setattr(layout, "MIN_GROUPS", 120)
    write_store(tmp_path / "x.zarr", np.random.default_rng(0).normal(size=(240, 3)), (2, 3))
    live, most, lock, run_group, begin = [0], [0], threading.RLock(), local.run_group, local.begin_read
    begun, ahead = [0], list[tuple[int, int]]()

    def count(change: int) -> None:
        with lock:
            live[0] += change
            most[0] = max(most[0], live[0])

    def counted(*given: Any) -> Any:
        before = begun[0]
        state = run_group(*given)
        count(1)
        ahead.append((before - len(ahead), begun[0] - len(ahead)))
        weakref.finalize(state.parts["state"], count, -1)
        return state

    def begins(*given: Any) -> Any:
        begun[0] += 1
        return begin(*given)

    monkeypatch.setattr(local, "run_group", counted)
    monkeypatch.setattr(local, "begin_read", begins)
    monkeypatch.setattr(Origin, "requests", (1, 1))  # as of an object store, where each group begins the next one
    with dask.config.set(scheduler="threads", num_workers=threads):
        bp.PCA(2, solver="covariance").fit(bp.open(tmp_path / "x.zarr"))
    assert 1 < most[0] <= 4 * threads
    assert len(ahead) == 120
    assert threads > 1 or ahead == [(1, 2)] * 119 + [(1, 1)]  # reads begun and not folded: its own, and the next one's
