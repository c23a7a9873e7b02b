"""Definitions of tables and views: what they become, and what is refused with which words."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.catalog.definitions import (
    SLICES_PER_BUCKET_MAX,
    TableRequest,
    ViewRequest,
    alter_table,
    create_table,
    create_view,
    retention_ms,
)
from floodmark.catalog.documents import fields_of, table_request, view_request
from floodmark.catalog.durations import format_duration, parse_duration_ms
from floodmark.catalog.status import view_standing
from floodmark.contracts.fields import SLICES_MAX
from floodmark.core.bounds import BUCKET_MAX_MS, TIME_MIN_MS
from floodmark.core.dispatch import Policy
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.segments import SliceGrid
from floodmark.ledger import paths
from floodmark.ledger.dispatch import Offer
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.store import LIMITS, Check, check_sizes
from floodmark.sql.definition import definition_hash
from tests.support.ledger_kit import HOUR_MS, Kit, segment
from tests.support.memory_store import MemoryStore
from tests.support.pipeline import SCHEMA, write_parquet

VIEW = ViewRequest("hourly", "rides", "1h", "SELECT count(*) AS n FROM rides", "/lake/views/hourly")


@pytest.fixture
def ledger() -> Ledger:
    return Kit(MemoryStore()).ledger


def test_columns_not_given_are_those_of_a_file_that_is_there(ledger: Ledger, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 1, 2)
    header = create_table(ledger, TableRequest("rides", str(tmp_path), "event_time"))
    assert header.definition.columns == tuple((f.name, str(f.type)) for f in SCHEMA)


@pytest.mark.scenario("I7")
def test_numbers_that_look_like_seconds_need_a_unit(ledger: Ledger, tmp_path: Path) -> None:
    """Taken for milliseconds they would all be of early 1970, and every answer about time would be wrong."""
    seconds = [1_714_521_600, 1_714_608_000]
    pq.write_table(pa.table({"t": seconds}), tmp_path / "a.parquet")
    request = TableRequest("rides", str(tmp_path), "t")
    with pytest.raises(InvalidInput, match=r"^time-unit: .* 't' of a.parquet counts from 1714521600 .* 's', 'ms'"):
        create_table(ledger, request)
    made = create_table(ledger, replace(request, properties={"time_unit": "s"})).definition
    assert (made.time_unit.name, ledger.registry.definition("rides").time_unit.ns) == ("s", 10**9)
    with pytest.raises(InvalidInput, match=r"^alter-table: time_unit of table 'rides' cannot be altered"):
        alter_table(ledger, "rides", {"time_unit": "ms"})


def test_declared_columns_may_be_wider_than_the_files_are(ledger: Ledger, tmp_path: Path) -> None:
    narrow = {"t": pa.array([1], pa.timestamp("us")), "n": pa.array([1], pa.int32()), "f": pa.array([1], pa.float32())}
    pq.write_table(pa.table(narrow), tmp_path / "a.parquet")
    wide = (("t", "timestamp[us]"), ("n", "int64"), ("f", "double"))
    assert create_table(ledger, TableRequest("rides", str(tmp_path), "t", wide)).definition.columns == wide
    with pytest.raises(InvalidInput, match=r"^schema: table 'narrow' cannot have column 'n' as int16: the files have"):
        create_table(ledger, TableRequest("narrow", str(tmp_path), "t", (("t", "timestamp[us]"), ("n", "int16"))))


def test_a_time_declared_without_a_unit_may_be_stored_in_nanoseconds(ledger: Ledger, tmp_path: Path) -> None:
    """SQL has no word for what pandas writes; the table holds that its files are read in another way."""
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns", "UTC"))}), tmp_path / "a.parquet")
    made = create_table(ledger, TableRequest("rides", str(tmp_path), "t", (("t", "timestamp[us, tz=UTC]"),)))
    assert made.definition.columns == (("t", "timestamp[ns, int64, tz=UTC]"),)


def test_a_table_may_be_defined_before_its_directory_exists(ledger: Ledger, tmp_path: Path) -> None:
    assert create_table(ledger, TableRequest("rides", str(tmp_path / "later"), "event_time")).definition.columns == ()


def test_defining_the_same_table_again_changes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    request = TableRequest("rides", str(tmp_path), "event_time")
    assert create_table(ledger, request) == create_table(ledger, request)
    with pytest.raises(InvalidInput, match=r"^table-exists: table 'rides' exists with another definition"):
        create_table(ledger, replace(request, time_column="t"))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "Rides"}, "name: table 'Rides' must be a lower-case letter"),
        ({"location": "lake/rides"}, "location: table 'rides' has location 'lake/rides', it must be an absolute path"),
        ({"properties": {"scan": "maybe"}}, "property: table 'rides' has no property scan = 'maybe'"),
        ({"properties": {"colour": "red"}}, "property: table 'rides' has no property colour = 'red'; there are glob"),
        ({"columns": (("n", "int64"),)}, "no-time-column: table 'rides' has no column 'event_time'"),
        ({"properties": {"retention": "month"}}, "duration: retention of table 'rides' 'month' must be a whole number"),
        ({"properties": {"time_unit": "m"}}, "property: table 'rides' has no property time_unit = 'm'"),
        (
            {"columns": (("event_time", "date32[day]"),), "properties": {"time_unit": "s"}},
            "time-unit: table 'rides' has a time_unit, but column 'event_time' is date32[day] and needs none",
        ),
        (
            {"columns": (("event_time", "int32"),)},
            "time-type: table 'rides': time column 'event_time' is int32, it must be a timestamp, a date or an int64",
        ),
        (
            {"columns": (("event_time", "int64"), ("h", "halffloat"))},
            "column-type: table 'rides' has column 'h' as halffloat, which Spark cannot read; list the others",
        ),
        ({"slice_span": "1w"}, "duration: slice span '1w' must be a whole number and one of ms, s, m, h, d"),
        ({"slice_span": "59s"}, "slice-span: table 'rides' has a slice_span of 59s, it must be at least 1m"),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_the_rule(ledger: Ledger, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        create_table(ledger, replace(TableRequest("rides", "/lake/rides", "event_time"), **changed))
    assert str(refused.value).startswith(told)
    assert ledger.registry.tables() == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"bucket": "367d"}, "bucket: view 'hourly' has buckets of 367d, at most 366d are allowed"),
        ({"bucket": "0h"}, "duration: bucket '0h' must be"),
        ({"coverage": "some"}, "coverage: view 'hourly' has coverage 'some', it must be one of extend, fixed"),
        ({"select": " "}, "view: view 'hourly' needs a query"),
        ({"location": "views"}, "location: view 'hourly' has location 'views'"),
        ({"table": "nowhere"}, "unknown-table: there is no table 'nowhere'"),
    ],
)
def test_a_view_that_cannot_be_is_refused_with_the_rule(ledger: Ledger, changed: dict[str, Any], told: str) -> None:
    create_table(ledger, TableRequest("rides", "/lake/rides", "event_time"))
    with pytest.raises(InvalidInput) as refused:
        create_view(ledger, replace(VIEW, **changed))
    assert str(refused.value).startswith(told)
    assert list(ledger.views.names()) == []


def test_a_view_whose_buckets_would_be_too_many_slices_wide_is_refused_with_both_widths(ledger: Ledger) -> None:
    """Its tasks name every slice of their source, and its commits check them all in one write."""
    create_table(ledger, replace(TABLE, slice_span="1m"))
    with pytest.raises(InvalidInput) as refused:
        create_view(ledger, replace(VIEW, bucket="7d"))
    assert str(refused.value) == (
        "bucket: view 'hourly' has buckets of 7d, but a bucket may be at most 1,000 slices of its table wide, which is "
        "1000m with the slice_span of 1m that table 'rides' has; use smaller buckets, or a table with a larger "
        "slice_span"
    )
    assert list(ledger.views.names()) == []
    create_view(ledger, replace(VIEW, bucket="1000m"))


@pytest.mark.parametrize("slice_span", ["1m", "1d"])
def test_the_slices_of_the_widest_bucket_fit_into_a_task_and_into_a_commit(slice_span: str) -> None:
    """However long their paths are, and also where it begins amid a slice; most of the write is left for entries."""
    span_ms = parse_duration_ms(slice_span, what="slice span")
    widest_ms, grid = min(BUCKET_MAX_MS, SLICES_PER_BUCKET_MAX * span_ms), SliceGrid(span_ms, generation=10**9)
    keys = grid.keys_for_window(Interval(TIME_MIN_MS + 1, TIME_MIN_MS + 1 + widest_ms))
    assert len(keys) <= SLICES_MAX
    check_sizes([Check(paths.slice_("t" * 63, key), 2**31 - 1) for key in keys], replace(LIMITS, write_bytes=250_000))


TABLE = TableRequest("rides", "/lake/rides", "event_time")
KEPT = replace(TABLE, properties={"retention": "30d"})


@pytest.mark.parametrize("location", ["/lake/rides", "/lake/rides/views", "/lake", "file:///lake/rides/"])
def test_a_view_does_not_share_the_files_of_a_table(ledger: Ledger, location: str) -> None:
    """INV-11: a janitor that looks after the one would see the files of the other."""
    create_table(ledger, TABLE)
    with pytest.raises(
        InvalidInput, match=r"^location-overlap: view 'hourly' at .* would share files with table 'rides'"
    ):
        create_view(ledger, replace(VIEW, location=location))
    assert ledger.views.names() == []


@pytest.mark.parametrize("location", ["/lake/views/hourly", "/lake/views/hourly/x", "/lake/views"])
def test_nothing_shares_the_files_of_a_view(ledger: Ledger, location: str) -> None:
    create_table(ledger, TABLE)
    create_view(ledger, VIEW)
    with pytest.raises(
        InvalidInput, match=r"^location-overlap: view 'daily' at .* would share files with view 'hourly'"
    ):
        create_view(ledger, replace(VIEW, name="daily", location=location))
    with pytest.raises(
        InvalidInput, match=r"^location-overlap: table 'trips' at .* would share files with view 'hourly'"
    ):
        create_table(ledger, replace(TABLE, name="trips", location=location))
    assert (ledger.views.names(), ledger.registry.tables()) == (["hourly"], ["rides"])


@pytest.mark.parametrize(("one", "other"), [(KEPT, TABLE), (TABLE, KEPT)])
def test_a_table_whose_files_are_deleted_shares_them_with_none(
    ledger: Ledger, one: TableRequest, other: TableRequest
) -> None:
    create_table(ledger, one)
    with pytest.raises(
        InvalidInput, match=r"^location-overlap: table 'trips' at .* would share files with table 'rides'"
    ):
        create_table(ledger, replace(other, name="trips", location="/lake/rides/trips"))


def test_two_tables_that_keep_everything_may_read_the_same_directory(ledger: Ledger) -> None:
    create_table(ledger, TABLE)
    create_table(ledger, replace(TABLE, name="trips"))
    assert ledger.registry.tables() == ["rides", "trips"]


def test_a_retention_is_a_flag_a_key_and_a_property(ledger: Ledger) -> None:
    fields = fields_of(
        '[table]\nname = "rides"\nlocation = "/lake/rides"\ntime_column = "event_time"\nretention = "30d"\n',
        section="table",
        what="rides.toml",
    )
    header = create_table(ledger, table_request(fields))
    assert retention_ms(header.definition) == 30 * 24 * HOUR_MS
    assert create_table(ledger, KEPT) == header
    assert retention_ms(create_table(ledger, replace(TABLE, name="trips", location="/lake/trips")).definition) is None


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("SELECT count(*) AS n FROM other", "wrong-table: FROM `other` must be FROM rides"),
        ("SELECT count(*) AS n FROM rides HAVING count(*) > 1", "having: "),
        ("SELECT sum(valu) AS n FROM rides", "unknown-column: the table has no column `valu`; did you mean value"),
        ("SELECT date_trunc('DAY', event_time) AS d, count(*) AS n FROM rides GROUP BY d", "time-key: "),
        ("SELECT 1;; DROP", "not-sql: "),
    ],
)
def test_a_query_that_cannot_be_kept_is_refused_with_the_rule(ledger: Ledger, select: str, told: str) -> None:
    """The table's columns, its time column and the view's bucket all count."""
    columns = (("event_time", "timestamp[ms, tz=UTC]"), ("value", "int64"))
    create_table(ledger, TableRequest("rides", "/lake/rides", "event_time", columns))
    with pytest.raises(InvalidInput) as refused:
        create_view(ledger, replace(VIEW, select=select))
    assert str(refused.value).startswith(told)
    assert list(ledger.views.names()) == []


def test_the_hash_of_a_definition_does_not_depend_on_how_it_is_laid_out() -> None:
    written = definition_hash("rides", "SELECT count(*) AS n FROM rides", 1)
    assert written == definition_hash("rides", "select COUNT( * ) as `n` -- rows\nfrom rides", 1)
    assert written != definition_hash("rides", "SELECT count(*) AS m FROM rides", 1)
    assert written != definition_hash("rides", "SELECT count(*) AS n FROM rides", 2)


def test_coverage_begins_with_the_data_or_as_told() -> None:
    kit = Kit(MemoryStore())
    create_table(kit.ledger, TableRequest("rides", "/lake/rides", "event_time"))
    assert create_view(kit.ledger, VIEW).coverage_start_ms is None
    kit.put(segment("a", 5.5, 7))
    assert (
        create_view(kit.ledger, replace(VIEW, name="second", location="/lake/views/second")).coverage_start_ms
        == 5 * HOUR_MS
    )
    third = replace(VIEW, name="third", location="/lake/views/third", coverage_start_ms=2 * HOUR_MS)
    told = create_view(kit.ledger, third)
    assert told.coverage_start_ms == 2 * HOUR_MS


def test_a_file_and_flags_make_the_same_request() -> None:
    text = """
    [view]
    name = "hourly"
    table = "rides"
    bucket = "1h"
    select = "SELECT count(*) AS n FROM rides"
    location = "/lake/views/hourly"
    coverage_start = 2014-01-01T00:00:00Z
    """
    fields = fields_of(text, section="view", what="view.toml")
    flags = {"name": "hourly", "table": "rides", "bucket": "1h", "select": VIEW.select, "location": VIEW.location}
    flags["coverage_start"] = "2014-01-01T00:00Z"
    asked = view_request(fields, time_ms=_iso_ms)
    assert asked == view_request(flags, time_ms=_iso_ms)
    assert asked.coverage_start_ms == 1_388_534_400_000


def _iso_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)


def test_a_table_file_has_properties_and_columns() -> None:
    text = (
        '[table]\nname="rides"\nlocation="/l"\ntime_column="t"\nscan=false\nglob="*.pq"\n[table.columns]\nt="int64"\n'
    )
    request = table_request(fields_of(text, section="table", what="f"))
    assert request.properties == {"scan": "false", "glob": "*.pq"}
    assert request.columns == (("t", "int64"),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[table", "definition: f is not TOML"),
        ("[view]\n", "definition: f must have exactly one section, [table]"),
        ("[table]\n[other]\n", "definition: f must have exactly one section, [table]"),
        ('[table]\nnam = "x"\n', "definition: a table has no nam; did you mean name?"),
        ('[table]\nname = "x"\n', "definition: table 'x' needs location, time_column"),
        ('[table]\nname="x"\nlocation="/l"\ntime_column="t"\nscan="yes"\n', "definition: scan = 'yes' must be a true"),
    ],
)
def test_a_definition_file_that_says_something_else_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        table_request(fields_of(text, section="table", what="f"))
    assert str(refused.value).startswith(told)


def test_the_standing_of_a_view_has_its_lag_its_buckets_and_what_pins_it() -> None:
    """Behind the data, not behind the clock; quarantined and frozen buckets by name, ordinary retries not."""
    kit = Kit(MemoryStore())
    header = kit.set_up()
    kit.put(segment("a", 0, 2), segment("b", 3, 6))
    for hour in range(3):
        kit.append(hour, f"attempt-{hour}")
    kit.mark(1)
    offers = [Offer(h * HOUR_MS, f"task-{h}", "live") for h in (1, 3, 4)]
    kit.ledger.dispatch.offer(header, offers, alive=(), policy=Policy())
    fail = kit.ledger.dispatch.fail
    fail(header, 1 * HOUR_MS, task_id="task-1", error="out of memory", policy=Policy(tries_max=1))
    fail(header, 3 * HOUR_MS, task_id="task-3", error="b.parquet is missing", policy=Policy(), frozen=True)
    fail(header, 4 * HOUR_MS, task_id="task-4", error="a hiccup", policy=Policy())
    standing = view_standing(kit.ledger, "rides_hourly")
    assert (standing.watermark_ms, standing.lag_ms) == (3 * HOUR_MS, 3 * HOUR_MS)
    assert standing.counts == {"VALID": 1, "VALID-empty": 1, "STALE": 1}
    assert [(p.start_ms // HOUR_MS, p.condition, p.error) for p in standing.pins] == [
        (1, "quarantined", "out of memory"),
        (3, "frozen", "b.parquet is missing"),
    ]


@pytest.mark.parametrize(("text", "ms"), [("250ms", 250), ("5 m", 300_000), ("1h", 3_600_000), ("2d", 172_800_000)])
def test_a_duration_is_read_and_written_the_same(text: str, ms: int) -> None:
    assert parse_duration_ms(text, what="bucket") == ms
    assert format_duration(ms) == text.replace(" ", "")
