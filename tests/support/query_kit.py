"""A table, views over it and queries, all small: planned as the broker plans them, run by DuckDB instead of Spark.

A bucket that must not be read holds rows that are wrong on purpose: whoever reads it gives a wrong answer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from floodmark.core.buckets import Cause, DataFile, Entry, Shard, State
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.segments import Segment, Slice
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader
from floodmark.query.plan import Kind, QueryPlan, Source, Strict
from floodmark.query.planner import plan
from floodmark.query.shapes import ViewShape
from floodmark.query.snapshots import TableSnapshot, ViewSnapshot
from floodmark.sql.definition import analyze
from floodmark.sql.model import Aggregate, Definition, Stored
from floodmark.sql.parsing import parse_query

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
COLUMNS = (
    ("t", "timestamp[us]"),
    ("zone", "string"),
    ("n", "int64"),
    ("fare", "double"),
    ("price", "decimal128(12, 2)"),
)
SCHEMA = pa.schema([("t", pa.timestamp("us")), ("zone", pa.string()), ("n", pa.int64()), ("fare", pa.float64())])
HOURLY = (
    "SELECT date_trunc('HOUR', t) AS hour, zone, count(*) AS rides, count(n) AS ns, sum(n) AS total, avg(fare) AS mean,"
    " max(fare) AS most, sum(n) FILTER (WHERE n > 2) AS large FROM trips GROUP BY hour, zone"
)
Row = tuple[datetime | None, str | None, int | None, float | None]

_CALLS = {
    Aggregate.SUM: "sum({0})",
    Aggregate.SUM_FOR_AVG: "sum(CAST({0} AS DOUBLE))",
    Aggregate.COUNT: "count({0})",
    Aggregate.COUNT_ROWS: "count(*)",
    Aggregate.MIN: "min({0})",
    Aggregate.MAX: "max({0})",
}


def at(ms: float) -> datetime:
    return datetime(1970, 1, 1) + timedelta(milliseconds=ms)  # noqa: DTZ001 - times without a zone, as the column has them


def ms_of(time: datetime) -> int:
    return (time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@dataclass
class Bench:
    """Rows in segments, and the buckets of views over them."""

    segments: dict[str, list[Row]]
    views: list[ViewSnapshot] = field(default_factory=list, repr=False)
    files: dict[tuple[str, str], list[Row]] = field(default_factory=dict, repr=False)
    """What each file of each view was built from."""
    columns: tuple[tuple[str, str], ...] = field(default=COLUMNS[:4], repr=False)
    names: Mapping[str, str] = field(default_factory=dict)
    """What the table and its columns are called, as far as it is not by the names that are used here."""

    def __post_init__(self) -> None:
        columns = tuple((self.called(name), kind) for name, kind in self.columns)
        table = self.called("trips")
        self.definition = TableDefinition(table, f"/lake/{table}", self.called("t"), columns=columns)
        self.table = snapshot_of(self.definition, [_segment(name, rows) for name, rows in self.segments.items()])
        self.duck = duckdb.connect()
        self.duck.execute("SET lambda_syntax = 'ENABLE_SINGLE_ARROW'; SET order_by_non_integer_literal = true")

    def called(self, name: str) -> str:
        return self.names.get(name, name)

    def rows(self) -> list[Row]:
        return [row for rows in self.segments.values() for row in rows]

    def analyzed(self, select: str, bucket_ms: int) -> Definition:
        table = self.definition
        columns = dict(table.columns)
        return analyze(select, table=table.name, time_column=table.time_column, bucket_ms=bucket_ms, columns=columns)

    def add_view(self, name: str, select: str, bucket_ms: int, states: Mapping[int, str]) -> ViewSnapshot:
        """`states` says of each bucket: valid, stale, changed. Any other is vacant."""
        definition = self.analyzed(select, bucket_ms)
        header = ViewHeader(
            ViewDefinition(name, self.definition.name, select, f"hash of {name}", bucket_ms, f"/lake/{name}"),
            "incarnation",
            0,
        )
        entries = {start: self._entry(header, start, state) for start, state in states.items()}
        shards = {
            number: Shard({s: entries[s] for s in starts})
            for number, starts in header.definition.grid.by_shard(sorted(entries)).items()
        }
        view = ViewSnapshot(header, ViewShape(definition, dict(self.definition.columns)), shards)
        self.views.append(view)
        return view

    def _entry(self, header: ViewHeader, start_ms: int, state: str) -> Entry:
        window = Interval(start_ms, start_ms + header.definition.bucket_ms)
        rows = [r for r in self.rows() if r[0] is not None and window.start_ms <= ms_of(r[0]) < window.end_ms]
        built_from = rows if state == "valid" else [*rows, *rows, (at(start_ms), "wrong", 1, 1.0)]
        file = DataFile(f"{start_ms}/{state}.parquet", len(built_from), 0)
        self.files[header.definition.name, file.name] = built_from
        source = self.table.fingerprint(window)
        made = Entry(
            State.VALID,
            ever_valid=True,
            fingerprint=source if state != "changed" else Fingerprint(1, 42),
            slice_versions=self._versions(window) if state != "changed" else {},
            files=(file,) if built_from else (),
            attempt_id="a",
            definition_hash=header.definition.hash,
        )
        return made.stale(Cause("event", "e", 1, segments=("late",))) if state == "stale" else made

    def _versions(self, window: Interval) -> dict[str, int]:
        keys = self.definition.grid.keys_for_window(window)
        return {key: self.table.slice_versions[key] for key in keys if key in self.table.slice_versions}

    def _stored(self, definition: Definition, files: Sequence[Sequence[Row]]) -> pa.Table:
        """What a worker would have written for the rows of these files, each by itself."""
        rows = [row for file in files for row in file]
        numbers = pa.array([n for n, file in enumerate(files) for _ in file], pa.int64())
        self.duck.register("trips", self._arrow(rows).append_column("__file", numbers))
        keys = [f"{key.expression} AS {_quoted(key.name)}" for key in definition.keys]
        measures = [_measure(stored) for stored in definition.stored]
        where = f" WHERE {definition.where}" if definition.where else ""
        group = " GROUP BY ALL" if not definition.is_projection else ""
        return self._run(f"SELECT __file, {', '.join([*keys, *measures])} FROM trips{where}{group}").to_arrow_table()

    # -- answers ---------------------------------------------------------------------------------------------------

    def plan(self, select: str, *, now_ms: int = 0, rewrite: bool = True) -> QueryPlan:
        return plan(select, tables=[self.table], views=self.views, freshness=Strict(), now_ms=now_ms, rewrite=rewrite)

    def expected(self, select: str) -> list[tuple[Any, ...]]:
        self.duck.register("trips", _arrow(self.rows()))
        return self.run(select)

    def run(self, spark_sql: str) -> list[tuple[Any, ...]]:
        """Over what DuckDB has been told of."""
        return [tuple(row) for row in self._run(spark_sql).fetchall()]

    def answer(self, made: QueryPlan) -> list[tuple[Any, ...]]:
        """From its sources and from nothing else that was read before."""
        for source in made.sources:
            self.duck.register(source.name, self._read(source))
        try:
            return self.run(made.sql)
        finally:
            for source in made.sources:
                self.duck.unregister(source.name)

    def _read(self, source: Source) -> pa.Table:
        if source.kind is Kind.VIEW:
            assert source.definition is not None
            files = [self.files[source.of, file.path] for file in source.files]
            return self._stored(source.definition, files).select(list(source.columns))
        rows = [row for file in source.files for row in self.segments[file.path]]
        if source.within is not None:
            rows = [row for row in rows if _kept(row, source.within.ranges, timeless=source.within.timeless)]
        return self._arrow(rows).select(list(source.columns))

    def _arrow(self, rows: Sequence[Row]) -> pa.Table:
        return _arrow(rows).rename_columns([self.called(name) for name in SCHEMA.names])

    def create_view(self, name: str, select: str) -> None:
        """In DuckDB alone: what this name stands for, to whoever asks by it."""
        self._run(select).create_view(name)

    def _run(self, spark_sql: str) -> duckdb.DuckDBPyRelation:
        return self.duck.sql(_for_duck(parse_query(spark_sql)).sql("duckdb"))


_DUCK_CALLS = {"ARRAY": "LIST_VALUE", "TRANSFORM": "LIST_TRANSFORM", "ARRAY_MAX": "LIST_MAX", "FILTER": "LIST_FILTER"}


def _for_duck(tree: exp.Query) -> exp.Query:
    """With DuckDB's names for functions of arrays, and without the suffix of a number, which it does not know."""
    for number in tree.find_all(exp.Literal):
        if not number.is_string:
            number.set("this", number.name.removesuffix("L"))
    for call in tree.find_all(exp.Anonymous):
        call.set("this", _DUCK_CALLS.get(call.name, call.name))
    return tree


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _kept(row: Row, ranges: Iterable[Interval], *, timeless: bool) -> bool:
    if row[0] is None:
        return timeless
    ms = ms_of(row[0])
    return any(one.start_ms <= ms < one.end_ms for one in ranges)


