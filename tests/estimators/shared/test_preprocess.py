"""``preprocess`` where rows are not plain: reads by number, other readers of X, and inputs that it rejects."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array

import bigpca as bp
from bigpca.estimators.shared.files import decode_record
from bigpca.passes.accumulators import kept_rows
from bigpca.quality import reconstruction_error
from tests.estimators.stores import unreadable

N, D = 90, 6
X = np.random.default_rng(0).standard_normal((N, D)) + 1.0
Y = np.arange(N) % 3
ROOTS = bp.preprocessing.Power(0.5).apply(X, "")
LAZY = da.from_array(X, chunks=(20, D))


def test_rows_of_zeros_are_rejected_by_absolute_number() -> None:
    rows = X.copy()
    rows[[47, 80]] = 0
    lazy = da.from_array(rows, chunks=(20, D))
    for given in (rows, lazy):
        with pytest.raises(ValueError, match=r"of the rows in .*, which are zeros: (47|80|47, 80)\. .*zero_rows"):
            bp.PCA(2, preprocess=bp.preprocessing.L2()).fit(given)
    model = bp.PCA(2, preprocess=bp.preprocessing.L2(zero_rows="keep")).fit(lazy)
    np.testing.assert_allclose(model.transform(rows)[47], -model.mean_ @ model.components_.T, atol=1e-12)
    with pytest.raises(ValueError, match=r"2 of the rows in .*, which are zeros: 47, 80"):
        bp.PCA(2, preprocess=bp.preprocessing.L2()).fit(X).transform(rows)
    model = bp.PCA(2, preprocess=bp.preprocessing.L2()).partial_fit(X)
    for added in (rows[45:50], da.from_array(rows[45:50])):  # rejected at once, though sums may wait
        with pytest.raises(ValueError, match=r"1 of the rows in .*, which are zeros: 2\."):
            model.partial_fit(added)
    assert model.partial_fit(X[:4]).n_samples_ == N + 4
    whole = bp.PCA(2, preprocess=bp.preprocessing.L2()).fit(np.vstack([X, X[:4]]))
    np.testing.assert_allclose(model.mean_, whole.mean_)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_preprocessing_that_was_not_fitted_is_rejected(loaded: bool, tmp_path: Path) -> None:
    model = bp.PCA(2, preprocess=bp.preprocessing.L2()).fit(X)
    if loaded:
        model.save(tmp_path / "model.zarr")
        model = bp.load(tmp_path / "model.zarr")
    scores = model.transform(X)
    model.set_params(preprocess=None)
    uses = (lambda: model.transform(X), lambda: model.spe(X), lambda: model.save(tmp_path / "other.zarr"))
    for use in (*uses, model.linear_map, lambda: bp.RotatedPCA.of(model)):
        with pytest.raises(ValueError, match=r"preprocess = None was set after a fit with \[L2\("):
            use()
    np.testing.assert_array_equal(model.set_params(preprocess=bp.preprocessing.L2()).transform(X), scores)


@pytest.mark.parametrize(
    ("forged", "error"),
    [
        ({"record": "system"}, KeyError),
        ({"record": "L2", "zero_rows": "drop"}, ValueError),
        ([{"record": "Power", "root": 2}], TypeError),
        ({"record": "Whitening", "power": "1"}, TypeError),
        ({"record": "vector"}, KeyError),
        ({"record": "vector", "array": "given_0"}, KeyError),
    ],
)
def test_records_of_a_model_file_come_from_a_fixed_table(forged: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_record(forged, {})


@pytest.mark.parametrize("kernel", ["precomputed", bp.kernels.Spectrum(2)], ids=str)
def test_kernels_of_other_things_than_vectors_reject_it(kernel: Any) -> None:
    given = np.eye(5) if kernel == "precomputed" else ["abca", "bcab", "aabb", "cacb"]
    model = bp.KernelPCA(2, kernel=kernel)
    model.fit(given)
    for call in (model.set_params(preprocess=bp.preprocessing.L2()).fit, model.plan, model.transform):
        with pytest.raises(ValueError, match=r"preprocess = L2\(.*\) requires rows that are vectors"):
            call(given)


@pytest.mark.parametrize("sampling", ["kmeans", X[:12], np.arange(12)], ids=lambda s: str(type(s)))
def test_landmarks_are_preprocessed_like_rows(sampling: Any) -> None:
    def fitted(rows: Any, sampling: Any, **given: Any) -> Any:
        model = bp.NystromKernelPCA(2, kernel="rbf", gamma=0.3, n_landmarks=12, sampling=sampling, **given)
        return model.fit(rows)

    own = ROOTS[:12] if isinstance(sampling, np.ndarray) and sampling.ndim == 2 else sampling
    found = fitted(LAZY, sampling, preprocess=bp.preprocessing.Power()).transform(X)
    expected = fitted(da.from_array(ROOTS, chunks=(20, D)), own).transform(ROOTS)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-6)


def test_readers_beside_fits_preprocess_once() -> None:
    model, plain = bp.PCA(2, preprocess=bp.preprocessing.Power()).fit(X), bp.PCA(2).fit(ROOTS)
    found, expected = reconstruction_error(model, X), reconstruction_error(plain, ROOTS)
    np.testing.assert_allclose(found.relative, expected.relative, rtol=1e-9)
    found = bp.roweis_map(X, Y, 3, model=bp.RoweisDiscriminantAnalysis(1, preprocess=bp.preprocessing.Power()))
    expected = bp.roweis_map(ROOTS, Y, 3, model=bp.RoweisDiscriminantAnalysis(1))
    np.testing.assert_array_equal(found.errors(X, Y), expected.errors(ROOTS, Y))
    inner = bp.PCA(2, preprocess=bp.preprocessing.L2())  # of the columns that an outer estimator chose
    model = bp.ScoredPCA(n_features_to_select=3, estimator=inner, preprocess=bp.preprocessing.Power()).fit(X, Y)
    chosen = ROOTS[:, model.selected_]
    np.testing.assert_allclose(np.abs(model.transform(X)), np.abs(inner.fit(chosen).transform(chosen)), atol=1e-9)


COUNTS = np.random.default_rng(1).poisson(np.outer(np.arange(N) % 7, np.arange(1.0, D + 1))).astype("f4")  # some zero
TOTALS = COUNTS.sum(axis=1, dtype="f8")
MEDIAN = float(np.median(TOTALS[TOTALS > 0]))
MEDIAN_FIRST = [bp.preprocessing.NormalizeTotal(), bp.preprocessing.Log1p()]


def normalised(target: float) -> Any:
    return np.log1p(COUNTS * (target / np.where(TOTALS > 0, TOTALS, 1))[:, None])


def stored_csr(path: Path) -> Any:
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(csr_array(COUNTS)).write_h5ad(path / "counts.h5ad")
    return bp.open(path / "counts.h5ad")


FORMS: dict[str, Any] = {
    "in memory": lambda path: COUNTS,
    "CSR": lambda path: csr_array(COUNTS),
    "Dask": lambda path: da.from_array(COUNTS, chunks=(17, D)),
    "stored CSR": stored_csr,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_median_of_the_sums_takes_one_more_read_and_belongs_to_the_model(form: str, tmp_path: Path) -> None:
    rows, expected = FORMS[form](tmp_path), bp.PCA(2).fit(normalised(MEDIAN))
    assert np.median(TOTALS) != MEDIAN
    model = bp.PCA(2, preprocess=MEDIAN_FIRST)
    plan = model.plan(rows)
    assert plan.passes == 2
    assert any("one more read finds the sums of the rows" in note for note in plan.notes)
    scores = np.asarray(model.fit(rows).transform(rows))
    assert model.preprocess_ == (bp.preprocessing.NormalizeTotal(MEDIAN), bp.preprocessing.Log1p())
    assert model.provenance_.reads == 2
    assert bp.PCA(2, preprocess=[bp.preprocessing.NormalizeTotal(5.0), bp.preprocessing.Log1p()]).plan(rows).passes == 1
    np.testing.assert_allclose(np.abs(scores), np.abs(expected.transform(normalised(MEDIAN))), rtol=0, atol=2e-5)
    model.save(tmp_path / "m.zarr")
    loaded = bp.load(tmp_path / "m.zarr")
    assert (loaded.preprocess_, loaded.preprocess) == (model.preprocess_, MEDIAN_FIRST)
    few = rows if form == "stored CSR" else rows[:9]  # whose own median is another one
    found = np.asarray(loaded.transform(few))
    np.testing.assert_array_equal(found, np.asarray(model.transform(few)))
    np.testing.assert_allclose(np.abs(found[:9]), np.abs(scores[:9]), rtol=0, atol=2e-5)


def test_a_weighted_row_counts_as_often_for_the_median() -> None:
    weights = np.arange(N) % 4
    model = bp.PCA(2, preprocess=MEDIAN_FIRST).fit(COUNTS, sample_weight=weights)
    repeated = np.repeat(TOTALS, weights)
    assert model.preprocess_[0] == bp.preprocessing.NormalizeTotal(float(np.median(repeated[repeated > 0])))
    assert model.preprocess_[0] != bp.preprocessing.NormalizeTotal(MEDIAN)


def test_added_rows_are_mapped_by_the_median_of_the_fit_and_models_of_two_medians_do_not_mix(tmp_path: Path) -> None:
    first, more = COUNTS[:50], COUNTS[50:]
    model = bp.PCA(2, preprocess=MEDIAN_FIRST).fit(first)
    target = model.preprocess_[0].target
    assert target != MEDIAN
    model.partial_fit(more)
    np.testing.assert_allclose(model.mean_, normalised(target).mean(axis=0), atol=1e-6)
    assert model.preprocess_[0].target == target
    other = bp.PCA(2, preprocess=MEDIAN_FIRST).fit(COUNTS)
    with pytest.raises(ValueError, match=r"NormalizeTotal\(target=.*NormalizeTotal\(target="):
        bp.merge(model, other)
    assert bp.merge(model, model).preprocess_ == model.preprocess_
    rotated = (bp.RotatedPCA.of(other), bp.RotatedPCA(2, preprocess=MEDIAN_FIRST).fit(COUNTS))
    for one in rotated:
        one.save(tmp_path / "r.zarr", overwrite=True)
        np.testing.assert_array_equal(bp.load(tmp_path / "r.zarr").transform(COUNTS), one.transform(COUNTS))
    np.testing.assert_allclose(reconstruction_error(other, COUNTS).relative, 1 - other.explained_variance_ratio_.sum())


def test_the_median_of_any_number_of_rows_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (
        bp.PCA(2, preprocess=MEDIAN_FIRST).plan(da.zeros((n, D), chunks=(100_000, D), dtype="f4"))
        for n in (10**7, 10**8)
    )
    assert many.passes == 2
    assert many.peak_bytes == few.peak_bytes
    monkeypatch.setattr(kept_rows, "MOST_SUMS", N - 1)
    rows = np.abs(X)  # whose sums all differ
    with pytest.raises(ValueError, match=r"more than 89 sums of rows differ, but counts.*NormalizeTotal\(1e4\)"):
        bp.PCA(2, preprocess=MEDIAN_FIRST).fit(rows)
    bp.PCA(2, preprocess=MEDIAN_FIRST).fit(rows[1:])


@pytest.mark.parametrize("first", [MEDIAN_FIRST, bp.preprocessing.Standardize(), bp.preprocessing.PearsonResiduals()])
def test_what_no_read_finds_is_rejected_before_a_read_and_by_the_plan(first: Any) -> None:
    rows = unreadable(*COUNTS.shape)
    for model, beside in (
        (bp.PCA(2), {"covariates": Y[:, None]}),
        (bp.CCA(2), {"y": COUNTS[:, :3]}),
        (bp.PLSRegression(2), {"y": COUNTS[:, :3], "covariates": Y[:, None]}),
        (bp.Ridge(), {"y": COUNTS[:, :2]}),
    ):
        model.set_params(preprocess=first)
        for call in (
            model.plan,
            model.fit,
            *([] if "covariates" in beside else [model.partial_fit]),
        ):
            with pytest.raises(ValueError, match=r"only a fit to X alone finds: .* Give (t|mean and |clip and )"):
                call(rows, **beside)
    with pytest.raises(ValueError, match="only a fit to X alone finds"):
        bp.PCA(2, preprocess=first).partial_fit(rows)


def test_a_median_of_no_rows_or_of_rows_that_come_once_is_an_error() -> None:
    with pytest.raises(ValueError, match="no row has a sum above zero"):
        bp.PCA(2, preprocess=MEDIAN_FIRST).fit(np.zeros((20, D)))
    with pytest.raises(ValueError, match=r"takes up to 2 reads"):
        bp.PCA(2, preprocess=MEDIAN_FIRST).fit(bp.from_batches(iter([COUNTS[:40], COUNTS[40:]]), shape=COUNTS.shape))


def standardised(most: float) -> Any:
    logs = normalised(MEDIAN)
    scale = logs.std(axis=0, ddof=1)
    return np.clip((logs - logs.mean(axis=0)) / scale, -most, most)


@pytest.mark.parametrize("form", FORMS)
def test_standardised_and_clipped_rows_stay_sparse_and_belong_to_the_model(form: str, tmp_path: Path) -> None:
    rows, most = FORMS[form](tmp_path), 1.5
    expected = standardised(most)
    assert (np.abs(expected) == most).mean() > 0.05
    model = bp.PCA(3, preprocess=[*MEDIAN_FIRST, bp.preprocessing.Standardize(most)])
    assert model.plan(rows).passes == 3
    assert sum("one more read" in note for note in model.plan(rows).notes) == 2
    scores = np.asarray(model.fit(rows).transform(rows))
    plain = bp.PCA(3).fit(expected)
    np.testing.assert_allclose(np.abs(scores), np.abs(plain.transform(expected)), rtol=0, atol=5e-5)
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-5)
    model.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(np.asarray(bp.load(tmp_path / "m.zarr").transform(rows)), scores)
    assert bp.load(tmp_path / "m.zarr").preprocess_ == model.preprocess_
    weighted = model.fit(rows, sample_weight=np.full(N, 2.0)).preprocess_[2]
    twice = bp.PCA(3, preprocess=[*MEDIAN_FIRST, bp.preprocessing.Standardize(most)]).fit(np.repeat(COUNTS, 2, axis=0))
    np.testing.assert_allclose(weighted.scale, twice.preprocess_[2].scale, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "offset"), [("f4", 1e6), ("f8", 0), ("f8", 1e8)])
@pytest.mark.parametrize("form", [np.asarray, csr_array, lambda X: da.from_array(X, chunks=(20, D))])
def test_scales_are_learned_from_columns_however_far_from_zero(form: Any, offset: float, dtype: str) -> None:
    rows = (X * np.arange(1, D + 1) + offset).astype(dtype)
    rows[::3, 0], rows[:, 1] = 0, offset + 0.1  # many zeros; constant
    wide = rows.astype("f8")
    model = bp.PCA(D, preprocess=bp.preprocessing.Standardize()).fit(form(rows))
    deviations = (wide - wide[0]).std(axis=0, ddof=1)
    np.testing.assert_allclose(model.preprocess_[0].scale, deviations, rtol=1e-13)
    deviations[deviations == 0] = 1
    expected = bp.PCA(D, scale=deviations).fit(wide)
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-8, atol=1e-14)
    scores, others = (np.abs(one.transform(rows)[:, : D - 1]) for one in (model, expected))
    np.testing.assert_allclose(scores, others, atol=1e-6)


def test_sparse_columns_whose_scale_is_lost_to_their_mean_are_rejected() -> None:
    rows = np.full((5000, 2), 1e7) + np.random.default_rng(0).standard_normal((5000, 2))
    rows[:1000, 1] = 0  # so that not all rows store it, but their weight is next to nothing
    weights = np.where(rows[:, 1] == 0, 1e-12, 1.0)
    with pytest.raises(ValueError, match="column 1 of the sparse rows varies little compared with its mean"):
        bp.PCA(1, preprocess=bp.preprocessing.Standardize()).fit(csr_array(rows), sample_weight=weights)


def residuals_of(rows: Any, theta: float = 100.0) -> Any:
    """Pearson residuals by their formula; 0 where nothing is expected."""
    rows = rows.astype("f8")
    mu, most = np.outer(rows.sum(axis=1), rows.sum(axis=0) / rows.sum()), np.sqrt(len(rows))
    found = np.divide(rows - mu, np.sqrt(mu + mu**2 / theta), out=np.zeros(rows.shape), where=mu > 0)
    return np.clip(found, -most, most)


@pytest.mark.parametrize("form", FORMS)
def test_pearson_residuals_take_one_more_read_and_score_new_rows_the_next_day(form: str, tmp_path: Path) -> None:
    rows, expected = FORMS[form](tmp_path), residuals_of(COUNTS)
    model = bp.PCA(3, preprocess=bp.preprocessing.PearsonResiduals())
    assert model.plan(rows).passes == 2
    assert any("one more read finds the shares of the columns" in note for note in model.plan(rows).notes)
    scores, plain = np.asarray(model.fit(rows).transform(rows)), bp.PCA(3).fit(expected)
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(np.abs(scores), np.abs(plain.transform(expected)), rtol=0, atol=2e-5)
    model.save(tmp_path / "m.zarr")
    few = rows if form == "stored CSR" else rows[:9]  # whose own sums are others
    np.testing.assert_allclose(np.asarray(bp.load(tmp_path / "m.zarr").transform(few))[:9], scores[:9], atol=1e-6)
    weighted = model.fit(rows, sample_weight=np.full(N, 2.0)).preprocess_
    assert weighted == model.fit(np.repeat(COUNTS, 2, axis=0)).preprocess_
    with pytest.raises(ValueError, match="all values add up to 0"):
        model.fit(0 * COUNTS)


RESIDUALS = {
    "covariance": lambda f, **of: bp.PCA(3, solver="covariance", preprocess=f, **of),
    "krylov": lambda f, **of: bp.PCA(3, solver="krylov", preprocess=f, tol=1e-9, max_passes=30, **of),
    "dot": lambda f, **of: bp.PCA(3, solver="dot", preprocess=f, **of),
    "scaled": lambda f, **of: bp.PCA(3, solver="krylov", scale=True, preprocess=f, tol=1e-9, max_passes=30, **of),
    "sketched": lambda f, **of: bp.ApproximatePCA(3, preprocess=f),
    "then another map": lambda f, **of: bp.PCA(3, preprocess=[f, bp.preprocessing.Power(1.0)], **of),
    "kernel": lambda f, **of: bp.NystromKernelPCA(3, n_landmarks=20, kernel=bp.kernels.RBF(0.01), preprocess=f, **of),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", RESIDUALS)
def test_residuals_of_sparse_rows_are_those_of_dense_ones(name: str, weighted: bool) -> None:
    counts = np.random.default_rng(0).poisson(np.geomspace(0.01, 3, 60) * np.geomspace(1, 20, 400)[:, None])
    f = bp.preprocessing.PearsonResiduals(30)
    weights = {"sample_weight": np.random.default_rng(1).random(400)} if weighted and name != "kernel" else {}
    sparse, dense = (
        RESIDUALS[name](f, random_state=0).fit(form(counts.astype("f8")), **weights) for form in (csr_array, np.asarray)
    )
    assert np.sqrt(400) ** 2 > 30  # so that no residual of zero is clipped
    rtol = 1e-8 if name not in ("kernel", "sketched") else 1e-6
    np.testing.assert_allclose(
        np.abs(sparse.transform(csr_array(counts[::7]))),
        np.abs(dense.transform(counts[::7])), rtol=rtol, atol=100 * rtol,
    )  # fmt: skip
    if name != "kernel":
        np.testing.assert_allclose(sparse.explained_variance_, dense.explained_variance_, rtol=rtol)


FITS: dict[str, Any] = {
    "krylov": lambda maps: bp.PCA(2, solver="krylov", preprocess=maps).fit(COUNTS),
    "dot": lambda maps: bp.PCA(2, solver="dot", preprocess=maps).fit(COUNTS),
    "groups": lambda maps: bp.PCA(2, preprocess=maps).fit(COUNTS, groups=Y),
    "sketch": lambda maps: bp.ApproximatePCA(2, bp.sketches.Gaussian(4), preprocess=maps).fit(COUNTS),
    "factors": lambda maps: bp.FactorAnalysis(2, preprocess=maps).fit(COUNTS),
    "kernel": lambda maps: bp.KernelPCA(2, kernel="rbf", gamma=0.3, preprocess=maps).fit(COUNTS),
    "landmarks": lambda maps: bp.NystromKernelPCA(2, kernel="rbf", gamma=0.3, n_landmarks=9, preprocess=maps).fit(
        COUNTS
    ),
    "classes": lambda maps: bp.FisherDiscriminantAnalysis(1, preprocess=maps).fit(COUNTS, Y),
    "steps": lambda maps: bp.TICA(2, preprocess=maps).fit(COUNTS),
}


@pytest.mark.parametrize("name", FITS)
def test_every_fit_finds_the_median_in_one_more_read(name: str) -> None:
    given = FITS[name]([bp.preprocessing.NormalizeTotal(MEDIAN), bp.preprocessing.Log1p()])
    found = FITS[name](MEDIAN_FIRST)
    assert found.preprocess_ == given.preprocess_
    assert found.provenance_.reads == given.provenance_.reads + 1
    np.testing.assert_array_equal(found.transform(COUNTS), given.transform(COUNTS))
