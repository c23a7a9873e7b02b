"""What a registry change does to the slices of a table, decided on values.

    Put(segment)    add it, or replace the one of the same name
    Remove(name)    forget it

A command may say what was registered when it was decided. It is refused as `overtaken` when that has changed since:
whoever changed it may know something newer, so the file has to be looked at again.

A batch is one decision. Changes that are already true fall away, so repeating a batch changes nothing, not even a
version. Deciding and rewriting cost what changes, not what is registered.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from floodmark.core.column_types import stored_as
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.layers import Layered
from floodmark.core.segments import EMPTY_SLICE, Part, Segment, Slice, SliceGrid
from floodmark.core.tables import RECENT_CHANGES_MAX, RECENT_KEYS_MAX, TableDefinition, TableHeader


@dataclass(frozen=True, slots=True)
class Seen:
    """What was registered under a name when a command about it was decided."""

    segment: Segment | None

    def still_holds(self, now: Segment | None) -> bool:
        if self.segment is None or now is None:
            return self.segment is now
        return self.segment.same_content(now)


@dataclass(frozen=True, slots=True)
class Put:
    segment: Segment
    trace_id: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    """Name and type of each column of the file. The first file of a table without columns gives it these."""
    seen: Seen | None = field(default=None, compare=False)
    """None: put it there whatever is registered."""

    @property
    def name(self) -> str:
        return self.segment.name


@dataclass(frozen=True, slots=True)
class Remove:
    name: str
    trace_id: str = ""
    seen: Seen | None = field(default=None, compare=False)
    """None: remove it whatever it is."""


Command = Put | Remove
Action = Literal["added", "replaced", "deleted"]
OVERTAKEN = "overtaken"


@dataclass(frozen=True, slots=True)
class Change:
    """One segment that really changed. `ranges` is None when the whole table is affected."""

    action: Action
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
        first, last = self.old or self.new, self.new or self.old
        assert first is not None
        assert last is not None
        if first is last:
            return None if (only := first.interval) is None else (only,)
        old, new = first.interval, last.interval
        if old is None or new is None:
            return None
        return (new,) if old == new else (old, new)

    @property
    def crc(self) -> int | None:
        """Of the content there is now; None when it is gone."""
        return self.new.crc if self.new else None

    @property
    def is_news(self) -> bool:
        """Whether anyone has to hear of it. That a file was looked into again, and is as it was, is only noted."""
        return self.old is None or self.new is None or not self.old.same_content(self.new)


@dataclass(frozen=True, slots=True)
class Contents:
    """All that is registered of a table, and the name each path is registered under."""

    slices: Layered[Slice] = field(default_factory=Layered)
    by_name: Layered[Segment] = field(default_factory=Layered)
    name_at: Layered[str] = field(default_factory=Layered)

    def with_read(self, slices: Mapping[str, Slice]) -> "Contents":
        """With these slices read again: all in which a segment that changed is or was listed."""
        segments: dict[str, Segment | None] = {}
        for key, listed in slices.items():
            before = self.slices.get(key, EMPTY_SLICE)
            segments |= {s.name: None for part in _differing(before, listed) for s in part.segments.values()}
        for key, listed in slices.items():
            before = self.slices.get(key, EMPTY_SLICE)
            segments |= {s.name: s for part in _differing(listed, before) for s in part.segments.values()}
        return self.with_changed(slices, segments)

    def with_changed(self, slices: Mapping[str, Slice], segments: Mapping[str, Segment | None]) -> "Contents":
        """With these slices and these segments, None for one that is gone. It costs what changed."""
        before = [old for name in segments if (old := self.by_name.get(name))]
        freed: dict[str, str | None] = {s.path: None for s in before if self.name_at.get(s.path) == s.name}
        taken = {s.path: s.name for s in segments.values() if s is not None}
        return Contents(
            self.slices.updated(slices), self.by_name.updated(segments), self.name_at.updated({**freed, **taken})
        )


def _differing(one: Slice, other: Slice) -> list[Part]:
    """The parts of one that the other does not have: two readings share what has not been written in between."""
    return [part for number, part in one.parts.items() if other.parts.get(number) is not part]


@dataclass(slots=True)
class Draft:
    """What is registered, as commands go by one after the other."""

    contents: Contents
    _by_name: dict[str, Segment | None] = field(default_factory=dict)
    _name_at: dict[str, str | None] = field(default_factory=dict)

    def segment(self, name: str) -> Segment | None:
        return self._by_name[name] if name in self._by_name else self.contents.by_name.get(name)

    def name_at(self, path: str) -> str | None:
        return self._name_at[path] if path in self._name_at else self.contents.name_at.get(path)

    def apply(self, command: Command) -> Change | None:
        """Carry out one command. None: it was true already. One that is refused leaves everything as it was."""
        old, new = self.segment(command.name), command.segment if isinstance(command, Put) else None
        # A file that only looks different from outside, with the same content, is no change.
        if old is new is None or (old is not None and new is not None and _says_nothing_new(old, new)):
            return None
        if command.seen is not None and not command.seen.still_holds(old):
            raise InvalidInput(OVERTAKEN, f"segment {command.name!r} was changed by another ingester meanwhile")
        self._move(old, new)
        self._by_name[command.name] = new
        action: Action = "added" if old is None else "deleted" if new is None else "replaced"
        return Change(action, old, new, command.trace_id)

    def _move(self, old: Segment | None, new: Segment | None) -> None:
        """A path has one name: under two, its rows would count twice."""
        if old is not None and new is not None and old.path == new.path:
            return
        if new is not None:
            holder = self.name_at(new.path)
            if holder is not None and holder != new.name:
                said = f"{new.path} is registered as {holder!r}, it cannot be {new.name!r} as well"
                raise InvalidInput("path-taken", said)
            self._name_at[new.path] = new.name
        if old is not None and self.name_at(old.path) == old.name:
            self._name_at[old.path] = None


def _says_nothing_new(old: Segment, new: Segment) -> bool:
    return old.same_content(new) and old.inspected >= new.inspected


class CommandsRefused(InvalidInput):
    """Some commands of a batch can never succeed. Nothing is changed; without them the others may be."""

    def __init__(self, refused: Mapping[str, InvalidInput]) -> None:
        first = next(iter(refused.values()))
        super().__init__(first.rule, str(first).removeprefix(f"{first.rule}: "))
        self.refused = refused
        """Why, by segment name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The slices to write, in full, and the changes they carry."""

    slices: Mapping[str, Slice] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()

    def applied_to(self, contents: Contents) -> Contents:
        return contents.with_changed(self.slices, {change.name: change.new for change in self.changes})


def plan(grid: SliceGrid, contents: Contents, commands: Iterable[Command], *, version: int) -> Plan:
    """What these commands change, in their order, as the registry's next version."""
    changes = _changes(contents, commands)
    gone, come = defaultdict[str, set[str]](set), defaultdict[str, dict[str, Segment]](dict)
    for change in changes:
        if change.old is not None:
            for key in grid.keys_for_segment(change.old):
                gone[key].add(change.name)
        if change.new is not None:
            for key in grid.keys_for_segment(change.new):
                come[key][change.name] = change.new
    touched = dict.fromkeys((*gone, *come))
    return Plan({key: _slice(contents, key).changed(gone[key], come[key], at=version) for key in touched}, changes)


