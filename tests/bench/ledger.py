"""The ledger's commits against raw multis of the same shape by the same client, and its costs as tables and views grow.

One real ZooKeeper, started for the suite. Raw means kazoo's `transaction()` alone, with as many operations of the same
kinds and the same bytes as the ledger sent just before: what is left is what the ledger itself costs.
"""

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from floodmark.core.buckets import Cause, DataFile, Entry, State
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.ports import SystemClock
from floodmark.core.registry import Put
from floodmark.core.segments import Segment
from floodmark.core.tables import ViewDefinition, ViewHeader
from floodmark.core.transitions import Build, Changed, Mode, Source
from floodmark.ledger.ledger import ledger_on
from floodmark.ledger.store import Check, Op, Set
from tests.bench.harness.figures import AtLeast, AtMost, Measurement, Run, figure, interleaved_ratio
from tests.bench.harness.servers import zookeeper_session
from tests.support.ledger_kit import TABLE, VIEW
from tests.support.memory_store import Watched

BUCKET_MS = 5 * 60_000
"""Every segment fills one bucket of this width: a window of twelve is an hour's."""
SEGMENTS = 100_000
COMMITS = 100
GROUP = 64
GROUPS = 120
WINDOWS = 100
MARKED = Cause("refresh", "bench", 1_650_000_000_000)


