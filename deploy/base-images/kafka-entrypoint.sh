#!/bin/bash
# Starts Kafka as the public image does: Kafka's own wrapper turns KAFKA_* into properties and formats the storage.
set -euo pipefail

export CLUSTER_ID=${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}
# Unquoted: the variable holds several options.
# shellcheck disable=SC2206
java=(java ${KAFKA_HEAP_OPTS:-} -Dlog4j2.configurationFile=log4j2.properties -cp '/opt/kafka/libs/*')

# The wrapper has no word for "format unless it is": a data volume that was used before is the usual case, not an error.
if ! answer=$("${java[@]}" kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \
    --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config 2>&1); then
    grep --quiet --ignore-case "already formatted" <<< "$answer" || { echo "$answer" >&2; exit 1; }
fi

exec "${java[@]}" kafka.Kafka /opt/kafka/config/server.properties
