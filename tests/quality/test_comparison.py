"""Loadings, correlations and extremes of one model; the Fréchet distance of two."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from numpy.typing import NDArray
from scipy.linalg import sqrtm

import bigpca as bp
from bigpca.quality import (
    extremes,
    frechet_distance,
    principal_angles,
    reconstruction_error,
    similarity,
)

Array = NDArray[Any]
N, D, K = 300, 8, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D)) + 5
X[:, 6] = 7.0  # constant
PLAIN = bp.PCA(K).fit(X)
LABELS = np.arange(N) % 3


@pytest.mark.parametrize(
    "model",
    [
        bp.PCA(K),
        bp.PCA(K, scale=True),
        bp.PCA(K, whiten=True),
        bp.PCA(K, scale=np.arange(1.0, D + 1)),
        bp.ApproximatePCA(K, bp.sketches.Gaussian(D)),
        bp.ApproximatePCA(K, bp.sketches.Gaussian(D), scale=True),
    ],
    ids=["plain", "scaled", "whitened", "given scale", "sketched", "sketched and scaled"],
)
def test_feature_correlations_are_those_of_features_and_scores(model: Any) -> None:
    model.fit(X[:200]).partial_fit(X[200:])
    rows = X if model.scale_ is None else X / model.scale_
    scores = (X - model.mean_) / (1 if model.scale_ is None else model.scale_) @ model.components_.T
    varying = np.arange(D) != 6
    expected = np.corrcoef(rows[:, varying].T, scores.T)[: D - 1, D - 1 :]
    np.testing.assert_allclose(model.feature_correlations()[varying], expected, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(model.feature_correlations()[6], 0)
    unit = scores / np.sqrt(model.explained_variance_)
    np.testing.assert_allclose(model.loadings_, (rows - rows.mean(0)).T @ unit / (N - 1), rtol=0, atol=1e-7)


def test_top_features_have_the_largest_weights_and_their_names() -> None:
    import pandas as pd

    named = bp.PCA(K).fit(pd.DataFrame(X, columns=[f"column {j}" for j in range(D)]))
    found = named.top_features(1, n=3)
    order = np.argsort(-np.abs(PLAIN.components_[1]))[:3]
    np.testing.assert_array_equal(found.features, order)
    np.testing.assert_array_equal(found.weights, named.components_[1, order])
    assert found.names.tolist() == [f"column {j}" for j in order]
    assert PLAIN.top_features(0, n=99).names is None
    assert len(PLAIN.top_features(0, n=99).features) == D


@pytest.mark.parametrize("given", ["rows", "scores", "kernel", "many"])
def test_extremes_are_the_rows_at_both_ends_with_their_keys(given: str, tmp_path: Path) -> None:
    model: Any = bp.KernelPCA(K, kernel="rbf", gamma=0.01).fit(X) if given == "kernel" else PLAIN
    rows = np.tile(X, (40, 1)) if given == "many" else X  # ties: the first rows are named
    scores = model.transform(rows)
    keys = [f"{i}.jpg" for i in range(len(rows))]
    stored = bp.ingest(scores if given == "scores" else rows, tmp_path / "x.zarr", keys=keys)
    for X_ in (stored, da.from_array(scores if given == "scores" else rows, (97, -1))):
        ends = extremes(model, X_, n=4)
        for found, values, named, sign in (
            (ends.lowest, ends.lowest_scores, ends.lowest_keys, 1),
            (ends.highest, ends.highest_scores, ends.highest_keys, -1),
        ):
            np.testing.assert_allclose(values, sign * np.sort(sign * scores.T, axis=1)[:, :4], rtol=1e-9)
            np.testing.assert_allclose(np.take_along_axis(scores.T, found, axis=1), values, rtol=1e-9)
            if X_ is stored:
                assert named.tolist() == [[keys[i] for i in of_one] for of_one in found]
            else:
                assert named is None
    assert repr(ends).split()[:4] == ["component", "lowest", "highest", model.get_feature_names_out()[0]]
    alone = extremes(None, scores, n=4)
    np.testing.assert_array_equal(alone.lowest_scores, np.sort(scores.T, axis=1)[:, :4])


def test_extremes_leave_out_rows_without_scores() -> None:
    holed = X.copy()
    holed[[0, 4], 1] = np.nan
    lenient = bp.PCA(K, nan_policy="omit").fit(X)
    assert not np.isin([0, 4], extremes(lenient, holed, n=N).lowest).any()
    assert extremes(lenient, holed, n=N).lowest.shape == (K, N - 2)
    assert not np.isin([0, 4], extremes(PLAIN, lenient.transform(holed), n=N).lowest).any()
    with pytest.raises(bp.errors.NonFiniteError):
        extremes(PLAIN, holed)


@pytest.mark.parametrize("rank", [D, 3], ids=["full rank", "singular"])
def test_the_frechet_distance_is_that_of_two_gaussians(rank: int) -> None:
    rng = np.random.default_rng(7)
    one = rng.standard_normal((60, rank)) @ rng.standard_normal((rank, D))
    two = rng.standard_normal((90, D)) @ rng.standard_normal((D, D)) + 1
    b = bp.PCA(2).fit(two[:50]).partial_fit(two[50:])
    a = bp.PCA(1, scale=np.arange(1.0, D + 1)).fit(one) if rank == D else bp.PCA(1, scale=True).fit(one)
    C, E = np.cov(one.T), np.cov(two.T)
    root = np.linalg.eigh(C)
    half = (root[1] * np.sqrt(np.maximum(root[0], 0))) @ root[1].T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(half @ E @ half), 0)).sum()
    expected = ((one.mean(0) - two.mean(0)) ** 2).sum() + np.trace(C + E) - 2 * cross
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(b, a) == pytest.approx(frechet_distance(a, b), rel=1e-12)
    assert frechet_distance(a, a) <= 1e-12 * np.trace(C)
    if rank == D:
        usual = np.trace(C + E - 2 * sqrtm(C @ E).real) + ((one.mean(0) - two.mean(0)) ** 2).sum()
        assert frechet_distance(a, b) == pytest.approx(usual, rel=1e-8)


DOT = bp.PCA(2, solver="dot").fit(X)
KERNEL = bp.KernelPCA(K, kernel="linear").fit(X)
WORDS = np.array(["a", "ab", "b", "ba"])
OF_WORDS = bp.KernelPCA(2, kernel=bp.kernels.Spectrum(1)).fit(WORDS)
GRAM = bp.KernelPCA(2, kernel="precomputed").fit(X @ X.T)
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no such component": (lambda: PLAIN.top_features(3), r"components = \[3\], but there are 3. Give numbers"),
    "no features": (lambda: PLAIN.top_features(0, n=0), "n = 0 is below 1, but an integer"),
    "a part of a feature": (lambda: PLAIN.top_features(0, n=1.5), "n = 1.5 is a float, but an integer"),
    "another name": (lambda: PLAIN.top_features("kpca0"), r"components = \['kpca0'\], but there are 3. Give numbers"),
    "no column variances": (
        lambda: bp.PCA(2, solver="krylov").fit(X).feature_correlations(),
        "feature_correlations needs the moments of all rows",
    ),
    "not about the mean": (
        lambda: bp.PCA(2, center=False).fit(X).feature_correlations(), "a correlation is known for rows about their"
    ),
    "no ends": (lambda: extremes(PLAIN, X, n=0), "n = 0 is below 1, but an integer of at least 1"),
    "the model after the rows": (lambda: extremes(X, PLAIN), r"model is an ndarray; .*: extremes\(model, X\)"),
    "no state": (lambda: frechet_distance(PLAIN, DOT), "frechet_distance needs the moments of all rows"),
    "a sketch": (
        lambda: frechet_distance(bp.ApproximatePCA(2, bp.sketches.Gaussian(4)).fit(X), PLAIN),
        "an ApproximatePCA was given; two fitted PCAs were expected",
    ),
    "axes of a kernel": (lambda: similarity(KERNEL, PLAIN), "a KernelPCA has no components_: it has no axes in"),
    "angles of a kernel": (lambda: principal_angles(PLAIN, KERNEL), "a KernelPCA has no components_"),
    "a kernel's subspace": (lambda: reconstruction_error(KERNEL, X), "a KernelPCA has no components_"),
    "other widths": (lambda: frechet_distance(PLAIN, bp.PCA(2).fit(X[:, :5])), "models of 8 and 5 features"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES.values(), ids=MISTAKES)
def test_what_has_no_answer_is_rejected_in_words(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


WHOLE = bp.PCA().fit(X)  # of as many components as features
OF_SCORES: dict[str, Callable[[Any, Any], Any]] = {
    "extremes": lambda model, given: extremes(model, **given).lowest_scores,
    "scores": lambda model, given: drawn(bp.plots.scores(model, **given)),
}


def drawn(ax: Any) -> Any:
    return np.asarray(ax.collections[0].get_offsets())


@pytest.mark.parametrize("name", OF_SCORES)
def test_rows_and_scores_of_equal_width_are_told_apart_or_asked_for(name: str, tmp_path: Path) -> None:
    call, scores = OF_SCORES[name], WHOLE.transform(X)
    expected = call(WHOLE, {"rows": X})
    frame = pd.DataFrame(scores, columns=WHOLE.get_feature_names_out())
    stored, lazy = WHOLE.transform(X, out=tmp_path / "s.zarr"), WHOLE.transform(da.from_array(X, (50, -1)))
    WHOLE.save(tmp_path / "m.zarr")
    for given in ({"scores": scores}, *({"X": one} for one in (stored, str(tmp_path / "s.zarr"), lazy))):
        np.testing.assert_allclose(call(WHOLE, given), expected, atol=1e-12)
    for same in (bp.load(tmp_path / "m.zarr"), bp.PCA().fit(X)):
        np.testing.assert_allclose(call(same, {"X": lazy}), expected, atol=1e-12)
    WHOLE.inverse_transform(lazy, out=tmp_path / "rows.zarr")
    np.testing.assert_allclose(call(WHOLE, {"X": tmp_path / "rows.zarr"}), expected, atol=1e-12)
    for given in (scores, frame):
        with pytest.raises(ValueError, match=f"X has {D} columns, .* {D} features .* {D} components.*rows=X or scores"):
            call(WHOLE, {"X": given})
    for moved in (lazy[:, ::-1], lazy[:, [1, 0, *range(2, D)]]):
        with pytest.raises(ValueError, match="rows=X or scores=X"):
            call(WHOLE, {"X": moved})
    labels = {"dims": ("t", "component"), "coords": {"component": frame.columns}}
    for named in (frame.iloc[:, ::-1], xr.DataArray(scores, **labels)[:, ::-1]):
        for given in ({"X": named}, {"scores": named}):
            with pytest.raises(ValueError, match=r"columns of X are pca\d, .*components in their order, pca0, pca1"):
                call(WHOLE, given)
    with pytest.raises(ValueError, match=r"made by another model \(scores of X by PCA\(\)\).*rows=X or scores=X"):
        call(bp.PCA().fit(X[1:]), {"X": lazy})
    with pytest.raises(TypeError, match="several of X, rows and scores"):
        call(WHOLE, {"rows": X, "scores": scores})
    plt.close("all")


def test_joined_scores_of_one_model_are_scores_of_that_model(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.zarr" for i in range(2)]
    for path, rows in zip(paths, (X[:40], X[40:]), strict=True):
        WHOLE.transform(rows, out=path)
    expected = extremes(WHOLE, rows=X).lowest_scores
    for given in (bp.open(paths), da.concatenate([bp.open(path) for path in paths])):
        np.testing.assert_allclose(extremes(WHOLE, given).lowest_scores, expected, atol=1e-12)
    with pytest.raises(ValueError, match="rows=X or scores=X"):
        extremes(WHOLE, da.concatenate([bp.open(paths[0]), bp.open(X[:40])]))


def test_scores_whose_columns_change_places_are_rejected_where_the_graph_tells(tmp_path: Path) -> None:
    model = bp.PCA(K).fit(X)
    lazy, _ = model.transform(da.from_array(X, (50, -1))), model.transform(X, out=tmp_path / "s.zarr")
    chosen = partial(bp.open, tmp_path / "s.zarr")
    for call in (model.inverse_transform, lambda scores: extremes(model, scores)):
        for moved in (lazy[:, ::-1], lazy[:, [1, 0, 2]], lazy[5:, [0, 0, 2]], chosen(columns=[2, 1, 0])):
            with pytest.raises(ValueError, match="X has 3 columns of an output of a model in another order, or"):
                call(moved)
        call(lazy[::-1])
        call(lazy.rechunk((20, 1)))
        call(chosen(columns=slice(None)))


def test_scores_of_another_model_are_rejected_with_both_names_unless_they_are_plain_numbers(tmp_path: Path) -> None:
    updated = bp.PCA(K).fit(X)
    lazy, _ = updated.transform(da.from_array(X, (50, -1))), updated.transform(X, out=tmp_path / "s.zarr")
    other = r"another model: scores of X by PCA\(n_components=3\), .*This model, PCA with 3 .*pass np.asarray"
    calls: list[Callable[[Any], Any]] = [
        updated.inverse_transform,
        updated.to_frame,
        lambda scores: extremes(updated, scores),
        lambda scores: bp.plots.scores(updated, scores),
        lambda scores: updated.report(tmp_path / "r.html", scores=scores, overwrite=True),
    ]
    for call in calls:
        call(lazy)
    updated.partial_fit(X[:20] + 1)
    stored = zarr.open_array(tmp_path / "s.zarr")
    opened = [bp.open(tmp_path / "s.zarr", columns=columns) for columns in (None, [0, 1, 2])]
    for call in calls:
        for scores in (
            lazy,
            lazy[5:],
            tmp_path / "s.zarr",
            [tmp_path / "s.zarr"],
            stored,
            da.from_zarr(stored),
            *opened,
        ):
            with pytest.raises(ValueError, match=other):
                call(scores)
        with pytest.raises(ValueError, match=r"another model: scores of X by PCA.* and scores of X by PCA"):
            call(da.concatenate([updated.transform(da.from_array(X[:9])), lazy[9:]]))
        call(np.asarray(lazy))
    assert extremes(bp.PCA(1).fit(lazy), lazy, n=1).lowest.shape == (1, 1)  # which are the rows of this model
    plt.close("all")


def test_where_an_array_is_multiplied_and_what_happens_to_missing_values_do_not_change_whose_scores_they_are() -> None:
    plain, rows = bp.PCA(K).fit(X), da.from_array(X, (50, -1))
    lenient = bp.PCA(K, nan_policy="omit").fit(X)
    extremes(plain, lenient.transform(rows))
    pytest.importorskip("torch")
    with bp.config(arithmetic="torch:cpu"):
        extremes(plain, lenient.transform(rows))


@pytest.mark.parametrize("name", ["s.zarr", "s.parquet"])
def test_stored_statistics_are_not_scores(name: str, tmp_path: Path) -> None:
    """Where there are as many of them as components, their shapes are equal."""
    stored = tmp_path / name
    PLAIN.statistics(X, ["t2", "spe", "mahalanobis"], out=stored)
    calls: list[Callable[[], Any]] = [
        lambda: extremes(PLAIN, stored),
        lambda: bp.plots.scores(PLAIN, stored),
        lambda: PLAIN.report(tmp_path / "r.html", scores=stored),
        lambda: PLAIN.inverse_transform(bp.open(stored)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"columns of X are statistics.*, not scores of the 3 components"):
            call()
