"""Looking at the bus without taking part: where a group stands, and what a topic holds from some point on."""

import uuid
from collections.abc import Mapping

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

from floodmark.bus.kafka import KafkaConnection
from floodmark.bus.ports import Partition, Record
from floodmark.core.errors import Unavailable

ANSWER_WITHIN_S = 10.0


class Onlooker:
    """Reads without a group of its own and commits nothing."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._bootstrap = connection.bootstrap
        self._admin = AdminClient(connection.client_config())
        # librdkafka wants a group's name even from a consumer that never joins one.
        self._consumer = Consumer(connection.client_config() | {"group.id": f"onlooker-{uuid.uuid4().hex}"})

    def positions(self, group: str) -> dict[Partition, int]:
        """What a group has committed."""
        name = self._connection.qualified(group)
        request = [ConsumerGroupTopicPartitions(name)]
        try:
            answer = self._admin.list_consumer_group_offsets(request)[name].result(timeout=ANSWER_WITHIN_S)
        except (KafkaException, TimeoutError) as error:
            raise Unavailable(f"positions of group {group} could not be read at {self._bootstrap}: {error}") from error
        found = (p for p in answer.topic_partitions or () if p.offset >= 0)
        return {self._connection.partition(p.topic, p.partition): p.offset for p in found}

    def ends(self, topic: str) -> dict[Partition, int]:
        """The offset that the next record of each partition will get."""
        try:
            name = self._connection.qualified(topic)
            numbers = self._admin.list_topics(name, timeout=ANSWER_WITHIN_S).topics[name].partitions
            return {p: self._end(p) for p in (Partition(topic, number) for number in numbers)}
        except KafkaException as error:
            raise Unavailable(f"the ends of {topic} could not be read at {self._bootstrap}: {error}") from error

    def _end(self, partition: Partition) -> int:
        watermarks = self._consumer.get_watermark_offsets(self._connection.at(partition), timeout=ANSWER_WITHIN_S)
        assert watermarks is not None
        return watermarks[1]

    def start_from(self, positions: Mapping[Partition, int]) -> None:
        self._consumer.assign([self._connection.at(p, offset) for p, offset in positions.items()])

    def next(self, *, timeout_ms: int) -> Record | None:
        """The next record from where it was told to start; None when none came in time."""
        message = self._consumer.poll(timeout_ms / 1000)
        return next(iter(self._connection.records([message] if message else [])), None)

    def close(self) -> None:
        self._consumer.close()
