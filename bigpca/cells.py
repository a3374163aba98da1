"""PCA of single cells, and their highly variable genes: calls of scanpy on AnnData in memory, in a file, or lazy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

import bigpca
from bigpca.arrays import Array, Input, Path
from bigpca.data.containers import is_cells
from bigpca.data.dask_arrays import source_of, view_of
from bigpca.data.sources import open as open_rows
from bigpca.engine.events import ProgressArgument
from bigpca.errors import ShortTraceback, an, brief, check_choice, closest, positive_integer, real_number
from bigpca.estimators.linear.pca import PCA
from bigpca.estimators.shared.fit import RandomState, draw_fit_seed, execute
from bigpca.estimators.shared.inputs import open_rows as opened
from bigpca.estimators.shared.outputs import check_float
from bigpca.estimators.shared.transformer import finish
from bigpca.genes import FLAVORS, RESIDUALS, GeneSearch, genes_by_residuals, marked_genes
from bigpca.passes.graphs import computed
from bigpca.passes.project import project_in_memory, project_lazily
from bigpca.passes.reading.row_maps import GeneMap, MapStep, PearsonResiduals, Standardize, chained
from bigpca.passes.residuals import FLOPS_PER_VALUE
from bigpca.passes.rows import Rows
from bigpca.solvers.components import NComponents

if TYPE_CHECKING:
    import pandas as pd

Mask: TypeAlias = NDArray[np.bool_] | None  # of the variables; None for all
DEFAULT_COMPONENTS = 50  # as in scanpy
HIGHLY = "highly_variable"


class WherePresent:
    """The default of ``mask_var``: the column "highly_variable", if there is one."""

    def __repr__(self) -> str:
        return '"highly_variable" where present'


WHERE_PRESENT: Final = WherePresent()

_ELSEWHERE = {
    "svd_solver": 'Leave it out: the solver is chosen by cost; or pass solver="covariance", "dot" or "krylov".',
    "chunked": "Leave it out: rows are always read in parts, and the result does not depend on them.",
    "chunk_size": "Leave it out: rows are always read in parts, and the result does not depend on them.",
    "return_info": "Leave it out: the fitted model is returned.",
    "use_highly_variable": 'Pass mask_var="highly_variable", or mask_var=None for all variables.',
    "rng": "Pass random_state=0.",
    "n_components": "Pass n_comps.",
    "center": "Pass zero_center.",
}


def pca(
    adata: Any,
    n_comps: NComponents = None,
    *,
    layer: str | None = None,
    obsm: str | None = None,
    mask_var: str | Sequence[bool] | Array | WherePresent | None = WHERE_PRESENT,
    zero_center: bool = True,
    random_state: RandomState = 0,
    dtype: str = "float32",
    key_added: str | None = None,
    copy: bool = False,
    sample_weight: Input | None = None,
    checkpoint: Path | None = None,
    progress: ProgressArgument = None,
    counts: bool = False,
    n_top_genes: int = 2000,
    flavor: str = "seurat",
    target_sum: float | None = None,
    max_value: float | None = 10,
    **parameters: Any,
) -> Any:
    """Add a PCA to AnnData as :func:`scanpy.pp.pca` does, of cells that need not fit in memory.

    A fit of :class:`bigpca.PCA` to one matrix of the cells, and one more read for the scores. X may be in memory,
    backed by a file (``read_h5ad(backed="r")``) or a Dask array (``anndata.experimental.read_lazy``); it is never
    loaded as a whole. ``bigpca.PCA(50).plan(bigpca.open(adata, columns=mask))`` returns the cost of the fit in advance.

    The scores are held in memory, because AnnData keeps them there: ``4 n_obs n_comps`` bytes in float32, 2 GB for ten
    million cells and 50 components. For more, write them to a store: ``PCA(50).fit(rows).transform(rows,
    out="scores.zarr")`` with ``rows = bigpca.open(adata, columns=mask)``. After a stop, the same call with the same
    ``checkpoint`` resumes the fit; the scores are computed again, in one read.

    Parameters
    ----------
    adata : anndata.AnnData
        Cells are rows. Results are added to it at the end.
    n_comps : int, float in (0, 1), "mle", RelativeThreshold or None, default None
        Number of components, or a rule for it; None for 50, or for min(cells, chosen variables) - 1 if that is smaller.
    layer : str, optional
        The layer to use in place of X.
    obsm : str, optional
        The entry of ``obsm`` to use instead of X.
    mask_var : str, array-like of bool of shape (n_vars,), or None, default "highly_variable" where present
        The variables to use: a column of ``adata.var``, or a mask; None for all. None with ``obsm``.
    zero_center : bool, default True
        Subtract the mean of each variable. False decomposes moments about zero, see :class:`bigpca.PCA`.
    random_state : int, RandomState, Generator or None, default 0
        As in :class:`bigpca.PCA`.
    dtype : {"float16", "float32", "float64"}, default "float32"
        Of the scores.
    key_added : str, optional
        The name of the results in ``obsm``, ``varm`` and ``uns``; None for "X_pca", "PCs" and "pca".
    copy : bool, default False
        Add the results to a copy of ``adata`` and return the copy.
    sample_weight, checkpoint, progress : optional
        As in :meth:`bigpca.PCA.fit`.
    counts : bool, default False
        X holds counts: do what ``normalize_total``, ``log1p``, ``highly_variable_genes``, ``scale`` and ``pca`` of
        scanpy do, in one plan. X remains as it is. The reads before the fit are one of the moments of the genes; with
        ``target_sum=None`` one more of the sums of the cells; two for "seurat_v3" in any case.
    n_top_genes : int, default 2000
        With ``counts``, how many genes are used: of genes of equal dispersion the first; an error if the others have
        none.
    flavor : {"seurat", "cell_ranger", "seurat_v3"}, default "seurat"
        With ``counts``, as in :func:`highly_variable_genes`.
    target_sum : float or None, default None
        With ``counts``, the sum of each cell; None for the median of those of all cells with counts.
    max_value : float or None, default 10
        With ``counts``, where standard scores are clipped at both ends; None leaves scaling out: components of the
        logarithms, as of scanpy without ``scale``. A number above all scores, such as 1e6, scales and clips nothing.
    **parameters
        Other parameters of :class:`bigpca.PCA`: ``solver``, ``tol``, ``scale``, ``preprocess``, ``memory_limit`` and so
        on.

    Returns
    -------
    PCA or AnnData
        The fitted model, which can be saved and can transform other cells: ``model.transform(bigpca.open(other))``;
        after ``counts``, their counts of all genes, found by name.
        With ``copy=True`` the AnnData.

        - ``obsm["X_pca"]``, ndarray of shape (n_obs, k): the scores.
        - ``varm["PCs"]``, ndarray of shape (n_vars, k): the components, with zeros for unused variables. With ``obsm``,
          they are in ``uns["pca"]["components"]`` instead.
        - ``uns["pca"]["variance"]`` and ``["variance_ratio"]``, ndarray of shape (k,): eigenvalues of the covariance
          with divisor n - 1, and their share of the total variance; and ``["params"]``.

    Raises
    ------
    TypeError
        If ``adata`` is not AnnData; for arguments of scanpy that have no meaning here; and for matrices that cannot be
        read.
    ValueError
        For masks that do not fit, matrices that do not exist, and selections from a file.
    MemoryBudgetError
        Before any read, if the fit does not fit in memory.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> cells = anndata.AnnData(np.random.default_rng(0).poisson(2, (200, 30)).astype("f4"))
    >>> model = pca(cells, n_comps=5)
    >>> cells.obsm["X_pca"].shape, cells.varm["PCs"].shape, model.solver_
    ((200, 5), (30, 5), 'covariance')
    """
    with ShortTraceback():
        _check_cells(adata)
        for name in parameters:
            if name in _ELSEWHERE:
                raise TypeError(f"bigpca.cells.pca has no parameter {name!r}. {_ELSEWHERE[name]}")
        check_float(dtype)
        if counts:
            _check_counts(obsm, mask_var, parameters, zero_center=zero_center)
            _reject_logarithms(adata, layer, "counts=True")
            mask_var = None
        member, mask_var, mask = _chosen(adata, layer, obsm, mask_var)
        adata = adata.copy() if copy else adata
        rows = open_rows(adata, member=member, columns=mask)
        width = min(positive_integer("n_top_genes", n_top_genes), rows.shape[1]) if counts else rows.shape[1]
    if n_comps is None:
        least = min(rows.shape[0], width)
        n_comps = DEFAULT_COMPONENTS if least > DEFAULT_COMPONENTS else max(1, least - 1)
    model = PCA(n_comps, center=zero_center, random_state=random_state, **parameters)
    if counts:
        check_choice("flavor", flavor, FLAVORS)
        target = 1.0 if target_sum is None else target_sum
        real_number("target_sum", target, "(0, inf)", "1e4, or None for the median of the sums of the cells")
        Standardize(max_value)  # whose errors are those of this argument
        search = GeneSearch(GeneMap(width, max_value, target_sum), flavor)
        scores = _fit_counts(
            model, opened(rows, "bigpca.cells.pca").weighted(sample_weight), search, checkpoint, progress
        )
        mask = np.asarray(search.table["highly_variable"])
        params = {
            "layer": layer,
            "counts": True,
            "n_top_genes": width,
            "flavor": flavor,
            "max_value": max_value,
            "target_sum": search.found.target,
            "zero_center": True,
            "mask_var": HIGHLY,
        }
        known = {name: value for name, value in params.items() if value is not None}
        known |= {"use_highly_variable": True, "solver": model.solver_, "bigpca": bigpca.__version__}
        _add_genes(adata, search.table, flavor)
        _add(adata, model, scores.astype(dtype, copy=False), mask, known, key_added)
        return adata if copy else model
    model.fit(rows, sample_weight=sample_weight, checkpoint=checkpoint, progress=progress)
    source = source_of(view_of(rows)[0])
    in_memory = source is not None and source.in_memory  # which is not sent to the workers of a cluster
    lazy: Any = model.transform(rows, dtype=dtype)
    scores = lazy.compute(scheduler="threads") if in_memory else computed(lazy)
    used = {"layer": layer, "obsm": obsm, **parameters}
    plain = {name: value for name, value in used.items() if isinstance(value, bool | int | float | str)}
    params = {
        "zero_center": zero_center,
        "use_highly_variable": isinstance(mask_var, str) and mask_var == HIGHLY,
        "mask_var": mask_var,
        **plain,
        "solver": model.solver_,
        "bigpca": bigpca.__version__,
    }
    _add(adata, model, scores, mask, params, key_added)
    return adata if copy else model


def _fit_counts(model: PCA, rows: Rows, search: GeneSearch, checkpoint: Any, progress: Any) -> NDArray[Any]:
    """Search for genes and fit a model to their standard scores, or logarithms, in one plan, and return its scores.

    The features of the model have names of these; counts of all genes become them by what it keeps of the search.
    """
    d, width = rows.n_columns, search.found.n_top_genes
    rows = replace(rows, seed=draw_fit_seed(model, checkpoint))
    planned = model._fit(rows.mapped(MapStep(search, width, FLOPS_PER_VALUE * d)), None)
    call, seed = "bigpca.cells.pca(adata, counts=True)", rows.seed
    found, made = execute(model, planned, planned.run, call, progress=progress, checkpoint=checkpoint, seed=seed)
    names_of_all = np.asarray(rows.origin.names if rows.origin.names is not None else range(d))
    names = names_of_all[list(search.found.genes or ())]
    standard = project_lazily(rows.X, search.found, width)
    kind = "logarithm" if search.found.max_value is None else "standard score"
    named = np.array([f"{kind} of {name}" for name in names], dtype=object)
    finish(model, replace(rows.shown(standard, names=named), seed=seed), planned.plan, found)
    model._provenance = made
    every = None if rows.origin.names is None else tuple(map(str, names_of_all))
    model._steps = replace(model._steps, counts=replace(search.found, n_genes=d, names=every))
    whole = chained((search.found,), model._row_map())
    if rows.in_memory:
        return project_in_memory(rows.begun(), whole, model.n_components_)
    return np.asarray(project_lazily(rows.X, whole, model.n_components_))


def _reject_logarithms(adata: Any, layer: str | None, what: str) -> None:
    """Reject X that scanpy has noted as logarithms, where counts are taken."""
    if layer is None and "log1p" in adata.uns:
        raise ValueError(
            f'{what} takes counts, but adata.uns["log1p"] says that X holds logarithms. Pass layer= with the name of '
            'the layer of counts, or delete adata.uns["log1p"] if X holds counts.'
        )


def _check_counts(obsm: str | None, mask_var: Any, parameters: dict[str, Any], *, zero_center: bool) -> None:
    """Reject arguments that have no meaning with ``counts``."""
    given = [name for name in parameters if name in ("scale", "preprocess", "whiten")]
    given += ["obsm"] * (obsm is not None) + ["mask_var"] * (mask_var is not WHERE_PRESENT and mask_var is not None)
    if given or not zero_center:
        raise ValueError(
            f"{', '.join(given) or 'zero_center=False'} cannot be used with counts=True, which chooses the genes, and "
            "centres, scales and clips their logarithms. Leave it out, or do those steps first."
        )


def highly_variable_genes(
    adata: Any,
    n_top_genes: int = 2000,
    *,
    flavor: str = "seurat",
    layer: str | None = None,
    n_bins: int = 20,
    span: float = 0.3,
    theta: float = 100,
    batch_key: str | None = None,
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
) -> pd.DataFrame:
    """Mark the genes that vary most, as :func:`scanpy.pp.highly_variable_genes` does, of cells that need not fit.

    One read of one matrix of the cells, or two for "seurat_v3", which clips counts at limits that depend on their
    moments, and "pearson_residuals". The matrix may be where that of :func:`pca` may be.

    Parameters
    ----------
    adata : anndata.AnnData
        Cells are rows. Results are added to ``adata.var`` at the end.
    n_top_genes : int, default 2000
        How many genes are wanted; more of "seurat" and "cell_ranger" if several have the last dispersion, and fewer if
        the others have none.
    flavor : {"seurat", "cell_ranger", "seurat_v3", "pearson_residuals"}, default "seurat"
        The first two take logarithms of normalised counts, as scanpy's ``log1p`` makes them, and compare the
        dispersion of a gene with those of genes of a similar mean. "seurat_v3" takes counts, and compares their
        variances with a smooth function of the mean, for which it needs scikit-misc. "pearson_residuals" takes counts,
        and compares the variances of :class:`bigpca.preprocessing.PearsonResiduals`, as
        ``scanpy.experimental.pp.highly_variable_genes``.
    layer : str, optional
        The layer to use in place of X.
    n_bins : int, default 20
        Intervals of the mean, of "seurat".
    span : float in (0, 1], default 0.3
        Share of the genes that each point of the smooth function rests on, of "seurat_v3".
    theta : float > 0, default 100
        Of "pearson_residuals".
    batch_key : str, optional
        Column of ``adata.obs`` with the batch of each cell, of "pearson_residuals": residuals are those within each
        batch. Genes chosen in the most batches come first, then those of the lowest median rank.
    memory_limit, progress : as in :class:`bigpca.PCA` and its ``fit``, default None

    Returns
    -------
    pandas.DataFrame
        What was added to ``adata.var``, with the names of scanpy: "highly_variable", "means", and "dispersions" and
        "dispersions_norm", or "variances", "variances_norm" and "highly_variable_rank", or "residual_variances" in
        place of "variances_norm", with "highly_variable_nbatches" and "highly_variable_intersection" if there are
        batches.

    Raises
    ------
    TypeError, ValueError
        If ``adata`` is not AnnData; for bad arguments; for logarithms of another base; and for negative values.
    ImportError
        For "seurat_v3" without scikit-misc.
    MemoryBudgetError
        Before any read, if a block does not fit in memory.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> counts = np.random.default_rng(0).poisson(2, (200, 30)) * np.where(np.arange(30) < 5, 3, 1)
    >>> cells = anndata.AnnData(np.log1p(counts.astype("f4")))
    >>> genes = highly_variable_genes(cells, 5)
    >>> int(cells.var["highly_variable"].sum())
    5
    """
    with ShortTraceback():
        _check_cells(adata)
        check_choice("flavor", flavor, (*FLAVORS, RESIDUALS))
        n_top_genes, n_bins = positive_integer("n_top_genes", n_top_genes), positive_integer("n_bins", n_bins)
        real_number("span", span, "(0, 1]", "0.3, or another share of the genes")
        PearsonResiduals(theta)  # whose errors are those of this argument
        batches = None if batch_key is None else _batches(adata, batch_key, flavor)
        base = adata.uns.get("log1p", {}).get("base")
        if flavor in ("seurat_v3", RESIDUALS):
            _reject_logarithms(adata, layer, f'flavor = "{flavor}"')
        elif base is not None:
            raise ValueError(
                f"adata.uns says that the logarithms have base {base}, but natural ones were expected, as "
                "sc.pp.log1p(adata) makes them. Pass a layer of those, and delete adata.uns['log1p']."
            )
        rows = opened(open_rows(adata, member="X" if layer is None else f"layers/{layer}"), "highly_variable_genes")
        begun = rows.begun(memory_limit=memory_limit)
        if flavor == RESIDUALS:
            found = genes_by_residuals(begun, n_top_genes, theta, batches, progress)
        else:
            found = marked_genes(begun, n_top_genes, flavor, n_bins, span, progress)
    return _add_genes(adata, found, flavor)


def _add_genes(adata: Any, found: pd.DataFrame, flavor: str) -> pd.DataFrame:
    """Add what is known of the genes to AnnData, under the names that scanpy uses."""
    found.index = adata.var_names
    columns = {str(name): values.to_numpy() for name, values in found.items()}
    if hasattr(adata.var, "assign"):
        adata.var = adata.var.assign(**columns)  # which makes a copy of a view, as scanpy does
    else:  # lazy
        for name, values in columns.items():
            adata.var[name] = values
    adata.uns["hvg"] = {"flavor": flavor}
    return found


def _batches(adata: Any, batch_key: str, flavor: str) -> Array:
    """Return the batch of each cell, or an error that says what is wrong with ``batch_key``."""
    if flavor != RESIDUALS:
        raise ValueError(f'batch_key was given with flavor = {flavor!r}; only "{RESIDUALS}" takes batches.')
    if batch_key not in adata.obs.columns:
        near = closest(batch_key, map(str, adata.obs.columns))
        raise ValueError(f"adata.obs has no column {brief(repr(batch_key))}, which batch_key names.{near}")
    return np.asarray(adata.obs[batch_key])


def _check_cells(adata: Any) -> None:
    if not is_cells(adata):
        raise TypeError(
            f"adata is {an(f'{type(adata).__module__}.{type(adata).__name__}')}; AnnData was expected. For rows of "
            "numbers, call bigpca.PCA(n_components).fit_transform(X)."
        )


def _chosen(adata: Any, layer: str | None, obsm: str | None, mask_var: Any) -> tuple[str, Any, Mask]:
    """Return the member that the arguments name, ``mask_var`` as it was understood, and the mask."""
    if layer is not None and obsm is not None:
        raise ValueError(f"layer = {layer!r} and obsm = {obsm!r} name two matrices; only one was expected.")
    if obsm is not None:
        if mask_var is not None and mask_var is not WHERE_PRESENT:
            raise ValueError(f"mask_var chooses variables, but obsm = {obsm!r} has none. Leave mask_var out.")
        return f"obsm/{obsm}", None, None
    if mask_var is WHERE_PRESENT:
        mask_var = HIGHLY if HIGHLY in adata.var.columns else None
    mask = None if mask_var is None else _mask(adata, mask_var)
    return "X" if layer is None else f"layers/{layer}", mask_var if isinstance(mask_var, str) else mask, mask


def _mask(adata: Any, mask_var: Any) -> NDArray[np.bool_]:
    """Return a mask of the variables, by name or as given.

    Raises
    ------
    ValueError
    """
    what, values = "mask_var", mask_var
    if isinstance(mask_var, str):
        if mask_var not in adata.var.columns:
            near = closest(mask_var, map(str, adata.var.columns))
            raise ValueError(f"adata.var has no column {brief(repr(mask_var))}, which mask_var names.{near}")
        what, values = f"adata.var[{brief(repr(mask_var))}]", adata.var[mask_var]
    elif hasattr(values, "iloc") and list(values.index) != list(adata.var_names):
        raise ValueError("the index of mask_var differs from adata.var_names. Pass mask_var.reindex(adata.var_names).")
    mask = np.asarray(values)
    if mask.dtype.kind == "O" and all(isinstance(one, bool | np.bool_) for one in mask.ravel()):
        mask = mask.astype(bool)
    if mask.dtype != bool or mask.shape != (adata.n_vars,):
        raise ValueError(
            f"{what} has dtype {mask.dtype} and shape {mask.shape}; True or False for each of the {adata.n_vars} "
            "variables was expected."
        )
    if not mask.any():
        raise ValueError(f"{what} chooses none of the {adata.n_vars} variables; at least two were expected.")
    return mask


def _add(
    adata: Any, model: PCA, scores: NDArray[Any], mask: Mask, params: dict[str, Any], key_added: str | None
) -> None:
    """Add the results to AnnData, under the names that scanpy uses."""
    key_scores, key_components, key = (key_added,) * 3 if key_added else ("X_pca", "PCs", "pca")
    components = np.ascontiguousarray(model.components_.T)
    found = {"params": params, "variance": model.explained_variance_, "variance_ratio": model.explained_variance_ratio_}
    adata.obsm[key_scores] = scores
    if "obsm" in params:
        found["components"] = components
        adata.varm.pop(key_components, None)  # those of an earlier call, of other scores
    else:
        loadings = np.zeros((adata.n_vars, components.shape[1]))
        loadings[slice(None) if mask is None else mask] = components
        adata.varm[key_components] = loadings
    adata.uns[key] = found
