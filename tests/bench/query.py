"""What planning a query costs: parsed, matched with a hundred views, routed over ten thousand buckets of each.

Every query has a text of its own, so nothing is remembered of it, and every tenth finds that the registry has moved.
The views are on values; what a strict query asks of the ledger is counted on a real ZooKeeper.
"""

import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from floodmark.core.buckets import Cause, DataFile, Entry, Shard, State
from floodmark.core.intervals import Interval
from floodmark.core.ports import SystemClock
from floodmark.core.registry import Put
from floodmark.core.segments import Segment
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader
from floodmark.ledger.ledger import ledger_on
from floodmark.ledger.store import Node
from floodmark.ledger.zookeeper import ZooKeeperStore
from floodmark.query.desk import Desk
from floodmark.query.pictures import Pictures
from floodmark.query.plan import QueryPlan, Strict
from floodmark.query.planner import plan
from floodmark.query.shapes import ViewShape
from floodmark.query.snapshots import TableSnapshot, ViewSnapshot
from floodmark.sql.definition import analyze
from tests.bench.harness.figures import AtMost, Measurement, Run, figure, interleaved_ratio
from tests.bench.harness.servers import zookeeper_session
from tests.support.query_kit import HOUR_MS, snapshot_of

VIEWS = 100
BUCKETS = 10_000
QUERIES = 300
REGISTRY_MOVES_EVERY = 10
COLUMNS = (
    ("t", "timestamp[us, tz=UTC]"), ("zone", "string"), ("kind", "string"), ("payer", "string"), ("n", "int64"),
    ("fare", "double"), ("price", "decimal128(12, 2)"),
)  # fmt: skip
MEASURES = ("count(*) AS c", "sum(n) AS sn", "avg(fare) AS af", "sum(price) AS sp", "max(fare) AS mf")
TEMPLATES = (
    "SELECT zone, count(*) AS c, sum(price) / count(*) FROM trips GROUP BY zone HAVING count(*) > {n} ORDER BY 2",
    "SELECT date_trunc('DAY', t) AS d, sum(n), avg(fare) FROM trips WHERE t >= '1970-0{m}-03 02:30:0{d}' GROUP BY 1",
    "SELECT zone, kind, sum(price) FROM trips WHERE kind = 'k{n}' AND n > 0 GROUP BY 1, 2",
    "SELECT count(*) FROM trips WHERE t BETWEEN '1970-0{m}-01' AND '1970-0{m}-20 00:00:0{d}' AND zone IN ('a', 'b{n}')",
    "SELECT payer, max(fare) FROM trips WHERE fare > {n} GROUP BY payer",
    "SELECT date_trunc('HOUR', t) AS h, zone, count(*), sum(n), max(fare) + {n} FROM trips GROUP BY h, zone",
)


def table_definition(name: str) -> TableDefinition:
    return TableDefinition(name, f"/lake/{name}", "t", columns=COLUMNS)


def registry(definition: TableDefinition) -> TableSnapshot:
    """A segment for each hour."""
    segments = (
        Segment(f"s{n}", n, n * HOUR_MS, (n + 1) * HOUR_MS - 1, f"s{n}.parquet", 1_000, 1_000_000, timeless_rows=0)
        for n in range(BUCKETS)
    )
    return snapshot_of(definition, segments)


