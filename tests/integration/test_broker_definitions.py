"""Definitions by SQL: one path for every way to define, each refusal with the id of its rule."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from floodmark.cli.main import app
from floodmark.client import QueryFailed
from tests.support.broker import BrokerUnderTest, Rides
from tests.support.eventually import eventually
from tests.support.service_process import new_table

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def rides(broker: BrokerUnderTest) -> Rides:
    made = Rides(broker)
    made.await_registered()
    return made


def refusal(rides: Rides, text: str) -> tuple[str, str]:
    with pytest.raises(QueryFailed) as failed:
        rides.ask(text)
    assert failed.value.status < 500
    return failed.value.rule, failed.value.reason


@pytest.mark.scenario("Q12")
@pytest.mark.parametrize(
    ("select", "rule"),
    [
        ("SELECT city, count(*) AS n FROM {t} GROUP BY city HAVING count(*) > 1", "having"),
        ("SELECT city, count(*) AS n FROM {t} GROUP BY city LIMIT 5", "limit"),
        ("SELECT sum(rand()) AS r FROM {t}", "nondeterministic"),
        ("SELECT count(*) AS n FROM {t} WHERE event_time < current_timestamp()", "nondeterministic"),
        ("SELECT count(*) AS n FROM (SELECT * FROM {t}) x", "wrong-table"),
        ("SELECT count(*) AS n FROM {t} WHERE rider IN (SELECT max(rider) FROM {t})", "one-table"),
        ("SELECT count(*) AS n FROM {t} a JOIN {t} b ON a.rider = b.rider", "one-table"),
        ("SELECT * FROM {t}", "select-star"),
        ("SELECT count(*) AS n, sum(cents) AS N FROM {t}", "duplicate-name"),
        ("SELECT sum(nothing) AS n FROM {t}", "unknown-column"),
        ("SELECT date_trunc('DAY', event_time) AS d, count(*) AS n FROM {t} GROUP BY 1", "time-key"),
        ("SELECT date_trunc('WEEK', event_time) AS d, count(*) AS n FROM {t} GROUP BY 1", "time-key"),
        ("SELECT reflect('java.lang.System', 'exit', 1) AS x FROM {t}", "nondeterministic"),
    ],
)
def test_a_definition_that_cannot_be_kept_is_refused_by_its_rule(rides: Rides, select: str, rule: str) -> None:
    """DRY RUN says the same as the real thing, and neither leaves anything behind."""
    create = f"CREATE MATERIALIZED VIEW {rides.name}_no TBLPROPERTIES ('bucket' = '1h') AS {select}"
    found, reason = refusal(rides, create)
    assert (found, refusal(rides, f"{create} DRY RUN")) == (rule, (rule, reason))
    assert f"{rides.name}_no" not in rides.broker.system.ledger.views.names()


@pytest.mark.scenario("Q12")
def test_a_definition_with_or_is_handled_right(rides: Rides) -> None:
    """Its condition is its own; the bucket's is another. Text that looks like SQL stays text."""
    select = "SELECT city, count(*) AS n FROM {table} WHERE cents > 0 OR city = 'x; DROP TABLE y -- HAVING' GROUP BY 1"
    view = rides.view("either", select=select)
    rides.await_built(view, up_to_hour=1)
    answer = rides.check(
        "SELECT city, count(*) AS n FROM {t} WHERE cents > 0 OR city = 'x; DROP TABLE y -- HAVING' GROUP BY 1"
    )
    assert answer.receipt is not None
    assert answer.receipt["view"] == view


