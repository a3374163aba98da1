"""Cells in files: real AnnData, in Zarr and HDF5, opened by path or by what anndata has opened; names; the commands."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import fsspec
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from obstore.store import MemoryStore

import bigpca as bp
from bigpca.data import sparse
from bigpca.data.label_files import cell_names, gene_names, read_label_file
from tests.cli.running import line_of, run, run_json, words
from tests.data.sparse_savers import counts, to_tenx
from tests.passes.kit import interrupt_after

with warnings.catch_warnings(action="ignore"):
    ad = pytest.importorskip("anndata")

X = counts("f4", 300, 24)
CELLS, GENES = [f"cell {i}" for i in range(X.shape[0])], [f"gene {j}" for j in range(X.shape[1])]
TRUTH = bp.PCA(3, solver="covariance").fit(X)


def written(cells: Any, path: Path, zarr_format: int = 3) -> Path:
    """Write cells as AnnData does, which warns of formats to come."""
    with warnings.catch_warnings(action="ignore"), ad.settings.override(zarr_write_format=zarr_format):
        cells.write_h5ad(path) if path.suffix == ".h5ad" else cells.write_zarr(path)
    return path


@pytest.fixture(scope="module", params=["h5ad", "zarr", "zarr2"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = ad.AnnData(X, layers={"counts": 2 * X}, obsm={"X_pca": X.toarray()[:, :2]})
    cells.obs_names, cells.var_names = CELLS, GENES
    cells.raw = cells.copy()
    cells.raw.var.index = [name.upper() for name in GENES]
    folder, end = tmp_path_factory.mktemp("cells"), request.param[:4]
    return written(cells, folder / f"cells.{end}", 2 if request.param == "zarr2" else 3)


def assert_model(model: Any, factor: float = 1.0) -> None:
    np.testing.assert_allclose(np.abs(model.components_ @ TRUTH.components_.T), np.eye(3), atol=1e-10)
    np.testing.assert_allclose(model.explained_variance_, factor**2 * TRUTH.explained_variance_, rtol=1e-12)


def group_of(path: Path, name: str) -> Any:
    return h5py.File(path, "r")[name] if path.suffix == ".h5ad" else zarr.open_group(path, mode="r")[name]


OPENED: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "member": lambda path: bp.open(path, member="X"),
    "stored": lambda path: ad.io.sparse_dataset(group_of(path, "X")),
    "Dask": lambda path: ad.experimental.read_elem_lazy(group_of(path, "X")),
    "raw": lambda path: bp.open(path, member="raw/X"),
    "objects": lambda path: path if path.suffix == ".h5ad" else in_a_store(path),
}


def in_a_store(path: Path) -> bp.ObjectStore:
    """Return a place whose store is only open: it has no address."""
    held = bp.ObjectStore(MemoryStore()).at("cells")
    for file in path.rglob("*"):
        if file.is_file():
            held.put(file.relative_to(path).as_posix(), file.read_bytes())
    return held


@pytest.mark.parametrize("how", OPENED)
def test_rows_of_cells_are_fitted_from_wherever_anndata_has_them(how: str, path: Path) -> None:
    given = OPENED[how](path)
    model = bp.PCA(3, solver="covariance").fit(given)
    assert_model(model)
    names = {"Dask": None, "raw": [name.upper() for name in GENES]}.get(how, GENES)
    assert (list(model.feature_names_in_) if hasattr(model, "feature_names_in_") else None) == names
    if how in ("path", "objects"):
        assert list(bp.data.stored_keys(given)) == list(bp.data.stored_keys(bp.open(given))) == CELLS
    scores = model.transform(given)
    np.testing.assert_allclose(scores, TRUTH.transform(X), atol=1e-5)


def test_layers_and_embeddings_are_opened_by_name_and_backed_cells_by_themselves(path: Path) -> None:
    assert_model(bp.PCA(3, solver="covariance").fit(bp.open(path, member="layers/counts")), 2.0)
    chosen = bp.open(path, columns=["gene 7", "gene 3"])
    np.testing.assert_array_equal(chosen.compute().toarray(), X.toarray()[:, [7, 3]])
    assert list(bp.PCA(1).fit(chosen).feature_names_in_) == ["gene 7", "gene 3"]
    embedding = bp.open(path, member="obsm/X_pca")
    np.testing.assert_array_equal(embedding, X.toarray()[:, :2])
    assert not hasattr(bp.PCA(1).fit(embedding), "feature_names_in_")
    if path.suffix == ".h5ad":
        cells = ad.read_h5ad(path, backed="r")
        model = bp.PCA(3, solver="covariance").fit(bp.open(cells))
        assert_model(model)
        cells.file.close()
        np.testing.assert_allclose(model.transform(path), TRUTH.transform(X), atol=1e-5)
    with pytest.raises(ValueError, match=r"no array 'layers/none'; it holds .*X \(sparse\).*, obsm/X_pca \(300, 2\)"):
        bp.open(path, member="layers/none")


@pytest.mark.parametrize("end", ["h5ad", "zarr"])
def test_labels_are_columns_of_obs_joined_by_the_names_of_the_cells(end: str, tmp_path: Path) -> None:
    n = X.shape[0]
    kinds, sexes = np.array(["b", "a", "c"] * (n // 3), object), np.array(["f", "m"] * (n // 2), object)
    cells = ad.AnnData(X, obs=pd.DataFrame(index=CELLS))
    cells.obs["type"] = pd.Categorical(np.where(np.arange(n) < 9, None, kinds))
    cells.obs["sex"], cells.obs["age"] = sexes, np.arange(n)
    cells.obs["weight"] = pd.array([None, 2] * (n // 2), dtype="Int64")
    file = written(cells, tmp_path / f"cells.{end}")
    rows = bp.open(file)[::-1]
    for name, values in (("sex", sexes), ("obs/age", np.arange(n))):
        np.testing.assert_array_equal(bp.data.by_key(f"{file}::{name}", rows), values[::-1])
    for name, gaps in (("type", np.arange(n) < 9), ("weight", np.arange(n) % 2 == 0)):
        found = read_label_file(f"{file}::{name}")
        np.testing.assert_array_equal([one is None for one in found], gaps)
    model = bp.FisherDiscriminantAnalysis(1, regularization=1.0, missing_labels="drop").fit(rows, f"{file}::type")
    assert model.classes_.tolist() == ["a", "b", "c"]
    for name, told in (("::typ", "obs has no column 'typ'.* Did you mean type"), ("", r"obs has \d columns. Name the")):
        with pytest.raises(KeyError, match=told):
            read_label_file(f"{file}{name}")


def test_scores_keep_the_names_of_their_cells(path: Path, tmp_path: Path) -> None:
    model = bp.PCA(2).fit(path)
    model.transform(bp.open(path, member="layers/counts"), out=tmp_path / "scores.zarr")
    assert list(bp.data.stored_keys(tmp_path / "scores.zarr")) == list(bp.data.stored_keys(path)) == CELLS
    assert list(cell_names(f"{path}/obsm/X_pca")) == CELLS  # type: ignore[arg-type]
    assert cell_names(f"{path}/varm/PCs") is None


def test_matrices_of_10x_genomics_have_the_names_of_their_features_and_barcodes(tmp_path: Path) -> None:
    path = to_tenx(tmp_path, X)
    model = bp.PCA(3, solver="covariance").fit(path)
    assert_model(model)
    assert list(model.feature_names_in_) == GENES
    rows = bp.open(path, columns=["gene 7", "gene 3"])
    np.testing.assert_array_equal(rows.compute().toarray(), X.toarray()[:, [7, 3]])
    model.transform(path, out=tmp_path / "scores.zarr")
    for source in (path, bp.open(path), f"{path}/matrix", tmp_path / "scores.zarr"):
        assert list(bp.data.stored_keys(source)) == CELLS
    with h5py.File(path, "a") as file:  # as Cell Ranger 2
        file.move("matrix", "GRCh38")
        file.move("GRCh38/features/name", "GRCh38/gene_names")
    older = bp.open(path)
    assert list(bp.data.stored_keys(older)) == CELLS
    assert list(bp.PCA(2).fit(older).feature_names_in_) == GENES
    with h5py.File(path, "a") as file:
        del file["GRCh38/gene_names"]
        file["GRCh38/gene_names"] = np.array(GENES[:3], "S8")
    with pytest.raises(ValueError, match=r"GRCh38 has 24 columns, but its list of features has 3 names"):
        bp.open(path)


def test_cells_at_a_url_are_opened_with_their_names(path: Path) -> None:
    if path.suffix == ".zarr":
        url = f"memory://{path.parent.name}.zarr"
        fsspec.filesystem("memory").put(str(path), f"/{path.parent.name}.zarr", recursive=True)
        model = bp.PCA(3, solver="covariance").fit(bp.open(url))
        assert_model(model)
        assert list(model.feature_names_in_) == GENES
        assert list(bp.data.stored_keys(f"{url}/layers/counts")) == list(bp.data.stored_keys(bp.open(url))) == CELLS


def test_other_genes_are_rejected_and_names_that_do_not_fit_are_named(path: Path, tmp_path: Path) -> None:
    model, cells = bp.PCA(2).fit(path), ad.AnnData(X)
    cells.obs_names, cells.var_names = ["a"] * len(CELLS), [GENES[1], GENES[0], *GENES[2:]]
    other = written(cells, tmp_path / path.name)
    with pytest.raises(ValueError, match="Feature names must be in the same order as they were in fit"):
        model.transform(other)
    with pytest.raises(ValueError, match=r"column 0 is 'gene 1', but 'gene 0' was expected, as in .* adata\[:, other"):
        bp.open([path, other])
    assert bp.data.stored_keys(other) is None
    with pytest.raises(ValueError, match=r"X has 23 columns, but var has 24 names; the same number was expected"):
        gene_names(str(path), "X", 23)


def test_files_of_cells_are_joined_as_shards(path: Path) -> None:
    joined = bp.open([path, path])
    assert joined.shape == (600, 24)
    model = bp.PCA(3, solver="covariance").fit(joined)
    assert list(model.feature_names_in_) == GENES
    np.testing.assert_allclose(model.explained_variance_, TRUTH.explained_variance_ * 2 * 299 / 599, rtol=1e-12)


def test_a_changed_chunk_of_any_of_the_three_vectors_rejects_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_groups: None
) -> None:
    monkeypatch.setattr(sparse, "NATIVE_BYTES", 512)
    monkeypatch.setattr("bigpca.engine.layout.MIN_SLAB_BYTES", 512)
    monkeypatch.setattr("bigpca.engine.layout.SLAB_BYTES", 512)
    root = zarr.open_group(tmp_path / "x.zarr", mode="w")
    root.attrs.update({"encoding-type": "csr_matrix", "shape": list(X.shape)})
    for part in ("data", "indices", "indptr"):
        values = getattr(X, part)
        root.create_array(part, shape=values.shape, dtype=values.dtype, chunks=(40,))[...] = values

    def fit(part: str, progress: Any = None) -> Any:
        with dask.config.set(scheduler="sync"):
            model = bp.PCA(2, solver="covariance")
            return model.fit(tmp_path / "x.zarr", checkpoint=tmp_path / part, progress=progress)

    for part in ("data", "indices", "indptr"):
        with pytest.raises(KeyboardInterrupt):
            fit(part, interrupt_after(10))
        chunk = tmp_path / "x.zarr" / part / "c" / "1"
        chunk.write_bytes(chunk.read_bytes())
        with pytest.raises(bp.errors.CheckpointError, match="the input changed since the checkpoint"):
            fit(part)


def test_the_commands_show_what_is_stored_and_ingest_says_how_to_copy_sparse_rows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = run_json("info", path, "--member", "layers/counts")
    assert (record["rows"], record["columns"], record["stored_values"]) == (300, 24, X.nnz)
    shown = run("info", path).stdout
    assert f", sparse with {X.nnz:,} values ({100 * X.nnz / 7200:.3g} %)" in line_of(shown, "data")
    assert line_of(shown, "keys") == "300, such as 'cell 0'"
    assert "300 rows x 24 columns, float32, sparse with" in run("plan", path, "-k", 2).stdout
    assert run("fit", path, "-k", 3, "--model", "m.zarr").exit_code == 0
    assert_model(bp.load("m.zarr"))
    updated = run("fit", path, "--update", "m.zarr", "--model", "n.zarr")
    assert updated.exit_code == 0
    if path.suffix == ".zarr":
        report = run_json("verify", f"{path}/X")
        assert (report["ok"], report["chunks"]) == (True, 3)
    rejected = run("ingest", path, "out.zarr")
    assert rejected.exit_code == 3
    assert "X is sparse, 300 x 24, and ingest writes dense rows: 28.1 KiB where" in words(rejected.output)
    with pytest.raises(TypeError, match="is sparse, 300 x 24") as found:
        bp.ingest(path, "out.zarr")
    names = {"anndata": ad, "zarr": zarr, "bigpca": bp, "np": np, "source": path, "out": "copy.zarr"}
    told = str(found.value)
    with warnings.catch_warnings(action="ignore"):
        exec(told.split("still sparse: ")[1].split(". For")[0], names)
    np.testing.assert_array_equal(bp.open("copy.zarr").compute().toarray(), X.toarray())
    dense = bp.ingest(eval(told.split("dense rows pass ")[1].removesuffix("."), names), "dense.zarr")
    np.testing.assert_array_equal(dense, X.toarray())
