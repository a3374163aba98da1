"""Models on disk: a fitted estimator as arrays and JSON values, and back, validated.

Parameters that are records, such as ``L2()``, in model files: a name from a fixed table, and JSON values. Rows with
which a kernel compares new rows: training rows or landmarks, in memory or read again from their store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from bigpca.arrays import Array, DType, Integers, named
from bigpca.blas import numerical_environment
from bigpca.data.containers import is_labelled
from bigpca.data.dask_arrays import source_of
from bigpca.data.grids import Grid, grid_to_stored, names_stored
from bigpca.data.provenance import Provenance
from bigpca.data.source import Source
from bigpca.data.sources import open as open_array
from bigpca.errors import ModelFormatError, brief
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.reading.readers import DirectReader
from bigpca.passes.reading.row_maps import GeneMap, Profile
from bigpca.passes.residuals import Residuals
from bigpca.preprocessing import L2, Log1p, NormalizeTotal, PearsonResiduals, Power, Standardize
from bigpca.records import PART, Coding, Held, Values, pack
from bigpca.sketches import Sketch, sketch_from
from bigpca.solvers.components import decode_components, encode_components
from bigpca.solvers.scaling import Blocks, CosLatitude, Patterson, Whitening
from bigpca.storage import MODEL_FORMAT, Annotations, write_group
from bigpca.storage.files import content_digest, digest, kind_of, public, real_path
from bigpca.storage.outputs import is_storable

_RECORDS = (
    *(L2, Log1p, NormalizeTotal, Profile, PearsonResiduals, Power, Standardize, GeneMap, Residuals),
    *(Blocks, CosLatitude, Patterson, Whitening),
)
RECORDS: dict[str, type] = {one.__name__: one for one in _RECORDS}
KEY = "record"  # of the name
VECTOR = "vector"
MAX_VALUES = 1000  # of numbers among JSON values; more are an array
MAX_PLACE = 400  # characters of a path in a message
HELD_BYTES = 256 << 20  # maximum size of training rows that a model holds because it cannot read them again
TILE_ROWS = 1024
STREAM_BYTES = 32 << 20  # of reference rows read at a time
FINGERPRINT_ROWS = 8
GONE = "which is gone; new rows are compared with them. Restore them there, or fit again."


def encode_record(value: Any, arrays: dict[str, Array]) -> Any:
    """Return a record, numbers, or a list of records as JSON values; other parameters unchanged.

    Many numbers are added to the ``arrays`` of the model, and named in the JSON value.
    """
    if type(value) in RECORDS.values():
        return {KEY: type(value).__name__} | {
            one.name: encode_record(getattr(value, one.name), arrays) for one in fields(value)
        }
    if isinstance(value, list | tuple | range):
        return [encode_record(one, arrays) for one in value]
    if not isinstance(value, np.ndarray):
        return value
    found = {KEY: VECTOR, "shape": list(value.shape)}
    if value.size <= MAX_VALUES or not is_storable(value.dtype):
        return found | {"values": value.tolist()}
    arrays[name := f"given_{content_digest(value)}"] = value
    return found | {"array": name}


def decode_record(value: Any, arrays: Mapping[str, Array]) -> Any:
    """Return what :func:`encode_record` encoded.

    Raises
    ------
    KeyError, TypeError, ValueError
        For an unknown record or invalid values of it.
    """
    if isinstance(value, list):
        return [decode_record(one, arrays) for one in value]
    if isinstance(value, dict) and value.get(KEY) == VECTOR:
        return np.array(value["values"] if "values" in value else arrays[value["array"]])
    if isinstance(value, dict) and KEY in value:
        own = {name: decode_record(given, arrays) for name, given in value.items() if name != KEY}
        return RECORDS[value[KEY]](**own)
    return value


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
            places = [os.path.dirname(real_path(self.model))] if self.model else []
            places += [real_path(path) for path in self.named if kind_of(path) == "disk"]
            real = real_path(rows)
            if any(real == place or real.startswith(os.path.join(place, "")) for place in places):
                return rows
        model, named = brief(repr(self.model), MAX_PLACE), brief(repr(rows), MAX_PLACE)
        raise ModelFormatError(
            f"the model {model} names its training rows in {named}, but by default only stores next to or inside a "
            f"model are opened. If you trust that store, allow it: bigpca.load({model}, references={named}), or "
            f"--references on the command line."
        )


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
    provenance : Provenance or None
        How it was made, with the digest of its row map.
    """

    kind: str
    arrays: dict[str, Array]
    attributes: Values
    rows: TrustedRows = TrustedRows()
    provenance: Provenance | None = None

    @classmethod
    def of(cls, model: Any) -> StoredModel:
        """Return the arrays and values of a fitted :class:`bigpca.estimators.shared.transformer.Estimator`."""
        of_fit = copy(model)  # by the parameters of its fit, which may have been changed since
        vars(of_fit).update(model._steps.parameters)
        arrays, attributes = pack(model._result)
        names = getattr(model, "feature_names_in_", None)
        view, grid = model._steps.view, model._steps.grid
        now, fitted = (_encode_all(model, grid, arrays, own) for own in (None, model._steps.parameters))
        common = {
            "parameters": now,
            "environment": numerical_environment(),
            "feature_names": None if names is None else [str(name) for name in names],
            "seed": vars(model).get("seed_"),
            "n_features": model.n_features_in_,
            "solver": model.solver_,
        }
        if (steps := model._steps.preprocessing) and steps != of_fit._preprocessors():
            common["preprocessing"] = encode_record(steps, arrays)  # with what the reads of the fit found
        if model._steps.counts is not None:
            common["counts"] = encode_record(model._steps.counts, arrays)
        if changed := {name: value for name, value in fitted.items() if value != now[name]}:
            common["fitted_with"] = changed
        if "covariate_names_in_" in vars(model):
            common["covariate_names"] = model.covariate_names_in_.tolist()
        if view is not None and not view.absent:
            common["rows"] = view.to_json()
        if grid is not None:
            common["grid"], own = grid_to_stored(grid)
            if names_stored(grid, common["grid"]):
                common["feature_names"] = None  # those of the grid
            arrays = arrays | {f"grid_{name}": array for name, array in own.items()}
        made = model.provenance_ and replace(model.provenance_, model=of_fit._digest())
        return cls(type(model).__name__, arrays, common | attributes, provenance=made)

    def named(self, prefix: str) -> dict[str, Array]:
        """Return the arrays whose names start with a prefix, which is removed."""
        return named(self.arrays, prefix)


