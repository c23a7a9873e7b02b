"""The broker against DuckDB: random queries, while files come and go, views are rebuilt and services are killed.

    BROKER_SEED=n                  the run again that a failure printed
    BROKER_QUERIES=20000   the long run

Changes go into the registry by the test's own hand, which keeps the files of every version. An answer says on which
version it stands, so that DuckDB can be asked about exactly those files, however fast they change. Sums of doubles are
exact here (multiples of 1/64); averages are compared to nine digits.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

import floodmark
from floodmark.client import Connection
from floodmark.core.buckets import Cause
from floodmark.core.intervals import Interval
from floodmark.core.registry import Command, Put, Remove
from tests.support.broker import (
    BrokerUnderTest,
    Rides,
    assert_read_as_planned,
    comparable,
    duck_rows,
    registered_segment,
)
from tests.support.eventually import eventually
from tests.support.query_dice import Query, random_query, shrunk

pytestmark = pytest.mark.stack
HOURS = 30
ASKERS = 3
QUERIES = int(os.environ.get("BROKER_QUERIES", "500"))
GATE_SEED = "1086502071"
"""The gate asks the same every time; a long run looks for news: BROKER_SEED=random BROKER_QUERIES=20000."""
VIEWS = {
    "hourly": ("1h", "SELECT date_trunc('HOUR', event_time) AS hour, city, count(*) AS n, count(fare) AS fares, "
               "sum(fare) AS fare, min(fare) AS low, max(fare) AS high, avg(fare) AS mean, sum(cents) AS cents, "
               "avg(cents) AS mean_cents, sum(price) AS price, min(big) AS least, max(big) AS most "
               "FROM {table} GROUP BY 1, 2"),
    "daily": ("1d", "SELECT date_trunc('DAY', event_time) AS day, city, count(*) AS n, sum(price) AS price, "
              "min(big) AS low, max(big) AS high, sum(cents) AS cents, avg(cents) AS mean FROM {table} GROUP BY 1, 2"),
    "tokyo": ("2h", "SELECT date_trunc('HOUR', event_time) AS hour, count(*) AS n, sum(fare) AS fare FROM {table} "
              "WHERE city = '東京' GROUP BY 1"),
}  # fmt: skip


@dataclass
class World:
    """A table whose every version is remembered."""

    rides: Rides
    dice: random.Random
    versions: dict[int, tuple[str, ...]] = field(default_factory=dict)
    registered: dict[str, str] = field(default_factory=dict)
    files: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def change(self) -> None:
        """A late file, a file replaced, or a file gone."""
        kind = self.dice.random()
        if kind < 0.6 or len(self.registered) < HOURS // 2:
            self.put(f"s{self.files}", self.dice.randrange(HOURS))
        elif kind < 0.8:
            self.put(self.dice.choice(sorted(self.registered)), self.dice.randrange(HOURS))
        else:
            self.apply(Remove(self.dice.choice(sorted(self.registered))))

    def put(self, name: str, hour: int) -> None:
        """A new file under this name. The one before stays where it is: answers on earlier versions need it."""
        self.files += 1
        length = self.dice.choice((1, 1, 1, 3, 0.5))
        nulls = 0.02 if self.dice.random() < 0.1 else 0.0
        path = self.rides.write(f"f{self.files}", hour, hour + length, rows=self.dice.choice((400, 1_000)), nulls=nulls)
        self.apply(Put(registered_segment(self.rides, path, name=name)))

    def apply(self, command: Command) -> None:
        with self.lock:
            (done,) = self.rides.broker.system.ledger.registry.apply(self.rides.name, [command])
            if isinstance(command, Put):
                self.registered[command.name] = str(self.rides.location / command.segment.path)
            else:
                self.registered.pop(command.name, None)
            self.versions[done.result.version] = tuple(sorted(self.registered.values()))

    def wanted(self, query: Query, version: int) -> list[tuple[object, ...]]:
        with self.lock:
            files = self.versions[version]
        return duck_rows(query.sql, {query.table: files})


@dataclass
class Asker:
    world: World
    connection: Connection
    tally: Counter[str] = field(default_factory=Counter)

    def ask(self, query: Query) -> None:
        answer = self.connection.sql(query.sql)
        receipt = answer.receipt
        assert receipt is not None
        version = receipt["registry_versions"][query.table]
        wanted = self.world.wanted(query, version)
        found = comparable(answer.rows())
        assert found == wanted, f"{query.sql}\n{found[:5]} are answered, {wanted[:5]} are right\n{receipt}"
        if query.where and receipt["read"]["bytes"] == 0:
            # Spark saw that the conditions exclude each other. Then no row satisfies them, and none had to be read.
            rows = Query(query.table, keys=(), aggregates=("count(*)",), where=query.where)
            assert self.world.wanted(rows, version) == [(0,)], f"nothing was read for {query.sql}"
        else:
            assert_read_as_planned(answer)
        mixed = receipt["view"] is not None and receipt["from_base"]["bytes"] > 0
        self.tally["mixed" if mixed else "view" if receipt["view"] else "base"] += 1

    def fails(self, query: Query) -> bool:
        try:
            self.ask(query)
        except AssertionError:
            return True
        return False


@pytest.fixture
def world(broker: BrokerUnderTest) -> World:
    seed = os.environ.get("BROKER_SEED", GATE_SEED)
    seed = str(random.randrange(2**32)) if seed == "random" else seed
    print(f"BROKER_SEED={seed} BROKER_QUERIES={QUERIES}")  # noqa: T201 - a failing run must be repeatable
    made = World(Rides(broker, scan=False), random.Random(seed))
    for hour in range(HOURS):
        if hour not in (7, 8):  # empty buckets
            made.put(f"s{made.files}", hour)
    for suffix, (bucket, select) in VIEWS.items():
        made.rides.view(suffix, bucket=bucket, select=select)
    return made


@contextmanager
def changing(world: World, *, every_s: float) -> Iterator[None]:
    """Changes flow while the block runs."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every_s):
            world.change()

    changer = threading.Thread(target=run)
    changer.start()
    try:
        yield
    finally:
        stop.set()
        changer.join()


