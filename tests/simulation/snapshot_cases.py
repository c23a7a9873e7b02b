"""Who takes part in the race between a query's plan and the janitor, and the oracle that judges it.

Everyone runs the real code: the broker's desk, its holds and the planner; the worker's mark and commit; the janitor's
collecting and retiring. Files are nodes, and so is the plan that a query is using, so that every step is one of the
store's. Time is how many writes there have been: whoever asks for it reads how often the node of the clock was set.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import prometheus_client

from floodmark.catalog.definitions import retention_ms
from floodmark.core.buckets import DataFile
from floodmark.core.garbage import AttemptFile, Terms, attempt_file
from floodmark.core.tables import RETENTION
from floodmark.core.transitions import Mode
from floodmark.ledger.holds import Hold, HoldKeeper, Holds
from floodmark.ledger.store import Committed, Conflicted, Create, Delete, Node, Op, Set, Store
from floodmark.parquet.lake import LakeFile
from floodmark.query.desk import Desk
from floodmark.query.pictures import Pictures
from floodmark.query.plan import Freshness
from floodmark.query.planner import plan
from floodmark_janitor.books import Books
from floodmark_janitor.collecting import Collector
from floodmark_janitor.retiring import Retirer
from tests.simulation.explorer import Actor, Nodes
from tests.support.bus_doubles import FrozenClock
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, segment
from tests.support.memory_store import MemoryStore, OneByOne

CLOCK, FILES, PLAN = "/clock", "/files", "/plan"
NO_TIME_MS = 1_000_000
"""On the clocks of those for whom time stands still."""
HOLD_MS, TURN_MS = 10**9, 1_000

ATTEMPTS = [f"6f1d2c3e-0000-4000-8000-00000000000{n}" for n in range(2)]
OF_VIEW = f"0/{ATTEMPTS[0]}-0.parquet"
"""The file of bucket 0 at the start. The worker replaces it."""
OF_TABLE = "s0.parquet"
"""The first segment. It is past its retention."""
EXISTING = (OF_VIEW, OF_TABLE)

# The logical clock is exact: a hold whose clock was at the same number of writes was written after that moment.
TERMS = Terms(grace_ms=0, skew_ms=-1)
TABLE_HERE = replace(
    TABLE,
    columns=(("event_time", "timestamp[us, tz=UTC]"), ("n", "int64")),
    properties={RETENTION: "1h", "scan": "false"},
)
VIEW_HERE = replace(
    VIEW, select="SELECT date_trunc('HOUR', event_time) AS hour, count(*) AS rides FROM rides GROUP BY 1"
)
FROM_VIEW = "SELECT count(*) FROM rides WHERE event_time IS NOT NULL"
FROM_TABLE = "SELECT sum(n) FROM rides"
_BOOKS = Books(prometheus_client.CollectorRegistry())


def node_of(path: str) -> str:
    return f"{FILES}/{path.replace('/', '|')}"


# -- stores and clocks ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ticking(OneByOne):
    """Every write that lands moves the clock. Watches are so late that they never come."""

    inner: Store
    before_call: Callable[[], None] = lambda: None

    def read(self, path: str) -> Node | None:
        self.before_call()
        return self.inner.read(path)

    def read_many(self, wanted: Sequence[str], /) -> list[Node | None]:
        self.before_call()
        return self.inner.read_many(wanted)

    def read_current(self, path: str, /) -> Node | None:
        self.before_call()
        return self.inner.read_current(path)

    def children(self, path: str) -> list[str]:
        self.before_call()
        return self.inner.children(path)

    def read_watched(self, wanted: Sequence[str], _on_change: object) -> list[Node | None]:
        return self.read_many(wanted)

    def children_watched(self, path: str, _on_change: object) -> list[str]:
        return self.children(path)

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        self.before_call()
        answer = self.inner.commit([*ops, Set(CLOCK, b"", -1)])
        return Committed(answer.versions[:-1]) if isinstance(answer, Committed) else answer

    def sync(self) -> None:
        self.inner.sync()


@dataclass(frozen=True, slots=True)
class WriteClock:
    store: Store

    def now_ms(self) -> int:
        node = self.store.read(CLOCK)
        assert node is not None
        return node.version

    def monotonic_ms(self) -> int:
        return self.now_ms()

    def sleep_ms(self, duration_ms: int) -> None:
        pass


class StillKeeper(HoldKeeper):
    """No hold runs out here, so none is renewed."""

    def __enter__(self) -> HoldKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._holds.release(self.hold)


class TakenBefore(Holds):
    """The first hold that is taken is this one: it stands at the start already."""

    def __init__(self, holds: Holds, hold: Hold) -> None:
        super().__init__(holds._engine, holds._budgets, holds._registry)
        self._standing: Hold | None = hold

    def take(self, table: str, reader: str, *, ttl_ms: int) -> Hold:
        found, self._standing = self._standing, None
        return found or super().take(table, reader, ttl_ms=ttl_ms)


# -- files as nodes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeLake:
    """What the janitor needs of a lake, with nodes for files."""

    store: Store

    def is_there(self) -> bool:
        return True

    def file(self, path: str) -> LakeFile | None:
        node = self.store.read(node_of(path))
        return None if node is None else LakeFile(path, 100, "", 0)

    def attempt_files(self) -> Iterator[AttemptFile]:
        for name in self.store.children(FILES):
            if found := attempt_file(name.replace("|", "/"), size=100, modified_at_ms=0):
                yield found

    def delete(self, path: str) -> bool:
        return isinstance(self.store.commit([Delete(node_of(path))]), Committed)

    def prune(self, path: str) -> None:
        pass


# -- where it starts -----------------------------------------------------------------------------------------------


def at_start(*, held: bool) -> tuple[Nodes, Hold | None]:
    """Bucket 0 is VALID and there are two files. The broker may have a hold from before."""
    store = MemoryStore()
    for path in (CLOCK, FILES, PLAN):
        store.nodes[path] = Node(b"", 0)
    for path in EXISTING:
        store.nodes[node_of(path)] = Node(b"", 0)
    ticking = Ticking(store)
    kit = Kit(ticking, clock=WriteClock(ticking))  # type: ignore[arg-type]
    kit.ledger.registry.create_table(TABLE_HERE)
    kit.ledger.views.create(VIEW_HERE, coverage_start_ms=0)
    kit.put(segment("s0", 0, 1, timeless_rows=0), segment("s1", 1, 2, timeless_rows=0))
    build = replace(kit.build(0, Mode.APPEND, ATTEMPTS[0]), files=(DataFile(OF_VIEW, 10, 10),))
    kit.commit(build)
    hold = kit.ledger.holds.take("rides", "broker", ttl_ms=HOLD_MS) if held else None
    return dict(store.nodes), hold


# -- who takes part ------------------------------------------------------------------------------------------------


def worker() -> Actor:
    """Builds bucket 0 anew from the same source, because someone asked for it: its old file is named no longer."""

    def run(kit: Kit) -> None:
        kit.mark(0)
        kit.commit(replace(kit.build(0, Mode.OVERWRITE, ATTEMPTS[1]), files=()))

    return Actor("worker", lambda store: Kit(Ticking(store), FrozenClock(NO_TIME_MS), seed=2), run)


def collector(current: list[NodeLake], rounds: int) -> Actor:
    """The janitor looks for files of the view that no entry names."""

    def run(kit: Kit) -> None:
        current[:] = [NodeLake(kit.store)]
        collecting = Collector(kit.ledger, WriteClock(kit.store), TERMS, _BOOKS)
        for _ in range(rounds):
            collecting.collect(VIEW.name)

    return Actor("janitor", lambda store: Kit(Ticking(store), FrozenClock(0), seed=3), run)


def retirer(current: list[NodeLake], rounds: int) -> Actor:
    """The janitor takes the first segment out of the registry, and deletes its file when no hold sees it."""
    kept_ms = retention_ms(TABLE_HERE)
    assert kept_ms is not None
    clock = FrozenClock(kept_ms + HOUR_MS)

    def run(kit: Kit) -> None:
        current[:] = [NodeLake(kit.store)]
        retiring = Retirer(kit.ledger, clock, 10, _BOOKS)
        for _ in range(rounds):
            retiring.sweep(TABLE_HERE)

    return Actor("janitor", lambda store: Kit(Ticking(store), FrozenClock(0), seed=4), run)


@dataclass(frozen=True, slots=True)
class _Broker:
    store: Ticking
    desk: Desk
    clock: FrozenClock


def broker(select: str, freshness: Freshness, *, held: Hold | None = None, asks_at: int = 0) -> Actor:
    """Plans a query and uses the plan.

    With a hold from before, it takes its next turn; the query begins on another thread, right before that turn's call
    of this number, or after the turn when it has fewer.
    """

    def prepare(store: Store) -> _Broker:
        ticking, clock = Ticking(store), FrozenClock(NO_TIME_MS)
        kit = Kit(ticking, WriteClock(ticking), seed=5)  # type: ignore[arg-type]
        holds = TakenBefore(kit.ledger.holds, held) if held else kit.ledger.holds
        desk = Desk(
            kit.ledger.registry, holds, Pictures(ticking), clock, reader="broker", hold_ms=HOLD_MS, turn_ms=TURN_MS
        )
        if held:
            with desk.reading(["rides"], freshness):
                pass
        return _Broker(ticking, desk, clock)

    return Actor(
        "broker",
        prepare,
        partial(_asked, select=select, freshness=freshness, takes_turn=held is not None, asks_at=asks_at),
    )


def _asked(broker: _Broker, *, select: str, freshness: Freshness, takes_turn: bool, asks_at: int) -> None:
    with ExitStack() as query:
        planned: list[tuple[str, ...]] = []
        calls = iter(range(1_000))

        def ask() -> None:
            broker.store.before_call = lambda: None
            reading = query.enter_context(broker.desk.reading(["rides"], freshness))
            made = plan(select, tables=reading.tables, views=reading.views, freshness=freshness, now_ms=reading.at_ms)
            planned.append(tuple(file.path for source in made.sources for file in source.files))

        def maybe_ask() -> None:
            if next(calls) == asks_at:
                ask()

        if takes_turn:
            broker.clock.ms += TURN_MS
            broker.store.before_call = maybe_ask
            broker.desk.tend()
        if not planned:
            ask()
        (files,) = planned
        using = "\n".join(path for path in files if path in EXISTING)
        broker.store.commit([Create(f"{PLAN}/query", using.encode())])
        broker.store.commit([Delete(f"{PLAN}/query")])


# -- how it ends ---------------------------------------------------------------------------------------------------


class PlanOracle:
    """INV-11, Q9: while a plan is in use, every file that it names is there."""

    def begin(self, _: Nodes) -> str | None:
        return None

    def wrote(self, note: str | None, _: Nodes, after: Nodes) -> str | None:
        using = after.get(f"{PLAN}/query")
        if note is None and using is not None and using.data:
            gone = [path for path in using.data.decode().split("\n") if node_of(path) not in after]
            return f"INV-11: a plan in use names {gone[0]}, which was deleted" if gone else None
        return note

    def wrong_at_end(self, note: str | None, _nodes: Nodes, _results: Mapping[str, Any]) -> str | None:
        return note
