"""Frames of exactly these files: nothing is globbed, no schema is inferred."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession, types

from floodmark.spark.columns import spark_schema, stored_as_nanos
from floodmark.spark.output import quoted

_BETWEEN = "\0"
"""The one character that no path has."""


def files_frame(session: SparkSession, uris: Sequence[str], schema: types.StructType) -> DataFrame:
    """The rows of these files and no others; without files, none."""
    if not uris:
        return session.createDataFrame([], schema)
    reader = session.read.schema(schema).option("__globPaths__", "false")
    jvm = session.sparkContext._jvm
    assert jvm is not None, "Spark has stopped"
    # As one text: the paths of a list go to the JVM one by one, and a view has a file for each bucket.
    paths = jvm.org.apache.commons.lang3.StringUtils.split(_BETWEEN.join(uris), _BETWEEN)
    return DataFrame(reader._jreader.parquet(paths), session)


def table_frame(
    session: SparkSession, uris: Sequence[str], columns: Mapping[str, str], wanted: Sequence[str], *, table: str
) -> DataFrame:
    """The wanted columns of these files of a table, nanoseconds rounded down to the microseconds Spark keeps."""
    schema = spark_schema(columns, wanted, table=table)
    nanos = stored_as_nanos(columns, wanted)
    if not nanos:
        return files_frame(session, uris, schema)
    stored = types.StructType(
        [types.StructField(f.name, types.LongType()) if f.name in nanos else f for f in schema.fields]
    )
    read = files_frame(session, uris, stored)
    return read.selectExpr(*(_micros(f) if f.name in nanos else quoted(f.name) for f in schema.fields))


def _micros(field: types.StructField) -> str:
    """`div` rounds towards zero, which would move the times before 1970 into the future."""
    name = quoted(field.name)
    micros = f"({name} div 1000L - IF({name} % 1000L < 0L, 1L, 0L))"
    return f"CAST(timestamp_micros({micros}) AS {field.dataType.simpleString()}) AS {name}"
