"""``bp.cells.pca`` of AnnData: the results of NumPy in float64, under scanpy's names, wherever the matrix is held."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp

import bigpca as bp

ad = pytest.importorskip("anndata")
N, D, K = 230, 40, 5
RNG = np.random.default_rng(3)
COUNTS = RNG.poisson(RNG.gamma(1, 1, (N, 3)) @ RNG.gamma(1, 1, (3, D))).astype(np.float32)
X = np.log1p(COUNTS)
HIGHLY = np.arange(D) % 3 != 0
GENES = [f"gene{j}" for j in range(D)]
PLACES: dict[str, Callable[[Any, Path], Any]] = {
    "memory": lambda cells, folder: cells,
    "view": lambda cells, folder: cells[:, :][:N],
    "backed": lambda cells, folder: ad.read_h5ad(written(cells, folder), backed="r"),
    "Zarr": lambda cells, folder: ad.experimental.read_lazy(written(cells, folder, "zarr")),
}
FORMS: dict[str, Callable[[Any], Any]] = {"dense": np.asarray, "CSR": sp.csr_matrix, "CSR array": sp.csr_array}


def cells_of(values: Any = X, highly: Any = HIGHLY) -> Any:
    """Return cells with two annotations of the genes, a layer of counts and an embedding."""
    cells = ad.AnnData(values.copy(), layers={"counts": COUNTS}, obsm={"first": X[:, :7]})
    cells.obs_names, cells.var_names = [f"cell{i}" for i in range(N)], GENES
    cells.var["strict"] = np.arange(D) < 25
    cells.var["means"] = values.mean(axis=0)
    if highly is not None:
        cells.var["highly_variable"] = highly
    return cells


def written(cells: Any, folder: Path, form: str = "h5ad") -> Path:
    """Write cells as AnnData does; returns the path."""
    path = folder / f"cells.{form}"
    if form == "zarr":
        with warnings.catch_warnings(action="ignore"):  # of anndata, about formats
            cells.write_zarr(path, chunks=(50, D) if isinstance(cells.X, np.ndarray) else None)
    else:
        cells.write_h5ad(path)
    return path


def expected(values: Any, k: int, center: bool = True) -> tuple[Any, Any, Any, Any]:
    """Scores, components, variances (divisor n - 1) and their shares, in float64, with the signs of bigpca."""
    rows = values.astype(np.float64)
    rows = rows - rows.mean(axis=0) * center
    _, s, V = np.linalg.svd(rows, full_matrices=False)
    V *= np.sign(V[np.arange(len(V)), np.abs(V).argmax(axis=1)])[:, None]
    return rows @ V[:k].T, V[:k], s[:k] ** 2 / (len(rows) - 1), s[:k] ** 2 / (s @ s)


def check(cells: Any, values: Any, mask: Any, names: tuple[str, str, str] = ("X_pca", "PCs", "pca")) -> None:
    scores, components, variance, ratio = expected(values[:, mask], K)
    found, loadings, results = cells.obsm[names[0]], cells.varm[names[1]], cells.uns[names[2]]
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, scores, atol=1e-6 * np.abs(scores).max())
    np.testing.assert_allclose(loadings[mask], components.T, atol=1e-9)
    assert loadings.shape == (D, K)
    assert not loadings[~mask].any()
    np.testing.assert_allclose(results["variance"], variance, rtol=1e-9)
    np.testing.assert_allclose(results["variance_ratio"], ratio, rtol=1e-9)


MASKS = {"default": HIGHLY, "strict": np.arange(D) < 25, "array": ~HIGHLY, None: np.ones(D, bool)}
CASES = [  # every two of mask, place and form once or twice
    (mask, place, [*FORMS][(i + j) % len(FORMS)]) for i, mask in enumerate(MASKS) for j, place in enumerate(PLACES)
]


@pytest.mark.parametrize(("mask_var", "place", "form"), CASES)
def test_results_are_those_of_numpy_wherever_the_cells_are(
    mask_var: Any, place: str, form: str, tmp_path: Path
) -> None:
    cells = cells_of()
    cells.X = FORMS[form](cells.X)
    cells = PLACES[place](cells, tmp_path)
    mask = MASKS[mask_var]
    chosen: Any = {} if mask_var == "default" else {"mask_var": ~HIGHLY if mask_var == "array" else mask_var}
    if place == "view":
        with pytest.warns(UserWarning, match="of view, initializing view as actual"):
            model = bp.cells.pca(cells, K, **chosen)
    else:
        model = bp.cells.pca(cells, K, **chosen)
    check(cells, X, mask)
    assert list(model.feature_names_in_) == [name for name, used in zip(GENES, mask, strict=True) if used]
    params = cells.uns["pca"]["params"]
    assert params["use_highly_variable"] == (mask_var == "default")
    assert params["solver"] == "covariance"


def test_without_highly_variable_genes_all_are_used() -> None:
    cells = cells_of(highly=None)
    bp.cells.pca(cells, K)
    check(cells, X, np.ones(D, bool))
    assert cells.uns["pca"]["params"]["mask_var"] is None


def test_layers_and_embeddings_are_matrices_too_and_results_have_the_names_of_scanpy(tmp_path: Path) -> None:
    cells = cells_of()
    bp.cells.pca(cells, K, layer="counts", key_added="counted")
    check(cells, COUNTS, HIGHLY, ("counted",) * 3)
    assert cells.uns["counted"]["params"]["layer"] == "counts"
    assert "X_pca" not in cells.obsm
    bp.cells.pca(cells, K, mask_var=cells.var["strict"])  # a Series, which files of AnnData do not hold
    assert np.array_equal(ad.read_h5ad(written(cells, tmp_path)).uns["pca"]["params"]["mask_var"], cells.var["strict"])
    bp.cells.pca(cells, 2, obsm="first")
    scores, components, *_ = expected(X[:, :7], 2)
    np.testing.assert_allclose(cells.obsm["X_pca"], scores, atol=1e-5)
    np.testing.assert_allclose(cells.uns["pca"]["components"], components.T, atol=1e-9)
    assert "PCs" not in cells.varm
    assert cells.uns["pca"]["params"]["obsm"] == "first"
    bp.cells.pca(cells, K)  # again, of X: in place of the former results
    check(cells, X, HIGHLY)
    assert "components" not in cells.uns["pca"]
    back = ad.read_h5ad(written(cells, tmp_path))
    check(back, X, HIGHLY)


def test_a_copy_has_the_results_and_the_original_has_none() -> None:
    cells = cells_of()
    copied = bp.cells.pca(cells, K, copy=True)
    check(copied, X, HIGHLY)
    assert not cells.obsm.keys() - {"first"}
    assert not cells.uns


@pytest.mark.parametrize(
    ("n", "d", "k"), [(60, 52, 50), (51, 60, 50), (50, 60, 49), (60, 27, 26), (20, 27, 19), (9, 1, 1)]
)
def test_the_default_number_of_components_is_that_of_scanpy(n: int, d: int, k: int) -> None:
    cells = ad.AnnData(RNG.normal(size=(n, 60)).astype(np.float32))
    bp.cells.pca(cells, mask_var=[j < d for j in range(60)])
    assert cells.obsm["X_pca"].shape == (n, k)


def test_parameters_of_a_fit_pass_through(tmp_path: Path) -> None:
    cells, weights = cells_of(), np.arange(N) % 3
    seen: list[Any] = []
    model = bp.cells.pca(
        cells, 0.5, mask_var=None, scale=True, solver="covariance", dtype="float64", sample_weight=weights,
        checkpoint=tmp_path / "run.ckpt", progress=seen.append,
    )  # fmt: skip
    repeated = np.repeat(X.astype(np.float64), weights, axis=0)
    _, _, _variance, ratio = expected(repeated / repeated.std(axis=0), D)
    k = int(np.searchsorted(np.cumsum(ratio), 0.5)) + 1
    np.testing.assert_allclose(cells.uns["pca"]["variance_ratio"], ratio[:k], rtol=1e-9)
    assert cells.obsm["X_pca"].dtype == np.float64
    assert seen
    assert (tmp_path / "run.ckpt").exists()
    assert model.scale is True
    assert cells.uns["pca"]["params"]["scale"] is True


def test_without_centring_the_scores_are_those_of_a_singular_value_decomposition() -> None:
    cells = cells_of()
    bp.cells.pca(cells, K, zero_center=False)
    scores, components, variance, _ = expected(X[:, HIGHLY], K, center=False)
    np.testing.assert_allclose(cells.obsm["X_pca"], scores, atol=1e-5)
    np.testing.assert_allclose(cells.varm["PCs"][HIGHLY], components.T, atol=1e-9)
    np.testing.assert_allclose(cells.uns["pca"]["variance"], variance, rtol=1e-9)


def test_a_fitted_model_finds_its_genes_in_other_cells_by_name(tmp_path: Path) -> None:
    cells = cells_of()
    bp.cells.pca(cells, K).save(tmp_path / "model")
    model = bp.load(tmp_path / "model")
    order = RNG.permutation(D)
    np.testing.assert_allclose(model.transform(bp.open(cells[:, order].copy())), cells.obsm["X_pca"], atol=1e-5)
    other = cells_of()
    other.var_names = [name.upper() for name in GENES]
    with pytest.raises(ValueError, match=r"feature names should match.*\n.*\n- GENE0"):
        model.transform(bp.open(other))
    twice = cells_of()
    twice.var_names = ["gene1", *GENES[1:]]
    with pytest.raises(ValueError, match=r"'gene1' is the name of 2 columns.*var_names_make_unique"):
        model.transform(bp.open(twice))
    with pytest.raises(TypeError, match=r"X is anndata.AnnData.* bigpca\.open\(adata\)"):
        model.transform(cells)
    with pytest.raises(ValueError, match=r"must be in the same order"):
        bp.cells.pca(cells, K, mask_var=None).transform(bp.open(cells[:, order].copy()))


def test_an_opened_matrix_keeps_the_names_of_its_columns_and_can_be_planned() -> None:
    cells = cells_of()
    rows = bp.open(cells, member="layers/counts")
    assert list(bp.PCA(2).fit(rows).feature_names_in_) == GENES
    assert bp.PCA(K).plan(bp.open(cells, columns=cells.var["highly_variable"])).fits
    np.testing.assert_array_equal(bp.open(rows, columns=["gene5", "gene2"]), COUNTS[:, [5, 2]])
    assert "feature_names_in_" not in vars(bp.PCA(2).fit(bp.open(cells, member="obsm/first")))


def test_cells_in_memory_are_computed_in_this_process(tmp_path: Path) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the scheduler of a cluster was asked")

    with dask.config.set(scheduler=refuse):
        for form in FORMS.values():
            cells = cells_of()
            cells.X = form(cells.X)
            bp.cells.pca(cells, K)
        with pytest.raises(AssertionError, match="was asked"):
            bp.cells.pca(PLACES["Zarr"](cells, tmp_path), K)


def test_rows_with_nan_are_named_and_nothing_is_added() -> None:
    cells = cells_of()
    cells.X[17, 4] = np.nan
    with pytest.raises(bp.errors.NonFiniteError, match=r"row 17.* column 2"):
        bp.cells.pca(cells, K)
    assert "X_pca" not in cells.obsm
    assert not cells.uns
    bp.cells.pca(cells, K, nan_policy="omit")
    assert np.isnan(cells.obsm["X_pca"][17]).all()


def masked(**changes: Any) -> Any:
    cells = cells_of()
    cells.var["named"] = ["True"] * D
    return cells, changes


REJECTED: dict[str, tuple[Any, type[Exception], str]] = {
    "array": (lambda p: (X, {}), TypeError, r"adata is a numpy.ndarray; AnnData was expected.* bigpca.PCA\(n_comp"),
    "svd_solver": (lambda p: masked(svd_solver="arpack"), TypeError, "'svd_solver'. Leave it out.* solver"),
    "chunked": (lambda p: masked(chunked=True), TypeError, "'chunked'. Leave it out: rows are always read in parts"),
    "chunk_size": (lambda p: masked(chunk_size=10), TypeError, "'chunk_size'. Leave it out"),
    "return_info": (lambda p: masked(return_info=True), TypeError, "'return_info'. .* the fitted model is returned"),
    "use_highly_variable": (lambda p: masked(use_highly_variable=False), TypeError, "mask_var=None for all"),
    "n_components": (lambda p: masked(n_components=3), TypeError, "'n_components'. Pass n_comps"),
    "center": (lambda p: masked(center=False), TypeError, "'center'. Pass zero_center"),
    "rng": (lambda p: masked(rng=1), TypeError, "'rng'. Pass random_state=0"),
    "misspelt": (lambda p: masked(solvr="dot"), TypeError, "no parameter 'solvr'. Did you mean solver"),
    "dtype": (lambda p: masked(dtype="int8"), ValueError, "dtype = 'int8'; scores are stored as float16"),
    "too many": (lambda p: masked(n_comps=30), ValueError, "n_components = 30 .* 26 features have 1 to 26"),
    "two matrices": (lambda p: masked(layer="counts", obsm="first"), ValueError, "name two matrices"),
    "no layer": (lambda p: masked(layer="count"), KeyError, "no matrix 'layers/count'; it has X, .*Did you mean"),
    "no X": (lambda p: (ad.AnnData(shape=(9, 4)), {}), KeyError, "no matrix 'X'; it has none"),
    "mask of obsm": (lambda p: masked(obsm="first", mask_var="strict"), ValueError, "but obsm = 'first' has none"),
    "mask, no column": (lambda p: masked(mask_var="strickt"), ValueError, "no column 'strickt'.* mean strict"),
    "mask, numbers": (lambda p: masked(mask_var="means"), ValueError, r"adata.var\['means'\] has dtype float32"),
    "mask, text": (lambda p: masked(mask_var="named"), ValueError, r"\['named'\] has dtype object .* True or False"),
    "mask, short": (lambda p: masked(mask_var=HIGHLY[:9]), ValueError, r"dtype bool and shape \(9,\).* 40 variables"),
    "mask, positions": (lambda p: masked(mask_var=[0, 1]), ValueError, r"mask_var has dtype int64 and shape \(2,\)"),
    "mask, empty": (lambda p: masked(mask_var=~HIGHLY & HIGHLY), ValueError, "chooses none of the 40 variables"),
    "mask, other index": (
        lambda p: masked(mask_var=cells_of().var["strict"][::-1]), ValueError, r"reindex\(adata.var_names\)"
    ),
    "view of a file": (
        lambda p: (ad.read_h5ad(written(cells_of(), p), backed="r")[:100], {}),
        ValueError,
        r"a selection from the file .*cells.h5ad.* mask_var=.* adata.to_memory\(\)",
    ),
    "CSC in a file": (
        lambda p: (ad.read_h5ad(written(ad.AnnData(sp.csc_matrix(X)), p), backed="r"), {}),
        TypeError,
        r"in compressed columns \(csc\).*tocsr\(\)",
    ),
    "memory": (lambda p: masked(memory_limit="1 KiB"), bp.errors.MemoryBudgetError, "memory_limit"),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_bad_arguments_are_rejected_in_words_and_nothing_is_added(case: str, tmp_path: Path) -> None:
    make, kind, words = REJECTED[case]
    cells, arguments = make(tmp_path)
    with pytest.raises(kind, match=words):
        bp.cells.pca(cells, **arguments)
    assert case == "array" or ("X_pca" not in cells.obsm and "pca" not in cells.uns)


def test_neighbours_are_those_that_scanpy_finds_after_its_own_pca() -> None:
    sc = pytest.importorskip("scanpy")
    ours, theirs = cells_of(X.astype(np.float64)), cells_of(X.astype(np.float64))
    bp.cells.pca(ours, 10, dtype="float64")
    sc.pp.pca(theirs, n_comps=10, dtype="float64")
    signs = np.sign((ours.varm["PCs"] * theirs.varm["PCs"]).sum(axis=0))
    for kind, key in (("obsm", "X_pca"), ("varm", "PCs")):
        np.testing.assert_allclose(getattr(ours, kind)[key], getattr(theirs, kind)[key] * signs, atol=1e-9)
    for key in ("variance", "variance_ratio"):
        np.testing.assert_allclose(ours.uns["pca"][key], theirs.uns["pca"][key], rtol=1e-9)
    assert theirs.uns["pca"]["params"].items() <= ours.uns["pca"]["params"].items()
    for cells in (ours, theirs):
        sc.pp.neighbors(cells, n_neighbors=8, method="gauss")  # the default compiles UMAP for seconds
    assert ours.uns["neighbors"]["params"] == theirs.uns["neighbors"]["params"]
    np.testing.assert_array_equal(ours.obsp["distances"].indices, theirs.obsp["distances"].indices)
    np.testing.assert_allclose(ours.obsp["distances"].toarray(), theirs.obsp["distances"].toarray(), atol=1e-9)
