"""The Spark session of a process: started once, kept warm, with the settings that being right depends on."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from floodmark.spark.required import REQUIRED, check_required, refuse_changed, refuse_families

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

DEFAULTS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.maxResultSize": "256m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
    "spark.scheduler.mode": "FAIR",
    # Jobs are small: planning them again while they run costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    # Sets of values are handed over as data. Written into generated code, each bucket would compile its own.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    # Listing files is a look at each; a Spark job for that takes longer than the looks.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.cleaner.periodicGC.interval": "10min",
}
"""Settings for many small jobs on one machine. Whoever runs a cluster sets others."""


_REPEATING = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""What PySpark raises it also logs, user's query and all, in a form of its own between the lines of the service."""


def open_session(options: Mapping[str, str], *, name: str) -> SparkSession:
    """Start Spark, or refuse a setting that would make answers wrong."""
    refuse_changed(options)
    # What executors run their Python with: this one, unless a cluster has it elsewhere.
    os.environ["PYSPARK_PYTHON"] = options.get("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON", sys.executable))
    for logger in _REPEATING:
        PySparkLogger.getLogger(logger).disabled = True
    builder = SparkSession.Builder().appName(name)
    for key, value in {**DEFAULTS, **options, **REQUIRED, _JAVA_OPTIONS: java_options(options)}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if "spark.sql.shuffle.partitions" not in options:
        # As many as run at once: the 200 that Spark assumes would be 200 tasks for a handful of rows.
        spark.conf.set("spark.sql.shuffle.partitions", str(max(2, spark.sparkContext.defaultParallelism)))
    refuse_families(spark.conf.getAll)  # of a file of defaults that Spark has found
    check_required(spark)
    return spark


def java_options(options: Mapping[str, str]) -> str:
    """Those of the driver's JVM. Out of memory it ends, and the process with it: it is one heap for everything, and
    what was hit may be a thread that nobody would miss until nothing works any more."""
    return f"{options.get(_JAVA_OPTIONS, DEFAULTS[_JAVA_OPTIONS])} -XX:+ExitOnOutOfMemoryError"


def warm_up(spark: SparkSession) -> None:
    """Load the classes that the first job would otherwise wait for."""
    spark.range(2).groupBy((fn.col("id") % 2).alias("k")).agg(fn.sum("id").alias("s")).toArrow()
