"""Models on disk: a fitted estimator as arrays and JSON values, and back, validated."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from bigpca.arrays import Array
from bigpca.blas import numerical_environment
from bigpca.data.provenance import Provenance
from bigpca.data.stored_grids import grid_to_stored, names_stored
from bigpca.data.urls import public
from bigpca.errors import ModelFormatError, brief
from bigpca.estimators.shared.records import decode_record, encode_record
from bigpca.sketches import Sketch, sketch_from
from bigpca.solvers.components import decode_components, encode_components
from bigpca.storage import MODEL_FORMAT, Annotations, write_group
from bigpca.storage.stores import kind_of

Values: TypeAlias = dict[str, Any]  # JSON values by name

MAX_PLACE = 400  # characters of a path in a message


@dataclass(frozen=True)
class TrustedRows:
    """The stores of training rows that a model file may name: it is untrusted, and opening a path or URL has effects.

    Attributes
    ----------
    model : str
        Path of the model; stores beside or below it may be opened.
    named : tuple of str
        Stores, or folders that contain them, and URLs that the caller has named.
    """

    model: str = ""
    named: tuple[str, ...] = ()

    def resolve(self, rows: str) -> str:
        """Return the path or URL to open for the rows that a model names.

        Raises
        ------
        ModelFormatError
            If neither the location of the model nor the caller allows it.
        """
        if kind_of(rows) != "disk":
            for url in self.named:
                if public(url) == rows:
                    return url
        elif rows == os.path.abspath(rows):
            places = [os.path.dirname(os.path.realpath(self.model))] if self.model else []
            places += [os.path.realpath(path) for path in self.named if kind_of(path) == "disk"]
            real = os.path.realpath(rows)
            if any(real == place or real.startswith(os.path.join(place, "")) for place in places):
                return rows
        model, named = brief(repr(self.model), MAX_PLACE), brief(repr(rows), MAX_PLACE)
        raise ModelFormatError(
            f"the model {model} names its training rows in {named}, but only stores beside or below a model "
            f"are opened by default. If you trust it, allow that: bigpca.load({model}, references={named}), or "
            f"--references on the command line."
        )


class StoredState(Protocol):
    """Sufficient statistics that a model keeps, so that rows can be added."""

    def to_arrays(self) -> dict[str, Array]:
        """Return the statistics as named arrays."""


@dataclass(frozen=True)
class StoredModel:
    """A fitted estimator as arrays and JSON values.

    Attributes
    ----------
    kind : str
        Name of its class.
    arrays : dict of str to ndarray
    attributes : dict of JSON values
        Including ``parameters`` (all parameters of the class) and ``feature_names``.
    rows : TrustedRows
        Where the training rows may be, for a model that was read.
    inner : estimator or None
        The restored inner estimator, if there is one.
    provenance : Provenance or None
        How it was made, with the digest of its row map.
    """

    kind: str
    arrays: dict[str, Array]
    attributes: Values
    rows: TrustedRows = TrustedRows()
    inner: Any = None
    provenance: Provenance | None = None

    @classmethod
    def of(cls, model: Any) -> StoredModel:
        """Return the arrays and values of a fitted :class:`bigpca.estimators.shared.transformer.Estimator`."""
        arrays, attributes = model._fitted_values()
        names = getattr(model, "feature_names_in_", None)
        common = {
            "parameters": _encode_all(model),
            "environment": numerical_environment(),
            "feature_names": None if names is None else [str(name) for name in names],
            "seed": vars(model).get("seed_"),
        }
        view, grid = vars(model).get("_view"), vars(model).get("_grid")
        if view is not None and not view.absent:
            common["rows"] = view.to_json()
        if grid is not None:
            common["grid"], own = grid_to_stored(grid)
            if names_stored(grid, common["grid"]):
                common["feature_names"] = None  # those of the grid
            arrays = arrays | {f"grid_{name}": array for name, array in own.items()}
        made = model.provenance_ and replace(model.provenance_, model=model._digest())
        return cls(type(model).__name__, arrays, common | attributes, provenance=made)

    def named(self, prefix: str) -> dict[str, Array]:
        """Return the arrays whose names start with a prefix, which is removed."""
        return {n.removeprefix(prefix): a for n, a in self.arrays.items() if n.startswith(prefix)}


_DTYPES = {"b": np.bool_, "i": np.int64, "u": np.uint64, "U": np.str_}


def pack_values(values: Array) -> list[Any]:
    """Return an array (c,) of integers, bools, strings or bytes as JSON values."""
    plain = np.char.decode(values, "latin1") if values.dtype.kind == "S" else values
    return [values.dtype.kind, plain.tolist()]


def unpack_values(packed: list[Any]) -> Array:
    """Return what :func:`pack_values` packed."""
    kind, values = packed
    if kind == "S":
        return np.char.encode(np.array(values), "latin1")
    return np.array(values, _DTYPES.get(kind))  # uint64 and int64 together would become float64


def _encode_all(model: Any) -> Values:
    parameters = model.get_params(deep=False)
    if isinstance(parameters.get("random_state"), np.random.RandomState | np.random.Generator):
        parameters["random_state"] = vars(model).get("seed_")  # drawn from the generator, which is not JSON
    return {name: _encode(name, value) for name, value in parameters.items()}


def _encode(name: str, value: Any) -> object:
    """Return a parameter as a JSON value."""
    from bigpca.kernels.base import Kernel  # 20 modules, which only saving needs

    if name == "n_components":
        return encode_components(value)
    if name == "estimator" and value is not None:
        return {"kind": type(value).__name__, "parameters": _encode_all(value)}
    if isinstance(value, Sketch | Kernel):
        return value.describe()
    if name == "sampling" and not isinstance(value, str):
        return np.asarray(value).tolist()
    if name == "kernel" and callable(value):
        raise TypeError(
            f"kernel = {value!r} is a Python function, which no model file can hold; a kernel of bigpca.kernels was "
            f"expected. Build the kernel from those, or keep the fitted estimator in memory."
        )
    return value.item() if isinstance(value, np.generic) else encode_record(value)


def decode_parameters(values: Values) -> Values:
    """Return parameters as they were given, from their JSON forms.

    Raises
    ------
    KeyError, TypeError, ValueError
        For an unknown rule or sketch.
    """
    decoded = {name: decode_record(value) for name, value in values.items()}
    if "n_components" in decoded:
        decoded["n_components"] = decode_components(decoded["n_components"])
    if isinstance(decoded.get("kernel"), dict):
        from bigpca.kernels import kernel_from  # as above

        decoded["kernel"] = kernel_from(decoded["kernel"])
    if isinstance(decoded.get("sampling"), list):
        decoded["sampling"] = np.array(decoded["sampling"])
    if isinstance(decoded.get("sketch"), dict):
        decoded["sketch"] = sketch_from(decoded["sketch"])
    return decoded


def save_model(path: str | os.PathLike[str], model: StoredModel, *, overwrite: bool) -> None:
    """Write a model; see :func:`bigpca.storage.write_group`."""
    notes = Annotations(provenance=None if model.provenance is None else model.provenance.to_json())
    write_group(
        path,
        model.arrays,
        model.attributes,
        kind=model.kind,
        format_version=MODEL_FORMAT,
        overwrite=overwrite,
        annotations=notes,
    )
