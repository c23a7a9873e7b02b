#!/usr/bin/env bash
# Sees to it that a Docker engine runs: the one that does, or one from Debian's packages, for which this has to be root.
# Exit code 1, with the reason, when none can be had.
set -euo pipefail

log=${DOCKERD_LOG:-/var/log/dockerd.log}

fail() { echo "start-engine: no Docker engine: $1" >&2; exit 1; }

answers() { docker info > /dev/null 2>&1; }

# debootstrap is for deploy/build-base-images.sh, where no image registry is reachable.
install_engine() {
    command -v apt-get > /dev/null || fail "none is installed, and there is no apt-get to install one with"
    [ "$(id --user)" = 0 ] || fail "none is installed, and only root can install one"
    local said
    said=$( (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq --no-install-recommends \
        docker.io docker-compose debootstrap iptables) 2>&1) || fail "installing one failed: $(tail -n 3 <<< "$said")"
}

if answers; then exit 0; fi
for tool in dockerd docker debootstrap; do
    if ! command -v $tool > /dev/null; then install_engine; break; fi
done
if answers; then exit 0; fi # its package may have started it
[ "$(id --user)" = 0 ] || fail "one is installed and does not run, and only root can start it"
setsid dockerd > "$log" 2>&1 < /dev/null &
pid=$!
for _ in $(seq 120); do
    if answers; then echo "started a Docker engine, process $pid, log $log"; exit 0; fi
    kill -0 $pid 2> /dev/null || break
    sleep 0.5
done
kill $pid 2> /dev/null || true
fail "dockerd does not come up: $(tail -n 3 "$log")"
