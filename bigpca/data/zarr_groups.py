"""Selection of an array from a Zarr group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bigpca.data.checks import MemberError
from bigpca.data.containers import is_zarr_array
from bigpca.data.members import choose_member
from bigpca.data.urls import public, without_credentials
from bigpca.data.zarr_metadata import naming_damage
from bigpca.data.zarr_reader import DOCUMENTS, ZarrReader
from bigpca.errors import brief
from bigpca.storage.regular import read_document

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


def group_member(group: zarr.Group, member: str | None) -> zarr.Array[Any]:
    """Return the named array of a group; else X of AnnData, or the only one with two dimensions or more.

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
    return arrays[choose_member(public(str(group.store_path)), member, shapes, anndata=anndata)]


def zarr_at(path: str, member: str | None, missing_chunks: str) -> ZarrReader:
    """Open the array at a local path or URL, or the member of the group there."""
    import zarr  # slow to import, so only when the first store is opened

    from bigpca.storage.regular_store import RegularStore

    if member is not None and "://" not in path and is_array_directory(os.path.join(path, member.strip("/"))):
        return ZarrReader(path, member, missing_chunks)
    if "://" not in path and is_array_directory(path):
        _reject_member(path, member)
        return ZarrReader(path, "", missing_chunks)
    if "://" in path:
        with without_credentials(path):
            node = zarr.open(path, mode="r")
        if is_zarr_array(node):
            _reject_member(path, member)
            return ZarrReader(path, "", missing_chunks)
        chosen = group_member(node, member)
        return ZarrReader(path, chosen.path, missing_chunks)
    with naming_damage(path):
        chosen = group_member(zarr.open_group(RegularStore(path), mode="r"), member)
    return ZarrReader(path, chosen.path, missing_chunks)


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
