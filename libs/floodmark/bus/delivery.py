"""A record on its way through a sink, and how the sink tells the pump what became of it."""

import queue
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from floodmark.bus.ports import Partition, Record
from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.offsets import OffsetTracker

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Assignment:
    """One partition for as long as this member holds it. Compared by identity: the next one is another."""

    partition: Partition
    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    committed: int | None = None
    held: bool = True


class Delivery(Generic[T]):
    """One record on its way through a sink. Its outcome may be told from any thread, once for each offer."""

    __slots__ = ("_given_back", "_outcomes", "assignment", "message", "record", "refusal", "tries")

    def __init__(self, record: Record, message: T, assignment: Assignment, outcomes: "Outcomes[T]") -> None:
        self.record = record
        self.message = message
        self.assignment = assignment
        self.tries = 1
        self.refusal: InvalidInput | None = None
        self._given_back: dict[str, int] | None = None  # most never are
        self._outcomes = outcomes

    def count(self, reason: str) -> int:
        """How often a sink has given it back for this reason, now included. `tries` has those for all reasons."""
        counts = self._given_back = self._given_back or {}
        counts[reason] = counts.get(reason, 0) + 1
        return counts[reason]

    def finish(self) -> None:
        """Every effect of this record is durable."""
        self._outcomes.put(Outcome(self, None))

    def refuse(self, error: InvalidInput) -> None:
        """This record can never succeed."""
        self._outcomes.put(Outcome(self, error))

    def retry(self, error: Unavailable | OutcomeUnknown) -> None:
        """Not now; offer it again."""
        self._outcomes.put(Outcome(self, error))

    def crash(self, error: BaseException) -> None:
        """Our own bug: stop the service, leave the record uncommitted."""
        self._outcomes.put(Outcome(self, error))


class Outcome(NamedTuple, Generic[T]):
    """What became of one delivery: no error means that it is finished."""

    delivery: Delivery[T]
    error: BaseException | None


class Finished(NamedTuple):
    """Records of one assignment whose every effect is durable."""

    assignment: Assignment
    offsets: Sequence[int]


Outcomes = queue.SimpleQueue[Outcome[T] | Finished]


class Receipts(Generic[T]):
    """Deliveries that are finished together, or not at all. Only what that takes is kept of each: a sink that collects
    thousands need not hold on to their messages."""

    __slots__ = ("_offsets", "_outcomes")

    def __init__(self) -> None:
        self._offsets: defaultdict[Assignment, list[int]] = defaultdict(list)
        self._outcomes: Outcomes[T] | None = None

    def add(self, delivery: Delivery[T]) -> None:
        self._outcomes = delivery._outcomes
        self._offsets[delivery.assignment].append(delivery.record.offset)

    def finish(self) -> None:
        """Every effect of these records is durable."""
        for assignment, offsets in self._offsets.items():
            assert self._outcomes is not None
            self._outcomes.put(Finished(assignment, offsets))


class Sink(Protocol[T]):
    def offer(self, deliveries: Sequence[Delivery[T]]) -> None:
        """Take what one turn of the pump brought; tell the outcome of each now or later. Must not block."""
