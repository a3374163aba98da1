"""Views and row maps: one read gives what NumPy makes of the viewed and mapped rows, with their absolute numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

import bigpca as bp
from bigpca import kernels
from bigpca.arrays import mirror_upper
from bigpca.costs import STRIP_BYTES, BlockForm, Work
from bigpca.data.dask_arrays import columns_of, view_of, viewed
from bigpca.data.views import View
from bigpca.engine.checkpoint import Checkpoint
from bigpca.engine.run import Run
from bigpca.estimators.linear.maps import Sketching
from bigpca.passes.accumulators.all_pairs import DotPanels, DotSum
from bigpca.passes.accumulators.base import Accumulator, cost_of
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.accumulators.landmark_moments import LandmarkMap
from bigpca.passes.accumulators.moments import ClassMoments, ColumnMoments, Moments
from bigpca.passes.accumulators.thin_products import DenseFactor, FusedProduct, LeftProduct
from bigpca.passes.fold import FirstRows, Read
from bigpca.passes.panels import ColumnRead, column_layout
from bigpca.passes.project import project_in_memory, project_to
from bigpca.passes.reading.row_maps import Affine, Beside, MapStep, chain_cost
from bigpca.passes.residuals import Residuals
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import Sweep
from bigpca.solvers.landmarks import landmark_transform
from tests.estimators.labelled import centred, labelled_rows, within_scatter
from tests.passes.kit import assert_moments, folded, full, write_store

Array = NDArray[Any]
N, D, C, M = 500, 6, 4, 25
X, Y = labelled_rows(N, D, C, mean=5.0)
DELTA = np.random.default_rng(1).standard_normal((N, 2))
KERNELS = [kernels.RBF(0.1), kernels.Polynomial(2, gamma=0.1, coef0=1.0), kernels.Laplacian(0.2)]
CODES = Y.astype(np.int32)
MEAN, INVERSE = np.linspace(4.0, 6.0, D), np.linspace(0.5, 2.0, D)


def features_of(kernel: kernels.Kernel) -> LandmarkMap:
    T = landmark_transform(np.asarray(kernel(X[:M]), np.float64))
    return LandmarkMap(kernel, X[:M], T, np.full(D, 5.0), np.arange(M))


def labelled_states(r: int, codes: Array = CODES) -> dict[str, Accumulator]:
    return {"classes": ClassMoments(r, C, codes.astype(np.int32)), "cross": LeftProduct(r, DELTA)}


def fold_labelled(rows: Rows, codes: Array = CODES) -> tuple[Any, Any, int]:
    states = labelled_states(rows.n_columns, codes)
    take = lambda s: (s.parts["classes"], s.parts["cross"], s.omitted)  # noqa: E731
    return Read.into(rows, "test", states, cut_bytes=0, work=0.0).to(take)(Run())


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("chunk", [N, 64, 7])
def test_statistics_of_mapped_rows_are_those_of_all_rows_mapped_at_once(kernel: kernels.Kernel, chunk: int) -> None:
    features = features_of(kernel)
    B = np.asarray(kernel(X, X[:M]), np.float64) @ features.transform
    rows = Rows.of(da.from_array(X, chunks=(chunk, D)) + 0).mapped(features.step)
    classes, cross, _ = fold_labelled(rows)
    truth, size = within_scatter(B, Y), np.abs(B).max()
    np.testing.assert_allclose(full(classes.scatter), truth, rtol=0, atol=1e-9 * truth.max())
    np.testing.assert_allclose(classes.means, [B[j == Y].mean(axis=0) for j in range(C)], rtol=0, atol=1e-10 * size)
    np.testing.assert_allclose(cross.about(B.mean(axis=0)), DELTA.T @ centred(B), rtol=0, atol=1e-9 * N * size)


CHAINS: dict[str, tuple[tuple[MapStep, ...], Array]] = {
    "centre and scale": ((MapStep(Affine(MEAN, INVERSE), D),), (X - MEAN) * INVERSE),
    "labels beside": ((MapStep(Beside(DELTA, np.asarray), D + 2),), np.hstack([X, DELTA])),
    "without covariates": (
        (MapStep(Residuals(coef=DELTA[:4], mean=np.append(np.zeros(4), MEAN[4:])), 4),),
        X[:, :4] - (X[:, 4:] - MEAN[4:]) @ DELTA[:4].T,
    ),
    "both, in tiles": (
        (MapStep(Affine(MEAN), D, tile_rows=3), MapStep(Beside(DELTA, np.asarray), D + 2)),
        np.hstack([X - MEAN, DELTA]),
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_maps_acts_in_folds_and_in_what_is_written(chain: str, tmp_path: Path) -> None:
    steps, truth = CHAINS[chain]
    rows = Rows.of(bp.open(write_store(tmp_path / "x.zarr", X, (64, D)))).mapped(*steps)
    assert rows.n_columns == truth.shape[1]
    assert_moments(folded(rows, Moments(rows.n_columns)).state, truth, 1e-12)
    identity = MapStep(Affine(np.zeros(truth.shape[1])), truth.shape[1]).f
    written = project_to(rows, identity, truth.shape[1], tmp_path / "out.zarr", name="rows", run=Run())  # type: ignore[arg-type]
    np.testing.assert_array_equal(written.compute(), truth)
    in_memory = Rows.of(bp.open(X)).mapped(*steps)
    np.testing.assert_array_equal(project_in_memory(in_memory, identity, truth.shape[1]), truth)  # type: ignore[arg-type]


@pytest.mark.parametrize("chain", CHAINS)
def test_sweeps_and_first_rows_are_of_mapped_rows(chain: str) -> None:
    steps, truth = CHAINS[chain]
    rows = Rows.of(da.from_array(X, chunks=(64, D)) + 0).mapped(*steps)
    layout = rows.layout(0)
    first = FirstRows(rows, layout).values(Run())
    np.testing.assert_array_equal(first, truth[: layout.read_rows])
    template, kernel = DotPanels(N, rows.n_columns), kernels.RBF(0.1)
    found = Sweep.of_pairs(rows, kernel, "kernel", template)(Run(), shift=truth.mean(axis=0))
    K = np.exp(-0.1 * cdist(truth, truth, "sqeuclidean"))
    np.testing.assert_allclose(mirror_upper(found.matrix()), K, rtol=0, atol=1e-13)


def test_column_folds_reject_rows_that_are_not_columns_of_a_store(tmp_path: Path) -> None:
    plain = Rows.of(bp.open(write_store(tmp_path / "x.zarr", X, (N, 2))))
    layout = column_layout(plain)
    assert layout is not None
    read = ColumnRead.of_columns(plain, "dot", DotSum(N), layout)
    viewed_rows = Rows.of(columns_of(plain.X, np.array([0, 2])))
    for rows, made in ((plain.mapped(*CHAINS["centre and scale"][0]), "row maps"), (viewed_rows, "a view")):
        assert column_layout(rows) is None
        with pytest.raises(ValueError, match=f"the columns are computed by {made}, but .* Fold over rows"):
            replace(read, rows=rows)(Run())


SAMPLES = np.random.default_rng(3).standard_normal((40, 3 * 4 * 5)) + 2.0
MAPS = SAMPLES.reshape(40, 3, 4, 5)
VIEWS: dict[str, tuple[View, Array]] = {
    "columns": (View((60,), columns=np.array([7, 3, 59])), SAMPLES[:, [7, 3, 59]]),
    "pixels": (View((3, 4, 5), (1, 2)), MAPS.transpose(0, 2, 3, 1).reshape(-1, 3)),
    "tokens": (
        View((12, 5), (0,), (1,), taken=(slice(1, None), slice(None))),
        SAMPLES.reshape(40, 12, 5)[:, 1:].reshape(-1, 5),
    ),
    "some tokens": (
        View((12, 5), (0,), (1,), taken=(np.array([7, 3, 0]), slice(None))),
        SAMPLES.reshape(40, 12, 5)[:, [7, 3, 0]].reshape(-1, 5),
    ),
    "channels of pixels": (
        View((3, 4, 5), (1, 2), columns=np.array([2, 0])),
        MAPS.transpose(0, 2, 3, 1).reshape(-1, 3)[:, [2, 0]],
    ),
}
FORMS: dict[str, Callable[[Path], da.Array]] = {
    "store": lambda folder: bp.open(write_store(folder / "s.zarr", SAMPLES, (7, 60))),
    "memory": lambda folder: bp.open(SAMPLES),
    "graph": lambda folder: da.from_array(SAMPLES, chunks=(9, 25)) + 0,
    "unknown chunks": lambda folder: (da.from_array(SAMPLES, chunks=(9, 60)) + 0)[da.ones(40, chunks=9) > 0],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", VIEWS)
def test_rows_of_a_view_have_the_numbers_and_moments_of_the_rows_that_numpy_cuts(
    name: str, form: str, tmp_path: Path
) -> None:
    view, truth = VIEWS[name]
    X = viewed(FORMS[form](tmp_path), view)
    np.testing.assert_array_equal(X.compute(), truth)
    rows = Rows.of(cloudpickle.loads(cloudpickle.dumps(X)) if form == "store" else X)
    assert rows.origin.view is not None  # read by the engine, not through the graph
    assert_moments(folded(rows, Moments(rows.n_columns)).state, truth, 1e-12)
    chosen = np.array([0, 5, len(truth) - 1])
    kept: Any = folded(rows, RowsAt(rows.n_columns, chosen), shift=np.zeros(rows.n_columns)).state
    np.testing.assert_array_equal(kept.rows[np.argsort(kept.indices)], truth[chosen])
    first, last = len(truth) // 3, len(truth) // 2  # not whole samples
    if form != "graph":
        np.testing.assert_array_equal(rows.reader(first, last)[0].read(first, last), truth[first:last])


def test_a_view_and_maps_are_part_of_the_fingerprint_and_rows_as_they_are_add_nothing(tmp_path: Path) -> None:
    X = bp.open(write_store(tmp_path / "s.zarr", SAMPLES, (7, 60)))
    plain = Rows.of(X)
    assert plain.identity == {}
    chosen, other = (Rows.of(columns_of(X, np.array(columns))) for columns in ([0, 1], [0, 2]))
    centred_rows, elsewhere = (plain.mapped(MapStep(Affine(np.full(60, c)), 60)) for c in (0.0, 1.0))
    weighted = plain.weighted(np.ones(40))
    described = [str(rows.describe()) for rows in (plain, chosen, other, centred_rows, elsewhere, weighted)]
    assert len(set(described)) == len(described)
    checkpoint = Checkpoint(tmp_path / "checkpoint", {})
    for rows in (chosen, other):
        files = checkpoint.files(1, {"m": Moments(2)}, rows.layout(0), rows.identity)
        Path(files.directory, "kept").touch()
        again = checkpoint.files(1, {"m": Moments(2)}, rows.layout(0), rows.identity)
        assert Path(again.directory, "kept").exists()
        if rows is chosen:
            with pytest.warns(UserWarning, match="computed differently"):
                checkpoint.files(1, {"m": Moments(2)}, other.layout(0), other.identity)
    checkpoint.release()


def test_the_cost_of_a_pass_has_the_stored_bytes_of_a_view_and_what_maps_take(tmp_path: Path) -> None:
    X = bp.open(write_store(tmp_path / "s.zarr", SAMPLES, (7, 60)))
    chosen, pixels = Rows.of(columns_of(X, np.arange(3))), Rows.of(viewed(X, VIEWS["pixels"][0]))
    features = MapStep(Affine(np.zeros(3)), 3, flops_per_row=6)
    for rows in (chosen, pixels, chosen.mapped(features)):
        cost = Read.into(rows, "test", Moments(3), cut_bytes=0, work=0.0).cost
        assert cost.bytes_read == SAMPLES.nbytes
        assert cost.peak_bytes >= 2 * 40 * 60 * 8  # the chunk that Dask would decode, twice
    both = (chosen, chosen.mapped(features))
    plain, mapped = (Read.into(r, "test", Moments(3), cut_bytes=0, work=0.0).cost for r in both)
    assert mapped.flops - plain.flops == 6 * 40
    assert mapped.peak_bytes - plain.peak_bytes == 40 * 3 * 8


@pytest.mark.parametrize(
    ("maps", "values", "sparse"),
    [
        ((), (), True),
        ((bp.preprocessing.Power(), bp.preprocessing.L2("keep")), (2, 2), True),
        ((Affine(np.zeros(D), INVERSE), bp.preprocessing.L2("keep")), (2, 2), True),
        ((bp.preprocessing.L2("keep"), Affine(MEAN)), (2, D), False),
        ((Affine(MEAN), bp.preprocessing.L2("keep")), (D, D), False),
        ((Sketching(bp.sketches.Gaussian(D)), bp.preprocessing.L2("keep")), (2, D), False),
    ],
)
def test_sparse_rows_cost_by_their_stored_values_until_a_map_makes_them_dense(
    maps: tuple[Any, ...], values: tuple[int, ...], sparse: bool
) -> None:
    steps = tuple(MapStep(f, D, flops_per_row=6 * D) for f in maps)
    work, after = chain_cost(steps, BlockForm(D, 50, 2))
    assert (after.columns, after.sparse) == (D, sparse)
    assert work.flops == 6 * sum(values)
    whole, dense = chain_cost(steps, BlockForm(D, 50))
    assert dense == BlockForm(D, 50)
    assert whole.flops == 6 * D * len(maps)
    if sparse:
        wide = chain_cost(tuple(MapStep(f, 1000) for f in maps), BlockForm(1000, 50, 2))[0]
        assert wide == replace(work, flops=0)


def test_states_of_sparse_rows_cost_by_their_stored_values_or_by_dense_strips() -> None:
    few, many, dense = BlockForm(2_000, 500, 20), BlockForm(2_000, 500, 100), BlockForm(2_000, 500)
    for state in (Moments(2_000), FusedProduct.of(2_000, DenseFactor(np.zeros((2_000, 30))))):
        assert cost_of(state, few).flops < 0.3 * cost_of(state, many).flops
    made_dense = ColumnMoments(2_000)
    assert cost_of(made_dense, few) == Work(STRIP_BYTES) + made_dense.cost(dense)


def test_an_array_cut_after_its_view_is_a_graph_like_any_other() -> None:
    X = columns_of(bp.open(SAMPLES), np.array([4, 2]))
    assert view_of(X)[1] is not None
    assert view_of(X[3:])[1] is None
    rows = Rows.of(X[3:])
    assert rows.origin.view is rows.source is None
    assert_moments(folded(rows, Moments(2)).state, SAMPLES[3:, [4, 2]], 1e-12)


def test_maps_travel_once_and_prepared_landmarks_do_not_travel() -> None:
    features = features_of(KERNELS[0])
    features.prepare(np.dtype("f8"))
    back = cloudpickle.loads(cloudpickle.dumps(features))
    assert features._prepared
    assert back._prepared == {}
    assert back.describe() == features.describe() != features_of(kernels.RBF(0.11)).describe()
