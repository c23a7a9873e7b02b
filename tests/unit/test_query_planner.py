"""How a query is answered: which view, which buckets from where, and the rule for each view that is not used."""

from dataclasses import replace

import pytest

from floodmark.core.buckets import Cause, Shard
from floodmark.core.intervals import Interval
from floodmark.core.tables import TableDefinition
from floodmark.query.plan import Kind, Rewrite, Strict, Why
from floodmark.query.planner import plan, tables_in
from floodmark.query.snapshots import ViewSnapshot
from tests.support.ledger_kit import TABLE, segment
from tests.support.query_kit import (
    DAY_MS,
    HOUR_MS,
    HOURLY,
    Bench,
    Row,
    a_day,
    at,
    fresh,
    right,
    rows,
    rule_of,
    same_rows,
    snapshot_of,
)


@pytest.fixture
def bench() -> Bench:
    return a_day()


# -- rewriting ---------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("Q1")
def test_other_names_and_another_order_are_an_exact_hit_that_keeps_them(bench: Bench) -> None:
    """Q1."""
    made = right(
        bench,
        "SELECT max(fare) AS Peak, zone AS `the zone`, DATE_TRUNC('HOUR', T) AS h, COUNT(1) FROM trips GROUP BY 3, 2",
    )
    assert (made.receipt.view, made.receipt.rewrite) == ("hourly", Rewrite.EXACT)
    assert made.outputs == ("Peak", "the zone", "h", "COUNT(1)")


@pytest.mark.parametrize(
    "keys",
    ["zone", "date_trunc('DAY', t)", "CAST(t AS DATE)", "year(t)", "date_trunc('MONTH', t), upper(zone)", "hour(t)"],
)
@pytest.mark.scenario("Q2")
def test_coarser_keys_are_rolled_up(bench: Bench, keys: str) -> None:
    """Q2."""
    made = right(bench, f"SELECT {keys}, count(*), sum(n), avg(fare) FROM trips GROUP BY {keys}")
    assert (made.receipt.view, made.receipt.rewrite) == ("hourly", Rewrite.ROLLUP)


