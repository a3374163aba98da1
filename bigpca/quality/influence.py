"""How much eigenvalues and axes would vary between samples of rows: standard errors from influence functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, DType, Matrix, Vector, unpack
from bigpca.data.weights import degrees_of_freedom
from bigpca.errors import Shown
from bigpca.passes.accumulators.moments import ColumnMoments, Moments
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.reading.row_maps import MapStep, RowMap
from bigpca.quality.measurement import read_once
from bigpca.rules import Patterson
from bigpca.storage.files import content_digest

TILE_ROWS = 4096
COMPARABLE = 0.1  # columns per row, from which eigenvalues of noise are biased by more than 1.7
SAME_TOTAL = 1e-3  # relative, far above rounding of float16 rows, for the rows of the fit
MAX_ANGLE = 0.5  # radians, beyond which the first order says nothing about an axis


@dataclass(frozen=True, repr=False)
class StandardErrors(Shown):
    """Standard errors of a fitted spectrum, over samples of as many independent rows from the same population.

    Attributes
    ----------
    explained_variance_ : ndarray of shape (k,)
        Of the eigenvalues; NaN where other axes may bias one by more than its standard error: close to another
        eigenvalue, or where the number of features is comparable to that of the rows.
    explained_variance_ratio_ : ndarray of shape (k,)
        Of their shares of the total variance; NaN for the same components.
    component_angle_ : ndarray of shape (k,)
        Root mean square of the angle between an axis and that of the population, in radians: an upper value if the
        model has fewer components than the rows have axes. NaN for an axis that the rows do not determine: a close
        eigenvalue, of another component or possibly of the first axis that the model lacks, leaves more than 0.5, or
        is no farther away than both may be biased.
    n_rows : float
        Number of rows; of weighted rows the sum of the weights.
    n_features : int
        Number of columns.
    """

    explained_variance_: Vector
    explained_variance_ratio_: Vector
    component_angle_: Vector
    n_rows: float
    n_features: int

    def cells(self) -> list[tuple[str, ...]]:
        """Return a line for each component; NaN where nothing is determined."""
        columns = (self.explained_variance_, self.explained_variance_ratio_, self.component_angle_)
        lines = [(f"{i}", *(f"{value:.4g}" for value in row)) for i, row in enumerate(zip(*columns, strict=True))]
        return [("component", "variance", "share", "angle"), *lines]

    @property
    def notes(self) -> tuple[str, ...]:
        """What standard errors do not cover here, in words: undetermined numbers, and bias by many columns."""
        notes, k = [], len(self.explained_variance_)
        values, axes = (int(np.isnan(one).sum()) for one in (self.explained_variance_, self.component_angle_))
        if values or axes:
            notes.append(
                f"{values} of {k} eigenvalues and {axes} of {k} axes are not determined by {self.n_rows:,.6g} rows: "
                "other eigenvalues are too close, or there are too few rows."
            )
        ratio = self.n_features / self.n_rows
        if ratio > COMPARABLE:
            notes.append(
                f"{self.n_features:,} columns and {self.n_rows:,.6g} rows: the leading eigenvalues of a sample are "
                "then biased upwards, those of noise alone by a factor of up to (1 + sqrt(d / n))^2 = "
                f"{(1 + np.sqrt(ratio)) ** 2:.2g} (Marchenko and Pastur), which standard errors do not show. Compare "
                "them with the edge of ParallelAnalysis, or take more rows."
            )
        return tuple(notes)


@dataclass(frozen=True)
class SquaredScores(RowMap):
    """Row map to the squares of the scores and of what they leave: ``(t_1^2, ..., t_k^2, |x - sum t_i v_i|^2) / unit``.

    Attributes
    ----------
    mean : ndarray of shape (d,)
    components : ndarray of shape (k, d)
    scale : ndarray of shape (d,) or None
        Divisors of the columns.
    unit : float
        A power of 2 near the total variance, so that fourth powers of the scores neither overflow nor underflow.
    """

    mean: Vector
    components: Matrix
    scale: Vector | None = None
    unit: float = 1.0

    @property
    def step(self) -> MapStep:
        """The map, in tiles."""
        k, d = self.components.shape
        return MapStep(self, k + 1, 4 * k * d + 4 * d, TILE_ROWS)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the squares (b, k + 1), in float64."""
        centred = rows - self.mean
        if self.scale is not None:
            centred /= self.scale
        scores = centred @ self.components.T
        centred -= scores @ self.components
        left = np.einsum("ij,ij->i", centred, centred)
        squares: Array = np.column_stack([scores**2, left])
        squares /= self.unit
        return squares

    def output_dtype(self, dtype: DType) -> DType:
        """float64."""
        return np.dtype(np.float64)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows, what the scores explain of them, scores and squares, in float64."""
        return 8 * rows * (2 * d + 2 * len(self.components) + 2), 0

    def describe(self) -> dict[str, object]:
        """Digest of mean, components, scale and unit."""
        digest = content_digest(self.mean, self.components, self.scale, np.array(self.unit))
        return {"map": "squared scores", "digest": digest}


@dataclass(frozen=True)
class LearnedScaleProducts(RowMap):
    """Row map to the squares of what a row changes in a correlation matrix R, along the components of R.

    With scores t of the standardized row z, and ``u_ij = sum_l v_il v_jl z_l^2`` from its part in the scale, the
    change is ``v_i' dR v_j = t_i t_j - (lambda_i + lambda_j) u_ij / 2``. Component i has k + 1 columns: the squares
    for all j, and an upper value of ``|P dR v_i|^2`` outside of the components, where ``|P R P| <= lambda_k``. The last
    column is ``|z|^2``.

    Attributes
    ----------
    mean, scale : ndarray of shape (d,)
    components : ndarray of shape (k, d)
    values : ndarray of shape (k,)
        Eigenvalues of R.
    """

    mean: Vector
    components: Matrix
    scale: Vector
    values: Vector

    @property
    def step(self) -> MapStep:
        """The map, in tiles."""
        k, d = self.components.shape
        return MapStep(self, k * (k + 1) + 1, 2 * k * d * (k + 4) + 4 * d, TILE_ROWS)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the squares (b, k (k + 1) + 1), in float64."""
        z = (rows - self.mean) / self.scale
        scores, squares, k = z @ self.components.T, z**2, len(self.components)
        found = np.empty((len(z), k * (k + 1) + 1))
        found[:, -1] = squares.sum(axis=1)
        for i, (axis, value) in enumerate(zip(self.components, self.values, strict=True)):
            scaling = squares * axis  # the row's part in the scale, of component i
            u = scaling @ self.components.T
            half = scores[:, i, None] * scores - value / 2 * u
            found[:, i * (k + 1) : i * (k + 1) + k] = (half - u * self.values / 2) ** 2
            outside = np.square(scores[:, i, None] * z - value / 2 * scaling).sum(axis=1) - np.square(half).sum(axis=1)
            scaled = np.square(scaling).sum(axis=1) - np.square(u).sum(axis=1)
            left = np.sqrt(np.maximum(outside, 0)) + self.values[-1] / 2 * np.sqrt(np.maximum(scaled, 0))
            found[:, i * (k + 1) + k] = left**2
        return found

    def output_dtype(self, dtype: DType) -> DType:
        """float64."""
        return np.dtype(np.float64)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Rows, their squares and three products of these for one component; scores and squares, in float64."""
        k = len(self.components)
        return 8 * rows * (6 * d + k * (k + 1) + 6 * k + 1), 0

    def describe(self) -> dict[str, object]:
        """Digest of mean, components, scale and eigenvalues."""
        digest = content_digest(self.mean, self.components, self.scale, self.values)
        return {"map": "squared changes of correlations", "digest": digest}


def standard_errors(
    model: Any, X: Any, *, sample_weight: Any = None, memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
) -> StandardErrors:  # fmt: skip
    """Estimate how much the eigenvalues and axes of a model would vary between samples of rows.  # one pass over X

    To first order, from the influence functions of eigenvalues and eigenvectors, with scores t about the mean:
    ``se^2(lambda_i) = (E t_i^4 - lambda_i^2) / n``, and the axis turns towards axis j by an angle whose mean square is
    ``E[t_i^2 t_j^2] / (lambda_i - lambda_j)^2 / n``. Nothing is resampled, and rows need not be Gaussian; they must be
    independent and have finite fourth moments. These are sampling errors; for errors of the computation, see
    ``eigenvalue_bounds_``. Costs 4 n d k flops.

    With ``scale=True`` the deviations that divide the columns vary too, which the influence functions of a correlation
    matrix include: ``t_i t_j - (lambda_i + lambda_j) / 2 sum_l v_il v_jl z_l^2`` replaces ``t_i t_j``, for standardized
    rows z. Costs 2 n d k^2 flops.

    Parameters
    ----------
    model : fitted PCA or ApproximatePCA
        With orthonormal components. The scale may be learned (True), about the mean; :class:`bigpca.rules.Patterson` is
        rejected.
    X : Dask array, path, Zarr array, xarray.DataArray, or anything array-like of shape (n, d)
        The rows of the fit.
    sample_weight : as for ``fit``, default None
        The weights of the fit. Frequencies are numbers of independent rows; those of :func:`bigpca.data.reliability`
        add up to the effective number.
    memory_limit : int, str or None, default None
        Per process; None for the limit of the live workers, or the machine's free memory.
    progress : True for a bar, or a callable that receives events, default None

    Returns
    -------
    StandardErrors
        With fewer components than axes, the angles are upper estimates from the variance that the components leave out;
        they are undetermined if that variance may belong to a single axis as large as the component. Fit a few more
        components than needed. Its ``notes`` say what is not determined, and that eigenvalues are biased if there are
        about as many columns as rows (Marchenko and Pastur); :func:`bigpca.plots.standard_errors` draws it.

    Raises
    ------
    NotFittedError
        If the model was not fitted.
    TypeError, ValueError
        For a model without orthonormal components, with the scale of Patterson, or with a learned scale and another
        centre than the mean; and for rows other than those of the fit.
    MemoryBudgetError
        Before any read, if the blocks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read.

    Notes
    -----
    Anderson 1963 (Asymptotic theory for principal component analysis) for Gaussian rows; Waternaux 1976 and Critchley
    1985 (Influence in principal components analysis) for others, also of correlation matrices.

    Examples
    --------
    >>> from bigpca import PCA
    >>> X = np.random.default_rng(0).standard_normal((10_000, 3)) * [3, 2, 1]
    >>> errors = standard_errors(PCA().fit(X), X)
    >>> (errors.explained_variance_ / (np.sqrt(2 / 10_000) * np.array([9, 4, 1]))).round(1).tolist()
    [1.0, 1.0, 1.0]
    """
    check_is_fitted(model, "components_")
    if not getattr(model, "_orthonormal", False):
        raise TypeError(
            f"a {type(model).__name__} without orthonormal components was given. Fit PCA or ApproximatePCA."
        )
    learned = isinstance(model.scale, bool | np.bool_) and model.scale_ is not None
    if model.scale_ is not None and (isinstance(model.scale, Patterson) or (learned and model.center is not True)):
        raise ValueError(
            f"scale = {model.scale!r} is learned from the rows and also varies between samples, which is covered only "
            "for scale=True with center=True. Fit so, or with the divisors: scale=model.scale_."
        )
    rows, _ = model._rows(model._open_like(X).weighted(sample_weight))
    unit = 2.0 ** np.floor(np.log2(model.total_variance_)) if model.total_variance_ > 0 and not learned else 1.0
    k, step = model.n_components_, SquaredScores(model.mean_, model.components_, model.scale_, float(unit)).step
    template: Moments | ColumnMoments = Moments(k + 1)
    if learned:
        values = model.explained_variance_ * (1 - 1 / model.sum_weights_)  # of the correlations, with divisor n
        step = LearnedScaleProducts(model.mean_, model.components_, model.scale_, values).step
        template = ColumnMoments(k * (k + 1) + 1)
    found = read_once(rows.mapped(step), template, "standard errors", memory_limit=memory_limit, progress=progress)
    if found.count != model.n_samples_ or not np.isclose(found.weight, model.sum_weights_):
        raise ValueError(
            f"X has {found.count} rows of weight {found.weight:g}, but the model was fitted to {model.n_samples_} of "
            f"weight {model.sum_weights_:g}. Pass the rows and weights of the fit."
        )
    total = float(found.mean[-1] if learned else found.mean.sum()) * unit
    total *= found.weight / degrees_of_freedom(found.count, found.weight_sums)
    if not np.isclose(total, model.total_variance_, rtol=SAME_TOTAL):
        raise ValueError(
            f"X has the total variance {total:.6g} about the model's mean_, but the rows of the fit have "
            f"{model.total_variance_:.6g}. Pass the rows and weights of the fit."
        )
    return _errors(found, model.explained_variance_, unit, model.n_features_in_)


def _errors(found: Moments | ColumnMoments, explained: Vector, unit: float, d: int) -> StandardErrors:
    """Compute the standard errors of d columns from the moments of the squares, which are in this unit."""
    values, n, k, axes = explained / unit, found.weight, len(explained), min(found.count, d)
    if isinstance(found, ColumnMoments):  # of a learned scale: the total is the number of columns
        products, total = found.mean[:-1].reshape(k, k + 1), float(found.mean[-1])
        spread = products.diagonal()
        ratios, left = spread / (total or 1.0) ** 2, total - float(values.sum())
    else:
        covariance = unpack(found.packed, k + 1) / n  # of the squares
        products = covariance + np.multiply.outer(found.mean, found.mean)  # E[t_i^2 t_j^2]
        total, left, spread = float(found.mean.sum()), float(found.mean[k]), np.diagonal(covariance)[:k]
        # lambda_i / total changes by (t_i^2 - (lambda_i / total) |x|^2) / total with each row
        change = (np.eye(k, k + 1) - np.divide(found.mean[:k], total or 1.0)[:, None]) / (total or 1.0)
        ratios = np.einsum("ij,jk,ik->i", change, covariance, change)
    gaps = values[:, None] - values
    np.fill_diagonal(gaps, np.inf)
    left = left if axes > k else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        turns = (products[:k, :k] / gaps**2).sum(axis=1)
        bias = np.abs(products[:k, :k] / gaps).sum(axis=1)
        if left > 0:  # no axis that the model lacks has more than the smallest eigenvalue, or than what is left
            turns += products[:k, k] / (values - min(float(values[-1]), left)) ** 2
            bias += np.abs(products[:k, k] / (values - left / (axes - k)))
    angles, bias = np.sqrt(turns / n), bias / n
    errors = np.sqrt(np.maximum(spread, 0) / n)
    several = found.count > 2  # rows: the squares of two are equal about their mean, whatever the population is
    sound = several & (bias <= errors)
    apart = several & (angles <= MAX_ANGLE) & (np.abs(gaps) > bias[:, None] + bias).all(axis=1)
    return StandardErrors(
        np.where(sound, unit * errors, np.nan), np.where(sound, np.sqrt(np.maximum(ratios, 0) / n), np.nan),
        np.where(apart, angles, np.nan), n, d,
    )  # fmt: skip
