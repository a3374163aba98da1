"""Patterns: rows are those that einops makes of the whole array, in every container; what does not fit is rejected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array as da
import einops
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from numpy.typing import NDArray

import bigpca as bp
from bigpca.data.dask_arrays import carried, carrying, named, view_of
from bigpca.data.views import RowPattern, View
from bigpca.passes.rows import Rows
from tests.data import savers

Array = NDArray[Any]
N, C, H, W = 37, 3, 5, 4
MAPS = savers.matrix("f4", (N, C, H, W))
PIXELS = "n c h w -> (n h w) c"


PATTERNS: dict[str, tuple[dict[str, Any], Callable[[Array], Array]]] = {
    "pixels": ({"pattern": PIXELS}, lambda x: einops.rearrange(x, PIXELS)),
    "transposed pixels": ({"pattern": "n c h w -> (n w h) c"}, lambda x: einops.rearrange(x, "n c h w -> (n w h) c")),
    "flat, channels last": ({"pattern": "n c h w -> n (h w c)"}, lambda x: einops.rearrange(x, "n c h w -> n (h w c)")),
    "lines of images": (
        {"pattern": "n c h w -> (n c h) w", "w": [3, 0]},
        lambda x: einops.rearrange(x[..., [3, 0]], "n c h w -> (n c h) w"),
    ),
    "windows": (
        {"pattern": "n c (y a) (x b) -> (n y x) (a b c)", "b": 2, "y": 1},
        lambda x: einops.rearrange(x, "n c (y a) (x b) -> (n y x) (a b c)", b=2, y=1),
    ),
    "every second position, reversed": (
        {"pattern": PIXELS, "h": slice(None, None, -2), "columns": [True, False, True]},
        lambda x: einops.rearrange(x[:, :, ::-2], PIXELS)[:, [0, 2]],
    ),
    "columns of flat samples": ({"columns": slice(7, 50, 3)}, lambda x: x.reshape(len(x), -1)[:, 7:50:3]),
    "columns from the end": ({"columns": [-1, 0]}, lambda x: x.reshape(len(x), -1)[:, [-1, 0]]),
}


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1"])
def test_rows_of_a_pattern_are_those_of_einops(name: str, dtype: str) -> None:
    given, of = PATTERNS[name]
    maps = np.abs(MAPS).astype(dtype) if dtype == "u1" else MAPS.astype(dtype)
    X, truth = bp.open(maps, **given), of(maps.astype("f8"))
    assert X.dtype == np.dtype(dtype)
    assert X.shape == truth.shape
    np.testing.assert_array_equal(X.compute(), truth)
    rows = Rows.of(X)
    np.testing.assert_array_equal(rows.reader(3, 9)[0].read(3, 9), X.compute()[3:9])


CONTAINERS: dict[str, Callable[[Path, Array], Any]] = {
    **{
        one.__name__: one
        for one in (savers.save_zarr, savers.save_zarr_v2, savers.open_zarr, savers.save_npy, savers.save_npy_fortran,
                    savers.save_shards, savers.save_hdf5)
    },
    "memory": lambda folder, x: x,
    "feature writer": lambda folder, x: _written(folder, x),
    "memory map": lambda folder, x: np.load(savers.save_npy(folder, x), mmap_mode="r"),
    "Dask": lambda folder, x: da.from_array(x, chunks=(10, 2, 5, 3)) + 0,
    "Dask of unknown length": lambda folder, x: da.from_array(x, chunks=(10, 2, 5, 3))[da.ones(len(x), chunks=10) > 0],
    "opened before": lambda folder, x: bp.open(savers.save_npy(folder, x)),
    "xarray": lambda folder, x: xr.DataArray(da.from_array(x, chunks=9)),
    "list of files": lambda folder, x: sorted(map(str, savers.save_shards(folder, x[:10]).iterdir())),
    "list of stores": lambda folder, x: _stores(folder, x),
}  # fmt: skip


def _written(folder: Path, x: Array) -> Path:
    with bp.FeatureWriter(folder / "written.zarr", chunk_rows=8) as writer:
        for part in np.array_split(x, 4):
            writer.write(part)
    return folder / "written.zarr"


def _stores(folder: Path, x: Array) -> list[str]:
    for i, part in enumerate(np.array_split(x, 2)):
        zarr.create_array(folder / f"{i}.zarr", data=part, chunks=(3, *x.shape[1:]))
    return [str(folder / f"{i}.zarr") for i in range(2)]


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_of_maps_has_the_rows_of_a_pattern(container: str, tmp_path: Path) -> None:
    maps = MAPS[:10] if container == "list of files" else MAPS
    X = bp.open(CONTAINERS[container](tmp_path, maps), pattern=PIXELS, h=slice(1, None))
    np.testing.assert_array_equal(X.compute(), einops.rearrange(maps[:, :, 1:], PIXELS))
    assert Rows.of(X).origin.view is not None  # read by the engine


@pytest.mark.parametrize(
    ("shape", "order"),
    [((2, 300, 70, 50), (0, 2, 3, 1)), ((40, 30, 4, 5), (0, 2, 3, 1)), ((3, 8, 100, 90), (0, 3, 2, 1))],
)
def test_large_and_small_samples_are_transposed_alike(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    maps = np.random.default_rng(0).random(shape, np.float32)
    view = View(shape[1:], tuple(axis - 1 for axis in order[1:3]))
    rows = view.apply(maps.reshape(shape[0], -1))
    np.testing.assert_array_equal(rows, maps.transpose(order).reshape(-1, shape[1]))
    assert rows.flags.c_contiguous


def test_columns_are_chosen_by_the_names_of_frames_and_coordinates() -> None:
    frame = pd.DataFrame(MAPS.reshape(N, -1)[:, :4], columns=list("abcd"))
    X = bp.open(frame, columns=["d", "a"])
    np.testing.assert_array_equal(X.compute(), frame[["d", "a"]])
    assert list(carried(X).names) == ["d", "a"]  # type: ignore[arg-type]
    cube = xr.DataArray(MAPS, dims=("n", "band", "y", "x"), coords={"band": ["red", "green", "blue"]})
    X = bp.open(cube, pattern=PIXELS, columns=["blue", "red"])
    np.testing.assert_array_equal(X.compute(), einops.rearrange(MAPS[:, [2, 0]], PIXELS))
    assert bp.PCA(1).fit(X).feature_names_in_.tolist() == ["blue", "red"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pattern": "n c h w"}, "needs one arrow"),
        ({"pattern": "n c h w -> (n h w) d"}, "no axis 'd' on the left"),
        ({"pattern": "n c h h -> (n h) c"}, "the axis 'h' twice on one side"),
        ({"pattern": "n c h w -> (n h h w) c"}, "the axis 'h' twice on one side"),
        ({"pattern": "n c h w -> (n h w c)"}, "4 axes on the left and 1 on the right"),
        ({"pattern": "n c h w -> n c h w"}, "4 axes on the left and 4 on the right"),
        ({"pattern": "n c h w -> (h n w) c"}, "must begin with 'n'"),
        ({"pattern": "n (c h w -> (n h w) c"}, r"has '\(' where an axis was expected"),
        ({"pattern": "n ((c) h) w -> n c"}, r"has '\(' where an axis was expected"),
        ({"pattern": "n ... c -> (n ...) c"}, r"has '\.\.\.' where an axis was expected"),
        ({"pattern": 3}, "pattern = 3 is an int"),
        ({"pattern": "n h w -> (n h) w"}, r"3 dimensions, but X has shape \(n, 3, 5, 4\)"),
        ({"pattern": "n c h w -> n c"}, "leaves out h, w on the right.* or pool them first"),
        ({"tokens": slice(1, None)}, "unexpected keyword argument 'tokens'"),
        ({"pattern": PIXELS, "hh": slice(1, None)}, "'hh' is not in it. Did you mean h?"),
        ({"pattern": PIXELS, "n": slice(1, None)}, "'n' is that of the samples"),
        ({"pattern": PIXELS, "h": 7}, "h = 7 does not fit 5"),
        ({"pattern": PIXELS, "h": 0}, "the size of an axis is at least 1"),
        ({"pattern": "n c (a b) w -> (n a w) (b c)"}, "does not say how 5 is divided into a and b"),
        ({"pattern": "n c (a b) w -> (n a w) (b c)", "a": 2}, "a = 2 does not fit 5"),
        ({"pattern": PIXELS, "h": slice(2, 9)}, "h = 2:9, which reaches beyond the 5 positions"),
        ({"pattern": PIXELS, "h": slice(3, 3)}, "h = 3:3, which reaches beyond the 5 positions"),
        ({"pattern": PIXELS, "h": [0, 5]}, "h chooses position 5, but its axis has positions 0 to 4"),
        ({"pattern": PIXELS, "h": [0, -5]}, "h chooses position 0 twice"),
        ({"pattern": PIXELS, "h": []}, "h = .* chooses no positions|h = .* does not slice|h chooses no positions"),
        ({"pattern": PIXELS, "h": "1:"}, "Give a slice, a list of positions"),
        ({"pattern": PIXELS, "columns": [True, False]}, "the mask of columns has 2 entries, but its axis has 3"),
        ({"pattern": PIXELS, "columns": [False] * 3}, "columns chooses no positions"),
        ({"pattern": PIXELS, "columns": [3]}, "columns chooses position 3, but its axis has positions 0 to 2"),
        ({"pattern": PIXELS, "columns": ["red"]}, "columns names 'red', but the columns of X have no names"),
        ({"columns": slice("a", "b")}, "does not slice by integers"),
        ({"columns": 4}, "columns = 4 chooses no positions. Give a slice, a list"),
        ({"columns": [0.5]}, "columns = .* Give a slice, a list"),
    ],
)  # fmt: skip
def test_a_pattern_that_does_not_fit_is_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        bp.open(MAPS, **given)


def test_names_that_there_are_not_and_a_second_pattern_are_rejected() -> None:
    frame = pd.DataFrame({"height": [1.0, 2], "width": [3.0, 4]})
    with pytest.raises(ValueError, match=r"'hheight', but X has no such column\. Did you mean height"):
        bp.open(frame, columns=["hheight"])
    with pytest.raises(ValueError, match="already opened with a pattern, columns or a missing value"):
        bp.open(bp.open(MAPS, pattern=PIXELS), columns=[0])


@pytest.mark.parametrize("name", PATTERNS)
def test_a_view_of_a_pattern_returns_from_json(name: str) -> None:
    given, _ = PATTERNS[name]
    view = view_of(bp.open(MAPS, **given))[1]
    assert view is not None
    again = View.from_json(view.to_json(), view.width)
    assert again.describe() == view.describe()
    assert str(again.pattern) == str(view.pattern)


@pytest.mark.parametrize(
    "forged",
    [
        {"sample": [10**15], "pattern": None, "taken": {}, "columns": {"slice": [None, None, None]}},
        {"sample": [3, 0, 4]},
        {"sample": [3, 5]},
        {"sample": [4, 5, 4]},
        {"pattern": "n c h w -> n c"},
        {"taken": {"h": {"slice": [9, None, None]}}},
        {"columns": {"positions": [0, 1, 5], "length": None}},
    ],
)
def test_forged_views_are_rejected_before_memory_is_allocated(forged: dict[str, Any]) -> None:
    view = view_of(bp.open(MAPS, pattern=PIXELS, h=slice(1, None)))[1]
    assert view is not None
    with pytest.raises(ValueError, match=r"."):
        View.from_json(view.to_json() | forged, 3)


def test_patterns_are_shown_with_what_they_use() -> None:
    pattern = RowPattern.of("n t d -> (n t) d", [1, 2], {"t": slice(1, None), "d": 8})
    assert str(pattern) == "n t d -> (n t) d; t 1:; columns 2 chosen"


def test_records_of_an_array_add_up_outlive_pickling_and_end_with_it() -> None:
    names = np.array(["a", "b", "c"], object)
    X = carrying(named(bp.open(np.eye(3)), names), index=pd.Index(["x", "y", "z"]))
    for found in (carried(X), carried(cloudpickle.loads(cloudpickle.dumps(X)))):
        assert list(found.names) == list(names)  # type: ignore[arg-type]
        assert list(found.index) == ["x", "y", "z"]
    assert carried(X[1:]).names is None
    assert carried(X * 2).index is None
    rows = Rows.of(bp.open(X, columns=["c", "a"]))
    assert list(carried(rows.X).names) == ["c", "a"]  # type: ignore[arg-type]
    assert rows.origin.view is not None


def test_a_mask_of_samples_is_flattened_to_weights_of_their_rows() -> None:
    mask = np.random.default_rng(1).random((N, H, W)) > 0.4
    expected = bp.PCA(2).fit(MAPS.transpose(0, 2, 3, 1).reshape(-1, C)[mask.ravel()])
    found = bp.PCA(2).fit(bp.open(MAPS, pattern=PIXELS), sample_weight=mask.ravel())
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)
    with pytest.raises(ValueError, match="Give one row of weights for each row of X"):
        bp.PCA(2).fit(bp.open(MAPS, pattern=PIXELS), sample_weight=mask)
