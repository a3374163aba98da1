"""Errors that callers may want to catch by name; everything else is a ValueError or a TypeError.

Every message states the offending numbers, what was expected, and what to do.
"""

from __future__ import annotations

import contextlib
import linecache
import logging
import os
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from html import escape
from importlib import import_module
from numbers import Integral, Real
from types import MappingProxyType, TracebackType
from typing import Any

__all__ = [
    "ApproximationWarning",
    "CheckpointError",
    "CorruptedChunkError",
    "EvaluationBudgetError",
    "InputChangedError",
    "MemoryBudgetError",
    "MissingChunksError",
    "ModelFormatError",
    "NonFiniteError",
    "OutputExistsError",
    "OutputLockedError",
    "OutputWriteError",
]
PACKAGE = os.path.dirname(__file__) + os.sep
MAX_MESSAGE = 2000
MAX_NAME = 200
# Control characters except tab and line feed (ESC starts terminal commands), bidirectional marks, lone surrogates.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_AN = re.compile("'?([AEIOaeio]|nd|[FHLMNRSX][A-Z])")  # what begins with a vowel as it is said: capitals are spelt


class MemoryBudgetError(MemoryError):
    """The planned peak (memory or disk) does not fit the limit. Raised before any row is read."""


class EvaluationBudgetError(ValueError):
    """The planned kernel evaluations exceed ``max_kernel_evaluations``. Raised before any row is read."""


class MissingChunksError(ValueError):
    """Chunks of the input that the store does not hold; Zarr itself would read them as the fill value."""


class UnansweredError(TimeoutError):
    """A store that has not answered for most of a minute, in which it was asked again and again."""


class NonFiniteError(ValueError):
    """NaN or infinite values in the input, found during the read that uses them.

    Attributes
    ----------
    columns : tuple of int
        Columns with such values, if they are known.
    stored_columns : tuple of int
        Columns of the stored samples that are NaN in some samples and have values in others.
    """

    columns: tuple[int, ...] = ()
    stored_columns: tuple[int, ...] = ()


class CorruptedChunkError(ValueError):
    """A stored chunk cannot be decoded: it is truncated or empty, or fails its checksum."""


class InputChangedError(ValueError):
    """Files of the input changed since they were opened, so a result would mix old and new rows. Start again."""


class ModelFormatError(ValueError):
    """A model (or state) store is truncated, altered, in a newer format, or not a bigpca model."""


class ApproximationWarning(UserWarning):
    """An approximate answer did not converge or cannot be trusted; the message gives the number that shows it."""


class OutputExistsError(FileExistsError):
    """The output exists already and ``overwrite=True`` was not given."""


class OutputLockedError(RuntimeError):
    """Another running process holds the output or the checkpoint."""


class OutputWriteError(OSError):
    """An output cannot be written: missing permission, a name that is too long, a disk error."""


class UndeclaredPassError(RuntimeError):
    """A fit read more, held more or computed otherwise than planned: a fault of bigpca; please report it."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used: it belongs to another input or another computation, or cannot be written."""


OF_USERS = (ValueError, TypeError, OSError, MemoryError, CheckpointError, OutputLockedError)
CHECKS = ("bigpca.", "sklearn.utils.")  # modules whose ``raise`` statements name a mistake of the caller


