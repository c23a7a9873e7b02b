"""What the scheduler sees: of every view the STALE entries and which buckets exist, kept current by watches.

A node is read when it changed, and only then, so a cycle costs what changed and not what there is. Of each shard only
what decisions need is kept: its STALE entries, and one bit for each bucket that has an entry.

Watches fire once, coalesce, and may be late. They only say what to read again. They also fire when the connection
breaks. A look that does not come to its end is begun again with everything.
"""

import queue
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b
from operator import or_

import structlog

from floodmark.core.buckets import BUCKETS_PER_SHARD, Entry, State
from floodmark.core.dispatch import Record
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.runs import NO_RUNS, Run, Runs, whole_shards
from floodmark.core.tables import TableHeader, ViewHeader, ViewStatus
from floodmark.ledger import codec, paths
from floodmark.ledger.dispatch import decode_records
from floodmark.ledger.store import Node, WatchableStore

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Summary:
    """What decisions need of some buckets of a shard."""

    stale: Mapping[int, Entry]
    present: int
    """One bit for each bucket that has an entry."""


@dataclass(frozen=True, slots=True)
class ShardSummary:
    blocks: Mapping[bytes, Summary]
    """By the digest of the block's bytes: a mark or a commit rewrites a shard, and leaves most of its blocks alone."""
    whole: Summary

    @classmethod
    def of(cls, blocks: Mapping[bytes, Summary]) -> "ShardSummary":
        stale = {start_ms: entry for block in blocks.values() for start_ms, entry in block.stale.items()}
        return cls(blocks, Summary(stale, reduce(or_, (block.present for block in blocks.values()), 0)))


@dataclass(frozen=True, slots=True)
class Unsettled:
    """On what nothing could be settled the last time, and when to try again though only other data came."""

    runs: Runs
    beside: tuple[int, ...]
    end_ms: int
    table_version: int
    again_at_ms: int


@dataclass(slots=True)
class SeenView:
    """One view as of the last look."""

    header: ViewHeader
    runs: Runs = NO_RUNS
    shards: dict[int, ShardSummary] = field(default_factory=dict)
    records: dict[int, dict[int, Record]] = field(default_factory=dict)
    decided_on: dict[int, tuple[int, Entry | None]] = field(default_factory=dict)
    """The table version and the entry a bucket had when it was last given or refused a task, by bucket start."""
    unsettled: "Unsettled | None" = None

    def vacant(self, end_ms: int) -> Iterator[Interval]:
        """The whole shards that are VACANT from the watermark up to this time."""
        if self.header.watermark_ms is None or end_ms <= self.header.watermark_ms:
            return
        for wanted in whole_shards(Interval(self.header.watermark_ms, end_ms), self.header.definition.grid):
            nodes = (Interval(n, n + 1) for n in self.shards if wanted.start_ms <= n < wanted.end_ms)
            yield from self.runs.shards.union(nodes).gaps(wanted)

    def stale_runs(self) -> list[Run]:
        return [run for run in self.runs if run.entry.state is State.STALE]

    def stale_beside_runs(self, least: int) -> tuple[int, ...]:
        """The shards beside runs with at least so many STALE buckets that have no files."""
        beside = {n for run in self.runs for n in (run.first - 1, run.end)} & self.shards.keys() if self.runs else ()
        return tuple(
            number
            for number in sorted(beside)
            if sum(not entry.files for entry in self.shards[number].whole.stale.values()) >= least
        )

    def stale(self) -> dict[int, Entry]:
        return {start: entry for shard in self.shards.values() for start, entry in shard.whole.stale.items()}

    def dispatched(self) -> dict[int, Record]:
        return {start: record for shard in self.records.values() for start, record in shard.items()}

    def exists(self, start_ms: int) -> bool:
        number = self.header.definition.grid.shard_of(start_ms)
        shard = self.shards.get(number)
        if shard is None:
            return self.runs.at(number) is not None
        return bool(shard.whole.present >> self._bit(start_ms) & 1)

    def summary(self, number: int, data: bytes, *, what: str) -> ShardSummary:
        """A shard as it is now. Only the blocks that are not known yet are decoded."""
        known = self.shards[number].blocks if number in self.shards else {}
        blocks: dict[bytes, Summary] = {}
        for block in codec.shard_blocks(data, what=what):
            digest = blake2b(block, digest_size=16).digest()
            blocks[digest] = known.get(digest) or self._summary(block, what)
        return ShardSummary.of(blocks)

    def _summary(self, block: bytes, what: str) -> Summary:
        stale, starts = codec.decode_stale(block, self.header.definition.grid, what=what)
        return Summary(stale, reduce(or_, (1 << self._bit(start_ms) for start_ms in starts), 0))

    def _bit(self, start_ms: int) -> int:
        return start_ms // self.header.definition.bucket_ms % BUCKETS_PER_SHARD


_ShardName = tuple[str, str, int]
"""View, `shards` or `dispatch`, and number."""


def _path(shard: _ShardName) -> str:
    view, kind, number = shard
    return paths.shard(view, number) if kind == "shards" else paths.dispatch_shard(view, number)


