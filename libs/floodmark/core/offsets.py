"""Which offset may be committed when records finish in any order.

Offsets are tracked by identity, one tracker for each assigned partition. The position is the lowest offset still
outstanding, or the one after the highest seen when nothing is, so it never passes unfinished work:

    started   0 1 2 3 4 5 6 7      finished   0 1 2 3 4 . 6 7      position   5
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class OffsetTracker:
    """The outstanding offsets of one partition under one assignment."""

    _started: deque[int] = field(default_factory=deque)  # from the position on, in order
    _outstanding: set[int] = field(default_factory=set)
    _next: int | None = None  # one past the newest record

    def start(self, offset: int) -> None:
        """A record was handed out. Offsets arrive in increasing order; gaps (compaction, markers) are fine."""
        assert self._next is None or offset >= self._next, f"offset {offset} arrived after {self._next}"
        self._started.append(offset)
        self._outstanding.add(offset)
        self._next = offset + 1

    def finish(self, offset: int) -> None:
        """The effect of this record is durable."""
        assert offset in self._outstanding, f"offset {offset} is not outstanding"
        self._outstanding.remove(offset)
        while self._started and self._started[0] not in self._outstanding:
            self._started.popleft()

    @property
    def next_offset(self) -> int | None:
        """One past the newest record handed out. None before the first."""
        return self._next

    @property
    def position(self) -> int | None:
        """The offset to commit: everything below it is durable. None before the first record."""
        return self._started[0] if self._started else self._next

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    @property
    def span(self) -> int:
        """How many records a crash would bring back, finished ones above an unfinished one included."""
        return len(self._started)