@pytest.mark.parametrize(
    "measure",
    [
        "count(*)", "count(1)", "count(n)", "count(zone)", "sum(n)", "avg(fare)", "mean(fare)", "max(fare)",
        "max(zone)", "avg(n)", "sum(n) / count(*)", "sum(n) FILTER (WHERE n > 2)",
        "sum(n) FILTER (WHERE zone = 'a' AND n > 2)", "count(*) FILTER (WHERE zone IS NULL)",
        "sum(fare)", "round(avg(fare), 1) + count(*)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("tail", ["", " WHERE zone = 'nowhere'", " GROUP BY zone"])
@pytest.mark.scenario("Q3")
def test_aggregates_partly_from_base_equal_the_base_table(bench: Bench, measure: str, tail: str) -> None:
    """Q3, with the count of nothing, which is 0, and the sum of nothing, which is NULL."""
    made = right(bench, f"SELECT {measure} AS m FROM trips{tail}")
    assert made.receipt.view == "hourly"
    assert {source.kind for source in made.sources} == {Kind.VIEW, Kind.BASE}


@pytest.mark.parametrize(
    "condition",
    [
        "n > 2 AND zone = 'a'", "zone = 'a' AND n > 2", "n > 2 AND zone IS NULL", "n > 2 AND NOT zone = 'a'",
        "n > 2 AND hour(t) >= 12", "n > 2 AND zone = 'a' AND hour(t) < 12",
    ],
)  # fmt: skip
@pytest.mark.parametrize("tail", ["", " GROUP BY zone"])
@pytest.mark.scenario("Q3")
def test_what_a_filter_says_beyond_the_stored_one_is_asked_of_the_views_rows(condition: str, tail: str) -> None:
    """Q3. Every bucket has rows of which only the stored condition holds, only the other one, both, and neither."""
    hours = [0, 1, 13]
    segments: dict[str, list[Row]] = {
        f"s{hour}": [(at(hour * HOUR_MS), zone, n, 1.0) for zone in ("a", "b", None) for n in (1, 3, 10**hour)]
        for hour in hours
    }
    bench = Bench(segments)
    bench.add_view("v", HOURLY, HOUR_MS, {hour * HOUR_MS: "valid" for hour in hours})
    made = right(bench, f"SELECT sum(n) FILTER (WHERE {condition}) AS m FROM trips{tail}")
    assert made.receipt.view == "v"


def test_the_files_of_another_definition_are_not_read(bench: Bench) -> None:
    """INV-13: an entry that does not say so of this definition holds the rows of another, whatever its source."""
    (view,) = bench.views
    replaced = view.shards[0].entries[0]
    other = replace(replaced, definition_hash="hash of what the view was before")
    bench.views[:] = [replace(view, shards={**view.shards, 0: view.shards[0].put({0: other})})]
    made = bench.plan("SELECT count(*) FROM trips")
    assert next((r.why, r.interval) for r in made.receipt.from_base) == (Why.STALE, Interval(0, HOUR_MS))
    assert {f.name for f in replaced.files}.isdisjoint(f.path for source in made.sources for f in source.files)


def test_the_count_of_nothing_is_0_even_where_nothing_is_read_from_base() -> None:
    """Without GROUP BY there is one row, whatever there is to count."""
    made = right(fresh(HOURLY), "SELECT count(*), count(n), sum(n), avg(fare) FROM trips WHERE zone = 'nowhere'")
    assert [source.kind for source in made.sources] == [Kind.VIEW]


@pytest.mark.scenario("Q5")
def test_what_is_left_to_base_is_told_with_the_reason(bench: Bench) -> None:
    """Q5."""
    told = right(bench, "SELECT count(*) FROM trips").receipt
    assert [(r.why, r.interval, r.buckets) for r in told.from_base] == [
        (Why.STALE, Interval(3 * HOUR_MS, 4 * HOUR_MS), 1),
        (Why.CHANGED_SINCE, Interval(5 * HOUR_MS, 6 * HOUR_MS), 1),
        (Why.VACANT, Interval(20 * HOUR_MS, 24 * HOUR_MS), 4),
    ]
    assert told.from_base[0].cause == Cause("event", "e", 1, segments=("late",))
    assert told.buckets_from_view == 18
    assert told.from_view == (
        Interval(0, 3 * HOUR_MS),
        Interval(4 * HOUR_MS, 5 * HOUR_MS),
        Interval(6 * HOUR_MS, 20 * HOUR_MS),
    )


def test_only_the_segments_of_what_is_left_are_read_from_base(bench: Bench) -> None:
    made = right(bench, "SELECT count(*) FROM trips")
    (base,) = [source for source in made.sources if source.kind is Kind.BASE]
    assert [file.path for file in base.files] == ["s03", "s05", "s20", "s21", "s22", "s23"]
    assert made.receipt.bytes_from_base == 6_000


@pytest.mark.parametrize("hour", [-100, 0, 5, 100])
def test_a_segment_whose_times_are_not_known_is_read_for_every_range(hour: int) -> None:
    """Also for one that lies outside of all times that are known."""
    unknown = segment("unknown", 0, 1, start_ms=None, last_ms=None)
    found = snapshot_of(TABLE, [segment("a", 0, 6, timeless_rows=0), unknown])
    wanted = (Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS),)
    assert "unknown" in {s.name for s in found.segments(wanted, timeless=False)}


@pytest.mark.parametrize("first", [True, False])
def test_segments_with_rows_without_a_time_are_found_whatever_was_asked_for_before(first: bool) -> None:
    """A table remembers which segments a range has, and a query of the same range may want those rows or not."""
    listed = [segment("early", 0, 1, timeless_rows=0), segment("asked", 5, 6, timeless_rows=0)]
    found = snapshot_of(TABLE, [*listed, segment("odd", 20, 21, timeless_rows=3), segment("last", 30, 31)])
    ranges = (Interval(5 * HOUR_MS, 6 * HOUR_MS),)
    wanted = {True: ["asked", "last", "odd"], False: ["asked"]}
    for timeless in (first, not first, first):
        assert [s.name for s in found.segments(ranges, timeless=timeless)] == wanted[timeless]


@pytest.mark.parametrize(
    "tail",
    [
        "HAVING count(*) > 20 ORDER BY zone",
        "ORDER BY total DESC, zone LIMIT 2",
        "ORDER BY 2, 1 LIMIT 1 OFFSET 1",
        "HAVING total > 0 OR zone IS NULL ORDER BY sum(n) + count(*) DESC",
        "ORDER BY zone NULLS LAST",
    ],
)
@pytest.mark.scenario("Q8")
def test_having_order_limit_and_offset_are_over_the_merged_groups(bench: Bench, tail: str) -> None:
    """Q8."""
    assert right(bench, f"SELECT zone, sum(n) AS total FROM trips GROUP BY zone {tail}").receipt.view == "hourly"


def test_a_view_of_single_rows_answers_what_its_columns_tell() -> None:
    made = fresh("SELECT t, zone AS z, n FROM trips WHERE n > 2")
    scan = right(made, "SELECT zone, n + 1 AS more FROM trips WHERE n > 2 AND zone = 'a' ORDER BY n DESC LIMIT 3")
    assert (scan.receipt.view, scan.receipt.rewrite) == ("v", Rewrite.SCAN)
    grouped = right(made, "SELECT zone, count(n), avg(n) FROM trips WHERE n > 2 GROUP BY zone HAVING count(*) > 1")
    assert grouped.receipt.rewrite is Rewrite.SCAN
    assert rule_of(right(made, "SELECT fare FROM trips WHERE n > 2")) == "column-not-in-view"


def test_a_star_is_every_column_of_the_table(bench: Bench) -> None:
    assert right(bench, "SELECT * FROM trips WHERE zone = 'a'").outputs == ("t", "zone", "n", "fare")
    assert bench.plan("SELECT x.*, n FROM trips x").outputs == ("t", "zone", "n", "fare", "n")


@pytest.mark.parametrize(
    ("query", "same_as"),
    [
        ("SELECT * FROM hourly", HOURLY),
        ("SELECT h.zone, rides + 1 FROM hourly AS h WHERE h.hour >= '1970-01-01 10:00:00' ORDER BY hour, 1",
         "SELECT zone, rides + 1 FROM ({view}) AS x WHERE hour >= '1970-01-01 10:00:00' ORDER BY hour, 1"),
        ("SELECT zone, sum(rides), max(most) FROM hourly WHERE zone = 'a' AND rides > 0 GROUP BY zone",
         "SELECT zone, sum(rides), max(most) FROM ({view}) AS x WHERE zone = 'a' AND rides > 0 GROUP BY zone"),
        ("SELECT a.zone, b.rides FROM hourly a JOIN hourly b ON a.hour = b.hour AND a.zone = b.zone",
         "SELECT a.zone, b.rides FROM ({view}) a JOIN ({view}) b ON a.hour = b.hour AND a.zone = b.zone"),
        ("SELECT v.z, h.rides FROM hourly h RIGHT JOIN (VALUES ('a'), ('q')) AS v(z) ON h.zone = v.z"
         " WHERE h.zone IS NULL",
         "SELECT v.z, h.rides FROM ({view}) h RIGHT JOIN (VALUES ('a'), ('q')) AS v(z) ON h.zone = v.z"
         " WHERE h.zone IS NULL"),
        ("SELECT count(*) FROM hourly JOIN trips ON hourly.zone = trips.zone",
         "SELECT count(*) FROM ({view}) AS hourly JOIN trips ON hourly.zone = trips.zone"),
    ],
)  # fmt: skip
def test_the_name_of_a_view_means_its_query(bench: Bench, query: str, same_as: str) -> None:
    made = bench.plan(query)
    found, expected = bench.answer(made), bench.expected(same_as.format(view=HOURLY))
    assert same_rows(found, expected, ordered="ORDER BY" in query), f"{made.sql}\n{found}\n{expected}"
    reads_it_alone = "JOIN hourly" not in query and "JOIN trips" not in query
    assert (made.receipt.view == "hourly") is reads_it_alone


def test_conditions_on_the_keys_of_a_view_leave_unread_what_cannot_satisfy_them(bench: Bench) -> None:
    made = bench.plan("SELECT rides FROM hourly WHERE hour >= '1970-01-01 10:00:00' AND hour < '1970-01-01 12:00:00'")
    assert made.receipt.from_view == (Interval(10 * HOUR_MS, 13 * HOUR_MS),), "an hour more than needed, not a day"
    assert [f.path for s in made.sources if s.kind is Kind.BASE for f in s.files] == []


# -- why a view is not used --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "query", "rule"),
    [
        (HOURLY, "SELECT n, count(*) FROM trips GROUP BY n", "key-not-in-view"),
        (HOURLY, "SELECT date_trunc('MINUTE', t), count(*) FROM trips GROUP BY 1", "key-not-in-view"),
        (HOURLY, "SELECT count(*) FROM trips WHERE n = 1", "filter-not-in-view"),
        (HOURLY, "SELECT count(*) FROM trips WHERE zone = 'a' OR n = 1", "filter-not-in-view"),
        (HOURLY, "SELECT count(*) FROM trips WHERE t < '1970-01-01' OR t > '1970-01-02'", "filter-not-in-view"),
        (HOURLY, "SELECT min(fare) FROM trips", "aggregate-not-in-view"),
        (HOURLY, "SELECT sum(n + 1) FROM trips", "aggregate-not-in-view"),
        (HOURLY, "SELECT sum(n) FILTER (WHERE n > 3) FROM trips", "aggregate-not-in-view"),
        (HOURLY, "SELECT median(n) FROM trips", "aggregate-not-in-view"),
        (HOURLY, "SELECT zone FROM trips", "not-rows"),
        (HOURLY, "SELECT DISTINCT zone FROM trips", "not-understood"),
        (HOURLY, "SELECT count(DISTINCT n) FROM trips", "not-understood"),
        (HOURLY, "SELECT zone, row_number() OVER (ORDER BY zone) FROM trips GROUP BY zone", "not-understood"),
        (HOURLY, "SELECT zone, count(*) FROM trips GROUP BY CUBE (zone)", "not-understood"),
        (HOURLY, "SELECT count(*) FROM trips WHERE n < rand()", "not-understood"),
        (HOURLY, "SELECT count(*) FROM trips UNION ALL SELECT 1", "not-understood"),
        (HOURLY, "SELECT c FROM (SELECT count(*) AS c FROM trips) AS x", "not-understood"),
        (HOURLY, "SELECT count(*) FROM trips a JOIN trips b ON a.n = b.n", "several-tables"),
        ("SELECT zone, count(*) AS c FROM trips WHERE n > 2 GROUP BY zone", "SELECT count(*) FROM trips",
         "filter-of-view"),
        ("SELECT zone, count(*) AS c FROM trips WHERE n > 2 GROUP BY zone", "SELECT count(*) FROM trips WHERE n > 3",
         "filter-of-view"),
        (HOURLY, "SELECT count(*) FROM trips WHERE t >= '1970-01-01 00:10' AND t < '1970-01-01 00:50'",
         "nothing-current"),
        ("SELECT zone, sum(bit_count(n)) AS s FROM trips GROUP BY zone", "SELECT sum(bit_count(n)) FROM trips",
         "type-unknown"),
    ],
)  # fmt: skip
@pytest.mark.scenario("Q4")
@pytest.mark.scenario("Q12")
def test_each_doubt_falls_back_to_base_by_a_rule(view: str, query: str, rule: str) -> None:
    """Q4, Q12: base, and the receipt says which rule."""
    made = fresh(view).plan(query)
    assert rule_of(made) == rule
    assert {source.kind for source in made.sources} == {Kind.BASE}


