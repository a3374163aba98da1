"""Bad input gets an error that says what is wrong, before any read where it can be known;
degenerate data gets zeros.
"""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

import bigpca as bp
from bigpca import PCA
from bigpca.data.dask_arrays import source_of
from tests.builders import data_with_spectrum, rank_deficient
from tests.estimators.stores import exact, stored, unreadable

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 6))
solvers = pytest.mark.parametrize("solver", ["covariance", "dot"])
containers = pytest.mark.parametrize("lazy", [False, True], ids=["memory", "lazy"])


def as_given(data: NDArray[Any], lazy: bool) -> Any:
    return da.from_array(data, chunks=(20, data.shape[1])) if lazy else data


@containers
@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("solver", ["auto", "covariance", "dot"])
def test_fewer_than_two_rows_have_no_variance(n: int, lazy: bool, solver: str) -> None:
    data = as_given(np.ones((n, 3)), lazy) if n else (da.zeros((0, 3)) if lazy else np.ones((0, 3)))
    for call in ("fit", "plan"):
        with pytest.raises(ValueError, match=rf"Found array with {n} sample.* minimum of 2 is required"):
            getattr(PCA(1, solver=solver), call)(data)


@pytest.mark.parametrize("solver", ["auto", "covariance", "dot"])
def test_fewer_than_two_rows_are_noticed_when_rows_must_be_counted(solver: str) -> None:
    lazy = da.from_array(X, chunks=(20, 6))
    with pytest.raises(
        ValueError, match=r"Found array with 0 samples.* minimum of 2 is required: a variance needs two rows"
    ):
        PCA(solver=solver).fit(lazy[lazy[:, 0] > 1e9])
    if solver == "dot":
        assert not hasattr(PCA(solver=solver), "partial_fit")
        return
    with pytest.raises(ValueError, match=r"Found array with 0 samples.* minimum of 1 is required"):
        PCA(solver=solver).partial_fit(lazy[lazy[:, 0] > 1e9])


def test_no_columns_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"Found array with 0 feature\(s\) .*a minimum of 1 is required"):
        PCA().fit(da.zeros((5, 0)))
    with pytest.raises(ValueError, match=r"0 feature\(s\)"):
        PCA().fit(np.zeros((5, 0)))


@pytest.mark.parametrize("n_components", [0, -1, 7, 51, np.int64(7)])
def test_an_impossible_number_of_components_is_rejected_unread(n_components: int) -> None:
    for call in ("fit", "plan"):
        with pytest.raises(
            ValueError, match=rf"n_components = {n_components} is out of range: 50 samples of 6 features"
        ):
            getattr(PCA(n_components), call)(unreadable(50, 6))
    with pytest.raises(ValueError, match="n_components = 6 is out of range: 4 samples of 6 features have 1 to 4"):
        PCA(6).fit(unreadable(4, 6))


@pytest.mark.parametrize("method", ["transform", "score_samples", "score"])
@containers
def test_another_number_of_features_is_rejected_unread(method: str, lazy: bool) -> None:
    pca = PCA(2).fit(X)
    with pytest.raises(ValueError, match="X has 5 features, but PCA is expecting 6 features as input"):
        getattr(pca, method)(unreadable(10, 5) if lazy else X[:, :5])


@containers
def test_scores_of_another_width_have_no_inverse(lazy: bool) -> None:
    pca = PCA(2).fit(X)
    with pytest.raises(ValueError, match=r"scores have 5 columns; 2 \(n_components_\) were expected"):
        pca.inverse_transform(unreadable(10, 5) if lazy else X[:, :5])


OMITTING = [
    PCA(2, nan_policy="omit"), PCA(2, nan_policy="omit", solver="krylov"), bp.ApproximatePCA(2, nan_policy="omit"),
    bp.SupervisedPCA(1, nan_policy="omit"), bp.Ridge(1.0, nan_policy="omit"),
    bp.NystromKernelPCA(2, n_landmarks=5, nan_policy="omit"), bp.KernelPCA(2, nan_policy="omit"),
    bp.KernelPCA(2, kernel="poly", degree=2, nan_policy="omit"),
]  # fmt: skip


@pytest.mark.parametrize("model", OMITTING, ids=lambda one: type(one).__name__)
def test_rows_that_are_all_omitted_leave_too_few(model: Any) -> None:
    holed = X.copy()
    holed[:, 1] = np.nan
    with pytest.raises(ValueError, match=r"0 samples after 50 rows with .* left out\. Leave out columns that have no"):
        model.fit(holed, X[:, :1] if isinstance(model, bp.Ridge) else np.arange(50.0) % 2)


