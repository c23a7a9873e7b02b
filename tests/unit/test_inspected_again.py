"""Files that an earlier version registered with a range that may be wrong: looked into again once, by themselves."""

import zlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from floodmark.core.registry import Put
from floodmark.core.segments import INSPECTION, Segment, Slice
from floodmark.core.tables import TableDefinition
from floodmark.ledger import codec
from floodmark.parquet.lake import Lake
from floodmark_ingester import scanner
from floodmark_ingester.scanner import AGAIN_FIRST_MS
from tests.unit.test_scanner import Watch

INT96 = "timestamp[ns]"
"""What earlier versions called it."""
WRAPPED = {"9999-12-31": "1816-03-29", "0001-01-01": "1754-08-30"}


def ms(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1_000


class Upgraded(Watch):
    """A table whose files an earlier version has registered."""

    def __init__(self, location: Path, kind: str | None = INT96, **properties: str) -> None:
        self.kind = kind
        super().__init__(location, **properties)

    def define(self, table: str, location: Path, **properties: str) -> None:
        columns = (("event_time", self.kind), ("n", "int64")) if self.kind else ()
        definition = TableDefinition(table, str(location), "event_time", columns=columns, properties=properties)
        self.ledger.registry.create_table(definition)

    def write(self, name: str, day: str, **metadata: str) -> None:
        times = pa.array([ms(day) * 1_000], pa.timestamp("us"))
        table = pa.table({"event_time": times, "n": [1]}).replace_schema_metadata(metadata)
        pq.write_table(table, self.location / name, use_deprecated_int96_timestamps=True)

    def registered(self, name: str, day: str) -> Segment:
        """As by the earlier version, which found this day in it."""
        (found,) = [f for f in Lake(str(self.location)).files("*") if f.path == name]
        crc = zlib.crc32((self.location / name).read_bytes())
        before = Segment(name, crc, ms(day), ms(day), name, 1, found.bytes, found.stamp, 0)
        self.ledger.registry.apply("rides", [Put(before)])
        self.sent.clear()
        return before

    def segment(self, name: str) -> Segment:
        return self.ledger.registry.snapshot("rides").by_name[name]

    def settle(self) -> None:
        """Everything before was published."""
        for event in self.ledger.registry.outbox("rides"):
            self.ledger.registry.acknowledge("rides", event)


@pytest.mark.parametrize("scan", ["true", "false"])
@pytest.mark.parametrize(("is_", "was"), WRAPPED.items())
def test_a_range_that_wrapped_is_put_right_without_anyone_asking(tmp_path: Path, is_: str, was: str, scan: str) -> None:
    """INV-12: until then the file was left out of what was asked about its rows. Both ranges are reported (INV-7)."""
    upgraded = Upgraded(tmp_path, scan=scan)
    upgraded.write("a.parquet", is_)
    before = upgraded.registered("a.parquet", was)
    upgraded.settle()
    assert upgraded.scan() == [("replace", "a.parquet")]
    upgraded.register()
    found = upgraded.segment("a.parquet")
    assert (found.start_ms, found.last_ms, found.inspected) == (ms(is_), ms(is_), INSPECTION)
    assert (found.crc, found.name) == (before.crc, before.name), "its fingerprint is what it was"
    ((change,),) = [event.changes for event in upgraded.ledger.registry.outbox("rides")]
    assert change.ranges is not None
    assert {i.start_ms for i in change.ranges} == {ms(is_), ms(was)}
    assert upgraded.scan() == []


def test_a_file_that_is_where_it_was_is_noted_and_no_news(tmp_path: Path) -> None:
    """Nothing is marked for it, and it is not looked into a third time."""
    upgraded = Upgraded(tmp_path)
    upgraded.write("a.parquet", "2024-05-01")
    before = upgraded.registered("a.parquet", "2024-05-01")
    upgraded.settle()
    assert upgraded.scan() == [("replace", "a.parquet")]
    upgraded.register()
    assert upgraded.segment("a.parquet") == replace(before, inspected=INSPECTION)
    assert upgraded.ledger.registry.outbox("rides") == []
    upgraded.clock.ms += 100 * AGAIN_FIRST_MS
    assert upgraded.scan() == []
    header = upgraded.ledger.registry.header("rides")
    assert (header.segment_count, header.min_start_ms, header.max_last_ms) == (1, before.start_ms, before.last_ms)


def test_files_of_this_version_are_looked_into_once(tmp_path: Path) -> None:
    upgraded = Upgraded(tmp_path)
    upgraded.write("a.parquet", "9999-12-31")
    assert upgraded.scan() == [("add", "a.parquet")]
    upgraded.register()
    assert upgraded.segment("a.parquet").inspected == INSPECTION
    assert upgraded.scan() == []


@pytest.mark.parametrize(("kind", "day", "again"), [
    (INT96, "2024-05-01", True),
    ("timestamp[ns, tz=UTC]", "2024-05-01", True),
    (None, "2024-05-01", True),
    ("timestamp[us]", "2024-05-01", False),
    ("timestamp[us]", "1899-05-01", True),
    ("date32[day]", "1899-05-01", True),
    ("int64", "1899-05-01", False),
])  # fmt: skip
def test_only_files_that_may_be_elsewhere_are_looked_into_again(
    tmp_path: Path, kind: str | None, day: str, again: bool
) -> None:
    upgraded = Upgraded(tmp_path, kind)
    upgraded.write("a.parquet", day)
    upgraded.registered("a.parquet", day)
    assert bool(upgraded.scan()) is again


def test_a_file_whose_times_cannot_be_told_may_have_rows_of_any_time(tmp_path: Path) -> None:
    """Today it would be refused. It is registered, so leaving it where it is would leave its rows out."""
    upgraded = Upgraded(tmp_path)
    legacy = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyINT96": ""}
    upgraded.write("a.parquet", "0001-01-01", **legacy)
    upgraded.write("b.parquet", "0001-01-01", **legacy)
    upgraded.registered("a.parquet", "1754-08-30")
    upgraded.scan()
    with capture_logs() as logs:
        upgraded.register()
    found = upgraded.segment("a.parquet")
    assert (found.interval, found.timeless_rows, found.inspected) == (None, None, INSPECTION)
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["times_not_told"]
    assert set(upgraded.ledger.registry.snapshot("rides").by_name) == {"a.parquet"}, "a new one is refused"
    assert [file.path for file in upgraded.ledger.refusals.read("rides").files] == ["b.parquet"]
    upgraded.clock.ms += 100 * AGAIN_FIRST_MS
    assert upgraded.scan() == [("add", "b.parquet")]


def test_a_file_that_has_gone_is_not_looked_for_again_and_again(tmp_path: Path) -> None:
    """Where nobody scans, nobody says either that it is gone."""
    upgraded = Upgraded(tmp_path, scan="false")
    upgraded.write("a.parquet", "9999-12-31")
    upgraded.registered("a.parquet", "1816-03-29")
    (tmp_path / "a.parquet").unlink()
    assert upgraded.scan() == []


def test_old_files_are_looked_into_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh files wait behind so many, and not behind all. One that is lost or refused keeps its place for a minute."""
    monkeypatch.setattr(scanner, "LOOKED_AT_AGAIN_AT_ONCE", 2)
    upgraded = Upgraded(tmp_path)
    for name in "abcde":
        upgraded.write(f"{name}.parquet", "9999-12-31")
        upgraded.registered(f"{name}.parquet", "1816-03-29")
    assert len(upgraded.scan()) == 2
    assert upgraded.scan() == []
    upgraded.register()
    assert len(upgraded.scan()) == 2
    upgraded.sent.clear()
    upgraded.clock.ms += AGAIN_FIRST_MS
    assert len(upgraded.scan()) == 2
    for _ in range(10):
        upgraded.register()
        upgraded.clock.ms += AGAIN_FIRST_MS
        upgraded.scan()
    assert {s.start_ms for s in upgraded.ledger.registry.snapshot("rides").by_name.values()} == {ms("9999-12-31")}


def test_a_segment_of_an_earlier_version_says_that_it_was_looked_into_by_one() -> None:
    """Old rows are shorter; and an earlier version, which writes them, forgets what a later one found out."""
    row = ["s", 1, 0, 9, "s.parquet", 10, 100, "stamp", 0]
    (old,) = codec.decode_slice_node(codec.pack({"at": 1, "segments": [row]}), what="slice").segments
    assert old.inspected == 0
    new = replace(old, inspected=INSPECTION)
    assert codec.decode_slice_node(codec.encode_slice(Slice.of([new]), 1), what="slice").segments == (new,)
