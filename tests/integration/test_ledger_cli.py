"""`floodmark ledger` against a real ZooKeeper: what it prints, what it refuses, and that looking changes nothing."""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from floodmark.cli import ledger as commands
from floodmark.cli.main import app
from floodmark.core.dispatch import Policy
from floodmark.core.errors import InvalidInput
from floodmark.ledger import paths
from floodmark.ledger.dispatch import Offer
from floodmark.ledger.store import Store
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, segment, zookeeper_store

pytestmark = pytest.mark.stack
Cli = Callable[..., Result]


@pytest.fixture
def hosts(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.hosts}/{uuid.uuid4().hex}"


@pytest.fixture
def kit(hosts: str) -> Iterator[Kit]:
    """Hours 0 to 3 built, 1 marked for a real change, an event in the outbox, a hold, a quarantined bucket."""
    with zookeeper_store(hosts) as store:
        kit = Kit(store)
        header = kit.set_up()
        kit.put(segment("a", 0, 2), segment("b", 3, 4))
        for hour in range(4):
            kit.append(hour, f"attempt-{hour}")
        kit.put(segment("late", 1, 2, crc=-(2**63)))
        kit.mark(1, event_id="event-7")
        kit.ledger.holds.take("rides", "broker-1", ttl_ms=60_000)
        kit.ledger.dispatch.offer(header, [Offer(HOUR_MS, "task-1", "live")], alive=(), policy=Policy())
        kit.ledger.dispatch.fail(header, HOUR_MS, task_id="task-1", error="no such file", policy=Policy(tries_max=1))
        yield kit


