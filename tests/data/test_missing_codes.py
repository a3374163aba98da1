"""Several codes of missing values: models, files and exports keep them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bigpca as bp
from bigpca.data.views import MissingCodes

RNG = np.random.default_rng(0)
NAMES = list("abcdef")
GAPS = RNG.random((60, 6)) < 0.1
HOLED = np.where(GAPS, np.nan, RNG.integers(0, 5, GAPS.shape)).astype("f4")
CODES = [-1, -9]
CODED = np.where(GAPS, np.where(np.arange(6) % 2, -9, -1), np.nan_to_num(HOLED)).astype("i2")
FRAME = pd.DataFrame(CODED, columns=NAMES)
quiet = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


@quiet
def test_codes_become_nan_for_models_their_files_and_their_exports(tmp_path: Path) -> None:
    model = bp.PCA(2, nan_policy="mean").fit(bp.open(CODED, missing_value=CODES))
    plain = bp.PCA(2, nan_policy="mean").fit(HOLED)
    np.testing.assert_array_equal(model.explained_variance_, plain.explained_variance_)
    model.save(tmp_path / "m")
    for one in (model, bp.load(tmp_path / "m")):
        np.testing.assert_array_equal(one.transform(CODED), plain.transform(HOLED))
        np.testing.assert_array_equal(one.to_sklearn()[0].transform(CODED), HOLED)
    runtime = pytest.importorskip("onnxruntime")
    model.to_onnx(tmp_path / "m.onnx")
    scores = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"rows": CODED.astype("f4")})[0]
    expected = model.set_params(nan_policy="omit").transform(CODED)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@quiet
def test_codes_may_be_given_in_any_order() -> None:
    one, other = (
        bp.PCA(2, nan_policy="omit").fit(bp.open(CODED, missing_value=given)) for given in ([-1, -9], [-9, -1])
    )
    np.testing.assert_array_equal(one.transform(bp.open(CODED, missing_value=[-9, -1])), one.transform(CODED))
    assert bp.merge(one, other).n_samples_ == 2 * one.n_samples_


@quiet
def test_codes_follow_their_columns_which_may_stand_elsewhere(tmp_path: Path) -> None:
    chosen = ["d", "a"]
    model = bp.PCA(2, nan_policy="mean").fit(bp.open(FRAME, missing_value=CODES, columns=chosen))
    model.save(tmp_path / "m")
    expected = bp.PCA(2, nan_policy="mean").fit(HOLED[:, [3, 0]]).transform(HOLED[:, [3, 0]])
    turned = FRAME[NAMES[::-1]]
    for one in (model, bp.load(tmp_path / "m")):
        for rows in (FRAME, turned, FRAME[chosen], bp.open(turned, columns=chosen)):
            np.testing.assert_array_equal(one.transform(rows), expected)
    with pytest.raises(ValueError, match="-9 in X, but PCA was fitted with missing_value = -9 and -1"):
        model.transform(bp.open(FRAME, columns=chosen, missing_value=-9))


def field(values: Any) -> xr.DataArray:
    grid = {"lat": [10.0, 20.0], "lon": [1, 2, 3]}
    return xr.DataArray(values.reshape(60, 2, 3), dims=("time", "lat", "lon"), coords={"time": np.arange(60), **grid})


@quiet
@pytest.mark.parametrize("options", [{}, {"sample_dims": "time"}, {"mask": np.arange(6).reshape(2, 3) > 0}], ids=str)
@pytest.mark.parametrize("lazy", [False, True])
def test_models_of_a_grid_keep_grid_and_codes(options: dict[str, Any], lazy: bool, tmp_path: Path) -> None:
    """Columns that hold codes in every sample are left out, as those that are NaN."""
    coded, holed = CODED.astype("f4"), HOLED.copy()
    coded[:, 0], holed[:, 0] = -9, np.nan
    given = field(coded).chunk(time=17) if lazy else field(coded)
    model = bp.PCA(2, nan_policy="mean").fit(bp.open(given, missing_value=[-1, -9], **options))
    model.save(tmp_path / "m")
    expected = bp.PCA(2, nan_policy="mean").fit(field(holed)).transform(field(holed))
    for one in (model, bp.load(tmp_path / "m")):
        for rows in (given, field(holed), bp.open(given, missing_value=[-1, -9], **options)):
            found = one.transform(rows)
            np.testing.assert_allclose(found, expected, atol=1e-5)
        assert one.transform(given).dims == ("time", "component")
        with pytest.raises(ValueError, match="missing_value = -2 in X, but PCA was fitted with -9 and -1"):
            one.transform(bp.open(given, missing_value=-2, **options))


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": ([], TypeError, r"missing_value = \[\] is a list"),
    "text": ([-1, "NA"], TypeError, "missing_value = 'NA' is a str"),
    "infinity": ([-1, np.inf], ValueError, "missing_value = inf cannot be a code"),
    "half": ([-1, 0.5], ValueError, "missing_value = 0.5, but the values are int16"),
    "a mapping": ({"a": -1}, TypeError, "is a dict, not a number"),
    "an array": (np.zeros(6), TypeError, "is an ndarray, .* single columns are replaced before: dask.array.where"),
}


@pytest.mark.parametrize("name", WRONG)
def test_codes_that_are_none_are_rejected(name: str) -> None:
    codes, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        bp.open(FRAME, missing_value=codes)


@pytest.mark.parametrize("codes", [-1, [-1, -9.5]], ids=str)
def test_codes_are_those_that_were_stored(codes: Any) -> None:
    known = MissingCodes.of(codes)
    assert MissingCodes.from_json(known.to_json()).codes == known.codes
    with pytest.raises(ValueError, match="codes of missing values for single columns"):
        MissingCodes.from_json([[-1, None], [-9, [0]]])
