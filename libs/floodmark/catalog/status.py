"""How tables and views stand: the few facts somebody who runs them wants to see first."""

from collections import Counter
from dataclasses import dataclass, field

from floodmark.core.buckets import BUCKETS_PER_SHARD, Entry, State
from floodmark.core.dispatch import Progress, Record
from floodmark.core.errors import InvalidInput
from floodmark.core.tables import TableHeader
from floodmark.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Pin:
    """A bucket that stands still until somebody acts: quarantined, or frozen on an input that is not what it was."""

    start_ms: int
    condition: str
    tries: int
    error: str


@dataclass(frozen=True, slots=True)
class ViewStanding:
    name: str
    table: str
    status: str
    coverage_start_ms: int | None
    watermark_ms: int | None
    lag_ms: int | None
    """From the watermark to the end of the data; None when there is no data or no watermark."""
    counts: dict[str, int] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class TableStanding:
    header: TableHeader
    refused: int | None
    """How many files are refused and wait for somebody; None when the list of them cannot be read."""


def table_standings(ledger: Ledger) -> list[TableStanding]:
    return [TableStanding(ledger.registry.header(n), refused_count(ledger, n)) for n in ledger.registry.tables()]


def refused_count(ledger: Ledger, table: str) -> int | None:
    try:
        return ledger.refusals.read(table).count
    except InvalidInput:
        return None


def view_standings(ledger: Ledger) -> list[ViewStanding]:
    return [view_standing(ledger, name) for name in sorted(ledger.views.names())]


def view_standing(ledger: Ledger, name: str) -> ViewStanding:
    state = ledger.views.state(name)
    header = state.header
    end_ms = ledger.registry.header(header.definition.table).max_last_ms
    known = end_ms is not None and header.watermark_ms is not None
    counts = Counter(_kind(entry) for entry in state.entries.values())
    for run in state.runs:
        counts[_kind(run.entry)] += (run.end - run.first) * BUCKETS_PER_SHARD
    return ViewStanding(
        name=name,
        table=header.definition.table,
        status=str(header.status),
        coverage_start_ms=header.coverage_start_ms,
        watermark_ms=header.watermark_ms,
        lag_ms=max(0, (end_ms or 0) + 1 - (header.watermark_ms or 0)) if known else None,
        counts={kind: counts[kind] for kind in ("VALID", "VALID-empty", "STALE") if counts[kind]},
        pins=tuple(p for s, r in sorted(ledger.dispatch.records(name).items()) if (p := _pin(s, r))),
    )


def _kind(entry: Entry) -> str:
    empty = entry.state is State.VALID and entry.fingerprint is not None and entry.fingerprint.is_empty
    return "VALID-empty" if empty else str(entry.state)


def _pin(start_ms: int, record: Record) -> Pin | None:
    if record.progress is Progress.QUARANTINED:
        return Pin(start_ms, "quarantined", record.tries, record.error)
    if record.frozen and record.progress is Progress.FAILED:
        return Pin(start_ms, "frozen", record.tries, record.error)
    return None
