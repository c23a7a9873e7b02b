"""The pump on a real broker: what is committed, what survives a kill, and who stays in the group."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher, KafkaSource
from floodmark.bus.ports import Outgoing, Record
from floodmark.bus.pump import ConcurrentSink, Pump, PumpLimits
from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.ports import SystemClock
from floodmark.local.kafka import KafkaServer
from tests.support.bus_doubles import KeepingDeadLetters, KeepingSink
from tests.support.eventually import eventually
from tests.support.kafka_tools import committed, new_topic, produce, read_all
from tests.support.proxy import KafkaProxy

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]


def new_pump(
    kafka: KafkaServer, topic: str, group: str, sink: object, *, poll_interval_max_ms: int = 60_000, at: str = ""
) -> Pump[Record]:
    return Pump(
        source=KafkaSource(
            KafkaConnection(at or kafka.bootstrap, "test"),
            group=group,
            session_timeout_ms=6_000,
            poll_interval_max_ms=poll_interval_max_ms,
            made_anew_after_s=10,
        ),
        topics=[topic],
        decode=lambda record: record,
        sink=sink,  # type: ignore[arg-type]
        dead_letters=KeepingDeadLetters(),
        clock=SystemClock(),
        randomness=random.Random(0),
        limits=PumpLimits(in_flight_max=8, commit_every_ms=0),
    )


@contextmanager
def running(pump: Pump[Record]) -> Iterator[None]:
    """The pump stepped by a thread of its own, as the service runner does."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            pump.step()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        pump.drain(deadline_ms=0)
        pump._source.close()


@pytest.mark.scenario("K2")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_position_kafka_knows_is_the_lowest_outstanding_offset(kafka: KafkaServer, seed: int) -> None:
    """Offsets 0 to 11, eight in flight, 5 failing, any finishing order: committed position exactly 5 (INV-8)."""
    topic, group = new_topic(kafka), uuid.uuid4().hex
    produce(kafka, topic, (str(n).encode() for n in range(12)))
    sink = KeepingSink()
    pump = new_pump(kafka, topic, group, sink)
    order = random.Random(seed)
    with running(pump):
        finished: set[int] = set()
        while len(finished) < 11:
            waiting = eventually(
                lambda: {d.record.offset for d in list(sink.deliveries)} - finished - {5}, what="a record in flight"
            )
            assert len(waiting) <= 8
            offset = order.choice(sorted(waiting))
            sink.at(offset).finish()
            finished.add(offset)
        sink.at(5).retry(Unavailable("it always fails"))
        eventually(lambda: pump.in_flight == 1, what="everything but 5 settled")
        eventually(lambda: committed(kafka, group, topic) == {0: 5}, what="position 5 committed")
    assert committed(kafka, group, topic) == {0: 5}


@pytest.mark.scenario("K8")
def test_a_job_of_three_poll_intervals_keeps_its_member_in_the_group_and_runs_once(kafka: KafkaServer) -> None:
    """A full pump keeps polling: no rebalance takes its partition, nothing is processed twice."""
    topic, group = new_topic(kafka), uuid.uuid4().hex
    produce(kafka, topic, [b"long", b"short"])
    runs: list[int] = []
    released = threading.Event()

    def handle(record: Record) -> None:
        runs.append(record.offset)
        if record.offset == 0:
            released.wait(3 * 6.5)  # the job itself: three poll intervals long

    pump = new_pump(
        kafka,
        topic,
        group,
        ConcurrentSink(handle, ThreadPoolExecutor(2), lambda _: nullcontext()),
        poll_interval_max_ms=6_500,
    )
    with running(pump):
        eventually(lambda: runs, what="the long job running")
        with running(new_pump(kafka, topic, group, sink := KeepingSink())):
            eventually(
                lambda: committed(kafka, group, topic) == {0: 2} or sink.deliveries, within_s=60, what="both done"
            )
            released.set()
    took = runs + [d.record.offset for d in sink.deliveries]
    assert sorted(took) == [0, 1], f"each record once, got {took}"


