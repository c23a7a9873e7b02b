"""What a definition is taken apart into means the same to Spark as what was written."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from floodmark.sql.definition import Aggregate, Definition, Stored, analyze, canonical

HOUR_MS = 3_600_000
INT = pa.int32()
SCHEMA = pa.schema(
    {
        "event_time": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "i": INT,
        "j": INT,
        "l": pa.int64(),
        "d": pa.float64(),
        "dec": pa.decimal128(10, 2),
        "s": pa.string(),
        "p": pa.bool_(),
        "q": pa.bool_(),
        "arr": pa.list_(INT),
        "m": pa.map_(pa.string(), INT),
        "st": pa.struct({"a": INT, "b": pa.struct({"c": pa.string()})}),
        "json": pa.string(),
        "limit": INT,
        "odd `name": INT,
        "array": pa.list_(INT),
        "hour": INT,
    }
)
COLUMNS = {field.name: str(field.type) for field in SCHEMA}
EXPRESSIONS = [
    line
    for line in (Path(__file__).parents[1] / "data" / "spark_expressions.sql").read_text().splitlines()
    if not line.startswith("--")
]

AGGREGATES = [
    "sum(i)",
    "sum(i * j + 1)",
    "sum(CASE WHEN p THEN d ELSE 0 END)",
    "sum(d) FILTER (WHERE s LIKE 'a%' OR q)",
    "count(*)",
    "count(1)",
    "count(s)",
    "count(*) FILTER (WHERE p AND NOT q)",
    "count(nullif(i, 1))",
    "min(event_time)",
    "max(upper(s))",
    "max(d) FILTER (WHERE i IS NOT NULL)",
    "avg(d)",
    "mean(i)",
    "avg(i + d) FILTER (WHERE p)",
]


pytestmark = pytest.mark.timeout(900)  # a session of Spark takes minutes to start where everything else runs too


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[1]").appName("definitions")  # type: ignore[attr-defined]
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1",
        # Two hundred expressions over twelve rows: compiling them takes minutes, interpreting them a moment.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    rides(session).createOrReplaceTempView("rides")
    yield session
    session.stop()


def rides(session: SparkSession) -> DataFrame:
    def row(n: int) -> tuple[Any, ...]:
        time = dt.datetime(2020, 1, 1 + n % 3, n % 24, 7 * n % 60, 13, 250_000, dt.UTC)
        text = (None, "a1", "ab2", "x%z", "b")[n % 5]
        odd = None if n % 4 == 3 else n % 3
        half = None if n % 7 == 6 else n / 4 - 1
        flags = (n % 2 == 0, None if n % 3 == 0 else n % 5 == 0)
        return (
            time, time.date(), odd, n % 4 + 1, 10**9 + n, half, Decimal(n) / 4, text, *flags, [n % 3, 2, n], [("k", n)],
            {"a": n, "b": {"c": text}}, f'{{"a": {{"b": {n}}}}}', n, n, [n], n % 5,
        )  # fmt: skip

    rows_ = [dict(zip(SCHEMA.names, row(n), strict=True)) for n in range(12)]
    return session.createDataFrame(pa.Table.from_pylist(rows_, schema=SCHEMA))


def analyzed(select: str) -> Definition:
    return analyze(select, table="rides", time_column="event_time", bucket_ms=24 * HOUR_MS, columns=COLUMNS)


def rows(frame: DataFrame) -> list[str]:
    """As text, in which NaN is equal to itself and 1 is not equal to 1.0."""
    return sorted(repr(tuple(row)) for row in frame.collect())


def merged(stored: Stored) -> str:
    """The stored column over all rows of a group, as an aggregate of Spark."""
    call = {
        Aggregate.SUM: "sum", Aggregate.SUM_FOR_AVG: "sum", Aggregate.MIN: "min", Aggregate.MAX: "max",
        Aggregate.COUNT: "count", Aggregate.COUNT_ROWS: "count",
    }[stored.aggregate]  # fmt: skip
    condition = f" FILTER (WHERE {stored.condition})" if stored.condition else ""
    return f"{call}({stored.argument or '*'}){condition}"


def test_each_expression_of_a_projection_means_what_was_written(spark: SparkSession) -> None:
    """Both are one query each, so a difference is in what was rendered. Types count too."""
    select = "SELECT " + ", ".join(f"{text} AS c{n}" for n, text in enumerate(EXPRESSIONS)) + " FROM rides"
    definition = analyzed(select)
    assert definition.is_projection
    assert len(definition.keys) == len(EXPRESSIONS)
    written = spark.sql(select)
    taken_apart = spark.table("rides").selectExpr(*(f"{key.expression} AS `{key.name}`" for key in definition.keys))
    kinds = zip(EXPRESSIONS, written.dtypes, taken_apart.dtypes, strict=True)
    assert [text for text, one, other in kinds if one != other] == []
    one, other = written.collect(), taken_apart.collect()
    assert len(one) == 12
    differing = {
        text: definition.keys[n].expression
        for n, text in enumerate(EXPRESSIONS)
        if [repr(r[n]) for r in other] != [repr(r[n]) for r in one]
    }
    assert differing == {}


@pytest.mark.parametrize(
    "where",
    [
        "i = 1 OR j = 2 AND NOT p",
        "(i = 1 OR j = 2) AND NOT p",
        "s LIKE 'a%' AND event_time >= TIMESTAMP '2020-01-02 00:00:00' OR i IS NULL",
        "rides.i IN (1, 2) AND rides.day BETWEEN DATE '2020-01-01' AND DATE '2020-01-02'",
        "NOT (p <=> q) AND s <> 'HAVING' -- LIMIT 1",
    ],
)
def test_conditions_and_aggregates_mean_what_was_written(spark: SparkSession, where: str) -> None:
    measures = ", ".join(f"{text} AS m{n}" for n, text in enumerate(AGGREGATES))
    keys = "coalesce(s, '-') AS k, event_time > DATE '2020-01-02' AS late"
    select = f"SELECT {keys}, {measures} FROM rides WHERE {where}\nGROUP BY 1, late"
    definition = analyzed(select)
    assert definition.where is not None
    filtered = spark.table("rides").where(definition.where)
    filtered.createOrReplaceTempView("kept")
    columns = [f"{key.expression} AS `{key.name}`" for key in definition.keys]
    columns += [f"{merged(column)} AS `{column.name}`" for column in definition.stored]
    expressions = ", ".join(key.expression for key in definition.keys)
    spark.sql(f"SELECT {', '.join(columns)} FROM kept GROUP BY {expressions}").createOrReplaceTempView("parts")
    averages = {o.name: f"{o.stored[0]} / {o.stored[1]} AS {o.name}" for o in definition.outputs if o.function == "avg"}
    outputs = ", ".join(averages.get(o.name, f"`{o.name}`") for o in definition.outputs)
    written = rows(spark.sql(select))
    assert written, "the condition keeps no row, so nothing was compared"
    assert rows(spark.sql(f"SELECT {outputs} FROM parts")) == written


def test_the_canonical_text_is_the_same_query(spark: SparkSession) -> None:
    select = "SELECT r.s AS k, count(*) AS n -- how many\nFROM rides AS r /* all */ WHERE r.i - (r.j - 1) > -3"
    select += " GROUP BY r.s"
    assert rows(spark.sql(canonical(select))) == rows(spark.sql(select))
