"""A bus in memory with Kafka's semantics that matter: partitions, groups, positions, rebalances, lost topics.

It passes the same contract suite as the real one: tests/integration/test_bus_contract.py.

A partition goes from one member to another in the two steps of a cooperative rebalance: its owner gives it up inside a
poll of its own, where it may still commit, and only then does the next one get it. A member that was silent for too
long is expelled: its partitions go at once, and it hears that they are lost when it polls again.
"""

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from floodmark.bus.ports import CommitAnswer, Outgoing, Partition, RebalanceListener, Record


@dataclass
class Group:
    topics: list[str] = field(default_factory=list)
    members: list["MemorySource"] = field(default_factory=list)
    owners: dict[Partition, "MemorySource"] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    generation: int = 0
    """Counts what may move partitions: members that come, go or change places, and partitions given up."""

    def change_places(self) -> None:
        """Every member gets what another had."""
        self.members.reverse()
        self.generation += 1


class MemoryBus:
    def __init__(self, topics: Mapping[str, int]) -> None:
        self.logs: dict[Partition, list[Record]] = {
            Partition(topic, n): [] for topic, count in topics.items() for n in range(count)
        }
        self.groups: dict[str, Group] = {}
        self.committed: Callable[[str, Partition, int, int], None] = lambda _group, _partition, _before, _after: None
        """Told of every position that moves: group, partition, from, to."""
        self.appended: Callable[[Record], None] = lambda _record: None
        """Told of every record, when it is durable."""

    def append(self, message: Outgoing) -> None:
        partitions = self.partitions(message.topic)
        at = partitions[zlib.crc32(message.key or b"") % len(partitions)]
        record = Record(at, len(self.logs[at]), message.key, message.value, message.headers)
        self.logs[at].append(record)
        self.appended(record)

    def lose(self, message: Outgoing) -> None:
        """Acknowledged, and gone with the broker that had it."""
        at = self.partitions(message.topic)[0]
        self.appended(Record(at, -1, message.key, message.value, message.headers))

    def partitions(self, topic: str) -> list[Partition]:
        return [p for p in self.logs if p.topic == topic]

    def delete_topic(self, topic: str) -> None:
        """Delete it and create it anew: its records go, and the positions of every group in it."""
        for partition in self.partitions(topic):
            self.logs[partition] = []
            for group in self.groups.values():
                group.committed.pop(partition, None)
                if owner := group.owners.get(partition):
                    owner.positions[partition] = 0
                    owner.begun_anew.add(partition)

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group())

    def source(self, group: str) -> "MemorySource":
        return MemorySource(self, group)


class MemorySource:
    """One member of a group. What it waits for is told by the return of nothing: it never blocks."""

    def __init__(self, bus: MemoryBus, group: str) -> None:
        self.bus = bus
        self.group_name = group
        self.group = bus.group(group)
        self.positions: dict[Partition, int] = {}
        self.paused: set[Partition] = set()
        self.begun_anew: set[Partition] = set()
        """Of these logs it has read nothing yet: what it commits, it read of the logs before them."""
        self.expelled = False
        self._seen_generation = -1
        self._listener: RebalanceListener | None = None
        self._answers: list[tuple[Callable[[CommitAnswer], None], CommitAnswer]] = []

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self._listener = listener
        self.group.topics = list(dict.fromkeys([*self.group.topics, *topics]))
        self.group.members.append(self)
        self.group.generation += 1

    # -- membership ------------------------------------------------------------------------------------------------

    def expel(self) -> None:
        """The group has not heard from this member for too long."""
        if self in self.group.members:
            self.group.members.remove(self)
            self._let_go()
            self.expelled = True

    def close(self) -> None:
        """Leave. The listener is told of the revoked partitions first."""
        if self in self.group.members:
            if self.positions and self._listener:
                self._listener.revoked(list(self.positions))
            self.group.members.remove(self)
            self._let_go()
        self.positions.clear()

    def _let_go(self) -> None:
        self.group.generation += 1
        for partition in [p for p, owner in self.group.owners.items() if owner is self]:
            del self.group.owners[partition]

    def _wanted(self) -> set[Partition]:
        """The partitions that are to be this member's, spread evenly in the order of joining."""
        members = self.group.members
        every = [p for topic in self.group.topics for p in self.bus.partitions(topic)]
        return {p for n, p in enumerate(every) if members[n % len(members)] is self}

    def rebalance(self) -> None:
        """What a poll does first: hear of what is lost, give up what is to go, take what is free."""
        assert self._listener is not None, "polled before it subscribed"
        if self.expelled:
            lost, self.expelled = list(self.positions), False
            self.positions.clear()
            if lost:
                self._listener.lost(lost)
            self.group.members.append(self)
            self.group.generation += 1
        if self._seen_generation == self.group.generation:
            return
        wanted, owners = self._wanted(), self.group.owners
        if going := [p for p in self.positions if p not in wanted]:
            self._listener.revoked(going)
            for partition in going:
                del self.positions[partition], owners[partition]
            self.group.generation += 1
        self._seen_generation = self.group.generation
        if coming := [p for p in sorted(wanted) if p not in owners]:
            for partition in coming:
                owners[partition] = self
                self.positions[partition] = self._start(partition)
                self.paused.discard(partition)
                self.begun_anew.discard(partition)
            self._listener.assigned(coming)

    def _start(self, partition: Partition) -> int:
        """Where whoever gets a partition begins: at the start, if the position is past the end of a log begun anew."""
        committed = self.group.committed.get(partition, 0)
        return committed if committed <= len(self.bus.logs[partition]) else 0

    # -- records and positions -------------------------------------------------------------------------------------

    def poll(self, *, records_max: int, timeout_ms: int) -> Sequence[Record]:
        del timeout_ms
        answers, self._answers = self._answers, []
        for answered, answer in answers:
            answered(answer)
        self.rebalance()
        records: list[Record] = []
        for partition, position in self.in_turn():
            if partition not in self.paused and position < len(self.bus.logs[partition]):
                fresh = self.bus.logs[partition][position : position + records_max - len(records)]
                self.positions[partition] += len(fresh)
                self.begun_anew.discard(partition)
                records += fresh
        return records

    def in_turn(self) -> list[tuple[Partition, int]]:
        return list(self.positions.items())

    def pause(self, partitions: Collection[Partition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Collection[Partition]) -> None:
        self.paused -= set(partitions)

    def commit(self, positions: Mapping[Partition, int]) -> bool:
        if any(self.group.owners.get(p) is not self for p in positions):
            return False
        for partition, position in positions.items():
            before = self.group.committed.get(partition, 0)
            self.group.committed[partition] = position
            # A position of a log that is gone is taken for one of the new log, by Kafka too; its reader cannot know. If
            # the reader ends right then, records of the new log are lost with the topic, which is for the sweep.
            if self._start(partition) and partition not in self.begun_anew:
                self.bus.committed(self.group_name, partition, before, position)
        return True

    def begin_commit(self, positions: Mapping[Partition, int], answered: Callable[[CommitAnswer], None]) -> None:
        self._answers.append((answered, self.commit(positions)))


class MemoryPublisher:
    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus

    def publish(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self.bus.append(message)

    def close(self) -> None: ...
