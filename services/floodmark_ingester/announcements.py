"""What the ingester does with announcements: a batch of them becomes one registration.

SUBTLE: what is said later of a file counts. Records that could not be handled come again after a while, each in its own
time, so without care:

    topic   delete a, add a         the store is away: both are postponed
    here    add a, again            a is registered
    here    delete a, again         a is forgotten, and nobody says anything of it any more

So a record is remembered while it is postponed, and when a later one about the same file has been carried out, it has
nothing left to say.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from floodmark.bus.delivery import Delivery
from floodmark.bus.ports import Partition
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable
from floodmark.service.logs import about_delivery
from floodmark_ingester.registrar import Registrar, Request, Trouble

log = structlog.get_logger()


@dataclass(slots=True)
class Announcements:
    registrar: Registrar
    _postponed: set[Delivery[Envelope]] = field(default_factory=set)
    _overtaken: set[Delivery[Envelope]] = field(default_factory=set)
    """Of the postponed ones, those about a file of which a later record was carried out."""

    def handle(self, deliveries: Sequence[Delivery[Envelope]]) -> None:
        """Register what was announced and tell each delivery what became of it."""
        overtaken = [d for d in deliveries if d in self._overtaken]
        current = sorted((d for d in deliveries if d not in self._overtaken), key=_place)
        troubles = self.registrar.register([_request(d) for d in current])
        outcomes = dict(zip(current, troubles, strict=True))
        self._remember(outcomes)
        for delivery, trouble in outcomes.items():
            if trouble is None:
                _tell(delivery, "announcement_handled")
                delivery.finish()
            elif isinstance(trouble, InvalidInput):
                delivery.refuse(trouble)
            else:
                delivery.retry(trouble)
        for delivery in overtaken:
            _tell(delivery, "announcement_overtaken")
            delivery.finish()
        self._overtaken.difference_update(overtaken)

    def _remember(self, outcomes: Mapping[Delivery[Envelope], Trouble | None]) -> None:
        postponed = {d for d, trouble in outcomes.items() if isinstance(trouble, Unavailable | OutcomeUnknown)}
        waiting = (self._postponed - outcomes.keys()) | postponed
        waiting = {d for d in waiting if d.assignment.held}  # what was revoked is read again by its new owner
        overtaken = _overtaken(waiting, [d for d, trouble in outcomes.items() if trouble is None])
        self._postponed = waiting - overtaken
        self._overtaken = {d for d in self._overtaken if d.assignment.held} | overtaken


def _place(delivery: Delivery[Envelope]) -> tuple[int, int]:
    return delivery.record.partition.number, delivery.record.offset


def _overtaken(waiting: Collection[Delivery[Envelope]], done: Sequence[Delivery[Envelope]]) -> set[Delivery[Envelope]]:
    """Those of which something later is done. Both may be thousands, after the store was away."""
    if not waiting:
        return set()
    latest = {name: delivery.record.offset for delivery in done for name in _names(delivery)}  # `done` is in order
    return {d for d in waiting if any(latest.get(name, -1) > d.record.offset for name in _names(d))}


def _names(delivery: Delivery[Envelope]) -> Iterator[tuple[Partition, str, str]]:
    """What a record calls its segment: one without a name has its path for a name."""
    request = _request(delivery)
    return ((delivery.record.partition, request.table, word) for word in (request.path, request.name) if word)


def request_of(announced: SegmentAnnounced, trace_id: str) -> Request:
    return Request(
        table=announced.table,
        action=announced.action,
        path=announced.path,
        name=announced.name,
        metadata=announced.metadata,
        trace_id=trace_id,
        only_if_absent=announced.only_if_absent,
    )


def _request(delivery: Delivery[Envelope]) -> Request:
    announced = delivery.message.message
    assert isinstance(announced, SegmentAnnounced), f"{announced} came through the announcements topic"
    return request_of(announced, delivery.message.trace_id)


def _tell(delivery: Delivery[Envelope], event: str) -> None:
    """One line for each record that was handled. Refused and postponed ones are told of by the pump."""
    request = _request(delivery)
    with about_delivery(delivery):
        log.info(event, table=request.table, action=request.action, path=request.path, segment=request.name)
