"""Judges a run: after every write to the store, at every deletion of a file and every committed position, and at rest.

The oracle looks at the nodes themselves, at the instant they change, with nobody in between. It knows the rows of every
file there ever was by its CRC, so it can compute what any bucket should hold from what is registered at that instant.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from floodmark.core.buckets import Entry, State
from floodmark.core.fingerprint import Fingerprint, fingerprint
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.runs import NO_RUNS, Runs
from floodmark.core.segments import Segment
from floodmark.core.tables import TableHeader, ViewHeader, ViewStatus
from floodmark.core.watermark import advanced
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Check, Delete, Op
from tests.simulation.files import Disk, Row, decoded
from tests.simulation.hub import Hub, Task, Violation
from tests.simulation.plan import TABLE
from tests.simulation.spark import evaluated
from tests.simulation.store import ObservedStore

CLOCKS_APART_MS = 600
"""A hold may be taken to have run out by whoever's clock is ahead."""


@dataclass
class View:
    """One view as the nodes have it."""

    header: ViewHeader
    shards: dict[int, dict[int, Entry]] = field(default_factory=dict)
    runs: Runs = NO_RUNS
    settled_at: dict[int, int] = field(default_factory=dict)
    """The registry version at which each shard in a run last became VALID."""
    built_at: dict[int, int] = field(default_factory=dict)
    """The registry version at which each bucket last became VALID."""

    @property
    def entries(self) -> dict[int, Entry]:
        return {start: entry for shard in self.shards.values() for start, entry in shard.items()}

    def at(self, start_ms: int) -> Entry | None:
        number = self.header.definition.grid.shard_of(start_ms)
        if number in self.shards:
            return self.shards[number].get(start_ms)
        run = self.runs.at(number)
        return run.entry if run is not None else None

    def stretch_end(self, start_ms: int) -> int:
        """The end of the once-valid run this bucket is in, else the bucket."""
        grid = self.header.definition.grid
        run = self.runs.at(grid.shard_of(start_ms))
        return run.window(grid).end_ms if run is not None and run.entry.ever_valid else start_ms

    @property
    def parts(self) -> Iterator[tuple[int, Entry]]:
        """Each shard in a run, and its entry."""
        return ((number, run.entry) for run in self.runs for number in range(run.first, run.end))


