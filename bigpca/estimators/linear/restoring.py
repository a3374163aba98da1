"""Rows back from scores, and rows without some of their components."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigpca.estimators.linear.axes import component_numbers, dual_axes
from bigpca.estimators.linear.judging import Judging, plain_projection
from bigpca.estimators.linear.maps import Reconstruction, Removal
from bigpca.estimators.shared.inputs import Input, Lazy
from bigpca.estimators.shared.outputs import Destination, Path
from bigpca.estimators.shared.transforming import Transforming, mapped_back, mapped_to_rows
from bigpca.passes.engine.solving import solving
from bigpca.solvers.whitening import Whitening


class Restoring(Judging, Protocol):
    """A fitted linear model."""

    whiten: bool | Whitening

    @property
    def _whitening(self) -> Whitening | None: ...

    def _deviations(self) -> NDArray[np.float64] | None: ...


class Reconstructing(Transforming, Protocol):
    """A fitted model that reconstructs rows from scores."""

    def _reconstruction(self) -> Reconstruction: ...


@solving
def inverse_transform(self: Reconstructing, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
    """Return rows (n, d) from scores (n, k): the least-squares reconstruction of the preprocessed rows.

    For axes U (d, k) that is ``mean + U (U'U)^-1 y`` (SPCA paper, eq. 4), and after a rotation ``mean + loadings_ y``,
    which is what the PCA reconstructs. Whitening is undone, and ``preprocess`` is not: it has no inverse.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, k)
        Scores.
    out : path of a new Zarr array, or None, default None
        Write to this store in one read, as :meth:`transform` does.
    overwrite : bool, default False
        Replace an existing ``out``.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, d)
        Rows in the space of the features. Lazy if X is lazy.

    Raises
    ------
    ValueError
        For ``whiten=Whitening(l2=True)``, which does not keep the norms of the scores.
    """
    check_is_fitted(self)
    return mapped_back(self, X, self._reconstruction(), Destination(out, overwrite))


def reconstruction(self: Restoring) -> Reconstruction:
    """Return the map from scores, maybe whitened, to rows; raises as :func:`inverse_transform`."""
    if self._whitening is not None and self._whitening.l2:
        raise ValueError(
            f"whiten = {self.whiten!r} divides the scores of each row by their norm, which is not kept. "
            f"Fit with l2=False for inverse_transform."
        )
    axes = self.components_ if self._orthonormal else dual_axes(self.components_)
    return Reconstruction(self.mean_, self.scale_, axes, self._deviations())


@solving
def remove_components(
    self: Restoring, X: Input, components: Input, *, out: Path | None = None, overwrite: bool = False
) -> Lazy:
    """Return rows (n, d) without their part along some components: ``x - sum_i t_i v_i``; lazy if X is lazy.

    The mean and the residual remain. With ``scale``, t and v are those of the scaled features, and the result has
    the units of X; with ``preprocess``, rows are preprocessed first. Whitening has no effect. One read with
    ``out``, to which the rows are written as by :meth:`transform`.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    components : int or sequence of int
        Numbers of the components, from 0.
    out : path of a new Zarr array, or None, default None
        Write to this store in one read, as :meth:`transform` does.
    overwrite : bool, default False
        Replace an existing ``out``.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, d)
        Lazy if X is lazy.

    Raises
    ------
    ValueError
        For numbers that are no components, or given twice.

    Notes
    -----
    Mu & Viswanath (2018), "All-but-the-top: simple and effective postprocessing for word representations", who
    also subtract the mean.
    """
    check_is_fitted(self)
    axes = self.components_[component_numbers(components, self.n_components_)]
    duals = axes if self._orthonormal else dual_axes(axes)
    removal = Removal(replace(plain_projection(self), components=duals), axes)
    return mapped_to_rows(self, X, removal, Destination(out, overwrite))
