"""The answer to "how is this query to be run": a plan, the sources it reads, and the receipt that goes with the rows.

    select text --planner.plan(select, tables=, views=, freshness=, rewrite=)--> QueryPlan
    QueryPlan   --sources registered, sql run on Spark--> rows + receipt

`planner.tables_in(select)` names the tables whose snapshots `plan` needs.

Whoever runs a plan gives each source its name, as a temporary view in a session of its own, and runs `sql`:

    base    read `files` below `location` with the table's types for `columns`; keep the rows `within` lets through
    view    read `files` below `location` with the columns `columns`; their types follow from `definition`

A source without files is an empty frame of these columns. The result's columns are renamed, in order, to `outputs`.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from floodmark.core.buckets import Cause
from floodmark.core.intervals import Interval
from floodmark.core.tables import TableDefinition
from floodmark.sql.model import Definition


@dataclass(frozen=True, slots=True)
class Strict:
    """Every change registered before the query is reflected."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Changes younger than this may be missing."""

    ms: int


Freshness = Strict | Bounded


class Kind(StrEnum):
    BASE = "base"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read, its path relative to the source's location."""

    path: str
    rows: int
    bytes: int
    crc: int | None = None
    """Of a registered file, which its producer may write over; None for one of ours, which nobody does."""
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of a base table's files are read: those whose time, in whole milliseconds, lies in one of the ranges.

    A file holds rows of more than the ranges it was chosen for; the others are answered from the view.
    """

    ranges: tuple[Interval, ...]
    timeless: bool
    """Whether rows without a time are kept too. They are in no bucket, so no view has them."""


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    """What `QueryPlan.sql` calls it. A base table keeps its own name, unless a WITH of the query has that name."""
    kind: Kind
    of: str
    """The table or the view."""
    location: str
    files: tuple[SourceFile, ...]
    columns: tuple[str, ...]
    """The columns to read, and no others. May be empty: then only the number of rows matters."""
    table: TableDefinition
    within: Rows | None = None
    """Of a base table; None keeps every row. The query's own conditions on time are in the SQL as well."""
    definition: Definition | None = None
    """Of a view: what its files hold, over the table's columns."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class Rewrite(StrEnum):
    EXACT = "exact"
    """The view's own groups and measures."""
    SCAN = "scan"
    """Rows that the view keeps one by one."""
    ROLLUP = "rollup"
    """Coarser groups, merged from the view's."""


class Why(StrEnum):
    """Why a range is read from the base table though a view is used."""

    STALE = "stale"
    VACANT = "vacant"
    QUARANTINED = "quarantined"
    NOT_ALIGNED = "not aligned"
    CHANGED_SINCE = "changed since"
    TIMELESS = "rows without a time"


@dataclass(frozen=True, slots=True)
class BaseRange:
    """A range answered from the base table. `interval` is None for rows without a time."""

    interval: Interval | None
    why: Why
    buckets: int = 0
    cause: Cause | None = None
    """Of a stale or quarantined bucket: the event and the segments it named."""
    error: str = ""
    """Of a quarantined bucket: what its last try failed with."""


@dataclass(frozen=True, slots=True)
class Unused:
    """A view of the table that does not serve this query: the rule, and what would have to be otherwise."""

    view: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class PlanReceipt:
    registry_versions: tuple[tuple[str, int], ...]
    """Each table that is read, and the version of its registry that the answer reflects."""
    freshness: Freshness
    as_of_ms: int
    """Every change registered before this time is reflected."""
    view: str | None = None
    rewrite: Rewrite | None = None
    from_view: tuple[Interval, ...] = ()
    """Runs of buckets that are read from the view's files."""
    buckets_from_view: int = 0
    bytes_from_view: int = 0
    from_base: tuple[BaseRange, ...] = ()
    """With a view only: without one, everything is from base."""
    bytes_from_base: int = 0
    unused: tuple[Unused, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryPlan:
    sql: str
    """Spark SQL over the names of the sources."""
    sources: tuple[Source, ...]
    outputs: tuple[str, ...] | None
    """The result's columns as the user names them; None leaves Spark's own names (a star over several tables)."""
    receipt: PlanReceipt = field(compare=False)
