"""A planned query means the same to Spark as the query itself: rows, and the type of every column.

Sums of sums are wider than sums, means of decimals are rounded, sketches are merged: only Spark can tell whether it all
comes out as if no view had been there.
"""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as fn

from floodmark.core.buckets import Cause, Entry, Shard, State
from floodmark.core.intervals import Interval
from floodmark.core.segments import Segment
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader
from floodmark.parquet.lake import Lake
from floodmark.query.kinds import Decimal as DecimalKind
from floodmark.query.kinds import Real, Whole, kind_of
from floodmark.query.moments import moment_us
from floodmark.query.plan import Kind, QueryPlan, Source, Strict
from floodmark.query.planner import plan
from floodmark.query.shapes import ViewShape, expression
from floodmark.query.snapshots import TableSnapshot, ViewSnapshot
from floodmark.spark.columns import spark_schema
from floodmark.spark.liveness import Liveness
from floodmark.spark.materialization import Inputs, Materializer
from floodmark.spark.reading import RANGES_COMPILED_MAX, within
from floodmark.spark.required import REQUIRED, check_required
from floodmark.spark.session import open_session
from floodmark.sql.definition import analyze
from floodmark.sql.parsing import render
from floodmark_broker.base_files import FilesVanished
from floodmark_broker.execution import Execution
from floodmark_broker.stopping import Ticket
from tests.support.eventually import eventually
from tests.support.query_kit import snapshot_of

pytestmark = pytest.mark.timeout(900)  # a session of Spark takes minutes to start where everything else runs too