def test_the_dot_matrix_cannot_omit_rows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'nan_policy="omit" does not work with solver="dot".*Use solver="covariance"'):
        PCA(2, solver="dot", nan_policy="omit").fit(unreadable(50, 6))
    by_columns = stored(tmp_path, X, (len(X), 3))
    with pytest.raises(ValueError, match=r'nor with solver="krylov" where chunks hold columns'):
        PCA(2, solver="krylov", nan_policy="omit").fit(by_columns)


@containers
def test_transform_rejects_non_finite_rows(lazy: bool) -> None:
    bad = X.copy()
    bad[33, 4] = np.nan
    with pytest.raises(
        bp.errors.NonFiniteError, match=r"1 NaN or infinite value in 1 row of .* column 4. Finite values"
    ):
        np.asarray(PCA(2).fit(X).transform(as_given(bad, lazy)))


def test_scores_that_overflow_float32_are_rejected() -> None:
    pca = PCA(2).fit(X.astype(np.float32))
    huge = (3e38 * np.sign(pca.components_[:1])).astype(np.float32)
    with pytest.raises(ValueError, match=r"overflow float32: the values are too large. Pass float64 input"):
        pca.transform(huge)
    assert pca.transform(huge.astype(np.float64))[0, 0] > 3.5e38


@pytest.mark.parametrize("unit", [1e-38, 1e-41])
def test_the_inverse_deviations_of_tiny_columns_may_leave_float32(unit: float) -> None:
    rows = (np.random.default_rng(0).standard_normal((40, 3)) * [3 * unit, 2 * unit, unit]).astype(np.float32)
    for model in (PCA(2, whiten=True).fit(rows), PCA(2, scale=True).fit(rows)):
        for call in (model.transform, model.mahalanobis):
            expected = np.asarray(call(rows.astype(np.float64)))
            np.testing.assert_allclose(call(rows), expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@solvers
def test_a_constant_feature_is_scaled_by_one(solver: str, tmp_path: Path) -> None:
    data = X.copy()
    data[:, 2] = 1e4 + 0.1
    for given in (data, stored(tmp_path, data, (50, 2)), stored(tmp_path, data, (7, 6))):
        pca = PCA(6, solver=solver, scale=True).fit(given)
        assert pca.scale_ is not None
        assert pca.scale_[2] == 1
        np.testing.assert_allclose(pca.components_[:5, 2], 0, atol=1e-12)
        assert pca.explained_variance_[5] == 0
        np.testing.assert_allclose(pca.total_variance_, 5 * 50 / 49, rtol=1e-12)


@solvers
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_beyond_the_rank_variances_vanish_and_axes_stay_orthonormal(solver: str, mean: float, tmp_path: Path) -> None:
    data = data_with_spectrum(40, rank_deficient(12, 4))[0] + mean
    for given in (data, stored(tmp_path, data, (40, 5)), stored(tmp_path, data, (9, 12))):
        pca = PCA(10, solver=solver).fit(given)
        np.testing.assert_allclose(pca.explained_variance_[:4], exact(data, 4)[0], rtol=1e-9)
        assert (pca.explained_variance_ >= 0).all()
        np.testing.assert_allclose(pca.explained_variance_[4:], 0, atol=1e-14 * (1 + mean))
        np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(10), atol=1e-10)
        assert np.isfinite(PCA(10, solver=solver, whiten=True).fit(given).transform(data)).all()


@solvers
def test_duplicated_rows_are_no_problem(solver: str) -> None:
    data = np.tile(X[:3], (20, 1))
    pca = PCA(solver=solver).fit(data)
    np.testing.assert_allclose(pca.explained_variance_, exact(data, 6)[0], atol=1e-13)
    assert not pca.explained_variance_[2:].any()
    with pytest.raises(ValueError, match="the model has no density: 6 components of 6 features"):
        pca.score(data)


def test_a_wide_fit_without_noise_has_no_density() -> None:
    with pytest.raises(ValueError, match=r"no density: 4 components of 6 features with noise variance 0 .*Keep fewer"):
        PCA().fit(X[:4]).score_samples(X)