def moved(table: TableSnapshot, version: int) -> TableSnapshot:
    """The same segments, one day's slice written once more."""
    key = str((BUCKETS - 30) * HOUR_MS // 86_400_000 * 86_400_000)
    return TableSnapshot(
        table.definition, version, table.slices, {**table.slice_versions, key: version}, 0, table.extent
    )


def shards(table: TableSnapshot, size: int) -> dict[int, Shard]:
    """All valid but one in a thousand."""
    made: dict[int, dict[int, Entry]] = {}
    for n in range(BUCKETS):
        window = Interval(n * HOUR_MS, (n + 1) * HOUR_MS)
        versions = {key: table.slice_versions.get(key, 0) for key in table.definition.grid.keys_for_window(window)}
        files = (DataFile(f"{n * HOUR_MS}/{n}.parquet", 100, size),)
        entry = Entry(State.VALID, True, table.fingerprint(window), versions, files, "a", "h")
        stale = n % 1_000 == 7
        made.setdefault(n // 256, {})[n * HOUR_MS] = entry.stale(Cause("event", "e", 1)) if stale else entry
    return {number: Shard(entries) for number, entries in made.items()}


def definitions() -> Iterator[str]:
    """Different keys, measures and conditions."""
    keys = [c for size in (1, 2, 3) for c in itertools.combinations(("zone", "kind", "payer"), size)]
    measures = [MEASURES[:2], MEASURES[:4], MEASURES, MEASURES[2:], (MEASURES[0], MEASURES[4])]
    for condition, own, kept in itertools.product(("", " WHERE n > 0", " WHERE fare > 1"), keys, measures):
        items = ", ".join(("date_trunc('HOUR', t) AS hour", *own, *kept))
        groups = ", ".join(("hour", *own))
        yield f"SELECT {items} FROM {{table}}{condition} GROUP BY {groups}"


def view(name: str, table: TableSnapshot, select: str, kept: dict[int, Shard]) -> ViewSnapshot:
    of = table.definition
    text = select.format(table=of.name)
    analysed = analyze(text, table=of.name, time_column="t", bucket_ms=HOUR_MS, columns=dict(COLUMNS))
    definition = ViewDefinition(name, of.name, text, "h", HOUR_MS, f"/lake/{name}")
    return ViewSnapshot(ViewHeader(definition, "i", 0, 0, BUCKETS * HOUR_MS), ViewShape(analysed, dict(COLUMNS)), kept)


@dataclass
class World:
    """A table with a hundred views; and a hundred tables with one each."""

    zookeeper: ZooKeeperStore
    randomness: random.Random = field(default_factory=lambda: random.Random(1))
    version: int = 1

    def __post_init__(self) -> None:
        self.table = registry(table_definition("trips"))
        kept = [shards(self.table, size) for size in (10_000, 30_000, 90_000)]
        chosen = itertools.islice(definitions(), VIEWS)
        self.views = [view(f"v{n}", self.table, s, kept[n % 3]) for n, s in enumerate(chosen)]
        self.alone = [self.views[16]]
        # The same view, among ninety-nine of other tables.
        others = [registry(table_definition(f"table_{n}")) for n in range(3)]
        select = next(definitions())
        self.scattered = [*self.alone, *(view(f"o{n}", others[n % 3], select, kept[0]) for n in range(VIEWS - 1))]

    def query(self) -> str:
        template = self.randomness.choice(TEMPLATES)
        draw = self.randomness.randint
        return template.format(n=draw(0, 10**9), m=draw(2, 9), d=draw(0, 9))

    def planned(self, select: str, views: Sequence[ViewSnapshot]) -> QueryPlan:
        return plan(select, tables=[self.table], views=views, freshness=Strict(), now_ms=0)

    def plan_ms(self, select: str, views: Sequence[ViewSnapshot]) -> float:
        started_s = time.perf_counter()
        self.planned(select, views)
        return (time.perf_counter() - started_s) * 1000

    def move(self) -> None:
        self.version += 1
        self.table = moved(self.table, self.version)

    def many_ms(self) -> list[float]:
        """Queries one after the other, every tenth after a change."""
        for template in TEMPLATES:
            self.planned(template.format(n=0, m=5, d=1), self.views)
        found = []
        for n in range(QUERIES):
            if n % REGISTRY_MOVES_EVERY == 0:
                self.move()
            found.append(self.plan_ms(self.query(), self.views))
        return sorted(found)


@contextmanager
def suite() -> Iterator[World]:
    with zookeeper_session() as (_, store):
        yield World(store)


@figure(name="planning with 100 views of 10,000 buckets on the table, p50", goal=AtMost(10), unit="ms", runs=3)
def median_ms(run: Run) -> Measurement:
    found = run.resources.many_ms()
    return Measurement(statistics.median(found), {"queries": len(found), "max_ms": found[-1]})


@figure(name="planning with 100 views of 10,000 buckets on the table, p99", goal=AtMost(50), unit="ms", runs=3)
def nearly_all_ms(run: Run) -> Measurement:
    found = run.resources.many_ms()
    return Measurement(found[len(found) * 99 // 100], {"queries": len(found), "max_ms": found[-1]})


@figure(name="planning on a table with one view, 100 views in all over 1", goal=AtMost(1.2))
def one_view(run: Run) -> Measurement:
    """The other ninety-nine are of other tables."""
    world: World = run.resources

    def some_ms(views: Sequence[ViewSnapshot]) -> float:
        state = world.randomness.getstate()
        total = sum(world.plan_ms(world.query(), views) for _ in range(20))
        world.randomness.setstate(state)
        world.randomness.random()
        return total

    return interleaved_ratio(
        lambda: some_ms(world.scattered), lambda: some_ms(world.alone), blocks=10, names=("of_100_ms", "of_1_ms")
    )


class Counted:
    """Passes everything on, and counts the round trips that are waited for."""

    def __init__(self, inner: ZooKeeperStore) -> None:
        self._inner = inner
        self.trips = 0

    def __getattr__(self, name: str) -> Any:
        self.trips += 1
        return getattr(self._inner, name)

    def read_current(self, path: str) -> Node | None:
        self.trips += 1
        return self._inner.read_current(path)


@figure(name="round trips to ZooKeeper of a strict query", goal=AtMost(1), unit="round trips", runs=3)
def round_trips(run: Run) -> Measurement:
    """The first query takes the hold and reads the entries; the others only ask for the table's header."""
    world: World = run.resources
    store = Counted(world.zookeeper)
    ledger = ledger_on(store, clock=SystemClock(), randomness=random.Random(run.number))
    name = f"counted_{run.number}"
    definition = table_definition(name)
    ledger.registry.create_table(definition)
    segments = [replace(s, path=f"{s.path}.{name}") for s in world.table.everything()[:200]]
    ledger.registry.apply(name, [Put(segment) for segment in segments])
    select = next(definitions()).format(table=name)
    ledger.views.create(
        ViewDefinition(f"view_of_{name}", name, select, "h", HOUR_MS, f"/lake/view_of_{name}"), coverage_start_ms=0
    )
    desk = Desk(ledger.registry, ledger.holds, Pictures(store), SystemClock(), reader="bench")
    try:
        trips = [_trips_of_one(desk, store, name) for _ in range(20)]
    finally:
        desk.close()
    return Measurement(max(trips[1:]), {"first": trips[0], "others": trips[1:]})


def _trips_of_one(desk: Desk, store: Counted, table: str) -> int:
    before = store.trips
    with desk.reading([table], Strict()) as reading:
        made = plan(
            f"SELECT count(*) FROM {table}",
            tables=reading.tables,
            views=reading.views,
            freshness=Strict(),
            now_ms=reading.at_ms,
        )
        assert len(made.sources[-1].files) == 200
    return store.trips - before
