"""Row maps of a fitted discriminant analysis: classes, probabilities, discriminant functions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from bigpca.arrays import Array, DType
from bigpca.errors import NonFiniteError, counted
from bigpca.estimators.shared.finite import settle_non_finite
from bigpca.passes.reading.row_maps import RowMap
from bigpca.solvers.discriminants import Discriminants

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class ClassMap(RowMap):
    """A function of the discriminant functions of rows, in float64 because these are differences of large terms.

    Attributes
    ----------
    functions : Discriminants
    classes : ndarray of shape (c,)
    output : {"classes", "probabilities", "log-probabilities", "decisions"}
        The most probable class (b, 1), the first in a tie; posterior probabilities (b, c); their logarithms, which do
        not underflow; discriminant functions about the origin (b, c), or the difference of two (b, 1).
    nan_policy : {"raise", "omit"}
        "omit" returns NaN for rows that hold one; it does not apply to classes.
    """

    functions: Discriminants
    classes: Array
    output: str
    nan_policy: str = "raise"

    def output_dtype(self, dtype: DType) -> DType:
        """That of the classes, or float64."""
        return self.classes.dtype if self.output == "classes" else np.dtype(np.float64)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the output for rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities, and the policy is to raise or the output is a class.
        """
        of = self.functions
        with np.errstate(invalid="ignore", over="ignore"):
            centred = rows.astype(np.float64) - of.mean
            values: Matrix = centred @ of.slopes.T
        settle_non_finite(rows, values, where, self.nan_policy, self.output)
        values += of.offsets
        found: Array
        if self.output == "classes":
            self._reject_missing(values, where)
            found = self.classes[values.argmax(axis=1)][:, None]
        elif self.output == "probabilities":
            found = softmax(values, axis=1)
        elif self.output == "log-probabilities":
            found = log_softmax(values, axis=1)
        elif len(of.slopes) == 2:
            found = np.diff(values, axis=1)
        else:
            found = values + (centred @ of.common + 0.5 * (of.mean @ of.common))[:, None]
        return found

    def _reject_missing(self, values: Matrix, where: str) -> None:
        missing = np.flatnonzero(np.isnan(values).any(axis=1))
        if len(missing):
            raise NonFiniteError(
                f"{counted(len(missing), 'row')} of {where} hold NaN or infinite values, the first is its row "
                f"{missing[0]}: they have no class. Remove them, or use predict_proba, which returns NaN for such rows."
            )

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows in float64, and values before and after their last step."""
        return 8 * rows * (d + 4 * len(self.functions.slopes)), 0

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        of, content = self.functions, hashlib.sha256(str(self.classes.dtype).encode())
        for array in (of.mean, of.slopes, of.offsets, of.common, self.classes):
            content.update(np.ascontiguousarray(array).tobytes())
        return {"map": self.output, "nan_policy": self.nan_policy, "digest": content.hexdigest()}