def test_a_consumer_killed_in_the_middle_loses_no_effect(kafka: KafkaServer, tmp_path: Path) -> None:
    """kill -9 with records in flight, five times over: every record's effect happened, and none was skipped (INV-8)."""
    topic, group = new_topic(kafka, partitions=3), uuid.uuid4().hex
    values = [f"v{n}" for n in range(300)]
    produce(kafka, topic, (value.encode() for value in values))
    effects = tmp_path / "effects"
    effects.touch()
    command = [
        sys.executable,
        "-m",
        "tests.integration.consumer_process",
        kafka.bootstrap,
        group,
        topic,
        str(effects),
        "20",
    ]

    def done() -> set[str]:
        return {line.split()[1] for line in effects.read_text().splitlines()}

    for goal in itertools.count(50, 50):
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            eventually(lambda: len(done()) >= min(goal, 300), within_s=120, what=f"{goal} effects")  # noqa: B023
            if goal >= 300:
                eventually(
                    lambda: sum(committed(kafka, group, topic).values()) == 300, within_s=60, what="all committed"
                )
                break
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        # What is committed never runs ahead of what happened.
        offsets = {tuple(line.split()[0].split("/")[1:]) for line in effects.read_text().splitlines()}
        for partition, position in committed(kafka, group, topic).items():
            missing = [n for n in range(position) if (str(partition), str(n)) not in offsets]
            assert not missing, f"partition {partition} is committed to {position} without effects of {missing}"
    assert done() == set(values)


def test_work_of_a_revoked_partition_is_done_again_by_its_new_owner(kafka: KafkaServer) -> None:
    """A second member takes partitions over while their records are in flight; late results commit nothing."""
    topic, group = new_topic(kafka, partitions=2), uuid.uuid4().hex
    first_sink, second_sink = KeepingSink(), KeepingSink()
    produce(kafka, topic, (str(n).encode() for n in range(8)))
    first = new_pump(kafka, topic, group, first_sink)
    with running(first):
        eventually(lambda: len(first_sink.deliveries) == 8, what="all eight with the first member")
        second = new_pump(kafka, topic, group, second_sink)
        with running(second):
            eventually(lambda: second_sink.deliveries, what="some records again with the second member")
            moved = {d.record.partition for d in second_sink.deliveries}
            for delivery in first_sink.deliveries:
                delivery.finish()
            kept = {d.record.partition for d in first_sink.deliveries} - moved
            eventually(
                lambda: all(p.number in committed(kafka, group, topic) for p in kept),
                what="the kept partition committed",
            )
            assert all(p.number not in committed(kafka, group, topic) for p in moved)
            for delivery in list(second_sink.deliveries):
                delivery.finish()
            eventually(lambda: sum(committed(kafka, group, topic).values()) == 8, what="all committed")


def test_a_kafka_that_had_no_brokers_for_a_while_is_found_again(kafka: KafkaServer) -> None:
    """As it has none while it starts. librdkafka may then know nobody to ask, and never ask again (its issue 5301)."""
    topic, group, sink = new_topic(kafka), uuid.uuid4().hex, KeepingSink()
    produce(kafka, topic, [b"before"])
    with (
        capture_logs() as logs,
        KafkaProxy(kafka.port) as proxy,
        running(new_pump(kafka, topic, group, sink, at=proxy.address)),
    ):
        eventually(lambda: sink.deliveries, within_s=60, what="the first record")
        proxy.knows_no_brokers = True
        proxy.cut()
        proxy.heal()
        eventually(
            lambda: proxy.alone_s > 3 or any(line["event"] == "kafka_client_made_anew" for line in logs),
            within_s=120,
            what="a client that has nobody to ask, or its successor",
        )
        proxy.knows_no_brokers = False
        produce(kafka, topic, [b"after"])
        eventually(lambda: sink.deliveries[-1].record.value == b"after", within_s=60, what="the next record")
        for delivery in sink.deliveries:
            delivery.finish()
        eventually(lambda: committed(kafka, group, topic) == {0: 2}, what="both committed")


