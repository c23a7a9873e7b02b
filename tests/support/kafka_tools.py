"""Small acts on a real broker that tests need: topics, records, committed positions."""

import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher
from floodmark.bus.ports import Outgoing
from floodmark.local.kafka import KafkaServer
from tests.support.eventually import eventually


def new_topic(kafka: KafkaServer, *, partitions: int = 1) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=30)[name].result()
    return name


def produce(kafka: KafkaServer, topic: str, values: Iterable[bytes]) -> None:
    publisher = KafkaPublisher(KafkaConnection(kafka.bootstrap, "test"))
    publisher.publish([Outgoing(topic, str(n).encode(), value) for n, value in enumerate(values)])
    publisher.close()


def committed(kafka: KafkaServer, group: str, topic: str) -> dict[int, int]:
    """The committed position of each partition that has one."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(timeout=30)
    return {p.partition: p.offset for p in answer.topic_partitions or () if p.topic == topic and p.offset >= 0}


def read_all(
    kafka: KafkaServer, topic: str, *, partitions: int = 1, options: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[bytes | None, dict[str, bytes]]]:
    """Every record now in the topic: value and headers."""
    # An empty fetch waits half a second by default; here the end of the topic is known beforehand.
    own = {"bootstrap.servers": kafka.bootstrap, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 10}
    consumer = Consumer({**own, **options})
    found = []
    for number in range(partitions):
        low, high = ends(consumer, TopicPartition(topic, number))
        consumer.assign([TopicPartition(topic, number, low)])
        for _ in range(high - low):
            message = consumer.poll(30)
            assert message is not None, f"{topic}/{number} has {high - low} records, they did not all come"
            assert message.error() is None
            found.append((message.value(), dict(message.headers() or [])))
    consumer.close()
    return found


def ends(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """The first offset of a partition and the one after the last. A new topic has no leader for a moment."""

    def known() -> tuple[int, int] | None:
        try:
            return consumer.get_watermark_offsets(place, timeout=30)
        except KafkaException:
            return None

    return eventually(known, what=f"the ends of {place.topic}/{place.partition}")
