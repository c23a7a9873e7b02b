"""Frames of exactly these files: nothing is globbed, no schema is inferred."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, types

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