def _of_model(model: Any) -> tuple[Values, dict[str, Array]]:
    own = StoredModel.of(model)
    return {"kind": own.kind, "attributes": own.attributes}, own.arrays


def _held_model(value: Values, own: dict[str, Array], held: Held) -> Any:
    # The table of classes is above: an estimator that holds another need not know it.
    return held.context["restored"](StoredModel(value["kind"], own, value["attributes"], held.context["trusted"]))


OF_MODELS: Coding = (_of_model, _held_model)


_DTYPES = {"b": np.bool_, "i": np.int64, "u": np.uint64, "U": np.str_}


def pack_values(values: Array) -> list[Any]:
    """Return an array (c,) of integers, bools, strings or bytes as JSON values."""
    plain = np.char.decode(values, "latin1") if values.dtype.kind == "S" else values
    return [values.dtype.kind, plain.tolist()]


def unpack_values(packed: list[Any]) -> Array:
    """Return what :func:`pack_values` packed."""
    kind, values = packed
    if len(set(values)) < len(values):
        raise ValueError("it has equal values among its classes, which must differ")
    if kind == "S":
        return np.char.encode(np.array(values), "latin1")
    return np.array(values, _DTYPES[kind])  # uint64 and int64 together would become float64


OF_VALUES: Coding = (lambda values: (pack_values(values), {}), lambda packed, own, held: unpack_values(packed))


