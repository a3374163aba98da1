#!/usr/bin/env bash
# A scheduler and its workers on this machine (TLS, loopback only) until this script ends: for several jobs, or a notebook.
# usage: DASK_CONFIG=DIRECTORY start.sh SCHEDULER_FILE      settings: WORKERS=2 THREADS=1 MEMORY=2GiB LOCAL_DIRECTORY=/tmp
set -euo pipefail
set -m # each process a group of its own: Ctrl-C here comes to this script alone, which stops them in order

file=${1:?usage: start.sh SCHEDULER_FILE}
: "${DASK_CONFIG:?make its directory with configure.sh}"
started=()
stop() {
  for ((i = ${#started[@]} - 1; i >= 0; i--)); do # workers first: they say goodbye to a scheduler that is there
    kill "${started[i]}" 2>/dev/null || true
    wait "${started[i]}" || true
  done
  rm -f "$file"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --no-dashboard only leaves pages out: the HTTP server listens all the same, so it is bound to loopback.
dask scheduler --protocol tls --host 127.0.0.1 --port 0 --dashboard-address 127.0.0.1:0 --scheduler-file "$file" &
started+=($!)
dask worker --scheduler-file "$file" --protocol tls --host 127.0.0.1 --dashboard-address 127.0.0.1:0 \
  --nworkers "${WORKERS:-2}" --nthreads "${THREADS:-1}" --memory-limit "${MEMORY:-2GiB}" \
  --local-directory "${LOCAL_DIRECTORY:-/tmp}" --death-timeout 60 &
started+=($!)
wait -n # one that ends takes the other with it
