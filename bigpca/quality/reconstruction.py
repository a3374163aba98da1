"""The distance of rows from a model's subspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bigpca.estimators.shared.inputs import as_fitted, open_rows
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.reading.preprocessing import preprocessors
from bigpca.passes.reading.row_maps import MapStep
from bigpca.passes.rows import RowInput
from bigpca.quality.axes import orthonormal, unit_rows
from bigpca.quality.reading import read_once
from bigpca.quality.states import Residuals, Subspace


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
    model: Any, X: Any, *, memory_limit: int | str | None = None, progress: ProgressArgument = None
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
        Per process; None for the limit of the live workers, or the machine's free memory.
    progress : True for a bar, or a callable that receives events, default None

    Returns
    -------
    ReconstructionError

    Raises
    ------
    NotFittedError
        If the model was not fitted.
    ValueError
        If X has another number of features, or no rows.
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
    check_is_fitted(model, "components_")
    components = np.asarray(model.components_, np.float64)
    k, d = components.shape
    axes = orthonormal(unit_rows(components, "components_"), "components_")
    mean = np.zeros(d) if getattr(model, "mean_", None) is None else np.asarray(model.mean_, np.float64)
    scale = getattr(model, "scale_", None)
    policies = {name: getattr(model, name) for name in ("nan_policy", "missing_chunks") if hasattr(model, name)}
    opened = as_fitted(model, open_rows(X, type(model).__name__))
    maps = preprocessors(getattr(model, "preprocess", None))
    rows = RowInput(opened.array, **policies)
    rows = rows.mapped(*(MapStep(one, rows.n_columns) for one in maps))
    subspace = Subspace(mean, None if scale is None else np.asarray(scale, np.float64), axes)
    found = read_once(rows, Residuals(d, k, subspace), "residuals", memory_limit=memory_limit, progress=progress)
    if not found.count:
        raise ValueError(
            f"none of the {rows.n_rows} rows of X can be measured; at least one with finite values was expected."
        )
    relative = found.residual / found.total if found.total > 0 else 0.0
    return ReconstructionError(found.count, found.residual / found.count, relative)
