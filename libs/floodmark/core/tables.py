"""Tables and views as the ledger's headers describe them."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from floodmark.core.buckets import BucketGrid
from floodmark.core.column_types import TIME_UNITS, UNDECLARED, TimeUnit
from floodmark.core.errors import InvalidInput
from floodmark.core.names import checked_name
from floodmark.core.segments import SliceGrid

DAY_MS = 24 * 60 * 60 * 1000
RETENTION = "retention"
"""The property of a table that says how long its data is kept. Without it nothing of it is ever deleted."""
TIME_UNIT = "time_unit"
"""The property of a table that says what its time column counts, when that is a whole number."""
MEANING = 1
"""The newest meaning of definitions that this version knows: `sql/meaning.py` says what changed with each."""
RECENT_CHANGES_MAX = 64
"""How many registry changes a header remembers, so that a cache that is a little behind reads only what moved."""
RECENT_KEYS_MAX = 4_000
"""How many slices these changes may name together: an append may read the header, so it must stay small."""


@dataclass(frozen=True, slots=True)
class TableDefinition:
    name: str
    location: str
    time_column: str
    slice_span_ms: int = DAY_MS
    columns: tuple[tuple[str, str], ...] = ()
    """Name and type of each column, in order."""
    properties: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    """How many tables of this name were dropped before it."""

    def __post_init__(self) -> None:
        checked_name(self.name, what="table")
        if not self.location or not self.time_column:
            raise InvalidInput("table", f"table {self.name!r} needs a location and a time column")
        SliceGrid(self.slice_span_ms)

    @property
    def grid(self) -> SliceGrid:
        return SliceGrid(self.slice_span_ms, self.generation)

    @property
    def time_unit(self) -> TimeUnit:
        return TIME_UNITS.get(self.properties.get(TIME_UNIT, ""), UNDECLARED)


@dataclass(frozen=True, slots=True)
class TableHeader:
    """What is known of a table as a whole. Every registry change rewrites it, so its version guards them all."""

    definition: TableDefinition
    version: int = 0
    """Counts registry changes."""
    min_start_ms: int | None = None
    max_last_ms: int | None = None
    """The last instant of the data, inclusive."""
    segment_count: int = 0
    recent: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """The last changes, oldest first: version and the slices it touched."""
    traces: tuple[str, ...] = ()
    """The trace of each of the last changes, in the same order."""
    dropped: bool = False
    """There is no such table any more. What is left of it keeps versions from beginning anew under its name."""

    def touched_since(self, version: int) -> frozenset[str] | None:
        """The slices changed after this version; None when that is too long ago to tell."""
        if version == self.version:
            return frozenset()
        if not self.recent or self.recent[0][0] > version + 1 or version > self.version:
            return None
        return frozenset(key for changed, keys in self.recent if changed > version for key in keys)

    def last_trace_of(self, keys: Container[str]) -> str | None:
        """The trace of the newest remembered change that touched one of these slices."""
        for (_, touched), trace_id in zip(reversed(self.recent), reversed(self.traces), strict=False):
            if trace_id and any(key in keys for key in touched):
                return trace_id
        return None


class CoverageMode(StrEnum):
    EXTEND = "extend"
    FIXED = "fixed"


class ViewStatus(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DROPPING = "dropping"


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """A view as it was asked for. `select` is its query, opaque to the ledger; `hash` names exactly what it holds."""

    name: str
    table: str
    select: str
    hash: str
    bucket_ms: int
    location: str
    coverage: CoverageMode = CoverageMode.EXTEND
    properties: Mapping[str, str] = field(default_factory=dict)
    meaning: int = 0
    """Which meaning of `select` the hash names."""

    def __post_init__(self) -> None:
        checked_name(self.name, what="view")
        checked_name(self.table, what="table")
        BucketGrid(self.bucket_ms)

    @property
    def grid(self) -> BucketGrid:
        return BucketGrid(self.bucket_ms)


@dataclass(frozen=True, slots=True)
class ViewHeader:
    """One incarnation of a view. Coverage is `[coverage_start_ms, watermark_ms)`; both are None before any data."""

    definition: ViewDefinition
    incarnation: str
    created_at_ms: int
    coverage_start_ms: int | None = None
    watermark_ms: int | None = None
    status: ViewStatus = ViewStatus.ACTIVE

    def __post_init__(self) -> None:
        assert (self.coverage_start_ms is None) == (self.watermark_ms is None), "coverage and watermark begin together"

    def covers(self, start_ms: int) -> bool:
        """Whether VACANT at this bucket could be taken for "nothing there"."""
        if self.coverage_start_ms is None or self.watermark_ms is None:
            return False
        return self.coverage_start_ms <= start_ms < self.watermark_ms
