"""Records that can never succeed, kept with their bytes, their place and the reason, so that nothing is lost."""

import structlog

from floodmark.bus.ports import Outgoing, Publisher, Record
from floodmark.contracts.deadletter import refuse_record
from floodmark.contracts.envelope import encode, originate, trace_id_of
from floodmark.contracts.topics import DEADLETTER
from floodmark.core.errors import InvalidInput
from floodmark.core.ports import Clock

log = structlog.get_logger()


class DeadLetters:
    """Writes to `deadletter.v1`. A record refused twice, after a crash in between, has one id in both letters."""

    def __init__(self, publisher: Publisher, *, service: str, replica: str, clock: Clock) -> None:
        self._publisher = publisher
        self._service = service
        self._replica = replica
        self._clock = clock

    def put(self, record: Record, error: InvalidInput) -> None:
        now_ms = self._clock.now_ms()
        trace_id = trace_id_of(record.headers, record.place)
        letter = refuse_record(
            error,
            topic=record.partition.topic,
            partition=record.partition.number,
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=record.headers,
            service=self._service,
            replica=self._replica,
            refused_at_ms=now_ms,
        )
        envelope = originate(
            letter, event_id=f"refused/{record.place}", source=self._service, time_ms=now_ms, trace_id=trace_id
        )
        encoded = encode(envelope)
        self._publisher.publish([Outgoing(DEADLETTER.name, encoded.key, encoded.value, encoded.headers)])
        log.warning(
            "record_refused",
            topic=record.partition.topic,
            partition=record.partition.number,
            offset=record.offset,
            trace_id=trace_id,
            rule=error.rule,
            reason=str(error),
        )
