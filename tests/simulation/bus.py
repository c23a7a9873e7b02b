"""Kafka as one simulated process sees it: polls that wait, members that are expelled, messages sent twice."""

from collections.abc import Callable, Mapping, Sequence

from floodmark.bus.ports import CommitAnswer, Outgoing, Partition, Record
from floodmark.core.errors import OutcomeUnknown, Unavailable
from tests.simulation.faults import Mishaps
from tests.simulation.hub import Life, Task
from tests.support.memory_bus import MemoryBus, MemoryPublisher, MemorySource

POLL_MS, POLL_AT_PEACE_MS = 600, 2_500
"""A poll that brings nothing may take this long though it was asked for less: it saves empty turns."""


class SimBus(MemoryBus):
    """Wakes whoever waits for records."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        super().__init__(topics)
        self.waiting: dict[Task, None] = {}
        self.poll_ms = POLL_MS

    def append(self, message: Outgoing) -> None:
        super().append(message)
        self.wake()

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for task in waiting:
            task.life.hub.wake(task)


class Link:
    """One process's way to the bus."""

    def __init__(self, life: Life, bus: SimBus, mishaps: Mishaps) -> None:
        self.life = life
        self.bus = bus
        self.mishaps = mishaps
        self.cut = False
        self.told_to_stop: Callable[[], None] = lambda: None
        self.sources: list[SimSource] = []

    def source(self, group: str) -> "SimSource":
        made = SimSource(self, group)
        self.sources.append(made)
        return made

    def publisher(self) -> "SimPublisher":
        return SimPublisher(self)

    def expel(self) -> None:
        for source in self.sources:
            source.expel()
        self.bus.wake()


class SimSource(MemorySource):
    reachable = True

    def __init__(self, link: Link, group: str) -> None:
        super().__init__(link.bus, group)
        self._link = link
        self._hub = link.life.hub

    def poll(self, *, records_max: int, timeout_ms: int) -> Sequence[Record]:
        hub, bus = self._hub, self._link.bus
        task = hub.running
        records = self._look(records_max)
        if not records:
            bus.waiting[task] = None
            hub.wait(hub.randomness.randint(timeout_ms or 1, max(timeout_ms, bus.poll_ms)))
            bus.waiting.pop(task, None)
            records = self._look(records_max)
        if records:
            if self._link.mishaps.of_poll(self._link.life):
                self._link.told_to_stop()
            hub.sleep(hub.randomness.randint(1, 5))
        return records

    def _look(self, records_max: int) -> Sequence[Record]:
        return () if self._link.cut else super().poll(records_max=records_max, timeout_ms=0)

    def in_turn(self) -> list[tuple[Partition, int]]:
        """Across partitions there is no order."""
        turns = list(self.positions.items())
        if len(turns) > 1 and self._hub.randomness.random() < 0.5:
            turns.reverse()
        return turns

    def commit(self, positions: Mapping[Partition, int]) -> bool:
        _ = self._hub.running  # a dead process commits nothing
        if self._link.cut:
            raise Unavailable("no broker answers")
        return super().commit(positions)

    def begin_commit(self, positions: Mapping[Partition, int], answered: Callable[[CommitAnswer], None]) -> None:
        try:
            super().begin_commit(positions, answered)
        except Unavailable as error:
            answered(error)

    def close(self) -> None:
        super().close()
        self._link.bus.wake()


class SimPublisher(MemoryPublisher):
    def __init__(self, link: Link) -> None:
        super().__init__(link.bus)
        self._link = link

    def publish(self, messages: Sequence[Outgoing]) -> None:
        hub, link = self._link.life.hub, self._link
        hub.sleep(hub.latency_ms())
        if link.cut:
            raise Unavailable("no broker answers")
        outcome = link.mishaps.of_publish(link.life)
        if outcome == "away":
            raise Unavailable("nothing was sent")
        if outcome == "dies before":
            link.life.perish()
        sent = messages[: hub.randomness.randint(0, len(messages))] if outcome == "part" else messages
        if not outcome and link.mishaps.swallows(link.life, messages[0].topic):
            hub.note(link.life.instance, f"published {len(sent)} to {messages[0].topic}, and they were lost")
            for message in sent:
                link.bus.lose(message)
            return
        super().publish(sent)
        hub.note(link.life.instance, f"published {len(sent)} to {messages[0].topic}" if sent else "published nothing")
        if outcome == "dies after":
            link.life.perish()
        if outcome == "twice":
            super().publish(sent)
        hub.sleep(hub.latency_ms())
        if outcome in ("lost", "part"):
            raise OutcomeUnknown(f"no answer for {len(messages)} messages to {messages[0].topic}")
