"""Highly variable genes are those of a plain NumPy oracle, and of scanpy, wherever the cells are."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import bigpca as bp
from bigpca.engine.events import PassEvent
from tests.test_cells import FORMS, PLACES, written

ad = pytest.importorskip("anndata")
N, D, TOP = 300, 240, 40
RNG = np.random.default_rng(5)
COUNTS = RNG.poisson(RNG.gamma(0.5, 1, (N, 4)) @ RNG.gamma(0.3, 1, (4, D)) * RNG.gamma(0.4, 2, D)).astype(np.float32)
COUNTS[:, 7] = 0  # a gene that no cell expresses
COUNTS[RNG.integers(0, N, 30), RNG.integers(8, D, 30)] = 400  # outliers, which "seurat_v3" clips
LOGS = np.log1p(1e3 * COUNTS / COUNTS.sum(axis=1, keepdims=True, dtype="f4"))


def cells_of(values: Any) -> Any:
    cells = ad.AnnData(values.copy())
    cells.obs_names, cells.var_names = [f"cell{i}" for i in range(N)], [f"gene{j}" for j in range(D)]
    return cells


def dispersions(flavor: str, n_bins: int = 20, logs: Any = LOGS) -> tuple[Any, Any, Any]:
    """Means, dispersions and those compared with the other genes of the bin, one gene after the other."""
    rows = np.expm1(logs.astype("f8")) if flavor == "seurat" else logs.astype("f8")
    mean, variance = rows.mean(axis=0), rows.var(axis=0, ddof=1)
    mean[mean == 0] = 1e-12
    dispersion = variance / mean
    if flavor == "seurat":
        dispersion[dispersion == 0] = np.nan
        mean, dispersion = np.log1p(mean), np.log(dispersion)
        edges = np.linspace(mean.min(), mean.max(), n_bins + 1)
        edges[0] -= 0.001 * (mean.max() - mean.min())
    else:
        edges = np.unique([-np.inf, *np.percentile(mean, np.arange(10, 105, 5)), np.inf])
    bins, compared = np.searchsorted(edges, mean), np.full(D, np.nan)
    for j in range(D):
        own = dispersion[(bins == bins[j]) & ~np.isnan(dispersion)]
        if flavor == "cell_ranger":
            away = np.abs(own - np.median(own))
            if np.median(away) > 0:
                compared[j] = (dispersion[j] - np.median(own)) / (np.median(away) / 0.6744897501960817)
        elif len(own) == 1:
            compared[j] = dispersion[j] / own[0]
        elif len(own):
            compared[j] = (dispersion[j] - own.mean()) / own.std(ddof=1)
    return mean, dispersion, compared


FLAVORS = ("seurat", "cell_ranger")
CASES = [(f, place, [*FORMS][(i + j) % len(FORMS)]) for i, f in enumerate(FLAVORS) for j, place in enumerate(PLACES)]


@pytest.mark.parametrize(("flavor", "place", "form"), CASES)
def test_genes_are_those_of_numpy_wherever_the_cells_are(flavor: str, place: str, form: str, tmp_path: Path) -> None:
    cells = cells_of(FORMS[form](LOGS))
    cells = PLACES[place](cells, tmp_path) if place != "view" else cells[:, :]
    found = bp.cells.highly_variable_genes(cells, TOP, flavor=flavor)
    mean, dispersion, compared = dispersions(flavor)
    np.testing.assert_allclose(found["means"], mean, rtol=1e-6)
    np.testing.assert_allclose(found["dispersions"], dispersion, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["dispersions_norm"], compared, rtol=1e-4, atol=1e-5)
    highest = np.sort(np.argsort(-np.nan_to_num(compared, nan=-np.inf), kind="stable")[:TOP])
    np.testing.assert_array_equal(np.flatnonzero(cells.var["highly_variable"]), highest)
    assert list(found.index) == list(cells.var_names)
    assert cells.uns["hvg"] == {"flavor": flavor}


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("flavor", [*FLAVORS, "seurat_v3"])
def test_genes_and_what_is_written_are_those_of_scanpy(flavor: str, form: Callable[[Any], Any]) -> None:
    scanpy = pytest.importorskip("scanpy")
    if flavor == "seurat_v3":
        pytest.importorskip("skmisc")
    values = form(COUNTS if flavor == "seurat_v3" else LOGS)
    own, other = cells_of(values), cells_of(values)
    bp.cells.highly_variable_genes(own, TOP, flavor=flavor)
    with warnings.catch_warnings(action="ignore"):  # of what scanpy is built on
        scanpy.pp.highly_variable_genes(other, n_top_genes=TOP, flavor=flavor)
    assert set(own.var.columns) == set(other.var.columns)
    assert own.uns["hvg"] == other.uns["hvg"]
    assert own.var["highly_variable"].sum() == TOP
    rounding = 1e-12 if flavor == "seurat_v3" else 1e-4  # its logarithms are float32
    for name in own.var.columns:
        np.testing.assert_allclose(own.var[name], other.var[name], rtol=rounding, atol=rounding * 1e-1, err_msg=name)


def variances_of_residuals(rows: Any, theta: float) -> Any:
    mu, most = np.outer(rows.sum(axis=1), rows.sum(axis=0) / rows.sum()), np.sqrt(len(rows))
    with np.errstate(invalid="ignore"):
        found = np.nan_to_num((rows - mu) / np.sqrt(mu + mu**2 / theta))
    return np.clip(found, -most, most).var(axis=0)


@pytest.mark.parametrize("batches", [None, np.arange(N) % 2, np.where(np.arange(N) < 80, "a", "b")], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_genes_by_residuals_are_those_of_numpy_and_of_scanpy(place: str, batches: Any, tmp_path: Path) -> None:
    scanpy = pytest.importorskip("scanpy")
    cells, other = cells_of(sp.csr_matrix(COUNTS)), cells_of(COUNTS)
    if batches is not None:
        cells.obs["batch"] = other.obs["batch"] = pd.Categorical(batches)
    cells = PLACES[place](cells, tmp_path) if place != "view" else cells[:, :]
    key = None if batches is None else "batch"
    options: dict[str, Any] = {"flavor": "pearson_residuals", "theta": 50, "batch_key": key}
    found = bp.cells.highly_variable_genes(cells, TOP, **options)
    codes = np.zeros(N) if batches is None else batches
    each = np.array([variances_of_residuals(COUNTS[codes == one].astype("f8"), 50) for one in np.unique(codes)])
    np.testing.assert_allclose(found["residual_variances"], each.mean(axis=0), rtol=1e-9)
    assert cells.var["highly_variable"].sum() == TOP
    if batches is not None and len(set(np.bincount(pd.factorize(codes)[0]))) > 1:
        return  # scanpy clips all batches as it does the first
    with warnings.catch_warnings(action="ignore"):  # of what scanpy is built on
        scanpy.experimental.pp.highly_variable_genes(other, n_top_genes=TOP, **options)
    assert set(found.columns) == set(other.var.columns)
    for name in found.columns:
        np.testing.assert_allclose(found[name], other.var[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("flavor", [*FLAVORS, "seurat_v3"])
def test_among_genes_that_are_alike_the_container_and_the_order_of_cells_choose_nothing(flavor: str) -> None:
    if flavor == "seurat_v3":
        pytest.importorskip("skmisc")
    rng = np.random.default_rng(2)
    counts = np.array([rng.permutation(COUNTS[:, 40 + 5 * j % 200]) for j in range(D)]).T.astype("f8")  # 40 kinds
    counts[:, 0] += counts.sum(axis=1).max() - counts.sum(axis=1)  # all cells weigh alike
    found = list[Any]()
    for rows in (counts, counts[::-1], counts[rng.permutation(N)]):
        for form in (np.asarray, sp.csr_matrix):
            alone, cells = (cells_of(form(rows)) for _ in range(2))
            alone.X = alone.X if flavor == "seurat_v3" else form(np.log1p(rows))
            bp.cells.highly_variable_genes(alone, TOP, flavor=flavor)
            bp.cells.pca(cells, 2, counts=True, n_top_genes=TOP, flavor=flavor)
            found.append([np.flatnonzero(one.var["highly_variable"]).tolist() for one in (alone, cells)])
            assert len(found[0][1]) == TOP <= len(found[0][0])
    assert found == found[:1] * 6


def test_too_few_genes_or_means_for_its_curve_are_an_error_in_words() -> None:
    pytest.importorskip("skmisc")
    alike = np.array([np.roll(COUNTS[:, 3], j) for j in range(D)]).T
    for rows in (COUNTS[:, :2], COUNTS[:, :9], COUNTS[:, :12], alike):
        with pytest.raises(ValueError, match=r"genes vary, with [0-9]+ different means\. Pass more genes"):
            bp.cells.highly_variable_genes(ad.AnnData(rows), 1, flavor="seurat_v3")


REJECTED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no cells": (lambda: bp.cells.highly_variable_genes(LOGS), TypeError, "AnnData was expected"),
    "flavour": (lambda: marked(flavor="seurat3"), ValueError, "flavor = 'seurat3' is unknown"),
    "number": (lambda: marked(n_top_genes=0), ValueError, "n_top_genes = 0 is below 1"),
    "span": (lambda: marked(span=2), ValueError, "span = 2 is outside"),
    "theta": (lambda: marked(flavor="pearson_residuals", theta=0), ValueError, "theta = 0 is outside"),
    "batches": (
        lambda: marked(batch_key="batch"),
        ValueError,
        'batch_key was given with flavor = .seurat.; only "pear',
    ),
    "batch": (
        lambda: marked(flavor="pearson_residuals", batch_key="batch"),
        ValueError,
        "has no column 'batch', which batch_key names",
    ),
    "scaled": (lambda: bp.cells.highly_variable_genes(cells_of(LOGS - 1)), ValueError, "Were the genes scaled before"),
    "base": (lambda: marked(uns={"log1p": {"base": 2}}), ValueError, "have base 2, but natural ones were expected"),
    "counts": (
        lambda: bp.cells.highly_variable_genes(cells_of(99 * COUNTS)),
        ValueError,
        "gene [0-9]+ would have .* Cal",
    ),
    "logarithms": (
        lambda: marked({"log1p": {}}, flavor="pearson_residuals"),
        ValueError,
        "says that X holds logarithms. Pass la",
    ),
    "logarithms for counts": (
        lambda: bp.cells.pca(noted(LOGS), 2, counts=True),
        ValueError,
        "counts=True takes counts, but .* delete",
    ),
    "constant": (lambda: bp.cells.highly_variable_genes(cells_of(0 * LOGS)), ValueError, "no gene differs from"),
    "one cell": (lambda: bp.cells.highly_variable_genes(cells_of(LOGS)[:1]), ValueError, "need at least 2 cells"),
}


def noted(rows: Any, uns: Any = (("log1p", {}),)) -> Any:
    cells = cells_of(rows)
    cells.uns.update(uns)
    return cells


def marked(uns: Any = (), **options: Any) -> Any:
    return bp.cells.highly_variable_genes(noted(LOGS, uns), **options)


@pytest.mark.parametrize("case", REJECTED)
def test_bad_arguments_are_rejected_in_words(case: str) -> None:
    call, error, message = REJECTED[case]
    with pytest.raises(error, match=message):
        call()


def test_without_the_library_of_its_curve_a_flavour_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "skmisc.loess", None)
    with pytest.raises(ImportError, match=r"needs skmisc, which is not installed\. Run: pip install 'bigpca\[cells\]'"):
        bp.cells.highly_variable_genes(cells_of(COUNTS), flavor="seurat_v3")


MAX = 2.0  # where standard scores are clipped


def scores_of(target: float | None, flavor: str) -> tuple[Any, Any]:
    """The chosen genes and the scores (n, 4) of scanpy's chain, in float64, with the signs of bigpca."""
    totals = COUNTS.sum(axis=1, dtype="f8")
    logs = np.log1p(COUNTS * ((target or np.median(totals[totals > 0])) / totals)[:, None])
    compared = dispersions(flavor, logs=logs)[2]
    genes = np.sort(np.argsort(-np.nan_to_num(compared, nan=-np.inf), kind="stable")[:TOP])
    rows = logs[:, genes]
    rows = np.clip((rows - rows.mean(axis=0)) / rows.std(axis=0, ddof=1), -MAX, MAX)
    assert 0.01 < (np.abs(rows) == MAX).mean() < 0.2
    rows -= rows.mean(axis=0)
    V = np.linalg.svd(rows, full_matrices=False)[2][:4]
    V *= np.sign(V[np.arange(4), np.abs(V).argmax(axis=1)])[:, None]
    return genes, rows @ V.T


