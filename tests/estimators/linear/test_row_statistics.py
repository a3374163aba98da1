"""Statistics of rows, their limits, contributions and outliers, against plain NumPy and process-improve."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.covariance import EmpiricalCovariance

import bigpca as bp
from bigpca import csr
from bigpca.estimators.linear.monitoring import chi_square_limit
from tests.builders import power_law

Array = NDArray[Any]
N, D, K = 400, 12, 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D)) + 5
NEW = X[:50] * 1.1
FITS: dict[str, Callable[[], Any]] = {
    "plain": lambda: bp.PCA(K),
    "scaled": lambda: bp.PCA(K, scale=True),
    "whitened": lambda: bp.PCA(K, whiten=True),
    "about zero": lambda: bp.PCA(K, center=False),
    "dot": lambda: bp.PCA(K, solver="dot"),
    "sketched": lambda: bp.ApproximatePCA(K, bp.sketches.Gaussian(10)),
    "given centre and scale": lambda: bp.PCA(K, center=np.full(D, 4.0), scale=np.arange(1.0, D + 1)),
    "all axes": lambda: bp.PCA(D),
}
FITTED = {name: make().fit(X) for name, make in FITS.items()}


def parts(model: Any, rows: Array) -> tuple[Array, Array, Array]:
    """Scaled rows, scores and residuals."""
    scaled = rows - model.mean_
    if model.scale_ is not None:
        scaled = scaled / model.scale_
    scores = scaled @ model.components_.T
    return scaled, scores, scaled - scores @ model.components_


def truth(model: Any, rows: Array) -> Array:
    scaled, scores, rest = parts(model, rows)
    t2 = (scores**2 / model.explained_variance_).sum(axis=1)
    spe = (rest**2).sum(axis=1) * (model.n_components_ < D)
    return np.column_stack([t2, spe, np.einsum("ij,jk,ik->i", scaled, model.get_precision(), scaled)])


@pytest.mark.parametrize("name", FITS)
def test_statistics_and_contributions_are_their_formulas(name: str) -> None:
    model = FITTED[name]
    expected = truth(model, NEW)
    found = model.statistics(NEW, ["t2", "spe", "mahalanobis"])
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    for column, statistic in enumerate((model.hotelling_t2, model.spe, model.mahalanobis)):
        np.testing.assert_allclose(statistic(NEW), expected[:, column], rtol=1e-10)
    scaled, scores, rest = parts(model, NEW)
    np.testing.assert_allclose(model.contributions(NEW, "spe"), rest, rtol=0, atol=1e-12 * np.abs(scaled).max())
    within = scaled * ((scores / model.explained_variance_) @ model.components_)
    np.testing.assert_allclose(model.contributions(NEW, "t2"), within, rtol=0, atol=1e-10)
    np.testing.assert_allclose(within.sum(axis=1), expected[:, 0], rtol=1e-10)


def test_rows_are_judged_as_they_are_preprocessed(tmp_path: Path) -> None:
    unit, given = X / np.linalg.norm(X, axis=1, keepdims=True), bp.PCA(K, preprocess=bp.preprocessing.L2()).fit(X)
    plain = bp.PCA(K).fit(unit)
    np.testing.assert_allclose(given.statistics(X), plain.statistics(unit), rtol=1e-7)
    np.testing.assert_allclose(given.contributions(X), plain.contributions(unit), rtol=0, atol=1e-9)
    found = given.top_outliers(bp.ingest(X, tmp_path / "x.zarr", keys=[f"{i}.jpg" for i in range(N)]), 5)
    np.testing.assert_array_equal(found.rows, plain.top_outliers(unit, 5).rows)
    assert found.keys.tolist() == [f"{i}.jpg" for i in found.rows]
    assert given.spe_limit(limit="box") == pytest.approx(plain.spe_limit(limit="box"), rel=1e-7)


def test_the_distance_under_all_axes_is_that_of_the_empirical_covariance() -> None:
    expected = EmpiricalCovariance().fit(X).mahalanobis(NEW) * (N - 1) / N
    np.testing.assert_allclose(FITTED["all axes"].mahalanobis(NEW), expected, rtol=1e-10)


@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("scale", [False, True])
def test_float32_rows_far_from_zero_keep_their_digits(mean: float, scale: bool) -> None:
    # Columns whose spread float32 holds at that mean: others would be rounding alone, along which nothing varies.
    rows = (np.random.default_rng(1).standard_normal((600, 30)) * 0.5 ** np.arange(30) + mean).astype("f4")[:, :8]
    model = bp.PCA(3, scale=scale).fit(rows)
    _, scores, rest = parts(model, rows.astype("f8"))
    for found, expected in (
        (model.spe(rows), (rest**2).sum(axis=1)),
        (model.hotelling_t2(rows), (scores**2 / model.explained_variance_).sum(axis=1)),
    ):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert model.contributions(rows).dtype == np.float32


def test_lazy_rows_give_lazy_statistics_and_files_hold_them_under_their_names(tmp_path: Path) -> None:
    model, lazy = FITTED["plain"], da.from_array(X, (70, D))
    found = model.statistics(lazy)
    assert isinstance(found, da.Array)
    assert (found.shape, found.dtype, found.chunks[0]) == ((N, 2), np.float64, lazy.chunks[0])
    np.testing.assert_allclose(found, model.statistics(X), rtol=1e-12)
    keys = [f"row {i}" for i in range(N)]
    model.statistics(lazy, ["spe", "t2"], out=tmp_path / "s.parquet", keys=keys)
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "s.parquet")
    assert table.column_names == ["key", "spe", "t2"]
    np.testing.assert_array_equal(table["t2"], found[:, 0].compute())
    assert bp.data.provenance_of(tmp_path / "s.parquet").call.startswith("statistics of X by PCA")
    written = model.spe(lazy, out=tmp_path / "spe.zarr")
    assert written.shape == (N, 1)
    assert model.contributions(lazy, out=tmp_path / "c.zarr").shape == (N, D)
    with pytest.raises(bp.errors.OutputExistsError):
        model.spe(lazy, out=tmp_path / "spe.zarr")


def test_axes_of_rounding_do_not_count_in_t2() -> None:
    flat = X @ np.diag([1.0] * 3 + [0.0] * (D - 3))
    model = bp.PCA(D).fit(flat)
    scores = parts(model, flat)[1][:, :3]
    np.testing.assert_allclose(model.hotelling_t2(flat), (scores**2 / model.explained_variance_[:3]).sum(1), rtol=1e-10)
    assert model.t2_limit(limit="theory") == bp.PCA(3).fit(flat).t2_limit(limit="theory")


def test_a_missing_value_of_sparse_rows_is_named_within_the_strip_that_is_made_dense(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holed = NEW.copy()
    holed[[3, 9], [0, 5]] = np.nan
    monkeypatch.setattr(csr, "STRIP_BYTES", 2 * D * 8)
    for judge in (FITTED["plain"].spe, FITTED["plain"].contributions):
        with pytest.raises(bp.errors.NonFiniteError, match=r"1 NaN .* in 1 row of rows 2:4 .* in row 3, column 0"):
            judge(csr_array(holed))


def test_rows_with_missing_values_raise_or_have_no_statistic() -> None:
    holed = NEW.copy()
    holed[[3, 9], [0, 5]] = np.nan, np.inf
    known = np.isfinite(holed).all(axis=1)
    for name in ("plain", "all axes"):
        strict, lenient = FITTED[name], bp.PCA(K if name == "plain" else D, nan_policy="omit").fit(X)
        for statistic in ("statistics", "contributions"):
            with pytest.raises(
                bp.errors.NonFiniteError, match=rf"in 2 rows of .*omit\" gives such rows NaN {statistic}"
            ):
                getattr(strict, statistic)(holed)
            found = getattr(lenient, statistic)(holed)
            assert np.isnan(found[~known]).all()
            np.testing.assert_allclose(found[known], getattr(strict, statistic)(NEW[known]), rtol=1e-9)
        with pytest.raises(bp.errors.NonFiniteError):
            strict.top_outliers(holed, 3)
        expected = np.flatnonzero(known)[np.argsort(-strict.hotelling_t2(NEW[known]))[:3]]
        np.testing.assert_array_equal(lenient.top_outliers(holed, 3, of="t2").rows, expected)
        assert lenient.t2_limit(0.9, holed) == pytest.approx(strict.t2_limit(0.9, NEW[known]), rel=1e-12)


@pytest.mark.parametrize("of", ["t2", "spe", "mahalanobis"])
def test_outliers_are_the_largest_whatever_the_chunks_and_have_their_keys(of: str, tmp_path: Path) -> None:
    model = FITTED["scaled"]
    rows = np.concatenate([X, X[:40]])  # ties: the first is named first
    values = model.statistics(rows, of)[:, 0]
    expected = np.argsort(-values, kind="stable")[:7]
    keys = [f"image {i}" for i in range(len(rows))]
    stored = bp.ingest(rows, tmp_path / "x.zarr", keys=keys)
    for given in (rows, da.from_array(rows, (9, D)), stored):
        found = model.top_outliers(given, 7, of=of)
        np.testing.assert_allclose(found.values, values[expected], rtol=1e-12)
        np.testing.assert_array_equal(found.rows, expected)
        assert found.keys is None if given is not stored else found.keys.tolist() == [keys[i] for i in expected]
    assert len(model.top_outliers(rows[:3], 10, of=of).rows) == 3


# Limits


def coverage(values: Array, limit: float) -> float:
    return float((values <= limit).mean())


def test_the_limits_of_theory_hold_95_percent_of_gaussian_rows() -> None:
    spread = np.sqrt(power_law(10))
    rng = np.random.default_rng(4)
    model = bp.PCA(3).fit(rng.standard_normal((20_000, 10)) * spread)
    rows = rng.standard_normal((40_000, 10)) * spread
    t2, spe = model.statistics(rows).T
    limits = {"t2": model.t2_limit(limit="theory")}
    limits |= {"box": model.spe_limit(limit="box"), "new": model.t2_limit(X=rows[:20_000])}
    limits |= {"empirical": model.spe_limit(X=da.from_array(rows[:20_000], (3000, 10)))}
    held = {name: coverage(t2 if name in ("t2", "new") else spe, limit) for name, limit in limits.items()}
    assert {name: share for name, share in held.items() if not 0.945 <= share <= 0.955} == {}


def test_at_40_rows_the_limit_of_new_rows_is_not_that_of_the_rows_of_the_fit() -> None:
    rng, new, own = np.random.default_rng(5), [], []
    for _ in range(150):
        rows = rng.standard_normal((140, 5)) @ np.diag([5.0, 3, 2, 1, 1])
        model = bp.PCA(5).fit(rows[:40])
        limits = {kind: model.t2_limit(0.95, samples=kind, limit="theory") for kind in ("new", "training")}
        own.append(model.hotelling_t2(rows[:40]))
        new.append(model.hotelling_t2(rows[40:]))
    assert limits["new"] > 1.3 * limits["training"]
    assert 0.945 <= coverage(np.concatenate(new), limits["new"]) <= 0.955
    assert 0.945 <= coverage(np.concatenate(own), limits["training"]) <= 0.955
    assert coverage(np.concatenate(new), limits["training"]) < 0.9


@pytest.mark.parametrize("power", [0.5, 0.7, 1.0])
def test_the_limit_of_theory_holds_its_share_on_heavy_tails(power: float) -> None:
    tail = np.arange(1, 400) ** -power
    spe = np.random.default_rng(6).standard_normal((20_000, len(tail))) ** 2 @ tail
    assert 0.935 <= coverage(spe, chi_square_limit(0.95, tail.sum(), 2 * (tail**2).sum())) <= 0.96


def test_limits_from_the_spectrum_include_rows_added_since_the_fit() -> None:
    grown = bp.PCA(K).fit(X[:300]).partial_fit(X[300:])
    assert grown.spe_limit(limit="box") == pytest.approx(FITTED["plain"].spe_limit(limit="box"), rel=1e-9)
    assert FITTED["all axes"].spe_limit(limit="box") == FITTED["all axes"].spe_limit(0.99, X) == 0


def test_numbers_equal_those_of_process_improve() -> None:
    theirs: Any = pytest.importorskip("process_improve.multivariate", reason="process-improve is not installed")
    rows = X - X.mean(axis=0)
    model, other = bp.PCA(K).fit(rows), theirs.PCA(n_components=K).fit(pd.DataFrame(rows))
    for found, expected in (
        (model.hotelling_t2(rows), other.hotellings_t2_.iloc[:, -1]),
        (model.spe(rows), other.spe_.iloc[:, -1] ** 2),
        (model.contributions(rows, "t2"), other.t2_contributions(rows)),
        (model.contributions(rows, "spe"), other.spe_contributions(rows)),
        (model.t2_limit(0.95, limit="theory"), other.hotellings_t2_limit(0.95)),
    ):
        np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-10, atol=1e-10)


FEW = bp.PCA(3).fit(X[:4])
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "an unknown statistic": (lambda: FITTED["plain"].statistics(X, "spee"), "is not a statistic; .*Did you mean spe"),
    "no statistic": (lambda: FITTED["plain"].statistics(X, []), "one or more different names"),
    "one twice": (lambda: FITTED["plain"].statistics(X, ["t2", "t2"]), "one or more different names"),
    "another contribution": (lambda: FITTED["plain"].contributions(X, "q"), "of = 'q' is unknown. Use 't2' or 'spe'"),
    "an order by nothing": (lambda: FITTED["plain"].top_outliers(X, of="q"), "of = 'q' is unknown. Use one of"),
    "no outliers": (lambda: FITTED["plain"].top_outliers(X, 0), "n = 0 is below 1"),
    "one and a half": (lambda: FITTED["plain"].top_outliers(X, 1.5), "n = 1.5 is a float, but an integer"),
    "keys without a path": (lambda: FITTED["plain"].statistics(X, keys=["a"]), "which requires out"),
    "no density": (lambda: FEW.mahalanobis(X), "the model has no density: 3 components of 12 features"),
    "a percentage": (lambda: FITTED["plain"].t2_limit(95, X), r"confidence = 95 is outside \(0, 1\); a share"),
    "no rows for a quantile": (lambda: FITTED["plain"].spe_limit(), "X is missing: an empirical limit"),
    "too few rows": (
        lambda: FITTED["plain"].t2_limit(0.999, X), "cannot determine the 0.999 quantile, which takes at least 1000"
    ),
    "a share as text": (lambda: FITTED["plain"].t2_limit("0.95"), "confidence = '0.95' is a str; a number in"),
    "None in place of statistics": (lambda: FITTED["plain"].statistics(NEW, None), "None is not a statistic"),
    "an unknown limit": (lambda: FITTED["plain"].t2_limit(limit="F"), "limit = 'F' is unknown. Use 'empirical' or"),
    "other rows": (
        lambda: FITTED["plain"].t2_limit(samples="old", limit="theory"), "samples = 'old' is unknown. Use 'new' or"
    ),
    "too few fitted": (
        lambda: FEW.t2_limit(samples="training", limit="theory"),
        "4 rows were fitted, but .* of 3 axes requires at least 5",
    ),
    "not about the mean": (
        lambda: FITTED["about zero"].spe_limit(limit="box"), "known for rows about their mean, .* center=False"
    ),
    "no state": (
        lambda: FITTED["dot"].spe_limit(limit="box"), r'spe_limit\(limit="box"\) needs the moments .* solver="dot"'
    ),
    "a sketch's state": (
        lambda: FITTED["sketched"].spe_limit(limit="box"),
        r'spe_limit\(limit="box"\) needs all eigenvalues .* a sketch does not',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_judged_is_rejected_in_words(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_oblique_axes_have_no_statistics() -> None:
    model = bp.ApproximatePCA(2, bp.sketches.Gaussian(6), approximation="tutorial")
    assert not any(hasattr(model, name) for name in ("spe", "statistics", "t2_limit", "top_outliers"))
