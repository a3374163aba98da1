"""Interrupts at any line: a trace function that raises KeyboardInterrupt, or another error, once."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

Line = tuple[str, int]


class Interrupt:
    """A trace function that raises an error at a line of some functions; without one it only notes them.

    Parameters
    ----------
    within : callable
        Frame -> whether interrupts may come there.
    at : (file, number) or None
    error : callable
        Makes the error.
    """

    def __init__(
        self, within: Callable[[FrameType], bool], at: Line | None = None,
        error: Callable[[], BaseException] = KeyboardInterrupt,
    ) -> None:  # fmt: skip
        self.within, self.at, self.error = within, at, error
        self.lines: dict[Line, None] = {}  # in the order in which they are executed first

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        return self._line if self.within(frame) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        line = frame.f_code.co_filename, frame.f_lineno
        self.lines[line] = None
        if line == self.at:
            sys.settrace(None)
            raise self.error()
        return self._line

    def during(self, work: Callable[[], object]) -> BaseException | None:
        """Return the error that ended the work, with its traceback, or None if it ended without one."""
        sys.settrace(self)
        try:
            work()
        except BaseException as error:
            return error
        finally:
            sys.settrace(None)
        return None


def lines_of(work: Callable[[], object], within: Callable[[FrameType], bool]) -> list[Line]:
    """Return the lines that the work executes, without those that only the first run of a process has."""
    Interrupt(within).during(work)
    every = Interrupt(within)
    assert every.during(work) is None
    return list(every.lines)
