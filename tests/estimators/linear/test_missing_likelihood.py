"""Probabilistic PCA and factors of rows with missing values are the likeliest, found in few reads, and known to be."""

from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import multivariate_normal

import bigpca as bp
from bigpca import FactorAnalysis as Factors
from bigpca.engine import layout
from bigpca.engine.events import CheckpointEvent, Event, PassEvent
from bigpca.errors import ApproximationWarning, NonFiniteError
from bigpca.estimators.linear.em_fit import extrapolated
from bigpca.passes.accumulators.observed_columns import LatentModel
from tests.estimators.stores import stored, unreadable

N, D, K = 120, 9, 2
RNG = np.random.default_rng(0)
AXES = np.linalg.qr(RNG.standard_normal((D, D)))[0]
X = RNG.standard_normal((N, D)) * np.r_[4.0, 3.0, np.full(D - 2, 0.7)] @ AXES + 5
HOLES = RNG.random((N, D)) < 0.3
HOLES[7] = True  # no value
HOLED = np.where(HOLES, np.nan, X)
WEIGHTS = RNG.integers(0, 4, N)
SOLVED = {"nan_policy": "em", "tol": 1e-9, "max_passes": None}


def likeliest(rows: Any, k: int, steps: int = 4000) -> tuple[Any, Any, float]:
    """Return loadings, mean and noise by plain EM: neither expanded nor extrapolated, from means in the gaps."""
    there, d = ~np.isnan(rows), rows.shape[1]
    first = np.nanmean(rows, axis=0)
    x = np.where(there, rows - first, 0.0)
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    noise = float(values[: d - k].mean())
    W, mean = vectors[:, d - k :] * np.sqrt(values[d - k :] - noise), np.zeros(d)
    for _ in range(steps):
        A = np.einsum("nj,ja,jb->nab", there, W, W, optimize=True) + noise * np.eye(k)
        inverse = np.linalg.inv(A)
        b = np.ones((len(x), k + 1))
        b[:, :k] = np.einsum("nab,nb->na", inverse, ((x - mean) * there) @ W)
        second = b[:, :, None] * b[:, None, :]
        second[:, :k, :k] += noise * inverse
        T, Y = np.einsum("nj,nab->jab", there, second, optimize=True), x.T @ b
        both = np.linalg.solve(T, Y[..., None])[..., 0]
        before, W, mean = W, both[:, :k], both[:, k]
        noise = ((x**2).sum() - (Y * both).sum()) / there.sum()
        if np.abs(W - before).max() < 1e-13:
            break
    return W, first + mean, noise


@cache
def solved(weighted: bool = False) -> tuple[Any, Any, Any]:
    """Return mean, covariance and noise of the likeliest model of the holed rows, with the divisor n - 1."""
    rows = np.repeat(HOLED, WEIGHTS, axis=0) if weighted else HOLED
    W, mean, noise = likeliest(rows, K)
    return mean, (W @ W.T + noise * np.eye(D)) * len(rows) / (len(rows) - 1), noise * len(rows) / (len(rows) - 1)


GIVEN: dict[str, Any] = {
    "in memory": lambda folder: HOLED,
    "lazy": lambda folder: da.from_array(HOLED, chunks=(50, 4)),
    "float32": lambda folder: HOLED.astype("f4"),
    "sparse": lambda folder: csr_array(HOLED),
    "batches": lambda folder: bp.from_batches([HOLED[:50], HOLED[50:]], shape=HOLED.shape),
    "a store": lambda folder: stored(folder, HOLED, (10, D)),
    "stores": lambda folder: [str(saved(folder / f"{i}.npy", HOLED[i : i + 40])) for i in (0, 40, 80)],
    "filled lazily": lambda folder: bp.open(np.where(HOLES, -9, X), missing_value=-9),
    "shuffled": lambda folder: HOLED[np.random.default_rng(1).permutation(N)],
}


def saved(path: Path, rows: Any) -> Path:
    np.save(path, rows)
    return path


