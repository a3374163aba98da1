"""Scores as codes for vector databases: one byte or one bit for each, with ranges from the variances of a fit."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from bigpca.arrays import Array, DType, Vector
from bigpca.data.source import decoded_dtype
from bigpca.errors import ApproximationWarning
from bigpca.passes.reading.blocks import Values
from bigpca.passes.reading.row_maps import RowMap
from bigpca.storage.forms import CODES

DEVIATIONS = 4.0  # of the scores, that the range of codes has on both sides
LAST = 127  # the largest code; -128 is not used, so that -x has the code of x with the other sign
MANY = 0.01  # share of saturated values that is reported
KINDS = ("int8", "bits")


@dataclass(frozen=True)
class Codes(RowMap):
    """Scores (b, k) as codes: ``int8`` (b, k), or the bits of their signs in bytes (b, ceil(k / 8)).

    ``code = round(score / scale)``, at most 127 in magnitude; so ``score = code * scale`` to half of ``scale``, and a
    code of 127 or -127 is saturated: its score may be larger. All columns have one scale. Distances and products of
    codes are then those of the scores; with a scale for each column they would be those of whitened scores, unless the
    reader decodes. Bit 1 is a score above 0, and the first score is in the highest bit (``numpy.packbits``).

    Attributes
    ----------
    kind : {"int8", "bits"}
    width : int
        k.
    scale : float
        Of int8.
    """

    kind: str
    width: int
    scale: float

    @classmethod
    def of(cls, kind: str, variances: Vector) -> Codes:
        """Return the codes of scores with those variances (k,): int8 up to 4 times the largest standard deviation."""
        largest = float(np.sqrt(max(variances.max(initial=0.0), 0.0)))
        return cls(kind, len(variances), DEVIATIONS * largest / LAST or 1.0)

    @property
    def columns(self) -> int:
        """Columns of the codes."""
        return self.width if self.kind == "int8" else -(-self.width // 8)

    @property
    def attributes(self) -> dict[str, object]:
        """What a reader needs: for int8 under the names of the CF conventions (section 8.1) too."""
        own: dict[str, object] = {CODES: self.kind, "components": self.width}
        return own if self.kind == "bits" else own | {"scale_factor": self.scale, "add_offset": 0.0}

    def names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the columns of a table, of the components' names (k,)."""
        return names if self.kind == "int8" else tuple(f"bits{i}" for i in range(self.columns))

    def apply(self, rows: Values, where: str) -> Array:
        """Return the codes of scores (b, k).

        Raises
        ------
        ValueError
            For scores of NaN or infinity, which have no code.

        Warns
        -----
        ApproximationWarning
            Where more than 1 % of the codes are saturated.
        """
        scores = np.asarray(rows)
        finite = np.isfinite(scores)
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise ValueError(
                f"{where}: the score {scores[row, column]} (row {row} of these, component {column}) has no code. Leave "
                "out incomplete rows, or write scores as floats."
            )
        if self.kind == "bits":
            return np.packbits(scores > 0, axis=1)
        scaled = scores / np.result_type(scores.dtype, decoded_dtype(self.scale)).type(self.scale)
        codes: Array = np.clip(np.rint(scaled, out=scaled), -LAST, LAST, out=scaled).astype(np.int8)
        if self.saturated(codes) > max(10, MANY * codes.size):
            warnings.warn(
                f"more than {MANY:.0%} of the codes of some rows are saturated: their scores are beyond the range of "
                f"{DEVIATIONS:g} standard deviations of the fit. Fit the model to such rows, or write float16.",
                ApproximationWarning,
                stacklevel=2,
            )
        return codes

    def saturated(self, codes: Array) -> int:
        """Return how many codes are at the end of their range."""
        return 0 if self.kind == "bits" else int(np.count_nonzero((codes == LAST) | (codes == -LAST)))

    def output_dtype(self, dtype: DType) -> DType:
        """int8, or uint8 of packed bits."""
        return np.dtype(np.int8 if self.kind == "int8" else np.uint8)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Scaled scores, codes, and masks; here d is k."""
        return rows * self.width * (max(itemsize, decoded_dtype(self.scale).itemsize) + 3), 0
