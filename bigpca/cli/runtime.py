"""Where a command runs: in this process, or on a running cluster.

Shared parts of plan, fit and transform: rejection of existing outputs, progress, and the count of reads. The source of
a command: one path, or several that are shards of one matrix, in an order that is shown. Labels and weights of a
command: joined to rows by key where the source has keys, else by position if the counts are equal.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from bigpca.cli.options import Cluster, Labelling, SourceOptions
from bigpca.cli.output import Streams
from bigpca.engine.events import Event, LogProgress, PlanEvent, Progress, TerminalProgress
from bigpca.errors import MemoryBudgetError, OutputExistsError, OutputWriteError, counted, format_bytes
from bigpca.settings import config
from bigpca.storage.files import is_within, kind_of, local_path, real_path

if TYPE_CHECKING:
    from distributed import Client

    from bigpca.data.provenance import Provenance


CONNECT_SECONDS = 10
KEPT = "{}, which the same command has made of the same rows"  # an output that is not made again
COLUMNS = {"labels": "label", "weights": "weight", "groups": "group"}  # of a file, and what an entry of each is


@contextmanager
def running(options: Cluster) -> Iterator[Client | None]:
    """Provide the client of the requested scheduler; None for threads of this process.

    Raises
    ------
    ConnectionError, TimeoutError
        If no scheduler answers at ``--scheduler``, or no worker connects to it in time. The software of workers is
        checked before the first read, and by ``bigpca doctor``.
    """
    with config(workers_timeout=options.workers_timeout):
        if options.scheduler is None:
            yield None
        else:
            with _joined(options.scheduler) as client:
                yield client


@contextmanager
def _joined(address: str) -> Iterator[Client]:
    import asyncio

    from distributed import Client

    from bigpca.engine.cluster.watch import Watch
    from bigpca.engine.run import Run

    try:
        asyncio.run(asyncio.wait_for(_greet(address), CONNECT_SECONDS))
        client = Client(address, timeout=CONNECT_SECONDS)
    # MemoryError: the first bytes of another protocol are read as sizes; TypeError, RuntimeError: Dask's TLS errors.
    except (OSError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else "it was silent"
        raise ConnectionError(
            f"no Dask scheduler answered at {address} within {CONNECT_SECONDS} s ({cause}). Check the address (such as "
            "tcp://host:8786) and that the scheduler is running. With TLS the address is like tls://host:8786, and "
            "certificates are required: set DASK_CONFIG to the directory that configures them."
        ) from error
    with client:
        Watch(client, Run(), lambda workers: []).wait_for_workers()
        yield client


async def _greet(address: str) -> None:
    """Shake hands with a scheduler, because Dask's client would wait for ever for a peer that accepts but is silent."""
    from distributed.comm import connect
    from distributed.security import Security

    comm = await connect(address, timeout=CONNECT_SECONDS, **Security().get_connection_args("client"))
    comm.abort()


def shown(bar: TerminalProgress, output: Streams, kept: str | None = None) -> list[Progress]:
    """Return the consumers of a command's events.

    Parameters
    ----------
    bar : TerminalProgress
        Drawn on a terminal; otherwise lines are logged to stderr.
    output : Streams
        With ``--quiet`` nothing is shown.
    kept : str, optional
        Where finished groups are kept.
    """
    if output.quiet:
        return []
    bar.kept = kept or ""
    output.doing("")
    log = LogProgress(interval=30)

    def lines(event: Event) -> None:
        if not isinstance(event, PlanEvent):  # which the command has already printed
            log(event)

    return [bar if bar.shown else lines]


def made_at(path: str | None, fingerprint: str | None, kind: str = "array") -> Provenance | None:
    """Return the record of what an equal command has made at a path: an array, a table or a model; else None."""
    from bigpca.data.provenance import provenance_of
    from bigpca.storage.carriers import carrier, kind_at

    if path is None or fingerprint is None or (Path(path).suffix != ".parquet" and kind_at(path) != kind):
        return None
    with suppress(ValueError):  # altered
        found = provenance_of(path)
        if found is not None and found.fingerprint == fingerprint:
            carrier(path).tidy(path)
            return found
    return None


