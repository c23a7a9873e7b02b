"""What a cycle of the scheduler costs where there is much and little of it changed, and what registering costs.

One real ZooKeeper, started for the suite, with 100 views of 10,000 buckets each. The scheduler runs in this process, so
that a cycle can be timed by itself; its tasks go nowhere.
"""

import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from floodmark.bus.ports import Outgoing
from floodmark.core.buckets import Cause, DataFile, Entry, State
from floodmark.core.dispatch import Policy
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.ports import SystemClock
from floodmark.core.registry import Put
from floodmark.core.scheduling import Lane
from floodmark.core.segments import Segment
from floodmark.core.tables import ViewHeader
from floodmark.ledger.ledger import ledger_on
from floodmark.ledger.store import Committed, Create, Delete, Op, Set
from floodmark.ledger.zookeeper import ZooKeeperStore
from floodmark_scheduler.cycle import LanePlan, Scheduler
from floodmark_scheduler.eyes import Eyes
from floodmark_scheduler.sending import TaskSender
from floodmark_scheduler.watch import ViewWatch
from tests.bench.harness.figures import AtMost, Measurement, Reported, Run, figure, interleaved_ratio
from tests.bench.harness.servers import zookeeper_session
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW
from tests.support.memory_store import Watched

VIEWS = 100
BUCKETS = 10_000
CYCLES = 20
SEGMENTS = 10_000
RAW_TIMES = 5
PROBE = "/floodmark/probe"
MARKED = Cause("event", "bench", 1)


class Nowhere:
    """Takes every message and forgets it."""

    def publish(self, messages: Sequence[Outgoing]) -> None:
        del messages


@dataclass
class Bench:
    store: ZooKeeperStore
    first_look_s: float = 0
    next_bucket: Iterator[int] = field(default_factory=lambda: iter(range(10, BUCKETS - 10)))

    def __post_init__(self) -> None:
        clock = SystemClock()
        self.watched = Watched(self.store)
        self.ledger = ledger_on(self.watched, clock=clock, randomness=random.Random(1))
        self.eyes = Eyes(self.store)
        self.scheduler = Scheduler(
            ledger=self.ledger,
            eyes=self.eyes,
            sender=TaskSender(Nowhere(), clock),
            clock=clock,
            instance="bench",
            alive=lambda _service: {"bench"},
            policy=Policy(unclaimed_max_ms=24 * HOUR_MS),  # nobody takes these tasks, and none is to be given out twice
            lanes=LanePlan(dict.fromkeys(Lane, 10_000), live_buckets=4, append_buffer_ms=0),
            watch=ViewWatch(60_000, CollectorRegistry()),
        )

    def set_up(self) -> None:
        """A million VALID buckets, and one look at them all."""
        self.ledger.registry.create_table(TABLE)
        self.ledger.registry.apply(TABLE.name, [Put(_segment(n)) for n in range(BUCKETS)])
        entries = {n * HOUR_MS: _entry(n) for n in range(BUCKETS)}
        for number in range(VIEWS):
            definition = replace(VIEW, name=f"view_{number}")
            self.ledger.views.restore(ViewHeader(definition, "", 0, 0, BUCKETS * HOUR_MS), entries)
        started_s = time.perf_counter()
        assert self.scheduler.cycle() == 0, "nothing was to do"
        self.first_look_s = time.perf_counter() - started_s

    def cycle_s(self, *, tasks: int = 0) -> float:
        started_s = time.perf_counter()
        given = self.scheduler.cycle()
        elapsed_s = time.perf_counter() - started_s
        assert given == tasks, f"{given} tasks were given out, not {tasks}"
        return elapsed_s

    def stale_s(self, count: int, *, views: int) -> float:
        """The cycle that gives out so many tasks, for neighbouring buckets dealt out to so many views."""
        for number in range(count):
            start_ms = next(self.next_bucket) * HOUR_MS
            self.ledger.views.mark_stale(f"view_{number % views}", [Interval(start_ms, start_ms + HOUR_MS)], MARKED)
        self.await_watches()
        elapsed_s = self.cycle_s(tasks=count)
        self.await_watches()
        self.scheduler.cycle()  # what it wrote comes back through its own watches, outside the time taken
        return elapsed_s

    def await_watches(self) -> None:
        """Watches fire in order: once this one did, those of every earlier write have."""
        told = threading.Event()
        self.store.commit([Create(PROBE, b"")])
        self.store.read_watched([PROBE], lambda _path: told.set())
        self.store.commit([Delete(PROBE)])
        assert told.wait(30), "a watch did not fire within 30 s"