@pytest.mark.parametrize("given", GIVEN)
def test_the_model_is_that_of_plain_em_run_to_its_end(given: str, tmp_path: Path) -> None:
    mean, C, noise = solved()
    rtol = 1e-5 if given in ("float32", "filled lazily") else 1e-6
    model = bp.PCA(K, **SOLVED)
    rows = GIVEN[given](tmp_path)
    plan = model.plan(rows)
    model.fit(rows)
    np.testing.assert_allclose(model.mean_, mean, rtol=rtol)
    np.testing.assert_allclose(model.get_covariance(), C, rtol=0, atol=rtol * np.abs(C).max())
    assert model.noise_variance_ == pytest.approx(noise, rel=rtol)
    assert model.total_variance_ == pytest.approx(np.trace(C), rel=rtol)
    assert model.converged_
    assert model.solver_ == plan.solver == "em"
    assert plan.most_passes >= model.provenance_.reads > 3


def test_weights_repeat_rows_and_files_keep_the_model(tmp_path: Path) -> None:
    rows = np.where((WEIGHTS == 0)[:, None], np.nan, HOLED)
    mean, C, _ = solved(weighted=True)
    model = bp.PCA(K, **SOLVED).fit(rows, sample_weight=WEIGHTS)
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-6)
    np.testing.assert_allclose(model.get_covariance(), C, rtol=0, atol=1e-6 * np.abs(C).max())
    model.save(tmp_path / "model")
    again = bp.load(tmp_path / "model")
    assert again.converged_
    rows = HOLED[(~HOLES).sum(axis=1) >= K]
    assert again.transform(rows).tobytes() == model.transform(rows).tobytes()
    assert np.isfinite(model.transform(rows)).all()


def test_a_given_scale_and_an_offset_change_units_and_no_digits() -> None:
    scale, far = np.arange(1.0, D + 1), HOLED + 1e6
    model = bp.PCA(K, scale=scale, **SOLVED).fit(far)
    W, mean, noise = likeliest(HOLED / scale, K)
    C = (W @ W.T + noise * np.eye(D)) * N / (N - 1)
    np.testing.assert_allclose(model.mean_, mean * scale + 1e6, rtol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, np.linalg.eigvalsh(C)[: -K - 1 : -1], rtol=1e-6)


def test_complete_rows_have_the_components_and_variances_of_pca() -> None:
    model, plain = bp.PCA(K, **SOLVED).fit(X), bp.PCA(K).fit(X)
    for name in ("mean_", "components_", "explained_variance_", "noise_variance_", "total_variance_"):
        np.testing.assert_allclose(getattr(model, name), getattr(plain, name), rtol=1e-7, atol=1e-7)
    integers = np.round(X).astype("i4")
    assert (
        bp.PCA(K, nan_policy="em").fit(integers).components_.tobytes() == bp.PCA(K).fit(integers).components_.tobytes()
    )


def test_the_largest_variance_is_right_after_few_reads_where_the_noise_is_low() -> None:
    rng = np.random.default_rng(2)
    rows = (
        rng.standard_normal((600, 40))
        * np.r_[4.0, 3.5, 3.0, np.full(37, 0.01)]
        @ np.linalg.qr(rng.standard_normal((40, 40)))[0]
    )
    holed = np.where(rng.random(rows.shape) < 0.5, np.nan, rows)
    whole = bp.PCA(3).fit(rows).explained_variance_
    with pytest.warns(ApproximationWarning, match=r"after 5 reads \(max_passes\): the last step turned the plane"):
        model = bp.PCA(3, nan_policy="em", tol=1e-7, max_passes=5).fit(holed)
    assert not model.converged_
    np.testing.assert_allclose(model.explained_variance_, whole, rtol=0.02)
    W, _, noise = likeliest(holed, 3, steps=100)
    assert np.linalg.norm(W, 2) ** 2 + noise < 0.5 * whole[0]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_it_stops_where_plane_and_variances_are_within_the_tolerance(share: float) -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((500, 50)) * np.arange(1, 51) ** -1.0 @ np.linalg.qr(rng.standard_normal((50, 50)))[0]
    holed = np.where(rng.random(rows.shape) < share, np.nan, rows)
    best = bp.PCA(4, **SOLVED).fit(holed)
    found = bp.PCA(4, nan_policy="em", max_passes=20).fit(holed)
    V = best.components_
    assert np.linalg.norm(found.components_ - found.components_ @ V.T @ V, 2) < 2e-3
    np.testing.assert_allclose(found.explained_variance_, best.explained_variance_, rtol=2e-3)
    assert found.converged_
    assert found.provenance_.reads < best.provenance_.reads


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_constant_columns_have_no_variance_and_take_no_step(value: float) -> None:
    model = bp.PCA(1, nan_policy="em").fit(np.where(HOLES[8:], np.nan, value))
    assert model.explained_variance_.tolist() == [0]
    assert model.converged_
    mixed = bp.PCA(1, nan_policy="em", max_passes=None).fit(np.hstack([HOLED[:, :4], np.full((N, 2), value)]))
    assert np.abs(mixed.components_[0, 4:]).max() < 1e-6


