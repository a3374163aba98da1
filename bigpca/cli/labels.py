"""Labels and weights of a command: joined to rows by key where the source has keys, else by position if the counts are
equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer

from bigpca.cli.options import Supervision
from bigpca.cli.parameters import MissingLabels
from bigpca.errors import closest


@dataclass(frozen=True)
class Column:
    """A column of a file that belongs to the rows.

    Attributes
    ----------
    file : str
        FILE or FILE::COLUMN, as typed.
    key : str or None
        Column of the file that holds the row keys.
    word : {"label", "weight"}
        What each entry is.
    """

    file: str
    key: str | None
    word: str


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
    return _open_column(Column(given.labels, given.key, "label"), given, sources, data, missing or MissingLabels.RAISE)


def open_given_weights(given: Supervision, sources: list[str], data: Any) -> tuple[dict[str, Any], str]:
    """Return the weights of all rows as an argument of ``fit``, and how they were joined; ({}, "") if there are none.

    A file without columns, such as a ``.npy`` vector, is in the order of the rows. Raises as
    :func:`open_given_labels`, and for weights that are missing, negative or no numbers.
    """
    if given.weights is None:
        return {}, ""
    from bigpca.data.label_files import column_names
    from bigpca.data.weights import open_weights

    column = Column(given.weights, given.key, "weight")
    if not column_names(_parts(Column(given.weights, None, "weight"))[0]):
        column = Column(given.weights, None, "weight")
    values, how = _open_column(column, given, sources, data, MissingLabels.RAISE)
    return {"sample_weight": open_weights(values)}, how


def _open_column(
    column: Column, given: Supervision, sources: list[str], data: Any, missing: MissingLabels
) -> tuple[Any, str]:
    """Return the entries of all rows, and how they were joined; raises as :func:`open_given_labels`."""
    from bigpca.data.alignment import aligned, keys_of_rows
    from bigpca.data.label_joins import ABSENT
    from bigpca.data.samples import repeat_labels
    from bigpca.data.views import view_of

    rows, source, key, word = keys_of_rows(data), " ".join(sources[:1]), column.key, column.word
    path, name = _parts(column)
    if key is not None and rows.names is None and not rows.lost:
        raise typer.BadParameter(
            f"--key {key} needs row keys, but {source} has none. Store them with bigpca ingest ... --keys "
            f"{path}::{key}, or leave out --key: {word}s in the order of the rows are taken --by-position."
        )
    keys = False if given.by_position else None if key is None else f"{path}::{key}"
    absent = None if missing is MissingLabels.DROP else ABSENT
    found = aligned(f"{path}::{name}" if name else path, rows, keys, absent=absent, word=word)
    entries, each, n = found.values, _of_several_rows(data, word), data.shape[0]
    if found.places is not None:
        return entries, found.how + each
    without_keys = path if rows.names is not None else source
    why = "" if given.by_position else f" ({without_keys} has no keys)"
    if each and len(entries) == view_of(data)[0].shape[0]:
        return repeat_labels(entries, data), f"{len(entries):,}, by position{each}{why}"
    if len(entries) != n:
        raise ValueError(
            f"{column.file} has {len(entries):,} {word}s, but {source} has {n:,} rows, and no keys to join them by. "
            f"Give one {word} for each row, or store keys with bigpca ingest ... --keys FILE::COLUMN."
        )
    return entries, f"{len(entries):,}, by position: {word} 1 belongs to row 1{why}"


def _of_several_rows(data: Any, word: str) -> str:
    """Return how the label or weight of a sample is used, for display; empty if a sample is one row."""
    from bigpca.data.views import view_of

    view = view_of(data)[1]
    several = 1 if view is None else view.rows_per_sample
    return f"; each for the {several:,} rows of its sample" if several > 1 else ""


def check_columns(given: Supervision) -> None:
    """Raise typer.BadParameter before data and outputs are checked if there is no file, or no column of a name."""
    if given.labels is not None:
        _parts(Column(given.labels, given.key, "label"))
    if given.weights is not None:
        _parts(Column(given.weights, given.key, "weight"))
    if given.by_position and given.key is not None:
        raise typer.BadParameter("--key joins by key, and --by-position does not. Leave out one of them.")
    if given.labels is None and given.weights is None and given.key is not None:
        raise typer.BadParameter("--key requires --labels or --weights. Add --labels FILE::COLUMN.")


def _parts(given: Column) -> tuple[str, str | None]:
    """Return path and column; the column is the one beside the keys if there are two, and checked if it can be."""
    from bigpca.data.label_files import column_names, split_column

    path, column = split_column(given.file)
    names = column_names(path)
    for name in filter(None, (column, given.key)):
        if names and name not in names:
            raise typer.BadParameter(f"{path} has no column {name!r}; it has {', '.join(names)}.{closest(name, names)}")
    rest = [name for name in names if name != given.key]
    return path, rest[0] if column is None and given.key is not None and len(rest) == 1 else column
