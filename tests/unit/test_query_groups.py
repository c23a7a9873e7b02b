"""Keys of which one group has several values: -0.0 and 0.0 are one group, and so is whatever differs by them inside."""

import pytest

from floodmark.query.representatives import has_several_values
from floodmark.query.shapes import expression
from tests.support.query_kit import DAY_MS, Bench, at, rule_of

COLUMNS = {
    "t": "timestamp[us]",
    "zone": "string",
    "code": "dictionary<values=string, indices=int32, ordered=0>",
    "n": "int64",
    "fare": "double",
    "price": "decimal128(12, 2)",
    "ok": "bool",
    "fares": "list<item: double>",
    "names": "list<item: string>",
    "pair": "struct<x: string, y: decimal128(5, 2)>",
    "point": "struct<x: float, y: int64>",
    "tags": "map<string, int64>",
}
SEVERAL = (
    "fare", "fares", "point", "tags", "array(fare)", "array(fare) || array(fare)", "fares || fares", "reverse(fares)",
    "reverse(array(fare))", "concat(fares, fares)", "concat(fares)", "reverse(fares || array(fare))",
    "element_at(fares, 1)", "slice(fares, 1, 2)", "sort_array(fares)", "nvl(fares, fares)", "IF(n > 1, fares, fares)",
    "greatest(fare, 1)", "coalesce(NULL, fares)", "named_struct('x', fare)", "CASE WHEN n > 1 THEN fares END",
    "point.x", "fares[0]", "sqrt(n)", "coalesce(zone, price)", "CASE WHEN n > 1 THEN zone ELSE price END",
    "coalesce(zone, EXTRACT(SECOND FROM t))", "coalesce(pair.x, pair.y)", "names || array(price)",
    "months_between(t, t)", "coalesce(zone, fare)", "nvl2(n, fare, n)", "-fare", "CAST(zone AS DOUBLE)",
    "CAST(zone AS ARRAY<DOUBLE>)", "1e3", "coalesce(code, price)", "whatever(zone)",
)  # fmt: skip
ONE = (
    "zone", "n", "price", "t", "ok", "names", "pair", "pair.x", "names[0]", "code", "zone || fare", "fare || fare",
    "n || '!'", "concat(zone, n)", "names || names", "reverse(names)", "reverse(zone)", "reverse(fare)",
    "CAST(fare AS STRING)", "CAST(fare AS DECIMAL(5, 2))", "upper(zone)", "coalesce(zone, 'none')",
    "coalesce(n, price)", "nvl(NULL, zone)", "CASE WHEN fare > 0 THEN 'plus' ELSE 'minus' END",
    "CASE WHEN fare > 0 THEN 1 END", "fare > 0", "fare IN (0, 1)", "date_trunc('DAY', t)", "CAST(t AS DATE)",
    "hour(t)", "EXTRACT(SECOND FROM t)", "coalesce(ok, TRUE)", "n * 2 + price", "concat_ws(',', fares)",
    "coalesce(names, names)", "greatest(date_trunc('DAY', t), CAST(t AS DATE))", "date_format(t, 'E')",
)  # fmt: skip


@pytest.mark.parametrize("text", SEVERAL)
def test_a_key_that_may_have_a_float_or_a_map_inside_has_several_values(text: str) -> None:
    assert has_several_values(expression(text), COLUMNS)


@pytest.mark.parametrize("text", ONE)
def test_text_times_truth_and_whole_numbers_have_one(text: str) -> None:
    assert not has_several_values(expression(text), COLUMNS)


def _zeros(key: str) -> Bench:
    bench = Bench({"s": [(at(0), "a", 1, 0.0), (at(1), "a", 2, -0.0), (at(2), "b", 4, 1.5)]})
    bench.add_view("v", f"SELECT {key} AS k, count(*) AS c FROM trips GROUP BY 1", DAY_MS, {0: "valid"})
    return bench


@pytest.mark.parametrize(
    "key", ["array(fare)", "array(fare) || array(fare)", "reverse(array(fare))", "array(n + fare)"]
)
@pytest.mark.scenario("Q13")
def test_the_text_of_a_zero_inside_an_array_is_not_told_by_its_group(key: str) -> None:
    """Q13: neither in an output nor in a condition on a view that is asked by its name."""
    bench = _zeros(key)
    assert rule_of(bench.plan(f"SELECT CAST({key} AS STRING) AS s, count(*) FROM trips GROUP BY 1")) == "sign-of-zero"
    made = bench.plan("SELECT c FROM v WHERE CAST(k AS STRING) LIKE '%-0.0%'")
    assert made.receipt.view == "v"
    assert made.sql.count(" LIKE ") == 1


@pytest.mark.parametrize("key", ["zone || fare", "reverse(zone)", "coalesce(zone, 'none')"])
def test_the_text_of_what_has_one_value_is_told(key: str) -> None:
    made = _zeros(key).plan(f"SELECT upper({key}) AS s, count(*) FROM trips GROUP BY 1")
    assert made.receipt.view == "v"
