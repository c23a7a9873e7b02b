"""Queries about times: ranges that cut buckets, ranges counted from now, and times that a view keeps more coarsely."""

from datetime import UTC, datetime, timedelta

import pytest

from floodmark.core.intervals import Interval
from floodmark.query.moments import moment_us
from floodmark.query.plan import Kind, Why
from floodmark.query.shapes import expression
from tests.support.query_kit import DAY_MS, HOUR_MS, HOURLY, Bench, a_day, at, fresh, right, rows, rule_of, same_rows

EVENING_MS = 18 * HOUR_MS + HOUR_MS // 2 + 250


@pytest.fixture
def bench() -> Bench:
    return a_day()


@pytest.mark.parametrize(
    ("condition", "from_view"),
    [
        ("t >= '1970-01-01 06:30:00' AND t < '1970-01-01 10:15:00'", [7, 8, 9]),
        ("t BETWEEN '1970-01-01 07:00:00' AND '1970-01-01 09:00:00'", [7, 8]),
        ("t > '1970-01-01 07:00:00' AND '1970-01-01 10:00:00' >= t", [8, 9]),
        ("t >= TIMESTAMP '1970-01-01 06:59:59.9995' AND t < '1970-01-01 09:00:00.0005'", [7, 8]),
        ("t >= '1970-01-01 07:00:00.000001' AND t < '1970-01-01T10:00:00Z'", [8, 9]),
        ("t >= '1970-01-01 07:00:00' AND t < '1970-01-01 08:59:59.9995'", [7]),
        ("t < DATE '1970-01-01'", []),
        ("CAST(t AS DATE) = '1970-01-01' AND t < '1970-01-01 02:00'", [0, 1]),
    ],
)  # fmt: skip
@pytest.mark.scenario("Q7")
def test_the_middle_of_a_range_of_time_is_from_the_view_and_its_edges_from_base(
    bench: Bench, condition: str, from_view: list[int]
) -> None:
    """Q7."""
    select = f"SELECT count(*), sum(n) FROM trips WHERE {condition}"
    told = right(bench, select).receipt
    assert [h for run in told.from_view for h in range(run.start_ms // HOUR_MS, run.end_ms // HOUR_MS)] == from_view


def test_a_range_of_time_reads_nothing_outside_of_it(bench: Bench) -> None:
    """Pruned on both sides: view files and segments."""
    select = "SELECT count(*) FROM trips WHERE t >= '1970-01-01 06:30:00' AND t < '1970-01-01 09:00:00'"
    made = right(bench, select)
    assert [f.path for s in made.sources if s.kind is Kind.VIEW for f in s.files] == [
        f"{7 * HOUR_MS}/valid.parquet",
        f"{8 * HOUR_MS}/valid.parquet",
    ]
    assert [f.path for s in made.sources if s.kind is Kind.BASE for f in s.files] == ["s06"]
    assert [r.why for r in made.receipt.from_base] == [Why.NOT_ALIGNED]
    off = bench.plan(select, rewrite=False)
    assert [f.path for f in off.sources[0].files] == ["s06", "s07", "s08"]


@pytest.mark.parametrize(
    ("condition", "fixed", "from_view"),
    [
        ("t >= now() - INTERVAL 6 HOURS", "t >= '1970-01-01 12:30:00.25'", [13, 14, 15, 16, 17, 18, 19]),
        ("t < current_timestamp - INTERVAL 1 HOUR AND t > current_date()",
         "t < '1970-01-01 17:30:00.25' AND t > '1970-01-01'", [1, 2, 4, *range(6, 17)]),
        ("t BETWEEN current_date - 1 AND date_trunc('HOUR', now()) - INTERVAL 1 DAY + INTERVAL 8 HOURS",
         "t BETWEEN '1969-12-31' AND '1970-01-01 02:00:00'", [0, 1]),
        ("date_trunc('HOUR', t) >= CURRENT_TIMESTAMP() - INTERVAL 30 MINUTES", "t >= '1970-01-01 19:00:00'", [18, 19]),
        ("t < now() - INTERVAL 1 MONTH", "t < '1969-12-01 18:30:00.25'", []),
    ],
)  # fmt: skip
@pytest.mark.scenario("Q7")
def test_a_range_that_is_counted_from_now_is_routed_like_any_other(
    bench: Bench, condition: str, fixed: str, from_view: list[int]
) -> None:
    """Q7, at half past six in the evening: what dashboards ask."""
    made = bench.plan(f"SELECT zone, count(*) AS c FROM trips WHERE {condition} GROUP BY zone", now_ms=EVENING_MS)
    expected = bench.expected(f"SELECT zone, count(*) AS c FROM trips WHERE {fixed} GROUP BY zone")
    assert same_rows(bench.answer(made), expected, ordered=False), made.sql
    runs = made.receipt.from_view
    assert [h for run in runs for h in range(run.start_ms // HOUR_MS, run.end_ms // HOUR_MS)] == from_view


@pytest.mark.parametrize(
    "text", ["'\uff12\uff10\uff12\uff14-01-01'", "'\u00a02024-01-01'", "'2024-02-30'", "'9999-12-31' - INTERVAL 1 DAY"]
)
def test_what_spark_would_not_read_as_a_time_is_none(text: str) -> None:
    assert moment_us(expression(text)) is None


def test_the_time_of_a_query_is_the_same_wherever_it_stands(bench: Bench) -> None:
    made = bench.plan("SELECT now(), current_date AS today, count(*) FROM trips WHERE t < now()", now_ms=EVENING_MS)
    assert made.outputs == ("NOW()", "today", "COUNT(*)")
    at_evening = datetime(1970, 1, 1, 18, 30, 0, 250_000, tzinfo=UTC)
    ((now, today, _),) = bench.answer(made)
    assert (now, today) == (at_evening, at_evening.date())
    nested = bench.plan("SELECT x.n FROM (SELECT DISTINCT now() AS n FROM trips) AS x", now_ms=EVENING_MS)
    assert bench.answer(nested) == [(at_evening,)]


def test_a_column_that_is_called_like_the_clock_is_the_column() -> None:
    columns = (("t", "timestamp[us]"), ("current_date", "string"))
    made = Bench({"s": [(at(0), None, None, None)]}, columns=columns)
    assert "CAST(" not in made.plan("SELECT current_date FROM trips").sql
    assert "CAST(" in made.plan("SELECT current_date() FROM trips").sql
    given = "SELECT current_timestamp FROM (SELECT n AS current_timestamp FROM trips) AS x"
    assert "CAST(" not in Bench(rows()).plan(given).sql
    assert "CAST(" not in Bench(rows(), columns=()).plan("SELECT current_date FROM trips").sql, "it may be a column"


def test_the_name_of_a_view_is_routed_by_the_time_as_well(bench: Bench) -> None:
    made = bench.plan("SELECT sum(rides) FROM hourly WHERE hour >= now() - INTERVAL 150 MINUTES", now_ms=EVENING_MS)
    assert made.receipt.from_view == (Interval(16 * HOUR_MS, 20 * HOUR_MS),)


SEEN = "CAST(zone AS TIMESTAMP)"
"""A time that buckets are not made of: a view may keep it as coarse as it likes."""


def seen_by(unit: str) -> Bench:
    """Two rows a day for a few weeks over a turn of the year, kept by their day, week, month, ..."""
    days = [(datetime(2023, 12, 20) + timedelta(days=day)).date() for day in range(30)]  # noqa: DTZ001
    made = Bench({"s": [(at(n), f"{day} {n % 24:02}:30:00", n, 1.0) for n, day in enumerate(days * 2)]})
    made.add_view(
        "v", f"SELECT date_trunc('{unit}', {SEEN}) AS cut, count(*) AS c FROM trips GROUP BY 1", HOUR_MS, {0: "valid"}
    )
    return made


OF_A_DAY = [f"CAST({SEEN} AS DATE)", f"day({SEEN})", f"date_trunc('DAY', {SEEN})", f"dayofweek({SEEN})"]
OF_A_WEEK = f"date_trunc('WEEK', {SEEN})"
OF_A_MONTH = [f"date_trunc('MONTH', {SEEN})", f"month({SEEN})"]
OF_A_YEAR = [f"date_trunc('QUARTER', {SEEN})", f"quarter({SEEN})", f"year({SEEN})", f"EXTRACT(YEAR FROM {SEEN})"]


@pytest.mark.parametrize(
    ("unit", "told", "untold"),
    [
        ("HOUR", [f"hour({SEEN})", *OF_A_DAY, OF_A_WEEK, *OF_A_MONTH, *OF_A_YEAR], [f"minute({SEEN})"]),
        ("DAY", [*OF_A_DAY, OF_A_WEEK, *OF_A_MONTH, *OF_A_YEAR], [f"hour({SEEN})"]),
        ("WEEK", [OF_A_WEEK, f"date_part('WEEK', {SEEN})"], [*OF_A_DAY, *OF_A_MONTH, *OF_A_YEAR]),
        ("MONTH", [*OF_A_MONTH, *OF_A_YEAR], [*OF_A_DAY, OF_A_WEEK]),
        ("YEAR", [f"year({SEEN})"], [*OF_A_DAY, OF_A_WEEK, *OF_A_MONTH, f"quarter({SEEN})"]),
    ],
)  # fmt: skip
@pytest.mark.scenario("Q2")
@pytest.mark.scenario("Q4")
def test_a_time_tells_what_is_coarser_than_it_was_kept_and_nothing_finer(
    unit: str, told: list[str], untold: list[str]
) -> None:
    """Q2, Q4: a month does not tell its days, nor does a week tell its month."""
    made = seen_by(unit)
    for key in told:
        assert right(made, f"SELECT {key}, count(*) FROM trips GROUP BY 1").receipt.view == "v", key
    for key in untold:
        assert rule_of(right(made, f"SELECT {key}, count(*) FROM trips GROUP BY 1")) == "key-not-in-view", key


@pytest.fixture
def odd_columns() -> Bench:
    """Names that could be taken for something else; two segments, a hundred days apart."""
    columns = (("t", "timestamp[us]"), ("month", "string"), ("seen", "timestamp[us]"), ("f", "int64"),
               ("s", "struct<f: int64, g: int64>"), ("many", "list<item: int64>"))  # fmt: skip
    made = Bench({f"s{n}": [(at(n * 100 * DAY_MS), None, None, None)] for n in range(2)}, columns=columns)
    select = "SELECT month, date_trunc('MONTH', seen) AS cut, f AS g, s, many, count(*) AS c FROM trips GROUP BY ALL"
    made.add_view("v", select, HOUR_MS, {0: "valid"})
    return made


def test_a_unit_that_is_a_column_is_not_taken_for_the_unit_of_its_name(odd_columns: Bench) -> None:
    grouped = odd_columns.plan("SELECT date_trunc(month, seen), count(*) FROM trips GROUP BY 1")
    assert rule_of(grouped) == "key-not-in-view"
    bounded = odd_columns.plan("SELECT count(*) FROM trips WHERE date_trunc(month, t) = '1970-01-01'")
    assert len(bounded.sources[0].files) == 2, "its unit may be a year"


def test_a_field_is_not_taken_for_the_column_of_its_name(odd_columns: Bench) -> None:
    made = odd_columns.plan("SELECT s.f, f, count(*) FROM trips GROUP BY s, f HAVING s.f > 0 ORDER BY s.f")
    assert made.receipt.view == "v"
    assert made.sql.startswith("SELECT `k0`.`f` AS `o0`, `k1` AS `o1`, ")
    assert made.sql.endswith(" WHERE (`k0`.`f` > 0) ORDER BY `k0`.`f`")
    assert "`s`.`f` AS `k0`" in odd_columns.plan("SELECT s.f, count(*) FROM trips GROUP BY s.f").sql
    renamed = odd_columns.plan("SELECT struct(month AS f), count(*) FROM trips GROUP BY 1")
    assert "NAMED_STRUCT('f', `month`) AS `k0`" in renamed.sql


def test_columns_that_are_named_by_their_position_are_all_there(odd_columns: Bench) -> None:
    """Were one left out that the query does not name, the next would have its name."""
    made = odd_columns.plan("SELECT c, count(*) FROM trips AS x(a, b, c, d, e, f) GROUP BY 1")
    assert [source.columns for source in made.sources] == [("t", "month", "seen", "f", "s", "many")]


def test_a_parameter_does_not_hide_the_column_that_is_read_in_its_place(odd_columns: Bench) -> None:
    """Column f is kept as g: in `g -> g + f` it would become the parameter."""
    made = odd_columns.plan("SELECT transform(many, g -> g + f), count(*) FROM trips GROUP BY 1")
    assert made.receipt.view == "v"
    assert "TRANSFORM(`many`, `x0` -> `x0` + `g`)" in made.sql, "of the view's rows"
    assert "TRANSFORM(`many`, `x0` -> `x0` + `f`)" in made.sql, "of the table's rows"
    assert odd_columns.plan("SELECT transform(many, f -> f + 1), count(*) FROM trips GROUP BY 1").receipt.view == "v"


def test_what_try_cast_forgives_does_not_answer_for_what_cast_stops_at() -> None:
    made = fresh("SELECT TRY_CAST(zone AS DATE) AS day, count(*) AS c FROM trips GROUP BY 1")
    assert made.plan("SELECT TRY_CAST(zone AS DATE), count(*) FROM trips GROUP BY 1").receipt.view == "v"
    for strict in ("CAST(zone AS DATE)", "year(zone)"):
        assert rule_of(made.plan(f"SELECT {strict}, count(*) FROM trips GROUP BY 1")) == "key-not-in-view"


def test_rows_without_a_time_are_read_from_base_unless_time_is_asked_for() -> None:
    """They are in no bucket, so no view has them."""
    made = Bench({"s0": [(at(0), "a", 1, 1.0), (None, "a", 10, 1.0)], "s1": [(at(HOUR_MS), "a", 100, 1.0)]})
    made.add_view("v", HOURLY, HOUR_MS, {0: "valid", HOUR_MS: "valid"})
    everything = right(made, "SELECT sum(n) FROM trips")
    assert [f.path for s in everything.sources if s.kind is Kind.BASE for f in s.files] == ["s0"]
    assert [r.why for r in everything.receipt.from_base] == [Why.TIMELESS]
    timed = right(made, "SELECT sum(n) FROM trips WHERE t >= '1970-01-01'")
    assert [s.kind for s in timed.sources] == [Kind.VIEW]


def test_times_before_1970_lie_in_the_buckets_before_it() -> None:
    made = Bench({"old": [(datetime(1969, 12, 31, 23, 59, 59, 999_999), "a", 1, 1.0), (at(0), "a", 2, 1.0)]})  # noqa: DTZ001
    made.add_view("v", HOURLY, HOUR_MS, {-HOUR_MS: "valid", 0: "valid"})
    select = "SELECT sum(n) FROM trips WHERE t < '1970-01-01'"
    assert right(made, select).receipt.buckets_from_view == 1
