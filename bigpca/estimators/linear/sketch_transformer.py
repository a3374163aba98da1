"""A sketch as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any, Self

from numpy.typing import NDArray

from bigpca.estimators.linear.maps import Sketching, reject_non_finite
from bigpca.estimators.shared.files import StoredModel
from bigpca.estimators.shared.inputs import is_lazy
from bigpca.estimators.shared.transformer import RowTransformer
from bigpca.passes.rows import RowInput
from bigpca.sketches import Gaussian, Sketch

DEFAULT_COLUMNS = 100
CHECKED_ROWS = 8192  # of X in memory at a time


class SketchTransformer(RowTransformer):
    """Rows made short by a sketch, ``X @ W``, which keeps their dot products on average.

    Parameters
    ----------
    sketch : Sketch or None
        Such as ``bigpca.sketches.Gaussian(q)``; None for a Gaussian one of 100 columns, or of d where there are fewer: dot
        products of rows are then off by some 10 % of the rows' lengths.
    nan_policy : {"raise", "omit"}
        Rows with NaN or infinities: an error, or sketches of NaN.
    missing_chunks : {"raise", "fill"}
        Chunks of Zarr and HDF5 that do not exist: an error, or the fill value.
    memory_limit : int, str or None
        Per process, for ``transform(X, out=...)``; None asks the live workers, or the machine for its free memory.
    workers_timeout : float
        Seconds without any worker after which a run on a cluster is given up.

    Attributes
    ----------
    sketch_ : Sketch
        The one that was given, or the default.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, where X had names

    Examples
    --------
    >>> import numpy as np
    >>> from bigpca.sketches import FeatureHash
    >>> SketchTransformer(FeatureHash(2)).fit_transform(np.ones((3, 5))).shape
    (3, 2)
    """

    _output_name = "sketches"

    def __init__(
        self,
        sketch: Sketch | None = None,
        *,
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        workers_timeout: float = 60.0,
    ) -> None:
        self.sketch = sketch
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.workers_timeout = workers_timeout

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn number and names of features. Lazy X is not read; X in memory is searched for NaN and infinities.

        Parameters
        ----------
        X : Dask array, path, Zarr array, xarray.DataArray, or anything array-like
        y : ignored

        Raises
        ------
        TypeError
            For what is no sketch.
        ValueError
            Where the sketch does not suit that number of features, or a policy is unknown.
        NonFiniteError
            Where X in memory is not finite and ``nan_policy="raise"``.
        """
        policies, opened = self._policies, self._open(X)
        sketch = self._sketch_for(opened.n_features)
        if not is_lazy(X) and policies["nan_policy"] == "raise":
            rows = RowInput(opened.array)
            for start in range(0, rows.n_rows, CHECKED_ROWS):
                stop = min(start + CHECKED_ROWS, rows.n_rows)
                reader, _ = rows.reader(start, stop)
                reject_non_finite(reader.read(start, stop), reader.where(start, stop), self._output_name)
        self._remember(opened)
        self.sketch_ = sketch
        return self

    # Inside ---------------------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "sketch_")

    def _sketch_for(self, d: int) -> Sketch:
        """Return the sketch of d features, given or by default, having checked that it suits them."""
        sketch = Gaussian(min(d, DEFAULT_COLUMNS)) if self.sketch is None else self.sketch
        if not isinstance(sketch, Sketch):
            raise TypeError(
                f"sketch = {sketch!r} is no sketch; one of bigpca.sketches was expected, such as bigpca.sketches.Gaussian(64) "
                f"for sketches of 64 columns, or None. Pass one."
            )
        sketch.width(d)
        return sketch

    @property
    def _n_features_out(self) -> int:
        return self.sketch_.width(self.n_features_in_)

    def _row_map(self) -> Sketching:
        return Sketching(self.sketch_, self._policies["nan_policy"])

    def _fitted_values(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        return {}, {"n_features": self.n_features_in_}

    def _restore(self, stored: StoredModel) -> None:
        self.sketch_ = self._sketch_for(stored.attributes["n_features"])
        self.n_features_in_ = int(stored.attributes["n_features"])