@contextmanager
def killing(world: World, *, every_s: float) -> Iterator[None]:
    """Replicas of services are killed and started again while the block runs."""
    stop = threading.Event()
    system = world.rides.broker.system
    names = ("consistency", "scheduler")

    def run() -> None:
        running = {name: system.start(name) for name in names}
        while not stop.wait(every_s):
            name = world.dice.choice(names)
            running[name].process.kill()
            running[name] = system.start(name)
        for left in running.values():
            left.process.kill()

    killer = threading.Thread(target=run)
    killer.start()
    try:
        yield
    finally:
        stop.set()
        killer.join()


def ask_many(world: World, count: int) -> Counter[str]:
    """So many queries, several at once; a wrong one is made smaller before it is told."""
    url = world.rides.broker.url
    dice = [random.Random(world.dice.random()) for _ in range(ASKERS)]
    askers = [Asker(world, floodmark.connect(url)) for _ in range(ASKERS)]

    def run(n: int) -> tuple[Asker, Query, AssertionError] | None:
        for _ in range(count // ASKERS):
            query = random_query(dice[n], world.rides.name, hours=HOURS)
            try:
                askers[n].ask(query)
            except AssertionError as error:
                return askers[n], query, error
        return None

    with ThreadPoolExecutor(ASKERS) as threads:
        failures = [found for found in threads.map(run, range(ASKERS)) if found]
    for asker, query, error in failures:
        smallest = shrunk(query, asker.fails)
        raise AssertionError(f"smallest that fails still: {smallest.sql}\nfirst: {error}")
    return sum((asker.tally for asker in askers), Counter[str]())


@pytest.mark.scenario("Q10")
@pytest.mark.timeout(60 + QUERIES * 3)
def test_every_strict_answer_is_what_duckdb_makes_of_the_registered_files(world: World) -> None:
    """INV-12. Freshly created views, then changes and kills, then every bucket STALE, then half of them."""
    rides = world.rides
    ledger = rides.broker.system.ledger
    began_s = time.monotonic()
    tally = ask_many(world, QUERIES // 10)
    with changing(world, every_s=2), killing(world, every_s=15):
        tally += ask_many(world, QUERIES // 2)
    views = [f"{rides.name}_{suffix}" for suffix in VIEWS]
    for view in views:
        eventually(
            lambda view=view: not rides.broker.system.behind(view), within_s=240, every_s=0.5, what=f"{view} caught up"
        )
    tally += ask_many(world, QUERIES // 5)
    for view in views:
        rides.ask(f"PAUSE MATERIALIZED VIEW {view}")
        half = [s for s in ledger.views.state(view).entries if world.dice.random() < 0.5]
        width_ms = ledger.views.header(view).definition.bucket_ms
        ledger.views.mark_stale(view, [Interval(s, s + width_ms) for s in half], Cause("event", "half", 1))
    tally += ask_many(world, QUERIES // 8)
    for view in views:
        ledger.views.mark_stale(view, None, Cause("event", "all", 1))
    eventually(lambda: _all_from_base(world), within_s=30, what="the broker has seen that nothing is VALID")
    stale = ask_many(world, QUERIES // 8)
    took_s = time.monotonic() - began_s
    print(f"{dict(tally)}, with everything STALE {dict(stale)}, {took_s:.0f} s")  # noqa: T201
    assert set(stale) == {"base"}
    assert sum((tally + stale).values()) >= QUERIES * 0.95
    assert tally["view"] + tally["mixed"] > sum(tally.values()) * 0.25, tally
    assert tally["mixed"] > 0


def _all_from_base(world: World) -> bool:
    answer = world.rides.ask("SELECT city, sum(cents) AS c FROM {t} GROUP BY city")
    return answer.receipt is not None and answer.receipt["view"] is None
