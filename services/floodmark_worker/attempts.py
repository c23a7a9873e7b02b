"""One try at one task: what it is about, how far it came, how it ended."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from floodmark.bus.delivery import Delivery
from floodmark.contracts.envelope import Envelope
from floodmark.contracts.messages import BuildBucket
from floodmark.core.buckets import DataFile
from floodmark.core.segments import Segment
from floodmark.core.tasks import TaskFacts
from floodmark.core.transitions import Source
from floodmark_worker.intake import task_of


class Step:
    """The named steps of an attempt, in order. Each is told to an observer when it has been reached."""

    CLAIMED = "claimed"
    READING = "reading"
    WRITTEN = "files written"
    COMMITTED = "committed"
    ACKNOWLEDGED = "acknowledged"


@dataclass(slots=True)
class Attempt:
    """One try at one task."""

    delivery: Delivery[Envelope]
    facts: TaskFacts
    attempt_id: str
    segments: Mapping[str, Segment] = field(default_factory=dict)
    source: Source | None = None
    files: tuple[DataFile, ...] = ()

    @property
    def start_ms(self) -> int:
        return self.facts.start_ms

    @property
    def task(self) -> BuildBucket:
        return task_of(self.delivery)

    @property
    def task_id(self) -> str:
        return self.task.task_id

    @property
    def bytes_to_read(self) -> int:
        return sum(s.bytes for s in self.segments.values())

    @property
    def rows_written(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def bytes_written(self) -> int:
        return sum(f.bytes for f in self.files)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, and why. Rule and object are there when something is wrong."""

    outcome: str
    why: str = ""
    rule: str = ""
    object: str = ""
    wasted: bool = False
    """It was built, and not committed."""

    @property
    def is_bad(self) -> bool:
        return self.outcome in ("frozen", "failed")


def segments_of(attempts: Iterable[Attempt]) -> list[Segment]:
    """Every input of these attempts, once."""
    return list({name: s for attempt in attempts for name, s in attempt.segments.items()}.values())


def by_bytes(attempts: Sequence[Attempt], bytes_max: int) -> list[list[Attempt]]:
    """Parts that read about so much at the most; a bucket that is larger than that stands alone."""
    parts: list[list[Attempt]] = []
    size = 0
    for attempt in attempts:
        if not parts or size + attempt.bytes_to_read > bytes_max:
            parts.append([])
            size = 0
        parts[-1].append(attempt)
        size += attempt.bytes_to_read
    return parts
