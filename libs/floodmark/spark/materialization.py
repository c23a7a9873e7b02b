"""From the segments of some buckets to the rows a view stores for them, in one Spark job.

    files --schema--> rows --WHERE--> --bucket of each row--> wanted buckets only --GROUP BY bucket, keys--> rows

The bounds of buckets never become part of the definition's text: each row says which bucket it belongs to, by its time,
and rows of other buckets are dropped. So a definition with OR cannot let them in, and every job of a view is the same
program on other data, which Spark has compiled already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as fn

from floodmark.core.buckets import DataFile
from floodmark.core.column_types import MILLISECONDS, TimeUnit
from floodmark.core.errors import InvalidInput
from floodmark.parquet.lake import Lake
from floodmark.spark.columns import spark_schema
from floodmark.spark.files import table_frame
from floodmark.spark.output import BUCKET, quoted, write_by_spark, write_collected
from floodmark.spark.required import check_required
from floodmark.sql.definition import Aggregate, Definition, Stored

COLLECTED_ROWS_MAX = 1_000_000
_TOO_LARGE = "maxResultSize"
_NO_BUCKET = -(2**63)

_CALLS: Mapping[Aggregate, str] = {
    Aggregate.SUM: "sum({0})",
    Aggregate.COUNT: "count({0})",
    Aggregate.COUNT_ROWS: "count(1)",
    Aggregate.MIN: "min({0})",
    Aggregate.MAX: "max({0})",
    Aggregate.HLL: "hll_sketch_agg({0})",
    Aggregate.DISTINCT: "hll_sketch_agg(CASE WHEN ({0}) IS NOT NULL THEN xxhash64({0}) END)",
    Aggregate.THETA: "theta_sketch_agg({0})",
    Aggregate.KLL_BIGINT: "kll_sketch_agg_bigint({0})",
    Aggregate.KLL_DOUBLE: "kll_sketch_agg_double({0})",
    Aggregate.KLL_FLOAT: "kll_sketch_agg_float({0})",
}


class RowsMissing(Exception):
    """Spark read fewer or more rows than are registered: an input is not what it was."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Exactly the files to read, and how many rows the registry says they have."""

    uris: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Built:
    """The files of each bucket, none for one without rows, and how many rows were read for all of them."""

    files: Mapping[int, tuple[DataFile, ...]]
    rows_read: int
    rows_written: int


