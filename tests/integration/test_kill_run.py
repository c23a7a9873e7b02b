"""Services die at random moments while files change; and one event in twenty is lost. Nothing is wrong afterwards.

FLOODMARK_KILLS says how many kills the first run has, FLOODMARK_SEED which ones. A few fit into every run of the tests;
200 take some minutes: `FLOODMARK_KILLS=200 pytest -s tests/integration/test_kill_run.py`.

Nothing here depends on how fast the machine is. To a sweep, as to a test, what is late looks like what is lost. So the
sweep is kept from judging until everything has come to rest: whatever is wrong then has certainly been lost.
"""

import json
import os
import random
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from floodmark.contracts.envelope import decode
from floodmark.contracts.messages import BuildBucket, Message, SegmentsChanged
from floodmark.contracts.topics import ANNOUNCEMENTS, SEGMENTS, TASKS, Topic
from floodmark.core.intervals import Interval
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from floodmark.service.stop import ExitCode
from tests.support.eventually import eventually
from tests.support.kafka_tools import ends
from tests.support.lab import Lab
from tests.support.ledger_kit import HOUR_MS, segment
from tests.support.pipeline import Pipeline, pipeline_on, write_parquet
from tests.support.service_process import ServiceUnderTest, service

pytestmark = [pytest.mark.stack, pytest.mark.timeout(3_600)]

# Taken out of the environment: the services would refuse to start with a setting they do not know.
KILLS = int(os.environ.pop("FLOODMARK_KILLS", "10"))
SEED = int(os.environ.pop("FLOODMARK_SEED", str(random.SystemRandom().getrandbits(32))))
SERVICES = ("ingester", "consistency", "scheduler")
TABLES, HOURS = ("rides", "stops"), 12
PATIENCE_S = 120
SWEEP_GRACE = "FLOODMARK_CONSISTENCY__SWEEP_GRACE_MS"
NEVER_MS, AT_ONCE_MS = "3600000", "1500"
SETTINGS = {
    "FLOODMARK_CONSISTENCY__SWEEP_EVERY_MS": "500",
    SWEEP_GRACE: NEVER_MS,
    "FLOODMARK_INGESTER__OUTBOX_EVERY_MS": "500",
    "FLOODMARK_SCHEDULER__UNCLAIMED_MAX_MS": "2000",
    # A restarted member takes its predecessor's place, instead of waiting six seconds for it to be declared dead.
    "FLOODMARK_KAFKA__OPTIONS": json.dumps({"group.instance.id": "the-only-one"}),
}


@dataclass
class Reader:
    """Reads the messages of a topic as they come, without a group."""

    pipeline: Pipeline
    topic: Topic

    def __post_init__(self) -> None:
        config = {"bootstrap.servers": self.pipeline.kafka.bootstrap, "group.id": uuid.uuid4().hex}
        # A question about the end waits behind the fetch that is out, which waits for records.
        self._consumer = Consumer({**config, "fetch.wait.max.ms": 10})
        name = f"{self.pipeline.namespace}.{self.topic.name}"
        self._places = [TopicPartition(name, number, 0) for number in range(self.topic.partitions)]
        self._consumer.assign(self._places)

    def read(self) -> list[tuple[int, int, Message]]:
        """What is there and was not read before: partition, offset, message."""
        found = []
        for place in self._places:
            end = ends(self._consumer, place)[1]
            while place.offset < end:
                record = self._consumer.poll(PATIENCE_S)
                assert record is not None, f"{self.topic.name} has records that do not come"
                assert record.error() is None, record.error()
                message = decode(self.topic.name, record.value(), None, "here").message
                number, offset = record.partition(), record.offset()
                assert number is not None
                assert offset is not None
                found.append((number, offset, message))
                self._places[number].offset = offset + 1
        return found

    def close(self) -> None:
        self._consumer.close()