@pytest.fixture
def cli(hosts: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs the command in this process, with the environment naming ZooKeeper."""
    monkeypatch.setenv("FLOODMARK_ZOOKEEPER__HOSTS", hosts)
    monkeypatch.setenv("COLUMNS", "240")
    return lambda *arguments, **options: CliRunner().invoke(app, ["ledger", *arguments], **options)


def every_node(store: Store, path: str = paths.ROOT) -> dict[str, object]:
    """The whole tree with data and versions."""
    found: dict[str, object] = {path: store.read(path)}
    for name in store.children(path):
        found |= every_node(store, f"{path}/{name}")
    return found


def shown(cli: Cli, *arguments: str) -> dict[str, Any]:
    result = cli("show", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def test_a_table_is_shown_whole(cli: Cli, kit: Kit) -> None:
    """Definition, version, extremes, slices with their segments, outbox and holds."""
    document = shown(cli, "rides")
    assert (document["kind"], document["version"], document["segment_count"]) == ("table", 2, 3)
    assert (document["min_start_ms"], document["max_last_ms"]) == (0, 4 * HOUR_MS - 1)
    assert {s["key"]: [x["name"] for x in s["segments"]] for s in document["slices"]} == {
        "0": ["a", "b", "late"], "wide": [],
    }  # fmt: skip
    assert document["slices"][0]["segments"][2]["crc"] == str(-(2**63))
    assert [[c["name"] for c in event["changes"]] for event in document["outbox"]] == [["a", "b"], ["late"]]
    assert [(h["reader"], h["registry_version"]) for h in document["holds"]] == [("broker-1", 2)]
    text = cli("show", "rides").stdout
    for said in (
        "/lake/rides",
        "event_time",
        "1970-01-01T00:00Z to 1970-01-01T03:59:59.999Z",
        "added late",
        "broker-1",
    ):
        assert said in text


def test_a_view_is_shown_whole(cli: Cli, kit: Kit) -> None:
    """Header, counts by state, runs of buckets with fingerprint, files, attempt and cause, dispatch records."""
    document = shown(cli, "rides_hourly")
    assert document["counts"] == {"VALID": 2, "VALID-empty": 1, "STALE": 1, "STALE, never built": 0}
    assert (document["header"]["coverage_start_ms"], document["header"]["watermark_ms"]) == (0, 4 * HOUR_MS)
    assert [(b["start_ms"] // HOUR_MS, b["count"], b["state"]) for b in document["buckets"]] == [
        (0, 1, "VALID"), (1, 1, "STALE"), (2, 1, "VALID"), (3, 1, "VALID"),
    ]  # fmt: skip
    assert document["buckets"][1]["cause"]["event_id"] == "event-7"
    assert [(r["progress"], r["error"]) for r in document["dispatch"]] == [("quarantined", "no such file")]
    text = cli("show", "rides_hourly").stdout
    for said in (
        "watermark",
        "1970-01-01T04:00Z",
        "attempt-0",
        "event event-7",
        "empty",
        "quarantined",
        "no such file",
    ):
        assert said in text


@pytest.mark.parametrize("time", ["1970-01-01T01:00Z", "1970-01-01T01:59:59", "1970-01-01T03:00+02:00", "3600000"])
def test_a_bucket_is_found_by_any_time_inside_it(cli: Cli, kit: Kit, time: str) -> None:
    """ISO 8601, UTC unless it says otherwise, or milliseconds."""
    assert shown(cli, "rides_hourly", "--bucket", time)["start_ms"] == HOUR_MS


def test_a_bucket_is_compared_with_its_live_source(cli: Cli, kit: Kit) -> None:
    """Differs: the late segment is in it. Matches, though its slice moved: the change was elsewhere."""
    stale = shown(cli, "rides_hourly", "--bucket", str(HOUR_MS))
    assert stale["comparison"]["verdict"] == "differs"
    assert stale["comparison"]["slices_moved"] == [{"key": "0", "built_at": 0, "now": 1}]
    assert [s["name"] for s in stale["source"]["segments"]] == ["a", "late"]
    assert stale["entry"]["fingerprint"]["hash"] != stale["source"]["fingerprint"]["hash"]
    valid = shown(cli, "rides_hourly", "--bucket", "0")
    assert valid["comparison"]["verdict"] == "matches"
    assert valid["entry"]["fingerprint"] == valid["source"]["fingerprint"]
    assert "differs; slices moved: 1970-01-01T00:00Z from version 0 to 1" in cli(
        "show", "rides_hourly", "--bucket", str(HOUR_MS)
    ).stdout  # fmt: skip


def test_a_vacant_bucket_is_said_to_be_vacant(cli: Cli, kit: Kit) -> None:
    """Nothing there is an answer."""
    assert shown(cli, "rides_hourly", "--bucket", "2014-01-05T10:00Z")["comparison"]["verdict"] == "vacant"
    assert "VACANT, outside coverage" in cli("show", "rides_hourly", "--bucket", "2014-01-05T10:00Z").stdout


def test_looking_changes_nothing(cli: Cli, kit: Kit) -> None:
    """Not even an empty slice is created for a window nobody looked at."""
    before = every_node(kit.store)
    for arguments in (["rides"], ["rides_hourly"], ["rides_hourly", "--bucket", "2014-01-05T10:00Z"]):
        assert cli("show", *arguments).exit_code == 0
    assert cli("export", "rides_hourly").exit_code == 0
    assert every_node(kit.store) == before


def test_a_name_that_is_both_must_be_told_apart(cli: Cli, kit: Kit) -> None:
    """A table and a view may share a name."""
    kit.ledger.views.create(replace(VIEW, name="rides"))
    result = cli("show", "rides")
    assert result.exit_code == 1
    assert "'rides' is a table and a view; say --table or --view" in result.stderr
    assert shown(cli, "rides", "--table")["kind"] == "table"
    assert shown(cli, "rides", "--view")["kind"] == "view"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "no_such"], "there is no table or view 'no_such'"),
        (["show", "rides", "--view"], "there is no view 'rides'"),
        (["show", "Rides"], "'Rides' must be"),
        (["show", "rides", "--bucket", "0"], "only views have buckets"),
        (["show", "rides_hourly", "--bucket", "noon"], "'noon' is neither a time"),
        (["show", "rides", "--table", "--view"], "exclude each other"),
        (["show", "rides", "--dir", "no-such-directory"], "no stack was ever started in no-such-directory"),
        (["export", "no_such"], "there is no view 'no_such'"),
        (["import", "no-such-file.json"], "no-such-file.json cannot be read: No such file"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_1(
    cli: Cli, kit: Kit, arguments: list[str], said: str
) -> None:
    """On standard error, without a stack trace; standard output stays empty."""
    result = cli(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_zookeeper_the_exit_code_is_69(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts can tell a server that is away from a request that is wrong."""
    monkeypatch.setattr(commands, "CONNECT_TIMEOUT_MS", 200)
    result = cli("show", "rides", "--zookeeper", "127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (69, "")
    told = "error: no ZooKeeper answered at 127.0.0.1:1 within 200 ms: [Errno 111] Connection refused\n"
    assert result.stderr == told


def test_export_and_import_make_a_round_trip(cli: Cli, kit: Kit, tmp_path: Path) -> None:
    """Out to a file, dropped, in from the file: the same entries, STALE, and VALID after reverts if files are there."""
    before = kit.ledger.views.state(VIEW.name).entries
    export = json.loads(cli("export", VIEW.name).stdout)
    export["view"]["location"] = str(tmp_path / "lake")
    for named in (f for start, e in before.items() if start != 3 * HOUR_MS for f in e.files):
        (tmp_path / "lake" / named.name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lake" / named.name).write_bytes(bytes(named.bytes))
    file = tmp_path / "view.json"
    file.write_text(json.dumps(export))
    kit.ledger.views.drop(VIEW.name)
    result = cli("import", str(file))
    assert result.exit_code == 0, result.stderr
    assert "4 buckets, all STALE" in result.stdout
    assert set(kit.states().values()) == {"STALE"}
    for start_ms in before:
        kit.ledger.views.revert_valid(VIEW.name, kit.header.incarnation, start_ms)
    assert kit.states() == {0: "VALID", 1: "STALE", 2: "VALID", 3: "STALE"}
    files = {start: entry.files for start, entry in kit.ledger.views.state(VIEW.name).entries.items()}
    assert files == {start: () if start == 3 * HOUR_MS else entry.files for start, entry in before.items()}


def test_an_import_reads_standard_input(cli: Cli, kit: Kit) -> None:
    """`floodmark ledger export v | floodmark ledger import - --zookeeper elsewhere`."""
    text = cli("export", VIEW.name).stdout
    assert "exists" in cli("import", "-", input=text).stderr
    kit.ledger.views.drop(VIEW.name)
    assert cli("import", "-", input=text).exit_code == 0


def test_times_are_read_as_people_write_them() -> None:
    """A wrong one is refused by name."""
    assert commands.time_ms("2014-01-05T10:00Z") == 1_388_916_000_000
    assert commands.time_ms("-5") == -5
    with pytest.raises(InvalidInput, match="'ten past' is neither"):
        commands.time_ms("ten past")


def test_a_table_without_anything_is_shown(cli: Cli, hosts: str) -> None:
    """Lists that are empty say so."""
    with zookeeper_store(hosts) as store:
        Kit(store).ledger.registry.create_table(TABLE)
        text = cli("show", "rides").stdout
    assert "holds: none" in text
    assert "outbox, not yet acknowledged: none" in text
