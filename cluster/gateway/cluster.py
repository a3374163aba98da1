"""A cluster of a Dask Gateway: ``python cluster/job.py SOURCE OUT --cluster cluster/gateway/cluster.py``.

Settings are those of ``gateway.yaml`` (``DASK_CONFIG``), and ``WORKERS``: how many to ask for.
"""

from __future__ import annotations

import os

from dask_gateway import Gateway, GatewayCluster


def start() -> GatewayCluster:
    """Ask the gateway for a scheduler and ``WORKERS`` (2) workers; it replaces those that die."""
    cluster = Gateway().new_cluster(shutdown_on_close=True)
    cluster.scale(int(os.environ.get("WORKERS", "2")))
    return cluster
