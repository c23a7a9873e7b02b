"""Whatever is asked and whatever state buckets are in: the planned answer is the base table's answer (INV-12)."""

import random
from datetime import datetime
from itertools import chain

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from tests.support.query_kit import DAY_MS, HOUR_MS, Bench, Row, at, same_rows
from tests.support.sql_dice import random_case, wrong_answers

DAYS = 3
BUCKETS = range(0, DAYS * DAY_MS, HOUR_MS)
HOURLY = (
    "SELECT date_trunc('HOUR', t) AS hour, zone, count(*) AS rides, count(n) AS ns, sum(n) AS total, avg(fare) AS mean,"
    " min(fare) AS lo, max(n) AS hi, sum(n) FILTER (WHERE n > 0) AS gains FROM trips {where} GROUP BY hour, zone"
)
DAILY = "SELECT CAST(t AS DATE) AS day, upper(zone) AS big, sum(n) AS total, count(*) AS c FROM trips GROUP BY 1, 2"
ROWS = "SELECT t, zone, n AS number FROM trips {where}"
SEEN = "TRY_CAST(zone AS TIMESTAMP)"
"""A time that buckets are not made of, so that a view may keep it in any unit."""
UNITS = ["MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"]
CUT = f"SELECT date_trunc('{{unit}}', {SEEN}) AS cut, sum(n) AS total, count(*) AS c FROM trips GROUP BY 1"

dates = [
    "2023-12-31 23:59:59",
    "2024-01-01 00:00:00",
    "2024-01-01 07:30:00",
    "2024-01-31 07:30:00",
    "2024-02-01 12:00:01",
]
zones = st.sampled_from([None, "", "a", "ä", "Ω", "A", "z'z", *dates])
numbers = st.one_of(st.none(), st.integers(-3, 3), st.integers(-(2**40), 2**40))
fares = st.one_of(st.none(), st.integers(-50, 50).map(lambda v: v / 4))
times = st.one_of(
    st.integers(0, DAYS * 24 - 1).map(lambda hour: at(hour * HOUR_MS)),
    st.integers(0, DAYS * DAY_MS * 2 - 1).map(lambda half: at(half / 2)),
    st.integers(1, DAYS * 24 - 1).map(lambda hour: at(hour * HOUR_MS - 1)),
)
rows_strategy = st.tuples(st.one_of(times, times, times, st.none()), zones, numbers, fares)
states = st.sampled_from(["valid", "valid", "valid", "stale", "changed", "vacant"])
KEYS = [
    "zone", "upper(zone)", "date_trunc('HOUR', t)", "date_trunc('DAY', t)", "date_trunc('WEEK', t)",
    "date_trunc('MONTH', t)", "CAST(t AS DATE)", "hour(t)", "day(t)", "month(t)", "EXTRACT(HOUR FROM t)",
]  # fmt: skip
KEYS_SEEN = [
    *(f"date_trunc('{unit}', {SEEN})" for unit in UNITS),
    *(f"{part}({SEEN})" for part in ("year", "quarter", "month", "day", "dayofweek", "dayofyear", "hour", "minute")),
    f"CAST({SEEN} AS DATE)", f"EXTRACT(WEEK FROM {SEEN})", f"EXTRACT(DOY FROM {SEEN})",
]  # fmt: skip
AGGREGATES = [
    "count(*)", "count(1)", "count(n)", "sum(n)", "avg(fare)", "min(fare)", "max(n)", "sum(fare)", "count(zone)",
    "max(zone)", "sum(n) / count(*)", "avg(fare) + 1", "sum(n) FILTER (WHERE n > 0)", "coalesce(sum(n), 0) + count(n)",
    "count(*) FILTER (WHERE zone = 'a')", "sum(n) FILTER (WHERE n > 0 AND zone IS NOT NULL)", "avg(n)",
    "min(date_trunc('HOUR', t))", "sum(n) FILTER (WHERE fare > 0)", "count(fare)",
]  # fmt: skip
FILTERS = [
    "zone = 'a'", "zone IS NULL", "zone IN ('a', 'ä') OR zone = ''", "upper(zone) = 'A'", "n > 0", "n > 1",
    "date_trunc('HOUR', t) >= '1970-01-02 05:00:00'", "CAST(t AS DATE) = '1970-01-03'", "hour(t) < 12", "t IS NOT NULL",
    "date_trunc('DAY', t) < '1970-01-03'", "NOT zone = 'Ω'",
]  # fmt: skip
HAVINGS = ["count(*) > 1", "sum(n) > 0 OR count(*) = 1", "x0 IS NOT NULL"]
stamps = st.one_of(
    st.integers(0, DAYS * 24).map(lambda hour: at(hour * HOUR_MS)),
    st.integers(0, DAYS * DAY_MS * 1000).map(lambda us: at(us / 1000)),
)
comparisons = st.sampled_from([">=", ">", "<", "<=", "="])


def stamp(time: datetime) -> str:
    return f"'{time:%Y-%m-%d %H:%M:%S.%f}'"


@st.composite
def time_conditions(draw: st.DrawFn) -> str:
    if draw(st.booleans()):
        return f"t BETWEEN {stamp(draw(stamps))} AND {stamp(draw(stamps))}"
    value, comparison = stamp(draw(stamps)), draw(comparisons)
    return f"t {comparison} {value}" if draw(st.booleans()) else f"CAST({value} AS TIMESTAMP) {comparison} t"


