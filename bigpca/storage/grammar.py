"""What may be at the path of an output: its kind, and the keys below it that bigpca writes.

bigpca deletes only what this grammar names, whatever a listing shows: metadata of the output and of the members that it
declares, chunks by their numbers (any numbers: a longer output that was replaced had more, and stale chunks must not
become data), and its own records. All other keys belong to others. They stop a replacement before it deletes anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from pathlib import PurePath
from typing import Any, Literal

from bigpca.errors import OutputExistsError, counted

Kind = Literal["array", "model", "table"]
REPLACED = {"array": "rows or scores that bigpca wrote", "model": "models that bigpca wrote", "table": "files"}
ROOT = "zarr.json"
ROOTS = {"array": ROOT, "model": ROOT, "table": ""}  # the key whose creation makes an output visible
CONTROL = ".bigpca"  # below an output, what it needs while it is unfinished; invisible to readers of arrays
PROBE = f"{CONTROL}/probe-"  # an empty object that shows what a store does about conditions
NEXT = f"{CONTROL}/next-"  # and the mark of a run: a whole model, before it replaces the one that is visible
JOURNAL = f"{CONTROL}-"  # and 32 digits of the run's identity: the same, on a disk
PUBLISHED = "published"  # beside the chunks of a table on a disk: which file it becomes
KEYS = "keys"  # a Zarr array of strings
PROVENANCE = "provenance"  # a Zarr group without arrays, whose attributes it is
MEMBERS = (KEYS, PROVENANCE)  # of rows and scores
# The first bytes of the files that are written, by extension, in lower case.
BEGINS = {".npy": b"\x93numpy", ".parquet": b"par1", ".npz": b"pk", ".onnx": b"\x08", ".png": b"\x89png"}
BEGINS |= {".html": b"<!doctype html", ".htm": b"<!doctype html", ".svg": b"<?xml", ".pdf": b"%pdf"}
_NODE = r"(zarr\.json|c((/\d+)*|(\.\d+)*)|(c/(\d+/)*\d+|zarr)\.[0-9a-f]{32}\.partial)"  # the last ones: files of Zarr
_RECORD = rf"{re.escape(CONTROL)}(-[0-9a-f]{{32}})?/.+|\.zarr\.json\.[0-9a-f]{{32}}\.tmp|{PUBLISHED}"


def sort_keys(keys: Iterable[str], members: Collection[str] = MEMBERS) -> tuple[list[str], list[str]]:
    """Return the keys below an output that bigpca writes there, and those of others.

    Examples
    --------
    >>> sort_keys(["c/0/0", "c/notes", "keys/c/1", "labels.csv", "rows.zarr/c/0/0", "zarr.json"])
    (['c/0/0', 'keys/c/1', 'zarr.json'], ['c/notes', 'labels.csv', 'rows.zarr/c/0/0'])
    """
    named = "|".join(re.escape(member) for member in members if member.isidentifier())
    own = re.compile(rf"|{_NODE}|{_RECORD}|({named})/{_NODE}")  # a table has the key ""
    found: tuple[list[str], list[str]] = [], []
    for key in keys:
        found[own.fullmatch(key) is None].append(key)
    return found


def waiting(keys: Iterable[str]) -> list[str]:
    """Return the prefixes below an output at which a whole model waits until the one that it replaces is deleted.

    Examples
    --------
    >>> waiting([".bigpca/claim", ".bigpca/next-0f3a/mean/zarr.json", ".bigpca/next-0f3a/zarr.json"])
    ['.bigpca/next-0f3a/']
    """
    found = (re.fullmatch(rf"({re.escape(NEXT)}[^/]+/){re.escape(ROOT)}", key) for key in keys)
    return [one[1] for one in found if one]


def declared(document: Any) -> tuple[Kind, tuple[str, ...]] | None:
    """Return the kind of output whose metadata a document is, and the names of its members; None for all others."""
    try:
        kind, node = document["attributes"]["bigpca"]["kind"], document["node_type"]
        if kind in ("array", "partial array") and node == "array":
            return "array", MEMBERS
        return (
            ("model", (*map(str, document["attributes"]["bigpca"]["arrays"]), PROVENANCE)) if node == "group" else None
        )
    except (LookupError, TypeError):
        return None


def check_replaced(
    where: str, what: Callable[[], str], keys: Collection[str], kind: Kind, found: tuple[Kind, tuple[str, ...]] | None
) -> tuple[str, ...]:
    """Check that an output of a kind may replace what is at a path or URL; return the names of its members.

    Parameters
    ----------
    where, what : str, callable that returns a str
        For messages: the path or URL, and what is there.
    keys : collection of str
        All that is below it.
    found : the kind and members that it declares, or None.

    Raises
    ------
    OutputExistsError
        If it is an output of another kind, or none, or has keys of others.
    """
    if found is None or found[0] != kind:
        raise OutputExistsError(
            f"{where} is {what()}, and overwriting replaces only {REPLACED[kind]}. Choose another path, or remove it "
            "yourself."
        )
    _, others = sort_keys(keys, found[1])
    if kind == "model":
        others += [key for key in keys if key.startswith(("c/", "c."))]  # a group has no chunks of its own
    if others:
        raise OutputExistsError(
            f"{where} holds {counted(len(others), 'file')} that bigpca did not write, such as {others[0]}. Overwriting "
            "deletes only what bigpca wrote, so nothing was changed. Move such files elsewhere, or choose another path."
        )
    return found[1]


def check_begins(where: object, head: bytes) -> None:
    """Check that a file, or an object, whose first bytes are given is one of its extension, or empty.

    The target of a link may have another extension than those that are written.

    Raises
    ------
    OutputExistsError
    """
    suffix = PurePath(str(where)).suffix.lower()
    if head and not head.lstrip().lower().startswith(BEGINS.get(suffix, tuple(BEGINS.values()))):
        named = f"{suffix} file" if suffix in BEGINS else "file of bigpca"
        raise OutputExistsError(
            f"{where} begins with {head[:8]!r}, as no {named} does, and overwriting replaces only such files. "
            "Choose another path, or remove it yourself."
        )


def described(document: dict[str, Any]) -> str:
    """Describe an array or group by its metadata."""
    if document["node_type"] == "group":
        kind = document.get("attributes", {}).get("bigpca", {}).get("kind")
        return "a Zarr group" if kind is None else f"a bigpca {kind} model"
    return f"a Zarr array {tuple(document['shape'])} {document['data_type']}"


def there(where: object, what: str, instead: str = "") -> OutputExistsError:
    """Return the error for an output that exists; ``instead`` is what else can be done."""
    return OutputExistsError(
        f"{where} exists already ({what}). Choose another path, or replace it with overwrite=True (--overwrite on the "
        f"command line).{instead}"
    )
