"""Writing the files of a bucket: zstd Parquet that any engine reads, whole or not there at all."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.core.bucket_files import path_of
from floodmark.core.buckets import DataFile
from floodmark.parquet.lake import Lake

ROWS_PER_GROUP = 256 * 1024
ROWS_PER_FILE_MAX = 8 * ROWS_PER_GROUP
"""A bucket with more rows has several files, each of a size that engines like to read."""


def write_bucket(
    lake: Lake, start_ms: int, attempt_id: str, rows: pa.Table, *, first_number: int = 0
) -> tuple[DataFile, ...]:
    """Write rows of one bucket, in the order they have. No rows, no file."""
    parts = enumerate(_parts(rows), first_number)
    return tuple(_write(lake, path_of(start_ms, attempt_id, number), part) for number, part in parts)


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, rows.num_rows, ROWS_PER_FILE_MAX):
        yield rows.slice(first, ROWS_PER_FILE_MAX)


def _write(lake: Lake, name: str, rows: pa.Table) -> DataFile:
    with lake.create(name) as sink:
        pq.write_table(rows, sink, compression="zstd", row_group_size=ROWS_PER_GROUP)
        size = sink.tell()
    return DataFile(name, rows.num_rows, size)
