"""Files of real writers, through Spark alone and through the whole system: answered right, or refused by a rule."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

import floodmark
from floodmark.client import QueryFailed
from floodmark.core.column_types import TIME_UNITS, UNDECLARED
from floodmark.core.errors import InvalidInput
from floodmark.parquet.inspection import inspect
from floodmark.parquet.lake import Lake
from floodmark.spark.files import table_frame
from floodmark.spark.materialization import time_ms
from floodmark.spark.output import quoted
from floodmark.spark.session import open_session
from tests.support.broker import BrokerUnderTest
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.service_process import new_table
from tests.support.zoo import (
    DAY_US,
    MODERN,
    Specimen,
    by_spark,
    columns,
    in_unit,
    not_as_declared,
    timestamps,
    without_spark,
    written_otherwise,
)

pytestmark = pytest.mark.timeout(900)  # a session of Spark takes minutes to start where everything else runs too


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = open_session(
        {
            "spark.master": "local[1]",
            "spark.driver.memory": "768m",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
        name="zoo",
    )
    yield session
    session.stop()


def as_spark_reads(
    spark: SparkSession, specimen: Specimen, lake: Lake, columns: Sequence[tuple[str, str]]
) -> list[tuple[Any, ...]]:
    """Each row: its time in milliseconds as buckets are made of it, and as a number; then `n` and `k`."""
    frame = table_frame(spark, [lake.uri("a.parquet")], dict(columns), [name for name, _ in columns], table="zoo")
    unit = TIME_UNITS[specimen.unit] if specimen.unit else UNDECLARED
    time, kind = quoted(specimen.time_column), frame.schema[specimen.time_column].dataType
    ms = fn.expr(time_ms(specimen.time_column, kind, unit))
    number = f"unix_micros(CAST({time} AS TIMESTAMP_LTZ))" if specimen.unit is None else time
    others = [fn.col(quoted(name)).cast("string") for name, _ in columns if name not in ("n", "k")]
    rows = frame.select(ms, fn.expr(number), fn.col("n").cast("bigint"), fn.col("k").cast("string"), *others).collect()
    return [tuple(row)[:4] for row in rows]


@pytest.mark.scenario("I7")
def test_every_file_is_registered_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    """Range, rows and rows without a time; and Spark reads every column of what was registered."""
    wrong: dict[str, str] = {}
    for number, specimen in enumerate([*without_spark(), *by_spark(spark)]):
        directory = tmp_path / str(number)
        directory.mkdir()
        try:
            _check(spark, specimen, directory)
        except Exception as error:
            wrong[specimen.name] = str(error)[:500]
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


def _check(spark: SparkSession, specimen: Specimen, directory: Path) -> None:
    specimen.write(directory / "a.parquet")
    lake = Lake(str(directory))
    unit = TIME_UNITS[specimen.unit] if specimen.unit else UNDECLARED

    def looked_into() -> Any:
        return inspect(lake, "a.parquet", time_column=specimen.time_column, columns=(), time_unit=unit)

    if specimen.rule is not None:
        with pytest.raises(InvalidInput, match=rf"^{re.escape(specimen.rule)}: "):
            looked_into()
        return
    found = looked_into()
    rows = as_spark_reads(spark, specimen, lake, found.columns)
    times_ms = [ms for ms, *_ in rows if ms is not None]
    assert (found.start_ms, found.last_ms) == (min(times_ms), max(times_ms)) == specimen.range_ms
    assert (found.rows, found.timeless_rows) == (len(rows), len(rows) - len(times_ms))
    numbers = in_unit(specimen.times, specimen.unit or "us")
    assert sorted((n, t, k) for _, t, n, k in rows) == [(n, t, "ab"[n % 2]) for n, t in enumerate(numbers)]


# -- the whole system --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Herd:
    """Files of one table: whose names match, and what the table is created with."""

    pattern: str
    columns: str = ""
    bucket_ms: int = 12 * HOUR_MS
    kind: str = "TIMESTAMP"
    """Of its times: TIMESTAMP, DATE or BIGINT."""
    misfits: tuple[Specimen, ...] = ()
    """Files that lie among the others and do not fit the table."""


DECLARED = "(t {}, n BIGINT, k STRING)"
HERDS = {
    "naive": Herd(
        r"arrow-(zstd|snappy|gzip|none)-.*|arrow-in-.*|arrow-(s|ms|us)-None|arrow-no-.*|arrow-version-1|arrow-beside-.*|the-time-after.*"
        r"|arrow-int96-small-groups|group-of-zero-rows|pandas-(us|int96)|duckdb-TIMESTAMP(_MS)?-2024|spark-ntz|otherwise-.*",
        DECLARED.format("TIMESTAMP_NTZ"),
        misfits=tuple(not_as_declared()),
    ),
    "instants": Herd(
        r"arrow-(s|ms|us)-(UTC|Europe/Berlin)|duckdb-TIMESTAMPTZ-2024|spark-(legacy-)?[A-Z0-9_]+-modern",
        DECLARED.format("TIMESTAMP"),
    ),
    "pandas": Herd(r"pandas-modern-None|arrow-ns-None|pandas-(time-)?index|duckdb-TIMESTAMP_NS-2024"),
    "pandas_zoned": Herd(r"pandas-modern-(UTC|Asia.*)|arrow-ns-(UTC|Europe.*)"),
    "nanos_1970": Herd(r"pandas-1970-None|arrow-ns-1970-None-.*"),
    "nanos_1970_zoned": Herd(r"pandas-1970-(UTC|Asia.*)|arrow-ns-1970-UTC-.*"),
    "int96_1970": Herd(r"arrow-int96-1970-.*"),
    "year_1": Herd(r"arrow-int96-(zoned-)?1|spark-[A-Z0-9_]+-1", bucket_ms=HOUR_MS),
    "year_9999": Herd(r"arrow-int96-(zoned-)?(2262|9999)|spark-[A-Z0-9_]+-9999"),
    # Buckets that begin before the year 1, and one that ends after 9999; those up to today's file are all built.
    "year_1_by_5_hours": Herd(r"spark-INT96-(1|modern)", bucket_ms=5 * HOUR_MS),
    "year_1_by_weeks": Herd(r"arrow-int96-(zoned-)?1|spark-INT96-(1|modern)", bucket_ms=7 * 24 * HOUR_MS),
    "year_1_by_years": Herd(r"spark-INT96-(1|modern)", bucket_ms=366 * 24 * HOUR_MS),
    "year_9999_by_years": Herd(r"spark-INT96-(9999|modern)", bucket_ms=366 * 24 * HOUR_MS),
    "year_1677": Herd(r"arrow-int96-(zoned-)?1677", bucket_ms=24 * HOUR_MS),
    "naive_years": Herd(r"arrow-us-(1|1677|2262|9999)|arrow-ms-9999|duckdb-TIMESTAMP-(1|9999)", bucket_ms=HOUR_MS),
    "dates": Herd(r"arrow-date(-1|-9999)?|spark-(legacy-)?date|duckdb-DATE-.*", kind="DATE", bucket_ms=24 * HOUR_MS),
    "seconds": Herd(r"arrow-int64-s", kind="BIGINT", bucket_ms=24 * HOUR_MS),
    "milliseconds": Herd(r"arrow-int64-ms", kind="BIGINT"),
    "microseconds": Herd(r"arrow-(int64-us|duration)", kind="BIGINT"),
    "nanoseconds": Herd(r"arrow-int64-ns", kind="BIGINT"),
    "micros_1970": Herd(r"arrow-int64-us-1970", kind="BIGINT"),
    "nanos_as_numbers_1970": Herd(r"arrow-int64-ns-1970", kind="BIGINT"),
    "odd_name": Herd(r"time-named-время"),
    "dotted_name": Herd(r"time-named-t[.]x"),
    "name_of_words": Herd(r"time-named-the time"),
    "name_in_capitals": Herd(r"time-named-Z"),
    "quoted_name": Herd(r"time-named-a`b"),
}


@dataclass
class Keeper:
    """One herd as a table and a view, asked through the broker."""

    herd: Herd
    specimens: Sequence[Specimen]
    broker: BrokerUnderTest
    name: str

    def __post_init__(self) -> None:
        assert self.specimens, f"no file is like {self.herd.pattern}"
        self.location = self.broker.system.lake / self.name
        self.location.mkdir(parents=True)
        self.time = quoted(self.specimens[0].time_column)
        self.unit_ns = TIME_UNITS[self.specimens[0].unit or "us"].ns
        self.select = f"SELECT k, count(*) AS c, sum(n) AS s, min({self.time}) AS lo, max({self.time}) AS hi"

    def define(self) -> None:
        for number, specimen in enumerate(self.specimens):
            specimen.write(self.location / f"{number:03}.parquet")
        for misfit in self.herd.misfits:
            misfit.write(self.location / f"{misfit.name}.parquet")
        properties = {"time_column": self.specimens[0].time_column, **self.specimens[0].properties}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.broker.sql(
            f"CREATE TABLE {self.name} {self.herd.columns} USING parquet LOCATION '{self.location}' "
            f"TBLPROPERTIES ({listed})"
        )
        self.broker.sql(
            f"CREATE MATERIALIZED VIEW {self.name}_v TBLPROPERTIES ('bucket' = '{self.herd.bucket_ms // HOUR_MS}h') "
            f"AS {self.select} FROM {self.name} GROUP BY k"
        )

    # -- what is right ---------------------------------------------------------------------------------------------

    def value(self, time_ns: int) -> int:
        """A time as the answer has it, as a number."""
        return time_ns // (DAY_US * 1_000 if self.herd.kind == "DATE" else self.unit_ns)

    def literal(self, time_ns: int) -> str:
        if self.herd.kind == "BIGINT":
            return str(self.value(time_ns))
        moment = datetime(1970, 1, 1) + timedelta(microseconds=time_ns // 1_000)  # noqa: DTZ001 - rendered as it is
        text = f"{moment.year:04}-{moment:%m-%d}"
        return f"DATE '{text}'" if self.herd.kind == "DATE" else f"TIMESTAMP '{text} {moment:%H:%M:%S.%f}'"

    def wanted(self, keep: Callable[[int | None], bool]) -> list[tuple[Any, ...]]:
        groups: dict[str, list[tuple[int, int | None]]] = {}
        for specimen in self.specimens:
            for n, moment in enumerate(specimen.times):
                value = None if moment is None else self.value(moment)
                if keep(value):
                    groups.setdefault("ab"[n % 2], []).append((n, value))
        return sorted(
            (key, len(rows), sum(n for n, _ in rows), *_extremes([value for _, value in rows if value is not None]))
            for key, rows in groups.items()
        )

    @property
    def known(self) -> list[int]:
        return sorted({time for s in self.specimens for time in s.times if time is not None})

    # -- what is answered ------------------------------------------------------------------------------------------

    def await_built(self) -> None:
        registry = self.broker.system.ledger.registry
        eventually(
            lambda: len(registry.snapshot(self.name).by_name) == len(self.specimens),
            within_s=120,
            what=f"the files of {self.name} registered",
        )
        misfits = {f"{misfit.name}.parquet": misfit.rule for misfit in self.herd.misfits}
        eventually(lambda: self.refused() == misfits, within_s=120, what=f"the misfits of {self.name} refused")
        # What is yet to come is not built.
        past_ms = [moment // 1_000_000 for moment in self.known if moment < time.time_ns()]
        if past_ms:
            up_to_ms = (past_ms[-1] + 1) // self.herd.bucket_ms * self.herd.bucket_ms
            self.broker.system.await_built(f"{self.name}_v", up_to_ms=up_to_ms)

    def refused(self) -> dict[str, str]:
        return {file: rule for file, rule, *_ in self.broker.sql(f"SHOW REFUSED FILES {self.name}").rows()}

    def check(self) -> None:
        middle, last = self.known[len(self.known) // 2], self.known[-1]
        self._check("", lambda _: True)
        self._check(f"WHERE {self.time} >= {self.literal(last)}", lambda v: v is not None and v >= self.value(last))
        self._check(f"WHERE {self.time} < {self.literal(middle)}", lambda v: v is not None and v < self.value(middle))

    def _check(self, where: str, keep: Callable[[int | None], bool]) -> None:
        text, wanted = f"{self.select} FROM {self.name} {where} GROUP BY k", self.wanted(keep)
        for rewrite in ("on", "off"):
            connection = floodmark.connect(self.broker.url)
            connection.sql(f"SET floodmark.rewrite = {rewrite}")
            answer = connection.sql(text).table
            columns = [column if n == 0 else _numbers(column) for n, column in enumerate(answer.columns)]
            found = sorted(zip(*(column.to_pylist() for column in columns), strict=True))
            assert found == wanted, f"{self.name}, rewrite {rewrite}, {where}: {found} are answered, right is {wanted}"


def _extremes(values: Sequence[int]) -> tuple[int | None, int | None]:
    return (min(values), max(values)) if values else (None, None)


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date(column.type) else column


@pytest.mark.scenario("I7")
def test_every_file_that_can_be_registered_is_in_a_herd() -> None:
    """None is left out of the whole system's test. Only what is written needs Spark, and nothing is."""
    zoo = [s.name for s in (*without_spark(), *by_spark(None), *written_otherwise()) if s.rule is None]
    assert [name for name in zoo if not any(re.fullmatch(herd.pattern, name) for herd in HERDS.values())] == []


