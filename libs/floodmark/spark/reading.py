"""What of its files a query reads, and what Spark says it read of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as fn

from floodmark.core.intervals import Interval
from floodmark.spark.columns import spark_schema
from floodmark.spark.materialization import stored_schema, time_ms
from floodmark.spark.output import quoted
from floodmark.sql.definition import Definition

RANGES_COMPILED_MAX = 32
"""So many ranges are compared in generated code; more are handed over as data, which is slower for each row."""


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """What the scans of a finished query read, by Spark's own counts: for each scan its bytes."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    scans: tuple[int, ...] = ()


def within(rows: DataFrame, time_column: str, ranges: Sequence[Interval], *, timeless: bool) -> DataFrame:
    """The rows whose time lies in one of the ranges, and those without a time if they are wanted."""
    column = fn.col(quoted(time_column))
    inside = _in_ranges(time_ms(time_column, rows.schema[time_column].dataType), ranges)
    return rows.filter(inside | column.isNull() if timeless else inside & column.isNotNull())


def _in_ranges(ms: Column, ranges: Sequence[Interval]) -> Column:
    if not ranges:
        return fn.lit(False)  # noqa: FBT003 - a literal
    if len(ranges) > RANGES_COMPILED_MAX:
        bounds = fn.array(*(fn.struct(fn.lit(r.start_ms).alias("s"), fn.lit(r.end_ms).alias("e")) for r in ranges))
        return fn.exists(bounds, lambda bound: (ms >= bound["s"]) & (ms < bound["e"]))
    if len(ranges) == 1:
        return (ms >= ranges[0].start_ms) & (ms < ranges[0].end_ms)
    middle = len(ranges) // 2  # a balanced tree: a chain of many is walked by recursion
    return _in_ranges(ms, ranges[:middle]) | _in_ranges(ms, ranges[middle:])


def base_schema(columns: Mapping[str, str], wanted: Sequence[str], *, table: str) -> types.StructType:
    """The wanted columns as the table's files have them."""
    return spark_schema(columns, wanted, table=table)


@lru_cache(maxsize=256)
def view_schema(
    session: SparkSession, definition: Definition, columns: tuple[tuple[str, str], ...]
) -> types.StructType:
    """The columns of a view's files. Their types follow from the definition, so no file is asked."""
    return stored_schema(session, definition, dict(columns))


def counts_of(frame: DataFrame) -> ReadCounts:
    """What a frame that has run has read."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves().iterator()
    files, rows, scans = 0, 0, []
    while leaves.hasNext():
        metrics = leaves.next().metrics()
        if metrics.contains("filesSize"):
            files += int(metrics.apply("numFiles").value())
            rows += int(metrics.apply("numOutputRows").value())
            scans.append(int(metrics.apply("filesSize").value()))
    return ReadCounts(files, sum(scans), rows, tuple(scans))
