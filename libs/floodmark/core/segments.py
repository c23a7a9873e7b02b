"""Segments, the immutable files of a base table, and the registry slices that list them.

A slice covers a fixed span of time and lists every segment that overlaps it, so the source of a window is found in
the few slices it touches. A segment that would be listed in too many of them, or whose times are unknown, is in the
one `wide` slice instead, which every window reads as well.

    time      |  slice 0   |  slice 1   |  slice 2   |
    a         [---]                                     in 0
    b                 [--------]                        in 0 and 1
    c         [------------------------------------     in wide
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter

from floodmark.core.bounds import INT64_MAX, INT64_MIN, SEGMENT_NAME_BYTES_MAX, TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval

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

    def same_content(self, other: "Segment") -> bool:
        """Whether the two differ only in what follows from the content, or says nothing of it."""
        return _content(self) == _content(other)


_content = attrgetter(*(f.name for f in fields(Segment) if f.name not in ("stamp", "timeless_rows")))


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
    """Where the slices of a table lie: multiples of a fixed span."""

    span_ms: int

    def __post_init__(self) -> None:
        if self.span_ms < 1:
            raise InvalidInput("slice-span", f"slice span {self.span_ms} ms must be at least 1 ms")

    def keys_for_window(self, window: Interval) -> tuple[str, ...]:
        """The slices that together list every segment overlapping the window."""
        return (*(str(start) for start in self._starts(window.start_ms, window.end_ms - 1)), WIDE)

    def keys_for_segment(self, segment: Segment) -> tuple[str, ...]:
        """The slices that list this segment."""
        if segment.start_ms is None or segment.last_ms is None:
            return (WIDE,)
        starts = self._starts(segment.start_ms, segment.last_ms)
        return (WIDE,) if len(starts) > SLICES_PER_SEGMENT_MAX else tuple(map(str, starts))

    def _starts(self, start_ms: int, last_ms: int) -> range:
        span_ms = self.span_ms
        return range(start_ms // span_ms * span_ms, last_ms + 1, span_ms)


@dataclass(frozen=True, slots=True)
class Slice:
    """The segments one slice lists, by name."""

    segments: dict[str, Segment]

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> "Slice":
        return cls({s.name: s for s in segments})

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments.values())


EMPTY_SLICE = Slice({})


def segments_in(window: Interval, slices: Iterable[Slice]) -> dict[str, Segment]:
    """The source of a window: each overlapping segment once, however many slices list it."""
    return {s.name: s for listed in slices for s in listed if s.overlaps(window)}
