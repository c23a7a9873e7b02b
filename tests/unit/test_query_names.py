"""Whatever things are called: no name of ours is taken for one of the user's, nor one of the user's for another."""

import pytest
from sqlglot import exp

from floodmark.core.errors import InvalidInput
from floodmark.query.plan import Kind, QueryPlan
from floodmark.query.planner import plan, tables_in
from floodmark.query.rules import Miss
from floodmark.sql.definition import analyze
from floodmark.sql.grammar import DefinitionGenerator
from floodmark.sql.names import Names
from floodmark.sql.parsing import check_rendering, parse_query
from tests.support.query_kit import DAY_MS, HOUR_MS, HOURLY, Bench, a_day, at, fresh, right, rows, rule_of, same_rows

SINGLE = "SELECT t AS r_t, zone AS r_zone, n AS r_n, fare AS r_fare FROM trips"


@pytest.fixture
def bench() -> Bench:
    return a_day()


def _kinds(planned: QueryPlan) -> set[Kind]:
    return {source.kind for source in planned.sources}


def is_right(bench: Bench, asked: str, plain: str) -> QueryPlan:
    """The plan, if its answer is that of the plain query over the table as it is called in tests."""
    made = bench.plan(asked)
    judge = Bench(bench.segments)
    judge.expected("SELECT 1")
    judge.create_view("hourly", HOURLY)
    found, expected = bench.answer(made), judge.run(plain)
    assert same_rows(found, expected, ordered="ORDER BY" in plain), f"{made.sql}\n{found}\n{expected}"
    return made


# -- names that a rewrite makes up -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["o0", "o1", "O1", "k0", "p0", "a0", "parts", "source", "merged", "_floodmark_view"])
@pytest.mark.scenario("Q13")
def test_rows_are_ordered_by_the_column_that_is_meant_whatever_it_is_called(wish: str) -> None:
    """Q13: outputs go before columns in ORDER BY, so none of ours may be called like one of them."""
    made = Bench(rows(), names={"fare": wish, "n": "o2"})
    made.add_view(
        "v", f"SELECT t, zone, `{wish}`, o2 FROM trips", HOUR_MS, dict.fromkeys(range(0, DAY_MS, HOUR_MS), "valid")
    )
    planned = is_right(
        made,
        f"SELECT zone, t, o2, `{wish}` FROM trips ORDER BY `{wish}` DESC, o2, t LIMIT 7",
        "SELECT zone, t, n, fare FROM trips ORDER BY fare DESC, n, t LIMIT 7",
    )
    assert planned.receipt.view == "v"


@pytest.mark.parametrize("names", [("k1", "p0", "k0"), ("merged", "parts", "source"), ("o1", "o0", "a0")])
@pytest.mark.scenario("Q13")
def test_groups_are_those_that_are_meant_whatever_their_columns_are_called(names: tuple[str, ...]) -> None:
    """Q13, of keys, partial aggregates and subselects."""
    zone, n, fare = names
    made = Bench(rows(), names={"zone": zone, "n": n, "fare": fare})
    select = f"SELECT date_trunc('HOUR', t) AS {n}, {zone} AS {fare}, sum({n}) AS {zone}, count(*) AS c FROM trips"
    select += " GROUP BY 1, 2"
    made.add_view("v", select, HOUR_MS, dict.fromkeys(range(0, 20 * HOUR_MS, HOUR_MS), "valid"))
    planned = is_right(
        made,
        f"SELECT {zone} AS {n}, upper({zone}) AS {fare}, sum({n}) AS {zone}, count(*) FROM trips"
        f" GROUP BY 1, 2 HAVING count(*) > 1 ORDER BY {n} DESC, 2",
        "SELECT zone, upper(zone), sum(n), count(*) FROM trips GROUP BY 1, 2 HAVING count(*) > 1 ORDER BY 1 DESC, 2",
    )
    assert _kinds(planned) == {Kind.VIEW, Kind.BASE}, planned.receipt.unused


def test_a_name_that_is_taken_in_any_spelling_is_not_given() -> None:
    names = Names(["O0", "o0_1", "\u212a0", "\u017f0"])
    assert (names.of("o0"), names.of("o0"), names.of("o1")) == ("o0_2", "o0_2", "o1")
    assert names.of("k0") == "k0_1", "Spark takes the sign of Kelvin for a k"
    assert names.of("s0") == "s0_1"


