"""Scheduler and workers on hosts reached by SSH, TLS between them, as ``ssh.yaml`` says: for ``job.py --cluster``."""

from __future__ import annotations

from typing import Any

import dask
from distributed import SSHCluster


def start() -> Any:
    """Start the scheduler on the first host and the workers on the others, bound to the internal interface.

    Raises
    ------
    ValueError
        Where Dask has read no ``ssh.yaml``.
    """
    settings = dask.config.get("ssh-cluster", None)
    if settings is None:
        raise ValueError(
            "Dask's configuration has no ssh-cluster; the directory that DASK_CONFIG names was expected to hold "
            "ssh.yaml. Make one with cluster/configure.sh DIRECTORY cluster/ssh/ssh.yaml."
        )
    # Without an interface workers listen on all of them, and so does the HTTP server, with or without its dashboard.
    common = {"protocol": "tls", "interface": settings["interface"], "dashboard_address": "127.0.0.1:0"}
    return SSHCluster(
        settings["hosts"],
        connect_options=settings["connect"],
        remote_python=settings["python"],
        scheduler_options={**settings["scheduler"], **common},
        worker_options={**settings["worker"], **common},
    )
