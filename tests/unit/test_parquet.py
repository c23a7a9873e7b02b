"""What a Parquet file is found to be, and which paths lie below a location."""

import errno
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.core.column_types import MILLISECONDS, TIME_UNITS
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.parquet import inspection
from floodmark.parquet.inspection import Inspected, inspect, schema_of
from floodmark.parquet.lake import Lake, is_hidden

NOON_MS = int(datetime(2014, 1, 5, 12, tzinfo=UTC).timestamp() * 1000)


def written(directory: Path, times: pa.Array, **options: Any) -> Lake:
    pq.write_table(pa.table({"t": times, "n": pa.array(range(len(times)), pa.int64())}), directory / "a", **options)
    return Lake(str(directory))


def looked_into(lake: Lake) -> Inspected:
    return inspect(lake, "a", time_column="t", columns=())


@pytest.mark.parametrize(
    ("kind", "unit_per_s"),
    [
        (pa.timestamp("s"), 1),
        (pa.timestamp("ms", tz="UTC"), 1_000),
        (pa.timestamp("us", tz="Europe/Berlin"), 1_000_000),
        (pa.timestamp("ns"), 1_000_000_000),
        (pa.int64(), 1_000),
    ],
)
def test_times_of_every_unit_are_read_as_milliseconds_utc(tmp_path: Path, kind: pa.DataType, unit_per_s: int) -> None:
    """A time without a zone is UTC; a zone changes how a time is shown, not which one it is."""
    first, last = NOON_MS // 1000 * unit_per_s, (NOON_MS // 1000 + 60) * unit_per_s
    found = looked_into(written(tmp_path, pa.array([last, first, None], pa.int64()).cast(kind)))
    assert (found.start_ms, found.last_ms, found.rows) == (NOON_MS, NOON_MS + 60_000, 3)


def test_parts_of_a_millisecond_are_rounded_down_also_before_1970(tmp_path: Path) -> None:
    """The last instant of a file is inclusive, so a time of 1.9 ms lies in millisecond 1, and one of -0.1 ms in -1."""
    found = looked_into(written(tmp_path, pa.array([-100, 1_900], pa.int64()).cast(pa.timestamp("us"))))
    assert (found.start_ms, found.last_ms) == (-1, 1)


def test_times_without_statistics_are_read_from_the_values(tmp_path: Path) -> None:
    """Spark writes INT96, which has none."""
    times = pa.array([NOON_MS, NOON_MS + 5], pa.int64()).cast(pa.timestamp("ms"))
    found = looked_into(written(tmp_path, times, use_deprecated_int96_timestamps=True))
    assert (found.start_ms, found.last_ms) == (NOON_MS, NOON_MS + 5)


def test_a_row_group_without_a_time_does_not_hide_the_others(tmp_path: Path) -> None:
    times = pa.array([None, None, 7, 9], pa.int64()).cast(pa.timestamp("ms"))
    found = looked_into(written(tmp_path, times, row_group_size=2))
    assert (found.start_ms, found.last_ms) == (7, 9)


def test_rows_without_a_time_are_counted(tmp_path: Path) -> None:
    """They are in no bucket: a query that does not ask for a time must read them from the base table."""
    times = pa.array([None, None, 7, None, 9], pa.int64()).cast(pa.timestamp("ms"))
    assert looked_into(written(tmp_path, times, row_group_size=2)).timeless_rows == 3
    times = pa.array([7, 9], pa.int64()).cast(pa.timestamp("ms"))
    assert looked_into(written(tmp_path, times)).timeless_rows == 0


def test_dates_are_read_as_their_midnight(tmp_path: Path) -> None:
    found = looked_into(written(tmp_path, pa.array([1, 3], pa.int32()).cast(pa.date32())))
    assert (found.start_ms, found.last_ms) == (86_400_000, 3 * 86_400_000)


def test_a_time_no_calendar_has_is_refused(tmp_path: Path) -> None:
    """Whole numbers may only have been taken for the wrong unit, so the refusal says how to declare another."""
    with pytest.raises(InvalidInput, match=r"^time-range: a: column 't' has times .* the years 1 to 9999$"):
        looked_into(written(tmp_path, pa.array([2**62], pa.int64()).cast(pa.timestamp("ms"))))
    with pytest.raises(InvalidInput, match=r"^time-range: .*; if they count something else, declare 'time_unit'"):
        looked_into(written(tmp_path, pa.array([1_714_521_600_000_000], pa.int64())))


