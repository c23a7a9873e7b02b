"""Tells how attempts ended: a message on `results.v1`, a log line and metrics for each.

Progress counts every bucket that is settled, whoever did it; work only what this worker committed; waste what it
built for nothing. Two workers on the same task show the same progress, and one of them waste.
"""

from collections.abc import Sequence

import structlog
from prometheus_client import CollectorRegistry, Counter

from floodmark.bus.ports import Outgoing, Publisher
from floodmark.contracts.envelope import encode, originate
from floodmark.contracts.messages import BucketBuilt, BuildError
from floodmark.contracts.topics import RESULTS
from floodmark.core.ports import Clock
from floodmark_worker.attempts import Attempt, Ending

log = structlog.get_logger()


class Reporter:
    def __init__(self, publisher: Publisher, clock: Clock, metrics: CollectorRegistry) -> None:
        self._publisher = publisher
        self._clock = clock
        self._settled = Counter("floodmark_buckets_settled", "Tasks ended", ["view", "outcome"], registry=metrics)
        self._rows = Counter("floodmark_rows_written", "Rows in committed buckets", ["view"], registry=metrics)
        self._bytes = Counter("floodmark_bytes_written", "Bytes in committed buckets", ["view"], registry=metrics)
        self._read = Counter("floodmark_rows_read", "Rows read for builds", ["view"], registry=metrics)
        self._wasted = Counter("floodmark_buckets_wasted", "Built and not committed", ["view"], registry=metrics)

    def report(self, view: str, ended: Sequence[tuple[Attempt, Ending]], *, took_ms: int, rows_read: int) -> None:
        """Durable when this returns: the offsets of these tasks go next."""
        self._publisher.publish([self._message(a, e, took_ms) for a, e in ended])
        for attempt, ending in ended:
            self._count(attempt, ending)
            self._tell(attempt, ending, took_ms)
        self._read.labels(view).inc(rows_read)

    def _message(self, attempt: Attempt, ending: Ending, took_ms: int) -> Outgoing:
        task = attempt.task
        message = BucketBuilt.model_validate(
            {
                "task_id": task.task_id,
                "attempt_id": attempt.attempt_id,
                "view": task.view,
                "incarnation": task.incarnation,
                "bucket_start_ms": task.bucket_start_ms,
                "mode": task.mode,
                "outcome": ending.outcome,
                "reason": ending.why or None,
                "rows_read": sum(s.rows for s in attempt.segments.values()) if attempt.files else 0,
                "rows_written": attempt.rows_written,
                "bytes_written": attempt.bytes_written,
                "duration_ms": took_ms,
                "error": BuildError(rule=ending.rule, message=ending.why, object=ending.object)
                if ending.is_bad
                else None,
            }
        )
        envelope = originate(
            message,
            event_id=f"{attempt.attempt_id}/{ending.outcome}",
            source="worker",
            time_ms=self._clock.now_ms(),
            trace_id=attempt.delivery.message.trace_id,
        )
        encoded = encode(envelope)
        return Outgoing(RESULTS.name, encoded.key, encoded.value, encoded.headers)

    def _count(self, attempt: Attempt, ending: Ending) -> None:
        view = attempt.task.view
        self._settled.labels(view, ending.outcome).inc()
        if ending.outcome == "committed":
            self._rows.labels(view).inc(attempt.rows_written)
            self._bytes.labels(view).inc(attempt.bytes_written)
        if ending.wasted:
            self._wasted.labels(view).inc()

    def _tell(self, attempt: Attempt, ending: Ending, took_ms: int) -> None:
        task = attempt.task
        tell = log.warning if ending.is_bad else log.info
        tell(
            f"bucket_{ending.outcome}",
            view=task.view,
            bucket_ms=task.bucket_start_ms,
            mode=task.mode,
            lane=task.lane,
            why=ending.why or None,
            rows=attempt.rows_written,
            bytes=attempt.bytes_written,
            took_ms=took_ms,
            task_id=task.task_id,
            attempt_id=attempt.attempt_id,
            trace_id=attempt.delivery.message.trace_id,
        )
