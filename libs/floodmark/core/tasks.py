"""What a task is worth, given what the ledger knows now. Asked when a task arrives; the commit asks again.

covered      the ledger is past it: someone did it, or nobody needs it any more. Dropped, never an error (INV-10)
superseded   its input changed, or the bucket needs another kind of work: the scheduler will ask for that
ahead        it knows more than this reading of the ledger shows: read again, or give it back
again        the attempt lost its hold, which says nothing of the task: give it back, unless that happens every time
failed       its commit is larger than a write may be, whoever tries: counted as a failure (INV-10)
run          it fits
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from floodmark.core.buckets import Entry, State
from floodmark.core.tables import ViewHeader
from floodmark.core.transitions import AlreadyTrue, Changed, Decision, Mode, Reason, Source


class Worth(StrEnum):
    RUN = "run"
    COVERED = "covered"
    SUPERSEDED = "superseded"
    AHEAD = "ahead"
    AGAIN = "again"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    worth: Worth
    why: str = ""


RUN = Verdict(Worth.RUN)


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What a task says of itself."""

    start_ms: int
    mode: Mode
    incarnation: str
    definition_hash: str
    source: Source


def of_view(task: TaskFacts, header: ViewHeader | None) -> Verdict:
    """Whether this is still the view the task was made for."""
    if header is None or header.incarnation != task.incarnation:
        return Verdict(Worth.COVERED, "the view was dropped or replaced")
    if header.definition.hash != task.definition_hash:
        return Verdict(Worth.COVERED, "the view has another definition")
    return RUN


def of_bucket(task: TaskFacts, entry: Entry | None, live: Source) -> Verdict:
    """Whether the bucket still waits for exactly this."""
    if entry is not None and entry.state is State.VALID:
        return Verdict(Worth.COVERED, "the bucket is VALID already")
    if _is_older(live.slice_versions, task.source.slice_versions):
        return Verdict(Worth.AHEAD, "the task was made from a newer registry than is seen here")
    if task.mode is Mode.APPEND and entry is not None:
        return Verdict(Worth.SUPERSEDED, "the bucket was marked STALE since")
    if task.mode is not Mode.APPEND and entry is None:
        return Verdict(Worth.AHEAD, "the bucket has no entry yet")
    if live.fingerprint != task.source.fingerprint:
        return Verdict(Worth.SUPERSEDED, "the source changed since")
    return RUN


def of_commit(decision: Decision) -> Verdict:
    """What a commit found, in the same words. RUN means that it is committed."""
    if isinstance(decision, Changed | AlreadyTrue):
        return RUN
    if decision.reason is Reason.HOLD_LOST:
        return Verdict(Worth.AGAIN, decision.reason)
    if decision.reason is Reason.TOO_LARGE:
        return Verdict(Worth.FAILED, f"{decision.reason}: {decision.detail}")
    done = decision.found is not None and decision.found.state is State.VALID
    if done or decision.reason is Reason.DROPPED:
        return Verdict(Worth.COVERED, decision.reason)
    return Verdict(Worth.SUPERSEDED, decision.reason)


def _is_older(seen: Mapping[str, int], known: Mapping[str, int]) -> bool:
    return any(seen.get(key, -1) < version for key, version in known.items())
