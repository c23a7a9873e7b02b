"""What a query means to this version, and what that says of views that an earlier version defined."""

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.tables import MEANING
from floodmark.sql.definition import definition_hash
from floodmark.sql.meaning import meaning_of

PLAIN = [
    "SELECT 1",
    "SELECT * FROM trips",
    "SELECT date_trunc('HOUR', t) AS hour, zone, count(*) AS n, sum(fare) AS fares FROM trips GROUP BY 1, zone",
    "SELECT zone, avg(fare) FILTER (WHERE zone = 'a' AND n > 3) AS fare FROM trips WHERE n >= 5 GROUP BY ALL",
    "select zone, -- where it began\n max(`odd name`) m from trips group by zone",
]
CHANGED = [
    ("SELECT transform(tags, n -> n + trips.n) AS k, count(*) AS c FROM trips GROUP BY 1", "af6fe200f2"),
    ("SELECT +s AS k, count(*) AS c FROM trips GROUP BY 1", "2342337e4b"),
    ("SELECT -1::STRING || zone AS k, count(*) AS c FROM trips GROUP BY 1", "fad9f48b36"),
    ("SELECT n | 1 & n AS k, count(*) AS c FROM trips GROUP BY 1", "150be0cc28"),
    ("SELECT zone || n + n AS k, count(*) AS c FROM trips GROUP BY 1", "e4fbfba72c"),
    ("SELECT sum(n * 1L) AS k, zone FROM trips GROUP BY zone", "5e3819e445"),
]
"""And what their hashes in buckets of a day began with, before they meant what they mean now."""


@pytest.mark.parametrize(("select", "before"), CHANGED)
def test_a_query_that_may_have_been_read_otherwise_has_another_hash_than_before(select: str, before: str) -> None:
    """INV-12: an entry with the hash from before holds rows of the meaning from before."""
    assert meaning_of(select) == MEANING
    assert not definition_hash("trips", select, 86_400_000).startswith(before)


@pytest.mark.parametrize("select", [
    "SELECT approx_count_distinct(n) AS k FROM trips",
    "SELECT struct(ZONE) AS k, count(*) AS n FROM trips GROUP BY 1",
    "SELECT (n, zone) AS k, count(*) AS n FROM trips GROUP BY 1",
    "SELECT trips.n.a AS k, count(*) AS n FROM trips GROUP BY 1",
    "SELECT zone, count(*) AS n FROM trips WHERE zone = 'it''s' GROUP BY zone",
    "SELECT zone, count(*) AS n FROM trips WHERE zone = 'a\\'b' GROUP BY zone",
    "SELECT zone, count(*) AS n FROM trips WHERE zone = '${x}' GROUP BY zone",
    "SELECT zone, /* */ count(*) AS n FROM trips GROUP BY zone",
    "SELECT zone, count(*) AS n FROM trips -- it's\n GROUP BY zone",
    "SELECT zone, count(*) AS n FROM trips WHERE NOT zone = 'a' GROUP BY zone",
    "SELECT zone, count(*) AS n FROM trips WHERE n = -1 GROUP BY zone",
    "SELECT zone, count(*) AS n FROM trips WHERE n = 1L GROUP BY zone",
    "SELECT `all`, count(*) AS n FROM trips GROUP BY all",
    "SELECT current_path AS k, count(*) AS n FROM trips GROUP BY 1",
])  # fmt: skip
def test_whatever_may_have_been_read_otherwise_has_the_new_meaning(select: str) -> None:
    """What an earlier version made of a text cannot be asked any more, so in doubt it was another."""
    assert meaning_of(select) == MEANING


@pytest.mark.parametrize("select", PLAIN)
def test_a_query_that_always_meant_the_same_keeps_its_meaning(select: str) -> None:
    """Nothing of such a view is built again."""
    assert meaning_of(select) == 0


def test_the_hash_of_a_query_that_always_meant_the_same_is_what_it_was() -> None:
    select = "SELECT date_trunc('HOUR', t) AS hour, zone, count(*) AS n FROM trips GROUP BY 1, zone"
    assert definition_hash("trips", select, 3_600_000) == "975c7086cfca4bb03737a7693116ce7e"


def test_what_is_no_query_has_no_meaning() -> None:
    with pytest.raises(InvalidInput, match="not-sql"):
        meaning_of("SELECT")
