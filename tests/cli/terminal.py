"""Run the command line in a pseudo-terminal, and what its screen shows at the end."""

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.cli.running import forked

CODES = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])")


class Shown(NamedTuple):
    """What a command left on its terminal.

    Attributes
    ----------
    lines : list of str
        The screen at the end.
    stream : str
        Everything that was written.
    exit_code : int or None
    """

    lines: list[str]
    stream: str
    exit_code: int | None


def shown(
    *arguments: object, columns: int, interrupt: Callable[[str], object] | None = None, slow: bool = False
) -> Shown:
    """Run one command; ``interrupt`` gets what was written so far and returns something true to press Ctrl-C."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    stream = b""
    child = forked(*arguments, streams=(follower,) * 3, slow=slow)
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the end, on Linux
            break
        if not part:
            break
        stream += part
        if interrupt is not None and interrupt(stream.decode(errors="replace")):
            os.write(leader, b"\x03")
            Path("interrupted").touch()  # which slow reads wait for
            interrupt = None
    os.close(leader)
    text = stream.decode()
    child.join(300)
    return Shown(screen(text), text, child.exitcode)


def screen(text: str) -> list[str]:
    """Return the lines of a terminal of unlimited height after a text with the codes that bars use.

    >>> screen("a\\r\\nbar\\r\\x1b[Kdone\\r\\n")
    ['a', 'done']
    """
    lines, row, column, position = [""], 0, 0, 0
    while position < len(text):
        code = CODES.match(text, position)
        if code is not None:
            position = code.end()
            if code[2] == "A":
                row = max(0, row - int(code[1] or 1))
            elif code[2] == "K":
                lines[row] = "" if code[1] == "2" else lines[row][:column]
            continue
        character = text[position]
        position += 1
        if character == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif character == "\r":
            column = 0
        else:
            lines[row] = f"{lines[row][:column]:<{column}}{character}{lines[row][column + 1 :]}"
            column += 1
    return [line.rstrip() for line in lines if line.strip() or line == lines[-1]][:-1]