WHERE = list(PLACES)
WAYS = [(f, t, WHERE[(2 * i + j) % 4]) for i, f in enumerate(FLAVORS) for j, t in enumerate((None, 1e4))]
WAYS += [("seurat", 1e4, "memory"), ("cell_ranger", None, "view")]


@pytest.mark.parametrize("form", ["CSR", "dense"])
@pytest.mark.parametrize(("flavor", "target", "place"), WAYS)
def test_counts_to_components_is_one_plan(flavor: str, target: Any, place: str, form: str, tmp_path: Path) -> None:
    cells = cells_of(FORMS[form](COUNTS))
    cells = PLACES[place](cells, tmp_path) if place != "view" else cells[:, :]
    options = {"counts": True, "n_top_genes": TOP, "flavor": flavor, "target_sum": target, "max_value": MAX}
    model = bp.cells.pca(cells, 4, **options)
    genes, expected = scores_of(target, flavor)
    np.testing.assert_array_equal(np.flatnonzero(cells.var["highly_variable"]), genes)
    np.testing.assert_allclose(cells.obsm["X_pca"], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    reads = 2 if target else 3
    assert model.plan_.passes == model.provenance_.reads == reads
    assert sum("one more read finds" in note for note in model.plan_.notes) == reads - 1
    assert cells.varm["PCs"].shape == (D, 4)
    assert not np.delete(cells.varm["PCs"], genes, axis=0).any()
    assert cells.uns["pca"]["params"]["n_top_genes"] == TOP
    model.save(tmp_path / "m.zarr")
    assert bp.load(tmp_path / "m.zarr").feature_names_in_[0] == f"standard score of gene{genes[0]}"


OTHERS: dict[str, Callable[[Any], Any]] = {
    "opened": bp.open,
    "some": lambda cells: bp.open(cells[5:60]),
    "reordered": lambda cells: bp.open(cells[:, ::-1].copy()),
    "more genes": lambda cells: bp.open(ad.concat([cells, more_genes(cells)], axis=1)),
    "array": lambda cells: np.asarray(COUNTS),
    "frame": lambda cells: pd.DataFrame(COUNTS, columns=list(cells.var_names)),
    "sparse": lambda cells: sp.csr_array(COUNTS),
    "lazy": lambda cells: da.from_array(COUNTS, chunks=(50, D)),
}


def more_genes(cells: Any) -> Any:
    """Other genes of the same cells."""
    found = ad.AnnData(np.full((cells.n_obs, 2), 7, np.float32))
    found.obs_names, found.var_names = cells.obs_names, ["other", "another"]
    return found


@pytest.mark.parametrize("clipped", [10, None])
@pytest.mark.parametrize("where", OTHERS)
def test_a_model_of_counts_scores_the_counts_of_other_cells_the_next_day(
    where: str, clipped: float | None, tmp_path: Path
) -> None:
    cells = cells_of(sp.csr_matrix(COUNTS))
    bp.cells.pca(cells, 4, counts=True, n_top_genes=TOP, max_value=clipped).save(tmp_path / "m")
    model, own = bp.load(tmp_path / "m"), slice(5, 60) if where == "some" else slice(None)
    scores = np.asarray(model.transform(OTHERS[where](cells)))
    np.testing.assert_allclose(scores, cells.obsm["X_pca"][own], rtol=0, atol=1e-4)
    if where == "opened":
        written = model.transform(bp.open(cells), out=tmp_path / "scores.zarr")
        np.testing.assert_array_equal(np.asarray(written), scores)
        for rows in (COUNTS, bp.open(cells)):
            more = bp.load(tmp_path / "m").partial_fit(rows)
            np.testing.assert_allclose(more.mean_, model.mean_, atol=1e-6)
            assert more.n_samples_ == 2 * model.n_samples_
        assert bp.merge(model, more).n_samples_ == 3 * model.n_samples_
        with pytest.raises(ValueError, match="X lacks 2 genes of the fit of PCA, such as 'gene0'"):
            model.transform(bp.open(cells[:, 2:].copy()))
        with pytest.raises(ValueError, match=f"X has 7 columns, but PCA was fitted to counts of {D} genes"):
            model.transform(COUNTS[:, :7])
        with pytest.raises(ValueError, match="so the models cannot be merged"):
            bp.merge(model, bp.cells.pca(cells, 4, counts=True, n_top_genes=TOP, target_sum=7, max_value=clipped))


@pytest.mark.parametrize(
    ("flavor", "clipped"), [*((flavor, 10) for flavor in (*FLAVORS, "seurat_v3")), ("seurat", None)]
)
def test_counts_to_components_is_the_chain_of_scanpy(flavor: str, clipped: float | None) -> None:
    scanpy = pytest.importorskip("scanpy")
    if flavor == "seurat_v3":
        pytest.importorskip("skmisc")
    own, other = cells_of(sp.csr_matrix(COUNTS)), cells_of(sp.csr_matrix(COUNTS))
    model = bp.cells.pca(own, 4, counts=True, n_top_genes=TOP, flavor=flavor, max_value=clipped)
    with warnings.catch_warnings(action="ignore"):  # of what scanpy is built on
        if flavor == "seurat_v3":
            scanpy.pp.highly_variable_genes(other, n_top_genes=TOP, flavor=flavor)
        scanpy.pp.normalize_total(other)
        scanpy.pp.log1p(other)
        if flavor != "seurat_v3":
            scanpy.pp.highly_variable_genes(other, n_top_genes=TOP, flavor=flavor)
        np.testing.assert_array_equal(own.var["highly_variable"], other.var["highly_variable"])
        other = other[:, other.var["highly_variable"]].copy()
        if clipped is not None:
            scanpy.pp.scale(other, max_value=clipped)
        scanpy.pp.pca(other, n_comps=4)
    assert model.plan_.passes == 3
    np.testing.assert_allclose(np.abs(own.obsm["X_pca"]), np.abs(other.obsm["X_pca"]), rtol=0, atol=5e-5)
    np.testing.assert_allclose(own.uns["pca"]["variance"], other.uns["pca"]["variance"], rtol=1e-5)
    if clipped is None:
        assert model.feature_names_in_[0].startswith("logarithm of ")
        return
    kept = own.var[own.var["highly_variable"]]
    np.testing.assert_allclose(kept["mean"], other.var["mean"], rtol=1e-5)
    np.testing.assert_allclose(kept["std"], other.var["std"], rtol=1e-5)


def test_a_weighted_cell_counts_as_often_in_every_read() -> None:
    weights = np.arange(N) % 3
    weighted, repeated = cells_of(COUNTS), ad.AnnData(np.repeat(COUNTS, weights, axis=0))
    for cells, own in ((weighted, weights), (repeated, None)):
        bp.cells.pca(cells, 4, counts=True, n_top_genes=20, sample_weight=own)
    np.testing.assert_array_equal(weighted.var["highly_variable"], repeated.var["highly_variable"])
    np.testing.assert_allclose(weighted.uns["pca"]["variance"], repeated.uns["pca"]["variance"], rtol=1e-6)


def test_a_stopped_plan_resumes_after_the_reads_that_were_done(tmp_path: Path) -> None:
    path = written(cells_of(sp.csr_matrix(COUNTS)), tmp_path, "zarr")

    def run(progress: Any) -> Any:
        cells = ad.experimental.read_lazy(path)
        bp.cells.pca(cells, 4, counts=True, n_top_genes=TOP, max_value=MAX, checkpoint=tmp_path / "c",
                     progress=progress)  # fmt: skip
        return cells

    seen = list[str]()

    def stop(event: Any) -> None:
        if isinstance(event, PassEvent):
            seen.append(event.name)
            if len(seen) == 3:  # after the sums, and the moments
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stop)
    again = list[Any]()
    cells = run(again.append)
    passes = {event.name: event for event in again if isinstance(event, PassEvent)}
    for name in seen[:2]:
        assert name not in passes or passes[name].groups_resumed == passes[name].groups_total
    np.testing.assert_allclose(
        cells.obsm["X_pca"], scores_of(None, "seurat")[1], rtol=0, atol=1e-5 * np.abs(cells.obsm["X_pca"]).max()
    )


