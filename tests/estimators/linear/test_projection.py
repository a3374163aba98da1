"""Row maps say what memory they take, and the plan of writing counts it: measured, both sides of the bound."""

from pathlib import Path

import dask
import numpy as np
import pytest
from obstore.store import MemoryStore

import bigpca as bp
from bigpca.estimators.linear.maps import LogLikelihood, Projection, Reconstruction, Sketching
from bigpca.estimators.linear.monitoring import Contributions, StatisticsMap
from bigpca.estimators.linear.shrinkage import AugmentedScores
from bigpca.estimators.supervised.linear_supervised import ClassDistance
from bigpca.estimators.supervised.scored_pca import Selected
from bigpca.passes.project import plan_writing
from bigpca.passes.reading.row_maps import Copy, RowMap
from bigpca.passes.rows import Rows
from bigpca.sketches import SRHT, Downsample, FeatureHash, Gaussian, SparseSign
from bigpca.sketches.base import CACHE
from bigpca.storage import places
from bigpca.storage.outputs import NpyForm
from tests.estimators.stores import unreadable
from tests.peaks import traced_peak

D, K, ROWS = 2000, 200, 800
HEADERS = 2**14  # of the arrays themselves, and of what a long process does beside
ONES, AXES = np.ones(D), np.random.default_rng(0).standard_normal((K, D))
PLAIN = Projection(ONES, None, AXES)
MAPS: dict[str, RowMap] = {
    "projection": PLAIN,
    "scaled and whitened": Projection(ONES, 2 * ONES, AXES, np.ones(K)),
    "likelihood": LogLikelihood(PLAIN, np.ones(K), 0.5),
    "statistics": StatisticsMap(PLAIN, np.ones(K), 0.5, ("t2", "spe")),
    "contributions": Contributions(PLAIN, np.ones(K), "t2"),
    "corrected": AugmentedScores(Projection(ONES, 2 * ONES, AXES[:9]), np.ones(9)),
    "class distance": ClassDistance(ONES, np.ones((D, D)), np.ones((30, D)), 0.0),
    "reconstruction": Reconstruction(np.ones(K), np.ones(K), AXES.T.copy(), np.ones(D)),
    "gaussian": Sketching(Gaussian(K)),
    "omitting": Sketching(FeatureHash(K), "omit"),
    "sparse sign": Sketching(SparseSign(K)),
    "feature hash": Sketching(FeatureHash(K)),
    "srht": Sketching(SRHT(K)),
    "downsample": Sketching(Downsample((50, 40), (25, 8))),
    "cast": Copy("<f2"),
    "selected": Selected(np.arange(0, D, 2), Projection(ONES[::2], None, AXES[:, ::2].copy())),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "f4") for name in MAPS),
        *((name, "f8") for name in ("projection", "statistics", "gaussian", "selected")),
    ],
)
def test_applying_a_map_takes_what_it_says_and_not_a_third_of_it(name: str, dtype: str) -> None:
    f = MAPS[name]
    rows = np.random.default_rng(1).standard_normal((ROWS, D)).astype(dtype)
    if getattr(f, "nan_policy", "raise") == "omit":
        rows[3, 5] = np.nan

    def apply() -> None:
        CACHE.clear()
        f.apply(rows, "rows")

    measured = min(traced_peak(apply) for _ in range(3))  # what other threads allocate meanwhile is traced too
    said, kept = f.bytes_for(D, ROWS, rows.itemsize)
    assert measured <= said + kept + HEADERS
    assert measured >= (said + kept) / 3


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", ">f8"])
def test_rows_are_centred_strip_by_strip_and_the_first_bad_one_is_named(dtype: str) -> None:
    rows = np.random.default_rng(2).integers(0, 200, (1001, D)).astype(dtype)
    scores = PLAIN.apply(rows, "rows")
    assert scores.dtype == PLAIN.output_dtype(rows.dtype)
    np.testing.assert_allclose(
        scores, (rows.astype(float) - ONES) @ AXES.T, rtol=0, atol=5e3 * np.finfo(scores.dtype).eps * D
    )
    if rows.dtype.kind == "f":
        rows[777, 5] = np.inf
        with pytest.raises(
            bp.errors.NonFiniteError, match=r"1 NaN or infinite value in 1 row of rows: the first in its row 777"
        ):
            PLAIN.apply(rows, "rows")


def planned(f: RowMap, d: int, threads: int) -> int:
    with dask.config.set(scheduler="threads", num_workers=threads):
        return plan_writing(Rows.of(unreadable(1000, d, 100, np.float32)), f, 10, 100, "rows").process_bytes


def test_a_plan_counts_the_chunks_in_flight_to_an_object_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, table = Rows.of(unreadable(100_000, 20, 1000, np.float32)), NpyForm(())
    local, far = (
        plan_writing(rows, Sketching(Gaussian(10)), 10, 1000, "rows", table, place=far) for far in (None, MemoryStore())
    )
    assert far.process_bytes - local.process_bytes == far.flight_bytes == 64 * 40_000
    assert (local.requests, far.requests, far.notes) == (0, 100, local.notes)
    monkeypatch.setattr(places, "LARGEST_PUT", 8)
    with pytest.raises(bp.errors.OutputWriteError, match=r"a table of 4,000,000 bytes .* at most 8\. Write a Zarr"):
        plan_writing(rows, Sketching(Gaussian(10)), 10, 1000, "rows", table, place=MemoryStore())


def test_the_matrix_of_a_sketch_counts_once_for_all_threads() -> None:
    d, narrow, wide = 20_000, Gaussian(1), Gaussian(500)
    matrix = wide.cached_bytes(d, 4)
    assert matrix >= 4 * 500 * d
    for threads in (1, 2, 16):
        own = [Sketching(sketch).bytes_for(d, 100, 4)[0] for sketch in (narrow, wide)]
        more = planned(Sketching(wide), d, threads) - planned(Sketching(narrow), d, threads)
        assert more == pytest.approx(matrix - narrow.cached_bytes(d, 4) + threads * (own[1] - own[0]), abs=2 * threads)


def test_a_sketch_that_does_not_fit_is_rejected_before_any_read(tmp_path: Path) -> None:
    X = unreadable(1000, 60_000, 10, np.float32)
    small, large = (bp.SketchTransformer(Gaussian(q), memory_limit="400 TiB").fit(X) for q in (2, 1000))
    assert planned(small._row_map(), 60_000, 1) < 100 << 20 < 240 << 20 < planned(large._row_map(), 60_000, 1)
    large.set_params(memory_limit="20 MiB")
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"sketches needs .* per process"):
        large.transform(X, out=tmp_path / "out.zarr")
    assert not list(tmp_path.iterdir())
