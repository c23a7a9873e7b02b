"""What the ledger holds, as plain values for people and their tools. Reads only, and writes nothing on the way.

64-bit numbers (CRCs, hashes) are decimal strings, because many JSON tools would round them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from floodmark.core.buckets import Entry
from floodmark.core.dispatch import Record
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import Fingerprint, fingerprint
from floodmark.core.registry import Event
from floodmark.core.segments import WIDE, Segment, segments_in
from floodmark.core.tables import ViewHeader
from floodmark.ledger import codec, paths
from floodmark.ledger.exchange import run_part
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.slices import Slices

Document = dict[str, Any]


def kinds_of(ledger: Ledger, name: str) -> list[str]:
    """Which of `table` and `view` exist by this name."""
    table, view = ledger.store.read_many([paths.table(name), paths.view(name)])
    is_table = table is not None and not codec.is_dropped(table.data, what=paths.table(name))
    return [kind for kind, found in (("table", is_table), ("view", view is not None)) if found]


# -- tables --------------------------------------------------------------------------------------------------------


def table_document(ledger: Ledger, table: str, *, now_ms: int) -> Document:
    snapshot = ledger.registry.snapshot(table)
    header = snapshot.header
    return {
        "kind": "table",
        "name": table,
        "definition": {
            "location": header.definition.location,
            "time_column": header.definition.time_column,
            "slice_span_ms": header.definition.slice_span_ms,
            "columns": [list(column) for column in header.definition.columns],
            "properties": dict(header.definition.properties),
        },
        "version": header.version,
        "min_start_ms": header.min_start_ms,
        "max_last_ms": header.max_last_ms,
        "segment_count": header.segment_count,
        "slices": [
            {
                "key": key,
                "node_version": snapshot.slice_node_versions[key],
                "segments": [_segment(s) for s in sorted(snapshot.slices[key], key=lambda s: s.name)],
            }
            for key in sorted(snapshot.slices, key=_slice_order)
        ],
        "outbox": [_event(event) for event in ledger.registry.outbox(table)],
        "holds": [{**asdict(hold), "live": hold.expires_at_ms > now_ms} for hold in ledger.holds.all(table)],
        "condemned": [asdict(found) for found in ledger.retention.condemned(table)],
    }


def _slice_order(key: str) -> tuple[bool, int]:
    place = key.partition("@")[0]
    return (True, 0) if place == WIDE else (False, int(place))


def _segment(segment: Segment) -> Document:
    return {**asdict(segment), "crc": str(segment.crc)}


def _event(event: Event) -> Document:
    changes = [{**asdict(change), "crc": None if change.crc is None else str(change.crc)} for change in event.changes]
    return {**asdict(event), "changes": changes}


# -- views ---------------------------------------------------------------------------------------------------------


def view_document(ledger: Ledger, view: str) -> Document:
    state = ledger.views.state(view)
    stretches = state.stretches()
    counts: Counter[str] = Counter()
    for _, count, entry in stretches:
        counts[_kind_of_state(entry)] += count
    return {
        "kind": "view",
        "name": view,
        "header": _header(state.header),
        "counts": {kind: counts[kind] for kind in ("VALID", "VALID-empty", "STALE", "STALE, never built")},
        "buckets": [run_part(*run).model_dump(mode="json") for run in stretches],
        "dispatch": [_record(start, record) for start, record in sorted(ledger.dispatch.records(view).items())],
    }


def _kind_of_state(entry: Entry) -> str:
    if entry.fingerprint is None:
        return "STALE, never built"
    return "VALID-empty" if entry.state == "VALID" and entry.fingerprint.is_empty else str(entry.state)


def _header(header: ViewHeader) -> Document:
    return {
        **asdict(header.definition),
        "incarnation": header.incarnation,
        "created_at_ms": header.created_at_ms,
        "coverage_start_ms": header.coverage_start_ms,
        "watermark_ms": header.watermark_ms,
        "status": str(header.status),
    }


def _record(start_ms: int, record: Record) -> Document:
    return {"start_ms": start_ms, **asdict(record)}


# -- one bucket ----------------------------------------------------------------------------------------------------


def bucket_document(ledger: Ledger, view: str, time_ms: int) -> Document:
    """The bucket this time lies in, and its live source beside what it was built from."""
    header = ledger.views.header(view)
    window = header.definition.grid.window(header.definition.grid.start_of(time_ms))
    entry = ledger.views.state(view, window).at(window.start_ms)
    record = ledger.dispatch.records(view).get(window.start_ms)
    live, source = _live_source(ledger, header, window.start_ms)
    return {
        "kind": "bucket",
        "view": view,
        "start_ms": window.start_ms,
        "end_ms": window.end_ms,
        "covered": header.covers(window.start_ms),
        "entry": None if entry is None else run_part(window.start_ms, 1, entry).model_dump(mode="json"),
        "source": source,
        "comparison": _comparison(entry, live, source["slice_versions"]),
        "dispatch": None if record is None else _record(window.start_ms, record),
    }


def _live_source(ledger: Ledger, header: ViewHeader, start_ms: int) -> tuple[Fingerprint, Document]:
    """Read here and not through the registry, which creates the slices it does not find."""
    table, window = header.definition.table, header.definition.grid.window(start_ms)
    keys = ledger.registry.header(table).definition.grid.keys_for_window(window)
    found = Slices(ledger.store).read(table, keys)
    segments = segments_in(window, (seen.listed for seen in found.values()))
    live = fingerprint(segments.values())
    return live, {
        "fingerprint": {"count": live.count, "hash": str(live.hash)},
        "slice_versions": {key: seen.node_version for key, seen in found.items()},
        "segments": [_segment(s) for s in sorted(segments.values(), key=lambda s: s.name)],
    }


def _comparison(entry: Entry | None, live: Fingerprint, versions: Mapping[str, int]) -> Document:
    """`matches` and `differs` speak of the fingerprint; slices may have moved without touching this bucket."""
    if entry is None or entry.fingerprint is None:
        return {"verdict": "vacant" if entry is None else "never built", "slices_moved": []}
    built = entry.slice_versions
    moved = [key for key in sorted(built, key=_slice_order) if built[key] != versions.get(key)]
    return {
        "verdict": "matches" if entry.fingerprint == live else "differs",
        "slices_moved": [{"key": key, "built_at": built[key], "now": versions.get(key)} for key in moved],
    }


def document_of(ledger: Ledger, name: str, *, kind: str | None, bucket_ms: int | None, now_ms: int) -> Document:
    """Whatever this name stands for. `kind` decides when a table and a view share it."""
    kinds = kinds_of(ledger, name)
    if not kinds or (kind is not None and kind not in kinds):
        raise InvalidInput(f"unknown-{kind or 'name'}", f"there is no {kind or 'table or view'} {name!r}")
    if kind is None and len(kinds) > 1:
        raise InvalidInput("ambiguous-name", f"{name!r} is a table and a view; say --table or --view")
    if (kind or kinds[0]) == "view":
        return view_document(ledger, name) if bucket_ms is None else bucket_document(ledger, name, bucket_ms)
    if bucket_ms is not None:
        raise InvalidInput("bucket-of-table", f"{name!r} is a table; only views have buckets")
    return table_document(ledger, name, now_ms=now_ms)
