"""Judges a run: after every write to the store, at every deletion of a file and every committed position, and at rest.

The oracle looks at the nodes themselves, at the instant they change, with nobody in between. It knows the rows of every
file there ever was by its CRC, so it can compute what any bucket should hold from what is registered at that instant.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from floodmark.bus.ports import Partition
from floodmark.contracts.messages import SegmentsChanged
from floodmark.contracts.parsing import parse
from floodmark.contracts.topics import SEGMENTS
from floodmark.core.buckets import Entry, State
from floodmark.core.fingerprint import Fingerprint, fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.segments import Segment
from floodmark.core.tables import TableHeader, ViewHeader, ViewStatus
from floodmark.core.watermark import advanced
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Check, Delete, Op
from tests.simulation.files import Disk, Row, decoded
from tests.simulation.hub import Violation
from tests.simulation.plan import TABLE
from tests.simulation.spark import evaluated
from tests.simulation.store import ObservedStore
from tests.support.memory_bus import MemoryBus

CONSISTENCY_GROUP = "floodmark.consistency"


@dataclass
class View:
    """One view as the nodes have it."""

    header: ViewHeader
    shards: dict[int, dict[int, Entry]] = field(default_factory=dict)
    built_at: dict[int, int] = field(default_factory=dict)
    """The registry version at which each bucket last became VALID."""

    @property
    def entries(self) -> dict[int, Entry]:
        return {start: entry for shard in self.shards.values() for start, entry in shard.items()}

    def at(self, start_ms: int) -> Entry | None:
        return self.shards.get(self.header.definition.grid.shard_of(start_ms), {}).get(start_ms)


class Oracle:
    def __init__(self, store: ObservedStore, disk: Disk, bus: MemoryBus) -> None:
        self.store = store
        self.disk = disk
        self.bus = bus
        self.views: dict[str, View] = {}
        self.reads: Counter[tuple[str, str]] = Counter()
        """Files that queries are about to read, under holds that stand."""
        self._table: TableHeader | None = None
        self._segments: dict[str, Segment] | None = None
        self._slices: dict[str, tuple[int, list[Segment]]] = {}
        store.wrote = self.wrote
        disk.deleting = self.deleting
        bus.committed = self.committed

    # -- what is true now ----------------------------------------------------------------------------------------------

    @property
    def table(self) -> TableHeader:
        if self._table is None:
            self._table = codec.decode_table(self.store.nodes[paths.table(TABLE)].data, what="table")
        return self._table

    @property
    def segments(self) -> dict[str, Segment]:
        """Everything registered, by name."""
        if self._segments is None:
            prefix = paths.slices(TABLE) + "/"
            found: dict[str, Segment] = {}
            for path, node in self.store.nodes.items():
                if path.startswith(prefix):
                    known = self._slices.get(path)
                    if known is None or known[0] != node.version:
                        listed, _ = codec.decode_slice(node.data, what=path)
                        known = self._slices[path] = (node.version, list(listed))
                    found.update({s.name: s for s in known[1]})
            self._segments = found
        return self._segments

    @property
    def data_end_ms(self) -> int | None:
        return max((s.last_ms + 1 for s in self.segments.values() if s.last_ms is not None), default=None)

    def source(self, window: Interval) -> tuple[Fingerprint, list[Segment]]:
        found = [s for s in self.segments.values() if s.overlaps(window)]
        return fingerprint(found), found

    def rows_of(self, segments: Iterable[Segment]) -> list[Row]:
        return [row for s in segments for row in self.disk.rows_by_crc[s.crc]]

    def expected(self, header: ViewHeader, start_ms: int, segments: Iterable[Segment]) -> list[Row]:
        definition = header.definition
        return evaluated(definition.select, self.rows_of(segments), start_ms, start_ms + definition.bucket_ms)

    def stored(self, header: ViewHeader, entry: Entry) -> list[Row]:
        """The rows in the files of an entry (INV-11: they are there)."""
        rows: list[Row] = []
        for file in entry.files:
            found = self.disk.files.get((header.definition.location, file.name))
            if found is None:
                raise Violation("INV-11 a named file is gone", f"{file.name} of {header.definition.name}")
            rows += decoded(found.content)
        return rows

    # -- after every write ---------------------------------------------------------------------------------------------

    def wrote(self, ops: Sequence[Op]) -> None:
        touched: dict[str, dict[int, Entry | None]] = {}
        headers: dict[str, ViewHeader] = {}
        for op in ops:
            parts = op.path.split("/")[2:]
            if isinstance(op, Check) or len(parts) < 2:
                continue
            if parts[0] == "tables":
                self._table = self._segments = None
            elif parts[0] == "views" and len(parts) == 2:
                headers.update(self._look_at_header(parts[1]))
            elif parts[0] == "views" and parts[2] == "shards" and len(parts) == 4:
                touched.setdefault(parts[1], {}).update(self._look_at_shard(parts[1], int(parts[3]), op))
        for name, before in touched.items():
            if name in self.views:
                self._judge_entries(self.views[name], before)
        for name, header in headers.items():
            if name in self.views:
                self._judge_header(self.views[name], header)
        for name, before in touched.items():
            if name in self.views:
                self._judge_watermark(self.views[name], before)

    def _look_at_header(self, name: str) -> dict[str, ViewHeader]:
        """Take the new header. Returns the one before, when it was of the same incarnation."""
        node, known = self.store.nodes.get(paths.view(name)), self.views.get(name)
        if node is None:
            self.views.pop(name, None)
            return {}
        header = codec.decode_view(node.data, what=name)
        if known is None or known.header.incarnation != header.incarnation:
            self.views[name] = View(header)
            return {}
        before, known.header = known.header, header
        return {name: before}

    def _look_at_shard(self, name: str, number: int, op: Op) -> dict[int, Entry | None]:
        """Take the new entries. Returns those that changed, as they were before."""
        view = self.views.get(name)
        if view is None:
            return {}
        before = view.shards.get(number, {})
        if isinstance(op, Delete):
            if view.header.status is not ViewStatus.DROPPING:
                raise Violation("INV-6 entries went", f"shard {number} of {name} was deleted")
            view.shards.pop(number, None)
            return {}
        node = self.store.nodes[op.path]
        after = dict(codec.decode_shard(node.data, view.header.definition.grid, what=op.path).entries)
        if gone := before.keys() - after.keys():
            raise Violation("INV-6 an entry went", f"{name} buckets {sorted(gone)} became VACANT")
        view.shards[number] = after
        return {s: before.get(s) for s, entry in after.items() if entry != before.get(s)}

    def _judge_entries(self, view: View, before: dict[int, Entry | None]) -> None:
        for start_ms, old in before.items():
            new = view.at(start_ms)
            assert new is not None
            if new.state is State.VALID and (old is None or old != new):
                self._judge_valid(view, start_ms, new)
                view.built_at[start_ms] = self.table.version

    def _judge_valid(self, view: View, start_ms: int, entry: Entry) -> None:
        """A bucket became VALID, at this instant."""
        header, name = view.header, view.header.definition.name
        live, segments = self.source(header.definition.grid.window(start_ms))
        if entry.fingerprint != live:
            rule = "INV-4" if entry.fingerprint is not None and entry.fingerprint.is_empty else "INV-3"
            raise Violation(f"{rule} built from another source", f"bucket {start_ms} of {name}")
        made_for = self.disk.attempts.get(entry.attempt_id, header.incarnation)
        if entry.definition_hash != header.definition.hash or made_for != header.incarnation:
            raise Violation("INV-13 an attempt of another view", f"bucket {start_ms} of {name}")
        if self.stored(header, entry) != self.expected(header, start_ms, segments):
            raise Violation("INV-9 wrong rows", f"bucket {start_ms} of {name} by {entry.attempt_id}")

    def _judge_header(self, view: View, before: ViewHeader) -> None:
        after, name = view.header, view.header.definition.name
        if before.watermark_ms is None or after.watermark_ms is None or after.coverage_start_ms is None:
            return
        if after.watermark_ms < before.watermark_ms:
            raise Violation("INV-5 the watermark went back", f"{name}: {before.watermark_ms} to {after.watermark_ms}")
        moved = after.watermark_ms > before.watermark_ms
        if moved and (self.data_end_ms is None or after.watermark_ms > self.data_end_ms):
            raise Violation("INV-5 the watermark passed the data", f"{name}: {after.watermark_ms}")
        covered = range(after.coverage_start_ms, after.watermark_ms, after.definition.bucket_ms)
        if vacant := [s for s in covered if view.at(s) is None]:
            raise Violation("INV-5 VACANT inside coverage", f"{name}: {vacant}")

    def _judge_watermark(self, view: View, before: dict[int, Entry | None]) -> None:
        """It moves in the very write that lets it (INV-2)."""
        header = view.header
        became_valid = any((e := view.at(s)) is not None and e.state is State.VALID for s in before)
        if not became_valid or header.watermark_ms is None or self.data_end_ms is None:
            return
        reached_ms = advanced(header.watermark_ms, header.definition.grid, view.at)
        if header.watermark_ms < min(reached_ms, header.definition.grid.start_of(self.data_end_ms)):
            raise Violation("INV-2 the watermark stayed behind", f"{header.definition.name}: {header.watermark_ms}")

    # -- files and positions -------------------------------------------------------------------------------------------

    def deleting(self, location: str, path: str) -> None:
        """A service is about to delete a file (INV-11)."""
        if self.reads[location, path]:
            raise Violation("INV-11 a file was deleted under its reader", f"{location}/{path}")
        for view in self.views.values():
            if view.header.definition.location == location and view.header.status is not ViewStatus.DROPPING:
                named = {f.name for entry in view.entries.values() for f in entry.files}
                if path in named:
                    raise Violation("INV-11 a named file was deleted", f"{location}/{path}")
        if location == self.table.definition.location and any(s.path == path for s in self.segments.values()):
            raise Violation("INV-11 a registered file was deleted", f"{location}/{path}")

    def committed(self, group: str, partition: Partition, before: int, after: int) -> None:
        """The group will not read these records again: what they say must show in the ledger (INV-8)."""
        if group != CONSISTENCY_GROUP:
            return
        for record in self.bus.logs[partition][before:after]:
            event = parse(SEGMENTS, record.value, what=record)
            assert isinstance(event, SegmentsChanged)
            for view in self.views.values():
                if view.header.definition.table == event.table and view.header.status is not ViewStatus.DROPPING:
                    self._judge_marked(view, event)

    def _judge_marked(self, view: View, event: SegmentsChanged) -> None:
        grid = view.header.definition.grid
        ranges = [None if c.ranges is None else [(r.start_ms, r.end_ms) for r in c.ranges] for c in event.changes]
        for start_ms, entry in view.entries.items():
            window = grid.window(start_ms)
            hit = any(r is None or any(a < window.end_ms and window.start_ms < b for a, b in r) for r in ranges)
            old = entry.state is State.VALID and view.built_at.get(start_ms, 0) < event.registry_version
            if hit and old and entry.fingerprint != self.source(window)[0]:
                raise Violation(
                    "INV-8 committed before its mark",
                    f"bucket {start_ms} of {view.header.definition.name} is VALID, event {event.registry_version}",
                )

    def holding(self, files: Sequence[tuple[str, str]]) -> Callable[[], None]:
        """A query is about to read these. Call the answer when it has, or when its hold is gone."""
        self.reads.update(files)

        def done() -> None:
            self.reads.subtract(files)

        return done
