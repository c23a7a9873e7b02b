"""What the scanner takes for news, on a directory, a ledger in memory and a clock that stands."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from floodmark.bus.ports import Outgoing
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.core.errors import Unavailable
from floodmark.core.registry import Put
from floodmark.core.tables import TableDefinition
from floodmark_ingester.announcements import request_of
from floodmark_ingester.registrar import Registrar
from floodmark_ingester.scanner import AGAIN_FIRST_MS, Scanner
from tests.support.bus_doubles import FrozenClock
from tests.support.ledger_kit import HOUR_MS, Kit
from tests.support.memory_store import MemoryStore
from tests.support.pipeline import write_parquet

SETTLE_MS = 10_000


class Watch:
    """A scanner on one table. `scan` tells what it announced; `register` carries it out, as the ingester would."""

    def __init__(self, location: Path, **properties: str) -> None:
        self.location = location
        self.clock = FrozenClock(1_000_000)
        self.ledger = Kit(MemoryStore(), clock=self.clock).ledger
        self.define("rides", location, **properties)
        self.sent: list[dict[str, Any]] = []
        self.kafka_away = False
        self.scanner = Scanner(self.ledger, self, self.clock, settle_ms=SETTLE_MS)
        self.registrar = Registrar(self.ledger, ThreadPoolExecutor(1), lambda _: None)

    def define(self, table: str, location: Path, **properties: str) -> None:
        self.ledger.registry.create_table(TableDefinition(table, str(location), "event_time", properties=properties))

    def publish(self, messages: Sequence[Outgoing]) -> None:
        if self.kafka_away:
            raise Unavailable("Kafka is away")
        self.sent += [json.loads(m.value) for m in messages]

    def scan(self) -> list[tuple[str, str]]:
        before = len(self.sent)
        self.scanner.scan_all()
        return sorted((m["action"], m.get("path") or m["name"]) for m in self.sent[before:])

    def register(self) -> None:
        """Carry out everything announced so far."""
        self.registrar.register([request_of(SegmentAnnounced.model_validate(m), "1" * 32) for m in self.sent])
        self.sent.clear()


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_what_is_new_changed_or_gone_is_announced_and_then_is_no_news(watch: Watch) -> None:
    write_parquet(watch.location / "a.parquet", 1, 2)
    write_parquet(watch.location / "b.parquet", 1, 2)
    assert watch.scan() == [("add", "a.parquet"), ("add", "b.parquet")]
    assert watch.scan() == []
    watch.register()
    assert watch.scan() == []
    write_parquet(watch.location / "a.parquet", 1, 3, rows=20)
    (watch.location / "b.parquet").unlink()
    assert watch.scan() == [("delete", "b.parquet"), ("replace", "a.parquet")]
    watch.register()
    assert watch.scan() == []


def test_a_table_that_was_dropped_and_created_again_is_scanned_afresh(watch: Watch) -> None:
    """What was announced for the old one says nothing of the new one; and a dropped one is no trouble."""
    write_parquet(watch.location / "a.parquet", 1, 2)
    assert watch.scan() == [("add", "a.parquet")]
    watch.register()
    assert watch.scan() == []
    watch.ledger.dropping.drop("rides")
    with capture_logs() as logs:
        assert watch.scan() == []
    assert logs == []
    watch.define("rides", watch.location)
    assert watch.scan() == [("add", "a.parquet")]
    watch.sent.clear()
    watch.ledger.dropping.drop("rides")
    watch.define("rides", watch.location)
    assert watch.scan() == [("add", "a.parquet")], "also when no scan came in between"


def test_what_could_not_be_sent_is_news_at_the_next_scan(watch: Watch) -> None:
    """Not only when it would be announced again anyway."""
    write_parquet(watch.location / "a.parquet", 1, 2)
    watch.kafka_away = True
    assert watch.scan() == []
    watch.kafka_away = False
    assert watch.scan() == [("add", "a.parquet")]


def test_what_is_not_registered_is_announced_again_later_each_time(watch: Watch) -> None:
    """A refused file would otherwise fill the dead letters; one whose announcement was lost is not forgotten."""
    (watch.location / "a.parquet").write_bytes(b"PAR1 no parquet PAR1")
    announced_at = []
    for minute in range(64):
        watch.clock.ms = 1_000_000 + minute * AGAIN_FIRST_MS
        if watch.scan():
            announced_at.append(minute)
    assert announced_at == [0, 1, 3, 7, 15, 31, 63]


def test_an_unfinished_file_is_announced_when_it_stands_still(watch: Watch) -> None:
    """While it grows it is left alone, however long; then it is announced, to be refused with a reason."""
    file = watch.location / "a.parquet"
    for size in range(20, 25):
        file.write_bytes(b"x" * size)
        watch.clock.ms += SETTLE_MS - 1
        assert watch.scan() == []
    watch.clock.ms += SETTLE_MS
    assert watch.scan() == [("add", "a.parquet")]


def test_a_segment_outside_the_glob_is_not_taken_for_gone(watch: Watch) -> None:
    """Announced by a producer under another kind of name; its file is there."""
    write_parquet(watch.location / "odd.pq", 1, 2)
    write_parquet(watch.location / "a.parquet", 1, 2)
    watch.sent.append({"table": "rides", "action": "add", "path": "odd.pq"})
    watch.register()
    assert watch.scan() == [("add", "a.parquet")]
    (watch.location / "odd.pq").unlink()
    assert watch.scan() == [("delete", "odd.pq")]


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_a_location_without_any_file_deletes_nothing_and_is_told_of_once(watch: Watch, how: str) -> None:
    """Rather a disk that is not mounted than a table that was emptied."""
    file = write_parquet(watch.location / "a.parquet", 1, 2)
    watch.scan()
    watch.register()
    file.unlink()
    if how == "removed":
        watch.location.rmdir()
    with capture_logs() as logs:
        assert [watch.scan() for _ in range(3)] == [[]] * 3
    assert [line["event"] for line in logs] == ["table_not_scanned"]


def test_one_table_that_cannot_be_scanned_does_not_hide_the_others(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "absent")
    (tmp_path / "here").mkdir()
    watch.define("sales", tmp_path / "here")
    write_parquet(tmp_path / "here" / "a.parquet", 1, 2)
    assert watch.scan() == [("add", "a.parquet")]


def test_a_table_may_do_without_scans(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 1, 2)
    assert Watch(tmp_path, scan="false").scan() == []


def test_a_name_that_no_announcement_may_carry_is_told_of_and_holds_nobody_up(watch: Watch) -> None:
    write_parquet(watch.location / "a\nb.parquet", 1, 2)
    write_parquet(watch.location / "c.parquet", 1, 2)
    with capture_logs() as logs:
        assert watch.scan() == [("add", "c.parquet")]
        assert watch.scan() == []
    refused = [line for line in logs if line["event"] == "file_not_announceable"]
    assert [line["path"] for line in refused] == ["a\nb.parquet"]
    assert "must not contain control characters" in refused[0]["error"]


def test_what_is_no_longer_there_is_not_remembered(watch: Watch) -> None:
    """A directory through which files pass for years must not fill the memory."""
    write_parquet(watch.location / "stays.parquet", 1, 2)
    for n in range(3):
        file = write_parquet(watch.location / f"{n}.parquet", 1, 2)
        watch.scan()
        watch.register()
        file.unlink()
        watch.scan()
        watch.register()
    watch.scan()
    assert watch.scanner._seen == {"rides": {}}


def test_a_condemned_file_is_no_news_until_it_is_spared(tmp_path: Path) -> None:
    """Retention and scanner do not fight over it."""
    watch = Watch(tmp_path, retention="1h")
    write_parquet(watch.location / "a.parquet", 1, 2)
    write_parquet(watch.location / "b.parquet", 1, 2)
    watch.scan()
    watch.register()
    assert watch.ledger.retention.retire("rides", before_ms=3 * HOUR_MS, batch_max=10) is not None
    watch.clock.sleep_ms(10 * AGAIN_FIRST_MS)
    assert watch.scan() == []
    (found,) = watch.ledger.retention.condemned("rides")
    watch.ledger.retention.spare(found, [f for f in found.files if f.path == "a.parquet"])
    assert watch.scan() == [("add", "a.parquet")]


def test_hidden_files_and_links_are_never_announced(watch: Watch) -> None:
    """Announced, they would be refused, again and again."""
    for name in ("a.parquet", "_b.parquet", ".c.parquet", "_tmp/d.parquet", "day=1/e.parquet"):
        (watch.location / name).parent.mkdir(exist_ok=True)
        write_parquet(watch.location / name, 1, 2)
    (watch.location / "latest").symlink_to(watch.location / "day=1")
    (watch.location / "day=1" / "loop").symlink_to(watch.location)
    assert watch.scan() == [("add", "a.parquet"), ("add", "day=1/e.parquet")]


def test_a_file_registered_through_a_link_is_gone_under_that_name(watch: Watch) -> None:
    """Before links were refused its rows counted twice."""
    (watch.location / "day=1").mkdir()
    write_parquet(watch.location / "day=1" / "a.parquet", 1, 2)
    watch.scan()
    watch.register()
    twice = replace(
        watch.ledger.registry.snapshot("rides").by_name["day=1/a.parquet"], name="l", path="latest/a.parquet"
    )
    watch.ledger.registry.apply("rides", [Put(twice)])
    (watch.location / "latest").symlink_to(watch.location / "day=1")
    assert watch.scan() == [("delete", "l")]
    watch.register()
    assert set(watch.ledger.registry.snapshot("rides").by_name) == {"day=1/a.parquet"}


def test_a_refused_file_that_went_or_is_registered_is_off_the_list_of_refused_ones(watch: Watch) -> None:
    """Also when somebody else registered it, and the list of the one who did was not written."""
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        (watch.location / name).write_bytes(b"PAR1 no parquet PAR1")
    watch.scan()
    watch.register()

    def listed() -> list[str]:
        return sorted(f.path for f in watch.ledger.refusals.read("rides").files)

    assert listed() == ["a.parquet", "b.parquet", "c.parquet"]
    (watch.location / "a.parquet").unlink()
    write_parquet(watch.location / "b.parquet", 1, 2)
    watch.scan()
    assert listed() == ["b.parquet", "c.parquet"]
    watch.register()
    watch.ledger.refusals.update("rides", {"b.parquet": ("not-parquet", "an older word")}, ())
    watch.scan()
    assert listed() == ["c.parquet"]
