"""Whatever Spark can select is answered in every format, or refused by a rule that names the column. Never a 500.

The whole way of a query is there, from the request to what the Python client and the prompt make of the answer; only
the ledger and the socket are not.
"""

import csv
import datetime as dt
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from rich.console import Console

from floodmark.cli.sql import show
from floodmark.client import Connection, QueryFailed
from floodmark.core.errors import InvalidInput
from floodmark.core.ports import SystemClock
from floodmark.query.plan import Freshness, QueryPlan
from floodmark.query.planner import plan
from floodmark.service.access import Access
from floodmark.service.port import Page, Request
from floodmark.spark.liveness import Liveness
from floodmark.spark.session import open_session
from floodmark_broker.books import Books
from floodmark_broker.engine import Engine
from floodmark_broker.execution import Execution
from floodmark_broker.pages import Limits, Pages
from floodmark_broker.stopping import Queries

pytestmark = pytest.mark.timeout(900)  # a session of Spark takes minutes to start where everything else runs too

LATER = "+10000-01-01"
INSTANT = "TIMESTAMP '2024-01-02 03:04:05.12'"
INTERVAL = "INTERVAL '106751991 04:00:54.775807' DAY TO SECOND"

ANSWERED = [
    # -- times in any year: to_csv is None where it is as in JSON
    ("DATE '2024-02-29'", "2024-02-29"),
    ("date_add(DATE '9999-12-31', 1)", LATER),
    ("DATE '0000-01-01'", "0000-01-01"),
    ("DATE '-0005-02-03'", "-0005-02-03"),
    ("date_add(DATE '1970-01-01', 2147483647)", "+5881580-07-11"),
    ("date_add(DATE '1970-01-01', -2147483648)", "-5877641-06-23"),
    (INSTANT, "2024-01-02T03:04:05.120000+00:00"),
    ("TIMESTAMP_NTZ '2024-01-02 03:04:05'", "2024-01-02T03:04:05"),
    ("TIMESTAMP '9999-12-31 23:59:59' + INTERVAL 1 DAY", f"{LATER}T23:59:59+00:00"),
    ("TIMESTAMP_NTZ '-0005-02-03 01:02:03.004'", "-0005-02-03T01:02:03.004000"),
    ("timestamp_micros(9223372036854775807L)", "+294247-01-10T04:00:54.775807+00:00"),
    ("timestamp_micros(-9223372036854775807L - 1L)", "-290308-12-21T19:59:05.224192+00:00"),
    ("CAST(NULL AS TIMESTAMP)", None),
    ("array(DATE '0000-01-01', NULL)", ["0000-01-01", None]),
    ("map(DATE '0000-01-01', date_add(DATE '9999-12-31', 1))", [["0000-01-01", LATER]]),
    ("named_struct('a', array(TIMESTAMP '0000-01-01'), 'b', 1)", {"a": ["0000-01-01T00:00:00+00:00"], "b": 1}),
    ("map(named_struct('day', DATE '0000-01-01'), 1)", [[{"day": "0000-01-01"}, 1]]),
    ("CAST(NULL AS STRUCT<a: DATE>)", None),
    # -- intervals: seconds while a number is exact; months are no number of seconds
    ("INTERVAL '1 00:00:00.005' DAY TO SECOND", 86_400.005),
    (INTERVAL, "9223372036854.775807"),
    ("INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '1-2' YEAR TO MONTH"),
    ("array(INTERVAL 3 MONTH)", ["INTERVAL '3' MONTH"]),
    ("map('a', INTERVAL 3 MONTH)", [["a", "INTERVAL '3' MONTH"]]),
    # -- what has no type, or no rows of one
    ("NULL", None),
    ("array()", []),
    ("map()", []),
    ("array(map())", [[]]),
    ("named_struct('a', map(), 'b', NULL)", {"a": [], "b": None}),
    ("map('a', NULL)", [["a", None]]),
    # -- VARIANT is JSON
    ("""parse_json('{"a": [1, "x"]}')""", '{"a":[1,"x"]}'),
    ("parse_json('null')", "null"),
    ("parse_json(CAST(NULL AS STRING))", None),
    # -- numbers
    ("CAST('NaN' AS DOUBLE)", "NaN"),
    ("array(CAST('Infinity' AS FLOAT), CAST('-Infinity' AS FLOAT))", ["Infinity", "-Infinity"]),
    ("99999999999999999999999999999999999999BD", "9" * 38),
    ("CAST(0.00000000001 AS DECIMAL(38, 20))", "0.00000000001000000000"),
    ("9223372036854775807L", 9223372036854775807),
    ("array(named_struct('n', 9223372036854775807L))", [{"n": 9223372036854775807}]),
    # -- the rest
    ("X'00ff'", "AP8="),
    ("map(X'00ff', true)", [["AP8=", True]]),
    ("make_valid_utf8(CAST(X'61ff' AS STRING))", "a�"),
    ("named_struct('', 1)", {"": 1}),
    ("array(struct())", [{}]),
]
"""What is selected, and what JSON has for it. CSV has the same, with lists and objects as JSON."""