def test_a_field_is_not_taken_for_a_column_of_what_its_struct_is_called_like() -> None:
    """A source that is called like a struct would have `trips.n` mean its own column."""
    columns = (("t", "timestamp[us]"), ("trips", "struct<n: int64>"), ("n", "int64"), ("parts", "struct<n: int64>"))
    made = Bench({"s0": [(at(0), None, None, None)], "s1": [(at(DAY_MS), None, None, None)]}, columns=columns)
    made.add_view("v", "SELECT t, trips AS source, parts, n FROM trips", HOUR_MS, {0: "valid"})
    planned = made.plan("SELECT q.trips.n AS a, q.parts.n AS b FROM trips AS q")
    assert planned.receipt.view == "v"
    assert "FROM `trips` AS `source_1`" in planned.sql
    assert "SELECT `source`.`n` AS `o0`, `parts`.`n` AS `o1` FROM" in planned.sql
    assert planned.sql.endswith(" AS `parts_1`")


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("SELECT s.* FROM trips", "not-understood"),
        ("SELECT named_struct('f', n) AS s FROM trips ORDER BY s.f", "not-understood"),
        ("SELECT n AS q FROM trips AS q ORDER BY q.n", "not-understood"),
        ("SELECT s AS x, x.f AS y FROM trips", "not-understood"),
    ],
)
def test_a_struct_that_is_called_like_something_else_is_left_to_spark(query: str, rule: str) -> None:
    columns = (("t", "timestamp[us]"), ("s", "struct<f: int64>"), ("n", "int64"))
    made = Bench({"s0": [(at(0), None, None, None)]}, columns=columns)
    made.add_view("v", "SELECT t, s, n FROM trips", HOUR_MS, {0: "valid"})
    assert rule_of(made.plan(query)) == rule
    assert made.plan("SELECT s.* FROM trips").outputs is None, "how many there are, Spark knows"


@pytest.mark.parametrize("name", ["__bucket_ms", "__BUCKET_MS", "__rows"])
def test_a_definition_does_not_use_the_names_of_columns_that_a_build_adds(name: str) -> None:
    """INV-3: rows would be put into buckets by the table's own column."""
    for select in (
        f"SELECT `{name}` AS x, count(*) AS c FROM trips GROUP BY 1",
        f"SELECT zone AS `{name}`, count(*) AS c FROM trips GROUP BY 1",
    ):
        columns = {"t": "timestamp[us]", "zone": "string", name: "int64"}
        with pytest.raises(InvalidInput) as refusal:
            analyze(select, table="trips", time_column="t", bucket_ms=HOUR_MS, columns=columns)
        assert refusal.value.rule == "reserved-name"


# -- constants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "constant", ["2", "1", "2024", "1 + 1", "-1", "NULL", "'2'", "CAST(2 AS INT)", "2L", "TRUE", "(3)"]
)
@pytest.mark.parametrize("order", ["grp, zone DESC", "1, 2 DESC", "grp DESC, count(*), zone", "zone, grp"])
@pytest.mark.scenario("Q13")
def test_a_constant_output_orders_nothing(bench: Bench, constant: str, order: str) -> None:
    """Q13: in ORDER BY as text it would be a position."""
    made = right(
        bench, f"SELECT {constant} AS grp, zone, count(*) AS c FROM trips GROUP BY zone ORDER BY {order} LIMIT 2"
    )
    assert made.receipt.view == "hourly"
    single = fresh(SINGLE)
    made = right(
        single, f"SELECT {constant} AS grp, zone FROM trips ORDER BY {order.replace('count(*)', 'n')}, t, n LIMIT 9"
    )
    assert made.receipt.view == "v"


@pytest.mark.parametrize("order", ["1 + 1", "(2)", "-1", "'zone'", "9"])
def test_an_order_that_is_no_output_and_no_column_is_left_to_spark(bench: Bench, order: str) -> None:
    made = bench.plan(f"SELECT zone, count(*) FROM trips GROUP BY zone ORDER BY {order}")
    assert rule_of(made, "hourly") == "not-understood"


