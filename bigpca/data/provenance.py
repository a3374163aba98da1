"""How a model or scores were made, recorded once beside the numbers, part of no digest; and what an array holds.

``Made`` and ``Provenance`` are the records. ``are_scores`` decides by them, by names of columns and by shapes whether
an array beside a model holds rows, or scores, and which model made these.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

import numpy as np

import bigpca.dask_array as da
from bigpca.blas import during
from bigpca.data.containers import is_labelled
from bigpca.data.dask_arrays import carried, source_of, taken_from, view_of
from bigpca.data.grids import COMPONENT
from bigpca.engine.planning import format_times
from bigpca.errors import CorruptedChunkError, ModelFormatError, Shown, brief, counted, format_bytes, listed, shorten
from bigpca.records import Held, pack, stored, unpack
from bigpca.storage.carriers import read_provenance
from bigpca.storage.files import kind_of, local_path, public
from bigpca.storage.outputs import MAX_PROVENANCE_BYTES, TABLE_MARK

PACKAGES = ("bigpca", "numpy", "dask", "zarr")
MAX_TEXT = 4096  # characters of a field
MAX_VERSIONS = 64  # packages of a record
STATISTICS = ("t2", "spe", "mahalanobis")  # columns of other outputs of models
ROWS = "rows"  # what a reconstruction is
_RECORDED: ContextVar[Mapping[str, Any]] = ContextVar("recorded", default=MappingProxyType({}))


def _checked_versions(value: Any, *_: object) -> dict[str, str]:
    texts = isinstance(value, dict) and all(isinstance(one, str) for pair in value.items() for one in pair)
    if not texts or len(value) > MAX_VERSIONS:
        raise ValueError(f"it has versions = {brief(repr(value), 100)}; at most {MAX_VERSIONS} names were expected")
    return dict(value)


@dataclass(frozen=True, eq=False)
class Made:
    """What an output of a model or of a copy is, as its graph or its store says.

    Attributes
    ----------
    what : str or None
        What the numbers are: "scores", "statistics", "rows" and so on; None for a copy.
    call : str or None
        The Python call.
    model : str or None
        Digest of the model.
    keys : anything that :func:`bigpca.data.keys.row_keys` reads, or None
        None for the keys of the source, if it has any.
    """

    what: str | None = None
    call: str | None = None
    model: str | None = None
    keys: object = None


@dataclass(frozen=True, repr=False)
class Provenance(Shown):
    """How the numbers of a model or a score store came to be; None for what was not recorded.

    Attributes
    ----------
    source : str or None
        Path or URL of the rows without credentials, several joined by commas; None for rows in memory.
    member : str or None
        Array or column inside the source.
    rows : int
    call : str or None
        The command line, or the Python call: class, parameters that are not defaults, and method.
    seconds : float or None
        Wall time, of the last run where runs were resumed.
    reads : float or None
        Complete reads of the rows.
    peak_bytes : int or None
        Highest memory of all processes above the idle ones, where it was measured.
    date : str
        When the run was complete, ISO 8601, UTC.
    model : str or None
        Digest of the function from rows to scores: that of a model, and of the scores that it made.
    what : str or None
        What the numbers of a store are: "scores", "statistics", "rows" and so on; None for a model.
    versions : dict of str to str
        Of Python and packages.
    planned_reads, planned_max_reads, planned_seconds : float or None
        What the plan estimated; the time is not estimated where the speed of the machine was not measured.
    planned_bytes : int or None
        Memory that the plan allowed to all processes above the idle ones.
    added_rows : int or None
        How many of the rows ``partial_fit`` added after the call.
    updated : str or None
        The command or Python call that last added rows.
    merged_models : int or None
        How many models were merged.
    solve_threads : int or None
        BLAS threads of the computations between passes, on which the last bits depend; None where each worker used
        one for each of its cores.
    stamp : str or None
        What identifies the rows in their store, see :func:`bigpca.data.sources.rows_stamp`; of ``bigpca fit`` only.
    fingerprint : str or None
        Of the rows, what was given with them and all parameters: an equal command makes an equal model.
    """

    source: str | None = stored(of=str, optional=True)
    member: str | None = stored(of=str, optional=True)
    rows: int = stored(of=int, least=0)
    call: str | None = stored(of=str, optional=True)
    seconds: float | None = stored(of=float, least=0, optional=True)
    reads: float | None = stored(of=float, least=0, optional=True)
    peak_bytes: int | None = stored(of=int, least=0, optional=True)
    date: str = stored(of=str)
    versions: Mapping[str, str] = stored(coding=(lambda value: (dict(value), {}), _checked_versions))
    model: str | None = stored(of=str, optional=True, default=None)
    planned_reads: float | None = stored(of=float, least=0, optional=True, default=None)
    planned_max_reads: float | None = stored(of=float, least=0, optional=True, default=None)
    planned_seconds: float | None = stored(of=float, least=0, optional=True, default=None)
    planned_bytes: int | None = stored(of=int, least=0, optional=True, default=None)
    added_rows: int | None = stored(of=int, least=0, optional=True, default=None)
    merged_models: int | None = stored(of=int, least=0, optional=True, default=None)
    solve_threads: int | None = stored(of=int, least=0, optional=True, default=None)
    stamp: str | None = stored(of=str, optional=True, default=None)
    fingerprint: str | None = stored(of=str, optional=True, default=None)
    what: str | None = stored(of=str, optional=True, default=None)
    updated: str | None = stored(of=str, optional=True, default=None)

    @classmethod
    def now(
        cls,
        sources: Iterable[str],
        member: str,
        rows: int,
        call: str,
        *,
        seconds: float,
        reads: float,
        made: Made = Made(),
    ) -> Provenance:
        """Record a run that ends now; the command that :func:`recording` knows goes before ``call``."""
        found, known = public(", ".join(filter(None, sources))), _RECORDED.get()
        return cls(
            source=_short(found),
            member=_short(member),
            rows=rows,
            call=_short(public(known.get("command") or call)),
            seconds=seconds,
            reads=reads,
            peak_bytes=known["peak"]() if "peak" in known else None,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            model=made.model,
            versions=versions(PACKAGES),
            stamp=known.get("stamp"),
            fingerprint=known.get("fingerprint"),
            what=made.what,
        )

    def with_rows(self, added: Provenance) -> Provenance:
        """Return the record of a model to which the rows of ``added`` were added."""
        rows, call = (self.added_rows or 0) + added.rows, added.call or self.updated
        return replace(
            self._joined(added), added_rows=rows, updated=call, stamp=added.stamp, fingerprint=added.fingerprint
        )

    def merged(self, other: Provenance) -> Provenance:
        """Return the record of the model of both models' rows."""
        models = (self.merged_models or 1) + (other.merged_models or 1)
        return replace(self._joined(other), call="bigpca.merge(a, b)", added_rows=None, merged_models=models)

    def _joined(self, other: Provenance) -> Provenance:
        """Return the record of both models' rows, whose number of reads is that of an average row."""
        rows = self.rows + other.rows
        seconds = [one.seconds for one in (self, other) if one.seconds is not None]
        reads = [one.rows / max(1, rows) * one.reads for one in (self, other) if one.reads is not None]
        sources = dict.fromkeys(filter(None, (self.source, other.source)))
        return Provenance(
            source=_short(", ".join(sources)),
            member=self.member if self.member == other.member else None,
            rows=rows,
            call=self.call,
            seconds=sum(seconds) if seconds else None,
            reads=sum(reads) if len(reads) == 2 else None,
            peak_bytes=max(filter(None, (self.peak_bytes, other.peak_bytes)), default=None),
            date=other.date,
            versions=other.versions,
        )

    def cells(self) -> list[tuple[str, ...]]:
        """Return what was recorded, a line for each."""
        return list(self.lines().items())

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return pack(self)[1]

    def lines(self) -> dict[str, str]:
        """Return what was recorded as names and values for display."""
        reads, most = (None if one is None else f"{one:.3g}" for one in (self.planned_reads, self.planned_max_reads))
        reads = reads and reads + (f", at most {most}" if most else "")
        shown = {
            "made by": self.call,
            "updated by": self.updated,
            "merged": self.merged_models and f"from {self.merged_models:,} models",
            "from": self.source and self.source + (f", member {self.member}" if self.member else ""),
            "rows read": f"{self.rows:,}"
            + ("" if self.reads is None else f", {format_times(self.reads)}{_planned(reads)}"),
            "rows added": self.added_rows and f"{self.added_rows:,} of them, by partial_fit",
            "took": self.seconds is not None
            and f"{self.seconds:.3g} s{_planned(self.planned_seconds and f'{self.planned_seconds:.2g} s')}",
            "peak memory": {self.peak_bytes, self.planned_bytes} != {None}
            and ("not measured" if self.peak_bytes is None else f"{format_bytes(self.peak_bytes)} above idle")
            + _planned(self.planned_bytes and format_bytes(self.planned_bytes)),
            "solved with": self.solve_threads and counted(self.solve_threads, "BLAS thread"),
            "date": self.date,
            "model digest": self.model,
            "versions": ", ".join(f"{name} {number}" for name, number in self.versions.items()),
        }
        return {name: text for name, text in shown.items() if text}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Provenance:
        """Return what :meth:`to_json` gave; fields of newer versions are ignored.

        Raises
        ------
        ValueError
            For missing fields, wrong types, and texts that are too long.
        """
        found = unpack(cls, Held({}, {name: value for name, value in values.items() if value is not None}))
        texts = {name: text for name, text in vars(found).items() if isinstance(text, str)} | dict(found.versions)
        for name, text in texts.items():
            if len(text) > MAX_TEXT:
                raise ValueError(f"it has {name} of {len(text):,} characters; at most {MAX_TEXT:,} were expected")
        return found


