"""Models on disk: a Zarr group of arrays and JSON, read back through a static table of classes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import numerical_environment
from bigpca.errors import ModelFormatError
from bigpca.passes.accumulators import Moments, packed_size
from bigpca.solvers.components import RelativeThreshold
from bigpca.storage import Group, write_group

FORMAT = (1, 0)
PARAMETERS = (
    "solver", "center", "scale", "whiten", "nan_policy", "missing_chunks", "memory_limit", "solve_threads",
    "workers_timeout", "keep_state_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class PcaModel:
    """A fitted PCA as arrays and JSON values.

    Attributes
    ----------
    arrays : dict of str to ndarray
    attributes : dict of JSON values
    """

    arrays: dict[str, NDArray[Any]]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, model: Any) -> PcaModel:
        """Take apart a fitted estimator."""
        arrays = {
            "components": model.components_,
            "explained_variance": model.explained_variance_,
            "mean": model.mean_,
        }
        if model.scale_ is not None:
            arrays["scale"] = model.scale_
        moments = getattr(model, "_moments", None)
        if moments is not None:
            arrays |= {f"moments_{name}": np.asarray(array) for name, array in moments.to_arrays().items()}
        names = getattr(model, "feature_names_in_", None)
        attributes = {
            "parameters": {name: _plain(getattr(model, name)) for name in PARAMETERS}
            | {"n_components": _encode(model.n_components)},
            "n_samples": int(model.n_samples_),
            "n_omitted": int(model.n_omitted_),
            "solver": model.solver_,
            "total_variance": float(model.total_variance_),
            "environment": numerical_environment(),
            "feature_names": None if names is None else [str(name) for name in names],
        }
        return cls(arrays, attributes)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _encode(n_components: Any) -> Any:
    if isinstance(n_components, RelativeThreshold):
        return {"relative_threshold": n_components.eps}
    return _plain(n_components)


def decode_components(value: Any) -> Any:
    """Return ``n_components`` as it was given, from its JSON form."""
    if isinstance(value, dict):
        return RelativeThreshold(value["relative_threshold"])
    return value


def save_model(path: str | os.PathLike[str], model: PcaModel, *, overwrite: bool) -> None:
    """Write a model; see :func:`bigpca.storage.write_group`."""
    write_group(path, model.arrays, model.attributes, kind="PCA", format_version=FORMAT, overwrite=overwrite)


def check_model(group: Group, path: object) -> None:
    """Cross-check shapes and values of a stored model.

    Raises
    ------
    ModelFormatError
        Where shapes disagree, values are not finite, or the components are not orthonormal.
    """
    arrays = group.arrays
    missing = {"components", "explained_variance", "mean"} - arrays.keys()
    if missing:
        raise ModelFormatError(
            f"{path} lacks {', '.join(sorted(missing))}; a saved PCA has them. Save the model again."
        )
    components = arrays["components"]
    if components.ndim != 2:
        raise ModelFormatError(
            f"{path} has components of shape {components.shape}; (k, d) was expected. Save the model again."
        )
    k, d = components.shape
    shapes = {
        "explained_variance": (k,),
        "mean": (d,),
        "scale": (d,),
        "moments_mean": (d,),
        "moments_scatter": (packed_size(d),),
    }
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            raise ModelFormatError(
                f"{path} has {name} of shape {arrays[name].shape}; {shape} was expected beside components of shape {(k, d)}. "
                f"Save the model again."
            )
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise ModelFormatError(f"{path} has {name} with values that are not finite numbers. Save the model again.")
    off = float(np.abs(components @ components.T - np.eye(k)).max()) if k else 0.0
    if off > 1e-4:
        raise ModelFormatError(
            f"{path} has components that are not orthonormal (off by {off:.1g}). Save the model again."
        )


def read_moments(arrays: dict[str, NDArray[Any]]) -> Moments | None:
    """Return the stored sufficient statistics, if the model kept them."""
    if "moments_scatter" not in arrays:
        return None
    stored = {name.removeprefix("moments_"): array for name, array in arrays.items() if name.startswith("moments_")}
    return Moments(len(arrays["mean"])).with_arrays(stored)