def test_a_dry_run_tells_what_a_view_would_store_and_cost_and_creates_nothing(rides: Rides) -> None:
    name = f"{rides.name}_dry"
    told = rides.ask(
        f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('bucket' = '15m') AS "
        "SELECT city, avg(fare) AS mean, sum(price) AS price FROM {t} GROUP BY city DRY RUN"
    )
    facts = dict(told.rows())
    (segment,) = rides.broker.system.ledger.registry.snapshot(rides.name).by_name.values()
    stored = {key.removeprefix("stores "): value for key, value in facts.items() if key.startswith("stores ")}
    assert stored == {"city": "string", "mean__sum": "double", "mean__count": "bigint", "price": "decimal(22,2)"}
    assert (facts["buckets"], facts["rows"], facts["bytes"]) == ("4 of 15m", "1000", str(segment.bytes))
    assert facts["work"] == "4 tasks that read a file 4 times"
    assert name not in rides.broker.system.ledger.views.names()


def test_what_show_create_prints_creates_the_same_again(rides: Rides) -> None:
    """For a table and for a view: dropped, and back as it was."""
    view = rides.view(
        "again", select="SELECT city, min(fare) AS `it's` FROM {table} WHERE city <> 'O''Fallon' GROUP BY city"
    )
    ledger = rides.broker.system.ledger
    before = ledger.views.header(view).definition
    ((text,),) = rides.ask(f"SHOW CREATE MATERIALIZED VIEW {view}").rows()
    rides.ask(f"DROP MATERIALIZED VIEW {view}")
    rides.broker.sql(text)
    assert ledger.views.header(view).definition == before
    ((text,),) = rides.ask("SHOW CREATE TABLE {t}").rows()
    assert "is defined" in rides.broker.sql(text).rows()[0][0]  # exactly this one exists, which is fine
    rides.ask(f"DROP MATERIALIZED VIEW {view}")


def test_or_replace_if_not_exists_and_if_exists_do_as_they_say(rides: Rides) -> None:
    ledger = rides.broker.system.ledger
    name = f"{rides.name}_twice"
    create = f"MATERIALIZED VIEW {{}}{name} TBLPROPERTIES ('bucket' = '1h') AS SELECT {{}} AS n FROM {rides.name}"
    rides.broker.sql("CREATE " + create.format("", "count(*)"))
    first = ledger.views.header(name).incarnation
    with pytest.raises(QueryFailed) as failed:
        rides.broker.sql("CREATE " + create.format("", "count(*)"))
    assert (failed.value.status, failed.value.rule) == (409, "view-exists")
    rides.broker.sql("CREATE " + create.format("IF NOT EXISTS ", "sum(cents)"))
    rides.broker.sql("CREATE OR REPLACE " + create.format("", "count(*)"))  # as it is: its buckets are kept
    assert ledger.views.header(name).incarnation == first
    with pytest.raises(QueryFailed):
        rides.broker.sql(
            "CREATE OR REPLACE " + create.format("", "median(cents)")
        )  # refused before anything is dropped
    assert ledger.views.header(name).incarnation == first
    rides.broker.sql("CREATE OR REPLACE " + create.format("", "sum(cents)"))
    assert ledger.views.header(name).incarnation != first
    rides.broker.sql(f"DROP MATERIALIZED VIEW {name}")
    rides.broker.sql(f"DROP MATERIALIZED VIEW IF EXISTS {name}")
    assert refusal(rides, f"DROP MATERIALIZED VIEW {name}")[0] == "unknown-view"


def test_properties_of_a_table_are_altered_and_nothing_else_is(rides: Rides) -> None:
    """A scan that is switched off finds nothing more."""
    other = Rides(rides.broker)
    other.await_registered()
    other.ask("ALTER TABLE {t} SET TBLPROPERTIES ('scan' = 'false', 'glob' = '*.pq')")
    ledger = rides.broker.system.ledger
    assert ledger.registry.header(other.name).definition.properties == {"scan": "false", "glob": "*.pq"}
    other.ask("ALTER TABLE {t} UNSET TBLPROPERTIES ('scan', 'glob')")
    other.write("second", 1, 2)
    other.await_registered()
    assert refusal(rides, "ALTER TABLE {t} ADD COLUMN x INT")[0] == "alter-table"
    assert refusal(rides, "ALTER TABLE {t} SET TBLPROPERTIES ('retention' = '1d')")[0] == "alter-table"