def _arrow(rows: Sequence[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA]
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _measure(stored: Stored) -> str:
    condition = f" FILTER (WHERE {stored.condition})" if stored.condition else ""
    return f"{_CALLS[stored.aggregate].format(stored.argument)}{condition} AS {_quoted(stored.name)}"


def _segment(name: str, rows: Sequence[Row]) -> Segment:
    times = [ms_of(row[0]) for row in rows if row[0] is not None]
    missing = len(rows) - len(times)
    return Segment(name, 7, min(times), max(times), name, len(rows), 1_000, timeless_rows=missing)


def snapshot_of(definition: TableDefinition, segments: Iterable[Segment], *, version: int = 1) -> TableSnapshot:
    listed = list(segments)
    slices: dict[str, dict[str, Segment]] = {}
    for segment in listed:
        for key in definition.grid.keys_for_segment(segment):
            slices.setdefault(key, {})[segment.name] = segment
    timed = [s.interval for s in listed if s.interval is not None]
    extent = Interval(min(i.start_ms for i in timed), max(i.end_ms for i in timed)) if timed else None
    return TableSnapshot(
        definition,
        version,
        {k: Slice.of(v.values()) for k, v in slices.items()},
        dict.fromkeys(slices, 1),
        1_000,
        extent,
    )


def same_rows(one: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]], *, ordered: bool) -> bool:
    """Equal up to the order in which real numbers were added."""
    if len(one) != len(other):
        return False
    left, right = (list(rows) if ordered else sorted(rows, key=_by_text) for rows in (one, other))
    return all(_same_row(a, b) for a, b in zip(left, right, strict=True))


