"""Rows of a pattern: every estimator fits them as the same rows in memory, keeps the pattern, and applies it again."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.typing import NDArray

import bigpca as bp
from bigpca.quality import reconstruction_error
from tests.estimators.test_every_estimator import CASES, NEW, N, X

Array = NDArray[Any]
PIXELS = "n c h w -> (n h w) c"
D = X.shape[1]


def maps_of(rows: Array) -> Array:
    """Feature maps (n, d, 2, 3) whose pixels are the rows."""
    return np.ascontiguousarray(rows.reshape(-1, 2, 3, D).transpose(0, 3, 1, 2))


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_estimator_fits_pixels_and_cuts_stored_maps_again(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    stored = zarr.create_array(tmp_path / "maps.zarr", data=maps_of(X), chunks=(4, D, 2, 3))
    model = case.make().fit(bp.open(stored, pattern=PIXELS), case.y)
    rows = case.make().fit(da.from_array(X, chunks=(24, D)), case.y)
    expected, new = rows.transform(NEW[:36]), maps_of(NEW[:36])
    size = np.abs(expected).max()
    np.testing.assert_allclose(model.transform(NEW[:36]), expected, rtol=0, atol=1e-7 * size)
    model.save(tmp_path / "model")
    again = bp.load(tmp_path / "model")
    assert str(again.pattern_) == PIXELS
    for one in (model, again):
        np.testing.assert_array_equal(one.transform(new), model.transform(NEW[:36]))
    written = again.transform(da.from_array(new, chunks=2), out=tmp_path / "scores.zarr")
    assert written.shape == (36, expected.shape[1])
    np.testing.assert_allclose(written.compute(), model.transform(NEW[:36]), rtol=0, atol=1e-12 * size)


FLAT = np.random.default_rng(2).standard_normal((30, 12))
CUBE = FLAT.reshape(30, 3, 2, 2)
FRAME = pd.DataFrame(FLAT[:, :4], columns=list("abcd"))

# How the model's rows are opened, what is transformed, and the rows that it is read as.
AGAIN: dict[str, tuple[Any, dict[str, Any], Any, Array]] = {
    "maps of another size": (CUBE, {"pattern": PIXELS}, FLAT.reshape(10, 3, 3, 4),
                             FLAT.reshape(10, 3, 12).transpose(0, 2, 1).reshape(-1, 3)),
    "rows": (CUBE, {"pattern": PIXELS}, FLAT[:, :3], FLAT[:, :3]),
    "maps of one pixel": (CUBE, {"pattern": PIXELS}, FLAT[:, :3, None, None], FLAT[:, :3]),
    "channels last, flat": (CUBE, {"pattern": "n c h w -> n (h w c)"}, CUBE,
                            CUBE.transpose(0, 2, 3, 1).reshape(30, -1)),
    "flat samples of the fit": (FLAT, {"pattern": "n (c h w) -> (n h w) c", "h": 2, "w": 2}, FLAT,
                                CUBE.transpose(0, 2, 3, 1).reshape(-1, 3)),
    "chosen columns of samples": (FLAT, {"columns": [7, 1]}, FLAT, FLAT[:, [7, 1]]),
    "chosen columns as rows": (FLAT, {"columns": [7, 1]}, FLAT[:, :2], FLAT[:, :2]),
    "columns by name": (FRAME, {"columns": ["d", "b"]}, FRAME[["a", "b", "d"]], FLAT[:, [3, 1]]),
    "all columns by name, in another order": (FRAME, {"columns": list("dcba")}, FRAME, FLAT[:, 3::-1]),
    "names as in the fit": (FRAME, {"columns": ["d", "b"]}, FRAME[["d", "b"]], FLAT[:, [3, 1]]),
    "another pattern": (CUBE, {"pattern": PIXELS}, bp.open(CUBE, pattern="n c h w -> (n w h) c"),
                        CUBE.transpose(0, 3, 2, 1).reshape(-1, 3)),
    "whole samples": (CUBE, {"pattern": "n c h w -> n (c h w)"}, FLAT.reshape(30, 12, 1), FLAT),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN)
def test_new_samples_are_cut_where_dimensions_widths_or_names_say_so(name: str, tmp_path: Path) -> None:
    source, given, new, rows = AGAIN[name]
    model = bp.PCA(2).fit(bp.open(source, **given))
    expected = (rows - model.mean_) @ model.components_.T
    model.save(tmp_path / "model")
    for one in (model, bp.load(tmp_path / "model")):
        np.testing.assert_allclose(np.asarray(one.transform(new)), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        reconstruction_error(model, new).mean_squared,
        ((rows - model.mean_ - expected @ model.components_) ** 2).sum(axis=1).mean(),
        rtol=1e-10, atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "given", "new", "message"),
    [
        (
            CUBE,
            {"pattern": PIXELS},
            np.moveaxis(CUBE, 1, 3),
            r"X has shape \(30, 2, 2, 3\), but PCA was fitted on rows",
        ),
        (CUBE, {"pattern": PIXELS}, CUBE[:, :2], r"samples of shape \(3, 2, 2\)"),
        (CUBE, {"pattern": PIXELS}, FLAT.reshape(30, 3, 4), r"X has shape \(30, 3, 4\)"),
        (CUBE, {"pattern": PIXELS}, FLAT.reshape(-1, 3, 1), r"X has shape \(120, 3, 1\)"),
        (CUBE, {"pattern": PIXELS}, FLAT, r"12 features, but PCA is expecting 3 .*rows of samples \(n c h w"),
        (CUBE, {"pattern": PIXELS, "columns": [0, 1]}, CUBE[:, :2], r"columns 2 chosen\)\. Such dimensions"),
        (CUBE, {"pattern": "n c h w -> n (h w c)"}, FLAT, "could be rows or samples"),
        (FLAT, {"columns": np.arange(12)[::-1]}, FLAT, "could be rows or samples"),
        (FLAT, {"columns": [7, 1]}, FLAT[:, :5], "5 features, but PCA is expecting 2"),
        (FRAME, {"columns": ["d", "b"]}, FRAME[["a", "b"]], "Feature names"),
    ],
)
def test_samples_that_may_be_read_in_two_ways_are_rejected(
    source: Any, given: dict[str, Any], new: Any, message: str
) -> None:
    model = bp.PCA(2).fit(bp.open(source, **given))
    with pytest.raises(ValueError, match=message):
        model.transform(new)


def test_partial_fit_and_merge_keep_the_pattern() -> None:
    maps = maps_of(X)
    grown = bp.PCA(2).fit(bp.open(maps[:20], pattern=PIXELS)).partial_fit(maps[20:])
    halves = [bp.PCA(2).fit(bp.open(part, pattern=PIXELS)) for part in (maps[:20], maps[20:])]
    whole = bp.PCA(2).fit(X)
    for model in (grown, bp.merge(*halves)):
        assert model.n_samples_ == N
        np.testing.assert_allclose(model.explained_variance_, whole.explained_variance_, rtol=1e-12)
        np.testing.assert_allclose(model.transform(maps), whole.transform(X), rtol=0, atol=1e-10)
    assert bp.merge(halves[0], bp.PCA(2).fit(X)).pattern_ is None
    other = bp.PCA(2).fit(bp.open(np.ones((4, 5, 5)) * np.arange(5), pattern="n a b -> (n b) a"))
    with pytest.raises(ValueError, match="rows of different patterns"):
        bp.merge(bp.PCA(2).fit(bp.open(np.ones((4, 5, 5)) * np.arange(5), pattern="n a b -> (n a) b")), other)


def test_a_fit_on_whole_samples_forgets_the_pattern_of_the_fit_before() -> None:
    model = bp.PCA(1).fit(bp.open(CUBE, pattern=PIXELS)).fit(FLAT)
    assert model.pattern_ is None
    assert model.transform(CUBE).shape == (30, 1)


def test_keys_of_samples_stay_with_one_row_of_each(tmp_path: Path) -> None:
    keys = [f"image {i}" for i in range(30)]
    bp.ingest(CUBE, tmp_path / "maps.zarr", keys=keys)
    pattern: dict[str, Any] = {"pattern": "n (c p) -> n (p c)", "p": 4}
    X = bp.open(tmp_path / "maps.zarr", **pattern)
    bp.PCA(2).fit(X).transform(X, out=tmp_path / "scores.zarr")
    assert bp.data.stored_keys(tmp_path / "scores.zarr").tolist() == keys  # type: ignore[union-attr]
