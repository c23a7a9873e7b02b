"""A broker on the shared system: asked through the Python client, checked by DuckDB over the registered base files."""

import datetime as dt
import decimal
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark
from floodmark.client import Answer, Connection
from floodmark.core.segments import Segment
from floodmark.parquet.inspection import inspect
from floodmark.parquet.lake import Lake
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.service_process import ServiceUnderTest, new_table
from tests.support.system import SMALL_SPARK, START_WITHIN_S, System

Row = tuple[Any, ...]


@dataclass
class BrokerUnderTest:
    system: System
    process: ServiceUnderTest
    url: str
    connection: Connection

    def sql(self, text: str, **limits: Any) -> Answer:
        return self.connection.sql(text, **limits)

    def rows(self, text: str, **limits: Any) -> list[Row]:
        return comparable(self.sql(text, **limits).rows())

    def duck(self, text: str, table: str) -> list[Row]:
        """What DuckDB answers over the files that are registered now, and nothing else."""
        definition = self.system.ledger.registry.definition(table)
        segments = self.system.ledger.registry.snapshot(table).by_name.values()
        paths = [f"{definition.location}/{s.path}" for s in segments]
        return duck_rows(text, {table: paths})


def url_of(process: ServiceUnderTest) -> str:
    return f"http://127.0.0.1:{process.await_event('http_port_opened')['port']}"


def duck_rows(text: str, tables: dict[str, Sequence[str]]) -> list[Row]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, paths in tables.items():
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({list(paths)!r})")
        return comparable(connection.execute(text).fetchall())


def comparable(rows: Sequence[Row]) -> list[Row]:
    """In any order, floats to nine digits: sums of doubles depend on the order they are added in."""
    return sorted((tuple(_value(v) for v in row) for row in rows), key=repr)


def _value(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.9g}")
        case decimal.Decimal():
            return str(value.normalize())
        case dt.datetime() if value.tzinfo is not None:
            return value.astimezone(dt.UTC).replace(tzinfo=None)
        case _:
            return value


def start_broker(system: System, **environ: str) -> BrokerUnderTest:
    process = system.start("broker", **{**SMALL_SPARK, **environ})
    process.await_event("service_started", within_s=START_WITHIN_S)
    return started_broker(system, process)


def started_broker(system: System, process: ServiceUnderTest) -> BrokerUnderTest:
    url = url_of(process)
    return BrokerUnderTest(system, process, url, floodmark.connect(url))


@pytest.fixture(scope="session")
def broker(system: System) -> BrokerUnderTest:
    """One broker for all tests that ask; each has tables and views of its own."""
    views = str(system.lake / "broker_views")
    return start_broker(system, FLOODMARK_BROKER__VIEWS_LOCATION=views)


# -- a table with something of everything ------------------------------------------------------------------------------

