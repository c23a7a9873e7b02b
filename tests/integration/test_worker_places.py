"""A worker elsewhere and under load: on a Spark cluster, and with a backlog far larger than it may hold."""

import json
from pathlib import Path

import psutil
import pytest

from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.oracle import Recomputation
from tests.support.pipeline import write_parquet
from tests.support.spark_cluster import standalone_cluster
from tests.support.system import SMALL_SPARK, START_WITHIN_S, system_on

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1_200)]

SELECT = (
    "SELECT date_trunc('HOUR', event_time) AS hour, value, count(*) AS n, sum(value) AS total FROM rides GROUP BY 1, 2"
)
RECOMPUTED = Recomputation(
    "SELECT date_trunc('hour', event_time), value, count(*), sum(value)::BIGINT FROM {source} GROUP BY 1, 2",
    ("hour", "value", "n", "total"),
)
BACKLOG = 10_000
RSS_MAX_MIB = 400
"""Of the Python process. The JVM beside it has a bound of its own, `spark.driver.memory`."""


def test_the_same_cycle_holds_on_a_standalone_cluster(
    tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> None:
    """Two workers of the system, two of Spark: load, a late file, a deleted one. Files are written by executors too."""
    with standalone_cluster(tmp_path) as master, system_on(tmp_path, zookeeper, kafka) as system:
        rides = system.table()
        system.view(select=SELECT)
        raw = "SELECT event_time, value FROM rides"
        system.view("raw", select=raw)
        system.recomputations |= {
            "hourly": RECOMPUTED,
            "raw": Recomputation("SELECT event_time, value FROM {source}", ("event_time", "value")),
        }
        options = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.cores.max": "1"}
        environ = {"FLOODMARK_SPARK__MASTER": master, "FLOODMARK_SPARK__OPTIONS": json.dumps(options)}
        system.start_all()
        workers = [system.start("worker", **{**SMALL_SPARK, **environ}) for _ in range(2)]
        for worker in workers:
            assert worker.await_event("spark_started", within_s=2 * START_WITHIN_S)["master"] == master
        for hour in range(6):
            write_parquet(rides / f"s{hour}.parquet", hour, hour + 1, value=hour)
        for view in ("hourly", "raw"):
            system.await_built(view, up_to_ms=6 * HOUR_MS, within_s=400)
        write_parquet(rides / "late.parquet", 2.25, 3.5, rows=40, value=7)
        (rides / "s1.parquet").unlink()
        eventually(lambda: system.segments() == {"s0.parquet", "late.parquet", *(f"s{h}.parquet" for h in range(2, 6))})
        for view in ("hourly", "raw"):
            system.await_built(view, up_to_ms=6 * HOUR_MS, within_s=400)
            assert system.check(view) == 5


def test_a_backlog_of_ten_thousand_tasks_stays_within_the_workers_bound(
    tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> None:
    """Every task is on the topic before the worker starts; it reads no more of them than it may have in flight."""
    bounds = {
        "FLOODMARK_SCHEDULER__BACKFILL_QUOTA": str(2 * BACKLOG),
        "FLOODMARK_SCHEDULER__UNCLAIMED_MAX_MS": "3600000",
    }
    with system_on(tmp_path, zookeeper, kafka, **bounds) as system:
        rides = system.table()
        system.view(select=SELECT, coverage_start_ms=0)  # type: ignore[arg-type]
        write_parquet(rides / "all.parquet", 0, BACKLOG, rows=BACKLOG + 1)
        system.start_all()
        eventually(lambda: len(system.tasks()) >= BACKLOG, within_s=240, every_s=2, what=f"{BACKLOG} tasks")
        worker = system.start("worker", **SMALL_SPARK, FLOODMARK_WORKER__TASKS_IN_FLIGHT_MAX="1000")
        worker.await_event("service_started", within_s=START_WITHIN_S)
        process, highest = psutil.Process(worker.process.pid), 0

        def done() -> bool:
            nonlocal highest
            highest = max(highest, process.memory_info().rss)
            return (system.ledger.views.header("hourly").watermark_ms or 0) >= BACKLOG * HOUR_MS

        eventually(done, within_s=600, every_s=0.2, what="the backlog worked off")
        assert highest < RSS_MAX_MIB * 1024 * 1024, f"{highest / 2**20:.0f} MiB"