class Eyes:
    """Keeps every view in sight. `look` brings the picture up to date."""

    def __init__(self, store: WatchableStore) -> None:
        self._store = store
        self._changed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._everything = True
        self.views: dict[str, SeenView] = {}
        self.tables: dict[str, TableHeader] = {}

    def look_at_everything(self) -> None:
        """The next look trusts nothing seen so far."""
        self._everything = True

    @property
    def something_changed(self) -> bool:
        return self._everything or not self._changed.empty()

    def look(self) -> bool:
        """Read what changed. Returns whether anything did."""
        everything, self._everything = self._everything, True  # until this look has come to its end
        changed: set[str] = set()
        while not self._changed.empty():
            changed.add(self._changed.get_nowait())
        if everything:
            self.views.clear()
            self.tables.clear()
            self._look_at_views()
        else:
            self._read_again(changed)
        self._everything = False
        return everything or bool(changed)

    def look_at(self, view: str, shards: Iterable[int]) -> None:
        """Read a view's header, runs and these shards now, after a write of our own: its watches may take a moment."""
        self._look_at_view(view)
        self._look_at_shards(view, "shards")
        self._read_shards([(view, "shards", number) for number in shards])

    # -- reading what changed --------------------------------------------------------------------------------------

    def _read_again(self, changed: Iterable[str]) -> None:
        shards: list[_ShardName] = []
        for path in sorted(changed):
            parts = path.removeprefix(paths.ROOT + "/").split("/")
            match parts:
                case ["views"]:
                    self._look_at_views()
                case ["views", view]:
                    self._look_at_view(view)
                case ["views", view, "shards" | "dispatch"]:
                    self._look_at_shards(view, parts[2])
                case ["views", view, "shards" | "dispatch", number]:
                    shards.append((view, parts[2], int(number)))
                case ["tables", table]:
                    self._look_at_table(table)
        self._read_shards(shards)

    def _look_at_views(self) -> None:
        names = set(self._store.children_watched(paths.VIEWS, self._changed.put))
        for gone in self.views.keys() - names:
            del self.views[gone]
        for name in sorted(names - self.views.keys()):
            self._look_at_view(name)

    def _look_at_view(self, view: str) -> None:
        """The header; and for a new incarnation everything below it. One damaged view does not hide the others."""
        (node,) = self._store.read_watched([paths.view(view)], self._changed.put)
        try:
            header = None if node is None else codec.decode_view(node.data, what=paths.view(view))
        except InvalidInput as error:
            log.error("view_not_readable", view=view, error=str(error))  # noqa: TRY400 - the sentence says it all
            header = None
        if header is None or header.status is ViewStatus.DROPPING:
            self.views.pop(view, None)
            return
        known = self.views.get(view)
        if known is not None and known.header.incarnation == header.incarnation:
            known.header = header
            return
        self.views[view] = SeenView(header)
        if header.definition.table not in self.tables:
            self._look_at_table(header.definition.table)
        self._look_at_shards(view, "shards")
        self._look_at_shards(view, "dispatch")

    def _look_at_shards(self, view: str, kind: str) -> None:
        seen = self.views.get(view)
        if seen is None:
            return
        parent = paths.shards(view) if kind == "shards" else paths.dispatch(view)
        known = seen.shards if kind == "shards" else seen.records
        if kind == "shards":
            self._look_at_runs(
                seen, parent
            )  # before the nodes: what leaves a run in between is seen twice, not nowhere
        names = self._store.children_watched(parent, self._changed.put)
        self._read_shards([(view, kind, n) for n in map(int, names) if n not in known])

    def _look_at_runs(self, seen: SeenView, path: str) -> None:
        (node,) = self._store.read_watched([path], self._changed.put)
        try:
            seen.runs = NO_RUNS if node is None else codec.decode_runs(node.data, what=path)
        except InvalidInput as error:
            log.error("view_not_readable", path=path, error=str(error))  # noqa: TRY400 - the sentence says it all

    def _read_shards(self, shards: Iterable[_ShardName]) -> None:
        """All in one go, of however many views they are."""
        wanted = {_path(shard): shard for shard in shards if shard[0] in self.views}
        nodes = self._store.read_watched(list(wanted), self._changed.put) if wanted else []
        for (path, (view, kind, number)), node in zip(wanted.items(), nodes, strict=True):
            try:
                self._keep(self.views[view], kind, number, node, path)
            except InvalidInput as error:
                log.error("view_not_readable", view=view, error=str(error))  # noqa: TRY400 - the sentence says it all

    def _keep(self, seen: SeenView, kind: str, number: int, node: Node | None, path: str) -> None:
        if node is None:
            # Gone with an earlier incarnation. It is not watched; forgetting it lets a new one be noticed.
            seen.shards.pop(number, None) if kind == "shards" else seen.records.pop(number, None)
        elif kind == "shards":
            seen.shards[number] = seen.summary(number, node.data, what=path)
        else:
            seen.records[number] = decode_records(node.data, what=path)

    def _look_at_table(self, table: str) -> None:
        (node,) = self._store.read_watched([paths.table(table)], self._changed.put)
        self.tables.pop(table, None)
        if node is None:
            return
        try:
            header = codec.decode_table(node.data, what=paths.table(table))
            if not header.dropped:
                self.tables[table] = header
        except InvalidInput as error:
            log.error("table_not_readable", table=table, error=str(error))  # noqa: TRY400 - the sentence says it all
