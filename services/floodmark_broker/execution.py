"""Runs a plan on Spark: its sources become frames of exactly their files, under their names, in a session of a thread.

A session of its own keeps the names of one query from another's; all of them share the one warm Spark.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from floodmark.core.errors import EngineLost, InvalidInput
from floodmark.parquet.lake import Lake
from floodmark.query.plan import Kind, QueryPlan, Source, SourceFile
from floodmark.spark.complaints import complaint
from floodmark.spark.files import files_frame, table_frame
from floodmark.spark.liveness import Liveness
from floodmark.spark.output import quoted
from floodmark.spark.reading import ReadCounts, counts_of, view_schema, within
from floodmark.spark.required import check_required
from floodmark.sql.definition import Definition
from floodmark_broker.base_files import BaseFiles, FilesUnreadable, FilesVanished
from floodmark_broker.outputs import check_texts, sendable, to_arrow
from floodmark_broker.stopping import Ticket

SMALL_BYTES_MAX = 64 * 1024 * 1024
"""A read up to this size shuffles into one partition: a task for a few rows costs more than the rows."""

INTERPRETED_ROWS_MAX = 100_000
"""So few rows are through before the code for a query with new numbers in it would be compiled (ADR 8)."""

ONE_TASK_FILES_MAX = 128
"""So few rows in so few files are read by one task. What then needs no shuffle either is done before a second stage
would have begun (ADR 8)."""

FRAMES_KEPT_MAX = 16
"""Of views, for each session: what a dashboard reads again and again."""

_FILES_GONE = ("PATH_NOT_FOUND", "FAILED_READ_FILE", "FileNotFoundException", "FILE_NOT_EXIST")
_NEVER_READ = (
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH",
    "PARQUET_TYPE_ILLEGAL",
    "PARQUET_TYPE_NOT_RECOGNIZED",
    "PARQUET_TYPE_NOT_SUPPORTED",
    "PARQUET_FIELD_REQUESTED_MORE_THAN_ONCE",
)
"""Of a file that is what was registered: no other try will read it either."""
_TOO_LARGE = "maxResultSize"


@dataclass(frozen=True, slots=True)
class Executed:
    rows: pa.Table
    read: ReadCounts


@dataclass(frozen=True, slots=True)
class _Way:
    """How a plan is run. Each way has a session of its own, so that no query has to set anything."""

    small: bool
    compiled: bool

    @classmethod
    def of(cls, plan: QueryPlan) -> "_Way":
        size, rows = sum(source.bytes for source in plan.sources), sum(source.rows for source in plan.sources)
        return cls(small=size <= SMALL_BYTES_MAX, compiled=rows > INTERPRETED_ROWS_MAX)

    def settings(self) -> Iterator[tuple[str, str]]:
        if self.small:
            yield "spark.sql.shuffle.partitions", "1"
        if not self.compiled:
            yield "spark.sql.codegen.wholeStage", "false"
            yield "spark.sql.codegen.factoryMode", "NO_CODEGEN"


class _Session:
    """A session of one thread: nobody else has it, and queries cannot change its settings.

    It keeps the frames of views that it has read. Their files are named by attempts and never change, so they need not
    be listed again: for a view of many buckets that takes longer than its rows. Files of tables belong to others.
    """

    def __init__(self, spark: SparkSession, settings: Iterable[tuple[str, str]]) -> None:
        self.spark = spark.newSession()
        for key, value in settings:
            self.spark.conf.set(key, value)
        check_required(self.spark)
        self._view_frame = lru_cache(maxsize=FRAMES_KEPT_MAX)(partial(_view_frame, self.spark))

    @contextmanager
    def reading(self, sources: Sequence[Source]) -> Iterator[None]:
        """The sources under their names, for as long as the caller stays inside."""
        try:
            for source in sources:
                self._frame(source).createOrReplaceTempView(source.name)
            yield
        finally:
            for source in sources:
                self.spark.catalog.dropTempView(source.name)

    def _frame(self, source: Source) -> DataFrame:
        if source.kind is Kind.BASE:
            return _base_frame(self.spark, source)
        assert source.definition is not None, f"view {source.of} has no definition"
        # With all of its columns, for queries of all kinds: of those that a query does not want Spark reads nothing.
        return self._view_frame(source.definition, source.table.columns, source.location, source.files)

    def forget(self) -> None:
        self._view_frame.cache_clear()


class Execution:
    """Runs plans, several at once, each on the thread that calls it."""

    def __init__(self, spark: SparkSession, liveness: Liveness) -> None:
        self._spark = spark
        self._liveness = liveness
        self._partitions = str(spark.conf.get("spark.sql.shuffle.partitions"))
        self._base_files = BaseFiles()
        self._local = threading.local()

    def run(self, plan: QueryPlan, ticket: Ticket, *, rows_max: int) -> Executed:
        """The rows of a plan. Raises EngineLost when Spark itself is gone, whatever it said on its way out."""
        with self._liveness.required():
            return self._run(plan, ticket, rows_max)

    def _run(self, plan: QueryPlan, ticket: Ticket, rows_max: int) -> Executed:
        session = self._session(_Way.of(plan))
        self._spark.sparkContext.setJobGroup(ticket.query_id, ticket.text[:200], interruptOnCancel=True)
        try:
            with session.reading(plan.sources):
                ticket.check()
                return self._collected(session.spark, plan, ticket, rows_max)
        except FilesVanished:
            session.forget()
            raise
        except (PySparkException, Py4JJavaError) as error:
            session.forget()
            ticket.check()
            self._check_files(plan, str(error))
            raise told(str(error)) from error

    def _check_files(self, plan: QueryPlan, text: str) -> None:
        """When Spark could not read a file: is it another one than was registered, or one that nobody can read?"""
        never = any(word in text for word in _NEVER_READ)
        if not never and not any(word in text for word in _FILES_GONE):
            return
        self._base_files.check(plan.sources)
        of_a_file = "FAILED_READ_FILE" in text and "FILE_NOT_EXIST" not in text
        found = None if never else self._base_files.unreadable(text, plan.sources, is_of_a_file=of_a_file)
        if found is not None:
            raise FilesUnreadable(f"Spark cannot read {found}, though it is what was registered: {complaint(text)}")

    def cancel(self, query_id: str) -> None:
        with suppress(EngineLost), self._liveness.required():  # without Spark it has ended already
            self._spark.sparkContext.cancelJobGroup(query_id)

    def _collected(self, session: SparkSession, plan: QueryPlan, ticket: Ticket, rows_max: int) -> Executed:
        frame = session.sql(plan.sql)
        names = plan.outputs or tuple(frame.columns)
        plain = sendable(frame.toDF(*(f"c{n}" for n in range(len(names)))), names)  # two outputs may have one name
        ticket.check()
        rows = to_arrow(plain, names)
        if rows.num_rows > rows_max:
            raise _too_many(rows_max)
        read = counts_of(plain)
        _check_sizes(plan, read)
        self._base_files.check(plan.sources)
        check_texts(rows)
        return Executed(rows, read)

    def _session(self, way: _Way) -> _Session:
        sessions: dict[_Way, _Session] = self._local.__dict__.setdefault("sessions", {})
        if way not in sessions:
            usual = ("spark.sql.shuffle.partitions", self._partitions)
            sessions[way] = _Session(self._spark, [usual, *way.settings()])
        return sessions[way]


def _view_frame(
    session: SparkSession,
    definition: Definition,
    columns: tuple[tuple[str, str], ...],
    location: str,
    files: tuple[SourceFile, ...],
) -> DataFrame:
    return _gathered(files_frame(session, _uris(location, files), view_schema(session, definition, columns)), files)


def _base_frame(session: SparkSession, source: Source) -> DataFrame:
    table, time_column = source.table, source.table.time_column
    wanted = tuple(dict.fromkeys((*source.columns, time_column)))
    rows = table_frame(session, _uris(source.location, source.files), dict(table.columns), wanted, table=source.of)
    if source.within is not None:
        ranges, timeless = source.within.ranges, source.within.timeless
        kind = rows.schema[time_column].dataType
        rows = within(rows, time_column, kind, ranges, timeless=timeless, time_unit=table.time_unit)
    return _gathered(rows.selectExpr(*(quoted(name) for name in source.columns or (time_column,))), source.files)


def _gathered(frame: DataFrame, files: Sequence[SourceFile]) -> DataFrame:
    few = len(files) <= ONE_TASK_FILES_MAX and sum(file.rows for file in files) <= INTERPRETED_ROWS_MAX
    return frame.coalesce(1) if few else frame


def _uris(location: str, files: Sequence[SourceFile]) -> list[str]:
    lake = Lake(location)
    return [lake.uri(file.path) for file in files]


def _check_sizes(plan: QueryPlan, read: ReadCounts) -> None:
    """Each scan must have found its source's files as large as they were planned, or they are not those files."""
    planned = {source.bytes for source in plan.sources}
    if strange := [size for size in read.scans if size not in planned]:
        raise FilesVanished(f"a scan found {strange[0]} bytes, planned were {sorted(planned)}")


def told(text: str) -> Exception:
    """What Spark complains of, as what the asker may do next."""
    if any(word in text for word in _NEVER_READ):
        return InvalidInput("file-unreadable", f"Spark cannot read a file of the table: {complaint(text)}")
    if any(word in text for word in _FILES_GONE):
        return FilesVanished(complaint(text))
    if _TOO_LARGE in text:
        return _too_many(None)
    return InvalidInput("query-failed", f"Spark cannot run the query: {complaint(text)}")


def _too_many(rows_max: int | None) -> InvalidInput:
    limit = f"more than {rows_max} rows" if rows_max is not None else "more bytes than one answer may have"
    return InvalidInput("rows-max", f"the answer has {limit}; write LIMIT, or group more coarsely")
