"""A table's registry at one version, as queries ask about it: which files may have the rows they want."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from floodmark.core.buckets import Entry
from floodmark.core.fingerprint import Fingerprint, fingerprint
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.segments import EMPTY_SLICE, Segment, Slice, segments_in
from floodmark.core.tables import TableDefinition
from floodmark.query.plan import SourceFile

RANGES_KEPT_MAX = 256
"""Views that were built by the same hands lack the same ranges: what a table has there is found once."""


@dataclass(slots=True, eq=False)
class TableSnapshot:
    """A table's registry at one version."""

    definition: TableDefinition
    version: int
    slices: Mapping[str, Slice]
    slice_versions: Mapping[str, int]
    read_at_ms: int
    """When it was the newest: every change registered before is in it."""
    extent: Interval | None = None
    """From the first row to the last. None without data, or without times."""
    _everything: list[Segment] | None = None
    _rows: int | None = None
    _bytes: int | None = None
    _timeless: list[Segment] | None = None
    _files: tuple[SourceFile, ...] | None = None
    _found: dict[tuple[tuple[Interval, ...], bool], list[Segment]] = field(default_factory=dict)
    _fingerprints: dict[Interval, Fingerprint] = field(default_factory=dict)
    _versions: dict[Interval, tuple[int | None, ...]] = field(default_factory=dict)

    def everything(self) -> list[Segment]:
        if self._everything is None:
            found = {s.name: s for listed in self.slices.values() for s in listed}
            self._everything = sorted(found.values(), key=attrgetter("path"))
        return self._everything

    @property
    def rows(self) -> int:
        if self._rows is None:
            self._rows = sum(s.rows for s in self.everything())
        return self._rows

    def bytes(self, ranges: tuple[Interval, ...], *, timeless: bool) -> int:
        """Of the segments that would be read."""
        if any(self._is_everything(wanted) for wanted in ranges):
            if self._bytes is None:
                self._bytes = sum(s.bytes for s in self.everything())
            return self._bytes
        return sum(s.bytes for s in self.segments(ranges, timeless=timeless))

    def _is_everything(self, wanted: Interval) -> bool:
        extent = self.extent
        return extent is None or (wanted.start_ms <= extent.start_ms and extent.end_ms <= wanted.end_ms)

    def segments(self, ranges: tuple[Interval, ...], *, timeless: bool) -> list[Segment]:
        """Those that may have rows in one of the ranges, or, if asked for, rows without a time."""
        known = self._found.get((ranges, timeless))
        if known is None:
            if len(self._found) >= RANGES_KEPT_MAX:
                self._found.clear()
            known = self._found[ranges, timeless] = self._segments(ranges, timeless=timeless)
        return known

    def files(self, segments: list[Segment]) -> tuple[SourceFile, ...]:
        if segments is not self._everything:
            return _files(segments)
        if self._files is None:
            self._files = _files(segments)
        return self._files

    def _segments(self, ranges: tuple[Interval, ...], *, timeless: bool) -> list[Segment]:
        found: dict[str, Segment] = {}
        for wanted in ranges:
            if self._is_everything(wanted):
                return self.everything()
            found |= self._in(wanted)
        if ranges:
            found |= {s.name: s for s in self.slices.get(self.definition.grid.wide, EMPTY_SLICE) if s.interval is None}
        if timeless:
            found |= {s.name: s for s in self.timeless()}
        return sorted(found.values(), key=attrgetter("path"))

    def timeless(self) -> list[Segment]:
        """Those that have rows without a time, or may have."""
        if self._timeless is None:
            self._timeless = [s for s in self.everything() if s.timeless_rows != 0]
        return self._timeless

    def _in(self, wanted: Interval) -> dict[str, Segment]:
        extent = self.extent
        if extent is None or not wanted.overlaps(extent):
            return {}
        window = Interval(max(wanted.start_ms, extent.start_ms), min(wanted.end_ms, extent.end_ms))
        return segments_in(window, self._slices(window))

    def fingerprint(self, window: Interval) -> Fingerprint:
        known = self._fingerprints.get(window)
        if known is None:
            known = fingerprint(segments_in(window, self._slices(window)).values())
            self._fingerprints[window] = known
        return known

    def _slices(self, window: Interval) -> Iterable[Slice]:
        return (self.slices.get(key, EMPTY_SLICE) for key in self.definition.grid.keys_for_window(window))

    def versions_in(self, window: Interval) -> tuple[int | None, ...]:
        """While none of these moves, neither does the source of any bucket in the window."""
        known = self._versions.get(window)
        if known is None:
            grid = self.definition.grid
            # Of which table: one that was created again under this name counts its versions from the beginning.
            known = (grid.generation, *(self.slice_versions.get(key) for key in grid.keys_for_window(window)))
            self._versions[window] = known
        return known

    def is_source_of(self, entry: Entry, window: Interval) -> bool:
        """Whether the entry was built from what is listed here for its window."""
        return self.has_versions(entry.slice_versions) or entry.fingerprint == self.fingerprint(window)

    def sources_in(self, windows: IntervalSet) -> IntervalSet | None:
        """Where segments overlap these windows, as far as they reach; None when one may have rows of any time."""
        found = {}
        for listed in self.slices.values():
            for segment in listed:
                interval = segment.interval
                if interval is None:
                    return None
                if windows.overlaps(interval):
                    found[segment.name] = interval
        return IntervalSet.of(found.values())

    def has_versions(self, recorded: Mapping[str, int]) -> bool:
        return bool(recorded) and all(self.slice_versions.get(key) == version for key, version in recorded.items())


def _files(segments: Iterable[Segment]) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(s.path, s.rows, s.bytes, s.crc, s.stamp) for s in segments)
