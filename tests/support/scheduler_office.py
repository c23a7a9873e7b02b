"""A scheduler on a store in memory whose watches fire at once, and short words for what happens around it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from floodmark.bus.ports import Outgoing
from floodmark.contracts.envelope import decode
from floodmark.contracts.messages import BuildBucket
from floodmark.contracts.topics import TASKS
from floodmark.core.dispatch import Policy, Progress, Record
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.intervals import Interval
from floodmark.core.scheduling import Lane
from floodmark.ledger import paths
from floodmark.ledger.leadership import alive
from floodmark.ledger.store import Answer, Committed, Conflicted, Create, Node, Op
from floodmark_scheduler.cycle import LanePlan, Scheduler
from floodmark_scheduler.eyes import Eyes
from floodmark_scheduler.sending import TaskSender
from floodmark_scheduler.watch import CONDITIONS, ViewWatch
from tests.support.bus_doubles import FrozenClock
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, cause, segment
from tests.support.memory_store import MemoryStore

LONG_AFTER_MS = 1_000_000 * HOUR_MS
POLICY = Policy(tries_max=2, backoff_first_ms=1_000, backoff_cap_ms=1_000, unclaimed_max_ms=60_000, deaths_max=2)


@dataclass
class CountedStore(MemoryStore):
    """Counts reads, and may act before a write or lose one to a rival."""

    reads: list[str] = field(default_factory=list)
    round_trips: int = 0
    """Reads and writes that nobody else's are under way with."""
    before_commit: Callable[[], None] = lambda: None
    refuses: Callable[[Sequence[Op]], bool] = lambda _ops: False
    away: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def read_watched(self, wanted: Sequence[str], on_change: Callable[[str], None]) -> list[Node | None]:
        if self.away:
            raise Unavailable("the store is away")
        self.reads += wanted
        self.round_trips += 1
        return super().read_watched(wanted, on_change)

    def read_many(self, wanted: Sequence[str]) -> list[Node | None]:
        self.round_trips += 1
        return super().read_many(wanted)

    def commit_many(self, writes: Sequence[Sequence[Op]]) -> list[Answer]:
        self.round_trips += 1
        return super().commit_many(writes)

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        self.before_commit()
        return Conflicted(ops[0]) if self.refuses(ops) else super().commit(ops)


@dataclass
class KeepingPublisher:
    sent: list[Outgoing] = field(default_factory=list)
    fails_with: Exception | None = None
    refuses: bytes | None = None
    """Messages that have this in them are too large."""

    def publish(self, messages: Sequence[Outgoing]) -> None:
        if self.fails_with:
            raise self.fails_with
        if self.refuses and any(self.refuses in message.value for message in messages):
            raise InvalidInput("too-large", "a message is too large")
        self.sent += messages


@dataclass
class Office:
    """Buckets are hours."""

    store: CountedStore = field(default_factory=CountedStore)
    clock: FrozenClock = field(default_factory=lambda: FrozenClock(LONG_AFTER_MS))
    instance: str = "s1"

    def __post_init__(self) -> None:
        self.kit = Kit(self.store, clock=self.clock)
        self.publisher = KeepingPublisher()
        self.metrics = CollectorRegistry()
        if self.store.read(f"{paths.SERVICES}/worker") is None:
            self.store.commit([Create(f"{paths.SERVICES}/{service}", b"") for service in ("worker", "scheduler")])
        self.lives("scheduler", self.instance)
        self.scheduler = Scheduler(
            ledger=self.kit.ledger,
            eyes=Eyes(self.store),
            sender=TaskSender(self.publisher, self.clock),
            clock=self.clock,
            instance=self.instance,
            alive=lambda service: alive(self.store, service),
            policy=POLICY,
            lanes=LanePlan(dict.fromkeys(Lane, 100), live_buckets=2, append_buffer_ms=0),
            watch=ViewWatch(60_000, self.metrics),
        )

    def lives(self, service: str, instance: str) -> None:
        self.store.commit([Create(f"{paths.SERVICES}/{service}/{instance}", b"")])

    def built(self, *hours: int) -> None:
        """A table with a segment for each of these hours, and a view built from it."""
        self.kit.set_up()
        self.kit.put(*(segment(f"s{h}", h, h + 1) for h in hours))
        self.kit.commit(*(self.kit.build(h) for h in hours))

    def cycle(self) -> list[tuple[int, str]]:
        """Hour and mode of the tasks this cycle sent."""
        before = len(self.publisher.sent)
        self.scheduler.cycle()
        return [(t.bucket_start_ms // HOUR_MS, t.mode) for t in self.tasks()[before:]]

    def tasks(self) -> list[BuildBucket]:
        found = [decode(TASKS.name, o.value, list(o.headers), "here").message for o in self.publisher.sent]
        return [m for m in found if isinstance(m, BuildBucket)]

    def record(self, hour: int) -> Record | None:
        return self.kit.ledger.dispatch.records(VIEW.name).get(hour * HOUR_MS)

    def progress(self, hour: int) -> Progress | None:
        record = self.record(hour)
        return None if record is None else record.progress

    def claim(self, hour: int, worker: str) -> None:
        record = self.record(hour)
        assert record is not None
        assert self.kit.ledger.dispatch.claim(self.kit.header, hour * HOUR_MS, task_id=record.task_id, worker=worker)

    def mark(self, *hours: int) -> None:
        """As `Kit.mark`, at this moment."""
        ranges = [Interval(h * HOUR_MS, (h + 1) * HOUR_MS) for h in hours]
        self.kit.ledger.views.mark_stale(VIEW.name, ranges, replace(cause(), marked_at_ms=self.clock.now_ms()))

    def fail(self, hour: int, *, frozen: bool = False) -> None:
        record = self.record(hour)
        assert record is not None
        self.kit.ledger.dispatch.fail(
            self.kit.header, hour * HOUR_MS, task_id=record.task_id, error="boom", policy=POLICY, frozen=frozen
        )

    def pinned(self) -> set[str]:
        return {condition for condition in CONDITIONS if self.measured("pinned", condition=condition)}

    def measured(self, what: str, **labels: str) -> float | None:
        """What the metrics page says of the view; None when it says nothing."""
        return self.metrics.get_sample_value(f"floodmark_view_{what}", {"view": VIEW.name} | labels)
