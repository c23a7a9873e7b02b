"""What the scheduler decides, on values: what to do with a STALE bucket, how far to append, in which lane.

live       buckets near the end of the data, so that fresh data is never behind a backlog
repair     STALE buckets elsewhere
backfill   everything that was never built and is not near the end
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from floodmark.core.buckets import ASKED, BucketGrid, Entry
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.runs import Runs
from floodmark.core.tables import TableHeader, ViewHeader
from floodmark.core.transitions import Mode

T = TypeVar("T")


class Lane(StrEnum):
    LIVE = "live"
    REPAIR = "repair"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class Revert:
    """The source is what the bucket was built from: no task, just a state."""


def remedy(entry: Entry, live: Fingerprint, *, definition_hash: str) -> Mode | Revert:
    """What a STALE bucket needs, given its source now. Who asks for it to be built again has a reason."""
    asked = entry.cause is not None and entry.cause.kind == ASKED
    if entry.is_built_from(live, definition_hash) and not asked:
        return Revert()
    return rebuild(live)


def rebuild(live: Fingerprint) -> Mode:
    """How a STALE bucket is made VALID from this source."""
    return Mode.DELETE if live.is_empty else Mode.OVERWRITE


def append_cutoff_ms(table: TableHeader, *, now_ms: int, buffer_ms: int) -> int | None:
    """Where appending ends: the end of the data, and not into the buffer before now. None when no end is known.

    When ingestion stops the watermark stops with it, so `now - watermark` tells the truth.
    """
    if table.max_last_ms is None:
        return None
    return min(now_ms - buffer_ms, table.max_last_ms + 1)


def behind_ms(view: ViewHeader, cutoff_ms: int | None) -> int:
    """How far the watermark could move: to the end of the last bucket that the cutoff lets be appended."""
    if view.watermark_ms is None or cutoff_ms is None:
        return 0
    return max(0, view.definition.grid.start_of(cutoff_ms) - view.watermark_ms)


def vacant_starts(
    view: ViewHeader, exists: Callable[[int], bool], runs: Runs, cutoff_ms: int, *, newest_first: bool
) -> Iterator[int]:
    """VACANT buckets that end by the cutoff, from the watermark on. Runs are passed over as a whole."""
    assert view.watermark_ms is not None
    grid = view.definition.grid
    end_ms = grid.start_of(cutoff_ms)
    if end_ms <= view.watermark_ms:
        return
    taken = IntervalSet.of(run.window(grid) for run in runs)
    stretches = list(taken.gaps(Interval(view.watermark_ms, end_ms)))
    for stretch in reversed(stretches) if newest_first else stretches:
        starts = range(stretch.start_ms, stretch.end_ms, grid.width_ms)
        yield from (start for start in (reversed(starts) if newest_first else starts) if not exists(start))


def lane_of(start_ms: int, entry: Entry | None, *, grid: BucketGrid, cutoff_ms: int | None, live_buckets: int) -> Lane:
    if cutoff_ms is not None and start_ms >= grid.start_of(cutoff_ms) - live_buckets * grid.width_ms:
        return Lane.LIVE
    return Lane.REPAIR if entry is not None and entry.ever_valid else Lane.BACKFILL


def task_id(incarnation: str, start_ms: int, mode: Mode, source: Fingerprint) -> str:
    """The same work has the same name, whoever asks for it, so duplicates collapse."""
    text = f"{incarnation}/{start_ms}/{mode}/{source.count}/{source.hash}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def oldest_cause_first(entries: Mapping[int, Entry]) -> list[int]:
    """STALE buckets in the order they are owed."""
    return sorted(entries, key=lambda start_ms: (owed_since_ms(entries[start_ms]), start_ms))


def owed_since_ms(entry: Entry) -> int:
    """When a STALE bucket was marked. It keeps its first cause until it is VALID."""
    return entry.cause.marked_at_ms if entry.cause else 0


def fair(queues: Iterable[Sequence[T]]) -> Iterator[T]:
    """One from each queue in turn, so that no view waits behind another's backlog."""
    waiting = [iter(queue) for queue in queues]
    while waiting:
        still = []
        for queue in waiting:
            for item in queue:
                yield item
                still.append(queue)
                break
        waiting = still