def splitting(contents: Contents, key: str, *, version: int) -> Plan:
    """A slice from before there were parts, cut into them. What it lists stays as it is."""
    return Plan({key: _slice(contents, key).changed((), {}, at=version)})


def _slice(contents: Contents, key: str) -> Slice:
    return contents.slices.get(key, EMPTY_SLICE)


def _changes(contents: Contents, commands: Iterable[Command]) -> tuple[Change, ...]:
    """What really changes. All that is refused is told at once, so that a caller can leave out exactly that."""
    draft, changes, refused = Draft(contents), [], dict[str, InvalidInput]()
    for name, command in _one_of_each(commands).items():
        try:
            change = draft.apply(command)
        except InvalidInput as error:
            refused[name] = error
            continue
        if change is not None:
            changes.append(change)
    if refused:
        raise CommandsRefused(refused)
    return tuple(changes)


def settled(header: TableHeader, commands: Iterable[Command]) -> TableDefinition:
    """The definition once these commands are carried out. The first file of a table says what nobody declared: the
    columns, or how those that were declared are stored."""
    definition = header.definition
    if definition.columns and (header.recent or header.segment_count):
        return definition
    found = next((c.columns for c in commands if isinstance(c, Put) and c.columns), ())
    kinds = dict(found)
    declared = [(name, stored_as(kind, found=kinds.get(name, kind))) for name, kind in definition.columns]
    return replace(definition, columns=tuple(declared) or found)