def _segment(n: int) -> Segment:
    return Segment(f"s{n}", n, n * HOUR_MS, (n + 1) * HOUR_MS - 1, f"day={n // 24}/s{n}.parquet", 1_000, 99_999)


def _entry(n: int) -> Entry:
    """Built from something else than there is, so that a mark makes a task."""
    versions = {str(n // 24 * 24 * HOUR_MS): 0, "wide": 0}
    files = (DataFile(f"{n}/{n:032x}.parquet", 1_234, 56_789),)
    return Entry(State.VALID, True, Fingerprint(1, n), versions, files, f"{n:032x}", "h1", 1_600_000_000_000)


@contextmanager
def suite() -> Iterator[Bench]:
    with zookeeper_session() as (_, store):
        bench = Bench(store)
        bench.set_up()
        yield bench


@figure(name="a cycle with nothing to do, 100 views of 10,000 buckets", goal=AtMost(1.0), unit="s")
def idle(run: Run) -> Measurement:
    """The median of several; the first look at everything, which only a new leader makes, stands beside it."""
    bench: Bench = run.resources
    found = [bench.cycle_s() for _ in range(CYCLES)]
    return Measurement(statistics.median(found), {"slowest_s": max(found), "first_look_s": bench.first_look_s})


def ten_over_one(bench: Bench, *, views: int) -> Measurement:
    names = ("cycle_s_of_10", "cycle_s_of_1")
    ten, one = (lambda: bench.stale_s(10, views=views)), (lambda: bench.stale_s(1, views=1))
    return interleaved_ratio(ten, one, blocks=3, names=names)


@figure(name="a cycle with 10 stale buckets among a million over one with 1, all of one view", goal=AtMost(2))
def changed(run: Run) -> Measurement:
    """Neighbours, as one late file makes them."""
    return ten_over_one(run.resources, views=1)


@figure(name="a cycle with 10 stale buckets among a million over one with 1, each of another view", goal=AtMost(2))
def changed_in_many_views(run: Run) -> Measurement:
    """The hardest way to spread them: every view has a shard to read, a source to look up and a record to write."""
    return ten_over_one(run.resources, views=10)


@figure(name="registering 10,000 segments over raw writes of the same bytes", goal=Reported(), runs=3)
def registering(run: Run) -> Measurement:
    """Raw means the same nodes with the same bytes in as many writes, without a registry deciding what they are.

    There are 21 of them, which take ZooKeeper next to nothing, so the ratio is large: it is the planning, encoding and
    compressing of 10,000 segments over that. What they take by themselves is `registry_s` in the detail.
    """
    bench: Bench = run.resources
    table = f"rides_{run.number}"
    bench.ledger.registry.create_table(replace(TABLE, name=table))
    bench.watched.commits.clear()
    started_s = time.perf_counter()
    bench.ledger.registry.apply(table, [Put(_segment(n)) for n in range(SEGMENTS)])
    registry_s = time.perf_counter() - started_s
    sent = list(bench.watched.commits)
    raw_s = statistics.median(_raw_s(bench.store, sent, table, f"raw{run.number}_{n}") for n in range(RAW_TIMES))
    size = sum(len(op.data) for ops in sent for op in ops if isinstance(op, Create | Set))
    detail = {"registry_s": registry_s, "raw_s": raw_s, "writes": len(sent), "bytes": size}
    return Measurement(registry_s / raw_s, detail)


def _raw_s(store: ZooKeeperStore, sent: Sequence[Sequence[Op]], table: str, beside: str) -> float:
    """The same writes once more, on nodes beside the table's, at whatever version they have."""
    root = f"/floodmark/tables/{beside}"
    for path in (root, f"{root}/slices", f"{root}/slices/wide", f"{root}/outbox"):
        store.commit([Create(path, b"")])
    raw = [[_moved(op, table, beside) for op in ops] for ops in sent]
    started_s = time.perf_counter()
    for ops in raw:
        answer = store.commit(ops)
        assert isinstance(answer, Committed), f"a raw write was refused: {answer}"
    return time.perf_counter() - started_s


def _moved(op: Op, table: str, beside: str) -> Op:
    path = op.path.replace(f"/tables/{table}", f"/tables/{beside}", 1)
    return replace(op, path=path, version=-1) if isinstance(op, Set) else replace(op, path=path)
