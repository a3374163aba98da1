"""The dot matrix over pairs of row panels, or over column blocks, equals NumPy and does not depend on how it was
cut.
"""

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca.arrays import mirror_upper
from bigpca.engine.run import Run
from bigpca.passes.accumulators.all_pairs import ColumnProducts, DotSum, double_centre
from bigpca.passes.fold import FirstRows
from bigpca.passes.panels import ColumnRead, PanelRead, column_layout
from bigpca.passes.rows import Rows
from tests.passes.kit import logged, normal, reads_in, write_store

N, D = 120, 300
pytestmark = pytest.mark.usefixtures("small_groups")


def take_matrix(state: Any) -> NDArray[np.float64]:
    return mirror_upper(state.parts["dot"].matrix())


def dot_of(X: da.Array, panels: int, *, centre: bool = True, **options: Any) -> NDArray[np.float64]:
    rows = Rows.of(X)
    read, run = PanelRead.of_panels(rows, panels), Run(**options)
    shift = FirstRows(rows, read.cost.layout)(run) if centre else np.zeros(rows.n_columns)
    G = read.to(take_matrix)(run, shift=shift)
    if centre:
        double_centre(G)
    return mirror_upper(G)


def truth_of(A: NDArray[Any]) -> NDArray[np.float64]:
    centred = A.astype("f8") - A.astype("f8").mean(axis=0)
    product: NDArray[np.float64] = centred @ centred.T
    return product


@pytest.mark.parametrize(("mean", "panels"), [(0.0, 3), (1.0, 3), (100.0, 3), (1e4, 1), (1e4, 3), (1e4, 100)])
def test_panels_give_the_centred_dot_matrix_whatever_the_offset(mean: float, panels: int, tmp_path: Path) -> None:
    A = normal(N, D, mean=mean)
    found = dot_of(bp.open(write_store(tmp_path / "x.zarr", A, (7, D))), panels)
    truth = truth_of(A)
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-6 * np.abs(truth).max())


def test_the_number_of_panels_changes_no_bit_and_reads_are_counted(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", normal(N, D), (10, D))
    results = []
    for panels in (1, 2, 4, 12):
        log = tmp_path / f"log-{panels}"
        with dask.config.set(scheduler="sync"):
            results.append(dot_of(logged(tmp_path / "x.zarr", log), panels, centre=False).tobytes())
        assert len(reads_in(log)) == 12 * (panels + 1) // 2
    assert len(set(results)) == 1


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_column_blocks_give_the_dot_matrix_and_the_components_product(
    center: bool, scale: bool, tmp_path: Path
) -> None:
    A = normal(40, 500, mean=50.0)
    rows = Rows.of(bp.open(write_store(tmp_path / "x.zarr", A, (20, 30))))
    layout = column_layout(rows)
    if layout is None:
        raise ValueError("the store is chunked in columns")
    wide = A.astype("f8")
    Y = (wide - wide.mean(0) if center else wide) / (wide.std(0) if scale else 1.0)
    sums = DotSum(40, center, scale)
    G = ColumnRead.of_columns(rows, "dot", sums, layout)(Run()).matrix()
    np.testing.assert_allclose(mirror_upper(G), Y @ Y.T, rtol=0, atol=1e-6 * np.abs(Y @ Y.T).max())
    V = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 3)))[0]
    products = ColumnProducts(500, V, center, scale)
    found = ColumnRead.of_columns(rows, "components", products, layout)(Run()).product()
    np.testing.assert_allclose(found, V.T @ Y, rtol=0, atol=1e-5 * np.abs(V.T @ Y).max())


def test_a_store_of_whole_rows_has_no_column_layout(tmp_path: Path) -> None:
    assert column_layout(Rows.of(bp.open(write_store(tmp_path / "x.zarr", normal(9, 8), (3, 8))))) is None
    general = Rows.of(bp.open(write_store(tmp_path / "y.zarr", normal(9, 8), (3, 2))) * 2)
    read = ColumnRead.of_columns(general, "dot", DotSum(9), general.layout(0))
    with pytest.raises(ValueError, match="the columns are computed by a Dask graph, but column blocks"):
        read(Run())


def test_nan_in_a_panel_or_a_column_block_is_reported(tmp_path: Path) -> None:
    A = normal(N, D)
    A[33, 44] = np.nan
    with pytest.raises(bp.errors.NonFiniteError, match=r"the first is in row 33, column 44"):
        dot_of(bp.open(write_store(tmp_path / "x.zarr", A, (10, D))), 3, centre=False)
    rows = Rows.of(bp.open(write_store(tmp_path / "y.zarr", A, (60, 50))))
    layout = column_layout(rows)
    if layout is None:
        raise ValueError("the store is chunked in columns")
    with pytest.raises(
        bp.errors.NonFiniteError, match=r"1 NaN or infinite value in 1 row of columns 0:50 of .*: row 33; .*column 44"
    ):
        ColumnRead.of_columns(rows, "dot", DotSum(N), layout)(Run())