# -- names that a WITH gives -------------------------------------------------------------------------------------------

OF_WITH = [
    ("WITH trips AS (SELECT * FROM trips WHERE zone = 'a') SELECT sum(v.rides) FROM hourly AS v",
     "SELECT sum(v.rides) FROM hourly AS v", False),
    ("WITH Trips AS (SELECT 1 AS n) SELECT hourly.rides FROM hourly",
     "SELECT rides FROM hourly", True),
    ("WITH hourly AS (SELECT zone, rides FROM hourly WHERE zone = 'a') SELECT sum(rides) FROM hourly",
     "SELECT sum(rides) FROM hourly WHERE zone = 'a'", True),
    ("WITH _floodmark_view AS (SELECT 7 AS rides) SELECT sum(rides) FROM HOURLY",
     "SELECT sum(rides) FROM hourly", True),
    ("WITH trips AS (SELECT * FROM trips WHERE n > 3) SELECT count(*) FROM trips",
     "SELECT count(*) FROM trips WHERE n > 3", False),
    ("WITH b AS (SELECT n FROM trips), trips AS (SELECT 1 AS n) SELECT sum(n) FROM b",
     "SELECT sum(n) FROM trips", False),
    ("WITH b AS (SELECT n FROM trips), trips AS (SELECT 1 AS n) SELECT sum(b.n) + sum(trips.n) FROM b JOIN trips",
     "SELECT sum(n) + count(*) FROM trips", False),
    ("WITH x AS (WITH trips AS (SELECT n FROM trips WHERE n = 1) SELECT n FROM trips)"
     " SELECT count(*) FROM x UNION ALL SELECT count(*) FROM trips",
     "SELECT count(*) FROM trips WHERE n = 1 UNION ALL SELECT count(*) FROM trips", False),
    ("SELECT (WITH trips AS (SELECT 5 AS n) SELECT max(n) FROM trips) + count(*) FROM trips",
     "SELECT 5 + count(*) FROM trips", False),
    ("SELECT count(*) FROM (SELECT zone FROM trips) AS trips WHERE trips.zone = 'a'",
     "SELECT count(*) FROM trips WHERE zone = 'a'", False),
    ("SELECT count(*) FROM trips AS hourly WHERE EXISTS (SELECT 1 FROM hourly AS trips WHERE trips.zone = hourly.zone)",
     "SELECT count(*) FROM trips AS a WHERE EXISTS (SELECT 1 FROM hourly AS b WHERE a.zone = b.zone)", False),
    ("WITH trips AS (SELECT 1 AS q) SELECT count(*) FROM hourly JOIN hourly AS trips ON hourly.hour = trips.hour",
     "SELECT count(*) FROM hourly AS a JOIN hourly AS b ON a.hour = b.hour", False),
    ("WITH a AS (SELECT 1 AS x) SELECT a.x, p.x AS y, n FROM a, (WITH a AS (SELECT 2 AS x) SELECT x FROM a) AS p,"
     " trips", "SELECT 1, 2, n FROM trips", False),
    ("SELECT (WITH c AS (SELECT max(n) AS x FROM trips) SELECT x FROM c)"
     " - (WITH c AS (SELECT min(n) AS x FROM trips) SELECT x FROM c) AS s",
     "SELECT max(n) - min(n) FROM trips", False),
    ("SELECT zone, (WITH c AS (SELECT q.n + 1 AS x) SELECT x FROM c) AS y FROM trips AS q",
     "SELECT zone, n + 1 FROM trips", False),
    ("WITH s AS (SELECT 1 AS x) SELECT s.x, p.y, n FROM s,"
     " (WITH `\u017f` AS (SELECT 2 AS x) SELECT x AS y FROM `\u017f`) AS p, trips",
     "SELECT 1, 2, n FROM trips", False),
    ("WITH a AS (SELECT sum(rides) AS x FROM hourly) SELECT x,"
     " (WITH a AS (SELECT max(rides) AS x FROM hourly) SELECT x FROM a) AS y FROM a",
     "SELECT sum(rides), max(rides) FROM hourly", False),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "plain", "by_view"), OF_WITH)
