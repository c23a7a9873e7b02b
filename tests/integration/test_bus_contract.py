"""What every bus promises its pumps, held by the bus in memory, by the simulator's and by Kafka."""

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher, KafkaSource
from floodmark.bus.ports import CommitAnswer, Outgoing, Partition, Publisher, Record, Source
from tests.simulation.stepped import SteppedBus
from tests.support.eventually import eventually
from tests.support.kafka_tools import new_topic
from tests.support.memory_bus import MemoryBus, MemoryPublisher

PARTITIONS = 2
SESSION_MS = 6_000


@dataclass
class Listening:
    """Keeps what it is told; `on_revoked` acts at the last moment before partitions go."""

    held: set[Partition] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    on_revoked: Callable[[Collection[Partition]], object] = lambda _partitions: None

    def assigned(self, partitions: Collection[Partition]) -> None:
        self.held |= set(partitions)
        self.told.append("assigned")

    def revoked(self, partitions: Collection[Partition]) -> None:
        self.on_revoked(partitions)
        self.held -= set(partitions)
        self.told.append("revoked")

    def lost(self, partitions: Collection[Partition]) -> None:
        self.held -= set(partitions)
        self.told.append("lost")


@dataclass
class Bench:
    """One topic on one bus."""

    topic: str
    publisher: Publisher
    new_source: Callable[[str], Source]
    expel: Callable[[Source], None]
    sources: list[Source] = field(default_factory=list)
    group: str = field(default_factory=lambda: uuid.uuid4().hex)

    def join(self, listening: Listening | None = None) -> Source:
        source = self.new_source(self.group)
        source.subscribe([self.topic], listening or Listening())
        self.sources.append(source)
        return source

    def send(self, *values: str) -> None:
        """Each under a key of its own name."""
        self.publisher.publish([Outgoing(self.topic, v.encode(), v.encode()) for v in values])

    def close(self, source: Source) -> None:
        self.sources.remove(source)
        source.close()


def _on_kafka(request: pytest.FixtureRequest) -> Bench:
    kafka = request.getfixturevalue("kafka")
    connection = KafkaConnection(kafka.bootstrap, "test")

    def new_source(group: str) -> KafkaSource:
        return KafkaSource(connection, group=group, session_timeout_ms=SESSION_MS, poll_interval_max_ms=SESSION_MS)

    def expel(source: Source) -> None:
        """Silent for longer than it may be: the group goes on without it."""
        assert isinstance(source, KafkaSource)
        eventually(lambda: source._consumer.memberid() in ("", None), within_s=30, what="the silent member left")

    return Bench(new_topic(kafka, partitions=PARTITIONS), KafkaPublisher(connection), new_source, expel)


def _in_memory() -> Bench:
    bus = MemoryBus({"topic": PARTITIONS})
    return Bench("topic", MemoryPublisher(bus), bus.source, lambda source: source.expel())  # type: ignore[attr-defined]


def _simulated() -> Bench:
    bus = SteppedBus({"topic": PARTITIONS})
    return Bench(
        "topic", cast(Publisher, bus.publisher()), cast(Any, bus.source), lambda source: cast(Any, source).expel()
    )


