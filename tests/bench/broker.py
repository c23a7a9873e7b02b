"""What a view is worth to a query: the same text answered from the view and from the base table, in turns.

5 million rides in 1,000 segments and a view by the hour; TPC-H's lineitem at scale factor 1 and views by the day. Both
sides go through the broker, by its Python client, and have the same warm Spark.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import floodmark
from floodmark.client import Connection
from tests.bench.harness.figures import AtLeast, Measurement, Run, figure, interleaved_ratio
from tests.bench.harness.rides import ROWS, SEGMENT_MS, SEGMENTS, START_MS, write_rides
from tests.bench.harness.servers import whole_system
from tests.support import tpch
from tests.support.broker import BrokerUnderTest, comparable, start_broker
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.system import System

BY_CITY = "SELECT city, count(*) AS n, sum(fare) AS fare, max(distance) AS farthest FROM rides GROUP BY city"
HOURLY = (
    "SELECT date_trunc('HOUR', event_time) AS hour, city, count(*) AS n, sum(fare) AS fare, max(distance) AS farthest "
    "FROM rides GROUP BY 1, 2"
)
SCALE = "1"
WARM_S = 20
"""The JVM compiles what runs often, and a broker runs for days: with 5 s the first figure was 4.16."""


@dataclass
class Bench:
    broker: BrokerUnderTest
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def __post_init__(self) -> None:
        self.rewriting = floodmark.connect(self.broker.url)
        self.from_base = floodmark.connect(self.broker.url)
        self.from_base.sql("SET floodmark.rewrite = off")

    def speed_up(self, query: str) -> Measurement:
        """Base over view, after both have given the same rows."""
        view, base = self.rewriting.sql(query), self.from_base.sql(query)
        assert view.receipt is not None
        assert base.receipt is not None
        assert view.receipt["view"] is not None, view.receipt["unused"]
        assert base.receipt["view"] is None
        assert comparable(view.rows()) == comparable(base.rows())
        measured = interleaved_ratio(
            lambda: _seconds(self.from_base, query),
            lambda: _seconds(self.rewriting, query),
            blocks=2,
            names=("base_s", "view_s"),
        )
        read = {"base_bytes": base.receipt["read"]["bytes"], "view_bytes": view.receipt["read"]["bytes"]}
        return Measurement(measured.value, {**measured.detail, **read})

    def rides(self) -> None:
        lake = self.broker.system.lake / "rides"
        lake.mkdir()
        for n in range(SEGMENTS):
            write_rides(lake / f"rides-{n:04d}.parquet", START_MS + n * SEGMENT_MS, self.dice)
        self.rewriting.sql(
            f"CREATE TABLE rides USING parquet LOCATION '{lake}' TBLPROPERTIES ('time_column' = 'event_time')"
        )
        self._await_rows("rides", SEGMENTS * ROWS)
        self.rewriting.sql(f"CREATE MATERIALIZED VIEW hourly TBLPROPERTIES ('bucket' = '1h') AS {HOURLY}")
        self._await_built("hourly", SEGMENTS * SEGMENT_MS // HOUR_MS)

    def lineitem(self, scratch: Path) -> None:
        lake = self.broker.system.lake / "lineitem"
        rows = tpch.generate(lake, scratch, scale=SCALE)
        self.rewriting.sql(
            f"CREATE TABLE lineitem USING parquet LOCATION '{lake}' TBLPROPERTIES ('time_column' = 'l_shipdate')"
        )
        self._await_rows("lineitem", rows)
        for name, select in tpch.VIEWS.items():
            query = select.format(t="lineitem")
            self.rewriting.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('bucket' = '30d') AS {query}")
        for name in tpch.VIEWS:
            self._await_built(name, 83)

    def _await_rows(self, table: str, rows: int) -> None:
        snapshot = self.broker.system.ledger.registry.snapshot
        eventually(
            lambda: sum(s.rows for s in snapshot(table).by_name.values()) == rows,
            within_s=300,
            every_s=0.5,
            what=f"{rows} rows of {table} registered",
        )

    def _await_built(self, view: str, buckets: int) -> None:
        system = self.broker.system
        eventually(
            lambda: len(system.ledger.views.state(view).entries) >= buckets and not system.behind(view),
            within_s=600,
            every_s=0.5,
            what=f"{view} built",
        )


def _seconds(connection: Connection, query: str) -> float:
    began_s = time.perf_counter()
    connection.sql(query)
    return time.perf_counter() - began_s


@contextmanager
def suite() -> Iterator[Bench]:
    with whole_system() as (system, root):
        yield set_up(system, root)


def set_up(system: System, root: Path) -> Bench:
    system.start_all()
    worker = system.start("worker")
    worker.await_event("service_started", within_s=180)
    broker = start_broker(
        system,
        FLOODMARK_BROKER__VIEWS_LOCATION=str(system.lake / "views"),
        FLOODMARK_SPARK__MASTER="local[*]",
        FLOODMARK_SPARK__OPTIONS="{}",
    )
    bench = Bench(broker)
    bench.rides()
    bench.lineitem(root / "tpch")
    worker.process.kill()  # it has built what there is; what is measured has the machine to itself
    for query in (BY_CITY, *(q.format(t="lineitem") for q in tpch.QUERIES.values())):
        for connection in (bench.rewriting, bench.from_base):
            _warm(connection, query)
    return bench


def _warm(connection: Connection, query: str) -> None:
    """Both sides for the same time."""
    until_s = time.perf_counter() + WARM_S
    while time.perf_counter() < until_s:
        connection.sql(query)


@figure(name="a GROUP BY over 5 million rows, from base over from the view", goal=AtLeast(5), runs=5)
def five_million_rows(run: Run) -> Measurement:
    bench: Bench = run.resources
    return bench.speed_up(BY_CITY)


@figure(name="TPC-H Q1 at scale factor 1, from base over from a daily view", goal=AtLeast(5), runs=3)
def tpch_q1(run: Run) -> Measurement:
    bench: Bench = run.resources
    return bench.speed_up(tpch.Q1.format(t="lineitem"))


@figure(name="TPC-H Q6 at scale factor 1, from base over from a daily view", goal=AtLeast(1), runs=3)
def tpch_q6(run: Run) -> Measurement:
    bench: Bench = run.resources
    return bench.speed_up(tpch.Q6.format(t="lineitem"))


@figure(name="TPC-H revenue by month at scale factor 1, from base over from a daily view", goal=AtLeast(5), runs=3)
def tpch_monthly(run: Run) -> Measurement:
    bench: Bench = run.resources
    return bench.speed_up(tpch.MONTHLY.format(t="lineitem"))
