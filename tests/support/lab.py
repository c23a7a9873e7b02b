"""Tables and views on a pipeline, for tests of what becomes of a change: the test registers, publishes, loses, builds.

Everything is by hour, as in `tests.support.pipeline`.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from floodmark.contracts.topics import SEGMENTS, Topic
from floodmark.core.buckets import DataFile, Entry, State
from floodmark.core.ports import SystemClock
from floodmark.core.registry import Command, Put, Remove
from floodmark.core.segments import Segment
from floodmark.core.transitions import Build, Changed, Mode
from floodmark.ledger.registry import WindowSource
from floodmark_ingester.outbox import Outbox
from tests.support.eventually import eventually
from tests.support.kafka_tools import committed, ends
from tests.support.ledger_kit import HOUR_MS, segment
from tests.support.pipeline import Pipeline


@dataclass
class Lab:
    pipeline: Pipeline

    # -- the ingester, played by the test --------------------------------------------------------------------------

    def change(self, table: str, *commands: Segment | str | Command) -> None:
        """Register these changes, a segment to put or a name to remove, and publish their event."""
        self.register(table, *commands)
        self.publish(table)

    def register(self, table: str, *commands: Segment | str | Command) -> None:
        """Register without publishing: the event stays in the outbox."""
        self.pipeline.ledger.registry.apply(table, [_command(c) for c in commands])

    def publish(self, table: str) -> None:
        Outbox(self.pipeline.ledger, self.pipeline.publisher).publish(table)

    def lose(self, table: str, *commands: Segment | str | Command) -> None:
        """Register these changes; their event counts as published and reaches nobody."""
        self.register(table, *commands)
        for event in self.pipeline.ledger.registry.outbox(table):
            self.pipeline.ledger.registry.acknowledge(table, event)

    # -- the worker, played by the test ----------------------------------------------------------------------------

    def built_view(self, view: str, hours: Iterable[int], *, table: str | None = None, **changed: str) -> None:
        """A view of a new table of the same name, or of this one, with these hours VALID. A table that is new has one
        segment, `sH`, for each even hour H of them, so odd hours are VALID-empty."""
        listed = list(hours)
        if table is None:
            self.pipeline.table(view)
            evens = [segment(f"s{h}", h, h + 1) for h in listed if h % 2 == 0]
            # Without a last hour that has data an append past it would be refused.
            self.lose(view, *evens, *([] if listed[-1] % 2 == 0 else [segment("end", listed[-1] + 1, listed[-1] + 2)]))
        self.pipeline.view(view, table or view, **changed)
        self.build(view, *listed)

    def build(self, view: str, *hours: int) -> None:
        """Make these hours VALID from their live source."""
        header = self.pipeline.ledger.views.header(view)
        grid, entries = header.definition.grid, self.pipeline.entries(view)
        windows = [grid.window(hour * HOUR_MS) for hour in hours]
        sources = self.pipeline.ledger.registry.read_windows(header.definition.table, windows)
        builds = [
            _build(read, entries.get(hour), header.definition.hash) for hour, read in zip(hours, sources, strict=True)
        ]
        outcome = self.pipeline.ledger.views.commit(view, header.incarnation, builds)
        assert all(isinstance(d, Changed) for d in outcome.result.values()), outcome

    # -- looking ---------------------------------------------------------------------------------------------------

    def stale(self, view: str) -> set[int]:
        return {hour for hour, state in self.pipeline.states(view).items() if state == "STALE"}

    def await_stale(self, view: str, hours: Iterable[int], *, within_s: float = 60) -> dict[int, Entry]:
        """Wait until exactly these hours are STALE. Returns the entries."""
        expected = set(hours)
        eventually(lambda: self.stale(view) == expected, within_s=within_s, what=f"{view}: STALE exactly {expected}")
        return self.pipeline.entries(view)

    def positions(self, service: str = "consistency", topic: Topic = SEGMENTS) -> dict[int, int]:
        """What this service has committed of what it consumes, by partition."""
        namespace = self.pipeline.namespace
        return committed(self.pipeline.kafka, f"{namespace}.floodmark.{service}", f"{namespace}.{topic.name}")

    def ends(self, topic: Topic = SEGMENTS) -> dict[int, int]:
        """Where each partition that has records ends."""
        consumer = Consumer({"bootstrap.servers": self.pipeline.kafka.bootstrap, "group.id": uuid.uuid4().hex})
        name = f"{self.pipeline.namespace}.{topic.name}"
        found = {number: ends(consumer, TopicPartition(name, number))[1] for number in range(topic.partitions)}
        consumer.close()
        return {number: end for number, end in found.items() if end}

    def await_caught_up(self, *, within_s: float = 60) -> None:
        """Wait until everything published is committed: whatever was to be marked is marked."""
        # An event may be published twice, the second time at any moment: where the topic ends is asked each time.
        eventually(
            lambda: self.positions() == self.ends(), within_s=within_s, every_s=0.25, what="positions at the end"
        )

    def wrong(self, view: str) -> list[int]:
        """The oracle: hours that are VALID though their source is another one now."""
        header = self.pipeline.ledger.views.header(view)
        entries = {h: e for h, e in self.pipeline.entries(view).items() if e.state is State.VALID}
        windows = [header.definition.grid.window(h * HOUR_MS) for h in entries]
        sources = self.pipeline.ledger.registry.read_windows(header.definition.table, windows)
        pairs = zip(entries.items(), sources, strict=True)
        return [hour for (hour, entry), read in pairs if entry.fingerprint != read.source.fingerprint]


def _build(read: WindowSource, entry: Entry | None, definition_hash: str) -> Build:
    """What a worker makes of a bucket with this source and entry."""
    source, attempt_id = read.source, uuid.uuid4().hex
    has_files = not source.fingerprint.is_empty
    rebuild = Mode.OVERWRITE if has_files else Mode.DELETE
    return Build(
        start_ms=read.window.start_ms,
        mode=Mode.APPEND if entry is None else rebuild,
        attempt_id=attempt_id,
        fingerprint=source.fingerprint,
        slice_versions=source.slice_versions,
        definition_hash=definition_hash,
        built_at_ms=SystemClock().now_ms(),
        files=(DataFile(f"{attempt_id}.parquet", 1, 1),) if has_files else (),
    )


def _command(given: Segment | str | Command) -> Command:
    if isinstance(given, Segment):
        return Put(given, uuid.uuid4().hex)
    return Remove(given, uuid.uuid4().hex) if isinstance(given, str) else given
