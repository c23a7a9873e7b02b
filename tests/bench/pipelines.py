"""The same view through the system, and as a declarative pipeline of Spark's own (`spark-pipelines run`).

A pipeline has no service that stays: each run is a process that starts Spark, computes every materialized view anew and
ends. That is how it is used, so all of it is timed. What it needs beyond PySpark is installed beside the build.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions, requires
from pathlib import Path

import pyarrow.dataset as ds
from packaging.requirements import Requirement

from tests.bench import worker
from tests.bench.harness.figures import AtMost, Measurement, Run, figure

BESIDE = Path("build/spark-pipelines").resolve()

SPEC = """
name: rides
storage: file://{root}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "4"
  spark.sql.session.timeZone: UTC
"""

TRANSFORMATION = """
from pyspark import pipelines
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

@pipelines.materialized_view(partition_cols=["bucket"], format="parquet")
def rides_hourly():
    hour = fn.date_trunc("HOUR", "event_time")
    return (
        SparkSession.active().read.parquet("{lake}").groupBy(hour.alias("hour"), "city")
        .agg(fn.count(fn.lit(1)).alias("n"), fn.sum("fare").alias("fare"), fn.max("distance").alias("farthest"))
        .withColumn("bucket", fn.unix_millis("hour"))
    )
"""


@dataclass
class Pipeline:
    root: Path
    system: worker.Bench

    def __post_init__(self) -> None:
        _install()
        (self.root / "transformations").mkdir(parents=True)
        (self.root / "spark-pipeline.yml").write_text(SPEC.format(root=self.root))
        (self.root / "transformations" / "rides.py").write_text(TRANSFORMATION.format(lake=self.system.lake))

    def run_s(self) -> float:
        command = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
        environment = {**os.environ, "PYTHONPATH": str(BESIDE), "PYSPARK_PYTHON": sys.executable}
        # Its catalog ends with the process; the tables of the run before would be in the way of the new ones.
        shutil.rmtree(self.root / "spark-warehouse", ignore_errors=True)
        started_s = time.perf_counter()
        done = subprocess.run(
            command, check=False, cwd=self.root, env=environment, capture_output=True, text=True, timeout=900
        )
        elapsed_s = time.perf_counter() - started_s
        assert done.returncode == 0, f"spark-pipelines run ended with {done.returncode}: {done.stderr[-2_000:]}"
        made = ds.dataset(self.root / "spark-warehouse" / "rides_hourly", partitioning="hive").to_table(columns=["n"])
        there = ds.dataset(self.system.lake).count_rows()
        assert sum(made["n"].to_pylist()) == there, f"the pipeline counted {sum(made['n'].to_pylist())} of {there} rows"
        return elapsed_s


def _install() -> None:
    """What PySpark lists for its pipelines, without what is here already."""
    listed = [Requirement(line) for line in requires("pyspark") or ()]
    needed = [r for r in listed if r.marker is not None and r.marker.evaluate({"extra": "pipelines"})]
    assert needed, "this PySpark has no declarative pipelines"
    here = {distribution.name.lower() for distribution in distributions()}
    missing = [f"{r.name}{r.specifier}" for r in needed if r.name.lower() not in here]
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(BESIDE), *missing]
    subprocess.run(command, check=True, timeout=600)


@contextmanager
def suite() -> Iterator[Pipeline]:
    with worker.suite() as bench:
        yield Pipeline(bench.scratch.parent / "pipeline", bench)


@figure(name="first build of all buckets over a run of spark-pipelines", goal=AtMost(1), runs=2)
def first_build(run: Run) -> Measurement:
    """Definition to last commit, in a warm worker."""
    pipeline: Pipeline = run.resources
    pipeline_s, system_s = pipeline.run_s(), pipeline.system.first_build_s()
    return Measurement(system_s / pipeline_s, {"system_s": system_s, "pipeline_s": pipeline_s})


@figure(name="three late files visible to VALID over a run of spark-pipelines", goal=AtMost(1), runs=2)
def late_files(run: Run) -> Measurement:
    """The pipeline computes all hours again."""
    pipeline: Pipeline = run.resources
    system_s, _ = pipeline.system.late_s()
    pipeline_s = pipeline.run_s()
    return Measurement(system_s / pipeline_s, {"system_s": system_s, "pipeline_s": pipeline_s})
