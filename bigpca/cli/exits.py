"""Exit codes of the command line, and their assignment to errors."""

from __future__ import annotations

import errno
from enum import IntEnum

from bigpca.errors import CheckpointError, ModelFormatError, OutputExistsError, OutputLockedError, OutputWriteError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    ExitCode.INPUT: "input not usable: not found, wrong type or shape, missing or damaged chunks, NaN or infinity",
    ExitCode.SPACE: "does not fit the memory limit or the disk",
    ExitCode.OUTPUT: "output exists already, is locked by another run or cannot be written",
    ExitCode.STATE: "checkpoint or model not usable",
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
