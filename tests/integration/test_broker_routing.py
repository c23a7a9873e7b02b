"""Queries through the broker on the real stack: from views where they can be, with DuckDB's rows always."""

import pytest

import floodmark
from tests.support.broker import BrokerUnderTest, Rides, comparable

pytestmark = pytest.mark.stack
HOURS = 48


@pytest.fixture(scope="module")
def rides(broker: BrokerUnderTest) -> Rides:
    """Two days of rides, hour 20 without any, and a view of them by the hour and the city, all of it built."""
    made = Rides(broker)
    for hour in range(HOURS):
        if hour != 20:
            made.write(f"h{hour:02d}", hour, hour + 1)
    made.await_registered()
    made.await_built(made.view(), up_to_hour=HOURS)
    return made


@pytest.mark.scenario("Q1")
def test_the_same_query_with_other_aliases_and_order_is_an_exact_hit(rides: Rides) -> None:
    """The view's own groups, under the user's names."""
    answer = rides.check(
        "SELECT max(x.fare) AS `Most`, x.city AS place, date_trunc('HOUR', x.event_time) AS h, count(*) AS rides "
        "FROM {t} AS x GROUP BY x.city, date_trunc('HOUR', x.event_time)",
        "SELECT max(fare), city, date_trunc('hour', event_time), count(*) FROM {t} GROUP BY 2, 3",
    )
    assert answer.to_arrow().column_names == ["Most", "place", "h", "rides"]
    assert answer.receipt is not None
    assert (answer.receipt["view"], answer.receipt["rewrite"]) == (f"{rides.name}_hourly", "exact")
    assert answer.receipt["from_base"]["bytes"] == 0


@pytest.mark.scenario("Q1")
def test_the_name_of_a_view_stands_for_its_query(rides: Rides) -> None:
    """Alone in FROM it is read from its buckets; beside a table it is computed from its own."""
    view, hour = f"{rides.name}_hourly", "date_trunc('hour', x.event_time)"
    answer = rides.check(
        f"SELECT v.city, sum(v.n) AS n, max(v.mean) AS m FROM {view} AS v WHERE v.hour < '1970-01-02' GROUP BY v.city",
        "SELECT city, sum(n), max(mean) FROM (SELECT date_trunc('hour', event_time) AS hour, city, count(*) AS n, "
        "avg(fare) AS mean FROM {t} GROUP BY 1, 2) WHERE hour < '1970-01-02' GROUP BY city",
    )
    assert answer.receipt is not None
    assert (answer.receipt["view"], answer.receipt["from_base"]["bytes"]) == (view, 0)
    beside = rides.ask(
        f"SELECT count(*) AS n, sum(v.n) AS s FROM {view} AS v JOIN {{t}} AS x ON v.city = x.city AND v.hour = {hour}"
    )
    assert comparable(beside.rows()) == rides.wanted(
        "SELECT count(*), sum(v.n) FROM (SELECT date_trunc('hour', event_time) AS hour, city, count(*) AS n FROM {t} "
        f"GROUP BY 1, 2) AS v JOIN {{t}} AS x ON v.city = x.city AND v.hour = {hour}"
    )
    assert beside.receipt is not None
    assert beside.receipt["view"] is None


@pytest.mark.scenario("Q2")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT city, sum(cents) AS c FROM {t} GROUP BY city",
        "SELECT sum(cents) AS c, count(*) AS n, min(fare) AS low FROM {t}",
        "SELECT date_trunc('DAY', event_time) AS day, sum(fare) AS fare FROM {t} GROUP BY 1",
        "SELECT date_trunc('MONTH', event_time) AS month, city, max(fare) AS m FROM {t} GROUP BY 1, 2",
    ],
    ids=["fewer keys", "whole table", "hour to day", "hour to month"],
)
def test_coarser_groups_are_rolled_up(rides: Rides, query: str) -> None:
    answer = rides.check(query)
    assert answer.receipt is not None
    assert (answer.receipt["view"], answer.receipt["rewrite"]) == (f"{rides.name}_hourly", "rollup")
    assert answer.receipt["from_view"]["buckets"] == HOURS


