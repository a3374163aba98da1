"""The errors that callers may want to catch by name; everything else is a ValueError or a TypeError.

Every message says what is wrong with the numbers, what was expected, and what to do.
"""

import os
import sys
import warnings

PACKAGE = os.path.dirname(__file__) + os.sep


class MemoryBudgetError(MemoryError):
    """The planned peak (memory or disk) does not fit the limit. Raised before any row is read."""


class EvaluationBudgetError(ValueError):
    """The planned kernel evaluations exceed ``max_kernel_evaluations``. Raised before any row is read."""


class MissingChunksError(ValueError):
    """Chunks of the input that the store does not hold; Zarr itself would read them as the fill value."""


class NonFiniteError(ValueError):
    """NaN or infinite values in the input, found in the same read that was to use them."""


class CorruptedChunkError(ValueError):
    """A stored chunk cannot be decoded: truncated, emptied, or failing its checksum."""


class ModelFormatError(ValueError):
    """A model (or state) store is truncated, altered, of a newer format, or not a bigpca model at all."""


class ApproximationWarning(UserWarning):
    """An approximate answer is not to be trusted, or did not converge; the message has the number that says so."""


class OutputExistsError(FileExistsError):
    """The output is there already and overwriting was not asked for."""


class OutputLockedError(RuntimeError):
    """Another live run holds the output or the checkpoint."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used: it belongs to another input or another computation, or cannot be written."""


def format_bytes(count: float) -> str:
    """Write a number of bytes in binary units, as every message does.

    >>> format_bytes(1.5 * 2**30), format_bytes(700)
    ('1.5 GiB', '700 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def warn_approximation(message: str) -> None:
    """Warn of what an approximate answer is worth, at the line outside this package that asked for it."""
    warn_caller(message, ApproximationWarning)


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line outside this package that called it."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