@pytest.mark.stack
@pytest.mark.scenario("I7")
def test_the_zoo_is_answered_right_from_base_and_from_views(spark: SparkSession, broker: BrokerUnderTest) -> None:
    """Whatever can be registered: all rows, and those on each side of its first, a middle and its last time."""
    zoo = [s for s in (*without_spark(), *by_spark(spark), *written_otherwise()) if s.rule is None]
    made = new_table()
    keepers = [
        Keeper(herd, [s for s in zoo if re.fullmatch(herd.pattern, s.name)], broker, f"{made}_{name}")
        for name, herd in HERDS.items()
    ]
    for keeper in keepers:
        keeper.define()
    for keeper in keepers:
        keeper.await_built()
        keeper.check()


@pytest.mark.stack
@pytest.mark.scenario("I7")
def test_what_cannot_be_read_is_refused_by_its_rule_when_a_table_is_made_of_it(
    spark: SparkSession, broker: BrokerUnderTest
) -> None:
    """Through the broker, which says which rule and which file. What only some rows show is refused by the ingester."""
    for specimen in (*without_spark(), *by_spark(spark)):
        if specimen.rule in (None, "time-all-null", "time-range", "time-calendar"):
            continue
        name = new_table()
        location = broker.system.lake / name
        location.mkdir(parents=True)
        specimen.write(location / "a.parquet")
        with pytest.raises(QueryFailed) as refusal:
            broker.sql(f"CREATE TABLE {name} USING parquet LOCATION '{location}' TBLPROPERTIES ('time_column' = 't')")
        assert (refusal.value.status, refusal.value.rule) == (400, specimen.rule)


