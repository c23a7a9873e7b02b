"""The ingester as a process: what it registers and reports, what it refuses, and what a kill -9 leaves behind."""

import http.client
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.bus.kafka import KafkaConnection, ensure_topics
from floodmark.bus.ports import Outgoing, Partition
from floodmark.contracts.envelope import decode
from floodmark.contracts.messages import Message, RecordRefused, SegmentChange, SegmentsChanged
from floodmark.contracts.topics import ANNOUNCEMENTS, DEADLETTER, SEGMENTS
from floodmark.core.intervals import Interval
from floodmark.core.registry import Put
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import ANSWERED_WITHIN_S, eventually, never
from tests.support.ledger_kit import HOUR_MS, segment
from tests.support.onlooker import Onlooker
from tests.support.pipeline import Pipeline, pipeline_on, write_parquet
from tests.support.service_process import ServiceUnderTest, new_table

pytestmark = pytest.mark.stack
DAY_HOURS = 24
SETTLE_MS = 400
SETTINGS = {
    "FLOODMARK_INGESTER__SCAN_EVERY_MS": "100",
    "FLOODMARK_INGESTER__SETTLE_MS": str(SETTLE_MS),
    "FLOODMARK_INGESTER__OUTBOX_EVERY_MS": "500",
}


@pytest.fixture
def own_pipeline(zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline whose processes the test may kill."""
    with pipeline_on(tmp_path, zookeeper, kafka, **SETTINGS) as made:
        yield made


class Heard:
    """Everything said on `segments.v1` and `deadletter.v1` so far, collected as it comes."""

    def __init__(self, pipeline: Pipeline) -> None:
        connection = KafkaConnection(pipeline.kafka.bootstrap, "test", namespace=pipeline.namespace)
        self._onlooker = Onlooker(connection)
        ensure_topics(connection, (SEGMENTS, DEADLETTER), replication=1, timeout_s=30)
        self._onlooker.start_from(
            {Partition(topic.name, n): 0 for topic in (SEGMENTS, DEADLETTER) for n in range(topic.partitions)}
        )
        self._messages: list[Message] = []

    def listen(self) -> None:
        while record := self._onlooker.next(timeout_ms=50):
            self._messages.append(decode(record.partition.topic, record.value, record.headers, record.place).message)

    def events(self, table: str) -> list[SegmentsChanged]:
        self.listen()
        return [m for m in self._messages if isinstance(m, SegmentsChanged) and m.table == table]

    def await_changes(self, table: str, count: int) -> list[SegmentChange]:
        """The changes of a table, once there are so many. More than that is a failure."""

        def enough() -> list[SegmentChange] | None:
            changes = [change for event in self.events(table) for change in event.changes]
            return changes if len(changes) >= count else None

        changes = eventually(enough, what=f"{count} changes of {table}")
        assert len(changes) == count
        return changes

    def await_refusal(self, table: str) -> RecordRefused:
        def letter() -> RecordRefused | None:
            self.listen()
            found = [m for m in self._messages if isinstance(m, RecordRefused) and m.key == table.encode()]
            return found[-1] if found else None

        return eventually(letter, what=f"a dead letter of {table}")

    def close(self) -> None:
        self._onlooker.close()


@pytest.fixture(scope="module")
def heard(pipeline: Pipeline) -> Iterator[Heard]:
    made = Heard(pipeline)
    yield made
    made.close()


@pytest.fixture
def own_heard(own_pipeline: Pipeline) -> Iterator[Heard]:
    made = Heard(own_pipeline)
    yield made
    made.close()


def hours(change: SegmentChange) -> list[tuple[float, float]]:
    assert change.ranges is not None
    return [(r.start_ms / HOUR_MS, r.end_ms / HOUR_MS) for r in change.ranges]


def version(pipeline: Pipeline, table: str) -> int:
    return pipeline.ledger.registry.header(table).version


# -- I1: what changes is registered, then reported ---------------------------------------------------------------------


@pytest.mark.scenario("I1")
@pytest.mark.parametrize("how", ["scanned", "announced"])
def test_a_new_a_replaced_and_a_removed_file_are_each_reported_after_the_registry_has_them(
    pipeline: Pipeline, ingester: ServiceUnderTest, heard: Heard, how: str
) -> None:
    """Added with its range; replaced, as its CRC differs, with the old and the new range; deleted with the last one."""
    table = new_table()
    location = pipeline.table(table, scan="true" if how == "scanned" else "false")

    def tell(action: str) -> None:
        if how == "announced":
            pipeline.announce(table, "a.parquet", action=action)

    write_parquet(location / "other.parquet", 0, 1)
    if how == "announced":
        pipeline.announce(table, "other.parquet")
    heard.await_changes(table, 1)

    write_parquet(location / "a.parquet", 1, 2)
    tell("add")
    added = heard.await_changes(table, 2)[-1]
    assert (added.action, added.name, hours(added)) == ("added", "a.parquet", [(1, 2)])
    registered = pipeline.ledger.registry.snapshot(table).by_name["a.parquet"]
    assert (registered.crc, registered.rows) == (added.crc, 10)

    write_parquet(location / "a.parquet", 5, 6.5, value=2)
    tell("replace")
    replaced = heard.await_changes(table, 3)[-1]
    assert (replaced.action, hours(replaced)) == ("replaced", [(1, 2), (5, 6.5)])
    assert pipeline.ledger.registry.snapshot(table).by_name["a.parquet"].crc == replaced.crc != added.crc

    (location / "a.parquet").unlink()
    tell("delete")
    deleted = heard.await_changes(table, 4)[-1]
    assert (deleted.action, hours(deleted), deleted.crc) == ("deleted", [(5, 6.5)], None)
    assert pipeline.segments(table) == {"other.parquet"}
    assert [e.registry_version for e in heard.events(table)] == [1, 2, 3, 4]
    eventually(lambda: pipeline.ledger.registry.outbox(table) == [], what="the outbox empty")


def test_a_scan_of_many_files_takes_few_registry_writes(pipeline: Pipeline, ingester: ServiceUnderTest) -> None:
    """2,000 files that are there at once: every one registered, in a few dozen writes at most."""
    table, count = new_table(), 2_000
    location = pipeline.lake / table
    template = write_parquet(pipeline.lake / "template.parquet", 3, 4)
    location.mkdir()
    for n in range(count):
        (location / f"{n:04}.parquet").hardlink_to(template)
    pipeline.table(table)
    eventually(
        lambda: pipeline.ledger.registry.header(table).segment_count == count, within_s=120, what="all registered"
    )
    assert version(pipeline, table) <= count // 50
    eventually(lambda: len(ingester.events("file_announced", table=table)) == count, what="each told of once")


def test_a_file_that_was_only_touched_changes_nothing(
    pipeline: Pipeline, ingester: ServiceUnderTest, heard: Heard
) -> None:
    """The scanner sees another time, the CRC says it is the same file: no new version, no event."""
    table = new_table()
    file = write_parquet(pipeline.table(table) / "a.parquet", 1, 2)
    heard.await_changes(table, 1)
    os.utime(file, ns=(1, 1))
    ingester.await_event("announcement_handled", table=table, action="replace")
    assert version(pipeline, table) == 1
    heard.await_changes(table, 1)


def test_after_a_restart_the_scanner_reads_only_what_it_missed(own_pipeline: Pipeline, own_heard: Heard) -> None:
    """What is registered as it looks is not announced again; what came, changed or went meanwhile is."""
    location = own_pipeline.table()
    for name in ("same", "changed", "gone"):
        write_parquet(location / f"{name}.parquet", 1, 2)
    first = own_pipeline.start("ingester")
    eventually(lambda: len(own_pipeline.segments()) == 3, what="the first three")
    first.terminate()
    assert first.exit_code() == 0
    write_parquet(location / "changed.parquet", 2, 3)
    write_parquet(location / "new.parquet", 3, 4)
    (location / "gone.parquet").unlink()
    second = own_pipeline.start("ingester")
    eventually(lambda: own_pipeline.segments() == {"same.parquet", "changed.parquet", "new.parquet"}, what="caught up")
    assert own_heard.await_changes("rides", 6)
    announced = eventually(lambda: second.events("file_announced")[2:] and second.events("file_announced"))
    assert {(a["action"], a["path"] or a["segment"]) for a in announced} == {
        ("replace", "changed.parquet"),
        ("add", "new.parquet"),
        ("delete", "gone.parquet"),
    }


# -- I2: a crash between the registry and Kafka ------------------------------------------------------------------------


@pytest.mark.scenario("I2")
def test_an_event_left_in_the_outbox_by_a_dead_ingester_is_published_by_the_next(
    own_pipeline: Pipeline, own_heard: Heard
) -> None:
    """Exactly what a kill between registry write and publish leaves: registered, in the outbox, not on the topic."""
    own_pipeline.table(scan="false")
    own_pipeline.ledger.registry.apply("rides", [Put(segment("a", 1, 2))], trace_id=uuid.uuid4().hex)
    (left,) = own_pipeline.ledger.registry.outbox("rides")
    own_pipeline.start("ingester").await_event("event_published")
    own_heard.await_changes("rides", 1)
    (published,) = own_heard.events("rides")
    assert (published.event_id, published.registry_version) == (left.event_id, 1)
    eventually(lambda: not own_pipeline.ledger.registry.outbox("rides"), what="the outbox empty")


@pytest.mark.scenario("I2")
def test_ingesters_killed_again_and_again_leave_no_change_unreported(own_pipeline: Pipeline, own_heard: Heard) -> None:
    """kill -9 while files are being registered: at the end each is registered once, and each change was reported."""
    location, rounds, files = own_pipeline.table(scan="false"), 3, 40
    for round_number in range(rounds):
        running = own_pipeline.start("ingester")
        names = [f"{round_number}-{n:02}.parquet" for n in range(files)]
        for name in names:
            write_parquet(location / name, 1, 2)
        running.await_event("service_started")
        own_pipeline.announce("rides", *names)
        running.await_event("segment_registered")
        running.process.kill()
        running.exit_code()
    last = own_pipeline.start("ingester")
    eventually(lambda: len(own_pipeline.segments()) == rounds * files, what="all registered")
    eventually(lambda: not own_pipeline.ledger.registry.outbox("rides"), what="the outbox empty")
    versions = set(range(1, version(own_pipeline, "rides") + 1))
    eventually(lambda: {e.registry_version for e in own_heard.events("rides")} == versions, what="each version told of")
    reported = {(c.name, c.action) for e in own_heard.events("rides") for c in e.changes}
    assert reported == {(name, "added") for name in own_pipeline.segments()}
    assert last.process.poll() is None


# -- I3: repetition ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("I3")
def test_the_same_announcement_ten_times_is_one_registration(
    pipeline: Pipeline, ingester: ServiceUnderTest, heard: Heard
) -> None:
    """One version, one event, however often it is said, together or one after the other."""
    table = new_table()
    write_parquet(pipeline.table(table, scan="false") / "a.parquet", 1, 2)
    pipeline.announce(table, *["a.parquet"] * 5)
    heard.await_changes(table, 1)
    for _ in range(5):
        pipeline.announce(table, "a.parquet", action="replace")
    eventually(lambda: len(ingester.events("announcement_handled", table=table)) == 10, what="all ten handled")
    assert version(pipeline, table) == 1
    heard.await_changes(table, 1)


# -- I4: what is refused -----------------------------------------------------------------------------------------------


def truncated(location: Path) -> str:
    whole = write_parquet(location / "a.parquet", 1, 2).read_bytes()
    (location / "a.parquet").write_bytes(whole[: len(whole) // 2])
    return "a.parquet"


def with_a_damaged_footer(location: Path) -> str:
    """Its magic bytes are right; asking pyarrow for the statistics of such a footer can end the process."""
    whole = bytearray(write_parquet(location / "a.parquet", 1, 2).read_bytes())
    footer_bytes = int.from_bytes(whole[-8:-4], "little")
    whole[-8 - footer_bytes : -8] = b"\x15\x7f" * (footer_bytes // 2) + b"\x00" * (footer_bytes % 2)
    (location / "a.parquet").write_bytes(whole)
    return "a.parquet"


def not_parquet(location: Path) -> str:
    (location / "a.parquet").write_text("id,time\n1,2014-01-05\n")
    return "a.parquet"


def without_time_column(location: Path) -> str:
    pq.write_table(pa.table({"value": [1]}), location / "a.parquet")
    return "a.parquet"


def without_a_time(location: Path) -> str:
    times = pa.array([None, None], pa.timestamp("ms", tz="UTC"))
    pq.write_table(pa.table({"event_time": times, "value": [1, 2]}), location / "a.parquet")
    return "a.parquet"


def without_rows(location: Path) -> str:
    write_parquet(location / "a.parquet", 1, 2, rows=0)
    return "a.parquet"


def of_another_type(location: Path) -> str:
    times = pa.array([1], pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    pq.write_table(pa.table({"event_time": times, "value": ["one"]}), location / "a.parquet")
    return "a.parquet"


def linked_from_elsewhere(location: Path) -> str:
    (location / "a.parquet").symlink_to(write_parquet(location.parent / "elsewhere" / "a.parquet", 1, 2))
    return "a.parquet"


def by_uri_elsewhere(location: Path) -> str:
    return write_parquet(location.parent / "elsewhere" / "a.parquet", 1, 2).as_uri()


def by_uri_with_dots(location: Path) -> str:
    write_parquet(location.parent / "elsewhere" / "a.parquet", 1, 2)
    return f"file://{location}/%2e%2e/elsewhere/a.parquet"


def absent(location: Path) -> str:
    return "a.parquet"


def named_too_long(location: Path) -> str:
    return "a" * 2_000 + ".parquet"


@pytest.mark.scenario("I4")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (truncated, "not-parquet: .* is not a whole Parquet file"),
        (with_a_damaged_footer, "not-parquet: .* is not a whole Parquet file"),
        (not_parquet, "not-parquet: .* is not a whole Parquet file"),
        (without_time_column, "no-time-column: .* has no column 'event_time'"),
        (without_a_time, "time-all-null: .* has no value in its time column 'event_time'"),
        (without_rows, "time-all-null: .* has no rows"),
        (of_another_type, "schema: .* the table has column 'value' as int64, the file has it as string"),
        (linked_from_elsewhere, "outside-location: .* is a link that leads out of"),
        (by_uri_elsewhere, "outside-location: .* does not lie below"),
        (by_uri_with_dots, "outside-location: .* does not lie below"),
        (absent, "file-absent: a.parquet is not in"),
        (named_too_long, "file-unreadable: .*: File name too long"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_file_that_cannot_be_a_segment_is_refused_with_the_reason(
    pipeline: Pipeline, ingester: ServiceUnderTest, heard: Heard, make: Callable[[Path], str], reason: str
) -> None:
    """Dead-lettered with rule and reason, nothing registered; and taken as soon as it is a whole file of the table."""
    table = new_table()
    location = pipeline.table(table, scan="false")
    pipeline.announce(table, make(location))
    letter = heard.await_refusal(table)
    assert re.match(reason, letter.reason), letter.reason
    assert version(pipeline, table) == 0
    (location / "a.parquet").unlink(missing_ok=True)
    write_parquet(location / "a.parquet", 1, 2)
    pipeline.announce(table, "a.parquet")
    eventually(lambda: pipeline.segments(table) == {"a.parquet"}, what="the whole file registered")


@pytest.mark.scenario("I4")
@pytest.mark.parametrize("path", ["../elsewhere/a.parquet", "day=1/../../elsewhere/a.parquet", "/etc/passwd"])
def test_a_path_that_leads_out_is_refused_before_anything_is_looked_at(
    pipeline: Pipeline, ingester: ServiceUnderTest, heard: Heard, path: str
) -> None:
    table = new_table()
    pipeline.table(table, scan="false")
    value = json.dumps({"kind": "segment-announced.v1", "table": table, "action": "add", "path": path}).encode()
    pipeline.publisher.publish([Outgoing(ANNOUNCEMENTS.name, table.encode(), value)])
    letter = heard.await_refusal(table)
    assert (letter.rule, letter.value) == ("schema", value)
    assert "path: must " in letter.reason
    assert version(pipeline, table) == 0


@pytest.mark.scenario("I4")
def test_a_file_that_is_being_written_is_left_alone_until_it_is_whole(own_pipeline: Pipeline) -> None:
    """The scanner waits while the file grows. It is neither refused nor registered before its last byte is there."""
    # A writer that stands still for the settling time has died, and on a busy machine this one does for a while.
    ingester = own_pipeline.start("ingester", FLOODMARK_INGESTER__SETTLE_MS="60000")
    location = own_pipeline.table()
    write_parquet(location / "other.parquet", 1, 2)
    eventually(lambda: own_pipeline.segments() == {"other.parquet"}, what="the scanner at work")
    whole = write_parquet(own_pipeline.lake / "whole.parquet", 1, 2, rows=1_000).read_bytes()
    parts = [whole[n : n + len(whole) // 8 + 1] for n in range(0, len(whole), len(whole) // 8 + 1)]
    with (location / "a.parquet").open("wb") as growing:
        for part in parts[:-1]:
            growing.write(part)
            growing.flush()
            never(lambda: len(own_pipeline.segments()) > 1, for_s=0.15, what="a registration of half a file")
        growing.write(parts[-1])
    eventually(lambda: own_pipeline.segments() == {"other.parquet", "a.parquet"}, what="the whole file registered")
    eventually(lambda: ingester.events("file_announced", path="a.parquet"), what="its announcement told of")
    assert len(ingester.events("file_announced", path="a.parquet")) == 1


@pytest.mark.scenario("I4")
def test_a_file_that_stays_truncated_is_refused_once_and_taken_when_it_becomes_whole(
    pipeline: Pipeline, ingester: ServiceUnderTest, heard: Heard
) -> None:
    """Its writer died. It is dead-lettered after the settling time, not at every scan, and its successor is taken."""
    table = new_table()
    location = pipeline.table(table)
    whole = write_parquet(pipeline.lake / "whole.parquet", 1, 2).read_bytes()
    (location / "a.parquet").write_bytes(whole[:-100])
    assert heard.await_refusal(table).rule == "not-parquet"
    never(lambda: len(ingester.events("file_announced", table=table)) > 1, for_s=1, what="a second announcement")
    write_parquet(location / "a.parquet", 1, 2)
    eventually(lambda: pipeline.segments(table) == {"a.parquet"}, what="the whole file registered")


def test_announcements_for_an_unknown_table_are_refused_and_hold_nobody_up(
    pipeline: Pipeline, ingester: ServiceUnderTest, heard: Heard
) -> None:
    table, unknown = new_table(), new_table()
    write_parquet(pipeline.table(table, scan="false") / "a.parquet", 1, 2)
    pipeline.announce(unknown, "a.parquet")
    pipeline.announce(table, "a.parquet")
    eventually(lambda: pipeline.segments(table), what="the known table's file")
    assert heard.await_refusal(unknown).reason == f"unknown-table: there is no table '{unknown}'"


# -- I5: a very long segment -------------------------------------------------------------------------------------------


@pytest.mark.scenario("I5")
def test_a_segment_of_400_days_has_one_entry_that_every_bucket_sees(
    pipeline: Pipeline, ingester: ServiceUnderTest
) -> None:
    """It is listed in `wide` and nowhere else; windows from its first to its last hour have it, the next does not."""
    table, last_hour = new_table(), 400 * DAY_HOURS
    write_parquet(pipeline.table(table) / "long.parquet", 0, last_hour)
    eventually(lambda: pipeline.segments(table) == {"long.parquet"}, what="the long file registered")
    listed = {key for key, slice_ in pipeline.ledger.registry.snapshot(table).slices.items() if slice_.segments}
    assert listed == {"wide"}
    sampled = (0, 1, last_hour // 2, last_hour - 1, last_hour)
    windows = [Interval(h * HOUR_MS, (h + 1) * HOUR_MS) for h in sampled]
    sources = pipeline.ledger.registry.read_windows(table, windows)
    assert [len(source.segments) for source in sources] == [1, 1, 1, 1, 0]


# -- HTTP --------------------------------------------------------------------------------------------------------------


def post(running: ServiceUnderTest, table: str, body: bytes, *, method: str = "POST") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(
        "127.0.0.1", running.await_event("http_port_opened")["port"], timeout=ANSWERED_WITHIN_S
    )
    try:
        connection.request(method, f"/v1/tables/{table}/segments", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text
    finally:
        connection.close()


def test_a_file_posted_by_http_is_registered_when_the_answer_comes(
    pipeline: Pipeline, ingester: ServiceUnderTest, heard: Heard
) -> None:
    """200, a trace id to follow it by, and its event on the topic."""
    table = new_table()
    write_parquet(pipeline.table(table, scan="false") / "a.parquet", 1, 2)
    status, answer = post(ingester, table, b'{"action": "add", "path": "a.parquet"}')
    assert (status, answer["results"][0]["status"]) == (200, "registered")
    assert pipeline.segments(table) == {"a.parquet"}
    assert heard.await_changes(table, 1)[0].trace_id == answer["results"][0]["trace_id"]


def test_of_several_files_posted_together_each_has_its_own_verdict(
    pipeline: Pipeline, ingester: ServiceUnderTest
) -> None:
    """422 because one cannot be registered; the others are."""
    table = new_table()
    location = pipeline.table(table, scan="false")
    write_parquet(location / "a.parquet", 1, 2)
    write_parquet(location / "b.parquet", 2, 3)
    asked = [{"action": "add", "path": p} for p in ("a.parquet", "absent.parquet", "b.parquet")]
    status, answer = post(ingester, table, json.dumps(asked).encode())
    assert status == 422
    assert [r["status"] for r in answer["results"]] == ["registered", "refused", "registered"]
    assert answer["results"][1]["rule"] == "file-absent"
    assert pipeline.segments(table) == {"a.parquet", "b.parquet"}


@pytest.mark.parametrize(
    ("body", "rule", "told"),
    [
        (b"{", "not-json", "the body is not JSON"),
        (b"[" * 100_000, "not-json", "the body is not JSON"),
        (b"[]", "too-many", "the body has 0 announcements"),
        (b"[1]", "schema", "an announcement must be an object"),
        (b'{"action": "add"}', "schema", "path must be given"),
        (b'{"action": "add", "path": "../a"}', "schema", "must not contain '..'"),
        (b'{"action": "add", "path": "a", "table": "other"}', "schema", "the announcement is for table 'other'"),
        (b'{"action": "add", "path": "\\ud800"}', "schema", "path"),
        (b'{"action": "add", "path": "a", "metadata": {"rows": NaN}}', "schema", "rows"),
    ],
)
def test_a_body_that_is_no_announcement_is_answered_with_400_and_the_rule(
    pipeline: Pipeline, ingester: ServiceUnderTest, body: bytes, rule: str, told: str
) -> None:
    status, answer = post(ingester, "rides", body)
    assert (status, answer["rule"]) == (400, rule), answer
    assert told in answer["reason"]


def test_the_segments_page_refuses_what_is_too_large_and_what_is_no_post(
    pipeline: Pipeline, ingester: ServiceUnderTest
) -> None:
    """413 and 405, each with a sentence; a table that does not exist is 422."""
    status, text = post(ingester, "rides", b" " * (1024 * 1024 + 1))
    assert status == 413
    assert b"at most 1048576 bytes are taken" in text
    assert post(ingester, "rides", b"", method="GET")[0] == 405
    status, answer = post(ingester, new_table(), b'{"action": "add", "path": "a.parquet"}')
    assert (status, answer["results"][0]["rule"]) == (422, "unknown-table")
