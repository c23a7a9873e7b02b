"""Kafka behind the bus ports: a consumer-group member and an idempotent producer."""

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from floodmark.bus.ports import CommitAnswer, Outgoing, Partition, RebalanceListener, Record
from floodmark.contracts.topics import ALL_TOPICS, Topic
from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable

log = structlog.get_logger()

STATISTICS_EVERY_MS = 1_000
ERROR_EVERY_S = 30
MADE_ANEW_AFTER_S = 30
"""librdkafka goes on trying by itself. But a client that hears from a starting Kafka that there are no brokers yet
forgets those it knew, has nobody left to ask and never asks again (its issue 5301). Only another client finds Kafka."""
LEFT_WITHIN_S = 2
"""Less than what a service has for closing everything."""

# The group moved on without this member; its partitions are, or will be, read again by their next owner.
_GROUP_MOVED_ON = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._NO_OFFSET,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._STATE,
    }
)
# The bus will never take such a message, however often it is sent.
_NEVER_ACCEPTED = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG_SIZE}
)
# Nothing left this process.
_NEVER_SENT = frozenset(
    {KafkaError._QUEUE_FULL, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._PURGE_QUEUE}
)
_NO_ANSWER = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """How to reach the cluster. `options` go to librdkafka as they are: TLS, SASL and whatever else a site needs."""

    bootstrap: str
    client_id: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    namespace: str = ""
    """Stands before every topic and group, so that several installations can share one cluster."""
    _partitions: dict[tuple[str, int], Partition] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Those met so far: one object for all records of a partition, found sooner than made."""

    def qualified(self, name: str) -> str:
        """A topic or group as Kafka knows it; inside this project it goes by its plain name."""
        return f"{self.namespace}.{name}" if self.namespace else name

    def at(self, partition: Partition, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self.qualified(partition.topic), partition.number, offset)

    def partition(self, topic: str, number: int) -> Partition:
        found = self._partitions.get((topic, number))
        if found is None:
            plain = topic.removeprefix(f"{self.namespace}.") if self.namespace else topic
            found = self._partitions[topic, number] = Partition(plain, number)
        return found

    def records(self, messages: Sequence[Any]) -> list[Record]:
        """Messages as records, but for those that only report an error: only these have no topic, place or offset."""
        partition = self.partition
        records = [
            Record(partition(m.topic(), m.partition()), m.offset(), m.key(), m.value(), m.headers)
            for m in messages
            if m.error() is None
        ]
        if len(records) < len(messages):
            for error in (m.error() for m in messages if m.error() is not None):
                log.warning("bus_error_reported", error=error.str(), code=error.name())
        return records

    def client_config(self) -> dict[str, str | int | float | bool]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.client_id,
            "reconnect.backoff.max.ms": 1_000,
            # librdkafka would print some twenty lines a second about a broker that is away, past our own log.
            # What it says at these levels also arrives at the error callback, or as an event of our own.
            "log_level": 0,
            **self.options,
        }


class Reachability:
    """Whether any broker answers, from librdkafka's statistics, and a log that says so once and not at every try."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._reported: dict[int, float] = {}
        self.reachable = True  # a source is made after the topics were
        self._up = True
        self._away_since_s = math.inf

    def on_statistics(self, text: str) -> None:
        brokers = json.loads(text).get("brokers", {}).values()
        up = any(broker["state"] == "UP" for broker in brokers)
        # One look may fall into the making of the first connection, or between two: it takes two to be away.
        was, self.reachable = self.reachable, up or self._up
        self._up = up
        if was and not self.reachable:
            self._away_since_s = time.monotonic()
            log.warning("kafka_unreachable", bootstrap=self._bootstrap)
        elif self.reachable and not was:
            log.info("kafka_reached", bootstrap=self._bootstrap)

    @property
    def away_s(self) -> float:
        """For how long this client has reached nobody; below zero if it does."""
        return -math.inf if self.reachable else time.monotonic() - self._away_since_s

    def begin_anew(self) -> None:
        """Another client looks for Kafka from now on."""
        self._away_since_s = time.monotonic()
        log.warning("kafka_client_made_anew", bootstrap=self._bootstrap)

    def on_error(self, error: KafkaError) -> None:
        """Refused connections, failed logins, unknown hosts: each kind once in a while, since each try repeats it."""
        now_s = time.monotonic()
        if now_s - self._reported.get(error.code(), -math.inf) >= ERROR_EVERY_S:
            self._reported[error.code()] = now_s
            log.warning("kafka_error_reported", code=error.name(), error=error.str())


