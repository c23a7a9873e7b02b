"""What a burst of events costs on its way to STALE marks, against reading the same records and doing nothing with them.

One real Kafka, one real ZooKeeper, and the service's own parts in this process: the pump on the topic, the marker, the
ledger. 10,000 events on the 50 buckets of each of 10 views. Both sides are timed from their first record: the consumer
to its last one, the service to the moment when the last mark is in the ledger, the quiet period included.
"""

import random
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import Consumer

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher, KafkaSource, ensure_topics
from floodmark.bus.ports import Outgoing, Record
from floodmark.bus.pump import Pump, PumpLimits
from floodmark.contracts.envelope import Envelope, encode, originate
from floodmark.contracts.messages import SegmentChange, SegmentsChanged, TimeRange
from floodmark.contracts.topics import SEGMENTS
from floodmark.core.buckets import Entry, State
from floodmark.core.debounce import Batch, Bounds
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import EMPTY
from floodmark.core.ports import SystemClock
from floodmark.core.tables import ViewHeader
from floodmark.ledger.ledger import Ledger, ledger_on
from floodmark.local.kafka import KafkaServer
from floodmark.local.ports import pick_free_port, pick_free_ports
from floodmark.local.zookeeper import ZooKeeperServer
from floodmark.service import logs
from floodmark.service.wiring import decode_record
from floodmark_consistency.config import ConsistencySection
from floodmark_consistency.index import read_index
from floodmark_consistency.marker import Marker
from floodmark_consistency.marking import mark_view
from tests.bench.harness.figures import AtLeast, AtMost, Measurement, Run, figure, interleaved_ratio
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, zookeeper_store

EVENTS, BUCKETS, VIEWS = 10_000, 50, 10
OWN = ConsistencySection()


@dataclass
class Stopwatch:
    """From the first record that is decoded to the last mark, and how many records are finished."""

    started_s: float = 0.0
    elapsed_s: float = 0.0
    count: int = 0

    def decode(self, record: Record) -> Envelope:
        self.started_s = self.started_s or time.perf_counter()
        return decode_record(record)

    def finished(self, _record: Record, outcome: str) -> None:
        assert outcome == "finished", outcome
        self.count += 1

    def marked(self) -> None:
        self.elapsed_s = time.perf_counter() - self.started_s


