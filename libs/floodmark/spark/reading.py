"""What of its files a query reads, and what Spark says it read of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pyspark.sql import DataFrame, SparkSession, types

from floodmark.core.column_types import MILLISECONDS, TimeUnit
from floodmark.core.intervals import Interval
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


def within(
    rows: DataFrame,
    time_column: str,
    kind: types.DataType,
    ranges: Sequence[Interval],
    *,
    timeless: bool,
    time_unit: TimeUnit = MILLISECONDS,
) -> DataFrame:
    """The rows whose time lies in one of the ranges, and those without a time if they are wanted.

    The condition is a text: made of columns, each comparison in it would be several calls to the JVM.
    """
    column, inside = quoted(time_column), _in_ranges(time_ms(time_column, kind, time_unit), ranges)
    return rows.filter(f"({inside}) OR {column} IS NULL" if timeless else f"({inside}) AND {column} IS NOT NULL")


def _in_ranges(ms: str, ranges: Sequence[Interval]) -> str:
    if not ranges:
        return "false"
    if len(ranges) > RANGES_COMPILED_MAX:
        bounds = ", ".join(f"named_struct('s', {r.start_ms}L, 'e', {r.end_ms}L)" for r in ranges)
        return f"exists(array({bounds}), bound -> {ms} >= bound.s AND {ms} < bound.e)"
    return " OR ".join(f"{ms} >= {r.start_ms}L AND {ms} < {r.end_ms}L" for r in ranges)


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
