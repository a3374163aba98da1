"""A fitted linear model as an xarray.Dataset: its patterns on the grid of the features."""

from __future__ import annotations

from importlib.metadata import version
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigpca.data.grids import COMPONENT
from bigpca.data.provenance import Provenance
from bigpca.estimators.shared.grids import grid_coords, grid_of
from bigpca.estimators.shared.inputs import Exported
from bigpca.passes.engine.solving import solving

BY_COMPONENT = (
    "explained_variance", "explained_variance_ratio", "singular_values", "eigenvalues", "residuals",
    "subspace_error_bounds",
)  # fmt: skip
BY_FEATURE = ("mean", "scale")


class Patterned(Protocol):
    """A fitted linear model."""

    components_: NDArray[np.float64]
    n_samples_: int
    solver_: str

    @property
    def provenance_(self) -> Provenance | None: ...

    @property
    def _called(self) -> str: ...


@solving
def to_xarray(self: Patterned) -> Exported:
    """Return the model as a Dataset: patterns on the grid of the features, which a fit to a DataArray keeps.

    Other fits have one dimension ``feature``. Components are numbered from 1, as the modes of xeofs. No read.

    Returns
    -------
    xarray.Dataset
        ``components`` of shape (component, features...), ``mean`` and ``scale`` of shape (features...), with NaN where
        columns without values were left out; ``explained_variance``, ``explained_variance_ratio`` and other attributes
        of the model of shape (component,), where it has them. Its attributes are those of the DataArray, and the call,
        the solver, the number of samples, and the version of bigpca.

    Raises
    ------
    ImportError
        If xarray is not installed.
    ValueError
        If the features have a dimension or coordinate with the name of a variable or dimension of the Dataset.

    Examples
    --------
    >>> import bigpca as bp, numpy as np, xarray as xr
    >>> field = xr.DataArray(np.eye(4).reshape(4, 2, 2), dims=("time", "lat", "lon"), coords={"lat": [10, 20]})
    >>> modes = bp.PCA(2).fit(field).to_xarray()
    >>> modes.components.dims, modes.sizes["component"], modes.lat.values.tolist()
    (('component', 'lat', 'lon'), 2, [10, 20])
    """
    check_is_fitted(self)
    try:
        import xarray as xr
    except ImportError as error:
        raise ImportError(
            "to_xarray needs xarray, which is not installed. Run: pip install 'bigpca[xarray]'"
        ) from error
    grid = grid_of(self)
    taken = {COMPONENT: "that of patterns", **dict.fromkeys(("components", *BY_COMPONENT, *BY_FEATURE), "a variable")}
    clash = next((name for name in (*grid.dims, *grid.coords) if name in taken), None)
    if clash is not None:
        raise ValueError(
            f"the features have a dimension or coordinate {clash!r}, which is {taken[clash]} of the Dataset. Rename it "
            f"before the fit."
        )

    def fields(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(grid.spread(values).reshape(len(values), *grid.sizes))

    k = len(self.components_)
    found: dict[str, object] = {"components": ((COMPONENT, *grid.dims), fields(self.components_))}
    for name in BY_COMPONENT:
        values = getattr(self, f"{name}_", None)
        if values is not None and np.shape(values) == (k,):
            found[name] = (COMPONENT, values)
    for name in BY_FEATURE:
        values = getattr(self, f"{name}_", None)
        if values is not None:
            found[name] = (grid.dims, fields(np.asarray(values)[None])[0])
    made = self.provenance_
    own = {
        "bigpca_version": version("bigpca"),
        "call": self._called if made is None else made.call,
        "solver": getattr(self, "solver_", ""),
        "n_samples": int(self.n_samples_),
        "sample_dims": ", ".join(grid.samples),
        **({} if grid.name is None else {"variable": str(grid.name)}),
    }
    coords = {**grid_coords(grid), COMPONENT: np.arange(1, k + 1)}
    return xr.Dataset(found, coords=coords, attrs={**grid.attrs, **own})
