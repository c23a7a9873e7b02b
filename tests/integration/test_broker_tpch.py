"""TPC-H at scale factor 0.1: Q1, Q6 and revenue by month, through views by the day of shipping."""

import datetime as dt
import decimal
from typing import Any

import pytest

from tests.support import tpch
from tests.support.broker import BrokerUnderTest, assert_read_as_planned
from tests.support.eventually import eventually
from tests.support.service_process import new_table

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def lineitem(broker: BrokerUnderTest, tmp_path_factory: pytest.TempPathFactory) -> str:
    table = new_table()
    location = broker.system.lake / table
    rows = tpch.generate(location, tmp_path_factory.mktemp("tpch"), scale="0.1")
    broker.sql(f"CREATE TABLE {table} USING parquet LOCATION '{location}' TBLPROPERTIES ('time_column' = 'l_shipdate')")
    ledger = broker.system.ledger

    def registered() -> bool:
        return sum(s.rows for s in ledger.registry.snapshot(table).by_name.values()) == rows

    eventually(registered, within_s=120, every_s=0.25, what=f"{rows} rows registered")
    for suffix, select in tpch.VIEWS.items():
        view = f"{table}_{suffix}"
        query = select.format(t=table)
        broker.sql(f"CREATE MATERIALIZED VIEW {view} TBLPROPERTIES ('bucket' = '30d') AS {query}")
    for suffix in tpch.VIEWS:
        eventually(
            lambda s=suffix: _is_built(broker, f"{table}_{s}"), within_s=240, every_s=0.5, what=f"{suffix} built"
        )
    return table


def _is_built(broker: BrokerUnderTest, view: str) -> bool:
    """Every bucket that the data fills; the last one stays open."""
    state = broker.system.ledger.views.state(view)
    return len(state.entries) >= 83 and not broker.system.behind(view)


@pytest.mark.parametrize("name", tpch.QUERIES)
def test_a_query_of_tpch_is_right_and_read_from_a_view(broker: BrokerUnderTest, lineitem: str, name: str) -> None:
    """The rows of DuckDB, averages to the six digits that Spark gives them; nearly all of it from the view."""
    query = tpch.QUERIES[name].format(t=lineitem)
    answer = broker.sql(query)
    found = [[_number(v) for v in row] for row in answer.rows()]
    wanted = [[_number(v) for v in row] for row in broker.duck(query, lineitem)]
    assert len(found) == len(wanted) > 0
    for one, other in zip(sorted(found, key=repr), sorted(wanted, key=repr), strict=True):
        assert [v if isinstance(v, str) else pytest.approx(v, rel=1e-6, abs=1e-6) for v in other] == one
    assert_read_as_planned(answer)
    assert answer.receipt is not None
    assert answer.receipt["view"] is not None, answer.receipt["unused"]
    total = sum(s.bytes for s in broker.system.ledger.registry.snapshot(lineitem).by_name.values())
    assert answer.receipt["read"]["bytes"] < total / 5


def _number(value: Any) -> Any:
    if isinstance(value, str) and value.replace("-", "").replace(".", "").replace("E+", "").isdecimal():
        return float(value)
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, dt.date):
        return value.isoformat()[:10]
    return value
