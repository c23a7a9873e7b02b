"""Judges what is sent and what is let go: messages when they are durable, positions when they move (INV-8)."""

from floodmark.bus.ports import Partition, Record
from floodmark.contracts.messages import (
    BucketBuilt,
    BuildBucket,
    Message,
    RecordRefused,
    SegmentAnnounced,
    SegmentsChanged,
)
from floodmark.contracts.parsing import parse
from floodmark.contracts.topics import topic_named
from floodmark.core.buckets import State
from floodmark.core.tables import ViewStatus
from tests.simulation.hub import Violation
from tests.simulation.oracle import Oracle, View
from tests.simulation.plan import Plan
from tests.support.memory_bus import MemoryBus


class Messages:
    def __init__(self, oracle: Oracle, bus: MemoryBus, plan: Plan) -> None:
        self._oracle = oracle
        self._bus = bus
        self._plan = plan
        self._told: set[str] = set()
        """The tasks whose end was told."""
        self._refused: set[str] = set()
        """Where the records lay that are dead letters now."""
        self._since: dict[Record, int] = {}
        bus.appended = oracle.hub.judging(self.appended)
        bus.committed = oracle.hub.judging(self.committed)

    # -- sent ----------------------------------------------------------------------------------------------------------

    def appended(self, record: Record) -> None:
        self._since[record] = self._oracle.hub.now_ms
        message = self._parsed(record)
        if isinstance(message, SegmentsChanged):
            self._oracle.published.add(message.event_id)
            if message.registry_version > self._oracle.table.version:
                raise Violation("INV-7 an event before its change", f"event of version {message.registry_version}")
        elif isinstance(message, BucketBuilt):
            self._told.add(message.task_id)
            self._judge_result(message)
        elif isinstance(message, RecordRefused):
            self._judge_refusal(message)

    def _judge_result(self, told: BucketBuilt) -> None:
        view = self._oracle.views.get(told.view)
        if view is None or view.header.status is ViewStatus.DROPPING:
            return  # nobody can look it up any more
        entry = view.at(told.bucket_start_ms)
        if entry is not None and entry.attempt_id == told.attempt_id and told.outcome != "committed":
            raise Violation("3 an attempt denies its own commit", f"bucket {told.bucket_start_ms} is {told.outcome}")

    def _judge_refusal(self, told: RecordRefused) -> None:
        self._refused.add(f"{told.topic}/{told.partition}/{told.offset}")
        if told.topic != "announcements.v1":
            raise Violation("INV-10 work ended as a dead letter", f"{told.topic}: {told.reason}")

    def _parsed(self, record: Record) -> Message:
        return parse(topic_named(record.partition.topic), record.value, what=record)

    # -- let go --------------------------------------------------------------------------------------------------------

    def committed(self, group: str, partition: Partition, before: int, after: int) -> None:
        """This group will not read these records again: what they ask for must have happened."""
        for record in self._bus.logs[partition][before:after]:
            if record.place in self._refused:
                continue
            message = self._parsed(record)
            if isinstance(message, SegmentsChanged):
                self._judge_marked(message)
            elif isinstance(message, BuildBucket) and message.task_id not in self._told:
                raise Violation("INV-8 a task was let go", f"bucket {message.bucket_start_ms}, {record.place}")
            elif isinstance(message, SegmentAnnounced):
                self._judge_registered(record, message)

    def _judge_marked(self, event: SegmentsChanged) -> None:
        """The truth about what changed, not what the event says of it, decides what must be marked."""
        changed = self._oracle.changes.get(event.registry_version, [])
        for view in self._oracle.views.values():
            if view.header.status is ViewStatus.DROPPING:
                continue
            for start_ms in view.entries:
                window = view.header.definition.grid.window(start_ms)
                if any(interval.overlaps(window) for interval in changed):
                    self._judge_bucket(view, start_ms, event.registry_version)
            for start_ms in (s for interval in changed for s in view.header.definition.grid.starts_in(interval)):
                if start_ms not in view.entries and view.at(start_ms) is not None:
                    self._judge_bucket(view, start_ms, event.registry_version)

    def _judge_bucket(self, view: View, start_ms: int, version: int) -> None:
        entry, window = view.at(start_ms), view.header.definition.grid.window(start_ms)
        assert entry is not None
        number = view.header.definition.grid.shard_of(start_ms)
        built_at = view.built_at.get(start_ms, 0) if number in view.shards else view.settled_at.get(number, 0)
        old = entry.state is State.VALID and built_at < version
        if old and entry.fingerprint != self._oracle.source(window)[0]:
            name = view.header.definition.name
            raise Violation("INV-8 let go before its mark", f"bucket {start_ms} of {name} is VALID, change {version}")

    def _judge_registered(self, record: Record, told: SegmentAnnounced) -> None:
        """The file as it was when it was announced, or later, is registered; unless there is nothing to register."""
        disk, location = self._oracle.disk, self._oracle.table.definition.location
        if told.action == "delete" or self._plan.retention_ms is not None or (location, told.path) not in disk.files:
            return
        assert told.path is not None
        since_ms = self._since[record]
        puts = disk.puts[told.path]
        current = [crc for at_ms, crc in puts if at_ms <= since_ms][-1:]
        good = {*current, *(crc for at_ms, crc in puts if at_ms > since_ms)}
        registered = {s.crc for s in self._oracle.segments.values() if s.path == told.path}
        later = any(
            isinstance(m := self._parsed(r), SegmentAnnounced) and m.path in (told.path, None)
            for r in self._bus.logs[record.partition][record.offset + 1 :]
        )
        if not registered & good and not later:
            raise Violation("INV-8 an announcement was let go", f"{told.path} is not registered as it was announced")
