#!/usr/bin/env bash
# Make a directory for DASK_CONFIG: dask.yaml, a certificate with its key, tls.yaml, which names them, and a copy of each
# FILE.yaml for you to edit.
# usage: configure.sh DIRECTORY [FILE.yaml ...]
#
# Whoever holds key.pem can join the cluster and run code there. The key of the authority is destroyed: nobody can make
# another certificate of it. Certificates are good for 365 days; to revoke or renew them, make a new directory.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
directory=${1:?usage: configure.sh DIRECTORY [FILE.yaml ...]}
shift
umask 077
if [[ -e $directory/tls.yaml ]]; then
  echo "configure.sh: $directory/tls.yaml exists, but a new directory was expected. Choose another one." >&2
  exit 5
fi
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/openssl.cnf" <<'END'
[req]
distinguished_name = name
prompt = no
[name]
CN = dask
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[member]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
run_openssl() { openssl "$@" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }; }
key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config "$work/openssl.cnf")
run_openssl req -x509 "${key[@]}" -extensions authority -subj "/CN=authority of one Dask cluster" -days 365 \
  -keyout "$work/authority.pem" -out "$directory/ca.pem"
run_openssl req "${key[@]}" -keyout "$directory/key.pem" -out "$work/request.pem"
run_openssl x509 -req -in "$work/request.pem" -CA "$directory/ca.pem" -CAkey "$work/authority.pem" -set_serial 1 \
  -extfile "$work/openssl.cnf" -extensions member -days 365 -out "$directory/cert.pem"

cp "$here/dask.yaml" "$@" "$directory"
{
  printf 'distributed:\n  comm:\n    tls:\n      ca-file: "%s/ca.pem"\n' "$directory"
  for role in scheduler worker client; do
    printf '      %s: {cert: "%s/cert.pem", key: "%s/key.pem"}\n' "$role" "$directory" "$directory"
  done
} >"$directory/tls.yaml"
echo "export DASK_CONFIG=$directory"
