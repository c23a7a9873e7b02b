"""Plans on the ledger as it is: every file of the one table a query names."""

from dataclasses import dataclass

from floodmark.core.ports import Clock
from floodmark.ledger.ledger import Ledger
from floodmark.query.plan import Freshness, Kind, PlanReceipt, QueryPlan, Source, SourceFile
from floodmark.sql.reading import source_of


@dataclass(frozen=True, slots=True)
class BasePlanner:
    ledger: Ledger
    clock: Clock

    def plan(self, select: str, *, freshness: Freshness, rewrite: bool) -> QueryPlan:  # noqa: ARG002 - there is nothing to rewrite to
        name = source_of(select)
        snapshot = self.ledger.registry.snapshot(name)
        definition = snapshot.header.definition
        files = tuple(SourceFile(s.path, s.rows, s.bytes) for s in snapshot.by_name.values())
        columns = tuple(column for column, _ in definition.columns)
        source = Source(name, Kind.BASE, name, definition.location, files, columns, definition)
        receipt = PlanReceipt(((name, snapshot.header.version),), freshness, self.clock.now_ms())
        return QueryPlan(select, (source,), None, receipt)
