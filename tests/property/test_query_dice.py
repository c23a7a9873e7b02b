"""The random queries of the differential test, without a broker: the planner and the judge understand every one."""

import random

import duckdb
import pyarrow as pa
import pytest

from floodmark.catalog.durations import parse_duration_ms
from tests.support.broker import RIDES
from tests.support.query_dice import VIEWS, random_query
from tests.support.query_kit import Bench

TABLE = "rides"
QUERIES = 300


@pytest.fixture(scope="module")
def bench() -> Bench:
    columns = tuple((column.name, str(column.type)) for column in RIDES)
    made = Bench({}, columns=columns, names={"trips": TABLE, "t": "event_time"})
    for suffix, (bucket, select) in VIEWS.items():
        made.add_view(f"{TABLE}_{suffix}", select.format(table=TABLE), parse_duration_ms(bucket, what="a bucket"), {})
    return made


@pytest.fixture(scope="module")
def judge() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    made.execute("SET TimeZone = 'UTC'")
    made.register(TABLE, pa.Table.from_batches([], RIDES))
    for suffix, (_, select) in VIEWS.items():
        made.execute(f"CREATE VIEW {TABLE}_{suffix} AS {select.format(table=TABLE)}")
    return made


@pytest.mark.scenario("Q13")
def test_planner_and_judge_understand_every_query(bench: Bench, judge: duckdb.DuckDBPyConnection) -> None:
    dice = random.Random(17)
    for _ in range(QUERIES):
        query = random_query(dice, TABLE, hours=30)
        bench.plan(query.sql)
        judge.execute(query.judged)


def test_what_a_failing_query_is_made_into_is_understood_as_well(
    bench: Bench, judge: duckdb.DuckDBPyConnection
) -> None:
    dice = random.Random(71)
    for _ in range(20):
        for smaller in random_query(dice, TABLE, hours=30).smaller():
            bench.plan(smaller.sql)
            judge.execute(smaller.judged)