def test_rewriting_can_be_turned_off(bench: Bench) -> None:
    assert rule_of(bench.plan("SELECT count(*) FROM trips", rewrite=False), "hourly") == "rewrite-off"


def test_the_view_with_the_fewest_bytes_is_chosen() -> None:
    made = Bench(rows())
    hours = dict.fromkeys(range(0, DAY_MS, HOUR_MS), "valid")
    large = made.add_view("large", HOURLY, HOUR_MS, hours)
    small = made.add_view("small", "SELECT zone, count(*) AS c FROM trips GROUP BY zone", DAY_MS, {0: "valid"})
    for view, size in ((large, 50), (small, 70)):
        _resize(view, size)
    told = made.plan("SELECT count(*) FROM trips").receipt
    assert (told.view, told.bytes_from_view) == ("small", 70)
    assert [(u.view, u.rule) for u in told.unused] == [("large", "costs-more")]
    assert made.plan("SELECT sum(n) FROM trips").receipt.view == "large"


def test_a_view_is_read_only_by_the_registry_of_the_query_whatever_was_guessed_before() -> None:
    """What a view cost at an earlier version says which to look at closely, never what may be read."""
    made = fresh(HOURLY)
    assert right(made, "SELECT count(*) FROM trips").receipt.buckets_from_view == 24
    grown = Bench(rows() | {"late": [(at(5 * HOUR_MS), "late", 1, 1.0)]})
    grown.table.slice_versions = dict.fromkeys(grown.table.slice_versions, 2)
    grown.views, grown.files = made.views, made.files
    told = right(grown, "SELECT count(*) FROM trips").receipt
    assert [(r.why, r.interval) for r in told.from_base] == [(Why.CHANGED_SINCE, Interval(5 * HOUR_MS, 6 * HOUR_MS))]


