"""What a registry change does to the slices of a table, decided on values.

    Put(segment)    add it, or replace the one of the same name
    Remove(name)    forget it

A batch is one decision. Changes that are already true fall away, so repeating a batch changes nothing, not even a
version.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.segments import EMPTY_SLICE, Segment, Slice, SliceGrid
from floodmark.core.tables import RECENT_CHANGES_MAX, RECENT_KEYS_MAX, TableHeader


@dataclass(frozen=True, slots=True)
class Put:
    segment: Segment
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    name: str
    trace_id: str = ""


Command = Put | Remove


@dataclass(frozen=True, slots=True)
class Change:
    """One segment that really changed. `ranges` is None when the whole table is affected."""

    action: Literal["added", "replaced", "deleted"]
    old: Segment | None
    new: Segment | None
    trace_id: str = ""

    @property
    def name(self) -> str:
        segment = self.new or self.old
        assert segment is not None
        return segment.name

    @property
    def ranges(self) -> tuple[Interval, ...] | None:
        """Where rows may have changed: a moved segment has its old and its new range."""
        intervals = [s.interval for s in (self.old, self.new) if s is not None]
        if any(interval is None for interval in intervals):
            return None
        return tuple(dict.fromkeys(i for i in intervals if i is not None))


@dataclass(frozen=True, slots=True)
class Plan:
    """The slices to write, in full, and the changes they carry."""

    slices: Mapping[str, Slice] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()


def plan(
    grid: SliceGrid, known: Mapping[str, Segment], slices: Mapping[str, Slice], commands: Iterable[Command]
) -> Plan:
    """What these commands change. `known` is every registered segment by name, `slices` every slice by key."""
    changes = [change for command in _last_of_each(commands) if (change := _change(known, command))]
    touched: dict[str, dict[str, Segment]] = {}
    for change in changes:
        for key in grid.keys_for_segment(change.old) if change.old else ():
            _open(touched, slices, key).pop(change.name, None)
        for key in grid.keys_for_segment(change.new) if change.new else ():
            assert change.new is not None
            _open(touched, slices, key)[change.name] = change.new
    return Plan({key: Slice(listed) for key, listed in touched.items()}, tuple(changes))


def _last_of_each(commands: Iterable[Command]) -> Sequence[Command]:
    """One command for each segment; a batch that says two different things of one is refused."""
    by_name: dict[str, Command] = {}
    for command in commands:
        name = command.segment.name if isinstance(command, Put) else command.name
        if by_name.setdefault(name, command) != command:
            raise InvalidInput("batch", f"segment {name!r} stands twice in one batch, with different content")
    return tuple(by_name.values())


def _change(known: Mapping[str, Segment], command: Command) -> Change | None:
    if isinstance(command, Put):
        old = known.get(command.segment.name)
        # A file that only looks different from outside, with the same content, is no change.
        if old is not None and replace(old, stamp="") == replace(command.segment, stamp=""):
            return None
        return Change("replaced" if old else "added", old, command.segment, command.trace_id)
    old = known.get(command.name)
    return Change("deleted", old, None, command.trace_id) if old else None


def _open(touched: dict[str, dict[str, Segment]], slices: Mapping[str, Slice], key: str) -> dict[str, Segment]:
    if key not in touched:
        touched[key] = dict(slices.get(key, EMPTY_SLICE).segments)
    return touched[key]


@dataclass(frozen=True, slots=True)
class Event:
    """What the outbox keeps until Kafka has it: the changes of one registry write."""

    event_id: str
    table: str
    version: int
    registered_at_ms: int
    trace_id: str
    changes: tuple["ReportedChange", ...]


@dataclass(frozen=True, slots=True)
class ReportedChange:
    action: Literal["added", "replaced", "deleted"]
    name: str
    crc: int | None
    ranges: tuple[Interval, ...] | None
    trace_id: str = ""

    @classmethod
    def of(cls, change: Change) -> "ReportedChange":
        return cls(change.action, change.name, change.new.crc if change.new else None, change.ranges, change.trace_id)


def rewritten_header(header: TableHeader, plan: Plan, known: Mapping[str, Segment]) -> TableHeader:
    """The header after a plan. `known` is what is registered before it."""
    after = {**known}
    for change in plan.changes:
        if change.new is None:
            after.pop(change.name)
        else:
            after[change.name] = change.new
    version = header.version + 1
    recent = _remembered((*header.recent, (version, tuple(sorted(plan.slices)))))
    trace_id = next((change.trace_id for change in plan.changes if change.trace_id), "")
    # A header from before traces were kept has fewer of them: the newest still line up with the newest changes.
    traces = (*header.traces, trace_id)[-len(recent) :]
    min_start_ms, max_last_ms = _extremes(header, plan, after)
    return replace(
        header,
        version=version,
        min_start_ms=min_start_ms,
        max_last_ms=max_last_ms,
        segment_count=len(after),
        recent=recent,
        traces=traces,
    )


def _remembered(changes: Sequence[tuple[int, tuple[str, ...]]]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The newest changes, as many as fit. A cache further behind than that reads everything."""
    kept = changes[-RECENT_CHANGES_MAX:]
    while len(kept) > 1 and sum(len(keys) for _, keys in kept) > RECENT_KEYS_MAX:
        kept = kept[1:]
    return tuple(kept)


def _extremes(header: TableHeader, plan: Plan, after: Mapping[str, Segment]) -> tuple[int | None, int | None]:
    """First start and last end. Looking at every segment is needed only when one that held an extreme went."""
    gone = [c.old for c in plan.changes if c.old is not None]
    whole = any(s.start_ms == header.min_start_ms or s.last_ms == header.max_last_ms for s in gone)
    looked_at = after.values() if whole else [c.new for c in plan.changes if c.new is not None]
    starts = [s.start_ms for s in looked_at if s.start_ms is not None]
    lasts = [s.last_ms for s in looked_at if s.last_ms is not None]
    if not whole:
        starts += [header.min_start_ms] if header.min_start_ms is not None else []
        lasts += [header.max_last_ms] if header.max_last_ms is not None else []
    return min(starts, default=None), max(lasts, default=None)