def reject_existing(
    path: str | None, overwrite: bool, what: Literal["model", "rows", "scores"], instead: str = ""
) -> None:
    """Raise before anything is read if an output exists already.

    Raises
    ------
    OutputExistsError
        If ``path`` exists and ``overwrite`` is False, or it is not what overwriting replaces.
    ValueError
        If its extension is that of a format which is not written there.
    """
    if path is None:
        return
    from bigpca.storage.carriers import carrier
    from bigpca.storage.outputs import STORES, check_extension, form_of

    if what != "scores":
        check_extension(path, *STORES)
    kind: Any = "model" if what == "model" else form_of(path, ()).kind
    carrier(path).reject_output(path, overwrite, kind, instead)


def reject_shared_paths(sources: list[str], **paths: str | None) -> None:
    """Raise before anything is read if writing one path of a command would destroy its source or another of its paths.

    Parameters
    ----------
    sources : list of str
        What the command reads.
    paths : str or None
        Paths or URLs of what it writes, by name.

    Raises
    ------
    OutputExistsError
        If an output is the source or a folder around it, or if two outputs are the same or one is inside the other.
    """
    taken = [("source", source) for source in sources if source]
    for name, path in paths.items():
        if path is None:
            continue
        for other, given in taken:
            if is_within(given, path) or (other != "source" and is_within(path, given)):
                raise OutputExistsError(
                    f"the {name} {path} and the {other} {given} are the same path, or one contains the other, so "
                    f"writing one would destroy the other. Choose another path for the {name}; --overwrite does not "
                    "help."
                )
        taken = [*taken, (name, path)]


def reject_unwritable(path: str | None, what: str, size: int) -> None:
    """Raise before anything is read if an output could not be written after the work.

    Parameters
    ----------
    size : int
        Bytes that it needs.

    Raises
    ------
    OutputWriteError
        If its folder cannot be written, or is not a folder.
    MemoryBudgetError
        If its disk has less free space.
    """
    if path is None or kind_of(path) != "disk":
        return
    from bigpca.storage import free_bytes

    place = Path(real_path(path)).parent
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = "is not writable" if place.is_dir() else "is not a folder"
        raise OutputWriteError(f"the {what} {path} cannot be created: {place} {reason}. Choose another path.")
    free = free_bytes(place)
    if size > free:
        raise MemoryBudgetError(
            f"the {what} {path} needs {format_bytes(size)} of disk, but {format_bytes(free)} are free on {place}. "
            "Free space, or write to another disk."
        )


def in_order(sources: list[str]) -> list[str]:
    """Return shards in natural order if a shell has expanded them, which sorts by characters; else as given.

    Raises
    ------
    typer.BadParameter
        If a shard is given twice.

    Examples
    --------
    >>> in_order(["s_1.npy", "s_10.npy", "s_2.npy"]), in_order(["b.npy", "a.npy"])
    (['s_1.npy', 's_2.npy', 's_10.npy'], ['b.npy', 'a.npy'])
    """
    from bigpca.data.checks import natural_key

    twice = [path for index, path in enumerate(sources) if path in sources[:index]]
    if twice:
        raise typer.BadParameter(
            f"{twice[0]} is given twice, so its rows would be counted twice. Give each shard once."
        )
    return sorted(sources, key=natural_key) if sources == sorted(sources) else sources


def open_sources(sources: list[str], reading: SourceOptions) -> Any:
    """Open the sources of a command as one row-chunked Dask array; no data is read."""
    import bigpca

    given = sources[0] if len(sources) == 1 else in_order(sources)
    return bigpca.open(given, **reading.given)


def open_targets(source: str) -> Any:
    """Open the targets of a command, which may be one number for each row; no data is read."""
    from bigpca.estimators.shared.labelled import open_side

    return open_side(source, "bigpca fit", "targets").X


def recorded(sources: list[str]) -> Any:
    """Return the sources for a JSON record: a string if there is one."""
    return sources[0] if len(sources) == 1 else in_order(sources)


def shards_of(sources: list[str]) -> list[str]:
    """Return the files of several sources, of a folder or of a pattern, in the order in which they are read."""
    if len(sources) > 1:
        return in_order(sources)
    if kind_of(sources[0]) != "disk":
        return []
    path = local_path(sources[0])
    if not (os.path.isdir(path) or glob.has_magic(path)) or os.path.isfile(path):
        return []
    from bigpca.data.flat_files import FLAT, shard_paths, suffix_of
    from bigpca.data.tables import table_paths
    from bigpca.data.zarr_arrays import is_zarr_directory

    if is_zarr_directory(path):
        return []
    return [one for one in shard_paths(path) if suffix_of(one) in FLAT] or list(table_paths(path))