@solvers
def test_missing_truncated_and_flipped_chunks_stop_the_fit(solver: str, tmp_path: Path) -> None:
    lazy = stored(tmp_path, X, (10, 6))
    chunks = sorted(path for path in tmp_path.rglob("c/*/*") if path.is_file())
    assert len(chunks) == 5
    content = chunks[2].read_bytes()
    chunks[2].write_bytes(content[: len(content) // 2])
    with pytest.raises(bp.errors.CorruptedChunkError, match="c/2/0"):
        PCA(2, solver=solver).fit(source_of(lazy).path)
    chunks[2].write_bytes(b"")
    with pytest.raises(bp.errors.CorruptedChunkError, match="c/2/0"):
        PCA(2, solver=solver).fit(source_of(lazy).path)
    chunks[2].unlink()
    with pytest.raises(bp.errors.MissingChunksError, match="c/2/0"):
        PCA(2, solver=solver).fit(source_of(lazy).path)
    filled = np.where((np.arange(50) // 10 == 2)[:, None], 0, X)
    opened = bp.open(source_of(lazy).path, missing_chunks="fill")
    pca = PCA(2, solver=solver).fit(opened)
    np.testing.assert_allclose(pca.explained_variance_, exact(filled, 2)[0], rtol=1e-9)
    np.testing.assert_allclose(
        pca.transform(opened, out=tmp_path / "s.zarr").compute(), pca.transform(filled), atol=1e-12
    )
    with pytest.raises(bp.errors.MissingChunksError, match="c/2/0"):
        PCA(2).fit(X).transform(bp.open(source_of(lazy).path)).compute()
    for read in (PCA(2, solver=solver).fit, lambda rows: PCA(2).fit(X).transform(rows).compute()):
        with pytest.raises(bp.errors.InputChangedError, match="store-"):  # opened while the chunk was there
            read(lazy)


LOST = "is 0: squares of values below 1e-150|or varies by less than 1e-162, whose squares are 0"


@pytest.mark.parametrize(
    ("unit", "said", "where"),
    [
        *((1e200, "(overflow|beyond) float64", where) for where in ("memory", "columns", "sparse", "device")),
        (1e-160, "below 1e-150 leave the range", "memory"),
        (1e-160, "below 1e-150 leave the range", "columns"),
        (1e-170, LOST, "memory"),
    ],
)
@pytest.mark.parametrize(
    "model",
    [*(PCA(2, solver=solver) for solver in ("covariance", "dot", "krylov")), bp.ApproximatePCA(2), PCA(2, scale=True),
     bp.RotatedPCA(2), bp.CCA(1), bp.Ridge(0.0), bp.PLSSVD(1), bp.GeneralizedPCA(2, metric=np.eye(4)),
     bp.ContrastivePCA(2, background=0), bp.SupervisedPCA(1), bp.FactorAnalysis(2), bp.SlowFeatureAnalysis(2),
     bp.MinimumNoiseFraction(2), bp.TICA(2),
     bp.FisherDiscriminantAnalysis(1), bp.RoweisDiscriminantAnalysis(2, r1=0.5, r2=0.5), bp.ScoredPCA(2),
     *(bp.KernelPCA(2, solver=solver) for solver in ("features", "dense", "krylov")),
     bp.ApproximateKernelPCA(2, kernel="linear"), bp.NystromKernelPCA(2, kernel="linear", sampling=np.arange(20)),
     bp.NystromKernelPCA(2, kernel="linear", sampling="uniform", n_landmarks=50, components_from="landmarks"),
     *(bp.KernelSupervisedPCA(1, kernel="linear", solver=solver, sampling="uniform")
       for solver in ("landmarks", "pairs"))],
    ids=str,
)  # fmt: skip
def test_squares_that_leave_float64_are_named(model: Any, unit: float, said: str, where: str, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(200, 4))
    columns = unit if not getattr(model, "scale", False) or unit > 1 else np.array([1, 1, unit, 1])
    y = X[:, :2] if isinstance(model, bp.Ridge | bp.CCA | bp.PLSSVD) else np.arange(200) % 2
    rows = {"columns": lambda X: stored(tmp_path, X, (100, 2)), "sparse": csr_array}.get(where, np.asarray)(X * columns)
    said += "|all pairs of rows requires dense rows" if where == "sparse" else ""
    arithmetic = "array_api_strict:device1" if where == "device" else "numpy"
    quiet, named = np.errstate(over="ignore", invalid="ignore"), pytest.raises((ValueError, TypeError), match=said)
    with quiet, named, bp.config(arithmetic=arithmetic):
        model.fit(rows, y)


@pytest.mark.parametrize("solver", ["covariance", "dot", "krylov"])
def test_a_column_of_tiny_values_beside_others_is_no_error_of_a_fit_without_a_scale(solver: str) -> None:
    rows = X.copy()
    rows[:, 2] = 1e-200
    expected = PCA(2, solver=solver).fit(np.where(np.arange(6) == 2, 0.0, X))
    np.testing.assert_allclose(PCA(2, solver=solver).fit(rows).explained_variance_, expected.explained_variance_)
