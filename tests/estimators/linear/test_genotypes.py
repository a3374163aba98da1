"""Counts of alleles with a code for missing calls, beside NumPy and scikit-allel."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy.sparse import csr_array

import bigpca as bp
from tests.estimators.stores import unreadable

RNG = np.random.default_rng(0)
N, D, K = 40, 90, 3
SHARES = np.clip(RNG.uniform(0.1, 0.9, D) + 0.3 * (np.arange(N) % 3 - 1)[:, None] * RNG.random(D), 0.02, 0.98)
CALLS = RNG.binomial(2, SHARES).astype("i1")
CODED = np.where(RNG.random((N, D)) < 0.05, -1, CALLS).astype("i1")
HOLED = np.where(CODED < 0, np.nan, CODED)
PATTERSON = bp.scales.Patterson(ploidy=2)
quiet = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


def in_zarr(tmp_path: Path) -> Any:
    zarr.create_array(tmp_path / "calls.zarr", shape=(N, D), chunks=(15, 40), dtype="i1")[:] = CODED
    return tmp_path / "calls.zarr"


SOURCES = {
    "memory": lambda tmp_path: CODED,
    "frame": lambda tmp_path: pd.DataFrame(CODED, columns=[f"rs{i}" for i in range(D)]),
    "dask": lambda tmp_path: da.from_array(CODED, chunks=(15, 40)),
    "zarr": in_zarr,
}


def oracle() -> tuple[Any, Any]:
    """Eigenvalues and scores: Patterson's scale of the calls that are there, 0 where there are none."""
    p = np.nanmean(HOLED, axis=0) / 2
    z = np.nan_to_num((HOLED - 2 * p) / np.sqrt(p * (1 - p)))
    U, s, _ = np.linalg.svd(z, full_matrices=False)
    return s[:K] ** 2 / (N - 1), U[:, :K] * s[:K]


def test_it_is_the_pca_of_scikit_allel() -> None:
    allel = pytest.importorskip("allel")
    scores, model = allel.pca(CALLS.T.astype("f8"), n_components=K, scaler="patterson")
    found = bp.PCA(K, scale=PATTERSON).fit(CALLS.astype("f8"))
    np.testing.assert_allclose(found.explained_variance_ * (N - 1) / N, model.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(found.explained_variance_ratio_, model.explained_variance_ratio_, rtol=1e-8)
    np.testing.assert_allclose(np.abs(found.transform(CALLS.astype("f8"))), np.abs(scores), rtol=0, atol=1e-8)


@quiet
@pytest.mark.parametrize(
    ("source", "solver"),
    [*((one, "covariance") for one in SOURCES), ("zarr", "dot"), ("dask", "dot"), ("zarr", "krylov")],
)
def test_a_missing_call_is_0_after_centring(source: str, solver: str, tmp_path: Path) -> None:
    rows = SOURCES[source](tmp_path)
    model = bp.PCA(K, solver=solver, tol=1e-9, scale=PATTERSON, nan_policy="mean")
    model.fit(bp.open(rows, missing_value=-1))
    variances, _ = oracle()
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-7)
    scores = np.asarray(model.transform(rows))  # the model keeps the code
    expected = model.transform(bp.open(rows, missing_value=-1))
    assert np.array_equal(scores, np.asarray(expected))
    wide = bp.PCA(K, solver="covariance", scale=PATTERSON, nan_policy="mean").fit(HOLED).transform(HOLED)
    np.testing.assert_allclose(np.abs(scores), np.abs(wide), rtol=0, atol=1e-5 * np.abs(scores).max())
    assert model.pattern_ is not None
    assert str(model.pattern_) == "-1 is missing"
    model.save(tmp_path / "model")
    assert np.array_equal(np.asarray(bp.load(tmp_path / "model").transform(rows)), scores)


def test_columns_without_variation_have_scale_1() -> None:
    calls = CALLS.copy()
    calls[:, 0], calls[:, 1] = 0, 2
    model = bp.PCA(K, scale=PATTERSON).fit(calls)
    assert model.scale_[:2].tolist() == [1.0, 1.0]