CITIES = ("Évora", "İzmir", "東京", "O'Fallon", "", "Graz", None)
RIDES = pa.schema(
    [
        ("event_time", pa.timestamp("ms", tz="UTC")),
        ("city", pa.string()),
        ("rider", pa.int64()),
        ("fare", pa.float64()),
        ("cents", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("big", pa.int64()),
        ("booked", pa.timestamp("ms", tz="UTC")),
    ]
)
"""`booked` is a time that buckets are not made of, so a view may keep it by the week, month or year."""
BOOKED_MS = (-500 * 24 * HOUR_MS, 100 * 24 * HOUR_MS)
HOURLY = """
SELECT date_trunc('HOUR', event_time) AS hour, city, count(*) AS n, count(fare) AS fares, sum(fare) AS fare,
       min(fare) AS low, max(fare) AS high, avg(fare) AS mean, sum(cents) AS cents, sum(price) AS price,
       approx_count_distinct(rider) AS riders
FROM {table} GROUP BY 1, 2
"""


@dataclass
class Rides:
    """A table of rides and its views, asked through a broker. Fares are multiples of 1/64, so their sums are exact."""

    broker: BrokerUnderTest
    name: str = field(default_factory=new_table)
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    scan: bool = True

    def __post_init__(self) -> None:
        self.location = self.broker.system.lake / self.name
        self.location.mkdir(parents=True)
        self.write("first", 0, 1)
        self.define()

    def define(self) -> None:
        properties = f"'time_column' = 'event_time', 'scan' = '{str(self.scan).lower()}'"
        columns = "event_time TIMESTAMP, city STRING, rider BIGINT, fare DOUBLE, cents BIGINT"
        columns += ", price DECIMAL(12, 2), big BIGINT, booked TIMESTAMP"
        self.ask(
            f"CREATE TABLE {{t}} ({columns}) USING parquet LOCATION '{self.location}' TBLPROPERTIES ({properties})"
        )

    def write(self, name: str, first_hour: float, last_hour: float, *, rows: int = 1_000, nulls: float = 0) -> Path:
        """A whole file of rides in these hours, the last of them at the very end; `nulls` of them without a time."""
        dice = self.dice
        start_ms, end_ms = int(first_hour * HOUR_MS), int(last_hour * HOUR_MS)
        times = np.sort(dice.integers(start_ms, end_ms, rows))
        times[-1] = end_ms - 1
        fares = dice.integers(-(2**38), 2**38, rows) / 64
        cents = dice.integers(-(2**40), 2**40, rows)
        table = pa.table(
            [
                pa.array(times, mask=dice.random(rows) < nulls).cast(RIDES.field(0).type),
                pa.array([CITIES[n] for n in np.minimum(dice.geometric(0.4, rows) - 1, len(CITIES) - 1)]),
                pa.array(dice.integers(0, 30, rows)),
                pa.array(fares, mask=dice.random(rows) < 0.2),
                pa.array(cents, mask=dice.random(rows) < 0.1),
                pa.array([decimal.Decimal(int(c) % 10_000_000) / 100 for c in cents], pa.decimal128(12, 2)),
                pa.array(dice.integers(-(2**63), 2**63 - 1, rows)),
                pa.array(dice.integers(*BOOKED_MS, rows), mask=dice.random(rows) < 0.1).cast(
                    RIDES.field("booked").type
                ),
            ],
            schema=RIDES,
        )
        path = self.location / f"{name}.parquet"
        unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        pq.write_table(table, unfinished)
        unfinished.rename(path)
        return path

    def await_registered(self, *, within_s: float = 60) -> None:
        """Until the registry has the files as they are."""

        def settled() -> bool:
            files = {p.name: p.stat() for p in self.location.glob("*.parquet")}
            stamps = {n: f"{s.st_size}:{s.st_mtime_ns}" for n, s in files.items()}
            known = self.broker.system.ledger.registry.snapshot(self.name).by_name
            return stamps == {name: segment.stamp for name, segment in known.items()}

        eventually(settled, within_s=within_s, every_s=0.1, what=f"the files of {self.name} registered")

    def view(self, suffix: str = "hourly", *, bucket: str = "1h", select: str = HOURLY) -> str:
        name = f"{self.name}_{suffix}"
        query = select.format(table=self.name)
        self.ask(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('bucket' = '{bucket}') AS {query}")
        return name

    def await_built(self, view: str, *, up_to_hour: int) -> None:
        self.broker.system.await_built(view, up_to_ms=up_to_hour * HOUR_MS)

    # -- asking: {t} stands for the table --------------------------------------------------------------------------

    def ask(self, text: str, **limits: Any) -> Answer:
        return self.broker.sql(text.format(t=self.name), **limits)

    def wanted(self, text: str) -> list[Row]:
        return self.broker.duck(text.format(t=self.name), self.name)

    def check(self, text: str, oracle: str | None = None) -> Answer:
        """The broker's rows are DuckDB's. Returns the answer, for its receipt."""
        answer = self.ask(text)
        found, wanted = comparable(answer.rows()), self.wanted(oracle or text)
        assert found == wanted, f"{text}: {found[:3]} are answered, {wanted[:3]} are right; {answer.receipt}"
        assert_read_as_planned(answer)
        return answer


def registered_segment(rides: Rides, path: Path, *, name: str | None = None) -> Segment:
    """A file as the ingester would register it."""
    definition = rides.broker.system.ledger.registry.definition(rides.name)
    seen = inspect(Lake(str(rides.location)), path.name, time_column="event_time", columns=definition.columns)
    return Segment(
        name=name or path.name,
        crc=seen.crc,
        start_ms=seen.start_ms,
        last_ms=seen.last_ms,
        path=path.name,
        rows=seen.rows,
        bytes=seen.file.bytes,
        stamp=seen.file.stamp,
        timeless_rows=seen.timeless_rows,
    )


def assert_read_as_planned(answer: Answer) -> None:
    """The bytes a receipt promises are those that Spark says it read."""
    receipt = answer.receipt
    assert receipt is not None
    assert receipt["read"]["bytes"] == receipt["from_view"]["bytes"] + receipt["from_base"]["bytes"], receipt