def test_a_table_is_dropped_once_no_view_uses_it_and_its_files_stay(rides: Rides) -> None:
    """And a table of the same name over the same files has their rows again, found by the scanner at once."""
    other = Rides(rides.broker)
    other.await_registered()
    other.ask("CREATE MATERIALIZED VIEW {t}_v TBLPROPERTIES ('bucket' = '1h') AS SELECT count(*) AS n FROM {t}")
    rule, reason = refusal(other, "DROP TABLE {t}")
    assert rule == "table-in-use"
    assert f"{other.name}_v" in reason
    rows = other.ask("SELECT count(*) FROM {t}").rows()
    other.ask("DROP MATERIALIZED VIEW {t}_v")
    files = sorted(Path(other.location).iterdir())
    other.ask("DROP TABLE {t}")
    assert sorted(Path(other.location).iterdir()) == files
    assert refusal(other, "DROP TABLE {t}")[0] == "unknown-table"
    other.ask("DROP TABLE IF EXISTS {t}")
    assert refusal(other, "SELECT count(*) FROM {t}")[0] == "unknown-table"
    other.define()
    other.await_registered()
    assert other.ask("SELECT count(*) FROM {t}").rows() == rows


def test_columns_that_the_files_do_not_have_are_refused(rides: Rides, tmp_path: Path) -> None:
    """And a TIMESTAMP may be stored in any unit."""
    create = f"CREATE TABLE {new_table()} ({{}}) USING parquet LOCATION '{rides.location}' TBLPROPERTIES ({{}})"
    time = "'time_column' = 'event_time'"
    assert refusal(rides, create.format("event_time TIMESTAMP, city INT", time))[0] == "schema"
    assert refusal(rides, create.format("event_time TIMESTAMP, town STRING", time))[0] == "schema"
    assert refusal(rides, create.format("city STRING", time))[0] == "no-time-column"
    assert refusal(rides, create.format("event_time TIMESTAMP", "'tiem_column' = 'x'"))[0] == "definition"
    told = rides.ask(create.format("event_time TIMESTAMP, city STRING", time) + " DRY RUN").rows()
    assert ("column event_time", "timestamp[ms, tz=UTC]") in told


def test_the_command_line_asks_the_broker(rides: Rides) -> None:
    """A table for people, JSON for programs, and a refusal as one sentence with exit code 1."""
    runner = CliRunner()
    query = f"SELECT count(*) AS n FROM {rides.name}"
    shown = runner.invoke(app, ["sql", query, "--url", rides.broker.url])
    assert shown.exit_code == 0, shown.output
    assert "1000" in shown.output
    told = runner.invoke(app, ["sql", query, "--url", rides.broker.url, "--json"])
    assert json.loads(told.output)["rows"] == [[1000]]
    refused = runner.invoke(app, ["sql", "SELEC 1", "--url", rides.broker.url])
    assert (refused.exit_code, "unknown-statement" in refused.output) == (1, True)
    away = runner.invoke(app, ["sql", query, "--url", "http://127.0.0.1:9"])
    assert away.exit_code == 69


def test_files_announced_to_the_broker_are_registered_by_the_ingester(broker: BrokerUnderTest) -> None:
    rides = Rides(broker, scan=False)
    told = broker.connection.post(f"/v1/tables/{rides.name}/segments", {"action": "add", "path": "first.parquet"})
    assert [a["path"] for a in told["accepted"]] == ["first.parquet"]
    eventually(lambda: rides.broker.system.segments(rides.name) == {"first.parquet"}, within_s=30, what="registered")
    pages = broker.connection.get(f"/v1/tables/{rides.name}")
    assert (pages["segments"], pages["name"]) == (1, rides.name)
    (segment,) = broker.connection.get(f"/v1/tables/{rides.name}/segments")
    assert (segment["name"], segment["rows"]) == ("first.parquet", 1_000)
