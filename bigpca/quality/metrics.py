"""How well two answers agree: axes, reconstructions, and the rows of two fitted models.

Measures of an approximation against the original, then :func:`frechet_distance` of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr, svdvals
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, Input, Matrix, Vector, not_converted
from bigpca.data.label_files import whole
from bigpca.engine.driver import solving_with
from bigpca.engine.events import ProgressArgument
from bigpca.engine.layout import MIB
from bigpca.errors import an
from bigpca.estimators.linear.pca import moments_of_both
from bigpca.estimators.shared.inputs import as_fitted, open_rows
from bigpca.estimators.shared.opening import read_once, rows_like
from bigpca.estimators.shared.transformer import Estimator
from bigpca.passes.accumulators.moments import ColumnMoments, Moments
from bigpca.passes.reading.row_maps import Float64Map, MapStep
from bigpca.settings import setting
from bigpca.solvers.eigh import top_eigenpairs

TINY = float(np.finfo(np.float64).tiny)  # in place of the norm 0

STRIP_BYTES = 4 * MIB  # of float64 rows processed at a time, so that no second slab is needed


def similarity(components_a: ArrayLike, components_b: ArrayLike) -> Vector:
    """Compare axes one by one: ``Sim_i = |v_i' v2_i| / (|v_i| |v2_i|)``, 1 for the same axis up to its sign.

    It penalises rotations within nearly equal eigenvalues, where axes are arbitrary but their span is not; see also
    :func:`principal_angles`.

    Parameters
    ----------
    components_a, components_b : array-like of shape (k, d), or fitted models; rows are components, of any length

    Returns
    -------
    ndarray of shape (k,), in [0, 1]

    Raises
    ------
    ValueError
        If shapes differ, or a row has no direction (length 0, or not finite).

    Notes
    -----
    Marukatat 2022, the comparisons of section 5.5.

    Examples
    --------
    >>> similarity([[1.0, 0.0], [0.0, 1.0]], [[-2.0, 0.0], [3.0, 4.0]]).tolist()
    [1.0, 0.8]
    """
    A, B = unit_rows(components_a, "components_a"), unit_rows(components_b, "components_b")
    if A.shape != B.shape:
        raise ValueError(
            f"components_a has shape {A.shape} and components_b {B.shape}, so their rows do not "
            "correspond one to one. Truncate the longer one, or compare whole subspaces with principal_angles."
        )
    return np.asarray(np.minimum(np.abs(np.einsum("ij,ij->i", A, B)), 1.0))


def principal_angles(components_a: ArrayLike, components_b: ArrayLike) -> Vector:
    """Compare whole subspaces: the principal angles between the spans of the rows, in radians, largest first.

    With orthonormal rows Q and Q2 of the two spans, the cosines are the singular values of Q Q2', and the sines those
    of ``Q - (Q Q2') Q2``, where Q is the smaller one. Each angle is computed from both, so that even an angle of 1e-12,
    whose cosine is 1 in all digits, is accurate. Costs O(d k^2).

    Parameters
    ----------
    components_a, components_b : array-like of shapes (k, d) and (k2, d), or fitted models; rows are axes

    Returns
    -------
    ndarray of shape (min(k, k2),), in [0, pi/2]

    Raises
    ------
    ValueError
        If the numbers of columns differ, values are not finite, or rows are linearly dependent.

    Notes
    -----
    Bjorck & Golub 1973, theorem 1 and section 3; Knyazev & Argentati 2002, algorithm 3.1. NOTE: This uses ``arctan2``
    of both, where the papers choose one: SciPy 1.17's ``subspace_angles`` chooses the cosine of small angles if there
    are also large ones, which gives an error of 1e-8.

    Examples
    --------
    >>> principal_angles([[1.0, 0.0, 0.0]], [[1.0, 1e-12, 0.0]]).tolist()
    [1e-12]
    """
    A, B = unit_rows(components_a, "components_a"), unit_rows(components_b, "components_b")
    if A.shape[1] != B.shape[1]:
        raise ValueError(
            f"components_a has rows of length {A.shape[1]} and components_b of {B.shape[1]}: they are axes of "
            "different spaces. Pass the components of the same features."
        )
    Q, Q2 = sorted((orthonormal(A, "components_a"), orthonormal(B, "components_b")), key=len)
    cross = Q @ Q2.T
    cosines, sines = svdvals(cross), svdvals(Q - cross @ Q2)
    return np.asarray(np.arctan2(sines, cosines[::-1]))  # pairs the largest sine with the smallest cosine


def axes_of(model: Any) -> Matrix:
    """Return the axes (k, d) of a fitted model.

    Raises
    ------
    NotFittedError
    TypeError
        For a model without axes in the space of the features.
    """
    check_is_fitted(model)
    if not hasattr(model, "components_"):
        raise TypeError(
            f"{an(type(model).__name__)} has no components_: it has no axes in the space of the features. Compare "
            "scores, or fit a linear model such as PCA."
        )
    return np.asarray(model.components_, np.float64)


def unit_rows(V: ArrayLike, name: str) -> Matrix:
    """Return the rows scaled to length 1; raise ValueError, with this name, if one has no direction."""
    named = "A model or rows of components, (k, d),"
    rows = axes_of(V) if hasattr(V, "fit") else whole(getattr(V, "components_", V), name, "component", named)
    rows = not_converted(rows, name).astype(np.float64)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{name} has shape {rows.shape}; rows of components, (k, d), were expected. Reshape it.")
    largest = np.abs(rows).max(axis=1, keepdims=True)
    bad = np.flatnonzero(~((largest > 0) & np.isfinite(largest)))
    if len(bad):
        raise ValueError(
            f"row {bad[0]} of {name} has no direction: its largest entry is {largest[bad[0], 0]:g}. Remove it, "
            "or replace it with finite numbers."
        )
    scaled = rows / largest  # because squares of the entries could overflow
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1, keepdims=True))


def orthonormal(rows: Matrix, name: str) -> Matrix:
    """Return orthonormal rows of the same span; raise if the rows (of unit length) are linearly dependent."""
    Q, R, _ = qr(rows.T, mode="economic", pivoting=True)
    least = float(np.abs(np.diagonal(R)).min()) if len(rows) <= rows.shape[1] else 0.0
    if least <= max(rows.shape) * np.finfo(np.float64).eps:
        raise ValueError(
            f"the {len(rows)} rows of {name} are linearly dependent (to {least:.1g}), so they span fewer dimensions. "
            "Remove the redundant ones."
        )
    return np.ascontiguousarray(Q.T)


@dataclass(frozen=True)
class ReconstructionError:
    """The distance of rows from a model's subspace.

    Attributes
    ----------
    n_rows : int
        Number of rows measured.
    mean_squared : float
        Mean over the rows of ``|x_s - x_s^|^2``, with the model's ``x_s = (x - mean) / scale``.
    relative : float
        The same as a share of the mean of ``|x_s|^2``, the total variance of these rows about the model's mean; for the
        rows of the fit it is 1 - the sum of ``explained_variance_ratio_``. 0 if there is no variance.
    """

    n_rows: int
    mean_squared: float
    relative: float


def reconstruction_error(
    model: Any, X: Input, *, memory_limit: int | str | None = None, progress: ProgressArgument = None
) -> ReconstructionError:
    """Measure the distance of the rows of X from a model's subspace.  # one pass over X

    ``x_s^`` is the closest point in the span of ``components_``: the result of ``inverse_transform(transform(x))`` if
    they are orthonormal, otherwise the least-squares reconstruction. Residuals are squared row by row in float64, so
    even a relative error of 1e-20 is accurate. Costs 4 n d k flops; memory: the blocks being read, 8 MiB of scratch
    space, and the components.

    Parameters
    ----------
    model : fitted PCA, or another scikit-learn estimator with ``components_`` (k, d), optional ``mean_`` and ``scale_``
    X : Dask array, path, Zarr array, xarray.DataArray, or anything array-like of shape (n, d)
    memory_limit : int, str or None, default None
        Per process; None for that of the model or of :class:`bigpca.config`, or else the limit of the live workers, or
        the machine's free memory.
    progress : True for a bar, or a callable that receives events, default None

    Returns
    -------
    ReconstructionError

    Raises
    ------
    NotFittedError
        If the model was not fitted.
    ValueError
        If X has a different number of features, or no rows.
    MemoryBudgetError
        Before any read, if the blocks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; a model with ``nan_policy="omit"`` omits rows with NaN here too.

    Notes
    -----
    Marukatat 2022, equation 17 and the text below it.

    Examples
    --------
    >>> from bigpca import PCA
    >>> X = np.array([[-1.0, -1], [-2, -1], [-3, -2], [1, 1], [2, 1], [3, 2]])
    >>> pca = PCA(n_components=1).fit(X)
    >>> error = reconstruction_error(pca, X)
    >>> round(error.relative, 4), round(1 - float(pca.explained_variance_ratio_.sum()), 4)
    (0.0076, 0.0076)
    """
    components = axes_of(model)
    axes = orthonormal(unit_rows(components, "components_"), "components_")
    mean = np.zeros(axes.shape[1]) if getattr(model, "mean_", None) is None else np.asarray(model.mean_, np.float64)
    scale = getattr(model, "scale_", None)
    if isinstance(model, Estimator):
        rows = rows_like(model, X, memory_limit=memory_limit)
    else:
        rows = as_fitted(model, open_rows(X, type(model).__name__).alone())
        rows = rows.begun(memory_limit=setting(model, "memory_limit", memory_limit))
    squares = SquaredScores(mean, axes, None if scale is None else np.asarray(scale, np.float64))
    mapped, sums = rows.mapped(squares.step), ColumnMoments(len(axes) + 1)
    found = read_once(mapped, sums, "residuals", progress=progress)
    if not found.count:
        raise ValueError(f"all {rows.n_rows} rows of X have missing or infinite values. Give rows of finite values.")
    of_scores, residual = float(found.mean[:-1].sum()), max(0.0, float(found.mean[-1]))  # means over the rows
    total = of_scores + residual
    return ReconstructionError(found.count, residual, residual / total if total > 0 else 0.0)


def frechet_distance(a: Any, b: Any) -> float:
    """Return the Fréchet distance between the Gaussians of the rows of two models, squared as FID is; nothing is read.

    ``|mean_a - mean_b|^2 + tr(C_a + C_b - 2 (C_a^1/2 C_b C_a^1/2)^1/2)``, of the means and covariances (divisor n - 1)
    of the unscaled features. On features of an Inception network it is the FID.

    Parameters
    ----------
    a, b : fitted PCA, with kept statistics
        ``n_components`` has no effect.

    Returns
    -------
    float
        At least 0.

    Raises
    ------
    TypeError
        For models of another class.
    ValueError
        If the numbers of features or the preprocessing differ, and for models without the moments of their rows.

    Notes
    -----
    Dowson & Landau (1982); Heusel et al. (2017). NOTE: the trace of the square root is the sum of the singular values
    of ``C_a^1/2 C_b^1/2``, each root by a symmetric eigenproblem. The square root of the product ``C_a C_b``, which is
    not symmetric, would lose half of the digits for nearly singular covariances, and could be complex.

    Examples
    --------
    >>> from bigpca import PCA
    >>> X = np.random.default_rng(0).standard_normal((100, 3))
    >>> round(frechet_distance(PCA(1).fit(X), PCA(2).fit(X + [3.0, 0.0, 4.0])), 6)
    25.0
    """
    with solving_with(setting(a, "solve_threads")):
        (mean, first), (other_mean, second) = map(_gaussian, moments_of_both(a, b, "frechet_distance"))
        apart = float(((mean - other_mean) ** 2).sum())
        traces = float((first**2).sum() + (second**2).sum())
        return max(0.0, apart + traces - 2 * float(svdvals(first @ second.T).sum()))


def _gaussian(moments: Moments) -> tuple[Vector, Matrix]:
    """Return the mean (d,) of rows, and their ``C^1/2``: ``sqrt(lambda_i) v_i`` (d, d).

    The root is determined up to a rotation from the left.
    """
    values, vectors = top_eigenpairs(moments.scatter / (moments.weight - 1))
    return moments.mean, np.asarray(vectors * np.sqrt(values)[:, None])


def strip_rows(d: int) -> int:
    """Return the rows of d float64 numbers in one strip."""
    return max(1, STRIP_BYTES // (8 * max(1, d)))


@dataclass(frozen=True)
class SquaredScores(Float64Map):
    """Row map to the squares of the scores and of what they leave: ``(t_1^2, ..., t_k^2, |x - sum t_i v_i|^2) / unit``.

    What is left is squared itself, because a difference of two large sums would lose a small one.

    Attributes
    ----------
    mean : ndarray of shape (d,)
    components : ndarray of shape (k, d)
        Orthonormal rows.
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
        return MapStep(self, k + 1, 4 * k * d + 4 * d, strip_rows(d))

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

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows, what the scores explain of them, scores and squares, in float64."""
        return 8 * rows * (2 * d + 2 * len(self.components) + 2), 0
