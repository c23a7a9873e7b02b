"""From the outbox in the ledger to `segments.v1`: publish, and only after the acknowledgement remove.

A crash anywhere in between publishes again; consumers are idempotent. An event always follows the change it reports.
"""

import threading
from dataclasses import dataclass, field

import structlog

from floodmark.bus.ports import Outgoing, Publisher
from floodmark.contracts.envelope import encode, originate
from floodmark.contracts.messages import SegmentChange, SegmentsChanged, TimeRange
from floodmark.contracts.topics import SEGMENTS
from floodmark.core.errors import InvalidInput
from floodmark.core.registry import Change, Event, ReportedChange
from floodmark.ledger.ledger import Ledger

log = structlog.get_logger()

EVENTS_AT_ONCE = 100
TRACES_LOGGED_MAX = 50


@dataclass(slots=True)
class Outbox:
    ledger: Ledger
    publisher: Publisher
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Whoever comes second in this process finds the outbox empty, instead of sending it all again."""

    def publish(self, table: str) -> int:
        """Publish everything that waits for this table, in order. Returns how many events that were."""
        with self._lock:
            events = self.ledger.registry.outbox(table)
            for n in range(0, len(events), EVENTS_AT_ONCE):
                self._publish(events[n : n + EVENTS_AT_ONCE])
        return len(events)

    def publish_all(self) -> int:
        """Also what others left behind. One table's damaged event does not keep the others waiting."""
        published = 0
        for table in self.ledger.registry.tables():
            try:
                published += self.publish(table)
            except InvalidInput as error:
                log.error("outbox_not_published", table=table, error=str(error))  # noqa: TRY400 - the sentence says it
        return published

    def _publish(self, events: list[Event]) -> None:
        self.publisher.publish([to_outgoing(event) for event in events])
        for event in events:
            traces = dict.fromkeys(c.trace_id for c in event.changes if c.trace_id)
            log.info(
                "event_published",
                table=event.table,
                event_id=event.event_id,
                registry_version=event.version,
                changes=len(event.changes),
                trace_ids=list(traces)[:TRACES_LOGGED_MAX],
            )
            self.ledger.registry.acknowledge(event.table, event)


def to_outgoing(event: Event) -> Outgoing:
    envelope = originate(
        to_message(event),
        event_id=event.event_id,
        source="ingester",
        time_ms=event.registered_at_ms,
        trace_id=event.trace_id or None,
    )
    encoded = encode(envelope)
    return Outgoing(SEGMENTS.name, encoded.key, encoded.value, encoded.headers)


def to_message(event: Event) -> SegmentsChanged:
    return SegmentsChanged(
        event_id=event.event_id,
        table=event.table,
        registry_version=event.version,
        registered_at_ms=event.registered_at_ms,
        changes=tuple(_change(change) for change in event.changes),
    )


def _change(change: Change | ReportedChange) -> SegmentChange:
    ranges = change.ranges
    return SegmentChange(
        action=change.action,
        name=change.name,
        crc=change.crc,
        ranges=None if ranges is None else tuple(TimeRange(start_ms=i.start_ms, end_ms=i.end_ms) for i in ranges),
        trace_id=change.trace_id or None,
    )