class Oracle:
    def __init__(self, hub: Hub, store: ObservedStore, disk: Disk) -> None:
        self.hub = hub
        self.store = store
        self.disk = disk
        self.views: dict[str, View] = {}
        self.reads: Counter[tuple[str, str]] = Counter()
        """Files that queries are about to read, under holds that stand."""
        self.changes: dict[int, list[Interval]] = {}
        """Where rows changed, by the registry version that changed them."""
        self.events: dict[str, int] = {}
        """The registry version of each event, by its id."""
        self.published: set[str] = set()
        """The events that are in the log, or were."""
        self.holds: dict[Task, str] = {}
        """The hold that each thread took last."""
        self.expiries: dict[str, int] = {}
        """When each hold runs out."""
        self._table: TableHeader | None = None
        self._segments: dict[str, Segment] | None = None
        self._slices: dict[str, tuple[int, list[Segment]]] = {}
        store.wrote = hub.judging(self.wrote)
        disk.deleting = hub.judging(self.deleting)
        disk.building = hub.judging(self.building)

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
                        listed = codec.decode_slice_node(node.data, what=path).segments
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
        runs: dict[str, dict[int, Entry]] = {}
        for op in ops:
            parts = op.path.split("/")[2:]
            if isinstance(op, Check) or len(parts) < 2:
                continue
            if parts[0] == "tables":
                self._look_at_table(parts, op)
            elif parts[0] == "views" and len(parts) == 2:
                headers.update(self._look_at_header(parts[1]))
            elif parts[0] == "views" and parts[2] == "shards" and len(parts) == 4:
                touched.setdefault(parts[1], {}).update(self._look_at_shard(parts[1], int(parts[3]), op))
            elif parts[0] == "views" and parts[2:] == ["shards"] and not isinstance(op, Delete):
                runs[parts[1]] = self._look_at_runs(parts[1])
        for name, was in runs.items():
            if name in self.views:
                self._judge_runs(self.views[name], was)
                touched.setdefault(name, {})
        self._judge(touched, headers)

    def _judge(self, touched: dict[str, dict[int, Entry | None]], headers: dict[str, ViewHeader]) -> None:
        for name, before in touched.items():
            if name in self.views:
                self._judge_entries(self.views[name], before)
        for name, header in headers.items():
            if name in self.views:
                self._judge_header(self.views[name], header)
        for name, before in touched.items():
            if name in self.views:
                self._judge_watermark(self.views[name], before)

    def _look_at_table(self, parts: list[str], op: Op) -> None:
        if len(parts) == 2:
            before = self._segments or {}
            self._table = self._segments = None
            after = self.segments
            changed = [s for s in (*before.values(), *after.values()) if before.get(s.name) != after.get(s.name)]
            self.changes[self.table.version] = [s.interval for s in changed if s.interval is not None]
        elif parts[2] == "outbox" and len(parts) == 4:
            self._look_at_outbox(parts[3], op)
        elif parts[2] == "holds" and not isinstance(op, Delete) and self.hub.current is not None:
            self._look_at_hold(op.path)

    def _look_at_outbox(self, name: str, op: Op) -> None:
        if isinstance(op, Delete):
            waiting = [event_id for event_id, version in self.events.items() if version == int(name)]
            if lost := [event_id for event_id in waiting if event_id not in self.published]:
                raise Violation("INV-7 an event was dropped", f"{lost} left the outbox and is not in the log")
        else:
            event = codec.decode_event(self.store.nodes[op.path].data, what=op.path)
            self.events[event.event_id] = event.version

    def _look_at_hold(self, path: str) -> None:
        raw = codec.unpack(self.store.nodes[path].data, what=path)
        assert self.hub.current is not None
        self.expiries[path] = raw["x"]
        if path not in self.holds.values():
            self.holds[self.hub.current] = path

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
        before = view.shards.get(number)
        if before is None:
            before = self._left_run(view, number)
        if isinstance(op, Delete):
            # Of a view that was replaced in this very write, nothing is left to go.
            if view.header.status is not ViewStatus.DROPPING and number in view.shards:
                raise Violation("INV-6 entries went", f"shard {number} of {name} was deleted")
            view.shards.pop(number, None)
            return {}
        node = self.store.nodes[op.path]
        after = dict(codec.decode_shard(node.data, view.header.definition.grid, what=op.path).entries)
        if gone := before.keys() - after.keys():
            raise Violation("INV-6 an entry went", f"{name} buckets {sorted(gone)} became VACANT")
        view.shards[number] = after
        return {s: before.get(s) for s, entry in after.items() if entry != before.get(s)}

    def _left_run(self, view: View, number: int) -> dict[int, Entry]:
        """What a shard without a node held."""
        run = view.runs.at(number)
        if run is None:
            return {}
        entries = dict(run.shard(number, view.header.definition.grid).entries)
        if number in view.settled_at:
            view.built_at.update(dict.fromkeys(entries, view.settled_at[number]))
        return entries

    def _look_at_runs(self, name: str) -> dict[int, Entry]:
        """Take the new runs. Returns what was in runs before, by shard."""
        view = self.views.get(name)
        if view is None:
            return {}
        before = dict(view.parts)
        view.runs = codec.decode_runs(self.store.nodes[paths.runs(name)].data, what=name)
        return before

    def _judge_runs(self, view: View, before: dict[int, Entry]) -> None:
        name, grid, after = view.header.definition.name, view.header.definition.grid, dict(view.parts)
        if gone := before.keys() - after.keys() - view.shards.keys():
            raise Violation("INV-6 a run went", f"{name} shards {sorted(gone)} became VACANT")
        if both := after.keys() & view.shards.keys():
            raise Violation("3 a shard is a node and in a run", f"{name} shards {sorted(both)}")
        for number, new in after.items():
            old, window = before.get(number), grid.shard_window(number)
            if new.state is State.VALID and (old is None or old.state is State.STALE):
                if (live := self.source(window))[1]:
                    raise Violation("INV-4 built from another source", f"shard {number} of {name}, {live[1]}")
                if new.definition_hash != view.header.definition.hash:
                    raise Violation("INV-13 an attempt of another view", f"shard {number} of {name}")
                view.settled_at[number] = self.table.version
            elif new.state is State.STALE and old is not None and old.state is State.VALID:
                for start_ms in grid.starts_in(window):
                    self._judge_stale(view, start_ms, new)
        if before != after:
            who = self.hub.current.life.instance if self.hub.current else "-"
            told = [f"{run.first} to {run.end} {run.entry.state}" for run in view.runs]
            self.hub.note(who, f"runs of {name}: {', '.join(told) or 'none'}")

    def _judge_entries(self, view: View, before: dict[int, Entry | None]) -> None:
        for start_ms, old in before.items():
            new = view.at(start_ms)
            assert new is not None
            self._tell(view, start_ms, old, new)
            if new.state is State.VALID and (old is None or old != new):
                self._judge_valid(view, start_ms, new)
                view.built_at[start_ms] = self.table.version
            elif new.state is State.STALE and old is not None and old.state is State.VALID:
                self._judge_stale(view, start_ms, new)

    def _tell(self, view: View, start_ms: int, old: Entry | None, new: Entry) -> None:
        """For the story: who did what to which bucket."""
        who = self.hub.current.life.instance if self.hub.current else "-"
        was = "VACANT" if old is None else str(old.state)
        why = f"by attempt {new.attempt_id[:8]}" if new.state is State.VALID else f"by {new.cause and new.cause.kind}"
        self.hub.note(who, f"bucket {start_ms} of {view.header.definition.name}: {was} -> {new.state} {why}")

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

    def _judge_stale(self, view: View, start_ms: int, entry: Entry) -> None:
        """Marked because of an event, a bucket must be one that the event's change touched."""
        cause, window = entry.cause, view.header.definition.grid.window(start_ms)
        if cause is None or cause.kind != "event" or cause.event_id not in self.events:
            return
        touched = self.changes[self.events[cause.event_id]]
        if not any(interval.overlaps(window) for interval in touched):
            name = view.header.definition.name
            raise Violation("5.1 marked for nothing", f"bucket {start_ms} of {name} by event {cause.event_id}")

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
        if vacant := [s for s in self.listed(view, covered) if view.at(s) is None]:
            raise Violation("INV-5 VACANT inside coverage", f"{name}: {vacant}")

    def listed(self, view: View, starts: range) -> Iterator[int]:
        """These buckets, without those in runs."""
        grid = view.header.definition.grid
        runs = IntervalSet.of(run.window(grid) for run in view.runs)
        for gap in runs.gaps(Interval(starts.start, starts.stop)) if starts else ():
            yield from grid.starts_in(gap)

    def _judge_watermark(self, view: View, before: dict[int, Entry | None]) -> None:
        """It moves in the very write that lets it (INV-2)."""
        header = view.header
        became_valid = any((e := view.at(s)) is not None and e.state is State.VALID for s in before)
        if not became_valid or header.watermark_ms is None or self.data_end_ms is None:
            return
        reached_ms = advanced(header.watermark_ms, header.definition.grid, view.at, view.stretch_end)
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

    def relying(self) -> None:
        """A reader has its hold and goes on: it must not have run out already (INV-11)."""
        task = self.hub.running
        if self.expiries[self.holds[task]] <= task.life.now_ms():
            raise Violation("INV-11 a hold that holds nothing", f"{task.life.instance} relies on one that ran out")

    def building(self) -> None:
        """A job is about to read: under its hold, unless that ran out (INV-11)."""
        task = self.hub.running
        path = self.holds[task]
        if path not in self.store.nodes and self.hub.now_ms < self.expiries[path] - CLOCKS_APART_MS:
            raise Violation("INV-11 a job reads without a hold", task.life.instance)

    def holding(self, files: Sequence[tuple[str, str]]) -> Callable[[], None]:
        """A query is about to read these. Call the answer when it has, or when its hold is gone."""
        self.reads.update(files)

        def done() -> None:
            self.reads.subtract(files)

        return done
