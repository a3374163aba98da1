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
    return _open_column(Column(given.labels, given.key, "label"), sources, data, missing or MissingLabels.RAISE)


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
    values, how = _open_column(column, sources, data, MissingLabels.RAISE)
    return {"sample_weight": open_weights(values)}, how


def _open_column(column: Column, sources: list[str], data: Any, missing: MissingLabels) -> tuple[Any, str]:
    """Return the entries of all rows, and how they were joined; raises as :func:`open_given_labels`."""
    from bigpca.data.alignment import named_rows
    from bigpca.data.keys import stored_keys
    from bigpca.data.label_files import column_names, read_label_file
    from bigpca.data.label_joins import ABSENT, join_labels
    from bigpca.data.label_tables import key_column, rows_joined
    from bigpca.data.samples import repeat_labels

    row_keys = named_rows(data) if len(sources) == 1 else None
    source, key, word = " ".join(sources[:1]), column.key, column.word
    path, name = _parts(column)
    own = None if row_keys is None or key is not None else stored_keys(path)
    names = column_names(path)
    if key is None and row_keys is not None and len(names) > 1:
        shown = ", ".join(map(repr, row_keys[:2].tolist()))
        likely = key_column({name: read_label_file(f"{path}::{name}", "key") for name in names}, row_keys)
        raise typer.BadParameter(
            f"the rows of {source} have keys ({shown}, ...), by which {word}s are joined. Name the column of "
            f"{path} that holds them: --key {likely or 'COLUMN'}."
        )
    if key is not None and row_keys is None:
        raise typer.BadParameter(
            f"--key {key} needs row keys, but {source} has none. Store them with bigpca ingest ... --keys "
            f"{path}::{key}, or leave out --key: {word}s are then taken in the order of the rows."
        )
    entries = read_label_file(f"{path}::{name}" if name else path, word)
    if row_keys is None or (key is None and own is None):
        return _by_position(entries, column, data, source, without_keys=source if row_keys is None else path)
    keys = read_label_file(f"{path}::{key}", "key") if own is None else own
    absent = None if missing is MissingLabels.DROP else ABSENT
    joined = join_labels(entries, keys, row_keys, absent=absent, word=word)
    how, each = rows_joined(joined, keys, row_keys, key or "key", path), _of_several_rows(data, word)
    return (repeat_labels(joined, data), how + each) if each else (joined, how)


def _by_position(entries: Any, column: Column, data: Any, source: str, *, without_keys: str) -> tuple[Any, str]:
    """Return entries in the order of the rows, or of the samples; raises as :func:`open_given_labels`."""
    from bigpca.data.samples import repeat_labels
    from bigpca.data.views import view_of

    n, word = data.shape[0], column.word
    each = _of_several_rows(data, word)
    if each and len(entries) == view_of(data)[0].shape[0]:
        return repeat_labels(entries, data), f"{len(entries):,}, by position{each} ({without_keys} has no keys)"
    if len(entries) != n:
        raise ValueError(
            f"{column.file} has {len(entries):,} {word}s, but {source} has {n:,} rows, and no keys to join them by. "
            f"Give one {word} for each row, or store keys with bigpca ingest ... --keys FILE::COLUMN."
        )
    return entries, f"{len(entries):,}, by position: {word} 1 belongs to row 1 ({without_keys} has no keys)"


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