def _one_of_each(commands: Iterable[Command]) -> dict[str, Command]:
    """One command for each segment; a batch that says two different things of one is refused."""
    by_name: dict[str, Command] = {}
    for command in commands:
        said = by_name.setdefault(command.name, command)
        if said is not command and said != command:
            raise InvalidInput("batch", f"segment {command.name!r} stands twice in one batch, with different content")
    return by_name


@dataclass(frozen=True, slots=True)
class ReportedChange:
    """A change as the outbox keeps it."""

    action: Action
    name: str
    crc: int | None
    ranges: tuple[Interval, ...] | None
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """What the outbox keeps until Kafka has it: the changes of one registry write."""

    event_id: str
    table: str
    version: int
    registered_at_ms: int
    trace_id: str
    changes: tuple[Change, ...] | tuple[ReportedChange, ...]


def rewritten_header(header: TableHeader, plan: Plan, after: Contents) -> TableHeader:
    """The header after a plan. `after` is what is registered then."""
    version = header.version + 1
    recent = _remembered((*header.recent, (version, tuple(sorted(plan.slices)))))
    trace_id = next((change.trace_id for change in plan.changes if change.trace_id), "")
    # A header from before traces were kept has fewer of them: the newest still line up with the newest changes.
    traces = (*header.traces, trace_id)[-len(recent) :]
    gone = [c.old for c in plan.changes if c.old is not None]
    come = [c.new for c in plan.changes if c.new is not None]
    everything = after.by_name.values
    return replace(
        header,
        version=version,
        min_start_ms=_extreme(min, header.min_start_ms, _starts(gone), _starts(come), lambda: _starts(everything())),
        max_last_ms=_extreme(max, header.max_last_ms, _lasts(gone), _lasts(come), lambda: _lasts(everything())),
        segment_count=header.segment_count + len(come) - len(gone),
        recent=recent,
        traces=traces,
    )


def _remembered(changes: Sequence[tuple[int, tuple[str, ...]]]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The newest changes, as many as fit. A cache further behind than that reads everything."""
    kept = changes[-RECENT_CHANGES_MAX:]
    while len(kept) > 1 and sum(len(keys) for _, keys in kept) > RECENT_KEYS_MAX:
        kept = kept[1:]
    return tuple(kept)


def _starts(segments: Iterable[Segment]) -> list[int]:
    return [s.start_ms for s in segments if s.start_ms is not None]


def _lasts(segments: Iterable[Segment]) -> list[int]:
    return [s.last_ms for s in segments if s.last_ms is not None]


def _extreme(
    pick: Callable[[Iterable[int]], int],
    held: int | None,
    gone: list[int],
    come: list[int],
    all_: Callable[[], list[int]],
) -> int | None:
    """The extreme after a change. Looking at every segment is needed only when one that held it went."""
    reached = [*come, held] if held is not None else come
    if not reached:
        return None
    if held in gone and pick(reached) == held and held not in come:
        reached = all_()
    return pick(reached) if reached else None
