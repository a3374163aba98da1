"""PCA in windows of columns equals plain NumPy of each window, however columns are read; distances are lostruct's."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

import bigpca as bp
from bigpca.quality import local_pca, plan_local_pca, windows
from bigpca.quality.windows import LocalPCA

N, D, K = 30, 400, 2
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 3)) @ RNG.standard_normal((3, D)) * np.linspace(0, 2, D) + RNG.standard_normal((N, D))
GAPS = np.where(RNG.random(X.shape) < 0.05, np.nan, X)


def exact(part: np.ndarray) -> tuple[np.ndarray, float, float, np.ndarray]:
    """Eigenvalues, trace and squares of the covariance of one window about the means of its columns; unit scores."""
    Y = np.nan_to_num(part - np.nanmean(part, axis=0))
    C = Y @ Y.T / (N - 1)
    values, vectors = np.linalg.eigh(C)
    return values[::-1][:K], float(np.trace(C)), float((C**2).sum()), vectors[:, ::-1][:, :K]


def check(found: LocalPCA, rows: np.ndarray, bounds: list[tuple[int, int]]) -> None:
    assert list(zip(found.windows.starts, found.windows.stops, strict=True)) == bounds
    before = None
    for i, (start, stop) in enumerate(bounds):
        values, total, squares, vectors = exact(rows[:, start:stop])
        np.testing.assert_allclose(found.explained_variance_[i], values, rtol=1e-10)
        np.testing.assert_allclose([found.total_variance_[i], found.squared_covariance_[i]], [total, squares])
        own = found.unit_scores_[i]
        np.testing.assert_allclose(np.abs((own * vectors).sum(axis=0)), 1, rtol=1e-8)
        scores = own * np.sqrt(values * (N - 1))
        np.testing.assert_allclose(found.scores(i), scores, rtol=1e-8, atol=1e-12)
        assert before is None or ((own * before).sum(axis=0) >= 0).all()
        before = own


@pytest.mark.parametrize(("window", "step"), [(100, 100), (100, 30), (7, 5), (60, 150), (400, 1)])
def test_windows_of_a_number_of_columns_equal_numpy(window: int, step: int) -> None:
    bounds = [(start, start + window) for start in range(0, D - window + 1, step)]
    check(local_pca(X, window, step=step), X, bounds)
    check(local_pca(GAPS, window, step=step, nan_policy="mean"), GAPS, bounds)


@pytest.mark.parametrize("columns", [30, 70, 100, 130, 399])
def test_slabs_of_any_width_give_the_same_windows(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, groups = local_pca(X, 100, step=30), windows._groups
    monkeypatch.setattr(windows, "_groups", lambda starts, stops, _: groups(starts, stops, columns))
    monkeypatch.setattr(windows, "PIECE", 17)
    found = local_pca(X, 100, step=30)
    slabs = [slab for _, own in found.windows.groups for slab in own]
    assert max(stop - start for start, stop in slabs) <= columns
    check(found, X, list(zip(whole.windows.starts, whole.windows.stops, strict=True)))


@pytest.mark.parametrize("form", ["sparse", "frame", "float32", "coded", "columns", "rows", "Dask"])
def test_rows_of_all_kinds_have_the_same_windows(form: str, tmp_path: Path) -> None:
    calls = np.clip(np.round(X), 0, 9)
    rows: Any = calls
    if form == "sparse":
        rows = sp.csr_array(calls)
    elif form == "frame":
        rows = pd.DataFrame(calls, columns=[f"c{i}" for i in range(D)])
    elif form == "float32":
        rows = calls.astype("f4")
    else:
        chunks = (N, 90) if form == "columns" else (7, D)
        held = np.where(np.isnan(GAPS), -1, calls).astype("i1") if form == "coded" else calls
        rows = bp.open(zarr.create_array(tmp_path / "x.zarr", data=held, chunks=chunks))
        if form == "coded":
            rows, calls = bp.open(tmp_path / "x.zarr", missing_value=-1), np.where(np.isnan(GAPS), np.nan, calls)
        if form == "Dask":
            rows = rows * 1.0
    found = local_pca(rows, 50, nan_policy="mean")
    check(found, calls, [(start, start + 50) for start in range(0, D, 50)])


def test_positions_give_windows_of_their_length_in_each_chromosome() -> None:
    at = np.concatenate([np.sort(RNG.choice(5000, 250, replace=False)), np.sort(RNG.choice(3000, 150, replace=False))])
    names = [f"{'X' if i < 250 else '7'}:{place}:A:G" for i, place in enumerate(at)]
    found = local_pca(X, 900, step=400, positions=at, min_columns=12)
    named = local_pca(pd.DataFrame(X, columns=names), 900, step=400, positions="names", min_columns=12)
    np.testing.assert_array_equal(named.unit_scores_, found.unit_scores_)
    assert found.windows.chromosomes is None
    assert list(np.unique(named.windows.chromosomes)) == ["7", "X"]
    first, failed = np.arange(D) < 250, 0
    for start, stop, begin, end, name, value in zip(
        named.windows.starts, named.windows.stops, named.windows.begins, named.windows.ends,
        named.windows.chromosomes, named.explained_variance_, strict=True,
    ):  # fmt: skip
        inside = (first if name == "X" else ~first) & (at >= begin) & (at < end)
        np.testing.assert_array_equal(np.flatnonzero(inside), np.arange(start, stop))
        failed += stop - start < 12
        assert np.isnan(value).all() == (stop - start < 12)
    assert 0 < failed < len(named.windows.starts)


def test_windows_that_fail_are_nan_and_the_others_are_not() -> None:
    rows = X.copy()
    rows[:, 50:100] = RNG.uniform(0, 1e6, 50)  # constant
    rows[:, 150:200] = RNG.standard_normal((N, 1))  # one direction
    found = local_pca(rows, 50)
    failed = np.isin(np.arange(8), [1, 3])
    for values in (found.explained_variance_[:, 0], found.squared_covariance_, found.unit_scores_[:, 0, 0]):
        np.testing.assert_array_equal(np.isnan(values), failed)
    np.testing.assert_array_equal(np.isnan(found.distances()), failed | failed[:, None])
    assert ((found.unit_scores_[2] * found.unit_scores_[0]).sum(axis=0) >= 0).all()  # of the window before that did not
    assert np.isnan(local_pca(rows[:, 50:100], 50, n_components=1).total_variance_).all()
    gap = local_pca(X[:, [0, 1, 2, 3, 4, 5]], 10, positions=[1, 2, 3, 101, 102, 103])
    assert np.isnan(gap.total_variance_).tolist() == [False, *[True] * 9, False]


@pytest.mark.parametrize("normalize", ["L1", "L2", None])
def test_distances_are_norms_of_differences_of_dot_matrices(normalize: str | None) -> None:
    found = local_pca(X, 50, step=40)
    matrices = []
    for values, vectors in zip(found.explained_variance_, found.unit_scores_, strict=True):
        length = {"L1": np.abs(values).sum(), "L2": np.sqrt((values**2).sum()), None: 1.0}[normalize]
        matrices.append(vectors * (values / length) @ vectors.T)
    expected = [[np.linalg.norm(one - other) for other in matrices] for one in matrices]
    np.testing.assert_allclose(found.distances(normalize), expected, rtol=1e-7, atol=1e-12)
    with pytest.raises(ValueError, match="normalize"):
        found.distances("L3")


def test_a_plan_says_what_is_read_and_kept_and_what_does_not_fit_is_rejected(tmp_path: Path) -> None:
    for chunks, reads in (((N, 100), 1.0), ((10, D), 1.0)):
        rows = bp.open(zarr.create_array(tmp_path / f"{chunks[0]}.zarr", data=X, chunks=chunks))
        planned = plan_local_pca(rows, 50, step=25)
        assert planned.reads == reads
        assert planned.kept_bytes == 8 * 15 * (K * (N + 1) + 2)
        assert "15, of 50 to 50 columns" in str(planned)
        found = local_pca(rows, 50, step=25)
        arrays = (found.explained_variance_, found.total_variance_, found.squared_covariance_, found.unit_scores_)
        assert sum(one.nbytes for one in arrays) == planned.kept_bytes
    wide = np.broadcast_to(np.float32(1), (3000, 10**6))
    with pytest.raises(bp.errors.MemoryBudgetError, match="Use shorter windows"):
        plan_local_pca(wide, 5000, memory_limit="300MiB")
    cut = plan_local_pca(wide, 5000, memory_limit="4GiB")
    assert cut.peak_bytes < 4 << 30
    assert cut.reads == 1.0


def test_bad_windows_and_values_are_errors() -> None:
    for window, step in ((0, 1), (1.5, 1), (5, 0)):
        with pytest.raises((TypeError, ValueError), match=r"window|step"):
            local_pca(X, window, step=step)  # type: ignore[arg-type]
    with pytest.raises(bp.errors.NonFiniteError, match=r"nan in row \d+, column \d+"):
        local_pca(GAPS, 50)
    infinite = X.copy()
    infinite[3, 60] = np.inf
    with pytest.raises(bp.errors.NonFiniteError, match="inf in row 3, column 60"):
        local_pca(infinite, 50, nan_policy="mean")
    with pytest.raises(ValueError, match="needs columns named chromosome:position"):
        local_pca(X, 50, positions="names")
    with pytest.raises(ValueError, match=r"shape \(3,\) have 3 finite numbers; one for each of 400 columns"):
        local_pca(X, 50, positions=[1, 2, 3])
    names = [f"1:{place}" for place in [D, *range(D - 1)]]
    with pytest.raises(ValueError, match="columns 0 to 399 are not ascending"):
        local_pca(pd.DataFrame(X, columns=names), 50, positions="names")
