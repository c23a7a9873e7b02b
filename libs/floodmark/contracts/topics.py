"""The topics: what travels on each, how it is spread over partitions and how long it stays."""

from dataclasses import dataclass

from floodmark.contracts.messages import (
    BucketBuilt,
    BuildBucket,
    Message,
    RecordRefused,
    SegmentAnnounced,
    SegmentsChanged,
)
from floodmark.core.errors import InvalidInput

KIB, MIB = 1024, 1024 * 1024
DAY_MS = 24 * 60 * 60 * 1000

# Room for key, headers and record framing beside the largest value.
_RECORD_OVERHEAD_BYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class Topic:
    """One Kafka topic. `key_fields` name the message fields that choose the partition, `key_why` the reason."""

    name: str
    models: tuple[type[Message], ...]
    key_fields: tuple[str, ...]
    key_why: str
    partitions: int
    retention_ms: int = 7 * DAY_MS
    cleanup_policy: str = "delete"
    value_bytes_max: int = MIB

    def key(self, message: Message) -> bytes:
        assert isinstance(message, self.models), f"{message.kind} does not travel on {self.name}"
        return "/".join(str(getattr(message, field)) for field in self.key_fields).encode()

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(model.kind_name() for model in self.models)

    @property
    def record_bytes_max(self) -> int:
        """What broker and producer must let through."""
        return self.value_bytes_max + _RECORD_OVERHEAD_BYTES

    @property
    def config(self) -> dict[str, str]:
        """The topic's configuration in Kafka's own words."""
        return {
            "cleanup.policy": self.cleanup_policy,
            "retention.ms": str(self.retention_ms),
            "max.message.bytes": str(self.record_bytes_max),
        }


ANNOUNCEMENTS = Topic(
    name="announcements.v1",
    models=(SegmentAnnounced,),
    key_fields=("table",),
    key_why="announcements about one table are read in the order they were sent",
    partitions=6,
)
SEGMENTS = Topic(
    name="segments.v1",
    models=(SegmentsChanged,),
    key_fields=("table",),
    key_why="changes of one table meet in one consumer, which can coalesce them",
    partitions=6,
)
TASKS = Topic(
    name="tasks.v1",
    models=(BuildBucket,),
    key_fields=("view", "bucket_start_ms"),
    key_why="buckets of one view spread over all workers, while duplicates of one task meet in the same one",
    partitions=12,
)
RESULTS = Topic(
    name="results.v1",
    models=(BucketBuilt,),
    key_fields=("view",),
    key_why="results of one view are read in order",
    partitions=6,
)
DEADLETTER = Topic(
    name="deadletter.v1",
    models=(RecordRefused,),
    key_fields=("topic",),
    key_why="refused records of one topic stay together, in the order they were refused",
    partitions=1,
    retention_ms=30 * DAY_MS,
    value_bytes_max=4 * MIB,  # base64 makes the original a third larger, see deadletter.py
)

ALL_TOPICS = (ANNOUNCEMENTS, SEGMENTS, TASKS, RESULTS, DEADLETTER)

_BY_NAME = {topic.name: topic for topic in ALL_TOPICS}
_BY_MODEL = {model: topic for topic in ALL_TOPICS for model in topic.models}


def topic_named(name: str) -> Topic:
    try:
        return _BY_NAME[name]
    except KeyError:
        raise InvalidInput("unknown-topic", f"topic {name!r} is none of {', '.join(_BY_NAME)}") from None


def topic_of(message: Message) -> Topic:
    """The topic this message travels on: each kind has exactly one."""
    return _BY_MODEL[type(message)]
