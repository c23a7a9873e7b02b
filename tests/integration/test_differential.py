"""Random changes and random kills on two tables and four views; at every quiet point each bucket is recomputed.

The other engine is DuckDB, over the registered files. DIFFERENTIAL_S says for how long, DIFFERENTIAL_SEED which
changes. Every run of the tests has a short one; a long one is
`DIFFERENTIAL_S=600 .venv/bin/python -m pytest -s tests/integration/test_differential.py`.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.catalog.definitions import TableRequest, ViewRequest, create_table, create_view
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.oracle import Recomputation
from tests.support.service_process import ServiceUnderTest
from tests.support.system import SMALL_SPARK, START_WITHIN_S, System, system_on

pytestmark = [pytest.mark.stack, pytest.mark.timeout(3_600)]

DURATION_S = float(os.environ.get("DIFFERENTIAL_S", "30"))
SEED = int(os.environ.get("DIFFERENTIAL_SEED", str(random.SystemRandom().getrandbits(32))))
CHANGES_PER_ROUND = 12
HOURS = 48
TABLES = ("rides", "stops")
SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("ms", tz="UTC")),
        ("city", pa.string()),
        ("amount", pa.int64()),
        ("ratio", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Case:
    """A view and what another engine makes of it."""

    name: str
    table: str
    bucket: str
    select: str
    recomputed: Recomputation


CASES = (
    Case(
        "rides_hourly",
        "rides",
        "1h",
        "SELECT date_trunc('HOUR', event_time) AS hour, city, count(*) AS n, sum(amount) AS total, avg(ratio) AS r "
        "FROM rides GROUP BY 1, 2",
        Recomputation(
            "SELECT date_trunc('hour', event_time), city, count(*), sum(amount)::BIGINT, sum(ratio), count(ratio) "
            "FROM {source} GROUP BY 1, 2",
            ("hour", "city", "n", "total", "r__sum", "r__count"),
        ),
    ),
    Case(
        "rides_some",
        "rides",
        "6h",
        "SELECT city, min(amount) AS low, max(amount) AS high, count(amount) AS known FROM rides "
        "WHERE city = 'Ghent' OR amount > 50 GROUP BY city",
        Recomputation(
            "SELECT city, min(amount), max(amount), count(amount) FROM {source} "
            "WHERE city = 'Ghent' OR amount > 50 GROUP BY 1",
            ("city", "low", "high", "known"),
        ),
    ),
    Case(
        "stops_daily",
        "stops",
        "1d",
        "SELECT count(*) AS n, sum(CASE WHEN amount < 0 THEN 1 ELSE 0 END) AS below FROM stops",
        Recomputation(
            "SELECT count(*), sum(CASE WHEN amount < 0 THEN 1 ELSE 0 END)::BIGINT FROM {source} HAVING count(*) > 0",
            ("n", "below"),
        ),
    ),
    Case(
        "stops_raw",
        "stops",
        "1h",
        "SELECT event_time, city, amount * 2 AS doubled FROM stops WHERE amount IS NOT NULL",
        Recomputation(
            "SELECT event_time, city, amount * 2 FROM {source} WHERE amount IS NOT NULL",
            ("event_time", "city", "doubled"),
        ),
    ),
)


@dataclass
class Chaos:
    """The system, its files, and dice."""

    system: System
    dice: random.Random
    running: dict[str, ServiceUnderTest] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    names: int = 0

    def set_up(self) -> None:
        for table in TABLES:
            location = self.system.lake / table
            location.mkdir()
            columns = tuple((f.name, str(f.type)) for f in SCHEMA)
            create_table(self.system.ledger, TableRequest(table, str(location), "event_time", columns))
        for case in CASES:
            location = str(self.system.lake / "views" / case.name)
            request = ViewRequest(case.name, case.table, case.bucket, case.select, location, coverage_start_ms=0)
            create_view(self.system.ledger, request)
            self.system.recomputations[case.name] = case.recomputed
        for name in ("ingester", "consistency", "scheduler", "worker-1", "worker-2"):
            self.start(name)
        for running in self.running.values():
            running.await_event("service_started", within_s=START_WITHIN_S)

    def start(self, name: str) -> None:
        service = name.partition("-")[0]
        self.running[name] = self.system.start(service, **(SMALL_SPARK if service == "worker" else {}))

    # -- what happens ----------------------------------------------------------------------------------------------

    def change(self) -> None:
        table = self.dice.choice(TABLES)
        location = self.system.lake / table
        present = sorted(p.name for p in location.glob("*.parquet"))
        kinds: list[tuple[str, Callable[[], None]]] = [("add", lambda: self._add(location))]
        if len(present) > 1:
            kinds += [
                ("replace", lambda: self._write(location / self.dice.choice(present))),
                ("delete", lambda: self._delete(location / self.dice.choice(present))),
            ]
        kind, act = self.dice.choice(kinds)
        act()
        self.done[kind] += 1

    def _add(self, location: Path) -> None:
        self.names += 1
        self._write(location / f"part-{self.names:04d}.parquet")

    def _delete(self, path: Path) -> None:
        path.unlink()

    def _write(self, path: Path) -> None:
        """A file over one to ten hours, anywhere: late ones and backfills are what most of them are."""
        first = self.dice.uniform(0, HOURS - 1)
        span_ms = int(self.dice.choice((0.5, 1, 3, 10)) * HOUR_MS)
        start_ms = int(first * HOUR_MS)
        count = self.dice.randint(1, 200)
        rows = {
            "event_time": [start_ms + self.dice.randrange(span_ms) for _ in range(count)],
            "city": [self.dice.choice(("Ghent", "Łódź", "", None, "東京")) for _ in range(count)],
            "amount": [self.dice.choice((None, self.dice.randint(-100, 100), 10**12)) for _ in range(count)],
            "ratio": [self.dice.choice((None, self.dice.uniform(-1, 1))) for _ in range(count)],
        }
        unfinished = path.with_name(f".{path.name}.{self.dice.getrandbits(40):x}")
        pq.write_table(
            pa.table({f.name: pa.array(rows[f.name]).cast(f.type) for f in SCHEMA}, schema=SCHEMA), unfinished
        )
        unfinished.rename(path)

    def kill(self) -> None:
        """Kill one at random. It is started again when its turn comes, as a supervisor would."""
        name = self.dice.choice(sorted(self.running))
        self.running[name].process.kill()
        self.running[name].process.wait()
        self.start(name)
        self.done[f"kill {name.partition('-')[0]}"] += 1

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Wait until nothing moves any more, then compare every bucket."""
        for table in TABLES:
            location = self.system.lake / table
            wanted = {p.name for p in location.glob("*.parquet")}
            eventually(lambda t=table, w=wanted: self._registered(t, w), within_s=120, what=f"{table} registered")  # type: ignore[misc]
        for case in CASES:
            header = self.system.ledger.registry.header(case.table)
            view = self.system.ledger.views.header(case.name)
            end_ms = 0 if header.max_last_ms is None else view.definition.grid.start_of(header.max_last_ms + 1)
            self.system.await_built(case.name, up_to_ms=end_ms, within_s=300)
            self.done["buckets compared"] += self.system.check(case.name)

    def _registered(self, table: str, names: set[str]) -> bool:
        """Every file is there, with the size it has now."""
        known = self.system.ledger.registry.snapshot(table).by_name
        location = self.system.lake / table
        return set(known) == names and all(known[n].bytes == (location / n).stat().st_size for n in names)


def test_every_bucket_equals_a_recomputation_after_random_changes_and_kills(
    tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> None:
    """INV-3, INV-6, INV-7, INV-9 at every quiet point."""
    print(f"DIFFERENTIAL_SEED={SEED} DIFFERENTIAL_S={DURATION_S:g}")  # noqa: T201 - a failing run must be repeatable
    with system_on(tmp_path, zookeeper, kafka) as system:
        chaos = Chaos(system, random.Random(SEED))
        chaos.set_up()
        deadline_s = time.monotonic() + DURATION_S
        while chaos.done["rounds"] == 0 or time.monotonic() < deadline_s:
            for _ in range(CHANGES_PER_ROUND):
                chaos.change()
                if chaos.dice.random() < 0.15:
                    chaos.kill()
            chaos.check()
            chaos.done["rounds"] += 1
        print(dict(chaos.done))  # noqa: T201
        assert chaos.done["buckets compared"] > 0