def test_a_view_that_has_nothing_current_any_more_gives_way_to_the_next() -> None:
    made = Bench(rows(2))
    valid = {0: "valid", HOUR_MS: "valid"}
    small = made.add_view("small", HOURLY, HOUR_MS, valid)
    large = made.add_view("large", HOURLY, HOUR_MS, valid)
    _resize(large, 10)
    assert made.plan("SELECT count(*) FROM trips").receipt.view == "small"
    made.views[0] = replace(small, shards={})
    told = made.plan("SELECT count(*) FROM trips").receipt
    assert (told.view, [u.rule for u in told.unused]) == ("large", ["nothing-current"])


def test_a_view_larger_than_the_table_is_not_read() -> None:
    made = fresh(HOURLY)
    _resize(made.views[0], 2_000)
    assert rule_of(made.plan("SELECT count(*) FROM trips")) == "costs-more"


def _resize(view: ViewSnapshot, size: int) -> None:
    view.shards = {
        number: Shard({
            start: replace(entry, files=tuple(replace(file, bytes=size) for file in entry.files))
            for start, entry in shard
        })
        for number, shard in view.shards.items()
    }  # fmt: skip


# -- several tables ---------------------------------------------------------------------------------------------------


def test_names_given_by_with_are_no_tables() -> None:
    assert tables_in("WITH a AS (SELECT * FROM trips), b AS (SELECT * FROM a) SELECT * FROM b JOIN C ON 1 = 1") == {
        "trips",
        "c",
    }
    assert tables_in("WITH trips AS (SELECT * FROM trips) SELECT * FROM trips") == {"trips"}


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT DISTINCT zone FROM trips", ("t", "zone")),
        ("SELECT DISTINCT count(*) FROM trips", ("t",)),
        ("SELECT DISTINCT struct(*) FROM trips", ("t", "zone", "n", "fare")),
        ("SELECT DISTINCT count(x.*) FROM trips x", ("t", "zone", "n", "fare")),
        ("SELECT 1 FROM trips NATURAL JOIN trips b", ("t", "zone", "n", "fare")),
    ],
)
def test_what_is_run_as_it_stands_has_every_column_it_can_mean(
    bench: Bench, query: str, columns: tuple[str, ...]
) -> None:
    assert bench.plan(query).sources[0].columns == columns


def test_each_table_of_a_join_is_a_source_of_its_registered_files(bench: Bench) -> None:
    other = TableDefinition(
        "zones", "/lake/zones", "since", columns=(("since", "int64"), ("zone", "string"), ("x", "int64"))
    )
    made = plan(
        "SELECT trips.n, z.x FROM trips JOIN zones z USING (zone)",
        tables=[bench.table, snapshot_of(other, [], version=4)],
        views=bench.views,
        freshness=Strict(),
        now_ms=0,
    )
    assert [(s.name, len(s.files), s.columns) for s in made.sources] == [
        ("trips", 24, ("t", "zone", "n")),
        ("zones", 0, ("since", "zone", "x")),
    ]
    assert made.receipt.registry_versions == (("trips", 1), ("zones", 4))
