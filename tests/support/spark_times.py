"""Conditions on time, and values of columns that two expressions may tell apart, for Spark to judge.

A condition is evaluated by Spark for times around its edges: what we said of it has to hold for each of them.
"""

import datetime as dt
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from sqlglot import exp

from floodmark.query.bounds import TimeColumn
from tests.support.spark_judge import Difference, tree_of

KINDS: Mapping[str, str] = {
    "tz": "timestamp[us, tz=UTC]", "ntz": "timestamp[us]", "d": "date32[day]", "l": "int64",
}  # fmt: skip
_DAYS = ("1969-12-29", "1970-01-01", "2023-12-31", "2024-01-01", "2024-02-29", "2024-03-01")
_CLOCKS = ("", " 00:00:00", " 12:00", "T23:59:59.9995Z", " 00:00:00.0005", " 23:30:00-05:00", " 01:00:00+03:00")
_UNITS = ("MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
_COMPARISONS = ("=", "<", "<=", ">", ">=")


def moments() -> list[dt.datetime]:
    """Microseconds around the edges of days and hours."""
    days = [dt.datetime.fromisoformat(day).replace(tzinfo=dt.UTC) for day in _DAYS]
    hours = (-5, 0, 4.5, 12, 22, 23.5)
    return [
        day + dt.timedelta(hours=hour, microseconds=us)
        for day in days
        for hour in hours
        for us in (-1, 0, 1, 500, 1000)
    ]


def frame(spark: SparkSession) -> None:
    """A view `times`, each moment in each kind of column."""
    all_ = moments()
    spark.createDataFrame(
        pa.table({
            "tz": pa.array(all_, pa.timestamp("us", tz="UTC")),
            "ntz": pa.array([one.replace(tzinfo=None) for one in all_], pa.timestamp("us")),
            "d": pa.array([one.date() for one in all_], pa.date32()),
            "l": pa.array([_ms(one) for one in all_], pa.int64()),
        })
    ).createOrReplaceTempView("times")  # fmt: skip


def _ms(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


class Timed:
    """Conditions on one column, as users write them."""

    def __init__(self, dice: random.Random, column: str) -> None:
        self._dice = dice
        self._column = column

    def condition(self) -> str:
        dice = self._dice
        what = self._target()
        if dice.random() < 0.15:
            return f"{what} BETWEEN {self._value()} AND {self._value()}"
        comparison, value = dice.choice(_COMPARISONS), self._value()
        return f"{what} {comparison} {value}" if dice.random() < 0.7 else f"{value} {comparison} {what}"

    def _target(self) -> str:
        name, dice = self._column, self._dice
        if name == "l" or dice.random() < 0.5:
            return name
        unit = dice.choice(_UNITS)
        return dice.choice(
            (f"CAST({name} AS DATE)", f"to_date({name})", f"date_trunc('{unit}', {name})", f"{name}::DATE")
        )

    def _value(self) -> str:
        dice = self._dice
        day = dice.choice(_DAYS)
        if self._column == "l":
            ms = _ms(dt.datetime.fromisoformat(day).replace(tzinfo=dt.UTC)) + dice.choice((-1, 0, 1, 12 * 3_600_000))
            return dice.choice((f"{ms}", f"{ms}L", f"CAST({ms} AS BIGINT)", f"({ms})"))
        text, cut = f"{day}{dice.choice(_CLOCKS)}", dice.choice(_UNITS)
        unit, n = dice.choice([unit for unit in _UNITS if unit != "QUARTER"]), dice.choice((1, 3, 13))
        time, date = f"TIMESTAMP '{text}'", f"DATE '{day}'"
        sign = dice.choice("+-")
        return dice.choice((
            f"'{text}'", f"' {day} '", time, date, f"CAST('{text}' AS DATE)", f"CAST('{text}' AS TIMESTAMP)",
            f"CAST('{text}' AS TIMESTAMP_NTZ)", f"'{text}'::TIMESTAMP", f"CAST({date} AS TIMESTAMP)",
            f"{time} {sign} INTERVAL {n} {unit}", f"{date} {sign} INTERVAL '{n}' {unit}", f"{date} {sign} {n}",
            f"date_trunc('{cut}', {time})", f"to_date('{day}') {sign} {n}", f"dateadd({unit}, -{n}, {time})",
            f"date_add({date}, {n})", f"{time} - INTERVAL 1 DAY 2 HOURS", f"INTERVAL -2 DAYS + {time}",
        ))  # fmt: skip


def bounding(
    spark: SparkSession, column: str, conditions: Sequence[str], time: Callable[[str, str], TimeColumn] = TimeColumn
) -> Iterator[Difference]:
    """Conditions that a row satisfies outside of the outer bounds, or does not within the inner ones."""
    selected = ", ".join(f"{condition} AS c{n}" for n, condition in enumerate(conditions))
    rows = spark.sql(f"SELECT {selected} FROM times").collect()
    reader = time(column, KINDS[column])
    for n, condition in enumerate(conditions):
        tree = tree_of(condition)
        assert tree is not None, f"{condition} is not read"
        exact, outer = reader.bounds(tree), reader.outer(tree)
        for moment, row in zip(moments(), rows, strict=True):
            ms = _ms(moment if column != "d" else moment.replace(hour=0, minute=0, second=0, microsecond=0))
            may = exact.outer if exact is not None else outer
            must = exact.inner if exact is not None else None
            if row[n] and (may is None or not may.start_ms <= ms < may.end_ms):
                yield Difference(condition, f"not outside of {may}", f"true at {moment}")
            if not row[n] and must is not None and must.start_ms <= ms < must.end_ms:
                yield Difference(condition, f"all within {must}", f"false at {moment}")


def understood(column: str, condition: str) -> bool:
    reader, tree = TimeColumn(column, KINDS[column]), tree_of(condition)
    assert isinstance(tree, exp.Expr), condition
    return reader.bounds(tree) is not None