def test_the_noise_of_fewer_rows_than_columns_is_that_of_all_axes() -> None:
    wide = np.random.default_rng(5).standard_normal((25, 60)) * 0.9 ** np.arange(60)
    wide[np.random.default_rng(6).random(wide.shape) < 0.1] = np.nan
    noise = likeliest(wide, K)[2] * 25 / 24
    assert bp.PCA(K, **SOLVED).fit(wide).noise_variance_ == pytest.approx(noise, rel=1e-5)


OBSERVED = RNG.standard_normal((N, K)) @ RNG.standard_normal((K, D)) * 1.5 + RNG.standard_normal((N, D)) + 5
OBSERVED *= np.linspace(0.7, 1.3, D)  # of unequal noise
OBSERVED[HOLES] = np.nan
TIGHT = {"nan_policy": "em", "tol": 1e-15, "max_iter": 2000}


@cache
def factors(weighted: bool = False) -> tuple[Any, Any, Any]:
    """Return mean, loadings and noise by plain EM, from conditional normal distributions."""
    rows = np.repeat(OBSERVED, WEIGHTS, axis=0) if weighted else OBSERVED
    there, mean = ~np.isnan(rows), np.nanmean(rows, axis=0)
    rows, own, unit = np.where(there, rows, 0.0), there[:, :, None] & there[:, None, :], np.eye(K)
    values, vectors = np.linalg.eigh(np.cov((rows - mean * there).T))
    W, noise = vectors[:, -K:] * np.sqrt(values[-K:]), np.nanvar(rows, axis=0)
    for _ in range(10000):
        C = np.where(own, W @ W.T + np.diag(noise), 0.0) + (~there)[:, :, None] * np.eye(D)  # of what a row has
        across = np.linalg.solve(C, there[:, :, None] * W)  # (n, d, k)
        z = np.einsum("ndk,nd->nk", across, there * (rows - mean))
        b = np.column_stack([z, np.ones(len(z))])
        second = b[:, :, None] * b[:, None, :]
        second[:, :K, :K] += unit - np.einsum("ndk,dl->nkl", across, W)
        T, Y = np.einsum("nd,nab->dab", there, second, optimize=True), rows.T @ b
        both = np.linalg.solve(T, Y[..., None])[..., 0]
        before, W, mean = noise, both[:, :K], both[:, K]
        noise = ((rows**2).sum(axis=0) - (Y * both).sum(axis=1)) / there.sum(axis=0)
        if np.abs(noise / before - 1).max() < 1e-11:
            break
    return mean, W @ W.T + np.diag(noise), noise


def check_factors(model: Any, truth: Any, unit: Any = 1.0) -> None:
    mean, C, noise = truth
    np.testing.assert_allclose(model.mean_ / unit, mean, rtol=1e-6)
    np.testing.assert_allclose(
        model.get_covariance() / unit / np.reshape(unit, (-1, 1)), C, rtol=0, atol=1e-6 * C.max()
    )
    np.testing.assert_allclose(model.noise_variance_ / unit**2, noise, rtol=1e-6)
    assert model.converged_
    # An extrapolation is kept where the likelihood is the same to its rounding, too.
    assert (np.diff(model.loglike_) >= -1e-8 * np.abs(model.loglike_[1:])).all()


@pytest.mark.parametrize(
    ("rows", "unit"),
    [
        (OBSERVED, 1.0),
        (da.from_array(OBSERVED, chunks=(50, 4)), 1.0),
        (OBSERVED * 2.0 ** np.linspace(-200, 200, D), 2.0 ** np.linspace(-200, 200, D)),
    ],
    ids=["in memory", "column chunks", "units"],
)
def test_factors_are_those_of_plain_em_run_to_its_end(rows: Any, unit: Any) -> None:
    model = Factors(K, **TIGHT)
    plan = model.plan(rows)
    model.fit(rows)
    check_factors(model, factors(), unit)
    assert model.solver_ == plan.solver == "em"
    assert plan.most_passes >= model.provenance_.reads > 3
    mean, C, _ = factors()
    there = ~HOLES[~HOLES.all(axis=1)]
    normal = (
        multivariate_normal(mean[o], C[np.ix_(o, o)]).logpdf(x[o])
        for x, o in zip(OBSERVED[~HOLES.all(axis=1)], there, strict=True)
    )
    in_units = (there.sum(axis=0) * np.log(unit)).sum()
    assert model.loglike_[-1] + in_units == pytest.approx(sum(normal), rel=1e-9)


