"""How often a query is planned when its files vanish, and what its last plan may read (Q9)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from floodmark.core.errors import Unavailable
from floodmark.query.plan import Freshness, PlanReceipt, QueryPlan
from floodmark.service.access import Role
from floodmark.spark.reading import ReadCounts
from floodmark_broker.base_files import FilesVanished
from floodmark_broker.books import Books
from floodmark_broker.engine import PLANS_MAX, Answered, Asked, Engine
from floodmark_broker.execution import Executed
from floodmark_broker.stopping import Ticket
from tests.support.bus_doubles import FrozenClock


@dataclass
class Plans:
    """Plans with a view as long as views may be used. Notes which may, and whether the plan still stands."""

    made: list[bool] = field(default_factory=list)
    standing: int = 0

    @contextmanager
    def planned(self, select: str, *, freshness: Freshness, rewrite: bool) -> Iterator[QueryPlan]:
        self.made.append(rewrite)
        self.standing += 1
        receipt = PlanReceipt((), freshness, 0, view="hourly" if rewrite else None)
        try:
            yield QueryPlan(select, (), ("n",), receipt)
        finally:
            self.standing -= 1


@dataclass
class Runs:
    """Files of views have always vanished; those of the table may have."""

    plans: Plans
    table_is_there: bool = True

    def run(self, plan: QueryPlan, ticket: Ticket, *, rows_max: int) -> Executed:
        assert self.plans.standing == 1, "what is read is held"
        if plan.receipt.view is not None or not self.table_is_there:
            raise FilesVanished("a file is gone")
        return Executed(pa.table({"n": [1]}), ReadCounts())


class AtOnce:
    def run(self, ticket: Ticket, work: Any, **_: Any) -> Any:
        return work(ticket)


def asked(plans: Plans, runs: Runs, **settings: str) -> Answered:
    clock = FrozenClock(1_000)
    unused: Any = None
    queries: Any = AtOnce()
    execution: Any = runs
    engine = Engine(plans, execution, unused, queries, clock, Books(CollectorRegistry()), lambda: None)
    return engine.answer(Asked("SELECT n FROM rides", "q1", settings, Role.READER, 10, 1_000, lambda: False))


@pytest.mark.scenario("Q9")
def test_the_last_plan_of_a_query_reads_no_view() -> None:
    """Views that are rebuilt again and again cannot keep a query from its answer."""
    plans = Plans()
    answered = asked(plans, Runs(plans))
    assert plans.made == [True] * (PLANS_MAX - 1) + [False]
    assert answered.receipt is not None
    assert (answered.receipt["plans"], answered.receipt["view"]) == (PLANS_MAX, None)


@pytest.mark.scenario("Q9")
def test_a_query_whose_tables_files_are_gone_is_told_so_after_the_last_plan() -> None:
    plans = Plans()
    with pytest.raises(Unavailable, match="a file is gone"):
        asked(plans, Runs(plans, table_is_there=False))
    assert len(plans.made) == PLANS_MAX
    assert plans.standing == 0
