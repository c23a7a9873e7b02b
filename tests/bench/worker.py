"""What the system adds to Spark: the same work through all services, and as a job written by hand.

5 million rows in 1,000 segments of five minutes, and a view by the hour. The hand-written jobs run in this process, on
a session with the worker's settings, as warm as the worker's; one side works at a time.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as fn

from floodmark.catalog.definitions import TableRequest, ViewRequest, create_table, create_view
from floodmark.core.buckets import State
from floodmark.spark.session import open_session
from floodmark_consistency.config import ConsistencySection
from tests.bench.harness.figures import AtMost, Measurement, Run, figure
from tests.bench.harness.rides import SEGMENT_MS, SEGMENTS, START_MS, write_rides
from tests.bench.harness.servers import whole_system
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.service_process import ServiceUnderTest
from tests.support.system import System

BUCKETS = SEGMENTS * SEGMENT_MS // HOUR_MS
QUIET_S = ConsistencySection().quiet_ms / 1000
LATE_HOURS = (10, 40, 70)
LATE_STARTS = [START_MS + hour * HOUR_MS for hour in LATE_HOURS]
SCHEMA = types.StructType(
    [
        types.StructField("event_time", types.TimestampType()),
        types.StructField("city", types.StringType()),
        types.StructField("kind", types.LongType()),
        types.StructField("fare", types.DoubleType()),
        types.StructField("distance", types.LongType()),
    ]
)
SELECT = """
SELECT date_trunc('HOUR', event_time) AS hour, city, count(*) AS n, sum(fare) AS fare, max(distance) AS farthest
FROM rides GROUP BY 1, 2
"""


@dataclass
class Bench:
    system: System
    worker: ServiceUnderTest
    spark: SparkSession
    lake: Path
    scratch: Path
    views: int = 0
    late: int = 0
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    # -- the system's side -----------------------------------------------------------------------------------------

    def first_build_s(self) -> float:
        """From the definition of a view to the last of its buckets VALID."""
        self.views += 1
        name = f"view_{self.views}"
        started_s = time.perf_counter()
        create_view(self.system.ledger, ViewRequest(name, "rides", "1h", SELECT, str(self.scratch / name)))
        self._await_watermark(name)
        elapsed_s = time.perf_counter() - started_s
        assert self._valid(name) == BUCKETS
        self.system.ledger.views.drop(f"view_{self.views - 1}")  # or every late file would be built into all of them
        return elapsed_s

    def late_s(self) -> tuple[float, float]:
        """From three files in distant hours visible to all three hours VALID with them; rows read for it."""
        view = f"view_{self.views}"
        self.late += 1
        before, attempts = self._rows_read(view), self._attempts(view)
        for hour in LATE_HOURS:
            name = f"late-{self.late}-{hour}.parquet"
            write_rides(self.lake / name, START_MS + hour * HOUR_MS, self.dice, rows=100)
        started_s = time.perf_counter()
        # Asked as little as can be: whoever measures runs on the same two cores.
        eventually(lambda: self._rebuilt(view, attempts), within_s=60, every_s=0.01, what="the late hours VALID")
        elapsed_s = time.perf_counter() - started_s
        assert self._are_current(view), "rebuilt without the late files"
        rows = eventually(lambda: self._rows_read(view) - before, within_s=30)
        return elapsed_s, rows

    def expected_rows(self) -> int:
        windows = [
            self.system.ledger.views.header(f"view_{self.views}").definition.grid.window(start_ms)
            for start_ms in LATE_STARTS
        ]
        found = self.system.ledger.registry.read_windows("rides", windows)
        return sum(s.rows for read in found for s in read.segments.values())

    def _attempts(self, view: str) -> dict[int, str]:
        """Those that made the late hours VALID, as far as they are."""
        entries = self.system.ledger.views.buckets(view, LATE_STARTS).entries
        return {start: entry.attempt_id for start, entry in entries.items() if entry.state is State.VALID}

    def _rebuilt(self, view: str, attempts: dict[int, str]) -> bool:
        now = self._attempts(view)
        return len(now) == len(LATE_STARTS) and not now.items() & attempts.items()

    def _are_current(self, view: str) -> bool:
        grid = self.system.ledger.views.header(view).definition.grid
        starts = LATE_STARTS
        sources = self.system.ledger.registry.read_windows("rides", [grid.window(s) for s in starts])
        entries = self.system.ledger.views.buckets(view, starts).entries
        late = [sum(name.startswith(f"late-{self.late}-") for name in read.segments) for read in sources]
        current = [
            entries[s].state is State.VALID and entries[s].fingerprint == read.source.fingerprint
            for s, read in zip(starts, sources, strict=True)
        ]
        return late == [1, 1, 1] and all(current)

    def _await_watermark(self, view: str) -> None:
        end_ms = START_MS + BUCKETS * HOUR_MS
        header = self.system.ledger.views.header
        eventually(lambda: (header(view).watermark_ms or 0) >= end_ms, within_s=300, every_s=0.01, what=f"{view} built")

    def _valid(self, view: str) -> int:
        return sum(e.state is State.VALID for e in self.system.ledger.views.state(view).entries.values())

    def _rows_read(self, view: str) -> float:
        _, page = self.worker.ask("/metrics")
        line = f'floodmark_rows_read_total{{view="{view}"}} '
        return next((float(text.removeprefix(line)) for text in page.splitlines() if text.startswith(line)), 0.0)

    # -- by hand ---------------------------------------------------------------------------------------------------

    def by_hand_s(self) -> float:
        """One job over everything, a file for each bucket."""
        files = sorted(str(p) for p in self.lake.glob("*.parquet"))
        started_s = time.perf_counter()
        self._grouped(files).repartition("bucket").write.partitionBy("bucket").option("compression", "zstd").parquet(
            str(self.scratch / f"hand-{uuid.uuid4().hex}")
        )
        return time.perf_counter() - started_s

    def overwrite_by_hand_s(self, target: Path) -> float:
        """A warm overwrite of three partitions, reading only the files of those hours."""
        windows = [(START_MS + h * HOUR_MS, START_MS + (h + 1) * HOUR_MS) for h in LATE_HOURS]
        files = [
            str(self.lake / _name(n))
            for n in range(SEGMENTS)
            if any(a <= START_MS + n * SEGMENT_MS < b for a, b in windows)
        ]
        files += [str(p) for p in self.lake.glob(f"late-{self.late}-*.parquet")]
        started_s = time.perf_counter()
        rows = self._grouped(files).repartition("bucket")
        rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("bucket").option(
            "compression", "zstd"
        ).parquet(str(target))
        return time.perf_counter() - started_s

    def _grouped(self, files: Sequence[str]) -> DataFrame:
        rows = self.spark.read.schema(SCHEMA).parquet(*files)
        hour = fn.date_trunc("HOUR", "event_time")
        return (
            rows.groupBy(hour.alias("hour"), "city")
            .agg(fn.count(fn.lit(1)).alias("n"), fn.sum("fare").alias("fare"), fn.max("distance").alias("farthest"))
            .withColumn("bucket", fn.unix_millis("hour"))
        )


def _name(n: int) -> str:
    return f"rides-{n:04d}.parquet"


@contextmanager
def suite() -> Iterator[Bench]:
    with whole_system() as (system, root):
        spark = open_session({}, name="by hand")
        try:
            yield set_up(system, spark, root)
        finally:
            spark.stop()


def set_up(system: System, spark: SparkSession, root: Path) -> Bench:
    lake = system.lake / "rides"
    lake.mkdir()
    system.start_all()
    worker = system.start("worker")
    bench = Bench(system, worker, spark, lake, root / "scratch")
    for n in range(SEGMENTS):
        write_rides(lake / _name(n), START_MS + n * SEGMENT_MS, bench.dice)
    create_table(system.ledger, TableRequest("rides", str(lake), "event_time"))
    worker.await_event("service_started", within_s=180)
    eventually(lambda: len(system.segments()) == SEGMENTS, within_s=180, what=f"{SEGMENTS} segments registered")
    for _ in range(2):  # both sides warm
        bench.first_build_s()
        bench.by_hand_s()
    return bench


@figure(name="first build of all buckets over one hand-written Spark job", goal=AtMost(1.3), runs=5)
def first_build(run: Run) -> Measurement:
    """Definition to last commit against the same GROUP BY, written with a file for each bucket."""
    bench: Bench = run.resources
    hand_s, system_s, again_s = bench.by_hand_s(), bench.first_build_s(), bench.by_hand_s()
    by_hand_s = (hand_s + again_s) / 2
    return Measurement(system_s / by_hand_s, {"system_s": system_s, "by_hand_s": by_hand_s})


@figure(name="three late files visible to VALID over a hand-written overwrite plus debounce", goal=AtMost(1.5), runs=7)
def late_files(run: Run) -> Measurement:
    """Distant hours. By hand there is nothing to notice, decide or record: someone knows what to overwrite."""
    bench: Bench = run.resources
    target = bench.scratch / "overwritten"
    system_s, _ = bench.late_s()
    bench.overwrite_by_hand_s(target)  # warm
    by_hand_s = bench.overwrite_by_hand_s(target)
    return Measurement(
        system_s / (by_hand_s + QUIET_S), {"system_s": system_s, "by_hand_s": by_hand_s, "debounce_s": QUIET_S}
    )


@figure(name="rows read for three late files over the rows of the segments that overlap their hours", goal=AtMost(1.0))
def rows_read(run: Run) -> Measurement:
    """Exactly the segments that overlap, each once."""
    bench: Bench = run.resources
    _, rows = bench.late_s()
    expected = bench.expected_rows()
    return Measurement(rows / expected, {"rows_read": rows, "rows_of_overlapping_segments": expected})
