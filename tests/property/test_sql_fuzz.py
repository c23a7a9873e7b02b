"""Whatever the text, the answer is a definition, a plan or a refusal by a rule, and it comes soon."""

import time
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.core.errors import InvalidInput
from floodmark.query.rules import Miss, Refusal
from floodmark.sql.definition import Definition, analyze, canonical
from floodmark.sql.rules import Rule
from tests.support.query_kit import HOUR_MS, HOURLY, Bench, rows

WITHIN_S = 20  # some milliseconds on an idle machine; what is looked for is a hang
COLUMNS = {
    "event_time": "timestamp[ms, tz=UTC]",
    "city": "string",
    "fare": "double",
    "n": "int64",
    "tags": "list<string>",
}
RULES = {rule.value for rule in Rule}

WORDS = """
SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT OFFSET DISTINCT ALL AS AND OR NOT IN IS NULL LIKE RLIKE BETWEEN CASE WHEN
THEN ELSE END CAST INTERVAL DAY HOUR DATE TIMESTAMP ARRAY MAP STRUCT OVER PARTITION WINDOW FILTER WITH UNION VALUES JOIN
ON LATERAL VIEW TABLESAMPLE PIVOT EXISTS ANY CUBE ROLLUP EXTRACT TRIM BOTH SUBSTRING POSITION IF INT STRING DECIMAL
USING rides city fare n event_time tags x y r t `n` `odd name` 'text' 'it''s' "double" 'now' 1 2.5 1e3 3L .5 X'1F'
r'raw' count sum avg min max date_trunc lower coalesce transform explode rand current_timestamp row_number median
grouping
( ) ( ) ( ) , , , . * + - / % || = <> <=> < > <= >= ! ~ & | ^ :: -> => [ ] { } ; : ? @ $ $ \\ ' " ` -- /* */ /*+ #
""".split()  # noqa: SIM905 - as a list of quoted strings nobody could read it
VALID = [
    "SELECT date_trunc('HOUR', event_time) AS h, city, avg(fare) AS a, count(*) AS c FROM rides GROUP BY h, city",
    "SELECT r.city, sum(r.fare) FILTER (WHERE r.n > 1 OR r.city LIKE 'a%') AS s FROM rides AS r GROUP BY 1",
    "SELECT transform(tags, x -> concat(x, city)) AS t, CASE WHEN n > 1 THEN 'a' ELSE \"b\" END AS k FROM rides",
    "SELECT CAST(fare AS decimal(10, 2)) AS f, event_time - INTERVAL 1 DAY 2 HOURS AS e, tags[0] AS g FROM rides",
    "SELECT approx_count_distinct(city) AS d, max(n + -1L) AS m FROM rides WHERE NOT (n IN (1, 2)) AND fare <=> 1.5",
]


def answered(text: str, columns: dict[str, str]) -> Definition | None:
    started = time.monotonic()
    try:
        definition = analyze(text, table="rides", time_column="event_time", bucket_ms=3_600_000, columns=columns)
    except InvalidInput as error:
        definition, refusal = None, error
    else:
        refusal = None
    assert time.monotonic() - started < WITHIN_S
    assert refusal is None or (refusal.rule in RULES and "\n" not in str(refusal)), refusal
    return definition


def check(text: str) -> None:
    for columns in (COLUMNS, {}):
        definition = answered(text, columns)
        if definition is not None:
            check_definition(definition)
            assert canonical(canonical(text)) == canonical(text)


def check_definition(definition: Definition) -> None:
    """What the worker and the broker rely on."""
    names = [name.lower() for name in definition.stored_columns]
    assert len(set(names)) == len(names)
    assert definition.outputs
    assert {name for output in definition.outputs for name in output.stored} == set(definition.stored_columns)
    assert "event_time" in definition.columns
    assert list(definition.columns) == sorted(set(definition.columns))
    assert definition.is_projection <= (not definition.stored)


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_a_soup_of_words(text: str) -> None:
    check(text)
    check(f"SELECT {text} FROM rides")


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join))
def test_a_soup_in_each_place(text: str) -> None:
    check(f"SELECT {text} AS x FROM rides")
    check(f"SELECT city FROM rides WHERE {text}")
    check(f"SELECT city, count(*) AS c FROM rides GROUP BY {text}")
    check(f"SELECT sum({text}) AS s FROM rides")
    check(f"SELECT city FROM {text}")


def _garbled(text: str, data: st.DataObject, spare: Sequence[str]) -> str:
    """With words lost, doubled, moved, replaced or inserted."""
    words = text.split(" ")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(words) - 1))
        change = data.draw(st.sampled_from(["lose", "double", "swap", "replace", "insert"]))
        if change == "lose" and len(words) > 1:
            words.pop(at)
        elif change == "double":
            words.insert(at, words[at])
        elif change == "swap":
            words[at], words[at - 1] = words[at - 1], words[at]
        else:
            words[at : at + (change == "replace")] = [data.draw(st.sampled_from(spare))]
    return " ".join(words)


@given(st.sampled_from(VALID), st.data())
def test_a_valid_definition_with_words_lost_doubled_moved_or_replaced(text: str, data: st.DataObject) -> None:
    check(_garbled(text, data, WORDS))


