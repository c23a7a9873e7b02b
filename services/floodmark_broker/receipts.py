"""Receipts and explanations: what a plan says of itself, as documents and as rows."""

from typing import Any

import pyarrow as pa

from floodmark.catalog.durations import format_duration
from floodmark.catalog.times import utc
from floodmark.core.counting import counted
from floodmark.core.intervals import Interval
from floodmark.query.plan import BaseRange, Bounded, Freshness, PlanReceipt, QueryPlan, Source
from floodmark_broker.commands import relation

RANGES_MAX = 100
"""So many ranges are told one by one; a query over years of scattered buckets must not drown its rows."""

Document = dict[str, Any]


def document_of(receipt: PlanReceipt) -> Document:
    return {
        "view": receipt.view,
        "rewrite": None if receipt.rewrite is None else str(receipt.rewrite),
        "freshness": freshness_text(receipt.freshness),
        "as_of": utc(receipt.as_of_ms),
        "registry_versions": dict(receipt.registry_versions),
        "from_view": {
            "buckets": receipt.buckets_from_view,
            "bytes": receipt.bytes_from_view,
            "ranges": [_interval(i) for i in receipt.from_view[:RANGES_MAX]],
            "ranges_left_out": max(0, len(receipt.from_view) - RANGES_MAX),
        },
        "from_base": {
            "bytes": receipt.bytes_from_base,
            "ranges": [_base_range(r) for r in receipt.from_base[:RANGES_MAX]],
            "ranges_left_out": max(0, len(receipt.from_base) - RANGES_MAX),
        },
        "unused": [{"view": u.view, "rule": u.rule, "reason": u.message} for u in receipt.unused],
    }


def explanation(plan: QueryPlan) -> pa.Table:
    """A plan in rows for people."""
    receipt = plan.receipt
    used = f"{receipt.view} ({receipt.rewrite})" if receipt.view else "none: everything is read from base"
    rows: list[tuple[str, str]] = [("view", used), ("freshness", freshness_text(receipt.freshness))]
    rows += [("registry", f"{table} at version {version}") for table, version in receipt.registry_versions]
    rows += [("from view", f"{_interval_text(i)}") for i in receipt.from_view[:RANGES_MAX]]
    if receipt.view:
        buckets = counted(receipt.buckets_from_view, "bucket")
        rows.append(("from view", f"{buckets}, {counted(receipt.bytes_from_view, 'byte')}"))
    rows += [("from base", _base_text(r)) for r in receipt.from_base[:RANGES_MAX]]
    rows.append(("from base", counted(receipt.bytes_from_base, "byte")))
    rows += [("not used", f"{u.view}: {u.rule}: {u.message}") for u in receipt.unused]
    rows += [("reads", _source_text(source)) for source in plan.sources]
    return relation(("item", "value"), [*rows, ("sql", plan.sql)])


def _source_text(source: Source) -> str:
    sizes = ((len(source.files), "file"), (source.rows, "row"), (source.bytes, "byte"))
    return f"{', '.join(counted(*size) for size in sizes)} of {source.kind} {source.of}"


def freshness_text(freshness: Freshness) -> str:
    return f"bounded {format_duration(freshness.ms)}" if isinstance(freshness, Bounded) else "strict"


def _base_range(found: BaseRange) -> Document:
    document: Document = {"why": str(found.why), "buckets": found.buckets}
    if found.interval is not None:
        document |= _interval(found.interval)
    if found.cause is not None:
        document |= {"segments": list(found.cause.segments), "event": found.cause.event_id}
    return document | ({"error": found.error} if found.error else {})


def _base_text(found: BaseRange) -> str:
    where = "any time" if found.interval is None else _interval_text(found.interval)
    segments = f", {', '.join(found.cause.segments)}" if found.cause and found.cause.segments else ""
    return f"{where}: {found.why}{segments}{f', {found.error}' if found.error else ''}"


def _interval(interval: Interval) -> Document:
    return {"start": utc(interval.start_ms), "end": utc(interval.end_ms)}


def _interval_text(interval: Interval) -> str:
    return f"{utc(interval.start_ms)} to {utc(interval.end_ms)}"
