"""Which matrix a group of arrays says it is: AnnData, 10x Genomics and ``scipy.sparse.save_npz`` write sparse ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigpca.data.conventions import check_decoded
from bigpca.data.members import SPARSE_PARTS
from bigpca.data.sparse_rows import CsrRows, values_of
from bigpca.data.storages import Storage
from bigpca.errors import brief

MAX_SHAPE = 8  # numbers of an array "shape" that are read: a damaged one may be of any size
BY_SCIPY = "scipy.sparse.save_npz('rows.npz', scipy.sparse.load_npz({!r}).tocsr())"


@dataclass(frozen=True)
class SparseGroup:
    """What a group says of its sparse matrix, beside the three arrays.

    Attributes
    ----------
    path, name : str
        File or store, and the group in it; the name is empty for the file itself.
    form : str
        Format, such as "csr" or "csc"; empty if it is not stated.
    shape : tuple of int, or None
        None if it is not stated.
    by_columns : bool
        Whether samples are the columns of that shape. Files of 10x Genomics are (genes, cells), compressed by cell.
    """

    path: str
    name: str
    form: str
    shape: tuple[int, ...] | None
    by_columns: bool = False

    @classmethod
    def of(
        cls, path: str, name: str, stated: Mapping[str, Any], shape: Storage | None, members: Collection[str]
    ) -> SparseGroup:
        """Describe a group by its attributes, its array "shape" if it has one, and the names of its members."""
        form = _text(stated.get("encoding-type", stated.get("h5sparse_format", "")))
        sizes = np.asarray(stated.get("shape", stated.get("h5sparse_shape", ()))).ravel()
        if shape is not None and not sizes.size and len(shape.array_shape) == 1:
            sizes = values_of(shape, 0, min(shape.array_shape[0], MAX_SHAPE))
        form = form.removesuffix("_matrix").removesuffix("_array")
        known = tuple(map(int, sizes)) if sizes.dtype.kind in "iu" else None
        return cls(path, name, form, known, "barcodes" in members)

    @property
    def label(self) -> str:
        """Location of the matrix, for messages."""
        return f"{self.path}:{self.name}" if self.name else self.path

    def rows(self, parts: Mapping[str, Storage]) -> CsrRows:
        """Return the rows of the three arrays of the group; reads the last number of ``indptr``.

        Raises
        ------
        TypeError
            For compressed columns and other formats, and for places that are not integers.
        ValueError
            If the arrays do not fit the shape, or one another.
        """
        if self.form not in ("", "csr"):
            self._reject_format()
        lost = [name for name in SPARSE_PARTS if name not in parts]
        if lost:
            raise ValueError(
                f"{self.label} is sparse without {' and '.join(lost)}; {', '.join(SPARSE_PARTS)} were expected. "
                "It was not written completely: write the matrix again."
            )
        for name in SPARSE_PARTS:
            shape, dtype = parts[name].array_shape, parts[name].dtype
            if len(shape) != 1:
                raise ValueError(f"{self.label}: {name} has shape {brief(shape)}; one dimension was expected.")
            if name != "data" and dtype.kind not in "iu":
                raise TypeError(
                    f"{self.label}: {name} has dtype {dtype}; integers were expected, because they are places. The "
                    "matrix is damaged or was not written by SciPy or AnnData: write it again."
                )
        held, places, starts = (parts[name].array_shape[0] for name in SPARSE_PARTS)
        n, d = self._shape(starts)
        if held != places:
            raise ValueError(
                f"{self.label} has {held:,} values in data, but {places:,} columns in indices; equally many were "
                "expected. It was not written completely: write it again."
            )
        attributes: Mapping[str, Any] = getattr(parts["data"], "attributes", {})
        check_decoded(attributes, f"{self.label}/data", "Decode the values, and write them as a sparse matrix again")
        last = int(values_of(parts["indptr"], n, n + 1)[0])
        if not 0 <= last <= held:
            raise ValueError(
                f"{self.label}: indptr ends at {last:,}, but there are {held:,} stored values. It is damaged or was "
                "not written completely: write the matrix again."
            )
        return CsrRows(self.label, (n, d), parts["data"], parts["indices"], parts["indptr"], last)

    def _shape(self, starts: int) -> tuple[int, int]:
        """Return (n, d), which ``indptr`` of so many numbers must fit."""
        if self.shape is None or len(self.shape) != 2 or min(self.shape) < 0:
            raise ValueError(
                f"{self.label} has the arrays of a sparse matrix, but its shape is "
                f"{'not stated' if self.shape is None else brief(self.shape)}; two sizes were "
                'expected, as an attribute "shape". Write it again with AnnData, or with scipy.sparse.save_npz.'
            )
        n, d = self.shape[::-1] if self.by_columns else self.shape
        if not self.form and starts == d + 1 != n + 1:
            self._reject_format()
        if not self.form and not self.by_columns and n == d:
            raise ValueError(
                f"{self.label} is a sparse matrix of shape {n:,} x {d:,}, and nothing says whether it is compressed by "
                'row or by column. Set the attribute "encoding-type" of the group to "csr_matrix" if it is by row.'
            )
        if starts != n + 1:
            raise ValueError(
                f"{self.label} has the shape {n:,} x {d:,}, so indptr must have {n + 1:,} numbers, but it has "
                f"{starts:,}. It is damaged or was not written completely: write the matrix again."
            )
        return n, d

    def _reject_format(self) -> None:
        form = self.form or "csc"
        why = "in compressed columns (csc), of which no row can be read without reading all" if form == "csc" else ""
        convert = BY_SCIPY.format(self.path) if self.path.endswith(".npz") else _by_anndata(self.path, self.name)
        raise TypeError(
            f"{self.label} is a sparse matrix of shape {brief(self.shape)} {why or f'in the format {brief(form)}'}; "
            f"compressed rows (csr) were expected. Write it again by row: {convert}."
        )


def _by_anndata(path: str, name: str) -> str:
    """Return the lines that write a matrix of AnnData again by row."""
    kind = "zarr" if path.endswith(".zarr") else "h5ad"
    matrix = f"adata.layers[{name.removeprefix('layers/')!r}]" if name.startswith("layers/") else "adata.X"
    read, write = f"adata = anndata.read_{kind}({path!r})", f"adata.write_{kind}('rows.{kind}')"
    return f"{read}; {matrix} = {matrix}.tocsr(); {write}"


def _text(value: object) -> str:
    """Return an attribute as text: HDF5 may give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
