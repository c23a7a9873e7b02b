"""The janitor as a process, beside the others: what it deletes, what it keeps, and what a dry run says of it."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from floodmark.cli.main import app
from floodmark.core.buckets import DataFile
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.ports import SystemClock
from floodmark.core.registry import Put
from floodmark.core.transitions import Build, Mode
from floodmark.ledger.holds import Hold
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually, never
from tests.support.ledger_kit import HOUR_MS, cause, segment
from tests.support.pipeline import Pipeline, pipeline_on, write_parquet
from tests.support.service_process import ServiceUnderTest

pytestmark = pytest.mark.stack
EVERY_MS, GRACE_MS = 100, 600
QUICK = {
    "FLOODMARK_JANITOR__EVERY_MS": str(EVERY_MS),
    "FLOODMARK_JANITOR__GRACE_MS": str(GRACE_MS),
    "FLOODMARK_JANITOR__SKEW_MS": "0",  # one machine, one clock
    "FLOODMARK_INGESTER__SCAN_EVERY_MS": "100",
    "FLOODMARK_INGESTER__OUTBOX_EVERY_MS": "500",
}
LONG_MS = 600_000


@pytest.fixture
def pipeline(zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path) -> Iterator[Pipeline]:
    with pipeline_on(tmp_path, zookeeper, kafka, **QUICK) as made:
        yield made


def start(pipeline: Pipeline, name: str = "janitor", **environ: str) -> ServiceUnderTest:
    running = pipeline.start(name, **environ)
    running.await_event("service_started")
    return running


def hold(pipeline: Pipeline, reader: str) -> Hold:
    return pipeline.ledger.holds.take("rides", reader, ttl_ms=LONG_MS)


class Attempt:
    """Writes a file for hour 0 of the view `hourly`, as a worker does."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.id = str(uuid.uuid4())
        self.name = f"0/{self.id}-0.parquet"
        self.path = write_parquet(pipeline.lake / "views" / "hourly" / self.name, 0, 1)
        self._pipeline = pipeline

    def commit(self, incarnation: str, mode: Mode) -> str:
        ledger = self._pipeline.ledger
        source = ledger.registry.read_window("rides", ledger.views.header("hourly").definition.grid.window(0)).source
        build = Build(
            start_ms=0,
            mode=mode,
            attempt_id=self.id,
            fingerprint=Fingerprint(source.fingerprint.count, source.fingerprint.hash),
            slice_versions=dict(source.slice_versions),
            definition_hash="h",
            built_at_ms=SystemClock().now_ms(),
            files=(DataFile(self.name, 10, self.path.stat().st_size),),
        )
        return type(ledger.views.commit("hourly", incarnation, [build]).result[0]).__name__


# -- files of views ----------------------------------------------------------------------------------------------------


def test_an_orphan_is_collected_after_its_grace_period_and_an_alien_stays(pipeline: Pipeline) -> None:
    """K7, its last part: files of dead attempts are collected later."""
    pipeline.table(scan="false")
    pipeline.view()
    orphan = Attempt(pipeline)
    alien = write_parquet(pipeline.lake / "views" / "hourly" / "0" / "part-0.parquet", 0, 1)
    written_ms = SystemClock().now_ms()
    janitor = start(pipeline)
    told = janitor.await_event("file_deleted", path=orphan.name)
    assert (told["view"], told["bucket_ms"], told["attempt_id"]) == ("hourly", 0, orphan.id)
    assert SystemClock().now_ms() - written_ms >= GRACE_MS
    assert not orphan.path.exists()
    assert alien.exists()
    status, metrics = janitor.ask("/metrics")
    assert status == 200
    assert 'floodmark_files_deleted_total{kind="view",of="hourly"} 1.0' in metrics
    janitor.terminate()
    assert janitor.exit_code() == 0


