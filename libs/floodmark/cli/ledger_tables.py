"""The documents of `floodmark ledger show` as tables for a terminal. Times are UTC."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from floodmark.catalog.times import utc
from floodmark.core.buckets import BucketGrid
from floodmark.ledger.inspection import Document

CHANGES_SHOWN_MAX = 3


def rendered(document: Document) -> Iterable[RenderableType]:
    return {"table": _table, "view": _view, "bucket": _bucket}[document["kind"]](document)


# -- a table -------------------------------------------------------------------------------------------------------


def _table(document: Document) -> Iterable[RenderableType]:
    definition = document["definition"]
    yield _facts(
        f"table {document['name']}",
        {
            "location": definition["location"],
            "time column": definition["time_column"],
            "columns": ", ".join(f"{name} {kind}" for name, kind in definition["columns"]) or "-",
            "properties": _pairs(definition["properties"]),
            "slice span": _span(definition["slice_span_ms"]),
            "version": document["version"],
            "segments": document["segment_count"],
            "data": f"{utc(document['min_start_ms'])} to {utc(document['max_last_ms'])}",
        },
    )
    slices = [
        (_slice_name(s["key"]), len(s["segments"]), _total(s, "rows"), _total(s, "bytes"), s["node_version"])
        for s in document["slices"]
    ]
    yield from _listed("slices", ("slice", "segments", "rows", "bytes", "node version"), slices)
    events = [
        (e["version"], utc(e["registered_at_ms"]), e["event_id"], _changes(e["changes"])) for e in document["outbox"]
    ]
    yield from _listed("outbox, not yet acknowledged", ("version", "registered", "event", "changes"), events)
    holds = [
        (
            h["reader"],
            h["registry_version"],
            utc(h["taken_at_ms"]),
            utc(h["expires_at_ms"]),
            "" if h["live"] else "over",
        )
        for h in document["holds"]
    ]
    yield from _listed("holds", ("reader", "version", "taken", "expires", ""), holds)
    condemned = [(c["version"], utc(c["condemned_at_ms"]), len(c["files"])) for c in document["condemned"]]
    yield from _listed("condemned, to be deleted when no hold sees them", ("version", "since", "files"), condemned)


def _slice_name(key: str) -> str:
    return key if key == "wide" else utc(int(key))


def _total(listed: Document, field: str) -> int:
    return sum(segment[field] for segment in listed["segments"])


def _changes(changes: list[Document]) -> str:
    shown = [f"{c['action']} {c['name']}" for c in changes[:CHANGES_SHOWN_MAX]]
    more = len(changes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


# -- a view --------------------------------------------------------------------------------------------------------


def _view(document: Document) -> Iterable[RenderableType]:
    header = document["header"]
    grid = BucketGrid(header["bucket_ms"])
    yield _facts(
        f"view {document['name']}",
        {
            "table": header["table"],
            "status": header["status"],
            "coverage": f"{utc(header['coverage_start_ms'])} ({header['coverage']})",
            "watermark": utc(header["watermark_ms"]),
            "bucket": _span(header["bucket_ms"]),
            "location": header["location"],
            "definition": f"{header['hash']}: {header['select']}",
            "properties": _pairs(header["properties"]),
            "incarnation": f"{header['incarnation']}, created {utc(header['created_at_ms'])}",
            "buckets": ", ".join(f"{count} {kind}" for kind, count in document["counts"].items()),
        },
    )
    yield from _listed(
        "buckets",
        ("from", "to", "buckets", "state", "fingerprint", "files", "attempt", "cause"),
        [_run(run, grid) for run in document["buckets"]],
    )
    yield from _listed(
        "dispatch records",
        ("bucket", "progress", "lane", "tries", "since", "worker", "not before", "error", "task"),
        [(utc(r["start_ms"]), *_record(r)) for r in document["dispatch"]],
    )


def _run(run: Document, grid: BucketGrid) -> tuple[object, ...]:
    end_ms = run["start_ms"] + run["count"] * grid.width_ms
    files = f"{len(run['files'])}, {_total({'segments': run['files']}, 'rows')} rows" if run["files"] else "-"
    where = (utc(run["start_ms"]), utc(end_ms), run["count"], run["state"])
    return (*where, _fingerprint(run["fingerprint"]), files, run["attempt_id"] or "-", _cause(run["cause"]))


def _record(record: Document) -> tuple[object, ...]:
    return (
        record["progress"],
        record["lane"],
        record["tries"],
        utc(record["changed_at_ms"]),
        record["worker"] or "-",
        utc(record["not_before_ms"] or None),
        record["error"] or "-",
        record["task_id"],
    )


def _fingerprint(value: Document | None) -> str:
    if value is None:
        return "-"
    return "empty" if value["count"] == 0 else f"{value['count']} x {value['hash']}"


def _cause(value: Document | None) -> str:
    if value is None:
        return "-"
    named = f" {', '.join(value['segments'])}" if value["segments"] else ""
    return f"{value['kind']} {value['event_id']} at {utc(value['marked_at_ms'])}{named}"


# -- a bucket ------------------------------------------------------------------------------------------------------


def _bucket(document: Document) -> Iterable[RenderableType]:
    entry, source, comparison = document["entry"], document["source"], document["comparison"]
    facts: dict[str, object] = {"window": f"{utc(document['start_ms'])} to {utc(document['end_ms'])}"}
    if entry is None:
        facts["state"] = "VACANT, inside coverage" if document["covered"] else "VACANT, outside coverage"
    else:
        facts |= {
            "state": entry["state"] + ("" if document["covered"] else ", outside coverage"),
            "built from": _fingerprint(entry["fingerprint"]),
            "built by": entry["attempt_id"] or "-",
            "built at": utc(entry["refreshed_at_ms"] or None),
            "definition": entry["definition_hash"] or "-",
            "last mark": _cause(entry["cause"]),
        }
    facts |= {"source now": _fingerprint(source["fingerprint"]), "comparison": _verdict(comparison)}
    if document["dispatch"]:
        facts["dispatch"] = " ".join(str(value) for value in _record(document["dispatch"]) if value != "-")
    yield _facts(f"bucket {utc(document['start_ms'])} of view {document['view']}", facts)
    files = [(f["name"], f["rows"], f["bytes"]) for f in entry["files"]] if entry else []
    yield from _listed("files", ("file", "rows", "bytes"), files)
    segments = [(s["name"], s["crc"], utc(s["start_ms"]), utc(s["last_ms"]), s["rows"]) for s in source["segments"]]
    yield from _listed("source now", ("segment", "crc", "first", "last", "rows"), segments)


def _verdict(comparison: Document) -> str:
    moved = [f"{_slice_name(m['key'])} from version {m['built_at']} to {m['now']}" for m in comparison["slices_moved"]]
    return str(comparison["verdict"]) + (f"; slices moved: {', '.join(moved)}" if moved else "")


# -- forms ---------------------------------------------------------------------------------------------------------


def _facts(title: str, facts: Mapping[str, object]) -> Table:
    grid = Table(
        Column(style="dim", no_wrap=True), Column(overflow="fold"), box=None, pad_edge=False, show_header=False
    )
    grid.title, grid.title_justify = Text(title, style="bold"), "left"
    for name, value in facts.items():
        grid.add_row(name, Text(str(value)))
    return grid


def _listed(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterable[RenderableType]:
    """A list under its title; nothing at all when it is empty, but for saying so."""
    if not rows:
        yield Text(f"{title}: none", style="dim")
        return
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False)
    table.title, table.title_justify = Text(title, style="bold"), "left"
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    yield table


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in properties.items()) or "-"


def _span(ms: int) -> str:
    for unit, size_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if ms % size_ms == 0:
            count = ms // size_ms
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{ms} ms"
