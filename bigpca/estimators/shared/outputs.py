"""Where mapped rows go: to the caller, lazily or computed, or to a new array on disk.

What the docstrings of methods that map rows share.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import cleandoc
from types import FunctionType
from typing import TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike
from sklearn import get_config

from bigpca.arrays import Path
from bigpca.data.batches import has_batches
from bigpca.data.dask_arrays import carrying
from bigpca.data.provenance import ROWS, Made
from bigpca.engine.events import ProgressArgument, resolve_progress
from bigpca.engine.run import Run
from bigpca.estimators.shared.fit import called
from bigpca.estimators.shared.inputs import BaseEstimator, Lazy, Unchecked, open_scores, policies
from bigpca.estimators.shared.labelled import grid_of, labelled_rows, labels_for, on_fitted_grid
from bigpca.estimators.shared.opening import maps_of, opened
from bigpca.passes.project import project_in_memory, project_in_order, project_lazily, project_to
from bigpca.passes.reading.row_maps import RowMap, RowPreprocessor, chained
from bigpca.passes.residuals import steps_beside
from bigpca.passes.rows import Rows
from bigpca.passes.side_by_side import beside_covariates
from bigpca.settings import brought_by, setting
from bigpca.storage.files import is_objects, name_of, path_of
from bigpca.storage.outputs import form_of

Method = TypeVar("Method")
Class = TypeVar("Class", bound=type)

# Entries of the section Parameters that methods share which map rows.
SHARED_PARAMETERS = {
    "X": """X : array-like, Dask array, path and so on, of shape (n, d)
    Rows, as for :meth:`fit`.""",
    "out": """out : path of a new Zarr array, or None, default None
    Write to this store in one read, as :meth:`transform` does.""",
    "overwrite": """overwrite : bool, default False
    Replace existing scores or rows that bigpca wrote.""",
    "progress": """progress : True, "auto", a callable that receives events, or None, default None
    True shows a bar; "auto" shows one after two seconds.""",
    "keys": """keys : array-like of shape (n,), path, or None, default None
    As for :meth:`transform`.""",
}


def maps_rows(method: Method) -> Method:
    """Complete the section Parameters of a method that maps rows, by what such methods share.

    Entries in the docstring of the method itself remain; all are in the order of the signature.
    """
    function = cast("FunctionType", method)
    if function.__doc__ is None:  # python -OO
        return method
    summary, *sections = re.split(r"\n\n(?=[A-Z]\w+\n-+\n)", cleandoc(function.__doc__))
    own = {}
    if sections and sections[0].startswith("Parameters"):
        entries = re.split(r"\n(?=\S)", sections.pop(0))[2:]
        own = {entry.partition(" :")[0]: entry for entry in entries}
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    described = "\n".join(own.get(name) or SHARED_PARAMETERS[name] for name in names)
    function.__doc__ = "\n\n".join([summary, f"Parameters\n----------\n{described}", *sections])
    return method


@dataclass(frozen=True)
class Destination:
    """Where mapped rows go: back to the caller, or to a new Zarr array.

    Attributes
    ----------
    out : path or None
    overwrite : bool
        Replace an existing ``out``.
    progress : True, a callable that receives events, or None
    keys : keys of the rows, or None
        Anything that :func:`bigpca.data.keys.row_keys` reads.
    names : tuple of str
        Names of the columns of a table; empty for an array of numbers.
    what : str
        What is written, in names of tasks and messages; empty for the output of ``transform``.

    Raises
    ------
    ValueError
        For keys without a path.
    """

    out: Path | None = None
    overwrite: bool = False
    progress: ProgressArgument = None
    keys: Unchecked = None
    names: tuple[str, ...] = ()
    what: str = ""

    def __post_init__(self) -> None:
        if self.keys is not None and self.out is None:
            raise ValueError("keys are stored beside the scores, which requires out. Set out, or remove keys.")


def check_float(dtype: DTypeLike) -> str:
    """Return the name of a dtype of scores.

    Raises
    ------
    ValueError
        For anything but float16, float32 and float64.
    """
    for name in ("float16", "float32", "float64"):
        with suppress(TypeError):
            if np.dtype(dtype) == name:
                return name
    raise ValueError(f"dtype = {dtype!r}; scores are stored as float16, float32 or float64.")


def reject_container(estimator: BaseEstimator, output: str, X: Unchecked = None) -> None:
    """Reject scikit-learn's output containers, which cannot hold lazy output.

    Raises
    ------
    TypeError
    """
    own = getattr(estimator, "_sklearn_output_config", {}).get("transform")
    container = own or get_config()["transform_output"]
    if container != "default":
        asked = f'set_output(transform="{container}")' if own else f'sklearn.set_config(transform_output="{container}")'
        raise TypeError(
            f"{asked} would load all lazy {output} into memory. "
            f'Call set_output(transform="default") and convert what fits, or compute() X first.'
        )


def mapped_to_numbers(
    model: BaseEstimator,
    X: Unchecked,
    f: RowMap,
    what: str,
    to: Destination | None = None,
    *,
    dim: str | None = None,
    values: Unchecked = None,
) -> Lazy:
    """Return ``f`` of the rows of X: a number of each (n,), or (n, 1) in ``to.out``.

    Where ``values`` name the columns of f, they are (n, k), along ``dim`` for a DataArray X, whose samples label
    rows.
    """
    rows, to = opened(model, X, use="map"), to or Destination()
    to = replace(to, what=to.what or what)
    found = mapped(model, rows, f, 1 if dim is None else len(values), to)
    labels = labels_for(X, rows)
    if labels is not None:
        return labelled_rows(found, labels, what, dim, values)
    return found[:, 0] if dim is None and to.out is None else found


def mapped_to_rows(model: BaseEstimator, X: Unchecked, f: RowMap, to: Destination) -> Lazy:
    """Return ``f`` of the rows of X as rows (n, d), on the grid of the fit if X is a DataArray."""
    rows = opened(model, X, use="map")
    to = replace(to, what=to.what or ROWS)
    found = mapped(model, rows, f, model.n_features_in_, to)
    return on_fitted_grid(model, X, rows, found, to.what)


def mapped_back(model: BaseEstimator, X: Unchecked, back: RowMap, to: Destination, side: str = "") -> Lazy:
    """Return ``back`` of scores X (n, k): rows (n, d), or rows of Y (``side`` "y_"), on the grid of the fit if X is a
    DataArray.
    """
    rows, to = open_scores(model, X), replace(to, what=f"{ROWS} of Y" if side else ROWS)
    columns = model.n_targets_ if side else model.n_features_in_
    return on_fitted_grid(model, X, rows, mapped_as_given(model, rows, back, columns, to), grid=grid_of(model, side))


def mapped(
    model: BaseEstimator,
    rows: Rows,
    f: RowMap,
    columns: int,
    to: Destination,
    maps: tuple[RowPreprocessor, ...] | None = None,
) -> Lazy:
    """Return ``f`` of opened rows beside their covariates, after ``maps``. The last map may take these out.

    None for the maps of the model: rows as it takes them, preprocessed, and without the effect of covariates.
    """
    rows, steps = steps_beside(maps_of(model) if maps is None else maps, beside_covariates(rows))
    return mapped_as_given(model, rows, chained(tuple(step.f for step in steps), f), columns, to)


def mapped_as_given(model: BaseEstimator, rows: Rows, f: RowMap, columns: int, to: Destination) -> Lazy:
    """Return ``f`` of opened rows that are not preprocessed, such as scores, or write it in one read.

    Lazy if what a user gave is lazy, else computed; rows of batches, which are read once and in order, are mapped at
    once. What is lazy or written has the record of what made it.
    """
    if to.out is None and not rows.origin.lazy:
        return project_in_memory(rows.begun(), f, columns)
    what = to.what or model._traits.output
    if to.out is None and has_batches(rows.X):
        return project_in_order(rows.begun(memory_limit=setting(model, "memory_limit")), f, columns)
    made = Made(what, f"{what} of X by {called(model)}", model._digest(), to.keys)
    if to.out is None:
        return carrying(project_lazily(rows.X, f, columns), made=made)
    with brought_by(model), resolve_progress(to.progress) as report:
        rows, out = rows.begun(**policies(model)), to.out if is_objects(to.out) else path_of(to.out, "out")
        run = Run(None, report, "local" if rows.order.in_process else None)
        form = form_of(name_of(out), to.names or tuple(f"column_{i}" for i in range(columns)))
        return project_to(rows, f, columns, out, name=what, run=run, made=made, form=form, overwrite=to.overwrite)


def whole_map(model: BaseEstimator) -> RowMap:
    """Return the map of rows as they are given: the preprocessing, then that of :meth:`_row_map`."""
    return chained(maps_of(model), model._row_map())