@given(st.sampled_from(VALID), st.data())
def test_a_valid_definition_with_characters_changed(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    check(text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :])


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    check(text)
    check(f"SELECT '{text}' AS x FROM rides")
    check(f"SELECT `{text}` AS x FROM rides")


@settings(max_examples=20)
@given(st.sampled_from([*WORDS, "f(", "CASE WHEN ", "array<", "x ->", "a.", "n +", "'now' ||"]), st.integers(10, 3_000))
def test_one_thing_over_and_over(word: str, times: int) -> None:
    answered(f"SELECT {f'{word} ' * times} FROM rides", COLUMNS)
    answered(f"SELECT {f'{word} ' * times} n AS x, count(*) AS c FROM rides GROUP BY 1", COLUMNS)


def test_the_valid_ones_are_valid() -> None:
    """Otherwise their mutations would not be near to anything."""
    assert all(answered(text, COLUMNS) for text in VALID)


# -- queries -----------------------------------------------------------------------------------------------------------

QUERIES = [
    "SELECT zone , sum ( n ) AS s FROM trips WHERE n > 1 GROUP BY zone HAVING count ( * ) > 1 ORDER BY s DESC LIMIT 3",
    "WITH c AS ( SELECT zone AS z , rides FROM hourly AS h WHERE h.hour >= '1970-01-01' ) SELECT z FROM c AS x",
    "SELECT ( SELECT count ( * ) FROM trips ) AS a , EXISTS ( SELECT 1 FROM hourly ) , 2 AS b ORDER BY 1 , b",
    "SELECT 1 UNION ALL ( SELECT n FROM trips EXCEPT SELECT 2 ) INTERSECT SELECT * FROM ( VALUES ( 1 ) ) AS v ( a )",
    "SELECT transform ( array ( n ) , x -> x + trips.n ) AS k , max ( fare ) FROM trips GROUP BY 1 ORDER BY k , 2",
    "SELECT a.* , b.n FROM trips AS a JOIN single AS b ON a.n = b.n LEFT JOIN hourly USING ( zone )",
    "SELECT * FROM single WHERE n IN ( SELECT n FROM trips AS single WHERE zone = single.zone ) ORDER BY n , t",
    "SELECT DISTINCT upper ( zone ) , row_number ( ) OVER ( PARTITION BY n ORDER BY t ) FROM trips",
    "SELECT s FROM ( SELECT sum ( n ) AS s , date_trunc ( 'DAY' , t ) AS d FROM trips GROUP BY ALL ) AS q WHERE s > 1",
]
QUERY_WORDS = [
    *WORDS,
    "trips",
    "hourly",
    "single",
    "zone",
    "x",
    "o0",
    "RECURSIVE",
    "EXCEPT",
    "ALL",
    "AS",
    "(",
    ")",
    "SELECT",
]
QUERY_RULES = RULES | {rule.value for rule in Refusal}
UNUSED_RULES = {rule.value for rule in Miss}


def _bench() -> Bench:
    made = Bench(rows(2))
    made.add_view("hourly", HOURLY, HOUR_MS, {0: "valid", HOUR_MS: "stale"})
    made.add_view("single", "SELECT t, zone, n AS o0 FROM trips", HOUR_MS, {0: "valid"})
    return made


BENCH = _bench()


def check_query(text: str) -> None:
    """A plan or a refusal by a rule. Anything else would be an error 500."""
    started = time.monotonic()
    try:
        made = BENCH.plan(text)
    except InvalidInput as refusal:
        rule, told = refusal.rule, str(refusal)
    else:
        rule, told = None, ""
        assert all(unused.rule in UNUSED_RULES for unused in made.receipt.unused)
    assert rule is None or rule in QUERY_RULES, told
    assert "\n" not in told
    assert time.monotonic() - started < WITHIN_S


def test_the_queries_that_are_mutated_are_planned() -> None:
    for text in QUERIES:
        BENCH.plan(text)


@settings(max_examples=150)
@given(st.lists(st.sampled_from(QUERY_WORDS), max_size=30).map(" ".join))
def test_a_soup_of_words_as_a_query(text: str) -> None:
    check_query(f"SELECT {text}")
    check_query(f"SELECT zone FROM trips {text}")
    check_query(f"WITH {text} SELECT 1")


@settings(max_examples=300)
@given(st.sampled_from(QUERIES), st.data())
def test_a_query_with_words_lost_doubled_moved_or_replaced(text: str, data: st.DataObject) -> None:
    check_query(_garbled(text, data, QUERY_WORDS))


@settings(max_examples=150)
@given(st.sampled_from(QUERIES), st.sampled_from(QUERIES), st.data())
def test_a_query_with_a_part_of_another(text: str, other: str, data: st.DataObject) -> None:
    words, others = text.split(" "), other.split(" ")
    at, start = data.draw(st.integers(0, len(words))), data.draw(st.integers(0, len(others)))
    end = data.draw(st.integers(start, len(others)))
    check_query(" ".join([*words[:at], *others[start:end], *words[at + data.draw(st.integers(0, 3)) :]]))
    check_query(f"SELECT ( {other} ) AS x FROM ( {text} ) AS y")
    check_query(f"WITH trips AS ( {text} ) {other}")