conditions = st.lists(st.one_of(st.sampled_from(FILTERS), time_conditions()), max_size=2)


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, bool]:
    """A query, and whether the order of its rows is told."""
    where = draw(conditions)
    tail = f" WHERE {' AND '.join(f'({one})' for one in where)}" if where else ""
    if draw(st.integers(0, 5)) == 0:
        return f"SELECT zone, n, t AS at FROM trips{tail}", False
    exactly = ["date_trunc('HOUR', t)", "zone"]
    keys = draw(st.one_of(st.just(exactly), *[st.lists(st.sampled_from(KEYS), max_size=2, unique=True)] * 3))
    measures = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=2, unique=True))
    items = [f"{one} AS x{n}" for n, one in enumerate(chain(keys, measures))]
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    having = f" HAVING {draw(st.sampled_from(HAVINGS))}" if draw(st.booleans()) else ""
    text = f"SELECT {', '.join(items)} FROM trips{tail}{group}{having}"
    if not keys or draw(st.booleans()):
        return text, False
    order = ", ".join(f"x{n} {draw(st.sampled_from(['ASC', 'DESC']))}" for n in range(len(keys)))
    cut = draw(st.sampled_from(["", " LIMIT 3", " LIMIT 2 OFFSET 1"]))
    return f"{text} ORDER BY {order}{cut}", True


@st.composite
def tables(draw: st.DrawFn) -> Bench:
    rows: list[Row] = draw(st.lists(rows_strategy, min_size=1, max_size=25))
    timed = [(at(0), "a", 1, 1.0), *rows]
    cuts = sorted(draw(st.lists(st.integers(0, len(timed)), max_size=3)))
    parts = [timed[a:b] for a, b in zip([0, *cuts], [*cuts, len(timed)], strict=True)]
    return Bench({f"s{n}": p for n, p in enumerate(parts) if any(row[0] is not None for row in p)})


@st.composite
def benches(draw: st.DrawFn) -> Bench:
    bench = draw(tables())
    where = draw(st.sampled_from(["", "", "WHERE n > 0"]))
    pattern = draw(st.lists(states, min_size=1, max_size=7))
    hours = {start: pattern[n % len(pattern)] for n, start in enumerate(BUCKETS)}
    bench.add_view("hourly", HOURLY.format(where=where), HOUR_MS, _present(hours))
    days = {start: draw(states) for start in range(0, DAYS * DAY_MS, DAY_MS)}
    bench.add_view("daily", DAILY, DAY_MS, _present(days))
    if draw(st.integers(0, 3)) == 0:
        bench.add_view("single", ROWS.format(where=where), DAY_MS, _present(days))
    return bench


def _present(found: dict[int, str]) -> dict[int, str]:
    return {start: state for start, state in found.items() if state != "vacant"}


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=set(Phase) - {Phase.explain},
)
@given(bench=benches(), query=queries(), rewrite=st.sampled_from([True, True, True, False]))
def test_a_planned_answer_is_the_base_tables_answer(bench: Bench, query: tuple[str, bool], rewrite: bool) -> None:
    """INV-12, on values: random rows, segments, bucket states and queries."""
    text, ordered = query
    made = bench.plan(text, rewrite=rewrite)
    event(f"{made.receipt.view} {made.receipt.rewrite}")
    found, expected = bench.answer(made), bench.expected(text)
    assert same_rows(found, expected, ordered=ordered), f"{made.sql}\n{found}\n{expected}"


@settings(max_examples=200, deadline=None, phases=set(Phase) - {Phase.explain})
@given(
    bench=tables(),
    unit=st.sampled_from(UNITS),
    keys=st.lists(st.sampled_from(KEYS_SEEN), min_size=1, max_size=2, unique=True),
    later=st.booleans(),
)
def test_a_time_that_was_cut_answers_for_what_it_tells_and_for_nothing_else(
    bench: Bench, unit: str, keys: list[str], later: bool
) -> None:
    """INV-12, on values: any unit kept, any units or parts of it asked for, as groups and in a condition."""
    bench.add_view("cut", CUT.format(unit=unit), DAY_MS, {0: "valid", DAY_MS: "changed", 2 * DAY_MS: "valid"})
    tail = f" WHERE year({SEEN}) >= 2024" if later else ""
    text = f"SELECT {', '.join(keys)}, sum(n), count(*) FROM trips{tail} GROUP BY {', '.join(keys)}"
    made = bench.plan(text)
    event(f"{made.receipt.view}")
    found, expected = bench.answer(made), bench.expected(text)
    assert same_rows(found, expected, ordered=False), f"{made.sql}\n{found}\n{expected}"


@pytest.mark.scenario("Q13")
@settings(max_examples=150, deadline=None, phases=set(Phase) - {Phase.explain, Phase.shrink})
@given(seed=st.integers(0, 2**32))
def test_an_answer_does_not_depend_on_what_things_are_called(seed: int) -> None:
    """INV-12, Q13: columns, outputs, tables, views, CTEs and parameters; constants where rows are ordered."""
    case = random_case(random.Random(seed))
    for wrong in wrong_answers(case):
        raise AssertionError(f"seed {seed}: {wrong}")