@dataclass
class World:
    """Files that change, a worker that works, and the three services."""

    pipeline: Pipeline
    randomness: random.Random
    running: dict[str, ServiceUnderTest] = field(default_factory=dict)
    logs: list[ServiceUnderTest] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.lab = Lab(self.pipeline)
        self.locations = {table: self.pipeline.table(table) for table in TABLES}
        self.views = {f"{table}_{n}": table for table in TABLES for n in range(2)}
        for location in self.locations.values():
            for hour in range(HOURS):
                write_parquet(location / f"s{hour}.parquet", hour, hour + 1)
        for view, table in self.views.items():
            self.pipeline.view(view, table)
        for name in SERVICES:
            self.start(name)
        self.wait(lambda: all(s.events("service_started") for s in self.running.values()), "every service started")
        self.tasks = Reader(self.pipeline, TASKS)
        self.segments = Reader(self.pipeline, SEGMENTS)
        self.events: list[tuple[int, int, SegmentsChanged]] = []

    def close(self) -> None:
        self.tasks.close()
        self.segments.close()

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        self.running[name] = self.pipeline.start(name)
        self.logs.append(self.running[name])

    def stop(self, name: str) -> None:
        stopped = self.running.pop(name)
        stopped.process.kill()
        stopped.process.wait()
        self.counts[f"{name} killed"] += 1

    def kill(self, name: str) -> None:
        self.stop(name)
        self.check_nothing_is_lost()
        self.start(name)

    def supervise(self) -> None:
        """Start again what ended by itself: a machine that stands still for two seconds costs a ZooKeeper session."""
        for name, service_ in list(self.running.items()):
            code = service_.process.poll()
            if code is not None:
                assert code in (ExitCode.SESSION_LOST, ExitCode.UNAVAILABLE), f"{name} ended with {code}"
                self.counts[f"{name} ended with {code}"] += 1
                self.start(name)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def came_true() -> bool:
            self.supervise()
            return condition()

        eventually(came_true, within_s=PATIENCE_S, every_s=0.1, what=what)

    # -- life ------------------------------------------------------------------------------------------------------

    def live(self, for_s: float) -> None:
        """Let files change and work be done for a while."""
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            self.supervise()
            self.change()
            self.work()

    def change(self) -> None:
        """One file comes, goes or gets other rows; announced at once, or left to the scanner."""
        table = self.randomness.choice(TABLES)
        path = (
            self.locations[table] / f"{self.randomness.choice(['s', 'late'])}{self.randomness.randrange(HOURS)}.parquet"
        )
        hour = int(path.stem.lstrip("slate"))
        if path.exists() and self.randomness.random() < 0.2:
            path.unlink()
            action = "delete"
        else:
            write_parquet(path, hour, hour + 1, value=self.randomness.getrandbits(30))
            action = "replace"
        self.counts[action] += 1
        if self.randomness.random() < 0.5:
            self.pipeline.announce(table, path.name, action=action)

    def work(self) -> None:
        tasks = [message for _, _, message in self.tasks.read() if isinstance(message, BuildBucket)]
        self.counts["tasks"] += len(tasks)
        self.pipeline.work(tasks)

    def await_built(self) -> None:
        """Work until every view reaches the end of the data and nothing is STALE."""

        def built() -> bool:
            self.work()
            headers = [self.pipeline.ledger.views.header(view) for view in self.views]
            return all(h.watermark_ms == HOURS * HOUR_MS for h in headers) and not any(map(self.lab.stale, self.views))

        self.wait(built, "every view built")

    # -- what must hold --------------------------------------------------------------------------------------------

    def check_nothing_is_lost(self) -> None:
        """At any moment: a bucket that is VALID and wrong has an event that will come, or come again (INV-7, INV-8).

        SUBTLE: first the positions, so that what lies below them had its effect before the buckets are looked at. Then
        what is wrong, the outbox, the topic: that is the way an event goes, so one that is on the move is seen at least
        once.
        """
        positions = self.lab.positions()
        wrong = self.wrong()
        waiting = {table: self._ranges_in_outbox(table) for table in TABLES}
        self.events += [(p, o, m) for p, o, m in self.segments.read() if isinstance(m, SegmentsChanged)]
        for partition, offset, event in self.events:
            if offset >= positions.get(partition, 0):
                ranges = [r for c in event.changes for r in c.ranges or ()]
                waiting[event.table] += [Interval(r.start_ms, r.end_ms) for r in ranges]
        for view, hours in wrong.items():
            self.counts["wrong and waiting"] += len(hours)
            for hour in hours:
                window = Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS)
                known = any(window.overlaps(r) for r in waiting[self.views[view]])
                assert known, f"{view} hour {hour} is VALID and wrong, and no event will come; positions {positions}"

    def _ranges_in_outbox(self, table: str) -> list[Interval]:
        events = self.pipeline.ledger.registry.outbox(table)
        return [r for event in events for change in event.changes for r in change.ranges or ()]

    def await_heard(self) -> None:
        """Every file is registered as it is, every event published, and every offset committed."""

        def heard() -> bool:
            lab, outbox = self.lab, self.pipeline.ledger.registry.outbox
            for table, location in self.locations.items():
                there = {p.name: zlib.crc32(p.read_bytes()) for p in location.iterdir()}
                assert self._registered(table) == there, f"{table} is not registered as it is"
                assert not outbox(table), f"{table} has events in its outbox"
            for consumer, topic in (("ingester", ANNOUNCEMENTS), ("consistency", SEGMENTS)):
                at, end = lab.positions(consumer, topic), lab.ends(topic)
                assert at == end, f"the {consumer} is at {at} of {end}"
            return True

        self.wait(heard, "everything heard")

    def _registered(self, table: str) -> dict[str, int]:
        return {s.path: s.crc for s in self.pipeline.ledger.registry.snapshot(table).by_name.values()}

    def wrong(self) -> dict[str, list[int]]:
        return {view: hours for view in self.views if (hours := self.lab.wrong(view))}

    def repairs(self) -> list[str]:
        """What the sweep had to mark, in any process that ever ran."""
        return [e["view"] for log in self.logs for e in log.events("sweep_repaired")]

    def sweep(self) -> None:
        """Let the sweep judge, now that nothing can be late any more.

        Twice an event is lost on purpose and repaired. Between the two every view has been swept, so whatever else was
        wrong has been repaired as well.
        """
        self.stop("ingester")
        self.stop("scheduler")
        for table in TABLES:
            self.lab.publish(table)  # what the ingester may have left; there is nobody else to do it
        self.wait(lambda: self.lab.positions() == self.lab.ends(), "the last events heard")
        self.stop("consistency")
        self.pipeline.settings[SWEEP_GRACE] = AT_ONCE_MS
        self.lab.built_view("sentinel", range(2))
        self.start("consistency")
        for crc in (1, 2):
            self.lab.lose("sentinel", segment("late", 1, 2, crc=crc))
            self.wait(lambda crc=crc: self.repairs().count("sentinel") == crc, "the sentinel repaired")  # type: ignore[misc]
            self.lab.build("sentinel", 1)


