"""Selection of an array from a file or store that holds several."""

from __future__ import annotations

from collections.abc import Mapping

from bigpca.data.checks import MemberError
from bigpca.errors import MAX_MESSAGE, brief, shorten

SPARSE_PARTS = ("data", "indices", "indptr")  # of a compressed sparse matrix, in AnnData, 10x and scipy.sparse.save_npz
MAX_LISTED = 20

Shapes = Mapping[str, tuple[int, ...]]


def choose_member(path: str, member: str | None, shapes: Shapes, *, anndata: bool = False) -> str:
    """Pick the named member; else X of an AnnData file, else the only array with two dimensions or more.

    Parameters
    ----------
    shapes : dict of str to shape
        Of every array there, nested groups as ``"group/name"``.
    anndata : bool
        Whether the file is marked as AnnData, in which other matrices, such as embeddings, are derived from X.

    Raises
    ------
    MemberError
        If there is no array of that name; lists those that exist.
    ValueError
        If the choice is ambiguous, or AnnData has no X.
    TypeError
        If it is a sparse matrix.

    Examples
    --------
    >>> choose_member("a.h5ad", None, {"X": (9, 4), "obsm/X_pca": (9, 2), "obs/_index": (9,)}, anndata=True)
    'X'
    """
    sparse = _sparse_members(shapes)
    if member is not None:
        member = member.strip("/")
        if member in sparse:
            raise TypeError(_is_sparse(path, member, shapes))
        if member not in shapes:
            raise MemberError(
                f"{path} has no array {brief(repr(member))}; it holds {_listed(shapes)}. Name one of them with member=."
            )
        return member
    if anndata:
        if "X" in sparse:
            raise TypeError(_is_sparse(path, "X", shapes))
        if "X" not in shapes:
            raise ValueError(
                f"{path} is AnnData without X; it holds {_listed(shapes)}. Name one of them with member=, such as "
                f'member="obsm/X_pca".'
            )
        return "X"
    wanted = [name for name, shape in shapes.items() if len(shape) >= 2] + sparse
    if len(wanted) != 1:
        also = f" ({len(sparse)} of them sparse)" if sparse else ""
        raise ValueError(
            f"{path} holds {len(wanted)} arrays with two dimensions or more{also}, so one must be named with member=: "
            f"it holds {_listed(shapes)}."
        )
    if sparse:
        raise TypeError(_is_sparse(path, wanted[0], shapes))
    return wanted[0]


def _sparse_members(shapes: Shapes) -> list[str]:
    """List the groups that are compressed sparse matrices; "" for the file itself."""
    ends = [name.removesuffix("indptr") for name in shapes if name == "indptr" or name.endswith("/indptr")]
    return [end.rstrip("/") for end in ends if all(f"{end}{part}" in shapes for part in SPARSE_PARTS)]


def _is_sparse(path: str, name: str, shapes: Shapes) -> str:
    inside = f"{name}/" if name else ""
    what = f"{path}: {brief(name)}" if name else path
    dense = {other: shape for other, shape in shapes.items() if len(shape) >= 2}
    others = f" There are also dense arrays, to be named with member=: {_listed(dense)}." if dense else ""
    return (
        f"{what} is a sparse matrix of {shapes[f'{inside}data'][0]:,} stored values ({brief(inside)}data, "
        f"{brief(inside)}indices, {brief(inside)}indptr), but dense data is required: sparse rows cannot be read yet. "
        "Write it dense (such as adata.X = adata.X.toarray()), or pass "
        "anndata.experimental.read_elem_lazy(group).map_blocks(lambda block: block.toarray(), "
        f"dtype=..., meta=np.empty((0, 0)))." + others
    )


def _listed(shapes: Shapes) -> str:
    shown = [f"{brief(name)} {brief(shape)}" for name, shape in list(shapes.items())[:MAX_LISTED]]
    return shorten(", ".join(shown), MAX_MESSAGE // 4) + (", ..." if len(shapes) > MAX_LISTED else "") or "nothing"