def _planned(text: object) -> str:
    return f" (planned: {text})" if text else ""


def _short(text: str) -> str | None:
    return shorten(text, MAX_TEXT) if text else None


def provenance_of(store: str | os.PathLike[str]) -> Provenance | None:
    """Return how a saved model or a store of scores was made; None where that was not recorded.

    Parameters
    ----------
    store : path of a model, of a Zarr array, or of a Parquet table of scores

    Returns
    -------
    Provenance or None

    Raises
    ------
    ModelFormatError
        If there is a record that bigpca did not write, or that is too large.
    """
    try:
        values = _of_table(store) if str(store).lower().endswith(".parquet") else read_provenance(store)
        return None if values is None else Provenance.from_json(values)
    except (CorruptedChunkError, ValueError) as error:
        raise ModelFormatError(
            f"the provenance in {public(os.fspath(store))} was altered ({brief(error, 1000)}). Remove the folder "
            "provenance in it: nothing else depends on it."
        ) from error


def _of_table(path: str | os.PathLike[str]) -> Any:
    """Return the record in the metadata of a Parquet file; None where there is none."""
    if kind_of(path) == "disk" and not os.path.isfile(path := local_path(path)):
        return None
    from bigpca.data.source import file_stamp
    from bigpca.data.tables import parquet_metadata  # only for tables

    try:
        text = (parquet_metadata(file_stamp(os.fspath(path))).metadata or {}).get(TABLE_MARK)
    except FileNotFoundError:
        return None
    if text is None:
        return None
    if len(text) > MAX_PROVENANCE_BYTES:
        raise ValueError(f"it has {len(text):,} bytes")
    values = json.loads(text)
    if values is not None and not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    return values


@lru_cache
def version_of(package: str) -> str:
    """Return the version of a package, also of one that runs from its folder, without being installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "not installed"))


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of packages.

    >>> versions(["numpy"])["python"] == platform.python_version()
    True
    """
    return {"python": platform.python_version()} | {name: version_of(name) for name in packages}


def recording(**known: Any) -> AbstractContextManager[None]:
    """Record of the models and stores that are made in the context what else is known, beside what callers said.

    Parameters
    ----------
    command : str
        The command line that makes them.
    stamp, fingerprint : str or None
        What identifies the rows, and the command that makes outputs of them.
    peak : callable
        Returns the measured memory in bytes.
    """
    return during(_RECORDED, {**_RECORDED.get(), **known})


def fingerprint_of(model: Any, stamp: str | None, given: object) -> str | None:
    """Return what two commands have in common that make equal outputs of rows; None if these cannot be identified.

    Parameters
    ----------
    model : estimator, or None for copies of the rows
    stamp : str or None
        Of the rows.
    given : what else the command is given
    """
    from dask.base import tokenize

    if stamp is None:
        return None
    parameters = None if model is None else repr(sorted(model.get_params().items()))
    return str(tokenize(type(model).__name__, parameters, stamp, given))


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
