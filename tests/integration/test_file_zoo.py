"""Files of real writers, through Spark alone and through the whole system: answered right, or refused by a rule."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from floodmark.core.column_types import MILLISECONDS, TIME_UNITS
from floodmark.core.errors import InvalidInput
from floodmark.parquet.inspection import inspect
from floodmark.parquet.lake import Lake
from floodmark.spark.files import table_frame
from floodmark.spark.materialization import time_ms
from floodmark.spark.output import quoted
from floodmark.spark.session import open_session
from tests.support.zoo import Specimen, by_spark, without_spark

pytestmark = pytest.mark.timeout(900)  # a session of Spark takes minutes to start where everything else runs too


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = open_session(
        {
            "spark.master": "local[1]",
            "spark.driver.memory": "768m",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
        name="zoo",
    )
    yield session
    session.stop()


def as_spark_reads(
    spark: SparkSession, specimen: Specimen, lake: Lake, columns: Sequence[tuple[str, str]]
) -> list[tuple[Any, ...]]:
    """Each row: its time in milliseconds as buckets are made of it, and in microseconds; then `n` and `k`."""
    frame = table_frame(spark, [lake.uri("a.parquet")], dict(columns), [name for name, _ in columns], table="zoo")
    unit = TIME_UNITS[specimen.unit] if specimen.unit else MILLISECONDS
    time, kind = quoted(specimen.time_column), frame.schema[specimen.time_column].dataType
    ms = fn.expr(time_ms(specimen.time_column, kind, unit))
    micros = f"unix_micros(CAST({time} AS TIMESTAMP_LTZ))" if specimen.unit is None else f"{time} * {unit.ns} div 1000"
    others = [fn.col(quoted(name)).cast("string") for name, _ in columns if name not in ("n", "k")]
    rows = frame.select(ms, fn.expr(micros), fn.col("n").cast("bigint"), fn.col("k").cast("string"), *others).collect()
    return [tuple(row)[:4] for row in rows]


@pytest.mark.scenario("I7")
def test_every_file_is_registered_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    """Range, rows and rows without a time; and Spark reads every column of what was registered."""
    wrong: dict[str, str] = {}
    for number, specimen in enumerate([*without_spark(), *by_spark(spark)]):
        directory = tmp_path / str(number)
        directory.mkdir()
        try:
            _check(spark, specimen, directory)
        except Exception as error:
            wrong[specimen.name] = str(error)[:500]
    assert not wrong


def _check(spark: SparkSession, specimen: Specimen, directory: Path) -> None:
    specimen.write(directory / "a.parquet")
    lake = Lake(str(directory))
    unit = TIME_UNITS[specimen.unit] if specimen.unit else MILLISECONDS

    def looked_into() -> Any:
        return inspect(lake, "a.parquet", time_column=specimen.time_column, columns=(), time_unit=unit)

    if specimen.rule is not None:
        with pytest.raises(InvalidInput, match=rf"^{re.escape(specimen.rule)}: "):
            looked_into()
        return
    found = looked_into()
    rows = as_spark_reads(spark, specimen, lake, found.columns)
    times_ms = [ms for ms, *_ in rows if ms is not None]
    assert (found.start_ms, found.last_ms) == (min(times_ms), max(times_ms)) == specimen.range_ms
    assert (found.rows, found.timeless_rows) == (len(rows), len(rows) - len(times_ms))
    assert sorted((n, us, k) for _, us, n, k in rows) == [
        (n, us, "ab"[n % 2]) for n, us in enumerate(specimen.times_us)
    ]
