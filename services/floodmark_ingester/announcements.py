"""What the ingester does with announcements: a batch of them becomes one registration."""

from collections.abc import Sequence

import structlog

from floodmark.bus.delivery import Delivery
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.core.errors import InvalidInput
from floodmark.service.logs import about_delivery
from floodmark_ingester.registrar import Registrar, Request

log = structlog.get_logger()


def handle(registrar: Registrar, deliveries: Sequence[Delivery[Envelope]]) -> None:
    """Register what was announced and tell each delivery what became of it."""
    requests = [_request(d) for d in deliveries]
    for delivery, request, trouble in zip(deliveries, requests, registrar.register(requests), strict=True):
        if trouble is None:
            _tell(delivery, request)
            delivery.finish()
        elif isinstance(trouble, InvalidInput):
            delivery.refuse(trouble)
        else:
            delivery.retry(trouble)


def request_of(announced: SegmentAnnounced, trace_id: str) -> Request:
    return Request(
        table=announced.table,
        action=announced.action,
        path=announced.path,
        name=announced.name,
        metadata=announced.metadata,
        trace_id=trace_id,
    )


def _request(delivery: Delivery[Envelope]) -> Request:
    announced = delivery.message.message
    assert isinstance(announced, SegmentAnnounced), f"{announced} came through the announcements topic"
    return request_of(announced, delivery.message.trace_id)


def _tell(delivery: Delivery[Envelope], request: Request) -> None:
    """One line for each record that was handled. Refused and postponed ones are told of by the pump."""
    with about_delivery(delivery):
        log.info(
            "announcement_handled", table=request.table, action=request.action, path=request.path, segment=request.name
        )
