"""Lagged windows as rows: equal to the windows that NumPy makes, read once, for any store, chunks and trajectories."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

import bigpca as bp
from bigpca.data import lagged, unlagged
from bigpca.data.dask_arrays import source_of
from bigpca.engine import layout
from bigpca.engine.events import GroupEvent
from tests.operators.counting import Reads
from tests.peaks import traced_peak

N, D = 203, 5
X = np.random.default_rng(0).standard_normal((N, D)).cumsum(axis=0)
TRAJECTORIES = np.repeat(["a", "b", "c", "b"], [50, 3, 100, 50])
SHORT, SHORT_TRAJECTORIES = X[:123], np.repeat(["a", "b", "c", "b"], [30, 3, 60, 30])


def starts_of(rows: Any, reach: int, groups: Any = None) -> list[int]:
    """The rows at which a window begins."""
    labels = np.zeros(len(rows)) if groups is None else groups
    return [t for t in range(len(rows) - reach) if len(set(labels[t : t + reach + 1])) == 1]


def windows(rows: Any, lags: Sequence[int], groups: Any = None) -> Any:
    """The windows of a series, one at a time."""
    starts = starts_of(rows, lags[-1], groups)
    return np.array([np.concatenate([rows[start + lag] for lag in lags]) for start in starts])


def chunked(rows: Any, folder: Path, chunks: tuple[int, int] = (17, 2)) -> str:
    """The path of a store of rows."""
    store = zarr.create_array(folder / "x.zarr", shape=rows.shape, chunks=chunks, dtype=rows.dtype)
    store[:] = rows
    return str(folder / "x.zarr")


SERIES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda folder: SHORT,
    "path": lambda folder: chunked(SHORT, folder, (11, 2)),
    "opened": lambda folder: bp.open(chunked(SHORT, folder, (1, D))),
    "one chunk": lambda folder: chunked(SHORT, folder, SHORT.shape),
    "graph": lambda folder: da.from_array(SHORT, chunks=(14, 2)) * 1.0,
    "view": lambda folder: bp.open(chunked(np.c_[SHORT, SHORT], folder, (11, 2)), columns=slice(D)),
}


@pytest.mark.parametrize(
    ("name", "lags"),
    [*((name, range(4)) for name in SERIES), *(("memory", lags) for lags in ((0, 2, 5), range(36)))],
    ids=str,
)
@pytest.mark.parametrize("groups", [None, SHORT_TRAJECTORIES], ids=["one", "trajectories"])
def test_windows_are_those_of_numpy_and_make_the_series_again(
    name: str, lags: Sequence[int], groups: Any, tmp_path: Path
) -> None:
    expected, rows = windows(SHORT, lags, groups), lagged(SERIES[name](tmp_path), lags, groups=groups)
    np.testing.assert_array_equal(rows.compute(), expected)
    np.testing.assert_array_equal(rows[3:9, 1:4].compute(), expected[3:9, 1:4])
    model = bp.PCA(2, solver="covariance").fit(rows)
    values, axes = np.linalg.eigh(np.cov(expected.T))
    np.testing.assert_allclose(model.explained_variance_, values[:-3:-1], rtol=1e-12)
    whole = unlagged(rows, lags, groups=groups).compute()
    starts = starts_of(SHORT, lags[-1], groups)
    counts = np.zeros(len(SHORT))
    for start in starts:
        counts[start + np.array(lags)] += 1
    held = counts > 0
    np.testing.assert_allclose(whole[held], SHORT[held], rtol=1e-13)
    assert np.isnan(whole[~held]).all()
    # The reconstructed component: the mean over all windows that hold a row.
    centred = expected - expected.mean(axis=0)
    filtered = centred @ axes[:, -2:] @ axes[:, -2:].T + expected.mean(axis=0)
    sums = np.zeros(SHORT.shape)
    for window, start in zip(filtered, starts, strict=True):
        for i, lag in enumerate(lags):
            sums[start + lag] += window[i * D : (i + 1) * D]
    found = unlagged(model.inverse_transform(model.transform(rows)), lags, groups=groups).compute()
    np.testing.assert_allclose(found[held], sums[held] / counts[held, None], rtol=1e-9)


@pytest.mark.parametrize("solver", ["krylov", "dot", "covariance"])
def test_every_solver_takes_windows_and_stops_and_continues(solver: str, tmp_path: Path) -> None:
    rows = lagged(chunked(X, tmp_path), range(7))
    values = np.linalg.eigvalsh(np.cov(windows(X, range(7)).T))[:-4:-1]
    model = bp.PCA(3, solver=solver, tol=1e-9).fit(rows, checkpoint=tmp_path / "checkpoint")
    np.testing.assert_allclose(model.explained_variance_, values, rtol=1e-8)
    stored = model.transform(rows, out=tmp_path / "scores.zarr")
    np.testing.assert_allclose(stored.compute(), model.transform(windows(X, range(7))), atol=1e-9)


@pytest.mark.parametrize("reach", [4, 90, 600])
def test_a_plan_counts_the_rows_that_groups_read_of_each_other(
    reach: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 512)
    rows = lagged(chunked(np.tile(X, (10, 1)), tmp_path, (50, D)), (0, reach))
    watched, model, counted = Reads().watch(monkeypatch), bp.PCA(2, solver="covariance"), list[int]()
    plan = model.plan(rows)
    model.fit(rows, progress=lambda event: counted.append(event.bytes) if isinstance(event, GroupEvent) else None)
    read = sum(stop - start for start, stop, *_ in watched.calls) * D * X.itemsize
    assert len(counted) > 3
    assert read <= plan.bytes_read < 1.1 * read
    assert sum(counted) == pytest.approx(plan.bytes_read, rel=1e-3)


@pytest.mark.parametrize("length", [10, 7, 3])
def test_a_chunk_of_many_short_trajectories_is_decoded_once(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = np.tile(X, (10, 1))
    groups = np.arange(len(series)) // length
    groups[400:900] = np.arange(500)  # too short for windows
    rows = lagged(chunked(series, tmp_path, (100, D)), range(3), groups=groups)
    watched = Reads().watch(monkeypatch)
    found = rows.compute()
    decoded = watched.per_chunk(series.shape, (100, D))[:, 0]
    assert decoded[[0, 1, 2, 3, *range(9, len(decoded))]].tolist() == [1] * (len(decoded) - 5)
    assert decoded.max() == 1
    np.testing.assert_array_equal(found, windows(series, range(3), groups))


@pytest.mark.parametrize("lags", [(0, 1), (0, 5000), range(9)], ids=str)
def test_windows_hold_one_piece_of_the_series_at_a_time(lags: Sequence[int], tmp_path: Path) -> None:
    series = np.ones((40_000, 64), "f4")
    source = source_of(lagged(chunked(series, tmp_path, (1000, 64)), lags))
    source.read(0, 10)
    blocks = []
    peak = traced_peak(lambda: blocks.append(source.read(0, 30_000)))
    assert peak - blocks[0].nbytes < 1.25 * source.decoding_bytes(source.shape[1]) < series.nbytes


def test_another_series_or_other_lags_are_another_computation(tmp_path: Path) -> None:
    path = chunked(X, tmp_path)
    tokens = [
        lagged(path, lags, groups=groups).name
        for lags in (range(4), range(5), (0, 1, 2, 4))
        for groups in (None, TRAJECTORIES)
    ]
    assert len(set(tokens)) == len(tokens)
    assert lagged(path, range(4)).name == tokens[0]
    chunked(X + 1, tmp_path / "other")
    assert lagged(tmp_path / "other" / "x.zarr", range(4)).name != tokens[0]


def test_names_and_coordinates_say_the_lag() -> None:
    pd, xr = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    named = bp.PCA(1).fit(lagged(pd.DataFrame(X, columns=list("abcde")), range(2)))
    assert named.feature_names_in_.tolist() == [f"{name} lag {lag}" for lag in (0, 1) for name in "abcde"]
    field = xr.DataArray(X[:, :4].reshape(N, 2, 2), dims=("time", "lat", "lon"), coords={"time": np.arange(N) * 6.0})
    rows = lagged(field, range(3))
    model = bp.PCA(2).fit(rows)
    components = model.to_xarray()["components"]
    assert (components.dims, components.sizes["lag"]) == (("component", "lag", "lat", "lon"), 3)
    np.testing.assert_array_equal(components.values.reshape(2, -1), model.components_)
    scores = model.transform(rows)
    assert scores.shape == (N - 2, 2)


@pytest.mark.parametrize("groups", [None, TRAJECTORIES])
@pytest.mark.parametrize("chunks", [None, 20])
def test_windows_of_a_field_keep_its_times_lags_and_grid(groups: Any, chunks: int | None, tmp_path: Path) -> None:
    coords = {"time": np.arange(N) * 6.0, "lat": [10.0, 20.0], "lon": [1.0, 2.0], "season": ("time", np.arange(N) % 4)}
    field = xr.DataArray(X[:, :4].reshape(N, 2, 2), dims=("time", "lat", "lon"), coords=coords, name="sst")
    field = field.where((field.lat > 10) | (field.lon > 1))  # land
    field = field if chunks is None else field.chunk(time=chunks)
    rows = lagged(field, [0, 2, 3], groups=groups)
    model = bp.PCA().fit(rows)
    scores = model.transform(rows)
    starts = starts_of(X, 3, groups)
    assert scores.dims == ("time", "component")
    xr.testing.assert_equal(scores.time, field.time[starts])
    back = model.inverse_transform(scores)
    assert back.dims == ("time", "lag", "lat", "lon")
    np.testing.assert_array_equal(back.lag, [0, 2, 3])
    np.testing.assert_allclose(back.sel(lag=2).values, field.values[np.array(starts) + 2], atol=1e-8)
    series = unlagged(back, [0, 2, 3], groups=groups, like=field)
    held = np.unique(np.add.outer(starts, [0, 2, 3]))
    xr.testing.assert_allclose(series[held].compute(), field[held].compute(), atol=1e-8)
    assert series.sizes == field.sizes
    assert series.season.equals(field.season)
    assert np.isnan(np.delete(series.values, held, axis=0)).all()
    assert "time" not in unlagged(back.transpose("lag", ..., "time").transpose("time", ...), [0, 2, 3]).coords
    model.save(tmp_path / "m.zarr")
    xr.testing.assert_allclose(bp.load(tmp_path / "m.zarr").transform(rows).compute(), scores.compute())
    assert model.spe(rows).dims == ("time",)
    with pytest.raises(ValueError, match=r"rows have 3 lags, not lags = \(0, 1, 2\)"):
        unlagged(back, range(3))
    with pytest.raises(ValueError, match=rf"like has {N - 1} rows along 'time', but .* a series of {N}"):
        unlagged(back, [0, 2, 3], groups=groups, like=field[1:])


def test_graphs_of_windows_do_not_grow_with_the_number_of_trajectories() -> None:
    series, groups = da.from_array(np.tile(X, (10, 1)), chunks=(203, -1)), np.arange(2030) // 5
    windows_of = lagged(series, range(3), groups=groups)
    assert windows_of.shape == (406 * 3, 15)
    assert len(windows_of.__dask_graph__()) < 406
    again = unlagged(windows_of, range(3), groups=groups)
    assert len(again.__dask_graph__()) < 2 * 406
    np.testing.assert_allclose(again, series, rtol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lagged(X, [0, None]), "increase from 0"), (lambda: lagged(X, [0, np.nan]), "increase from 0"),
        (lambda: lagged(X, [1, 2]), "increase from 0"), (lambda: lagged(X, []), "increase from 0"),
        (lambda: lagged(X, 12), r"Give range\(12\)"), (lambda: lagged(X, [0, 1.5]), "are not integers"),
        (lambda: lagged(X[:5], range(6)), "no window of 6 rows fits into the 5 rows"),
        (lambda: lagged(X, range(3), groups=np.arange(N)), "longer trajectories"),
        (lambda: lagged(X, range(3), groups=np.arange(9)), "9 groups for 203 rows"),
        (lambda: lagged(X, range(3), groups=[None] * N), "203 of 203 groups are missing"),
        (lambda: lagged(sp.csr_array(X), range(3)), "are sparse"),
        (lambda: lagged(bp.from_batches([X, X]), range(3)), "read once, in their order"),
        (lambda: unlagged(X, range(3)), r"rows have shape \(203, 5\), but 3 lags"),
        (lambda: unlagged(lagged(X, range(3)), range(3), groups=TRAJECTORIES), "195 of them from 203 rows"),
    ],
)  # fmt: skip
def test_what_has_no_windows_is_rejected_unread(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