@pytest.fixture(params=["memory", "simulated", pytest.param("kafka", marks=pytest.mark.stack)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    make: dict[str, Callable[[], Bench]] = {
        "memory": _in_memory,
        "simulated": _simulated,
        "kafka": lambda: _on_kafka(request),
    }
    made = make[request.param]()
    yield made
    for source in made.sources:
        source.close()


def poll(source: Source) -> Sequence[Record]:
    return source.poll(records_max=100, timeout_ms=50)


def taken(source: Source, count: int, others: Sequence[Source] = ()) -> list[Record]:
    """The next records, so many of them. Others of the group poll as well: a member that does not holds all up."""
    records: list[Record] = []

    def enough() -> bool:
        records.extend(poll(source))
        for other in others:
            poll(other)
        return len(records) >= count

    eventually(enough, within_s=60, what=f"{count} records")
    return records


def values(records: Sequence[Record]) -> list[str]:
    return sorted((r.value or b"").decode() for r in records)


def positions_after(records: Sequence[Record]) -> dict[Partition, int]:
    after: dict[Partition, int] = {}
    for record in records:
        after[record.partition] = max(after.get(record.partition, 0), record.offset + 1)
    return after


def test_records_of_a_partition_come_in_order_from_offset_0(bench: Bench) -> None:
    """What is sent under one key lies in one partition."""
    bench.publisher.publish([Outgoing(bench.topic, b"one key", str(n).encode()) for n in range(20)])
    records = taken(bench.join(), 20)
    assert len({r.partition for r in records}) == 1
    assert [r.offset for r in records] == list(range(20))
    assert [r.value for r in records] == [str(n).encode() for n in range(20)]


def test_keys_and_headers_come_as_they_were_sent(bench: Bench) -> None:
    """A record is bytes; nobody looks into them on the way."""
    bench.publisher.publish([Outgoing(bench.topic, b"k", b"v", (("h", b"1"),))])
    (record,) = taken(bench.join(), 1)
    assert (record.key, record.value, list(record.headers)) == (b"k", b"v", [("h", b"1")])


def test_the_next_member_begins_at_the_committed_positions(bench: Bench) -> None:
    """What was not committed comes again, what was does not (INV-8)."""
    bench.send("a", "b", "c", "d")
    source = bench.join()
    records = taken(source, 4)
    assert values(records) == ["a", "b", "c", "d"]
    kept = records[0]
    # All of the other partition, and what lies before `kept` in its own.
    positions = {**positions_after(records), kept.partition: kept.offset}
    assert source.commit(positions)
    bench.close(source)
    again = taken(bench.join(), sum(r.partition == kept.partition for r in records))
    assert {r.partition for r in again} == {kept.partition}
    assert again[0].offset == kept.offset


def test_without_a_commit_everything_comes_again(bench: Bench) -> None:
    """A member that dies has taken nothing from the group."""
    bench.send("a", "b")
    source = bench.join()
    taken(source, 2)
    bench.close(source)
    assert values(taken(bench.join(), 2)) == ["a", "b"]


def test_a_position_past_the_end_is_out_of_range_and_everything_comes_again(bench: Bench) -> None:
    """So it is when a topic was deleted and made anew between the reading of its records and their commit."""
    bench.send("a", "b")
    source = bench.join()
    records = taken(source, 2)
    assert source.commit({partition: position + 9 for partition, position in positions_after(records).items()})
    bench.close(source)
    assert values(taken(bench.join(), 2)) == ["a", "b"]


def test_a_commit_that_is_begun_is_answered_in_a_later_poll(bench: Bench) -> None:
    """And then it is durable."""
    bench.send("a", "b")
    source = bench.join()
    records = taken(source, 2)
    answers: list[CommitAnswer] = []
    source.begin_commit(positions_after(records), answers.append)
    eventually(lambda: poll(source) is not None and bool(answers), within_s=30, what="an answer")
    assert answers == [True]
    bench.close(source)
    bench.send("c")
    assert values(taken(bench.join(), 1)) == ["c"]


def test_a_paused_partition_brings_nothing_until_it_is_resumed(bench: Bench) -> None:
    """And a member that polls while all is paused stays in its group."""
    listening = Listening()
    source = bench.join(listening)
    eventually(lambda: poll(source) is not None and len(listening.held) == PARTITIONS, within_s=60, what="partitions")
    source.pause(listening.held)
    bench.send("a", "b")
    for _ in range(20):
        assert not poll(source)
    source.resume(listening.held)
    assert values(taken(source, 2)) == ["a", "b"]
    assert listening.told.count("revoked") == 0


def shared(bench: Bench, first: Listening) -> tuple[Source, Source, Listening]:
    """Two members, each with a partition."""
    one, other, second = bench.join(first), None, Listening()
    eventually(lambda: poll(one) is not None and len(first.held) == PARTITIONS, within_s=60, what="all partitions")
    other = bench.join(second)

    def settled() -> bool:
        poll(one)
        poll(other)
        return len(first.held) == len(second.held) == 1

    eventually(settled, within_s=60, what="one partition each")
    return one, other, second


def test_a_partition_goes_to_a_second_member_and_the_other_one_stays(bench: Bench) -> None:
    """Only what moves is revoked, inside a poll of its owner, before anyone else gets it."""
    first = Listening()
    _, _, second = shared(bench, first)
    assert first.held.isdisjoint(second.held)
    assert first.told.count("revoked") == 1
    assert "lost" not in first.told


def test_a_partition_that_went_while_it_was_paused_is_not_paused_when_it_comes_back(bench: Bench) -> None:
    """Whoever gets partitions begins anew with them; nobody is left who would resume this one."""
    first = Listening()
    one = bench.join(first)
    eventually(lambda: poll(one) is not None and len(first.held) == PARTITIONS, within_s=60, what="all partitions")
    one.pause(first.held)
    second = Listening()
    other = bench.join(second)
    eventually(lambda: (poll(one), poll(other)) and bool(second.held), within_s=60, what="a partition moved")
    (moved,) = second.held
    bench.close(other)
    eventually(lambda: poll(one) is not None and moved in first.held, within_s=60, what="the partition came back")
    bench.send(*"abcdefghijklmnop")
    eventually(lambda: moved in {r.partition for r in poll(one)}, within_s=60, what="a record of that partition")


def test_a_commit_at_the_last_moment_counts(bench: Bench) -> None:
    """Inside `revoked` the partitions are still ours."""
    bench.send(*"abcdefgh")
    first = Listening()
    one = bench.join(first)
    positions = positions_after(taken(one, 8))
    answers: list[Any] = []
    first.on_revoked = lambda partitions: answers.append(one.commit({p: positions[p] for p in partitions}))
    second = Listening()
    other = bench.join(second)
    more: list[Record] = []

    def moved() -> bool:
        poll(one)
        more.extend(poll(other))
        return bool(second.held)

    eventually(moved, within_s=60, what="a partition moved")
    for _ in range(20):
        more.extend(poll(other))
    assert answers == [True]
    assert not more, "what was committed at the last moment came again"


def test_a_member_that_was_silent_for_too_long_has_lost_its_partitions(bench: Bench) -> None:
    """Its commit changes nothing, and it hears of the loss when it polls again. What it gets then is not paused."""
    bench.send("a", "b")
    listening = Listening()
    source = bench.join(listening)
    records = taken(source, 2)
    source.pause(listening.held)
    bench.expel(source)
    assert source.commit(positions_after(records)) is False
    again = taken(source, 2)
    assert values(again) == ["a", "b"], "read again from the committed positions"
    assert "lost" in listening.told


def test_whoever_leaves_is_told_of_what_goes_and_the_others_get_it(bench: Bench) -> None:
    """An orderly end needs no session to run out."""
    first = Listening()
    one, other, second = shared(bench, first)
    bench.close(one)
    eventually(lambda: poll(other) is not None and len(second.held) == PARTITIONS, within_s=60, what="all partitions")
    assert first.held == set()
