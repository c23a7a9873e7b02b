"""Sends tasks. What could not be sent is kept and goes out first the next time: the ledger has it as given out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from floodmark.bus.ports import Outgoing, Publisher
from floodmark.contracts.envelope import Envelope, encode, originate
from floodmark.contracts.messages import BuildBucket, SourceFingerprint
from floodmark.contracts.topics import TASKS
from floodmark.core.dispatch import Record
from floodmark.core.errors import InvalidInput
from floodmark.core.ports import Clock
from floodmark.core.scheduling import Lane, task_id
from floodmark.core.tables import ViewHeader
from floodmark.core.transitions import Mode, Source
from floodmark.ledger.dispatch import Offer

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done with one bucket, from exactly which input."""

    view: ViewHeader
    start_ms: int
    mode: Mode
    lane: Lane
    source: Source
    trace_id: str | None

    @property
    def task_id(self) -> str:
        return task_id(self.view.incarnation, self.start_ms, self.mode, self.source.fingerprint)

    @property
    def offer(self) -> Offer:
        return Offer(self.start_ms, self.task_id, self.lane)

    def message(self, record: Record, *, now_ms: int) -> BuildBucket:
        definition, built_from = self.view.definition, self.source.fingerprint
        return BuildBucket(
            task_id=record.task_id,
            view=definition.name,
            incarnation=self.view.incarnation,
            bucket_start_ms=self.start_ms,
            bucket_end_ms=self.start_ms + definition.bucket_ms,
            mode=self.mode.value,
            lane=self.lane.value,
            fingerprint=SourceFingerprint(count=built_from.count, hash=built_from.hash),
            slice_versions=dict(self.source.slice_versions),
            definition_hash=definition.hash,
            dispatched_at_ms=now_ms,
            dispatch_try=record.tries,
        )


@dataclass(slots=True)
class TaskSender:
    publisher: Publisher
    clock: Clock
    on_task: Callable[[str, str], None] = lambda _view, _lane: None
    """Told the view and the lane of each task that was sent."""
    _unsent: list[tuple[Task, Envelope]] = field(default_factory=list)

    def send(self, tasks: Sequence[tuple[Task, Record]]) -> None:
        now_ms = self.clock.now_ms()
        self._unsent += [(task, _envelope(task, record, now_ms=now_ms)) for task, record in tasks]
        self.flush()

    def flush(self) -> None:
        """Send what is waiting, all of it or, as far as anyone knows, none: a task that comes twice does no harm."""
        if not self._unsent:
            return
        try:
            self._publish(self._unsent)
        except InvalidInput:
            self._flush_singly()  # one of them will never go; the others do not wait for it (INV-14)
        self._unsent.clear()

    def _flush_singly(self) -> None:
        while self._unsent:
            try:
                self._publish(self._unsent[:1])
            except InvalidInput as error:
                view, start_ms = self._unsent[0][0].view.definition.name, self._unsent[0][0].start_ms
                log.error("task_not_sendable", view=view, bucket_ms=start_ms, error=str(error))  # noqa: TRY400 - the sentence says it all
            self._unsent.pop(0)

    def _publish(self, tasks: Sequence[tuple[Task, Envelope]]) -> None:
        encoded = [encode(envelope) for _, envelope in tasks]
        self.publisher.publish([Outgoing(TASKS.name, e.key, e.value, e.headers) for e in encoded])
        for task, envelope in tasks:
            self._tell(task, envelope)

    def _tell(self, task: Task, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, BuildBucket), f"{message} is not a task"
        self.on_task(message.view, message.lane)
        log.info(
            "task_dispatched",
            view=message.view,
            table=task.view.definition.table,
            bucket_ms=message.bucket_start_ms,
            mode=message.mode,
            lane=message.lane,
            task_id=message.task_id,
            dispatch_try=message.dispatch_try,
            trace_id=envelope.trace_id,
        )


def _envelope(task: Task, record: Record, *, now_ms: int) -> Envelope:
    message = task.message(record, now_ms=now_ms)
    return originate(
        message,
        event_id=f"{message.task_id}/{record.tries}",
        source="scheduler",
        time_ms=now_ms,
        trace_id=task.trace_id,
    )