NOT_COUNTED = {
    "mask_var": ({"mask_var": np.arange(D) < 9}, r"mask_var cannot be used with counts=True"),
    "obsm": ({"obsm": "first"}, r"obsm cannot be used with counts=True"),
    "scale": ({"scale": True}, r"scale cannot be used with counts=True"),
    "not centred": ({"zero_center": False}, r"zero_center=False cannot be used with counts=True"),
    "flavour": ({"flavor": "seurat_v4"}, r"flavor = 'seurat_v4' is unknown"),
    "target": ({"target_sum": -1}, r"target_sum = -1 is outside"),
    "clip": ({"max_value": 0}, r"max_value = 0 is outside"),
    "all genes": ({"n_top_genes": D}, r"only \d+ genes differ from the others.* Pass n_top_genes="),
}


@pytest.mark.parametrize("case", NOT_COUNTED)
def test_arguments_that_contradict_counts_are_rejected_and_nothing_is_added(case: str) -> None:
    options, message = NOT_COUNTED[case]
    cells = cells_of(COUNTS)
    with pytest.raises(ValueError, match=message):
        bp.cells.pca(cells, 4, counts=True, **options)
    assert not len(cells.var.columns)
    assert not cells.obsm
    cells.X = cells.X - 1
    with pytest.raises(ValueError, match=r"NormalizeTotal\(\) takes counts, but row"):
        bp.cells.pca(cells, 4, counts=True)
