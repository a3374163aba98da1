"""Workers as SLURM jobs, over TLS: ``python cluster/job.py SOURCE OUT --cluster cluster/slurm/cluster.py``.

Settings are those of the directory that ``DASK_CONFIG`` names (``jobqueue.yaml`` and what ``cluster/configure.sh``
wrote) and ``JOBS``: how many worker jobs to keep in the queue.
"""

from __future__ import annotations

import os

import dask
from dask_jobqueue import SLURMCluster
from distributed.security import Security


def start() -> SLURMCluster:
    """Start a scheduler here and keep ``JOBS`` (2) worker jobs in the queue: one that ends is followed by another.

    Raises
    ------
    ValueError
        Where Dask has read no certificate or no ``jobqueue.yaml``: workers would be open to anyone.
    """
    security = Security()  # of Dask's configuration
    memory = dask.config.get("jobqueue.slurm.memory")
    if security.tls_ca_file is None or memory is None:
        raise ValueError(
            f"Dask's configuration has TLS certificate {security.tls_ca_file} and jobqueue.slurm.memory {memory}; both "
            "were expected in the directory that DASK_CONFIG names. Make one with cluster/configure.sh and copy "
            "cluster/slurm/jobqueue.yaml into it."
        )
    cluster = SLURMCluster(security=security)
    jobs = int(os.environ.get("JOBS", "2"))
    cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs)  # scale() would not replace a job that its walltime has ended
    return cluster
