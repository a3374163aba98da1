"""SketchTransformer gives the sketch's own product, wherever the rows are, and is a scikit-learn transformer."""

from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import bigpca as bp
from bigpca import SketchTransformer
from bigpca.errors import ModelFormatError, NonFiniteError
from bigpca.estimators.shared.files import StoredModel, save_model
from bigpca.sketches import SRHT, Downsample, FeatureHash, Gaussian, Sketch, SparseSign
from tests.estimators.stores import stored, unreadable

X = np.random.default_rng(0).standard_normal((60, 24))
SKETCHES: dict[str, Sketch] = {
    "gaussian": Gaussian(7, random_state=3),
    "sparse sign": SparseSign(7, nnz=3),
    "feature hash": FeatureHash(7, n_hashes=2),
    "hash kernel": FeatureHash(7, signed=False),
    "srht": SRHT(7, random_state=1),
    "downsample": Downsample((4, 6), (2, 3)),
}
sketches = pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "f4") for name in SKETCHES), *(("gaussian", dtype) for dtype in ("f2", "f8", "i4"))]
)
def test_every_container_gives_the_product_of_the_sketch(name: str, dtype: str, tmp_path: Path) -> None:
    sketch, rows = SKETCHES[name], (10 * X).astype(dtype)
    working = np.float32 if dtype in ("f2", "f4") else np.float64
    # Blocks of rows change the order of sums of 24 products: a few eps of the largest.
    expected = rows.astype(working) @ sketch.matrix(24).astype(working)
    tolerance = 24 * np.finfo(working).eps * float(np.abs(expected).max())
    transformer = SketchTransformer(sketch)
    in_memory = transformer.fit_transform(rows)
    lazy = transformer.fit_transform(da.from_array(rows, chunks=(13, 10)))
    written = transformer.transform(stored(tmp_path, rows, (13, 10)), out=tmp_path / "sketches.zarr")
    assert isinstance(lazy, da.Array)
    assert isinstance(written, da.Array)
    assert lazy.chunks[0] == (13, 13, 13, 13, 8)
    for found in (in_memory, lazy.compute(), written.compute()):
        assert found.dtype == working
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_fit_and_lazy_transform_read_nothing() -> None:
    lazy = SketchTransformer(Gaussian(3)).fit_transform(unreadable(50, 24))
    assert lazy.shape == (50, 3)
    with pytest.raises(AssertionError, match="a row was read"):
        lazy.compute()


@sketches
def test_one_value_that_is_not_finite_is_found_in_any_column(sketch: Sketch) -> None:
    for column in range(24):
        rows = X.copy()
        rows[5, column] = (np.nan, np.inf, -np.inf)[column % 3]
        lazy = SketchTransformer(sketch).fit_transform(da.from_array(rows, chunks=(60, 24)))
        with pytest.raises(NonFiniteError, match=rf"1 NaN or infinite value in 1 row .*row 5, column {column}\."):
            lazy.compute()


@pytest.mark.parametrize("lazy", [False, True], ids=["memory", "lazy"])
def test_omitted_rows_get_sketches_of_nan(lazy: bool) -> None:
    rows = X.copy()
    rows[[3, 40], [0, 9]] = np.nan, np.inf
    given = da.from_array(rows, chunks=(25, 24)) if lazy else rows
    found = np.asarray(SketchTransformer(FeatureHash(7), nan_policy="omit").fit_transform(given))
    assert np.flatnonzero(np.isnan(found).all(axis=1)).tolist() == [3, 40]
    kept = np.delete(np.arange(60), [3, 40])
    np.testing.assert_allclose(found[kept], FeatureHash(7).apply(X[kept]), rtol=1e-12, atol=1e-14)


def test_rows_in_memory_are_rejected_by_fit_already_beyond_the_first_block() -> None:
    rows = np.ones((9000, 3), np.float32)
    rows[8999, 1] = np.nan
    with pytest.raises(
        NonFiniteError, match=r"1 NaN or infinite value in .*nan_policy=\"omit\" gives such rows NaN sketches"
    ):
        SketchTransformer(Gaussian(2)).fit(rows)


@pytest.mark.parametrize(
    ("dtype", "remedy"), [("f4", "Pass float64 input"), ("f8", "Divide the data by a constant first")]
)
def test_an_overflow_is_not_mistaken_for_missing_values(dtype: str, remedy: str) -> None:
    huge = np.full((2, 24), 0.9 * np.finfo(dtype).max, dtype)
    with pytest.raises(ValueError, match=rf"sketches of .* overflow float\d\d: the values are too large. {remedy}"):
        SketchTransformer(FeatureHash(1, signed=False)).fit_transform(huge)


@pytest.mark.parametrize("d", [24, 300])
def test_the_default_is_a_gaussian_sketch_of_a_hundred_columns_at_most(d: int, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((30, d))
    transformer = SketchTransformer().fit(rows)
    assert transformer.sketch_ == Gaussian(min(d, 100))
    np.testing.assert_array_equal(transformer.transform(rows), Gaussian(min(d, 100)).apply(rows))
    assert transformer.fit(rows[:, :9]).transform(rows[:, :9]).shape == (30, 9)
    transformer.save(tmp_path / "sketch.zarr")
    assert bp.load(tmp_path / "sketch.zarr").sketch_ == Gaussian(9)


def test_a_sketch_that_does_not_suit_the_rows_is_rejected_by_fit_and_in_a_file(tmp_path: Path) -> None:
    for sketch, message in ((Gaussian(25), "q = 25 is over the 24 columns"), (Downsample((5, 5), (2, 2)), "24")):
        with pytest.raises(ValueError, match=message):
            SketchTransformer(sketch).fit(unreadable(50, 24))
    model = StoredModel.of(SketchTransformer(Gaussian(2)).fit(X))
    for change, message in (({"n_features": 1}, "q = 2 is over the 1 columns"),
                            ({"parameters": {"sketch": {"sketch": "Telepathy"}}}, "'Telepathy' is not a sketch"),
                            ({"parameters": {"sketches": 3}}, "has no parameter 'sketches'")):  # fmt: skip
        save_model(tmp_path / "m.zarr", replace(model, attributes=model.attributes | change), overwrite=True)
        with pytest.raises(ModelFormatError, match=rf"does not hold what a SketchTransformer of .*{message}"):
            bp.load(tmp_path / "m.zarr")


def test_the_plan_of_a_sketch_names_no_blocks_which_it_does_not_form() -> None:
    assert "Gflop in 1 task\n" in str(SketchTransformer(Gaussian(3)).plan(np.eye(9)))