@dataclass
class Bench:
    """A ledger on a session of its own, and the client beneath it."""

    client: Any
    store: Watched
    randomness: random.Random = field(default_factory=lambda: random.Random(1))
    tables: dict[int, str] = field(default_factory=dict)
    views: dict[int, ViewHeader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = ledger_on(self.store, clock=SystemClock(), randomness=random.Random(2))

    def commit_ms(self, view: ViewHeader, builds: Sequence[Build]) -> float:
        """One commit; the operations it sent are the store's last."""
        started_s = time.perf_counter()
        outcome = self.ledger.views.commit(view.definition.name, view.incarnation, builds)
        elapsed_s = time.perf_counter() - started_s
        assert outcome.tries == 1, f"{outcome.tries} tries without a rival"
        assert all(isinstance(decision, Changed) for decision in outcome.result.values())
        return elapsed_s * 1000

    # -- what it is measured on

    def build(self, view: ViewHeader, bucket: int, mode: Mode = Mode.OVERWRITE) -> Build:
        return self.builds(view, range(bucket, bucket + 1), mode)[0]

    def builds(self, view: ViewHeader, buckets: range, mode: Mode = Mode.OVERWRITE) -> list[Build]:
        """Of neighbouring buckets, their sources read together, as a worker reads those of a batch."""
        windows = [view.definition.grid.window(bucket * BUCKET_MS) for bucket in buckets]
        read = self.ledger.registry.read_windows(view.definition.table, windows)
        return [self._build(bucket, found.source, mode) for bucket, found in zip(buckets, read, strict=True)]

    def _build(self, bucket: int, source: Source, mode: Mode) -> Build:
        attempt_id, files = self._built(bucket)
        return Build(
            start_ms=bucket * BUCKET_MS,
            mode=mode,
            attempt_id=attempt_id,
            fingerprint=source.fingerprint,
            slice_versions=source.slice_versions,
            definition_hash="h1",
            built_at_ms=1_700_000_000_000,
            files=files,
        )

    def table(self, segment_count: int) -> str:
        """A table of so many 5-minute segments, made once."""
        if segment_count not in self.tables:
            name = f"rides_{segment_count}"
            self.ledger.registry.create_table(replace(TABLE, name=name))
            self.ledger.registry.apply(name, (Put(_five_minutes(n)) for n in range(segment_count)))
            self.tables[segment_count] = name
        return self.tables[segment_count]

    def view(self, bucket_count: int) -> ViewHeader:
        """A view of so many buckets that were built before, made once."""
        if bucket_count not in self.views:
            definition = self._definition(f"view_{bucket_count}")
            header = ViewHeader(definition, "", 0, 0, bucket_count * BUCKET_MS)
            entries = {n * BUCKET_MS: self._entry(n) for n in range(bucket_count)}
            self.views[bucket_count] = self.ledger.views.restore(header, entries)
        return self.views[bucket_count]

    def stale(self, view: ViewHeader, buckets: range) -> None:
        """Make these buckets STALE, if they are not."""
        window = Interval(buckets[0] * BUCKET_MS, (buckets[-1] + 1) * BUCKET_MS)
        self.ledger.views.mark_stale(view.definition.name, [window], MARKED)

    def new_view(self) -> ViewHeader:
        name = f"view_{self.randomness.getrandbits(40)}"
        return self.ledger.views.create(self._definition(name), coverage_start_ms=0)

    def warm_up(self, view: ViewHeader, buckets: Sequence[int], mode: Mode = Mode.OVERWRITE) -> None:
        """A commit to each shard that is to be written, so that the process knows them as a busy worker does."""
        for bucket in buckets:
            self.ledger.views.commit(view.definition.name, view.incarnation, [self.build(view, bucket, mode)])

    def _definition(self, name: str) -> ViewDefinition:
        return replace(VIEW, name=name, table=self.table(SEGMENTS), bucket_ms=BUCKET_MS)

    def _entry(self, bucket: int) -> Entry:
        attempt_id, files = self._built(bucket)
        versions = {str(bucket // 288 * 288 * BUCKET_MS): 3, "wide": 0}
        built = Fingerprint(1, self.randomness.getrandbits(62))
        return Entry(State.STALE, True, built, versions, files, attempt_id, "h1", 1_600_000_000_000, MARKED)

    def _built(self, bucket: int) -> tuple[str, tuple[DataFile, ...]]:
        attempt_id = str(uuid.UUID(int=self.randomness.getrandbits(128)))
        return attempt_id, (DataFile(f"{bucket}/{attempt_id}.parquet", 1234, 56_789),)


class Shadow:
    """Nodes that stand in for the ledger's, to which its last write is sent again without a ledger."""

    def __init__(self, bench: Bench) -> None:
        self._client, self._store = bench.client, bench.store
        self._root = f"/shadow-{uuid.uuid4().hex}"
        self._paths: dict[str, str] = {}
        self._versions: dict[str, int] = {}
        self._client.create(self._root)

    def multi_ms(self) -> float:
        ops = [self._rewritten(op) for op in self._store.commits[-1]]
        started_s = time.perf_counter()
        transaction = self._client.transaction()
        for op in ops:
            if isinstance(op, Check):
                transaction.check(op.path, op.version)
            else:
                transaction.set_data(op.path, op.data, op.version)
        results = transaction.commit()
        elapsed_s = time.perf_counter() - started_s
        assert not any(isinstance(result, Exception) for result in results), results
        return elapsed_s * 1000

    def _rewritten(self, op: Op) -> Check | Set:
        path = self._standing_in_for(op.path)
        version = self._versions[path]
        if isinstance(op, Check):
            return Check(path, version)
        assert isinstance(op, Set), f"{op} is not what a commit to existing nodes sends"
        self._versions[path] = version + 1
        return Set(path, op.data, version)

    def _standing_in_for(self, path: str) -> str:
        if path not in self._paths:
            # As long as the ledger's own path, so that requests are as large.
            self._paths[path] = f"{self._root}/{len(self._paths)}".ljust(len(path), "x")
            self._versions[self._paths[path]] = 0
            self._client.create(self._paths[path])
        return self._paths[path]


def _five_minutes(n: int) -> Segment:
    name = f"rides_{n}_{n * 2_654_435_761 % 2**32:08x}"
    path = f"day={n // 288}/{name}.parquet"
    return Segment(name, n * 2_654_435_761, n * BUCKET_MS, (n + 1) * BUCKET_MS - 1, path, 1000, 99_999)


@contextmanager
def suite() -> Iterator[Bench]:
    with zookeeper_session() as (session, store):
        yield Bench(session.client, Watched(store))


# -- commits against raw multis ------------------------------------------------------------------------------------


def over_raw(bench: Bench, view: ViewHeader, groups: Sequence[Sequence[Build]]) -> Measurement:
    """How fast commits are, one for each group, where raw multis are 1. They alternate one by one."""
    shadow, waiting = Shadow(bench), iter(groups)
    return interleaved_ratio(
        shadow.multi_ms,
        lambda: bench.commit_ms(view, next(waiting)),
        blocks=len(groups) // 2,
        names=("raw_multi_ms", "commit_ms"),
    )


@figure(name="refresh commits per second over raw multis, one bucket each", goal=AtLeast(0.7))
def refreshes(run: Run) -> Measurement:
    """In a full shard."""
    bench: Bench = run.resources
    view = bench.view(256)
    bench.stale(view, range(256))
    bench.warm_up(view, [255])
    chosen = bench.randomness.sample(range(255), COMMITS)
    return over_raw(bench, view, [[bench.build(view, bucket)] for bucket in chosen])


@figure(name="append commits per second over raw multis, one bucket each", goal=AtLeast(0.7))
def appends(run: Run) -> Measurement:
    """At the frontier of a new view: each moves the watermark, so the header is written too."""
    bench: Bench = run.resources
    view = bench.new_view()
    bench.warm_up(view, [0, 1], Mode.APPEND)
    return over_raw(bench, view, [[bench.build(view, n, Mode.APPEND)] for n in range(2, COMMITS + 2)])


@figure(name="group commits of 64 buckets per second over raw multis", goal=AtLeast(0.6), runs=9)
def groups_of_64(run: Run) -> Measurement:
    """Refreshes, three groups to a full shard."""
    bench: Bench = run.resources
    shards = range(GROUPS // 3)
    view = bench.view(len(shards) * 256)
    bench.stale(view, range(len(shards) * 256))
    bench.warm_up(view, [shard * 256 + 255 for shard in shards])
    firsts = [shard * 256 + n * GROUP for shard in shards for n in range(3)]
    return over_raw(bench, view, [bench.builds(view, range(first, first + GROUP)) for first in firsts])


# -- costs as things grow ------------------------------------------------------------------------------------------


@figure(name="a window's fingerprint, table of 100,000 segments over 1,000", goal=AtMost(1.5))
def fingerprint_of_a_window(run: Run) -> Measurement:
    """Time to read the slices of an hour and compute its fingerprint, in a process that has cached nothing."""
    bench: Bench = run.resources

    def window_ms(segment_count: int) -> float:
        table = bench.table(segment_count)
        registry = ledger_on(bench.store, clock=SystemClock(), randomness=random.Random(3)).registry
        # Within full days: the last one of the small table would be a cheaper slice.
        hours = bench.randomness.choices(range(segment_count // 288 * 24), k=WINDOWS)
        started_s = time.perf_counter()
        for hour in hours:
            read = registry.read_window(table, Interval(hour * 12 * BUCKET_MS, (hour + 1) * 12 * BUCKET_MS))
            assert read.source.fingerprint.count == 12
        return (time.perf_counter() - started_s) * 1000 / WINDOWS

    names = ("window_ms_of_100000", "window_ms_of_1000")
    return interleaved_ratio(lambda: window_ms(SEGMENTS), lambda: window_ms(1_000), blocks=3, names=names)


@figure(name="a commit, view of 100,000 buckets over 100", goal=AtMost(1.5))
def commit_into_a_large_view(run: Run) -> Measurement:
    """Time of one refresh among the newest buckets, where a live view is written, the process knowing their shard."""
    bench: Bench = run.resources

    def sample(bucket_count: int) -> Callable[[], float]:
        view = bench.view(bucket_count)
        newest = range(bucket_count - COMMITS, bucket_count)
        bench.stale(view, newest)
        bench.warm_up(view, newest[-1:])
        waiting = iter([[bench.build(view, bucket)] for bucket in newest[:-1]])
        return lambda: bench.commit_ms(view, next(waiting))

    names = ("commit_ms_of_100000", "commit_ms_of_100")
    return interleaved_ratio(sample(100_000), sample(100), blocks=COMMITS // 2 - 1, names=names)
