"""Dispatch records: which task of which bucket is out, with whom, how often it failed, and whether it is quarantined.

    offered --claimed by a worker--> claimed --finished--> (no record)
       ^  ^-------- given back ---------|
       |                                |failed
       |                                v
       +------ backoff is over ------ failed --tries used up--> quarantined --released--> (no record)

A task whose worker died is offered again at once. Deaths are counted apart from failures, with a higher limit: workers
die when they are restarted, which says nothing against a task, but one that kills every worker must end too (INV-10).

An offer that cannot be sent has failed: no worker will ever claim it.

A record belongs to a task id, which names the exact input: when the source changes, the next task starts afresh.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

ERROR_BYTES_MAX = 1_000
"""What a record keeps of an error. The records of a shard are one node: 256 of the largest must fit."""


class Progress(StrEnum):
    OFFERED = "offered"
    CLAIMED = "claimed"
    FAILED = "failed"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Record:
    task_id: str
    progress: Progress
    lane: str
    tries: int
    changed_at_ms: int
    worker: str = ""
    """Who has it: the scheduler that offered it, then the worker that claimed it."""
    not_before_ms: int = 0
    error: str = ""
    """Of the last failed try. It stays while the next one is out, so that a failing bucket shows why."""
    frozen: bool = False
    """That try failed because an input file is missing or not what was registered."""
    deaths: int = 0
    """How many workers died with this task in hand."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When to give a task out again, and when to stop trying."""

    tries_max: int = 5
    backoff_first_ms: int = 1_000
    backoff_cap_ms: int = 300_000
    unclaimed_max_ms: int = 60_000
    """An offer nobody took for this long is given out again: its message may be lost."""
    deaths_max: int = 10
    frozen_tries_max: int = 100
    """Looking again for an input that was missing costs little, and whoever puts it back should not have to ask."""

    def backoff_ms(self, tries: int) -> int:
        return min(self.backoff_cap_ms, self.backoff_first_ms << min(tries - 1, 30))


class Refusal(StrEnum):
    """Why a bucket gets no task now."""

    IN_FLIGHT = "in flight"
    BACKING_OFF = "backing off"
    QUARANTINED = "quarantined"
    DROPPED = "the view was dropped"


def in_flight(record: Record, *, now_ms: int, alive: Collection[str], policy: Policy) -> bool:
    """Whether someone has this task, or may still take it.

    An offer whose scheduler died may never have been sent, and one that is old may be lost.
    """
    if record.progress is Progress.CLAIMED:
        return record.worker in alive
    if record.progress is Progress.OFFERED:
        is_young = now_ms - record.changed_at_ms < policy.unclaimed_max_ms
        return is_young and (not record.worker or record.worker in alive)
    return False


def offer(
    record: Record | None,
    *,
    task_id: str,
    lane: str,
    now_ms: int,
    alive: Collection[str],
    policy: Policy,
    offered_by: str = "",
) -> Record | Refusal:
    """The record for giving this task out now, or why not.

    The record to keep may also be a quarantined one, when the last worker that may die of this task did.
    """
    if record is None or record.task_id != task_id:
        return Record(task_id, Progress.OFFERED, lane, 1, now_ms, offered_by)
    if record.progress is Progress.QUARANTINED:
        return Refusal.QUARANTINED
    if record.progress is Progress.FAILED and now_ms < record.not_before_ms:
        return Refusal.BACKING_OFF
    if in_flight(record, now_ms=now_ms, alive=alive, policy=policy):
        return Refusal.IN_FLIGHT
    deaths = record.deaths + (record.progress is Progress.CLAIMED)
    if deaths >= policy.deaths_max:
        return _quarantined(record, deaths=deaths, now_ms=now_ms)
    return replace(
        record,
        progress=Progress.OFFERED,
        lane=lane,
        tries=record.tries + (record.progress is Progress.FAILED),
        deaths=deaths,
        changed_at_ms=now_ms,
        worker=offered_by,
        not_before_ms=0,
    )


def refuse(record: Record, *, error: str, now_ms: int, policy: Policy) -> Record:
    """The record of an offer that cannot be sent: this try of it has failed before anyone could be told."""
    if record.progress is not Progress.OFFERED:
        return record
    failed = fail(record, task_id=record.task_id, error=error, now_ms=now_ms, policy=policy)
    assert failed is not None, f"{record} is not quarantined"
    return failed


def _quarantined(record: Record, *, deaths: int, now_ms: int) -> Record:
    error = f"its worker died {deaths} times, the last one was {record.worker}"
    return replace(
        record, progress=Progress.QUARANTINED, worker="", error=error, frozen=False, deaths=deaths, changed_at_ms=now_ms
    )


def has_ended(record: Record | None, *, task_id: str) -> bool:
    """Whether this try of the task is over, by another copy of its message. The next one has a message of its own."""
    return (
        record is not None and record.task_id == task_id and record.progress in (Progress.FAILED, Progress.QUARANTINED)
    )


def claim(record: Record | None, *, task_id: str, worker: str, now_ms: int) -> Record | None:
    """The record after a worker took the task; None when it is no longer this task's, or this try of it is over."""
    if record is None or record.task_id != task_id or has_ended(record, task_id=task_id):
        return None
    return replace(record, progress=Progress.CLAIMED, worker=worker, changed_at_ms=now_ms)


def give_back(record: Record | None, *, task_id: str, worker: str, now_ms: int) -> Record | None:
    """The record after a worker let go of the task without an outcome; None when it is not this worker's.

    It is as good as newly offered: the message comes again, or is lost and nobody takes it.
    """
    if record is None or record.task_id != task_id:
        return None
    if record.progress is not Progress.CLAIMED or record.worker != worker:
        return None
    return replace(record, progress=Progress.OFFERED, worker="", changed_at_ms=now_ms)


def fail(
    record: Record | None, *, task_id: str, error: str, now_ms: int, policy: Policy, frozen: bool = False
) -> Record | None:
    """The record after a failed try: backing off, or quarantined with its error."""
    if record is None or record.task_id != task_id or record.progress is Progress.QUARANTINED:
        return None
    tries_max = policy.frozen_tries_max if frozen else policy.tries_max
    progress = Progress.QUARANTINED if record.tries >= tries_max else Progress.FAILED
    not_before_ms = now_ms + policy.backoff_ms(record.tries)
    return replace(
        record,
        progress=progress,
        worker="",
        error=error.encode(errors="replace")[:ERROR_BYTES_MAX].decode(errors="ignore"),
        frozen=frozen,
        changed_at_ms=now_ms,
        not_before_ms=not_before_ms,
    )
