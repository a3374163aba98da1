#!/usr/bin/env bash
# Fit SOURCE on a scheduler and workers of this machine (loopback only) and save MODEL. Run again, it resumes.
# usage: job.sh SOURCE MODEL        settings: WORKERS=2 THREADS=1 MEMORY=2GiB COMPONENTS=64
set -euo pipefail

source=${1:?usage: job.sh SOURCE MODEL}
model=${2:?usage: job.sh SOURCE MODEL}
work=$(mktemp -d)
started=()
stop() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  rm -rf "$work"
}
trap stop EXIT

dask scheduler --host 127.0.0.1 --port 0 --dashboard-address 127.0.0.1:0 --scheduler-file "$work/scheduler.json" \
  2>"$work/scheduler.log" &
started+=($!)
for _ in $(seq 100); do [[ -s $work/scheduler.json ]] && break || sleep 0.1; done
[[ -s $work/scheduler.json ]] || { cat "$work/scheduler.log" >&2; exit 7; }
address=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$work/scheduler.json")

dask worker "$address" --host 127.0.0.1 --no-dashboard --nworkers "${WORKERS:-2}" --nthreads "${THREADS:-1}" \
  --memory-limit "${MEMORY:-2GiB}" --local-directory "$work" 2>"$work/workers.log" &
started+=($!)

bigpca fit "$source" --n-components "${COMPONENTS:-64}" --model "$model" --checkpoint "$model.ckpt" --scheduler "$address"
