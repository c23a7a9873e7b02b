"""Which views depend on which table, read again and again in the background, never because of an event."""

from dataclasses import dataclass, field

from floodmark.core.errors import InvalidInput
from floodmark.core.tables import ViewStatus
from floodmark.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class ViewIndex:
    """The views of each table."""

    views: dict[str, frozenset[str]] = field(default_factory=dict)

    def of(self, table: str) -> frozenset[str]:
        return self.views.get(table, frozenset())


def read_index(ledger: Ledger) -> ViewIndex:
    """Read the index. A view whose header cannot be decoded is left out: it cannot be marked either."""
    ledger.store.sync()
    views: dict[str, set[str]] = {}
    for name in ledger.views.names():
        try:
            header = ledger.views.header(name)
        except InvalidInput:
            continue
        if header.status is not ViewStatus.DROPPING:
            views.setdefault(header.definition.table, set()).add(name)
    return ViewIndex({table: frozenset(names) for table, names in views.items()})
