"""Runs a plan on Spark: its sources become frames of exactly their files, under their names, in a session of a thread.

A session of its own keeps the names of one query from another's; all of them share the one warm Spark.
"""

import re
import threading
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from floodmark.core.errors import InvalidInput
from floodmark.parquet.lake import Lake
from floodmark.query.plan import Kind, QueryPlan, Source
from floodmark.spark.output import quoted
from floodmark.spark.reading import ReadCounts, base_schema, counts_of, files_frame, view_schema, within
from floodmark.spark.session import check_required
from floodmark_broker.stopping import Ticket

SMALL_BYTES_MAX = 64 * 1024 * 1024
"""A read up to this size shuffles into one partition: a task for a few rows costs more than the rows."""

INTERPRETED_ROWS_MAX = 100_000
"""So few rows are through before the code for a query with new numbers in it would be compiled (ADR 8)."""

_FILES_GONE = ("PATH_NOT_FOUND", "FAILED_READ_FILE", "FileNotFoundException", "FILE_NOT_EXIST")
_TOO_LARGE = "maxResultSize"
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\] .*")
_SAID_MAX = 500


class FilesVanished(Exception):
    """Files of a plan are not there, or not as they were when the plan was made. Another plan may name others."""


@dataclass(frozen=True, slots=True)
class Executed:
    rows: pa.Table
    read: ReadCounts


class Execution:
    """Runs plans, several at once, each on the thread that calls it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._partitions = str(spark.conf.get("spark.sql.shuffle.partitions"))
        self._local = threading.local()

    def run(self, plan: QueryPlan, ticket: Ticket, *, rows_max: int) -> Executed:
        session = self._session()
        check_required(session)
        self._spark.sparkContext.setJobGroup(ticket.query_id, ticket.text[:200], interruptOnCancel=True)
        small = sum(source.bytes for source in plan.sources) <= SMALL_BYTES_MAX
        session.conf.set("spark.sql.shuffle.partitions", "1" if small else self._partitions)
        compiled = sum(source.rows for source in plan.sources) > INTERPRETED_ROWS_MAX
        session.conf.set("spark.sql.codegen.wholeStage", str(compiled).lower())
        session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if compiled else "NO_CODEGEN")
        try:
            for source in plan.sources:
                _frame(session, source).createOrReplaceTempView(source.name)
            ticket.check()
            return self._collected(session, plan, ticket, rows_max)
        except (PySparkException, Py4JJavaError) as error:
            ticket.check()
            raise told(str(error)) from error
        finally:
            for source in plan.sources:
                session.catalog.dropTempView(source.name)

    def cancel(self, query_id: str) -> None:
        self._spark.sparkContext.cancelJobGroup(query_id)

    def _collected(self, session: SparkSession, plan: QueryPlan, ticket: Ticket, rows_max: int) -> Executed:
        frame = session.sql(plan.sql)
        names = plan.outputs or tuple(frame.columns)
        plain = frame.toDF(*(f"c{n}" for n in range(len(names))))  # two outputs may have one name
        ticket.check()
        rows = plain.toArrow()
        if rows.num_rows > rows_max:
            raise _too_many(rows_max)
        read = counts_of(plain)
        _check_sizes(plan, read)
        return Executed(rows.rename_columns(list(names)), read)

    def _session(self) -> SparkSession:
        if not hasattr(self._local, "session"):
            self._local.session = self._spark.newSession()
        session: SparkSession = self._local.session
        return session


def _frame(session: SparkSession, source: Source) -> DataFrame:
    lake = Lake(source.location)
    uris = [lake.uri(file.path) for file in source.files]
    columns = dict(source.table.columns)
    if source.kind is Kind.VIEW:
        assert source.definition is not None, f"view {source.of} has no definition"
        return files_frame(session, uris, view_schema(session, source.definition, columns, source.columns))
    time_column = source.table.time_column
    wanted = tuple(dict.fromkeys((*source.columns, time_column)))
    rows = files_frame(session, uris, base_schema(columns, wanted, table=source.of))
    if source.within is not None:
        rows = within(rows, time_column, source.within.ranges, timeless=source.within.timeless)
    return rows.select(*(quoted(name) for name in source.columns or (time_column,)))


def _check_sizes(plan: QueryPlan, read: ReadCounts) -> None:
    """Each scan must have found its source's files as large as they were planned, or they are not those files."""
    planned = {source.bytes for source in plan.sources}
    if strange := [size for size in read.scans if size not in planned]:
        raise FilesVanished(f"a scan found {strange[0]} bytes, planned were {sorted(planned)}")


def told(text: str) -> Exception:
    """What Spark complains of, as what the asker may do next. What fails in a task comes with the whole stack."""
    condition = _CONDITION.search(text)
    said = condition[0] if condition else text.strip().partition("\n")[0]
    if any(word in text for word in _FILES_GONE):
        return FilesVanished(said[:_SAID_MAX])
    if _TOO_LARGE in text:
        return _too_many(None)
    return InvalidInput("query-failed", f"Spark cannot run the query: {said[:_SAID_MAX]}")


def _too_many(rows_max: int | None) -> InvalidInput:
    limit = f"more than {rows_max} rows" if rows_max is not None else "more bytes than one answer may have"
    return InvalidInput("rows-max", f"the answer has {limit}; write LIMIT, or group more coarsely")