@pytest.mark.stack
def test_a_page_that_nobody_can_read_is_told_with_its_file_and_not_as_unavailable(broker: BrokerUnderTest) -> None:
    """The ingester reads the times only. Asking again would change nothing, so 503 would send its users in circles."""
    name = new_table()
    location = broker.system.lake / name
    location.mkdir(parents=True)
    damaged = columns(MODERN, timestamps(MODERN, "us"))
    unfinished = location / ".damaged"
    pq.write_table(damaged, unfinished, compression="zstd", use_dictionary=False)
    chunk = pq.ParquetFile(unfinished).metadata.row_group(0).column(1)
    content = bytearray(unfinished.read_bytes())
    end = chunk.data_page_offset + chunk.total_compressed_size
    content[end - 12 : end] = bytes(12)
    unfinished.write_bytes(content)
    unfinished.rename(location / "damaged.parquet")
    broker.sql(f"CREATE TABLE {name} USING parquet LOCATION '{location}' TBLPROPERTIES ('time_column' = 't')")
    registry = broker.system.ledger.registry
    eventually(lambda: len(registry.snapshot(name).by_name) == 1, within_s=120, what="the damaged file registered")
    with pytest.raises(QueryFailed) as failed:
        broker.sql(f"SELECT sum(n) AS s FROM {name}")
    assert (failed.value.status, failed.value.rule) == (400, "file-unreadable")
    assert "damaged.parquet" in failed.value.reason
    assert broker.rows(f"SELECT count(*) AS c FROM {name} WHERE t IS NULL") == [(1,)]