@pytest.mark.scenario("Q7")
def test_a_range_that_is_counted_from_now_is_routed_by_it(rides: Rides) -> None:
    """All data is from 1970: a range up to now has every bucket, and one of the last day has none and reads nothing."""
    ever = rides.check("SELECT city, count(*) AS n FROM {t} WHERE event_time < now() - INTERVAL 1 MONTH GROUP BY city")
    assert ever.receipt is not None
    assert (ever.receipt["from_view"]["buckets"], ever.receipt["from_base"]["bytes"]) == (HOURS, 0)
    latest = rides.ask("SELECT count(*) AS n FROM {t} WHERE event_time >= current_timestamp() - INTERVAL 24 HOURS")
    assert latest.rows() == [(0,)]
    assert latest.receipt is not None
    assert (latest.receipt["from_view"]["bytes"], latest.receipt["from_base"]["bytes"]) == (0, 0)


@pytest.mark.scenario("Q3")
@pytest.mark.parametrize(
    "aggregate",
    ["avg(fare)", "count(*)", "count(fare)", "min(fare)", "max(fare)", "sum(fare)", "sum(price)"],
)
def test_every_aggregate_is_right_when_part_of_it_comes_from_base(rides: Rides, aggregate: str) -> None:
    """A range that begins and ends within buckets: its edges are base, its middle is the view."""
    where = "WHERE event_time >= TIMESTAMP '1970-01-01 03:20:00' AND event_time < TIMESTAMP '1970-01-02 20:45:00'"
    answer = rides.check(f"SELECT city, {aggregate} AS a FROM {{t}} {where} GROUP BY city")
    assert answer.receipt is not None
    assert answer.receipt["from_view"]["bytes"] > 0
    assert answer.receipt["from_base"]["bytes"] > 0


@pytest.mark.scenario("Q3")
def test_distinct_counts_come_from_sketches(rides: Rides) -> None:
    """Thirty riders: few enough that a sketch counts them exactly."""
    where = "WHERE event_time >= TIMESTAMP '1970-01-01 03:20:00' AND event_time < TIMESTAMP '1970-01-02 20:45:00'"
    answer = rides.check(
        f"SELECT city, approx_count_distinct(rider) AS a FROM {{t}} {where} GROUP BY city",
        f"SELECT city, count(DISTINCT rider) FROM {{t}} {where} GROUP BY city",
    )
    assert answer.receipt is not None
    assert answer.receipt["from_view"]["bytes"] > 0
    assert answer.receipt["from_base"]["bytes"] > 0


@pytest.mark.scenario("Q4")
@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("SELECT rider, count(*) AS n FROM {t} GROUP BY rider", "key-not-in-view"),
        ("SELECT date_trunc('MINUTE', event_time) AS m, count(*) AS n FROM {t} GROUP BY 1", "key-not-in-view"),
        ("SELECT city, count(*) AS n FROM {t} WHERE cents > 0 GROUP BY city", "filter-not-in-view"),
        ("SELECT city, max(cents) AS m FROM {t} GROUP BY city", "aggregate-not-in-view"),
    ],
    ids=["another key", "finer time", "filter on a column the view lacks", "another aggregate"],
)
def test_what_a_view_cannot_answer_comes_from_base_and_explain_names_the_rule(
    rides: Rides, query: str, rule: str
) -> None:
    answer = rides.check(query)
    assert answer.receipt is not None
    assert answer.receipt["view"] is None
    assert [u["rule"] for u in answer.receipt["unused"]] == [rule]
    told = dict(rides.ask(f"EXPLAIN {query}").rows())
    assert told["not used"].startswith(f"{rides.name}_hourly: {rule}: ")


@pytest.mark.scenario("Q4")
def test_a_view_with_a_filter_of_its_own_is_not_used_for_a_query_without(rides: Rides) -> None:
    """The rows it left out are wanted."""
    filtered = rides.view(
        "paid", select="SELECT city, count(*) AS n, max(cents) AS m FROM {table} WHERE cents > 0 GROUP BY city"
    )
    rides.await_built(filtered, up_to_hour=HOURS)
    answer = rides.check("SELECT city, max(cents) AS m FROM {t} GROUP BY city")
    assert answer.receipt is not None
    assert answer.receipt["view"] is None
    assert {u["view"]: u["rule"] for u in answer.receipt["unused"]}[filtered] == "filter-of-view"
    rides.ask(f"DROP MATERIALIZED VIEW {filtered}")


