"""What the process of a command has before anything else: streams whose loss ends no work, interrupts with a word.

Imports nothing but the standard library: it is in force before the first costly import.
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
_at_once = False  # whether interrupts end this process without raising; only main() sets it


class LossyFile(io.FileIO):
    """An open descriptor to which writing never fails: after the first error the rest is dropped.

    Attributes
    ----------
    error : OSError or None
        What made it drop words: a full disk, a closed pipe.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write, or drop."""
        if self.error is None:
            try:
                return super().write(data) or 0
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


def keep_streams_open() -> None:
    """Make stdout and stderr streams that drop words where they cannot be written, also as the interpreter ends.

    A descriptor that was closed becomes /dev/null: the next file that is opened would get its number, and whatever a
    library prints would be written into that file.
    """
    for name, descriptor in DESCRIPTORS.items():
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            if name != "stdin":
                setattr(sys, name, _stream(descriptor, None))
                getattr(sys, name).buffer.raw.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
        else:
            if name != "stdin" and getattr(sys, name) is not None:
                setattr(sys, name, _stream(descriptor, getattr(sys, name)))


def _stream(descriptor: int, instead_of: Any) -> io.TextIOWrapper:
    file = io.BufferedWriter(LossyFile(descriptor, "wb", closefd=False))
    encoding = getattr(instead_of, "encoding", None) or "utf-8"
    # A character that the terminal's encoding lacks, or half of a surrogate pair in a file name, is no error either.
    return io.TextIOWrapper(file, encoding, "backslashreplace", line_buffering=True)


def lost_output() -> OSError | None:
    """Return the error because of which words of stdout were dropped, if any were."""
    return getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "error", None)


def end_at_once() -> None:
    """Let SIGINT and SIGTERM end the process with a word (and a JSON object, where --json asks for one).

    An exception raised in the middle of an import is swallowed, or reworded, by one library or another.
    """
    global _at_once
    _at_once = True
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def raise_interrupts() -> None:
    """From now on let SIGINT and SIGTERM raise KeyboardInterrupt: outputs stay invisible,
    finished segments are kept.
    """
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
    said = {2: "bigpca: interrupted.\n"}
    if "--json" in sys.argv:
        said[1] = json.dumps({"error": error, "warnings": []}) + "\n"
    for descriptor, text in said.items():
        with suppress(OSError):
            os.write(descriptor, text.encode())
    os._exit(130)
