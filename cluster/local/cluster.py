"""Worker processes on this machine, TLS on loopback, as ``local.yaml`` says: for ``job.py
--cluster`` and for notebooks.
"""

from __future__ import annotations

import signal

import dask
from distributed import LocalCluster


def start() -> LocalCluster:
    """Start the scheduler in this process and the workers in processes of their own.

    Raises
    ------
    ValueError
        Where Dask has read no ``local.yaml``.
    """
    settings = dask.config.get("local-cluster", None)
    if settings is None:
        raise ValueError(
            "Dask's configuration has no local-cluster; the directory that DASK_CONFIG names was expected to hold "
            "local.yaml. Make one with cluster/configure.sh DIRECTORY cluster/local/local.yaml."
        )
    # A Ctrl-C in a terminal goes to all its processes: workers that inherit "ignore" leave it to this one.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return LocalCluster(**settings, host="tls://127.0.0.1", dashboard_address="127.0.0.1:0")
    finally:
        signal.signal(signal.SIGINT, before)
