"""Which of librdkafka's settings a site may choose. The others belong to this project: being right depends on them."""

from collections.abc import Mapping

from floodmark.core.errors import InvalidInput

_OFFSETS = "offsets are committed by the pump alone, after the effects of their records"
_GROUPS = "the pump counts on this way of handing partitions over"
_ORDER = "an event must be acknowledged by every replica, once and in order, before it leaves the outbox"
_FIXED = "every client of this project has the same"

RESERVED: Mapping[str, str] = {
    "enable.auto.commit": _OFFSETS,
    "auto.commit.enable": _OFFSETS,
    "auto.commit.interval.ms": _OFFSETS,
    "enable.auto.offset.store": _OFFSETS,
    "auto.offset.reset": "a group without a position reads from the beginning, or it would miss changes",
    "group.id": "kafka.namespace tells the groups of several installations apart",
    "group.protocol": _GROUPS,
    "partition.assignment.strategy": _GROUPS,
    "enable.idempotence": _ORDER,
    "acks": _ORDER,
    "request.required.acks": _ORDER,
    "transactional.id": _ORDER,
    "compression.type": _FIXED,
    "compression.codec": _FIXED,
    "message.max.bytes": "it follows from the largest record of a topic",
    "bootstrap.servers": "kafka.bootstrap says it",
    "metadata.broker.list": "kafka.bootstrap says it",
    "client.id": "it names the process",
    "session.timeout.ms": "kafka.session_timeout_ms says it",
    "heartbeat.interval.ms": "it follows from kafka.session_timeout_ms",
    "max.poll.interval.ms": "kafka.poll_interval_max_ms says it",
    "delivery.timeout.ms": "kafka.delivery_timeout_ms says it",
    "message.timeout.ms": "kafka.delivery_timeout_ms says it",
    "linger.ms": _FIXED,
    "queue.buffering.max.ms": _FIXED,
    "statistics.interval.ms": "/readyz counts on it",
}


def check_options(options: Mapping[str, object]) -> None:
    """Refuse what this project would overrule, or be wrong with. Values are not repeated: they may be secret."""
    for key in options:
        if reason := RESERVED.get(key):
            raise InvalidInput("kafka-option", f"{key} cannot be chosen: {reason}")
