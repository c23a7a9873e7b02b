"""From computed rows to the files of buckets: collected and written here, or written where Spark has them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from floodmark.core.buckets import DataFile
from floodmark.parquet.lake import Lake
from floodmark.parquet.writing import ROWS_PER_FILE_MAX, write_bucket

BUCKET = "__bucket_ms"
_FILES = "bucket_ms long, name string, rows long, bytes long"
_NUMBERS_PER_TASK = 100_000

Written = list[tuple[int, DataFile]]
"""Each file with the bucket it belongs to."""


def write_collected(rows: pa.Table, keys: Sequence[str], attempts: Mapping[int, str], lake: Lake) -> Written:
    """Sort and write rows that are here already."""
    by_key = [(name, "ascending") for name in keys if not pa.types.is_nested(rows.schema.field(name).type)]
    ordered = rows.sort_by([(BUCKET, "ascending"), *by_key]).combine_chunks()
    return [
        (start_ms, file)
        for start_ms, part in _by_bucket(ordered)
        for file in write_bucket(lake, start_ms, attempts[start_ms], part)
    ]


def write_by_spark(
    frame: DataFrame, keys: Sequence[str], attempts: Mapping[int, str], lake: Lake
) -> tuple[Written, DataFrame]:
    """Let the executors write, one task for all rows of a bucket. Returns also the frame that ran."""
    gathered = frame.repartition(BUCKET).sortWithinPartitions(BUCKET, *(quoted(name) for name in keys))
    done = gathered.mapInArrow(_writer(lake.location, dict(attempts)), _FILES)
    rows = done.collect()
    return [(row["bucket_ms"], DataFile(row["name"], row["rows"], row["bytes"])) for row in rows], done


def _writer(
    location: str, attempts: Mapping[int, str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "written outside a task"
        # A task that Spark repeats, or runs twice at once, writes other files; those of the one that counts are named.
        number, lake = context.taskAttemptId() * _NUMBERS_PER_TASK, Lake(location)
        for start_ms, part in _whole_files(batches):
            files = write_bucket(lake, start_ms, attempts[start_ms], part, first_number=number)
            number += len(files)
            yield pa.RecordBatch.from_pylist(
                [{"bucket_ms": start_ms, "name": f.name, "rows": f.rows, "bytes": f.bytes} for f in files]
            )

    return write


def _whole_files(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Sorted rows, cut where a bucket ends or a file is full."""
    waiting: list[pa.Table] = []
    current = None
    for batch in batches:
        for start_ms, part in _by_bucket(pa.Table.from_batches([batch])):
            full = sum(t.num_rows for t in waiting) >= ROWS_PER_FILE_MAX
            if waiting and current is not None and (start_ms != current or full):
                yield current, pa.concat_tables(waiting)
                waiting = []
            current = start_ms
            waiting.append(part)
    if waiting and current is not None:
        yield current, pa.concat_tables(waiting)


def _by_bucket(ordered: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Rows that are sorted by bucket, cut into buckets, without the column that names them."""
    if not ordered.num_rows:
        return
    starts = ordered.column(BUCKET).to_numpy()
    stored = ordered.drop_columns([BUCKET])
    edges = [0, *(int(n) + 1 for n in (starts[1:] != starts[:-1]).nonzero()[0]), len(starts)]
    for first, end in pairwise(edges):
        yield int(starts[first]), stored.slice(first, end - first)


def quoted(name: str) -> str:
    """A name as Spark takes it literally."""
    return "`" + name.replace("`", "``") + "`"
