"""Thin matrices by which rows are multiplied: a given array, or a sketch that is generated where it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import csr
from bigpca.arrays import Array, content_digest
from bigpca.costs import BlockForm, Work
from bigpca.passes.reading.arithmetic import NUMPY, Arithmetic, Values
from bigpca.seeds import normals
from bigpca.sketches.base import Sketch

Vector = NDArray[np.float64]


class Factor(Protocol):
    """A thin matrix W (d, l) that rows are multiplied by; picklable."""

    @property
    def columns(self) -> int:
        """l."""

    def multiply(self, rows: Values, arithmetic: Arithmetic = NUMPY) -> Array:
        """Return ``rows @ W`` (b, l) in the dtype of ``rows``, which are dense or CSR."""

    def cost(self, rows: BlockForm) -> Work:
        """Return what :meth:`multiply` needs in addition to its input, and its operations per row."""

    def describe(self) -> dict[str, object]:
        """What identifies W in fingerprints."""


@dataclass(frozen=True)
class DenseFactor:
    """A block given as an array.

    Attributes
    ----------
    Q : ndarray of shape (d, l), float32 or float64
    """

    Q: Array

    @property
    def columns(self) -> int:
        return int(self.Q.shape[1])

    def multiply(self, rows: Values, arithmetic: Arithmetic = NUMPY) -> Array:
        return arithmetic.multiply(rows, self.Q)

    def cost(self, rows: BlockForm) -> Work:
        held = (rows.rows + rows.columns) * self.columns * rows.itemsize  # the product, and Q in the blocks' precision
        return Work(held) + csr.multiply_work(rows, self.columns)

    def describe(self) -> dict[str, object]:
        return {"Q": content_digest(self.Q), "columns": self.columns}


def scaled_columns(rows: Values, factors: Vector) -> Values:
    """Return new rows, every column times its factor (d,), in the precision of the rows; CSR remains CSR."""
    own = factors.astype(rows.dtype)
    if isinstance(rows, csr_array):
        return csr_array((rows.data * own[rows.indices], rows.indices, rows.indptr), rows.shape)
    scaled: Array = rows * own
    return scaled


def _check_one_factor(mine: dict[str, object], theirs: dict[str, object]) -> None:
    if mine != theirs:
        raise ValueError(
            f"products with {mine} and with {theirs} cannot be added, because these are different matrices W. "
            f"Use the same sketch for all rows: the same kind, number of columns and seed."
        )


@dataclass(frozen=True)
class SketchFactor:
    """A sketch, and Gaussian probes next to it, generated where they are needed.

    Attributes
    ----------
    sketch : Sketch
    d : int
    probes : int
        Number of columns of independent standard normals after those of the sketch, for the certificates.
    seed : int
        Of the probes.
    inverse_scale : ndarray of shape (d,) or None
        Factors by which the columns of X are multiplied first: ``(x / scale)' W``.
    """

    sketch: Sketch
    d: int
    probes: int = 0
    seed: int = 0
    inverse_scale: Vector | None = None

    @property
    def columns(self) -> int:
        return self.sketch.width(self.d) + self.probes

    def multiply(self, rows: Values, arithmetic: Arithmetic = NUMPY) -> Array:
        if self.inverse_scale is not None:
            rows = scaled_columns(rows, self.inverse_scale)
        sketched = self.sketch.apply(rows)
        if not self.probes:
            return sketched
        return np.hstack([sketched, arithmetic.multiply(rows, probe_vectors(self.seed, self.d, self.probes))])

    def cost(self, rows: BlockForm) -> Work:
        d, b, itemsize = rows.columns, rows.rows, rows.itemsize
        scaled = (2 if rows.sparse else 1) * b * rows.values * itemsize if self.inverse_scale is not None else 0
        probing = ((d + b) * self.probes + b * self.columns) * itemsize if self.probes else 0
        return self.sketch.cost(rows) + Work(int(scaled) + probing) + csr.multiply_work(rows, self.probes)

    def describe(self) -> dict[str, object]:
        scale = "" if self.inverse_scale is None else content_digest(self.inverse_scale)
        return {"sketch": self.sketch.describe(), "probes": [self.probes, self.seed], "inverse_scale": scale}


@lru_cache(maxsize=2)
def probe_vectors(seed: int, d: int, probes: int) -> NDArray[np.float32]:
    """Return the probes (d, r): standard normals that depend on the seed and their position only."""
    vectors: NDArray[np.float32] = normals(seed, "probes", 0, d, probes, np.float32)
    vectors.flags.writeable = False
    return vectors