@pytest.mark.scenario("Q13")
def test_a_name_that_a_with_gives_is_seen_where_spark_sees_it(
    bench: Bench, asked: str, plain: str, by_view: bool
) -> None:
    """Q13: by what stands after it, not by its own query, and never by the query that a view stands for."""
    made = is_right(bench, asked, plain)
    assert (made.receipt.view == "hourly") is by_view


@pytest.mark.parametrize(
    "query",
    ["SELECT zone, (WITH c AS (SELECT q.n + 1 AS x) SELECT x FROM c) AS y FROM trips AS q",
     "WITH a AS (WITH a AS (SELECT 1 AS x) SELECT x FROM a) SELECT x FROM a UNION ALL SELECT n FROM trips"],
)  # fmt: skip
def test_a_with_that_is_moved_by_whoever_renders_it_is_refused(monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    """Also if a later sqlglot moves it in another way than its text shows."""
    tree = parse_query(query)
    check_rendering(tree)
    monkeypatch.setattr(DefinitionGenerator, "EXPRESSIONS_WITHOUT_NESTED_CTES", {exp.Select, exp.Union})
    with pytest.raises(InvalidInput) as refusal:
        check_rendering(tree)
    assert refusal.value.rule == "unsupported-syntax"


def test_the_tables_that_a_query_reads_are_those_that_no_with_gives() -> None:
    assert tables_in("WITH b AS (SELECT * FROM a), a AS (SELECT 1 AS x) SELECT * FROM b, a, C") == {"a", "c"}
    assert tables_in("WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM R) SELECT * FROM r") == set()
    assert tables_in("(WITH a AS (SELECT 1 AS x) SELECT * FROM a) UNION ALL SELECT * FROM a") == {"a"}


# -- parameters of lambdas ---------------------------------------------------------------------------------------------

ARRAYS = (
    "SELECT transform(array(n, 2), n -> n + trips.n) AS both, n AS x0, zone, count(*) AS c FROM trips GROUP BY 1, 2, 3"
)
LAMBDAS = [
    "transform(array(n, 2), n -> N + 1)",
    "transform(array(n, 2), `n` -> (`n`) + 1)",
    "transform(array(n, 2), n -> n + trips.n)",
    "transform(array(n, 2), both -> both + n)",
    "transform(array(n, 2), zone -> zone + n)",
    "transform(array(n, 2), x0 -> x0 + n)",
    "transform(array(n, 2), (n, x0) -> n + x0 + trips.n)",
    "transform(array(n, 1), x -> array_max(transform(array(x, n), y -> x + y + n)))",
    "transform(array(n, 1), x0 -> array_max(transform(array(x0, n), x0 -> x0 + n)))",
    "transform(array(n, 1), `a b` -> array_max(transform(array(`a b`), n -> n + `a b` + trips.n)))",
]


@pytest.mark.parametrize("key", LAMBDAS)
@pytest.mark.scenario("Q13")
def test_a_parameter_is_not_taken_for_a_column_nor_a_column_for_a_parameter(key: str) -> None:
    """Q13: as a key of groups, in a condition, in FILTER, and in a definition."""
    by_day = dict.fromkeys(range(0, DAY_MS, 4 * HOUR_MS), "valid")
    made = Bench(rows())
    made.add_view("v", ARRAYS, 4 * HOUR_MS, {start: state for start, state in by_day.items() if start})
    for query in (
        f"SELECT {key} AS x0, count(*) FROM trips GROUP BY 1",
        f"SELECT zone, count(*) FROM trips WHERE array_max({key}) > 4 GROUP BY zone",
        f"SELECT zone, count(*) FILTER (WHERE array_max({key}) > 4) AS n FROM trips GROUP BY zone ORDER BY zone",
        f"SELECT zone, count(*) FROM trips GROUP BY zone, {key} HAVING array_max({key}) > 4",
    ):
        planned = right(made, query)
        # Of an array nobody says that it has no float inside, which may be another zero than its group's.
        rules = {unused.rule for unused in planned.receipt.unused}
        assert _kinds(planned) == ({Kind.BASE} if rules == {Miss.SIGN_OF_ZERO} else {Kind.VIEW, Kind.BASE}), rules
    defined = Bench(rows())
    defined.add_view("v", f"SELECT {key} AS k, count(*) AS c FROM trips GROUP BY 1", 4 * HOUR_MS, by_day)
    assert right(defined, f"SELECT {key}, count(*) FROM trips GROUP BY 1").receipt.view == "v"
    # The view by its name, and a condition that is repeated inside it.
    judge = f"SELECT k, c FROM (SELECT {key} AS k, count(*) AS c FROM trips GROUP BY 1) AS v WHERE array_max(k) > 3"
    by_name = defined.plan("SELECT k, c FROM v WHERE array_max(transform(k, n -> n)) > 3")
    assert same_rows(defined.answer(by_name), defined.expected(judge), ordered=False), by_name.sql


@pytest.mark.scenario("Q13")
def test_a_condition_on_a_view_that_is_repeated_inside_keeps_its_parameters() -> None:
    """Q13: `k` is the column n there, and n is the parameter here."""
    made = fresh("SELECT n AS k, zone, count(*) AS c FROM trips GROUP BY 1, 2")
    planned = made.plan("SELECT sum(c) FROM v WHERE array_max(transform(array(0, 1), n -> n + k)) > 4")
    expected = made.expected("SELECT count(*) FROM trips WHERE array_max(transform(array(0, 1), x -> x + n)) > 4")
    assert made.answer(planned) == expected, planned.sql


@pytest.mark.scenario("Q13")
def test_a_key_with_a_column_in_its_lambda_does_not_answer_for_one_with_the_parameter() -> None:
    """Q13: without its qualifier the column n was the parameter n, and the two keys had one text."""
    made = fresh("SELECT transform(array(n, 2), n -> n + trips.n) AS k, count(*) AS c FROM trips GROUP BY 1")
    assert rule_of(right(made, "SELECT transform(array(n, 2), n -> n + n), count(*) FROM trips GROUP BY 1")) == (
        "key-not-in-view"
    )
    assert right(made, "SELECT transform(array(n, 2), x -> x + n), count(*) FROM trips GROUP BY 1").receipt.view == "v"


def test_what_a_lambda_makes_of_its_parameter_is_no_key_of_the_view() -> None:
    """A column may be called like the parameter in canonical text."""
    made = Bench(rows(), names={"zone": "x0"})
    made.add_view("v", "SELECT upper(x0) AS u, x0 AS z, count(*) AS c FROM trips GROUP BY 1, 2", HOUR_MS, {0: "valid"})
    asked = "SELECT transform(array('q', x0), y -> upper(y)), count(*) FROM trips GROUP BY 1"
    assert is_right(made, asked, asked.replace("x0", "zone")).receipt.view == "v"


def test_a_lambda_with_one_parameter_twice_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput) as refusal:
        bench.plan("SELECT transform(array(n), (n, N) -> n) FROM trips")
    assert refusal.value.rule == "unsupported-syntax"