def test_a_client_that_does_not_get_away_does_not_hold_up_whoever_closes_it(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To leave takes an answer from Kafka. It is awaited on a thread that ends with the process."""
    monkeypatch.setattr("floodmark.bus.kafka.LEFT_WITHIN_S", 0.1)
    source, _ = member(kafka)
    consumer, answered = source._consumer, threading.Event()
    source._consumer = Mock(wraps=consumer, close=answered.wait)
    with capture_logs() as logs:
        source.close()
    assert [line["event"] for line in logs] == ["kafka_group_not_left"]
    assert [t.daemon for t in threading.enumerate() if t.name == "kafka-leaving"] == [True]
    answered.set()
    consumer.close()


def test_a_listener_is_told_of_what_goes_before_its_client_is_closed(kafka: KafkaServer) -> None:
    """One that is told while the client is closing may wait for ever, and every other thread with it."""
    source, listening = member(kafka)
    consumer = source._consumer
    listening.closing = Mock(side_effect=consumer.close)
    source._consumer = Mock(wraps=consumer, close=listening.closing)
    source.close()
    assert [name for name, *_ in listening.method_calls] == ["assigned", "revoked", "closing"]


def test_what_a_listener_raises_while_its_source_closes_is_raised_by_close(kafka: KafkaServer) -> None:
    """And the client is closed all the same."""
    source, listening = member(kafka)
    listening.revoked.side_effect = RuntimeError("in the middle")
    with pytest.raises(RuntimeError, match="in the middle"):
        source.close()
    with pytest.raises(RuntimeError, match="closed"):
        source.poll(records_max=1, timeout_ms=0)


def member(kafka: KafkaServer) -> tuple[KafkaSource, Mock]:
    """Of a group of its own, with a partition, and whoever is told of it."""
    connection = KafkaConnection(kafka.bootstrap, "test")
    source = KafkaSource(connection, group=uuid.uuid4().hex, session_timeout_ms=6_000, poll_interval_max_ms=6_000)
    listening = Mock()
    source.subscribe([new_topic(kafka)], listening)
    eventually(lambda: source.poll(records_max=1, timeout_ms=50) is not None and listening.assigned.called)
    return source, listening


def test_a_producer_that_reached_nobody_gives_way_to_another(kafka: KafkaServer) -> None:
    """What it was given meanwhile is told to be unknown; what comes next arrives."""
    topic = new_topic(kafka)
    with KafkaProxy(kafka.port) as proxy, capture_logs() as logs:
        publisher = KafkaPublisher(KafkaConnection(proxy.address, "test"), delivery_timeout_ms=2_000)
        publisher.publish([Outgoing(topic, None, b"before")])
        proxy.cut()
        with pytest.raises(OutcomeUnknown, match="timed out"):
            publisher.publish([Outgoing(topic, None, b"lost")])
        proxy.heal()
        publisher.publish([Outgoing(topic, None, b"after")])
    assert [value for value, _ in read_all(kafka, topic)] == [b"before", b"after"]
    assert [line["event"] for line in logs] == ["kafka_client_made_anew"]


def test_publishing_to_a_topic_that_is_not_there_says_so(kafka: KafkaServer) -> None:
    """Delivery is confirmed before anything depends on it; what was not delivered is an error."""
    publisher = KafkaPublisher(KafkaConnection(kafka.bootstrap, "test"), delivery_timeout_ms=2_000)
    with pytest.raises((Unavailable, OutcomeUnknown), match="no-such-topic"):
        publisher.publish([Outgoing("no-such-topic", None, b"x")])


def test_a_message_the_bus_will_never_take_is_invalid_input(kafka: KafkaServer) -> None:
    """Too large: sending it again would fail for ever."""
    publisher = KafkaPublisher(KafkaConnection(kafka.bootstrap, "test"))
    with pytest.raises(InvalidInput, match="bus-refuses"):
        publisher.publish([Outgoing(new_topic(kafka), None, os.urandom(9_000_000))])
