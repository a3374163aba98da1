"""The command line: ``bigpca plan | fit | transform | info | ingest | verify | demo | doctor``.

Nothing is imported here but the standard library, so that an interrupt finds its handler
before the first costly import.
"""

from __future__ import annotations

import os
import sys

from bigpca.cli.process import end_at_once, keep_streams_open

INTERRUPTED = 130

__all__ = ["main"]


def main() -> None:
    """Run the command line and leave with its exit code."""
    keep_streams_open()
    end_at_once()
    from bigpca.cli.commands import app

    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # A pool thread that the interrupt caught between its start and its registration is never told to end, and
            # the interpreter would wait for it. All is closed and said by now.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
