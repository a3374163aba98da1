"""A file of labels beside the rows of a store: which columns are what, joined by key where the rows have keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.keys import stored_keys
from bigpca.data.label_files import column_names, read_label_file, split_column
from bigpca.data.label_joins import join_labels, keys_listed
from bigpca.errors import brief

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pgm", ".ppm")
MAX_COLUMNS = 64  # that are searched for keys and pictures; of more, those that have a name of keys
KEY_NAMES = ("key", "id", "name", "filename", "file", "path")


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Columns of a file of labels, in the order of the rows; None for a column that it has not.

    Attributes
    ----------
    labels, keys, pictures : ndarray of shape (n,), object, or None
        Classes or values; names of the rows; paths of their images. None in the gaps.
    how : str
        How lines and rows were joined.
    by_key : bool
    """

    labels: NDArray[Any] | None
    keys: NDArray[Any] | None
    pictures: NDArray[Any] | None
    how: str
    by_key: bool = False


def label_table(source: str | os.PathLike[str], row_keys: NDArray[np.str_] | None, n: int) -> LabelTable:
    """Read a file of labels for n rows, and join it by key where a column of it holds the keys of the rows.

    Parameters
    ----------
    source : path such as "labels.csv" or "labels.csv::class"
        In a table of several columns (CSV, Parquet, records in ``.npy``, a Zarr group), one of paths of images is
        recognised by their suffixes, and one of keys by the keys of the rows, or else by its name: key, id, name,
        filename, file or path. A Zarr array has the keys that are stored beside it.
    row_keys : ndarray of shape (n,), str, or None
    n : int

    Raises
    ------
    ValueError
        For keys with two labels, for labels none of which belongs to a row, and, without keys, for another number of
        labels than rows.
    FileNotFoundError, MemberError
        If there is no such file, or a column must be named.
    """
    text = os.fspath(source)
    path, column = split_column(text)
    names = column_names(path)
    searched = [name for name in names if len(names) <= MAX_COLUMNS or name == column or name.lower() in KEY_NAMES]
    read = {name: read_label_file(f"{path}::{name}") for name in searched} if len(names) > 1 else {}
    others = {name: values for name, values in read.items() if name != column}
    pictures = next((name for name, values in others.items() if _holds_pictures(values)), "")
    keys = key_column(others, row_keys) or pictures
    left = [name for name in names if name not in (keys, pictures)]
    label = column or (left[0] if len(left) == 1 else "")
    labels = read.get(label)
    if labels is None and (left or not read):
        labels = read_label_file(text)  # which names the columns in its error, where there are several
    own = read.get(keys) if names else stored_keys(path)
    return _joined(LabelTable(labels, own, read.get(pictures), os.path.basename(path)), keys or "key", row_keys, n)


def key_column(columns: Mapping[str, NDArray[Any]], row_keys: NDArray[np.str_] | None = None) -> str:
    """Return the column that holds at least half of the keys of the rows, or else the first with a name of keys; or "".

    >>> key_column({"class": np.array(["a", "b"]), "photo": np.array(["y", "x"])}, np.array(["x", "y"]))
    'photo'
    """
    if row_keys is not None:
        for name, values in columns.items():
            if np.isin(row_keys, _texts(values)).mean() >= 0.5:
                return name
    return next((name for name in columns if name.lower() in KEY_NAMES), "")


def rows_joined(joined: NDArray[Any], keys: Any, row_keys: NDArray[np.str_], column: str, path: str) -> str:
    """Return how many rows found a label by key, and which entries belong to no row, in words."""
    without = np.array([label is None for label in joined], dtype=bool)
    texts = _texts(np.asarray(keys))
    spare = texts[~np.isin(texts, row_keys)]
    text = f"{len(joined) - without.sum():,}, joined by the key {column}"
    if without.any():
        text += f"; {without.sum():,} rows have none, such as {brief(repr(str(row_keys[without.argmax()])))}"
    return text + (f"; {len(spare):,} of {path} belong to no row: {keys_listed(spare)}" if len(spare) else "")


def _joined(table: LabelTable, key: str, row_keys: NDArray[np.str_] | None, n: int) -> LabelTable:
    """Return the columns of a file in the order of n rows."""
    file, columns = table.how, (table.labels, table.pictures)
    if row_keys is None or table.keys is None:
        why = ""
        if row_keys is not None:
            why = f" (no column of {file} holds the keys of the rows, such as {brief(row_keys[0])})"
        for values in columns:
            if values is not None and len(values) != n:
                raise ValueError(
                    f"there are {len(values)} labels in {file} for {n} rows{why}; one for each row was expected, in "
                    "the order of the rows, or a column of the keys that are stored with the scores."
                )
        how = f"labels are those of {file}, joined by position: its first line after the header is row 0{why}"
        return replace(table, how=how)
    labels, pictures = (
        None if values is None else join_labels(values, table.keys, row_keys, absent=None) for values in columns
    )
    shown = labels if labels is not None else pictures
    how = "" if shown is None else f"labels: {rows_joined(shown, table.keys, row_keys, key, file)}"
    return LabelTable(labels, row_keys.astype(object), pictures, how, by_key=True)


def _texts(values: NDArray[Any]) -> NDArray[np.str_]:
    return values.astype(object).astype(np.str_)  # NumPy does not convert its strings of variable length directly


def _holds_pictures(values: NDArray[Any]) -> bool:
    texts = [text for text in values.tolist() if text is not None]
    return bool(texts) and all(isinstance(text, str) and text.lower().endswith(PICTURE_SUFFIXES) for text in texts)