REFUSED = [
    ("CAST(X'ff' AS STRING)", "output-text", "write make_valid_utf8(...)"),
    ("array(named_struct('s', CAST(X'ff' AS STRING)))", "output-text", "write make_valid_utf8(...)"),
    ("array(parse_json('1'))", "output-type", "write to_json(...)"),
    ("named_struct('v', parse_json(CAST(NULL AS STRING)))", "output-type", "write to_json(...)"),
    ("named_struct('a', 1, 'a', 2)", "output-type", "name each field differently"),
]


class _Plans:
    """The planner over no tables."""

    @contextmanager
    def planned(self, select: str, *, freshness: Freshness, rewrite: bool) -> Iterator[QueryPlan]:
        yield plan(select, tables=[], views=[], freshness=freshness, now_ms=0, rewrite=rewrite)


class _Port:
    def __init__(self) -> None:
        self.pages: dict[tuple[str, str], Page] = {}

    def serve(self, method: str, pattern: str, page: Page) -> None:
        self.pages[method, pattern] = page


class _InProcess(Connection):
    """The Python client, without a socket."""

    def __init__(self, page: Page) -> None:
        super().__init__("http://127.0.0.1:1")
        self._page = page

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[str, bytes]:
        headers = {"content-type": "application/json", "host": "127.0.0.1"}
        answer = self._page(Request(method, path, headers=headers, body=body or b""))
        if answer.status >= 400:
            told = json.loads(answer.body)
            raise QueryFailed(answer.status, told["rule"], told["reason"])
        return answer.kind, answer.body


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    options = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false"}
    session = open_session(options, name="outputs")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker(spark: SparkSession) -> Iterator[Connection]:
    nothing, clock = cast("Any", None), SystemClock()
    with ThreadPoolExecutor(1) as pool:
        execution = Execution(spark, Liveness(spark))
        queries = Queries(pool, clock, concurrency_max=1, waiting_max=1, cancel_jobs=execution.cancel)
        engine = Engine(_Plans(), execution, nothing, queries, clock, Books(CollectorRegistry()), lambda: None)
        pages = Pages(engine, queries, nothing, clock, Access.of(), Limits(1_000, 600_000), nothing, lambda: "q")
        port = _Port()
        pages.serve(cast("Any", port))
        yield _InProcess(port.pages["POST", "/v1/sql"])


