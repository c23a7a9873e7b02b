"""Reads the tasks of a pipeline as they come, without joining a group."""

import uuid

from confluent_kafka import Consumer, KafkaException, TopicPartition

from floodmark.contracts.envelope import decode
from floodmark.contracts.messages import BuildBucket
from floodmark.contracts.topics import TASKS
from tests.support.eventually import ANSWERED_WITHIN_S, eventually
from tests.support.pipeline import Pipeline


class TaskReader:
    """Keeps its place in each partition, so that looking again costs what is new."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._topic = f"{pipeline.namespace}.{TASKS.name}"
        self._consumer = Consumer(
            {
                "bootstrap.servers": pipeline.kafka.bootstrap,
                "group.id": uuid.uuid4().hex,
                "fetch.wait.max.ms": 10,  # a question for offsets waits behind each fetch, half a second by default
            }
        )
        self._read = dict.fromkeys(range(TASKS.partitions), 0)
        self._found: list[BuildBucket] = []
        self._consumer.assign([TopicPartition(self._topic, number, 0) for number in self._read])

    def tasks(self) -> list[BuildBucket]:
        """Every task that was in the topic when this was called, in order within a partition."""
        ends = eventually(self._ends, what=f"every partition of {self._topic} has a leader")
        while any(self._read[number] < end for number, end in ends.items()):
            for message in self._consumer.consume(1_000, timeout=0.1):
                if message.error() is None:
                    self._keep(message.value(), list(message.headers() or []))
                    self._read[message.partition() or 0] = (message.offset() or 0) + 1
        return list(self._found)

    def close(self) -> None:
        self._consumer.close()

    def _ends(self) -> dict[int, int]:
        try:
            return {
                number: self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, number), timeout=ANSWERED_WITHIN_S
                )[1]
                for number in self._read
            }
        except KafkaException:
            return {}  # the topic was made a moment ago

    def _keep(self, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        message = decode(TASKS.name, value, headers, "here").message
        assert isinstance(message, BuildBucket), f"{message} is not a task"
        self._found.append(message)
