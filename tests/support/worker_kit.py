"""A worker's batches on a ledger in memory: files and Spark are played, everything between them is real."""

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from floodmark.bus.delivery import Assignment, Delivery
from floodmark.bus.ports import Outgoing, Partition, Record
from floodmark.contracts.envelope import Envelope, decode, originate
from floodmark.contracts.messages import BucketBuilt, BuildBucket, SourceFingerprint
from floodmark.contracts.topics import RESULTS
from floodmark.core.buckets import DataFile
from floodmark.core.dispatch import Policy
from floodmark.core.errors import InvalidInput
from floodmark.core.scheduling import task_id
from floodmark.core.segments import Segment
from floodmark.core.tables import ViewHeader
from floodmark.core.transitions import Mode
from floodmark.ledger.dispatch import Offer
from floodmark.spark.materialization import Built
from floodmark_worker.builder import Tools, run
from floodmark_worker.claims import Claims
from floodmark_worker.inputs import Checked, Fault
from floodmark_worker.intake import Batch
from floodmark_worker.reporting import Reporter
from tests.support.ledger_kit import HOUR_MS, Kit


class NotedDelivery(Delivery[Envelope]):
    """Notes what became of it, the last word only."""

    __slots__ = ("outcome",)

    def finish(self) -> None:
        self.outcome: object = "finished"

    def refuse(self, error: InvalidInput) -> None:
        self.outcome = error

    def retry(self, error: Exception) -> None:  # type: ignore[override]
        self.outcome = error

    def crash(self, error: BaseException) -> None:
        raise error


@dataclass
class PlayedView:
    """The files of a table and the computation over them, both as the test says."""

    faults: dict[str, str] = field(default_factory=dict)
    faults_after: dict[str, str] = field(default_factory=dict)
    fails_with: Exception | None = None
    """What Spark says when it meets one of `faults_after`; None when it does not notice."""
    poison: set[int] = field(default_factory=set)
    during_build: Callable[[], None] = lambda: None
    built: list[list[int]] = field(default_factory=list)
    also_written: Mapping[int, tuple[DataFile, ...]] = field(default_factory=dict)
    """Further files that the build of a bucket writes, by hour."""
    read: dict[str, list[str]] = field(default_factory=dict)
    """The segments each attempt's file was computed from, by file name."""

    @property
    def inputs(self) -> "PlayedView":
        return self

    def of(self, header: ViewHeader) -> "PlayedView":
        return self

    def look(self, segments: Sequence[Segment]) -> Checked:
        bad = {s.name: Fault(s, self.faults[s.name], absent=True) for s in segments if s.name in self.faults}
        return Checked(bad, {s.name: "ok" for s in segments if s.name not in bad})

    def changed_since(self, segments: Sequence[Segment], before: Checked) -> dict[str, Fault]:
        return {s.name: Fault(s, self.faults_after[s.name]) for s in segments if s.name in self.faults_after}

    def build(self, segments: Sequence[Segment], attempts: Mapping[int, str], *, lane: str) -> Built:
        hours = sorted(start // HOUR_MS for start in attempts)
        self.built.append(hours)
        if self.poison & set(hours):
            raise ValueError(f"cannot compute {self.poison & set(hours)}")
        self.during_build()
        if self.fails_with is not None and not self.faults_after.keys().isdisjoint(s.name for s in segments):
            raise self.fails_with
        present = [s.name for s in segments if s.name not in self.faults]
        files = {}
        for start, attempt in attempts.items():
            files[start] = (DataFile(f"{start}/{attempt}-0.parquet", 1, 1),)
            self.read[files[start][0].name] = present
            files[start] += self.also_written.get(start // HOUR_MS, ())
        return Built(files, sum(s.rows for s in segments), len(files))


@dataclass
class Bench:
    """One worker, one view by the hour."""

    kit: Kit
    view: PlayedView = field(default_factory=PlayedView)
    stopping: bool = False
    sent: list[Outgoing] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offsets = 0
        self.tools = Tools(
            ledger=self.kit.ledger,
            claims=Claims(self.kit.ledger.dispatch, "w1"),
            views=self.view,  # type: ignore[arg-type]
            reporter=Reporter(self, self.kit.clock, CollectorRegistry()),
            clock=self.kit.clock,
            randomness=random.Random(5),
            instance="w1",
            policy=Policy(tries_max=2),
            hold_ttl_ms=60_000,
            batch_bytes_max=1 << 30,
            stopping=lambda: self.stopping,
            reached=self.steps.append,
        )

    def publish(self, messages: Sequence[Outgoing]) -> None:
        self.sent += messages

    def task(self, hour: int, mode: Mode) -> BuildBucket:
        header = self.kit.header
        start_ms = hour * HOUR_MS
        source = self.kit.ledger.registry.read_window("rides", header.definition.grid.window(start_ms)).source
        return BuildBucket(
            task_id=task_id(header.incarnation, start_ms, mode, source.fingerprint),
            view=header.definition.name,
            incarnation=header.incarnation,
            bucket_start_ms=start_ms,
            bucket_end_ms=start_ms + HOUR_MS,
            mode=mode.value,
            lane="live",
            fingerprint=SourceFingerprint(count=source.fingerprint.count, hash=source.fingerprint.hash),
            slice_versions=dict(source.slice_versions),
            definition_hash=header.definition.hash,
            dispatched_at_ms=0,
            dispatch_try=1,
        )

    def offer(self, *tasks: BuildBucket) -> None:
        """Record the tasks as a scheduler would."""
        offers = [Offer(t.bucket_start_ms, t.task_id, t.lane) for t in tasks]
        self.kit.ledger.dispatch.offer(self.kit.header, offers, alive={"s1", "w1"}, policy=Policy(), offered_by="s1")

    def deliver(self, task: BuildBucket, *, tries: int = 1) -> NotedDelivery:
        self.offsets += 1
        record = Record(Partition("tasks.v1", 0), self.offsets, None, b"")
        envelope = originate(task, event_id=uuid.uuid4().hex, source="test", time_ms=None)
        delivery = NotedDelivery(record, envelope, Assignment(record.partition), None)  # type: ignore[arg-type]
        delivery.tries = tries
        delivery.outcome = "nothing"
        return delivery

    def run(self, *deliveries: NotedDelivery) -> dict[int, object]:
        """Run them as one batch. What became of each, by hour."""
        tasks = [d.message.message for d in deliveries]
        by_start = {t.bucket_start_ms: d for t, d in zip(tasks, deliveries, strict=True)}  # type: ignore[union-attr]
        run(self.tools, Batch("rides_hourly", "live", by_start))  # type: ignore[arg-type]
        return {start // HOUR_MS: d.outcome for start, d in by_start.items()}

    def outcomes(self) -> dict[int, str]:
        """What was told on `results.v1`, by hour."""
        told = [decode(RESULTS.name, m.value, list(m.headers), "here").message for m in self.sent]
        return {b.bucket_start_ms // HOUR_MS: b.outcome for b in told if isinstance(b, BucketBuilt)}
