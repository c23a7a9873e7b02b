"""Puts a Kafka pump together for a service: the same few lines every `app.py` would otherwise repeat."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from prometheus_client import Counter, Gauge

from floodmark.bus.deadletters import DeadLetters
from floodmark.bus.delivery import Sink
from floodmark.bus.kafka import KafkaConnection, KafkaPublisher, KafkaSource, ensure_topics
from floodmark.bus.ports import Record
from floodmark.bus.pump import Pump, PumpLimits
from floodmark.contracts import envelope
from floodmark.contracts.changes import Changes, read_changes
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.topics import ALL_TOPICS, Topic
from floodmark.service.runner import Runtime
from floodmark.service.settings import KafkaSettings

T = TypeVar("T")


def decode_record(record: Record) -> Envelope:
    return envelope.decode(record.partition.topic, record.value, record.headers, fallback_id=record.place)


def decode_changes(record: Record) -> Changes:
    """The event alone, for whoever reads so many that looking into all their headers would show."""
    return read_changes(record.value, what=record)


def kafka_connection(runtime: Runtime, kafka: KafkaSettings) -> KafkaConnection:
    """Where Kafka is. Every topic exists when this returns, so that no service starts on half of them."""
    client_id = f"{runtime.service}.{runtime.instance}"
    connection = KafkaConnection(kafka.bootstrap, client_id, kafka.client_options, kafka.namespace)
    ensure_topics(connection, ALL_TOPICS, replication=kafka.replication, timeout_s=kafka.delivery_timeout_ms / 1000)
    return connection


def publisher(runtime: Runtime, kafka: KafkaSettings, connection: KafkaConnection) -> KafkaPublisher:
    made = KafkaPublisher(connection, delivery_timeout_ms=kafka.delivery_timeout_ms)
    runtime.resources.callback(made.close)
    return made


def thread_pool(runtime: Runtime, *, threads_max: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(threads_max, thread_name_prefix=runtime.service)
    runtime.resources.callback(pool.shutdown, wait=False, cancel_futures=True)
    return pool


def consume(
    runtime: Runtime,
    kafka: KafkaSettings,
    *,
    connection: KafkaConnection,
    topic: Topic,
    decode: Callable[[Record], T],
    sink: Sink[T],
    publisher: KafkaPublisher,
    limits: PumpLimits,
) -> Pump[T]:
    """A pump on one topic, in the group named after the service, that stands still while ZooKeeper is away."""
    source = KafkaSource(
        connection,
        group=f"floodmark.{runtime.service}",
        session_timeout_ms=kafka.session_timeout_ms,
        poll_interval_max_ms=kafka.poll_interval_max_ms,
    )
    runtime.resources.callback(source.close)
    runtime.health.require("kafka", lambda: None if source.reachable else f"no broker answers at {kafka.bootstrap}")
    outcomes = Counter("floodmark_records", "Records by outcome", ["topic", "outcome"], registry=runtime.metrics)
    pump = Pump(
        source=source,
        topics=[topic.name],
        decode=decode,
        sink=sink,
        dead_letters=DeadLetters(publisher, service=runtime.service, replica=runtime.instance, clock=runtime.clock),
        clock=runtime.clock,
        randomness=runtime.randomness,
        limits=limits,
        may_progress=lambda: runtime.session.connected,
        on_outcome=lambda partition, outcome, count: outcomes.labels(partition.topic, outcome).inc(count),
    )
    in_flight = Gauge("floodmark_records_in_flight", "Records handed out, not finished", registry=runtime.metrics)
    in_flight.set_function(lambda: pump.in_flight)
    return pump
