"""AnnData, recognised without importing it: one of its matrices, and the names of that matrix's columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import MemberError
from bigpca.data.containers import type_names
from bigpca.errors import brief, closest

Names = NDArray[np.object_]


def is_cells(X: Any) -> bool:
    """Whether this is an anndata.AnnData."""
    return "anndata.AnnData" in type_names(X)


def cell_matrix(adata: Any, member: str | None = None) -> tuple[Any, Names | None]:
    """Return a matrix of AnnData as it is held (in memory, in a file, on Dask), and the names of its columns.

    Parameters
    ----------
    member : str, optional
        "X", "layers/NAME" or "obsm/NAME", as in AnnData's files; None for X.

    Raises
    ------
    MemberError
        If it has no matrix of that name; lists those that it has.
    ValueError
        For a view of AnnData that is backed by a file, of which anndata would read the selection into memory.
    """
    if adata.isbacked and adata.is_view:
        raise ValueError(
            f"the AnnData of shape {adata.shape} is a selection from the file {adata.filename}, which anndata would "
            "read into memory, and which takes no results. Choose genes by mask_var= (or columns=), or write the "
            'selection: adata.copy("selection.h5ad"), or adata.to_memory() if it fits.'
        )
    place = "X" if member is None else member.strip("/")
    folder, _, name = place.partition("/")
    matrix = adata.X if place == "X" else {"layers": adata.layers, "obsm": adata.obsm}.get(folder, {}).get(name)
    if matrix is None:
        known = ["X"] * (adata.X is not None)
        known += [f"{kind}/{one}" for kind in ("layers", "obsm") for one in getattr(adata, kind)]
        raise MemberError(
            f"the AnnData has no matrix {brief(repr(place))}; it has {brief(', '.join(known) or 'none')}."
            f"{closest(place, known)}"
        )
    names = getattr(matrix, "columns", None) if folder == "obsm" else adata.var_names
    return matrix, None if names is None else np.array([str(one) for one in names], dtype=object)
