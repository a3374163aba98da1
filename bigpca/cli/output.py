"""The output of a command: text and JSON on the right stream, errors as one paragraph with an exit code."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import math
import re
import shlex
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import typer

from bigpca.cli.process import lost_output
from bigpca.errors import (
    ApproximationWarning,
    CheckpointError,
    MemoryBudgetError,
    ModelFormatError,
    OutputExistsError,
    OutputLockedError,
    OutputWriteError,
    printable,
    shorten,
)
from bigpca.storage.files import NO_SPACE, public

MAX_WIDTH = 100  # columns where there is no terminal
MIN_NAME = 11  # columns of the names of a table, so that consecutive tables are aligned


class ExitCode(IntEnum):
    """The exit status of ``bigpca``."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    INPUT = 3
    SPACE = 4
    OUTPUT = 5
    STATE = 6
    CLUSTER = 7
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "success",
    ExitCode.UNEXPECTED: "unexpected error (run again with --debug to see where)",
    ExitCode.USAGE: "wrong usage of the command line",
    ExitCode.INPUT: "input not found or not usable: wrong type or shape, missing or damaged chunks, NaN or infinity",
    ExitCode.SPACE: "does not fit the memory limit or the disk",
    ExitCode.OUTPUT: "output exists already, is locked by another run or cannot be written",
    ExitCode.STATE: "checkpoint or model not usable: damaged, of a newer version, of another fit, or not a model",
    ExitCode.CLUSTER: "cluster: no workers, or the scheduler is lost",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C or SIGTERM)",
}


def exit_code_for(error: BaseException) -> ExitCode:
    """Return the exit code of an error.

    >>> exit_code_for(FileNotFoundError("x")), exit_code_for(MemoryError())
    (<ExitCode.INPUT: 3>, <ExitCode.SPACE: 4>)
    """
    if _is_interrupt(error):
        return ExitCode.INTERRUPTED
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in NO_SPACE):
        return ExitCode.SPACE
    if isinstance(error, OutputExistsError | OutputLockedError | OutputWriteError | FileExistsError):
        return ExitCode.OUTPUT
    if isinstance(error, CheckpointError | ModelFormatError):
        return ExitCode.STATE
    if isinstance(error, TimeoutError | ConnectionError) or _is_from_distributed(error):
        return ExitCode.CLUSTER
    if isinstance(error, ValueError | TypeError | OSError | ImportError):
        return ExitCode.INPUT
    return ExitCode.UNEXPECTED


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is an interrupt, or was raised while one was being handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _is_from_distributed(error: BaseException) -> bool:
    """Recognise KilledWorker, CommClosedError and the like (or errors they caused) by module, without importing it."""
    causes = (error, error.__cause__) if isinstance(error, RuntimeError) else (error,)
    return any(kind.__module__.partition(".")[0] == "distributed" for one in causes for kind in type(one).__mro__)


def describe(error: BaseException) -> str:
    """Format an error as one paragraph.

    >>> describe(FileNotFoundError(2, "No such file", "dump.npy"))
    "No such file: 'dump.npy'"
    """
    text = str(error).strip()
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        text = error.strerror + (f": {error.filename!r}" if error.filename else "")
    if exit_code_for(error) is ExitCode.UNEXPECTED or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


RESUMABLE = (ExitCode.INTERRUPTED, ExitCode.SPACE, ExitCode.CLUSTER, ExitCode.UNEXPECTED)


class Streams:
    """The streams of one command: with ``--json``, stdout gets exactly one JSON object and text goes to stderr.

    Attributes
    ----------
    quiet : bool
        Whether text is left out, but for errors and warnings.
    resume : str
        How to resume if the command stops here.
    warnings : list of str
    """

    def __init__(self, as_json: bool, debug: bool, quiet: bool = False) -> None:
        self.as_json, self.debug, self.quiet = as_json, debug, quiet
        self.resume = ""
        self.warnings: list[str] = []
        self._doing = ""

    def say(self, text: str = "") -> None:
        """Print text, on stderr if stdout is for a JSON object."""
        self.doing("")
        if not self.quiet:
            typer.echo(printable(public(text)), err=self.as_json)

    def show(self, rows: Mapping[str, object]) -> None:
        """Print a table as wide as the terminal."""
        self.say(table(rows, self.width))

    @property
    def width(self) -> int:
        """Columns of the terminal, or of a page where there is none."""
        return max(40, shutil.get_terminal_size((MAX_WIDTH, 24)).columns) if sys.stdout.isatty() else MAX_WIDTH

    def doing(self, text: str) -> None:
        """Show on a terminal what is being done until something else is printed: a sign of life before any result."""
        if not self.quiet and sys.stderr.isatty():
            if self._doing or text:
                typer.echo(f"\r\x1b[K{shorten(printable(public(text)), self.width - 1)}", nl=False, err=True)
            self._doing = text

    def warn(self, text: str) -> None:
        """Print a warning as one line on stderr, once even if it is repeated, and keep it for the JSON object."""
        line = paragraph(text)
        if line not in self.warnings:
            self.doing("")
            self.warnings.append(line)
            typer.echo(f"bigpca: warning: {line}", err=True)

    def finish(self, record: Mapping[str, Any]) -> None:
        """Print the command's one JSON object, with ``--json``.

        Raises
        ------
        OutputWriteError
            If output to stdout was lost: JSON for any reason, text by a disk error (but not by a closed pipe).
        """
        self._print_json(record)
        lost = lost_output()
        if lost is not None and (self.as_json or lost.errno not in (errno.EPIPE, errno.EBADF)):
            what = "the JSON object" if self.as_json else "what the command prints"
            raise OutputWriteError(
                lost.errno, f"{what} could not be written to stdout ({lost.strerror}), but the command completed"
            )

    def _print_json(self, record: Mapping[str, Any]) -> None:
        if self.as_json:
            typer.echo(json.dumps(plain({**record, "warnings": self.warnings}), allow_nan=False))

    def fail(self, error: BaseException) -> ExitCode:
        """Report an error on stderr (and as the JSON object) and return the exit code."""
        self.doing("")
        code = exit_code_for(error)
        text = "interrupted." if code is ExitCode.INTERRUPTED else paragraph(describe(error))
        lines = wrapped(f"bigpca: {text}", min(80, self.width)) if sys.stderr.isatty() else [f"bigpca: {text}"]
        typer.echo("\n".join(lines), err=True)
        if self.resume and code in RESUMABLE and not isinstance(error, MemoryBudgetError):  # raised before the run
            typer.echo(printable(public(self.resume)), err=True)
        self.say_error(error, text, code)
        return code

    def say_error(self, error: BaseException, text: str, code: ExitCode) -> None:
        """Print an error as the command's JSON object, with ``--json``."""
        self._print_json({"error": {"type": type(error).__name__, "message": text, "exit_code": int(code)}})


