"""Sends tasks. What could not be sent is kept and goes out first the next time: the ledger has it as given out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
from pydantic import ValidationError

from floodmark.bus.ports import Outgoing, Publisher
from floodmark.contracts.envelope import Envelope, encode, originate
from floodmark.contracts.messages import BuildBucket, SourceFingerprint
from floodmark.contracts.parsing import complaints
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
    """What is to be done with one bucket, from exactly which input, and the message that says so."""

    view: ViewHeader
    start_ms: int
    lane: Lane
    task_id: str
    message: BuildBucket | InvalidInput
    """As it is first sent, or why there can be no such message."""
    trace_id: str | None

    @classmethod
    def of(
        cls, view: ViewHeader, start_ms: int, mode: Mode, lane: Lane, source: Source, *, trace_id: str | None
    ) -> "Task":
        """SUBTLE: the message is made before the ledger has the task as given out. Made after that, one that cannot be
        made would leave an offer that nobody ever hears of, given out again and again (INV-10)."""
        name = task_id(view.incarnation, start_ms, mode, source.fingerprint)
        return cls(view, start_ms, lane, name, _message(view, start_ms, mode, lane, source, task_id=name), trace_id)

    @property
    def offer(self) -> Offer:
        trouble = str(self.message) if isinstance(self.message, InvalidInput) else ""
        return Offer(self.start_ms, self.task_id, self.lane, trouble)


def _message(
    view: ViewHeader, start_ms: int, mode: Mode, lane: Lane, source: Source, *, task_id: str
) -> BuildBucket | InvalidInput:
    definition, built_from = view.definition, source.fingerprint
    try:
        return BuildBucket(
            task_id=task_id,
            view=definition.name,
            incarnation=view.incarnation,
            bucket_start_ms=start_ms,
            bucket_end_ms=start_ms + definition.bucket_ms,
            mode=mode.value,
            lane=lane.value,
            fingerprint=SourceFingerprint(count=built_from.count, hash=built_from.hash),
            slice_versions=dict(source.slice_versions),
            definition_hash=definition.hash,
            dispatched_at_ms=0,
            dispatch_try=1,
        )
    except ValidationError as error:
        return InvalidInput("task", f"no task can be sent for it: {complaints(error)}")


@dataclass(slots=True)
class TaskSender:
    publisher: Publisher
    clock: Clock
    on_task: Callable[[str, str], None] = lambda _view, _lane: None
    """Told the view and the lane of each task that was sent."""
    _unsent: list[tuple[Task, Envelope]] = field(default_factory=list)
    _refused: list[tuple[Task, InvalidInput]] = field(default_factory=list)

    def send(self, tasks: Sequence[tuple[Task, Record]]) -> None:
        now_ms = self.clock.now_ms()
        self._unsent += [(task, _envelope(task, record, now_ms=now_ms)) for task, record in tasks]
        self.flush()

    def flush(self) -> None:
        """Send what is waiting, all of it or, as far as anyone knows, none: a task that comes twice does no harm.

        What the bus refuses is waiting no more: see `take_refused`.
        """
        if not self._unsent:
            return
        try:
            self._publish(self._unsent)
        except InvalidInput:
            self._flush_singly()  # one of them will never go; the others do not wait for it (INV-14)
        self._unsent.clear()

    def take_refused(self) -> list[tuple[Task, InvalidInput]]:
        """What the bus has refused since this was last asked. The ledger still has it as given out."""
        refused, self._refused = self._refused, []
        return refused

    def _flush_singly(self) -> None:
        while self._unsent:
            try:
                self._publish(self._unsent[:1])
            except InvalidInput as error:
                view, start_ms = self._unsent[0][0].view.definition.name, self._unsent[0][0].start_ms
                log.error("task_not_sendable", view=view, bucket_ms=start_ms, error=str(error))  # noqa: TRY400 - the sentence says it all
                self._refused.append((self._unsent[0][0], error))
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
    assert isinstance(task.message, BuildBucket), f"{task.task_id} was offered although {task.message}"
    # Not validated again: nothing may go wrong with a task that is recorded as given out.
    message = task.message.model_copy(update={"dispatch_try": record.tries, "dispatched_at_ms": now_ms})
    return originate(
        message,
        event_id=f"{message.task_id}/{record.tries}",
        source="scheduler",
        time_ms=now_ms,
        trace_id=task.trace_id,
    )