def test_weights_repeat_rows_of_factors_and_an_offset_changes_no_digits(tmp_path: Path) -> None:
    model = Factors(K, **TIGHT).fit(OBSERVED, sample_weight=WEIGHTS)
    check_factors(model, factors(weighted=True))
    mean, C, noise = factors()
    far = Factors(K, **TIGHT).fit(OBSERVED + 1e6)
    check_factors(far, (mean + 1e6, C, noise))
    far.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").transform(OBSERVED + 1e6).tobytes() == far.transform(OBSERVED + 1e6).tobytes()


def test_factors_of_complete_rows_are_those_without_the_policy() -> None:
    constant = np.column_stack([X[:, :5], np.full(N, 0.1), X[:, 5:]])
    model, plain = Factors(K, rotation="varimax", **TIGHT).fit(constant), Factors(K, rotation="varimax").fit(constant)
    for name in ("mean_", "components_", "explained_variance_", "noise_variance_", "total_variance_"):
        np.testing.assert_allclose(getattr(model, name), getattr(plain, name), rtol=1e-6, atol=1e-6, err_msg=name)
    assert model.loglike_[-1] == pytest.approx(plain.loglike_[-1], rel=1e-12)
    integers = np.round(X).astype("i4")
    assert (
        Factors(K, nan_policy="em").fit(integers).components_.tobytes()
        == Factors(K).fit(integers).components_.tobytes()
    )


def test_factors_of_a_row_with_gaps_are_expected_given_what_it_has() -> None:
    model = Factors(K, nan_policy="em").fit(OBSERVED)
    W, C, found = model.components_.T, model.get_covariance(), model.transform(OBSERVED)
    for x, z in zip(OBSERVED, found, strict=True):
        o = ~np.isnan(x)
        wanted = W[o].T @ np.linalg.solve(C[np.ix_(o, o)], (x - model.mean_)[o]) if o.any() else np.full(K, np.nan)
        np.testing.assert_allclose(z, wanted, rtol=1e-9, atol=1e-9)
    assert (
        np.abs(model.transform(X) - Factors(K, nan_policy="em").fit(OBSERVED).transform(da.from_array(X))).max() < 1e-12
    )


def test_columns_that_factors_determine_keep_the_least_noise_as_those_of_complete_rows() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((100, 1))
    rows = np.hstack([z @ np.ones((1, 3)), rng.standard_normal((100, 3)) + z])
    plain, model = Factors(1).fit(rows), Factors(1, nan_policy="em").fit(rows)
    np.testing.assert_allclose(model.noise_variance_[:3], 1e-6 * rows.var(axis=0)[:3], rtol=1e-9)
    np.testing.assert_allclose(model.noise_variance_, plain.noise_variance_, rtol=1e-3)
    # Where only one column is determined, its noise falls slowly, and the likelihood hardly changes.
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((30, 1)) @ np.ones((1, 5)) + rng.standard_normal((30, 5))
    plain = Factors(2).fit(rows)
    with pytest.warns(ApproximationWarning, match=r"after 200 reads \(max_iter\)"):
        model = Factors(2, nan_policy="em", max_iter=200).fit(rows)
    least = (model.noise_variance_ / rows.var(axis=0)).min()
    assert (plain.noise_variance_ / rows.var(axis=0)).min() < 1.1e-6 < least < 0.02
    assert model.loglike_[-1] == pytest.approx(plain.loglike_[-1], abs=0.02)
    assert not model.converged_


