"""What must not happen through the broker: two statements in one, files outside a table, answers without a token."""

import http.client
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

import floodmark
from floodmark.client import QueryFailed
from tests.support.broker import BrokerUnderTest, Rides, start_broker
from tests.support.service_process import ROOT

pytestmark = pytest.mark.stack
ADMIN, READER = "admin-token-0123456789", "reader-token-0123456789"
SECRET = "the secret of another place"


@pytest.fixture(scope="module")
def rides(broker: BrokerUnderTest) -> Rides:
    made = Rides(broker)
    made.await_registered()
    return made


@pytest.fixture(scope="module")
def guarded(broker: BrokerUnderTest) -> BrokerUnderTest:
    """A broker that can be reached from anywhere, and so asks for a token."""
    return start_broker(
        broker.system,
        FLOODMARK_HTTP__HOST="0.0.0.0",
        FLOODMARK_BROKER__ADMIN_TOKENS=json.dumps([ADMIN]),
        FLOODMARK_BROKER__READ_TOKENS=json.dumps([READER]),
    )


def post(broker: BrokerUnderTest, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    port = int(broker.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/v1/sql", body, {"Content-Type": "application/json", **named})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def refusal(broker: BrokerUnderTest, text: str) -> str:
    with pytest.raises(QueryFailed) as failed:
        broker.sql(text)
    assert failed.value.status in (400, 404), failed.value
    assert "Traceback" not in failed.value.reason
    return failed.value.rule


# -- one statement, bounded --------------------------------------------------------------------------------------------


@pytest.mark.scenario("Q11")
def test_a_second_statement_is_refused_and_nothing_of_the_request_is_done(rides: Rides) -> None:
    view = rides.view("kept", select="SELECT city, count(*) AS n FROM {table} GROUP BY city")
    for text in (
        f"SELECT count(*) FROM {rides.name}; DROP MATERIALIZED VIEW {view}",
        f"DROP MATERIALIZED VIEW {view}; SELECT 1",
        f"SHOW TABLES;; DROP MATERIALIZED VIEW {view};",
    ):
        assert refusal(rides.broker, text) == "one-statement"
    assert view in rides.broker.system.ledger.views.names()
    rides.ask(f"DROP MATERIALIZED VIEW {view};")


@pytest.mark.scenario("Q11")
@pytest.mark.parametrize(
    "text",
    [
        "(" * 1_000_000,
        "SELECT " + "(" * 500 + "1" + ")" * 500,
        "SELECT a" + ".b" * 9_000 + " FROM t",
        "SELECT " + "- " * 9_000 + "1",
    ],
    ids=["a megabyte", "five hundred levels", "a long chain", "only minus"],
)  # fmt: skip
def test_text_that_is_too_long_or_too_deep_is_refused(rides: Rides, text: str) -> None:
    rides.broker.sql("SHOW TABLES")
    status, told = post(rides.broker, json.dumps({"sql": text}).encode())
    assert status in (400, 413), told
    rides.broker.sql("SHOW TABLES")


# -- nothing outside a table's location --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outside(rides: Rides, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file that no table has, and one beside the table's directory."""
    path = tmp_path_factory.mktemp("outside") / "secret.parquet"
    path.write_bytes((rides.location / "first.parquet").read_bytes())
    (path.parent / "secret.txt").write_text(SECRET)
    return path


@pytest.mark.scenario("Q11")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM parquet.`{path}`",
        "SELECT * FROM text.`{directory}/secret.txt`",
        "SELECT * FROM `{path}`",
        "SELECT * FROM read_files('{path}')",
        "SELECT count(*) FROM {t} WHERE city IN (SELECT value FROM text.`{directory}/secret.txt`)",
        "WITH x AS (SELECT * FROM csv.`{directory}/secret.txt`) SELECT * FROM x",
        "SELECT * FROM {t} UNION ALL SELECT * FROM parquet.`{path}`",
        "SELECT reflect('java.lang.System', 'getenv', 'PATH') FROM {t}",
        "SELECT java_method('java.lang.System', 'getProperty', 'user.home') FROM {t}",
        "SELECT input_file_name() FROM {t}",
        "SELECT _metadata.file_path FROM {t}",
        "SELECT * FROM identifier('parquet.`{path}`')",
        "SELECT * FROM floodmark_view",
        "SELECT * FROM spark_catalog.default.{t}",
    ],
)
def test_no_query_reads_what_is_not_a_table(rides: Rides, outside: Path, query: str) -> None:
    text = query.format(path=outside, directory=outside.parent, t=rides.name)
    assert refusal(rides.broker, text) in (
        "unknown-table", "table-function", "reads-outside", "unsupported-syntax", "not-sql", "parameter",
    )  # fmt: skip


