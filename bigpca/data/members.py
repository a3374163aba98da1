"""Selection of an array from a file or store that holds several."""

from __future__ import annotations

from collections.abc import Mapping

from bigpca.data.checks import MemberError
from bigpca.errors import MAX_MESSAGE, brief, shorten

SPARSE_PARTS = ("data", "indices", "indptr")  # of a compressed sparse matrix, in AnnData, 10x and scipy.sparse.save_npz
MAX_LISTED = 20

Shapes = Mapping[str, tuple[int, ...]]


def choose_member(path: str, member: str | None, shapes: Shapes, *, anndata: bool = False) -> str:
    """Pick the named member; else X of an AnnData file, else the only matrix: two dimensions or more, or sparse.

    Parameters
    ----------
    shapes : dict of str to shape
        Of every array there, nested groups as ``"group/name"``.
    anndata : bool
        Whether the file is marked as AnnData, in which other matrices, such as embeddings, are derived from X.

    Returns
    -------
    str
        Name of an array, or of a group of three that is one of :func:`sparse_members`.

    Raises
    ------
    MemberError
        If there is no array of that name; lists those that exist.
    ValueError
        If the choice is ambiguous, or AnnData has no X.

    Examples
    --------
    >>> choose_member("a.h5ad", None, {"X": (9, 4), "obsm/X_pca": (9, 2), "obs/_index": (9,)}, anndata=True)
    'X'
    """
    sparse = sparse_members(shapes)
    if member is not None:
        member = member.strip("/")
        if member not in shapes and member not in sparse:
            raise MemberError(
                f"{path} has no array {brief(repr(member))}; it holds {_listed(shapes)}. Name one of them with member=."
            )
        return member
    if anndata:
        if "X" not in shapes and "X" not in sparse:
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
    return wanted[0]


def sparse_members(shapes: Shapes) -> list[str]:
    """List the groups that are compressed sparse matrices; "" for the file itself."""
    ends = [name.removesuffix("indptr") for name in shapes if name == "indptr" or name.endswith("/indptr")]
    return [end.rstrip("/") for end in ends if all(f"{end}{part}" in shapes for part in SPARSE_PARTS)]


def _listed(shapes: Shapes) -> str:
    """List what is there: sparse matrices, then arrays, matrices first."""
    sparse = sparse_members(shapes)
    parts = {f"{name}/{part}".lstrip("/") for name in sparse for part in SPARSE_PARTS}
    arrays = sorted((name for name in shapes if name not in parts), key=lambda name: len(shapes[name]) < 2)
    found = [f"{brief(name)} (sparse)".lstrip() for name in sparse]
    found += [f"{brief(name)} {brief(shapes[name])}" for name in arrays]
    return (
        shorten(", ".join(found[:MAX_LISTED]), MAX_MESSAGE // 4) + (", ..." if len(found) > MAX_LISTED else "")
        or "nothing"
    )
