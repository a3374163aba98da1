"""Shared parts of plan, fit and transform: rejection of existing outputs, progress, and the count of reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bigpca.cli.output import Output
from bigpca.errors import MemoryBudgetError, OutputExistsError, OutputWriteError, format_bytes
from bigpca.passes.engine.progress import Event, LogProgress, PassEvent, PlanEvent, Progress, TerminalProgress


@dataclass
class PassCounter:
    """Counts the actual reads of the data from the run's events."""

    passes: int = 0
    groups_resumed: int = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, PassEvent):
            self.passes += 1
            self.groups_resumed += event.groups_resumed


def shown(counter: PassCounter, bar: TerminalProgress, output: Output, kept: str | None = None) -> list[Progress]:
    """Return the consumers of a command's events.

    Parameters
    ----------
    counter : PassCounter
    bar : TerminalProgress
        Drawn on a terminal; otherwise lines are logged to stderr.
    output : Output
        With ``--quiet`` only reads are counted.
    kept : str, optional
        Where finished groups are kept.
    """
    if output.quiet:
        return [counter]
    bar.kept = kept or ""
    output.doing("")
    return [counter, bar if bar.shown else _without_plans(LogProgress(interval=30))]


def _without_plans(show: Progress) -> Progress:
    """Skip plans, which the command has already printed."""

    def show_others(event: Event) -> None:
        if not isinstance(event, PlanEvent):
            show(event)

    return show_others


def reject_existing(path: Path | None, what: str, overwrite: bool, instead: str = "", *, table: bool = False) -> None:
    """Raise before anything is read if an output exists already.

    Raises
    ------
    OutputExistsError
        If ``path`` exists and ``overwrite`` is False, or it is not a Zarr store.
    ValueError, ImportError
        If its extension is that of a format which is not written there, or the library that writes it is missing.
    """
    if path is None:
        return
    from bigpca.storage.files import writing

    with writing(path):  # rejects a name that is too long before the work
        there = path.exists() or path.is_symlink()
    from bigpca.storage.forms import STORES, check_extension, form_of, is_table

    if table:
        form_of(path, ()).check()  # the library that writes it, too
    else:
        check_extension(path, *STORES)
    if not there:
        return
    if overwrite:
        from bigpca.storage.stores import reject_existing as reject_all_but_stores

        reject_all_but_stores(Path(os.path.realpath(path)), True, table=table and is_table(path))
    else:
        raise OutputExistsError(
            f"the {what} {path} exists already, but a new path was expected. "
            f"Choose another path, or replace it with --overwrite.{instead}"
        )


def reject_shared_paths(sources: list[str], **paths: Path | None) -> None:
    """Raise before anything is read if writing one path of a command would destroy its source or another of its paths.

    Parameters
    ----------
    sources : list of str
        What the command reads.
    paths : path or None
        What it writes, by name.

    Raises
    ------
    OutputExistsError
        If an output is the source or a folder around it, or if two outputs are one or lie in each other.
    """
    taken = [("source", Path(os.path.realpath(source))) for source in sources]
    for name, path in paths.items():
        if path is None:
            continue
        here = Path(os.path.realpath(path))
        for other, there in taken:
            inside = there == here or here in there.parents or (other != "source" and there in here.parents)
            if inside:
                raise OutputExistsError(
                    f"the {name} {path} and the {other} {there} are the same path, or one is inside the other, so "
                    f"writing one would destroy the other. Choose another path for the {name}; --overwrite does not "
                    "help."
                )
        taken = [*taken, (name, here)]


def reject_unwritable(path: Path | None, what: str, size: int) -> None:
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
    if path is None:
        return
    from bigpca.storage import free_bytes

    place = Path(os.path.realpath(path)).parent
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
