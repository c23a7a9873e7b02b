"""Statements as the broker reads them: each becomes one command, or is refused by a named rule."""

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.core.errors import InvalidInput
from floodmark.sql.reading import read_statement, source_of
from floodmark.sql.statements import (
    AlterTable,
    CreateTable,
    CreateView,
    Describe,
    DropTable,
    DropView,
    Explain,
    PauseView,
    RefreshView,
    ResumeView,
    Select,
    SetOption,
    ShowCreate,
    ShowRefusedFiles,
    ShowTables,
    ShowViews,
    Statement,
    StatementRule,
    WhyStale,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "broker.md"


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("show tables;", ShowTables()),
        ("SHOW REFUSED FILES Rides", ShowRefusedFiles("rides")),
        ("SHOW MATERIALIZED VIEWS", ShowViews()),
        ("SHOW CREATE TABLE `Trips`", ShowCreate("table", "trips")),
        ("SHOW CREATE MATERIALIZED VIEW v", ShowCreate("view", "v")),
        ("DESCRIBE t", Describe("t")),
        ("DESC MATERIALIZED VIEW v", Describe("v", "view")),
        ("EXPLAIN SELECT 1 FROM t", Explain("SELECT 1 FROM t")),
        ("WHY STALE v", WhyStale("v")),
        ("WHY STALE v BUCKET '2014-01-05'", WhyStale("v", "2014-01-05")),
        ("SET floodmark.freshness = bounded 10s", SetOption("floodmark.freshness", "bounded 10s")),
        ("SET floodmark.rewrite='off'", SetOption("floodmark.rewrite", "off")),
        ("PAUSE MATERIALIZED VIEW v", PauseView("v")),
        ("RESUME MATERIALIZED VIEW v", ResumeView("v")),
        ("DROP TABLE t", DropTable("t")),
        ("DROP TABLE IF EXISTS `T`", DropTable("t", if_exists=True)),
        ("DROP MATERIALIZED VIEW IF EXISTS v", DropView("v", if_exists=True)),
        ("REFRESH MATERIALIZED VIEW v", RefreshView("v")),
        ("REFRESH MATERIALIZED VIEW v FROM '2014' TO 17", RefreshView("v", "2014", "17")),
        ("REFRESH MATERIALIZED VIEW v BUCKET TIMESTAMP '2014-01-05'", RefreshView("v", bucket="2014-01-05")),
        ("ALTER TABLE t SET TBLPROPERTIES ('scan' = 'false')", AlterTable("t", {"scan": "false"})),
        ("ALTER TABLE t UNSET TBLPROPERTIES (scan, 'glob')", AlterTable("t", {"scan": None, "glob": None})),
        (" (SELECT 1 FROM t) ", Select("(SELECT 1 FROM t)")),
        ("WITH x AS (SELECT 1) SELECT * FROM x", Select("WITH x AS (SELECT 1) SELECT * FROM x")),
    ],
)  # fmt: skip
def test_each_statement_becomes_its_command(text: str, statement: Statement) -> None:
    assert read_statement(text) == statement


def test_a_table_is_read_with_its_columns_and_properties() -> None:
    """Types become those of files. NOT NULL and comments make no difference to what is read."""
    assert read_statement(
        "CREATE TABLE IF NOT EXISTS t (a INT NOT NULL, `B b` decimal(10, 2), c TIMESTAMP COMMENT 'x, (y', d string) "
        "USING PARQUET LOCATION '/lake/it''s' TBLPROPERTIES ('time_column' = 'c', SCAN = 'true') DRY RUN"
    ) == CreateTable(
        "t",
        "/lake/it's",
        (("a", "int32"), ("B b", "decimal128(10, 2)"), ("c", "timestamp[us, tz=UTC]"), ("d", "string")),
        {"time_column": "c", "scan": "true"},
        if_not_exists=True,
        dry_run=True,
    )