def held_folds(held: Held, name: str, template: Accumulator) -> Accumulator:
    """Return the template of the statistics of that name in a file, which may be one state for each fold or group.

    Raises
    ------
    ValueError
        For a file with another number of groups.
    """
    folds = {key.partition("_")[0] for key in named(held.arrays, f"{name}{PART}states_")}
    if not folds:
        return template
    labels = unpack_values(held.values["groups"]) if "groups" in held.values else None
    if labels is not None and len(labels) != len(folds):
        raise ValueError(f"it has statistics of {len(folds)} groups, and {len(labels)} labels of groups")
    found = template if isinstance(template, FoldStates) else FoldStates(template, 1)
    return replace(found, n_folds=len(folds), labels=labels)


def _encode_all(model: Any, grid: Grid | None, arrays: dict[str, Array], parameters: Values | None = None) -> Values:
    """Return parameters of a model as JSON values; None for the present ones."""
    parameters = dict(model.get_params(deep=False) if parameters is None else parameters)
    if isinstance(parameters.get("random_state"), np.random.RandomState | np.random.Generator):
        parameters["random_state"] = vars(model).get("seed_")  # drawn from the generator, which is not JSON
    return {name: _encode(name, value, grid, arrays) for name, value in parameters.items()}


def _encode(name: str, value: Any, grid: Grid | None, arrays: dict[str, Array]) -> object:
    """Return a parameter as a JSON value; what is given on the grid of the columns, for each of these."""
    from bigpca.kernels.base import Kernel  # 20 modules, which only saving needs

    if name == "n_components":
        return encode_components(value)
    if name == "estimator" and value is not None:
        return {"kind": type(value).__name__, "parameters": _encode_all(value, grid, arrays)}
    if isinstance(value, Sketch | Kernel):
        return value.describe()
    if name == "sampling" and not isinstance(value, str):
        value = np.asarray(value)
    if name == "kernel" and callable(value):
        raise TypeError(
            f"kernel = {value!r} is a Python function, which no model file can hold; a kernel of bigpca.kernels was "
            f"expected. Build the kernel from those, or keep the fitted estimator in memory."
        )
    if grid is not None and is_labelled(value):
        value = grid.aligned(value, name)
    if hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)  # of a table, or of another library
    return value.item() if isinstance(value, np.generic) else encode_record(value, arrays)


def decode_parameters(values: Values, arrays: Mapping[str, Array]) -> Values:
    """Return parameters as they were given, from their JSON forms and the arrays of the model.

    Raises
    ------
    KeyError, TypeError, ValueError
        For an unknown rule or sketch.
    """
    decoded = {name: decode_record(value, arrays) for name, value in values.items()}
    if "n_components" in decoded:
        decoded["n_components"] = decode_components(decoded["n_components"])
    if isinstance(decoded.get("kernel"), dict):
        from bigpca.kernels import kernel_from  # as above

        decoded["kernel"] = kernel_from(decoded["kernel"])
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