class ShortTraceback(AbstractContextManager["ShortTraceback"]):
    """Removes the frames between the body of a ``with`` and a check that rejects what the user gave.

    Errors that no ``raise`` statement of a check raised keep all frames: they are faults of the code. If the log
    "bigpca" is at the level DEBUG, all errors do.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        full = logging.getLogger("bigpca").isEnabledFor(logging.DEBUG)
        if full or traceback is None or not isinstance(error, OF_USERS):
            return
        last = traceback
        while last.tb_next is not None:
            last = last.tb_next
        file, module = last.tb_frame.f_code.co_filename, str(last.tb_frame.f_globals.get("__name__"))
        if module.startswith(CHECKS) and linecache.getline(file, last.tb_lineno).lstrip().startswith("raise "):
            traceback.tb_next = None if last is traceback else last
            error.__cause__, error.__suppress_context__ = None, True  # messages quote their causes


def format_bytes(count: float) -> str:
    """Format a number of bytes in binary units.

    >>> format_bytes(1.5 * 2**30), format_bytes(700)
    ('1.5 GiB', '700 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def printable(text: str) -> str:
    """Escape the control characters of a text, so that no terminal executes them.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Cut the middle out of a text that is longer than ``limit`` characters.

    >>> shorten("abcdefghijklmnop", 11)
    'abc ... nop'
    """
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def brief(value: object, limit: int = MAX_NAME) -> str:
    """Format untrusted content (a name, a shape, another library's error) as one short line for a message.

    >>> brief("a\\nb"), brief(list(range(1000)), 20)
    ('a\\\\nb', '[0, 1,  ... 8, 999]')
    """
    text = shorten(str(value), limit)
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def listed(values: Any, most: int = 5) -> str:
    """Format the first of a list or an array of values for a message, each by :func:`brief`.

    >>> listed([3, 4]), listed(["a", "b", "c"], 2)
    ('3, 4', 'a, b, ...')
    """
    return ", ".join(map(brief, values[:most])) + (", ..." if len(values) > most else "")


def counted(count: float, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    >>> counted(1, "row"), counted(1200, "row"), counted(2.063, "read")
    ('1 row', '1,200 rows', '2.06 reads')
    """
    number = f"{int(count):,}" if count == int(count) else f"{count:.3g}"
    return f"{number} {noun}{'' if count == 1 else 's'}"


def an(name: str) -> str:
    """Return a name with its article, as it is said.

    >>> [an(name) for name in ("PCA", "ApproximatePCA", "RBF", "int", "uint8", "ndarray")]
    ['a PCA', 'an ApproximatePCA', 'an RBF', 'an int', 'a uint8', 'an ndarray']
    """
    return f"{'an' if _AN.match(name) else 'a'} {name}"


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name, for the end of a message; "" if no known name is near it.

    >>> closest("fischer", ("pca", "fisher")), closest("tree", ("pca", "fisher"))
    (' Did you mean fisher?', '')
    """
    from difflib import get_close_matches  # only where there is a mistake

    names = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), names, 1)
    return f" Did you mean {names[found[0]]}?" if found else ""


def check_choice(
    name: str, value: object, known: Iterable[str], foreign: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Reject a parameter that is not one of the known words; ``foreign`` translates those of scikit-learn.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_choice("approximation", "nystroem", ("nystrom", "tutorial"))
    Traceback (most recent call last):
    ValueError: approximation = 'nystroem' is unknown. Use 'nystrom' or 'tutorial'. Did you mean nystrom?
    """
    words = list(known)
    if isinstance(value, str) and value in words:
        return
    shown = list(map(repr, words))
    use = " or ".join(shown) if len(shown) < 3 else f"one of {', '.join(shown)}"
    hint = closest(value, words) if isinstance(value, str) else ""
    if isinstance(value, str) and value in foreign:
        hint = f" scikit-learn's {value!r} is {foreign[value]!r} here."
    raise ValueError(f"{name} = {value!r} is unknown. Use {use}.{hint}")


def check_switch(name: str, value: object) -> None:
    """Reject what is not True or False.

    Raises
    ------
    TypeError

    Examples
    --------
    >>> check_switch("center", 1)
    Traceback (most recent call last):
    TypeError: center = 1 is an int; True or False was expected.
    """
    from numpy import bool_  # here, so that the help of the command line does not wait for NumPy

    if not isinstance(value, bool | bool_):
        raise TypeError(f"{name} = {value!r} is {an(type(value).__name__)}; True or False was expected.")


def component_columns(given: Any, names: Sequence[str]) -> list[int]:
    """Return the columns of components that are given by number, counted from 0, or by name; one, or a sequence.

    Raises
    ------
    ValueError
        For other numbers and names, and repeated ones.

    Examples
    --------
    >>> component_columns("pca1", ["pca0", "pca1"]), component_columns([1, "pca0"], ["pca0", "pca1"])
    ([1], [1, 0])
    """
    each = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    known = {name: column for column, name in enumerate(names)}
    found = [known.get(one, -1) if isinstance(one, str) else one for one in each]
    integers = all(isinstance(one, Integral) and not isinstance(one, bool) for one in found)
    if not integers or len(set(found)) < len(found) or not all(0 <= one < len(names) for one in found):
        raise ValueError(
            f"components = {given!r}, but there are {len(names)}. Give numbers from 0 to {len(names) - 1}, or names "
            f"such as {names[0]!r}, each once."
        )
    return [int(one) for one in found]


def positive_integer(name: str, value: Any) -> int:
    """Return ``value`` as an int; ``name`` is for the error message.

    Raises
    ------
    TypeError, ValueError
        If it is not an integer, or below 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} = {value!r} is {an(type(value).__name__)}, but an integer of at least 1 is required.")
    if value < 1:
        raise ValueError(f"{name} = {value} is below 1, but an integer of at least 1 is required.")
    return int(value)