def test_the_query_of_a_view_is_handed_on_as_it_was_written() -> None:
    """Whatever it contains: a semicolon in a text, words of ours, a comment."""
    select = "SELECT ';' AS `dry run`, count(*) AS n -- ; DROP\n FROM t WHERE a = 'AS TBLPROPERTIES' GROUP BY 1"
    text = f"CREATE OR REPLACE MATERIALIZED VIEW v LOCATION '/v' TBLPROPERTIES ('bucket' = '1h') AS {select} DRY RUN ;"
    assert read_statement(text) == CreateView(
        "v", select, "/v", {"bucket": "1h"}, or_replace=True, dry_run=True
    )  # fmt: skip
    assert source_of(select) == "t"


@pytest.mark.parametrize("text", ["SELECT 1 FROM t WHERE a = 'O''Fallon'", "SELECT 1 FROM t WHERE a = 'b''''' "])
def test_a_query_that_ends_with_a_quoted_quote_is_whole(text: str) -> None:
    """Cut off behind the first half of 'O''Fallon' it would be another query, and a right one."""
    assert read_statement(text) == Select(text.strip())
    assert read_statement(f"EXPLAIN {text} ;") == Explain(text.strip())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "statement-syntax"),
        (";;", "statement-syntax"),
        ("SELECT 1; DROP TABLE t", "one-statement"),
        ("SHOW TABLES; SHOW TABLES", "one-statement"),
        ("VACUUM t", "unknown-statement"),
        ("INSERT INTO t VALUES (1)", "unknown-statement"),
        ("SHOW TABLES FROM x", "statement-syntax"),
        ("CREATE TABLE 't' LOCATION '/x'", "statement-syntax"),
        ("CREATE TABLE a.b LOCATION '/x'", "statement-syntax"),
        ("CREATE TABLE t (a INT", "statement-syntax"),
        ("CREATE TABLE t ()", "statement-syntax"),
        ("CREATE TABLE t (a)", "statement-syntax"),
        ("CREATE TABLE t (a INT PRIMARY KEY)", "statement-syntax"),
        ("CREATE TABLE t (a INTERVAL)", "column-type"),
        ("CREATE TABLE t (a DECIMAL(99, 2))", "column-type"),
        ("CREATE TABLE t (a DECIMAL(x))", "column-type"),
        ("CREATE TABLE t USING csv LOCATION '/x'", "format"),
        ("CREATE TABLE t LOCATION /x", "statement-syntax"),
        ("CREATE TABLE t TBLPROPERTIES ('a' = '1', 'A' = '2')", "duplicate-property"),
        ("CREATE TABLE t TBLPROPERTIES ('a')", "statement-syntax"),
        ("CREATE MATERIALIZED VIEW v", "statement-syntax"),
        ("CREATE MATERIALIZED VIEW v AS", "statement-syntax"),
        ("CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT 1", "statement-syntax"),
        ("REFRESH MATERIALIZED VIEW v FROM '2014'", "statement-syntax"),
        ("REFRESH MATERIALIZED VIEW v BUCKET x", "statement-syntax"),
        ("ALTER TABLE t ADD COLUMN x INT", "alter-table"),
        ("ALTER TABLE t RENAME TO u", "alter-table"),
        ("DROP TABLE", "statement-syntax"),
        ("DROP TABLE t CASCADE", "statement-syntax"),
        ("SET a", "statement-syntax"),
        ("WHY STALE", "statement-syntax"),
        ("(" * 70_000, "not-sql"),
        ("EXPLAIN " + "(" * 100, "not-sql"),
        ("SELECT 'open", "not-sql"),
    ],
)
def test_what_is_no_statement_is_refused_by_its_rule(text: str, rule: str) -> None:
    """With a message that says what to write, and never longer than a message should be."""
    with pytest.raises(InvalidInput) as refused:
        read_statement(text)
    assert refused.value.rule == rule
    assert len(str(refused.value)) < 800


def test_the_document_lists_every_rule_of_statements() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {rule.value for rule in StatementRule} <= set(listed)


@given(st.text(max_size=60), st.sampled_from(["", "CREATE TABLE ", "CREATE MATERIALIZED VIEW v ", "SET ", "SELECT "]))
def test_any_text_is_a_statement_or_a_refusal(text: str, start: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert isinstance(read_statement(start + text), Statement)
