"""What components are made of: weights of examples, rows at both ends, and features that neighbours can replace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Integers, Vector
from bigpca.data.checks import check_scores
from bigpca.data.sources import open as open_array
from bigpca.errors import positive_integer
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.project import keys_of
from bigpca.passes.reading.row_maps import MapStep
from bigpca.passes.rows import Rows
from bigpca.passes.summaries import Ends, read_ends, reject_statistics
from bigpca.quality.measurement import ReplacementMoments, read_once
from bigpca.rules import Whitening
from bigpca.settings import setting


def example_importance(model: Any, X: Any) -> Any:
    """Return the entries of the dot matrix's eigenvectors: the weight of each example in each component.

    An axis of the covariance is a weighted sum of the examples, ``sqrt(lambda_i) c_i = sum_t v_ti (x_t - mean)``, with
    the unit eigenvectors v_i of the dot matrix Xc Xc' (n, n) and its eigenvalues lambda_i. For the rows of the fit,
    ``v_ti = score_ti / sqrt(lambda_i)`` with lambda_i = (n - 1) ``explained_variance_[i]``, without an n x n matrix.

    Parameters
    ----------
    model : fitted PCA
    X : the rows of its fit, (n, d), in any form that ``transform`` accepts
        For other rows the entries extend the eigenvectors, as in Nyström's method.

    Returns
    -------
    ndarray or Dask array of shape (n, k)
        Lazy for lazy input, with the same row chunks: one read of X when it is computed. For the rows of the fit its
        columns are orthonormal; signs are those of ``components_``. See :func:`top_examples`.

    Raises
    ------
    NotFittedError
        If the model was not fitted.
    ValueError
        If a component has variance 0: the scores do not determine its eigenvector.

    Notes
    -----
    Marukatat 2022, section 4.1, equation 25, with the conversion of equations 22 to 24.

    Examples
    --------
    >>> from bigpca import PCA
    >>> X = np.array([[-1.0, 0.0], [0.0, 0.0], [4.0, 0.0]])
    >>> V = example_importance(PCA(1).fit(X), X)
    >>> V.round(2).tolist(), round(float((V**2).sum()), 12)
    ([[-0.53], [-0.27], [0.8]], 1.0)
    """
    check_is_fitted(model, "components_")
    variances = np.asarray(model.explained_variance_, np.float64)
    empty = np.flatnonzero(~(variances > 0))
    if len(empty):
        raise ValueError(
            f"component {empty[0]} of {len(variances)} has variance {variances[empty[0]]:g}, so examples have no "
            f"weights in it. Fit with n_components = {max(1, int(empty[0]))}."
        )
    n, whiten = float(getattr(model, "sum_weights_", model.n_samples_)), getattr(model, "whiten", False)
    if isinstance(whiten, Whitening):
        if whiten.l2:
            raise ValueError(
                f"whiten = {whiten!r} divides the scores of each row by their norm, so they do not give the weights "
                f"of examples. Fit with l2=False."
            )
        lengths = np.sqrt((n - 1) * variances) / whiten.divisors(variances, 0)
    else:  # whitened scores have already been divided by their standard deviations
        lengths = np.full(len(variances), np.sqrt(n - 1)) if whiten else np.sqrt((n - 1) * variances)
    scores = model.transform(X)
    return scores / lengths.astype(scores.dtype)


def top_examples(importance: Any, component: int | None = 0, n: int = 10) -> Integers:
    """Return the row numbers of the examples with the largest weights, in decreasing order.

    Parameters
    ----------
    importance : ndarray or Dask array of shape (t, k)
        From :func:`example_importance`. A Dask array is computed block by block, in one read of its source.
    component : int or None, default 0
        Rank by ``|v_ti|`` of this component i; None for the leverage ``sum_i v_ti^2`` over all k.
    n : int, default 10
        How many to return, at most t.

    Returns
    -------
    ndarray of shape (min(n, t),), int64

    Raises
    ------
    ValueError
        If the component does not exist, ``n`` is not positive, or the number of rows is unknown.

    Examples
    --------
    >>> top_examples(np.array([[0.1, 0.9], [-0.8, 0.0], [0.5, 0.4]]), component=0, n=2).tolist()
    [1, 2]
    """
    rows, k = importance.shape
    if component is not None and not 0 <= component < k:
        raise ValueError(f"component = {component}, but there are {k}. Give 0 to {k - 1}, or None for all.")
    if n < 1:
        raise ValueError(f"n = {n} rows cannot be ranked. Give at least 1, for example 10.")
    if np.isnan(rows):
        raise ValueError(
            "importance has an unknown number of rows, so they cannot be numbered. Call compute_chunk_sizes() on it "
            "first."
        )
    weights = (importance**2).sum(axis=1) if component is None else abs(importance[:, component])
    weights = np.where(np.isnan(weights), -1.0, weights)  # rank rows without scores last; a Dask array stays lazy
    if hasattr(weights, "argtopk") and n < rows:
        return np.asarray(weights.argtopk(n).compute(), np.int64)
    return np.argsort(-np.asarray(weights), kind="stable")[:n].astype(np.int64)


def pixel_groups(image_shape: tuple[int, ...], cell: int | tuple[int, int]) -> Integers:
    """Return, for each pixel of flattened images, the top-left pixel of its cell: the tutorial's pixel grouping.

    Parameters
    ----------
    image_shape : (height, width) or (height, width, channels)
        Channels are grouped separately. Cells at the right and lower edges are smaller if the cell size does not divide
        the image size.
    cell : int or (rows, columns)
        Size of a cell in pixels.

    Returns
    -------
    ndarray of shape (d,), int64
        For :func:`feature_replacement_bound`; ``X[:, groups]`` are the images with grouped pixels.

    Raises
    ------
    ValueError
        If the shape is not that of an image, or the size of the cell is not positive.

    Notes
    -----
    Marukatat 2022, section 4.2 and figure 5c.

    Examples
    --------
    >>> pixel_groups((2, 4), 2).reshape(2, 4).tolist()
    [[0, 0, 2, 2], [0, 0, 2, 2]]
    """
    sizes = (cell, cell) if isinstance(cell, int) else cell
    if len(image_shape) not in (2, 3) or min(image_shape) < 1:
        raise ValueError(
            f"image_shape = {image_shape}, but (height, width) or (height, width, channels) of positive numbers was "
            "expected. Give the shape of one image before flattening."
        )
    if len(sizes) != 2 or min(sizes) < 1:
        raise ValueError(
            f"cell = {cell} is not a valid cell size. Give a positive integer, or (rows, columns), for example 2."
        )
    pixels = np.arange(int(np.prod(image_shape)), dtype=np.int64).reshape(image_shape)
    height, width = (np.arange(n) // size * size for n, size in zip(image_shape, sizes, strict=False))
    return pixels[np.ix_(height, width)].reshape(-1)


@dataclass(frozen=True)
class ReplacementBound:
    """Bounds of the change of eigenvalues when features are replaced by others.

    Attributes
    ----------
    n_rows : int
    features, replacements : ndarray of shape (r,), int64
        The features that are replaced by others, and their replacements.
    frobenius, spectral : ndarray of shape (r,)
        ``|D_a|_F`` (the tutorial's equation 35) and ``|D_a|_2 <= |D_a|_F`` of replacing feature a alone.
    correlations : ndarray of shape (r,)
        Correlation of each feature with its replacement, about their means (about 0 for ``center=False``); NaN if one
        of them is constant.
    singular_value_bound : float
        Bound of ``max_i |sigma_i - sigma~_i|`` for the singular values of Xc and X~c: ``|Xc - X~c|_F``.
    """

    n_rows: int
    features: Integers
    replacements: Integers
    frobenius: Vector
    spectral: Vector
    correlations: Vector
    singular_value_bound: float

    @property
    def bound(self) -> float:
        """Bound of ``max_i |lambda_i - lambda~_i|`` for eigenvalues of the dot matrices Xc Xc' and X~c X~c'."""
        return float(self.spectral.sum())

    @property
    def variance_bound(self) -> float:
        """The same for eigenvalues divided by n - 1, like ``explained_variance_``."""
        return self.bound / max(1, self.n_rows - 1)


def feature_replacement_bound(
    X: Any,
    replacements: ArrayLike,
    *,
    center: bool = True,
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
) -> ReplacementBound:
    """Bound the effect on eigenvalues of replacing features by others, such as neighbouring pixels.  # one pass over X

    With the columns x_a (n,) of the centred X (n, d), and X~ = ``X[:, replacements]``, replacing a by b alone gives

    - ``X X' = X~ X~' + D`` with ``D = x_a x_a' - x_b x_b'`` (n, n)    (equations 26 to 29),
    - ``max_i |lambda_i - lambda~_i| <= |D|_2 <= |D|_F``    (equation 30),
    - ``|D|_F^2 = S_aa^2 + S_bb^2 - 2 S_ab^2`` with ``S = X'X`` (d, d)    (equations 31 to 35),

    so correlated features can replace each other. D has rank 2, which also gives the spectral norm. With
    e = x_a - x_b and s = x_a + x_b, ``D = (e s' + s e') / 2``, ``|D|_2 = (|e's| + |e| |s|) / 2`` and
    ``|D|_F^2 = ((e's)^2 + |e|^2 |s|^2) / 2``: the same numbers, without the cancellation of equation 35 if a and b are
    nearly equal. Costs 6 n d flops; memory: the blocks being read and vectors of length d.

    Parameters
    ----------
    X : Dask array, path, Zarr array, xarray.DataArray or ndarray of shape (n, d)
    replacements : array-like of shape (d,), int
        The number of the feature that replaces each feature; its own number keeps it. See :func:`pixel_groups`.
    center : bool, default True
        Subtract the means; False bounds the eigenvalues of the uncentred X.
    memory_limit : int, str or None, default None
        Per process; None for the limit of the live workers, or the machine's free memory.
    progress : True for a bar, or a callable that receives events, default None

    Returns
    -------
    ReplacementBound

    Raises
    ------
    ValueError, TypeError
        If ``replacements`` are not d feature numbers.
    MemoryBudgetError
        Before any read, if the blocks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read.

    Notes
    -----
    Marukatat 2022, section 4.2. NOTE: the tutorial bounds a single replacement. Grouping replaces many features at
    once; ``X X' - X~ X~'`` is then the sum of their D_a, each from the original columns; ``bound`` is the sum of their
    spectral norms. The bound always holds, but ignores that terms partly cancel: pairs of pixels of 8 x 8 digits change
    lambda_1 by a tenth, while the bound is 3 lambda_1. ``singular_value_bound`` (Weyl's inequality for singular values,
    not in the tutorial) grows only with the square root of their number.

    Examples
    --------
    >>> X = np.array([[1.0, 1.1, 0.0], [-1.0, -0.9, 2.0], [0.0, -0.2, -2.0]])
    >>> found = feature_replacement_bound(X, [1, 1, 2])
    >>> exact, grouped = (np.linalg.eigvalsh(A @ A.T) for A in (X, X[:, [1, 1, 2]]))
    >>> bool(np.abs(exact - grouped).max() <= found.bound), round(found.bound, 2)
    (True, 0.38)
    """
    rows = Rows.of(open_array(X))
    d, chosen = rows.n_columns, np.asarray(replacements)
    if chosen.dtype.kind not in "iu":
        raise TypeError(f"replacements are {chosen.dtype}, but features are numbered by integers. Convert them.")
    if chosen.shape != (d,):
        raise ValueError(
            f"replacements have shape {chosen.shape}, but one feature number for each of {d} features was expected. "
            f"Start with np.arange({d}) and change the entries to replace."
        )
    bad = np.flatnonzero((chosen < 0) | (chosen >= d))
    if len(bad):
        raise ValueError(
            f"feature {bad[0]} is replaced by feature {chosen[bad[0]]}, but there are only 0 to {d - 1}. Correct it."
        )
    chosen = chosen.astype(np.int64)
    found = read_once(rows, ReplacementMoments(chosen), "replacements", memory_limit=memory_limit, progress=progress)
    own, apart = found.own, found.difference
    mean, offset = (own.mean, apart.mean) if not center else (np.zeros(1), np.zeros(1))
    squares = own.squares + own.count * mean**2  # S_aa
    e = np.maximum(apart.squares + apart.count * offset**2, 0.0)  # |e|^2
    features = np.flatnonzero(chosen != np.arange(rows.n_columns))
    a, b, e = squares[features], squares[chosen[features]], e[features]
    s = np.maximum(2 * (a + b) - e, 0.0)  # |s|^2
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = (a + b - e) / 2 / (np.sqrt(a) * np.sqrt(b))
    product, lengths = np.abs(a - b), np.sqrt(e) * np.sqrt(s)  # |e's|, |e| |s|
    frobenius, spectral = np.hypot(product, lengths) / np.sqrt(2), (product + lengths) / 2
    apart_norm = float(np.sqrt(e.sum()))
    return ReplacementBound(own.count, features, chosen[features], frobenius, spectral, correlations, apart_norm)


def extremes(model: Any, X: Any, n: int = 10, *, progress: ProgressArgument = None) -> Ends:
    """Return the rows with the lowest and highest scores of each component, in one read and bounded memory.

    They show what a component means. Among equal scores, the first rows are returned.

    Parameters
    ----------
    model : fitted model, or None for scores of any model
    X : array-like, Dask array, path and so on
        Rows (n, d), which are transformed as they are read, or scores (n, k): an array with as many columns as the
        model has components (and not as many as it has features) is treated as scores.
    n : int, default 10
        How many to return at each end, at most all rows.
    progress : True, "auto", a callable that receives events, or None, default None
        True shows a bar; "auto" shows one after two seconds.

    Returns
    -------
    Ends
        Row numbers and scores, the furthest first, and keys if the source stores keys. Rows without scores (NaN) and,
        with ``nan_policy="omit"``, rows with NaN are left out.

    Raises
    ------
    TypeError, ValueError
        If ``n`` is not a positive integer, and for a table of statistics instead of scores.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.

    Examples
    --------
    >>> import numpy as np
    >>> from bigpca import PCA
    >>> X = np.array([[0.0, 0], [5, 1], [-7, 0], [2, -1]])
    >>> ends = extremes(PCA(1).fit(X), X, n=1)
    >>> ends.lowest.tolist(), ends.highest.tolist()
    ([[2]], [[1]])
    """
    n = positive_integer("n", n)
    if model is not None:
        if not isinstance(model, BaseEstimator):
            raise TypeError(
                f"model is a {type(model).__name__}; a fitted model or None was expected: extremes(model, X)."
            )
        check_is_fitted(model)
    opened = open_array(X)
    if model is None or (opened.shape[1] == model._n_features_out != model.n_features_in_):
        check_scores(opened)
        if model is not None:
            remedy = "Give rows or scores, or None as the model: extremes(None, X)."
            reject_statistics(opened, model._n_features_out, remedy)
        rows = scores = Rows.of(opened, nan_policy="omit")
    else:
        rows, _ = model._rows(model._open_like(X))
        k = model._n_features_out
        scores = rows.mapped(MapStep(model._row_map(), k, 2 * rows.n_columns * k))
    limit = None if model is None else setting(model, "memory_limit")
    ends = read_ends(scores, n, memory_limit=limit, progress=progress).ends
    return ends.with_keys(keys_of(rows))
