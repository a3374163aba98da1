"""``transform``, and all other methods that map the rows of X: lazily, in memory, or to a store."""

from __future__ import annotations

from typing import ClassVar, Protocol

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigpca.data.batches import has_batches, reject_batches
from bigpca.data.containers import is_labelled
from bigpca.data.grids import labels_of
from bigpca.errors import ShortTraceback
from bigpca.estimators.shared.grids import by_component, grid_of, labelled_rows, rows_on_grid
from bigpca.estimators.shared.inputs import Input, Lazy, Opened, is_lazy, open_scores
from bigpca.estimators.shared.outputs import Destination, Path, check_float, map_rows, reject_container, write_rows
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.reading.casts import Stored
from bigpca.passes.reading.preprocessing import RowPreprocessor
from bigpca.passes.reading.row_maps import RowMap, chained
from bigpca.passes.rows import RowInput
from bigpca.passes.writing import Made
from bigpca.settings import setting


class Transforming(Protocol):
    """A fitted estimator that maps rows."""

    missing_chunks: str
    n_features_in_: int
    _output_name: ClassVar[str]

    @property
    def _n_features_out(self) -> int: ...

    @property
    def _policies(self) -> dict[str, Input]: ...

    @property
    def _called(self) -> str: ...

    def get_feature_names_out(self) -> NDArray[np.object_]: ...

    def _row_map(self) -> RowMap: ...

    def _fitted_preprocessors(self) -> tuple[RowPreprocessor, ...]: ...

    def _digest(self) -> str: ...

    def _open(self, X: Input, *, minimum: int = 1) -> Opened: ...

    def _open_like(self, X: Input) -> da.Array: ...

    def fit(
        self, X: Input, y: Input = None, *, sample_weight: Input = None, checkpoint: Path | None = None,
        progress: ProgressArgument = None,
    ) -> Transforming: ...  # fmt: skip

    def transform(self, X: Input) -> Lazy: ...


def transform(
    self: Transforming, X: Input, *, out: Path | None = None, overwrite: bool = False,
    progress: ProgressArgument = None, keys: Input = None, dtype: Input = None,
) -> Lazy:  # fmt: skip
    """Map X (n, d) row by row: lazily and with the same row chunks if X is lazy, else at once.

    If the model was fitted on rows of a pattern, stored samples (n, c, h, w) are cut by it again. Rows that
    :func:`bigpca.from_batches` returned are mapped at once, in their order, while the batches are iterated.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    out : path, default None
        Write to a new Zarr array in one read, and return the Dask array over it. The array is invisible until it is
        complete, and a killed run resumes (that of batches begins again). ``"scores.npy"`` is a file of shape
        (n, k), or with keys of records with the fields ``key`` and ``scores``; ``"scores.parquet"`` is a table with
        a column ``key`` and those of :meth:`get_feature_names_out`.
    overwrite : bool, default False
        Replace an existing ``out`` once the new one is complete.
    progress : True for a bar, or a callable that receives events, default None
    keys : array-like of shape (n,), or path such as ``"labels.csv::filename"``, default None
        A distinct string or integer for each row, stored beside the scores; None for the keys in the store of X, if
        it has any. :func:`bigpca.data.keys.stored_keys` returns them.
    dtype : {"float16", "float32", "float64"}, default None
        Dtype of the scores, which are computed as without it; None for that dtype. Scores that it cannot hold are
        rejected.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, k)
        Scores, in float32 if it represents every number of the dtype of X, else float64. Lazy if X is lazy, and
        with ``out``. For a DataArray, a DataArray with the coordinates of its samples and a dimension
        ``component``, numbered from 1. For a Dask DataFrame after ``set_output(transform="pandas")``, a Dask
        DataFrame with its index.

    Raises
    ------
    NonFiniteError, MissingChunksError, CorruptedChunkError
        During the read; the message names rows and block.
    OutputExistsError, OutputLockedError, MemoryBudgetError, ImportError
        Before any read, if ``out`` exists, is in use, exceeds the disk or memory, or requires a missing library.
    ValueError
        Before any read, for missing or duplicate keys, a number of keys other than n, or keys without ``out``; for
        a DataArray on another grid than that of the fit.
    """
    check_is_fitted(self)
    if out is not None or is_lazy(X):
        reject_container(self, self._output_name, X if out is None else None)
    names = () if out is None else tuple(map(str, self.get_feature_names_out()))
    to = Destination(out, overwrite, progress, keys, names)
    with ShortTraceback():
        f = self._row_map() if dtype is None else Stored(self._row_map(), check_float(dtype))
        opened = self._open_like(X)
        scores = mapped(self, X, opened, f, self._n_features_out, to)
    labels = labels_of(opened) if is_labelled(X) else None
    return scores if labels is None else labelled_rows(scores, labels, self._output_name)