class Materializer:
    """Computes buckets of one view."""

    def __init__(
        self,
        spark: SparkSession,
        definition: Definition,
        *,
        columns: Mapping[str, str],
        time_column: str,
        bucket_ms: int,
        time_unit: TimeUnit = MILLISECONDS,
    ) -> None:
        self._spark = spark
        self._definition = definition
        self._columns = columns
        self._schema = spark_schema(columns, definition.columns, table=definition.table)
        self._bucket = _bucket_of(time_column, self._schema[time_column].dataType, bucket_ms, time_unit)
        self._rows_out_per_row_in = 1.0 if definition.is_projection else 0.0
        self._measures = [measure(spark, self._schema, stored) for stored in definition.stored]

    def frame(self, inputs: Inputs, starts: Sequence[int]) -> DataFrame:
        """The rows of these buckets and no others, as they are stored, after a column that names the bucket."""
        rows = table_frame(
            self._spark, inputs.uris, self._columns, self._definition.columns, table=self._definition.table
        )
        wanted = _within(self._bucketed(_filtered(rows, self._definition.where)), starts)
        return shape(wanted, self._definition, self._measures)

    def build(self, inputs: Inputs, attempts: Mapping[int, str], lake: Lake) -> Built:
        """Compute these buckets and write their files, each named by its bucket's attempt.

        Raises RowsMissing when the inputs were not what the registry says (INV-9).
        """
        check_required(self._spark)
        frame = self.frame(inputs, list(attempts))
        written, done = self._write(frame, inputs, attempts, lake)
        rows_read = _rows_read(done)
        if rows_read != inputs.rows:
            raise RowsMissing(f"{rows_read} rows were read from {len(inputs.uris)} files, {inputs.rows} are registered")
        files = {start: tuple(f for s, f in written if s == start) for start in attempts}
        rows_written = sum(f.rows for _, f in written)
        self._rows_out_per_row_in = rows_written / inputs.rows if inputs.rows else 0
        return Built(files, rows_read, rows_written)

    def _write(
        self, frame: DataFrame, inputs: Inputs, attempts: Mapping[int, str], lake: Lake
    ) -> tuple[list[tuple[int, DataFile]], DataFrame]:
        """A small result comes to this process, which saves another shuffle; a large one stays with Spark."""
        keys = [key.name for key in self._definition.keys]
        if inputs.rows * self._rows_out_per_row_in <= COLLECTED_ROWS_MAX:
            try:
                collected = frame.toArrow()
            except PySparkException as error:
                if _TOO_LARGE not in str(error):
                    raise
                self._rows_out_per_row_in = 1.0  # until a build has shown better
            else:
                return write_collected(collected, keys, attempts, lake), frame
        return write_by_spark(frame, keys, attempts, lake)

    # -- the steps -------------------------------------------------------------------------------------------------

    def _bucketed(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn(BUCKET, self._bucket)


_UNUSED = "__rows"


def shape(rows: DataFrame, definition: Definition, measures: Sequence[Column]) -> DataFrame:
    """Bucketed rows as the view stores them."""
    keys = [fn.expr(key.expression).alias(key.name) for key in definition.keys]
    if definition.is_projection:
        return rows.select(BUCKET, *keys)
    return (
        rows.groupBy(BUCKET, *keys)
        .agg(*(measures or [fn.count(fn.lit(1)).alias(_UNUSED)]))
        .select(BUCKET, *(quoted(name) for name in definition.stored_columns))
    )


def measure(spark: SparkSession, schema: types.StructType, stored: Stored) -> Column:
    call = _CALLS.get(stored.aggregate) or _sum_for_average(spark, schema, stored)
    condition = f" FILTER (WHERE {stored.condition})" if stored.condition else ""
    return fn.expr(call.format(stored.argument) + condition).alias(stored.name)


def _sum_for_average(spark: SparkSession, schema: types.StructType, stored: Stored) -> str:
    """The sum that Spark's own `avg` divides: exact for decimals, a double for everything else."""
    assert stored.aggregate is Aggregate.SUM_FOR_AVG, f"{stored.aggregate} is not known here"
    kind = spark.createDataFrame([], schema).select(fn.expr(stored.argument or "NULL")).schema[0].dataType
    return "sum({0})" if isinstance(kind, types.DecimalType) else "sum(CAST({0} AS DOUBLE))"


def _filtered(rows: DataFrame, where: str | None) -> DataFrame:
    return rows if where is None else rows.filter(fn.expr(where))


def _within(rows: DataFrame, starts: Sequence[int]) -> DataFrame:
    # A set of one would become an equation, and its number part of the generated code.
    return rows.filter(fn.col(BUCKET).isin([*starts, _NO_BUCKET]))


def _bucket_of(time_column: str, kind: types.DataType, bucket_ms: int, time_unit: TimeUnit) -> Column:
    """The start of a row's bucket; null for a row without a time, which belongs to none."""
    ms = fn.expr(time_ms(time_column, kind, time_unit))
    return ms - fn.pmod(ms, fn.lit(bucket_ms))


def time_ms(time_column: str, kind: types.DataType, time_unit: TimeUnit) -> str:
    """A row's time in whole milliseconds since 1970, rounded down, as Spark's SQL says it."""
    if isinstance(kind, types.LongType):
        return _whole_ms(quoted(time_column), time_unit)
    if isinstance(kind, types.TimestampType | types.TimestampNTZType | types.DateType):
        return f"unix_millis(CAST({quoted(time_column)} AS TIMESTAMP_LTZ))"
    raise InvalidInput("time-type", f"time column {time_column!r} is {kind.simpleString()}, which tells no time")


def _whole_ms(number: str, time_unit: TimeUnit) -> str:
    """`div` rounds towards zero, also before 1970."""
    if time_unit.ns >= MILLISECONDS.ns:
        times = time_unit.ns // MILLISECONDS.ns
        return number if times == 1 else f"({number} * {times}L)"
    per_ms = MILLISECONDS.ns // time_unit.ns
    return f"({number} div {per_ms}L - IF({number} % {per_ms}L < 0L, 1L, 0L))"


def stored_schema(spark: SparkSession, definition: Definition, columns: Mapping[str, str]) -> types.StructType:
    """The columns of a view's files with their types, by analysis alone: nothing is read."""
    schema = spark_schema(columns, definition.columns, table=definition.table)
    empty = spark.createDataFrame([], schema).withColumn(BUCKET, fn.lit(0))
    shaped = shape(empty, definition, [measure(spark, schema, stored) for stored in definition.stored])
    return types.StructType([field for field in shaped.schema if field.name != BUCKET])


def _rows_read(frame: DataFrame) -> int:
    """What the scans of a finished job put out, from Spark's own counts."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves().iterator()
    counted = 0
    while leaves.hasNext():
        counted += int(leaves.next().metrics().apply("numOutputRows").value())
    return counted
