"""A Dask Gateway server on this machine: ``dask-gateway-server --config cluster/gateway/dask_gateway_config.py``.

Settings: ``GATEWAY_FILES``, a directory of mode 0700 with ``password``, ``cert.pem`` and ``key.pem``, and
``GATEWAY_ADDRESS``, where clients come in (127.0.0.1:8000).
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821  # given by traitlets, which runs this file
files = Path(os.environ["GATEWAY_FILES"]).absolute()
mode = files.stat().st_mode & 0o777
if mode != 0o700:
    raise PermissionError(f"{files} has mode {mode:04o}; 0700 was expected, for it holds secrets. Run chmod 700 on it.")
password = (files / "password").read_text().strip()
if len(password) < 16:  # an empty one would let in everyone
    raise ValueError(
        f"{files / 'password'} holds {len(password)} characters; at least 16 were expected. "
        "Make one: openssl rand -hex 32 > password"
    )

# Clients come in at one port, by HTTPS to the server and by TLS to the schedulers behind it; all
# else stays on loopback.
c.DaskGateway.address = "127.0.0.1:0"
c.Proxy.address = os.environ.get("GATEWAY_ADDRESS", "127.0.0.1:8000")
c.Proxy.tls_cert = str(files / "cert.pem")
c.Proxy.tls_key = str(files / "key.pem")
c.DaskGateway.authenticator_class = "dask_gateway_server.auth.SimpleAuthenticator"
c.SimpleAuthenticator.password = password

# Processes of the user who started the server. Not `LocalBackend`, which would change to each user who asks: that of
# dask-gateway-server 2026.3.0 passes "/" among the paths whose owner it changes.
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
clusters = files / "clusters"  # working directories, with logs and what workers spill: a disk of this machine
clusters.mkdir(mode=0o700, exist_ok=True)
c.UnsafeLocalBackend.clusters_directory = str(clusters)
# Schedulers report to the server through the proxy, whose certificate they check.
c.UnsafeLocalBackend.inherited_environment.extend(["SSL_CERT_FILE"])

# Modules in place of the server's default commands, dask-scheduler and dask-worker, which distributed no longer has.
# Workers would listen on all interfaces; and the proxy shows all HTTP pages of a scheduler to anyone who knows the
# name of its cluster, so that there are none (ROUTES).
c.ClusterConfig.scheduler_cmd = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
c.ClusterConfig.worker_cmd = [
    sys.executable,
    "-m",
    "distributed.cli.dask_worker",
    "--no-dashboard",
    "--host",
    "127.0.0.1",
]
c.ClusterConfig.worker_cores = 2
c.ClusterConfig.worker_threads = 2  # one or two
c.ClusterConfig.worker_memory = "4 G"  # for a plan: DASK_NUM_WORKERS=2 and --memory-limit 4GiB
c.ClusterConfig.cluster_max_workers = 8
c.ClusterConfig.idle_timeout = 3600  # seconds after which a cluster ends that its client has left
c.ClusterConfig.environment = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
    "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]",
    "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
}