@dataclass
class Bench:
    kafka: KafkaServer
    ledger: Ledger
    connection: KafkaConnection
    pool: ThreadPoolExecutor
    flushes: list[str] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def bare_s(self) -> float:
        """Poll every record with the client alone."""
        config = {
            "bootstrap.servers": self.kafka.bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        consumer, heard, started_s = Consumer(config), 0, 0.0
        consumer.subscribe([self.connection.qualified(SEGMENTS.name)])
        while heard < EVENTS:
            message = consumer.poll(1)
            if message is None:
                continue
            assert message.error() is None, message.error()
            assert message.value()
            started_s = started_s or time.perf_counter()
            heard += 1
        elapsed_s = time.perf_counter() - started_s
        consumer.close()
        return elapsed_s

    def service_s(self) -> float:
        """Bring every record's marks into the ledger, with the service's default settings, all buckets VALID before."""
        for n in range(VIEWS):
            self._valid_view(f"view_{n}")
        self.flushes.clear()
        clock, randomness = SystemClock(), random.Random(3)
        marker = Marker(
            mark=self._mark,
            read_index=lambda: read_index(self.ledger),
            executor=self.pool,
            clock=clock,
            randomness=randomness,
            bounds=Bounds(OWN.quiet_ms, OWN.age_max_ms, OWN.count_max),
            index_refresh_ms=OWN.index_refresh_ms,
        )
        stopwatch = self.stopwatch = Stopwatch()
        source = KafkaSource(
            self.connection, group=uuid.uuid4().hex, session_timeout_ms=10_000, poll_interval_max_ms=300_000
        )
        pump: Pump[Envelope] = Pump(
            source=source,
            topics=[SEGMENTS.name],
            decode=stopwatch.decode,
            sink=marker,
            dead_letters=NoDeadLetters(),
            clock=clock,
            randomness=randomness,
            limits=PumpLimits(in_flight_max=OWN.events_in_flight_max, span_max=2 * OWN.events_in_flight_max),
            on_outcome=stopwatch.finished,
        )
        while stopwatch.count < EVENTS:
            pump.step()
            marker.step()
        source.close()
        assert not [n for n in range(VIEWS) if self._valid_buckets(f"view_{n}")], "a change was not marked"
        return stopwatch.elapsed_s

    def _mark(self, view: str, batch: Batch) -> None:
        mark_view(self.ledger, view, batch)
        self.flushes.append(view)
        self.stopwatch.marked()

    def _valid_view(self, name: str) -> None:
        self.ledger.views.drop(name)
        header = ViewHeader(replace(VIEW, name=name), "", 0, 0, BUCKETS * HOUR_MS)
        entry = Entry(State.VALID, ever_valid=True, fingerprint=EMPTY, slice_versions={"0": 0, "wide": 0})
        self.ledger.views.restore(header, {n * HOUR_MS: entry for n in range(BUCKETS)})

    def _valid_buckets(self, name: str) -> list[int]:
        return [s for s, e in self.ledger.views.state(name).entries.items() if e.state is State.VALID]


class NoDeadLetters:
    def put(self, record: Record, error: InvalidInput) -> None:
        raise AssertionError(f"{record.place} was refused: {error}")


@contextmanager
def suite() -> Iterator[Bench]:
    """Servers, views and the topic with its events, for all figures."""
    logs.configure(form="json", level="warning", service="bench", replica="bench")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as resources:
        zookeeper = ZooKeeperServer(Path(directory) / "zookeeper", pick_free_port())
        kafka = KafkaServer(Path(directory) / "kafka", *pick_free_ports(2))
        for server in (zookeeper, kafka):
            server.start()
            resources.callback(server.stop)
        store = resources.enter_context(zookeeper_store(zookeeper.hosts))
        ledger = ledger_on(store, clock=SystemClock(), randomness=random.Random(1))
        connection = KafkaConnection(kafka.bootstrap, "bench")
        pool = resources.enter_context(ThreadPoolExecutor(OWN.threads_max))
        set_up(ledger, connection)
        yield Bench(kafka, ledger, connection, pool)


def set_up(ledger: Ledger, connection: KafkaConnection) -> None:
    ledger.registry.create_table(TABLE)
    ensure_topics(connection, [SEGMENTS], replication=1, timeout_s=30)
    publisher = KafkaPublisher(connection)
    publisher.publish([_event(n) for n in range(EVENTS)])
    publisher.close()


def _event(n: int) -> Outgoing:
    hour = n % BUCKETS
    change = SegmentChange(
        action="replaced",
        name=f"day=1970-01-01/part-{hour:05d}.parquet",
        crc=n,
        ranges=(TimeRange(start_ms=hour * HOUR_MS, end_ms=(hour + 1) * HOUR_MS),),
        trace_id=f"{n + 1:032x}",
    )
    event = SegmentsChanged(
        event_id=str(uuid.UUID(int=n)), table=TABLE.name, registry_version=n, registered_at_ms=0, changes=(change,)
    )
    encoded = encode(originate(event, event_id=event.event_id, source="bench", time_ms=0))
    return Outgoing(SEGMENTS.name, encoded.key, encoded.value, encoded.headers)


@figure(name="events per second through consistency over a bare consumer", goal=AtLeast(0.3), runs=3)
def throughput(run: Run) -> Measurement:
    """The bare consumer's time over the service's, for the same records."""
    bench: Bench = run.resources
    return interleaved_ratio(bench.bare_s, bench.service_s, blocks=1, names=("bare_s", "service_s"))


@figure(name="passes over the ledger for the burst, for each view", goal=AtMost(5), unit="passes", runs=3)
def marks(run: Run) -> Measurement:
    """The most that any view needed."""
    bench: Bench = run.resources
    elapsed_s = bench.service_s()
    counts = {view: bench.flushes.count(view) for view in set(bench.flushes)}
    assert len(counts) == VIEWS, f"only {sorted(counts)} were marked"
    return Measurement(max(counts.values()), {"passes": sum(counts.values()), "service_s": elapsed_s})