def test_a_file_of_a_running_attempt_stays_until_its_hold_goes_and_a_restart_only_delays(pipeline: Pipeline) -> None:
    pipeline.table(scan="false")
    pipeline.view()
    writer = hold(pipeline, "worker-1")
    running = Attempt(pipeline)
    janitor = start(pipeline)
    never(lambda: not running.path.exists(), for_s=3 * GRACE_MS / 1000, what="the file of a running attempt goes")
    janitor.process.kill()
    janitor.process.wait()
    pipeline.ledger.holds.release(writer)
    begun_ms = SystemClock().now_ms()
    again = start(pipeline)
    again.await_event("file_deleted", path=running.name)
    assert SystemClock().now_ms() - begun_ms >= GRACE_MS, "what it knew of the file went with the process"


def test_a_named_file_is_never_deleted_while_commits_go_on(pipeline: Pipeline) -> None:
    """INV-11: one build after the other under a janitor without patience; the file of the entry is always there."""
    pipeline.table(scan="false")
    header = pipeline.view(coverage_start_ms=0)  # type: ignore[arg-type]
    pipeline.ledger.registry.apply("rides", [Put(segment("a", 0, 5))])
    janitor = start(pipeline, FLOODMARK_JANITOR__GRACE_MS="1", FLOODMARK_JANITOR__EVERY_MS="1")
    missing: list[str] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            reader = hold(pipeline, "reader")
            for entry in pipeline.ledger.views.state("hourly").entries.values():
                paths = [pipeline.lake / "views" / "hourly" / file.name for file in entry.files]
                time.sleep(0.01)  # what a reader does with its files takes a while
                missing.extend(str(path) for path in paths if not path.exists())
            pipeline.ledger.holds.release(reader)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for n in range(150):
            writer = hold(pipeline, f"worker-{n}")
            attempt = Attempt(pipeline)
            mode = Mode.APPEND if n == 0 else Mode.OVERWRITE
            assert attempt.commit(header.incarnation, mode) == "Changed"
            pipeline.ledger.holds.release(writer)
            pipeline.ledger.views.mark_stale("hourly", [header.definition.grid.window(0)], cause(f"e{n}"))
    finally:
        stop.set()
        looking.join()
    assert missing == []
    (entry,) = pipeline.entries().values()
    kept = pipeline.lake / "views" / "hourly" / entry.files[0].name
    eventually(lambda: list(kept.parent.iterdir()) == [kept], what="only the named file is left")
    assert len(janitor.events("file_deleted")) == 149
    assert janitor.events("chore_postponed") == []


# -- tables with a retention -------------------------------------------------------------------------------------------


@pytest.mark.scenario("K10")
def test_a_readers_hold_keeps_retired_files_and_they_go_within_one_sweep_after_it(pipeline: Pipeline) -> None:
    """A live ingester scans all the while: it neither announces the condemned file again nor registers it."""
    location = pipeline.table(retention="1d")
    ingester = start(pipeline, "ingester")
    now_hour = SystemClock().now_ms() / HOUR_MS
    old = write_parquet(location / "old.parquet", 0, 3)
    young = write_parquet(location / "young.parquet", now_hour - 1, now_hour)
    eventually(lambda: pipeline.segments() == {"old.parquet", "young.parquet"}, what="both files registered")
    reader = hold(pipeline, "broker-1")
    janitor = start(pipeline)
    janitor.await_event("segments_retired", table="rides", segments=1)
    assert pipeline.segments() == {"young.parquet"}
    announced = len(ingester.events("file_announced", path="old.parquet"))
    never(lambda: not old.exists() or pipeline.segments() != {"young.parquet"}, for_s=2, what="a held file goes")
    pipeline.announce("rides", "old.parquet")
    eventually(pipeline.dead_letters, what="the announcement of a condemned file is refused")
    assert pipeline.dead_letters()[0].rule == "condemned"
    sweep_s = EVERY_MS / 1000
    pipeline.ledger.holds.release(reader)
    released_s = time.monotonic()
    eventually(lambda: not old.exists(), every_s=0.01, what="the file goes when its reader has left")
    assert time.monotonic() - released_s < sweep_s + 5, "within one sweep, and what a busy machine adds"
    eventually(lambda: pipeline.ledger.retention.condemned("rides") == [], what="nothing is condemned any more")
    assert young.exists()
    assert len(ingester.events("file_announced", path="old.parquet")) == announced
    assert pipeline.segments() == {"young.parquet"}
    assert len(janitor.events("segments_retired")) == 1