def test_a_code_goes_with_patterns_columns_and_a_model_of_either() -> None:
    maps = RNG.integers(0, 3, (20, 4, 3)).astype("u1")
    maps[RNG.random(maps.shape) < 0.1] = 255
    rows = bp.open(maps, pattern="n c t -> (n t) c", t=slice(1, None), missing_value=255)
    truth = np.where(maps == 255, np.nan, maps).transpose(0, 2, 1)[:, 1:].reshape(-1, 4)
    np.testing.assert_array_equal(rows.compute(), truth)
    model = bp.PCA(2, nan_policy="omit").fit(rows)
    np.testing.assert_array_equal(model.transform(maps), model.transform(rows).compute())
    chosen = bp.open(CODED, columns=slice(2, 9), missing_value=-1)
    np.testing.assert_array_equal(chosen.compute(), HOLED[:, 2:9].astype("f4"))
    model = bp.PCA(2, nan_policy="omit").fit(chosen)
    expected = model.transform(CODED)
    np.testing.assert_array_equal(expected, model.transform(CODED[:, 2:9]))
    np.testing.assert_array_equal(expected, model.transform(bp.open(CODED, columns=slice(2, 9))).compute())
    with pytest.raises(ValueError, match=r"missing_value = -2 in X, but PCA was fitted with missing_value = -1"):
        model.transform(bp.open(CODED, columns=slice(2, 9), missing_value=-2))


def with_one(value: float) -> Any:
    rows = CALLS.astype("f4")
    rows[7, 11] = value
    return rows


@pytest.mark.parametrize("value", [-1, 9, 2.5])
@pytest.mark.parametrize("solver", ["covariance", "dot", "krylov"])
@pytest.mark.parametrize("chunks", [(10, D), (N, 30)])
def test_one_value_outside_0_to_ploidy_is_found_in_every_read(
    chunks: tuple[int, int], solver: str, value: float, tmp_path: Path
) -> None:
    """Means of columns alone would not show it: those with one 9 among 40 rows are between 0 and 2."""
    message = f"row 7, column 11 of .* holds {value:g}; counts of alleles for scale=Patterson.ploidy=2., 0 to 2"
    rows = zarr.create_array(tmp_path / "x.zarr", shape=(N, D), chunks=chunks, dtype="f4")
    rows[:] = with_one(value)
    for one in (rows, with_one(value)):
        with pytest.raises(ValueError, match=message) as caught:
            bp.PCA(K, solver=solver, scale=PATTERSON).fit(one)
        assert f"bp.open(source, missing_value={value:g})" in str(caught.value)
    model = bp.PCA(K, solver=solver, scale=PATTERSON).fit(CALLS)
    for method in (model.transform, model.spe):
        with pytest.raises(ValueError, match=message):
            method(with_one(value))


@pytest.mark.parametrize(
    ("source", "code", "error", "message"),
    [
        (CODED, 300, ValueError, "the values are int8, whole numbers from -128 to 127"),
        (CODED.astype("u1"), -1, ValueError, "the values are uint8, whole numbers from 0 to 255"),
        (CODED, -0.5, ValueError, "missing_value = -0.5, but the values are int8"),
        (CODED > 0, -1, ValueError, "the values are bool, whole numbers from 0 to 1"),
        (CODED, np.nan, ValueError, "missing_value = nan cannot be a code for missing values"),
        (CODED, "NA", TypeError, "missing_value = 'NA' is a str"),
        (CODED, True, TypeError, "missing_value = True is a bool"),
        (csr_array(CODED.astype("f4")), -1, ValueError, "with sparse rows, whose unstored entries are 0"),
        (bp.open(CODED, columns=[0, 1]), -1, ValueError, "already opened with a pattern, columns or a missing value"),
        (unreadable(N, D, dtype="i2"), 70_000, ValueError, "whole numbers from -32768 to 32767"),
    ],
)
def test_codes_that_no_value_can_be_are_rejected_unread(
    source: Any, code: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bp.open(source, missing_value=code)
