"""A map as a key: rows whose entries stand in another order are one group, of which the view has one order."""

import pytest

from tests.support.query_kit import HOUR_MS, Bench, at

COLUMNS = (("t", "timestamp[us]"), ("tags", "map<string, int64>"), ("n", "int64"), ("pairs", "list<item: int64>"))


@pytest.fixture(scope="module")
def tagged() -> Bench:
    made = Bench({"s": [(at(0), None, None, None)]}, columns=COLUMNS)
    made.add_view("v", "SELECT tags, pairs, count(*) AS c FROM trips GROUP BY ALL", HOUR_MS, {0: "valid"})
    return made


@pytest.mark.scenario("Q13")
@pytest.mark.parametrize("asked", ["map_keys(tags)", "to_json(tags)", "map_entries(tags)[0]", "CAST(tags AS STRING)"])
def test_what_depends_on_the_order_of_entries_is_left_to_the_table(tagged: Bench, asked: str) -> None:
    receipt = tagged.plan(f"SELECT {asked}, count(*) FROM trips GROUP BY 1").receipt
    assert receipt.view is None
    assert [unused.rule for unused in receipt.unused] == ["order-of-map"]


@pytest.mark.parametrize(
    "asked", ["tags", "size(tags)", "cardinality(tags) > 1", "pairs", "to_json(pairs)", "tags IS NULL"]
)
def test_what_is_the_same_in_any_order_is_told(tagged: Bench, asked: str) -> None:
    assert tagged.plan(f"SELECT {asked}, count(*) FROM trips GROUP BY 1").receipt.view == "v"


def test_a_condition_on_the_order_of_entries_is_not_repeated_inside_a_view(tagged: Bench) -> None:
    """Asked of the view by its name, a group has all of its rows, whatever order theirs are in."""
    for condition, times in (("to_json(tags) = '{}'", 1), ("size(tags) = 1", 2)):
        word = condition.partition("(")[0].upper()
        assert tagged.plan(f"SELECT c FROM v WHERE {condition}").sql.count(word) == times
