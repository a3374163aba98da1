"""Probabilistic PCA of rows with missing values is the likeliest one, found in few reads, and known to be so."""

from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array

import bigpca as bp
from bigpca.engine import layout
from bigpca.engine.events import CheckpointEvent, Event, PassEvent
from bigpca.errors import ApproximationWarning, NonFiniteError
from bigpca.estimators.linear.em_fit import extrapolated
from bigpca.passes.accumulators.expected_scores import LatentModel
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


def test_rows_of_low_rank_are_recovered() -> None:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 20)) + 3
    holed = np.where(rng.random(rows.shape) < 0.4, np.nan, rows)
    model = bp.PCA(2, nan_policy="em", max_passes=None).fit(holed)
    back = model.inverse_transform(model.transform(holed))
    np.testing.assert_allclose(back, rows, rtol=0, atol=1e-4)


@pytest.mark.parametrize("stop", ["moments", "expectation"])
def test_a_fit_that_is_stopped_resumes_to_the_same_bits(
    stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        bp.PCA(K, nan_policy="em").fit(rows, checkpoint=tmp_path / "c", progress=interrupt)
    assert names[-1] == stop
    model = bp.PCA(K, nan_policy="em").fit(rows, checkpoint=tmp_path / "c")
    assert model.components_.tobytes() == bp.PCA(K, nan_policy="em").fit(rows).components_.tobytes()


def test_an_extrapolation_ends_where_changes_that_fall_by_one_factor_lead() -> None:
    end = LatentModel(RNG.standard_normal((D, K)), RNG.standard_normal(D), 2.0)
    step = RNG.standard_normal((D, K))
    trail = [LatentModel(end.W + step * 0.9**i, end.mean, 2.0) for i in range(3)]
    np.testing.assert_allclose(extrapolated(trail).W, end.W, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(extrapolated([end, end, end]).W, end.W)


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
    ],
)  # fmt: skip
def test_what_has_no_answer_is_rejected(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
