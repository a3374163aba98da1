"""Scores of new rows corrected for shrinkage: by a factor for each component, or row by row as one more row of the fit.

Both are rules after the projection: what the rows are, sparse or on a device, is the projection's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, DType, Matrix, Vector
from bigpca.devices import Namespace
from bigpca.errors import check_choice, warn_approximation
from bigpca.estimators.linear.maps import TILE_BYTES, Projection, incomplete_bytes
from bigpca.estimators.linear.monitoring import scored
from bigpca.estimators.linear.spectrum import PCAResult
from bigpca.estimators.shared.inputs import BaseEstimator, settle_non_finite
from bigpca.passes.reading.blocks import INCOMPLETE
from bigpca.passes.reading.row_maps import L2, RowMap
from bigpca.solvers.shrinkage import augmented_bytes, augmented_scores, shrinkage_factors

SHRINKAGE = ("oadp", "factor")
WEAK = 0.5  # of a factor, below which corrected scores depend on how noise is distributed


def factors_of(found: PCAResult, centred: bool, effects: int) -> Vector:
    """Return the factors (k,): from all eigenvalues where the fit had them, else from as many equal ones.

    The rows count less the mean and the effects of covariates that were learned from them.
    """
    freedom = found.sum_weights_ - centred - effects
    if len(found.shrinkage or ()) == found.n_components_:
        factors, known = np.array(found.shrinkage), 0 if found.regression is None else found.regression.rank
        more = 1 + (effects - known) / freedom  # the fit did not know what a first step took out
        return factors / (factors + (1 - factors) * more)
    left = max(0, round(min(freedom, len(found.mean_))) - found.n_components_)
    over = max(0.0, found.total_variance_ - float(found.explained_variance_.sum()))
    return shrinkage_factors(found.explained_variance_, np.full(left, over / max(1, left)), freedom)


def shrunk_map(model: BaseEstimator, shrinkage: str) -> RowMap:
    """Return the map of new rows to corrected scores; warns of components whose factor is below one half.

    Raises
    ------
    ValueError
        For another word.
    """
    check_is_fitted(model)
    check_choice("shrinkage", shrinkage, SHRINKAGE)
    factors, found = model.shrinkage_factors_, model._result
    plain: Projection = model._row_map()
    if weak := np.flatnonzero(factors < WEAK).tolist():
        warn_approximation(
            f"{len(weak)} of {len(factors)} components, the first of them number {weak[0]}, have a shrinkage factor "
            f"below {WEAK:g}, the least {factors.min():.2g}: they are mostly noise, and their corrected scores may be "
            "wrong by a tenth and more. Keep fewer components."
        )
    if shrinkage == "factor":
        return replace(plain, deviations=factors if plain.deviations is None else plain.deviations * factors)
    # A new row is added to the SVD of the fit: the eigenvalues of X'X are variances times their divisor.
    singular = np.sqrt(found.known_variances * (found.sum_weights_ - 1))
    return AugmentedScores(plain, singular)


@dataclass(frozen=True)
class AugmentedScores(RowMap):
    """Scores of each row as in a fit with it as one more row: :func:`bigpca.solvers.shrinkage.augmented_scores`.

    Attributes
    ----------
    projection : Projection
        Along orthonormal axes. It whitens the result, and its policy is that of the rows.
    singular : ndarray of shape (k,)
        Singular values of the rows of the fit; 0 for axes that are rounding, which keep their scores.
    """

    projection: Projection
    singular: Vector

    def on(self, device: Namespace) -> tuple[RowMap, Namespace]:
        """As the projection."""
        moved, place = self.projection.on(device)
        return replace(self, projection=cast("Projection", moved)), place

    def output_dtype(self, dtype: DType) -> DType:
        """As of the projection."""
        return self.projection.output_dtype(dtype)

    def apply(self, rows: Array, where: str) -> Array:
        """Return scores (b, k) of rows (b, d); raises as :meth:`Projection.apply`."""
        p, k = self.projection, len(self.singular)
        z, squares, empty = np.empty((len(rows), k)), np.empty(len(rows)), None
        p.check_limits(rows, where)
        with np.errstate(invalid="ignore", over="ignore"):
            for start, scores, left in scored(p, rows, residuals=True):
                z[start : start + len(scores)], squares[start : start + len(scores)] = scores, left
        if p.nan_policy in INCOMPLETE and len(lines := np.flatnonzero(np.isnan(z).any(axis=1))):
            empty = replace(p, deviations=None).complete(rows, z)
            squares[lines] = self._incomplete_squares(rows[lines], z[lines])
        settle_non_finite(rows, z, where, p.nan_policy, "scores")
        # An axis without variance in the fit bounds nothing: what a row has along it counts as its distance.
        used, sound = self.singular > 0, np.isfinite(z).all(axis=1)
        squares += (z[:, ~used] ** 2).sum(axis=1)
        if not np.isfinite(squares[sound]).all():
            raise ValueError(
                f"squares of values in {where} leave the range of float64, so the rows cannot be added to a fit. Pass "
                'rows in the units of the fit, or use shrinkage="factor".'
            )
        if used.any():
            z[np.ix_(sound, used)] = augmented_scores(z[np.ix_(sound, used)], squares[sound], self.singular[used])
        if p.deviations is not None:
            z /= np.where(p.deviations > 0, p.deviations, np.inf)
        z = L2(zero_rows="keep").apply(z, where) if p.l2 else z
        if empty is not None:
            z[empty] = np.nan
        return z.astype(self.output_dtype(rows.dtype), copy=False)

    def _incomplete_squares(self, rows: Array, z: Matrix) -> Vector:
        """Return the squared residuals of incomplete rows, as of all columns: times ``d / (observed - k)``."""
        p, (k, d), found = self.projection, self.projection.components.shape, np.empty(len(rows))
        step = max(1, TILE_BYTES // (8 * d))
        for i in range(0, len(rows), step):
            left = rows[i : i + step] - p.mean
            left = (left if p.scale is None else left / p.scale) - z[i : i + step] @ p.components
            observed = np.isfinite(left).sum(axis=1)
            found[i : i + step] = np.nansum(left**2, axis=1) * d / np.maximum(observed - k, 1)
        return found

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows and their reconstruction by strip, axes, scores, and the matrices of a tile of rows."""
        p, k = self.projection, len(self.singular)
        strip = p.device.centred_rows(rows, d, itemsize)
        held = (2 * strip + 4) * d * itemsize + 2 * k * d * itemsize + strip * k * itemsize
        gaps = incomplete_bytes(rows, d, k, 8) + 3 * 8 * max(TILE_BYTES // 8, d) if p.nan_policy in INCOMPLETE else 0
        return held + 8 * rows * (4 * k + 3) + augmented_bytes(k) + gaps, 0
