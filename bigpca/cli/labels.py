"""Labels of a command: joined to rows by key where the source has keys, else by position if the counts are equal."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

import typer

from bigpca.cli.options import MissingLabels, Supervision


def open_given_labels(
    given: Supervision, sources: list[str], data: Any, missing: MissingLabels | None
) -> tuple[Any, str]:
    """Return the labels of all rows, and how they were joined, for display; (None, "") if there are none.

    Raises
    ------
    typer.BadParameter
        If a key is given for a source without keys, or is needed.
    ValueError
        If labels and rows do not match; the message names keys or counts.
    """
    if given.labels is None:
        return None, ""
    from bigpca.data.keys import stored_keys
    from bigpca.data.label_files import column_names, read_label_file
    from bigpca.data.label_joins import join_labels
    from bigpca.data.label_tables import key_column, rows_joined
    from bigpca.data.samples import repeat_labels

    row_keys = stored_keys(sources[0]) if len(sources) == 1 else None
    source = " ".join(sources[:1])
    path, column = _parts(given)
    own = None if row_keys is None or given.key is not None else stored_keys(path)
    names = column_names(path)
    if given.key is None and row_keys is not None and len(names) > 1:
        shown = ", ".join(map(repr, row_keys[:2].tolist()))
        likely = key_column({name: read_label_file(f"{path}::{name}") for name in names}, row_keys)
        raise typer.BadParameter(
            f"the rows of {source} have keys ({shown}, ...), by which labels are joined. Name the column of "
            f"{path} that holds them: --key {likely or 'COLUMN'}."
        )
    if given.key is not None and row_keys is None:
        raise typer.BadParameter(
            f"--key {given.key} needs row keys, but {source} has none. Store them with bigpca ingest ... --keys "
            f"{path}::{given.key}, or leave out --key: labels are then taken in the order of the rows."
        )
    labels = read_label_file(f"{path}::{column}" if column else path)
    if row_keys is None or (given.key is None and own is None):
        return _by_position(labels, given, data, source, without_keys=source if row_keys is None else path)
    keys = read_label_file(f"{path}::{given.key}") if own is None else own
    joined = join_labels(labels, keys, row_keys, missing=str(missing or MissingLabels.RAISE))
    how, each = rows_joined(joined, keys, row_keys, given.key or "key", path), _of_several_rows(data)
    return (repeat_labels(joined, data), how + each) if each else (joined, how)


def _by_position(labels: Any, given: Supervision, data: Any, source: str, *, without_keys: str) -> tuple[Any, str]:
    """Return labels in the order of the rows, or of the samples; raises as :func:`open_given_labels`."""
    from bigpca.data.samples import repeat_labels
    from bigpca.data.views import view_of

    n, each = data.shape[0], _of_several_rows(data)
    if each and len(labels) == view_of(data)[0].shape[0]:
        return repeat_labels(labels, data), f"{len(labels):,}, by position{each} ({without_keys} has no keys)"
    if len(labels) != n:
        raise ValueError(
            f"{given.labels} has {len(labels):,} labels, but {source} has {n:,} rows, and no keys to join them by. "
            "Give one label for each row, or store keys with bigpca ingest ... --keys FILE::COLUMN."
        )
    return labels, f"{len(labels):,}, by position: label 1 belongs to row 1 ({without_keys} has no keys)"


def _of_several_rows(data: Any) -> str:
    """Return how a label of a sample is used, for display; empty if a sample is one row."""
    from bigpca.data.views import view_of

    view = view_of(data)[1]
    several = 1 if view is None else view.rows_per_sample
    return f"; each for the {several:,} rows of its sample" if several > 1 else ""


def check_columns(given: Supervision) -> None:
    """Raise typer.BadParameter before data and outputs are checked if there are no labels, or no column of a name."""
    if given.labels is not None:
        _parts(given)
    elif given.key is not None:
        raise typer.BadParameter("--key requires --labels. Add --labels FILE::COLUMN.")


def _parts(given: Supervision) -> tuple[str, str | None]:
    """Return path and column; the column is the one beside the keys if there are two, and checked if it can be."""
    path, mark, column = str(given.labels).partition("::")
    if os.path.exists(str(given.labels)) or "://" in column:
        path, mark, column = str(given.labels), "", ""
    from bigpca.data.label_files import column_names

    names = column_names(path)
    for name in filter(None, (column, given.key)):
        if names and name not in names:
            near = get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise typer.BadParameter(f"{path} has no column {name!r}; it has {', '.join(names)}.{hint}")
    rest = [name for name in names if name != given.key]
    return path, column if mark else rest[0] if given.key is not None and len(rest) == 1 else None
