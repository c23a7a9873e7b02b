"""From the text of a query to a plan that is safe to run for as long as the caller stays inside."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from floodmark.query.desk import Desk
from floodmark.query.plan import Freshness, QueryPlan
from floodmark.query.planner import plan, tables_in


@dataclass(frozen=True, slots=True)
class Planner:
    desk: Desk

    @contextmanager
    def planned(self, select: str, *, freshness: Freshness, rewrite: bool) -> Iterator[QueryPlan]:
        """A plan on the ledger as it is now. Until the end of the block no file it names is deleted."""
        with self.desk.reading(sorted(tables_in(select)), freshness) as reading:
            yield plan(
                select,
                tables=reading.tables,
                views=reading.views,
                freshness=freshness,
                now_ms=reading.at_ms,
                rewrite=rewrite,
            )
