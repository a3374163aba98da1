"""Rows of several origins are read side by side: as one matrix, in one read of each, whatever their stores."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

import bigpca as bp
from bigpca.engine.run import Run
from bigpca.estimators.shared.inputs import open_rows
from bigpca.passes import side_by_side as side_by_side_module
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.readers import GraphReader
from bigpca.passes.reading.row_maps import EachSide, MapStep
from bigpca.passes.rows import Rows
from bigpca.passes.side_by_side import SidesReader, blocks_of_batches, side_by_side
from bigpca.preprocessing import L2, Power
from tests.passes.kit import assert_moments, bits, folded, logged, normal, reads_in, write_store

Array = NDArray[Any]
N, P, Q = 600, 7, 4
A, B = normal(N, P), normal(N, Q, seed=1, dtype="f8")
SPARSE = np.where(A > 3, A, 0)
pytestmark = pytest.mark.usefixtures("small_groups")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of stores are small, too, so that those of one side end within those of the other."""
    monkeypatch.setattr(side_by_side_module, "PIECE_BYTES", 1)


def beside(*sides: Any, **policies: Any) -> Rows:
    return side_by_side([open_rows(side, "CCA") for side in sides]).begun(**policies)


def moments(rows: Rows, run: Run | None = None) -> Moments:
    return folded(rows, Moments(rows.n_columns), run, name="moments").state


@pytest.fixture
def stores(tmp_path: Path) -> tuple[str, str]:
    write_store(tmp_path / "a.zarr", A, (50, P))
    write_store(tmp_path / "b.zarr", B, (35, 3))
    return str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr")


