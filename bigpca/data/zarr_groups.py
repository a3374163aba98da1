"""Selection of an array, or of a sparse matrix, from a Zarr group."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bigpca.data.bfloat16 import BFLOAT16, as_integers
from bigpca.data.checks import MemberError
from bigpca.data.containers import is_zarr_array
from bigpca.data.members import SPARSE_PARTS, choose_member
from bigpca.data.row_source import RowSource
from bigpca.data.sparse_groups import SparseGroup
from bigpca.data.storages import ZarrRows
from bigpca.data.urls import public, without_credentials
from bigpca.data.zarr_metadata import naming_damage
from bigpca.data.zarr_reader import DOCUMENTS, ZarrReader
from bigpca.errors import brief
from bigpca.storage.regular import read_document
from bigpca.storage.stores import kind_of

if TYPE_CHECKING:
    import zarr

GROUP_DOCUMENTS = ("zarr.json", ".zgroup")


def is_zarr_directory(path: str) -> bool:
    """Whether a directory is a Zarr array or group."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (*DOCUMENTS, *GROUP_DOCUMENTS))


def arrays_of(group: zarr.Group) -> Iterator[tuple[str, zarr.Array[Any]]]:
    """Iterate over (path below the group, array) of all arrays, including nested groups."""
    skip = len(group.path) + 1 if group.path else 0
    for _, node in group.members(max_depth=None):
        if is_zarr_array(node):
            yield node.path[skip:], node


def group_source(group: zarr.Group, member: str | None, reader: Callable[[zarr.Array[Any]], ZarrReader]) -> RowSource:
    """Return the rows of a member of a group: an array, or a sparse matrix of three arrays.

    Parameters
    ----------
    member : str or None
        None for X of AnnData, or the only matrix.
    reader : callable
        Opens one of the arrays.

    Raises
    ------
    MemberError
        If it has no array of that name; lists those that exist.
    ValueError
        If the choice is ambiguous.
    """
    arrays = dict(arrays_of(group))
    shapes = {name: array.shape for name, array in arrays.items()}
    if member is None and isinstance(made := group.attrs.get("bigpca"), dict):
        path = public(str(group.store_path)).removeprefix("file://")
        raise ValueError(
            f"{path} is a saved model ({brief(made.get('kind'))}); rows of features were expected. Open the data or "
            "the scores; bigpca.load reads the model, and member= opens one of its arrays."
        )
    anndata = group.attrs.get("encoding-type") == "anndata"
    chosen = choose_member(public(str(group.store_path)), member, shapes, anndata=anndata)
    if chosen in arrays:
        return array_source(reader(arrays[chosen]))
    inside = f"{chosen}/" if chosen else ""
    parts = {name: ZarrRows(reader(arrays[inside + name])) for name in SPARSE_PARTS}
    shape = ZarrRows(reader(arrays[f"{inside}shape"])) if f"{inside}shape" in arrays else None
    node: Any = group[chosen] if chosen else group
    store = public(parts["data"].reader.store)
    matrix = SparseGroup.of(store, node.path, dict(node.attrs), shape, set(node))
    return RowSource("zarr", store, node.path, matrix.rows(parts))


def array_source(reader: ZarrReader) -> RowSource:
    """Return the rows of one array."""
    return RowSource("zarr", public(reader.store), reader.path_in_group, ZarrRows(reader))


def zarr_source(path: str, member: str | None, missing_chunks: str) -> RowSource:
    """Return the rows at a local path or URL, or of a member of the group there."""
    import zarr  # slow to import, so only when the first store is opened

    from bigpca.storage.regular_store import RegularStore

    remote = kind_of(path) != "disk"
    if member is not None and not remote and is_array_directory(os.path.join(path, member.strip("/"))):
        return array_source(ZarrReader(path, member, missing_chunks))
    if not remote and is_array_directory(path):
        _reject_member(path, member)
        return array_source(ZarrReader(path, "", missing_chunks))
    if remote:
        try:
            with without_credentials(path):
                node = zarr.open(path, mode="r")
        except ValueError as error:
            if BFLOAT16 not in str(error):
                raise
            raise TypeError(
                f"{public(path)} holds bfloat16, which Zarr cannot open at a URL. Copy the store to a local folder, "
                "from which it is read, or store float32."
            ) from error
        if is_zarr_array(node):
            _reject_member(path, member)
            return array_source(ZarrReader(path, "", missing_chunks))
        return group_source(node, member, lambda array: ZarrReader(path, array.path, missing_chunks))
    with naming_damage(path):
        group = zarr.open_group(RegularStore(path, rewritten=as_integers), mode="r")
        return group_source(group, member, lambda array: ZarrReader(path, array.path, missing_chunks))


def _reject_member(path: str, member: str | None) -> None:
    if member is not None:
        raise MemberError(f"{public(path)} is one Zarr array, so it has no member {member!r}. Leave member out.")


def is_array_directory(path: str) -> bool:
    """Whether a directory is a Zarr array."""
    if os.path.isfile(os.path.join(path, ".zarray")):
        return True
    document = os.path.join(path, "zarr.json")
    if not os.path.isfile(document):
        return False
    return bool(read_document(document).get("node_type") == "array")
