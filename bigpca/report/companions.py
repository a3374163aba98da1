"""What is known of rows beside their scores: classes, keys, pictures; from arrays, or columns of a file of labels."""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bigpca.data.label_files import column_names, read_label_file
from bigpca.data.label_values import label_values
from bigpca.errors import brief
from bigpca.storage.regular import read_regular

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pgm", ".ppm")
KEY_NAMES = ("key", "id", "name", "filename", "file", "path")
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


def companions(labels: Any = None, *, keys: Any = None, pictures: Any = None, n: int) -> Companions:
    """Return what is known of n rows.

    Parameters
    ----------
    labels : array-like of shape (n,), or path of a file of labels such as "labels.csv" or "labels.csv::class"
        In the order of the rows. In a CSV file with several columns, one of paths of images is recognised by its
        suffixes, and one of keys by its name.
    keys, pictures : array-like of shape (n,), optional
        Names of the rows; paths of their images, beside or below the working directory.
    n : int

    Raises
    ------
    ValueError
        For another number of labels, keys or pictures than n.
    FileNotFoundError, MemberError
        If there is no such file, or a column must be named.
    """
    found: dict[str, Any] = {"keys": keys, "pictures": pictures}
    folder, source = Path.cwd(), ""
    if isinstance(labels, str | os.PathLike):
        text = os.fspath(labels)
        path, _, column = text.partition("::")
        folder = Path(path).resolve().parent
        columns = _columns(path, column)
        labels = read_label_file(columns.labels) if columns.labels else None
        for name, where in (("keys", columns.keys), ("pictures", columns.pictures)):
            if found[name] is None and where:
                found[name] = read_label_file(where)
        name = os.path.basename(path)
        source = f"labels are those of {name}, joined by position: its first line after the header is row 0"
    values = None if labels is None else _texts(labels, "labels", n)
    named = {name: None if one is None else _texts(one, name, n) for name, one in found.items()}
    return Companions(values, named["keys"], named["pictures"], folder, source)


@dataclass(frozen=True)
class _Columns:
    labels: str
    keys: str
    pictures: str


def _columns(path: str, column: str) -> _Columns:
    """Return the columns of a table, as "path::name": that of labels is named, or the only one that is left."""
    names = column_names(path)
    if len(names) < 2:
        return _Columns(path if not column else f"{path}::{column}", "", "")
    pictures = next((name for name in names if name != column and _holds_pictures(f"{path}::{name}")), "")
    keys = next((name for name in names if name.lower() in KEY_NAMES and name not in (column, pictures)), pictures)
    left = [name for name in names if name not in (keys, pictures)]
    labels = column or (left[0] if len(left) == 1 else "")
    return _Columns(
        f"{path}::{labels}" if labels or not left else path,  # of several, the reader names them in its error
        f"{path}::{keys}" if keys else "",
        f"{path}::{pictures}" if pictures else "",
    )


def _holds_pictures(where: str) -> bool:
    values = [text for text in read_label_file(where).tolist() if text is not None]
    return bool(values) and all(isinstance(text, str) and text.lower().endswith(PICTURE_SUFFIXES) for text in values)


def _texts(values: Any, name: str, n: int) -> NDArray[Any]:
    """Return n values as an array of objects, None where there is none."""
    given, gaps = label_values(values)
    if len(given) != n or given.ndim != 1:
        raise ValueError(
            f"there are {len(given)} {name} for {n} rows; one for each row was expected, in the order of the rows."
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
    from PIL import Image

    real = (folder / path).resolve()
    if not real.is_relative_to(folder.resolve()):
        raise ValueError(f"{brief(path)} is not below {folder}.")
    with Image.open(io.BytesIO(read_regular(real, MAX_PICTURE_BYTES))) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{brief(path)} has {image.width} x {image.height} pixels; {MAX_PIXELS:,} are read.")
        image.draft("RGB", (2 * THUMBNAIL, 2 * THUMBNAIL))
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
