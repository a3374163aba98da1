"""Setup of a command's process: output streams whose loss does not end the work, and interrupts that are reported.

Only the standard library is imported, so that the setup is complete before the first slow import.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

DESCRIPTORS = {"stdin": 0, "stdout": 1, "stderr": 2}
_at_once = False  # whether interrupts end this process without raising; set only by main()


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


def end_at_once() -> None:
    """Make SIGINT and SIGTERM end the process with a message (and a JSON object, with ``--json``).

    Some libraries swallow or replace an exception that is raised during their import.
    """
    global _at_once
    _at_once = True
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def raise_interrupts() -> None:
    """Make SIGINT and SIGTERM raise KeyboardInterrupt: outputs stay invisible, and finished segments are kept."""
    global _at_once
    if _at_once:
        _at_once = False
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is _end:
                signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _end(number: int, frame: FrameType | None) -> None:
    error = {"type": "KeyboardInterrupt", "message": "interrupted.", "exit_code": 130}
    messages = {2: "bigpca: interrupted.\n"}
    if "--json" in sys.argv:
        messages[1] = json.dumps({"error": error, "warnings": []}) + "\n"
    for descriptor, text in messages.items():
        with suppress(OSError):
            os.write(descriptor, text.encode())
    os._exit(130)