ORIGINS: dict[str, Callable[[str, str], tuple[Any, Any, Array]]] = {
    "two stores": lambda a, b: (a, b, np.hstack([A, B])),
    "arrays in memory": lambda a, b: (A, B, np.hstack([A, B])),
    "memory beside a store": lambda a, b: (A, b, np.hstack([A, B])),
    "graphs": lambda a, b: (bp.open(a)[:, ::-1] * 2, bp.open(b) - 1, np.hstack([A[:, ::-1] * 2, B - 1])),
    "integers": lambda a, b: (A.astype("u1"), b, np.hstack([A.astype("u1"), B])),
    "sparse beside dense": lambda a, b: (csr_array(SPARSE), b, np.hstack([SPARSE, B])),
    "dense beside sparse halves": lambda a, b: (
        B.astype("f2"), csr_array(SPARSE), np.hstack([B.astype("f2"), SPARSE])
    ),
    "a view": lambda a, b: (
        bp.open(A.reshape(N // 2, 2, P), pattern="n t d -> (n t) d", d=[0, 3]), b, np.hstack([A[:, [0, 3]], B])
    ),
    "unknown numbers": lambda a, b: (
        bp.open(a)[bp.open(a)[:, 0] > 2.5], B[A[:, 0] > 2.5], np.hstack([A, B])[A[:, 0] > 2.5]
    ),
    "a frame": lambda a, b: (pd.DataFrame(A), B, np.hstack([A, B])),
}  # fmt: skip


@pytest.mark.parametrize("name", ORIGINS)
def test_rows_side_by_side_fold_to_the_moments_of_one_matrix(name: str, stores: tuple[str, str]) -> None:
    x, y, together = ORIGINS[name](*stores)
    rows = beside(x, y)
    assert (rows.n_rows, rows.n_columns, sum(rows.widths)) == (*together.shape, together.shape[1])
    assert_moments(moments(rows), together, 3e-6)


def test_an_array_beside_longer_rows_of_a_store_is_read_with_them_and_gives_the_bits_of_a_graph(
    stores: tuple[str, str],
) -> None:
    short = B[:, :2]
    direct, graph = beside(stores[0], short), beside(stores[0], da.from_array(short, chunks=(50, 2)) + 0)
    others = [graph, beside(*stores), beside(stores[0], B)]  # whose rows are cut by those of the array
    assert type(direct.reader(0, 10)[0]) is SidesReader
    assert {type(rows.reader(0, 10)[0]) for rows in others} == {GraphReader}
    assert bits(moments(direct)) == bits(moments(graph))


def test_each_chunk_of_both_sides_is_decoded_once_where_chunks_agree(tmp_path: Path) -> None:
    write_store(tmp_path / "a.zarr", A, (50, P))
    write_store(tmp_path / "b.zarr", B, (50, Q))
    sides = [logged(tmp_path / f"{side}.zarr", tmp_path / side) for side in "ab"]
    rows = beside(*sides)
    assert N * rows.origin.row_bytes == A.nbytes + B.nbytes
    moments(rows)
    each = [(i, i + 50) for i in range(0, N, 50)]
    assert reads_in(tmp_path / "a") == reads_in(tmp_path / "b") == each


def test_row_maps_act_on_the_columns_of_their_side() -> None:
    maps = EachSide(((Power(0.5), L2("keep")), ()), (P, Q))
    for x in (A, csr_array(SPARSE)):
        dense = np.asarray(x.todense()) if isinstance(x, csr_array) else x
        rows = beside(x, B).mapped(MapStep(maps, P + Q))
        expected = L2("keep").apply(Power(0.5).apply(dense, ""), "")
        assert_moments(moments(rows), np.hstack([expected, B]), 3e-6)


def test_weights_are_those_of_the_first_side() -> None:
    w = np.arange(N) % 3
    rows = side_by_side([open_rows(A, "CCA").weighted(w), open_rows(B, "CCA")]).begun()
    repeated = np.hstack([A, B]).repeat(w, axis=0)
    np.testing.assert_allclose(moments(rows).mean, repeated.mean(0), rtol=1e-6)


NAMES = [f"r{i}" for i in range(N)]
FRAME = pd.DataFrame(A, index=NAMES)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (A, B[:-1], "X has 600 rows, and Y 599: row i of Y belongs to row i of X"),
        (FRAME, pd.DataFrame(B, index=NAMES[::-1]), r"in another order: 'r0', 'r1' and 'r599', 'r598'.*by_key\(Y, X\)"),
        (FRAME, pd.DataFrame(B, index=[f"s{i}" for i in range(N)]), "600 of 600 rows have no value"),
        (pd.DataFrame(A), pd.DataFrame(B, index=np.arange(N)[::-1]), "the same index in a different order"),
    ],
)
def test_rows_that_do_not_belong_together_are_rejected(x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        beside(x, y)


def test_equal_keys_are_accepted() -> None:
    assert_moments(moments(beside(FRAME, pd.DataFrame(B, index=NAMES))), np.hstack([A, B]))


def test_chosen_rows_are_compared_by_their_own_keys(tmp_path: Path) -> None:
    x, y = (bp.ingest(one, tmp_path / f"{one.shape[1]}.zarr", keys=NAMES) for one in (A, B))
    for own in (slice(None, None, -1), slice(50, 90), np.array([3, 500, 4])):
        assert_moments(moments(beside(x[own], y[own])), np.hstack([A[own], B[own]]))
        with pytest.raises(ValueError, match=r"X has 600 rows|in another order: 'r0', 'r1' and 'r599', 'r598'"):
            beside(x, y[own])
    with pytest.raises(ValueError, match="40 of 40 rows have no value: 'r50'"):
        beside(x[50:90], y[90:130])


def pairs(size: int, form: str) -> Iterator[Any]:
    for i in range(0, N, size):
        x, y = A[i : i + size], B[i : i + size].astype("f4")
        yield {"first": x, "second": y} if form == "dict" else (x, y)


@pytest.mark.parametrize("form", ["pair", "dict"])
def test_batches_of_blocks_stand_side_by_side_wherever_they_end(form: str) -> None:
    together = np.hstack([A, B.astype("f4")])
    found = []
    for batches, shape in (
        (pairs(13, form), None), (list(pairs(200, form)), None), (pairs(50, form), (N, P if form == "pair" else P + Q)),
    ):  # fmt: skip
        X = bp.from_batches(batches, shape)
        assert X.shape[1] == (P if form == "pair" else P + Q)  # planned, and then read
        rows = [blocks_of_batches(open_rows(X, "CCA")) for _ in range(2)][1]
        assert rows is not None
        assert rows.widths == (P, Q)
        assert_moments(moments(rows.begun()), together, 3e-6)
        found.append(bits(moments(rows.begun())) if isinstance(batches, list) else b"")
    assert blocks_of_batches(open_rows(A, "CCA")) is None


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([A[:9], A[9:20]], "the batches have one array each; pairs"),
        ([{"a": A[:9], "b": B[:8]}], r"blocks of \{'a': 9, 'b': 8\} rows"),
        ([{"a": A[:9]}, {"b": A[:9]}], "has blocks of rows of shapes"),
        ([(A[:9], B[:9]), (A[:9], B[:9, :2])], "has blocks of rows of shapes"),
    ],
)
def test_blocks_that_do_not_belong_together_are_rejected(batches: Any, message: str) -> None:
    def read() -> None:
        rows = blocks_of_batches(open_rows(bp.from_batches(batches), "CCA"))
        assert rows is not None
        moments(rows.begun())

    with pytest.raises(ValueError, match=message):
        read()


def test_rows_in_batches_beside_a_store_are_rejected() -> None:
    with pytest.raises(TypeError, match=r"^X comes in batches, but X and Y are read side by side, in any order, but"):
        beside(bp.from_batches([A]), B)


def test_a_chunk_of_which_rows_are_a_part_is_planned(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", normal(60_000, 64), chunks=(5000, 64))
    write_store(tmp_path / "y.zarr", normal(3000, 80), chunks=(30, 80))
    X, other = bp.open(tmp_path / "x.zarr"), bp.open(tmp_path / "y.zarr")
    whole = X.nbytes  # one of Dask's chunks
    for plan in (
        bp.PCA(2, solver="covariance").plan(X[:, :2]),
        bp.PCA(2, solver="covariance").plan(X[:, [3, 5]]),
        bp.CCA(2).plan(other, X[:3000, :2]),
        bp.PCA(2, solver="covariance").plan(other, covariates=X[:3000, :2]),
    ):
        assert plan.process_bytes > whole