@pytest.mark.scenario("I7")
@pytest.mark.parametrize("times", [[1_714_521_600, 1_714_608_000], [0, 1_714_521_600], [-9, 9], [-800_000_000], [7]])
def test_whole_numbers_that_may_be_seconds_are_refused_unless_their_unit_is_declared(
    tmp_path: Path, times: list[int]
) -> None:
    """Read as milliseconds they would all be around January 1970, and every answer about time would be wrong. A 0 for
    "unknown" hides nothing. Times that really are of these weeks need the unit as well."""
    lake = written(tmp_path, pa.array(times, pa.int64()))
    with pytest.raises(
        InvalidInput, match=r"^time-unit: column 't' of a counts from .* 'time_unit' as one of 's', 'ms'"
    ):
        looked_into(lake)
    for unit in (TIME_UNITS["s"], MILLISECONDS):
        found = inspect(lake, "a", time_column="t", columns=(), time_unit=unit)
        assert (found.start_ms, found.last_ms) == (unit.floor_ms(times[0]), unit.floor_ms(times[-1]))


def test_whole_numbers_are_milliseconds_where_they_cannot_be_seconds_or_it_makes_no_difference(tmp_path: Path) -> None:
    for times in ([0, NOON_MS], [-(10**12), 0, 4_200_000_000], [0, None]):
        found = looked_into(written(tmp_path, pa.array(times, pa.int64())))
        known = [time for time in times if time is not None]
        assert (found.start_ms, found.last_ms) == (min(known), max(known))