def test_the_event_of_a_removal_is_published_and_marks_the_buckets(pipeline: Pipeline) -> None:
    """The janitor has no Kafka: any ingester publishes what it left in the outbox."""
    location = pipeline.table(retention="1d")
    pipeline.view()
    pipeline.start_all()
    now_hour = int(SystemClock().now_ms() / HOUR_MS)
    write_parquet(location / "old.parquet", now_hour - 40, now_hour - 38)
    write_parquet(location / "young.parquet", now_hour - 38, now_hour - 1)
    pipeline.build_everything(up_to_hour=now_hour - 1)
    janitor = start(pipeline)
    told = janitor.await_event("segments_retired", table="rides")
    gone = {now_hour - 40, now_hour - 39}

    def changed() -> bool:
        entries = pipeline.entries()
        return {h for h, e in entries.items() if e.cause and e.cause.trace_id == told["trace_id"]} == gone

    eventually(changed, what="exactly the buckets of the removed file are marked, by the event of its removal")
    assert pipeline.ledger.registry.outbox("rides") == []
    pipeline.build_everything(up_to_hour=now_hour - 1)
    assert all(e.fingerprint and e.fingerprint.is_empty == (h in gone) for h, e in pipeline.entries().items())


# -- the command -------------------------------------------------------------------------------------------------------

Cli = Callable[..., Result]


@pytest.fixture
def cli(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("FLOODMARK_ZOOKEEPER__HOSTS", pipeline.hosts)
    monkeypatch.setenv("COLUMNS", "300")
    return lambda *arguments: CliRunner().invoke(app, ["janitor", *arguments])


def test_a_dry_run_tells_what_would_go_and_what_keeps_the_rest_and_deletes_nothing(
    pipeline: Pipeline, cli: Cli, tmp_path: Path
) -> None:
    location = pipeline.table(scan="false", retention="1d")
    header = pipeline.view(coverage_start_ms=0)  # type: ignore[arg-type]
    named, orphan = Attempt(pipeline), Attempt(pipeline)
    write_parquet(pipeline.lake / "views" / "hourly" / "0" / "part-0.parquet", 0, 1)
    now_hour = SystemClock().now_ms() // HOUR_MS
    pipeline.ledger.registry.apply("rides", [Put(segment("a", 0, now_hour)), Put(segment("due", 0, 1))])
    assert named.commit(header.incarnation, Mode.APPEND) == "Changed"
    reader = hold(pipeline, "broker-7")
    before = sorted(tmp_path.rglob("*.parquet"))

    def run(*arguments: str) -> dict[str, dict[str, object]]:
        answer = cli("--dry-run", "--json", *arguments)
        assert answer.exit_code == 0, answer.output
        document = json.loads(answer.stdout)
        assert "the age of the file stands in for it" in document["note"]
        return {f["path"]: f for f in document["findings"]}

    young = run()
    assert set(young) == {orphan.name, "due.parquet"}
    assert (young[orphan.name]["verdict"], young[orphan.name]["owner"]) == ("keep", "view hourly")
    assert 0 < int(str(young[orphan.name]["grace_left_ms"])) <= 15 * 60_000
    assert young["due.parquet"]["verdict"] == "remove from the registry"
    held = run("--grace", "1ms")[orphan.name]
    assert (held["verdict"], held["held_by"]) == ("keep", ["broker-7"])
    pipeline.ledger.holds.release(reader)
    assert run("--grace", "1ms")[orphan.name]["verdict"] == "delete"
    shown = cli("--dry-run", "--grace", "1ms").stdout
    assert orphan.name in shown
    assert "1 of 2 candidates would be deleted now." in shown
    assert sorted(tmp_path.rglob("*.parquet")) == before
    assert pipeline.segments() == {"a", "due"}
    assert location.exists()


def test_deleting_from_the_command_line_is_refused(cli: Cli) -> None:
    answer = cli()
    assert answer.exit_code == 1
    assert "dry-run: deleting is the janitor service's work; say --dry-run" in answer.stderr
