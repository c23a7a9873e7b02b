"""Plans on the ledger as it is: what a query needs of it is read for each query."""

from dataclasses import dataclass

from floodmark.core.buckets import Shard
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.ports import Clock
from floodmark.core.tables import ViewHeader, ViewStatus
from floodmark.ledger.ledger import Ledger
from floodmark.query.plan import Freshness, QueryPlan
from floodmark.query.planner import plan, tables_in
from floodmark.query.snapshots import TableSnapshot, ViewSnapshot
from floodmark.sql.definition import analyze


@dataclass(frozen=True, slots=True)
class LedgerPlanner:
    ledger: Ledger
    clock: Clock

    def plan(self, select: str, *, freshness: Freshness, rewrite: bool) -> QueryPlan:
        names = tables_in(select) & set(self.ledger.registry.tables())
        self.ledger.store.sync()
        tables = {name: self._table(name) for name in names}
        views = []
        for name in self.ledger.views.names():
            try:
                state = self.ledger.views.state(name)
            except InvalidInput:
                continue
            if state.header.definition.table in tables and state.header.status is not ViewStatus.DROPPING:
                views.append(self._view(state.header, state.entries, tables[state.header.definition.table]))
        return plan(select, tables=list(tables.values()), views=views, freshness=freshness, rewrite=rewrite)

    def _table(self, name: str) -> TableSnapshot:
        found = self.ledger.registry.snapshot(name)
        header = found.header
        extent = None
        if header.min_start_ms is not None and header.max_last_ms is not None:
            extent = Interval(header.min_start_ms, header.max_last_ms + 1)
        return TableSnapshot(
            header.definition, header.version, found.slices, found.slice_node_versions, self.clock.now_ms(), extent
        )

    def _view(self, header: ViewHeader, entries: dict, table: TableSnapshot) -> ViewSnapshot:
        d = header.definition
        definition = analyze(
            d.select,
            table=d.table,
            time_column=table.definition.time_column,
            bucket_ms=d.bucket_ms,
            columns=dict(table.definition.columns),
        )
        shards = {n: Shard({s: entries[s] for s in starts}) for n, starts in d.grid.by_shard(sorted(entries)).items()}
        return ViewSnapshot(header, definition, shards)