def paragraph(text: str) -> str:
    """Return one line of at most 2,000 characters, without terminal commands and credentials.

    >>> paragraph("at s3://key:secret@bucket/x:\\n  \\x1b[2J")
    'at s3://bucket/x: \\\\x1b[2J'
    """
    return shorten(printable(re.sub(r"\s*\n\s*", " ", public(text)).strip()))


@contextmanager
def reporting(as_json: bool, debug: bool, *, quiet: bool = False) -> Iterator[Streams]:
    """Run a command's body: every error becomes one paragraph and an exit code, a traceback only with ``--debug``.

    Parameters
    ----------
    as_json, debug, quiet : bool
        The options ``--json``, ``--debug`` and ``--quiet``.
    """
    output = Streams(as_json, debug, quiet)
    with warnings.catch_warnings(), _log_on_stderr(debug):
        warnings.filterwarnings("always", category=ApproximationWarning)
        warnings.showwarning = partial(_show_warning, output)
        try:
            output.doing("bigpca is starting ...")  # the slow imports follow
            from bigpca.data.provenance import recording

            with recording(command=command_line()):
                yield output
            output.doing("")
        except (typer.Exit, typer.BadParameter, typer.Abort):
            output.doing("")
            raise
        except (Exception, KeyboardInterrupt) as error:
            code = output.fail(error)
            if debug:
                raise
            raise typer.Exit(int(code)) from None


@contextmanager
def _log_on_stderr(debug: bool) -> Iterator[None]:
    """Send bigpca's log to stderr for one command: warnings always, progress lines if no bar can be drawn.

    At the level DEBUG tracebacks are complete.
    """
    log = logging.getLogger("bigpca")
    before = log.level, log.propagate
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("bigpca: %(message)s"))
    log.setLevel(logging.DEBUG if debug else logging.WARNING if sys.stderr.isatty() else logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def command_line() -> str:
    """Return the command as typed, quoted for a shell."""
    return shlex.join(["bigpca", *sys.argv[1:]])


def plain(value: Any) -> Any:
    """Convert records, paths and NumPy values to JSON: NaN and infinity become null, URLs lose credentials.

    >>> plain({"path": Path("a"), "values": (1, float("nan"))})
    {'path': 'a', 'values': [1, None]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return public(value)
    return str(value) if isinstance(value, Path) else repr(value)


def table(rows: Mapping[str, object], width: int = MAX_WIDTH) -> str:
    """Align names and values in two columns; a list takes one line per value, and long text wraps below its column.

    A number stays on one line with its unit.

    >>> print(table({"rows": 10, "width": [3, 4], "memory": "needs 56.3 MiB of memory"}, 30))
    rows         10
    width        3
                 4
    memory       needs 56.3 MiB of
                 memory
    """
    indent = max([MIN_NAME, *map(len, rows)]) + 2
    lines: list[str] = []
    for name, value in rows.items():
        for one in value if isinstance(value, list) else [value]:
            for line in wrapped(str(one), width - indent):
                lines.append(f"{name:<{indent}}{line}")
                name = ""
    return "\n".join(lines)


def wrapped(text: str, width: int) -> list[str]:
    """Wrap text between words; a number and the word after it are not separated, nor is anything inside a path."""
    glued = re.sub(r"(?<=\d) (?=[^\W\d])", "\u00a0", text)
    lines = textwrap.wrap(glued, max(width, 20), break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [""]


def _show_warning(output: Streams, message: Warning | str, category: type[Warning], *_: object) -> None:
    if not issubclass(category, DeprecationWarning | PendingDeprecationWarning):
        output.warn(str(message))
