"""What may not be asked: nothing is read but the registered files of the tables that a query names."""

import pytest

from floodmark.core.errors import InvalidInput
from tests.support.query_kit import Bench, at


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench({"s0": [(at(0), "a", 1, 1.0)]})


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("SELECT * FROM nowhere", "unknown-table"),
        ("SELECT * FROM parquet.`/etc/passwd`", "unknown-table"),
        ("SELECT * FROM default.trips", "unknown-table"),
        ("SELECT * FROM trips WHERE n IN (SELECT a FROM csv.`/etc/passwd`)", "unknown-table"),
        ("WITH x AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM x", "unknown-table"),
        ("SELECT * FROM read_files('/etc')", "table-function"),
        ("SELECT * FROM range(10)", "table-function"),
        ("SELECT * FROM identifier('trips')", "table-function"),
        ("SELECT * FROM trips, LATERAL read_files('/etc')", "reads-outside"),
        ("SELECT * FROM trips, LATERAL (SELECT * FROM text.`/etc/passwd`)", "unknown-table"),
        ("SELECT * FROM `parquet./etc/passwd`", "unknown-table"),
        ("SELECT * FROM '/etc/passwd'", "unknown-table"),
        ("SELECT `reflect`('java.lang.System', 'exit') FROM trips", "reads-outside"),
        ("SELECT system.builtin.reflect('x') FROM trips", "unsupported-syntax"),
        ("SELECT `_metadata`.file_path FROM trips", "reads-outside"),
        ("SELECT n INTO x FROM trips", "unsupported-syntax"),
        ("SELECT input_file_name() FROM trips", "reads-outside"),
        ("SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM trips", "reads-outside"),
        ("SELECT java_method('java.lang.System', 'exit', 1)", "reads-outside"),
        ("SELECT _metadata.file_path FROM trips", "reads-outside"),
        ("SELECT x._metadata FROM trips x", "reads-outside"),
        ("SELECT from_protobuf(zone, 'm', '/etc/x') FROM trips", "reads-outside"),
        ("SELECT missing FROM trips", "unknown-column"),
        ("SELECT count(*) FROM trips WHERE missing > 1", "unknown-column"),
        ("SELECT n FROM trips; DROP TABLE trips", "not-sql"),
        ("DROP TABLE trips", "not-sql"),
        ("SELECT " + "(" * 500_000, "not-sql"),
        ("SELECT " + "(" * 60 + "1" + ")" * 60, "not-sql"),
        ("SELECT ? FROM trips", "parameter"),
        ("SELECT TRANSFORM(n) USING 'cat' FROM trips", "not-sql"),
        ("SELECT * FROM trips VERSION AS OF 3", "unsupported-syntax"),
        ("SELECT CAST(n AS TIME) FROM trips", "unsupported-syntax"),
        ("SELECT n FROM trips TABLESAMPLE (10)", "not-sql"),
        ("SELECT n FROM trips TABLESAMPLE (10 PERCENT) SEED (3)", "not-sql"),
        ("SELECT n FROM trips TABLESAMPLE SYSTEM (10 PERCENT)", "not-sql"),
        ("SELECT n FROM trips TABLESAMPLE (BUCKET 1 OUT OF 3 ON n)", "not-sql"),
        ("SELECT n FROM trips AS q TABLESAMPLE (5 ROWS)", "not-sql"),
        ("SELECT * FROM (TABLE trips)", "not-sql"),
        ("SELECT * FROM trips, LATERAL (TABLE trips) AS q", "not-sql"),
        ("SELECT (TABLE trips) AS x", "not-sql"),
        ("WITH c AS (TABLE trips) SELECT * FROM c", "not-sql"),
    ],
)
@pytest.mark.scenario("Q11")
def test_what_may_not_be_asked_is_refused_by_a_rule(bench: Bench, query: str, rule: str) -> None:
    """Q11: a clear error, and nothing is executed."""
    with pytest.raises(InvalidInput) as refusal:
        bench.plan(query)
    assert refusal.value.rule == rule


@pytest.mark.parametrize("sample", ["10 PERCENT", "2.5 PERCENT", "10 ROWS", "BUCKET 1 OUT OF 3"])
@pytest.mark.parametrize("seed", ["", " REPEATABLE (3)"])
def test_a_sample_is_asked_as_it_was_written(bench: Bench, sample: str, seed: str) -> None:
    made = bench.plan(f"SELECT n FROM trips TABLESAMPLE ({sample}){seed} AS q")
    assert made.sql == f"SELECT `n` FROM `trips` TABLESAMPLE ({sample}){seed} AS `q`"


def test_a_table_may_be_called_table() -> None:
    bench = Bench({"s0": [(at(0), "a", 1, 1.0)]}, names={"trips": "table"})
    assert bench.plan("SELECT n FROM `table` AS t").sql == "SELECT `n` FROM `table` AS `t`"
