"""How well an approximation agrees with what it approximates: axes, eigenvalues, reconstructions, dot products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr, svdvals
from sklearn.utils.validation import check_is_fitted

from bigpca.data.sources import open as open_array
from bigpca.estimators.shared.inputs import as_dask
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.rows import RowInput
from bigpca.quality.reading import read_once, read_rows
from bigpca.quality.states import Residuals, Subspace, strip_rows
from bigpca.seeds import check_seed, uniforms

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

POOL_BYTES = 128 << 20  # of sampled rows of X that are held at a time


def similarity(V: ArrayLike, V2: ArrayLike) -> Vector:
    """Compare axes one by one: ``Sim_i = |v_i' v2_i| / (|v_i| |v2_i|)``, 1 for the same axis up to its sign.

    It punishes rotations inside near-equal eigenvalues, where the axes are arbitrary but their span is right: look at
    :func:`principal_angles` too.

    Parameters
    ----------
    V, V2 : array-like of shape (k, d); rows are components, of any length

    Returns
    -------
    ndarray of shape (k,), in [0, 1]

    Raises
    ------
    ValueError
        Where shapes differ, or a row has no direction (length 0, or not finite).

    Notes
    -----
    Marukatat 2022, the comparisons of section 5.5.

    Examples
    --------
    >>> similarity([[1.0, 0.0], [0.0, 1.0]], [[-2.0, 0.0], [3.0, 4.0]]).tolist()
    [1.0, 0.8]
    """
    A, B = _unit_rows(V, "V"), _unit_rows(V2, "V2")
    if A.shape != B.shape:
        raise ValueError(
            f"V has shape {A.shape} and V2 {B.shape}; the same (k, d) was expected, rows in the same order. Cut the "
            "longer one, or compare whole subspaces with principal_angles."
        )
    return np.asarray(np.minimum(np.abs(np.einsum("ij,ij->i", A, B)), 1.0))


def eigenvalue_difference(eigenvalues: ArrayLike, eigenvalues2: ArrayLike) -> Vector:
    """Compare eigenvalues one by one: ``Diff_i = |l_i - l2_i| / l_i``, relative to the first ones.

    Parameters
    ----------
    eigenvalues, eigenvalues2 : array-like of shape (k,); the exact ones first

    Returns
    -------
    ndarray of shape (k,)

    Raises
    ------
    ValueError
        Where shapes differ, or one of the first eigenvalues is not positive.

    Notes
    -----
    Marukatat 2022, the comparisons of section 5.5.

    Examples
    --------
    >>> eigenvalue_difference([4.0, 2.0], [3.0, 2.0]).tolist()
    [0.25, 0.0]
    """
    exact, found = np.asarray(eigenvalues, np.float64), np.asarray(eigenvalues2, np.float64)
    if exact.ndim != 1 or exact.shape != found.shape:
        raise ValueError(
            f"eigenvalues have shapes {exact.shape} and {found.shape}; the same (k,) was expected. Cut one."
        )
    bad = np.flatnonzero(~(exact > 0))
    if len(bad):
        raise ValueError(
            f"eigenvalue {bad[0]} is {exact[bad[0]]:g}, but differences are relative to positive ones. Compare the "
            f"{bad[0]} before it."
        )
    return np.asarray(np.abs(exact - found) / exact)


def principal_angles(V: ArrayLike, V2: ArrayLike) -> Vector:
    """Compare whole subspaces: the principal angles between the spans of the rows, in radians, largest first.

    With orthonormal rows Q and Q2 of the two spans, their cosines are the singular values of Q Q2', their sines those
    of ``Q - (Q Q2') Q2`` where Q is the smaller; each angle is taken from both, so that 1e-12 comes out as such, where
    the cosine is 1 in all digits. Costs O(d k^2).

    Parameters
    ----------
    V : array-like of shape (k, d)
    V2 : array-like of shape (k2, d); rows are components, orthonormal or not

    Returns
    -------
    ndarray of shape (min(k, k2),), in [0, pi/2]

    Raises
    ------
    ValueError
        Where the numbers of columns differ, values are not finite, or rows are linearly dependent.

    Notes
    -----
    Bjorck & Golub 1973, theorem 1 and section 3; Knyazev & Argentati 2002, algorithm 3.1. NOTE: ``arctan2``
    of both, where they choose one: SciPy 1.17's ``subspace_angles`` chooses the cosine for small angles
    beside large ones, and is then off by 1e-8.

    Examples
    --------
    >>> principal_angles([[1.0, 0.0, 0.0]], [[1.0, 1e-12, 0.0]]).tolist()
    [1e-12]
    """
    A, B = _unit_rows(V, "V"), _unit_rows(V2, "V2")
    if A.shape[1] != B.shape[1]:
        raise ValueError(
            f"V has rows of length {A.shape[1]} and V2 of {B.shape[1]}; axes of the same space were expected. Pass the "
            "components of the same features."
        )
    Q, Q2 = sorted((_orthonormal(A, "V"), _orthonormal(B, "V2")), key=len)
    cross = Q @ Q2.T
    cosines, sines = svdvals(cross), svdvals(Q - cross @ Q2)
    return np.asarray(np.arctan2(sines, cosines[::-1]))  # largest sine beside smallest cosine


def _unit_rows(V: ArrayLike, name: str) -> Matrix:
    rows = np.asarray(V, np.float64)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{name} has shape {rows.shape}; rows of components, (k, d), were expected. Reshape it.")
    largest = np.abs(rows).max(axis=1, keepdims=True)
    bad = np.flatnonzero(~((largest > 0) & np.isfinite(largest)))
    if len(bad):
        raise ValueError(
            f"row {bad[0]} of {name} has no direction: its largest entry is {largest[bad[0], 0]:g}. Finite rows of "
            "positive length were expected. Leave it out."
        )
    scaled = rows / largest  # squares of the entries could overflow
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1, keepdims=True))


def _orthonormal(rows: Matrix, name: str) -> Matrix:
    """Return orthonormal rows of the same span, refusing rows (of unit length) that depend on one another."""
    Q, R, _ = qr(rows.T, mode="economic", pivoting=True)
    least = float(np.abs(np.diagonal(R)).min()) if len(rows) <= rows.shape[1] else 0.0
    if least <= max(rows.shape) * np.finfo(np.float64).eps:
        raise ValueError(
            f"the {len(rows)} rows of {name} are linearly dependent (to {least:.1g}), so they span fewer dimensions; "
            f"independent rows were expected. Leave out the redundant ones."
        )
    return np.ascontiguousarray(Q.T)


@dataclass(frozen=True)
class ReconstructionError:
    """How far rows lie from a model's subspace.

    Attributes
    ----------
    n_rows : int
        Rows measured.
    mean_squared : float
        Mean over the rows of ``|x_s - x_s^|^2``, with ``x_s = (x - mean) / scale`` as the model scales.
    relative : float
        The same as a share of the mean of ``|x_s|^2``, the total variance of these rows about the model's mean: on the
        rows of the fit it is 1 - the sum of ``explained_variance_ratio_``. 0 where there is no variance.
    """

    n_rows: int
    mean_squared: float
    relative: float


def reconstruction_error(
    model: Any, X: Any, *, memory_limit: int | str | None = None, progress: ProgressArgument = None
) -> ReconstructionError:
    """Measure how far the rows of X lie from a model's subspace.  # one pass over X

    ``x_s^`` is the closest point of the span of ``components_``: what ``inverse_transform(transform(x))`` gives where
    they are orthonormal, and the least-squares reconstruction where they are not. Residuals are squared row by row in
    float64, so a relative error of 1e-20 comes out as such. Costs 4 n d k flops; memory: the blocks being read, 8 MiB
    of scratch space, and the components.

    Parameters
    ----------
    model : fitted PCA, or another scikit-learn estimator with ``components_`` (k, d), and
        perhaps ``mean_`` and ``scale_``
    X : Dask array, path, Zarr array, xarray.DataArray, or anything array-like of shape (n, d)
    memory_limit : int, str or None
        Per process; None asks the live workers, or the machine for its free memory.
    progress : True for a bar, or a callable that takes events

    Returns
    -------
    ReconstructionError

    Raises
    ------
    NotFittedError
        Where the model was not fitted.
    ValueError
        Where X has another number of features, or no rows.
    MemoryBudgetError
        Before any read, where the blocks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; a model with ``nan_policy="omit"`` leaves rows with NaN out here too.

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
    check_is_fitted(model, "components_")
    components = np.asarray(model.components_, np.float64)
    k, d = components.shape
    axes = _orthonormal(_unit_rows(components, "components_"), "components_")
    mean = np.zeros(d) if getattr(model, "mean_", None) is None else np.asarray(model.mean_, np.float64)
    scale = getattr(model, "scale_", None)
    policies = {name: getattr(model, name) for name in ("nan_policy", "missing_chunks") if hasattr(model, name)}
    rows = RowInput(as_dask(model, X, reset=False), **policies)
    subspace = Subspace(mean, None if scale is None else np.asarray(scale, np.float64), axes)
    found = read_once(rows, Residuals(d, k, subspace), "residuals", memory_limit=memory_limit, progress=progress)
    if not found.count:
        raise ValueError(
            f"none of the {rows.n_rows} rows of X is left to measure; at least one of finite values was expected."
        )
    relative = found.residual / found.total if found.total > 0 else 0.0
    return ReconstructionError(found.count, found.residual / found.count, relative)


@dataclass(frozen=True)
class DotProductError:
    """How well dot products of rows are kept by their sketches, on sampled pairs.

    Attributes
    ----------
    pairs : ndarray of shape (n_pairs, 2), int64
        Row numbers.
    exact, approximate : ndarray of shape (n_pairs,)
        ``x_i' x_j`` and ``z_i' z_j``.
    norms : ndarray of shape (n_pairs,)
        ``|x_i| |x_j|``.
    """

    pairs: NDArray[np.int64]
    exact: Vector
    approximate: Vector
    norms: Vector

    @property
    def mape(self) -> float:
        """Mean of ``|x'y - z'w| / |x'y|``, as a proportion; infinite where a product is 0 and its sketch is not."""
        return float(np.mean(self._relative_to(np.abs(self.exact))))

    @property
    def median(self) -> float:
        """Median of ``|x'y - z'w| / |x'y|``, which a few products near 0 do not move."""
        return float(np.median(self._relative_to(np.abs(self.exact))))

    @property
    def relative_to_norms(self) -> float:
        """Mean of ``|x'y - z'w| / (|x| |y|)``, which does not explode where x'y is near 0: about 1 / sqrt(q)."""
        return float(np.mean(self._relative_to(self.norms)))

    def _relative_to(self, base: Vector) -> Vector:
        errors = np.abs(self.exact - self.approximate)
        ratio = np.full(len(errors), np.inf)
        np.divide(errors, base, out=ratio, where=base > 0)
        ratio[errors == 0] = 0.0
        return ratio


def dot_product_error(X: Any, Z: Any, n_pairs: int = 1000, seed: int = 0) -> DotProductError:
    """Measure how well ``z_i' z_j`` of a sketch Z keeps ``x_i' x_j``, on pairs of distinct rows drawn by ``seed``.

    MAPE is the tutorial's measure; it explodes where x'y is near 0, so the median and the error relative to |x| |y|
    stand beside it. Pairs are drawn from at most 2 ``n_pairs`` sampled rows, or as many as fill 128 MiB, and only those
    rows are read (with what is stored in their chunks): part of one read of X and of Z. Centre X first, or not: the
    products are taken of the rows as given.

    Parameters
    ----------
    X : (n, d), Z : (n, q)
        Anything :func:`bigpca.open` takes, each: NumPy, Dask, Zarr, paths.
    n_pairs : int
        Sampled pairs, at least 1.
    seed : int
        The same seed, n and d give the same pairs, whatever the chunks.

    Returns
    -------
    DotProductError
        With ``mape``, ``median``, ``relative_to_norms``, and the pairs themselves.

    Raises
    ------
    ValueError
        Where X and Z have different numbers of rows, or fewer than 2, or ``n_pairs`` or ``seed`` are out of range.
    TypeError
        Where ``seed`` is not an integer.
    MemoryBudgetError
        Before any read, where the rows and their chunks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read.

    Notes
    -----
    Marukatat 2022, section 4.5 and figure 6 (mean absolute proportion error).

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((50, 20))
    >>> dot_product_error(X, 2 * X).mape  # four times too large
    3.0
    """
    if isinstance(n_pairs, bool) or not isinstance(n_pairs, int | np.integer) or n_pairs < 1:
        raise ValueError(
            f"n_pairs = {n_pairs!r}, but a number of pairs, at least 1, was expected. Give for example 1000."
        )
    original, sketch = RowInput(open_array(X)), RowInput(open_array(Z))
    n = original.n_rows
    if n != sketch.n_rows or n < 2:
        raise ValueError(
            f"X has {n} rows and Z {sketch.n_rows}; the same number, at least 2, was expected: row i of Z is the "
            "sketch of row i of X. Pass the sketch of these rows."
        )
    pool, first, second = _draw_pairs(n, 8 * original.n_columns, int(n_pairs), check_seed(seed))
    exact, norms = _products(read_rows(original, pool, "pairs"), first, second)
    approximate, _ = _products(read_rows(sketch, pool, "pairs"), first, second)
    return DotProductError(np.column_stack([pool[first], pool[second]]), exact, approximate, norms)


def _draw_pairs(n: int, row_bytes: int, n_pairs: int, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Return ascending row numbers, and pairs of distinct places among them."""
    held = max(2, min(n, 2 * n_pairs, POOL_BYTES // row_bytes))
    edges = np.arange(held + 1) * n // held  # one row from each of as many equal parts of the file
    pool = edges[:-1] + (uniforms(seed, "sampled rows", 0, held, 1)[:, 0] * np.diff(edges)).astype(np.int64)
    places = uniforms(seed, "pairs of rows", 0, n_pairs, 2)
    first = (places[:, 0] * held).astype(np.int64)
    second = (first + 1 + (places[:, 1] * (held - 1)).astype(np.int64)) % held
    return pool, first, second


def _products(rows: NDArray[Any], first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """Return x'y and |x| |y| of pairs of rows, in float64, a few pairs at a time."""
    step = strip_rows(rows.shape[1])
    products, norms = np.empty(len(first)), np.empty(len(first))
    for i in range(0, len(first), step):
        left, right = (rows[places[i : i + step]].astype(np.float64) for places in (first, second))
        products[i : i + step] = np.einsum("ij,ij->i", left, right)
        norms[i : i + step] = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return products, norms
