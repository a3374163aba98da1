"""``bigpca.load``: a saved model back to an estimator; a file may name only the classes of a static table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from bigpca.data.grids import grid_from_stored, kept_view
from bigpca.data.provenance import provenance_of
from bigpca.data.views import View
from bigpca.errors import ModelFormatError, an, brief
from bigpca.estimators import HOMES
from bigpca.estimators.shared.files import StoredModel, TrustedRows, decode_parameters, decode_record
from bigpca.estimators.shared.inputs import Steps
from bigpca.estimators.shared.opening import set_known
from bigpca.estimators.shared.transformer import AnyEstimator
from bigpca.passes.reading.row_maps import preprocessors
from bigpca.passes.residuals import check_effect
from bigpca.records import Held, Values, check_number
from bigpca.seeds import check_seed
from bigpca.storage import MODEL_FORMAT, read_group

MAX_REASON = 1000  # characters
Places = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

CLASSES = {name: home for home, names in HOMES.items() for name in names.split() if name[0].isupper()}


def load(path: str | os.PathLike[str], *, references: Places = ()) -> Any:
    """Read a model that ``save`` wrote: an estimator of the class that was saved.

    Parameters
    ----------
    path : path of the model's Zarr group
    references : path, URL, or sequence of those, default ()
        Where the training rows of a kernel model may be read if their store is neither next to the model nor inside its
        folder: the store, or a folder that contains it. (Rows of at most 256 MiB are part of the model.)

    Returns
    -------
    fitted estimator
        Of the class that was saved.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    ModelFormatError
        If the file is truncated, altered, of a newer format, or not a bigpca model, or if its training rows are in a
        place that ``references`` does not allow.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bigpca import PCA
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.zarr"
    >>> pca = PCA(1).fit(np.array([[0.0, 1], [1, 3], [2, 4]]))
    >>> pca.save(path)
    >>> bool((load(path).components_ == pca.components_).all())
    True
    """
    group = read_group(path, kind=list(CLASSES), newest=MODEL_FORMAT)
    given = [references] if isinstance(references, str | os.PathLike) else references
    rows = TrustedRows(str(path), tuple(os.fspath(place) for place in given))
    try:
        stored = StoredModel(group.kind, group.arrays, group.attributes, rows, provenance=provenance_of(path))
        return restored(stored)
    except (MemoryError, ImportError, PermissionError):
        raise
    except Exception as error:  # a forged model may make its class raise anything
        if isinstance(error, ModelFormatError) and rows.model in str(error):
            raise
        raise ModelFormatError(
            f"{path} does not hold what {an(group.kind)} of format {group.format} has: {brief(error, MAX_REASON)}. It "
            "is damaged, or from a version under development: restore it from a copy, or fit again."
        ) from error


def restored(stored: StoredModel) -> AnyEstimator:
    """Return the estimator of a stored model.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a value is missing or invalid.
    """
    values = stored.attributes
    now, of_fit, solver = values["parameters"], values.get("fitted_with", {}), values["solver"]
    if not isinstance(now, dict):
        raise ValueError(f"it has parameters = {brief(repr(now))}; a dict was expected")
    d, model = check_number("n_features", values["n_features"], int, 1), _of_parameters(stored, now | of_fit)
    if not isinstance(solver, str):
        raise ValueError(f"it has solver = {brief(repr(solver))}; a str was expected")
    grid = values.get("grid")  # absent where X was no DataArray
    if grid is not None:
        grid = grid_from_stored(grid, stored.named("grid_"))
        model._steps = Steps(grid=grid)  # its scale may name coordinates
    if (learnt := values.get("preprocessing")) is not None:
        model._steps = replace(model._steps, preprocessing=preprocessors(decode_record(learnt, stored.arrays)))
    if (counts := values.get("counts")) is not None:
        model._steps = replace(model._steps, counts=decode_record(counts, stored.arrays))
    held = Held(stored.arrays, values, {"trusted": stored.rows, "restored": restored}, {"d": (d, "n_features")})
    model._found, model.n_features_in_, model.solver_ = model._restored(held), d, solver
    view = None
    if grid is not None:
        if grid.n_columns != d:
            raise ValueError(f"its grid has {grid.n_columns} columns, not {d}")
        view = kept_view(grid)
    rows = values.get("rows")  # absent where samples were rows
    if rows is not None:
        view = View.from_json(rows, d)
    model._steps = model._steps_of(d, view, grid)
    check_effect(model._steps.preprocessing or (), d)
    if stored.provenance is not None:
        model._provenance = stored.provenance
    if values.get("seed") is not None:
        model.seed_ = check_seed(values["seed"])
    names = values["feature_names"]
    if names is None and grid is not None:
        names = grid.column_names()
    if names is not None:
        if len(names) != d or not all(isinstance(name, str) for name in names):
            raise ValueError(f"it has {len(names)} feature_names; {d} strings were expected")
        model.feature_names_in_ = np.array(names, dtype=object)
    if named := values.get("covariate_names"):
        if len(named) != model._steps.covariates or not all(isinstance(name, str) for name in named):
            raise ValueError(f"it has {len(named)} names of covariates; {model._steps.covariates} were expected")
        set_known(model, covariate_names_in_=np.array(named, dtype=object))
    # Those that were changed since the fit are what the model has, as the one that was saved.
    vars(model).update(_decoded(stored, {name: now[name] for name in of_fit}))
    return model


def _of_parameters(stored: StoredModel, parameters: Values) -> AnyEstimator:
    kind = stored.kind
    made: AnyEstimator = getattr(import_module(CLASSES[kind]), kind)(**_decoded(stored, parameters))
    return made


def _decoded(stored: StoredModel, parameters: Values) -> Values:
    decoded = decode_parameters(parameters, stored.arrays)
    inner = decoded.get("estimator")
    if inner is not None:
        decoded["estimator"] = _of_parameters(replace(stored, kind=inner["kind"]), inner["parameters"])
    return decoded
