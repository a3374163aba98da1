"""Scores as codes for vector databases: what they hold, what says so, and what rejects them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

import bigpca as bp
from bigpca.estimators.shared.outputs import codes_of
from bigpca.passes.reading.codes import LAST, Codes
from tests.builders import data_with_spectrum, power_law
from tests.cli.running import run_json
from tests.passes.kit import interrupt_after

N, D, K = 600, 24, 11
X = data_with_spectrum(N, power_law(D), mean=2.0)[0]
X[::50] = 2 + 6 * (X[::50] - 2)  # some are beyond the range of codes
X = X.astype("f4")
MODEL = bp.PCA(K).fit(X)
SCORES = MODEL.transform(X)
SCALE = 4 * float(np.sqrt(MODEL.explained_variance_[0])) / LAST
INT8 = np.clip(np.rint(SCORES / np.float32(SCALE)), -LAST, LAST).astype(np.int8)
EXPECTED = {"int8": INT8, "bits": np.packbits(SCORES > 0, axis=1)}
WAYS: dict[str, Any] = {
    "memory": lambda p, **to: MODEL.transform(X, **to),
    "lazy": lambda p, **to: MODEL.transform(da.from_array(X, chunks=70), **to).compute(),
    "batches": lambda p, **to: MODEL.transform(bp.from_batches(X[i : i + 90] for i in range(0, N, 90)), **to),
    "store": lambda p, **to: MODEL.transform(X, out=p / "codes.zarr", **to).compute(),
    "batches to a store": lambda p, **to: MODEL.transform(
        bp.from_batches(X[i : i + 90] for i in range(0, N, 90)), out=p / "codes.zarr", **to
    ).compute(),
    "table": lambda p, **to: MODEL.transform(X, out=p / "codes.parquet", **to).compute(),
}


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("way", WAYS)
def test_codes_are_the_rounded_scores_however_they_are_made(way: str, kind: str, tmp_path: Path) -> None:
    found = WAYS[way](tmp_path, dtype=kind)
    assert found.dtype == EXPECTED[kind].dtype
    assert np.array_equal(found, EXPECTED[kind])


def attributes_of(path: Path) -> dict[str, Any]:
    if path.suffix == ".zarr":
        return dict(zarr.open_array(path, mode="r").attrs)
    return dict(json.loads(pq.read_schema(path).metadata[b"bigpca_attributes"]))


@pytest.mark.parametrize("name", ["codes.zarr", "codes.parquet"])
def test_a_store_of_codes_says_its_scale_and_is_decoded_wherever_scores_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    MODEL.transform(X, out=path, dtype="int8")
    attributes = attributes_of(path)
    assert attributes["bigpca_codes"] == "int8"
    assert (attributes["scale_factor"], attributes["add_offset"]) == (pytest.approx(SCALE), 0.0)
    assert attributes["saturated_share"] == pytest.approx(np.mean(np.abs(INT8) == LAST))
    assert attributes["saturated_share"] > 0
    decoded = bp.open(path).compute()
    inside = np.abs(INT8) < LAST
    assert decoded.dtype == np.float32
    assert np.abs(decoded - SCORES)[inside].max() <= SCALE * 0.5001
    back = MODEL.inverse_transform(path).compute()
    assert np.allclose(back, MODEL.inverse_transform(decoded), rtol=1e-6, atol=1e-5)
    ends = bp.quality.extremes(MODEL, path, n=1)
    assert np.allclose(ends.highest_scores[:, 0], decoded.max(axis=0))


@pytest.mark.parametrize(
    ("unit", "dtype"),
    [(1e-60, "f8"), (1e-41, "f4"), (1e-41, "f8"), (1e-36, "f4"), (1e36, "f4"), (1e38, "f8"), (1e100, "f8")],
)
def test_codes_are_decoded_in_a_dtype_that_holds_the_scores(unit: float, dtype: str, tmp_path: Path) -> None:
    rows = ((X - 2).astype("f8") * unit).astype(dtype)
    model = bp.PCA(K).fit(rows)
    scores = model.transform(rows)
    model.transform(rows, out=tmp_path / "codes.zarr", dtype="int8")
    decoded = bp.open(tmp_path / "codes.zarr").compute()
    step, last = codes_of(model, "int8").scale, LAST * codes_of(model, "int8").scale
    assert decoded.dtype == (np.float32 if 1e-37 < unit < 1e37 else np.float64)
    assert np.abs(decoded.astype("f8") - np.clip(scores.astype("f8"), -last, last)).max() <= step * 0.501


def test_what_an_interrupted_run_wrote_is_kept_with_its_saturated_codes(tmp_path: Path) -> None:
    rows = bp.ingest(X, tmp_path / "rows.zarr", chunk_rows=50)
    for out in ("whole.zarr", "resumed.zarr"):
        if out == "resumed.zarr":
            with dask.config.set(scheduler="sync"), pytest.raises(KeyboardInterrupt):
                MODEL.transform(rows, out=tmp_path / out, dtype="int8", progress=interrupt_after(4))
        assert np.array_equal(MODEL.transform(rows, out=tmp_path / out, dtype="int8").compute(), INT8)
    one, other = (attributes_of(tmp_path / out) for out in ("whole.zarr", "resumed.zarr"))
    assert one["bigpca_manifest"] == other["bigpca_manifest"]
    assert one["saturated_share"] == other["saturated_share"] > 0


@pytest.mark.parametrize("whiten", [True, bp.rules.Whitening(0.25, epsilon=0.1)])
def test_ranges_are_those_of_the_scores_that_are_written(whiten: Any) -> None:
    model = bp.PCA(4, whiten=whiten).fit(X)
    scores = model.transform(X)
    expected = 4 * scores.std(axis=0, ddof=1).max() / LAST
    assert codes_of(model, "int8").scale == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "model", [bp.RotatedPCA(4), bp.ApproximatePCA(4), bp.KernelPCA(4, kernel=bp.kernels.RBF(gamma=0.01))], ids=repr
)
def test_every_model_that_knows_the_variances_of_its_scores_writes_codes(model: Any) -> None:
    fitted = model.fit(X)
    expected = 4 * fitted.transform(X).std(axis=0, ddof=1).max() / LAST
    assert codes_of(fitted, "int8").scale == pytest.approx(expected, rel=0.02)
    assert fitted.transform(X, dtype="int8").shape == (N, 4)


def test_without_variance_all_codes_are_zero() -> None:
    assert not bp.PCA(2).fit(np.ones((5, 3))).transform(np.ones((5, 3)), dtype="int8").any()


def test_many_saturated_codes_are_reported() -> None:
    with pytest.warns(bp.errors.ApproximationWarning, match="more than 1% of the codes of some rows are saturated"):
        MODEL.transform(X * 4, dtype="int8")


REJECTED: dict[str, tuple[Any, type[Exception], str]] = {
    "another dtype": (lambda p: MODEL.transform(X, dtype="int4"), ValueError, "scores are stored as .* or bits"),
    "no scale in .npy": (
        lambda p: MODEL.transform(X, out=p / "c.npy", dtype="int8"),
        ValueError,
        "without their scale",
    ),
    "norms lost": (
        lambda p: bp.PCA(2, whiten=bp.rules.Whitening(l2=True)).fit(X).transform(X, dtype="int8"),
        ValueError,
        "Fit without l2",
    ),
    "no variances": (
        lambda p: bp.FisherDiscriminantAnalysis().fit(X, np.arange(N) % 3).transform(X, dtype="bits"),
        TypeError,
        "the fit of FisherDiscriminantAnalysis does not give",
    ),
    "incomplete rows": (
        lambda p: (
            bp.PCA(2, nan_policy="omit").fit(X).transform(np.where(np.equal(X, X.max()), np.nan, X), dtype="int8")
        ),
        ValueError,
        "has no code",
    ),
    "bits in a frame": (
        lambda p: bp.PCA(2).fit(X).set_output(transform="pandas").transform(X, dtype="bits"),
        ValueError,
        "packs 8 components",
    ),
    "codes as scores": (
        lambda p: MODEL.inverse_transform(INT8),
        TypeError,
        "which is the dtype of codes; floats were expected",
    ),
    "lazy codes as scores": (
        lambda p: bp.quality.extremes(MODEL, MODEL.transform(X, out=p / "c.zarr", dtype="int8")),
        TypeError,
        "decoded as it is read",
    ),
    "codes in a report": (
        lambda p: MODEL.report(p / "r.html", scores=MODEL.transform(X, out=p / "c.zarr", dtype="int8")),
        TypeError,
        "decoded as it is read",
    ),
    "a picture of codes": (
        lambda p: bp.plots.scores(MODEL, MODEL.transform(X, dtype="int8")),
        TypeError,
        "decoded as it is read",
    ),
    "bits as rows": (
        lambda p: (MODEL.transform(X, out=p / "b.parquet", dtype="bits"), bp.open(p / "b.parquet")),
        ValueError,
        "from which scores cannot be decoded",
    ),
    "another dtype of FAISS": (lambda p: MODEL.to_faiss(dtype="int4"), ValueError, "int4"),
    "too few rows": (lambda p: bp.quality.recall(MODEL, X[:2], X[:5]), ValueError, "X has 5 rows; at least k = 10"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_would_be_wrong_is_rejected(case: str, tmp_path: Path) -> None:
    call, error, words = REJECTED[case]
    with pytest.raises(error, match=words):
        call(tmp_path)


def nearest(queries: Any, rows: Any, k: int, metric: str) -> Any:
    """Numbers of the k nearest rows, by all distances in float64."""
    queries, rows = queries.astype("f8"), rows.astype("f8")
    if metric == "cosine":
        queries, rows = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (queries, rows))
    distances = ((queries[:, None] - rows[None]) ** 2).sum(axis=2)
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("lazily", [False, True])
def test_recall_is_that_of_all_distances(metric: str, lazily: bool) -> None:
    queries, rows = X[::20], np.delete(X, np.s_[::20], axis=0)
    found = bp.quality.recall(MODEL, queries, da.from_array(rows, chunks=80) if lazily else rows, 5, metric=metric)
    wanted = nearest(queries, rows, 5, metric)
    assert np.array_equal(found.neighbours, wanted)
    for name, own in (("scores", metric), ("int8", metric), ("bits", "euclidean")):
        forms = [MODEL.transform(one, dtype=None if name == "scores" else name) for one in (queries, rows)]
        if name == "bits":
            forms = [np.unpackbits(one, axis=1) for one in forms]
        got = nearest(*forms, 5, own)
        expected = np.mean([np.isin(a, b).mean() for a, b in zip(wanted, got, strict=True)])
        assert getattr(found, name) == pytest.approx(expected), name
    assert found.metric.startswith("Euclidean distance" if metric == "euclidean" else "cosine similarity")
    assert (found.k, found.n_queries, found.n_rows) == (5, len(queries), len(rows))


def test_recall_of_a_model_without_variances_is_of_scores_alone() -> None:
    found = bp.quality.recall(bp.FisherDiscriminantAnalysis().fit(X, np.arange(N) % 3), X[:3], X[3:])
    assert (found.int8, found.bits) == (None, None)
    assert found.metric == "Euclidean distance of features and scores"


def test_faiss_decodes_a_range_for_each_component() -> None:
    index = MODEL.to_faiss(dtype="int8")
    index.add(X)
    assert isinstance(faiss.downcast_index(index.index), faiss.IndexScalarQuantizer)
    back = index.index.reconstruct_n(0, N)
    half = 4 * np.sqrt(MODEL.explained_variance_)
    inside = np.abs(SCORES) < half
    assert (np.abs(back - SCORES) <= half / 255 * 1.01)[inside].all()


def test_the_command_line_reports_the_saturated_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    MODEL.save("m.zarr")
    record = run_json("transform", "x.npy", "--model", "m.zarr", "--scores", "c.parquet", "--dtype", "int8")
    assert record["codes"]["saturated_share"] == pytest.approx(np.mean(np.abs(INT8) == LAST))
    assert np.array_equal(pq.read_table("c.parquet").to_pandas().to_numpy(), INT8)


def test_opposite_scores_have_opposite_codes() -> None:
    codes = Codes.of("int8", np.ones(2))
    scores = np.linspace(-5, 5, 40).reshape(20, 2)
    assert np.array_equal(codes.apply(scores, ""), -codes.apply(-scores, ""))
