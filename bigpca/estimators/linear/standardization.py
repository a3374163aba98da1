"""How rows are centred and scaled: what the caller gives, and what is learned in the read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigpca.data.grids import Grid
from bigpca.estimators.shared.inputs import Input
from bigpca.passes.reading.filling import Limits
from bigpca.passes.reading.row_maps import Affine, MapStep
from bigpca.passes.rows import RowInput
from bigpca.solvers.scaling import CosLatitude, LearnedScale, Patterson

Vector = NDArray[np.float64]
Center: TypeAlias = bool | ArrayLike  # a vector (d,)
Scale: TypeAlias = bool | Patterson | CosLatitude | ArrayLike


@dataclass(frozen=True)
class Standardization:
    """The parameters ``center`` and ``scale``, as a map of the rows that are read and what their statistics add.

    Attributes
    ----------
    center : bool
        Whether the mean is learned.
    scale : bool or Patterson
        What is learned; False for nothing.
    given : Affine or None
        A given centre and scale.
    """

    center: bool = True
    scale: LearnedScale = False
    given: Affine | None = None

    @classmethod
    def of(cls, center: Center, scale: Scale, d: int, grid: Grid | None = None) -> Standardization:
        """Return the parameters, checked for rows of d columns, on a grid if they are of a DataArray.

        Raises
        ------
        TypeError, ValueError
            For anything but booleans, rules, and finite vectors of d numbers, positive ones as a scale.
        """
        shift = None if isinstance(center, bool | np.bool_) else _vector("center", center, d, grid)
        learned = isinstance(scale, bool | np.bool_ | Patterson)
        divisors = None if learned else _scale_vector(scale, d, grid)
        if shift is not None and isinstance(scale, Patterson):
            raise ValueError(
                f"scale = {scale!r} is learned from the mean, but center is a vector. Use center=True, or give the "
                f"scale as a vector."
            )
        given = None
        if divisors is not None or (shift is not None and shift.any()):
            given = Affine(np.zeros(d) if shift is None else shift, None if divisors is None else 1 / divisors)
        kept: LearnedScale = scale if isinstance(scale, Patterson) else learned and bool(scale)
        return cls(shift is None and bool(center), kept, given)

    @property
    def scales(self) -> bool:
        """Whether columns are divided by anything."""
        return bool(self.scale) or (self.given is not None and self.given.inverse_scale is not None)

    @property
    def shift(self) -> Vector:
        """The given centre (d,), or zero (1,): kept statistics are of ``(x - shift) / divisors``."""
        return np.zeros(1) if self.given is None else self.given.shift

    @property
    def divisors(self) -> Vector:
        """The given scale (d,), or one (1,)."""
        inverse = None if self.given is None else self.given.inverse_scale
        return np.ones(1) if inverse is None else 1 / inverse

    def applied(self, rows: RowInput) -> RowInput:
        """Return the rows about the given centre, divided by the given scale; counts of alleles within their limits."""
        limits = limits_of(self.scale)
        if limits is not None and not rows.steps:
            rows = rows.within(limits)
        return rows if self.given is None else rows.mapped(MapStep(self.given, rows.n_columns, 2 * rows.n_columns))

    def in_units_of_rows(self, mean: Vector, scale: Vector | None) -> tuple[Vector, Vector | None]:
        """Return centre and scale of the rows before :meth:`applied` from those of the rows after it."""
        if self.given is None:
            return mean, scale
        if self.given.inverse_scale is None:
            return self.shift + mean, scale
        return self.shift + self.divisors * mean, self.divisors if scale is None else self.divisors * scale


def limits_of(scale: Scale) -> Limits | None:
    """Return the limits of the values that a rule for the scale expects."""
    if not isinstance(scale, Patterson):
        return None
    return Limits(0, scale.ploidy, f"counts of alleles for scale={scale!r}")


def _vector(name: str, given: Input, d: int, grid: Grid | None) -> Vector:
    """Return a finite vector of d numbers; raises as :meth:`Standardization.of`."""
    try:
        numbers = np.asarray(given).dtype.kind not in "bc"  # neither a mask nor complex
        vector = np.asarray(given, np.float64) if numbers else np.zeros(())
    except (TypeError, ValueError):
        vector = np.zeros(())
    if grid is not None:
        vector = grid.columns(vector)
    if vector.ndim > 1:
        raise TypeError(
            f"{name} is a {type(given).__name__} of shape {vector.shape}; a vector of {d} numbers, one for each "
            f"column, was expected. Pass np.asarray({name}).ravel(), in the order of the columns."
        )
    if vector.ndim != 1:
        rule = ", a vector" if name == "center" else ", bp.Patterson(), bp.CosLatitude(latitude), or a vector"
        raise TypeError(
            f"{name} = {given!r} is a {type(given).__name__}; True, False{rule} of {d} numbers was expected."
        )
    if len(vector) != d:
        raise ValueError(f"{name} has {len(vector)} numbers, but X has {d} columns. Give one number for each column.")
    if not np.isfinite(vector).all():
        raise ValueError(
            f"{name} is {vector[~np.isfinite(vector)][0]} in column {np.argmin(np.isfinite(vector))}, "
            "which is not finite. Give a number for every column."
        )
    return vector


def _scale_vector(scale: Input, d: int, grid: Grid | None) -> Vector:
    if isinstance(scale, CosLatitude):
        scale = _of_latitudes(scale, grid)
    vector = _vector("scale", scale, d, grid)
    if not (vector > 0).all():
        column = int(np.argmin(vector > 0))
        raise ValueError(
            f"scale is {vector[column]} in column {column}, by which no column can be divided. Give positive "
            f"numbers: 1 for columns that are constant."
        )
    return vector


def _of_latitudes(scale: CosLatitude, grid: Grid | None) -> Vector:
    """Return the scale of the columns, whose latitudes may be a coordinate.

    Raises
    ------
    ValueError
        If the rows have no such coordinate.
    """
    if not isinstance(scale.latitude, str):
        return scale.scale
    if grid is None:
        raise ValueError(
            f"scale = {scale!r} names a coordinate, but X is not a DataArray, or has a pattern. Give the latitude of "
            f"each column."
        )
    return scale.of(grid.column_values(scale.latitude, f"scale = {scale!r}"))
