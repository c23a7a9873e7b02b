"""What a Parquet file says of itself: rows, schema, the range of its time column, and the CRC of its bytes."""

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.core.bounds import TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.column_types import (
    INT96,
    NANOS,
    TIME_UNITS,
    UNDECLARED,
    TimeUnit,
    fits,
    has_type,
    readable,
    stored_as,
)  # fmt: skip
from floodmark.core.errors import InvalidInput
from floodmark.parquet.footer import chunks_of, unread_as
from floodmark.parquet.lake import Lake, LakeFile
from floodmark.parquet.schema import columns_of, kinds_of_leaves

CHUNK_BYTES = 4 * 1024 * 1024
ROWS_AT_ONCE = 1_000_000
DAY_MS = 86_400_000
_CALENDARS_AGREE_FROM_MS = -2_208_988_800_000 + DAY_MS
"""1900-01-01, and a day for the zone of whoever wrote: from then on a time is the same in every calendar."""
_SECONDS_LOOK_MS = 4_200_000_000
"""Taken for milliseconds, the seconds of the years 1836 to 2103 are the weeks from November 1969 to February 1970."""


Columns = tuple[tuple[str, str], ...]
"""Name and type of each column, as a table definition holds them."""
Times = tuple[int, int, int]
"""First and last millisecond, and how many rows have no time."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A whole file, read at one moment."""

    file: LakeFile
    rows: int
    crc: int
    start_ms: int
    last_ms: int
    timeless_rows: int
    columns: Columns


def inspect(
    lake: Lake,
    path: str,
    *,
    time_column: str,
    columns: Columns,
    time_unit: TimeUnit = UNDECLARED,
) -> Inspected:
    """Read a file's footer, time range and CRC, or refuse it with the reason."""
    before = lake.file(path)
    if before is None:
        raise InvalidInput("file-absent", f"{path} is not in {lake.location}")
    with lake.open(path) as source:
        # The CRC first: whatever the store has to complain about comes up here, and the rest is about Parquet.
        with lake.reading(path):
            crc = _crc(source)
            source.seek(0)
        with _as_parquet(path):
            rows, times, found = _read(path, source, time_column, columns, time_unit)
    if times is None:
        reason = "has no value in its time column" if rows else "has no rows to tell the time by"
        raise InvalidInput("time-all-null", f"{path} {reason} {time_column!r}")
    if lake.file(path) != before:
        raise InvalidInput("file-changing", f"{path} changed while it was read; it is still being written")
    return Inspected(before, rows, crc, *times, found)


def _read(
    path: str, source: pa.NativeFile, time_column: str, columns: Columns, time_unit: TimeUnit
) -> tuple[int, Times | None, Columns]:
    """How many rows a file has, their times, and its columns."""
    parquet = _opened(source)
    found = columns_of(parquet)
    kinds = dict(found)
    check_time_column(path, found, time_column)
    # Nanoseconds or not is for the first registered file to say: whether others agree is checked as they are written.
    check_columns(path, found, [(name, stored_as(kind, found=kinds.get(name, kind))) for name, kind in columns])
    _check_decodable(path, source, parquet, {time_column, *dict(columns or found)})
    times = _time_range(path, parquet, time_column, kinds[time_column], time_unit)
    if times is not None and not columns:  # without rows it gives a table nothing
        check_readable(path, found)
    return parquet.metadata.num_rows, times, found


def content_crc(lake: Lake, path: str) -> int:
    """The CRC of a file's bytes as they are now."""
    with lake.open(path) as source, lake.reading(path):
        return _crc(source)


def schema_of(lake: Lake, path: str) -> Columns:
    """The columns of a file."""
    with lake.open(path) as source, _as_parquet(path):
        return columns_of(_opened(source))


def row_count(lake: Lake, path: str) -> int:
    with lake.open(path) as source, _as_parquet(path):
        return int(_opened(source).metadata.num_rows)


def check_decodable(lake: Lake, path: str, columns: Collection[str]) -> None:
    """These columns must be stored in a way that Spark reads."""
    with lake.open(path) as source, _as_parquet(path):
        _check_decodable(path, source, _opened(source), columns)


def time_range(lake: Lake, path: str, *, time_column: str, time_unit: TimeUnit = UNDECLARED) -> Times | None:
    """First and last millisecond and how many rows have no time; None when none has one."""
    with lake.open(path) as source, _as_parquet(path):
        parquet = _opened(source)
        kind = dict(columns_of(parquet))[time_column]
        return _time_range(path, parquet, time_column, kind, time_unit)


def _opened(source: pa.NativeFile) -> pq.ParquetFile:
    """As nanoseconds, which is what Arrow makes of INT96 by itself, the years before 1677 and after 2262 would wrap."""
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", arrow_extensions_enabled=False)


