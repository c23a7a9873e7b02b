"""Segments, the immutable files of a base table, and the registry slices that list them.

A slice covers a fixed span of time and lists every segment that overlaps it, so the source of a window is found in
the few slices it touches. A segment that would be listed in too many of them, or whose times are unknown, is in the
one `wide` slice instead, which every window reads as well.

    time      |  slice 0   |  slice 1   |  slice 2   |
    a         [---]                                     in 0
    b                 [--------]                        in 0 and 1
    c         [------------------------------------     in wide

A slice is cut into parts as it fills:

    up to 48 KiB     one part, number 0, in the slice's own node
    more             parts 1, 2, ... in nodes of their own; the slice's own node lists which registry version wrote each

A change rewrites the parts it touches and the slice's own node, whose version therefore stands for all of it: whoever
checks that version checks every part, and that there is no further one. A part that was written at a registry version
never changes; a list that names the same version means the same part.

New segments go into the last part while it has room, then into the emptiest one, then into a new one. So a slice has as
many parts as it needed when it was fullest, however many segments come and go.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from operator import attrgetter

from floodmark.core.bounds import INT64_MAX, INT64_MIN, SEGMENT_NAME_BYTES_MAX, TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.column_types import INT96
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval

INSPECTION = 1
"""How files are looked into. It is raised when the same file may show another range than before.

    0    before there were numbers: INT96 in nanoseconds, so that the years before 1677 and after 2262 wrapped; times
         before 1900 whatever their calendar
    1    INT96 in microseconds; no range where it cannot be told
"""
_CALENDARS_DIFFER_BEFORE_MS = -2_208_902_400_000
"""A day after 1900-01-01."""
WIDE = "wide"
SLICES_PER_SEGMENT_MAX = 8
"""A segment that touches more slices than this is listed once, in `wide`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One registered file. `start_ms` to `last_ms`, both inclusive as its data is; None when no time is usable."""

    name: str
    crc: int
    start_ms: int | None
    last_ms: int | None
    path: str
    rows: int
    bytes: int
    stamp: str = ""
    """What its file looked like from outside when it was read. It says where to look again, not what is there."""
    timeless_rows: int | None = None
    """How many of its rows have no time: they are in no bucket. None when they were not counted."""
    inspected: int = 0
    """How its file was looked into: see INSPECTION."""

    def __post_init__(self) -> None:
        check_segment(self)

    @property
    def interval(self) -> Interval | None:
        """The half-open range of its data; None means it may hold rows of any time."""
        if self.start_ms is None or self.last_ms is None:
            return None
        return Interval(self.start_ms, self.last_ms + 1)

    def overlaps(self, window: Interval) -> bool:
        if self.start_ms is None or self.last_ms is None:
            return True
        return self.start_ms < window.end_ms and window.start_ms <= self.last_ms

    def may_be_elsewhere(self, time_kind: str | None) -> bool:
        """Whether its file may show another range today. `time_kind` is the table's type of times, if it has one."""
        if self.inspected >= INSPECTION:
            return False
        if time_kind is None or time_kind.startswith("timestamp[ns") or time_kind == INT96:
            return True
        is_early = self.start_ms is not None and self.start_ms < _CALENDARS_DIFFER_BEFORE_MS
        return is_early and time_kind != "int64"

    def same_content(self, other: "Segment") -> bool:
        """Whether the two differ only in what follows from the content, or says nothing of it."""
        return _content(self) == _content(other)


_content = attrgetter(*(f.name for f in fields(Segment) if f.name not in ("stamp", "timeless_rows", "inspected")))


def check_segment(segment: Segment) -> None:
    """Each rule by name, so that a refusal can be acted on."""
    name = segment.name
    if not name or len(name.encode("utf-8", "surrogatepass")) > SEGMENT_NAME_BYTES_MAX:
        raise InvalidInput("segment-name", f"segment name {name[:80]!r} must have 1 to {SEGMENT_NAME_BYTES_MAX} bytes")
    if "\x00" in name or not (name.isascii() or _is_valid_text(name)):
        raise InvalidInput("segment-name", f"segment name {name[:80]!r} must be valid text without NUL")
    if not INT64_MIN <= segment.crc <= INT64_MAX:
        raise InvalidInput(
            "segment-crc", f"segment {name!r} has crc {segment.crc}, which is not a signed 64-bit number"
        )
    start_ms, last_ms = segment.start_ms, segment.last_ms
    if start_ms is None or last_ms is None:
        if start_ms is not last_ms:
            raise InvalidInput("segment-times", f"segment {name!r} must have both times or neither")
    elif last_ms < start_ms:
        raise InvalidInput("segment-times", f"segment {name!r} ends at {last_ms}, before its start {start_ms}")
    elif start_ms < TIME_MIN_MS or last_ms >= TIME_MAX_MS:
        raise InvalidInput("segment-times", f"segment {name!r} has times outside the years 1 to 9999")
    if segment.rows < 0 or segment.bytes < 0:
        raise InvalidInput("segment-size", f"segment {name!r} has {segment.rows} rows and {segment.bytes} bytes")