def streamed_rows(row_bytes: int) -> int:
    """Return how many reference rows are read at a time: whole tiles."""
    return max(1, STREAM_BYTES // (TILE_ROWS * row_bytes)) * TILE_ROWS


@dataclass(frozen=True)
class References:
    """Rows with which a kernel compares others: in memory, or read from their store.

    Attributes
    ----------
    rows : ndarray of shape (p, d), or None if they are read
    source : Source or None
    indices : ndarray of shape (p,), or None if row i of X is reference i
        Row numbers, for kernels that identify rows by them.
    stamp : str
        Digest of (key, size, mtime) of the files of ``source``, which must not change.
    """

    rows: Array | None
    source: Source | None = None
    indices: Integers | None = None
    stamp: str = ""

    @classmethod
    def stored(cls, source: Source) -> References:
        """Return references that are read from a store in its present state."""
        return cls(None, source, None, digest(source.stamps(0, source.shape[0])))

    @property
    def _store(self) -> Source:
        """The store of rows that are not in memory."""
        if self.source is None:
            raise TypeError("the references are neither in memory nor in a store")
        return self.source

    @property
    def shape(self) -> tuple[int, int]:
        """(p, d)."""
        p, d = (self._store if self.rows is None else self.rows).shape
        return int(p), int(d)

    @property
    def dtype(self) -> DType:
        """Dtype of the rows in memory or in the store."""
        return np.dtype((self._store if self.rows is None else self.rows).dtype)

    def tiles(self, size: int = TILE_ROWS) -> Iterator[tuple[int, Array]]:
        """Yield (first row, rows) in tiles of at most ``size`` rows; one read of a store."""
        count, d = self.shape
        if self.rows is not None:
            for start in range(0, count, size):
                yield start, self.rows[start : start + size]
            return
        self._check_stamp()
        reader = DirectReader(self._store)
        step = streamed_rows(d * self._store.dtype.itemsize)
        for first in range(0, count, step):
            try:
                rows = reader.read(first, min(first + step, count))
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"the model's training rows were in {self._store.path}, {GONE} ({error})"
                ) from error
            for start in range(0, len(rows), size):
                yield first + start, rows[start : start + size]

    def _check_stamp(self) -> None:
        source = self._store
        try:
            stamps = source.stamps(0, source.shape[0])
            if stamps and all(size < 0 for _, size, _ in stamps):
                raise FileNotFoundError(f"{stamps[0][0]} does not exist")
        except FileNotFoundError as error:
            raise FileNotFoundError(f"the model's training rows were in {source.path}, {GONE} ({error})") from error
        if digest(stamps) != self.stamp:
            raise ValueError(
                f"the model's training rows were in {source.path}, whose files changed after the fit; new rows are "
                f"compared with them. The original files were expected. Restore them and load the model again, or "
                f"fit again."
            )

    def fingerprint(self) -> str:
        """Digest of the values of some rows, including the first and last: the same wherever they are stored."""
        count = self.shape[0]
        chosen = np.unique(np.linspace(0, count - 1, FINGERPRINT_ROWS).astype(np.int64))
        if self.rows is not None:
            return content_digest(self.rows[chosen])
        source = self._store
        return content_digest(*(source.read(int(i), int(i) + 1) for i in chosen))

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows in memory, or of the rows that are read at a time."""
        return self.rows.nbytes if self.rows is not None else STREAM_BYTES

    def describe(self) -> dict[str, object]:
        """What identifies the rows."""
        if self.source is not None:
            return {"source": self.source.describe(), "stamp": self.stamp}
        return {"rows": content_digest(self.rows)}


def _of_references(references: References) -> tuple[Values | None, dict[str, Array]]:
    """Return rows of at most 256 MiB, or that are in memory; a larger store is named, with its fingerprint."""
    held, source = references.shape[0] * references.shape[1] * references.dtype.itemsize, references.source
    if references.rows is not None or source is None or held <= HELD_BYTES:
        return None, {"rows": np.concatenate([rows for _, rows in references.tiles()])}
    place = {"path": source.path, "member": source.member, "shape": list(source.shape)}
    return {**place, "fingerprint": references.fingerprint()}, {}


def _held_references(place: Values | None, own: dict[str, Array], held: Held) -> References:
    """Return the training rows from the model, or from the store that it names.

    Raises
    ------
    ModelFormatError
        If that store is not in an allowed place.
    ValueError
        If the store does not exist, or holds an array of another shape or other rows.
    """
    if place is None:
        found = References(held.array("expansion__references__rows"), None, held.arrays.get("landmark_indices"))
    else:
        found = _named_references(place, held.context["trusted"])
    held.check("expansion__references", found.shape[:1], ("p",))
    if held.context["kernel"].needs_rows:
        for letters in (("p", "s"), ("p", "d")):
            held.check("expansion__references", found.shape, letters)
    return found


def _named_references(place: Values, trusted: TrustedRows) -> References:
    path = trusted.resolve(str(place["path"]))
    if kind_of(path) == "disk" and not os.path.exists(path):
        raise ValueError(f"its training rows were in {path}, which is gone. Put them back there")
    source = source_of(open_array(path, member=place["member"] or None))
    if source is None or list(source.shape) != place["shape"]:
        found = None if source is None else source.shape
        raise ValueError(f"its training rows were of shape {brief(tuple(place['shape']))}, but {path} holds {found}")
    references = References.stored(source)
    if references.fingerprint() != place["fingerprint"]:
        raise ValueError(f"its training rows were in {path}, which now holds other rows. Put them back there")
    return references


OF_REFERENCES: Coding = (_of_references, _held_references)
