#!/usr/bin/env bash
# Run this recipe for real on two hosts: network namespaces of this machine, each with an sshd of its own that takes only a
# key made here. A client is killed and its job resumed; same bits as in one process; strangers rejected; nothing left behind.
# Ends with 77 and the reason where root, a program or a package is missing. PYTHON names the interpreter.
set -euo pipefail
unset OPENBLAS_CORETYPE NPY_DISABLE_CPU_FEATURES # sshd passes neither on, and bits are compared with those of one process

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$(command -v "${PYTHON:-python3}")
skip() { echo "skipped: $*"; exit 77; }
((EUID == 0)) || skip "network namespaces need root"
for program in openssl ip ssh-keygen /usr/sbin/sshd; do
  command -v "$program" >/dev/null || skip "$program is missing (Debian: openssl, iproute2, openssh-server)"
done
"$python" -c "import asyncssh" 2>/dev/null || skip "the Python package asyncssh is missing"
a=bigpca-a-$$ b=bigpca-b-$$
ip netns add "$a" 2>/dev/null || skip "network namespaces cannot be made here"
ip netns add "$b"
work=$(mktemp -d)
stop() {
  for host in "$a" "$b"; do
    pids=$(ip netns pids "$host")
    [[ -z $pids ]] || kill -KILL $pids 2>/dev/null || true
    ip netns del "$host"
  done
  rm -rf "$work"
}
trap stop EXIT
verify() { "$python" "$here/../verify.py" "$@"; }
on() { ip netns exec "$@"; }

ip link add internal netns "$a" type veth peer name internal netns "$b"
mkdir -p /run/sshd # the package's service makes it; here none runs
ssh-keygen -q -t ed25519 -N "" -f "$work/client"
ssh-keygen -q -t ed25519 -N "" -f "$work/host"
for host in "$a 10.77.0.1" "$b 10.77.0.2"; do
  read -r name address <<<"$host"
  on "$name" ip addr add "$address/24" dev internal
  on "$name" ip link set lo up
  on "$name" ip link set internal up
  echo "$address $(cut -d' ' -f1,2 "$work/host.pub")" >>"$work/known_hosts"
  cat >"$work/sshd-$address" <<END
ListenAddress $address
HostKey $work/host
AuthorizedKeysFile $work/client.pub
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
END
  on "$name" /usr/sbin/sshd -f "$work/sshd-$address"
done

"$here/../configure.sh" "$work/config" "$here/ssh.yaml"
"$here/../configure.sh" "$work/stranger"
export DASK_CONFIG=$work/config
sed -i -e 's/10\.0\.0\./10.77.0./g' -e 's/eth1/internal/' -e 's/n_workers: 2/n_workers: 1/' -e 's/4GiB/1GiB/' -e "s,/tmp,$work," \
  -e 's/1 hour/90 s/' -e 's/23 hours/10 minutes/' -e 's/30 minutes/1 minute/' \
  -e "s,connect: {},connect: {client_keys: [$work/client]\, known_hosts: $work/known_hosts}," "$DASK_CONFIG/ssh.yaml"
verify store "$work/x.zarr"
job=(ip netns exec "$a" "$python" "$here/../job.py" "$work/x.zarr" "$work/out" --components 8 --solver covariance
  --cluster "$here/cluster.py")

"${job[@]}" 2>"$work/log" &
verify kill "$work/out" $! || { cat "$work/log" >&2; exit 1; }
wait $! 2>/dev/null || true
address=$(sed -n 's/.*Scheduler at: *\(tls:[^ ]*\).*/\1/p' "$work/log" | head -n 1)
on "$a" "$python" "$here/../verify.py" listens 10.77.0.1 $(ip netns pids "$a")
on "$b" "$python" "$here/../verify.py" listens 10.77.0.2 $(ip netns pids "$b")
on "$b" "$python" "$here/../verify.py" rejects "$address" "$work/stranger"
"${job[@]}" 2>&1 | tee "$work/log"
grep -q "groups resumed" "$work/log" || { echo "the second run did not resume" >&2; exit 1; }
verify same "$work/out"

for _ in $(seq 1200); do # the killed client's scheduler ends by itself, and its workers with it
  left=$(for host in "$a" "$b"; do ip netns pids "$host" | xargs -r ps -o pid=,args= -p; done | grep -v sshd || true)
  [[ -z $left ]] && break || sleep 0.5
done
[[ -z $left ]] || { echo "still running: $left" >&2; exit 1; }
echo "ssh: all as expected"