@contextmanager
def _as_parquet(path: str) -> Iterator[None]:
    """What pyarrow cannot make sense of is refused. It tells of damage by all of these."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput("not-parquet", f"{path} is not a whole Parquet file: {_first_line(error)}") from error


def _check_decodable(path: str, source: pa.NativeFile, parquet: pq.ParquetFile, columns: Collection[str]) -> None:
    kinds = kinds_of_leaves(parquet)
    for chunk in chunks_of(source):
        if chunk.leaf >= len(kinds):
            raise ValueError(f"a group of rows has more columns than the {len(kinds)} of the schema")
        if chunk.column in columns and (unread := unread_as(chunk, kinds[chunk.leaf])):
            raise InvalidInput(
                "encoding",
                f"{path}: column {chunk.column!r} {unread}, which Spark cannot read; write the file otherwise, or list "
                "the other columns in CREATE TABLE",
            )


def check_columns(path: str, of_file: Columns, of_table: Iterable[tuple[str, str]]) -> None:
    """Every column of the table must be there as what Spark reads as its type. More columns are fine."""
    of_table = tuple(of_table)
    kinds = dict(of_file)
    has, known = _by_spelling(of_file), _by_spelling(of_table)
    for name, kind in of_table:
        if name not in kinds or not fits(kind, found=kinds[name]):
            found = f"has it as {kinds[name]}" if name in kinds else "lacks it"
            raise InvalidInput("schema", f"{path}: the table has column {name!r} as {kind}, the file {found}")
        if has[name.lower()] > known[name.lower()]:
            raise _ambiguous(path, name)


def check_readable(of: str, columns: Columns) -> None:
    """`of` is the table, or the first file of one that will take its columns."""
    spellings = _by_spelling(columns)
    for name, kind in columns:
        if spellings[name.lower()] > 1:
            raise _ambiguous(of, name)
        if not has_type(kind):
            raise InvalidInput(
                "column-type",
                f"{of} has column {name!r} as {kind}, which says nothing of its values; write it with a type, or "
                "list the columns in CREATE TABLE",
            )
        if readable(kind) is None:
            raise InvalidInput(
                "column-type",
                f"{of} has column {name!r} as {kind}, which Spark cannot read; list the others in CREATE TABLE",
            )


def check_time_column(path: str, of_file: Columns, time_column: str) -> None:
    kinds = dict(of_file)
    if time_column not in kinds:
        raise InvalidInput("no-time-column", f"{path} has no column {time_column!r}")
    check_time_type(path, time_column, kinds[time_column])
    if _by_spelling(of_file)[time_column.lower()] > 1:
        raise _ambiguous(path, time_column)


def _by_spelling(columns: Columns) -> Counter[str]:
    return Counter(name.lower() for name, _ in columns)


def _ambiguous(path: str, name: str) -> InvalidInput:
    return InvalidInput(
        "schema",
        f"{path} has columns named {name!r} or that differ from it only in case; Spark reads none of them",
    )


def check_time_type(of: str, time_column: str, kind: str) -> None:
    """`of` is the file or the table."""
    if not (kind.startswith("timestamp[") or kind in (INT96, "date32[day]", "int64")):
        allowed = "a timestamp, a date or an int64"
        raise InvalidInput("time-type", f"{of}: time column {time_column!r} is {kind}, it must be {allowed}")


def _time_range(path: str, parquet: pq.ParquetFile, time_column: str, kind: str, time_unit: TimeUnit) -> Times | None:
    """First and last instant, from the values, and how many rows have none.

    The footer's statistics would be quicker, but they may be absent (Spark's INT96), may leave out row groups, and
    asking pyarrow for those of a damaged footer ends the process. The whole file is read for its CRC anyway.
    """
    lows, highs, nulls = [], [], 0
    for batch in parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=[time_column]):
        times = batch.column(time_column)
        nulls += times.null_count
        bounds = pc.min_max(times.cast(pa.int32() if kind == "date32[day]" else pa.int64()))
        if bounds["min"].is_valid:
            lows.append(bounds["min"].as_py())
            highs.append(bounds["max"].as_py())
    if not lows:
        return None
    start_ms, last_ms = (_floor_ms(value, kind, time_unit) for value in (min(lows), max(highs)))
    if start_ms < _CALENDARS_AGREE_FROM_MS and kind != "int64" and _julian(parquet.metadata.metadata or {}, kind):
        raise InvalidInput(
            "time-calendar",
            f"{path} has times before 1900 in the Julian calendar of Spark 2 or Spark's LEGACY mode; "
            "write it again with the mode CORRECTED",
        )
    if start_ms < TIME_MIN_MS or last_ms >= TIME_MAX_MS:
        raise InvalidInput(
            "time-range",
            f"{path}: column {time_column!r} has times from {start_ms} to {last_ms} ms since 1970, which are not all "
            f"in the years 1 to 9999{_unit_advice(kind)}",
        )
    if kind == "int64" and time_unit.assumed and (start_ms, last_ms) != (0, 0) and abs(last_ms) < _SECONDS_LOOK_MS:
        units = ", ".join(f"'{unit}'" for unit in TIME_UNITS)
        raise InvalidInput(
            "time-unit",
            f"column {time_column!r} of {path} counts from {start_ms} to {last_ms}, which as milliseconds is "
            f"around January 1970 and may be seconds; create the table with 'time_unit' as one of {units}",
        )
    return start_ms, last_ms, nulls


def _unit_advice(kind: str) -> str:
    units = ", ".join(f"'{unit}'" for unit in TIME_UNITS)
    return f"; if they count something else, declare 'time_unit' as one of {units}" if kind == "int64" else ""


def _floor_ms(value: int, kind: str, time_unit: TimeUnit) -> int:
    """Milliseconds since 1970 UTC, rounded down. A time without a zone is taken as UTC."""
    if kind == "date32[day]":
        return value * DAY_MS
    if kind in NANOS.values():
        return TIME_UNITS["ns"].floor_ms(value)
    if kind == "int64":
        return time_unit.floor_ms(value)
    return value if kind.startswith("timestamp[ms") else TIME_UNITS["us"].floor_ms(value)


def _julian(noted: Mapping[bytes, bytes], kind: str) -> bool:
    """Whether Spark takes a file's days for those of the Julian calendar, and shifts them as it reads."""
    version = noted.get(b"org.apache.spark.version")
    since, key = ("3.1.0", b"legacyINT96") if kind == INT96 else ("3.0.0", b"legacyDateTime")
    return version is not None and (version.decode(errors="replace") < since or b"org.apache.spark." + key in noted)


def _crc(source: pa.NativeFile) -> int:
    crc = 0
    while chunk := source.read(CHUNK_BYTES):
        crc = zlib.crc32(chunk, crc)
    return crc


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
