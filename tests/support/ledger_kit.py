"""A ledger with one table and one hourly view, and short words for what tests do to it."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from floodmark.core.buckets import Cause, DataFile, Entry, State
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.registry import Put, Remove
from floodmark.core.segments import Segment
from floodmark.core.tables import CoverageMode, TableDefinition, ViewDefinition, ViewHeader
from floodmark.core.transitions import Build, Decision, Mode
from floodmark.ledger.access import Access
from floodmark.ledger.engine import Budget, Budgets, Outcome
from floodmark.ledger.ledger import Ledger, ledger_on
from floodmark.ledger.session import Session
from floodmark.ledger.store import LIMITS, Limits, Store
from floodmark.ledger.zookeeper import ZooKeeperStore
from tests.support.bus_doubles import FrozenClock

HOUR_MS = 3_600_000
TABLE = TableDefinition("rides", "/lake/rides", "event_time")
VIEW = ViewDefinition("rides_hourly", "rides", "SELECT 1", "h1", HOUR_MS, "/lake/views/rides_hourly")
# The waits between tries are the engine's own business; tests of everything else do without them.
QUICK = Budgets(critical=Budget("critical", 128, 0, 0), revert=Budget("revert", 8, 0, 0))


def segment(name: str, first_hour: float, last_hour: float, crc: int = 1, **changed: int | None) -> Segment:
    """A segment of `[first_hour, last_hour)`."""
    made = Segment(name, crc, int(first_hour * HOUR_MS), int(last_hour * HOUR_MS) - 1, f"{name}.parquet", 10, 100)
    return replace(made, **changed) if changed else made  # type: ignore[arg-type]


def cause(event_id: str = "e1", **changed: Any) -> Cause:
    return Cause("event", event_id, 1_000, **changed)


@dataclass
class Kit:
    """Everything is by hour: bucket 3 is the window `[03:00, 04:00)` of the first day."""

    store: Store
    clock: FrozenClock = field(default_factory=lambda: FrozenClock(1_000_000))
    seed: int = 1
    budgets: Budgets = QUICK
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        self.outcomes: list[tuple[str, Outcome[object]]] = []
        self.ledger: Ledger = ledger_on(
            self.store,
            clock=self.clock,
            randomness=random.Random(self.seed),
            budgets=self.budgets,
            observe=lambda name, outcome: self.outcomes.append((name, outcome)),
            limits=self.limits,
        )

    def set_up(self, *, coverage_hour: int | None = 0, coverage: CoverageMode = CoverageMode.EXTEND) -> ViewHeader:
        self.ledger.registry.create_table(TABLE)
        start = None if coverage_hour is None else coverage_hour * HOUR_MS
        return self.ledger.views.create(replace(VIEW, coverage=coverage), coverage_start_ms=start)

    @property
    def header(self) -> ViewHeader:
        return self.ledger.views.header("rides_hourly")

    @property
    def watermark_hour(self) -> float | None:
        at = self.header.watermark_ms
        return None if at is None else at / HOUR_MS

    def put(self, *segments: Segment) -> None:
        self.ledger.registry.apply("rides", [Put(s) for s in segments])

    def remove(self, *names: str) -> None:
        self.ledger.registry.apply("rides", [Remove(n) for n in names])

    def entry(self, hour: int) -> Entry | None:
        return self.ledger.views.state("rides_hourly").at(hour * HOUR_MS)

    def state(self, hour: int) -> State | None:
        entry = self.entry(hour)
        return entry.state if entry else None

    def states(self) -> dict[int, str]:
        """Of each bucket that has an entry, of its own or in a run."""
        stretches = self.ledger.views.state("rides_hourly").stretches()
        return {start // HOUR_MS + n: str(entry.state) for start, count, entry in stretches for n in range(count)}

    def build(self, hour: int, mode: Mode = Mode.APPEND, attempt: str = "a1", files: int = 1) -> Build:
        """Read the source of a bucket and make of it what a worker would."""
        read = self.ledger.registry.read_window("rides", Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS))
        made = () if read.source.fingerprint.is_empty or mode is Mode.DELETE else range(files)
        return Build(
            start_ms=hour * HOUR_MS,
            mode=mode,
            attempt_id=attempt,
            fingerprint=read.source.fingerprint,
            slice_versions=read.source.slice_versions,
            definition_hash="h1",
            built_at_ms=self.clock.now_ms(),
            files=tuple(DataFile(f"{attempt}/{hour}-{n}.parquet", 10, 100) for n in made),
        )

    def commit(self, *builds: Build, incarnation: str | None = None) -> dict[int, Decision]:
        """What became of each bucket, by hour."""
        outcome = self.ledger.views.commit("rides_hourly", incarnation or self.header.incarnation, builds)
        return {start // HOUR_MS: decision for start, decision in outcome.result.items()}

    def commit_one(self, build: Build, incarnation: str | None = None) -> Decision:
        return self.commit(build, incarnation=incarnation)[build.start_ms // HOUR_MS]

    def append(self, hour: int, attempt: str = "a1") -> Decision:
        return self.commit_one(self.build(hour, Mode.APPEND, attempt))

    def refresh(self, hour: int, attempt: str = "a2") -> Decision:
        return self.commit_one(self.build(hour, Mode.OVERWRITE, attempt))

    def mark(self, *hours: int, event_id: str = "e1") -> None:
        ranges = [Interval(h * HOUR_MS, (h + 1) * HOUR_MS) for h in hours]
        self.ledger.views.mark_stale("rides_hourly", ranges, cause(event_id))

    def source_differs(self) -> list[int]:
        """The oracle: hours that are VALID with another fingerprint than their source has now (INV-3)."""
        wrong = []
        for start, entry in self.ledger.views.state("rides_hourly").entries.items():
            live = self.ledger.registry.read_window("rides", Interval(start, start + HOUR_MS))
            if entry.state is State.VALID and entry.fingerprint != fingerprint(live.segments.values()):
                wrong.append(start // HOUR_MS)
        return wrong


@contextmanager
def zookeeper_store(hosts: str, *, timeout_ms: int = 10_000, access: Access | None = None) -> Iterator[ZooKeeperStore]:
    """A store on a session of its own. `hosts` may end in a path, under which everything then lies."""
    session = Session(hosts=hosts, timeout_ms=timeout_ms, access=access, on_lost=lambda: None)
    session.open(timeout_ms=30_000)
    try:
        store = ZooKeeperStore(session)
        store.ensure_root()
        yield store
    finally:
        session.close()


def names(decisions: Sequence[object]) -> list[str]:
    return [type(d).__name__ for d in decisions]