def described(sources: list[str], data: Any) -> list[str]:
    """Return what is read, for display: the shards and their order, then rows, columns, dtype, bytes and chunks.

    ``data`` is a Dask array, or the source of one.
    """
    n, d = data.shape
    found = data
    if not hasattr(data, "row_chunks"):
        from bigpca.data.dask_arrays import source_of  # imports dask.array, which a source does not need

        found = source_of(data)
    chunks = data.numblocks[0] if found is None else len(found.row_chunks())
    size = ""
    if n == n:  # a Dask array may not know its rows
        size = f", {format_bytes(n * (d * data.dtype.itemsize if found is None else found.row_bytes))}"
    if found is not None and found.stored_values is not None:
        size = f", sparse with {found.stored_values:,} values ({100 * found.stored_values / max(1, n * d):.3g} %){size}"
    shape = f"{n:,} rows x {d:,} columns" if n == n else f"{d:,} columns"
    return [*shard_line(shards_of(sources)), f"{shape}, {data.dtype}{size}, {counted(chunks, 'chunk')}"]


def shard_line(shards: list[str]) -> list[str]:
    """Return one line that names the first and the last shard, or none.

    >>> shard_line(["x/shard_00.npy", "x/shard_01.npy", "x/shard_02.npy"])
    ['3 shards, shard_00.npy to shard_02.npy, in this order']
    """
    if len(shards) < 2:
        return []
    first, last = os.path.basename(shards[0]), os.path.basename(shards[-1])
    return [f"{len(shards):,} shards, {first} to {last}, in this order"]


def open_beside(given: Labelling, data: Any, missing: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a fit takes beside the rows, as its arguments, and how each belongs to the rows, for display.

    Raises
    ------
    ValueError
        If entries and rows do not match; the message names keys or counts. Also for weights that are missing, negative
        or not numbers.
    """
    from bigpca.data.labels import ARGUMENTS
    from bigpca.data.weights import open_weights

    found: dict[str, Any] = {}
    how: dict[str, Any] = {}
    for option, word in COLUMNS.items():
        if getattr(given, option) is not None:
            entries, how[option] = _open_column(given, option, data, missing if word == "label" else "raise")
            found[ARGUMENTS[word]] = open_weights(entries) if word == "weight" else entries
    if given.targets is not None:
        found["y"] = open_targets(given.targets)
        how["targets"] = described([given.targets], found["y"])
    return found, how


def _open_column(given: Labelling, option: str, data: Any, missing: str) -> tuple[Any, str]:
    """Return the entries of all rows, and how they were joined; raises as :func:`open_beside`.

    Of weights and groups, a file without columns, such as a ``.npy`` vector, is in the order of the rows.
    """
    from bigpca.data.dask_arrays import carried, view_of
    from bigpca.data.keys import ABSENT, aligned
    from bigpca.data.label_files import column_names, split_column

    source, word = getattr(given, option), COLUMNS[option]
    path = split_column(source)[0]
    key = given.key if word == "label" or column_names(path) else None
    keys = False if given.by_position else None if key is None else f"{path}::{key}"
    found = aligned(source, data, keys, absent=None if missing == "drop" else ABSENT, word=word)
    entries, how, view = found.values, found.how, carried(data).view
    if view is not None and view.rows_per_sample > 1:
        how += f"; each for the {view.rows_per_sample:,} rows of its sample"
        if not found.joined and len(entries) == view_of(data)[0].shape[0]:
            entries = entries.repeat(view.rows_per_sample, axis=0)
    return entries, how


def check_key(given: Labelling) -> None:
    """Raise typer.BadParameter, before data and outputs are checked, if there is nothing that ``--key`` could join."""
    from bigpca.data.label_files import column_names, split_column

    if given.key is None:
        return
    if given.by_position:
        raise typer.BadParameter("--key matches by key, but --by-position does not. Leave out one of them.")
    tables = [split_column(path)[0] for path in (given.weights, given.groups) if path is not None]
    if given.labels is None and not any(map(column_names, tables)):
        without = "".join(f"; {path} has no columns" for path in tables)
        raise typer.BadParameter(
            f"--key requires --labels, --weights or --groups{without}. Add --labels FILE::COLUMN, or leave out --key."
        )
