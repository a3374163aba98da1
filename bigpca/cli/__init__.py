"""The command line: ``bigpca demo | ingest | plan | fit | transform | report | plot | info | verify | doctor``.

- ``commands``       the application: order, examples and defaults in the help, usage errors as JSON
- ``options``, ``groups``   options, each declared once in a dataclass that several commands take
- ``parameters``     those of a model: its method, and the estimator's parameters
- ``methods``        the table from ``--method``, ``--kernel``, ``--landmarks``, ``--sketch`` to an estimator
- ``sources``, ``labels``   shards in their order; labels joined by key, or by position if there are no keys
- ``fitting``, ``scoring``, ``pictures``, ``stores``, ``demonstration``, ``diagnosis``   the commands
- ``description``    what a model file is, from its attributes: after a fit and in ``bigpca info``
- ``output``, ``runs``, ``exits``, ``process``   screens, progress, exit codes, signals and lost streams

Add an estimator: a row of ``methods.ESTIMATORS``; its parameters and their defaults are read from its constructor, and
options that it does not have are rejected. A new parameter is a field of ``parameters.Estimator``.

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
    waiting = sys.stderr.isatty()
    if waiting:
        print("bigpca is starting ...", end="", file=sys.stderr, flush=True)
    from bigpca.cli.commands import app

    if waiting:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    try:
        app(prog_name="bigpca")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # A pool thread that was interrupted between its start and its registration never ends, and the
            # interpreter would wait for it. Everything is closed and reported at this point.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
