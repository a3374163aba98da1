"""What is known of rows beside their scores: classes, keys, pictures; from arrays, or columns of a file of labels."""

from __future__ import annotations

import base64
import io
import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.alignment import aligned, keys_of_rows
from bigpca.data.label_joins import Keys
from bigpca.data.label_values import label_values
from bigpca.errors import brief
from bigpca.storage.regular import read_regular

THUMBNAIL = 72  # pixels of the longer side
MAX_PICTURE_BYTES = 32 * 2**20
MAX_PIXELS = 64 * 10**6


@dataclass(frozen=True, eq=False)
class Companions:
    """What the rows are, in their order; None for what is not known.

    Attributes
    ----------
    labels : ndarray of shape (n,), or None
        Classes or values; None for rows without one.
    keys : ndarray of shape (n,), str, or None
    pictures : ndarray of shape (n,), str, or None
        Paths of image files, relative to ``folder``.
    folder : Path
    source : str
        How labels and rows were joined, in words.
    """

    labels: NDArray[Any] | None = None
    keys: NDArray[Any] | None = None
    pictures: NDArray[Any] | None = None
    folder: Path = Path()
    source: str = ""

    def name(self, row: int) -> str:
        """Return the key of a row, or its number."""
        key = None if self.keys is None else self.keys[row]
        return f"row {row:,}" if key in (None, "") else brief(key, 80)

    def label(self, row: int) -> str:
        """Return the label of a row, or ""."""
        label = None if self.labels is None else self.labels[row]
        return "" if label is None or label != label else brief(label, 40)

    def picture(self, row: int) -> str:
        """Return the picture of a row as a small data URI, or "" where there is none that can be read."""
        path = None if self.pictures is None else self.pictures[row]
        if not path:
            return ""
        try:
            return thumbnail(self.folder, str(path))
        except (OSError, ValueError, SyntaxError):  # Pillow raises all three for broken files
            return ""


def companions(labels: Any = None, *, keys: Any = None, pictures: Any = None, scores: Any = None, n: int) -> Companions:
    """Return what is known of n rows.

    Parameters
    ----------
    labels : array-like of shape (n,), or path of a file of labels such as "labels.csv" or "labels.csv::class"
        Joined to scores that have keys, or to ``keys``, as :func:`bigpca.data.alignment.aligned` does.
    keys, pictures : array-like of shape (n,), optional
        Names of the rows, or False for labels in their order; paths of their images, beside or below the working
        directory.
    scores : path or array, optional
        The scores of the rows, whose keys name the rows.
    n : int

    Raises
    ------
    ValueError
        For labels that cannot be joined, and another number of labels, keys or pictures than n.
    FileNotFoundError, MemberError
        If there is no such file, or a column must be named.
    """
    given = keys is None or keys is False
    rows = keys_of_rows(scores) if given else Keys(_texts(keys, "keys", n).astype(np.str_))
    found = aligned(labels, rows, False if keys is False else None, absent=None, pictures=True)
    names, folder = None if rows.loose else rows.of_rows, Path.cwd()
    source = "" if labels is None else f"labels: {found.how or 'in the order of the rows, as they were given'}"
    if found.table is not None:
        folder = Path(found.table.path).resolve().parent
        names = found.table.keys if names is None else names
        pictures = found.taken(found.table.pictures) if pictures is None else pictures
    labels, keys, pictures = (
        None if one is None else _texts(one, name, n)
        for one, name in ((found.values, "labels"), (names, "keys"), (pictures, "pictures"))
    )
    return Companions(labels, keys, pictures, folder, source)


def _texts(values: Any, name: str, n: int) -> NDArray[Any]:
    """Return n values as an array of objects, None where there is none."""
    given, gaps = label_values(values)
    if len(given) != n or given.ndim != 1:
        columns = "" if given.ndim == 1 else f" in {given.shape[1]} columns"
        raise ValueError(
            f"there are {len(given)} {name}{columns} for {n} rows; one for each was expected, in the order of the rows."
        )
    objects = given.astype(object)
    objects[gaps] = None
    return objects


def thumbnail(folder: Path, path: str) -> str:
    """Return an image file beside or below a folder as a data URI of at most 72 pixels.

    Raises
    ------
    ValueError
        For a path that leads elsewhere, and for pictures of more than 64 million pixels.
    OSError
        If the file cannot be read or is no picture.
    """
    real = (folder / path).resolve()
    if not real.is_relative_to(folder.resolve()):
        raise ValueError(f"{brief(path)} is not below {folder}.")
    found = os.stat(real)
    return _thumbnail(real, brief(path), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=256)
def _thumbnail(real: Path, name: str, size: int, changed: int) -> str:
    """Return a file in one state as a data URI: rows may share a picture, and a large one takes a second to decode."""
    from PIL import Image

    with ExitStack() as opened:
        content = io.BytesIO(read_regular(real, MAX_PICTURE_BYTES))
        try:
            image = opened.enter_context(Image.open(content))
        except Image.DecompressionBombError as error:  # of the header: nothing was decoded
            raise ValueError(f"{name} states more pixels than are read: {brief(error)}.") from error
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{name} has {image.width} x {image.height} pixels; {MAX_PIXELS:,} are read.")
        image.draft("RGB", (2 * THUMBNAIL, 2 * THUMBNAIL))
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