@pytest.fixture
def world(tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer) -> Iterator[World]:
    with pipeline_on(tmp_path, zookeeper, kafka, **SETTINGS) as pipeline:
        made = World(pipeline, random.Random(SEED))
        yield made
        made.close()


def test_services_killed_at_random_moments_lose_no_change_and_the_sweep_has_nothing_to_do(world: World) -> None:
    """INV-7 and INV-8 by the events alone: each kill may fall between any two instructions of any service."""
    print(f"FLOODMARK_KILLS={KILLS} FLOODMARK_SEED={SEED}")  # noqa: T201 - a failing run must be repeatable
    world.await_built()
    for _ in range(KILLS):
        world.live(for_s=world.randomness.uniform(0, 3))
        world.kill(world.randomness.choice(SERVICES))
    world.await_heard()
    world.check_nothing_is_lost()
    world.wait(lambda: world.wrong() == {}, "nothing wrong")
    world.await_built()
    assert world.wrong() == {}
    world.sweep()
    print(json.dumps({**world.counts, "events": sum(world.lab.ends().values())}))  # noqa: T201
    assert world.repairs() == ["sentinel", "sentinel"]
    crashed = [e for log in world.logs for e in log.events("service_crashed")]
    assert crashed == []


@pytest.mark.scenario("C10")
def test_the_sweep_repairs_exactly_the_events_that_were_thrown_away(
    tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> None:
    """Each event is about a bucket of its own, so the buckets that were repaired name the events that were lost."""
    hours = range(400)
    command = ("tests.integration.lossy_consistency", str(SEED))
    with pipeline_on(tmp_path, zookeeper, kafka, FLOODMARK_CONSISTENCY__SWEEP_EVERY_MS="500") as pipeline:
        lab = Lab(pipeline)
        lab.built_view("lossy", hours)
        environ = {**pipeline.settings, SWEEP_GRACE: NEVER_MS, "FLOODMARK_KAFKA__NAMESPACE": pipeline.namespace}
        # A lost session would bring events back that were thrown away.
        environ["FLOODMARK_ZOOKEEPER__SESSION_TIMEOUT_MS"] = "20000"
        hosts, bootstrap = pipeline.hosts, kafka.bootstrap
        with service(command, tmp_path / "lossy.log", zookeeper=hosts, kafka=bootstrap, **environ) as lossy:
            lossy.await_event("partitions_assigned", within_s=PATIENCE_S)
            for hour in hours:
                lab.change("lossy", segment(f"late{hour}", hour, hour + 1))
            lab.await_caught_up(within_s=PATIENCE_S)
            lossy.terminate()
            assert lossy.exit_code(within_s=PATIENCE_S) == ExitCode.OK
        lost = {e["segments"][0] for e in lossy.events("event_thrown_away")}
        assert lost, f"seed {SEED} threw nothing away"
        assert {f"late{hour}" for hour in hours} - {f"late{hour}" for hour in lab.stale("lossy")} == lost
        sweeping = pipeline.start("consistency", **{SWEEP_GRACE: AT_ONCE_MS})
        entries = lab.await_stale("lossy", hours, within_s=PATIENCE_S)
        swept = {f"late{hour}" for hour, e in entries.items() if e.cause and e.cause.kind == "sweep"}
        assert swept == lost
        sweeping.await_event("sweep_repaired")  # told of after the mark
        total = f'floodmark_sweep_repairs_total{{view="lossy"}} {float(len(lost))}'
        eventually(lambda: total in sweeping.ask("/metrics")[1], what=f"{total} counted")
        assert sum(e["buckets"] for e in sweeping.events("sweep_repaired")) == len(lost)
