"""Output streams of a command's process, whose loss does not end the work.

Only the standard library is imported, so that the setup is complete before the first slow import.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

DESCRIPTORS = {"stdin": 0, "stdout": 1, "stderr": 2}


class LossyFile(io.FileIO):
    """An open descriptor to which writing never fails: after the first error, output is dropped.

    Attributes
    ----------
    error : OSError or None
        The first error: a full disk, a closed pipe.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write the data, or drop them after an error."""
        if self.error is None:
            try:
                return super().write(data) or 0
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


def keep_streams_open() -> None:
    """Replace stdout and stderr by streams that drop output that cannot be written, even when the interpreter exits.

    A closed descriptor is opened as /dev/null: otherwise the next opened file would get its number, and anything that a
    library prints would be written into that file.
    """
    for name, descriptor in DESCRIPTORS.items():
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            if name != "stdin":
                setattr(sys, name, _stream(descriptor, None))
                getattr(sys, name).buffer.raw.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
        else:
            if name != "stdin" and getattr(sys, name) is not None:
                setattr(sys, name, _stream(descriptor, getattr(sys, name)))


def _stream(descriptor: int, instead_of: Any) -> io.TextIOWrapper:
    file = io.BufferedWriter(LossyFile(descriptor, "wb", closefd=False))
    encoding = getattr(instead_of, "encoding", None) or "utf-8"
    # A character missing from the terminal's encoding, or a lone surrogate in a file name, must not be an error.
    return io.TextIOWrapper(file, encoding, "backslashreplace", line_buffering=True)


def lost_output() -> OSError | None:
    """Return the error that made stdout drop its output, if any did."""
    return getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "error", None)
