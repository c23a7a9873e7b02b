"""Doubles for the bus that a unit test drives by hand: a scripted source, a sink that keeps, a clock that stands."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from floodmark.bus.delivery import Delivery
from floodmark.bus.ports import CommitAnswer, Partition, RebalanceListener, Record
from floodmark.core.errors import InvalidInput, Unavailable


@dataclass
class FrozenClock:
    """Time moves when the test says so."""

    ms: int = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.ms += duration_ms


@dataclass
class ScriptedSource:
    """A log with records appended by the test; rebalances happen inside `poll`, as with Kafka."""

    clock: FrozenClock
    log: dict[Partition, list[Record]] = field(default_factory=lambda: defaultdict(list))
    read: dict[Partition, int] = field(default_factory=dict)
    paused: set[Partition] = field(default_factory=set)
    committed: dict[Partition, int] = field(default_factory=dict)
    commits: list[dict[Partition, int]] = field(default_factory=list)
    polls: int = 0
    unreachable: bool = False
    during_poll: list[Callable[[], None]] = field(default_factory=list)
    listener: RebalanceListener | None = None

    def append(
        self, partition: Partition, count: int = 1, value: bytes | None = b"ok", first: int | None = None
    ) -> None:
        start = len(self.log[partition]) if first is None else first
        self.log[partition] += [Record(partition, start + n, None, value) for n in range(count)]

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self.listener = listener

    def assign(self, *partitions: Partition) -> None:
        for partition in partitions:
            self.read[partition] = self.committed.get(partition, 0)
            self.paused.discard(partition)
        assert self.listener
        self.listener.assigned(partitions)

    def revoke(self, *partitions: Partition) -> None:
        assert self.listener
        self.listener.revoked(partitions)
        for partition in partitions:
            self.read.pop(partition)

    def lose(self, *partitions: Partition) -> None:
        assert self.listener
        self.listener.lost(partitions)
        for partition in partitions:
            self.read.pop(partition)

    def poll(self, *, records_max: int, timeout_ms: int) -> list[Record]:
        self.polls += 1
        self.clock.ms += timeout_ms
        while self.during_poll:
            self.during_poll.pop(0)()
        records: list[Record] = []
        for partition, at in self.read.items():
            if partition in self.paused:
                continue
            fresh = self.log[partition][at : at + records_max - len(records)]
            self.read[partition] += len(fresh)
            records += fresh
        return records

    def pause(self, partitions: Collection[Partition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Collection[Partition]) -> None:
        self.paused -= set(partitions)

    def commit(self, positions: Mapping[Partition, int]) -> bool:
        if self.unreachable:
            raise Unavailable("the bus is away")
        self.commits.append(dict(positions))
        self.committed |= positions
        return True

    def begin_commit(self, positions: Mapping[Partition, int], answered: Callable[[CommitAnswer], None]) -> None:
        try:
            answered(self.commit(positions))
        except Unavailable as error:
            answered(error)

    def close(self) -> None: ...


@dataclass
class KeepingSink:
    """Keeps every delivery until the test decides its outcome."""

    deliveries: list[Delivery[bytes]] = field(default_factory=list)

    def offer(self, deliveries: Sequence[Delivery[bytes]]) -> None:
        self.deliveries += deliveries

    def at(self, offset: int) -> Delivery[bytes]:
        return next(d for d in reversed(self.deliveries) if d.record.offset == offset)


@dataclass
class KeepingDeadLetters:
    buried: list[tuple[Record, InvalidInput]] = field(default_factory=list)
    unreachable: bool = False
    tries: int = 0

    def put(self, record: Record, error: InvalidInput) -> None:
        self.tries += 1
        if self.unreachable:
            raise Unavailable("dead letters cannot be written")
        self.buried.append((record, error))