HOUR_MS = 3_600_000
HOURS = 8
SCHEMA = pa.schema(
    {
        "t": pa.timestamp("us", tz="UTC"),
        "zone": pa.string(),
        "i": pa.int32(),
        "l": pa.int64(),
        "d": pa.float64(),
        "f": pa.float32(),
        "price": pa.decimal128(12, 2),
        "rate": pa.decimal128(15, 4),
        "wide": pa.decimal128(30, 6),
    }
)
COLUMNS = tuple((field.name, str(field.type)) for field in SCHEMA)
SELECT = """
SELECT date_trunc('HOUR', t) AS hour, zone, count(*) AS c, count(i) AS ci, sum(i) AS si, sum(l) AS sl, sum(d) AS sd,
       sum(f) AS sf, sum(price) AS sp, avg(price) AS ap, avg(i) AS ai, avg(rate) AS ar, min(price) AS lo,
       max(t) AS last, sum(price * (1 - rate)) AS discounted, sum(CASE WHEN i > 3 THEN price ELSE 0.00 END) AS some,
       sum(wide) AS sw, avg(wide) AS aw, approx_count_distinct(l) AS dl,
       approx_count_distinct(zone) AS dz, approx_count_distinct(d) AS dd, approx_count_distinct(i > 3) AS di,
       approx_count_distinct(price > 300.00) AS dp, approx_count_distinct(CAST(t AS DATE)) AS dt,
       hll_sketch_agg(zone) AS hz,
       theta_sketch_agg(l) AS tl, kll_sketch_agg_double(d) AS kd, kll_sketch_agg_bigint(l) AS kl,
       sum(i) FILTER (WHERE i > 2) AS large, sum(CAST(rate AS DECIMAL(38, 18)) * -1) AS negative
FROM trips GROUP BY 1, 2
"""
QUERIES = [
    "SELECT count(*), count(i), sum(i), sum(l), sum(d), sum(f), min(price), max(t) FROM trips",
    "SELECT sum(price), avg(price), avg(i), avg(rate), sum(rate) FROM trips WHERE zone = 'nowhere'",
    "SELECT zone, sum(price) AS p, avg(price) AS a, avg(rate), sum(price) / count(*) FROM trips GROUP BY zone",
    "SELECT sum(price * (1 - rate)), sum(CASE WHEN i > 3 THEN price ELSE 0.00 END), sum(wide) FROM trips",
    "SELECT date_trunc('DAY', t) AS day, sum(i) / 2, sum(i) div 2, sum(i) % 7, avg(i) FROM trips GROUP BY 1",
    "SELECT zone, sum(CAST(rate AS DECIMAL(38, 18)) * -1) FROM trips GROUP BY zone",
    "SELECT sum(i) FILTER (WHERE i > 2) AS x, count(*) FILTER (WHERE zone = 'ä') AS y FROM trips",
    "SELECT CAST(t AS DATE) AS day, hour(t) AS h, max(t) FROM trips GROUP BY 1, 2 HAVING count(*) > 1 ORDER BY 2 DESC",
    "SELECT zone, count(zone), max(zone) FROM trips WHERE t >= '1970-01-01 01:30' GROUP BY zone ORDER BY 1 LIMIT 2",
    "SELECT avg(price) * 2 AS double, sum(price) + 1 AS more, coalesce(sum(l), 0) FROM trips GROUP BY zone",
    "SELECT approx_count_distinct(l), zone FROM trips GROUP BY zone",
    "SELECT approx_count_distinct(l) FROM trips WHERE zone = 'nowhere'",
    "SELECT approx_count_distinct(zone), approx_count_distinct(d), approx_count_distinct(i > 3) FROM trips",
    "SELECT zone, approx_count_distinct(i > 3), approx_count_distinct(CAST(t AS DATE)) FROM trips GROUP BY 1",
    "SELECT approx_count_distinct(price > 300.00), approx_count_distinct(zone) FROM trips WHERE zone <> ''",
    "SELECT hll_sketch_estimate(hll_sketch_agg(zone)) AS e FROM trips",
    "SELECT theta_sketch_estimate(theta_sketch_agg(l)) AS e FROM trips",
    "SELECT round(kll_sketch_get_quantile_double(kll_sketch_agg_double(d), 0.5D), 0) AS m FROM trips",
    "SELECT kll_sketch_get_n_bigint(kll_sketch_agg_bigint(l)) AS n FROM trips",
]
KINDS = [
    "i", "l", "d", "f", "price", "rate", "-price", "price + 1", "price - rate", "price * rate", "price * (1 - rate)",
    "price * (1 - rate) * (1 + rate)", "price / 3", "price / rate", "i / 2", "i * l", "price * 1.50", "0.05 + price",
    "wide * wide", "wide + price", "i + price", "l * price", "d + price", "f * 2", "CAST(i AS DECIMAL(5, 1))",
    "CAST(d AS BIGINT) + i", "CASE WHEN i > 3 THEN price ELSE rate END",
    "CASE WHEN i > 3 THEN price ELSE 0 END", "CASE WHEN i > 3 THEN price END", "CASE WHEN i > 1 THEN i ELSE 0 END",
    "CASE WHEN i > 1 THEN d ELSE 0 END", "CASE WHEN i > 1 THEN price ELSE l END", "CASE i WHEN 1 THEN 0.5 ELSE 10 END",
    "CAST(price AS DOUBLE)",
    "price * 100L", "CAST(i AS DECIMAL) + 1", "IF(i > 1, i, i)",
]  # fmt: skip


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    options = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false"}
    session = open_session(options, name="planned queries")
    yield session
    session.stop()


def _rows(hour: int) -> list[dict[str, Any]]:
    start = dt.datetime(1970, 1, 1, hour, tzinfo=dt.UTC)
    zones = ["a", "ä", None, "Ω", ""]
    return [
        {
            "t": start + dt.timedelta(minutes=7 * n, microseconds=n),
            "zone": zones[(n + hour) % 5],
            "i": None if n == 5 else n + hour,
            "l": (-1) ** n * 2**40 + n,
            "d": None if n == 1 else n / 3,
            "f": n / 4,
            "price": None if n == 2 else Decimal(f"{hour * 100 + n}.{n}7"),
            "rate": Decimal(f"0.{n}{hour}33"),
            "wide": Decimal(f"{10**20 + n}.123456"),
        }
        for n in range(8)
    ]


