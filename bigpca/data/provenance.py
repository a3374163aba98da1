"""How a model or a store of scores was made: recorded once, stored beside the numbers, part of no digest."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bigpca.blas import during
from bigpca.engine.planning import format_times
from bigpca.errors import CorruptedChunkError, ModelFormatError, Shown, brief, counted, format_bytes, shorten
from bigpca.records import Held, pack, stored, unpack
from bigpca.storage.carriers import read_provenance
from bigpca.storage.files import kind_of, local_path, public
from bigpca.storage.forms import MAX_PROVENANCE_BYTES, TABLE_MARK

PACKAGES = ("bigpca", "numpy", "dask", "zarr")
MAX_TEXT = 4096  # characters of a field
MAX_VERSIONS = 64  # packages of a record
_COMMAND: ContextVar[str] = ContextVar("command", default="")
_STAMP: ContextVar[tuple[str | None, str | None]] = ContextVar("stamp", default=(None, None))
_PEAK: ContextVar[Callable[[], int] | None] = ContextVar("peak", default=None)


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
        """Record a run that ends now; what :func:`recording` and :func:`measuring` know goes before ``call``."""
        found = public(", ".join(filter(None, sources)))
        peak = _PEAK.get()
        return cls(
            source=_short(found),
            member=_short(member),
            rows=rows,
            call=_short(public(_COMMAND.get() or call)),
            seconds=seconds,
            reads=reads,
            peak_bytes=None if peak is None else peak(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            model=made.model,
            versions=versions(PACKAGES),
            stamp=_STAMP.get()[0],
            fingerprint=_STAMP.get()[1],
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


def recording(command: str) -> AbstractContextManager[None]:
    """Record this command line as what made the models and stores in the context."""
    return during(_COMMAND, command)


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


def stamping(stamp: str | None, fingerprint: str | None = None) -> AbstractContextManager[None]:
    """Record what identifies the rows of the models made in the context, and the command that makes them."""
    return during(_STAMP, (stamp, fingerprint))


def measuring(peak: Callable[[], int]) -> AbstractContextManager[None]:
    """Record what ``peak`` returns, in bytes, as the measured memory of the models and stores made in the context."""
    return during(_PEAK, peak)
