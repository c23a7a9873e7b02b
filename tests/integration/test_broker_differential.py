"""The broker against DuckDB: random queries, while files come and go, views are rebuilt and services are killed.

    BROKER_SEED=n                               the run again that a failure printed
    BROKER_SEED=random BROKER_QUERIES=20000     the long run

Sums of doubles are exact here (multiples of 1/64); averages are compared to nine digits.
"""

import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from floodmark.core.buckets import Cause
from floodmark.core.intervals import Interval
from tests.support.broker import Rides, assert_read_as_planned, comparable
from tests.support.broker_world import Killer, World, own_broker
from tests.support.eventually import eventually
from tests.support.query_dice import COUNT, VIEWS, Query, random_query, shrunk
from tests.support.system import System

pytestmark = pytest.mark.stack
HOURS = 30
ASKERS = 4
BLOCK = 1_000
QUERIES = int(os.environ.get("BROKER_QUERIES", "500"))
KILL_EVERY_S = min(60.0, max(10.0, QUERIES / 300))  # a service that starts takes a second of one core or two, Spark ten
GATE_SEED = "1086502071"
"""The gate asks the same every time; a long run looks for news."""


@dataclass
class Asker:
    world: World
    dice: random.Random
    tally: Counter[str] = field(default_factory=Counter)

    def ask(self, query: Query) -> None:
        answer, cut_off = self.world.asked(query.sql)
        receipt = answer.receipt
        assert receipt is not None
        version = receipt["registry_versions"][query.table]
        found, wanted = comparable(answer.rows()), self.world.wanted(query.judged, version)
        assert found == wanted, f"{query.sql}\n{found[:5]} are answered, {wanted[:5]} are right\n{receipt}"
        if query.where and receipt["read"]["bytes"] == 0:
            # Spark saw that the conditions exclude each other. Then no row satisfies them, and none had to be read.
            rows = replace(query, outputs=(COUNT,), having=None, order=(), limit=None)
            assert self.world.wanted(rows.judged, version) == [(0,)], f"nothing was read for {query.sql}"
        else:
            assert_read_as_planned(answer)
        mixed = receipt["view"] is not None and receipt["from_base"]["bytes"] > 0
        self.tally["mixed" if mixed else "view" if receipt["view"] else "base"] += 1
        self.tally["cut off"] += cut_off

    def ask_some(self, count: int) -> tuple["Asker", Query, AssertionError] | None:
        """Until one is wrong."""
        for _ in range(count):
            query = random_query(self.dice, self.world.rides.name, hours=HOURS)
            try:
                self.ask(query)
            except AssertionError as error:
                return self, query, error
        return None

    def fails(self, query: Query) -> bool:
        try:
            self.ask(query)
        except AssertionError:
            return True
        return False


@pytest.fixture
def world(system: System) -> World:
    seed = os.environ.get("BROKER_SEED", GATE_SEED)
    seed = str(random.randrange(2**32)) if seed == "random" else seed
    print(f"BROKER_SEED={seed} BROKER_QUERIES={QUERIES}", flush=True)  # noqa: T201 - a failing run must be repeatable
    made = World(Rides(own_broker(system), scan=False), random.Random(seed), HOURS)
    for hour in range(HOURS):
        if hour not in (7, 8):  # empty buckets
            made.put(f"s{made.files}", hour)
    for suffix, (bucket, select) in VIEWS.items():
        view = made.rides.view(suffix, bucket=bucket, select=select)
        made.judge.views[view] = select.format(table=made.rides.name)
    return made


def ask_many(world: World, count: int, what: str) -> Counter[str]:
    """So many queries, several at once."""
    tally = Counter[str]()
    for asked in range(0, count, BLOCK):
        began_s = time.monotonic()
        tally += ask_block(world, min(BLOCK, count - asked))
        print(f"{what}: {dict(tally)}, the last in {time.monotonic() - began_s:.0f} s", flush=True)  # noqa: T201
    return tally


def ask_block(world: World, count: int) -> Counter[str]:
    """A wrong one is made smaller before it is told."""
    askers = [Asker(world, random.Random(world.dice.random())) for _ in range(ASKERS)]
    with ThreadPoolExecutor(ASKERS) as threads:
        failures = [found for found in threads.map(lambda asker: asker.ask_some(-(-count // ASKERS)), askers) if found]
    for asker, query, error in failures:
        smallest = shrunk(query, asker.fails)
        raise AssertionError(f"smallest that fails still: {smallest.sql}\nfirst: {error}")
    return sum((asker.tally for asker in askers), Counter[str]())


@pytest.mark.scenario("Q10")
@pytest.mark.timeout(600 + QUERIES * 3)
def test_every_strict_answer_is_what_duckdb_makes_of_the_registered_files(world: World) -> None:
    """INV-12. Freshly created views, then changes and kills, then half of the buckets STALE, then every one."""
    tally = ask_many(world, QUERIES // 10, "freshly created")
    tally += ask_while_changing(world)
    views = [f"{world.rides.name}_{suffix}" for suffix in VIEWS]
    behind = world.system.behind
    eventually(lambda: not any(map(behind, views)), within_s=240, every_s=0.5, what="every view caught up")
    tally += ask_many(world, QUERIES // 5, "caught up")
    mark_half(world, views)
    tally += ask_many(world, QUERIES // 8, "half VALID")
    for view in views:
        world.system.ledger.views.mark_stale(view, None, Cause("event", "all", 1))
    eventually(lambda: _all_from_base(world), within_s=30, what="the broker has seen that nothing is VALID")
    stale = ask_many(world, QUERIES // 8, "every bucket STALE")
    assert set(stale) == {"base"}
    tally += stale
    answered = tally["view"] + tally["mixed"] + tally["base"]
    assert answered >= QUERIES
    assert tally["view"] + tally["mixed"] > (answered - stale["base"]) * 0.25, tally
    assert tally["mixed"] > 0


def ask_while_changing(world: World) -> Counter[str]:
    """Half of all queries, and more until each kind of service was killed."""
    killer = Killer(world)
    with world.changing(every_s=2), killer.killing(every_s=KILL_EVERY_S):
        tally = ask_many(world, QUERIES // 2, "changes and kills")
        while not killer.has_killed_each:
            tally += ask_many(world, ASKERS * 5, f"until each was killed, so far {killer.killed}")
    print(f"killed {killer.killed}, {world.files} files written, {len(world.versions)} versions", flush=True)  # noqa: T201
    return tally


def mark_half(world: World, views: list[str]) -> None:
    ledger = world.system.ledger
    for view in views:
        world.rides.ask(f"PAUSE MATERIALIZED VIEW {view}")
        half = [s for s in ledger.views.state(view).entries if world.asking.random() < 0.5]
        width_ms = ledger.views.header(view).definition.bucket_ms
        ledger.views.mark_stale(view, [Interval(s, s + width_ms) for s in half], Cause("event", "half", 1))


def _all_from_base(world: World) -> bool:
    answer = world.rides.ask("SELECT city, sum(cents) AS c FROM {t} GROUP BY city")
    return answer.receipt is not None and answer.receipt["view"] is None