class KafkaSource:
    """One member of a consumer group; offsets are committed by the pump alone."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        group: str,
        session_timeout_ms: int,
        poll_interval_max_ms: int,
        made_anew_after_s: float = MADE_ANEW_AFTER_S,
    ) -> None:
        self._connection = connection
        self._answered: Callable[[CommitAnswer], None] | None = None
        self._reachability = Reachability(connection.bootstrap)
        self._made_anew_after_s = made_anew_after_s
        self._subscription: tuple[Sequence[str], RebalanceListener] | None = None
        self._config = connection.client_config() | {
            "group.id": connection.qualified(group),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            # Only the partitions that move are revoked; work on the others goes on through a rebalance.
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": max(session_timeout_ms // 3, 1),
            "max.poll.interval.ms": poll_interval_max_ms,
            "statistics.interval.ms": STATISTICS_EVERY_MS,
            "stats_cb": self._reachability.on_statistics,
            "error_cb": self._reachability.on_error,
            "on_commit": self._on_commit,
        }
        self._consumer = Consumer(self._config)

    @property
    def reachable(self) -> bool:
        return self._reachability.reachable

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self._subscription = topics, listener
        self._consumer.subscribe(
            [self._connection.qualified(topic) for topic in topics],
            on_assign=lambda _, partitions: self._on_assign(partitions, listener),
            on_revoke=lambda _, partitions: listener.revoked(self._partitions(partitions)),
            on_lost=lambda _, partitions: listener.lost(self._partitions(partitions)),
        )

    def _on_assign(self, partitions: list[TopicPartition], listener: RebalanceListener) -> None:
        """librdkafka keeps what was paused paused, also while others have it, and nobody who paused it is left then."""
        self._consumer.resume(partitions)
        listener.assigned(self._partitions(partitions))

    def poll(self, *, records_max: int, timeout_ms: int) -> Sequence[Record]:
        if self._reachability.away_s >= self._made_anew_after_s:
            self._make_anew()
        # `consume(n)` would wait for n records until its timeout; the first one is what should wake us.
        first = self._consumer.poll(timeout_ms / 1000)
        if first is None:
            return []
        messages = [first, *(self._consumer.consume(records_max - 1, 0) if records_max > 1 else ())]
        return self._connection.records(messages)

    def _make_anew(self) -> None:
        """The old client is let go of, not closed: to leave its group it would wait for a broker."""
        self._reachability.begin_anew()
        held = self._partitions(self._consumer.assignment())
        self._consumer = Consumer(self._config)
        self._tell(Unavailable("offsets not committed: no broker answered"))
        if self._subscription is not None:
            topics, listener = self._subscription
            if held:
                listener.lost(held)
            self.subscribe(topics, listener)

    def pause(self, partitions: Collection[Partition]) -> None:
        self._consumer.pause([self._connection.at(p) for p in partitions])

    def resume(self, partitions: Collection[Partition]) -> None:
        self._consumer.resume([self._connection.at(p) for p in partitions])

    def commit(self, positions: Mapping[Partition, int]) -> bool:
        try:
            results = self._consumer.commit(offsets=self._offsets(positions), asynchronous=False)
        except KafkaException as failure:
            answer = _commit_answer([failure.args[0]])
        else:
            answer = _commit_answer([r.error for r in results if r.error is not None])
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    def begin_commit(self, positions: Mapping[Partition, int], answered: Callable[[CommitAnswer], None]) -> None:
        assert self._answered is None, "one commit at a time: a second one could be undone by the first"
        self._answered = answered
        try:
            self._consumer.commit(offsets=self._offsets(positions), asynchronous=True)
        except KafkaException as failure:
            self._tell(_commit_answer([failure.args[0]]))

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        errors = [error] if error is not None else [p.error for p in partitions if p.error is not None]
        self._tell(_commit_answer(errors))

    def _tell(self, answer: CommitAnswer) -> None:
        if self._answered is not None:  # a commit that was waited for is reported here as well
            answered, self._answered = self._answered, None
            answered(answer)

    def _offsets(self, positions: Mapping[Partition, int]) -> list[TopicPartition]:
        return [self._connection.at(partition, offset) for partition, offset in positions.items()]

    def _partitions(self, partitions: Collection[TopicPartition]) -> list[Partition]:
        return [self._connection.partition(p.topic, p.partition) for p in partitions]

    def close(self) -> None:
        """Leave the group; the listener is told of the revoked partitions first.

        To leave takes an answer from Kafka. Whatever is closed after this must not wait for one that does not come; a
        member that did not leave is missed when its session ends.
        """
        failures: list[Exception] = []

        def leave() -> None:
            try:
                self._leave()
            except Exception as failure:  # told on the caller's own thread
                failures.append(failure)

        leaving = threading.Thread(target=leave, name="kafka-leaving", daemon=True)
        leaving.start()
        leaving.join(LEFT_WITHIN_S)
        if leaving.is_alive():
            log.warning("kafka_group_not_left", group=self._config["group.id"], within_s=LEFT_WITHIN_S)
        if failures:
            raise failures[0]

    def _leave(self) -> None:
        """SUBTLE: nothing may be left to tell the listener when the client is closed.

        1. A rebalance waits for the next poll, and the client is closed instead.
        2. `close` tells the listener, in the middle of leaving. Meanwhile Kafka confirms, and the group inside
           librdkafka ends, with whatever is in its queue.
        3. The listener returns, and librdkafka is asked to take over what it was told of. Is that in the queue just as
           it is thrown away, no answer ever comes (its issue 4884), and whoever waits holds the interpreter's lock.

        `unsubscribe` makes the same revocations, and what polls tell while no group is ending is always answered.
        """
        try:
            self._consumer.unsubscribe()
            while self._consumer.poll(0) is not None:
                pass  # read, and not committed: it comes again
        finally:
            self._consumer.close()


class KafkaPublisher:
    """An idempotent producer. `publish` returns when the brokers have acknowledged every message."""

    def __init__(self, connection: KafkaConnection, *, delivery_timeout_ms: int = 30_000) -> None:
        self._connection = connection
        self._timeout_ms = delivery_timeout_ms
        self._config = connection.client_config() | {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "delivery.timeout.ms": delivery_timeout_ms,
            "compression.type": "zstd",
            "message.max.bytes": max(topic.record_bytes_max for topic in ALL_TOPICS),
        }
        self._producer = Producer(self._config)
        self._making_anew = threading.Lock()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        producer, receipt = self._producer, _Receipt(len(messages))
        for message in messages:
            self._send(message, producer, receipt)
        # librdkafka reports every message by its own timeout; the extra second is for that report to arrive.
        if not receipt.wait(producer, timeout_ms=self._timeout_ms + 1_000):
            self._make_anew(producer)
            raise OutcomeUnknown(f"no answer for {receipt.open} of {len(messages)} messages to {messages[0].topic}")
        if receipt.errors:
            if any(_is_done_for(error) for error in receipt.errors):
                self._make_anew(producer)
            raise _publish_error(messages[0].topic, receipt.errors)

    def _send(self, message: Outgoing, producer: Producer, receipt: "_Receipt") -> None:
        while True:
            try:
                producer.produce(
                    self._connection.qualified(message.topic),
                    key=message.key,
                    value=message.value,
                    headers=list(message.headers),
                    on_delivery=receipt.delivered,
                )
            except BufferError:
                producer.poll(0.1)  # the local queue is full: let deliveries make room
            except KafkaException as failure:
                if _is_done_for(failure.args[0]):
                    self._make_anew(producer)
                raise _publish_error(message.topic, [failure.args[0]]) from failure
            else:
                return

    def _make_anew(self, done_for: Producer) -> None:
        """The next messages go by another client. Whoever still waits for an answer from the old one keeps it."""
        with self._making_anew:
            if self._producer is done_for:
                log.warning("kafka_client_made_anew", bootstrap=self._connection.bootstrap)
                self._producer = Producer(self._config)

    def close(self) -> None:
        self._producer.flush(self._timeout_ms / 1000)


def _is_done_for(error: KafkaError) -> bool:
    """Whether the producer that met it may never send again: it said so itself, or it reached nobody for too long."""
    return error.fatal() or error.code() == KafkaError._MSG_TIMED_OUT


class _Receipt:
    """Counts the acknowledgements of one `publish`; callbacks may run in any thread that polls the producer."""

    def __init__(self, expected: int) -> None:
        self.open = expected
        self.errors: list[KafkaError] = []
        self._lock = threading.Lock()

    def delivered(self, error: KafkaError | None, _: Message) -> None:
        with self._lock:
            self.open -= 1
            if error is not None:
                self.errors.append(error)

    def wait(self, producer: Producer, *, timeout_ms: int) -> bool:
        slices = max(timeout_ms // 50, 1)
        for _ in range(slices):
            if self.open == 0:
                return True
            producer.poll(0.05)
        return self.open == 0


def _publish_error(topic: str, errors: Sequence[KafkaError]) -> InvalidInput | Unavailable | OutcomeUnknown:
    first = errors[0]
    if first.code() in _NEVER_ACCEPTED:
        return InvalidInput("bus-refuses", f"a message to {topic} was refused: {first.str()}")
    if all(e.code() in _NEVER_SENT for e in errors):
        return Unavailable(f"nothing was sent to {topic}: {first.str()}")
    return OutcomeUnknown(f"{len(errors)} messages to {topic} may not have arrived: {first.str()}")


def _commit_answer(errors: Sequence[KafkaError]) -> CommitAnswer:
    if not errors:
        return True
    if all(e.code() in _GROUP_MOVED_ON for e in errors):
        return False
    return Unavailable(f"offsets not committed: {errors[0].str()}")


def ensure_topics(connection: KafkaConnection, topics: Sequence[Topic], *, replication: int, timeout_s: float) -> None:
    """Create the topics that are missing, with their own partitions and retention. What exists is left as it is."""
    heard: list[KafkaError] = []
    # Its stub leaves callbacks out, which it takes as every client does.
    config = cast(dict[str, str | int | float | bool], connection.client_config() | {"error_cb": heard.append})
    admin = AdminClient(config)
    wanted = [
        NewTopic(
            connection.qualified(topic.name),
            num_partitions=topic.partitions,
            replication_factor=replication,
            config=topic.config,
        )
        for topic in topics
    ]
    for name, future in admin.create_topics(wanted, operation_timeout=timeout_s, request_timeout=timeout_s).items():
        while not future.done():
            admin.poll(0.1)  # what goes wrong on the way is told here, and nowhere else
            _check_login(connection, heard)
        try:
            future.result()
            log.info("topic_created", topic=name)
        except KafkaException as failure:
            code = failure.args[0].code()
            if code in _NO_ANSWER:
                raise Unavailable(
                    f"no Kafka answered at {connection.bootstrap} within {timeout_s:g} s{_reason(heard)}"
                ) from failure
            if code != KafkaError.TOPIC_ALREADY_EXISTS and not _made_by_others(admin, name, code, timeout_s):
                raise Unavailable(f"topic {name} could not be created: {failure.args[0].str()}") from failure


def _check_login(connection: KafkaConnection, heard: Sequence[KafkaError]) -> None:
    """A refused login is not waited out: librdkafka would try the same password until the time is up."""
    for error in heard:
        if error.code() == KafkaError._AUTHENTICATION:
            raise Unavailable(
                f"Kafka at {connection.bootstrap} refused the login: {error.str()}; "
                "see kafka.username, kafka.password and kafka.sasl_mechanism"
            )


def _reason(heard: Sequence[KafkaError]) -> str:
    """What went wrong last, as far as librdkafka tells. That all brokers are down is no reason, but what it came to."""
    reasons = [error for error in heard if error.code() != KafkaError._ALL_BROKERS_DOWN]
    if reasons:
        # A failed handshake comes under several codes, and with its state at the end.
        hint = "; see kafka.tls and kafka.tls_ca" if "SSL" in reasons[-1].str() else ""
        return f": {reasons[-1].str()}{hint}"
    return ": it hangs up without a word; it may want TLS or a login (kafka.tls, kafka.username)" if heard else ""


def _made_by_others(admin: AdminClient, topic: str, code: int, timeout_s: float) -> bool:
    """Where we may use topics and not make them, Kafka refuses before it looks whether there is anything to make."""
    if code != KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return False
    return admin.list_topics(topic, timeout=timeout_s).topics[topic].error is None