def real_number(name: str, value: Any, interval: str, what: str, *, whole: bool = False) -> float:
    """Return ``value`` as a float in an interval such as "(0, 1]"; ``name`` and ``what`` it is are for the message.

    Raises
    ------
    TypeError, ValueError
        If it is not a real number, or not an integer where a ``whole`` number is required, or outside the interval.

    Examples
    --------
    >>> real_number("tol", 1, "(0, 1)", "a relative error such as 1e-3")
    Traceback (most recent call last):
    ValueError: tol = 1 is outside (0, 1); a relative error such as 1e-3 was expected.
    """
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        kind, wanted = type(value).__name__, "an integer" if whole else "a number"
        raise TypeError(f"{name} = {value!r} is {an(kind)}; {wanted} in {interval} was expected: {what.rstrip(',')}.")
    number, (low, high) = float(value), map(float, interval[1:-1].split(","))
    if not (low < number < high or (number == low and interval[0] == "[") or (number == high and interval[-1] == "]")):
        raise ValueError(f"{name} = {value} is outside {interval}; {what} was expected.")
    return number


def warn_approximation(message: str) -> None:
    """Issue an ApproximationWarning that points to the calling line outside this package."""
    warn_caller(message, ApproximationWarning)


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the calling line outside this package."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((PACKAGE, contextlib.__file__)):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def required(name: str, what: str, package: str = "'bigpca[formats]'") -> Any:
    """Import a library that is installed on request.

    Raises
    ------
    ImportError
        With the command that installs it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        raise ImportError(f"{what} needs {library}, which is not installed. Run: pip install {package}") from error


class Shown(ABC):
    """A record that is shown as a short table: as text by ``repr`` and ``print``, as HTML in notebooks."""

    @abstractmethod
    def cells(self) -> list[tuple[str, ...]]:
        """Return the cells of each line, its name first."""

    def __repr__(self) -> str:
        rows = self.cells()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _repr_html_(self) -> str:
        left = ' style="text-align: left"'
        lines = (
            f"<tr><th{left}>{escape(row[0])}</th>{''.join(f'<td{left}>{escape(cell)}</td>' for cell in row[1:])}</tr>"
            for row in self.cells()
        )
        return f"<table>{''.join(lines)}</table>"


@contextmanager
def naming_argument(name: str) -> Iterator[None]:
    """Put the name of an argument in the place of X in errors about it, or before those that name neither."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):  # which name a file
            raise
        text = re.sub(r"\bX\b", name, str(error))
        said = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
        raise type(error)(text if said else f"{name}: {text}") from None