def _is_valid_text(name: str) -> bool:
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in name)


@dataclass(frozen=True, slots=True)
class SliceGrid:
    """Where the slices of a table lie: multiples of a fixed span.

    The keys of a table that was created after another of its name was dropped name its generation. So nothing that
    remembers versions of the old slices can take those of the new ones for them.
    """

    span_ms: int
    generation: int = 0

    def __post_init__(self) -> None:
        if self.span_ms < 1:
            raise InvalidInput("slice-span", f"slice span {self.span_ms} ms must be at least 1 ms")

    def keys_for_window(self, window: Interval) -> tuple[str, ...]:
        """The slices that together list every segment overlapping the window."""
        return (*map(self._key, self._starts(window.start_ms, window.end_ms - 1)), self.wide)

    def keys_for_segment(self, segment: Segment) -> tuple[str, ...]:
        """The slices that list this segment."""
        if segment.start_ms is None or segment.last_ms is None:
            return (self.wide,)
        starts = self._starts(segment.start_ms, segment.last_ms)
        return (self.wide,) if len(starts) > SLICES_PER_SEGMENT_MAX else tuple(map(self._key, starts))

    @property
    def wide(self) -> str:
        return self._key(WIDE)

    def owns(self, key: str) -> bool:
        """Whether this is a slice of this table, and not of one that was dropped."""
        return key == self._key(key.partition("@")[0])

    def _key(self, place: int | str) -> str:
        return f"{place}@{self.generation}" if self.generation else str(place)

    def _starts(self, start_ms: int, last_ms: int) -> range:
        span_ms = self.span_ms
        return range(start_ms // span_ms * span_ms, last_ms + 1, span_ms)


# -- slices and their parts ------------------------------------------------------------------------------------------

PART_BYTES_MAX = 48 * 1024
"""Before compression. One change may touch 16 slices, 8 that list a segment and 8 that list where it has moved to, and
all of it must fit into one write."""
SEGMENT_OVERHEAD_BYTES = 64
"""The numbers of a segment take no more than this."""


@dataclass(slots=True)
class Part:
    """Some segments of a slice, by name. Never changed."""

    segments: Mapping[str, Segment]
    at: int = field(default=0, compare=False)
    """The registry version that wrote it."""
    _weight: int = field(default=-1, compare=False, repr=False)
    _reach: tuple[int, int] | None = field(default=None, compare=False, repr=False)

    @property
    def weight(self) -> int:
        """About how many bytes it has before compression, and never fewer."""
        if self._weight < 0:
            self._weight = sum(map(weight_of, self.segments.values()))
        return self._weight

    @property
    def end_ms(self) -> int:
        """The end of the data it lists, as far as it has times."""
        lasts_ms = [s.last_ms for s in self.segments.values() if s.last_ms is not None]
        return max(lasts_ms, default=TIME_MIN_MS) + 1

    def overlapping(self, window: Interval) -> Iterator[Segment]:
        if self._reach is None:
            self._reach = _reach(self.segments.values())
        start_ms, last_ms = self._reach
        if start_ms < window.end_ms and window.start_ms <= last_ms:
            return (s for s in self.segments.values() if s.overlaps(window))
        return iter(())


_ALWAYS = -(2**63), 2**63


def _reach(segments: Collection[Segment]) -> tuple[int, int]:
    """The first and the last instant that any of them may have rows of."""
    starts_ms = [s.start_ms for s in segments if s.start_ms is not None]
    lasts_ms = [s.last_ms for s in segments if s.last_ms is not None]
    return (min(starts_ms), max(lasts_ms)) if segments and len(starts_ms) == len(segments) else _ALWAYS


def weight_of(segment: Segment) -> int:
    return SEGMENT_OVERHEAD_BYTES + sum(map(_bytes, (segment.name, segment.path, segment.stamp)))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


@dataclass(frozen=True, slots=True)
class Slice:
    """The segments one slice lists, in parts by number. Part 0 is in the slice's own node, and then the only one."""

    parts: Mapping[int, Part] = field(default_factory=dict)

    @classmethod
    def of(cls, segments: Iterable[Segment], *, at: int = 0) -> "Slice":
        return cls({0: Part({s.name: s for s in segments}, at)})

    @property
    def is_split(self) -> bool:
        return bool(self.parts) and 0 not in self.parts

    @property
    def segments(self) -> dict[str, Segment]:
        return {s.name: s for s in self}

    @property
    def end_ms(self) -> int:
        return max((part.end_ms for part in self.parts.values()), default=TIME_MIN_MS + 1)

    def __iter__(self) -> Iterator[Segment]:
        return chain.from_iterable(part.segments.values() for part in self.parts.values())

    def overlapping(self, window: Interval) -> Iterator[Segment]:
        return chain.from_iterable(part.overlapping(window) for part in self.parts.values())

    @property
    def is_oversized(self) -> bool:
        """It was written before there were parts, and has to be cut before it can be changed cheaply."""
        return any(part.weight > PART_BYTES_MAX and len(part.segments) > 1 for part in self.parts.values())

    def changed(self, gone: Collection[str], come: Mapping[str, Segment], *, at: int) -> "Slice":
        """Without the segments that go, with those that come. Every part that differs is written `at` this version."""
        draft = _Draft(dict(self.parts) if self.is_split else {number + 1: p for number, p in self.parts.items()})
        if not self.is_split:
            draft.open(1)  # wherever it ends up, it is written again
        draft.take_out(gone, come)
        draft.put(s for name, s in come.items() if name not in draft.placed)
        written = {number: Part(segments, at) for number, segments in draft.changed.items()}
        if not self.is_split and written.keys() == {1}:
            return Slice({0: written[1]})
        return Slice({**draft.parts, **written})


EMPTY_SLICE = Slice.of(())


@dataclass(slots=True)
class _Draft:
    """The parts of a slice while segments go and come."""

    parts: dict[int, Part]
    changed: dict[int, dict[str, Segment]] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    _weights: dict[int, int] = field(default_factory=dict)

    def segments_of(self, number: int) -> Mapping[str, Segment]:
        if number in self.changed:
            return self.changed[number]
        return self.parts[number].segments if number in self.parts else {}

    def open(self, number: int) -> dict[str, Segment]:
        if number not in self.changed:
            self.changed[number] = dict(self.segments_of(number))
            self.parts.setdefault(number, Part({}))
        return self.changed[number]

    def weight(self, number: int) -> int:
        if number not in self._weights:
            self._weights[number] = self.parts[number].weight
        return self._weights[number]

    def take_out(self, gone: Collection[str], come: Mapping[str, Segment]) -> None:
        """What goes. What is replaced stays in its part; what has no room there any more is put elsewhere."""
        for number, part in list(self.parts.items()):
            for name in [name for name in gone if name in part.segments]:
                weight = self.weight(number) - weight_of(self.open(number)[name])
                if (segment := come.get(name)) is not None:
                    self.open(number)[name] = segment
                    self.placed.add(name)
                    weight += weight_of(segment)
                else:
                    del self.open(number)[name]
                self._weights[number] = weight
        for number in list(self.changed):
            self._cut(number)

    def _cut(self, number: int) -> None:
        """Take out what is too much. A slice from before there were parts may be large."""
        kept, excess = self.changed[number], list[Segment]()
        while self.weight(number) > PART_BYTES_MAX and len(kept) > 1:
            _, segment = kept.popitem()
            self._weights[number] -= weight_of(segment)
            excess.append(segment)
        self.put(reversed(excess))

    def put(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            weight = weight_of(segment)
            number = self._with_room(weight)
            before = self.weight(number) if number in self.parts else 0
            self.open(number)[segment.name] = segment
            self._weights[number] = before + weight

    def _with_room(self, weight: int) -> int:
        """The last part, else the emptiest if it is less than half full, else a new one."""
        last = max(self.parts, default=0)
        if last and self._has_room(last, weight, PART_BYTES_MAX):
            return last
        emptiest = min(self.parts, key=self.weight, default=0)
        return emptiest if emptiest and self._has_room(emptiest, weight, PART_BYTES_MAX // 2) else last + 1

    def _has_room(self, number: int, weight: int, bytes_max: int) -> bool:
        return self.weight(number) == 0 or self.weight(number) + weight <= bytes_max


def segments_in(window: Interval, slices: Iterable[Slice]) -> dict[str, Segment]:
    """The source of a window: each overlapping segment once, however many slices list it."""
    return {s.name: s for listed in slices for s in listed.overlapping(window)}
