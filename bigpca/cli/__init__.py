"""The command line: ``bigpca plan | fit | transform | report | plot | info | ingest | verify | demo | doctor``.

Only the standard library is imported here, so that the interrupt handler is installed before the first slow import.
"""

from __future__ import annotations

import os
import sys

from bigpca.cli.process import end_at_once, keep_streams_open

INTERRUPTED = 130

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    keep_streams_open()
    end_at_once()
    from bigpca.cli.commands import app

    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # A pool thread that was interrupted between its start and its registration never ends, and the
            # interpreter would wait for it. Everything is closed and reported at this point.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
