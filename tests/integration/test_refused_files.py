"""Files that are refused, seen by whoever asks the broker; and who may announce files to the ingester."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from floodmark.cli.main import app
from floodmark.client import QueryFailed
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.broker import BrokerUnderTest, start_broker
from tests.support.eventually import ANSWERED_WITHIN_S, eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.service_process import ROOT, new_table
from tests.support.system import START_WITHIN_S, system_on

ADMIN = "admin-0123456789abcdef"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> Iterator[BrokerUnderTest]:
    """A broker and an ingester: nothing here has views, so nobody has to build any."""
    with system_on(tmp_path_factory.mktemp("refused"), zookeeper, kafka) as made:
        made.start("ingester")
        yield start_broker(made)


def write_fares(path: Path, fares: list[Any]) -> None:
    times = pa.array([HOUR_MS] * len(fares), pa.timestamp("ms", tz="UTC"))
    part = path.with_name(f".{path.name}.part")
    pq.write_table(pa.table({"event_time": times, "fare": fares}), part)
    part.rename(path)


def made(broker: BrokerUnderTest, **properties: str) -> tuple[str, Path]:
    """A table without columns on a directory without files."""
    table = new_table()
    location = broker.system.lake / table
    location.mkdir(parents=True)
    asked = {"time_column": "event_time", **properties}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in asked.items())
    broker.sql(f"CREATE TABLE {table} USING parquet LOCATION '{location}' TBLPROPERTIES ({listed})")
    return table, location


def refused(broker: BrokerUnderTest, table: str) -> dict[str, tuple[str, str]]:
    rows = broker.sql(f"SHOW REFUSED FILES {table}").rows()
    return {file: (rule, reason) for file, rule, reason, _since in rows}


def standing(broker: BrokerUnderTest, table: str) -> tuple[int, int]:
    """Segments and refused files, as SHOW TABLES has them; the page of the table says the same."""
    (row,) = [r for r in broker.sql("SHOW TABLES").rows() if r[0] == table]
    page = broker.connection.get(f"/v1/tables/{table}")
    assert (page["segments"], page["refused_files"]) == row[1:3]
    return row[1], row[2]


@pytest.mark.scenario("I7")
def test_a_file_that_does_not_fit_the_first_one_is_refused_and_told_of_until_it_is_mended(
    broker: BrokerUnderTest,
) -> None:
    """The first file of the table decides that `fare` is a double; one with text waits on the list, not in a 503."""
    table, location = made(broker)
    assert broker.sql(f"SHOW REFUSED FILES {table}").rows() == []
    write_fares(location / "a.parquet", [1.5, 2.5])
    eventually(lambda: standing(broker, table) == (1, 0), what="the first file registered")
    assert ("fare", "double") in broker.sql(f"DESCRIBE {table}").rows()
    write_fares(location / "b.parquet", ["3.5"])
    (location / "c.parquet").write_bytes(b"PAR1 no parquet PAR1")
    eventually(lambda: standing(broker, table) == (1, 2), what="both refusals on the list")
    found = refused(broker, table)
    assert found["b.parquet"][0] == "schema"
    assert "the table has column 'fare' as double, the file has it as string" in found["b.parquet"][1]
    assert found["c.parquet"][0] == "not-parquet"
    assert broker.sql(f"SELECT sum(fare) AS fare FROM {table}").rows() == [(4.0,)]
    write_fares(location / "b.parquet", [3.5])
    (location / "c.parquet").unlink()
    eventually(lambda: standing(broker, table) == (2, 0), what="one mended, one gone")
    assert broker.sql(f"SELECT sum(fare) AS fare FROM {table}").rows() == [(7.5,)]


def test_the_command_line_counts_refused_files(broker: BrokerUnderTest) -> None:
    table, location = made(broker)
    (location / "a.parquet").write_bytes(b"PAR1 no parquet PAR1")
    eventually(lambda: standing(broker, table) == (0, 1), what="the refusal on the list")
    done = CliRunner().invoke(app, ["table", "list", "--json", "--zookeeper", broker.system.hosts])
    assert done.exit_code == 0, done.output
    (facts,) = [t for t in json.loads(done.stdout) if t["name"] == table]
    assert (facts["segments"], facts["refused_files"]) == (0, 1)


def test_refused_files_of_a_table_that_is_not_there_are_a_clear_error(broker: BrokerUnderTest) -> None:
    with pytest.raises(QueryFailed, match="there is no table 'nowhere'") as failed:
        broker.sql("SHOW REFUSED FILES nowhere")
    assert (failed.value.status, failed.value.rule) == (404, "unknown-table")


# -- who may announce --------------------------------------------------------------------------------------------------


def test_an_ingester_that_others_can_reach_registers_for_those_with_a_token_only(broker: BrokerUnderTest) -> None:
    table, location = made(broker, scan="false")
    write_fares(location / "a.parquet", [1.5])
    ingester = broker.system.start(
        "ingester", FLOODMARK_HTTP__HOST="0.0.0.0", FLOODMARK_INGESTER__ADMIN_TOKENS=json.dumps([ADMIN])
    )
    ingester.await_event("service_started", within_s=START_WITHIN_S)
    port = ingester.await_event("http_port_opened")["port"]

    def announce(action: str, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERED_WITHIN_S)
        body = json.dumps({"action": action, "path": "a.parquet"})
        sent = {"Content-Type": "application/json", **headers}
        connection.request("POST", f"/v1/tables/{table}/segments", body, sent)
        status = connection.getresponse().status
        connection.close()
        return status

    try:
        assert announce("add") == 401
        assert announce("add", Authorization="Bearer wrong") == 401
        assert broker.system.segments(table) == set()
        assert announce("add", Authorization=f"Bearer {ADMIN}") == 200
        assert announce("delete") == 401
        assert broker.system.segments(table) == {"a.parquet"}
        assert ingester.ask("/readyz")[0] == 200
        assert ADMIN not in ingester.log_path.read_text()
    finally:
        ingester.terminate()
        assert ingester.exit_code() == 0


def test_an_ingester_without_tokens_does_not_start_where_others_reach_it() -> None:
    environ = {**os.environ, "FLOODMARK_HTTP__HOST": "0.0.0.0"}
    done = subprocess.run(
        [sys.executable, "-m", "floodmark_ingester"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    assert "set ingester.admin_tokens" in done.stderr
