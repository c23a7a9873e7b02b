#!/usr/bin/env bash
# Builds the three public images this project stands on, under their own names, where no image registry is reachable:
#
#   floodmark/bookworm            debootstrap, from the Debian mirror in this machine's apt sources
#     python:3.11-slim-bookworm   Debian's Python
#     floodmark/java              Debian's OpenJDK 17
#       zookeeper:3.9             the jars inside pyspark
#       apache/kafka:4.3.1        the jars that `floodmark fetch` pins and caches
#
# An image that exists is left alone, whoever made it. Needs root, for debootstrap, and `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
images=deploy/base-images
scratch=$(mktemp --directory)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "build-base-images: $1" >&2; exit 1; }

absent() {
    if docker image inspect "$1" > /dev/null 2>&1; then echo "$1 exists, left alone"; return 1; fi
    echo "building $1"
}

# The classic builder comes with every engine; BuildKit is a plug-in that Debian's lacks.
build() { DOCKER_BUILDKIT=0 docker build --quiet --tag "$1" --file "$2" "$3"; }

debian_sources() {
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
        'Created-By: Packages' 'Origin: Debian' 'Component: main' "Architecture: $(dpkg --print-architecture)" \
        | sort --unique
}

debian() {
    local root=$scratch/bookworm sources mirror
    sources=$(debian_sources)
    mirror=$(awk '$3 == "bookworm" { print $2; exit }' <<< "$sources")
    [ -n "$mirror" ] || fail "the apt sources of this machine have no bookworm; run apt-get update, on Debian bookworm"
    debootstrap --variant=minbase bookworm "$root" "$mirror" > "$scratch/debootstrap.log" \
        || fail "debootstrap from $mirror failed: $(tail -n 5 "$scratch/debootstrap.log")"
    echo "$sources" > "$root/etc/apt/sources.list"
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale,man}/*
    tar --directory "$root" --create . | docker import --change 'CMD ["bash"]' - "$1"
}

# server IMAGE NAME CLASSPATH: builds from a context of the jars on that class path and the local stack's own logging.
server() {
    local context=$scratch/$2
    mkdir -p "$context/libs"
    tr ':' '\n' <<< "$3" | xargs cp --target-directory "$context/libs"
    $python -c 'import pathlib, sys; from floodmark.local import jvm; jvm.write_logging(pathlib.Path(sys.argv[1]))' \
        "$context"
    cp "$images/$2-entrypoint.sh" "$context"
    chmod --recursive a+rX "$context" # the server runs as a user of its own
    build "$1" "$images/$2.Dockerfile" "$context"
}

[ "$(id --user)" = 0 ] || fail "debootstrap needs root"
[ -x $python ] || fail "$python is missing; run make setup first"
for tool in debootstrap apt-get docker; do command -v $tool > /dev/null || fail "$tool is not installed"; done
docker info > /dev/null 2>&1 || fail "no Docker engine answers"

if absent floodmark/bookworm; then debian floodmark/bookworm; fi
if absent python:3.11-slim-bookworm; then build python:3.11-slim-bookworm $images/python.Dockerfile $images; fi
if absent floodmark/java; then build floodmark/java $images/java.Dockerfile $images; fi
if absent zookeeper:3.9; then
    classpath=$($python -c 'from floodmark.local import jars; print(jars.zookeeper_classpath())')
    server zookeeper:3.9 zookeeper "$classpath"
fi
if absent apache/kafka:4.3.1; then
    classpath=$($python -c 'from floodmark.local import jars; print(jars.kafka_classpath(jars.ensure_kafka_jars()))')
    server apache/kafka:4.3.1 kafka "$classpath"
fi
