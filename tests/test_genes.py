"""Highly variable genes are those of a plain NumPy oracle, and of scanpy, wherever the cells are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bigpca as bp
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


def dispersions(flavor: str, n_bins: int = 20) -> tuple[Any, Any, Any]:
    """Means, dispersions and those compared with the other genes of the bin, one gene after the other."""
    rows = np.expm1(LOGS.astype("f8")) if flavor == "seurat" else LOGS.astype("f8")
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


def test_clipped_variances_take_two_reads_and_outliers_do_not_count(tmp_path: Path) -> None:
    pytest.importorskip("skmisc")
    found = bp.cells.highly_variable_genes(ad.read_h5ad(written(cells_of(sp.csr_matrix(COUNTS)), tmp_path), backed="r"),
                                           TOP, flavor="seurat_v3")  # fmt: skip
    plain = found["variances"] / COUNTS.mean(axis=0).clip(1e-12)
    hit = (COUNTS == 400).any(axis=0)
    assert hit[np.argsort(-plain.to_numpy())[:20]].mean() > 0.9
    assert hit[np.argsort(found["highly_variable_rank"].to_numpy())[:20]].mean() < 0.5


REJECTED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no cells": (lambda: bp.cells.highly_variable_genes(LOGS), TypeError, "AnnData was expected"),
    "flavour": (lambda: marked(flavor="seurat3"), ValueError, "flavor = 'seurat3' is unknown"),
    "number": (lambda: marked(n_top_genes=0), ValueError, "n_top_genes = 0 is below 1"),
    "span": (lambda: marked(span=2), ValueError, "span = 2 is outside"),
    "scaled": (lambda: bp.cells.highly_variable_genes(cells_of(LOGS - 1)), ValueError, "Were the genes scaled before"),
    "base": (lambda: marked(uns={"log1p": {"base": 2}}), ValueError, "have base 2, but natural ones were expected"),
    "constant": (lambda: bp.cells.highly_variable_genes(cells_of(0 * LOGS)), ValueError, "no gene differs from"),
    "one cell": (lambda: bp.cells.highly_variable_genes(cells_of(LOGS)[:1]), ValueError, "need at least 2 cells"),
}


def marked(uns: Any = (), **options: Any) -> Any:
    cells = cells_of(LOGS)
    cells.uns.update(uns)
    return bp.cells.highly_variable_genes(cells, **options)


@pytest.mark.parametrize("case", REJECTED)
def test_bad_arguments_are_rejected_in_words(case: str) -> None:
    call, error, message = REJECTED[case]
    with pytest.raises(error, match=message):
        call()


def test_without_the_library_of_its_curve_a_flavour_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "skmisc.loess", None)
    with pytest.raises(ImportError, match=r"needs skmisc, which is not installed\. Run: pip install scikit-misc"):
        bp.cells.highly_variable_genes(cells_of(COUNTS), flavor="seurat_v3")
