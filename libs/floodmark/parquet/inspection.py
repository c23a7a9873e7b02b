"""What a Parquet file says of itself: rows, schema, the range of its time column, and the CRC of its bytes."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.core.errors import InvalidInput
from floodmark.parquet.lake import Lake, LakeFile

CHUNK_BYTES = 4 * 1024 * 1024
ROWS_AT_ONCE = 1_000_000
Columns = tuple[tuple[str, str], ...]
"""Name and type of each column, as a table definition holds them."""
DAY_MS = 86_400_000
_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class Inspected:
    """A whole file, read at one moment."""

    file: LakeFile
    rows: int
    crc: int
    start_ms: int
    last_ms: int
    timeless_rows: int
    columns: Columns = ()


def inspect(lake: Lake, path: str, *, time_column: str, columns: Sequence[tuple[str, str]]) -> Inspected:
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
            parquet = pq.ParquetFile(source)
            found = columns_of(parquet.schema_arrow)
            _check_schema(path, found, time_column, columns)
            rows = parquet.metadata.num_rows
            start_ms, last_ms, timeless_rows = _time_range(path, parquet, time_column)
    if lake.file(path) != before:
        raise InvalidInput("file-changing", f"{path} changed while it was read; it is still being written")
    return Inspected(before, rows, crc, start_ms, last_ms, timeless_rows, found)


def content_crc(lake: Lake, path: str) -> int:
    """The CRC of a file's bytes as they are now."""
    with lake.open(path) as source, lake.reading(path):
        return _crc(source)


def schema_of(lake: Lake, path: str) -> Columns:
    """The columns of a file."""
    with lake.open(path) as source, _as_parquet(path):
        schema = pq.read_schema(source)
    return columns_of(schema)


def columns_of(schema: pa.Schema) -> Columns:
    return tuple((field.name, str(field.type)) for field in schema)


@contextmanager
def _as_parquet(path: str) -> Iterator[None]:
    """What pyarrow cannot make sense of is refused. It tells of damage by all of these."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput("not-parquet", f"{path} is not a whole Parquet file: {_first_line(error)}") from error


def _check_schema(path: str, found: Columns, time_column: str, columns: Sequence[tuple[str, str]]) -> None:
    if time_column not in dict(found):
        raise InvalidInput("no-time-column", f"{path} has no column {time_column!r}")
    check_columns(path, found, columns)


def check_columns(path: str, of_file: Sequence[tuple[str, str]], of_table: Sequence[tuple[str, str]]) -> None:
    """Every column of the table must be there with its type. More columns are fine; nobody asks for them."""
    found = dict(of_file)
    for name, kind in of_table:
        if found.get(name) != kind:
            has = f"has it as {found[name]}" if name in found else "lacks it"
            raise InvalidInput("schema", f"{path}: the table has column {name!r} as {kind}, the file {has}")


def _time_range(path: str, parquet: pq.ParquetFile, time_column: str) -> tuple[int, int, int]:
    """First and last instant, from the values, and how many rows have none.

    The footer's statistics would be quicker, but they may be absent (Spark's INT96), may leave out row groups, and
    asking pyarrow for those of a damaged footer ends the process. The whole file is read for its CRC anyway.
    """
    kind = parquet.schema_arrow.field(time_column).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_int64(kind)):
        allowed = "a timestamp, a date or an int64 of milliseconds"
        raise InvalidInput("time-type", f"{path}: time column {time_column!r} is {kind}, it must be {allowed}")
    lows, highs, nulls = [], [], 0
    for batch in parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=[time_column]):
        bounds = pc.min_max(batch.column(0))
        nulls += batch.column(0).null_count
        if bounds["min"].is_valid:
            lows.append(_ms(bounds["min"]))
            highs.append(_ms(bounds["max"]))
    if not lows:
        reason = "has no value in its time column" if parquet.metadata.num_rows else "has no rows to tell the time by"
        raise InvalidInput("time-all-null", f"{path} {reason} {time_column!r}")
    return min(lows), max(highs), nulls


def _ms(value: pa.Scalar) -> int:
    """Milliseconds since 1970 UTC, rounded down. A time without a zone is taken as UTC."""
    if pa.types.is_timestamp(value.type):
        unit = value.type.unit
        return int(value.value * 1000 if unit == "s" else value.value // _UNITS_PER_MS[unit])
    if pa.types.is_date32(value.type):
        return int(value.value) * DAY_MS
    return int(value.value if pa.types.is_date64(value.type) else value.as_py())


def _crc(source: pa.NativeFile) -> int:
    crc = 0
    while chunk := source.read(CHUNK_BYTES):
        crc = zlib.crc32(chunk, crc)
    return crc


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
