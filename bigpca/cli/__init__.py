"""The command line: ``bigpca demo | ingest | plan | fit | transform | report | info | verify | doctor``.

- ``commands``  The application behind ``bigpca``: all commands, their exit codes, and usage errors as JSON.
- ``options``  Options shared by several commands, each declared once.
- ``fitting``  ``bigpca plan``, ``bigpca fit`` (with ``--update`` for appended rows) and ``bigpca transform``.
- ``stores``  ``bigpca info``, ``bigpca ingest`` and ``bigpca verify``; models are described from their attributes
  alone.
- ``diagnosis``  ``bigpca doctor``: checks of this machine and of a cluster; and ``bigpca demo``.
- ``output``  The output of a command: text and JSON on the right stream, errors as one paragraph with an exit code.
- ``process``  Output streams of a command's process, whose loss does not end the work.
- ``models``  ``bigpca report`` and ``export``: what is done with fitted models.
- ``runtime``  Where a command runs: in this process, or on a running cluster.

Options come from signatures, and their help from docstrings (``options.grouped``).

Add an estimator: a row of ``options.ESTIMATORS``. A new parameter is a row of :mod:`bigpca.parameters`, with its range
and its words, from which its option is made.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from bigpca.cli.process import keep_streams_open

INTERRUPTED = 130

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code; SIGTERM ends a command as Ctrl-C does."""
    keep_streams_open()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        from bigpca.cli.commands import app

        app(prog_name="bigpca")
    except KeyboardInterrupt:  # in the imports
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # A pool thread that was interrupted between its start and its registration never ends, and the
            # interpreter would wait for it. Everything is closed and reported at this point.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