@pytest.mark.scenario("Q7")
def test_a_range_that_cuts_buckets_has_its_middle_from_the_view_and_its_edges_from_base(rides: Rides) -> None:
    where = "WHERE event_time >= TIMESTAMP '1970-01-01 05:30:00' AND event_time < TIMESTAMP '1970-01-01 09:15:00'"
    answer = rides.check(f"SELECT city, sum(fare) AS f FROM {{t}} {where} GROUP BY city")
    assert answer.receipt is not None
    assert answer.receipt["from_view"]["ranges"] == [{"start": "1970-01-01T06:00Z", "end": "1970-01-01T09:00Z"}]
    edges = [(r["start"], r["end"], r["why"]) for r in answer.receipt["from_base"]["ranges"]]
    assert edges == [
        ("1970-01-01T05:30Z", "1970-01-01T06:00Z", "not aligned"),
        ("1970-01-01T09:00Z", "1970-01-01T09:15Z", "not aligned"),
    ]


@pytest.mark.scenario("Q8")
@pytest.mark.parametrize(
    "tail",
    [
        "HAVING sum(cents) > 0",
        "ORDER BY c DESC, city NULLS LAST LIMIT 3",
        "ORDER BY city NULLS FIRST LIMIT 2 OFFSET 2",
        "HAVING count(*) > 3 ORDER BY 2, 1 NULLS LAST LIMIT 4",
    ],
)
def test_what_comes_after_grouping_is_done_over_the_merged_rows(rides: Rides, tail: str) -> None:
    """In order, not as a set."""
    where = "WHERE event_time >= TIMESTAMP '1970-01-01 05:30:00'"
    query = f"SELECT city, sum(cents) AS c FROM {{t}} {where} GROUP BY city {tail}"
    answer = rides.check(query)
    assert answer.receipt is not None
    assert answer.receipt["view"] == f"{rides.name}_hourly"
    if "ORDER BY" in tail:
        base = floodmark.connect(rides.broker.url)
        base.sql("SET floodmark.rewrite = off")
        assert answer.rows() == base.sql(query.format(t=rides.name)).rows()


def test_rewriting_is_switched_off_by_a_setting_of_the_session(rides: Rides) -> None:
    """The same rows from base, and the receipt says why the view was not used."""
    query = "SELECT city, sum(cents) AS c FROM {t} GROUP BY city"
    connection = rides.broker.connection
    assert rides.ask("SET floodmark.rewrite = off").rows() == [("rewrite", "off")]
    try:
        answer = rides.check(query)
        assert answer.receipt is not None
        assert [u["rule"] for u in answer.receipt["unused"]] == ["rewrite-off"]
    finally:
        connection.settings.clear()


def test_a_receipt_says_what_was_read_and_how_long_it_took(rides: Rides) -> None:
    answer = rides.check("SELECT city, sum(cents) AS c FROM {t} GROUP BY city")
    receipt = answer.receipt
    assert receipt is not None
    version = rides.broker.system.ledger.registry.header(rides.name).version
    assert receipt["registry_versions"] == {rides.name: version}
    assert receipt["freshness"] == "strict"
    assert receipt["rows"] == len(answer.rows())
    assert receipt["read"]["files"] >= HOURS - 1
    assert receipt["planning_ms"] + receipt["execution_ms"] > 0
    assert receipt["plans"] == 1


def test_rows_come_as_json_as_arrow_and_as_csv(rides: Rides) -> None:
    """The same rows, each in its form: exact numbers as text in JSON, an empty text not as a null in CSV."""
    query = f"SELECT city, sum(price) AS p, max(event_time) AS t FROM {rides.name} GROUP BY city ORDER BY p"
    arrow = rides.broker.sql(query).rows()
    document = rides.broker.connection.document(query)
    assert document["columns"][0] == {"name": "city", "type": "string"}
    assert [(c, p, t) for c, p, t in document["rows"]] == [(c, str(p), t.isoformat()) for c, p, t in arrow]
    lines = rides.broker.connection.csv(query).splitlines()
    assert lines[0] == '"city","p","t"'
    assert any(line.startswith('"",') for line in lines[1:])
    assert any(line.startswith(",") for line in lines[1:])


def test_answers_become_data_frames(rides: Rides) -> None:
    frame = rides.ask("SELECT city, count(*) AS n FROM {t} GROUP BY city").to_pandas()
    assert sorted(frame.columns) == ["city", "n"]
    assert int(frame["n"].sum()) == rides.wanted("SELECT count(*) FROM {t}")[0][0]
