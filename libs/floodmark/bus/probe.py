"""Whether a Kafka broker serves requests, asked the way a client would."""

from collections.abc import Mapping
from types import MappingProxyType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ANSWER_WITHIN_S = 2.0


def kafka_ready(bootstrap: str, options: Mapping[str, str] = MappingProxyType({})) -> bool:
    """True when the broker answers a metadata request and has found its place in the cluster."""
    # Failing to connect is an expected answer here, so the client library keeps quiet about it.
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **options})
    try:
        return bool(client.list_topics(timeout=ANSWER_WITHIN_S).brokers)
    except KafkaException:
        return False
