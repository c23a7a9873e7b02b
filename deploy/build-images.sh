#!/usr/bin/env bash
# Builds the image of every role, floodmark/ingester and so on. What they stand on is pulled, or, where no image registry
# is reachable, built by deploy/build-base-images.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

bases=(python:3.11-slim-bookworm zookeeper:3.9 apache/kafka:4.3.1)

fail() { echo "build-images: $1" >&2; exit 1; }

have() { docker image inspect "$1" > /dev/null 2>&1; }

# roles REQUIREMENTS ROLE...: the images of the roles that need the packages in this file of requirements/.
roles() {
    local requirements=$1 role
    shift
    for role; do
        echo "building floodmark/$role"
        # The classic builder comes with every engine; BuildKit is a plug-in that Debian's lacks.
        DOCKER_BUILDKIT=${DOCKER_BUILDKIT:-0} docker build --quiet --tag "floodmark/$role" --file deploy/Dockerfile \
            --build-arg "REQUIREMENTS=$requirements" --build-arg "ROLE=$role" .
    done
}

docker info > /dev/null 2>&1 || fail "no Docker engine answers"
for image in "${bases[@]}"; do
    have "$image" || docker pull --quiet "$image" || { deploy/build-base-images.sh; break; }
done
roles runtime consistency scheduler
roles lake ingester janitor
roles spark worker broker
docker images --format 'table {{.Repository}}\t{{.Size}}' \
    --filter label=org.opencontainers.image.title=Floodmark --filter dangling=false
