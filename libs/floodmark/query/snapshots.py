"""What a query is planned on, as values: its tables' registries, and the views of those tables as last seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from floodmark.core.buckets import Shard
from floodmark.core.runs import NO_RUNS, Runs
from floodmark.core.tables import ViewHeader
from floodmark.query.registered import TableSnapshot
from floodmark.query.routing import Router, Routes
from floodmark.query.shapes import ViewShape

__all__ = ["TableSnapshot", "ViewSnapshot"]


@dataclass(slots=True, eq=False)
class ViewSnapshot:
    """A view as it was last seen."""

    header: ViewHeader
    shape: ViewShape | None
    """Its definition; None when that cannot be analysed."""
    shards: Mapping[int, Shard]
    quarantined: Mapping[int, str] = field(default_factory=dict)
    """The error of each bucket that is given up on."""
    refusal: str = ""
    """Why the definition cannot be analysed."""
    earlier: TableSnapshot | None = None
    """A registry that is still fresh enough for the query; see `route`."""
    router: Router = field(default_factory=Router)
    runs: Runs = NO_RUNS
    """Of shards that have no node."""

    @property
    def name(self) -> str:
        return self.header.definition.name

    def routes(self, table: TableSnapshot) -> Routes:
        return self.router.routes(self, table)
