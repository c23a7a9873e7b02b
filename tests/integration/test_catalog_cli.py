"""`floodmark table`, `view` and `retry` against a real ZooKeeper: what they define, show and refuse."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from floodmark.cli.main import app
from floodmark.core.dispatch import Policy
from floodmark.core.tables import CoverageMode
from floodmark.ledger.dispatch import Offer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.ledger_kit import HOUR_MS, Kit, segment, zookeeper_store
from tests.support.pipeline import write_parquet

pytestmark = pytest.mark.stack
Cli = Callable[..., Result]
SELECT = "SELECT count(*) AS n FROM rides"


@pytest.fixture
def hosts(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.hosts}/{uuid.uuid4().hex}"


@pytest.fixture
def kit(hosts: str) -> Iterator[Kit]:
    with zookeeper_store(hosts) as store:
        yield Kit(store)


@pytest.fixture
def cli(hosts: str, kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs the command in this process and in a directory of its own, with the environment naming ZooKeeper."""
    monkeypatch.setenv("FLOODMARK_ZOOKEEPER__HOSTS", hosts)
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def done(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_table_and_a_view_are_defined_by_flags_and_listed(cli: Cli, kit: Kit, tmp_path: Path) -> None:
    """A relative location is taken from where the command runs; columns come from the file that is there."""
    write_parquet(tmp_path / "lake" / "a.parquet", 1, 2)
    made = done(cli("table", "create", "rides", "--location", "lake", "--time-column", "event_time", "--no-scan"))
    assert made == f"table rides is defined at {tmp_path}/lake\n"
    definition = kit.ledger.registry.header("rides").definition
    assert definition.properties == {"scan": "false"}
    assert [name for name, _ in definition.columns] == ["event_time", "value"]
    view = ("--table", "rides", "--bucket", "1h", "--select", SELECT, "--location", "views")
    covered = ("--coverage", "fixed", "--coverage-start", "1970-01-01T02:00Z")
    assert done(cli("view", "create", "hourly", *view, *covered)).startswith(
        "view hourly is defined, covering from 1970"
    )
    header = kit.ledger.views.header("hourly")
    assert (header.definition.coverage, header.coverage_start_ms) == (CoverageMode.FIXED, 2 * HOUR_MS)
    assert [t["name"] for t in json.loads(done(cli("table", "list", "--json")))] == ["rides"]
    assert "rides" in done(cli("table", "list"))
    assert json.loads(done(cli("view", "list", "--json")))[0]["status"] == "active"


def test_a_definition_file_and_flags_define_the_same_and_flags_win(cli: Cli, kit: Kit, tmp_path: Path) -> None:
    """A relative location in a file is taken from where the file lies."""
    (tmp_path / "defs").mkdir()
    (tmp_path / "defs" / "rides.toml").write_text(
        '[table]\nname = "rides"\nlocation = "lake"\ntime_column = "t"\nglob = "*.pq"\n[table.columns]\nt = "int64"\n'
    )
    done(cli("table", "create", "--file", "defs/rides.toml"))
    done(cli("table", "create", "other", "--file", "defs/rides.toml", "--glob", "*.parquet"))
    rides, other = (kit.ledger.registry.header(name).definition for name in ("rides", "other"))
    assert (rides.location, rides.columns) == (f"{tmp_path}/defs/lake", (("t", "int64"),))
    assert (rides.properties, other.properties) == ({"glob": "*.pq"}, {"glob": "*.parquet"})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("table", "create", "rides"), "error: definition: table 'rides' needs location, time_column"),
        (("table", "create", "--file", "no.toml"), "error: definition: no.toml cannot be read"),
        (
            ("view", "create", "v", "--table", "no", "--bucket", "1h", "--select", "S", "--location", "l"),
            "error: unknown-table: there is no table 'no'",
        ),
        (("view", "drop", "no"), "error: unknown-view: there is no view 'no'"),
        (("retry", "no", "0"), "error: unknown-view: "),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_1(cli: Cli, arguments: tuple[str, ...], told: str) -> None:
    result = cli(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(told)
    assert result.stderr.count("\n") == 1


def test_a_zookeeper_that_is_away_is_exit_code_69(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOODMARK_ZOOKEEPER__HOSTS", "127.0.0.1:1")
    monkeypatch.setattr("floodmark.cli.ledger.CONNECT_TIMEOUT_MS", 500)
    result = cli("view", "list")
    told = "error: no ZooKeeper answered at 127.0.0.1:1 within 500 ms: [Errno 111] Connection refused\n"
    assert (result.exit_code, result.stderr) == (69, told)


def test_without_anything_defined_the_lists_say_so(cli: Cli) -> None:
    assert done(cli("table", "list")) == "no table is defined\n"
    assert done(cli("view", "list")) == "no view is defined\n"


def test_a_view_shows_what_pins_it_and_retry_releases_it(cli: Cli, kit: Kit) -> None:
    """Watermark, distance to the data, buckets by state, and the quarantined bucket with its error."""
    header = kit.set_up()
    kit.put(segment("a", 0, 5))
    kit.append(0)
    kit.ledger.dispatch.offer(header, [Offer(HOUR_MS, "task-1", "live")], alive=(), policy=Policy())
    kit.ledger.dispatch.fail(header, HOUR_MS, task_id="task-1", error="no such file", policy=Policy(tries_max=1))
    shown = done(cli("view", "list"))
    row = next(line for line in shown.splitlines() if line.startswith("rides_hourly"))
    for fact in (
        "active",
        "1970-01-01T01:00Z",
        "4h",
        "1 VALID",
        "1970-01-01T01:00Z quarantined after 1 attempt: no such",
    ):
        assert fact in row
    assert cli("retry", "rides_hourly", "1970-01-01T02:00Z").stderr == (
        "error: not-quarantined: bucket 1970-01-01T02:00Z of view 'rides_hourly' has no task\n"
    )
    released = done(cli("retry", "rides_hourly", "1970-01-01T01:30Z"))
    assert released == "bucket 1970-01-01T01:00Z of view rides_hourly is released\n"
    assert kit.ledger.dispatch.records("rides_hourly") == {}
    assert cli("retry", "rides_hourly", "1970-01-01T01:30Z").exit_code == 1


def test_a_dropped_view_is_gone(cli: Cli, kit: Kit) -> None:
    kit.set_up()
    assert done(cli("view", "drop", "rides_hourly")) == "view rides_hourly is dropped\n"
    assert done(cli("view", "list")) == "no view is defined\n"


def test_a_retention_is_defined_and_an_overlap_refused_by_its_rule(cli: Cli, kit: Kit) -> None:
    table = ("--time-column", "event_time")
    done(cli("table", "create", "rides", "--location", "lake", *table, "--retention", "30d"))
    assert kit.ledger.registry.header("rides").definition.properties == {"retention": "30d"}
    view = ("--table", "rides", "--bucket", "1h", "--select", SELECT)
    refused = cli("view", "create", "hourly", *view, "--location", "lake/views")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: location-overlap: view 'hourly' at ")
    assert cli("table", "create", "bad", "--location", "bad", *table, "--retention", "soon").exit_code == 1


def test_a_table_is_dropped_once_no_view_uses_it(cli: Cli, kit: Kit, tmp_path: Path) -> None:
    """Its files stay; what stands in the way is named."""
    write_parquet(tmp_path / "lake" / "a.parquet", 1, 2)
    done(cli("table", "create", "rides", "--location", "lake", "--time-column", "event_time"))
    done(cli("view", "create", "hourly", "--table", "rides", "--bucket", "1h", "--select", SELECT, "--location", "v"))
    refused = cli("table", "drop", "rides")
    assert refused.exit_code == 1
    assert "table-in-use: table 'rides' is used by view hourly" in refused.stderr
    done(cli("view", "drop", "hourly"))
    assert done(cli("table", "drop", "rides")) == "table rides is dropped; its files are where they were\n"
    assert kit.ledger.registry.tables() == []
    assert (tmp_path / "lake" / "a.parquet").exists()
    assert "unknown-table" in cli("table", "drop", "rides").stderr
