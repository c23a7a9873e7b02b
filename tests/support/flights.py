"""Real flights in a table of their own, day by day: a daily and an hourly view of them, and a life of every change.

The system may run as processes or in containers, as long as it finds the lake where this process does.
"""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.catalog.definitions import TableRequest, ViewRequest, create_table, create_view
from floodmark.core.buckets import State
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.oracle import Oracle, Recomputation

AIRLINE = Path(os.environ.get("FLOODMARK_AIRLINE", Path(__file__).parents[3] / "shared" / "data" / "airline"))
WITHOUT_AIRLINE = f"the airline data is not in {AIRLINE}"
DAY_MS = 24 * HOUR_MS
FIRST_DAY_MS = 1_388_534_400_000  # 2014-01-01

DAILY = """
SELECT date_trunc('DAY', event_time) AS day, Carrier, count(*) AS flights, count(DepDelay) AS departed,
       sum(Distance) AS distance, avg(DepDelay) AS delay, min(DepDelay) AS earliest, max(DepDelay) AS latest,
       sum(CASE WHEN Cancelled = 1 OR Diverted = 1 THEN 1 ELSE 0 END) AS troubled,
       approx_count_distinct(TailNum) AS planes
FROM flights GROUP BY date_trunc('DAY', event_time), Carrier
"""
DAILY_RECOMPUTED = Recomputation(
    """SELECT date_trunc('day', event_time), Carrier, count(*), count(DepDelay), sum(Distance)::BIGINT,
       sum(DepDelay::DOUBLE), count(DepDelay), min(DepDelay), max(DepDelay),
       sum(CASE WHEN Cancelled = 1 OR Diverted = 1 THEN 1 ELSE 0 END)::BIGINT
    FROM {source} GROUP BY 1, 2""",
    (
        "day",
        "Carrier",
        "flights",
        "departed",
        "distance",
        "delay__sum",
        "delay__count",
        "earliest",
        "latest",
        "troubled",
    ),
)
HOURLY = """
SELECT date_trunc('HOUR', event_time) AS hour, Origin, count(*) AS flights, sum(ArrDelay) AS late
FROM flights WHERE Cancelled = 0 AND (DistanceGroup >= 2 OR Carrier IN ('AA', 'DL')) GROUP BY 1, 2
"""
HOURLY_RECOMPUTED = Recomputation(
    """SELECT date_trunc('hour', event_time), Origin, count(*), sum(ArrDelay)::BIGINT FROM {source}
    WHERE Cancelled = 0 AND (DistanceGroup >= 2 OR Carrier IN ('AA', 'DL')) GROUP BY 1, 2""",
    ("hour", "Origin", "flights", "late"),
)


class Flights:
    """The airline table, day by day."""

    def __init__(self, system: Oracle, lake: Path) -> None:
        self.system = system
        self.location = lake / "flights"
        self.location.mkdir()
        create_table(
            system.ledger, TableRequest("flights", str(self.location), "event_time", _columns(AIRLINE / _name(1)))
        )
        for name, bucket, select, recomputed in (
            ("flights_daily", "1d", DAILY, DAILY_RECOMPUTED),
            ("flights_hourly", "1h", HOURLY, HOURLY_RECOMPUTED),
        ):
            location = str(lake / "views" / name)
            request = ViewRequest(name, "flights", bucket, select, location, coverage_start_ms=FIRST_DAY_MS)
            create_view(system.ledger, request)
            system.recomputations[name] = recomputed

    def day(self, number: int) -> pa.Table:
        return pq.read_table(AIRLINE / _name(number))

    def put(self, name: str, rows: pa.Table) -> None:
        unfinished = self.location / f".{name}"
        pq.write_table(rows, unfinished)
        unfinished.rename(self.location / name)

    def await_segments(self, count: int) -> None:
        eventually(
            lambda: len(self.system.ledger.registry.snapshot("flights").by_name) == count,
            within_s=60,
            what=f"{count} segments",
        )

    def check(self, *, days: int) -> None:
        """Both views, up to the end of the last whole bucket, against a fresh computation."""
        last_ms = self.system.ledger.registry.header("flights").max_last_ms
        assert last_ms is not None
        self.system.await_built("flights_daily", up_to_ms=(last_ms + 1) // DAY_MS * DAY_MS)
        self.system.await_built("flights_hourly", up_to_ms=(last_ms + 1) // HOUR_MS * HOUR_MS)
        assert self.system.check("flights_daily") >= days - 1
        assert self.system.check("flights_hourly") >= (days - 1) * 12

    def live(self) -> None:
        """As E1: load, append, a late segment, a replaced one, a deleted day, a backfill into it."""
        tenth = self.day(10)
        delayed = pc.fill_null(pc.greater(tenth["DepDelay"], 30), fill_value=False)
        for day in range(1, 21):
            self.put(_name(day), self.day(day) if day != 10 else tenth.filter(pc.invert(delayed)))
        self.await_segments(20)
        self.check(days=20)
        for day in range(21, 32):
            self.put(_name(day), self.day(day))
        self.await_segments(31)
        self.check(days=31)
        self.put("late-10.parquet", tenth.filter(delayed))
        self.await_segments(32)
        self.check(days=31)
        self.put(_name(5), self.day(5).slice(0, 300))
        eventually(lambda: self.system.ledger.registry.snapshot("flights").by_name[_name(5)].rows == 300, within_s=60)
        self.check(days=31)
        (self.location / _name(15)).unlink()
        self.await_segments(31)
        self.check(days=30)
        gone = self.system.ledger.views.state("flights_daily").entries[FIRST_DAY_MS + 14 * DAY_MS]
        assert gone.state is State.VALID
        self.put("again-15.parquet", self.day(15))
        self.await_segments(32)
        self.check(days=31)


def _name(day: int) -> str:
    return f"2014-01-{day:02d}.parquet"


def _columns(path: Path) -> tuple[tuple[str, str], ...]:
    return tuple((f.name, str(f.type)) for f in pq.read_schema(path))