@pytest.mark.parametrize(
    "path", ["../secret.parquet", "/etc/passwd", "file:///etc/passwd", "a/../../x.parquet", "%2e%2e/x.parquet"]
)
def test_no_announcement_brings_in_a_file_from_elsewhere(rides: Rides, path: str) -> None:
    """It is taken for what it is, an announcement; the ingester refuses it, and nothing is registered."""
    port = int(rides.broker.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"action": "add", "path": path})
    connection.request("POST", f"/v1/tables/{rides.name}/segments", body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    told = json.loads(reply.read())
    assert reply.status in (202, 400), told
    assert set(rides.broker.system.segments(rides.name)) == {"first.parquet"}


@pytest.mark.parametrize(
    "page",
    ["/v1/tables/..%2f..%2fetc", "/v1/views/../../floodmark", "/v1/tables/%00", "/../etc/passwd", "/v1/views/a%2fb"],
)
def test_no_address_leads_outside(rides: Rides, page: str) -> None:
    with pytest.raises(QueryFailed) as failed:
        rides.broker.connection.get(page)
    assert failed.value.status == 404


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_without_a_token_a_broker_that_others_can_reach_answers_401(guarded: BrokerUnderTest) -> None:
    """Every page but those a supervisor asks; a wrong token is as good as none."""
    body = json.dumps({"sql": "SHOW TABLES"}).encode()
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": READER},
        {"Authorization": f"Basic {READER}"},
    ):
        status, told = post(guarded, body, **headers)
        assert (status, told["rule"]) == (401, "unauthorized")
    for page in ("/v1/views", "/v1/tables", "/v1/queries", "/v1/tables/x/segments"):
        with pytest.raises(QueryFailed) as failed:
            guarded.connection.get(page)
        assert failed.value.status == 401
    assert guarded.process.ask("/readyz")[0] == 200


def test_a_reader_may_ask_and_an_admin_may_define(guarded: BrokerUnderTest, rides: Rides) -> None:
    reader, admin = (floodmark.connect(guarded.url, token=token) for token in (READER, ADMIN))
    assert reader.sql(f"SELECT count(*) AS n FROM {rides.name}").rows() == [(1_000,)]
    create = (
        f"CREATE MATERIALIZED VIEW {rides.name}_mine LOCATION '{rides.location}_mine' TBLPROPERTIES ('bucket' = '1h') "
    )
    create += f"AS SELECT count(*) AS n FROM {rides.name}"
    with pytest.raises(QueryFailed) as failed:
        reader.sql(create)
    assert (failed.value.status, failed.value.rule) == (403, "forbidden")
    assert "is defined" in admin.sql(create).rows()[0][0]
    assert "is dropped" in admin.sql(f"DROP MATERIALIZED VIEW {rides.name}_mine").rows()[0][0]
    log = guarded.process.log_path.read_text()
    assert ADMIN not in log
    assert READER not in log


def test_a_start_without_tokens_on_an_address_that_others_reach_is_refused(broker: BrokerUnderTest) -> None:
    environ = {**os.environ, "FLOODMARK_HTTP__HOST": "0.0.0.0"}
    done = subprocess.run(
        [sys.executable, "-m", "floodmark_broker"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    assert "set broker.admin_tokens" in done.stderr


def test_a_page_of_a_browser_cannot_speak_for_its_user(broker: BrokerUnderTest) -> None:
    """Neither through a name of its own for this machine, nor with a form, which no browser asks about."""
    body = json.dumps({"sql": "SHOW TABLES"}).encode()
    assert post(broker, body, Host="evil.example")[0] == 403
    assert post(broker, body, Content_Type="text/plain")[0] == 415
    assert post(broker, body)[0] == 200


# -- whatever comes ----------------------------------------------------------------------------------------------------

PLAIN = """
    SELECT FROM WHERE LIMIT HAVING CREATE TABLE MATERIALIZED VIEW OR REPLACE IF NOT EXISTS AS TBLPROPERTIES
    LOCATION USING parquet REFRESH BUCKET TO PAUSE RESUME DROP SHOW TABLES VIEWS DESCRIBE EXPLAIN WHY STALE SET
    floodmark . rewrite freshness = off bounded 10s ( ) , ; ' '' 'x' ` `y` * count(*) 1 -1 1e400 0x NULL CASE END
    /* */ -- { } $ :: ? :a DRY RUN ALTER UNSET [ ] < > INTERVAL DAY t v city
"""
WORDS = (
    *PLAIN.split(), "GROUP BY", "ORDER BY", "\n", "\x00", "\ud83d", "\xe9", "\u6771\u4eac", "\\", '"',
)  # fmt: skip


def test_a_thousand_strings_of_anything_give_errors_and_no_crash(rides: Rides) -> None:
    """Each is answered, none by a bug; afterwards the broker is as before."""
    dice = random.Random(os.environ.get("BROKER_SEED", "7"))
    starts = ("SELECT", "CREATE TABLE", "CREATE MATERIALIZED VIEW v", "SHOW", "EXPLAIN SELECT", "SET", "WHY STALE", "")
    outcomes: dict[int, int] = {}
    for _ in range(1_000):
        words = [dice.choice(starts), *(dice.choice([*WORDS, rides.name]) for _ in range(dice.randrange(12)))]
        text = dice.choice((" ", " ", "")).join(words)
        status, told = post(rides.broker, json.dumps({"sql": text, "time_max_ms": 20_000}).encode())
        assert status < 500, f"{text!r}: {told}"
        outcomes[status] = outcomes.get(status, 0) + 1
    assert outcomes.get(400, 0) > 800, outcomes
    assert not rides.broker.process.events("request_failed")


@pytest.fixture(scope="module")
def api(rides: Rides) -> Any:
    return schemathesis.openapi.from_url(f"{rides.broker.url}/openapi.json")


def test_the_openapi_document_holds_for_whatever_it_allows(api: Any, rides: Rides) -> None:
    """schemathesis makes requests of the document, right ones and wrong ones: no 500, and answers as it says.

    That a text is SQL, no schema can say: what it allows may be refused.
    """
    checked = 0
    for result in api.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=25,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def examine(case: Any) -> None:
            nonlocal checked
            checked += 1
            case.call_and_validate(timeout=60, excluded_checks=[positive_data_acceptance])

        given(case=operation.as_strategy())(examine)()
    assert checked > 100
    assert not rides.broker.process.events("request_failed")
