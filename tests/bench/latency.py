"""From a file that appears in a scanned directory to its task on the topic, through all three services as processes.

Default settings; only the timeouts by which a test run ends sooner differ. One file at a time, each a new hour.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from floodmark.local.kafka import KafkaServer
from floodmark.local.ports import pick_free_port, pick_free_ports
from floodmark.local.zookeeper import ZooKeeperServer
from floodmark_consistency.config import ConsistencySection
from tests.bench.harness.figures import AtMost, Measurement, Run, figure
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.pipeline import Pipeline, pipeline_on, write_parquet
from tests.support.task_reader import TaskReader

FILES = 50
QUIET_S = ConsistencySection().quiet_ms / 1000


@dataclass
class Bench:
    pipeline: Pipeline
    reader: TaskReader
    lake: Path
    next_hour: int = 1

    def until_task_s(self, path: Path, hour: int, *, value: int) -> float:
        """Write a file and wait for a task of its hour that was not there before."""
        before = self._tasks_of(hour)
        write_parquet(path, hour, hour + 1, value=value)
        visible_s = time.time()
        eventually(lambda: self._tasks_of(hour) > before, within_s=30, every_s=0.005, what=f"a task of hour {hour}")
        newest_ms = max(t.dispatched_at_ms for t in self.reader.tasks() if t.bucket_start_ms == hour * HOUR_MS)
        return newest_ms / 1000 - visible_s

    def _tasks_of(self, hour: int) -> int:
        return sum(t.bucket_start_ms == hour * HOUR_MS for t in self.reader.tasks())


@contextmanager
def suite() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="floodmark-bench-") as directory:
        zookeeper = ZooKeeperServer(Path(directory) / "zookeeper", pick_free_port())
        kafka = KafkaServer(Path(directory) / "kafka", *pick_free_ports(2))
        zookeeper.start()
        kafka.start()
        try:
            with pipeline_on(Path(directory) / "pipeline", zookeeper, kafka) as pipeline:
                lake = pipeline.table("rides")
                pipeline.view("hourly", "rides")
                pipeline.start_all()
                with closing(TaskReader(pipeline)) as reader:
                    bench = Bench(pipeline, reader, lake)
                    bench.until_task_s(lake / "first.parquet", 0, value=1)  # coverage begins with it
                    yield bench
        finally:
            kafka.stop()
            zookeeper.stop()


@figure(name="new file visible to task on the topic, median of 50 files", goal=AtMost(1.0), unit="s", runs=1)
def new_files(run: Run) -> Measurement:
    """A new hour each: the append needs no mark, so no debounce is in it. Half a scan interval is, on average."""
    bench: Bench = run.resources
    found = []
    for _ in range(FILES):
        hour, bench.next_hour = bench.next_hour, bench.next_hour + 1
        found.append(bench.until_task_s(bench.lake / f"{hour}.parquet", hour, value=1))
        bench.pipeline.work([t for t in bench.reader.tasks() if t.bucket_start_ms == hour * HOUR_MS])
    return _measured(found, debounce_s=0.0)


@figure(name="replaced file visible to task on the topic, median of 50 files", goal=AtMost(1.0), unit="s", runs=1)
def replaced_files(run: Run) -> Measurement:
    """Of hours already built: each must be marked first, after the quiet period. It is not to be most of the time."""
    bench: Bench = run.resources
    found = [bench.until_task_s(bench.lake / f"{hour}.parquet", hour, value=2) for hour in range(1, FILES + 1)]
    return _measured(found, debounce_s=QUIET_S)


def _measured(found: list[float], *, debounce_s: float) -> Measurement:
    median_s = statistics.median(found)
    share = debounce_s / median_s
    return Measurement(median_s, {"slowest_s": max(found), "debounce_s": debounce_s, "debounce_share": share})
