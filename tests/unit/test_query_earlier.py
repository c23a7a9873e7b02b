"""Views that were defined when their text stood for other columns: those columns are left to the table."""

from dataclasses import replace

import pytest

from floodmark.ledger.store import WatchableStore
from floodmark.query.pictures import Pictures
from floodmark.query.snapshots import ViewSnapshot
from floodmark.sql.definition import definition_hash
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit
from tests.support.memory_store import MemoryStore

COLUMNS = (("event_time", "timestamp[us, tz=UTC]"), ("n", "int64"), ("zone", "string"))
SELECT = """
SELECT date_trunc('HOUR', event_time) AS hour, struct(ZONE) AS s, zone, count(*) AS rides,
       approx_count_distinct(n) AS ns, sum(n) FILTER (WHERE struct(n) = struct(1)) AS ones
FROM rides GROUP BY ALL
"""


def seen(select: str, *, of_today: bool) -> ViewSnapshot:
    store: WatchableStore = MemoryStore()
    kit = Kit(store)
    table = replace(TABLE, columns=COLUMNS)
    kit.ledger.registry.create_table(table)
    today = definition_hash(TABLE.name, select, HOUR_MS)
    view = replace(VIEW, select=select, bucket_ms=HOUR_MS, hash=today if of_today else "of another version")
    kit.ledger.views.create(view, coverage_start_ms=0)
    pictures = Pictures(store)
    pictures.attend(table)
    (found,) = pictures.of(TABLE.name)
    return found


@pytest.mark.parametrize(("of_today", "keys", "stored"), [
    (True, {"hour", "s", "zone"}, {"rides", "ns__distinct", "ones"}),
    (False, {"hour", "zone"}, {"rides"}),
])  # fmt: skip
def test_columns_that_an_older_version_built_otherwise_are_not_read(
    of_today: bool, keys: set[str], stored: set[str]
) -> None:
    """INV-12: its files have sketches of values, and fields called after the table's columns."""
    shape = seen(SELECT, of_today=of_today).shape
    assert shape is not None
    assert {key.name for key in shape.definition.keys} == keys
    assert {column.name for column in shape.definition.stored} == stored


def test_a_view_that_chose_rows_by_fields_otherwise_is_not_read_at_all() -> None:
    select = "SELECT count(*) AS rides FROM rides WHERE to_json(struct(ZONE)) LIKE '%ZONE%'"
    assert seen(select, of_today=True).shape is not None
    refused = seen(select, of_today=False)
    assert refused.shape is None
    assert "write CREATE OR REPLACE MATERIALIZED VIEW" in refused.refusal