def test_a_time_column_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^time-type: a: time column 't' is string, it must be a timestamp"):
        looked_into(written(tmp_path, pa.array(["2014-01-05"])))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its footer and its CRC could be those of two different files."""
    lake = written(tmp_path, pa.array([1], pa.timestamp("ms")))
    crc_of = inspection._crc

    def meddling(source: pa.NativeFile) -> int:
        crc = crc_of(source)
        with (tmp_path / "a").open("ab") as file:
            file.write(b"more")
        return crc

    monkeypatch.setattr(inspection, "_crc", meddling)
    with pytest.raises(InvalidInput, match=r"^(file-changing|not-parquet): "):
        looked_into(lake)


def test_no_damage_does_more_than_refuse_the_file(tmp_path: Path) -> None:
    """A few bytes changed anywhere: refused, or read. Any other error would end the service, again and again."""
    times = pa.array(range(100), pa.int64()).cast(pa.timestamp("ms"))
    lake = written(tmp_path, times, row_group_size=30)
    whole, randomness = (tmp_path / "a").read_bytes(), random.Random(1)
    rules = set()
    for _ in range(1_000):
        damaged = bytearray(whole)
        for _ in range(randomness.randint(1, 4)):
            damaged[randomness.randrange(len(damaged))] = randomness.randrange(256)
        (tmp_path / "a").write_bytes(damaged)
        try:
            looked_into(lake)
        except InvalidInput as refusal:
            rules.add(refusal.rule)
    assert "not-parquet" in rules


def test_the_crc_tells_files_apart_that_look_the_same(tmp_path: Path) -> None:
    """Same rows, same size, same times; one value differs."""
    crcs = set()
    for value in (1, 2):
        table = pa.table({"t": pa.array([5], pa.timestamp("ms")), "v": pa.array([value], pa.int64())})
        pq.write_table(table, tmp_path / "a")
        crcs.add(looked_into(Lake(str(tmp_path))).crc)
    assert len(crcs) == 2


def test_the_schema_of_a_file_is_what_a_table_definition_holds(tmp_path: Path) -> None:
    lake = written(tmp_path, pa.array([1], pa.int64()).cast(pa.timestamp("us", tz="UTC")))
    assert schema_of(lake, "a") == (("t", "timestamp[us, tz=UTC]"), ("n", "int64"))


@pytest.mark.parametrize(
    ("path", "relative"),
    [
        ("a.parquet", "a.parquet"),
        ("day=1//./a.parquet", "day=1/a.parquet"),
        ("file:///lake/rides/a%20b.parquet", "a b.parquet"),
    ],
)
def test_a_path_below_the_location_is_taken_relative_to_it(path: str, relative: str) -> None:
    assert Lake("/lake/rides").relative(path) == relative
    assert Lake("file:///lake/rides/").relative(path) == relative


@pytest.mark.parametrize(
    "path",
    [
        "../a",
        "a/../../b",
        "/etc/passwd",
        "",
        ".",
        "a\\..\\b",
        "a\x00b",
        "file:///lake/rides2/a",
        "file:///lake/rides/../other/a",
        "file:///lake/rides/%2e%2e/other/a",
        "file://elsewhere/lake/rides/a",
        "s3://lake/rides/a",
    ],
)
def test_a_path_that_lies_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match=r"^outside-location: "):
        Lake("/lake/rides").relative(path)


def test_a_file_reached_through_a_link_is_refused(tmp_path: Path) -> None:
    """It goes by its own name if it lies in the location, and by none if it does not."""
    location, outside = tmp_path / "rides", tmp_path / "secret"
    location.mkdir()
    outside.mkdir()
    (location / "real").write_bytes(b"1")
    (outside / "real").write_bytes(b"1")
    (location / "inside").symlink_to(location / "real")
    (location / "leads_out").symlink_to(outside / "real")
    (location / "dir_out").symlink_to(outside)
    lake = Lake(str(location))
    (location / "deep").mkdir()
    (location / "deep" / "up").symlink_to(location)
    for path, own in (("inside", "real"), ("deep/up/real", "real")):
        with pytest.raises(InvalidInput, match=rf"^link: .* its own name is '{own}'"):
            lake.file(path)
        assert not lake.has(path)
    assert lake.has("real")
    for path in ("leads_out", "dir_out/real"):
        with pytest.raises(InvalidInput, match=r"^outside-location: .* is a link that leads out"):
            lake.file(path)
        with pytest.raises(InvalidInput, match=r"^outside-location: "):
            lake.open(path)


def test_a_location_reached_by_a_link_is_as_good_as_any(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert Lake(str(tmp_path / "link")).file("a") is not None


def test_a_listing_has_each_file_once_whatever_links_there_are(tmp_path: Path) -> None:
    """A link beside a directory lists its files twice, one to a directory above it some forty times."""
    location = tmp_path / "rides"
    for name in ("day=1/a.parquet", "day=2/b.parquet"):
        (location / name).parent.mkdir(parents=True)
        (location / name).write_bytes(b"x")
    (location / "latest").symlink_to(location / "day=2")
    (location / "day=1" / "loop").symlink_to(location)
    (location / "copy.parquet").symlink_to(location / "day=1" / "a.parquet")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.parquet").write_bytes(b"x")
    (location / "out").symlink_to(tmp_path / "elsewhere")
    assert sorted(f.path for f in Lake(str(location)).files("*.parquet")) == ["day=1/a.parquet", "day=2/b.parquet"]


def test_a_listed_file_looks_as_it_does_by_itself(tmp_path: Path) -> None:
    """Otherwise the scanner would take every registered file for a changed one."""
    (tmp_path / "day=1").mkdir()
    for name in ("a.parquet", "day=1/b.parquet"):
        (tmp_path / name).write_bytes(b"xyz")
    lake = Lake(str(tmp_path))
    found = list(lake.files("*.parquet"))
    assert len(found) == 2
    assert found == lake.files_at([f.path for f in found])


def test_a_location_that_is_not_there_cannot_be_listed(tmp_path: Path) -> None:
    """An empty listing would mean that every file is gone."""
    with pytest.raises(Unavailable, match="cannot be listed"):
        list(Lake(str(tmp_path / "absent")).files("*"))


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("a.parquet", False),
        ("_a.parquet", True),
        (".a.parquet", True),
        ("day=1/_a.parquet", True),
        ("_temporary/a.parquet", True),
        (".staging/a.parquet", True),
        ("_day=1/a.parquet", False),
        ("a.parquet._COPYING_", True),
    ],
)
def test_what_spark_does_not_list_is_hidden(path: str, *, hidden: bool) -> None:
    assert is_hidden(path) is hidden


def test_hidden_and_unfinished_files_and_odd_names_are_not_listed(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.csv", ".a.parquet.tmp", "_temporary/c.parquet", "day=1/d.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    Path(str(tmp_path).encode().decode(), "\udcff.parquet").write_bytes(b"")
    assert sorted(f.path for f in Lake(str(tmp_path)).files("*.parquet")) == ["a.parquet", "day=1/d.parquet"]


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EACCES, InvalidInput), (errno.EIO, Unavailable), (None, Unavailable)]
)
def test_what_a_later_try_may_change_is_told_from_what_it_cannot(number: int | None, error: type[Exception]) -> None:
    """A file without permission would hold its partition up for ever; a disk's bad moment passes."""
    with pytest.raises(error, match="cannot be read"), Lake("/lake").reading("a"):
        raise OSError(number, "trouble") if number else OSError("trouble")


@pytest.mark.parametrize("location", ["rides", "./rides", "gopher://x/y"])
def test_a_location_that_means_nothing_elsewhere_is_refused(location: str) -> None:
    with pytest.raises(InvalidInput, match=r"^location: "):
        Lake(location)


def test_files_asked_for_together_are_as_each_by_itself_and_none_lies_outside(tmp_path: Path) -> None:
    """Each directory is looked at once, but a link among its files is not taken on trust."""
    location = tmp_path / "lake"
    (location / "day").mkdir(parents=True)
    for name in ("a", "b"):
        (location / "day" / name).write_bytes(b"x")
    lake = Lake(str(location))
    paths = ["day/a", "day/b", "day/gone"]
    assert lake.files_at(paths) == [lake.file(path) for path in paths]
    (tmp_path / "secret").write_bytes(b"y")
    (location / "day" / "c").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput, match="leads out"):
        lake.files_at([*paths, "day/c"])
