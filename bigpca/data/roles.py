"""Whether an array that is given with a model holds rows or scores, and which model made the scores."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import Any

import numpy as np

import bigpca.dask_array as da
from bigpca.data.containers import is_labelled
from bigpca.data.dask_arrays import carried, source_of, taken_from, view_of
from bigpca.data.grids import COMPONENT
from bigpca.data.provenance import Made, provenance_of
from bigpca.errors import ModelFormatError, listed

STATISTICS = ("t2", "spe", "mahalanobis")  # columns of other outputs of models
ROWS = "rows"  # what a reconstruction is


def given_array(X: Any, rows: Any, scores: Any) -> tuple[Any, str]:
    """Return the only one that was given, and "rows" or "scores" if the caller said so, else "".

    Raises
    ------
    TypeError
        If several were given.
    """
    found = [(one, said) for one, said in ((X, ""), (rows, "rows"), (scores, "scores")) if one is not None]
    if len(found) > 1:
        raise TypeError("several of X, rows and scores were given; one of them was expected.")
    return found[0] if found else (None, "")


def maker_of(X: Any, *, ordered: bool = True) -> Made | None:
    """Return what made all columns of X, if its store or its graph says so; slices of rows keep that.

    The models of joined rows are named together, if they differ. Columns may be in another order unless ``ordered``.
    """
    X = X.data if is_labelled(X) and X.chunks is not None else X  # where data is not read by that
    if type(X) is np.ndarray:
        return None
    if isinstance(X, str | os.PathLike):
        path = os.fspath(X)
    elif isinstance(X, da.Array):
        taken = taken_from(X)
        base, *others = taken.bases
        if ordered and not taken.whole_columns:
            return None
        if others:  # joined rows
            found = [maker_of(one) if one.shape[1:] == X.shape[1:] else None for one in taken.bases]
            makers = [one for one in found if one is not None]
            kinds = {(one.what, one.model): one for one in makers}
            if len(makers) < len(found) or len(kinds) == 1 or any(one.model is None for one in makers):
                return makers[0] if len(makers) == len(found) and len(kinds) == 1 else None
            calls, models = (
                " and ".join(str(getattr(one, name)) for one in kinds.values()) for name in ("call", "model")
            )
            return Made(makers[0].what, calls, models)
        if base.shape[1:] != X.shape[1:]:
            return None
        before, view = view_of(base)
        if view is not None:
            moved = view.columns is not None and bool((np.diff(view.columns) != 1).any())
            same = before.shape == base.shape and not view.taken and not (ordered and moved)
            return maker_of(before, ordered=ordered) if same else None
        if isinstance(made := carried(base).made, Made):
            return made
        source = source_of(base)
        path = "" if source is None else source.path
    else:
        return None
    with suppress(ModelFormatError):  # of a damaged record, which no numbers depend on
        record = provenance_of(path) if path else None
        return None if record is None else Made(record.what, record.call, record.model)
    return None


def are_scores(model: Any, X: Any, opened: Any, said: str = "") -> bool:
    """Whether X holds scores of a model, else rows; the first that knows decides, and scores are checked.

    These are the caller, the record of what made X, and its shape.

    Parameters
    ----------
    model : fitted model, or None, for which all arrays are scores
    X : what was given
    opened : array with its shape and dtype
    said : {"rows", "scores", ""}
        What the caller said.

    Raises
    ------
    ValueError
        If nothing decides; for scores of another model or number of components, and for other outputs of models.
    """
    shape, names = tuple(opened.shape), _column_names(X, opened)
    made = None if said == "rows" else maker_of(X) or maker_of(opened)
    if model is None:
        if len(shape) != 2:
            raise ValueError(f"scores have shape {shape}; (n, k) was expected.")
        _check_kind(made, names, "scores", "scores. Give rows with a model, or scores")
        return True
    components = [str(name) for name in model.get_feature_names_out()]
    k, d, kind = (
        len(components),
        int(model.n_features_in_),
        getattr(getattr(model, "_traits", None), "output", "scores"),
    )
    own = model._digest() if made is not None and made.model is not None else None
    if said != "rows":
        _check_order(X, names, components)
    role = said or _recorded(made, own)
    if not role:
        view = getattr(getattr(model, "_steps", None), "view", None)
        widths = {d} if view is None else {d, math.prod(view.sample)}
        role = "rows" if len(shape) != 2 or shape[1] != k else "" if k in widths else "scores"
    if not role:
        by = f", made by another model ({made.call})" if made is not None and made.model not in (None, own) else ""
        raise ValueError(
            f"X has {k} columns{by}, and the model has {d} features and {k} components: it may be rows or scores. Pass "
            "it as rows=X or scores=X."
        )
    if role == "rows":
        return False
    remedy = "rows or scores, or None as the model"
    _check_kind(made, names, kind.split()[0], f"{kind} of the {k} components. Give {remedy}")
    if made is None and (maker_of(X, ordered=False) or maker_of(opened, ordered=False)) is not None:
        raise ValueError(
            f"X has {k} columns of an output of a model in another order, or some of them twice; the {k} components in "
            "their order were expected. Pass the scores as they were written."
        )
    if len(shape) != 2 or shape[1] != k:
        raise ValueError(
            f"scores have {shape[1:][0] if len(shape) == 2 else shape} columns; {k} (n_components_) were expected. "
            "Pass the scores that this model wrote."
        )
    if made is not None and made.model not in (None, own):
        instead = "np.asarray(scores)" if isinstance(X, da.Array) else "np.asarray(bigpca.open(scores))"
        raise ValueError(
            f"the scores were made by another model: {made.call}, whose digest is {made.model}. This model, "
            f"{type(model).__name__} with {k} components, has the digest {own}. Transform the rows by this model, or "
            f"pass {instead} to use them all the same."
        )
    return True


def _column_names(X: Any, opened: Any) -> list[str] | None:
    """Return the names of the columns of a frame or a table, if it has any."""
    found = getattr(X, "columns", None) if hasattr(X, "iloc") else None
    if found is None and type(opened) is not np.ndarray and isinstance(opened, da.Array):
        found = carried(opened).names
    return None if found is None else [str(name) for name in found]


def _check_kind(made: Made | None, names: list[str] | None, kind: str, expected: str) -> None:
    """Reject what models write of rows beside their scores, known by its record or by the names of its columns."""
    what = "" if made is None else made.what or ""
    other = what and what.split()[0] != kind
    if other or (names and set(names) <= set(STATISTICS)):
        named = "" if names is None else f" ({', '.join(names)})"
        raise ValueError(f"the columns of X are {what if other else 'statistics'}{named}, not {expected}.")


def _check_order(X: Any, names: list[str] | None, components: list[str]) -> None:
    """Reject columns that are named after all components, by their names or numbers, in another order."""
    if is_labelled(X) and COMPONENT in X.coords and X.coords[COMPONENT].dims == (COMPONENT,):
        names = [str(name) for name in X.coords[COMPONENT].values]
    for known in (components, [str(i) for i in range(len(components))]):
        if names is not None and names != known and sorted(names) == sorted(known):
            raise ValueError(
                f"the columns of X are {listed(names)}; the components in their order, {listed(known)}, were expected. "
                "Sort the columns."
            )


def _recorded(made: Made | None, own: str | None) -> str:
    """Return what the record of this model's own outputs says; those of others may be rows of this one."""
    if made is None or made.model is None or made.model != own or not made.what:
        return ""
    return "rows" if made.what == ROWS else "scores"
