"""A file of labels beside the rows of a store: which columns are labels, keys and pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.keys import stored_keys
from bigpca.data.label_files import column_names, read_label_file, split_column

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pgm", ".ppm")
MAX_COLUMNS = 64  # that are searched for keys and pictures; of more, those that have a name of keys
KEY_NAMES = ("key", "id", "name", "filename", "file", "path")


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Columns of a file of labels, in the order of its lines.

    Attributes
    ----------
    path : str
    labels, keys : ndarray of shape (m,), object, or None
        Classes or values; names of the rows. None in the gaps.
    key : str
        Name of the column of keys; "key" of keys that lie beside an array.
    searched : tuple of str
        Other columns.
    read : callable
        Returns a column by name.
    """

    path: str
    labels: NDArray[Any] | None
    keys: NDArray[Any] | None
    key: str
    searched: tuple[str, ...]
    read: Callable[[str], NDArray[Any]]

    @property
    def pictures(self) -> NDArray[Any] | None:
        """Paths of images, of shape (m,), object: the first column of which all have suffixes of such; or None."""
        return next((values for values in map(self.read, self.searched) if _holds_pictures(values)), None)


def read_table(
    source: str | os.PathLike[str], row_keys: NDArray[np.str_] | None = None, *, keys: Any = None, word: str = "label"
) -> LabelTable:
    """Read a file of labels, and find which of its columns holds keys.

    Parameters
    ----------
    source : path such as "labels.csv" or "labels.csv::class"
        Of a table of several columns (CSV, Parquet, records in ``.npy``, a Zarr group), see :func:`key_column`. A Zarr
        array has the keys that are stored beside it. The labels of a table of two more columns must be named, if these
        are not keys or pictures.
    row_keys : ndarray of shape (n,), str, or None
    keys : path such as "labels.csv::name", where the column of keys is known; others are ignored
    word : what is read, for messages

    Raises
    ------
    FileNotFoundError, MemberError
        If there is no such file, or a column must be named.
    """
    text = os.fspath(source)
    path, column = split_column(text)
    names = column_names(path)
    read = cache(lambda name: read_label_file(f"{path}::{name}", word))
    searched = [
        name for name in names
        if name != column and len(names) > 1 and (len(names) <= MAX_COLUMNS or name.lower() in KEY_NAMES)
    ]  # fmt: skip
    of, key = split_column(keys) if isinstance(keys, str) else ("", None)
    key = key if key and of == path else key_column(searched, read, row_keys)
    left = [name for name in names if name != key]
    if column is None and len(left) > 1:
        left = [name for name in left if not _holds_pictures(read(name))]
    named = column or (left[0] if len(left) == 1 and len(names) > 1 else "")
    labels = None
    if named or left or not names:
        labels = read(named) if named else read_label_file(text, word)  # which names the columns, if there are several
    own = read(key) if key else stored_keys(path) if not names else None
    return LabelTable(path, labels, own, key or "key", tuple(searched), read)


def key_column(
    names: Sequence[str], read: Callable[[str], NDArray[Any]], row_keys: NDArray[np.str_] | None = None
) -> str:
    """Return the column that holds the keys of rows, or "".

    Beside rows with keys, that is the first one which holds at least half of them; or else the first with a name of
    keys (key, id, name, filename, file or path); or else, beside rows with keys, the first of paths of images, or of
    which all texts differ.

    >>> columns = {"class": np.array(["a", "b"]), "photo": np.array(["y", "x"])}
    >>> key_column(list(columns), columns.get, np.array(["x", "y"]))
    'photo'
    """
    likely = sorted(names, key=lambda name: name.lower() not in KEY_NAMES)
    if row_keys is not None:
        for name in likely:
            if np.isin(row_keys, _texts(read(name))).mean() >= 0.5:
                return name
    if row_keys is None or (likely and likely[0].lower() in KEY_NAMES):
        return next((name for name in likely if name.lower() in KEY_NAMES), "")
    return next((name for test in (_holds_pictures, _all_differ) for name in names if test(read(name))), "")


def _all_differ(values: NDArray[Any]) -> bool:
    texts = values.tolist()
    return all(isinstance(text, str) for text in texts) and len(set(texts)) == len(texts) > 1


def _texts(values: NDArray[Any]) -> NDArray[np.str_]:
    return values.astype(object).astype(np.str_)  # NumPy does not convert its strings of variable length directly


def _holds_pictures(values: NDArray[Any]) -> bool:
    texts = [text for text in values.tolist() if text is not None]
    return bool(texts) and all(isinstance(text, str) and text.lower().endswith(PICTURE_SUFFIXES) for text in texts)
