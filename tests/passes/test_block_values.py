"""Weights and sparse rows reach the accumulators of a fold, or are rejected."""

from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

import bigpca as bp
from bigpca.csr import SPARSE_SLAB_BYTES
from bigpca.data.sparse import csr_block, row_range
from bigpca.engine.layout import Cut, plan_layout
from bigpca.kernels import Linear
from bigpca.passes.accumulators.all_pairs import KernelProduct
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.accumulators.row_weights import BestRows, Ones
from bigpca.passes.accumulators.thin_products import DenseFactor, FusedProduct, SketchFactor
from bigpca.passes.fold import FoldGroup
from bigpca.passes.prices import counting_reads
from bigpca.passes.reading.readers import Reader
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import Sweep
from bigpca.sketches import Gaussian
from tests.passes.kit import assert_moments, folded, normal, scatter_of

N, D = 300, 7
X = normal(N, D, dtype="f8")
W = np.random.default_rng(2).standard_normal((D, 3))


def test_states_that_cannot_use_weights_are_rejected_before_the_read() -> None:
    rows = Rows.of(da.from_array(X).map_blocks(_never, dtype="f8")).weighted(np.ones(N))
    with pytest.raises(TypeError, match=r"the rows have weights .*, which BestRows cannot use"):
        folded(rows, BestRows(D, 5, Ones(), 3, "race"))
    kernel = KernelProduct(N, 3, np.zeros((N, 3)))
    with pytest.raises(TypeError, match="which a kernel matrix of all rows cannot use"):
        Sweep.of_pairs(rows, Linear(), "test", kernel)


def _never(block: Any) -> Any:
    raise AssertionError("rows were read")


@dataclass(frozen=True)
class SparseReader(Reader):
    """Rows of a CSR matrix, as a reader of sparse stores gives them."""

    rows: csr_array
    owned: bool = True

    def read(self, start: int, stop: int) -> csr_array:
        return self.rows[start:stop]

    def where(self, start: int, stop: int) -> str:
        return f"rows {start}:{stop}"


def sparse_rows() -> csr_array:
    return csr_array(random_array((N, D), density=0.2, rng=np.random.default_rng(0), format="csr"))


def sparse_group(rows: csr_array, nan_policy: str = "raise") -> FoldGroup:
    states = {
        "moments": Moments(D), "product": FusedProduct.of(D, DenseFactor(W)),
        "sketched": FusedProduct.of(D, SketchFactor(Gaussian(3), D, probes=2)),
    }  # fmt: skip
    reads = ((0, 100), (100, N))
    return FoldGroup(
        index=0,
        reader=SparseReader(rows),
        reads=reads,
        slab_rows=64,
        dtype=np.dtype("f8"),
        nan_policy=nan_policy,
        templates=states,
    )  # type: ignore[arg-type]


def test_slabs_of_sparse_rows_share_the_memory_of_their_read() -> None:
    given = sparse_rows()
    rows = csr_block(given.data, given.indices, given.indptr, D, "rows")
    for start, stop in ((0, N), (7, N - 10), (90, N + 5), (3, 90), (3, 3)):
        part = row_range(rows, start, stop)
        np.testing.assert_array_equal(part.toarray(), rows[start:stop].toarray())
        shared = stop - start > 0.6 * N
        assert (np.shares_memory(part.data, rows.data), np.shares_memory(part.indices, rows.indices)) == (
            shared,
            shared,
        )


def test_reads_of_sparse_rows_are_as_large_whatever_the_rounding_of_their_chunks() -> None:
    """Chunks of nearly 32 MiB, of stores with 200,000 and 1,000,000 rows of 1,520 values."""
    for chunk, row_bytes in ((2715, 12361), (2706, 12363)):
        layout = plan_layout([chunk] * 100, 30_000, np.dtype("f4"), 0, row_bytes=row_bytes, cut=Cut(SPARSE_SLAB_BYTES))
        assert layout.read_rows == chunk <= layout.slab_rows


def test_sparse_rows_are_folded_without_a_shift_and_made_dense_in_strips_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigpca.csr.STRIP_BYTES", 10 * D * 8)
    rows, truth = sparse_rows(), sparse_rows().toarray()
    made: list[int] = []
    dense = csr_array.toarray
    monkeypatch.setattr(csr_array, "toarray", lambda self: made.append(self.shape[0]) or dense(self))
    state: Any = sparse_group(rows).run("run", {})
    assert_moments(state.parts["moments"], truth, 1e-13)
    products, centred = state.parts["product"], scatter_of(truth)
    np.testing.assert_allclose(products.centred(), centred @ W, atol=1e-12 * centred.max())
    np.testing.assert_allclose(products.centred_squares(), np.diag(centred), atol=1e-12 * centred.max())
    sketched = state.parts["sketched"]
    Z = sketched.factor.multiply(truth - truth.mean(axis=0))
    np.testing.assert_allclose(sketched.centred(), (truth - truth.mean(axis=0)).T @ Z, atol=1e-11 * centred.max())
    assert max(n for n in made if n != 64) <= 64
    assert made.count(10) >= N // 10 - 6


def test_the_stored_values_of_a_computed_array_are_counted_in_some_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sparse_rows()
    X = da.from_array(rows, chunks=(20, D)).map_blocks(lambda block: block * 2, dtype="f8", meta=rows[:0])
    assert Rows.of(X).origin.values_per_sample == D  # small chunks are taken to be full
    monkeypatch.setattr("bigpca.passes.rows.COUNTED_BYTES", 0)
    few, many = Rows.of(X), Rows.of(da.concatenate([X, X]))
    assert few.origin.values_per_sample == rows[140:160].nnz / 20
    assert many.origin.values_per_sample == (rows[:20].nnz + rows[:20].nnz + rows[N - 20 :].nnz) / 60
    assert few.layout(0).row_bytes < D * 8
    (counted,) = counting_reads(few)
    assert (counted.reads, counted.bytes_read) == (20 / N, int(20 * few.origin.row_bytes))
    model = bp.PCA(2, solver="covariance").fit(X)
    assert model.plan_.passes == round(1 + 20 / N, 2)
    np.testing.assert_allclose(model.explained_variance_, bp.PCA(2).fit(2 * rows.toarray()).explained_variance_)