def fit_transform(self: Transforming, X: Input, y: Input = None, **options: Input) -> Lazy:
    """Fit to X and return its transform, which reads X once more (a lazy result: when it is computed).

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    y : labels as for :meth:`fit`, default None
    **options
        ``checkpoint`` and ``progress``, as for :meth:`fit`.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, k)
        Scores. Lazy if X is lazy.
    """
    if is_lazy(X):
        reject_container(self, self._output_name, X)
        if has_batches(opened := self._open(X).array):
            raise TypeError(
                "fit_transform maps the rows in a further read, which an iterator does not have, and in which "
                "batches may come in another order. Call fit(X) and then transform(X) with what from_batches "
                "returns."
            )
        reject_batches(opened, self._output_name)
    return self.fit(X, y, **options).transform(X)


def mapped(self: Transforming, X: Input, opened: da.Array, f: RowMap, columns: int, to: Destination) -> Lazy:
    """Return ``f`` of the rows of X, preprocessed, which ``opened`` holds as a Dask array."""
    return mapped_as_given(self, X, opened, chained(self._fitted_preprocessors(), f), columns, to)


def mapped_as_given(self: Transforming, X: Input, opened: da.Array, f: RowMap, columns: int, to: Destination) -> Lazy:
    """Return ``f`` of X, which is not preprocessed, such as scores."""
    if to.out is None:
        limit = setting(self, "memory_limit")
        return map_rows(X, opened, f, columns, missing_chunks=self.missing_chunks, memory_limit=limit)
    rows, what = RowInput(opened, **self._policies), to.what or self._output_name
    made = Made(f"{what} of X by {self._called}", self._digest(), to.keys)
    return write_rows(rows, f, columns, to, name=what, made=made, memory_limit=setting(self, "memory_limit"))


def mapped_to_numbers(
    self: Transforming, X: Input, f: RowMap, what: str, to: Destination | None = None, *, dim: str | None = None,
    values: Input = None,
) -> Lazy:  # fmt: skip
    """Return ``f`` of the rows of X: a number of each (n,), or (n, 1) in ``to.out``.

    Where ``values`` name the columns of f, they are (n, k), along ``dim`` for a DataArray X, whose samples label rows.
    """
    opened, to = self._open_like(X), to or Destination()
    found = mapped(self, X, opened, f, 1 if dim is None else len(values), to)
    labels = labels_of(opened) if is_labelled(X) else None
    if labels is not None:
        return labelled_rows(found, labels, what, dim, values)
    return found[:, 0] if dim is None and to.out is None else found


def mapped_to_rows(self: Transforming, X: Input, f: RowMap, to: Destination) -> Lazy:
    """Return ``f`` of the rows of X as rows (n, d), on the grid of the fit if X is a DataArray."""
    opened = self._open_like(X)
    return _on_grid(self, X, opened, mapped(self, X, opened, f, self.n_features_in_, to), to.what)


def mapped_back(self: Transforming, X: Input, back: RowMap, to: Destination) -> Lazy:
    """Return ``back`` of scores X (n, k): rows (n, d), on the grid of the fit if X is a DataArray."""
    opened = open_scores(by_component(X, self._n_features_out), type(self).__name__, self._n_features_out)
    return _on_grid(self, X, opened, mapped_as_given(self, X, opened, back, self.n_features_in_, to))


def _on_grid(self: Transforming, X: Input, opened: da.Array, rows: Lazy, what: str = "") -> Lazy:
    labels, grid = labels_of(opened) if is_labelled(X) else None, grid_of(self)
    return rows if labels is None else rows_on_grid(rows, labels, grid, what or grid.name)