# -- without FROM ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "SELECT (SELECT count(*) FROM trips)",
        "SELECT EXISTS (SELECT 1 FROM trips WHERE n > 100)",
        "SELECT 1",
        "SELECT 1 AS x WHERE 1 = 2",
        "SELECT 2 AS x WHERE (SELECT count(*) FROM trips) > 3 ORDER BY 1",
        "SELECT 3 AS x WHERE 5 IN (SELECT n FROM trips)",
        "SELECT * FROM (VALUES (1), (2)) AS v(q)",
        "SELECT 1 AS x UNION ALL SELECT count(*) FROM trips UNION ALL (SELECT 2 EXCEPT SELECT 3)",
        "SELECT x FROM (SELECT 1 AS x) AS q WHERE x IN (SELECT n FROM trips)",
        "WITH c AS (SELECT 1 AS x) SELECT (SELECT max(n) FROM trips) + x FROM c",
    ],
)
def test_a_query_without_from_runs_as_it_stands(bench: Bench, query: str) -> None:
    """It was an error of ours."""
    made = right(bench, query)
    assert made.receipt.view is None
    assert all(unused.rule in ("not-understood", "several-tables") for unused in made.receipt.unused)


def test_a_query_that_reads_no_table_is_as_of_now(bench: Bench) -> None:
    made = plan("SELECT 1", tables=[], views=[], freshness=bench.plan("SELECT 1").receipt.freshness, now_ms=42)
    assert (made.sources, made.receipt.as_of_ms) == ((), 42)
