#!/usr/bin/env bash
# Run this recipe for real in a temporary directory: a job killed on a cluster of its own goes on where a scheduler stays,
# with the same bits as in one process; strangers are rejected. Ends with 77 and the reason where a program is missing. PYTHON names the interpreter.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
PATH=$(dirname "$(command -v "$python")"):$PATH
for program in openssl dask; do
  command -v "$program" >/dev/null || { echo "skipped: the program $program is missing"; exit 77; }
done
work=$(mktemp -d)
started=()
stop() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" || true; done
  rm -rf "$work"
}
trap stop EXIT
job=("$python" "$here/../job.py" "$work/x.zarr" "$work/out" --components 8 --solver covariance)
verify() { "$python" "$here/../verify.py" "$@"; }

"$here/../configure.sh" "$work/config" "$here/local.yaml"
"$here/../configure.sh" "$work/stranger"
export DASK_CONFIG=$work/config
verify store "$work/x.zarr"

LOCAL_DIRECTORY=$work MEMORY=1GiB "$here/start.sh" "$work/scheduler.json" 2>"$work/start.log" &
stays=$!
started+=("$stays")

echo "== a cluster for one job, killed =="
"${job[@]}" --cluster "$here/cluster.py" &
started+=($!)
verify kill "$work/out" $!
wait $! 2>/dev/null || true

echo "== resumed on a scheduler that stays =="
"${job[@]}" --scheduler-file "$work/scheduler.json" 2>&1 | tee "$work/log"
grep -q "groups resumed" "$work/log" || { echo "the second run did not resume" >&2; exit 1; }
verify same "$work/out"
verify listens 127.0.0.1 "$stays"
verify rejects "$(sed -n 's/.*"address": "\(tls:[^"]*\)".*/\1/p' "$work/scheduler.json" | head -n 1)" "$work/stranger"
echo "local: all as expected"