@pytest.mark.parametrize(("selected", "wanted"), ANSWERED, ids=[selected for selected, _ in ANSWERED])
def test_what_spark_can_select_is_answered_in_every_format(broker: Connection, selected: str, wanted: Any) -> None:
    """With a row that has it and one that has NULL: types differ in how they take that."""
    query = (
        f"SELECT IF(n = 0, x, NULL) AS x FROM (SELECT {selected} AS x) CROSS JOIN (SELECT explode(array(0, 1)) AS n)"
    )
    for asked, cells in ((f"SELECT {selected} AS x", [wanted]), (query, [wanted, None])):
        document = broker.document(asked)
        assert document["rows"] == [[cell] for cell in cells]
        show(document, Console(file=io.StringIO()))
        lines = list(csv.reader(io.StringIO(broker.csv(asked))))
        assert [_cell(line) for line in lines[1:]] == ["" if cell is None else _as_text(cell) for cell in cells]
        answer = broker.sql(asked)
        answer.table.validate(full=True)
        assert answer.table.num_rows == len(cells)


def _cell(line: list[str]) -> str:
    return line[0] if line else ""


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize(("selected", "rule", "instead"), REFUSED, ids=[selected for selected, *_ in REFUSED])
def test_what_no_format_has_a_form_for_is_refused_by_its_column(
    broker: Connection, selected: str, rule: str, instead: str
) -> None:
    """The same in every format, so that a query that works in one works in all."""
    for ask in (broker.document, broker.csv, broker.sql):
        with pytest.raises(QueryFailed) as refused:
            cast("Callable[[str], Any]", ask)(f"SELECT 1 AS fine, {selected} AS `the one`")
        assert (refused.value.status, refused.value.rule) == (400, rule)
        assert "column 'the one'" in refused.value.reason
        assert instead in refused.value.reason


def test_dates_are_shown_in_the_years_that_spark_shows(broker: Connection) -> None:
    """Against Spark's own text: ends of years, leap days and centuries, over all that a DATE can be."""
    days = "SELECT date_add(DATE '1970-01-01', CAST(n AS INT)) AS d FROM (SELECT explode(sequence({}, {}, {})) AS n)"
    for bounds in (
        ("-2147483648L", "2147483647L", "7654321L"),
        ("-800000L", "-700000L", "101L"),
        ("-719530L", "-719520L", "1L"),
    ):
        rows = broker.document(f"SELECT d, CAST(d AS STRING) FROM ({days.format(*bounds)})")["rows"]
        assert rows
        assert [shown for shown, _ in rows] == [wanted for _, wanted in rows]


def test_outputs_may_have_one_name_or_none_to_speak_of(broker: Connection) -> None:
    query = "SELECT 1 AS x, 2 AS x, 3 AS ` `"
    assert [column["name"] for column in broker.document(query)["columns"]] == ["x", "x", " "]
    assert broker.document(query)["rows"] == [[1, 2, 3]]
    assert broker.csv(query).splitlines() == ['"x","x"," "', '"1","2","3"']
    assert broker.sql(query).rows() == [(1, 2, 3)]
    assert broker.sql(query).to_pandas().to_numpy().tolist() == [[1, 2, 3]]


def test_the_python_client_says_which_column_python_cannot_hold(broker: Connection) -> None:
    """Python's calendar ends with the year 9999; Arrow's does not."""
    days = broker.sql(f"SELECT DATE '2024-01-01' AS a, date_add(DATE '9999-12-31', 1) AS b, {INSTANT} AS c")
    with pytest.raises(InvalidInput, match=r"column 'b' \(date32\[day\]\) .*write CAST\(... AS STRING\)"):
        days.rows()
    with pytest.raises(InvalidInput, match="column 'b'"):
        days.to_pandas()
    instants = broker.sql("SELECT timestamp_micros(9223372036854775807L) AS t, 1 AS n")
    with pytest.raises(InvalidInput, match="column 't'"):
        instants.rows()
    assert instants.to_pandas()["t"].dt.year.tolist() == [294247]
    fine = broker.sql("SELECT DATE '9999-12-31' AS a, TIMESTAMP_NTZ '0001-01-01' AS b")
    assert fine.rows() == [(dt.date.max, dt.datetime.fromisoformat("0001-01-01"))]