class Lakeside:
    """Files of a table and of a view, written as the worker writes them; some buckets are not to be read."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.base, self.view = Lake(str(root / "trips")), Lake(str(root / "view"))
        self.definition = TableDefinition("trips", str(root / "trips"), "t", columns=COLUMNS)
        (root / "trips").mkdir()
        self.segments = [self._segment(root / "trips", hour) for hour in range(HOURS)]
        self.table: TableSnapshot = snapshot_of(self.definition, self.segments)
        analysed = analyze(SELECT, table="trips", time_column="t", bucket_ms=HOUR_MS, columns=dict(COLUMNS))
        self.materializer = Materializer(spark, analysed, columns=dict(COLUMNS), time_column="t", bucket_ms=HOUR_MS)
        header = ViewHeader(ViewDefinition("hourly", "trips", SELECT, "h", HOUR_MS, str(root / "view")), "i", 0)
        self.views = [ViewSnapshot(header, ViewShape(analysed, dict(COLUMNS)), {0: Shard(self._entries())})]

    def _segment(self, folder: Path, hour: int) -> Segment:
        path = folder / f"h{hour}.parquet"
        rows = _rows(hour)
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
        start_ms = hour * HOUR_MS
        size = 10**9  # of a day with many rows, so that a view pays
        return Segment(path.name, hour, start_ms, start_ms + HOUR_MS - 1, path.name, len(rows), size, timeless_rows=0)

    def _entries(self) -> dict[int, Entry]:
        built = range(HOURS - 2)
        inputs = Inputs(tuple(self.base.uri(self.segments[h].path) for h in built), 8 * len(built))
        files = self.materializer.build(inputs, {h * HOUR_MS: f"a{h}" for h in built}, self.view).files
        entries = {
            start: Entry(
                State.VALID,
                ever_valid=True,
                fingerprint=self.table.fingerprint(Interval(start, start + HOUR_MS)),
                files=own,
                attempt_id="a",
                definition_hash="h",
            )
            for start, own in files.items()
        }
        return entries | {2 * HOUR_MS: entries[2 * HOUR_MS].stale(Cause("event", "e", 1))}

    def plan(self, select: str) -> QueryPlan:
        return plan(select, tables=[self.table], views=self.views, freshness=Strict(), now_ms=0)

    def run(self, made: QueryPlan) -> DataFrame:
        session = self.spark.newSession()
        for source in made.sources:
            frame = self._frame(session, source)
            frame.createOrReplaceTempView(source.name)
        assert made.outputs is not None
        return session.sql(made.sql).toDF(*made.outputs)

    def _frame(self, session: SparkSession, source: Source) -> DataFrame:
        if source.kind is Kind.VIEW:
            stored = self.materializer.frame(Inputs((self.base.uri("h0.parquet"),), 8), []).schema
            wanted = [field for field in stored if field.name in source.columns]
            paths = [self.view.uri(file.path) for file in source.files]
            return session.read.schema(type(stored)(wanted)).parquet(*paths)
        schema = spark_schema(dict(COLUMNS), source.columns, table="trips")
        frame = session.read.schema(schema).parquet(*[self.base.uri(file.path) for file in source.files])
        if source.within is None:
            return frame
        ms = fn.unix_millis("t")
        kept = fn.lit(source.within.timeless) & fn.col("t").isNull()
        for one in source.within.ranges:
            kept |= (ms >= one.start_ms) & (ms < one.end_ms)
        return frame.filter(kept)

    def expected(self, select: str) -> DataFrame:
        session = self.spark.newSession()
        frame = session.read.schema(spark_schema(dict(COLUMNS), list(dict(COLUMNS)), table="trips"))
        frame.parquet(*[self.base.uri(s.path) for s in self.segments]).createOrReplaceTempView("trips")
        return session.sql(select)


@pytest.fixture(scope="module")
def lakeside(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakeside:
    return Lakeside(spark, tmp_path_factory.mktemp("lake"))


@pytest.mark.parametrize("select", QUERIES)
@pytest.mark.scenario("Q3")
def test_a_planned_query_has_the_rows_and_the_types_of_the_query_itself(lakeside: Lakeside, select: str) -> None:
    """Q3: each aggregate, partly from the view and partly from base (INV-12)."""
    made = lakeside.plan(select)
    assert made.receipt.view == "hourly", made.receipt.unused
    assert {source.kind for source in made.sources} == {Kind.VIEW, Kind.BASE}
    found, expected = lakeside.run(made), lakeside.expected(select)
    assert [f.dataType for f in found.schema] == [f.dataType for f in expected.schema]
    assert _comparable(found) == _comparable(expected)


def _comparable(frame: DataFrame) -> list[str]:
    return sorted(repr([round(v, 9) if isinstance(v, float) else v for v in row]) for row in frame.collect())


@pytest.mark.parametrize("text", KINDS)
def test_the_kind_of_a_number_is_what_spark_says(lakeside: Lakeside, text: str) -> None:
    kind = kind_of(expression(text), dict(COLUMNS))
    found = lakeside.expected(f"SELECT {render(expression(text))} AS x FROM trips").schema["x"].dataType
    if isinstance(kind, Whole):
        assert found.typeName() in ("byte", "short", "integer", "long")
    elif isinstance(kind, Real):
        assert found.typeName() in ("float", "double")
    else:
        assert isinstance(kind, DecimalKind), f"not known; Spark says {found}"
        assert found.simpleString() == f"decimal({kind.precision},{kind.scale})"


@pytest.mark.parametrize("start", ["2024-01-31 00:00:00", "2024-02-29 23:59:59.999999", "1969-12-29 12:00:00.5"])
def test_a_moment_is_what_spark_says(spark: SparkSession, start: str) -> None:
    time, day = f"TIMESTAMP '{start}'", f"CAST('{start}' AS DATE)"
    units = ["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"]
    texts = [
        time, day, f"to_timestamp('{start}')", f"to_date('{start}')", f"CAST({day} AS TIMESTAMP)",
        *(f"{time} {sign} INTERVAL {n} {unit}" for sign in "+-" for n in (1, -13, 25) for unit in units),
        *(f"{day} {sign} INTERVAL '{n}' {unit}S" for sign in "+-" for n in (1, 13) for unit in units),
        f"INTERVAL 2 DAYS + {time}", f"{time} - INTERVAL 1 DAY 2 HOURS", f"{time} + INTERVAL 1 YEAR 1 MONTH",
        f"{time} - INTERVAL '7 days'", f"{time} - INTERVAL 1 DAY - INTERVAL 1 MONTH", f"{day} - 7", f"{day} + 40",
        *(f"date_trunc('{unit}', {what})" for unit in [*units, "QUARTER"] for what in (time, day)),
        *(f"{name}({what}, {n})" for name in ("date_add", "dateadd", "date_sub")
          for what in (time, day) for n in (3, -40)),
        *(f"{name}({unit}, {n}, {time})" for name in ("dateadd", "date_add", "timestampadd")
          for unit in [*units, "QUARTER"] for n in (-1, 14)),
        f"date_trunc('DAY', {time}) - INTERVAL 1 MONTH",
    ]  # fmt: skip
    moments = [moment_us(expression(text)) for text in texts]
    assert None not in moments, texts[moments.index(None)]
    asked = ", ".join(f"unix_micros(CAST({text} AS TIMESTAMP))" for text in texts)
    assert dict(zip(texts, spark.sql(f"SELECT {asked}").collect()[0], strict=True)) == dict(
        zip(texts, moments, strict=True)
    )


def test_a_mean_that_could_be_rounded_otherwise_is_left_to_base(lakeside: Lakeside) -> None:
    """Thirty digits leave too few behind the point to round a mean twice."""
    made = lakeside.plan("SELECT avg(wide) FROM trips")
    assert [unused.rule for unused in made.receipt.unused] == ["decimal-average"]


def test_a_file_of_a_view_that_goes_is_missed_although_the_view_was_read_before(lakeside: Lakeside) -> None:
    """What is kept of a view is where its files are, never their rows; and a failure forgets it (Q9)."""
    made = lakeside.plan("SELECT zone, sum(l) AS s FROM trips WHERE t < '1970-01-01 02:00' GROUP BY zone")
    (source,) = made.sources
    assert source.kind is Kind.VIEW
    execution = Execution(lakeside.spark, Liveness(lakeside.spark))

    def rows() -> list[str]:
        return sorted(map(repr, execution.run(made, Ticket("q", made.sql, 0), rows_max=100).rows.to_pylist()))

    first = rows()
    path = Path(source.location) / source.files[0].path
    aside = path.rename(path.with_suffix(".aside"))
    with pytest.raises(FilesVanished):
        rows()
    aside.rename(path)
    assert rows() == first


def test_a_small_query_is_one_task(lakeside: Lakeside) -> None:
    """Two files and a few rows: a shuffle, or a task for each file, would take longer than the rows."""
    made = lakeside.plan("SELECT zone, sum(l) AS s FROM trips WHERE t < '1970-01-01 02:00' GROUP BY zone ORDER BY 2")
    Execution(lakeside.spark, Liveness(lakeside.spark)).run(made, Ticket("one-task", made.sql, 0), rows_max=100)
    tracker = lakeside.spark.sparkContext.statusTracker()

    def tasks() -> list[int]:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("one-task")]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return [stage.numTasks for stage in stages if stage]

    assert eventually(tasks, what="the job known") == [1]


@pytest.mark.parametrize("count", [0, 1, 3, RANGES_COMPILED_MAX, RANGES_COMPILED_MAX + 1, 500])
@pytest.mark.parametrize("timeless", [True, False])
def test_rows_of_any_number_of_ranges_are_kept_and_no_others(spark: SparkSession, count: int, timeless: bool) -> None:
    """Few ranges are compared in the condition, many are handed over as data; before 1970 as after it."""
    ranges = [Interval(10 * n - 100, 10 * n - 95) for n in range(count)]
    times = [*range(-110, 10 * count), None]
    schema = types.StructType([types.StructField("a`t", types.LongType())])
    rows = spark.createDataFrame([(time,) for time in times], schema)
    found = within(rows, "a`t", types.LongType(), ranges, timeless=timeless).collect()
    wanted = [t for t in times if (timeless if t is None else any(r.start_ms <= t < r.end_ms for r in ranges))]
    assert [row[0] for row in found] == wanted


# -- the settings that answers depend on -------------------------------------------------------------------------------

OURS = {
    "spark.sql.session.timeZone", "spark.sql.parquet.filterPushdown", "spark.sql.variable.substitute",
    "spark.sql.legacy.parquet.nanosAsLong",
}  # fmt: skip
"""Required to be something else than what Spark would do by itself."""


def test_what_is_required_is_there_and_is_what_spark_does_by_itself_but_for_what_we_chose(spark: SparkSession) -> None:
    """A release of Spark with another default would change answers, and is noticed here."""
    check_required(spark)
    check_required(spark.newSession())
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    untouched = jvm.org.apache.spark.sql.internal.SQLConf()
    others = {key for key, value in REQUIRED.items() if untouched.getConfString(key).lower() != value.lower()}
    assert others <= OURS
    assert OURS - others <= {"spark.sql.session.timeZone"}, "that of a machine in UTC is what we want"


@pytest.mark.parametrize("text", ["${env:PATH}", "${system:user.dir}", "${spark.app.name}", "${hiveconf:x}"])
def test_a_text_that_looks_like_a_variable_is_a_text(spark: SparkSession, text: str) -> None:
    """Substituted, it would be another text, and one that shows what the broker has in its environment."""
    assert spark.newSession().sql(f"SELECT '{text}' AS t").collect()[0].t == text
