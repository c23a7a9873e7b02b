"""What a burst of events costs on its way to STALE marks, against reading the same records and doing nothing with them.

One real Kafka, one real ZooKeeper, and the service's own parts in this process: the pump on the topic, the marker, the
ledger. 10,000 events on the 50 buckets of each of 10 views. Both sides are timed from their first record, when the
client has fetched and both take it alone: the consumer to its last one; the service until it has heard the last one,
and then from the beginning of the marks until the last is in the ledger.

What lies between is left out: the quiet period, in which the service waits on purpose for more of the burst and does
nothing, and the rest of the poll that it ends in. It is latency, not work, and depends on a setting (`quiet_ms`). The
whole time, with it, is `wall_s` in the detail of each figure.
"""

import random
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import Consumer

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher, KafkaSource, ensure_topics
from floodmark.bus.ports import Outgoing, Partition, Record
from floodmark.bus.pump import Pump, PumpLimits
from floodmark.contracts.changes import Changes
from floodmark.contracts.envelope import encode, originate
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
from floodmark.service.runner import freeze_memory
from floodmark.service.wiring import decode_changes
from floodmark_consistency.config import ConsistencySection
from floodmark_consistency.index import read_index
from floodmark_consistency.marker import Marker
from floodmark_consistency.marking import mark_view
from tests.bench.harness.figures import AtLeast, AtMost, Measurement, Run, figure, interleaved_ratio
from tests.bench.harness.servers import keep_quiet
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, zookeeper_store

EVENTS, BUCKETS, VIEWS = 10_000, 50, 10
OWN = ConsistencySection()


class TimedSource(KafkaSource):
    """Takes the first record alone, as the bare consumer does, and starts the clock when it has it."""

    started_s = 0.0
    heard = 0

    def poll(self, *, records_max: int, timeout_ms: int) -> Sequence[Record]:
        records = super().poll(records_max=records_max if self.heard else 1, timeout_ms=timeout_ms)
        if records and not self.heard:
            self.started_s = time.perf_counter()
        self.heard += len(records)
        return records


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the ledger, for one view."""

    view: str
    begun_s: float
    ended_s: float


@dataclass(slots=True)
class Burst:
    """How one burst went through the service."""

    started_s: float = 0.0
    heard_s: float = 0.0
    finished: int = 0
    passes: list[Pass] = field(default_factory=list)

    def note(self, _partition: Partition, outcome: str, count: int) -> None:
        assert outcome == "finished", outcome
        self.finished += count

    @property
    def reading_s(self) -> float:
        return self.heard_s - self.started_s

    @property
    def marking_s(self) -> float:
        """The last event's marks; those of earlier ones, if any, fell into the reading."""
        return max(p.ended_s for p in self.passes) - min(p.begun_s for p in self.passes if p.begun_s >= self.heard_s)

    @property
    def wall_s(self) -> float:
        return max(p.ended_s for p in self.passes) - self.started_s


@dataclass
class Bench:
    kafka: KafkaServer
    ledger: Ledger
    connection: KafkaConnection
    pool: ThreadPoolExecutor
    bursts: list[Burst] = field(default_factory=list)

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
        self.bursts.append(burst := Burst())
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
        source = TimedSource(
            self.connection, group=uuid.uuid4().hex, session_timeout_ms=10_000, poll_interval_max_ms=300_000
        )
        pump: Pump[Changes] = Pump(
            source=source,
            topics=[SEGMENTS.name],
            decode=decode_changes,
            sink=marker,
            dead_letters=NoDeadLetters(),
            clock=clock,
            randomness=randomness,
            limits=PumpLimits(in_flight_max=OWN.events_in_flight_max, span_max=2 * OWN.events_in_flight_max),
            on_outcome=burst.note,
        )
        while marker._index is None:  # started, as the client is when it has its first record
            marker.step()
        while burst.finished < EVENTS:
            pump.step()
            if source.heard == EVENTS and not burst.heard_s:
                burst.started_s, burst.heard_s = source.started_s, time.perf_counter()
            marker.step()
        source.close()
        assert not [n for n in range(VIEWS) if self._valid_buckets(f"view_{n}")], "a change was not marked"
        return burst.reading_s + burst.marking_s

    def _mark(self, view: str, batch: Batch) -> None:
        begun_s = time.perf_counter()
        mark_view(self.ledger, view, batch)
        self.bursts[-1].passes.append(Pass(view, begun_s, time.perf_counter()))

    def detail(self) -> dict[str, float]:
        """Medians over the bursts since this was last asked for."""
        bursts, self.bursts = self.bursts, []
        names = ("wall_s", "reading_s", "marking_s")
        return {name: statistics.median(getattr(burst, name) for burst in bursts) for name in names}

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
    keep_quiet()
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
        freeze_memory()  # as every service does when it has started
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
    ratio = interleaved_ratio(bench.bare_s, bench.service_s, blocks=1, names=("bare_s", "service_s"))
    return replace(ratio, detail={**ratio.detail, **bench.detail()})


@figure(name="passes over the ledger for the burst, for each view", goal=AtMost(5), unit="passes", runs=3)
def marks(run: Run) -> Measurement:
    """The most that any view needed."""
    bench: Bench = run.resources
    bench.service_s()
    counts = Counter(p.view for p in bench.bursts[-1].passes)
    assert len(counts) == VIEWS, f"only {sorted(counts)} were marked"
    return Measurement(max(counts.values()), {"passes": counts.total(), **bench.detail()})