def _by_text(row: Sequence[Any]) -> list[str]:
    """With one zero: of a group that has both, each may be shown."""
    texts = (f"{value + 0.0:.6e}" if isinstance(value, float) else value for value in row)
    return [repr(_by_text(text) if isinstance(text, list) else text) for text in texts]


def _same_row(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None or isinstance(one, str | datetime):
        return bool(one == other)
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    return bool(one == other)


# -- what most tests of queries begin with ----------------------------------------------------------------------------


def rows(hours: int = 24) -> dict[str, list[Row]]:
    """A segment for each hour: two zones, one of them without a name."""
    return {
        f"s{hour:02}": [
            (at(hour * HOUR_MS), "a", hour, hour / 2),
            (at(hour * HOUR_MS + 1_800_000), None, 1, None),
            (at((hour + 1) * HOUR_MS - 0.001), "b", None, 1.5),
        ]
        for hour in range(hours)
    }


def a_day() -> Bench:
    """A day; hour 3 is stale, hour 5 changed since, the last four are vacant."""
    made = Bench(rows())
    states = {hour * HOUR_MS: "valid" for hour in range(20)}
    made.add_view("hourly", HOURLY, HOUR_MS, states | {3 * HOUR_MS: "stale", 5 * HOUR_MS: "changed"})
    return made


def fresh(select: str, *, hours: int = 24, bucket_ms: int = HOUR_MS) -> Bench:
    """A day of which every bucket is valid."""
    made = Bench(rows(hours))
    made.add_view("v", select, bucket_ms, dict.fromkeys(range(0, hours * HOUR_MS, bucket_ms), "valid"))
    return made


def rule_of(made: QueryPlan, view: str = "v") -> str:
    assert made.receipt.view != view
    return next(unused.rule for unused in made.receipt.unused if unused.view == view)


def right(bench: Bench, select: str) -> QueryPlan:
    """The plan, if its answer is the base table's."""
    made = bench.plan(select)
    found, expected = bench.answer(made), bench.expected(select)
    assert same_rows(found, expected, ordered="ORDER BY" in select), f"{made.sql}\n{found}\n{expected}"
    return made