@pytest.mark.parametrize("kind", [bp.PCA, bp.FactorAnalysis])
@pytest.mark.parametrize("stop", ["moments", "expectation"])
def test_a_fit_that_is_stopped_resumes_to_the_same_bits(
    stop: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(layout, "MIN_GROUPS", 5)
    rows, names = stored(tmp_path, HOLED, (10, D)), list[str]()

    def interrupt(event: Event) -> None:
        if isinstance(event, PassEvent):
            names.append(event.name)
        if isinstance(event, CheckpointEvent) and names[-1] == stop and len(names) > 3 * (stop == "expectation"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kind(K, nan_policy="em").fit(rows, checkpoint=tmp_path / "c", progress=interrupt)
    assert names[-1] == stop
    model = kind(K, nan_policy="em").fit(rows, checkpoint=tmp_path / "c")
    assert model.components_.tobytes() == kind(K, nan_policy="em").fit(rows).components_.tobytes()


def test_an_extrapolation_ends_where_changes_that_fall_by_one_factor_lead() -> None:
    noise, unit = np.where(np.arange(D) == 4, 0, 2.0), np.arange(1.0, D + 1)
    end = LatentModel(RNG.standard_normal((D, K)), RNG.standard_normal(D), noise)
    step = RNG.standard_normal((D, K)) * unit[:, None]
    trail = [LatentModel(end.W + step * 0.9**i, end.mean, noise * np.exp(0.9**i)) for i in range(3)]
    np.testing.assert_allclose(extrapolated(trail, unit).W, end.W, rtol=0, atol=1e-11)
    np.testing.assert_allclose(extrapolated(trail, unit).noise, noise, rtol=1e-11)
    np.testing.assert_allclose(extrapolated([end, end, end], unit).W, end.W, rtol=1e-15)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"solver": "krylov"}, 'solver = krylov cannot be used with nan_policy="em", which needs "auto"'),
        ({"center": False}, "the mean is estimated"),
        ({"center": np.ones(D)}, "the mean is estimated"),
        ({"scale": True}, "which needs False, or a vector of deviations"),
        ({"n_components": None}, "n_components = None cannot be used .* an integer below 9"),
        ({"n_components": D}, "an integer below 9"),
        ({"n_components": 0.9}, "an integer below 9"),
        ({"preprocess": bp.preprocessing.L2()}, "a function of complete rows"),
    ],
)
def test_what_the_model_does_not_have_is_rejected_before_a_read(made: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bp.PCA(**{"n_components": K, "nan_policy": "em", **made}).fit(unreadable(N, D))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bp.PCA(K, nan_policy="em").fit(unreadable(N, D), covariates=X[:, :1]), ValueError, "cannot be used"),
        (lambda: bp.PCA(K, nan_policy="em").fit(np.where(HOLES, np.inf, X)), NonFiniteError, "were expected"),
        (lambda: bp.PCA(K, nan_policy="em").fit(np.where(np.arange(D) == 4, np.nan, X)), ValueError, "no value in any"),
        (lambda: bp.PCA(K, nan_policy="em").fit(bp.from_batches(iter([X]), shape=(N, D))), ValueError, "takes up to"),
        (lambda: bp.merge(*(bp.PCA(K, nan_policy="em").fit(X),) * 2), ValueError, "never computes"),
        (lambda: bp.PCA(K, nan_policy="em").partial_fit(X), AttributeError, "partial_fit"),
        (lambda: Factors(K, nan_policy="em").fit(unreadable(N, D), covariates=X[:, :1]), ValueError, "cannot be used"),
        (lambda: Factors(K, nan_policy="pairwise").fit(unreadable(N, D)), ValueError, "is for PCA, not for Factor"),
        (lambda: Factors(nan_policy="em").fit(unreadable(N, D)), ValueError, "n_components = None cannot be used"),
        (lambda: Factors(1, nan_policy="em").fit(np.where(HOLES[8:], np.nan, 0.1)), ValueError, "9 columns are const"),
        (lambda: bp.merge(*(Factors(K, nan_policy="em").fit(HOLED),) * 2), ValueError, "never computes"),
        (lambda: Factors(K, nan_policy="em").partial_fit(X), AttributeError, "partial_fit"),
        (lambda: Factors(K, nan_policy="em").fit(HOLED).score_samples(HOLED), NonFiniteError, "Finite values were"),
    ],
)  # fmt: skip
def test_what_has_no_answer_is_rejected(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("unit", [2.0**200, 2.0**-200])
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
def test_no_step_depends_on_the_unit_of_the_rows(unit: float) -> None:
    """Neither the extrapolation, in logarithms of the noise, nor what counts as a fall of the likelihood."""
    one, other = (Factors(2, nan_policy="em", max_iter=60).fit(OBSERVED * u) for u in (1.0, unit))
    assert np.array_equal(other.noise_variance_ / unit**2, one.noise_variance_)
    found = [bp.PCA(2, nan_policy="em").fit(OBSERVED * u).explained_variance_ / u**2 for u in (1.0, unit)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
